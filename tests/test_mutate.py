"""Mutations, generated documents, figures, progress."""

import io
import json
import subprocess
import unittest
from unittest import mock

from fixture import RepositoryCase

from bench import figures, summary
from common import progress
from common.base import DevError
from devtools import build, check, fit, generate, mutate, suites, worktree

DIFF = """\
diff --git a/src/main.c b/src/main.c
--- a/src/main.c
+++ b/src/main.c
@@ -19,3 +19,3 @@
 line 19
-line 20
+line twenty
 line 21
"""

MUTATION = f"Rule: R7\nFound by: x/001_a, explorer:no-sync\nWhat: a sentence\n\n{DIFF}"
CONTROLS = 'CONTROLS = (\n    Control("no-sync", "R3",\n            "nothing is synced"),\n)\n'


class MutationTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.write(self.paths.overlay / "src/x/t/001_a.pl", "ok\n")
        self.write(self.paths.repo / "crash/pgcut/controls.py", CONTROLS)

    def add(self, text, name="broken"):
        self.write(mutate.directory(self.paths) / f"{name}.patch", text)

    def complaints(self):
        return fit.complaints(self.paths, self.source)[1]

    def test_parts(self):
        found = mutate.decode("broken", MUTATION.encode())
        self.assertEqual((found.rule, found.tests, found.controls, found.what),
                         ("R7", ("x/001_a",), ("no-sync",), "a sentence"))
        for text in (MUTATION.replace("Rule", "Role"), "Rule: R7\n\n" + DIFF,
                     MUTATION.partition("diff")[0], MUTATION.replace("What: a", "a")):
            with self.subTest(text), self.assertRaises(DevError):
                mutate.decode("broken", text.encode())

    def test_that_fits(self):
        self.add(MUTATION)
        self.assertEqual(self.complaints(), [])

    def test_of_pg_regress(self):
        self.write(self.paths.overlay / "contrib/y/sql/y.sql", "SELECT 1;\n")
        self.add(MUTATION.replace("001_a", "001_a, y/regress"))
        self.assertEqual(self.complaints(), [])

    def test_that_does_not(self):
        for text, words in (
                (MUTATION.replace("line 20", "line 2"), "does not apply"),
                (MUTATION.replace("001_a", "002_a"), "x/002_a, which does not exist"),
                (MUTATION.replace("no-sync", "sync"), "explorer:sync, which does not exist")):
            with self.subTest(words):
                self.add(text)
                complaint, = self.complaints()
                self.assertIn(words, complaint)

    def test_controls_that_histories_show(self):
        text = CONTROLS + 'HISTORY_CONTROLS = (\n    Control("clean", "R12", "it looks so"),\n)\n'
        self.assertEqual(set(mutate.controls(text)), {"no-sync", "clean"})
        self.assertEqual(mutate.history_controls(text), {"clean"})

    def test_unknown_name(self):
        with self.assertRaises(DevError):
            mutate.read(self.paths, ["other"])

    def test_found_if_all_notice(self):
        self.assertTrue(mutate.Outcome("m", {"x/a": "died", "x/b": "server starts"}).found)
        for outcome in (mutate.Outcome("m", {"x/a": "", "x/b": "server starts"}),
                        mutate.Outcome("m", {"x/a": ""}), mutate.Outcome("m", {}),
                        mutate.Outcome("m", {"x/a": "died"}, "the patch does not apply")):
            self.assertFalse(outcome.found)
            self.assertEqual(mutate.conclude([outcome]), 1)

    def test_complaint(self):
        log = self.paths.root / "log"
        self.write(log / "log/node.log",
                   'TRAP: failed Assert("a == f(b)"), File: "x.c", Line: 1\n')

        def result(failed, output):
            return suites.Result("x/a", "m", 1, failed, 0, 1.0, log, output)
        for failed, output, words in ((0, "ok 1 - a\n", ""), (1, "ok 1 - a\nnot ok 2 - b\n", "b"),
                                      (1, "ok 1 - a\n", 'Assert("a == f(b)")')):
            self.assertEqual(mutate.complaint(result(failed, output)), words)

    def test_seen_until_the_patch_changes(self):
        self.add(MUTATION)
        one, = mutate.read(self.paths)
        mutate.record(self.paths, one, mutate.Outcome("broken", {"x/001_a": "lost"}), "c")
        self.assertIn("001_a: lost", mutate.witness(mutate.seen(self.paths), one))
        self.add(MUTATION.replace("twenty", "XX"))
        self.assertEqual(mutate.witness(mutate.seen(self.paths), *mutate.read(self.paths)), "")

    def test_list_says_what_was_seen(self):
        self.add(MUTATION)
        one, = mutate.read(self.paths)
        self.assertIn("not tried", mutate.listing([one], mutate.seen(self.paths)))
        mutate.record(self.paths, one, mutate.Outcome("broken", {"x/001_a": "lost"}), "c")
        said = mutate.listing([one], mutate.seen(self.paths))
        self.assertIn("x/001_a, explorer:no-sync: 001_a: lost", said)

    def test_seen_names_what_exists(self):
        self.write(mutate.directory(self.paths) / mutate.SEEN, '{"gone": {}}')
        subprocess.run(["git", "init", "-q", self.paths.repo], check=True)
        complaint, = dict(check.run_all(self.paths, self.source))["mutations_remembered"]
        self.assertIn("gone", complaint)

    def test_tries_until_the_patch_changes(self):
        tries = [{"seed": 1}, {"seed": 2, "patch": "old"}, {"seed": 3, "patch": "new"}]
        self.assertEqual([one["seed"] for one in generate.current(tries, "new")], [1, 3])

    def test_order_of_rules(self):
        rules = ["exemption", "R10", "R9a", "R9", "R2"]
        self.assertEqual(sorted(rules, key=mutate.rank), ["R2", "R9", "R9a", "R10", "exemption"])


