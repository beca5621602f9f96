"""Review series, counting of results, the gate."""

import concurrent.futures
import contextlib
import fcntl
import functools
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest import TestCase, mock

from fixture import RepositoryCase

from common.base import DevError
from devtools import check, cli, crash, failures, series, suites, tools


class SeriesTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.import_()
        self.commit("Hook", {"src/main.c": self.edited_main(), "src/a/a.c": "a\n"},
                    "Body.\n\nOverlay: src/a/*")
        self.commit("Docs", {"src/other.c": "other too\n", "doc/b.sgml": "b\n"},
                    "Because.\n\nOverlay: doc/b.sgml")
        self.export()
        self.target = self.paths.root / "out"

    def write_series(self):
        series.write(self.paths, self.source, self.target)
        return sorted(path.name for path in self.target.iterdir())

    def test_patches_bring_their_files(self):
        names = self.write_series()
        self.assertEqual(names, ["0001-Hook.patch", "0002-Docs.patch"])
        tree = self.tree()
        self.git("checkout", "-q", "-B", "review", "upstream")
        self.git("am", "-q", str(self.target / names[0]))
        self.assertTrue((self.paths.work / "src/a/a.c").exists())
        self.assertFalse((self.paths.work / "doc/b.sgml").exists())
        self.git("am", "-q", str(self.target / names[1]))
        self.assertEqual(self.tree(), tree)

    def test_trailers_are_for_us_alone(self):
        text = (self.target / self.write_series()[0]).read_text()
        self.assertIn("Body.\n---", text)
        self.assertNotIn("Overlay", text)

    def test_a_series_has_its_cover_letter(self):
        self.sync()
        self.git("commit", "-q", "--amend", "-m", "Docs\n\nWhy.\n\nSeries: stage\nOverlay: doc/*")
        self.export()
        self.assertTrue((self.paths.patches / "stage" / "0001-docs.patch").exists())
        with self.assertRaisesRegex(DevError, "cover.md is missing"):
            series.write(self.paths, self.source, self.target, "stage")
        self.write(self.paths.patches / "stage" / series.COVER, "# Write documents\n\nThey help.\n")
        series.write(self.paths, self.source, self.target, "stage")
        cover, docs = sorted(self.target.iterdir())
        for words in ("From: Ann Example", "[PATCH 0/1] Write documents",
                      "Applies on PostgreSQL 18.6 with the series",
                      "\nThey help.\n", "2 files changed"):
            self.assertIn(words, cover.read_text())
        self.assertIn("Why.\n---", docs.read_text())
        with self.assertRaisesRegex(DevError, "no series instant"):
            series.write(self.paths, self.source, self.target, "instant")

    def test_every_file_belongs_somewhere(self):
        self.write(self.paths.overlay / "doc/c.sgml", "c\n")
        with self.assertRaises(DevError) as caught:
            self.write_series()
        self.assertEqual(str(caught.exception), "overlay/doc/c.sgml belongs to no patch")

    def test_trailers_name_files_once(self):
        self.sync()
        self.git("commit", "-q", "--amend", "-m", "Docs\n\nOverlay: *\nOverlay: src/b/*")
        self.export()
        with self.assertRaises(DevError) as caught:
            self.write_series()
        for words in ("0002-docs.patch: src/b/* matches no file of overlay/",
                      "src/a/a.c belongs to several: 0001-hook.patch, 0002-docs.patch"):
            self.assertIn(words, str(caught.exception))

    def try_series(self, fails="", **options):
        """Check the series with a build that fails for one content of other.c.

        Returns the Results' (name, passed), and which of our files each build has seen.
        """
        seen = []

        def build_tree(paths, kind, tree):
            seen.append([name for name in ("src/a/a.c", "doc/b.sgml") if (tree / name).exists()])
            if (tree / "src/other.c").read_text() == fails:
                raise DevError("does not compile")

        with mock.patch.object(series.build, "build", build_tree), \
                mock.patch.multiple(suites, prepare=mock.DEFAULT, run_tests=mock.DEFAULT,
                                    default_mode=mock.DEFAULT) as mocks:
            mocks["run_tests"].return_value = []
            results = series.check(self.paths, self.source, **options)
        return [(one.name, one.passed) for one in results], seen

    def test_each_patch_is_tried(self):
        self.assertEqual(self.try_series(), (
            [("series/am", 1), ("series/0001", 1), ("series/0002", 1)],
            [["src/a/a.c"], ["src/a/a.c", "doc/b.sgml"]]))
        for options in ({"first": 2}, {"only": 2}):
            with self.subTest(options):
                self.assertEqual(self.try_series(**options)[0],
                                 [("series/am", 1), ("series/0002", 1)])
        with self.assertRaises(DevError):
            self.try_series(only=3)

    def test_patch_that_needs_a_later_one(self):
        self.assertEqual(self.try_series(fails="other\n"), (
            [("series/am", 1), ("series/0001", 0), ("series/0002", 1)],
            [["src/a/a.c"], ["src/a/a.c", "doc/b.sgml"]]))

    def test_what_stays_the_same_is_not_touched(self):
        self.try_series()
        main = series.place(self.paths).work / "src/main.c"
        before = main.stat().st_mtime_ns
        self.try_series(only=2)
        self.assertEqual(main.stat().st_mtime_ns, before)


