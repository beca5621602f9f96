/*-------------------------------------------------------------------------
 *
 * instantredo.c
 *	  Instant recovery: redo of single pages, and the workers that do it.
 *
 * See instantrecovery.c for how it belongs together.
 *
 * The process reads the records of the chain again, and calls rm_redo for each, as
 * ever.  XLogReadBufferForRedoExtended() answers for all blocks except the page
 * that they are not there, which redo must cope with anyway, since they may have
 * been truncated away later.  Where redo does not ask, because the record carries
 * all there is in the page (an image, or a page that is initialized), it gets a
 * buffer that no other process sees and that is thrown away afterwards: a local
 * buffer, as temporary tables have.
 *
 * For the page itself redo gets such a buffer, too: a copy, which is written back
 * when the chain has been applied.  So while a record is applied nothing is changed
 * that other processes see, nothing is read or written, and whatever error redo
 * raises, a PANIC included, can be one of this page: the copy is thrown away.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/instantredo.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/instantrecovery_internal.h"
#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogpagefetch.h"
#include "access/xlogrecovery.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "postmaster/startup.h"
#include "storage/aio_subsys.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/doublewrite.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "storage/proclist.h"
#include "storage/procsignal.h"
#include "storage/smgr.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/*
 * Pages that are read for nothing if that makes one run of two, and the length of
 * a run: as for AHEAD_GAP and AHEAD_MAX_RUN.
 */
#define INSTANT_GAP				2
#define INSTANT_MAX_RUN			128

/*
 * So many pages at most are announced ahead, times maintenance_io_concurrency, since
 * several of them are a run; and so many at least, while sessions wait.
 */
#define INSTANT_MAX_AHEAD		4
#define INSTANT_MIN_AHEAD		4

/*
 * Members take so many neighboring pages at once, as one record may concern many of
 * them; but at most a share of what is left, so that there is something for all.
 */
#define INSTANT_TAKE_PAGES		32
#define INSTANT_TAKE_SHARE		64

/*
 * Workers stand aside for so long after a session has read a catalog, but not for more moments
 * than that in all, which is half a second.
 */
#define INSTANT_ASIDE_FOR_USEC	10000
#define INSTANT_MOMENT_USEC		500
#define INSTANT_ASIDE_MOMENTS	1000

/* In a long chain, records between two looks at whether sessions wait for other pages */
#define INSTANT_LOOK_RECORDS	256

/*
 * Looks that find waiting sessions before redo of the page is put off, at most.  It is put off
 * at the first one, and then after twice as many each time: sessions that need the page itself
 * must not wait for a turn of all that a scan demands after each few records.
 */
#define INSTANT_MAX_TURN		64

/* Local buffers of a process that redoes pages: the least that temp_buffers may be */
#define INSTANT_SINKS			100

/* A worker says how many pages are pending after so many pages. */
#define INSTANT_SHOW_PAGES		64

bool		InstantRecoveryRedoesPage = false;

/*
 * The page that this process redoes, its copy, the buffer that was copied, and the buffers
 * thrown away after each record
 */
static InstantPage *instant_page = NULL;
static Buffer instant_page_copy = InvalidBuffer;
static Buffer instant_page_buffer = InvalidBuffer;
static Buffer instant_sinks[XLR_MAX_BLOCK_ID + 1];
static int	instant_nsinks = 0;

/* Worker: its number, from 1; 0 is the startup process */
static int	instant_worker_number = 0;

/* Pages that this process has taken from "next": the next one, and where they end */
static uint32 instant_taken_next = 0;
static uint32 instant_taken_end = 0;

/* Records that this process has applied */
static uint32 instant_nrecords_applied = 0;

/* Looks that have found waiting sessions since redo of this page has begun */
static uint32 instant_turn_looks = 0;

/* Worker: it has met a page that it cannot redo */
static bool instant_has_failed = false;

/* Worker: it is the one that stays for these */
static bool instant_retries = false;

/* ----------------------------------------------------------------
 * Redo of one page
 * ----------------------------------------------------------------
 */

/*
 * Return whether this is the block that is being redone.
 */
static bool
instant_is_target(const RelFileLocator *rlocator, ForkNumber forknum,
				  BlockNumber blkno)
{
	Assert(instant_page != NULL);
	return instant_page->blkno == blkno && instant_page->forknum == forknum &&
		RelFileLocatorEquals(instant_page->rlocator, *rlocator);
}

/*
 * Local buffers are taken in turn, so a process comes to own all that it may have, and
 * a record needs a few.  Whatever temp_buffers is, have the least of them.
 */
