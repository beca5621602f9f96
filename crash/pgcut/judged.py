"""What is wrong with the servers of a history: findings of the load, the oracle, the monitor."""

import contextlib
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import alarms, monitor, oracle, readers
from .history import History
from .ledger import Ledger
from .machine import HANG_SECONDS, Load, Machine, Tools
from .world import Member


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and after which step."""

    step: int
    what: str
    text: str

    def signature(self) -> str:
        """Return what two findings of one cause have in common."""
        return self.what + ": " + re.sub(r"[0-9A-F]*[0-9][0-9A-F]*|\"[^\"]*\"", "#", self.text)[:60]


class Judged:
    """The servers of one history, and what is wrong with them."""

    def __init__(self, history: History, tools: Tools, place: Path) -> None:
        self.history = history
        self.tools = tools
        self.place = Path(place)
        self.world = history.world()
        self.machines = {}
        self.findings = []
        self.figures = Counter()
        self._number = 0            # of the step

    def _find(self, what, text):
        self.findings.append(Finding(self._number, what, text))

    def _complain(self, what, complaints):
        for text in complaints:
            self._find(what, text)

    def member(self, machine: Machine) -> Member:
        return self.world.members[machine.name]

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
        """Let what a derived server has, which was verified, be its own from now on."""
        if machine.ledger.derived:
            machine.ledger = Ledger()
            for name, member in self.world.members.items():
                if member.upstream == machine.name and name in self.machines:
                    self.machines[name].ledger = Ledger(machine.ledger.events, 0)

    def _verify(self, machine, last=False):
        """Ask a running server whether it has all that it must have; most thoroughly at last."""
        expected = machine.ledger.expectation()
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
        """Say whether a complaint is about something that is not promised."""
        return alarms.TORN_MAP.search(complaint) or alarms.left_over([complaint])

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
        # Up to something that is flushed now: no client waits for the record of a rollback, and
        # until it is replayed a standby holds the locks of that transaction.
        target = source.ask("SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
                            " ELSE pg_logical_emit_message(false, 'pgcut', '', true) END")
        machine.must("catching up", lambda: machine.ask(
            f"SELECT coalesce(pg_last_wal_replay_lsn() >= '{target}', false)"), source)
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
