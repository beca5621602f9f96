"""An archive of the server that runs from any directory of several distributions: `./dev dist`.

It is built in a chroot of the oldest one that a package registry gives, Debian 12, with the
libraries inside that may be missing elsewhere or differ.  Those of the system that it needs are
listed with the versions of their symbols and compared with what the oldest distribution that it
is for has, RHEL 9, of which there is no chroot here.
"""

import hashlib
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from common.base import DevError, Paths, note, output, run, say

from . import chroot, lock, sbom, worktree
from .source import Source

PACKAGES = (*chroot.PACKAGES, *sbom.PACKAGES, "zstd")

# Where it is built, and where it is tried.
BUILT_ON = "bookworm"
TRIED_ON = ("bookworm", "trixie")

# Newest versions of symbols that the oldest systems have, as each library calls them: RHEL 9
# has glibc 2.34, GCC 11, OpenSSL 3.0, zlib 1.2.11, Linux-PAM 1.5.  Ubuntu 22.04 and Debian 12 have
# later ones of each.
NEWEST = {"GLIBC": (2, 34), "GCC": (11, 0, 0), "OPENSSL": (3, 0, 0), "ZLIB": (1, 2, 9),
          "LIBPAM": (1, 4)}

# Their libraries, the only ones that may be needed from outside.
SYSTEM = {"ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libz.so.1",
          "libpam.so.0", "libssl.so.3", "libcrypto.so.3"}


@dataclass(frozen=True)
class Program:
    """A program or library: its name for others, and what it needs of which libraries."""

    path: str
    soname: str
    libraries: frozenset[str]
    versions: dict[str, set[str]]


def build(paths: Paths, upstream: Source, twice: bool = False) -> Path:
    """Build the archive with its checksum and SBOM; returns the directory they are in.

    If wanted, build it twice, and raise DevError unless both have the same bytes.
    """
    name = f"postgresql-{upstream.version}-dw-linux-x86_64"
    result = _build(paths, upstream, name, paths.root / "dist")
    archive = result / f"{name}.tar.zst"
    if twice:
        other = _build(paths, upstream, name, paths.root / "dist.again")
        _compare(archive, other / archive.name)
    return result


def _build(paths: Paths, upstream: Source, name: str, result: Path) -> Path:
    """Build the archive into `result`, and return that."""
    chroot.fresh(result)
    seconds = worktree.commit_time(paths)
    source = chroot.fresh(result / "source")
    git = worktree.repository(paths)
    tip = worktree.assemble(git, paths, worktree.upstream_commit(git, upstream))
    git("archive", "--output", result / "source.tar", tip)
    run(["tar", "-xf", result / "source.tar", "-C", source])
    (result / "source.tar").unlink()
    say(f"building {name} on {BUILT_ON}, which takes a while")
    made = chroot.fresh(result / "made")
    chroot.call(paths, BUILT_ON, f"/packaging/archive/build /build/source /made {name} {seconds}",
                [(source, "/build/source"), (made, "/made"),
                 (paths.repo / "packaging", "/packaging")],
                prepare=(paths.repo / "packaging" / "archive" / "prepare").read_text())
    run(["rm", "-r", source])
    (made / f"{name}.tar.zst").rename(result / f"{name}.tar.zst")
    _require_symbols((made / "needs").read_text())
    sbom.write(paths, result / f"{name}.spdx.json", made / "system", upstream.version,
               "PostgreSQL with double writes, and libraries of Debian 12",
               {"source": lock.read(paths.lock_file).url.format(version=upstream.version),
                "source-sha256": upstream.sha256})
    sbom.write_sums(result, result.glob(f"{name}.*"))
    return result


# What it needs of the system -------------------------------------------------