static void
instant_limit_sinks(void)
{
	char		value[32];

	snprintf(value, sizeof(value), "%d", INSTANT_SINKS);
	SetConfigOption("temp_buffers", value, PGC_USERSET, PGC_S_OVERRIDE);
}

/*
 * Return a buffer for a block that no other process sees, and that never gets into a
 * file.  It contains zeroes unless it has been "found".
 */
static Buffer
instant_local_buffer(const RelFileLocator *rlocator, ForkNumber forknum,
					 BlockNumber blkno, bool *found)
{
	SMgrRelation smgr = smgropen(*rlocator, INVALID_PROC_NUMBER);
	BufferDesc *desc;
	Buffer		buffer;

	/* redo of an init fork flushes it, which a local buffer refuses (I8) */
	Assert(forknum != INIT_FORKNUM);

	if (NLocBuffer == 0)
		instant_limit_sinks();
	desc = LocalBufferAlloc(smgr, forknum, blkno, found);
	Assert(NLocBuffer == INSTANT_SINKS);
	buffer = BufferDescriptorGetBuffer(desc);
	if (!*found)
	{
		memset(BufferGetPage(buffer), 0, BLCKSZ);
		TerminateLocalBufferIO(desc, false, BM_VALID, false);
	}
	return buffer;
}

/*
 * Throw a local buffer away, which is not pinned any more.
 */
static void
instant_forget_buffer(Buffer buffer)
{
	InvalidateLocalBuffer(GetLocalBufferDescriptor(-buffer - 1), true);
}

/*
 * Return a buffer for a block that is not being redone, but that redo insists on.
 */
static Buffer
instant_sink(const RelFileLocator *rlocator, ForkNumber forknum, BlockNumber blkno)
{
	bool		found;
	Buffer		buffer = instant_local_buffer(rlocator, forknum, blkno, &found);

	Assert(instant_nsinks <= XLR_MAX_BLOCK_ID);
	if (!found)
		instant_sinks[instant_nsinks++] = buffer;
	return buffer;
}

static void
instant_empty_sinks(void)
{
	while (instant_nsinks > 0)
		instant_forget_buffer(instant_sinks[--instant_nsinks]);
}

/*
 * Read the page that is being redone, and copy it.  Errors of reading, of what is written to
 * make room, and of WAL, are what they are anywhere else.
 */
static void
instant_copy_page(ReadBufferMode mode)
{
	bool		found;

	InstantRecoveryRedoesPage = false;
	instant_page_buffer = XLogReadBufferExtended(instant_page->rlocator,
												 instant_page->forknum,
												 instant_page->blkno, mode,
												 InvalidBuffer);
	InstantRecoveryRedoesPage = true;
	if (!BufferIsValid(instant_page_buffer))
	{
		/*
		 * The startup process remembers that until the end of recovery, since
		 * the page may be removed later; workers leave it to that.  After
		 * opening it is known that it is not; it may have been zeroed on
		 * request, or the request is to go on without it.
		 */
		bool		retried = InstantCtl->startup_retries;

		if (!AmStartupProcess() && (retried || !zero_damaged_pages))
			ereport(ignore_invalid_pages && !retried ? WARNING : ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("block %u of relation \"%s\" is missing or uninitialized",
							instant_page->blkno,
							relpathperm(instant_page->rlocator,
										instant_page->forknum).str)));
		return;
	}
	instant_page_copy = instant_local_buffer(&instant_page->rlocator,
											 instant_page->forknum,
											 instant_page->blkno, &found);
	Assert(!found);
	LockBuffer(instant_page_buffer, BUFFER_LOCK_SHARE);
	memcpy(BufferGetPage(instant_page_copy), BufferGetPage(instant_page_buffer),
		   BLCKSZ);
	LockBuffer(instant_page_buffer, BUFFER_LOCK_UNLOCK);
}

/*
 * Return the copy of the page that is being redone, or InvalidBuffer if there is no such
 * page.  The first record may do without what there was.
 */
static Buffer
instant_target(ReadBufferMode mode, bool rebuilds)
{
	bool		found;

	if (!BufferIsValid(instant_page_copy))
	{
		if (rebuilds)
			instant_page_copy = instant_local_buffer(&instant_page->rlocator,
													 instant_page->forknum,
													 instant_page->blkno, &found);
		else
			instant_copy_page(mode);
		if (!BufferIsValid(instant_page_copy))
			return InvalidBuffer;
	}
	IncrBufferRefCount(instant_page_copy);
	return instant_page_copy;
}

