"""What may be done to servers, when it is legal, and what it leaves.

Each kind of step has an entry in KINDS, with `objection(world, step)`, the reason why it is not
legal, or None, and `apply(world, step)`, what it makes of the World.
"""

import copy
from typing import Any

from .scripts import ENDING
from .world import MODE, Member, World

# What can be lost while no page is protected: nothing may be torn.
WHOLE_FAULTS = ("all-lost", "all-kept", "subset")

# Steps that are carried out though they are not legal, and what then has to happen:
# they are refused, or the server is none the worse for it.
ILLEGAL_KINDS = ("start", "tool", "promote", "rewind", "backup", "reload", "wrong-log", "copied",
                 "bad-edit")

# What a server that has met it may end with.
FATAL_FAULTS = ("sync:", "read-only")


def objection(world: World, step: Any) -> str | None:
    """Return why a step is not legal, or None."""
    why = KINDS[step.do].objection(world, step)
    load = step.get("load")
    if not why and load:
        loaded = world.members[load["on"]]
        starts = step.do in ("start", "single") and load["on"] == step.server
        if loaded.role != "primary" or loaded.state != "up" and not starts:
            return f"there is no primary {load['on']} to load"
    return why


def tryable(world: World, step: Any) -> bool:
    """Say whether a step that is not legal can be carried out at all."""
    return KINDS[step.do].worth_a_try(world, step, world.members[step.server])


def apply(world: World, step: Any) -> None:
    """Let a step change the world, unless it is one that has to be refused."""
    if step.illegal:
        KINDS[step.do].refused(world, step)
    else:
        KINDS[step.do].apply(world, step)


class Kind:
    """A kind of step on a server."""

    states: tuple[str, ...] = ("up",)            # of the server
    role: str | None = None                 # of the server

    def objection(self, world: World, step: Any) -> str:
        member = world.members[step.server]
        if member.state not in self.states:
            return f"{step.server} is {member.state}"
        if self.role and member.role != self.role:
            return f"{step.server} is a {member.role}"
        return self.further(world, step, member)

    def further(self, world: World, step: Any, member: Member) -> str | None:
        """Return what else speaks against a step, or None."""

    def apply(self, world: World, step: Any) -> None:
        self.change(world, step, world.members[step.server])

    def change(self, world: World, step: Any, member: Member) -> None:
        """Change a member of the world."""

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        """Say whether an illegal step can be carried out, so that it may be refused."""
        return False

    def refused(self, world: World, step: Any) -> None:
        """Change the world after an attempt that is refused."""


def crash(member: Member) -> None:
    """Let a server be gone without a clean end."""
    member.state = "crashed"
    member.stale_log = member.stale_log or "fresh"


class Start(Kind):
    """It starts; with a point, it is held or crashes there, and ends in the way that `then` says."""

    states = ("clean", "crashed")

    def further(self, world: World, step: Any, member: Member) -> str | None:
        stock = step["program"] == "stock"
        if stock and (member.state != "clean" or member.role != "primary"):
            return "stock can only have what was stopped cleanly"
        if not stock and member.program == "stock" and member.state == "crashed":
            return None
        if member.labelled and member.role == "standby" and \
                (not member.upstream or world.members[member.upstream].state != "up"):
            return "it lacks WAL that no server gives it"
        return "stock knows no such points" if stock and step["point"] else None

    def change(self, world: World, step: Any, member: Member) -> None:
        member.program, member.written = step["program"], True
        member.labelled = False
        member.clock = bool(step.get("clock"))
        member.exposed = member.exposed and member.state == "crashed" or member.mode == "off"
        if step["point"]:
            crash(member)
        else:
            member.state = "up"
            member.stale_log = member.stale_log and "old"

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        """A second postmaster; or stock, after a crash."""
        return not step["point"] and \
            (member.state == "up" or step["program"] == "stock" and member.state == "crashed"
             and member.program == "ours" and member.role == "primary" and not member.labelled)


class Single(Kind):
    """Single-user mode, to its clean end."""

    states = ("clean", "crashed")
    role = "primary"

    def further(self, world: World, step: Any, member: Member) -> str | None:
        return "it needs recovery by a server" if member.labelled else None

    def change(self, world: World, step: Any, member: Member) -> None:
        member.state, member.program, member.exposed = "clean", "ours", False
        member.written = True
        member.stale_log = member.stale_log and "old"


class Stop(Kind):
    """A server is stopped, or killed."""

    def change(self, world: World, step: Any, member: Member) -> None:
        if step["how"] != "fast":
            crash(member)
            return
        member.state = "clean"
        if member.role == "primary":
            member.exposed = False


class Cut(Kind):
    """The power of its machine fails."""

    states = ("up", "clean", "crashed")

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if not member.written:
            return f"{step.server} has written nothing since"
        if member.exposed and step["fault"] not in WHOLE_FAULTS:
            return f"nothing protects pages of {step.server} that this would tear"
        return None

    def change(self, world: World, step: Any, member: Member) -> None:
        member.written = False
        if member.state != "clean" or member.role == "standby":
            crash(member)


