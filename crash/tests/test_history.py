"""Tests of histories: what is legal, how they are drawn, and how they get shorter."""

import contextlib
import io
import itertools
import json
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from pgcut import (
    __main__,
    controls,
    drawing,
    histories,
    history,
    judged,
    limits,
    machine,
    matrix,
    play,
    recipes,
    server,
    steps,
    store,
)
from pgcut.history import History, Step
from pgcut.ledger import Ledger
from pgcut.world import MODE, MODES

SETTINGS = {MODE: "double_writes", "wal_log_hints": "on", "restart_after_crash": "off"}
START = {"program": "ours", "point": "", "then": ""}


def of(*wanted, settings=SETTINGS):
    """Return a history of (do, server, args) or Steps."""
    made = [step if isinstance(step, Step) else Step(*step) for step in wanted]
    return History(1, settings, False, tuple(made))


def start(server="a", **args):
    return Step("start", server, {**START, **args})


def stop(how, server="a"):
    return Step("stop", server, {"how": how})


def cut(fault="torn-pages", server="a"):
    return Step("cut", server, {"fault": fault, "seed": 1, "unit": 512})


def edit(mode, server="a"):
    return Step("edit", server, {"settings": {MODE: mode}})


def load(server="a"):
    return {"on": server, "seed": 1, "kinds": {"hint": 1}, "transactions": 1, "acks": 0,
            "readers": False}


