"""Atomic writes in hardware, which QEMU emulates: `./dev atomic-vm`.

A virtual machine without KVM, with a newer kernel than the host's, NVMe
namespaces that offer atomic writes, or do not, and disks that its kernel
makes up.  It is started from a kernel and an initial file system that holds
nothing but our build and busybox.  First it says what is found on each file
system.  Then a server runs in it; QEMU is killed, and started again on the same
disk: recovery, amcheck, and no acknowledged commit may be missing.

A program that is killed loses the memory of the machine, not what the emulated
disk has been given: this shows that the kernel and the server go together, not
what a device does when the power fails.
"""

import lzma
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.base import DevError, Paths, note, output, run, say

from . import apt, chroot

PACKAGES = ("cpio", "e2fsprogs", "mmdebstrap", "xfsprogs")

# What the machine is made of comes from the newest suite.
SUITE = "sid"
INCLUDED = ("qemu-system-x86", "linux-image-cloud-amd64", "busybox-static")

# Modules of the kernel, and their options.
MODULES = {"nvme": "", "xfs": "", "ext4": "", "sd_mod": "",
           "scsi_debug": "atomic_wr=1 dev_size_mb=400 sector_size=4096",
           "null_blk": "memory_backed=1 gb=1 bs=4096"}
PROGRAMS = "initdb pg_amcheck pg_checksums pg_ctl pg_doublewrite pgbench postgres psql".split()
LIBRARIES = ("amcheck.so", "dict_snowball.so", "pg_doublewrite_stats.so", "plpgsql.so")
MKFS = ("/usr/sbin/mkfs.xfs", "/usr/sbin/mkfs.ext4")

MEMORY_MB = 2048
DISK_MB = 1500

# Blocks of 4 kB that the good namespace writes atomically, less one.
NAWUPF = 7

# A machine that says nothing new for so long hangs; it is slow.
SILENCE_SECONDS = 600

GOOD, BAD, SCSI, NULL = "good", "bad", "scsi", "nullb0"


class Layout(NamedTuple):
    """A file system on a device, and the proof that is expected."""

    device: str
    mkfs: str
    proof: str
    mount: str = "defaults"


# With data=journal ext4 reports atomic writes, and has no direct I/O to make them with.
LAYOUTS = (
    Layout(BAD, "mkfs.xfs -q -f -m reflink=1", "software"),
    Layout(BAD, "mkfs.ext4 -q -F -O bigalloc -C 16384", "other size"),
    Layout(GOOD, "mkfs.ext4 -q -F", "other size"),
    Layout(GOOD, "mkfs.ext4 -q -F -O bigalloc -C 16384", "hardware"),
    Layout(GOOD, "mkfs.ext4 -q -F -O bigalloc -C 16384", "not offered", "data=journal"),
    Layout(GOOD, "mkfs.ext4 -q -F -b 8192", "hardware"),
    Layout(GOOD, "mkfs.xfs -q -f -m reflink=0", "other size"),
    Layout(GOOD, "mkfs.xfs -q -f -m reflink=0 -b size=8192", "hardware"),
    Layout(GOOD, "mkfs.xfs -q -f -m reflink=1", "hardware"),
    Layout(GOOD, "mkfs.xfs -q -f -m reflink=1 -b size=16384", "other size"),
    Layout(SCSI, "mkfs.ext4 -q -F", "not offered"),
    Layout(SCSI, "mkfs.ext4 -q -F -O bigalloc -C 16384", "hardware"),
    Layout(SCSI, "mkfs.xfs -q -f -m reflink=1", "hardware"),
    Layout(NULL, "mkfs.xfs -q -f -m reflink=1", "software"),
)

