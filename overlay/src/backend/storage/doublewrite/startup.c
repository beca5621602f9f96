/*-------------------------------------------------------------------------
 *
 * startup.c
 *	  Start-up: read the log and decide what to do with it.
 *
 * This runs before anything reads a relation page: before redo, before
 * unlogged relations are reset, before any connection (R8).  It finds the
 * newest complete batch, and from its low-water mark the live range, and
 * reads no more of the log than that.  Only the newest batch can be
 * incomplete; then none of its home writes had been started, and it is
 * ignored.  A hole or damage further down means that the storage has lost
 * what it had promised to keep: the start is refused with a message that says
 * where. (R9)  What is done is decided in src/common/doublewrite_scan.c, for
 * pg_doublewrite as well; the head of that file has the table.
 *
 * When all pages have been restored and synced, the log is made empty.
 * Otherwise, a later crash might put these copies over pages that were
 * written without the log.  With instant_recovery copies stay in the log until
 * their pages are needed; then it goes on as it is, and only headers are read.
 *
 * Restoring is refused if the log does not belong to the state that
 * pg_control describes, and a log that came along with a backup is discarded.
 * (R9)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/startup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/controldata_utils.h"
#include "common/doublewrite_scan.h"
#include "postmaster/startup.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"

/* Recovery must reach this LSN, as WAL was durable up to there; 0: no limit */
static XLogRecPtr dw_needed_wal = InvalidXLogRecPtr;

/* ---------------------------------------------------------------------
 * Reading the log
 * ---------------------------------------------------------------------
 */

/*
 * List the segments.  Remove left-over temporary files, and segments that earlier
 * versions have kept over a clean stop, with ".spare" behind their numbers.
 */
static void
dw_list_segments(DWScan *scan)
{
	DIR		   *dir = AllocateDir(DW_DIR);
	struct dirent *de;

	while ((de = ReadDir(dir, DW_DIR)) != NULL)
	{
		uint64		segno;

		if (strncmp(de->d_name, "new.", 4) == 0 ||
			strstr(de->d_name, ".spare") != NULL)
		{
			char		path[MAXPGPATH * 2];

			snprintf(path, sizeof(path), "%s/%s", DW_DIR, de->d_name);
			unlink(path);
			continue;
		}
		if (DWParseSegmentName(de->d_name, &segno))
			DWScanAddSegment(scan, segno);
	}
	FreeDir(dir);
}

/*
 * Read from a segment; leave alone the part of the buffer for which the file
 * is too short.  After an error, which need not be about the first block, read
 * block by block.  There are zeroes in place of blocks that cannot be read;
 * DWJudgeStart() decides whether any of them is needed.  (R9)
 */
static void
dw_read_range(DWScan *scan, int fd, const char *path, char *buffer, Size size,
			  off_t start)
{
	bool		by_block = false;
	Size		len = 0;
	int			nbad = 0;
	off_t		first_bad = 0;
	int			save_errno = 0;

	while (len < size)
	{
		Size		nbytes = by_block ? BLCKSZ - len % BLCKSZ : size - len;
		ssize_t		rc = -1;

		if (!dw_injected_error("doublewrite-log-read"))
			rc = pg_pread(fd, buffer + len, nbytes, start + len);
		if (rc == 0)
			break;
		if (rc < 0 && nbytes > BLCKSZ)
		{
			by_block = true;
			continue;
		}
		if (rc < 0)
		{
			if (nbad++ == 0)
			{
				save_errno = errno;
				first_bad = start + len;
			}
			memset(buffer + len, 0, nbytes);
			rc = nbytes;
		}
		len += rc;
	}

	scan->bytes_read += len;
	scan->unreadable += nbad;
	errno = save_errno;
	if (nbad > 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not read double-write log segment \"%s\" at offset %lld: %m",
						path, (long long) first_bad),
				 errdetail("Blocks that cannot be read: %d.  They count as damaged, which matters only if they are still needed.",
						   nbad)));
}

/*
 * Read blocks of a segment, as a callback of DWLookAtLog().
 */
