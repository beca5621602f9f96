"""Recordings made by hand, for the tests of the model."""

import struct
from pathlib import Path

from pgcut.recording import MAGIC, SYNC_DIRECTORY, VERSION, Kind, Recording

_NONE = 0


class History:
    """Writes the files of a recording, operation by operation."""

    def __init__(self, directory, base=None):
        self.directory = Path(directory)
        self.records = []
        self.next_ino = 2
        (self.directory / "base").mkdir(parents=True)
        lines = ["1\td\t."]
        self.inos = {}
        for path, content in (base or {}).items():
            target = self.directory / "base" / path
            self.inos[path] = self._new()
            if content is None:
                target.mkdir()
            else:
                target.write_bytes(content)
            lines.append(f"{self.inos[path]}\t{'d' if content is None else 'f'}\t{path}")
        (self.directory / "base.tsv").write_text("\n".join(lines) + "\n")

    def _new(self):
        self.next_ino += 1
        return self.next_ino - 1

    def add(self, kind, ino, a=0, b=0, name="", data=b"", flags=0, begin=None):
        """Append an operation; returns its number."""
        seq = len(self.records) + 1
        begin = seq - 1 if begin is None else begin
        self.records.append(struct.pack("<IHHQQQQQQII", 0x31504F50, kind, flags, seq, begin,
                                        seq * 1000, ino, a, b, len(name.encode()), len(data))
                            + name.encode() + data)
        return seq

    def create(self, name, parent=1):
        ino = self._new()
        return ino, self.add(Kind.CREATE, ino, parent, 0o600, name)

    def mkdir(self, name, parent=1):
        ino = self._new()
        return ino, self.add(Kind.MKDIR, ino, parent, 0o700, name)

    def write(self, ino, offset, data):
        return self.add(Kind.WRITE, ino, offset, 1, data=data)

    def sync(self, ino, begin=None):
        return self.add(Kind.SYNC, ino, begin=begin)

    def sync_directory(self, ino=1):
        return self.add(Kind.SYNC, ino, flags=SYNC_DIRECTORY)

    def rename(self, ino, old, new, parent=1, new_parent=1):
        return self.add(Kind.RENAME, ino, parent, new_parent, old, new.encode())

    def unlink(self, ino, name, parent=1):
        return self.add(Kind.UNLINK, ino, parent, name=name)

    def recording(self):
        """Return the Recording so far."""
        body = struct.pack("<8sII", MAGIC, VERSION, _NONE) + b"".join(self.records)
        (self.directory / "ops.bin").write_bytes(body)
        return Recording(self.directory)
