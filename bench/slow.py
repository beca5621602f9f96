"""Writes to relation files that take longer, as on a device far away.

A server is started with a small library that sleeps after each write to a file
below base/; see slow/slow_writes.c.  WAL and the double-write log are not slowed.
"""

from pathlib import Path

from common import postgres
from common.base import DevError, run

SOURCE = Path(__file__).resolve().parent / "slow" / "slow_writes.c"
LIBRARY = "slow_writes.so"


def environment(paths, data, microseconds):
    """Return what a server on `data` needs in its environment; nothing for no microseconds."""
    if not microseconds:
        return {}
    return settings(build(paths.root / LIBRARY), data / "base", microseconds)


def build(library):
    """Compile the library; returns its path."""
    run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE])
    return library


def settings(library, directory, microseconds):
    """Return the environment in which writes below a directory are slow."""
    return {"LD_PRELOAD": str(library), "SLOW_WRITES_BELOW": f"{directory.resolve()}/",
            "SLOW_WRITES_MICROSECONDS": str(microseconds)}


def require(server):
    """Raise DevError unless the server has the library: the loader only warns."""
    if LIBRARY not in postgres.read_proc(server.postmaster(), "maps"):
        raise DevError(f"the server does not have {LIBRARY}", "see the end of its log")
