/*-------------------------------------------------------------------------
 *
 * restore.c
 *	  Repairing torn pages from the double-write log.
 *
 * Of each page, the copy that stands last in the live range is written home
 * (R4), neighbouring pages in one call.  Redo then rolls the page forward.  A
 * page that has only notes gets a new checksum, if it is torn.
 *
 * The kernel reads homes ahead and begins to write while other homes are
 * read, so that the device has a full queue in both directions.  Files are
 * synced in groups.
 *
 * Restoring copies depends neither on checksums nor on the settings in force.
 * With instant_recovery most of them are left where they are: see copies.c, and
 * bring.c for those that no process has needed.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/restore.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/doublewrite_scan.h"
#include "common/file_utils.h"
#include "common/relpath.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/startup.h"
#include "storage/checksum.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/*
 * Blocks that are read without need if that makes one request out of two.  Up
 * to 64 kB cost most devices no more than another request does, and the
 * kernel's own read-ahead, which ours supersedes, would have read them, too.
 */
#define DW_PREFETCH_GAP			8

/*
 * Start writing to disk when this many pages are home: enough to let the
 * kernel combine and sort requests, and few enough that the device has
 * something to write from the beginning, while homes are being read.
 */
#define DW_WRITEBACK_PAGES		64

/*
 * Forks, and files of these, that are synced together.  These are enough to
 * keep the device busy with all of them, and few enough that the files stay
 * open from the first write to the sync, which is then sure to be told of a
 * write that has failed meanwhile.  (A single fork may have more files, as
 * everywhere.)
 */
#define DW_SYNC_FORKS			64
#define DW_SYNC_FILES			256

/* A restore under way */
typedef struct DWRestoreState
{
	DWRestoreStats stats;
	uint64		unfit;			/* pages that do not fit their notes */
	const DWPageEntry *first_unfit;
	char	   *logged;			/* copies of a run of pages */
	char	   *home;			/* these pages as they were at home */
	int			fd;				/* of the segment read last, or -1 */
	uint64		fd_segno;

	/* forks that exist and have to be synced */
	struct
	{
		SMgrRelation reln;
		ForkNumber	forknum;
	}			unsynced[DW_SYNC_FORKS];
	int			nunsynced;
	BlockNumber unsynced_files;
} DWRestoreState;

/* ---------------------------------------------------------------------
 * Copies
 * ---------------------------------------------------------------------
 */

/*
 * Open a segment.  Something of this name that is not a file might block us.
 */
int
dw_open_for_reading(const char *path)
{
	struct stat st;
	int			fd;

	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		ereport(FATAL,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("double-write log segment \"%s\" is not a regular file",
						path)));
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not open double-write log segment \"%s\": %m", path)));
	return fd;
}

static void
dw_close_copies(DWRestoreState *state)
{
	if (state->fd >= 0)
		CloseTransientFile(state->fd);
	state->fd = -1;
}

static void
dw_read_copy(DWRestoreState *state, const DWCopy *copy, char *page)
{
	char		path[MAXPGPATH];
	bool		intact;

	dw_log_path(path, copy->segno);
	if (state->fd_segno != copy->segno)
		dw_close_copies(state);
	if (state->fd < 0)
		state->fd = dw_open_for_reading(path);
	state->fd_segno = copy->segno;

	if (!DWReadCopy(state->fd, copy, page, &intact))
		ereport(FATAL,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 intact ?
				 errmsg("could not decompress page copy in double-write log segment \"%s\" at offset %u",
						path, copy->offset) :
				 errmsg("could not read page copy from double-write log segment \"%s\" at offset %u",
						path, copy->offset)));
}

/*
 * Write a batch over itself.  If its sync has failed, the kernel may have it
 * in memory as clean, and another sync would do nothing.  What is already on
 * disk does not change, so a crash meanwhile does no harm.
 */
