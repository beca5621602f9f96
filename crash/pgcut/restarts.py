"""Crash after crash of one server, which is never stopped in between.

`./dev restarts` runs it.  Clients transfer between accounts and keep a ledger of what
was acknowledged to them; the postmaster, a recovery worker, a session that waits for a
page, or any process, is killed at a random moment, often before the pages of the
last crash have been redone.
"""

import argparse
import contextlib
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg2

from common import postgres
from common.base import own

ACCOUNTS = 100_000
CLIENTS = 6

SETTINGS = {
    "listen_addresses": "", "instant_recovery": "on", "recovery_workers": 2,
    "io_torn_pages_protection": "double_writes", "shared_buffers": "8MB",
    "max_wal_size": "256MB", "checkpoint_timeout": "30s", "autovacuum_naptime": "1s",
    "restart_after_crash": "on", "log_checkpoints": "on", "max_connections": 30,
    "log_line_prefix": "%m [%p] %b ",
}

SCHEMA = f"""
    CREATE EXTENSION amcheck; CREATE EXTENSION pg_visibility;
    CREATE TABLE accounts (id int PRIMARY KEY, bal int NOT NULL, f text) WITH (fillfactor = 70);
    INSERT INTO accounts SELECT g, 0, repeat('x', 150) FROM generate_series(1, {ACCOUNTS}) g;
    CREATE INDEX ON accounts (bal);
    CREATE TABLE ledger (client int, n int, src int, dst int, amount int, PRIMARY KEY (client, n));
    CREATE TABLE coming (id int);
    CHECKPOINT;"""

# Seconds until the next crash, after clients have got in.
MOMENTS = (0.02, 0.1, 0.3, 1.0, 3.0)

# The process with which a crash begins.
VICTIMS = ("postmaster", "recovery worker", "waiting", "any")

CHECKS = {
    "sum of the accounts": "SELECT sum(bal) = 0 FROM accounts",
    "ledger and accounts": """
        SELECT count(*) = 0 FROM accounts a FULL JOIN (
            SELECT id, sum(d) AS s FROM (SELECT src AS id, -amount AS d FROM ledger
                UNION ALL SELECT dst, amount FROM ledger) x GROUP BY id) l USING (id)
        WHERE a.bal IS DISTINCT FROM coalesce(l.s, 0)""",
    "visibility map": """
        SELECT count(*) = 0 FROM (VALUES ('accounts'), ('ledger')) t(r),
            LATERAL pg_check_visible(t.r::regclass)""",
    "index-only scan": """
        SELECT (SELECT count(*) FROM accounts WHERE id > 0) = (SELECT count(f) FROM accounts)""",
    "indexes": """
        SELECT count(bt_index_check(c.oid, true)) >= 0 FROM pg_class c, pg_am a
        WHERE c.relam = a.oid AND a.amname = 'btree' AND relpersistence = 'p'""",
}


class Client(threading.Thread):
    """Transfers until it is told to end, in one session after the other."""

    def __init__(self, server, number, seed):
        super().__init__(daemon=True)
        self.server, self.number, self.rng = server, number, random.Random(seed)
        self.acknowledged, self.ended, self.unexpected = 0, False, []

    def run(self):
        while not self.ended:
            try:
                with contextlib.closing(self.server.connect()) as connection:
                    connection.autocommit = True
                    with connection.cursor() as cursor:
                        self._work(cursor)
            except psycopg2.Error as error:
                # Without a code the connection is lost; 57P0x: the server is in a crash.
                if error.pgcode and not error.pgcode.startswith("57P0"):
                    self.unexpected.append(f"{error.pgcode}: {error}")
                    return
                time.sleep(0.02)

    def _work(self, cursor):
        # The last commit may have been lost with its acknowledgement, or not.
        cursor.execute("SELECT coalesce(max(n), 0), count(*) FROM ledger WHERE client = %s",
                       (self.number,))
        found, count = cursor.fetchone()
        if found != count or not self.acknowledged <= found <= self.acknowledged + 1:
            self.unexpected.append(f"client {self.number}: {self.acknowledged} transactions were "
                                   f"acknowledged, {count} are there, the last is {found}")
        self.acknowledged = found
        while not self.ended:
            a, b = self.rng.sample(range(1, ACCOUNTS + 1), 2)
            d = self.rng.randint(1, 100)
            sql = (f"BEGIN; UPDATE accounts SET bal = bal - {d} WHERE id = {min(a, b)};"
                   f"UPDATE accounts SET bal = bal + {d} WHERE id = {max(a, b)};"
                   f"INSERT INTO ledger VALUES ({self.number}, {found + 1}, {min(a, b)}, "
                   f"{max(a, b)}, {d}); COMMIT")
            cursor.execute(sql)
            found += 1
            self.acknowledged = found
            if self.rng.random() < 0.003:
                cursor.execute(self.rng.choice((
                    "VACUUM accounts", "TRUNCATE coming", "VACUUM ledger",
                    "INSERT INTO coming SELECT generate_series(1, 5000)",
                    f"CREATE TABLE IF NOT EXISTS t{self.number} AS SELECT * FROM coming",
                    f"DROP TABLE IF EXISTS t{self.number}")))