class SanitiserTest(unittest.TestCase):
    def assert_left_out(self, steps_given, *texts):
        kept, left_out = history.sanitised(of(*steps_given))
        self.assertEqual(len(left_out), len(texts), left_out)
        for text, expected in zip(left_out, texts):
            self.assertIn(expected, text)
        self.assertEqual(len(kept.steps), len(steps_given) - len(texts))

    def test_life(self):
        self.assert_left_out([start(), stop("fast"), start(), stop("kill"), cut(), start()])

    def test_start_of_what_runs(self):
        self.assert_left_out([start(), start()], "a is up")

    def test_what_a_missing_step_leaves(self):
        self.assert_left_out([stop("fast"), start(), stop("fast")], "a is clean")

    def test_stock_after_a_crash(self):
        self.assert_left_out([start(), stop("kill"), start(program="stock")],
                             "stopped cleanly")
        self.assert_left_out([start(), stop("fast"), start(program="stock")])

    def test_torn_pages_without_protection(self):
        self.assert_left_out([edit("off"), start(), cut()], "nothing protects")
        self.assert_left_out([edit("off"), start(), cut("all-lost")])

    def test_protection_begins_with_a_checkpoint(self):
        reload = [Step("reload", "a", {"scope": "server", "mode": "full_pages"})]
        checkpoint = [Step("checkpoint", "a")]
        self.assert_left_out([edit("off"), start(), *reload, cut()], "nothing protects")
        self.assert_left_out([edit("off"), start(), *reload, *checkpoint, cut()])

    def test_protection_that_a_crash_has_not_begun(self):
        self.assert_left_out([edit("off"), start(), stop("kill"), edit("full_pages"), start(),
                              cut()], "nothing protects")
        self.assert_left_out([edit("off"), start(), stop("fast"), edit("full_pages"), start(),
                              cut()])

    def test_second_cut_with_nothing_in_between(self):
        self.assert_left_out([start(), cut(), cut()], "has written nothing")

    def test_illegal_on_purpose(self):
        twice = Step("start", "a", START, illegal=True)
        self.assert_left_out([start(), twice])
        self.assert_left_out([twice, start()], "it is legal here")
        absent = Step("tool", "b", {"tool": "checksums-check"}, illegal=True)
        self.assert_left_out([start(), absent], "it cannot be tried here")

    def test_illegal_step_changes_nothing(self):
        refused = Step("promote", "a", {}, illegal=True)
        world = of().world()
        steps.apply(world, start())
        before = world.copy()
        steps.apply(world, refused)
        self.assertEqual(world, before)

    def test_load_needs_a_primary(self):
        work = Step("work", "a", {"load": load("b")})
        self.assert_left_out([start(), work], "no primary b")

    def follow(self, server="b", source="a"):
        return Step("follow", server, {"of": source, "mode": "full_pages"})

    def test_standby(self):
        self.assert_left_out([start(), self.follow(), Step("promote", "b"),
                              Step("promote", "b")], "b is a primary")

    def rewind(self, target, source):
        return Step("rewind", target, {"source": source, "mode": "double_writes"})

    def test_rewind_after_promotion(self):
        self.assert_left_out([start(), self.follow(), Step("promote", "b"), stop("fast"),
                              self.rewind("a", "b"), start()])

    def test_rewind_of_timelines_with_one_number(self):
        self.assert_left_out([start(), self.follow("b"), self.follow("c"), Step("promote", "b"),
                              Step("promote", "c"), stop("fast", "b"), self.rewind("b", "c")],
                             "one number")

    def test_rewound_server_needs_its_source(self):
        self.assert_left_out([start(), self.follow(), Step("promote", "b"), stop("fast"),
                              self.rewind("a", "b"), stop("fast", "b"), start()],
                             "it lacks WAL")

    def test_old_log(self):
        backup = Step("backup", "a", {"name": "x"})
        restore = Step("restore", "a", {"backup": "x", "mode": "full_pages", "log": "stale"})
        self.assert_left_out([start(), backup, stop("kill"), restore], "no old log")
        self.assert_left_out([start(), backup, stop("kill"), start(), stop("kill"), restore])


    def test_points_in_time(self):
        backup = Step("backup", "a", {"name": "x", "on": ""})
        late = Step("backup", "a", {"name": "y", "on": ""})
        point = Step("point", "a", {"name": "p"})

        def recover(name):
            return Step("recover", "b", {"point": "p", "backup": name, "mode": "off", "fault": ""})

        archived = {**SETTINGS, "archive_mode": "on"}
        kept = history.sanitised(of(start(), backup, point, late, recover("x"),
                                    Step("point", "b", {"name": "q"}), settings=archived))
        self.assertEqual(kept[1], [])
        _, left_out = history.sanitised(of(start(), backup, point, late, recover("y"),
                                           settings=archived))
        self.assertIn("y is not from before p", left_out[0])
        self.assert_left_out([start(), point], "not archived")

    def test_backup_on_a_backup(self):
        def backup(name, on):
            return Step("backup", "a", {"name": name, "on": on})

        summarized = {**SETTINGS, "summarize_wal": "on"}
        steps_given = [start(), backup("x", ""), stop("fast"), start(), backup("y", "x")]
        self.assertEqual(history.sanitised(of(*steps_given, settings=summarized))[1], [])
        self.assert_left_out(steps_given, "not summarized")
        checksums = Step("tool", "a", {"tool": "checksums-enable"})
        _, left_out = history.sanitised(of(*steps_given[:3], checksums, *steps_given[3:],
                                           settings=summarized))
        self.assertIn("no backup of this server", left_out[0])

    def test_files_that_fail_and_a_server_that_goes_on(self):
        def faulty(*faults):
            return Step("faulty", "a", {"faults": list(faults), "then": "goes on", "load": load()})

        self.assert_left_out([start(), faulty("write:base/:1:2:5"), stop("fast")])
        self.assert_left_out([start(), faulty("write:base/:1:2:5", "sync:base/:1:2:5")], "ends")

    def test_scripts_that_end_with_the_server(self):
        def script(name, then):
            return Step("script", "a", {"name": name, "seed": 1, "then": then})

        self.assert_left_out([start(), script("half-dropped", "kill"), start()])
        self.assert_left_out([start(), script("half-dropped", "")], "it ends with the server")
        self.assert_left_out([start(), script("failed-home-write", ""), stop("fast")])


