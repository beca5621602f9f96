/*-------------------------------------------------------------------------
 *
 * xlogblockfilter.h
 *		Which blocks can be read ahead of redo by another process?
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

typedef bool (*XLogExamineRecordCallback) (DecodedXLogRecord *record);
typedef void (*XLogExamineReadCallback) (DecodedBkpBlock *block);

/* Blocks must not be read ahead now; see XLogPipelineSuspendReads(). */
extern bool XLogExamineSuspended;

extern void XLogExamineInit(XLogReaderState *reader, size_t decode_buffer_size,
							XLogExamineRecordCallback record_done,
							XLogExamineReadCallback read_started);
extern void XLogExamineRestart(void);
extern void XLogExamineContinue(XLogRecPtr prev, XLogRecPtr next);
extern void XLogExamineRelease(XLogRecPtr replaying);
extern void XLogExamineAhead(XLogRecPtr replayed_up_to);

/*
 * Return whether it is a record of new hints without an image of the page.  Redo
 * does nothing with it: see XLOG_FPI_FOR_HINT in xlog_redo().
 */
static inline bool
XLogExamineIsBareHint(const DecodedXLogRecord *record, const DecodedBkpBlock *block)
{
	return record->header.xl_rmid == RM_XLOG_ID && !block->has_image;
}

#endif							/* XLOGBLOCKFILTER_H */
