/*-------------------------------------------------------------------------
 *
 * instantrecovery.c
 *	  Opening before redo: pages are redone when a session needs them.
 *
 * Crash recovery with instant_recovery has three steps.
 *
 *	  Analysis	The startup process reads all WAL from the redo pointer.  What
 *				does not concern the contents of relation pages is applied at
 *				once.  Of the rest it only remembers, for each page, which
 *				records concern it: the page's chain.
 *	  Opening	Clients get in.
 *	  Redo		Workers apply the chains, page by page, in the order of the
 *				files.  A process that needs a page whose chain is pending has
 *				a worker redo it first, and waits for that.
 *
 * With several workers but without instant_recovery, clients get in when the workers
 * and the startup process have applied all chains.  Before that, and in either way, there are
 * rounds of redo as well: where a record needs all before it to have been applied,
 * and where pages alone fill the memory for chains, whose records have gone to a file by
 * then.  A record that needs certain pages only has these
 * redone by the startup process, in analysis, and one that removes pages throws
 * their chains away.
 *
 * Clients get in before redo only after plain crash recovery that comes up read-write
 * on its own timeline.  Recovery from an archive, and a standby that is not consistent yet,
 * redo pages in rounds only, with workers: a round ends at each redo pointer, before a file of
 * another timeline is read, and where recovery is consistent, unless clients have to wait
 * for its end.  docs/instant-restart.md says what each type of record needs; the rules
 * I1 to I11 that comments name are these:
 *
 *	  I1  Redo is deferred only while no client is in, and beyond that only after plain
 *		  crash recovery.
 *	  I2  No process except those that redo pages sees a page with a pending chain,
 *		  or trusts a file with one.
 *	  I3  A chain is applied whole, in order, by one process at a time, before any
 *		  other process sees the page.  The LSN test of redo stays where it is.  What
 *		  precedes a record that rebuilds the page does not belong to the chain.
 *	  I4  Sessions run no redo.
 *	  I5  What redo does beside the page is done in analysis.  A record for which
 *		  that is impossible is a barrier: chains are applied first, then it.  That
 *		  goes for the chains of the pages that it reads, if it is known which.
 *	  I6  Files have their final length before clients get in.
 *	  I7  No checkpoint begins while a chain is pending, nor does a restartpoint at a redo
 *		  pointer after its first record, so recovery from the next crash begins before it.
 *	  I8  Init forks are complete before unlogged relations are reset.
 *	  I9  After clients have got in, a page that cannot be redone is an error for
 *		  each process that needs it, and for each checkpoint, until it has been
 *		  redone, removed or given up.
 *	  I10 Memory for chains is bounded.  When it is full records are written to a
 *		  file; when it is full of pages, it is a barrier.
 *	  I11 When nothing is pending, one flag says so.
 *
 * Concurrency
 * -----------
 * During analysis there is one process that knows of chains, the startup process.
 * During a round, and from opening on, the table of pages does not change,
 * except the state of each page:
 *
 *		PENDING <-> REDOING --> DONE
 *		   ^           |
 *		   '- FAILED <-'
 *
 * A worker that is at a long chain takes the page back to PENDING when sessions wait for
 * others, and demands it itself: what has been applied stays.
 *
 * Only the process that takes a page from PENDING to REDOING redoes it.  It applies records
 * to a copy, and holds the content lock of the page only to write that back, so a process that
 * finds the page in shared buffers must ask, too: PinBufferForBlock() does so for
 * all of them.  During a round only redo looks at pages, so no process asks.
 *
 * Members are the processes that see to it that pending pages are redone: the startup
 * process until clients have got in, and workers, which join a round, or as soon as it is
 * clear that clients will get in before redo, and leave when no page is left that they
 * could take.  Only when there is no member are pending pages given up (I9).  So a
 * worker that has joined does not leave before the opening: a fast stop after analysis
 * is put off until all is redone, as one after opening is.
 *
 * A round ends when the startup process is the only member: it lets no process join
 * any more, waits until those that have joined have left, and itself redoes the
 * pages that have failed, since its errors are those that end recovery.
 *
 * A worker never waits for a process that may wait for the worker: it locks only the
 * page that it redoes, which no other process can have pinned.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/instantrecovery.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifndef WIN32
#include <sys/mman.h>
#endif
#include <unistd.h>

#include "access/instantrecovery_internal.h"
#include "access/transam.h"
#include "access/visibilitymap.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "access/xlogutils.h"
#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "postmaster/bgwriter.h"
#include "postmaster/startup.h"
#include "storage/aio.h"
#include "storage/aio_subsys.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite.h"
#include "storage/doublewrite_stats.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "utils/guc.h"
#include "utils/guc_hooks.h"
#include "utils/injection_point.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* GUCs */
bool		instant_recovery = false;
int			recovery_workers = -1;
int			instant_recovery_memory = -1;

