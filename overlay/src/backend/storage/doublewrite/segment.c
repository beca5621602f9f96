/*-------------------------------------------------------------------------
 *
 * segment.c
 *	  Segment files of the double-write log.
 *
 * The log is a chain of files of one size, whose numbers only rise.  Files
 * that hold nothing live are renamed to become future segments. (R3)  This
 * file knows which segments there are and where the next batch goes, but not
 * what is in a batch.
 *
 * No failure in here is the end of the log.  If no segment can be made, for
 * whatever reason, the batch waits until a sync cycle has freed one.  A place
 * that cannot be written is skipped.  A name that cannot be made durable, or
 * a segment that cannot be renamed, is tried again.  (R11)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/segment.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/file_perm.h"
#include "common/file_utils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_iovec.h"
#include "portability/instr_time.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"

/*
 * Segments are filled in advance if writes of the log have fewer blocks than
 * this.  A segment that is not filled costs a commit of the file system's
 * journal with each sync, but only once; filling costs as much bandwidth as
 * the segment.  On storage that does 1500 requests and 60 MB a second,
 * filling takes as long as 50 commits of two requests, one for each 10
 * blocks.  On faster storage it is fewer.
 */
#define DW_FILL_BELOW			16

/* File descriptor of the segment this process wrote to last */
static int	dw_fd = -1;
static uint64 dw_fd_segno = 0;

/*
 * Whether the log is written past the kernel's cache.  Nothing reads it before
 * the next start, and its pages in the cache would have to be copied there, and
 * drive others out.  False once the file system has refused it.
 */
static bool dw_direct = true;

void
dw_close_segment(void)
{
	if (dw_fd >= 0)
	{
		close(dw_fd);
		ReleaseExternalFD();
	}
	dw_fd = -1;
}

static int
dw_open_file(const char *path, bool direct)
{
	if (direct && dw_injected_error("doublewrite-open-direct"))
		return -1;
	return BasicOpenFile(path, O_RDWR | O_CLOEXEC | PG_BINARY |
						 (direct ? PG_O_DIRECT : 0));
}

/*
 * Open a segment for writing.  Return false, with errno set, if that fails.
 */
bool
dw_open_segment(uint64 segno)
{
	char		path[MAXPGPATH];

	Assert(DWIsFlusher());

	if (dw_fd >= 0 && dw_fd_segno == segno)
		return true;
	dw_close_segment();

	dw_log_path(path, segno);
	dw_fd = dw_open_file(path, dw_direct);
	if (dw_fd < 0 && errno == EINVAL && dw_direct)
	{
		dw_direct = false;
		dw_fd = dw_open_file(path, false);
	}
	if (dw_fd < 0)
		return false;
	ReserveExternalFD();
	dw_fd_segno = segno;
	return true;
}

/* ---------------------------------------------------------------------
 * Creating
 * ---------------------------------------------------------------------
 */

/*
 * Give the name of the file that this process prepares to become a segment.
 */
static void
dw_new_path(char *path)
{
	snprintf(path, MAXPGPATH, "%s/new.%d", DW_DIR, (int) getpid());
}

/*
 * Rename a file of the log.  Return false, with errno set, if that fails.
 */
static bool
dw_rename_file(const char *path, const char *newpath)
{
	int			save_errno;

	if (!dw_injected_error("doublewrite-rename-segment") && rename(path, newpath) == 0)
		return true;
	save_errno = errno;
	ereport(LOG_SERVER_ONLY,
			(errcode_for_file_access(),
			 errmsg("could not rename file \"%s\" to \"%s\": %m",
					path, newpath)));
	errno = save_errno;
	return false;
}

/*
 * Make the names of segments durable, which they must be before a batch in
 * one of them counts. (R3)  If that fails, return false, with errno set; the
 * next batch has to try it again.  As elsewhere, a failed sync is a PANIC.
 */
