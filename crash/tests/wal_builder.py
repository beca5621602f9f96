"""WAL made by hand, for the tests of its reader and of the protocol monitor."""

import struct

from pgcut import wal

SEGMENT_SIZE = 1 << 20
SEGMENT = 8             # the number of the segment in which it starts
_MAGIC = 0xD118


class Wal:
    """Writes records into one segment, from its beginning."""

    def __init__(self):
        self.content = bytearray()
        self.previous = 0

    @property
    def lsn(self):
        """Where the next record starts."""
        if len(self.content) % wal.PAGE == 0:
            self._page_header()
        return self._address()

    def _address(self):
        return SEGMENT * SEGMENT_SIZE + len(self.content)

    def _page_header(self, rest=0):
        long = not self.content
        self.content += struct.pack("<HHIQI4x", _MAGIC, 2 if long else bool(rest), 1,
                                    self._address(), rest)
        if long:
            self.content += struct.pack("<QII", 1, SEGMENT_SIZE, wal.PAGE)

    def add(self, rmid, info, blocks=(), main=b"", xid=3):
        """Append a record; returns (where it starts, the LSN of what it changes).

        `blocks` are (page, image, initialises, data).
        """
        headers, payload = b"", b""
        for number, (page, image, initialises, data) in enumerate(blocks):
            flags = page[3] | 0x10 * image | 0x20 * bool(data) | 0x40 * initialises
            headers += struct.pack("<BBH", number, flags, len(data))
            if image:
                headers += struct.pack("<HHB", 100, 0, 0x03)
                payload += bytes(100)
            headers += struct.pack("<IIII", *page[:3], page[4])
            payload += data
        if main:
            headers += struct.pack("<BB", 255, len(main))
        length = 24 + len(headers) + len(payload) + len(main)
        start = self.lsn
        record = struct.pack("<IIQBBHI", length, xid, self.previous, info, rmid, 0, 0) \
            + headers + payload + main
        self._append(record)
        end = self._address()
        self.content += bytes(-len(self.content) % 8)
        self.previous = start
        return start, end

    def _append(self, record):
        while record:
            if len(self.content) % wal.PAGE == 0:
                self._page_header(len(record))
            room = wal.PAGE - len(self.content) % wal.PAGE
            self.content += record[:room]
            record = record[room:]

    # Records

    def change(self, page, image=False, initialises=False, rmid=10, data=b"data"):
        """A record of the heap, or of another resource manager, for one page."""
        return self.add(rmid, 0x00, [(page, image, initialises, data)])

    def locks(self, page, other):
        """A record of a hash index that changes a page, and has the first one of the bucket locked."""
        return self.add(wal.HASH, wal.HASH_DELETE, [(page, False, False, b""),
                                                    (other, False, False, b"data")])

    def hints(self, page):
        """A record of hints without an image, as it is written when images are off."""
        return self.add(wal.XLOG, wal.FPI_FOR_HINT, [(page, False, False, b"")])

    def visible(self, page):
        """A record by which a heap page becomes all-visible."""
        return self.add(wal.HEAP2, wal.HEAP2_VISIBLE, [(page, False, False, b"")])

    def shutdown_checkpoint(self, images):
        redo = self.lsn
        return self.add(wal.XLOG, wal.CHECKPOINT_SHUTDOWN, main=_checkpoint(redo, images), xid=0)

    def redo_pointer(self):
        return self.add(wal.XLOG, wal.CHECKPOINT_REDO, main=bytes(4), xid=0)[0]

    def checkpoint(self, redo, images):
        return self.add(wal.XLOG, wal.CHECKPOINT_ONLINE, main=_checkpoint(redo, images), xid=0)

    def end_of_recovery(self):
        return self.add(wal.XLOG, wal.END_OF_RECOVERY, main=bytes(24), xid=0)

    def images(self, on):
        return self.add(wal.XLOG, wal.FPW_CHANGE, main=bytes([on]), xid=0)

    def make(self, relation, xid):
        return self.add(wal.SMGR, wal.SMGR_CREATE, main=struct.pack("<IIII", *relation, 0), xid=xid)

    def commit(self, xid):
        return self.add(wal.XACT, 0x00, main=bytes(8), xid=xid)

    def delete_database(self, xid, file=1262):
        """What DROP DATABASE does to the row of a database."""
        row = [((1664, 0, file, 0, 0), True, False, b"")]
        self.add(wal.HEAP, wal.HEAP_INPLACE, row, xid=0)
        self.add(wal.HEAP, wal.HEAP_DELETE, row, xid=xid)

    def remove_database(self, database, xid):
        """Its files are gone, or those in one tablespace."""
        self.add(wal.DBASE, wal.DBASE_DROP, main=struct.pack("<III", database, 1, 1663), xid=xid)


def _checkpoint(redo, images):
    return struct.pack("<QII?", redo, 1, 1, images) + bytes(71)
