"""Recordings: what a server did to its files, and what its clients were told.

A recording is a directory that the recorder (crash/recorder) and the workload
fill; crash/README.md describes the files.  Operations are kept as tuples with
named fields; the data of writes stays in the mapped file until it is needed.
"""

import enum
import json
import mmap
import struct
from bisect import bisect_left, bisect_right
from collections import namedtuple
from pathlib import Path
from typing import Any

MAGIC = b"PGCUTOPS"
VERSION = 1
_FILE_HEADER = struct.Struct("<8sII")
_RECORD = struct.Struct("<IHHQQQQQQII")
_RECORD_MAGIC = 0x31504F50

ROOT_INO = 1


class Kind(enum.IntEnum):
    """What an operation did; the numbers are those of ops.bin."""

    CREATE = 1
    MKDIR = 2
    SYMLINK = 3
    LINK = 4
    UNLINK = 5
    RMDIR = 6
    RENAME = 7
    WRITE = 8
    TRUNCATE = 9
    FALLOCATE = 10
    SYNC = 11
    SYNCFAILED = 12
    FAULT = 13


DATA_KINDS = frozenset((Kind.WRITE, Kind.TRUNCATE, Kind.FALLOCATE))
NAME_KINDS = frozenset((Kind.CREATE, Kind.MKDIR, Kind.SYMLINK, Kind.LINK,
                        Kind.UNLINK, Kind.RMDIR, Kind.RENAME))

# Of Op.flags of a WRITE: it was cut short on purpose; it is whole or absent
WRITE_SHORTENED = 1
WRITE_ATOMIC = 2

# Of Op.flags of a SYNC
SYNC_DATA = 1
SYNC_DIRECTORY = 2

# One operation.  `target` is the new name of a RENAME, or what a SYMLINK points
# to; the data of a WRITE lies at `at` in ops.bin.
Op = namedtuple("Op", "seq begin time kind flags ino a b name target at length")

# One file, directory or symbolic link of the tree before the run.
BaseEntry = namedtuple("BaseEntry", "ino type path")

# Where the base has noise from the beginning: {path: [offset of a sector]}
ROTTEN = "rotten.json"

# When a standby replayed what it was behind by: begin and end, and how many windows of WAL it looked
# ahead in meanwhile, for how many blocks.
REPLAYS = "replays.json"


class RecordingError(Exception):
    """A recording cannot be read, or does not fit together."""


class Recording:
    """A recording on disk, opened for reading."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.base = self.directory / "base"
        self.entries = _read_base(self.directory / "base.tsv")
        self._map = _map(self.directory / "ops.bin")
        self.ops = list(_parse(self._map))
        self.meta = _read_json(self.directory / "meta.json", {})
        self.rotten = _read_json(self.directory / ROTTEN, {})
        self.replays = _read_json(self.directory / REPLAYS, [])
        acks = self.directory / "acks.jsonl"
        self.acks = [json.loads(line) for line in acks.read_text().splitlines()] \
            if acks.exists() else []

    def data(self, op: Any) -> bytes:
        """Return the bytes that a WRITE wrote."""
        return self._map[op.at:op.at + op.length]

    def time_of_cut(self, cut: int) -> float:
        """Return the moment of a cut after operation `cut`, on the clock of the acks.

        The latest moment that fits is when the next operation took effect:
        whatever a client was told before then must have survived.
        """
        return self.ops[cut].time if cut < len(self.ops) else self.ops[-1].time + 1

    def ahead(self) -> list[tuple[int, int]]:
        """Return the first and the last cut of each time when a standby replayed and looked ahead."""
        times = [op.time for op in self.ops]
        return [(bisect_left(times, replay["begin"]), bisect_right(times, replay["end"]))
                for replay in self.replays if replay["windows"]]

    def paths(self) -> dict:
        """Return {ino: path} with the last path that each file had."""
        paths = {entry.ino: entry.path for entry in self.entries}
        paths[ROOT_INO] = ""
        for op in self.ops:
            if op.kind in (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK, Kind.LINK):
                paths[op.ino] = _join(paths[op.a], op.name)
            elif op.kind == Kind.RENAME:
                _rename(paths, op.ino, _join(paths[op.b], op.target))
        return paths


def _rename(paths, ino, path):
    """Give `ino` a new path, and what is below it."""
    below = paths[ino] + "/"
    for other, old in paths.items():
        if old.startswith(below):
            paths[other] = f"{path}/{old[len(below):]}"
    paths[ino] = path


def _join(parent, name):
    return f"{parent}/{name}" if parent else name


def _read_base(path):
    """Return the BaseEntries of base.tsv, parents before children."""
    entries = []
    for line in path.read_text().splitlines():
        ino, kind, name = line.split("\t", 2)
        entries.append(BaseEntry(int(ino), kind, "" if name == "." else name))
    return sorted(entries, key=lambda entry: entry.path.count("/") + bool(entry.path))


def _read_json(path, default):
    return json.loads(path.read_text()) if path.exists() else default


def _map(path):
    """Map ops.bin; raises RecordingError if it is none of ours."""
    with open(path, "rb") as file:
        head = file.read(_FILE_HEADER.size)
        if len(head) < _FILE_HEADER.size or _FILE_HEADER.unpack(head)[:2] != (MAGIC, VERSION):
            raise RecordingError(f"{path} is not a recording of version {VERSION}")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _parse(mapped):
    """Yield the Ops of a mapped ops.bin; an incomplete last record is left out."""
    at, number = _FILE_HEADER.size, 0
    while at + _RECORD.size <= len(mapped):
        (magic, kind, flags, seq, begin, time, ino, a, b, name_length,
         length) = _RECORD.unpack_from(mapped, at)
        number += 1
        if magic != _RECORD_MAGIC or seq != number:
            raise RecordingError(f"ops.bin is damaged at byte {at}, operation {number}")
        name_at = at + _RECORD.size
        data_at = name_at + name_length
        if data_at + length > len(mapped):
            return
        target = mapped[data_at:data_at + length].decode() \
            if kind in (Kind.RENAME, Kind.SYMLINK) else ""
        yield Op(seq, begin, time, kind, flags, ino, a, b,
                 mapped[name_at:data_at].decode(), target, data_at, length)
        at = data_at + length
