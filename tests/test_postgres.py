"""The servers of all tools: one way to make them, to say why they failed, to kill them."""

import os
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import TestCase, mock, skipUnless

from bench.server import Server as Measured
from common import postgres
from common.base import DevError, Paths, as_user, own, server_user
from common.postgres import Controlled, Server, ServerError
from devtools.cluster import Cluster

# Leaves its arguments behind.
NOTE = 'echo "$@" >> "$(dirname "$0")/$(basename "$0").arguments"\n'


class PostgresTest(TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.place = Path(scratch.name)
        self.bindir, self.data = self.place / "bin", self.place / "data"
        own(self.place)
        for directory in (self.bindir, self.data):
            directory.mkdir()
            own(directory)

    def program(self, name, script):
        """Make a program of the build."""
        path = self.bindir / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def arguments(self, name):
        """Return the arguments of each call of a program that has noted them."""
        text = (self.bindir / f"{name}.arguments").read_text()
        return [line.split() for line in text.replace(str(self.data), "DATA").splitlines()]

    def server(self, kind=Server):
        return kind(self.bindir, self.data, self.place / "log", postgres.environment())

    def paths(self):
        return Paths(self.place / "repo", self.place / "root")

    @contextmanager
    def process(self, *command, **options):
        """Run a process meanwhile."""
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, **options) as process:
            try:
                yield process
            finally:
                process.kill()

    # Programs

    def test_output_is_quoted(self):
        self.program("pg_rewind", "echo begun; echo broken >&2; exit 1")
        with self.assertRaisesRegex(ServerError, "pg_rewind failed: begun\nbroken"):
            self.server().call("pg_rewind")
        self.assertEqual(self.server().call("pg_rewind", check=False).returncode, 1)

    def test_callers_environment(self):
        self.program("psql", "echo $PGHOST $PGPORT")
        with mock.patch.dict(os.environ, PGHOST="elsewhere"):
            env = postgres.environment({"PGPORT": "1"})
            done = postgres.run_program(self.bindir, "psql", env=env)
        self.assertEqual(done.stdout, "1\n")

    def test_initdb(self):
        self.program("initdb", NOTE)
        self.server().create("--wal-segsize=1")
        Measured(self.paths(), self.bindir, self.data).create()
        common = ["-D", "DATA", "-U", "postgres", "--encoding=UTF8", "--no-instructions"]
        self.assertEqual(self.arguments("initdb"), [
            [*common, "--wal-segsize=1"],
            [*common, "--auth=trust", "--no-locale", "--no-sync"]])

    # Starting

    def test_why_it_did_not_start(self):
        self.program("pg_ctl", "seq 20 > $(dirname $0)/../log; exit 1")
        tail = "\n".join(map(str, range(6, 21)))
        with self.assertRaisesRegex(ServerError, f"the server did not start:\n{tail}$"):
            self.server(Controlled).start()

    def test_no_log(self):
        self.program("pg_ctl", "exit 1")
        with self.assertRaisesRegex(DevError, r"did not start:\n\(no log\)"):
            self.server(Controlled).start()

    def test_cluster(self):
        """A new one is made so that only this machine's users get in; what fails has a hint."""
        self.program("initdb", NOTE)
        self.program("pg_ctl", NOTE + "exit 1")
        with mock.patch.dict(os.environ, PGPORT="7"), self.assertRaises(DevError) as caught:
            Cluster(self.paths(), self.bindir, self.data).run()
        self.assertEqual(caught.exception.hint, f"the whole log is {self.data}/server.log")
        self.assertEqual(self.arguments("initdb")[0][-2:],
                         ["--auth-local=trust", "--auth-host=scram-sha-256"])
        self.assertEqual(self.arguments("pg_ctl")[1], [
            "-D", "DATA", "-t", "3600", "-l", "DATA/server.log", "-w", "-o",
            "-p", "7", "-k", "'DATA'", "start"])

    def test_measured(self):
        """It listens on a socket of its own, whose directory goes with it."""
        self.program("pg_ctl", NOTE)
        server = Measured(self.paths(), self.bindir, self.data)
        server.start(wait=False)
        sockets = server.sockets
        self.assertIn(f"unix_socket_directories = '{sockets}'\n",
                      (self.data / "postgresql.conf").read_text())
        server.stop()               # no process: it has ended by itself
        self.assertFalse(sockets.exists())
        server.start()
        (self.data / "postmaster.pid").write_text("1\n")
        server.stop("immediate")
        self.assertEqual(self.arguments("pg_ctl"), [
            ["-D", "DATA", "-t", "1800", "-l", "DATA.log", "-W", "-s", "start"],
            ["-D", "DATA", "-t", "1800", "-l", "DATA.log", "-w", "-s", "start"],
            ["-D", "DATA", "-t", "1800", "-m", "immediate", "-w", "-s", "stop"]])

    def test_measured_that_does_not_start(self):
        self.program("pg_ctl", "exit 1")
        server = Measured(self.paths(), self.bindir, self.data)
        with self.assertRaises(DevError):
            server.start()
        self.assertFalse(server.sockets.exists())

    def test_until_ready(self):
        server = Measured(self.paths(), self.bindir, self.data)
        ready = "LOG:  database system is ready to accept connections\n"
        server.log.write_text(ready)
        looks = []

        def look():
            """The second time, the server is ready."""
            looks.append(1)
            with open(server.log, "a") as log:
                log.write(ready if len(looks) > 1 else "LOG:  redo\n")
        self.assertEqual(server.until_ready(len(ready), 0, look), "LOG:  redo\n" + ready)
        server.log.write_text("LOG:  database system is shut down\n")
        with self.assertRaisesRegex(DevError, "(?s)did not recover:.*is shut down"):
            server.until_ready(0, 0)

    # What it says of itself

    def test_postmaster(self):
        lock = self.data / "postmaster.pid"
        self.assertEqual((self.server().lock_file(), self.server().postmaster()), ([], None))
        with self.process("sleep", "600", cwd=self.data) as process:
            lock.write_text(f"{process.pid}\n{self.data}\n")
            self.assertEqual(self.server().postmaster(), process.pid)
        self.assertIsNone(self.server().postmaster())
        lock.write_text("")
        self.assertIsNone(self.server().postmaster())

    def test_number_of_another_process(self):
        with self.process("sleep", "600", cwd=self.place) as process:
            (self.data / "postmaster.pid").write_text(f"{process.pid}\n")
            self.assertIsNone(self.server().postmaster())

    def test_log(self):
        server = self.server()
        self.assertEqual(server.log_text(), "")
        server.log.write_text("one\n")
        end = server.log_size()
        with open(server.log, "ab") as log:
            log.write(b"tw\xff\n")
        self.assertEqual(server.log_text(end), "tw\ufffd\n")
        self.assertEqual(server.log_tail(), "one\ntw\ufffd")

    def test_query(self):
        connection = mock.MagicMock()
        cursor = connection.cursor.return_value.__enter__.return_value
        cursor.fetchone.return_value = (7, 8)
        with mock.patch.object(postgres, "connect", return_value=connection) as connect:
            server = self.server()
            server.sockets = self.place
            self.assertEqual(server.query("SELECT 7, 8"), 7)
            cursor.description = None
            self.assertIsNone(server.query("CHECKPOINT"))
        self.assertEqual(connect.call_args, mock.call(host=self.place))
        self.assertEqual(connection.close.call_count, 2)

    # Files of the server user's

    def test_settings(self):
        file = self.data / "postgresql.conf"
        for durably in (False, True):
            postgres.write_settings(file, {"port": 1, "work_mem": "4MB"}, durably)
        self.assertEqual(file.read_text(), "port = '1'\nwork_mem = '4MB'\n" * 2)
        self.assertEqual(file.stat().st_uid, self.data.stat().st_uid)

    @skipUnless(os.getuid() == 0, "root makes files for others")
    def test_user(self):
        with as_user():
            (self.data / "file").touch()
        sockets = postgres.socket_directory()
        self.addCleanup(sockets.rmdir)
        for path in (self.data / "file", sockets):
            self.assertEqual((path.stat().st_uid, path.stat().st_gid),
                             (server_user().pw_uid, server_user().pw_gid))
        self.assertEqual((os.geteuid(), os.getegid()), (0, 0))


