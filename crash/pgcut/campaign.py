"""Campaigns: many recordings under many settings, their states, and the controls.

A *job* is one recording and the states tried of it.  Jobs run in parallel, each
by one process from beginning to end; what they find comes back as plain data,
for the report.
"""

import json
import concurrent.futures
import contextlib
import multiprocessing
import random
import shutil
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from . import blockstates, matrix, monitor, record
from .block import FILE_SYSTEMS
from .broken import Workshop
from .controls import CONTROLS
from .disk import Rules
from .explore import Context, Subject
from .recording import Kind, Recording
from .states import (FAULTS, LOG, RELATION, WAL, WINDOW_FAULTS, Places, State, exhaustive,
                     sampled)

# Share of states whose recovery is cut, too; the same share of those twice, …
NESTED_SHARE = 0.06

# … and of those between opening and the checkpoint, …
WINDOW_NESTED_SHARE = 0.25

# … and of those of a control that only such states show.
CONTROL_NESTED_SHARE = 0.75

# Share of recordings in which names in the log's directory need a sync of the directory.
STRICT_NAMES = 0.25

# Lives of the recorded server, if not drawn.
LIVES = {"backup": 1, "reopened": 4}

# What some scenarios are about would not come to pass otherwise, or hardly ever: a log that is
# written, or whose files get new names all the time.
_LOGGED = {"io_torn_pages_protection": "double_writes"}
NEEDED = {"failing-log-syncs": _LOGGED,
          "failing-directory-syncs": {**_LOGGED, "wal_level": "minimal",
                                      "double_write_buffer_size": "16MB",
                                      "double_write_stage_size": "2MB"}}

# Scenarios in which nobody asks the server for its WAL.
ALONE = ("primary", "edited", "reopened", "half-writes", "failing-directory-syncs")

# Failures of a recording that are minimised; more are only counted.
MINIMISED = 3

# A control counts as not found after so many states.  One recording in three shows some
# of them, by luck and by how busy the machine is: few recordings would miss one now and then.
CONTROL_STATES = 900
CONTROL_RECORDINGS = 12

# Of the first of these.
FIRST_SEED = 1000

# Recordings of controls run under settings that give each of them a chance.
CONTROL_SETTINGS = {
    "io_torn_pages_protection": "double_writes", "double_write_buffer_size": "16MB",
    "double_write_stage_size": "2MB", "shared_buffers": "512kB", "wal_level": "replica",
    "checkpoint_timeout": "2s", "max_wal_size": "16MB", "bgwriter_delay": "10ms",
    "bgwriter_lru_maxpages": "100", "autovacuum": "off", "io_combine_limit": "128kB",
    "debug_io_direct": "", "wal_compression": "off", "wal_sync_method": "fdatasync",
    "double_write_compression": "off",
    "checkpoint_completion_target": "0.5", "checkpoint_flush_after": "0",
    "backend_flush_after": "0", "io_method": "sync", "wal_log_hints": "off",
    "wal_consistency_checking": "",
}


@dataclass(frozen=True)
class Tools:
    """Where the programs are, and what a campaign may use."""

    bindir: str
    workshop: Workshop          # makes the servers of the controls
    broken_bindir: str          # or this is the one of the only control
    recorder: str
    scratch: str                # in memory
    output: str                 # failures and the report


@dataclass
class JobResult:
    """What one job did and found."""

    name: str
    settings: dict = field(default_factory=dict)
    checksums: bool = False
    recording: dict = field(default_factory=dict)
    states: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    # What the protocol monitor says of the recording: texts, and what it counted
    violations: list = field(default_factory=list)
    monitored: dict = field(default_factory=dict)
    scenario: str = ""
    control: str = ""
    error: str = ""
    seconds: float = 0

    @property
    def tried(self):
        return len(self.states)


@dataclass(frozen=True)
class Job:
    """A recording to make, and how many states of it to try."""

    seed: int
    states: int
    seconds: float
    overrides: tuple = ()
    all_boundaries: bool = False
    quick: bool = False
    scenario: str = "primary"