/* Bytes of memory for each bucket of the table of pages */
#define INSTANT_BYTES_PER_BUCKET	128

/*
 * Automatic memory, in kB: 8 bytes for each record of 64, by how much WAL there may be, but no
 * more than a part of shared buffers, which gets smaller where that is much.  In huge pages it
 * is reserved for good, and records for which there is no room go to a file.
 */
#define INSTANT_WAL_SHARE		8
#define INSTANT_BUFFERS_SHARE	4
#define INSTANT_IS_MUCH			(32 * 1024)
#define INSTANT_LOWER_SHARE		16
#define INSTANT_MIN_MEMORY		64
#define INSTANT_MIN_AUTOMATIC	(4 * 1024)
#define INSTANT_MAX_AUTOMATIC	(256 * 1024)

/* Comparisons between two looks at interrupts */
#define INSTANT_SORT_STEP		4096

/* Automatic number of workers */
#define INSTANT_MIN_WORKERS		2
#define INSTANT_MAX_WORKERS		8

InstantCtlData *InstantCtl = NULL;

/*
 * Memory for chains: buckets, then pages from the left and records from the
 * right, until they meet.  See instantwal.c for what is between them.
 */
InstantPage *InstantPages = NULL;
static uint32 *InstantBuckets = NULL;
static InstantRecord *InstantRecordsEnd = NULL;

pg_atomic_uint32 *InstantRecoveryPending = NULL;

bool		instant_redoes_chains = false;

/*
 * The last page that this process has needed and demanded, and how many from there on it has
 * demanded.
 */
static uint32 instant_range_from = 0;
static uint32 instant_range_length = 0;

/* Whether this process counts among "members" */
static bool instant_joined = false;

/* ----------------------------------------------------------------
 * Settings
 * ----------------------------------------------------------------
 */

static int
instant_automatic_workers(void)
{
	long		cores = 0;

	if (!instant_recovery)
		return 0;
#ifdef _SC_NPROCESSORS_ONLN
	cores = sysconf(_SC_NPROCESSORS_ONLN);
#endif
	return Min(Max(cores / 2, INSTANT_MIN_WORKERS), INSTANT_MAX_WORKERS);
}

static int
instant_automatic_memory(void)
{
	int64		by_wal = (int64) max_wal_size_mb * 1024 / INSTANT_WAL_SHARE;
	int64		buffers = (int64) NBuffers * (BLCKSZ / 1024);
	int64		by_buffers = Max(Min(buffers / INSTANT_BUFFERS_SHARE, INSTANT_IS_MUCH),
								 buffers / INSTANT_LOWER_SHARE);

	return Min(Max(Min(by_wal, by_buffers), INSTANT_MIN_AUTOMATIC), INSTANT_MAX_AUTOMATIC);
}

/*
 * GUC assign_hook: what the log has of pages can wait as well.
 */
void
assign_instant_recovery(bool newval, void *extra)
{
	DoubleWriteRestoreOnDemand = newval;
}

/*
 * GUC check_hooks.  Once a value has been chosen, -1 in a file that is reloaded is
 * no change, as with wal_buffers.
 */
bool
check_recovery_workers(int *newval, void **extra, GucSource source)
{
	if (*newval == -1 && recovery_workers >= 0)
		*newval = recovery_workers;
	return true;
}

bool
check_instant_recovery_memory(int *newval, void **extra, GucSource source)
{
	if (*newval == -1)
	{
		if (instant_recovery_memory > 0)
			*newval = instant_recovery_memory;
	}
	else if (*newval < INSTANT_MIN_MEMORY)
		*newval = INSTANT_MIN_MEMORY;
	return true;
}

/*
 * Choose automatic values, and have SHOW say what they are.
 */
static void
instant_choose_settings(void)
{
	DoubleWriteChooseSetting("recovery_workers", &recovery_workers,
							 instant_automatic_workers());
	DoubleWriteChooseSetting("instant_recovery_memory", &instant_recovery_memory,
							 instant_automatic_memory());
}

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

/*
 * Return whether there are chains at all.  Workers alone make redo before opening
 * parallel.
 */
static bool
instant_is_configured(void)
{
	return instant_recovery || recovery_workers > 0;
}

Size
InstantRecoveryShmemSize(void)
{
	Size		size;

	instant_choose_settings();
	if (!instant_is_configured())
		return 0;

	size = MAXALIGN(sizeof(InstantCtlData));
	size = add_size(size, mul_size(sizeof(uint32), instant_nbuckets()));
	size = add_size(size, instant_memory());
	return size;
}

