"""The durability model: which files may a power cut leave behind?

A `Disk` is advanced along a recording.  At each cut it knows what is
*durable*, because a sync that has returned covers it, and which operations are
*pending*.  A `Choice` says what became of each pending operation, and
`Disk.tree()` builds the files that follow from it.  What the model promises:

M1  A sync of a file makes durable all data and size changes of that file that
    took effect before the sync was called, and nothing else.
M2  A pending write may have reached the disk wholly, not at all, or in any set
    of sectors (512 bytes or 4 kB); a combined write likewise.  Pending writes
    are independent of each other, across files and within one: the kernel
    writes pages back as it likes.  Of one sector an older write never comes
    back over a newer one.
M3  A pending change of a file's size may be lost, and may come early, that is
    without the data: the space then reads as zeroes.  A truncation that is
    lost may have zeroed the rest of its last 4-kB block (SIZE_ONLY of it), and
    takes with it what was written later to the blocks that it would have freed:
    that goes to other blocks of the device, as ext4, xfs and btrfs give out none
    before their journal says that it is free.
M4  Creating, renaming and removing names is pending until the directory is
    synced.  Pending changes of names may be lost in any subset, but of one
    name, a later change never survives an earlier one that is lost.
M5  A sync of a file makes its current name durable too, and the directories
    above it, as journals of ext4, xfs and btrfs do; PostgreSQL relies on it for
    relation files.  fdatasync() does so for a new file only, not for a link or
    a rename (seen on ext4).  `Rules.names_need_directory_sync` turns all this
    off below the directories it names.
M6  What a failed sync of a file should have made durable may be kept, lost or
    torn for good: programs read it, but the kernel has forgotten that it is not
    on the disk, so later syncs do not cover it.  They do cover what comes later,
    over which it never comes back.  A failed sync of a directory promises
    nothing, and a later one that succeeds covers all: names are in a journal.
M7  An atomic write goes to the disk past the kernel's cache.  What that has cached
    of the range is on the disk before, so it does not come back over it either.
    `Rules.cache_over_atomic_writes` turns that off.

Where writes do not begin and end at sector boundaries (small text files), a
sector that reaches the disk is as it was in memory when that write was done:
the earlier pending writes of the same sector come along.
"""

import errno
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .content import KEPT, LOST, aligned, cache_last, replay, with_truncations
from .recording import (
    DATA_KINDS,
    NAME_KINDS,
    ROOT_INO,
    SYNC_DATA,
    SYNC_DIRECTORY,
    Kind,
)


@dataclass(frozen=True)
class Rules:
    """Departures from the model, by which a control breaks a promise."""

    # Directories (prefixes of paths) whose files' syncs are not honoured.
    ignore_syncs_below: tuple = ()
    # Directories to which M5 does not apply, and whose own syncs do not count.
    names_need_directory_sync: tuple = ()
    ignore_directory_syncs_below: tuple = ()
    # M7 does not apply.
    cache_over_atomic_writes: bool = False


@dataclass
class Choice:
    """What became of the pending operations: by number, the rest by default."""

    unit: int = 512
    default: int = KEPT
    fates: dict = field(default_factory=dict)

    def fate(self, op: Any) -> int:
        """Return what became of an operation."""
        return self.fates.get(op.seq, self.default)


class _File:
    """One inode: what is durable of it, and what is pending, in order."""

    __slots__ = ("kind", "content", "pending", "doomed", "settled")

    def __init__(self, kind: str, content: Any) -> None:
        self.kind = kind            # "f", "d" or "l"
        self.content = content      # bytes; None for a directory
        self.pending = []
        self.doomed = 0             # operations up to here had a failed sync (M6)
        self.settled = set()        # pending ones that are durable, behind doomed ones

    def fate(self, op: Any, choice: Choice) -> int:
        """Return what became of a pending operation."""
        return KEPT if op.seq in self.settled else choice.fate(op)

    def cover(self, begin: int) -> Any:
        """Return what is durable now, in order, as a sync that began there has returned."""
        covered = [op for op in self.pending if op.seq <= begin]
        durable = [op for op in covered if op.seq > self.doomed or op.seq in self.settled]
        if len(durable) < len(covered):     # in the order in which they were done
            self.settled.update(op.seq for op in durable)
            return []
        self.settled.difference_update(op.seq for op in durable)
        self.pending = self.pending[len(durable):]
        return durable


