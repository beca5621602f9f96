"""Reading WAL: which blocks does each record refer to, and does redo rebuild them?

pg_waldump knows nearly all of this, but not which records initialise a page; the
tests hold this reader against it.  A `Stream` is what the pages of consecutive
segments carry, without page headers; records are read from it one after the other.
Checksums are not verified: a record ends the stream if it does not name its
predecessor, or reaches into a page that was not written.
"""

import re
import struct
from bisect import bisect_right
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

PAGE = 8192
_SHORT, _LONG = 24, 40          # headers of pages; the long one begins a segment
_PAGE_HEADER = struct.Struct("<HHIQ")
_OVERWRITES = 0x08              # xlp_info: the record before was never completed
_RECORD = struct.Struct("<IIQBB")
_HEADER = 24
_BLOCK = struct.Struct("<BH")
_IMAGE = struct.Struct("<HHB")
_LOCATOR = struct.Struct("<III")
_NUMBER = struct.Struct("<I")
_WRITTEN = re.compile(rb"[^\0]")
_SEGMENT_NAME = re.compile(r"^([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})$")

_HAS_IMAGE, _HAS_DATA, _WILL_INIT, _SAME_REL = 0x10, 0x20, 0x40, 0x80
_HOLE, _APPLY, _COMPRESSED = 0x01, 0x02, 0x1C

# Resource managers, and what their records say in the upper half of xl_info
XLOG, XACT, SMGR, DBASE, HEAP2, HEAP, HASH = 0, 1, 2, 4, 9, 10, 12
CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE, SWITCH = 0x00, 0x10, 0x40
FPW_CHANGE, END_OF_RECOVERY, FPI_FOR_HINT, CHECKPOINT_REDO = 0x80, 0x90, 0xA0, 0xE0
SMGR_CREATE = 0x10
DBASE_DROP = 0x20
HEAP_KIND, HEAP_DELETE, HEAP_INPLACE = 0x70, 0x10, 0x70
HEAP2_VISIBLE = 0x40
HASH_MOVE, HASH_SQUEEZE, HASH_DELETE = 0x70, 0x80, 0x90
_XACT_COMMIT, _XACT_COMMIT_PREPARED, _XACT_HAS_INFO = 0x00, 0x30, 0x80

# What redo of a record does with a block: it makes a new page of it; it reads the page, and
# may change it; or it only locks the first page of a hash bucket, of which there is never an
# image, and reads it only once recovery is consistent, when no page is torn any more.
# Of a record of hints without an image redo looks at the page not at all, or sets a bit
# in its first sector.
REBUILDS, CHANGES, LOCKS, HINTS = "rebuilds", "changes", "locks", "hints"

# `lsn` is where a record starts, `end` the LSN of the pages it changes.
Record = namedtuple("Record", "lsn end rmid info xid blocks data")
# `page` is (tablespace, database, relation, fork, block).
Block = namedtuple("Block", "page effect")


def segment_key(name: str) -> tuple | None:
    """Return (timeline, high, low) of a WAL segment's file name, or None."""
    match = _SEGMENT_NAME.match(name)
    return tuple(int(part, 16) for part in match.groups()) if match else None


