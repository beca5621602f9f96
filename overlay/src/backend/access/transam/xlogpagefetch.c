/*-------------------------------------------------------------------------
 *
 * xlogpagefetch.c
 *	  Have the primary replace pages that are damaged on a standby.
 *
 * Without page images in WAL, redo reads each page that it changes, so a page
 * that has rotted on a standby would end replay at each start.  The primary has
 * the page.  This is how it comes here:
 *
 * - Redo reads a page with a wrong checksum, an invalid header, nothing but zeroes where it
 *   needs a page, or an error of the device.  The page is put on a list (PageFetchAwait(); zeroes
 *   are, once consistent, as until then WAL may remove the page), and redo passes over it as over
 *   one that WAL is going to remove (BLK_NOTFOUND).  Pages of visibility maps are cleared
 *   instead (make_valid_map_page()).
 * - When the record has been replayed, so that no lock is held, the startup process has
 *   a background worker ask the primary (PageFetchProceed()).  The worker connects as the
 *   walreceiver does, and so needs no other privileges.
 * - The primary copies the page from its buffer under the content lock, or reads it while it
 *   holds the I/O of that, and notes before releasing it up to where WAL has been
 *   inserted: as_of.  So the copy has all changes before as_of and none that comes
 *   later, and its hints are about transactions that ended before as_of.  It flushes
 *   WAL up to there before answering, as a crash could make it go on with other WAL.
 * - Until the standby has replayed WAL up to as_of, redo goes on passing over the page.
 *   Then the copy is what redo would have made of the page, and is put into a shared
 *   buffer.  As what it depends on has been replayed, no minRecoveryPoint beyond
 *   the end of replay is needed.
 *
 * Meanwhile:
 *
 * - Sessions get the error that a damaged page gives them anyway.  They get it also if the
 *   device has the page again (PageFetchAwaits()), as that lacks what redo has passed over, and
 *   with zero_damaged_pages.  A page of zeroes leaves shared buffers before the next record is
 *   replayed (PageFetchDropBuffers()).
 * - No restartpoint is noted (XLogHaveInvalidPages()), so a standby that stops or crashes
 *   meets the page again.
 * - WAL may make the page anew, or remove it.  Then the copy is not needed.  If the primary
 *   has no such page, it has been removed, and WAL before as_of says so.
 *
 * As redo may pass over the page as long as it likes, nothing waits for a primary that cannot
 * be reached, or does not send the page for some other reason: it is asked again after
 * wal_retrieve_retry_interval.  All that counts is that as_of is not before what has been
 * replayed when it is asked, so replay stands still while the worker asks.
 *
 * If recovery ends before the page is here, what redo has passed over is lost.  The page
 * is overwritten so that no process ever takes it for an intact one (PageFetchEnd()), and
 * that is durable before clients may write: such a promotion makes a full checkpoint.  A
 * crash recovery can meet the page only if it comes before that has completed.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/xlogpagefetch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/timeline.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogpagefetch.h"
#include "access/xlogrecovery.h"
#include "access/xlogutils.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/pg_type_d.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/startup.h"
#include "replication/walreceiver.h"
#include "storage/bufmgr.h"
#include "storage/checksum.h"
#include "storage/doublewrite_stats.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* If more pages are met before all have been replaced, the standby should be made anew. */
#define PAGE_FETCH_MAX		256

/* How often the startup process looks whether it should do something else */
#define PAGE_FETCH_LOOK_MS	100

/* A page that redo passes over */
typedef struct PageFetchEntry
{
	pg_atomic_uint32 used;		/* set when the rest is */
	RelFileLocator rlocator;
	ForkNumber	forknum;
	BlockNumber blkno;
} PageFetchEntry;

typedef struct PageFetchCtlData
{
	/*
	 * The list.  The startup process changes it, others read it without a
	 * lock.  So entries are used again only when the list has been empty.
	 */
	pg_atomic_uint32 nentries;
	PageFetchEntry entries[PAGE_FETCH_MAX];

	/* Figures since the start of the server */
	pg_atomic_uint64 damaged;
	pg_atomic_uint64 replaced;

	/*
	 * The question, written by the startup process before it starts the
	 * worker, and the answer, written by the worker before it says that there
	 * is one.
	 */
	pg_atomic_uint32 answered;
	int			entry;
	XLogRecPtr	replayed;
	TimeLineID	replayed_tli;
	PageFetchAnswer answer;		/* without page, which follows */
	PGAlignedBlock page;
} PageFetchCtlData;

