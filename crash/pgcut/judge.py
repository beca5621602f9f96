"""Recovers images of a recorded cluster, and says what is wrong with them."""

import contextlib
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

from . import alarms, oracle, pages, server
from .disk import Rules
from .limits import limit
from .recording import Recording
from .states import State

# For all servers that recover an image: it is thrown away, so its disk need not be synced.
JUDGING = {"fsync": "off", "io_workers": "1", "log_min_messages": "warning"}
# For most: without processes that have no part in the answer.  I/O workers that read ahead for
# the oracle cost as much as a tenth of all else.
PLAIN = {"io_method": "sync", "max_logical_replication_workers": "0"}

# Each page waits until a backend reads it, or all pages are needed.
PENDING = {"instant_recovery": "on", "recovery_workers": "1", "instant_recovery_memory": "64MB",
           **server.MODULES,
           "test_points.fail_at": "instant-recovery-demands-first:EIO"}

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

# A standby that is judged has no primary.  Replay may hold locks of transactions that never
# end, also on catalogs that each new session reads.
AS_STANDBY = {"primary_conninfo": "", "lock_timeout": "5s"}

# Where a recording has logs of a state that was cut short.
CUT_SHORT = "cut-short"

# What may be asked takes a second or two: a server that takes so long hangs.
HANG_SECONDS = 180

_RESTORED = re.compile(r"double-write log: examined (\d+) pages in (\d+) batches, restored (\d+)")

# Does redo hold locks that readers would wait for?
_LOCKED = "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid)" \
          " WHERE backend_type = 'startup' AND mode = 'AccessExclusiveLock'"


def _outlives_its_first_segment(name, names):
    """Say whether a file is a later segment of a relation whose first one is in no recovery.

    The relation was dropped, and the cut has lost the removal of this segment.  Redo in order may
    make the first ones anew before it comes to the drop, which then removes all of them.
    """
    first, dot, segment = name.rpartition(".")
    return bool(dot) and segment.isdigit() and first not in names


@dataclass(frozen=True)
class Context:
    """What trying a state needs besides the recording."""

    bindir: str
    recorder: str
    scratch: str                # a directory in memory
    rules: Rules = Rules()
    quick: bool = False
    # Each of these takes one state in so many.  Recover in single-user mode, not by a server.
    single_every: int = 10
    # Recover with a server that reads as the settings drawn say.
    as_drawn_every: int = 5
    # Start a second time: the files must stay as they are.
    restart_every: int = 20
    # Recover with and without the WAL pipeline, and page by page.
    compare_every: int = 20
    # Verify while pages wait to be redone.
    pending_every: int = 10
    # Start a standby as one, and then promote it.
    standby_every: int = 2
    # Let a server go on from the state, with load, and cut its power again.  Most of the cost
    # is the load, so several cuts of each are judged.  A standby is promoted first.
    sequel_every: int = 90
    sequel_cuts: int = 3
    # So many of these cuts come before the load: in a recovery with all processes, or in the
    # checkpoint that may follow.
    recovery_cuts: int = 1
    # The faults of these cuts; () is any.
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
    logs: dict = field(default_factory=dict)    # by name, of all servers if it has failed
    # How many seconds each part took
    phases: dict = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.complaints)

    def keep_logs(self, place: Path) -> None:
        """Keep the logs of all servers that have run in a directory, if it has failed."""
        self.logs = logs_below(place) if self.failed else {}


def drawn(purpose: str, seed: int, every: int) -> bool:
    """Say whether the state with this seed is drawn for a purpose, for which one in `every` is.

    With 0 no state is.  The draws for different purposes are independent.
    """
    return every > 0 and random.Random(f"{purpose}/{seed}").randrange(every) == 0


