#!/usr/bin/python3
"""A Patroni cluster in double_writes: modes, crashes, failover, switchover.

Two members, etcd, everything on the loopback interface of this machine.  Load
runs while the mode changes, while members are killed and while they change
roles; then every acknowledged transaction has to be there, and both members
have to hold the same rows.  Before a killed member starts again, the pages are
torn that the log has copies of, since a kill alone tears none.  The configuration
is patroni.yml beside this file, unchanged, with what a member needs besides.

One member's Patroni is as installed, the other's has 1_double_writes.yml.

To be called as the user that is to run the servers.  Needs etcd, Patroni 4
and psycopg2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg2

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.append(str(HERE.parents[1]))

from common import postgres  # noqa: E402
from common.postgres import SUPERUSER, environment, kill  # noqa: E402

SCOPE = "double-writes"
MARKER = "DOUBLE WRITE LOG IN USE"
SETTING = "io_torn_pages_protection"
CLIENTS = 4
WRITERS = 3
BLOCK = 8192

# Long enough for a machine that is busy with other work; nothing is timed.
DEADLINE_SECONDS = 300

# What a member needs besides patroni.yml.  The buffers are few, so that pages
# go home all the time; a failover must lose nothing, so replication is synchronous.
DCS = {"ttl": 20, "loop_wait": 1, "retry_timeout": 5, "synchronous_mode": True}
PARAMETERS = {"shared_buffers": "16MB", "max_wal_size": "256MB", "log_checkpoints": "on"}

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history", "ledger")


class Failure(Exception):
    """A check that failed."""


def say(message: str) -> None:
    """Report a step."""
    print(f"==> {message}", flush=True)


def check(holds: object, what: str) -> None:
    """Report a check; raises Failure if it does not hold."""
    print(f"{'ok' if holds else 'NOT OK'}: {what}", flush=True)
    if not holds:
        raise Failure(what)


def wait_for(what: str, condition: Callable[[], Any]) -> Any:
    """Wait until `condition()` is true; returns its value."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(psycopg2.Error, OSError):
            value = condition()
            if value:
                return value
        time.sleep(0.2)
    raise Failure(f"timed out waiting for: {what}")


def free_ports(number: int) -> list[int]:
    """Return port numbers that are free."""
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def tear(path: Path, block: int) -> bool:
    """Overwrite the second half of a page by zeros; says if that changes it."""
    half = BLOCK // 2
    # No relation here is so large that it has a second file.
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        file.seek(block * BLOCK + half)
        if any(file.read(half)):
            file.seek(block * BLOCK + half)
            file.write(bytes(half))
            return True
    return False


class Etcd:
    """The store in which Patroni's members agree."""

    def __init__(self, directory: Path) -> None:
        client, peer = free_ports(2)
        self.address = f"127.0.0.1:{client}"
        with open(directory / "etcd.log", "w") as log:
            self._process = subprocess.Popen(
                ["etcd", "--data-dir", str(directory / "etcd"), "--unsafe-no-fsync",
                 "--listen-client-urls", f"http://{self.address}",
                 "--advertise-client-urls", f"http://{self.address}",
                 "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-cluster", f"default=http://127.0.0.1:{peer}",
                 # Patience: the machine may be busy with other work.
                 "--heartbeat-interval", "500", "--election-timeout", "5000"],
                stdout=log, stderr=log, cwd="/", env=environment())
        wait_for("etcd", self._is_healthy)

    def _is_healthy(self):
        with urllib.request.urlopen(f"http://{self.address}/health") as answer:
            return json.load(answer)["health"] == "true"

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