class RecipeTest(unittest.TestCase):
    def test_each_can_be_followed(self):
        for recipe in recipes.RECIPES:
            for seed in range(10):
                drawn = drawing.draw(seed, recipe)
                self.assertEqual(history.sanitised(drawn), (drawn, []), recipe.name)
                self.assertEqual(History.from_json(drawn.as_json()), drawn)
                kinds = iter(step.do for step in drawn.steps)
                for _, kind, _ in recipe.steps:
                    self.assertIn(kind, kinds, recipe.name)

    def test_what_a_recipe_says_is_so(self):
        recipe = recipes.named("converted-primary")
        for seed in range(10):
            drawn = drawing.draw(seed, recipe)
            self.assertEqual((drawn.settings[MODE], drawn.checksums), ("full_pages", False))
            edits = [step for step in drawn.steps if step.do == "edit"]
            self.assertEqual(edits[0]["settings"], {MODE: "double_writes"})

    def test_each_control_has_a_recipe(self):
        for control in controls.HISTORY_CONTROLS:
            self.assertEqual(recipes.named(control.recipe).name, control.recipe)


class OwnerTest(unittest.TestCase):
    TEXT = ("System identifier: 1\nPG_VERSION: inode 7 changed 12.000000034\n"
            "Marker: inode {} changed 5.000000000\nNumber: 9\n")

    def told(self, marker, known):
        with tempfile.TemporaryDirectory() as place:
            owner = Path(place) / "owner"
            owner.write_text(self.TEXT.format(marker))
            store.identified(owner, known)
            return owner.read_text().splitlines()

    def test_files_that_are_the_same(self):
        told = self.told(8, {7: "inode 70 changed 1.000000002", 8: "inode 80 changed 3.000000004"})
        self.assertEqual(told[1:3], ["PG_VERSION: inode 70 changed 1.000000002",
                                     "Marker: inode 80 changed 3.000000004"])
        self.assertEqual(told[3], "Number: 9")

    def test_copies_are_others(self):
        told = self.told(8, {})
        self.assertEqual(told[1], f"PG_VERSION: inode {7 + (1 << 40)} changed 12.000000034")

    def test_no_marker_stays_none(self):
        self.assertIn("Marker: inode 0 changed", self.told(0, {})[2])


class DrawingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.histories = [drawing.draw(seed) for seed in range(1800)]

    def test_same_seed_same_history(self):
        self.assertEqual(drawing.draw(7), self.histories[7])

    def test_json(self):
        for one in self.histories[:50]:
            self.assertEqual(History.from_json(one.as_json()), one)

    def test_legal(self):
        for one in self.histories:
            self.assertEqual(history.sanitised(one), (one, []))

    def test_each_kind_of_step_and_each_pair(self):
        """Whatever can follow each other on one server does, among so many."""
        single, pairs = drawing.covered(self.histories)
        self.assertLessEqual({name.split()[0].split(":")[0] for name in single},
                             set(steps.KINDS))
        self.assertEqual({step.do for one in self.histories for step in one.steps},
                         set(steps.KINDS))
        common = set(drawing.WEIGHTS) - {"rewind", "restore", "promote", "follow", "recover",
                                         "point", "clock", "script"}
        missing = [(first, then) for first, then in itertools.product(common, repeat=2)
                   if (first, then) not in pairs and possible(first, then)]
        self.assertEqual(missing, [])

    def test_pairs_of_settings(self):
        names = [MODE, *drawing.DRAWN]
        for one, other in itertools.combinations(names, 2):
            values = drawing.DRAWN
            wanted = itertools.product(values.get(one, MODES),
                                       values.get(other, MODES))
            found = {(item.settings[one], item.settings[other]) for item in self.histories}
            self.assertLessEqual(set(wanted), found, (one, other))

    def test_none_loads_what_stock_lacks(self):
        for one in self.histories:
            self.assertNotIn("shared_preload_libraries", one.settings)

    def test_with_atomic_writes(self):
        for one in map(history.with_atomic_writes, self.histories[:200]):
            self.assertNotIn("double_writes", one.as_json())
            self.assertLessEqual(set(matrix.PRETENDED), set(one.settings))
            self.assertTrue(all(name.startswith(machine.OURS) for name in matrix.PRETENDED))
            self.assertEqual(history.sanitised(one), (one, []))

    def test_with_atomic_writes_in_some_places(self):
        both = 0
        for drawn in self.histories[:200]:
            one = history.with_atomic_writes(drawn, 0.5)
            both += "double_writes" in one.as_json() and "atomic_writes" in one.as_json()
            self.assertEqual(one.as_json(), history.with_atomic_writes(drawn, 0.5).as_json())
            self.assertEqual(history.sanitised(one), (one, []))
        self.assertGreater(both, 25)

    def test_share_of_illegal_steps(self):
        made = [step for one in self.histories for step in one.steps]
        share = sum(step.illegal for step in made) / len(made)
        self.assertGreater(share, 0.05)
        self.assertLess(share, 0.15)


