"""Where logs of failed tests are kept: whatever runs later, or cleans up, leaves them alone.

Each run of tests in which one fails has a directory below `failures` in the build root, until
so many later ones have failed as well.  `./dev clean` removes them.
"""

import contextlib
import functools
import os
import shutil
import time
from pathlib import Path

KEPT_RUNS = 10

# What logs are called, unless their directory says what they are.
SUFFIXES = (".diffs", ".json", ".log", ".out", ".txt")
DIRECTORY = "log"

# What a test has printed.
OUTPUT = "output.txt"

# This file makes a directory a cluster, whose files are not kept: builds lie in memory.
CLUSTER = "PG_VERSION"


@functools.lru_cache(maxsize=None)
def directory(root):
    """Return the directory of this run of ./dev, which is made; those of old runs go."""
    parent = Path(root) / "failures"
    parent.mkdir(exist_ok=True)
    for old in sorted(parent.iterdir())[:-KEPT_RUNS + 1]:
        shutil.rmtree(old)
    place = parent / time.strftime(f"%Y-%m-%dT%H%M%S-{os.getpid()}")
    place.mkdir()
    return place


def keep(root, name, source, output=""):
    """Copy the logs of a test, and what it has printed; returns their directory."""
    place = directory(root) / name.replace("/", "-")
    copy_logs(source, place)
    if output:
        (place / OUTPUT).write_text(output)
    return place


def keep_all(root, name, source):
    """Move a whole directory that is of a failed run only; returns where it is."""
    place = directory(root) / name.replace("/", "-")
    shutil.move(source, place)
    return place


def copy_logs(source, target):
    """Copy the logs below a directory, which may be in use."""
    Path(target).mkdir(parents=True, exist_ok=True)
    for top, below, names in os.walk(source):
        if CLUSTER in names:
            below.clear()
        place = Path(target) / Path(top).relative_to(source)
        for name in names:
            path = Path(top) / name
            if (path.suffix in SUFFIXES or path.parent.name == DIRECTORY) and path.is_file():
                place.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):    # it is gone by now
                    shutil.copyfile(path, place / name)
