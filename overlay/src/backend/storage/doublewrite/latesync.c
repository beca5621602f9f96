/*-------------------------------------------------------------------------
 *
 * latesync.c
 *	  After a crash, relation files are synced by the first checkpoint.
 *
 * What a server had written but not synced when it crashed may still be in the
 * kernel's cache.  Redo goes by the LSN of what it reads and leaves such pages
 * alone, so they must be synced before a checkpoint moves the redo pointer past
 * their records.  SyncDataDirectory() syncs every file before anything else, and
 * everybody waits for that: a flush for each file, clean or not.
 *
 * But until the redo pointer moves, nothing is lost with them: if the power fails,
 * the next recovery begins at the same place, and redoes what they lack.  So
 * SyncDataDirectory() leaves out what lies below base, global and pg_tblspc, and the
 * checkpoint syncs it before its redo pointer is named by pg_control (R5).  WAL and
 * all else is synced as ever, as redo relies on it.
 *
 * That holds if all from before the redo pointer is on disk: a checkpoint of
 * the server that crashed has seen to it, unless these files are not those that it
 * wrote.  A copy of a data directory may be in the kernel's cache from end to
 * end.  So it is done only where the marker shows that a server of ours has
 * crashed on these very files (R9).
 *
 * Nobody waits for the checkpointer, so it takes its time: while it is ahead of its
 * schedule, or between two pages, it syncs a few files, and the rest when all pages
 * are home.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/latesync.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/file_utils.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "postmaster/bgwriter.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/* So long may the checkpointer sync files before it sleeps, in ms */
#define LATE_SYNC_SLICE			50

/* Files synced before the queue of sync requests is looked at */
#define LATE_SYNCS_PER_ABSORB	10

/* In the startup process: SyncDataDirectory() leaves relation files out. */
static bool leaving_out = false;

/*
 * In the process that syncs: paths, those of directories with a slash at the end;
 * the next one; and how long it has taken.
 */
static MemoryContext context = NULL;
static List *paths = NIL;
static int	next_path = 0;
static instr_time elapsed;

/*
 * SyncDataDirectory() is about to be called: leave relation files to the checkpoint
 * if we may.
 */
void
DoubleWriteLeaveSyncToCheckpoint(void)
{
	/* one call of syncfs() would do for a part of the files as for all */
	if (!enableFsync || !IsUnderPostmaster ||
		recovery_init_sync_method != DATA_DIR_SYNC_METHOD_FSYNC ||
		!dw_marker_is_original())
		return;

	leaving_out = true;
	pg_atomic_write_u32(&DWCtl->late_sync, 1);
}

/*
 * Is this file, or directory, left out by SyncDataDirectory()?
 */
bool
DoubleWriteIsSyncedLate(const char *path)
{
	static const char *const places[] = {"base", "global", PG_TBLSPC_DIR};

	if (!leaving_out)
		return false;
	if (strncmp(path, "./", 2) == 0)
		path += 2;
	for (int i = 0; i < lengthof(places); i++)
	{
		size_t		len = strlen(places[i]);

		if (strncmp(path, places[i], len) == 0 &&
			(path[len] == '/' || path[len] == '\0'))
			return true;
	}
	return false;
}

/*
 * Note all files below a directory, and itself.  What is dropped meanwhile is none of
 * our business.
 */
static void
late_list_directory(const char *path, bool follow_links)
{
	DIR		   *dir = AllocateDir(path);
	struct dirent *de;

	if (dir == NULL && errno == ENOENT)
		return;
	while ((de = ReadDirExtended(dir, path, ERROR)) != NULL)
	{
		char		subpath[MAXPGPATH * 2];

		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		snprintf(subpath, sizeof(subpath), "%s/%s", path, de->d_name);

		switch (get_dirent_type(subpath, de, follow_links, DEBUG1))
		{
			case PGFILETYPE_DIR:
				late_list_directory(subpath, false);
				break;
			case PGFILETYPE_REG:
			case PGFILETYPE_ERROR:	/* opening it will tell */
				paths = lappend(paths, pstrdup(subpath));
				break;
			default:
				break;
		}
	}
	FreeDir(dir);
	paths = lappend(paths, psprintf("%s/", path));
}

