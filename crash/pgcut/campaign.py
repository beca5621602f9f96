"""Campaigns: many recordings under many settings, their states, and the controls.

Jobs and controls run in parallel, each by one process from beginning to end; what they find
comes back as plain data, for the report.  A process that ends without it costs its job, not
the campaign, and what it has left is kept.
"""

import contextlib
import json
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

from common import postgres

from . import limits
from .block import FILE_SYSTEMS
from .controlled import result_of, run_control
from .trial import Job, Tools, lost, run_block_job, run_job

# How long jobs that are cut short may take to stop their servers and unmount their recorders.
END_SECONDS = 30

# How long each control has taken, when it was measured; and others, and jobs, about.
MEASURED = Path(__file__).resolve().parents[1] / "controls.json"
CONTROL_SECONDS, RECORDING_SECONDS = 20, 25


def _longest_first(work):
    """Return pieces of work such that no long one is left when all others have ended."""
    measured = json.loads(MEASURED.read_text())

    def seconds(piece):
        if isinstance(piece[2], Job):
            return RECORDING_SECONDS + piece[2].states
        tries = [one["seconds"] for one in measured.get(piece[2].name, {}).get("tries", ())]
        return sum(tries) / len(tries) if tries else CONTROL_SECONDS
    return sorted(work, key=seconds, reverse=True)


def run(tools: Tools, jobs: Any, controls: Any = (), workers: int = 2) -> Iterator[Any]:
    """Run jobs and controls; yields JobResults as they come.

    If this process is told to end, all of them are, and say how far they have come.
    """
    work = [(run_control, tools, control) for control in controls] + \
        [(run_block_job if job.scenario in FILE_SYSTEMS else run_job, tools, job)
         for job in jobs]
    context = multiprocessing.get_context("spawn")
    work = _longest_first(work)
    running = {}
    try:
        while work or running:
            while work and time.monotonic() >= limits.DEADLINE:
                yield _not_begun(work.pop(0))
            while work and len(running) < workers:
                piece = work.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, piece))
                process.start()
                theirs.close()
                running[ours] = process, piece
            for ours in connection.wait(running) if running else ():
                result = _received(ours, *running[ours])
                del running[ours]
                yield result
    except SystemExit:
        for process, _ in running.values():
            process.terminate()
        until = time.monotonic() + END_SECONDS
        for ours, (process, piece) in running.items():
            yield _received(ours, process, piece, until)
        raise
    finally:
        _end([process for process, _ in running.values()])
        postgres.tidy(tools.scratch)


def _work(pipe, piece):
    """Do one piece of work, in a process of its own; may be told to end."""
    end_when_told()
    pipe.send(_guarded(piece))


def end_when_told() -> None:
    """Have SIGTERM end this process as an error does: servers are stopped, recorders unmounted."""
    def end(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)       # once is enough
        sys.exit(128 + signal.SIGTERM)
    signal.signal(signal.SIGTERM, end)


def _received(pipe, process, piece, until=0):
    """Return the JobResult that a process sends by a moment, or that says how it has ended."""
    result = None
    with contextlib.closing(pipe), contextlib.suppress(EOFError):
        if pipe.poll(max(0, until - time.monotonic())):
            result = pipe.recv()
    if until and not result:
        process.kill()
    process.join(END_SECONDS)
    _end([process])
    return result or lost(piece[1], _result_of(piece[2]),
                          f"its process has ended with status {process.exitcode}")


def _not_begun(piece):
    """Return the JobResult of what there was no time for."""
    result = _result_of(piece[2])
    result.error = "not begun: no time is left"
    return result


def _end(processes):
    """Tell processes to end, and kill those that do not."""
    for end in ("terminate", "kill"):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            getattr(process, end)()
        deadline = time.monotonic() + END_SECONDS
        for process in alive:
            process.join(max(0, deadline - time.monotonic()))


def _guarded(work):
    """Run one piece of work; an exception becomes its result."""
    function, tools, subject = work
    started = time.monotonic()
    result = _result_of(subject)
    try:
        function(tools, subject, result)
    except BaseException:       # it may be told to end, and says how far it has come
        result.error = traceback.format_exc()
    result.seconds = time.monotonic() - started
    return result


def _result_of(subject):
    """Return the JobResult of a job or a control that has not begun."""
    return subject.result() if isinstance(subject, Job) else result_of(subject)
