"""Load for the power-cut explorer, by clients that know what must survive.

A *client* is a thread with one connection.  It numbers its transactions 1, 2,
3, ...; each adds a row to oracle.journal with the state of the client's
objects as its own model says it must be (see oracle.sql).  What the client was
told, and when, goes into the list of *acks*; oracle.py makes an expectation
for any moment of it.

A new kind of load is a subclass of Client with a `kind`, its tables, and a
step(); it enters KINDS by itself.  A step does one of

    with self.transaction() as cursor:       # numbered and journaled
        self.table("t").churn(cursor, self.rng)
    self.command("VACUUM load.t")            # outside of transactions

Everything random is drawn from the client's own generator, thus a seed gives
the same statements; how clients interleave is up to the server.

Events, besides issue, ack and fail as in the journal's numbers:
    begin, end   a command or transaction that may create files was under way;
                 "failed" if it did not commit, "paths" that it removes
    prepare, prepared, decide, finished
                 the phases of a prepared transaction
    effect       a database or tablespace is about to appear or to vanish, or
                 has done so: "object", "name", "present", "done"
    touch        a database is going to be written to
    mode         how pages are protected from here on
    resumed      what a run has found when it began: "clients" and their numbers,
                 "prepared" transactions, "databases" and "tablespaces"
    complaint    what it found was wrong: "text"
"""

import io
import json
import random
import threading
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import psycopg2

SQL = Path(__file__).with_name("oracle.sql")

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


class ServerGone(Exception):
    """The connection is lost; what was not acknowledged may have happened."""


