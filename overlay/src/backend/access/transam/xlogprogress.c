/*-------------------------------------------------------------------------
 *
 * xlogprogress.c
 *		Recovery that can be watched.
 *
 * In crash recovery all WAL that will be replayed is in pg_wal already, so it
 * can be said how much is left.  It is shown
 *
 * - in the server log, each log_startup_progress_interval;
 * - in the process title of the startup process, with each segment;
 * - in the file "recovery_progress" in the data directory, when the log is
 *   written, for monitoring that cannot connect yet;
 * - to clients that are refused because recovery is not done, if
 *   show_recovery_progress allows it: they have not been authenticated.
 *
 * In archive recovery the end is not known, and only what stock reports is
 * reported.  A standby in standby mode reports nothing: there is no end.
 *
 * Where WAL ends is found out by looking at page headers.  Segments are filled in
 * order, and a page that was written for another place (in a recycled segment)
 * has another address.  So the last segment that begins with the right page is
 * the last one, and in it the border between right and wrong pages is found
 * by bisection.  That is one read per segment.  The result is off by a page at
 * most; it is only used for reports, and replay does not depend on it.
 *
 * Time left is that of the WAL that is left at the speed since redo has begun.  As
 * long as hardly anything has been replayed, that says nothing: redo may wait for
 * blocks that are read ahead (see xlogahead.c), and then goes through much of WAL at
 * once.  So it is not known at first, and no more than a guess later: page images are
 * replayed at several times the speed of small records, and WAL begins with them.
 *
 * The shared memory is written by the startup process, which sets "end" last
 * and clears it first; others need no lock.
 * A process that refuses a client must not take one, as a signal may end it at
 * any moment (see BackendInitialize()).  It is not attached to the structures in
 * shared memory yet, so with EXEC_BACKEND the postmaster hands it the address.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/xlogprogress.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/timeline.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogprogress.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "postmaster/startup.h"
#include "storage/fd.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/injection_point.h"
#include "utils/ps_status.h"
#include "utils/timestamp.h"

#define PROGRESS_FILE		"recovery_progress"
#define PROGRESS_FILE_TMP	PROGRESS_FILE ".tmp"

/* Nothing is said of the time left before so much of WAL has been replayed. */
#define PROGRESS_LEAST_SHARE	0.01

/* GUC */
int			show_recovery_progress = SHOW_RECOVERY_PROGRESS_LOCAL;

const struct config_enum_entry show_recovery_progress_options[] = {
	{"off", SHOW_RECOVERY_PROGRESS_OFF, false},
	{"local", SHOW_RECOVERY_PROGRESS_LOCAL, false},
	{"on", SHOW_RECOVERY_PROGRESS_ON, false},
	{"true", SHOW_RECOVERY_PROGRESS_ON, true},
	{"false", SHOW_RECOVERY_PROGRESS_OFF, true},
	{"yes", SHOW_RECOVERY_PROGRESS_ON, true},
	{"no", SHOW_RECOVERY_PROGRESS_OFF, true},
	{"1", SHOW_RECOVERY_PROGRESS_ON, true},
	{"0", SHOW_RECOVERY_PROGRESS_OFF, true},
	{NULL, 0, false}
};

struct XLogProgressData
{
	pg_atomic_uint64 start;		/* where redo has begun */
	pg_atomic_uint64 end;		/* where WAL ends, invalid if not known */
	pg_atomic_uint64 begin_time;	/* TimestampTz */
	pg_atomic_uint64 replayed;	/* where redo is */
};

XLogProgressData *XLogProgress = NULL;

Size
XLogProgressShmemSize(void)
{
	return sizeof(XLogProgressData);
}

void
XLogProgressShmemInit(void)
{
	bool		found;

	XLogProgress = (XLogProgressData *)
		ShmemInitStruct("WAL replay progress", XLogProgressShmemSize(), &found);
	if (!found)
	{
		pg_atomic_init_u64(&XLogProgress->start, InvalidXLogRecPtr);
		pg_atomic_init_u64(&XLogProgress->end, InvalidXLogRecPtr);
		pg_atomic_init_u64(&XLogProgress->begin_time, 0);
		pg_atomic_init_u64(&XLogProgress->replayed, InvalidXLogRecPtr);
	}
}

/*
 * Return whether the page at 'ptr' is where it should be, in an open segment file.
 */
