"""Build crash images, recover them, judge them."""

import contextlib
import errno
import functools
import json
import random
import re
import shutil
import subprocess
import tempfile
import time
import traceback
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2

from . import alarms, oracle, pages, sequel, server
from .disk import KEPT, LOST, SIZE_ONLY, Choice, Disk, Rules, sectors
from .image import Image, write_tree
from .limits import limit
from .minimise import ddmin
from .mount import recorded, set_fault
from .recording import DATA_KINDS, WRITE_SHORTENED, Kind, Recording
from .states import FAULTS, LOG, RELATION, SECTOR, Places, State, choose, sampled

# A pid file of the recorded server means nothing in an image, and might by
# chance name a process of today.  The owner file of the log tells copies of files,
# which is what images are made of.
ALWAYS_LEFT_OUT = ("postmaster.pid", "pg_doublewrite/owner")
# A standby that is judged has no primary.  Replay may hold locks of transactions that never
# end, also on catalogs that each new session reads.
AS_STANDBY = {"primary_conninfo": "", "lock_timeout": "5s"}
# Single-user mode does not know standbys; without the signal, what they have written is
# recovered as after a crash.
LEFT_OUT = (*ALWAYS_LEFT_OUT, server.STANDBY_SIGNAL)

# For all servers that recover an image: it is thrown away, so its disk need not be synced.
JUDGING = {"fsync": "off", "io_workers": "1"}
# For most: without processes that have no part in the answer.  I/O workers that read ahead for
# the oracle cost as much as a tenth of all else.
PLAIN = {"io_method": "sync", "max_logical_replication_workers": "0"}

# Each page waits until a backend reads it, or all pages are needed.
PENDING = {"instant_recovery": "on", "recovery_workers": "1", "instant_recovery_memory": "64MB",
           "shared_preload_libraries": "test_doublewrite",
           "test_doublewrite.fail_at": "instant-recovery-demands-first:EIO"}

# Redo in the order of WAL, and in other ways: each leaves the same files.
IN_ORDER = {"wal_pipeline": "off", "instant_recovery": "off", "recovery_workers": "0"}
WAYS = {
    "with the WAL pipeline": ({**IN_ORDER, "wal_pipeline": "on"},),
    "page by page": ({"instant_recovery": "on", "recovery_workers": "2",
                      "instant_recovery_memory": "64MB"},
                     {"instant_recovery": "off", "recovery_workers": "3",
                      "instant_recovery_memory": "64MB"},
                     {"instant_recovery": "off", "recovery_workers": "3",
                      "instant_recovery_memory": "64kB"}),
}

# What may be asked takes a second or two: a server that takes so long hangs.
HANG_SECONDS = 180
# All of what is done with a state, of which a recovery may be cut three times.
STATE_SECONDS = 3600

# What is recorded there is about something that fails.
_FAILING = ("errors", "failing-", "torn-writes", "half-writes", "frozen", "quota")

_RESTORED = re.compile(r"double-write log: examined (\d+) pages in (\d+) batches, restored (\d+)")
_BAD_LOG = re.compile(r"^.*(?:PANIC:|invalid page|page verification failed|TRAP:).*$",
                      re.MULTILINE)

# A free space map is a hint, is not logged, and repairs itself with this message,
# which checksums precede with another.
_MENDED_MAP = re.compile(r'^(.*page verification failed.*\n(.*CONTEXT:.*\n)?)?'
                         r'.*_fsm"; zeroing out page.*$', re.MULTILINE)


_TORN_MAP = re.compile(r"of its fsm fork is not a page")
# How a server says that it has met a page, or a part of the log, that is rotten;
# or how the oracle does, which compares some files byte by byte.
_REPORTED = re.compile("invalid page in block|page verification failed"
                       "|double-write log is damaged|could not read page copy"
                       "|double-write log in .* is missing or unreadable"
                       "|has an LSN after the end of WAL|file .* differs in block")
