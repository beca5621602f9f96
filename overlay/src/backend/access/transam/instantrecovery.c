/*-------------------------------------------------------------------------
 *
 * instantrecovery.c
 *	  Opening before redo: pages are redone when somebody needs them.
 *
 * Crash recovery with instant_recovery has three steps.
 *
 *	  Analysis	The startup process reads all WAL from the redo pointer.  What
 *				does not concern the contents of relation pages is applied at
 *				once.  Of the rest it only remembers, for each page, which
 *				records concern it: the page's chain.
 *	  Opening	Clients get in.
 *	  Redo		Workers apply the chains, page by page, in the order of the
 *				files.  Who needs a page whose chain is pending has it redone
 *				first, and waits for that.
 *
 * This is for plain crash recovery that comes up read-write on its own timeline
 * only.  docs/instant-restart.md says what each type of record needs; the rules
 * I1 to I11 that comments here name are these:
 *
 *	  I1  Nothing but plain crash recovery; all else is recovered as ever.
 *	  I2  Nobody sees a page with a pending chain, or trusts a file with one.
 *	  I3  A chain is applied whole, in order, by one process, before anybody else
 *		  sees the page.  The LSN test of redo stays where it is.
 *	  I4  Sessions run no redo.
 *	  I5  What redo does beside the page is done in analysis.  A record for which
 *		  that is impossible is a barrier: chains are applied first, then it.
 *	  I6  Files have their final length before clients get in.
 *	  I7  No checkpoint begins while a chain is pending, nor does a restartpoint, so
 *		  recovery from the next crash begins at the same place.
 *	  I8  Init forks are complete before unlogged relations are reset.
 *	  I10 Memory for chains is bounded.  When it is full, it is a barrier.
 *	  I11 When nothing is pending, one flag says so.
 *
 * (I9, pages that cannot be redone, is not done: such a page is a PANIC as in
 * other redo.)
 *
 * Redo of one page
 * ----------------
 * The process reads the records of the chain from WAL again, and calls rm_redo for
 * each, as ever.  XLogReadBufferForRedoExtended() answers for all blocks but the
 * page that they are not there, which redo must cope with anyway, since they may have been
 * truncated away later.  Where redo does not ask, because the record carries all
 * there is in the page (an image, or a page that is initialized), it gets a
 * buffer that nobody else sees and that is thrown away afterwards: a local
 * buffer, as temporary tables have.
 *
 * Concurrency
 * -----------
 * During analysis there is one process that knows of chains, the startup process.  From
 * opening on the table of pages does not change any more, but for the state of
 * each page:
 *
 *		PENDING --> REDOING --> DONE
 *
 * Who takes a page from PENDING to REDOING redoes it, and nobody else.  The
 * content lock of the page is held only for single records of it, so those who
 * find the page in shared buffers must ask, too: PinBufferForBlock() does for all.
 *
 * A worker waits for nobody who may wait for it: it locks no page but the one that it
 * redoes, which nobody else can have pinned.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/instantrecovery.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/heapam_xlog.h"
#include "access/instantrecovery.h"
#include "access/recoverytarget.h"
#include "access/rmgr.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogpipeline.h"
#include "access/xlogrecovery.h"
#include "access/xlogutils.h"
#include "catalog/pg_class.h"
#include "catalog/pg_control.h"
#include "catalog/storage_xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "postmaster/bgworker.h"
#include "postmaster/bgwriter.h"
#include "postmaster/interrupt.h"
#include "postmaster/startup.h"
#include "storage/aio.h"
#include "storage/aio_subsys.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "storage/spin.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* GUCs */
bool		instant_recovery = false;
int			recovery_workers = 2;
int			instant_recovery_memory = 65536;

/*
 * After so many barriers recovery goes on as ever, with blocks being read ahead:
 * chains that are hardly begun before they are applied save nothing.
 */
#define INSTANT_MAX_BARRIERS	32

/*
 * If the server has crashed so often before redo was complete and a checkpoint had
 * been made, it does not open again before redo: something there may be the reason.
 */
#define INSTANT_MAX_OPENINGS	3

/* Bytes of memory for each bucket of the table of pages */
#define INSTANT_BYTES_PER_BUCKET	128

/* Pages asked for that no worker has taken; more have to ask again */
#define INSTANT_DEMANDS			1024

/* Who waits for a page waits at one of these */
#define INSTANT_PAGE_CVS		64

/*
 * Pages that are read for nothing if that makes one run of two, and the length of
 * a run: as for AHEAD_GAP and AHEAD_MAX_RUN.
 */
#define INSTANT_GAP				2
#define INSTANT_MAX_RUN			128

/*
 * So many pages are announced ahead, times maintenance_io_concurrency: several of
 * them are a run, and who needs a page waits behind them.
 */
#define INSTANT_AHEAD			4

/* A worker says how many pages are pending after so many pages. */
#define INSTANT_SHOW_PAGES		64

/* No page, no record: end of a list */
#define INSTANT_NONE			PG_UINT32_MAX

typedef enum InstantPageState
{
	INSTANT_PENDING,
	INSTANT_REDOING,
	INSTANT_DONE,
} InstantPageState;

/*
 * A page with records to be applied.  Written by the startup process during
 * analysis; from opening on only "state" changes.
 */
typedef struct InstantPage
{
	RelFileLocator rlocator;
	BlockNumber blkno;
	uint32		next_in_bucket;
	uint32		first;			/* record of its chain */
	uint32		last;
	pg_atomic_uint32 state;		/* InstantPageState */
	uint8		forknum;
	bool		rebuilt;		/* the first record does without the old page */
} InstantPage;

/* A record of a chain */
typedef struct InstantRecord
{
	uint32		distance;		/* of its start from "base", in MAXALIGNs */
	uint32		next;
} InstantRecord;

