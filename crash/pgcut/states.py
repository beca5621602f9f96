"""Crash states: where the power fails, and what becomes of what was pending.

A `State` is named by a recording, a cut, a fault and a seed; `choose()` turns it
into a `Choice` for the disk at that cut, always the same one.  The faults are
those of the fault model, each a function in FAULTS: one more is one entry.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .content import KEPT, LOST, SIZE_ONLY, sectors
from .disk import Choice, Disk
from .recording import DATA_KINDS, NAME_KINDS, WRITE_ATOMIC, Kind, Recording

PAGE = 8192
SECTOR = 512

# Where a file belongs, by the first part of its path.
RELATION, LOG, WAL, OTHER = "relation", "log", "wal", "other"
# Directory of the tablespaces that symbolic links in pg_tblspc lead to, each by its number.
SPACES = "spaces"
_AREAS = {"base": RELATION, "global": RELATION, "pg_tblspc": RELATION, SPACES: RELATION,
          "pg_doublewrite": LOG, "pg_wal": WAL}


def area(path: str) -> str:
    """Say what kind of file a path is: relation, log, wal or other."""
    first, _, rest = path.partition("/")
    kind = _AREAS.get(first, OTHER)
    if kind == RELATION and not path.rpartition("/")[2][:1].isdigit():
        return OTHER            # pg_control, pg_filenode.map, PG_VERSION
    return kind


@dataclass(frozen=True)
class State:
    """One crash to try; with the recording, it says everything."""

    cut: int
    fault: str
    seed: int
    unit: int = 512
    # Crashes of the recovery: one State for each level, chosen when it is there.
    nested: int = 0

    def as_json(self) -> dict:
        return asdict(self)


# Faults -----------------------------------------------------------------


class _Pending:
    """What is pending at a cut, sorted by where it belongs."""

    def __init__(self, disk: Disk, areas: Any) -> None:
        self.data = disk.pending_data()
        self.names = disk.pending_names()
        self.areas = areas

    def writes(self, where: Any = None) -> list:
        return [op for op in self.data if op.kind == Kind.WRITE and
                (where is None or self.areas.get(op.ino, OTHER) == where)]


def _all_lost(rng, pending, unit):
    return Choice(unit, LOST)


def _all_kept(rng, pending, unit):
    return Choice(unit, KEPT)


def _subset(rng, pending, unit):
    """Each pending operation by itself: kept or lost."""
    kept = rng.choice((0.1, 0.3, 0.5, 0.7, 0.9))
    return Choice(unit, LOST, {op.seq: KEPT if rng.random() < kept else LOST
                               for op in pending.data + pending.names})


def _all_lost_or_some(rng, pending, unit):
    """A checkpoint has just completed, and what it did not sync is lost."""
    return rng.choice((_all_lost, _all_lost, _subset))(rng, pending, unit)


def _background(rng, pending, unit):
    """What becomes of all that the fault at hand is not about."""
    return rng.choice((_all_lost, _all_kept, _all_kept, _subset))(rng, pending, unit)


def mask(rng: random.Random, count: int) -> int:
    """Return a random set of the sectors of a write: cut at one place, or mixed."""
    everything = (1 << count) - 1
    if count < 2:
        return rng.choice((LOST, everything))
    kind = rng.choice(("head", "tail", "mixed", "holes"))
    if kind == "mixed":
        return rng.randrange(1, everything)
    cut = rng.randrange(1, count)
    if kind == "head":
        return (1 << cut) - 1
    if kind == "tail":
        return everything & ~((1 << cut) - 1)
    hole = rng.randrange(count)
    return everything & ~(((1 << rng.randint(1, 16)) - 1) << hole)


def _tear(rng, pending, unit, writes, share):
    """Tear some of `writes`, at least one; the rest as it comes."""
    choice = _background(rng, pending, unit)
    chosen = [op for op in writes if rng.random() < share] or \
        ([rng.choice(writes)] if writes else [])
    for op in chosen:
        choice.fates[op.seq] = mask(rng, sectors(op, unit))
    return choice


def _torn_page(rng, pending, unit):
    """One relation write torn, and nothing else damaged."""
    writes = pending.writes(RELATION)
    choice = Choice(unit, rng.choice((LOST, KEPT)))
    if writes:
        op = rng.choice(writes)
        choice.fates[op.seq] = mask(rng, sectors(op, unit))
    return choice


def _torn_pages(rng, pending, unit):
    return _tear(rng, pending, unit, pending.writes(RELATION), rng.choice((0.2, 0.6, 1)))


def _kept_or_torn(rng, pending, unit):
    """Nothing is lost, or home writes are torn, for which the log is needed."""
    return rng.choice((_all_kept, _torn_pages))(rng, pending, unit)


def _torn_runs(rng, pending, unit):
    """Combined writes torn anywhere, holes inside."""
    runs = [op for op in pending.writes(RELATION) if op.length > PAGE]
    return _tear(rng, pending, unit, runs or pending.writes(RELATION), 0.7)


def _torn_log(rng, pending, unit):
    """Writes to the double-write log torn."""
    return _tear(rng, pending, unit, pending.writes(LOG), 0.7)


def _torn_wal(rng, pending, unit):
    return _tear(rng, pending, unit, pending.writes(WAL), 0.7)


def _names(rng, pending, unit):
    """Changes of names lost in any subset; data all lost or all kept."""
    lost = rng.choice((0.3, 0.7, 1))
    return Choice(unit, rng.choice((LOST, KEPT)),
                  {op.seq: LOST if rng.random() < lost else KEPT for op in pending.names})


def _sizes(rng, pending, unit):
    """Sizes that come before the data, or not at all."""
    choice = _background(rng, pending, unit)
    for op in pending.data:
        if op.kind == Kind.WRITE and rng.random() < 0.5:
            choice.fates[op.seq] = SIZE_ONLY
        elif op.kind != Kind.WRITE:
            choice.fates[op.seq] = rng.choice((LOST, KEPT))
    return choice


def _storm(rng, pending, unit):
    """Everything at once, each pending operation by itself."""
    weights = [rng.random() for _ in range(4)]
    fates = {}
    for op in pending.data:
        what = rng.choices(("keep", "lose", "tear", "size"), weights)[0]
        if op.kind != Kind.WRITE or what in ("keep", "lose"):
            fates[op.seq] = LOST if what == "lose" else KEPT
        else:
            fates[op.seq] = SIZE_ONLY if what == "size" else mask(rng, sectors(op, unit))
    for op in pending.names:
        fates[op.seq] = rng.choice((KEPT, LOST))
    return Choice(unit, LOST, fates)


@dataclass(frozen=True)
class Fault:
    """A way to damage what is pending, and where it makes sense to cut."""

    choose: Callable[..., Any]
    about: str                  # an area, "names", "checkpoint", "recovery",
                                # "restore", "window" or "any"
    model: str                  # its name in the fault model
    weight: int = 1
    rotten: tuple = ()          # areas in which a sector is noise for good
    unreadable: str = ""        # area of which a file cannot be read any more

    @property
    def reported(self) -> bool:
        """Say whether it is enough that the server reports the damage."""
        return bool(self.rotten or self.unreadable)


FAULTS = {
    "all-lost": Fault(_all_lost, "any", "F1", 2),
    "all-kept": Fault(_all_kept, "any", "F1", 1),
    "subset": Fault(_subset, "any", "F2", 3),
    "after-checkpoint": Fault(_all_lost_or_some, "checkpoint", "F1, F2", 3),
    "torn-page": Fault(_torn_page, RELATION, "F3", 3),
    "torn-pages": Fault(_torn_pages, RELATION, "F3", 5),
    "torn-runs": Fault(_torn_runs, RELATION, "F4", 3),
    "torn-recovery": Fault(_torn_pages, "recovery", "F3, F7", 1),
    "torn-restore": Fault(_torn_pages, "restore", "F3, F7", 1),
    "torn-window": Fault(_torn_pages, "window", "F3, F7", 1),
    "storm-window": Fault(_storm, "window", "F2-F7", 1),
    "torn-log": Fault(_torn_log, LOG, "F5", 3),
    "torn-wal": Fault(_torn_wal, WAL, "F5", 2),
    "names": Fault(_names, "names", "F6", 2),
    "sizes": Fault(_sizes, "any", "F6", 2),
    "storm": Fault(_storm, "any", "F2-F6", 5),
    "rotten-page": Fault(_all_kept, "any", "F9", 1, (RELATION,)),
    "rotten-log": Fault(_all_kept, LOG, "F9", 1, (LOG,)),
    "rotten-both": Fault(_all_kept, LOG, "F9", 1, (LOG, RELATION)),
    "unreadable-log": Fault(_kept_or_torn, RELATION, "F9", 1, unreadable=LOG),
    "unreadable-page": Fault(_all_kept, RELATION, "F9", 1, unreadable=RELATION),
}


# Cuts between the moment when clients get in and the checkpoint that follows.
WINDOW_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.about == "window")


def choose(disk: Disk, state: Any, areas: Any) -> Choice:
    """Return the Choice that a state means for a disk advanced to its cut."""
    rng = random.Random(f"{state.cut}/{state.fault}/{state.seed}")
    pending = _Pending(disk, areas)
    choice = FAULTS[state.fault].choose(rng, pending, state.unit)
    _make_whole(choice, pending)
    return choice


def _make_whole(choice, pending):
    """Let atomic writes be whole or absent: whole where their first sector was kept."""
    for op in pending.data:
        fate = choice.fates.get(op.seq)
        if fate is not None and op.kind == Kind.WRITE and op.flags & WRITE_ATOMIC and fate != KEPT:
            choice.fates[op.seq] = KEPT if fate not in (LOST, SIZE_ONLY) and fate & 1 else LOST


# Where to cut -----------------------------------------------------------


class Places:
    """The cuts of a recording that are worth a try."""

    def __init__(self, recording: Recording, first: Any = 0, last: Any = None) -> None:
        """Cut after operation `first` at the earliest, and after `last` at the latest."""
        paths = recording.paths()
        self.areas = {ino: area(path) for ino, path in paths.items()}
        control_files = {ino for ino, path in paths.items() if path == "global/pg_control"}
        self.first = first
        self.last = len(recording.ops) if last is None else last
        ops = recording.ops[first:self.last]
        self.syncs = []
        self._writes = {RELATION: [], LOG: [], WAL: [], OTHER: [], "names": [], "recovery": [],
                        "restore": [], "window": []}
        self._checkpoints = []
        for op in ops:
            where = self.areas.get(op.ino, OTHER)
            if op.kind in DATA_KINDS:
                self._writes[where].append(op.seq)
            elif op.kind in NAME_KINDS:
                self._writes["names"].append(op.seq)
            elif op.kind == Kind.SYNC:
                self.syncs.append(op.seq)
                if op.ino in control_files:
                    self._checkpoints.append(op.seq)
        for begin, end in _windows(recording, control_files):
            self._writes["window"] += [op.seq for op in ops
                                       if op.kind in DATA_KINDS and begin < op.time < end]
        for begin, end in _starts(recording):
            self._enter_recovery([op for op in ops
                                  if op.kind in DATA_KINDS and begin < op.time < end])

    def _enter_recovery(self, ops):
        """Note the home writes of a start, and those of them that restore has made.

        Restore writes the newest batch over itself first, and an empty batch when
        it is over.
        """
        restore = []
        restoring = True
        for op in ops:
            where = self.areas.get(op.ino, OTHER)
            if where == RELATION:
                self._writes["recovery"].append(op.seq)
                if restoring:
                    restore.append(op.seq)
            elif where == LOG and restore:
                restoring = False
        self._writes["restore"] += restore

    def boundaries(self) -> list:
        """Return the cuts just before and just after each sync returns."""
        return sorted({cut for seq in self.syncs for cut in (seq - 1, seq)})

    def home_writes(self) -> list:
        """Return the cuts right after each home write."""
        return list(self._writes[RELATION])

    def has(self, about: str) -> bool:
        """Say whether there is a cut of that kind: else random() gives any."""
        return about == "any" or bool(self._checkpoints if about == "checkpoint"
                                      else self._writes[about])

    def random(self, rng: random.Random, about: str) -> int:
        """Return a cut at which something of that kind is likely to be pending."""
        if about == "checkpoint" and self._checkpoints:
            return min(rng.choice(self._checkpoints) + rng.choice((0, 0, 1, 5, 20)), self.last)
        writes = self._writes.get(about) or []
        if not writes:
            return rng.randint(self.first, self.last) if rng.random() < 0.5 or not self.syncs \
                else rng.choice(self.syncs) - rng.randint(0, 1)
        write = rng.choice(writes)
        following = bisect_right(self.syncs, write)
        end = self.syncs[min(following + rng.randint(0, 3), len(self.syncs) - 1)] - 1 \
            if self.syncs else self.last
        return rng.randint(write, max(write, end))


def _starts(recording):
    """Yield when each server was started, and when the load on it began."""
    loads = [event["t"] for event in recording.acks if event["what"] == "resumed"]
    for op in recording.ops:
        if op.kind == Kind.CREATE and op.name == "postmaster.pid":
            yield op.time, next((time for time in loads if time > op.time), math.inf)


def _windows(recording, control_files):
    """Yield when clients got in after a stop or crash, and when pg_control was next synced.

    That is done by the checkpoint that follows, or else by the next start.
    """
    written = [op.time for op in recording.ops
               if op.kind == Kind.SYNC and op.ino in control_files]
    for begin in [event["t"] for event in recording.acks if event["what"] == "resumed"][1:]:
        yield begin, next((time for time in written if time > begin), math.inf)


def exhaustive(places: Places, seed: int) -> Iterator[State]:
    """Yield each sync boundary with all lost and all kept, each home write torn."""
    for cut in places.boundaries():
        yield State(cut, "all-lost", seed)
        yield State(cut, "all-kept", seed)
    for cut in places.home_writes():
        yield State(cut, "torn-page", seed)


def sampled(places: Places, seed: int, count: int, faults: Any = None,
            nested_share: float = 0.0) -> Iterator[State]:
    """Yield `count` random states; the same ones for the same arguments."""
    rng = random.Random(f"states/{seed}")
    names = list(faults or FAULTS)
    weights = [FAULTS[name].weight for name in names]
    for _ in range(count):
        fault = rng.choices(names, weights)[0]
        nested = 0
        while not FAULTS[fault].reported and nested < 3 and rng.random() < nested_share:
            nested += 1
        yield State(places.random(rng, FAULTS[fault].about), fault, rng.randrange(1 << 30),
                    rng.choice((512, 512, 4096)), nested)
