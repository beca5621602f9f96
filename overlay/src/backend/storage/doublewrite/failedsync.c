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
 * A sync that fails at the start after a crash is only reported, as stock
 * does not rely on it.  It leaves a note as well.
 *
 * While a process is dying of a failed sync, another one may sync the same
 * file, and succeed.  So once a process has begun to report a PANIC, no
 * checkpoint completes, and no sync frees any part of the log.
 *
 * WAL needs no note: its end is written again by each recovery from a crash,
 * see xlogrewrite.c.
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
 * block.
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

static void
dw_leave_note(void)
{
	int			fd = open(DW_FAILED_SYNC_FILE, O_WRONLY | O_CREAT | PG_BINARY, pg_file_create_mode);

	if (fd >= 0)
		close(fd);
}

/*
 * Leave a note that this process is about to PANIC.  It may hold any lock,
 * and be in a critical section.  errno is preserved.  Failing to leave the
 * note is not reported, because the PANIC itself is more important.
 */
void
DoubleWriteRememberPanic(void)
{
	int			save_errno = errno;

	/* the logger has detached from shared memory */
	if (DWCtl == NULL || MyBackendType == B_LOGGER || !DWCtl->log.armed)
		return;
	pg_atomic_write_membarrier_u32(&DWCtl->panicking, 1);

	dw_leave_note();
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
 * Leave a note that a start after a crash could not sync something, which it
 * only reports.  The log need not be in place yet, and no lock is held.
 */
void
DoubleWriteRememberFailedSync(void)
{
	if (dw_file_exists(DW_MARKER_FILE))
		dw_leave_note();
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
	ereport(LOG,
			(errmsg("pages that redo leaves alone are written again because a sync may have failed")));
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
