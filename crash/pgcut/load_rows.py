"""Kinds of load: rows change, of tables that stay as they are."""

import zlib
from typing import Any

import psycopg2

from . import logformat, plans
from .client import Client, Run
from .table import METHODS, Table

# Numbers of large objects: beyond all that the server gives by itself.
FIRST_LARGE = 3_000_000

# Share of what is written to them that looks like headers of a log, and of how many segments
# around the newest one.
PLANTED, NEAR = 0.3, 8

# How lo_open() is told so.
READ_AND_WRITE = 0x60000


class Transfer(Client):
    """Money moves between shared accounts."""

    kind = "transfer"
    clients = 3
    accounts = None

    def step(self) -> None:
        """Make one transfer, sometimes with a part that is undone."""
        rng = self.rng
        if self.accounts is None:
            self.accounts = self.query("SELECT oracle.accounts()")[0][0]
        src, dst = rng.sample(range(1, self.accounts + 1), 2)
        amount = rng.randint(1, 100)
        with self.transaction({"transfer": [src, dst, amount]}) as cursor:
            if rng.random() < 0.1:
                cursor.execute("SAVEPOINT s")
                cursor.execute("UPDATE load.accounts SET balance = 0 WHERE id = %s",
                               (min(src, dst),))
                cursor.execute("ROLLBACK TO s")
            # Lower id first, so that transfers do not deadlock.
            for key, change in sorted(((src, -amount), (dst, amount))):
                cursor.execute("UPDATE load.accounts SET balance = balance + %s WHERE id = %s",
                               (change, key))
            cursor.execute("INSERT INTO load.history VALUES (%s, %s, %s, %s, %s)",
                           (self.name, self.n + 1, src, dst, amount))

    def look(self) -> None:
        """Count what all accounts hold, by each plan."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("BEGIN")
                for text in plans.disagreements_of_accounts(cursor):
                    self.record("complaint", text=text)
                cursor.execute("COMMIT")
        except psycopg2.Error as error:
            self.failed(error)


class Method(Client):
    """Each access method under inserts, updates and deletes."""

    kind = "method"
    tables = tuple(Table(method, size=250, limit=400, methods=(method,))
                   for method in sorted(METHODS))

    def step(self) -> None:
        """Change rows; sometimes let VACUUM clean the index."""
        table = self.any_table()
        with self.transaction() as cursor:
            table.churn(cursor, self.rng, self.rng.randint(1, 60))
        if self.rng.random() < 0.1:
            self.command(f"VACUUM (INDEX_CLEANUP on) {table.name}")
        if self.rng.random() < 0.1:
            self.query("SELECT brin_summarize_new_values"
                       f"('{self.prefix}brin_brin')")


class Chains(Client):
    """A hash index of few buckets in use, each with overflow pages, and VACUUM of it.

    Its records refer to a bucket's first page, without an image, to change others.
    Most of the time only the newest rows change, whose entries are in the others.
    """

    kind = "chains"
    tables = (Table("hash", size=2600, limit=3600, body=20, methods=("hash",), values=5),)

    def step(self) -> None:
        """Remove rows, from the index as well, and insert others; at times change any."""
        table, count = self.any_table(), self.rng.randint(1, 100)
        with self.transaction() as cursor:
            if self.rng.random() < 0.2:
                table.churn(cursor, self.rng, count)
            else:
                table.delete(cursor, self.rng, count, newest=True)
        self.command(f"VACUUM (INDEX_CLEANUP on) {table.name}")
        table = self.any_table()    # as it was before, if that was rolled back
        with self.transaction() as cursor:
            table.insert(cursor, self.rng, max(1, min(count, table.limit - len(table.rows))))


class Hint(Client):
    """Scans that set hint bits and nothing else.

    Some look at tables of which most have been left alone for a while: if a checkpoint has
    come in between, their pages differ from those at home by hints only.
    """

    kind = "hint"
    resting = tuple(f"resting_{number}" for number in range(5))
    tables = (Table("t", size=600, limit=900, body=200),
              *(Table(name, size=300, limit=500, body=200) for name in resting))
    aborts = 0.4

    def step(self) -> None:
        """Commit or roll back some rows, and look at all of them; or do one of these."""
        if self.rng.random() < 0.4:
            self._change("t", 100)
            self._look("t")
        elif self.rng.random() < 0.5:
            self._change(self.rng.choice(self.resting), 300)
        else:
            self._look(*self.resting)

    def _change(self, name, limit):
        with self.transaction() as cursor:
            self.table(name).churn(cursor, self.rng, self.rng.randint(1, limit))

    def _look(self, *names):
        counts = (f"(SELECT count(*) FROM {self.table(name).name})" for name in names)
        self.query(f"SELECT {', '.join(counts)}")


class Toast(Client):
    """Values that are stored out of line."""

    kind = "toast"
    tables = (Table("t", size=12, body=16000),)

    def step(self) -> None:
        """Change some rows."""
        with self.transaction() as cursor:
            self.table("t").churn(cursor, self.rng, self.rng.randint(1, 3))


class Scan(Client):
    """Scans of a table larger than shared_buffers, with a change here and there."""

    kind = "scan"
    tables = (Table("t", size=1200, limit=1300, body=1800),)

    def step(self) -> None:
        """Dirty some pages, then push them out."""
        table = self.table("t")
        with self.transaction() as cursor:
            table.update(cursor, self.rng, self.rng.randint(1, 10))
        self.query(f"SELECT count(*), sum(v) FROM {table.name}")


class Multixact(Client):
    """Rows that a transaction and those within it lock and change, so that many hold them."""

    kind = "multixact"
    tables = (Table("t", size=150, limit=300, methods=("btree",)),)

    def step(self) -> None:
        """Lock some rows; lock or change some of them again, in a transaction below or without effect."""
        rng = self.rng
        with self.transaction() as cursor:
            self._lock(cursor)
            for _ in range(rng.randint(1, 3)):
                before = self.table("t").copy()
                cursor.execute("SAVEPOINT s")
                if rng.random() < 0.3:
                    self._lock(cursor)
                else:
                    self.table("t").churn(cursor, rng)
                if rng.random() < 0.3:
                    cursor.execute("ROLLBACK TO s")
                    self.model[before.name] = before
        if rng.random() < 0.1:
            self.command(f"VACUUM (FREEZE) {self.table('t').name}")

    def _lock(self, cursor):
        how = self.rng.choice(("KEY SHARE", "SHARE", "NO KEY UPDATE"))
        cursor.execute(f"SELECT FROM {self.table('t').name}"
                       f" WHERE id % 4 = {self.rng.randrange(4)} FOR {how}")


class Large(Client):
    """Large objects, which live in a catalog.

    Some hold what looks like headers of the double-write log, where copies of their pages go.
    """

    kind = "large"
    system, segments = 0, (1,)

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(run, number)
        self.objects = {}       # number -> bytes
        self.numbers = range(FIRST_LARGE + 10 * number, FIRST_LARGE + 10 * number + 6)

    def step(self) -> None:
        """Make one, or change or remove it."""
        rng = self.rng
        with self.transaction() as cursor:
            number = rng.choice(self.numbers)
            held, what = self.objects.get(number), rng.random()
            length = rng.randint(1, 9000)
            piece = logformat.planted(rng, self.system, self.segments, length) \
                if rng.random() < PLANTED else rng.randbytes(length)
            if held is None:
                cursor.execute("SELECT lo_from_bytea(%s, %s)", (number, piece))
                self.objects[number] = piece
            elif what < 0.2:
                cursor.execute("SELECT lo_unlink(%s)", (number,))
                del self.objects[number]
            elif what < 0.4:
                length = rng.randint(0, len(held))
                cursor.execute("SELECT lo_truncate(lo_open(%s, %s), %s)",
                               (number, READ_AND_WRITE, length))
                self.objects[number] = held[:length]
            else:
                at = rng.randint(0, len(held))
                cursor.execute("SELECT lo_put(%s, %s, %s)", (number, at, piece))
                self.objects[number] = held[:at] + piece + held[at + len(piece):]

    def connect(self) -> Any:
        """Learn which segments the log has and may come to, if there is one."""
        known = super().connect()
        self.system, newest = self.query(
            "SELECT system_identifier, (SELECT max(name) FROM pg_ls_dir('pg_doublewrite', true, false)"
            " name WHERE name ~ '^[0-9A-F]{16}$') FROM pg_control_system()")[0]
        newest = int(newest or "1", 16)
        self.segments = range(max(1, newest - NEAR), newest + NEAR)
        return known

    def save(self) -> tuple:
        return super().save(), dict(self.objects)

    def restore(self, saved: Any) -> None:
        rest, self.objects = saved
        super().restore(rest)

    def state(self, extra: Any = None) -> dict:
        return {**super().state(extra), "large": {
            str(number): [len(held), zlib.crc32(held)] for number, held in self.objects.items()}}

    def resume(self, cursor: Any, state: Any) -> None:
        super().resume(cursor, state)
        for number, told in state.get("large", {}).items():
            cursor.execute("SELECT lo_get(%s)", (int(number),))
            self.objects[int(number)] = held = bytes(cursor.fetchone()[0])
            if told != [len(held), zlib.crc32(held)]:
                self.record("complaint", text=f"large object {number} after {self.n}: found"
                            f" {len(held)} bytes, not {told[0]}, or others")