static bool
dw_sync_names(void)
{
	int			save_errno;
	int			fd;

	Assert(DWIsFlusher());

	if (!DWCtl->log.names_changed || !enableFsync)
		return true;

	fd = OpenTransientFile(DW_DIR, O_RDONLY | PG_BINARY);
	if (dw_injected_error("doublewrite-names-sync") || fd < 0 ||
		(pg_fsync(fd) != 0 && errno != EBADF && errno != EINVAL))
	{
		save_errno = errno;
		ereport(fd < 0 ? LOG_SERVER_ONLY : dw_sync_elevel(LOG_SERVER_ONLY),
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", DW_DIR)));
		if (fd >= 0)
			CloseTransientFile(fd);
		errno = save_errno;
		return false;
	}
	CloseTransientFile(fd);
	DWCtl->log.names_changed = false;
	return true;
}

/*
 * Make a file for a segment, durable except for its name.  Return false, with
 * errno set, if that fails, most likely for lack of space.
 *
 * If the file is filled with zeroes, a sync of what is written to it need not
 * wait for the file system's own journal.  Filling takes time, and on a
 * device with limited bandwidth as much as what is going to be written.
 */
static bool
dw_make_segment(const char *path, bool fill)
{
	File		file;
	int			rc;
	int			save_errno;

	unlink(path);
	file = PathNameOpenFile(path, O_RDWR | O_CREAT | O_EXCL | PG_BINARY);
	if (file < 0)
		return false;

	if (fill)
		rc = FileZero(file, 0, DW_SEGMENT_SIZE, WAIT_EVENT_DOUBLE_WRITE_INIT);
	else
		rc = FileFallocate(file, 0, DW_SEGMENT_SIZE, WAIT_EVENT_DOUBLE_WRITE_INIT);
	if (dw_injected_error("doublewrite-create-segment"))
		rc = -1;
	save_errno = errno;
	if (rc >= 0 && FileSync(file, WAIT_EVENT_DOUBLE_WRITE_INIT) != 0)
	{
		rc = -1;
		save_errno = errno;
	}

	FileClose(file);
	if (rc < 0)
	{
		unlink(path);
		errno = save_errno;
		return false;
	}
	return true;
}

/*
 * Make the file with this name the next segment, after those that exist.
 * Return false, with errno set, if that fails.
 */
static bool
dw_add_segment(const char *name)
{
	char		path[MAXPGPATH];

	Assert(DWIsFlusher());

	dw_log_path(path, DWCtl->log.last_segno + 1);
	DWCtl->log.names_changed = true;
	if (!dw_rename_file(name, path))
		return false;
	DWCtl->log.last_segno++;
	return true;
}

/*
 * Create the next segment.  Return false, with errno set, if that fails.
 */
bool
dw_create_segment(void)
{
	char		path[MAXPGPATH];
	int			save_errno;

	dw_new_path(path);
	if (!dw_make_segment(path, false))
		return false;
	if (dw_add_segment(path))
		return true;
	save_errno = errno;
	unlink(path);
	errno = save_errno;
	return false;
}

/*
 * Return how many segments the log should have ready behind the current one:
 * a quarter of its bound, but at most 32 (128 MB), and no more than shared
 * buffers or the volume logged so far call for.  That is a quarter of the
 * former, as many bytes as the latter, or 8 segments (32 MB), whichever is
 * most.  It is two at least.
 *
 * A burst larger than that lasts long enough for segments to be made
 * meanwhile.  A load logs next to nothing, nor does the first SELECT after
 * it.  On a device with limited bandwidth, segments that are not needed cost
 * as much as their pages.
 */
static int
dw_segments_ahead(void)
{
	uint64		reason;

	reason = pg_atomic_read_u64(&DWCtl->stats.logged_bytes) / DW_SEGMENT_SIZE;
	reason = Max(reason, Max(NBuffers / DW_SEGMENT_BLOCKS / 4, 8));
	return Max(Min(dw_log_bound_segments() / 4, Min(reason, 32)), 2);
}

static bool
dw_segments_below_bound(void)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return DWCtl->log.last_segno + 1 - DWCtl->log.first_segno < dw_log_bound_segments();
}

static bool
dw_segment_wanted(void)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return DWCtl->log.open && dw_segments_below_bound() &&
		DWCtl->log.last_segno - DWCtl->log.segno < dw_segments_ahead();
}

/*
 * Create a segment ahead of the flusher, which would otherwise do it with
 * home writes held up.  The flush lock is held for naming it only.  The
 * segment is filled if writes are known to be small, and there have been so
 * many that it will be used.
 *
 * Return whether another one is wanted.  If there is no space, or something
 * fails, give up silently: the flusher reports it when it needs the segment.
 */