class Table:
    """A table of one client: its definition, and the rows it must have."""

    def __init__(self, name, *, size=60, body=60, derived=(), methods=(), limit=None,
                 options="", unlogged=False, values=VALUES):
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

    def empty(self):
        """Forget all rows."""
        self.rows = {}      # id -> (v, body)
        self.sum = 0        # of their digests
        self.next_id = 1

    def put(self, rows):
        """Add rows, or put them in place of older ones."""
        self.forget(rows.keys() & self.rows.keys())
        self.rows.update(rows)
        self.sum += sum(digest(key, *row) for key, row in rows.items())
        self.next_id = max(self.next_id, max(rows, default=0) + 1)

    def forget(self, keys):
        """Remove rows."""
        self.sum -= sum(digest(key, *self.rows.pop(key)) for key in keys)

    def copy(self):
        """Return the table as it is now, to come back to after a rollback."""
        other = Table.__new__(Table)
        other.__dict__.update(self.__dict__, rows=dict(self.rows), indexes=set(self.indexes))
        return other

    def state(self):
        """Return what the journal says about the table."""
        return {
            "rows": len(self.rows),
            "sum": self.sum,
            "unlogged": self.unlogged,
            "indexes": sorted(self.indexes),
        }

    # Each of the following changes the table and the model.

    def create(self, cursor):
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

    def index_name(self, method):
        """Return the name of the index by an access method."""
        return f"{self.name.removeprefix('load.')}_{method}"

    def create_index(self, cursor, method):
        """Create the index by an access method."""
        column, options = METHODS[method]
        cursor.execute(f"CREATE INDEX {self.index_name(method)} ON {self.name}"
                       f" USING {method} ({column}) {options}")
        self.indexes.add(self.index_name(method))

    def drop_index(self, cursor, method):
        """Drop the index by an access method."""
        cursor.execute(f"DROP INDEX load.{self.index_name(method)}")
        self.indexes.remove(self.index_name(method))

    def fresh(self, rng, count):
        """Return `count` new rows."""
        first = self.next_id
        return {first + i: (rng.randrange(self.values), self.text(rng)) for i in range(count)}

    def text(self, rng):
        """Return a body: random digits, thus incompressible, of random length."""
        return rng.randbytes(rng.randint(self.body // 4, self.body) // 2).hex()

    def insert(self, cursor, rng, count):
        """Insert rows with one statement."""
        rows = self.fresh(rng, count)
        cursor.execute(f"INSERT INTO {self.name} (id, v, body) VALUES " + literals(rows))
        self.put(rows)

    def load(self, cursor, rng, count):
        """COPY rows into the table."""
        rows = self.fresh(rng, count)
        data = io.StringIO("".join(f"{key}\t{v}\t{body}\n" for key, (v, body) in rows.items()))
        cursor.copy_expert(f"COPY {self.name} (id, v, body) FROM STDIN", data)
        self.put(rows)

    def update(self, cursor, rng, count):
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

    def delete(self, cursor, rng, count, newest=False):
        """Delete a run of rows, so that pages become empty."""
        keys = sorted(self.rows)
        last = max(0, len(keys) - count)
        first = last if newest else rng.randrange(last + 1)
        gone = keys[first:first + count]
        if gone:
            cursor.execute(f"DELETE FROM {self.name} WHERE id BETWEEN {gone[0]} AND {gone[-1]}")
            self.forget(gone)

    def truncate(self, cursor):
        """Truncate the table."""
        cursor.execute(f"TRUNCATE {self.name}")
        self.empty()

    def drop(self, cursor):
        """Drop the table."""
        cursor.execute(f"DROP TABLE {self.name}")

    def churn(self, cursor, rng, count=None):
        """Insert, update or delete some rows, and stay between half and limit."""
        count = count or rng.randint(1, max(2, self.size // 8))
        if len(self.rows) < self.size // 2:
            what = self.insert
        elif len(self.rows) > self.limit:
            what = self.delete
            count *= 3
        else:
            what = rng.choice((self.insert, self.update, self.update, self.delete))
        what(cursor, rng, count)


def digest(key, v, body):
    """Return what oracle.digest() returns."""
    return zlib.crc32(f"{key}|{v}|{body}".encode())


def literals(rows):
    """Return rows as SQL; bodies are digits only."""
    return ", ".join(f"({key}, {v}, '{body}')" for key, (v, body) in rows.items())


class Recorder:
    """The acks of all clients, in order; `sink` gets each one at once."""

    def __init__(self, sink=None):
        """Start with nothing."""
        self.acks = []
        self.sink = sink
        self.lock = threading.Lock()

    def __call__(self, client, what, **details):
        """Record an event now, and return it."""
        with self.lock:
            event = {"t": time.monotonic_ns(), "client": client, "what": what, **details}
            self.acks.append(event)
            if self.sink is not None:
                self.sink(event)
        return event


class Run:
    """What the clients of one run share."""

    def __init__(self, connect, seed, *, seconds=None, transactions=None, modes=(), sink=None,
                 probe=None):
        """Start the clock."""
        self.connect = connect
        self.seed = seed
        self.record = Recorder(sink)
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.transactions = transactions
        self.modes = list(modes or ())
        self.probe = probe          # is called with a session that has survived an error
        self.stop = threading.Event()
        self.errors = []
        self.working = 0            # clients with steps to do, under record.lock

    def over(self):
        """Say whether clients must end."""
        return (self.stop.is_set()
                or self.deadline is not None and time.monotonic() >= self.deadline)


class Client:
    """One client.  Subclasses say what it does."""

    kind = None         # its name in KINDS; without it, a base class
    clients = 1         # how many there are unless the caller says otherwise
    tables = ()         # Tables that exist from the start, named without "load.<client>_"
    background = False  # runs until the others have done their transactions
    files = False       # its transactions may create files
    aborts = 0.1        # share of transactions that are rolled back on purpose
    pause = 0           # seconds between steps, at most

    def __init__(self, run, number):
        """Make client `number` of its kind."""
        self.run = run
        self.name = f"{self.kind}-{number}"
        self.prefix = f"load.{self.kind}_{number}_"
        self.rng = random.Random(f"{run.seed}/{self.name}")
        self.n = 0
        self.model = {}         # name -> Table
        self.sequences = {}     # name -> highest value used
        self.effects = 0
        self.connection = None

    # For subclasses.

    def step(self):
        """Do something, of the length of a transaction or so."""
        raise NotImplementedError

    def setup(self, cursor):
        """Create what exists from the start, in transaction 1."""
        for table in self.tables:
            mine = table.copy()
            mine.name = self.prefix + table.name
            self.add(cursor, mine)

    def add(self, cursor, table):
        """Create a table and load its first rows."""
        table.create(cursor)
        self.model[table.name] = table
        table.load(cursor, self.rng, table.size)

    def remove(self, cursor, table):
        """Drop a table."""
        table.drop(cursor)
        del self.model[table.name]

    def table(self, name):
        """Return a table by its short name, None if it does not exist now."""
        return self.model.get(self.prefix + name)

    def any_table(self):
        """Return one of the client's tables."""
        return self.model[self.rng.choice(sorted(self.model))]

    @contextmanager
    def transaction(self, extra=None, deliberate=True):
        """Run a numbered transaction, which journals the model as it is at the end.

        A server error ends the transaction and is recorded, not raised.  Now and
        then the transaction is rolled back although all went well.
        """
        before = self.save()
        abort = deliberate and self.rng.random() < self.aborts
        n = self.n + 1
        begun = self.begin()
        if not abort:
            self.record("issue", n=n)
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("BEGIN")
                yield cursor
                cursor.execute("INSERT INTO oracle.journal VALUES (%s, %s, %s)",
                               (self.name, n, json.dumps(self.state(extra))))
                cursor.execute("ROLLBACK" if abort else "COMMIT")
                if not abort and cursor.statusmessage != "COMMIT":
                    raise psycopg2.DatabaseError("COMMIT rolled back")
        except psycopg2.Error as error:
            self.restore(before)
            self.failed(error, n=n, begun=begun)
            return
        if abort:
            self.restore(before)
        else:
            self.n = n
            self.record("ack", n=n)
        self.end(begun, failed=abort)

    def command(self, sql, files=True, paths=()):
        """Run a command that cannot be in a transaction.  Return whether it worked."""
        begun = self.begin(files, paths)
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql)
        except psycopg2.Error as error:
            self.failed(error, begun=begun)
            return False
        self.end(begun)
        return True

    def effect(self, sql, thing, name, present, paths=(), **details):
        """Run a command that makes a database or tablespace appear or vanish."""
        self.record("effect", object=thing, name=name, present=present, done=False, **details)
        worked = self.command(sql, paths=paths)
        if worked:
            self.record("effect", object=thing, name=name, present=present, done=True, **details)
        return worked

    def query(self, sql):
        """Return the rows of a query, [] after an error."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall()
        except psycopg2.Error as error:
            self.failed(error)
            return []

    # The machinery.

    def record(self, what, **details):
        """Record an event of this client."""
        return self.run.record(self.name, what, **details)

    def begin(self, files=True, paths=()):
        """Note that files may be created from now on."""
        if not (files and self.files):
            return None
        self.effects += 1
        self.record("begin", effect=self.effects, **({"paths": list(paths)} if paths else {}))
        return self.effects

    def end(self, begun, failed=False):
        """Note the end of what begin() has noted."""
        if begun is not None:
            self.record("end", effect=begun, **({"failed": True} if failed else {}))

    def failed(self, error, n=None, begun=None):
        """Record an error; raise ServerGone if the connection did not survive it."""
        message = " ".join(str(error).split())
        gone = self.connection.closed != 0
        if not gone:
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
                if self.run.probe:
                    self.run.probe(self)
            except psycopg2.Error:
                gone = True
        self.record("fail", error=message, sqlstate=error.pgcode or "", **({} if n is None else {"n": n}),
                    **({"unknown": True} if gone else {}))
        if gone:
            raise ServerGone(message)
        self.end(begun, failed=True)

    def save(self):
        """Return the model, to come back to it."""
        return {name: table.copy() for name, table in self.model.items()}, dict(self.sequences)

    def restore(self, saved):
        """Come back to a saved model."""
        self.model, self.sequences = saved

    def state(self, extra=None):
        """Return what the journal must say."""
        state = dict(extra or {})
        if self.model:
            state["tables"] = {name: table.state() for name, table in self.model.items()}
        if self.sequences:
            state["sequences"] = dict(self.sequences)
        return state

    def connect(self):
        """Connect, and take up where the journal says this client is."""
        self.connection = self.run.connect("postgres")
        self.connection.autocommit = True
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT n, state FROM oracle.now WHERE client = %s", (self.name,))
            found = cursor.fetchone()
            if found is None:
                return False
            self.n, state = found
            self.sequences = state.get("sequences", {})
            shapes = {self.prefix + table.name: table for table in self.tables}
            for name, told in state.get("tables", {}).items():
                table = shapes.get(name, self.shape(name.removeprefix(self.prefix))).copy()
                table.name = name
                table.unlogged = told["unlogged"]
                table.indexes = set(told["indexes"])
                cursor.execute(f"SELECT id, v, body FROM {name}")
                table.put({key: (v, body) for key, v, body in cursor})
                self.model[name] = table
                if (told["rows"], told["sum"]) != (len(table.rows), table.sum) and \
                        not (table.unlogged and not table.rows):
                    # From here on the model would agree with what is wrong.
                    self.record("complaint", text=f"{name} after {self.n}: found"
                                f" {len(table.rows)} rows, not {told['rows']}, or others")
        return True

    def try_connect(self):
        """Connect for a run; return whether that worked, and record it if not."""
        try:
            if self.connect():
                return True
            self.record("complaint", text=f"the journal does not know {self.name}")
        except ServerGone:
            pass
        except psycopg2.Error as error:
            self.record("fail", error=" ".join(str(error).split()), unknown=True)
        return False

    def shape(self, short):
        """Return a Table like those that step() creates under a short name."""
        return Table(short)

    def prepare(self):
        """Make transaction 1, unless the journal has it."""
        if not self.connect():
            with self.transaction(deliberate=False) as cursor:
                self.setup(cursor)
            if self.n != 1:
                raise RuntimeError(f"{self.name}: {self.run.record.acks[-1]}")

    def work(self):
        """Run steps until the run is over."""
        left = self.run.transactions
        if self.background:
            left = None
        try:
            while not self.run.over() and left != 0:
                self.step()
                if left is not None:
                    left -= 1
                if self.pause:
                    self.run.stop.wait(self.rng.uniform(0, self.pause))
        except ServerGone:
            self.run.stop.set()
        except Exception as error:      # a bug here must not look like a quiet end
            self.run.errors.append(f"{self.name}: {type(error).__name__}: {error}")
            self.run.stop.set()
        finally:
            if not self.background:
                with self.run.record.lock:
                    self.run.working -= 1
                    if self.run.working == 0:
                        self.run.stop.set()


# Kinds of load.


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


class Copy(Client):
    """COPY into an old table, and into one of the same transaction."""

    kind = "copy"
    tables = (Table("old", limit=500),)
    files = True

    def step(self):
        """Load one or the other."""
        rng = self.rng
        with self.transaction() as cursor:
            if rng.random() < 0.6:
                old = self.table("old")
                if len(old.rows) > old.limit:
                    old.delete(cursor, rng, 400)
                old.load(cursor, rng, rng.randint(1, 300))
            elif self.table("new") is None:
                new = Table(self.prefix + "new")
                new.create(cursor)
                self.model[new.name] = new
                new.load(cursor, rng, rng.randint(1, 1000))
            else:
                self.remove(cursor, self.table("new"))


class Index(Client):
    """Indexes of every access method come and go while rows change."""

    kind = "index"
    tables = (Table("t", size=250, limit=400, derived=tuple(DERIVED)),)
    files = True

    def step(self):
        """Change rows; create, drop or rebuild an index."""
        rng = self.rng
        table = self.table("t")
        with self.transaction() as cursor:
            table.churn(cursor, rng)
            method = rng.choice(sorted(METHODS))
            if table.index_name(method) not in table.indexes:
                table.create_index(cursor, method)
            elif rng.random() < 0.5:
                cursor.execute(f"REINDEX INDEX load.{table.index_name(method)}")
            else:
                table.drop_index(cursor, method)


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


class Vacuum(Client):
    """VACUUM, FREEZE and FULL of its own tables and of the shared ones."""

    kind = "vacuum"
    tables = (Table("a", size=300), Table("b", size=300, methods=("btree",)))
    files = True

    def step(self):
        """Make dead rows, then clean up."""
        rng = self.rng
        table = self.any_table()
        with self.transaction() as cursor:
            table.churn(cursor, rng, rng.randint(20, 100))
        how = rng.choice(("", "", "(FREEZE)", "(FREEZE)", "(FULL)", "(FULL, FREEZE)"))
        name = rng.choice((table.name, table.name, table.name, "load.accounts",
                           "load.history", "oracle.journal", "pg_class", "pg_attribute"))
        if name.startswith("pg_") and "FULL" in how:
            name = table.name       # would deadlock with the other clients' DDL
        self.command(f"VACUUM {how} {name}")


class Truncate(Client):
    """TRUNCATE alone, with a load in the same transaction, and undone."""

    kind = "truncate"
    tables = (Table("t", methods=("btree",)),)
    files = True
    aborts = 0.3

    def step(self):
        """Truncate or fill."""
        rng = self.rng
        table = self.table("t")
        with self.transaction() as cursor:
            if rng.random() < 0.5:
                table.churn(cursor, rng)
            if rng.random() < 0.7:
                table.truncate(cursor)
            for _ in range(rng.randint(0, 2)):
                rng.choice((table.load, table.insert))(cursor, rng, rng.randint(1, 200))


class Refill(Client):
    """Tables that live for some checkpoints, and then go or hold less.

    Changes of their pages lie before and after a checkpoint begins, and are
    never written if the table goes in time.  A second TRUNCATE in a transaction
    cuts the same file, and what is then not filled again must stay empty.
    """

    kind = "refill"
    tables = tuple(Table(f"t{number}", size=120) for number in range(4))
    files = True
    aborts = 0.15

    def step(self):
        """Change some rows; at times begin anew; at times fill, cut and fill with less."""
        rng = self.rng
        table = self.table(f"t{rng.randrange(4)}")
        with self.transaction() as cursor:
            what = rng.random()
            if what < 0.85:
                table.churn(cursor, rng)
                return
            table.truncate(cursor)
            if what < 0.93:
                table.load(cursor, rng, rng.randint(1, 120))
                return
            table.load(cursor, rng, rng.randint(800, 1600))
            table.truncate(cursor)
            table.load(cursor, rng, rng.randint(1, 100))


class Recreate(Client):
    """DROP, and CREATE under the same name."""

    kind = "recreate"
    tables = (Table("t", methods=("hash",)),)
    files = True
    aborts = 0.2

    def step(self):
        """Drop, create, or both."""
        rng = self.rng
        with self.transaction() as cursor:
            table = self.table("t")
            if table is not None:
                self.remove(cursor, table)
            if table is None or rng.random() < 0.6:
                new = self.shape("t")
                new.name = self.prefix + "t"
                new.size = rng.randint(0, 300)
                self.add(cursor, new)

    def shape(self, short):
        """Return the table with a random index."""
        return Table(short, methods=(self.rng.choice(sorted(METHODS)),))


class Unlogged(Client):
    """Unlogged tables become logged, and back."""

    kind = "unlogged"
    tables = (Table("u", methods=("btree",), unlogged=True), Table("p", methods=("gist",)))
    files = True

    def step(self):
        """Change rows, or the persistence."""
        table = self.any_table()
        with self.transaction() as cursor:
            table.churn(cursor, self.rng, self.rng.randint(1, 40))
            if self.rng.random() < 0.4:
                table.unlogged = not table.unlogged
                cursor.execute(f"ALTER TABLE {table.name}"
                               f" SET {'UNLOGGED' if table.unlogged else 'LOGGED'}")


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


class Sequence(Client):
    """Sequences give numbers, and come and go.

    With wal_level = minimal, stock PostgreSQL forgets values after a crash if
    the transaction that created the sequence has also used it: what is made
    durable at its commit says that values are logged in advance, which they
    are not.  It is no finding of ours, thus the two are kept apart there.
    """

    kind = "sequence"
    files = True
    minimal = False

    def connect(self):
        """See whether transactions may use what they have created."""
        known = super().connect()
        self.minimal = self.query("SHOW wal_level") == [("minimal",)]
        return known

    def setup(self, cursor):
        """Create the one that stays."""
        self.take(cursor, self.prefix + "stays")

    def take(self, cursor, name):
        """Take values of a sequence, and create it for that if need be."""
        if name not in self.sequences:
            cursor.execute(f"CREATE SEQUENCE {name} CACHE {self.rng.choice((1, 1, 10))}")
            if self.minimal:
                self.sequences[name] = 0
                return
        cursor.execute(f"SELECT max(nextval('{name}'))"
                       f" FROM generate_series(1, {self.rng.randint(1, 40)})")
        self.sequences[name] = cursor.fetchone()[0]

    def step(self):
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

    def step(self):
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

    def connect(self):
        """Undo what an earlier run has left prepared; it would be in our way."""
        known = super().connect()
        for (gid,) in self.query("SELECT gid FROM pg_prepared_xacts ORDER BY 1"):
            if gid.startswith(f"{self.name}:"):
                self.decide(gid, self.n + 1, False)
        return known

    def decide(self, gid, n, commit):
        """Run the second phase; again if it fails, as nobody else will.

        Return whether it is over; if not, the run is, and nobody knows.
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


class Database(Client):
    """CREATE DATABASE by either strategy, and DROP DATABASE."""

    kind = "database"
    files = True
    pause = 1.0

    database = None     # name of the one that exists

    def connect(self):
        """Take over what an earlier run has left."""
        known = super().connect()
        for (name,) in self.query("SELECT datname FROM pg_database WHERE datname"
                                  f" LIKE 'load_{self.kind}_%'"):
            self.database = name
        return known

    def step(self):
        """Create one, use it or not, drop it the next time."""
        rng = self.rng
        if self.database is None:
            with self.transaction(deliberate=False):    # gives each database its own name
                pass
            name = f"load_{self.kind}_{self.n}"
            strategy = rng.choice(("WAL_LOG", "FILE_COPY"))
            if self.effect(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY {strategy}",
                           "database", name, True, strategy=strategy):
                self.database = name
                if rng.random() < 0.4:
                    self.use(name)
            elif self.query(f"SELECT FROM pg_database WHERE datname = '{name}'"):
                self.database = name
        else:
            name = self.database
            oid = self.query(f"SELECT oid FROM pg_database WHERE datname = '{name}'")
            paths = [f"base/{oid[0][0]}"] if oid else []
            if self.effect(f"DROP DATABASE {name} WITH (FORCE)", "database", name, False, paths):
                self.database = None

    def use(self, name):
        """Write into the database; its contents are not verified from then on."""
        self.record("touch", name=name)
        begun = self.begin()
        try:
            connection = self.run.connect(name)
            try:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute("CREATE TABLE t AS"
                                   " SELECT g AS id, repeat('x', 200) AS filler"
                                   " FROM generate_series(1, 500) g")
            finally:
                connection.close()
        except psycopg2.Error as error:
            self.failed(error, begun=begun)
            return
        self.end(begun)


class Tablespace(Client):
    """Tables and indexes move between tablespaces; tablespaces come and go."""

    kind = "tablespace"
    tables = (Table("t", size=200, methods=("btree",)),)
    files = True

    own = None      # name of the tablespace that it made itself

    def connect(self):
        """Take over what an earlier run has left."""
        known = super().connect()
        for (name,) in self.query("SELECT spcname FROM pg_tablespace WHERE spcname"
                                  " LIKE 'load_brief_%'"):
            self.own = name
        return known

    def step(self):
        """Change rows, then move something, or make and drop a tablespace."""
        rng = self.rng
        table = self.table("t")
        places = ["pg_default", *(name for (name,) in self.query(
            "SELECT spcname FROM pg_tablespace WHERE spcname LIKE 'load_kept_%' ORDER BY 1"))]
        with self.transaction() as cursor:
            table.churn(cursor, rng, rng.randint(1, 50))
            cursor.execute(f"ALTER TABLE {table.name} SET TABLESPACE {rng.choice(places)}")
            if rng.random() < 0.5:
                cursor.execute(f"ALTER INDEX load.{table.index_name('btree')}"
                               f" SET TABLESPACE {rng.choice(places)}")
        if rng.random() < 0.15:
            self.come_and_go()

    def come_and_go(self):
        """Create an in-place tablespace, or drop it."""
        if self.own is None:
            name = f"load_brief_{self.n}_{self.rng.randrange(1000)}"
            if (self.command("SET allow_in_place_tablespaces = on", files=False)
                    and self.effect(f"CREATE TABLESPACE {name} LOCATION ''",
                                    "tablespace", name, True)):
                self.own = name
        elif self.effect(f"DROP TABLESPACE {self.own}", "tablespace", self.own, False):
            self.own = None


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


class Checkpoint(Client):
    """A checkpoint every second or so."""

    kind = "checkpoint"
    background = True
    pause = 2.0

    def step(self):
        """Make a checkpoint."""
        self.command("CHECKPOINT")


class Mode(Client):
    """The protection of pages is switched by reload, among the modes allowed."""

    kind = "mode"
    background = True
    pause = 3.0

    def step(self):
        """Switch."""
        modes = self.run.modes
        if len(modes) < 2:
            self.run.stop.wait(1)
            return
        mode = self.rng.choice(modes)
        if self.command(f"ALTER SYSTEM SET io_torn_pages_protection = '{mode}'"):
            self.query("SELECT pg_reload_conf()")
            self.record("mode", mode=mode)


def subclasses(cls):
    """Return all subclasses, in the order in which they are written."""
    return [c for child in cls.__subclasses__() for c in (child, *subclasses(child))]


KINDS = {cls.kind: cls for cls in subclasses(Client) if cls.kind}


def make_clients(run, kinds):
    """Return the clients of kinds: names, or a dict of names and numbers of clients."""
    counts = kinds if isinstance(kinds, dict) else {
        kind: KINDS[kind].clients for kind in kinds or KINDS}
    return [KINDS[kind](run, number + 1)
            for kind, count in counts.items() for number in range(count)]


def prepare(connect, seed, tablespaces=(), kinds=None):
    """Make the oracle and the tables of all kinds; the cluster is not recorded yet.

    `connect(database)` returns a psycopg2 connection of a superuser.
    `tablespaces` are directories, '' for one inside the data directory.
    """
    connection = connect("postgres")
    connection.autocommit = True
    rng = random.Random(f"{seed}/prepare")
    with connection.cursor() as cursor:
        # One database less to carry along.  Copies are made from template0, to
        # which no client ever connects.
        cursor.execute("ALTER DATABASE template1 IS_TEMPLATE false")
        cursor.execute("DROP DATABASE template1")
        cursor.execute(SQL.read_text())
        cursor.execute("SET allow_in_place_tablespaces = on")
        for number, directory in enumerate(tablespaces):
            cursor.execute(f"CREATE TABLESPACE load_kept_{number} LOCATION %s", (directory,))
    run = Run(connect, rng.randrange(2**32))
    for client in make_clients(run, kinds):
        client.prepare()
        client.connection.close()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
    connection.close()


def resume(this):
    """Record what is there when a run begins; return whether PREPARE is possible.

    What was in doubt after an earlier run that was cut short is settled by now.
    """
    connection = this.connect("postgres")
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT client, n FROM oracle.now ORDER BY 1")
            clients = dict(cursor.fetchall())
            cursor.execute("SELECT gid FROM pg_prepared_xacts ORDER BY 1")
            prepared = [gid for (gid,) in cursor]
            cursor.execute("SELECT datname FROM pg_database ORDER BY 1")
            databases = [name for (name,) in cursor]
            cursor.execute("SELECT spcname FROM pg_tablespace ORDER BY 1")
            tablespaces = [name for (name,) in cursor]
            cursor.execute("SHOW max_prepared_transactions")
            possible = cursor.fetchone() != ("0",)
    finally:
        connection.close()
    this.record("", "resumed", clients=clients, prepared=prepared, databases=databases,
                tablespaces=tablespaces)
    return possible


def run(connect, kinds=None, seconds=None, transactions=None, seed=0, modes=(), sink=None,
        probe=None):
    """Run the load, and return the acks.

    With `seconds`, clients run that long; with `transactions`, each does that
    many steps; whichever ends first.  The run also ends when the server dies.
    `sink` is called with each event, `probe` with each client whose session has survived an
    error.  A bug in a client raises.
    """
    this = Run(connect, seed, seconds=seconds, transactions=transactions, modes=modes,
               sink=sink, probe=probe)
    clients = make_clients(this, kinds)
    if not resume(this):
        clients = [client for client in clients if client.kind != Prepared.kind]
    if all(client.try_connect() for client in clients):
        this.working = sum(not client.background for client in clients)
        threads = [threading.Thread(target=client.work, name=client.name)
                   for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for client in clients:
        if client.connection is not None:
            client.connection.close()
    if this.errors:
        raise RuntimeError("; ".join(this.errors))
    return this.record.acks