def victim(server, kind):
    """Return the process to be killed, None if there is no such one."""
    postmaster = server.postmaster()
    if postmaster is None or kind == "postmaster":
        return postmaster
    wanted = {"recovery worker": "recovery worker", "waiting": " waiting", "any": ""}[kind]
    found = [pid for pid in postgres.children(postmaster)
             if wanted in postgres.read_proc(pid, "cmdline")]
    return random.choice(found) if found else None


def by_a_crash(error):
    """Say whether an error is that the server has gone, or is not there yet."""
    return not error.pgcode or error.pgcode.startswith("57P0")


def wait_until_open(server, seconds=300):
    """Wait until a client gets in; returns whether one did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            server.query("SELECT 1")
            return True
        except psycopg2.Error as error:
            if not by_a_crash(error):
                raise
        if server.postmaster() is None:
            # It ends when the startup process is killed; or it has just been started.
            time.sleep(1)
            if server.postmaster() is None:
                server.start(wait=False)
        time.sleep(0.01)
    return False


def crash(server, kind):
    """Kill a process of a kind, else the postmaster; returns the kind of what was killed."""
    pid = victim(server, kind)
    if pid is None or pid == server.postmaster():
        postgres.kill_family(server.postmaster())
        # All are gone, but some may not have been reaped.
        for lock in (server.data / "postmaster.pid", *server.sockets.glob(".s.*.lock")):
            lock.unlink(missing_ok=True)
        server.start(wait=False)
        return "postmaster"
    postgres.kill(pid, signal.SIGKILL)
    return kind


def main():
    """Crash as often as told; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bindir", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    random.seed(args.seed)

    sockets = postgres.socket_directory()
    args.scratch.mkdir(parents=True, exist_ok=True)
    own(args.scratch)
    server = postgres.Controlled(args.bindir, args.scratch / "data", args.scratch / "log",
                                 postgres.environment(), sockets)
    server.create(*postgres.THROWAWAY)
    postgres.write_settings(server.data / "postgresql.conf",
                            {**SETTINGS, "unix_socket_directories": sockets})
    server.start()
    server.query(SCHEMA)
    clients = [Client(server, number, args.seed * 1000 + number) for number in range(CLIENTS)]
    for client in clients:
        client.start()

    victims, problems = Counter(), []
    for number in range(1, args.number + 1):
        if not wait_until_open(server):
            raise server.failure("did not come back")
        if number % 50 == 0:
            problems += [f"after {number} crashes: {name}" for name, sql in CHECKS.items()
                         if not checked(server, sql)]
            print(f"{number} crashes: {sum(c.acknowledged for c in clients)} transactions, "
                  f"{len(problems)} problems", flush=True)
        kind = random.choice(VICTIMS)
        time.sleep(random.choice(MOMENTS) * random.random())
        victims[crash(server, kind)] += 1
        problems += [text for client in clients for text in client.unexpected]
        if problems:
            break
    for client in clients:
        client.ended = True
    wait_until_open(server)
    problems += [name for name, sql in CHECKS.items() if not checked(server, sql)]
    text = server.log_text()
    server.stop()
    print(f"{sum(victims.values())} crashes ({dict(victims)}), "
          f"{text.count('opening before redo')} openings before redo, of which "
          f"{text.count('redo is complete')} came to the end; "
          f"{sum(client.acknowledged for client in clients)} transactions; "
          f"{len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


def checked(server, sql):
    """Return what a check says; a crash in it does not count, so it is tried again."""
    while True:
        try:
            return server.query(sql)
        except psycopg2.Error as error:
            if not by_a_crash(error):
                print(error)
                return False
            wait_until_open(server)


if __name__ == "__main__":
    sys.exit(main())
