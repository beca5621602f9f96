"""PostgreSQL's source, and newer tools, by package name, from a private apt state.

The machine's own apt configuration says which mirror it uses and which keys
it trusts.  From these a private set of sources is made that adds the suites
that carry the package.  Nothing outside the given directory is changed, so
this needs no privileges.
"""

import functools
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from common.base import DevError, note, output, run, say

# Suites that carry PostgreSQL 18 in its newest minor releases.
SUITES = ("sid", "forky")

ETC = Path("/etc/apt")


@dataclass(frozen=True)
class Archive:
    """One entry of the machine's apt sources.

    `signed_by` is a path or an ASCII-armoured key block, empty if apt's
    global keyring applies.
    """

    uri: str
    suites: tuple
    components: tuple
    signed_by: str

    def looks_like_debian(self) -> int:
        """Rank how surely this is the distribution's own archive (0 to 2)."""
        return (self.uri.rstrip("/").endswith("/debian")
                + ("debian-archive" in self.signed_by))

    def is_base(self) -> bool:
        """Say whether this may be a whole distribution, not an update suite."""
        partial = re.compile(r"(-security|-updates|-backports|-proposed.*|/.*)$")
        return (self.uri.startswith(("http", "mirror", "tor"))
                and "main" in self.components
                and any(not partial.search(suite) for suite in self.suites))


def machine_archives(etc: Path = ETC) -> list[Archive]:
    """Return the Archives of the machine, the likeliest Debian mirror first."""
    archives = []
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    for path in filter(Path.is_file, lists):
        archives += parse_list(path.read_text())
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        archives += parse_deb822(path.read_text())
    usable = [archive for archive in archives if archive.is_base()]
    usable.sort(key=Archive.looks_like_debian, reverse=True)
    return list(dict.fromkeys(usable))


def parse_list(text: str) -> list[Archive]:
    """Parse the one-line format: deb [options] uri suite components."""
    entry = re.compile(r"deb(?:-src)?\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+\S+)*)\s*$")
    archives = []
    for line in text.splitlines():
        match = entry.match(line.partition("#")[0].strip())
        if match:
            options, uri, suite, components = match.groups()
            signed = re.search(r"signed-by=(\S+)", options or "")
            archives.append(Archive(uri, (suite,), tuple(components.split()),
                                    signed[1] if signed else ""))
    return archives


def parse_deb822(text: str) -> list[Archive]:
    """Parse the stanza format (Types:, URIs:, Suites:, ...)."""
    archives = []
    uncommented = re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)
    for stanza in re.split(r"\n\s*\n", uncommented):
        unfolded = re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", stanza, re.MULTILINE)
        fields = {name.lower(): value.strip() for name, value in unfolded}
        if fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        for uri in fields.get("uris", "").split():
            archives.append(Archive(uri, tuple(fields.get("suites", "").split()),
                                    tuple(fields.get("components", "").split()),
                                    fields.get("signed-by", "")))
    return archives


class PrivateApt:
    """An apt state of its own in `directory`, fed from one Archive."""

    def __init__(self, directory: Path, archive: Archive, binaries: bool = False,
                 suites: tuple[str, ...] = SUITES) -> None:
        self.directory = directory
        self.config = directory / "apt.conf"
        for part in ("parts", "lists/partial", "cache/archives/partial"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        (directory / "parts" / "upstream.sources").write_text(
            _stanza(archive, "deb" if binaries else "deb-src", suites))
        self.config.write_text(_configuration(directory))
        if binaries:
            # As if nothing were installed.
            (directory / "status").touch()
            with self.config.open("a") as file:
                file.write(f'Dir::State::status "{directory}/status";\n')

    def update(self) -> None:
        """Fetch the source indexes; a suite that is missing is no failure."""
        self._get("update", check=False)

    def versions(self, package: str) -> list[str]:
        """Return the source versions of `package` on offer, newest first."""
        listing = output(["apt-cache", "-c", self.config, "showsrc", "--only-source",
                          package], check=False)
        found = set(re.findall(r"^Version: (\S+)", listing, re.MULTILINE))
        return sorted(found, key=functools.cmp_to_key(_compare), reverse=True)

    def download(self, package: str, version: str) -> Path:
        """Download the upstream tarball of a source version; returns its path."""
        self._get("source", "--download-only", "--tar-only", f"{package}={version}")
        found = list(self.directory.glob(f"{package}_{upstream_part(version)}.orig.tar.*"))
        tarballs = [path for path in found if path.suffix != ".asc"]
        if not tarballs:
            raise DevError(f"apt-get source left no upstream tarball of {version}")
        return tarballs[0]

    def download_source(self, package: str, version: str) -> Path:
        """Download a whole source package; returns the path of its description."""
        self._get("source", "--download-only", f"{package}={version}")
        return self.directory / f"{package}_{version.rpartition(':')[2]}.dsc"

    def download_all(self, package: str) -> list[Path]:
        """Download a package with all that it depends on; returns the paths."""
        self._get("install", "--download-only", "--yes", "--no-install-recommends", package)
        return sorted((self.directory / "cache" / "archives").glob("*.deb"))

    def download_alone(self, packages: Iterable[str]) -> list[Path]:
        """Download packages without what they depend on; returns the paths."""
        self._get("download", *packages)
        return sorted(self.directory.glob("*.deb"))

    def _get(self, *args, check=True):
        """Run apt-get with the private configuration."""
        run(["apt-get", "-q", "-c", self.config, *args], cwd=self.directory, check=check)


def _stanza(archive, kind, suites):
    """Return the private sources: the machine's mirror, suites of our choice."""
    lines = [f"Types: {kind}", f"URIs: {archive.uri}",
             f"Suites: {' '.join(suites)}", "Components: main"]
    if archive.signed_by:
        lines.append(f"Signed-By: {archive.signed_by}")
    return "\n".join(lines) + "\n"


def _configuration(directory):
    """Return apt.conf text that keeps every write inside `directory`."""
    settings = {
        "Dir::State": directory, "Dir::State::Lists": directory / "lists",
        "Dir::Cache": directory / "cache",
        "Dir::Cache::Archives": directory / "cache" / "archives",
        "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Etc::SourceList": "/dev/null", "Dir::Etc::SourceParts": directory / "parts",
        "Acquire::Retries": 3, "Acquire::Languages": "none",
    }
    if os.getuid() == 0:
        # apt's own sandbox user could not write into our directory.
        settings["APT::Sandbox::User"] = "root"
    text = "".join(f'{name} "{value}";\n' for name, value in settings.items())
    # The machine's hooks act on its own state, with privileges we may lack.
    hooks = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke",
             "APT::Update::Post-Invoke-Success")
    return text + "".join(f"#clear {hook};\n" for hook in hooks)