class Edit(Kind):
    """Its settings are changed while it is stopped."""

    states = ("clean", "crashed")

    def change(self, world: World, step: Any, member: Member) -> None:
        member.mode = step["settings"].get(MODE, member.mode)


class Reload(Kind):
    """A setting is changed while it runs: of the server, of a role or of a database."""

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if member.program == "stock":
            return "stock does not know the setting"
        if step["scope"] == "server":
            return None
        if member.role != "primary":
            return "roles and databases are changed on a primary"
        if step["mode"] == member.mode:
            return None
        return None if step["mode"] == "full_pages" else "a session may only choose images"

    def change(self, world: World, step: Any, member: Member) -> None:
        if step["scope"] == "server":
            member.mode = step["mode"]
            member.exposed = member.exposed or member.mode == "off"

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        return member.state == "up" and member.program == "ours" and member.role == "primary"


class Work(Kind):
    """Clients work, and readers beside them."""

    role = "primary"

    def further(self, world: World, step: Any, member: Member) -> str | None:
        return None if step.get("load") else "there is no load"


class Faulty(Work):
    """The same, and its files fail now and then; it ends in the way that `then` says."""

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if member.program == "stock":
            return "stock"
        if step["then"] == "goes on" and \
                any(fault.startswith(FATAL_FAULTS) for fault in step["faults"]):
            return "a server that meets this ends"
        return super().further(world, step, member)

    def change(self, world: World, step: Any, member: Member) -> None:
        if step["then"] != "goes on":
            crash(member)


class Script(Kind):
    """Statements and faults in an order that matters; it may end with the server."""

    role = "primary"

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if member.program == "stock":
            return "stock"
        return "it ends with the server" if step["name"] in ENDING and not step["then"] else None

    def change(self, world: World, step: Any, member: Member) -> None:
        if step["then"]:
            crash(member)


class Clock(Kind):
    """The clock of its machine is set back, or right again."""

    def further(self, world: World, step: Any, member: Member) -> str | None:
        return None if member.clock else "its clock cannot be set"


class Checkpoint(Kind):
    """A checkpoint, or a restartpoint."""

    def change(self, world: World, step: Any, member: Member) -> None:
        if member.role == "primary" and member.mode != "off":
            member.exposed = False


class Kill(Kind):
    """One of its processes is killed."""

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if member.role == "standby" and step["process"] == "walwriter":
            return "a standby has no WAL writer"
        if member.role == "primary" and step["process"] in ("startup", "walreceiver"):
            return f"a primary has no {step['process']}"
        if not member.upstream and step["process"] == "walreceiver":
            return "it follows no server"
        return None

    def change(self, world: World, step: Any, member: Member) -> None:
        # A startup process that dies takes the server with it.
        if not world.restarts() or step["process"] == "startup":
            crash(member)


class Promote(Kind):
    """A standby becomes a primary."""

    role = "standby"

    def change(self, world: World, step: Any, member: Member) -> None:
        member.role, member.upstream = "primary", ""
        member.path = (*member.path, (member.path[-1][0] + 1, world.fork()))

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        return member.state == "up" and member.role == "primary"


class Follow(Kind):
    """A server becomes a standby of another one, by a base backup."""

    states = ("absent", "clean", "crashed")

    def further(self, world: World, step: Any, member: Member) -> str | None:
        source = world.members[step["of"]]
        if source.state != "up" or step["of"] == step.server:
            return f"{step['of']} does not run"
        if source.program == "stock":
            return "stock has no settings to take over"
        return None

    def change(self, world: World, step: Any, member: Member) -> None:
        source = world.members[step["of"]]
        world.abandon(step.server)
        world.members[step.server] = Member("up", "standby", step["mode"], "ours",
                                            step["mode"] == "off", step["of"],
                                            source.checksums, source.path, written=True,
                                            born=world.fork())


class Backup(Kind):
    """A base backup is taken; one that is put together if it is `on` an earlier one."""

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if member.program == "stock":
            return "stock has other settings"
        earlier = step.get("on")
        if earlier and world.settings.get("summarize_wal") != "on":
            return "WAL is not summarized"
        if earlier and member.role != "primary":
            return "WAL of a standby may not be summarized yet"
        if earlier and earlier not in world.backups_of(member):
            return f"{earlier} is no backup of this server"
        return None

    def change(self, world: World, step: Any, member: Member) -> None:
        world.backups[step["name"]] = copy.copy(member)

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        return member.state in ("clean", "crashed")


class Restore(Kind):
    """A base backup takes the place of a server; the log there is its own, an old one or none."""

    states = ("absent", "clean", "crashed")

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if step["backup"] not in world.backups:
            return f"there is no backup {step['backup']}"
        if step["log"] == "own" and member.state == "absent":
            return "there is no log"
        if step["log"] == "stale" and member.stale_log != "old":
            return "there is no old log"
        return None

    def change(self, world: World, step: Any, member: Member) -> None:
        backup = world.backups[step["backup"]]
        number, _ = backup.path[-1]
        world.abandon(step.server)
        world.members[step.server] = Member(
            "crashed", "primary", step["mode"], "ours", False, "", backup.checksums,
            (*backup.path[:-1], (number, world.fork())), member.stale_log, True,
            born=world.fork())


