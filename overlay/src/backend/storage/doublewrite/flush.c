/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Carrying staged pages home, batch by batch.
 *
 * Whoever holds DoubleWriteFlushLock is the flusher.  It takes a batch from
 * the stage and brings it through these steps:
 *
 *	  TAKEN		WAL is flushed up to the highest page LSN (R1); pages that
 *				need it are written to the log, which is then synced (R2)
 *	  DURABLE	pages are written home, sorted, neighbours combined
 *
 * The batch is described in shared memory, so that a flusher that fails on
 * the way leaves it to the next one.  In the normal run the background
 * writer is the flusher.  The checkpointer carries its own pages home, and
 * any process does it that finds the stage full.
 *
 * When half of the log is in use, the checkpointer is asked to run a sync
 * cycle, which frees it, and it creates segments while the log grows.
 *
 * A page that cannot be written home returns to the stage, and whoever needs it
 * at home gets its error: a checkpoint, a drain of its relation, or a process
 * that wants to stage too many more of the same file.  Others go on, and the
 * background writer tries it again now and then. (R11)
 *
 * The flusher must not wait for anything that its waiters may hold.  It takes
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
#include "access/xlogrecovery.h"
#include "common/relpath.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/auxprocess.h"
#include "postmaster/bgwriter.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/md.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"

/* Files that the checkpointer syncs before it looks at its queue, as in sync.c */
#define DW_SYNCS_PER_ABSORB		10

/* More LWLocks than a process holds around a home write; see lwlock.c */
#define DW_MAX_HELD_LOCKS		200

/* How often the background writer tries pages again that have failed, in ms */
#define DW_RETRY_INTERVAL		1000

const DWPageSet DWAllPages = {.max = PG_INT32_MAX};

/* Pages being written home, for the error context */
typedef struct DWRun
{
	const DWSlot *first;
	int			npages;
} DWRun;

static void
dw_write_error_callback(void *arg)
{
	DWRun	   *run = arg;

	errcontext("writing %d blocks from block %u of relation \"%s\"",
			   run->npages, run->first->tag.blockNum,
			   relpathperm(BufTagGetRelFileLocator(&run->first->tag),
						   BufTagGetForkNum(&run->first->tag)).str);
}

/* ---------------------------------------------------------------------
 * Home writes
 * ---------------------------------------------------------------------
 */

static int
dw_slot_cmp(const void *a, const void *b)
{
	const BufferTag *ta = &DWSlots[*(const int *) a].tag;
	const BufferTag *tb = &DWSlots[*(const int *) b].tag;

#define DW_CMP(field) \
	if (ta->field != tb->field) \
		return ta->field < tb->field ? -1 : 1
	DW_CMP(spcOid);
	DW_CMP(dbOid);
	DW_CMP(relNumber);
	DW_CMP(forkNum);
	DW_CMP(blockNum);
#undef DW_CMP
	return 0;
}

static bool
dw_is_neighbour(const BufferTag *a, const BufferTag *b, int distance)
{
	return a->spcOid == b->spcOid && a->dbOid == b->dbOid &&
		a->relNumber == b->relNumber && a->forkNum == b->forkNum &&
		a->blockNum + distance == b->blockNum;
}

/*
 * Tell the kernel to start writing a page that has gone home, once there are
 * as many of them as the setting allows for the kind of process that staged
 * it.  Who carries it does not matter: with backend_flush_after = 0, which is
 * the default, pages that client backends evict are left to the kernel, for
 * they may well be read and evicted again before it writes them.
 *
 * Early writing keeps the latency of others even.  While redo runs before
 * anybody can connect, it would only take device time away from reads.  The
 * checkpoint that follows is another matter.
 */
static void
dw_schedule_writeback(const DWSlot *slot)
{
	static WritebackContext contexts[DW_STAGERS];
	static bool initialized = false;
	BufferTag	tag = slot->tag;

	if (!initialized)
	{
		WritebackContextInit(&contexts[DW_STAGER_BACKEND], &backend_flush_after);
		WritebackContextInit(&contexts[DW_STAGER_BGWRITER], &bgwriter_flush_after);
		WritebackContextInit(&contexts[DW_STAGER_CHECKPOINTER], &checkpoint_flush_after);
		initialized = true;
	}

	if (slot->stager == DW_STAGER_CHECKPOINTER || !RecoveryInProgress() ||
		HotStandbyActive())
		ScheduleBufferTagForWriteback(&contexts[slot->stager],
									  IOCONTEXT_NORMAL, &tag);
}

/*
 * Write one run of neighbouring pages home with a single call.  Their sync
 * request is registered by md.c.
 */