typedef struct InstantCtlData
{
	/*
	 * Written by the startup process during analysis, when nobody else is
	 * interested, and constant from opening on.
	 */
	TimeLineID	tli;			/* all records are on this timeline */
	XLogRecPtr	base;			/* where redo begins */
	uint32		npages;
	uint32		nrecords;
	TimestampTz opened_at;

	pg_atomic_uint32 pending;	/* see InstantRecoveryPending */
	pg_atomic_uint32 open;		/* by startup process: workers may begin */
	pg_atomic_uint32 stop;		/* by startup process: no need for workers */
	pg_atomic_uint32 workers;	/* that have attached and not exited */
	pg_atomic_uint32 next;		/* page, in order, that no worker has tried */
	pg_atomic_uint32 announced; /* page, in order, not prefetched yet */
	pg_atomic_uint32 left;		/* pages that are not done */

	slock_t		mutex;			/* for the next three */
	uint32		demand_head;	/* positions only rise */
	uint32		demand_tail;
	uint32		demands[INSTANT_DEMANDS];	/* pages */
	pg_atomic_uint32 on_demand; /* pages taken from there */

	ConditionVariable page_cvs[INSTANT_PAGE_CVS];
	ConditionVariable all_cv;	/* "pending" has become zero */
} InstantCtlData;

static InstantCtlData *InstantCtl = NULL;

/*
 * Memory for chains: buckets, then pages from the left and records from the
 * right, until they meet.
 */
static uint32 *InstantBuckets = NULL;
static InstantPage *InstantPages = NULL;
static InstantRecord *InstantRecordsEnd = NULL;

pg_atomic_uint32 *InstantRecoveryPending = NULL;

bool		InstantRecoveryRedoesPage = false;

/* This process applies chains, and need not ask */
static bool redoes_chains = false;

/* The page that this process redoes, and the buffers thrown away afterwards */
static InstantPage *redo_page = NULL;
static Buffer sinks[XLR_MAX_BLOCK_ID + 1];
static int	nsinks = 0;

/*
 * Startup process: does it remember chains?  Then nobody must read blocks ahead,
 * since what redo would have done before that is yet to be done.
 */
static bool analyzing = false;

/* Worker: it counts among "workers" */
static bool attached = false;

/* Startup process: what analysis has met */
static uint32 barriers = 0;
static uint32 openings = 0;
static bool images_missing = false;
static BackgroundWorkerHandle *handles[INSTANT_RECOVERY_MAX_WORKERS];

/* Startup process: how long a fork has to be when clients get in (I6) */
typedef struct InstantFork
{
	RelFileLocator rlocator;	/* hash key: these two */
	ForkNumber	forknum;
	BlockNumber nblocks;
} InstantFork;

static HTAB *forks = NULL;

static void instant_redo_all(void);

/* The reader for records of chains, of each process that applies some */
static XLogReaderState *reader = NULL;
static int	segment_file = -1;
static XLogSegNo segment_no = 0;

/* ----------------------------------------------------------------
 * Shared memory
 * ----------------------------------------------------------------
 */

static Size
instant_memory(void)
{
	return (Size) instant_recovery_memory * 1024;
}

static uint32
instant_nbuckets(void)
{
	return pg_nextpower2_32(instant_memory() / INSTANT_BYTES_PER_BUCKET);
}

Size
InstantRecoveryShmemSize(void)
{
	Size		size;

	if (!instant_recovery)
		return 0;

	size = MAXALIGN(sizeof(InstantCtlData));
	size = add_size(size, mul_size(sizeof(uint32), instant_nbuckets()));
	size = add_size(size, instant_memory());
	return size;
}

void
InstantRecoveryShmemInit(void)
{
	bool		found;

	if (!instant_recovery)
		return;

	InstantCtl = (InstantCtlData *)
		ShmemInitStruct("Instant Recovery", InstantRecoveryShmemSize(), &found);
	InstantBuckets = (uint32 *)
		((char *) InstantCtl + MAXALIGN(sizeof(InstantCtlData)));
	InstantPages = (InstantPage *) (InstantBuckets + instant_nbuckets());
	InstantRecordsEnd = (InstantRecord *) ((char *) InstantPages + instant_memory());
	InstantRecoveryPending = &InstantCtl->pending;

	if (found)
		return;

	memset(InstantCtl, 0, sizeof(InstantCtlData));
	pg_atomic_init_u32(&InstantCtl->pending, 0);
	pg_atomic_init_u32(&InstantCtl->open, 0);
	pg_atomic_init_u32(&InstantCtl->stop, 0);
	pg_atomic_init_u32(&InstantCtl->workers, 0);
	pg_atomic_init_u32(&InstantCtl->next, 0);
	pg_atomic_init_u32(&InstantCtl->announced, 0);
	pg_atomic_init_u32(&InstantCtl->left, 0);
	pg_atomic_init_u32(&InstantCtl->on_demand, 0);
	SpinLockInit(&InstantCtl->mutex);
	for (int i = 0; i < INSTANT_PAGE_CVS; i++)
		ConditionVariableInit(&InstantCtl->page_cvs[i]);
	ConditionVariableInit(&InstantCtl->all_cv);
	memset(InstantBuckets, 0xFF, sizeof(uint32) * instant_nbuckets());
}

/* ----------------------------------------------------------------
 * Pages and chains
 * ----------------------------------------------------------------
 */

static uint32 *
instant_bucket(const RelFileLocator *rlocator, ForkNumber forknum,
			   BlockNumber blkno)
{
	uint32		hash = rlocator->spcOid;

	hash = hash_combine(hash, murmurhash32(rlocator->dbOid));
	hash = hash_combine(hash, murmurhash32(rlocator->relNumber + forknum));
	hash = hash_combine(hash, murmurhash32(blkno));
	return &InstantBuckets[hash & (instant_nbuckets() - 1)];
}

/*
 * The page, or NULL if there are no records for it.
 */
static InstantPage *
instant_find_page(const RelFileLocator *rlocator, ForkNumber forknum,
				  BlockNumber blkno)
{
	uint32		i = *instant_bucket(rlocator, forknum, blkno);

	while (i != INSTANT_NONE)
	{
		InstantPage *page = &InstantPages[i];

		if (page->blkno == blkno && page->forknum == forknum &&
			RelFileLocatorEquals(page->rlocator, *rlocator))
			return page;
		i = page->next_in_bucket;
	}
	return NULL;
}

static void
instant_enter_page(uint32 i)
{
	InstantPage *page = &InstantPages[i];
	uint32	   *bucket = instant_bucket(&page->rlocator, page->forknum, page->blkno);

	page->next_in_bucket = *bucket;
	*bucket = i;
}

static InstantRecord *
instant_record(uint32 i)
{
	return InstantRecordsEnd - 1 - i;
}