static PageFetchCtlData *PageFetchCtl;

/* What the startup process knows of an entry */
typedef struct PageFetchState
{
	PageFetchAnswer answer;		/* if as_of is valid */
	bool		in_buffer;		/* other processes may have it */
	bool		copied;			/* with its database */
} PageFetchState;

static PageFetchState page_fetch_states[PAGE_FETCH_MAX];
int			PageFetchAwaited = 0;
bool		PageFetchHasLeft = false;

/* After an attempt that has failed: when to make another, and from which entry on */
static TimestampTz page_fetch_next_try = 0;
static uint32 page_fetch_next_entry = 0;

typedef struct PageFetchRequest
{
	RelFileLocator rlocator;
	ForkNumber	forknum;
	BlockNumber blkno;
	XLogRecPtr	replayed;
	TimeLineID	timeline;
} PageFetchRequest;

/* ---------------------------------------------------------------------
 * Shared memory
 * ---------------------------------------------------------------------
 */

Size
PageFetchShmemSize(void)
{
	return sizeof(PageFetchCtlData);
}

/*
 * What views show.
 */
void
PageFetchPutFigures(DoubleWriteSnapshot *snapshot)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);
	int			awaited = 0;

	for (uint32 i = 0; i < n; i++)
		awaited += pg_atomic_read_u32(&PageFetchCtl->entries[i].used);
	DoubleWritePutFigure(snapshot, "fetch_pages_damaged",
						 pg_atomic_read_u64(&PageFetchCtl->damaged));
	DoubleWritePutFigure(snapshot, "fetch_pages_awaited", awaited);
	DoubleWritePutFigure(snapshot, "fetch_pages_replaced",
						 pg_atomic_read_u64(&PageFetchCtl->replaced));
}

void
PageFetchShmemInit(void)
{
	bool		found;

	PageFetchCtl = (PageFetchCtlData *)
		ShmemInitStruct("Page Fetch", PageFetchShmemSize(), &found);
	if (found)
		return;

	pg_atomic_init_u32(&PageFetchCtl->nentries, 0);
	for (int i = 0; i < PAGE_FETCH_MAX; i++)
		pg_atomic_init_u32(&PageFetchCtl->entries[i].used, 0);
	pg_atomic_init_u64(&PageFetchCtl->damaged, 0);
	pg_atomic_init_u64(&PageFetchCtl->replaced, 0);
	pg_atomic_init_u32(&PageFetchCtl->answered, 0);
}

/* ---------------------------------------------------------------------
 * The list
 * ---------------------------------------------------------------------
 */

/*
 * Return whether redo passes over this page, so that no process may use what is in
 * its file.  May be called in a critical section.
 */
bool
PageFetchAwaits(RelFileLocator rlocator, ForkNumber forknum, BlockNumber blkno)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);

	for (uint32 i = 0; i < n; i++)
	{
		PageFetchEntry *entry = &PageFetchCtl->entries[i];

		if (pg_atomic_read_u32(&entry->used) == 0)
			continue;
		pg_read_barrier();
		if (entry->blkno == blkno && entry->forknum == forknum &&
			RelFileLocatorEquals(entry->rlocator, rlocator))
			return true;
	}
	return false;
}

/*
 * Redo has met a damaged page.  Put it on the list, or return false if the primary is not
 * to be asked.  If the page may be in a buffer, the caller has PageFetchDropBuffers() called
 * before replay goes on.
 */