def number_of(key: Any, segment_size: int) -> int:
    """Return the number of a segment, which is the same on each timeline."""
    return key[1] * (0x100000000 // segment_size) + key[2]


class Stream:
    """The contents of consecutive segments, without page headers."""

    def __init__(self, segments: Any, segment_size: int, first: Any) -> None:
        """`segments` is {number: bytes}; take them from `first` on, while there are any."""
        self.segment_size = segment_size
        self.first = first
        self._usable = segment_size - _LONG - (segment_size // PAGE - 1) * _SHORT
        self._overwriting = []
        self._unwritten = []
        self.content = bytearray()
        self._stopped = 0               # the position at which records() has ended
        number = first
        while number in segments:
            self._add(segments[number], number)
            number += 1

    def _add(self, segment, number):
        """Add the pages of a segment, and zeroes for those that were not written."""
        start = number * self.segment_size
        for offset in range(0, self.segment_size, PAGE):
            page = segment[offset:offset + PAGE].ljust(PAGE, b"\0")
            _, info, _, address = _PAGE_HEADER.unpack_from(page)
            if address != start + offset:
                page = bytes(PAGE)
                self._unwritten.append(len(self.content))
            elif info & _OVERWRITES:
                self._overwriting.append(len(self.content))
            self.content += page[_SHORT if offset else _LONG:]

    def lsn(self, position: int) -> int:
        """Return the LSN of a position at which a record starts."""
        return self._address(position, 0)

    def end(self, position: int) -> int:
        """Return the LSN of a position at which a record ends."""
        return self._address(position, 1)

    def _address(self, position, ending):
        segment, rest = divmod(position - ending, self._usable)
        if rest < PAGE - _LONG:
            offset = rest + _LONG
        else:
            page, rest = divmod(rest - (PAGE - _LONG), PAGE - _SHORT)
            offset = (page + 1) * PAGE + _SHORT + rest
        return (self.first + segment) * self.segment_size + offset + ending

    def position(self, lsn: int) -> int:
        """Return the position of an LSN at which a record starts."""
        segment, offset = divmod(lsn, self.segment_size)
        page, rest = divmod(offset, PAGE)
        before = (segment - self.first) * self._usable
        if page == 0:
            return before + max(rest - _LONG, 0)
        return before + PAGE - _LONG + (page - 1) * (PAGE - _SHORT) + max(rest - _SHORT, 0)

    def overwritten(self, position: int, length: int) -> int | None:
        """Return where WAL goes on if a record was left incomplete, else None."""
        return _first_within(self._overwriting, position, length)

    def next_segment(self, position: int) -> int:
        """Return the position at which the segment after this one starts."""
        return (position // self._usable + 1) * self._usable

    def records(self, lsn: int) -> Iterator[Record]:
        """Yield the Records from `lsn`, where one must start, to the end of WAL."""
        position, previous = self.position(lsn), None
        content = self.content
        while position + _HEADER <= len(content):
            self._stopped = position
            length, xid, before, info, rmid = _RECORD.unpack_from(content, position)
            resumed = self.overwritten(position, _HEADER)
            if resumed is not None:     # not even the header was completed
                position = resumed
                continue
            if length < _HEADER or previous is not None and before != previous:
                return
            resumed = self.overwritten(position, length)
            if resumed is not None:
                position = resumed
                continue
            if position + length > len(content) or \
                    _first_within(self._unwritten, position, length) is not None:
                return
            start = self.lsn(position)
            blocks, first, main = _parse(content, position + _HEADER, position + length)
            data = bytes(content[main:position + length]) \
                if rmid in (XLOG, XACT, SMGR, DBASE) else b""
            yield Record(start, self.end(position + length), rmid, info & 0xF0, xid,
                         _effective(rmid, info, first, blocks), data)
            previous = start
            position += (length + 7) & ~7
            if rmid == XLOG and info & 0xF0 == SWITCH:
                position = self.next_segment(position - 1)
        self._stopped = position

    def missing(self) -> int:
        """Return the LSN of the first thing that records() could not read, when it has ended.

        Of an incomplete record that is what has not been written of it; behind the last
        record it is what is there nevertheless, or the end of the segments.
        """
        position, end = self._stopped, len(self.content)
        length = _NUMBER.unpack_from(self.content, position)[0] if position + 4 <= end else 0
        if length < _HEADER:
            written = _WRITTEN.search(self.content, position)
            return self.lsn(written.start() if written else max(position, end))
        unwritten = _first_within(self._unwritten, position, length)
        if unwritten is not None or position + length > end:
            return self.lsn(end if unwritten is None else unwritten)
        return self.lsn(position)


def _first_within(places, position, length):
    """Return the first of the sorted places behind a position and before its end, or None."""
    at = bisect_right(places, position)
    return places[at] if at < len(places) and places[at] < position + length else None


def _parse(content, at, end):
    """Return (blocks, number of the first, where main data starts) of a record.

    Its block headers start at `at`.
    """
    blocks, first, locator, payload, main = [], None, None, 0, 0
    while at < end - payload - main:
        identity = content[at]
        if identity == 255:
            main, at = content[at + 1], at + 2
        elif identity == 254:
            main, at = _NUMBER.unpack_from(content, at + 1)[0], at + 5
        elif identity == 253:
            at += 3
        elif identity == 252:
            at += 5
        else:
            flags, length = _BLOCK.unpack_from(content, at + 1)
            first = identity if first is None else first
            at += 4
            applied = False
            if flags & _HAS_IMAGE:
                size, _, image = _IMAGE.unpack_from(content, at)
                at += 5 + 2 * (image & _HOLE and image & _COMPRESSED != 0)
                length += size
                applied = image & _APPLY
            payload += length
            if not flags & _SAME_REL:
                locator = _LOCATOR.unpack_from(content, at)
                at += 12
            number, = _NUMBER.unpack_from(content, at)
            at += 4
            blocks.append(Block((*locator, flags & 0x0F, number),
                                REBUILDS if applied or flags & _WILL_INIT else
                                CHANGES if flags & _HAS_DATA else None))
    return blocks, first, end - main


def _effective(rmid, info, first, blocks):
    """Return blocks with the effect of those that have neither image nor data."""
    if all(effect for _, effect in blocks):
        return blocks
    visible = rmid == HEAP2 and info & 0x70 == HEAP2_VISIBLE
    hints = rmid == XLOG and info & 0xF0 == FPI_FOR_HINT
    locks = rmid == HASH and info & 0xF0 in (HASH_MOVE, HASH_SQUEEZE, HASH_DELETE) and first == 0
    return [Block(page, effect or (HINTS if hints or visible and page[3] == 0 else
                                   LOCKS if locks and number == 0 else CHANGES))
            for number, (page, effect) in enumerate(blocks)]


def committed(record: Any) -> list[int]:
    """Return the transactions, with those below, that a record commits."""
    kind = record.info & 0x70
    if record.rmid != XACT or kind not in (_XACT_COMMIT, _XACT_COMMIT_PREPARED):
        return []
    found, at, data = [record.xid], 8, record.data
    if not record.info & _XACT_HAS_INFO or len(data) < 12:
        return found
    contents, = _NUMBER.unpack_from(data, at)
    at += 4 + 8 * (contents & 1)
    # sub-transactions, relations, statistics, invalidations: a count, and items
    for flag, size in ((2, 4), (4, 12), (256, 16), (8, 16)):
        if contents & flag:
            count, = _NUMBER.unpack_from(data, at)
            if flag == 2:
                found += struct.unpack_from(f"<{count}I", data, at + 4)
            at += 4 + count * size
    if contents & 16:
        found += _NUMBER.unpack_from(data, at)
    return found
