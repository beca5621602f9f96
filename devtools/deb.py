"""Debian packages that replace postgresql-18, built in a clean chroot of a suite.

The Debian source package of the release that tests have is taken as it is, which only sid has;
our patches and new files are added to its patch series, and packaging/debian/ to its debian/.
Where the suite's own postgresql-common is too old for it, that of trixie goes beside our packages.

Everything happens in the build root; nothing is installed on the machine but the tools that
are needed.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

from common.base import DevError, Paths, note, output, run, say

from . import apt, chroot, sbom, worktree
from . import patch as patches
from .dist import differing
from .source import Source, sha256

PACKAGES = ("dpkg-dev", *chroot.PACKAGES, *sbom.PACKAGES)


@dataclass(frozen=True)
class Suite:
    """A suite that packages are built for.

    `release` is its number, none for sid.  `older` is the major release of PostgreSQL that its
    archive has, none if that is ours.  `borrowed` are packages of LENDER that it needs.
    """

    name: str
    release: str
    older: str = ""
    borrowed: tuple[str, ...] = ()

    def version(self, stock: str) -> str:
        """Return the version of packages made of Debian's `stock`.

        Of equal releases and revisions, it sorts after that of Debian, one that was only built
        again (+b1), and that of the archive which PostgreSQL's own project has for the suite
        (.pgdg13+1); and before Debian's next revision, and our own for a later suite.
        """
        return f"{stock}.pgdw{self.release}+1"

    def version_of_stock(self, stock: str) -> str:
        """Return the version that stock packages of the suite have, or would have."""
        return f"{stock}.pgdg{self.release}+1" if self.older else stock


LENDER = "trixie"
SUITES = {suite.name: suite for suite in (
    Suite("trixie", "13", older="17"),
    Suite("bookworm", "12", older="15", borrowed=(
        "postgresql-client-common", "postgresql-common", "postgresql-common-dev")),
    Suite("sid", ""),
)}
DEFAULT_SUITE = "trixie"

SERIES_DIRECTORY = "double-writes"

# Build profiles and options that leave out what only users of packages need.
SMALL = ("nodoc", "pkg.postgresql.nollvm")
QUICK = ("noopt", "noautodbgsym")
FAST_PACKING = "export DPKG_DEB_COMPRESSOR_LEVEL=1"

# Where tests find the packages, and those of stock; and builds, what those before have compiled:
# most files of stock are as in ours.
REPOSITORY, STOCK, CACHE = "/packages", "/stock", "/ccache"

# What has apt prefer our packages goes beside them.
PIN = "packaging/debian/double-writes.pref"

MAINTAINER = "Double Write Team <team@example.org>"


# Source package ------------------------------------------------------------


def source_package(paths: Paths, suite: Suite, upstream: Source, ours: bool = True) -> Path:
    """Fetch Debian's source package of a release, with our part if wanted; returns its tree."""
    base = chroot.fresh(place(paths, suite) / "build")
    major = upstream.version.partition(".")[0]
    description = apt.fetch_source(paths.root / "deb" / "apt", f"postgresql-{major}",
                                   upstream.version)
    tree = base / "tree"
    run(["dpkg-source", "--no-check", "--extract", description, tree], cwd=base, capture=True)
    for original in description.parent.glob("*.orig.tar.*"):
        shutil.copy(original, base)
    version = output(["dpkg-parsechangelog", "-S", "Version"], cwd=tree)
    if ours:
        add_patches(paths, tree)
        add_packaging(paths, tree)
        add_changelog_entry(tree, suite, suite.version(version), worktree.commit_time(paths),
                            "Add double writes, write combining and pipelined recovery.")
    elif suite.older:
        add_changelog_entry(tree, suite, suite.version_of_stock(version),
                            worktree.commit_time(paths), "Build for an older suite.")
    complete_rules(tree)
    run(["dpkg-source", "--before-build", "."], cwd=tree, capture=True)
    say(f"source of {output(['dpkg-parsechangelog', '-S', 'Version'], cwd=tree)} is in {tree}")
    return tree


