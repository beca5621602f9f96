"""A PostgreSQL server on a data directory: made, configured, asked, killed.

`./dev run`, the benchmarks, the explorer and the cluster of Patroni have this in
common.  Each has a class below one of these, for the way in which it starts its
servers and waits for them.  PostgreSQL refuses to run as root, so programs run as the
server user (see base.py) if root calls.

Only what connects needs more than the standard library.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .base import SYSTEM_PATH, DevError, as_user, identity, own, run, server_user

SUPERUSER = "postgres"

# Do the tables of pgbench agree?
BALANCES = """
SELECT a = h AND b = h AND t = h
FROM (SELECT coalesce(sum(delta), 0) AS h FROM pgbench_history),
     (SELECT sum(abalance) AS a FROM pgbench_accounts),
     (SELECT sum(bbalance) AS b FROM pgbench_branches),
     (SELECT sum(tbalance) AS t FROM pgbench_tellers)"""

# Of clusters that only their maker can reach, and that need not survive the machine.
THROWAWAY = ("--auth=trust", "--no-locale", "--no-sync")

# How much of a server log, and of what a program has said, an error quotes.
LOG_LINES = 15
OUTPUT_CHARACTERS = 2000

# A limit, not a measure: a machine may be busy.
END_SECONDS = 300

# Places of lines in postmaster.pid, as pidfile.h has them.
LOCK_PID, LOCK_PORT, LOCK_SOCKETS, LOCK_STATUS = 0, 3, 4, 7


class ServerError(DevError):
    """A server, or a program of PostgreSQL's, did not do what it was told."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a small environment without settings of the caller's for libpq."""
    return {"PATH": SYSTEM_PATH, "HOME": "/nonexistent", "LANG": "C.UTF-8", "TZ": "UTC",
            **(extra or {})}


def run_program(bindir: str | Path, program: str, *arguments: object, env: Mapping[str, str],
                check: bool = True, stdin: str | None = None,
                seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of PostgreSQL's; returns the completed process, its output as text.

    If it fails, the error quotes the end of what it said.  With `seconds` it is killed after
    so many.
    """
    try:
        done = subprocess.run([str(Path(bindir) / program), *map(str, arguments)], text=True,
                              input=stdin, capture_output=True, cwd="/", env=env,
                              timeout=seconds, **identity(server_user()))
    except subprocess.TimeoutExpired as exc:
        raise ServerError(f"{program} did not end within {seconds or 0:.0f} s, and was killed") from exc
    if check and done.returncode:
        raise ServerError(f"{program} failed: {(done.stdout + done.stderr)[-OUTPUT_CHARACTERS:]}")
    return done


def write_settings(file: Path, settings: Mapping[str, object], durably: bool = False) -> None:
    """Append settings to a configuration file, where the last one counts.

    As the file's owner and, if told so, durably as an editor does.
    """
    with as_user(), open(file, "a") as opened:
        for name, value in settings.items():
            opened.write(f"{name} = '{value}'\n")
        if durably:
            opened.flush()
            os.fsync(opened.fileno())


def socket_directory() -> Path:
    """Make a directory for the socket of a server; the path of a socket must be short."""
    directory = Path(tempfile.mkdtemp(prefix="pgdw-"))
    own(directory)
    return directory


def connect(**where: Any) -> Any:
    """Return a new psycopg2 connection."""
    import psycopg2
    return psycopg2.connect(**{"user": SUPERUSER, "dbname": "postgres", **where})


