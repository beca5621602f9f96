"""Tests of the durability model: one per promise, M1 to M7."""

import tempfile
import unittest
from pathlib import Path

from history import History
from pgcut.content import KEPT, LOST, SIZE_ONLY
from pgcut.disk import Choice, Disk, Rules
from pgcut.image import write_tree
from pgcut.recording import SYNC_DIRECTORY, WRITE_ATOMIC, Kind

OLD, NEW = b"o" * 8192, b"n" * 8192
ALL_LOST, ALL_KEPT = Choice(default=LOST), Choice(default=KEPT)


class DiskTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.history = History(self.directory / "recording", {"d": None, "f": OLD})
        self.file = self.history.inos["f"]

    def tree(self, choice, cut=None, rules=None):
        recording = self.history.recording()
        disk = Disk(recording, rules or Rules())
        disk.advance(len(recording.ops) if cut is None else cut)
        return {path: content for path, kind, content in disk.tree(choice) if kind == "f"}

    def test_base_with_holes(self):
        files = {"a": bytes(1 << 16), "b": bytes(1 << 16), "c": bytes(1 << 16) + b"c", "e": b""}
        history = History(self.directory / "holes", files)
        for name, content in files.items():
            with open(self.directory / "holes/base" / name, "wb") as file:
                file.truncate(len(content))
                file.seek(content.find(b"c") if b"c" in content else 0)
                file.write(content.strip(b"\0"))
        self.assertEqual({path: content for path, _, content in Disk(history.recording()).tree(
            ALL_LOST)}, files)

    # M1

    def test_synced_data_stays(self):
        self.history.write(self.file, 0, NEW)
        self.history.sync(self.file)
        self.assertEqual(self.tree(ALL_LOST)["f"], NEW)

    def test_sync_that_has_not_returned_promises_nothing(self):
        self.history.write(self.file, 0, NEW)
        sync = self.history.sync(self.file)
        self.assertEqual(self.tree(ALL_LOST, sync - 1)["f"], OLD)

    def test_sync_does_not_cover_what_came_after_it_was_called(self):
        write = self.history.write(self.file, 0, NEW)
        self.history.sync(self.file, begin=write - 1)
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD)
        self.assertEqual(self.tree(ALL_KEPT)["f"], NEW)

    def test_sync_of_another_file(self):
        ino, _ = self.history.create("g")
        self.history.write(self.file, 0, NEW)
        self.history.sync(ino)
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD)

    # M2

    def test_torn_page(self):
        write = self.history.write(self.file, 0, NEW)
        torn = self.tree(Choice(512, KEPT, {write: 0b101}))["f"]
        self.assertEqual(torn[:512], NEW[:512])
        self.assertEqual(torn[512:1024], OLD[:512])
        self.assertEqual(torn[1024:1536], NEW[:512])
        self.assertEqual(torn[1536:], OLD[1536:])

    def test_larger_sectors(self):
        write = self.history.write(self.file, 0, NEW)
        torn = self.tree(Choice(4096, KEPT, {write: 0b10}))["f"]
        self.assertEqual(torn, OLD[:4096] + NEW[4096:])

    def test_newer_write_wins(self):
        first = self.history.write(self.file, 0, b"1" * 8192)
        second = self.history.write(self.file, 0, b"2" * 8192)
        self.assertEqual(self.tree(ALL_KEPT)["f"], b"2" * 8192)
        self.assertEqual(self.tree(Choice(512, KEPT, {second: LOST}))["f"], b"1" * 8192)
        self.assertEqual(self.tree(Choice(512, KEPT, {first: LOST}))["f"], b"2" * 8192)
        mixed = self.tree(Choice(512, KEPT, {second: 1}))["f"]
        self.assertEqual(mixed, b"2" * 512 + b"1" * 7680)

    def test_unaligned_writes_come_as_prefixes(self):
        first = self.history.write(self.file, 10, b"abc")
        self.history.write(self.file, 20, b"def")
        both = self.tree(Choice(512, KEPT, {first: LOST}))["f"]
        self.assertEqual((both[10:13], both[20:23]), (b"abc", b"def"))

    # M3

    def test_size_is_lost_or_early(self):
        write = self.history.write(self.file, 8192, NEW)
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD)
        self.assertEqual(self.tree(Choice(512, KEPT, {write: SIZE_ONLY}))["f"],
                         OLD + bytes(8192))

    def test_hole_before_a_sector_that_was_written(self):
        write = self.history.write(self.file, 8192, NEW)
        torn = self.tree(Choice(4096, KEPT, {write: 0b10}))["f"]
        self.assertEqual(torn, OLD + bytes(4096) + NEW[4096:])

    def test_truncation(self):
        truncate = self.history.add(Kind.TRUNCATE, self.file, 512)
        self.assertEqual(self.tree(ALL_KEPT)["f"], OLD[:512])
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD)
        self.history.sync(self.file)
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD[:512])
        self.assertEqual(self.tree(ALL_LOST, truncate)["f"], OLD)

    def test_lost_truncation_takes_later_writes_beyond_it_with_it(self):
        truncate = self.history.add(Kind.TRUNCATE, self.file, 4096)
        write = self.history.write(self.file, 0, NEW)
        self.assertEqual(self.tree(ALL_KEPT)["f"], NEW)
        self.assertEqual(self.tree(Choice(512, KEPT, {truncate: LOST}))["f"],
                         NEW[:4096] + OLD[4096:])
        torn = self.tree(Choice(512, LOST, {write: 0b1000000001}))["f"]
        self.assertEqual(torn, NEW[:512] + OLD[512:])
        self.history.add(Kind.TRUNCATE, self.file, 0)
        self.history.write(self.file, 0, NEW)
        self.assertEqual(self.tree(Choice(512, KEPT, {truncate: LOST}))["f"], NEW)

    def test_allocation(self):
        self.history.add(Kind.FALLOCATE, self.file, 8192, 4096)
        self.assertEqual(self.tree(ALL_KEPT)["f"], OLD + bytes(4096))

    # M4, M5

    def test_new_name_needs_a_sync(self):
        ino, _ = self.history.create("g")
        self.assertNotIn("g", self.tree(ALL_LOST))
        self.assertIn("g", self.tree(ALL_KEPT))
        self.history.sync_directory()
        self.assertIn("g", self.tree(ALL_LOST))

    def test_sync_of_a_file_keeps_its_name_and_directories(self):
        directory, _ = self.history.mkdir("e")
        ino, _ = self.history.create("g", directory)
        self.history.sync(ino)
        self.assertIn("e/g", self.tree(ALL_LOST))
        strict = Rules(names_need_directory_sync=("e",))
        self.assertNotIn("e/g", self.tree(ALL_LOST, rules=strict))

    def test_sync_of_a_file_whose_name_is_durable_keeps_the_directories_above_it(self):
        directory, _ = self.history.mkdir("d")
        new, _ = self.history.create("h", parent=directory)
        self.history.sync_directory(directory)
        self.assertNotIn("d/h", self.tree(ALL_LOST))
        self.history.sync(new)
        self.assertIn("d/h", self.tree(ALL_LOST))

    def test_rename(self):
        rename = self.history.rename(self.file, "f", "g")
        self.assertEqual(set(self.tree(ALL_LOST)), {"f"})
        self.assertEqual(set(self.tree(ALL_KEPT)), {"g"})
        self.history.sync(self.file)
        self.assertEqual(set(self.tree(ALL_LOST)), {"g"})
        self.assertEqual(set(self.tree(ALL_LOST, rename)), {"f"})

    def test_fdatasync_keeps_the_name_of_a_new_file_only(self):
        new, _ = self.history.create("h")
        self.history.rename(self.file, "f", "g")
        self.history.add(Kind.SYNC, new, flags=1)
        self.history.add(Kind.SYNC, self.file, flags=1)
        self.assertEqual(set(self.tree(ALL_LOST)), {"f", "h"})

    def test_fdatasync_of_a_moved_file_keeps_no_new_directory(self):
        directory, _ = self.history.mkdir("d")
        self.history.rename(self.file, "f", "g", new_parent=directory)
        self.history.add(Kind.SYNC, self.file, flags=1)
        self.assertEqual(set(self.tree(ALL_LOST)), {"f"})

    def test_part_of_a_sector_brings_it_as_in_memory(self):
        self.history.add(Kind.TRUNCATE, self.file, 100)
        write = self.history.write(self.file, 0, b"n" * 100)
        tree = self.tree(Choice(default=LOST, fates={write: KEPT}))
        self.assertEqual(tree["f"], b"n" * 100 + bytes(412) + OLD[512:])

    def test_removed_name_may_come_back(self):
        self.history.unlink(self.file, "f")
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD)
        self.assertEqual(self.tree(ALL_KEPT), {})
        self.history.sync_directory()
        self.assertEqual(self.tree(ALL_LOST), {})

    def test_later_change_of_a_name_keeps_the_earlier(self):
        self.history.rename(self.file, "f", "g")
        _, create = self.history.create("f")
        self.assertEqual(set(self.tree(Choice(512, LOST, {create: KEPT}))), {"f", "g"})

    def test_names_are_independent(self):
        _, first = self.history.create("g")
        _, second = self.history.create("h")
        self.assertEqual(set(self.tree(Choice(512, KEPT, {first: LOST}))), {"f", "h"})

    # M6

    def fail_a_sync(self):
        """A write whose sync fails, and a sync that succeeds; returns the write."""
        write = self.history.write(self.file, 0, NEW)
        self.history.add(Kind.SYNCFAILED, self.file)
        self.history.sync(self.file)
        return write

    def test_failed_sync(self):
        write = self.fail_a_sync()
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD)
        self.assertEqual(self.tree(ALL_KEPT)["f"], NEW)
        self.assertEqual(self.tree(Choice(4096, KEPT, {write: 0b01}))["f"], NEW[:4096] + OLD[4096:])

    def test_what_comes_after_a_failed_sync_can_be_made_durable(self):
        write = self.fail_a_sync()
        later = self.history.write(self.file, 512, b"l" * 512)
        self.history.sync(self.file)
        self.assertEqual(self.tree(ALL_LOST)["f"], OLD[:512] + b"l" * 512 + OLD[1024:])
        kept = Choice(512, LOST, {write: KEPT, later: LOST})
        self.assertEqual(self.tree(kept)["f"], NEW[:512] + b"l" * 512 + NEW[1024:])

    def test_only_what_is_in_doubt_is_pending(self):
        write = self.fail_a_sync()
        self.history.write(self.file, 512, b"l" * 512)
        self.history.sync(self.file)
        last = self.history.write(self.file, 1024, b"m" * 512)
        recording = self.history.recording()
        disk = Disk(recording)
        disk.advance(len(recording.ops))
        self.assertEqual([op.seq for op in disk.pending_data()], [write, last])

    def test_failed_sync_of_a_directory(self):
        self.history.create("g")
        self.history.add(Kind.SYNCFAILED, 1, flags=SYNC_DIRECTORY)
        self.assertNotIn("g", self.tree(ALL_LOST))
        self.history.sync_directory()
        self.assertIn("g", self.tree(ALL_LOST))

    # M7

    def test_cache_does_not_come_over_an_atomic_write(self):
        self.history.write(self.file, 0, bytes(8192))
        atomic = self.history.add(Kind.WRITE, self.file, 0, 1, data=NEW, flags=WRITE_ATOMIC)
        sync = self.history.sync(self.file)
        rules = Rules(cache_over_atomic_writes=True)
        for cut in (atomic, sync):
            self.assertEqual(self.tree(ALL_KEPT, cut)["f"], NEW)
            self.assertEqual(self.tree(ALL_KEPT, cut, rules)["f"], bytes(8192))

    def test_cache_that_has_gone(self):
        rules = Rules(cache_over_atomic_writes=True)
        self.history.write(self.file, 0, bytes(8192))
        self.history.sync(self.file)
        self.history.add(Kind.WRITE, self.file, 0, 1, data=NEW, flags=WRITE_ATOMIC)
        self.assertEqual(self.tree(ALL_KEPT, rules=rules)["f"], NEW)
        self.history.write(self.file, 8192, bytes(8192))
        self.history.add(Kind.TRUNCATE, self.file, 8192)
        self.history.add(Kind.WRITE, self.file, 8192, 1, data=NEW, flags=WRITE_ATOMIC)
        self.assertEqual(self.tree(ALL_KEPT, rules=rules)["f"], NEW * 2)

    # Controls, and writing the files

    def test_ignored_sync(self):
        ino, _ = self.history.create("x", self.history.inos["d"])
        self.history.write(ino, 0, NEW)
        self.history.sync(ino)
        self.history.sync_directory(self.history.inos["d"])
        rules = Rules(ignore_syncs_below=("d",))
        self.assertEqual(self.tree(ALL_LOST, rules=rules)["d/x"], b"")
        self.assertEqual(self.tree(ALL_LOST)["d/x"], NEW)

    def test_write_tree(self):
        self.history.create("x", self.history.inos["d"])
        recording = self.history.recording()
        disk = Disk(recording)
        disk.advance(1)
        write_tree(disk.tree(ALL_KEPT), self.directory / "image", leave_out=("f",))
        self.assertEqual(sorted(p.name for p in (self.directory / "image").rglob("*")),
                         ["d", "x"])


if __name__ == "__main__":
    unittest.main()