static bool
dw_read_blocks(DWScan *scan, void *arg, uint64 segno, uint32 blockno,
			   uint32 nblocks, char *buffer)
{
	Size		size = (Size) nblocks * BLCKSZ;
	char		path[MAXPGPATH];
	int			fd;

	INJECTION_POINT("doublewrite-read-segment", NULL);
	if (AmStartupProcess())
		ProcessStartupProcInterrupts();
	ereport_startup_progress("reading the double-write log, elapsed time: %ld.%02d s, current segment: %016" PRIX64,
							 segno);

	dw_log_path(path, segno);
	fd = dw_open_for_reading(path);
	memset(buffer, 0, size);
	dw_read_range(scan, fd, path, buffer, size, (off_t) blockno * BLCKSZ);
	CloseTransientFile(fd);
	return true;
}

static void
dw_read_log(DWStart *start)
{
	char	   *buffer;

	dw_begin_progress();
	dw_list_segments(&start->scan);
	buffer = palloc_aligned(DW_SEGMENT_SIZE, PG_IO_ALIGN_SIZE, 0);
	DWLookAtLog(start, dw_read_blocks, NULL, buffer, false);
	pfree(buffer);
	if (start->live.ignored != NULL)
		ereport(LOG,
				(errmsg("ignoring batch %" PRIu64 " of the double-write log, which had not been completed",
						start->live.ignored->batchno)));
}

/*
 * Go on behind what has been found, whatever is done with it.
 */
static void
dw_remember_found(const DWStart *start)
{
	const DWScan *scan = &start->scan;
	const DWLiveRange *live = &start->live;

	DWCtl->restore.bytes_read = scan->bytes_read;
	if (scan->nsegments > 0)
		DWCtl->log.last_segno = scan->segments[scan->nsegments - 1].segno;
	if (scan->nbatches > 0)
		DWCtl->log.next_batchno = scan->batches[scan->nbatches - 1].batchno + 1;
	if (live->verdict == DW_LIVE_COMPLETE)
		dw_log_found(&scan->batches[live->first], &scan->batches[live->last]);
}

/* ---------------------------------------------------------------------
 * Start-up
 * ---------------------------------------------------------------------
 */

/*
 * Return whether copies may stay in the log until their pages are needed; see copies.c.
 *
 * Recovery must be that of a crash, at the end of which clients get in: on a standby base
 * backups read files, and clients get in before.  A crash while the checkpoint of a stop was
 * being made is one.  With wal_level = minimal relations are filled without WAL, which older
 * copies must not be put over.
 */
static bool
dw_copies_can_wait(const DWStart *start, const ControlFileData *control)
{
	struct stat st;

	return DoubleWriteRestoreOnDemand && IsUnderPostmaster &&
		start->label == DW_LABEL_MARKER && start->wanted && XLogIsNeeded() &&
		(control->state == DB_IN_PRODUCTION ||
		 control->state == DB_SHUTDOWNING ||
		 control->state == DB_IN_CRASH_RECOVERY) &&
		XLogRecPtrIsInvalid(control->minRecoveryPoint) &&
		stat(RECOVERY_SIGNAL_FILE, &st) != 0 &&
		stat(STANDBY_SIGNAL_FILE, &st) != 0;
}

/*
 * Do with the log what has been decided.
 *
 * If WAL has been lost since it was written, or the log is of another time than
 * the data, the start is refused before anything is changed, if that can be told
 * then.  Recovery looks again, at this start and at later ones, since all
 * batches carry the position on.
 */