/*
 * Records have been applied to the page: let others see it. (I3)
 */
static void
instant_write_back(void)
{
	BufferDesc *desc;

	if (!BufferIsValid(instant_page_copy))
		return;
	desc = GetLocalBufferDescriptor(-instant_page_copy - 1);
	if ((pg_atomic_read_u32(&desc->state) & BM_DIRTY) != 0)
	{
		if (BufferIsValid(instant_page_buffer))
			LockBuffer(instant_page_buffer, BUFFER_LOCK_EXCLUSIVE);
		else
			instant_page_buffer = XLogReadBufferExtended(instant_page->rlocator,
														 instant_page->forknum,
														 instant_page->blkno,
														 RBM_ZERO_AND_LOCK, InvalidBuffer);
		memcpy(BufferGetPage(instant_page_buffer), BufferGetPage(instant_page_copy),
			   BLCKSZ);
		MarkBufferDirty(instant_page_buffer);
		DoubleWriteRecordsOf(instant_page_buffer)->redo = DW_NOT_NOTED;
		LockBuffer(instant_page_buffer, BUFFER_LOCK_UNLOCK);
	}
	if (BufferIsValid(instant_page_buffer))
		ReleaseBuffer(instant_page_buffer);
	ReleaseBuffer(instant_page_copy);
	instant_forget_buffer(instant_page_copy);
	instant_page_buffer = instant_page_copy = InvalidBuffer;
}

/*
 * What XLogReadBufferForRedoExtended() answers while a single page is redone (I3).
 */
XLogRedoAction
InstantRecoveryBlock(XLogReaderState *record, uint8 block_id,
					 ReadBufferMode mode, Buffer *buf)
{
	RelFileLocator rlocator;
	ForkNumber	forknum;
	BlockNumber blkno;
	bool		image = XLogRecBlockImageApply(record, block_id);
	bool		rebuilds = image || mode == RBM_ZERO_AND_LOCK ||
		mode == RBM_ZERO_AND_CLEANUP_LOCK;
	Page		page;

	XLogRecGetBlockTag(record, block_id, &rlocator, &forknum, &blkno);
	if (instant_is_target(&rlocator, forknum, blkno))
		*buf = instant_target(mode, rebuilds);
	else if (rebuilds)
		*buf = instant_sink(&rlocator, forknum, blkno);
	else
		*buf = InvalidBuffer;
	if (!BufferIsValid(*buf))
		return BLK_NOTFOUND;

	page = BufferGetPage(*buf);
	if (image)
	{
		if (!RestoreBlockImage(record, block_id, page))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg_internal("%s", record->errormsg_buf)));
		if (!PageIsNew(page))
			PageSetLSN(page, record->EndRecPtr);
		MarkBufferDirty(*buf);
		return BLK_RESTORED;
	}
	if (rebuilds)
		return BLK_NEEDS_REDO;

	if (DoubleWriteImageMissing(record, block_id, page))
		NoteImagesOff(record->ReadRecPtr);
	if (record->EndRecPtr > PageGetLSN(page))
		return BLK_NEEDS_REDO;
	/* what can be read need not be on disk */
	DoubleWriteLeftByRedo(*buf);
	return BLK_DONE;
}

static void
instant_redo_error_callback(void *arg)
{
	InstantPage *page = arg;

	errcontext("WAL redo of block %u of relation \"%s\" at %X/%X",
			   page->blkno,
			   relpathperm(page->rlocator, page->forknum).str,
			   LSN_FORMAT_ARGS(instant_lsn(page->applied)));
}

/*
 * Return whether the page is going to be read from its file.  If it is going to be
 * read from the double-write log, ask the kernel for that.
 */
static bool
instant_is_read(const InstantPage *page)
{
	return !page->rebuilt &&
		!DoubleWriteAnnounceCopy(&page->rlocator, page->forknum, page->blkno);
}

/*
 * Ask the kernel for a page that is going to be redone, unless its records make
 * it anew.
 */
void
instant_announce_page(const InstantPage *page)
{
#ifdef USE_PREFETCH
	if (instant_is_read(page))
		(void) PrefetchSharedBuffer(smgropen(page->rlocator, INVALID_PROC_NUMBER),
									page->forknum, page->blkno);
#endif
}

/*
 * Return the end of the run of pages, which are in order, that is best read in one
 * go.
 */
