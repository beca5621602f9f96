/*-------------------------------------------------------------------------
 *
 * xlogexamine.h
 *		Which blocks can be read ahead of redo by another process?
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * src/include/access/xlogexamine.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGEXAMINE_H
#define XLOGEXAMINE_H

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

#endif							/* XLOGEXAMINE_H */
