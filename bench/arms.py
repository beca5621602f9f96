"""What is compared: builds and the settings that tell them apart."""

from dataclasses import dataclass

from devtools.base import DevError

MODE = "io_torn_pages_protection"
LZ4 = {"wal_compression": "lz4"}


@dataclass(frozen=True)
class Arm:
    """A build (a kind of devtools.build) with settings."""

    name: str
    kind: str
    settings: dict

    @property
    def ours(self):
        return self.kind == "release"


ARMS = {arm.name: arm for arm in (
    Arm("off", "release", {MODE: "off"}),
    Arm("double_writes", "release", {MODE: "double_writes"}),
    Arm("full_pages", "release", {MODE: "full_pages"}),
    Arm("full_pages+lz4", "release", {MODE: "full_pages", **LZ4}),
    Arm("stock-off", "stock-release", {"full_page_writes": "off"}),
    Arm("stock-full_pages", "stock-release", {"full_page_writes": "on"}),
    Arm("stock-full_pages+lz4", "stock-release", {"full_page_writes": "on", **LZ4}),
)}


def choose(names):
    """Return the Arms of these names in the table's order; all if none given."""
    unknown = set(names) - set(ARMS)
    if unknown:
        raise DevError(f"no such arm: {', '.join(sorted(unknown))}",
                       "one of " + ", ".join(ARMS))
    return [arm for arm in ARMS.values() if not names or arm.name in names]


def order(arms, round_number):
    """Return the arms in the order of one round: A B C, then B C A, ...

    Rotating keeps a slow drift of the machine from favouring one place.
    """
    start = round_number % len(arms)
    return arms[start:] + arms[:start]