SOURCE = '''\
#include "x.h"
#include "y.h"

int
f(int i)
{
	return g(i) + h(i);
}
'''

COMPILED = """\
Rule: R7
Found by: x/001_a
What: a sentence

--- a/src/x/x.c
+++ b/src/x/x.c
@@ -6,3 +6,3 @@
 {
-	return g(i) + h(i);
+	return g(i);
 }
"""

HEADER = """\
Rule: R7
Found by: x/001_a
What: a sentence

--- a/src/include/x.h
+++ b/src/include/x.h
@@ -1 +1 @@
-extern int g(int i);
+static inline int g(int i) { return i; }
"""


class CompileTest(RepositoryCase):
    """Mutations of a source with a header beside it and one in src/include, of which there is a build."""

    def setUp(self):
        super().setUp()
        for name, text in {"src/x/x.c": SOURCE, "src/x/y.h": "extern int h(int i);\n",
                           "src/include/x.h": "extern int g(int i);\n", "src/x/z.c": "int z;\n",
                           "src/x/t/001_a.pl": "ok\n"}.items():
            self.write(self.paths.overlay / name, text)
        self.write(self.paths.repo / "crash/pgcut/controls.py", CONTROLS)
        worktree.import_(self.paths, self.source)
        build_ = self.paths.build("test")
        self.write(build_ / "compile_commands.json", json.dumps([
            {"directory": str(build_), "file": f"../../work/src/x/{name}.c",
             "command": f"cc '-DA=\"b c\"' -I../../work/src/include -Wall -MD -MQ {name}.o -MF "
                        f"{name}.d -o {name}.o -c ../../work/src/x/{name}.c"} for name in ("x",)]))

    def complaints(self, text):
        self.write(mutate.directory(self.paths) / "broken.patch", text)
        return fit.complaints(self.paths, self.source)[1]

    def test_that_compiles(self):
        for text in (COMPILED, HEADER):
            self.assertEqual(self.complaints(text), [])
        self.assertEqual([path.name for path in self.paths.build("test").iterdir()],
                         ["compile_commands.json"])

    def test_that_does_not(self):
        for text, where, words in (
                (COMPILED.replace("+\treturn g(i)", "+\treturn gone"), "src/x/x.c:7:", "gone"),
                (COMPILED.replace("+\treturn g(i)", "+\treturn k(i)"), "src/x/x.c:7:", "k"),
                (HEADER.replace("return i", "return gone"), "src/include/x.h:1:", "gone")):
            with self.subTest(text):
                complaint, = self.complaints(text)
                self.assertRegex(complaint, f"^mutation broken does not compile: {where}.*{words}")

    def test_that_nothing_compiles(self):
        complaint, = self.complaints(
            "Rule: R7\nFound by: x/001_a\nWhat: a sentence\n\n"
            "--- a/src/x/z.c\n+++ b/src/x/z.c\n@@ -1 +1 @@\n-int z;\n+long z;\n")
        self.assertIn("src/x/z.c, which the test build does not compile", complaint)

    def test_not_with_headers_that_are_not_those_of_the_commit(self):
        self.write(self.paths.overlay / "src/x/y.h", "extern int h(int i, int j);\n")
        self.assertEqual(self.complaints(COMPILED.replace("g(i);\n }", "gone;\n }")), [])

    def test_again_when_something_has_changed(self):
        def tried():
            with mock.patch.object(fit, "_misfit", return_value="") as misfit:
                self.complaints(COMPILED)
            return misfit.called
        self.assertEqual([tried(), tried()], [True, False])
        for name, text in (("src/x/y.h", "extern int h(int j);\n"),
                           ("src/x/x.c", SOURCE + "\n")):
            self.write(self.paths.overlay / name, text)
            worktree.import_(self.paths, self.source)
            self.assertEqual([tried(), tried()], [True, False])


