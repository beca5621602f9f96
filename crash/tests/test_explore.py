"""Tests of what the explorer does with images: states that go on, and states of standbys."""

import contextlib
import os
import signal
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from test_oracle import bindir

from pgcut import alarms, explore, judge, matrix, oracle, sequel, server
from pgcut.content import KEPT
from pgcut.disk import Choice, Rules
from pgcut.image import write_tree
from pgcut.recording import Recording
from pgcut.states import PAGE, State
from recorder_binary import SCRATCH, recorder_binary

try:
    import psycopg2

    from pgcut import record, trial
except ImportError:
    record = None

# Installed programs lack the module that atomic writes and instant recovery ask for here.
SETTINGS = {"io_torn_pages_protection": "double_writes", "instant_recovery": "off"}
KINDS = {"transfer": 2, "hint": 1, "prepared": 1}


class ExcuseTest(unittest.TestCase):
    """What rotten sectors, and files that cannot be read, excuse."""

    PAGE = ["sector 4 of base/5/16517.1"]
    LOG = ["sector 99 of pg_doublewrite/000000000000000C"]

    def test_reports_of_what_is_rotten(self):
        damaged = "FATAL:  double-write log is damaged: batch 45 is missing"
        pending = 'ERROR:  could not read the copy of block 7 of relation "base/5/16384" in the' \
            " double-write log"
        for text, rotten, log in (
                ('heap load.t: invalid page in block 3 of relation "base/5/16517"', self.PAGE, ""),
                ("LOG:  page verification failed, calculated checksum 1", self.PAGE, ""),
                ("relation load.i: block 0 of its main fork (base/5/16517) is not a page", self.PAGE, ""),
                ("block 0 of base/7/16517 has an LSN after the end of WAL, 0/1", self.PAGE, ""),
                (f"no verdict of a server: exited with 1: {damaged}", self.LOG, damaged),
                ("no verdict of a server: checkpoint request failed", self.LOG, pending),
                ("goes on: a server cannot go on from here: server exited with 1: x", self.PAGE,
                 'FATAL:  invalid page in block 3 of relation "base/5/16517"'),
                ("[27311] XX000 ERROR:  checkpoint request failed", self.LOG, pending),
                ("relation a.b: fsm fork: 1 page could not be redone after the last crash", self.PAGE,
                 'invalid page in block 3 of relation "base/5/16517"'),
                (damaged, self.LOG, "")):
            self.assertTrue(alarms.excused(text, rotten, log), text)
            self.assertFalse(alarms.excused(text, [], log), text)

    def test_segment_that_outlives_its_first_one(self):
        names = {"base/5/7", "base/5/7.1", "base/5/8.1"}
        self.assertTrue(judge._outlives_its_first_segment("base/5/8.1", names))
        for name in ("base/5/7", "base/5/7.1", "end of WAL"):
            self.assertFalse(judge._outlives_its_first_segment(name, names), name)

    def test_what_else_is_wrong(self):
        invalid = 'invalid page in block 3 of relation "base/5/16517"'
        for text, rotten, log in (
                ("client hint-1: transaction 9 was acknowledged", self.PAGE, invalid),
                ('index load.i: invalid page in block 3 of relation "base/5/1651"', self.PAGE, ""),
                (invalid, self.LOG, ""),
                ("relation a.b: 1 page could not be redone after the last crash", self.PAGE, ""),
                ("relation load.i: block 0 of its main fork (base/5/1651) is not a page", self.PAGE, ""),
                ("FATAL:  double-write log is damaged: batch 45 is missing", self.PAGE, ""),
                ("[27311] XX000 ERROR:  checkpoint request failed", self.LOG, ""),
                ("no verdict within 600 s", self.PAGE, "LOG:  redo starts"),
                ("no verdict of a server: server exited with -11: x", self.PAGE, invalid),
                ("no verdict of a server: server does not stop properly, its exit status is -11: x",
                 self.PAGE, invalid),
                ("no verdict, exit status -6: x", self.PAGE, f'{invalid}\nTRAP: failed Assert("x")')):
            self.assertFalse(alarms.excused(text, rotten, log), text)

    def test_crash_though_a_file_cannot_be_read(self):
        unreadable = 'PANIC:  could not read blocks 0..0 in file "base/5/2603"'
        for line in ('TRAP: failed Assert("x")', "PANIC:  could not locate a valid checkpoint"):
            self.assertEqual(alarms.crashes_of_unreadable(f"{unreadable}\n{line}\n"), [line])