# The states that a kind needs, and those that it may leave.
UP, DOWN = {"up"}, {"clean", "crashed"}
NEEDS = {"start": DOWN, "single": DOWN, "edit": DOWN, "tool": DOWN, "follow": DOWN,
         "cut": UP | DOWN}
LEAVES = {"start": UP | DOWN, "single": DOWN, "stop": DOWN, "cut": DOWN, "edit": DOWN,
          "tool": DOWN, "faulty": DOWN, "kill": UP | DOWN}


def possible(first, then):
    """Say whether a kind of step can come right after another one on one server."""
    if (first, then) == ("cut", "cut"):
        return False
    return bool(LEAVES.get(first, UP) & NEEDS.get(then, UP))


class ShrinkingTest(unittest.TestCase):
    def test_the_steps_that_matter_remain(self):
        culprits = {"edit", "cut"}

        def fails(one):
            return culprits <= {step.do for step in one.steps}

        long = of(start(), stop("fast"), start(), stop("kill"), edit("full_pages"), start(),
                  Step("checkpoint", "a"), cut(), start(), stop("fast"))
        found = history.shrunk(long, fails)
        self.assertEqual([step.do for step in found.steps], ["edit", "start", "cut"])

    def test_what_rests_on_a_step_goes_with_it(self):
        long = of(start(), Step("backup", "a", {"name": "x"}), stop("kill"),
                  Step("restore", "a", {"backup": "x", "mode": "full_pages", "log": "none"}),
                  start())
        found = history.shrunk(long, lambda one: any(step.do == "start" for step in one.steps))
        self.assertEqual([step.do for step in found.steps], ["start"])


def event(what, n, t):
    return {"t": t, "client": "c", "what": what, "n": n}


class AlarmTest(unittest.TestCase):
    def alarms(self, message):
        return machine.alarming(f"2026-01-01 00:00:00 UTC [7] {message}\n")

    def test_commands_that_the_postmaster_ends(self):
        for text in ("was terminated by signal 3: Quit", "failed with exit code 131"):
            self.assertEqual(self.alarms(f"XX000 FATAL:  archive command {text}"), [])

    def test_other_errors(self):
        for text in ("was terminated by signal 11: Segmentation fault",
                     "failed with exit code 139", "failed with exit code 1310"):
            self.assertEqual(len(self.alarms(f"XX000 FATAL:  archive command {text}")), 1)
        self.assertEqual(len(self.alarms("58P01 ERROR:  could not open file")), 1)
        self.assertEqual(len(self.alarms("XX000 ERROR:  unexpected chunk")), 1)
        self.assertEqual(self.alarms("XX000 ERROR:  no unpinned buffers available"), [])
        self.assertEqual(self.alarms("22012 ERROR:  division by zero"), [])


