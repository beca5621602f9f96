"""Images: the files of a state, as a directory in which a server can be started.

From one state to the next few files differ.  So an `Image` is kept from state to state,
and only files that differ are written.  Which ones a server has changed is found without
asking it: each file that we write gets a time of modification in the past, which a write or
a truncation replaces.  A file that was put in its place has another inode number.
"""

import errno
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# By how much the time of modification of what we write lies back: a day (ns).  Servers
# remove files of some kinds that are much older.
_BACK = 86_400 * 10 ** 9

# What is compared with zeroes at once, and left out if it is equal.
_PIECE = 1 << 16
_ZEROES = bytes(_PIECE)


def write_tree(tree: Iterable[tuple], directory: Path, leave_out: Any = ()) -> None:
    """Write what Disk.tree() yields below `directory`, which must be empty.

    Only the caller's user can read the files, as PostgreSQL demands.
     Names in `leave_out` are not written.
    """
    Image(directory).write(tree, leave_out)


class Image:
    """A directory that becomes the image of one state after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ours = time.time_ns() - _BACK     # the time of modification of what we write
        self._written = {}          # path -> (inode, content) of the files that we have written
        self._pieces = {}           # path -> (content, what of it is not zero), of large files

    def move(self, directory: Path) -> None:
        """Move it to another place of the same file system."""
        os.rename(self.directory, directory)
        self.directory = directory

    def write(self, tree: Iterable[tuple], leave_out: Any = ()) -> None:
        """Make it what Disk.tree() yields, without the names in `leave_out`.

        Content that is the same object as before has not changed.
        """
        os.makedirs(self.directory, exist_ok=True)
        os.chmod(self.directory, stat.S_IRWXU)
        wanted = {path: (kind, content) for path, kind, content in tree if path not in leave_out}
        there = self._tidied(wanted)
        written = {}
        for path, (kind, content) in wanted.items():
            target = f"{self.directory}/{path}"
            if kind == "d":
                if path not in there:
                    os.mkdir(target, 0o700)
            elif kind == "l":
                if path not in there:
                    os.symlink(content, os.fsencode(target))
            else:
                found = there.get(path)
                inode, old = self._written.get(path, (None, None))
                if found and old is content and self._is_untouched(found, inode, len(content)):
                    written[path] = inode, content
                else:
                    pieces = self._pieces_of(path, content)
                    written[path] = _write_file(target, content, pieces, self._ours), content
        self._written = written

    def _pieces_of(self, path, content):
        """Return where content is to be written: where it is not zero, or None for a small file.

        In a large file what is zero becomes a hole, which takes neither time nor memory.  A
        small one keeps the memory that it has.
        """
        if len(content) <= _PIECE:
            return None
        known, pieces = self._pieces.get(path, (None, None))
        if known is not content:
            pieces = [at for at in range(0, len(content), _PIECE)
                      if not _ZEROES.startswith(content[at:at + _PIECE])]
            self._pieces[path] = content, pieces
        return pieces

    def _is_untouched(self, status, inode, size):
        """Say whether a file is as we wrote it."""
        return (status.st_ino, status.st_mtime_ns, status.st_size) == (inode, self._ours, size)

    def _tidied(self, wanted):
        """Remove what is not wanted, or of another kind; return {path: status} of the rest."""
        there = {}
        directories = [""]
        while directories:
            below = directories.pop()
            with os.scandir(f"{self.directory}/{below}") as entries:
                for entry in entries:
                    path = f"{below}/{entry.name}" if below else entry.name
                    status = entry.stat(follow_symlinks=False)
                    if not _fits(entry.path, status, wanted.get(path)):
                        _remove(entry.path, status)
                        continue
                    there[path] = status
                    if stat.S_ISDIR(status.st_mode):
                        directories.append(path)
        return there


def _fits(path, status, wanted):
    """Say whether what is there can stay, once its content is brought up to date."""
    kind, content = wanted or ("", None)
    if kind == "l":
        return stat.S_ISLNK(status.st_mode) and os.readlink(os.fsencode(path)) == content
    if kind == "d":
        return stat.S_ISDIR(status.st_mode)
    return kind == "f" and stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _remove(path, status):
    """Remove a file, or a directory and all that is in it."""
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return
    with os.scandir(path) as entries:
        for entry in entries:
            _remove(entry.path, entry.stat(follow_symlinks=False))
    os.rmdir(path)


def _write_file(path, content, pieces, modified):
    """Write a file, or only pieces of it, over one that may be there; returns its inode."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if pieces is None:
            _write_all(fd, content, 0)
        else:
            os.ftruncate(fd, 0)
            for at in pieces:
                _write_all(fd, content[at:at + _PIECE], at)
        os.ftruncate(fd, len(content))
        os.utime(fd, ns=(modified, modified))
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _write_all(fd, piece, at):
    if os.pwrite(fd, piece, at) < len(piece):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
