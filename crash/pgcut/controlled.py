"""Controls: what is broken on purpose must be found in recordings from a seed on."""

import contextlib
import shutil
import time
import traceback
from typing import Any

from . import blockstates, matrix, monitor, record
from .block import FILE_SYSTEMS
from .controls import CONTROLS, Control
from .explore import Subject
from .judge import Context
from .recording import Recording
from .states import FAULTS, sampled
from .trial import JobResult, Tools, describe, keep, kinds_of, place_of_states, summary

# Share of states whose recovery is cut, too, of a control that only such states show.
CONTROL_NESTED_SHARE = 0.75

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
    "wal_consistency_checking": "", "instant_recovery": "off",
}


def result_of(control: Control) -> JobResult:
    """Return the JobResult of a control that has not begun."""
    return JobResult(control.name, control=control.rule,
                     again=f"run --states 0 --watched 0 --control {control.name}")


def run_control(tools: Tools, control: Control, result: Any, first: Any = FIRST_SEED) -> None:
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
            (None if control.scenario == "primary" else kinds_of(control.scenario))
        result.settings = settings
        directory = result.directory(tools)
        shutil.rmtree(directory, ignore_errors=True)
        plan = record.Plan(seed, settings, seed % 2 == 0, seconds=control.seconds,
                           lives=control.lives,
                           kinds=kinds, scenario=control.scenario)
        try:
            find = _find_on_device if control.scenario in FILE_SYSTEMS else _find
            if find(tools, control, plan, directory, broken, result):
                break
        except BaseException:
            result.error = traceback.format_exc()
            if tools.output:
                keep(tools, result, directory)
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _find(tools, control, plan, directory, broken, result):
    """Make a recording and try states of it until one fails; says whether one did."""
    record.make(directory, plan, tools.bindir, tools.recorder, tools.scratch,
                broken if control.record else None)
    recording = Recording(directory)
    subject = Subject(recording, Context(
        broken if control.recover else tools.bindir, tools.recorder, place_of_states(directory),
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
    return first_failure(_outcomes(subject, control), result)


def _find_on_device(tools, control, plan, directory, broken, result):
    """Do the same on a block device."""
    recording = blockstates.make(directory, plan, control.scenario,
                                 broken if control.record else tools.bindir, tools.recorder,
                                 tools.scratch)
    subject = blockstates.BlockSubject(recording, Context(
        broken if control.recover else tools.bindir, tools.recorder, place_of_states(directory)))
    with contextlib.closing(subject):
        return first_failure(map(subject.try_state, subject.sampled(
            plan.seed, CONTROL_STATES // CONTROL_RECORDINGS)), result)


def first_failure(outcomes: Any, result: Any) -> bool:
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


def measure(tools: Tools, control: Control, first: Any) -> dict:
    """Look for a control from a seed on; returns what controls.json has of such a try."""
    if control.mutated:
        tools.workshop.bindir(control.name)     # which takes its time, too, once
    started = time.monotonic()
    result = result_of(control)
    run_control(tools, control, result, first)
    patch = {"patch": tools.workshop.digest(control.name)} if control.mutated else {}
    return {**patch, "seed": first, "states": result.tried, "seconds": round(time.monotonic() - started),
            "found": bool(result.failures)}


def all_controls(names: Any = (), seed: int = 0, turns: int = 1) -> list[Control]:
    """Return the controls of these names, or all that are not rare.

    With `turns`, a seed has only its share of the latter: so many seeds in a row have all.
    """
    if names:
        return [control for control in CONTROLS if control.name in names]
    return [control for control in CONTROLS if not control.rare][seed % turns::turns]
