"""Tests of the protocol monitor: quiet on a healthy server, and one test per violation."""

import json
import os
import random
import re
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

from history import History
from pgcut import logformat, monitor, wal
from pgcut.recording import WRITE_ATOMIC, Kind
from pgcut.walindex import end_in_base
from wal_builder import SEGMENT, SEGMENT_SIZE, Wal

REL = (1663, 5, 16384)
FILE = "base/5/16384"
LOG = "pg_doublewrite/0000000000000001"
SEGMENT_NAME = f"pg_wal/0000000100000000{SEGMENT:08X}"
MARKER = b"DOUBLE WRITE LOG IN USE\n"
PRODUCTION, ARCHIVE_RECOVERY = 6, 5


def page_of(block, relation=REL, fork=0):
    return (*relation, fork, block)


def content(lsn, filler=b"p"):
    """Return a page with this LSN."""
    return struct.pack("<II", lsn >> 32, lsn & 0xFFFFFFFF) + filler * (monitor.PAGE - 8)


def control(redo, state=PRODUCTION, recovered=0, backup=0):
    """Return a pg_control."""
    return struct.pack("<16xI12xQQ88xQ8xQ", state, redo, redo, recovered,
                       backup).ljust(220, b"\0") + struct.pack("<I", 131072).ljust(7972, b"\0")


def batch(number, mark, redo, pages, pending=0, notes=None):
    """Return a batch of the log with copies of these {page: LSN} and notes {page: digest}."""
    notes = notes or {}
    header = logformat.BATCH.pack(logformat.MAGIC, logformat.VERSION, 8192, 1, number,
                                  mark, 1, 0, len(pages) + len(notes), redo, pending, 7, 0, 0, 0)
    for (space, database, node, fork, block), lsn in pages.items():
        header += struct.pack("<IIIHHIIQ", space, database, node, fork, 8192, block, 0, lsn)
    for (space, database, node, fork, block), digest in notes.items():
        header += struct.pack("<IIIHHIIQ", space, database, node, fork, 0, block, digest, 0)
    return header.ljust(8192, b"\0") + b"".join(map(content, pages.values()))


class FormatTest(unittest.TestCase):

    def test_planted_headers(self):
        self.assertEqual(logformat.crc32c(b"123456789"), 0xE3069283)
        found = logformat.planted(random.Random(1), 7, (3,), 500)
        self.assertEqual(len(found), 500)
        self.assertGreater(found.count(struct.pack("<Q", logformat.MAGIC)), 2)
        header = logformat.BATCH.unpack_from(found)
        self.assertEqual(header[:4], (logformat.MAGIC, logformat.VERSION, 8192, 7))
        self.assertEqual(header[-1], logformat.crc32c(found[:logformat.BATCH.size - 4]))
    """The monitor reads the log as the engine writes it."""

    def test_hint_digest(self):
        page = bytearray(b"p" * 8192)
        page[12:14] = struct.pack("<H", 32)
        page[24:32] = struct.pack("<II", 800 | 1 << 15, 900 | 3 << 15)   # normal, dead
        digest = logformat.hint_digest(page)
        for at, bit, hint in ((0, 1, True), (7, 1, True), (9, 1, True), (10, 2, True),
                              (10, 4, False), (20, 1, True), (821, 1, True), (821, 8, True),
                              (821, 16, False), (820, 1, False), (921, 1, False)):
            changed = bytearray(page)
            changed[at] ^= bit
            with self.subTest(at=at, bit=bit):
                self.assertEqual(logformat.hint_digest(changed) == digest, hint)

    def test_version(self):
        header = Path(__file__).resolve().parents[2] / \
            "overlay/src/include/storage/doublewrite_format.h"
        self.assertIn(f"#define DW_FORMAT_VERSION\t\t{logformat.VERSION}\n", header.read_text())


