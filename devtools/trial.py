"""What all trials of `./dev tools` share: a cluster, clients, a crash with torn pages.

A tool makes a backup under load; the server is killed in the middle, and the pages that its
log has copies of are torn before it starts again; the tool goes on.  What it restores gets
the pages torn that were changed while it read them, as an unlucky reader would have found
them: a kill, and a copy on a quiet machine, tear nothing by themselves.  Then every
transaction that was acknowledged before the backup has to be there, pgbench's tables
agree, and amcheck and checksums find nothing.
"""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.server import DATABASE, Server
from common import postgres
from common.base import DevError, Paths, give_to_user, identity, own, server_user
from common.postgres import ServerError

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


def until_none(left: Callable[[], Any], what: str, seconds: float = postgres.END_SECONDS) -> None:
    """Wait until `left()` returns nothing; raises ServerError that says `what`, and what is left."""
    deadline = time.monotonic() + seconds
    while found := left():
        if time.monotonic() > deadline:
            raise ServerError(f"{what}: {found}")
        time.sleep(0.1)


def numbers(text: str) -> set:
    """Return the numbers that are whole lines of a text, whose last line may be cut short."""
    return {int(line) for line in text.split("\n")[:-1] if line.isdigit()}


@dataclass
class Trial:
    """A tool with a cluster and a directory of its own."""

    paths: Paths
    bindir: Path
    place: Path

    # What the table says: tool, what was done, what to know.
    tool = ""
    done = ""
    caveat = ""
    packages: tuple[str, ...] = ()
    # The builds that are used, ours first.
    kinds: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        self.servers: list[Server] = []
        self.programs: list[subprocess.Popen] = []
        self.signs: dict[str, Server] = {}
        self.server = self.cluster(self.data_directory())
        # What clients connect to: the server, or what stands before it.
        self.door = self.server
        self.acknowledged: set[int] = set()
        self.torn = {"crash": 0, "read": 0}

    def data_directory(self) -> Path:
        """Return where the cluster is to be."""
        return self.place / "primary"

    # What ends with the trial

    def cluster(self, data: str | Path, bindir: Path | None = None) -> Server:
        """Return a server on a data directory, or one of that name."""
        server = Server(self.paths, bindir or self.bindir, self.place / data)
        self.servers.append(server)
        return server

    def spawn(self, *command: object, log: Any = subprocess.DEVNULL,
              **environment: Any) -> subprocess.Popen:
        """Start a program beside, as call() runs one; returns the process."""
        self.programs.append(subprocess.Popen(
            [str(part) for part in command], cwd="/", stdout=log, stderr=log,
            env={**self.door.environment(), **environment}, **identity(server_user())))
        return self.programs[-1]

    def dispose(self) -> None:
        """Leave nothing that runs."""
        for program in self.programs:
            program.terminate()
            program.wait()
        for server in self.servers:
            if server.postmaster():
                postgres.kill_family(server.postmaster())

    # Helpers of tools

    def call(self, *command: object, check: bool = True, **options: Any) -> str:
        """Run a program as the server's user, as a client of the server; returns what it says."""
        options = {"cwd": "/", "env": {**self.server.environment(), "LC_ALL": "C.UTF-8"}, **options}
        done = subprocess.run([str(part) for part in command], check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              **options, **identity(server_user()))
        if check and done.returncode:
            raise DevError(f"{' '.join(map(str, command))}: {done.stdout}")
        return done.stdout

    def home(self, name: str) -> Path:
        """Make a directory of the server user's."""
        place = self.place / name
        place.mkdir(mode=0o700)
        own(place)
        return place

    @staticmethod
    def write_config(file: Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Write a file of sections, {name: {setting: value}}."""
        file.write_text("".join(
            f"[{section}]\n" + "".join(f"{name}={value}\n" for name, value in settings.items())
            for section, settings in sections.items()))
        give_to_user(file.parent)

    def sign(self, server: Server, name: str = "server") -> Path:
        """Have a name lead to the socket of a server, after a crash as well; returns its path."""
        path = self.place / name
        path.unlink(missing_ok=True)
        path.symlink_to(server.sockets)
        self.signs[name] = server
        return path

    # What each tool does in its own way

    def version(self) -> str:
        """Return the tool's version."""
        return self.version_of(self.bindir / "pg_basebackup")

    def version_of(self, program: str | Path, option: str = "--version") -> str:
        """Return the first number that a program says of itself."""
        return re.search(r"\d+[.\d]*", self.call(program, option))[0]

    def prepare(self) -> None:
        """Make what the tool needs, of the server that runs."""

    def full(self) -> None:
        """Make a first backup."""

    def incremental(self) -> None:
        """Make the backup that is restored."""

    def restore(self) -> Path:
        """Return the data directory of what is restored."""
        raise NotImplementedError

    # The trial

    def run(self) -> None:
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
        restored = self.cluster(data)
        restored.configure({"archive_mode": "off", "primary_conninfo": ""})
        self.verify(restored, expected)

    def make(self) -> None:
        """Make the cluster and start it."""
        self.server.create()
        self.server.configure(SETTINGS)
        self.fill()

    def fill(self) -> None:
        """Start the cluster, and make what clients work on."""
        self.server.start()
        self.server.sql(f"CREATE DATABASE {DATABASE}", database="postgres")
        self.server.call("pgbench", "--initialize", "--quiet", f"--scale={SCALE}",
                         env=self.server.environment(), capture=True)
        # Else redo makes all pages anew, and needs no copy of any.
        self.server.sql(f"{SCHEMA} CHECKPOINT")

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Have clients work; what they were told is committed is in `acknowledged`."""
        heard = self.place / f"acknowledged-{time.monotonic_ns()}"
        pgbench = self.spawn(self.bindir / "pgbench", "--no-vacuum", f"--client={CLIENTS}",
                             f"--rate={RATE}", "--time=3600")
        try:
            with self.door.following(LEDGER, heard, 0.02):
                self.hear = lambda: self.acknowledged.update(numbers(heard.read_text()))
                self.work()
                yield
        finally:
            self.hear()
            pgbench.terminate()
            pgbench.wait()

    def work(self) -> None:
        """Let clients work for some seconds, and longer where they get on slowly."""
        self.hear()
        enough = len(self.acknowledged) + ROWS

        def missing():
            self.hear()
            return max(0, enough - len(self.acknowledged))

        until_none(missing, "clients do not get on, rows that are missing")

    def crash(self) -> None:
        """Kill the server under load, tear what the log has copies of, and start it again."""
        self.crash_one(self.server)

    def crash_one(self, server: Server) -> None:
        """Do this with one of several servers."""
        with self.load():
            self.work()
            postgres.kill_family(server.postmaster())
        # Its number is taken until its parent asks, which may be never in a container.
        (server.data / "postmaster.pid").unlink()
        self.torn["crash"] += self.tear_what_was_copied(server.data)
        server.start()
        for name in [name for name, signed in self.signs.items() if signed is server]:
            self.sign(server, name)

    def tear_what_was_copied(self, data: Path) -> int:
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

    def tear_what_was_read(self, data: Path) -> None:
        """Tear those pages that were changed while files were read: they have images in WAL.

        Only until the backup's end: what was changed later was read whole.
        """
        start = re.search(r"^START WAL LOCATION: (\S+)", (data / "backup_label").read_text(),
                          re.MULTILINE)[1]
        # The primary keeps all WAL.  Its end is what pg_waldump complains about.
        text = self.call(self.bindir / "pg_waldump", f"--path={self.server.data / 'pg_wal'}",
                         f"--start={start}", check=False, env=self.server.env)
        text, end, _ = text.partition(f"BACKUP_END {start}")
        if not end:
            raise DevError("WAL has no end of the backup")
        found = re.findall(r"rel (\d+)/(\d+)/(\d+) blk (\d+) FPW", text)
        pages = {(f"base/{db}/{relation}", int(block)) for space, db, relation, block in found
                 if space == "1663"}
        self.torn["read"] = self.tear(data, pages)

    def tear(self, data: Path, pages: Iterable[tuple[str, int]]) -> int:
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

    def verify(self, server: Server, expected: set[int]) -> None:
        """Say whether a server has all that was acknowledged, and nothing that is broken."""
        server.start()
        try:
            # In which it may let clients read.
            until_none(lambda: server.sql("SELECT pg_is_in_recovery()") == "t", "still in recovery")
            self.count(server, expected)
            self.examine(server)
        finally:
            server.stop()
        self.examine_files(server)

    def count(self, server: Server, expected: set[int]) -> None:
        """Say whether all that was acknowledged is there; keeps the number of transactions."""
        there = {int(line) for line in server.sql("SELECT id FROM ledger").split()}
        if expected - there:
            raise ServerError(f"{len(expected - there)} of {len(expected)} acknowledged"
                              " transactions are lost")
        if server.sql(postgres.BALANCES) != "t":
            raise ServerError("the tables of pgbench do not agree")
        self.transactions = len(there)

    @staticmethod
    def examine(server: Server) -> None:
        """Have amcheck look at a server that runs."""
        server.call("pg_amcheck", "--heapallindexed", "--parent-check", "--checkunique",
                    "--database", DATABASE, env=server.environment())

    @staticmethod
    def examine_files(server: Server) -> None:
        """Look at the checksums, and the log, of a server that is down."""
        server.call("pg_checksums", "--check", "-D", server.data, capture=True)
        bad = re.findall(r".*(?:PANIC:|invalid page|page verification failed).*",
                         server.log_text())
        if bad:
            raise ServerError(f"the server log has: {bad[0]}")


class Door(Trial):
    """No backup: what stands between clients and a server that crashes."""

    def run(self) -> None:
        self.make()
        self.prepare()
        self.use()
        self.judge()

    def use(self) -> None:
        """Let clients work before and after a crash."""
        with self.load():
            pass
        self.crash()
        with self.load():
            pass

    def judge(self) -> None:
        """Say whether all is there and sound."""
        self.server.stop()
        self.verify(self.server, self.acknowledged)
