"""Make a recording: a small cluster, a load, and several lives of the server.

SCENARIOS says in which ways.  A primary is recorded, also over lives that differ in mode or
have few checkpoints; or a standby is, while the load runs on its primary; or base backups are
taken of a recorded primary under load, whose files are read in pieces, so that a page that is
written meanwhile is read torn; or files of a primary fail at times, of any kind or of one.
"""

import contextlib
import errno
import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg2

from . import alarms, matrix, readers, server, workload
from .limits import limit
from .mount import recorded, set_fault
from .states import SPACES

# How a life of the server ends.  The next one begins with what that leaves.
ENDS = ("fast", "immediate", "kill")

# Load for a standby or a backup: kinds whose files live in one database.
STEADY_KINDS = {"transfer": 3, "copy": 1, "index": 1, "method": 1, "truncate": 1, "refill": 1,
                "recreate": 1, "toast": 1, "chains": 1, "vacuum": 1, "hint": 1, "scan": 1,
                "unlogged": 1, "multixact": 1, "large": 1, "catalog": 1, "checkpoint": 1}

BACKUPS = 6

# Settings of the server that prepares a cluster, beside its mode.
PREPARING = {**matrix.FIXED, "fsync": "off", "autovacuum": "off", "max_wal_size": "8MB"}

# Between two snapshots on a standby: it is to have time for WAL, too.
READER_PAUSE = 0.2

# What has a tablespace behind a symbolic link; base backups would have to map it.
LINKED = ("primary", "edited", "errors", "torn-writes", "failing-syncs", "failing-log-syncs")

# How long a truncation is held while a sync cycle is provoked.
HOLD_MS = 4000

# Of the errors, this share stays as long as the server lives.
STAY_SHARE, MANY_STAY, STAYS = 0.1, 0.5, 1 << 40

# A relation of this size is more likely written over than extended.
YOUNG_BYTES = 5 * 8192

MODE = "io_torn_pages_protection"
MODES = ("full_pages", "double_writes")


def _other_mode(mode):
    """Return a mode that protects pages in another way, with images or without."""
    return MODES[mode == MODES[0]]


# A load that goes on for so long after its end waits for something that never
# comes; and so do what comes before and after it, and all that makes a recording.
HANG_SECONDS = 180
LIFE_SECONDS = 900
RECORDING_SECONDS = 3600

# How soon it is noticed that a server has ended, and how long one may take that has lost clients.
GUARD_SECONDS = 0.1
GONE_SECONDS = 20

# What a server that crashes says, or one of whose processes does, before it ends.
_CRASH = re.compile(r"^.*(?:TRAP:|PANIC:|was terminated by signal).*$", re.MULTILINE)


class RecordError(Exception):
    """A recording could not be made."""


@dataclass(frozen=True)
class Plan:
    """What to record.  Everything random is drawn from the seed."""

    seed: int
    settings: dict
    checksums: bool
    seconds: float = 6          # of load, over all lives
    lives: int = 2
    kinds: dict = None          # kinds of load and how many clients of each
    modes: tuple = ()           # modes of protection that the load may switch to
    scenario: str = "primary"   # a key of SCENARIOS


def make(directory, plan, bindir, recorder, scratch, mutated=None):
    """Record what `plan` says into `directory`, which is made.

    `mutated` are the programs of the recorded server, if they are others: what it
    begins with is shared with other recordings, and must not be its work.
    """
    directory = Path(directory)
    directory.mkdir(parents=True)
    rng = random.Random(f"record/{plan.seed}")
    with limit("making a recording", RECORDING_SECONDS), \
            tempfile.TemporaryDirectory(prefix="base-", dir=scratch) as place:
        server.own(place)
        base = prepared(Path(place) / "data", plan, bindir, scratch)
        scenario = SCENARIOS[plan.scenario](base, directory, plan, mutated or bindir, rng)
        delay = rng.choice(((0, 0), (200, 3000), (1000, 8000)))
        with recorded(recorder, base, directory, plan.seed, delay,
                      scenario.recorder_options) as mountpoint:
            acks = scenario.live(mountpoint)
        shutil.move(base, directory / "base")
    (directory / "acks.jsonl").write_text("".join(json.dumps(ack) + "\n" for ack in acks))
    (directory / "meta.json").write_text(json.dumps(asdict(plan), indent=1))