static uint32
instant_run_end(uint32 first)
{
	uint32		i = first;

	while (i + 1 < InstantCtl->npages &&
		   InstantPages[i + 1].forknum == InstantPages[first].forknum &&
		   RelFileLocatorEquals(InstantPages[i + 1].rlocator,
								InstantPages[first].rlocator) &&
		   InstantPages[i + 1].blkno - InstantPages[i].blkno <= INSTANT_GAP + 1 &&
		   InstantPages[i + 1].blkno - InstantPages[first].blkno < INSTANT_MAX_RUN)
		i++;
	return i + 1;
}

/*
 * Ask the kernel for a run of pages.  Those at its ends may be there already, or
 * not be needed.  If their file cannot be opened, redo of these pages will say so
 * (I9): the caller is on its way to redo others.
 */
static void
instant_announce_run(uint32 first, uint32 end)
{
#ifdef USE_PREFETCH
	MemoryContext context = CurrentMemoryContext;
	InstantPage *page = NULL;
	InstantPage *last = NULL;

	if ((io_direct_flags & IO_DIRECT_DATA) != 0)
		return;
	PG_TRY();
	{
		for (uint32 i = first; i < end; i++)
		{
			if (!instant_is_read(&InstantPages[i]))
				continue;
			last = &InstantPages[i];
			if (page == NULL)
				page = last;
		}
		if (page != NULL)
			(void) smgrprefetch(smgropen(page->rlocator, INVALID_PROC_NUMBER),
								page->forknum, page->blkno,
								last->blkno - page->blkno + 1);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
#endif
}

/*
 * Return how many pages may be announced and not read yet, at most.
 */
uint32
instant_max_ahead(void)
{
	return INSTANT_MAX_AHEAD * maintenance_io_concurrency;
}

static uint32
instant_min_ahead(void)
{
	return Min(INSTANT_MIN_AHEAD, instant_max_ahead());
}

/*
 * Set how many pages are announced: as many as is good for the storage, or, if
 * sessions may soon wait for pages, as few as is good for them.
 */
void
instant_reset_ahead(bool sessions)
{
	pg_atomic_write_u32(&InstantCtl->ahead,
						sessions ? instant_min_ahead() : instant_max_ahead());
}

/*
 * A session's page waits behind what has been announced, so each page that a session needs alone
 * halves how much that is, and each page that no session has asked for adds one to it:
 * while sessions ask for few, redo has the storage for itself, and the first
 * query after a crash, which needs one page after the other, finds its queue
 * short.  A session that needs neighbors has announced many itself, and takes nothing
 * from redo in order.  Once more WAL is kept than max_wal_size and half of it, as there can be
 * no checkpoint before redo is complete, redo has the storage for itself.  Others may change
 * it at the same time; a step that is lost does no harm.
 */
static void
instant_adapt_ahead(bool demanded)
{
	uint32		ahead = pg_atomic_read_u32(&InstantCtl->ahead);

	if (demanded && InstantRecoveryKeptWal() - max_wal_size_mb <= max_wal_size_mb / 2)
		ahead = Max(ahead / 2, instant_min_ahead());
	else
		ahead = Min(ahead + 1, instant_max_ahead());
	pg_atomic_write_u32(&InstantCtl->ahead, ahead);
}

/*
 * Ask the kernel for the next pages in order.
 */
static void
instant_announce(uint32 upto)
{
	uint32		i = pg_atomic_read_u32(&InstantCtl->announced);

	while (i < Min(upto, InstantCtl->npages))
	{
		uint32		end = instant_run_end(i);

		if (pg_atomic_compare_exchange_u32(&InstantCtl->announced, &i, end))
		{
			instant_announce_run(i, end);
			i = end;
		}
	}
}

/*
 * Restore the page from a record that consists of images, as xlog_redo() would.  It
 * may have those of many pages: only the one that is needed is restored.
 */
static void
instant_restore_image(XLogReaderState *record)
{
	for (int block_id = 0; block_id <= XLogRecMaxBlockId(record); block_id++)
	{
		RelFileLocator rlocator;
		ForkNumber	forknum;
		BlockNumber blkno;
		Buffer		buffer;

		if (!XLogRecGetBlockTagExtended(record, block_id, &rlocator, &forknum, &blkno, NULL) ||
			!instant_is_target(&rlocator, forknum, blkno))
			continue;
		if (XLogReadBufferForRedo(record, block_id, &buffer) != BLK_RESTORED)
			elog(ERROR, "unexpected XLogReadBufferForRedo result when restoring backup block");
		UnlockReleaseBuffer(buffer);
	}
}

/*
 * Apply one record to the page that is being redone.
 */
static void
instant_redo_record(InstantPage *page, uint32 distance)
{
	XLogReaderState *record;

	if (AmStartupProcess())
		ProcessStartupProcInterrupts();
	page->applied = distance;
	instant_nrecords_applied++;
	record = instant_read_record(instant_lsn(distance));
	InstantRecoveryRedoesPage = true;
	if (XLogRecGetRmid(record) == RM_XLOG_ID)
		instant_restore_image(record);
	else
		GetRmgr(XLogRecGetRmid(record)).rm_redo(record);
	InstantRecoveryRedoesPage = false;
	instant_empty_sinks();
	INJECTION_POINT("instant-recovery-record-redone", NULL);

	/* tests want sessions to demand pages meanwhile */
	if (IS_INJECTION_POINT_ATTACHED("instant-recovery-records-slowly"))
		pg_usleep(100);
}

/*
 * Return whether redo of a page with a long chain is to be put off before a record,
 * as sessions wait for other pages, or as the server stops.
 */
static bool
instant_pauses(InstantPage *page, uint32 distance)
{
	InstantPhase phase;

	if (AmStartupProcess() || instant_nrecords_applied % INSTANT_LOOK_RECORDS != 0 ||
		distance <= page->paused_at)
		return false;
	phase = instant_phase();
	if (phase != INSTANT_PHASE_ENDED &&
		!(phase == INSTANT_PHASE_OPEN && instant_demands() > 0 &&
		  ++instant_turn_looks >= page->turn))
		return false;

	elog(DEBUG1, "redo of block %u of relation \"%s\" is put off for a page that a session needs",
		 page->blkno, relpathperm(page->rlocator, page->forknum).str);
	/* if that fails, redo begins again where it has begun now */
	instant_write_back();
	page->paused_at = distance;
	page->turn = Min(2 * page->turn, INSTANT_MAX_TURN);
	/* the next page begins without that */
	instant_nrecords_applied++;
	/* from now on it matters what is in shared buffers */
	page->rebuilt = false;
	return true;
}

/*
 * Apply the chain of a page.  Returns false if it has been put off, which only workers do.
 */
static bool
instant_redo_chain(InstantPage *page)
{
	uint32		nspilled;
	const uint32 *spilled = instant_load_runs(page, &nspilled);

	for (uint32 i = 0; i < nspilled; i++)
	{
		if (spilled[i] < page->paused_at)
			continue;
		if (instant_pauses(page, spilled[i]))
			return false;
		instant_redo_record(page, spilled[i]);
	}
	for (uint32 i = page->first; i != INSTANT_NONE; i = instant_record(i)->next)
	{
		uint32		distance = instant_record(i)->distance;

		if (instant_pauses(page, distance))
		{
			page->spilled = 0;
			page->first = i;
			return false;
		}
		instant_redo_record(page, distance);
	}
	return true;
}

/*
 * Apply the chain of a page, in the order of WAL (I3).  Returns whether that is complete.
 */
bool
instant_redo_page(uint32 page_number)
{
	InstantPage *page = &InstantPages[page_number];
	bool		complete;
	ErrorContextCallback errcallback;

	errcallback.callback = instant_redo_error_callback;
	errcallback.arg = page;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;

	Assert(InRecovery && instant_page == NULL);
	Assert(pg_atomic_read_u32(&page->state) == INSTANT_REDOING);
	instant_page = page;
	instant_turn_looks = 0;

	/*
	 * Only the startup process, which gets it after this error, can note that
	 * a page is not awaited any more as its records rebuild it.
	 */
	if (!AmStartupProcess() &&
		PageFetchAwaits(page->rlocator, page->forknum, page->blkno))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("page is awaited from the primary")));

	complete = instant_redo_chain(page);
	instant_write_back();
	if (complete)
		INJECTION_POINT("instant-recovery-page-redone", NULL);

	instant_page = NULL;
	error_context_stack = errcallback.previous;
	if (complete)
		pg_atomic_fetch_add_u32(&InstantCtl->redone[instant_worker_number], 1);
	return complete;
}

