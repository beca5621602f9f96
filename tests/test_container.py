"""Tests of the part of the container's entry point that root runs, and of its probes.

The functions are called one by one on directories of ours; the server that is probed is made up.
"""

import contextlib
import os
import pwd
import subprocess
import tempfile
from pathlib import Path
from unittest import TestCase, skipUnless

CONTAINER = Path(__file__).resolve().parents[1] / "packaging" / "container"
SCRIPT = CONTAINER / "docker-entrypoint.sh"


class EntryPointTest(TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.base = Path(scratch.name)
        self.data, self.log = self.base / "data", self.base / "log"
        self.user = pwd.getpwuid(os.getuid()).pw_name

    def call(self, commands, **variables):
        environment = {**os.environ, "PGDATA": str(self.data), "HOME": "/root",
                       "POSTGRES_INITDB_DWDIR": str(self.log), **variables}
        return subprocess.run(
            ["bash", "-c", f"source {SCRIPT}; server_user={self.user}; "
             f"socket_directory={self.base}/sockets; {commands}"],
            env=environment, capture_output=True, text=True, check=True).stdout.strip()

    def make_cluster(self):
        self.call("make_directories")
        (self.data / "PG_VERSION").write_text("18\n")

    def test_new_cluster(self):
        self.call("make_directories")
        self.assertTrue(self.log.is_dir())
        self.assertEqual(self.data.stat().st_mode & 0o777, 0o700)

    def test_missing_log_directory_stays_missing(self):
        self.make_cluster()
        self.log.rmdir()
        self.call("make_directories")
        self.assertFalse(self.log.exists())

    @skipUnless(os.getuid() == 0, "gives files away")
    def test_owners(self):
        """Only files in the data directory change their owner."""
        self.make_cluster()
        self.user = "nobody"
        outside, inside = self.base / "outside", self.data / "inside"
        for file in (outside, inside, self.log / "file"):
            file.write_text("")
        (self.data / "link").symlink_to(outside)
        self.call("make_directories")
        self.assertEqual(inside.owner(), "nobody")
        self.assertEqual(outside.owner(), "root")
        self.assertEqual((self.log / "file").owner(), "root")
        self.assertEqual(self.log.owner(), "root")

    def test_home(self):
        home = self.call("setpriv() { :; }; exec() { echo $HOME; }; become_server_user postgres")
        self.assertEqual(home, pwd.getpwnam(self.user).pw_dir)
        self.user = "nobody"
        home = self.call("setpriv() { :; }; exec() { echo $HOME; }; become_server_user postgres")
        self.assertEqual(home, pwd.getpwnam("nobody").pw_dir)


class HealthTest(TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.base = Path(scratch.name)

    def probe(self, state, wanted, progress=None):
        """Return (exit status, output) of a probe of a server in a state of pg_isready."""
        file = self.base / "recovery_progress"
        for name, does in (("pg_isready", f"exit {state}"), ("pg_ctl", "echo $*")):
            (self.base / name).write_text(f"#!/bin/sh\n{does}\n")
            (self.base / name).chmod(0o755)
        file.unlink(missing_ok=True)
        if progress is not None:
            file.write_text(progress)
        done = subprocess.run(
            [CONTAINER / "postgres-health", wanted], capture_output=True, text=True,
            env={**os.environ, "PATH": f"{self.base}:{os.environ['PATH']}", "PGDATA": self.base})
        return done.returncode, done.stdout.strip()

    def test_server_that_serves(self):
        for wanted in ("live", "ready"):
            self.assertEqual(self.probe(0, wanted), (0, "accepting connections"))

    @contextlib.contextmanager
    def worker(self, title):
        """Have a postmaster with a process of this title."""
        postmaster = subprocess.Popen(["bash", "-c", 'exec -a "$0" sleep 600 & echo; wait', title],
                                      stdout=subprocess.PIPE)
        try:
            postmaster.stdout.readline()
            (self.base / "postmaster.pid").write_text(f"{postmaster.pid}\n{self.base}\n")
            yield
        finally:
            subprocess.run(["pkill", "--parent", str(postmaster.pid)], check=False)
            postmaster.wait()
            postmaster.stdout.close()

    def test_pages_that_are_redone(self):
        with self.worker("postgres: main: recovery worker 1 redoing pages, 7 to go"):
            self.assertEqual(self.probe(0, "ready"), (0, "accepting connections"))
            self.assertEqual(self.probe(0, "before-stop"), (0, "--mode=immediate --wait stop"))
        with self.worker("postgres: main: walwriter "):
            self.assertEqual(self.probe(0, "before-stop"), (0, ""))

    def test_pages_that_cannot_be_redone(self):
        with self.worker("postgres: recovery worker 1 redoing pages, 7 to go, 2 failed"):
            for wanted, status in (("ready", 1), ("live", 0)):
                found, said = self.probe(0, wanted)
                self.assertEqual(found, status)
                self.assertIn(": 7 to go, 2 failed", said)

    def test_recovery_is_alive(self):
        progress = "percent = 63\nbytes_left = 9\nseconds_left = 40\n"
        self.assertEqual(self.probe(1, "live", progress), (0, "recovering, 63 %, 40 s to go"))
        self.assertEqual(self.probe(1, "ready", progress), (1, "recovering, 63 %, 40 s to go"))

    def test_nothing_known_of_recovery(self):
        self.assertEqual(self.probe(1, "ready", "percent = 3\nseconds_left = -1\n"),
                         (1, "recovering, 3 %"))
        status, said = self.probe(1, "live")
        self.assertEqual((status, said[:10]), (0, "not ready:"))

    def test_no_answer(self):
        for wanted in ("live", "ready"):
            for state in (2, 3):
                self.assertEqual(self.probe(state, wanted), (1, "no answer"))
