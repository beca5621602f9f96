"""PostgreSQL servers of the explorer: made, started and stopped by one user.

PostgreSQL refuses to run as root.  Called as root, which mounting needs, its
programs run as the server user of ./dev; otherwise as the caller.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from devtools.base import server_user

USER = "postgres"     # the superuser in the cluster

# Limits, not measures: a machine may be busy.
START_SECONDS = 300
CONNECT_SECONDS = 120
END_SECONDS = 300


class ServerError(Exception):
    """A server did not do what it was told."""


def identity():
    """Return the arguments of subprocess calls that run PostgreSQL's programs."""
    entry = server_user()
    if entry is None:
        return {}
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def give(path):
    """Let PostgreSQL's user own a file or directory that we have made."""
    entry = server_user()
    if entry is not None:
        os.chown(path, entry.pw_uid, entry.pw_gid)


@contextlib.contextmanager
def as_user():
    """Make files as PostgreSQL's user; processes started meanwhile stay root's."""
    entry = server_user()
    if entry is None:
        yield
        return
    os.setegid(entry.pw_gid)
    os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def environment(extra=None):
    """Return a small environment without settings of the caller's for libpq."""
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC", **(extra or {})}


def run(bindir, program, *arguments, env=None, check=True, stdin=None):
    """Run a program of PostgreSQL; returns the completed process."""
    done = subprocess.run([str(Path(bindir) / program), *map(str, arguments)], text=True,
                          input=stdin, capture_output=True, cwd="/", env=environment(env),
                          **identity())
    if check and done.returncode:
        raise ServerError(f"{program} failed: {done.stderr[-2000:] or done.stdout[-2000:]}")
    return done


def make_cluster(bindir, directory, checksums, segment_mb=1):
    """Make a small cluster with small WAL segments."""
    run(bindir, "initdb", "-D", directory, "-U", USER, "-A", "trust", "-E", "UTF8",
        "--locale=C", "--no-sync", "--no-instructions", f"--wal-segsize={segment_mb}",
        "-k" if checksums else "--no-data-checksums")


def write_settings(directory, settings):
    """Append settings to a cluster's postgresql.conf, as its owner, durably as an editor does."""
    with as_user(), open(Path(directory) / "postgresql.conf", "a") as file:
        for name, value in settings.items():
            file.write(f"{name} = '{value}'\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass
class Server:
    """A server on a data directory, listening on a Unix socket only."""

    bindir: Path
    data: Path
    log: Path
    env: dict = field(default_factory=dict)
    sockets: str = None
    _process: subprocess.Popen = None

    def make_sockets(self):
        """Make the directory of the socket, if it is not there yet."""
        if self.sockets is None:
            self.sockets = tempfile.mkdtemp(prefix="pgcut-")
            give(self.sockets)

    def start(self, settings=None, wait=True):
        """Start it, and wait until it accepts connections or has failed."""
        self.make_sockets()
        arguments = [f"-c{name}={value}" for name, value in (settings or {}).items()]
        with open(self.log, "a") as log:
            self._process = subprocess.Popen(
                [str(Path(self.bindir) / "postgres"), "-D", str(self.data),
                 "-c", "listen_addresses=", "-c", f"unix_socket_directories={self.sockets}",
                 *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env=environment(self.env), **identity())
        if wait:
            self.wait_ready()

    def wait_ready(self):
        """Wait until connections are accepted; raises ServerError if it died.

        Without a connection: a session reads catalogs, and what hints it leaves
        there depends on timing, so that no two servers would end the same.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(f"server exited with {self._process.returncode}")
            if self._status() in ("ready", "standby"):
                return
            time.sleep(0.01)
        raise ServerError("server does not accept connections")

    def _status(self):
        """Return what the postmaster says of itself in its lock file, or None."""
        try:
            lines = (Path(self.data) / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        if len(lines) < 8 or lines[0] != str(self._process.pid):
            return None
        return lines[7].strip()

    def connect(self, dbname="postgres"):
        """Return a new psycopg2 connection."""
        import psycopg2
        return psycopg2.connect(host=self.sockets, user=USER, dbname=dbname,
                                connect_timeout=CONNECT_SECONDS,
                                options="-c client_min_messages=error")

    def alive(self):
        """Say whether the postmaster runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self, how=signal.SIGINT):
        """Stop it: SIGINT is a fast, SIGQUIT an immediate shutdown."""
        if self.alive():
            self._process.send_signal(how)
        self._end(END_SECONDS)

    def kill(self):
        """Kill the postmaster and all of its processes at once."""
        if self.alive():
            children = {pid: _started(pid) for pid in _children(self._process.pid)}
            segments = {segment for pid in (self._process.pid, *children)
                        for segment in _shared_memory(pid)}
            self._process.kill()
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _wait_gone(children, END_SECONDS)
            for segment in segments:
                Path(segment).unlink(missing_ok=True)
        self._end(END_SECONDS)

    def _end(self, seconds):
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise ServerError("server did not stop") from None
            finally:
                self._process = None

    def close(self):
        """Stop it if it runs, and remove the directory of its socket."""
        with contextlib.suppress(ServerError):
            self.kill()
        if self.sockets:
            for leftover in Path(self.sockets).iterdir():
                leftover.unlink()
            os.rmdir(self.sockets)
            self.sockets = None


def _read_proc(pid, name):
    """Return the text of a file about a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _children(pid):
    """Return the process ids below `pid`."""
    text = _read_proc(pid, f"task/{pid}/children").split()
    return [child for name in text for child in (int(name), *_children(int(name)))]


def _shared_memory(pid):
    """Return the segments of dynamic shared memory that nobody would remove."""
    return set(re.findall(r"/dev/shm/PostgreSQL\.\d+", _read_proc(pid, "maps")))


def _status_of(pid):
    """Return the fields of a process's status from its state on, [] if it is gone."""
    return _read_proc(pid, "stat").rpartition(")")[2].split()


def _started(pid):
    """Return when a process was started, which tells it from a later one with its number."""
    return (_status_of(pid) + [""] * 20)[19]


def _is_gone(pid, started):
    """Say whether a process has ended; who reaps it is not our concern."""
    status = _status_of(pid)
    return not status or status[0] in "ZX" or _started(pid) != started


def _wait_gone(processes, seconds):
    """Wait until processes that were killed, {number: when started}, are gone."""
    deadline = time.monotonic() + seconds
    while not all(_is_gone(*process) for process in processes.items()):
        if time.monotonic() > deadline:
            raise ServerError("processes of the server are still there")
        time.sleep(0.005)
