/*-------------------------------------------------------------------------
 *
 * xlogrewrite.c
 *	  WAL whose sync may have failed is written again.
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
 * tell.  But a segment is synced before the next one is begun, so only the
 * last one can be concerned, and in it only what is behind the position up to
 * which syncs are known to have succeeded.
 *
 * Not covered: WAL up to the end of a segment, if it could not be written
 * again, and the server crashes before the checkpoint that clients then wait
 * for is complete, but has begun the next segment.  The start after that takes
 * the segment for synced.
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
#include "miscadmin.h"
#include "postmaster/startup.h"
#include "storage/fd.h"
#include "utils/injection_point.h"

/*
 * Return whether a segment of WAL has been begun.  One that waits to be used
 * still has the pages of another segment, or none.  One that cannot be read
 * counts as begun: the attempt to write it says why.
 */
static bool
XLogSegmentIsBegun(TimeLineID tli, XLogSegNo segno)
{
	XLogPageHeaderData header;
	XLogRecPtr	start;
	char		path[MAXPGPATH];
	int			fd;
	ssize_t		nread;

	XLogFilePath(path, tli, segno, wal_segment_size);
	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, start);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
		return errno != ENOENT;
	nread = read(fd, &header, sizeof(header));
	CloseTransientFile(fd);
	return nread < 0 ||
		(nread == sizeof(header) && header.xlp_magic == XLOG_PAGE_MAGIC &&
		 header.xlp_pageaddr == start);
}

/*
 * Write the pages of a segment over themselves, from one page to the first
 * that is no WAL.  Return false, with errno set, if that fails.
 */
static bool
RewriteXLogPages(int fd, XLogRecPtr page)
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
		ssize_t		nread = pg_pread(fd, block.data, XLOG_BLCKSZ, offset);

		if (AmStartupProcess())
			ProcessStartupProcInterrupts();
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
RewriteXLogSegment(TimeLineID tli, XLogRecPtr page)
{
	XLogSegNo	segno;
	char		path[MAXPGPATH];
	int			fd;
	bool		result;

	XLByteToSeg(page, segno, wal_segment_size);
	XLogFilePath(path, tli, segno, wal_segment_size);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	result = fd >= 0 && RewriteXLogPages(fd, page);
	/* the first sync may report an error of earlier writes */
	if (result && pg_fsync(fd) != 0)
		result = RewriteXLogPages(fd, page) && pg_fsync(fd) == 0;
	if (!result)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\" again: %m", path)));
	if (fd >= 0)
		CloseTransientFile(fd);
	return result;
}

/*
 * Write the last segment of WAL again, of each timeline that has one behind
 * 'durable', a position up to which syncs have succeeded.  For the process
 * that recovers from a crash, before redo.  Return whether all WAL is durable
 * now; if it is not, that has been logged.
 */
bool
XLogRewriteTail(XLogRecPtr durable)
{
	XLogRecPtr	first = durable - durable % XLOG_BLCKSZ;
	bool		result = true;
	DIR		   *dir = AllocateDir(XLOGDIR);
	struct dirent *de;

	while ((de = ReadDir(dir, XLOGDIR)) != NULL)
	{
		TimeLineID	tli;
		XLogSegNo	segno;
		XLogRecPtr	start;

		if (!IsXLogFileName(de->d_name))
			continue;
		XLogFromFileName(de->d_name, &tli, &segno, wal_segment_size);
		XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, start);
		if (start + wal_segment_size <= first ||
			!XLogSegmentIsBegun(tli, segno) || XLogSegmentIsBegun(tli, segno + 1))
			continue;
		if (!RewriteXLogSegment(tli, Max(start, first)))
			result = false;
	}
	FreeDir(dir);
	INJECTION_POINT("wal-tail-rewritten", NULL);
	return result;
}
