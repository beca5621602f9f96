"""Test of load and verdict for real power cuts; a server that is killed stands for one."""

import contextlib
import io
import json
import os
import tempfile
import threading
import time
import unittest
from pathlib import Path

from pgcut import realcut, server
from recorder_binary import SCRATCH

BINDIR = os.environ.get("PGCUT_BINDIR")


@unittest.skipUnless(BINDIR, "PGCUT_BINDIR is not set")
class RealCutTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(dir=SCRATCH)
        self.addCleanup(directory.cleanup)
        os.chmod(directory.name, 0o755)
        server.own(directory.name)
        self.data = Path(directory.name) / "cluster"
        self.acks = Path(directory.name) / "acks.jsonl"

    def load(self):
        """Run the load, and kill its server when some transactions are done."""
        printed = io.StringIO()

        def cut():
            deadline = time.monotonic() + 300
            while printed.getvalue().count('"ack"') < 200 and time.monotonic() < deadline:
                time.sleep(0.01)
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
            server.postgres.kill_family(pid)

        killer = threading.Thread(target=cut)
        killer.start()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            realcut.load(BINDIR, self.data, 600, {"shared_buffers": "1MB"})
        killer.join()
        self.acks.write_text(printed.getvalue())

    def verify(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = realcut.verify(BINDIR, self.data, self.acks)
        return status, said.getvalue()

    def test_nothing_is_lost_until_the_acks_say_so(self):
        self.load()
        self.assertEqual(self.verify()[0], 0)
        lost = {"t": 0, "client": "hint-1", "what": "ack", "n": 99999}
        with open(self.acks, "a") as acks:
            acks.write(json.dumps(lost) + "\n")
        status, said = self.verify()
        self.assertEqual(status, 1)
        self.assertIn("client hint-1: transaction 99999 was acknowledged", said)

    def test_nothing_acknowledged_proves_nothing(self):
        self.acks.write_text(json.dumps({"t": 0, "client": "", "what": "resumed", "clients": {},
                                         "prepared": [], "databases": [], "tablespaces": []}))
        self.assertEqual(self.verify()[0], 2)


if __name__ == "__main__":
    unittest.main()
