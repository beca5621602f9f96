"""Scenarios in which a primary is recorded: life after life, with the load on it.

Lives may differ in mode, or have few checkpoints.  Or base backups are taken of it, and their
files read in pieces, so that a page that is written meanwhile is read torn.
"""

import contextlib
import json
import random
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg2

from . import alarms, server, workload
from .limits import limit
from .server import Server

# How a life of the server ends.  The next one begins with what that leaves.
ENDS = ("fast", "immediate", "kill")

BACKUPS = 6

MODE = "io_torn_pages_protection"
MODES = ("full_pages", "double_writes")


def other_mode(mode: str) -> str:
    """Return a mode that protects pages in another way, with images or without."""
    return MODES[mode == MODES[0]]


# A load that goes on for so long after its end waits for something that never
# comes; and so do what comes before and after it.
HANG_SECONDS = 180
LIFE_SECONDS = 900

# How soon it is noticed that a server has ended, and how long one may take that has lost clients.
GUARD_SECONDS = 0.1
GONE_SECONDS = 20

# What a server may not say, unless something is made to fail.
_MISSING = re.compile(r'^.*ERROR:  could not (?:open|write|read)[^"]* file '
                      r'"(?:base|global|pg_tblspc)/.*$', re.MULTILINE)


class Beside(threading.Thread):
    """A call in a thread of its own; join() raises what it raises."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        super().__init__()
        self._call = work, arguments
        self._error = None

    def run(self) -> None:
        work, arguments = self._call
        try:
            work(*arguments)
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._error is not None:
            raise self._error


class Guard(threading.Thread):
    """Ends all servers of a recording as soon as one of them has ended by itself.

    What others wait for would never come: an acknowledgement, or that a lock is released.
    """

    def __init__(self, servers: Any) -> None:
        super().__init__(name="guard")
        self._servers = servers         # by name
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.crashed = {}               # name: what is to be said of it

    def run(self) -> None:
        while self._servers and not self.crashed and not self._over.wait(GUARD_SECONDS):
            self.look()

    def end(self) -> None:
        """Look for the last time."""
        self._over.set()
        self.join()
        self.look()

    def wait(self) -> None:
        """Wait for a while until a server has ended: clients have lost their connections."""
        deadline = time.monotonic() + (GONE_SECONDS if self._servers else 0)
        while not self.crashed and time.monotonic() < deadline:
            self.look()
            time.sleep(GUARD_SECONDS)

    def require(self) -> None:
        """Raise ServerError if a server has ended."""
        self.look()
        if self.crashed:
            raise server.ServerError("the load was cut short")

    def look(self) -> None:
        """End all servers if one of them has ended by itself."""
        with self._lock:
            gone = {name: one for name, one in self._servers.items() if one.has_ended()}
            if gone and not self.crashed:
                self.crashed = {name: _last_words(name, one) for name, one in gone.items()}
                for one in self._servers.values():
                    one.kill()


def _last_words(name, instance):
    """Return what is to be said of a server that has ended by itself."""
    said = dict.fromkeys(alarms.crashes(instance.log_text()))
    return " / ".join([f"{name} has ended by itself, with status {instance.status()}; "
                       f"its log is {instance.log.name}", *said])


class Primary:
    """A server is recorded, life after life, with the load on it."""

    recorder_options = ()

    # What fails may make it crash, by a PANIC.
    may_crash = False

    # Classes of SQLSTATE that are findings; none if something is made to fail.
    alarming = alarms.CLASSES

    # How lives end.
    ends = ENDS

    def __init__(self, base: Any, directory: Path, plan: Any, bindir: str,
                 rng: random.Random) -> None:
        self.base = base
        self.directory = directory
        self.plan = plan
        self.bindir = bindir
        self.rng = rng
        self.data = None            # the recorded directory
        self.acks = []
        self.promised = False       # a commit was acknowledged
        self.log = directory / "server.log"
        self.log.touch()
        server.own(self.log)

    def live(self, data: Any) -> Any:
        """Run all lives on the recorded directory `data`; returns the acks."""
        self.data = data
        self.server = server.Server(self.bindir, data, self.log)
        try:
            self._live(self.server)
        except BaseException as error:      # no recording comes of it, so the error has to say all
            self.read_logs()
            for event in self.acks:
                if event["what"] == "complaint":
                    error.add_note(event["text"])
            raise
        self.read_logs()
        for text in alarms.of_clients(self.acks, self.alarming):
            self.complain(text)
        return self.acks

    def _live(self, instance):
        """Run all lives of the recorded server."""
        try:
            for life in range(self.plan.lives):
                try:
                    with limit(f"life {life + 1} of the recorded server",
                               self.plan.seconds + LIFE_SECONDS):
                        self.begin_life(life)
                        instance.start(self.options())
                        with self._guarded():
                            self.load(instance)
                        self.end(instance, self.rng.choice(self.ends))
                except (server.ServerError, psycopg2.Error) as exc:
                    # A server that a control has broken may not even start
                    # again, which is what the control is looking for.
                    self.complain(f"life {life + 1} of the recorded server: {exc}")
                    break
        finally:
            instance.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Enter it at once, and end all servers, if one of them ends by itself."""
        self.guard = Guard(self.servers())
        self.guard.start()
        try:
            yield
        finally:
            self.guard.end()
            for text in self.guard.crashed.values():
                self.complain(text)
        self.guard.require()

    def read_logs(self) -> None:
        """Enter what no server may say."""
        self.read_log("recorded server", self.log)

    def read_log(self, name: str, file: Path) -> None:
        """Enter what a server may not say."""
        log = file.read_text(errors="replace")
        missing = [] if self.may_crash else _MISSING.findall(log)
        for line in dict.fromkeys(alarms.crashes(log, fails=self.may_crash) + missing):
            self.complain(f"{name}: {line}")
        for text in alarms.of_server(log, self.alarming):
            self.complain(text if file is self.log else f"{name}: {text}")

    def servers(self) -> dict:
        """Return the servers that must be there as long as the load is, by name."""
        return {} if self.may_crash else {"the recorded server": self.server}

    def begin_life(self, life: int) -> None:
        """Do what comes before a start of the recorded server."""

    def options(self) -> dict:
        """Return settings of this life alone, given on the command line."""
        return {}

    def end(self, instance: Server, how: str) -> None:
        """End a life."""
        if how == "kill":
            instance.kill()
        else:
            instance.stop({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how],
                          self.ends_properly())

    def ends_properly(self) -> bool:
        """Say whether the server must end a life properly if it is told so."""
        return not self.may_crash

    def workloads(self) -> Mapping[str, int] | None:
        """Return the kinds of load of a life; None is all."""
        return self.plan.kinds

    def load(self, instance: Server) -> None:
        """Run the load for one life of the recorded server."""
        self.guard.require()
        acks = None
        try:
            with limit("the load", self.plan.seconds + HANG_SECONDS):
                acks = workload.run(
                    instance.connect, self.workloads(), modes=self.plan.modes,
                    seconds=self.plan.seconds / self.plan.lives,
                    seed=self.rng.randrange(1 << 30), sink=self._see)
                self.acks += acks
        finally:
            if acks is None or any(event.get("unknown") for event in acks):
                self.guard.wait()
        self.guard.require()

    def _see(self, event):
        """See an event of a client at once."""
        self.promised |= event["what"] == "ack"

    def complain(self, text: str) -> None:
        """Enter a complaint, which makes each state fail."""
        self.acks.append({"t": 0, "client": "server", "what": "complaint",
                          "text": text})