class OverlayTest(TestCase):

    def test_directories_of_meson_exist(self):
        """As for translations, which a build without NLS does not look for."""
        overlay = Path(__file__).resolve().parents[1] / "overlay"
        for file in overlay.rglob("meson.build"):
            for name in re.findall(r"^subdir\('(\w+)'", file.read_text(), re.MULTILINE):
                with self.subTest(file=file):
                    self.assertTrue((file.parent / name / "meson.build").is_file(), name)


class CountTest(TestCase):

    def test_points(self):
        self.assertEqual(suites.count_tap(
            "1..6\n# ok comment\nok 1         - test_setup      356 ms\n"
            "not ok 2     + boolean   81 ms\nok 3 # SKIP no reason\n"
            "not ok 4 - later # TODO one day\n    ok 1 - nested\nokay\nok 5 - with # mark\n"),
            (3, 1, 1))

    def test_summary(self):
        results = [suites.Result("a/b", "m", 3, 1, 0, 1.0),
                   suites.Result("a/c", "m", 2, 0, 1, 1.0)]
        self.assertEqual(suites.summary(results), "5 passed, 1 failed")
        self.assertRegex(suites.table(results), r"a +m +2 +5 +1 +1 +2")


class HangTest(RepositoryCase):

    def run_python(self, text, deadline=None):
        """Run a module of tests, each for half a second at most."""
        self.write(self.paths.repo / "tests" / "test_it.py", "import time, unittest\n"
                   "class ItTest(unittest.TestCase):\n" + text)
        # far more than what ends takes
        with mock.patch.object(suites, "PYTHON_TEST_SECONDS", 5):
            return suites.run_python_tests(self.paths, "it/self", sys.executable,
                                           self.paths.repo / "tests", {}, deadline)

    def test_python_tests_that_end(self):
        result = self.run_python("    def test_a(self): pass\n"
                                 "    def test_b(self): self.fail()\n"
                                 "    def test_c(self): self.skipTest('c')\n")
        self.assertEqual((result.passed, result.failed, result.skipped, result.hung), (1, 1, 1, ""))

    def test_python_test_that_hangs(self):
        result = self.run_python("    def test_a(self): pass\n"
                                 "    def test_b(self): time.sleep(600)\n")
        self.assertEqual((result.passed, result.failed), (1, 1))
        self.assertRegex(result.hung, r"hung after .* in or after test_it.ItTest.test_b$")
        self.assertIn("in test_b", result.output)
        self.assertEqual(suites.summary([result]), "1 passed, 1 failed, 1 hung")

    def test_what_a_failed_python_test_leaves(self):
        result = self.run_python(
            "    def test_a(self):\n        import pathlib, tempfile\n"
            "        with tempfile.TemporaryDirectory() as place:\n"
            "            (pathlib.Path(place) / 'server.log').write_text('what it said')\n"
            "            with self.subTest(1):\n                self.fail()\n"
            "    def test_b(self): 1 / 0\n"
            "    def test_c(self): pass\n")
        self.assertEqual([*result.kept.glob("**/*.log")][0].read_text(), "what it said")
        self.assertIn("ZeroDivisionError", (result.kept / failures.OUTPUT).read_text())
        self.assertEqual(sorted(result.again), [f"./dev test --suite it/test_it.ItTest.test_{name}"
                                                for name in "ab"])

    def test_module_of_python_tests_that_cannot_be_loaded(self):
        result = self.run_python("nonsense\n")
        self.assertEqual(result.again, ("./dev test --suite it/test_it",))

    def test_no_time_left(self):
        result = self.run_python("    def test_a(self): time.sleep(600)\n", deadline=0)
        self.assertEqual(result.failed, 1)
        self.assertIn("no time was left", result.hung)

    def test_command_that_ignores_the_request(self):
        with mock.patch.object(suites, "GRACE_SECONDS", 0.1):
            self.assertIsNone(suites.run_until(0, [
                sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN)\n"
                "time.sleep(600)"]))
        self.assertEqual(suites.run_until(None, ["false"]), 1)

    def test_tests_that_hang(self):
        log = self.paths.root / "build" / "test" / "testrun" / "s" / "t"
        self.write(log / "log" / suites.HANG_REPORT, "a waits for b\nhung after 7 s in psql\n")
        for entry, wanted in (
                (dict(name="pg:s / s/t", result="FAIL", duration=9, stdout="not ok 1\n"),
                 "hung after 7 s in psql: a waits for b"),
                (dict(name="pg:s / s/u", result="TIMEOUT", duration=9),
                 "hung after 9 s, the limit of meson"),
                (dict(name="pg:s / s/u", result="INTERRUPT", duration=9),
                 "cut after 9 s: no time was left"),
                (dict(name="pg:s / s/u", result="FAIL", duration=9), "")):
            with self.subTest(entry["result"]):
                result = suites._result(self.paths, "test", "m", entry)
                self.assertEqual((result.failed, result.hung), (1, wanted))

    def test_two_runs_wait_for_each_other(self):
        with suites.alone(self.paths), open(self.paths.root / "tests.lock") as file, \
                self.assertRaises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suites.alone(self.paths):
            pass


