"""Make a recording: a small cluster, a load, and several lives of the server.

SCENARIOS says in which ways.  A primary is recorded, also over lives that differ in mode or
have few checkpoints; or a standby is, while the load runs on its primary; or base backups are
taken of a recorded primary under load, whose files are read in pieces, so that a page that is
written meanwhile is read torn; or files of a primary fail at times, of any kind or of one.
"""

import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg2

from . import matrix, plans, probes, readers, server, workload
from .failing import (
    Errors,
    FailingDirectorySyncs,
    FailingLogSyncs,
    FailingSyncs,
    FailingUnlinks,
    FailingWalSyncs,
    Frozen,
    HalfWrites,
    Quota,
    TornWrites,
)
from .limits import limit
from .mount import recorded
from .primary import HANG_SECONDS, MODE, MODES, Backup, Edited, Primary, Reopened, other_mode
from .recording import REPLAYS, ROTTEN
from .server import Server
from .states import PAGE, SECTOR, SPACES

# Load for a standby or a backup: kinds whose files live in one database.
STEADY_KINDS = {"transfer": 3, "copy": 1, "index": 1, "method": 1, "truncate": 1, "refill": 1,
                "recreate": 1, "toast": 1, "chains": 1, "vacuum": 1, "hint": 1, "scan": 1,
                "unlogged": 1, "multixact": 1, "large": 1, "catalog": 1, "checkpoint": 1}

# Settings of the server that prepares a cluster, beside its mode.
PREPARING = {**matrix.FIXED, "fsync": "off", "autovacuum": "off", "max_wal_size": "8MB"}

# What rots on a standby: so many pages, of a table in all pages of which there are transfers.
ROTTEN_PAGES, ROTTEN_TABLE = 5, "load.accounts"

# Between two snapshots on a standby: it is to have time for WAL, too.
READER_PAUSE = 0.2

# So far behind, in bytes of WAL, a standby looks ahead: some segments, of which it has to have all.
# So many readers are beside its replay, and pause for so long.
BEHIND, BEHIND_READERS, BEHIND_PAUSE = 4 << 20, 2, 0.02

# What the primary does besides, until it is: each row gets a new version, of the same content.
_REWRITE = """
DO $$
DECLARE
    name regclass;
BEGIN
    UPDATE load.accounts SET balance = balance;
    FOR name IN SELECT oid FROM pg_class JOIN pg_attribute ON attrelid = oid AND attname = 'v'
        WHERE relnamespace = 'load'::regnamespace AND relkind = 'r'
    LOOP
        EXECUTE 'UPDATE ' || name || ' SET v = v';
    END LOOP;
END
$$
"""

# The standby says so, and for how many blocks.
_AHEAD = re.compile(r"looked ahead in WAL from \S+ to \S+, found (\d+) blocks to read")

# What has a tablespace behind a symbolic link; base backups would have to map it.
LINKED = ("primary", "edited", "errors", "torn-writes", "failing-syncs", "failing-log-syncs",
          "frozen")

# What has clients of a tablespace of their own.
PROBED = ("frozen", "quota")

# Load that these scenarios have besides.
MORE_KINDS = {"frozen": {"tablespace": 1}, "quota": {"scan": 5},
              "failing-unlinks": {"database": 1, "tablespace": 1}}

# All that makes a recording may take so long.
RECORDING_SECONDS = 3600


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


def make(directory: Path, plan: Any, bindir: str, recorder: str, scratch: str,
         mutated: Any = None) -> None:
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


def prepared(data: Any, plan: Any, bindir: str, scratch: str) -> Path:
    """Make a cluster that holds what the load starts with; it is stopped.

    It is a copy of one that all recordings of a campaign share which begin alike.
    """
    linked = plan.scenario in LINKED
    mode = plan.settings.get(MODE)
    key = json.dumps([plan.checksums, plan.kinds, linked, mode, plan.scenario in PROBED])
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
        if plan.scenario in PROBED:
            probes.prepare(instance.connect)
        instance.stop()
        _make_links_relative(data)
    except Exception as exc:
        raise server.ServerError(f"cannot prepare a cluster: {exc}\n"
                                 + instance.log_text()) from exc
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