class FillTest(unittest.TestCase):

    TEXT = "a\n<!-- generated: x -->\nold\n<!-- end of x -->\nb\n"

    def test_between_the_marks_only(self):
        self.assertEqual(generate.fill(self.TEXT, "x", "new\n"),
                         "a\n<!-- generated: x -->\n\nnew\n\n<!-- end of x -->\nb\n")

    def test_marks_are_needed_once(self):
        for text in ("", self.TEXT * 2):
            with self.assertRaises(DevError):
                generate.fill(text, "x", "new\n")


class FiguresTest(RepositoryCase):

    def add(self, name, started, commit=None, wal=100, storage="memory", arms=("double_writes",
            "stock-full_pages"), load=1.5, factor=0.1):
        meta = {"suite": "pgbench", "storage": storage, "started": started, "factor": factor,
                "runs": 1, "seconds": 5, "file_system": "ext4",
                "machine": {"processor": "2 x P", "memory": "1 MB",
                            **({"commit": commit, "commit dirty": "no"} if commit else {})},
                "cases": {self.CASE: {"data": "pgbench-2", "min_wal_size": "32MB",
                                      "max_wal_size": "32MB"}}}
        runs = [{"case": self.CASE, "arm": arm, "load_average": load, "points": [
            {"name": "tps", "value": 9.0, "unit": "transactions/s", "higher_is_better": True,
             "operations": 10, "counts": {"wal.wal_bytes": wal}}]} for arm in arms]
        self.write(self.paths.repo / figures.RESULTS / f"{name}.json",
                   summary.text(summary.of(meta, runs)))

    CASE = figures.PGBENCH[1]

    def test_without_a_commit_nothing_is_shown(self):
        self.add("old", "2026-01-01")
        self.assertIn("no figure is shown", figures.headline(self.paths.repo))
        for text in (figures.page(self.paths.repo), figures.everything(self.paths.repo)):
            self.assertNotIn("| ", text)
        self.assertEqual(figures.names_of_picture(self.paths.repo), "")
        self.assertEqual(figures.unused(self.paths.repo, []), ["old"])

    def test_newest_run_with_a_commit(self):
        self.add("a", "2026-01-01", "c" * 40, wal=100)
        self.add("b", "2026-01-02", "d" * 40, wal=200)
        self.add("c", "2026-01-03", wal=300)
        for text in (figures.page(self.paths.repo), figures.everything(self.paths.repo)):
            self.assertIn("commit dddddddddd", text)
            self.assertNotIn("cccccccccc", text)
        # 20 bytes for each of 10 operations
        self.assertIn("| 9 | 9 | 20 | 0 |", figures.everything(self.paths.repo).replace(
            "9 .. 9", "9"))
        self.assertIn("**missed**", figures.everything(self.paths.repo))
        self.assertEqual(figures.unused(self.paths.repo, []), ["a", "c"])
        self.assertEqual(figures.unused(self.paths.repo, ["[x](../bench/results/a.json)"]), ["c"])

    def test_a_commit_that_was_amended_since(self):
        self.add("a", "2026-01-01", "c" * 40)
        run = figures.load(self.paths.repo)[0]
        self.assertEqual(figures.commit(run), "commit cccccccccc")
        run.meta["machine"]["commit now"] = "d" * 40
        self.assertEqual(figures.commit(run), "commit cccccccccc (now dddddddddd)")

    def test_page_shows_bars_that_were_missed_as_room_allows(self):
        self.add("a", "2026-01-01", "c" * 40)
        text = figures.page(self.paths.repo)
        self.assertIn("0 bars were reached, 0 missed by less than the spread of the runs, 1 missed", text)
        self.assertIn("**1.000**", text)
        self.assertIn("1 of these are not shown", figures._missed(figures.load(self.paths.repo), 0))

    def test_an_arm_of_another_run_has_its_letter(self):
        self.add("a", "2026-01-01", "c" * 40, storage="rented", arms=("off",))
        self.add("b", "2026-01-02", "c" * 40, storage="rented")
        row = "| transactions a second | 9 | 9 (b) | 9 | a |"
        self.assertIn(row, figures.headline(self.paths.repo))
        # Not one of other size, or of a machine that had much else to do.
        for options in ({"load": 9.0}, {"factor": 1.0}):
            self.add("a", "2026-01-01", "c" * 40, storage="rented", arms=("off",), **options)
            self.assertNotIn("(b)", figures.headline(self.paths.repo))


