"""Scripts: statements and faults in an order that matters, as one step of a history.

Each works on tables of its own in the schema `scene`, of which it is only asked that all
plans give the same answer; that goes on being asked at each verdict from then on.  What is
random is drawn from the step's seed.  Nothing waits for a time to pass: a script waits until
a session is where it has to be.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2

from . import readers
from .table import copy_in

# A truncation is held for so long: a limit, in which other sessions have to do their part.
HOLD_MS = 4000
WAIT_SECONDS = 120
POLL_SECONDS = 0.01

FILLER = "scene.filler"


class ScriptError(Exception):
    """A script could not do what it is for."""


class Scene:
    """A session on a server whose files can be made to fail."""

    def __init__(self, connect: Callable[..., Any], store: Any, rng: random.Random) -> None:
        self.rng = rng
        self.complaints = []
        self._connect = connect
        self._store = store
        self._connection = connect()
        self._connection.autocommit = True
        self._beside = []
        self._faulty = False
        self.run("CREATE SCHEMA IF NOT EXISTS scene")

    def close(self) -> None:
        """Let what goes on beside end, and make nothing fail any more."""
        self.join()
        self.clear()
        self._connection.close()

    # Statements

    def run(self, *statements: Any) -> Any:
        """Execute statements; returns the rows of the last one, if it has some."""
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else None

    def attempt(self, what: str) -> bool:
        """Execute what may fail; says whether it did not.  The session must then obey a timeout.

        `what` is a statement, or a function.
        """
        try:
            what() if callable(what) else self.run(what)
        except psycopg2.Error:
            if self._connection.closed:
                raise
            self._obey()
            return False
        return True

    def _obey(self):
        with self._connection.cursor() as cursor:
            if not readers.obeys(cursor):
                self.complaints.append("a session that has survived an error does not obey "
                                       "statement_timeout")

    def beside(self, statement: str) -> None:
        """Execute a statement in a session of its own, whatever becomes of it."""
        def work():
            with contextlib.suppress(psycopg2.Error), \
                    contextlib.closing(self._connect()) as connection:
                connection.autocommit = True
                connection.cursor().execute(statement)

        self._beside.append(threading.Thread(target=work, name="beside"))
        self._beside[-1].start()

    def join(self) -> None:
        """Wait for what goes on beside."""
        for thread in self._beside:
            thread.join()
        self._beside = []

    def make(self, name: str, rows: Any, body: int = 100, options: Any = "") -> str:
        """Make a table; returns the path of its file."""
        self.run(f"DROP TABLE IF EXISTS {name}",
                 f"CREATE TABLE {name} (id int PRIMARY KEY, v bigint, body text STORAGE PLAIN)"
                 f" WITH (autovacuum_enabled = off{options})")
        self.run(self.filling(name, 1, rows, body))
        return self.path(name)

    def filling(self, name: str, first: Any, last: Any, body: int = 100) -> str:
        """Return a statement that inserts rows."""
        return f"INSERT INTO {name} SELECT g, {self.rng.randrange(1000)}, repeat('x', {body})" \
               f" FROM generate_series({first}, {last}) g"

    def copy(self, name: str, first: Any, last: Any) -> None:
        """COPY rows into a table, which grows by several pages at once."""
        rows = "".join(f"{number}\t{self.rng.randrange(1000)}\t{'y' * 100}\n"
                       for number in range(first, last + 1))
        with self._connection.cursor() as cursor:
            copy_in(cursor, name, rows)

    def path(self, name: str) -> str:
        """Return the path of the file of a relation."""
        return self.run(f"SELECT pg_relation_filepath('{name}')")[0][0]

    def agree(self) -> None:
        """Ask for all tables by all plans; while something is made to fail, reading may."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                self.complaints += readers.disagreements_of_scene(cursor)
                cursor.execute("COMMIT")
        except psycopg2.Error:
            if self._connection.closed or not self._faulty:
                raise
            self.run("ROLLBACK")

    def make_filler(self) -> None:
        """Make a table that takes all of the buffers when it is read by its index."""
        self.make(FILLER, self.rng.randint(1500, 2500), 1000)
        self.run(f"VACUUM FREEZE {FILLER}")

    def forget_buffers(self) -> None:
        """Have other pages take all buffers, without dirtying any."""
        self.run("SET enable_seqscan = off", "SET enable_bitmapscan = off")
        self.attempt(f"SELECT sum(length(body)) FROM {FILLER} WHERE id > 0")
        self.run("RESET enable_seqscan", "RESET enable_bitmapscan")

    # Faults

    def fault(self, rule: str) -> None:
        """Let operations fail as the recorder's attribute says."""
        self._faulty = True
        self._store.set_fault(rule)

    def clear(self) -> None:
        """Let nothing fail any more."""
        self._store.set_fault("clear")
        self._faulty = False

    def await_hold(self, path: str) -> None:
        """Wait until a truncation of a file is held."""
        deadline = time.monotonic() + WAIT_SECONDS
        wanted = f"user.pgcut.fault=hold:{path}:0:0:{HOLD_MS}"
        while wanted not in os.listxattr(self._store.data):
            if time.monotonic() > deadline:
                raise ScriptError(f"no process truncates {path}")
            time.sleep(POLL_SECONDS)


