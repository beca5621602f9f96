"""Is the durability model true?  disk.py checked against a real file system.

A `FilePlayer` (fileplayer.py) does random things to files on a file system whose
device is recorded (block.py), and notes them as a recording of files would.  Then
the power is cut in the recording of the device, at many places and with any part of
the unflushed block writes lost.  The image is mounted, and the files found are
compared with the model: every tree that a real file system leaves must be one that
the model allows at that moment.  If not, the model promises more than disks keep,
and the explorer would miss crashes that happen.

The other direction is not checked: the model allows much that a journal never
does.  A program that survives the model survives the file system.

`complaints()` is the question "does the model allow this tree?".  It does not
try all choices.  Changes of names fall into groups that share no name, data
into files and sectors, and each is a small question of its own.
"""

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .block import BlockDisk, BlockError, BlockStore, mounted, random_choice
from .content import BLOCK, KEPT, LOST
from .disk import Choice, Disk
from .fileplayer import SECTOR, FileHistory, FilePlayer
from .recording import ROOT_INO, Kind, Recording

_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE, _FALLOC_ZERO_RANGE = 1, 2, 16
_IGNORED_NAMES = {"lost+found"}


# What is found -------------------------------------------------------------


def found_tree(root: Path) -> dict:
    """Return {path: (kind, content)} of what is below a directory."""
    tree = {}
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if name not in _IGNORED_NAMES]
        for name in subdirectories + files:
            path = os.path.join(directory, name)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                tree[key] = "l", os.fsencode(os.readlink(path))
            elif os.path.isdir(path):
                tree[key] = "d", None
            else:
                tree[key] = "f", Path(path).read_bytes()
    return tree


# Does the model allow it? ----------------------------------------------------


class OpenDisk(Disk):
    """A Disk that shows what it holds."""

    def __init__(self, history: FileHistory) -> None:
        super().__init__(history)
        self.history = history

    def all_names(self) -> dict:
        """Return the durable names, {(directory, name): inode}."""
        return {(directory, name): ino for directory, entries in self._names.items()
                for name, ino in entries.items()}

    def kind(self, ino: int) -> str:
        """Return "f", "d" or "l"."""
        return self._files[ino].kind

    def data_of(self, ino: int) -> tuple:
        """Return what is durable of a file, and its pending operations."""
        return bytes(self._files[ino].content), list(self._files[ino].pending)


def complaints(disk: OpenDisk, found: Any) -> list[str]:
    """Return why the model does not allow this tree at the cut of a Disk.

    `found` is {path: (kind, content)}.  Directories must never be renamed, and
    never be made again under the same name.
    """
    return _Judgement(disk, found).complaints()


class _Judgement:
    """One tree under examination."""

    def __init__(self, disk: OpenDisk, found: Any) -> None:
        self._disk = disk
        self._names = disk.all_names()
        self._found = found
        self._verdicts = {}         # (inode, path) -> reason, or None
        self._paths = self._directory_paths()

    def complaints(self) -> list[str]:
        reasons = []
        groups = _groups(self._disk.pending_names())
        touched = set().union(*(names for names, _ in groups))
        expected = set(self._names)
        known = set()
        for directory, name in expected | touched:
            if directory in self._paths:
                known.add(_join(self._paths[directory], name))
        reasons += [f"{path} has never been there" for path in self._found if path not in known]
        for place in sorted(expected - touched):
            reasons += self._mismatches({place: self._names[place]}, [place])
        for names, ops in groups:
            reasons += self._group_complaints(names, ops)
        return reasons

    def _directory_paths(self):
        """Return {directory: path} of the directories that are in the tree."""
        paths = {ROOT_INO: ""}
        made = {ino: place for place, ino in self._names.items()}
        for op in self._disk.history.ops[:self._disk.cut]:
            if op.kind == Kind.MKDIR:
                made[op.ino] = op.a, op.name
        for ino in sorted(made):            # those above come before those below
            above, name = made[ino]
            if above in paths and self._found.get(_join(paths[above], name), "")[:1] == ("d",):
                paths[ino] = _join(paths[above], name)
        return paths

    def _group_complaints(self, names, ops):
        """Return why no subset of a group of changes explains what is found."""
        reasons = []
        for kept in _closed_subsets(ops):
            entries = {place: ino for place, ino in self._names.items() if place in names}
            for op in kept:
                _change(entries, op)
            reasons = self._mismatches(entries, sorted(names))
            if not reasons:
                return []
        steps = ", ".join(f"{op.seq} {Kind(op.kind).name} {op.name} {op.target}".strip()
                          for op in ops)
        return [f"no subset of ({steps}) explains it; with all kept: {reasons}"]

    def _mismatches(self, entries, places):
        """Return where the tree differs from these entries, at these places."""
        reasons = []
        for directory, name in places:
            if directory not in self._paths:
                continue                    # below a directory that is lost
            path = _join(self._paths[directory], name)
            ino = entries.get((directory, name))
            if ino is None and path in self._found:
                reasons.append(f"{path} must not be there")
            elif ino is not None and path not in self._found:
                reasons.append(f"{path} is missing")
            elif ino is not None and self._content_reason(ino, path):
                reasons.append(self._content_reason(ino, path))
        return reasons

    def _content_reason(self, ino, path):
        if (ino, path) not in self._verdicts:
            kind, content = self._found[path]
            if kind != self._disk.kind(ino):
                reason = f"{path} is of another kind"
            elif kind == "f":
                reason = self._data_reason(ino, content)
            else:
                reason = None
            self._verdicts[ino, path] = reason and f"{path} (inode {ino}): {reason}"
        return self._verdicts[ino, path]

    def _data_reason(self, ino, content):
        durable, pending = self._disk.data_of(ino)
        return data_reason(durable, pending, self._disk.history.data, content)