static void
dw_rewrite_batch(const DWFoundBatch *batch)
{
	char		path[MAXPGPATH];
	PGIOAlignedBlock block;
	int			fd;

	dw_log_path(path, batch->segno);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	for (uint32 i = 0; i < batch->nblocks; i++)
	{
		off_t		offset = (off_t) (batch->blockno + i) * BLCKSZ;

		errno = 0;
		if (pg_pread(fd, block.data, BLCKSZ, offset) != BLCKSZ ||
			pg_pwrite(fd, block.data, BLCKSZ, offset) != BLCKSZ)
		{
			/*
			 * if errno is not set, assume that the problem is a lack of space
			 */
			if (errno == 0)
				errno = ENOSPC;
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not write file \"%s\" at offset %lld: %m",
							path, (long long) offset)));
		}
	}
	CloseTransientFile(fd);
}

/*
 * Make the live segments durable.  If only processes crashed, the newest
 * batch may be known to the kernel alone.  Should the power fail while we
 * write its pages home, we need it again.  Older batches were synced before
 * any newer one was written.  (R2)
 */
static void
dw_sync_live_segments(const DWScan *scan, const DWLiveRange *live)
{
	if (!enableFsync)
		return;
	dw_rewrite_batch(&scan->batches[live->last]);
	for (int i = live->first; i <= live->last; i++)
	{
		char		path[MAXPGPATH];

		if (i > live->first && scan->batches[i].segno == scan->batches[i - 1].segno)
			continue;
		dw_log_path(path, scan->batches[i].segno);
		fsync_fname_ext(path, false, false, FATAL);
	}
	fsync_fname_ext(DW_DIR, true, false, FATAL);
}

/* ---------------------------------------------------------------------
 * Pages
 * ---------------------------------------------------------------------
 */

/*
 * Stop if a tablespace is not mounted, as it must not be taken for a dropped
 * one.
 */
static void
dw_check_tablespace(Oid spcOid)
{
	char		path[MAXPGPATH];

	switch (DWJudgeTablespace(spcOid, path))
	{
		case DW_TABLESPACE_FINE:
			break;
		case DW_TABLESPACE_UNREACHABLE:
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not access tablespace directory \"%s\": %m", path),
					 errhint("Pages in it have to be restored from the double-write log.  Make sure that it is mounted.")));
			break;
		case DW_TABLESPACE_EMPTY:
			ereport(FATAL,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("tablespace directory \"%s\" has no subdirectory \"%s\"",
							path, TABLESPACE_VERSION_DIRECTORY),
					 errhint("Pages in it have to be restored from the double-write log.  Make sure that it is mounted.  If the tablespace was being dropped when the server stopped, remove the symbolic link.")));
			break;
	}
}

/*
 * Read homes for the sake of the counters, and to mend pages that have only
 * notes.  Return false, having reported why, if that fails; buffers that have
 * not been filled are left alone then.
 */
static bool
dw_try_read_homes(SMgrRelation reln, const DWPageEntry *first, void **home,
				  int npages)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	volatile bool done = false;

	PG_TRY();
	{
		if (dw_injected_error("doublewrite-restore-read-home"))
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read block %u of relation \"%s\": %m",
							first->blkno,
							relpathperm(first->rlocator, first->forknum).str)));
		smgrreadv(reln, first->forknum, first->blkno, home, npages);
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		/* the flush lock stays held */
		InterruptHoldoffCount = holdoff;
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		ereport(npages == 1 ? LOG : DEBUG1,
				(errcode(edata->sqlerrcode),
				 errmsg_internal("%s", edata->message),
				 DWIsNote(first) ?
				 errdetail("The double-write log has no copy of the page.") :
				 errdetail("The page is restored from the double-write log nevertheless.")));
		FreeErrorData(edata);
	}
	PG_END_TRY();
	return done;
}

/*
 * Read homes.  One that cannot be read counts as all zeroes.  A page with a
 * copy is about to be written, which is what makes a sector readable again.
 * (R8)  A page with only a note is left alone then, as zeroes do not fit the
 * note.
 */
