/*-------------------------------------------------------------------------
 *
 * restore.c
 *	  Start-up: mend torn pages from the double-write log.
 *
 * This runs before anything reads a relation page: before redo, before
 * unlogged relations are reset, before any connection (R8).  It reads the log
 * sequentially, finds the newest batch that is complete, and from its
 * low-water mark the live range.  Only the newest batch can be incomplete;
 * then none of its home writes had been started, and it is ignored.  A hole
 * or damage further down means that the storage has lost what it had
 * promised to keep: we stop and say where. (R9)
 *
 * Of each page, the copy that stands last in the live range is compared with
 * home and, where home differs, written over it (R4).  Redo then rolls the
 * page forward.  When all is synced the log is made empty, so that a later
 * crash, which may find pages that were written without the log, will not
 * put these copies back.
 *
 * Restoring depends neither on checksums nor on the settings in force.  It is
 * refused if the log does not belong to the state that pg_control describes,
 * and a log that came along with a backup is discarded. (R9)
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
#include "access/xlog_internal.h"
#include "catalog/pg_tablespace_d.h"
#include "portability/instr_time.h"
#include "postmaster/startup.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"

/* A batch whose header is intact */
typedef struct DWFoundBatch
{
	uint64		batchno;
	uint64		low_water;
	uint64		segno;
	uint32		blockno;
	uint32		npages;
	int			bad_page;		/* first page with a wrong checksum, or -1 */
	XLogRecPtr	redo;
	XLogRecPtr	redo_pending;
	DWPageEntry *entries;
} DWFoundBatch;

/* The copy of a page to restore */
typedef struct DWCopy
{
	DWPageEntry entry;
	uint64		segno;
	uint32		blockno;
	uint64		order;			/* position in the log */
} DWCopy;

typedef struct DWScan
{
	MemoryContext context;
	DWFoundBatch *batches;
	int			nbatches;
	int			maxbatches;
	uint64	   *segnos;
	int			nsegnos;
	uint64		bytes_read;
} DWScan;

static bool dw_was_armed = false;

/* ---------------------------------------------------------------------
 * Reading the log
 * ---------------------------------------------------------------------
 */

static int
dw_uint64_cmp(const void *a, const void *b)
{
	uint64		ua = *(const uint64 *) a;
	uint64		ub = *(const uint64 *) b;

	return ua < ub ? -1 : ua > ub;
}

/*
 * List the segments in ascending order, and remove left-over temporary files.
 */
static void
dw_list_segments(DWScan *scan)
{
	DIR		   *dir = AllocateDir(DW_DIR);
	struct dirent *de;
	int			max = 64;

	scan->segnos = palloc(max * sizeof(uint64));
	while ((de = ReadDir(dir, DW_DIR)) != NULL)
	{
		uint64		segno;

		if (strncmp(de->d_name, "new.", 4) == 0)
		{
			char		path[MAXPGPATH * 2];

			snprintf(path, sizeof(path), "%s/%s", DW_DIR, de->d_name);
			unlink(path);
			continue;
		}
		if (!dw_log_parse_name(de->d_name, &segno))
			continue;
		if (scan->nsegnos == max)
		{
			max *= 2;
			scan->segnos = repalloc(scan->segnos, max * sizeof(uint64));
		}
		scan->segnos[scan->nsegnos++] = segno;
	}
	FreeDir(dir);
	qsort(scan->segnos, scan->nsegnos, sizeof(uint64), dw_uint64_cmp);
}

/*
 * Does a valid batch header for this place stand here?
 */