class FailuresTest(RepositoryCase):
    """How failures are reported, and what is kept of them."""

    def test_logs_are_kept(self):
        log = self.paths.root / "testrun" / "s" / "t"
        self.write(log / "log" / "regress_log_t", "not ok 1\n")
        self.write(log / "regression.diffs", "-a\n+b\n")
        self.write(log / "data" / "node" / "PG_VERSION", "18\n")
        self.write(log / "data" / "node" / "base" / "1.log", "no log\n")
        result = suites.Result("s/t", "m", 0, 1, 0, 1.0, log, "not ok 1\n")
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            suites.report_failures(self.paths, [result, suites.Result("s/u", "m", 1, 0, 0, 1.0)])
        place = failures.directory(self.paths.root) / "s-t"
        shutil.rmtree(log)
        self.assertEqual(sorted(str(file.relative_to(place)) for file in place.rglob("*.*")) +
                         [(place / "log" / "regress_log_t").read_text()],
                         [failures.OUTPUT, "regression.diffs", "not ok 1\n"])
        self.assertIn("./dev test --suite s/t\n", told.getvalue())
        self.assertIn(f"logs are kept in {place}\n", told.getvalue())
        self.assertNotIn("s/u", told.getvalue())

    def test_old_runs_go(self):
        for number in range(failures.KEPT_RUNS + 3):
            self.write(self.paths.root / "failures" / f"2026-01-{number:02}T000000-1" / "file", "")
        failures._begin.cache_clear()
        place = failures.directory(self.paths.root)
        left = sorted((self.paths.root / "failures").iterdir())
        self.assertEqual((len(left), left[-1], left[0].name),
                         (failures.KEPT_RUNS, place, "2026-01-04T000000-1"))

    def test_recordings_are_large(self):
        run = self.paths.root / "failures" / "2026-01-01T000000-1"
        for number in range(failures.KEPT_RECORDINGS + 1):
            place = run / "crash-explorer" / "failures" / f"recording-{number}"
            self.write(place / "failure-0.json", "{}")
            self.write(place / "recording" / "base" / "PG_VERSION", "18\n")
            self.write(place / "recording" / "base" / "pg_wal" / "1", "large")
            self.write(place / "recording" / "ops", "large")
            self.write(place / "recording" / "primary.log", "small")

        def kept():
            return sorted(str(file.relative_to(run / "crash-explorer/failures"))
                          for file in run.rglob("*") if file.is_file())
        everything = kept()
        failures.thin(run, failures.KEPT_RECORDINGS)
        self.assertEqual(kept(), everything[:-4] + ["recording-2/recording/primary.log"])
        failed = kept()
        failures._begin.cache_clear()
        failures.directory(self.paths.root)
        self.assertEqual(kept(), failed)        # a run that begins leaves the last one alone
        (self.paths.root / "failures" / "2026-01-02T000000-1").mkdir()
        failures._begin.cache_clear()
        failures.directory(self.paths.root)
        self.assertEqual([name for name in kept() if "large" in (
            run / "crash-explorer/failures" / name).read_text()], [])
        self.assertEqual(len(kept()), 2 * (failures.KEPT_RECORDINGS + 1))

    def test_parts_of_a_run_that_fail_at_once(self):
        for day in ("01", "02"):
            old = self.paths.root / "failures" / f"2026-01-{day}T000000-1"
            self.write(old / "recording" / "ops", "large")
        failures._begin.cache_clear()
        both = threading.Barrier(2)

        def fail(_):
            both.wait(600)
            return failures.directory(self.paths.root)
        with mock.patch.object(failures, "thin", wraps=failures.thin) as thin, \
                concurrent.futures.ThreadPoolExecutor(2) as threads:
            self.assertEqual(len(set(threads.map(fail, range(2)))), 1)
        self.assertEqual(thin.call_count, 1)

    def test_reports_of_what_went_well(self):
        target = self.paths.root / "explorer-report"
        for text in ("first", "second"):
            place = failures.place(self.paths.root, "crash/explorer")
            self.write(place / "report.html", text)
            self.assertEqual(failures.no_failure(place, target), target)
            self.assertEqual((target / "report.html").read_text(), text)
            self.assertEqual(list((self.paths.root / "failures").iterdir()), [])
        other = failures.keep(self.paths.root, "s/t", target, "not ok 1")
        place = failures.place(self.paths.root, "crash/explorer")
        failures.no_failure(place, target)          # which left no report
        self.assertTrue((other / failures.OUTPUT).exists())

    def test_what_is_asked_for(self):
        def run(*wanted):
            done = []
            programs = {name: functools.partial(
                lambda name, names=(): done.append((name, *names)), name)
                for name in ("check", "selftests")}
            for function in cli._chosen(wanted, "dev", programs):
                function()
            return done
        self.assertEqual(run(), [("check",), ("selftests",)])
        self.assertEqual(run("dev"), [("check",), ("selftests",)])
        self.assertEqual(run("regress", "crash"), [])
        self.assertEqual(run("dev/check", "dev/test_it.ItTest"),
                         [("check",), ("selftests", "test_it.ItTest")])

    def test_programs_beside_others(self):
        meeting = threading.Barrier(3, timeout=600)

        def meet(name):
            meeting.wait()
            return name
        self.assertEqual(cli._run_beside(lambda: [meet("a")], lambda: [meet("b")],
                                         lambda: [meet("c")]), ["a", "b", "c"])
        self.assertEqual(cli._run_beside(), [])

    def test_parts_that_do_not_come_to_their_end(self):
        good = suites.Result("s/t", "m", 1, 0, 0, 1.0)
        parts = cli._chosen((), "dev", {
            "check": mock.Mock(side_effect=DevError("it fails", "do this")),
            "rules": mock.Mock(side_effect=ZeroDivisionError), "indent": lambda: good})
        first, second, third = cli._run_beside(*parts)
        self.assertEqual((first.name, first.failed, first.again, third),
                         ("dev/check", 1, ("./dev test --suite dev/check",), good))
        self.assertIn("ZeroDivisionError", second.output)
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            suites.report_failures(self.paths, [first, second, third])
        self.assertRegex(told.getvalue(), "(?s)it fails.*hint: do this")
        self.assertIn("it fails", (failures.place(self.paths.root, "dev/check")
                                   / failures.OUTPUT).read_text())

    def test_suites_and_programs(self):
        tests = {"s/t": None, "s/u": None, "r/t": None}
        self.assertEqual(suites.of_suites(tests, ["s"]), ["s/t", "s/u"])
        self.assertEqual(suites.of_suites(tests, ["s/u", "r"]), ["s/u", "r/t"])
        with self.assertRaisesRegex(DevError, "no test s/v"):
            suites.of_suites(tests, ["s/v"])


