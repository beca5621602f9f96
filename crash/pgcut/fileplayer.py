"""Random things done to files, noted as a recording of files would have them."""

import ctypes
import os
import random
from pathlib import Path
from typing import Any

from .recording import ROOT_INO, SYNC_DATA, SYNC_DIRECTORY, BaseEntry, Kind, Op

SECTOR = 512
PAGE = 8192
_SYNC_FILE_RANGE_WRITE = 2

_libc = ctypes.CDLL(None, use_errno=True)


class FileHistory:
    """A recording of files in memory, as Disk reads it.  The base is empty."""

    def __init__(self) -> None:
        self.base = None
        self.entries = [BaseEntry(ROOT_INO, "d", "")]
        self.ops = []
        self.started = []           # when each operation was called
        self._data = []
        self._last_ino = ROOT_INO

    def new_ino(self) -> int:
        self._last_ino += 1
        return self._last_ino

    def data(self, op: Any) -> bytes:
        """Return the bytes that a WRITE wrote."""
        return self._data[op.at]

    def note(self, started: Any, ended: Any, kind: str, ino: int, a: Any = 0, b: Any = 0,
             flags: int = 0, name: str = "", target: Any = "", data: Any = b"") -> None:
        """Note an operation that has been done."""
        seq = len(self.ops) + 1
        self.ops.append(Op(seq, seq - 1, ended, kind, flags, ino, a, b, name, target,
                           len(self._data), len(data)))
        self.started.append(started)
        self._data.append(data)

    def cut_at(self, moment: float) -> int:
        """Return how many operations may have taken effect before a moment.

        One that was under way counts, except a sync: it has not promised yet.
        """
        cut = sum(started < moment for started in self.started)
        if cut and self.ops[cut - 1].kind == Kind.SYNC and self.ops[cut - 1].time >= moment:
            cut -= 1
        return cut


class _Open:
    """A file that the player keeps open."""

    def __init__(self, ino: int, fd: int) -> None:
        self.ino = ino
        self.fd = fd
        self.size = 0


