/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  The batch under way.
 *
 * A batch is the pages that share one write and one sync of the log.  Its phases:
 *
 *	  TAKEN		its pages have left the staged list; nothing is written
 *	  DURABLE	those that need it are durable in the log; home writes may be
 *				under way
 *
 * It is described in shared memory, so that a flusher that fails on the way leaves
 * it to the next one, who resumes it in the same phase.  All of this runs with
 * DoubleWriteFlushLock held, so batches follow each other.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"

/*
 * Begin a batch of pages that have been taken, if there are any.
 */
static bool
dw_enter_phase_taken(int npages)
{
	DWCtl->batch.len = npages;
	if (npages == 0)
		return false;
	DWCtl->batch.waits = false;
	DWCtl->batch.phase = DW_BATCH_TAKEN;
	return true;
}

/*
 * Begin a batch, if there is none under way.  Returns false if there is nothing
 * to do.
 */
bool
dw_begin_batch(const DWPageSet *retry)
{
	if (DWCtl->batch.phase != DW_BATCH_NONE)
		return true;
	return dw_enter_phase_taken(dw_take_slots(DWCtl->batch.slots, DW_MAX_BATCH_PAGES,
											  retry));
}

/*
 * Begin a batch of pages that cannot be written home, and keep a batch below the
 * given one in the log.  Returns false if there are none.
 */
bool
dw_begin_batch_of_kept(uint64 before)
{
	return dw_enter_phase_taken(dw_take_kept(DWCtl->batch.slots, DW_MAX_BATCH_PAGES,
											 before));
}

/*
 * Return the pages of the batch to the stage.
 */
void
dw_return_batch(void)
{
	while (DWCtl->batch.len > 0)
		dw_restage_slot(DWCtl->batch.slots[--DWCtl->batch.len], false);
	DWCtl->batch.phase = DW_BATCH_NONE;
}

/*
 * Has a sync cycle completed that began after the batch had found no space in
 * the log?  That is a property of the batch, not of who carries it on: it may
 * have been taken up by several processes meanwhile.
 */
bool
dw_batch_has_waited(void)
{
	return DWCtl->batch.waits && DWCtl->log.cycles_done > DWCtl->batch.waits_since;
}

/*
 * Flush WAL up to the highest LSN of the batch.  Unlogged relations may have
 * made-up LSNs, which must not be looked at.  (R1)  In recovery this brings
 * minRecoveryPoint up to date.
 */
void
dw_flush_wal(void)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		DWSlot	   *slot = &DWSlots[DWCtl->batch.slots[i]];

		if (slot->permanent && lsn < slot->lsn)
			lsn = slot->lsn;
	}
	if (!XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
}

/*
 * The page in this slot has its newest copy in a logged batch, which must be
 * kept until the page is home.  Of earlier batches that hold copies of it,
 * restore would take nothing. (R3, R4)  The flush lock is held, and the slot is
 * in the batch.
 */
void
dw_note_logged(int slotno, uint64 batchno)
{
	DWSlots[slotno].home_batch = batchno;
}

/*
 * First batch with a page that is not home, or that has been removed though
 * home may be torn; the number of the next batch if there is none.  The flush
 * lock is held.
 *
 * Pages that have been logged are in the batch under way, or have returned
 * from one.  Those being removed are looked at last, since that is where pages
 * on the list may go.
 */
uint64
dw_first_unfinished_batch(void)
{
	uint64		result = DWCtl->log.next_batchno;
	dlist_iter	iter;

	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		if (DWSlots[DWCtl->batch.slots[i]].home_batch != 0)
			result = Min(result, DWSlots[DWCtl->batch.slots[i]].home_batch);
	}

	SpinLockAcquire(&DWCtl->mutex);
	if (DWCtl->stage.nreturned > 0)
	{
		dlist_foreach(iter, &DWCtl->stage.staged)
		{
			DWSlot	   *slot = dlist_container(DWSlot, node, iter.cur);

			if (slot->home_batch != 0)
				result = Min(result, slot->home_batch);
		}
	}
	SpinLockRelease(&DWCtl->mutex);
	return Min(result, dw_first_removed_batch());
}
