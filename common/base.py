"""Errors, progress, paths, processes and the unprivileged user.

Standard output carries results only (a path, the last line of a test run);
everything else, the output of the programs we call included, goes to
standard error.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# What two builds with debug information, their installs, the compiler cache
# and the test clusters take, with some air.  A smaller tmpfs is not used.
MIN_TMPFS_BYTES = 6 << 30

SYSTEM_USER = "pgdw"
# Debian's, which has the modules that we install as packages.
SYSTEM_PYTHON = "/usr/bin/python3"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DevError(Exception):
    """A failure to report without a traceback, with a hint about the way out."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def say(message: str) -> None:
    """Report a step of progress."""
    print(f"{_line_start()}==> {message}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Report something worth knowing that changes nothing."""
    print(f"{_line_start()}    note: {message}", file=sys.stderr, flush=True)


def _line_start() -> str:
    """Return what takes a line of progress (see progress.py) off a terminal."""
    return "\r\033[K" if sys.stderr.isatty() else ""


# Paths ------------------------------------------------------------------


@dataclass(frozen=True)
class Paths:
    """Where everything is: the repository, and the build root outside it."""

    repo: Path
    root: Path

    @property
    def overlay(self) -> Path:
        return self.repo / "overlay"

    @property
    def patches(self) -> Path:
        return self.repo / "patches"

    @property
    def lock_file(self) -> Path:
        return self.repo / "upstream.lock"

    @property
    def work(self) -> Path:
        return self.root / "work"

    def build(self, kind: str) -> Path:
        return self.root / "build" / kind

    def prefix(self, kind: str) -> Path:
        return self.root / "install" / kind


def locate(repo: Path) -> Paths:
    """Return the Paths of the repository `repo`; creates the build root."""
    root = _choose_root(repo)
    make_own_directory(root, "PGDW_BUILD_ROOT")
    paths = Paths(repo, root)
    _link(repo / "work", paths.work)
    return paths


def _choose_root(repo: Path) -> Path:
    """Pick the build root: the environment, else tmpfs if roomy, else .build."""
    if os.environ.get("PGDW_BUILD_ROOT"):
        # ./dev clean removes what it finds there, so never the directory itself.
        return Path(os.environ["PGDW_BUILD_ROOT"]).resolve() / "pgdw-build"
    digest = hashlib.sha256(str(repo).encode()).hexdigest()[:8]
    shm = Path("/dev/shm")
    in_shm = shm / f"pgdw-{os.getuid()}-{digest}"
    # Once made it stays the choice: filling it must not move the build.
    if os.path.lexists(in_shm) or (_runs_programs(shm) and _free(shm) >= MIN_TMPFS_BYTES):
        return in_shm
    return repo / ".build"


def make_own_directory(directory: Path, variable: str) -> None:
    """Make `directory` if need be; raises DevError if others could plant files in it.

    In a directory that all users may write to, another one may have made it
    first, or a link of that name to a place where we would do harm.  `variable`
    names the way out.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o755)
    found = os.lstat(directory)
    hint = f"remove it, or set {variable} to a directory of your own"
    if not stat.S_ISDIR(found.st_mode):
        raise DevError(f"{directory} is a link or a file, where a directory should be", hint)
    if found.st_uid != os.getuid():
        raise DevError(f"{directory} belongs to another user", hint)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DevError(f"others may write to {directory}", f"chmod go-w {directory}, or {hint}")


def _runs_programs(directory: Path) -> bool:
    """Say whether `directory` is a tmpfs that programs may be started from."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fstype, options = line.split()[:4]
        if mount == str(directory):
            return fstype == "tmpfs" and "noexec" not in options.split(",")
    return False


def _free(directory: Path) -> int:
    """Return the bytes an ordinary user may still write below `directory`."""
    return shutil.disk_usage(directory).free


def _link(link: Path, target: Path) -> None:
    """Make `link` a symbolic link to `target`, replacing another link only."""
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    if link.is_symlink():
        link.unlink()
    if link.exists():
        raise DevError(f"{link} is in the way of a link to {target}",
                       "move it elsewhere")
    link.symlink_to(target)


class _Lock:
    """The lock of the build root, and how often this process holds it."""

    depth = 0
    file: IO[str]


@contextlib.contextmanager
def locked(paths: Paths) -> Iterator[None]:
    """Hold the build root against other ./dev processes; may be nested."""
    if _Lock.depth == 0:
        _Lock.file = open(paths.root / "lock", "w")     # noqa: SIM115, closed below
        try:
            fcntl.flock(_Lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another ./dev that uses the same build root")
            fcntl.flock(_Lock.file, fcntl.LOCK_EX)
    _Lock.depth += 1
    try:
        yield
    finally:
        _Lock.depth -= 1
        if _Lock.depth == 0:
            _Lock.file.close()


def write_if_changed(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Write bytes to `path` unless it holds them already; says if it wrote."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
        path.chmod(mode)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return True


# Processes --------------------------------------------------------------


def run(cmd: Iterable[object], *, cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None, user: pwd.struct_passwd | None = None,
        data: bytes | None = None, capture: bool = False,
        check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run `cmd`, as `user` if one is given, and return the CompletedProcess.

    With `capture`, standard output is collected as bytes; otherwise it goes
    to our standard error.  With `check`, a failure raises DevError.
    """
    words = [str(part) for part in cmd]
    sys.stderr.flush()
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env, input=data, check=False,
            stdin=subprocess.DEVNULL if data is None else None,
            stdout=subprocess.PIPE if capture else sys.stderr.fileno(),
            **identity(user))
    except FileNotFoundError as exc:
        raise DevError(f"cannot run {words[0]}: {exc.strerror}",
                       "./dev deps installs what is needed") from exc
    if check and done.returncode != 0:
        raise DevError(f"command failed with status {done.returncode}: {' '.join(words)}")
    return done


def output(cmd: Iterable[object], **options: Any) -> str:
    """Run `cmd` and return its standard output as stripped text."""
    return run(cmd, capture=True, **options).stdout.decode().strip()


# The unprivileged user --------------------------------------------------


def identity(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return the subprocess arguments that make a child run as `user`."""
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid,
            "extra_groups": os.getgrouplist(user.pw_name, user.pw_gid)}


@functools.cache
def server_user() -> pwd.struct_passwd | None:
    """Return the passwd entry to run builds and servers as; None if not root.

    PostgreSQL refuses to run as root.  Root gets a system user of our own, created
    if need be: `postgres`, if there is one, owns other clusters of the machine.
    """
    if os.getuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(SYSTEM_USER)
    say(f"creating system user {SYSTEM_USER}")
    # Another ./dev may be at it, too.
    run(["useradd", "--system", "--user-group", "--no-create-home",
         "--shell", "/usr/sbin/nologin", SYSTEM_USER], check=False)
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError as exc:
        raise DevError(f"cannot create user {SYSTEM_USER}") from exc


def own(path: str | Path) -> None:
    """Let the server user own a file or directory that we have made."""
    user = server_user()
    if user:
        os.chown(path, user.pw_uid, user.pw_gid)


@contextlib.contextmanager
def as_user() -> Iterator[None]:
    """Make files as the server user; processes started meanwhile stay root's."""
    user = server_user()
    if user is None:
        yield
        return
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def give_to_user(directory: Path) -> None:
    """Create `directory`, and hand over what in it the server user lacks.

    Without following links, even one that is put there meanwhile.
    """
    directory.mkdir(parents=True, exist_ok=True)
    user = server_user()
    if user is None:
        return
    for _, _, files, handle in os.fwalk(directory):
        for name in (".", *files):
            if os.lstat(name, dir_fd=handle).st_uid != user.pw_uid:
                os.chown(name, user.pw_uid, user.pw_gid, dir_fd=handle, follow_symlinks=False)


def require_reachable(directory: Path) -> None:
    """Raise DevError unless the server user can enter `directory`."""
    user = server_user()
    for path in reversed((directory, *directory.parents)):
        if run(["test", "-x", path], user=user, check=False).returncode != 0:
            name = user.pw_name if user else "you"
            raise DevError(f"user {name} cannot enter {path}",
                           f"chmod a+x {path}, or choose another place "
                           "(PGDW_BUILD_ROOT for builds, PGDATA for the cluster)")


def clean_env(paths: Paths, **extra: str) -> dict[str, str]:
    """Return the environment for builds and servers.

    Nothing in the caller's environment may steer a test: settings of libpq,
    of PostgreSQL's test suites and of the locale are left out.
    """
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PG", "LC_"))
           and name not in ("TEMP_CONFIG", "DESTDIR", "LANGUAGE", "INITDB_TEMPLATE")}
    # What one checkout has compiled serves others, whose objects name another directory.
    env.update(LANG="C.UTF-8", CCACHE_DIR=str(paths.root / "ccache"), CCACHE_MAXSIZE="2G",
               CCACHE_NOHASHDIR="1")
    user = server_user()
    if user:
        env.update(PATH=SYSTEM_PATH, HOME=str(paths.root / "home"),
                   USER=user.pw_name, LOGNAME=user.pw_name)
        env.pop("TMPDIR", None)
    venv = paths.root / "venv" / "bin"
    if venv.is_dir():
        env["PATH"] = f"{venv}:{env['PATH']}"
    env.update(extra)
    return env