static bool
page_is_valid(int fd, XLogRecPtr ptr)
{
	XLogPageHeaderData header;
	off_t		offset = (off_t) XLogSegmentOffset(ptr, wal_segment_size);

	return pg_pread(fd, &header, sizeof(header), offset) == sizeof(header) &&
		header.xlp_magic == XLOG_PAGE_MAGIC &&
		header.xlp_pageaddr == ptr;
}

/*
 * Open the file of a segment that begins with the right page, from the newest
 * timeline that has one.  Returns -1 if there is none.
 */
static int
open_segment(XLogSegNo segno, List *timelines)
{
	XLogRecPtr	start;

	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, start);

	foreach_ptr(TimeLineHistoryEntry, entry, timelines)
	{
		char		path[MAXPGPATH];
		int			fd;

		XLogFilePath(path, entry->tli, segno, wal_segment_size);
		fd = BasicOpenFile(path, O_RDONLY | PG_BINARY);
		if (fd < 0)
			continue;
		if (page_is_valid(fd, start))
			return fd;
		close(fd);
	}
	return -1;
}

/*
 * Find the end of the last valid page after 'start', which is valid.
 */
static XLogRecPtr
find_end(XLogRecPtr start, List *timelines)
{
	XLogSegNo	segno;
	XLogRecPtr	segment_start;
	int			fd;
	int			last_fd = -1;
	uint32		low = 0;		/* a page that is valid */
	uint32		high = wal_segment_size / XLOG_BLCKSZ;	/* one that is not */

	XLByteToSeg(start, segno, wal_segment_size);
	while ((fd = open_segment(segno, timelines)) >= 0)
	{
		if (last_fd >= 0)
			close(last_fd);
		last_fd = fd;
		segno++;

		/* There may be many, and storage may be slow. */
		INJECTION_POINT("xlogprogress-segment", NULL);
		ProcessStartupProcInterrupts();
	}
	if (last_fd < 0)
		return InvalidXLogRecPtr;

	XLogSegNoOffsetToRecPtr(segno - 1, 0, wal_segment_size, segment_start);
	while (high - low > 1)
	{
		uint32		middle = low + (high - low) / 2;

		if (page_is_valid(last_fd, segment_start + (XLogRecPtr) middle * XLOG_BLCKSZ))
			low = middle;
		else
			high = middle;
	}
	close(last_fd);

	return segment_start + (XLogRecPtr) high * XLOG_BLCKSZ;
}

/*
 * Redo begins.  'timelines' are those that WAL in pg_wal may belong to, or NIL if
 * there is more WAL elsewhere.
 */
void
XLogProgressBegin(XLogRecPtr start, List *timelines)
{
	XLogRecPtr	end = InvalidXLogRecPtr;

	/* may have been left by a crash */
	(void) unlink(PROGRESS_FILE);
	(void) unlink(PROGRESS_FILE_TMP);

	if (timelines != NIL)
		end = find_end(start, timelines);
	if (end <= start)
		return;

	pg_atomic_write_u64(&XLogProgress->start, start);
	pg_atomic_write_u64(&XLogProgress->begin_time, GetCurrentTimestamp());
	pg_atomic_write_u64(&XLogProgress->replayed, start);
	pg_atomic_write_membarrier_u64(&XLogProgress->end, end);
}

/* How far redo is */
typedef struct RedoProgress
{
	int			percent;
	uint64		left;			/* bytes of WAL */
	double		rate;			/* bytes a second */
	double		seconds_left;	/* -1 if not known */
} RedoProgress;

/*
 * Find out how much is done at 'lsn'.  Returns false if that is not known.
 */
static bool
get_progress(XLogRecPtr lsn, RedoProgress *progress)
{
	XLogRecPtr	end = pg_atomic_read_membarrier_u64(&XLogProgress->end);
	XLogRecPtr	start = pg_atomic_read_u64(&XLogProgress->start);
	TimestampTz begin = pg_atomic_read_u64(&XLogProgress->begin_time);
	double		seconds = (GetCurrentTimestamp() - begin) / 1000000.0;
	double		share;

	if (XLogRecPtrIsInvalid(end) || lsn < start)
		return false;

	lsn = Min(lsn, end);
	share = (double) (lsn - start) / (end - start);
	progress->percent = (int) (share * 100);
	progress->left = end - lsn;
	progress->rate = (lsn - start) / Max(seconds, 0.001);
	progress->seconds_left = share < PROGRESS_LEAST_SHARE ? -1 :
		progress->left / progress->rate;
	return true;
}

/*
 * Describe progress in words, or return NULL if it is not known.
 */
