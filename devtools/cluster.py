"""The cluster of `./dev run`."""

import os
import socket
from pathlib import Path

from common.base import DevError, Paths, clean_env, own, require_reachable, say, server_user
from common.postgres import LOCK_PORT, LOCK_SOCKETS, SUPERUSER, Controlled, socket_directory

FIRST_PORT = 5432

# The longest socket path that Linux accepts (sun_path, less the final zero).
MAX_SOCKET_PATH = 107


class Cluster(Controlled):
    """A data directory, and the programs of a build to serve it with."""

    def __init__(self, paths: Paths, bindir: Path, data: Path) -> None:
        super().__init__(bindir, data, data / "server.log", clean_env(paths))
        self.hint = f"the whole log is {self.log}"

    def run(self) -> None:
        """Create the cluster unless it exists, and start it unless it runs."""
        self._claim()
        if not (self.data / "PG_VERSION").exists():
            say(f"creating a cluster in {self.data}")
            self.create("--auth-local=trust", "--auth-host=scram-sha-256")
        if self.is_running():
            say("the server is running already")
        else:
            port, directory = _free_port(), self._socket_directory()
            say(f"starting the server on port {port}")
            self.start("-o", f"-p {port} -k '{directory}'")

    def stop(self, mode: str = "fast", *options: str) -> None:
        """Stop the server, as by a fast shutdown, if it runs."""
        if not self.is_running():
            say(f"no server runs on {self.data}")
            return
        super().stop(mode, *options)

    def is_running(self) -> bool:
        """Say whether a server runs on the data directory."""
        return self.pg_ctl("status", check=False, capture=True).returncode == 0

    def connection(self) -> str:
        """Return the command line that connects to the running server."""
        lines = self.lock_file()
        return (f"{self.bindir}/psql -h {lines[LOCK_SOCKETS]} -p {lines[LOCK_PORT]}"
                f" -U {SUPERUSER} postgres")

    def _claim(self):
        """Make the data directory exist and belong to the server user."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        require_reachable(self.data.parent)
        user = server_user()
        if not self.data.exists():
            self.data.mkdir(mode=0o700)
            own(self.data)
        elif user and self.data.stat().st_uid != user.pw_uid:
            raise DevError(f"{self.data} does not belong to user {user.pw_name}, "
                           "who runs servers when root calls ./dev",
                           f"if it may, chown -R {user.pw_name}: {self.data}")

    def _socket_directory(self):
        """Return the data directory, private as it is, if its path is short."""
        if len(os.fsencode(self.data / f".s.PGSQL.{FIRST_PORT}.lock")) <= MAX_SOCKET_PATH:
            return self.data
        return socket_directory()


def data_directory(paths: Paths, given: str | None) -> Path:
    """Return the data directory: `given`, else PGDATA, else data/."""
    return Path(given or os.environ.get("PGDATA") or paths.repo / "data").absolute()


def _free_port():
    """Return PGPORT, else the first port from 5432 that is free."""
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
