"""What the WAL of a recording says: of each page, of transactions, of images.

WAL is put together from all writes of the recording, each segment as it was last
under its name.  What was discarded at the end of a life is thus not in it; no
page may depend on that.
"""

import struct
from bisect import bisect_left
from collections import defaultdict, namedtuple
from typing import Any

from . import wal
from .recording import Kind, Recording

_SEGMENT_SIZE_AT = 32           # in the header of a segment's first page
_REDO = struct.Struct("<Q")     # at the start of a checkpoint record
_FULL_PAGE_WRITES_AT = 16       # in it
_GLOBAL = 1664

# A record that changes a page, the first one after a redo pointer, without
# rebuilding it.  `promised` says that WAL before it has announced images.
ImageFree = namedtuple("ImageFree", "lsn end page promised")


class WalIndex:
    """The records of a recording, by page."""

    def __init__(self, recording: Recording, redo: int) -> None:
        """`redo` is where the first record that matters starts."""
        self.segments, self.segment_size = _segments(recording, recording.ops)
        self.touches = defaultdict(list)    # page -> [(lsn, end, effect)]
        self.image_free = []
        self.records = 0
        self._births = defaultdict(list)    # relation -> [[lsn, xid]]
        self._commits = {}                  # xid -> end of its commit record
        self._invalidated = {}              # relation -> end of the last record of one of its rows in place
        self._droppers = {}                 # xid -> the same for the one that it drops
        self._dropped = {}                  # database -> the same
        self._images = None                 # as announced; None is not known
        self._redo = redo
        self._completed = redo              # redo pointer of the last completed checkpoint
        self._seen = {}                     # page -> redo pointer of its last record
        self._hints_logged = _hints_logged(recording.meta)
        stream = wal.Stream(self.segments, self.segment_size, redo // self.segment_size)
        self.end = redo                     # of the last record
        for record in stream.records(redo):
            self._enter(record)
            self.end = record.end
        self.missing = stream.missing()     # the first thing after it that is none, or not there

    # What was asked for

    def first(self, page: Any, redo: int) -> tuple | None:
        """Return the first (lsn, end, effect) of a page from a redo pointer on, or None."""
        touches = self.touches.get(page, ())
        return next(iter(touches[bisect_left(touches, (redo,)):]), None)

    def changed_between(self, page: Any, lsn: int, redo: int) -> bool:
        """Say whether a record before a redo pointer has changed a page after `lsn`."""
        touches = self.touches.get(page, ())
        before = bisect_left(touches, (redo,))
        return before > 0 and touches[before - 1][1] > lsn

    def uncommitted(self, relation: Any, written: int) -> bool:
        """Say whether the transaction that made a relation has not committed yet.

        `written` is the end of WAL at that moment.
        """
        births = self._births.get(relation, ())
        at = bisect_left(births, [written])
        if at == 0:
            return False
        commit = self._commits.get(births[at - 1][1])
        return commit is None or commit > written

    def unborn(self, relation: Any, written: int) -> bool:
        """Say whether the record that makes a relation comes later, after the end of WAL."""
        births = self._births.get(relation, ())
        return bool(births) and births[0][0] >= written

    def being_dropped(self, database: int, durable: Any) -> bool:
        """Say whether WAL up to `durable` makes a database invalid that is then dropped.

        Until its files are gone, no session can connect to it, and no process syncs them.
        """
        return 0 < self._dropped.get(database, 0) <= durable

    def agreement(self, number: int, offset: int, data: Any) -> int:
        """Return the LSN up to which a write to a segment is what WAL is in the end."""
        start = number * self.segment_size + offset
        final = memoryview(self.segments.get(number, b""))[offset:offset + len(data)]
        if final == data:
            return start + len(data)
        low, high = 0, min(len(final), len(data))
        while low < high:
            middle = (low + high + 1) // 2
            if final[:middle] == data[:middle]:
                low = middle
            else:
                high = middle - 1
        return start + low

    # Entering

    def _enter(self, record):
        self.records += 1
        if record.rmid == wal.XLOG:
            self._enter_control(record)
        elif record.rmid == wal.SMGR and record.info == wal.SMGR_CREATE:
            self._births[struct.unpack_from("<III", record.data)].append([record.lsn, record.xid])
        elif record.rmid == wal.XACT:
            for xid in wal.committed(record):
                self._commits[xid] = record.end
        elif record.rmid == wal.HEAP and record.blocks and record.blocks[0].page[0] == _GLOBAL:
            self._enter_shared(record)
        elif record.rmid == wal.DBASE and record.info == wal.DBASE_DROP \
                and record.xid in self._droppers:       # not if it has only moved elsewhere
            database, = struct.unpack_from("<I", record.data)
            self._dropped[database] = self._droppers[record.xid]
        for page, effect in record.blocks:
            self._enter_block(record, page, effect)

    def _enter_shared(self, record):
        """Follow DROP DATABASE, which marks the row of a database before it deletes it.

        Of shared catalogs only pg_database has rows that are changed in place.  Its file
        may be any, after VACUUM FULL.
        """
        kind, relation = record.info & wal.HEAP_KIND, record.blocks[0].page[:3]
        if kind == wal.HEAP_INPLACE:
            self._invalidated[relation] = record.end
        elif kind == wal.HEAP_DELETE and relation in self._invalidated:
            self._droppers[record.xid] = self._invalidated[relation]

    def _enter_block(self, record, page, effect):
        """Enter a block.  A relation may be made before its transaction has a number.

        Redo does not read a page that a record only locks, while it may be torn.
        """
        births = self._births.get(page[:3])
        if births and not births[-1][1]:
            births[-1][1] = record.xid
        if effect == wal.LOCKS or effect == wal.HINTS and not self._hints_logged:
            return              # the page keeps its LSN
        if effect != wal.HINTS:
            self.touches[page].append((record.lsn, record.end, effect))
        if self._seen.get(page, 0) < self._redo and effect in (wal.CHANGES, wal.HINTS):
            self.image_free.append(ImageFree(record.lsn, record.end, page, self._images is True))
        # Once hints have raised the LSN of a page, the next record of it need not carry an image.
        self._seen[page] = self._redo

    def _enter_control(self, record):
        """Follow redo pointers, and what WAL announces of images.

        A server that lets clients in before its checkpoint goes on with the redo pointer from
        which it was recovered: one of a checkpoint that was cut short is none.
        """
        if record.info in (wal.CHECKPOINT_SHUTDOWN, wal.CHECKPOINT_REDO):
            self._redo = record.lsn
        elif record.info == wal.END_OF_RECOVERY:
            self._redo = self._completed
        if record.info in (wal.CHECKPOINT_SHUTDOWN, wal.CHECKPOINT_ONLINE):
            self._completed, = _REDO.unpack_from(record.data)
        if record.info in (wal.CHECKPOINT_SHUTDOWN, wal.END_OF_RECOVERY):
            self._images = None     # the next start may have other settings
        elif record.info == wal.FPW_CHANGE:
            self._images = bool(record.data[0])
        elif record.info == wal.CHECKPOINT_ONLINE and self._images is None:
            self._images = bool(record.data[_FULL_PAGE_WRITES_AT])


def _hints_logged(meta):
    """Say whether records of hints raise the LSN of their page."""
    return bool(meta.get("checksums")) or meta.get("settings", {}).get("wal_log_hints") == "on"


def end_in_base(recording: Recording, redo: int) -> int:
    """Return where WAL from a redo pointer on ended when the recording began."""
    segments, size = _segments(recording, ())
    end = redo
    for record in wal.Stream(segments, size, redo // size).records(redo):
        end = (record.end + 7) & ~7             # as LSNs of pages have it
        if record.rmid == wal.XLOG and record.info == wal.SWITCH:
            end = -(-end // size) * size        # the rest of the segment is left out
    return end


def _segments(recording, ops):
    """Return ({number: content}, size) of the WAL segments of a recording after operations."""
    directory = next(entry.ino for entry in recording.entries if entry.path == "pg_wal")
    contents, names, found = {}, {}, {}
    for entry in recording.entries:
        folder, _, name = entry.path.rpartition("/")
        if folder == "pg_wal" and entry.type == "f":
            names[entry.ino] = name
            contents[entry.ino] = bytearray((recording.base / entry.path).read_bytes())
    for op in ops:
        if op.kind == Kind.CREATE and op.a == directory:
            names[op.ino], contents[op.ino] = op.name, bytearray()
        elif op.ino not in contents:
            continue
        elif op.kind == Kind.WRITE:
            _put(contents[op.ino], op.a, recording.data(op))
        elif op.kind == Kind.RENAME:
            _keep(found, names[op.ino], contents[op.ino])
            names[op.ino], contents[op.ino] = op.target, bytearray(contents[op.ino])
        elif op.kind == Kind.UNLINK and names.get(op.ino) == op.name:
            _keep(found, names.pop(op.ino), contents[op.ino])
    for ino, name in names.items():
        _keep(found, name, contents[ino])
    size = next(filter(None, (struct.unpack_from("<I", content, _SEGMENT_SIZE_AT)[0]
                              for content in found.values())))
    # of two timelines the later one counts
    return {wal.number_of(key, size): found[key] for key in sorted(found)}, size


def _put(content, at, data):
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at:at + len(data)] = data


def _keep(found, name, content):
    """Keep a segment that leaves its name."""
    key = wal.segment_key(name)
    if key is not None and len(content) >= wal.PAGE:
        found[key] = content