bool
dw_prepare_segment(void)
{
	char		path[MAXPGPATH];
	bool		wanted;
	bool		fill;

	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	dw_lock_flush(LW_SHARED);
	wanted = dw_segment_wanted();
	fill = DWCtl->log.write_blocks > 0 &&
		DWCtl->log.write_blocks < DW_FILL_BELOW &&
		pg_atomic_read_u64(&DWCtl->stats.logged_bytes) >=
		(uint64) dw_segments_ahead() * DW_SEGMENT_SIZE;
	LWLockRelease(DoubleWriteFlushLock);
	if (!wanted)
		return false;

	dw_new_path(path);
	if (!dw_make_segment(path, fill))
		return false;

	/* the flusher may have created one itself, or closed the log */
	dw_lock_flush(LW_EXCLUSIVE);
	wanted = DWCtl->log.open && dw_segments_below_bound() && dw_add_segment(path);
	if (!wanted)
		unlink(path);
	else
		wanted = dw_sync_names() && dw_segment_wanted();
	LWLockRelease(DoubleWriteFlushLock);
	return wanted;
}

/* ---------------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------------
 */

/*
 * Write to the segment that is open.  Return false, with errno set, if that
 * fails.
 */
bool
dw_write_blocks(struct iovec *iov, int iovcnt, off_t offset)
{
	ssize_t		written;

	Assert(DWIsFlusher());
	Assert(dw_fd >= 0);

	pgstat_report_wait_start(WAIT_EVENT_DOUBLE_WRITE_WRITE);
	written = pg_pwritev_with_retry(dw_fd, iov, iovcnt, offset);
	pgstat_report_wait_end();
	if (dw_injected_error("doublewrite-log-write"))
		written = -1;
	if (written < 0 && errno == EINVAL && dw_direct)
	{
		/* some file systems refuse it only now */
		dw_direct = false;
		dw_close_segment();
		return dw_open_segment(dw_fd_segno) &&
			dw_write_blocks(iov, iovcnt, offset);
	}
	if (written < 0)
		return false;
	DWCount(log_writes, 1);
	DWCount(log_bytes, written);
	return true;
}

/*
 * Sync the current segment.  Data files are synced through the cache of the
 * drive if WAL is; the log that their home writes rely on must be synced the
 * same way.  (R2)
 */
static int
dw_sync_segment(void)
{
	Assert(DWIsFlusher());

	if (wal_sync_method == WAL_SYNC_METHOD_FSYNC_WRITETHROUGH)
	{
		INJECTION_POINT("doublewrite-log-writethrough", NULL);
		return pg_fsync(dw_fd);
	}
	return pg_fdatasync(dw_fd);
}

/*
 * Make what was written to the current segment durable.  As with data files,
 * a failed sync leaves no way to tell what is on disk.  Return false, with
 * errno set, if that is not a PANIC.
 */
bool
dw_sync_log(void)
{
	instr_time	start;
	instr_time	end;

	Assert(DWIsFlusher());

	if (!enableFsync)
		return true;

	INSTR_TIME_SET_CURRENT(start);
	pgstat_report_wait_start(WAIT_EVENT_DOUBLE_WRITE_SYNC);
	if (dw_injected_error("doublewrite-log-sync") || dw_sync_segment() != 0)
	{
		int			save_errno = errno;
		char		path[MAXPGPATH];

		dw_log_path(path, dw_fd_segno);
		ereport(data_sync_elevel(LOG_SERVER_ONLY),
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", path)));
		pgstat_report_wait_end();
		errno = save_errno;
		return false;
	}
	pgstat_report_wait_end();
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);

	DWCount(log_syncs, 1);
	DWCount(log_sync_usec, INSTR_TIME_GET_MICROSEC(end));
	if (AmRegularBackendProcess())
		DWCount(foreground_syncs, 1);
	return true;
}

/* ---------------------------------------------------------------------
 * Places
 * ---------------------------------------------------------------------
 */

/*
 * Report that there can be no other segment, with the reason in errno.
 */
void
dw_report_no_segment(int elevel, bool can_wait)
{
	ereport(elevel,
			(errcode_for_file_access(),
			 errmsg("could not extend the double-write log: %m"),
			 can_wait ?
			 errdetail("Pages wait until a sync of the data files has freed space in the log.") : 0,
			 errhint("Free space on the device of \"%s\", or lower \"double_write_buffer_size\".",
					 DW_DIR)));
}

