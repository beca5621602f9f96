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
 * where. (R9)  These judgements are made in src/common/doublewrite_scan.c,
 * for pg_doublewrite as well.
 *
 * When all pages have been restored and synced, the log is made empty.
 * Otherwise, a later crash might put these copies over pages that were
 * written without the log.
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
#include "access/xlog_internal.h"
#include "catalog/pg_control.h"
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
 * List the segments in ascending order.  Remove left-over temporary files,
 * and spare segments if the log is not going to be used.
 */
static void
dw_list_segments(DWScan *scan, bool marker)
{
	bool		keep_spares = marker || dw_setting_uses_log();
	DIR		   *dir = AllocateDir(DW_DIR);
	struct dirent *de;

	while ((de = ReadDir(dir, DW_DIR)) != NULL)
	{
		uint64		segno;
		bool		usable;

		if (strncmp(de->d_name, "new.", 4) == 0 ||
			(!keep_spares && DWParseSpareName(de->d_name, &segno, &usable)))
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
 * Refuse a log of another format or cluster, as a batch header shows.
 */
static void
dw_refuse_header(const DWBatchHeader *hdr, DWHeaderVerdict verdict, uint64 segno)
{
	if (verdict == DW_HEADER_OTHER_FORMAT)
		ereport(FATAL,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("double-write log segment \"%s/%016" PRIX64 "\" has format version %u and block size %u, but this server knows only version %d and block size %d",
						DW_DIR, segno, hdr->version, hdr->blcksz,
						DW_FORMAT_VERSION, BLCKSZ),
				 errhint("Start the cluster with the server that wrote the log and shut it down cleanly.")));

	Assert(verdict == DW_HEADER_FOREIGN);
	ereport(FATAL,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the double-write log in \"%s\" belongs to another database cluster",
					DW_DIR),
			 errdetail("Its system identifier is %" PRIu64 ", that of this cluster %" PRIu64 ".",
					   hdr->sysid, GetSystemIdentifier()),
			 errhint("Check where \"%s\" points to.  If the files in it belong to no other cluster, remove them.",
					 DW_DIR)));
}

/*
 * Read from a segment; leave alone the part of the buffer for which the file
 * is too short.  Return the number of bytes read, or -1 with errno set.
 */
static ssize_t
dw_read_range(int fd, char *buffer, Size size, off_t offset)
{
	Size		len = 0;
	int			injected = 0;

	INJECTION_POINT("doublewrite-log-read", &injected);
	if (injected != 0)
	{
		errno = injected;
		return -1;
	}
	while (len < size)
	{
		ssize_t		rc = pg_pread(fd, buffer + len, size - len, offset + len);

		if (rc < 0)
			return -1;
		if (rc == 0)
			break;
		len += rc;
	}
	return len;
}

/*
 * Read the same block by block, with zeroes in place of blocks that cannot be
 * read.  DWFindLive() decides whether any of them is needed.  (R9)
 */
static ssize_t
dw_read_readable(int fd, const char *path, char *buffer, uint32 blockno,
				 uint32 nblocks)
{
	ssize_t		len = 0;
	int			nbad = 0;
	off_t		first_bad = 0;
	int			save_errno = 0;

	for (uint32 i = 0; i < nblocks; i++)
	{
		char	   *block = buffer + (Size) i * BLCKSZ;
		off_t		offset = (off_t) (blockno + i) * BLCKSZ;
		ssize_t		rc = dw_read_range(fd, block, BLCKSZ, offset);

		if (rc >= 0)
		{
			len += rc;
			continue;
		}
		memset(block, 0, BLCKSZ);
		if (nbad++ == 0)
		{
			save_errno = errno;
			first_bad = offset;
		}
	}

	errno = save_errno;
	if (nbad > 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not read double-write log segment \"%s\" at offset %lld: %m",
						path, (long long) first_bad),
				 errdetail("Blocks that cannot be read: %d.  They count as damaged, which matters only if they are still needed.",
						   nbad)));
	return len;
}

/*
 * Read blocks of a segment, as a callback of DWReadLog().
 */
