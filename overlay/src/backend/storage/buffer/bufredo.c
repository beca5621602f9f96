/*-------------------------------------------------------------------------
 *
 * bufredo.c
 *	  Buffers that are clean when redo reuses them.
 *
 * Redo should apply records and do nothing else, but spent much of its time on
 * flushing dirty victims.  While it is in need of clean buffers, the background
 * writer goes by other rules than in normal operation: it does not follow
 * allocations, it cleans all that can be reused, up to one lap ahead of the
 * clock sweep.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/buffer/bufredo.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/procsignal.h"

/*
 * During recovery, bgwriter is woken up when a share of shared buffers has been
 * allocated: often enough to stay well within its lead of one lap, rarely
 * enough to have a batch of pages for the write-back stage each time.
 */
#define BGWRITER_REDO_ALLOCS		Max(NBuffers / 16, 64)

/*
 * Return whether bgwriter should clean all buffers ahead of redo.
 *
 * It should while redo has been busy since the last time, and for a lap after redo
 * has met a dirty victim.  A standby that keeps up with its primary has time to
 * write back a victim now and then, and pages that are cleaned that early are
 * changed again and written twice.
 *
 * 'total_alloc' is the number of allocations that bgwriter has seen.
 */
static bool
BgWriterAheadOfRedo(uint64 total_alloc)
{
	static uint64 ahead_until = 0;
	uint32		dirty_victims;

	if (bgwriter_lru_maxpages <= 0 || !RecoveryInProgress())
	{
		StrategyWakeBgWriterAfter(-1, 0);
		return false;
	}

	if (!StrategyRedoSync(&dirty_victims))
	{
		ahead_until = 0;
		StrategyWakeBgWriterAfter(-1, 0);
		return false;
	}

	if (dirty_victims > 0)
		ahead_until = total_alloc + NBuffers;
	if (total_alloc >= ahead_until)
	{
		/* be told of the first one */
		StrategyWakeBgWriterAfter(MyProcNumber, 0);
		return false;
	}

	/* be back before much of what we clean has been used up */
	StrategyWakeBgWriterAfter(MyProcNumber, BGWRITER_REDO_ALLOCS);
	return true;
}

/*
 * Write out the dirty ones of some buffers right ahead of the clock sweep,
 * recently used or not.
 */
static void
SyncBuffersAheadOfRedo(int buf_id, int nbuffers)
{
	for (int i = 0; i < nbuffers; i++)
	{
		if (SyncOneBuffer(buf_id, false) & BUF_WRITTEN)
			PendingBgWriterStats.buf_written_clean++;
		buf_id = (buf_id + 1) % NBuffers;
	}
}

/*
 * The part of BgBufferSync() while redo needs clean buffers: clean all reusable
 * ones up to one lap ahead of the clock sweep.
 *
 * Takes what StrategySyncStart() has returned.  Returns whether redo needs it,
 * and in *lapped, whether that was so before.
 */
bool
BgBufferSyncAheadOfRedo(int strategy_buf_id, uint32 strategy_passes,
						uint32 recent_alloc, bool *lapped)
{
	/* Allocations in all, the first of which have taken free buffers */
	static uint64 total_alloc = 0;

	/*
	 * How far the last call has got ahead of the clock sweep, the place of
	 * that, and how many reusable buffers are in between
	 */
	static int64 lead = 0;
	static int	next_to_clean;
	static uint32 next_passes;
	static int64 reusable;
	int64		last_lead = lead;

	total_alloc += recent_alloc;
	if (!BgWriterAheadOfRedo(total_alloc))
	{
		lead = 0;
		return false;
	}

	/* Begin at the clock sweep if it is not behind us, else go on. */
	if (last_lead > 0)
		lead = (int64) (int32) (next_passes - strategy_passes) * NBuffers +
			next_to_clean - strategy_buf_id;
	Assert(lead <= NBuffers);
	if (lead <= 0)
	{
		lead = 0;
		next_to_clean = strategy_buf_id;
		next_passes = strategy_passes;
	}
	*lapped = lead == NBuffers;

	/* those that the clock sweep has not come to, if evenly spread */
	reusable = lead > 0 ? reusable * lead / last_lead : 0;

	/* A lap may take long, so look out for what cannot wait. */
	while (lead < NBuffers && !ProcSignalBarrierPending && !ShutdownRequestPending)
	{
		int			sync_state = SyncOneBuffer(next_to_clean, true);

		if (sync_state & BUF_WRITTEN)
			PendingBgWriterStats.buf_written_clean++;
		if (sync_state & (BUF_WRITTEN | BUF_REUSABLE))
			reusable++;
		if (++next_to_clean >= NBuffers)
		{
			next_to_clean = 0;
			next_passes++;
		}
		lead++;
	}

	/*
	 * Where all buffers have been used much, redo reuses them in the order of
	 * their places, soon after there has been none.  Clean as many as it may
	 * take before the next round, and no more, as they may be in use.  Not
	 * while there are enough free buffers, of course.
	 */
	if (total_alloc + (uint64) recent_alloc * 2 >= (uint64) NBuffers &&
		reusable < BGWRITER_REDO_ALLOCS * 2)
		SyncBuffersAheadOfRedo(strategy_buf_id,
							   Min(Min(recent_alloc, BGWRITER_REDO_ALLOCS) * 2,
								   NBuffers));

	return true;
}
