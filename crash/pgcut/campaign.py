"""Campaigns: many recordings under many settings, their states, and the controls.

A *job* is one recording and the states tried of it.  Jobs run in parallel, each
by one process from beginning to end; what they find comes back as plain data,
for the report.  A process that ends without it costs its job, not the campaign.
"""

import contextlib
import json
import multiprocessing
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import islice
from multiprocessing import connection
from pathlib import Path

from common import postgres

from . import blockstates, matrix, monitor, record
from .block import FILE_SYSTEMS
from .broken import Workshop
from .controls import CONTROLS
from .disk import Rules
from .explore import Subject
from .judge import Context
from .recording import Kind, Recording
from .states import FAULTS, LOG, RELATION, WAL, WINDOW_FAULTS, Places, State, exhaustive, sampled

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
                                      "double_write_stage_size": "2MB"},
          # There must be buffers for what cannot be written.
          "frozen": {"shared_buffers": "16MB", "max_connections": "60"},
          # So small a log would not grow, and that of others not be full.
          "quota": {**_LOGGED, "wal_level": "minimal", "double_write_buffer_size": "-1",
                    "shared_buffers": "1MB", "checkpoint_timeout": "30s", "max_wal_size": "64MB",
                    "max_connections": "60"},
          "failing-unlinks": {"shared_buffers": "16MB", "double_write_stage_size": "8MB"}}

# Scenarios in which no standby and no backup asks the server for its WAL.
ALONE = ("primary", "edited", "reopened", "half-writes", "failing-directory-syncs", "frozen",
         "quota", "failing-unlinks")

# Failures of a recording that are minimised; more are only counted.
MINIMISED = 3

# A control counts as not found after so many states.  One recording in three shows some
# of them, by luck and by how busy the machine is: few recordings would miss one now and then.
CONTROL_STATES = 900
CONTROL_RECORDINGS = 12

# Of the first of these.
FIRST_SEED = 1000

# How long jobs that are cut short may take to stop their servers and unmount their recorders.
END_SECONDS = 30

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
    "wal_consistency_checking": "", "instant_recovery": "off",
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
    # What is wrong with the recording itself: a server has crashed, or has reported what alarms
    findings: list = field(default_factory=list)
    # What the protocol monitor says of the recording: texts, and what it counted
    violations: list = field(default_factory=list)
    monitored: dict = field(default_factory=dict)
    scenario: str = ""
    control: str = ""
    error: str = ""
    seconds: float = 0
    again: str = ""             # arguments of `./dev crash` that do the same again
    kept: str = ""              # where the recording and its logs are kept, below the output

    @property
    def tried(self):
        return len(self.states)

    @property
    def replayable(self):
        """The first failure that `./dev crash replay` tries again, '' if there is none."""
        return f"{self.kept}/failure-0.json" \
            if self.kept and self.failures and self.scenario not in FILE_SYSTEMS else ""


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

    @property
    def again(self):
        """Arguments of `./dev crash` that do the same again."""
        what = f"--states {self.states} --recordings 1 --watched 0" if self.states else \
            "--states 0 --recordings 0 --watched 1"
        options = "".join(f" --set {name}={value}" for name, value in self.overrides) + \
            (" --boundaries" if self.all_boundaries else "")
        return (f"run {what} --seed {self.seed} --scenario {self.scenario}"
                f" --seconds {self.seconds:g}{options} --no-controls")


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


def run(tools, jobs, controls=(), workers=2):
    """Run jobs and controls; yields JobResults as they come."""
    work = [(_run_control, tools, control) for control in controls] + \
        [(_run_block_job if job.scenario in FILE_SYSTEMS else _run_job, tools, job)
         for job in jobs]
    context = multiprocessing.get_context("spawn")
    work = _longest_first(work)
    running = {}
    try:
        while work or running:
            while work and len(running) < workers:
                piece = work.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, piece))
                process.start()
                theirs.close()
                running[ours] = process, piece
            for ours in connection.wait(running):
                process, piece = running.pop(ours)
                yield _received(ours, process, piece)
    finally:
        _end([process for process, _ in running.values()])
        postgres.tidy(tools.scratch)


def _work(pipe, piece):
    """Do one piece of work, in a process of its own; may be told to end."""
    end_when_told()
    pipe.send(_guarded(piece))


