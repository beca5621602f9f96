"""Debian packages that replace postgresql-18, built in a clean chroot.

The Debian source package of the release is taken as it is; our patches and new
files are added to its patch series, and packaging/debian/ to its debian/.
Everything happens in the build root; nothing is installed on the machine but
the tools that are needed.

The chroot is made and entered in namespaces of its own: mounts and processes
disappear with them, and mounts never show outside.
"""

import os
import re
import shutil
from email.utils import formatdate

from common.base import DevError, output, run, say

from . import apt, lock
from . import patch as patches

PACKAGES = ("dpkg-dev", "mmdebstrap")

# The suite that the source package comes from, and that packages are built for.
SUITE = "sid"

# Version suffix: later than Debian's revision, and earlier than its next one.
SUFFIX = "+dw1"

SERIES_DIRECTORY = "double-writes"

# The archive's metadata may have expired on a mirror that is not updated.
APT_OPTIONS = ('Acquire::Check-Valid-Until "false"', 'Acquire::Languages "none"')

# Where tests find the packages.
REPOSITORY = "/packages"

MAINTAINER = "Double Write Team <team@example.org>"


# Source package ------------------------------------------------------------


def source_package(paths):
    """Fetch Debian's source package and add our part; returns its tree."""
    pinned = lock.read(paths.lock_file)
    base = _fresh(paths.root / "deb" / "build")
    description = apt.fetch_source(paths.root / "deb" / "apt", f"postgresql-{pinned.major}", pinned)
    tree = base / "tree"
    run(["dpkg-source", "--no-check", "--extract", description, tree], cwd=base, capture=True)
    for original in description.parent.glob("*.orig.tar.*"):
        shutil.copy(original, base)
    version = output(["dpkg-parsechangelog", "-S", "Version"], cwd=tree) + SUFFIX
    add_patches(paths, tree)
    add_packaging(paths, tree)
    add_changelog_entry(tree, version)
    run(["dpkg-source", "--before-build", "."], cwd=tree, capture=True)
    say(f"source of {version} is in {tree}")
    return tree


def add_patches(paths, tree):
    """Append our patches, and one that adds our new files, to debian/patches."""
    series = tree / "debian" / "patches" / "series"
    directory = series.parent / SERIES_DIRECTORY
    directory.mkdir()
    names = []
    for name, patch in patches.read_series(paths.patches):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(patch.encode())
        names.append(name)
    (directory / "new-files.patch").write_bytes(new_files_patch(paths.overlay))
    names.append("new-files.patch")
    with series.open("a") as file:
        file.writelines(f"{SERIES_DIRECTORY}/{name}\n" for name in names)


def new_files_patch(overlay):
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


def add_packaging(paths, tree):
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


def add_changelog_entry(tree, version):
    """Put an entry for `version` on top of debian/changelog."""
    changelog = tree / "debian" / "changelog"
    source = output(["dpkg-parsechangelog", "-S", "Source"], cwd=tree)
    entry = (f"{source} ({version}) {SUITE}; urgency=medium\n\n"
             "  * Add double writes, write combining and pipelined recovery.\n\n"
             f" -- {MAINTAINER}  {formatdate(localtime=False)}\n\n")
    changelog.write_text(entry + changelog.read_text())


# Chroot --------------------------------------------------------------------


def chroot(paths):
    """Return the directory of a clean chroot of SUITE, made on first use."""
    directory = paths.root / "deb" / "chroot"
    if directory.is_dir():
        return directory
    unfinished = _fresh(directory.with_name("chroot.unfinished"))
    archive = apt.machine_archives()[0]
    options = [f"--aptopt={option}" for option in APT_OPTIONS]
    say(f"making a chroot of {SUITE}")
    _isolated(["mmdebstrap", "--mode=root", "--variant=buildd", "--quiet", *options,
               "--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/locale/*",
               SUITE, unfinished, archive.uri])
    return unfinished.rename(directory)


