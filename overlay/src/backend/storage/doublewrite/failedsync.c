/*-------------------------------------------------------------------------
 *
 * failedsync.c
 *	  Pages whose sync has failed are written anew.
 *
 * When a sync fails, the server stops with a PANIC, since what should have
 * become durable may be clean for the kernel or the device, and lost.  But it
 * can be read until the machine stops.  The recovery that follows finds such
 * a page as it was written.  Its LSN says that it needs no redo, so recovery
 * leaves it alone.  Then a checkpoint moves the redo pointer past the records
 * of the page, and a power cut brings the old page back.
 *
 * A page that has an image in WAL or a copy in the log is written again by
 * each recovery.  A page that was written atomically has neither.  So while
 * the log is in use, a PANIC leaves a note, and if there is one, redo marks
 * each page dirty that it would leave alone.  Those are all pages that have
 * changed since the redo pointer; what is older was durable when a checkpoint
 * moved it.  The note goes when the redo pointer has passed all that redo may
 * have left alone.  (R11)
 *
 * Any PANIC counts, since there are few others, and it does not matter what
 * could not be synced: a device with a cache of its own reports an error to
 * only one of the processes that want its contents to be durable.
 *
 * While a process is dying of a failed sync, another one may sync the same
 * file, and succeed.  So once a process has begun to report a PANIC, no
 * checkpoint completes, and no sync frees any part of the log.
 *
 * WAL that could not be synced can be read, too, and redo would bring pages
 * home that rely on it.  A segment is synced before the next one is begun, so
 * only the last one can be concerned.  If there is a note, that segment is
 * written again before redo. (R1)
 *
 * The note is not synced, as that would hold up the report of a device that
 * hangs.  If the note is lost with the power, what can be read is what is on
 * disk.
 *
 * The following is not covered: a reset of the machine right after, with a
 * device that keeps its power; a device that has no room for the note; a
 * process that is killed before it can say that its sync has failed; the free
 * space map, which is not protected (R2); bits of a visibility map that are
 * clear already, on a standby of a server whose WAL does not name the map's
 * block; files that SyncDataDirectory() fails to sync at a start, which it
 * only reports.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/failedsync.c
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
#include "common/file_perm.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "utils/injection_point.h"

/*
 * The note, and the name it gets when a start has seen it; the file is empty
 */
#define DW_FAILED_SYNC_FILE		DW_DIR "/sync_failed"
#define DW_FAILED_SYNC_SEEN		DW_FAILED_SYNC_FILE ".old"

/*
 * Leave a note that this process is about to PANIC.  It may hold any lock,
 * and be in a critical section.  errno is preserved.  Failing to leave the
 * note is not reported, because the PANIC itself is more important.
 */
void
DoubleWriteNotePanic(void)
{
	int			save_errno = errno;
	int			fd;

	/* the logger has detached from shared memory */
	if (DWCtl == NULL || MyBackendType == B_LOGGER || !DWCtl->log.armed)
		return;
	pg_atomic_write_membarrier_u32(&DWCtl->panicking, 1);

	fd = open(DW_FAILED_SYNC_FILE, O_WRONLY | O_CREAT | PG_BINARY, pg_file_create_mode);
	if (fd >= 0)
		close(fd);
	INJECTION_POINT("doublewrite-panic-noted", NULL);
	errno = save_errno;
}

/*
 * Stop here if a sync may have failed.  To be called by a process that has
 * synced files and is about to rely on that. (R5, R3)
 */
void
dw_refuse_failed_sync(void)
{
	if (pg_atomic_read_membarrier_u32(&DWCtl->panicking) != 0)
		ereport(PANIC,
				(errmsg("could not rely on files being synced because another process has stopped with a PANIC"),
				 errhint("See its message in the server log.")));
}

static bool
dw_file_exists(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 || errno != ENOENT;
}

/*
 * Return whether a segment of WAL has been begun.  One that waits to be used
 * still has the pages of another segment, or none.
 */
static bool
dw_wal_is_begun(TimeLineID tli, XLogSegNo segno)
{
	XLogPageHeaderData header;
	XLogRecPtr	start;
	char		path[MAXPGPATH];
	int			fd;
	bool		result;

	XLogFilePath(path, tli, segno, wal_segment_size);
	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, start);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
	{
		if (errno == ENOENT)
			return false;
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}
	result = read(fd, &header, sizeof(header)) == sizeof(header) &&
		header.xlp_magic == XLOG_PAGE_MAGIC && header.xlp_pageaddr == start;
	CloseTransientFile(fd);
	return result;
}

/*
 * Write the pages of a segment over themselves, up to the first one that is
 * no WAL.  Return false, with errno set, if that fails.
 */
