"""Tests of states, of minimising, of the matrix and of the controls' mutations."""

import contextlib
import os
import random
import tempfile
import threading
import unittest
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from devtools import mutate
from history import History
from pgcut import __main__ as command_line
from pgcut import (
    broken,
    controlled,
    controls,
    explore,
    judge,
    matrix,
    primary,
    probes,
    record,
    report,
    states,
    trial,
)
from pgcut.block import FILE_SYSTEMS
from pgcut.content import KEPT, LOST, sectors
from pgcut.disk import Disk
from pgcut.minimise import ddmin
from pgcut.recording import WRITE_ATOMIC, Kind

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "work"
MUTATIONS = REPOSITORY / "tests" / "mutations"
PAGE = b"p" * 8192
# Faults that lose nothing of what is pending.
HARMLESS = ("all-kept", "rotten-page", "rotten-log", "rotten-both", "unreadable-page")


class CampaignTest(unittest.TestCase):
    """What a campaign counts, and what it does not believe."""

    def test_seeds_in_a_row_have_all_controls(self):
        usual = controlled.all_controls()
        shares = [controlled.all_controls((), seed, 3) for seed in range(7, 10)]
        self.assertCountEqual([one for share in shares for one in share], usual)
        self.assertLess(max(map(len, shares)) - min(map(len, shares)), 2)
        (rare,) = controlled.all_controls(["failed-sync-not-noted"], 7, 3)
        self.assertNotIn(rare, usual)

    def result(self, effective, tried=report.IMPLAUSIBLE, **details):
        state = {"effective": False, "failed": False, "restored": 1, "fault": "all-lost",
                 "torn": 0, "nested": 0, "phases": {}}
        return trial.JobResult("recording 1", scenario="errors", states=[
            {**state, "effective": number < effective} for number in range(tried)], **details)

    def test_scenario_without_what_it_is_about(self):
        self.assertIn("scenario errors", report.verdict([self.result(0)])[0])
        self.assertEqual(report.verdict([self.result(1)]), [])
        self.assertEqual(report.verdict([self.result(0, report.IMPLAUSIBLE - 1)]), [])
        self.assertEqual(report.figures([self.result(4)], 1)["bound"], 3 / 4)

    def test_load_that_has_come_to_nothing(self):
        acks = [{"what": "resumed"}, {"what": "fail"}]
        with self.assertRaises(record.RecordError):
            trial.require_acks(SimpleNamespace(acks=acks))
        trial.require_acks(SimpleNamespace(acks=[*acks, {"what": "ack"}]))

    def test_standby_that_does_not_look_ahead(self):
        once, never = ({"begin": 1, "end": 2, "windows": found, "blocks": 7 * found}
                       for found in (1, 0))
        with self.assertRaises(record.RecordError):
            trial.require_look_ahead(SimpleNamespace(replays=[never, never]))
        trial.require_look_ahead(SimpleNamespace(replays=[never, once]))
        results = [self.result(1, recording={"replays": [never, once, once]}), self.result(1)]
        self.assertEqual(report.figures(results, 1)["ahead"],
                         {"replays": 3, "looking": 2, "windows": 2, "blocks": 14})
        self.assertEqual(report.figures(results[1:], 1)["ahead"], {})

    def test_mistakes_of_ours_find_no_control(self):
        def found(*complaints):
            result = trial.JobResult("control", control="R2")
            outcome = judge.Outcome(states.State(1, "all-lost", 1), list(complaints))
            return controlled.first_failure([outcome], result), len(result.failures)
        self.assertEqual(found("explorer: Traceback"), (False, 0))
        self.assertEqual(found("explorer: Traceback", "client a: transaction 1"), (True, 1))

    def test_some_recordings_need_syncs_of_the_logs_directory(self):
        strict = sum(bool(trial.rules_of(seed).names_need_directory_sync)
                     for seed in range(1000))
        self.assertTrue(200 < strict < 300, strict)

    def test_patches_are_told_as_mutations_are(self):
        for path in sorted(MUTATIONS.glob("*.patch"))[:3]:
            self.assertEqual(broken.digest(path.read_bytes()),
                             mutate.digest(mutate.decode(path.stem, path.read_bytes())))

    def test_what_a_thread_raises(self):
        thread = primary.Beside(int, "x")
        thread.start()
        with self.assertRaises(ValueError):
            thread.join()


