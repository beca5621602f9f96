/*-------------------------------------------------------------------------
 *
 * xlogrewrite.c
 *	  Writing WAL again whose sync may have failed.
 *
 * When a sync of WAL fails, the server stops with a PANIC.  What was not
 * synced can still be read until the power fails, so the next start replays
 * it; and to sync it again tells nothing, as the kernel takes it for clean.
 * If redo then brings pages home, or clients commit behind it, a power cut
 * leaves a gap: pages are ahead of WAL, and what was committed is out of
 * reach, until a checkpoint has passed that place.
 *
 * Where clients get in only after that checkpoint, they lose nothing by it.
 * To let them in earlier, that WAL has to be written again first.  Whether a
 * sync has failed is not known: a process may have been killed before it could
 * tell.  But a server that writes WAL syncs a segment before it begins the
 * next one, so only the last one can be concerned, and in it only what is
 * behind the position up to which syncs are known to have succeeded.
 *
 * If it cannot be written again, recovery goes on, as in stock, and the
 * checkpoint comes before clients.  A recovery that was cut short may have been
 * such a one, and may have written the next segment since: so the start after
 * it lets clients in after the checkpoint, too.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/xlogrewrite.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "postmaster/startup.h"
#include "storage/fd.h"
#include "utils/injection_point.h"

/*
 * Return the newest timeline, down to 'oldest', on which a segment of WAL has
 * been begun, or 0.  A file that waits to be used still has the pages of
 * another segment, or none.  If that cannot be told, log why, and set *failed.
 */
static TimeLineID
XLogSegmentTimeline(XLogSegNo segno, TimeLineID oldest, bool *failed)
{
	XLogRecPtr	start;

	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, start);
	for (TimeLineID tli = recoveryTargetTLI; tli >= oldest; tli--)
	{
		XLogPageHeaderData header;
		char		path[MAXPGPATH];
		ssize_t		nread;
		int			fd;

		XLogFilePath(path, tli, segno, wal_segment_size);
		fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
		if (fd < 0 && errno == ENOENT)
			continue;
		nread = fd < 0 ? -1 : read(fd, &header, sizeof(header));
		if (nread < 0)
		{
			*failed = true;
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", path)));
		}
		if (fd >= 0)
			CloseTransientFile(fd);
		if (nread == sizeof(header) && header.xlp_magic == XLOG_PAGE_MAGIC &&
			header.xlp_pageaddr == start)
			return tli;
	}
	return 0;
}

/*
 * Write the pages of a segment over themselves, from one page to the first
 * that is no WAL.  Return false, with errno set, if that fails.
 */
static bool
XLogRewritePages(int fd, XLogRecPtr page)
{
	PGAlignedXLogBlock block;
	int			injected = 0;

	INJECTION_POINT("wal-tail-write", &injected);
	errno = injected;
	if (injected != 0)
		return false;

	for (off_t offset = XLogSegmentOffset(page, wal_segment_size);
		 offset < wal_segment_size;
		 offset += XLOG_BLCKSZ, page += XLOG_BLCKSZ)
	{
		ssize_t		nread;

		if (AmStartupProcess())
			ProcessStartupProcInterrupts();
		nread = pg_pread(fd, block.data, XLOG_BLCKSZ, offset);
		if (nread < 0)
			return false;
		if (nread < XLOG_BLCKSZ ||
			((XLogPageHeader) block.data)->xlp_pageaddr != page)
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

/*
 * Write a segment again from a page on, and make it durable.  Return false if
 * that fails.
 */
static bool
XLogRewriteSegment(TimeLineID tli, XLogRecPtr page)
{
	XLogSegNo	segno;
	char		path[MAXPGPATH];
	int			fd;
	bool		result;

	XLByteToSeg(page, segno, wal_segment_size);
	XLogFilePath(path, tli, segno, wal_segment_size);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	result = fd >= 0 && XLogRewritePages(fd, page);
	/* the first sync may report an error of earlier writes */
	if (result && pg_fsync(fd) != 0)
		result = XLogRewritePages(fd, page) && pg_fsync(fd) == 0;
	if (!result)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\" again: %m", path)));
	if (fd >= 0)
		CloseTransientFile(fd);
	return result;
}

/*
 * Write the last segment of WAL again, behind a position up to which syncs have
 * succeeded, and which is on timeline 'oldest' or a later one.  For the process
 * that recovers from a crash, before redo.  Return whether all WAL is durable
 * now; if it is not, that has been logged.
 */
bool
XLogRewriteTail(XLogRecPtr durable, TimeLineID oldest)
{
	XLogRecPtr	page = durable - durable % XLOG_BLCKSZ;
	XLogRecPtr	start;
	XLogSegNo	segno;
	TimeLineID	tli;
	TimeLineID	last = 0;
	bool		failed = false;

	Assert(oldest > 0 && oldest <= recoveryTargetTLI);

	if (!enableFsync)
		return true;

	XLByteToSeg(page, segno, wal_segment_size);
	while ((tli = XLogSegmentTimeline(segno, oldest, &failed)) != 0)
	{
		last = tli;
		segno++;
	}
	if (last != 0)
	{
		XLogSegNoOffsetToRecPtr(segno - 1, 0, wal_segment_size, start);
		if (!XLogRewriteSegment(last, Max(start, page)))
			failed = true;
	}
	INJECTION_POINT("wal-tail-rewritten", NULL);
	return !failed;
}