class ExclusionsTest(RepositoryCase):

    def read(self, text):
        path = self.paths.root / "exclusions.txt"
        self.write(path, text)
        return suites.read_exclusions(path, {"s/t": None, "s/u": None})

    def test_modes(self):
        self.assertEqual(
            self.read("# comment\n\ns/t: always\ns/u full_pages: only here\n"),
            {("s/t", "double_writes"): "always", ("s/t", "full_pages"): "always",
             ("s/t", "atomic_writes"): "always", ("s/u", "full_pages"): "only here"})

    def test_what_double_writes_excludes_atomic_writes_do(self):
        self.assertEqual(
            self.read("s/t double_writes: why\ns/u atomic_writes: this\n"),
            {("s/t", "double_writes"): "why", ("s/t", "atomic_writes"): "why",
             ("s/u", "atomic_writes"): "this"})

    def test_stale_or_wrong_lines(self):
        for line in ("s/gone: why\n", "s/t off: why\n", "s/t\n"):
            with self.subTest(line), self.assertRaises(DevError):
                self.read(line)


class CheckTest(RepositoryCase):

    OTHER = "diff --git a/src/other.c b/src/other.c\n--- a/src/other.c\n+++ b/src/other.c\n" \
            "@@ -1 +1 @@\n-{}\n+{}\n"
    PATCH = "patches/fixes/0001-x.patch"
    LINE = "Copyright (c) {}2025, PostgreSQL Global Development Group"
    IN_C = " * Portions " + LINE.format("1996-")
    GOOD = {
        "overlay/src/x/x.c": f'/*\n * x.c\n{IN_C}\n */\n#include "x.h"\n',
        "overlay/src/x/x.h": f"/*\n * x.h\n{IN_C}\n */\ntypedef struct X\n{{\n\tint\t\ta;\n}} X;\n",
        "overlay/src/x/meson.build": f"# {LINE.format('')}\nfiles('x.c')\n",
        "overlay/src/tools/pgindent/typedefs.list": "X\n",
        "patches/series": "fixes/0001-x.patch\n",
        "patches/fixes/cover.md": "# Fix it\n\n   1  X\n",
        PATCH: "From: A <a@example.org>\nSubject: [PATCH] X\n\n"
               "Series: fixes\nOverlay: src/*\n---\n" + OTHER.format("other", "ours"),
    }

    def complaints(self, files):
        """Return {checker: complaints} for a repository with `files`."""
        for name, text in {**self.GOOD, **files}.items():
            if text is None:
                (self.paths.repo / name).unlink(missing_ok=True)
            else:
                self.write(self.paths.repo / name, text)
        subprocess.run(["git", "init", "-q", self.paths.repo], check=True)
        outcome = check.run_all(self.paths, self.source)
        return {name: found for name, found in outcome if found}

    def test_good(self):
        self.assertEqual(self.complaints({}), {})

    def test_each_fault(self):
        mirror = "deb.debian" + ".org"
        home = "/ho" + "me/ann/x"
        faults = {
            "header_comment": {"overlay/src/x/x.c": f'#include "x.h"\n/*\n{self.IN_C}\n */\n'},
            "copyright_lines": {"overlay/src/x/x.c": self.GOOD["overlay/src/x/x.c"].replace("2025", "2026")},
            "listed_in_meson": {"overlay/src/x/meson.build": f"# {self.LINE.format('')}\nfiles('y.c')\n"},
            "header_used": {"overlay/src/x/x.c": f"/*\n * x.c\n{self.IN_C}\n */\n"},
            "typedefs_listed": {"overlay/src/tools/pgindent/typedefs.list": "Y\n"},
            "overlay_owned": {"overlay/doc/x.sgml": "x\n"},
            "series_named": {
                "patches/series": "instant/0001-x.patch\n", self.PATCH: None,
                "patches/fixes/cover.md": None,
                "patches/instant/cover.md": self.GOOD["patches/fixes/cover.md"],
                "patches/instant/0001-x.patch": self.GOOD[self.PATCH]},
            "covers_list_patches": {"patches/fixes/cover.md": "# Fix it\n\n   1  Y\n"},
            "patches_announced": {
                "overlay/doc/src/sgml/release-double-writes.sgml": "<!-- X -->\n",
                "patches/series": "fixes/0002-y.patch\nfixes/0001-x.patch\n",
                "patches/fixes/cover.md": "# Fix it\n\n   1  Y\n   2  X\n",
                "patches/fixes/0002-y.patch": "From: A <a@example.org>\nSubject: [PATCH] Y\n\n"
                "Series: fixes\n---\n"
                + self.OTHER.replace("other.c", "main.c").replace(" +1 ", ",3 +1,3 ").format(
                    "line 1", "line one") + " line 2\n line 3\n",
                self.PATCH: self.GOOD[self.PATCH].replace(
                    "Overlay: src/*", "Overlay: src/*\nOverlay: doc/*")},
            "defaults_agree": {
                "packaging/double_writes.conf": "#speed = 1\t# miles an hour\n",
                self.PATCH: self.GOOD[self.PATCH].replace(
                    "+ours", "+#speed = 2")},
            "whitespace": {"README.md": "x \n"},
            "no_places": {"README.md": f"{mirror} {home}\n"},
            "patches_apply": {"overlay/src/main.c": "x\n"},
        }
        for name, files in faults.items():
            with self.subTest(name):
                self.assertEqual(list(self.complaints(files)), [name])
                for path in files:
                    (self.paths.repo / path).unlink(missing_ok=True)


