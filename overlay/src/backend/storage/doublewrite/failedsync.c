/*-------------------------------------------------------------------------
 *
 * failedsync.c
 *	  Pages whose sync has failed are written anew.
 *
 * When a sync fails, the server stops with a PANIC, since what should have become
 * durable may be clean for the kernel or the device, and lost.  But it can be read until
 * the machine stops.  The recovery that follows finds such a page as it was written,
 * and as its LSN says that it needs no redo, leaves it alone.  Then a checkpoint
 * moves the redo pointer past the records of the page, and a power cut brings the
 * old page back.
 *
 * A page that has an image in WAL or a copy in the log is written again by each recovery.
 * One that was written atomically has neither.  So a PANIC leaves a note, and if there is
 * one, redo marks each page dirty that it would leave alone.  Those are all that have
 * changed since the redo pointer; what is older was durable when a checkpoint moved
 * it.  The note goes when a checkpoint has completed after recovery. (R11)
 *
 * Any PANIC counts, since there are few others, and it does not matter what could not be synced:
 * an error of a device, which has a cache of its own, is told to but one of those who
 * want its contents to be durable.  Nor does the mode.  Where a copy is restored as well,
 * the page is written twice.
 *
 * While a process is dying of a failed sync, another one may sync the same
 * file, and succeed.  So no checkpoint completes meanwhile.
 *
 * If the note is lost with the power, what can be read is what is on disk.  It is synced
 * all the same, as well as that goes: a machine can be reset while its storage has power.
 *
 * Left out: the free space map, which is not protected (R2); bits of a visibility map that
 * are clear already, on a standby of a server whose WAL does not name the map's block;
 * and what SyncDataDirectory() fails to sync at a start, which it only reports.
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

/* The note, and its name since a start has seen it; empty */
#define DW_FAILED_SYNC_FILE		DW_DIR "/sync_failed"
#define DW_FAILED_SYNC_SEEN		DW_FAILED_SYNC_FILE ".old"

/*
 * This process is about to PANIC.  It may hold any lock, and be in a critical section.
 * Leaves errno alone.  That no note can be left is not worth a message: there is one
 * already, of what is worse.
 */
void
DoubleWriteNotePanic(void)
{
	int			save_errno = errno;
	int			fd;

	/* before that, nothing has been taken for durable */
	if (DWCtl == NULL || !DWCtl->started)
		return;
	pg_atomic_write_membarrier_u32(&DWCtl->panicking, 1);

	fd = open(DW_FAILED_SYNC_FILE, O_WRONLY | O_CREAT | PG_BINARY, pg_file_create_mode);
	if (fd >= 0)
	{
		/* not pg_fsync(), which does nothing with fsync = off */
		(void) fsync(fd);
		close(fd);
	}
	INJECTION_POINT("doublewrite-panic-noted", NULL);
	errno = save_errno;
}

/*
 * The redo pointer must not move if a sync may have failed.  For who is about to
 * complete a checkpoint.
 */
void
dw_refuse_failed_sync(void)
{
	if (pg_atomic_read_membarrier_u32(&DWCtl->panicking) != 0)
		ereport(PANIC,
				(errmsg("could not complete the checkpoint because another process has stopped with a PANIC"),
				 errhint("See its message in the server log.")));
}

static bool
dw_file_exists(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 || errno != ENOENT;
}

/*
 * Has a sync failed since the redo pointer?  For the startup process, once the
 * directory of the log is known to be ours.
 *
 * The note is renamed, so that one that is left from now on outlasts the next checkpoint.
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

	/* where it is known, no page at home is newer than that */
	control = get_controlfile(DataDir, &crc_ok);
	DWCtl->rewrite_until = control->minRecoveryPoint;
	pfree(control);
	DWCtl->rewrite = true;
	ereport(LOG,
			(errmsg("pages that redo leaves alone are written again because a process had stopped with a PANIC")));
}

/*
 * Redo leaves a page alone, whose buffer is locked exclusively.
 */
void
DoubleWriteLeftByRedo(Buffer buffer)
{
	if (unlikely(DWCtl->rewrite))
		MarkBufferDirty(buffer);
}

/*
 * A checkpoint has completed, from whose redo pointer a crash would recover now.
 * During recovery there may be pages beyond it that redo has not come to.
 */
void
dw_forget_failed_sync(XLogRecPtr redo)
{
	if (!DWCtl->rewrite)
		return;
	if (RecoveryInProgress() &&
		(XLogRecPtrIsInvalid(DWCtl->rewrite_until) || redo < DWCtl->rewrite_until))
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