static bool
dw_header_is_valid(const DWBatchHeader *hdr, uint64 segno, uint32 blockno)
{
	if (hdr->magic != DW_MAGIC)
		return false;
	if (hdr->version != DW_FORMAT_VERSION || hdr->blcksz != BLCKSZ)
	{
		/*
		 * Believe it only at the start of a segment: elsewhere it may be what
		 * is left of something torn.
		 */
		if (blockno == 0)
			ereport(FATAL,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("double-write log segment \"%s/%016" PRIX64 "\" has format version %u and block size %u, but this server knows only version %d and block size %d",
							DW_DIR, segno, hdr->version, hdr->blcksz,
							DW_FORMAT_VERSION, BLCKSZ),
					 errhint("Start the cluster with the server that wrote the log and shut it down cleanly.")));
		return false;
	}
	if (hdr->segno != segno || hdr->blockno != blockno ||
		hdr->npages > DW_MAX_BATCH_PAGES ||
		blockno + 1 + hdr->npages > DW_SEGMENT_BLOCKS ||
		hdr->crc != DWBatchHeaderChecksum(hdr))
		return false;
	if (hdr->sysid != GetSystemIdentifier())
		ereport(FATAL,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the double-write log in \"%s\" belongs to another database cluster",
						DW_DIR),
				 errdetail("Its system identifier is %" PRIu64 ", that of this cluster %" PRIu64 ".",
						   hdr->sysid, GetSystemIdentifier()),
				 errhint("Check where \"%s\" points to.  If the files in it belong to no other cluster, remove them.",
						 DW_DIR)));
	return true;
}

static void
dw_remember_batch(DWScan *scan, const DWBatchHeader *hdr)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(scan->context);
	DWFoundBatch *batch;
	const char *pages = (const char *) hdr + BLCKSZ;

	if (scan->nbatches == scan->maxbatches)
	{
		scan->maxbatches = Max(256, scan->maxbatches * 2);
		if (scan->batches == NULL)
			scan->batches = palloc(scan->maxbatches * sizeof(DWFoundBatch));
		else
			scan->batches = repalloc_huge(scan->batches,
										  scan->maxbatches * sizeof(DWFoundBatch));
	}

	batch = &scan->batches[scan->nbatches++];
	batch->batchno = hdr->batchno;
	batch->low_water = hdr->low_water;
	batch->segno = hdr->segno;
	batch->blockno = hdr->blockno;
	batch->npages = hdr->npages;
	batch->redo = hdr->redo;
	batch->redo_pending = hdr->redo_pending;
	batch->entries = palloc(Max(1, hdr->npages) * sizeof(DWPageEntry));
	memcpy(batch->entries, DWBatchEntries(hdr), hdr->npages * sizeof(DWPageEntry));

	batch->bad_page = -1;
	for (uint32 i = 0; i < hdr->npages && batch->bad_page < 0; i++)
	{
		if (DWPageChecksum(pages + (Size) i * BLCKSZ) != batch->entries[i].crc)
			batch->bad_page = i;
	}
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Read one segment and remember the batches in it.  Where no batch starts,
 * look at each following block, so that intact batches behind damage are
 * found.
 */
static void
dw_read_segment(DWScan *scan, uint64 segno, char *buffer)
{
	char		path[MAXPGPATH];
	int			fd;
	Size		len = 0;

	dw_log_path(path, segno);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not open double-write log segment \"%s\": %m", path)));

	memset(buffer, 0, DW_SEGMENT_SIZE);
	while (len < DW_SEGMENT_SIZE)
	{
		ssize_t		rc = pg_pread(fd, buffer + len, DW_SEGMENT_SIZE - len, len);

		if (rc < 0)
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not read double-write log segment \"%s\" at offset %zu: %m",
							path, len)));
		if (rc == 0)
			break;
		len += rc;
	}
	CloseTransientFile(fd);
	scan->bytes_read += len;

	for (uint32 blockno = 0; blockno < DW_SEGMENT_BLOCKS;)
	{
		const DWBatchHeader *hdr = (DWBatchHeader *) (buffer + (Size) blockno * BLCKSZ);

		if (dw_header_is_valid(hdr, segno, blockno))
		{
			dw_remember_batch(scan, hdr);
			blockno += 1 + hdr->npages;
		}
		else
			blockno++;
	}
}

/* by number; where a batch had to be written twice, the last one counts */
static int
dw_batch_cmp(const void *a, const void *b)
{
	const DWFoundBatch *ba = a;
	const DWFoundBatch *bb = b;

	if (ba->batchno != bb->batchno)
		return ba->batchno < bb->batchno ? -1 : 1;
	if (ba->segno != bb->segno)
		return ba->segno < bb->segno ? -1 : 1;
	return ba->blockno < bb->blockno ? -1 : ba->blockno > bb->blockno;
}

