"""What the protocol monitor asks of pages that are written home: R2, R3, A4."""

import re
from dataclasses import replace
from pathlib import Path

from . import wal
from .logformat import hint_digest
from .recording import WRITE_ATOMIC, Recording
from .watched import FSM, INIT, LSN, MAIN, PAGE, HomeWrite, flat, lsn_text, page_lsn, page_name
from .watchedlog import LogRules

_ZEROES = bytes(PAGE)


class HomeRules(LogRules):
    """What was written home and may be torn, and how it would be made whole."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._checksums = bool(recording.meta.get("checksums"))
        self._files = {}
        self._made = set()                  # relations whose files were made meanwhile
        self._unlogged = set()              # paths of those that are not logged

    def _write_home(self, op, file):
        relation, fork, first = file.where
        data = memoryview(self.recording.data(op))
        if self._is_unlogged(file) and fork != INIT:
            return
        for block, content in _pages(op.a, data):
            if content == _ZEROES:
                continue
            before = self._lsn_at_home(file, block)
            durable = file.cut.pop(block, before)
            lsn = before if (op.a % PAGE and block == op.a // PAGE) else page_lsn(content)
            file.lsns[block] = lsn
            start = max(op.a - block * PAGE, 0)
            place = (op, block * PAGE - op.a) if len(content) == PAGE else None
            base = (file.base, block * PAGE) if file.base else None
            replaced, file.newest[block] = file.newest.get(block, base), place
            if (block + 1) * PAGE > file.size:      # it did not have all of it
                continue
            self.figures["home writes"] += 1
            page = (*relation, fork, first + block)
            write = HomeWrite(op.seq, op.begin, page, lsn, lsn == before,
                               (start, start + len(content)), bool(self._marker), place, replaced)
            if not self._uncommitted(relation):
                self._check_lsn(op, page, lsn, "")
            if op.flags & WRITE_ATOMIC:
                self.figures["atomic home writes"] += 1
                if block not in file.atomic:
                    file.atomic[block] = [replace(write, seq=0, lsn=durable)]
                file.atomic[block].append(write)
            elif self._protected:
                self._check_home(op, write, op.begin, "is written home")
                file.pending[block].append(write)

    def _uncommitted(self, relation):
        """Say whether the transaction that made a relation has not committed yet.

        With wal_level = minimal, pages may go home before even the record that makes their file.
        """
        return self.wal.uncommitted(relation, self._wal_end) or \
            relation in self._made and self.wal.unborn(relation, self._wal_end)

    def _lsn_at_home(self, file, block):
        """Return the LSN of a page as it was written last, or was in the beginning."""
        if block not in file.lsns and file.base:
            with open(file.base, "rb") as base:
                base.seek(block * PAGE)
                head = base.read(LSN.size)
            file.lsns[block] = page_lsn(head) if len(head) == LSN.size else 0
        return file.lsns.get(block, 0)

    def _is_unlogged(self, file):
        return re.sub(r"(_(fsm|vm|init))?(\.\d+)?$", "", file.path) in self._unlogged

    def _sync_home(self, op, file):
        """Pages are durable, unless they stand half-written: the newest of each block counts."""
        for block, writes in list(file.pending.items()):
            covered = [write for write in writes if file.doomed < write.seq <= op.begin]
            for write in covered:
                if write.excused:
                    self._check_home(op, write, op.begin, "is home, its file committed")
            if covered and (_whole(covered) or 0 < covered[-1].gone <= op.begin):
                self._is_durable(file, block, covered[-1])

        # What was before a truncation that is durable does not come back: records until then
        # do not concern these blocks any more.
        seq, end = file.cut_off
        if file.doomed < seq <= op.begin:
            file.cut = dict.fromkeys(file.cut, end)

        for block, writes in list(file.atomic.items()):
            covered = [write for write in writes[1:] if file.doomed < write.seq <= op.begin]
            if covered:
                self._is_durable(file, block, covered[-1])

    def _is_durable(self, file, block, last):
        """Forget what was written home before: what the kernel had cached does not come back (M7)."""
        pending = [write for write in file.pending.pop(block, ()) if write.seq > last.seq]
        if pending:
            file.pending[block] = pending
        durable, *writes = file.atomic.pop(block, (last,))
        writes = [write for write in writes if write.seq > last.seq]
        if writes:
            file.atomic[block] = [max(durable, last, key=lambda write: write.seq), *writes]

    def _check_atomic(self, op, file):
        """A4: whether redo, from redo pointers that have changed, makes good what is not durable."""
        for block, (durable, *_, write) in file.atomic.items():
            if block in file.pending or self._uncommitted(write.page[:3]) or \
                    write.page[3] not in (MAIN, INIT):
                continue        # it may be torn, or redo can do without
            copy, _ = self._copy(write.page, op.begin)
            for redo in {control[2] for control in self._controls}:
                if self.wal.changed_between(write.page, durable.lsn, redo) and \
                        not (copy and self._new_enough(copy, write.page, redo)) and \
                        self._not_rebuilt(write, redo, op.begin):
                    self._violated(op.seq, "A4", f"{page_name(write.page)} with LSN {lsn_text(write.lsn)}, "
                                   f"written atomically by operation {write.seq}, is not durable, "
                                   f"and redo from {lsn_text(redo)} would not make it so", write.page)

    def _recheck(self, op):
        """Ask again whether each page is safe: the mark, the redo pointers or the marker have changed.

        What was durable when the page's own write began protects it, even if that was
        while the change was under way.
        """
        for file in self._files.values():
            if file.kind == "home":
                self._check_atomic(op, file)
                for write in flat(file.pending):
                    self._check_home(op, write, max(op.begin, write.begin),
                                     f"written by operation {write.seq}, is not durable")

    def _check_home(self, op, write, begin, what):
        """R2 and R3: say so if a page that may be torn could not be made whole."""
        self.figures["checks"] += 1
        write.excused = False
        missing = self._unprotected(write, begin)
        hints_only = write.page[3] not in (MAIN, INIT) and \
            (write.gone or not self._logged(write))
        if missing and not hints_only:      # maps that redo can do without
            self._violated(op.seq, "R2" if op.seq == write.seq else "R3",
                           f"{page_name(write.page)} with LSN {lsn_text(write.lsn)} {what}; {missing}",
                           write.page)

    def _unprotected(self, write, begin):
        """Return why a home write that is torn would be lost, or None."""
        copy, why = self._copy(write.page, begin)
        for redo in {control[2] for control in self._controls}:
            if copy and self._new_enough(copy, write.page, redo):
                continue
            if not copy and self._only_hints(write, begin, redo):
                continue
            missing = self._not_rebuilt(write, redo, begin)
            if missing:
                return f"{why or 'its copy is too old'}, and {missing}"
        return None

    def _only_hints(self, write, begin, redo):
        """Say whether a page torn in nothing but hints could be told, and made right."""
        first = self.wal.first(write.page, redo)
        if write.page[3] != MAIN or first and first[1] <= write.lsn:
            return False
        digest = self._digest(write.content)
        if None not in (digest, write.before) and self._digest(write.before) != digest:
            return False
        return not self._checksums or self._marker and any(
            digest in (None, batch.notes[write.page])
            for batch in self._notes.get(write.page, ())
            if not batch.gone and batch.number >= self._mark and 0 < batch.durable <= begin)

    def _digest(self, place):
        """Return the digest of a page that is known as a whole, else None.

        Without checksums a record sets PD_ALL_VISIBLE and leaves the LSN; it is left out, too.
        """
        if place is None:
            return None
        source, offset = place
        if isinstance(source, Path):
            with open(source, "rb") as base:
                base.seek(offset)
                page = base.read(PAGE)
        else:
            page = self.recording.data(source)[offset:offset + PAGE]
        return hint_digest(page, all_visible=not self._checksums) if len(page) == PAGE else None

    def _new_enough(self, copy, page, redo):
        """Say whether redo from a redo pointer makes of a copy what the page has to be.

        A free space map may be out of date, if it is whole: WAL has images of it, but not
        its changes, nor that it has begun anew since, as after a truncation.
        """
        return page[3] == FSM or not self.wal.changed_between(page, copy.lsns[page], redo)

    def _logged(self, write):
        """Say whether the log was to protect a page, and is: images leave maps and hints out."""
        return self._marker and write.marked

    def _not_rebuilt(self, write, redo, begin):
        """Return why redo from a redo pointer would not rebuild a page, or None."""
        logged = self._logged(write)
        first = self.wal.first(write.page, redo)
        if first is None or first[0] >= self._wal_end:
            if write.gone or write.hint and not logged or \
                    self.wal.being_dropped(write.page[1], self._wal_durable.at(begin)):
                return None
            if self._uncommitted(write.page[:3]):
                write.excused = True
                return None
            return f"no record from redo pointer {lsn_text(redo)} on rebuilds it"
        lsn, end, effect = first
        if effect != wal.REBUILDS or write.page[3] not in (MAIN, INIT) and logged:
            return f"the first record from redo pointer {lsn_text(redo)} on, at {lsn_text(lsn)}, reads it"
        if end > self._wal_durable.at(begin) and not (write.hint and not logged) and \
                not self.wal.uncommitted(write.page[:3], end):
            return f"the record at {lsn_text(lsn)} that rebuilds it is not durable"
        return None


def _whole(writes):
    """Say whether the last writes of a page, which go on where the one before ended, give all of it."""
    missing = PAGE
    for write in reversed(writes):
        if write.part[1] != missing:
            return False
        missing = write.part[0]
        if missing == 0:
            return True
    return False


def _pages(start, data):
    """Yield (block, content) of a write; the first and the last may be parts of pages."""
    at = 0
    while at < len(data):
        end = at + PAGE - (start + at) % PAGE
        yield (start + at) // PAGE, data[at:end]
        at = end
