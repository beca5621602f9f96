"""A job: one recording, made under settings drawn at random, and states of it."""

import contextlib
import json
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from common import postgres

from . import blockstates, judge, matrix, monitor, record
from .block import FILE_SYSTEMS
from .broken import Workshop
from .disk import Rules
from .explore import BEHIND, Subject
from .judge import Context, Outcome
from .recording import Kind, Recording
from .states import FAULTS, LOG, RELATION, WAL, WINDOW_FAULTS, Places, State, exhaustive, sampled

# Share of states whose recovery is cut, too; the same share of those twice, …
NESTED_SHARE = 0.06

# … and of those between opening and the checkpoint.
WINDOW_NESTED_SHARE = 0.25

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
          "failing-unlinks": {"shared_buffers": "16MB", "double_write_stage_size": "8MB"},
          # Else nothing looks ahead, or not where pages have images for checks.
          BEHIND: {"wal_pipeline": "on", "recovery_prefetch": "try", "debug_io_direct": "",
                   "wal_consistency_checking": ""}}

# Scenarios in which no standby and no backup asks the server for its WAL.
ALONE = ("primary", "edited", "reopened", "half-writes", "failing-directory-syncs", "frozen",
         "quota", "failing-unlinks")

# Where images of a recording are tried, below it.
STATES = "states"

# Failures of a recording that are minimised; more are only counted.
MINIMISED = 3


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
    def tried(self) -> int:
        return len(self.states)

    @property
    def file_name(self) -> str:
        return self.name.replace(" ", "-").replace(",", "")

    def directory(self, tools: Tools) -> Path:
        """Return where its recording is made."""
        return Path(tools.scratch) / "jobs" / self.file_name

    @property
    def replayable(self) -> str:
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

    def result(self) -> JobResult:
        """Return the JobResult of this job, which has not begun."""
        name = f"recording {self.seed}"
        if self.scenario in FILE_SYSTEMS:
            name += f", {self.scenario}"
        return JobResult(name, scenario=self.scenario, again=self.again)

    @property
    def again(self) -> str:
        """Arguments of `./dev crash` that do the same again."""
        what = f"--states {self.states} --recordings 1 --watched 0" if self.states else \
            "--states 0 --recordings 0 --watched 1"
        options = "".join(f" --set {name}={value}" for name, value in self.overrides) + \
            (" --boundaries" if self.all_boundaries else "")
        return (f"run {what} --seed {self.seed} --scenario {self.scenario}"
                f" --seconds {self.seconds:g}{options} --no-controls")


def kinds_of(scenario: str) -> dict:
    """Return the kinds of load of a recording."""
    kinds = dict.fromkeys(record.workload.KINDS) if scenario == "primary" else \
        {**record.STEADY_KINDS, **record.MORE_KINDS.get(scenario, {})}
    return {kind: record.workload.KINDS[kind].clients if count is None else count
            for kind, count in kinds.items()}


def _modes_of_load(settings):
    """Return the modes among which the load may switch."""
    atomic = settings["io_torn_pages_protection"] == "atomic_writes"
    return ("double_writes", "full_pages", *(("atomic_writes",) if atomic else ()))


def run_job(tools: Tools, job: Job, result: Any) -> None:
    """Make the recording of a job and try states of it; `result` gets what is found."""
    settings, checksums = matrix.draw(job.seed, **{**NEEDED.get(job.scenario, {}),
                                                   **dict(job.overrides)})
    if job.scenario not in ALONE:
        settings = matrix.replicating(settings)
    result.settings, result.checksums = settings, checksums
    directory = result.directory(tools)
    shutil.rmtree(directory, ignore_errors=True)
    rng = random.Random(f"job/{job.seed}")
    modes = _modes_of_load(settings) if rng.random() < 0.3 and \
        job.scenario == "primary" and \
        "io_torn_pages_protection" not in dict(job.overrides) else ()
    plan = record.Plan(job.seed, settings, checksums, seconds=job.seconds,
                       lives=LIVES.get(job.scenario) or rng.choice((1, 2, 2, 3)),
                       kinds=kinds_of(job.scenario), modes=modes, scenario=job.scenario)
    with kept_if_wrong(tools, result, directory):
        record.make(directory, plan, tools.bindir, tools.recorder, tools.scratch)
        subject = Subject(Recording(directory), Context(
            tools.bindir, tools.recorder, place_of_states(directory), quick=job.quick,
            rules=rules_of(job.seed)))
        _note_findings(subject.recording, result)
        require_acks(subject.recording)
        if job.scenario == BEHIND and not result.findings:
            require_look_ahead(subject.recording)
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


def place_of_states(directory: Path) -> str:
    """Make the directory in which images of a recording are tried; returns it."""
    place = directory / STATES
    place.mkdir()
    return str(place)


@contextlib.contextmanager
def kept_if_wrong(tools: Tools, result: Any, directory: Path) -> Iterator[None]:
    """Remove what is made in a directory, or keep it with the failures if something is wrong.

    So it is if this process is told to end.
    """
    try:
        yield
    except BaseException:
        result.error = traceback.format_exc()
        keep(tools, result, directory)
        raise
    else:
        if result.failures or result.violations or result.findings:
            keep(tools, result, directory)
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
    if job.scenario == BEHIND:
        return _while_it_replays(subject.recording, job)
    if job.scenario == "reopened":
        return sampled(places, job.seed, job.states, WINDOW_FAULTS, WINDOW_NESTED_SHARE)
    return sampled(places, job.seed, job.states, nested_share=NESTED_SHARE)


