/*-------------------------------------------------------------------------
 *
 * upkeep.c
 *	  Sync cycles, and what else the checkpointer does for the log.
 *
 * When half of the log is in use, or would be if notes were copies, the
 * checkpointer is asked to run a sync cycle, which frees it, and it creates
 * segments while the log grows.  Flushers go on meanwhile; only a flusher that finds the
 * log full runs a cycle itself.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/upkeep.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/doublewrite_internal.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"

static int
dw_segments_in_use(void)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return DWCtl->log.segno + 1 - DWCtl->log.first_segno;
}

/*
 * While copies wait for being needed a sync cycle has them written home first.  Redo is
 * going to do that, so it is put off until all of the bound is in use.
 */
static bool
dw_log_half_full(void)
{
	return dw_segments_in_use() > dw_log_bound_segments() / (dw_copies_left() > 0 ? 1 : 2);
}

/*
 * Return the first batch that does not begin in one of the first segments of the log, so
 * many of them: a mark there would free these.
 */
uint64
dw_first_batch_behind(int nsegments)
{
	uint64		segno = DWCtl->log.first_segno + nsegments;

	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return segno > DWCtl->log.segno ? DWCtl->log.next_batchno :
		DWCtl->log.seg_first_batch[segno % DW_MAX_SEGMENTS];
}

/*
 * Return whether there are as many notes in this epoch as there would be copies in half
 * of the log.  A restore reads and writes their pages, too.
 */
static bool
dw_many_notes(void)
{
	uint64		notes = dw_log_taken().notes - DWCtl->log.epoch_after.notes;

	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return notes > (uint64) dw_log_bound_segments() * DW_SEGMENT_BLOCKS / 2;
}

/*
 * Return whether it is time for a sync cycle, lest a process have to wait for one, or a
 * start for many pages: when half of the log's bound is in use, or would be if notes
 * were copies, or most of the table of files.
 */
bool
dw_cycle_needed(void)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return DWCtl->log.open &&
		(dw_log_half_full() || dw_many_dirty_files() || dw_many_notes());
}

/*
 * Return how far the mark can rise when files have been synced.
 */
static uint64
dw_next_mark(void)
{
	return Min(dw_first_unfinished_batch(), dw_first_failed_removal());
}

/*
 * Pages that cannot be written home would keep the log in use from their copies
 * on: log them once more, so that they keep what is new.  If there is no space,
 * let it be, unless nothing else keeps the log, which may have grown to its bound before
 * the first cycle. (R3, R11)  Flush lock held.
 */
static void
dw_renew_copies(void)
{
	uint64		before = DWCtl->log.next_batchno;
	bool		beyond_bound = dw_pages_have_failed() &&
		dw_first_kept_batch(before) == dw_next_mark();
	bool		logged = true;

	Assert(DWIsFlusher());
	Assert(DWCtl->log.armed);

	while (logged && DWCtl->batch.phase == DW_BATCH_NONE &&
		   dw_begin_batch_of_kept(before, false))
	{
		int			slots[DW_MAX_BATCH_PAGES];
		int			n = 0;

		/* not up to the LSNs of pages that are removed meanwhile */
		dw_flush_wal();
		for (int i = 0; i < DWCtl->batch.len; i++)
		{
			if (!DWSlots[DWCtl->batch.slots[i]].discarded)
				slots[n++] = DWCtl->batch.slots[i];
		}
		logged = n == 0 || dw_log_write_batch(slots, n, n, beyond_bound);
		dw_return_batch();
	}
}

/*
 * Return whether this mark is to be written.  It is not if it frees no segment and
 * would take the last block of a log that may be unable to grow: that is for a mark
 * that does.  Flush lock held.
 */
static bool
dw_mark_is_worth_it(uint64 mark)
{
	Assert(DWIsFlusher());

	if (DWCtl->log.blockno < DW_SEGMENT_BLOCKS - 1 ||
		DWCtl->log.segno < DWCtl->log.last_segno ||
		DWCtl->log.first_segno == DWCtl->log.segno)
		return true;
	return DWCtl->log.seg_first_batch[(DWCtl->log.first_segno + 1) % DW_MAX_SEGMENTS] <= mark;
}

/*
 * First half of a sync cycle: choose what to sync, and which mark may be set then.
 */