/*
 * Return how many demands there are that no worker has taken.
 */
uint32
instant_demands(void)
{
	uint32		demands;

	SpinLockAcquire(&InstantCtl->mutex);
	demands = InstantCtl->demand_head - InstantCtl->demand_tail;
	SpinLockRelease(&InstantCtl->mutex);
	return demands;
}

/*
 * What views show of pages that are pending.
 */
void
InstantRecoveryPutFigures(DoubleWriteSnapshot *snapshot)
{
	if (InstantCtl == NULL || InstantCtl->opened_at == 0)
		return;
	DoubleWritePutFigure(snapshot, "instant_opened_at", InstantCtl->opened_at);
	DoubleWritePutFigure(snapshot, "instant_pages", InstantCtl->npages);
	DoubleWritePutFigure(snapshot, "instant_records",
						 InstantCtl->nspilled + InstantCtl->nrecords);
	DoubleWritePutFigure(snapshot, "instant_pages_pending",
						 pg_atomic_read_u32(&InstantCtl->left));
	DoubleWritePutFigure(snapshot, "instant_pages_failed",
						 pg_atomic_read_u32(&InstantCtl->failed));
	DoubleWritePutFigure(snapshot, "instant_pages_on_demand",
						 pg_atomic_read_u32(&InstantCtl->on_demand));
	DoubleWritePutFigure(snapshot, "instant_workers",
						 instant_members());
	DoubleWritePutFigure(snapshot, "instant_pages_demanded",
						 instant_demands());
	DoubleWritePutFigure(snapshot, "instant_pages_ahead",
						 pg_atomic_read_u32(&InstantCtl->ahead));
}

void
InstantRecoveryShmemInit(void)
{
	bool		found;

	if (!instant_is_configured())
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
	pg_atomic_init_u32(&InstantCtl->phase, INSTANT_PHASE_ANALYSIS);
	pg_atomic_init_u32(&InstantCtl->next, 0);
	pg_atomic_init_u32(&InstantCtl->announced, 0);
	pg_atomic_init_u32(&InstantCtl->ahead, 0);
	pg_atomic_init_u64(&InstantCtl->catalog_read_at, 0);
	pg_atomic_init_u32(&InstantCtl->left, 0);
	pg_atomic_init_u32(&InstantCtl->failed, 0);
	pg_atomic_init_u32(&InstantCtl->retried, 0);
	pg_atomic_init_u32(&InstantCtl->on_demand, 0);
	for (int i = 0; i < lengthof(InstantCtl->redone); i++)
		pg_atomic_init_u32(&InstantCtl->redone[i], 0);
	SpinLockInit(&InstantCtl->mutex);
	for (int i = 0; i < INSTANT_PAGE_CVS; i++)
		ConditionVariableInit(&InstantCtl->page_cvs[i]);
	ConditionVariableInit(&InstantCtl->work_cv);
	ConditionVariableInit(&InstantCtl->all_cv);
	memset(InstantBuckets, 0xFF, sizeof(uint32) * instant_nbuckets());
}

/* ----------------------------------------------------------------
 * Phases and members
 * ----------------------------------------------------------------
 */

InstantPhase
instant_phase(void)
{
	return (InstantPhase) pg_atomic_read_membarrier_u32(&InstantCtl->phase);
}

void
instant_set_phase(InstantPhase phase)
{
	SpinLockAcquire(&InstantCtl->mutex);
	pg_atomic_write_u32(&InstantCtl->phase, phase);
	SpinLockRelease(&InstantCtl->mutex);
	ConditionVariableBroadcast(&InstantCtl->work_cv);
}

uint32
instant_members(void)
{
	uint32		members;

	SpinLockAcquire(&InstantCtl->mutex);
	members = InstantCtl->members;
	SpinLockRelease(&InstantCtl->mutex);
	return members;
}

/*
 * Become a member, if there is something to redo, or will be when clients get in.  The
 * startup process is the first one.
 */
bool
instant_join(void)
{
	InstantPhase phase;

	Assert(!instant_joined);
	SpinLockAcquire(&InstantCtl->mutex);
	phase = (InstantPhase) pg_atomic_read_u32(&InstantCtl->phase);
	instant_joined = AmStartupProcess() ||
		phase == INSTANT_PHASE_ANALYZED || phase == INSTANT_PHASE_OPEN ||
		(phase == INSTANT_PHASE_ROUND &&
		 pg_atomic_read_u32(&InstantCtl->next) < InstantCtl->npages);
	if (instant_joined)
		InstantCtl->members++;
	SpinLockRelease(&InstantCtl->mutex);
	return instant_joined;
}

