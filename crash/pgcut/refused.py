"""Steps of a history that must be refused, or do no harm."""

import os
import re
import shutil
import subprocess

import psycopg2

from . import alarms, server
from .copies import Copies
from .history import Step
from .machine import LOG, OUR_FILE, Failure, Machine
from .store import OWNER
from .world import MODE


class Refusals(Copies):
    """Tries steps that are not legal."""

    def refuse_start(self, machine: Machine, step: Step) -> None:
        if machine.instance.alive():
            second = server.Server(self.tools.bindir, machine.data, machine.log,
                                   sockets=machine.instance.sockets)
            try:
                second.start()
            except server.ServerError:
                status = second.status()
                second.kill()
                self._refused(machine, status)
                return
            raise Failure(f"a second postmaster starts on {machine.name}")
        marked = machine.marked()
        self._try_start(machine, marked, "stock", "stock, though the marker is there")

    def _try_start(self, machine, must_fail, program, what):
        """Start a server, which must be refused or do no harm."""
        try:
            machine.start(program)
        except server.ServerError:
            status = machine.instance.status()
            machine.instance._end(1)
            # Errors there are what a refusal must bring.
            self._refused(machine, status, machine.unread())
            return
        if must_fail:
            raise Failure(f"{machine.name} starts: {what}")
        self.figures["harmless"] += 1
        self._after_start(machine)
        machine.end("fast")

    def _refused(self, machine, status, log=""):
        """Count what has ended with an exit status as refused; what crashes or hangs is not."""
        told = alarms.crashes(log)
        if told or status is None or status < 0:
            raise Failure(" / ".join([f"{machine.name}: not refused, exit status {status}", *told]))
        self.figures["refused"] += 1

    def refuse_wrong_log(self, machine: Machine, step: Step) -> None:
        log, kept = machine.data / LOG, machine.data / f"{LOG}.kept"
        old = machine.old_log() if step["log"] == "stale" else None
        if not log.exists() or old and not old.exists():    # it never was in use
            self.figures["nothing to refuse"] += 1
            return
        owner = step.get("owner", "old")
        told = old is None or machine.checkpointed() or \
            owner == "old" and _names_marker(old / "owner")
        if not told:                    # the server cannot tell one from the other
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

    def refuse_copied(self, machine: Machine, step: Step) -> None:
        marked = machine.marked() and (machine.data / OWNER).exists()
        copy = self.place / "copy"
        subprocess.run(["cp", "-a", str(machine.data), str(copy)], check=True)
        (copy / "postmaster.pid").unlink(missing_ok=True)
        machine.store.fill(copy)
        shutil.rmtree(copy)
        self._try_start(machine, marked, "ours", "a copy")
        # As the server's hint says: no server was running.
        (machine.data / OWNER).unlink(missing_ok=True)
        machine.sync_names()

    def refuse_bad_edit(self, machine: Machine, step: Step) -> None:
        machine.hide_settings(False)
        before = (machine.data / OUR_FILE).read_text()
        machine.configure({MODE: step["value"]})
        self._try_start(machine, True, "ours", f"with mode {step['value']}")
        with server.as_user(), open(machine.data / OUR_FILE, "w") as opened:
            opened.write(before)
            opened.flush()
            os.fsync(opened.fileno())

    def refuse_tool(self, machine: Machine, step: Step) -> None:
        if self._nothing_to_refuse(machine):
            return
        status = self._tool(machine, step["tool"]).returncode
        if status == 0:
            raise Failure(f"{step['tool']} is not refused on {machine.name}, which is "
                          f"{self.member(machine).state}")
        self._refused(machine, status)

    def _nothing_to_refuse(self, machine):
        """Say whether a server was stopped cleanly after all: it has not met its point, for one."""
        clean = machine.clean and not machine.instance.alive()
        self.figures["nothing to refuse"] += clean
        return clean

    def refuse_promote(self, machine: Machine, step: Step) -> None:
        self._must_raise(machine, "SELECT pg_promote()", "a primary is promoted")

    def refuse_reload(self, machine: Machine, step: Step) -> None:
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

    def refuse_backup(self, machine: Machine, step: Step) -> None:
        copy = self.place / "copy"
        status = self._back_up(machine, copy, check=False).returncode
        shutil.rmtree(copy, ignore_errors=True)
        if status == 0:
            raise Failure(f"a backup of what is stopped starts on {machine.name}")
        self._refused(machine, status)

    def refuse_rewind(self, machine: Machine, step: Step) -> None:
        if self._nothing_to_refuse(machine):
            return
        status = self._rewind(machine, self.machines[step["source"]], check=False).returncode
        if status == 0:
            raise Failure(f"pg_rewind is not refused on {machine.name}")
        self._refused(machine, status)


def _names_marker(owner):
    """Say whether an owner file knows the marker that was there."""
    return owner.exists() and not re.search("^Marker: inode 0 ", owner.read_text(), re.MULTILINE)