static void
dw_sort_batches(DWScan *scan)
{
	int			n = 0;

	if (scan->nbatches == 0)
		return;
	qsort(scan->batches, scan->nbatches, sizeof(DWFoundBatch), dw_batch_cmp);
	for (int i = 1; i < scan->nbatches; i++)
	{
		if (scan->batches[i].batchno != scan->batches[n].batchno)
			n++;
		scan->batches[n] = scan->batches[i];
	}
	scan->nbatches = n + 1;
}

static void
dw_read_log(DWScan *scan)
{
	char	   *buffer;

	dw_list_segments(scan);
	buffer = palloc_aligned(DW_SEGMENT_SIZE, PG_IO_ALIGN_SIZE, 0);
	for (int i = 0; i < scan->nsegnos; i++)
		dw_read_segment(scan, scan->segnos[i], buffer);
	pfree(buffer);
	dw_sort_batches(scan);
}

/* ---------------------------------------------------------------------
 * The live range
 * ---------------------------------------------------------------------
 */

/*
 * Complain that a batch is missing; before is the last intact one before it,
 * if any, and first_segno the first segment that exists.
 */
static void
dw_report_damage(const DWFoundBatch *before, uint64 first_segno, uint64 batchno)
{
	uint64		segno = before ? before->segno : first_segno;
	uint32		blockno = before ? before->blockno + 1 + before->npages : 0;

	ereport(FATAL,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("double-write log is damaged: batch %" PRIu64 " is missing, though later batches are intact",
					batchno),
			 errdetail("It should stand in file \"%s/%016" PRIX64 "\" at offset %u, or at the start of a later file.",
					   DW_DIR, segno, blockno * BLCKSZ),
			 errhint("Pages torn by the last crash cannot be repaired without it.  Check the storage, and restore the cluster from a backup or fail over to a standby.")));
}

/*
 * Find the live range of the log as indexes into scan->batches, and check
 * that it is complete.  Returns false if there is none.
 */
static bool
dw_find_live(DWScan *scan, int *first, int *last)
{
	const DWFoundBatch *newest;
	int			n = scan->nbatches;
	uint64		expected;

	/* a batch that was being written when the power went: not part of it */
	if (n > 0 && scan->batches[n - 1].bad_page >= 0)
	{
		ereport(LOG,
				(errmsg("ignoring batch %" PRIu64 " of the double-write log, which had not been completed",
						scan->batches[n - 1].batchno)));
		n--;
	}
	if (n == 0)
		return false;

	*last = n - 1;
	newest = &scan->batches[*last];

	*first = n;
	expected = newest->batchno;
	while (expected >= newest->low_water)
	{
		DWFoundBatch *batch = *first > 0 ? &scan->batches[*first - 1] : NULL;

		if (batch == NULL || batch->batchno != expected)
			dw_report_damage(batch, scan->segnos[0], expected);
		if (batch->bad_page >= 0)
			ereport(FATAL,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("double-write log is damaged: wrong checksum of a page in batch %" PRIu64 ", though later batches are intact",
							batch->batchno),
					 errdetail("The page stands in file \"%s/%016" PRIX64 "\" at offset %u.",
							   DW_DIR, batch->segno,
							   (batch->blockno + 1 + batch->bad_page) * BLCKSZ),
					 errhint("Pages torn by the last crash cannot be repaired without it.  Check the storage, and restore the cluster from a backup or fail over to a standby.")));
		(*first)--;
		expected--;
	}
	return *first <= *last;
}

static int
dw_copy_cmp(const void *a, const void *b)
{
	const DWCopy *ca = a;
	const DWCopy *cb = b;
	int			cmp = memcmp(&ca->entry.rlocator, &cb->entry.rlocator,
							 sizeof(RelFileLocator));

	if (cmp != 0)
		return cmp;
	if (ca->entry.forknum != cb->entry.forknum)
		return ca->entry.forknum < cb->entry.forknum ? -1 : 1;
	if (ca->entry.blkno != cb->entry.blkno)
		return ca->entry.blkno < cb->entry.blkno ? -1 : 1;
	return ca->order < cb->order ? -1 : ca->order > cb->order;
}