# What the kernel says that each device writes atomically, in bytes.  It does not believe a
# controller, which is all that the bad one has: a sector it is then.
LIMITS = {GOOD: (NAWUPF + 1) * 4096, BAD: 4096, NULL: 0}

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp /mnt /bad /clusters; mount -t tmpfs shm /dev/shm; chmod 1777 /dev/shm /tmp
while read module options; do insmod /modules/$module $options; done < /modules/order
for i in $(seq 50); do [ -b /dev/nvme0n1 ] && [ -b /dev/nvme1n1 ] && [ -b /dev/nvme2n1 ] && [ -b /dev/sda ] && break; usleep 100000; done
ln -s sda /dev/scsi
for i in 0 1 2; do ln -s nvme${i}n1 /dev/$(tr -d ' ' < /sys/class/nvme/nvme$i/serial); done
export PATH=/pg/bin:/usr/sbin:/bin LD_LIBRARY_PATH=/pg/lib:/lib HOME=/tmp
stage=$(sed 's/.*stage=\\([a-z]*\\).*/\\1/' /proc/cmdline)
. /stage/$stage
sync
echo "DONE $stage"
poweroff -f
"""

PROBE = """for device in good bad scsi nullb0; do
	echo
	echo "LIMIT $device $(cat /sys/block/$(basename $(readlink -f /dev/$device))/queue/atomic_write_unit_max_bytes)"
