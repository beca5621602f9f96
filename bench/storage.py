"""Where clusters live while they are measured.

    memory  a file system on a loop device over a file in memory: fast, honest syncs
    slow    the same, held by the kernel to a number of I/Os a second, as
            rented volumes are: a flush is one, and so is each write request
    rented  the same, held to requests and to bytes a second
    disk    the machine's own disk

What is held uses the block layer's own limit (the blkio controller of cgroup
v1), so it holds for buffered writes, for write-back by the kernel and for every
io_method.  It queues; it does not add latency to a request that comes alone.

The limit is that of the controller's root group, on the device.  Write-back is
done by threads of the kernel, which are of that group; reads, direct I/O and
syncs count for the group of their process, which must therefore be the same.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.base import DevError, make_own_directory, output, own, run

PROFILES = ("memory", "disk", "slow", "rented")

MEMORY = Path("/dev/shm")

BLKIO = "blkio"

# How to make a file system so that it does nothing later that it need not do now.
MKFS = {
    "ext4": ("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-K"),
}

# Fields of /sys/dev/block/*/stat that matter, by their place.
STAT_FIELDS = {"reads": 0, "read_sectors": 2, "writes": 4, "write_sectors": 6, "flushes": 15}


@dataclass(frozen=True)
class Limit:
    """What a device gives in a second, of reads and of writes each.

    Zero means as much as it can.  A megabyte is a million bytes, as vendors of
    volumes say.
    """

    iops: int = 0
    mbps: int = 0

    def rules(self, device: str) -> dict[str, str]:
        """Return {file of the controller: line} that hold a device to the limit."""
        amounts = {"iops": self.iops, "bps": self.mbps * 1_000_000}
        return {f"blkio.throttle.{direction}_{unit}_device": f"{device} {amount}"
                for direction in ("read", "write") for unit, amount in amounts.items()}

    def __str__(self) -> str:
        parts = [f"{self.iops} requests"] if self.iops else []
        parts += [f"{self.mbps} MB"] if self.mbps else []
        return " and ".join(parts) + " a second, of reads and of writes each"


NO_LIMIT = Limit()

# A small rented volume gives about 3000 I/Os a second; on the two-core
# machines that this is made for, 2000 is where storage is the limit.  `rented`
# is half of a volume of 3000 I/Os and 125 MB: so much is the share of two cores
# of a small machine with four.
LIMITS = {"slow": Limit(iops=2000), "rented": Limit(iops=1500, mbps=60)}


@dataclass(frozen=True)
class Volume:
    """Directories to put a cluster in, and the block devices below them."""

    data: Path
    wal: Path | None = None
    devices: dict = field(default_factory=dict)
    limit: Limit = NO_LIMIT
    mounts: tuple = ()

    def hold(self) -> None:
        """Hold the devices to the limit from now on."""
        self._apply(self.limit)

    def release(self) -> None:
        """Let the devices do what they can."""
        self._apply(NO_LIMIT)

    def cool(self) -> None:
        """Write back what is dirty, and leave nothing in the kernel's cache.

        A new mount has neither pages nor names of files cached, and unlike
        drop_caches it leaves alone what others on the machine have cached.
        But if the mount namespace has been copied meanwhile, the file system
        stays mounted there, with its cache; so pages are dropped before.
        """
        for directory in filter(None, (self.data, self.wal)):
            run(["sync", "-f", directory])
            forget(directory)
        for source, mount in self.mounts:
            run(["umount", mount])
            run(["blockdev", "--flushbufs", source])
            _mount(source, mount)

    def _apply(self, limit):
        if self.limit != NO_LIMIT:
            for device in self.devices.values():
                _throttle(device, limit)


def default_work_directory() -> Path:
    """Return the place for prepared clusters and for the `disk` profile."""
    if os.environ.get("PGDW_BENCH_DIR"):
        # All of it is removed at the end, so never the directory itself.
        place = Path(os.environ["PGDW_BENCH_DIR"]) / "pgdw-bench"
    else:
        place = Path(f"/var/tmp/pgdw-bench-{os.getuid()}")
    make_own_directory(place, "PGDW_BENCH_DIR")
    return place


@contextlib.contextmanager
def volume(profile: str, work: Path, size_mb: int, own_wal_device: bool = False,
           limit: Limit | None = None, kind: str = "ext4") -> Iterator[Volume]:
    """Give a fresh Volume; everything is unmounted and removed at the end.

    It is not held to its limit before it is told so.
    """
    limit = LIMITS.get(profile, NO_LIMIT) if limit is None else limit
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_scratch(work / "volumes"))
        devices, directories, mounts = {}, {}, []
        for label in ("data", "wal") if own_wal_device else ("data",):
            if profile == "disk":
                directories[label] = _disk(place / label, size_mb)
            else:
                mounts.append((_loop(stack, place / label, size_mb, kind), place / label))
                directories[label] = _inner(place / label)
            devices[label] = device_of(directories[label])
            if limit != NO_LIMIT:
                stack.callback(_throttle, devices[label], NO_LIMIT)
        yield Volume(directories["data"], directories.get("wal"), devices, limit, tuple(mounts))


def room(profile: str) -> int:
    """Return the megabytes that volumes of a profile may take."""
    place = default_work_directory() if profile == "disk" else MEMORY
    return shutil.disk_usage(place).free >> 20


def limit_of(profile: str, iops: int | None = None, mbps: int | None = None) -> Limit:
    """Return the Limit of a profile, with what was asked for instead."""
    if profile not in LIMITS:
        if iops is not None or mbps is not None:
            raise DevError(f"storage profile {profile} is not held",
                           "--iops and --mbps are for " + " and ".join(LIMITS))
        return NO_LIMIT
    limit = LIMITS[profile]
    limit = Limit(limit.iops if iops is None else iops, limit.mbps if mbps is None else mbps)
    if min(limit.iops, limit.mbps) < 0:
        raise DevError("--iops and --mbps must not be negative")
    return limit


def require(profile: str) -> None:
    """Raise DevError, with a hint, if a profile cannot be had here."""
    if profile == "disk":
        return
    if os.getuid() != 0:
        raise DevError(f"storage profile {profile} mounts loop devices and needs root",
                       "run as root, or use --storage disk")
    if not Path("/dev/loop-control").exists():
        raise DevError("this kernel has no loop devices", "use --storage disk")
    if profile in LIMITS:
        _enter_root_group()


def device_of(path: Path) -> str:
    """Return the "major:minor" of the device that `path` is on."""
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def device_counts(device: str) -> dict:
    """Return {field: count} of a block device since it was attached.

    Some file systems have no device of their own; of them nothing is known.
    """
    path = Path(f"/sys/dev/block/{device}/stat")
    if not path.exists():
        return {}
    numbers = path.read_text().split()
    return {name: int(numbers[place]) for name, place in STAT_FIELDS.items()}


def file_system(path: Path) -> str:
    """Return type and options of the file system below `path`."""
    mounts = output(["findmnt", "-n", "-o", "FSTYPE,OPTIONS", "-T", path]).splitlines()
    # Of mounts on top of each other, the last is the one that is seen.
    return " ".join(mounts[-1].split())


def remove_leftovers(work: Path) -> None:
    """Unmount and remove what a run that was killed has left below `work`."""
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount = line.split()[:2]
        if Path(mount).is_relative_to(work):
            backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
            name = backing.read_text().strip()
            if blkio_mount(Path("/proc/mounts").read_text()):
                # A limit outlives the use of a loop device.
                _throttle(device_of(Path(mount)), NO_LIMIT)
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


def _disk(directory, size_mb):
    """Make a directory on the machine's disk."""
    free = shutil.disk_usage(directory.parent).free >> 20
    if free < size_mb:
        raise DevError(f"{directory.parent} has {free} MB, the case needs {size_mb} MB",
                       "a smaller --factor, or PGDW_BENCH_DIR on a larger disk")
    directory.mkdir()
    _give(directory)
    return directory