static bool
dw_same_page(const DWPageEntry *a, const DWPageEntry *b)
{
	return RelFileLocatorEquals(a->rlocator, b->rlocator) &&
		a->forknum == b->forknum && a->blkno == b->blkno;
}

/*
 * The newest copy of each page in the live range, sorted by page. (R4)
 */
static DWCopy *
dw_newest_copies(const DWScan *scan, int first, int last, int *ncopies)
{
	Size		total = 0;
	DWCopy	   *copies;
	int			n = 0;
	int			kept = 0;

	for (int i = first; i <= last; i++)
		total += scan->batches[i].npages;

	copies = MemoryContextAllocHuge(CurrentMemoryContext,
									Max(total, 1) * sizeof(DWCopy));
	for (int i = first; i <= last; i++)
	{
		const DWFoundBatch *batch = &scan->batches[i];

		for (uint32 p = 0; p < batch->npages; p++)
		{
			copies[n].entry = batch->entries[p];
			copies[n].segno = batch->segno;
			copies[n].blockno = batch->blockno + 1 + p;
			copies[n].order = n;
			n++;
		}
	}

	qsort(copies, n, sizeof(DWCopy), dw_copy_cmp);
	for (int i = 0; i < n; i++)
	{
		if (i + 1 < n && dw_same_page(&copies[i].entry, &copies[i + 1].entry))
			continue;
		copies[kept++] = copies[i];
	}
	*ncopies = kept;
	return copies;
}

/* ---------------------------------------------------------------------
 * Restoring pages
 * ---------------------------------------------------------------------
 */

static void
dw_read_copy(const DWCopy *copy, char *page)
{
	static int	fd = -1;
	static uint64 fd_segno = 0;
	char		path[MAXPGPATH];

	dw_log_path(path, copy->segno);
	if (fd >= 0 && fd_segno != copy->segno)
	{
		CloseTransientFile(fd);
		fd = -1;
	}
	if (fd < 0)
	{
		fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
		if (fd < 0)
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not open double-write log segment \"%s\": %m",
							path)));
		fd_segno = copy->segno;
	}

	if (pg_pread(fd, page, BLCKSZ, (off_t) copy->blockno * BLCKSZ) != BLCKSZ ||
		DWPageChecksum(page) != copy->entry.crc)
		ereport(FATAL,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not read page copy from double-write log segment \"%s\" at offset %u",
						path, copy->blockno * BLCKSZ)));
}

/*
 * A tablespace that is not mounted must not be taken for a dropped one.
 */
static void
dw_check_tablespace(Oid spcOid)
{
	char		path[MAXPGPATH];
	struct stat st;

	if (spcOid == DEFAULTTABLESPACE_OID || spcOid == GLOBALTABLESPACE_OID)
		return;
	snprintf(path, sizeof(path), "%s/%u", PG_TBLSPC_DIR, spcOid);
	if (lstat(path, &st) == 0 && stat(path, &st) < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not access tablespace directory \"%s\": %m", path),
				 errhint("Pages in it have to be restored from the double-write log.  Make sure that it is mounted.")));
}

/*
 * Put one copy home if home differs.  Where the file is gone, or does not
 * reach that far, the change of its size is what the crash has undone or
 * what redo will do again, and the page is redo's.
 */
static void
dw_restore_page(const DWCopy *copy, SMgrRelation reln, BlockNumber nblocks,
				DWRestoreStats *stats)
{
	static PGIOAlignedBlock logged;
	static PGIOAlignedBlock home;
	void	   *homep = home.data;
	const void *loggedp = logged.data;

	stats->examined++;
	if (copy->entry.blkno >= nblocks)
	{
		stats->missing++;
		return;
	}

	dw_read_copy(copy, logged.data);
	smgrreadv(reln, copy->entry.forknum, copy->entry.blkno, &homep, 1);
	if (memcmp(home.data, logged.data, BLCKSZ) == 0)
	{
		stats->identical++;
		return;
	}

	INJECTION_POINT("doublewrite-restore-page", NULL);
	smgrwritev(reln, copy->entry.forknum, copy->entry.blkno, &loggedp, 1, true);
	stats->restored++;
	ereport(DEBUG1,
			(errmsg_internal("restored block %u of relation \"%s\" from the double-write log, LSN %X/%X over %X/%X",
							 copy->entry.blkno,
							 relpathperm(copy->entry.rlocator, copy->entry.forknum).str,
							 LSN_FORMAT_ARGS(PageGetLSN((Page) logged.data)),
							 LSN_FORMAT_ARGS(PageGetLSN((Page) home.data)))));
}