bool
PageFetchAwait(RelFileLocator rlocator, ForkNumber forknum, BlockNumber blkno, bool in_buffer)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);
	PageFetchEntry *entry = &PageFetchCtl->entries[n];
	RelPathStr	path;

	Assert(StandbyMode);
	Assert(!PageFetchAwaits(rlocator, forknum, blkno));

	if (!IsUnderPostmaster || n >= PAGE_FETCH_MAX ||
		PrimaryConnInfo == NULL || PrimaryConnInfo[0] == '\0')
		return false;

	entry->rlocator = rlocator;
	entry->forknum = forknum;
	entry->blkno = blkno;
	memset(&page_fetch_states[n], 0, sizeof(PageFetchState));
	page_fetch_states[n].in_buffer = in_buffer;
	pg_write_barrier();
	pg_atomic_write_u32(&entry->used, 1);
	pg_atomic_write_u32(&PageFetchCtl->nentries, n + 1);
	PageFetchAwaited++;
	pg_atomic_fetch_add_u64(&PageFetchCtl->damaged, 1);

	/* before the caller looks whether another process has just read the page */
	pg_memory_barrier();

	path = relpathperm(rlocator, forknum);
	ereport(LOG,
			(errmsg("asking the primary for block %u of relation \"%s\", which is damaged here",
					blkno, path.str),
			 errhint("If the primary does not replace it, \"pg_doublewrite fetch-page --relation=%s --block=%u\" brings it here while this server is stopped.",
					 path.str, blkno)));
	return true;
}

/*
 * Take an entry off the list.
 */
static void
forget_entry(uint32 i)
{
	pg_atomic_write_u32(&PageFetchCtl->entries[i].used, 0);
	if (page_fetch_states[i].answer.page != NULL)
		pfree(page_fetch_states[i].answer.page);
	if (--PageFetchAwaited == 0)
		pg_atomic_write_u32(&PageFetchCtl->nentries, 0);
}

static bool
entry_is_used(uint32 i)
{
	return pg_atomic_read_u32(&PageFetchCtl->entries[i].used) != 0;
}

/*
 * WAL has made these pages anew, or removed them.
 */
void
PageFetchForget(RelFileLocator rlocator, ForkNumber forknum,
				BlockNumber first, BlockNumber last)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);

	for (uint32 i = 0; i < n; i++)
	{
		const PageFetchEntry *entry = &PageFetchCtl->entries[i];

		if (entry_is_used(i) && entry->forknum == forknum &&
			entry->blkno >= first && entry->blkno <= last &&
			RelFileLocatorEquals(entry->rlocator, rlocator))
			forget_entry(i);
	}
}

/*
 * A database has been removed, or moved: its pages in this tablespace.
 */
void
PageFetchForgetDatabase(Oid dbid, Oid spcid)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);

	for (uint32 i = 0; i < n; i++)
	{
		const RelFileLocator *rlocator = &PageFetchCtl->entries[i].rlocator;

		if (entry_is_used(i) && rlocator->dbOid == dbid && rlocator->spcOid == spcid)
			forget_entry(i);
	}
}

/*
 * Redo is about to copy the files of a database in a tablespace.  The copies lack what redo
 * has passed over as well, so these pages are to be replaced, too.
 */
void
PageFetchCopyDatabase(Oid src_dbid, Oid src_spcid, Oid dbid, Oid spcid)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);

	for (uint32 i = 0; i < n; i++)
	{
		const PageFetchEntry *entry = &PageFetchCtl->entries[i];
		RelFileLocator copy = {spcid, dbid, entry->rlocator.relNumber};
		uint32		place = pg_atomic_read_u32(&PageFetchCtl->nentries);

		if (!entry_is_used(i) || entry->rlocator.dbOid != src_dbid ||
			entry->rlocator.spcOid != src_spcid)
			continue;
		if (!PageFetchAwait(copy, entry->forknum, entry->blkno, false))
			ereport(FATAL,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("invalid page in block %u of relation \"%s\"",
							entry->blkno,
							relpathperm(entry->rlocator, entry->forknum).str),
					 errdetail("Its database is copied before the primary has replaced it.")));
		page_fetch_states[place].copied = true;
	}
}

/*
 * The page cannot be read any more.  Wait until no buffer has it: processes that still read or
 * use it are conflicts with recovery.  The caller holds no lock that these could wait for.
 */
static void
drop_buffer(const PageFetchEntry *entry)
{
	Buffer		buffer;
	bool		flushed;

	while (BufferIsValid(buffer = ReadBufferIfIntact(entry->rlocator, entry->forknum,
													 entry->blkno)))
	{
		LockBufferForCleanup(buffer);
		UnlockReleaseBuffer(buffer);
		(void) EvictUnpinnedBuffer(buffer, &flushed);
		ProcessStartupProcInterrupts();
	}
}

