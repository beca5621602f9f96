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
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* Files that the checkpointer syncs before it looks at its queue, as in sync.c */
#define DW_SYNCS_PER_ABSORB		10

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
	ErrorData  *volatile edata = NULL;

	PG_TRY();
	{
		INJECTION_POINT("doublewrite-home-write", NULL);
		dw_write_run(slots, npages);
	}
	PG_CATCH();
	{
		/* the error reset this, but we still hold the flush lock */
		InterruptHoldoffCount = holdoff;
		MemoryContextSwitchTo(oldcontext);
		edata = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();

	if (edata == NULL)
		dw_release_slots(slots, npages);
	else
	{
		for (int i = 0; i < npages; i++)
			dw_restage_slot(slots[i], true);
	}
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

/*
 * Bring the pages of the current batch home and end the batch.
 *
 * Restartable: pages that are done have left the batch.  Throws the first
 * error after all other pages are home.
 */
static void
dw_write_home(void)
{
	int			slots[DW_MAX_BATCH_PAGES];
	int			nslots = DWCtl->batch_len;
	ErrorData  *error = NULL;

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
			ErrorData  *e;

			run = dw_run_length(slots + done, nslots - done);
			e = dw_try_write_run(slots + done, run);
			if (error == NULL)
				error = e;
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

	if (error != NULL)
		ReThrowError(error);
}

/* ---------------------------------------------------------------------
 * Batches
 * ---------------------------------------------------------------------
 */

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
	if (io_torn_pages_protection != TORN_PAGES_FULL_PAGES || !fullPageWrites ||
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
 * The batch cannot be logged, and a sync cycle has not helped: pages that
 * cannot be written home keep all of the log in use.  Give up the batch, so
 * that those are tried again before more is logged. (R11)
 */
static void
dw_give_up_batch(void)
{
	for (int i = 0; i < DWCtl->batch_len; i++)
		dw_restage_slot(DWCtl->batch[i], false);
	DWCtl->batch_len = 0;
	DWCtl->phase = DW_BATCH_NONE;
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
 * Flush one batch, or resume the one left over.  Returns false if there was
 * nothing to do.  The caller holds no lock of the engine.
 */
bool
dw_flush_batch(bool retry_failed)
{
	for (bool cycle_done = false;; cycle_done = true)
	{
		uint64		cycles_seen;

		LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);

		if (DWCtl->phase == DW_BATCH_NONE)
		{
			DWCtl->batch_len = dw_take_slots(DWCtl->batch, DW_MAX_BATCH_PAGES,
											 retry_failed);
			if (DWCtl->batch_len == 0)
			{
				LWLockRelease(DoubleWriteFlushLock);
				return false;
			}
			DWCtl->phase = DW_BATCH_TAKEN;
		}

		if (DWCtl->phase == DW_BATCH_DURABLE || dw_make_durable(cycle_done))
		{
			INJECTION_POINT("doublewrite-log-synced", NULL);
			if (dw_cycle_needed())
				dw_request_upkeep();
			dw_write_home();
			LWLockRelease(DoubleWriteFlushLock);
			return true;
		}

		if (cycle_done)
			dw_give_up_batch();

		cycles_seen = DWCtl->cycles_done;
		LWLockRelease(DoubleWriteFlushLock);

		/* No space in the log: free some, without the lock. */
		DWCount(log_full, 1);
		dw_sync_cycle(cycles_seen);
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
		if (!dw_flush_batch(false) && !DoubleWriteStageHasRoom())
			dw_flush_batch(true);
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
		dw_flush_batch(false);
}

/*
 * Bring all pages home that were staged before the call, and return with the
 * flush lock held and no batch under way.
 *
 * A batch of another flusher has left the staged list, but may come back if a
 * write fails; so we look again once we have the lock.
 */
void
dw_drain_and_lock(void)
{
	uint64		seq = dw_current_seq();
	bool		filling;

	for (;;)
	{
		while (dw_staged_before(seq, &filling))
		{
			/*
			 * A page being replaced is on its way out of a buffer in another
			 * process, which is busy copying it: a matter of microseconds.
			 */
			if (filling)
				pg_spin_delay();
			else
				dw_flush_batch(true);
			CHECK_FOR_INTERRUPTS();
		}

		LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
		if (DWCtl->phase == DW_BATCH_NONE && !dw_staged_before(seq, &filling))
			return;
		LWLockRelease(DoubleWriteFlushLock);

		/* finish what another flusher has left */
		dw_flush_batch(true);
	}
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
	if (pg_atomic_read_membarrier_u32(&DWCtl->ninuse_hint) == 0)
		return;
	dw_drain_and_lock();
	LWLockRelease(DoubleWriteFlushLock);
}

/*
 * Is this process taking a base backup, holding up home writes for each read?
 * Then it does not depend on images in WAL.
 */
bool		DoubleWriteBackupReadsHeld = false;

/*
 * Keep pages from being written home while the caller reads a relation file
 * behind the buffer manager's back, so that it reads no torn page, even if
 * WAL carries no image to mend it.  If path is given, we do so only if it can
 * be that of a relation file.
 *
 * Returns whether home writes are held up, and must be released with
 * DoubleWriteResumeHomeWrites(); an error releases them, too. (R9a)
 */
bool
DoubleWriteHoldHomeWrites(const char *path)
{
	if (path != NULL && path_is_prefix_of_path(DataDir, path))
		path += strlen(DataDir) + 1;
	if (path != NULL && strncmp(path, "base/", 5) != 0 &&
		strncmp(path, "global/", 7) != 0 &&
		strncmp(path, PG_TBLSPC_DIR_SLASH, strlen(PG_TBLSPC_DIR_SLASH)) != 0)
		return false;
	LWLockAcquire(DoubleWriteFlushLock, LW_SHARED);
	return true;
}

void
DoubleWriteResumeHomeWrites(void)
{
	LWLockRelease(DoubleWriteFlushLock);
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
	uint64		cycles_seen;

	for (int i = 0; i < nrels; i++)
		truncated |= dw_was_truncated(&rels[i]->smgr_rlocator.locator);
	if (!truncated)
		return;

	LWLockAcquire(DoubleWriteFlushLock, LW_SHARED);
	newest = DWCtl->log_open ? DWCtl->last_page_batch : 0;
	LWLockRelease(DoubleWriteFlushLock);

	/* a cycle that another process had begun earlier does not count */
	for (;;)
	{
		bool		done;

		LWLockAcquire(DoubleWriteFlushLock, LW_SHARED);
		done = DWCtl->low_water_logged > newest || !DWCtl->log_open;
		cycles_seen = DWCtl->cycles_done;
		LWLockRelease(DoubleWriteFlushLock);
		if (done)
			break;
		DoubleWriteDrain();
		dw_sync_cycle(cycles_seen);
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

/*
 * Flush batches while there are at least threshold pages for one, but not
 * when the main loop has other things to do, nor past the given time.
 */
static void
dw_background_flush(int threshold, TimestampTz end)
{
	while (!ProcSignalBarrierPending && !ConfigReloadPending &&
		   !ShutdownRequestPending && dw_staged_count() >= threshold &&
		   dw_flush_batch(true))
	{
		if (GetCurrentTimestamp() >= end)
			break;
	}

	SpinLockAcquire(&DWCtl->mutex);
	DWCtl->flush_requested = false;
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * Sleep of the background writer between two rounds: carry home what is
 * staged, then wait for timeout milliseconds, but get up for each batch that
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
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout);

	if (!announced)
	{
		dw_announce_flusher(MyProcNumber);
		on_shmem_exit(dw_withdraw_flusher, (Datum) 0);
		announced = true;
	}

	dw_background_flush(1, end);

	for (;;)
	{
		long		remaining = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);
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
		dw_background_flush(DWBatchThreshold(), end);
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
 * Sync all files that the live log protects, and free the log up to there.
 *
 * This bounds the log between checkpoints.  Any process can do it, and none
 * waits for it with the flush lock held, so pages keep moving while files
 * are synced.  cycles_seen is the number of completed cycles when the caller
 * found that it needs one; if another has completed since, we return at once.
 */
void
dw_sync_cycle(uint64 cycles_seen)
{
	DWDirtyFile *files;
	uint64		mark;

	LWLockAcquire(DoubleWriteSyncLock, LW_EXCLUSIVE);

	LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
	if (DWCtl->cycles_done != cycles_seen || !DWCtl->log_open)
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

	mark = dw_first_unfinished_batch();
	dw_epoch_begin(mark);
	files = palloc(sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	memcpy(files, DWCtl->dirty_files, sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	LWLockRelease(DoubleWriteFlushLock);

	INJECTION_POINT("doublewrite-sync-cycle", NULL);

	dw_sync_files(files);
	pfree(files);

	INJECTION_POINT("doublewrite-sync-cycle-synced", NULL);

	LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
	if (DWCtl->log_open)		/* not disarmed meanwhile */
	{
		dw_log_set_low_water(mark);
		dw_forget_files(mark);
	}
	DWCtl->cycles_done++;
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
	static TimestampTz not_before = 0;
	static bool segments_postponed = false;
	TimestampTz start;
	uint64		cycles_seen;
	bool		needed;

	if (pg_atomic_read_u32(&DWCtl->upkeep_requested) == 0 &&
		(busy || !segments_postponed))
		return;
	start = GetCurrentTimestamp();
	if (busy && start < not_before)
		return;

	/* a full barrier: what is asked for after our look counts as new */
	pg_atomic_exchange_u32(&DWCtl->upkeep_requested, 0);

	segments_postponed = busy;
	if (!busy && dw_prepare_segment())
		dw_request_upkeep();

	LWLockAcquire(DoubleWriteFlushLock, LW_SHARED);
	needed = dw_cycle_needed();
	cycles_seen = DWCtl->cycles_done;
	LWLockRelease(DoubleWriteFlushLock);

	if (needed)
	{
		TimestampTz end;

		dw_sync_cycle(cycles_seen);
		end = GetCurrentTimestamp();
		not_before = end + (end - start);
	}
}
