/*-------------------------------------------------------------------------
 *
 * xlogpipeline.h
 *		Decoding WAL in a process of its own, ahead of redo.
 *
 * See the comment at the head of xlogpipeline.c.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/include/access/xlogpipeline.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGPIPELINE_H
#define XLOGPIPELINE_H

#include "access/xlogdefs.h"
#include "access/xlogreader.h"

/* GUCs */
extern PGDLLIMPORT bool wal_pipeline;
extern PGDLLIMPORT int wal_pipeline_queue_size;

/*
 * It is not worth while to hand over less WAL than this: handing over and
 * taking back costs a few wake-ups, decoding this much takes about as long.
 */
#define XLOG_PIPELINE_MIN_RANGE (16 * XLOG_BLCKSZ)

/* Limit of a range that ends only where the files end. */
#define XLOG_PIPELINE_NO_LIMIT	PG_UINT64_MAX

extern Size XLogPipelineShmemSize(void);
extern void XLogPipelineShmemInit(void);

/* for the startup process */
extern void XLogPipelineStart(void);
extern void XLogPipelineSuspendReads(bool suspended);
extern void XLogPipelineStop(void);
extern bool XLogPipelineIsIdle(void);
extern bool XLogPipelineIsEngaged(void);
extern bool XLogPipelineEngage(XLogReaderState *reader, XLogRecPtr limit,
							   TimeLineID fileTLI);
extern DecodedXLogRecord *XLogPipelineNextRecord(void);

/* for bgworker.c */
pg_noreturn extern void XLogPipelineMain(Datum main_arg);

#endif							/* XLOGPIPELINE_H */
