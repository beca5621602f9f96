/*-------------------------------------------------------------------------
 *
 * xlogreadprogress.h
 *		How far the reads are that recovery has asked for ahead.
 *
 * See the comment at the head of xlogreadprogress.c.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/include/access/xlogreadprogress.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGREADPROGRESS_H
#define XLOGREADPROGRESS_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/buf_internals.h"

/* So many blocks of a window are looked at: enough to be right within 5 %. */
#define READ_PROGRESS_SAMPLE	100

/* What redo should take, by what has been learnt */
typedef struct XLogReadExpectation
{
	uint64		blocks;			/* to be read for all WAL */
	int64		reads_usec;		/* that takes so long */
	int64		wal_usec;		/* and redo without reads so long */
	int64		ahead_usec;		/* and looking for blocks in the rest of WAL */
} XLogReadExpectation;

/* Blocks that were asked for at once */
typedef struct XLogReadWindow
{
	XLogRecPtr	end;			/* WAL up to here needs them */
	uint64		nblocks;
	int			nsampled;
	BufferTag	sampled[READ_PROGRESS_SAMPLE];
} XLogReadWindow;

/* Two windows may be under way, the older one first. */
typedef struct XLogReadWindows
{
	TimestampTz begin;			/* when the first were asked for */
	uint64		nblocks_before; /* of older ones, which have been read */
	XLogReadWindow windows[2];
	XLogRecPtr	tell_until;		/* while redo is before, reads tell how far it is */
	XLogReadExpectation expected;
} XLogReadWindows;

/*
 * In shared memory.  Written by the pipeline's process, and by the startup
 * process before that one is there; "changes" is odd meanwhile.
 */
typedef struct XLogReadProgress
{
	pg_atomic_uint32 changes;
	XLogReadWindows data;
} XLogReadProgress;

extern void XLogReadProgressInit(XLogReadProgress *progress);
extern void XLogReadProgressReset(XLogReadProgress *progress);
extern uint64 XLogReadProgressCounted(const XLogReadProgress *progress);
extern void XLogReadProgressAdd(XLogReadProgress *progress, XLogRecPtr end,
								XLogRecPtr tell_until,
								const BufferTag *blocks, int nblocks,
								const XLogReadExpectation *expected);
extern bool XLogReadProgressGet(XLogReadProgress *progress, XLogReadWindows *copy);
extern double XLogReadProgressShare(const XLogReadWindows *windows, XLogRecPtr replayed);

#endif							/* XLOGREADPROGRESS_H */
