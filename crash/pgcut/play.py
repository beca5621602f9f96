"""Plays a history: carries its steps out on servers, and says what is wrong."""

import os
import re
import signal
import traceback
from pathlib import Path

import psycopg2

from . import drawing, server, steps
from .history import History
from .limits import Hang, limit
from .machine import OURS, Failure, Templates, Tools
from .refused import Refusals
from .world import MODE

# What nothing else has a limit for.
STEP_SECONDS = 900

# After these the protocol monitor knows no longer what WAL and files have in common.
UNWATCHED = ("promote", "restore", "recover", "rewind", "single", "copied", "wrong-log")


class Play(Refusals):
    """Plays one history, once."""

    def __init__(self, history: History, tools: Tools, templates: Templates, place: Path) -> None:
        super().__init__(history, tools, place)
        self.templates = templates
        self.played = 0

    def run(self) -> None:
        """Play all steps, until something is wrong; the findings are left in self.findings."""
        self.place.mkdir(parents=True, exist_ok=True)
        server.own(self.place)
        os.chmod(self.place, 0o755)
        try:
            with limit("making the first server", STEP_SECONDS):
                self._make_first()
            for step in self.history.steps:
                self._number += 1
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
            for line in machine.alarms(kills=step is not None and step.do == "kill"):
                self._find("log", f"{machine.name}: {_without_prefix(line)}")

    def _carry_out(self, step):
        then = self.world.copy()
        steps.apply(then, step)
        self._unwatch(step, then)
        self._abandon(then)
        act = getattr(self, ("refuse_" if step.illegal else "do_") + step.do.replace("-", "_"))
        act(self.machines.get(step.server), step)
        steps.apply(self.world, step)

    def _unwatch(self, step, then):
        """Let the protocol monitor alone with what it does not know."""
        machine = self.machines.get(step.server)
        if machine and (step.do in UNWATCHED or step.get("program") == "stock" or
                        step.get("tool", "").startswith("checksums")):
            machine.watched = False
        # Without the log no process waits until a removal is durable: a file that comes back torn
        # belongs to no relation, as in stock, which the monitor cannot see before it is removed.
        if machine and step.do == "script" and step["name"] == "half-dropped" and \
                self.member(machine).mode not in ("double_writes", "atomic_writes"):
            machine.watched = False
        for world in (self.world, then):
            for name, member in world.members.items():
                if member.exposed and name in self.machines:
                    self.machines[name].watched = False

    def _abandon(self, then):
        """Let standbys whose server becomes another one follow none: it may have gone another way."""
        for name, machine in self.machines.items():
            if self.world.members[name].upstream and not then.members[name].upstream and \
                    then.members[name].role == "standby":
                machine.configure({"primary_conninfo": ""})
                if machine.instance.alive():
                    machine.instance._process.send_signal(signal.SIGHUP)

    def _make_first(self):
        machine = self._machine("a")
        machine.store.fill(self.templates.get(self.history.checksums))
        ours = {name: value for name, value in self.history.settings.items()
                if name.startswith(OURS)}
        machine.configure({**self.history.settings, **ours})
        self._archive(machine)
        machine.watched = self.history.settings[MODE] != "off"

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


def _without_prefix(line):
    """Return a line of the server log without time and process."""
    return re.sub(r"^\S+ \S+ \S+ \[\d+\] ", "", line)
