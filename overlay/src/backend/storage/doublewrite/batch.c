/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  The batch under way, and parts of others on their way home.
 *
 * A batch is the pages that share one write and one sync of the log.  Its phases:
 *
 *	  TAKEN		its pages have left the staged list; nothing is written
 *	  DURABLE	those that need it are durable in the log; home writes may be
 *				under way
 *
 * It is described in shared memory, so that a flusher that fails on the way leaves
 * it to the next one, who resumes it in the same phase.  All of this runs with
 * DoubleWriteFlushLock held, so batches follow each other to the log.
 *
 * On the way home a batch may be divided into parts; see home.c.  They are put into
 * places in shared memory by the flusher, and carried by whoever gets the lock of a
 * place, without the flush lock.  Who holds the flush lock and has found no part on
 * its way knows that no home write is, until he releases it.
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
	/* NONE, TAKEN, DURABLE */
	{false, true, false},		/* NONE: take */
	{true, false, true},		/* TAKEN: give up; logged */
	{true, false, false},		/* DURABLE: all home */
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
	DWCtl->batch.waits = false;
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
 * Begin a batch of pages that cannot be written home, and keep a batch below the
 * given one in the log.  Returns false if there are none.
 */
bool
dw_begin_batch_of_kept(uint64 before)
{
	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_NONE);
	return dw_enter_phase_taken(dw_take_kept(DWCtl->batch.slots, DW_MAX_BATCH_PAGES,
											 before));
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
		dw_restage_slot(DWCtl->batch.slots[--DWCtl->batch.len], false);
	dw_set_batch_phase(DW_BATCH_NONE);
}

/*
 * Has a sync cycle completed that began after the batch had found no space in
 * the log?  That is a property of the batch, not of who carries it on: it may
 * have been taken up by several processes meanwhile.
 */
bool
dw_batch_has_waited(void)
{
	Assert(DWIsFlusher());
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

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_TAKEN);

	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		DWSlot	   *slot = &DWSlots[DWCtl->batch.slots[i]];

		if (slot->permanent && lsn < slot->lsn)
			lsn = slot->lsn;
	}
	if (!XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
}

/* ---------------------------------------------------------------------
 * Parts on their way home
 * ---------------------------------------------------------------------
 */

/*
 * Automatic: home writes that take longer than this, in nanoseconds, are worth
 * dividing.  Writing 16 pages to the kernel's cache takes about 10,000.
 */
#define DW_SLOW_HOME_WRITE_NSEC	100000

/* Is there something in this place?  Without its lock that may be out of date. */
static bool
dw_place_in_use(int place)
{
	return ((volatile DWHomePart *) DWHome(place))->npages > 0;
}

/* How often it has been filled */
static uint32
dw_round(int place)
{
	return ((volatile DWHomePart *) DWHome(place))->round;
}

static int
dw_places_in_use(void)
{
	int			n = 0;

	for (int i = 0; i < DW_MAX_HOME_PARTS; i++)
		n += dw_place_in_use(i);
	return n;
}

/*
 * Are parts of batches on their way home?  With the flush lock held, "no" stays
 * true, as only its holder in exclusive mode sends some.
 */
bool
dw_homes_under_way(void)
{
	return dw_places_in_use() > 0;
}

/*
 * How many places may be used for parts?  0: batches had better not be divided.
 */
int
dw_parts_wanted(void)
{
	if (double_write_concurrency >= 0)
		return double_write_concurrency;
	return pg_atomic_read_u64(&DWCtl->home_nsec) > DW_SLOW_HOME_WRITE_NSEC ?
		DW_MAX_HOME_PARTS : 0;
}

/*
 * Are more than half of the places in use, so that another batch had better wait?
 */
bool
dw_many_homes_under_way(void)
{
	int			wanted = dw_parts_wanted();

	return wanted > 0 && dw_places_in_use() > wanted / 2;
}

/*
 * Wait until somebody who carries a part frees slots, or ends, if there is one.  So
 * that few wait for the same, each begins to look at another place.
 *
 * As in dw_wait_for_room(), slots that are freed after our look end the wait.
 */
void
dw_wait_for_part(int first)
{
	for (int i = 0; i < DW_MAX_HOME_PARTS; i++)
	{
		int			place = (first + i) % DW_MAX_HOME_PARTS;
		DWHomePart *part = DWHome(place);
		uint64		freed = pg_atomic_read_membarrier_u64(&part->freed);

		if (!dw_place_in_use(place))
			continue;
		if (!dw_stage_has_room())
			LWLockWaitForVar(&part->lock, &part->freed, freed, &freed);
		return;
	}
}

/*
 * Wait until all parts that have been sent before are either home or left over, so
 * that what is marked as discarded is not being written any more. (R7)
 *
 * We don't take their locks, lest somebody who looks for a part that nobody carries
 * take us for a carrier.
 */
void
dw_await_home_writes(void)
{
	uint32		rounds[DW_MAX_HOME_PARTS];

	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	for (int i = 0; i < DW_MAX_HOME_PARTS; i++)
		rounds[i] = dw_place_in_use(i) ? dw_round(i) : dw_round(i) - 1;

	for (int i = 0; i < DW_MAX_HOME_PARTS; i++)
	{
		DWHomePart *part = DWHome(i);
		uint64		freed = pg_atomic_read_membarrier_u64(&part->freed);

		while (dw_place_in_use(i) && dw_round(i) == rounds[i] &&
			   !LWLockWaitForVar(&part->lock, &part->freed, freed, &freed))
			;
	}
	pg_memory_barrier();		/* see dw_leave_description() */
}

/*
 * The newest copy or note of the page in this slot is in a logged batch, which must
 * be kept until the page is home.  Earlier copies are needed only if a home write
 * has failed, and then it is not noted. (R3, R4)  The flush lock is held, and the
 * slot is in the batch.
 */
void
dw_note_logged(int slotno, uint64 batchno)
{
	Assert(DWIsFlusher());
	Assert(DWSlotInState(&DWSlots[slotno], DW_SLOT_BATCH));
	Assert(batchno >= DWCtl->log.epoch && batchno < DWCtl->log.next_batchno);
	DWSlots[slotno].home_batch = batchno;
}

/*
 * First batch with a page that is not home, or that has been removed though
 * home may be torn; the number of the next batch if there is none.  The flush
 * lock is held.
 *
 * Pages that have been logged are in the batch under way, or have returned
 * from one; no part may be on its way.  Pages being removed are looked at last,
 * since that is where those on the list may go.
 */
uint64
dw_first_unfinished_batch(void)
{
	uint64		result = DWCtl->log.next_batchno;
	dlist_iter	iter;

	Assert(DWIsFlusher());
	Assert(!dw_homes_under_way());

	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		if (DWSlots[DWCtl->batch.slots[i]].home_batch != 0)
			result = Min(result, DWSlots[DWCtl->batch.slots[i]].home_batch);
	}

	DWLockMutex();
	if (DWCtl->stage.nreturned > 0)
	{
		dlist_foreach(iter, &DWCtl->stage.staged)
		{
			DWSlot	   *slot = dlist_container(DWSlot, node, iter.cur);

			if (slot->home_batch != 0)
				result = Min(result, slot->home_batch);
		}
	}
	DWUnlockMutex();
	return Min(result, dw_first_removed_batch());
}
