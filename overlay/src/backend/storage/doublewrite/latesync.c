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
 * SyncDataDirectory() leaves files of relations out, and the checkpoint syncs
 * them before its redo pointer is named by pg_control (R5), as does a stop, or a start
 * with protection switched off, before the marker goes.  All else is synced at the
 * start as ever: WAL, pg_control, and directories, since a file that is gone may have
 * had copies in the log, which restore is about to free (R3).
 *
 * It matters for pages that were written atomically.  Those that have copies in the
 * log are synced by restore, and redo rebuilds those that need none.
 *
 * That holds if all from before the redo pointer is on disk.  A checkpoint of
 * the server that crashed has seen to it, but not for files that are copies,
 * which may be in the kernel's cache from end to end.  So it is done only where
 * the marker shows that a server of ours has crashed in this very data directory
 * (R9), and for a tablespace that nobody has touched since the marker was
 * written.  If fsync was off meanwhile, nothing is known to be on disk until
 * somebody has synced it all, as the documentation of fsync demands; and no more
 * than that can be said of files which somebody has put into a directory by hand.
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

#include <ctype.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/file_utils.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "postmaster/bgwriter.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/procsignal.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/* So long may the checkpointer sync files before it sleeps, in ms */
#define LATE_SYNC_SLICE			50

/* Files synced before the checkpointer attends to other things */
#define LATE_SYNCS_PER_ABSORB	10

/* In the startup process: SyncDataDirectory() leaves relation files out. */
static bool leaving_out = false;
static time_t marker_time;

/*
 * In the process that syncs: files, or NULL if they have not been listed; the next
 * one; and how long it has taken.
 */
static MemoryContext context = NULL;
static List *files = NIL;
static int	next_file = 0;
static instr_time elapsed;

/*
 * SyncDataDirectory() is about to be called: leave relation files to the checkpoint
 * if we may.
 */
void
DoubleWriteLeaveSyncToCheckpoint(void)
{
	struct stat st;

	/* one call of syncfs() would do for a part of the files as for all */
	if (!enableFsync || !IsUnderPostmaster ||
		recovery_init_sync_method != DATA_DIR_SYNC_METHOD_FSYNC ||
		!dw_marker_is_original() || stat(DW_MARKER_FILE, &st) < 0)
		return;

	marker_time = st.st_ctime;
	leaving_out = true;
	pg_atomic_write_u32(&DWCtl->late_sync, 1);
}

/*
 * Has nobody replaced the tablespace since the marker was written?  Its link would
 * be newer then, or the directory that is linked to.
 */
static bool
late_tablespace_is_original(const char *path)
{
	struct stat st;
	char		inside[MAXPGPATH];
	int			len = strspn(path + strlen(PG_TBLSPC_DIR) + 1, "0123456789") +
		strlen(PG_TBLSPC_DIR) + 1;

	snprintf(inside, sizeof(inside), "%.*s", len, path);
	if (lstat(inside, &st) < 0 || st.st_ctime >= marker_time)
		return false;
	snprintf(inside, sizeof(inside), "%.*s/%s", len, path, TABLESPACE_VERSION_DIRECTORY);
	return stat(inside, &st) == 0 && st.st_ctime < marker_time;
}

static bool
late_begins_with(const char *path, const char *directory)
{
	size_t		len = strlen(directory);

	return strncmp(path, directory, len) == 0 && path[len] == '/';
}

/*
 * Is this file, no directory, left out by SyncDataDirectory()?
 */
bool
DoubleWriteIsSyncedLate(const char *path)
{
	const char *name = last_dir_separator(path);

	/* not pg_control and its like, nor temporary files */
	if (!leaving_out || name == NULL || !isdigit((unsigned char) name[1]))
		return false;
	if (strncmp(path, "./", 2) == 0)
		path += 2;
	if (late_begins_with(path, "base") || late_begins_with(path, "global"))
		return true;
	return late_begins_with(path, PG_TBLSPC_DIR) &&
		strstr(path, "/" TABLESPACE_VERSION_DIRECTORY "/") != NULL &&
		late_tablespace_is_original(path);
}