static void
dw_deal_with_log(const DWStart *start, DWStartVerdict verdict)
{
	bool		marker = start->label == DW_LABEL_MARKER;

	Assert(DWIsFlusher());

	if (verdict == DW_START_RESTORE || (verdict == DW_START_NOTHING && marker))
		dw_needed_wal = DWCtl->log.wal_end;
	else
		DWCtl->log.wal_end = InvalidXLogRecPtr;
	switch (verdict)
	{
		case DW_START_DISCARD_BACKUP:
			dw_report_start(start, verdict, LOG);
			dw_remove_failed_sync();
			dw_remove_log();
			dw_remove_owner();
			return;
		case DW_START_RESTORE:
			if (dw_restore(&start->scan, &start->live, start->on_demand))
				dw_log_empty();
			break;
		case DW_START_DISCARD_STALE:
			dw_report_start(start, verdict, LOG);
			dw_log_empty();
			break;
		case DW_START_NOTHING:
			break;
		default:
			dw_report_start(start, verdict, FATAL);
	}
	if (!IsBootstrapProcessingMode())
		disable_startup_progress_timeout();

	/* left by a stop while arming or disarming */
	if (!marker)
		dw_remove_owner();
}

/*
 * Gather the facts, as far as they are needed, decide, and act.
 */
static void
dw_process_log(DWStart *start)
{
	bool		crc_ok;
	ControlFileData *control = get_controlfile(DataDir, &crc_ok);
	DWStartVerdict verdict;

	start->wanted = dw_setting_uses_log();
	DWLookAtCluster(start, control);
	start->on_demand = dw_copies_can_wait(start, control);
	dw_look_at_directory(start, false);
	verdict = DWJudgeStart(start);

	/* nothing is touched before we know which cluster it belongs to (R9) */
	if (verdict == DW_START_LEAVE_LOG && start->wanted)
	{
		dw_look_at_directory(start, true);
		verdict = DWJudgeStart(start);
	}
	if (verdict == DW_START_LEAVE_LOG)
	{
		if (start->dir != DW_DIR_MISSING)
			dw_report_start(start, verdict, LOG);
		return;
	}

	LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
	if (verdict == DW_START_READ_LOG)
	{
		dw_look_for_failed_sync();
		dw_read_log(start);
		dw_remember_found(start);
		verdict = DWJudgeStart(start);
	}
	dw_deal_with_log(start, verdict);
	LWLockRelease(DoubleWriteFlushLock);
	DWCtl->log.marker_known = start->label == DW_LABEL_MARKER;
}

/*
 * Restore from the log, or discard it.  Called once by the startup process,
 * before it looks at anything else; redo is the redo pointer in pg_control.
 */
void
DoubleWriteStartup(XLogRecPtr redo)
{
	MemoryContext context;
	MemoryContext oldcontext;

	Assert(AmStartupProcess() || !IsUnderPostmaster);
	Assert(!DWCtl->started);

	DWCtl->log.next_batchno = 1;
	DWCtl->log.last_segno = 0;
	DoubleWriteSetRedo(redo, false);
	dw_take_setting();

	context = AllocSetContextCreate(CurrentMemoryContext,
									"double-write restore",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	dw_process_log(palloc0_object(DWStart));
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Begin to protect what redo writes.  Redo is about to start, or there is
 * none: a backup label has been put aside, and pg_control names the redo
 * pointer that recovery starts from. (R2, R8)
 *
 * If the log was in use before, WAL since the redo pointer lacks images, so
 * the log is used again, whatever the settings say now. (R10)
 */
void
DoubleWriteStarted(void)
{
	if (DWCtl->started)
		return;
	DoubleWritePassedRedo(DWCtl->redo.last);
	if (DWCtl->log.marker_known || dw_setting_uses_log())
	{
		LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
		dw_arm();
		LWLockRelease(DoubleWriteFlushLock);
	}
	DWCtl->started = true;

	/* the checkpointer may not have done so yet */
	dw_show_setting();
	dw_publish_mode();
}

/*
 * Return the LSN that recovery must have reached to be consistent, as WAL was
 * durable up to there.
 */
XLogRecPtr
DoubleWriteNeededWal(void)
{
	return dw_needed_wal;
}

/*
 * Check that WAL, which ends here, reaches as far as the log needs, now that
 * recovery is over.
 */
void
DoubleWriteCheckEndOfWal(XLogRecPtr end)
{
	DWReason	reason;

	if (end >= dw_needed_wal)
		return;
	DWExplainLostWal(dw_needed_wal, end, &reason);
	dw_report(&reason, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, FATAL);
}
