"""Plays a history: carries its steps out on servers, and says what is wrong."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from common import postgres

from . import alarms, drawing, explore, monitor, oracle, readers, scripts, server, steps, workload
from .ledger import Ledger
from .limits import Hang, limit
from .steps import MODE
from .store import OWNER, Store, identified

# Limits of what a busy machine may take; more is a finding.
HANG_SECONDS = 240
STEP_SECONDS = 900              # that nothing else has a limit for
GONE_SECONDS = 20
POLL_SECONDS = 0.02

MODULE = "test_doublewrite"
OURS = (MODE, "double_write_", "wal_pipeline", "show_recovery_progress",
        "instant_recovery", "recovery_workers",
        "shared_preload_libraries", f"{MODULE}.")
OUR_FILE = "pgdw.conf"
MARKER, MARKER_LINE = "backup_label", "DOUBLE WRITE LOG IN USE"
LOG = "pg_doublewrite"
CLOCK = f"{MODULE}_clock"               # a library that stands for the clock
CLOCK_BACK = f"{MODULE}.clock_back"     # a file: it is set back

# A file system that nobody can write to any more.
READ_ONLY = tuple(f"{what}::0:1000000000:30" for what in
                  ("write", "create", "truncate", "fallocate", "rename", "unlink"))

# After these the protocol monitor knows no longer what WAL and files have in common.
UNWATCHED = ("promote", "restore", "recover", "rewind", "single", "copied", "wrong-log")

_HOLDS = re.compile(f"{MODULE}: held at injection point")
_CRASHES = re.compile(f"{MODULE}: crash at injection point")
_READY = re.compile("database system is ready to accept")
_REDO = re.compile("redo starts at")
# Stock says this to, or of, a standby that has gone another way or has been away for too long;
# and of a command that the postmaster has ended, as it does all when one process has crashed.
_AS_IN_STOCK = re.compile("is not in this server's history|has already been removed"
                          "|ahead of the WAL flush position|of timeline .* before it"
                          f"|archive command was terminated by signal {signal.SIGQUIT:d}:"
                          f"|archive command failed with exit code {128 + signal.SIGQUIT}$")
_ALARMING_CODE = re.compile("XX|58")

_PROCESS_TITLES = {"checkpointer": "checkpointer", "background writer": "background writer",
                   "walwriter": "walwriter", "client": server.USER + " postgres",
                   "startup": "startup", "walreceiver": "walreceiver"}


def alarming(log):
    """Return the lines of a server log that were not to happen, unless something was made to fail."""
    return [line for line in alarms.of_server(log) if not _AS_IN_STOCK.search(line)]


class Failure(Exception):
    """A step did not do what it has to, or was not refused."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and after which step."""

    step: int
    what: str
    text: str

    def signature(self):
        """Return what two findings of one cause have in common."""
        return self.what + ": " + re.sub(r"[0-9A-F]*[0-9][0-9A-F]*|\"[^\"]*\"", "#", self.text)[:60]


@dataclass(frozen=True)
class Tools:
    """Where the programs are."""

    bindir: str                 # with the test module beside them
    stock_bindir: str           # "" if there are none: steps with stock are left out
    recorder: str
    scratch: str

    @property
    def clock(self):
        """Return the library that stands for the clock of a server."""
        found = list(Path(self.bindir).parent.glob(f"lib*/**/{CLOCK}.so"))
        return str(found[0]) if found else ""


def with_module(bindir, build, place):
    """Return programs of a copy of an installation that has the test module, too."""
    where = subprocess.run([Path(bindir) / "pg_config", "--pkglibdir"], capture_output=True,
                           text=True, check=True).stdout.strip()
    prefix = Path(bindir).parent
    # links, unless it lies on another file system, as that of a mutation does
    same = os.stat(prefix).st_dev == os.stat(Path(place).parent).st_dev
    subprocess.run(["cp", "-al" if same else "-a", prefix, place], check=True)
    for library in (MODULE, CLOCK):
        shutil.copy(Path(build) / "src/test/modules" / MODULE / f"{library}.so",
                    Path(place) / Path(where).relative_to(prefix))
    return str(Path(place) / "bin")


