/*-------------------------------------------------------------------------
 *
 * xlogprogress.h
 *		Recovery that can be watched.
 *
 * See the comment at the head of xlogprogress.c.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/include/access/xlogprogress.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef XLOGPROGRESS_H
#define XLOGPROGRESS_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

typedef struct XLogProgressData XLogProgressData;

/* launch_backend.c hands it over */
extern PGDLLIMPORT XLogProgressData *XLogProgress;

extern Size XLogProgressShmemSize(void);
extern void XLogProgressShmemInit(void);

extern void XLogProgressBegin(XLogRecPtr start, List *timelines);
extern void XLogProgressReport(XLogRecPtr lsn);
extern void XLogProgressShowSegment(XLogSegNo segno, const char *xlogfname);
extern void XLogProgressEnd(void);

extern char *XLogProgressDescribe(void);

#endif							/* XLOGPROGRESS_H */
