"""What the pages of a stopped cluster say without a server."""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .oracle import orphan_names
from .states import PAGE, RELATION, area

# Offset in pg_control of the location of the latest checkpoint.
_CONTROL_CHECKPOINT = 32


def relation_files(data: Any) -> Iterator[str]:
    """Yield the paths, relative to a cluster's directory, of its relation files."""
    data = Path(data)
    for directory in (data / "global", *data.glob("base/*"), *data.glob("pg_tblspc/*/*/*")):
        below = directory.relative_to(data)
        for name in os.listdir(directory):
            path = f"{below}/{name}"
            if area(path) == RELATION:
                yield path


def end_of_wal(data: Any) -> int:
    """Return the LSN at which WAL of a cluster that was stopped ends."""
    control = (Path(data) / "global" / "pg_control").read_bytes()
    return struct.unpack_from("<Q", control, _CONTROL_CHECKPOINT)[0]


def fingerprint(data: Any) -> dict:
    """Return what recovery has made of a cluster: {what: checksum}.

    Without free space maps: redo changes them like hints, so what becomes of a
    change depends on when the page is evicted.
    """
    return {path: zlib.crc32(_read(data, path))
            for path in relation_files(data) if "_fsm" not in path}


def future_lsns(data: Any, unfinished: Any) -> list[str]:
    """Return a complaint for each file with a page from after the end of WAL.

    After a clean stop the latest checkpoint is the end of WAL.  A page with a
    later LSN carries a change whose record has not survived (R1).  `unfinished`
    are the files, named as in oracle.orphans_allowed(), of transactions that
    did not commit: new files may be written before their WAL.
    """
    end = end_of_wal(data)
    complaints, unfinished = [], set(unfinished)
    for path in relation_files(data):
        if unfinished.intersection(orphan_names(path)):
            continue
        block = _first_page_after(_read(data, path), end)
        if block is not None:
            complaints.append(f"block {block} of {path} has an LSN after the end of WAL, "
                              f"{end >> 32:X}/{end & 0xFFFFFFFF:X}")
    return complaints


def _read(data, path):
    with open(f"{data}/{path}", "rb", buffering=0) as file:
        return file.readall()


def _first_page_after(content, end):
    """Return the number of the first page with a later LSN, or None."""
    words = memoryview(content)[:len(content) // PAGE * PAGE].cast("I")
    # An LSN is the first two words of a page: the higher half, and the lower one.
    lsns = zip(words[::PAGE // 4], words[1::PAGE // 4])
    later = divmod(end, 1 << 32)
    return next((block for block, lsn in enumerate(lsns) if lsn > later), None)
