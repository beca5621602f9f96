"""Crash states of a block device, with a file system's real journal on it (F11).

The cluster lies on ext4 or xfs, on a loop device whose writes and flushes are
recorded (block.py).  A cut keeps any part of what the device was not told to
flush; the file system recovers itself at the mount, and PostgreSQL after it.
"""

import json
import random
import shutil
import subprocess
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import oracle, primary, record, server
from .block import BlockDisk, BlockStore, mounted, random_choice
from .content import KEPT, LOST
from .disk import Choice
from .explore import STATE_SECONDS
from .judge import Context, Judge, Outcome, phase
from .limits import limit, require_time
from .record import Plan
from .recording import Kind, Recording
from .states import State

# Room for the cluster, its WAL and log, and what the load adds.
SIZE_MB = 320

# A cut right before or after a flush, or anywhere.
FAULTS = ("block-lost", "block-kept", "block-subset", "block-subset", "block-subset")


def make(directory: Path, plan: Plan, fstype: str, bindir: str, recorder: str,
         scratch: str) -> Recording:
    """Record what a primary does to a device with a file system; returns a Recording."""
    rng = random.Random(f"record/{plan.seed}")
    directory = Path(directory)
    directory.mkdir(parents=True)
    with limit("making a recording", record.RECORDING_SECONDS), \
            tempfile.TemporaryDirectory(prefix="base-", dir=scratch) as place:
        server.own(place)
        base = record.prepared(Path(place) / "data", plan, bindir, scratch)
        with BlockStore(fstype, SIZE_MB, directory, recorder, plan.seed, (200, 3000)) as store:
            data = store.mountpoint / "data"
            subprocess.run(["cp", "-a", str(base), str(data)], check=True)
            store.sync()
            first = store.operations()
            acks = primary.Primary(base, directory, plan, bindir, rng).live(data)
    (store.directory / "acks.jsonl").write_text("".join(json.dumps(ack) + "\n" for ack in acks))
    (store.directory / "meta.json").write_text(json.dumps(
        {**asdict(plan), "fstype": fstype, "first": first}, indent=1))
    return Recording(store.directory)


class BlockSubject(Judge):
    """A recording of a device under test, at a cut that only moves forward."""

    def __init__(self, recording: Recording, context: Context) -> None:
        super().__init__(recording, context)
        self.scenario = self.fstype = recording.meta["fstype"]
        self.first = recording.meta["first"]
        self._place = Path(tempfile.mkdtemp(prefix="block-", dir=context.scratch))
        self._disk = BlockDisk(recording, self._place / "durable")
        self.flushes = [op.seq for op in recording.ops
                        if op.kind == Kind.SYNC and op.seq > self.first]

    def close(self) -> None:
        """Remove the image of the device."""
        shutil.rmtree(self._place)

    def sampled(self, seed: int, count: int) -> list:
        """Return `count` random states, in the order of their cuts."""
        rng = random.Random(f"block/{seed}")
        states = []
        for _ in range(count):
            cut = rng.randint(self.first, len(self.recording.ops)) if rng.random() < 0.4 \
                else rng.choice(self.flushes) - rng.randint(0, 1)
            states.append(State(cut, rng.choice(FAULTS), rng.randrange(1 << 30),
                                rng.choice((512, 512, 4096))))
        return sorted(states, key=lambda state: state.cut)

    def try_state(self, state: Any) -> Outcome:
        """Return the Outcome of a state, which must not lie behind the last one."""
        require_time("trying a state")
        started = time.monotonic()
        self._disk.advance(state.cut)
        pending = self._disk.pending()
        outcome = Outcome(state, [])
        choice = self._choice(state, pending)
        outcome.lost = sum(choice.fate(op) == LOST for op in pending)
        outcome.effective = state.fault == "block-kept" or \
            any(choice.fate(op) != KEPT for op in pending)
        with phase(outcome, "materialise"):
            image = self._disk.image(choice, self._place / "image")
        with self.place_for(outcome) as place:
            try:
                with limit("trying a state", STATE_SECONDS), \
                        mounted(image, self.fstype) as mountpoint:
                    self._judge(mountpoint / "data", place / "data", state, outcome)
            except Exception:           # a bug of ours must not pass for success
                outcome.complaints.append("explorer: " + traceback.format_exc())
        outcome.seconds = time.monotonic() - started
        return outcome

    def _choice(self, state, pending):
        if state.fault == "block-subset":
            rng = random.Random(f"{state.cut}/{state.seed}")
            return random_choice(rng, pending, self.fstype, state.unit)
        return Choice(state.unit, LOST if state.fault == "block-lost" else KEPT)

    def _judge(self, data, image, state, outcome):
        """Recover a copy in memory, `image`, of what the file system has left."""
        with phase(outcome, "materialise"):
            subprocess.run(["cp", "-a", str(data), str(image)], check=True)
            # it tells copies of files, of which this is one
            (image / "pg_doublewrite" / "owner").unlink(missing_ok=True)
        (image / "postmaster.pid").unlink(missing_ok=True)
        moment = self.recording.time_of_cut(state.cut)
        expected = oracle.expectation(self.recording.acks, moment)
        # It is not known here which files were left by transactions that did not end.
        expected["orphans_allowed"] = None
        self.recover_and_ask(image, expected, state.seed, outcome)