/*
 * Replay is between two records.  See to it that no session takes a page on the list for an empty one
 * from now on.
 */
void
PageFetchDropBuffers(void)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);

	for (uint32 i = 0; i < n; i++)
	{
		if (entry_is_used(i) && page_fetch_states[i].in_buffer)
			drop_buffer(&PageFetchCtl->entries[i]);
		page_fetch_states[i].in_buffer = false;
	}
}

/* ---------------------------------------------------------------------
 * Asking, in the startup process
 * ---------------------------------------------------------------------
 */

/*
 * Return whether something is more urgent than an answer.
 */
static bool
must_not_wait(void)
{
	return GetRecoveryPauseState() != RECOVERY_NOT_PAUSED ||
		CheckPromoteSignal() || PromoteIsTriggered();
}

/*
 * Have a worker ask the primary, and wait for its end.  Returns whether there is an answer.
 */
static bool
ask_primary(uint32 i, XLogRecPtr replayed, TimeLineID tli)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;
	TimestampTz started = GetCurrentTimestamp();
	char	   *conninfo;
	pid_t		pid;

	PageFetchCtl->entry = i;
	PageFetchCtl->replayed = replayed;
	PageFetchCtl->replayed_tli = tli;
	pg_atomic_write_membarrier_u32(&PageFetchCtl->answered, 0);

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "postgres");
	strcpy(worker.bgw_function_name, "PageFetchMain");
	strcpy(worker.bgw_name, "page fetcher");
	strcpy(worker.bgw_type, "page fetcher");
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		ereport(LOG,
				(errmsg("could not start a background worker that asks the primary for a page"),
				 errhint("You might need to increase \"%s\".", "max_worker_processes")));
		return false;
	}
	conninfo = pstrdup(PrimaryConnInfo);

	/*
	 * It writes to shared memory, so there is only one at a time.  As the
	 * walreceiver, it does not wait for a primary that is gone, or not the
	 * right one any more.
	 */
	while (GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
	{
		ProcessStartupProcInterrupts();
		if (must_not_wait() || strcmp(conninfo, PrimaryConnInfo) != 0 ||
			(wal_receiver_timeout > 0 &&
			 TimestampDifferenceExceeds(started, GetCurrentTimestamp(),
										wal_receiver_timeout)))
			TerminateBackgroundWorker(handle);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 PAGE_FETCH_LOOK_MS, WAIT_EVENT_BGWORKER_SHUTDOWN);
		ResetLatch(MyLatch);
	}
	pfree(conninfo);
	pfree(handle);
	return pg_atomic_read_membarrier_u32(&PageFetchCtl->answered) != 0;
}

/*
 * An attempt has failed.  The next one comes after a while, and begins with another page.
 */
static void
try_again_later(uint32 i)
{
	page_fetch_next_try =
		TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wal_retrieve_retry_interval);
	page_fetch_next_entry = i + 1;
}

/*
 * Ask the primary for a page, if it is time to.  Returns whether there is an answer.
 */
static bool
fetch_page(uint32 i, XLogRecPtr replayed, TimeLineID tli)
{
	PageFetchAnswer *answer = &page_fetch_states[i].answer;

	if (PrimaryConnInfo[0] == '\0' || GetCurrentTimestamp() < page_fetch_next_try ||
		must_not_wait())
		return false;

	/* The worker says why it could not get one. */
	if (!ask_primary(i, replayed, tli))
	{
		try_again_later(i);
		return false;
	}

	Assert(PageFetchCtl->answer.as_of >= replayed);
	*answer = PageFetchCtl->answer;
	if (answer->exists)
	{
		answer->page = MemoryContextAlloc(TopMemoryContext, BLCKSZ);
		memcpy(answer->page, PageFetchCtl->page.data, BLCKSZ);
	}
	INJECTION_POINT("page-fetch-answered", NULL);
	return true;
}

/*
 * Replay has come to where the primary was when it copied the page.
 */
