"""Builds the crash images of a recording, and has them judged."""

import errno
import functools
import json
import random
import shutil
import tempfile
import time
import traceback
import weakref
from pathlib import Path
from typing import Any

from . import alarms, oracle, pages, sequel, server
from .content import KEPT, LOST, SIZE_ONLY, sectors
from .disk import Choice, Disk
from .image import Image, write_tree
from .judge import AS_STANDBY, Context, Judge, Outcome, drawn, phase
from .limits import limit, require_time
from .minimise import ddmin
from .mount import recorded, set_fault
from .recording import DATA_KINDS, WRITE_SHORTENED, Kind, Recording
from .states import FAULTS, LOG, RELATION, SECTOR, Places, State, choose, sampled

# A pid file of the recorded server means nothing in an image, and might by
# chance name a process of today.  The owner file of the log tells copies of files,
# which is what images are made of.
ALWAYS_LEFT_OUT = ("postmaster.pid", "pg_doublewrite/owner")
# Single-user mode does not know standbys; without the signal, what they have written is
# recovered as after a crash.
LEFT_OUT = (*ALWAYS_LEFT_OUT, server.STANDBY_SIGNAL)

# All of what is done with a state, of which a recovery may be cut three times.
STATE_SECONDS = 3600

# What is recorded there is about something that fails.
_FAILING = ("errors", "failing-", "torn-writes", "half-writes", "frozen", "quota")

# What is recorded there is about a standby that looks ahead in WAL.
BEHIND = "standby-behind"


