"""Command line of the explorer; `./dev crash` calls it with the paths filled in."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import (
    broken,
    campaign,
    controlled,
    controls,
    explore,
    histories,
    judge,
    machine,
    realcut,
    recipes,
    record,
    report,
    trial,
)
from .block import FILE_SYSTEMS
from .recording import Recording
from .states import FAULTS, State

# What is recorded, in turn.
SCENARIO_CYCLE = ("primary", "primary", "standby", "backup", "reopened", "errors",
                  "primary", "primary", "standby", "backup", "failing-syncs",
                  "failing-log-syncs", "ext4", "xfs", "edited", "standby-mixed",
                  "standby-converted", "half-writes", "torn-writes", "failing-directory-syncs",
                  "standby-stopped", "standby-rotten", "standby-behind")

# What is recorded in turn for the protocol monitor alone: what the first recordings
# of a short campaign are not of.
WATCHED_CYCLE = ("standby-converted", "edited", "standby-stopped", "standby-mixed",
                 "half-writes", "reopened", "errors", "failing-syncs", "failing-log-syncs", "backup",
                 "torn-writes", "failing-directory-syncs", "standby-behind")

# Scenarios that take turns, seed by seed, so that none makes a campaign longer.
_TURNS = {"errors": ("errors", "frozen", "quota", "failing-unlinks"),
          "edited": ("edited", "frozen", "quota", "failing-unlinks"),
          "failing-syncs": ("failing-syncs", "failing-wal-syncs"),
          "standby": ("standby", "standby", "standby-behind")}

# Modes that the first recordings of a campaign have.
_SHOWN_MODES = ("double_writes", "full_pages", "atomic_writes")

# More than there are cores: a worker waits for most of the time, for the load of its recording
# or for the server that judges a state.
WORKERS = 2 * os.cpu_count()

# Complaints, and damages, of a failure that are shown on the terminal.
SHOWN = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    args = _parser().parse_args(argv)
    campaign.end_when_told()
    return args.handler(args)


def _parser():
    parser = argparse.ArgumentParser(prog="./dev crash", description=__doc__.splitlines()[0])
    parser.add_argument("--bindir", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--mutations", help=argparse.SUPPRESS)
    parser.add_argument("--recorder", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--stock", default="", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, handler, text, arguments=None):
        sub = commands.add_parser(name, help=text)
        sub.set_defaults(handler=handler)
        if arguments:
            arguments(sub)

    command("run", _run, "record, explore, find the controls, report", _arguments_of_run)
    command("measure", _measure, "measure how soon the controls are found", _arguments_of_measure)
    command("history", _history, "play histories: steps on one to three servers, drawn at random",
            _arguments_of_history)
    command("replay", _replay, "try a failure again, and minimise it", _arguments_of_replay)
    command("load", _load, "run the load on your own storage, for a real power cut",
            _arguments_of_load)
    command("verify", _verify, "say what a real power cut has lost", _arguments_of_verify)
    command("list", _list, "list the faults and the controls")
    return parser


def _arguments_of_run(sub):
    sub.add_argument("--states", type=int, default=240, help="crash states to try (240)")
    sub.add_argument("--recordings", type=int, default=4,
                     help="recordings to take them from, each with settings of its own (4)")
    sub.add_argument("--seconds", type=float, default=6, help="of load in each recording (6)")
    sub.add_argument("--seed", type=int, default=1, help="seed of the first recording (1)")
    sub.add_argument("--workers", type=int, default=WORKERS,
                     help="processes (two for each core)")
    sub.add_argument("--boundaries", action="store_true",
                     help="every sync boundary and home write in turn, instead of a sample")
    sub.add_argument("--scenario", choices=(*record.SCENARIOS, *FILE_SYSTEMS),
                     help="what is recorded (default: all of these in turn, some more often); "
                          "ext4 and xfs: a block device with that file system")
    sub.add_argument("--watched", type=int, default=4,
                     help="more recordings, of which no states are tried: each write is held "
                          "against the protocol, as in all recordings (4)")
    sub.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                     help="a setting that is not drawn at random")
    sub.add_argument("--no-controls", action="store_true", help="leave the controls out")
    sub.add_argument("--control", action="append", default=[], choices=[
        control.name for control in controls.CONTROLS], help="only this control")
    sub.add_argument("--turns", type=int, default=1, metavar="N",
                     help="a share of the controls, of which N seeds in a row have all (1)")
    sub.add_argument("--broken", metavar="BINDIR",
                     help="programs of a server that is broken already, for the controls")
    sub.add_argument("--output", type=Path, default=Path("crash-report"),
                     help="directory of the report and of failures (crash-report)")


def _arguments_of_measure(sub):
    sub.add_argument("--control", action="append", default=[], choices=[
        control.name for control in controls.CONTROLS], help="only this control")
    sub.add_argument("--seeds", type=int, default=5, help="tries of each, from seeds of their own (5)")
    sub.add_argument("--plain", action="store_true",
                     help="record and judge its server as any other: what else would find it?")
    sub.add_argument("--minutes", type=float, help="no try begins after so long")
    sub.add_argument("--output", type=Path, default=Path("controls.json"),
                     help="what was measured; tries that are in it are not made again (controls.json)")


def _arguments_of_history(sub):
    sub.add_argument("--seed", type=int, default=1, help="of the first history (1)")
    sub.add_argument("--count", type=int, help="histories to play (20)")
    sub.add_argument("--minutes", type=float, help="no history begins after so long")
    sub.add_argument("--replay", type=Path, metavar="FILE", help="play this history instead")
    sub.add_argument("--shrink", action="store_true",
                     help="with --replay: find a shorter one that fails as well")
    sub.add_argument("--no-shrink", action="store_true", help="leave those that fail as they are")
    sub.add_argument("--recipe", choices=[recipe.name for recipe in recipes.RECIPES],
                     help="each history begins with this recipe")
    sub.add_argument("--atomic", action="store_true",
                     help="with atomic_writes wherever they say double_writes "
                          "(default: in a half of the places, in one history of four)")
    sub.add_argument("--control", action="append", default=[], metavar="NAME", choices=[
        "all", "quick", *(control.name for control in controls.HISTORY_CONTROLS)],
                     help="a rule is broken, or each in turn with `all`, or those that take "
                          "seconds with `quick`: play histories until one shows it, "
                          f"{histories.CONTROL_HISTORIES} unless --count says more")
    sub.add_argument("--undirected", action="store_true",
                     help="with --control: any histories, not those of the control's recipe")
    sub.add_argument("--broken", metavar="BINDIR",
                     help="programs of a server that is broken already, for --control")
    sub.add_argument("--output", type=Path, default=Path("history-report"),
                     help="directory of the report and of failures (history-report)")


def _arguments_of_replay(sub):
    sub.add_argument("failure", type=Path, help="a failure-N.json in the output of `run`")
    sub.add_argument("--minimise", action="store_true", help="find the fewest damages that fail")


def _arguments_of_load(sub):
    sub.add_argument("directory", type=Path, help="of the cluster; made if it is not there")
    sub.add_argument("--seconds", type=float, default=600, help="of load (600)")
    sub.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                     help="a setting of a new cluster")
    sub.add_argument("--no-checksums", action="store_true", help="of pages in a new cluster")


def _arguments_of_verify(sub):
    sub.add_argument("directory", type=Path, help="of the cluster")
    sub.add_argument("acks", type=Path, help="what `load` printed, kept on another machine")


# run --------------------------------------------------------------------


def _run(args):
    args.output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(args.output / "failures", ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="pgcut-", dir=args.scratch) as scratch:
        os.chmod(scratch, 0o755)
        wanted = [] if args.no_controls else \
            controlled.all_controls(args.control, args.seed, args.turns)
        bindir = _with_module(args, args.bindir, f"{scratch}/programs")
        workshop = broken.Workshop(args.build, args.source, str(Path(bindir).parent), args.mutations,
                                   str(Path(scratch) / "broken"))
        mutated = _with_module(args, args.broken, f"{scratch}/mutated")
        tools = trial.Tools(bindir, workshop, mutated, args.recorder, scratch,
                               str(args.output))
        started = time.time()
        results = []
        try:
            for result in campaign.run(tools, _jobs(args), wanted, args.workers):
                results.append(result)
                _say(result)
        finally:                # also if it is told to end
            print(report.write(args.output, results, time.time() - started, vars(args)),
                  flush=True)
    return 1 if report.verdict(results) else 0


def _with_module(args, bindir, place):
    """Return the programs of a copy of an installation that has the test module."""
    return machine.with_module(bindir, args.build, Path(place)) if bindir else ""


def _jobs(args):
    """Return the jobs; the first ones show each mode, whatever is drawn later."""
    fixed = tuple(_settings(args))
    watched = [trial.Job(args.seed + args.recordings + number, 0, args.seconds,
                            scenario=args.scenario or _in_turn(WATCHED_CYCLE, number, args.seed),
                            overrides=fixed) for number in range(args.watched)]
    if args.states == 0:
        return watched
    share = -(-args.states // args.recordings)
    jobs = []
    for number in range(args.recordings):
        mode = (("io_torn_pages_protection", _SHOWN_MODES[number]),) \
            if number < len(_SHOWN_MODES) and args.recordings > 1 else ()
        scenario = args.scenario or _in_turn(SCENARIO_CYCLE, number, args.seed)
        jobs.append(trial.Job(args.seed + number, share, args.seconds, scenario=scenario,
                                 overrides=(*mode, *fixed), all_boundaries=args.boundaries))
    return jobs + watched


def _in_turn(cycle, number, seed):
    """Return the scenario of a recording; campaigns of several seeds, or rounds, have all turns."""
    scenario = cycle[number % len(cycle)]
    turns = _TURNS.get(scenario, (scenario,))
    return turns[(seed + number // len(cycle)) % len(turns)]


def _say(result):
    """Report one job to the terminal."""
    if result.error:
        text = "ERROR " + result.error.strip().splitlines()[-1]
    elif result.control:
        text = f"found after {result.tried} states" if result.failures \
            else f"NOT FOUND in {result.tried} states"
        text += ", seen by the monitor" if result.violations else ""
    else:
        text = f"{result.tried} states, {len(result.failures)} failed, " \
            f"{sum(state['restored'] for state in result.states)} pages restored"
        text += f", {len(result.violations)} violations" if result.monitored else ""
        text += f", {len(result.findings)} findings" if result.findings else ""
    lines = [f"    {result.name}: {text} ({result.seconds:.0f} s)"]
    if not result.control:
        lines += [f"        {text}" for text in (result.findings + result.violations)[:SHOWN]]
        lines += [line for failure in result.failures for line in _failure_lines(failure)]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _failure_lines(failure):
    """Return what a log, which may be all that is left, should say of a failure."""
    state = failure["state"]
    yield f"        cut {state['cut']}, fault {state['fault']}, seed {state['seed']}, " \
        f"sectors of {state['unit']} bytes, nested {state['nested']}"
    for text in failure["complaints"][:SHOWN]:
        yield f"            {text.strip()[-1000:]}"
    for piece in (failure.get("minimised") or ())[:SHOWN]:
        yield f"            damage: {piece[:200]}"


# measure ----------------------------------------------------------------


def _measure(args):
    measured = json.loads(args.output.read_text()) if args.output.exists() else {}
    kind = "plain" if args.plain else "tries"
    deadline = time.monotonic() + 60 * (args.minutes or 1e6)
    with tempfile.TemporaryDirectory(prefix="pgcut-", dir=args.scratch) as scratch:
        os.chmod(scratch, 0o755)
        bindir = _with_module(args, args.bindir, f"{scratch}/programs")
        workshop = broken.Workshop(args.build, args.source, str(Path(bindir).parent), args.mutations,
                                   str(Path(scratch) / "broken"))
        tools = trial.Tools(bindir, workshop, "", args.recorder, scratch, "")
        for control in controlled.all_controls(args.control):
            known = measured.setdefault(control.name, {})
            tries = known[kind] = [one for one in known.get(kind, ()) if one.get("patch") in (
                None, control.mutated and workshop.digest(control.name))]
            for number in range(len(tries), args.seeds):
                if time.monotonic() > deadline:
                    return 0
                tries.append(controlled.measure(tools, control.plain() if args.plain else control,
                                              controlled.FIRST_SEED * (number + 1)))
                args.output.write_text(json.dumps(measured, indent=1) + "\n")
                _tell(f"    {control.name}, {kind}: {tries[-1]}")
    return 0


# replay -----------------------------------------------------------------


def _replay(args):
    failure = json.loads(args.failure.read_text())
    with tempfile.TemporaryDirectory(prefix="pgcut-", dir=args.scratch) as scratch:
        os.chmod(scratch, 0o755)
        return _replay_failure(args, failure, _with_module(args, args.bindir, f"{scratch}/programs"))


def _replay_failure(args, failure, bindir):
    recording = Recording(args.failure.parent / "recording")
    context = judge.Context(bindir, args.recorder, args.scratch,
                              rules=trial.rules_of(recording.meta["seed"]))
    subject = explore.Subject(recording, context)
    state = State(**failure["state"])
    outcome = subject.try_state(state)
    print(f"cut after operation {state.cut}, fault {state.fault}, seed {state.seed}, "
          f"sectors of {state.unit} bytes, {outcome.torn} pages torn, "
          f"{outcome.lost} operations lost, {outcome.restored} pages restored")
    print("\n".join(outcome.complaints) or "no complaint: it does not fail now")
    if outcome.failed and args.minimise and not state.nested:
        pieces, complaints = subject.minimise(state)
        print("fewest damages that fail:")
        print("\n".join(subject.describe(pieces or [])) or "none: it fails with all kept")
        print("\n".join(complaints[:5]))
    return 1 if outcome.failed else 0


# history ----------------------------------------------------------------


def _history(args):
    with tempfile.TemporaryDirectory(prefix="pgcut-", dir=args.scratch) as scratch:
        os.chmod(scratch, 0o755)
        bindir = machine.with_module(args.broken or args.bindir, args.build,
                                  Path(scratch) / "install")
        many = histories.Campaign(machine.Tools(bindir, args.stock, args.recorder, scratch), _tell)
        if args.control:
            workshop = broken.Workshop(args.build, args.source, str(Path(bindir).parent),
                                       args.mutations, str(Path(scratch) / "broken"))
            return _hunt(args, many, workshop)
        return _replay_history(args, many) if args.replay else _play_histories(args, many)


def _hunt(args, many, workshop):
    """Look for each of the controls; what came of it is added to a table."""
    file = args.output / "controls.json"
    table = {one["name"]: one for one in json.loads(file.read_text())} if file.exists() else {}
    seeds = range(args.seed, args.seed + (args.count or histories.CONTROL_HISTORIES))
    how, missed = "any" if args.undirected else "directed", []
    args.output.mkdir(parents=True, exist_ok=True)
    for control in controls.HISTORY_CONTROLS:
        if not {control.name, "all", "all" if control.rare else "quick"} & set(args.control):
            continue
        if not args.broken:
            many = many.with_programs(str(workshop.bindir(control.name)))
        told = many.hunt(control, seeds, not args.undirected)
        _tell(f"    {control.name}: {'found' if told['found'] else 'NOT FOUND'} "
              f"after {told['histories']} histories, {told['seconds']} s")
        missed += [] if told["found"] else [control.name]
        entry = table.setdefault(control.name, {"name": control.name, "directed": [], "any": []})
        entry.update(rule=control.rule, what=control.what)
        entry[how].append(told)
        file.write_text(json.dumps(list(table.values()), indent=1) + "\n")
    print(f"controls not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def _play_histories(args, many):
    started, results = time.monotonic(), []
    deadline = None if args.minutes is None else started + 60 * args.minutes
    recipe = recipes.named(args.recipe) if args.recipe else None

    def enter(result):
        """Keep what is known so far, whatever comes."""
        results.append(result)
        if result.findings:
            histories.save(args.output, result)
        return histories.report(args.output, results, time.monotonic() - started)

    text = histories.report(args.output, [], 0)
    try:
        for result in many.run(range(args.seed, args.seed + (args.count or 20)), deadline,
                               not args.no_shrink, recipe, args.atomic):
            text = enter(result)
    finally:
        if many.pending:        # it is told to end in the middle of one
            text = enter(many.pending)
        print(text, flush=True)
    return 1 if any(result.findings for result in results) else 0


def _replay_history(args, many):
    history, left_out = histories.read(args.replay)
    for text in left_out:
        _tell(f"    left out: {text}")
    for number, step in enumerate(history.steps, 1):
        _tell(f"    {number:3} {step}")
    result = many.play(history)
    _tell(histories.told(result))
    if result.findings and args.shrink:
        result.smaller = many.shrink(result)
    if result.findings:
        histories.save(args.output, result)
    return 1 if result.findings else 0


def _tell(text):
    print(text, file=sys.stderr, flush=True)


def _load(args):
    return realcut.load(args.bindir, args.directory, args.seconds, dict(_settings(args)),
                        not args.no_checksums)


def _verify(args):
    return realcut.verify(args.bindir, args.directory, args.acks)


def _settings(args):
    """Return the settings of the command line as pairs; exits if one is none."""
    for text in args.set:
        if "=" not in text:
            sys.exit(f"--set {text}: expected NAME=VALUE")
    return [tuple(text.split("=", 1)) for text in args.set]


def _list(args):
    for name, fault in FAULTS.items():
        text = (fault.choose.__doc__ or "").splitlines()[0] if fault.choose.__doc__ else ""
        print(f"fault    {name:28} {fault.model:8} {text}")
    for control in (*controls.CONTROLS, *controls.HISTORY_CONTROLS):
        print(f"control  {control.name:28} {control.rule:8} {control.what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
