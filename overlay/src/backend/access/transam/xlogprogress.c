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
 *   show_recovery_progress allows it: nobody has authenticated them.
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
 * Time left is estimated from the work that is left, and from the speed at which
 * work was done in the second half of the time since the start of redo; in the
 * first half, pages had to be read that are now in memory.  If that made it
 * faster, it will become faster still, see PROGRESS_RISE.  Bytes of WAL are a
 * bad measure of work, since after a checkpoint there are mostly page images,
 * and few of them later.  So the number of records counts, too.  It is taken
 * from a sample of the pages.
 *
 * Where the WAL pipeline looks ahead (see xlogahead.c), redo stands still until
 * the first blocks have been read, and then goes through all WAL whose blocks were
 * asked for at the same time.  So of its speed nothing can be concluded.  There
 * the time left is that of the reads: how many of those asked for are done, see
 * xlogreadprogress.c, and as long as that says little, what reads have cost in
 * earlier recoveries.  How many there are in WAL that has not been looked at yet
 * is known from the forecast, if there is one (see recoverytarget.c).
 *
 * The shared memory is written by the startup process, which sets "end" last
 * and clears it first, and a part of it by the pipeline's; others need no lock.
 * A process that refuses a client must not take one, as a signal may end it at
 * any moment (see BackendInitialize()).  It is not attached to the structures in
 * shared memory yet, so with EXEC_BACKEND the postmaster hands it the address.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/xlogprogress.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "access/timeline.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogprogress.h"
#include "access/xlogreadprogress.h"
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

/*
 * WAL is divided into so many steps of equal length.  One page is looked at in
 * each, and the time is noted when each is reached.  More would take long on
 * slow disks.
 */
#define PROGRESS_STEPS		128

/*
 * Redo of a small record takes about as long as redo of a page image takes for
 * so many of its bytes.  Measured; the estimate does not depend much on it.
 */
#define PROGRESS_RECORD_BYTES	1000

/*
 * If the second half of the time was faster than the first one, work that is
 * left will be done faster still: by this power of the ratio of the speeds, but
 * no more than so many times as fast.  Chosen from the times at which 24
 * recoveries reached their steps, and checked with 24 others.
 */
#define PROGRESS_RISE		(1.0 / 3)
#define PROGRESS_MAX_RISE	1.5

/*
 * How long the reads take is concluded from those that are done, the more the more
 * there are.  From this share on what was learnt before does not matter.
 */
#define PROGRESS_READS_TELL		0.5

/*
 * Microseconds that redo needs for a block that the kernel has read: redo does not
 * begin with most of them before nearly all have been read.  Measured.
 */
#define PROGRESS_BLOCK_USEC		20

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

	XLogReadProgress reads;		/* by the pipeline's process */

	double		work[PROGRESS_STEPS + 1];	/* before each step, and in all;
											 * written before "end" */
	pg_atomic_uint32 nreached;	/* length of the next: steps begun */
	TimestampTz reached[PROGRESS_STEPS];
};

XLogProgressData *XLogProgress = NULL;

/* How long redo should take: set by who has learnt that */
void		(*xlog_progress_expect_redo) (uint64 blocks, uint64 ahead, uint64 wal,
										  XLogReadExpectation *expected) = NULL;

/* Pipeline's process: how long looking ahead in WAL takes, with nothing cached */
static double ahead_usec_per_byte = 0;

/* Startup process: where the next step begins */
static XLogRecPtr next_step = PG_UINT64_MAX;

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
		XLogReadProgressInit(&XLogProgress->reads);
		pg_atomic_init_u32(&XLogProgress->nreached, 0);
	}
}

/*
 * Is the page at 'ptr' where it should be, in an open segment file?
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
 * Where does a step begin?
 */
static XLogRecPtr
step_start(XLogRecPtr start, XLogRecPtr end, int step)
{
	return start + (XLogRecPtr) ((double) (end - start) * step / PROGRESS_STEPS);
}

/*
 * How many records begin on a page?
 */