/*
 * After an error: give up what redo of a page can hold, as other processes without
 * transactions do, and its copy.
 */
static void
instant_abandon_page(MemoryContext context)
{
	HOLD_INTERRUPTS();
	instant_page->sqlerrcode = geterrcode();
	/* of what it fails to redo, too, the startup process reports why */
	if (!InstantCtl->startup_retries)
		EmitErrorReport();

	InstantRecoveryRedoesPage = false;
	LWLockReleaseAll();
	ConditionVariableCancelSleep();
	pgstat_report_wait_end();
	pgaio_error_cleanup();
	UnlockBuffers();
	ReleaseAuxProcessResources(false);
	AtEOXact_Buffers(false);
	AtEOXact_SMgr();
	AtEOXact_Files(false);
	AtEOXact_HashTables(false);

	MemoryContextSwitchTo(context);
	FlushErrorState();
	instant_empty_sinks();
	if (BufferIsValid(instant_page_copy))
		instant_forget_buffer(instant_page_copy);
	instant_page_buffer = instant_page_copy = InvalidBuffer;
	instant_page = NULL;
	RESUME_INTERRUPTS();
}

/*
 * Worker: a page has been put off.  Its turn comes after those that are demanded now; if so
 * many are that there is no room for one more, it is taken again, which is true then.
 */