class Subject(Judge):
    """A recording of files under test, at a cut that only moves forward."""

    def __init__(self, recording: Recording, context: Context) -> None:
        super().__init__(recording, context)
        self.places = Places(recording)
        self.paths = recording.paths()
        self.disk = Disk(recording, context.rules)
        self._place = Path(tempfile.mkdtemp(prefix="images-", dir=context.scratch))
        weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
        server.own(self._place)
        self._image = Image(self._place / "data")
        with server.as_user():
            self._image.directory.mkdir()

    def move(self, cut: int) -> None:
        """Go to a cut, from the start if it lies behind."""
        if cut < self.disk.cut:
            self.disk = Disk(self.recording, self.context.rules)
        self.disk.advance(cut)

    def try_state(self, state: Any) -> Outcome:
        """Return the Outcome of a state."""
        self.move(state.cut)
        return self.try_choice(state, choose(self.disk, state, self.places.areas))

    def try_choice(self, state: Any, choice: Choice) -> Outcome:
        """Return the Outcome of a choice at the cut of a state."""
        require_time("trying a state")
        started = time.monotonic()
        outcome = Outcome(state, [])
        self._count(choice, outcome)
        outcome.effective = self._is_effective(state, choice)
        with self.place_for(outcome) as scratch:
            image = scratch / "data"
            with server.as_user(), phase(outcome, "materialise"):
                self._image.move(image)
                self._image.write(self.disk.tree(choice), ALWAYS_LEFT_OUT
                                  if self._is_standby(state) else LEFT_OUT)
            try:
                with limit("trying a state", STATE_SECONDS):
                    rotten = self._spoil(image, state)
                    outcome.effective &= bool(rotten) or not FAULTS[state.fault].rotten
                    rotten += self._still_rotten(image)
                    for level in range(state.nested):
                        with phase(outcome, "nested"):
                            image = self._crash_recovery(image, state, level, scratch, outcome)
                    self._judge(image, state, outcome)
                outcome.complaints = [text for text in outcome.complaints
                                      if not alarms.excused(text, rotten, outcome.log)]
                outcome.complaints += [f"rotten: {place}" for place in rotten
                                       if outcome.complaints]
            except Exception:           # a bug of ours must not pass for success
                outcome.complaints.append("explorer: " + traceback.format_exc())
            self._image.move(self._place / "data")
        outcome.seconds = time.monotonic() - started
        return outcome

    def _is_standby(self, state):
        """Say whether a state is judged as a standby, and not in single-user mode."""
        return self.scenario.startswith("standby") and \
            not FAULTS[state.fault].unreadable and \
            drawn("standby", state.seed, self.context.standby_every)

    def _goes_on(self, state):
        """Say whether a server goes on from a state."""
        return not FAULTS[state.fault].reported and \
            drawn("sequel", state.seed, self.context.sequel_every)

    def _spoil(self, image, state):
        """Overwrite sectors of an image with noise, if the fault says so.

        The server must say so, unless it needs nothing of them: returns which.
        Without checksums a rotten page cannot be told; with wal_level = minimal
        a rotten newest batch cannot be told from one that was not completed,
        and its pages may be those that have no WAL.
        """
        rng = random.Random(f"rot/{state.cut}/{state.seed}")
        spoiled = []
        able = {RELATION: self.recording.meta["checksums"],
                LOG: self.settings["wal_level"] != "minimal"}
        for where in FAULTS[state.fault].rotten:
            candidates = self._files_in(image, where)
            if not able[where] or not candidates:
                continue
            file = rng.choice(candidates)
            sector = rng.randrange(file.stat().st_size // SECTOR)
            with open(file, "r+b") as opened:
                opened.seek(sector * SECTOR)
                opened.write(rng.randbytes(SECTOR))
            spoiled.append(f"sector {sector} of {file.relative_to(image)}")
        return spoiled

    def _still_rotten(self, image):
        """Return the sectors of an image that had rotted before the recording began."""
        return [f"sector {place // SECTOR} of {path}"
                for path, places in self.recording.rotten.items() if (image / path).exists()
                for place in places if _sector(image / path, place)
                == _sector(self.recording.base / path, place)]

    def _judge(self, image, state, outcome):
        expected = self._expected(state)
        if FAULTS[state.fault].unreadable:
            self._judge_unreadable(image, state, expected, outcome)
        elif not self._goes_on(state):
            self.recover_and_ask(image, expected, state.seed, outcome)
        else:
            for left, inner, promised in self._go_on(image, state, expected, outcome):
                if not outcome.complaints:
                    self.recover_and_ask(left, promised, inner.seed, outcome)

    def _judge_unreadable(self, image, state, expected, outcome):
        """Recover an image with a file that cannot be read, or not from some read on.

        If the server needs something of it, it must not start, or must report it to the client
        that asks for it.  A line in its log is no excuse for what is lost.
        """
        rng = random.Random(f"unreadable/{state.cut}/{state.seed}")
        candidates = self._files_in(image, FAULTS[state.fault].unreadable)
        if not candidates:
            outcome.effective = False
            self.recover_and_ask(image, expected, state.seed, outcome)
            return
        file = rng.choice(candidates).relative_to(image)
        place = Path(image).parent / "unreadable"
        with phase(outcome, "unreadable"), \
                recorded(self.context.recorder, image, place, seed=state.seed) as mountpoint:
            set_fault(mountpoint, f"read:{file}:{rng.choice((0, 0, 1, 3))}:{1 << 40}:{errno.EIO}")
            complaints, outcome.log = self._ask_single(mountpoint, expected, state.seed)
        refused = alarms.UNREADABLE.search(outcome.log)
        outcome.effective &= bool(refused or any(map(alarms.UNREADABLE.search, complaints)))
        outcome.complaints += [f"{file} cannot be read: {complaint}" for complaint in complaints
                               if not (self._harmless(complaint, expected)
                                       or alarms.UNREADABLE.search(complaint)
                                       or refused and alarms.NO_VERDICT.match(complaint))
                               or alarms.KILLED.search(complaint)]
        outcome.complaints += dict.fromkeys(alarms.crashes_of_unreadable(outcome.log))

    @staticmethod
    def _files_in(image, area):
        """Return the files of an image that hold pages of relations, or batches."""
        found = [image / path for path in pages.relation_files(image)
                 if "_" not in path.rpartition("/")[2]] if area == RELATION \
            else (image / "pg_doublewrite").glob("[0-9A-F]*")
        return [file for file in sorted(found) if file.stat().st_size]

    def _go_on(self, image, state, expected, outcome):
        """Let a server go on from an image, and cut its power, at several moments.

        Yields, for each, the image that is left, the state that it is of the server that went
        on, and what it must hold.
        """
        place = Path(image).parent
        with phase(outcome, "sequel"):
            after = sequel.live_on(image, place / "sequel", self.context, expected,
                                   self.recording.meta, state.seed)
            outcome.complaints += [f"goes on: {complaint}" for complaint in after.complaints
                                   if not self._harmless(complaint, expected)]
            outcome.complaints += alarms.bad_lines(after.log)
            outcome.log = after.log
            disk = Disk(after.recording, self.context.rules)
            areas = Places(after.recording).areas
        left = Image(place / "data-after")
        for inner in self._cuts_of_sequel(after, state.seed):
            with server.as_user(), phase(outcome, "sequel"):
                disk.advance(inner.cut)
                # until it has been promoted, what was a standby is one
                left.write(disk.tree(choose(disk, inner, areas)),
                           ALWAYS_LEFT_OUT if inner.cut < after.first else LEFT_OUT)
            # Before the load, what the first cut had to leave is all that there must be.
            promised = expected if inner.cut < after.first else oracle.expectation(
                after.recording.acks, max(after.recording.time_of_cut(inner.cut), after.begun))
            yield left.directory, inner, {**promised, "orphans_allowed": None}

    def _cuts_of_sequel(self, after, seed):
        """Return the states at which a server that went on is cut off, in their order."""
        faults = self.context.sequel_faults or [name for name, fault in FAULTS.items()
                                                if not fault.reported]
        early = min(self.context.recovery_cuts, self.context.sequel_cuts)
        during = Places(after.recording, 0, after.first)
        late = Places(after.recording, after.first)
        return sorted([*sampled(during, f"early/{seed}", early, faults),
                       *sampled(late, seed, self.context.sequel_cuts - early, faults)],
                      key=lambda inner: inner.cut)

    def _expected(self, state):
        """Return what must hold of the image of a state."""
        moment = self.recording.time_of_cut(state.cut)
        expected = oracle.expectation(self.recording.acks, moment)
        if self.scenario.startswith("standby"):
            # Its disk has what was acknowledged, but it makes and removes files
            # later than the primary, from which the acks are, or in recovery.
            expected = {**oracle.lagging(expected), "clients": expected["clients"]}
            expected["orphans_allowed"] = None
        elif state.nested:
            # A removal that redo repeated may be lost again.
            expected["orphans_allowed"] = None
        else:
            expected["orphans_allowed"] = self._orphans_allowed(moment)
        return expected

    def backups(self) -> Any:
        """Return the base backups that were taken during the recording."""
        listing = self.recording.directory / "backups.json"
        return json.loads(listing.read_text()) if listing.exists() else []

    def try_backup(self, backup: Any) -> Outcome:
        """Return the Outcome of a base backup that was taken of the recorded server.

        Whatever was acknowledged before it began must be there.
        """
        outcome = Outcome(State(len(self.recording.ops), "base-backup", 0), [])
        before = oracle.expectation(self.recording.acks, backup["begin"])["clients"]
        expected = oracle.lagging(oracle.expectation(self.recording.acks, backup["end"]))
        for client, known in expected["clients"].items():
            known["acked"] = before.get(client, {"acked": 0})["acked"]
        expected["orphans_allowed"] = None
        started = time.monotonic()
        with limit("trying a base backup", STATE_SECONDS):
            self.recover_and_ask(self.recording.directory / backup["name"], expected, 1, outcome)
        outcome.keep_logs(self.recording.directory)
        outcome.seconds = time.monotonic() - started
        return outcome

    def _orphans_allowed(self, moment):
        """Return the files that may be left over, as they may by stock PostgreSQL.

        Those of transactions that did not end, and those that were removed if
        the removal is not durable.  A dropped table is truncated first, and
        unlinked after the next checkpoint; a crash in between leaves the file.
        The same goes for those that a transaction under way was about to remove.
        """
        ops = self.recording.ops[:self.disk.cut]
        unlinks = [op for op in self.disk.pending_names() if op.kind in (Kind.UNLINK, Kind.RMDIR)]
        truncations = [op for op in self.disk.pending_data()
                       if op.kind == Kind.TRUNCATE and op.a == 0]
        events = [(op.time, "create", self.paths[op.ino]) for op in ops
                  if op.kind in (Kind.CREATE, Kind.MKDIR)]
        events += [(op.time, "unlink", self.paths[op.ino]) for op in unlinks + truncations]
        events += [(op.time, "drop", self.paths[op.ino])
                   for op in self.recording.ops[self.disk.cut:]
                   if op.kind == Kind.UNLINK or op.kind == Kind.TRUNCATE and op.a == 0]
        return oracle.orphans_allowed(self.recording.acks, moment, events)

    def _crash_recovery(self, image, state, level, scratch, outcome):
        """Recover an image on a recorder, cut the power meanwhile; return that image."""
        directory = Path(scratch) / f"nested-{level}"
        standby = (Path(image) / server.STANDBY_SIGNAL).exists()
        recover = self._recover_by_server \
            if standby or drawn(f"nested by server/{level}", state.seed, 2) \
            else self._recover_alone
        with recorded(self.context.recorder, image, directory, seed=state.seed) as mountpoint:
            failures, log = recover(mountpoint, directory / "server.log",
                                    AS_STANDBY if standby else {})
        outcome.complaints += [f"recovery that is cut: {text}" for text in dict.fromkeys(
            failures + alarms.bad_lines(log) + alarms.of_server(log))]
        (directory / "base").symlink_to(image)
        recording = Recording(directory)
        if not recording.ops:
            return image
        places = Places(recording)
        inner = nested_state(places, state, level)
        disk = Disk(recording, self.context.rules)
        disk.advance(inner.cut)
        target = Path(scratch) / f"data-{level}"
        with server.as_user():
            write_tree(disk.tree(choose(disk, inner, places.areas)), target,
                       ALWAYS_LEFT_OUT if standby else LEFT_OUT)
        return target

    def _recover_alone(self, data, log, settings):
        """Recover in single-user mode, and stop; returns complaints and log."""
        done = server.run(self.context.bindir, "postgres", "--single", "-D", data,
                          "-c", "fsync=on", "postgres", stdin="", check=False)
        log.write_text(done.stderr)
        return ([f"exit status {done.returncode}"] if done.returncode else []), done.stderr

    def _recover_by_server(self, data, log, settings):
        """Recover with all processes that a server has; returns complaints and log.

        It is killed when clients could get in, while pages may be pending.
        """
        instance, complaints = server.Server(self.context.bindir, data, log), []
        try:
            instance.start(settings)
            if settings:
                instance.wait_for_replay()
        except server.ServerError as error:
            complaints.append(str(error))
        finally:
            instance.close()
        return complaints, log.read_text()

    def _count(self, choice, outcome):
        """Count what the choice damages, so that empty runs can be seen."""
        for op in self.disk.pending_data():
            fate = choice.fate(op)
            outcome.lost += fate == LOST
            if op.kind == Kind.WRITE and self.places.areas.get(op.ino) == RELATION:
                everything = (1 << sectors(op, choice.unit)) - 1
                outcome.torn += fate not in (KEPT, LOST, SIZE_ONLY, everything)

    def _is_effective(self, state, choice):
        """Say whether a state has what it is about, as far as the choice tells.

        If not, its fault has damaged nothing that was pending, or not in the way of its name;
        or, in a scenario with failures, no operation had failed before the cut; or a standby that
        was behind did not replay then, or did not look ahead.
        """
        if not self.places.has(FAULTS[state.fault].about) or \
                self.scenario.startswith(_FAILING) and not 0 < self.first_failure <= state.cut or \
                self.scenario == BEHIND and not any(first <= state.cut <= last
                                                    for first, last in self.recording.ahead()):
            return False
        fates = [(op, choice.fate(op)) for op in
                 self.disk.pending_data() + self.disk.pending_names()]
        if state.fault.startswith("torn"):
            return any(op.kind == Kind.WRITE and fate not in (
                KEPT, LOST, SIZE_ONLY, (1 << sectors(op, choice.unit)) - 1) for op, fate in fates)
        return FAULTS[state.fault].reported or state.fault == "all-kept" or \
            any(fate != KEPT for _, fate in fates)

    @functools.cached_property
    def first_failure(self) -> int:
        """The first operation that was made to fail, or to stop half-way; 0 if none was."""
        return next((op.seq for op in self.recording.ops
                     if op.kind in (Kind.FAULT, Kind.SYNCFAILED)
                     or op.kind == Kind.WRITE and op.flags & WRITE_SHORTENED), 0)

    # Minimising

    def minimise(self, state: Any) -> tuple:
        """Return (pieces, complaints): the fewest pending operations to damage.

        A piece is the number of an operation and what became of it.  Complaints
        are those of the smallest choice.  Not for nested states, which depend on
        a recovery that each choice would change.
        """
        self.move(state.cut)
        choice = choose(self.disk, state, self.places.areas)
        pending = self.disk.pending_data() + self.disk.pending_names()
        pieces = [(op.seq, choice.fate(op)) for op in pending if choice.fate(op) != KEPT]
        last = []

        def fails(subset):
            smaller = Choice(choice.unit, KEPT, dict(subset))
            outcome = self.try_choice(state, smaller)
            if outcome.failed:
                last[:] = outcome.complaints
            return outcome.failed

        if fails([]):
            return [], last
        if not fails(pieces):
            return None, []
        return ddmin(pieces, fails), last

    def describe(self, pieces: Any) -> list[str]:
        """Return one line of text for each piece of a minimised state."""
        ops = self.recording.ops
        return [f"operation {seq}: {Kind(ops[seq - 1].kind).name.lower()} "
                f"{self.paths.get(ops[seq - 1].ino, '?')}"
                + (f" at {ops[seq - 1].a}, {ops[seq - 1].length} bytes"
                   if ops[seq - 1].kind in DATA_KINDS else f" {ops[seq - 1].name}")
                + f": {_fate_text(fate)}" for seq, fate in pieces]


def _sector(path, place):
    with open(path, "rb") as file:
        file.seek(place)
        return file.read(SECTOR)


def nested_state(places: Places, state: Any, level: int) -> State:
    """Return the state by which the recovery of a nested state is cut."""
    rng = random.Random(f"nested/{state.cut}/{state.seed}/{level}")
    fault = rng.choice(("all-lost", "all-kept", "subset", "torn-pages", "storm", "torn-log"))
    return State(places.random(rng, RELATION if "pages" in fault else "any"), fault,
                 rng.randrange(1 << 30), state.unit)


def _fate_text(fate):
    if fate == LOST:
        return "lost"
    return "size only" if fate == SIZE_ONLY else f"torn, sectors {fate:#x} written"