def prepared(data, plan, bindir, scratch):
    """Make a cluster that holds what the load starts with; it is stopped.

    It is a copy of one that all recordings of a campaign share which begin alike.
    """
    linked = plan.scenario in LINKED
    mode = plan.settings.get(MODE)
    key = json.dumps([plan.checksums, plan.kinds, linked, mode])
    template = Path(scratch) / f"prepared-{zlib.crc32(key.encode()):08x}"
    _make_once(template, lambda: _prepare(template / "data", plan, bindir, scratch, linked))
    _copy(template / "data", data)
    server.write_settings(data, {**plan.settings, "fsync": "on"})
    return data


def _prepare(data, plan, bindir, scratch, linked):
    """Make the cluster of which prepared() gives copies."""
    fresh = Path(scratch) / f"initdb-{'with' if plan.checksums else 'without'}-checksums"
    _make_once(fresh, lambda: server.make_cluster(bindir, fresh / "data", plan.checksums))
    _copy(fresh / "data", data)
    server.write_settings(data, {**PREPARING, MODE: plan.settings.get(MODE, MODES[0])})
    instance = server.Server(bindir, data, data.parent / "prepare.log")
    spaces = ("", _directory_of_tablespace(data)) if linked else ("",)
    try:
        with server.as_user():
            instance.log.touch()
        instance.start()
        workload.prepare(instance.connect, 0, spaces, plan.kinds)
        instance.stop()
        _make_links_relative(data)
    except Exception as exc:
        raise server.ServerError(f"cannot prepare a cluster: {exc}\n"
                                 + instance.log.read_text()[-2000:]) from exc
    finally:
        instance.close()
    (data / "postmaster.opts").unlink(missing_ok=True)


def _make_once(place, make):
    """Make a directory that several processes want, unless it is there."""
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / "done").exists():
            return
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        server.own(place)
        make()
        (place / "done").touch()