def _join(directory, name):
    return f"{directory}/{name}" if directory else name


def _names_of(op):
    """Return the names, each (directory, name), that an operation changes."""
    names = {(op.a, op.name)}
    if op.kind == Kind.RENAME:
        names.add((op.b, op.target))
    return names


def _change(entries, op):
    """Apply a change of names to {(directory, name): inode}."""
    if op.kind in (Kind.UNLINK, Kind.RMDIR, Kind.RENAME) and \
            entries.get((op.a, op.name)) == op.ino:
        del entries[op.a, op.name]
    if op.kind == Kind.RENAME:
        entries[op.b, op.target] = op.ino
    elif op.kind not in (Kind.UNLINK, Kind.RMDIR):
        entries[op.a, op.name] = op.ino


def _groups(ops):
    """Return [(names, operations)]: changes of names that hang together."""
    groups = []
    for op in ops:
        names, members = _names_of(op), []
        apart = []
        for group in groups:
            if group[0] & names:
                names |= group[0]
                members += group[1]
            else:
                apart.append(group)
        groups = apart + [(names, sorted(members + [op]))]
    return groups


def _closed_subsets(ops):
    """Yield the subsets that M4 allows: with each change the earlier ones of its names.

    All kept comes last.
    """
    def choose(index, names, kept):
        if index < 0:
            yield kept[::-1]
            return
        op = ops[index]
        if not _names_of(op) & names:
            yield from choose(index - 1, names, kept)
        yield from choose(index - 1, names | _names_of(op), kept + [op])
    yield from choose(len(ops) - 1, frozenset(), [])


def data_reason(durable: Any, pending: Any, data: Any, found: Any) -> str | None:
    """Return why the model does not allow a file's content, or None.

    `durable` is the durable content, `pending` the pending operations in order,
    `data(op)` what a write wrote.  Each sector is as some of the writes that
    touch it left it; which truncations and allocations were kept is the same
    for all sectors.
    """
    if not pending:
        if found == durable:
            return None
        return f"differs from what was synced at byte {_first_difference(found, durable)}, " \
               f"sizes {len(found)} and {len(durable)}"
    resizes = [op for op in pending if op.kind != Kind.WRITE]
    reasons = []
    for mask in range(1 << len(resizes)):       # beginning with all kept
        lost = {op.seq for i, op in enumerate(resizes) if mask >> i & 1}
        reasons.append(_with_resizes(durable, pending, lost, data, found))
        if reasons[-1] is None:
            return None
    return " or ".join(dict.fromkeys(reasons)) + " (pending: " + ", ".join(
        f"{op.seq} {Kind(op.kind).name} {op.a} {op.length or op.b}" for op in pending) + ")"


def _with_resizes(durable, ops, lost, data, found):
    """Return the same, with these truncations and allocations lost, the others kept, writes free."""
    sizes = {len(durable)}
    for op in ops:
        if op.seq not in lost:
            sizes = _sizes_after(sizes, op, len(found))
    if len(found) not in sizes:
        return f"size {len(found)} cannot be"
    for at in range(0, len(found), SECTOR):
        expected = found[at:at + SECTOR]
        values = _sector_values(durable, ops, lost, data, at)
        if not any(value[:len(expected)] == expected for value in values):
            return f"sector at byte {at} is like none of {len(values)} possible ones"
    return None


def _sizes_after(sizes, op, wanted):
    """Return the sizes that are possible after one more operation.

    Of the sizes that a torn write can give only the wanted one is looked at.
    """
    if op.kind == Kind.TRUNCATE:
        return {op.a}
    if op.kind == Kind.FALLOCATE:
        return sizes if op.flags & _FALLOC_KEEP_SIZE else {max(s, op.a + op.b) for s in sizes}
    end = op.a + op.length
    ends = {end}
    if op.a < wanted < end and wanted % SECTOR == 0:
        ends.add(wanted)
    return sizes | {max(size, e) for size in sizes for e in ends}


