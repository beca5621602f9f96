"""Tests of what happens when a step does not end, or a server or a process of ours does."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from test_oracle import bindir

from pgcut import limits, matrix, server
from pgcut.limits import postgres
from recorder_binary import SCRATCH, recorder_binary

try:
    import psycopg2

    from pgcut import __main__ as command_line
    from pgcut import campaign, client, judge, primary, readers, record, trial
    from pgcut.states import State
except ImportError:
    psycopg2 = None

SETTINGS = {"io_torn_pages_protection": "double_writes", "instant_recovery": "off",
            "autovacuum": "off", "wal_level": "replica"}
KINDS = {"transfer": 2, "hint": 1}


def await_the_end(tools, job, result):
    """Do a job that does not end by itself."""
    directory = result.directory(tools)
    with trial.kept_if_wrong(tools, result, directory):
        directory.mkdir(parents=True)
        (directory / "server.log").write_text("TRAP")
        time.sleep(LONG)


# Far more than what is tested takes, on any machine.
LONG = 600

# So long it takes at most to start a program or two.
SHORT = 5


class LimitTest(unittest.TestCase):

    def test_program_that_does_not_end(self):
        with self.assertRaises(limits.Hang) as raised, limits.limit("sleeping", SHORT):
            subprocess.run(["sleep", str(LONG)], check=False)
        self.assertRegex(str(raised.exception), r"^sleeping did not end within \d+ s: .*"
                         rf"thread MainThread in .*run \(subprocess\.py:\d+\).*sleep {LONG}")

    def test_program_that_another_thread_has_started(self):
        done = []
        beside = threading.Thread(name="beside", target=lambda: done.append(
            subprocess.run(["sleep", str(LONG)], check=False).returncode))
        with self.assertRaises(limits.Hang) as raised, limits.limit("waiting", SHORT):
            beside.start()
            beside.join()
        self.assertEqual(done, [-signal.SIGKILL])
        self.assertIn("thread beside in", str(raised.exception))

    def test_recorder_is_ended_last(self):
        with tempfile.TemporaryDirectory() as place, \
                mock.patch.object(limits, "GRACE_SECONDS", SHORT):
            shutil.copy("/bin/sleep", f"{place}/pgcut-recorder")
            with self.assertRaises(limits.Hang), limits.limit("recording", SHORT):
                other = subprocess.Popen(["sleep", str(LONG)])
                recorder = subprocess.Popen([f"{place}/pgcut-recorder", str(LONG)])
                other.wait()
                ended = recorder.poll()
                recorder.wait()
            self.assertIsNone(ended)
            self.assertEqual(recorder.returncode, -signal.SIGKILL)

    def test_process_that_nothing_ends(self):
        code = ("from pgcut import limits\nimport threading\nlimits.GRACE_SECONDS = 0.1\n"
                "with limits.limit('a step', 0.1):\n    threading.Event().wait()\n")
        done = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(Path(limits.__file__).parents[1])})
        self.assertEqual(done.returncode, limits.HUNG_STATUS)
        self.assertIn("a step did not end", done.stderr)

    def test_step_that_ends(self):
        with limits.limit("a step", LONG):
            pass
        with self.assertRaises(KeyError), limits.limit("a step", LONG):
            raise KeyError


    def test_deadline_of_all_steps(self):
        with mock.patch.object(limits, "DEADLINE", time.monotonic() + SHORT), \
                self.assertRaises(limits.Hang), limits.limit("sleeping", LONG):
            subprocess.run(["sleep", str(LONG)], check=False)
        with mock.patch.object(limits, "DEADLINE", time.monotonic()), \
                self.assertRaisesRegex(limits.Hang, "a step: no time is left"), \
                limits.limit("a step", LONG):
            self.fail("it has begun")


class TidyTest(unittest.TestCase):

    def test_processes_below_a_directory(self):
        with tempfile.TemporaryDirectory(prefix="pgcut-tidy-") as place:
            one = subprocess.Popen(["sh", "-c", f"sleep {LONG}; : {place}/file"])
            other = subprocess.Popen(["sleep", str(LONG)])
            postgres.tidy(place)
            self.assertEqual((one.wait(), other.poll()), (-signal.SIGKILL, None))
            other.kill()
            other.wait()


@unittest.skipIf(psycopg2 is None, "python3-psycopg2 is not installed")
class RunTest(unittest.TestCase):
    """How long a load lasts."""

    def over(self, run, moment):
        with mock.patch.object(client.time, "monotonic", return_value=moment):
            return run.over()

    def test_until_something_was_acknowledged(self):
        run = client.Run(None, 1, seconds=3)
        self.assertFalse(self.over(run, 1000))      # clients connect as long as they need
        with mock.patch.object(client.time, "monotonic", return_value=1000):
            run.begin()
        self.assertFalse(self.over(run, 1002))
        self.assertFalse(self.over(run, 1004))
        self.assertTrue(self.over(run, 1001 + 3 * client.PATIENCE))
        run.record("a", "fail", n=1)
        self.assertFalse(self.over(run, 1004))
        run.record("a", "ack", n=1)
        self.assertFalse(self.over(run, 1002))
        self.assertTrue(self.over(run, 1004))


@unittest.skipIf(psycopg2 is None, "python3-psycopg2 is not installed")
class CampaignTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.tools = trial.Tools("", None, "", "", f"{holder.name}/scratch", f"{holder.name}/output")

    def kept(self, result, name):
        """Return the text of a file that is kept of a job."""
        return (Path(self.tools.output) / result.kept / name).read_text()

    def test_process_that_ends_without_a_result(self):
        job = trial.Job(7, 1, 2)
        directory = job.result().directory(self.tools)
        for name in ("server.log", "states/image-1/server.log", "states/image-1/nested-0/server.log"):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(name)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=os._exit, args=(3,))
        process.start()
        theirs.close()
        result = campaign._received(ours, process, (None, self.tools, job))
        self.assertEqual((result.name, result.error),
                         ("recording 7", "its process has ended with status 3"))
        self.assertEqual(self.kept(result, "recording/server.log"), "server.log")
        self.assertEqual(self.kept(result, "cut-short/image-1/nested-0/server.log"),
                         "states/image-1/nested-0/server.log")
        self.assertFalse(directory.exists())

    def test_logs_of_a_recording_that_cannot_be_made(self):
        for reason in (limits.Hang, SystemExit):
            result = trial.JobResult("recording 7")
            directory = result.directory(self.tools)
            directory.mkdir(parents=True)
            (directory / "server.log").write_text("TRAP")
            with self.assertRaises(reason), trial.kept_if_wrong(self.tools, result, directory):
                raise reason
            self.assertEqual(self.kept(result, "recording/server.log"), "TRAP")
            self.assertIn(reason.__name__, self.kept(result, "error.txt"))
            self.assertFalse(directory.exists())

    def test_logs_of_a_state_that_fails(self):
        result = trial.JobResult("recording 7")
        outcome = judge.Outcome(State(1, "storm", 2), ["lost"])
        outcome.logs = {"server.log": "last", "nested-0/server.log": "first"}
        trial._enter(outcome, result)
        trial.keep(self.tools, result, result.directory(self.tools))
        self.assertEqual(self.kept(result, "failure-0/nested-0/server.log"), "first")
        self.assertEqual(self.kept(result, "failure-0/server.log"), "last")
        self.assertIn("lost", self.kept(result, "failure-0.json"))

    def test_campaign_that_is_told_to_end(self):
        before = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        campaign.end_when_told()
        log = trial.Job(7, 1, 2).result().directory(self.tools) / "server.log"

        def tell():
            deadline = time.monotonic() + LONG
            while not log.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Thread(target=tell, daemon=True).start()
        results = []
        with mock.patch.object(campaign, "run_job", await_the_end), \
                self.assertRaises(SystemExit):
            for result in campaign.run(self.tools, [trial.Job(7, 1, 2)]):
                results.append(result)
        self.assertIn("SystemExit", results[0].error)
        self.assertEqual(self.kept(results[0], "recording/server.log"), "TRAP")

    def test_jobs_for_which_no_time_is_left(self):
        with mock.patch.object(limits, "DEADLINE", time.monotonic()):
            results = list(campaign.run(self.tools, [trial.Job(7, 1, 2), trial.Job(8, 1, 2)]))
        self.assertEqual({result.error for result in results}, {"not begun: no time is left"})

    def test_commands_that_do_the_same_again(self):
        fixed = (("io_torn_pages_protection", "full_pages"), ("wal_pipeline", "off"))
        for job in (trial.Job(12, 51, 6.0, fixed, scenario="standby"),
                    trial.Job(3, 0, 2.5, scenario="ext4"),
                    trial.Job(4, 9, 6.0, all_boundaries=True)):
            args = command_line._parser().parse_args(
                ["--bindir=b", "--recorder=r", "--scratch=s", *job.again.split()])
            self.assertEqual((command_line._jobs(args), args.no_controls), ([job], True))


class ServersTest(unittest.TestCase):
    """Servers that die, and locks that are never released."""

    def setUp(self):
        if psycopg2 is None:
            self.skipTest("python3-psycopg2 is not installed")
        self.programs, self.recorder = bindir(), recorder_binary()
        holder = tempfile.TemporaryDirectory(prefix="pgcut-limits-", dir=SCRATCH)
        self.addCleanup(holder.cleanup)
        os.chmod(holder.name, 0o755)
        self.scratch = holder.name

    def plan(self, scenario, seconds):
        settings, checksums = matrix.draw(2, **SETTINGS)
        return record.Plan(2, matrix.replicating(settings), checksums, seconds=seconds, lives=1,
                           kinds=KINDS, scenario=scenario)

    def complaints(self, scenario, **methods):
        """Record a server, with methods of the scenario replaced; return what is complained of.

        Its load would go on for longer than any limit.
        """
        altered = type("Altered", (record.SCENARIOS[scenario],), methods)
        directory = Path(self.scratch) / "recording"
        with mock.patch.dict(record.SCENARIOS, {scenario: altered}):
            record.make(directory, self.plan(scenario, LONG), self.programs, self.recorder,
                        self.scratch)
        for log in ("server.log", *(("primary.log",) if scenario == "standby" else ())):
            self.assertIn("ready to accept", (directory / log).read_text())
        return [ack["text"] for ack in record.json.loads(
            "[" + ",".join((directory / "acks.jsonl").read_text().splitlines()) + "]")
            if ack["what"] == "complaint"]

    @staticmethod
    def killed(which):
        """Return methods of a scenario one of whose servers is killed when the load begins."""
        def workloads(self):
            victim = getattr(self, which)._process.pid
            threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
            return self.plan.kinds
        return {"workloads": workloads}

    def test_primary_of_a_standby_is_killed(self):
        found = self.complaints("standby", **self.killed("primary"))
        self.assertIn("its primary has ended by itself, with status -9; its log is primary.log",
                      found)

    def test_standby_is_killed(self):
        """Commits wait for it until the guard sees that it is gone, and ends them."""
        found = self.complaints("standby", **self.killed("server"))
        self.assertIn("the recorded server has ended by itself, with status -9; its log is "
                      "server.log", found)

    def test_recorded_server_is_killed(self):
        found = self.complaints("primary", **self.killed("server"))
        self.assertIn("the recorded server has ended by itself, with status -9; its log is "
                      "server.log", found)

    def test_primary_of_a_standby_is_killed_after_the_load(self):
        def load(scenario, instance):
            os.kill(scenario.primary._process.pid, signal.SIGKILL)
            while instance.alive():     # until the guard ends it
                time.sleep(0.01)
        found = self.complaints("standby", load=load)
        self.assertIn("its primary has ended by itself, with status -9; its log is primary.log",
                      found)

    def test_servers_that_are_stopped(self):
        def load(scenario, instance):
            scenario.primary.stop()
            scenario.guard.look()
            scenario.start_primary()
        self.assertEqual(self.complaints("standby", load=load), [])

    def test_what_servers_said_before_a_hang(self):
        def load(scenario, instance):
            with open(scenario.primary_log, "a") as log:
                log.write("TRAP: failed Assert\n")
            raise limits.Hang("the load hangs")
        with self.assertRaises(limits.Hang) as raised:
            self.complaints("standby", load=load)
        self.assertIn("its primary: TRAP: failed Assert", raised.exception.__notes__)

    def test_load_that_waits_for_a_lock(self):
        def workloads(scenario):
            session = scenario.server.connect()
            session.cursor().execute("LOCK TABLE oracle.journal")
            self.addCleanup(session.close)
            return scenario.plan.kinds
        with mock.patch.object(primary, "HANG_SECONDS", 2 * SHORT - LONG), \
                self.assertRaises(limits.Hang) as raised:
            self.complaints("primary", workloads=workloads)
        self.assertRegex(str(raised.exception), r"^the load did not end within \d+ s: .* waiting")

    def test_reader_that_waits_for_a_lock(self):
        data = record.prepared(Path(self.scratch) / "data", self.plan("primary", 1),
                               self.programs, self.scratch)
        log = Path(self.scratch) / "server.log"
        log.touch()
        server.own(log)
        instance = server.Server(self.programs, data, log)
        self.addCleanup(instance.close)
        instance.start()
        with contextlib.closing(instance.connect()) as session:
            cursor = session.cursor()
            cursor.execute("LOCK TABLE oracle.journal")
            reader = readers.Reader(instance.connect)
            reader.start()
            while not cursor.rowcount > 0:
                cursor.execute("SELECT FROM pg_locks WHERE NOT granted")
            with self.assertRaises(limits.Hang) as raised:
                reader.end(1)
        self.assertRegex(str(raised.exception),
                         r"^reading snapshots did not end .*\[local\] SELECT waiting")
        self.assertFalse(reader.is_alive())


if __name__ == "__main__":
    unittest.main()