# ... and in particular a part of the log, or a page, in a line that does not say of which file.
_REPORTED_LOG = re.compile("double-write log|could not read page copy")
_NAMELESS = "page verification failed"
# How it, or the oracle, says that it cannot read a file.
_UNREADABLE = re.compile("could not read")
_NO_VERDICT = re.compile("no verdict|exit status")
_CRASHED = re.compile("TRAP:|PANIC:")
# Killed by a signal other than that of a PANIC
_KILLED = re.compile(r"exit status -(?!6\b)\d")
_ORPHAN = re.compile(r"^(?:promoted: )?file .* belongs to no relation")
# Of a database that was dropped, and could not be removed.
_ORPHAN_DIRECTORY = re.compile(r"^directory .* belongs to no database")


# Where redo has come to.
_REDO_DONE = re.compile(r"redo done at (\S+)")


def _replayed(log):
    """Return the last record that redo has met, as a server's log says; None if it says nothing."""
    found = _REDO_DONE.search(Path(log).read_text(errors="replace"))
    return found and found[1]


def bad_lines(log):
    """Return the lines of a server log that no recovery may write."""
    return _BAD_LOG.findall(_MENDED_MAP.sub("", log))


def excused(complaint, rotten, log):
    """Say whether a complaint does no more than to report what is rotten in an image.

    `rotten` are the places, `log` is what the server said: one that does not start, but does
    not crash either, must have said there why.
    """
    if _NO_VERDICT.search(complaint):
        return not (_CRASHED.search(complaint + log) or _KILLED.search(complaint)) and any(
            _reports(text, rotten) for text in (complaint, *log.splitlines()))
    return _reports(complaint, rotten)


def _reports(text, rotten):
    """Say whether a text reports one of the places that are rotten."""
    numbers = [place.rpartition("/")[2].partition(".")[0] for place in rotten]
    if not rotten or not _REPORTED.search(text):
        return False
    return _NAMELESS in text or any(re.search(rf"\b{number}\b", text) for number in numbers) or \
        "pg_doublewrite/" in "".join(rotten) and _REPORTED_LOG.search(text) is not None


def crashes(log):
    """Return the lines of a log that even a server with a file that it cannot read may not write."""
    return [line for line in bad_lines(log) if _CRASHED.search(line) and
            ("TRAP:" in line or not _UNREADABLE.search(line))]


@dataclass(frozen=True)
class Context:
    """What trying a state needs besides the recording."""

    bindir: str
    recorder: str
    scratch: str                # a directory in memory
    rules: Rules = Rules()
    quick: bool = False
    # One state in so many is recovered in single-user mode, not by a server.
    single_every: int = 10
    # One state in so many is recovered by a server that reads as its settings say.
    as_drawn_every: int = 5
    # One state in so many is started a second time and must stay as it is.
    restart_every: int = 20
    # One state in so many is recovered with and without the WAL pipeline, and page by page.
    compare_every: int = 20
    # One state in so many is asked while its pages wait to be redone.
    pending_every: int = 10
    # One state of a standby in so many is started as one, and then promoted.
    standby_every: int = 2
    # From one state in so many a server goes on, with load, and is cut off again: most of
    # what that costs is load, so that each is judged at several cuts.  One that would be
    # started as a standby is promoted first.
    sequel_every: int = 90
    sequel_cuts: int = 3
    # Of these so many come before the load: in a recovery with all processes, and the
    # checkpoint that may follow.
    recovery_cuts: int = 1
    # By which of these faults; () is by any.
    sequel_faults: tuple = ()


@dataclass
class Outcome:
    """What became of one state."""

    state: State
    complaints: list
    lost: int = 0               # pending operations that did not survive
    torn: int = 0               # writes to relation files that survived in part
    effective: bool = True      # what the fault, and the scenario, are about has happened
    examined: int = 0           # page copies that restore looked at
    restored: int = 0           # pages it put home
    seconds: float = 0
    log: str = ""               # of the last server
    sequel_log: str = ""        # of the server that went on
    # How many seconds each part took
    phases: dict = field(default_factory=dict)

    @property
    def failed(self):
        return bool(self.complaints)


def drawn(purpose, seed, every):
    """Say whether the state with this seed is one of those, one in `every`, for a purpose.

    None is if `every` is 0.  Each purpose draws by itself: which states are started twice
    says nothing of which are recovered by a server, or by two.
    """
    return every > 0 and random.Random(f"{purpose}/{seed}").randrange(every) == 0