done
probe() {
	device=$1 options=$2; shift 2
	"$@" /dev/$device && mount -o $options /dev/$device /mnt || { echo "PROOF mount failed"; return; }
	mkdir -p /mnt/base /mnt/global /mnt/pg_tblspc /mnt/pg_wal; touch /mnt/global/pg_control
	echo
	echo "PROOF $(pg_doublewrite storage --json --no-sync-test /mnt | sed -n 's/.*"atomic_page_proof": *"\\([^"]*\\)".*/\\1/p' | head -1)"
	umount /mnt
}
"""

# Pages are evicted again and again, and checkpoints follow each other.  Commits are
# noted where pages go through the log.  All pages of a table are changed together on a
# file system whose clusters hold two: before other load begins, how many writes that takes
# is counted.
LOAD = """mkfs.xfs -q -f -m reflink=1 /dev/good; mount /dev/good /mnt; chown pg /mnt
mkfs.xfs -q -f -m reflink=1 /dev/bad; mount /dev/bad /bad; chown pg /bad
mkfs.ext4 -q -F -O bigalloc -C 16384 /dev/clusters; mount /dev/clusters /clusters
mkdir /clusters/data; chown pg /clusters/data
su pg -c "initdb -D /mnt/data -N -A trust" >/dev/null
cat >> /mnt/data/postgresql.conf <<X
io_torn_pages_protection = atomic_writes
shared_buffers = 4MB
checkpoint_timeout = 30s
listen_addresses = ''
unix_socket_directories = '/tmp'
X
su pg -c "pg_ctl -D /mnt/data -l /mnt/log -w -t 200 start" >/dev/null
cat > /tmp/acked.sh <<'X'
i=0
while :; do
	i=$((i + 1))
	psql -h /tmp -qAtX postgres -c "INSERT INTO acked VALUES ($i)" && echo "ACKED $i"
done
X
su pg -c "psql -h /tmp -qX postgres" <<'X'
CREATE TABLESPACE bad LOCATION '/bad';
CREATE TABLE acked (i int PRIMARY KEY USING INDEX TABLESPACE bad) TABLESPACE bad;
CREATE TABLESPACE clusters LOCATION '/clusters/data';
CREATE TABLE neighbours (i int, filler text STORAGE PLAIN) TABLESPACE clusters;
INSERT INTO neighbours SELECT i, repeat('x', 6000) FROM generate_series(1, 100) i;
X
su pg -c "psql -h /tmp -qAtX postgres" <<'X'
CREATE EXTENSION amcheck;
CREATE EXTENSION pg_doublewrite_stats;
CHECKPOINT;
SELECT pg_stat_reset_double_writes();
UPDATE neighbours SET i = i;
CHECKPOINT;
SELECT 'COMBINED ' || atomic_pages || ' ' || atomic_writes FROM pg_stat_double_writes;
X
su pg -c 'pgbench -h /tmp -i -s 2 -q postgres' >/dev/null 2>&1
su pg -c 'pgbench -h /tmp -n -c 2 -T 3600 postgres' >/dev/null 2>&1 &
su pg -c 'sh /tmp/acked.sh' &
while :; do
	sleep 5
	su pg -c "psql -h /tmp -qAtX postgres" <<'X'
UPDATE neighbours SET i = i;
SELECT 'UNIT ' || unit_bytes || ' ' || refusals FROM pg_atomic_write_status WHERE tablespace = 'clusters';
SELECT 'STATUS ' || string_agg(tablespace || ' ' || proof || ' ' || coalesce(pages_atomic, 0) || ' ' || coalesce(pages_logged, 0), ', ' ORDER BY tablespace) FROM pg_atomic_write_status;
X
done
"""

CHECK = """mount /dev/good /mnt; mount /dev/bad /bad; mount /dev/clusters /clusters
su pg -c "pg_ctl -D /mnt/data -l /mnt/log2 -w -t 200 start" >/dev/null
grep -a 'double-write log: \\|redo done\\|PANIC\\|invalid page\\|torn page' /mnt/log2
su pg -c "psql -h /tmp -qAtX postgres" <<'X'
SELECT 'FOUND ' || max(i) || ' ' || count(*) FROM acked;
SELECT 'SUMS ' || (SELECT sum(abalance) FROM pgbench_accounts) || ' ' || (SELECT sum(bbalance) FROM pgbench_branches) || ' ' || (SELECT sum(tbalance) FROM pgbench_tellers) || ' ' || (SELECT coalesce(sum(delta), 0) FROM pgbench_history);
X
su pg -c "pg_amcheck -h /tmp --heapallindexed postgres" && echo "AMCHECK clean"
su pg -c "pg_ctl -D /mnt/data -m fast -w -t 200 stop" >/dev/null
su pg -c "pg_checksums --check -D /mnt/data" >/dev/null && echo "CHECKSUMS clean"
umount /mnt /bad /clusters
"""


@dataclass(frozen=True)
class Machine:
    """What a machine is started from."""

    root: Path        # of the system that QEMU and the kernel belong to
    initrd: Path
    disks: tuple


class Run:
    """A machine that runs; its console is read line by line."""

    def __init__(self, machine: Machine, stage: str) -> None:
        self.lines: list[str] = []
        self.console = machine.initrd.with_name(f"console-{stage}.txt")
        self.news = threading.Condition()
        self.process = subprocess.Popen(
            _command(machine, stage), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace")
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with self.console.open("w") as console:
            for line in self.process.stdout:
                console.write(line)
                with self.news:
                    self.lines.append(line.strip())
                    self.news.notify_all()

    def wait_for(self, enough: Callable[..., Any]) -> None:
        """Wait until `enough(lines)`; raises DevError if the machine falls silent."""
        with self.news:
            while not enough(self.lines):
                known = len(self.lines)
                self.news.wait(SILENCE_SECONDS)
                if len(self.lines) == known:
                    raise DevError("the machine says nothing any more", self.tail())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()

    def tail(self) -> str:
        return "\n".join(self.lines[-30:])

    def values(self, word: str) -> list[str]:
        """What stood behind a word at the start of lines."""
        return [line[len(word) + 1:] for line in self.lines if line.startswith(word + " ")]


def check(paths: Paths, bindir: Path) -> int:
    """Run all of it; returns the number of failures."""
    machine = _make(paths, bindir)
    failures = _check_layouts(machine) + _check_crash(machine)
    say("atomic-vm: " + (f"{failures} failed" if failures else "all is well"))
    return failures


def _check_layouts(machine):
    say("what is found on each layout")
    started = Run(machine, "probe")
    try:
        started.wait_for(lambda lines: "DONE probe" in lines)
    finally:
        started.kill()
    failures = 0
    for layout, found in zip(LAYOUTS, started.values("PROOF"), strict=True):
        good = found == layout.proof
        note(f"{layout.device}: {layout.mkfs}, {layout.mount}: {found}"
             + ("" if good else f", expected {layout.proof}"))
        failures += not good
    for device, limit in (line.split() for line in started.values("LIMIT")):
        good = int(limit) == LIMITS.get(device, int(limit))
        note(f"{device}: the device says {limit} bytes" + ("" if good else ", which is wrong"))
        failures += not good
    return failures


def _check_crash(machine, commits=60, seconds=40):
    say("a server in it, which is killed")
    started = Run(machine, "load")
    try:
        started.wait_for(lambda lines: len([x for x in lines if x.startswith("ACKED")]) >= commits)
        deadline = time.monotonic() + seconds
        started.wait_for(lambda lines: time.monotonic() > deadline)
    finally:
        started.kill()
    acked = int(started.values("ACKED")[-1])
    status = started.values("STATUS")[-1]
    pages, writes = map(int, (started.values("COMBINED") or ["0 1"])[0].split())
    note(f"{pages} pages of bigalloc clusters in {writes} atomic writes")
    note(f"{acked} commits were acknowledged; pages written atomically and logged: {status}")

    again = Run(machine, "check")
    try:
        again.wait_for(lambda lines: "DONE check" in lines)
    finally:
        again.kill()
    for line in again.lines:
        if re.search("double-write log:|redo done|PANIC|invalid page|FOUND|SUMS|clean", line):
            note(line)
    found = [int(part) for part in (again.values("FOUND") or ["0 0"])[0].split()]
    sums = (again.values("SUMS") or ["1 2"])[0].split()
    counts = re.search(r"pg_default hardware (\d+) (\d+)", status)
    others = re.search(r"bad software (\d+) (\d+)", status)
    clusters = re.search(r"clusters hardware (\d+) (\d+)", status)
    good = {
        "pages were written atomically, and none of pg_default logged":
            bool(counts) and int(counts[1]) > 0 and int(counts[2]) == 0,
        "the other way round where the device has nothing":
            bool(others) and int(others[1]) == 0 and int(others[2]) > 0,
        "two pages of a bigalloc cluster were one write":
            pages > 1.5 * writes,
        "no such write was refused, and none of these pages logged":
            bool(clusters) and int(clusters[1]) > 0 and int(clusters[2]) == 0
            and started.values("UNIT")[-1] == "16384 0",
        "no acknowledged commit is missing": acked <= found[0] == found[1],
        "sums of pgbench agree": len(set(sums)) == 1,
        "amcheck": "AMCHECK clean" in again.lines,
        "checksums": "CHECKSUMS clean" in again.lines,
    }
    for name, well in good.items():
        note(f"{name}: {'ok' if well else 'FAILED'}")
    if not all(good.values()):
        print(again.tail())
    return sum(not well for well in good.values())


# The machine ---------------------------------------------------------------


def _make(paths, bindir):
    """Make what a machine is started from, below the build root; returns a Machine."""
    directory = paths.root / "atomic-vm"
    directory.mkdir(exist_ok=True)
    root = _system(directory)
    initrd = _initrd(directory, root, bindir.parent)
    disks = []
    for name in ("bad", "clusters", "good"):
        disk = directory / f"{name}.img"
        disk.unlink(missing_ok=True)
        with disk.open("wb") as opened:
            opened.truncate(DISK_MB << 20)
        disks.append(disk)
    return Machine(root, initrd, tuple(disks))


def _system(directory):
    """Make the system that has QEMU and a kernel, on first use."""
    root = directory / "system"
    if root.is_dir():
        return root
    unfinished = directory / "system.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    say(f"getting QEMU and a kernel of {SUITE}")
    run(["unshare", "--mount", "--propagation", "slave",
         "mmdebstrap", "--mode=root", "--variant=minbase", "--quiet",
         *(f"--aptopt={option}" for option in chroot.APT_OPTIONS),
         "--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/locale/*",
         "--include=" + ",".join(INCLUDED), SUITE, unfinished, apt.machine_archives()[0].uri])
    return unfinished.rename(root)


def _initrd(directory, root, install):
    """Pack our build, the host's tools and the kernel's modules; returns the archive."""
    tree = directory / "initrd"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "dev", "etc", "lib", "lib64", "mnt", "modules", "pg/bin", "pg/lib",
                 "proc", "stage", "sys", "tmp", "usr/sbin"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "usr/bin/busybox", tree / "bin/busybox")
    programs = [install / "bin" / name for name in PROGRAMS]
    for program in programs:
        shutil.copy(program, tree / "pg/bin")
    library = Path(output([install / "bin/pg_config", "--pkglibdir"]))
    modules = [library / name for name in LIBRARIES]
    target = tree / "pg" / library.relative_to(install)
    target.mkdir(parents=True, exist_ok=True)
    for module in modules:
        shutil.copy(module, target)
    shutil.copytree(output([install / "bin/pg_config", "--sharedir"]),
                    tree / "pg" / Path(output([install / "bin/pg_config", "--sharedir"])
                                       ).relative_to(install), dirs_exist_ok=True)
    for program in MKFS:
        shutil.copy(program, tree / "usr/sbin")
    for path in _shared_libraries([*programs, *modules, *MKFS]):
        target = tree / ("lib64" if path.name.startswith("ld-linux") else "lib") / path.name
        shutil.copy(path, target)
    for path in [*(tree / "pg").rglob("*.so*"), *(tree / "pg/bin").iterdir()]:
        run(["strip", path], check=False, capture=True)
    _add_modules(tree / "modules", root)
    (tree / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\npg:x:1000:1000::/tmp:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\npg:x:1000:\n")
    probes = PROBE + "".join(f"probe {layout.device} {layout.mount} {layout.mkfs}\n"
                             for layout in LAYOUTS)
    for name, script in (("probe", probes), ("load", LOAD), ("check", CHECK)):
        (tree / "stage" / name).write_text(script)
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    archive = directory / "initrd.img"
    with archive.open("wb") as opened:
        names = subprocess.Popen(["find", ".", "-print0"], cwd=tree, stdout=subprocess.PIPE)
        subprocess.run(["cpio", "--null", "--create", "--format=newc", "--quiet", "--owner=0:0"],
                       cwd=tree, stdin=names.stdout, stdout=opened, check=True)
        names.wait()
    return archive


def _shared_libraries(programs):
    """Return the libraries that programs need."""
    found = set()
    for program in programs:
        found.update(re.findall(r"(/\S+) \(0x", output(["ldd", program])))
    return sorted(map(Path, found))


def _add_modules(target, root):
    """Unpack MODULES and what they depend on, in the order in which they are loaded."""
    base = next((root / "usr/lib/modules").iterdir())
    needs = {}
    for line in (base / "modules.dep").read_text().splitlines():
        name, _, others = line.partition(":")
        needs[Path(name).name.partition(".")[0]] = (name, others.split())
    order, options = [], {}

    def add(path):
        plain = Path(path).name.removesuffix(".xz")
        if plain in order:
            return
        for other in reversed(needs[plain.removesuffix(".ko")][1]):
            add(other)
        data = (base / path).read_bytes()
        (target / plain).write_bytes(lzma.decompress(data) if path.endswith(".xz") else data)
        order.append(plain)
        options[plain] = MODULES.get(plain.removesuffix(".ko"), "")

    for name in MODULES:
        if name in needs:        # else it is in the kernel
            add(needs[name][0])
    (target / "order").write_text("".join(f"{name} {options[name]}\n" for name in order))


def _command(machine, stage):
    kernel = next((machine.root / "boot").glob("vmlinuz-*"))
    shared = Path("/machine")
    bad, clusters, good = (shared / disk.name for disk in machine.disks)
    qemu = ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
            "-smp", "2", "-m", str(MEMORY_MB), "-nographic", "-no-reboot", "-nic", "none",
            "-kernel", Path("/boot") / kernel.name, "-initrd", shared / machine.initrd.name,
            "-append", f"console=ttyS0 quiet panic=-1 no_timer_check stage={stage}",
            "-drive", f"file={bad},if=none,id=bad,format=raw",
            "-drive", f"file={good},if=none,id=good,format=raw",
            "-drive", f"file={clusters},if=none,id=clusters,format=raw",
            "-device", f"nvme,id=nvme0,serial=bad,atomic.dn=off,atomic.awun={NAWUPF},"
                       f"atomic.awupf={NAWUPF}",
            "-device", "nvme-ns,drive=bad,bus=nvme0,logical_block_size=4096,"
                       "physical_block_size=4096",
            "-device", "nvme,id=nvme1,serial=good",
            "-device", "nvme-ns,drive=good,bus=nvme1,logical_block_size=4096,"
                       f"physical_block_size=4096,atomic.nawun={NAWUPF},atomic.nawupf={NAWUPF}",
            "-device", "nvme,id=nvme2,serial=clusters",
            "-device", "nvme-ns,drive=clusters,bus=nvme2,logical_block_size=4096,"
                       f"physical_block_size=4096,atomic.nawun={NAWUPF},atomic.nawupf={NAWUPF}"]
    script = ('mkdir -p "$1/machine" && mount --bind "$2" "$1/machine" && '
              'mount -t proc proc "$1/proc" && root=$1 && shift 2 && exec chroot "$root" "$@"')
    return ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
            "sh", "-c", script, "sh", str(machine.root), str(machine.initrd.parent),
            *map(str, qemu)]
