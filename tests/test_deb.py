"""What is added to Debian's source package, and the versions of ours."""

import subprocess
from unittest import TestCase

from fixture import RepositoryCase

from common.base import DevError
from devtools import deb


class SourcePackageTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.tree = self.paths.root / "tree"
        self.write(self.tree / "debian" / "patches" / "series", "50-debian.patch\n")

    def apply_new_files(self):
        subprocess.run(["git", "apply", "-"], cwd=self.tree, check=True,
                       input=deb.new_files_patch(self.paths.overlay))

    def test_patches_follow_those_of_debian(self):
        self.import_()
        self.commit("Hook", {"src/main.c": self.edited_main(), "src/a/a.c": "a\nb\n"})
        self.export()
        deb.add_patches(self.paths, self.tree)
        patches = self.tree / "debian" / "patches"
        names = (patches / "series").read_text().splitlines()
        self.assertEqual(names, ["50-debian.patch", "double-writes/0001-hook.patch",
                                 "double-writes/new-files.patch"])
        for name in names[1:]:
            self.assertTrue((patches / name).is_file())

    def test_new_files_come_out_as_they_were(self):
        texts = {"src/a/a.c": "one\n\ttwo\n\n", "doc/b.sgml": "-- x\n+++ y\n"}
        for name, text in texts.items():
            self.write(self.paths.overlay / name, text)
        self.apply_new_files()
        for name, text in texts.items():
            self.assertEqual((self.tree / name).read_text(), text)

    def test_empty_file_gets_an_empty_line(self):
        self.write(self.paths.overlay / "src" / "empty", "")
        self.apply_new_files()
        self.assertEqual((self.tree / "src" / "empty").read_text(), "\n")

    def test_packaging_is_appended(self):
        delta = self.paths.repo / "packaging" / "debian"
        self.write(delta / "some.install", "usr/bin/new\n")
        self.write(delta / "tests" / "control", "Tests: one\nDepends:\n a,\n b-1.2,\n")
        self.write(delta / "tests" / "one", "#!/bin/sh\n")
        self.write(self.tree / "debian" / "some.install", "usr/bin/old\n")
        self.write(self.tree / "debian" / "tests" / "control", "Tests: zero\n")
        deb.add_packaging(self.paths, self.tree)
        target = self.tree / "debian"
        self.assertEqual((target / "some.install").read_text(), "usr/bin/old\nusr/bin/new\n")
        self.assertEqual((target / "tests" / "control").read_text(),
                         "Tests: zero\n\nTests: one\nDepends:\n a,\n b-1.2,\n")
        self.assertTrue((target / "tests" / "one").stat().st_mode & 0o100)
        self.assertEqual(deb.parse_tests((delta / "tests" / "control").read_text()),
                         [("one", ["a", "b-1.2"])])

    def test_changelog(self):
        """Our entry is on top, of the time that the commit has."""
        self.write(self.tree / "debian" / "changelog",
                   "pg (18.6-3) unstable; urgency=medium\n\n  * x\n\n"
                   " -- A <a@example.org>  Mon, 23 Nov 2026 10:00:00 +0000\n")
        deb.add_changelog_entry(self.tree, deb.SUITES["bookworm"], "18.6-3.x", 0, "Change.")
        lines = (self.tree / "debian" / "changelog").read_text().splitlines()
        self.assertEqual(lines[0], "pg (18.6-3.x) bookworm; urgency=medium")
        self.assertIn("Thu, 01 Jan 1970 00:00:00", lines[4])
        self.assertEqual(lines[6], "pg (18.6-3) unstable; urgency=medium")


class CompareTest(RepositoryCase):

    def test_packages_of_two_builds(self):
        """What tells of the build, and not of packages, may differ."""
        one, other = (self.paths.root / name for name in ("one", "other"))
        for directory in (one, other):
            self.write(directory / "a.deb", "a")
            self.write(directory / "a.buildinfo", directory.name)
        deb.compare(one, other)
        self.write(one / "b.deb", "b")
        self.write(other / "a.deb", "A")
        with self.assertRaisesRegex(DevError, "differ in 2 packages: a.deb, b.deb"):
            deb.compare(one, other)


class VersionTest(TestCase):

    def test_order(self):
        """Ours are later than all that is made of the same revision, earlier than the next."""
        bookworm, trixie, sid = (deb.SUITES[name] for name in ("bookworm", "trixie", "sid"))
        order = ["18.6-3~deb13u1", "18.6-3", "18.6-3+b1", "18.6-3+deb13u1",
                 "18.6-3.pgdg12+1", "18.6-3.pgdg13+1", "18.6-3.pgdg120+1", "18.6-3.pgdg+1",
                 *(suite.version("18.6-3") for suite in (bookworm, trixie, sid)),
                 "18.6-4", "18.7-1.pgdg12+1"]
        for one, other in zip(order, order[1:]):
            with self.subTest(f"{one} < {other}"):
                subprocess.run(["dpkg", "--compare-versions", one, "lt", other], check=True)

    def test_stock(self):
        """Where the archive has stock, its version is as it is."""
        self.assertEqual(deb.SUITES["sid"].version_of_stock("18.6-3"), "18.6-3")
        self.assertEqual(deb.SUITES["trixie"].version_of_stock("18.6-3"), "18.6-3.pgdg13+1")
