"""The durability model against ext4 and xfs, and the judge against itself.

Longer runs: PGCUT_TEST_SEED, PGCUT_TEST_ROUNDS and PGCUT_TEST_CUTS.
"""

import os
import random
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from pgcut import block
from pgcut.block import BlockDisk, BlockError, BlockStore, block_image, mounted, random_choice
from pgcut.content import KEPT, LOST, SIZE_ONLY, sectors
from pgcut.disk import Choice
from pgcut.fileplayer import FileHistory, FilePlayer
from pgcut.modelcheck import OpenDisk, check, complaints, data_reason, found_tree
from pgcut.recording import ROOT_INO, SYNC_DATA, Kind, Recording
from recorder_binary import SCRATCH, recorder_binary

SEED = int(os.environ.get("PGCUT_TEST_SEED", 1))
ROUNDS = int(os.environ.get("PGCUT_TEST_ROUNDS", 1))


class ScratchCase(unittest.TestCase):
    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="pgcut-test-", dir=SCRATCH))
        self.addCleanup(shutil.rmtree, self.scratch)


class Script:
    """A history written by hand; every operation takes one tick."""

    def __init__(self):
        self.history = FileHistory()

    def do(self, kind, ino, **values):
        now = len(self.history.ops) + 1
        self.history.note(now, now, kind, ino, **values)
        return self

    def file(self, name, directory=ROOT_INO):
        ino = self.history.new_ino()
        self.do(Kind.CREATE, ino, a=directory, name=name)
        return ino

    def disk(self):
        disk = OpenDisk(self.history)
        disk.advance(len(self.history.ops))
        return disk


