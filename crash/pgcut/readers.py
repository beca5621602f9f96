"""Whoever looks while others write: snapshots by every plan, and sessions after errors."""

import contextlib
import threading

import psycopg2

from . import drawing

# What one snapshot must agree on, of each table of a client that changes by rows alone.
_TABLES = """
SELECT x.key, (x.value->>'rows')::bigint, (x.value->>'sum')::numeric, o.client, o.n
FROM oracle.now o, jsonb_each(o.state->'tables') x
WHERE split_part(o.client, '-', 1) = ANY (%s) AND NOT (x.value->>'unlogged')::boolean
"""
_ROWS = "SELECT count(*), coalesce(sum(oracle.digest(id, v, body)), 0) FROM {table}"
PLANS = {
    "sequential": ("seqscan", _ROWS),
    "index": ("indexscan", _ROWS + " WHERE id > 0"),
    "bitmap": ("bitmapscan", _ROWS + " WHERE id > 0"),
    "backward": ("indexscan", "SELECT count(*), coalesce(sum(oracle.digest(id, v, body)), 0) FROM"
                              " (SELECT * FROM {table} WHERE id > 0 ORDER BY id DESC) t"),
    "index-only": ("indexonlyscan", "SELECT count(*), NULL FROM"
                                    " (SELECT id FROM {table} WHERE id > 0 ORDER BY id) t"),
}

# A statement that only a timeout that is not obeyed lets end by itself.
TIMEOUT_MS, SLEEP_SECONDS = 20, 30


class Reader(threading.Thread):
    """Reads snapshots of one server until it is told to stop, or the server is gone."""

    def __init__(self, connect):
        super().__init__(name="reader")
        self._connect = connect
        self.stop = threading.Event()
        self.complaints = []
        self.snapshots = 0
        self.codes = []             # SQLSTATE and message of each error

    def run(self):
        while not self.stop.is_set():
            try:
                with contextlib.closing(self._connect("postgres")) as connection:
                    self._read(connection)
            except psycopg2.Error as error:
                if error.pgcode:
                    self.codes.append((error.pgcode, str(error).strip()))
                self.stop.wait(0.1)

    def _read(self, connection):
        connection.set_session("REPEATABLE READ", readonly=True)
        while not self.stop.is_set():
            with connection, connection.cursor() as cursor:
                self.complaints += disagreements(cursor)
            self.snapshots += 1
            self.stop.wait(0.02)


def disagreements(cursor):
    """Return what plans say otherwise than the journal, in the snapshot of a transaction."""
    found = []
    cursor.execute(_TABLES, (list(drawing.STEADY),))
    for table, rows, total, client, number in cursor.fetchall():
        for plan, (scan, query) in PLANS.items():
            cursor.execute("SELECT oracle.force(%s)", (scan,))
            cursor.execute(query.format(table=table))
            said = cursor.fetchone()
            if said[0] != rows or said[1] is not None and said[1] != total:
                found.append(f"{table} after {number} of {client}, by a scan that is {plan}: "
                             f"{said[0]} rows with sum {said[1]}, not {rows} with {total}")
    return found


def obeys_timeout(client):
    """Complain of a client whose session, after an error, does not obey a timeout."""
    with client.connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = {TIMEOUT_MS}")
        try:
            cursor.execute(f"SELECT pg_sleep({SLEEP_SECONDS})")
            client.record("complaint", text=f"{client.name}: a session that has survived an error "
                          "does not obey statement_timeout")
        except psycopg2.errors.QueryCanceled:
            pass
        cursor.execute("RESET statement_timeout")