def _copy(source, target):
    """Copy a cluster; the zeroes of its log become holes, which take no memory, and stay so."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def _directory_of_tablespace(data):
    """Make a directory for a tablespace, within the cluster, so that it is recorded, too."""
    directory = data / SPACES / "new"
    with server.as_user():
        directory.mkdir(parents=True)
    return str(directory)


def _make_links_relative(data):
    """Let symbolic links of tablespaces lead to their directories wherever the cluster is.

    A directory gets the number of its tablespace for a name.
    """
    for link in (data / "pg_tblspc").iterdir():
        if link.is_symlink():
            with server.as_user():
                link.readlink().rename(data / SPACES / link.name)
                link.unlink()
                link.symlink_to(f"../{SPACES}/{link.name}")


class Beside(threading.Thread):
    """A call beside others; what it raises comes back to who joins it."""

    def __init__(self, work, *arguments):
        super().__init__()
        self._call = work, arguments
        self._error = None

    def run(self):
        work, arguments = self._call
        try:
            work(*arguments)
        except BaseException as error:
            self._error = error

    def join(self, timeout=None):
        super().join(timeout)
        if self._error is not None:
            raise self._error


class Guard(threading.Thread):
    """Ends all servers of a recording as soon as one of them has ended by itself.

    What others wait for would never come: an acknowledgement, or that a lock is released.
    """

    def __init__(self, servers):
        super().__init__(name="guard")
        self._servers = servers         # by name
        self._over = threading.Event()
        self.crashed = {}               # name: what is to be said of it

    def run(self):
        while self._servers and not self.crashed and not self._over.wait(GUARD_SECONDS):
            self.look()

    def end(self, lost):
        """Look for the last time; for a while if clients have lost their connections."""
        self._over.set()
        self.join()
        deadline = time.monotonic() + (GONE_SECONDS if lost and self._servers else 0)
        self.look()
        while not self.crashed and time.monotonic() < deadline:
            time.sleep(GUARD_SECONDS)
            self.look()

    def look(self):
        """End all servers if one of them has ended."""
        gone = {name: one for name, one in self._servers.items() if not one.alive()}
        if gone and not self.crashed:
            self.crashed = {name: _last_words(name, one) for name, one in gone.items()}
            for one in self._servers.values():
                one.kill()


def _last_words(name, instance):
    """Return what is to be said of a server that has ended by itself."""
    said = dict.fromkeys(_CRASH.findall(instance.log_text()))
    return " / ".join([f"{name} has ended by itself, with status {instance.status()}; "
                       f"its log is {instance.log.name}", *said])


class Primary:
    """A server is recorded, life after life, with the load on it."""

    recorder_options = ()

    # What fails may make it crash.
    may_crash = False

    # Classes of SQLSTATE that are findings; none if something is made to fail.
    alarming = alarms.CLASSES

    # How lives end.
    ends = ENDS

    # What a server may not say before any crash.
    bad_lines = re.compile(r'(?:PANIC|TRAP|.*was terminated by signal (?:4|6|7|8|11)\b'
                           r'|ERROR:  could not (?:open|write|read)[^"]* file '
                           r'"(?:base|global|pg_tblspc)/).*')

    def __init__(self, base, directory, plan, bindir, rng):
        self.base = base
        self.directory = directory
        self.plan = plan
        self.bindir = bindir
        self.rng = rng
        self.data = None            # the recorded directory
        self.acks = []
        self.log = directory / "server.log"
        self.log.touch()
        server.own(self.log)

    def live(self, data):
        """Run all lives on the recorded directory `data`; returns the acks."""
        self.data = data
        instance = self.server = server.Server(self.bindir, data, self.log)
        try:
            for life in range(self.plan.lives):
                try:
                    with limit(f"life {life + 1} of the recorded server",
                               self.plan.seconds + LIFE_SECONDS):
                        self.begin_life(life)
                        instance.start(self.options())
                        self.load(instance)
                        _end(instance, self.rng.choice(self.ends))
                except (server.ServerError, psycopg2.Error) as exc:
                    # A server that a control has broken may not even start
                    # again, which is what the control is looking for.
                    self.complain(f"life {life + 1} of the recorded server: {exc}")
                    break
        finally:
            instance.close()
        self.read_log("recorded server", self.log)
        for text in alarms.of_clients(self.acks, self.alarming):
            self.complain(text)
        return self.acks

    def read_log(self, name, file):
        """Enter what a server may not say."""
        log = file.read_text(errors="replace")
        for line in sorted(set(self.bad_lines.findall(log))):
            self.complain(f"{name}: {line}")
        for text in alarms.of_server(log, self.alarming):
            self.complain(text if file is self.log else f"{name}: {text}")

    def servers(self):
        """Return the servers that must be there as long as the load is, by name."""
        return {} if self.may_crash else {"the recorded server": self.server}

    def begin_life(self, life):
        """Do what comes before a start of the recorded server."""

    def options(self):
        """Return settings of this life alone, which nobody finds in a file."""
        return {}

    def workloads(self):
        """Return the kinds of load of a life; None is all."""
        return self.plan.kinds

    def load(self, instance):
        """Run the load for one life of the recorded server."""
        guard, acks = Guard(self.servers()), None
        guard.start()
        try:
            with limit("the load", self.plan.seconds + HANG_SECONDS):
                acks = workload.run(
                    instance.connect, self.workloads(), modes=self.plan.modes,
                    seconds=self.plan.seconds / self.plan.lives,
                    seed=self.rng.randrange(1 << 30))
                self.acks += acks
        finally:
            guard.end(acks is None or any(event.get("unknown") for event in acks))
            for text in guard.crashed.values():
                self.complain(text)
        if guard.crashed:
            raise server.ServerError("the load was cut short")

    def complain(self, text):
        """Enter a complaint, which makes each state fail."""
        self.acks.append({"t": 0, "client": "server", "what": "complaint",
                          "text": text})


class Edited(Primary):
    """The mode of protection is another one in each life: edited while the server was down.

    It may have been stopped or have crashed.  Half of the lives have no checkpoint if
    they end in a crash, so that what a start does must be enough.
    """

    def workloads(self):
        quiet = self.rng.random() < 0.5
        return {kind: clients for kind, clients in self.plan.kinds.items()
                if not (quiet and kind == "checkpoint")}

    def begin_life(self, life):
        mode = self.plan.settings[MODE]
        server.write_settings(self.data, {MODE: (_other_mode(mode), mode)[life % 2],
                                          "checkpoint_timeout": "30s", "max_wal_size": "256MB"})


class Reopened(Primary):
    """Lives end in crashes, and clients get in again long before a checkpoint.

    Some lives have another wal_level than the one before, with which the checkpoint
    may have to come first.  Buffers are few, so that pages go home meanwhile, and the more
    of them, the longer the checkpoint takes.
    """

    ends = ("immediate", "kill")

    def workloads(self):
        return {kind: clients for kind, clients in self.plan.kinds.items()
                if kind != "checkpoint" or self.rng.random() < 0.2}

    def begin_life(self, life):
        level = self.rng.choice(("replica", "replica", "replica", "logical", "minimal"))
        server.write_settings(self.data, {
            "wal_level": level, "max_wal_senders": "0" if level == "minimal" else "10",
            "checkpoint_timeout": "30s", "checkpoint_completion_target": "0.9",
            "max_wal_size": "256MB",
            "shared_buffers": self.rng.choice(("512kB", "1MB", "2MB")),
            "bgwriter_lru_maxpages": "100", "bgwriter_delay": "10ms"})


class Standby(Primary):
    """The recorded server is a synchronous standby; commits wait for its disk."""

    def __init__(self, base, *arguments):
        super().__init__(base, *arguments)
        self.readers = []           # one of each load
        self.primary_data = base.parent / "primary"
        subprocess.run(["cp", "-a", str(base), str(self.primary_data)], check=True)
        self.primary_log = self.directory / "primary.log"
        self.primary_log.touch()
        server.own(self.primary_log)
        self.primary = server.Server(self.bindir, self.primary_data, self.primary_log)
        self.primary.make_sockets()
        server.write_settings(base, {
            "primary_conninfo": f"host={self.primary.sockets} user={server.USER}",
            "checkpoint_timeout": "1s", "hot_standby": "on",
            "wal_retrieve_retry_interval": "100ms"})
        with server.as_user():
            (base / server.STANDBY_SIGNAL).touch()

    def live(self, data):
        try:
            # What the standby has not received yet must stay: commits wait for it.
            self.start_primary()
            super().live(data)
            if any(reader.admitted for reader in self.readers) and \
                    not any(reader.snapshots for reader in self.readers):
                self.complain("standby: the reader has got in, and has not read one snapshot")
            self.read_log("its primary", self.primary_log)
            return self.acks
        finally:
            self.primary.close()

    def servers(self):
        return {**super().servers(), "its primary": self.primary}

    def start_primary(self, settings=None):
        self.primary.start({"fsync": "off", "synchronous_standby_names": "*",
                            "wal_keep_size": "1GB", **(settings or {})})

    def load(self, instance):
        """Run the load on the primary, while somebody reads snapshots on the standby."""
        before = len(self.acks)
        reader = readers.Reader(instance.connect, READER_PAUSE)
        self.readers.append(reader)
        reader.start()
        try:
            super().load(self.primary)
        finally:
            reader.end(HANG_SECONDS)
        # Commits that nobody has waited for, or not to the end, are there as well.
        for event in self.acks[before:]:
            if event["what"] == "resumed":
                event["lazy"] = True
        for text in dict.fromkeys(reader.complaints):
            self.complain(f"standby: {text}")
        self.acks += [{"t": 0, "client": "reader", "what": "fail", "sqlstate": code, "error": text}
                      for code, text in reader.codes]


class MixedStandby(Standby):
    """The primary protects its pages in another way than the standby."""

    def start_primary(self, settings=None):
        other = _other_mode(self.plan.settings[MODE])
        super().start_primary({MODE: other})


class ConvertedStandby(Standby):
    """The primary changes its mode in the middle of each life, by a clean stop and a start.

    Its checkpoints are rare: what the start does must be enough for the standby.
    """

    mode = "full_pages"

    def workloads(self):
        return {kind: clients for kind, clients in self.plan.kinds.items() if kind != "checkpoint"}

    def start_primary(self, settings=None):
        super().start_primary({MODE: self.mode, "checkpoint_timeout": "30s",
                               "max_wal_size": "256MB"})

    def load(self, instance):
        for self.mode in MODES:
            self.primary.stop()
            self.start_primary()
            super().load(instance)


class StoppedStandby(Standby):
    """Lives begin with a restartpoint, have no other, and end with a clean stop.

    Pages are pushed out of shared buffers before that.  What has gone home by then the stop
    must make durable: the restartpoint of the next life moves the redo pointer past it, and
    comes before any load.  Every other stop is cut short, when pg_control says already that
    the server was shut down.
    """

    ends = ("fast",)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cut_short = self.rng.random() < 0.5

    def options(self):
        self.cut_short = not self.cut_short
        return {"shared_preload_libraries": "test_doublewrite",
                "test_doublewrite.crash_at":
                    "doublewrite-shutdown-drained" if self.cut_short else ""}

    def workloads(self):
        return {kind: clients for kind, clients in self.plan.kinds.items() if kind != "checkpoint"}

    def start_primary(self, settings=None):
        super().start_primary({"checkpoint_timeout": "30s", "max_wal_size": "256MB"})
        # The standby, for which commits wait, is not there yet.
        self._tell(self.primary,
                   "SET synchronous_commit = local; CREATE EXTENSION pg_buffercache")

    def load(self, instance):
        self._tell(self.primary, "CHECKPOINT")
        self._let_replay(instance)
        self._tell(instance, "CHECKPOINT")
        super().load(instance)
        self._let_replay(instance)
        self._tell(instance, "SELECT pg_buffercache_evict_all()")

    def _let_replay(self, instance):
        """Wait until the standby has replayed what the primary has flushed."""
        (reached,) = self._tell(self.primary, "SELECT pg_current_wal_flush_lsn()")
        deadline = time.monotonic() + HANG_SECONDS
        while self._tell(instance, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn",
                         reached) != (True,):
            if time.monotonic() > deadline:
                raise RecordError(f"the standby does not replay up to {reached}")
            time.sleep(0.05)

    @staticmethod
    def _tell(instance, command, *values):
        """Run a command in a transaction of its own; returns the first row, if there is any."""
        def tell():
            with contextlib.closing(instance.connect()) as session, session.cursor() as cursor:
                session.autocommit = True
                cursor.execute("SET statement_timeout = %s", (HANG_SECONDS * 1000,))
                cursor.execute(command, values)
                return cursor.fetchone() if cursor.description else None
        return readers.undisturbed(tell)


class Backup(Primary):
    """Base backups are taken of the recorded server, which serves torn reads."""

    recorder_options = ("--split-reads",)

    def load(self, instance):
        load = Beside(super().load, instance)
        load.start()
        backups = []
        try:
            while load.is_alive() and len(backups) < BACKUPS:
                backups.append(self._back_up(instance, len(backups)))
        finally:
            load.join()
        (self.directory / "backups.json").write_text(json.dumps(backups))

    def _back_up(self, instance, number):
        """Take one backup; returns where it is, and when it began and ended."""
        name = f"backup-{number}"
        with tempfile.TemporaryDirectory(prefix="backup-", dir=self.directory) as place:
            server.own(place)
            begin = time.monotonic_ns()
            server.run(self.bindir, "pg_basebackup", "-D", f"{place}/data", "-X", "stream",
                       "-c", "fast", "--no-sync", "-U", server.USER, "-h", instance.sockets)
            end = time.monotonic_ns()
            shutil.move(f"{place}/data", self.directory / name)
        return {"name": name, "begin": begin, "end": end}


class Errors(Primary):
    """The recorded server's files fail now and then (F8)."""

    bad_lines = re.compile("TRAP.*")
    alarming = ()
    may_crash = True

    # What fails, where, and with which error: as the recorder's faults are set.
    kinds = (("write", "base/", errno.EIO), ("write", "base/", errno.ENOSPC),
             ("write", "pg_doublewrite/", errno.EIO), ("write", "pg_doublewrite/", errno.ENOSPC),
             ("create", "pg_doublewrite", errno.ENOSPC), ("shortwrite", "base/", 0),
             ("shortwrite", "pg_doublewrite/", 0), ("tornwrite", "base/", errno.EIO),
             ("tornwrite", "pg_doublewrite/", errno.EIO), ("read", "base/", errno.EIO),
             ("sync", "base/", errno.EIO), ("sync", "pg_doublewrite/", errno.EIO),
             ("syncdir", "pg_doublewrite", errno.EIO), ("rename", "pg_doublewrite", errno.EIO))
    stay_share = STAY_SHARE
    # Before one fails, up to so many of its kind pass; and seconds pass before the next may.
    spared = 20
    pauses = (0.2, 1)

    # WAL that could not be synced stays readable until the machine stops.  Where there is a
    # note of the PANIC, the next start writes it again.  In full_pages there is none: it is
    # replayed and synced again, which tells nothing, as in stock, and a power cut before the
    # next checkpoint loses what pages at home already have.
    last_kinds = (("sync", "pg_wal/", errno.EIO),)

    def live(self, data):
        self.lives = 0
        self.mountpoint = data
        return super().live(data)

    def load(self, instance):
        stop = threading.Event()
        self.lives += 1
        kinds = self.kinds + self.last_kinds * (
            self.lives == self.plan.lives or self.plan.settings[MODE] != MODES[0])
        faults = Beside(self._fail, stop, kinds)
        faults.start()
        try:
            super().load(instance)
        finally:
            stop.set()
            faults.join()
            self._set("clear")

    def _fail(self, stop, kinds):
        """Make something fail every now and then."""
        rng = random.Random(self.rng.randrange(1 << 30))
        while not stop.wait(rng.uniform(*self.pauses)):
            operation, where, number = rng.choice(kinds)
            count = STAYS if rng.random() < self.stay_share else rng.randint(1, 3)
            self._set(f"{operation}:{where}:{rng.randrange(self.spared)}:{count}:{number}")

    def _set(self, rule):
        set_fault(self.mountpoint, rule)


