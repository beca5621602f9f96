"""The commands of ./dev; each handler takes (paths, args), returns a status."""

import argparse
import concurrent.futures
import functools
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench import cli as bench
from common.base import DevError, locate, note, say

from . import (
    advise,
    atomic,
    atomicvm,
    build,
    check,
    chroot,
    clean,
    cluster,
    crash,
    deb,
    deps,
    dist,
    fit,
    generate,
    image,
    indent,
    lint,
    mutate,
    paf,
    patroni,
    rules,
    series,
    site,
    source,
    suites,
    tools,
    worktree,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, return the exit status."""
    os.umask(0o022)
    args = _parser().parse_args(argv)
    try:
        return args.handler(locate(Path(__file__).resolve().parent.parent), args) or 0
    except DevError as exc:
        print(f"dev: error: {exc}", file=sys.stderr)
        if exc.hint:
            print(f"dev: hint: {exc.hint}", file=sys.stderr)
        return 1
    except (subprocess.CalledProcessError, OSError) as exc:
        print(f"dev: error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser():
    """Return the argument parser with all commands."""
    parser = argparse.ArgumentParser(prog="dev", description=__doc__.partition(";")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, handler, text):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(handler=handler)
        return sub

    for add in (_add_servers_and_tests, _add_builds_and_documents, _add_sources,
                _add_measurements_and_packages, _add_trials, _add_series_and_gate):
        add(command)
    return parser


def _add_servers_and_tests(command):
    """Add the commands about servers and tests."""
    sub = command("run", _run, "build, create a cluster in data/, start it, say how to connect")
    sub.add_argument("--data", help="data directory (default: PGDATA, else data/)")
    sub = command("stop", _stop, "stop the server of `run`")
    sub.add_argument("--data", help="data directory (default: PGDATA, else data/)")
    sub = command("test", _test, "build and run our tests, regress and isolation")
    sub.add_argument("--suite", nargs="+", default=[], metavar="NAME",
                     help="only these: `dev` (tooling), `crash` (power cuts), suites of the build, "
                          "or programs of these, as SUITE/PROGRAM; also dev/MODULE.CLASS.TEST, "
                          "crash/MODULE.CLASS.TEST: a Python test")
    sub.add_argument("--seed", type=int, metavar="N",
                     help="of explorations and histories (default: by the content of the commit)")
    sub = command("suites", _suites, "run the upstream suites and print a table")
    sub.add_argument("--mode", choices=(*suites.MODES, suites.ATOMIC),
                     help=f"only this mode (default: {' and '.join(suites.MODES)})")
    sub.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
                     help="a setting for the clusters that the tests create")
    sub.add_argument("--build", choices=build.tested_kinds(), default="test",
                     help="of this build (default: test)")
    sub.add_argument("names", nargs="*", metavar="NAME",
                     help="suites (default: " + " ".join(suites.UPSTREAM) + ")")
    sub = command("crash", _crash, "explore power cuts: what does a crash lose?")
    sub.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...",
                     help="`./dev crash run --help`, `replay`, `list` (default: run)")
    sub = command("mutate", _mutate, "break rules on purpose: which test notices?")
    sub.add_argument("names", nargs="*", metavar="NAME",
                     help="mutations of tests/mutations (default: all)")
    sub.add_argument("--list", action="store_true", help="say what there is, and do nothing")
    sub.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)


def _add_builds_and_documents(command):
    """Add the commands about builds and documents."""
    kinds = tuple(build.KINDS)
    command("generate", _generate, "write the documents that are made of other files")
    sub = command("build", _build, "compile and install a build")
    sub.add_argument("kinds", nargs="*", metavar="KIND", default=["test"],
                     help=f"of {', '.join(kinds)} (default: test)")
    sub = command("clean", _clean, "remove builds, and what tests and benchmarks have left")
    sub.add_argument("--all", action="store_true",
                     help="also sources, work/ if it has no edits, and the compiler's cache")
    sub = command("bindir", _bindir, "print the directory of a build's programs")
    sub.add_argument("kind", choices=[kind for kind in kinds if build.KINDS[kind].installed])
    command("deps", lambda paths, args: deps.ensure(paths, deps.CHECK),
            "install the packages needed")
    command("doc", _doc, "validate the documentation and build it as HTML")
    sub = command("site", _site, "make a static site of the documents, and check its links")
    sub.add_argument("--browser", action="store_true",
                     help="also look at each page in Chromium, on a desktop and a phone")


def _add_sources(command):
    """Add the commands about sources."""
    sub = command("source", _source, "fetch and unpack the release of PostgreSQL that "
                                     "upstream.lock pins, which all commands build")
    sub.add_argument("--tarball", help="use this release tarball (default: PGDW_TARBALL)")
    sub = sub.add_mutually_exclusive_group()
    sub.add_argument("--check", action="store_true",
                     help="instead, say whether the archive has a later minor release than the "
                          "pinned one, and what to run then; status 1 if so")
    sub.add_argument("--pin", action="store_true",
                     help="first move the pin to the newest minor release that the archive has, or "
                          "to that of the tarball, if all patches apply without fuzz")
    sub.add_argument("--major", type=int, metavar="N",
                     help="instead, say whether the archive serves the source of release N; "
                          "status 1 if not")
    sub = command("import", _import, "make work/ of upstream, patches/ and overlay/")
    sub.add_argument("--force", action="store_true", help="overwrite edits in work/")
    command("sync", _sync, "bring edits of overlay/ and patches/ into work/")
    sub = command("export", _export, "write the commits of work/ to patches/ and overlay/")
    sub.add_argument("--force", action="store_true", help="overwrite edits in the repository")


def _add_measurements_and_packages(command):
    """Add the commands about measurements and packages."""
    sub = command("bench", _bench, "measure this build and stock side by side")
    bench.add_arguments(sub)
    sub = command("deb", _deb, "build Debian packages that replace postgresql-18, in a chroot")
    sub.add_argument("--suite", choices=tuple(deb.SUITES), default=deb.DEFAULT_SUITE,
                     help=f"of Debian (default: {deb.DEFAULT_SUITE})")
    sub.add_argument("--profile", nargs="+", default=[], metavar="NAME",
                     help="build profiles; pkg.postgresql.nollvm leaves the JIT compiler out")
    sub.add_argument("--quick", action="store_true",
                     help="to try the packaging: without optimization, JIT and debug symbols")
    sub.add_argument("--twice", action="store_true",
                     help="build them twice, and compare the bytes")
    sub.add_argument("--test", action="store_true",
                     help="also upgrade from stock, crash, recover and go back, with them")
    sub.add_argument("--test-only", action="store_true", help="with those built before")
    sub.add_argument("--image", action="store_true",
                     help="build the container image from those built before, and run it")
    sub = command("dist", _dist, "build an archive of the server that runs from any directory")
    sub.add_argument("--twice", action="store_true",
                     help="build it twice, and compare the bytes")
    sub.add_argument("--test", action="store_true",
                     help=f"also run it on {' and '.join(dist.TRIED_ON)}")
    sub.add_argument("--test-only", action="store_true", help="with the one built before")


def _add_trials(command):
    """Add the commands about trials with other programs and machines."""
    command("atomic", _atomic, "test atomic writes on file systems that offer them")
    command("atomic-vm", _atomic_vm, "the same in a virtual machine, with emulated NVMe")
    sub = command("restarts", _restarts, "crash one server again and again, with its pages pending")
    sub.add_argument("--number", type=int, default=1000, metavar="N",
                     help="of crashes (default: 1000, ten minutes)")
    sub.add_argument("--seed", type=int, default=1, metavar="N", help="of what is drawn (1)")
    command("patroni", _patroni, "make a cluster with Patroni, crash it, switch over")
    command("paf", _paf, "the same with Pacemaker and PAF")
    sub = command("advise", _advise, "does what pg_doublewrite_advise predicts come true?")
    sub.add_argument("--factor", type=float, default=0.1, metavar="F",
                     help="scale of the data (default: 0.1)")
    sub.add_argument("--seconds", type=int, default=60, metavar="S",
                     help="how long to watch each load (default: 60)")
    sub = command("tools", _tools, "try backup tools with crashes and torn pages")
    sub.add_argument("names", nargs="*", metavar="NAME",
                     help=f"of {', '.join(tools.TRIALS)} (default: all)")


def _add_series_and_gate(command):
    """Add the commands about the series and the gate."""
    sub = command("series", _series, "write patches for upstream review")
    sub.add_argument("words", nargs="*", metavar="[NAME] DIRECTORY",
                     help="a series, with its cover letter (default: all patches, without one);"
                     " an empty or new directory")
    sub.add_argument("--check", action="store_true",
                     help="instead, apply, build and test each patch in turn, of the series NAME"
                     " or of all")
    sub.add_argument("--from", type=int, default=1, dest="first", metavar="N",
                     help="check from patch N on")
    sub.add_argument("--only", type=int, metavar="N", help="check patch N only")
    sub.add_argument("--build-only", action="store_true", help="check without running regress")
    sub.add_argument("--before", action="store_true",
                     help="write files of overlay/ as they are before the hunks NAME"
                     " (doublewrite/overlay.diff; or a series, if it has one such file)")
    sub.add_argument("--record", action="store_true",
                     help="make the hunks NAME those that change the texts in DIRECTORY")
    sub.add_argument("--refit", action="store_true",
                     help="fit all hunks to edits of overlay/; DIRECTORY gets the texts before")
    sub = command("check", _check, "run the gate")
    sub.add_argument("--fast", action="store_true",
                     help=f"also build, and run the tests of dev and {len(suites.FAST)} programs")
    command("lint", _lint, "check the manifest for Kubernetes, the dashboard and the RPM spec")
    command("rules", _rules, "check and test the rules for Prometheus")


def _obtain(paths, tarball=None, how=source.ensure):
    """Install packages and fetch the source as needed; returns the Source."""
    deps.ensure(paths)
    return how(paths, functools.partial(worktree.refusal, paths), tarball)


def _build_kind(paths, kind):
    """Bring a build up to date with all that it is made of; returns its bindir."""
    deps.ensure(paths, build.KINDS[kind].packages)
    upstream = _obtain(paths)
    if not build.KINDS[kind].ours:
        return build.build(paths, kind, Path(upstream.tree))
    worktree.sync(paths, upstream)
    if worktree.edits_in_work(worktree.repository(paths), paths):
        note("work/ has edits that were not exported; they are built too")
    return build.build(paths, kind, paths.work)


def _source(paths, args):
    if args.check or args.major:
        deps.ensure(paths)
        answer = source.behind(paths) if args.check else source.served(paths, args.major)
        print(answer.text)
        return 0 if answer.good else 1
    how = source.pin if args.pin else functools.partial(source.ensure, again=True)
    print(_obtain(paths, args.tarball, how).tree)


def _import(paths, args):
    worktree.import_(paths, _obtain(paths), args.force)


def _sync(paths, args):
    worktree.sync(paths, _obtain(paths))


def _export(paths, args):
    worktree.export(paths, args.force)


def _series(paths, args):
    if args.check:
        return _check_series(paths, args)
    if len(args.words) not in (1, 2):
        raise DevError("where to?", "./dev series [NAME] DIRECTORY, or ./dev series --check [NAME]")
    *name, directory = args.words
    target = Path(directory)
    if args.record:
        series.record(paths, "".join(name), target)
        return
    if args.refit:
        series.refit(paths, target)
        return
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise DevError(f"{target} is not empty", "name a new directory")
    if args.before:
        series.before(paths, "".join(name), target)
    else:
        series.write(paths, _obtain(paths), target, "".join(name))


def _deb(paths, args):
    chroot.require_root()
    deps.ensure(paths, deb.PACKAGES)
    suite = deb.SUITES[args.suite]
    if args.image:
        image.build_and_try(paths)
        return
    obtain = functools.partial(_obtain, paths)
    kind = (deb.SMALL, deb.QUICK) if args.quick else (args.profile, ())
    print(deb.require_packages(paths, suite) if args.test_only
          else deb.build(paths, suite, obtain(), *kind, args.twice))
    if args.test or args.test_only:
        deb.test(paths, suite, obtain)


def _dist(paths, args):
    chroot.require_root()
    deps.ensure(paths, dist.PACKAGES)
    directory = paths.root / "dist"
    if not args.test_only:
        directory = dist.build(paths, _obtain(paths), args.twice)
    print(directory)
    if args.test or args.test_only:
        dist.test(paths, directory)


def _patroni(paths, args):
    patroni.call(paths, _build_kind(paths, "test"))


def _paf(paths, args):
    paf.call(paths, _build_kind(paths, "test"))


def _restarts(paths, args):
    _build_kind(paths, "test")
    return crash.restarts(paths, args.number, args.seed)


def _atomic(paths, args):
    deps.ensure(paths, atomic.PACKAGES)
    _build_kind(paths, "test")
    return 1 if atomic.test(paths) else 0


def _atomic_vm(paths, args):
    deps.ensure(paths, atomicvm.PACKAGES)
    return 1 if atomicvm.check(paths, _build_kind(paths, "test")) else 0


def _advise(paths, args):
    deps.ensure(paths, deps.BENCH)
    # Assertions would make redo slower than the model has it.
    missed = advise.check(paths, _build_kind(paths, "stock-release"), _build_kind(paths, "release"),
                          args.factor, args.seconds)
    generate.write_all(paths)
    if missed:
        raise DevError("predictions were too far off: " + ", ".join(missed))


def _site(paths, args):
    deps.ensure(paths, (*site.PACKAGES, *(site.BROWSER if args.browser else ())))
    first = site.build(paths)
    if args.browser:
        site.look(paths, first.parent)
    print(first)


def _tools(paths, args):
    tools.check(paths, args.names, functools.partial(_build_kind, paths))
    generate.write_all(paths)


def _bench(paths, args):
    return bench.main(paths, args, functools.partial(deps.ensure, paths, deps.BENCH),
                      functools.partial(_build_kind, paths),
                      functools.partial(worktree.commit, paths))


def _build(paths, args):
    unknown = set(args.kinds) - set(build.KINDS)
    if unknown:
        raise DevError(f"no such build: {', '.join(sorted(unknown))}",
                       "one of " + ", ".join(build.KINDS))
    for kind in args.kinds:
        _build_kind(paths, kind)


def _bindir(paths, args):
    if not build.is_built(paths, args.kind):
        _build_kind(paths, args.kind)
    print(build.bindir(paths, args.kind))


def _doc(paths, args):
    _build_kind(paths, "doc")
    print(build.product(paths, "doc") / "index.html")


def _run(paths, args):
    server = cluster.Cluster(paths, _build_kind(paths, "release"),
                             cluster.data_directory(paths, args.data))
    server.run()
    print(f"The server is ready.  Connect with:\n\n    {server.connection()}\n\n"
          "Stop it with ./dev stop")


def _stop(paths, args):
    if not build.is_built(paths, "release"):
        raise DevError("the release build is gone", "./dev build release")
    cluster.Cluster(paths, build.bindir(paths, "release"),
                    cluster.data_directory(paths, args.data)).stop()


def _check(paths, args):
    if args.fast:
        return _check_fast(paths, args)
    deps.ensure(paths, deps.CHECK)
    upstream = _obtain(paths)
    git = worktree.repository(paths)
    worktree.assemble(git, paths, worktree.upstream_commit(git, upstream))
    parts = {"check": lambda: check.report(check.run_all(paths, upstream)),
             "mutations": functools.partial(fit.check, paths, upstream)}
    if indent.program(paths).exists():
        parts["indent"] = functools.partial(indent.check, paths, upstream)
    else:
        note("pgindent is left out: ./dev build test makes it")
    results = _run_beside(*_chosen((), "dev", parts))
    return 1 if any(result.failed for result in results) else 0


def _rules(paths, args):
    return _conclude(paths, [rules.check(paths)])


def _lint(paths, args):
    deps.ensure(paths, lint.PACKAGES)
    return _conclude(paths, [lint.check(paths, _obtain(paths))])


def _alone(handler):
    """Make a handler wait for other runs of tests in the same build root."""
    @functools.wraps(handler)
    def wait_and_handle(paths, args):
        with suites.alone(paths):
            return handler(paths, args)
    return wait_and_handle


def _check_series(paths, args):
    return _conclude(paths, series.check(paths, _obtain(paths), args.first, args.only,
                                         not args.build_only, "".join(args.words[:1])))


@_alone
def _check_fast(paths, args):
    deadline = time.monotonic() + suites.OVERALL_SECONDS * suites.SLOWNESS
    deps.ensure(paths, deps.CHECK)
    upstream = _obtain(paths)
    results = [check.report(check.run_all(paths, upstream))]
    _build_kind(paths, "test")
    results.append(indent.check(paths, upstream))
    suites.prepare(paths, "test")
    names = suites.of_suites(suites.all_tests(paths, "test"), suites.FAST)
    results += _run_beside(
        functools.partial(_part, "dev/selftests", suites.run_selftests, paths, deadline),
        functools.partial(_part, "dev/mutations", fit.check, paths, upstream),
        functools.partial(_part, "suites", suites.run_tests, paths, "test", names, suites.MODES[0],
                          deadline=deadline, again="./dev check --fast"))
    return _conclude(paths, results)


@_alone
def _test(paths, args):
    deadline = time.monotonic() + suites.OVERALL_SECONDS * suites.SLOWNESS
    _require_known(args.suite)
    deps.ensure(paths, deps.CHECK)
    upstream = _obtain(paths)
    wanted = [name for name in args.suite if name.partition("/")[0] not in ("dev", "crash")]
    some = functools.partial(_chosen, args.suite)
    results = _run_beside(*some("dev", {
        "check": lambda: check.report(check.run_all(paths, upstream)),
        "rules": lambda: rules.check(paths)}))
    # Each of these waits for most of the time.  The explorer has the machine to itself: a server
    # that gets less of it does less while it is recorded, and shows fewer faults.
    beside = some("dev", {"selftests": functools.partial(suites.run_selftests, paths, deadline)})
    of_any_build = some("dev", {"indent": functools.partial(indent.check, paths, upstream),
                                "mutations": functools.partial(fit.check, paths, upstream)})
    of_build = some("crash", {
        "selftests": functools.partial(crash.run_selftests, paths, deadline),
        "histories": lambda: crash.run_histories(paths, deadline, args.seed),
        "history-controls": lambda: crash.run_history_controls(paths, deadline)})
    last = some("crash", {"explorer": lambda: crash.run_ci(paths, deadline, args.seed)})
    # Some of our own tests move a cluster to a stock server and back.
    stock = not wanted or suites.need_stock(paths, wanted)
    if wanted or not args.suite:
        of_build.insert(0, functools.partial(
            _part, "suites", _run_suites, paths, wanted, stock, deadline,
            again=" ".join(("./dev test", *(("--suite", *wanted) if wanted else ())))))
    if of_build or last or (of_any_build and not indent.program(paths).exists()):
        unbuilt = _part("build", _build_for_tests, paths, stock and bool(of_build or last),
                        again="./dev build test")
        results += unbuilt
        if unbuilt:
            of_build, of_any_build, last = [], [], []
    results += _run_beside(*of_build, *beside, *of_any_build)
    results += _run_beside(*last)
    return _conclude(paths, results)


def _build_for_tests(paths, stock):
    """Bring the builds that tests need up to date; returns no Results."""
    _build_kind(paths, "test")
    if stock:
        _build_kind(paths, "stock")
    return []


def _run_suites(paths, wanted, stock, deadline):
    """Run tests of the build: those that are wanted, or ours and the core; returns their Results."""
    # Some of our own tests try what is given to monitoring systems.
    places = {"PGDW_MONITORING_DIR": str(paths.repo / "packaging" / "monitoring")}
    if stock:
        places[suites.STOCK] = str(build.bindir(paths, "stock"))
    tests = suites.all_tests(paths, "test")
    names = suites.of_suites(tests, wanted or suites.CORE)
    if not wanted:
        names = suites.own_tests(paths, tests) + names
    suites.prepare(paths, "test")
    return suites.run_tests(paths, "test", list(dict.fromkeys(names)), suites.MODES[0], places,
                            deadline=deadline)


# What is no suite of a build, and the programs in it.
GROUPS = {"dev": ("check", "rules", "selftests", "indent", "mutations"),
          "crash": ("selftests", "histories", "history-controls", "explorer")}
_PYTHON_TEST = re.compile(r"test_\w+(\.\w+)*$")


def _require_known(wanted):
    """Raise DevError if a name is that of nothing in a group; suites of the build are looked up later."""
    for name in wanted:
        group, _, program = name.partition("/")
        if program and group in GROUPS and program not in GROUPS[group] and \
                not _PYTHON_TEST.match(program):
            raise DevError(f"there is no {name}", f"{group}/{{{','.join(GROUPS[group])}}}, or a "
                           f"Python test, as {group}/test_module.Class.test_name")


def _chosen(wanted, group, programs):
    """Return those of a group's programs that are wanted, all if nothing is, as parts of a run.

    Names that are none of a program's are those of Python tests, which `selftests` runs.
    """
    names = [name.partition("/")[2] for name in wanted if name.partition("/")[0] == group]
    chosen = [functools.partial(_part, f"{group}/{name}", run) for name, run in programs.items()
              if not wanted or "" in names or name in names]
    tests = [name for name in names if _PYTHON_TEST.match(name)]
    if tests and "selftests" in programs:
        chosen.append(functools.partial(_part, f"{group}/selftests", programs["selftests"],
                                        names=tests))
    return chosen


def _part(name, run, *arguments, again="", **options):
    """Call what returns a Result, or several; returns these.

    If it raises an exception, that is its Result, which `again` shows again: other parts go on.
    """
    started = time.monotonic()
    try:
        found = run(*arguments, **options)
        return found if isinstance(found, list) else [found]
    except Exception as error:
        text = traceback.format_exc()
        if isinstance(error, DevError) and error.hint:
            text += f"hint: {error.hint}\n"
        say(f"{name} has not come to its end:\n{text}")
        return [suites.Result(name, suites.NO_MODE, 0, 1, 0, time.monotonic() - started,
                              output=text, again=(again or f"./dev test --suite {name}",))]


def _run_beside(*parts):
    """Run parts of a test run side by side; returns all their Results."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(parts))) as pool:
        return [result for found in pool.map(lambda part: part(), parts) for result in found]


@_alone
def _clean(paths, args):
    freed = clean.clean(paths, args.all)
    say(f"{freed / (1 << 20):.0f} MB freed in {paths.root}")


@_alone
def _crash(paths, args):
    _build_kind(paths, "test")
    if args.arguments[:1] == ["history"]:       # in which stock servers have a part
        _build_kind(paths, "stock")
    return crash.call(paths, args.arguments or ["run"])


def _mutate(paths, args):
    if args.inside:
        return mutate.inside(paths, args.names[0])
    mutations = mutate.read(paths, args.names)
    if args.list:
        print(mutate.listing(mutations, mutate.seen(paths)))
        return 0
    mutate.require()
    if any(one.controls for one in mutations):
        deps.ensure(paths, crash.PACKAGES)
    _build_kind(paths, "test")
    if suites.need_stock(paths, [name for one in mutations for name in one.tests]):
        _build_kind(paths, "stock")
    return mutate.conclude(mutate.run_all(paths, mutations))


def _generate(paths, args):
    for name in generate.write_all(paths):
        print(name)


@_alone
def _suites(paths, args):
    if args.mode == suites.ATOMIC:
        deps.ensure(paths, atomic.PACKAGES)
    _build_kind(paths, args.build)
    tests = suites.all_tests(paths, args.build)
    names = suites.of_suites(tests, args.names or suites.UPSTREAM)
    excluded = suites.read_exclusions(paths.repo / "tests" / "upstream-exclusions.txt", tests)
    suites.prepare(paths, args.build)
    results = []
    for mode in (args.mode,) if args.mode else suites.MODES:
        for name in (n for n in names if (n, mode) in excluded):
            note(f"{name} is excluded in {mode}: {excluded[name, mode]}")
        chosen = [name for name in names if (name, mode) not in excluded]
        if mode == suites.ATOMIC:
            results += atomic.run_suites(paths, args.build, chosen, args.settings)
        else:
            results += suites.run_tests(paths, args.build, chosen, mode,
                                        settings=args.settings)
    options = "".join(f" --set {setting}" for setting in args.settings) + \
        (f" --build {args.build}" if args.build != "test" else "")
    return _conclude(paths, results, lambda result:
                     f"./dev suites --mode {result.mode}{options} {result.name}")


def _conclude(paths, results, *again):
    """Print the table, failures and last line of a test run; returns the status.

    `again` is a function that gives the command to see a failure again, see suites.
    """
    suites.report_failures(paths, results, *again)
    say("results\n" + suites.table(results))
    print(suites.summary(results), flush=True)
    return 1 if any(result.failed for result in results) else 0
