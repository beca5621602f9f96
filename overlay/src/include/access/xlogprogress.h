/*-------------------------------------------------------------------------
 *
 * xlogprogress.h
 *		Recovery that can be watched.
 *
 * See the comment at the head of xlogprogress.c.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
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
#include "utils/guc.h"

/* show_recovery_progress: which clients are told about progress when refused */
typedef enum ShowRecoveryProgress
{
	SHOW_RECOVERY_PROGRESS_OFF,
	SHOW_RECOVERY_PROGRESS_LOCAL,	/* clients of Unix-domain sockets */
	SHOW_RECOVERY_PROGRESS_ON,
} ShowRecoveryProgress;

struct Port;

extern PGDLLIMPORT int show_recovery_progress;
extern PGDLLIMPORT const struct config_enum_entry show_recovery_progress_options[];

typedef struct XLogProgressData XLogProgressData;

/* launch_backend.c hands it over */
extern PGDLLIMPORT XLogProgressData *XLogProgress;

extern Size XLogProgressShmemSize(void);
extern void XLogProgressShmemInit(void);

extern void XLogProgressBegin(XLogRecPtr start, List *timelines);
extern void XLogProgressReport(XLogRecPtr lsn);
extern void XLogProgressReportAgain(void);
extern void XLogProgressShowSegment(XLogSegNo segno, const char *xlogfname);
extern void XLogProgressEnd(void);

extern char *XLogProgressForClient(const struct Port *port);

#endif							/* XLOGPROGRESS_H */
