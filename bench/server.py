"""One PostgreSQL server on a data directory, on a Unix socket."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from devtools.base import DevError, clean_env, identity, run, server_user

DATABASE = "bench"
SUPERUSER = "postgres"
EXTENSION = "pg_doublewrite_stats"

# Servers listen on sockets in directories of their own, so ports never clash.
PORT = 5432

# A crash recovery or the last checkpoint of a large case may take a while.
TIMEOUT_SECONDS = 1800

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

# Names of processes carry numbers or users that say nothing here.
PROCESS_KINDS = ("checkpointer", "background writer", "walwriter", "walsender", "walreceiver",
                 "startup", "walpipeline", "io worker", "autovacuum", "logical replication")


class Server:
    """A server of the build in `bindir` on `data`, run by the server user."""

    def __init__(self, paths, bindir, data):
        self.paths = paths
        self.bindir = bindir
        self.data = data
        self.log = data.parent / f"{data.name}.log"
        self.sockets = None

    # Life -----------------------------------------------------------------

    def create(self, *options):
        """Run initdb."""
        self.call("initdb", "-D", self.data, "-U", SUPERUSER, "--encoding=UTF8",
                  "--no-locale", "--auth=trust", "--no-instructions", "--no-sync", *options)

    def configure(self, settings):
        """Append settings to postgresql.conf, where the last one counts."""
        with open(self.data / "postgresql.conf", "a") as conf:
            for name, value in settings.items():
                conf.write(f"{name} = '{value}'\n")

    def start(self, wait=True):
        """Start the server; raises DevError with the end of its log.

        Without `wait`, it may still be in recovery on return.
        """
        self.sockets = Path(tempfile.mkdtemp(prefix="pgdw-bench-"))
        user = server_user()
        if user:
            os.chown(self.sockets, user.pw_uid, user.pw_gid)
        self.configure({"listen_addresses": "", "port": PORT,
                        "unix_socket_directories": self.sockets})
        done = self.call("pg_ctl", "-D", self.data, "-l", self.log, "-w" if wait else "-W", "-s",
                         "-t", TIMEOUT_SECONDS, "start", check=False)
        if done.returncode != 0:
            shutil.rmtree(self.sockets)
            raise DevError("a server did not start:\n" + self.log_tail())

    def stop(self, mode="fast"):
        """Stop the server; does nothing if it does not run."""
        if self.sockets is None:
            return
        try:
            if (self.data / "postmaster.pid").exists():
                self.call("pg_ctl", "-D", self.data, "-m", mode, "-w", "-s",
                          "-t", TIMEOUT_SECONDS, "stop")
        finally:
            shutil.rmtree(self.sockets, ignore_errors=True)
            self.sockets = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, error, trace):
        # After an error nobody wants to wait for the last checkpoint.
        self.stop("immediate" if kind else "fast")

    def log_tail(self, lines=15):
        """Return the end of the server log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    # Use ------------------------------------------------------------------

    def environment(self, database=DATABASE):
        """Return the environment that makes clients connect to this server."""
        return clean_env(self.paths, PGHOST=str(self.sockets), PGPORT=str(PORT),
                         PGUSER=SUPERUSER, PGDATABASE=database)

    def call(self, program, *args, **options):
        """Run a program of the build as the server user."""
        options.setdefault("env", clean_env(self.paths))
        return run([self.bindir / program, *args], cwd="/", user=server_user(), **options)

    def sql(self, text, database=DATABASE):
        """Run SQL with psql and return its unaligned output."""
        done = self.call("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-",
                         data=text.encode(), capture=True, env=self.environment(database))
        return done.stdout.decode().strip()

    def rows(self, text):
        """Run one query and return its rows as lists of strings."""
        return [line.split("|") for line in self.sql(text).splitlines()]

    def timed(self, text):
        """Run SQL and return the seconds that its statements took."""
        return sum(timings(self.sql("\\timing on\n" + text))) / 1000

    def settings(self):
        """Return the settings that differ from the built-in defaults."""
        return dict(self.rows("SELECT name, current_setting(name) FROM pg_settings"
                              " WHERE source NOT IN ('default', 'override', 'client')"
                              " AND name !~ '^(lc_|log_timezone|TimeZone|DateStyle|port"
                              "|unix_socket|listen|default_text|application)' ORDER BY 1"))

    @contextlib.contextmanager
    def following(self, query, path, interval=1):
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

    def cpu_seconds(self):
        """Return {kind of process: seconds}, with "total" of all that ever ran.

        The total includes processes that have ended, as their parent keeps
        their time; the kinds are of those alive.
        """
        own, ended = _times(self.postmaster())
        seconds = {"total": own + ended}
        for kind, used in self.processes().values():
            seconds["total"] += used
            seconds[kind] = seconds.get(kind, 0) + used
        return seconds

    def postmaster(self):
        """Return the process id of the postmaster."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def processes(self):
        """Return {process id: (kind, CPU seconds)} of the postmaster's children."""
        found = {}
        for child in _children(self.postmaster()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                used, _ = _times(child)
                cmdline = Path(f"/proc/{child}/cmdline").read_bytes()
                # A process that has ended has none, until it is waited for.
                if cmdline:
                    found[child] = (process_kind(cmdline), used)
        return found


def timings(text):
    """Return the milliseconds that psql's \\timing reported."""
    return [float(number) for number in re.findall(r"^Time: ([\d.]+) ms", text, re.MULTILINE)]


def process_kind(cmdline):
    """Return what kind of server process a command line belongs to."""
    title = cmdline.decode(errors="replace")
    for kind in PROCESS_KINDS:
        if kind in title:
            return kind
    return "client backend"


def _times(pid):
    """Return the CPU seconds of a process and of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = map(int, fields[11:15])
    return ((user + system) / CLOCK_TICKS, (children_user + children_system) / CLOCK_TICKS)


def _children(pid):
    """Return the process ids of the children of a process."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(number) for number in text.split()]
