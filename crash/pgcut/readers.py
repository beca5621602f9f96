"""Sessions that read while others write: snapshots by every plan, and sessions after errors."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg2

from . import load_rows, plans, workload
from .limits import limit

# Kinds of load whose tables change by rows alone, so that a snapshot shows what the journal says.
STEADY = [kind for kind, cls in workload.KINDS.items() if cls.__module__ == load_rows.__name__]

# What one snapshot must agree on, of each table of a client that changes by rows alone.
_TABLES = """
SELECT x.key, (x.value->>'rows')::bigint, (x.value->>'sum')::numeric, o.client, o.n
FROM oracle.now o, jsonb_each(o.state->'tables') x
WHERE split_part(o.client, '-', 1) = ANY (%s) AND NOT (x.value->>'unlogged')::boolean
"""
# What tells snapshots from pages if they do not agree: which transactions made the newest
# rows, and may the snapshot see them?  A file of another number has been rewritten.
_EVIDENCE = """
SELECT format('%%s in snapshot %%s, replayed up to %%s: file %%s, rows by transaction%%s;'
              ' journal: file %%s, numbers by transaction%%s',
              '{table}', pg_current_snapshot(), pg_last_wal_replay_lsn(),
              pg_relation_filenode('{table}'),
              (SELECT string_agg(format(' %%s:%%s', xmin, rows), '')
               FROM (SELECT xmin, count(*) AS rows FROM {table} GROUP BY xmin
                     ORDER BY xmin::text::bigint DESC LIMIT 5) x),
              pg_relation_filenode('oracle.journal'),
              (SELECT string_agg(format(' %%s:%%s', xmin, n), '')
               FROM (SELECT xmin, n FROM oracle.journal WHERE client = %s
                     ORDER BY n DESC LIMIT 5) x))
"""
# The tables of scripts; see scripts.py.
_SCENE = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = to_regnamespace('scene') AND relkind = 'r' ORDER BY 1
"""

# A statement that ends by itself only if statement_timeout is not obeyed.
TIMEOUT_MS, SLEEP_SECONDS = 20, 30


# The error of a session that replay cancels, and for how long it tries again.
_IN_THE_WAY, TRY_SECONDS = "due to conflict with recovery", 240


def undisturbed(ask: Callable[[], Any]) -> Any:
    """Return what `ask` returns; it may ask a standby that replays.

    A session waits for locks that replay holds, and replay for the session's snapshot, until
    it cancels the session, even one that has not got in yet.  A cancelled session asks again.
    """
    deadline = time.monotonic() + TRY_SECONDS
    while True:
        try:
            return ask()
        except psycopg2.Error as error:
            if _IN_THE_WAY not in str(error) or time.monotonic() > deadline:
                raise


class Reader(threading.Thread):
    """Reads snapshots of one server, with pauses in seconds, until it is told to stop.

    By then it may not have had its turn, or replay has cancelled it each time: it goes on until
    it has read one snapshot, or meets another error.
    """

    def __init__(self, connect: Callable[..., Any], pause: float = 0.02) -> None:
        super().__init__(name="reader")
        self._connect = connect
        self._pause = pause
        self.stop = threading.Event()
        self.complaints = []
        self.snapshots = 0
        self.codes = []             # SQLSTATE, '' if there is none, and message of each error

    def run(self) -> None:
        try:
            while self._goes_on():
                self._read_until_an_error()
        except Exception as error:      # a bug here must not look like nothing to complain of
            self.complaints.append(f"the reader has ended: {type(error).__name__}: {error}")

    def end(self, seconds: float) -> None:
        """Tell it to end, and wait; raises Hang if it waits for so long, as for a lock."""
        self.stop.set()
        with limit("reading snapshots", seconds):
            self.join()

    def _goes_on(self):
        """Say whether to read another snapshot."""
        unread = not self.snapshots and (not self.codes or _IN_THE_WAY in self.codes[-1][1])
        return unread or not self.stop.is_set()

    def _read_until_an_error(self):
        try:
            with contextlib.closing(self._connect("postgres")) as connection:
                self._read(connection)
        except psycopg2.Error as error:
            self.codes.append((error.pgcode or "", " ".join(str(error).split())))
            self.stop.wait(0.1)

    def _read(self, connection):
        connection.set_session("REPEATABLE READ", readonly=True)
        while self._goes_on():
            with connection, connection.cursor() as cursor:
                self.complaints += disagreements(cursor)
            self.snapshots += 1
            self.stop.wait(self._pause)


def disagreements(cursor: Any) -> list[str]:
    """Return what plans say otherwise than the journal, in the snapshot of a transaction."""
    found = list(plans.disagreements_of_accounts(cursor))
    cursor.execute(_TABLES, (STEADY,))
    for table, rows, total, client, number in cursor.fetchall():
        wrong = [f"{table} after {number} of {client}, {text}"
                 for text in plans.disagreements(cursor, table, rows, total)]
        if wrong:
            cursor.execute(_EVIDENCE.format(table=table), (client,))
            found += [*wrong, *cursor.fetchone()]
    return found


def disagreements_of_scene(cursor: Any) -> list[str]:
    """Return the tables of scripts of which plans do not say the same."""
    found = []
    cursor.execute(_SCENE)
    for table, in cursor.fetchall():
        answers = {}
        for plan, (scan, query) in plans.PLANS.items():
            cursor.execute("SELECT oracle.force(%s)", (scan,))
            cursor.execute(query.format(table=table))
            answers[plan] = cursor.fetchone()
        rows, total = answers["sequential"]
        found += [f"{table}: {said[0]} rows with sum {said[1]} by a scan that is {plan}, {rows} "
                  f"with {total} by a sequential one" for plan, said in answers.items()
                  if said[0] != rows or said[1] not in (None, total)]
    return found


def obeys_timeout(client: Any) -> None:
    """Complain of a client whose session, after an error, does not obey a timeout."""
    with client.connection.cursor() as cursor:
        if not obeys(cursor):
            client.record("complaint", text=f"{client.name}: a session that has survived an error "
                          "does not obey statement_timeout")


def obeys(cursor: Any) -> bool:
    """Say whether a session obeys statement_timeout."""
    cursor.execute(f"SET statement_timeout = {TIMEOUT_MS}")
    try:
        cursor.execute(f"SELECT pg_sleep({SLEEP_SECONDS})")
        return False
    except psycopg2.errors.QueryCanceled:
        return True
    finally:
        cursor.execute("RESET statement_timeout")
