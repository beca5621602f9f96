"""Limits of time for steps: a step that takes longer is ended, with a report of what it waited for.

A thread that waits for a server, or in the kernel for a recorder, cannot be ended.  The process
that it waits for can: this process has started it.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from common import postgres

# Multiplies all limits, as it does those of other tests.
SLOWNESS = float(os.environ.get("PGDW_TEST_SLOWNESS") or 1)

# When all steps must have ended, by time.monotonic(), which all processes of a machine share: what is
# known by then can still be kept.
DEADLINE = float(os.environ.get("PGCUT_DEADLINE") or "inf")

# How long what has lost its servers may take to end, and then what has lost its recorder.
GRACE_SECONDS = 60

# With this status a process ends that nothing else ends.
HUNG_STATUS = 86

# Ended last: what it has recorded shows what happened.
_RECORDER = "pgcut-recorder"

# A process of Python's multiprocessing, which does not hang.
_TRACKER = "resource_tracker"


class Hang(Exception):
    """A step did not end in time."""


@contextlib.contextmanager
def limit(what: str, seconds: float) -> Iterator[None]:
    """Carry out what is within; raises Hang if it takes longer than so many seconds.

    All servers and programs of this process are ended then; a while later recorders are;
    and if that does not help either, this process is.  No step goes on after DEADLINE.
    """
    require_time(what)
    watch = _Watch(what, min(seconds * SLOWNESS, DEADLINE - time.monotonic()))
    watch.start()
    try:
        yield
    except Exception as error:
        if watch.report:
            raise Hang(watch.report) from error
        raise
    finally:
        watch.over.set()
        watch.join()
    if watch.report:
        raise Hang(watch.report)


def require_time(what: str) -> None:
    """Raise Hang if no time is left to begin a step."""
    if time.monotonic() >= DEADLINE:
        raise Hang(f"{what}: no time is left")


class _Watch(threading.Thread):
    """Waits until a step is over, or has had its time."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(name=f"limit of {what}", daemon=True)
        self.what, self.seconds = what, seconds
        self.over = threading.Event()
        self.report = ""

    def run(self) -> None:
        if self.over.wait(self.seconds):
            return
        self.report = f"{self.what} did not end within {self.seconds:.0f} s: {waiting()}"
        _end_children(spare=_RECORDER)
        if self.over.wait(GRACE_SECONDS):
            return
        _end_children()
        if self.over.wait(GRACE_SECONDS):
            return
        print(f"{self.report}; nothing has ended it", file=sys.stderr, flush=True)
        os._exit(HUNG_STATUS)


def waiting() -> str:
    """Return where each thread is, and what the processes below this one call themselves."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [f"thread {names.get(ident, ident)} in " + " < ".join(_frames(frame))
               for ident, frame in sys._current_frames().items()
               if ident != threading.get_ident()]
    return "; ".join([*threads, *map(_title, _descendants())])


def _frames(frame):
    """Return the innermost functions of a stack, as text."""
    found = []
    while frame is not None and len(found) < 5:
        found.append(f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:"
                     f"{frame.f_lineno})")
        frame = frame.f_back
    return found


def _title(pid):
    """Return what a process calls itself, as servers do to say what they are doing."""
    return f"process {pid} " + " ".join(postgres.read_proc(pid, "cmdline").split("\0"))[:200].strip()


def _children():
    """Return the processes that any thread of this one has started."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):
            found += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
    return [pid for pid in found if _TRACKER not in postgres.read_proc(pid, "cmdline")]


def _descendants():
    return [one for child in _children() for one in (child, *postgres.descendants(child))]


def _end_children(spare=None):
    """Kill the processes of this one, and those below them."""
    for pid in _children():
        if spare is None or spare not in postgres.read_proc(pid, "cmdline").partition("\0")[0]:
            with contextlib.suppress(postgres.ServerError):
                postgres.kill_family(pid)