static XLogRecPtr
instant_record_lsn(const InstantRecord *record)
{
	return InstantCtl->base + (uint64) record->distance * MAXIMUM_ALIGNOF;
}

/*
 * Is there room for so many more pages, with a record each?
 */
static bool
instant_has_room(int pages)
{
	return (char *) (InstantPages + InstantCtl->npages + pages) <=
		(char *) (InstantRecordsEnd - InstantCtl->nrecords - pages);
}

/*
 * Forget all pages.
 */
static void
instant_forget_all(void)
{
	/* not all of the buckets: that would take long where barriers are many */
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		InstantPage *page = &InstantPages[i];

		*instant_bucket(&page->rlocator, page->forknum, page->blkno) = INSTANT_NONE;
	}
	InstantCtl->npages = 0;
	InstantCtl->nrecords = 0;
}

static int
instant_compare_pages(const void *a, const void *b)
{
	const InstantPage *x = a;
	const InstantPage *y = b;

	if (x->rlocator.spcOid != y->rlocator.spcOid)
		return x->rlocator.spcOid < y->rlocator.spcOid ? -1 : 1;
	if (x->rlocator.dbOid != y->rlocator.dbOid)
		return x->rlocator.dbOid < y->rlocator.dbOid ? -1 : 1;
	if (x->rlocator.relNumber != y->rlocator.relNumber)
		return x->rlocator.relNumber < y->rlocator.relNumber ? -1 : 1;
	if (x->forknum != y->forknum)
		return x->forknum < y->forknum ? -1 : 1;
	if (x->blkno != y->blkno)
		return x->blkno < y->blkno ? -1 : 1;
	return 0;
}

/*
 * Bring pages into the order of the files, in which they are best read.
 */
static void
instant_sort_pages(void)
{
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		InstantPage *page = &InstantPages[i];

		*instant_bucket(&page->rlocator, page->forknum, page->blkno) = INSTANT_NONE;
	}
	qsort(InstantPages, InstantCtl->npages, sizeof(InstantPage),
		  instant_compare_pages);
	for (uint32 i = 0; i < InstantCtl->npages; i++)
		instant_enter_page(i);
}

/* ----------------------------------------------------------------
 * Redo of one page
 * ----------------------------------------------------------------
 */

/*
 * XLogReaderRoutine->page_read callback.  All WAL that is asked for has been
 * read before, in analysis, and is kept until the next checkpoint (I7).
 */
static int
instant_page_read(XLogReaderState *state, XLogRecPtr targetPagePtr, int reqLen,
				  XLogRecPtr targetRecPtr, char *readBuf)
{
	ssize_t		r;

	if (segment_file >= 0 &&
		!XLByteInSeg(targetPagePtr, segment_no, wal_segment_size))
	{
		close(segment_file);
		segment_file = -1;
	}
	if (segment_file < 0)
	{
		char		path[MAXPGPATH];

		XLByteToSeg(targetPagePtr, segment_no, wal_segment_size);
		XLogFilePath(path, InstantCtl->tli, segment_no, wal_segment_size);
		segment_file = BasicOpenFile(path, O_RDONLY | PG_BINARY);
		if (segment_file < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", path)));
	}

	pgstat_report_wait_start(WAIT_EVENT_WAL_READ);
	r = pg_pread(segment_file, readBuf, XLOG_BLCKSZ,
				 (off_t) XLogSegmentOffset(targetPagePtr, wal_segment_size));
	pgstat_report_wait_end();
	if (r != XLOG_BLCKSZ)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read WAL at %X/%X",
						LSN_FORMAT_ARGS(targetPagePtr))));
	state->seg.ws_tli = InstantCtl->tli;
	return XLOG_BLCKSZ;
}

static void
instant_open_reader(void)
{
	static XLogReaderRoutine routine = {.page_read = instant_page_read};
	MemoryContext oldcontext;

	if (reader != NULL)
		return;

	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	reader = XLogReaderAllocate(wal_segment_size, NULL, &routine, NULL);
	MemoryContextSwitchTo(oldcontext);
	if (reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	reader->system_identifier = GetSystemIdentifier();
}

static void
instant_close_reader(void)
{
	if (reader != NULL)
		XLogReaderFree(reader);
	reader = NULL;
	if (segment_file >= 0)
		close(segment_file);
	segment_file = -1;
}

/*
 * Is this another block than the one that is being redone?
 */
bool
InstantRecoveryIsForeign(const RelFileLocator *rlocator, ForkNumber forknum,
						 BlockNumber blkno)
{
	Assert(redo_page != NULL);
	return redo_page->blkno != blkno || redo_page->forknum != forknum ||
		!RelFileLocatorEquals(redo_page->rlocator, *rlocator);
}

/*
 * A buffer for a block that is not being redone, but that redo insists on.
 * Nobody else sees it, and it never gets into a file.
 */
static Buffer
instant_sink(const RelFileLocator *rlocator, ForkNumber forknum, BlockNumber blkno)
{
	SMgrRelation smgr = smgropen(*rlocator, INVALID_PROC_NUMBER);
	BufferDesc *desc;
	Buffer		buffer;
	bool		found;

	Assert(nsinks <= XLR_MAX_BLOCK_ID);
	/* redo of an init fork flushes it, which a local buffer refuses (I8) */
	Assert(forknum != INIT_FORKNUM);

	desc = LocalBufferAlloc(smgr, forknum, blkno, &found);
	buffer = BufferDescriptorGetBuffer(desc);
	if (!found)
	{
		memset(BufferGetPage(buffer), 0, BLCKSZ);
		TerminateLocalBufferIO(desc, false, BM_VALID, false);
		sinks[nsinks++] = buffer;
	}
	return buffer;
}

static void
instant_empty_sinks(void)
{
	while (nsinks > 0)
		InvalidateLocalBuffer(GetLocalBufferDescriptor(-sinks[--nsinks] - 1), true);
}

/*
 * What XLogReadBufferForRedoExtended() answers for a block other than the one
 * that is redone (I3).
 */
XLogRedoAction
InstantRecoveryForeignBlock(XLogReaderState *record, uint8 block_id,
							ReadBufferMode mode, Buffer *buf)
{
	RelFileLocator rlocator;
	ForkNumber	forknum;
	BlockNumber blkno;

	XLogRecGetBlockTag(record, block_id, &rlocator, &forknum, &blkno);

	if (XLogRecBlockImageApply(record, block_id))
	{
		Page		page;

		*buf = instant_sink(&rlocator, forknum, blkno);
		page = BufferGetPage(*buf);
		if (!RestoreBlockImage(record, block_id, page))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg_internal("%s", record->errormsg_buf)));
		if (!PageIsNew(page))
			PageSetLSN(page, record->EndRecPtr);
		return BLK_RESTORED;
	}

	if (mode == RBM_ZERO_AND_LOCK || mode == RBM_ZERO_AND_CLEANUP_LOCK)
	{
		*buf = instant_sink(&rlocator, forknum, blkno);
		return BLK_NEEDS_REDO;
	}

	*buf = InvalidBuffer;
	return BLK_NOTFOUND;
}