class Load(threading.Thread):
    """Clients, and maybe a reader, on one server."""

    def __init__(self, machine, load):
        super().__init__(name="load")
        self._machine = machine
        self._load = load
        self._wanted = load["acks"]
        self.reached = threading.Event()    # so many acknowledgements, or the load is over
        self.failure = None
        self.events = []
        self.reader = readers.Reader(machine.instance.connect) if load["readers"] else None

    def run(self):
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

    def complaints(self):
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

    def __init__(self, name, tools, place):
        self.name = name
        self.tools = tools
        self.store = Store(tools.recorder, Path(place) / name)
        self.log = Path(place) / f"{name}.log"
        self.log.touch()
        server.own(self.log)
        self._logs = [Path(place) / f"{name}.log-{which}" for which in ("before", "last")]
        self._redos = [None, None]  # the redo pointers that pg_control named then
        self.lived = False         # it has got ready since the last copy was taken
        self.instance = server.Server(tools.bindir, self.store.data, self.log)
        self.instance.make_sockets()
        self.ledger = Ledger()
        self.excused = False        # something was made to fail in this life
        self.clean = False          # it was stopped fast, not in the middle of a start
        self.verified = True        # in this life, or else by the next one
        self.read = 0               # of the server log
        self.archive = None         # where WAL of this data directory goes
        self.watched = False        # the protocol monitor can read what is recorded now
        self._place = Path(place)
        self._segments = set()

    @property
    def data(self):
        return self.store.data

    def start(self, program="ours", settings=None, wait=True, clock=False):
        stock = program == "stock"
        self.clean = False
        self.instance.bindir = self.tools.stock_bindir if stock else self.tools.bindir
        self.instance.env = server.environment({"LD_PRELOAD": self.tools.clock} if clock else {})
        self._hide_settings(stock)
        self.instance.start(settings, wait)
        if wait:
            self._note_segments()

    def _note_segments(self):
        """Remember shared memory that nobody removes if the server is killed from within."""
        self._segments = self.instance.shared_memory()

    def _hide_settings(self, hide):
        """Hide the settings that stock does not know, or bring them back."""
        shown, hidden = self.data / OUR_FILE, self.data / f"{OUR_FILE}.hidden"
        with server.as_user():
            if hide and shown.exists():
                shown.rename(hidden)
            elif not hide and hidden.exists():
                hidden.rename(shown)
        self.sync_names()

    def sync_names(self):
        """Make durable what we have renamed in the data directory: no cut undoes it."""
        directory = os.open(self.data, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def configure(self, settings):
        """Set parameters in the file that they belong to."""
        self._hide_settings(False)
        for name, value in settings.items():
            file = OUR_FILE if name.startswith(OURS) else "postgresql.conf"
            server.write_settings(self.data, {name: value}, file)

    def archives(self):
        """Have WAL from here on archived by itself: the data directory is another one."""
        number = len(list(self._place.glob(f"{self.name}.archive-*"))) + 1
        self.archive = self._place / f"{self.name}.archive-{number}"
        self.archive.mkdir()
        server.own(self.archive)
        file = f"{self.archive}/%f"
        self.configure({"archive_command": f"cp %p {file}.new && mv {file}.new {file}"})

    def cut(self, recording, fault, seed, unit):
        """Leave what a power cut leaves; the copies of the log go on being of the same files."""
        self._note_files(self.store.cut(recording, fault, seed, unit))

    def renew(self):
        """Begin the recording anew if it is long."""
        self._note_files(self.store.renew())

    def _note_files(self, known):
        if known is not None:
            self.watched = False
            for log in self._logs:
                identified(log / Path(OWNER).name, known)

    def end(self, how):
        """Stop the server in one of the ways there are."""
        self.clean = how == "fast" and self.instance.is_ready()
        if how == "kill":
            self.instance.kill()
        else:
            self.instance.stop({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
        self.clean_up()

    def clean_up(self):
        """Remove what a server that was killed has left in memory."""
        for segment in self._segments:
            Path(segment).unlink(missing_ok=True)
        self._segments = set()

    def keep_log(self):
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

    def old_log(self):
        """Return the newest copy that is from before the last start."""
        return self._logs[1 if self.lived else 0]

    def checkpointed(self):
        """Say whether a checkpoint has completed since old_log() was copied."""
        return monitor.redo_pointer(self.data) != self._redos[1 if self.lived else 0]

    def marked(self):
        marker = self.data / MARKER
        return marker.exists() and MARKER_LINE in marker.read_text()

    def follow(self, source):
        """Make a standby of a stopped server."""
        self.configure({"primary_conninfo":
                        f"host={source.instance.sockets} user={server.USER}"})
        with server.as_user():
            (self.data / server.STANDBY_SIGNAL).touch()
        self.sync_names()

    def ask(self, query):
        """Return the value of a query."""
        return readers.undisturbed(lambda: self.instance.query(query))

    def unread(self):
        """Return what the server has logged since the last call."""
        with open(self.log, errors="replace") as opened:
            opened.seek(self.read)
            text = opened.read()
            self.read = opened.tell()
        return text

    def logged(self):
        """Return where the server log ends now."""
        return self.instance.log_size()

    def says(self, pattern, since):
        """Say whether the log has a line since a place in it."""
        return bool(pattern.search(self.instance.log_text(since)))

    def wait_for(self, what, condition):
        """Wait until a condition holds, or the server is gone; too long is a failure."""
        deadline = time.monotonic() + HANG_SECONDS
        while not condition():
            if not self.instance.alive():
                return
            if time.monotonic() > deadline:
                raise Failure(f"{self.name} hangs: {what}")
            time.sleep(POLL_SECONDS)

    def gone(self):
        """Say whether the server is gone, or about to, now that a session has lost it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.instance._process.wait(GONE_SECONDS)
        return not self.instance.alive()

    def close(self):
        self.instance.close()
        self.clean_up()
        self.store.close()


class Play:
    """Plays one history, once."""

    def __init__(self, history, tools, templates, place):
        self.history = history
        self.tools = tools
        self.templates = templates
        self.place = Path(place)
        self.world = history.world()
        self.machines = {}
        self.findings = []
        self.played = 0
        self.figures = Counter()
        self.kept = {}              # what backups must have, and points in time
        self.archives = {}          # where the WAL of points in time is
        self._number = 0

    def run(self):
        """Play all steps, until something is wrong; the findings are left in self.findings."""
        self.place.mkdir(parents=True, exist_ok=True)
        server.own(self.place)
        os.chmod(self.place, 0o755)
        try:
            with limit("making the first server", STEP_SECONDS):
                self._make_first()
            for self._number, step in enumerate(self.history.steps, 1):
                self._guarded(step)
                if self.findings:
                    return
                self.played += 1
            self._number += 1
            self._guarded(None)
        finally:
            for machine in self.machines.values():
                machine.close()

    def _guarded(self, step):
        """Carry out one step, and enter what is wrong; without a step, judge all servers."""
        try:
            with limit("the step", STEP_SECONDS):
                if step is None:
                    self._epilogue()
                else:
                    self._carry_out(step)
        except Hang as error:
            self._find("hang", str(error))
        except (Failure, server.ServerError, psycopg2.Error) as error:
            self._find("step", " ".join(str(error).split()))
        except Exception:               # a bug of ours must not pass for success
            self._find("explorer", traceback.format_exc())
        for machine in self.machines.values():
            text = machine.unread()
            for line in dict.fromkeys(explore.bad_lines(text) + alarming(text)):
                if "TRAP:" in line or not machine.excused:
                    self._find("log", f"{machine.name}: {_without_prefix(line)}")

    def _carry_out(self, step):
        self._unwatch(step)
        act = getattr(self, ("refuse_" if step.illegal else "do_") + step.do.replace("-", "_"))
        act(self.machines.get(step.server), step)
        steps.apply(self.world, step)

    def _unwatch(self, step):
        """Let the protocol monitor alone with what it does not know."""
        machine = self.machines.get(step.server)
        if machine and (step.do in UNWATCHED or step.get("program") == "stock" or
                        step.get("tool", "").startswith("checksums")):
            machine.watched = False
        # Without the log nobody waits until a removal is durable: what comes back torn belongs
        # to nobody, as in stock, which the monitor cannot see before it is removed.
        if machine and step.do == "script" and step["name"] == "half-dropped" and \
                self.member(machine).mode not in ("double_writes", "atomic_writes"):
            machine.watched = False
        then = self.world.copy()
        steps.apply(then, step)
        for world in (self.world, then):
            for name, member in world.members.items():
                if member.exposed and name in self.machines:
                    self.machines[name].watched = False

    def _find(self, what, text):
        self.findings.append(Finding(self._number, what, text))

    def _complain(self, what, complaints):
        for text in complaints:
            self._find(what, text)

    def member(self, machine):
        return self.world.members[machine.name]

    # The first server, and others

    def _make_first(self):
        machine = self._machine("a")
        machine.store.fill(self.templates.get(self.history.checksums))
        ours = {name: value for name, value in self.history.settings.items()
                if name.startswith(OURS)}
        machine.configure({**self.history.settings, **ours})
        self._archive(machine)
        machine.watched = self.history.settings[MODE] != "off"

    def _archive(self, machine):
        """Note that this is another data directory than before."""
        if self.history.settings.get("archive_mode") == "on":
            machine.archives()

    def _machine(self, name):
        if name not in self.machines:
            self.machines[name] = Machine(name, self.tools, self.place)
        return self.machines[name]

    # Loads, and what a server must have

    @contextlib.contextmanager
    def _under_load(self, step):
        """Carry out what is within while a load is under way; then judge the load."""
        load = step.get("load")
        if not load:
            yield
            return
        machine = self.machines[load["on"]]
        if not machine.verified:
            self._verify(machine)       # before a load takes for granted what it finds
        self._adopt(machine)
        if "prepared" not in load["kinds"]:
            self._settle_prepared(machine)
        worker = Load(machine, load)
        worker.start()
        try:
            if not worker.reached.wait(HANG_SECONDS):
                self._hangs(machine)
            yield
        finally:
            watch = threading.Timer(HANG_SECONDS, self._hangs, (machine,))
            watch.start()
            worker.join()
            watch.cancel()
            if worker.reader:
                worker.reader.end(HANG_SECONDS)
                self.figures["snapshots"] += worker.reader.snapshots
        self.figures["acknowledged"] += sum(event["what"] == "ack" for event in worker.events)
        self.figures["errors"] += sum(event["what"] == "fail" for event in worker.events)
        self._complain("load", worker.complaints())

    def _settle_prepared(self, machine):
        """Roll back what a client that takes no part now has left; it would be in the way."""
        with contextlib.closing(machine.instance.connect()) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT gid FROM pg_prepared_xacts")
                for gid, in cursor.fetchall():
                    event = {"client": "", "n": 0, "gid": gid}
                    machine.ledger.events.append({**event, "t": time.monotonic_ns(),
                                                  "what": "decide", "commit": False})
                    cursor.execute(f"ROLLBACK PREPARED '{gid}'")
                    machine.ledger.events.append({**event, "t": time.monotonic_ns(),
                                                  "what": "finished"})

    def _hangs(self, machine):
        self._find("hang", f"the load on {machine.name} does not end")
        machine.instance.kill()

    def _adopt(self, machine):
        """What a derived server has was verified: from now on it is its own."""
        if machine.ledger.derived:
            machine.ledger = Ledger()
            for name, member in self.world.members.items():
                if member.upstream == machine.name and name in self.machines:
                    self.machines[name].ledger = Ledger(machine.ledger.events, 0)

    def _verify(self, machine, last=False):
        """Ask a running server whether it has all that it must have; most thoroughly at last."""
        expected = machine.ledger.expectation()
        expected["orphans_allowed"] = oracle.names_of_files(machine.data)
        complaints = readers.undisturbed(lambda: oracle.verify_connected(
            machine.instance.connect, expected, quick=not last, checkpoint=last))
        self.figures["verdicts"] += 1
        machine.verified = True
        self._complain("oracle", [f"{machine.name}: {text}" for text in complaints
                                  if not self._harmless(text) and
                                  not self._locked_for_good(machine, text)])
        if not self.findings:
            self._compare_plans(machine, readers.disagreements, readers.disagreements_of_scene)

    def _compare_plans(self, machine, *questions):
        """Ask one snapshot of a server what plans say otherwise than they must."""
        def ask():
            with contextlib.closing(machine.instance.connect()) as connection:
                connection.set_session("REPEATABLE READ", readonly=True)
                with connection, connection.cursor() as cursor:
                    return [text for question in questions for text in question(cursor)]

        self._complain("plans", [f"{machine.name}: {text}"
                                 for text in readers.undisturbed(ask)])

    def _harmless(self, complaint):
        """Say whether a complaint is about what nobody promises."""
        return explore._TORN_MAP.search(complaint) or explore._ORPHAN.search(complaint)

    def _locked_for_good(self, machine, complaint):
        """Say whether a standby may hold the lock that is complained about, as in stock.

        It holds those of a transaction that a crash of the primary has ended, until a
        snapshot of what runs there begins after it: not while a prepared one is older, and
        never if there is no primary any more.
        """
        if "due to lock timeout" not in complaint or self.member(machine).role == "primary":
            return False
        seen, name = set(), machine.name
        while name and name not in seen:
            seen.add(name)
            member = self.world.members[name]
            if member.role == "primary":
                return member.state != "up" or \
                    self.machines[name].ask("SELECT count(*) FROM pg_prepared_xacts") > 0
            name = member.upstream
        return True

    def _catch_up(self, machine):
        """Wait until a standby has what its upstream has now; all of that must be there."""
        source = self.machines[self.member(machine).upstream]
        moment = time.monotonic_ns()
        # Up to something that is flushed now: nobody waits for records of a rollback, until
        # which a standby holds the locks of what was rolled back.
        target = source.ask("SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
                            " ELSE pg_logical_emit_message(false, 'pgcut', '', true) END")
        machine.wait_for("catching up", lambda: machine.ask(
            f"SELECT coalesce(pg_last_wal_replay_lsn() >= '{target}', false)"))
        # A standby that follows a standby knows no more than that one does.
        machine.ledger.floor = moment if not source.ledger.derived else source.ledger.floor

    def _followed(self, machine):
        upstream = self.member(machine).upstream
        return upstream and self.world.members[upstream].state == "up"

    def _monitor(self, machine, recording):
        """Hold the rules of the engine against each write of a recording that has ended."""
        if not machine.watched:
            return
        recording.meta = {"settings": self.history.settings,
                          "checksums": self.member(machine).checksums}
        violations, figures = monitor.check(recording)
        self.figures["monitored operations"] += figures["operations"]
        self._complain("monitor", [f"{machine.name}: {text}" for text in violations])

    # Steps

    def do_start(self, machine, step):
        machine.excused = False
        machine.renew()
        if step["point"]:
            self._start_to_point(machine, step)
            return
        machine.start(step["program"], clock=step.get("clock"))
        if step.get("verify", True) or machine.ledger.derived:
            self._after_start(machine)
        else:
            machine.lived, machine.verified = True, False

    def _after_start(self, machine, last=False):
        machine.lived = True
        member = self.member(machine)
        if member.role == "primary":
            self._verify(machine, last)
        elif self._followed(machine):
            self._catch_up(machine)
            self._verify(machine, last)

    def _start_to_point(self, machine, step):
        """Start a server that crashes at a point, or is held there until it is stopped."""
        action, point, nth = step["point"].split(":")
        since = machine.logged()
        machine.start(wait=False, settings=_points(action, f"{point}:{nth}"))
        machine.wait_for("starting", lambda: machine.says(_HOLDS, since)
                         or machine.instance.is_ready())
        if action == "crash" and machine.instance.alive():
            machine._note_segments()
            self._while_it_lives(machine, step)
        if not machine.instance.alive() and not machine.says(_CRASHES, since):
            raise Failure(f"{machine.name} has ended by itself")
        hit = machine.says(_HOLDS, since) or machine.says(_CRASHES, since)
        self.figures["points hit" if hit else "points missed"] += 1
        self._finish(machine, step["then"])

    def _while_it_lives(self, machine, step):
        """Verify and load a server that will crash at some moment."""
        try:
            if self.member(machine).role == "primary":
                self._verify(machine)
            with self._under_load(step):
                pass
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            if not machine.gone():
                raise

    def _finish(self, machine, how):
        machine.end(how)
        machine.keep_log()

    def do_single(self, machine, step):
        expected = machine.ledger.expectation()
        expected["orphans_allowed"] = oracle.names_of_files(machine.data)
        machine._hide_settings(False)
        machine.instance.bindir = self.tools.bindir
        complaints, log = oracle.verify_single(self.tools.bindir, machine.data, expected,
                                               {"fsync": "on"}, quick=True)
        with server.as_user(), open(machine.log, "a") as opened:
            opened.write(log)
        machine.lived = True
        self.figures["verdicts"] += 1
        self._complain("oracle", [text for text in complaints if not self._harmless(text)])

    def do_stop(self, machine, step):
        with self._under_load(step):
            machine.end(step["how"])
        if step["how"] != "fast":
            machine.keep_log()
        elif machine.marked():
            raise Failure(f"{machine.name} was stopped cleanly, and the marker is there")

    def do_cut(self, machine, step):
        with self._under_load(step):
            if machine.instance.alive():
                machine.end("kill")
        self._cut(machine, step)

    def _cut(self, machine, step):
        recording = machine.store.ended()
        self._monitor(machine, recording)
        machine.cut(recording, step["fault"], step["seed"], step["unit"])
        machine.keep_log()
        self.figures["cuts"] += 1

    def do_edit(self, machine, step):
        machine.configure(step["settings"])

    def do_reload(self, machine, step):
        with self._under_load(step):
            if step["scope"] == "server":
                machine.configure({MODE: step["mode"]})
                machine.instance._process.send_signal(signal.SIGHUP)
                machine.wait_for("reloading", lambda: machine.ask(
                    f"SELECT reset_val = '{step['mode']}' OR source NOT LIKE '%file'"
                    f" FROM pg_settings WHERE name = '{MODE}'"))
            else:
                whom = {"role": f"ROLE {server.USER}", "database": "DATABASE postgres"}
                machine.ask(f"ALTER {whom[step['scope']]} SET {MODE} = '{step['mode']}'")

    def do_work(self, machine, step):
        with self._under_load(step):
            pass

    def do_faulty(self, machine, step):
        machine.excused = True
        with self._under_load(step):
            for fault in step["faults"]:
                for rule in READ_ONLY if fault == "read-only" else (fault,):
                    machine.store.set_fault(rule)
        machine.store.set_fault("clear")
        if step["then"] != "goes on":
            self._finish(machine, step["then"])
        elif not machine.instance.alive():
            raise Failure(f"{machine.name} has ended by itself")

    def do_script(self, machine, step):
        machine.excused = True
        with scripts.played(step["name"], machine.instance.connect, machine.store,
                            step["seed"]) as complaints:
            self._complain("script", [f"{machine.name}: {text}" for text in complaints])
            if step["then"]:
                self._finish(machine, step["then"])
        self.figures["scripts"] += 1

    def do_clock(self, machine, step):
        with self._under_load(step), server.as_user():
            back = machine.data / CLOCK_BACK
            if back.exists():
                back.unlink()
            else:
                back.touch()

    def do_checkpoint(self, machine, step):
        with self._under_load(step):
            machine.ask("CHECKPOINT")

    def do_kill(self, machine, step):
        with self._under_load(step):
            since = machine.logged()
            pid = machine.instance.process_called(_PROCESS_TITLES[step["process"]])
            if pid is None:
                self.figures["nobody to kill"] += 1
                if self.world.restarts() and step["process"] != "startup":
                    return
                machine.end("kill")
            else:
                os.kill(pid, signal.SIGKILL)
        restarts = self.world.restarts() and step["process"] != "startup"
        if step["process"] == "walreceiver" or restarts:
            machine.wait_for("restarting", lambda: pid is None or machine.says(_READY, since))
        if restarts and not machine.instance.alive():
            raise Failure(f"{machine.name} does not come back after a process was killed")
        if restarts:
            self._after_start(machine)
        else:
            machine.wait_for("ending", lambda: False)
            self._finish(machine, "kill")

    def do_promote(self, machine, step):
        if self._followed(machine):
            self._catch_up(machine)
        with self._under_load(step):
            # Whoever waits inside of the server has a snapshot, on which replay would wait.
            machine.ask("SELECT pg_promote(false)")
            machine.wait_for("promotion", lambda: not machine.ask("SELECT pg_is_in_recovery()"))
            machine.ledger.ceiling = time.monotonic_ns()
        machine.ledger.events = list(machine.ledger.events)
        self._verify(machine)

    def do_follow(self, machine, step):
        source = self.machines[step["of"]]
        copy = self.place / "copy"
        with self._under_load(step):
            begin = self._back_up(source, copy)
            machine = machine or self._machine(step.server)
            machine.excused = False
            machine.store.fill(copy)
            shutil.rmtree(copy)
            machine.configure({MODE: step["mode"]})
            machine.follow(source)
            self._archive(machine)
            machine.ledger = Ledger(source.ledger.events, begin)
            machine.watched = step["mode"] != "off"
            machine.start()
        if not self.findings:
            self._compare_plans(machine, readers.disagreements)

    def _back_up(self, source, place, *options):
        """Take a base backup; returns when it began, what was acknowledged then is in it."""
        begin = self._now(source)
        with server.as_user():
            place.mkdir(parents=True, mode=0o700)
        server.run(self.tools.bindir, "pg_basebackup", "-D", place, "-X", "stream", "-c", "fast",
                   "--no-sync", "-U", server.USER, "-h", source.instance.sockets, *options)
        return begin

    def _now(self, machine):
        """Return the moment up to which a server is known to have what was acknowledged."""
        return machine.ledger.floor if machine.ledger.derived else time.monotonic_ns()

    def do_backup(self, machine, step):
        backups = self.place / "backups"
        backups.mkdir(exist_ok=True)
        server.own(backups)
        place, earlier = backups / step["name"], step.get("on")
        with self._under_load(step):
            if earlier:
                begin = self._back_up(machine, self.place / "increment", "--incremental",
                                      backups / earlier / "backup_manifest")
            else:
                begin = self._back_up(machine, place)
            end = time.monotonic_ns()
        if earlier:
            server.run(self.tools.bindir, "pg_combinebackup", "--no-sync", "-o", place,
                       backups / earlier, self.place / "increment")
            shutil.rmtree(self.place / "increment")
        ledger = Ledger(list(machine.ledger.events), begin)
        ledger.ceiling = end
        self.kept[step["name"]] = ledger

    def do_point(self, machine, step):
        with self._under_load(step):
            begin = self._now(machine)
            machine.ask(f"SELECT pg_create_restore_point('{step['name']}')")
            end = time.monotonic_ns()
            segment = machine.ask("SELECT pg_walfile_name(pg_switch_wal())")
            machine.wait_for("archiving", (machine.archive / segment).exists)
        ledger = Ledger(list(machine.ledger.events), begin)
        ledger.ceiling = end
        self.kept[step["name"]] = ledger
        self.archives[step["name"]] = machine.archive

    def do_recover(self, machine, step):
        machine = machine or self._machine(step.server)
        self._put_back(machine, step)
        machine.configure({
            "restore_command": f"cp {self.archives[step['point']]}/%f %p",
            "recovery_target_name": step["point"], "recovery_target_timeline": "current",
            "recovery_target_action": "promote"})
        with server.as_user():
            (machine.data / "recovery.signal").touch()
        machine.sync_names()
        kept = self.kept[step["point"]]
        machine.ledger = Ledger(list(kept.events), kept.floor)
        machine.ledger.ceiling = kept.ceiling
        if step["fault"]:
            self._cut_recovery(machine, step)
        machine.start()
        machine.wait_for("promotion", lambda: not machine.ask("SELECT pg_is_in_recovery()"))
        # Who follows it takes over its settings.
        machine.configure({"restore_command": "", "recovery_target_name": "",
                           "recovery_target_timeline": "latest"})
        machine.lived = True
        self._verify(machine)

    def _cut_recovery(self, machine, step):
        """Let the power fail at a point of the engine, or once redo is under way."""
        since, point = machine.logged(), step["at"]
        machine.start(wait=False, settings=_points("crash", point) if point else None)
        reached = _CRASHES if point else _REDO
        machine.wait_for("recovering", lambda: machine.says(reached, since)
                         or machine.instance.is_ready())
        if not machine.instance.alive() and not machine.says(_CRASHES, since):
            raise Failure(f"{machine.name} has ended by itself")
        machine.end("kill")
        self._cut(machine, step)

    def _put_back(self, machine, step, log="none"):
        """Let a stopped server be what its backup is, with the log that is said."""
        copy = self.place / "copy"
        subprocess.run(["cp", "-a", str(self.place / "backups" / step["backup"]), str(copy)],
                       check=True)
        if log != "none":
            shutil.rmtree(copy / LOG, ignore_errors=True)
            kept = machine.old_log() if log == "stale" else machine.data / LOG
            if kept.exists():
                subprocess.run(["cp", "-a", str(kept), str(copy / LOG)], check=True)
        (copy / server.STANDBY_SIGNAL).unlink(missing_ok=True)
        machine.store.fill(copy)
        shutil.rmtree(copy)
        machine.excused = False
        machine.configure({MODE: step["mode"]})
        self._archive(machine)

    def do_restore(self, machine, step):
        machine = machine or self._machine(step.server)
        self._put_back(machine, step, step["log"])
        kept = self.kept[step["backup"]]
        machine.ledger = Ledger(list(kept.events), kept.floor)
        machine.ledger.ceiling = kept.ceiling

    def do_rewind(self, machine, step):
        source = self.machines[step["source"]]
        begin = self._now(source)
        with self._under_load(step):
            self._rewind(machine, source)
        machine.configure({MODE: step["mode"]})
        machine.follow(source)
        self._archive(machine)
        machine.ledger = Ledger(source.ledger.events, begin)

    def _rewind(self, machine, source, check=True):
        return server.run(self.tools.bindir, "pg_rewind", "--target-pgdata", machine.data,
                          "--source-server",
                          f"host={source.instance.sockets} user={server.USER} dbname=postgres",
                          check=check)

    def do_tool(self, machine, step):
        done = self._tool(machine, step["tool"])
        if done.returncode:
            raise Failure(f"{step['tool']} of {machine.name}: exit status {done.returncode}: "
                          + (done.stderr or done.stdout)[-400:])

    def _tool(self, machine, tool):
        if tool.startswith("checksums"):
            return server.run(self.tools.bindir, "pg_checksums",
                              "--" + tool.removeprefix("checksums-"), "-D", machine.data,
                              check=False)
        return server.run(self.tools.bindir, "pg_doublewrite", tool, "-D", machine.data,
                          check=False)

    # Steps that must be refused

    def refuse_start(self, machine, step):
        if machine.instance.alive():
            second = server.Server(self.tools.bindir, machine.data, machine.log,
                                   sockets=machine.instance.sockets)
            self._must_fail(machine, second.start, "a second postmaster")
            return
        marked = machine.marked()
        self._try_start(machine, marked, "stock", "stock, though the marker is there")

    def _must_fail(self, machine, start, what):
        try:
            start()
        except server.ServerError:
            machine.unread()
            self.figures["refused"] += 1
            return
        raise Failure(f"{what} starts on {machine.name}")

    def _try_start(self, machine, must_fail, program, what):
        """Start a server, which must be refused or do no harm."""
        try:
            machine.start(program)
        except server.ServerError:
            machine.instance._end(1)
            machine.unread()
            self.figures["refused"] += 1
            return
        if must_fail:
            raise Failure(f"{machine.name} starts: {what}")
        self.figures["harmless"] += 1
        self._after_start(machine)
        machine.end("fast")

    def refuse_wrong_log(self, machine, step):
        log, kept = machine.data / LOG, machine.data / f"{LOG}.kept"
        old = machine.old_log() if step["log"] == "stale" else None
        if not log.exists() or old and not old.exists():    # it never was in use
            self.figures["nothing to refuse"] += 1
            return
        owner = step.get("owner", "old")
        told = old is None or machine.checkpointed() or \
            owner == "old" and _names_marker(old / "owner")
        if not told:                    # nobody can tell one from the other
            self.figures["nothing to refuse"] += 1
            return
        marked = machine.marked()
        with server.as_user():
            log.rename(kept)
        if old:
            subprocess.run(["cp", "-a", str(old), str(log)], check=True)
            if owner != "old":
                (log / "owner").unlink(missing_ok=True)
            if owner == "own" and (kept / "owner").exists():
                subprocess.run(["cp", "-a", str(kept / "owner"), str(log)], check=True)
        harmless = self.figures["harmless"]
        self._try_start(machine, marked, "ours", f"with {step['log']} log, owner file: {owner}")
        if self.figures["harmless"] == harmless:
            shutil.rmtree(log, ignore_errors=True)
            with server.as_user():
                kept.rename(log)
        else:
            shutil.rmtree(kept)
        machine.sync_names()

    def refuse_copied(self, machine, step):
        marked = machine.marked() and (machine.data / OWNER).exists()
        copy = self.place / "copy"
        subprocess.run(["cp", "-a", str(machine.data), str(copy)], check=True)
        (copy / "postmaster.pid").unlink(missing_ok=True)
        machine.store.fill(copy)
        shutil.rmtree(copy)
        self._try_start(machine, marked, "ours", "a copy")
        # As the hint says, for no server was running.
        (machine.data / OWNER).unlink(missing_ok=True)
        machine.sync_names()

    def refuse_bad_edit(self, machine, step):
        machine._hide_settings(False)
        before = (machine.data / OUR_FILE).read_text()
        machine.configure({MODE: step["value"]})
        self._try_start(machine, True, "ours", f"with mode {step['value']}")
        with server.as_user(), open(machine.data / OUR_FILE, "w") as opened:
            opened.write(before)
            opened.flush()
            os.fsync(opened.fileno())

    def refuse_tool(self, machine, step):
        if self._nothing_to_refuse(machine):
            return
        if self._tool(machine, step["tool"]).returncode == 0:
            raise Failure(f"{step['tool']} is not refused on {machine.name}, which is "
                          f"{self.member(machine).state}")
        self.figures["refused"] += 1

    def _nothing_to_refuse(self, machine):
        """Say whether a server was stopped cleanly after all: it has not met its point, for one."""
        clean = machine.clean and not machine.instance.alive()
        self.figures["nothing to refuse"] += clean
        return clean

    def refuse_promote(self, machine, step):
        self._must_raise(machine, "SELECT pg_promote()", "a primary is promoted")

    def refuse_reload(self, machine, step):
        # A load of this kind may have changed the mode of the server.
        if machine.ask(f"SELECT setting FROM pg_file_settings WHERE name = '{MODE}'"
                       " ORDER BY seqno DESC LIMIT 1") == step["mode"]:
            self.figures["nothing to refuse"] += 1
            return
        self._must_raise(machine, f"ALTER ROLE {server.USER} SET {MODE} = '{step['mode']}'",
                         f"a role is given {step['mode']}")

    def _must_raise(self, machine, statement, what):
        try:
            machine.ask(statement)
        except psycopg2.Error:
            self.figures["refused"] += 1
            return
        raise Failure(f"{machine.name}: {what}")

    def refuse_backup(self, machine, step):
        copy = self.place / "copy"
        self._must_fail(machine, lambda: self._back_up(machine, copy), "a backup of what is stopped")
        shutil.rmtree(copy, ignore_errors=True)

    def refuse_rewind(self, machine, step):
        if self._nothing_to_refuse(machine):
            return
        if self._rewind(machine, self.machines[step["source"]], check=False).returncode == 0:
            raise Failure(f"pg_rewind is not refused on {machine.name}")
        self.figures["refused"] += 1

    # The end

    def _epilogue(self):
        """Start what can be started, and judge all; primaries first."""
        for role in ("primary", "standby"):
            for name, machine in self.machines.items():
                if self.world.members[name].role == role:
                    self._last_life(machine)
        for machine in self.machines.values():
            machine.instance.kill()
            self._monitor(machine, machine.store.ended())

    def _last_life(self, machine):
        member = self.member(machine)
        if member.mode == "off":
            machine.watched = False
        if member.state == "up":
            self._after_start(machine, last=True)
            return
        step = drawing.Step("start", machine.name, {"program": "ours", "point": "", "then": ""})
        if steps.objection(self.world, step) is None:
            machine.excused = False
            machine.start()
            self._after_start(machine, last=True)
            steps.apply(self.world, step)


class Templates:
    """The clusters that histories begin with, made once."""

    def __init__(self, tools):
        self._tools = tools
        self._made = {}

    def get(self, checksums):
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


def _points(action, point):
    """Return settings with which a server crashes, or is held, at a point of the engine."""
    return {"shared_preload_libraries": MODULE, f"{MODULE}.{action}_at": point}


def _names_marker(owner):
    """Say whether an owner file knows the marker that was there."""
    return owner.exists() and not re.search("^Marker: inode 0 ", owner.read_text(), re.MULTILINE)


def _process_of(machine, title):
    """Return the number of one process of a server, by what it calls itself, or None."""
    for pid in postgres.children(machine.instance._process.pid):
        if title in postgres.read_proc(pid, "cmdline"):
            return pid
    return None


def _without_prefix(line):
    """Return a line of the server log without time and process."""
    return re.sub(r"^\S+ \S+ \S+ \[\d+\] ", "", line)