class Judge:
    """Recovers images of a recorded cluster, and says what is wrong with them."""

    def __init__(self, recording, context):
        self.recording = recording
        self.context = context
        self.scenario = recording.meta.get("scenario", "primary")
        self.settings = recording.meta.get("settings", {})
        # Images in WAL do not protect free space maps.
        self.maps_protected = not recording.meta.get("modes") and self.scenario != "edited" and \
            self.settings.get("io_torn_pages_protection") in ("double_writes", "atomic_writes")

    def recover_and_ask(self, image, expected, seed, outcome):
        """Recover an image, and enter what is wrong with it."""
        standby = (Path(image) / server.STANDBY_SIGNAL).exists()
        if not standby and drawn("compare", seed, self.context.compare_every):
            with phase(outcome, "compare"):
                outcome.complaints += self._compare_ways(image, seed)
        with phase(outcome, "standby" if standby else "recover"):
            ask = self._ask_standby if standby else self._ask_single \
                if drawn("single", seed, self.context.single_every) else self._ask_server
            complaints, outcome.log = ask(image, expected, seed)
        outcome.complaints += [c for c in complaints if not self._harmless(c)]
        outcome.complaints += dict.fromkeys(bad_lines(outcome.log) + alarms.of_server(outcome.log))
        if not outcome.complaints:
            outcome.complaints += pages.future_lsns(image, expected["orphans_allowed"])
        match = _RESTORED.search(outcome.log)
        if match:
            outcome.examined, outcome.restored = int(match[1]), int(match[3])
        if not outcome.complaints and drawn("restart", seed, self.context.restart_every):
            with phase(outcome, "restart"):
                outcome.complaints += self._second_start(image, expected)

    def _ask_single(self, image, expected, seed):
        """Recover in single-user mode; returns complaints and log."""
        return oracle.verify_single(self.context.bindir, image, expected,
                                    quick=self.context.quick)

    def _ask_server(self, image, expected, seed):
        """Recover with all processes that a server has; returns complaints and log.

        A checkpoint would wait until no page is pending.
        """
        pending = drawn("pending", seed, self.context.pending_every)
        return self._ask(image, PENDING if pending else {}, seed, lambda instance:
                         oracle.verify_connected(instance.connect, expected,
                                                 checkpoint=not pending))

    def _ask_standby(self, image, expected, seed):
        """Start a standby, let it replay what there is, promote it; returns complaints and log.

        Its primary is gone, so what it has must be enough, before and after.
        """
        def verify(instance):
            instance.wait_for_replay()
            # Locks of transactions that have not ended stay until it is promoted.
            complaints = [] if _is_locked(instance) else \
                oracle.verify_connected(instance.connect, expected, quick=True)
            instance.promote(server.REPLAY_SECONDS)
            return complaints + [f"promoted: {complaint}" for complaint in
                                 oracle.verify_connected(instance.connect, expected)]

        return self._ask(image, AS_STANDBY, seed, verify)

    def _ask(self, image, settings, seed, verify):
        """Start a server with settings, and let `verify` judge it."""
        if not drawn("as drawn", seed, self.context.as_drawn_every):
            settings = {**PLAIN, **settings}
        log = Path(image).parent / "server.log"
        with server.as_user():
            log.touch()
        instance = server.Server(self.context.bindir, image, log)
        try:
            instance.start({**JUDGING, **settings})
            with limit("what a server is asked", HANG_SECONDS):
                complaints = verify(instance)
                instance.stop()
        except Exception as exc:
            tail = " / ".join(log.read_text().strip().splitlines()[-8:])
            complaints = [f"no verdict of a server: {exc}: {tail}"]
        finally:
            instance.close()
        return complaints, log.read_text()

    def _compare_ways(self, image, seed):
        """Recover copies of an image in the order of WAL, and in other ways.

        The files of relations must be the same afterwards, and redo must have come to the
        same record.  (WAL goes on after it: a checkpoint may be part of it or not.)  If
        recovery fails, it must fail in order and with the WAL pipeline; page by page the
        error may come when a backend reads the page.
        """
        expected = self._fingerprint_of(image, IN_ORDER)
        complaints = []
        for how, choices in WAYS.items():
            found = self._fingerprint_of(image, random.Random(f"{how}/{seed}").choice(choices))
            failures = [result["server"] for result in (expected, found) if "server" in result]
            if how == "page by page" and "server" in expected:
                continue
            if len(failures) == 1:
                complaints.append(f"recovery fails only {how}, or only without: {failures[0]}")
            differing = sorted(name for name in expected.keys() | found.keys()
                               if expected.get(name) != found.get(name))
            complaints += [f"recovery {how} leaves another {name}" for name in differing[:3]
                           if not failures]
        return complaints

    def _fingerprint_of(self, image, settings):
        """Recover a copy of an image; returns what it has become, or the log if that fails."""
        copy = Path(image).parent / "compared"
        log = copy.with_suffix(".log")
        with server.as_user():
            subprocess.run(["cp", "-a", str(image), str(copy)], check=True)
            log.unlink(missing_ok=True)
            log.touch()
        instance = server.Server(self.context.bindir, copy, log)
        try:
            # No process that would read a catalog, and leave hints there
            instance.start({"fsync": "off", "autovacuum": "off",
                            "max_logical_replication_workers": "0", **settings})
            instance.stop()
            return {**pages.fingerprint(copy), "end of WAL": _replayed(log)}
        except server.ServerError:
            return {"server": log.read_text()[-1500:]}
        finally:
            instance.close()
            shutil.rmtree(copy)

    def _harmless(self, complaint):
        """Say whether a complaint is about something that is not promised here."""
        return not self.maps_protected and _TORN_MAP.search(complaint) or \
            self.scenario != "primary" and _ORPHAN.search(complaint) or \
            self.scenario == "failing-unlinks" and _ORPHAN_DIRECTORY.search(complaint)

    def _second_start(self, image, expected):
        """A second start must find everything as the first has left it."""
        complaints, log = oracle.verify_single(self.context.bindir, image, expected,
                                               quick=True)
        if _RESTORED.search(log):
            complaints.append("second start restores pages after a clean stop")
        return [f"second start: {complaint}" for complaint in complaints
                if not self._harmless(complaint)]