static void
put_page_in_place(uint32 i)
{
	const PageFetchEntry *entry = &PageFetchCtl->entries[i];
	const PageFetchAnswer *answer = &page_fetch_states[i].answer;
	Buffer		buffer;

	/*
	 * Hints in the page may be newer than its LSN, so that is not enough for
	 * minRecoveryPoint.
	 */
	XLogFlush(answer->as_of);

	buffer = ReadBufferWithoutRelcache(entry->rlocator, entry->forknum,
									   entry->blkno, RBM_ZERO_AND_LOCK,
									   NULL, true);
	memcpy(BufferGetPage(buffer), answer->page, BLCKSZ);
	MarkBufferDirty(buffer);
	/* Redo drops all buffers of a database when it has been moved. */
	if (entry->forknum == INIT_FORKNUM || page_fetch_states[i].copied)
		FlushOneBuffer(buffer);
	UnlockReleaseBuffer(buffer);

	pg_atomic_fetch_add_u64(&PageFetchCtl->replaced, 1);
	ereport(LOG,
			(errmsg("block %u of relation \"%s\" was damaged, and has been replaced by that of the primary",
					entry->blkno,
					relpathperm(entry->rlocator, entry->forknum).str),
			 errdetail("The primary had it at WAL location %X/%X.",
					   LSN_FORMAT_ARGS(answer->as_of)),
			 errhint("Look for the cause in the storage of this server, and check the other pages with pg_amcheck.")));
	forget_entry(i);
}

/*
 * There are pages on the list.  Ask for those that are new, and put others in place if
 * it is time.  The caller is between two records, and holds no lock.
 */
void
PageFetchProceed(void)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);
	uint32		first = page_fetch_next_entry;
	TimeLineID	tli;
	XLogRecPtr	replayed = GetXLogReplayRecPtr(&tli);

	PageFetchDropBuffers();
	for (uint32 k = 0; k < n; k++)
	{
		uint32		i = (first + k) % n;
		PageFetchAnswer *answer = &page_fetch_states[i].answer;

		if (!entry_is_used(i) ||
			(XLogRecPtrIsInvalid(answer->as_of) && !fetch_page(i, replayed, tli)) ||
			replayed < answer->as_of)
			continue;
		if (answer->exists && answer->tli == tli)
		{
			put_page_in_place(i);
			continue;
		}

		/* The primary is another one now, or has lost the page. */
		if (!answer->exists)
			ereport(LOG,
					(errmsg("the primary has no block %u of relation \"%s\", and WAL has not removed it",
							PageFetchCtl->entries[i].blkno,
							relpathperm(PageFetchCtl->entries[i].rlocator,
										PageFetchCtl->entries[i].forknum).str)));
		if (answer->page != NULL)
			pfree(answer->page);
		memset(answer, 0, sizeof(PageFetchAnswer));
		try_again_later(i);
	}
}

/*
 * Recovery has ended.  Changes that redo has passed over are lost, so no process may use what
 * the device may give back again.  Put bytes in its place that are no page.
 *
 * They do not go by way of the stage: what is found there counts as intact.  It has no version
 * of the page, as redo has read that from its home, and no buffer has been dirty
 * since.  If the power fails, it may be half written; then recovery begins before all that has
 * been passed over, and finds a damaged page again, if data checksums are enabled, or a
 * copy in the double-write log, with which it is as good as new.
 */
void
PageFetchEnd(void)
{
	uint32		n = pg_atomic_read_u32(&PageFetchCtl->nentries);
	PGIOAlignedBlock page;

	memset(page.data, 0xFF, BLCKSZ);
	/* Base backups do not verify pages with an LSN after their beginning. */
	PageSetLSN(page.data, InvalidXLogRecPtr);
	((PageHeader) page.data)->pd_checksum = 0;	/* of no page */

	for (uint32 i = 0; i < n; i++)
	{
		const PageFetchEntry *entry = &PageFetchCtl->entries[i];
		SMgrRelation smgr;

		if (!entry_is_used(i))
			continue;
		smgr = smgropen(entry->rlocator, INVALID_PROC_NUMBER);
		if (smgrexists(smgr, entry->forknum) &&
			entry->blkno < smgrnblocks(smgr, entry->forknum))
		{
			smgrwrite(smgr, entry->forknum, entry->blkno, page.data, false);
			drop_buffer(entry);
		}
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("recovery has ended before the primary has replaced block %u of relation \"%s\", which is damaged",
						entry->blkno,
						relpathperm(entry->rlocator, entry->forknum).str),
				 errdetail("What was in it is lost, and reading it is an error."),
				 errhint("If it is of an index, use REINDEX.  If it is of a table, get its rows from a backup or the former primary.")));
		PageFetchHasLeft = true;
		forget_entry(i);
	}
}

