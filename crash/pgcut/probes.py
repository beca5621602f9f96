"""Clients of a tablespace of their own, of which nothing is made to fail: they must get on.

What delays or fails operations on other files must not stop all of these clients for good.  How
long they take does not matter: advance() waits until some of them have come further, or its limit
has passed.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg2

DATABASE = "calm"

# How many there are, and at most: a new one comes after each of these seconds in which none got on.
CLIENTS, MOST_CLIENTS = 3, 8
PATIENCE_SECONDS = 1

# Each has a table; what it changes is more than the stage takes.
ROWS, ROW_BYTES, CHANGED = 600, 1000, 5

# How often progress is looked at.
POLL_SECONDS = 0.02


def prepare(connect: Callable[..., Any]) -> None:
    """Make the tablespace, and a database with all of its catalogs in it."""
    with contextlib.closing(connect("postgres")) as session:
        session.autocommit = True
        with session.cursor() as cursor:
            cursor.execute("SET allow_in_place_tablespaces = on")
            cursor.execute(f"CREATE TABLESPACE {DATABASE} LOCATION ''")
            cursor.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 TABLESPACE {DATABASE}")
    with contextlib.closing(connect(DATABASE)) as session:
        session.autocommit = True
        with session.cursor() as cursor:
            for number in range(MOST_CLIENTS):
                cursor.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v int,"
                               " filler text STORAGE PLAIN)")
                cursor.execute(f"INSERT INTO t{number} SELECT g, 0, repeat('x', %s)"
                               " FROM generate_series(1, %s) g", (ROW_BYTES, ROWS))
            cursor.execute("VACUUM FREEZE")
            cursor.execute("CHECKPOINT")


class Probes:
    """These clients, on one server."""

    def __init__(self, connect: Callable[..., Any], seed: int) -> None:
        self._connect = connect
        self._seed = seed
        self._over = threading.Event()
        self._threads = []
        self._lock = threading.Lock()
        self.done = 0               # transactions that have been acknowledged
        self.errors = []
        for _ in range(CLIENTS):
            self._add()

    def _add(self):
        thread = threading.Thread(target=self._work, args=(len(self._threads),), name="probe")
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Let all clients end."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def advance(self, count: int, alive: Any) -> bool:
        """Wait until so many more transactions are done; says whether the server was there.

        While none is, others come: each may be one that makes a write that does not return.
        """
        wanted, seen, since = self.done + count, self.done, time.monotonic()
        while self.done < wanted and alive():
            time.sleep(POLL_SECONDS)
            if self.done > seen:
                seen, since = self.done, time.monotonic()
            elif time.monotonic() > since + PATIENCE_SECONDS and len(self._threads) < MOST_CLIENTS:
                self._add()
                since = time.monotonic()
        return alive()

    def _work(self, number):
        rng = random.Random(f"probe/{self._seed}/{number}")
        try:
            with contextlib.closing(self._connect(DATABASE)) as session, \
                    session.cursor() as cursor:
                session.autocommit = True
                while not self._over.is_set():
                    self._attempt(session, cursor, number, rng)
        except psycopg2.Error as error:         # the server has gone
            self.errors.append(("", " ".join(str(error).split())))

    def _attempt(self, session, cursor, number, rng):
        """Change some rows, far apart."""
        rows = [rng.randint(1, ROWS) for _ in range(CHANGED)]
        try:
            cursor.execute(f"UPDATE t{number} SET v = v + 1 WHERE id = ANY (%s)", (rows,))
            with self._lock:
                self.done += 1
        except psycopg2.Error as error:
            if session.closed:
                raise
            self.errors.append((error.pgcode, " ".join(str(error).split())))