static void
dw_write_run(const int *slots, int npages)
{
	DWRun		run = {&DWSlots[slots[0]], npages};
	const BufferTag *tag = &run.first->tag;
	const void *pages[MAX_IO_COMBINE_LIMIT];
	ErrorContextCallback errcallback;
	instr_time	io_start;
	SMgrRelation reln;

	Assert(npages >= 1 && npages <= MAX_IO_COMBINE_LIMIT);

	errcallback.callback = dw_write_error_callback;
	errcallback.arg = &run;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;

	for (int i = 0; i < npages; i++)
		pages[i] = DWSlotPage(slots[i]);

	reln = smgropen(BufTagGetRelFileLocator(tag), INVALID_PROC_NUMBER);

	io_start = pgstat_prepare_io_time(track_io_timing);
	smgrwritev(reln, BufTagGetForkNum(tag), tag->blockNum, pages, npages, false);
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITE,
							io_start, 1, npages * BLCKSZ);

	error_context_stack = errcallback.previous;

	DWCount(home_pages, npages);
	DWCount(home_writes, 1);

	for (int i = 0; i < npages; i++)
		dw_schedule_writeback(&DWSlots[slots[i]]);
}

/* LWLocks that this process holds, in the order in which it has taken them */
typedef struct DWHeldLocks
{
	int			nlocks;
	LWLock	   *locks[DW_MAX_HELD_LOCKS];
} DWHeldLocks;

static void
dw_note_held_lock(LWLock *lock, LWLockMode mode, void *arg)
{
	DWHeldLocks *held = arg;

	if (held->nlocks < DW_MAX_HELD_LOCKS)
		held->locks[held->nlocks++] = lock;
}

/*
 * An error has been caught.  Put things back as they were before what has
 * failed: locks that it has left behind are released, the last one first, and
 * interrupts are held off as often as by those that remain.  (The error has
 * reset that count, and would leave it so if it went on; see dw_throw().)
 */
static void
dw_clean_up_after_error(const DWHeldLocks *before, uint32 holdoff,
						uint32 cancel_holdoff)
{
	DWHeldLocks held = {0};

	InterruptHoldoffCount = holdoff;
	QueryCancelHoldoffCount = cancel_holdoff;
	pgstat_report_wait_end();

	ForEachLWLockHeldByMe(dw_note_held_lock, &held);
	while (held.nlocks > before->nlocks)
	{
		HOLD_INTERRUPTS();		/* LWLockRelease() resumes them */
		LWLockRelease(held.locks[--held.nlocks]);
	}
}

/*
 * Throw an error that was caught before, as if it had not been.
 */
static void
dw_throw(ErrorData *edata)
{
	InterruptHoldoffCount = 0;	/* see errfinish() */
	QueryCancelHoldoffCount = 0;
	ReThrowError(edata);
}

/*
 * Report an error that was caught before and concerns nobody here.
 */
static void
dw_report(ErrorData *edata)
{
	ErrorContextCallback *context = error_context_stack;

	/* not to the client: he may not read, and we hold the flush lock */
	edata->elevel = LOG_SERVER_ONLY;
	error_context_stack = NULL; /* it has its context */
	ThrowErrorData(edata);
	error_context_stack = context;
	FreeErrorData(edata);
}

/*
 * Write a run home; on failure keep its pages staged and return the error.
 *
 * The error is caught so that one bad file does not hold up the pages behind
 * it. (R11)
 */
static ErrorData *
dw_try_write_run(const int *slots, int npages)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	DWHeldLocks held = {0};
	ErrorData  *volatile edata = NULL;

	ForEachLWLockHeldByMe(dw_note_held_lock, &held);

	PG_TRY();
	{
		INJECTION_POINT("doublewrite-home-write", NULL);
		dw_write_run(slots, npages);
	}
	PG_CATCH();
	{
		dw_clean_up_after_error(&held, holdoff, cancel_holdoff);

		/* first of all, as copying the error may fail */
		for (int i = 0; i < npages; i++)
			dw_restage_slot(slots[i], true);
		MemoryContextSwitchTo(oldcontext);
		edata = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();

	if (edata == NULL)
		dw_release_slots(slots, npages);
	return edata;
}

/*
 * Length of the run that starts at slots[0].  Ends at segment files and where
 * a page has been discarded.
 */
static int
dw_run_length(const int *slots, int nslots)
{
	const BufferTag *first = &DWSlots[slots[0]].tag;
	int			limit = Min(nslots, Max(1, io_combine_limit));
	int			len = 1;

	limit = Min(limit, RELSEG_SIZE - (int) (first->blockNum % RELSEG_SIZE));
	limit = Min(limit, MAX_IO_COMBINE_LIMIT);
	while (len < limit &&
		   dw_is_neighbour(first, &DWSlots[slots[len]].tag, len) &&
		   !DWSlots[slots[len]].discarded)
		len++;
	return len;
}

