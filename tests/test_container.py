"""The container's entry point, as root's part of it: the functions alone, on directories of ours."""

import os
import pwd
import subprocess
import tempfile
from pathlib import Path
from unittest import TestCase, skipUnless

SCRIPT = Path(__file__).resolve().parents[1] / "packaging" / "container" / "docker-entrypoint.sh"


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
        """What is there belongs to whom it did, but for files in the data directory."""
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
