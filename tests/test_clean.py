"""./dev clean: what goes, what stays, and when it refuses."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fixture import RepositoryCase

from bench import cli as bench
from common import base
from common.base import DevError
from devtools import clean


class CleanTest(RepositoryCase):

    def setUp(self):
        super().setUp()
        self.import_()
        for name in ("build/test/postgres", "install/test/bin/postgres", "crash/state/file",
                     "ccache/object"):
            self.write(self.paths.root / name, "x" * 100)
        # Prepared clusters of benchmarks are not ours to remove.
        stub = mock.patch.object(clean.bench, "clean")
        self.addCleanup(stub.stop)
        self.cleaned = stub.start()

    def names(self):
        return {place.name for place in self.paths.root.iterdir()}

    def test_builds_go_and_edits_stay(self):
        self.write(self.paths.work / "src/main.c", "edited")
        self.assertGreaterEqual(clean.clean(self.paths), 300)
        self.assertLessEqual(self.names(), set(clean.KEPT))
        self.assertEqual((self.paths.work / "src/main.c").read_text(), "edited")
        self.assertTrue((self.paths.root / "ccache/object").exists())
        self.cleaned.assert_called_once()

    def test_all(self):
        clean.clean(self.paths, everything=True)
        self.assertEqual(self.names(), {"lock"})

    def test_all_refuses_to_lose_edits(self):
        self.write(self.paths.work / "src/main.c", "edited")
        with self.assertRaisesRegex(DevError, "not exported"):
            clean.clean(self.paths, everything=True)
        self.assertTrue((self.paths.root / "build/test/postgres").exists())

    def test_a_program_that_runs(self):
        program = self.paths.root / "install" / "sleep"
        shutil.copy("/bin/sleep", program)
        with subprocess.Popen([program, "60"]) as child:
            try:
                with self.assertRaisesRegex(DevError, f"sleep runs, process {child.pid}"):
                    clean.clean(self.paths)
            finally:
                child.kill()
        self.assertTrue(program.exists())

    def test_links_are_not_followed(self):
        outside = self.paths.root.parent / "outside"
        self.write(outside / "file", "kept")
        (self.paths.root / "link").symlink_to(outside)
        clean.clean(self.paths)
        self.assertFalse((self.paths.root / "link").is_symlink())
        self.assertTrue((outside / "file").exists())


class OthersTest(unittest.TestCase):
    """What is in the directories that the variables name is not ours to remove."""

    def test_what_was_there_stays(self):
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            (place / "repo").mkdir()
            (place / "photos").write_text("kept")
            with mock.patch.dict(os.environ, PGDW_BUILD_ROOT=scratch, PGDW_BENCH_DIR=scratch):
                paths = base.locate(place / "repo")
                for ours in (paths.root / "build", bench.storage.default_work_directory()):
                    (ours / "deep").mkdir(parents=True, exist_ok=True)
                clean.clean(paths, everything=True)
                self.assertFalse((paths.root / "build").exists())
                self.assertFalse(bench.storage.default_work_directory().joinpath("deep").exists())
            self.assertEqual((place / "photos").read_text(), "kept")
            self.assertTrue((place / "repo").exists())