static void
instant_redo_error_callback(void *arg)
{
	InstantPage *page = arg;

	errcontext("WAL redo of block %u of relation \"%s\" at %X/%X",
			   page->blkno,
			   relpathperm(page->rlocator, page->forknum).str,
			   LSN_FORMAT_ARGS(reader->ReadRecPtr));
}

/*
 * Apply the chain of a page, all of it, in the order of WAL (I3).
 */
static void
instant_redo_page(InstantPage *page)
{
	ErrorContextCallback errcallback;

	errcallback.callback = instant_redo_error_callback;
	errcallback.arg = page;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;

	Assert(InRecovery && redo_page == NULL);
	redo_page = page;
	InstantRecoveryRedoesPage = true;

	for (uint32 i = page->first; i != INSTANT_NONE; i = instant_record(i)->next)
	{
		char	   *errormsg;

		XLogBeginRead(reader, instant_record_lsn(instant_record(i)));
		if (XLogReadRecord(reader, &errormsg) == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("could not read WAL again at %X/%X: %s",
							LSN_FORMAT_ARGS(instant_record_lsn(instant_record(i))),
							errormsg ? errormsg : "end of WAL")));
		GetRmgr(XLogRecGetRmid(reader)).rm_redo(reader);
		instant_empty_sinks();
		INJECTION_POINT("instant-recovery-record-redone", NULL);
	}

	InstantRecoveryRedoesPage = false;
	redo_page = NULL;
	error_context_stack = errcallback.previous;
}

/*
 * Ask the kernel for a page that is going to be redone, unless its records make
 * it anew.
 */
static void
instant_announce_page(const InstantPage *page)
{
#ifdef USE_PREFETCH
	if (!page->rebuilt)
		(void) PrefetchSharedBuffer(smgropen(page->rlocator, INVALID_PROC_NUMBER),
									page->forknum, page->blkno);
#endif
}

/*
 * Pages that are in order: where does the run end that is best read in one go?
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
 * not be needed.
 */
static void
instant_announce_run(uint32 first, uint32 end)
{
#ifdef USE_PREFETCH
	InstantPage *page = &InstantPages[first];
	InstantPage *last = &InstantPages[end - 1];

	if ((io_direct_flags & IO_DIRECT_DATA) != 0)
		return;
	while (page < last && page->rebuilt)
		page++;
	while (last > page && last->rebuilt)
		last--;
	if (!page->rebuilt)
		(void) smgrprefetch(smgropen(page->rlocator, INVALID_PROC_NUMBER),
							page->forknum, page->blkno,
							last->blkno - page->blkno + 1);
#endif
}

/* ----------------------------------------------------------------
 * Analysis
 * ----------------------------------------------------------------
 */

typedef enum InstantClass
{
	INSTANT_ANALYSIS,			/* no page of a relation; apply it at once */
	INSTANT_PAGES,				/* its pages can be redone one by one */
	INSTANT_BARRIER,			/* neither */
} InstantClass;

/*
 * Redo clears bits of the visibility map if the record says so.  If the record
 * does not refer to the map's page, redo looks for it by itself, which is not
 * redo of one page any more (I5).
 */
static bool
instant_clears_unnamed_map(XLogReaderState *record, uint8 info)
{
	char	   *data = XLogRecGetData(record);

	if (XLogRecGetRmid(record) == RM_HEAP2_ID)
	{
		if (info == XLOG_HEAP2_MULTI_INSERT)
			return (((xl_heap_multi_insert *) data)->flags & XLH_INSERT_ALL_VISIBLE_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_MULTI_INSERT_BLKREF_VM);
		if (info == XLOG_HEAP2_LOCK_UPDATED)
			return (((xl_heap_lock_updated *) data)->flags & XLH_LOCK_ALL_FROZEN_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_LOCK_BLKREF_VM);
		return false;
	}

	switch (info)
	{
		case XLOG_HEAP_INSERT:
			return (((xl_heap_insert *) data)->flags & XLH_INSERT_ALL_VISIBLE_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_INSERT_BLKREF_VM);
		case XLOG_HEAP_DELETE:
			return (((xl_heap_delete *) data)->flags & XLH_DELETE_ALL_VISIBLE_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_DELETE_BLKREF_VM);
		case XLOG_HEAP_UPDATE:
		case XLOG_HEAP_HOT_UPDATE:
			return (((xl_heap_update *) data)->flags &
					(XLH_UPDATE_OLD_ALL_VISIBLE_CLEARED |
					 XLH_UPDATE_NEW_ALL_VISIBLE_CLEARED)) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_UPDATE_BLKREF_VM_NEW) &&
				!XLogRecHasBlockRef(record, HEAP_UPDATE_BLKREF_VM_OLD);
		case XLOG_HEAP_LOCK:
			return (((xl_heap_lock *) data)->flags & XLH_LOCK_ALL_FROZEN_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_LOCK_BLKREF_VM);
		default:
			return false;
	}
}

/*
 * Does the end of a transaction drop files?
 */
static bool
instant_drops_files(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record);

	switch (info & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
		case XLOG_XACT_COMMIT_PREPARED:
			{
				xl_xact_parsed_commit parsed;

				ParseCommitRecord(info, (xl_xact_commit *) XLogRecGetData(record),
								  &parsed);
				return parsed.nrels > 0;
			}
		case XLOG_XACT_ABORT:
		case XLOG_XACT_ABORT_PREPARED:
			{
				xl_xact_parsed_abort parsed;

				ParseAbortRecord(info, (xl_xact_abort *) XLogRecGetData(record),
								 &parsed);
				return parsed.nrels > 0;
			}
		default:
			return false;
	}
}