/* Of the errors met in a batch, the first one of each kind */
typedef struct DWErrors
{
	ErrorData  *mine;			/* of pages that the caller needs at home */
	ErrorData  *others;
} DWErrors;

static bool
dw_run_in_set(const int *slots, int nslots, const DWPageSet *set)
{
	for (int i = 0; i < nslots; i++)
	{
		if (DWPageInSet(set, &DWSlots[slots[i]].tag))
			return true;
	}
	return false;
}

static void
dw_write_run_home(const int *slots, int npages, const DWPageSet *mine,
				  DWErrors *errors)
{
	bool		is_mine = dw_run_in_set(slots, npages, mine);
	ErrorData **first = is_mine ? &errors->mine : &errors->others;
	ErrorData  *e = dw_try_write_run(slots, npages);

	if (e != NULL && *first == NULL)
		*first = e;
	else if (e != NULL)
		FreeErrorData(e);
}

/*
 * Bring the pages of the current batch home and end the batch.
 *
 * Restartable: pages that are done have left the batch.  When all other pages
 * are home, throws the first error that concerns one of mine; one that does not
 * goes to the server log.
 */
static void
dw_write_home(const DWPageSet *mine)
{
	int			slots[DW_MAX_BATCH_PAGES];
	int			nslots = DWCtl->batch_len;
	DWErrors	errors = {0};

	memcpy(slots, DWCtl->batch, nslots * sizeof(int));
	qsort(slots, nslots, sizeof(int), dw_slot_cmp);
	memcpy(DWCtl->batch, slots, nslots * sizeof(int));

#ifdef USE_ASSERT_CHECKING
	/* no page is in a batch twice (R4) */
	for (int i = 1; i < nslots; i++)
		Assert(dw_slot_cmp(&slots[i - 1], &slots[i]) < 0);
#endif

	for (int done = 0; done < nslots;)
	{
		int			run = 1;

		if (DWSlots[slots[done]].discarded)
			dw_release_slots(&slots[done], 1);	/* R7 */
		else
		{
			run = dw_run_length(slots + done, nslots - done);
			dw_write_run_home(slots + done, run, mine, &errors);
		}
		done += run;

		/* what is left, for whoever resumes the batch */
		DWCtl->batch_len = nslots - done;
		memmove(DWCtl->batch, slots + done, DWCtl->batch_len * sizeof(int));
		INJECTION_POINT("doublewrite-home-run-written", NULL);
	}

	DWCtl->phase = DW_BATCH_NONE;
	DWCount(batches, 1);
	INJECTION_POINT("doublewrite-home-written", NULL);

	if (errors.others != NULL)
		dw_report(errors.others);
	if (errors.mine != NULL)
		dw_throw(errors.mine);
}

/* ---------------------------------------------------------------------
 * Batches
 * ---------------------------------------------------------------------
 */

/*
 * Take the flush lock when it is our turn.
 *
 * A process that releases an LWLock and takes it again at once gets it before
 * those it has just woken up, and shared holders pass waiting exclusive ones.
 * So whoever wants the lock stands in a doorway, in which there is room for one:
 * the lock cannot be taken by others until he has got it.
 */
void
dw_lock_flush(LWLockMode mode)
{
	LWLockAcquire(DoubleWriteTurnLock, LW_EXCLUSIVE);
	LWLockAcquire(DoubleWriteFlushLock, mode);
	LWLockRelease(DoubleWriteTurnLock);
}

/*
 * Flush WAL up to the highest LSN of the batch.  Unlogged relations may have
 * made-up LSNs, which must not be looked at.  (R1)  In recovery this brings
 * minRecoveryPoint up to date.
 */
static void
dw_flush_wal(void)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	for (int i = 0; i < DWCtl->batch_len; i++)
	{
		DWSlot	   *slot = &DWSlots[DWCtl->batch[i]];

		if (slot->permanent && lsn < slot->lsn)
			lsn = slot->lsn;
	}
	if (!XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
}

/*
 * Does this server protect home writes with the log?
 *
 * A standby or a crash recovery whose WAL lacks images, though the settings
 * ask for protection by them, protects itself with the log.
 */
static bool
dw_log_wanted(void)
{
	if (DWCtl->armed)
		return true;
	if (dw_setting() != TORN_PAGES_FULL_PAGES ||
		!RecoveryInProgress() || dw_replayed_images())
		return false;

	ereport(LOG,
			(errmsg("using double writes because the WAL being replayed lacks full-page images"),
			 errhint("Set \"io_torn_pages_protection\" to \"double_writes\" on this server.")));
	dw_arm();
	return true;
}

