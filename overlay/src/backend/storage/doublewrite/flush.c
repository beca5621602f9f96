/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Taking staged pages to the log, batch by batch, and sending them home.
 *
 * The process holding DoubleWriteFlushLock, the flusher, takes a batch from the stage
 * and brings it through these steps:
 *
 *	  TAKEN		WAL is flushed up to the highest page LSN (R1); pages that
 *				need it are written to the log, which is then synced (R2)
 *	  DURABLE	pages are sent home, sorted, neighbours combined, to be
 *				written without the lock; see home.c
 *
 * In the normal run the background writer is the flusher.  The checkpointer
 * takes its own pages to the log, and a backend that finds the stage full
 * becomes the flusher.
 *
 * The flusher must not wait for anything that processes waiting for it may hold.  It takes
 * no buffer lock and no heavyweight lock, and where the log is full it lets
 * go of the lock, runs a sync cycle itself and comes back.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/flush.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgwriter.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"

/* How often the background writer tries pages again that have failed, in ms */
#define DW_RETRY_INTERVAL		1000

/* ---------------------------------------------------------------------
 * Sending a batch home; what becomes of it then is described in home.c
 * ---------------------------------------------------------------------
 */

/* In the order of files; those to be written atomically come first */
static int
dw_slot_cmp(const void *a, const void *b)
{
	const DWSlot *sa = &DWSlots[*(const int *) a];
	const DWSlot *sb = &DWSlots[*(const int *) b];

	if (sa->atomic != sb->atomic)
		return sa->atomic ? -1 : 1;
	return buffertag_comparator(&sa->tag, &sb->tag);
}

/*
 * Sort the batch, in which no page may be twice (R4).  Returns how many pages are to be
 * written atomically: the first ones.
 */
static int
dw_sort_batch(void)
{
	int		   *slots = DWCtl->batch.slots;
	int			nslots = DWCtl->batch.len;
	int			natomic = 0;

	qsort(slots, nslots, sizeof(int), dw_slot_cmp);
	for (int i = 1; i < nslots; i++)
		Assert(dw_slot_cmp(&slots[i - 1], &slots[i]) < 0);

	while (natomic < nslots && DWSlots[slots[natomic]].atomic)
		natomic++;
	return natomic;
}

/*
 * Put the pages of the batch into the queue, run by run.  Returns how many runs.
 *
 * There is room: each run in the queue has a slot of its own, and so has the queue.
 */
static int
dw_enqueue_batch(void)
{
	int		   *slots = DWCtl->batch.slots;
	int			nruns = 0;

	for (int i = 0; i < DWCtl->batch.len;)
	{
		int			end = i + dw_run_length(slots + i, DWCtl->batch.len - i);

		DWRuns[(DWCtl->home.sent + nruns++) % DWCtl->stage.nslots] = slots[i];
		Assert(!DWSlots[slots[i]].atomic);	/* A3 */
		for (; i < end; i++)
		{
			DWSlots[slots[i]].run = DWCtl->home.sent + nruns - 1;
			DWSlots[slots[i]].run_next = i + 1 < end ? slots[i + 1] : -1;
		}
	}

	DWCtl->batch.len = 0;
	DWLockMutex();
	DWCtl->home.sent += nruns;
	DWUnlockMutex();
	return nruns;
}

/*
 * Send the batch home, and end it.
 */
static void
dw_send_home(void)
{
	int			natomic;
	int			nruns;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_DURABLE);

	natomic = dw_sort_batch();
	if (natomic > 0)
		dw_write_atomically(natomic);
	nruns = dw_enqueue_batch();
	dw_set_batch_phase(DW_BATCH_NONE);
	DWCount(batches, 1);
	INJECTION_POINT("doublewrite-home-sent", NULL);
	dw_tell_room(nruns);
}

/* ---------------------------------------------------------------------
 * Batches
 * ---------------------------------------------------------------------
 */

