"""Tests of the load and of the oracle: quiet when all is well, loud when not.

Programs of PostgreSQL are those in PGCUT_BINDIR, else those of `./dev bindir test`.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

from pgcut import alarms, oracle, pages, server
from recorder_binary import SCRATCH

try:
    import psycopg2

    from pgcut import plans, readers, workload
    from pgcut.client import STATEMENT_SECONDS, Run
    from pgcut.table import METHODS, Table
except ImportError:
    psycopg2 = None

ROOT = Path(__file__).resolve().parents[2]
PAGE = 8192

SETTINGS = {
    "shared_buffers": "512kB",
    "max_connections": "30",
    "max_prepared_transactions": "5",
    "max_wal_size": "8MB",
    "min_wal_size": "4MB",
    "autovacuum": "off",
    "fsync": "off",
    "restart_after_crash": "off",
    "allow_in_place_tablespaces": "on",
}

# Steps of each client that the damage is done to.
STEPS = 25

# How long a standby may take to replay what a run has written.
REPLAY_SECONDS = 300


def bindir():
    """Return the directory of the programs; raises SkipTest if there are none."""
    found = os.environ.get("PGCUT_BINDIR") or subprocess.run(
        [ROOT / "dev", "bindir", "test"], capture_output=True, text=True).stdout.strip()
    if not found or not (Path(found) / "postgres").exists():
        raise unittest.SkipTest("no programs: set PGCUT_BINDIR, or ./dev build test")
    return Path(found)


def drop_last_item(content):
    """Remove the last item of the first leaf of a b-tree just built, or of block 1 of a heap."""
    lower = int.from_bytes(content[PAGE + 12:PAGE + 14], "little")
    content[PAGE + 12:PAGE + 14] = (lower - 4).to_bytes(2, "little")


def without_left_over(complaints):
    """Return complaints of something else than files that belong to nothing."""
    return [text for text in complaints if not alarms.left_over([text])]


def wait_for_replay(primary, standby):
    """Wait until a standby has replayed all that an idle primary has written.

    Raises AssertionError, with what both say, if it does not get there.
    """
    with closing(primary.connect()) as connection, connection.cursor() as cursor:
        # A commit flushes what is before it; only what is flushed is sent.
        cursor.execute("SELECT pg_logical_emit_message(true, '', '')")
        connection.commit()
        cursor.execute("SELECT pg_current_wal_flush_lsn()")
        lsn, = cursor.fetchone()
    deadline = time.monotonic() + REPLAY_SECONDS
    while True:
        if ask(standby, "SELECT pg_last_wal_replay_lsn() >= %s", lsn) == [(True,)]:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    raise AssertionError(f"not replayed up to {lsn} within {REPLAY_SECONDS} s\n"
                         + describe(standby) + describe(primary))


def wait_for(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + REPLAY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {REPLAY_SECONDS} s")
        time.sleep(0.01)


def run_until_killed(instance, statement):
    """Execute a statement, whose server may be killed meanwhile."""
    with suppress(psycopg2.Error), closing(instance.connect()) as connection:
        connection.autocommit = True
        connection.cursor().execute(statement)


def ask(instance, sql, *arguments):
    """Return the rows of a query, by a connection of its own."""
    def asked():
        with closing(instance.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return cursor.fetchall()

    return readers.undisturbed(asked)


def describe(instance):
    """Return what a server does, and the end of its log."""
    rows = [row for sql in (
        "SELECT pid, backend_type, state, wait_event_type, wait_event, left(query, 100)"
        " FROM pg_stat_activity",
        "SELECT r FROM pg_stat_wal_receiver r", "SELECT r FROM pg_stat_replication r",
        "SELECT pid, locktype, database, relation, mode, granted FROM pg_locks"
        " WHERE mode ~ 'Exclusive'") for row in ask(instance, sql)]
    log = instance.log.read_text(errors="replace").splitlines()[-40:]
    return "\n".join([f"--- {instance.log}", *map(str, rows), *log, ""])


class Cluster:
    """A cluster under load, and copies of it to be damaged."""

    def __init__(self, programs, directory, checksums):
        """Make it, and load what the workload starts with."""
        self.programs = programs
        self.directory = Path(directory)
        self.data = self.directory / "data"
        server.own(directory)
        server.make_cluster(programs, self.data, checksums)
        server.write_settings(self.data, SETTINGS)
        self.instance = self.serve(self.data)
        workload.prepare(self.instance.connect, 1, [""])

    def serve(self, data):
        """Return a running server; its log is beside its data."""
        log = self.directory / f"{data.name}.log"
        log.touch()
        server.own(log)
        instance = server.Server(self.programs, data, log)
        instance.start()
        return instance

    def modes(self):
        """Return the modes of protection that may be switched to; stock has none."""
        connection = self.instance.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_settings WHERE name = 'io_torn_pages_protection'")
            ours = cursor.fetchone() is not None
        connection.close()
        return ["double_writes", "full_pages"] if ours else []

    def copy(self, name="copy"):
        """Return a copy of the stopped cluster, which knows that it is one of those."""
        target = self.directory / name
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", self.data, target], check=True)
        (target / "pg_doublewrite" / "owner").unlink(missing_ok=True)
        return target


class OracleTest(unittest.TestCase):
    """Every check, on one cluster that was killed under load and recovered."""

    @classmethod
    def setUpClass(cls):
        if psycopg2 is None:
            raise unittest.SkipTest("python3-psycopg2 is not installed")
        programs = bindir()
        holder = tempfile.TemporaryDirectory(prefix="pgcut-oracle-", dir=SCRATCH)
        cls.addClassCleanup(holder.cleanup)
        # Without checksums, so that damage gets past the buffer manager.
        cls.cluster = cluster = Cluster(programs, holder.name, checksums=False)
        cls.addClassCleanup(lambda: cluster.instance.close())
        cls.acks = workload.run(cluster.instance.connect, transactions=STEPS, seed=2,
                                modes=cluster.modes())
        cls.moment = time.monotonic_ns()
        cls.expected = oracle.expectation(cls.acks, cls.moment)
        cls.online = oracle.verify_connected(cluster.instance.connect, cls.expected)
        cluster.instance.kill()
        crashed = cluster.copy("crashed")
        cls.recovered = oracle.verify_single(programs, cluster.data, cls.expected)
        cls.recovered_again = oracle.verify_single(programs, cluster.data, cls.expected)
        instance = cluster.serve(crashed)
        try:
            cls.recovered_online = oracle.verify_connected(instance.connect, cls.expected)
        finally:
            instance.close()
        shutil.rmtree(crashed)

    def setUp(self):
        self.copied = None

    # What the tests below use.

    def data(self):
        """Return this test's own copy of the cluster."""
        if self.copied is None:
            self.copied = self.cluster.copy()
            self.addCleanup(shutil.rmtree, self.copied, True)
        return self.copied

    def sql(self, *statements):
        """Run statements in single-user mode; return the values that come out."""
        done = server.run(self.cluster.programs, "postgres", "--single", "-D", self.data(),
                          "-c", "fsync=off", "-c", "allow_system_table_mods=on", "postgres",
                          stdin="".join(s.replace("\n", " ") + "\n" for s in statements))
        self.assertNotIn("ERROR:", done.stderr)
        return [line.split('"')[1] for line in done.stdout.splitlines()
                if line.startswith("\t 1:") and '"' in line]

    def path(self, relation):
        """Return the file of a relation."""
        return self.data() / self.sql(f"SELECT pg_relation_filepath('{relation}')")[0]

    def patch(self, path, change):
        """Change the content of a file; change() gets it as a bytearray."""
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)

    def verdict(self, expected=None, **options):
        """Return the complaints of this test's cluster, as one text."""
        complaints, _ = oracle.verify_single(self.cluster.programs, self.data(),
                                             expected or self.expected, **options)
        return "\n".join(complaints)

    def acked(self, kind):
        """Return the last acknowledged number of the first client of a kind."""
        return self.expected["clients"][f"{kind}-1"]["acked"]

    # All is well.

    def test_running_server_is_healthy(self):
        self.assertEqual(self.online, [])

    def test_recovered_in_single_user_mode_is_healthy(self):
        complaints, log = self.recovered
        self.assertEqual(complaints, [])
        self.assertIn("was not properly shut down", log)

    def test_clean_start_is_healthy(self):
        complaints, log = self.recovered_again
        self.assertEqual(complaints, [])
        self.assertNotIn("was not properly shut down", log)

    def test_recovered_server_is_healthy(self):
        self.assertEqual(self.recovered_online, [])

    def test_all_catalogs_are_healthy(self):
        self.assertEqual(self.verdict({**self.expected, "catalogs": "all"}), "")

    def test_every_kind_has_worked(self):
        for kind in workload.KINDS:
            done = [e for e in self.acks if e["client"] == f"{kind}-1" and e["what"] == "ack"]
            if kind not in ("catalog", "checkpoint", "mode"):
                self.assertTrue(done, kind)
        self.assertFalse([e for e in self.acks if e.get("unknown") or e["what"] == "complaint"])
        self.assertTrue([e for e in self.acks if e["what"] == "effect"])

    # Journal.

    def test_lost_transaction(self):
        n = self.acked("copy")
        self.sql(f"DELETE FROM oracle.journal WHERE client = 'copy-1' AND n = {n}")
        self.assertIn(f"client copy-1: transaction {n} was acknowledged,"
                      f" the last one there is {n - 1}", self.verdict())

    def test_gap_in_the_journal(self):
        self.sql("DELETE FROM oracle.journal WHERE client = 'copy-1' AND n = 2")
        self.assertIn("not a gapless prefix", self.verdict())

    def test_transaction_that_was_never_issued(self):
        n = self.acked("copy") + 1
        self.sql("INSERT INTO oracle.journal SELECT client, n + 1, state FROM oracle.now"
                 " WHERE client = 'copy-1'")
        self.assertEqual(self.verdict(), f"client copy-1: transaction {n} is there,"
                                         f" the last one issued was {n - 1}")

    def test_complaint_of_the_load_itself(self):
        acks = [*self.acks, {"t": 1, "client": "x", "what": "complaint", "text": "found nothing"}]
        self.assertEqual(self.verdict(oracle.expectation(acks, self.moment)), "found nothing")

    # Tables.

    def test_lost_row(self):
        self.sql("DELETE FROM load.scan_1_t WHERE id = (SELECT min(id) FROM load.scan_1_t)")
        self.assertIn("table load.scan_1_t after", self.verdict())

    def test_changed_byte(self):
        self.sql("UPDATE load.toast_1_t SET body = overlay(body placing 'x' from 100)"
                 " WHERE id = (SELECT max(id) FROM load.toast_1_t)")
        self.assertIn("table load.toast_1_t after", self.verdict())

    def test_table_that_should_not_be_there(self):
        self.sql("CREATE TABLE load.surprise (id int)")
        self.assertEqual(self.verdict(), "table load.surprise should not be there")

    def test_lost_table(self):
        self.sql("DROP TABLE load.hint_1_t")
        self.assertIn("client hint-1: table load.hint_1_t is missing", self.verdict())

    def test_lost_index(self):
        self.sql("DROP INDEX load.method_1_gin_gin")
        self.assertIn("table load.method_1_gin: indexes are {}", self.verdict())

    def test_wrong_persistence(self):
        self.sql("ALTER TABLE load.hint_1_t SET UNLOGGED")
        self.assertIn("table load.hint_1_t: unlogged is t, not f", self.verdict())

    def test_unlogged_table_may_be_empty_but_not_else(self):
        name = self.sql("SELECT min(oid::regclass::text) FROM pg_class WHERE relkind = 'r'"
                        " AND relpersistence = 'u'")
        if not name:
            self.skipTest("no table is unlogged at the end of this run")
        self.assertEqual(self.sql(f"SELECT count(*) FROM {name[0]}"), ["0"])
        self.sql(f"INSERT INTO {name[0]} (id, v, body) VALUES (1, 1, '')")
        self.assertIn(f"table {name[0]} after", self.verdict())

    # Transfers.

    def test_changed_balance(self):
        self.sql("UPDATE load.accounts SET balance = balance + 1 WHERE id = 7")
        complaints = self.verdict()
        self.assertIn("account 7: balance is", complaints)
        self.assertIn("accounts: 1500 hold 1500001 together", complaints)

    def test_lost_history(self):
        self.sql("DELETE FROM load.history WHERE client = 'transfer-2' AND n = 2")
        self.assertIn("client transfer-2: transfer 2 is (, , ) in the history", self.verdict())

    def test_lost_account(self):
        self.sql("DELETE FROM load.accounts WHERE id = 9")
        self.assertIn("accounts: 1499 hold", self.verdict())

    # Large objects.

    def test_large_object_that_is_lost_or_not_what_it_was(self):
        number = self.sql("SELECT max(oid) FROM pg_largeobject_metadata")[0]
        self.sql(f"SELECT lo_put({number}, 0, '\\x00')", f"SELECT lo_put({number}, 0, '\\x01')")
        self.assertIn(f"large object {number} after", self.verdict())
        self.sql(f"SELECT lo_unlink({number})", "SELECT lo_create(77)")
        complaints = self.verdict()
        self.assertIn(f"large object {number}: ", complaints)
        self.assertIn("large object 77 should not be there", complaints)

    # Sequences, prepared transactions, databases, tablespaces.

    def test_sequence_that_went_back(self):
        self.sql("SELECT setval('load.sequence_1_stays', 1)")
        self.assertIn("sequence load.sequence_1_stays: the next value is 2, but", self.verdict())

    def test_lost_prepared_transaction(self):
        events = [*self.acks, {"t": 1, "client": "prepared-1", "what": "prepared", "n": 999,
                               "gid": "prepared-1:999:0"}]
        self.assertIn("prepared transaction prepared-1:999:0 is lost",
                      self.verdict(oracle.expectation(events, self.moment)))

    def test_prepared_transaction_that_should_be_over(self):
        instance = self.cluster.serve(self.data())
        try:
            connection = instance.connect()
            connection.autocommit = True
            connection.cursor().execute("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'x:1:1'")
            connection.close()
            instance.stop()
        finally:
            instance.close()
        self.assertIn("transaction x:1:1 should not be prepared", self.verdict())
        self.assertNotIn("x:1:1", self.verdict(
            {**self.expected, "prepared": {"x:1:1": {"client": "x", "n": 1, "fate": "there"}}}))

    def test_lost_database(self):
        complaints = self.verdict({**self.expected, "databases": {
            "template0": False, "nowhere": True, "any": None}})
        self.assertIn("database nowhere: present is f, not true", complaints)
        self.assertIn("database template0: present is t, not false", complaints)
        self.assertNotIn("any", complaints)

    def test_lost_tablespace(self):
        self.assertIn("tablespace nowhere: present is f, not true",
                      self.verdict({**self.expected, "tablespaces": {"nowhere": True}}))

    def test_database_without_files(self):
        self.sql("CREATE DATABASE emptied TEMPLATE template0 STRATEGY file_copy")
        (oid,) = self.sql("SELECT oid FROM pg_database WHERE datname = 'emptied'")
        self.assertEqual(self.verdict(), "")
        (self.data() / "base" / oid / "PG_VERSION").unlink()
        self.assertEqual(self.verdict(), f"database emptied: there is no base/{oid}/PG_VERSION")

    def test_difference_in_a_copied_database(self):
        for strategy in ("wal_log", "file_copy"):
            with self.subTest(strategy):
                name = f"copy_{strategy}"
                self.sql(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY {strategy}")
                expected = {**self.expected, "copies": [name]}
                self.assertEqual(self.verdict(expected), "")
                oid, node = self.sql(f"SELECT oid FROM pg_database WHERE datname = '{name}'",
                                     "SELECT pg_relation_filenode('pg_description')")
                path = self.data() / "base" / oid / node
                self.patch(path, lambda content: content.__setitem__(
                    PAGE + 8000, content[PAGE + 8000] ^ 1))
                self.assertEqual(self.verdict(expected),
                                 f"database {name}: file {node} differs in block 1")
                path.unlink()
                self.assertIn(f"database {name}: file {node}: could not open",
                              self.verdict(expected))

    def test_copied_database_that_is_in_shared_buffers(self):
        expected = {**self.expected, "copies": ["copied"]}
        instance = self.cluster.serve(self.data())
        try:
            with closing(instance.connect()) as connection:
                connection.autocommit = True
                connection.cursor().execute(
                    "CREATE DATABASE copied TEMPLATE template0 STRATEGY wal_log")
            for checkpoint in (False, True):
                self.assertEqual(oracle.verify_connected(instance.connect, expected,
                                                         checkpoint=checkpoint), [])
            instance.stop()
        finally:
            instance.close()

    # Pages.

    def test_torn_heap_page(self):
        path = self.path("load.scan_1_t")
        self.patch(path, lambda content: content.__setitem__(slice(4096, PAGE), bytes(PAGE - 4096)))
        # A build with assertions may stop at such rows.
        self.assertRegex(self.verdict(), r"(?s)table load.scan_1_t.*heap load.scan_1_t: block 0,"
                         "|no verdict, exit status -6: TRAP")

    def test_other_version_of_a_page(self):
        # Whole and well-formed, but not what was committed: only rows tell.
        path = self.path("load.scan_1_t")
        other = path.read_bytes().replace(b"aaa", b"bbb")
        path.write_bytes(other)
        complaints = self.verdict()
        self.assertIn("table load.scan_1_t after", complaints)
        self.assertNotIn("heap", complaints)

    def test_bad_page_header(self):
        path = self.path("load.scan_1_t")
        self.patch(path, lambda content: content.__setitem__(slice(0, 24), b"x" * 24))
        complaints = self.verdict()
        self.assertIn("invalid page in block 0", complaints)
        self.assertIn("heap load.scan_1_t: invalid page", complaints)

    def test_lost_toast_chunk(self):
        self.sql("VACUUM FULL load.toast_1_t")
        toast, = self.sql("SELECT reltoastrelid::regclass FROM pg_class"
                          " WHERE oid = 'load.toast_1_t'::regclass")
        self.patch(self.path(toast), drop_last_item)
        complaints = self.verdict()
        self.assertIn("table load.toast_1_t: ", complaints)
        self.assertIn("heap load.toast_1_t: block", complaints)

    def test_lost_index_entry(self):
        self.sql("REINDEX INDEX load.method_1_btree_btree")
        self.patch(self.path("load.method_1_btree_btree"), drop_last_item)
        complaints = self.verdict()
        self.assertIn("index load.method_1_btree_btree: heap tuple", complaints)
        self.assertIn("index load.method_1_btree_btree: rows and sum of ids", complaints)

    def test_lost_key_of_a_primary_key(self):
        self.sql("REINDEX INDEX load.hint_1_t_pkey")
        self.patch(self.path("load.hint_1_t_pkey"), drop_last_item)
        self.assertRegex(self.verdict(),
                         r"table load.hint_1_t: \d+ rows by primary key, \d+ by scan")

    def test_index_that_misses_a_row(self):
        # A row put into the heap behind the back of each access method.
        for method in sorted(METHODS):
            with self.subTest(method):
                table = f"load.method_1_{method}"
                self.copied = None
                self.sql(f"UPDATE pg_index SET indisready = false, indislive = true"
                         f" WHERE indexrelid = '{table}_{method}'::regclass",
                         f"INSERT INTO {table} (id, v, body)"
                         " SELECT 1000000 + g, g * 100000 + 50, '' FROM generate_series(0, 9) g",
                         f"UPDATE pg_index SET indisready = true"
                         f" WHERE indexrelid = '{table}_{method}'::regclass")
                complaints = self.verdict()
                if method == "brin":
                    # New blocks that no range summarises are scanned, as they must.
                    self.assertIn(f"table {table} after", complaints)
                else:
                    self.assertIn(f"index {table}_{method}: rows and sum of ids", complaints)

    def test_summary_that_is_too_narrow(self):
        path = self.path("load.method_1_brin_brin")

        def narrow(content):
            # Regular pages follow the map: change the bounds in their tuples.
            for page in range(2 * PAGE, len(content), PAGE):
                upper = int.from_bytes(content[page + 14:page + 16], "little")
                special = int.from_bytes(content[page + 16:page + 18], "little")
                for at in range(page + upper, page + special, 24):
                    content[at + 8:at + 24] = bytes(16)

        self.patch(path, narrow)
        self.assertIn("index load.method_1_brin_brin: ", self.verdict())

    def test_broken_gin_page(self):
        path = self.path("load.method_1_gin_gin")
        self.patch(path, lambda content: content.__setitem__(
            slice(PAGE + 24, PAGE + 28), content[PAGE + 28:PAGE + 32]))
        self.assertIn("index load.method_1_gin_gin: ", self.verdict())

    def test_index_without_its_file(self):
        self.path("load.method_1_gist_gist").unlink()
        self.assertIn("index load.method_1_gist_gist: could not open file", self.verdict())

    def test_table_without_its_file(self):
        self.path("load.hint_1_t").unlink()
        self.assertIn("table load.hint_1_t: could not open file", self.verdict())

    def test_stale_visibility_map(self):
        if not self.sql("SELECT name FROM pg_available_extensions WHERE name = 'pg_visibility'"):
            self.skipTest("this build has no pg_visibility")
        self.sql("VACUUM FREEZE load.scan_1_t")
        path = self.path("load.scan_1_t")
        old = path.with_name(path.name + "_vm").read_bytes()
        # Heap and map disagree after a row is changed and put back.
        self.sql("UPDATE load.scan_1_t SET v = v WHERE ctid < '(1,0)'")
        path.with_name(path.name + "_vm").write_bytes(old)
        complaints = self.verdict()
        self.assertIn("heap load.scan_1_t: not all-visible, though the map says so", complaints)
        self.assertIn("heap load.scan_1_t: not all-frozen, though the map says so", complaints)

    def test_garbage_in_the_free_space_map(self):
        path = self.path("load.scan_1_t")
        self.patch(path.with_name(path.name + "_fsm"),
                   lambda content: content.__setitem__(slice(0, PAGE), b"x" * PAGE))
        file = path.relative_to(path.parents[2])
        self.assertIn(f"relation load.scan_1_t: block 0 of its fsm fork ({file}_fsm) is not a page",
                      self.verdict())

    def test_files_that_are_not_current(self):
        path = Path(f"{self.path('load.accounts')}_fsm")
        instance = self.cluster.serve(self.data())
        self.addCleanup(instance.close)
        path.write_bytes(b"x" * PAGE)
        for checkpoint in (False, True):
            complaints = oracle.verify_connected(instance.connect, self.expected,
                                                 checkpoint=checkpoint)
            self.assertEqual(["is not a page" in text for text in complaints], [True] * checkpoint)

    def test_lost_init_fork(self):
        self.sql("CREATE UNLOGGED TABLE public.u (id int PRIMARY KEY)")
        path = self.path("public.u_pkey")
        self.assertEqual(self.verdict(), "")
        path.with_name(path.name + "_init").unlink()
        self.assertIn("no init fork", self.verdict())

    def test_damaged_catalog(self):
        self.sql("REINDEX INDEX pg_depend_reference_index")
        self.patch(self.path("pg_depend_reference_index"), drop_last_item)
        self.assertIn("index pg_depend_reference_index: heap tuple", self.verdict())
        self.assertNotIn("pg_depend", self.verdict(quick=True))

    # Files.

    def test_orphaned_file(self):
        oid, = self.sql("SELECT oid FROM pg_database WHERE datname = 'postgres'")
        orphan = f"base/{oid}/999999"
        (self.data() / orphan).write_bytes(bytes(PAGE))
        self.assertEqual(self.verdict(), f"file {orphan} of 8192 bytes belongs to no relation")
        (self.data() / orphan).write_bytes(b"")
        self.assertEqual(self.verdict(), "")

    def test_orphaned_fork_in_a_tablespace(self):
        oid, database = self.sql("SELECT oid FROM pg_tablespace WHERE spcname = 'load_kept_0'",
                                 "SELECT oid FROM pg_database WHERE datname = 'postgres'")
        version, = (self.data() / "pg_tblspc" / oid).iterdir()
        directory = version / database
        directory.mkdir(exist_ok=True)
        server.own(directory)
        (directory / "999999_vm").write_bytes(bytes(PAGE))
        self.assertIn("/999999 of 8192 bytes belongs to no relation", self.verdict())

    def test_orphaned_database(self):
        (self.data() / "base" / "999999").mkdir()
        self.assertEqual(self.verdict(), "directory base/999999 belongs to no database")

    # No verdict at all.

    def test_server_that_does_not_start(self):
        (self.data() / "global" / "pg_control").unlink()
        self.assertIn("no verdict, exit status", self.verdict())

    def test_oracle_that_is_gone(self):
        self.sql("DROP FUNCTION oracle.verdict")
        self.assertIn("no verdict, exit status 0", self.verdict())


class ExpectationTest(unittest.TestCase):
    """What follows from acks, without a cluster."""

    def expect(self, *events, moment=None):
        acks = [{"t": t, "client": client, "what": what, **details}
                for t, (client, what, details) in enumerate(events)]
        return oracle.expectation(acks, len(acks) if moment is None else moment)

    def test_numbers(self):
        events = [("", "resumed", dict(clients={"a": 4}, prepared=[], databases=[],
                                       tablespaces=[])),
                  ("a", "issue", dict(n=5)), ("a", "ack", dict(n=5)),
                  ("a", "issue", dict(n=6)), ("a", "fail", dict(n=6)),
                  ("a", "issue", dict(n=6)), ("a", "fail", dict(n=6, unknown=True))]
        wanted = [(4, 4), (4, 5), (5, 5), (5, 6), (5, 5), (5, 6), (5, 6)]
        for moment, (acked, issued) in enumerate(wanted):
            with self.subTest(moment=moment):
                self.assertEqual(self.expect(*events, moment=moment)["clients"]["a"],
                                 {"acked": acked, "issued": issued})
        self.assertEqual(self.expect(*events, moment=-1)["clients"]["a"], {"acked": 4, "issued": 4})

    def test_lazy_transactions(self):
        events = [("a", "issue", dict(n=1)), ("a", "ack", dict(n=1, lazy=True)),
                  ("a", "issue", dict(n=2)), ("a", "ack", dict(n=2))]
        wanted = [(0, 1), (0, 1), (0, 2), (2, 2)]
        for moment, (acked, issued) in enumerate(wanted):
            with self.subTest(moment=moment):
                self.assertEqual(self.expect(*events, moment=moment)["clients"]["a"],
                                 {"acked": acked, "issued": issued})

    def test_what_a_primary_has_promises_nothing_of_its_standby(self):
        def resumed(clients):
            return "", "resumed", dict(clients=clients, prepared=[], databases=[], tablespaces=[],
                                       lazy=True)

        found = self.expect(
            resumed({"a": 4}), ("a", "issue", dict(n=5)), ("a", "ack", dict(n=5)),
            ("a", "issue", dict(n=6)), ("a", "ack", dict(n=6, lazy=True)), resumed({"a": 6, "b": 2}))
        self.assertEqual(found["clients"], {"a": {"acked": 5, "issued": 6},
                                            "b": {"acked": 0, "issued": 2}})

    def test_prepared(self):
        one = dict(n=3, gid="g")
        events = [("p", "prepare", one), ("p", "prepared", one), ("p", "issue", dict(n=3)),
                  ("p", "decide", {**one, "commit": True}), ("p", "ack", dict(n=3)),
                  ("p", "finished", one)]
        fates = ["may", "there", "there", "decided", "decided", None]
        for moment, fate in enumerate(fates):
            with self.subTest(moment=moment):
                found = self.expect(*events, moment=moment)["prepared"].get("g")
                self.assertEqual(found and found["fate"], fate)

    def test_databases(self):
        def effect(name, present, done):
            return "d", "effect", dict(object="database", name=name, present=present, done=done)

        events = [effect("x", True, False), effect("x", True, True), ("d", "touch", dict(name="x")),
                  effect("x", False, False), effect("x", False, True)]
        wanted = [(None, []), (True, ["x"]), (True, []), (None, []), (False, [])]
        for moment, (present, copies) in enumerate(wanted):
            with self.subTest(moment=moment):
                found = self.expect(*events, moment=moment)
                self.assertEqual((found["databases"]["x"], found["copies"]), (present, copies))

    def test_a_new_run_settles_what_was_in_doubt(self):
        found = self.expect(
            ("", "resumed", dict(clients={"a": 1}, prepared=[], databases=[], tablespaces=[])),
            ("a", "issue", dict(n=2)), ("p", "prepare", dict(n=3, gid="g")),
            ("d", "effect", dict(object="database", name="x", present=True, done=False)),
            ("", "resumed", dict(clients={"a": 1}, prepared=["h"], databases=["x"],
                                 tablespaces=[])))
        self.assertEqual(found["clients"], {"a": {"acked": 1, "issued": 1}})
        self.assertEqual(list(found["prepared"]), ["h"])
        self.assertEqual(found["databases"], {"x": True})

    def test_orphans(self):
        acks = [{"t": 10, "client": "a", "what": "begin", "effect": 1},
                {"t": 20, "client": "a", "what": "end", "effect": 1},
                {"t": 30, "client": "a", "what": "begin", "effect": 2, "paths": ["base/9"]},
                {"t": 40, "client": "a", "what": "end", "effect": 2, "failed": True},
                {"t": 50, "client": "a", "what": "begin", "effect": 3}]
        ops = [(15, "create", "base/5/1"), (35, "create", "base/5/2_fsm"),
               (45, "create", "base/5/3"), (55, "create", "./base/5/4.1"),
               (12, "unlink", "base/5/5"), (58, "create", "base/77")]

        def allowed(moment):
            return oracle.orphans_allowed(acks, moment, ops)

        self.assertEqual(allowed(16), ["base/5/1", "base/5/5"])
        self.assertEqual(allowed(25), ["base/5/5"])
        self.assertEqual(allowed(60), ["base/5/2", "base/5/4", "base/5/5", "base/77", "base/9"])

    def test_orphans_about_to_go(self):
        acks = [{"t": 10, "client": "a", "what": "begin", "effect": 1},
                {"t": 12, "client": "b", "what": "begin", "effect": 1},
                {"t": 20, "client": "a", "what": "end", "effect": 1},
                {"t": 25, "client": "b", "what": "end", "effect": 1},
                {"t": 30, "client": "a", "what": "begin", "effect": 2},
                {"t": 40, "client": "", "what": "resumed"}]
        ops = [(18, "drop", "base/5/1"), (24, "drop", "base/5/2"), (35, "drop", "base/5/3"),
               (45, "drop", "base/5/4")]

        def allowed(moment, acks=acks):
            return oracle.orphans_allowed(acks, moment, ops)

        self.assertEqual(allowed(5), [])
        self.assertEqual(allowed(15), ["base/5/1", "base/5/2"])
        self.assertEqual(allowed(22), ["base/5/2"])
        self.assertEqual(allowed(26), [])
        self.assertEqual(allowed(32), ["base/5/3"])
        self.assertEqual(allowed(32, acks[:-1]), ["base/5/3", "base/5/4"])


class AlarmsTest(unittest.TestCase):
    """What is a finding though no verdict speaks of it."""

    def test_clients(self):
        events = [{"client": "a", "what": "fail", "error": text, "sqlstate": code}
                  for code, text in (("40P01", "deadlock"), ("XX000", "bug"), ("58P01", "no file"),
                                     ("", "gone"), ("XX000", "bug"))]
        self.assertEqual(alarms.of_clients([*events, {"client": "a", "what": "ack", "n": 1}]),
                         ["a was told XX000: bug", "a was told 58P01: no file"])

    def test_clients_that_were_told_what_may_be_old(self):
        def told(*answers, classes=alarms.CLASSES):
            return alarms.of_clients([{"client": "a", "what": "fail", "error": text, "sqlstate": code}
                                      for code, text in answers], classes)
        stale = (("23505", "duplicate key"), ("42P01", "no table"), ("", "COMMIT rolled back"),
                 ("", 'FATAL: database "postgres" does not exist'))
        self.assertEqual(len(told(*stale)), len(stale))
        self.assertEqual(told(*stale, classes=("XX",)), [])
        self.assertEqual(told(("25006", "read-only"), ("40001", "conflict"), ("55P03", "locked"),
                              ("", "FATAL: the database system is shutting down"),
                              ("", "FATAL: canceling statement due to conflict with recovery")), [])

    def test_reader_that_fails_in_its_own_way(self):
        class Connection:
            set_session = close = lambda self, *arguments, **options: None
        reader = readers.Reader(lambda database: Connection())
        reader.run()
        self.assertIn("the reader has ended: TypeError", reader.complaints[0])
        self.assertEqual(reader.snapshots, 0)

    def test_reader_that_is_told_to_stop_before_its_turn(self):
        cancelled = "canceling statement due to conflict with recovery"
        for errors, snapshots in ((), 1), ((cancelled, cancelled), 1), ((cancelled, "gone"), 0):
            connection = mock.MagicMock()
            connection.__exit__.return_value = None
            connection.cursor.return_value.__exit__.return_value = None
            reader = readers.Reader(lambda database, connection=connection: connection)
            reader.stop.set()
            with mock.patch.object(readers, "disagreements", side_effect=[
                    *map(psycopg2.OperationalError, errors), []]):
                reader.run()
            self.assertEqual((reader.complaints, reader.snapshots), ([], snapshots), errors)
            self.assertEqual([text for _, text in reader.codes], list(errors))

    def test_checkpoint_where_writes_are_made_to_fail(self):
        events = [{"client": "a", "what": "fail", "sqlstate": "XX000",
                   "error": "checkpoint request failed HINT: Consult recent messages"}]
        self.assertEqual(len(alarms.of_clients(events)), 1)
        self.assertEqual(alarms.of_clients(events, ("XX",)), [])
        line = "2026-01-01 00:00:00.000 UTC [7] XX000 ERROR:  checkpoint request failed"
        self.assertEqual(alarms.of_server(line), [line])
        self.assertEqual(alarms.of_server(line, ("XX",)), [])

    def test_server(self):
        lines = ["2026-01-01 00:00:00.000 UTC [7] XX001 ERROR:  invalid page",
                 "2026-01-01 00:00:00.000 UTC [7] XX001 WARNING:  page verification failed",
                 "2026-01-01 00:00:00.000 UTC [7] 57P01 FATAL:  terminating connection",
                 "2026-01-01 00:00:00.000 UTC [7] 58030 FATAL:  could not read"]
        self.assertEqual(alarms.of_server("\n".join(lines)), [lines[0], lines[3]])

    def ended(self, signal, who="server process"):
        return f"2026-01-01 UTC [7] 00000 LOG:  {who} (PID 17) was terminated by signal {signal}: x"

    def test_processes_that_crash(self):
        crashed = [self.ended(signal) for signal in (4, 6, 7, 8, 9, 11)]
        crashed += ["[7] PANIC:  no", 'TRAP: failed Assert("x")']
        other = [self.ended(signal) for signal in (1, 3, 15)]
        other += ["[7] FATAL:  archive command was terminated by signal 9: Killed"]
        log = "\n".join(crashed + other)
        self.assertEqual(alarms.bad_lines(log), crashed)
        self.assertEqual(alarms.crashes(log, fails=True), [
            line for line in crashed if "PANIC" not in line and "signal 6" not in line])
        for killed in (alarms.crashes(log, kills=True), alarms.crashes(
                f"{log}\n[7] LOG:  issuing SIGKILL to recalcitrant children")):
            self.assertEqual(killed, [line for line in crashed if "signal 9" not in line])

    def test_what_belongs_to_nothing(self):
        complaints = ["file base/5/17 of 8192 bytes belongs to no relation",
                      "promoted: file pg_tblspc/9/PG/5/18 of 1 bytes belongs to no relation",
                      "directory base/19 belongs to no database", "file base/5/20 differs in block 1"]
        self.assertEqual(alarms.left_over(complaints),
                         ["base/5/17", "pg_tblspc/9/PG/5/18", "base/19"])


class PagesTest(unittest.TestCase):
    """Pages that have an LSN after the end of WAL."""

    FILES = ("global/17", "base/5/17", "base/5/18", "base/5/18.1", "base/5/18_vm", "base/5/180",
             "base/77/17", "base/77/16384", "base/78/17", "pg_tblspc/9/PG/5/17")

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="pgcut-pages-")
        self.addCleanup(holder.cleanup)
        self.data = Path(holder.name)
        for file in (*self.FILES, "base/5/19"):
            (self.data / file).parent.mkdir(parents=True, exist_ok=True)
            (self.data / file).write_bytes(self.page(100) + self.page(100 + (file != "base/5/19")))
        (self.data / "global/pg_control").write_bytes(bytes(32) + (100).to_bytes(8, "little"))

    def page(self, lsn):
        return bytes(4) + lsn.to_bytes(4, "little") + bytes(PAGE - 8)

    def complained_of(self, *left_over):
        return sorted(text.split()[3] for text in pages.future_lsns(self.data, left_over))

    def test_all_files_that_belong_to_something(self):
        # of another database the oracle does not know which do
        known = sorted({*self.FILES} - {"base/77/16384"})
        self.assertEqual(self.complained_of(), known)
        self.assertEqual(self.complained_of("base/5/999"), known)

    def test_what_is_left_over(self):
        self.assertEqual(self.complained_of("base/5/18", "base/77", "pg_tblspc/9/PG/5/17"),
                         ["base/5/17", "base/5/180", "base/78/17", "global/17"])


