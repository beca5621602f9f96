/*-------------------------------------------------------------------------
 *
 * xlogrecentbuf.h
 *	  Buffers in which redo has found blocks lately.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/access/xlogrecentbuf.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGRECENTBUF_H
#define XLOGRECENTBUF_H

#include "storage/block.h"
#include "storage/buf.h"
#include "storage/relfilelocator.h"

extern Buffer *XLogFindRecentBuffer(const RelFileLocator *rlocator,
									ForkNumber forknum, BlockNumber blkno);

#endif							/* XLOGRECENTBUF_H */