static void
dw_read_homes(SMgrRelation reln, const DWCopy *copies, void **home, int npages)
{
	if (dw_try_read_homes(reln, &copies[0].entry, home, npages))
		return;
	for (int i = 0; i < npages; i++)
	{
		if (!dw_try_read_homes(reln, &copies[i].entry, &home[i], 1))
			memset(home[i], 0, BLCKSZ);
	}
}

/*
 * Count a page that has been written home.
 */
static void
dw_count_page(const DWCopy *copy, const char *logged, const char *home,
			  DWRestoreStats *stats)
{
	if (memcmp(home, logged, BLCKSZ) == 0)
	{
		stats->identical++;
		return;
	}
	stats->restored++;
	ereport(DEBUG1,
			(errmsg_internal("restored block %u of relation \"%s\" from the double-write log, LSN %X/%X over %X/%X",
							 copy->entry.blkno,
							 relpathperm(copy->entry.rlocator, copy->entry.forknum).str,
							 LSN_FORMAT_ARGS(PageGetLSN((const PageData *) logged)),
							 LSN_FORMAT_ARGS(PageGetLSN((const PageData *) home)))));
}

/*
 * Write a run of neighbouring pages home.
 *
 * A home that reads the same is written nevertheless.  The sync of that file
 * may have failed, which is why the server stopped.  Then the kernel still
 * has the page, but takes it for clean, and no later sync would bring it to
 * disk.  (R3, R11)
 */
static void
dw_restore_run(SMgrRelation reln, const DWCopy *copies, int npages,
			   DWRestoreState *state)
{
	const DWPageEntry *first = &copies[0].entry;
	const void *logged[MAX_IO_COMBINE_LIMIT];
	void	   *home[MAX_IO_COMBINE_LIMIT];

	for (int i = 0; i < npages; i++)
	{
		logged[i] = state->logged + (Size) i * BLCKSZ;
		home[i] = state->home + (Size) i * BLCKSZ;
		dw_read_copy(state, &copies[i], state->logged + (Size) i * BLCKSZ);
	}
	dw_read_homes(reln, copies, home, npages);
	INJECTION_POINT("doublewrite-restore-run", NULL);
	smgrwritev(reln, first->forknum, first->blkno, logged, npages, true);

	for (int i = 0; i < npages; i++)
		dw_count_page(&copies[i], logged[i], home[i], &state->stats);
}

/*
 * Correct a page that has only a note.  Return false if it is left alone.
 */
static bool
dw_mend_page(const DWCopy *copy, char *page, DWRestoreState *state)
{
	uint16		checksum;
	bool		torn;

	/* it has been added to its file again, or could not be read */
	if (PageIsNew((Page) page))
		return false;

	checksum = pg_checksum_page(page, copy->entry.blkno);
	torn = ((PageHeader) page)->pd_checksum != checksum;
	if (!DWMendPage(&copy->entry, page, checksum))
	{
		if (state->unfit++ == 0)
			state->first_unfit = &copy->entry;
		return false;
	}
	if (torn)
		state->stats.restored++;
	else
		state->stats.identical++;
	return true;
}

/*
 * Correct a run of neighbouring pages that have only notes.  Pages that are
 * correct already are written home, too, as in dw_restore_run(); others are
 * left to redo.
 */
static void
dw_mend_run(SMgrRelation reln, const DWCopy *copies, int npages,
			DWRestoreState *state)
{
	const DWPageEntry *first = &copies[0].entry;
	void	   *home[MAX_IO_COMBINE_LIMIT];
	int			start = 0;		/* first page to be written */

	for (int i = 0; i < npages; i++)
		home[i] = state->home + (Size) i * BLCKSZ;
	dw_read_homes(reln, copies, home, npages);

	for (int i = 0; i <= npages; i++)
	{
		if (i < npages && dw_mend_page(&copies[i], home[i], state))
			continue;
		if (i > start)
		{
			INJECTION_POINT("doublewrite-restore-run", NULL);
			smgrwritev(reln, first->forknum, first->blkno + start,
					   (const void **) home + start, i - start, true);
		}
		start = i + 1;
	}
}

