"""What a batch of the double-write log looks like; see storage/doublewrite_format.h."""

import struct

BATCH = struct.Struct("<QIIQQQQIIQQQII")
ENTRY = struct.Struct("<IIIHHIIQ")
MAGIC = 0x31474F4C57444750
VERSION = 3
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


def crc32c(data):
    """Return the CRC-32C of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRCS[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def planted(rng, system, segments, length):
    """Return bytes that look like headers of batches, as a user might make them up.

    All is right but for the nonce, which users never learn: each is of a block of one of the
    segments, by number, and says that no earlier batch counts any more.  Noise in between lets
    them stand anywhere.
    """
    content = b""
    while len(content) < length:
        number = rng.randrange(1, 1 << 40)
        fields = (MAGIC, VERSION, PAGE, system, number, number, rng.choice(segments),
                  rng.randrange(1, SEGMENT_BLOCKS), 0, rng.randrange(1 << 40), 0,
                  rng.randrange(_UNSIGNED), 0)
        header = BATCH.pack(*fields, 0)[:-4]
        content += header + struct.pack("<I", crc32c(header)) + rng.randbytes(rng.randrange(90))
    return content[:length]