class TurnsTest(unittest.TestCase):
    def test_scenarios_take_turns(self):
        """Whatever the seed, a campaign has as many recordings; each scenario comes up."""
        every = {*record.SCENARIOS, *FILE_SYSTEMS}
        for cycle in (command_line.SCENARIO_CYCLE, command_line.WATCHED_CYCLE):
            rounds = [[command_line._in_turn(cycle, number, seed) for number in range(len(cycle))]
                      for seed in range(4)]
            drawn = {scenario for one in rounds for scenario in one}
            self.assertEqual(drawn - every, set())
            self.assertGreaterEqual(drawn, {"errors", "edited", "frozen", "quota",
                                            "failing-unlinks", explore.BEHIND})
            again = [command_line._in_turn(cycle, len(cycle) + number, 0)
                     for number in range(len(cycle))]
            self.assertEqual(again, rounds[1])


class ProbesTest(unittest.TestCase):
    """Clients that must get on, on a server that is none."""

    class Server:
        """Lets so many statements pass, then keeps sessions waiting until it is let go."""

        def __init__(self, passing):
            self.passing = passing
            self.thaw = threading.Event()
            self.sessions = 0
            self.closed = False

        def connect(self, database):
            self.sessions += 1
            return self

        def cursor(self):
            return contextlib.nullcontext(self)

        def execute(self, statement, values=None):
            if statement.startswith("UPDATE"):
                self.passing -= 1
                if self.passing < 0:
                    self.thaw.wait()

        def close(self):
            pass

    def test_one_that_gets_on_is_enough(self):
        server = self.Server(1 << 40)
        clients = probes.Probes(server.connect, 1)
        self.assertTrue(clients.advance(20, lambda: True))
        clients.end()
        self.assertEqual((server.sessions, clients.errors), (probes.CLIENTS, []))

    def test_others_come_when_none_gets_on(self):
        server = self.Server(0)
        clients = probes.Probes(server.connect, 1)
        with mock.patch.object(probes, "PATIENCE_SECONDS", 0):
            alive = iter([True] * 50 + [False] * 2)
            self.assertFalse(clients.advance(1, lambda: next(alive)))
        server.thaw.set()
        clients.end()
        self.assertEqual(server.sessions, probes.MOST_CLIENTS)


class StatesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        history = History(Path(directory.name) / "recording",
                          {"base": None, "base/5": None, "base/5/1259": PAGE * 4,
                           "pg_wal": None, "pg_wal/0001": PAGE, "pg_doublewrite": None,
                           "pg_doublewrite/0000000000000001": PAGE * 4})
        inos = history.inos
        for number in range(5):
            history.write(inos["pg_wal/0001"], 0, PAGE)
            history.sync(inos["pg_wal/0001"])
            history.write(inos["pg_doublewrite/0000000000000001"], 0, PAGE * 2)
            history.sync(inos["pg_doublewrite/0000000000000001"])
            history.write(inos["base/5/1259"], 8192 * (number % 4), PAGE)
        history.create("16400", inos["base/5"])
        self.history = history
        self.recording = history.recording()
        self.places = states.Places(self.recording)

    def choice(self, state):
        disk = Disk(self.recording)
        disk.advance(state.cut)
        return disk, states.choose(disk, state, self.places.areas)

    def test_areas(self):
        for path, area in (("base/5/1259", states.RELATION), ("base/5/1259_fsm.1", states.RELATION),
                           ("base/5/pg_filenode.map", states.OTHER), ("global/pg_control", states.OTHER),
                           ("pg_doublewrite/0000000000000001", states.LOG),
                           ("pg_wal/0001", states.WAL), ("pg_xact/0000", states.OTHER)):
            self.assertEqual(states.area(path), area, path)

    def effective(self, fault, cut, scenario="primary"):
        """Say whether a state has what it is about, by what was recorded and the choice."""
        self.recording.meta["scenario"] = scenario
        state = states.State(cut, fault, 3)
        with tempfile.TemporaryDirectory() as scratch:
            os.chmod(scratch, 0o755)
            subject = explore.Subject(self.recording, judge.Context("", "", scratch))
            subject.move(cut)
            return subject._is_effective(state, states.choose(subject.disk, state,
                                                              self.places.areas))

    def test_effective_states(self):
        synced, torn = 4, 5         # nothing is pending after one, a page after the other
        for fault, cut, expected in (("all-lost", synced, False), ("all-lost", torn, True),
                                     ("torn-pages", synced, False), ("torn-pages", torn, True),
                                     ("torn-restore", torn, False), ("after-checkpoint", torn, False),
                                     ("all-kept", torn, True)):
            self.assertEqual(self.effective(fault, cut), expected, (fault, cut))

    def test_effective_only_after_a_failure(self):
        self.assertFalse(self.effective("all-lost", 20, "failing-syncs"))
        seq = self.history.add(Kind.SYNCFAILED, self.history.inos["base/5/1259"])
        self.recording = self.history.recording()
        self.assertTrue(self.effective("all-lost", seq, "failing-syncs"))
        self.assertFalse(self.effective("all-lost", seq - 1, "failing-syncs"))

    def test_only_while_a_standby_looks_ahead(self):
        ops = self.recording.ops
        self.recording.replays = [
            {"begin": ops[4].time, "end": ops[8].time, "windows": 1, "blocks": 3},
            {"begin": ops[9].time, "end": ops[10].time, "windows": 0, "blocks": 0},
            {"begin": ops[14].time, "end": ops[19].time, "windows": 2, "blocks": 3}]
        self.assertEqual(self.recording.ahead(), [(4, 9), (14, 20)])
        for cut, expected in ((3, False), (5, True), (10, False), (15, True), (21, False)):
            self.assertEqual(self.effective("all-kept", cut, explore.BEHIND), expected, cut)
        job = trial.Job(1, 21, 1, scenario=explore.BEHIND)
        cuts = [state.cut for state in trial._sampled(
            SimpleNamespace(recording=self.recording, places=self.places, first_failure=0), job)]
        self.assertEqual(len(cuts), job.states)
        early = [cut for cut in cuts if cut <= 9]
        self.assertEqual(len(early), job.states // 2)
        self.assertGreaterEqual(min(early), 4)
        self.assertLessEqual({cut for cut in cuts if cut not in early}, set(range(14, 21)))

    def test_places_before_the_end(self):
        early = states.Places(self.recording, 0, 4)
        rng = random.Random(1)
        for about in (states.RELATION, states.WAL, "names", "any"):
            self.assertLessEqual(max(early.random(rng, about) for _ in range(100)), 4)
        self.assertFalse(early.has("names"))
        self.assertTrue(self.places.has("names"))

    def test_same_seed_same_state(self):
        first = list(states.sampled(self.places, 3, 50, nested_share=0.3))
        self.assertEqual(first, list(states.sampled(self.places, 3, 50, nested_share=0.3)))
        self.assertNotEqual(first, list(states.sampled(self.places, 4, 50, nested_share=0.3)))
        for state in first:
            self.assertEqual(self.choice(state)[1], self.choice(state)[1])

    def test_each_fault_does_what_it_is_for(self):
        end = len(self.recording.ops)
        for name in states.FAULTS:
            damaged = False
            for seed in range(20):
                disk, choice = self.choice(states.State(end, name, seed))
                for op in disk.pending_data() + disk.pending_names():
                    fate = choice.fate(op)
                    if op.kind == Kind.WRITE and fate > 0:
                        self.assertLess(fate, 1 << sectors(op, 512))
                    damaged |= fate != KEPT
            self.assertEqual(damaged, name not in HARMLESS, name)

    def test_torn_page_tears_one(self):
        for seed in range(20):
            disk, choice = self.choice(states.State(len(self.recording.ops), "torn-page", seed))
            self.assertEqual(len(choice.fates), 1)

    def test_atomic_writes_are_whole_or_absent(self):
        self.history.add(Kind.WRITE, self.history.inos["base/5/1259"], 8192, 1, data=PAGE,
                         flags=WRITE_ATOMIC)
        self.recording = self.history.recording()
        end = len(self.recording.ops)
        fates = {name: {self.choice(states.State(end, name, seed))[1].fates.get(end)
                        for seed in range(60)} for name in ("torn-pages", "storm", "sizes")}
        for name, seen in fates.items():
            self.assertEqual(seen - {None}, {KEPT, LOST}, name)

    def test_boundaries(self):
        cuts = self.places.boundaries()
        self.assertIn(2, cuts)
        self.assertIn(1, cuts)
        everything = list(states.exhaustive(self.places, 1))
        self.assertEqual(len(everything), 2 * len(cuts) + 5)

    def test_mask(self):
        rng = random.Random(1)
        for count in (1, 2, 16, 256):
            for _ in range(50):
                self.assertTrue(LOST <= states.mask(rng, count) < 1 << count)


class DrawTest(unittest.TestCase):
    """What is done with a state besides recovering it is drawn for each purpose by itself."""

    def drawn(self, purpose):
        return {seed for seed in range(20000) if judge.drawn(purpose, seed, 20)}

    def test_as_often_as_said(self):
        for purpose in ("restart", "compare", "server"):
            self.assertAlmostEqual(len(self.drawn(purpose)) / 20000, 1 / 20, delta=0.01)

    def test_purposes_are_independent(self):
        both = self.drawn("restart") & self.drawn("compare")
        self.assertAlmostEqual(len(both) / 20000, 1 / 400, delta=0.0015)


class MinimiseTest(unittest.TestCase):
    def test_pair(self):
        calls = []

        def fails(subset):
            calls.append(subset)
            return {3, 17} <= set(subset)

        self.assertEqual(sorted(ddmin(range(40), fails)), [3, 17])
        self.assertLess(len(calls), 100)

    def test_single(self):
        self.assertEqual(ddmin([1, 2, 3], lambda subset: 2 in subset), [2])


class ConfigurationTest(unittest.TestCase):
    def test_minimal_has_no_senders(self):
        for seed in range(50):
            settings, _ = matrix.draw(seed)
            if settings["wal_level"] == "minimal":
                self.assertEqual(settings["max_wal_senders"], "0")
            self.assertNotEqual(matrix.replicating(settings)["wal_level"], "minimal")

    def test_all_modes_are_drawn(self):
        for name, values in matrix.MATRIX.items():
            drawn = {matrix.draw(seed)[0][name] for seed in range(200)}
            self.assertEqual(drawn, set(values), name)

    def test_pairs_of_values_come_together(self):
        values = {**matrix.MATRIX, "checksums": (False, True)}
        wanted = {frozenset(((a, x), (b, y))) for a, b in combinations(values, 2)
                  for x in values[a] for y in values[b]}
        for cycle in (0, 7):
            drawn = (matrix.draw(seed) for seed in range(cycle * matrix.CYCLE,
                                                         (cycle + 1) * matrix.CYCLE))
            seen = set()
            for settings, checksums in drawn:
                row = {**settings, "checksums": checksums}
                seen |= {frozenset(((a, row[a]), (b, row[b]))) for a, b in combinations(values, 2)}
            self.assertLessEqual(wanted, seen)

    def test_mutations_of_controls_fit_the_engine(self):
        if not WORK.exists():
            self.skipTest("work/ has not been imported")
        for control in controls.CONTROLS:
            if control.mutated:
                with tempfile.TemporaryDirectory() as place:
                    paths = broken.apply(MUTATIONS / f"{control.name}.patch", WORK, Path(place))
                    self.assertTrue(paths, control.name)

    def test_a_mutation_that_does_not_fit_is_an_error(self):
        with tempfile.TemporaryDirectory() as place:
            patch = Path(place, "one.patch")
            patch.write_text("What: x\n\n--- a/one.c\n+++ b/one.c\n@@ -1 +1 @@\n-old\n+new\n")
            Path(place, "one.c").write_text("other\n")
            with self.assertRaisesRegex(broken.BrokenError, "patch failed"):
                broken.apply(patch, Path(place), Path(place, "target"))
            Path(place, "one.c").write_text("old\n")
            self.assertEqual(broken.apply(patch, Path(place), Path(place, "target")), ["one.c"])
            self.assertEqual(Path(place, "target", "one.c").read_text(), "new\n")
            with self.assertRaisesRegex(broken.BrokenError, "no mutation"):
                broken.apply(Path(place, "two.patch"), Path(place), Path(place, "target"))

    def test_controls_are_named_once(self):
        names = [control.name for control in controls.CONTROLS]
        self.assertEqual(len(names), len(set(names)))
        for control in controls.CONTROLS:
            self.assertLessEqual(set(control.faults), set(states.FAULTS), control.name)
            self.assertIn(control.scenario, (*record.SCENARIOS, *FILE_SYSTEMS), control.name)
            self.assertLessEqual({kind for kind, _ in control.workloads},
                                 set(record.workload.KINDS), control.name)


if __name__ == "__main__":
    unittest.main()
