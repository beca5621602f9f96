"""The pristine upstream source tree, from whichever origin works.

It is that of the release pinned in upstream.lock.  Origins, in this order: a tarball that the
user names; one fetched earlier; apt; the official release over HTTPS.  The first one on which
the patches apply is unpacked and remembered until the pin is moved.  Only if no origin has the
pinned release does a later minor one stand in for it, which apt has; whenever that is used, a
message says so.
"""

import hashlib
import json
import os
import re
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

# What follows when the pin has moved.
STEPS = ("write that release into Version and %changelog of packaging/rpm/postgresql-dw.spec, run "
         "`./dev test` and `./dev lint`, commit the spec and upstream.lock, run `./dev deb --test` "
         "for each suite, and publish the packages")


@dataclass(frozen=True)
class Source:
    """An unpacked upstream release, and the tarball it came from."""

    version: str
    sha256: str
    tree: str


def ensure(paths: Paths, accepts: Callable[..., Any], tarball: str | None = None,
           again: bool = False) -> Source:
    """Return the Source, fetching and unpacking it if that is not done yet.

    `accepts(source)` returns None, or why the patches do not fit a source.  If a later release
    stands in for the pinned one, `again` asks the origins anew; without an answer it stays.
    Raises DevError, with every origin's failure, if none will do.
    """
    pinned = lockfile.read(paths.lock_file)
    tarball = tarball or os.environ.get("PGDW_TARBALL")
    with locked(paths):
        known = _remembered(paths, pinned)
        if known and (known.sha256 == sha256(Path(tarball)) if tarball
                      else known.version == pinned.version or not again):
            return _in_use(known, pinned)
        refusals = []
        for origin, path, later in _tarballs(paths, pinned, tarball):
            try:
                source = _unpack(paths, pinned, path, later)
                _require_fit(pinned, source, accepts)
            except DevError as exc:
                refusals.append(f"{origin}: {exc}")
                note(f"not used: {refusals[-1]}")
                continue
            return _in_use(_remember(paths, source, pinned.version), pinned)
        if known and not tarball:
            return _in_use(known, pinned)
    raise DevError(f"no source of PostgreSQL {pinned.version} to be had: "
                   + ("; ".join(refusals) or "every origin failed"),
                   f"fetch postgresql-{pinned.version}.tar.bz2 yourself and name it with --tarball "
                   "or PGDW_TARBALL; ./dev source --pin moves the pin to a later release")


def _in_use(source, pinned):
    """Return `source`, and say so if it stands in for the pinned release."""
    if source.version != pinned.version:
        note(f"using {source.version}, as no origin had the pinned {pinned.version}; ./dev source "
             "asks for that again, ./dev source --pin moves the pin")
    return source


def pin(paths: Paths, accepts: Callable[..., Any], tarball: str | None = None) -> Source:
    """Pin the newest minor release that apt has, or that of `tarball`; returns its Source.

    Raises DevError, and leaves the pin where it is, if the patches do not fit that release, or
    `tarball` is of no later one or is compressed otherwise than the official one.
    """
    pinned = lockfile.read(paths.lock_file)
    tarball = tarball or os.environ.get("PGDW_TARBALL")
    with locked(paths):
        if not tarball:
            newest = _newest(paths, pinned)
            if not pinned.precedes(apt.upstream_part(newest)):
                say(f"the pin stays at {pinned.version}: the archive has {newest}")
                return ensure(paths, accepts, again=True)
            tarball = _fetched(paths, pinned, newest)
        if not str(tarball).endswith(ending := Path(pinned.url).suffix):
            raise DevError(f"the pin stays at {pinned.version}: upstream.lock has the checksum of a "
                           f".tar{ending}, which {Path(tarball).name} is not",
                           f"name the release's .tar{ending} with --tarball or PGDW_TARBALL")
        source = _unpack(paths, pinned, Path(tarball), later=True)
        try:
            _require_fit(pinned, source, accepts)
        except DevError as exc:
            raise DevError(f"the pin stays at {pinned.version}, as {source.version} does not fit: "
                           f"{exc}", "fit the patches to it, or go back to stock PostgreSQL for the "
                           "time being: docs/installation.md, Minor releases") from exc
        lockfile.move(paths.lock_file, source.version, source.sha256)
        _remember(paths, source, source.version)
        say(f"the pin has moved from {pinned.version} to {source.version}: {STEPS}")
        return source


@dataclass(frozen=True)
class Answer:
    """What the archive has, in words, and whether that is as wished."""

    good: bool
    text: str


def behind(paths: Paths) -> Answer:
    """Say whether the archive has a later minor release than the pinned one."""
    pinned = lockfile.read(paths.lock_file)
    newest = _newest(paths, pinned)
    if not pinned.precedes(apt.upstream_part(newest)):
        return Answer(True, f"{pinned.version} is not behind: the archive has {newest}")
    return Answer(False, f"{pinned.version} is behind: the archive has {newest}.  "
                         f"Run `./dev source --pin`, which moves the pin to it; then {STEPS}")