class Member(postgres.Server):
    """A member: Patroni, and the server that it looks after."""

    def __init__(self, name: str, cluster: Cluster, library: Path | None = None) -> None:
        self.name = name
        self.port, self.rest = free_ports(2)
        self.directory = cluster.scratch / name
        super().__init__(cluster.bindir, self.directory / "data", cluster.scratch / f"{name}.log",
                         environment({"PGHOST": "127.0.0.1", "PGPORT": str(self.port),
                                      "PGUSER": SUPERUSER, "PGDATABASE": "postgres"}),
                         cluster.sockets)
        self.configuration = self.directory / "configuration"
        self._command = [str(cluster.patroni / "patroni"), str(self.configuration)]
        self._library = {"PYTHONPATH": str(library)} if library else {}
        self._process = None
        self.torn = 0
        self._configure(cluster)

    def _configure(self, cluster):
        """Write the configuration: patroni.yml as it is, and this member's part."""
        self.configuration.mkdir(parents=True)
        shutil.copy(HERE / "patroni.yml", self.configuration / "1.yml")
        user = {"username": SUPERUSER, "password": "unused"}
        here = f"127.0.0.1:{self.port}"
        part = {
            "scope": SCOPE, "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.rest}",
                        "connect_address": f"127.0.0.1:{self.rest}"},
            "etcd3": {"host": cluster.etcd.address},
            "bootstrap": {"dcs": {**DCS, "postgresql": {"parameters": PARAMETERS}}},
            "postgresql": {
                "listen": here, "connect_address": here, "data_dir": str(self.data),
                "bin_dir": str(self.bindir), "pgpass": str(self.directory / "pgpass"),
                "authentication": {"superuser": user, "replication": user},
                "parameters": {"unix_socket_directories": str(self.sockets)},
                "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 trust",
                           "host replication all 127.0.0.1/32 trust"]}}
        # JSON is YAML.
        (self.configuration / "2.yml").write_text(json.dumps(part, indent=1))

    def start(self) -> None:
        """Start Patroni, which starts the server when it sees fit."""
        with open(self.log, "a") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log, cwd="/", env=environment(self._library))

    def stop(self) -> None:
        """Stop Patroni, which stops the server."""
        if self._process:
            self._process.terminate()
            self._process.wait(DEADLINE_SECONDS)
            self._process = None

    def pause(self) -> None:
        """Let Patroni do nothing until it is resumed or killed."""
        kill(self._process.pid, signal.SIGSTOP)

    def crash(self, patroni_too: bool = False) -> int:
        """Kill the server, all of it at once, tear pages, kill Patroni if told so.

        Returns how many pages the next start will have to restore.
        """
        self.pause()
        number = postgres.kill_family(self.postmaster())
        check(self.has_marker(), f"{self.name}: {number} processes killed, the marker is there")
        torn = self._tear()
        self.torn += torn
        said = self._tool("dry-run")
        check(said["verdict"] == "restore" and said["restored"] >= torn,
              f"{self.name}: {torn} pages torn, {said['restored']} to be restored")
        if patroni_too:
            self._process.kill()
            self._process.wait()
            self._process = None
        else:
            kill(self._process.pid, signal.SIGCONT)
        return said["restored"]

    def _tear(self):
        """Undo half of each page that is in the log; returns how many.

        Not of those of which it has only noted that hint bits were new: their length is 0, and
        they cannot be torn that much.
        """
        pages = [page for batch in self._tool("list", "--pages")["batches"]
                 if batch["status"] == "live" for page in batch["pages"]]
        noted, copied = ({(page["file"], page["block"]) for page in pages if bool(page["length"]) == copy}
                         for copy in (False, True))
        return sum(tear(self.data / file, block) for file, block in copied - noted)

    def _tool(self, *command):
        """Return what the tool says of the log of a server that was killed."""
        # Until Patroni may act, the server's process number stays taken.
        return json.loads(self.run("pg_doublewrite", *command, "--json", "--force",
                                   "-D", self.data))

    def dispose(self) -> None:
        """Leave no process behind."""
        if self._process:
            kill(self._process.pid)
            self._process.wait()
        pid = self.postmaster()
        if pid:
            postgres.kill_family(pid)

    def has_marker(self) -> bool:
        """Say whether backup_label is there, with the words of the double-write log."""
        with contextlib.suppress(FileNotFoundError):
            return (self.data / "backup_label").read_text().startswith(MARKER)
        return False

    def connect(self) -> Any:
        """Return a new psycopg2 connection."""
        return connect(port=self.port)

    def is_primary(self) -> bool:
        """Say whether the server is a primary."""
        return not self.query("SELECT pg_is_in_recovery()")

    def lines(self, pattern: str, start: int = 0) -> list[str]:
        """Return the matches of `pattern` in the log of Patroni and server from `start`."""
        return re.findall(pattern, self.log_text(start))

    def run(self, program: str, *arguments: Any) -> bytes:
        """Run a program of PostgreSQL; returns its output, raises Failure if it fails."""
        try:
            return self.call(program, *arguments).stdout
        except postgres.ServerError as exc:
            raise Failure(f"{self.name}: {exc}") from exc


