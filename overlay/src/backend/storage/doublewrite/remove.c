/*-------------------------------------------------------------------------
 *
 * remove.c
 *	  Making sure that removed pages stay removed.
 *
 * When a relation is dropped or truncated, its dirty buffers and staged pages
 * are thrown away, so what stands at home is older than the redo pointer of a
 * checkpoint under way says.  That does no harm as long as the pages are gone
 * when recovery starts from that redo pointer: redo skips records for blocks
 * that do not exist, knowing that it will come to the record of the removal.
 * If they are still there, it works on stale pages and fails.  Full-page
 * images in WAL would set them right; without those, a checkpoint that
 * completes must find the removal
 *
 *	- done, if buffers were dropped before the checkpoint had written and
 *	  synced them.  The remover holds one of two locks in shared mode from
 *	  before it drops the first buffer until its files are gone.  The
 *	  checkpoint turns newcomers to the other lock and waits for the first
 *	  one to become free.  (One lock would never be free on a busy server.)
 *	- durable: neither ftruncate() nor unlink() is, and md.c forgets the sync
 *	  requests of what it unlinks.  The remover leaves notes, of truncated
 *	  files and of directories, that the checkpoint syncs.
 *
 * Both are part of rule R5.  A removal that begins later is harmless: by then
 * the pages are home and durable as of the redo pointer.
 *
 * A file that cannot be removed is a mere warning, and an error may end a removal
 * half-way: the transaction has committed.  Then no checkpoint completes whose redo
 * pointer is older than that; the next one will do.
 *
 * Stock's DROP DATABASE waits for a checkpoint between dropping buffers and
 * removing files.  Ours removes them before, under the lock like others: the
 * checkpoint would free copies of pages that redo still reads if the power fails
 * before it completes.  So does its replay.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/remove.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"
#include "storage/doublewrite_internal.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/procsignal.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"

/*
 * How long a checkpoint sleeps between two looks at removals under way.  It is
 * not woken by them: an error releases a remover's lock as well, where no
 * process would signal a condition variable, and a remover may be waiting for the
 * checkpointer to empty its queue of sync requests.  Removals take some
 * milliseconds, and this happens once in a checkpoint.
 */
#define DW_REMOVAL_WAIT_USEC	1000

/* ---------------------------------------------------------------------
 * Removing
 * ---------------------------------------------------------------------
 */

/* The lock that this process holds, while it removes something */
static LWLock *dw_removal_lock = NULL;

static LWLock *
dw_removal_lock_of(uint32 generation)
{
	return (generation & 1) ? DoubleWriteRemovalOddLock : DoubleWriteRemovalEvenLock;
}

/*
 * Pages of permanent relations are about to be dropped from shared buffers,
 * because their blocks are going to be removed.  Hold off the completion of
 * checkpoints until DoubleWriteEndRemoval(); an error does that, too. (R5)
 *
 * The caller may hold buffer pins, heavyweight locks and be in a critical
 * section, but no lock of the engine.
 */
void
DoubleWriteBeginRemoval(void)
{
	uint32		generation;

	Assert(!DoubleWriteIsRemoving());
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	for (;;)
	{
		generation = pg_atomic_read_u32(&DWCtl->removals.generation);
		dw_removal_lock = dw_removal_lock_of(generation);
		INJECTION_POINT("doublewrite-removal-begins", NULL);
		LWLockAcquire(dw_removal_lock, LW_SHARED);
		if (pg_atomic_read_u32(&DWCtl->removals.generation) == generation)
			break;
		/* a checkpoint has just stopped waiting for this lock's holders */
		LWLockRelease(dw_removal_lock);
	}
	pg_atomic_fetch_add_u32(&DWCtl->removals.under_way[generation & 1], 1);
}

/*
 * The removal is done, or DoubleWriteRemovalFailed() has been told that it is not.
 */
void
DoubleWriteEndRemoval(void)
{
	int			parity = dw_removal_lock == DoubleWriteRemovalOddLock;

	Assert(dw_removal_lock != NULL);
	pg_atomic_fetch_sub_u32(&DWCtl->removals.under_way[parity], 1);
	LWLockRelease(dw_removal_lock);
	dw_removal_lock = NULL;
}

/*
 * Return whether a checkpoint may wait for this process, as it removes files, or
 * writes pages home.  Then nothing is sent to its client, which may not read it:
 * neither messages, of any level, nor the error that ends the removal, which is
 * reported before the lock is released.
 */
bool
DoubleWriteIsRemoving(void)
{
	return (dw_removal_lock != NULL && LWLockHeldByMe(dw_removal_lock)) ||
		dw_own_writer() != NULL;
}

