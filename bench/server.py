"""One PostgreSQL server on a data directory, on a Unix socket."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common import postgres
from common.base import Paths, clean_env, identity, server_user

DATABASE = "bench"
EXTENSION = "pg_doublewrite_stats"

# Servers listen on sockets in directories of their own, so ports never clash.
PORT = 5432

READY = "database system is ready to accept connections"

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

# Names of processes carry numbers or users that say nothing here.
PROCESS_KINDS = ("checkpointer", "background writer", "walwriter", "walsender", "walreceiver",
                 "startup", "walpipeline", "io worker", "autovacuum", "logical replication")


class Server(postgres.Controlled):
    """A server of the build in `bindir` on `data`, run by the server user."""

    patience_seconds = 1800

    def __init__(self, paths: Paths, bindir: Path, data: Path,
                 server_env: Mapping[str, str] | None = None) -> None:
        super().__init__(bindir, data, data.parent / f"{data.name}.log", clean_env(paths))
        self.server_env = server_env or {}      # what clients have not

    # Life -----------------------------------------------------------------

    def create(self, *options: str) -> None:
        """Run initdb."""
        super().create(*postgres.THROWAWAY, *options)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Append settings to postgresql.conf, where the last one counts."""
        postgres.write_settings(self.data / "postgresql.conf", settings)

    def start(self, *options: str, wait: bool = True) -> None:
        """Start the server on a socket of its own."""
        self.sockets = postgres.socket_directory()
        self.configure({"listen_addresses": "", "port": PORT,
                        "unix_socket_directories": self.sockets})
        try:
            super().start("-s", *options, wait=wait)
        except postgres.ServerError:
            shutil.rmtree(self.sockets)
            raise

    def pg_ctl(self, *arguments: Any, **options: Any) -> subprocess.CompletedProcess:
        """Run pg_ctl in the server's environment."""
        return super().pg_ctl(*arguments, env={**self.env, **self.server_env}, **options)

    def until_ready(self, offset: int, interval: float,
                    look: Callable[..., Any] = lambda: None) -> str:
        """Wait until the log says so, from `offset` on; returns what it says from there.

        `look` is called again and again meanwhile.
        """
        deadline = time.monotonic() + self.patience_seconds
        while True:
            text = self.log_text(offset)
            if READY in text:
                return text
            if time.monotonic() > deadline or "database system is shut down" in text:
                raise self.failure("did not recover")
            look()
            time.sleep(interval)

    def stop(self, mode: str = "fast", *options: str) -> None:
        """Stop the server; does nothing if it does not run."""
        if self.sockets is None:
            return
        try:
            if self.lock_file():
                super().stop(mode, "-s", *options)
        finally:
            shutil.rmtree(self.sockets, ignore_errors=True)
            self.sockets = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, kind: str, error: BaseException | None, trace: Any) -> None:
        # After an error there is no point in waiting for the last checkpoint.
        self.stop("immediate" if kind else "fast")

    # Use ------------------------------------------------------------------

    def environment(self, database: str = DATABASE) -> dict[str, str]:
        """Return the environment that makes clients connect to this server."""
        return {**self.env, "PGHOST": str(self.sockets), "PGPORT": str(PORT),
                "PGUSER": postgres.SUPERUSER, "PGDATABASE": database}

    def refusal(self) -> str:
        """Try to connect; returns what a client that is refused is told, or ""."""
        done = subprocess.run([self.bindir / "psql", "-XAtq", "-c", ""], cwd="/",
                              env=self.environment(), capture_output=True, check=False,
                              **identity(server_user()))
        return done.stderr.decode() if done.returncode else ""

    def sql(self, text: str, database: str = DATABASE) -> str:
        """Run SQL with psql and return its unaligned output."""
        done = self.call("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-",
                         data=text.encode(), capture=True, env=self.environment(database))
        return done.stdout.decode().strip()

    def rows(self, text: str) -> list[list[str]]:
        """Run one query and return its rows as lists of strings."""
        return [line.split("|") for line in self.sql(text).splitlines()]

    def timed(self, text: str, setup: str = "") -> float:
        """Run SQL and return the seconds that its statements took, without those of `setup`."""
        return sum(timings(self.sql(f"{setup}\n\\timing on\n{text}"))) / 1000

    def settings(self) -> dict[str, str]:
        """Return the settings that differ from the built-in defaults."""
        return dict(self.rows("SELECT name, current_setting(name) FROM pg_settings"
                              " WHERE source NOT IN ('default', 'override', 'client')"
                              " AND name !~ '^(lc_|log_timezone|TimeZone|DateStyle|port"
                              "|unix_socket|listen|default_text|application)' ORDER BY 1"))

    @contextlib.contextmanager
    def following(self, query: str, path: Path, interval: float = 1) -> Iterator[None]:
        """Write the result of a query to a file again and again, in seconds."""
        with open(path, "w") as target:
            child = self._watch(query, target, interval)
            try:
                yield
            finally:
                child.terminate()
                child.wait()

    def _watch(self, query, target, interval):
        """Start psql so that it repeats a query; returns the process."""
        child = subprocess.Popen(
            [self.bindir / "psql", "-XAtq", "-f", "-"], cwd="/", text=True,
            env=self.environment(), stdin=subprocess.PIPE, stdout=target,
            **identity(server_user()))
        child.stdin.write(f"{query} \\watch {interval}\n")
        child.stdin.close()
        return child

    # CPU ------------------------------------------------------------------

    def cpu_seconds(self) -> dict[str, float]:
        """Return {kind of process: seconds}, with "total" of all that ever ran.

        The total includes processes that have ended, as their parent keeps
        their time; the kinds are of those alive.
        """
        used, ended = _times(self.postmaster())
        seconds = {"total": used + ended}
        for kind, used in self.processes().values():
            seconds["total"] += used
            seconds[kind] = seconds.get(kind, 0) + used
        return seconds

    def processes(self) -> dict[int, tuple[str, float]]:
        """Return {process id: (kind, CPU seconds)} of the postmaster's children."""
        found = {}
        for child in postgres.children(self.postmaster()):
            used, _ = _times(child)
            title = postgres.read_proc(child, "cmdline")
            # A process that has ended has none, until it is waited for.
            if title:
                found[child] = (process_kind(title), used)
        return found


def timings(text: str) -> list[float]:
    """Return the milliseconds that psql's \\timing reported."""
    return [float(number) for number in re.findall(r"^Time: ([\d.]+) ms", text, re.MULTILINE)]


def process_kind(title: str) -> str:
    """Return what kind of server process calls itself so."""
    for kind in PROCESS_KINDS:
        if kind in title:
            return kind
    return "client backend"


def _times(pid):
    """Return the CPU seconds of a process and of its children that ended, 0 if it is gone."""
    fields = postgres.stat_fields(pid)[11:15] or (0, 0, 0, 0)
    user, system, children_user, children_system = map(int, fields)
    return ((user + system) / CLOCK_TICKS, (children_user + children_system) / CLOCK_TICKS)
