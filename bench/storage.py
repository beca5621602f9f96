"""Where clusters live while they are measured.

    memory  ext4 on a loop device over a file in memory: fast, honest syncs
    slow    the same, held by the kernel to a number of I/Os a second, as
            rented volumes are: a flush is one, and so is each write request
    disk    the machine's own disk

`slow` uses the block layer's own limit (the blkio controller of cgroup v1),
so it holds for buffered writes, for write-back by the kernel and for every
io_method.  It queues; it does not add latency to a request that comes alone.
"""

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from devtools.base import DevError, make_own_directory, output, run, server_user

PROFILES = ("memory", "disk", "slow")

# A small rented volume gives about 3000 I/Os a second; on the two-core
# machines that this is made for, 2000 is where storage is the limit.
SLOW_IOPS = 2000

MEMORY = Path("/dev/shm")

# Fields of /sys/dev/block/*/stat that matter, by their place.
STAT_FIELDS = {"reads": 0, "read_sectors": 2, "writes": 4, "write_sectors": 6, "flushes": 15}


@dataclass(frozen=True)
class Volume:
    """Directories to put a cluster in, and the block devices below them."""

    data: Path
    wal: Path = None
    devices: dict = field(default_factory=dict)


def default_work_directory():
    """Return the place for prepared clusters and for the `disk` profile."""
    if os.environ.get("PGDW_BENCH_DIR"):
        return Path(os.environ["PGDW_BENCH_DIR"])
    place = Path(f"/var/tmp/pgdw-bench-{os.getuid()}")
    make_own_directory(place, "PGDW_BENCH_DIR")
    return place


@contextlib.contextmanager
def volume(profile, work, size_mb, own_wal_device=False):
    """Give a fresh Volume; everything is unmounted and removed at the end."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_scratch(work / "volumes"))
        make = _disk if profile == "disk" else _loop
        data = make(stack, profile, place / "data", size_mb)
        devices = {"data": device_of(data)}
        wal = None
        if own_wal_device:
            wal = make(stack, profile, place / "wal", size_mb)
            devices["wal"] = device_of(wal)
        yield Volume(data, wal, devices)


def require(profile):
    """Raise DevError, with a hint, if a profile cannot be had here."""
    if profile == "disk":
        return
    if os.getuid() != 0:
        raise DevError(f"storage profile {profile} mounts loop devices and needs root",
                       "run as root, or use --storage disk")
    if not Path("/dev/loop-control").exists():
        raise DevError("this kernel has no loop devices", "use --storage disk")
    if profile == "slow":
        _throttle_directory()


def device_of(path):
    """Return the "major:minor" of the device that `path` is on."""
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def device_counts(device):
    """Return {field: count} of a block device since it was attached.

    Some file systems have no device of their own; of them nothing is known.
    """
    path = Path(f"/sys/dev/block/{device}/stat")
    if not path.exists():
        return {}
    numbers = path.read_text().split()
    return {name: int(numbers[place]) for name, place in STAT_FIELDS.items()}


def file_system(path):
    """Return type and options of the file system below `path`."""
    mounts = output(["findmnt", "-n", "-o", "FSTYPE,OPTIONS", "-T", path]).splitlines()
    # Of mounts on top of each other, the last is the one that is seen.
    return " ".join(mounts[-1].split())


def remove_leftovers(work):
    """Unmount and remove what a run that was killed has left below `work`."""
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount = line.split()[:2]
        if Path(mount).is_relative_to(work):
            backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
            name = backing.read_text().strip()
            _unmount(mount)
            run(["losetup", "--detach", device], check=False)
            os.unlink(name)


@contextlib.contextmanager
def _scratch(parent):
    """Give a directory that the server user can reach and that goes away."""
    parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def _disk(stack, profile, directory, size_mb):
    """Make a directory on the machine's disk."""
    free = shutil.disk_usage(directory.parent).free >> 20
    if free < size_mb:
        raise DevError(f"{directory.parent} has {free} MB, the case needs {size_mb} MB",
                       "a smaller --factor, or PGDW_BENCH_DIR on a larger disk")
    directory.mkdir()
    _give(directory)
    return directory


def _loop(stack, profile, mount, size_mb):
    """Mount ext4 on a loop device over a file in memory."""
    free = shutil.disk_usage(MEMORY).free >> 20
    if free < size_mb:
        raise DevError(f"{MEMORY} has {free} MB, the case needs {size_mb} MB",
                       "a smaller --factor, or --storage disk")
    handle, name = tempfile.mkstemp(prefix="pgdw-bench-", dir=MEMORY)
    stack.callback(os.unlink, name)
    os.truncate(handle, size_mb << 20)
    os.close(handle)
    device = output(["losetup", "--find", "--show", name])
    stack.callback(run, ["losetup", "--detach", device], check=False)
    run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", device])
    mount.mkdir()
    run(["mount", "-o", "noatime", device, mount])
    stack.callback(_unmount, mount)
    if profile == "slow":
        _throttle(stack, device_of(mount))
    inner = mount / "pg"
    inner.mkdir()
    _give(inner)
    return inner


def _unmount(mount):
    """Unmount; if something still holds the mount, as soon as it lets go."""
    if run(["umount", mount], check=False).returncode != 0:
        run(["umount", "--lazy", mount])


def _throttle(stack, device):
    """Hold a device to SLOW_IOPS until the stack unwinds."""
    for direction in ("read", "write"):
        path = _throttle_directory() / f"blkio.throttle.{direction}_iops_device"
        path.write_text(f"{device} {SLOW_IOPS}")
        stack.callback(path.write_text, f"{device} 0")


def _throttle_directory():
    """Return where the blkio controller of cgroup v1 is mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup" and "blkio" in options.split(","):
            return Path(mount)
    raise DevError("storage profile slow needs the blkio controller of cgroup v1",
                   "use --storage memory or disk")


def _give(directory):
    """Hand a directory over to the user that runs servers."""
    user = server_user()
    if user:
        os.chown(directory, user.pw_uid, user.pw_gid)
    directory.chmod(0o700)