def connect(**where: Any) -> Any:
    """Return a connection to a server, or to the primary among several."""
    return postgres.connect(host=",".join(["127.0.0.1"] * len(str(where["port"]).split(","))),
                            connect_timeout=10, **where)


# Cluster -------------------------------------------------------------------


class Cluster:
    """Two members, and what they have in common."""

    def __init__(self, bindir: Path, scratch: Path, patroni: Path) -> None:
        self.bindir, self.patroni = bindir, patroni
        self.scratch = Path(tempfile.mkdtemp(prefix="patroni-", dir=scratch))
        self.sockets = postgres.socket_directory()
        self.members = []
        self.etcd = Etcd(self.scratch)

    def make(self) -> None:
        """Make both members; the second is a copy that Patroni makes."""
        say("making a cluster of two members")
        first = Member("alpha", self)
        self.members.append(first)
        first.start()
        wait_for("a first primary", first.is_primary)
        second = Member("beta", self, self._validating_library())
        self.members.append(second)
        second.start()
        self.settle()

    def _validating_library(self):
        """Return a directory with a copy of Patroni that has our list of settings."""
        library = self.scratch / "library"
        where = subprocess.run([str(self.patroni / "python3"), "-c",
                                "import os, patroni; print(os.path.dirname(patroni.__file__))"],
                               check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
        shutil.copytree(where, library / "patroni")
        shutil.copy(HERE / "1_double_writes.yml",
                    library / "patroni" / "postgresql" / "available_parameters")
        return library

    def primary(self) -> Member | None:
        """Return the member that is the primary, None if there is none."""
        for member in self.members:
            with contextlib.suppress(psycopg2.Error):
                if member.is_primary():
                    return member
        return None

    def standby(self) -> Member | None:
        """Return the other member."""
        primary = self.primary()
        return next(member for member in self.members if member is not primary)

    def settle(self) -> None:
        """Wait until there is a primary with a synchronous standby, as Patroni sees it, too."""
        wait_for("a primary with a synchronous standby", self._is_settled)

    def _is_settled(self):
        primary = self.primary()
        if not primary or primary.query("SELECT count(*) FROM pg_stat_replication"
                                        " WHERE state = 'streaming' AND sync_state = 'sync'") != 1:
            return False
        with urllib.request.urlopen(f"http://127.0.0.1:{primary.rest}/cluster") as answer:
            roles = {row["name"]: row["role"] for row in json.load(answer)["members"]}
        return len(roles) == 2 and roles.get(primary.name) == "leader" and \
            "sync_standby" in roles.values()

    def control(self, *arguments: Any) -> None:
        """Call patronictl."""
        done = subprocess.run([str(self.patroni / "patronictl"),
                               "-c", str(self.members[0].configuration), *arguments],
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, cwd="/", env=environment())
        if done.returncode:
            raise Failure(f"patronictl {' '.join(arguments)}: {done.stdout}")

    def configure(self, name: str, value: str, expected: Mapping[str, str] | None = None) -> None:
        """Change a setting by Patroni; wait until both members have it."""
        expected = expected or {member.name: value for member in self.members}
        self.control("edit-config", "--force", "--pg", f"{name}={value}")
        for member in self.members:
            wait_for(f"{name} = {expected[member.name]} on {member.name}",
                     lambda member=member: member.query(f"SHOW {name}") == expected[member.name])
        check(True, f"{name} = {expected}")

    def stop(self) -> None:
        """Stop both members, the standby first, and etcd."""
        say("stopping")
        for member in (self.standby(), self.primary()):
            member.stop()
        self.etcd.stop()

    def dispose(self) -> None:
        """Leave no process behind, however it ended."""
        for member in self.members:
            member.dispose()
        self.etcd.stop()
        shutil.rmtree(self.sockets)


# Load ----------------------------------------------------------------------


class Ledger:
    """Writers that know which of their rows were acknowledged."""

    def __init__(self, ports: str) -> None:
        self._ports = ports
        self._end = threading.Event()
        self._threads = []
        self.acknowledged = [set() for _ in range(WRITERS)]
        self._next = [0] * WRITERS

    def start(self) -> None:
        """Start to write."""
        self._end.clear()
        self._threads = [threading.Thread(target=self._write, args=(number,), daemon=True)
                         for number in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop to write."""
        self._end.set()
        for thread in self._threads:
            thread.join()

    def count(self) -> int:
        """Return how many rows have been acknowledged."""
        return sum(map(len, self.acknowledged))

    def advance(self, rows: int = 200) -> None:
        """Wait until so many more rows have been acknowledged."""
        start = self.count()
        wait_for("acknowledged rows", lambda: self.count() >= start + rows)

    def _write(self, writer):
        """Insert row after row, on whichever member is the primary."""
        while not self._end.is_set():
            with contextlib.suppress(psycopg2.Error), contextlib.closing(
                    connect(port=self._ports, tcp_user_timeout=10000,
                            target_session_attrs="read-write")) as connection:
                self._write_on(connection, writer)
            self._end.wait(0.2)

    def _write_on(self, connection, writer):
        connection.autocommit = True
        with connection.cursor() as cursor:
            while not self._end.is_set():
                # A number that failed is not tried again: its fate is unknown.
                self._next[writer] += 1
                row = self._next[writer]
                cursor.execute("INSERT INTO ledger VALUES (%s, %s, repeat('x', 200))",
                               (writer, row))
                if not connection.notices:
                    self.acknowledged[writer].add(row)
                connection.notices.clear()

    def missing(self, member: Member) -> int:
        """Return how many acknowledged rows a member lacks."""
        with contextlib.closing(connect(port=member.port)) as connection, \
                connection.cursor() as cursor:
            cursor.execute("SELECT writer, row FROM ledger")
            found = set(cursor)
        return sum((writer, row) not in found for writer in range(WRITERS)
                   for row in self.acknowledged[writer])


class Load:
    """pgbench and the ledger, on the primary, and what they have been told."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.processed = 0
        self.runs = 0
        self._pgbench = None
        cluster.primary().run("pgbench", "--initialize", "--quiet", "--scale=5")
        cluster.primary().query("CREATE TABLE ledger (writer int, row int, filler text,"
                                " PRIMARY KEY (writer, row))")
        self.ledger = Ledger(",".join(str(member.port) for member in cluster.members))

    def start(self) -> None:
        """Start both, and wait until they have done something."""
        self._pgbench = subprocess.Popen(
            [str(self.cluster.bindir / "pgbench"), "--client", str(CLIENTS), "--no-vacuum",
             "--time", "3600", "-h", "127.0.0.1", "-p", str(self.cluster.primary().port),
             "-U", SUPERUSER, "postgres"], text=True, cwd="/", env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.runs += 1
        self.ledger.start()
        self.ledger.advance()

    def stop(self) -> None:
        """Stop both, if pgbench has not been cut off, and count what was acknowledged."""
        self.ledger.stop()
        self._pgbench.send_signal(signal.SIGALRM)       # as if its time were over
        output = self._pgbench.communicate()[0]
        match = re.search(r"transactions actually processed: (\d+)", output)
        check(match is not None, "pgbench says how much it did")
        self.processed += int(match[1])

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Load while the body runs."""
        try:
            self.start()
            yield
        except BaseException:
            self._pgbench.kill()
            raise
        self.stop()

    def verify(self) -> None:
        """All that was acknowledged is there, on both members alike."""
        self.cluster.settle()
        primary, standby = self.cluster.primary(), self.cluster.standby()
        end = primary.query("SELECT pg_current_wal_insert_lsn()")
        wait_for("the standby to replay", lambda: standby.query(
            f"SELECT pg_last_wal_replay_lsn() >= '{end}'"))
        for member in (primary, standby):
            check(self.ledger.missing(member) == 0,
                  f"{member.name}: {self.ledger.count()} acknowledged rows are there")
            check(member.query(postgres.BALANCES), f"{member.name}: the balances of pgbench agree")
        found = primary.query("SELECT count(*) FROM pgbench_history")
        check(self.processed <= found <= self.processed + CLIENTS * self.runs,
              f"pgbench: {self.processed} acknowledged transactions, {found} found")
        for table in TABLES:
            sql = f"SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0)" \
                  f" FROM {table} t"
            check(primary.query(sql) == standby.query(sql), f"both members agree about {table}")


# Checks --------------------------------------------------------------------


def check_modes(cluster: Cluster) -> None:
    """Both members run in double_writes, and have their log in use."""
    for member in cluster.members:
        check(member.query(f"SHOW {SETTING}") == "double_writes",
              f"{member.name}: {SETTING} = double_writes")
        check(member.has_marker(), f"{member.name}: backup_label is the marker of the log")
        check(member.query("SHOW wal_pipeline") == "on", f"{member.name}: wal_pipeline = on")


def check_validation(cluster: Cluster) -> None:
    """Only with our list does Patroni pass a checkpoint_timeout below 30 s on."""
    cluster.configure("checkpoint_timeout", "5s", {"alpha": "30s", "beta": "5s"})
    cluster.configure("checkpoint_timeout", "60s", {"alpha": "1min", "beta": "1min"})


def check_images(cluster: Cluster, load: Load, expected: bool) -> None:
    """Load after a checkpoint brings images, or none."""
    primary = cluster.primary()
    primary.query("CHECKPOINT")
    before = primary.query("SELECT wal_fpi FROM pg_stat_wal")
    enough = primary.query("SELECT count(*) FROM pgbench_history") + 300
    with load.running():
        wait_for("pgbench", lambda: primary.query("SELECT count(*) FROM pgbench_history") >= enough)
    written = primary.query("SELECT wal_fpi FROM pg_stat_wal") - before
    check((written > 100) == expected, f"{primary.name}: {written} full-page images under load")


def change_mode(cluster: Cluster, load: Load) -> None:
    """Change the mode and change it back, under load, without a restart."""
    say("changing the mode by Patroni")
    started = [member.query("SELECT pg_postmaster_start_time()") for member in cluster.members]
    primary = cluster.primary()
    check_images(cluster, load, expected=False)
    with load.running():
        cluster.configure(SETTING, "full_pages")
        primary.query("CHECKPOINT")
        check(not primary.has_marker(), f"{primary.name}: the log is not in use any more")
        load.ledger.advance()
    check_images(cluster, load, expected=True)
    with load.running():
        cluster.configure(SETTING, "double_writes")
        wait_for("the marker", primary.has_marker)
        load.ledger.advance()
    check_images(cluster, load, expected=False)
    check_modes(cluster)
    check(started == [member.query("SELECT pg_postmaster_start_time()")
                      for member in cluster.members], "no member was restarted")
    load.verify()


def check_recovery(member: Member, start: int, restored: int) -> None:
    """The server's log says that the torn pages were restored; print what Patroni did."""
    for line in member.lines(r"(?:Skipping single-user|starting primary after failure"
                             r"|pg_rewind exit code|double-write log: examined).*", start):
        print(f"    {member.name}: {line}", flush=True)
    now = member.lines(r"double-write log: examined \d+ pages in \d+ batches, restored (\d+)",
                       start)
    # With instant_recovery most are left until they are needed, whatever is at home.
    later = member.lines(r"double-write log: (\d+) pages are restored when", start)
    check(str(restored) in now or later and sum(map(int, now + later)) >= restored,
          f"{member.name}: {restored} pages were restored, or are when they are needed")


def crash_server(cluster: Cluster, load: Load) -> None:
    """Kill the primary's server; Patroni starts it again or fails over."""
    say("killing the primary's server under load")
    victim = cluster.primary()
    start = victim.log_size()
    with load.running():
        restored = victim.crash()
        load.ledger.advance()
    cluster.settle()
    say(f"{victim.name} was the primary, {cluster.primary().name} is")
    check_recovery(victim, start, restored)
    check_modes(cluster)
    load.verify()


def crash_member(cluster: Cluster, load: Load, diverge: bool = False) -> None:
    """Kill a primary with its Patroni: the other takes over, and the first comes back."""
    say("killing the primary and its Patroni under load" + diverge * ", with WAL of its own")
    victim, other = cluster.primary(), cluster.standby()
    start = victim.log_size()
    with load.running():
        resume = cut_off(victim, other) if diverge else lambda: None
        restored = victim.crash(patroni_too=True)
        resume()
        wait_for("a failover", other.is_primary)
        load.ledger.advance()
        say(f"{other.name} is the primary; starting {victim.name} again")
        victim.start()
        cluster.settle()
        load.ledger.advance()
    check(cluster.primary() is other, f"{other.name} is still the primary")
    check_recovery(victim, start, restored)
    if diverge:
        check(victim.lines("pg_rewind exit code=0", start), f"{victim.name}: pg_rewind was run")
        check(victim.query("SELECT to_regclass('stray') IS NULL"),
              f"{victim.name}: what had not been replicated is gone")
    check_modes(cluster)
    load.verify()


def cut_off(primary: Member, standby: Member) -> Callable[[], None]:
    """Let the primary write WAL that the standby never gets.

    Returns a function that lets the standby go on.
    """
    primary.pause()                 # or it would find that the standby is not synchronous
    startup = standby.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'")
    kill(startup, signal.SIGSTOP)   # which would start another receiver
    kill(standby.query("SELECT pid FROM pg_stat_wal_receiver"), signal.SIGTERM)
    wait_for("the end of the WAL receiver", lambda: not primary.query(
        "SELECT count(*) FROM pg_stat_replication"))
    primary.query("SET synchronous_commit = local;"
                  " CREATE TABLE stray AS SELECT generate_series(1, 1000) AS i")
    return lambda: kill(startup, signal.SIGCONT)


def switch_over(cluster: Cluster, load: Load) -> None:
    """Change roles under load."""
    say("switching over under load")
    old, new = cluster.primary(), cluster.standby()
    with load.running():
        cluster.control("switchover", SCOPE, "--leader", old.name, "--candidate", new.name,
                        "--force")
        wait_for("the switchover", new.is_primary)
        cluster.settle()
        load.ledger.advance()
    check(cluster.primary() is new, f"{new.name} is the primary, {old.name} follows")
    check_modes(cluster)
    load.verify()


def check_relations(cluster: Cluster) -> None:
    """Tables and indexes are sound on both members."""
    say("checking relations with pg_amcheck")
    cluster.primary().query("CREATE EXTENSION IF NOT EXISTS amcheck")
    cluster.settle()
    wait_for("amcheck on the standby", lambda: cluster.standby().query(
        "SELECT count(*) FROM pg_extension WHERE extname = 'amcheck'"))
    for member in cluster.members:
        member.run("pg_amcheck", "--heapallindexed", "postgres")
        check(True, f"{member.name}: pg_amcheck finds nothing")


def check_stopped(cluster: Cluster) -> None:
    """Clean stops leave no log in use, and all checksums are right."""
    for member in cluster.members:
        check(not (member.data / "backup_label").exists(), f"{member.name}: backup_label is gone")
        member.run("pg_doublewrite", "check", "-D", member.data)
        output = member.run("pg_checksums", "--check", "-D", member.data)
        blocks = re.search(r"Blocks scanned: +(\d+)", output)[1]
        check("Bad checksums:  0" in output, f"{member.name}: {blocks} blocks, no bad checksum")
        bad = member.lines(r".*(?:PANIC:|invalid page|page verification failed).*")
        check(not bad, f"{member.name}: no PANIC and no invalid page in the log {bad[:3] or ''}")


def demonstrate(cluster: Cluster) -> None:
    """Do everything in turn."""
    cluster.make()
    check_modes(cluster)
    load = Load(cluster)
    load.verify()
    check_validation(cluster)
    change_mode(cluster, load)
    crash_server(cluster, load)
    crash_member(cluster, load)
    switch_over(cluster, load)
    switch_over(cluster, load)
    crash_member(cluster, load, diverge=True)
    check(sum(member.torn for member in cluster.members) > 0, "pages were torn")
    check_relations(cluster)
    cluster.stop()
    check_stopped(cluster)


def main() -> int:
    """Parse the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--bindir", type=Path, required=True, help="PostgreSQL's programs")
    parser.add_argument("--scratch", type=Path, required=True,
                        help="where to make a directory, which is left if something fails")
    parser.add_argument("--patroni", type=Path, default=Path("/usr/bin"),
                        help="directory of patroni, patronictl and their python3")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cluster = Cluster(args.bindir.resolve(), args.scratch.resolve(), args.patroni.absolute())
    try:
        demonstrate(cluster)
    except (Failure, postgres.ServerError, subprocess.SubprocessError) as exc:
        print(f"FAILED: {exc}\nsee {cluster.scratch}", flush=True)
        return 1
    finally:
        cluster.dispose()
    shutil.rmtree(cluster.scratch)
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