def upstream_part(version: str) -> str:
    """Return the upstream version inside a Debian one: 18.6 of 18.6-3."""
    return version.rpartition("-")[0].rpartition(":")[2] or version


def fetch(directory: Path, package: str, wanted: Callable[[str], bool],
          suites: tuple[str, ...] = SUITES) -> Path | None:
    """Download the upstream tarball of the newest source version that is `wanted`.

    Returns its path, or None with a note about each mirror if none gives one.
    """
    return _first(directory, package, wanted, suites,
                  lambda apt, version: apt.download(package, version))


def _first(directory, package, wanted, suites, download):
    """Download the newest version that is `wanted` from the first mirror that gives one.

    `download(apt, version)` returns a path.  So does this, or None if no mirror gives one.
    """
    for archive in machine_archives():
        say(f"asking the machine's mirror {archive.uri} for {package}")
        apt = PrivateApt(directory, archive, suites=suites)
        try:
            apt.update()
            offers = apt.versions(package)
            for version in filter(wanted, offers):
                return download(apt, version)
            note(f"{archive.uri} has {', '.join(offers) or 'nothing'} of {package}")
        except DevError as exc:
            note(str(exc))
    return None


def offers(directory: Path, package: str, suites: tuple[str, ...]) -> list[str]:
    """Return the source versions of `package` that the first mirror with any lists, newest first."""
    for archive in machine_archives():
        apt = PrivateApt(directory, archive, suites=suites)
        apt.update()
        found = apt.versions(package)
        if found:
            return found
    return []


def _compare(one: str, other: str) -> int:
    """Compare Debian versions as dpkg does."""
    def is_true(relation: str) -> bool:
        return run(["dpkg", "--compare-versions", one, relation, other], check=False).returncode == 0
    return is_true("gt") - is_true("lt")


def fetch_source(directory: Path, package: str, release: str) -> Path:
    """Download Debian's source package of a release, as 18.6, in its newest revision.

    Returns the path of its description (.dsc); raises DevError if no mirror has it.
    """
    description = _first(directory, package, lambda version: upstream_part(version) == release,
                         SUITES, lambda apt, version: apt.download_source(package, version))
    if not description:
        raise DevError(f"no apt mirror of this machine has the source package {package} of "
                       f"{release}", "if the archive has a later release only, ./dev source --pin "
                       "moves the pin to it")
    return description


def download(directory: Path, packages: Iterable[str], suites: tuple[str, ...]) -> list[Path]:
    """Download packages without what they depend on; returns the paths.

    Raises DevError if no mirror has them.
    """
    shutil.rmtree(directory, ignore_errors=True)
    for archive in machine_archives():
        apt = PrivateApt(directory, archive, binaries=True, suites=suites)
        apt.update()
        try:
            return apt.download_alone(packages)
        except DevError as exc:
            note(str(exc))
    raise DevError(f"no apt mirror of this machine has packages {', '.join(packages)}")


def unpack(directory: Path, package: str, suites: tuple[str, ...] = SUITES,
           alone: Iterable[str] = ()) -> Path:
    """Unpack a package, and all that it depends on, into `directory`; installs nothing.

    If there are others that will do beside it, these are all.  Raises DevError if no mirror
    has it.
    """
    state, unfinished = (directory.with_name(f"{directory.name}.{part}")
                         for part in ("apt", "unfinished"))
    for archive in machine_archives():
        apt = PrivateApt(state, archive, binaries=True, suites=suites)
        try:
            apt.update()
            for path in (apt.download_alone((package, *alone)) if alone
                         else apt.download_all(package)):
                run(["dpkg-deb", "--extract", path, unfinished])
        except DevError as exc:
            note(str(exc))
            continue
        shutil.rmtree(state)
        return unfinished.rename(directory)
    raise DevError(f"no apt mirror of this machine has package {package}")