/*
 * Return whether there is a page in the batch of which no home write has failed.
 */
static bool
dw_batch_has_untried(void)
{
	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		if (!DWSlots[DWCtl->batch.slots[i]].failed)
			return true;
	}
	return false;
}

/*
 * The batch cannot be logged, and a sync cycle has not helped: pages that
 * cannot be written home keep all of the log in use.  Give up the batch, so
 * that those are tried again before more is logged. (R11)
 *
 * They may also have taken the place of copies that were in the log only, and have the log
 * by these.  Then they only had to go home without others: return, with the flush lock held.
 */
static void
dw_give_up_batch(void)
{
	bool		untried = false;

	Assert(DWIsFlusher());

	dw_return_batch();

	/* try them here: with other pages they would not get past the log */
	if (dw_begin_batch_of_kept(DWCtl->log.next_batchno, true))
	{
		untried = dw_batch_has_untried();
		if (dw_make_durable(false))
			dw_send_home();
		else
		{
			untried = false;
			dw_return_batch();
		}
	}
	LWLockRelease(DoubleWriteFlushLock);
	dw_let_others_make_room();
	dw_carry_runs();
	if (!untried)
		dw_refuse_full_log();
	dw_lock_flush(LW_EXCLUSIVE);
}

/*
 * Take the batch to the log and send it home.  Returns false, and leaves it waiting, or has
 * given it up, if the log has no space for it.
 *
 * While a home write is lost, or a sync cycle hangs, nothing frees space, so the log grows
 * beyond its bound.  The table of files does not grow: then the batch waits for that write or
 * sync, second by second.
 * While copies are in the log only, these have to be written home before, so it grows as
 * well, until the checkpointer has done that.  A process that finds no space does it itself,
 * for the oldest segment, again and again while there is something to do.
 */
static bool
dw_drive_batch(void)
{
	Assert(DWIsFlusher());

	if (DWCtl->batch.phase == DW_BATCH_TAKEN &&
		!dw_make_durable(dw_batch_has_waited() || dw_write_is_lost() ||
						 dw_cycle_hangs() || dw_copies_left() > 0))
	{
		if (dw_batch_has_waited() && !DWCtl->log.futile &&
			dw_copies_left() == DWCtl->batch.copies_left)
		{
			dw_give_up_batch();
			return false;
		}
		dw_batch_waits();

		/* what removed pages keep in the log only the checkpointer can settle */
		dw_request_upkeep();
		return false;
	}

	INJECTION_POINT("doublewrite-log-synced", NULL);
	if (dw_cycle_needed())
		dw_request_upkeep();
	dw_send_home();
	return true;
}

/*
 * The work of dw_flush_batch(), with the flush lock held.  A batch that waits for a sync cycle is the same for
 * each process that meets it: they wait for the same cycle, which one of them runs, and one
 * takes the batch on.
 */
static bool
dw_do_flush_and_unlock(const DWPageSet *retry)
{
	while (dw_begin_batch(retry))
	{
		bool		protected = dw_arm_for_replay();
		uint64		oldest;
		uint64		begun;

		if (protected && !dw_batch_must_wait() && dw_drive_batch())
		{
			LWLockRelease(DoubleWriteFlushLock);
			return true;
		}

		if (protected && DWCtl->batch.phase != DW_BATCH_WAITING)
			continue;			/* it has been given up */

		begun = DWCtl->batch.waits_since;
		oldest = dw_first_batch_behind(1);
		LWLockRelease(DoubleWriteFlushLock);
		if (protected)
		{
			if (dw_copies_left() > 0)
			{
				/* writes may not come back */
				dw_let_others_make_room();
				(void) dw_bring_before(oldest);
			}
			dw_sync_cycle(begun);
		}
		else
			dw_await_thaw();
		INJECTION_POINT("doublewrite-space-freed", NULL);
		CHECK_FOR_INTERRUPTS();
		dw_lock_flush(LW_EXCLUSIVE);
	}

	LWLockRelease(DoubleWriteFlushLock);
	return false;
}