/* ---------------------------------------------------------------------
 * Asking, in the worker
 * ---------------------------------------------------------------------
 */

static WalReceiverConn *
connect_primary(void)
{
	WalReceiverConn *conn;
	TimeLineID	tli;
	char	   *sysid;
	char	   *err;

	load_file("libpqwalreceiver", false);
	conn = walrcv_connect(PrimaryConnInfo, true, false, false,
						  cluster_name[0] ? cluster_name : "page fetcher", &err);
	if (conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to the primary to fetch a page: %s", err)));

	sysid = walrcv_identify_system(conn, &tli);
	if (strtou64(sysid, NULL, 10) != GetSystemIdentifier())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("database system identifier differs between the primary and standby")));
	return conn;
}

/*
 * Return whether this is what a primary answers.  It sets the checksum of a page
 * whether or not checksums are enabled.
 */
static bool
is_intact(const PageFetchAnswer *answer, BlockNumber blkno)
{
	if (answer->as_of < PageFetchCtl->replayed)
		return false;
	return !answer->exists ||
		(!PageIsNew(answer->page) &&
		 ((PageHeader) answer->page)->pd_checksum ==
		 pg_checksum_page(answer->page, blkno) &&
		 PageGetLSN(answer->page) <= answer->as_of);
}

/*
 * Main entry point of the worker, which asks one question.  An error ends it without an
 * answer; then the startup process has another one ask later.
 */
void
PageFetchMain(Datum arg)
{
	const PageFetchEntry *entry = &PageFetchCtl->entries[PageFetchCtl->entry];
	WalReceiverConn *conn;
	PageFetchAnswer answer;
	char	   *command;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	command = psprintf("READ_PAGE '" PAGE_FETCH_FORMAT "'",
					   entry->rlocator.spcOid, entry->rlocator.dbOid,
					   entry->rlocator.relNumber, entry->forknum, entry->blkno,
					   LSN_FORMAT_ARGS(PageFetchCtl->replayed),
					   PageFetchCtl->replayed_tli);
	conn = connect_primary();
	walrcv_read_page(conn, command, &answer);

	if (!is_intact(&answer, entry->blkno))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("page has been damaged on its way from the primary")));

	if (answer.exists)
		memcpy(PageFetchCtl->page.data, answer.page, BLCKSZ);
	answer.page = NULL;
	PageFetchCtl->answer = answer;
	pg_atomic_write_membarrier_u32(&PageFetchCtl->answered, 1);
	proc_exit(0);
}

/* ---------------------------------------------------------------------
 * Answering, on the primary
 * ---------------------------------------------------------------------
 */

/*
 * Complain unless this is a request.
 */
static void
parse_request(const char *text, PageFetchRequest *request)
{
	uint32		hi;
	uint32		lo;
	int			forknum;
	int			length = 0;

	if (sscanf(text, PAGE_FETCH_FORMAT "%n", &request->rlocator.spcOid,
			   &request->rlocator.dbOid, &request->rlocator.relNumber,
			   &forknum, &request->blkno, &hi, &lo, &request->timeline,
			   &length) != 8 || text[length] != '\0' ||
		!OidIsValid(request->rlocator.spcOid) ||
		!RelFileNumberIsValid(request->rlocator.relNumber) ||
		(request->rlocator.spcOid == GLOBALTABLESPACE_OID) !=
		!OidIsValid(request->rlocator.dbOid) ||
		forknum < 0 || forknum > MAX_FORKNUM || request->blkno > MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid page \"%s\"", text)));
	request->forknum = forknum;
	request->replayed = ((uint64) hi) << 32 | lo;
}

/*
 * Read a page.  Returns false if there is none, or nothing in it.  *as_of is set to
 * where WAL has been inserted up to.
 *
 * The relation is known by its files only, so it cannot be locked.  If it is truncated after the
 * look at its length, there is an error, and the standby asks again.  A removal is in WAL
 * before files go, so a page that is read beside one has an as_of beyond its record, which
 * makes the standby forget the page.
 */
