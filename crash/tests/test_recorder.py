"""The recorder against a model in memory: is a recording what really happened?

Threads play random histories on a recorded mount, and each keeps a model of
its own files.  At the end four trees must be the same: the models, what the
mount shows, the backing directory, and the base with ops.bin replayed.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from pgcut import mount
from pgcut.disk import Choice, Disk
from pgcut.mount import recorded, set_fault
from pgcut.recording import ROOT_INO, SYNC_DIRECTORY, WRITE_ATOMIC, Kind, Recording
from recorder_binary import SCRATCH, recorder_binary

PAGE = 4096
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
SYNC_MS = 3

# A limit, not a measure: a machine may be busy.
SECONDS = 120
NS_PER_MS = 1_000_000


def libc_fallocate(fd, mode, offset, length):
    """fallocate(2) with a mode, which the standard library does not have."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def tree_of(root):
    """Return {path: content}: bytes, None for a directory, ("link", target)."""
    tree = {}
    for directory, subdirectories, files in os.walk(root):
        for name in subdirectories + files:
            path = os.path.join(directory, name)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                tree[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                tree[key] = None
            else:
                tree[key] = Path(path).read_bytes()
    return tree


class Replay:
    """The base with all operations of a recording applied, in memory."""

    def __init__(self, recording):
        self.recording = recording
        self.content = {ROOT_INO: None}
        self.names = {}
        by_path = {"": ROOT_INO}
        for entry in recording.entries:
            if not entry.path:
                continue
            parent, _, name = entry.path.rpartition("/")
            path = recording.base / entry.path
            by_path[entry.path] = entry.ino
            self.names[by_path[parent], name] = entry.ino
            self.content[entry.ino] = {
                "d": lambda: None, "l": lambda: ("link", os.readlink(path)),
                "f": lambda: bytearray(path.read_bytes())}[entry.type]()
        for op in recording.ops:
            getattr(self, "do_" + Kind(op.kind).name.lower())(op)

    def tree(self):
        return dict(self._below(ROOT_INO, ""))

    def _below(self, directory, prefix):
        for (parent, name), ino in self.names.items():
            if parent == directory:
                content = self.content[ino]
                yield prefix + name, bytes(content) if isinstance(content, bytearray) else content
                yield from self._below(ino, f"{prefix}{name}/")

    def _new(self, op, content):
        assert op.ino not in self.content, "an inode number came twice"
        assert (op.a, op.name) not in self.names
        self.content[op.ino] = content
        self.names[op.a, op.name] = op.ino

    def do_create(self, op):
        self._new(op, bytearray())

    def do_mkdir(self, op):
        self._new(op, None)

    def do_symlink(self, op):
        self._new(op, ("link", op.target))

    def do_link(self, op):
        assert (op.a, op.name) not in self.names
        self.names[op.a, op.name] = op.ino

    def do_unlink(self, op):
        assert self.names.pop((op.a, op.name)) == op.ino

    do_rmdir = do_unlink

    def do_rename(self, op):
        assert self.names.pop((op.a, op.name)) == op.ino
        assert bool(op.flags & 1) == ((op.b, op.target) in self.names)
        self.names[op.b, op.target] = op.ino

    def _extend(self, ino, size):
        content = self.content[ino]
        content.extend(bytes(max(0, size - len(content))))
        return content

    def do_write(self, op):
        content = self._extend(op.ino, op.a + op.length)
        content[op.a:op.a + op.length] = self.recording.data(op)

    def do_truncate(self, op):
        del self.content[op.ino][op.a:]
        self._extend(op.ino, op.a)

    def do_fallocate(self, op):
        if not op.flags & FALLOC_KEEP_SIZE:
            self._extend(op.ino, op.a + op.b)
        if op.flags & FALLOC_PUNCH_HOLE:
            content = self.content[op.ino]
            end = min(op.a + op.b, len(content))
            content[op.a:end] = bytes(max(0, end - op.a))

    def do_sync(self, op):
        pass

    do_syncfailed = do_fault = do_sync


def pieces_by_mark(recording, marks):
    """Return {mark: the operations of that write}.

    The kernel splits a write at a page boundary when the next page of the
    caller's memory is not resident.
    """
    writes, by_ino = {}, {}
    for op in recording.ops:
        if op.kind == Kind.WRITE:
            by_ino.setdefault(op.ino, []).append(op)
    for ops in by_ino.values():
        last = None
        for op, following in zip(ops, ops[1:] + ops[:1]):
            mark = bytes(recording.data(op) + recording.data(following))[:16]
            if mark in marks:
                last = writes[mark] = [op]
            elif last and (last[-1].b, last[-1].a + last[-1].length) == (op.b, op.a):
                last.append(op)
            else:
                last = None         # of another thread
    return writes


class Node:
    """A file of the model: what is in it, and its open descriptor."""

    def __init__(self, ino, fd):
        self.ino = ino
        self.fd = fd
        self.direct = None          # a second descriptor, with O_DIRECT
        self.content = bytearray()


class Player(threading.Thread):
    """Plays a random history below a directory of its own."""

    def __init__(self, root, number, seed, steps):
        super().__init__(name=f"player-{number}")
        self.root = root
        self.number = number
        self.directory = f"own{number}"
        self.random = random.Random(f"{seed}/{number}")
        self.steps = steps
        self.model = {self.directory: None}
        self.unlinked = []          # files that have no name but are open
        self.marks = {}             # mark of a write -> (before, after) in ns
        self.syncs = []             # (ino, before, after, marks before it)
        self.own_marks = {}         # ino -> marks of finished writes
        self.error = None

    def run(self):
        try:
            os.mkdir(self.path(self.directory))
            for _ in range(self.steps):
                getattr(self, "act_" + self.random.choice(self.ACTIONS))()
        except Exception as error:          # reported by the test
            self.error = error
        finally:
            for node in {*self.files().values(), *self.unlinked}:
                os.close(node.fd)
                if node.direct is not None:
                    os.close(node.direct)

    ACTIONS = (["write"] * 12 + ["append"] * 4 + ["direct"] * 4 + ["vector"] * 4 + ["sync"] * 6 +
               ["create"] * 5 + ["rename"] * 4 + ["unlink"] * 3 + ["truncate"] * 3 +
               ["allocate"] * 3 + ["mkdir", "rmdir", "symlink", "link", "sync_directory",
                                   "reopen", "read", "odsync", "trunc_open"])

    # Helpers

    def path(self, name):
        return os.path.join(self.root, name)

    def files(self):
        return {name: node for name, node in self.model.items() if isinstance(node, Node)}

    def directories(self):
        return [name for name, node in self.model.items() if node is None]

    def new_name(self):
        return f"{self.random.choice(self.directories())}/n{self.random.randrange(40)}"

    def some_file(self):
        """Return an open file, at times one that has no name any more."""
        nodes = list(self.files().values()) + self.unlinked[-2:]
        return self.random.choice(nodes) if nodes else None

    def one_named(self):
        """Return [(name, node)] of one file that has a name, or []."""
        files = sorted(self.files().items(), key=lambda item: item[0])
        return [self.random.choice(files)] if files else []

    def bytes_with_mark(self, length):
        """Return random bytes that begin with a mark found nowhere else."""
        mark = self.random.randbytes(16)
        return mark, mark + self.random.randbytes(max(0, length - 16))

    def write(self, node, offset, length, how):
        mark, data = self.bytes_with_mark(length)
        before = time.monotonic_ns()
        assert how(data) == len(data)
        self.marks[mark] = (before, time.monotonic_ns())
        self.own_marks.setdefault(node.ino, []).append(mark)
        end = offset + len(data)
        node.content.extend(bytes(max(0, end - len(node.content))))
        node.content[offset:end] = data

    # Actions

    def act_write(self):
        node = self.some_file()
        if node:
            offset = self.random.choice((self.random.randrange(100_000),
                                         self.random.randrange(12) * 8192))
            length = self.random.choice((16, 100, 512, 8192, 8192, 20_000))
            self.write(node, offset, length, lambda data: os.pwrite(node.fd, data, offset))

    def act_append(self):
        for name, node in self.one_named():
            fd = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)
            self.write(node, len(node.content), self.random.randrange(16, 5000),
                       lambda data: os.write(fd, data))
            os.close(fd)

    def act_direct(self):
        for name, node in self.one_named():
            if node.direct is None:
                node.direct = os.open(self.path(name), os.O_RDWR | os.O_DIRECT)
            length = self.random.choice((1, 2, 32)) * PAGE
            offset = self.random.randrange(20) * PAGE
            with mmap.mmap(-1, length) as aligned:
                def how(data):
                    aligned[:] = data
                    return os.pwrite(node.direct, aligned, offset)
                self.write(node, offset, length, how)

    def act_vector(self):
        """A vectored write of whole pages, as the server combines its writes."""
        node = self.some_file()
        if node:
            pages = self.random.choice((2, 4, 16))
            offset = self.random.randrange(12) * 8192
            self.write(node, offset, pages * 8192, lambda data: os.pwritev(
                node.fd, [data[i:i + 8192] for i in range(0, len(data), 8192)], offset))

    def act_odsync(self):
        for name, node in self.one_named():
            fd = os.open(self.path(name), os.O_WRONLY | os.O_DSYNC)
            before = time.monotonic_ns()
            self.write(node, 0, 8192, lambda data: os.pwrite(fd, data, 0))
            self.syncs.append((node.ino, before, time.monotonic_ns(),
                               list(self.own_marks[node.ino])))
            os.close(fd)

    def act_sync(self):
        node = self.some_file()
        if node:
            marks = list(self.own_marks.get(node.ino, ()))
            before = time.monotonic_ns()
            self.random.choice((os.fsync, os.fdatasync))(node.fd)
            self.syncs.append((node.ino, before, time.monotonic_ns(), marks))

    def act_sync_directory(self):
        fd = os.open(self.path(self.random.choice(self.directories())), os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def act_create(self):
        name = self.new_name()
        if name not in self.model:
            fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self.model[name] = Node(os.fstat(fd).st_ino, fd)

    def act_trunc_open(self):
        for name, node in self.one_named():
            os.close(os.open(self.path(name), os.O_WRONLY | os.O_TRUNC))
            node.content.clear()

    def act_reopen(self):
        for name, node in self.one_named():
            os.close(node.fd)
            node.fd = os.open(self.path(name), os.O_RDWR)

    def act_read(self):
        node = self.some_file()
        if node:
            size = os.fstat(node.fd).st_size
            assert size == len(node.content) == os.lseek(node.fd, 0, os.SEEK_END)
            assert os.pread(node.fd, size + 1, 0) == node.content

    def drop(self, node):
        """A name of a file has gone: was it the last one?"""
        if isinstance(node, Node) and node not in self.model.values():
            self.unlinked.append(node)

    def act_rename(self):
        names = sorted(name for name, node in self.model.items() if node is not None)
        if not names:
            return
        old, new = self.random.choice(names), self.new_name()
        if self.model.get(new, 0) is None:
            return
        os.rename(self.path(old), self.path(new))
        if old != new and self.model[old] is not self.model.get(new):
            replaced = self.model.get(new)
            self.model[new] = self.model.pop(old)
            self.drop(replaced)

    def act_unlink(self):
        names = sorted(name for name, node in self.model.items() if node is not None)
        if names:
            name = self.random.choice(names)
            os.unlink(self.path(name))
            self.drop(self.model.pop(name))

    def act_truncate(self):
        node = self.some_file()
        if node:
            size = self.random.randrange(120_000)
            os.ftruncate(node.fd, size)
            del node.content[size:]
            node.content.extend(bytes(size - len(node.content)))

    def act_allocate(self):
        node = self.some_file()
        if node:
            offset, length = self.random.randrange(20) * PAGE, self.random.randrange(1, 9) * PAGE
            how = self.random.choice(("extend", "keep", "punch"))
            if how == "extend":
                os.posix_fallocate(node.fd, offset, length)
                node.content.extend(bytes(max(0, offset + length - len(node.content))))
            elif how == "keep":
                libc_fallocate(node.fd, FALLOC_KEEP_SIZE, offset, length)
            else:
                libc_fallocate(node.fd, FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE, offset, length)
                end = min(offset + length, len(node.content))
                node.content[offset:end] = bytes(max(0, end - offset))

    def act_mkdir(self):
        name = self.new_name()
        if name not in self.model and len(self.directories()) < 5:
            os.mkdir(self.path(name), 0o700)
            self.model[name] = None

    def act_rmdir(self):
        empty = [d for d in self.directories() if d != self.directory and
                 not any(name.startswith(d + "/") for name in self.model)]
        if empty:
            os.rmdir(self.path(empty[0]))
            del self.model[empty[0]]

    def act_symlink(self):
        name = self.new_name()
        if name not in self.model:
            os.symlink(f"to/{name}", self.path(name))
            self.model[name] = ("link", f"to/{name}")

    def act_link(self):
        new = self.new_name()
        files = self.files()
        if files and new not in self.model:
            old = self.random.choice(sorted(files))
            os.link(self.path(old), self.path(new))
            self.model[new] = files[old]


class RecorderCase(unittest.TestCase):
    """A scratch directory with a base, and a way to record on it."""

    @classmethod
    def setUpClass(cls):
        cls.recorder = recorder_binary()

    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="pgcut-test-", dir=SCRATCH))
        self.addCleanup(shutil.rmtree, self.scratch)
        self.log = self.scratch / "recording"
        self.base = self.log / "base"
        self.base.mkdir(parents=True)

    def record(self, **options):
        return recorded(self.recorder, self.base, self.log, **options)

    def operations(self, *kinds):
        return [op for op in Recording(self.log).ops if op.kind in kinds]


