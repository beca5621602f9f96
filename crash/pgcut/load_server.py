"""Kinds of load that are not about tables: sequences, two phases, checkpoints, modes."""

import json
from typing import Any

import psycopg2

from .client import Client
from .table import Table


class Sequence(Client):
    """Sequences give numbers, and come and go."""

    kind = "sequence"
    files = True

    def setup(self, cursor: Any) -> None:
        """Create the one that stays."""
        self.take(cursor, self.prefix + "stays")

    def take(self, cursor: Any, name: str) -> None:
        """Take values of a sequence, and create it for that if need be."""
        if name not in self.sequences:
            cursor.execute(f"CREATE SEQUENCE {name} CACHE {self.rng.choice((1, 1, 10))}")
        cursor.execute(f"SELECT max(nextval('{name}'))"
                       f" FROM generate_series(1, {self.rng.randint(1, 40)})")
        self.sequences[name] = cursor.fetchone()[0]

    def step(self) -> None:
        """Take values; create or drop the other sequence."""
        goes = self.prefix + "goes"
        with self.transaction() as cursor:
            self.take(cursor, self.prefix + "stays")
            if goes not in self.sequences or self.rng.random() < 0.5:
                self.take(cursor, goes)
            else:
                cursor.execute(f"DROP SEQUENCE {goes}")
                del self.sequences[goes]


class Prepared(Client):
    """Two-phase commit: both outcomes, with time between the phases."""

    kind = "prepared"
    tables = (Table("t", methods=("btree",)),)
    files = True

    def step(self) -> None:
        """Prepare a transaction, wait a little, decide."""
        before = self.save()
        n = self.n + 1
        commit = self.rng.random() < 0.7
        gid = f"{self.name}:{n}:{self.rng.randrange(1000)}"
        begun = self.begin()
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("BEGIN")
                self.table("t").churn(cursor, self.rng)
                cursor.execute("INSERT INTO oracle.journal VALUES (%s, %s, %s)",
                               (self.name, n, json.dumps(self.state())))
                self.record("prepare", n=n, gid=gid)
                cursor.execute(f"PREPARE TRANSACTION '{gid}'")
                self.record("prepared", n=n, gid=gid)
        except psycopg2.Error as error:
            self.restore(before)
            self.record("finished", n=n, gid=gid, unknown=self.connection.closed != 0)
            self.failed(error, n=n, begun=begun)
            return
        self.run.stop.wait(self.rng.uniform(0, 0.1))
        if not self.decide(gid, n, commit):
            return
        if commit:
            self.n = n
        else:
            self.restore(before)
        self.end(begun, failed=not commit)

    def connect(self) -> Any:
        """Decide what an earlier run has left prepared, then take up from there."""
        self.connection = self.run.connect("postgres")
        self.connection.autocommit = True
        for (gid,) in self.query("SELECT gid FROM pg_prepared_xacts ORDER BY 1"):
            if gid.startswith(f"{self.name}:"):
                self.decide(gid, int(gid.split(":")[1]), self.rng.random() < 0.5)
        self.connection.close()
        return super().connect()

    def decide(self, gid: str, n: int, commit: bool) -> bool:
        """Run the second phase; try again if it fails, as no other client does.

        Return whether it has ended; if not, the run has, and the outcome is unknown.
        """
        if commit:
            self.record("issue", n=n)
        self.record("decide", n=n, gid=gid, commit=commit)
        while True:
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{gid}'")
                break
            except psycopg2.Error as error:
                self.failed(error)
                if self.run.over():
                    return False
                self.run.stop.wait(0.05)
        if commit:
            self.record("ack", n=n)
        self.record("finished", n=n, gid=gid)
        return True


class Catalog(Client):
    """Catalogs are rewritten, and get new files, those included whose files only a map knows."""

    kind = "catalog"
    background = True
    files = True
    pause = 2.0

    catalogs = ("pg_class", "pg_attribute", "pg_proc", "pg_type", "pg_index", "pg_depend",
                "pg_database", "pg_shdepend", "pg_tablespace", "pg_largeobject")

    def connect(self) -> Any:
        """Give way to the other clients, which need the same locks."""
        known = super().connect()
        with self.connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '200ms'")
        return known

    def step(self) -> None:
        """Rewrite one."""
        how = self.rng.choice(("VACUUM FULL", "VACUUM FULL", "REINDEX TABLE"))
        self.command(f"{how} {self.rng.choice(self.catalogs)}")


class Checkpoint(Client):
    """A checkpoint every second or so."""

    kind = "checkpoint"
    background = True
    pause = 2.0

    def step(self) -> None:
        """Make a checkpoint."""
        self.command("CHECKPOINT")


class Mode(Client):
    """The protection of pages is switched by reload, among the modes allowed."""

    kind = "mode"
    background = True
    pause = 3.0

    def step(self) -> None:
        """Switch."""
        modes = self.run.modes
        if len(modes) < 2:
            self.run.stop.wait(1)
            return
        mode = self.rng.choice(modes)
        if self.command(f"ALTER SYSTEM SET io_torn_pages_protection = '{mode}'"):
            self.query("SELECT pg_reload_conf()")
            self.record("mode", mode=mode)