/* What protects the pages of a batch */
typedef struct DWChoice
{
	int			logged[DW_MAX_BATCH_PAGES]; /* slots to be logged */
	int			nlogged;
	int			copied[DW_MAX_BATCH_PAGES]; /* slots with a copy in the log */
	uint64		copies[DW_MAX_BATCH_PAGES]; /* ... and the batches of these */
	int			ncopied;
	int			nexempt;		/* pages that redo rebuilds */
} DWChoice;

/*
 * Choose the pages of the batch that have to pass through the log. (R2)
 *
 * Where the log is not in use, count what would have passed through it.
 */
static void
dw_choose_logged(DWChoice *choice)
{
	bool		wanted = dw_log_wanted();

	choice->nlogged = choice->ncopied = choice->nexempt = 0;

	for (int i = 0; i < DWCtl->batch_len; i++)
	{
		int			slotno = DWCtl->batch[i];
		DWSlot	   *slot = &DWSlots[slotno];
		uint64		copy;

		if (!slot->permanent || slot->discarded)
			continue;
		if (dw_redo_rebuilds(slot))
			choice->nexempt++;
		else if (wanted && (copy = dw_epoch_copy(&slot->tag)) != 0)
		{
			choice->copied[choice->ncopied] = slotno;
			choice->copies[choice->ncopied++] = copy;
		}
		else
			choice->logged[choice->nlogged++] = slotno;
	}

	if (wanted)
		return;
	if (choice->nlogged > 0)
	{
		DWCount(would_log, choice->nlogged);
		DWCount(would_log_batches, 1);
	}
	choice->nlogged = choice->nexempt = 0;
}

/*
 * Take the batch from TAKEN to DURABLE.  Returns false if the log has no
 * space for it.
 */
static bool
dw_make_durable(bool beyond_bound)
{
	DWChoice	choice;

	dw_flush_wal();
	dw_choose_logged(&choice);
	if (choice.nlogged > 0 &&
		!dw_log_write_batch(choice.logged, choice.nlogged, beyond_bound))
		return false;

	/* not before: a batch that waits for a sync cycle must not keep the log */
	for (int i = 0; i < choice.ncopied; i++)
		dw_note_logged(choice.copied[i], choice.copies[i]);
	DWCtl->phase = DW_BATCH_DURABLE;

	DWCount(exempt, choice.nexempt);
	DWCount(in_epoch, choice.ncopied);
	DWCount(batch_size[DWSizeClass(DWCtl->batch_len)], 1);
	if (choice.nlogged > 0)
		DWCount(logged_size[DWSizeClass(choice.nlogged)], 1);
	return true;
}

/*
 * Return the pages of the batch to the stage.
 */
static void
dw_return_batch(void)
{
	while (DWCtl->batch_len > 0)
		dw_restage_slot(DWCtl->batch[--DWCtl->batch_len], false);
	DWCtl->phase = DW_BATCH_NONE;
}

/*
 * The batch cannot be logged, and a sync cycle has not helped: pages that
 * cannot be written home keep all of the log in use.  Give up the batch, so
 * that those are tried again before more is logged. (R11)
 */
static void
dw_give_up_batch(void)
{
	dw_return_batch();

	/* try them here: with other pages they would not get past the log */
	DWCtl->batch_len = dw_take_kept(DWCtl->batch, DW_MAX_BATCH_PAGES,
									DWCtl->next_batchno);
	if (DWCtl->batch_len > 0)
	{
		DWCtl->batch_waits = false;
		DWCtl->phase = DW_BATCH_TAKEN;
		if (dw_make_durable(false))
			dw_write_home(NULL);
		else
			dw_return_batch();
	}
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("could not write pages because the double-write log is full"),
			 errdetail("Pages that could not be written to their data files are kept in it."),
			 errhint("See earlier messages in the server log for the reason.")));
}

static bool
dw_log_half_full(void)
{
	return DWCtl->segno + 1 - DWCtl->first_segno > dw_log_bound_segments() / 2;
}

static bool
dw_many_dirty_files(void)
{
	return DWCtl->ndirty_files > DW_DIRTY_FILES / 4 * 3;
}

/*
 * Is it time for a sync cycle, lest somebody have to wait for one?  When half
 * of the log's bound is in use, or most of the table of files.
 */
static bool
dw_cycle_needed(void)
{
	return DWCtl->log_open && (dw_log_half_full() || dw_many_dirty_files());
}

/*
 * Begin a batch, if there is none under way.  Returns false if there is nothing
 * to do.
 */
static bool
dw_begin_batch(const DWPageSet *retry)
{
	if (DWCtl->phase != DW_BATCH_NONE)
		return true;
	DWCtl->batch_len = dw_take_slots(DWCtl->batch, DW_MAX_BATCH_PAGES, retry);
	if (DWCtl->batch_len == 0)
		return false;
	DWCtl->batch_waits = false;
	DWCtl->phase = DW_BATCH_TAKEN;
	return true;
}