def _sector_values(durable, ops, lost, data, at):
    """Return the contents that the sector at that byte may have.

    Besides the possible ones it follows the current one, as in memory: a write
    that fills part of the sector brings the rest as it is there.
    """
    current = durable[at:at + SECTOR].ljust(SECTOR, b"\0")
    values = {current}
    kept_from = float("inf")        # where a lost truncation keeps later writes from
    for op in ops:
        if op.kind == Kind.TRUNCATE and (op.seq in lost or op.a <= kept_from):
            kept_from = -(-op.a // BLOCK) * BLOCK if op.seq in lost else float("inf")
        if op.kind == Kind.WRITE:
            low, high = max(op.a, at), min(op.a + op.length, at + SECTOR)
            if low < high:
                current = _overlay(current, low - at, data(op)[low - op.a:high - op.a])
                if at >= kept_from:
                    continue
                # The file may have ended with this write, and grown later.
                values |= {current, current[:high - at].ljust(SECTOR, b"\0")}
            continue
        zeroed = {_zero(value, at, *_zeroed(op, op.seq in lost)) for value in values}
        values = values | zeroed if op.seq in lost else zeroed
        current = _zero(current, at, *_zeroed(op, False))
    return values


def _zeroed(op, lost):
    """Return the range of bytes that a truncation or allocation makes zero.

    A lost truncation may still have zeroed the rest of its last block (M3).
    """
    if op.kind == Kind.TRUNCATE:
        return op.a, -(-op.a // BLOCK) * BLOCK if lost else float("inf")
    if lost:
        return 0, 0
    if op.flags & (_FALLOC_PUNCH_HOLE | _FALLOC_ZERO_RANGE):
        return op.a, op.a + op.b
    return 0, 0


def _zero(sector, at, low, high):
    """Return the sector at byte `at` with the bytes from low to high zero."""
    low, high = max(low - at, 0), min(high - at, SECTOR)
    return _overlay(sector, low, bytes(high - low)) if low < high else sector


def _overlay(sector, at, data):
    return sector[:at] + data + sector[at + len(data):]


def _first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


# The check ------------------------------------------------------------------


@dataclass
class Outcome:
    """What a check has seen."""

    fstype: str
    seed: int
    file_operations: Counter = field(default_factory=Counter)
    block_writes: int = 0
    block_flushes: int = 0
    cuts: int = 0
    images: int = 0
    trees: int = 0                  # different ones
    findings: list = field(default_factory=list)

    def __str__(self) -> str:
        return (f"{self.fstype} seed {self.seed}: {sum(self.file_operations.values())} file "
                f"operations, {self.block_writes} block writes, {self.block_flushes} flushes, "
                f"{self.cuts} cuts, {self.images} images, {self.trees} different trees, "
                f"{len(self.findings)} findings")


def check(fstype: str, seed: int, steps: Any, cuts: int, workdir: Path, recorder: str,
          aligned: bool = True, honest: bool = True) -> Outcome:
    """Record a random history and judge what `cuts` power cuts leave of it.

    Each cut gives three images: all unflushed block writes lost, all kept, a
    random part of them kept.  `workdir` must be empty.  With a device that is
    not `honest` there must be findings, or the check sees nothing.
    """
    workdir = Path(workdir)
    with BlockStore(fstype, 64, workdir, recorder, seed=seed) as store:
        player = FilePlayer(store.mountpoint, time.monotonic_ns, seed, aligned)
        player.play(steps)
    recording = Recording(store.directory)
    outcome = Outcome(fstype, seed)
    outcome.file_operations.update(Kind(op.kind).name for op in player.history.ops)
    kinds = Counter(op.kind for op in recording.ops[store.first:])
    outcome.block_writes = kinds[Kind.WRITE] + kinds[Kind.FALLOCATE]
    outcome.block_flushes = kinds[Kind.SYNC]
    device = BlockDisk(recording, workdir / "durable", honest, store.first)
    _judge_cuts(outcome, device, store.first, player.history, cuts, workdir)
    return outcome


def _judge_cuts(outcome, device, first, history, cuts, workdir):
    rng = random.Random(outcome.seed)
    recording, files = device.recording, OpenDisk(history)
    places = range(first, len(recording.ops) + 1)
    trees = set()
    for cut in sorted(rng.sample(places, min(cuts, len(places)))):
        device.advance(cut)
        files.advance(history.cut_at(recording.time_of_cut(cut)))
        outcome.cuts += 1
        for choice in (Choice(SECTOR, LOST), Choice(SECTOR, KEPT),
                       random_choice(rng, device.pending(), outcome.fstype, SECTOR)):
            outcome.images += 1
            image = device.image(choice, workdir / "image")
            try:
                with mounted(image, outcome.fstype) as mountpoint:
                    found = found_tree(mountpoint)
            except (BlockError, OSError) as error:
                outcome.findings.append(f"cut {cut}, {choice}: {error}")
                continue
            trees.add(hash(tuple(sorted(found.items()))))
            outcome.findings += [f"cut {cut} (file operation {files.cut}), {choice}: {reason}"
                                 for reason in complaints(files, found)]
    outcome.trees = len(trees)
