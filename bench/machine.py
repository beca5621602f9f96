"""What the report says about the machine, and of what the builds are."""

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.base import output


def describe(commit: Mapping[str, Any], kinds: Iterable[str], bindirs: Mapping[str, Path]) -> dict:
    """Return commit, machine, system and builds as {title: text}; the commit comes as such."""
    return {**commit,
            "processor": f"{os.cpu_count()} x {_first('/proc/cpuinfo', 'model name')}",
            "memory": f"{total_memory_mb()} MB",
            "kernel": platform.release(),
            "system": _os_name(),
            "governor": _governor(),
            **{f"build {kind}": _version(bindirs[kind]) for kind in kinds},
            **{f"flags of {kind}": _flags(bindirs[kind]) for kind in kinds}}


def total_memory_mb() -> int:
    """Return the machine's memory."""
    return int(_first("/proc/meminfo", "MemTotal").split()[0]) // 1024


def load_average() -> float:
    """Return how many processes have been running in the last minute."""
    return os.getloadavg()[0]


def _first(path, key):
    """Return the value of the first `key: value` line of a file in /proc."""
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _os_name():
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "unknown"


def _governor():
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return path.read_text().strip() if path.exists() else "not visible"


def _version(bindir):
    """Return what a server calls itself, and what tells it from others of that name."""
    program = bindir / "postgres"
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    return f"{output([program, '--version'])}, sha256 {digest[:12]}"


def _flags(bindir):
    """Return how the build was compiled, less what names places."""
    wanted = ("CC", "CFLAGS", "CPPFLAGS")
    pairs = (line.partition(" = ") for line in output([bindir / "pg_config"]).splitlines())
    return " ".join(value for name, _, value in pairs if name in wanted)
