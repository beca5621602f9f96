"""A table of the load: its definition, and the rows that it must have."""

import io
import random
import zlib
from collections.abc import Iterable
from typing import Any

import psycopg2

# Values of column v; oracle.probes cuts this range into keys.
VALUES = 1_000_000

# Columns that serve the access methods; all follow from v.
DERIVED = {
    "arr": "int[] GENERATED ALWAYS AS (ARRAY[(v % 20)::int, (v / 20 % 20)::int]) STORED",
    "p": "point GENERATED ALWAYS AS"
         " (point((v % 1000)::float8, (v / 1000 % 1000)::float8)) STORED",
}

# Indexed column and options by access method.
METHODS = {
    "btree": ("v", ""),
    "hash": ("v", ""),
    "gin": ("arr", "WITH (gin_pending_list_limit = 64)"),
    "gist": ("p", ""),
    "spgist": ("p", ""),
    "brin": ("v", "WITH (pages_per_range = 2, autosummarize = off)"),
}


def copy_in(cursor: Any, target: Any, rows: Any) -> None:
    """COPY rows into a table; raises what psycopg2 should if that fails.

    If the server reports another error, or goes, after the one that ends the COPY, psycopg2
    trips over the first while it makes the second, and raises a SystemError about that.
    """
    try:
        cursor.copy_expert(f"COPY {target} FROM STDIN", io.StringIO(rows))
    except SystemError as error:
        if isinstance(error.__cause__, psycopg2.Error):
            raise error.__cause__ from None
        raise


