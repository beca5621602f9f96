"""How a primary is recorded whose files fail at times: any kind of failure, or one kind."""

import contextlib
import errno
import os
import random
import re
import threading
import time

import psycopg2

from . import server
from .mount import set_fault
from .primary import MODE, MODES, Beside, Primary

# How long a truncation is held while a sync cycle is provoked.
HOLD_MS = 4000

# Of the errors, this share stays as long as the server lives.
STAY_SHARE, MANY_STAY, STAYS = 0.1, 0.5, 1 << 40

# A relation of this size is more likely written over than extended.
YOUNG_BYTES = 5 * 8192


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