class StopTest(unittest.TestCase):
    """A fast stop has to end properly."""

    def stopped(self, status, **options):
        """Stop what ends with a status when it is told to."""
        instance = server.Server("", "", None)
        instance._process = subprocess.Popen(
            # a shell cannot trap what is ignored where it is started, as in the background
            [sys.executable, "-c", "import os, signal\n"
             "for told in signal.SIGINT, signal.SIGQUIT:\n"
             f"    signal.signal(told, lambda *_: os._exit({status}))\n"
             "print(flush=True)\n"
             "while True: signal.pause()"], stdout=subprocess.PIPE)
        self.addCleanup(instance._process.stdout.close)
        instance._process.stdout.readline()
        instance.stop(**options)

    def test_exit_status(self):
        self.stopped(0)
        self.stopped(1, how=signal.SIGQUIT)
        with self.assertRaisesRegex(server.ServerError, "exit status is 1"):
            self.stopped(1)
        self.stopped(1, properly=False)

    def test_server_that_has_gone(self):
        instance = server.Server("", "", None)
        instance._process = subprocess.Popen(["sh", "-c", "kill -SEGV $$"])
        instance._process.wait()
        with self.assertRaisesRegex(server.ServerError, "exit status is -11"):
            instance.stop()


class ClientsTest(unittest.TestCase):
    """What clients find out for themselves."""

    @classmethod
    def setUpClass(cls):
        if psycopg2 is None:
            raise unittest.SkipTest("python3-psycopg2 is not installed")
        holder = tempfile.TemporaryDirectory(prefix="pgcut-clients-", dir=SCRATCH)
        cls.addClassCleanup(holder.cleanup)
        cls.cluster = cluster = Cluster(bindir(), holder.name, checksums=True)
        cls.addClassCleanup(lambda: cluster.instance.close())

    def client(self, kind):
        """Return a client that is connected, and of which nothing is left to chance."""
        client, = workload.make_clients(Run(self.cluster.instance.connect, 5), {kind: 1})
        self.assertTrue(client.try_connect())
        self.addCleanup(client.connection.close)
        client.aborts = 0
        return client

    def complaints(self, client):
        return [event["text"] for event in client.run.record.acks if event["what"] == "complaint"]

    def test_reader_says_what_it_saw(self):
        def about(cursor, table):
            return [text for text in readers.disagreements(cursor) if text.startswith(table)]

        with closing(self.cluster.instance.connect()) as connection, connection.cursor() as cursor:
            self.assertEqual(about(cursor, "load.toast_1_t"), [])
            cursor.execute("DELETE FROM load.toast_1_t WHERE id = 1")
            *wrong, evidence = about(cursor, "load.toast_1_t")
        self.assertEqual(len(wrong), len(plans.PLANS))
        self.assertRegex(evidence, r"^load.toast_1_t in snapshot \d+:\d+:.* rows by transaction"
                         r"( \d+:\d+)+; journal: file \d+, .* \d+:1$")

    def test_copy_that_fails_twice(self):
        class Cursor:
            def __init__(self, cause):
                self.cause = cause

            def copy_expert(self, *_):
                raise SystemError("returned a result with an exception set") from self.cause

        for cause, raised in ((psycopg2.errors.IndexCorrupted("unexpected zero page"),
                               psycopg2.errors.IndexCorrupted), (ValueError(), SystemError)):
            with self.assertRaises(raised):
                Table("t").load(Cursor(cause), random.Random(1), 3)

    def test_looks_by_every_plan(self):
        client = self.client("method")
        client.model = {name: table for name, table in client.model.items() if "btree" in name}
        table = client.any_table()
        client.look()
        self.assertEqual(self.complaints(client), [])
        table.forget([max(table.rows)])
        client.look()
        found = "\n".join(self.complaints(client))
        for plan in plans.PLANS:
            self.assertIn(f"by a scan that is {plan}: {len(table.rows) + 1} rows", found)

    def test_looks_by_indexes(self):
        client = self.client("method")
        name = "load.method_1_hash"
        client.model = {name: client.model[name]}
        with closing(self.cluster.instance.connect()) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            for ready in "false", "true":
                cursor.execute(f"UPDATE pg_index SET indisready = {ready}"
                               f" WHERE indexrelid = '{name}_hash'::regclass")
                if ready == "false":
                    with client.transaction(deliberate=False) as own:
                        client.any_table().insert(own, client.rng, 3)
        client.look()
        self.assertIn("rows and sum of ids are", "\n".join(self.complaints(client)))

    def test_complains_of_what_does_not_end(self):
        client = self.client("transfer")
        ((limit,),) = client.query("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'")
        self.assertEqual(int(limit), round(STATEMENT_SECONDS * 1000))
        client.connection.cursor().execute("SET statement_timeout = 10")
        self.assertEqual(client.query("SELECT pg_sleep(600)"), [])
        (found,) = self.complaints(client)
        self.assertIn("did not end: canceling statement due to statement timeout", found)

    def test_looks_at_accounts(self):
        client = self.client("transfer")
        client.look()
        self.assertEqual(self.complaints(client), [])
        with closing(self.cluster.instance.connect()) as connection:
            connection.cursor().execute("UPDATE load.accounts SET balance = balance + 1"
                                        " WHERE id = 3")
            connection.commit()
        client.look()
        self.assertEqual(len(self.complaints(client)), 3)

    def test_decides_what_was_left_prepared(self):
        decided = set()
        for seed in range(20):
            client = self.client("prepared")
            client.rng.seed(seed)
            before, n = client.save(), client.n + 1
            with client.connection.cursor() as cursor:
                cursor.execute("BEGIN")
                client.table("t").insert(cursor, client.rng, 2)
                cursor.execute("INSERT INTO oracle.journal VALUES (%s, %s, %s)",
                               (client.name, n, json.dumps(client.state())))
                cursor.execute(f"PREPARE TRANSACTION '{client.name}:{n}:0'")
            prepared, _ = client.save()
            client.restore(before)
            client.connection.close()
            self.assertTrue(client.connect())
            self.assertEqual(self.complaints(client), [])
            decided.add(client.n == n)
            wanted = prepared if client.n == n else before[0]
            self.assertEqual({t.name: t.sum for t in client.model.values()},
                             {t.name: t.sum for t in wanted.values()})
        self.assertEqual(decided, {False, True})


