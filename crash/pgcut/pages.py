"""What the pages of a stopped cluster say without a server."""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .oracle import file_name
from .states import PAGE, RELATION, area

# The database that the oracle asks, of which it knows all files; and where numbers of files
# begin that initdb has not made.
_ASKED = "base/5"
_FIRST_NEW = 16384

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


def future_lsns(data: Any, left_over: Any) -> list[str]:
    """Return a complaint for each file with a page from after the end of WAL.

    After a clean stop the latest checkpoint is the end of WAL.  A page with a
    later LSN carries a change whose record has not survived (R1).  New files are
    written before their WAL, which is flushed before their transaction commits.  So only
    what belongs to nothing may have such pages: `left_over`, by what the oracle says.
    """
    end = end_of_wal(data)
    complaints, left_over = [], set(left_over)
    for path in relation_files(data):
        directory, name = os.path.split(file_name(path))
        if left_over & {directory, f"{directory}/{name}"} or _is_unknown(directory, name):
            continue
        block = _first_page_after(_read(data, path), end)
        if block is not None:
            complaints.append(f"block {block} of {path} has an LSN after the end of WAL, "
                              f"{end >> 32:X}/{end & 0xFFFFFFFF:X}")
    return complaints


def _is_unknown(directory, name):
    """Say whether a file was made in a database of which the oracle does not know the relations."""
    return directory.startswith("base/") and directory != _ASKED and int(name) >= _FIRST_NEW


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