static int
count_records(const char *page)
{
	const XLogPageHeaderData *header = (const XLogPageHeaderData *) page;
	uint32		offset = XLogPageHeaderSize(header);
	int			nrecords = 0;

	if (header->xlp_info & XLP_FIRST_IS_CONTRECORD)
		offset = Min(offset + MAXALIGN(header->xlp_rem_len), XLOG_BLCKSZ);
	while (offset + sizeof(uint32) <= XLOG_BLCKSZ)
	{
		uint32		length;

		memcpy(&length, page + offset, sizeof(length));
		if (length < SizeOfXLogRecord)
			break;
		nrecords++;
		if (length >= XLOG_BLCKSZ)
			break;
		offset += MAXALIGN(length);
	}
	return nrecords;
}

/*
 * How many records begin on the page that contains 'ptr'?  Zero if that cannot
 * be found out.
 */
static int
sample_records(XLogRecPtr ptr, List *timelines)
{
	PGAlignedXLogBlock page;
	XLogSegNo	segno;
	int			fd;
	int			nrecords = 0;

	ptr -= ptr % XLOG_BLCKSZ;
	XLByteToSeg(ptr, segno, wal_segment_size);
	fd = open_segment(segno, timelines);
	if (fd < 0)
		return 0;
	if (page_is_valid(fd, ptr) &&
		pg_pread(fd, page.data, XLOG_BLCKSZ,
				 (off_t) XLogSegmentOffset(ptr, wal_segment_size)) == XLOG_BLCKSZ)
		nrecords = count_records(page.data);
	close(fd);
	return nrecords;
}

/*
 * Estimate the work that each step takes.
 */
static void
sample_work(XLogRecPtr start, XLogRecPtr end, List *timelines)
{
	double		length = (double) (end - start) / PROGRESS_STEPS;
	double		work = 0;

	for (int i = 0; i < PROGRESS_STEPS; i++)
	{
		int			nrecords;

		nrecords = sample_records(step_start(start, end, i), timelines);
		XLogProgress->work[i] = work;
		work += length *
			(1 + (double) nrecords * PROGRESS_RECORD_BYTES / XLOG_BLCKSZ);

		INJECTION_POINT("xlogprogress-sample", NULL);
		ProcessStartupProcInterrupts();
	}
	XLogProgress->work[PROGRESS_STEPS] = work;
}

/*
 * Work that has been done at 'lsn'.
 */
static double
work_done(XLogRecPtr start, XLogRecPtr end, XLogRecPtr lsn)
{
	double		steps = (double) (lsn - start) / (end - start) * PROGRESS_STEPS;
	int			i = Min((int) steps, PROGRESS_STEPS - 1);
	double	   *work = XLogProgress->work;

	return work[i] + (work[i + 1] - work[i]) * (steps - i);
}

/*
 * Estimate from the speed of redo how many seconds it needs for the work that has
 * not been done at 'lsn', or return -1.
 */
static double
estimate_from_speed(XLogRecPtr start, XLogRecPtr end, XLogRecPtr lsn,
					TimestampTz begin, TimestampTz now)
{
	double	   *work = XLogProgress->work;
	double		done = work_done(start, end, lsn);
	TimestampTz middle = begin + (now - begin) / 2;
	int			nreached = pg_atomic_read_u32(&XLogProgress->nreached);
	int			step = 0;
	TimestampTz since = begin;
	double		speed;

	/* the first record says nothing of those that follow */
	if (nreached < 2)
		return -1;

	pg_read_barrier();
	for (int i = 0; i < nreached && XLogProgress->reached[i] <= middle; i++)
	{
		step = i;
		since = XLogProgress->reached[i];
	}
	if (done <= work[step] || now <= since)
		return -1;

	speed = (done - work[step]) / (now - since);
	if (since > begin && work[step] > 0)
	{
		double		rise = speed / (work[step] / (since - begin));

		if (rise > 1)
			speed *= Min(pow(rise, PROGRESS_RISE), PROGRESS_MAX_RISE);
	}
	return (work[PROGRESS_STEPS] - done) / speed / 1000000.0;
}

/*
 * The same while redo is where blocks have been asked for at once: as long as the
 * reads take, and redo of what has been read.
 */
