"""What the protocol monitor knows at an operation of a recording.

What is durable of WAL and pg_control, and whether there is a marker; and R1 and R10, which ask
for no more than that.
"""

import struct
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from .recording import Recording
from .walindex import WalIndex, end_in_base

PAGE = 8192
LSN = struct.Struct("<II")

# pg_control: state, location of the checkpoint, redo pointer, minRecoveryPoint, backupStartPoint
CONTROL = struct.Struct("<16xI12xQQ88xQ8xQ")
_ARCHIVE_RECOVERY = (2, 5)      # shut down in it, or in it

_FORK_NAMES = ("", "_fsm", "_vm", "_init")
MAIN, FSM, INIT = 0, 1, 3

# Violations of one rule that are told, each of another page; the rest is counted.
TOLD = 5


@dataclass(frozen=True)
class Violation:
    """One operation that a rule forbids."""

    seq: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}, operation {self.seq}: {self.text}"


class Rising:
    """A number that rises, and what it was at each operation."""

    def __init__(self, value: Any) -> None:
        self._seqs, self._values = [0], [value]

    def rise(self, seq: int, value: Any) -> None:
        if value > self._values[-1]:
            self._seqs.append(seq)
            self._values.append(value)

    def at(self, seq: int) -> int:
        return self._values[bisect_right(self._seqs, seq) - 1]


@dataclass
class Batch:
    """A batch of the double-write log."""

    number: int
    mark: int                   # its low-water mark
    redos: tuple                # the redo pointers that it names
    ino: int
    start: int
    end: int
    lsns: dict                  # page -> LSN of its copy
    notes: dict                 # page -> digest of what was written home instead
    writes: list                # the operations that have written it
    seq: int = 0                # of the operation that completed it
    durable: int = 0            # of the sync that covered it
    gone: bool = False


@dataclass
class HomeWrite:
    """A page that was written home and may still be torn."""

    seq: int
    begin: int
    page: tuple
    lsn: int
    hint: bool                  # no change that WAL has was written with it
    part: tuple                 # of the page: (0, PAGE) unless the write was cut short
    marked: bool                # there was a marker: the log, not images, was to protect it
    content: tuple              # (operation, offset) of the page in its data, or None
    before: tuple               # the same of what was home before, or (file, offset), or None
    gone: int = 0               # the operation that has removed the block since
    excused: bool = False       # because its file is of an uncommitted transaction


@dataclass
class File:
    """What is known of one file."""

    kind: str = "other"         # home, wal, log, control, marker or other
    where: tuple = ()           # home: relation, fork, first block; wal: segment number
    size: int = 0
    path: str = ""
    base: object = None         # what it held before the recording
    lsns: dict = field(default_factory=dict)        # home: block -> LSN as written
    cut: dict = field(default_factory=dict)         # ... of what was durable when it was cut off
    cut_off: tuple = (0, 0)     # the operation that did so last, and where WAL ended then
    newest: dict = field(default_factory=dict)      # ... and (operation, offset) of it, or None
    pending: dict = field(default_factory=lambda: defaultdict(list))
    # of pages written atomically: the durable version, and those since, as _HomeWrites
    atomic: dict = field(default_factory=dict)
    doomed: int = 0             # a sync of what was written up to here has failed