static bool
dw_rewrite_wal_pages(int fd, XLogRecPtr start)
{
	PGAlignedXLogBlock block;

	for (off_t offset = 0; offset < wal_segment_size; offset += XLOG_BLCKSZ)
	{
		ssize_t		nread = pg_pread(fd, block.data, XLOG_BLCKSZ, offset);

		if (nread < 0)
			return false;
		if (nread < XLOG_BLCKSZ ||
			((XLogPageHeader) block.data)->xlp_pageaddr != start + offset)
			return true;

		errno = 0;
		if (pg_pwrite(fd, block.data, XLOG_BLCKSZ, offset) != XLOG_BLCKSZ)
		{
			/* if write didn't set errno, assume problem is no disk space */
			if (errno == 0)
				errno = ENOSPC;
			return false;
		}
	}
	return true;
}

static void
dw_rewrite_wal_segment(TimeLineID tli, XLogSegNo segno)
{
	XLogRecPtr	start;
	char		path[MAXPGPATH];
	int			fd;

	XLogFilePath(path, tli, segno, wal_segment_size);
	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, start);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0 || !dw_rewrite_wal_pages(fd, start) || pg_fsync(fd) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\" again: %m", path)));
	CloseTransientFile(fd);
}

/*
 * Write the WAL again that may have failed to be synced.
 */
static void
dw_rewrite_wal(void)
{
	DIR		   *dir = AllocateDir(XLOGDIR);
	struct dirent *de;

	while ((de = ReadDir(dir, XLOGDIR)) != NULL)
	{
		TimeLineID	tli;
		XLogSegNo	segno;

		if (!IsXLogFileName(de->d_name))
			continue;
		XLogFromFileName(de->d_name, &tli, &segno, wal_segment_size);
		if (dw_wal_is_begun(tli, segno) && !dw_wal_is_begun(tli, segno + 1))
			dw_rewrite_wal_segment(tli, segno);
	}
	FreeDir(dir);
	INJECTION_POINT("doublewrite-wal-rewritten", NULL);
}

/*
 * Look for the note of a failed sync since the redo pointer, and act on it.
 * For the startup process, once the directory of the log is known to be ours.
 *
 * The note is renamed, so that a note left from now on outlasts the next
 * checkpoint.
 */
void
dw_look_for_failed_sync(void)
{
	ControlFileData *control;
	bool		crc_ok;

	Assert(!DWCtl->started);

	if (dw_file_exists(DW_FAILED_SYNC_FILE) &&
		rename(DW_FAILED_SYNC_FILE, DW_FAILED_SYNC_SEEN) < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not rename file \"%s\" to \"%s\": %m",
						DW_FAILED_SYNC_FILE, DW_FAILED_SYNC_SEEN)));
	if (!dw_file_exists(DW_FAILED_SYNC_SEEN))
		return;

	/* for a standby it is known what is newer than any page at home */
	control = get_controlfile(DataDir, &crc_ok);
	if (control->state == DB_IN_ARCHIVE_RECOVERY ||
		control->state == DB_SHUTDOWNED_IN_RECOVERY)
		pg_atomic_write_u64(&DWCtl->rewrite_until, control->minRecoveryPoint);
	pfree(control);
	DWCtl->rewrite = true;
	dw_rewrite_wal();
	ereport(LOG,
			(errmsg("pages that redo leaves alone are written again because a process had stopped with a PANIC")));
}

/*
 * Remove notes that have been copied along with a backup: they are about a
 * server whose files these are not.
 */
void
dw_remove_failed_sync(void)
{
	(void) unlink(DW_FAILED_SYNC_FILE);
	(void) unlink(DW_FAILED_SYNC_SEEN);
}

/*
 * Note that redo leaves a page alone.  The caller holds an exclusive lock on
 * its buffer.
 */
void
DoubleWriteLeftByRedo(Buffer buffer)
{
	if (unlikely(DWCtl->rewrite))
		MarkBufferDirty(buffer);
}

/*
 * Recovery has ended, so redo leaves nothing alone from now on: remember up
 * to which position it may have done so.
 */
void
dw_bound_rewriting(void)
{
	if (DWCtl->rewrite)
		pg_atomic_write_u64(&DWCtl->rewrite_until, GetXLogInsertRecPtr());
}

/*
 * Remove the note if a crash would recover from this redo pointer from now
 * on, and redo has left nothing alone beyond it.  The redo pointer may be
 * that of a restartpoint that began long before, and ends after recovery.
 */
void
dw_forget_failed_sync(XLogRecPtr redo)
{
	if (!DWCtl->rewrite || redo < pg_atomic_read_u64(&DWCtl->rewrite_until))
		return;

	if (unlink(DW_FAILED_SYNC_SEEN) < 0 && errno != ENOENT)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", DW_FAILED_SYNC_SEEN)));
		return;
	}
	DWCtl->rewrite = false;
}