class LeftOverTest(unittest.TestCase):
    def test_what_may_be_left_over(self):
        def harmless(scenario, *allowed):
            one = mock.Mock(maps_protected=True, scenario=scenario)
            return [bool(judge.Judge._harmless(one, text, {"orphans_allowed": allowed[0]}))
                    for text in ("file base/5/17 of 8192 bytes belongs to no relation",
                                 "directory base/5 belongs to no database", "index load.i: wrong")]

        self.assertEqual(harmless("primary", []), [False, False, False])
        self.assertEqual(harmless("primary", ["base/5/17"]), [True, False, False])
        self.assertEqual(harmless("primary", None), [True, True, False])
        self.assertEqual(harmless("failing-unlinks", []), [True, True, False])
        self.assertEqual(harmless("edited", []), [True, False, False])


class RecordedLogTest(unittest.TestCase):
    """What the log of a recorded server may not say."""

    def complaints(self, scenario, *lines):
        with tempfile.NamedTemporaryFile("w", prefix="pgcut-log-") as log:
            log.write("\n".join(lines))
            log.flush()
            one = scenario.__new__(scenario)
            one.acks, one.log = [], Path(log.name)
            one.read_log("server", one.log)
        return [event["text"].removeprefix("server: ") for event in one.acks]

    def test_crashes(self):
        if record is None:
            self.skipTest("python3-psycopg2 is not installed")
        crashes = ["TRAP: failed", "[7] LOG:  server process (PID 8) was terminated by signal 11: x"]
        failures = ["[7] LOG:  server process (PID 8) was terminated by signal 6: x", "[7] PANIC:  no",
                    '[7] ERROR:  could not read blocks 0..0 in file "base/5/17": no']
        self.assertEqual(sorted(self.complaints(record.Primary, *crashes, *failures)),
                         sorted(crashes + failures))
        for scenario in (record.Errors, record.FailingSyncs, record.TornWrites):
            self.assertEqual(sorted(self.complaints(scenario, *crashes, *failures)), sorted(crashes))