def run(tools, jobs, controls=(), workers=2, report_progress=print):
    """Run jobs and controls; yields JobResults as they come."""
    work = [(_run_control, tools, control) for control in controls] + \
        [(_run_block_job if job.scenario in FILE_SYSTEMS else _run_job, tools, job)
         for job in jobs]
    # Unlike multiprocessing.Pool, this notices a worker that was killed.
    with concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"),
            max_tasks_per_child=1) as pool:
        for future in concurrent.futures.as_completed(
                [pool.submit(_guarded, piece) for piece in work]):
            yield future.result()


def _guarded(work):
    """Run one piece of work; an exception becomes its result."""
    function, tools, subject = work
    started = time.monotonic()
    name = getattr(subject, "name", None) or f"recording {subject.seed}"
    try:
        result = function(tools, subject)
    except Exception:
        result = JobResult(name, error=traceback.format_exc())
    result.seconds = time.monotonic() - started
    return result


# Campaigns --------------------------------------------------------------


def _kinds(scenario, settings, checksums, modes):
    """Return the kinds of load of a recording.

    Records of hash indexes refer to a bucket's first page, without an image, to change
    others.  Where images protect pages, and checksums show that one is torn, redo stops at
    such a record, before it comes to the image.  That is so in stock.  Lives of "edited" have
    modes of their own.
    """
    kinds = dict.fromkeys(record.workload.KINDS) if scenario == "primary" else record.STEADY_KINDS
    kinds = {kind: record.workload.KINDS[kind].clients if count is None else count
             for kind, count in kinds.items()}
    if checksums and (scenario == "edited" or
                      "full_pages" in (settings["io_torn_pages_protection"], *modes)):
        del kinds["chains"]
    return kinds


def _modes_of_load(settings):
    """Return the modes among which the load may switch."""
    atomic = settings["io_torn_pages_protection"] == "atomic_writes"
    return ("double_writes", "full_pages", *(("atomic_writes",) if atomic else ()))