/*
 * Has a sync cycle completed that began after the batch had found no space in
 * the log?  That is a property of the batch, not of who carries it on: it may
 * have been taken up by several processes meanwhile.
 */
static bool
dw_batch_has_waited(void)
{
	return DWCtl->batch_waits && DWCtl->cycles_done > DWCtl->batch_waits_since;
}

/*
 * The batch has found no space in the log.  Returns the number of the newest
 * sync cycle, which may not help it any more.  Throws an error if one that could
 * has been in vain.
 */
static uint64
dw_batch_must_wait(void)
{
	if (dw_batch_has_waited())
		dw_give_up_batch();
	if (!DWCtl->batch_waits)
		DWCtl->batch_waits_since = DWCtl->cycles_begun;
	DWCtl->batch_waits = true;
	DWCount(log_full, 1);

	/* what removed pages keep in the log only the checkpointer can settle */
	dw_request_upkeep();
	return DWCtl->batch_waits_since;
}

/*
 * Flush one batch, or resume the one left over.  Returns false if there was
 * nothing to do.  The caller holds no lock of the engine.
 *
 * Pages that have failed before are left alone, but for those in retry.  If one
 * of mine cannot be written home, that is an error.
 */
bool
dw_flush_batch(const DWPageSet *retry, const DWPageSet *mine)
{
	for (;;)
	{
		uint64		begun;

		dw_lock_flush(LW_EXCLUSIVE);

		if (!dw_begin_batch(retry))
		{
			LWLockRelease(DoubleWriteFlushLock);
			return false;
		}

		if (DWCtl->phase == DW_BATCH_DURABLE ||
			dw_make_durable(dw_batch_has_waited()))
		{
			INJECTION_POINT("doublewrite-log-synced", NULL);
			if (dw_cycle_needed())
				dw_request_upkeep();
			dw_write_home(mine);
			LWLockRelease(DoubleWriteFlushLock);
			return true;
		}

		begun = dw_batch_must_wait();
		LWLockRelease(DoubleWriteFlushLock);

		/* No space in the log: free some, without the lock. */
		dw_sync_cycle(begun);
		INJECTION_POINT("doublewrite-space-freed", NULL);
	}
}

/*
 * Called by a process that found the stage full: make sure that a slot has
 * become free since, by flushing a batch or by waiting for another flusher.
 */
void
dw_make_room(void)
{
	if (LWLockAcquireOrWait(DoubleWriteFlushLock, LW_EXCLUSIVE))
	{
		/* nobody is at it, so we are: the lock is taken again in there */
		LWLockRelease(DoubleWriteFlushLock);
		if (dw_flush_batch(NULL, NULL))
			return;

		/* R11: if nothing but failed pages is left, that is an error */
		if (pg_atomic_read_u32(&DWCtl->ninuse_hint) >= (uint32) DWCtl->nslots)
			dw_flush_batch(&DWAllPages, &DWAllPages);
	}
}

/*
 * Flush a batch if there is enough for one.  For processes that stage many
 * pages and can carry them home themselves.  Pages may come in order, so there
 * shall be enough for the largest write.
 */
void
DoubleWriteFlushIfBatchReady(void)
{
	int			wanted = Max(DWBatchThreshold(), io_combine_limit);

	if (dw_staged_count() >= Min(wanted, DWCtl->nslots / 2))
		dw_flush_batch(NULL, NULL);
}

/*
 * Bring the given pages home that were staged before the call, and return with
 * the flush lock held and no batch under way.  Throws an error if one of them
 * cannot be written.
 *
 * A batch of another flusher has left the staged list, but may come back if a
 * write fails; so we look again once we have the lock.
 */
