"""What building and testing need: Debian packages, and a few programs from pip."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from common.base import SYSTEM_PYTHON, DevError, Paths, locked, run, say

PACKAGES = (
    "bison", "bzip2", "ca-certificates", "ccache", "flex", "gcc", "git",
    "libc6-dev", "libipc-run-perl", "liblz4-dev", "libreadline-dev",
    "liburing-dev", "libzstd-dev", "meson", "ninja-build", "perl",
    "pkg-config", "xz-utils", "zlib1g-dev",
)

# Only for ./dev check.
CHECK = ("mypy", "perltidy", "python3-venv")
# Pinned, as each release knows more rules.
RUFF = "ruff==0.17.6"

# Only for ./dev bench: a load generator, and what renders reports.
BENCH = ("e2fsprogs", "mount", "python3-jinja2", "python3-matplotlib", "sysbench", "util-linux",
         "xfsprogs")

# How long to wait for another process that installs packages.
LOCK_SECONDS = 600

# First version with `exclude_suites`, by which PostgreSQL's build keeps the
# tests against a running server apart from those that start their own.
MIN_MESON = (0, 57)


def ensure(paths: Paths, extra: Iterable[str] = ()) -> None:
    """Install what is missing; quick when nothing is.

    `extra` are packages that only the calling command needs.  Raises DevError,
    with the command to run, if we may not install.
    """
    names = (*PACKAGES, *extra)
    installed = _installed(names)
    missing = [name for name in names if name not in installed]
    if missing:
        _install(missing)
        installed = _installed(names)
    _ensure_meson(paths, installed["meson"])


def _installed(names: Iterable[str]) -> dict[str, str]:
    """Return {package: version} of those of `names` that are installed."""
    if not shutil.which("dpkg-query"):
        raise DevError("this is not a Debian-family machine (no dpkg-query)",
                       "install the equivalents of: " + " ".join(names))
    listing = run(["dpkg-query", "-W", "-f",
                   "${db:Status-Status} ${Package} ${Version}\n", *names],
                  capture=True, check=False, env={**os.environ, "LC_ALL": "C"}).stdout
    rows = (line.split(" ", 2) for line in listing.decode().splitlines())
    return {name: version for status, name, version in rows if status == "installed"}


def _install(names: Iterable[str]) -> None:
    """Install Debian packages as root or through sudo."""
    prefix = _root_prefix()
    # Another process may be installing: a machine that has just started often upgrades itself.
    install = ["apt-get", "install", "-y", "-q", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}",
               "--no-install-recommends", *names]
    if prefix is None:
        raise DevError("packages are missing: " + " ".join(names),
                       "as root: apt-get update && " + " ".join(install))
    say("installing packages: " + " ".join(names))
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive"]
    run([*command, "apt-get", "update", "-q"], check=False)
    run([*command, *install])


def _root_prefix() -> list[str] | None:
    """Return the command prefix that makes a command run as root, or None."""
    if os.getuid() == 0:
        return []
    if shutil.which("sudo") and run(["sudo", "-n", "true"], check=False).returncode == 0:
        return ["sudo", "-n"]
    return None


def _ensure_meson(paths: Paths, version: str) -> None:
    """If the packaged meson is too old, keep one from pip in the build root."""
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_MESON:
        if "python3-venv" not in _installed(["python3-venv"]):
            _install(["python3-venv"])
        from_pip(paths, "venv", "meson>=0.57,<2")


def from_pip(paths: Paths, name: str, requirement: str, *options: str) -> Path:
    """Return the directory of the programs of a Python package, installed with pip if need be.

    They lie in the virtual environment NAME of the build root, made with these options
    of `python3 -m venv`, and made anew if another version is required.
    """
    venv = paths.root / name
    installed = venv / "requirement"
    with locked(paths):
        if not installed.exists() or installed.read_text() != requirement:
            say(f"installing {requirement} with pip into {venv}")
            run([SYSTEM_PYTHON, "-m", "venv", "--clear", *options, venv])
            run([venv / "bin" / "pip", "install", "--quiet", requirement])
            installed.write_text(requirement)
    return venv / "bin"
