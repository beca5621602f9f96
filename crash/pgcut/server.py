"""PostgreSQL servers of the explorer: children of ours, which are killed as a whole.

What they have in common with other servers of the tools is in common/postgres.py,
by which user they run in common/base.py.
"""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import postgres
from common.base import as_user, own, server_user
from common.postgres import LOCK_PID, LOCK_STATUS, ServerError, environment

from .limits import SLOWNESS

# What the modules of the explorer take from here.
__all__ = ["USER", "Server", "ServerError", "as_user", "environment", "make_cluster", "own",
           "run", "write_settings"]

USER = postgres.SUPERUSER

# Test modules: one makes servers crash, fail or wait, the other knows the engine.
POINTS, ENGINE = "test_points", "test_doublewrite"
MODULES = {"shared_preload_libraries": f"{POINTS}, {ENGINE}"}

# By this file a server knows that it is a standby.
STANDBY_SIGNAL = "standby.signal"

# Limits, not measures: a machine may be busy.
START_SECONDS = round(300 * SLOWNESS)
CONNECT_SECONDS = round(120 * SLOWNESS)
# How long a standby may take to replay what it has of WAL.
REPLAY_SECONDS = round(300 * SLOWNESS)
# How long a program may run, of which some take a backup or recover a cluster.
PROGRAM_SECONDS = round(900 * SLOWNESS)

# The startup process says so when it has replayed all that is there.
_WAITS_FOR_WAL = "LOG:  waiting for WAL to become available"


def run(bindir: str | Path, program: str, *arguments: Any, **options: Any) -> Any:
    """Run a program of PostgreSQL, for a limited time.  Returns the process."""
    options.setdefault("seconds", PROGRAM_SECONDS)
    return postgres.run_program(bindir, program, *arguments, env=environment(), **options)


def make_cluster(bindir: str, directory: Path, checksums: bool, segment_mb: int = 1) -> None:
    """Make a small cluster with small WAL segments, which syncs in ways that are recorded."""
    Server(bindir, directory, None).create(
        *postgres.THROWAWAY, f"--wal-segsize={segment_mb}",
        "--set=recovery_init_sync_method=fsync",
        "-k" if checksums else "--no-data-checksums")


def write_settings(directory: Path, settings: Mapping[str, Any],
                   file: str = "postgresql.conf") -> None:
    """Append settings to a configuration file of a cluster, durably."""
    postgres.write_settings(Path(directory) / file, settings, durably=True)


def _as_server_user():
    """Return what goes before a command that the server user is to run.

    If Python is to change the user, it copies its page tables for the child, which takes
    longer the more of a recording it holds, and longer than this program.
    """
    user = server_user()
    return [] if user is None else ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
                                    "--init-groups", "--"]