/*
 * Return how many of these copies, which belong to one fork, are neighbours
 * at home and can be read and written together: all copies, or all notes.
 */
static int
dw_restore_run_length(SMgrRelation reln, const DWCopy *copies, int ncopies)
{
	const DWPageEntry *first = &copies[0].entry;
	int			limit = Min(ncopies, io_combine_limit);
	int			len = 1;

	limit = Min(limit, smgrmaxcombine(reln, first->forknum, first->blkno));
	while (len < limit && copies[len].entry.blkno == first->blkno + len &&
		   DWIsNote(&copies[len].entry) == DWIsNote(first))
		len++;
	return len;
}

/*
 * Have the kernel read the homes of some pages of one fork.
 */
static void
dw_prefetch_homes(SMgrRelation reln, const DWCopy *copies, int ncopies)
{
	int			last;

	for (int i = 0; i < ncopies; i = last + 1)
	{
		BlockNumber blkno = copies[i].entry.blkno;

		last = i;
		while (last + 1 < ncopies &&
			   copies[last + 1].entry.blkno - copies[last].entry.blkno - 1 <= DW_PREFETCH_GAP)
			last++;
		(void) smgrprefetch(reln, copies[i].entry.forknum, blkno,
							copies[last].entry.blkno - blkno + 1);
	}
}

/*
 * Have the kernel begin to write some pages of one fork to disk, which are
 * home.  That is only a hint; dw_sync_forks() makes them durable.  Where a
 * checkpoint does without such hints, because they do not suit the file
 * system, so do we.
 */
static void
dw_start_writes(SMgrRelation reln, const DWCopy *copies, int ncopies)
{
	const DWPageEntry *first = &copies[0].entry;
	BlockNumber nblocks = copies[ncopies - 1].entry.blkno - first->blkno + 1;

	if ((io_direct_flags & IO_DIRECT_DATA) != 0 || checkpoint_flush_after == 0)
		return;
	smgrwriteback(reln, first->forknum, first->blkno, nblocks);
	pgstat_count_io_op(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITEBACK,
					   ncopies, 0);
}

/*
 * Restore pages of one fork, all of which exist in its files.
 */
static void
dw_restore_runs(SMgrRelation reln, const DWCopy *copies, int ncopies,
				DWRestoreState *state)
{
	int			prefetched = 0;
	int			started = 0;
	int			run;

	for (int i = 0; i < ncopies; i += run)
	{
		int			distance = maintenance_io_concurrency;

		if (AmStartupProcess())
			ProcessStartupProcInterrupts();
		ereport_startup_progress("restoring pages from the double-write log, elapsed time: %ld.%02d s, pages done: %" PRIu64,
								 state->stats.restored + state->stats.identical);

		run = dw_restore_run_length(reln, copies + i, ncopies - i);

		/* several at a time, so that there is something to combine */
		prefetched = Max(prefetched, i + run);
		if (prefetched - (i + run) < (distance + 1) / 2 &&
			(io_direct_flags & IO_DIRECT_DATA) == 0)
		{
			int			target = Min(ncopies, i + run + distance);

			dw_prefetch_homes(reln, copies + prefetched, target - prefetched);
			prefetched = target;
		}
		if (DWIsNote(&copies[i].entry))
			dw_mend_run(reln, copies + i, run, state);
		else
			dw_restore_run(reln, copies + i, run, state);

		if (i + run - started >= DW_WRITEBACK_PAGES || i + run == ncopies)
		{
			dw_start_writes(reln, copies + started, i + run - started);
			started = i + run;
		}
	}
}

/*
 * Make the forks durable that have been restored since the last call.  This
 * includes forks to which nothing was written now, because a restore that was
 * cut short may have written something.  They are not looked up again, as
 * smgrexists() would close their files.
 */