static InstantClass
instant_classify_xlog(uint8 info)
{
	switch (info)
	{
		case XLOG_FPI:
		case XLOG_FPI_FOR_HINT:
			return INSTANT_PAGES;
		case XLOG_PARAMETER_CHANGE:
			/* redo of pages depends on wal_log_hints */
			return INSTANT_BARRIER;
		default:
			return INSTANT_ANALYSIS;
	}
}

static InstantClass
instant_classify_heap(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & XLOG_HEAP_OPMASK;

	if (XLogRecGetRmid(record) == RM_HEAP_ID && info == XLOG_HEAP_TRUNCATE)
		return INSTANT_ANALYSIS;
	if (XLogRecGetRmid(record) == RM_HEAP2_ID && info == XLOG_HEAP2_NEW_CID)
		return INSTANT_ANALYSIS;
	if (XLogRecGetRmid(record) == RM_HEAP2_ID && info == XLOG_HEAP2_REWRITE)
		return INSTANT_BARRIER;
	return instant_clears_unnamed_map(record, info) ? INSTANT_BARRIER : INSTANT_PAGES;
}

/*
 * What can be done with the record?  The reasons are in
 * docs/instant-restart.md, which is checked for completeness. (I5)
 */
static InstantClass
instant_classify(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;

	/* its pages are compared with images when all of it has been applied */
	if ((XLogRecGetInfo(record) & XLR_CHECK_CONSISTENCY) != 0)
		return INSTANT_BARRIER;

	for (int i = 0; i <= XLogRecMaxBlockId(record); i++)
	{
		/* they are copied before clients get in (I8) */
		if (XLogRecHasBlockRef(record, i) &&
			XLogRecGetBlock(record, i)->forknum == INIT_FORKNUM)
			return INSTANT_BARRIER;
	}

	switch (XLogRecGetRmid(record))
	{
		case RM_XLOG_ID:
			return instant_classify_xlog(info);
		case RM_XACT_ID:
			return instant_drops_files(record) ? INSTANT_BARRIER : INSTANT_ANALYSIS;
		case RM_HEAP_ID:
		case RM_HEAP2_ID:
			return instant_classify_heap(record);
		case RM_BTREE_ID:
		case RM_HASH_ID:
		case RM_GIN_ID:
		case RM_GIST_ID:
		case RM_SPGIST_ID:
		case RM_BRIN_ID:
		case RM_SEQ_ID:
		case RM_GENERIC_ID:
			return INSTANT_PAGES;
		case RM_SMGR_ID:
			/* a file of that name that was dropped before has no chains left */
			return info == XLOG_SMGR_CREATE ? INSTANT_ANALYSIS : INSTANT_BARRIER;
		case RM_CLOG_ID:
		case RM_COMMIT_TS_ID:
		case RM_MULTIXACT_ID:
		case RM_STANDBY_ID:
		case RM_REPLORIGIN_ID:
		case RM_LOGICALMSG_ID:
			return INSTANT_ANALYSIS;
		default:
			return INSTANT_BARRIER;
	}
}

/*
 * Does redo of the record add the block to its file, if it is not there?
 */
static bool
instant_extends(XLogReaderState *record, uint8 block_id)
{
	if ((XLogRecGetBlock(record, block_id)->flags & BKPBLOCK_WILL_INIT) != 0 ||
		XLogRecBlockImageApply(record, block_id))
		return true;

	/* the map's page is read with RBM_ZERO_ON_ERROR */
	return XLogRecGetRmid(record) == RM_HEAP2_ID && block_id == 0 &&
		(XLogRecGetInfo(record) & XLOG_HEAP_OPMASK) == XLOG_HEAP2_VISIBLE;
}

static void
instant_note_length(const RelFileLocator *rlocator, ForkNumber forknum,
					BlockNumber nblocks)
{
	InstantFork key = {.rlocator = *rlocator,.forknum = forknum};
	InstantFork *fork;
	bool		found;

	fork = hash_search(forks, &key, HASH_ENTER, &found);
	if (!found || fork->nblocks < nblocks)
		fork->nblocks = nblocks;
}

/*
 * Add the record to the chain of a block.  There is room.
 */
static void
instant_remember_block(XLogReaderState *record, uint8 block_id)
{
	RelFileLocator rlocator;
	ForkNumber	forknum;
	BlockNumber blkno;
	InstantPage *page;
	uint32		distance = (record->ReadRecPtr - InstantCtl->base) / MAXIMUM_ALIGNOF;
	bool		extends = instant_extends(record, block_id);
	uint32		i;

	XLogRecGetBlockTag(record, block_id, &rlocator, &forknum, &blkno);
	instant_note_length(&rlocator, forknum, extends ? blkno + 1 : 0);

	page = instant_find_page(&rlocator, forknum, blkno);
	if (page == NULL)
	{
		i = InstantCtl->npages++;
		page = &InstantPages[i];
		page->rlocator = rlocator;
		page->forknum = forknum;
		page->blkno = blkno;
		page->first = page->last = INSTANT_NONE;
		page->rebuilt = extends && forknum == MAIN_FORKNUM;
		if (!extends)
			images_missing = true;
		pg_atomic_init_u32(&page->state, INSTANT_PENDING);
		instant_enter_page(i);
	}
	else if (instant_record(page->last)->distance == distance)
		return;					/* it refers to the page twice */

	i = InstantCtl->nrecords++;
	instant_record(i)->distance = distance;
	instant_record(i)->next = INSTANT_NONE;
	if (page->last == INSTANT_NONE)
		page->first = i;
	else
	{
		Assert(instant_record(page->last)->distance < distance);
		instant_record(page->last)->next = i;
	}
	page->last = i;
}

/*
 * Redo of single pages does not notice that WAL carries no images, as that of pages
 * in order does.  If the first record of any page has none, take it for granted:
 * that costs no more than double writes.  (R2)
 */
static void
instant_note_images(void)
{
	if (images_missing)
		NoteImagesOff(GetCurrentReplayRecPtr(NULL));
}

/*
 * Apply all chains, before clients get in.
 */
