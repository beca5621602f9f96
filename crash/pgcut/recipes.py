"""Recipes: orders of steps that chance would seldom bring together.

A recipe is a list of steps in which only what matters is said; the rest is drawn.  Its
servers are x, y and z.  One history in three is a recipe from its beginning, with the
settings that it needs; in the others recipes begin anywhere, and end where they do not fit.
"""

import random
import typing
from dataclasses import dataclass, field

from .world import MODE


class Any(tuple):
    """One of these, drawn."""


@dataclass(frozen=True)
class Recipe:
    """Steps as (server, kind, arguments that are not drawn)."""

    name: str
    what: str
    steps: tuple
    settings: dict = field(default_factory=dict)
    checksums: object = None    # True or False if that matters
    anywhere: bool = True       # it may begin in the middle of a history, too

    @property
    def servers(self) -> list[str]:
        """Return the names that it has for its servers."""
        return sorted({server for server, _, _ in self.steps} |
                      {arguments[name] for _, _, arguments in self.steps
                       for name in ("of", "source") if name in arguments})


def resolved(rng: random.Random, value: typing.Any) -> typing.Any:
    """Return a value with everything drawn that is still open."""
    if isinstance(value, Any):
        return resolved(rng, rng.choice(value))
    if isinstance(value, dict):
        return {name: resolved(rng, part) for name, part in value.items()}
    return value


# Words of recipes -------------------------------------------------------

# Changes of many pages, most of them not for the first time.
CHURN: dict[str, typing.Any] = {
    "kinds": Any(({"method": 1, "scan": 1}, {"method": 1, "toast": 1}, {"scan": 1, "hint": 1},
                  {"copy": 1, "method": 1, "scan": 1}, {"index": 1, "method": 1, "toast": 1})),
    "transactions": 25, "acks": 25}
ALL_OF_IT = {**CHURN, "acks": 1000}
FEW = {**CHURN, "transactions": 5, "acks": 5}
TEARS = Any(("torn-pages", "torn-pages", "torn-runs", "torn-page", "storm"))
# What loses a change of a name or of a size that was not synced.
LOSSES = Any(("all-lost", "all-lost", "names", "subset", "storm"))

PLAIN: dict[str, typing.Any] = {"program": "ours", "point": "", "then": "", "load": None}
QUIET = {**PLAIN, "verify": False}
FAST, KILL = {"how": "fast", "load": None}, {"how": Any(("kill", "immediate")), "load": None}
AT_RESTORE = Any(("hold:doublewrite-armed:1", "hold:doublewrite-restore-run:1",
                  "hold:doublewrite-restore-run:3", "hold:doublewrite-restored:1"))
BEFORE_CHECKPOINT = Any(("crash:doublewrite-checkpoint-drained:1", "crash:doublewrite-armed:1",
                         "crash:doublewrite-home-run-written:3"))

# Small memory, so that pages go home, and no checkpoint but those of the recipe.
_SMALL = {"shared_buffers": "512kB", "double_write_stage_size": "1MB", "max_wal_size": "64MB",
          "checkpoint_timeout": "10min", "io_method": "sync"}


def _mode(mode):
    return {"settings": {MODE: mode}}