class Disk:
    """The state of the disk at one moment of a recording."""

    def __init__(self, recording: Any, rules: Rules = Rules()) -> None:
        self.recording = recording
        self.cut = 0
        self.rules = rules
        self._names = {}            # directory -> {name: inode}, durable
        self._pending_names = []
        self._renamed = set()       # inodes of pending changes of names
        self._files = {}
        self._changed = set()       # files with pending data operations
        self._parent = {}           # directory -> directory above it
        self._home = {}             # new file -> directory in which its name is durable
        self._load_base()
        paths = recording.paths() if rules != Rules() else {}
        self._ignored = _below(paths, rules.ignore_syncs_below)
        self._strict_names = _below(paths, rules.names_need_directory_sync)
        self._ignored_directories = _below(paths, rules.ignore_directory_syncs_below)

    # Moving along the recording

    def advance(self, cut: int) -> None:
        """Let everything up to operation `cut` take effect; never goes back."""
        if cut < self.cut:
            raise ValueError(f"cannot go back from {self.cut} to {cut}")
        for op in self.recording.ops[self.cut:cut]:
            self._apply(op)
        self.cut = cut

    def pending_data(self) -> list:
        """Return the pending writes, truncations and allocations, in order."""
        files = [self._files[ino] for ino in self._changed]
        ops = [op for file in files for op in file.pending if op.seq not in file.settled]
        return sorted(ops, key=lambda op: op.seq)

    def pending_names(self) -> list:
        """Return the pending changes of names, in order."""
        return list(self._pending_names)

    # What a cut leaves

    def tree(self, choice: Choice) -> Iterator[tuple]:
        """Yield (path, kind, content) of all that a cut here leaves.

        Directories come before what is in them.  `kind` is "f", "d" or "l";
        content is bytes, of a link the target, of a directory None.
        """
        names = self._chosen_names(choice)
        stack = [("", ROOT_INO)]
        while stack:
            path, directory = stack.pop()
            for name, ino in names[directory].items():
                file = self._files[ino]
                child = f"{path}/{name}" if path else name
                yield child, file.kind, self._chosen_content(ino, choice)
                if file.kind == "d":
                    stack.append((child, ino))

    def names(self, directory: int, choice: Choice) -> dict:
        """Return {name: inode} of a directory that a cut here leaves."""
        return dict(self._chosen_names(choice)[directory])

    def content(self, ino: int, choice: Choice) -> bytes | bytearray:
        """Return the content that a cut here leaves of one file."""
        return self._chosen_content(ino, choice)

    # Operations

    def _apply(self, op):
        if op.kind in DATA_KINDS:
            self._files[op.ino].pending.append(op)
            self._changed.add(op.ino)
        elif op.kind in NAME_KINDS:
            self._pending_names.append(op)
            self._renamed.add(op.ino)
            self._note_new(op)
        elif op.kind == Kind.SYNC:
            self._sync(op)
        elif op.kind == Kind.SYNCFAILED and op.ino in self._files:
            self._files[op.ino].doomed = max(self._files[op.ino].doomed, op.begin)

    def _note_new(self, op):
        """Enter the inode that an operation has brought into being."""
        if op.kind == Kind.CREATE:
            self._files[op.ino] = _File("f", b"")
        elif op.kind == Kind.MKDIR:
            self._files[op.ino] = _File("d", None)
            self._names[op.ino] = {}
            self._parent[op.ino] = op.a
        elif op.kind == Kind.SYMLINK:
            self._files[op.ino] = _File("l", os.fsencode(op.target))
        elif op.kind == Kind.RENAME and op.ino in self._parent:
            self._parent[op.ino] = op.b

    def _sync(self, op):
        if op.flags & SYNC_DIRECTORY:
            if op.ino not in self._ignored_directories:
                self._persist_names(op.begin, lambda n: op.ino in _directories(n))
            return
        if op.ino in self._ignored:
            return
        file = self._files[op.ino]
        durable = self._as_written(file.cover(op.begin))
        if not file.pending:
            self._changed.discard(op.ino)
        file.content = replay(file.content, [(op, KEPT) for op in durable], 512, self.recording.data)
        if op.ino in self._strict_names or not self._renamed:
            return
        kinds = (Kind.CREATE, Kind.MKDIR) if op.flags & SYNC_DATA else \
            NAME_KINDS - {Kind.UNLINK, Kind.RMDIR}
        wanted = {op.ino, *self._ancestors(op, kinds)}
        if wanted & self._renamed:
            self._persist_names(op.begin, lambda n: n.ino in wanted and n.kind in kinds)

    def _ancestors(self, sync, kinds):
        """Yield the directories above the names of a file that a sync covers.

        These are pending names, or one that is durable already, because its directory was
        synced when its own name was not.
        """
        below = [op.b if op.kind == Kind.RENAME else op.a for op in self._pending_names
                 if op.ino == sync.ino and op.kind in kinds and op.seq <= sync.begin]
        for directory in [*below, self._home.get(sync.ino, ROOT_INO)]:
            while directory != ROOT_INO:
                yield directory
                directory = self._parent[directory]

    def _persist_names(self, begin, covers):
        """Make pending changes of names durable, with those they rest on."""
        begun = [op for op in self._pending_names if op.seq <= begin]
        if not any(map(covers, begun)):
            return
        durable = _with_earlier(begun, covers)
        for op in durable:
            _change_names(self._names, op)
            if op.kind not in (Kind.UNLINK, Kind.RMDIR):
                self._home[op.ino] = op.b if op.kind == Kind.RENAME else op.a
        done = {op.seq for op in durable}
        self._pending_names = [op for op in self._pending_names if op.seq not in done]
        self._renamed = {op.ino for op in self._pending_names}

    # Choosing

    def _chosen_names(self, choice):
        kept = _with_earlier(self._pending_names, lambda op: choice.fate(op) != LOST)
        if not kept:
            return self._names
        names = {directory: dict(entries) for directory, entries in self._names.items()}
        for op in kept:
            _change_names(names, op)
        return names

    def _chosen_content(self, ino, choice):
        file = self._files[ino]
        if not file.pending:
            return file.content
        fates = list(with_truncations(self._as_written(file.pending), choice.unit,
                                       lambda op: file.fate(op, choice)))
        memory = None if all(aligned(op) for op in file.pending) else bytearray(file.content)
        return replay(file.content, fates, choice.unit, self.recording.data, memory)

    def _as_written(self, ops):
        """Return pending operations in the order in which they come to the disk."""
        return cache_last(ops) if self.rules.cache_over_atomic_writes else ops

    # The start

    def _load_base(self):
        by_path = {"": ROOT_INO}
        self._files[ROOT_INO] = _File("d", None)
        self._names[ROOT_INO] = {}
        for entry in self.recording.entries:
            if not entry.path:
                continue
            by_path[entry.path] = entry.ino
            parent, _, name = entry.path.rpartition("/")
            self._names[by_path[parent]][name] = entry.ino
            if entry.ino in self._files:
                continue                # one more hard link
            path = self.recording.base / entry.path
            if entry.type == "d":
                self._files[entry.ino] = _File("d", None)
                self._names[entry.ino] = {}
                self._parent[entry.ino] = by_path[parent]
            elif entry.type == "l":
                self._files[entry.ino] = _File("l", os.fsencode(os.readlink(path)))
            else:
                self._files[entry.ino] = _File("f", _content(path))


