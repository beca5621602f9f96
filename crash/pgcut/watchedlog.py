"""What the protocol monitor asks of writes to the double-write log, and to pg_control: R3, R5."""

from collections import defaultdict

from .logformat import BATCH, ENTRY, MAGIC, VERSION
from .recording import Recording
from .watched import CONTROL, PAGE, Batch, Known, lsn_text


class LogRules(Known):
    """The batches of the log, which of them are live, and which pages have copies there."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._batches = {}                  # number -> the last one written with it
        self._copies = defaultdict(list)    # page -> batches, in order
        self._notes = defaultdict(list)     # the same of notes
        self._parts = defaultdict(list)     # log file -> its writes since the last sync
        self._mark = 0                      # the highest one that a crash could find

    def _write_log(self, op, file):
        if self._rewritten(op):
            return
        self._destroy(op, file, op.a, op.a + op.length)
        parts = self._parts[op.ino]
        parts.append(op)
        batch = self._completed(op, parts)
        if batch:
            self._enter_batch(op, batch)

    def _completed(self, op, parts):
        """Return the batch that a write completes, or None.

        The kernel splits writes of more than a megabyte, and the parts may come in
        any order.  All of them come before the next sync.
        """
        heads = (_batch(part, self.recording.data(part)) for part in reversed(parts))
        batch = next(filter(None, heads), None)
        if batch is None or not batch.start <= op.a < batch.end:
            return None
        newest = {part.a: part for part in parts if batch.start <= part.a < batch.end}
        batch.writes = [newest[start] for start in sorted(newest)]
        batch.seq = op.seq
        written = batch.start
        for part in batch.writes:
            if part.a <= written:
                written = max(written, part.a + part.length)
        return batch if written >= batch.end else None

    def _enter_batch(self, op, batch):
        """Check a batch that is complete, and see what its mark gives up."""
        self.figures["batches"] += 1
        newest = max(self._batches, default=0)
        if batch.number not in (newest, newest + 1):
            self._batches.clear()       # the log begins anew
            self._copies.clear()
            self._notes.clear()
            self._mark = 0
        before = self._batches.get(batch.number - 1)
        for page, lsn in batch.lsns.items():
            self._check_lsn(op, page, lsn, "a copy of")
            self._copies[page].append(batch)
        self.figures["notes"] += len(batch.notes)
        for page in batch.notes:
            self._notes[page].append(batch)
        if before and before.number >= batch.mark and not 0 < before.durable <= op.begin:
            self._violated(op.seq, "R3", f"batch {batch.number} of the log is written before "
                           f"batch {before.number} is durable")
        live = [self._batches[number] for number in range(batch.mark, batch.number)
                if number in self._batches] + [batch]
        self._batches[batch.number] = batch
        if any(item.lsns for item in live[-64:]):
            self._check_redos(op, batch)
        if batch.mark > self._mark:
            self._mark = batch.mark
            self._recheck(op)

    def _check_redos(self, op, batch):
        """R5: whichever pg_control a crash leaves, the batch must know its redo pointer."""
        for control in self._controls:
            if control[2] not in batch.redos:
                self._violated(op.seq, "R5", f"batch {batch.number} of the log does not know the "
                               f"redo pointer {lsn_text(control[2])} that is in pg_control")

    def _destroy(self, op, file, start, end):
        """Part of a log file is overwritten, or it goes: what was there must not be needed."""
        needed = max((batch.mark for batch in self._batches.values() if batch.durable), default=0)
        for batch in self._batches.values():
            if batch.ino != op.ino or batch.gone or batch.end <= start or end <= batch.start:
                continue
            batch.gone = True
            if (batch.lsns or batch.notes) and batch.durable and \
                    batch.number >= needed and self._marker:
                self._violated(op.seq, "R3", f"batch {batch.number} of the log is overwritten or "
                               f"removed, and the durable low-water mark is {needed}")

    def _rewritten(self, op):
        """Say whether a write changes nothing, as when restore writes the newest batch again.

        It does so block by block, and several writes may have made the block.
        """
        for batch in self._batches.values():
            if batch.ino == op.ino and not batch.gone and \
                    self._contents(batch, op.a, op.length) == self.recording.data(op):
                batch.seq = op.seq if not batch.durable else batch.seq
                return True
        return False

    def _contents(self, batch, start, length):
        """Return what a batch has from an offset of its file on; less where it ends before."""
        contents = bytearray()
        for part in batch.writes:
            at = start + len(contents) - part.a
            if 0 <= at < part.length:
                contents += self.recording.data(part)[at:at + length - len(contents)]
        return contents

    def _sync_log(self, op, file):
        self._forget_parts(op)
        for batch in reversed(self._batches.values()):
            if batch.durable:
                break
            if batch.ino == op.ino and file.doomed < batch.seq <= op.begin:
                batch.durable = op.seq

    def _forget_parts(self, op):
        """Forget parts from before a sync, even a failed one: later writes are another attempt."""
        self._parts[op.ino] = [part for part in self._parts[op.ino] if part.seq > op.begin]

    # pg_control and the marker

    def _write_control(self, op):
        control = CONTROL.unpack_from(self.recording.data(op))
        known = {item[2] for item in self._controls}
        self._controls.append(control)
        self._control_seqs.append(op.seq)
        if control[2] in known:
            return
        self.figures["redo pointers"] += 1
        newest = next((batch for batch in reversed(self._batches.values())
                       if 0 < batch.durable <= op.begin), None)
        if newest and self._marker and control[2] not in newest.redos:
            self._violated(op.seq, "R5", f"pg_control names the redo pointer {lsn_text(control[2])}, and "
                           f"batch {newest.number}, the newest durable one of the log, does not")
        self._recheck(op)

    def _copy(self, page, begin):
        """Return the newest durable copy of a page in the live log, or why there is none."""
        why = "the log has no copy"
        if not self._marker:
            return None, "the log is not in use"
        for batch in reversed(self._copies.get(page, ())):
            if batch.gone:
                why = f"batch {batch.number} with its copy was overwritten"
            elif batch.number < self._mark:
                return None, f"the low-water mark {self._mark} has passed batch {batch.number} " \
                    "with its copy"
            elif not 0 < batch.durable <= begin:
                why = f"batch {batch.number} with its copy was not durable"
            else:
                return batch, None
        return None, why


def _batch(op, data):
    """Return the batch whose header a write begins with, or None."""
    if len(data) < BATCH.size:
        return None
    (magic, version, _, _, number, mark, _, _, npages, redo, pending, _, _, _, _) = \
        BATCH.unpack_from(data)
    entries_end = BATCH.size + npages * ENTRY.size
    if magic != MAGIC or version != VERSION or len(data) < entries_end:
        return None             # the write may have stopped half-way
    lsns, notes, length = {}, {}, 0
    for at in range(BATCH.size, entries_end, ENTRY.size):
        space, database, node, fork, size, block, crc, lsn = ENTRY.unpack_from(data, at)
        page = (space, database, node, fork, block)
        if size:
            lsns[page] = lsn
        else:
            notes[page] = crc
        length += size
    end = op.a + PAGE * (1 + -(-length // PAGE))
    return Batch(number, mark, (redo, pending), op.ino, op.a, end, lsns, notes, [op])
