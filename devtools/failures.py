"""Where logs of failed tests are kept: whatever runs later, or cleans up, leaves them alone.

Each run of tests in which one fails has a directory below `failures` in the build root, until
so many later ones have failed as well.  `./dev clean` removes them.  They lie in memory: only the
last two have what is large, a few recordings of the explorer, which can be replayed.
"""

import contextlib
import functools
import os
import shutil
import threading
import time
from pathlib import Path

KEPT_RUNS = 10

# Recordings of one run of the explorer that are kept, and what each is called.
KEPT_RECORDINGS = 2
RECORDING = "recording"

# What logs are called, unless their directory says what they are.
SUFFIXES = (".diffs", ".json", ".log", ".out", ".txt")
DIRECTORY = "log"

# What a test has printed.
OUTPUT = "output.txt"

# This file makes a directory a cluster, whose files are not kept: builds lie in memory.
CLUSTER = "PG_VERSION"

_BEGINNING = threading.Lock()


def _this_run(root: str | Path) -> Path:
    """Return what the directory of this run of ./dev is called."""
    with _BEGINNING:                    # parts of a run are threads
        return _begin(root)


@functools.cache
def _begin(root: str | Path) -> Path:
    """Name the directory of this run; of runs before the last that failed logs stay, or nothing."""
    parent = Path(root) / "failures"
    parent.mkdir(exist_ok=True)
    runs = sorted(parent.iterdir())
    for old in runs[:-KEPT_RUNS + 1]:
        shutil.rmtree(old)
    for old in runs[-KEPT_RUNS + 1:-1]:
        thin(old)
    return parent / time.strftime(f"%Y-%m-%dT%H%M%S-{os.getpid()}")


def directory(root: str | Path) -> Path:
    """Return the directory of this run of ./dev, which is made."""
    _this_run(root).mkdir(exist_ok=True)
    return _this_run(root)


def place(root: str | Path, name: str) -> Path:
    """Return where what a test leaves is kept; it is not made."""
    return directory(root) / name.replace("/", "-")


def keep(root: str | Path, name: str, source: str | Path | None, output: str = "") -> Path:
    """Copy the logs of a test, if it has any, and what it has printed; returns their directory."""
    kept = place(root, name)
    kept.mkdir(exist_ok=True)
    if source:
        copy_logs(source, kept)
    if output:
        (kept / OUTPUT).write_text(output)
    return kept


def no_failure(kept: Path, target: Path) -> Path:
    """Move what need not be kept to where the next run replaces it; returns that place."""
    shutil.rmtree(target, ignore_errors=True)
    if kept.exists():
        shutil.move(kept, target)
    with contextlib.suppress(OSError):          # others have failed
        kept.parent.rmdir()
    return target


def thin(place: str | Path, recordings: int = 0) -> None:
    """Remove what is no log below a directory, except from the first recordings, so many."""
    whole = [path for path in sorted(Path(place).rglob(RECORDING)) if path.is_dir()][:recordings]
    for top, below, names in os.walk(place):
        below[:] = [name for name in below if Path(top) / name not in whole]
        if CLUSTER in names:
            shutil.rmtree(top)
            below.clear()
            continue
        for name in names:
            if not _is_log(Path(top) / name):
                (Path(top) / name).unlink()


def _is_log(path: Path) -> bool:
    """Say whether a file is one that is kept of each failure."""
    return path.suffix in SUFFIXES or path.parent.name == DIRECTORY


def copy_logs(source: str | Path, target: str | Path) -> None:
    """Copy the logs below a directory, which may be in use."""
    Path(target).mkdir(parents=True, exist_ok=True)
    for top, below, names in os.walk(source):
        if CLUSTER in names:
            below.clear()
        place = Path(target) / Path(top).relative_to(source)
        for name in names:
            path = Path(top) / name
            if _is_log(path) and path.is_file():
                place.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):    # it is gone by now
                    shutil.copyfile(path, place / name)
