"""What operations do to the content of a file, wholly or in part.

How much of a pending operation has reached the disk is its *fate*; what may come of it is said
by M2, M3 and M7 of disk.py.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from .recording import WRITE_ATOMIC, Kind

# What became of a pending operation: one of these, or, for a write, a mask
# that says which of its sectors were written (bit 0 is the first).
KEPT = -1
LOST = 0
SIZE_ONLY = -2

# Block of a file system: it zeroes the rest of the last one before it truncates.
BLOCK = 4096

_PUNCH_HOLE = 0x02
_KEEP_SIZE = 0x01
_ZERO_RANGE = 0x10


def sectors(op: Any, unit: int) -> int:
    """Return how many sectors a write touches."""
    return (op.a + op.length - 1) // unit - op.a // unit + 1 if op.length else 0


def aligned(op: Any) -> bool:
    """Say whether an operation changes whole sectors only."""
    return op.kind != Kind.WRITE or (op.a % 512 == 0 and op.length % 512 == 0)


def replay(content: Any, fates: Any, unit: int, data_of: Callable[..., Any],
           memory: Any = None) -> Any:
    """Return `content` after operations with their fates.

    `data_of` gives what a write has written.  `memory`, if any, is what programs see: all
    operations are applied to it.
    """
    if not any(fate for _, fate in fates):
        return content
    content = bytearray(content)
    for op, fate in fates:
        if memory is not None:
            _apply(memory, op, KEPT, unit, data_of)
        if fate not in (LOST, SIZE_ONLY) and memory is not None and op.kind == Kind.WRITE:
            _write_back(content, memory, op, fate, unit)
        elif fate != LOST:
            _apply(content, op, fate, unit, data_of)
    return content


def _apply(content, op, fate, unit, data_of):
    """Apply one operation that is not lost."""
    if op.kind == Kind.WRITE:
        _write(content, op, fate, unit, data_of)
    elif op.kind == Kind.TRUNCATE:
        _truncate(content, op, fate)
    else:
        _allocate(content, op)


def _write(content, op, fate, unit, data_of):
    """Apply those sectors of a write that reached the disk."""
    end = op.a + op.length
    if fate == SIZE_ONLY:
        _extend(content, end)
        return
    data = data_of(op)
    if fate == KEPT:
        _extend(content, op.a)
        content[op.a:end] = data
        return
    for first, stop in _runs(fate, sectors(op, unit)):
        low = max(op.a, (op.a // unit + first) * unit)
        high = min(end, (op.a // unit + stop) * unit)
        _extend(content, low)
        content[low:high] = data[low - op.a:high - op.a]


def _runs(mask, count):
    """Yield (first, stop) of each run of set bits among the first `count`."""
    at = 0
    while at < count:
        if mask >> at & 1:
            first = at
            while at < count and mask >> at & 1:
                at += 1
            yield first, at
        else:
            at += 1


def _write_back(content, memory, op, fate, unit):
    """Bring sectors of a write to the disk as they are in memory."""
    count = sectors(op, unit)
    first = op.a // unit
    for start, stop in _runs((1 << count) - 1 if fate == KEPT else fate, count):
        _extend(content, min(op.a + op.length, (first + stop) * unit))
        low = (first + start) * unit
        high = min((first + stop) * unit, len(content))
        # What is beyond the end of the file in memory is zero there.
        content[low:high] = memory[low:high].ljust(high - low, b"\0")


def _extend(content, size):
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _resize(content, size):
    del content[size:]
    _extend(content, size)


def _truncate(content, op, fate):
    """Apply a truncation, or only what it does to the bytes of its last block."""
    if fate == SIZE_ONLY:
        end = min(len(content), -(-op.a // BLOCK) * BLOCK)
        if op.a < end:
            content[op.a:end] = bytes(end - op.a)
    else:
        _resize(content, op.a)


def cache_last(ops: Any) -> list:
    """Return operations as they come to a disk: up to each truncation atomic writes first."""
    ordered, cached = [], []
    for op in ops:
        if op.kind == Kind.TRUNCATE:
            ordered += [*cached, op]
            cached = []
        elif op.kind == Kind.WRITE and op.flags & WRITE_ATOMIC:
            ordered.append(op)
        else:
            cached.append(op)
    return ordered + cached


def with_truncations(ops: Any, unit: int, fate_of: Callable[..., Any]) -> Iterator[tuple]:
    """Yield (operation, fate): what was written beyond a truncation is lost with it (M3)."""
    kept = math.inf                 # writes reach the disk up to here
    for op in ops:
        fate = fate_of(op)
        if op.kind == Kind.TRUNCATE and fate in (LOST, SIZE_ONLY):
            kept = min(kept, -(-op.a // BLOCK) * BLOCK)
        elif op.kind == Kind.TRUNCATE and op.a <= kept:
            kept = math.inf
        elif op.kind == Kind.WRITE and op.a + op.length > kept and fate != SIZE_ONLY:
            before = max(kept // unit - op.a // unit, 0)
            fate = fate & ((1 << min(before, sectors(op, unit))) - 1)
        yield op, fate


def _allocate(content, op):
    """Apply fallocate(): extend, or punch a hole."""
    end = op.a + op.b
    if not op.flags & _KEEP_SIZE:
        _extend(content, end)
    if op.flags & (_PUNCH_HOLE | _ZERO_RANGE):
        end = min(end, len(content))
        if end > op.a:
            content[op.a:end] = bytes(end - op.a)
