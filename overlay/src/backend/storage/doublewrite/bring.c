/*-------------------------------------------------------------------------
 *
 * bring.c
 *	  Writing copies home that no process has needed.
 *
 * What copies.c remembers goes home from the log as in restore.c: it needs neither
 * a slot of the stage nor space in the log, so it helps if there is none of these.
 * The log has the copy until the file has been synced, since its batch holds the mark
 * (R3), and the file is in the table of dirty files from the start on.  So a home
 * write that is cut short does no harm (R2).
 *
 * Copies are taken while they are written.  So a newer version of a page is staged
 * after that, and goes home after that (R4); a removal waits for the write (R7);
 * and the mark, which sync cycles and checkpoints raise, does not pass it.  No lock of the
 * engine is held: a write that does not come back blocks the process that makes it, and
 * those that stage the page or remove it.  Others leave copies of its tablespace alone, as
 * these writes count like those of runs (dw_is_stalled()).
 *
 * A copy that cannot be written home is staged as a page that could not be, and dealt with
 * as such.  So it does not keep the log in use.  It stays where it is, and keeps the log
 * from there on, only if the stage has too many of these, or if it cannot be read. (R11)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/bring.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgwriter.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"

/* Copies that are announced to the kernel before the first of them is read */
#define DW_BRING_AHEAD	64

/* Copies on their way home, and the first one that could not be dealt with */
typedef struct DWBring
{
	DWPendingCopy *run[MAX_IO_COMBINE_LIMIT];	/* neighbours at home */
	int			nrun;
	PGIOAlignedBlock *pages;	/* of the run */
	DWPendingCopy *failed;		/* or NULL */
	bool		unwritten;		/* it has been read */
	int			error;			/* errno, or 0: it is damaged */
} DWBring;

static void
dw_remember_not_brought(DWBring *bring, DWPendingCopy *copy, bool unwritten, int error)
{
	if (bring->failed != NULL)
		return;
	bring->failed = copy;
	bring->unwritten = unwritten;
	bring->error = error;
}

static BufferTag
dw_tag_of_copy(const DWPendingCopy *copy)
{
	const DWPageEntry *entry = &copy->copy.entry;
	BufferTag	tag;

	InitBufferTag(&tag, &entry->rlocator, entry->forknum, entry->blkno);
	return tag;
}

/*
 * Return whether a copy goes home together with those of the run, of which there
 * may be none.
 */
static bool
dw_joins_run(const DWBring *bring, const DWPendingCopy *copy)
{
	const DWPageEntry *entry = &copy->copy.entry;
	const DWPageEntry *first;

	if (bring->nrun == 0)
		return true;
	first = &bring->run[0]->copy.entry;
	return bring->nrun < Min(io_combine_limit, MAX_IO_COMBINE_LIMIT) &&
		RelFileLocatorEquals(entry->rlocator, first->rlocator) &&
		entry->forknum == first->forknum &&
		entry->blkno == first->blkno + bring->nrun &&
		entry->blkno % RELSEG_SIZE != 0;
}

/*
 * Take a copy, waiting for a process that has it, unless writes there may not come back.
 */
static bool
dw_take_copy_to_bring(DWPendingCopy *copy)
{
	while (!dw_is_stalled(copy->copy.entry.rlocator.spcOid, false))
	{
		if (dw_try_take_copy(copy))
			return true;
		if (!dw_await_copy(copy))
			return false;
	}
	return false;
}

/*
 * Take the copies of the run from this one on, as far as no other process has one, and
 * return how many that are.  For the first one wait.
 */
static int
dw_take_run_to_bring(DWBring *bring, int from)
{
	int			n = 0;

	if (!dw_take_copy_to_bring(bring->run[from]))
		return 0;
	do
		n++;
	while (from + n < bring->nrun && dw_try_take_copy(bring->run[from + n]));
	return n;
}

/*
 * A copy that has been taken has been written home, or could not be, as the errno says.
 *
 * It is not staged in recovery, as redo of the removal of a database, which may only have been
 * moved, discards all that is staged of it.
 */
static void
dw_settle_copy(DWBring *bring, int i, int error)
{
	DWPendingCopy *copy = bring->run[i];
	BufferTag	tag = dw_tag_of_copy(copy);

	if (error == 0 ||
		(!RecoveryInProgress() &&
		 dw_stage_copy(&tag, bring->pages[i].data, copy->copy.batchno, error)))
		dw_copy_is_done(copy);
	else
	{
		dw_give_copy_back(copy);
		dw_remember_not_brought(bring, copy, true, error);
	}
}