void
instant_leave(void)
{
	if (!instant_joined)
		return;
	instant_joined = false;
	SpinLockAcquire(&InstantCtl->mutex);
	Assert(InstantCtl->members > 0);
	InstantCtl->members--;
	SpinLockRelease(&InstantCtl->mutex);
	ConditionVariableBroadcast(&InstantCtl->all_cv);
}

bool
instant_is_member(void)
{
	return instant_joined;
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
InstantPage *
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

void
instant_enter_page(uint32 i)
{
	InstantPage *page = &InstantPages[i];
	uint32	   *bucket = instant_bucket(&page->rlocator, page->forknum, page->blkno);

	page->next_in_bucket = *bucket;
	*bucket = i;
}

InstantRecord *
instant_record(uint32 i)
{
	return InstantRecordsEnd - 1 - i;
}

XLogRecPtr
instant_lsn(uint32 distance)
{
	return InstantCtl->base + (uint64) distance * MAXIMUM_ALIGNOF;
}

/*
 * Return whether there is room for so many more pages, with a record each.
 */
bool
instant_has_room(int pages)
{
	return (char *) (InstantPages + InstantCtl->npages + pages) <=
		(char *) (InstantRecordsEnd - InstantCtl->nrecords - pages);
}

/*
 * What is left between pages and records, until more of them are added.
 */
char *
instant_free_memory(Size *size)
{
	char	   *from = (char *)
		CACHELINEALIGN(InstantPages + InstantCtl->npages);
	char	   *to = (char *) (InstantRecordsEnd - InstantCtl->nrecords);

	*size = to > from ? to - from : 0;
	return from;
}

/*
 * Forget all pages.
 */
void
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
	InstantCtl->nspilled = 0;
	instant_remove_spill();
	/* that memory is needed for chains again */
	InstantCtl->nchunks = 0;
}

/*
 * Every query needs catalogs, and the first ones need them one page after the
 * other.  Those that have been rewritten since initdb only come later.
 */
static bool
instant_is_catalog(const RelFileLocator *rlocator)
{
	return rlocator->relNumber < FirstNormalObjectId;
}

/*
 * Order of files, in which catalogs come first, as their numbers are the lowest
 */
static int
instant_compare_pages(const void *a, const void *b)
{
	const InstantPage *x = a;
	const InstantPage *y = b;
	int			cmp = rlocator_comparator(&x->rlocator, &y->rlocator);

	if (cmp != 0)
		return cmp;
	if (x->forknum != y->forknum)
		return x->forknum < y->forknum ? -1 : 1;
	if (x->blkno != y->blkno)
		return x->blkno < y->blkno ? -1 : 1;
	return 0;
}

/*
 * Startup process: some more has been done of what may take long.  Hear interrupts, and
 * report progress.
 */
void
instant_startup_step(const char *what, uint32 pages)
{
	INJECTION_POINT("instant-recovery-step", NULL);
	ProcessStartupProcInterrupts();
	ereport_startup_progress("preparing redo of pages, elapsed time: %ld.%02d s, %s: %u",
							 what, pages);
}

static int
instant_compare_to_sort(const void *a, const void *b)
{
	static uint32 comparisons = 0;

	if (++comparisons % INSTANT_SORT_STEP == 0)
		instant_startup_step("pages to be sorted", InstantCtl->npages);
	return instant_compare_pages(a, b);
}

/*
 * Bring pages into the order in which they are redone: that of the files, in which they
 * are best read, catalogs first.
 */
void
instant_sort_pages(void)
{
	instant_startup_step("pages to be sorted", InstantCtl->npages);
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		InstantPage *page = &InstantPages[i];

		*instant_bucket(&page->rlocator, page->forknum, page->blkno) = INSTANT_NONE;
	}
	qsort(InstantPages, InstantCtl->npages, sizeof(InstantPage),
		  instant_compare_to_sort);
	for (uint32 i = 0; i < InstantCtl->npages; i++)
		instant_enter_page(i);
}

/*
 * Add an error detail that says how many pages each process has redone.
 */
int
instant_errdetail_redone(void)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "%u by the startup process",
					 pg_atomic_read_u32(&InstantCtl->redone[0]));
	for (int i = 1; i <= recovery_workers; i++)
		appendStringInfo(&buf, ", %u by worker %d",
						 pg_atomic_read_u32(&InstantCtl->redone[i]), i);
	return errdetail_internal("Pages redone: %s.", buf.data);
}

/*
 * Give the memory of records, and of WAL that has been kept with them, back to the
 * kernel, where it can take it: they are not read any more.  Pages stay, as a
 * process that has seen them pending may look one up even now.
 */
