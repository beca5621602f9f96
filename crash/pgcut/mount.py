"""A mounted recorder: a directory whose every change is recorded."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOUNT_SECONDS = 120
END_SECONDS = 300

# A process with a copy of our mount namespace keeps the recorder mounted: it must be told to end.
COPIED_SECONDS = 2


class MountError(Exception):
    """The recorder could not be mounted or has failed."""


@contextlib.contextmanager
def recorded(recorder: str, base: Any, directory: Path, seed: int = 0, sync_delay_us: Any = (0, 0),
             options: Any = ()) -> Iterator[Path]:
    """Mount a recorder over a copy of `base`; yields the mount point.

    On leaving it is unmounted, and `directory` holds base, base.tsv and ops.bin.
    """
    directory = Path(directory)
    mountpoint, backing = directory / "mnt", directory / "backing"
    mountpoint.mkdir(parents=True)
    subprocess.run(["cp", "-a", str(base), str(backing)], check=True)
    with open(directory / "recorder.log", "w") as log:
        daemon = subprocess.Popen(
            [str(recorder), "--backing", str(backing), "--log", str(directory), "--seed", str(seed),
             "--sync-delay-us", f"{sync_delay_us[0]}:{sync_delay_us[1]}", *options,
             str(mountpoint)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_mounted(daemon, mountpoint, directory)
        yield mountpoint
    finally:
        _unmount(daemon, mountpoint)
    if daemon.returncode != 0:
        raise MountError(f"recorder exited with {daemon.returncode}: "
                         + (directory / "recorder.log").read_text()[-1000:])
    shutil.rmtree(backing)
    mountpoint.rmdir()


def set_fault(mountpoint: Path, rule: str) -> None:
    """Make operations on a mounted recorder fail, as faults.c says, or "clear" all rules."""
    os.setxattr(mountpoint, "user.pgcut.fault", rule.encode())


def _wait_mounted(daemon, mountpoint, directory):
    deadline = time.monotonic() + MOUNT_SECONDS
    while not os.path.ismount(mountpoint):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise MountError("the recorder does not mount: "
                             + (directory / "recorder.log").read_text()[-1000:])
        time.sleep(0.005)


def _unmount(daemon, mountpoint):
    """Unmount, by force if it is busy, and wait for the daemon's last write."""
    command = ["umount"] if os.getuid() == 0 else ["fusermount3", "-u"]
    for _ in range(50):
        if not os.path.ismount(mountpoint):
            break
        if not _done([*command, str(mountpoint)]):
            time.sleep(0.05)
    else:
        _done([*command, "-l" if os.getuid() == 0 else "-z", str(mountpoint)])
    for seconds, number in ((COPIED_SECONDS, signal.SIGTERM), (END_SECONDS, signal.SIGKILL)):
        try:
            daemon.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            daemon.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(END_SECONDS)


def _done(command):
    """Run a command, for a limited time; says whether it went well."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=END_SECONDS).returncode == 0
    return False
