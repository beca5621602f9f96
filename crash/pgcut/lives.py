"""Steps of a history: servers are started, worked with and ended."""

import re
import signal
import time
from typing import Any

import psycopg2

from . import oracle, scripts, server
from .history import Step
from .judged import Judged
from .machine import CLOCK_BACK, Failure, Machine
from .world import MODE

# A file system that has become read-only.
READ_ONLY = tuple(f"{what}::0:1000000000:30" for what in
                  ("write", "create", "truncate", "fallocate", "rename", "unlink"))

_HOLDS = re.compile(f"{server.POINTS}: held at injection point")
CRASHES = re.compile(f"{server.POINTS}: crash at injection point")
_READY = re.compile("database system is ready to accept")

_PROCESS_TITLES = {"checkpointer": "checkpointer", "background writer": "background writer",
                   "walwriter": "walwriter", "client": server.USER + " postgres",
                   "startup": "startup", "walreceiver": "walreceiver"}


class Lives(Judged):
    """Carries out steps of servers that are there."""

    def do_start(self, machine: Machine, step: Step) -> None:
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
        machine.start(wait=False, settings=points(action, f"{point}:{nth}"))
        machine.wait_for("starting", lambda: machine.says(_HOLDS, since)
                         or machine.instance.is_ready())
        if action == "crash" and machine.instance.alive():
            machine.note_segments()
            self._while_it_lives(machine, step)
        if not machine.instance.alive() and not machine.says(CRASHES, since):
            raise Failure(f"{machine.name} has ended by itself")
        hit = machine.says(_HOLDS, since) or machine.says(CRASHES, since)
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

    def do_single(self, machine: Machine, step: Step) -> None:
        expected = machine.ledger.expectation()
        machine.hide_settings(False)
        machine.instance.bindir = self.tools.bindir
        complaints, log = oracle.verify_single(self.tools.bindir, machine.data, expected,
                                               {"fsync": "on"}, quick=True)
        with server.as_user(), open(machine.log, "a") as opened:
            opened.write(log)
        machine.lived = True
        self.figures["verdicts"] += 1
        self._complain("oracle", [text for text in complaints if not self._harmless(text)])

    def do_stop(self, machine: Machine, step: Step) -> None:
        with self._under_load(step):
            machine.end(step["how"])
        if step["how"] != "fast":
            machine.keep_log()
        elif machine.marked():
            raise Failure(f"{machine.name} was stopped cleanly, and the marker is there")

    def do_cut(self, machine: Machine, step: Step) -> None:
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

    def do_edit(self, machine: Machine, step: Step) -> None:
        machine.configure(step["settings"])

    def do_reload(self, machine: Machine, step: Step) -> None:
        with self._under_load(step):
            if step["scope"] == "server":
                machine.configure({MODE: step["mode"]})
                machine.instance._process.send_signal(signal.SIGHUP)
                machine.must("reloading", lambda: machine.ask(
                    f"SELECT reset_val = '{step['mode']}' OR source NOT LIKE '%file'"
                    f" FROM pg_settings WHERE name = '{MODE}'"))
            else:
                whom = {"role": f"ROLE {server.USER}", "database": "DATABASE postgres"}
                machine.ask(f"ALTER {whom[step['scope']]} SET {MODE} = '{step['mode']}'")

    def do_work(self, machine: Machine, step: Step) -> None:
        with self._under_load(step):
            pass

    def do_faulty(self, machine: Machine, step: Step) -> None:
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

    def do_script(self, machine: Machine, step: Step) -> None:
        machine.excused = True
        with scripts.played(step["name"], machine.instance.connect, machine.store,
                            step["seed"]) as complaints:
            self._complain("script", [f"{machine.name}: {text}" for text in complaints])
            if step["then"]:
                self._finish(machine, step["then"])
        self.figures["scripts"] += 1

    def do_clock(self, machine: Machine, step: Step) -> None:
        with self._under_load(step), server.as_user():
            back = machine.data / CLOCK_BACK
            if back.exists():
                back.unlink()
            else:
                back.touch()

    def do_checkpoint(self, machine: Machine, step: Step) -> None:
        with self._under_load(step):
            machine.ask("CHECKPOINT")

    def do_kill(self, machine: Machine, step: Step) -> None:
        with self._under_load(step):
            since = machine.logged()
            killed = machine.instance.kill_one(_PROCESS_TITLES[step["process"]])
            if not killed:
                self.figures["nobody to kill"] += 1
                if self.world.restarts() and step["process"] != "startup":
                    return
                machine.end("kill")
        restarts = self.world.restarts() and step["process"] != "startup"
        if step["process"] == "walreceiver" or restarts:
            machine.wait_for("restarting", lambda: not killed or machine.says(_READY, since))
        if restarts and not machine.instance.alive():
            raise Failure(f"{machine.name} does not come back after a process was killed")
        if restarts:
            self._after_start(machine)
        else:
            machine.wait_for("ending", lambda: False)
            self._finish(machine, "kill")

    def do_promote(self, machine: Machine, step: Step) -> None:
        if self._followed(machine):
            self._catch_up(machine)
        with self._under_load(step):
            # A session that waited in the server would hold a snapshot, on which replay would wait.
            machine.ask("SELECT pg_promote(false)")
            machine.must("promotion", lambda: not machine.ask("SELECT pg_is_in_recovery()"))
            machine.ledger.ceiling = time.monotonic_ns()
        machine.ledger.events = list(machine.ledger.events)
        self._verify(machine)


def points(action: str, point: Any) -> dict:
    """Return settings with which a server crashes, or is held, at a point of the engine."""
    return {**server.MODULES, f"{server.POINTS}.{action}_at": point}