class Subject(Judge):
    """A recording of files under test, at a cut that only moves forward."""

    def __init__(self, recording, context):
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

    def move(self, cut):
        """Go to a cut, from the start if it lies behind."""
        if cut < self.disk.cut:
            self.disk = Disk(self.recording, self.context.rules)
        self.disk.advance(cut)

    def try_state(self, state):
        """Return the Outcome of a state."""
        self.move(state.cut)
        return self.try_choice(state, choose(self.disk, state, self.places.areas))

    def try_choice(self, state, choice):
        """Return the Outcome of a choice at the cut of a state."""
        started = time.monotonic()
        outcome = Outcome(state, [])
        self._count(choice, outcome)
        outcome.effective = self._is_effective(state, choice)
        with tempfile.TemporaryDirectory(prefix="image-", dir=self.context.scratch) as scratch:
            server.own(scratch)
            image = Path(scratch) / "data"
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
                                      if not excused(text, rotten, outcome.log)]
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
        refused = _UNREADABLE.search(outcome.log)
        outcome.effective &= bool(refused or any(map(_UNREADABLE.search, complaints)))
        outcome.complaints += [f"{file} cannot be read: {complaint}" for complaint in complaints
                               if not (self._harmless(complaint) or _UNREADABLE.search(complaint)
                                       or refused and _NO_VERDICT.match(complaint))
                               or _KILLED.search(complaint)]
        outcome.complaints += dict.fromkeys(crashes(outcome.log))

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
                                   if not self._harmless(complaint)]
            outcome.complaints += bad_lines(after.log)
            outcome.sequel_log = outcome.log = after.log
            disk = Disk(after.recording, self.context.rules)
            areas = Places(after.recording).areas
            orphans = sorted({*self._all_files, *_files_of(after.recording)})
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
            yield left.directory, inner, {**promised, "orphans_allowed": orphans}

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
            expected["orphans_allowed"] = self._all_files
        elif state.nested:
            # A removal that redo repeated may be lost again.
            expected["orphans_allowed"] = self._all_files
        else:
            expected["orphans_allowed"] = self._orphans_allowed(moment)
        return expected

    def backups(self):
        """Return the base backups that were taken during the recording."""
        listing = self.recording.directory / "backups.json"
        return json.loads(listing.read_text()) if listing.exists() else []

    def try_backup(self, backup):
        """Return the Outcome of a base backup that was taken of the recorded server.

        Whatever was acknowledged before it began must be there.
        """
        outcome = Outcome(State(len(self.recording.ops), "base-backup", 0), [])
        before = oracle.expectation(self.recording.acks, backup["begin"])["clients"]
        expected = oracle.lagging(oracle.expectation(self.recording.acks, backup["end"]))
        for client, known in expected["clients"].items():
            known["acked"] = before.get(client, {"acked": 0})["acked"]
        expected["orphans_allowed"] = self._all_files
        started = time.monotonic()
        with limit("trying a base backup", STATE_SECONDS):
            self.recover_and_ask(self.recording.directory / backup["name"], expected, 1, outcome)
        outcome.seconds = time.monotonic() - started
        return outcome

    @functools.cached_property
    def _all_files(self):
        """The names of all files that there ever were."""
        return sorted(_files_of(self.recording))

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
            failures + bad_lines(log) + alarms.of_server(log))]
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

        Otherwise a fault damages nothing that was pending, or not in the way of its name;
        or nothing has failed yet where something was made to.
        """
        if not self.places.has(FAULTS[state.fault].about) or \
                self.scenario.startswith(_FAILING) and not 0 < self.first_failure <= state.cut:
            return False
        fates = [(op, choice.fate(op)) for op in
                 self.disk.pending_data() + self.disk.pending_names()]
        if state.fault.startswith("torn"):
            return any(op.kind == Kind.WRITE and fate not in (
                KEPT, LOST, SIZE_ONLY, (1 << sectors(op, choice.unit)) - 1) for op, fate in fates)
        return FAULTS[state.fault].reported or state.fault == "all-kept" or \
            any(fate != KEPT for _, fate in fates)

    @functools.cached_property
    def first_failure(self):
        """The first operation that was made to fail, or to stop half-way; 0 if none was."""
        return next((op.seq for op in self.recording.ops
                     if op.kind in (Kind.FAULT, Kind.SYNCFAILED)
                     or op.kind == Kind.WRITE and op.flags & WRITE_SHORTENED), 0)

    # Minimising

    def minimise(self, state):
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

    def describe(self, pieces):
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


def _files_of(recording):
    """Return the names of all files that a recording has ever had."""
    return {name for path in recording.paths().values() for name in oracle.orphan_names(path)}


# Does redo hold locks that readers would wait for?
_LOCKED = "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid)" \
          " WHERE backend_type = 'startup' AND mode = 'AccessExclusiveLock'"


def _is_locked(instance):
    """Say whether a standby cannot be asked, or not everything."""
    try:
        return instance.query(_LOCKED)
    except psycopg2.OperationalError as error:
        if "lock timeout" in str(error):
            return True
        raise


def nested_state(places, state, level):
    """Return the state by which the recovery of a nested state is cut."""
    rng = random.Random(f"nested/{state.cut}/{state.seed}/{level}")
    fault = rng.choice(("all-lost", "all-kept", "subset", "torn-pages", "storm", "torn-log"))
    return State(places.random(rng, RELATION if "pages" in fault else "any"), fault,
                 rng.randrange(1 << 30), state.unit)


def _fate_text(fate):
    if fate == LOST:
        return "lost"
    return "size only" if fate == SIZE_ONLY else f"torn, sectors {fate:#x} written"


@contextlib.contextmanager
def phase(outcome, name):
    """Add the time that a block takes to a phase of an outcome."""
    started = time.monotonic()
    try:
        yield
    finally:
        outcome.phases[name] = outcome.phases.get(name, 0) + time.monotonic() - started
