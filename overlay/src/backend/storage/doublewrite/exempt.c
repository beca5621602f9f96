/*-------------------------------------------------------------------------
 *
 * exempt.c
 *	  Pages that need no double write, because redo rebuilds them.
 *
 * A page may be torn freely if the first WAL record that recovery would meet
 * for its block, from its redo pointer on, rebuilds the page whole: a
 * full-page image that redo applies, or a record that initialises the page.
 * First matters: any earlier record would make redo read the torn page.
 *
 * On a server that writes WAL we know that of blocks that were added to their
 * file in the buffer they are still in.  The first record of such a block
 * initialises the page or carries an image, as a rule; we remember its end
 * (img).  Recovery from redo pointer R starts with that record if R < img,
 * since R lies between records.  Before R there can be no record in this life
 * of the block, and after R none of an earlier life if the file was not
 * truncated since R.  All we know is lost when the buffer changes hands: a
 * page read from disk does not tell what records refer to it.
 *
 * Which redo pointers count?  Until the checkpoint under way has drained the
 * stage, every page that we write home will be synced before that checkpoint
 * completes, so a crash that tears it recovers from the last completed one.
 * After the drain both must be satisfied, until the new one has completed.
 * (R2, R5)
 *
 * During recovery the rule is simpler and covers pages we never saw being
 * rebuilt: if all WAL since the redo pointer was written with full-page
 * images on, the first record of each page changed since then carries one.
 *
 * Only main forks are ever exempt.  Redo reads pages of the visibility map
 * and the free space map without having registered them.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/exempt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "common/hashfn.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"

/*
 * The buffer will hold another block, of which nothing is known.
 */
void
DoubleWriteForgetBuffer(int buf_id)
{
	DWBufferImages[buf_id].img = InvalidXLogRecPtr;
	DWBufferImages[buf_id].born = false;
}

/*
 * The buffer holds a block that has just been added to its file.  (Records
 * that redo applies to it are not noted.)
 */
void
DoubleWriteBufferBorn(int buf_id)
{
	DWBufferImages[buf_id].img = InvalidXLogRecPtr;
	DWBufferImages[buf_id].born = !RecoveryInProgress();
}

/*
 * A WAL record that ends at endptr refers to a page; rebuilds tells whether
 * redo rebuilds the page from it alone.  If the page is in a shared buffer,
 * the caller holds its content lock exclusively.
 */
void
DoubleWriteNoteRecord(const void *page, XLogRecPtr endptr, bool rebuilds)
{
	Size		offset = (const char *) page - BufferBlocks;
	DWBufferImage *image;

	/* built in private memory: it does not pass through the stage */
	if ((const char *) page < BufferBlocks || offset >= (Size) NBuffers * BLCKSZ)
		return;

	/* only the first record of a block counts */
	image = &DWBufferImages[offset / BLCKSZ];
	if (!image->born)
		return;
	image->born = false;
	if (rebuilds)
		image->img = endptr;
}

/* ---------------------------------------------------------------------
 * Truncations
 * ---------------------------------------------------------------------
 */

static pg_atomic_uint64 *
dw_truncate_bucket(const RelFileLocator *rlocator)
{
	uint32		hash = hash_bytes((const unsigned char *) rlocator,
								  sizeof(RelFileLocator));

	return &DWCtl->truncated[hash % DW_TRUNCATE_BUCKETS];
}

/*
 * Remember that all records for blocks that a truncation of this relation
 * removes end at or before the present end of WAL.
 */
void
dw_note_truncate(const RelFileLocator *rlocator)
{
	XLogRecPtr	lsn;

	lsn = RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) : GetXLogInsertRecPtr();
	pg_atomic_monotonic_advance_u64(dw_truncate_bucket(rlocator), lsn);
}

/*
 * May this relation have been truncated since the server was started?
 */
bool
dw_was_truncated(const RelFileLocator *rlocator)
{
	return pg_atomic_read_u64(dw_truncate_bucket(rlocator)) != 0;
}

static bool
dw_truncated_after(const BufferTag *tag, XLogRecPtr redo)
{
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);

	return pg_atomic_read_u64(dw_truncate_bucket(&rlocator)) > redo;
}

/* ---------------------------------------------------------------------
 * The decision
 * ---------------------------------------------------------------------
 */

/*
 * Redo has met a record that says images were switched off.
 */
void
DoubleWriteNoteImagesOff(XLogRecPtr recptr)
{
	SpinLockAcquire(&DWCtl->mutex);
	if (DWCtl->images_off < recptr)
		DWCtl->images_off = recptr;
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * Was all WAL replayed since the last restartpoint written with images on?
 */
bool
dw_replayed_images(void)
{
	bool		result;

	SpinLockAcquire(&DWCtl->mutex);
	result = DWCtl->redo_images && DWCtl->images_off < DWCtl->redo;
	SpinLockRelease(&DWCtl->mutex);
	return result;
}

static bool
dw_rebuilt_from(const DWSlot *slot, XLogRecPtr redo)
{
	return slot->img > redo && !dw_truncated_after(&slot->tag, redo);
}

/*
 * Would redo rebuild the staged page before it reads it, whichever redo
 * pointer a crash from now on might start from?
 *
 * The caller holds DoubleWriteFlushLock, so that no checkpoint can drain the
 * stage between this decision and the home write.
 */
bool
dw_redo_rebuilds(const DWSlot *slot)
{
	XLogRecPtr	redo;
	XLogRecPtr	pending;

	Assert(LWLockHeldByMeInMode(DoubleWriteFlushLock, LW_EXCLUSIVE));

	if (BufTagGetForkNum(&slot->tag) != MAIN_FORKNUM)
		return false;

	SpinLockAcquire(&DWCtl->mutex);
	redo = DWCtl->redo;
	pending = DWCtl->redo_pending;
	SpinLockRelease(&DWCtl->mutex);

	if (XLogRecPtrIsInvalid(redo))
		return false;

	if (RecoveryInProgress())
		return dw_replayed_images() &&
			slot->lsn > redo &&
			(XLogRecPtrIsInvalid(pending) || slot->lsn > pending);

	return dw_rebuilt_from(slot, redo) &&
		(XLogRecPtrIsInvalid(pending) || dw_rebuilt_from(slot, pending));
}
