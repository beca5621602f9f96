"""Arguments of `./dev bench`."""

import argparse
import fnmatch
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.base import SYSTEM_PYTHON, DevError, Paths, note, require_reachable, run, say

from . import (
    arms,
    figures,
    money,
    recovery,
    report,
    runner,
    sceptic,  # noqa: F401
    storage,
    suites,
    summary,
)
from .restart import Restart

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "bench" / "results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `./dev bench`."""
    parser.add_argument("what", metavar="SUITE|list|report|clean",
                        help="a suite; or list the suites, render DIR again, remove"
                             " prepared clusters and leftovers of killed runs")
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR",
                        help="results to render, or their summary (only with `report`)")
    parser.add_argument("--factor", type=float, default=1.0, metavar="F",
                        help="scale of data, memory and WAL (default: 1, as published)")
    parser.add_argument("--runs", type=int, default=3, metavar="N",
                        help="runs of each case and arm (default: 3)")
    parser.add_argument("--arms", nargs="+", default=[], metavar="ARM",
                        help=f"of {', '.join(arms.ARMS)}, the last six only for the suite"
                             " recovery (default: the suite's, or all that fit)")
    parser.add_argument("--storage", choices=storage.PROFILES, default="memory",
                        help="where clusters live (default: memory)")
    parser.add_argument("--iops", type=int, metavar="N",
                        help="requests a second, of reads and writes each, of slow and rented"
                             " (default: " + ", ".join(
                                 f"{name} {limit.iops}" for name, limit in storage.LIMITS.items())
                             + "; 0: no limit)")
    parser.add_argument("--mbps", type=int, metavar="MB",
                        help="megabytes a second likewise (default: rented"
                             f" {storage.LIMITS['rented'].mbps})")
    parser.add_argument("--seconds", type=int, default=60, metavar="S",
                        help="length of each load (default: 60)")
    parser.add_argument("--rate", type=float, default=0, metavar="TPS",
                        help="of suites at fixed rates: transactions a second that the rates are"
                             " shares of (default: found in a first run of stock full_pages)")
    parser.add_argument("--case", default="*", metavar="PATTERN",
                        help="only cases whose names match (shell pattern)")
    parser.add_argument("--name", help="name of the directory of results")
    money.advisor().add_prices(parser.add_argument_group("prices, with `report`"))


def main(paths: Paths, args: argparse.Namespace, ensure_packages: Callable[[], None],
         build_kind: Callable[[str], Path], commit: Mapping[str, Any]) -> int:
    """Carry out `./dev bench`; the functions install packages, build, and name the commit."""
    if args.what == "list":
        return _list(args)
    if args.what == "clean":
        clean()
        return 0
    ensure_packages()
    if args.what == "report":
        if not args.directory:
            raise DevError("no directory to report on", "./dev bench report DIR")
        render(args.directory, args)
        return 0
    plan = _plan(args, commit)
    kinds = set(plan.kinds())
    if any(case.workload for case in plan.cases):
        kinds.add(recovery.KIND)
    bindirs = {kind: build_kind(kind) for kind in sorted(kinds)}
    runner.execute(paths, plan, bindirs)
    render(plan.directory)
    return 0


def render(place: Path, priced: argparse.Namespace | None = None) -> None:
    """Write report.md, report.html and the plots of a directory of results, or of a summary.

    A directory that has its runs gets its summary first.  Prints the report's path, and tables of
    money if the arguments have prices.
    """
    directory = place.with_suffix("") if place.suffix == summary.SUFFIX else place
    kept = summary.file_of(directory)
    if (directory / runner.META).exists():
        kept.write_text(summary.text(summary.of(*runner.load(directory))))
    elif not kept.exists():
        raise DevError(f"there is neither {directory / runner.META} nor {kept}",
                       "a directory or a file of bench/results")
    draw_report(kept, directory)
    print(directory / report.MARKDOWN)
    for title, rows in money.tables(report.measures(summary.load(kept)), priced) if priced else ():
        print(f"\n{title}:\n\n{figures.markdown(rows)}", end="")


def draw_report(kept: Path, directory: Path) -> None:
    """Write the report of a summary, and its plots, into a directory."""
    run([SYSTEM_PYTHON, "-B", "-m", "bench.render", kept.resolve(), directory.resolve()],
        cwd=REPOSITORY)


def draw_picture(repository: Path, target: Path) -> None:
    """Draw the README's picture, if runs with a commit have what it shows."""
    if figures.pictured(repository):
        run([SYSTEM_PYTHON, "-B", "-m", "bench.render", "--picture", repository, target],
            cwd=REPOSITORY)


def _list(args):
    """Print the suites, their cases and what each needs."""
    for name, function in suites.SUITES.items():
        print(f"{name:14} {function.__doc__}")
        for case in suites.cases(name, args.factor):
            print(f"    {case.name:44} {case.megabytes():7} MB")


def clean() -> None:
    """Remove prepared clusters, and what a run that was killed has left."""
    work = storage.default_work_directory()
    storage.remove_leftovers(work)
    if work.exists():
        shutil.rmtree(work)


def _plan(args, commit):
    """Return the Plan that the arguments ask for."""
    if args.factor <= 0 or args.runs < 1 or args.seconds < 1 or args.rate < 0:
        raise DevError("--factor, --runs and --seconds must be positive, and --rate if there is one")
    cases = _cases(args)
    work = storage.default_work_directory()
    work.mkdir(parents=True, exist_ok=True)
    work.chmod(0o755)
    require_reachable(work)
    require_reachable(REPOSITORY / "bench")
    say(f"prepared clusters are kept in {work}; ./dev bench clean removes them")
    replaying = any(case.workload for case in cases)
    limit = storage.limit_of(args.storage, args.iops, args.mbps)
    return runner.Plan(args.what, args.factor, args.runs,
                       tuple(arms.choose(args.arms or suites.ARMS_OF[args.what], replaying,
                                         {case.file_system for case in cases},
                                         any(isinstance(case.load, Restart) for case in cases))),
                       args.storage, args.seconds, tuple(cases), work,
                       runner.new_directory(RESULTS, args.what, args.storage, args.name), limit,
                       commit(), args.rate)


def _cases(args):
    """Return the cases that are asked for, with those that find the rate of others."""
    every = suites.cases(args.what, args.factor)
    found = [case for case in every if fnmatch.fnmatch(case.name, args.case)]
    found = [case for case in found if not case.if_room or _has_room(args.storage, case)]
    pacing = set() if args.rate else {case.paced_by for case in found}
    found = [case for case in every if case.name in pacing or case in found
             and not (args.rate and case.only_arm)]
    if not found:
        raise DevError(f"no case of {args.what} matches {args.case}", "./dev bench list")
    return found


def _has_room(profile, case):
    """Say whether storage has room for a case; says so if not."""
    free = storage.room(profile)
    if free < case.megabytes():
        note(f"{case.name} is left out: it needs {case.megabytes()} MB, and there are {free}")
    return free >= case.megabytes()
