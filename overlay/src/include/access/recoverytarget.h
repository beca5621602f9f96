/*-------------------------------------------------------------------------
 *
 * recoverytarget.h
 *		How long crash recovery would take, and checkpoints that keep it short.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * src/include/access/recoverytarget.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECOVERYTARGET_H
#define RECOVERYTARGET_H

#include "access/xlogdefs.h"

/* GUC */
extern PGDLLIMPORT int crash_recovery_target;

extern Size RecoveryTargetShmemSize(void);
extern void RecoveryTargetShmemInit(void);

/* for the startup process, in this order */
extern void RecoveryTargetBegin(void);
extern void RecoveryTargetDirectorySynced(bool crashed, XLogRecPtr redo);
extern void RecoveryTargetRestored(void);
extern void RecoveryTargetRedoBegins(bool crash_recovery, XLogRecPtr redo);
extern void RecoveryTargetLearnNothing(void);
extern void RecoveryTargetRedoEnded(void);
extern void RecoveryTargetEnding(void);
extern void RecoveryTargetEnded(bool checkpoint_follows);
extern void RecoveryTargetStarted(void);

/* ... while it replays WAL */
extern void RecoveryTargetPassedRedo(XLogRecPtr redo);
extern void RecoveryTargetCanRestartAt(XLogRecPtr redo);

/* ... and has replayed all up to here: a standby may be where it had been */
extern PGDLLIMPORT XLogRecPtr RecoveryTargetCaughtUpAt;
extern void RecoveryTargetCaughtUp(XLogRecPtr lsn);

static inline void
RecoveryTargetReplayed(XLogRecPtr lsn)
{
	if (unlikely(lsn >= RecoveryTargetCaughtUpAt))
		RecoveryTargetCaughtUp(lsn);
}

/* for those who make checkpoints and restartpoints */
extern void RecoveryTargetCheckpointBegins(XLogRecPtr redo);
extern void RecoveryTargetCheckpointDone(XLogRecPtr redo);

/* for the checkpointer */
extern void RecoveryTargetLook(bool busy);
extern bool RecoveryTargetWantsCheckpoint(int elapsed_secs);
extern double RecoveryTargetElapsed(void);
extern int	RecoveryTargetSleep(int timeout);

/* xlog.c: what it takes to open before the checkpoint */
extern bool CrashRecoveryNeedsCheckpoint(void);

#endif							/* RECOVERYTARGET_H */
