"""Scenarios in which operations on the primary's files fail: of any kind, or of one kind.

Or they do not return for a while, or files cannot grow, or cannot be removed.
"""

import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

import psycopg2

from . import server
from .limits import Hang, limit
from .mount import set_fault
from .primary import HANG_SECONDS, MODE, Beside, Primary
from .probes import Probes
from .server import Server
from .states import SPACES

# How long a truncation is held while a sync cycle is provoked.
HOLD_MS = 4000

# Of the errors, this share stays as long as the server lives.
STAY_SHARE, MANY_STAY, STAYS = 0.1, 0.5, 1 << 40

# A relation of this size is more likely written over than extended.
YOUNG_BYTES = 5 * 8192

# After this, clients that must get on hang; the limit of the whole load is longer.
STAND_SECONDS = HANG_SECONDS // 2


class Faulty(Primary):
    """Operations on the recorded server's files fail, or wait, beside the load."""

    kinds = ()                  # what may be done

    def live(self, data: Any) -> Any:
        self.mountpoint = data
        return super().live(data)

    def load(self, instance: Server) -> None:
        stop = threading.Event()
        faults = Beside(self._fail, stop, self.kinds)
        faults.start()
        try:
            super().load(instance)
        finally:
            stop.set()
            faults.join()
            self._set("clear")

    def _fail(self, stop, kinds):
        """Let something fail every now and then, until told to stop."""
        raise NotImplementedError

    def _set(self, rule):
        set_fault(self.mountpoint, rule)


class Errors(Faulty):
    """The recorded server's files fail now and then (F8)."""

    alarming = ()
    may_crash = True

    # What fails, where, and with which error: as the recorder's faults are set.
    kinds = (("write", "base/", errno.EIO), ("write", "base/", errno.ENOSPC),
             ("write", "pg_doublewrite/", errno.EIO), ("write", "pg_doublewrite/", errno.ENOSPC),
             ("create", "pg_doublewrite", errno.ENOSPC), ("grow", "pg_doublewrite", errno.EDQUOT),
             ("grow", "", errno.EDQUOT), ("shortwrite", "base/", 0),
             ("shortwrite", "pg_doublewrite/", 0), ("tornwrite", "base/", errno.EIO),
             ("tornwrite", "pg_doublewrite/", errno.EIO), ("read", "base/", errno.EIO),
             ("sync", "base/", errno.EIO), ("sync", "pg_doublewrite/", errno.EIO),
             ("syncdir", "pg_doublewrite", errno.EIO), ("rename", "pg_doublewrite", errno.EIO),
             ("sync", "pg_wal/", errno.EIO))
    stay_share = STAY_SHARE
    # Before one fails, up to so many of its kind pass; and seconds pass before the next may.
    spared = 20
    pauses = (0.2, 1)

    def _fail(self, stop, kinds):
        """Make something fail every now and then, once a transaction has been acknowledged."""
        rng = random.Random(self.rng.randrange(1 << 30))
        while not stop.wait(rng.uniform(*self.pauses)):
            if not self.promised:
                continue
            operation, where, number = rng.choice(kinds)
            count = STAYS if rng.random() < self.stay_share else rng.randint(1, 3)
            self._set(f"{operation}:{where}:{rng.randrange(self.spared)}:{count}:{number}")


class FailingSyncs(Errors):
    """Syncs of relation files fail, nothing else.

    What they were to make durable is lost, though it can be read until the
    machine stops; in the next life the server must not rely on it.
    """

    kinds = (("sync", "base/", errno.EIO),)


class FailingLogSyncs(FailingSyncs):
    """The same of the double-write log."""

    kinds = (("sync", "pg_doublewrite/", errno.EIO),)


class FailingWalSyncs(FailingSyncs):
    """The same of WAL: what clients commit in the next life must not depend on it."""

    kinds = (("sync", "pg_wal/", errno.EIO),)


class FailingDirectorySyncs(Errors):
    """Only syncs of the double-write log's directory fail.

    Until another one succeeds, the names of its segments on disk are unknown.
    """

    kinds = (("syncdir", "pg_doublewrite", errno.EIO),)
    stay_share = MANY_STAY
    spared = 2
    pauses = (0, 0.3)


class TornWrites(Errors):
    """Home writes fail, and any sectors of them are done; nothing else.

    Torn pages are still in the stage, so no read meets them, and there is no error.
    """

    kinds = (("tornwrite", "base/", errno.EIO),)
    alarming = ("XX",)