class JudgeTest(unittest.TestCase):
    """What complaints() lets pass and what not."""

    def setUp(self):
        self.script = Script()

    def assert_allowed(self, *trees):
        for tree in trees:
            self.assertEqual(complaints(self.script.disk(), tree), [], tree)

    def assert_forbidden(self, *trees):
        for tree in trees:
            self.assertNotEqual(complaints(self.script.disk(), tree), [], tree)

    def test_synced_file(self):
        ino = self.script.file("f")
        self.script.do(Kind.WRITE, ino, a=0, data=b"a" * 1024).do(Kind.SYNC, ino)
        self.assert_allowed({"f": ("f", b"a" * 1024)})
        self.assert_forbidden({}, {"f": ("f", b"a" * 512)}, {"f": ("f", b"b" * 1024)},
                              {"f": ("d", None)},
                              {"f": ("f", b"a" * 1024), "g": ("f", b"")})

    def test_pending_writes(self):
        ino = self.script.file("f")
        self.script.do(Kind.WRITE, ino, a=0, data=b"a" * 1024).do(Kind.SYNC, ino)
        self.script.do(Kind.WRITE, ino, a=512, data=b"b" * 1024)
        a, b = b"a" * 512, b"b" * 512
        self.assert_allowed(*({"f": ("f", content)} for content in (
            a + a, a + b, a + b + b, a + a + b, a + a + bytes(512))))
        self.assert_forbidden(*({"f": ("f", content)} for content in (
            a, b + a, a + b[:500] + a[:12], a + b + b + b, a + b + b[:100], a + bytes(512))))

    def test_pending_truncation(self):
        ino = self.script.file("f")
        self.script.do(Kind.WRITE, ino, a=0, data=b"a" * 12288).do(Kind.SYNC, ino)
        self.script.do(Kind.TRUNCATE, ino, a=4608)
        a = b"a" * 512
        self.assert_allowed({"f": ("f", a * 24)}, {"f": ("f", a * 9)},
                            {"f": ("f", a * 9 + bytes(7 * 512) + a * 8)})
        self.assert_forbidden({"f": ("f", a * 10)}, {"f": ("f", a * 8 + bytes(512) + a * 15)},
                              {"f": ("f", a * 9 + bytes(8 * 512) + a * 7)})

    def test_write_beyond_a_truncation(self):
        ino = self.script.file("f")
        self.script.do(Kind.WRITE, ino, a=0, data=b"a" * 12288).do(Kind.SYNC, ino)
        self.script.do(Kind.TRUNCATE, ino, a=4096)
        self.script.do(Kind.WRITE, ino, a=0, data=b"b" * 12288)
        a, b = b"a" * 4096, b"b" * 4096
        self.assert_allowed(*({"f": ("f", content)} for content in (
            a * 3, b + a * 2, a, b, b * 3, a + bytes(4096) + b)))
        self.assert_forbidden(*({"f": ("f", content)} for content in (
            a + b + a, b + a + b, a * 2 + b)))

    def test_parts_of_sectors_come_with_what_was_there(self):
        ino = self.script.file("f")
        self.script.do(Kind.SYNC, ino)
        self.script.do(Kind.WRITE, ino, a=0, data=b"a" * 100)
        self.script.do(Kind.WRITE, ino, a=100, data=b"b" * 600)
        one = b"a" * 100 + b"b" * 412
        self.assert_allowed(*({"f": ("f", content)} for content in (
            b"", b"a" * 100, bytes(100), one, one + b"b" * 188, bytes(700), bytes(512),
            bytes(512) + b"b" * 188, b"a" * 100 + bytes(600))))
        self.assert_forbidden(*({"f": ("f", content)} for content in (
            bytes(100) + b"b" * 412, b"a" * 50, one + b"b" * 100)))

    def test_names(self):
        ino = self.script.file("f")
        self.script.do(Kind.WRITE, ino, a=0, data=b"a" * 512).do(Kind.SYNC, ino)
        self.script.do(Kind.RENAME, ino, a=ROOT_INO, b=ROOT_INO, name="f", target="g")
        self.script.do(Kind.RENAME, ino, a=ROOT_INO, b=ROOT_INO, name="g", target="h")
        file = "f", b"a" * 512
        self.assert_allowed({"f": file}, {"g": file}, {"h": file})
        self.assert_forbidden({}, {"f": file, "g": file}, {"f": file, "h": file}, {"i": file})

    def test_data_sync_covers_a_creation_but_no_link(self):
        ino = self.script.file("f")
        self.script.do(Kind.LINK, ino, a=ROOT_INO, name="g").do(Kind.SYNC, ino, flags=SYNC_DATA)
        self.assert_allowed({"f": ("f", b"")}, {"f": ("f", b""), "g": ("f", b"")})
        self.assert_forbidden({"g": ("f", b"")}, {})
        self.script.do(Kind.SYNC, ino)
        self.assert_forbidden({"f": ("f", b"")})

    def test_lost_directory_takes_its_files_along(self):
        directory = self.script.history.new_ino()
        self.script.do(Kind.MKDIR, directory, a=ROOT_INO, name="d")
        ino = self.script.file("f", directory)
        self.assert_allowed({}, {"d": ("d", None)}, {"d": ("d", None), "d/f": ("f", b"")})
        self.script.do(Kind.SYNC, ino)
        self.assert_forbidden({}, {"d": ("d", None)})

    def test_all_that_the_model_makes_is_allowed(self):
        """The judge and Disk.tree() have the same model: random choices pass."""
        for seed in range(SEED, SEED + 12 * ROUNDS):
            with self.subTest(seed=seed), tempfile.TemporaryDirectory(dir=SCRATCH) as root:
                player = FilePlayer(root, time.monotonic_ns, seed, aligned=seed % 2 == 0)
                player.play(60)
                self.assert_choices_allowed(player.history, random.Random(seed))

    def assert_choices_allowed(self, history, rng):
        disk = OpenDisk(history)
        for cut in sorted(rng.choices(range(len(history.ops) + 1), k=8)):
            disk.advance(cut)
            for _ in range(4):
                choice = self.random_fates(disk, rng)
                tree = {path: (kind, None if content is None else bytes(content))
                        for path, kind, content in disk.tree(choice)}
                self.assertEqual(complaints(disk, tree), [], (cut, choice))

    def random_fates(self, disk, rng):
        fates = {}
        for op in disk.pending_data():
            fates[op.seq] = rng.choice((KEPT, LOST, SIZE_ONLY))
            if op.kind == Kind.WRITE and rng.random() < 0.4:
                fates[op.seq] = rng.getrandbits(sectors(op, 512))
        fates.update((op.seq, rng.choice((KEPT, LOST))) for op in disk.pending_names())
        return Choice(512, LOST, fates)

    def test_reason_names_the_place(self):
        self.assertIn("byte 3", data_reason(b"aaaaa", [], None, b"aaaba"))


class DeviceCase(ScratchCase):
    """Something with a recorded device, for each file system."""

    FSTYPE = "ext4"

    @classmethod
    def setUpClass(cls):
        cls.recorder = recorder_binary()

    def need(self, fstype):
        reason = block.why_not(fstype)
        if reason:
            self.skipTest(reason)

    def mounts(self):
        return Path("/proc/self/mounts").read_text().count(str(self.scratch))

    def workdir(self, name):
        path = self.scratch / name
        path.mkdir()
        return path


