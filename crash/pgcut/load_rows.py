"""Kinds of load: rows change, of tables that stay as they are."""

from .client import Client
from .table import METHODS, Table


class Transfer(Client):
    """Money moves between shared accounts."""

    kind = "transfer"
    clients = 3
    accounts = None

    def step(self):
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


class Method(Client):
    """Each access method under inserts, updates and deletes."""

    kind = "method"
    tables = tuple(Table(method, size=250, limit=400, methods=(method,))
                   for method in sorted(METHODS))

    def step(self):
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

    def step(self):
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
    """Scans that set hint bits and nothing else."""

    kind = "hint"
    tables = (Table("t", size=600, limit=900, body=200),)
    aborts = 0.4

    def step(self):
        """Commit or roll back some rows, then look at all of them."""
        table = self.table("t")
        with self.transaction() as cursor:
            table.churn(cursor, self.rng, self.rng.randint(1, 100))
        self.query(f"SELECT count(*) FROM {table.name}")


class Toast(Client):
    """Values that are stored out of line."""

    kind = "toast"
    tables = (Table("t", size=12, body=16000),)

    def step(self):
        """Change some rows."""
        with self.transaction() as cursor:
            self.table("t").churn(cursor, self.rng, self.rng.randint(1, 3))


class Scan(Client):
    """Scans of a table larger than shared_buffers, with a change here and there."""

    kind = "scan"
    tables = (Table("t", size=1200, limit=1300, body=1800),)

    def step(self):
        """Dirty some pages, then push them out."""
        table = self.table("t")
        with self.transaction() as cursor:
            table.update(cursor, self.rng, self.rng.randint(1, 10))
        self.query(f"SELECT count(*), sum(v) FROM {table.name}")
