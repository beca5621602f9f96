"""Review series, counting of results, the gate."""

import fcntl
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import TestCase, mock

from devtools import check, crash, series, suites
from devtools.base import DevError

from fixture import RepositoryCase


class SeriesTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.import_()
        self.commit("Hook", {"src/main.c": self.edited_main(), "src/a/a.c": "a\n"}, "Body.")
        self.commit("Docs", {"src/other.c": "other too\n", "doc/b.sgml": "b\n"})
        self.export()
        self.target = self.paths.root / "out"

    def groups(self, text):
        self.write(self.paths.patches / "groups", text)

    def test_patches_bring_their_files(self):
        self.groups("[Add docs]\nwhy = Because.\npatches = 0002-docs.patch\noverlay = doc/*\n"
                    "[Add hook]\npatches = 0001-hook.patch\noverlay = src/a/*\n")
        series.write(self.paths, self.source, self.target)
        names = sorted(path.name for path in self.target.iterdir())
        self.assertEqual(names, ["0001-Add-docs.patch", "0002-Add-hook.patch"])
        tree = self.tree()
        self.git("checkout", "-q", "-B", "review", "upstream")
        self.git("am", "-q", *(str(self.target / name) for name in names))
        self.assertEqual(self.tree(), tree)
        self.assertIn("Because.", (self.target / names[0]).read_text())
        self.assertIn("Body.", (self.target / names[1]).read_text())

    def test_everything_belongs_somewhere(self):
        self.groups("[Add hook]\npatches = *-hook.patch\noverlay = src/*\n"
                    "[Again]\noverlay = src/a/*\n")
        with self.assertRaises(DevError) as caught:
            series.write(self.paths, self.source, self.target)
        for words in ("patches/0002-docs.patch is in no section",
                      "overlay/doc/b.sgml is in no section",
                      "overlay/src/a/a.c is in several: Add hook, Again"):
            self.assertIn(words, str(caught.exception))

    def test_pattern_must_match_a_patch(self):
        self.groups("[Add hook]\npatches = 0009-*.patch\noverlay = src/*\n")
        with self.assertRaises(DevError) as caught:
            series.write(self.paths, self.source, self.target)
        self.assertIn("0009-*.patch matches no patch", str(caught.exception))


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
        with mock.patch.object(suites, "PYTHON_TEST_SECONDS", 0.5):
            return suites.run_python_tests("it", sys.executable, self.paths.repo / "tests", {},
                                           deadline)

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
        with suites.alone(self.paths):
            with open(self.paths.root / "tests.lock") as file, self.assertRaises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suites.alone(self.paths):
            pass


class ExclusionsTest(RepositoryCase):

    def read(self, text):
        path = self.paths.root / "exclusions.txt"
        self.write(path, text)
        return suites.read_exclusions(path, {"s/t": None, "s/u": None})

    def test_modes(self):
        self.assertEqual(
            self.read("# comment\n\ns/t: always\ns/u full_pages: only here\n"),
            {("s/t", "double_writes"): "always", ("s/t", "full_pages"): "always",
             ("s/u", "full_pages"): "only here"})

    def test_stale_or_wrong_lines(self):
        for line in ("s/gone: why\n", "s/t off: why\n", "s/t\n"):
            with self.subTest(line), self.assertRaises(DevError):
                self.read(line)


class CheckTest(RepositoryCase):

    GOOD = {
        "overlay/src/x/x.c": '/*\n * x.c\n */\n#include "x.h"\n',
        "overlay/src/x/x.h": "/*\n * x.h\n */\ntypedef struct X\n{\n\tint\t\ta;\n} X;\n",
        "overlay/src/x/meson.build": "files('x.c')\n",
        "overlay/src/tools/pgindent/typedefs.list": "X\n",
    }

    def complaints(self, files):
        """Return {checker: complaints} for a repository with `files`."""
        for name, text in {**self.GOOD, **files}.items():
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
            "header_comment": {"overlay/src/x/x.c": '#include "x.h"\n'},
            "listed_in_meson": {"overlay/src/x/meson.build": "files('y.c')\n"},
            "header_used": {"overlay/src/x/x.c": "/*\n * x.c\n */\n"},
            "typedefs_listed": {"overlay/src/tools/pgindent/typedefs.list": "Y\n"},
            "review_series": {"patches/groups": "[Nothing]\nwhy = No file is named.\n"},
            "whitespace": {"README.md": "x \n"},
            "no_places": {"README.md": f"{mirror} {home}\n"},
            "patches_apply": {"overlay/src/main.c": "x\n"},
        }
        for name, files in faults.items():
            with self.subTest(name):
                self.assertEqual(list(self.complaints(files)), [name])
                for path in files:
                    (self.paths.repo / path).unlink()


class ExplorerTest(TestCase):
    """What continuous integration makes of the explorer's results."""

    def explore(self, *runs):
        """Return the Result of runs that give these (failures, violations), and their number."""
        done = []

        def call(paths, arguments, deadline=None):
            failures, violations = runs[len(done)]
            done.append(arguments)
            output = Path(arguments[-1])
            output.mkdir(exist_ok=True)
            (output / "results.json").write_text(json.dumps([
                {"control": "", "states": [1, 2], "failures": failures, "error": "",
                 "violations": violations, "monitored": {"checks": 1}},
                {"control": "R1", "states": [1], "failures": [1], "error": "",
                 "violations": [], "monitored": {}}]))
            return int(bool(failures or violations))

        with tempfile.TemporaryDirectory() as root, mock.patch.object(crash, "call", call):
            return crash.run_ci(SimpleNamespace(root=Path(root))), len(done)

    def test_silent(self):
        result, runs = self.explore(([], []))
        self.assertEqual((result.passed, result.failed, runs), (4, 0, 1))

    def test_violation_that_does_not_come_again(self):
        result, runs = self.explore(([], ["R2"]), ([], []))
        self.assertEqual((result.failed, runs), (0, 2))

    def test_violation_that_comes_again(self):
        result, runs = self.explore(([], ["R2"]), ([], ["R2"]))
        self.assertEqual((result.failed, runs), (1, 2))

    def test_loss_counts_at_once(self):
        result, runs = self.explore(([1], ["R2"]))
        self.assertEqual((result.failed, runs), (2, 1))