static bool
dw_read_blocks(DWScan *scan, void *arg, uint64 segno, uint32 blockno,
			   uint32 nblocks, char *buffer)
{
	Size		size = (Size) nblocks * BLCKSZ;
	char		path[MAXPGPATH];
	ssize_t		len;
	int			fd;

	INJECTION_POINT("doublewrite-read-segment", NULL);
	if (AmStartupProcess())
		ProcessStartupProcInterrupts();
	ereport_startup_progress("reading the double-write log, elapsed time: %ld.%02d s, current segment: %016" PRIX64,
							 segno);

	dw_log_path(path, segno);
	fd = dw_open_for_reading(path);
	memset(buffer, 0, size);
	len = dw_read_range(fd, buffer, size, (off_t) blockno * BLCKSZ);
	if (len < 0)
		len = dw_read_readable(fd, path, buffer, blockno, nblocks);
	CloseTransientFile(fd);
	scan->bytes_read += len;
	return true;
}

static void
dw_read_log(DWScan *scan, bool marker)
{
	char	   *buffer;
	DWOwner		owner;
	DWOwner		own;

	dw_begin_progress();
	scan->sysid = GetSystemIdentifier();
	dw_log_read_owner(&owner, &own);
	if (owner.nonce != 0)
		DWScanAddNonce(scan, owner.nonce);
	dw_list_segments(scan, marker);
	buffer = palloc_aligned(DW_SEGMENT_SIZE, PG_IO_ALIGN_SIZE, 0);
	DWReadLog(scan, dw_read_blocks, NULL, buffer, false);
	pfree(buffer);
	if (scan->refused != DW_HEADER_NONE)
		dw_refuse_header(&scan->refused_header, scan->refused,
						 scan->refused_segno);
}

/* ---------------------------------------------------------------------
 * What to do with it
 * ---------------------------------------------------------------------
 */

/*
 * Refuse a log in which a batch or a page is damaged, or missing, below
 * intact ones.
 */
static void
dw_refuse_damage(const DWLiveRange *live)
{
	ereport(FATAL,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 live->verdict == DW_LIVE_MISSING ?
			 errmsg("double-write log is damaged: batch %" PRIu64 " is missing, though later batches are intact",
					live->bad_batchno) :
			 errmsg("double-write log is damaged: wrong checksum of a page in batch %" PRIu64 ", though later batches are intact",
					live->bad_batchno),
			 live->verdict == DW_LIVE_MISSING ?
			 errdetail("It should stand in file \"%s/%016" PRIX64 "\" at offset %u, or at the start of a later file.",
					   DW_DIR, live->bad_segno, live->bad_offset) :
			 errdetail("The page stands in file \"%s/%016" PRIX64 "\" at offset %u.",
					   DW_DIR, live->bad_segno, live->bad_offset),
			 errhint("Pages torn by the last crash cannot be repaired without it.  Check the storage, and restore the cluster from a backup or fail over to a standby.")));
}

/*
 * Refuse a log whose pages have to be restored, but cannot be decompressed by
 * this build.
 */
static void
dw_refuse_compression(const DWFoundBatch *batch)
{
	ereport(FATAL,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("double-write log was compressed with method \"%s\", which is not supported by this build",
					DWCompressionName(batch->compression)),
			 errdetail("Batch %" PRIu64 " stands in file \"%s/%016" PRIX64 "\" at offset %u.",
					   batch->batchno, DW_DIR, batch->segno,
					   batch->blockno * BLCKSZ),
			 errhint("Start the cluster with a server that supports it, and shut it down cleanly.")));
}

/*
 * Report that the log was written for another state of the cluster.
 */
static void
dw_report_stale(const DWFoundBatch *newest, XLogRecPtr redo, bool marker)
{
	ereport(marker ? FATAL : LOG,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the double-write log does not match the state of the cluster"),
			 errdetail("It was written for redo location %X/%X, but the control file names %X/%X.",
					   LSN_FORMAT_ARGS(newest->redo), LSN_FORMAT_ARGS(redo)),
			 marker ?
			 errhint("Bring together the data directory and the \"%s\" that belong together.  If the data directory is that of a base backup, restore the backup again, with its own file \"backup_label\"; removing files does not make it consistent.",
					 DW_DIR) :
			 errhint("It was not in use when the server stopped, and is discarded.")));
}

/*
 * Refuse a log that was in use, and is missing or has nothing in it.
 */
static void
dw_refuse_missing(void)
{
	ereport(FATAL,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the double-write log in \"%s\" is missing or unreadable", DW_DIR),
			 errdetail("The log was in use when the server stopped, and pages may have to be restored from it."),
			 errhint("Make its files available again, or restore the cluster from a backup.")));
}

/*
 * Refuse a log that fits as far as can be seen, but is, together with the
 * data, a copy that a backup tool has made of a running server.  (R9)
 */
