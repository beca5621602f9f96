"""What is added to Debian's source package."""

import subprocess

from fixture import RepositoryCase

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
        self.assertEqual(deb._tests(delta / "tests" / "control"), [("one", ["a", "b-1.2"])])