/* ---------------------------------------------------------------------
 * Removals that fail
 * ---------------------------------------------------------------------
 */

/*
 * What was to be removed may still be there, or come back after a crash.  It has no
 * records from now on, so redo that begins here does not read it. (R5)
 *
 * To be called before DoubleWriteEndRemoval().  May be called in a critical section.
 */
void
DoubleWriteRemovalFailed(void)
{
	XLogRecPtr	now = RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) : GetXLogInsertRecPtr();

	DWLockMutex();
	DWCtl->removals.failed_until = Max(DWCtl->removals.failed_until, now);
	DWUnlockMutex();
}

/*
 * No other process holds the lock for removals of this parity.  Note whether one has not
 * come to DoubleWriteEndRemoval().
 */
static void
dw_remember_unended_removals(uint32 parity)
{
	if (pg_atomic_exchange_u32(&DWCtl->removals.under_way[parity & 1], 0) != 0)
		DoubleWriteRemovalFailed();
}

/*
 * A checkpoint is about to begin: what has failed by now does not concern it.
 */
void
DoubleWriteRememberFailedRemovals(void)
{
	for (uint32 parity = 0; parity < 2; parity++)
	{
		LWLock	   *lock = dw_removal_lock_of(parity);

		if (!LWLockConditionalAcquire(lock, LW_EXCLUSIVE))
			continue;
		dw_remember_unended_removals(parity);
		LWLockRelease(lock);
	}
}

/*
 * Return whether redo from here would read what could not be removed.
 */
static bool
dw_has_failed_removal(XLogRecPtr redo, XLogRecPtr *failed_until)
{
	DWLockMutex();
	*failed_until = DWCtl->removals.failed_until;
	DWUnlockMutex();
	return redo < *failed_until;
}

/*
 * Return whether a restartpoint with this redo pointer would fail.  The next one may
 * have the same one, so none is tried. (R5)
 */
bool
DoubleWriteRefusesRestartpoint(XLogRecPtr redo)
{
	XLogRecPtr	failed_until;

	DoubleWriteRememberFailedRemovals();
	return dw_has_failed_removal(redo, &failed_until) && dw_removals_matter();
}

/*
 * Return whether a crash would recover from before a removal that has failed, as
 * pg_control is now.
 */
bool
dw_removal_has_failed(void)
{
	XLogRecPtr	failed_until;
	XLogRecPtr	redo;

	DWLockMutex();
	redo = DWCtl->redo.last;
	DWUnlockMutex();
	return dw_has_failed_removal(redo, &failed_until);
}

/*
 * A checkpoint is about to complete.  Throw an error if a crash would recover from
 * before a removal that has failed. (R5)
 */
void
dw_refuse_failed_removal(XLogRecPtr redo)
{
	XLogRecPtr	failed_until;

	if (dw_has_failed_removal(redo, &failed_until))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not complete the checkpoint because files could not be removed meanwhile"),
				 errdetail("Recovery from its redo location %X/%X might find pages in them that had not been written.",
						   LSN_FORMAT_ARGS(redo)),
				 errhint("See earlier messages in the server log for the files.  A checkpoint whose redo location is %X/%X or later will complete.",
						 LSN_FORMAT_ARGS(failed_until))));
}

/*
 * The log has the only good copy of a page in a file that could not be removed.  A crash
 * recovers from this batch on until a checkpoint has completed, or PG_UINT64_MAX. (R3)
 */
uint64
dw_first_failed_removal(void)
{
	uint64		result;

	DWLockMutex();
	result = DWCtl->removals.failed_batch;
	DWUnlockMutex();
	return result != 0 ? result : PG_UINT64_MAX;
}

/*
 * Throw an error if the log is not to be made empty without a checkpoint. (R3)
 */
void
dw_refuse_to_forget_removal(void)
{
	if (dw_first_failed_removal() != PG_UINT64_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not empty the double-write log because it has pages of files that could not be removed"),
				 errhint("Run CHECKPOINT.")));
}

/*
 * A crash would recover from this redo pointer from now on.
 */
void
dw_forget_failed_removal(XLogRecPtr redo)
{
	DWLockMutex();
	if (redo >= DWCtl->removals.failed_until)
		DWCtl->removals.failed_batch = 0;
	DWUnlockMutex();
}

/* ---------------------------------------------------------------------
 * Notes of removals
 * ---------------------------------------------------------------------
 */

/*
 * Return whether what is removed must be durable when a checkpoint is.  It need not be
 * where redo begins with images, which do not care for what has come back.  A recovery
 * that is to use the log because WAL has none arms it when the first page is written;
 * what is removed before counts as well. (R5)
 */
