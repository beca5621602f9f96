"""What a batch of the double-write log looks like; see storage/doublewrite_format.h."""

import random
import struct
from typing import Any

BATCH = struct.Struct("<QIIQQQQIIQQQQII")
ENTRY = struct.Struct("<IIIHHIIQ")
MAGIC = 0x31474F4C57444750
VERSION = 5
PAGE = 8192
SEGMENT_BLOCKS = 512

_UNSIGNED = 1 << 64


def _crc_table():
    """Return what each byte adds to a CRC-32C."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRCS = _crc_table()


def crc32c(data: Any) -> int:
    """Return the CRC-32C of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRCS[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


_ITEM = struct.Struct("<I")
_INFOMASK = 21                  # its byte with the bits of hints
_HINTS = 0x0F


def hint_digest(page: Any, all_visible: bool = False) -> int:
    """Return what a note says of a heap page: its CRC without its hints.

    With `all_visible`, PD_ALL_VISIBLE is left out as well.
    """
    page = bytearray(page)
    lower, = struct.unpack_from("<H", page, 12)
    page[0:10] = bytes(10)      # pd_lsn, pd_checksum
    page[10] &= ~7 if all_visible else ~3       # PD_HAS_FREE_LINES, PD_PAGE_FULL
    page[20:24] = bytes(4)      # pd_prune_xid
    for at in range(24, lower - 3 if lower <= PAGE else 0, _ITEM.size):
        item, = _ITEM.unpack_from(page, at)
        offset = item & 0x7FFF
        if item >> 15 & 3 == 1 and offset % 8 == 0 and offset + _INFOMASK + 2 <= PAGE:
            page[offset + _INFOMASK] &= ~_HINTS & 0xFF
    return crc32c(page)


def planted(rng: random.Random, system: int, segments: Any, length: int) -> bytes:
    """Return bytes that look like headers of batches, as a user might make them up.

    All is right except the nonce, which users never learn.  Each header is of a block of one of
    the segments, by number, and says that no earlier batch is live.  Noise in between puts them
    at any offset.
    """
    content = b""
    while len(content) < length:
        number = rng.randrange(1, 1 << 40)
        fields = (MAGIC, VERSION, PAGE, system, number, number, rng.choice(segments),
                  rng.randrange(1, SEGMENT_BLOCKS), 0, rng.randrange(1 << 40), 0,
                  rng.randrange(_UNSIGNED), 0, 0)
        header = BATCH.pack(*fields, 0)[:-4]
        content += header + struct.pack("<I", crc32c(header)) + rng.randbytes(rng.randrange(90))
    return content[:length]