class Judge:
    """Recovers images of a recorded cluster, and says what is wrong with them."""

    def __init__(self, recording: Recording, context: Context) -> None:
        self.recording = recording
        self.context = context
        self.scenario = recording.meta.get("scenario", "primary")
        self.settings = recording.meta.get("settings", {})
        # Images in WAL do not protect free space maps.
        self.maps_protected = not recording.meta.get("modes") and self.scenario != "edited" and \
            self.settings.get("io_torn_pages_protection") in ("double_writes", "atomic_writes")

    @contextlib.contextmanager
    def place_for(self, outcome: Outcome) -> Iterator[Path]:
        """Yield a directory for a state; logs below it are kept if it fails, or if it is cut short."""
        with tempfile.TemporaryDirectory(prefix="image-", dir=self.context.scratch) as place:
            server.own(place)
            try:
                yield Path(place)
            except BaseException:
                write_logs(logs_below(Path(place)), self.recording.directory / CUT_SHORT)
                raise
            outcome.keep_logs(Path(place))

    def recover_and_ask(self, image: Any, expected: Any, seed: int, outcome: Outcome) -> None:
        """Recover an image, and enter what is wrong with it."""
        standby = (Path(image) / server.STANDBY_SIGNAL).exists()
        if not standby and drawn("compare", seed, self.context.compare_every):
            with phase(outcome, "compare"):
                outcome.complaints += self._compare_ways(image, seed)
        with phase(outcome, "standby" if standby else "recover"):
            ask = self._ask_standby if standby else self._ask_single \
                if drawn("single", seed, self.context.single_every) else self._ask_server
            complaints, outcome.log = ask(image, expected, seed)
        outcome.complaints += [c for c in complaints if not self._harmless(c, expected)]
        outcome.complaints += dict.fromkeys(alarms.bad_lines(outcome.log) + alarms.of_server(outcome.log))
        if not outcome.complaints:
            outcome.complaints += pages.future_lsns(image, alarms.left_over(complaints))
        match = _RESTORED.search(outcome.log)
        if match:
            outcome.examined, outcome.restored = int(match[1]), int(match[3])
        if not outcome.complaints and drawn("restart", seed, self.context.restart_every):
            with phase(outcome, "restart"):
                outcome.complaints += self._second_start(image, expected)

    def _ask_single(self, image, expected, seed):
        """Recover in single-user mode; returns complaints and log."""
        complaints, log = oracle.verify_single(self.context.bindir, image, expected,
                                               quick=self.context.quick)
        write_log(image, "single", log)
        return complaints, log

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
        expected = self._fingerprint_of(image, IN_ORDER, "in order")
        complaints = expected.pop("crashes")
        for how, choices in WAYS.items():
            found = self._fingerprint_of(image, random.Random(f"{how}/{seed}").choice(choices),
                                         how)
            complaints += [f"recovery {how}: {line}" for line in found.pop("crashes")]
            failures = [result["server"] for result in (expected, found) if "server" in result]
            if how == "page by page" and "server" in expected:
                continue
            if len(failures) == 1:
                complaints.append(f"recovery fails only {how}, or only without: {failures[0]}")
            names = expected.keys() | found.keys()
            differing = sorted(name for name in names if expected.get(name) != found.get(name)
                               and not _outlives_its_first_segment(name, names))
            complaints += [f"recovery {how} leaves another {name}" for name in differing[:3]
                           if not failures]
        return complaints

    def _fingerprint_of(self, image, settings, how):
        """Recover a copy of an image; returns what it has become, or the log if that fails."""
        copy = Path(image).parent / "compared"
        log = copy.with_name(f"compared-{how.replace(' ', '-')}.log")
        with server.as_user():
            subprocess.run(["cp", "-a", str(image), str(copy)], check=True)
            log.write_text("")
        instance = server.Server(self.context.bindir, copy, log)
        try:
            # No process that would read a catalog, and leave hints there
            instance.start({"fsync": "off", "autovacuum": "off",
                            "max_logical_replication_workers": "0", **settings})
            instance.stop()
            found = {**pages.fingerprint(copy), "end of WAL": alarms.replayed(log)}
        except server.ServerError:
            found = {"server": log.read_text()[-1500:]}
        finally:
            instance.close()
            shutil.rmtree(copy)
        return {**found, "crashes": alarms.crashes(log.read_text(errors="replace"))}

    def _harmless(self, complaint, expected):
        """Say whether a complaint is about something that is not promised here.

        Without a list of what may be left over, all may.
        """
        allowed = expected["orphans_allowed"]
        return not self.maps_protected and alarms.TORN_MAP.search(complaint) or \
            self.scenario != "primary" and alarms.ORPHAN.search(complaint) or \
            self.scenario == "failing-unlinks" and alarms.ORPHAN_DIRECTORY.search(complaint) or \
            any(allowed is None or name in allowed for name in alarms.left_over([complaint]))

    def _second_start(self, image, expected):
        """Start a second time; returns complaints, as all must be as the first start has left it."""
        complaints, log = oracle.verify_single(self.context.bindir, image, expected,
                                               quick=True)
        write_log(image, "second-start", log)
        if _RESTORED.search(log):
            complaints.append("second start restores pages after a clean stop")
        return [f"second start: {complaint}" for complaint in complaints
                if not self._harmless(complaint, expected)]


def logs_below(place: Path) -> dict:
    """Return {name: text} of the logs below a directory, but not in clusters."""
    return {str(file.relative_to(place)): file.read_text(errors="replace")
            for depth in range(3) for file in sorted(Path(place).glob("*/" * depth + "*.log"))}


def write_logs(logs: Mapping[str, str], place: Path) -> None:
    """Write such logs below another directory."""
    for name, text in logs.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def write_log(image: Any, name: str, text: str) -> None:
    """Add what a server has said that ran on an image to a file beside that."""
    with open(Path(image).parent / f"{name}.log", "a") as file:
        file.write(text)


def _is_locked(instance):
    """Say whether a standby cannot be asked, or not everything."""
    try:
        return instance.query(_LOCKED)
    except psycopg2.OperationalError as error:
        if "lock timeout" in str(error):
            return True
        raise


@contextlib.contextmanager
def phase(outcome: Outcome, name: str) -> Iterator[None]:
    """Add the time that a block takes to a phase of an outcome."""
    started = time.monotonic()
    try:
        yield
    finally:
        outcome.phases[name] = outcome.phases.get(name, 0) + time.monotonic() - started