bool
dw_removals_matter(void)
{
	return DWCtl->log.armed ||
		(dw_setting() == TORN_PAGES_FULL_PAGES && RecoveryInProgress() &&
		 !dw_replayed_images());
}

/*
 * Remember a file to be synced by the checkpoint under way or the next one.
 * If there is no room for it, sync it at once.  The removal is part of a transaction
 * that has committed, so an error is none of ours.
 */
static void
dw_remember_file(const RelFileLocator *rlocator, ForkNumber forknum, uint32 segno)
{
	DWDirtyFile file = {0};
	bool		noted = false;

	file.rlocator = *rlocator;
	file.forknum = forknum;
	file.segno = segno;

	LWLockAcquire(&DWCtl->removals.lock, LW_EXCLUSIVE);
	if (DWCtl->removals.nfiles < DW_REMOVED_FILES)
	{
		DWCtl->removals.files[DWCtl->removals.nfiles++] = file;
		noted = true;
	}
	LWLockRelease(&DWCtl->removals.lock);

	if (!noted && !dw_sync_file(&file, WARNING))
		DoubleWriteRemovalFailed();
}

/* The same for a directory; see dw_directory_path() */
static void
dw_remember_directory(const RelFileLocator *rlocator)
{
	bool		noted = false;

	LWLockAcquire(&DWCtl->removals.lock, LW_EXCLUSIVE);
	/* a sync under way may have come too early for this one */
	for (int i = DWCtl->removals.nsyncing_dirs; i < DWCtl->removals.ndirs && !noted; i++)
		noted = DWCtl->removals.dirs[i].spcOid == rlocator->spcOid &&
			DWCtl->removals.dirs[i].dbOid == rlocator->dbOid;
	if (!noted && DWCtl->removals.ndirs < DW_REMOVED_DIRS)
	{
		DWCtl->removals.dirs[DWCtl->removals.ndirs++] = *rlocator;
		noted = true;
	}
	LWLockRelease(&DWCtl->removals.lock);

	if (!noted && !dw_sync_directory(rlocator, WARNING))
		DoubleWriteRemovalFailed();
}

/*
 * The files of a relation have been unlinked, except the first segment of its
 * main fork, which may have been truncated only, to be unlinked after the next
 * checkpoint.
 */
void
DoubleWriteRememberUnlinked(RelFileLocatorBackend rlocator)
{
	if (!dw_removals_matter() || RelFileLocatorBackendIsTemp(rlocator))
		return;
	dw_remember_file(&rlocator.locator, MAIN_FORKNUM, 0);
	dw_remember_directory(&rlocator.locator);
	INJECTION_POINT("doublewrite-unlinked", NULL);
}

/*
 * The files of a fork have been truncated.
 */
void
DoubleWriteRememberTruncated(RelFileLocator rlocator, ForkNumber forknum,
							 BlockNumber old_nblocks, BlockNumber nblocks)
{
	if (old_nblocks <= nblocks || !dw_removals_matter())
		return;
	for (uint32 segno = nblocks / RELSEG_SIZE; segno <= old_nblocks / RELSEG_SIZE; segno++)
		dw_remember_file(&rlocator, forknum, segno);
}

/*
 * The directories of a database in these tablespaces have been removed. (R5)
 */
void
DoubleWriteRememberDatabaseRemoved(const Oid *tablespaces, int ntablespaces)
{
	for (int i = 0; i < ntablespaces && dw_removals_matter(); i++)
	{
		RelFileLocator databases = {tablespaces[i], InvalidOid, InvalidRelFileNumber};

		dw_remember_directory(&databases);
	}
	INJECTION_POINT("doublewrite-database-removed", NULL);
}

/* ---------------------------------------------------------------------
 * Making removals durable
 * ---------------------------------------------------------------------
 */

/*
 * Wait until all removals of a generation are done, to which no more are added.
 *
 * They may wait for this process, if it is the checkpointer: for room in its
 * queue of sync requests, or for its part in a barrier.
 */
static void
dw_wait_for_generation(uint32 generation)
{
	LWLock	   *lock = dw_removal_lock_of(generation);

	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	for (;;)
	{
		if (LWLockConditionalAcquire(lock, LW_EXCLUSIVE))
			break;
		if (AmCheckpointerProcess())
			AbsorbSyncRequests();
		if (ProcSignalBarrierPending)
			ProcessProcSignalBarrier();
		dw_wait_a_moment(DW_REMOVAL_WAIT_USEC, WAIT_EVENT_CHECKPOINT_DELAY_COMPLETE);
	}

	dw_remember_unended_removals(generation);
	LWLockRelease(lock);
}