static void
dw_begin_cycle(uint64 *mark, DWDirtyFile **files, int *nfiles)
{
	Assert(DWIsFlusher());

	/* by these the size of the log is judged */
	if (dw_log_half_full() || dw_many_notes())
		DWCount(space_cycles, 1);
	else if (dw_many_dirty_files())
		DWCount(file_cycles, 1);

	if (DWCtl->log.armed)
		dw_renew_copies();
	*mark = dw_next_mark();
	dw_epoch_begin(*mark);
	*files = dw_copy_dirty_files(nfiles);
}

/*
 * Second half: free the log up to the mark.
 */
static void
dw_end_cycle(uint64 mark)
{
	Assert(DWIsFlusher());

	if (!DWCtl->log.open)		/* disarmed meanwhile */
		return;
	if (dw_mark_is_worth_it(mark))
		dw_log_set_low_water(mark);
	dw_forget_files(mark);
}

/*
 * Return whether a cycle is not needed any more, as one has completed that began later.
 */
static bool
dw_cycle_is_done(uint64 begun)
{
	return pg_atomic_read_membarrier_u64(&DWCtl->log.cycles_done) > begun ||
		!((volatile DWCtlData *) DWCtl)->log.open;
}

/*
 * The work of dw_sync_cycle(), with the sync lock held.
 *
 * Where a home write does not come back, as on a frozen file system, files could not be
 * synced either: the cycle ends without freeing anything, and the batch that waits for it
 * goes into a log that grows beyond its bound.  So it does where a sync does not come back
 * (dw_cycle_hangs()).
 */
static void
dw_run_sync_cycle(void)
{
	DWDirtyFile *files;
	int			nfiles;
	uint64		mark;
	uint64		number;
	bool		frees;

	Assert(LWLockHeldByMe(DoubleWriteSyncLock));

	/* what is on its way home relies on the log, and keeps us from freeing it */
	DWCtl->log.futile = !dw_lock_flush_idle(LW_EXCLUSIVE, &DWPermanentPages, true) ||
		dw_write_is_lost();
	number = ++DWCtl->log.cycles_begun;
	frees = DWCtl->log.open && !DWCtl->log.futile;
	if (frees)
		dw_begin_cycle(&mark, &files, &nfiles);
	LWLockRelease(DoubleWriteFlushLock);

	INJECTION_POINT("doublewrite-sync-cycle", NULL);
	if (frees)
	{
		dw_sync_files(files, nfiles);
		pg_atomic_write_u64(&DWCtl->log.syncing_since, 0);
		pfree(files);
		INJECTION_POINT("doublewrite-sync-cycle-synced", NULL);
		dw_lock_flush(LW_EXCLUSIVE);
		dw_end_cycle(mark);
		LWLockRelease(DoubleWriteFlushLock);
		DWCount(sync_cycles, 1);
	}
	pg_atomic_write_membarrier_u64(&DWCtl->log.cycles_done, number);
}

/* This process runs a cycle: an exit takes the sync lock away before it cleans up */
static bool dw_runs_cycle = false;

static bool
dw_try_sync_lock(void)
{
	return LWLockConditionalAcquire(DoubleWriteSyncLock, LW_EXCLUSIVE);
}

/*
 * Run a sync cycle, unless one has completed that began later than the given one.  A
 * process that finds one under way waits for its end, but not if that hangs.
 */
static void
dw_sync_cycle_after(uint64 begun)
{
	while (!dw_cycle_is_done(begun))
	{
		(void) dw_wait_on(&DWCtl->log.cycle_ended, dw_try_sync_lock,
						  PG_WAIT_LWLOCK | DoubleWriteSyncLock->tranche);
		if (LWLockHeldByMe(DoubleWriteSyncLock))
		{
			if (!dw_cycle_is_done(begun))
			{
				/* a sync may not come back */
				dw_let_others_make_room();
				dw_runs_cycle = true;
				dw_run_sync_cycle();
				dw_runs_cycle = false;
			}
			LWLockRelease(DoubleWriteSyncLock);
			ConditionVariableBroadcast(&DWCtl->log.cycle_ended);
		}
		else if (dw_cycle_hangs())
			break;
	}
	dw_tell_room(1);
}

/*
 * An error ends a cycle of this process, or its wait for that of another one.
 */
static void
dw_abandon_cycle(int code, Datum arg)
{
	if (dw_runs_cycle)
		pg_atomic_write_u64(&DWCtl->log.syncing_since, 0);
	dw_runs_cycle = false;
	dw_unlock_after_error();
	ConditionVariableBroadcast(&DWCtl->log.cycle_ended);
}