static void
instant_drain(void)
{
	uint32		announced = 0;

	if (InstantCtl->npages == 0)
		return;

	instant_note_images();
	instant_open_reader();
	instant_sort_pages();
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		ProcessStartupProcInterrupts();
		while (announced < InstantCtl->npages &&
			   announced <= i + INSTANT_AHEAD * maintenance_io_concurrency)
		{
			uint32		end = instant_run_end(announced);

			instant_announce_run(announced, end);
			announced = end;
		}
		instant_redo_page(&InstantPages[i]);
	}
	instant_forget_all();
	hash_destroy(forks);
	forks = NULL;
}

static void
instant_end_analysis(void)
{
	analyzing = false;
	XLogPipelineSuspendReads(false);
}

/*
 * Ask for workers, which do nothing until clients get in.  The WAL pipeline has its
 * process already.
 */
void
InstantRecoveryStartWorkers(void)
{
	MemoryContext oldcontext;

	if (!analyzing)
		return;

	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	for (int i = 0; i < recovery_workers; i++)
	{
		BackgroundWorker worker = {0};

		worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
		worker.bgw_start_time = BgWorkerStart_PostmasterStart;
		worker.bgw_restart_time = BGW_NEVER_RESTART;
		strcpy(worker.bgw_library_name, "postgres");
		strcpy(worker.bgw_function_name, "InstantRecoveryMain");
		snprintf(worker.bgw_name, BGW_MAXLEN, "recovery worker %d", i + 1);
		strcpy(worker.bgw_type, "recovery worker");

		if (!RegisterDynamicBackgroundWorker(&worker, &handles[i]))
		{
			handles[i] = NULL;
			break;
		}
	}
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Are records remembered instead of being applied?  Then no restartpoint can be
 * at a checkpoint that they precede. (I7)
 */
bool
InstantRecoveryAnalyzing(void)
{
	return analyzing;
}

/*
 * Redo begins here.  The caller has seen that it is plain crash recovery. (I1)
 */
void
InstantRecoveryBegin(XLogRecPtr redo, TimeLineID tli)
{
	if (InstantCtl == NULL || !IsUnderPostmaster)
		return;

	Assert(AmStartupProcess());
	Assert(InstantCtl->npages == 0);

	InstantCtl->tli = tli;
	InstantCtl->base = redo;
	redoes_chains = true;
	analyzing = true;
	RecoveryTargetLearnNothing();
	XLogPipelineSuspendReads(true);
}

/*
 * Can redo of this record wait?  Then it has been remembered, and the caller
 * must not apply it.
 */
bool
InstantRecoveryTake(XLogReaderState *record)
{
	int			nblocks = XLogRecMaxBlockId(record) + 1;

	if (!analyzing)
		return false;

	if (XLogRecGetRmid(record) == RM_XLOG_ID &&
		(XLogRecGetInfo(record) & ~XLR_INFO_MASK) == XLOG_END_OF_RECOVERY)
		openings++;

	switch (instant_classify(record))
	{
		case INSTANT_ANALYSIS:
			return false;
		case INSTANT_BARRIER:
			break;
		case INSTANT_PAGES:
			if (!instant_has_room(nblocks))
				instant_drain();	/* I10 */
			if (!instant_has_room(nblocks) ||
				(record->ReadRecPtr - InstantCtl->base) / MAXIMUM_ALIGNOF >= INSTANT_NONE)
				break;

			if (forks == NULL)
			{
				HASHCTL		ctl;

				ctl.keysize = offsetof(InstantFork, nblocks);
				ctl.entrysize = sizeof(InstantFork);
				forks = hash_create("instant recovery forks", 256, &ctl,
									HASH_ELEM | HASH_BLOBS);
			}
			for (int i = 0; i < nblocks; i++)
			{
				if (XLogRecHasBlockRef(record, i))
					instant_remember_block(record, i);
			}
			return true;
	}

	instant_drain();
	INJECTION_POINT("instant-recovery-barrier", NULL);
	if (++barriers > INSTANT_MAX_BARRIERS)
	{
		ereport(LOG,
				(errmsg("recovery goes on without deferring redo of pages"),
				 errdetail("%u records had to be applied before the next one could be looked at.",
						   barriers)));
		instant_end_analysis();
	}
	return false;
}

/*
 * Give a fork the length that it is going to have (I6).  Pages beyond that do not
 * exist: what their chains say of them was truncated away before the crash.
 */
static void
instant_extend_fork(InstantFork *fork)
{
	SMgrRelation smgr = smgropen(fork->rlocator, INVALID_PROC_NUMBER);
	BlockNumber nblocks;

	/* as redo does */
	smgrcreate(smgr, fork->forknum, true);

	nblocks = smgrnblocks(smgr, fork->forknum);
	if (nblocks < fork->nblocks)
	{
		Buffer		buffer;

		buffer = ExtendBufferedRelTo(BMR_SMGR(smgr, RELPERSISTENCE_PERMANENT),
									 fork->forknum, NULL,
									 EB_PERFORMING_RECOVERY |
									 EB_SKIP_EXTENSION_LOCK,
									 fork->nblocks, RBM_NORMAL);
		ReleaseBuffer(buffer);
	}
	else
		fork->nblocks = nblocks;
}

static void
instant_extend_forks(void)
{
	HASH_SEQ_STATUS status;
	InstantFork *fork;

	hash_seq_init(&status, forks);
	while ((fork = hash_seq_search(&status)) != NULL)
		instant_extend_fork(fork);

	/* Sessions may add such blocks; nobody must apply old records to them. */
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		InstantPage *page = &InstantPages[i];
		InstantFork key = {.rlocator = page->rlocator,.forknum = page->forknum};

		fork = hash_search(forks, &key, HASH_FIND, NULL);
		if (page->blkno >= fork->nblocks)
			pg_atomic_write_u32(&page->state, INSTANT_DONE);
	}

	hash_destroy(forks);
	forks = NULL;
}

/*
 * Wait until there is a worker.  Returns false if there will be none.
 */
static bool
instant_wait_for_worker(void)
{
	for (;;)
	{
		bool		coming = false;

		if (pg_atomic_read_u32(&InstantCtl->workers) > 0)
			return true;
		for (int i = 0; i < recovery_workers; i++)
		{
			pid_t		pid;

			if (handles[i] != NULL &&
				GetBackgroundWorkerPid(handles[i], &pid) != BGWH_STOPPED)
				coming = true;
		}
		if (!coming)
			return false;

		ProcessStartupProcInterrupts();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10, WAIT_EVENT_INSTANT_RECOVERY_MAIN);
		ResetLatch(MyLatch);
	}
}