class FailingSyncs(Errors):
    """Syncs of relation files fail, nothing else.

    What they were to make durable is lost, though it can be read until the
    machine stops; in the next life the server must not rely on it.
    """

    kinds = (("sync", "base/", errno.EIO),)
    last_kinds = ()


class FailingLogSyncs(FailingSyncs):
    """The same of the double-write log."""

    kinds = (("sync", "pg_doublewrite/", errno.EIO),)


class FailingDirectorySyncs(Errors):
    """Only syncs of the double-write log's directory fail.

    Nobody knows under which names its segments are on disk then, until another one succeeds.
    """

    kinds = (("syncdir", "pg_doublewrite", errno.EIO),)
    last_kinds = ()
    stay_share = MANY_STAY
    spared = 2
    pauses = (0, 0.3)


class TornWrites(Errors):
    """Home writes fail, and any sectors of them are done; nothing else.

    What is torn is staged still, so that nobody reads it: not even an error tells of it.
    """

    kinds = (("tornwrite", "base/", errno.EIO),)
    last_kinds = ()
    alarming = ("XX",)


class HalfWrites(Errors):
    """A home write of a young relation stops half-way, and the relation goes away.

    A drop first discards the pages of a table and of its indexes, and then truncates
    one file after the other: truncations are held, so that a sync cycle may come in
    between.  Without checkpoints, so that there are sync cycles.
    """

    def begin_life(self, life):
        super().begin_life(life)
        # With images to check it, the WAL of _drop_half_written() is over 2 GB, which takes more
        # than twelve minutes with wal_sync_method = open_datasync and slow syncs.
        server.write_settings(self.data, {"checkpoint_timeout": "30s", "max_wal_size": "256MB",
                                          "double_write_buffer_size": "16MB",
                                          "wal_consistency_checking": ""})

    def load(self, instance):
        super().load(instance)
        if instance.alive():
            self._drop_half_written(instance)

    def _drop_half_written(self, instance):
        """The same once on purpose: a torn page, a drop that takes long, and a sync cycle."""
        with contextlib.closing(instance.connect()) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            paths = [_made(cursor, name, rows) for name, rows in
                     (("torn", 3000), ("held", 1), ("bulk", 100000))]
            cursor.execute("CHECKPOINT")
            cursor.execute("UPDATE torn SET b = 'changed' WHERE a % 7 = 0")
            self._set(f"write:{paths[0]}:1:4000:{errno.EIO}")
            self._set(f"shortwrite:{paths[0]}:0:1:0")
            self._set(f"hold:{paths[1]}:0:1:{HOLD_MS}")
            with contextlib.suppress(psycopg2.Error):
                cursor.execute("CHECKPOINT")        # which fails
            drop = threading.Thread(target=_run, args=(instance, "DROP TABLE torn, held"))
            drop.start()
            time.sleep(0.2)                         # it discards pages, and is held
            with contextlib.suppress(psycopg2.Error):
                cursor.execute("UPDATE bulk SET b = 'changed'")     # fills half of the log
            drop.join()
        self._set("clear")

    def workloads(self):
        return {"refill": 1, "recreate": 1, "truncate": 1, "scan": 1, "copy": 1, "transfer": 1}

    def _fail(self, stop, kinds):
        """Choose some of the youngest relations now and then, and let their writes fail."""
        rng = random.Random(self.rng.randrange(1 << 30))
        while not stop.wait(rng.uniform(0.3, 1)):
            self._set("clear")
            young = self._youngest()
            for path in rng.sample(young, min(len(young), 6)):
                self._set(f"write:{path}:1:4000:{errno.EIO}")
                self._set(f"shortwrite:{path}:0:1:0")
            self._set(f"hold:base/:0:3:{rng.randint(200, 1000)}")

    def _youngest(self):
        """Return the paths of the relations that were made last, and have some pages."""
        nodes = []
        for entry in os.scandir(self.data / "base" / "5"):
            with contextlib.suppress(FileNotFoundError):        # it may go meanwhile
                if entry.name.isdigit():
                    nodes.append((int(entry.name), entry.stat().st_size))
        return [f"base/5/{node}" for node, size in sorted(nodes)[-30:] if size >= YOUNG_BYTES]