/*
 * List the relation files below a directory.  What has been dropped meanwhile is none
 * of our business, and what we cannot read we have not written.
 */
static List *
late_list_directory(List *list, const char *path)
{
	DIR		   *dir = AllocateDir(path);
	struct dirent *de;

	if (dir == NULL && (errno == ENOENT || errno == EACCES || errno == EPERM))
		return list;
	while ((de = ReadDirExtended(dir, path, ERROR)) != NULL)
	{
		char		subpath[MAXPGPATH * 2];

		if (!isdigit((unsigned char) de->d_name[0]))
			continue;
		snprintf(subpath, sizeof(subpath), "%s/%s", path, de->d_name);

		switch (get_dirent_type(subpath, de, false, DEBUG1))
		{
			case PGFILETYPE_DIR:
				list = late_list_directory(list, subpath);
				break;
			case PGFILETYPE_REG:
			case PGFILETYPE_ERROR:	/* opening it will tell */
				list = lappend(list, pstrdup(subpath));
				break;
			default:
				break;
		}
	}
	FreeDir(dir);
	return list;
}

static List *
late_list_tablespaces(List *list)
{
	DIR		   *dir = AllocateDir(PG_TBLSPC_DIR);
	struct dirent *de;

	while ((de = ReadDirExtended(dir, PG_TBLSPC_DIR, ERROR)) != NULL)
	{
		char		path[MAXPGPATH * 2];

		if (!isdigit((unsigned char) de->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "%s/%s/%s", PG_TBLSPC_DIR, de->d_name,
				 TABLESPACE_VERSION_DIRECTORY);
		list = late_list_directory(list, path);
	}
	FreeDir(dir);
	return list;
}

/*
 * List all files that may have been left out, unless that has been done.  If it
 * fails, nothing has.
 */
static void
late_list_files(void)
{
	MemoryContext listing;
	MemoryContext oldcontext;
	List	   *list = NIL;

	if (context != NULL)
		return;

	listing = AllocSetContextCreate(CurrentMemoryContext,
									"late sync of relation files",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(listing);
	list = late_list_directory(list, "base");
	list = late_list_directory(list, "global");
	INJECTION_POINT("doublewrite-late-sync-listing", NULL);
	list = late_list_tablespaces(list);
	MemoryContextSwitchTo(oldcontext);

	MemoryContextSetParent(listing, TopMemoryContext);
	context = listing;
	files = list;
	next_file = 0;
	INSTR_TIME_SET_ZERO(elapsed);
}

static void
late_sync_file(const char *path)
{
	int			fd;

	INJECTION_POINT("doublewrite-late-sync", NULL);

	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
	{
		/* dropped, or nothing that we can have written to */
		if (errno == ENOENT || errno == EACCES || errno == EPERM || errno == EROFS)
			return;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_SYNC);
	if (pg_fsync(fd) != 0)
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
	late_sync_file(list_nth(files, next_file));
	next_file++;
	INSTR_TIME_SET_CURRENT(duration);
	INSTR_TIME_SUBTRACT(duration, start);
	INSTR_TIME_ADD(elapsed, duration);
	return duration;
}

/*
 * Are there files to be synced?  While fsync is off that is put off.
 */
static bool
late_sync_is_pending(void)
{
	return pg_atomic_read_u32(&DWCtl->late_sync) != 0 && enableFsync;
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

	late_list_files();
	while (next_file < list_length(files) &&
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

	late_list_files();
	while (next_file < list_length(files))
	{
		(void) late_sync_next();
		if (next_file % LATE_SYNCS_PER_ABSORB == 0)
		{
			/* what the checkpointer owes others meanwhile */
			AbsorbSyncRequests();
			if (ProcSignalBarrierPending)
				ProcessProcSignalBarrier();
		}
	}

	if (log_checkpoints)
		ereport(LOG,
				(errmsg("relation files have been synced after the crash: %d files, %.3f s",
						list_length(files), INSTR_TIME_GET_DOUBLE(elapsed))));
	MemoryContextDelete(context);
	context = NULL;
	files = NIL;
	pg_atomic_write_u32(&DWCtl->late_sync, 0);
}