void
instant_give_back(void)
{
#ifdef MADV_REMOVE
	long		page_size = sysconf(_SC_PAGESIZE);
	char	   *from = (char *) TYPEALIGN(page_size, InstantPages + InstantCtl->npages);
	char	   *to = (char *) TYPEALIGN_DOWN(page_size, InstantRecordsEnd);

	/* huge pages are ours for good */
	if (from < to && madvise(from, to - from, MADV_REMOVE) != 0)
		elog(DEBUG1, "could not give back memory of instant recovery: %m");
#endif
}

/*
 * Redo is complete.
 */
static void
instant_all_done(void)
{
	/* in a round the startup process looks for itself */
	if (pg_atomic_read_u32(&InstantCtl->pending) == 0)
		return;

	pg_atomic_write_membarrier_u32(&InstantCtl->pending, 0);
	instant_remove_spill();
	instant_set_phase(INSTANT_PHASE_ENDED);
	ConditionVariableBroadcast(&InstantCtl->all_cv);
	instant_give_back();
	ereport(LOG,
			(errmsg("redo is complete, %.1f s after opening: %u pages, of which %u because sessions needed them",
					TimestampDifferenceMilliseconds(InstantCtl->opened_at,
													GetCurrentTimestamp()) / 1000.0,
					InstantCtl->npages,
					pg_atomic_read_u32(&InstantCtl->on_demand)),
			 instant_errdetail_redone()));
}

/*
 * Say that a page is done; the caller has taken it to REDOING.
 */
void
instant_page_done(uint32 i)
{
	/* The barrier makes the page's contents visible before its state. */
	pg_atomic_write_membarrier_u32(&InstantPages[i].state, INSTANT_DONE);
	ConditionVariableBroadcast(&InstantCtl->page_cvs[i % INSTANT_PAGE_CVS]);
	if (pg_atomic_fetch_sub_u32(&InstantCtl->left, 1) == 1)
		instant_all_done();
}

/*
 * Say that a page cannot be redone (I9); the caller has taken it to REDOING.
 */
void
instant_page_failed(uint32 i)
{
	pg_atomic_fetch_add_u32(&InstantCtl->failed, 1);
	pg_atomic_write_membarrier_u32(&InstantPages[i].state, INSTANT_FAILED);
	ConditionVariableBroadcast(&InstantCtl->page_cvs[i % INSTANT_PAGE_CVS]);
}

/*
 * Take a page from one state to another.  Returns false if it is not in the first
 * one: another process may have taken it.
 */
bool
instant_take_page(uint32 i, InstantPageState from, InstantPageState to)
{
	uint32		expected = from;

	return pg_atomic_compare_exchange_u32(&InstantPages[i].state, &expected, to);
}

/* ----------------------------------------------------------------
 * Sessions
 * ----------------------------------------------------------------
 */

/*
 * Ask workers to redo a page before others.  If there is no room for that, which
 * is false, its turn comes anyway unless it has failed before.
 */
bool
instant_demand(uint32 i)
{
	bool		room;

	SpinLockAcquire(&InstantCtl->mutex);
	room = InstantCtl->demand_head - InstantCtl->demand_tail < INSTANT_DEMANDS;
	if (room)
		InstantCtl->demands[InstantCtl->demand_head++ % INSTANT_DEMANDS] = i;
	SpinLockRelease(&InstantCtl->mutex);
	return room;
}

static bool
instant_is_of(uint32 i, const RelFileLocator *rlocator)
{
	return i < InstantCtl->npages &&
		RelFileLocatorEquals(InstantPages[i].rlocator, *rlocator);
}

/*
 * Demand a page that is pending, unless it is among the demands already, or has been
 * since it was.
 */
static void
instant_want_page(InstantPage *page, InstantDemand demand)
{
	if (pg_atomic_read_u32(&page->state) != INSTANT_PENDING ||
		page->demanded != INSTANT_UNDEMANDED)
		return;

	/* There are more of us than workers, so don't leave the reading to them. */
	instant_announce_page(page);
	page->demanded = demand;
	if (!instant_demand(page - InstantPages))
		page->demanded = INSTANT_UNDEMANDED;
}

/*
 * This process needs a page.  If it has needed those before it, it will need those after it:
 * demand more and more of them, so that reads of many are under way at once.  "waits" is
 * whether it has to wait for this one.
 */