def _while_it_replays(recording, job):
    """Yield states of a standby that was behind, as many of each time when it looked ahead."""
    spans = recording.ahead()
    for number, span in enumerate(spans):
        count = job.states * (number + 1) // len(spans) - job.states * number // len(spans)
        yield from sampled(Places(recording, *span), f"{job.seed}/{number}", count,
                           nested_share=NESTED_SHARE)


def run_block_job(tools: Tools, job: Job, result: Any) -> None:
    """Record a device with a file system on it, and try states of that."""
    settings, checksums = matrix.draw(job.seed, **dict(job.overrides))
    for name in matrix.PRETENDED:       # a device has a kernel to ask
        settings.pop(name, None)
    fstype = job.scenario
    result.settings, result.checksums = settings, checksums
    directory = result.directory(tools)
    plan = record.Plan(job.seed, settings, checksums, seconds=job.seconds, lives=2)
    with kept_if_wrong(tools, result, directory):
        recording = blockstates.make(directory, plan, fstype, tools.bindir, tools.recorder,
                                     tools.scratch)
        _note_findings(recording, result)
        require_acks(recording)
        if result.findings:
            return
        subject = blockstates.BlockSubject(recording, Context(
            tools.bindir, tools.recorder, place_of_states(directory), quick=job.quick))
        result.recording = {"operations": len(recording.ops), "acks": len(recording.acks),
                            "syncs": subject.flushes, "kinds": {},
                            "writes": {"device": [op.seq for op in recording.ops
                                                  if op.kind == Kind.WRITE]}}
        with contextlib.closing(subject):
            for state in subject.sampled(job.seed, job.states):
                _enter(subject.try_state(state), result)


def rules_of(seed: int) -> Rules:
    """Return the rules of the disk by which states of a recording are made.

    New names in the double-write log's directory are durable at times only when the directory
    has been synced: a file system may do without M5.
    """
    strict = random.Random(f"names/{seed}").random() < STRICT_NAMES
    return Rules(names_need_directory_sync=("pg_doublewrite",)) if strict else Rules()


def require_acks(recording: Recording) -> None:
    """Raise RecordError if no commit was acknowledged: each state would be right."""
    if not any(event["what"] == "ack" for event in recording.acks):
        raise record.RecordError("the load has come to nothing: no transaction was acknowledged")


def require_look_ahead(recording: Recording) -> None:
    """Raise RecordError if a standby that was behind has not looked ahead: states show nothing."""
    if not any(replay["blocks"] for replay in recording.replays):
        raise record.RecordError("the standby has not looked ahead in WAL")


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
                                "logs": outcome.logs, "complaints": outcome.complaints})


def _minimise(subject, result):
    """Minimise the first failures."""
    for failure in result.failures[:MINIMISED]:
        state = State(**failure["state"])
        if not state.nested and state.fault in FAULTS:
            pieces, complaints = subject.minimise(state)
            failure["minimised"] = None if pieces is None else subject.describe(pieces)
            failure["minimised_complaints"] = complaints


def keep(tools: Tools, result: Any, directory: Path) -> None:
    """Copy a recording, with the logs of all servers and what is wrong, to the output."""
    result.kept = f"failures/{result.file_name}"
    place = Path(tools.output) / result.kept
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name, texts in (("violations", result.violations), ("findings", result.findings),
                        ("error", [result.error] if result.error else [])):
        if texts:
            (place / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    for number, failure in enumerate(result.failures):
        judge.write_logs(failure.pop("logs", {}), place / f"failure-{number}")
        (place / f"failure-{number}.json").write_text(json.dumps(failure, indent=1))
    # of a process that has ended in the middle of a state
    judge.write_logs(judge.logs_below(directory / STATES), place / judge.CUT_SHORT)
    if directory.exists():
        shutil.copytree(directory, place / "recording", symlinks=True,
                        ignore=shutil.ignore_patterns("mnt", "backing", STATES))


def lost(tools: Tools, result: Any, error: str) -> Any:
    """Keep what a job has left whose process has ended without a result; returns its JobResult."""
    result.error = error
    directory = result.directory(tools)
    postgres.tidy(directory)
    try:
        keep(tools, result, directory)
    except OSError as reason:
        result.error += f"; not all is kept: {reason}"
    shutil.rmtree(directory, ignore_errors=True)
    return result


def describe(subject: Any) -> dict:
    """Return figures of a recording, and its time line, for the report."""
    ops = subject.recording.ops
    areas = subject.places.areas
    kinds = Counter(Kind(op.kind).name.lower() for op in ops)
    writes = {area: [op.seq for op in ops if op.kind == Kind.WRITE and areas.get(op.ino) == area]
              for area in (RELATION, LOG, WAL)}
    return {"operations": len(ops), "kinds": dict(kinds), "acks": len(subject.recording.acks),
            "syncs": subject.places.syncs, "writes": writes, "replays": subject.recording.replays}


def summary(outcome: Outcome) -> dict:
    """Return what the report needs of an outcome."""
    return {**asdict(outcome.state), "failed": outcome.failed, "lost": outcome.lost,
            "effective": outcome.effective, "torn": outcome.torn, "examined": outcome.examined,
            "restored": outcome.restored, "seconds": round(outcome.seconds, 3),
            "phases": {name: round(value, 3) for name, value in outcome.phases.items()}}