class Server(postgres.Server):
    """A server on a data directory, listening on a Unix socket only."""

    def __init__(self, bindir: Any, data: Any, log: Any, sockets: Any = None) -> None:
        super().__init__(bindir, data, log, environment(), sockets)
        self._process: Any = None
        self._told = False          # to end

    def make_sockets(self) -> None:
        """Make the directory of the socket, if it is not there yet."""
        if self.sockets is None:
            self.sockets = postgres.socket_directory()

    def start(self, settings: Mapping[str, Any] | None = None, wait: bool = True) -> None:
        """Start it, and wait until it accepts connections or has failed."""
        self.make_sockets()
        self._told = False
        arguments = [f"-c{name}={value}" for name, value in (settings or {}).items()]
        with open(self.log, "a") as log:
            self._process = subprocess.Popen(
                [*_as_server_user(), str(Path(self.bindir) / "postgres"), "-D", str(self.data),
                 "-c", "listen_addresses=", "-c", f"unix_socket_directories={self.sockets}",
                 *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=self.env)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until connections are accepted; raises ServerError if it died.

        Without a connection: a session reads catalogs, and what hints it leaves
        there depends on timing, so that no two servers would end the same.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(f"server exited with {self._process.returncode}")
            if self.is_ready():
                return
            time.sleep(0.01)
        raise ServerError("server does not accept connections")

    def wait_for_replay(self) -> None:
        """Wait until a standby waits for WAL that no primary will send.

        Without a connection: a session waits for locks that replay holds, and replay for the
        session's snapshot, until it cancels the session.
        """
        deadline = time.monotonic() + REPLAY_SECONDS
        while _WAITS_FOR_WAL not in self.log_text():
            if not self.alive():
                raise ServerError("a standby ends while it replays")
            if time.monotonic() > deadline:
                raise ServerError("a standby does not get to the end of its WAL")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Say whether the postmaster, in its lock file, says that it accepts connections."""
        lines = self.lock_file()
        return len(lines) > LOCK_STATUS and lines[LOCK_PID] == str(self._process.pid) \
            and lines[LOCK_STATUS].strip() in ("ready", "standby")

    def connect(self, dbname: str = "postgres", **where: Any) -> Any:
        """Return a new psycopg2 connection."""
        return super().connect(dbname=dbname, connect_timeout=CONNECT_SECONDS,
                               options="-c client_min_messages=error", **where)

    def alive(self) -> bool:
        """Say whether the postmaster runs."""
        process = self._process         # another thread may stop it
        return process is not None and process.poll() is None

    def has_ended(self) -> bool:
        """Say whether the postmaster has ended by itself."""
        process = self._process
        return process is not None and process.poll() is not None and not self._told

    def status(self) -> int | None:
        """Return the exit status of the postmaster, None if it runs or was never started."""
        return self._process and self._process.poll()

    def kill_one(self, title: str) -> bool:
        """Kill one of its processes, by what it calls itself; says whether there was one.

        It is halted before it is looked at for the last time: until then it may end by itself,
        and nothing would have crashed.
        """
        for pid in postgres.descendants(self._process.pid):
            if title in postgres.read_proc(pid, "cmdline") and postgres.halt(pid):
                postgres.kill(pid)
                return True
        return False

    def shared_memory(self) -> set:
        """Return the segments of shared memory that are left if all of it is killed."""
        return _shared_memory(self._process.pid)

    def stop(self, how: int = signal.SIGINT, properly: bool = True) -> None:
        """Stop it: SIGINT is a fast, SIGQUIT an immediate shutdown.

        A fast one must end properly, also if the server has gone before, unless the caller
        knows why not.  If the postmaster is killed meanwhile, others may be there a little longer.
        """
        process, family = self._process, {}
        if process is not None and process.poll() is None:
            self._told = True
            family = postgres.family(process.pid)
            process.send_signal(how)
        status = self._end(postgres.END_SECONDS)
        postgres.await_end(family)
        if how == signal.SIGINT and properly and status:
            raise ServerError(f"server does not stop properly, its exit status is {status}")

    def kill(self) -> None:
        """Kill the postmaster and all of its processes at once."""
        process = self._process
        if process is not None and process.poll() is None:
            self._told = True
            segments = _shared_memory(process.pid)
            postgres.kill_family(process.pid)
            for segment in segments:
                Path(segment).unlink(missing_ok=True)
        self._end(postgres.END_SECONDS)

    def _end(self, seconds):
        """Wait until the postmaster has ended; returns its exit status, None if there was none."""
        process = self._process
        if process is not None:
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(postgres.END_SECONDS)
                raise ServerError("server did not stop") from None
            finally:
                self._process = None
        return None

    def close(self) -> None:
        """Stop it if it runs, and remove the directory of its socket."""
        with contextlib.suppress(ServerError):
            self.kill()
        if self.sockets:
            shutil.rmtree(self.sockets)
            self.sockets = None


def _shared_memory(pid):
    return {segment for one in (pid, *postgres.descendants(pid))
            for segment in postgres.shared_memory(one)}