static void
dw_sync_forks(DWRestoreState *state)
{
	for (int i = 0; i < state->nunsynced; i++)
	{
		if (AmStartupProcess())
			ProcessStartupProcInterrupts();

		smgrimmedsync(state->unsynced[i].reln, state->unsynced[i].forknum);
		/* smgrimmedsync() does not count by itself */
		pgstat_count_io_op(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_FSYNC, 1, 0);
	}
	if (state->nunsynced > 0)
		INJECTION_POINT("doublewrite-restore-group-synced", NULL);
	state->nunsynced = 0;
	state->unsynced_files = 0;
}

/*
 * Restore all pages of one fork, which dw_sync_forks() has to make durable.
 * If the file is gone, or does not reach that far, the crash has undone the
 * change of its size, or redo will do it again, and the page is left to redo.
 */
static void
dw_restore_fork(const DWCopy *copies, int ncopies, DWRestoreState *state)
{
	const DWPageEntry *first = &copies[0].entry;
	SMgrRelation reln = smgropen(first->rlocator, INVALID_PROC_NUMBER);
	int			npresent = 0;

	dw_check_tablespace(first->rlocator.spcOid);
	if (smgrexists(reln, first->forknum))
	{
		BlockNumber nblocks = smgrnblocks(reln, first->forknum);

		while (npresent < ncopies && copies[npresent].entry.blkno < nblocks)
			npresent++;
		dw_restore_runs(reln, copies, npresent, state);

		Assert(state->nunsynced < DW_SYNC_FORKS);
		state->unsynced[state->nunsynced].reln = reln;
		state->unsynced[state->nunsynced++].forknum = first->forknum;
		state->unsynced_files += nblocks / RELSEG_SIZE + 1;
	}
	state->stats.examined += ncopies;
	state->stats.missing += ncopies - npresent;
}

/*
 * Restore all pages, which are sorted.  Forks are synced together, so that
 * the device is busy with all of them, not with one after the other.  Until
 * all are synced the log stays as it is, and after a crash everything is
 * restored once more. (R8)
 */
static void
dw_restore_pages(const DWCopy *copies, int ncopies, DWRestoreState *state)
{
	int			len;

	for (int i = 0; i < ncopies; i += len)
	{
		len = DWForkLength(copies + i, ncopies - i);
		dw_restore_fork(copies + i, len, state);
		if (state->nunsynced == DW_SYNC_FORKS ||
			state->unsynced_files >= DW_SYNC_FILES)
			dw_sync_forks(state);
	}
	dw_sync_forks(state);
	smgrdestroyall();
	INJECTION_POINT("doublewrite-restored", NULL);
}

/* ---------------------------------------------------------------------
 * All of it
 * ---------------------------------------------------------------------
 */

/*
 * Let the startup process report its progress, as other phases of a start do.
 */
void
dw_begin_progress(void)
{
	if (!IsBootstrapProcessingMode())
		begin_startup_progress_phase();
}

static void
dw_report_unfit(const DWRestoreState *state)
{
	const DWPageEntry *first = state->first_unfit;

	if (state->unfit > 0)
		ereport(LOG,
				(errmsg("double-write log: left alone %" PRIu64 " pages that do not fit their notes, the first of them block %u of relation \"%s\"",
						state->unfit, first->blkno,
						relpathperm(first->rlocator, first->forknum).str),
				 errdetail("When they were noted, only hint bits had changed.  WAL replay rebuilds those that have been rewritten since; others are damaged.")));
}

static void
dw_report_restore(const DWRestoreStats *stats)
{
	ereport(LOG,
			(errmsg("double-write log: examined %" PRIu64 " pages in %" PRIu64 " batches, restored %" PRIu64 ", "
					"%" PRIu64 " identical, %" PRIu64 " beyond the end of their file, "
					"left %u in the log; "
					"read %" PRIu64 " kB in %.3f s",
					stats->examined, stats->batches, stats->restored,
					stats->identical, stats->missing, dw_copies_left(),
					stats->bytes_read / 1024, stats->usec / 1000000.0)));
}

/*
 * Return whether a copy, or note, has to be restored now: a note, since it takes home to
 * make anything of it; that of an init fork, which is copied without regard to the stage;
 * and what there is no room for.
 */