RECIPES = (
    Recipe("converted-primary", "images end at a start of the primary, and its standby is cut", (
        ("x", "start", PLAIN),
        ("y", "follow", {"of": "x", "mode": Any(("double_writes", "full_pages"))}),
        ("x", "work", {"load": ALL_OF_IT}),
        ("x", "checkpoint", {"load": None}),
        ("y", "checkpoint", {"load": None}),
        ("x", "stop", FAST),
        ("x", "edit", _mode("double_writes")),
        ("x", "start", PLAIN),
        ("x", "work", {"load": ALL_OF_IT}),
        ("y", "cut", {"fault": TEARS, "load": CHURN}),
        ("y", "start", PLAIN),
        # Records of hints would tell redo that images have ended.
    ), {**_SMALL, MODE: "full_pages", "wal_log_hints": "off"}, checksums=False),
    Recipe("converted-alone", "images end at a start, and two crashes come before a checkpoint", (
        ("x", "start", PLAIN),
        ("x", "work", {"load": ALL_OF_IT}),
        ("x", "stop", FAST),
        ("x", "edit", _mode("double_writes")),
        ("x", "start", QUIET),
        ("x", "cut", {"fault": TEARS, "load": ALL_OF_IT}),
        ("x", "start", {"program": "ours", "point": BEFORE_CHECKPOINT, "then": "kill",
                        "load": CHURN}),
        ("x", "cut", {"fault": TEARS, "load": None}),
        ("x", "start", PLAIN),
    ), {**_SMALL, MODE: "full_pages"}),
    Recipe("promoted-above-a-standby", "images end at a promotion, with a standby behind it", (
        ("x", "start", PLAIN),
        ("y", "follow", {"of": "x", "mode": "double_writes"}),
        ("z", "follow", {"of": "y", "mode": Any(("full_pages", "double_writes"))}),
        ("x", "work", {"load": ALL_OF_IT}),
        ("x", "checkpoint", {"load": None}),
        ("y", "checkpoint", {"load": None}),
        ("z", "checkpoint", {"load": None}),
        ("y", "promote", {"load": None}),
        ("y", "work", {"load": ALL_OF_IT}),
        ("z", "cut", {"fault": TEARS, "load": CHURN}),
        ("z", "start", PLAIN),
    ), {**_SMALL, MODE: "full_pages", "wal_log_hints": "off"}, checksums=False),
    Recipe("outlived-truncation", "a batch that cannot be logged outlives a truncation", (
        ("x", "start", PLAIN),
        ("x", "script", {"name": "outlived-truncation", "then": Any(("kill", ""))}),
    ), {**_SMALL, MODE: "double_writes", "double_write_stage_size": "8MB"}),
    Recipe("half-dropped", "a page of which half is home is dropped, and the power fails", (
        ("x", "start", PLAIN),
        ("x", "script", {"name": "half-dropped", "then": "kill"}),
        ("x", "cut", {"fault": LOSSES, "load": None}),
        ("x", "start", PLAIN),
    ), {**_SMALL, MODE: "double_writes"}, checksums=True),
    Recipe("stopped-in-crash-recovery", "a start after a crash is stopped fast, and tools follow", (
        ("x", "start", PLAIN),
        ("x", "cut", {"load": CHURN, "fault": TEARS}),
        ("x", "start", {"program": "ours", "point": AT_RESTORE, "then": "fast", "load": None}),
        # Other tools may end with an error for what is torn.
        ("x", "tool", {"tool": "checksums-disable", "illegal": True}),
    ), {MODE: "double_writes"}, checksums=True),
    Recipe("hash-of-a-standby", "hash buckets that redo locks before it meets their images", (
        ("x", "start", PLAIN),
        ("y", "follow", {"of": "x", "mode": "double_writes"}),
        ("x", "work", {"load": {"kinds": {"chains": 1}, "transactions": 10, "acks": 1000}}),
        ("x", "checkpoint", {"load": None}),
        ("y", "checkpoint", {"load": None}),
        ("x", "work", {"load": {"kinds": {"chains": 1, "method": 1}, "transactions": 10,
                                "acks": 1000}}),
        ("y", "cut", {"fault": TEARS, "load": {"kinds": {"chains": 1, "scan": 1},
                                               "transactions": 25, "acks": 20}}),
        ("y", "start", PLAIN),
    ), {**_SMALL, MODE: "full_pages", "wal_log_hints": "off", "instant_recovery": "off",
        "recovery_workers": "0"}, checksums=True, anywhere=False),    # in rounds none is read
    Recipe("empty-old-log", "a log that was empty at another time comes back beside the marker", (
        ("x", "start", PLAIN),
        ("x", "work", {}),
        ("x", "checkpoint", {"load": None}),
        ("x", "stop", KILL),
        ("x", "start", QUIET),
        ("x", "work", {"load": CHURN}),
        ("x", "checkpoint", {"load": None}),
        ("x", "cut", {"load": CHURN}),
        ("x", "wrong-log", {"log": "stale", "owner": Any(("own", "own", "none", "old")),
                            "illegal": True}),
    ), {MODE: "double_writes", "autovacuum": "off", "checkpoint_timeout": "10min"}),
    Recipe("copied-crashed", "files of a crashed server are copied, log and marker as well", (
        ("x", "start", PLAIN),
        ("x", "cut", {"load": CHURN}),
        ("x", "copied", {"illegal": True}),
    ), {MODE: "double_writes"}),
    Recipe("failed-home-write", "a session meets a home write that fails, and is to obey", (
        ("x", "start", PLAIN),
        ("x", "script", {"name": "failed-home-write", "then": Any(("kill", ""))}),
    ), {MODE: Any(("double_writes", "double_writes", "full_pages", "off"))}),
    Recipe("log-fails", "the log cannot be written while files are cut and filled", (
        ("x", "start", PLAIN),
        ("x", "faulty", {"faults": Any((["write:pg_doublewrite/:{skip}:4000:5"],
                                        ["write:pg_doublewrite/:{skip}:40:28"],
                                        ["shortwrite:pg_doublewrite/:{skip}:400:0"])),
                         "then": Any(("goes on", "kill")),
                         "load": {"kinds": Any(({"truncate": 1, "refill": 1, "scan": 1},
                                                {"vacuum": 1, "copy": 1, "method": 1},
                                                {"copy": 1, "refill": 1, "chains": 1})),
                                  "readers": True, "transactions": 25, "acks": 5}}),
    ), {**_SMALL, MODE: "double_writes"}),
    Recipe("read-only", "the file system goes read-only, and comes back", (
        ("x", "start", PLAIN),
        ("x", "faulty", {"faults": Any((["read-only"],)), "then": Any(("kill", "immediate")),
                         "load": {"acks": 5, "transactions": 25}}),
        ("x", "start", PLAIN),
        ("x", "cut", {}),
        ("x", "start", PLAIN),
    ), {MODE: Any(("double_writes", "double_writes", "full_pages"))}),
    Recipe("stale-logs", "crashes before anything was changed, and an old log after them", (
        ("x", "start", PLAIN),
        ("x", "stop", {"how": "kill"}),
        ("x", "start", QUIET),
        ("x", "stop", {"how": "immediate", "load": None}),
        ("x", "start", PLAIN),
        ("x", "stop", {"how": "kill"}),
        ("x", "wrong-log", {"log": "stale", "illegal": True}),
    )),
    Recipe("settings-between-crashes", "each life has another mode, and the power fails", (
        ("x", "start", PLAIN),
        ("x", "stop", FAST),
        ("x", "edit", {}),
        ("x", "start", PLAIN),
        ("x", "cut", {}),
        ("x", "start", {"program": "ours", "point": BEFORE_CHECKPOINT, "then": "kill"}),
        ("x", "cut", {}),
        ("x", "start", PLAIN),
    )),
    Recipe("opened-before-checkpoint", "clients get in, and the next crash comes first", (
        ("x", "start", PLAIN),
        ("x", "work", {"load": ALL_OF_IT}),
        ("x", "cut", {"fault": TEARS, "load": CHURN}),
        ("x", "start", {"program": "ours", "point": BEFORE_CHECKPOINT, "then": "kill",
                        "load": CHURN}),
        ("x", "cut", {"fault": TEARS, "load": None}),
        ("x", "start", {"program": "ours", "point": BEFORE_CHECKPOINT, "then": "kill",
                        "load": CHURN}),
        ("x", "cut", {"fault": TEARS, "load": None}),
        ("x", "start", PLAIN),
    ), {**_SMALL, MODE: Any(("double_writes", "double_writes", "full_pages"))}),
    Recipe("promoted-and-cut", "a promotion, and the power fails before a checkpoint", (
        ("x", "start", PLAIN),
        ("y", "follow", {"of": "x"}),
        ("x", "work", {"load": CHURN}),
        ("y", "promote", {"load": None}),
        ("y", "cut", {"load": CHURN}),
        ("y", "start", PLAIN),
        ("y", "cut", {"load": CHURN}),
        ("y", "start", PLAIN),
    ), _SMALL),
    Recipe("armed-halfway", "a crash between marker and owner file, or names that are lost", (
        ("x", "start", PLAIN),
        ("x", "stop", FAST),
        ("x", "edit", _mode("double_writes")),
        ("x", "start", {"program": "ours", "point": "crash:doublewrite-marker-written:1",
                        "then": "kill", "load": None}),
        ("x", "cut", {"fault": LOSSES, "load": None}),
        ("x", "start", QUIET),
        ("x", "cut", {"fault": LOSSES}),
        ("x", "start", PLAIN),
    ), {MODE: "full_pages"}),
    Recipe("rewound", "a former primary is rewound, and cut", (
        ("x", "start", PLAIN),
        ("y", "follow", {"of": "x"}),
        ("y", "promote", {}),
        ("x", "stop", FAST),
        ("x", "rewind", {"source": "y"}),
        ("x", "start", PLAIN),
        ("x", "cut", {}),
        ("x", "start", PLAIN),
    ), {"wal_log_hints": "on"}),
    Recipe("back-in-time", "recovery to a point in time, cut in the middle", (
        ("x", "start", PLAIN),
        ("x", "work", {}),
        ("x", "backup", {"on": ""}),
        ("x", "work", {"load": CHURN}),
        ("x", "point", {}),
        ("x", "work", {}),
        ("y", "recover", {"mode": Any(("double_writes", "double_writes", "full_pages"))}),
        ("y", "cut", {"load": CHURN}),
        ("y", "start", PLAIN),
    ), {"archive_mode": "on"}, anywhere=False),
    Recipe("increments", "a backup on a backup, put together, restored and cut", (
        ("x", "start", PLAIN),
        ("x", "backup", {"on": ""}),
        ("x", "work", {"load": CHURN}),
        ("x", "backup", {"on": "earlier"}),
        ("x", "work", {}),
        ("x", "backup", {"on": "earlier"}),
        ("y", "restore", {"log": "none"}),
        ("y", "start", PLAIN),
        ("y", "cut", {"load": CHURN}),
        ("y", "start", PLAIN),
    ), {"summarize_wal": "on"}, anywhere=False),
    Recipe("clock-set-back", "the clock of a server is set back under load", (
        ("x", "start", {**PLAIN, "clock": True}),
        ("x", "clock", {"load": FEW}),
        ("x", "work", {"load": FEW}),
        ("x", "cut", {"load": FEW}),
        ("x", "start", {**PLAIN, "clock": True}),
    )),
)


def named(name: str) -> Recipe:
    """Return the recipe of a name."""
    return next(recipe for recipe in RECIPES if recipe.name == name)