class HalfWrites(Errors):
    """A home write of a young relation stops half-way, and the relation goes away.

    A drop first discards the pages of a table and of its indexes, and then truncates
    one file after the other: truncations are held, so that a sync cycle may come in
    between.  Without checkpoints, so that there are sync cycles.
    """

    def begin_life(self, life: int) -> None:
        super().begin_life(life)
        # With images to check it, the WAL of _drop_half_written() is over 2 GB, which takes more
        # than twelve minutes with wal_sync_method = open_datasync and slow syncs.
        server.write_settings(self.data, {"checkpoint_timeout": "30s", "max_wal_size": "256MB",
                                          "double_write_buffer_size": "16MB",
                                          "wal_consistency_checking": ""})

    def load(self, instance: Server) -> None:
        super().load(instance)
        if instance.alive():
            self._drop_half_written(instance)

    def _drop_half_written(self, instance):
        """Do the same once on purpose: a torn page, a drop that takes long, and a sync cycle."""
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

    def workloads(self) -> dict:
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


def _without_catalogs(kinds):
    return {kind: clients for kind, clients in kinds.items() if kind not in ("catalog", "vacuum")}


def _run(instance, statement):
    """Execute a statement on a connection of its own, whatever becomes of it."""
    with contextlib.suppress(psycopg2.Error), contextlib.closing(instance.connect()) as connection:
        connection.autocommit = True
        connection.cursor().execute(statement)


class Probed(Faulty):
    """Clients of a tablespace that nothing is done to must get on, whatever is done to others."""

    def load(self, instance: Server) -> None:
        self.probes = Probes(instance.connect, self.rng.randrange(1 << 30))
        try:
            super().load(instance)
        finally:
            self.probes.end()
            self.acks += [{"t": 0, "client": "probe", "what": "fail", "sqlstate": code, "error": text}
                          for code, text in dict.fromkeys(self.probes.errors)]

    def _must_get_on(self, what, count):
        """Wait until clients of the other tablespace have got on; it is a finding if they do not.

        Then the limit ends the server, and nothing may keep it from that.
        """
        try:
            with limit(f"{what}: no client of another tablespace gets on; this", STAND_SECONDS):
                if not self.probes.advance(count, self.server.alive):
                    self._set("clear")
        except Hang as hang:
            self.complain(str(hang))


class Frozen(Probed):
    """Changes of some files, or their syncs, do not return for a while, as in a frozen file system.

    Processes that need these files wait, and no client gets an error.  Where it is not the log
    or WAL that is frozen, clients of another tablespace go on.
    """

    # What is held
    kinds = (("freeze",), ("freezesync",), ("freeze", "freezesync"))
    pauses = (0, 0.7)
    # So long at least, in seconds; how many operations pass before; what others must do meanwhile.
    lasting = (0, 0.3, 1.5, 6)
    spared = (0, 0, 3, 20)
    wanted = (1, 10, 100)
    own_files = ("pg_doublewrite/", "pg_wal/")
    own_share = 0.15

    # VACUUM FULL and REINDEX of catalogs hold locks that all sessions need while they write.
    def workloads(self) -> Mapping[str, int]:
        return _without_catalogs(self.plan.kinds)

    def _fail(self, stop, kinds):
        rng = random.Random(self.rng.randrange(1 << 30))
        places = ["base/", "base/5/", *self._tablespaces()]
        while not stop.wait(rng.uniform(*self.pauses)):
            own = rng.random() < self.own_share
            self._freeze(rng, rng.choice(kinds), rng.choice(self.own_files if own else places),
                         not own and self._others_go_on())

    def _tablespaces(self):
        """Return the directories of the tablespaces that the load uses."""
        oids = self.server.query("SELECT string_agg(oid::text, ' ') FROM pg_tablespace"
                                 " WHERE spcname LIKE 'load_kept_%'").split()
        return [f"{SPACES if (self.data / SPACES / oid).exists() else 'pg_tblspc'}/{oid}/"
                for oid in oids]

    def _others_go_on(self):
        """Say whether others go on: not if all atomic writes are held."""
        return self.plan.settings[MODE] != "atomic_writes"

    def _freeze(self, rng, operations, where, others_go_on):
        """Freeze files for a while, and until others have got on."""
        for operation in operations:
            self._set(f"{operation}:{where}:{rng.choice(self.spared)}:{STAYS}:1")
        try:
            time.sleep(rng.choice(self.lasting))
            if others_go_on:
                self._must_get_on(f"{where} is frozen ({', '.join(operations)})",
                                  rng.choice(self.wanted))
        finally:
            self._set("clear")


