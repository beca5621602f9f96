"""Clients of the load, which know what must survive.

A *client* is a thread with one connection.  It numbers its transactions 1, 2,
3, ...; each adds a row to oracle.journal with the state of the client's
objects as its own model says it must be (see oracle.sql).  What the client was
told, and when, goes into the list of *acks*; oracle.py makes an expectation
for any moment of it.

A new kind of load is a subclass of Client with a `kind`, its tables, and a
step(), in one of the modules load_*.py; it enters workload.KINDS by itself.  A
step does one of

    with self.transaction() as cursor:       # numbered and journaled
        self.table("t").churn(cursor, self.rng)
    self.command("VACUUM load.t")            # outside of transactions

Everything random is drawn from the client's own generator, thus a seed gives
the same statements; how clients interleave is up to the server.

Events, besides issue, ack and fail as in the journal's numbers (an ack that is "lazy"
promises nothing, until a later one of the same client does):
    begin, end   a command or transaction that may create files was under way;
                 "failed" if it did not commit, "paths" that it removes
    prepare, prepared, decide, finished
                 the phases of a prepared transaction
    effect       a database or tablespace is about to appear or to vanish, or
                 has done so: "object", "name", "present", "done"
    touch        a database is going to be written to
    mode         how pages are protected from here on
    resumed      what a run has found when it began: "clients" and their numbers,
                 "prepared" transactions, "databases" and "tablespaces"; "lazy" if it
                 looked at a primary, of which the recorded standby may lack something
    complaint    what it found was wrong: "text"
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2

from . import plans
from .limits import SLOWNESS
from .table import Table

# Share of steps after which a client looks at what it has.
LOOKS = 0.1

# Share of transactions that do not wait for WAL, of clients that make no files.
LAZY = 0.1

# A statement that takes longer goes round in an index that is broken, or waits for ever.  Well
# below primary.HANG_SECONDS: then it is known which one did.
STATEMENT_SECONDS = 90 * SLOWNESS

# If no transaction is acknowledged in the time of a run, as on a slow machine, the run goes on
# for at most this many times as long.
PATIENCE = 20


class ServerGone(Exception):
    """The connection is lost; what was not acknowledged may have happened."""


class Recorder:
    """The acks of all clients, in order; `sink` gets each one at once."""

    def __init__(self, sink: Any = None) -> None:
        """Start with nothing."""
        self.acks = []
        self.promised = False       # a commit was acknowledged
        self.sink = sink
        self.lock = threading.Lock()

    def __call__(self, client: Any, what: str, **details: Any) -> dict:
        """Record an event now, and return it."""
        with self.lock:
            event = {"t": time.monotonic_ns(), "client": client, "what": what, **details}
            self.acks.append(event)
            self.promised |= what == "ack"
            if self.sink is not None:
                self.sink(event)
        return event


class Run:
    """What the clients of one run share."""

    def __init__(self, connect: Callable[..., Any], seed: int, *, seconds: float | None = None,
                 transactions: int | None = None, modes: Sequence[str] = (), sink: Any = None,
                 probe: Any = None) -> None:
        """Make a run that has not begun."""
        self.connect = connect
        self.seed = seed
        self.record = Recorder(sink)
        self.seconds = seconds
        self.started = None         # when the clients were there
        self.transactions = transactions
        self.modes = list(modes or ())
        self.probe = probe          # is called with a session that has survived an error
        self.stop = threading.Event()
        self.errors = []
        self.working = 0            # clients with steps to do, under record.lock

    def begin(self) -> None:
        """Start the clock."""
        self.started = time.monotonic()

    def over(self) -> bool:
        """Say whether clients must end."""
        if self.stop.is_set() or self.seconds is None or self.started is None:
            return self.stop.is_set()
        passed = time.monotonic() - self.started
        return passed >= self.seconds * (1 if self.record.promised else PATIENCE)


class Client:
    """One client.  Subclasses say what it does."""

    kind: str = None         # its name in KINDS; without it, a base class
    clients = 1         # how many there are unless the caller says otherwise
    tables: tuple[Table, ...] = ()         # Tables that exist from the start, named without "load.<client>_"
    background = False  # runs until the others have done their transactions
    files = False       # its transactions may create files
    aborts = 0.1        # share of transactions that are rolled back on purpose
    pause = 0           # seconds between steps, at most

    def __init__(self, run: Run, number: int) -> None:
        """Make client `number` of its kind."""
        self.run = run
        self.name = f"{self.kind}-{number}"
        self.prefix = f"load.{self.kind}_{number}_"
        self.rng = random.Random(f"{run.seed}/{self.name}")
        self.n = 0
        self.model = {}         # name -> Table
        self.sequences = {}     # name -> highest value used
        self.effects = 0
        self.connection: Any = None

    # For subclasses.

    def step(self) -> None:
        """Do something, of the length of a transaction or so."""
        raise NotImplementedError

    def setup(self, cursor: Any) -> None:
        """Create what exists from the start, in transaction 1."""
        for table in self.tables:
            mine = table.copy()
            mine.name = self.prefix + table.name
            self.add(cursor, mine)

    def add(self, cursor: Any, table: Any) -> None:
        """Create a table and load its first rows."""
        table.create(cursor)
        self.model[table.name] = table
        table.load(cursor, self.rng, table.size)

    def remove(self, cursor: Any, table: Any) -> None:
        """Drop a table."""
        table.drop(cursor)
        del self.model[table.name]

    def table(self, name: str) -> Any:
        """Return a table by its short name, None if it does not exist now."""
        return self.model.get(self.prefix + name)

    def any_table(self) -> Table:
        """Return one of the client's tables."""
        return self.model[self.rng.choice(sorted(self.model))]

    @contextmanager
    def transaction(self, extra: Any = None, deliberate: bool = True) -> Iterator[Any]:
        """Run a numbered transaction, which journals the model as it is at the end.

        A server error ends the transaction and is recorded, not raised.  Now and
        then the transaction is rolled back although all went well.
        """
        before = self.save()
        abort = deliberate and self.rng.random() < self.aborts
        lazy = deliberate and not self.files and self.rng.random() < LAZY
        n = self.n + 1
        begun = self.begin()
        if not abort:
            self.record("issue", n=n)
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("BEGIN")
                if lazy:
                    cursor.execute("SET LOCAL synchronous_commit = off")
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
            self.record("ack", n=n, **({"lazy": True} if lazy else {}))
        self.end(begun, failed=abort)

    def command(self, sql: str, files: Any = True, paths: Any = ()) -> bool:
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

    def effect(self, sql: str, thing: str, name: str, present: bool, paths: Any = (),
               **details: Any) -> bool:
        """Run a command that makes a database or tablespace appear or vanish."""
        self.record("effect", object=thing, name=name, present=present, done=False, **details)
        worked = self.command(sql, paths=paths)
        if worked:
            self.record("effect", object=thing, name=name, present=present, done=True, **details)
        return worked

    def query(self, sql: str) -> list:
        """Return the rows of a query, [] after an error."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall()
        except psycopg2.Error as error:
            self.failed(error)
            return []

    def places(self) -> list[str]:
        """Return the tablespaces that are there from beginning to end."""
        return ["pg_default", *(name for (name,) in self.query(
            "SELECT spcname FROM pg_tablespace WHERE spcname LIKE 'load_kept_%' ORDER BY 1"))]

    def look(self) -> None:
        """Read one of the client's tables by every plan, and by its indexes, while others work.

        No other client changes it, so all must agree with the model.
        """
        if not self.model:
            return
        table = self.any_table()
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("BEGIN")
                found = list(plans.disagreements(cursor, table.name, len(table.rows), table.sum))
                cursor.execute("SELECT oracle.probe(indexrelid) FROM pg_index"
                               " WHERE indrelid = %s::regclass AND NOT indisprimary", (table.name,))
                found += [text for (text,) in cursor if text]
                cursor.execute("COMMIT")
        except psycopg2.Error as error:
            self.failed(error)
            return
        for text in found:
            self.record("complaint", text=f"{table.name} after {self.n}, while in use: {text}")

    # The machinery.

    def record(self, what: str, **details: Any) -> dict:
        """Record an event of this client."""
        return self.run.record(self.name, what, **details)

    def begin(self, files: Any = True, paths: Any = ()) -> Any:
        """Note that files may be created from now on."""
        if not (files and self.files):
            return None
        self.effects += 1
        self.record("begin", effect=self.effects, **({"paths": list(paths)} if paths else {}))
        return self.effects

    def end(self, begun: Any, failed: Any = False) -> None:
        """Note the end of what begin() has noted."""
        if begun is not None:
            self.record("end", effect=begun, **({"failed": True} if failed else {}))

    def failed(self, error: Any, n: int | None = None, begun: Any = None) -> None:
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
        if isinstance(error, psycopg2.errors.QueryCanceled):
            self.record("complaint", text=f"after {self.n}: did not end: {message}")
        self.record("fail", error=message, sqlstate=error.pgcode or "",
                    **({} if n is None else {"n": n}), **({"unknown": True} if gone else {}))
        if gone:
            raise ServerGone(message)
        self.end(begun, failed=True)

    def save(self) -> tuple:
        """Return the model, to come back to it."""
        return {name: table.copy() for name, table in self.model.items()}, dict(self.sequences)

    def restore(self, saved: Any) -> None:
        """Come back to a saved model."""
        self.model, self.sequences = saved

    def state(self, extra: Any = None) -> Any:
        """Return what the journal must say."""
        state = dict(extra or {})
        if self.model:
            state["tables"] = {name: table.state() for name, table in self.model.items()}
        if self.sequences:
            state["sequences"] = dict(self.sequences)
        return state

    def connect(self) -> bool:
        """Connect, and take up where the journal says this client is."""
        self.connection = self.run.connect("postgres")
        self.connection.autocommit = True
        with self.connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = %s", (round(STATEMENT_SECONDS * 1000),))
            cursor.execute("SELECT n, state FROM oracle.now WHERE client = %s", (self.name,))
            found = cursor.fetchone()
            if found is None:
                return False
            self.n, state = found
            self.resume(cursor, state)
        return True

    def resume(self, cursor: Any, state: Any) -> None:
        """Make the model from the last state in the journal, and from what the tables hold."""
        self.sequences = state.get("sequences", {})
        shapes = {self.prefix + table.name: table for table in self.tables}
        for name, told in state.get("tables", {}).items():
            table = shapes.get(name, self.shape(name.removeprefix(self.prefix))).copy()
            table.name = name
            table.unlogged = told["unlogged"]
            table.indexes = set(told["indexes"])
            cursor.execute(f"SELECT id, v, body FROM {name}")
            # No id is NULL but in a torn page: then the count tells.
            table.put({key: (v, body) for key, v, body in cursor if key is not None})
            self.model[name] = table
            if (told["rows"], told["sum"]) != (len(table.rows), table.sum) and \
                    not (table.unlogged and not table.rows):
                # From here on the model would agree with what is wrong.
                self.record("complaint", text=f"{name} after {self.n}: found"
                            f" {len(table.rows)} rows, not {told['rows']}, or others")

    def try_connect(self) -> bool:
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

    def shape(self, short: str) -> Table:
        """Return a Table like those that step() creates under a short name."""
        return Table(short)

    def prepare(self) -> None:
        """Make transaction 1, unless the journal has it."""
        if not self.connect():
            with self.transaction(deliberate=False) as cursor:
                self.setup(cursor)
            if self.n != 1:
                raise RuntimeError(f"{self.name}: {self.run.record.acks[-1]}")

    def work(self) -> None:
        """Run steps until the run is over."""
        left = self.run.transactions
        if self.background:
            left = None
        try:
            while not self.run.over() and left != 0:
                self.step()
                if self.rng.random() < LOOKS:
                    self.look()
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