class Standby(Primary):
    """The recorded server is a synchronous standby; commits wait for its disk."""

    def __init__(self, base: Any, *arguments: Any) -> None:
        super().__init__(base, *arguments)
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

    def live(self, data: Any) -> Any:
        try:
            # What the standby has not received yet must stay: commits wait for it.
            self.start_primary()
            super().live(data)
            return self.acks
        finally:
            self.primary.close()

    def read_logs(self) -> None:
        super().read_logs()
        self.read_log("its primary", self.primary_log)

    def servers(self) -> dict:
        return {**super().servers(), "its primary": self.primary}

    def start_primary(self, settings: Mapping[str, Any] | None = None) -> None:
        self.primary.start({"fsync": "off", "synchronous_standby_names": "*",
                            "wal_keep_size": "1GB", **(settings or {})})

    def load(self, instance: Server) -> None:
        """Run the load on the primary, while a session reads snapshots on the standby."""
        with self.reading(instance):
            self.load_primary()

    def load_primary(self) -> None:
        """Run the load on the primary."""
        before = len(self.acks)
        super().load(self.primary)
        # Commits for which the client did not wait, or not to the end, are there as well.
        for event in self.acks[before:]:
            if event["what"] == "resumed":
                event["lazy"] = True

    @contextlib.contextmanager
    def reading(self, instance: Server, count: int = 1, pause: float = READER_PAUSE) -> Iterator[None]:
        """Have sessions read snapshots on the standby meanwhile."""
        beside = [readers.Reader(instance.connect, pause) for _ in range(count)]
        for reader in beside:
            reader.start()
        try:
            yield
        finally:
            for reader in beside:
                reader.stop.set()
            for reader in beside:
                reader.end(HANG_SECONDS)
        for text in dict.fromkeys(text for reader in beside for text in reader.complaints):
            self.complain(f"standby: {text}")
        self.acks += [{"t": 0, "client": "reader", "what": "fail", "sqlstate": code, "error": text}
                      for reader in beside for code, text in reader.codes]

    def let_replay(self, instance: Server, enough: Callable[[], Any] = bool) -> None:
        """Wait until the standby has replayed what the primary has flushed, or it is enough."""
        (reached,) = self.tell(self.primary, "SELECT pg_current_wal_flush_lsn()")
        self.wait_until(instance, "pg_last_wal_replay_lsn() >= %s::pg_lsn", reached, enough=enough)

    def wait_until(self, instance: Server, condition: str, *values: Any,
                   enough: Callable[[], Any] = bool) -> None:
        """Wait until a condition holds on a server, or it is enough."""
        deadline = time.monotonic() + HANG_SECONDS
        while not enough() and self.tell(instance, f"SELECT {condition}", *values) != (True,):
            if time.monotonic() > deadline:
                raise RecordError(f"this does not come to pass: {condition}, {values}")
            time.sleep(0.05)

    @staticmethod
    def tell(instance: Server, command: str, *values: Any) -> Any:
        """Run a command in a transaction of its own; returns the first row, if there is any.

        The standby, for which commits wait, need not be there.
        """
        def tell():
            with contextlib.closing(instance.connect()) as session, session.cursor() as cursor:
                session.autocommit = True
                cursor.execute("SET synchronous_commit = local")
                cursor.execute("SET statement_timeout = %s", (HANG_SECONDS * 1000,))
                cursor.execute(command, values)
                return cursor.fetchone() if cursor.description else None
        return readers.undisturbed(tell)


class MixedStandby(Standby):
    """The primary protects its pages in another way than the standby."""

    def start_primary(self, settings: Mapping[str, Any] | None = None) -> None:
        other = other_mode(self.plan.settings[MODE])
        super().start_primary({MODE: other})