class ExplorerTest(TestCase):
    """What continuous integration makes of the explorer's results."""

    def explore(self, *runs):
        """Return the Result of runs that give these (failures, violations), and their number."""
        done = []

        def call(paths, arguments, deadline=None, place=""):
            failures, violations = runs[len(done)]
            done.append(arguments)
            output = Path(arguments[-1])
            for number in (7, 8, 9) if failures else ():
                (output / f"failures/recording-{number}/recording/base").mkdir(parents=True)
                (output / f"failures/recording-{number}/recording/ops").touch()
            output.mkdir(exist_ok=True)
            (output / "results.json").write_text(json.dumps([
                {"control": "", "states": [1, 2], "failures": failures, "error": "",
                 "violations": violations, "findings": [], "monitored": {"checks": 1},
                 "reasons": failures + violations, "again": "run --seed 8",
                 "replayable": "failures/recording-8/failure-0.json" if failures else ""},
                {"control": "R1", "states": [1], "failures": [1], "error": "", "findings": [],
                 "violations": [], "monitored": {}, "reasons": []}]))
            return int(bool(failures or violations))

        with tempfile.TemporaryDirectory() as root, mock.patch.object(crash, "call", call):
            result = crash.run_ci(SimpleNamespace(root=Path(root), repo=Path(root)), seed=7)
            self.assertIn("--seed", done[0])
            if result.failed:
                self.assertTrue((result.kept / "results.json").exists())
            return result, len(done)

    def test_silent(self):
        result, runs = self.explore(([], []))
        self.assertEqual((result.passed, result.failed, runs), (4, 0, 1))

    def test_violation_that_does_not_come_again(self):
        result, runs = self.explore(([], ["R2"]), ([], []))
        self.assertEqual((result.failed, runs), (0, 2))

    def test_violation_that_comes_again(self):
        result, runs = self.explore(([], ["R2"]), ([], ["R2"]))
        self.assertEqual((result.failed, runs), (1, 2))

    def test_each_content_has_a_seed_of_its_own(self):
        with tempfile.TemporaryDirectory() as repo:
            paths = SimpleNamespace(repo=repo)
            days = crash.ci_seed(paths)
            self.assertLess(int(days), crash.CI_SEEDS)
            commit = ["git", "-c", "user.name=t", "-c", "user.email=t", "commit", "-q",
                      "--allow-empty", "-am", "one"]
            subprocess.run(["git", "init", "-q", repo], check=True)
            subprocess.run(commit, cwd=repo, check=True)
            first = crash.ci_seed(paths)
            (Path(repo) / "file").touch()
            subprocess.run(["git", "add", "file"], cwd=repo, check=True)
            subprocess.run(commit, cwd=repo, check=True)
            self.assertNotEqual(crash.ci_seed(paths), first)
            subprocess.run(commit, cwd=repo, check=True)
            self.assertEqual(len({days, first, crash.ci_seed(paths)}), 3)

    def test_loss_counts_at_once(self):
        result, runs = self.explore(([1], ["R2"]))
        self.assertEqual((result.failed, runs), (2, 1))
        self.assertEqual(result.again, (
            "./dev crash run --seed 8",
            f"./dev crash replay {result.kept}/failures/recording-8/failure-0.json --minimise"))

    def test_logs_of_a_run_that_was_killed(self):
        def call(paths, arguments, deadline=None, place=""):
            for name in ("jobs/recording-7/server.log", "history-7-x/a.log", "programs/b.log"):
                log = paths.root / place / "pgcut-x" / name
                log.parent.mkdir(parents=True)
                log.touch()
            return 86
        with tempfile.TemporaryDirectory() as root, mock.patch.object(crash, "call", call):
            kept = crash.run_histories(SimpleNamespace(root=Path(root), repo=Path(root)), seed=7).kept
            self.assertEqual(sorted(str(log.relative_to(kept)) for log in kept.rglob("*.log")),
                             ["left/history-7-x/a.log", "left/jobs/recording-7/server.log"])
            self.assertEqual(list((Path(root) / "crash-histories").iterdir()), [])

    def test_servers_of_a_run_that_has_failed(self):
        for status, tidied in ((0, 0), (1, 1), (86, 1), (None, 1)):
            with mock.patch.object(crash.postgres, "tidy") as tidy:
                self.assertEqual(crash._ended("place", status), status)
            self.assertEqual(tidy.call_count, tidied)

    def test_restarts_have_a_deadline(self):
        with tempfile.TemporaryDirectory() as root, \
                mock.patch.object(crash.deps, "ensure"), mock.patch.object(crash.postgres, "tidy"), \
                mock.patch.object(crash.build, "bindir"), \
                mock.patch.object(crash.suites, "run_until", return_value=None) as run_until:
            self.assertEqual(crash.restarts(SimpleNamespace(root=Path(root), repo=Path(root)), 5, 1), 1)
            self.assertIsNotNone(run_until.call_args.args[0])

    def test_explorer_ends_before_its_deadline(self):
        environment = crash._environment(SimpleNamespace(repo=Path("/r")), 1000)
        self.assertLess(float(environment["PGCUT_DEADLINE"]), 1000)

    def test_what_ends_without_a_report(self):
        def call(paths, arguments, deadline=None, place=""):
            return 1
        with tempfile.TemporaryDirectory() as root, mock.patch.object(crash, "call", call):
            paths = SimpleNamespace(root=Path(root), repo=Path(root))
            for result, words in ((crash.run_ci(paths, seed=7), "run .*--seed 7"),
                                  (crash.run_histories(paths, seed=7), "history .*--seed 7"),
                                  (crash.run_history_controls(paths), "history --control quick")):
                self.assertEqual(result.failed, 1)
                self.assertRegex(" ".join(result.again), f"^./dev crash {words}$")