def add_patches(paths: Paths, tree: Path) -> None:
    """Append our patches, and one that adds our new files, to debian/patches."""
    series = tree / "debian" / "patches" / "series"
    directory = series.parent / SERIES_DIRECTORY
    directory.mkdir()
    names = []
    for name, patch in patches.read_series(paths.patches):
        if not patch.diff:
            continue
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(patch.encode())
        names.append(name)
    (directory / "new-files.patch").write_bytes(new_files_patch(paths.overlay))
    names.append("new-files.patch")
    with series.open("a") as file:
        file.writelines(f"{SERIES_DIRECTORY}/{name}\n" for name in names)


def new_files_patch(overlay: Path) -> bytes:
    """Return a patch that adds all files of overlay/.

    Those that are empty get an empty line: dpkg-source has patch(1) remove what is empty.
    """
    parts = ["Description: new files of double writes and pipelined recovery\n"
             f"Author: {MAINTAINER}\n\n"]
    for path in sorted(path for path in overlay.rglob("*") if path.is_file()):
        name = path.relative_to(overlay).as_posix()
        lines = path.read_text().splitlines(keepends=True) or ["\n"]
        parts.append(f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(lines)} @@\n")
        parts += [f"+{line}" for line in lines]
    return "".join(parts).encode()


def add_packaging(paths: Paths, tree: Path) -> None:
    """Add packaging/debian/: more files to install, and a test."""
    delta = paths.repo / "packaging" / "debian"
    target = tree / "debian"
    for path in sorted(delta.glob("*.install")):
        with (target / path.name).open("a") as file:
            file.write(path.read_text())
    for path in sorted((delta / "tests").iterdir()):
        if path.name == "control":
            with (target / "tests" / "control").open("a") as file:
                file.write("\n" + path.read_text())
        else:
            shutil.copy(path, target / "tests" / path.name)
            (target / "tests" / path.name).chmod(0o755)


def add_changelog_entry(tree: Path, suite: Suite, version: str, seconds: float,
                        change: str) -> None:
    """Put an entry for `version` on top of debian/changelog; its time is that of all files."""
    changelog = tree / "debian" / "changelog"
    source = output(["dpkg-parsechangelog", "-S", "Source"], cwd=tree)
    entry = (f"{source} ({version}) {suite.name}; urgency=medium\n\n"
             f"  * {change}\n\n"
             f" -- {MAINTAINER}  {formatdate(seconds)}\n\n")
    changelog.write_text(entry + changelog.read_text())


def complete_rules(tree: Path) -> None:
    """Add what an older postgresql-common does not know that 18 has."""
    with (tree / "debian" / "rules").open("a") as file:
        file.write("\nifeq ($(filter --with-libnuma,$(CONFIGURE_FLAGS)),)\n"
                   "  CONFIGURE_FLAGS += --with-libnuma\nendif\n")


# Building --------------------------------------------------------------------


def build(paths: Paths, suite: Suite, upstream: Source, profiles: Iterable[str] = (),
          options: Any = (), twice: bool = False) -> Path:
    """Build the packages of a release in the chroot; returns the directory they are in.

    Build profiles may leave packages out, `pkg.postgresql.nollvm` the JIT compiler; options
    are Debian's for builds.  If wanted, build them twice, the second time without what the first
    has compiled, and raise DevError unless both have the same bytes.
    """
    result = _build_ours(paths, suite, upstream, profiles, options)
    if twice:
        before = result.rename(chroot.fresh(result.with_name("packages.before")))
        compare(before, _build_ours(paths, suite, upstream, profiles, options, anew=True))
        shutil.rmtree(before)
    return result