static bool
instant_put_back(uint32 i)
{
	/* The barrier makes what has been applied visible before the state. */
	pg_atomic_write_membarrier_u32(&InstantPages[i].state, INSTANT_PENDING);
	return !instant_demand(i) &&
		instant_take_page(i, INSTANT_PENDING, INSTANT_REDOING);
}

/*
 * Worker: redo a page; if that fails, say so.
 */
static void
instant_try_page(uint32 i)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool complete = false;

	do
	{
		PG_TRY();
		{
			complete = instant_redo_page(i);
		}
		PG_CATCH();
		{
			instant_abandon_page(context);
			instant_has_failed = true;
			instant_page_failed(i);
			return;
		}
		PG_END_TRY();
	} while (!complete && instant_put_back(i));
	if (complete)
		instant_page_done(i);
}

/* ----------------------------------------------------------------
 * Workers
 * ----------------------------------------------------------------
 */

/*
 * A worker that ends in an error, though it survives those of redo, may leave a page
 * half redone, and others waiting for it.
 */
static void
instant_worker_exit(int code, Datum arg)
{
	if (code != 0 && instant_is_member() && PostmasterIsAlive())
		ereport(PANIC,
				(errmsg("recovery worker has failed while pages are pending"),
				 errhint("Without \"%s\" and \"%s\" the startup process does all redo.",
						 "instant_recovery", "recovery_workers")));
	instant_leave();
}

/*
 * Take a page that has been demanded.  Returns INSTANT_NONE if there is none.
 */
static uint32
instant_take_demand(void)
{
	for (;;)
	{
		uint32		i = INSTANT_NONE;

		SpinLockAcquire(&InstantCtl->mutex);
		if (InstantCtl->demand_tail != InstantCtl->demand_head)
			i = InstantCtl->demands[InstantCtl->demand_tail++ % INSTANT_DEMANDS];
		SpinLockRelease(&InstantCtl->mutex);

		if (i == INSTANT_NONE)
			return i;
		if (instant_take_page(i, INSTANT_PENDING, INSTANT_REDOING))
		{
			if (InstantPages[i].paused_at == 0)
			{
				pg_atomic_fetch_add_u32(&InstantCtl->on_demand, 1);
				if (InstantPages[i].demanded != INSTANT_DEMANDED_IN_RANGE)
					instant_adapt_ahead(true);
			}
			return i;
		}
	}
}

