"""The protocol monitor: is each write of a recording allowed?

States sample a recording; the monitor reads all of it once.  At each operation it
knows what is durable, and holds the rules of the engine's README against it:

R1   A page in the log or at home has an LSN that durable WAL reaches; on a standby
     also the durable minRecoveryPoint.
R2   As long as a home write is not durable, it may be torn.  So from its start on a
     durable copy of the page is in the log, new enough for each redo pointer from
     which a crash could recover; or the first record for the block after each of
     them rebuilds it; or no record after them has changed it, it is like what was home
     before but for hints, and with checksums a durable note in the log fits it.  A write
     that was recorded as atomic is never torn, and needs none of them.
R3   That holds until its sync: no low-water mark that a crash could find passes the
     copy, no segment with live batches is reused, and no batch is written
     before the one before it is durable.
A4   A home write that was atomic is durable, too, before the redo pointer passes what redo
     would have to do again without it, unless the log has a copy.
R5   pg_control names a redo pointer only when the newest durable batch does.
R10  Records without images are written only while the marker is durable, and not
     after WAL has announced images.
WAL  Is no rule of the engine: the reader of WAL has come to what is durable in the end.
     If not, R2, R3, R10 and A4 have not been asked of what it has not seen.

Without the log (`full_pages`) the second half of R2 protects each page, as in stock.
With protection off only R1 is left.  What a page was before an uncommitted
transaction made its file, and what is beyond the end of a file, cannot be torn.
Nobody reads a database that DROP DATABASE has begun to remove, but redo.
"""

import gc
import re
import struct
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import wal
from .logformat import BATCH, ENTRY, MAGIC, VERSION, hint_digest
from .recording import ROOT_INO, SYNC_DATA, SYNC_DIRECTORY, WRITE_ATOMIC, Kind
from .states import SPACES
from .walindex import WalIndex, end_in_base

PAGE = 8192
_ZEROES = bytes(PAGE)
_LSN = struct.Struct("<II")

# pg_control: state, location of the checkpoint, redo pointer, minRecoveryPoint, backupStartPoint;
# pages in a file of a relation
_CONTROL = struct.Struct("<16xI12xQQ88xQ8xQ")
_SEGMENT_PAGES = struct.Struct("<220xI")
_ARCHIVE_RECOVERY = (2, 5)      # shut down in it, or in it

_MARKER = "backup_label"
_MARKER_LINE = b"DOUBLE WRITE LOG IN USE"

_HOME = re.compile(rf"(?:base/(\d+)|(global)|(?:pg_tblspc|{SPACES})/(\d+)/[^/]+/(\d+))"
                   r"/(\d+)(?:_(fsm|vm|init))?(?:\.(\d+))?$")
_FORKS = {None: 0, "fsm": 1, "vm": 2, "init": 3}
_FORK_NAMES = ("", "_fsm", "_vm", "_init")
_MAIN, _FSM, _INIT = 0, 1, 3
_DEFAULT_SPACE, _GLOBAL_SPACE = 1663, 1664

# Violations of one rule that are told, each of another page; the rest is counted.
TOLD = 5


@dataclass(frozen=True)
class Violation:
    """One operation that a rule forbids."""

    seq: int
    rule: str
    text: str

    def __str__(self):
        return f"{self.rule}, operation {self.seq}: {self.text}"


class _History:
    """A number that rises, and what it was at each operation."""

    def __init__(self, value):
        self._seqs, self._values = [0], [value]

    def rise(self, seq, value):
        if value > self._values[-1]:
            self._seqs.append(seq)
            self._values.append(value)

    def at(self, seq):
        return self._values[bisect_right(self._seqs, seq) - 1]


@dataclass
class _Batch:
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
class _HomeWrite:
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
class _File:
    """What is known of one file."""

    kind: str = "other"         # home, wal, log, control, marker or other
    where: tuple = ()           # home: relation, fork, first block; wal: segment number
    size: int = 0
    path: str = ""
    base: object = None         # what it held before the recording
    lsns: dict = field(default_factory=dict)        # home: block -> LSN as written
    cut: dict = field(default_factory=dict)         # ... of what was durable when it was cut off
    newest: dict = field(default_factory=dict)      # ... and (operation, offset) of it, or None
    pending: dict = field(default_factory=lambda: defaultdict(list))
    # of pages written atomically: the durable version, and those since, as _HomeWrites
    atomic: dict = field(default_factory=dict)
    doomed: int = 0             # a sync of what was written up to here has failed


