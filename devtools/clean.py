"""Remove what builds and tests have left in the build root.

Source and work/ are kept, as edits may be in them, and the compiler's cache, by which
the next build takes a minute; `--all` leaves nothing, if all edits have been exported.
"""

import os
import shutil
from pathlib import Path

from bench import cli as bench
from common.base import DevError, Paths, locked

from . import worktree

KEPT = ("ccache", "lock", "source.json", "sources", "upstream", "work")


def clean(paths: Paths, everything: bool = False) -> int:
    """Remove what is not kept, and what benchmarks have left; returns the bytes freed."""
    with locked(paths):
        _refuse_if_in_use(paths.root)
        if everything and paths.work.exists() and worktree.edits_in_work(
                worktree.repository(paths), paths):
            raise DevError("work/ has edits that were not exported", "./dev export")
        places = [place for place in paths.root.iterdir()
                  if place.name != "lock" and (everything or place.name not in KEPT)]
        freed = sum(size(place) for place in places)
        for place in places:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()
        bench.clean()
    return freed


def size(place: Path) -> int:
    """Return the bytes of the files below a directory, links not followed."""
    return os.lstat(place).st_size + sum(
        os.lstat(os.path.join(top, name)).st_size
        for top, _, names in os.walk(place) for name in names)


def _refuse_if_in_use(root):
    """Raise DevError if something below is mounted, or a program from there runs."""
    below = f"{root.resolve()}/"
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1].encode().decode("unicode_escape")
        if place.startswith(below):
            raise DevError(f"{place} is mounted", f"umount {place}")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program = os.readlink(process / "exe")
        except OSError:             # not ours, or gone
            continue
        if program.startswith(below):
            raise DevError(f"{program} runs, process {process.name}", "stop it first: ./dev stop")