class Point(Kind):
    """A point in time is named, to which recovery can go."""

    role = "primary"

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if world.settings.get("archive_mode") != "on":
            return "WAL is not archived"
        return "stock" if member.program == "stock" else None

    def change(self, world: World, step: Any, member: Member) -> None:
        world.points[step["name"]] = (member.born, world.backups_of(member))


class Recover(Kind):
    """A backup takes the place of a server, and is recovered to a point in time."""

    states = ("absent", "clean", "crashed")

    def further(self, world: World, step: Any, member: Member) -> str | None:
        _, backups = world.points.get(step["point"], (None, ()))
        if step["backup"] not in backups:
            return f"{step['backup']} is not from before {step['point']}"
        return None

    def change(self, world: World, step: Any, member: Member) -> None:
        backup = world.backups[step["backup"]]
        world.abandon(step.server)
        # The number of its timeline is not known, so it cannot be rewound.
        world.members[step.server] = Member(
            "up", "primary", step["mode"], "ours", False, "", backup.checksums,
            ((0, world.fork()),), written=True, born=world.fork())


class Rewind(Kind):
    """A stopped server becomes a standby of one that has gone another way."""

    states = ("clean",)

    def further(self, world: World, step: Any, member: Member) -> str | None:
        source = world.members[step["source"]]
        if source.state != "up" or source.role != "primary" or step["source"] == step.server:
            return f"{step['source']} is no running primary"
        if member.program == "stock" or source.program == "stock":
            return "stock has other settings"
        if not world.hints_logged(member):
            return "it needs logged hints or checksums"
        if member.checksums != source.checksums:
            return "one of them has checksums"
        return None if _related(member.path, source.path) else "their timelines have one number"

    def change(self, world: World, step: Any, member: Member) -> None:
        source = world.members[step["source"]]
        world.abandon(step.server)
        member.state, member.role, member.upstream = "crashed", "standby", step["source"]
        member.path, member.born = source.path, world.fork()
        member.labelled = True

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        return member.state in ("up", "crashed") and not member.labelled and \
            step["source"] != step.server and step["source"] in world.up("primary")


def _related(one, other):
    """Say whether pg_rewind can tell where two paths part."""
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    if common == 0:
        return False
    if common in (len(one), len(other)):
        return True
    return one[common][0] != other[common][0]


class Tool(Kind):
    """A program for stopped clusters."""

    states = ("clean", "crashed")

    def further(self, world: World, step: Any, member: Member) -> str | None:
        if not step["tool"].startswith("checksums"):
            return None
        if member.state != "clean":
            return f"{step.server} is {member.state}"
        if (step["tool"] == "checksums-enable") == member.checksums:
            return "checksums are so already"
        return None

    def change(self, world: World, step: Any, member: Member) -> None:
        if step["tool"] not in ("checksums-enable", "checksums-disable"):
            return
        member.checksums = step["tool"] == "checksums-enable"
        # No WAL says that all pages have changed.
        member.born = world.fork()

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        # A standby that was stopped on its way back is shut down in recovery, as in stock.
        return step["tool"].startswith("checksums") and (
            member.state == "up" or member.state == "crashed" and member.role == "primary")


class WrongLog(Kind):
    """A crashed server is started without its log, or with an old one: never legal."""

    states = ()

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        return member.state == "crashed" and member.program == "ours" and not member.labelled \
            and member.role == "primary" and (step["log"] == "none" or member.stale_log == "old")

    def refused(self, world: World, step: Any) -> None:
        member = world.members[step.server]
        member.exposed = member.exposed or member.mode == "off"


class Copied(Kind):
    """A copy of all files of a crashed server is started, its log and marker as well.

    The server cannot tell that it was not running when they were copied: never legal.
    """

    states = ()

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        return member.state == "crashed" and member.program == "ours" and not member.labelled \
            and member.role == "primary"


class BadEdit(Kind):
    """A stopped server is started with a mode that does not exist: never legal."""

    states = ()

    def worth_a_try(self, world: World, step: Any, member: Member) -> bool:
        return member.state in ("clean", "crashed")


KINDS = {"start": Start(), "single": Single(), "stop": Stop(), "cut": Cut(), "edit": Edit(),
         "reload": Reload(), "work": Work(), "faulty": Faulty(), "script": Script(),
         "clock": Clock(), "checkpoint": Checkpoint(), "kill": Kill(), "promote": Promote(),
         "follow": Follow(), "backup": Backup(), "restore": Restore(), "point": Point(),
         "recover": Recover(), "rewind": Rewind(), "tool": Tool(), "wrong-log": WrongLog(),
         "copied": Copied(), "bad-edit": BadEdit()}