class ImagesTest(unittest.TestCase):

    maxDiff = None              # complaints are what people need to see

    def setUp(self):
        if record is None:
            self.skipTest("python3-psycopg2 is not installed")
        self.programs, self.recorder = bindir(), recorder_binary()
        holder = tempfile.TemporaryDirectory(prefix="pgcut-explore-", dir=SCRATCH)
        self.addCleanup(holder.cleanup)
        os.chmod(holder.name, 0o755)
        self.scratch = holder.name

    def record(self, scenario, lives=1):
        """Return a recording of a short load."""
        directory = Path(self.scratch) / scenario
        settings, checksums = matrix.draw(2, wal_level="replica", autovacuum="off",
                                          **trial.NEEDED.get(scenario, {}), **SETTINGS)
        record.make(directory, record.Plan(2, matrix.replicating(settings), checksums, seconds=1,
                                           lives=lives, kinds=KINDS, scenario=scenario),
                    self.programs, self.recorder, self.scratch)
        return Recording(directory)

    def outcome(self, recording, fault, **options):
        """Return what becomes of the last state of a recording."""
        # installed programs lack the module by which pages are kept waiting
        context = judge.Context(self.programs, self.recorder, self.scratch, compare_every=0,
                                  pending_every=0, restart_every=0, **options)
        return explore.Subject(recording, context).try_state(State(len(recording.ops), fault, 3))

    def test_by_which_server(self):
        recording = self.record("primary")
        for every, postmaster in ((0, True), (1, False)):
            outcome = self.outcome(recording, "all-lost", sequel_every=0, single_every=every)
            self.assertEqual(outcome.complaints, [])
            self.assertIn("redo done", outcome.log)
            self.assertEqual("ready to accept connections" in outcome.log, postmaster)
        single = sum(judge.drawn("single", seed, judge.Context.single_every)
                     for seed in range(1000))
        self.assertLess(single, 130)
        self.assertGreater(single, 70)

    def test_most_servers_do_without_what_is_not_asked(self):
        recording = self.record("primary")
        for every, added in ((0, judge.PLAIN), (1, {})):
            with mock.patch.object(server.Server, "start", autospec=True,
                                   side_effect=server.Server.start) as start:
                outcome = self.outcome(recording, "all-lost", sequel_every=0, single_every=0,
                                       as_drawn_every=every)
            self.assertEqual(outcome.complaints, [])
            self.assertEqual([call.args[1] for call in start.mock_calls],
                             [{**judge.JUDGING, **added}])

    def test_kept_image_is_that_of_the_next_state(self):
        recording = self.record("primary")
        context = judge.Context(self.programs, self.recorder, self.scratch, pending_every=0)
        subject = explore.Subject(recording, context)
        last = len(recording.ops)
        for cut, fault, nested in ((last // 2, "storm", 0), (last, "rotten-page", 0),
                                   (last, "all-kept", 1), (last // 3, "torn-pages", 0)):
            self.assertEqual(subject.try_state(State(cut, fault, 3, nested=nested)).complaints, [])
        places = sorted(Path(self.scratch).glob("images-*"))
        self.assertEqual([[path.name for path in place.iterdir()] for place in places], [["data"]])
        del subject
        self.assertEqual([place for place in places if place.exists()], [])

    def test_server_goes_on(self):
        recording = self.record("primary")
        with mock.patch.object(judge.Judge, "recover_and_ask", autospec=True,
                               side_effect=judge.Judge.recover_and_ask) as asked:
            outcome = self.outcome(recording, "all-lost", sequel_every=1, sequel_cuts=2)
        self.assertEqual(outcome.complaints, [])
        self.assertIn("sequel", outcome.phases)
        first, second = (call.args[3] for call in asked.mock_calls)
        self.assertNotEqual(first, second)
        outcome = self.outcome(recording, "all-kept", sequel_every=1, sequel_faults=("all-lost",),
                               rules=Rules(ignore_syncs_below=("pg_wal",)))
        # Without its WAL, what such a server says first depends on what it has written home.
        self.assertNotEqual(outcome.complaints, [])

    def test_server_that_goes_on_crashes(self):
        recording = self.record("primary")

        def crash(connect, query):
            """Let a process crash, of which a session tells the number."""
            with contextlib.closing(connect("postgres")) as session, session.cursor() as cursor:
                cursor.execute(query)
                os.kill(cursor.fetchone()[0], signal.SIGSEGV)
                with self.assertRaises(psycopg2.OperationalError) as gone:
                    cursor.execute("SELECT pg_sleep(600)")
            # As the load tells it: sessions end a moment before their postmaster does.
            return [{"what": "fail", "t": 0, "client": 0, "error": str(gone.exception), "unknown": True}]

        for query, expected in (("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'",
                                 "was terminated by signal 11"),
                                ("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int",
                                 "has ended by itself, with status -11")):
            with mock.patch.object(sequel.workload, "run",
                                   side_effect=lambda connect, *_, query=query, **__: crash(connect, query)):
                outcome = self.outcome(recording, "all-lost", sequel_every=1, sequel_cuts=1)
            self.assertIn(expected, "\n".join(outcome.complaints))

    def test_recovery_is_cut_off_before_the_load(self):
        recording = self.record("primary")
        with mock.patch.object(judge.Judge, "recover_and_ask", autospec=True,
                               side_effect=judge.Judge.recover_and_ask) as asked:
            outcome = self.outcome(recording, "torn-pages", sequel_every=1, sequel_cuts=2,
                                   recovery_cuts=2)
        self.assertEqual(outcome.complaints, [])
        moment = recording.time_of_cut(len(recording.ops))
        for call in asked.mock_calls:
            self.assertEqual(call.args[2]["clients"],
                             oracle.expectation(recording.acks, moment)["clients"])

    def test_recovery_is_cut_by_whichever_server(self):
        recording = self.record("primary")
        for recover in ("_recover_alone", "_recover_by_server"):
            subject = explore.Subject(recording, judge.Context(
                self.programs, self.recorder, self.scratch, compare_every=0, pending_every=0))
            with mock.patch.object(explore.Subject, "_recover_alone", getattr(
                    explore.Subject, recover)), mock.patch.object(
                        explore.Subject, "_recover_by_server", getattr(explore.Subject, recover)):
                outcome = subject.try_state(State(len(recording.ops), "torn-pages", 3, nested=2))
            self.assertEqual(outcome.complaints, [])
            self.assertIn("nested", outcome.phases)

    def test_logs_of_all_servers_of_a_state_that_fails(self):
        recording = self.record("primary")
        recording.acks.append({"t": 1, "client": "hint-1", "what": "ack", "n": 99999})
        for recover in ("_recover_alone", "_recover_by_server"):
            context = judge.Context(self.programs, self.recorder, self.scratch, compare_every=1,
                                    pending_every=0, sequel_every=0, single_every=1)
            subject = explore.Subject(recording, context)
            how = {name: getattr(explore.Subject, recover)
                   for name in ("_recover_alone", "_recover_by_server")}
            with mock.patch.multiple(explore.Subject, **how), \
                    mock.patch.object(judge, "WAYS", {"page by page": ({},)}):
                outcome = subject.try_state(State(len(recording.ops), "all-kept", 3, nested=2))
            self.assertTrue(outcome.failed)
            self.assertIn("single.log", outcome.logs)       # may have had nothing to say
            for name in ("compared-in-order", "compared-page-by-page",
                         "nested-0/server", "nested-1/server"):
                self.assertIn("redo", outcome.logs[f"{name}.log"], name)

    def test_logs_of_a_state_that_is_cut_short(self):
        recording = self.record("primary")

        with mock.patch.object(oracle, "verify_connected", side_effect=SystemExit), \
                self.assertRaises(SystemExit):
            self.outcome(recording, "all-lost", sequel_every=0, single_every=0)
        self.assertIn("redo", (recording.directory / judge.CUT_SHORT / "server.log").read_text())

    def test_standby_is_promoted(self):
        recording = self.record("standby")
        outcome = self.outcome(recording, "all-lost", standby_every=1, sequel_every=0)
        self.assertEqual(outcome.complaints, [])
        self.assertIn("standby", outcome.phases)
        self.assertIn("selected new timeline ID", outcome.log)
        recording.acks.append({"t": 1, "client": "hint-1", "what": "ack", "n": 99999})
        outcome = self.outcome(recording, "all-lost", standby_every=1, sequel_every=0)
        lost = "client hint-1: transaction 99999 was acknowledged"
        # What a standby does not see need not be lost.
        self.assertIn([complaint.partition(",")[0] for complaint in outcome.complaints],
                      ([lost, f"promoted: {lost}"], [f"promoted: {lost}"]))

    def test_standby_with_rotten_pages(self):
        recording = self.record("standby-rotten")
        self.assertEqual([ack for ack in recording.acks if ack["what"] == "complaint"], [])
        (path, places), (of_map, _) = recording.rotten.items()
        log = (recording.directory / "server.log").read_text()
        self.assertNotIn(f'block 0 of relation "{of_map}", which is damaged here', log)
        for place in places:
            self.assertIn(f'block {place // PAGE} of relation "{path}" was damaged, and has been '
                          'replaced by that of the primary', log)
        context = judge.Context(self.programs, self.recorder, self.scratch, standby_every=1,
                                  sequel_every=0, pending_every=0)
        subject = explore.Subject(recording, context)
        asked = []
        with mock.patch.object(alarms, "excused", lambda *about: asked.append(about)):
            first = subject.try_state(State(1, "all-kept", 3))
        # Before the primary has replaced them, that is what is wrong, and it is an excuse.
        self.assertIn("invalid page in block", first.log)
        self.assertEqual(len(asked[0][1]), len(places) + 1)
        self.assertTrue(all(alarms.excused(*about) for about in asked))
        self.assertEqual(subject.try_state(State(len(recording.ops), "all-kept", 3)).complaints, [])

    def test_standby_that_is_behind(self):
        recording = self.record("standby-behind", lives=2)
        self.assertEqual([ack for ack in recording.acks if ack["what"] == "complaint"], [])
        trial.require_look_ahead(recording)
        self.assertEqual(len(recording.replays), 4)
        for replay in recording.replays[1::2]:
            self.assertGreater(replay["windows"], 0)
        context = judge.Context(self.programs, self.recorder, self.scratch, standby_every=1,
                                sequel_every=0, pending_every=0)
        subject = explore.Subject(recording, context)
        for first, last in recording.ahead():
            outcome = subject.try_state(State((first + last) // 2, "all-kept", 3))
            self.assertEqual(outcome.complaints, [])
            self.assertTrue(outcome.effective)
            self.assertIn("selected new timeline ID", outcome.log)
        # Promoted before it has replayed what it has (a seed that three divides), and cut then
        context = judge.Context(self.programs, self.recorder, self.scratch, standby_every=0,
                                sequel_every=1, sequel_cuts=2, pending_every=0)
        outcome = explore.Subject(recording, context).try_state(
            State((first + last) // 2, "all-kept", 3))
        self.assertEqual(outcome.complaints, [])
        self.assertIn("sequel", outcome.phases)

    def test_recovery_of_a_standby_is_cut(self):
        recording = self.record("standby")
        subject = explore.Subject(recording, judge.Context(
            self.programs, self.recorder, self.scratch, standby_every=1, sequel_every=0))
        outcome = subject.try_state(State(len(recording.ops), "torn-pages", 3, nested=1))
        self.assertEqual(outcome.complaints, [])
        self.assertIn("selected new timeline ID", outcome.log)

    def test_promoted_server_goes_on(self):
        recording = self.record("standby")
        outcome = self.outcome(recording, "all-lost", standby_every=1, sequel_every=1)
        self.assertEqual(outcome.complaints, [])
        self.assertIn("sequel", outcome.phases)
        recording.acks.append({"t": 1, "client": "hint-1", "what": "ack", "n": 99999})
        outcome = self.outcome(recording, "all-lost", standby_every=1, sequel_every=1)
        self.assertIn("goes on: client hint-1: transaction 99999 was acknowledged",
                      outcome.complaints[0])
        self.assertIn("selected new timeline ID", outcome.logs["sequel/server.log"])

    def test_standby_that_lets_nobody_in(self):
        recording = self.record("standby")
        context = judge.Context(self.programs, self.recorder, self.scratch, pending_every=0)
        subject = explore.Subject(recording, context)
        subject.move(len(recording.ops))
        image = Path(self.scratch) / "state" / "data"
        image.parent.mkdir()
        server.own(image.parent)
        with server.as_user():
            write_tree(subject.disk.tree(Choice(512, KEPT, {})), image, explore.LEFT_OUT)
        self.lock_catalog(image)
        with server.as_user():
            (image / server.STANDBY_SIGNAL).touch()
            (image / "pg_doublewrite/owner").unlink(missing_ok=True)
        expected = {**oracle.lagging(oracle.expectation(recording.acks, recording.ops[-1].time)),
                    "orphans_allowed": None}
        complaints, log = subject._ask_standby(image, expected, 1)
        self.assertEqual(complaints, [])
        self.assertIn("canceling statement due to lock timeout", log)
        self.assertIn("selected new timeline ID", log)

    def lock_catalog(self, image):
        """Let a server run on an image, and die while a transaction locks pg_class."""
        log = image.with_suffix(".log")
        log.touch()
        server.own(log)
        instance = server.Server(self.programs, image, log)
        self.addCleanup(instance.close)
        instance.start()
        with contextlib.closing(instance.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("LOCK TABLE pg_class IN ACCESS EXCLUSIVE MODE")
            cursor.execute("SELECT pg_logical_emit_message(false, '', '', true)")
            instance.kill()

    def test_log_of_a_cluster_that_cannot_be_prepared(self):
        said = "why\n" + 5000 * "."

        def start(instance, *_):
            instance.log.write_text(said)
            raise server.ServerError("server exited with 1")
        plan = record.Plan(1, SETTINGS, True, kinds=KINDS)
        with mock.patch.object(server.Server, "start", start), \
                self.assertRaises(server.ServerError) as raised:
            record.prepared(Path(self.scratch) / "data", plan, self.programs, self.scratch)
        self.assertIn(said, str(raised.exception))

    def test_clusters_are_prepared_once(self):
        plans = [record.Plan(seed, {"shared_buffers": buffers, **SETTINGS}, checksums, kinds=KINDS)
                 for seed, (buffers, checksums) in enumerate((("1MB", True), ("2MB", True),
                                                              ("1MB", False)))]
        told = []
        for plan in plans:
            data = Path(self.scratch) / f"data-{plan.seed}"
            record.prepared(data, plan, self.programs, self.scratch)
            self.assertIn(plan.settings["shared_buffers"], (data / "postgresql.conf").read_text())
            told.append(server.run(self.programs, "pg_controldata", "-D", data).stdout)
        self.assertEqual(told[0], told[1])
        self.assertNotEqual(told[0], told[2])
        link, = (path for path in (data / "pg_tblspc").iterdir() if path.is_symlink())
        self.assertTrue(list(link.glob("PG_*")))
        self.assertTrue(link.resolve().is_relative_to(data))


if __name__ == "__main__":
    unittest.main()
