"""Steps of a history: standbys, backups, recovery, pg_rewind and other programs."""

import re
import shutil
import subprocess
import time
from typing import Any

from . import readers, server
from .history import Step
from .ledger import Ledger
from .lives import CRASHES, Lives, points
from .machine import LOG, Failure, Machine
from .world import MODE

_REDO = re.compile("redo starts at")


class Copies(Lives):
    """Carries out steps by which servers become others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept = {}              # what backups must have, and points in time
        self.archives = {}          # where the WAL of points in time is

    def _archive(self, machine):
        """Note that this is another data directory than before."""
        if self.history.settings.get("archive_mode") == "on":
            machine.archives()

    def do_follow(self, machine: Machine, step: Step) -> None:
        source = self.machines[step["of"]]
        copy = self.place / "copy"
        with self._under_load(step):
            begin = self._now(source)
            self._back_up(source, copy)
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

    def _back_up(self, source, place, *options, check=True):
        """Take a base backup; returns the process."""
        with server.as_user():
            place.mkdir(parents=True, mode=0o700)
        return server.run(self.tools.bindir, "pg_basebackup", "-D", place, "-X", "stream", "-c", "fast",
                          "--no-sync", "-U", server.USER, "-h", source.instance.sockets, *options,
                          check=check)

    def _now(self, machine):
        """Return the moment up to which a server is known to have what was acknowledged."""
        return machine.ledger.floor if machine.ledger.derived else time.monotonic_ns()

    def do_backup(self, machine: Machine, step: Step) -> None:
        backups = self.place / "backups"
        backups.mkdir(exist_ok=True)
        server.own(backups)
        place, earlier = backups / step["name"], step.get("on")
        with self._under_load(step):
            begin = self._now(machine)
            if earlier:
                self._back_up(machine, self.place / "increment", "--incremental",
                              backups / earlier / "backup_manifest")
            else:
                self._back_up(machine, place)
            end = time.monotonic_ns()
        if earlier:
            server.run(self.tools.bindir, "pg_combinebackup", "--no-sync", "-o", place,
                       backups / earlier, self.place / "increment")
            shutil.rmtree(self.place / "increment")
        ledger = Ledger(list(machine.ledger.events), begin)
        ledger.ceiling = end
        self.kept[step["name"]] = ledger

    def do_point(self, machine: Machine, step: Step) -> None:
        with self._under_load(step):
            begin = self._now(machine)
            machine.ask(f"SELECT pg_create_restore_point('{step['name']}')")
            end = time.monotonic_ns()
            segment = machine.ask("SELECT pg_walfile_name(pg_switch_wal())")
            machine.must("archiving", (machine.archive / segment).exists)
        ledger = Ledger(list(machine.ledger.events), begin)
        ledger.ceiling = end
        self.kept[step["name"]] = ledger
        self.archives[step["name"]] = machine.archive

    def do_recover(self, machine: Machine, step: Step) -> None:
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
        machine.must("promotion", lambda: not machine.ask("SELECT pg_is_in_recovery()"))
        # A standby of it takes over its settings.
        machine.configure({"restore_command": "", "recovery_target_name": "",
                           "recovery_target_timeline": "latest"})
        machine.lived = True
        self._verify(machine)

    def _cut_recovery(self, machine, step):
        """Let the power fail at a point of the engine, or once redo is under way."""
        since, point = machine.logged(), step["at"]
        machine.start(wait=False, settings=points("crash", point) if point else None)
        reached = CRASHES if point else _REDO
        machine.wait_for("recovering", lambda: machine.says(reached, since)
                         or machine.instance.is_ready())
        if not machine.instance.alive() and not machine.says(CRASHES, since):
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

    def do_restore(self, machine: Machine, step: Step) -> None:
        machine = machine or self._machine(step.server)
        self._put_back(machine, step, step["log"])
        kept = self.kept[step["backup"]]
        machine.ledger = Ledger(list(kept.events), kept.floor)
        machine.ledger.ceiling = kept.ceiling

    def do_rewind(self, machine: Machine, step: Step) -> None:
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

    def do_tool(self, machine: Machine, step: Step) -> None:
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
