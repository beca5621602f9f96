"""The cluster of `./dev run`."""

import os
import socket
import tempfile
from pathlib import Path

from .base import (DevError, clean_env, require_reachable, run, say,
                   server_user)

SUPERUSER = "postgres"
FIRST_PORT = 5432

# The longest socket path that Linux accepts (sun_path, less the final zero).
MAX_SOCKET_PATH = 107

# Crash recovery of a big cluster may take its time.
START_TIMEOUT_SECONDS = 3600


class Cluster:
    """A data directory, and the programs of a build to serve it with."""

    def __init__(self, paths, bindir, data):
        self.paths = paths
        self.bindir = bindir
        self.data = data
        self.log = data / "server.log"

    def run(self):
        """Create the cluster unless it exists, and start it unless it runs."""
        self._claim()
        if not (self.data / "PG_VERSION").exists():
            say(f"creating a cluster in {self.data}")
            self._call("initdb", "-D", self.data, "-U", SUPERUSER, "--encoding=UTF8",
                       "--auth-local=trust", "--auth-host=scram-sha-256", "--no-instructions")
        if self.is_running():
            say("the server is running already")
        else:
            self._start()

    def stop(self):
        """Stop the server, as by a fast shutdown, if it runs."""
        if not self.is_running():
            say(f"no server runs on {self.data}")
            return
        self._call("pg_ctl", "-D", self.data, "-m", "fast", "-w",
                   "-t", START_TIMEOUT_SECONDS, "stop")

    def is_running(self):
        """Say whether a server runs on the data directory."""
        return self._call("pg_ctl", "-D", self.data, "status", check=False,
                          capture=True).returncode == 0

    def connection(self):
        """Return the command line that connects to the running server."""
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        port, directory = lines[3], lines[4]
        return f"{self.bindir}/psql -h {directory} -p {port} -U {SUPERUSER} postgres"

    def _claim(self):
        """Make the data directory exist and belong to the server user."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        require_reachable(self.data.parent)
        user = server_user()
        if not self.data.exists():
            self.data.mkdir(mode=0o700)
            if user:
                os.chown(self.data, user.pw_uid, user.pw_gid)
        elif user and self.data.stat().st_uid != user.pw_uid:
            raise DevError(f"{self.data} does not belong to user {user.pw_name}, "
                           "who runs servers when root calls ./dev",
                           f"if it may, chown -R {user.pw_name}: {self.data}")

    def _start(self):
        """Start the server on a free port; raises DevError with its log."""
        port, directory = _free_port(), self._socket_directory()
        say(f"starting the server on port {port}")
        done = self._call("pg_ctl", "-D", self.data, "-l", self.log, "-w",
                          "-t", START_TIMEOUT_SECONDS,
                          "-o", f"-p {port} -k '{directory}'", "start", check=False)
        if done.returncode != 0:
            tail = self.log.read_text(errors="replace").splitlines()[-15:] \
                if self.log.exists() else []
            raise DevError("\n".join(["the server did not start:", *tail]),
                           f"the whole log is {self.log}")

    def _socket_directory(self):
        """Return the data directory, private as it is, if its path is short."""
        if len(os.fsencode(self.data / f".s.PGSQL.{FIRST_PORT}.lock")) <= MAX_SOCKET_PATH:
            return self.data
        directory = Path(tempfile.mkdtemp(prefix="pgdw-"))
        user = server_user()
        if user:
            os.chown(directory, user.pw_uid, user.pw_gid)
        return directory

    def _call(self, program, *args, **options):
        """Run a program of the build as the server user."""
        return run([self.bindir / program, *args], cwd="/", user=server_user(),
                   env=clean_env(self.paths), **options)


def data_directory(paths, given):
    """Return the data directory: `given`, else PGDATA, else data/."""
    return Path(given or os.environ.get("PGDATA") or paths.repo / "data").absolute()


def _free_port():
    """Return PGPORT, else the first port from 5432 that nobody listens on."""
    if os.environ.get("PGPORT"):
        return int(os.environ["PGPORT"])
    for port in range(FIRST_PORT, 65536):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DevError("no free port")
