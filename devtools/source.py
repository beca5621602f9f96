"""The pristine upstream source tree, from whichever origin works.

Origins, in this order: a tarball that the user names; one fetched earlier;
apt; the official release over HTTPS.  The first one whose release the lock
allows and on which the patches apply is unpacked and remembered.
"""

import hashlib
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.base import DevError, Paths, locked, note, run, say

from . import apt
from . import lock as lockfile

TIMEOUT_SECONDS = 60

# Suites that are asked for releases to come.
NEXT_SUITES = (*apt.SUITES, "experimental")


@dataclass(frozen=True)
class Source:
    """An unpacked upstream release, and the tarball it came from."""

    version: str
    sha256: str
    tree: str


def ensure(paths: Paths, accepts: Callable[..., Any], tarball: str | None = None) -> Source | None:
    """Return the Source, fetching and unpacking it if that is not done yet.

    `accepts(source)` returns None, or why the patches do not fit a source.
    Raises DevError, with every origin's failure, if none will do.
    """
    pinned = lockfile.read(paths.lock_file)
    tarball = tarball or os.environ.get("PGDW_TARBALL")
    with locked(paths):
        known = _remembered(paths, pinned)
        if known and (not tarball or known.sha256 == sha256(Path(tarball))):
            return known
        refusals = []
        for origin, path in _tarballs(paths, pinned, tarball):
            try:
                source = _unpack(paths, pinned, path)
                _require_fit(pinned, source, accepts)
            except DevError as exc:
                refusals.append(f"{origin}: {exc}")
                note(f"not used: {refusals[-1]}")
                continue
            return _remember(paths, source)
    raise DevError("no source of PostgreSQL to be had: "
                   + ("; ".join(refusals) or "every origin failed"),
                   f"fetch postgresql-{pinned.version}.tar.bz2 yourself and name it "
                   "with --tarball or PGDW_TARBALL")


@dataclass(frozen=True)
class Answer:
    """What the archive has, in words, and whether that is as wished."""

    good: bool
    text: str


def behind(paths: Paths) -> Answer:
    """Say whether the archive has a later minor release than the pinned one."""
    pinned = lockfile.read(paths.lock_file)
    offers = _offers(paths, int(pinned.major))
    releases = [v for v in offers if pinned.allows(apt.upstream_part(v))]
    if not releases:
        raise DevError(f"the archive has no source of PostgreSQL {pinned.version} or later",
                       "see the notes above: a network, or an archive of sources, is missing")
    newest = max(releases, key=apt.minor)
    if apt.minor(newest) == pinned.minor:
        return Answer(True, f"{pinned.version} is the newest: the archive has {newest}")
    return Answer(False, f"{pinned.version} is behind: the archive has {newest}.  Run `./dev deb "
                         "--test`, publish the packages, and pin the release in upstream.lock")


def served(paths: Paths, major: int) -> Answer:
    """Say whether the archive serves the source of a release of `major`, by fetching it."""
    offers = _offers(paths, major)
    if not offers:
        return Answer(False, f"the archive has no source of PostgreSQL {major}")
    best = offers[0]
    with tempfile.TemporaryDirectory(dir=_ensured(paths.root / "sources")) as state:
        fetched = apt.fetch_version(Path(state), f"postgresql-{major}", best, NEXT_SUITES)
        if not fetched:
            return Answer(False, f"the archive lists the source {best}, but does not serve it")
    if "~" in best:
        return Answer(False, f"the archive serves the source of {best}, which is no release yet")
    return Answer(True, f"the archive serves the source of {best}")


def _offers(paths: Paths, major: int) -> list[str]:
    """Return the source versions of PostgreSQL `major` that the archive lists, newest first."""
    with tempfile.TemporaryDirectory(dir=_ensured(paths.root / "sources")) as state:
        return apt.offers(Path(state), f"postgresql-{major}", NEXT_SUITES)