static void
instant_worker_interrupts(void)
{
	CHECK_FOR_INTERRUPTS();
	if (!PostmasterIsAlive())
		proc_exit(1);
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Return whether only pages that are demanded are to be redone.  Tests want to see
 * what is pending: one of them always, others unless a process waits for all pages.
 */
static bool
instant_only_demands(void)
{
#ifdef USE_INJECTION_POINTS
	ConditionVariable *cv = &InstantCtl->all_cv;
	bool		awaited;

	if (instant_phase() != INSTANT_PHASE_OPEN)
		return false;
	if (IS_INJECTION_POINT_ATTACHED("instant-recovery-only-demands"))
		return true;
	if (!IS_INJECTION_POINT_ATTACHED("instant-recovery-demands-first"))
		return false;
	SpinLockAcquire(&cv->mutex);
	awaited = !proclist_is_empty(&cv->wakeup);
	SpinLockRelease(&cv->mutex);
	return !awaited && !ServerIsStopping();
#else
	return false;
#endif
}

/*
 * Take some neighboring pages, which others may still demand.  Returns false if none
 * are left.
 */
static bool
instant_take_more(void)
{
	uint32		next = pg_atomic_read_u32(&InstantCtl->next);
	uint32		n;

	do
	{
		if (next >= InstantCtl->npages)
			return false;
		n = Min((InstantCtl->npages - next - 1) / INSTANT_TAKE_SHARE + 1,
				INSTANT_TAKE_PAGES);
	} while (!pg_atomic_compare_exchange_u32(&InstantCtl->next, &next, next + n));

	instant_taken_next = next;
	instant_taken_end = next + n;
	return true;
}

/*
 * Return whether to leave the storage to sessions for a moment, as one has just read a catalog:
 * a new session needs a hundred pages of them, one after the other, and each would wait behind
 * pages that no session waits for.  Redo has to end some time, so only the first are spared.
 */
static bool
instant_stands_aside(void)
{
	static int	moments = 0;
	int64		since;

	if (moments >= INSTANT_ASIDE_MOMENTS)
		return false;
	since = GetCurrentTimestamp() -
		(TimestampTz) pg_atomic_read_u64(&InstantCtl->catalog_read_at);
	if (since < 0 || since >= INSTANT_ASIDE_FOR_USEC)
		return false;
	moments++;
	return true;
}

/*
 * Take a page to redo it, or return INSTANT_NONE if others have taken all that
 * were left.
 */
uint32
instant_take(void)
{
	uint32		i = instant_take_demand();

	while (i == INSTANT_NONE)
	{
		uint32		next;

		if (instant_only_demands())
		{
			instant_worker_interrupts();
			pg_usleep(1000);
			i = instant_take_demand();
			continue;
		}

		if (instant_stands_aside())
		{
			instant_worker_interrupts();
			pg_usleep(INSTANT_MOMENT_USEC);
			i = instant_take_demand();
			continue;
		}

		/* they want time for it, too */
		if (IS_INJECTION_POINT_ATTACHED("instant-recovery-slowly") &&
			instant_phase() == INSTANT_PHASE_OPEN)
			pg_usleep(1000);

		if (instant_taken_next == instant_taken_end && !instant_take_more())
			return INSTANT_NONE;
		next = instant_taken_next++;
		if (instant_take_page(next, INSTANT_PENDING, INSTANT_REDOING))
		{
			instant_adapt_ahead(false);
			i = next;
		}
	}
	instant_announce(pg_atomic_read_u32(&InstantCtl->next) +
					 pg_atomic_read_u32(&InstantCtl->ahead));
	return i;
}

/*
 * As the WAL pipeline does: see pipeline_initialize().  But a request to end is not heard, as
 * other processes depend on this one.  If all are to end, as the server stops, it asks.
 */
static void
instant_worker_initialize(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SIG_IGN);
	pqsignal(SIGUSR1, procsignal_sigusr1_handler);
	BackgroundWorkerUnblockSignals();

	InitProcessPhase2();
	ProcSignalInit(NULL, 0);
	InitializeSessionUserIdStandalone();
	pgstat_beinit();
	pgstat_bestart_initial();
	pgstat_bestart_final();
	SetProcessingMode(NormalProcessing);
	CreateAuxProcessResourceOwner();

	before_shmem_exit(instant_worker_exit, (Datum) 0);
}

/*
 * Show how many pages are pending in pg_stat_activity and in the process title, where
 * probes that cannot log in see that some have failed.
 */
static void
instant_show_progress(void)
{
	uint32		failed = pg_atomic_read_u32(&InstantCtl->failed);
	char		activity[64];
	int			length;

	length = snprintf(activity, sizeof(activity), "redoing pages, %u to go",
					  pg_atomic_read_u32(&InstantCtl->left));
	if (failed > 0)
		snprintf(activity + length, sizeof(activity) - length, ", %u failed", failed);
	pgstat_report_activity(STATE_RUNNING, activity);
	set_ps_display(activity);
}

/*
 * Wait until there are pages to be redone, as a member then.  Returns false if there will
 * be none.  If the server stops, the exit of the startup process says that there is nothing
 * more to do.
 */
static bool
instant_wait_for_work(void)
{
	InstantPhase phase;

	ConditionVariablePrepareToSleep(&InstantCtl->work_cv);
	for (;;)
	{
		bool		member = instant_is_member() || instant_join();

		phase = instant_phase();
		if (phase == INSTANT_PHASE_ENDED ||
			(member &&
			 (phase == INSTANT_PHASE_ROUND || phase == INSTANT_PHASE_OPEN)))
			break;
		/* the startup process may wait for all to leave a round */
		if (phase == INSTANT_PHASE_ANALYSIS)
			instant_leave();
		instant_worker_interrupts();
		(void) ConditionVariableTimedSleep(&InstantCtl->work_cv, 100,
										   WAIT_EVENT_INSTANT_RECOVERY_MAIN);
	}
	ConditionVariableCancelSleep();
	return phase != INSTANT_PHASE_ENDED;
}