static void
instant_want_pages(uint32 i, bool waits)
{
	uint32		place = i - instant_range_from - 1;
	InstantPage *page = &InstantPages[i];

	if (!waits && (place >= instant_range_length || place < instant_range_length / 2))
		return;

	if (place < instant_range_length)
		instant_range_length = Max(Min(2 * instant_range_length,
									   instant_max_ahead()), 1);
	else
		instant_range_length = 1;
	instant_range_from = i;
	for (uint32 n = 0; n < instant_range_length &&
		 instant_is_of(i + n, &page->rlocator) &&
		 page[n].forknum == page->forknum; n++)
		instant_want_page(&page[n], instant_range_length > 1 ?
						  INSTANT_DEMANDED_IN_RANGE : INSTANT_DEMANDED);
}

/*
 * Panic if a page is needed between analysis and opening: no process has a reason to
 * look at pages then, and no worker would redo them.
 */
static void
instant_check_open(void)
{
	if (instant_phase() < INSTANT_PHASE_OPEN)
		elog(PANIC, "page needed between analysis of WAL and opening");
}

/*
 * Have a page that could not be redone tried again.  One worker stays for that,
 * unless the server stops.
 */
static void
instant_retry(uint32 i)
{
	if (instant_members() == 0 ||
		!instant_take_page(i, INSTANT_FAILED, INSTANT_PENDING))
		return;
	pg_atomic_fetch_sub_u32(&InstantCtl->failed, 1);
	if (instant_demand(i))
		ConditionVariableBroadcast(&InstantCtl->work_cv);
	else if (instant_take_page(i, INSTANT_PENDING, INSTANT_REDOING))
		instant_page_failed(i);
}

/*
 * The last member may have gone without having seen that a page is to be tried again.
 */
static void
instant_check_for_members(uint32 i)
{
	if (instant_members() == 0 &&
		instant_take_page(i, INSTANT_PENDING, INSTANT_REDOING))
		instant_page_failed(i);
}

/*
 * Wait until redo of the page has ended.  Returns false if it has failed.
 */
static bool
instant_await_page(InstantPage *page)
{
	uint32		i = page - InstantPages;
	uint32		state = pg_atomic_read_u32(&page->state);
	ConditionVariable *cv = &InstantCtl->page_cvs[i % INSTANT_PAGE_CVS];

	if (state == INSTANT_DONE)
	{
		/* what has been done to it is seen */
		pg_read_barrier();
		return true;
	}

	instant_check_open();

	/* Others may wait for reads that we have not even submitted. */
	pgaio_submit_staged();

	if (state == INSTANT_FAILED)
		instant_retry(i);

	ConditionVariablePrepareToSleep(cv);
	for (;;)
	{
		state = pg_atomic_read_membarrier_u32(&page->state);
		if (state == INSTANT_DONE || state == INSTANT_FAILED)
			break;
		if (ConditionVariableTimedSleep(cv, 1000, WAIT_EVENT_INSTANT_RECOVERY_PAGE))
			instant_check_for_members(i);
	}
	ConditionVariableCancelSleep();
	return state == INSTANT_DONE;
}

static void
instant_wait_for_page(InstantPage *page)
{
	instant_want_pages(page - InstantPages,
					   pg_atomic_read_u32(&page->state) != INSTANT_DONE);
	if (!instant_await_page(page))
		ereport(ERROR,
				(errcode(page->sqlerrcode),
				 errmsg("block %u of relation \"%s\" could not be redone after the last crash",
						page->blkno,
						relpathperm(page->rlocator, page->forknum).str),
				 errdetail("Redo of the WAL record at %X/%X has failed.",
						   LSN_FORMAT_ARGS(instant_lsn(page->applied))),
				 errhint("The server log has the reason.  It is tried again whenever the block is needed.")));
}

/*
 * Wait until the page has no pending records (I2).
 */
void
InstantRecoveryWaitForPage(const RelFileLocator *rlocator, ForkNumber forknum,
						   BlockNumber blkno)
{
	InstantPage *page;

	if (instant_redoes_chains)
		return;
	page = instant_find_page(rlocator, forknum, blkno);
	if (page != NULL)
		instant_wait_for_page(page);
	if (instant_is_catalog(rlocator))
		pg_atomic_write_u64(&InstantCtl->catalog_read_at, GetCurrentTimestamp());
}

/*
 * The relation's first page, or where it would be.  Pages have been sorted.
 */