/* Copies that are being written home */
typedef struct DWTakenRun
{
	DWBring    *bring;
	int			from;			/* in its run */
	int			n;
	uint64		begun;			/* in nanoseconds */
	int			error;			/* errno, or 0 when they are home */
} DWTakenRun;

static Oid
dw_tablespace_of_run(const DWTakenRun *run)
{
	return run->bring->run[run->from]->copy.entry.rlocator.spcOid;
}

/*
 * The write has ended, also with an error or the process.
 */
static void
dw_settle_taken(int code, Datum arg)
{
	DWTakenRun *run = (DWTakenRun *) DatumGetPointer(arg);
	Oid			spcOid = dw_tablespace_of_run(run);

	for (int i = 0; i < run->n; i++)
		dw_settle_copy(run->bring, run->from + i, run->error);
	dw_came_back(spcOid, dw_nanoseconds() - run->begun >= DW_STALLED_NSEC);
	dw_end_write(spcOid);
}

/*
 * Write copies that have been taken home.
 */
static void
dw_write_taken(DWBring *bring, SMgrRelation reln, int from, int n)
{
	const DWPageEntry *first = &bring->run[from]->copy.entry;
	const void *pages[MAX_IO_COMBINE_LIMIT];
	instr_time	start = pgstat_prepare_io_time(track_io_timing);
	DWTakenRun	run = {.bring = bring,.from = from,.n = n,.error = EIO};

	for (int i = 0; i < n; i++)
		pages[i] = bring->pages[from + i].data;
	run.begun = dw_nanoseconds();
	dw_begin_write(dw_tablespace_of_run(&run));
	PG_ENSURE_ERROR_CLEANUP(dw_settle_taken, PointerGetDatum(&run));
	{
		int			injected = 0;

		INJECTION_POINT("doublewrite-bring-write", &injected);
		run.error = injected != 0 ? injected :
			smgrtrywritev(reln, first->forknum, first->blkno, pages, n);
	}
	PG_END_ENSURE_ERROR_CLEANUP(dw_settle_taken, PointerGetDatum(&run));
	dw_settle_taken(0, PointerGetDatum(&run));
	if (run.error != 0)
		return;
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITE,
							start, 1, n * BLCKSZ);
	DWCount(home_pages, n);
	DWCount(home_writes, 1);
}

/*
 * Write the run home, except what other processes have brought there meanwhile, or staged.
 *
 * If a file is not there that is an error like others: what removes it has discarded its
 * copies, so it may come back, as in a tablespace that is not mounted.
 */
static void
dw_bring_run(DWBring *bring)
{
	SMgrRelation reln;

	if (bring->nrun == 0)
		return;
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));
	Assert(!LWLockHeldByMe(DoubleWriteRoomLock));

	reln = smgropen(bring->run[0]->copy.entry.rlocator, INVALID_PROC_NUMBER);
	for (int i = 0; i < bring->nrun;)
	{
		int			n = dw_take_run_to_bring(bring, i);

		/* what is taken must not stay so */
		HOLD_INTERRUPTS();
		if (n > 0)
			dw_write_taken(bring, reln, i, n);
		RESUME_INTERRUPTS();
		CHECK_FOR_INTERRUPTS();
		i += Max(n, 1);
	}
	bring->nrun = 0;
}

/*
 * Read a copy, and add it to the run, which is written home before if it ends here.
 */
static void
dw_bring_copy(DWBring *bring, DWPendingCopy *copy)
{
	if (!dw_joins_run(bring, copy))
		dw_bring_run(bring);
	if (dw_try_read_copy(copy, bring->pages[bring->nrun].data))
		bring->run[bring->nrun++] = copy;
	else
	{
		int			error = errno;

		dw_bring_run(bring);
		if (!dw_copy_is_past(copy))
			dw_remember_not_brought(bring, copy, false, error);
	}
}

/*
 * Write the copies of the scan home, except those of tablespaces that seem to be stalled.
 */