static void
late_list_files(void)
{
	MemoryContext oldcontext;

	/* an error may have left another one */
	if (context != NULL)
		MemoryContextDelete(context);
	paths = NIL;
	next_path = 0;
	INSTR_TIME_SET_ZERO(elapsed);

	context = AllocSetContextCreate(TopMemoryContext, "late sync of relation files",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	late_list_directory("base", false);
	late_list_directory("global", false);
	late_list_directory(PG_TBLSPC_DIR, true);
	MemoryContextSwitchTo(oldcontext);
}

static void
late_sync_path(const char *path)
{
	bool		isdir = path[strlen(path) - 1] == '/';
	int			fd;

	INJECTION_POINT("doublewrite-late-sync", NULL);

	fd = OpenTransientFile(path, PG_BINARY | (isdir ? O_RDONLY : O_RDWR));
	if (fd < 0)
	{
		/* dropped; what we cannot write to, we have not written; Windows */
		if (errno == ENOENT || errno == EACCES || errno == EPERM ||
			errno == EROFS || (isdir && errno == EISDIR))
			return;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_SYNC);
	/* some systems don't sync directories at all: see fsync_fname_ext() */
	if (pg_fsync(fd) != 0 && !(isdir && (errno == EBADF || errno == EINVAL)))
		ereport(data_sync_elevel(ERROR),
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", path)));
	pgstat_report_wait_end();
	if (CloseTransientFile(fd) != 0)
		ereport(data_sync_elevel(ERROR),
				(errcode_for_file_access(),
				 errmsg("could not close file \"%s\": %m", path)));
}

/*
 * Sync the next file.  If that fails, it stays the next one.
 */
static instr_time
late_sync_next(void)
{
	instr_time	start;
	instr_time	duration;

	INSTR_TIME_SET_CURRENT(start);
	late_sync_path(list_nth(paths, next_path));
	next_path++;
	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	INSTR_TIME_ADD(elapsed, duration);
	return duration;
}

static bool
late_sync_is_pending(void)
{
	return pg_atomic_read_u32(&DWCtl->late_sync) != 0;
}

/*
 * Called after each page that a checkpoint has written: sync a file, unless the last
 * one has only just been synced; or some of them, if it is going to sleep.
 */
void
DoubleWriteSyncSome(bool busy)
{
	static instr_time last_end;
	static double last_msec = 0;
	double		msec = 0;

	if (!late_sync_is_pending())
		return;
	if (busy && dw_msec_since(last_end) <= last_msec)
		return;

	if (context == NULL)
		late_list_files();
	while (next_path < list_length(paths) &&
		   msec <= (busy ? 0 : LATE_SYNC_SLICE))
	{
		instr_time	duration = late_sync_next();

		msec += INSTR_TIME_GET_MILLISEC(duration);
	}
	last_msec = msec;
	INSTR_TIME_SET_CURRENT(last_end);
}

/*
 * Sync what is left.  All that the server had written before the crash is on disk
 * then, so the redo pointer may move (R5).
 */
void
dw_complete_late_sync(void)
{
	if (!late_sync_is_pending())
		return;

	if (context == NULL)
		late_list_files();
	while (next_path < list_length(paths))
	{
		(void) late_sync_next();
		if (next_path % LATE_SYNCS_PER_ABSORB == 0)
			AbsorbSyncRequests();
	}

	if (log_checkpoints)
		ereport(LOG,
				(errmsg("relation files have been synced after the crash: %d files and directories, %.3f s",
						list_length(paths), INSTR_TIME_GET_DOUBLE(elapsed))));
	MemoryContextDelete(context);
	context = NULL;
	paths = NIL;
	pg_atomic_write_u32(&DWCtl->late_sync, 0);
}