/*
 * Take one batch to the log, or resume the one left over, and send it home.  Returns false
 * if there was nothing to do.  The caller holds no lock of the engine, except perhaps
 * the flush lock, which is released, also before others learn of an error.
 *
 * Pages that have failed before are left alone, except those in retry.
 */
bool
dw_flush_batch(const DWPageSet *retry)
{
	bool		result = false;

	Assert(!LWLockHeldByMe(DoubleWriteSyncLock));

	if (!DWIsFlusher())
		dw_lock_flush(LW_EXCLUSIVE);
	PG_TRY();
	{
		result = dw_do_flush_and_unlock(retry);
	}
	PG_CATCH();
	{
		dw_unlock_after_error();
		PG_RE_THROW();
	}
	PG_END_TRY();
	return result;
}

/*
 * Try to bring pages home that have failed before, and what is ready beside them.  Throws
 * the error if one has failed again since the caller's first attempt, for which *since is
 * DW_FIRST_ATTEMPT, or waits a moment if that cannot be tried, or is being tried by another
 * process.  Returns whether there was something to do.
 */
bool
dw_try_home(const DWPageSet *pages, uint64 *since)
{
	bool		flushed;
	bool		under_way;

	dw_lock_flush(LW_EXCLUSIVE);
	if (*since == DW_FIRST_ATTEMPT)
		*since = DWCtl->home.sent;
	flushed = dw_flush_batch(pages);
	dw_carry_runs();
	under_way = dw_homes_under_way(pages);
	if (!dw_refuse_failed(pages, *since) && under_way)
		dw_await_a_run();
	return flushed;
}

/* Runs that the checkpointer leaves to the background writer at once */
#define DW_RUNS_FOR_BGWRITER	32

/*
 * A process that stages many pages has sent some home.  With the log in use the checkpointer
 * leaves them to the background writer, while that keeps up, and goes on: or it would
 * write home while the device of the log is idle, and then wait for that device.  Pages that
 * need no log have nothing to wait for; two processes would only get in each other's way,
 * writing to one file.  In recovery, being woken up, the background writer would go through
 * its main loop first, which keeps ahead of redo.
 */
static void
dw_hand_over_runs(void)
{
	volatile DWCtlData *ctl = DWCtl;

	if (DWCtl->log.armed && !RecoveryInProgress() && AmCheckpointerProcess() &&
		ctl->flusher.proc != INVALID_PROC_NUMBER)
	{
		dw_wake_flusher();
		while (ctl->home.sent - Min(ctl->home.claimed, ctl->home.sent) > DW_RUNS_FOR_BGWRITER &&
			   dw_carry_run())
			;
	}
	else
		dw_carry_runs();
}

/*
 * Flush a batch if there is enough for one.  For processes that stage many
 * pages and can take them to the log themselves.  Pages may come in order, so there
 * must be enough for the largest write.
 */
void
DoubleWriteFlushIfBatchReady(void)
{
	int			wanted = Max(DWBatchThreshold(), io_combine_limit);

	if (dw_staged_count() >= Min(wanted, DWCtl->stage.nslots / 2))
	{
		dw_flush_batch(NULL);
		dw_hand_over_runs();
	}
}

/* ---------------------------------------------------------------------
 * The background flusher
 * ---------------------------------------------------------------------
 */

/*
 * Try pages again that could not be written home, at a bounded pace.  If that
 * fails, the reason goes to the server log. (R11)
 */
static void
dw_retry_failed(void)
{
	static instr_time last;

	if (!dw_pages_have_failed() ||
		(!INSTR_TIME_IS_ZERO(last) && dw_msec_since(last) < DW_RETRY_INTERVAL))
		return;
	INSTR_TIME_SET_CURRENT(last);
	dw_flush_batch(&DWAllPages);
}

