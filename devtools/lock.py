"""upstream.lock: the PostgreSQL release that the series is written for.

Besides the release it pins the version constants that decide whether a data
directory made by stock PostgreSQL can be used here and back (rule R12).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from common.base import DevError

# Each constant, and the header that defines it.
CONSTANTS = {
    "CATALOG_VERSION_NO": "src/include/catalog/catversion.h",
    "PG_CONTROL_VERSION": "src/include/catalog/pg_control.h",
    "PG_PAGE_LAYOUT_VERSION": "src/include/storage/bufpage.h",
    "XLOG_PAGE_MAGIC": "src/include/access/xlog_internal.h",
}


@dataclass(frozen=True)
class Lock:
    """Contents of upstream.lock; `constants` maps names to literal text."""

    version: str
    sha256: str
    url: str
    constants: dict[str, str]

    @property
    def major(self) -> str:
        return self.version.split(".")[0]

    def precedes(self, version: str) -> bool:
        """Say whether `version` is a later minor release than the pinned one."""
        match = re.fullmatch(r"(\d+)\.(\d+)", version)
        minor = int(self.version.split(".")[1])
        return match is not None and match[1] == self.major and int(match[2]) > minor


def read(path: Path) -> Lock:
    """Parse upstream.lock; raises DevError for a missing or malformed entry."""
    fields = {}
    for line in path.read_text().splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            fields[key.strip()] = value.strip()
    try:
        lock = Lock(fields["version"], fields["sha256"], fields["url"],
                    {name: fields[name] for name in CONSTANTS})
    except KeyError as exc:
        raise DevError(f"{path.name} has no entry {exc}") from exc
    if not re.fullmatch(r"\d+\.\d+", lock.version):
        raise DevError(f"{path.name}: version {lock.version!r} is not MAJOR.MINOR")
    return lock


def move(path: Path, version: str, sha256: str) -> None:
    """Pin another minor release in upstream.lock; everything else in the file stays."""
    text = path.read_text()
    for name, value in (("version", version), ("sha256", sha256)):
        text = re.sub(rf"^({name}\s*=\s*).*", rf"\g<1>{value}", text, flags=re.MULTILINE)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    os.replace(beside, path)


def constants_of(tree: Path) -> dict[str, str]:
    """Read the CONSTANTS from the headers of a source tree."""
    found = {}
    for name, header in CONSTANTS.items():
        text = (tree / header).read_text()
        match = re.search(rf"^#define\s+{name}\s+(\w+)", text, re.MULTILINE)
        found[name] = match[1] if match else "(undefined)"
    return found


def differences(lock: Lock, tree: Path) -> list[str]:
    """Describe each constant of `tree` that is not what `lock` pins."""
    actual = constants_of(tree)
    return [f"{name} is {actual[name]}, pinned {pinned}"
            for name, pinned in lock.constants.items() if actual[name] != pinned]