static bool
dw_cannot_wait(const DWPageEntry *entry)
{
	return DWIsNote(entry) || entry->forknum == INIT_FORKNUM ||
		!dw_has_room_for_copy() || dw_dirty_files_full(1);
}

/*
 * Restore copies of one fork when their pages are needed, if there are such pages at
 * home; see dw_restore_fork().  Return how many have to be restored now, which move to
 * the front.
 */
static int
dw_leave_fork(DWCopy *copies, int ncopies, DWRestoreState *state)
{
	const DWPageEntry *first = &copies[0].entry;
	SMgrRelation reln = smgropen(first->rlocator, INVALID_PROC_NUMBER);
	BlockNumber nblocks = 0;
	int			nnow = 0;

	ProcessStartupProcInterrupts();
	dw_check_tablespace(first->rlocator.spcOid);
	if (smgrexists(reln, first->forknum))
		nblocks = smgrnblocks(reln, first->forknum);
	for (int i = 0; i < ncopies; i++)
	{
		BufferTag	tag;

		if (dw_cannot_wait(&copies[i].entry))
		{
			copies[nnow++] = copies[i];
			continue;
		}
		state->stats.examined++;
		if (copies[i].entry.blkno >= nblocks)
		{
			state->stats.missing++;
			continue;
		}
		InitBufferTag(&tag, &first->rlocator, first->forknum, copies[i].entry.blkno);
		dw_dirty_file(&tag, copies[i].batchno);
		dw_epoch_remember(&tag, copies[i].batchno);
		dw_add_copy(&copies[i]);
	}
	return nnow;
}

/*
 * The same for all copies.
 */
static int
dw_leave_copies(DWCopy *copies, int ncopies, DWRestoreState *state)
{
	int			nnow = 0;
	int			len;

	for (int i = 0; i < ncopies; i += len)
	{
		int			n;

		len = DWForkLength(copies + i, ncopies - i);
		n = dw_leave_fork(copies + i, len, state);
		memmove(copies + nnow, copies + i, n * sizeof(DWCopy));
		nnow += n;
	}
	return nnow;
}

/*
 * Restore what is in the log.  Return whether that is complete: if "on_demand", it may be
 * that pages are restored only when they are needed.
 */
bool
dw_restore(const DWScan *scan, const DWLiveRange *live, bool on_demand)
{
	DWRestoreState state = {0};
	instr_time	start;
	instr_time	end;
	DWCopy	   *copies;
	int			ncopies;

	Assert(DWIsFlusher());
	Assert(!DWCtl->started);

	INSTR_TIME_SET_CURRENT(start);
	dw_sync_live_segments(scan, live);
	copies = DWNewestCopies(scan, live, &ncopies);
	/* not for io_combine_limit pages, as that may change meanwhile */
	state.logged = palloc_aligned(MAX_IO_COMBINE_LIMIT * BLCKSZ,
								  PG_IO_ALIGN_SIZE, 0);
	state.home = palloc_aligned(MAX_IO_COMBINE_LIMIT * BLCKSZ,
								PG_IO_ALIGN_SIZE, 0);
	state.fd = -1;
	dw_begin_progress();
	if (on_demand && dw_log_continue(scan, live))
		ncopies = dw_leave_copies(copies, ncopies, &state);
	dw_restore_pages(copies, ncopies, &state);
	dw_close_copies(&state);
	dw_report_unfit(&state);
	pfree(state.home);
	pfree(state.logged);
	pfree(copies);
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);

	state.stats.done = true;
	state.stats.finished = GetCurrentTimestamp();
	state.stats.batches = live->last - live->first + 1;
	state.stats.bytes_read = scan->bytes_read;
	state.stats.usec = INSTR_TIME_GET_MICROSEC(end);
	DWCtl->restore = state.stats;
	dw_report_restore(&state.stats);
	if (dw_copies_left() == 0)
		return true;
	ereport(LOG,
			(errmsg("double-write log: %u pages are restored when they are needed",
					dw_copies_left())));
	return false;
}