class LivesTest(unittest.TestCase):
    """A server that is killed under load, recovers, and goes on."""

    def kill_after(self, instance, count):
        """Return a sink of events that kills a server after so many acknowledgements.

        Also returns the thread that does it: the sink may not wait.
        """
        killer = threading.Thread(target=instance.kill)
        acks = itertools.count(1)

        def sink(event):
            if event["what"] == "ack" and next(acks) == count:
                killer.start()

        return sink, killer

    def test_lives(self):
        if psycopg2 is None:
            self.skipTest("python3-psycopg2 is not installed")
        programs = bindir()
        holder = tempfile.TemporaryDirectory(prefix="pgcut-lives-", dir=SCRATCH)
        self.addCleanup(holder.cleanup)
        cluster = Cluster(programs, holder.name, checksums=True)
        self.addCleanup(lambda: cluster.instance.close())
        acks = []
        for life in range(3):
            sink, killer = self.kill_after(cluster.instance, 300 + 100 * life)
            acks += workload.run(cluster.instance.connect, seed=life,
                                 modes=cluster.modes(), sink=sink)
            killer.join()
            moment = time.monotonic_ns()
            expected = oracle.expectation(acks, moment)
            complaints, log = oracle.verify_single(programs, cluster.copy(), expected)
            # When files were created was not recorded.
            self.assertEqual(without_left_over(complaints), [], log)
            cluster.instance.start()
            self.assertEqual(without_left_over(
                oracle.verify_connected(cluster.instance.connect, expected)), [])
        self.assertFalse([e for e in acks if e["what"] == "complaint"])

    def test_standby_that_is_behind(self):
        if psycopg2 is None:
            self.skipTest("python3-psycopg2 is not installed")
        programs = bindir()
        holder = tempfile.TemporaryDirectory(prefix="pgcut-standby-", dir=SCRATCH)
        self.addCleanup(holder.cleanup)
        cluster = Cluster(programs, holder.name, checksums=True)
        self.addCleanup(lambda: cluster.instance.close())
        run = []
        # No in-place tablespace may come and go: pg_basebackup would have to copy it.
        kinds = [kind for kind in workload.KINDS if kind != "tablespace"]
        load = threading.Thread(target=lambda: run.extend(workload.run(
            cluster.instance.connect, kinds, transactions=STEPS, seed=3,
            modes=cluster.modes())))
        load.start()
        standby = cluster.directory / "standby"
        # Without the slot, a primary so small removes WAL before a slow standby has it.
        server.run(programs, "pg_basebackup", "-h", cluster.instance.sockets, "-U", server.USER,
                   "-D", standby, "-R", "-c", "fast", "--no-sync", "-C", "-S", "standby")
        instance = cluster.serve(standby)
        self.addCleanup(instance.close)
        load.join()
        wait_for_replay(cluster.instance, instance)
        expected = oracle.lagging(oracle.expectation(run, time.monotonic_ns()))
        self.assertEqual(oracle.verify_connected(instance.connect, expected), [])
        instance.stop()
        (standby / "standby.signal").unlink()
        complaints, log = oracle.verify_single(programs, standby, expected)
        self.assertEqual(complaints, [], log)
        ahead = {**expected, "clients": {"toast-1": {"acked": 0, "issued": 1}}}
        complaints, _ = oracle.verify_single(programs, standby, ahead)
        self.assertIn("the last one issued was 1", "\n".join(complaints))

    def test_chunks_of_dead_rows_on_a_standby(self):
        if psycopg2 is None:
            self.skipTest("python3-psycopg2 is not installed")
        programs = bindir()
        holder = tempfile.TemporaryDirectory(prefix="pgcut-chunks-", dir=SCRATCH)
        self.addCleanup(holder.cleanup)
        cluster = Cluster(programs, holder.name, checksums=False)
        self.addCleanup(lambda: cluster.instance.close())
        with closing(cluster.instance.connect()) as connection, \
                closing(cluster.instance.connect()) as other:
            connection.autocommit = other.autocommit = True
            cursor = connection.cursor()
            cursor.execute("CREATE TABLE public.tail AS SELECT g FROM generate_series(1, 9999) g")
            cursor.execute("DELETE FROM public.tail")
            cursor.execute("CHECKPOINT")
            other.cursor().execute("BEGIN; LOCK TABLE public.tail IN ACCESS SHARE MODE")
            while not self.removed_beside_vacuum(cluster.instance, cursor):
                pass
            # What commits makes the WAL of VACUUM durable.
            cursor.execute("SELECT pg_logical_emit_message(true, '', '')")
            cluster.instance.kill()
        with server.as_user():
            (cluster.data / "standby.signal").touch()
        instance = cluster.serve(cluster.data)
        self.addCleanup(instance.close)
        wait_for(lambda: "waiting for WAL to become available" in instance.log_text())
        gone = "SELECT oracle.is_gone('load.toast_1_t'::regclass, %s, %s, %s)"
        # verify_heapam() itself does not know them for what they are.
        missed = ask(instance, "SELECT blkno, offnum, msg FROM"
                               " verify_heapam('load.toast_1_t', check_toast => true)")
        self.assertNotEqual(missed, [])
        expected = oracle.lagging(oracle.expectation([], 0))
        self.assertEqual(without_left_over(
            oracle.verify_connected(instance.connect, expected)), [])
        # Of a live row chunks are missed, and of a dead one whatever else is wrong.
        (live,), = ask(instance, "SELECT min(ctid::text) FROM load.toast_1_t")
        place = live.strip("()").split(",")
        self.assertEqual(ask(instance, gone, *missed[0]), [(True,)])
        self.assertEqual(ask(instance, gone, *place, missed[0][2]), [(False,)])
        self.assertEqual(ask(instance, gone, *missed[0][:2], "toast value 1 chunk 1 has null data"),
                         [(False,)])
        instance.promote(REPLAY_SECONDS)
        self.assertEqual(ask(instance, gone, *missed[0]), [(False,)])
        self.assertEqual(without_left_over(
            oracle.verify_connected(instance.connect, expected)), [])

    def removed_beside_vacuum(self, instance, cursor):
        """Change rows beside a VACUUM that waits for a lock, and remove their old chunks.

        Return whether VACUUM has waited until the end.
        """
        number = "SELECT FROM pg_stat_activity WHERE query = 'VACUUM public.tail'" \
                 " AND backend_xid IS NOT NULL"
        waiting = threading.Thread(target=run_until_killed, args=(instance, "VACUUM public.tail"))
        waiting.start()
        self.addCleanup(waiting.join)
        wait_for(lambda: ask(instance, number) or not waiting.is_alive())
        cursor.execute("UPDATE load.toast_1_t SET body = body || '' WHERE length(body) > 4000")
        cursor.execute("SELECT reltoastrelid::regclass FROM pg_class"
                       " WHERE oid = 'load.toast_1_t'::regclass")
        cursor.execute(f"VACUUM {cursor.fetchone()[0]}")
        return ask(instance, number) != []

    def test_fixed_number_of_transactions(self):
        if psycopg2 is None:
            self.skipTest("python3-psycopg2 is not installed")
        programs = bindir()
        holder = tempfile.TemporaryDirectory(prefix="pgcut-fixed-", dir=SCRATCH)
        self.addCleanup(holder.cleanup)
        cluster = Cluster(programs, holder.name, checksums=True)
        self.addCleanup(lambda: cluster.instance.close())
        acks = workload.run(cluster.instance.connect, {"transfer": 2, "toast": 1, "checkpoint": 1},
                            transactions=20, seed=1)
        issued = [e for e in acks if e["what"] == "issue" and e["client"] == "toast-1"]
        aborted = 20 - len(issued)
        self.assertLess(aborted, 10)
        self.assertEqual({e["client"] for e in acks if e["what"] == "ack"} - {"toast-1"},
                         {"transfer-1", "transfer-2"})


if __name__ == "__main__":
    unittest.main()
