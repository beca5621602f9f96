/*-------------------------------------------------------------------------
 *
 * xlogpagefetch.h
 *		Damaged pages of a standby, which its primary replaces.
 *
 * See the comment at the head of xlogpagefetch.c.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/include/access/xlogpagefetch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGPAGEFETCH_H
#define XLOGPAGEFETCH_H

#include "access/xlogdefs.h"
#include "storage/block.h"
#include "storage/relfilelocator.h"

/*
 * The argument of READ_PAGE: tablespace, database, relation, fork and block; then up to where the
 * standby has replayed WAL, and on which timeline
 */
#define PAGE_FETCH_FORMAT	"%u/%u/%u/%d/%u %X/%X %u"

#ifndef FRONTEND

/* What the primary has answered */
typedef struct PageFetchAnswer
{
	bool		exists;			/* has it such a page? */
	XLogRecPtr	as_of;			/* all records before this, and no others */
	TimeLineID	tli;
	char	   *page;			/* BLCKSZ */
} PageFetchAnswer;

/* Pages that redo passes over.  Only the startup process changes this. */
extern int	PageFetchAwaited;

/* Whether recovery has ended before some of them were replaced */
extern bool PageFetchHasLeft;

struct DoubleWriteSnapshot;

extern Size PageFetchShmemSize(void);
extern void PageFetchShmemInit(void);
extern void PageFetchPutFigures(struct DoubleWriteSnapshot *snapshot);

/* For redo */
extern bool PageFetchAwait(RelFileLocator rlocator, ForkNumber forknum,
						   BlockNumber blkno, bool in_buffer);
extern void PageFetchForget(RelFileLocator rlocator, ForkNumber forknum,
							BlockNumber first, BlockNumber last);
extern void PageFetchForgetDatabase(Oid dbid, Oid spcid);
extern void PageFetchCopyDatabase(Oid src_dbid, Oid src_spcid, Oid dbid, Oid spcid);
extern void PageFetchDropBuffers(void);
extern void PageFetchProceed(void);
extern void PageFetchEnd(void);

/* For all processes */
extern bool PageFetchAwaits(RelFileLocator rlocator, ForkNumber forknum,
							BlockNumber blkno);

pg_noreturn extern void PageFetchMain(Datum arg);

/* For walsenders of the primary */
extern void PageFetchAnswerStandby(const char *request_text);

#endif							/* FRONTEND */

#endif							/* XLOGPAGEFETCH_H */
