/*-------------------------------------------------------------------------
 *
 * xlogblockfilter.h
 *		Choosing blocks of WAL that another process may read ahead of redo.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/access/xlogblockfilter.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGBLOCKFILTER_H
#define XLOGBLOCKFILTER_H

#include "access/rmgr.h"
#include "access/xlogreader.h"

typedef bool (*XLogBlockFilterRecordCallback) (DecodedXLogRecord *record);
typedef void (*XLogBlockFilterReadCallback) (DecodedBkpBlock *block);

/* Blocks must not be read ahead now; see XLogPipelineSuspendReads(). */
extern bool XLogBlockFilterSuspended;

extern void XLogBlockFilterInit(XLogReaderState *reader, size_t decode_buffer_size,
								XLogBlockFilterRecordCallback record_done,
								XLogBlockFilterReadCallback read_started);
extern void XLogBlockFilterForgetReads(void);
extern void XLogBlockFilterContinue(XLogRecPtr prev, XLogRecPtr next);
extern void XLogBlockFilterRelease(XLogRecPtr replaying);
extern void XLogBlockFilterAdvance(XLogRecPtr replayed_up_to);

/*
 * Return whether it is a record of new hints without an image of the page.  Redo
 * does nothing with it: see XLOG_FPI_FOR_HINT in xlog_redo().
 */
static inline bool
XLogBlockFilterIsBareHint(const DecodedXLogRecord *record, const DecodedBkpBlock *block)
{
	return record->header.xl_rmid == RM_XLOG_ID && !block->has_image;
}

#endif							/* XLOGBLOCKFILTER_H */