class Clock:
    """Time that passes when it is told to."""

    now = 0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):

    def isatty(self):
        return True


class ProgressTest(RepositoryCase):

    def show(self, stream, clock):
        with progress.Progress("compiling", 200, stream, clock) as shown:
            for done in range(0, 101, 10):
                clock.now = done
                shown.step(done)
                if done == 50:
                    shown.write("warning\n")
        return stream.getvalue()

    def test_one_line_on_a_terminal(self):
        text = self.show(Terminal(), Clock())
        self.assertIn("\r\033[Kcompiling:  25 %, 2 min 30 s left", text)
        self.assertIn("\r\033[Kwarning\n\r\033[Kcompiling:  25 %", text)
        self.assertTrue(text.endswith("\r\033[K"))

    def test_plain_elsewhere(self):
        self.assertEqual(self.show(io.StringIO(), Clock()), "warning\n")

    def test_duration(self):
        self.assertEqual([progress.duration(seconds) for seconds in (59.4, 61, 3720)],
                         ["59 s", "1 min 01 s", "1 h 02 min"])


class CompilerTest(RepositoryCase):

    def test_ccache_is_not_in_the_name(self):
        env = build.compiler_env(self.paths)
        self.assertEqual(env["CC"], "cc")
        self.assertTrue(env["PATH"].startswith(build.CCACHE_LINKS))