static bool
copy_page(const PageFetchRequest *request, char *page, XLogRecPtr *as_of)
{
	SMgrRelation smgr = smgropen(request->rlocator, INVALID_PROC_NUMBER);

	/* Hints would log an unlogged page that counts as a permanent one. */
	if (request->forknum != INIT_FORKNUM && smgrexists(smgr, INIT_FORKNUM))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("relation \"%s\" is unlogged",
						relpathperm(request->rlocator, request->forknum).str)));

	if (!smgrexists(smgr, request->forknum) ||
		request->blkno >= smgrnblocks(smgr, request->forknum))
	{
		*as_of = GetXLogInsertEndRecPtr();
		return false;
	}
	INJECTION_POINT("read-page-looked", NULL);
	ReadPageAsOf(request->rlocator, request->forknum, request->blkno, page, as_of);

	if (PageGetLSN(page) > *as_of)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of relation \"%s\" has LSN %X/%X, which is beyond the end of WAL at %X/%X",
						request->blkno,
						relpathperm(request->rlocator, request->forknum).str,
						LSN_FORMAT_ARGS(PageGetLSN(page)),
						LSN_FORMAT_ARGS(*as_of))));
	return !PageIsNew(page);
}

/*
 * Complain unless all that the standby has replayed is in the WAL of this server.
 */
static void
check_history(const PageFetchRequest *request, TimeLineID tli, XLogRecPtr as_of)
{
	if (as_of < request->replayed ||
		tliOfPointInHistory(request->replayed - 1, readTimeLineHistory(tli)) != request->timeline)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("WAL location %X/%X on timeline %u is not in this server's history",
						LSN_FORMAT_ARGS(request->replayed), request->timeline)));
}

/*
 * Send a page to a standby.  (READ_PAGE)
 */
void
PageFetchAnswerStandby(const char *request_text)
{
	char	   *page = palloc_aligned(BLCKSZ, PG_IO_ALIGN_SIZE, 0);
	TimeLineID	tli;
	XLogRecPtr	as_of;
	TupleDesc	tupdesc;
	TupOutputState *output;
	Datum		values[3];
	bool		nulls[3] = {0};
	text	   *hex = palloc(VARHDRSZ + 2 * BLCKSZ);
	PageFetchRequest request;

	parse_request(request_text, &request);

	/* A promotion may be under way, so the standby asks again. */
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_CANNOT_CONNECT_NOW),
				 errmsg("recovery is in progress"),
				 errhint("Pages can be read for a standby on a primary only.")));
	if (ignore_checksum_failure)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"%s\" is on, so a page may be damaged in shared buffers",
						"ignore_checksum_failure")));

	StartTransactionCommand();
	tli = GetWALInsertionTimeLine();
	nulls[0] = !copy_page(&request, page, &as_of);
	check_history(&request, tli, as_of);
	XLogFlush(as_of);
	CommitTransactionCommand();

	if (!nulls[0])
	{
		/* whether or not checksums are enabled here */
		((PageHeader) page)->pd_checksum = pg_checksum_page(page, request.blkno);
		SET_VARSIZE(hex, VARHDRSZ + hex_encode(page, BLCKSZ, VARDATA(hex)));
	}
	values[0] = PointerGetDatum(hex);
	values[1] = CStringGetTextDatum(psprintf("%X/%X", LSN_FORMAT_ARGS(as_of)));
	values[2] = Int64GetDatum(tli);

	tupdesc = CreateTemplateTupleDesc(lengthof(values));
	TupleDescInitBuiltinEntry(tupdesc, 1, "page", TEXTOID, -1, 0);
	TupleDescInitBuiltinEntry(tupdesc, 2, "as_of", TEXTOID, -1, 0);
	TupleDescInitBuiltinEntry(tupdesc, 3, "timeline", INT8OID, -1, 0);
	output = begin_tup_output_tupdesc(CreateDestReceiver(DestRemoteSimple),
									  tupdesc, &TTSOpsVirtual);
	do_tup_output(output, values, nulls);
	end_tup_output(output);
}