/*
 * Handle the lack of a segment to go on with, for the reason in errno.
 * Return false if a sync cycle may free one, which needs no space.  If none
 * can be freed, or it is a sync cycle that wants to write its mark, throw an
 * error.  (R11)
 */
static bool
dw_no_segment(bool for_mark)
{
	bool		can_wait = !for_mark &&
		DWCtl->log.first_segno < DWCtl->log.segno;

	if (DWCtl->log.no_segment == 0)
		DWCtl->log.no_segment = errno;
	dw_report_no_segment(can_wait ? LOG_SERVER_ONLY : ERROR, can_wait);
	return false;
}

/*
 * Throw an error, because a batch has waited for a sync cycle, and there is
 * still no room for it.
 */
void
dw_refuse_full_log(void)
{
	errno = DWCtl->log.no_segment;
	if (errno != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not extend the double-write log: %m"),
				 errdetail("A sync of the data files has not freed space in the log, either.  Pages that could not be written to their data files are kept in it."),
				 errhint("See earlier messages in the server log for the reason.")));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("could not write pages because the double-write log is full"),
			 errdetail("Pages that could not be written to their data files are kept in it."),
			 errhint("See earlier messages in the server log for the reason.")));
}

/*
 * Make room for nblocks blocks in one segment, entering the next segment if
 * need be.  Return false if that must wait until a sync cycle frees space.
 *
 * An empty batch that raises the mark may use the block that is kept for it.
 * Such a batch, and one for which a sync cycle could free nothing, may exceed
 * the bound.
 */
bool
dw_reserve(int nblocks, bool for_mark, bool beyond_bound)
{
	int			limit = DW_SEGMENT_BLOCKS - (for_mark ? 0 : 1);

	Assert(DWIsFlusher());
	Assert(nblocks > 0 && nblocks <= DW_SEGMENT_BLOCKS - 1);

	if (!dw_sync_names())
		return dw_no_segment(for_mark);
	if (DWCtl->log.blockno + nblocks <= limit)
		return true;

	if (DWCtl->log.segno + 1 - DWCtl->log.first_segno >=
		((for_mark || beyond_bound) ? DW_MAX_SEGMENTS : dw_log_bound_segments()))
		return false;

	if (DWCtl->log.segno == DWCtl->log.last_segno &&
		!(dw_create_segment() && dw_sync_names()))
		return dw_no_segment(for_mark);

	DWCtl->log.left_blockno = DWCtl->log.blockno;
	DWCtl->log.no_segment = 0;
	DWCtl->log.segno++;
	dw_enter_segment();
	return true;
}

/*
 * Begin to use the segment that is the current one now.
 */
void
dw_enter_segment(void)
{
	Assert(DWIsFlusher());
	Assert(DWCtl->log.segno <= DWCtl->log.last_segno);

	DWCtl->log.blockno = 0;
	DWCtl->log.seg_first_batch[DWCtl->log.segno % DW_MAX_SEGMENTS] =
		DWCtl->log.next_batchno;
	DWCtl->log.seg_bad[DWCtl->log.segno % DW_MAX_SEGMENTS] = false;
	if (dw_segment_wanted())
		dw_request_upkeep();
}

/*
 * Replace the segment just entered, as its first block cannot be written, by
 * the last one.  If there is none, go back to the segment before.  A batch
 * that may have reached the block must not be found again, because a batch of
 * the same number is going to be written elsewhere.  If this fails, the next
 * batch comes here again.
 */
static void
dw_replace_segment(void)
{
	char		path[MAXPGPATH];
	char		last[MAXPGPATH];

	Assert(DWCtl->log.blockno == 0);

	dw_log_path(path, DWCtl->log.segno);
	dw_log_path(last, DWCtl->log.last_segno);
	DWCtl->log.names_changed = true;
	if (DWCtl->log.segno < DWCtl->log.last_segno)
	{
		if (dw_rename_file(last, path))
			DWCtl->log.last_segno--;
	}
	else if (DWCtl->log.first_segno < DWCtl->log.segno &&
			 (unlink(path) == 0 || errno == ENOENT))
	{
		DWCtl->log.last_segno = --DWCtl->log.segno;
		DWCtl->log.blockno = DWCtl->log.left_blockno;
	}
}

