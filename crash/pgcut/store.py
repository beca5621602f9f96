"""A data directory whose power can be cut: its writes are recorded, its image is what is left."""

import contextlib
import shutil
import subprocess
from pathlib import Path

from . import server
from .disk import Disk, write_tree
from .explore import ALWAYS_LEFT_OUT
from .mount import recorded, set_fault
from .recording import Recording
from .states import Places, State, choose

# A recording that is longer than this begins anew when the server stops.
LONG_BYTES = 300 << 20


class Store:
    """The recorded data directory of one server, always under the same path."""

    def __init__(self, recorder, place):
        self._recorder = recorder
        self._place = Path(place)
        self._base = self._place / "base"
        self._recording = self._place / "recording"
        self._mounted = contextlib.ExitStack()
        self._place.mkdir()
        server.own(self._place)
        self.data = self._recording / "mnt"

    def fill(self, source):
        """Let it hold a copy of a directory, all of which is durable."""
        self._unmount()
        shutil.rmtree(self._base, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(self._base)], check=True)
        self._mount()

    def cut(self, fault, seed, unit):
        """Leave what is left of the files if the power fails now; nobody uses them."""
        self._unmount()
        shutil.move(self._base, self._recording / "base")
        recording = Recording(self._recording)
        disk = Disk(recording)
        disk.advance(len(recording.ops))
        choice = choose(disk, State(len(recording.ops), fault, seed, unit), Places(recording).areas)
        with server.as_user():
            # A server that has become a standby must stay one.
            write_tree(disk.tree(choice), self._base, ALWAYS_LEFT_OUT)
        self._mount()

    def renew(self):
        """Begin the recording anew if it is long, as though all there is were durable."""
        if (self._recording / "ops.bin").stat().st_size > LONG_BYTES:
            copy = self._place / "copy"
            subprocess.run(["cp", "-a", str(self.data), str(copy)], check=True)
            (copy / "pg_doublewrite" / "owner").unlink(missing_ok=True)
            self.fill(copy)
            shutil.rmtree(copy)

    def set_fault(self, rule):
        """Make operations fail, as the recorder's attribute says."""
        set_fault(self.data, rule)

    def close(self):
        self._unmount()
        shutil.rmtree(self._place, ignore_errors=True)

    def _mount(self):
        shutil.rmtree(self._recording, ignore_errors=True)
        self._mounted.enter_context(recorded(self._recorder, self._base, self._recording))

    def _unmount(self):
        self._mounted.close()