static void
dw_refuse_copy(bool marker)
{
	DWOwner		owner;
	DWOwner		own;

	dw_log_read_owner(&owner, &own);
	if (DWIsCopy(&owner, &own, marker))
		ereport(FATAL,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this data directory is a copy of one whose double-write log was in use"),
				 errdetail("If its files were copied one by one while the server was running, they do not fit together, and the log does not make them."),
				 errhint("If this is a base backup, restore it again with its own file \"%s\".  Only if all files, including \"%s\", come from one atomic snapshot, or no server was running while they were copied, remove the file \"%s\".",
						 DW_MARKER_FILE, DW_DIR, DW_OWNER_FILE)));
}

/*
 * Refuse a log that was written when WAL was durable further than it now
 * reaches; end says where it ends, if that is known.
 */
static void
dw_refuse_newer_log(XLogRecPtr end)
{
	ereport(FATAL,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the double-write log is newer than the WAL of the cluster"),
			 XLogRecPtrIsInvalid(end) ?
			 errdetail("It holds pages with changes up to %X/%X, which WAL does not reach.  They have not been restored.",
					   LSN_FORMAT_ARGS(dw_needed_wal)) :
			 errdetail("It held pages with changes up to %X/%X, but WAL ends at %X/%X.",
					   LSN_FORMAT_ARGS(dw_needed_wal), LSN_FORMAT_ARGS(end)),
			 errhint("Bring together the data directory, its WAL and the \"%s\" that belong together.  If WAL has been lost, restore the cluster from a backup or fail over to a standby; removing files does not make it consistent.",
					 DW_DIR)));
}

/*
 * Refuse to start if WAL has been lost since the log was written, or the log
 * is of another time than the data.  This is before anything is changed, if
 * it can be told then.  Recovery looks again, at this start and at later
 * ones, since all batches carry the position on.
 */
static void
dw_check_wal(XLogRecPtr wal_end, XLogRecPtr redo)
{
	dw_needed_wal = wal_end;
	if (!DWWalReaches(wal_end, redo, wal_segment_size))
		dw_refuse_newer_log(InvalidXLogRecPtr);
}

/*
 * Read the log and do what DWJudgeLog() says.
 */
static void
dw_process_log(XLogRecPtr redo, bool marker)
{
	DWScan		scan = {0};
	DWLiveRange live;
	DWOutcome	outcome;
	MemoryContext context;
	MemoryContext oldcontext;

	Assert(DWIsFlusher());

	context = AllocSetContextCreate(CurrentMemoryContext,
									"double-write restore",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	dw_read_log(&scan, marker);
	DWFindLive(&scan, &live);
	if (live.ignored != NULL)
		ereport(LOG,
				(errmsg("ignoring batch %" PRIu64 " of the double-write log, which had not been completed",
						live.ignored->batchno)));

	if (scan.nsegments > 0)
		DWCtl->log.last_segno = scan.segments[scan.nsegments - 1].segno;
	DWCtl->restore.bytes_read = scan.bytes_read;
	if (scan.nbatches > 0)
		DWCtl->log.next_batchno = scan.batches[scan.nbatches - 1].batchno + 1;
	if (live.verdict == DW_LIVE_COMPLETE)
		dw_log_found(&scan.batches[live.first], &scan.batches[live.last]);

	outcome = DWJudgeLog(&scan, &live, redo, marker);
	if (outcome == DW_OUTCOME_RESTORE || outcome == DW_OUTCOME_NOTHING ||
		outcome == DW_OUTCOME_DISCARD_STALE)
		dw_refuse_copy(marker);
	if (outcome == DW_OUTCOME_RESTORE ||
		(outcome == DW_OUTCOME_NOTHING && marker))
		dw_check_wal(scan.batches[live.last].wal_end, redo);
	else
		DWCtl->log.wal_end = InvalidXLogRecPtr;
	switch (outcome)
	{
		case DW_OUTCOME_NOTHING:
			break;
		case DW_OUTCOME_RESTORE:
			dw_restore(&scan, &live);
			dw_log_empty();
			break;
		case DW_OUTCOME_DISCARD_STALE:
		case DW_OUTCOME_REFUSE_STALE:
			dw_report_stale(&scan.batches[live.last], redo, marker);
			dw_log_empty();
			break;
		case DW_OUTCOME_REFUSE_DAMAGED:
			dw_refuse_damage(&live);
			break;
		case DW_OUTCOME_REFUSE_MISSING:
			dw_refuse_missing();
			break;
		case DW_OUTCOME_REFUSE_COMPRESSION:
			dw_refuse_compression(live.unreadable);
			break;
	}
	if (!IsBootstrapProcessingMode())
		disable_startup_progress_timeout();

	/* left by a stop while arming or disarming */
	if (!marker)
		dw_remove_owner();
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Refuse a file "backup_label" that is neither a label nor our marker.  It
 * may be a remnant of the marker, so the log stays as it is.
 */
static void
dw_refuse_label(void)
{
	ereport(FATAL,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("invalid data in file \"%s\"", DW_MARKER_FILE),
			 errdetail("It is neither the label of a backup nor the file that says that the double-write log is in use.  The log is left alone."),
			 errhint("If this is a base backup, restore it again with its own file \"%s\".",
					 DW_MARKER_FILE)));
}

static bool
dw_recovery_from_backup(void)
{
	ControlFileData *control;
	bool		crc_ok;
	bool		result;

	control = get_controlfile(DataDir, &crc_ok);
	result = DWRecoveryFromBackup(control->state);
	pfree(control);
	return result;
}

/*
 * Refuse a marker that has come with a backup, over its label or instead of
 * it.  (R9)
 */
static void
dw_check_marker(void)
{
	if (dw_recovery_from_backup())
		ereport(FATAL,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("file \"%s\" is not the label of a backup", DW_MARKER_FILE),
				 errdetail("It says that the double-write log was in use, and may have been copied from a running server.  But recovery from a backup is asked for by a file \"%s\" or \"%s\".",
						   RECOVERY_SIGNAL_FILE, TABLESPACE_MAP),
				 errhint("Restore the backup again, with its own file \"%s\", and leave out that of the server.",
						 DW_MARKER_FILE)));
}