class HistoryTest(RecorderCase):
    """Random histories of several threads."""

    THREADS = 4
    STEPS = 350

    def setUp(self):
        super().setUp()
        (self.base / "old").mkdir()
        (self.base / "old/file").write_bytes(b"old" * 5000)
        os.link(self.base / "old/file", self.base / "second name")
        os.symlink("old/file", self.base / "link")

    def play(self, seed):
        """Record a history; returns the players and the trees at its end."""
        with self.record(seed=seed, sync_delay_us=(0, 1000 * SYNC_MS)) as mountpoint:
            players = [Player(mountpoint, number, seed, self.STEPS)
                       for number in range(self.THREADS)]
            for player in players:
                player.start()
            for player in players:
                player.join()
            seen, backing = tree_of(mountpoint), tree_of(self.log / "backing")
        for player in players:
            if player.error:
                raise player.error
        return players, seen, backing

    def test_histories(self):
        seed = int(os.environ.get("PGCUT_TEST_SEED", 1))
        for round_ in range(int(os.environ.get("PGCUT_TEST_ROUNDS", 2))):
            with self.subTest(seed=seed + round_):
                if round_:
                    shutil.rmtree(self.log)
                    HistoryTest.setUp(self)
                players, seen, backing = self.play(seed + round_)
                recording = Recording(self.log)
                self.check_trees(players, seen, backing, recording)
                self.check_order(recording)
                for player in players:
                    self.check_stamps(player, recording)

    def check_trees(self, players, seen, backing, recording):
        model = tree_of(self.base)
        for player in players:
            for name, node in player.model.items():
                model[name] = bytes(node.content) if isinstance(node, Node) else node
        self.assert_same_tree(seen, model)
        self.assert_same_tree(backing, model)
        replay = Replay(recording)
        self.assert_same_tree(replay.tree(), model)
        for node in (node for player in players for node in player.unlinked):
            self.assertEqual(replay.content[node.ino], node.content)
        disk = Disk(recording)
        disk.advance(len(recording.ops))
        kept = {path: ("link", os.fsdecode(content)) if kind == "l" else
                content if content is None else bytes(content)
                for path, kind, content in disk.tree(Choice())}
        self.assert_same_tree(kept, model)

    def assert_same_tree(self, tree, expected):
        self.assertEqual(sorted(tree), sorted(expected))
        for path, content in expected.items():
            self.assertTrue(tree[path] == content, f"content of {path} differs")

    def check_order(self, recording):
        """Numbers without gaps, times that never go back, no sync of the future."""
        previous = 0
        for number, op in enumerate(recording.ops, 1):
            self.assertEqual(op.seq, number)
            self.assertLess(op.begin, op.seq)
            self.assertGreaterEqual(op.time, previous)
            previous = op.time

    def check_stamps(self, player, recording):
        """Times lie within the calls, and a sync covers the writes before it."""
        writes = pieces_by_mark(recording, player.marks)
        self.assertEqual(set(writes), set(player.marks))
        for mark, (before, after) in player.marks.items():
            self.assertTrue(before <= writes[mark][0].time <= writes[mark][-1].time <= after)
        syncs = {}
        for op in recording.ops:
            if op.kind == Kind.SYNC and not op.flags & SYNC_DIRECTORY:
                syncs.setdefault(op.ino, []).append(op)
        for ino, before, after, marks in player.syncs:
            op = syncs[ino].pop(0)
            self.assertTrue(before <= op.time <= after)
            for mark in marks:
                self.assertGreaterEqual(op.begin, writes[mark][-1].seq)


