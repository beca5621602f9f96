/*-------------------------------------------------------------------------
 *
 * crash.c
 *	  Count what a server would have to do if it were started after a crash.
 *
 * The view pg_double_write_recovery shows the same on a running server, and
 * knows how many pages redo would have to read besides.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/crash.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "access/xlog_internal.h"
#include "pg_doublewrite.h"

/*
 * Return whether a segment of WAL is there and has been written.  A recycled one
 * begins with the address that it had before.
 */
static bool
wal_segment_written(TimeLineID tli, XLogSegNo segno, int segment_size)
{
	char		name[MAXFNAMELEN];
	XLogRecPtr	end;

	XLogFileName(name, tli, segno, segment_size);
	XLogSegNoOffsetToRecPtr(segno, 1, segment_size, end);
	return DWWalFileReaches(name, end, segment_size);
}

/*
 * Return the bytes of WAL from the redo pointer to the end of the last segment
 * written.  WAL may end before that, and is not counted beyond a change of
 * timelines.
 */
static uint64
wal_to_replay(const ControlFileData *control)
{
	const CheckPoint *checkpoint = &control->checkPointCopy;
	int			segment_size = control->xlog_seg_size;
	XLogSegNo	segno;
	XLogRecPtr	end;

	XLByteToSeg(checkpoint->redo, segno, segment_size);
	while (wal_segment_written(checkpoint->ThisTimeLineID, segno, segment_size))
		segno++;
	XLogSegNoOffsetToRecPtr(segno, 0, segment_size, end);
	return Max(end, checkpoint->redo) - checkpoint->redo;
}

/*
 * Count the files that some copies, which are sorted, belong to.
 */
static uint64
count_files(const DWCopy *copies, int ncopies)
{
	uint64		nfiles = 0;

	for (int i = 0; i < ncopies; i++)
	{
		const DWPageEntry *entry = &copies[i].entry;
		const DWPageEntry *before = i > 0 ? &copies[i - 1].entry : NULL;

		if (before == NULL || entry->forknum != before->forknum ||
			!RelFileLocatorEquals(entry->rlocator, before->rlocator) ||
			entry->blkno / RELSEG_SIZE != before->blkno / RELSEG_SIZE)
			nfiles++;
	}
	return nfiles;
}

/*
 * Count the work.  Return false if there is none, as the server was shut down, or
 * if that is not known.
 */
bool
count_crash_work(const DWToolLogState *state, CrashWork *work)
{
	if (state->control == NULL || state->control->state == DB_SHUTDOWNED)
		return false;

	work->wal_bytes = wal_to_replay(state->control);
	work->pages = state->verdict == VERDICT_RESTORE ? state->ncopies : 0;
	work->files = count_files(state->copies, work->pages);
	return true;
}
