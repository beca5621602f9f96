/*-------------------------------------------------------------------------
 *
 * xlogrecentbuf.c
 *	  Buffers in which redo has found blocks lately.
 *
 * Neighbouring records tend to change the same few pages, and a guess is much
 * cheaper than to ask smgr and the buffer table for each of them.  It is no
 * more than that: ReadRecentBuffer() verifies it, so we need not be told when
 * a buffer gets another block.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/xlogrecentbuf.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlogrecentbuf.h"

typedef struct XLogRecentBuffer
{
	RelFileLocator rlocator;
	ForkNumber	forknum;
	BlockNumber blkno;
	Buffer		buffer;
} XLogRecentBuffer;

/* Some pages of each table and index in use; 24 kB fit into the L1 cache. */
#define XLOG_RECENT_BUFFERS		1024

/*
 * Return where the buffer of a block is remembered.  It is InvalidBuffer if
 * that was the place of another block until now.
 */
Buffer *
XLogFindRecentBuffer(const RelFileLocator *rlocator, ForkNumber forknum,
					 BlockNumber blkno)
{
	static XLogRecentBuffer entries[XLOG_RECENT_BUFFERS];
	XLogRecentBuffer *entry;

	/* Maps have low numbers, as have the first pages of the table. */
	entry = &entries[(blkno + forknum * 331 + rlocator->relNumber * 31) %
					 XLOG_RECENT_BUFFERS];
	if (entry->blkno != blkno || entry->forknum != forknum ||
		!RelFileLocatorEquals(entry->rlocator, *rlocator))
	{
		entry->rlocator = *rlocator;
		entry->forknum = forknum;
		entry->blkno = blkno;
		entry->buffer = InvalidBuffer;
	}
	return &entry->buffer;
}