class BlockTest(DeviceCase):
    """The second layer by itself."""

    def setUp(self):
        super().setUp()
        self.need(self.FSTYPE)

    def test_image_has_what_was_flushed(self):
        with BlockStore(self.FSTYPE, 32, self.workdir("w"), self.recorder) as store:
            with open(store.mountpoint / "synced", "wb") as file:
                file.write(b"s" * 100_000)
                file.flush()
                os.fsync(file.fileno())
            cut = store.operations()
            (store.mountpoint / "late").write_bytes(b"l" * 100_000)
        recording = Recording(store.directory)
        lost, kept = self.scratch / "lost", self.scratch / "kept"
        block_image(recording, cut, lambda pending: Choice(512, LOST), lost)
        block_image(recording, len(recording.ops), lambda pending: Choice(512, KEPT), kept)
        with mounted(lost, self.FSTYPE) as mountpoint:
            self.assertEqual(found_tree(mountpoint), {"synced": ("f", b"s" * 100_000)})
        with mounted(kept, self.FSTYPE) as mountpoint:
            self.assertEqual(sorted(found_tree(mountpoint)), ["late", "synced"])

    def test_masks_write_single_sectors(self):
        with BlockStore(self.FSTYPE, 32, self.workdir("w"), self.recorder) as store:
            (store.mountpoint / "f").write_bytes(random.Random(1).randbytes(50_000))
        recording = Recording(store.directory)
        write = next(op for op in recording.ops[store.first:]
                     if op.kind == Kind.WRITE and op.length >= 4096)
        disk = BlockDisk(recording, self.scratch / "durable")
        disk.advance(write.seq)
        image = self.scratch / "image"
        disk.image(Choice(512, LOST, {write.seq: 0b101}), image)
        before = (self.scratch / "durable").read_bytes()[write.a:write.a + 4096]
        after, data = image.read_bytes()[write.a:write.a + 4096], recording.data(write)[:4096]
        for sector in range(8):
            part = slice(sector * 512, sector * 512 + 512)
            self.assertEqual(after[part], (data if sector in (0, 2) else before)[part])

    def test_short_writes_of_ext4_stay_whole(self):
        """A torn superblock would not be mounted; see FILE_SYSTEMS."""
        script = Script()
        script.do(Kind.WRITE, 2, a=1024, data=bytes(1024))
        pending = script.history.ops
        for fstype, whole in (("ext4", True), ("xfs", False)):
            fates = {random_choice(random.Random(seed), pending, fstype).fate(pending[0])
                     for seed in range(100)}
            self.assertEqual(fates <= {KEPT, LOST}, whole)

    def test_nothing_is_left_after_an_error(self):
        before = self.mounts(), loops(self.scratch)
        with self.assertRaisesRegex(ValueError, "mine"), \
                BlockStore(self.FSTYPE, 32, self.workdir("w"), self.recorder):
            raise ValueError("mine")
        garbage = self.scratch / "garbage"
        garbage.write_bytes(b"x" * (1 << 20))
        with self.assertRaises(BlockError), mounted(garbage, self.FSTYPE):
            pass
        with self.assertRaises(FileNotFoundError), \
                BlockStore(self.FSTYPE, 32, self.workdir("v"), "/nonexistent"):
            pass
        self.assertEqual((self.mounts(), loops(self.scratch)), before)


def loops(directory):
    """Return how many loop devices have a file below a directory."""
    listing = subprocess.run(["losetup", "--list", "--noheadings", "--output", "BACK-FILE"],
                             capture_output=True, text=True, check=True).stdout
    return listing.count(str(directory))


class ModelTest(DeviceCase):
    """Real file systems leave only trees that the model allows."""

    # Few enough for a default run of half a minute on a busy machine.
    CUTS = {("ext4", True): 14, ("ext4", False): 8, ("xfs", True): 8, ("xfs", False): 6}
    STEPS = 160

    def run_check(self, fstype, aligned, seed, **options):
        self.need(fstype)
        workdir = Path(tempfile.mkdtemp(dir=self.scratch))
        cuts = int(os.environ.get("PGCUT_TEST_CUTS", self.CUTS[fstype, aligned]))
        outcome = check(fstype, seed, self.STEPS, cuts, workdir, self.recorder, aligned, **options)
        shutil.rmtree(workdir)
        if "PGCUT_TEST_ROUNDS" in os.environ:
            print(outcome, flush=True)
        return outcome

    def assert_true_to_model(self, fstype, aligned):
        for seed in range(SEED, SEED + ROUNDS):
            with self.subTest(fstype=fstype, aligned=aligned, seed=seed):
                outcome = self.run_check(fstype, aligned, seed)
                self.assertEqual(outcome.findings, [])
                self.assertEqual(outcome.images, 3 * outcome.cuts)
                self.assertGreater(outcome.block_flushes, 10)
                self.assertGreater(outcome.trees, 5)

    def test_ext4(self):
        self.assert_true_to_model("ext4", True)

    def test_ext4_with_parts_of_sectors(self):
        self.assert_true_to_model("ext4", False)

    def test_xfs(self):
        self.assert_true_to_model("xfs", True)

    def test_xfs_with_parts_of_sectors(self):
        self.assert_true_to_model("xfs", False)

    def test_device_that_ignores_flushes_is_found_out(self):
        """The positive control: without flushes, promises are broken."""
        self.assertGreater(len(self.run_check("ext4", True, SEED, honest=False).findings), 0)


if __name__ == "__main__":
    unittest.main()