class SyncTest(RecorderCase):
    """What a sync may claim."""

    DELAY_MS = 10

    def test_claims_nothing_that_came_during_it(self):
        """All that a sync claims took effect at least its delay before its end."""
        delay = self.DELAY_MS * 1000
        with self.record(sync_delay_us=(delay, delay)) as mountpoint:
            files = [os.open(mountpoint / f"f{i}", os.O_RDWR | os.O_CREAT) for i in range(2)]
            stop = threading.Event()

            def writer(seed):
                rng = random.Random(seed)
                while not stop.is_set():
                    os.pwrite(rng.choice(files), rng.randbytes(8192), rng.randrange(8) * 8192)

            threads = [threading.Thread(target=writer, args=(seed,)) for seed in range(2)]
            for thread in threads:
                thread.start()
            for i in range(30):
                os.fsync(files[i % 2])
            stop.set()
            for thread in threads:
                thread.join()
            for fd in files:
                os.close(fd)
        ops = Recording(self.log).ops
        overlapped = 0
        for sync in (op for op in ops if op.kind == Kind.SYNC):
            overlapped += sync.seq - 1 - sync.begin
            if sync.begin:
                self.assertLessEqual(ops[sync.begin - 1].time,
                                     sync.time - self.DELAY_MS * NS_PER_MS)
        self.assertGreater(overlapped, 0)

    def test_kinds_of_syncs(self):
        with self.record() as mountpoint:
            os.mkdir(mountpoint / "d")
            fd = os.open(mountpoint / "d/f", os.O_RDWR | os.O_CREAT)
            directory = os.open(mountpoint / "d", os.O_RDONLY)
            os.fsync(fd)
            os.fdatasync(fd)
            os.fsync(directory)
            inos = os.fstat(fd).st_ino, os.fstat(directory).st_ino
            os.close(fd)
            os.close(directory)
        syncs = self.operations(Kind.SYNC)
        self.assertEqual([(op.ino, op.flags) for op in syncs],
                         [(inos[0], 0), (inos[0], 1), (inos[1], SYNC_DIRECTORY)])