def _run_job(tools, job):
    settings, checksums = matrix.draw(job.seed, **{**NEEDED.get(job.scenario, {}),
                                                   **dict(job.overrides)})
    if job.scenario not in ALONE:
        settings = matrix.replicating(settings)
    result = JobResult(f"recording {job.seed}", settings, checksums, scenario=job.scenario)
    directory = Path(tools.scratch) / f"recording-{job.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    rng = random.Random(f"job/{job.seed}")
    modes = _modes_of_load(settings) if rng.random() < 0.3 and \
        job.scenario == "primary" and \
        "io_torn_pages_protection" not in dict(job.overrides) else ()
    plan = record.Plan(job.seed, settings, checksums, seconds=job.seconds,
                       lives=LIVES.get(job.scenario) or rng.choice((1, 2, 2, 3)),
                       kinds=_kinds(job.scenario, settings, checksums, modes),
                       modes=modes, scenario=job.scenario)
    try:
        record.make(directory, plan, tools.bindir, tools.recorder, tools.scratch)
        subject = Subject(Recording(directory), Context(
            tools.bindir, tools.recorder, tools.scratch, quick=job.quick,
            rules=rules_of(job.seed)))
        require_acks(subject.recording)
        result.recording = describe(subject)
        _monitor(subject.recording, result)
        for backup in subject.backups():
            _enter(subject.try_backup(backup), result)
        if job.all_boundaries:
            states = list(islice(exhaustive(subject.places, job.seed), job.states))
        else:
            states = list(_sampled(subject, job))
        _try_all(subject, states, result)
        _keep_failures(tools, subject, result, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def _sampled(subject, job):
    """Return states of a recording; all of them in the window if that is what it is about.

    Where something was made to fail they come after that: what comes before is that of others.
    """
    places = subject.places if not subject.first_failure else \
        Places(subject.recording, subject.first_failure)
    if job.scenario == "reopened":
        return sampled(places, job.seed, job.states, WINDOW_FAULTS, WINDOW_NESTED_SHARE)
    return sampled(places, job.seed, job.states, nested_share=NESTED_SHARE)


def _run_block_job(tools, job):
    """Record a device with a file system on it, and try states of that."""
    settings, checksums = matrix.draw(job.seed, **dict(job.overrides))
    for name in matrix.PRETENDED:       # a device has a kernel to ask
        settings.pop(name, None)
    fstype = job.scenario
    result = JobResult(f"recording {job.seed}, {fstype}", settings, checksums, scenario=fstype)
    directory = Path(tools.scratch) / f"recording-{job.seed}"
    plan = record.Plan(job.seed, settings, checksums, seconds=job.seconds, lives=2)
    try:
        recording = blockstates.make(directory, plan, fstype, tools.bindir, tools.recorder,
                                     tools.scratch)
        subject = blockstates.BlockSubject(recording, Context(
            tools.bindir, tools.recorder, tools.scratch, quick=job.quick))
        require_acks(recording)
        result.recording = {"operations": len(recording.ops), "acks": len(recording.acks),
                            "syncs": subject.flushes, "kinds": {},
                            "writes": {"device": [op.seq for op in recording.ops
                                                  if op.kind == Kind.WRITE]}}
        for state in subject.sampled(job.seed, job.states):
            _enter(subject.try_state(state), result)
        subject.close()
        if result.failures:
            _keep_recording(tools, result, recording.directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def rules_of(seed):
    """Return the rules of the disk by which states of a recording are made.

    New names in the double-write log's directory are durable at times only when the directory
    has been synced: a file system may do without M5.
    """
    strict = random.Random(f"names/{seed}").random() < STRICT_NAMES
    return Rules(names_need_directory_sync=("pg_doublewrite",)) if strict else Rules()


def require_acks(recording):
    """Raise RecordError if nobody was promised anything: each state would be right."""
    if not any(event["what"] == "ack" for event in recording.acks):
        raise record.RecordError("the load has come to nothing: no transaction was acknowledged")


def _monitor(recording, result):
    """Hold the rules against each operation of a recording, and read what its server said."""
    started = time.process_time()
    violations, figures = monitor.check(recording)
    result.violations += [event["text"] for event in recording.acks if event["what"] == "complaint"]
    result.violations += map(str, violations)
    result.monitored = {**figures, "seconds": round(time.process_time() - started, 2)}


def _try_all(subject, states, result):
    for state in sorted(states, key=lambda state: state.cut):
        _enter(subject.try_state(state), result)


def _enter(outcome, result):
    result.states.append(summary(outcome))
    if outcome.failed:
        result.failures.append({"state": outcome.state.as_json(), "log": outcome.log,
                                "complaints": outcome.complaints})


def _keep_failures(tools, subject, result, directory):
    """Minimise the first failures, and keep what replays them."""
    if not result.failures and not result.violations:
        return
    place = _keep_recording(tools, result, directory)
    (place / "violations.txt").write_text("".join(f"{text}\n" for text in result.violations))
    for number, failure in enumerate(result.failures):
        state = State(**failure["state"])
        if number < MINIMISED and not state.nested and state.fault in FAULTS:
            pieces, complaints = subject.minimise(state)
            failure["minimised"] = None if pieces is None else subject.describe(pieces)
            failure["minimised_complaints"] = complaints
        (place / f"failure-{number}.json").write_text(json.dumps(failure, indent=1))


def _keep_recording(tools, result, directory):
    """Copy the recording to the output; returns where its failures belong, too."""
    place = Path(tools.output) / "failures" / result.name.replace(" ", "-").replace(",", "")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(directory, place / "recording", symlinks=True)
    return place


def describe(subject):
    """Return figures of a recording, and its time line, for the report."""
    ops = subject.recording.ops
    areas = subject.places.areas
    kinds = Counter(Kind(op.kind).name.lower() for op in ops)
    writes = {area: [op.seq for op in ops if op.kind == Kind.WRITE and areas.get(op.ino) == area]
              for area in (RELATION, LOG, WAL)}
    return {"operations": len(ops), "kinds": dict(kinds), "acks": len(subject.recording.acks),
            "syncs": subject.places.syncs, "writes": writes}


def summary(outcome):
    """Return what the report needs of an outcome."""
    return {**asdict(outcome.state), "failed": outcome.failed, "lost": outcome.lost,
            "effective": outcome.effective, "torn": outcome.torn, "examined": outcome.examined,
            "restored": outcome.restored, "seconds": round(outcome.seconds, 3),
            "phases": {name: round(value, 3) for name, value in outcome.phases.items()}}


# Controls ---------------------------------------------------------------


def _run_control(tools, control, first=FIRST_SEED):
    """Break one promise and look for a state that shows it, in recordings from a seed on."""
    result = JobResult(control.name, control=control.rule)
    broken = tools.bindir
    if control.mutated:
        broken = tools.broken_bindir or str(tools.workshop.bindir(control.name))
    for seed in range(first, first + CONTROL_RECORDINGS):
        settings = matrix.sanitised({**matrix.draw(seed)[0], **CONTROL_SETTINGS,
                                     **dict(control.settings)})
        if control.scenario.startswith(("standby", "backup")):
            settings = matrix.replicating(settings)
        kinds = dict(control.workloads) or \
            (None if control.scenario == "primary" else record.STEADY_KINDS)
        result.settings = settings
        directory = Path(tools.scratch) / f"control-{control.name}"
        shutil.rmtree(directory, ignore_errors=True)
        plan = record.Plan(seed, settings, seed % 2 == 0, seconds=control.seconds,
                           lives=control.lives,
                           kinds=kinds, scenario=control.scenario)
        try:
            find = _find_on_device if control.scenario in FILE_SYSTEMS else _find
            if find(tools, control, plan, directory, broken, result):
                break
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return result


def _find(tools, control, plan, directory, broken, result):
    """Make a recording and try states of it until one fails; says whether one did."""
    record.make(directory, plan, tools.bindir, tools.recorder, tools.scratch,
                broken if control.record else None)
    recording = Recording(directory)
    subject = Subject(recording, Context(
        broken if control.recover else tools.bindir, tools.recorder, tools.scratch,
        rules=control.rules,
        sequel_every=int(control.sequel), sequel_faults=control.faults,
        standby_every=int(control.standby),
        single_every=0 if control.server else Context.single_every))
    result.recording = describe(subject)
    violations = [violation for violation in monitor.check(recording)[0]
                  if not control.monitored or violation.rule in control.monitored.split(", ")]
    result.violations = result.violations or list(map(str, violations))
    if control.monitored and not violations:
        return False        # nothing was broken in this one, as when no sync has failed
    return _first_failure(_outcomes(subject, control), result)


def _find_on_device(tools, control, plan, directory, broken, result):
    """Do the same on a block device."""
    recording = blockstates.make(directory, plan, control.scenario,
                                 broken if control.record else tools.bindir, tools.recorder,
                                 tools.scratch)
    subject = blockstates.BlockSubject(recording, Context(
        broken if control.recover else tools.bindir, tools.recorder, tools.scratch))
    with contextlib.closing(subject):
        return _first_failure(map(subject.try_state, subject.sampled(
            plan.seed, CONTROL_STATES // CONTROL_RECORDINGS)), result)


def _first_failure(outcomes, result):
    """Try states until one fails, not by a mistake of ours; says whether one did."""
    for outcome in outcomes:
        result.states.append(summary(outcome))
        if any(not text.startswith("explorer:") for text in outcome.complaints):
            result.failures.append({"state": outcome.state.as_json(),
                                    "complaints": outcome.complaints})
            return True
    return False


def _outcomes(subject, control):
    """Yield what becomes of the states that may show a control."""
    if control.scenario == "backup":
        yield from map(subject.try_backup, subject.backups())
        return
    for state in sampled(subject.places, 1, CONTROL_STATES // CONTROL_RECORDINGS,
                         faults=control.faults or FAULTS,
                         nested_share=CONTROL_NESTED_SHARE if control.nested else 0):
        yield subject.try_state(state)


def measure(tools, control, first):
    """Look for a control from a seed on; returns what controls.json has of such a try."""
    if control.mutated:
        tools.workshop.bindir(control.name)     # which takes its time, too, once
    started = time.monotonic()
    result = _run_control(tools, control, first)
    patch = {"patch": tools.workshop.digest(control.name)} if control.mutated else {}
    return {**patch, "seed": first, "states": result.tried, "seconds": round(time.monotonic() - started),
            "found": bool(result.failures)}


def all_controls(names=()):
    """Return the controls of these names, or all but the rare ones."""
    return [control for control in CONTROLS
            if (control.name in names if names else not control.rare)]