def _tarballs(paths, pinned, tarball):
    """Yield (origin, path) for each origin that has a tarball, as needed."""
    if tarball:
        yield "the tarball you named", Path(tarball).resolve()
        return
    cache = paths.root / "sources"
    cache.mkdir(exist_ok=True)
    for kept in cache.glob(f"postgresql-{pinned.version}.tar.*"):
        yield "cache", kept
    fetched = _from_apt(cache, pinned)
    if fetched:
        yield "apt", fetched
    url = pinned.url.format(version=pinned.version)
    target = cache / url.rpartition("/")[2]
    if _download(url, target):
        yield "official release", target


def _from_apt(cache, pinned):
    """Fetch a tarball with apt into `cache`; returns its path, or None."""
    with tempfile.TemporaryDirectory(dir=cache) as state:
        fetched = apt.fetch(Path(state), f"postgresql-{pinned.major}", pinned)
        if not fetched:
            return None
        version, path = fetched
        return path.rename(cache / f"postgresql-{version}.tar{path.suffix}")


def _ensured(directory):
    """Create `directory` and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _download(url, target):
    """Fetch `url` into the file `target`; says whether that worked."""
    say(f"downloading {url}")
    partial = target.with_name("partial-" + target.name)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply, \
                partial.open("wb") as file:
            _copy_with_progress(reply, file)
    except (urllib.error.URLError, OSError) as exc:
        note(f"download failed: {exc}")
        return False
    partial.rename(target)
    return True


def _copy_with_progress(reply, file):
    """Copy an HTTP reply to a file, reporting every 5 MB."""
    total = int(reply.headers.get("Content-Length") or 0)
    step, done, reported = 5 << 20, 0, 0
    for block in iter(lambda: reply.read(1 << 16), b""):
        file.write(block)
        done += len(block)
        if done - reported >= step:
            reported = done
            say(f"{done >> 20} of {total >> 20 or '?'} MB")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as exc:
        raise DevError(f"cannot read {path}: {exc.strerror}") from exc
    return digest.hexdigest()


def _unpack(paths, pinned, tarball):
    """Unpack `tarball` if its release is allowed; the rename makes it whole."""
    digest = sha256(tarball)
    base = _ensured(paths.root / "upstream")
    with tempfile.TemporaryDirectory(dir=base) as scratch:
        say(f"unpacking {tarball.name}")
        run(["tar", "-xf", tarball, "-C", scratch, "--no-same-owner", "--no-same-permissions"])
        tops = os.listdir(scratch)
        version = tops[0].rpartition("-")[2] if len(tops) == 1 else "?"
        if not pinned.allows(version):
            raise DevError(f"it holds {', '.join(tops)}; wanted postgresql-{pinned.version} "
                           "or a later minor release")
        if version == pinned.version and digest != pinned.sha256:
            raise DevError(f"its checksum {digest} is not the pinned {pinned.sha256}")
        tree = base / tops[0]
        if tree.exists():
            shutil.rmtree(tree)
        (Path(scratch) / tops[0]).rename(tree)
    return Source(version, digest, str(tree))


def _require_fit(pinned, source, accepts):
    """Raise DevError unless constants agree and the patches apply."""
    problems = lockfile.differences(pinned, Path(source.tree))
    if problems:
        raise DevError("not compatible: " + ", ".join(problems))
    refusal = accepts(source)
    if refusal:
        raise DevError(refusal)
    if source.version != pinned.version:
        note(f"using {source.version}, newer than the pinned {pinned.version}: "
             "the patches apply without fuzz")


def _record(paths):
    """Return the path of the file that remembers the Source in use."""
    return paths.root / "source.json"


def _remember(paths, source):
    """Record `source` as the one in use, and return it."""
    _record(paths).write_text(json.dumps(asdict(source)))
    say(f"source of PostgreSQL {source.version} is in {source.tree}")
    return source


def _remembered(paths, pinned):
    """Return the Source in use if it is whole and still allowed, else None."""
    try:
        source = Source(**json.loads(_record(paths).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    outdated = source.version == pinned.version and source.sha256 != pinned.sha256
    if outdated or not pinned.allows(source.version) or not os.path.isdir(source.tree):
        return None
    return source