/*
 * Skip the place of a batch, as it cannot be written, so that the next
 * attempt goes to another segment, and this one is not reused.  Its last
 * block stays for a mark, which may be all that can be written if there is no
 * other segment.  errno is preserved.  (R11)
 *
 * The batch keeps its number.  If a batch number occurs twice, the later copy
 * is valid.  All batches in a segment come after an intact first one, or a
 * start would not find them (dw_read_log()).  So a segment that cannot have a
 * first one counts as not entered.
 */
void
dw_leave_place(void)
{
	int			save_errno = errno;

	Assert(DWIsFlusher());

	dw_close_segment();
	if (DWCtl->log.blockno == 0)
		dw_replace_segment();
	else
	{
		DWCtl->log.seg_bad[DWCtl->log.segno % DW_MAX_SEGMENTS] = true;
		if (DWCtl->log.blockno < DW_SEGMENT_BLOCKS - 1)
			DWCtl->log.blockno = DW_SEGMENT_BLOCKS - 1;
		else if (DWCtl->log.segno < DWCtl->log.last_segno || dw_create_segment())
			DWCtl->log.blockno = DW_SEGMENT_BLOCKS;
	}
	errno = save_errno;
}

/* ---------------------------------------------------------------------
 * Reuse
 * ---------------------------------------------------------------------
 */

/*
 * List the segments below the given one.
 */
int
dw_list_old_segments(uint64 before, uint64 **segnos)
{
	DIR		   *dir = AllocateDir(DW_DIR);
	struct dirent *de;
	int			max = 64;
	int			n = 0;

	Assert(DWIsFlusher());

	*segnos = palloc_array(uint64, max);
	while ((de = ReadDir(dir, DW_DIR)) != NULL)
	{
		if (!DWParseSegmentName(de->d_name, &(*segnos)[n]) || (*segnos)[n] >= before)
			continue;
		if (++n == max)
		{
			max *= 2;
			*segnos = repalloc_array(*segnos, uint64, max);
		}
	}
	FreeDir(dir);
	return n;
}

void
dw_remove_segment(uint64 segno)
{
	char		path[MAXPGPATH];

	dw_log_path(path, segno);
	if (unlink(path) < 0 && errno != ENOENT)
		ereport(LOG_SERVER_ONLY,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
}

/*
 * Turn old segments into future ones as long as the bound permits, and
 * remove the others.  The batches that they hold name lower segments, so they
 * do not count. (R3)
 */
void
dw_reuse_segments(uint64 *segnos, int nsegments)
{
	Assert(DWIsFlusher());

	for (int i = 0; i < nsegments; i++)
	{
		char		path[MAXPGPATH];
		struct stat st;

		Assert(segnos[i] < DWCtl->log.first_segno);
		dw_log_path(path, segnos[i]);
		if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != DW_SEGMENT_SIZE ||
			DWCtl->log.last_segno + 1 - DWCtl->log.first_segno >= dw_log_bound_segments())
			dw_remove_segment(segnos[i]);
		else
			(void) dw_add_segment(path);
	}
	pfree(segnos);
}

/*
 * Make segments that hold only freed batches available for reuse.  One that
 * cannot be renamed is tried again when the mark rises next.
 *
 * The mark that frees them is durable already. (R3)
 */
void
dw_recycle_segments(void)
{
	Assert(DWIsFlusher());
	Assert(DWCtl->log.segno <= DWCtl->log.last_segno);

	while (DWCtl->log.first_segno < DWCtl->log.segno &&
		   DWCtl->log.seg_first_batch[(DWCtl->log.first_segno + 1) % DW_MAX_SEGMENTS]
		   <= DWCtl->log.low_water_logged)
	{
		char		path[MAXPGPATH];

		dw_log_path(path, DWCtl->log.first_segno);
		if (DWCtl->log.seg_bad[DWCtl->log.first_segno % DW_MAX_SEGMENTS] ||
			DWCtl->log.last_segno - DWCtl->log.first_segno >= dw_log_bound_segments())
			dw_remove_segment(DWCtl->log.first_segno);
		else if (!dw_add_segment(path) && errno != ENOENT)
			break;
		DWCtl->log.first_segno++;
	}

	/* now, not only when the next segment is needed */
	(void) dw_sync_names();
}