class FilePlayer:
    """Does random things to files, and notes them.

    `aligned` players write whole sectors only, as the server does to relations,
    WAL and the double-write log.  The others write any number of bytes.  No
    holes are punched: the server never does.
    """

    _WEIGHTS = {"create": 10, "write": 22, "append": 10, "sync": 9, "sync_directory": 4,
                "rename": 8, "unlink": 5, "truncate": 5, "allocate": 5, "mkdir": 2, "rmdir": 1,
                "link": 2, "push": 8}
    _MAX_FILES = 12
    _MAX_BYTES = 1 << 18

    def __init__(self, root: Path, clock: Any, seed: int, aligned: bool = True) -> None:
        self.root = Path(root)
        self.history = FileHistory()
        self._clock = clock
        self._random = random.Random(seed)
        self._aligned = aligned
        self._files = {}            # (directory, name) -> _Open
        self._directories = {ROOT_INO: ""}
        self._parents = {}          # directory -> (directory above, name)

    def play(self, steps: Any) -> None:
        """Do that many things; then close everything."""
        actions, weights = zip(*self._WEIGHTS.items())
        try:
            for _ in range(steps):
                getattr(self, "_do_" + self._random.choices(actions, weights)[0])()
        finally:
            for file in set(self._files.values()):
                os.close(file.fd)

    def _note(self, kind, call, ino, **values):
        """Do something and note it with the times before and after."""
        started = self._clock()
        result = call()
        self.history.note(started, self._clock(), kind, ino, **values)
        return result

    def _path(self, directory, name):
        return self.root / self._directories[directory] / name

    def _some_name(self):
        """Return a name, at times one that was in use already."""
        return self._random.choice(sorted(self._directories)), f"n{self._random.randrange(16)}"

    def _some_file(self):
        """Return (place, open file), or Nones."""
        if not self._files:
            return None, None
        return self._random.choice(sorted(self._files.items(), key=lambda item: item[0]))

    def _remove(self, place):
        """Forget a name that has gone, and close the file with its last one."""
        file = self._files.pop(place)
        if file not in self._files.values():
            os.close(file.fd)

    def _do_create(self):
        place = self._some_name()
        if place in self._files or len(self._files) >= self._MAX_FILES:
            return
        ino = self.history.new_ino()
        fd = self._note(Kind.CREATE, lambda: os.open(
            self._path(*place), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600),
            ino, a=place[0], name=place[1])
        self._files[place] = _Open(ino, fd)

    def _write(self, file, offset, length):
        data = self._random.randbytes(length)
        self._note(Kind.WRITE, lambda: os.pwrite(file.fd, data, offset), file.ino,
                   a=offset, data=data)
        file.size = max(file.size, offset + length)

    def _do_write(self):
        file = self._some_file()[1]
        if file and self._aligned:
            self._write(file, self._random.randrange(16) * PAGE,
                        self._random.choice((SECTOR, PAGE, PAGE, 4 * PAGE, 16 * PAGE)))
        elif file:
            self._write(file, self._random.randrange(40_000), self._random.randrange(1, 20_000))

    def _do_append(self):
        file = self._some_file()[1]
        if file and file.size < self._MAX_BYTES:
            self._write(file, file.size, self._random.choice((1, 2, 16, 32)) * SECTOR
                        if self._aligned else self._random.randrange(1, 3000))

    def _do_sync(self):
        file = self._some_file()[1]
        if file and self._random.random() < 0.5:
            self._note(Kind.SYNC, lambda: os.fsync(file.fd), file.ino)
        elif file:
            self._note(Kind.SYNC, lambda: os.fdatasync(file.fd), file.ino, flags=SYNC_DATA)

    def _do_sync_directory(self):
        directory = self._random.choice(sorted(self._directories))
        fd = os.open(self.root / self._directories[directory], os.O_RDONLY)
        self._note(Kind.SYNC, lambda: os.fsync(fd), directory, flags=SYNC_DIRECTORY)
        os.close(fd)

    def _do_rename(self):
        place, file = self._some_file()
        target = self._some_name()
        if file is None or place == target or self._files.get(target) is file:
            return
        self._note(Kind.RENAME, lambda: os.rename(self._path(*place), self._path(*target)),
                   file.ino, a=place[0], name=place[1], b=target[0], target=target[1],
                   flags=int(target in self._files))
        if target in self._files:
            self._remove(target)
        self._files[target] = self._files.pop(place)

    def _do_unlink(self):
        place, file = self._some_file()
        if file:
            self._note(Kind.UNLINK, lambda: os.unlink(self._path(*place)), file.ino,
                       a=place[0], name=place[1])
            self._remove(place)

    def _do_link(self):
        place, file = self._some_file()
        new = self._some_name()
        if file and new not in self._files:
            self._note(Kind.LINK, lambda: os.link(self._path(*place), self._path(*new)),
                       file.ino, a=new[0], name=new[1])
            self._files[new] = file

    def _do_truncate(self):
        file = self._some_file()[1]
        if file:
            size = self._random.choice((0, self._random.randrange(file.size + 20_000)))
            if self._aligned:
                size -= size % SECTOR
            self._note(Kind.TRUNCATE, lambda: os.ftruncate(file.fd, size), file.ino, a=size)
            file.size = size

    def _do_allocate(self):
        file = self._some_file()[1]
        if file and file.size < self._MAX_BYTES:
            length = self._random.randrange(1, 9) * PAGE
            offset = file.size
            self._note(Kind.FALLOCATE, lambda: os.posix_fallocate(file.fd, offset, length),
                       file.ino, a=offset, b=length)
            file.size += length

    def _do_mkdir(self):
        """Make a directory; its name is never used again, and never changed."""
        if len(self._directories) > 3:
            return
        ino = self.history.new_ino()
        above = self._random.choice(sorted(self._directories))
        name = f"d{ino}"
        self._note(Kind.MKDIR, lambda: os.mkdir(self._path(above, name), 0o700), ino,
                   a=above, name=name)
        self._parents[ino] = above, name
        self._directories[ino] = os.path.join(self._directories[above], name)

    def _do_rmdir(self):
        used = {directory for directory, _ in self._files} | \
               {above for above, _ in self._parents.values()}
        empty = sorted(set(self._parents) - used)
        if empty:
            above, name = self._parents.pop(empty[0])
            self._note(Kind.RMDIR, lambda: os.rmdir(self._path(above, name)), empty[0],
                       a=above, name=name)
            del self._directories[empty[0]]

    def _do_push(self):
        """Have data written without any promise, so that it comes before names."""
        file = self._some_file()[1]
        if file:
            _libc.sync_file_range(file.fd, ctypes.c_long(0), ctypes.c_long(0),
                                  _SYNC_FILE_RANGE_WRITE)
