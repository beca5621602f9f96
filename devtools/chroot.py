"""Clean chroots of Debian's suites, and copies of them that are thrown away.

Each is made once, by mmdebstrap, from the archive that the machine's own apt configuration
names.  It is made and entered in namespaces of its own: mounts and processes disappear with
them, and mounts never show outside.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.base import DevError, Paths, run, say

from . import apt

PACKAGES = ("mmdebstrap",)

# What mmdebstrap installs to begin with: what compiles packages, or hardly anything.
BUILD, MINIMAL = "buildd", "minbase"

# The archive's metadata may have expired on a mirror that is not updated.
APT_OPTIONS = ('Acquire::Check-Valid-Until "false"', 'Acquire::Languages "none"')

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
               "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}


def clean(paths: Paths, suite: str, variant: str = BUILD) -> Path:
    """Return the directory of a clean chroot of `suite`, made on first use."""
    directory = paths.root / "chroots" / f"{suite}-{variant}"
    if directory.is_dir():
        return directory
    unfinished = fresh(directory.with_name(f"{directory.name}.unfinished"))
    archive = apt.machine_archives()[0]
    options = [f"--aptopt={option}" for option in APT_OPTIONS]
    say(f"making a chroot of {suite}")
    isolated(["mmdebstrap", "--mode=root", f"--variant={variant}", "--quiet", *options,
              "--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/locale/*",
              suite, unfinished, archive.uri])
    # An installer would have written it.
    (unfinished / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    return unfinished.rename(directory)


def call(paths: Paths, suite: str, script: str, binds: Iterable[tuple[Path, str]] = (),
         variant: str = BUILD, prepare: str = "") -> None:
    """Run a shell script in a throw-away copy of the clean chroot.

    `binds` are (place outside, place inside).  Changes go to a layer above the clean chroot,
    which is removed.  What the script `prepare` has done before is kept for the next call
    with the same one, so it must say all that it does.
    """
    require_root()
    lower = [clean(paths, suite, variant)]
    binds = list(binds)
    if prepare:
        lower.insert(0, _prepared(lower[0], prepare, binds))
    with _layers(lower[0]) as layers:
        _call(lower, layers, script, binds)


def _prepared(lower: Path, script: str, binds: list[tuple[Path, str]]) -> Path:
    """Return the layer above a clean chroot that a script has made, on first use."""
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    directory = lower.with_name(f"{lower.name}.{digest}")
    if not directory.is_dir():
        with _layers(lower) as layers:
            _call([lower], layers, script, binds)
            Path(layers, "upper").rename(directory)
    return directory


def _layers(lower: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a directory beside a chroot, for changes of one call, that is removed afterwards."""
    return tempfile.TemporaryDirectory(dir=lower.parent, prefix=f"{lower.name}.layers-")


def _call(lower: list[Path], layers: str, script: str, binds: list[tuple[Path, str]]) -> None:
    """Run a script in chroots that lie upon each other, and leave its changes in `layers`."""
    for name in ("upper", "work", "root"):
        Path(layers, name).mkdir()
    for _, inside in binds:
        Path(layers, "upper", inside.lstrip("/")).mkdir(parents=True)
    mounts = ["mount -t overlay overlay -o lowerdir='" + ":".join(map(str, lower)) + "',"
              f"upperdir='{layers}/upper',workdir='{layers}/work' '{layers}/root'",
              f"cd '{layers}/root'", "mount -t proc proc proc", "mount -t tmpfs tmpfs dev/shm",
              *(f"mount --bind '{outside}' '.{inside}'" for outside, inside in binds)]
    isolated(["sh", "-ec", "\n".join(mounts) + '\nexec chroot . /bin/sh -ec "$1"', "sh", script],
             ENVIRONMENT)


def isolated(command: Iterable[object], env: Mapping[str, str] | None = None) -> None:
    """Run a command in namespaces of its own: no mount, no process gets out."""
    run(["unshare", "--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child",
         *command], env=env)


def require_root() -> None:
    """Raise DevError unless this process may make and enter chroots."""
    if os.getuid() != 0:
        raise DevError("making and entering a chroot needs root")


def fresh(directory: Path) -> Path:
    """Return `directory`, made anew and empty."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