def _build_ours(paths, suite, upstream, profiles, options, anew=False):
    """Build our packages into the directory for them, and return that."""
    tree = source_package(paths, suite, upstream)
    result = chroot.fresh(packages(paths, suite))
    if suite.borrowed:
        say(f"getting {', '.join(suite.borrowed)} of {LENDER}")
        for package in apt.download(paths.root / "deb" / "lent", suite.borrowed, (LENDER,)):
            shutil.move(package, result)
    scan(result)
    shutil.copy(paths.repo / PIN, result)
    say(f"building the packages for {suite.name}, which takes a while")
    _build(paths, suite, tree, profiles, result, options, anew)
    describe(paths, suite, result, {"source-sha256": upstream.sha256})
    return result


def describe(paths: Paths, suite: Suite, directory: Path, data: Mapping[str, str]) -> None:
    """Put an SPDX document of the packages in a directory beside them, and checksums of all."""
    version = version_in(directory)
    root = chroot.fresh(directory / "root")
    for package in sorted(directory.glob("*.deb")):
        run(["dpkg-deb", "--extract", package, root])       # for the copyrights
    (root / "var" / "lib" / "dpkg").mkdir(parents=True, exist_ok=True)
    shutil.copy(directory / "Packages", root / "var" / "lib" / "dpkg" / "status")
    sbom.write(paths, directory / f"postgresql-18_{version}.spdx.json", root, version,
               f"PostgreSQL with double writes, packages for Debian {suite.name}", data)
    shutil.rmtree(root)
    sbom.write_sums(directory, directory.iterdir())


def compare(one: Path, other: Path) -> None:
    """Raise DevError, which names packages, unless two directories have the same."""
    names = differing(*({package.name: sha256(package) for package in directory.glob("*.deb")}
                        for directory in (one, other)))
    if names:
        raise DevError(f"two builds differ in {len(names)} packages: {', '.join(names)}",
                       f"diffoscope {one} {other}")
    say("two builds made the same packages, byte for byte")


def stock(paths: Paths, suite: Suite, upstream: Source) -> Path:
    """Return the directory of stock's packages for a suite whose archive lacks them.

    They are built of Debian's source package as it is, once for each release.
    """
    directory = place(paths, suite) / f"stock-{upstream.version}"
    if not directory.exists():
        tree = source_package(paths, suite, upstream, ours=False)
        say(f"building stock packages for {suite.name}, to upgrade from")
        unfinished = chroot.fresh(directory.with_name("stock.unfinished"))
        _build(paths, suite, tree, SMALL, unfinished, QUICK).rename(directory)
    return directory


def _build(paths, suite, tree, profiles, result, options, anew=False):
    """Build the packages of a source tree, and move them into `result`; returns that.

    Nothing that was compiled before is used for those made `anew`.
    """
    # Tests are run from this repository, and documentation is built by ./dev doc.
    names = ["nocheck", *profiles]
    control = (tree / "debian" / "control").read_text()
    prepare = "\n".join([
        *_sources(REPOSITORY), "mkdir -p /tmp/control/debian",
        f"cat > /tmp/control/debian/control <<'END'\n{control}\nEND",
        "apt-get update -q",
        f"apt-get build-dep -q -y --no-install-recommends -P {','.join(names)} /tmp/control",
        "apt-get install -q -y --no-install-recommends ccache", "apt-get clean"])
    cache = place(paths, suite) / "ccache"
    cache.mkdir(exist_ok=True)
    binds = [(tree.parent, "/build"), (packages(paths, suite), REPOSITORY), (cache, CACHE)]
    chroot.call(paths, suite.name, "\n".join([
        f"cd /build/tree; export PATH=/usr/lib/ccache:$PATH CCACHE_DIR={CACHE} CCACHE_MAXSIZE=1G",
        f"export DEB_BUILD_PROFILES='{' '.join(names)}'",
        f"export DEB_BUILD_OPTIONS='{' '.join(['nocheck', f'parallel={os.cpu_count()}', *options])}'",
        FAST_PACKING if options else "",
        "export CCACHE_RECACHE=1" if anew else "",
        "dpkg-buildpackage --build=any --unsigned-source --unsigned-changes",
    ]), binds, prepare=prepare)
    for made in sorted([*tree.parent.glob("*.deb"), *tree.parent.glob("*.buildinfo")]):
        shutil.move(made, result)
    shutil.rmtree(tree.parent)
    scan(result)
    return result