static void
dw_drain_pages_and_lock(const DWPageSet *pages)
{
	uint64		seq = dw_current_seq();
	bool		filling;

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
				dw_flush_batch(pages, pages);
			CHECK_FOR_INTERRUPTS();
		}

		dw_lock_flush(LW_EXCLUSIVE);
		if (DWCtl->phase == DW_BATCH_NONE &&
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
	if (pg_atomic_read_membarrier_u32(&DWCtl->ninuse_hint) == 0)
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
 * Is this process taking a base backup, holding up home writes for each read?
 * Then it does not depend on images in WAL.
 */
bool		DoubleWriteBackupReadsHeld = false;

/*
 * Keep pages from being written home while the caller reads a relation file
 * behind the buffer manager's back, so that it reads no torn page, even if
 * WAL carries no image to repair it.  An error releases them, too. (R9a)
 */
void
DoubleWriteHoldHomeWrites(void)
{
	dw_lock_flush(LW_SHARED);
}

void
DoubleWriteResumeHomeWrites(void)
{
	LWLockRelease(DoubleWriteFlushLock);
}

static bool
dw_is_relation_file(const char *path)
{
	if (path_is_prefix_of_path(DataDir, path))
		path += strlen(DataDir) + 1;
	return strncmp(path, "base/", 5) == 0 || strncmp(path, "global/", 7) == 0 ||
		strncmp(path, PG_TBLSPC_DIR_SLASH, strlen(PG_TBLSPC_DIR_SLASH)) == 0;
}

/*
 * Somebody is going to read this file for a client.  Does that take care that
 * no page is read torn, so that it must use DoubleWriteRead()?
 *
 * To be asked before the file is read or positioned: what stdio reads ahead it
 * would read without our care.
 */
bool
DoubleWritePrepareRead(FILE *file, const char *path)
{
	return dw_is_relation_file(path) && setvbuf(file, NULL, _IONBF, 0) == 0;
}

/*
 * Read up to nbytes of a relation file, like fread(), and no torn page. (R9a)
 *
 * Home writes are held up for a chunk of DW_READ_CHUNK at a time, and a chunk
 * ends where a block does, so no page is read in two.  The same goes for calls
 * that follow each other, if the caller says that more is to come.
 */
#define DW_READ_CHUNK	(1024 * 1024)

size_t
DoubleWriteRead(char *buf, size_t nbytes, FILE *file, bool more)
{
	size_t		done = 0;

	while (done < nbytes)
	{
		size_t		in_block = ftello(file) % BLCKSZ;
		size_t		chunk = Min(nbytes - done, DW_READ_CHUNK - in_block);
		size_t		excess = (in_block + chunk) % BLCKSZ;
		size_t		got;

		if (more && excess < chunk)
			chunk -= excess;
		CHECK_FOR_INTERRUPTS();
		DoubleWriteHoldHomeWrites();
		got = fread(buf + done, 1, chunk, file);
		DoubleWriteResumeHomeWrites();
		INJECTION_POINT("doublewrite-chunk-read", NULL);
		done += got;
		if (got < chunk || (more && nbytes - done < BLCKSZ))
			break;
	}
	return done;
}

/*
 * Relations that were filled without WAL are about to be synced and committed.
 * If one of them has been truncated before, the log may hold copies from its
 * earlier life, which no redo would set right after a restore: make the log
 * forget them. (R5)
 */
void
DoubleWriteForgetTruncated(SMgrRelation *rels, int nrels)
{
	bool		truncated = false;
	uint64		newest;
	uint64		begun;

	for (int i = 0; i < nrels; i++)
		truncated |= dw_was_truncated(&rels[i]->smgr_rlocator.locator);
	if (!truncated)
		return;

	dw_lock_flush(LW_SHARED);
	newest = DWCtl->log_open ? DWCtl->last_page_batch : 0;
	LWLockRelease(DoubleWriteFlushLock);

	/* a cycle that another process had begun earlier does not count */
	for (;;)
	{
		bool		done;

		dw_lock_flush(LW_SHARED);
		done = DWCtl->low_water_logged > newest || !DWCtl->log_open;
		begun = DWCtl->cycles_begun;
		LWLockRelease(DoubleWriteFlushLock);
		if (done)
			break;
		DoubleWriteDrain();
		dw_settle_removals();
		dw_sync_cycle(begun);
	}
}

/* ---------------------------------------------------------------------
 * The background flusher
 * ---------------------------------------------------------------------
 */

static bool
dw_flush_was_requested(void)
{
	bool		requested;

	SpinLockAcquire(&DWCtl->mutex);
	requested = DWCtl->flush_requested;
	SpinLockRelease(&DWCtl->mutex);
	return requested;
}

static void
dw_announce_flusher(int procno)
{
	SpinLockAcquire(&DWCtl->mutex);
	DWCtl->flusher_proc = procno;
	DWCtl->flush_requested = false;
	SpinLockRelease(&DWCtl->mutex);
}

static void
dw_withdraw_flusher(int code, Datum arg)
{
	dw_announce_flusher(INVALID_PROC_NUMBER);
}

/* Milliseconds since a moment, by a clock that nobody sets */
static long
dw_msec_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return (long) INSTR_TIME_GET_MILLISEC(now);
}

/*
 * Try pages again that could not be written home, at a bounded pace.  If that
 * fails, the reason goes to the server log. (R11)
 */
static void
dw_retry_failed(void)
{
	static instr_time last;

	if (((volatile DWCtlData *) DWCtl)->nfailed == 0 ||
		(!INSTR_TIME_IS_ZERO(last) && dw_msec_since(last) < DW_RETRY_INTERVAL))
		return;
	INSTR_TIME_SET_CURRENT(last);
	dw_flush_batch(&DWAllPages, NULL);
}