class Known:
    """What is durable, and what was wrong so far."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.violations = []
        self.figures = Counter()
        self._told = defaultdict(set)       # rule -> pages, or texts
        settings = recording.meta.get("settings", {})
        self._protected = settings.get("io_torn_pages_protection") != "off"
        control = CONTROL.unpack_from((recording.base / "global/pg_control").read_bytes())
        self._controls = [control]          # durable, then what may be found instead
        self._control_seqs = [0]
        self._recovered = Rising(control[3])
        self._backup_ended = 0              # when recovery has passed the end of its backup
        self.wal = WalIndex(recording, control[2])
        self._wal_end = end_in_base(recording, control[2])      # of what was written
        self._wal_durable = Rising(self._wal_end)
        self._wal_pending = defaultdict(list)
        self._wal_ahead = []
        self._image_free = 0
        self._marker = False                # there is a marker, durable or not
        self._marker_changed = 0            # its last change; 0 if durable

    def _recheck(self, op):
        """Ask again whether each page is safe: something that protects them has changed."""
        raise NotImplementedError

    def _violated(self, seq, rule, text, page=None):
        """Count a violation; tell the first ones of each rule, of a page only one."""
        self.figures[f"violations of {rule}"] += 1
        told = self._told[rule]
        subject = page or text
        if subject not in told and len(told) < TOLD:
            told.add(subject)
            self.violations.append(Violation(seq, rule, text))

    # WAL

    def _write_wal(self, op, file):
        start = file.where[0] * self.wal.segment_size + op.a
        end = self.wal.agreement(file.where[0], op.a, self.recording.data(op))
        self._wal_pending[op.ino].append((op.seq, start, end))
        if start <= self._wal_end < end:
            self._wal_end = end
            self._check_images(op)

    def _sync_wal(self, op):
        pending = self._wal_pending[op.ino]
        self._wal_ahead += [item[1:] for item in pending if item[0] <= op.begin]
        self._wal_pending[op.ino] = [item for item in pending if item[0] > op.begin]
        durable = self._wal_durable.at(op.seq)
        later = []
        for start, end in sorted(self._wal_ahead):
            if start <= durable:
                durable = max(durable, end)
            else:
                later.append((start, end))
        self._wal_ahead = later
        self._wal_durable.rise(op.seq, durable)

    def _check_images(self, op):
        """R10 of the records that a write to WAL has completed."""
        free = self.wal.image_free
        while self._image_free < len(free) and free[self._image_free].end <= self._wal_end:
            record = free[self._image_free]
            self._image_free += 1
            if self._protected and not self._in_archive_recovery() and \
                    not (self._marker and not self._marker_changed):
                self._violated(op.seq, "R10", f"WAL record at {lsn_text(record.lsn)} changes "
                               f"{page_name(record.page)} without an image, and the marker is not durable",
                               record.page)

    def _check_lsn(self, op, page, lsn, what):
        """R1."""
        durable = self._wal_durable.at(op.begin)
        if lsn > durable:
            self._violated(op.seq, "R1", f"{what} {page_name(page)} with LSN {lsn_text(lsn)} is written, "
                           f"and WAL is durable up to {lsn_text(durable)}".strip(), page)
        elif self._in_archive_recovery() and lsn > self._recovered.at(op.begin) and \
                not self._within_backup(op.begin):
            self._violated(op.seq, "R1", f"{what} {page_name(page)} with LSN {lsn_text(lsn)} is written, and "
                           f"minRecoveryPoint is {lsn_text(self._recovered.at(op.begin))}".strip(), page)

    # pg_control and the marker

    def _sync_control(self, op):
        covered = bisect_right(self._control_seqs, op.begin) - 1
        if self._controls[0][4] and not self._controls[covered][4]:
            self._backup_ended = op.seq
        del self._controls[:covered], self._control_seqs[:covered]
        self._recovered.rise(op.seq, self._controls[0][3])

    def _in_archive_recovery(self):
        return self._controls[-1][0] in _ARCHIVE_RECOVERY

    def _within_backup(self, begin):
        """Say whether recovery, begun anew, would go to the end of a backup in any case.

        Pages of it may have been copied, and are written again, before redo comes to them.
        """
        return self._controls[0][4] != 0 or begin < self._backup_ended

    def _marker_removed(self, op):
        """The log may be ignored from here on, and WAL must have all images.

        Not on a standby, which does without until it writes its next page home.
        """
        self._marker, self._marker_changed = False, op.seq
        redo = min(control[2] for control in self._controls)
        done = self.wal.image_free[:self._image_free]
        if self._protected and done and done[-1].lsn >= redo and not self._in_archive_recovery():
            self._violated(op.seq, "R10", f"the marker is removed, and the WAL record at "
                           f"{lsn_text(done[-1].lsn)}, after the redo pointer {lsn_text(redo)}, has no image")
        self._recheck(op)


def page_lsn(page: Any) -> int:
    """Return the LSN in the header of a page."""
    high, low = LSN.unpack_from(page)
    return high << 32 | low


def flat(pending: Any) -> list:
    """Return all writes of {block: writes}."""
    return [write for writes in pending.values() for write in writes]


def lsn_text(value: Any) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def page_name(page: Any) -> str:
    """Return the name of (tablespace, database, relation, fork, block) in messages."""
    space, database, node, fork, block = page
    return f"block {block} of {space}/{database}/{node}{_FORK_NAMES[fork]}"