class Quota(Probed):
    """The log cannot grow any more, for a while or for good.

    If there is a second segment, a sync cycle frees the first one.  That is a mere delay: no
    client gets an error, and all go on.
    """

    kinds = ((0.3, 2), (2, 6), (60, 60))    # how long, in seconds, or as long as there is load
    pauses = (0, 0.5)
    segments = 2
    wanted = (5, 20, 50)

    # A checkpoint each second would free the log before it has to grow.
    def workloads(self) -> dict:
        return {kind: clients for kind, clients in self.plan.kinds.items() if kind != "checkpoint"}

    def _fail(self, stop, kinds):
        rng = random.Random(self.rng.randrange(1 << 30))
        while not stop.wait(rng.uniform(*self.pauses)):
            if self._segments() < self.segments:
                continue
            self._set(f"grow:pg_doublewrite:0:{STAYS}:{errno.EDQUOT}")
            stop.wait(rng.uniform(*rng.choice(kinds)))
            self._must_get_on("the log has no more space", rng.choice(self.wanted))
            self._set("clear")

    def _segments(self):
        """Return how many segments the log has."""
        return len(list((self.data / "pg_doublewrite").glob("[0-9A-F]*")))


class FailingUnlinks(Faulty):
    """Files and directories cannot be removed at times, above all while there is a checkpoint.

    The server goes on: a checkpoint that must not complete fails, and the next one does.
    """

    alarming = ()
    kinds = tuple((where, code) for where in ("base/", "base/", "pg_tblspc/", "pg_wal/",
                                              "pg_doublewrite", "")
                  for code in (errno.EACCES, errno.EIO, errno.EBUSY))
    pauses = (0.1, 0.8)
    spared = 3

    # VACUUM FULL and REINDEX of some catalogs remove a file after commit: if that fails, PANIC, as
    # in stock.
    def workloads(self) -> Mapping[str, int]:
        return _without_catalogs(self.plan.kinds)

    def load(self, instance: Server) -> None:
        super().load(instance)
        if instance.alive():
            self._drop_in_a_checkpoint(instance)
            self._must_complete(instance)

    def _fail(self, stop, kinds):
        rng = random.Random(self.rng.randrange(1 << 30))
        while not stop.wait(rng.uniform(*self.pauses)):
            where, code = rng.choice(kinds)
            self._set(f"unlink:{where}:{rng.randrange(self.spared)}:{STAYS}:{code}")
            if rng.random() < 0.7:
                _run(self.server, "CHECKPOINT")     # which may fail
            else:
                stop.wait(rng.uniform(0, 1))
            self._set("clear")

    def _nail(self, path):
        """Let a file be neither removed nor cut: for a table that lives on that is a PANIC."""
        for operation in ("unlink", "truncate"):
            self._set(f"{operation}:{path}:0:{STAYS}:{errno.EACCES}")

    def _drop_in_a_checkpoint(self, instance):
        """Do the same once on purpose: a table is dropped whose pages a checkpoint has not written.

        It has changed before the redo pointer, and goes on changing after it.
        """
        with contextlib.closing(instance.connect()) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            path = _made(cursor, "victim", 2000)
            cursor.execute("CHECKPOINT")
            cursor.execute("UPDATE victim SET b = 'changed' WHERE a % 3 = 0")
            self._set(f"freeze:pg_doublewrite/:0:{STAYS}:1")
            checkpoint = threading.Thread(target=_run, args=(instance, "CHECKPOINT"))
            checkpoint.start()
            # Without the log nothing is held: then it is like any other drop.
            while checkpoint.is_alive() and not _is_held_by_the_log(cursor):
                time.sleep(0.01)
            cursor.execute("UPDATE victim SET b = 'again' WHERE a % 3 = 1")
            self._nail(path)
            cursor.execute("DROP TABLE victim")
            self._set("clear")
            self._nail(path)
            checkpoint.join()
        self._set("clear")

    def _must_complete(self, instance):
        """Ask for a checkpoint, which must complete, as nothing fails any more."""
        try:
            with contextlib.closing(instance.connect()) as connection:
                connection.autocommit = True
                connection.cursor().execute("CHECKPOINT")
        except psycopg2.Error as error:
            self.complain("a checkpoint fails though files can be removed again: "
                          + " ".join(str(error).split()))


def _is_held_by_the_log(cursor):
    """Say whether the checkpointer waits for the log, or for the process that writes to it."""
    cursor.execute("SELECT wait_event LIKE 'DoubleWrite%' FROM pg_stat_activity"
                   " WHERE backend_type = 'checkpointer'")
    return cursor.fetchone()[0]
