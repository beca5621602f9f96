"""Crash after crash of one server, which is never stopped in between.

`./dev restarts` runs it.  Clients transfer between accounts and keep a ledger of what
was acknowledged to them, and now and then do what redo of single pages has rules for: see
CHORES.  The postmaster, a recovery worker, a session that waits for a page, or any process,
is killed at a random moment, often before the pages of the last crash have been redone,
or before clients have got in again; or the server is stopped.  Where the postmaster was
killed, pages at home of which the double-write log has copies are torn, and the next one
runs with settings that are drawn anew.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import errors

from common import postgres
from common.base import own

from . import alarms

ACCOUNTS = 100_000
CLIENTS = 6

# All else is as initdb has made it: double writes, and instant recovery.
SETTINGS = {
    "listen_addresses": "", "max_wal_size": "256MB", "checkpoint_timeout": "30s",
    "autovacuum_naptime": "1s", "restart_after_crash": "on", "log_checkpoints": "on",
    "max_connections": 30, "max_prepared_transactions": 10,
    "allow_in_place_tablespaces": "on", "log_line_prefix": "%m [%p] %b ",
}

# What each new postmaster is started with.
DRAWN = {
    "shared_buffers": ("8MB", "8MB", "1MB", "64MB"),
    "instant_recovery": ("on",) * 7 + ("off",),
    "instant_recovery_memory": ("-1", "-1", "-1", "1MB", "64kB"),
    "recovery_workers": ("2", "2", "1", "4"),
    "wal_pipeline": ("on", "on", "off"),
    "max_worker_processes": ("8", "8", "2"),
}

SCHEMA = f"""
    CREATE EXTENSION amcheck; CREATE EXTENSION pg_visibility;
    CREATE TABLE accounts (id int PRIMARY KEY, bal int NOT NULL, f text) WITH (fillfactor = 70);
    INSERT INTO accounts SELECT g, 0, repeat('x', 150) FROM generate_series(1, {ACCOUNTS}) g;
    CREATE INDEX ON accounts (bal);
    CREATE TABLE ledger (client int, n int, src int, dst int, amount int, PRIMARY KEY (client, n));
    CREATE TABLE coming (id int);

    -- Do an index and its table have as many rows?  STABLE: both see the same snapshot.
    CREATE FUNCTION agrees(t regclass, condition text) RETURNS bool STABLE LANGUAGE plpgsql AS $$
    DECLARE
        counted bigint[];
        n bigint;
    BEGIN
        FOREACH n IN ARRAY ARRAY[0, 1] LOOP
            PERFORM set_config('enable_seqscan', (n = 0)::text, true),
                set_config('enable_indexscan', (n = 1)::text, true),
                set_config('enable_indexonlyscan', (n = 1)::text, true),
                set_config('enable_bitmapscan', (n = 1)::text, true);
            EXECUTE format('SELECT count(*) FROM %s WHERE %s', t, condition) INTO n;
            counted := counted || n;
        END LOOP;
        RETURN counted[1] = counted[2];
    END $$;"""

# Of each client
OWN = """
    CREATE TABLE goods{n} (a int, h int, g int[], p point, s text, b int);
    CREATE INDEX ON goods{n} USING btree (a);
    CREATE INDEX goods{n}_hash ON goods{n} USING hash (h);
    CREATE INDEX ON goods{n} USING gin (g);
    CREATE INDEX ON goods{n} USING gist (p);
    CREATE INDEX ON goods{n} USING spgist (s);
    CREATE INDEX ON goods{n} USING brin (b) WITH (pages_per_range = 2);
    CREATE TABLE frozen{n} (batch int, i int);
    CREATE UNLOGGED TABLE unlogged{n} (i int PRIMARY KEY, t text);
    CREATE SEQUENCE numbers{n};"""

FILL = """
    INSERT INTO goods{n} SELECT g, g % 50, ARRAY[g % 20, g % 31], point(g % 100, g % 77),
        md5(g::text), {r} + g FROM generate_series({r}, {r} + 400) g"""

# What a client does now and then, mostly to its own tables.  Statements are sent one by one.
CHORES = (
    ("VACUUM accounts",), ("VACUUM ledger",), ("TRUNCATE coming",),
    ("INSERT INTO coming SELECT generate_series(1, 5000)",),
    ("CREATE TABLE IF NOT EXISTS t{n} AS SELECT * FROM coming",), ("DROP TABLE IF EXISTS t{n}",),
    (FILL,), (FILL,), (FILL,), (FILL,),
    ("UPDATE goods{n} SET h = h + 1, p = p + point(1, 0) WHERE a % 7 = {r} % 7",),
    ("DELETE FROM goods{n} WHERE a % 3 = {r} % 3",), ("VACUUM goods{n}",), ("TRUNCATE goods{n}",),
    ("VACUUM FULL goods{n}",), ("CLUSTER goods{n} USING goods{n}_a_idx",),
    ("REINDEX TABLE goods{n}",),
    ("DROP INDEX IF EXISTS goods{n}_hash", "CREATE INDEX goods{n}_hash ON goods{n} USING hash (h)"),
    ("INSERT INTO unlogged{n} SELECT g, repeat('u', 50) FROM generate_series(1, 300) g"
     " ON CONFLICT (i) DO UPDATE SET t = 'again'",),
    ("DROP DATABASE IF EXISTS d{n} WITH (FORCE)",
     "CREATE DATABASE d{n} TEMPLATE template0 STRATEGY wal_log"),
    ("DROP DATABASE IF EXISTS d{n} WITH (FORCE)",
     "CREATE DATABASE d{n} TEMPLATE template0 STRATEGY file_copy"),
    ("ALTER TABLE goods{n} SET TABLESPACE pg_default", "DROP TABLE IF EXISTS placed{n}",
     "DROP TABLESPACE IF EXISTS space{n}", "CREATE TABLESPACE space{n} LOCATION ''",
     "CREATE TABLE placed{n} TABLESPACE space{n} AS SELECT * FROM goods{n}",
     "ALTER TABLE goods{n} SET TABLESPACE space{n}"),
)
CHORE_CHANCE = 0.01
PREPARED_CHANCE = 0.01
BATCH = 2000            # rows of a COPY FREEZE

# Seconds until the next crash, after clients have got in.
MOMENTS = (0.02, 0.1, 0.3, 1.0, 3.0)

# The process with which a crash begins, "opening": two postmasters, the second one often in
# recovery; and stops, of a server that is open, and of one that is being started.
PROCESSES = ("recovery worker", "waiting", "any")
KINDS = (*PROCESSES * 2, "postmaster", "postmaster", "opening", "opening", "stop",
         "stop in recovery")

# What a statement may take; more is a problem.
STATEMENT_SECONDS = round(600 * float(os.environ.get("PGDW_TEST_SLOWNESS") or 1))

# At most so many pages are torn at home after a crash.
TORN = 30
PAGE = 8192

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
    # Without those of tables that are being rewritten, which may be gone when their turn comes
    "indexes": """
        SELECT count(bt_index_check(c.oid, true)) >= 0
        FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_index i ON i.indexrelid = c.oid
        WHERE a.amname = 'btree' AND relpersistence IN ('p', 'u') AND indisvalid
            AND relname !~ '^pg_(temp|toast)_'""",
}

# Of each client
OWN_CHECKS = {
    "goods{n}": """
        SELECT agrees('goods{n}', 'a BETWEEN 100 AND 300') AND agrees('goods{n}', 'h = 7')
            AND agrees('goods{n}', 'g @> ARRAY[3]') AND agrees('goods{n}', $$s > 'b'$$)
            AND agrees('goods{n}', $$p <@ box '(0,0),(50,50)'$$)
            AND agrees('goods{n}', 'b BETWEEN 100 AND 900')""",
    "pages of goods{n}": "SELECT count(*) = 0 FROM verify_heapam('goods{n}')",
    "GIN index of goods{n}": "SELECT gin_index_check('goods{n}_g_idx') IS NOT NULL",
    "rows of frozen{n}": f"""
        SELECT count(*) IN (0, {BATCH}) AND count(DISTINCT batch) <= 1 FROM frozen{{n}}""",
    "map of frozen{n}": "SELECT count(*) = 0 FROM pg_check_visible('frozen{n}')",
    "unlogged{n}": "SELECT agrees('unlogged{n}', 'i > 0')",
}


class Server(postgres.Controlled):
    """A server whose statements have a limit."""

    def connect(self, **options: Any) -> Any:
        return super().connect(connect_timeout=STATEMENT_SECONDS,
                               options=f"-c statement_timeout={STATEMENT_SECONDS}s", **options)


class Client(threading.Thread):
    """Transfers until it is told to end, in one session after the other."""

    def __init__(self, server: postgres.Controlled, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.server, self.number, self.rng = server, number, random.Random(seed)
        self.acknowledged, self.ended, self.unexpected = 0, False, []
        self.prepared, self.drawn, self.chores = False, 0, 0

    def run(self) -> None:
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
        found = self._found(cursor)
        while not self.ended:
            a, b = self.rng.sample(range(1, ACCOUNTS + 1), 2)
            d = self.rng.randint(1, 100)
            prepare = self.rng.random() < PREPARED_CHANCE
            end = f"PREPARE TRANSACTION 'of{self.number}'" if prepare else "COMMIT"
            cursor.execute(
                f"BEGIN; UPDATE accounts SET bal = bal - {d} WHERE id = {min(a, b)};"
                f"UPDATE accounts SET bal = bal + {d} WHERE id = {max(a, b)};"
                f"INSERT INTO ledger VALUES ({self.number}, {found + 1}, {min(a, b)}, "
                f"{max(a, b)}, {d}); {end}")
            if prepare:
                self.prepared = True
                cursor.execute(f"COMMIT PREPARED 'of{self.number}'")
            found += 1
            self.acknowledged, self.prepared = found, False
            if self.rng.random() < CHORE_CHANCE:
                self._chore(cursor)

    def _found(self, cursor):
        """Return how many transactions there are, which must be what was acknowledged.

        The last commit may have been lost with its acknowledgement, or not, unless the
        transaction had been prepared.
        """
        gid = f"of{self.number}"
        cursor.execute("SELECT count(*) FROM pg_prepared_xacts WHERE gid = %s", (gid,))
        if cursor.fetchone()[0]:
            cursor.execute(f"COMMIT PREPARED '{gid}'")
        cursor.execute("SELECT coalesce(max(n), 0), count(*) FROM ledger WHERE client = %s",
                       (self.number,))
        found, count = cursor.fetchone()
        least = self.acknowledged + self.prepared
        if found != count or not least <= found <= self.acknowledged + 1:
            self.unexpected.append(f"client {self.number}: {least} transactions were "
                                   f"acknowledged, {count} are there, the last is {found}")
        self.acknowledged, self.prepared = found, False
        return found

    def _chore(self, cursor):
        """Do something else than to transfer."""
        kind = self.rng.randrange(len(CHORES) + 4)
        if kind < len(CHORES):
            r = self.rng.randrange(1000)
            for sql in CHORES[kind]:
                # Files of a transaction that a crash has cut stay behind, in stock as well.
                with contextlib.suppress(errors.ObjectNotInPrerequisiteState,
                                         errors.DuplicateObject):
                    cursor.execute(sql.format(n=self.number, r=r))
        elif kind < len(CHORES) + 2:
            self._copy(cursor)
        else:
            self._draw(cursor)
        self.chores += 1

    def _copy(self, cursor):
        """Replace the rows of a table by frozen ones."""
        batch = self.rng.randrange(1_000_000)
        rows = "".join(f"{batch}\t{i}\n" for i in range(BATCH))
        cursor.execute(f"BEGIN; TRUNCATE frozen{self.number}")
        cursor.copy_expert(f"COPY frozen{self.number} FROM STDIN (FREEZE)", io.StringIO(rows))
        cursor.execute("COMMIT")

    def _draw(self, cursor):
        """Take numbers of a sequence, none of which may come twice."""
        for _ in range(40):
            cursor.execute(f"SELECT nextval('numbers{self.number}')")
            drawn = cursor.fetchone()[0]
            if drawn <= self.drawn:
                self.unexpected.append(f"sequence {self.number}: {drawn} after {self.drawn}")
            self.drawn = drawn


def victim(server: postgres.Controlled, kind: str) -> int | None:
    """Return a process of a kind that is to be killed, None if there is no such one."""
    wanted = {"recovery worker": "recovery worker", "waiting": " waiting", "any": ""}[kind]
    found = [pid for pid in postgres.children(server.postmaster() or 0)
             if wanted in postgres.read_proc(pid, "cmdline")]
    return random.choice(found) if found else None


def by_a_crash(error: Any) -> bool:
    """Say whether an error is that the server has gone, or is not there yet."""
    return not error.pgcode or error.pgcode.startswith("57P0")


def wait_until_open(server: postgres.Controlled, seconds: float = 300) -> bool:
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
                start(server)
        time.sleep(0.01)
    return False


def require_open(server: postgres.Controlled) -> None:
    """Wait until a client gets in; raises ServerError if none does."""
    if not wait_until_open(server):
        raise server.failure("did not come back")


def start(server: postgres.Controlled) -> None:
    """Start a postmaster with settings drawn at random, and wait until it can be stopped."""
    server.start("-s", "-o", " ".join(f"-c {name}={random.choice(values)}"
                                      for name, values in DRAWN.items()), wait=False)
    deadline = time.monotonic() + postgres.END_SECONDS
    while server.postmaster() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def kill_all(server: postgres.Controlled) -> None:
    """Kill the postmaster and all processes below it."""
    pid = server.postmaster()
    if pid is not None:
        postgres.kill_family(pid)
    # All are gone, but some may not have been reaped.
    for lock in (server.data / "postmaster.pid", *server.sockets.glob(".s.*.lock")):
        lock.unlink(missing_ok=True)


def copied(server: postgres.Controlled) -> list:
    """Return (file, block) of each page whose newest version in the log is a whole copy."""
    listed = postgres.run_program(server.bindir, "pg_doublewrite", "list", "--pages", "--json",
                                  "-D", server.data, env=server.env)
    length = {(page["file"], page["block"]): page["length"]
              for batch in json.loads(listed.stdout)["batches"] if batch["status"] == "live"
              for page in batch["pages"]}
    return sorted(page for page in length if length[page] > 0)


def tear(server: postgres.Controlled) -> int:
    """Tear some pages at home of which the log has copies; returns how many."""
    pages = copied(server)
    number = 0
    for name, block in random.sample(pages, min(TORN, len(pages))):
        with contextlib.suppress(FileNotFoundError), open(server.data / name, "r+b") as file:
            if file.seek(0, 2) >= (block + 1) * PAGE:
                file.seek(block * PAGE + random.randrange(1, 15) * 512)
                file.write(bytes(512))
                number += 1
    return number


def stop(server: postgres.Controlled) -> None:
    """Stop a server that is open, which redoes all pages first."""
    server.stop("fast", "-s")
    told = postgres.run_program(server.bindir, "pg_controldata", "-D", server.data,
                                env=server.env).stdout
    if not re.search(r"cluster state: +shut down$", told, re.MULTILINE):
        raise server.failure("was stopped, but pg_controldata says otherwise")
    start(server)


def crash(server: postgres.Controlled, kind: str) -> tuple:
    """Crash or stop the server.  Returns what was done, and how many pages were torn."""
    if kind == "stop":
        stop(server)
        return kind, 0
    pid = victim(server, kind) if kind in PROCESSES else None
    if pid is not None:
        postgres.kill(pid)
        return kind, 0

    kill_all(server)
    torn = tear(server)
    start(server)
    if kind == "opening":
        time.sleep(random.random() * 0.5)
        kill_all(server)
        start(server)
    elif kind == "stop in recovery":
        time.sleep(random.random() * 0.5)
        server.stop("fast", "-s")
        start(server)
    else:
        kind = "postmaster"
    return kind, torn


def checks() -> dict:
    """Return all checks: what each is about, and a query that says whether it is right."""
    return {**CHECKS, **{name.format(n=number): sql.format(n=number)
                         for number in range(CLIENTS) for name, sql in OWN_CHECKS.items()}}


def main() -> int:
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
    server = Server(args.bindir, args.scratch / "data", args.scratch / "log",
                    postgres.environment(), sockets)
    server.create(*postgres.THROWAWAY)
    postgres.write_settings(server.data / "postgresql.conf",
                            {**SETTINGS, "unix_socket_directories": sockets})
    server.start()
    server.query(SCHEMA + "".join(OWN.format(n=number) for number in range(CLIENTS)))
    clients = [Client(server, number, args.seed * 1000 + number) for number in range(CLIENTS)]
    for client in clients:
        client.start()

    done, torn, problems = Counter(), 0, []
    for number in range(1, args.number + 1):
        require_open(server)
        if number % 50 == 0:
            problems += [f"after {number} crashes: {name}" for name, sql in checks().items()
                         if not checked(server, sql)]
            print(f"{number} crashes: {sum(c.acknowledged for c in clients)} transactions, "
                  f"{len(problems)} problems", flush=True)
        time.sleep(random.choice(MOMENTS) * random.random())
        kind, pages = crash(server, random.choice(KINDS))
        done[kind] += 1
        torn += pages
        problems += [text for client in clients for text in client.unexpected]
        if problems:
            break
    for client in clients:
        client.ended = True
    require_open(server)
    problems += [name for name, sql in checks().items() if not checked(server, sql)]
    server.stop()
    text = server.log_text()
    problems += dict.fromkeys(alarms.crashes(text, kills=True))
    print(f"{sum(done.values())} crashes and stops ({dict(done)}), {torn} pages torn; "
          f"{text.count('opening before redo')} openings before redo, of which "
          f"{text.count('redo is complete')} came to the end; "
          f"{sum(client.acknowledged for client in clients)} transactions, "
          f"{sum(client.chores for client in clients)} chores; {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


def checked(server: postgres.Controlled, sql: str) -> Any:
    """Return what a check says; a crash in it does not count, so it is tried again."""
    while True:
        try:
            return server.query(sql)
        except psycopg2.Error as error:
            if not by_a_crash(error):
                print(error)
                return False
            require_open(server)


if __name__ == "__main__":
    sys.exit(main())