class CrashTest(unittest.TestCase):
    """Crashes are findings, whatever the server is excused of, and no refusals."""

    def machine(self, *lines, excused=False):
        holder = tempfile.TemporaryDirectory(prefix="pgcut-machine-")
        self.addCleanup(holder.cleanup)
        one = machine.Machine("a", mock.Mock(), Path(holder.name))
        self.addCleanup(one.instance.close)
        one.excused = excused
        one.log.write_text("\n".join(lines))
        return one

    def test_crash_where_something_fails(self):
        lines = [f"[7] 00000 LOG:  server process (PID 8) was terminated by signal {number}: x"
                 for number in (6, 9, 11)]
        self.assertEqual(self.machine(*lines).alarms(), lines)
        self.assertEqual(self.machine(*lines, excused=True).alarms(), lines[1:])
        self.assertEqual(self.machine(*lines).alarms(kills=True), [lines[0], lines[2]])

    def refused(self, status, *lines):
        """Try a start that ends with a status, and says something; returns whether it is refused."""
        one = self.machine(*lines)
        one.start = mock.Mock(side_effect=server.ServerError("does not start"))
        one.instance = mock.Mock(**{"status.return_value": status})
        played = play.Play(of(start()), None, None, Path("."))
        try:
            played._try_start(one, True, "ours", "a copy")
        except machine.Failure:
            return False
        return bool(played.figures["refused"])

    def test_refusals(self):
        fatal = "[7] XX000 FATAL:  the double-write log is of other files"
        self.assertTrue(self.refused(1, fatal))
        self.assertFalse(self.refused(None, fatal))
        self.assertFalse(self.refused(-11, fatal))
        for crash in ('TRAP: failed Assert("x")', "[7] XX000 PANIC:  no",
                      "[7] 00000 LOG:  startup process (PID 8) was terminated by signal 11: x"):
            self.assertFalse(self.refused(1, fatal, crash))

    def test_program_that_crashes_refuses_nothing(self):
        for status, refused in ((1, 1), (-11, 0), (0, 0)):
            played = play.Play(of(start()), None, None, Path("."))
            played._tool = mock.Mock(return_value=mock.Mock(returncode=status))
            played.member = mock.Mock()
            with contextlib.nullcontext() if refused else self.assertRaises(machine.Failure):
                played.refuse_tool(mock.Mock(clean=False), {"tool": "checksums-enable"})
            self.assertEqual(played.figures["refused"], refused)


class LedgerTest(unittest.TestCase):
    events = [event("issue", 1, 10), event("ack", 1, 11), event("issue", 2, 20),
              event("ack", 2, 21), event("issue", 3, 30)]

    def expected(self, ledger):
        return ledger.expectation()["clients"]["c"]

    def test_own(self):
        self.assertEqual(self.expected(Ledger(list(self.events))), {"acked": 2, "issued": 3})

    def test_derived(self):
        ledger = Ledger(list(self.events), floor=15)
        self.assertEqual(self.expected(ledger), {"acked": 1, "issued": 3})
        self.assertNotIn("prepared", ledger.expectation())
        ledger.ceiling = 25
        self.assertEqual(self.expected(ledger), {"acked": 1, "issued": 2})


class WatchTest(unittest.TestCase):
    def test_step_that_does_not_end(self):
        class Stuck(play.Play):
            def _carry_out(self, step):
                subprocess.run(["sleep", "600"], check=False)
                raise machine.Failure("what it has waited for is gone")

        stuck = Stuck(of(start()), None, None, ".")
        # what a program takes to start
        with mock.patch.object(play, "STEP_SECONDS", 5):
            stuck._guarded(start())
        self.assertEqual([finding.what for finding in stuck.findings], ["hang"])
        self.assertIn("sleep 600", stuck.findings[0].text)