def _loop(stack, mount, size_mb, kind):
    """Mount a file system of this kind on a loop device over a file in memory; returns the device's path."""
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
    run([*MKFS[kind], device])
    mount.mkdir()
    _mount(device, mount)
    stack.callback(_unmount, mount)
    return device


def _mount(device, mount):
    run(["mount", "-o", "noatime", device, mount])


def _inner(mount):
    """Make the directory for clusters on a fresh file system."""
    inner = mount / "pg"
    inner.mkdir()
    _give(inner)
    return inner


def _unmount(mount):
    """Unmount; if something still holds the mount, as soon as it lets go."""
    if run(["umount", mount], check=False).returncode != 0:
        run(["umount", "--lazy", mount])


def _throttle(device, limit):
    """Hold a device to a limit."""
    for name, line in limit.rules(device).items():
        (_throttle_directory() / name).write_text(line)


def _throttle_directory():
    """Return where the blkio controller of cgroup v1 is mounted."""
    found = blkio_mount(Path("/proc/mounts").read_text())
    if found is None:
        raise DevError("what holds a device needs the blkio controller of cgroup v1",
                       "mount -t cgroup -o blkio none DIR if /proc/cgroups names it,"
                       " or use --storage memory or disk")
    return found


def _enter_root_group():
    """Have all that is started from here in the group that is held."""
    directory = _throttle_directory()
    try:
        if blkio_group(Path("/proc/self/cgroup").read_text()) != "/":
            (directory / "cgroup.procs").write_text(f"{os.getpid()}")
        for name in NO_LIMIT.rules("0:0"):
            os.close(os.open(directory / name, os.O_WRONLY))
    except OSError as error:
        raise DevError(f"the blkio controller in {directory} cannot be used: {error}",
                       "in a container: it needs the controller of the machine, writable;"
                       " or use --storage memory or disk") from error


def blkio_mount(mounts: str) -> Path | None:
    """Return where the controller is, by the text of /proc/mounts; None if nowhere."""
    for line in mounts.splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup" and BLKIO in options.split(","):
            return Path(mount)
    return None


def blkio_group(groups: str) -> str | None:
    """Return the group of a process by the text of its /proc/PID/cgroup."""
    for line in groups.splitlines():
        _, controllers, group = line.split(":", 2)
        if BLKIO in controllers.split(","):
            return group
    return None


def forget(directory: Path) -> None:
    """Drop what the kernel has cached of the files below a directory."""
    for top, _, names in os.walk(directory):
        for name in names:
            handle = os.open(os.path.join(top, name), os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def _give(directory):
    """Hand a directory over to the user that runs servers."""
    own(directory)
    directory.chmod(0o700)