static double
estimate_from_reads(const XLogReadWindows *reads, XLogRecPtr start, XLogRecPtr end,
					XLogRecPtr lsn, TimestampTz now)
{
	double		share = XLogReadProgressShare(reads, lsn);
	double		all = reads->expected.reads_usec;
	double		redo_left = 1 -
		work_done(start, end, lsn) / XLogProgress->work[PROGRESS_STEPS];
	double		left;

	if (share > 0)
	{
		double		weight = Min(share / PROGRESS_READS_TELL, 1);

		all = weight * (now - reads->begin) / share + (1 - weight) * all;
	}
	left = all * (1 - share) + reads->expected.ahead_usec +
		redo_left * reads->expected.blocks * PROGRESS_BLOCK_USEC;
	return Max(left, redo_left * reads->expected.wal_usec) / 1000000.0;
}

/*
 * Estimate the seconds left at 'lsn', or return -1.
 */
static double
estimate_seconds_left(XLogRecPtr start, XLogRecPtr end, XLogRecPtr lsn,
					  TimestampTz begin)
{
	TimestampTz now = GetCurrentTimestamp();
	XLogReadWindows reads;

	if (XLogReadProgressGet(&XLogProgress->reads, &reads) && lsn < reads.tell_until)
		return estimate_from_reads(&reads, start, end, lsn, now);
	return estimate_from_speed(start, end, lsn, begin, now);
}

/*
 * Redo has begun a step: note when.
 */
static void
note_step(XLogRecPtr lsn)
{
	XLogRecPtr	start = pg_atomic_read_u64(&XLogProgress->start);
	XLogRecPtr	end = pg_atomic_read_u64(&XLogProgress->end);
	uint32		n = pg_atomic_read_u32(&XLogProgress->nreached);
	TimestampTz now = GetCurrentTimestamp();

	while (n < PROGRESS_STEPS && step_start(start, end, n) <= lsn)
		XLogProgress->reached[n++] = now;
	pg_write_barrier();
	pg_atomic_write_u32(&XLogProgress->nreached, n);

	next_step = n < PROGRESS_STEPS ? step_start(start, end, n) : PG_UINT64_MAX;
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

	if (timelines != NIL)
		end = find_end(start, timelines);
	if (end <= start)
		return;

	sample_work(start, end, timelines);
	pg_atomic_write_u64(&XLogProgress->start, start);
	pg_atomic_write_u64(&XLogProgress->begin_time, GetCurrentTimestamp());
	pg_atomic_write_u64(&XLogProgress->replayed, start);
	XLogReadProgressReset(&XLogProgress->reads);
	pg_atomic_write_u32(&XLogProgress->nreached, 0);
	pg_atomic_write_membarrier_u64(&XLogProgress->end, end);
	next_step = start;
}

/*
 * How much is done at 'lsn'?  Returns false if that is not known.
 */
static bool
get_progress(XLogRecPtr lsn, int *percent, uint64 *left, double *rate)
{
	XLogRecPtr	end = pg_atomic_read_membarrier_u64(&XLogProgress->end);
	XLogRecPtr	start = pg_atomic_read_u64(&XLogProgress->start);
	TimestampTz begin = pg_atomic_read_u64(&XLogProgress->begin_time);
	double		seconds = (GetCurrentTimestamp() - begin) / 1000000.0;

	if (XLogRecPtrIsInvalid(end) || lsn < start)
		return false;

	lsn = Min(lsn, end);
	*percent = (int) ((lsn - start) * 100 / (end - start));
	*left = end - lsn;
	*rate = (lsn - start) / Max(seconds, 0.001);
	return true;
}

/*
 * How long will the rest take?  -1 if that is not known.
 */
static double
get_seconds_left(XLogRecPtr lsn)
{
	XLogRecPtr	end = pg_atomic_read_membarrier_u64(&XLogProgress->end);
	XLogRecPtr	start = pg_atomic_read_u64(&XLogProgress->start);

	if (XLogRecPtrIsInvalid(end) || lsn < start)
		return -1;
	return estimate_seconds_left(start, end, Min(lsn, end),
								 pg_atomic_read_u64(&XLogProgress->begin_time));
}

/*
 * Describe progress in words, or return NULL if it is not known.
 */