/*
 * After opening, if a page could not be redone: wait until pages that have
 * failed are to be tried again, since a session or a checkpoint needs them.
 * Returns false if the process is not needed any more: others may need its
 * place of max_worker_processes, so one stays.
 */
static bool
instant_wait_for_retry(void)
{
	bool		wanted;

	if (instant_phase() != INSTANT_PHASE_OPEN)
		return false;
	if (!instant_retries)
	{
		if (!instant_has_failed && pg_atomic_read_u32(&InstantCtl->failed) == 0)
			return false;
		if (pg_atomic_exchange_u32(&InstantCtl->retried, 1) != 0)
			return false;
		instant_retries = true;
	}

	ConditionVariablePrepareToSleep(&InstantCtl->work_cv);
	for (;;)
	{
		wanted = instant_demands() > 0;
		if (wanted || ServerIsStopping() ||
			pg_atomic_read_membarrier_u32(&InstantCtl->pending) == 0)
			break;

		instant_show_progress();
		instant_worker_interrupts();
		(void) ConditionVariableTimedSleep(&InstantCtl->work_cv, 100,
										   WAIT_EVENT_INSTANT_RECOVERY_MAIN);
	}
	ConditionVariableCancelSleep();
	return wanted;
}

/*
 * A stop has been asked for, and waits until no page is pending: say so, and how long
 * that may take.  One worker does.
 */
static void
instant_report_stop(void)
{
	static TimestampTz reported = 0;
	TimestampTz now = GetCurrentTimestamp();
	uint32		left = pg_atomic_read_u32(&InstantCtl->left);
	uint32		done = InstantCtl->npages - left;
	double		elapsed = (now - InstantCtl->opened_at) / 1000000.0;

	if (instant_worker_number != 1 || left == 0 || log_startup_progress_interval == 0 ||
		!TimestampDifferenceExceeds(reported, now, log_startup_progress_interval))
		return;
	reported = now;
	ereport(LOG,
			(errmsg_plural("shutdown waits for redo of %u page",
						   "shutdown waits for redo of %u pages", left, left),
			 done == 0 ? 0 :
			 errdetail("In %.0f s %u pages have been redone, so it may take %.0f s.",
					   elapsed, done, left * elapsed / done),
			 errhint("An immediate shutdown does not wait, and the next start goes on from here.")));
}

/*
 * Redo pages until none is left that others have not taken.  (I4)
 *
 * If the server stops after opening, that goes on until all is done: no other process can
 * complete what sessions, and the checkpoint that ends a fast stop, wait for.
 */
static void
instant_work(void)
{
	uint32		i;
	uint32		redone = 0;

	while ((i = instant_take()) != INSTANT_NONE)
	{
		if (redone++ % INSTANT_SHOW_PAGES == 0)
			instant_show_progress();
		instant_try_page(i);
		instant_worker_interrupts();
		if (instant_phase() == INSTANT_PHASE_ENDED)
			break;
		if (ServerIsStopping() && instant_phase() == INSTANT_PHASE_OPEN)
			instant_report_stop();
	}
}

/*
 * What redo expects of a process
 */
static void
instant_begin_redo(void)
{
	InRecovery = true;
	instant_redoes_chains = true;
	DoubleWriteImagesSince(InstantCtl->images_since);
	for (int rmid = 0; rmid <= RM_MAX_BUILTIN_ID; rmid++)
	{
		if (GetRmgr(rmid).rm_startup != NULL)
			GetRmgr(rmid).rm_startup();
	}
}

static void
instant_end_redo(void)
{
	for (int rmid = 0; rmid <= RM_MAX_BUILTIN_ID; rmid++)
	{
		if (GetRmgr(rmid).rm_cleanup != NULL)
			GetRmgr(rmid).rm_cleanup();
	}
	instant_close_reader();
	instant_close_spill();
	smgrdestroyall();
	instant_redoes_chains = false;
	InRecovery = false;
}

/*
 * Main entry point of a worker.
 */
void
InstantRecoveryMain(Datum main_arg)
{
	instant_worker_number = DatumGetInt32(main_arg);
	instant_worker_initialize();
	while (instant_wait_for_work())
	{
		bool		opened = instant_phase() >= INSTANT_PHASE_OPEN;

		instant_begin_redo();
		do
			instant_work();
		while (instant_wait_for_retry());
		instant_end_redo();
		instant_leave();
		if (opened)
			break;
	}
	proc_exit(0);
}