def end_when_told():
    """Have SIGTERM end this process as an error does: servers are stopped, recorders unmounted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _received(pipe, process, piece):
    """Return the JobResult that a process has sent, or that says how it has ended."""
    with contextlib.closing(pipe):
        try:
            result = pipe.recv()
            process.join(END_SECONDS)
        except EOFError:
            process.join(END_SECONDS)
            result = _result_of(piece[2])
            result.error = f"its process has ended with status {process.exitcode}"
    _end([process])
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
    except Exception:
        result.error = traceback.format_exc()
    result.seconds = time.monotonic() - started
    return result


def _result_of(subject):
    """Return the JobResult of a job or a control that has not begun."""
    if isinstance(subject, Job):
        return JobResult(f"recording {subject.seed}", scenario=subject.scenario,
                         again=subject.again)
    return JobResult(subject.name, control=subject.rule,
                     again=f"run --states 0 --watched 0 --control {subject.name}")


# Campaigns --------------------------------------------------------------


def _kinds(scenario):
    """Return the kinds of load of a recording."""
    kinds = dict.fromkeys(record.workload.KINDS) if scenario == "primary" else \
        {**record.STEADY_KINDS, **record.MORE_KINDS.get(scenario, {})}
    return {kind: record.workload.KINDS[kind].clients if count is None else count
            for kind, count in kinds.items()}


def _modes_of_load(settings):
    """Return the modes among which the load may switch."""
    atomic = settings["io_torn_pages_protection"] == "atomic_writes"
    return ("double_writes", "full_pages", *(("atomic_writes",) if atomic else ()))


def _run_job(tools, job, result):
    settings, checksums = matrix.draw(job.seed, **{**NEEDED.get(job.scenario, {}),
                                                   **dict(job.overrides)})
    if job.scenario not in ALONE:
        settings = matrix.replicating(settings)
    result.settings, result.checksums = settings, checksums
    directory = Path(tools.scratch) / f"recording-{job.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    rng = random.Random(f"job/{job.seed}")
    modes = _modes_of_load(settings) if rng.random() < 0.3 and \
        job.scenario == "primary" and \
        "io_torn_pages_protection" not in dict(job.overrides) else ()
    plan = record.Plan(job.seed, settings, checksums, seconds=job.seconds,
                       lives=LIVES.get(job.scenario) or rng.choice((1, 2, 2, 3)),
                       kinds=_kinds(job.scenario), modes=modes, scenario=job.scenario)
    with _kept_if_wrong(tools, result, directory):
        record.make(directory, plan, tools.bindir, tools.recorder, tools.scratch)
        subject = Subject(Recording(directory), Context(
            tools.bindir, tools.recorder, tools.scratch, quick=job.quick,
            rules=rules_of(job.seed)))
        _note_findings(subject.recording, result)
        require_acks(subject.recording)
        result.recording = describe(subject)
        _monitor(subject.recording, result)
        if result.findings:
            return              # each state would fail for the same reason
        for backup in subject.backups():
            _enter(subject.try_backup(backup), result)
        if job.all_boundaries:
            states = list(islice(exhaustive(subject.places, job.seed), job.states))
        else:
            states = list(_sampled(subject, job))
        _try_all(subject, states, result)
        _minimise(subject, result)


@contextlib.contextmanager
def _kept_if_wrong(tools, result, directory):
    """Remove what is made in a directory, or keep it with the failures if something is wrong."""
    try:
        yield
    except Exception:
        if directory.exists():
            _keep(tools, result, directory)
        raise
    else:
        if result.failures or result.violations or result.findings:
            _keep(tools, result, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _note_findings(recording, result):
    """Enter the errors of clients and the messages of servers that are findings."""
    result.findings += dict.fromkeys(event["text"] for event in recording.acks
                                     if event["what"] == "complaint")


def _sampled(subject, job):
    """Return states of a recording; all of them in the window if that is what it is about.

    Where something was made to fail they come after that: what comes before is that of others.
    """
    places = subject.places if not subject.first_failure else \
        Places(subject.recording, subject.first_failure)
    if job.scenario == "reopened":
        return sampled(places, job.seed, job.states, WINDOW_FAULTS, WINDOW_NESTED_SHARE)
    return sampled(places, job.seed, job.states, nested_share=NESTED_SHARE)


def _run_block_job(tools, job, result):
    """Record a device with a file system on it, and try states of that."""
    settings, checksums = matrix.draw(job.seed, **dict(job.overrides))
    for name in matrix.PRETENDED:       # a device has a kernel to ask
        settings.pop(name, None)
    fstype = job.scenario
    result.name += f", {fstype}"
    result.settings, result.checksums = settings, checksums
    directory = Path(tools.scratch) / f"recording-{job.seed}"
    plan = record.Plan(job.seed, settings, checksums, seconds=job.seconds, lives=2)
    with _kept_if_wrong(tools, result, directory):
        recording = blockstates.make(directory, plan, fstype, tools.bindir, tools.recorder,
                                     tools.scratch)
        _note_findings(recording, result)
        require_acks(recording)
        if result.findings:
            return
        subject = blockstates.BlockSubject(recording, Context(
            tools.bindir, tools.recorder, tools.scratch, quick=job.quick))
        result.recording = {"operations": len(recording.ops), "acks": len(recording.acks),
                            "syncs": subject.flushes, "kinds": {},
                            "writes": {"device": [op.seq for op in recording.ops
                                                  if op.kind == Kind.WRITE]}}
        with contextlib.closing(subject):
            for state in subject.sampled(job.seed, job.states):
                _enter(subject.try_state(state), result)


def rules_of(seed):
    """Return the rules of the disk by which states of a recording are made.

    New names in the double-write log's directory are durable at times only when the directory
    has been synced: a file system may do without M5.
    """
    strict = random.Random(f"names/{seed}").random() < STRICT_NAMES
    return Rules(names_need_directory_sync=("pg_doublewrite",)) if strict else Rules()


def require_acks(recording):
    """Raise RecordError if no commit was acknowledged: each state would be right."""
    if not any(event["what"] == "ack" for event in recording.acks):
        raise record.RecordError("the load has come to nothing: no transaction was acknowledged")


def _monitor(recording, result):
    """Hold the rules against each operation of a recording."""
    started = time.process_time()
    violations, figures = monitor.check(recording)
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


def _minimise(subject, result):
    """Minimise the first failures."""
    for failure in result.failures[:MINIMISED]:
        state = State(**failure["state"])
        if not state.nested and state.fault in FAULTS:
            pieces, complaints = subject.minimise(state)
            failure["minimised"] = None if pieces is None else subject.describe(pieces)
            failure["minimised_complaints"] = complaints


def _keep(tools, result, directory):
    """Copy a recording, with the logs of its servers and what is wrong, to the output."""
    result.kept = f"failures/{result.name.replace(' ', '-').replace(',', '')}"
    place = Path(tools.output) / result.kept
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(directory, place / "recording", symlinks=True,
                    ignore=shutil.ignore_patterns("mnt", "backing"))
    for name, texts in (("violations", result.violations), ("findings", result.findings)):
        if texts:
            (place / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    for number, failure in enumerate(result.failures):
        (place / f"failure-{number}.json").write_text(json.dumps(failure, indent=1))


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


def _run_control(tools, control, result, first=FIRST_SEED):
    """Break one promise and look for a state that shows it, in recordings from a seed on."""
    broken = tools.bindir
    if control.mutated:
        broken = tools.broken_bindir or str(tools.workshop.bindir(control.name))
    for seed in range(first, first + CONTROL_RECORDINGS):
        settings = matrix.sanitised({**matrix.draw(seed)[0], **CONTROL_SETTINGS,
                                     **dict(control.settings)})
        if control.scenario.startswith(("standby", "backup")):
            settings = matrix.replicating(settings)
        kinds = dict(control.workloads) or \
            (None if control.scenario == "primary" else _kinds(control.scenario))
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
        except Exception:
            if directory.exists() and tools.output:
                _keep(tools, result, directory)
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)


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
    result = _result_of(control)
    _run_control(tools, control, result, first)
    patch = {"patch": tools.workshop.digest(control.name)} if control.mutated else {}
    return {**patch, "seed": first, "states": result.tried, "seconds": round(time.monotonic() - started),
            "found": bool(result.failures)}


def all_controls(names=(), seed=0, turns=1):
    """Return the controls of these names, or all that are not rare.

    With `turns`, a seed has only its share of the latter: so many seeds in a row have all.
    """
    if names:
        return [control for control in CONTROLS if control.name in names]
    return [control for control in CONTROLS if not control.rare][seed % turns::turns]