class FamilyTest(TestCase):

    def family(self):
        """Start a process with a child and a grandchild; returns it when all are there."""
        process = subprocess.Popen(["sh", "-c", "sh -c 'sleep 600 & echo; wait' & wait"],
                                   stdout=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        process.stdout.readline()
        return process

    def test_all_are_gone(self):
        process = self.family()
        family = [process.pid, *postgres.descendants(process.pid)]
        self.assertEqual(len(family), 3)
        self.assertEqual(len(postgres.children(process.pid)), 1)
        self.assertEqual(postgres.kill_family(process.pid), 3)
        for pid in family:
            self.assertIn((postgres.stat_fields(pid) or "Z")[0], "ZX")

    def test_no_process_sees_its_parent_go(self):
        """The first one is stopped before the others are looked up, and is the last to be killed."""
        process = self.family()
        below = postgres.descendants(process.pid)
        sent = []

        def kill(pid, number):
            sent.append((pid, number))
            os.kill(pid, number)
        with mock.patch.object(postgres, "kill",
                               lambda pid, number=signal.SIGKILL: kill(pid, number)):
            postgres.kill_family(process.pid)
        self.assertEqual(sent[0], (process.pid, signal.SIGSTOP))
        self.assertEqual(sent[-1], (process.pid, signal.SIGKILL))
        self.assertEqual({pid for pid, _ in sent[1:-1]}, set(below))

    def test_one_that_does_not_go(self):
        process = self.family()
        with mock.patch.object(postgres, "END_SECONDS", 0), \
                mock.patch.object(postgres, "kill"), self.assertRaises(ServerError):
            postgres.kill_family(process.pid)
        postgres.kill_family(process.pid)

    def test_halt(self):
        process = self.family()
        child, = postgres.children(process.pid)
        self.assertTrue(postgres.halt(child))
        self.assertEqual(postgres.stat_fields(child)[0], "T")
        postgres.kill(process.pid, signal.SIGSTOP)      # which does not wait for its child
        postgres.kill(child)
        while postgres.stat_fields(child)[0] != "Z":
            time.sleep(0.001)
        self.assertFalse(postgres.halt(child))
        postgres.kill_family(process.pid)
        process.wait()
        self.assertFalse(postgres.halt(process.pid))

    def test_number_of_another_process(self):
        """A process whose number is that of another one by now counts as gone."""
        self.assertTrue(postgres._is_gone(os.getpid(), "0"))
        self.assertFalse(postgres._is_gone(os.getpid(), postgres._started(os.getpid())))

    def test_nobody(self):
        self.assertEqual(postgres.descendants(None), [])
        self.assertEqual(postgres.stat_fields(None), [])
