"""Atomic writes on real file systems: made on loop devices, over files in memory.

What the server does there is for tests of test_doublewrite to check; they find
the file systems by an environment variable, and are skipped without.  Upstream's
tests can be run there as a whole.
"""

import contextlib
import dataclasses
import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from common.base import DevError, Paths, note, output, own, run, say

from . import suites

PACKAGES = ("e2fsprogs", "mount", "util-linux", "xfsprogs")

PLACES_VARIABLE = "PGDW_ATOMIC_PLACES"
MEMORY = Path("/dev/shm")
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

# The error with which the kernel refuses to write a page of 8 kB atomically there (0: it does),
# and, where it does, what the engine never asks for.
RWF_ATOMIC = 0x40
PAGE = 8192
ANSWERS = {"xfs_reflink": 0, "xfs_bounded": 0, "xfs_block_8k": 0, "xfs_block_16k": errno.EINVAL,
           "xfs_plain": errno.EOPNOTSUPP, "ext4": errno.EOPNOTSUPP,
           "ext4_bigalloc": errno.EOPNOTSUPP}
NEVER_ASKED = (("two buffers", (0, 2, os.O_DIRECT), errno.EINVAL),
               ("not aligned in the file", (PAGE // 2, 1, os.O_DIRECT), errno.EINVAL),
               ("through the cache", (0, 1, 0), errno.EOPNOTSUPP))

# XFS refuses to be smaller than 300 MB.
IMAGE_MB = 400

# Clusters of upstream's tests lie on a file system that makes atomic writes in
# software, in a file with holes, where what is removed leaves one.
SUITES_FILE_SYSTEM = (FILE_SYSTEMS["xfs_reflink"][0], ("-o", "discard"))
SUITES_MB = 8000
SUITES_SETTING = "debug_atomic_writes_in_software=on"

# What the server says of a tablespace when pages there go home atomically.
PROVED = "are written atomically"

# What failed tests have left, beside the directory in which they ran.
KEPT = "testrun-atomic"


def test(paths: Paths) -> int:
    """Run the tests with file systems mounted; returns the number of failures."""
    if os.getuid() != 0:
        raise DevError("only root can mount file systems")
    suites.prepare(paths, "test")
    with places() as directory:
        results = [_ask_kernel(directory / place, answer)
                   for place, answer in ANSWERS.items()]
        results += suites.run_tests(paths, "test", list(TESTS), suites.MODES[0],
                                    {PLACES_VARIABLE: str(directory)})
    print(suites.table(results))
    print(suites.summary(results))
    suites.report_failures(paths, results, lambda result: "./dev atomic")
    return sum(result.failed for result in results)


def _ask_kernel(directory, answer):
    """Ask for atomic writes in a directory; returns a Result, of the answers expected."""
    asked = [("a page", (0, 1, os.O_DIRECT), answer), *(() if answer else NEVER_ASKED)]
    failed = 0
    for what, request, expected in asked:
        given = _refusal(directory / "asked", *request)
        if given != expected:
            failed += 1
            say(f"{directory.name}: {what}: {os.strerror(given)}, not {os.strerror(expected)}")
    return suites.Result(f"kernel/{directory.name}", suites.MODES[0], len(asked) - failed, failed, 0, 0)


def _refusal(path, offset, buffers, flags):
    """Ask for a page to be written atomically; returns the error's number, or 0."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags)
    try:
        os.ftruncate(descriptor, 4 * PAGE)
        with mmap.mmap(-1, PAGE) as memory, memoryview(memory) as view:
            size = PAGE // buffers
            parts = [view[i * size:(i + 1) * size] for i in range(buffers)]
            try:
                os.pwritev(descriptor, parts, offset, RWF_ATOMIC)
            except OSError as error:
                return error.errno
            finally:
                for part in parts:
                    part.release()
    finally:
        os.close(descriptor)
        path.unlink()
    return 0


def run_suites(paths: Paths, kind: str, names: Iterable[str],
               settings: Sequence[str]) -> list[suites.Result]:
    """Run tests with atomic_writes; returns Results.

    Upstream's run on a file system that has them, ours where nothing is proved: most of
    them count, or damage, what passes through the log.
    """
    ours = set(suites.own_tests(paths, suites.all_tests(paths, kind)))
    results = suites.run_tests(paths, kind, [name for name in names if name in ours],
                               suites.ATOMIC, settings=settings)
    return results + _run_upstream(paths, kind, [name for name in names if name not in ours],
                                   settings)


def _run_upstream(paths, kind, names, settings):
    if not names:
        return []
    if os.getuid() != 0:
        raise DevError("only root can mount file systems")
    target = paths.build(kind) / "testrun"
    target.mkdir(exist_ok=True)
    own(target)
    with (tempfile.TemporaryDirectory(prefix="pgdw-atomic-", dir=MEMORY) as name,
          _mounted(Path(name) / "suites.image", target, *SUITES_FILE_SYSTEM, SUITES_MB)):
        results = suites.run_tests(paths, kind, names, suites.ATOMIC,
                                   settings=[SUITES_SETTING, *settings])
        _note_proofs(target)
        return [_keep_log(result, target, paths.build(kind) / KEPT) for result in results]


def _note_proofs(directory):
    """Say how many servers wrote pages atomically, by what they logged."""
    logs = list(directory.glob("*/*/log/*.log"))
    proved = sum(PROVED in path.read_text(errors="replace") for path in logs)
    note(f"{proved} of {len(logs)} logs tell of pages written atomically")


def _keep_log(result, directory, kept):
    """Copy what a failed test has left, except clusters; returns a Result that names the copy."""
    if not result.failed or not result.log or not result.log.is_dir():
        return result
    copy = kept / result.log.relative_to(directory)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(result.log, copy, ignore=shutil.ignore_patterns("data", "tmp_check"))
    return dataclasses.replace(result, log=copy)


@contextlib.contextmanager
def places() -> Iterator[Path]:
    """Give a directory in which each of FILE_SYSTEMS is mounted, and remove it."""
    with (tempfile.TemporaryDirectory(prefix="pgdw-atomic-", dir=MEMORY) as name,
          contextlib.ExitStack() as stack):
        directory = Path(name)
        directory.chmod(0o755)
        for place, (command, options) in FILE_SYSTEMS.items():
            say(f"making a file system: {place}")
            target = directory / place
            target.mkdir()
            stack.enter_context(_mounted(directory / f"{place}.image", target, command, options))
        yield directory


@contextlib.contextmanager
def _mounted(image, target, command, options, megabytes=IMAGE_MB):
    """Make a file system in a file, and mount it."""
    with image.open("wb") as opened:
        opened.truncate(megabytes << 20)
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