class Edited(Primary):
    """The mode of protection is another one in each life: edited while the server was down.

    It may have been stopped or have crashed.  Half of the lives have no checkpoint if
    they end in a crash, so that what a start does must be enough.
    """

    def workloads(self) -> dict:
        quiet = self.rng.random() < 0.5
        return {kind: clients for kind, clients in self.plan.kinds.items()
                if not (quiet and kind == "checkpoint")}

    def begin_life(self, life: int) -> None:
        mode = self.plan.settings[MODE]
        server.write_settings(self.data, {MODE: (other_mode(mode), mode)[life % 2],
                                          "checkpoint_timeout": "30s", "max_wal_size": "256MB"})


class Reopened(Primary):
    """Lives end in crashes, and clients get in again long before a checkpoint.

    Some lives have another wal_level than the one before, with which the checkpoint
    may have to come first.  Buffers are few, so that pages go home meanwhile, and the more
    of them, the longer the checkpoint takes.
    """

    ends = ("immediate", "kill")

    def workloads(self) -> dict:
        return {kind: clients for kind, clients in self.plan.kinds.items()
                if kind != "checkpoint" or self.rng.random() < 0.2}

    def begin_life(self, life: int) -> None:
        level = self.rng.choice(("replica", "replica", "replica", "logical", "minimal"))
        server.write_settings(self.data, {
            "wal_level": level, "max_wal_senders": "0" if level == "minimal" else "10",
            "checkpoint_timeout": "30s", "checkpoint_completion_target": "0.9",
            "max_wal_size": "256MB",
            "shared_buffers": self.rng.choice(("512kB", "1MB", "2MB")),
            "bgwriter_lru_maxpages": "100", "bgwriter_delay": "10ms"})


class Backup(Primary):
    """Base backups are taken of the recorded server, which serves torn reads."""

    recorder_options = ("--split-reads",)

    def options(self) -> dict:
        """Keep WAL: pg_basebackup gets a slot for it only once the backup has begun."""
        return {"wal_keep_size": "1GB"}

    def load(self, instance: Server) -> None:
        load = Beside(super().load, instance)
        load.start()
        backups = []
        try:
            while load.is_alive() and len(backups) < BACKUPS:
                backups.append(self._back_up(instance, len(backups)))
        finally:
            load.join()
        (self.directory / "backups.json").write_text(json.dumps(backups))

    def _back_up(self, instance, number):
        """Take one backup; returns where it is, and when it began and ended."""
        name = f"backup-{number}"
        with tempfile.TemporaryDirectory(prefix="backup-", dir=self.directory) as place:
            server.own(place)
            begin = time.monotonic_ns()
            server.run(self.bindir, "pg_basebackup", "-D", f"{place}/data", "-X", "stream",
                       "-c", "fast", "--no-sync", "-U", server.USER, "-h", instance.sockets)
            end = time.monotonic_ns()
            shutil.move(f"{place}/data", self.directory / name)
        return {"name": name, "begin": begin, "end": end}