/*
 * Flush batches while there are at least threshold pages for one, but not
 * when the main loop has other things to do, nor when timeout milliseconds have
 * passed since start.
 */
static void
dw_background_flush(int threshold, instr_time start, long timeout)
{
	/* tests may want to decide themselves when pages are written home */
	bool		quiet = IS_INJECTION_POINT_ATTACHED("doublewrite-background-flush");

	if (!quiet)
		dw_retry_failed();
	while (!quiet && !ProcSignalBarrierPending && !ConfigReloadPending &&
		   !ShutdownRequestPending && dw_staged_count() >= threshold &&
		   dw_flush_batch(NULL, NULL))
	{
		if (dw_msec_since(start) >= timeout)
			break;
	}

	SpinLockAcquire(&DWCtl->mutex);
	DWCtl->flush_requested = false;
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * Sleep of the background writer between two rounds: carry home what is
 * staged, then wait for timeout milliseconds, but wake up for each batch that
 * becomes ready meanwhile.
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

	INSTR_TIME_SET_CURRENT(start);
	if (!announced)
	{
		dw_announce_flusher(MyProcNumber);
		on_shmem_exit(dw_withdraw_flusher, (Datum) 0);
		announced = true;
	}

	dw_background_flush(1, start, timeout);

	for (;;)
	{
		long		remaining = Max(timeout - dw_msec_since(start), 0);
		int			rc;

		rc = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   remaining, wait_event_info);
		if (!(rc & WL_LATCH_SET) || !dw_flush_was_requested() ||
			ProcSignalBarrierPending || ConfigReloadPending ||
			ShutdownRequestPending ||
			wait_event_info == WAIT_EVENT_BGWRITER_HIBERNATE ||
			RecoveryInProgress())
			return rc;

		ResetLatch(MyLatch);
		dw_background_flush(DWBatchThreshold(), start, timeout);
		pgstat_report_bgwriter();
	}
}

/* ---------------------------------------------------------------------
 * Sync cycles
 * ---------------------------------------------------------------------
 */

/*
 * Make sure a file is durable, or that it is gone for good.
 */
void
dw_sync_file(const DWDirtyFile *file)
{
	FileTag		ftag;
	char		path[MAXPGPATH];

	if (!enableFsync)
		return;

	memset(&ftag, 0, sizeof(ftag));
	ftag.handler = SYNC_HANDLER_MD;
	ftag.rlocator = file->rlocator;
	ftag.forknum = file->forknum;
	ftag.segno = file->segno;

	if (mdsyncfiletag(&ftag, path) < 0)
	{
		if (!FILE_POSSIBLY_DELETED(errno))
			ereport(data_sync_elevel(ERROR),
					(errcode_for_file_access(),
					 errmsg("could not fsync file \"%s\": %m", path)));
		dw_sync_directory(&file->rlocator);
	}
	DWCount(sync_cycle_files, 1);
}

/*
 * Sync all files of a table of DW_DIRTY_FILES entries.
 */
void
dw_sync_files(const DWDirtyFile *files)
{
	int			nsynced = 0;

	for (int i = 0; i < DW_DIRTY_FILES; i++)
	{
		if (!files[i].used)
			continue;
		dw_sync_file(&files[i]);

		/* the queue of sync requests must not overflow meanwhile */
		if (AmCheckpointerProcess() && ++nsynced % DW_SYNCS_PER_ABSORB == 0)
			AbsorbSyncRequests();
	}
}

/*
 * Forget files whose last logged batch lies below the mark.  Flush lock held.
 */