static char *
describe_progress(void)
{
	RedoProgress progress;

	if (!get_progress(pg_atomic_read_u64(&XLogProgress->replayed), &progress))
		return NULL;

	if (progress.seconds_left < 0)
		return psprintf(_("%d%% of WAL replayed, %" PRIu64 " MB left"),
						progress.percent, progress.left / (1024 * 1024));

	return psprintf(_("%d%% of WAL replayed, %" PRIu64 " MB left, %.1f MB/s, about %.*f s to go"),
					progress.percent, progress.left / (1024 * 1024),
					progress.rate / (1024 * 1024),
					progress.seconds_left < 10 ? 1 : 0, progress.seconds_left);
}

/*
 * The same for a client that has not been authenticated; NULL as well if it is
 * not to be told.
 */
char *
XLogProgressForClient(const Port *port)
{
	bool		is_local = port->raddr.addr.ss_family == AF_UNIX;

	if (show_recovery_progress == SHOW_RECOVERY_PROGRESS_OFF ||
		(show_recovery_progress == SHOW_RECOVERY_PROGRESS_LOCAL && !is_local))
		return NULL;
	return describe_progress();
}

/*
 * Write the file for monitoring.  It is replaced as a whole, and need not be
 * durable.  If it cannot be written, there is none.
 */
static void
write_progress_file(XLogRecPtr lsn)
{
	RedoProgress progress;
	FILE	   *file;

	if (!get_progress(lsn, &progress))
		return;

	file = AllocateFile(PROGRESS_FILE_TMP, PG_BINARY_W);
	if (file == NULL)
		return;
	fprintf(file, "lsn = %X/%X\nend_lsn = %X/%X\npercent = %d\n"
			"bytes_left = %" PRIu64 "\nbytes_per_second = %.0f\nseconds_left = %.0f\n",
			LSN_FORMAT_ARGS(lsn),
			LSN_FORMAT_ARGS(pg_atomic_read_u64(&XLogProgress->end)),
			progress.percent, progress.left, progress.rate, progress.seconds_left);
	if (FreeFile(file) != 0 || rename(PROGRESS_FILE_TMP, PROGRESS_FILE) != 0)
		(void) unlink(PROGRESS_FILE_TMP);
}

/*
 * Redo has come to a record.
 */
void
XLogProgressReport(XLogRecPtr lsn)
{
	pg_atomic_write_u64(&XLogProgress->replayed, lsn);
	XLogProgressReportAgain();
}

/*
 * Report if log_startup_progress_interval has passed.  Called for each record,
 * and while redo waits for one.
 */
void
XLogProgressReportAgain(void)
{
	XLogRecPtr	lsn;
	long		secs;
	int			usecs;
	char	   *progress;

	if (!has_startup_progress_timeout_expired(&secs, &usecs))
		return;

	lsn = pg_atomic_read_u64(&XLogProgress->replayed);
	progress = describe_progress();
	if (progress == NULL)
	{
		ereport(LOG,
				(errmsg("redo in progress, elapsed time: %ld.%02d s, current LSN: %X/%X",
						secs, usecs / 10000, LSN_FORMAT_ARGS(lsn))));
		return;
	}

	ereport(LOG,
			(errmsg("redo in progress, elapsed time: %ld.%02d s, current LSN: %X/%X, %s",
					secs, usecs / 10000, LSN_FORMAT_ARGS(lsn), progress)));
	pfree(progress);
	write_progress_file(lsn);
}

/*
 * Show in the process title which segment is being replayed.
 */
void
XLogProgressShowSegment(XLogSegNo segno, const char *xlogfname)
{
	char		title[MAXFNAMELEN + 64];
	XLogRecPtr	lsn;
	RedoProgress progress;

	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, lsn);
	if (!get_progress(lsn, &progress))
		snprintf(title, sizeof(title), "recovering %s", xlogfname);
	else if (progress.seconds_left < 0)
		snprintf(title, sizeof(title), "recovering %s, %d%% done",
				 xlogfname, progress.percent);
	else
		snprintf(title, sizeof(title), "recovering %s, %d%% done, %.0f s left",
				 xlogfname, progress.percent, progress.seconds_left);
	set_ps_display(title);
}

/*
 * Redo has ended.
 */
void
XLogProgressEnd(void)
{
	pg_atomic_write_membarrier_u64(&XLogProgress->end, InvalidXLogRecPtr);
	(void) unlink(PROGRESS_FILE);
}