/*
 * Wait until all removals that began before now are done.  Returns their
 * generation.
 */
static uint32
dw_wait_for_removals(void)
{
	static bool cut_short = false;
	uint32		generation;

	/* an error has ended a wait: only two generations can be told apart (R5) */
	if (cut_short)
		dw_wait_for_generation(pg_atomic_read_u32(&DWCtl->removals.generation) - 1);

	cut_short = true;
	generation = pg_atomic_fetch_add_u32(&DWCtl->removals.generation, 1);
	INJECTION_POINT("doublewrite-wait-for-removals", NULL);
	dw_wait_for_generation(generation);
	cut_short = false;
	return generation;
}

/*
 * Forget the oldest notes, and what was kept for removals of a generation, unless one
 * has failed.  Other notes may have been added behind them.
 */
static void
dw_forget_removals(int nfiles, int ndirs, uint32 generation)
{
	uint64		kept;
	bool		failed;

	Assert(nfiles <= DWCtl->removals.nfiles && ndirs <= DWCtl->removals.ndirs);

	DWLockMutex();
	kept = DWCtl->removals.first_batch[generation & 1];
	failed = kept != 0 && DWCtl->redo.last < DWCtl->removals.failed_until;
	if (failed && (DWCtl->removals.failed_batch == 0 || kept < DWCtl->removals.failed_batch))
		DWCtl->removals.failed_batch = kept;
	DWCtl->removals.first_batch[generation & 1] = 0;
	DWUnlockMutex();

	LWLockAcquire(&DWCtl->removals.lock, LW_EXCLUSIVE);
	DWCtl->removals.nfiles -= nfiles;
	memmove(DWCtl->removals.files, DWCtl->removals.files + nfiles,
			DWCtl->removals.nfiles * sizeof(DWDirtyFile));
	DWCtl->removals.ndirs -= ndirs;
	memmove(DWCtl->removals.dirs, DWCtl->removals.dirs + ndirs,
			DWCtl->removals.ndirs * sizeof(RelFileLocator));
	DWCtl->removals.nsyncing_dirs = 0;
	LWLockRelease(&DWCtl->removals.lock);

	/* lest the log become full of what a checkpoint frees */
	if (failed && IsUnderPostmaster)
		RequestCheckpoint(0);
}

/*
 * Make sure that what has been removed stays removed: when a checkpoint has
 * written and synced everything else (R5), and before copies of removed pages
 * may leave the log (R3).  Only the checkpointer does it, or a process that is
 * alone.
 */
void
dw_sync_removals(void)
{
	DWDirtyFile *files;
	RelFileLocator *dirs = palloc(sizeof(DWCtl->removals.dirs));
	int			nfiles;
	int			ndirs;
	uint32		generation = dw_wait_for_removals();

	Assert(AmCheckpointerProcess() || !IsUnderPostmaster);

	LWLockAcquire(&DWCtl->removals.lock, LW_EXCLUSIVE);
	nfiles = DWCtl->removals.nfiles;
	ndirs = DWCtl->removals.ndirs;
	memcpy(dirs, DWCtl->removals.dirs, ndirs * sizeof(RelFileLocator));
	DWCtl->removals.nsyncing_dirs = ndirs;
	LWLockRelease(&DWCtl->removals.lock);

	/* only this process takes them away */
	files = palloc_array(DWDirtyFile, nfiles);
	memcpy(files, DWCtl->removals.files, nfiles * sizeof(DWDirtyFile));

	dw_sync_files(files, nfiles);
	INJECTION_POINT("doublewrite-sync-removals", NULL);
	for (int i = 0; i < ndirs; i++)
		(void) dw_sync_directory(&dirs[i], ERROR);

	/* Not before: after an error they are for the next checkpoint (R11). */
	dw_forget_removals(nfiles, ndirs, generation);

	pfree(files);
	pfree(dirs);
}

/*
 * Wait until the log keeps nothing for pages that have been removed.  The
 * caller holds no lock that a remover may need.
 */
void
dw_settle_removals(void)
{
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));
	Assert(!LWLockHeldByMe(DoubleWriteSyncLock));

	while (dw_first_removed_batch() != PG_UINT64_MAX)
	{
		if (AmCheckpointerProcess() || !IsUnderPostmaster)
		{
			dw_sync_removals();
			continue;
		}
		dw_request_upkeep();
		/* the checkpointer will not come once the postmaster has gone */
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
						 WAIT_EVENT_CHECKPOINT_DELAY_COMPLETE);
		CHECK_FOR_INTERRUPTS();
	}
}