/*
 * Return whether the main loop has other things to do.
 */
static bool
dw_main_loop_wanted(void)
{
	return ProcSignalBarrierPending || ConfigReloadPending ||
		ShutdownRequestPending || LogMemoryContextPending;
}

/*
 * Write home what has been sent, and flush batches: the first one if there are at
 * least threshold pages for it, the others while they are worth it.  But not when the
 * main loop has other things to do, nor when timeout milliseconds have passed since
 * start.
 */
static void
dw_background_flush(int threshold, instr_time start, long timeout)
{
	/* not at the end: runs may be sent when we have had a look */
	DWLockMutex();
	DWCtl->flusher.requested = false;
	DWUnlockMutex();

	/* tests may want to decide themselves when pages are written home */
	if (IS_INJECTION_POINT_ATTACHED("doublewrite-background-flush"))
		return;

	dw_retry_failed();

	/* others may send more meanwhile; what they stage is for their next batch */
	while (!dw_main_loop_wanted())
	{
		if (!dw_carry_run())
		{
			if (dw_staged_count() < threshold || !dw_flush_batch(NULL))
				break;
			threshold = DWBatchThreshold();
		}
		if (dw_msec_since(start) >= timeout)
			break;
	}
}

/*
 * Sleep of the background writer between two rounds: write back what is
 * staged, then wait for timeout milliseconds, but wake up for each batch that
 * becomes ready meanwhile, and for runs that others leave to us.
 *
 * Returns what WaitLatch() returned last.  Being woken for a batch counts as
 * no event, as the caller's feedback loop relies on an even pace; only in
 * hibernation, which any event may end, it does, and in recovery, where the
 * caller does not pace itself but keeps ahead of redo.
 */
int
DoubleWriteBgWriterSleep(long timeout, uint32 wait_event_info)
{
	static bool announced = false;
	instr_time	start;

	Assert(AmBackgroundWriterProcess());

	INSTR_TIME_SET_CURRENT(start);
	if (!announced)
	{
		dw_announce_flusher(MyProcNumber);
		on_shmem_exit(dw_withdraw_flusher, (Datum) 0);
		announced = true;
	}

	dw_background_flush(1, start, timeout);

	/* do not keep a segment alive that has been removed */
	if (!DWCtl->log.open)
		dw_close_segment();

	for (;;)
	{
		long		remaining = Max(timeout - dw_msec_since(start), 0);
		int			rc;

		rc = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   remaining, wait_event_info);
		if (!(rc & WL_LATCH_SET) || !DWCtl->flusher.requested || remaining == 0 ||
			dw_main_loop_wanted() ||
			wait_event_info == WAIT_EVENT_BGWRITER_HIBERNATE ||
			RecoveryInProgress())
			return rc;

		ResetLatch(MyLatch);
		if (dw_main_loop_wanted())
			return rc;			/* that was what set it */
		dw_background_flush(DWBatchThreshold(), start, timeout);
		pgstat_report_bgwriter();
	}
}

/* ---------------------------------------------------------------------
 * Bringing home what has been staged until now
 *
 * Checkpoints do that, and processes that are going to look at files without regard
 * to the stage. (R5, R6)
 * ---------------------------------------------------------------------
 */

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
static void
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

/*
 * The same, with nothing that keeps a batch.  A page may do so that was removed while it
 * was torn at home, or one staged since we began that cannot be written.  Each turn settles
 * that, or throws the error.
 */
void
dw_drain_settle_and_lock(const DWPageSet *pages)
{
	dw_drain_and_lock(pages);
	while (dw_first_unfinished_batch() < DWCtl->log.next_batchno)
	{
		LWLockRelease(DoubleWriteFlushLock);
		dw_settle_removals();
		dw_drain_and_lock(pages);
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
		tried = dw_sync_cycle(dw_read_locked(&DWCtl->log.cycles_begun));
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