def programs(dump: str) -> list[Program]:
    """Parse `objdump -p` of programs, each after a line "== PATH"."""
    found = []
    for part in re.split(r"^== ", dump, flags=re.MULTILINE)[1:]:
        path, _, text = part.partition("\n")
        fields = re.findall(r"^  (NEEDED|SONAME) +(\S+)", text, re.MULTILINE)
        versions: dict[str, set[str]] = {}
        library = ""
        for line in text.partition("Version References:")[2].splitlines():
            start = re.match(r"  required from (\S+):", line)
            entry = re.match(r"    0x\w+ 0x\w+ \d+ (\S+)", line)
            if start:
                library = start[1]
            elif entry:
                versions.setdefault(library, set()).add(entry[1])
        found.append(Program(path, dict(fields).get("SONAME", ""),
                             frozenset(name for key, name in fields if key == "NEEDED"), versions))
    return found


def complaints(dump: str) -> list[str]:
    """Say what the programs of an `objdump -p` need that the oldest systems lack."""
    every = programs(dump)
    known = SYSTEM | {program.soname for program in every}
    found = []
    for program in every:
        found += [f"{program.path} needs {library}, which is not inside"
                  for library in sorted(program.libraries - known)]
        found += [f"{program.path} needs {version} of {library}"
                  for library in sorted(SYSTEM & set(program.versions))
                  for version in sorted(program.versions[library]) if not _is_old(version)]
    return found


def _is_old(version: str) -> bool:
    """Say whether the oldest systems have a version of symbols."""
    family, _, number = version.rpartition("_")
    parts = tuple(int(part) for part in re.findall(r"\d+", number))
    return family in NEWEST and parts <= NEWEST[family]


def newest(dump: str) -> dict[str, str]:
    """Return {library of the system: newest version of its symbols that is needed}."""
    found: dict[str, set[str]] = {}
    for program in programs(dump):
        for library in SYSTEM & program.libraries:
            found.setdefault(library, set()).update(program.versions.get(library, ()))
    return {library: max(versions, key=_order, default="any")
            for library, versions in sorted(found.items())}


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _require_symbols(dump: str) -> None:
    """Raise DevError if a program needs what the oldest systems lack."""
    for library, version in newest(dump).items():
        note(f"{library} is the system's, at least with {version}")
    wrong = complaints(dump)
    if wrong:
        raise DevError("the archive would not run on RHEL 9: " + "; ".join(wrong[:10]))


# Comparison ------------------------------------------------------------------


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the names that differ between two {name: digest}."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _compare(one: Path, other: Path) -> None:
    """Raise DevError, which names files, unless two archives have the same bytes."""
    for path in sorted(one.parent.glob("*.json")):
        if path.read_bytes() != (other.parent / path.name).read_bytes():
            raise DevError(f"two builds made different SBOMs: {path}, {other.parent / path.name}")
    if one.read_bytes() == other.read_bytes():
        say(f"two builds made the same bytes: {output(['sha256sum', one])}")
        return
    names = differing(_members_of(one), _members_of(other))
    raise DevError(f"two builds differ in {len(names)} files: {', '.join(names[:20])}",
                   f"diffoscope {one} {other}")


def members(stream: IO[bytes]) -> dict[str, str]:
    """Return {name: attributes, and digest of content} of the members of a tar archive."""
    found = {}
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            digest = hashlib.sha256(file.read() if file else member.linkname.encode())
            found[member.name] = f"{member.mode:o} {member.mtime} {digest.hexdigest()}"
    return found


def _members_of(archive: Path) -> dict[str, str]:
    """Return the members of a compressed archive."""
    with subprocess.Popen(["zstd", "-dcq", archive], stdout=subprocess.PIPE) as unpacked:
        assert unpacked.stdout
        return members(unpacked.stdout)


# Trying it -----------------------------------------------------------------------


def test(paths: Paths, directory: Path) -> None:
    """Unpack the archive built last on each of TRIED_ON, and run a server of it."""
    archives = sorted(directory.glob("*.tar.zst"))
    if not archives:
        raise DevError("there is no archive", "./dev dist builds it")
    for suite in TRIED_ON:
        say(f"trying {archives[0].name} on {suite}")
        chroot.call(paths, suite, f"bash /packaging/archive/test /archive/{archives[0].name}",
                    [(directory, "/archive"), (paths.repo / "packaging", "/packaging")],
                    chroot.MINIMAL)