static void
instant_dismiss_workers(void)
{
	pg_atomic_write_membarrier_u32(&InstantCtl->stop, 1);
	for (int i = 0; i < recovery_workers; i++)
	{
		if (handles[i] != NULL)
			TerminateBackgroundWorker(handles[i]);
	}
}

/*
 * All WAL has been read.  Unless clients can get in now, redo is done now.
 */
void
InstantRecoveryAnalyzed(bool can_open)
{
	uint32		done = 0;

	if (InstantCtl == NULL || !redoes_chains)
		return;

	INJECTION_POINT("instant-recovery-analyzed", NULL);
	if (InstantCtl->npages > 0 &&
		(!can_open || openings >= INSTANT_MAX_OPENINGS || !instant_wait_for_worker()))
	{
		ereport(LOG,
				(errmsg("redo of pages is completed before clients get in"),
				 openings >= INSTANT_MAX_OPENINGS ?
				 errdetail("The server has crashed %u times since the last checkpoint.",
						   openings + 1) :
				 can_open ?
				 errhint("You might need to increase \"%s\".", "max_worker_processes") : 0));
		instant_drain();
	}
	instant_end_analysis();
	instant_close_reader();

	if (InstantCtl->npages == 0)
	{
		instant_dismiss_workers();
		return;
	}

	instant_note_images();
	instant_extend_forks();
	instant_sort_pages();
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		if (pg_atomic_read_u32(&InstantPages[i].state) == INSTANT_DONE)
			done++;
	}
	pg_atomic_write_u32(&InstantCtl->left, InstantCtl->npages - done);
	pg_atomic_write_membarrier_u32(&InstantCtl->pending,
								   InstantCtl->npages > done);
	redoes_chains = false;
	if (InstantCtl->npages == done)
		instant_dismiss_workers();
}

/*
 * Are there pages that will be redone after clients have got in?
 */
bool
InstantRecoveryIsPending(void)
{
	return InstantCtl != NULL && pg_atomic_read_u32(&InstantCtl->pending) != 0;
}

/*
 * Clients are about to get in: let workers begin.
 */
void
InstantRecoveryOpen(void)
{
	if (!InstantRecoveryIsPending())
		return;

	InstantCtl->opened_at = GetCurrentTimestamp();
	ereport(LOG,
			(errmsg("opening before redo: %u pages are pending, with %u records",
					pg_atomic_read_u32(&InstantCtl->left), InstantCtl->nrecords)));
	INJECTION_POINT("instant-recovery-open", NULL);
	pg_atomic_write_membarrier_u32(&InstantCtl->open, 1);

	/*
	 * Each worker that goes without having seen that has said so before: a
	 * fast stop has been asked for.  Its checkpoint waits for all pages.
	 */
	if (pg_atomic_read_membarrier_u32(&InstantCtl->workers) == 0)
		instant_redo_all();
}

/* ----------------------------------------------------------------
 * Sessions
 * ----------------------------------------------------------------
 */

/*
 * Ask workers to redo a page before others.  If there is no room for that, its
 * turn comes anyway.
 */
static void
instant_demand(uint32 i)
{
	SpinLockAcquire(&InstantCtl->mutex);
	if (InstantCtl->demand_head - InstantCtl->demand_tail < INSTANT_DEMANDS)
		InstantCtl->demands[InstantCtl->demand_head++ % INSTANT_DEMANDS] = i;
	SpinLockRelease(&InstantCtl->mutex);
}

/*
 * Between analysis and opening nobody has a reason to look at pages, and nobody
 * would redo them.
 */
static void
instant_check_open(void)
{
	if (pg_atomic_read_u32(&InstantCtl->open) == 0)
		elog(PANIC, "page needed between analysis of WAL and opening");
}

static void
instant_wait_for_page(InstantPage *page)
{
	uint32		i = page - InstantPages;
	ConditionVariable *cv = &InstantCtl->page_cvs[i % INSTANT_PAGE_CVS];

	if (pg_atomic_read_u32(&page->state) == INSTANT_DONE)
	{
		/* what has been done to it is seen */
		pg_read_barrier();
		return;
	}

	instant_check_open();

	/* Others may wait for reads that we have not even submitted. */
	pgaio_submit_staged();

	/* There are more of us than workers, so don't leave the reading to them. */
	if (pg_atomic_read_u32(&page->state) == INSTANT_PENDING)
	{
		instant_announce_page(page);
		instant_demand(i);
	}

	ConditionVariablePrepareToSleep(cv);
	while (pg_atomic_read_membarrier_u32(&page->state) != INSTANT_DONE)
		ConditionVariableSleep(cv, WAIT_EVENT_INSTANT_RECOVERY_PAGE);
	ConditionVariableCancelSleep();
}

/*
 * Wait until the page has no pending records (I2).
 */
void
InstantRecoveryWaitForPage(const RelFileLocator *rlocator, ForkNumber forknum,
						   BlockNumber blkno)
{
	InstantPage *page;

	if (redoes_chains)
		return;
	page = instant_find_page(rlocator, forknum, blkno);
	if (page != NULL)
		instant_wait_for_page(page);
}

/*
 * Wait until no page of the relation has pending records (I2).
 */