class OperationTest(RecorderCase):
    """Single operations whose form matters."""

    def test_combined_write_is_one_operation(self):
        """128 kB from resident memory, by page cache and directly."""
        with self.record() as mountpoint, mmap.mmap(-1, 131072) as memory:
            memory[:] = random.Random(1).randbytes(131072)
            for flags in (0, os.O_DIRECT):
                fd = os.open(mountpoint / f"f{flags}", os.O_RDWR | os.O_CREAT | flags)
                with memoryview(memory) as view:
                    parts = [view[i:i + 8192] for i in range(0, 131072, 8192)]
                    self.assertEqual(os.pwritev(fd, parts, 8192), 131072)
                    for part in parts:
                        part.release()
                os.close(fd)
        self.assertEqual([(op.a, op.length) for op in self.operations(Kind.WRITE)],
                         [(8192, 131072)] * 2)

    def test_shared_memory_stores_are_seen_at_msync(self):
        with self.record() as mountpoint:
            fd = os.open(mountpoint / "f", os.O_RDWR | os.O_CREAT)
            os.ftruncate(fd, PAGE)
            with mmap.mmap(fd, PAGE) as memory:
                memory[:5] = b"hello"
                memory.flush()
            os.fsync(fd)
            os.close(fd)
        recording = Recording(self.log)
        self.assertEqual(Replay(recording).tree()["f"], b"hello" + bytes(PAGE - 5))

    def test_new_files_belong_to_the_caller(self):
        self.base.chmod(0o777)
        with self.record() as mountpoint:
            subprocess.run(["chmod", "755", str(self.scratch), str(self.log)], check=True)
            subprocess.run(
                ["/usr/bin/python3", "-c",
                 "import os; os.umask(0o027); open('f', 'w'); os.mkdir('d'); os.symlink('f', 'l')"],
                cwd=mountpoint, check=True, user=12345, group=23456, extra_groups=[])
            for name, mode in (("f", 0o640), ("d", 0o750), ("l", 0o777)):
                status = os.lstat(mountpoint / name)
                self.assertEqual((status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)),
                                 (12345, 23456, mode))
            os.chmod(mountpoint / "f", 0o600)
            os.chown(mountpoint / "f", 1, 2)
            os.utime(mountpoint / "f", ns=(10**18, 2 * 10**18))
            status = os.stat(mountpoint / "f")
            self.assertEqual((status.st_mode & 0o777, status.st_uid, status.st_gid,
                              status.st_mtime_ns), (0o600, 1, 2, 2 * 10**18))

    def test_link_counts_stay_right(self):
        with self.record() as mountpoint:
            (mountpoint / "a").write_bytes(b"x")
            os.link(mountpoint / "a", mountpoint / "b")
            self.assertEqual(os.stat(mountpoint / "a").st_nlink, 2)
            os.unlink(mountpoint / "a")
            self.assertEqual(os.stat(mountpoint / "b").st_nlink, 1)
            (mountpoint / "c").write_bytes(b"y")
            os.link(mountpoint / "b", mountpoint / "d")
            os.rename(mountpoint / "c", mountpoint / "b")
            self.assertEqual(os.stat(mountpoint / "d").st_nlink, 1)
            self.assertEqual((mountpoint / "d").read_bytes(), b"x")
            with self.assertRaises(FileExistsError):
                os.link(mountpoint / "b", mountpoint / "d")

    def test_number_and_flush(self):
        with self.record() as mountpoint:
            (mountpoint / "f").write_bytes(b"x" * 100)
            names = os.listxattr(mountpoint)
            self.assertIn("user.pgcut.seq=2", names)
            os.setxattr(mountpoint, "user.pgcut.flush", b"1")
            self.assertEqual(len(Recording(self.log).ops), 2)

    def test_socket_is_served_but_not_recorded(self):
        with self.record() as mountpoint:
            os.mknod(mountpoint / "s", stat.S_IFSOCK | 0o600)
            os.rename(mountpoint / "s", mountpoint / "t")
            os.unlink(mountpoint / "t")
            (mountpoint / "f").touch()
        self.assertEqual([op.kind for op in Recording(self.log).ops], [Kind.CREATE])

    def test_split_reads_are_torn_and_others_not(self):
        (self.base / "base/1").mkdir(parents=True)
        for name in ("base/1/1259", "base/1/other"):
            (self.base / name).write_bytes(bytes(8192))
        with self.record(options=("--split-reads",)) as mountpoint:
            torn = {name: self.torn_reads(mountpoint / name)
                    for name in ("base/1/1259", "base/1/other")}
        self.assertGreater(torn["base/1/1259"], 0)
        self.assertEqual(torn["base/1/other"], 0)

    def torn_reads(self, path):
        """Return how many reads of a page, beside a writer, were mixed."""
        stop = threading.Event()
        fd = os.open(path, os.O_RDWR)

        def writer():
            number = 0
            while not stop.is_set():
                number = (number + 1) % 256
                os.pwrite(fd, bytes([number]) * 8192, 0)

        thread = threading.Thread(target=writer)
        thread.start()
        torn = 0
        reader = os.open(path, os.O_RDONLY)
        for _ in range(30):
            page = os.pread(reader, 8192, 0)
            torn += len(set(page)) > 1
            for at in range(0, 8192, 512):
                self.assertEqual(len(set(page[at:at + 512])), 1, "a sector was torn")
        stop.set()
        thread.join()
        os.close(reader)
        os.close(fd)
        return torn