/*
 * Return whether there is a log to look at.  Throw an error if the log is in
 * use, or going to be used, and its directory cannot be, or is not ours.
 */
static bool
dw_check_log(DWLabel label)
{
	bool		marker = label == DW_LABEL_MARKER;
	struct stat st;

	if (marker || dw_setting_uses_log())
	{
		if (marker && lstat(DW_DIR, &st) < 0)
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not access double-write log directory \"%s\": %m",
							DW_DIR),
					 errdetail("The log was in use when the server stopped, and pages may have to be restored from it."),
					 errhint("Make the directory available again, or restore the cluster from a backup.")));
		return dw_log_check_dir(FATAL);
	}

	/* not in use: if others can access or own it, nothing in it concerns us */
	return stat(DW_DIR, &st) == 0 && dw_log_check_mode(LOG) &&
		dw_log_check_owner(LOG);
}

/* ---------------------------------------------------------------------
 * Start-up
 * ---------------------------------------------------------------------
 */

/*
 * Restore from the log, or discard it.  Called once by the startup process,
 * before it looks at anything else; redo is the redo pointer in pg_control.
 */
void
DoubleWriteStartup(XLogRecPtr redo)
{
	DWLabel		label = dw_read_label();

	Assert(AmStartupProcess() || !IsUnderPostmaster);
	Assert(!DWCtl->started);

	DWCtl->log.next_batchno = 1;
	DWCtl->log.last_segno = 0;
	DoubleWriteSetRedo(redo, false);
	dw_note_setting();

	/* nothing is touched before we know which cluster it belongs to (R9) */
	if (label == DW_LABEL_INVALID)
		dw_refuse_label();
	if (label == DW_LABEL_MARKER)
		dw_check_marker();
	if (!dw_check_log(label))
		return;

	LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
	if (label == DW_LABEL_BACKUP)
	{
		/*
		 * the files come from a backup, and so does the log, if there is one
		 * (R9)
		 */
		ereport(LOG,
				(errmsg("discarding the double-write log, because the cluster is being restored from a backup")));
		dw_remove_failed_sync();
		dw_remove_log();
	}
	else
	{
		dw_look_for_failed_sync();
		dw_process_log(redo, label == DW_LABEL_MARKER);
	}
	LWLockRelease(DoubleWriteFlushLock);

	DWCtl->log.marker_known = label == DW_LABEL_MARKER;
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
	dw_note_mode();
}

/*
 * Return the LSN that recovery must have reached to be consistent.
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
	if (end < dw_needed_wal)
		dw_refuse_newer_log(end);
}