class MonitorTest(unittest.TestCase):
    """A server with one table of four pages, armed unless a test says otherwise."""

    mode = "double_writes"
    checksums = True
    filled = 0                  # bytes of WAL before the checkpoint

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.wal = Wal()
        while len(self.wal.content) < self.filled:
            self.wal.change(page_of(0))
        self.redo = self.wal.shutdown_checkpoint(images=self.mode == "full_pages")[0]
        self.log_before()
        self.written = len(self.wal.content)    # of WAL, so far
        self.at = 0                 # in the log
        base = {"base": None, "base/5": None, FILE: content(1) * 4, "global": None,
                "global/pg_control": control(self.redo), "pg_wal": None,
                SEGMENT_NAME: bytes(self.wal.content).ljust(SEGMENT_SIZE, b"\0"),
                "pg_doublewrite": None, LOG: bytes(512 * 8192)}
        self.history = History(Path(directory.name) / "recording", base)
        self.file = self.history.inos[FILE]
        self.log = self.history.inos[LOG]
        self.segment = self.history.inos[SEGMENT_NAME]
        self.control = self.history.inos["global/pg_control"]
        if self.mode == "double_writes":
            self.put_batch({})
            self.marker = self.history.create("backup_label.dwtmp")[0]
            self.history.write(self.marker, 0, MARKER)
            self.history.sync(self.marker)
            self.history.rename(self.marker, "backup_label.dwtmp", "backup_label")
            self.history.sync_directory()

    def log_before(self):
        """Add what WAL has when the recording begins."""

    # What a server does

    def flush(self, sync=True):
        """Write WAL so far, and sync it."""
        start = self.written // 8192 * 8192
        data = bytes(self.wal.content[start:])
        self.history.write(self.segment, start, data.ljust(-(-len(data) // 8192) * 8192, b"\0"))
        self.written = len(self.wal.content)
        if sync:
            self.history.sync(self.segment)

    def changed(self, block, sync=True, **details):
        """Log a change of a page; returns the page's LSN."""
        lsn = self.wal.change(page_of(block), **details)[1]
        self.flush(sync)
        return lsn

    def put_batch(self, pages, sync=True, number=None, mark=None, redo=None, pending=0,
                  notes=None):
        """Append a batch to the log."""
        self.number = number or getattr(self, "number", 0) + 1
        self.mark = mark or getattr(self, "mark", 1)
        data = batch(self.number, self.mark, self.redo if redo is None else redo, pages, pending,
                     notes)
        self.history.write(self.log, self.at, data)
        self.at += len(data)
        if sync:
            self.history.sync(self.log)

    def put_home(self, block, lsn, sync=False, filler=b"p"):
        """Write a page home."""
        seq = self.history.write(self.file, block * 8192, content(lsn, filler))
        if sync:
            self.history.sync(self.file)
        return seq

    def put_noted(self, **details):
        """Write a page home of which the log has a note; its LSN is from before this WAL."""
        digest = logformat.hint_digest(content(2))
        self.put_batch({}, notes={page_of(0): digest}, **details)
        return self.put_home(0, 3)

    def complete_checkpoint(self, redo, begin=None):
        """Let pg_control name a redo pointer."""
        self.history.add(Kind.WRITE, self.control, 0, 1, data=control(redo), begin=begin)
        return self.history.sync(self.control)

    def protected_write(self, block=0, **details):
        """Change a page, log it and write it home, as it should be."""
        lsn = self.changed(block, **details)
        self.put_batch({page_of(block): lsn})
        return self.put_home(block, lsn)

    def violations(self):
        meta = self.history.directory / "meta.json"
        meta.write_text(json.dumps({"settings": {"io_torn_pages_protection": self.mode},
                                    "checksums": self.checksums}))
        return monitor.check(self.history.recording())[0]

    def recover_backup(self):
        """Write a page before recovery has come to the end of a backup, and come to it."""
        for backup in (self.redo, 0):
            self.history.write(self.control, 0, control(self.redo, ARCHIVE_RECOVERY,
                                                        self.redo + 8, backup))
            self.history.sync(self.control)
            if backup:
                self.protected_write()

    def assert_violated(self, rule, text):
        found = self.violations()
        self.assertTrue(found, "nothing was found")
        self.assertEqual({violation.rule for violation in found}, {rule}, list(map(str, found)))
        self.assertIn(text, str(found[0]))


class HealthyTest(MonitorTest):
    def tearDown(self):
        self.assertEqual(list(map(str, self.violations())), [])

    def test_protected_write(self):
        self.protected_write()
        self.protected_write(1)

    def test_hints_that_are_noted(self):
        self.put_noted()

    def test_page_of_a_backup_that_redo_has_not_come_to(self):
        self.recover_backup()

    def test_batch_of_which_only_the_first_sector_was_written(self):
        pages = {page_of(block): 1 for block in range(200)}
        self.history.write(self.log, self.at, batch(self.number + 1, 1, self.redo, pages)[:512])
        self.protected_write()

    def test_older_copy_of_the_same_epoch(self):
        self.protected_write()
        self.put_home(0, self.changed(0))

    def test_sync_cycle(self):
        self.protected_write()
        self.history.sync(self.file)
        self.put_batch({}, mark=self.number + 1)
        self.put_batch({page_of(1): self.changed(1)})

    def test_checkpoint(self):
        self.protected_write()
        redo = self.wal.redo_pointer()
        self.history.sync(self.file)
        self.wal.checkpoint(redo, images=False)
        self.flush()
        self.put_batch({}, mark=self.number + 1, pending=redo)
        self.complete_checkpoint(redo)
        self.redo = redo
        self.protected_write()

    def test_write_while_the_control_file_is_written(self):
        redo = self.wal.redo_pointer()
        self.flush()
        self.put_batch({}, pending=redo)
        before = len(self.history.records)
        self.protected_write()
        self.complete_checkpoint(redo, begin=before)
        self.redo = redo

    def test_new_page_is_exempt(self):
        self.put_home(0, self.changed(0, initialises=True))

    def test_uncommitted_file(self):
        self.wal.make(REL, xid=7)
        self.flush()
        self.put_home(0, self.wal.lsn)

    def test_file_that_wal_does_not_know_yet(self):
        ino, _ = self.history.create("16999", self.history.inos["base/5"])
        self.wal.make((*REL[:2], 16999), xid=7)
        self.history.write(ino, 0, bytes(8192))
        self.history.write(ino, 0, content(1))
        self.flush()

    def test_committed_file(self):
        self.wal.make(REL, xid=7)
        self.wal.commit(7)
        self.protected_write()

    def test_restore_writes_the_newest_batch_again(self):
        lsn = self.changed(0)
        data = batch(self.number + 1, 1, self.redo, {page_of(0): lsn})
        at = self.at
        self.put_batch({page_of(0): lsn})
        self.history.write(self.log, at, data[:8192])
        self.put_home(0, lsn)

    def put_halves(self, order, pages, mark=1):
        """Write a batch as the kernel does if a write is too long for it."""
        self.number += 1
        data = batch(self.number, mark, self.redo, pages)
        for at in order:
            self.history.write(self.log, self.at + at, data[at:at + 8192])

    def test_batch_in_two_halves(self):
        for order in (0, 8192), (8192, 0):
            lsn = self.changed(0)
            self.put_halves(order, {page_of(0): lsn})
            self.history.sync(self.log)
            self.at += 2 * 8192
            self.put_home(0, lsn)
        self.assertEqual(self.violations(), [])

    def test_restore_writes_again_what_short_writes_have_made(self):
        lsn = self.changed(0)
        self.number += 1
        data = batch(self.number, 1, self.redo, {page_of(0): lsn})
        cut = len(data) - 4096
        self.history.write(self.log, self.at, data[:cut])
        self.history.write(self.log, self.at + cut, data[cut:])
        self.history.sync(self.log)
        for at in range(0, len(data), 8192):
            self.history.write(self.log, self.at + at, data[at:at + 8192])
        self.put_home(0, lsn)
        self.assertEqual(self.violations(), [])

    def test_batch_written_again_after_an_error(self):
        lsn = self.changed(0)
        self.put_halves((8192,), {page_of(0): lsn})
        self.number -= 1
        self.put_halves((0, 8192), {page_of(1): self.changed(1)})
        self.number -= 1
        self.history.add(Kind.SYNCFAILED, self.log)
        self.put_halves((8192, 0), {page_of(0): lsn})
        self.history.sync(self.log)
        self.put_home(0, lsn)
        self.assertEqual(self.violations(), [])

    def test_marker_goes_after_a_clean_stop(self):
        self.protected_write()
        self.history.sync(self.file)
        redo = self.wal.shutdown_checkpoint(images=False)[0]
        self.flush()
        self.put_batch({}, mark=self.number + 1, pending=redo)
        self.complete_checkpoint(redo)
        self.history.unlink(self.marker, "backup_label")
        self.history.sync_directory()
        self.history.unlink(self.log, "0000000000000001", self.history.inos["pg_doublewrite"])

    def test_write_in_two_halves(self):
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn})
        self.history.write(self.file, 0, content(lsn)[:4096])
        self.history.write(self.file, 4096, content(lsn)[4096:])
        self.history.sync(self.file)
        self.put_batch({}, mark=self.number + 1)

    def test_page_written_again_after_an_error(self):
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn})
        self.history.write(self.file, 0, content(lsn)[:4096])
        self.put_home(0, lsn, sync=True)
        self.put_batch({}, mark=self.number + 1)

    def test_end_of_wal_is_a_record_of_which_a_page_was_not_written(self):
        self.protected_write()
        self.wal.change(page_of(1), data=bytes(9000))
        del self.wal.content[-1000:]
        self.wal.content[8192:] = b""
        self.flush()

    def test_zeroes_and_extension(self):
        self.history.write(self.file, 4 * 8192, bytes(8192))
        self.history.write(self.file, 5 * 8192, content(self.wal.lsn))

    def test_extension_of_which_half_was_written_before(self):
        for part in 4096, 4096, 8192:
            self.history.write(self.file, 4 * 8192, content(self.wal.lsn)[:part])


