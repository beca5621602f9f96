"""The user that runs servers, and its directories: called as root, ./dev must harm no other."""

import os
import pwd
import sys
import tempfile
from pathlib import Path
from unittest import TestCase, mock, skipUnless

from common import base, postgres
from common.base import DevError

REPO = Path(__file__).resolve().parents[1]

# What is done in one place, for all parts.
HOMES = {"getpwnam": "base", "os.chown(": "base", "os.seteuid(": "base", '"initdb",': "postgres",
         '"pg_ctl",': "postgres", "psycopg2.connect(": "postgres"}


class ServerUserTest(TestCase):

    def setUp(self):
        base.server_user.cache_clear()
        self.addCleanup(base.server_user.cache_clear)

    def user(self, *existing):
        """Return the name of the server user on a machine with these users, and what was run."""
        users, ran = set(existing), []

        def getpwnam(name):
            if name not in users:
                raise KeyError(name)
            return pwd.struct_passwd((name, "x", 123, 123, "", "/", "/bin/false"))

        def run(command, **_):
            ran.append(command[0])
            users.add(command[-1])
        with mock.patch.object(base.os, "getuid", lambda: 0), mock.patch.object(base, "run", run), \
                mock.patch.object(base, "say"), mock.patch.object(base.pwd, "getpwnam", getpwnam):
            return base.server_user().pw_name, ran

    def test_never_somebody_elses(self):
        self.assertEqual(self.user("postgres"), ("pgdw", ["useradd"]))

    def test_ours_if_it_exists(self):
        self.assertEqual(self.user("postgres", "pgdw"), ("pgdw", []))

    def test_nobody_but_root_needs_one(self):
        with mock.patch.object(base.os, "getuid", lambda: 1000):
            self.assertIsNone(base.server_user())

    def test_one_for_all_parts(self):
        """None of the parts looks for users itself, gives files away, or makes clusters."""
        files = {file.relative_to(REPO).as_posix(): file.read_text()
                 for part in ("bench", "common", "crash/pgcut", "devtools", "packaging")
                 for file in (REPO / part).rglob("*.py")}
        for what, home in HOMES.items():
            with self.subTest(what=what):
                self.assertEqual([name for name, text in files.items() if what in text],
                                 [f"common/{home}.py"])

    def test_explorer(self):
        sys.path.insert(0, str(REPO / "crash"))
        self.addCleanup(sys.path.remove, str(REPO / "crash"))
        from pgcut import server
        self.assertIs(server.server_user, base.server_user)
        self.assertTrue(issubclass(server.Server, postgres.Server))


class DirectoryTest(TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.shared = Path(scratch.name)
        self.place = self.shared / "place"

    def refuses(self, why):
        with self.assertRaisesRegex(DevError, why):
            base.make_own_directory(self.place, "VARIABLE")

    def test_made(self):
        base.make_own_directory(self.place, "VARIABLE")
        base.make_own_directory(self.place, "VARIABLE")
        self.assertEqual(self.place.stat().st_mode & 0o022, 0)

    def test_link(self):
        """It leads to a directory of ours, as one that was planted for us would."""
        self.place.symlink_to(tempfile.mkdtemp(dir=self.shared))
        self.refuses("is a link")

    def test_link_to_nothing(self):
        self.place.symlink_to(self.shared / "elsewhere")
        self.refuses("is a link")
        self.assertFalse((self.shared / "elsewhere").exists())

    def test_others_may_write(self):
        self.place.mkdir()
        self.place.chmod(0o777)
        self.refuses("others may write")

    @skipUnless(os.getuid() == 0, "gives files away")
    def test_somebody_elses(self):
        self.place.mkdir()
        os.chown(self.place, 65534, 65534)
        self.refuses("belongs to another user")

    def test_build_root(self):
        """The predictable name below /dev/shm is what is refused, not passed over."""
        repo = self.shared / "repo"
        repo.mkdir()
        with mock.patch.dict(os.environ), mock.patch.object(base, "_runs_programs", lambda _: True), \
                mock.patch.object(base, "_free", lambda _: base.MIN_TMPFS_BYTES):
            os.environ.pop("PGDW_BUILD_ROOT", None)
            self.place = base._choose_root(repo)
            self.addCleanup(self.place.unlink)
            self.place.symlink_to(self.shared)
            with self.assertRaisesRegex(DevError, "is a link"):
                base.locate(repo)

    @skipUnless(os.getuid() == 0, "gives files away")
    def test_links_are_not_followed(self):
        outside = self.shared / "outside"
        outside.mkdir()
        (outside / "file").write_text("")
        self.place.mkdir()
        (self.place / "link").symlink_to(outside)
        (self.place / "file").write_text("")
        user = pwd.getpwnam("nobody")
        with mock.patch.object(base, "server_user", lambda: user):
            base.give_to_user(self.place)
        self.assertEqual((self.place / "file").owner(), "nobody")
        self.assertEqual(outside.owner(), "root")
        self.assertEqual((outside / "file").owner(), "root")