/*
 * Restore all pages, fork by fork, and sync each fork.
 */
static void
dw_restore_pages(const DWCopy *copies, int ncopies, DWRestoreStats *stats)
{
	for (int i = 0; i < ncopies;)
	{
		const DWPageEntry *first = &copies[i].entry;
		SMgrRelation reln = smgropen(first->rlocator, INVALID_PROC_NUMBER);
		BlockNumber nblocks = 0;
		bool		exists;

		if (AmStartupProcess())
			ProcessStartupProcInterrupts();

		dw_check_tablespace(first->rlocator.spcOid);
		exists = smgrexists(reln, first->forknum);
		if (exists)
			nblocks = smgrnblocks(reln, first->forknum);

		for (; i < ncopies && copies[i].entry.forknum == first->forknum &&
			 RelFileLocatorEquals(copies[i].entry.rlocator, first->rlocator); i++)
			dw_restore_page(&copies[i], reln, nblocks, stats);

		if (exists)
			smgrimmedsync(reln, first->forknum);
	}
	smgrdestroyall();
	INJECTION_POINT("doublewrite-restored", NULL);
}

/* ---------------------------------------------------------------------
 * Start-up
 * ---------------------------------------------------------------------
 */

/*
 * The newest batch names the redo pointers that a crash could have started
 * from.  If pg_control names another one, something else has moved the
 * cluster on, or back, since the log was written. (R9)
 *
 * Without the marker the log was not in use when the server stopped; then it
 * is what a shutdown cut short has left, or another server has been started
 * meanwhile, and it is of no use.  With it we had better ask.
 */
static bool
dw_check_redo(const DWFoundBatch *newest, XLogRecPtr redo, bool marker)
{
	if (newest->redo == redo || newest->redo_pending == redo)
		return true;
	ereport(marker ? FATAL : LOG,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the double-write log does not match the state of the cluster"),
			 errdetail("It was written for redo location %X/%X, but the control file names %X/%X.",
					   LSN_FORMAT_ARGS(newest->redo), LSN_FORMAT_ARGS(redo)),
			 marker ?
			 errhint("If the data directory was restored without \"%s\", put the log of that time in its place.  To start without the log, though pages may be torn, remove the files in \"%s\" and the file \"backup_label\".",
					 DW_DIR, DW_DIR) :
			 errhint("It was not in use when the server stopped, and is discarded.")));
	return false;
}

static void
dw_report_restore(const DWRestoreStats *stats)
{
	ereport(LOG,
			(errmsg("double-write log: examined %" PRIu64 " pages in %" PRIu64 " batches, restored %" PRIu64 ", "
					"%" PRIu64 " identical, %" PRIu64 " beyond the end of their file; read %" PRIu64 " kB in %.3f s",
					stats->examined, stats->batches, stats->restored,
					stats->identical, stats->missing, stats->bytes_read / 1024,
					stats->usec / 1000000.0)));
}

/*
 * Make the live segments durable.  If only processes crashed, the newest batch
 * may be known to the kernel alone; should the power go while we write its
 * pages home, we need it again.
 */
static void
dw_sync_live_segments(const DWScan *scan, int first, int last)
{
	if (!enableFsync)
		return;
	for (int i = first; i <= last; i++)
	{
		char		path[MAXPGPATH];

		if (i > first && scan->batches[i].segno == scan->batches[i - 1].segno)
			continue;
		dw_log_path(path, scan->batches[i].segno);
		fsync_fname_ext(path, false, false, FATAL);
	}
	fsync_fname_ext(DW_DIR, true, false, FATAL);
}

