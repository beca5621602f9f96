"""The recorder for tests: built once, or the one that PGCUT_RECORDER names."""

import atexit
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "recorder"

# Backing files must lie on tmpfs: the recorder never syncs them.
SCRATCH = os.environ.get("TMPDIR") or ("/dev/shm" if os.path.isdir("/dev/shm") else None)

_built = None


def recorder_binary():
    """Return the path of the recorder; raises SkipTest where it cannot run."""
    global _built
    reason = _why_not()
    if reason:
        raise unittest.SkipTest(reason)
    if os.environ.get("PGCUT_RECORDER"):
        return Path(os.environ["PGCUT_RECORDER"])
    if _built is None:
        objects = tempfile.mkdtemp(prefix="pgcut-recorder-", dir=SCRATCH)
        atexit.register(shutil.rmtree, objects, ignore_errors=True)
        subprocess.run(["make", "-s", "-C", str(SOURCE), f"OBJDIR={objects}"], check=True)
        _built = Path(objects) / "pgcut-recorder"
    return _built


def _why_not():
    """Return why the recorder cannot run here, or None."""
    if os.getuid() != 0:
        return "mounting needs root"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be used: {error.strerror}"
    if os.environ.get("PGCUT_RECORDER"):
        return None
    if shutil.which("pkg-config") is None or \
            subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode:
        return "libfuse3 is not installed for building (libfuse3-dev)"
    return None