class Server:
    """A server of the programs in `bindir` on `data`.

    `env` is the environment of the programs, `sockets` the directory of its socket.
    """

    hint: str | None = None         # what to do when it does not start

    def __init__(self, bindir: Path, data: str | Path, log: Path, env: Mapping[str, str],
                 sockets: Path | None = None) -> None:
        self.bindir = bindir
        self.data = Path(data)
        self.log = log
        self.env = env
        self.sockets = sockets

    def call(self, program: str, *arguments: object, **options: Any) -> Any:
        """Run a program of the build; returns the completed process."""
        return run_program(self.bindir, program, *arguments, env=self.env, **options)

    def create(self, *options: str) -> None:
        """Make the cluster."""
        self.call("initdb", "-D", self.data, "-U", SUPERUSER, "--encoding=UTF8",
                  "--no-instructions", *options)

    def promote(self, seconds: int) -> None:
        """Promote a standby, whether or not it accepts sessions.

        Raises ServerError unless it is a primary within so many seconds.
        """
        run_program(self.bindir, "pg_ctl", "promote", "-s", "-w", "-t", seconds,
                    "-D", self.data, env=self.env)

    # What it says of itself

    def lock_file(self) -> list[str]:
        """Return the lines of postmaster.pid, none if it is not there."""
        with contextlib.suppress(FileNotFoundError):
            return (self.data / "postmaster.pid").read_text().splitlines()
        return []

    def postmaster(self) -> int | None:
        """Return the process number of the postmaster, None if there is none."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid = int(self.lock_file()[LOCK_PID])
            # The file may be an old one, and the number another's by now.
            if os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(self.data):
                return pid
        return None

    def log_size(self) -> int:
        """Return where the server log ends now."""
        return self.log.stat().st_size

    def log_text(self, offset: int = 0) -> str:
        """Return what the server log says from `offset` on, nothing if there is no log yet."""
        with contextlib.suppress(FileNotFoundError), open(self.log, errors="replace") as log:
            log.seek(offset)
            return log.read()
        return ""

    def log_tail(self) -> str:
        """Return the end of the server log."""
        return "\n".join(self.log_text().splitlines()[-LOG_LINES:]) or "(no log)"

    def failure(self, what: str) -> ServerError:
        """Return the error that says what has failed, and what the server has said last."""
        return ServerError(f"the server {what}:\n{self.log_tail()}", self.hint)

    # Clients

    def connect(self, **options: Any) -> Any:
        """Return a new psycopg2 connection."""
        return connect(host=self.sockets, **options)

    def query(self, sql: str) -> Any:
        """Return the only value that a query gives, None if it is no query."""
        with contextlib.closing(self.connect()) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchone()[0] if cursor.description else None


class Controlled(Server):
    """A server that pg_ctl starts and stops, and that may outlive us.

    What the programs say goes to our standard error.
    """

    # Crash recovery, or the last checkpoint, of a big cluster may take its time.
    patience_seconds = 3600

    def call(self, program: str, *arguments: object, **options: Any) -> Any:
        """Run a program of the build; returns the completed process."""
        options.setdefault("env", self.env)
        return run([Path(self.bindir) / program, *arguments], cwd="/", user=server_user(),
                   **options)

    def pg_ctl(self, *arguments: object, **options: Any) -> Any:
        """Run pg_ctl; returns the completed process."""
        return self.call("pg_ctl", "-D", self.data, "-t", self.patience_seconds, *arguments,
                         **options)

    def start(self, *options: str, wait: bool = True) -> None:
        """Start the server; raises ServerError with the end of its log.

        Without `wait`, it may still be in recovery on return.
        """
        done = self.pg_ctl("-l", self.log, "-w" if wait else "-W", *options, "start", check=False)
        if done.returncode != 0:
            raise self.failure("did not start")

    def stop(self, mode: str = "fast", *options: str) -> None:
        """Stop the server."""
        self.pg_ctl("-m", mode, "-w", *options, "stop")


# Processes --------------------------------------------------------------------


def read_proc(pid: int, name: str) -> str:
    """Return the text of a file about a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's status from its state on, [] if it is gone."""
    return read_proc(pid, "stat").rpartition(")")[2].split()


def children(pid: int) -> list[int]:
    """Return the numbers of the processes right below one."""
    return [int(number) for number in read_proc(pid, f"task/{pid}/children").split()]


def descendants(pid: int) -> list[int]:
    """Return the numbers of all processes below one."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def shared_memory(pid: int) -> set[str]:
    """Return the segments of dynamic shared memory that stay behind if it is killed."""
    return set(re.findall(r"/dev/shm/PostgreSQL\.\d+", read_proc(pid, "maps")))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; no harm if the process has gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def halt(pid: int) -> bool:
    """Stop a process for now; returns whether it is there: it may have ended before that."""
    kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + END_SECONDS
    while (state := (stat_fields(pid) or "X")[0]) not in "TtZX":
        if time.monotonic() > deadline:
            raise ServerError(f"process {pid} does not stop")
        time.sleep(0.001)
    return state in "Tt"


def kill_family(pid: int) -> int:
    """Kill a process and all below it, and wait until they are gone; returns how many.

    They cannot act in between: the first one starts no more processes, and none of them sees
    it go.
    """
    kill(pid, signal.SIGSTOP)
    members = family(pid)
    for one in members:
        kill(one)
    await_end(members)
    return len(members)


def family(pid: int) -> dict[int, str]:
    """Return a process and all below it, for await_end()."""
    return {one: _started(one) for one in (*descendants(pid), pid)}


def await_end(members: Mapping[int, str]) -> None:
    """Wait until all processes of a family() are gone; raises ServerError if they stay."""
    deadline = time.monotonic() + END_SECONDS
    while not all(_is_gone(*one) for one in members.items()):
        if time.monotonic() > deadline:
            raise ServerError("processes of the server are still there")
        time.sleep(0.005)


def _started(pid: int) -> str:
    """Return when a process was started, which tells it from a later one with its number."""
    return (stat_fields(pid) + [""] * 20)[19]


def _is_gone(pid: int, started: str) -> bool:
    """Say whether a process has ended; a zombie has."""
    fields = stat_fields(pid)
    return not fields or fields[0] in "ZX" or _started(pid) != started


def tidy(directory: str | Path) -> None:
    """Kill processes whose command lines name what is below a directory, and unmount what is.

    For what a program has left that was killed itself; the directory's name must be its own.
    """
    below = f"{directory}/"
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid != os.getpid() and below in read_proc(pid, "cmdline"):
            with contextlib.suppress(ServerError):
                kill_family(pid)
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        place = line.split()[1].encode().decode("unicode_escape")
        if place.startswith(below):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True,
                           timeout=END_SECONDS)