static char *
describe_progress(void)
{
	XLogRecPtr	lsn = pg_atomic_read_u64(&XLogProgress->replayed);
	int			percent;
	uint64		left;
	double		rate;
	double		seconds_left;

	if (!get_progress(lsn, &percent, &left, &rate))
		return NULL;

	seconds_left = get_seconds_left(lsn);
	if (seconds_left < 0)
		return psprintf(_("%d%% of WAL replayed, %" PRIu64 " MB left"),
						percent, left / (1024 * 1024));

	return psprintf(_("%d%% of WAL replayed, %" PRIu64 " MB left, %.1f MB/s, about %.*f s to go"),
					percent, left / (1024 * 1024), rate / (1024 * 1024),
					seconds_left < 10 ? 1 : 0, seconds_left);
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
	int			percent;
	uint64		left;
	double		rate;
	FILE	   *file;

	if (!get_progress(lsn, &percent, &left, &rate))
		return;

	file = AllocateFile(PROGRESS_FILE_TMP, PG_BINARY_W);
	if (file == NULL)
		return;
	fprintf(file, "lsn = %X/%X\nend_lsn = %X/%X\npercent = %d\n"
			"bytes_left = %" PRIu64 "\nbytes_per_second = %.0f\nseconds_left = %.0f\n",
			LSN_FORMAT_ARGS(lsn),
			LSN_FORMAT_ARGS(pg_atomic_read_u64(&XLogProgress->end)),
			percent, left, rate, get_seconds_left(lsn));
	if (FreeFile(file) != 0 || rename(PROGRESS_FILE_TMP, PROGRESS_FILE) != 0)
		(void) unlink(PROGRESS_FILE_TMP);
}

/*
 * For the pipeline's process: these blocks have to be read for WAL up to 'until'
 * (PG_UINT64_MAX: for the rest of it), and are now asked for at once.  If 'more',
 * those of WAL after that will be asked for before redo is there.
 */
void
XLogProgressAhead(XLogRecPtr until, bool more, const struct buftag *blocks, int nblocks)
{
	XLogRecPtr	start = pg_atomic_read_u64(&XLogProgress->start);
	XLogRecPtr	end = pg_atomic_read_membarrier_u64(&XLogProgress->end);
	TimestampTz begin = pg_atomic_read_u64(&XLogProgress->begin_time);
	uint64		counted = XLogReadProgressCounted(&XLogProgress->reads);
	uint64		ahead;
	XLogReadExpectation expected;

	if (xlog_progress_expect_redo == NULL ||
		XLogRecPtrIsInvalid(end) || until <= start)
		return;

	ahead = Min(until, end) - start;

	/* the first window is looked through while nothing else is done */
	if (counted == 0)
		ahead_usec_per_byte = (double) (GetCurrentTimestamp() - begin) / ahead;

	xlog_progress_expect_redo(counted + nblocks, ahead, end - start, &expected);
	expected.ahead_usec = (end - start - ahead) * ahead_usec_per_byte;
	XLogReadProgressAdd(&XLogProgress->reads, until, more ? end : until,
						blocks, nblocks, &expected);
}

/*
 * Redo has come to a record.
 */
void
XLogProgressReport(XLogRecPtr lsn)
{
	pg_atomic_write_u64(&XLogProgress->replayed, lsn);
	if (unlikely(lsn >= next_step))
		note_step(lsn);
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
	int			percent;
	uint64		left;
	double		rate;
	static double seconds_left = -1;
	static TimestampTz estimated = 0;
	TimestampTz now = GetCurrentTimestamp();

	/* an estimate takes a millisecond, and segments may take few */
	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, lsn);
	if (TimestampDifferenceExceeds(estimated, now, 1000))
	{
		estimated = now;
		seconds_left = get_seconds_left(lsn);
	}
	if (get_progress(lsn, &percent, &left, &rate))
		snprintf(title, sizeof(title), "recovering %s, %d%% done, %.0f s left",
				 xlogfname, percent, Max(seconds_left, 0));
	else
		snprintf(title, sizeof(title), "recovering %s", xlogfname);
	set_ps_display(title);
}

/*
 * Redo has ended.
 */
void
XLogProgressEnd(void)
{
	pg_atomic_write_membarrier_u64(&XLogProgress->end, InvalidXLogRecPtr);
	next_step = PG_UINT64_MAX;
	(void) unlink(PROGRESS_FILE);
}
