"""Atomic writes on real file systems: made on loop devices, over files in memory.

What the server does there is for tests of test_doublewrite to check; they find
the file systems by an environment variable, and are skipped without.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from . import suites
from .base import DevError, output, own, run, say

PACKAGES = ("e2fsprogs", "mount", "util-linux", "xfsprogs")

PLACES_VARIABLE = "PGDW_ATOMIC_PLACES"
TESTS = ("test_doublewrite/038_atomic_writes", "test_doublewrite/039_atomic_storage")

# How each file system is made, and options to mount it.  XFS with reflink makes atomic writes
# in software, of one of its own blocks at least; the others make none.
FILE_SYSTEMS = {
    "xfs_reflink": (("mkfs.xfs", "-q", "-m", "reflink=1"), ()),
    "xfs_bounded": (("mkfs.xfs", "-q", "-m", "reflink=1"), ("-o", "max_atomic_write=8k")),
    "xfs_block_8k": (("mkfs.xfs", "-q", "-b", "size=8192"), ()),
    "xfs_block_16k": (("mkfs.xfs", "-q", "-b", "size=16384"), ()),
    "xfs_plain": (("mkfs.xfs", "-q", "-m", "reflink=0"), ()),
    "ext4": (("mkfs.ext4", "-q"), ()),
    "ext4_bigalloc": (("mkfs.ext4", "-q", "-O", "bigalloc", "-C", "16384"), ()),
}

# XFS refuses to be smaller than 300 MB.
IMAGE_MB = 400


def test(paths):
    """Run the tests with file systems mounted; returns the number of failures."""
    if os.getuid() != 0:
        raise DevError("only root can mount file systems")
    suites.prepare(paths, "test")
    with places() as directory:
        results = suites.run_tests(paths, "test", list(TESTS), suites.MODES[0],
                                   {PLACES_VARIABLE: str(directory)})
    print(suites.table(results))
    print(suites.summary(results))
    suites.report_failures(results)
    return sum(result.failed for result in results)


@contextlib.contextmanager
def places():
    """Give a directory in which each of FILE_SYSTEMS is mounted, and remove it."""
    memory = Path("/dev/shm")
    with (tempfile.TemporaryDirectory(prefix="pgdw-atomic-", dir=memory) as name,
          contextlib.ExitStack() as stack):
        directory = Path(name)
        directory.chmod(0o755)
        for place, (command, options) in FILE_SYSTEMS.items():
            say(f"making a file system: {place}")
            stack.enter_context(_mounted(directory, place, command, options))
        yield directory


@contextlib.contextmanager
def _mounted(directory, place, command, options):
    image = directory / f"{place}.image"
    with image.open("wb") as opened:
        opened.truncate(IMAGE_MB << 20)
    target = directory / place
    target.mkdir()
    device = output(["losetup", "--find", "--show", "--direct-io=on", image])
    try:
        run([*command, device])
        run(["mount", *options, device, target])
        try:
            own(target)
            yield
        finally:
            run(["umount", target])
    finally:
        run(["losetup", "--detach", device])