class Table:
    """A table of one client: its definition, and the rows it must have."""

    def __init__(self, name: str, *, size: int = 60, body: int = 60, derived: Iterable[str] = (),
                 methods: Any = (), limit: Any = None, options: Any = "", unlogged: bool = False,
                 values: Any = VALUES) -> None:
        """Describe a table that starts with `size` rows, and is to stay below `limit`.

        Its column v has so many different `values`.
        """
        self.name = name
        self.size = size
        self.limit = limit or 3 * size
        self.body = body
        self.derived = tuple(dict.fromkeys(
            [*derived, *(METHODS[m][0] for m in methods if METHODS[m][0] in DERIVED)]))
        self.methods = tuple(methods)
        self.options = options
        self.unlogged = unlogged
        self.values = values
        self.indexes = set()
        self.empty()

    def empty(self) -> None:
        """Forget all rows."""
        self.rows = {}      # id -> (v, body)
        self.sum = 0        # of their digests
        self.next_id = 1

    def put(self, rows: Any) -> None:
        """Add rows, or put them in place of older ones."""
        self.forget(rows.keys() & self.rows.keys())
        self.rows.update(rows)
        self.sum += sum(digest(key, *row) for key, row in rows.items())
        self.next_id = max(self.next_id, max(rows, default=0) + 1)

    def forget(self, keys: Any) -> None:
        """Remove rows."""
        self.sum -= sum(digest(key, *self.rows.pop(key)) for key in keys)

    def copy(self) -> "Table":
        """Return the table as it is now, to come back to after a rollback."""
        other = Table.__new__(Table)
        other.__dict__.update(self.__dict__, rows=dict(self.rows), indexes=set(self.indexes))
        return other

    def state(self) -> dict:
        """Return what the journal says about the table."""
        return {
            "rows": len(self.rows),
            "sum": self.sum,
            "unlogged": self.unlogged,
            "indexes": sorted(self.indexes),
        }

    # Each of the following changes the table and the model.

    def create(self, cursor: Any) -> None:
        """Create the table, empty, with its indexes."""
        # A short limit spares a TOAST table, and each check of it.
        kind = f"varchar({self.body})" if self.body <= 400 else "text"
        columns = "".join(f", {name} {DERIVED[name]}" for name in self.derived)
        cursor.execute(f"CREATE {'UNLOGGED ' if self.unlogged else ''}TABLE {self.name}"
                       f" (id int PRIMARY KEY, v bigint NOT NULL, body {kind} NOT NULL{columns})"
                       f" {self.options}")
        self.empty()
        self.indexes = set()
        for method in self.methods:
            self.create_index(cursor, method)

    def index_name(self, method: str) -> str:
        """Return the name of the index by an access method."""
        return f"{self.name.removeprefix('load.')}_{method}"

    def create_index(self, cursor: Any, method: str) -> None:
        """Create the index by an access method."""
        column, options = METHODS[method]
        cursor.execute(f"CREATE INDEX {self.index_name(method)} ON {self.name}"
                       f" USING {method} ({column}) {options}")
        self.indexes.add(self.index_name(method))

    def drop_index(self, cursor: Any, method: str) -> None:
        """Drop the index by an access method."""
        cursor.execute(f"DROP INDEX load.{self.index_name(method)}")
        self.indexes.remove(self.index_name(method))

    def fresh(self, rng: random.Random, count: int) -> dict:
        """Return `count` new rows."""
        first = self.next_id
        return {first + i: (rng.randrange(self.values), self.text(rng)) for i in range(count)}

    def text(self, rng: random.Random) -> str:
        """Return a body: random digits, thus incompressible, of random length."""
        return rng.randbytes(rng.randint(self.body // 4, self.body) // 2).hex()

    def insert(self, cursor: Any, rng: random.Random, count: int) -> None:
        """Insert rows with one statement."""
        rows = self.fresh(rng, count)
        cursor.execute(f"INSERT INTO {self.name} (id, v, body) VALUES " + literals(rows))
        self.put(rows)

    def load(self, cursor: Any, rng: random.Random, count: int) -> None:
        """COPY rows into the table."""
        rows = self.fresh(rng, count)
        copy_in(cursor, f"{self.name} (id, v, body)",
                "".join(f"{key}\t{v}\t{body}\n" for key, (v, body) in rows.items()))
        self.put(rows)

    def update(self, cursor: Any, rng: random.Random, count: int) -> None:
        """Update random rows; half of the time only v, which is not indexed everywhere."""
        keys = rng.sample(sorted(self.rows), min(count, len(self.rows)))
        if not keys:
            return
        keep = rng.random() < 0.5
        rows = {key: (rng.randrange(self.values), self.rows[key][1] if keep else self.text(rng))
                for key in keys}
        if keep:
            values = ", ".join(f"({key}, {v})" for key, (v, _) in rows.items())
            cursor.execute(f"UPDATE {self.name} t SET v = x.v FROM (VALUES {values}) x(id, v)"
                           " WHERE t.id = x.id")
        else:
            cursor.execute(f"UPDATE {self.name} t SET v = x.v, body = x.body"
                           f" FROM (VALUES {literals(rows)}) x(id, v, body) WHERE t.id = x.id")
        self.put(rows)

    def delete(self, cursor: Any, rng: random.Random, count: int, newest: bool = False) -> None:
        """Delete a run of rows, so that pages become empty."""
        keys = sorted(self.rows)
        last = max(0, len(keys) - count)
        first = last if newest else rng.randrange(last + 1)
        gone = keys[first:first + count]
        if gone:
            cursor.execute(f"DELETE FROM {self.name} WHERE id BETWEEN {gone[0]} AND {gone[-1]}")
            self.forget(gone)

    def truncate(self, cursor: Any) -> None:
        """Truncate the table."""
        cursor.execute(f"TRUNCATE {self.name}")
        self.empty()

    def drop(self, cursor: Any) -> None:
        """Drop the table."""
        cursor.execute(f"DROP TABLE {self.name}")

    def churn(self, cursor: Any, rng: random.Random, count: int | None = None) -> None:
        """Insert, update or delete some rows, and stay between half and limit."""
        count = count or rng.randint(1, max(2, self.size // 8))
        if len(self.rows) < self.size // 2:
            what: Any = self.insert
        elif len(self.rows) > self.limit:
            what = self.delete
            count *= 3
        else:
            what = rng.choice((self.insert, self.update, self.update, self.delete))
        what(cursor, rng, count)


def digest(key: Any, v: Any, body: str) -> int:
    """Return what oracle.digest() returns."""
    return zlib.crc32(f"{key}|{v}|{body}".encode())


def literals(rows: Any) -> str:
    """Return rows as SQL; bodies are digits only."""
    return ", ".join(f"({key}, {v}, '{body}')" for key, (v, body) in rows.items())