/*
 * Sync all files that the live log protects, and free the log up to there.
 *
 * This bounds the log between checkpoints.  Any process can do it, and none
 * waits for it with the flush lock held, so pages keep moving while files
 * are synced.  begun is the number of the newest cycle when the caller found
 * that it needs one; if a later one has completed since, we return at once.  One
 * that had begun before does not count: it may have decided what to free too
 * early.  If one hangs, we return false, after a second.
 */
bool
dw_sync_cycle(uint64 begun)
{
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));
	Assert(!LWLockHeldByMe(DoubleWriteSyncLock));

	PG_ENSURE_ERROR_CLEANUP(dw_abandon_cycle, (Datum) 0);
	{
		dw_sync_cycle_after(begun);
	}
	PG_END_ENSURE_ERROR_CLEANUP(dw_abandon_cycle, (Datum) 0);
	return dw_cycle_is_done(begun);
}

/*
 * A checkpoint is going to write its mark.  Others may have filled the log since its
 * drain, up to the block that is kept for a mark that frees something.  If this one does
 * not, free what they have written as well, or make the log longer.  If neither can be,
 * the checkpoint fails, and the block stays for the next one. (R11)
 *
 * The flush lock is held, and may be released meanwhile; then the end of recovery may
 * have ended the use of the log.
 */
void
dw_have_room_for_mark(uint64 mark)
{
	uint64		begun = DWCtl->log.cycles_begun;

	if (dw_mark_is_worth_it(mark))
		return;

	LWLockRelease(DoubleWriteFlushLock);
	dw_sync_cycle(begun);
	dw_lock_flush(LW_EXCLUSIVE);
	if (DWCtl->log.open && !dw_mark_is_worth_it(mark) &&
		DWCtl->log.last_segno + 1 - DWCtl->log.first_segno < DW_MAX_SEGMENTS &&
		!dw_create_segment())
		dw_report_no_segment(ERROR, false);
}

/*
 * Called by the checkpointer when it has time, and after each page that a
 * checkpoint has written: do what flushers have asked for.
 *
 * One segment at a time, so that the checkpointer can attend to other things
 * between two of them.  A checkpoint creates none unless it is ahead of its
 * schedule: it would take longer, and flushers can help themselves.  Sync
 * cycles get no more than half of its time, or pages that keep the log full
 * could keep the checkpoint from ending.  While a home write is lost, or another
 * process' cycle hangs, they would free nothing.  Copies that are in the first half of
 * the log only are brought home before; if that is impossible, it is tried less often, too.
 */
void
DoubleWriteUpkeep(bool busy)
{
	static instr_time cycle_end;
	static int64 cycle_msec = 0;
	static bool segments_postponed = false;
	static bool stuck = false;
	uint64		begun;
	uint64		half;
	bool		needed;

	Assert(AmCheckpointerProcess());

	if (pg_atomic_read_u32(&DWCtl->upkeep_requested) == 0 &&
		(busy || !segments_postponed))
		return;
	if (busy && cycle_msec > 0 && dw_msec_since(cycle_end) < cycle_msec)
		return;

	/* a full barrier: what is asked for after our look counts as new */
	pg_atomic_exchange_u32(&DWCtl->upkeep_requested, 0);

	segments_postponed = busy;
	if (!busy && dw_prepare_segment())
		dw_request_upkeep();

	/* what is kept for removed pages could keep a cycle from freeing more */
	dw_settle_removals();

	dw_lock_flush(LW_SHARED);
	needed = dw_cycle_needed() && !dw_write_is_lost() && !dw_cycle_hangs() &&
		(!stuck || dw_msec_since(cycle_end) >= cycle_msec);
	begun = DWCtl->log.cycles_begun;
	half = dw_first_batch_behind((dw_segments_in_use() + 1) / 2);
	LWLockRelease(DoubleWriteFlushLock);

	if (needed)
	{
		instr_time	start;

		INSTR_TIME_SET_CURRENT(start);
		stuck = !dw_bring_before(half);
		if (!stuck || dw_first_pending_batch() > dw_read_locked(&DWCtl->log.low_water))
			dw_sync_cycle(begun);
		cycle_msec = dw_msec_since(start);
		INSTR_TIME_SET_CURRENT(cycle_end);
	}
}