def redo_pointer(data):
    """Return the redo pointer that the control file of a data directory names."""
    return _CONTROL.unpack_from((data / "global/pg_control").read_bytes())[2]


def check(recording):
    """Return (violations, figures) of a recording."""
    gc.disable()                # which would look at a million records again and again
    try:
        monitor = Monitor(recording)
        monitor.run()
    finally:
        gc.enable()
    return monitor.violations, monitor.figures


class Monitor:
    """Reads a recording from beginning to end."""

    def __init__(self, recording):
        self.recording = recording
        self.violations = []
        self.figures = Counter()
        self._told = defaultdict(set)       # rule -> pages, or texts
        settings = recording.meta.get("settings", {})
        self._protected = settings.get("io_torn_pages_protection") != "off"
        control_file = (recording.base / "global/pg_control").read_bytes()
        self._segment_pages, = _SEGMENT_PAGES.unpack_from(control_file)
        control = _CONTROL.unpack_from(control_file)
        self._controls = [control]          # durable, then what may be found instead
        self._control_seqs = [0]
        self._recovered = _History(control[3])
        self._backup_ended = 0              # when recovery has passed the end of its backup
        self.wal = WalIndex(recording, control[2])
        self._wal_end = end_in_base(recording, control[2])      # of what was written
        self._wal_durable = _History(self._wal_end)
        self._wal_pending = defaultdict(list)
        self._wal_ahead = []
        self._image_free = 0
        self._batches = {}                  # number -> the last one written with it
        self._checksums = bool(recording.meta.get("checksums"))
        self._copies = defaultdict(list)    # page -> batches, in order
        self._notes = defaultdict(list)     # the same of notes
        self._parts = defaultdict(list)     # log file -> its writes since the last sync
        self._mark = 0                      # the highest one that a crash could find
        self._marker = False                # there is a marker, durable or not
        self._marker_changed = 0            # its last change; 0 if durable
        self._files = {}
        self._made = set()                  # relations whose files were made meanwhile
        self._removals = defaultdict(list)  # directory -> [(seq, inodes)]
        self._load_base()

    def run(self):
        """Check everything; the violations are left in self.violations."""
        handlers = {Kind.WRITE: self._write, Kind.SYNC: self._sync, Kind.CREATE: self._create,
                    Kind.RENAME: self._rename, Kind.UNLINK: self._unlink, Kind.RMDIR: self._rmdir,
                    Kind.MKDIR: self._create, Kind.TRUNCATE: self._truncate,
                    Kind.FALLOCATE: self._allocate, Kind.SYNCFAILED: self._sync_failed}
        for op in self.recording.ops:
            handler = handlers.get(op.kind)
            if handler:
                handler(op)
        for free in self.wal.image_free:
            if free.promised and self._protected:
                self._violated(len(self.recording.ops), "R10",
                               f"WAL record at {_lsn(free.lsn)} changes {_name(free.page)} without an "
                               "image, the first one since the redo pointer, though images are on",
                               free.page)
        durable = self._wal_durable.at(len(self.recording.ops))
        if durable > self.wal.missing:
            self._violated(len(self.recording.ops), "WAL", f"our reader has not come further than "
                           f"to the record that ends at {_lsn(self.wal.end)}: what is at "
                           f"{_lsn(self.wal.missing)} is none, though WAL is durable up to "
                           f"{_lsn(durable)}")
        self.figures["operations"] = len(self.recording.ops)
        self.figures["records"] = self.wal.records

    # Names

    def _load_base(self):
        self._paths = {ROOT_INO: ""}
        for entry in self.recording.entries:
            if not entry.path:
                continue
            self._paths[entry.ino] = entry.path
            if entry.type == "f":
                content = self.recording.base / entry.path
                self._files[entry.ino] = self._classified(entry.path)
                self._files[entry.ino].size = content.stat().st_size
                self._files[entry.ino].base = content
        last = self.recording.paths().values()
        self._unlogged = {path[:-len("_init")] for path in last if path.endswith("_init")}

    def _classified(self, path):
        """Return a _File of the kind that its path says."""
        file = _File(path=path)
        match = _HOME.match(path)
        if match:
            database, shared, space, database_there, node, fork, segment = match.groups()
            relation = (_GLOBAL_SPACE if shared else int(space or _DEFAULT_SPACE),
                        int(database or database_there or 0), int(node))
            file.kind = "home"
            file.where = (relation, _FORKS[fork], int(segment or 0) * self._segment_pages)
        elif path == "global/pg_control":
            file.kind = "control"
        elif path == _MARKER:
            file.kind = "marker"
        elif path.startswith("pg_doublewrite/"):
            file.kind = "log"
        elif path.startswith("pg_wal/"):
            key = wal.segment_key(path[len("pg_wal/"):])
            if key:
                file.kind, file.where = "wal", (wal.number_of(key, self.wal.segment_size),)
        return file

    def _create(self, op):
        self._paths[op.ino] = _join(self._paths[op.a], op.name)
        if op.kind == Kind.CREATE:
            file = self._files[op.ino] = self._classified(self._paths[op.ino])
            if file.kind == "home":
                self._made.add(file.where[0])

    def _rename(self, op):
        old = self._files.get(op.ino)
        self._paths[op.ino] = _join(self._paths[op.b], op.target)
        if old is None:
            return
        if old.kind == "log":
            self._destroy(op, old, 0, old.size)
        elif old.kind == "marker":
            self._marker_removed(op)
        new = self._classified(self._paths[op.ino])
        new.size, new.base, new.lsns, new.pending = old.size, old.base, old.lsns, old.pending
        new.newest = old.newest
        new.atomic, new.cut = old.atomic, old.cut
        self._files[op.ino] = new
        if new.kind == "marker":
            self._marker, self._marker_changed = True, op.seq

    def _unlink(self, op):
        file = self._files.get(op.ino)
        if file is None:
            return
        if file.kind == "log":
            self._destroy(op, file, 0, file.size)
        elif file.kind == "marker":
            self._marker_removed(op)
        elif file.kind == "home":
            self._removals[op.a].append((op.seq, [op.ino]))
            for write in _all(file.pending):
                write.gone = op.seq
            file.atomic.clear()

    def _rmdir(self, op):
        """What was removed below a directory goes with it."""
        below = [ino for _, inodes in self._removals.pop(op.ino, ()) for ino in inodes]
        self._removals[op.a].append((op.seq, below))

    # Data

    def _write(self, op):
        file = self._files[op.ino]
        if file.kind == "home":
            self._write_home(op, file)
        elif file.kind == "wal":
            self._write_wal(op, file)
        elif file.kind == "log":
            self._write_log(op, file)
        elif file.kind == "control":
            self._write_control(op)
        file.size = max(file.size, op.a + op.length)

    def _truncate(self, op):
        file = self._files[op.ino]
        file.size = op.a
        for block in [block for block in file.pending if block * PAGE >= op.a]:
            for write in file.pending[block]:
                write.gone = op.seq
        for block, lsn in file.lsns.items():
            if block * PAGE >= op.a and block not in file.pending:
                file.cut[block] = file.atomic[block][0].lsn if block in file.atomic else lsn
        for known in (file.lsns, file.newest, file.atomic):
            for block in [block for block in known if block * PAGE >= op.a]:
                del known[block]
        if file.kind == "log":
            self._destroy(op, file, op.a, file.size)

    def _allocate(self, op):
        file = self._files[op.ino]
        if not op.flags & 1:
            file.size = max(file.size, op.a + op.b)

    def _sync(self, op):
        if op.flags & SYNC_DIRECTORY:
            self._sync_names(op)
            return
        file = self._files.get(op.ino)
        if file is None:
            return
        if file.kind == "home":
            self._sync_home(op, file)
        elif file.kind == "wal":
            self._sync_wal(op)
        elif file.kind == "log":
            self._sync_log(op, file)
        elif file.kind == "control":
            self._sync_control(op)
        elif file.kind == "marker" and not op.flags & SYNC_DATA and op.begin >= self._marker_changed:
            self._marker_changed = 0

    def _sync_failed(self, op):
        file = self._files.get(op.ino)
        if file is not None:
            file.doomed = max(file.doomed, op.begin)
            self._forget_parts(op)
            self._wal_pending[op.ino] = [item for item in self._wal_pending[op.ino]
                                         if item[0] > op.begin]

    def _sync_names(self, op):
        if op.ino == ROOT_INO and op.begin >= self._marker_changed:
            self._marker_changed = 0
        removals = self._removals.get(op.ino)
        if removals:
            for seq, inodes in removals:
                if seq <= op.begin:
                    for ino in inodes:
                        self._files[ino].pending.clear()
            self._removals[op.ino] = [item for item in removals if item[0] > op.begin]

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
                self._violated(op.seq, "R10", f"WAL record at {_lsn(record.lsn)} changes "
                               f"{_name(record.page)} without an image, and the marker is not durable",
                               record.page)

    # The double-write log

    def _write_log(self, op, file):
        if self._rewritten(op):
            return
        self._destroy(op, file, op.a, op.a + op.length)
        parts = self._parts[op.ino]
        parts.append(op)
        batch = self._completed(op, parts)
        if batch:
            self._enter_batch(op, batch)

    def _completed(self, op, parts):
        """Return the batch that a write completes, or None.

        The kernel splits writes of more than a megabyte, and the parts may come in
        any order.  All of them come before the next sync.
        """
        heads = (_batch(part, self.recording.data(part)) for part in reversed(parts))
        batch = next(filter(None, heads), None)
        if batch is None or not batch.start <= op.a < batch.end:
            return None
        newest = {part.a: part for part in parts if batch.start <= part.a < batch.end}
        batch.writes = [newest[start] for start in sorted(newest)]
        batch.seq = op.seq
        written = batch.start
        for part in batch.writes:
            if part.a <= written:
                written = max(written, part.a + part.length)
        return batch if written >= batch.end else None

    def _enter_batch(self, op, batch):
        """A batch is complete: check it, and see what its mark gives up."""
        self.figures["batches"] += 1
        newest = max(self._batches, default=0)
        if batch.number not in (newest, newest + 1):
            self._batches.clear()       # the log begins anew
            self._copies.clear()
            self._notes.clear()
            self._mark = 0
        before = self._batches.get(batch.number - 1)
        for page, lsn in batch.lsns.items():
            self._check_lsn(op, page, lsn, "a copy of")
            self._copies[page].append(batch)
        self.figures["notes"] += len(batch.notes)
        for page in batch.notes:
            self._notes[page].append(batch)
        if before and before.number >= batch.mark and not 0 < before.durable <= op.begin:
            self._violated(op.seq, "R3", f"batch {batch.number} of the log is written before "
                           f"batch {before.number} is durable")
        live = [self._batches[number] for number in range(batch.mark, batch.number)
                if number in self._batches] + [batch]
        self._batches[batch.number] = batch
        if any(item.lsns for item in live[-64:]):
            self._check_redos(op, batch)
        if batch.mark > self._mark:
            self._mark = batch.mark
            self._recheck(op)

    def _check_redos(self, op, batch):
        """R5: whichever pg_control a crash leaves, the batch must know its redo pointer."""
        for control in self._controls:
            if control[2] not in batch.redos:
                self._violated(op.seq, "R5", f"batch {batch.number} of the log does not know the "
                               f"redo pointer {_lsn(control[2])} that is in pg_control")

    def _destroy(self, op, file, start, end):
        """Part of a log file is overwritten, or it goes: what was there must not be needed."""
        needed = max((batch.mark for batch in self._batches.values() if batch.durable), default=0)
        for batch in self._batches.values():
            if batch.ino != op.ino or batch.gone or batch.end <= start or end <= batch.start:
                continue
            batch.gone = True
            if (batch.lsns or batch.notes) and batch.durable and \
                    batch.number >= needed and self._marker:
                self._violated(op.seq, "R3", f"batch {batch.number} of the log is overwritten or "
                               f"removed, and the durable low-water mark is {needed}")

    def _rewritten(self, op):
        """Say whether a write changes nothing, as when restore writes the newest batch again.

        It does so block by block, and several writes may have made the block.
        """
        for batch in self._batches.values():
            if batch.ino == op.ino and not batch.gone and \
                    self._contents(batch, op.a, op.length) == self.recording.data(op):
                batch.seq = op.seq if not batch.durable else batch.seq
                return True
        return False

    def _contents(self, batch, start, length):
        """Return what a batch has from an offset of its file on; less where it ends before."""
        contents = bytearray()
        for part in batch.writes:
            at = start + len(contents) - part.a
            if 0 <= at < part.length:
                contents += self.recording.data(part)[at:at + length - len(contents)]
        return contents

    def _sync_log(self, op, file):
        self._forget_parts(op)
        for batch in reversed(self._batches.values()):
            if batch.durable:
                break
            if batch.ino == op.ino and file.doomed < batch.seq <= op.begin:
                batch.durable = op.seq

    def _forget_parts(self, op):
        """What is written after a sync, even a failed one, belongs to another attempt."""
        self._parts[op.ino] = [part for part in self._parts[op.ino] if part.seq > op.begin]

    # pg_control and the marker

    def _write_control(self, op):
        control = _CONTROL.unpack_from(self.recording.data(op))
        known = {item[2] for item in self._controls}
        self._controls.append(control)
        self._control_seqs.append(op.seq)
        if control[2] in known:
            return
        self.figures["redo pointers"] += 1
        newest = next((batch for batch in reversed(self._batches.values())
                       if 0 < batch.durable <= op.begin), None)
        if newest and self._marker and control[2] not in newest.redos:
            self._violated(op.seq, "R5", f"pg_control names the redo pointer {_lsn(control[2])}, and "
                           f"batch {newest.number}, the newest durable one of the log, does not")
        self._recheck(op)

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
                           f"{_lsn(done[-1].lsn)}, after the redo pointer {_lsn(redo)}, has no image")
        self._recheck(op)

    # Home

    def _write_home(self, op, file):
        relation, fork, first = file.where
        data = memoryview(self.recording.data(op))
        if self._is_unlogged(file) and fork != _INIT:
            return
        for block, content in _pages(op.a, data):
            if content == _ZEROES:
                continue
            before = self._lsn_at_home(file, block)
            durable = file.cut.pop(block, before)
            lsn = before if (op.a % PAGE and block == op.a // PAGE) else _page_lsn(content)
            file.lsns[block] = lsn
            start = max(op.a - block * PAGE, 0)
            place = (op, block * PAGE - op.a) if len(content) == PAGE else None
            base = (file.base, block * PAGE) if file.base else None
            replaced, file.newest[block] = file.newest.get(block, base), place
            if (block + 1) * PAGE > file.size:      # it did not have all of it
                continue
            self.figures["home writes"] += 1
            page = (*relation, fork, first + block)
            write = _HomeWrite(op.seq, op.begin, page, lsn, lsn == before,
                               (start, start + len(content)), bool(self._marker), place, replaced)
            if not self._uncommitted(relation):
                self._check_lsn(op, page, lsn, "")
            if op.flags & WRITE_ATOMIC:
                self.figures["atomic home writes"] += 1
                if block not in file.atomic:
                    file.atomic[block] = [replace(write, seq=0, lsn=durable)]
                file.atomic[block].append(write)
            elif self._protected:
                self._check_home(op, write, op.begin, "is written home")
                file.pending[block].append(write)

    def _uncommitted(self, relation):
        """Say whether the transaction that made a relation has not committed yet.

        With wal_level = minimal, pages may go home before even the record that makes their file.
        """
        return self.wal.uncommitted(relation, self._wal_end) or \
            relation in self._made and self.wal.unborn(relation, self._wal_end)

    def _lsn_at_home(self, file, block):
        """Return the LSN of a page as it was written last, or was in the beginning."""
        if block not in file.lsns and file.base:
            with open(file.base, "rb") as base:
                base.seek(block * PAGE)
                head = base.read(_LSN.size)
            file.lsns[block] = _page_lsn(head) if len(head) == _LSN.size else 0
        return file.lsns.get(block, 0)

    def _is_unlogged(self, file):
        return re.sub(r"(_(fsm|vm|init))?(\.\d+)?$", "", file.path) in self._unlogged

    def _sync_home(self, op, file):
        """Pages are durable, unless they stand half-written: the newest of each block counts."""
        for block, writes in list(file.pending.items()):
            covered = [write for write in writes if file.doomed < write.seq <= op.begin]
            for write in covered:
                if write.excused:
                    self._check_home(op, write, op.begin, "is home, its file committed")
            if covered and (_whole(covered) or 0 < covered[-1].gone <= op.begin):
                self._is_durable(file, block, covered[-1])

        for block, writes in list(file.atomic.items()):
            covered = [write for write in writes[1:] if file.doomed < write.seq <= op.begin]
            if covered:
                self._is_durable(file, block, covered[-1])

    def _is_durable(self, file, block, last):
        """Forget what was written home before: what the kernel had cached does not come back (M7)."""
        pending = [write for write in file.pending.pop(block, ()) if write.seq > last.seq]
        if pending:
            file.pending[block] = pending
        durable, *writes = file.atomic.pop(block, (last,))
        writes = [write for write in writes if write.seq > last.seq]
        if writes:
            file.atomic[block] = [max(durable, last, key=lambda write: write.seq), *writes]

    def _check_atomic(self, op, file):
        """A4: the redo pointers have changed: does redo make good what is not durable?"""
        for block, (durable, *_, write) in file.atomic.items():
            if block in file.pending or self._uncommitted(write.page[:3]) or \
                    write.page[3] not in (_MAIN, _INIT):
                continue        # it may be torn, or redo can do without
            copy, _ = self._copy(write.page, op.begin)
            for redo in {control[2] for control in self._controls}:
                if self.wal.changed_between(write.page, durable.lsn, redo) and \
                        not (copy and self._new_enough(copy, write.page, redo)) and \
                        self._not_rebuilt(write, redo, op.begin):
                    self._violated(op.seq, "A4", f"{_name(write.page)} with LSN {_lsn(write.lsn)}, "
                                   f"written atomically by operation {write.seq}, is not durable, "
                                   f"and redo from {_lsn(redo)} would not make it so", write.page)

    def _recheck(self, op):
        """The mark, the redo pointers or the marker have changed: is each page still safe?

        What was durable when the page's own write began protects it, even if that was
        while the change was under way.
        """
        for file in self._files.values():
            if file.kind == "home":
                self._check_atomic(op, file)
                for write in _all(file.pending):
                    self._check_home(op, write, max(op.begin, write.begin),
                                     f"written by operation {write.seq}, is not durable")

    def _check_lsn(self, op, page, lsn, what):
        """R1."""
        durable = self._wal_durable.at(op.begin)
        if lsn > durable:
            self._violated(op.seq, "R1", f"{what} {_name(page)} with LSN {_lsn(lsn)} is written, "
                           f"and WAL is durable up to {_lsn(durable)}".strip(), page)
        elif self._in_archive_recovery() and lsn > self._recovered.at(op.begin) and \
                not self._within_backup(op.begin):
            self._violated(op.seq, "R1", f"{what} {_name(page)} with LSN {_lsn(lsn)} is written, and "
                           f"minRecoveryPoint is {_lsn(self._recovered.at(op.begin))}".strip(), page)

    def _check_home(self, op, write, begin, what):
        """R2 and R3: say so if a page that may be torn could not be made whole."""
        self.figures["checks"] += 1
        write.excused = False
        missing = self._unprotected(write, begin)
        hints_only = write.page[3] not in (_MAIN, _INIT) and \
            (write.gone or not self._logged(write))
        if missing and not hints_only:      # maps that redo can do without
            self._violated(op.seq, "R2" if op.seq == write.seq else "R3",
                           f"{_name(write.page)} with LSN {_lsn(write.lsn)} {what}; {missing}",
                           write.page)

    def _unprotected(self, write, begin):
        """Return why a home write that is torn would be lost, or None."""
        copy, why = self._copy(write.page, begin)
        for redo in {control[2] for control in self._controls}:
            if copy and self._new_enough(copy, write.page, redo):
                continue
            if not copy and self._only_hints(write, begin, redo):
                continue
            missing = self._not_rebuilt(write, redo, begin)
            if missing:
                return f"{why or 'its copy is too old'}, and {missing}"
        return None

    def _copy(self, page, begin):
        """Return the newest durable copy of a page in the live log, or why there is none."""
        why = "the log has no copy"
        if not self._marker:
            return None, "the log is not in use"
        for batch in reversed(self._copies.get(page, ())):
            if batch.gone:
                why = f"batch {batch.number} with its copy was overwritten"
            elif batch.number < self._mark:
                return None, f"the low-water mark {self._mark} has passed batch {batch.number} " \
                    "with its copy"
            elif not 0 < batch.durable <= begin:
                why = f"batch {batch.number} with its copy was not durable"
            else:
                return batch, None
        return None, why

    def _only_hints(self, write, begin, redo):
        """Say whether a page torn in nothing but hints could be told, and made right."""
        first = self.wal.first(write.page, redo)
        if write.page[3] != _MAIN or first and first[1] <= write.lsn:
            return False
        digest = self._digest(write.content)
        if None not in (digest, write.before) and self._digest(write.before) != digest:
            return False
        return not self._checksums or self._marker and any(
            digest in (None, batch.notes[write.page])
            for batch in self._notes.get(write.page, ())
            if not batch.gone and batch.number >= self._mark and 0 < batch.durable <= begin)

    def _digest(self, place):
        """Return the digest of a page that is known as a whole, else None.

        Without checksums a record sets PD_ALL_VISIBLE and leaves the LSN; it is left out, too.
        """
        if place is None:
            return None
        source, offset = place
        if isinstance(source, Path):
            with open(source, "rb") as base:
                base.seek(offset)
                page = base.read(PAGE)
        else:
            page = self.recording.data(source)[offset:offset + PAGE]
        return hint_digest(page, all_visible=not self._checksums) if len(page) == PAGE else None

    def _new_enough(self, copy, page, redo):
        """Say whether redo from a redo pointer makes of a copy what the page has to be.

        A free space map may be out of date, if it is whole: WAL has images of it, but not
        its changes, nor that it has begun anew since, as after a truncation.
        """
        return page[3] == _FSM or not self.wal.changed_between(page, copy.lsns[page], redo)

    def _logged(self, write):
        """Say whether the log was to protect a page, and is: images leave maps and hints out."""
        return self._marker and write.marked

    def _not_rebuilt(self, write, redo, begin):
        """Return why redo from a redo pointer would not rebuild a page, or None."""
        logged = self._logged(write)
        first = self.wal.first(write.page, redo)
        if first is None or first[0] >= self._wal_end:
            if write.gone or write.hint and not logged or \
                    self.wal.being_dropped(write.page[1], self._wal_durable.at(begin)):
                return None
            if self._uncommitted(write.page[:3]):
                write.excused = True
                return None
            return f"no record from redo pointer {_lsn(redo)} on rebuilds it"
        lsn, end, effect = first
        if effect != wal.REBUILDS or write.page[3] not in (_MAIN, _INIT) and logged:
            return f"the first record from redo pointer {_lsn(redo)} on, at {_lsn(lsn)}, reads it"
        if end > self._wal_durable.at(begin) and not (write.hint and not logged) and \
                not self.wal.uncommitted(write.page[:3], end):
            return f"the record at {_lsn(lsn)} that rebuilds it is not durable"
        return None

    def _violated(self, seq, rule, text, page=None):
        """Count a violation; tell the first ones of each rule, of a page only one."""
        self.figures[f"violations of {rule}"] += 1
        told = self._told[rule]
        subject = page or text
        if subject not in told and len(told) < TOLD:
            told.add(subject)
            self.violations.append(Violation(seq, rule, text))


def _batch(op, data):
    """Return the batch whose header a write begins with, or None."""
    if len(data) < BATCH.size:
        return None
    (magic, version, _, _, number, mark, _, _, npages, redo, pending, _, _, _, _) = \
        BATCH.unpack_from(data)
    entries_end = BATCH.size + npages * ENTRY.size
    if magic != MAGIC or version != VERSION or len(data) < entries_end:
        return None             # the write may have stopped half-way
    lsns, notes, length = {}, {}, 0
    for at in range(BATCH.size, entries_end, ENTRY.size):
        space, database, node, fork, size, block, crc, lsn = ENTRY.unpack_from(data, at)
        page = (space, database, node, fork, block)
        if size:
            lsns[page] = lsn
        else:
            notes[page] = crc
        length += size
    end = op.a + PAGE * (1 + -(-length // PAGE))
    return _Batch(number, mark, (redo, pending), op.ino, op.a, end, lsns, notes, [op])


def _whole(writes):
    """Say whether the last writes of a page, which go on where the one before ended, give all of it."""
    missing = PAGE
    for write in reversed(writes):
        if write.part[1] != missing:
            return False
        missing = write.part[0]
        if missing == 0:
            return True
    return False


def _pages(start, data):
    """Yield (block, content) of a write; the first and the last may be parts of pages."""
    at = 0
    while at < len(data):
        end = at + PAGE - (start + at) % PAGE
        yield (start + at) // PAGE, data[at:end]
        at = end


def _page_lsn(page):
    high, low = _LSN.unpack_from(page)
    return high << 32 | low


def _all(pending):
    return [write for writes in pending.values() for write in writes]


def _join(parent, name):
    return f"{parent}/{name}" if parent else name


def _lsn(value):
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def _name(page):
    space, database, node, fork, block = page
    return f"block {block} of {space}/{database}/{node}{_FORK_NAMES[fork]}"
