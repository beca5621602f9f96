/*-------------------------------------------------------------------------
 *
 * recoverytarget_internal.h
 *		What the files that estimate crash recovery share.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * src/include/access/recoverytarget_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECOVERYTARGET_INTERNAL_H
#define RECOVERYTARGET_INTERNAL_H

#include "access/recoverytarget.h"
#include "storage/doublewrite_forecast.h"
#include "storage/spin.h"

/*
 * Blocks changed by so much WAL since a redo pointer, one sample for each doubling
 * of WAL from 64 kB to 64 GB.  For advice.
 */
#define CURVE_MIN_SHIFT		16
#define CURVE_SAMPLES		20

typedef struct CurveSample
{
	uint64		wal;			/* 0: never got there */
	uint64		blocks;
} CurveSample;

/* What had been counted at a redo pointer */
typedef struct CountsAtRedo
{
	XLogRecPtr	redo;
	uint64		first;			/* as in DoubleWriteReads */
	uint64		repeated;
} CountsAtRedo;

/* What the estimate is made of, by part, and what it is the sum of */
typedef struct RecoveryEstimate
{
	CrashRecoveryWork work;
	uint64		blocks;			/* changed since redo, read or restored */
	int64		usec[CRASH_RECOVERY_PARTS];
	int64		total;

	int64		limit;			/* of what checkpoints can change of it */
	int64		redone;			/* ... which it would be if nothing were in
								 * the log */
	bool		waits;			/* clients do, for a checkpoint */
	CrashRecoveryCosts costs;
} RecoveryEstimate;

typedef struct RecoveryTargetData
{
	slock_t		mutex;			/* guards all below, but for reading flags */

	CountsAtRedo last;			/* crash recovery would begin here */
	CountsAtRedo pending;		/* checkpoint under way */
	CountsAtRedo replayed;		/* newest redo pointer that redo has met ... */
	CountsAtRedo restart;		/* ... and that a restartpoint can be made of */

	CrashRecoveryWork redo_forecast;	/* of crash recovery under way; its end
										 * is invalid if there is none */

	CrashRecoveryCosts costs;
	uint32		additions;		/* to the scores, in this life */
	uint32		nscores;
	CrashRecoveryScore scores[CRASH_RECOVERY_SCORES];

	CurveSample curve[CURVE_SAMPLES];

	uint64		checkpoints;	/* begun because of the target */

	/* flags */
	bool		restarted;		/* by a postmaster that has survived the crash */
	bool		ready;			/* costs are known, and clients don't wait */
	bool		intact;			/* the file is, so it can be overwritten */
	bool		unsaved;		/* something has been learnt since it was
								 * written, or it cannot be used */
} RecoveryTargetData;

extern RecoveryTargetData *RecoveryTarget;

/* recoverycosts.c */
extern void RecoveryCostsInit(CrashRecoveryCosts *costs);
extern void RecoveryCostsLearn(CrashRecoveryCosts *costs,
							   const CrashRecoveryScore *scores, int nscores);
extern void RecoveryTimes(const CrashRecoveryWork *work,
						  const CrashRecoveryCosts *costs, int64 *usec);
extern int64 RecoveryRest(const int64 *usec);
extern int64 RecoveryRedone(uint64 blocks, uint64 wal, bool waits,
							const CrashRecoveryCosts *costs);
extern int64 RecoveryWorst(int64 limit, uint64 blocks, uint64 wal,
						   uint64 more_blocks, uint64 more_wal, bool waits,
						   const CrashRecoveryCosts *costs);
extern int64 RecoveryLimit(int64 target, int64 start);
extern bool RecoveryNeedsCycle(int64 limit, int64 rest, int64 redone,
							   uint64 log_pages);
extern bool RecoveryNeedsCheckpoint(int64 limit, uint64 blocks, uint64 wal,
									bool waits, const CrashRecoveryCosts *costs);

/* recoveryforecast.c */
extern bool RecoveryFileRead(bool crashed, CrashRecoveryFile *file,
							 bool *forecast_usable, bool *record_usable);
extern bool RecoveryFileReplace(const RecoveryEstimate *estimate, int elevel);
extern bool RecoveryForecastReplace(const RecoveryEstimate *estimate, bool sync);

/* recoveryfigures.c */
extern void RecoveryFiguresInit(void);
extern void RecoverySampleCurve(const RecoveryEstimate *estimate);

/* recoverytarget.c */
extern void RecoveryEstimateNow(RecoveryEstimate *estimate);
extern bool RecoveryEndsWithCheckpoint(void);
extern int64 RecoveryTargetUsec(void);

#endif							/* RECOVERYTARGET_INTERNAL_H */