def served(paths: Paths, major: int) -> Answer:
    """Say whether the archive serves the source of a release of `major`, by fetching it."""
    offers = _offers(paths, major, NEXT_SUITES)
    if not offers:
        return Answer(False, f"the archive has no source of PostgreSQL {major}")
    best = offers[0]
    with tempfile.TemporaryDirectory(dir=_ensured(paths.root / "sources")) as state:
        if not apt.fetch(Path(state), f"postgresql-{major}", lambda v: v == best, NEXT_SUITES):
            return Answer(False, f"the archive lists the source {best}, but does not serve it")
    if "~" in best:
        return Answer(False, f"the archive serves the source of {best}, which is no release yet")
    return Answer(True, f"the archive serves the source of {best}")


def _offers(paths: Paths, major: int, suites: tuple[str, ...]) -> list[str]:
    """Return the source versions of PostgreSQL `major` that the archive lists, newest first."""
    with tempfile.TemporaryDirectory(dir=_ensured(paths.root / "sources")) as state:
        return apt.offers(Path(state), f"postgresql-{major}", suites)


def _newest(paths, pinned):
    """Return the newest source version of the pinned major release; raises DevError if none."""
    offers = _offers(paths, int(pinned.major), apt.SUITES)
    if not offers:
        raise DevError(f"the archive has no source of PostgreSQL {pinned.major}",
                       "see the notes above: a network, or an archive of sources, is missing")
    return offers[0]


def _fetched(paths, pinned, version):
    """Fetch the tarball of a source version into the cache; raises DevError if apt cannot."""
    path = _from_apt(_ensured(paths.root / "sources"), pinned, lambda v: v == version)
    if not path:
        raise DevError(f"the archive lists the source {version}, but does not serve it",
                       "try again later, or name a tarball of it with --tarball")
    return path


def _tarballs(paths, pinned, tarball):
    """Yield (origin, path, of a later release) for each origin that has a tarball, as needed."""
    if tarball:
        yield "the tarball you named", Path(tarball).resolve(), False
        return
    cache = _ensured(paths.root / "sources")
    for kept in cache.glob(f"postgresql-{pinned.version}.tar.*"):
        yield "cache", kept, False
    if fetched := _from_apt(cache, pinned, lambda v: apt.upstream_part(v) == pinned.version):
        yield "apt", fetched, False
    url = pinned.url.format(version=pinned.version)
    target = cache / url.rpartition("/")[2]
    if _download(url, target):
        yield "official release", target, False
    if fetched := _from_apt(cache, pinned, lambda v: pinned.precedes(apt.upstream_part(v))):
        yield "apt", fetched, True


def _from_apt(cache, pinned, wanted):
    """Fetch the tarball of a `wanted` source version with apt into `cache`; returns its path or None."""
    with tempfile.TemporaryDirectory(dir=cache) as state:
        path = apt.fetch(Path(state), f"postgresql-{pinned.major}", wanted)
        # postgresql-18_18.6.orig.tar.bz2 is postgresql-18.6.tar.bz2 there
        return path and path.rename(cache / re.sub(r"-\d+_(.*)\.orig", r"-\1", path.name))


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


def _unpack(paths, pinned, tarball, later):
    """Unpack `tarball` of the pinned, or of a `later`, release; the rename makes it whole."""
    digest = sha256(tarball)
    base = _ensured(paths.root / "upstream")
    with tempfile.TemporaryDirectory(dir=base) as scratch:
        say(f"unpacking {tarball.name}")
        run(["tar", "-xf", tarball, "-C", scratch, "--no-same-owner", "--no-same-permissions"])
        tops = os.listdir(scratch)
        version = tops[0].rpartition("-")[2] if len(tops) == 1 else "?"
        if not (pinned.precedes(version) if later else version == pinned.version):
            raise DevError(f"{tarball.name} holds {', '.join(tops)}; wanted "
                           f"{'a later release than ' if later else ''}postgresql-{pinned.version}")
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


def _record(paths):
    """Return the path of the file that remembers the Source in use, and the pin then."""
    return paths.root / "source.json"


def _remember(paths, source, pinned):
    """Record `source` as the one in use while release `pinned` is pinned, and return it."""
    _record(paths).write_text(json.dumps({"pinned": pinned, **asdict(source)}))
    say(f"source of PostgreSQL {source.version} is in {source.tree}")
    return source


def _remembered(paths, pinned):
    """Return the Source in use if it is whole and the pin has not moved since, else None."""
    try:
        fields = json.loads(_record(paths).read_text())
        pin_then = fields.pop("pinned")
        source = Source(**fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    outdated = source.version == pinned.version and source.sha256 != pinned.sha256
    if outdated or pin_then != pinned.version or not os.path.isdir(source.tree):
        return None
    return source