def _content(path):
    """Return the content of a file; of those that are but a hole all of one size share it."""
    with open(path, "rb", buffering=0) as file:
        try:
            os.lseek(file.fileno(), 0, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return _zeroes(os.fstat(file.fileno()).st_size)
        file.seek(0)
        return file.readall()


@functools.cache
def _zeroes(size):
    return bytes(size)


# Names ------------------------------------------------------------------


def _directories(op):
    """Return the directories that a change of names is in."""
    return (op.a, op.b) if op.kind == Kind.RENAME else (op.a,)


def _touched(op):
    """Return the names, each (directory, name), that an operation changes."""
    names = {(op.a, op.name)}
    if op.kind == Kind.RENAME:
        names.add((op.b, op.target))
    return names


def _with_earlier(ops, wanted):
    """Return the wanted operations and the earlier ones on the same names (M4)."""
    names, chosen = set(), []
    for op in reversed(ops):
        touched = _touched(op)
        if wanted(op) or touched & names:
            names |= touched
            chosen.append(op)
    return chosen[::-1]


def _change_names(names, op):
    """Apply one change of names to {directory: {name: inode}}."""
    if op.kind in (Kind.UNLINK, Kind.RMDIR):
        if names[op.a].get(op.name) == op.ino:
            del names[op.a][op.name]
    elif op.kind == Kind.RENAME:
        if names[op.a].get(op.name) == op.ino:
            del names[op.a][op.name]
        names[op.b][op.target] = op.ino
    else:
        names.setdefault(op.a, {})[op.name] = op.ino


def _below(paths, prefixes):
    """Return the inodes whose paths are in, or are, one of these directories."""
    return {ino for ino, path in paths.items()
            if any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)}