class GoneTest(unittest.TestCase):
    """Servers that end while another one waits for what they do."""

    def machine(self, *alive):
        made = object.__new__(machine.Machine)
        made.name, made.instance = "a", mock.Mock()
        made.instance.alive.side_effect = itertools.chain(alive, itertools.repeat(alive[-1]))
        return made

    def test_server_that_is_gone(self):
        with self.assertRaisesRegex(machine.Failure, "a has ended by itself: archiving"):
            self.machine(True, False).must("archiving", lambda: False)
        self.machine(False).must("archiving", lambda: True)

    def test_server_that_it_needs_is_gone(self):
        source = self.machine(True, True, False)
        source.name = "b"
        with self.assertRaisesRegex(machine.Failure, "b has ended by itself: catching up"):
            self.machine(True).must("catching up", lambda: False, source)


class CutShortTest(unittest.TestCase):
    """Histories whose process is told to end."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.place = Path(holder.name)
        tools = machine.Tools("", "", "", str(self.place))
        self.many = histories.Campaign(tools, lambda _: None)

    def run_histories(self, outcome, *options):
        """Play some histories: the first step of each has this outcome."""
        def run(self):
            log = self.place / "a.log"
            log.write_text("TRAP")
            self.machines["a"] = mock.Mock(log=log)
            outcome(self)
        args = __main__._parser().parse_args([
            "--bindir=b", "--recorder=r", "--scratch=s", "history", "--count=2", "--seed=7",
            f"--output={self.place / 'output'}", *options])
        with mock.patch.object(play.Play, "run", run), contextlib.redirect_stdout(io.StringIO()):
            return __main__._play_histories(args, self.many)

    def assert_kept(self, *played):
        output = self.place / "output"
        self.assertEqual([one["seed"] for one in json.loads((output / "histories.json").read_text())],
                         list(played))
        self.assertEqual((output / "history-7/a.log").read_text(), "TRAP")

    def test_history_that_is_cut_short(self):
        def end(_):
            raise SystemExit
        with self.assertRaises(SystemExit):
            self.run_histories(end)
        self.assert_kept(7)

    def test_history_that_is_being_made_shorter(self):
        def fail(one):
            one.findings.append(judged.Finding(0, "step", "it fails"))
        with mock.patch.object(histories.Campaign, "shrink", side_effect=SystemExit), \
                self.assertRaises(SystemExit):
            self.run_histories(fail)
        self.assert_kept(7)
        self.assertIn("it fails", (self.place / "output/history-7/findings.json").read_text())

    def test_what_is_known_before_the_process_ends(self):
        def look(one):
            if self.many._plays > 1:
                self.assert_kept(7)
            one.findings.append(judged.Finding(0, "step", "it fails"))
        self.assertEqual(self.run_histories(look, "--no-shrink"), 1)
        self.assert_kept(7, 8)
        self.assertNotIn("Assertion", (self.place / "output/history-8/findings.json").read_text())

    def test_no_time_is_left(self):
        with mock.patch.object(limits, "DEADLINE", 0), self.assertRaises(limits.Hang):
            self.run_histories(lambda _: None)
        self.assertEqual((self.place / "output/histories.json").read_text(), "[]")


class ReportTest(unittest.TestCase):
    def result(self, *findings):
        return histories.Result(of(start(), stop("fast")), 1, 2.0, list(findings))

    def test_findings_of_one_cause(self):
        one = judged.Finding(3, "oracle", "a: block 5 of base/5/16399 has an LSN after 0/D33808")
        other = judged.Finding(7, "oracle", "a: block 17 of base/5/17001 has an LSN after 0/1A0")
        self.assertEqual(one.signature(), other.signature())
        self.assertNotEqual(one.signature(), judged.Finding(3, "log", one.text).signature())

    def test_report(self):
        with tempfile.TemporaryDirectory() as place:
            failed = self.result(judged.Finding(2, "step", "a hangs"))
            text = histories.report(place, [self.result(), failed], 10)
            histories.save(place, failed)
            self.assertIn("2 histories with 2 steps in 10 s: 1 failed", text)
            self.assertIn("step 2, step: a hangs", text)
            again, left_out = histories.read(Path(place) / "history-1" / "history.json")
            self.assertEqual((again, left_out), (failed.history, []))


if __name__ == "__main__":
    unittest.main()