void
InstantRecoveryWaitForRelation(const RelFileLocator *rlocator)
{
	InstantPage key = {.rlocator = *rlocator};
	uint32		low = 0;
	uint32		high = InstantCtl->npages;

	if (redoes_chains)
		return;

	/* Look for the first one; pages have been sorted. */
	while (low < high)
	{
		uint32		middle = low + (high - low) / 2;

		if (instant_compare_pages(&InstantPages[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	while (low < InstantCtl->npages &&
		   RelFileLocatorEquals(InstantPages[low].rlocator, *rlocator))
		instant_wait_for_page(&InstantPages[low++]);
}

/*
 * Wait until no page is pending any more (I2, I7).
 */
void
InstantRecoveryWaitForAll(void)
{
	if (redoes_chains)
		return;

	/* the checkpointer may come before the opening, and waits for it */
	if (AmStartupProcess())
		instant_check_open();
	pgaio_submit_staged();
	ConditionVariablePrepareToSleep(&InstantCtl->all_cv);
	while (pg_atomic_read_membarrier_u32(&InstantCtl->pending) != 0)
	{
		/* others, the workers too, cannot do without what it does */
		CheckpointerUpkeep();
		(void) ConditionVariableTimedSleep(&InstantCtl->all_cv, 100,
										   WAIT_EVENT_INSTANT_RECOVERY_END);
	}
	ConditionVariableCancelSleep();
}

/* ----------------------------------------------------------------
 * Workers
 * ----------------------------------------------------------------
 */

/*
 * A worker that fails leaves a page half redone, and sessions waiting for it.
 */
static void
instant_worker_exit(int code, Datum arg)
{
	if (code != 0 && pg_atomic_read_u32(&InstantCtl->pending) != 0 &&
		PostmasterIsAlive())
		ereport(PANIC,
				(errmsg("recovery worker has failed while pages are pending"),
				 errhint("Without \"%s\" the server recovers before clients get in.",
						 "instant_recovery")));
	if (attached)
		pg_atomic_fetch_sub_u32(&InstantCtl->workers, 1);
	attached = false;
}

static bool
instant_claim(uint32 i)
{
	uint32		expected = INSTANT_PENDING;

	return pg_atomic_compare_exchange_u32(&InstantPages[i].state, &expected,
										  INSTANT_REDOING);
}

/*
 * Take a page that somebody waits for.
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
		if (instant_claim(i))
		{
			pg_atomic_fetch_add_u32(&InstantCtl->on_demand, 1);
			return i;
		}
	}
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
 * Take a page, or return INSTANT_NONE if others have taken all that were left.
 */
static uint32
instant_take(void)
{
	uint32		i = instant_take_demand();

	while (i == INSTANT_NONE)
	{
		uint32		next;

		/* Tests want to see what is pending. */
		if (IS_INJECTION_POINT_ATTACHED("instant-recovery-only-demands"))
		{
			instant_worker_interrupts();
			pg_usleep(1000);
			i = instant_take_demand();
			continue;
		}

		next = pg_atomic_fetch_add_u32(&InstantCtl->next, 1);
		if (next >= InstantCtl->npages)
			return INSTANT_NONE;
		instant_announce(next + INSTANT_AHEAD * maintenance_io_concurrency);
		if (instant_claim(next))
			i = next;
	}
	return i;
}

static void
instant_all_done(void)
{
	pg_atomic_write_membarrier_u32(&InstantCtl->pending, 0);
	ConditionVariableBroadcast(&InstantCtl->all_cv);
	ereport(LOG,
			(errmsg("redo is complete, %.1f s after opening: %u pages, of which %u because sessions needed them",
					TimestampDifferenceMilliseconds(InstantCtl->opened_at,
													GetCurrentTimestamp()) / 1000.0,
					InstantCtl->npages,
					pg_atomic_read_u32(&InstantCtl->on_demand))));
}

static void
instant_page_done(uint32 i)
{
	INJECTION_POINT("instant-recovery-page-redone", NULL);

	/* The barrier makes the page's contents visible before its state. */
	pg_atomic_write_membarrier_u32(&InstantPages[i].state, INSTANT_DONE);
	ConditionVariableBroadcast(&InstantCtl->page_cvs[i % INSTANT_PAGE_CVS]);
	if (pg_atomic_fetch_sub_u32(&InstantCtl->left, 1) == 1)
		instant_all_done();
}

/*
 * As the WAL pipeline does: see pipeline_initialize().
 */
static void
instant_worker_initialize(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
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
	attached = true;
	pg_atomic_fetch_add_u32(&InstantCtl->workers, 1);
}

/*
 * Show how many pages are pending in pg_stat_activity and in the process title.
 */
static void
instant_show_progress(void)
{
	char		activity[50];

	snprintf(activity, sizeof(activity), "redoing pages, %u to go",
			 pg_atomic_read_u32(&InstantCtl->left));
	pgstat_report_activity(STATE_RUNNING, activity);
	set_ps_display(activity);
}

/*
 * Wait until clients get in.  Returns false if there is nothing to do.
 */
static bool
instant_wait_for_opening(void)
{
	while (pg_atomic_read_membarrier_u32(&InstantCtl->open) == 0)
	{
		instant_worker_interrupts();
		if (pg_atomic_read_u32(&InstantCtl->stop) != 0 || ShutdownRequestPending)
		{
			/* InstantRecoveryOpen() writes one and reads the other. */
			pg_atomic_fetch_sub_u32(&InstantCtl->workers, 1);
			if (pg_atomic_read_membarrier_u32(&InstantCtl->open) == 0)
			{
				attached = false;
				return false;
			}
			pg_atomic_fetch_add_u32(&InstantCtl->workers, 1);
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10, WAIT_EVENT_INSTANT_RECOVERY_MAIN);
		ResetLatch(MyLatch);
	}
	return true;
}

/*
 * Redo pages until none is left that others have not taken.  (I4)
 */
static void
instant_redo_all(void)
{
	uint32		i;
	uint32		redone = 0;

	InRecovery = true;
	redoes_chains = true;
	instant_open_reader();
	for (int rmid = 0; rmid <= RM_MAX_BUILTIN_ID; rmid++)
	{
		if (GetRmgr(rmid).rm_startup != NULL)
			GetRmgr(rmid).rm_startup();
	}

	while ((i = instant_take()) != INSTANT_NONE)
	{
		instant_worker_interrupts();
		if (redone++ % INSTANT_SHOW_PAGES == 0)
			instant_show_progress();
		instant_redo_page(&InstantPages[i]);
		instant_page_done(i);
	}

	for (int rmid = 0; rmid <= RM_MAX_BUILTIN_ID; rmid++)
	{
		if (GetRmgr(rmid).rm_cleanup != NULL)
			GetRmgr(rmid).rm_cleanup();
	}
	instant_close_reader();
	smgrdestroyall();
	redoes_chains = false;
	InRecovery = false;
}

/*
 * Main entry point of a worker.
 *
 * A request to end is heard when all is done: nobody else can complete what
 * sessions, and the checkpoint that ends a fast stop, wait for.
 */
void
InstantRecoveryMain(Datum main_arg)
{
	instant_worker_initialize();
	if (!instant_wait_for_opening())
		proc_exit(0);

	instant_redo_all();
	proc_exit(0);
}