class StraddlingTest(HealthyTest):
    """The same; the checkpoint at which the recording begins ends on another page of WAL."""

    filled = 8192 - 100

    def test_first_write_begins_within_the_checkpoint(self):
        self.assertLess(self.redo // 8192, (SEGMENT * SEGMENT_SIZE + self.written) // 8192)
        self.protected_write()


class BackupTest(MonitorTest):
    """WAL has come with the files, as in a base backup."""

    def log_before(self):
        self.lsn = self.wal.change(page_of(0), image=True)[1]
        if "switch" in self.id():
            self.wal.add(wal.XLOG, wal.SWITCH, xid=0)

    def test_page_that_this_wal_has_changed(self):
        self.put_batch({page_of(0): self.lsn})
        self.put_home(0, self.lsn)
        self.assertEqual(self.violations(), [])

    def test_end_after_a_switch(self):
        self.assertEqual(end_in_base(self.history.recording(), self.redo),
                         (SEGMENT + 1) * SEGMENT_SIZE)


class ViolationTest(MonitorTest):
    def test_file_that_is_made_again(self):
        self.history.write(self.file, 0, content(2))
        self.wal.make(REL, xid=7)
        self.flush()
        self.assert_violated("R2", "is written home")

    def test_wal_not_durable_for_home_write(self):
        self.protected_write()
        self.history.sync(self.file)
        self.put_home(0, self.changed(0, sync=False))
        self.assert_violated("R1", "block 0 of 1663/5/16384 with LSN")

    def test_wal_not_durable_for_log(self):
        self.put_batch({page_of(0): self.changed(0, sync=False)})
        self.assert_violated("R1", "a copy of block 0")

    def test_wal_sync_that_has_not_returned(self):
        lsn = self.changed(0, sync=False)
        before = len(self.history.records)
        self.history.sync(self.segment)
        data = batch(2, 1, self.redo, {page_of(0): lsn})
        self.history.add(Kind.WRITE, self.log, self.at, 1, data=data, begin=before)
        self.assert_violated("R1", "a copy of block 0")

    def test_beyond_min_recovery_point(self):
        self.history.write(self.control, 0, control(self.redo, ARCHIVE_RECOVERY, self.redo + 8))
        self.history.sync(self.control)
        self.protected_write()
        self.assert_violated("R1", "minRecoveryPoint")

    def test_after_the_end_of_a_backup(self):
        self.recover_backup()
        seq = len(self.history.records)
        self.protected_write()
        self.assert_violated("R1", "minRecoveryPoint")
        self.assertGreater(self.violations()[0].seq, seq)

    def test_hints_whose_note_is_not_durable(self):
        self.put_noted(sync=False)
        self.assert_violated("R2", "no record from redo pointer")

    def test_hints_whose_note_is_freed(self):
        self.put_noted()
        self.put_batch({}, mark=self.number + 1)
        self.assert_violated("R3", "no record from redo pointer")

    def test_note_of_something_else(self):
        self.put_batch({}, notes={page_of(0): 1})
        self.put_home(0, 3)
        self.assert_violated("R2", "no record from redo pointer")

    def test_note_of_something_else_than_home(self):
        self.put_batch({}, notes={page_of(0): logformat.hint_digest(content(3, b"q"))})
        self.put_home(0, 3, filler=b"q")
        self.assert_violated("R2", "no record from redo pointer")

    def test_changes_but_for_hints_without_checksums(self):
        self.checksums = False
        self.put_home(0, 3)
        self.assertEqual(self.violations(), [])
        self.put_home(1, 3, filler=b"q")
        self.assert_violated("R2", "block 1 of 1663/5/16384")

    def test_note_of_a_page_that_was_changed(self):
        lsn = self.changed(0)
        self.put_batch({}, notes={page_of(0): logformat.hint_digest(content(lsn))})
        self.put_home(0, lsn)
        self.assert_violated("R2", "the first record")

    def test_no_copy(self):
        seq = self.put_home(0, self.changed(0))
        self.assert_violated("R2", f"operation {seq}: block 0 of 1663/5/16384")

    def test_log_not_synced(self):
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn}, sync=False)
        self.put_home(0, lsn)
        self.assert_violated("R2", "was not durable")

    def test_half_a_batch(self):
        for missing in 0, 8192:
            lsn = self.changed(0)
            self.history.write(self.log, self.at + 8192 - missing,
                               batch(2, 1, self.redo, {page_of(0): lsn})[8192 - missing:][:8192])
            self.history.sync(self.log)
            self.put_home(0, lsn)
            self.assert_violated("R2", "the log has no copy")

    def test_half_of_another_attempt(self):
        lsn = self.changed(0)
        data = batch(2, 1, self.redo, {page_of(0): lsn})
        self.history.write(self.log, self.at + 8192, data[8192:])
        self.history.sync(self.log)
        self.history.write(self.log, self.at, data[:8192])
        self.history.sync(self.log)
        self.put_home(0, lsn)
        self.assert_violated("R2", "the log has no copy")

    def test_home_before_the_sync_of_the_log_has_returned(self):
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn}, sync=False)
        before = len(self.history.records)
        self.history.sync(self.log)
        self.history.add(Kind.WRITE, self.file, 0, 1, data=content(lsn), begin=before)
        self.assert_violated("R2", "was not durable")

    def test_atomic_write_needs_no_copy(self):
        lsn = self.changed(0)
        self.history.add(Kind.WRITE, self.file, 0, 1, data=content(lsn), flags=WRITE_ATOMIC)
        self.assertEqual(self.violations(), [])

    def test_plain_write_beside_an_atomic_one(self):
        lsn = self.changed(0)
        self.history.add(Kind.WRITE, self.file, 0, 1, data=content(lsn), flags=WRITE_ATOMIC)
        self.put_home(0, lsn)
        self.assert_violated("R2", "the log has no copy")

    def checkpoint_after_atomic_write(self, synced, failed=False, again=False):
        """Write a page atomically, and complete a checkpoint."""
        lsn = self.changed(0)
        write = {"data": content(lsn), "flags": WRITE_ATOMIC}
        self.history.add(Kind.WRITE, self.file, 0, 1, **write)
        if failed:
            self.history.add(Kind.SYNCFAILED, self.file)
        if again:
            self.history.add(Kind.WRITE, self.file, 0, 1, **write)
        redo = self.wal.redo_pointer()
        if synced:
            self.history.sync(self.file)
        self.wal.checkpoint(redo, images=False)
        self.flush()
        self.put_batch({}, mark=self.number + 1, pending=redo)
        self.complete_checkpoint(redo)

    def test_atomic_write_that_a_checkpoint_syncs(self):
        self.checkpoint_after_atomic_write(True)
        self.assertEqual(self.violations(), [])

    def test_atomic_write_that_no_checkpoint_syncs(self):
        self.checkpoint_after_atomic_write(False)
        self.assert_violated("A4", "is not durable")

    def test_atomic_write_whose_sync_has_failed(self):
        self.checkpoint_after_atomic_write(True, failed=True)
        self.assert_violated("A4", "is not durable")

    def test_atomic_write_that_is_made_again_after_a_failed_sync(self):
        self.checkpoint_after_atomic_write(True, failed=True, again=True)
        self.assertEqual(self.violations(), [])

    def test_plain_write_that_an_atomic_one_replaces_after_a_failed_sync(self):
        self.protected_write()
        self.history.add(Kind.SYNCFAILED, self.file)
        self.checkpoint_after_atomic_write(True)
        self.assertEqual(self.violations(), [])

    def test_atomic_write_that_is_made_plainly_after_a_failed_sync(self):
        lsn = self.changed(0)
        self.history.add(Kind.WRITE, self.file, 0, 1, data=content(lsn), flags=WRITE_ATOMIC)
        self.history.add(Kind.SYNCFAILED, self.file)
        self.put_batch({page_of(0): lsn})
        self.put_home(0, lsn, sync=True)
        self.checkpoint_after_atomic_write(True)
        self.assertEqual(self.violations(), [])

    def cut_off_and_make_again(self):
        """Have a page that a checkpoint has synced cut off, and another one take its place."""
        self.checkpoint_after_atomic_write(True)
        self.changed(0)
        self.flush()
        self.history.add(Kind.TRUNCATE, self.file, 0)
        lsn = self.changed(0, initialises=True)
        self.history.write(self.file, 0, bytes(8192))
        self.history.add(Kind.WRITE, self.file, 0, 1, data=content(lsn), flags=WRITE_ATOMIC)

    def test_atomic_write_after_a_truncation(self):
        self.cut_off_and_make_again()
        self.put_batch({}, mark=self.number + 1)
        self.assertEqual(self.violations(), [])

    def test_atomic_write_after_a_truncation_that_no_checkpoint_syncs(self):
        self.cut_off_and_make_again()
        redo = self.wal.redo_pointer()
        self.wal.checkpoint(redo, images=False)
        self.flush()
        self.put_batch({}, mark=self.number + 1, pending=redo)
        self.complete_checkpoint(redo)
        self.assert_violated("A4", "is not durable")

    def cut_off_for_good_and_make_again(self, block):
        """Have a changed page cut off and that synced; a checkpoint completes after it is made again."""
        self.changed(block)
        self.flush()
        self.history.add(Kind.TRUNCATE, self.file, block * 8192)
        self.history.add(Kind.SYNC, self.file)
        redo = self.wal.redo_pointer()
        self.wal.checkpoint(redo, images=False)
        lsn = self.changed(block)
        self.flush()
        self.history.write(self.file, block * 8192, bytes(8192))
        self.history.add(Kind.WRITE, self.file, block * 8192, 1, data=content(lsn), flags=WRITE_ATOMIC)
        self.put_batch({}, mark=self.number + 1, pending=redo)
        self.complete_checkpoint(redo)

    def test_atomic_write_after_a_truncation_that_has_been_synced(self):
        self.checkpoint_after_atomic_write(True)
        self.cut_off_for_good_and_make_again(0)
        self.assertEqual(self.violations(), [])

    def test_atomic_write_after_a_truncation_of_a_page_that_was_only_added(self):
        self.checkpoint_after_atomic_write(True)
        self.history.write(self.file, 8192, bytes(8192))
        self.cut_off_for_good_and_make_again(1)
        self.assertEqual(self.violations(), [])

    def test_atomic_write_ahead_of_wal(self):
        lsn = self.changed(0)
        self.history.add(Kind.WRITE, self.file, 0, 1, data=content(lsn + (1 << 24)), flags=WRITE_ATOMIC)
        self.assert_violated("R1", "WAL is durable up to")

    def test_failed_sync_of_the_log(self):
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn}, sync=False)
        self.history.add(Kind.SYNCFAILED, self.log)
        self.history.sync(self.log)
        self.put_home(0, lsn)
        self.assert_violated("R2", "was not durable")

    def test_first_record_reads_the_page(self):
        self.changed(0)
        self.put_home(0, self.changed(0, initialises=True))
        self.assert_violated("R2", "reads it")

    def test_bucket_page_that_a_record_locks(self):
        """Redo reads it for that only when it is consistent, hence after the image."""
        self.wal.locks(page_of(0), page_of(1))
        self.put_home(0, self.changed(0, image=True))
        self.assertEqual(self.violations(), [])

    def test_first_record_has_neither_image_nor_data(self):
        self.changed(0, rmid=wal.HASH, data=b"")
        self.put_home(0, self.changed(0, image=True))
        self.assert_violated("R2", "reads it")

    def test_visibility_map_is_never_exempt(self):
        ino, _ = self.history.create("16384_vm", self.history.inos["base/5"])
        self.history.write(ino, 0, bytes(8192))
        lsn = self.wal.change(page_of(0, fork=2), image=True)[1]
        self.flush()
        self.history.write(ino, 0, content(lsn))
        self.assert_violated("R2", "16384_vm")

    def write_map(self, name, fork, copied):
        """Write a page of a map home that has begun anew since WAL had an image of it."""
        ino, _ = self.history.create(name, self.history.inos["base/5"])
        self.history.write(ino, 0, bytes(8192))
        self.wal.change(page_of(0, fork=fork), image=True)
        redo = self.wal.redo_pointer()
        self.flush()
        self.put_batch({}, pending=redo)
        self.complete_checkpoint(redo)
        if copied:
            self.put_batch({page_of(0, fork=fork): 0}, redo=redo)
        self.history.write(ino, 0, content(0))

    def test_free_space_map_without_a_copy(self):
        self.write_map("16384_fsm", 1, copied=False)
        self.assert_violated("R2", "the log has no copy")

    def test_visibility_map_with_a_copy_that_is_too_old(self):
        self.write_map("16384_vm", 2, copied=True)
        self.assert_violated("R2", "its copy is too old")

    def test_free_space_map_with_an_old_copy(self):
        self.write_map("16384_fsm", 1, copied=True)
        self.assertEqual(self.violations(), [])

    def test_mark_too_early(self):
        write = self.protected_write()
        self.put_batch({}, mark=self.number + 1)
        self.assert_violated("R3", f"written by operation {write}, is not durable; the low-water mark")

    def test_mark_after_a_sync_that_began_before_the_write(self):
        before = len(self.history.records)
        self.protected_write()
        self.history.sync(self.file, begin=before)
        self.put_batch({}, mark=self.number + 1)
        self.assert_violated("R3", "is not durable; the low-water mark")

    def test_dropped_page_that_may_come_back_torn(self):
        """Hole 3: half of a page was written, the file is truncated, the mark rises."""
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn})
        self.history.write(self.file, 0, content(lsn)[:4096])
        self.history.add(Kind.TRUNCATE, self.file, 0)
        self.put_batch({}, mark=self.number + 1)
        self.assert_violated("R3", "the low-water mark")

    def test_half_a_page_is_durable(self):
        """Hole 3, when the drop has let go of the page but not truncated the file yet."""
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn})
        self.history.write(self.file, 0, content(lsn)[:4096])
        self.history.sync(self.file)
        self.put_batch({}, mark=self.number + 1)
        self.assert_violated("R3", "the low-water mark")

    def test_dropped_page_that_cannot_come_back(self):
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn})
        self.history.write(self.file, 0, content(lsn)[:4096])
        self.history.add(Kind.TRUNCATE, self.file, 0)
        self.history.unlink(self.file, "16384", self.history.inos["base/5"])
        self.history.sync_directory(self.history.inos["base/5"])
        self.put_batch({}, mark=self.number + 1)
        self.assertEqual(self.violations(), [])

    def test_batch_before_the_one_before_it_is_durable(self):
        self.put_batch({page_of(0): self.changed(0)}, sync=False)
        self.put_batch({page_of(1): self.changed(1)})
        self.assert_violated("R3", "batch 3 of the log is written before batch 2 is durable")

    def test_live_batch_overwritten(self):
        self.protected_write()
        self.history.sync(self.file)
        self.history.write(self.log, self.at - 2 * 8192, batch(3, 3, self.redo, {}))
        self.assert_violated("R3", "batch 2 of the log is overwritten")

    def test_segment_renamed_before_the_mark_is_durable(self):
        self.protected_write()
        self.history.sync(self.file)
        self.history.rename(self.log, "0000000000000001", "0000000000000007",
                            self.history.inos["pg_doublewrite"], self.history.inos["pg_doublewrite"])
        self.assert_violated("R3", "batch 2 of the log is overwritten or removed")

    def test_checkpoint_with_a_copy_that_is_too_old(self):
        self.protected_write()
        self.put_home(0, self.changed(0))
        redo = self.wal.redo_pointer()
        self.flush()
        self.put_batch({}, pending=redo)
        self.complete_checkpoint(redo)
        self.assert_violated("R3", "its copy is too old")

    def test_redo_pointer_that_the_log_does_not_know(self):
        self.protected_write(sync=True)
        self.history.sync(self.file)
        redo = self.wal.redo_pointer()
        self.flush()
        self.complete_checkpoint(redo)
        self.assert_violated("R5", "pg_control names the redo pointer")

    def test_batch_that_does_not_know_the_redo_pointer(self):
        lsn = self.changed(0)
        self.put_batch({page_of(0): lsn}, redo=self.redo + 8)
        self.assert_violated("R5", "does not know the redo pointer")

    def test_marker_removed_too_early(self):
        self.changed(0)
        self.history.unlink(self.marker, "backup_label")
        self.assert_violated("R10", "the marker is removed")