class FaultTest(RecorderCase):
    """Each kind of fault, once."""

    def fault(self, rule):
        os.setxattr(self.mountpoint, "user.pgcut.fault", rule.encode())

    def assert_fails(self, code, call, *args):
        with self.assertRaises(OSError) as caught:
            call(*args)
        self.assertEqual(caught.exception.errno, code)

    def test_each_kind(self):
        with self.record() as self.mountpoint:
            path = self.mountpoint / "d/file"
            path.parent.mkdir()
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            number = os.fstat(fd).st_ino
            directory = os.stat(path.parent).st_ino
            cases = (
                ("write", errno.EIO, Kind.WRITE, lambda: os.pwrite(fd, b"x" * 600, 0)),
                ("sync", errno.EIO, None, lambda: os.fsync(fd)),
                ("fallocate", errno.ENOSPC, Kind.FALLOCATE,
                 lambda: os.posix_fallocate(fd, 0, 8192)),
                ("truncate", errno.EIO, Kind.TRUNCATE, lambda: os.ftruncate(fd, 7)),
                ("create", errno.ENOSPC, Kind.CREATE,
                 lambda: os.close(os.open(f"{path}2", os.O_CREAT | os.O_WRONLY))),
                ("rename", errno.EACCES, Kind.RENAME, lambda: os.rename(path, f"{path}3")),
                ("unlink", errno.EROFS, Kind.UNLINK, lambda: os.unlink(f"{path}3")),
            )
            for what, code, _, call in cases:
                self.fault(f"{what}:d/file:0:1:{code}")
                self.assert_fails(code, call)
                call()
            self.fault("shortwrite:d/file:0:1:0")
            self.assertEqual(os.pwrite(fd, b"y" * 2048, 0), 1024)
            self.assertEqual(os.pwrite(fd, b"z" * 2048, 8192), 2048)
            self.fault("hold:d/file:0:1:300")
            started = time.monotonic()
            os.ftruncate(fd, 4096)
            self.assertGreaterEqual(time.monotonic() - started, 0.3)
            os.close(fd)
        ops = Recording(self.log).ops
        self.assertEqual([(op.a, op.b) for op in ops if op.kind == Kind.FAULT],
                         [(code, kind) for _, code, kind, _ in cases if kind])
        self.assertEqual({op.ino for op in ops if op.kind == Kind.FAULT}, {number, directory})
        failed = [op for op in ops if op.kind == Kind.SYNCFAILED]
        self.assertEqual([(op.ino, op.a) for op in failed], [(number, errno.EIO)])
        writes = [op for op in ops if op.kind == Kind.WRITE]
        self.assertEqual([(op.length, op.flags) for op in writes],
                         [(600, 0), (1024, 1), (2048, 0)])

    def test_atomic_writes_are_marked(self):
        """Only where the flags say so, for 2^n aligned pages; they never fail in part."""
        cases = ((0, 1, 1, 0), (os.O_NOATIME, 1, 1, WRITE_ATOMIC), (os.O_NOATIME, 4, 4, WRITE_ATOMIC),
                 (os.O_NOATIME, 1, 2, 0), (os.O_NOATIME, 0, 3, 0))
        with self.record() as self.mountpoint, mmap.mmap(-1, 131072) as memory:
            fd = os.open(self.mountpoint / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            with memoryview(memory) as view:
                for extra, first, pages, _ in cases:
                    fcntl.fcntl(fd, fcntl.F_SETFL, flags | extra)
                    with view[:pages * 8192] as part:
                        os.pwritev(fd, [part], first * 8192)
                fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NOATIME)
                self.fault(f"tornwrite:file:0:1:{errno.EIO}")
                with view[:8192] as part:
                    self.assert_fails(errno.EIO, os.pwritev, fd, [part], 0)
            os.close(fd)
            fd = os.open(self.mountpoint / "file", os.O_RDWR | os.O_NOATIME)
            os.pwrite(fd, b"x" * 8192, 0)
            os.close(fd)
        self.assertEqual([op.flags for op in Recording(self.log).ops if op.kind == Kind.WRITE],
                         [case[3] for case in cases] + [0])

    def test_write_that_fails_in_part(self):
        with self.record() as self.mountpoint:
            fd = os.open(self.mountpoint / "file", os.O_RDWR | os.O_CREAT)
            os.write(fd, b"o" * 65536)
            self.fault(f"tornwrite:file:0:1:{errno.EIO}")
            self.assert_fails(errno.EIO, os.pwrite, fd, b"n" * 65536, 0)
            found = os.pread(fd, 65536, 0)
            os.close(fd)
        sectors = [found[at:at + 512] for at in range(0, 65536, 512)]
        self.assertEqual(set(sectors), {b"o" * 512, b"n" * 512})
        expected = bytearray(b"o" * 65536)
        recording = Recording(self.log)
        for op in recording.ops:
            if op.kind == Kind.WRITE and op.flags:
                expected[op.a:op.a + op.length] = recording.data(op)
        self.assertEqual(bytes(expected), found)

    def test_reads_and_syncs_of_directories(self):
        with self.record() as self.mountpoint:
            (self.mountpoint / "file").write_bytes(b"x" * 8192)
            directory = os.open(self.mountpoint, os.O_RDONLY)
            fd = os.open(self.mountpoint / "file", os.O_RDONLY | os.O_DIRECT)
            buffer = mmap.mmap(-1, 8192)
            self.fault(f"read:file:0:1:{errno.EIO}")
            self.assert_fails(errno.EIO, os.preadv, fd, [buffer], 0)
            self.assertEqual(os.preadv(fd, [buffer], 0), 8192)
            self.fault(f"syncdir::0:1:{errno.EIO}")
            os.fsync(fd)
            self.assert_fails(errno.EIO, os.fsync, directory)
            os.fsync(directory)
            os.close(fd)
            os.close(directory)
        failed = [op for op in Recording(self.log).ops if op.kind == Kind.SYNCFAILED]
        self.assertEqual([op.flags & SYNC_DIRECTORY for op in failed], [SYNC_DIRECTORY])

    def test_quota(self):
        """Nothing grows, and nothing is made; what is there can be written over."""
        with self.record() as self.mountpoint:
            path, new = self.mountpoint / "file", self.mountpoint / "new"
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.write(fd, b"x" * 8192)
            self.fault(f"grow::0:1000:{errno.EDQUOT}")
            os.pwrite(fd, b"y" * 8192, 0)
            for call in (lambda: os.pwrite(fd, b"z", 8192), lambda: os.posix_fallocate(fd, 0, 8193),
                         new.touch, new.mkdir, lambda: new.symlink_to("file"),
                         lambda: os.link(path, new)):
                self.assert_fails(errno.EDQUOT, call)
            os.ftruncate(fd, 100)
            os.close(fd)
            os.rename(path, new)
            os.unlink(new)
            self.fault("clear")
            path.touch()

    def test_freeze(self):
        """Changes, or syncs, of some files do not return until rules are cleared; others do."""
        with self.record() as self.mountpoint, contextlib.ExitStack() as opened:
            cold = self.mountpoint / "cold"
            cold.mkdir()
            for name in ("old", "here"):
                (cold / name).write_bytes(b"x" * 8192)
            fd = opened.enter_context(open(cold / "old", "r+b", buffering=0)).fileno()
            changes = (lambda: os.pwrite(fd, b"y" * 8192, 0), (cold / "new").mkdir,
                       lambda: os.rename(cold / "here", cold / "there"))
            for rule, calls in (("freeze", changes), ("freezesync", (lambda: os.fsync(fd),))):
                for call in calls:
                    self.fault(f"{rule}:cold/:0:1000:1")
                    self.check_that_it_waits(call)
        ops = Recording(self.log).ops
        waits = [op for op in ops if op.kind == Kind.FAULT]
        self.assertEqual([op.a for op in waits], [errno.EINPROGRESS] * 4)
        for wait in waits:      # it began before what others did, and took effect after that
            beside, late = ops[wait.seq:wait.seq + 2]
            self.assertEqual(beside.name, "beside")
            self.assertLess(late.begin, beside.seq)

    def check_that_it_waits(self, call):
        """Let a call wait, do something else meanwhile, and let it go on."""
        before = self.waits()
        thread = threading.Thread(target=call)
        thread.start()
        deadline = time.monotonic() + SECONDS
        while self.waits() == before and time.monotonic() < deadline:
            time.sleep(0.01)
        (self.mountpoint / "beside").touch()
        self.assertTrue(thread.is_alive())
        self.fault("clear")
        thread.join(SECONDS)
        self.assertFalse(thread.is_alive())
        (self.mountpoint / "beside").unlink()

    def waits(self):
        """Return how many operations have been held."""
        os.setxattr(self.mountpoint, "user.pgcut.flush", b"1")
        return sum(op.kind == Kind.FAULT for op in Recording(self.log).ops)

    def test_skip_count_clear_and_nonsense(self):
        with self.record() as self.mountpoint:
            fd = os.open(self.mountpoint / "a:b", os.O_RDWR | os.O_CREAT)
            self.fault("write:a:b:2:2:5")
            outcomes = []
            for _ in range(6):
                try:
                    outcomes.append(os.write(fd, b"x"))
                except OSError as error:
                    outcomes.append(-error.errno)
            self.assertEqual(outcomes, [1, 1, -5, -5, 1, 1])
            self.fault("write:a:0:9:5")
            self.assertIn("user.pgcut.fault=write:a:0:9:5", os.listxattr(self.mountpoint))
            self.fault("clear")
            self.assertEqual(os.write(fd, b"x"), 1)
            os.close(fd)
            for rule in ("", "write", "write:a:1:1", "write:a:1:1:x", "dance:a:0:1:5",
                         "write:a:0:1:0"):
                self.assert_fails(errno.EINVAL, self.fault, rule)
            self.assert_fails(errno.EOPNOTSUPP, os.setxattr, self.mountpoint, "user.x", b"")


