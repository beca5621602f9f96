/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  The batch on its way to the log.
 *
 * A batch is the pages that share one write and one sync of the log.  Its phases:
 *
 *	  TAKEN		its pages have left the staged list; nothing is written
 *	  WAITING	the log has no space for it until a sync cycle has completed; each
 *				process that meets it waits for the same one
 *	  DURABLE	those that need it are durable in the log; it is to be sent home,
 *				which ends it (home.c)
 *
 * It is described in shared memory, so that a flusher that fails on the way leaves
 * it to the next one, which resumes it in the same phase.  All of this runs with
 * DoubleWriteFlushLock held, so batches follow each other to the log.
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

/* Transitions that are legal, from the phase of the row to that of the column */
static const bool
			dw_batch_transitions[DW_BATCH_PHASES][DW_BATCH_PHASES] PG_USED_FOR_ASSERTS_ONLY = {
	/* NONE, TAKEN, WAITING, DURABLE */
	{false, true, false, false},	/* NONE: take */
	{true, false, true, true},	/* TAKEN: return; no space; logged */
	{true, true, false, false}, /* WAITING: return; a cycle has completed */
	{true, false, false, false},	/* DURABLE: sent home */
};

/*
 * All changes of the batch's phase are made here.
 */
void
dw_set_batch_phase(DWBatchPhase phase)
{
	Assert(DWIsFlusher());
	Assert(dw_batch_transitions[DWCtl->batch.phase][phase]);
	Assert((DWCtl->batch.len > 0) == (phase != DW_BATCH_NONE));

	DWCtl->batch.phase = phase;
}

/*
 * Begin a batch of pages that have been taken, if there are any.
 */
static bool
dw_enter_phase_taken(int npages)
{
	Assert(DWIsFlusher());
	Assert(npages >= 0 && npages <= DW_MAX_BATCH_PAGES);

	DWCtl->batch.len = npages;
	if (npages == 0)
		return false;
	DWCtl->batch.waits_since = DW_NEVER_WAITED;
	dw_set_batch_phase(DW_BATCH_TAKEN);
	return true;
}

/*
 * Begin a batch, if there is none under way.  Returns false if there is nothing
 * to do.
 */
bool
dw_begin_batch(const DWPageSet *retry)
{
	Assert(DWIsFlusher());

	if (DWCtl->batch.phase != DW_BATCH_NONE)
		return true;
	return dw_enter_phase_taken(dw_take_slots(DWCtl->batch.slots, DW_MAX_BATCH_PAGES,
											  retry));
}

/*
 * Begin a batch of pages that cannot be written home, or whose homes may be torn for other
 * reasons, if "touched", and that keep a batch below the given one in the log.  Returns
 * false if there are none.
 */
bool
dw_begin_batch_of_kept(uint64 before, bool touched)
{
	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_NONE);
	return dw_enter_phase_taken(dw_take_kept(DWCtl->batch.slots, DW_MAX_BATCH_PAGES,
											 before, touched));
}

/*
 * Return the pages of the batch to the stage.
 */
void
dw_return_batch(void)
{
	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_TAKEN);
	while (DWCtl->batch.len > 0)
		dw_restage_slot(DWCtl->batch.slots[--DWCtl->batch.len], 0, false);
	dw_set_batch_phase(DW_BATCH_NONE);
}

/*
 * Return whether a sync cycle is under way that waits for a device that does not answer.
 */
bool
dw_cycle_hangs(void)
{
	uint64		since = pg_atomic_read_u64(&DWCtl->log.syncing_since);

	return since != 0 && dw_nanoseconds() >= since + DW_LOST_NSEC;
}

/*
 * Return whether the batch has waited for a sync cycle that could free space for it,
 * and that has completed.
 */
bool
dw_batch_has_waited(void)
{
	Assert(DWIsFlusher());
	return pg_atomic_read_u64(&DWCtl->log.cycles_done) > DWCtl->batch.waits_since;
}

/*
 * The batch has found no space in the log, and waits for a sync cycle that begins from
 * now on.
 */
void
dw_batch_waits(void)
{
	dw_set_batch_phase(DW_BATCH_WAITING);
	DWCtl->batch.waits_since = DWCtl->log.cycles_begun;
	DWCtl->batch.copies_left = dw_copies_left();
	DWCount(log_full, 1);
}

/*
 * If the batch waits, and the cycle has completed, or seems not to, let it go on.  Returns
 * whether it still has to wait.
 */
bool
dw_batch_must_wait(void)
{
	Assert(DWIsFlusher());

	if (DWCtl->batch.phase == DW_BATCH_WAITING &&
		(dw_batch_has_waited() || dw_cycle_hangs()))
		dw_set_batch_phase(DW_BATCH_TAKEN);
	return DWCtl->batch.phase == DW_BATCH_WAITING;
}

/*
 * Flush WAL up to the highest LSN of the batch.  Unlogged relations may have
 * made-up LSNs, which must not be looked at.  (R1)  A page that has been dropped goes
 * nowhere, so a damaged one does not fail the batch for good.  In recovery this brings
 * minRecoveryPoint up to date.
 */
void
dw_flush_wal(void)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_TAKEN);

	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		DWSlot	   *slot = &DWSlots[DWCtl->batch.slots[i]];

		/*
		 * An unlogged page's LSN may be a made-up one of GiST, see
		 * GetFakeLSNForUnloggedRel(), past the end of WAL.  To flush up to it
		 * would fail, and the whole batch with it.
		 */
		if (slot->permanent && !slot->discarded && lsn < slot->lsn)
			lsn = slot->lsn;
	}
	if (!XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
}

/*
 * The newest copy or note of the page in this slot is in a logged batch, which must
 * be kept until the page is home.  Earlier copies are needed only if a home write
 * has failed, and then it is not noted. (R3, R4)  The flush lock is held, and the
 * slot is in the batch.
 */
void
dw_remember_logged(int slotno, uint64 batchno)
{
	Assert(DWIsFlusher());
	Assert(DWSlotInState(&DWSlots[slotno], DW_SLOT_BATCH));
	Assert(batchno >= DWCtl->log.epoch && batchno < DWCtl->log.next_batchno);
	DWSlots[slotno].copy_batchno = batchno;
}

/*
 * Return whether there is a batch that is not sent home yet.  Without the flush lock,
 * that may change at any time.
 */
bool
dw_batch_under_way(void)
{
	return ((volatile DWBatchState *) &DWCtl->batch)->phase != DW_BATCH_NONE;
}
