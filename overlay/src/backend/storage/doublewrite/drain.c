/*-------------------------------------------------------------------------
 *
 * drain.c
 *	  Bringing home what has been staged until now.
 *
 * Checkpoints do that, and whoever is going to look at files without regard to the
 * stage. (R5, R6)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/drain.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "storage/smgr.h"
#include "storage/spin.h"

/*
 * Bring the given pages home that were staged before the call, and return with
 * the flush lock held and no home write under way.  Throws an error if one of them
 * cannot be written.
 *
 * A batch of another flusher has left the staged list, but may come back if a
 * write fails; so we look again once we have the lock.  Pages may wait for older
 * versions of them, so we do, too.
 */
static void
dw_drain_pages_and_lock(const DWPageSet *pages)
{
	uint64		seq = dw_current_seq();
	bool		filling;

	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	for (;;)
	{
		while (dw_staged_before(seq, pages, &filling))
		{
			/*
			 * A page being replaced is on its way out of a buffer in another
			 * process, which is busy copying it: a matter of microseconds.
			 */
			if (filling)
				pg_spin_delay();
			else
			{
				dw_lock_flush_idle(LW_EXCLUSIVE);
				dw_flush_batch_locked(pages, pages);
			}
			CHECK_FOR_INTERRUPTS();
		}

		dw_lock_flush_idle(LW_EXCLUSIVE);
		if (DWCtl->batch.phase == DW_BATCH_NONE &&
			!dw_staged_before(seq, pages, &filling))
			return;
		LWLockRelease(DoubleWriteFlushLock);

		/* finish what another flusher has left */
		dw_flush_batch(pages, pages);
	}
}

void
dw_drain_and_lock(void)
{
	dw_drain_pages_and_lock(&DWAllPages);
}

static void
dw_drain(const DWPageSet *pages)
{
	if (pg_atomic_read_membarrier_u32(&DWCtl->stage.ninuse_hint) == 0)
		return;
	dw_drain_pages_and_lock(pages);
	LWLockRelease(DoubleWriteFlushLock);
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
	dw_drain(&DWAllPages);
}

/*
 * The same for pages of a relation.  Whether others can be written does not
 * matter.
 */
void
DoubleWriteDrainRelation(const RelFileLocator *rlocator)
{
	DWPageSet	pages = {dw_tag_in_relation, rlocator, PG_INT32_MAX};

	dw_drain(&pages);
}

/*
 * The same for pages of a database.
 */
void
DoubleWriteDrainDatabase(Oid dbid)
{
	DWPageSet	pages = {dw_tag_in_database, &dbid, PG_INT32_MAX};

	dw_drain(&pages);
}

/*
 * Relations that were filled without WAL are about to be synced and committed.
 * If one of them has been truncated before, the log may hold copies from its
 * earlier life, which no redo would set right after a restore: make the log
 * forget them. (R5)
 *
 * Pages of others that cannot be written home need not fail us, since a sync
 * cycle logs them once more.  Only if it has no room for that, somebody has to
 * get their error. (R11)
 */
void
DoubleWriteForgetTruncated(SMgrRelation *rels, int nrels)
{
	bool		truncated = false;
	bool		tried = false;
	uint64		newest;
	uint64		begun;

	for (int i = 0; i < nrels; i++)
		truncated |= dw_was_truncated(&rels[i]->smgr_rlocator.locator);
	if (!truncated)
		return;

	dw_lock_flush(LW_SHARED);
	newest = DWCtl->log.open ? DWCtl->log.last_page_batch : 0;
	LWLockRelease(DoubleWriteFlushLock);

	/* a cycle that another process had begun earlier does not count */
	for (;;)
	{
		bool		done;

		dw_lock_flush(LW_SHARED);
		done = DWCtl->log.low_water_logged > newest || !DWCtl->log.open;
		LWLockRelease(DoubleWriteFlushLock);
		if (done)
			break;
		if (tried)
			DoubleWriteDrain();
		else
		{
			/* at least what is under way */
			dw_lock_flush_idle(LW_EXCLUSIVE);
			dw_flush_batch_locked(NULL, NULL);
		}
		dw_settle_removals();
		dw_refuse_to_forget_removal();

		/* a cycle that began while a batch was under way renews no copies */
		dw_lock_flush(LW_SHARED);
		begun = DWCtl->log.cycles_begun;
		LWLockRelease(DoubleWriteFlushLock);
		dw_sync_cycle(begun);
		tried = true;
	}
}