class ConvertedStandby(Standby):
    """The primary changes its mode in the middle of each life, by a clean stop and a start.

    Its checkpoints are rare: what the start does must be enough for the standby.
    """

    mode = "full_pages"

    def workloads(self) -> dict:
        return {kind: clients for kind, clients in self.plan.kinds.items() if kind != "checkpoint"}

    def start_primary(self, settings: Mapping[str, Any] | None = None) -> None:
        super().start_primary({MODE: self.mode, "checkpoint_timeout": "30s",
                               "max_wal_size": "256MB"})

    def load(self, instance: Server) -> None:
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

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cut_short = self.rng.random() < 0.5

    def options(self) -> dict:
        self.cut_short = not self.cut_short
        return {**server.MODULES,
                "test_points.crash_at":
                    "doublewrite-shutdown-drained" if self.cut_short else ""}

    def ends_properly(self) -> bool:
        return not self.cut_short

    def workloads(self) -> dict:
        return {kind: clients for kind, clients in self.plan.kinds.items() if kind != "checkpoint"}

    def start_primary(self, settings: Mapping[str, Any] | None = None) -> None:
        super().start_primary({"checkpoint_timeout": "30s", "max_wal_size": "256MB"})
        self.tell(self.primary, "CREATE EXTENSION pg_buffercache")

    def load(self, instance: Server) -> None:
        self.tell(self.primary, "CHECKPOINT")
        self.let_replay(instance)
        self.tell(instance, "CHECKPOINT")
        super().load(instance)
        self.let_replay(instance)
        self.tell(instance, "SELECT pg_buffercache_evict_all()")


class RottenStandby(Standby):
    """Pages of the standby have rotted; it starts cold and behind, and its primary replaces them.

    One more is of a visibility map, which needs no primary.
    The primary has changed them in the meantime.  Replay comes later than WAL does, so that the
    primary's pages are from the future.  Until they are in place, a backend that reads them gets an error.
    """

    def __init__(self, base: Any, *arguments: Any) -> None:
        super().__init__(base, *arguments)
        path, blocks = self._fall_behind()
        self.known = re.compile(f'invalid page in block \\d+ of relation "{path}"')
        rotten = {path: [block * PAGE for block in self.rng.sample(range(blocks), ROTTEN_PAGES)],
                  f"{path}_vm": [0]}
        for name, places in rotten.items():
            with open(base / name, "r+b") as file:
                for place in places:
                    file.seek(place)
                    file.write(self.rng.randbytes(SECTOR))
        (self.directory / ROTTEN).write_text(json.dumps(rotten))

    def _fall_behind(self):
        """Have the primary change all pages; returns the file, and how many pages there were."""
        self.start_primary()
        try:
            found = self.tell(self.primary, "SELECT pg_relation_filepath(%s), pg_relation_size(%s)"
                              f" / {PAGE}", ROTTEN_TABLE, ROTTEN_TABLE)
            self.tell(self.primary, "CREATE EXTENSION pg_doublewrite_stats")
            for _ in range(2):
                self.tell(self.primary, f"UPDATE {ROTTEN_TABLE} SET balance = balance")
                self.tell(self.primary, f"VACUUM {ROTTEN_TABLE}")
            return found
        finally:
            self.primary.stop()

    def options(self) -> dict:
        return {"recovery_min_apply_delay": "500ms"}

    def load(self, instance: Server) -> None:
        super().load(instance)
        self.let_replay(instance)
        # The primary is asked again for a page some seconds after an attempt that has failed.
        deadline = time.monotonic() + HANG_SECONDS
        while self.tell(instance, "SELECT pages_awaited FROM pg_fetched_pages") != (0,):
            if time.monotonic() > deadline:
                self.complain("standby: pages are awaited when all has been replayed")
                break
            time.sleep(0.05)
        for text in readers.undisturbed(lambda: self._accounts(instance)):
            self.complain(f"standby, when all has been replayed: {text}")

    def _accounts(self, instance):
        """Return what is wrong with the table of which pages had rotted."""
        with contextlib.closing(instance.connect()) as session, session.cursor() as cursor:
            try:
                return list(plans.disagreements_of_accounts(cursor))
            except psycopg2.errors.DataCorrupted:
                return ["a page is damaged"]

    def complain(self, text: str) -> None:
        """Enter a complaint, unless it is that a rotten page gives an error."""
        if not self.known.search(text):
            super().complain(text)