class CommandLineTest(RecorderCase):
    """What it says when it cannot work, and how it ends."""

    def run_recorder(self, *arguments):
        return subprocess.run([str(self.recorder), *map(str, arguments)],
                              capture_output=True, text=True, timeout=SECONDS)

    def test_errors(self):
        mountpoint, log = self.scratch / "mnt", self.scratch / "log"
        mountpoint.mkdir()
        log.mkdir()
        missing = self.scratch / "missing"
        file = self.scratch / "file"
        file.touch()
        used = self.scratch / "used"
        used.mkdir()
        (used / "ops.bin").touch()
        for arguments, message in (
                ((), "backing directory (--backing) is missing"),
                (("--backing", self.base, mountpoint), "log directory (--log) is missing"),
                (("--backing", missing, "--log", log, mountpoint), "No such file"),
                (("--backing", self.base, "--log", missing, mountpoint), "No such file"),
                (("--backing", self.base, "--log", used, mountpoint), "File exists"),
                (("--backing", file, "--log", self.scratch, mountpoint), "Not a directory"),
                (("--backing", self.base, "--log", self.base, mountpoint), "overlap"),
                (("--backing", self.base, "--log", log, "--sync-delay-us", "9:1", mountpoint),
                 "invalid --sync-delay-us"),
                (("--seed", "x"), "invalid --seed"),
                (("--backing", self.base, "--log", log, mountpoint, "more"), "too many"),
                (("--frobnicate",), "unrecognized option")):
            with self.subTest(message=message):
                done = self.run_recorder(*arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(message, done.stderr)
        self.assertEqual(self.run_recorder("--help").returncode, 0)

    def test_signals(self):
        """SIGUSR1 writes out the log, SIGTERM ends with a complete recording."""
        mountpoint = self.scratch / "mnt"
        mountpoint.mkdir()
        daemon = subprocess.Popen(
            [str(self.recorder), "--backing", str(self.base), "--log", str(self.log),
             str(mountpoint)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(daemon.stdout.close)
        self.assertEqual(daemon.stdout.readline(), "ready\n")
        (mountpoint / "f").write_bytes(b"1234")
        daemon.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + SECONDS
        while len(self.read_log()) < 16 + 2 * 64 + 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(len(Recording(self.log).ops), 2)
        (mountpoint / "f").write_bytes(b"12345678")
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(SECONDS), 0)
        self.assertFalse(os.path.ismount(mountpoint))
        self.assertEqual(Replay(Recording(self.log)).tree(), {"f": b"12345678"})

    def test_end_in_a_freeze(self):
        """A recorder that is told to end does, although an operation is held in it."""
        (self.base / "cold").mkdir()
        mountpoint = self.scratch / "mnt"
        mountpoint.mkdir()
        daemon = subprocess.Popen(
            [str(self.recorder), "--backing", str(self.base), "--log", str(self.log),
             str(mountpoint)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(daemon.stdout.close)
        self.assertEqual(daemon.stdout.readline(), "ready\n")
        set_fault(mountpoint, "freeze:cold/:0:1:1")
        waiting = subprocess.Popen(["touch", str(mountpoint / "cold/new")],
                                   stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + SECONDS
        while "user.pgcut.fault=freeze:cold/:0:0:1" not in os.listxattr(mountpoint) and \
                time.monotonic() < deadline:
            time.sleep(0.01)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(SECONDS), 0)
        waiting.wait(SECONDS)
        self.assertEqual([op.kind for op in Recording(self.log).ops], [Kind.FAULT, Kind.CREATE])

    def test_end_while_somebody_has_a_copy_of_the_mount(self):
        with mock.patch.object(mount, "END_SECONDS", 1), contextlib.ExitStack() as copies:
            with self.record() as mountpoint:
                (mountpoint / "f").write_bytes(b"x" * 100)
                copy = copies.enter_context(subprocess.Popen(
                    ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                copy.stdout.readline()
            self.assertIsNone(copy.poll())
        self.assertEqual([op.kind for op in Recording(self.log).ops], [Kind.CREATE, Kind.WRITE])

    def test_full_log_refuses_changes_and_fails(self):
        """Better no run than a recording with holes."""
        mountpoint, log = self.scratch / "mnt", self.scratch / "log"
        mountpoint.mkdir()
        log.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(log)], check=True)
        self.addCleanup(subprocess.run, ["umount", str(log)], check=True)
        daemon = subprocess.Popen(
            [str(self.recorder), "--backing", str(self.base), "--log", str(log),
             str(mountpoint)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(daemon.stdout.readline(), "ready\n")
        fd = os.open(mountpoint / "f", os.O_RDWR | os.O_CREAT)
        with self.assertRaises(OSError) as caught:
            for _ in range(100):
                os.write(fd, bytes(1 << 17))
        self.assertEqual(caught.exception.errno, errno.EIO)
        with self.assertRaises(OSError):
            os.fsync(fd)
        os.close(fd)
        daemon.send_signal(signal.SIGTERM)
        message = daemon.communicate(timeout=SECONDS)[1]
        self.assertEqual(daemon.returncode, 1)
        self.assertIn("No space left on device", message)

    def read_log(self):
        return (self.log / "ops.bin").read_bytes()


if __name__ == "__main__":
    unittest.main()
