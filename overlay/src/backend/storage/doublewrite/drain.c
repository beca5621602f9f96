/*-------------------------------------------------------------------------
 *
 * drain.c
 *	  Bringing home what has been staged until now.
 *
 * Checkpoints do that, and processes that are going to look at files without regard
 * to the stage. (R5, R6)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/drain.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "storage/smgr.h"
#include "utils/wait_event.h"

/*
 * Bring the given pages home that were staged before seq.  Throws an error if one of them
 * cannot be written.  Waits, with no lock held, if a write of one does not come back.
 *
 * Pages may wait for older versions of them, so we do, too.
 */
static void
dw_drain_pages(const DWPageSet *pages, uint64 seq)
{
	uint64		since = DW_FIRST_ATTEMPT;
	DWSlotState state;

	while (dw_unfinished_before(seq, pages, &state))
	{
		/*
		 * A page being replaced is on its way out of a buffer in another
		 * process, which is busy copying it: a matter of microseconds, unless
		 * that has lost the processor, or has been stopped.
		 */
		if (state == DW_SLOT_FILLING)
		{
			dw_wait_a_moment(100, WAIT_EVENT_DOUBLE_WRITE_HOME);
			CHECK_FOR_INTERRUPTS();
			continue;
		}

		/* checkpoints come here, and may wait for long */
		AbsorbSyncRequests();

		/* a batch that an error has left over ends with the next flusher */
		if (state == DW_SLOT_BATCH && dw_homes_under_way(pages) && !dw_batch_under_way())
		{
			dw_carry_runs();
			dw_await_a_run();
		}
		else
			dw_try_home(pages, &since);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Bring all pages of a set home that were staged before the call, and return with the
 * flush lock held and none of the set being written.
 */
void
dw_drain_and_lock(const DWPageSet *pages)
{
	uint64		seq = dw_current_seq();
	DWSlotState state;

	for (;;)
	{
		dw_drain_pages(pages, seq);
		(void) dw_lock_flush_idle(LW_EXCLUSIVE, pages, false);
		if (DWCtl->batch.phase == DW_BATCH_NONE &&
			!dw_unfinished_before(seq, pages, &state))
			return;
		/* finish what another flusher has left */
		dw_flush_batch(NULL);
	}
}

static bool
dw_tag_is_init_fork(const BufferTag *tag, const void *arg)
{
	return BufTagGetForkNum(tag) == INIT_FORKNUM;
}

/*
 * Bring all pages of a set home that were staged before the call.
 */
void
dw_drain_set(const DWPageSet *pages)
{
	if (pg_atomic_read_membarrier_u32(&DWCtl->stage.ninuse) == 0)
		return;
	dw_drain_pages(pages, dw_current_seq());
}

/*
 * Bring all pages home that were staged before the call.
 *
 * On return they have been handed to the kernel and their sync requests are
 * registered; they need not be durable.  Throws an error if a page cannot be
 * written.
 */
void
DoubleWriteDrain(void)
{
	dw_drain_set(&DWAllPages);
}

/*
 * The same for init forks, of which copies are going to be made.
 */
void
DoubleWriteDrainInitForks(void)
{
	DWPageSet	pages = {dw_tag_is_init_fork, NULL, PG_INT32_MAX};

	dw_drain_set(&pages);
}

/*
 * The same for pages of a relation, and for those that are in the log only.  Whether
 * others can be written does not matter.
 */
void
DoubleWriteDrainRelation(const RelFileLocator *rlocator)
{
	DWPageSet	pages = {dw_tag_in_relation, rlocator, PG_INT32_MAX};

	dw_bring_copies(&pages, rlocator);
	dw_drain_set(&pages);
}

/*
 * The same for pages of a database.
 */
void
DoubleWriteDrainDatabase(Oid dbid)
{
	DWPageSet	pages = {dw_tag_in_database, &dbid, PG_INT32_MAX};

	dw_bring_copies(&pages, NULL);
	dw_drain_set(&pages);
}

/*
 * Relations that were filled without WAL are about to be synced and committed.
 * If one of them has been truncated before, the log may hold copies from its
 * earlier life, which no redo would set right after a restore: make the log
 * forget them. (R5)
 *
 * Pages of others that cannot be written home need not fail us, since a sync
 * cycle logs them once more.  Only if it has no room for that, we get
 * their error. (R11)
 */
void
DoubleWriteForgetTruncated(SMgrRelation *rels, int nrels)
{
	bool		truncated = false;
	bool		tried = false;
	uint64		newest;

	for (int i = 0; i < nrels; i++)
		truncated |= dw_was_truncated(&rels[i]->smgr_rlocator.locator);
	if (!truncated)
		return;

	/* a cycle that another process had begun earlier does not count */
	newest = dw_read_locked(&DWCtl->log.last_page_batch);
	while (((volatile DWCtlData *) DWCtl)->log.open &&
		   dw_read_locked(&DWCtl->log.low_water_logged) <= newest)
	{
		if (tried)
			DoubleWriteDrain();
		else
			dw_flush_batch(NULL);	/* at least what is under way */
		dw_settle_removals();
		dw_refuse_to_forget_removal();

		/* a cycle that began while a batch was under way renews no copies */
		dw_sync_cycle(dw_read_locked(&DWCtl->log.cycles_begun));
		tried = true;
	}
}

/*
 * Report figures about the write-back since the previous call, in one line.
 */
void
dw_log_checkpoint_stats(void)
{
	DWStats    *s = &DWCtl->stats;
	pg_atomic_uint64 *fields[] = {
		&s->home_pages, &s->home_writes,
		&s->logged, &s->atomic_pages, &s->exempt, &s->in_epoch, &s->only_hints,
		&s->log_syncs, &s->log_sync_usec, &s->sync_cycles, &s->stage_full
	};
	static uint64 last[lengthof(fields)];
	uint64		d[lengthof(fields)];

	for (int i = 0; i < lengthof(fields); i++)
	{
		uint64		now = pg_atomic_read_u64(fields[i]);

		d[i] = now - last[i];
		last[i] = now;
	}

	if (!log_checkpoints || d[0] == 0)
		return;
	ereport(LOG,
			(errmsg("write-back since last checkpoint: wrote %" PRIu64 " pages home in %" PRIu64 " writes; "
					"%" PRIu64 " double-written, %" PRIu64 " atomically, %" PRIu64 " exempt, "
					"%" PRIu64 " in the log already, %" PRIu64 " with new hints only; "
					"log syncs=%" PRIu64 ", time=%.3f s; "
					"sync cycles=%" PRIu64 ", waits for a full stage=%" PRIu64,
					d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7],
					d[8] / 1000000.0, d[9], d[10])));
}