class BehindStandby(Standby):
    """Replay stands still while the primary works; then it goes on, with readers beside it.

    The standby looks far ahead in WAL then, and neither its buffers nor the kernel's cache has the
    pages.  Half of the lives end soon after it has begun to, and the next one goes on.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.replays = []

    def live(self, data: Any) -> Any:
        acks = super().live(data)
        (self.directory / REPLAYS).write_text(json.dumps(self.replays))
        return acks

    def start_primary(self, settings: Mapping[str, Any] | None = None) -> None:
        """Start it without images: pages that have one are not read."""
        mode = self.plan.settings[MODE]
        super().start_primary({MODE: other_mode(mode) if mode == "full_pages" else mode})
        self.tell(self.primary, "CREATE EXTENSION pg_buffercache")

    def begin_life(self, life: int) -> None:
        self._mark()

    def options(self) -> dict:
        """Have it say when it has looked ahead."""
        return {"log_min_messages": "debug1"}

    def load(self, instance: Server) -> None:
        self._replay(instance, whole=True)
        # Now that the primary is quiet, replay holds no lock that sessions would wait for.
        self.tell(instance, "SELECT pg_wal_replay_pause()")
        self.wait_until(instance, "pg_get_wal_replay_pause_state() = 'paused'")
        self.load_primary()
        self._fall_behind(instance)
        self._cool_down(instance)
        self._mark()
        self.tell(instance, "SELECT pg_wal_replay_resume()")
        self._replay(instance, whole=self.rng.random() < 0.5)

    def _fall_behind(self, instance):
        """Let the primary work on until the standby has received so much, and not replayed it."""
        far = (False,)
        while far != (True,):
            self.tell(self.primary, _REWRITE)
            self.tell(self.primary, "VACUUM")
            (reached,) = self.tell(self.primary, "SELECT pg_current_wal_flush_lsn()")
            self.wait_until(instance, "pg_last_wal_receive_lsn() >= %s::pg_lsn", reached)
            far = self.tell(instance, "SELECT %s::pg_lsn - pg_last_wal_replay_lsn() >= %s",
                            reached, BEHIND)

    def _cool_down(self, instance):
        self.tell(instance, "SELECT pg_buffercache_evict_all()")
        _forget(self.data / "base")

    def _mark(self):
        """From now on it replays: note the time, and where its log is."""
        self.marked = time.monotonic_ns(), self.log.stat().st_size

    def _found_ahead(self):
        """Return how many blocks each window of WAL has had in which it has looked ahead."""
        with open(self.log, errors="replace") as log:
            log.seek(self.marked[1])
            return [int(blocks) for blocks in _AHEAD.findall(log.read())]

    def _replay(self, instance, whole):
        """Let it replay all, or until it has looked ahead, with readers beside it; note when that was.

        It does not look ahead where most pages were in buffers shortly before.
        """
        with self.reading(instance, BEHIND_READERS, BEHIND_PAUSE):
            self.let_replay(instance, lambda: not whole and self._found_ahead())
        found = self._found_ahead()
        self.replays.append({"begin": self.marked[0], "end": time.monotonic_ns(),
                             "windows": len(found), "blocks": sum(found)})


def _forget(directory):
    """Drop what the kernel has cached of the files below a directory; some may go meanwhile."""
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError), open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


SCENARIOS = {"primary": Primary, "edited": Edited, "reopened": Reopened, "standby": Standby,
             "standby-mixed": MixedStandby, "standby-converted": ConvertedStandby,
             "standby-stopped": StoppedStandby, "standby-rotten": RottenStandby,
             "standby-behind": BehindStandby, "backup": Backup, "errors": Errors,
             "torn-writes": TornWrites, "half-writes": HalfWrites, "failing-syncs": FailingSyncs,
             "failing-log-syncs": FailingLogSyncs, "failing-wal-syncs": FailingWalSyncs,
             "failing-directory-syncs": FailingDirectorySyncs, "frozen": Frozen, "quota": Quota,
             "failing-unlinks": FailingUnlinks}