class TrialsTest(RepositoryCase):
    """What `./dev tools` keeps of its trials."""

    def test_each_row_has_the_commit_that_was_built_for_it(self):
        """That of a row that is not tried again stays; a commit in between changes nothing."""
        stamps = iter(("11111111", "22222222-dirty"))
        trials = {name: SimpleNamespace(packages=(), kinds=kinds) for name, kinds in
                  (("one", ("test",)), ("two", ("release", "test")), ("three", ("test",)))}
        kept = self.paths.repo / tools.TRIED
        self.write(kept, json.dumps({"four": {"commit": "44444444"}}))
        with mock.patch.object(tools, "TRIALS", trials), \
                mock.patch.object(tools, "_check_that_loss_is_noticed"), \
                mock.patch.object(tools, "_one", lambda paths, bindir, name: {"of": bindir}), \
                mock.patch.object(tools.deps, "ensure"), \
                mock.patch.object(tools.worktree, "stamp", lambda *_: next(stamps)):
            tools.check(self.paths, (), lambda kind: kind)
        self.assertEqual(json.loads(kept.read_text()), {
            "one": {"of": "test", "commit": "11111111"},
            "two": {"of": "release", "commit": "22222222-dirty"},
            "three": {"of": "test", "commit": "11111111"},
            "four": {"commit": "44444444"}})
