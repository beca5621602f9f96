/*-------------------------------------------------------------------------
 *
 * hints.c
 *	  Pages in which nothing but hints has changed.
 *
 * A SELECT that is the first to meet the rows of a transaction records the
 * outcome of that transaction in their tuples.  No WAL record says so, and
 * none is needed: with or without such hints the page is right, and so is any
 * mixture of the two that a crash leaves of a page that was being written.
 * Only its checksum is wrong then.  So the log gets a note of the page
 * instead of a copy.  From the note a start can tell that nothing else is
 * wrong, and corrects the checksum.  Without data checksums there is nothing
 * to correct, and no note.  (R2)
 *
 * When is it certain that nothing else has changed?
 *
 * *  All that WAL knows of a page up to the redo pointer of the last completed
 *	  checkpoint is durable at home. (R5)  So if its LSN is not beyond that
 *	  when the heap sets a hint, the page is like the one at home except for
 *	  such hints.  It stays so until a process inserts a record of another
 *	  change, which XLogInsert() reports.  Setting a hint may raise the LSN by
 *	  a record of its own, with which redo does nothing unless it has an
 *	  image; it tells nothing then.
 *
 * *  A page is one of the heap's if the heap says so.  Other access methods
 *	  have hints of their own, which DWHintDigest() does not know.  One that
 *	  has the heap set hints in its pages must have the layout of the heap's,
 *	  and no other hints; otherwise a torn page stays damaged.  (Sequences
 *	  have one, in pages from PostgreSQL 9.0.)
 *
 * *  A process that changes a page otherwise marks its buffer dirty.  As long
 *	  as no record is reported then, as in redo or with wal_level = minimal,
 *	  nothing is known of the page while it is in its buffer.
 *
 * *  Versions of the page that were written home in between differ in no more
 *	  either, or the log has a copy of one, which a start prefers to newer
 *	  notes (DWNewestCopies()).  An atomic write without a copy has no change
 *	  that lacks a record, except for what VACUUM repairs in a damaged page.
 *	  A page that still needs such a copy, as it could not be written home, is
 *	  copied again if the epoch's table has forgotten it, so that a note does
 *	  not take its place.
 *
 * Notes do not count for the epoch: the next version of the page may have
 * changed in other ways.  But like a copy, a note keeps its batch live until
 * the home write is durable.  (R3)
 *
 * A note does not bring back a sector that the crash has made unreadable.
 * (R8)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/hints.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"

/*
 * Return whether the page has no change except hints that a crash would not
 * find at home.
 *
 * Other backends may set hints meanwhile, and raise its LSN.  An LSN read
 * then may be half of one and half of another.  The unlocked read serves only
 * to say no, which is wrong for no page and costs little; most pages that are
 * changed much get that answer.
 */
static bool
dw_is_checkpointed(Buffer buffer)
{
	XLogRecPtr	redo = pg_atomic_read_u64(&DWCtl->recover_from);

	return PageGetLSN(BufferGetPage(buffer)) <= redo &&
		BufferGetLSNAtomic(buffer) <= redo;
}

/*
 * Note that the heap has set a hint in a page, if that is all that has changed
 * in it; see DoubleWriteRememberHeapHint().
 */
void
DoubleWriteRememberFirstHint(Buffer buffer)
{
	if (dw_is_checkpointed(buffer))
		DoubleWriteRecordsOf(buffer)->only_hints = true;
}

/*
 * Return whether a page on its way home is like the one that is durable
 * there, except for hints of the heap, unless the log has a copy to be
 * restored first.
 */
bool
dw_only_hints_changed(const DWSlot *slot)
{
	Assert(DWIsFlusher());

	return slot->records.only_hints && !slot->records.unreported &&
		!slot->records.hidden && XLogIsNeeded() &&
		BufTagGetForkNum(&slot->tag) == MAIN_FORKNUM &&
		!slot->failed && !slot->use_log && slot->copy_batchno == 0;
}
