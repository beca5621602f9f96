"""Writes to relation files that take longer, as on a device far away, or syncs of all files.

A server is started with a small library that sleeps after each write to a file
below base/, by which WAL and the double-write log are not slowed, or after each sync, as on a device
without a write cache; see slow/slow.c.
"""

from pathlib import Path

from common import postgres
from common.base import DevError, Paths, run

from .server import Server

SOURCE = Path(__file__).resolve().parent / "slow" / "slow.c"
LIBRARY = "slow.so"


def environment(paths: Paths, data: Path, writes: int, syncs: int = 0) -> dict[str, str]:
    """Return what a server on `data` needs in its environment; nothing for no microseconds."""
    if not writes and not syncs:
        return {}
    return settings(build(paths.root / LIBRARY), data / "base", writes, syncs)


def build(library: Path) -> Path:
    """Compile the library; returns its path."""
    run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE])
    return library


def settings(library: Path, directory: Path, writes: int, syncs: int = 0) -> dict[str, str]:
    """Return the environment in which writes below a directory are slow, or all syncs."""
    return {"LD_PRELOAD": str(library), "SLOW_WRITES_BELOW": f"{directory.resolve()}/",
            "SLOW_WRITES_MICROSECONDS": str(writes), "SLOW_SYNCS_MICROSECONDS": str(syncs)}


def require(server: Server) -> None:
    """Raise DevError unless the server has the library: the loader only warns."""
    if LIBRARY not in postgres.read_proc(server.postmaster(), "maps"):
        raise DevError(f"the server does not have {LIBRARY}", "see the end of its log")