def scan(directory: Path) -> None:
    """Make a directory of packages a source for apt."""
    run(["sh", "-c", "dpkg-scanpackages --multiversion . > Packages"], cwd=directory)


def _sources(*directories):
    """Return commands that make directories in a chroot sources of its apt."""
    return [f"echo 'deb [trusted=yes] file:{directory} ./' >> /etc/apt/sources.list.d/dw.list"
            for directory in directories]


def version_in(directory: Path) -> str:
    """Return the version of the server's package in a directory of packages."""
    found = re.search(r"^Package: postgresql-\d+\n(?:.+\n)*?Version: (.+)",
                      (directory / "Packages").read_text(), re.MULTILINE)
    if not found:
        raise DevError(f"there is no package of the server in {directory}")
    return found[1]


def place(paths: Paths, suite: Suite) -> Path:
    """Return the directory of what is built for a suite."""
    return paths.root / "deb" / suite.name


def packages(paths: Paths, suite: Suite) -> Path:
    """Return the directory of the packages built last: a source for apt."""
    return place(paths, suite) / "packages"


def require_packages(paths: Paths, suite: Suite) -> Path:
    """Return the directory of the packages built last; raises DevError if there are none."""
    directory = packages(paths, suite)
    if not (directory / "Packages").exists():
        raise DevError(f"there are no packages for {suite.name}",
                       f"./dev deb --suite {suite.name} builds them")
    return directory


# Testing ---------------------------------------------------------------------


def test(paths: Paths, suite: Suite, upstream: Callable[[], Source]) -> None:
    """Run the tests of the packages built last; `upstream()` gives stock's release if needed."""
    binds = [(require_packages(paths, suite), REPOSITORY),
             (paths.repo / "packaging", "/packaging")]
    tests = parse_tests((paths.repo / "packaging" / "debian" / "tests" / "control").read_text())
    say(f"testing the packages of {suite.name}: as new")
    chroot.call(paths, suite.name, f"sh /packaging/debian/tests/new {REPOSITORY}", binds,
                chroot.MINIMAL)
    if suite.older:
        say(f"testing the packages of {suite.name}: beside its PostgreSQL {suite.older}")
        chroot.call(paths, suite.name, "\n".join([
            "apt-get update -q",
            f"sh /packaging/debian/tests/older-major {suite.older} {suite.name} {REPOSITORY}"]), binds)
        binds.append((stock(paths, suite, upstream()), STOCK))
        note("extensions of the archive are for its own PostgreSQL: tried in sid only")
        tests = [(name, depends) for name, depends in tests if name == "double-writes"]
    steps = [*_sources(*(inside for _, inside in binds if inside != "/packaging")),
             "apt-get update -q"]
    # That of the upgrade ends with the stock packages, so it comes last, and
    # that of the container, which is none of Debian's, before it.
    for name, depends in reversed(tests):
        if name == "double-writes":
            steps += ["apt-get install -q -y --no-install-recommends postgresql-18 procps",
                      "pg_dropcluster --stop 18 main || true", "bash /packaging/container/test"]
        steps += [f"apt-get install -q -y --no-install-recommends {' '.join(depends)}",
                  f"sh /packaging/debian/tests/{name}"]
    say(f"testing the packages of {suite.name}: " +
        ", ".join(["container", *(name for name, _ in tests)]))
    chroot.call(paths, suite.name, "\n".join(steps), binds)


def parse_tests(control: str) -> list[tuple[str, list[str]]]:
    """Parse debian/tests/control; returns [(name, packages)]."""
    stanzas = re.findall(r"Tests: (\S+)\nDepends:\n((?: .*\n)+)", control)
    return [(name, re.findall(r"[\w.+-]+", depends)) for name, depends in stanzas]