static uint32
instant_first_page(const RelFileLocator *rlocator)
{
	InstantPage key = {.rlocator = *rlocator};
	uint32		low = 0;
	uint32		high = InstantCtl->npages;

	while (low < high)
	{
		uint32		middle = low + (high - low) / 2;

		if (instant_compare_pages(&InstantPages[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Wait until no page of the relation has pending records (I2).
 */
void
InstantRecoveryWaitForRelation(const RelFileLocator *rlocator)
{
	if (instant_redoes_chains)
		return;
	for (uint32 i = instant_first_page(rlocator); instant_is_of(i, rlocator); i++)
		instant_wait_for_page(&InstantPages[i]);
}

/*
 * Forget the records of a page that is being removed.  Wait only if a worker is
 * redoing it at this moment.
 */
static void
instant_forget_page(uint32 i)
{
	while (pg_atomic_read_u32(&InstantPages[i].state) != INSTANT_DONE)
	{
		if (instant_take_page(i, INSTANT_PENDING, INSTANT_REDOING))
			instant_page_done(i);
		else if (instant_take_page(i, INSTANT_FAILED, INSTANT_REDOING))
		{
			pg_atomic_fetch_sub_u32(&InstantCtl->failed, 1);
			instant_page_done(i);
		}
		else
			(void) instant_await_page(&InstantPages[i]);
	}
}

/*
 * Forget the records of a relation that is being removed.  The removal is in WAL
 * already, so its pages are not needed (I9).  The caller may have committed, and
 * cannot bear errors.
 */
void
InstantRecoveryForgetRelation(const RelFileLocator *rlocator)
{
	if (instant_redoes_chains)
		return;
	instant_check_open();
	for (uint32 i = instant_first_page(rlocator); instant_is_of(i, rlocator); i++)
		instant_forget_page(i);
}

/*
 * Do the same for a database.
 */
void
InstantRecoveryForgetDatabase(Oid database)
{
	if (instant_redoes_chains)
		return;
	instant_check_open();
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		if (InstantPages[i].rlocator.dbOid == database)
			instant_forget_page(i);
	}
}

/*
 * Return a page by the name that errors have, and wait until redo of it has failed.  If
 * it has not, return NULL.
 */
static InstantPage *
instant_take_failed_page(const char *relation, BlockNumber blkno)
{
	for (uint32 i = 0; InstantRecoveryIsPending() && i < InstantCtl->npages; i++)
	{
		InstantPage *page = &InstantPages[i];

		if (page->blkno != blkno ||
			strcmp(relpathperm(page->rlocator, page->forknum).str, relation) != 0)
			continue;
		while (pg_atomic_read_u32(&page->state) != INSTANT_DONE)
		{
			if (instant_take_page(i, INSTANT_FAILED, INSTANT_REDOING))
			{
				pg_atomic_fetch_sub_u32(&InstantCtl->failed, 1);
				return page;
			}
			instant_want_pages(i, true);
			(void) instant_await_page(page);
		}
	}
	return NULL;
}

/*
 * Log the page as it is at home, or as zeroes if that cannot be.  So the records that
 * are given up count in no other recovery, either.  Of a block that its file has lost there
 * is nothing to log.
 */
static void
instant_log_page(const InstantPage *page)
{
	SMgrRelation smgr = smgropen(page->rlocator, INVALID_PROC_NUMBER);
	Buffer		buffer = InvalidBuffer;

	if (!smgrexists(smgr, page->forknum) ||
		page->blkno >= smgrnblocks(smgr, page->forknum))
		return;

	instant_redoes_chains = true;
	PG_TRY();
	{
		buffer = ReadBufferWithoutRelcache(page->rlocator, page->forknum, page->blkno,
										   RBM_ZERO_ON_ERROR, NULL, true);
	}
	PG_FINALLY();
	{
		instant_redoes_chains = false;
	}
	PG_END_TRY();

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	log_newpage_buffer(buffer, false);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

/*
 * A page of the heap may go back to rows that are not visible to all, or are not frozen.
 */
static void
instant_clear_visibility(const InstantPage *page)
{
	Relation	rel;
	Buffer		map = InvalidBuffer;

	if (page->forknum != MAIN_FORKNUM ||
		!smgrexists(smgropen(page->rlocator, INVALID_PROC_NUMBER), VISIBILITYMAP_FORKNUM))
		return;

	rel = CreateFakeRelcacheEntry(page->rlocator);
	if (visibilitymap_get_status(rel, page->blkno, &map) != 0)
	{
		visibilitymap_clear(rel, page->blkno, map, VISIBILITYMAP_VALID_BITS);
		LockBuffer(map, BUFFER_LOCK_EXCLUSIVE);
		START_CRIT_SECTION();
		MarkBufferDirty(map);
		log_newpage_buffer(map, false);
		END_CRIT_SECTION();
		LockBuffer(map, BUFFER_LOCK_UNLOCK);
	}
	if (BufferIsValid(map))
		ReleaseBuffer(map);
	FreeFakeRelcacheEntry(rel);
}

/*
 * Give up the records of a page that cannot be redone, so that checkpoints can go on without
 * it. (I9)
 */
void
InstantRecoveryGiveUp(const char *relation, BlockNumber blkno)
{
	bool		copy = DoubleWriteGiveUpCopy(relation, blkno);
	InstantPage *page;
	uint32		i;

	/* before the page is taken, as a warning ends with CHECK_FOR_INTERRUPTS() */
	if (copy)
		ereport(WARNING,
				(errmsg("the copy of block %u of relation \"%s\" in the double-write log has been given up",
						blkno, relation),
				 errdetail("The last crash may have torn the block in its relation file.")));

	page = instant_take_failed_page(relation, blkno);
	if (page == NULL && !copy)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("redo of block %u of relation \"%s\" has not failed", blkno, relation)));
	if (page == NULL)
		return;
	i = page - InstantPages;

	/* if this process is to exit, it first gives the page back */
	HOLD_INTERRUPTS();
	PG_TRY();
	{
		instant_clear_visibility(page);
		instant_log_page(page);
	}
	PG_CATCH();
	{
		instant_page_failed(i);
		PG_RE_THROW();
	}
	PG_END_TRY();
	instant_page_done(i);
	RESUME_INTERRUPTS();

	ereport(WARNING,
			(errmsg("block %u of relation \"%s\" has been given up", blkno, relation),
			 errdetail("It lacks its changes since the last checkpoint before the crash, from the WAL record at %X/%X on or more.",
					   LSN_FORMAT_ARGS(instant_lsn(page->applied))),
			 errhint("Rebuild the index, or look for rows of the table that are lost or do not fit together.")));
}

/*
 * Have all pages that could not be redone tried again.
 */
static void
instant_retry_all(void)
{
	for (uint32 i = 0; i < InstantCtl->npages &&
		 pg_atomic_read_u32(&InstantCtl->failed) > 0; i++)
	{
		if (pg_atomic_read_u32(&InstantPages[i].state) == INSTANT_FAILED)
			instant_retry(i);
	}
}

/*
 * What waits for all pages fails if some cannot be redone (I9).
 */
static void
instant_check_failures(void)
{
	uint32		failed;

	/* no process is left that would try pages again */
	if (instant_members() == 0)
	{
		for (uint32 i = 0; i < InstantCtl->npages; i++)
			instant_check_for_members(i);
	}

	/* if the number stays, no page has been taken to be tried again meanwhile */
	failed = pg_atomic_read_membarrier_u32(&InstantCtl->failed);
	if (failed > 0 && failed == pg_atomic_read_membarrier_u32(&InstantCtl->left) &&
		failed == pg_atomic_read_membarrier_u32(&InstantCtl->failed))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg_plural("%u page could not be redone after the last crash",
							   "%u pages could not be redone after the last crash",
							   failed, failed),
				 errdetail("There can be no checkpoint, and %d MB of WAL are kept.",
						   InstantRecoveryKeptWal()),
				 errhint("Errors before name the pages.  Repair them, drop or rebuild their relations, or give them up with %s.",
						 "pg_instant_recovery_give_up()")));
}

/*
 * Wait until no page is pending any more (I2, I7).
 */
void
InstantRecoveryWaitForAll(void)
{
	if (instant_redoes_chains)
		return;

	/* the checkpointer may come before the opening, and waits for it */
	if (AmStartupProcess())
		instant_check_open();
	pgaio_submit_staged();
	instant_retry_all();
	ConditionVariablePrepareToSleep(&InstantCtl->all_cv);
	while (pg_atomic_read_membarrier_u32(&InstantCtl->pending) != 0)
	{
		instant_check_failures();
		/* others, the workers too, cannot do without what it does */
		CheckpointerUpkeep();
		(void) ConditionVariableTimedSleep(&InstantCtl->all_cv, 100,
										   WAIT_EVENT_INSTANT_RECOVERY_END);
	}
	ConditionVariableCancelSleep();
}

/*
 * Return whether there are pages that cannot be redone.  Then no checkpoint can be
 * made.
 */
bool
InstantRecoveryHasFailed(void)
{
	return InstantCtl != NULL && pg_atomic_read_u32(&InstantCtl->failed) > 0;
}

/*
 * Return how many megabytes of WAL are kept because there has been no checkpoint since clients
 * got in, or 0 if there has been one.
 */
int
InstantRecoveryKeptWal(void)
{
	XLogRecPtr	redo;

	if (InstantCtl == NULL || InstantCtl->opened_at == 0)
		return 0;
	redo = GetRedoRecPtr();
	return redo <= InstantCtl->base ? (GetInsertRecPtr() - redo) / (1024 * 1024) : 0;
}

/*
 * Return whether there are pages that will be redone after clients have got in.
 */
bool
InstantRecoveryIsPending(void)
{
	return InstantCtl != NULL && pg_atomic_read_u32(&InstantCtl->pending) != 0;
}