static void
dw_bring(DWBring *bring, DWCopyScan scan)
{
	DWCopyScan	ahead = scan;
	DWPendingCopy *copy;
	BufferTag	tag;
	int			nahead = 0;

	bring->pages = palloc_aligned(MAX_IO_COMBINE_LIMIT * sizeof(PGIOAlignedBlock),
								  PG_IO_ALIGN_SIZE, 0);
	while ((copy = dw_next_copy(&scan, &tag)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		AbsorbSyncRequests();
		for (; nahead < DW_BRING_AHEAD; nahead++)
		{
			BufferTag	other;
			DWPendingCopy *next = dw_next_copy(&ahead, &other);

			if (next == NULL)
				break;
			dw_announce_copy(next);
		}
		nahead -= nahead > 0;
		if (!dw_is_stalled(tag.spcOid, false))
			dw_bring_copy(bring, copy);
	}
	dw_bring_run(bring);
	pfree(bring->pages);
}

/*
 * Throw the error of a copy that can be neither written home nor staged.
 */
static void
dw_refuse_not_brought(const DWBring *bring)
{
	const DWPageEntry *page = &bring->failed->copy.entry;

	errno = bring->error;
	if (!bring->unwritten)
		dw_refuse_copy(bring->failed);
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not write block %u of relation \"%s\" from the double-write log: %m",
					page->blkno, relpathperm(page->rlocator, page->forknum).str),
			 bring->error == ENOSPC ? errhint("Check free disk space.") : 0));
}

/*
 * Write the copies of these pages home that are in the log only, all of which belong to
 * this relation, or NULL; those that cannot be written are staged.  On return the sync
 * requests of what is home are registered.  Throws an error if one can be neither brought
 * nor staged, when all others have been.  Waits if a write of one does not come back.
 */
void
dw_bring_copies(const DWPageSet *pages, const RelFileLocator *rlocator)
{
	DWCopyScan	all;

	dw_begin_copies(&all, pages, rlocator);
	for (;;)
	{
		DWBring		bring = {0};
		DWCopyScan	scan = all;
		BufferTag	tag;

		if (dw_next_copy(&scan, &tag) == NULL)
			return;
		dw_bring(&bring, all);
		if (bring.failed != NULL)
			dw_refuse_not_brought(&bring);
		dw_await_thaw();
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Bring the copies home that are in batches before this one only, lest they keep the log in
 * use, as far as possible.  Return whether none of them is left.
 */
bool
dw_bring_before(uint64 batchno)
{
	DWBring		bring = {0};
	DWCopyScan	scan;

	if (dw_first_pending_batch() >= batchno)
		return true;
	dw_begin_copies(&scan, &DWAllPages, NULL);
	scan.before = batchno;
	dw_bring(&bring, scan);
	return dw_first_pending_batch() >= batchno;
}

/*
 * Recovery cannot begin, as WAL has been lost.  So pg_resetwal is likely to be next, after
 * which the log is of no use: restore what has been left to recovery. (R8)
 */
void
DoubleWriteRecoveryFails(void)
{
	if (dw_copies_left() == 0)
		return;
	dw_bring_copies(&DWAllPages, NULL);
	Assert(!dw_pages_have_failed());	/* none is staged in recovery */
	dw_sync_dirty_files();
	ereport(LOG,
			(errmsg("double-write log: all pages have been restored, as recovery cannot begin")));
}

/*
 * Return whether there are copies that cannot be written home.  Then no checkpoint can
 * be made.
 */
bool
DoubleWriteHasStuckCopies(void)
{
	return !dw_bring_before(PG_UINT64_MAX) || (dw_had_copies() && dw_pages_have_failed());
}

/*
 * Give up the copy of a block, by the name that errors have, if it cannot be read, until the
 * next crash, or for ever if there is a checkpoint before.  Return whether that was so.
 */
bool
DoubleWriteGiveUpCopy(const char *relation, BlockNumber blkno)
{
	DWCopyScan	scan;
	DWPendingCopy *copy;
	BufferTag	tag;

	dw_begin_copies(&scan, &DWAllPages, NULL);
	while ((copy = dw_next_copy(&scan, &tag)) != NULL)
	{
		PGAlignedBlock page;
		bool		taken;

		if (tag.blockNum != blkno ||
			strcmp(relpathperm(BufTagGetRelFileLocator(&tag),
							   BufTagGetForkNum(&tag)).str, relation) != 0 ||
			dw_try_read_copy(copy, page.data) || !dw_copy_is_lost(errno))
			continue;

		/* home writes must not rely on it any more */
		dw_lock_flush(LW_EXCLUSIVE);
		taken = dw_try_take_copy(copy);
		if (taken)
		{
			dw_epoch_forget(&tag);
			dw_copy_is_done(copy);
			INJECTION_POINT("doublewrite-copy-given-up", NULL);
		}
		LWLockRelease(DoubleWriteFlushLock);
		return taken;
	}
	return false;
}