def _made(cursor, name, rows):
    """Make a table, also in place of that of an earlier life; returns the path of its file."""
    cursor.execute(f"DROP TABLE IF EXISTS {name}")
    cursor.execute(f"CREATE TABLE {name} AS SELECT g a, repeat('x', 100) b"
                   f" FROM generate_series(1, {rows}) g")
    cursor.execute(f"SELECT pg_relation_filepath('{name}')")
    return cursor.fetchone()[0]


def _run(instance, statement):
    """Execute a statement on a connection of its own, whatever becomes of it."""
    with contextlib.suppress(psycopg2.Error), contextlib.closing(instance.connect()) as connection:
        connection.autocommit = True
        connection.cursor().execute(statement)


SCENARIOS = {"primary": Primary, "edited": Edited, "reopened": Reopened, "standby": Standby,
             "standby-mixed": MixedStandby, "standby-converted": ConvertedStandby,
             "standby-stopped": StoppedStandby, "backup": Backup, "errors": Errors,
             "torn-writes": TornWrites, "half-writes": HalfWrites, "failing-syncs": FailingSyncs,
             "failing-log-syncs": FailingLogSyncs,
             "failing-directory-syncs": FailingDirectorySyncs}


def _end(instance, how):
    if how == "kill":
        instance.kill()
    else:
        instance.stop({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
