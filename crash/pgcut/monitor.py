"""The protocol monitor: is each write of a recording allowed?

States sample a recording; the monitor reads all of it once.  At each operation it
knows what is durable, and holds the rules of the engine's README against it:

R1   A page in the log or at home has an LSN that durable WAL reaches; on a standby
     also the durable minRecoveryPoint.
R2   As long as a home write is not durable, it may be torn.  So from its start on a
     durable copy of the page is in the log, new enough for each redo pointer from
     which a crash could recover; or the first record for the block after each of
     them rebuilds it; or no record after them has changed it, it differs from what was
     home before in hints only, and with checksums a durable hint note in the log fits it.  A write
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
Only redo reads a database that DROP DATABASE has begun to remove.
"""

import gc
import re
import struct
from collections import defaultdict
from typing import Any

from . import wal
from .recording import ROOT_INO, SYNC_DATA, SYNC_DIRECTORY, Kind, Recording
from .states import SPACES
from .watched import CONTROL, PAGE, File, flat, lsn_text, page_name
from .watchedhome import HomeRules

# Pages in a file of a relation, in pg_control
_SEGMENT_PAGES = struct.Struct("<220xI")

_MARKER = "backup_label"

_HOME = re.compile(rf"(?:base/(\d+)|(global)|(?:pg_tblspc|{SPACES})/(\d+)/[^/]+/(\d+))"
                   r"/(\d+)(?:_(fsm|vm|init))?(?:\.(\d+))?$")
_FORKS = {None: 0, "fsm": 1, "vm": 2, "init": 3}
_DEFAULT_SPACE, _GLOBAL_SPACE = 1663, 1664


def redo_pointer(data: Any) -> int:
    """Return the redo pointer that the control file of a data directory names."""
    return CONTROL.unpack_from((data / "global/pg_control").read_bytes())[2]


def check(recording: Recording) -> tuple:
    """Return (violations, figures) of a recording."""
    gc.disable()                # which would look at a million records again and again
    try:
        monitor = Monitor(recording)
        monitor.run()
    finally:
        gc.enable()
    return monitor.violations, monitor.figures


class Monitor(HomeRules):
    """Reads a recording from beginning to end."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._segment_pages, = _SEGMENT_PAGES.unpack_from(
            (recording.base / "global/pg_control").read_bytes())
        self._removals = defaultdict(list)  # directory -> [(seq, inodes)]
        self._load_base()

    def run(self) -> None:
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
                               f"WAL record at {lsn_text(free.lsn)} changes {page_name(free.page)} without "
                               "an image, the first one since the redo pointer, though images are on",
                               free.page)
        durable = self._wal_durable.at(len(self.recording.ops))
        if durable > self.wal.missing:
            self._violated(len(self.recording.ops), "WAL", f"our reader has not come further than "
                           f"to the record that ends at {lsn_text(self.wal.end)}: what is at "
                           f"{lsn_text(self.wal.missing)} is none, though WAL is durable up to "
                           f"{lsn_text(durable)}")
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
        """Return a File of the kind that its path says."""
        file = File(path=path)
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
        self._paths[op.ino] = _joined(self._paths[op.a], op.name)
        if op.kind == Kind.CREATE:
            file = self._files[op.ino] = self._classified(self._paths[op.ino])
            if file.kind == "home":
                self._made.add(file.where[0])

    def _rename(self, op):
        old = self._files.get(op.ino)
        self._paths[op.ino] = _joined(self._paths[op.b], op.target)
        if old is None:
            return
        if old.kind == "log":
            self._destroy(op, old, 0, old.size)
        elif old.kind == "marker":
            self._marker_removed(op)
        new = self._classified(self._paths[op.ino])
        new.size, new.base, new.lsns, new.pending = old.size, old.base, old.lsns, old.pending
        new.newest = old.newest
        new.atomic, new.cut, new.cut_off = old.atomic, old.cut, old.cut_off
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
            for write in flat(file.pending):
                write.gone = op.seq
            file.atomic.clear()

    def _rmdir(self, op):
        """Enter that what was removed below a directory goes with it."""
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
        blocks = range(-(-op.a // PAGE), file.size // PAGE)
        file.size = op.a
        for block in [block for block in file.pending if block * PAGE >= op.a]:
            for write in file.pending[block]:
                write.gone = op.seq
        if file.kind == "home":
            for block in blocks:            # those that were only added have no LSN
                if block not in file.pending:
                    file.cut[block] = file.atomic[block][0].lsn if block in file.atomic \
                        else self._lsn_at_home(file, block)
        file.cut_off = op.seq, self._wal_end
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


def _joined(parent, name):
    return f"{parent}/{name}" if parent else name