void
dw_forget_files(uint64 mark)
{
	DWDirtyFile *old = palloc(sizeof(DWDirtyFile) * DW_DIRTY_FILES);

	memcpy(old, DWCtl->dirty_files, sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	memset(DWCtl->dirty_files, 0, sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	DWCtl->ndirty_files = 0;
	for (int i = 0; i < DW_DIRTY_FILES; i++)
	{
		BufferTag	tag;

		if (!old[i].used || old[i].batchno < mark)
			continue;
		InitBufferTag(&tag, &old[i].rlocator, old[i].forknum,
					  old[i].segno * RELSEG_SIZE);
		dw_dirty_file(&tag, old[i].batchno);
	}
	pfree(old);
	dw_show_log();
}

/*
 * Pages that cannot be written home would keep the log in use from their copies
 * on: log them once more, so that they keep what is new.  If there is no space,
 * let it be. (R3, R11)  Flush lock held.
 */
static void
dw_renew_copies(void)
{
	uint64		before = DWCtl->next_batchno;
	bool		logged = true;

	while (logged && DWCtl->phase == DW_BATCH_NONE)
	{
		DWCtl->batch_len = dw_take_kept(DWCtl->batch, DW_MAX_BATCH_PAGES, before);
		if (DWCtl->batch_len == 0)
			break;
		DWCtl->batch_waits = false;
		DWCtl->phase = DW_BATCH_TAKEN;
		dw_flush_wal();
		logged = dw_log_write_batch(DWCtl->batch, DWCtl->batch_len, false);
		dw_return_batch();
	}
}

/*
 * Shall a sync cycle write this mark?  Not if it frees no segment and would take
 * the last block of a log that may be unable to grow: that is for a mark that
 * does.  Flush lock held.
 */
static bool
dw_mark_is_worth_it(uint64 mark)
{
	if (DWCtl->blockno < DW_SEGMENT_BLOCKS - 1 ||
		DWCtl->segno < DWCtl->last_segno ||
		DWCtl->first_segno == DWCtl->segno)
		return true;
	return DWCtl->seg_first_batch[(DWCtl->first_segno + 1) % DW_MAX_SEGMENTS] <= mark;
}

/*
 * Sync all files that the live log protects, and free the log up to there.
 *
 * This bounds the log between checkpoints.  Any process can do it, and none
 * waits for it with the flush lock held, so pages keep moving while files
 * are synced.  begun is the number of the newest cycle when the caller found
 * that it needs one; if a later one has completed since, we return at once.  One
 * that had begun before does not count: it may have decided what to free too
 * early.
 */
void
dw_sync_cycle(uint64 begun)
{
	DWDirtyFile *files;
	uint64		mark;
	uint64		number;

	LWLockAcquire(DoubleWriteSyncLock, LW_EXCLUSIVE);

	dw_lock_flush(LW_EXCLUSIVE);
	if (DWCtl->cycles_done > begun || !DWCtl->log_open)
	{
		LWLockRelease(DoubleWriteFlushLock);
		LWLockRelease(DoubleWriteSyncLock);
		return;
	}

	/* for those who judge the size of the log */
	if (dw_log_half_full())
		DWCount(space_cycles, 1);
	else if (dw_many_dirty_files())
		DWCount(file_cycles, 1);

	number = ++DWCtl->cycles_begun;
	if (DWCtl->armed)
		dw_renew_copies();
	mark = dw_first_unfinished_batch();
	dw_epoch_begin(mark);
	files = palloc(sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	memcpy(files, DWCtl->dirty_files, sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	LWLockRelease(DoubleWriteFlushLock);

	INJECTION_POINT("doublewrite-sync-cycle", NULL);

	dw_sync_files(files);
	pfree(files);

	INJECTION_POINT("doublewrite-sync-cycle-synced", NULL);

	dw_lock_flush(LW_EXCLUSIVE);
	if (DWCtl->log_open)		/* not disarmed meanwhile */
	{
		if (dw_mark_is_worth_it(mark))
			dw_log_set_low_water(mark);
		dw_forget_files(mark);
	}
	DWCtl->cycles_done = number;
	LWLockRelease(DoubleWriteFlushLock);

	DWCount(sync_cycles, 1);
	LWLockRelease(DoubleWriteSyncLock);
}

/* ---------------------------------------------------------------------
 * Upkeep of the log by the checkpointer
 * ---------------------------------------------------------------------
 */

/*
 * Ask the checkpointer to look after the log: to create segments, or to run a
 * sync cycle.  Flushers go on, and do it themselves if they can't wait.
 */
void
dw_request_upkeep(void)
{
	ProcNumber	procno;

	if (pg_atomic_exchange_u32(&DWCtl->upkeep_requested, 1) != 0)
		return;
	procno = ((volatile PROC_HDR *) ProcGlobal)->checkpointerProc;
	if (procno != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/*
 * Called by the checkpointer when it has time, and after each page that a
 * checkpoint has written: do what flushers have asked for.
 *
 * One segment at a time, so that the checkpointer can attend to other things
 * between two of them.  A checkpoint creates none unless it is ahead of its
 * schedule: it would take longer, and flushers can help themselves.  Sync
 * cycles get no more than half of its time, or pages that keep the log full
 * could keep the checkpoint from ending.
 */
void
DoubleWriteUpkeep(bool busy)
{
	static instr_time cycle_end;
	static long cycle_msec = 0;
	static bool segments_postponed = false;
	uint64		begun;
	bool		needed;

	dw_catch_up_with_settings();

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
	needed = dw_cycle_needed();
	begun = DWCtl->cycles_begun;
	LWLockRelease(DoubleWriteFlushLock);

	if (needed)
	{
		instr_time	start;

		INSTR_TIME_SET_CURRENT(start);
		dw_sync_cycle(begun);
		cycle_msec = dw_msec_since(start);
		INSTR_TIME_SET_CURRENT(cycle_end);
	}
}