def outlived_truncation(scene: Scene) -> None:
    """A batch that cannot be logged has pages that a truncation then takes away (R6, R7).

    A later read must find them empty, though the batch still has their old contents.
    """
    rng = scene.rng
    rows = rng.randint(2000, 4000)
    scene.make_filler()
    scene.make("scene.cut", rows, options=f", fillfactor = {rng.choice((40, 50, 100))}")
    cuts_map = rng.random() < 0.5
    if cuts_map:
        scene.run("CREATE EXTENSION IF NOT EXISTS pg_visibility", "VACUUM scene.cut", "CHECKPOINT",
                  f"UPDATE scene.cut SET v = v + 1 WHERE id <= {rng.randint(50, 150)}",
                  "VACUUM scene.cut")
    scene.fault("write:pg_doublewrite/:0:1000000:5")
    if scene.attempt("CHECKPOINT"):
        scene.clear()               # this mode has no need of the log
        return
    if cuts_map:
        statements = ("SELECT pg_truncate_visibility_map('scene.cut')",
                      f"DELETE FROM scene.cut WHERE id % {rng.choice((2, 3, 5))} = 0")
    else:
        kept = rows // rng.choice((3, 4, 8))
        statements = (f"DELETE FROM scene.cut WHERE id > {kept}", "VACUUM scene.cut",
                      lambda: scene.copy("scene.cut", rows + 1, rows + rows // 2))
    # Where the stage is small it may be full now.
    all(map(scene.attempt, statements))
    for _ in range(rng.randint(1, 3)):
        scene.forget_buffers()
        scene.agree()
    scene.clear()
    scene.run("CHECKPOINT")
    scene.forget_buffers()
    scene.agree()


def half_dropped(scene: Scene) -> None:
    """A page stays half written, and its table is dropped, which takes a while (R3).

    The log is needed by others meanwhile.  Ends while the drop is not durable.
    """
    rng = scene.rng
    torn = scene.make("scene.torn", rng.randint(1500, 4000))
    held = scene.make("scene.held", 1)
    scene.make("scene.bulk", 80000)
    scene.run("CHECKPOINT",
              f"UPDATE scene.torn SET body = 'changed' WHERE id % {rng.choice((5, 7, 11))} = 0")
    scene.fault(f"write:{torn}:1:1000000:5")
    scene.fault(f"shortwrite:{torn}:0:1:0")
    for file in (held, scene.path("scene.held_pkey")):
        scene.fault(f"hold:{file}:0:1:{HOLD_MS}")
    scene.attempt("CHECKPOINT")
    scene.beside("DROP TABLE scene.torn, scene.held")
    scene.await_hold(held)
    for _ in range(rng.randint(1, 2)):
        scene.attempt("UPDATE scene.bulk SET v = v + 1")


def failed_home_write(scene: Scene) -> None:
    """A session needs pages of a table at home, which cannot be written (R11)."""
    rng = scene.rng
    path = scene.make("scene.moved", rng.randint(200, 3000))
    scene.run("CHECKPOINT", "UPDATE scene.moved SET v = v + 1")
    scene.fault(f"write:{path}:{rng.choice((0, 0, 1, 5))}:1000000:{rng.choice((5, 28))}")
    scene.run("CREATE TABLESPACE scene LOCATION ''")
    for _ in range(rng.randint(1, 3)):
        scene.attempt("ALTER TABLE scene.moved SET TABLESPACE scene")
        scene.attempt(f"UPDATE scene.moved SET v = v + 1 WHERE id % {rng.randint(2, 9)} = 0")
    scene.clear()
    scene.run("ALTER TABLE scene.moved SET TABLESPACE pg_default", "DROP TABLESPACE scene")
    scene.agree()


SCRIPTS = {"outlived-truncation": outlived_truncation, "half-dropped": half_dropped,
           "failed-home-write": failed_home_write}

# Those whose end makes only sense with the server.
ENDING = ("half-dropped",)


@contextlib.contextmanager
def played(name: str, connect: Callable[..., Any], store: Any, seed: int) -> Iterator[list[str]]:
    """Play a script on a server; yields its complaints, while others may still be at work."""
    scene = Scene(connect, store, random.Random(f"script/{seed}"))
    try:
        SCRIPTS[name](scene)
        yield scene.complaints
    finally:
        scene.close()
