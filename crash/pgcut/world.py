"""What is known of the servers of a history, so that it can be judged before it is played."""

import copy
from dataclasses import dataclass, field

MODE = "io_torn_pages_protection"
MODES = ("double_writes", "full_pages", "off")
NAMES = ("a", "b", "c")


@dataclass
class Member:
    """What is known of one server."""

    state: str = "absent"       # absent, clean, crashed or up
    role: str = "primary"       # or standby
    mode: str = "double_writes"
    program: str = "ours"       # that of its current or last life; or stock
    exposed: bool = False       # pages may have been written that nothing protects
    upstream: str = ""          # the server that a standby follows
    checksums: bool = False
    # The timelines that led here: numbers, and what tells apart two with one number
    path: tuple = ((1, 0),)
    stale_log: str = ""         # there is a copy of the log: "fresh", or "old" once it is
    labelled: bool = False      # it was restored from a backup, and not started since
    written: bool = False       # since its power was cut, if ever
    born: int = 0               # tells apart data directories, each of which has an archive
    clock: bool = False         # in this life its clock can be set


@dataclass
class World:
    """All servers, and the backups that were taken."""

    settings: dict
    checksums: bool
    members: dict = field(default_factory=dict)
    backups: dict = field(default_factory=dict)     # name -> the Member as it was
    # Points in time: name -> (the data directory, its backups from before)
    points: dict = field(default_factory=dict)
    forks: int = 0

    def __post_init__(self) -> None:
        self.members = {name: Member() for name in NAMES}
        self.members["a"] = Member("clean", mode=self.settings[MODE], checksums=self.checksums)

    def copy(self) -> "World":
        return copy.deepcopy(self)

    def up(self, role: str | None = None) -> list[str]:
        """Return the names of the servers that run, in one role or in any."""
        return [name for name, member in self.members.items()
                if member.state == "up" and role in (None, member.role)]

    def restarts(self) -> bool:
        return self.settings.get("restart_after_crash") == "on"

    def hints_logged(self, member: Member) -> bool:
        return member.checksums or self.settings.get("wal_log_hints") == "on"

    def backups_of(self, member: Member) -> list[str]:
        """Return the names of the backups of a data directory that were taken as it is now."""
        return [name for name, backup in self.backups.items()
                if (backup.born, backup.role, backup.path) ==
                (member.born, member.role, member.path)]

    def fork(self) -> int:
        """Return a number that no other timeline has."""
        self.forks += 1
        return self.forks

    def abandon(self, name: str) -> None:
        """Let the standbys of a server that becomes another one follow no server."""
        for member in self.members.values():
            if member.upstream == name:
                member.upstream = ""
