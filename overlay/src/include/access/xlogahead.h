/*-------------------------------------------------------------------------
 *
 * xlogahead.h
 *		Looking far ahead in WAL for blocks that redo is going to read.
 *
 * See the comment at the head of xlogahead.c.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/include/access/xlogahead.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGAHEAD_H
#define XLOGAHEAD_H

#include "access/xlogdefs.h"

/* What has been done, in this process */
typedef struct XLogAheadStats
{
	uint64		windows;
	uint64		wal_bytes;		/* of WAL looked at */
	uint64		blocks;			/* announced, as redo needs them */
	uint64		gap_blocks;		/* announced, as they are in between */
	uint64		runs;			/* of blocks, one request each */
	int			most_requests;	/* under way at a time; see xlogahead.c */
} XLogAheadStats;

/* A segment file, of which pages are read */
typedef struct XLogPageFile
{
	int			fd;				/* or -1 */
	XLogSegNo	segno;
} XLogPageFile;

extern XLogAheadStats xlog_ahead_stats;

extern ssize_t XLogAheadReadPage(XLogPageFile *file, TimeLineID tli,
								 XLogRecPtr page, char *buf);
extern void XLogAheadCloseFile(XLogPageFile *file);

extern void XLogAheadBegin(XLogRecPtr start, XLogRecPtr limit,
						   TimeLineID tli);
extern void XLogAheadPause(void);
extern void XLogAheadEnd(void);
extern bool XLogAheadHolds(XLogRecPtr decoded);
extern bool XLogAheadStep(XLogRecPtr decoded);

#endif							/* XLOGAHEAD_H */