class EndOfWalTest(MonitorTest):
    """The last record in the beginning does not end where the next one begins, and made the LSN of a page."""

    def log_before(self):
        self.wal.change(page_of(0), data=b"uneven", image=True)
        self.end = self.wal.lsn

    def test_page_with_the_last_lsn_is_written(self):
        self.put_batch({page_of(0): self.end})
        self.put_home(0, self.end)
        self.assertEqual(self.violations(), [])

    def test_page_with_a_later_lsn_is_not(self):
        self.put_batch({page_of(0): self.end + 8})
        self.assert_violated("R1", "is written")


class MarkerTest(MonitorTest):
    """A server that goes from full_pages to double_writes."""

    mode = "full_pages"

    def arm(self):
        self.marker = self.history.create("backup_label")[0]
        self.history.sync_directory()
        self.history.rename(self.marker, "backup_label", "backup_label")
        self.history.sync_directory()

    def write_map(self):
        """Write a page of a free space map home whose first record is an image."""
        ino, _ = self.history.create("16384_fsm", self.history.inos["base/5"])
        self.history.write(ino, 0, bytes(8192))
        lsn = self.wal.change(page_of(0, fork=1), image=True)[1]
        self.flush()
        self.history.write(ino, 0, content(lsn))

    def raise_mark(self):
        self.put_batch({})
        self.put_batch({}, mark=self.number + 1)

    def test_map_written_before_the_marker(self):
        self.write_map()
        self.arm()
        self.raise_mark()
        self.assertEqual(self.violations(), [])

    def test_map_written_after_the_marker(self):
        self.arm()
        self.write_map()
        self.assert_violated("R2", "reads it")

    def test_image_free_before_the_marker(self):
        self.wal.images(False)
        self.changed(0)
        self.assert_violated("R10", "the marker is not durable")

    def test_images_end_without_a_word(self):
        self.wal.images(True)
        self.arm()
        self.changed(0)
        self.assert_violated("R10", "though images are on")

    def test_page_that_was_only_locked_before(self):
        """Such a record leaves the LSN of the page, so that the next one has to carry an image."""
        self.wal.images(True)
        self.arm()
        self.wal.locks(page_of(0), page_of(1))
        self.changed(0)
        self.assertIn("R10", [v.rule for v in self.violations() if "block 0 " in str(v)])

    def test_page_that_was_changed_before_images_began(self):
        self.arm()
        self.wal.images(False)
        self.changed(0, rmid=wal.HASH, data=b"")
        self.wal.images(True)
        self.changed(0)
        self.assertEqual([v for v in self.violations() if v.rule == "R10"], [])

    def change_with_images(self, *before):
        """Change a page without an image when images are on, after calls made without them."""
        self.arm()
        self.wal.images(False)
        for call in before:
            call(page_of(0))
        self.wal.images(True)
        self.changed(0)

    def test_page_whose_lsn_hints_have_raised(self):
        self.change_with_images(self.wal.hints)
        self.assertEqual([v for v in self.violations() if v.rule == "R10"], [])

    def test_page_that_has_become_visible(self):
        self.change_with_images(self.wal.visible)
        self.assertEqual([v for v in self.violations() if v.rule == "R10"], [])

    def test_page_without_hints(self):
        self.change_with_images()
        self.assert_violated("R10", "though images are on")

    def test_visible_page_that_keeps_its_lsn(self):
        self.checksums = False
        self.change_with_images(self.wal.visible)
        self.assert_violated("R10", "though images are on")

    def test_hints_without_an_image_though_images_are_on(self):
        self.wal.images(True)
        self.arm()
        self.wal.hints(page_of(0))
        self.changed(0)
        self.assert_violated("R10", "though images are on")

    def test_hints_without_an_image_before_the_marker(self):
        self.wal.images(False)
        self.wal.hints(page_of(0))
        self.flush()
        self.assert_violated("R10", "the marker is not durable")