def in_chroot(paths, script, binds=()):
    """Run a shell script in a throw-away copy of the chroot.

    `binds` are (place outside, place inside).  Changes go to a layer above the
    clean chroot, which is removed.
    """
    layers = _fresh(paths.root / "deb" / "layers")
    for name in ("upper", "work", "root"):
        (layers / name).mkdir()
    for _, inside in binds:
        (layers / "upper" / inside.lstrip("/")).mkdir(parents=True)
    mounts = [f"mount -t overlay overlay -o lowerdir='{chroot(paths)}',"
              f"upperdir='{layers}/upper',workdir='{layers}/work' '{layers}/root'",
              f"cd '{layers}/root'", "mount -t proc proc proc", "mount -t tmpfs tmpfs dev/shm",
              *(f"mount --bind '{outside}' '.{inside}'" for outside, inside in binds)]
    try:
        _isolated(["sh", "-ec", "\n".join(mounts) + '\nexec chroot . /bin/sh -ec "$1"', "sh", script],
                  env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
                       "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"})
    finally:
        shutil.rmtree(layers)


def _isolated(command, env=None):
    """Run a command in namespaces of its own: no mount, no process gets out."""
    run(["unshare", "--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child",
         *command], env=env)


# Building and testing --------------------------------------------------------


def build(paths, profiles=()):
    """Build the packages in the chroot; returns the directory they are in.

    Build profiles may leave packages out, `pkg.postgresql.nollvm` the JIT compiler.
    """
    _require_root()
    tree = source_package(paths)
    say("building the packages, which takes a while")
    # Tests are run from this repository, and documentation is built by ./dev doc.
    names = ["nocheck", *profiles]
    in_chroot(paths, "\n".join([
        "cd /build/tree", "apt-get update -q",
        f"apt-get build-dep -q -y --no-install-recommends -P {','.join(names)} .",
        f"export DEB_BUILD_PROFILES='{' '.join(names)}'",
        f"export DEB_BUILD_OPTIONS='nocheck parallel={os.cpu_count()}'",
        "dpkg-buildpackage --build=any --unsigned-source --unsigned-changes",
    ]), [(tree.parent, "/build")])
    result = _fresh(packages(paths))
    for package in sorted(tree.parent.glob("*.deb")):
        shutil.move(package, result)
    run(["sh", "-c", "dpkg-scanpackages --multiversion . > Packages"], cwd=result)
    return result


def packages(paths):
    """Return the directory of the packages built last: a source for apt."""
    return paths.root / "deb" / "packages"


def test(paths, directory):
    """Run the tests of the packages in `directory`."""
    _require_root()
    if not (directory / "Packages").exists():
        raise DevError("there are no packages", "./dev deb builds them")
    tests = _tests(paths.repo / "packaging" / "debian" / "tests" / "control")
    steps = [f"echo 'deb [trusted=yes] file:{REPOSITORY} ./' > /etc/apt/sources.list.d/dw.list",
             "apt-get update -q"]
    # That of the upgrade ends with the stock packages, so it comes last, and
    # that of the container, which is none of Debian's, before it.
    for name, depends in reversed(tests):
        if name == "double-writes":
            steps += ["apt-get install -q -y --no-install-recommends postgresql-18 procps",
                      "pg_dropcluster --stop 18 main || true", "bash /packaging/container/test"]
        steps += [f"apt-get install -q -y --no-install-recommends {' '.join(depends)}",
                  f"sh /packaging/debian/tests/{name}"]
    say("testing the packages: " + ", ".join(["container", *(name for name, _ in tests)]))
    in_chroot(paths, "\n".join(steps), [(directory, REPOSITORY),
                                        (paths.repo / "packaging", "/packaging")])


def _tests(control):
    """Parse debian/tests/control; returns [(name, packages)]."""
    stanzas = re.findall(r"Tests: (\S+)\nDepends:\n((?: .*\n)+)", control.read_text())
    return [(name, re.findall(r"[\w.+-]+", depends)) for name, depends in stanzas]


def _require_root():
    if os.getuid() != 0:
        raise DevError("making and entering a chroot needs root")


def _fresh(directory):
    """Return `directory`, made anew and empty."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
