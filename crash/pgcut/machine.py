"""A server of a history with its disk, the load on it, and what servers are made of."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from . import alarms, drawing, monitor, readers, server, workload
from .ledger import Ledger
from .recording import Recording
from .store import OWNER, Store, identified
from .world import MODE

# Limits of what a busy machine may take; more is a finding.
HANG_SECONDS = 240
GONE_SECONDS = 20
POLL_SECONDS = 0.02

OURS = (MODE, "double_write_", "wal_pipeline", "show_recovery_progress",
        "instant_recovery", "recovery_workers",
        "shared_preload_libraries", f"{server.POINTS}.", f"{server.ENGINE}.")
OUR_FILE = "pgdw.conf"
MARKER, MARKER_LINE = "backup_label", "DOUBLE WRITE LOG IN USE"
LOG = "pg_doublewrite"
CLOCK = f"{server.ENGINE}_clock"            # a library that stands for the clock
CLOCK_BACK = f"{server.ENGINE}.clock_back"  # a file: it is set back

# Stock says this to, or of, a standby that has gone another way or has been away for too long;
# and of a command that the postmaster has ended, as it does all when one process has crashed.
_AS_IN_STOCK = re.compile("is not in this server's history|has already been removed"
                          "|ahead of the WAL flush position|of timeline .* before it"
                          f"|archive command was terminated by signal {signal.SIGQUIT:d}:"
                          f"|archive command failed with exit code {128 + signal.SIGQUIT}$")
_ALARMING_CODE = re.compile("XX|58")


def alarming(log: str) -> list[str]:
    """Return the lines of a server log that were not to happen, unless something was made to fail."""
    return [line for line in alarms.of_server(log) if not _AS_IN_STOCK.search(line)]


class Failure(Exception):
    """A step did not do what it has to, or was not refused."""


@dataclass(frozen=True)
class Tools:
    """Where the programs are."""

    bindir: str                 # with the test modules beside them
    stock_bindir: str           # "" if there are none: steps with stock are left out
    recorder: str
    scratch: str

    @property
    def clock(self) -> str:
        """Return the library that stands for the clock of a server."""
        found = list(Path(self.bindir).parent.glob(f"lib*/**/{CLOCK}.so"))
        return str(found[0]) if found else ""


def with_module(bindir: str, build: str, place: Path) -> str:
    """Return programs of a copy of an installation that has the test modules, too."""
    where = subprocess.run([Path(bindir) / "pg_config", "--pkglibdir"], capture_output=True,
                           text=True, check=True).stdout.strip()
    prefix = Path(bindir).parent
    # links, unless it lies on another file system, as that of a mutation does
    same = os.stat(prefix).st_dev == os.stat(Path(place).parent).st_dev
    subprocess.run(["cp", "-al" if same else "-a", prefix, place], check=True)
    for module, library in ((server.POINTS, server.POINTS), (server.ENGINE, server.ENGINE),
                            (server.ENGINE, CLOCK)):
        shutil.copy(Path(build) / "src/test/modules" / module / f"{library}.so",
                    Path(place) / Path(where).relative_to(prefix))
    return str(Path(place) / "bin")


class Load(threading.Thread):
    """Clients, and maybe a reader, on one server."""

    def __init__(self, machine: "Machine", load: Any) -> None:
        super().__init__(name="load")
        self._machine = machine
        self._load = load
        self._wanted = load["acks"]
        self.reached = threading.Event()    # so many acknowledgements, or the load is over
        self.failure = None
        self.events = []
        self.reader = readers.Reader(machine.instance.connect) if load["readers"] else None

    def run(self) -> None:
        ledger = self._machine.ledger

        def sink(event):
            ledger.events.append(event)
            self.events.append(event)
            self._wanted -= event["what"] == "ack"
            if self._wanted <= 0:
                self.reached.set()

        if self.reader:
            self.reader.start()
        try:
            workload.run(self._machine.instance.connect, self._load["kinds"],
                         transactions=self._load["transactions"], seed=self._load["seed"],
                         sink=sink, probe=readers.obeys_timeout)
        except psycopg2.Error:
            pass                # the server went before it began
        except RuntimeError as error:
            self.failure = str(error)
        finally:
            self.reached.set()
            if self.reader:
                self.reader.stop.set()

    def complaints(self) -> list[str]:
        """Return what was wrong, apart from what the ledger is for."""
        found = [event["text"] for event in self.events if event["what"] == "complaint"]
        errors = [(event.get("sqlstate", ""), event["error"]) for event in self.events
                  if event["what"] == "fail"]
        if self.reader:
            found += self.reader.complaints
            errors += self.reader.codes
        if not self._machine.excused:
            found += [f"SQLSTATE {code}: {text}" for code, text in errors
                      if _ALARMING_CODE.match(code)]
        return found + ([self.failure] if self.failure else [])


class Machine:
    """One server with its disk."""

    def __init__(self, name: str, tools: Tools, place: Path) -> None:
        self.name = name
        self.tools = tools
        self.store = Store(tools.recorder, Path(place) / name)
        self.log = Path(place) / f"{name}.log"
        self.log.touch()
        server.own(self.log)
        self._logs = [Path(place) / f"{name}.log-{which}" for which in ("before", "last")]
        self._redos: list = [None, None]  # the redo pointers that pg_control named then
        self.lived = False         # it has got ready since the last copy was taken
        self.instance = server.Server(tools.bindir, self.store.data, self.log)
        self.instance.make_sockets()
        self.ledger = Ledger()
        self.excused = False        # something was made to fail in this life
        self.clean = False          # it was stopped fast, not in the middle of a start
        self.verified = True        # in this life, or else by the next one
        self.read = 0               # of the server log
        self.archive: Any = None         # where WAL of this data directory goes
        self.watched = False        # the protocol monitor can read what is recorded now
        self._place = Path(place)
        self._segments = set()

    @property
    def data(self) -> Path:
        return self.store.data

    def start(self, program: str = "ours", settings: Mapping[str, Any] | None = None,
              wait: bool = True, clock: Any = False) -> None:
        stock = program == "stock"
        self.clean = False
        self.instance.bindir = self.tools.stock_bindir if stock else self.tools.bindir
        self.instance.env = server.environment({"LD_PRELOAD": self.tools.clock} if clock else {})
        self.hide_settings(stock)
        self.instance.start(settings, wait)
        if wait:
            self.note_segments()

    def note_segments(self) -> None:
        """Remember shared memory that stays behind if the server is killed from within."""
        self._segments = self.instance.shared_memory()

    def hide_settings(self, hide: Any) -> None:
        """Hide the settings that stock does not know, or bring them back."""
        shown, hidden = self.data / OUR_FILE, self.data / f"{OUR_FILE}.hidden"
        with server.as_user():
            if hide and shown.exists():
                shown.rename(hidden)
            elif not hide and hidden.exists():
                hidden.rename(shown)
        self.sync_names()

    def sync_names(self) -> None:
        """Make durable what we have renamed in the data directory: no cut undoes it."""
        directory = os.open(self.data, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set parameters in the file that they belong to."""
        self.hide_settings(False)
        for name, value in settings.items():
            file = OUR_FILE if name.startswith(OURS) else "postgresql.conf"
            server.write_settings(self.data, {name: value}, file)

    def archives(self) -> None:
        """Have WAL from here on archived by itself: the data directory is another one."""
        number = len(list(self._place.glob(f"{self.name}.archive-*"))) + 1
        self.archive = self._place / f"{self.name}.archive-{number}"
        self.archive.mkdir()
        server.own(self.archive)
        file = f"{self.archive}/%f"
        self.configure({"archive_command": f"cp %p {file}.new && mv {file}.new {file}"})

    def cut(self, recording: Recording, fault: str, seed: int, unit: int) -> None:
        """Leave what a power cut leaves; the copies of the log go on being of the same files."""
        self._note_files(self.store.cut(recording, fault, seed, unit))

    def renew(self) -> None:
        """Begin the recording anew if it is long."""
        self._note_files(self.store.renew())

    def _note_files(self, known):
        if known is not None:
            self.watched = False
            for log in self._logs:
                identified(log / Path(OWNER).name, known)

    def end(self, how: str) -> None:
        """Stop the server in one of the ways there are."""
        self.clean = how == "fast" and self.instance.is_ready()
        if how == "kill":
            self.instance.kill()
        else:
            self.instance.stop({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how],
                               properly=not self.excused)
        self.clean_up()

    def clean_up(self) -> None:
        """Remove what a server that was killed has left in memory."""
        for segment in self._segments:
            Path(segment).unlink(missing_ok=True)
        self._segments = set()

    def keep_log(self) -> None:
        """Keep a copy of the double-write log of a crashed server, and the one before it."""
        if self.lived:
            shutil.rmtree(self._logs[0], ignore_errors=True)
            if self._logs[1].exists():
                self._logs[1].rename(self._logs[0])
            self._redos[0] = self._redos[1]
        self.lived = False
        shutil.rmtree(self._logs[1], ignore_errors=True)
        self._redos[1] = monitor.redo_pointer(self.data)
        if (self.data / LOG).exists():
            subprocess.run(["cp", "-a", str(self.data / LOG), str(self._logs[1])], check=True)

    def old_log(self) -> Any:
        """Return the newest copy that is from before the last start."""
        return self._logs[1 if self.lived else 0]

    def checkpointed(self) -> bool:
        """Say whether a checkpoint has completed since old_log() was copied."""
        return monitor.redo_pointer(self.data) != self._redos[1 if self.lived else 0]

    def marked(self) -> bool:
        marker = self.data / MARKER
        return marker.exists() and MARKER_LINE in marker.read_text()

    def follow(self, source: "Machine") -> None:
        """Make a standby of a stopped server."""
        self.configure({"primary_conninfo":
                        f"host={source.instance.sockets} user={server.USER}"})
        with server.as_user():
            (self.data / server.STANDBY_SIGNAL).touch()
        self.sync_names()

    def ask(self, query: str) -> Any:
        """Return the value of a query."""
        return readers.undisturbed(lambda: self.instance.query(query))

    def alarms(self, kills: bool = False) -> list[str]:
        """Return what the server has logged since the last call that is a finding.

        With `kills` we have killed one of its processes.
        """
        text = self.unread()
        found = alarms.crashes(text, fails=True, kills=kills) if self.excused else \
            alarms.bad_lines(text, kills) + alarming(text)
        return list(dict.fromkeys(found))

    def unread(self) -> str:
        """Return what the server has logged since the last call."""
        with open(self.log, errors="replace") as opened:
            opened.seek(self.read)
            text = opened.read()
            self.read = opened.tell()
        return text

    def logged(self) -> int:
        """Return where the server log ends now."""
        return self.instance.log_size()

    def says(self, pattern: re.Pattern, since: Any) -> bool:
        """Say whether the log has a line since a place in it."""
        return bool(pattern.search(self.instance.log_text(since)))

    def wait_for(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds, or the server is gone; too long is a failure."""
        deadline = time.monotonic() + HANG_SECONDS
        while not condition():
            if not self.instance.alive():
                return
            if time.monotonic() > deadline:
                raise Failure(f"{self.name} hangs: {what}")
            time.sleep(POLL_SECONDS)

    def must(self, what: str, condition: Callable[[], Any], *sources: "Machine") -> None:
        """Wait until a condition holds; it is a failure if this server, or one it needs, is gone."""
        needed = (self, *sources)
        self.wait_for(what, lambda: condition() or _gone(needed))
        if not condition():
            raise Failure(f"{_gone(needed)} has ended by itself: {what}")

    def gone(self) -> bool:
        """Say whether the server is gone, or about to, now that a session has lost it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.instance._process.wait(GONE_SECONDS)
        return not self.instance.alive()

    def close(self) -> None:
        self.instance.close()
        self.clean_up()
        self.store.close()


def _gone(machines):
    """Return the name of the first server that is gone, '' if none is."""
    return next((machine.name for machine in machines if not machine.instance.alive()), "")


class Templates:
    """The clusters that histories begin with, made once."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._made = {}

    def get(self, checksums: bool) -> Path:
        if checksums not in self._made:
            self._made[checksums] = self._make(checksums)
        return self._made[checksums]

    def _make(self, checksums):
        place = Path(self._tools.scratch) / f"template-{checksums}"
        place.mkdir()
        server.own(place)
        data = place / "data"
        server.make_cluster(self._tools.bindir, data, checksums)
        server.write_settings(data, {"fsync": "off", "max_prepared_transactions": "10",
                                     "max_wal_size": "8MB", "min_wal_size": "2MB",
                                     "allow_in_place_tablespaces": "on"})
        instance = server.Server(self._tools.bindir, data, place / "log")
        with server.as_user():
            instance.log.touch()
        try:
            instance.start()
            workload.prepare(instance.connect, 1, (), dict.fromkeys(drawing.KINDS, 1))
            instance.stop()
        finally:
            instance.close()
        server.write_settings(data, {"fsync": "on"})
        _separate(data)
        return data


def _separate(data):
    """Keep what stock does not know out of the file that it reads."""
    file = data / "postgresql.conf"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(OURS)]
    with server.as_user():
        file.write_text("\n".join([*lines, f"include_if_exists = '{OUR_FILE}'", ""]))