class FullPagesTest(MonitorTest):
    """A server whose pages are protected by images in WAL."""

    mode = "full_pages"

    def test_image(self):
        self.put_home(0, self.changed(0, image=True))
        self.put_home(0, self.changed(0))
        self.assertEqual(self.violations(), [])

    def recover(self):
        """Begin a checkpoint that is cut short, and go on after the recovery."""
        self.wal.redo_pointer()
        self.wal.end_of_recovery()

    def test_page_that_was_changed_before_a_checkpoint_that_was_cut_short(self):
        self.changed(0, image=True)
        self.recover()
        self.changed(0)
        self.assertEqual(self.violations(), [])

    def test_page_that_was_changed_before_a_checkpoint(self):
        self.changed(0, image=True)
        self.wal.checkpoint(self.wal.redo_pointer(), True)
        self.recover()
        self.changed(0)
        self.assert_violated("R10", "the marker is not durable")

    def test_page_that_nobody_has_changed_before_a_checkpoint_that_was_cut_short(self):
        self.recover()
        self.changed(0)
        self.assert_violated("R10", "the marker is not durable")

    def test_hint(self):
        self.put_home(0, 1)
        self.assertEqual(self.violations(), [])

    def test_hint_on_a_page_that_was_not_there_in_the_beginning(self):
        self.put_home(4, 2)
        self.put_home(4, 2)
        self.assertEqual(self.violations(), [])

    def test_hint_before_an_image_that_is_not_durable(self):
        self.wal.change(page_of(0), image=True)
        self.flush(sync=False)
        self.put_home(0, 1)
        self.assertEqual(self.violations(), [])

    def test_page_that_has_become_another(self):
        self.put_home(4, 2)
        self.put_home(4, 3)
        self.assert_violated("R2", "no record from redo pointer")

    def test_image_before_a_commit_that_is_not_durable(self):
        self.wal.make(REL, xid=7)
        self.wal.change(page_of(0), image=True)
        self.wal.commit(7)
        self.flush(sync=False)
        self.put_home(0, 0)
        self.assertEqual(self.violations(), [])

    def test_image_after_the_commit_that_is_not_durable(self):
        self.wal.make(REL, xid=7)
        self.wal.commit(7)
        self.wal.change(page_of(0), image=True)
        self.flush(sync=False)
        self.put_home(0, 0)
        self.assert_violated("R2", "that rebuilds it is not durable")

    def test_page_that_no_image_protects(self):
        self.changed(0, image=True)
        lsn = self.changed(0)
        redo = self.wal.redo_pointer()
        self.flush()
        self.complete_checkpoint(redo)
        self.put_home(0, lsn)
        self.assert_violated("R2", "no record from redo pointer")

    def test_checkpoint_that_does_not_sync(self):
        self.put_home(0, self.changed(0, image=True))
        redo = self.wal.redo_pointer()
        self.flush()
        self.complete_checkpoint(redo)
        self.assert_violated("R3", "is not durable")

    def home_before_redo(self):
        """Write a page home, and return a redo pointer after its record."""
        self.put_home(0, self.changed(0, image=True))
        redo = self.wal.redo_pointer()
        self.flush()
        return redo

    def test_database_that_is_being_dropped(self):
        for file in (1262, 16941):      # the latter after VACUUM FULL of the catalog
            with self.subTest(file=file):
                self.setUp()
                redo = self.home_before_redo()
                self.wal.delete_database(xid=7, file=file)
                self.flush()
                self.complete_checkpoint(redo)
                self.wal.remove_database(5, xid=7)
                self.flush()
                self.assertEqual(self.violations(), [])

    def test_database_that_is_dropped_later(self):
        self.complete_checkpoint(self.home_before_redo())
        self.wal.delete_database(xid=7)
        self.wal.remove_database(5, xid=7)
        self.flush()
        self.assert_violated("R3", "is not durable")

    def test_database_that_moves(self):
        redo = self.home_before_redo()
        self.wal.delete_database(xid=7)
        self.flush()
        self.complete_checkpoint(redo)
        self.wal.remove_database(5, xid=8)
        self.flush()
        self.assert_violated("R3", "is not durable")