static void
dw_restore(DWScan *scan, int first, int last)
{
	DWRestoreStats stats = {0};
	instr_time	start;
	instr_time	end;
	DWCopy	   *copies;
	int			ncopies;

	INSTR_TIME_SET_CURRENT(start);
	dw_sync_live_segments(scan, first, last);
	copies = dw_newest_copies(scan, first, last, &ncopies);
	dw_restore_pages(copies, ncopies, &stats);
	pfree(copies);
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);

	stats.done = true;
	stats.batches = last - first + 1;
	stats.bytes_read = scan->bytes_read;
	stats.usec = INSTR_TIME_GET_MICROSEC(end);
	DWCtl->restore = stats;
	dw_report_restore(&stats);
}

/*
 * Read the log and restore what is live in it.  Returns whether it has a live
 * range at all, be it an empty one.
 */
static bool
dw_process_log(XLogRecPtr redo, bool marker)
{
	DWScan		scan = {0};
	int			first;
	int			last;
	bool		live;
	uint64		npages = 0;

	scan.context = AllocSetContextCreate(CurrentMemoryContext,
										 "double-write restore",
										 ALLOCSET_DEFAULT_SIZES);
	dw_read_log(&scan);
	live = dw_find_live(&scan, &first, &last);

	if (scan.nsegnos > 0)
		DWCtl->last_segno = scan.segnos[scan.nsegnos - 1];
	if (scan.nbatches > 0)
		DWCtl->next_batchno = scan.batches[scan.nbatches - 1].batchno + 1;

	if (live)
	{
		for (int i = first; i <= last; i++)
			npages += scan.batches[i].npages;
	}
	if (npages > 0)
	{
		if (dw_check_redo(&scan.batches[last], redo, marker))
			dw_restore(&scan, first, last);
		dw_log_empty();
	}
	MemoryContextDelete(scan.context);
	return live;
}

/*
 * Restore the log, or discard it.  Called once by the startup process, before
 * it looks at anything else; redo is the redo pointer in pg_control.
 */
void
DoubleWriteStartup(XLogRecPtr redo)
{
	struct stat st;
	bool		marker = DoubleWriteMarkerPresent();
	bool		label = !marker && stat("backup_label", &st) == 0;
	bool		found = false;

	DWCtl->next_batchno = 1;
	DWCtl->last_segno = 0;
	DoubleWriteSetRedo(redo, false);

	if (marker || io_torn_pages_protection == TORN_PAGES_DOUBLE_WRITES)
	{
		if (marker && lstat(DW_DIR, &st) < 0)
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not access double-write log directory \"%s\": %m",
							DW_DIR),
					 errdetail("The log was in use when the server stopped, and pages may have to be restored from it."),
					 errhint("Make the directory available again, or restore the cluster from a backup.")));
		dw_log_check_dir(FATAL);
	}
	else if (stat(DW_DIR, &st) < 0)
		return;					/* not in use */

	LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
	if (label)
	{
		/* the files come from a backup, and so does the log, if any (R9) */
		ereport(LOG,
				(errmsg("discarding the double-write log, because the cluster is being restored from a backup")));
		dw_remove_segments(PG_UINT64_MAX);
	}
	else
		found = dw_process_log(redo, marker);
	LWLockRelease(DoubleWriteFlushLock);

	if (marker && !found)
		ereport(FATAL,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the double-write log in \"%s\" is missing or unreadable", DW_DIR),
				 errdetail("The log was in use when the server stopped, and pages may have to be restored from it."),
				 errhint("Make its files available again, or restore the cluster from a backup.")));

	dw_was_armed = marker;
}

/*
 * Redo is about to start, or there is none: a backup label has been put
 * aside, and pg_control names the redo pointer we start from.  Protect what
 * redo writes. (R2, R8)
 *
 * If the log was in use before, WAL since the redo pointer lacks images, so
 * it is used again, whatever the settings say now. (R10)
 */
void
DoubleWriteStarted(void)
{
	if (DWCtl->started)
		return;
	if (dw_was_armed || io_torn_pages_protection == TORN_PAGES_DOUBLE_WRITES)
	{
		LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
		dw_arm();
		LWLockRelease(DoubleWriteFlushLock);
	}
	DWCtl->started = true;
}
