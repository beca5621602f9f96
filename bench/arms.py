"""What is compared: builds and the settings that tell them apart."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from common.base import DevError

MODE = "io_torn_pages_protection"
LZ4 = {"wal_compression": "lz4"}
ZSTD = {"wal_compression": "zstd"}


@dataclass(frozen=True)
class Arm:
    """A build (a kind of `./dev build`) with settings."""

    name: str
    kind: str
    settings: dict
    images: bool | None = None     # replays saved WAL, with or without images
    file_system: str | None = None     # needs this one
    restarts: bool = False      # differs from others after a crash, or should
    if_named: bool = False      # is run where it is named only

    @property
    def ours(self) -> bool:
        return self.kind == "release"


IN_ORDER = {"instant_recovery": "off"}
SERIAL = {**IN_ORDER, "wal_pipeline": "off"}
PIPELINE = {**IN_ORDER, "wal_pipeline": "on"}
IMAGES = {MODE: "full_pages"}
NO_IMAGES = {MODE: "double_writes"}

ARMS = {arm.name: arm for arm in (
    Arm("off", "release", {MODE: "off"}),
    Arm("double_writes", "release", {MODE: "double_writes"}),
    Arm("double_writes+lz4", "release",
        {MODE: "double_writes", "double_write_compression": "lz4"}),
    Arm("double_writes+zstd", "release",
        {MODE: "double_writes", "double_write_compression": "zstd"}),
    Arm("double_writes+plain", "release",
        {MODE: "double_writes", "double_write_compression": "off"}),
    # All others of ours open before redo, as initdb makes them.
    Arm("in_order", "release", {MODE: "double_writes", **IN_ORDER}, restarts=True),
    # Of a standby that is behind: a delay that is over for all its WAL turns off looking ahead,
    # and nothing else; recovery_prefetch would turn off reading single blocks as well.
    Arm("no_look_ahead", "release", {MODE: "double_writes", "recovery_min_apply_delay": "1ms"},
        if_named=True),
    # The storage of a machine for tests has no atomic writes of its own.
    Arm("atomic_writes", "release",
        {MODE: "atomic_writes", "debug_atomic_writes_in_software": "on"}, file_system="xfs"),
    Arm("full_pages", "release", {MODE: "full_pages"}),
    Arm("full_pages+lz4", "release", {MODE: "full_pages", **LZ4}),
    Arm("full_pages+zstd", "release", {MODE: "full_pages", **ZSTD}),
    Arm("stock-off", "stock-release", {"full_page_writes": "off"}),
    Arm("stock-full_pages", "stock-release", {"full_page_writes": "on"}),
    Arm("stock-full_pages+lz4", "stock-release", {"full_page_writes": "on", **LZ4}),
    # The strongest arm of stock where storage is slow.
    Arm("stock-full_pages+zstd", "stock-release", {"full_page_writes": "on", **ZSTD}),
    # Of the suite `recovery`.
    Arm("serial", "release", {**NO_IMAGES, **SERIAL}, images=False),
    Arm("pipeline", "release", {**NO_IMAGES, **PIPELINE}, images=False),
    Arm("stock", "stock-release", {}, images=False),
    Arm("serial+images", "release", {**IMAGES, **SERIAL}, images=True),
    Arm("pipeline+images", "release", {**IMAGES, **PIPELINE}, images=True),
    Arm("stock+images", "stock-release", {}, images=True),
)}


def choose(names: Collection[str], replaying: bool = False, file_systems: Collection[str] = (),
           restarting: bool = False) -> list[Arm]:
    """Return the Arms of these names in the table's order; all if none given.

    Arms that replay saved WAL are for cases that do, and the others are not; those that need
    a file system are for cases on it. Those that differ after a crash only are left out of cases
    without one, unless they are named; some are run only then.
    """
    fitting = [arm for arm in ARMS.values() if (arm.images is not None) == replaying
               and arm.file_system in (None, *file_systems)
               and (names or not arm.if_named and (restarting or not arm.restarts))]
    unknown = set(names) - {arm.name for arm in fitting}
    if unknown:
        raise DevError(f"no such arm of this suite: {', '.join(sorted(unknown))}",
                       "one of " + ", ".join(arm.name for arm in fitting))
    return [arm for arm in fitting if not names or arm.name in names]


def order(arms: list[Any], round_number: int) -> list[Any]:
    """Return the arms in the order of one round: A B C, then B C A, ...

    Rotating keeps a slow drift of the machine from favouring one place.
    """
    start = round_number % len(arms)
    return arms[start:] + arms[:start]