class OffTest(MonitorTest):
    mode = "off"

    def test_only_wal_first(self):
        self.put_home(0, self.changed(0))
        self.assertEqual(self.violations(), [])
        self.put_home(1, self.changed(1, sync=False))
        self.assert_violated("R1", "block 1")


class ReaderStopsTest(MonitorTest):
    """WAL of which the reader has not seen all that is durable."""

    def test_record_that_does_not_name_its_predecessor(self):
        self.protected_write()
        self.wal.previous += 8
        self.changed(1)
        self.assert_violated("WAL", "has not come further")

    def test_page_that_was_not_written(self):
        self.protected_write()
        self.wal.change(page_of(1), data=bytes(9000))
        self.wal.change(page_of(2), data=bytes(9000))
        struct.pack_into("<Q", self.wal.content, 8192 + 8, 0)
        self.flush()
        self.assert_violated("WAL", "has not come further")

    def test_records_behind_a_gap(self):
        self.protected_write()
        self.wal.content += bytes(64)
        self.changed(1)
        self.assert_violated("WAL", "is none")


class WalTest(unittest.TestCase):
    def stream(self, made):
        return wal.Stream({SEGMENT: bytes(made.content)}, SEGMENT_SIZE, SEGMENT)

    def test_records_across_pages(self):
        made = Wal()
        expected = [made.change(page_of(number), data=bytes(number % 3000 + 1))
                    for number in range(300)]
        start = expected[0][0]
        records = list(self.stream(made).records(start))
        self.assertEqual([(record.lsn, record.end) for record in records], expected)
        self.assertEqual([record.blocks[0].page[4] for record in records], list(range(300)))
        self.assertEqual([record.lsn for record in self.stream(made).records(expected[77][0])],
                         [lsn for lsn, _ in expected[77:]])

    def test_effects(self):
        made = Wal()
        start = made.lsn
        made.change(page_of(0), image=True)
        made.change(page_of(0), initialises=True)
        made.change(page_of(0))
        made.change(page_of(0), rmid=wal.HASH, data=b"")
        made.locks(page_of(0), page_of(1))
        made.hints(page_of(0))
        made.visible(page_of(0))
        effects = [[block.effect for block in record.blocks]
                   for record in self.stream(made).records(start)]
        self.assertEqual(effects, [[wal.REBUILDS], [wal.REBUILDS], [wal.CHANGES], [wal.CHANGES],
                                   [wal.LOCKS, wal.CHANGES], [wal.HINTS], [wal.HINTS]])

    def test_ends_where_a_record_does_not_name_its_predecessor(self):
        made = Wal()
        start = made.change(page_of(0))[0]
        made.previous += 8
        made.change(page_of(1))
        self.assertEqual(len(list(self.stream(made).records(start))), 1)

    def test_ends_before_a_record_of_which_a_page_is_missing(self):
        made = Wal()
        start = made.change(page_of(0), data=bytes(8000))[0]
        made.change(page_of(1), data=bytes(500))
        self.assertEqual(len(list(self.stream(made).records(start))), 2)
        del made.content[8192:]
        self.assertEqual(len(list(self.stream(made).records(start))), 1)

    def goes_on_after(self, left):
        """Return the blocks of records around one of which a crash left so many bytes."""
        made = Wal()
        start = made.lsn
        size = 8192 - len(made.content) - left
        empty = Wal()
        lsn, end = empty.change(page_of(0), data=b"")
        made.change(page_of(0), data=bytes(size - (end - lsn)))
        before = made.previous
        made.change(page_of(1), data=bytes(500))
        del made.content[8192:]
        made.previous = before
        made.change(page_of(2))
        struct.pack_into("<H", made.content, 8192 + 2, 8)
        return [record.blocks[0].page[4] for record in self.stream(made).records(start)]

    def test_goes_on_after_a_record_that_was_never_completed(self):
        self.assertEqual(self.goes_on_after(64), [0, 2])

    def test_goes_on_after_a_header_that_was_never_completed(self):
        self.assertEqual(self.goes_on_after(8), [0, 2])

    def test_commits(self):
        body = bytes(8) + struct.pack("<I", 1 | 2 | 16) + bytes(8) + struct.pack("<III", 2, 8, 9) \
            + struct.pack("<I", 10)
        record = wal.Record(0, 0, wal.XACT, 0x80 | 0x30, 7, [], body)
        self.assertEqual(wal.committed(record), [7, 8, 9, 10])

    def test_as_pg_waldump_reads_it(self):
        """Records, their places and their blocks are those that PostgreSQL's tool finds."""
        bindir = os.environ.get("PGCUT_BINDIR")
        if not bindir:
            self.skipTest("PGCUT_BINDIR is not set")
        with tempfile.TemporaryDirectory() as directory:
            self._compare(Path(bindir), Path(directory))

    def _compare(self, bindir, directory):
        from pgcut import server
        server.own(directory)
        data = directory / "data"
        server.make_cluster(bindir, data, checksums=True)
        # what bootstrap and initdb have done, in some thousand records of all kinds
        statements = "CREATE TABLE t(a int); INSERT INTO t SELECT generate_series(1, 5000);\n" \
            "CREATE INDEX ON t USING hash (a);\nDELETE FROM t WHERE a % 3 = 0;\nVACUUM t;\n"
        server.run(bindir, "postgres", "--single", "-D", data, "postgres", stdin=statements)
        segments, files = {}, sorted(path for path in (data / "pg_wal").iterdir()
                                     if wal.segment_key(path.name))
        for path in files:
            segments[wal.number_of(wal.segment_key(path.name), SEGMENT_SIZE)] = path.read_bytes()
        dump = subprocess.run([bindir / "pg_waldump", "-p", data / "pg_wal", files[0].name],
                              capture_output=True, text=True, env=server.environment()).stdout
        dump += subprocess.run([bindir / "pg_waldump", "-p", data / "pg_wal", files[1].name,
                                files[-1].name], capture_output=True, text=True,
                               env=server.environment()).stdout
        expected = [_dumped(line) for line in dump.splitlines()]
        first = expected[0][0]
        stream = wal.Stream(segments, SEGMENT_SIZE, first // SEGMENT_SIZE)
        found = [(record.lsn, [block.page for block in record.blocks])
                 for record in stream.records(first)]
        self.assertGreater(len(found), 1000)
        self.assertEqual([lsn for lsn, _ in found], [lsn for lsn, _ in expected])
        for mine, theirs in zip(found, expected):
            self.assertLessEqual(set(mine[1]), set(theirs[1]), mine)


def _dumped(line):
    """Return (LSN, pages) of a line of pg_waldump."""
    high, low = re.search(r"lsn: (\w+)/(\w+)", line).groups()
    forks = {"fsm": 1, "vm": 2, "init": 3}
    pages = [(int(space), int(database), int(node), forks.get(fork, 0), int(block))
             for space, database, node, fork, block in
             re.findall(r"blkref #\d+: rel (\d+)/(\d+)/(\d+)(?: fork (\w+))? blk (\d+)", line)]
    return int(high, 16) << 32 | int(low, 16), pages


if __name__ == "__main__":
    unittest.main()
