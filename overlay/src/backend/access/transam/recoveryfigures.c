/*-------------------------------------------------------------------------
 *
 * recoveryfigures.c
 *		What views show of crash recovery to come: its duration, and advice.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/recoveryfigures.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/recoverytarget_internal.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "port/pg_bitutils.h"
#include "replication/walreceiver.h"
#include "storage/doublewrite.h"
#include "storage/doublewrite_stats.h"

/*
 * Remember how many blocks so much WAL has changed.
 */
void
RecoverySampleCurve(const RecoveryEstimate *estimate)
{
	uint64		wal = estimate->work.end - Min(estimate->work.redo, estimate->work.end);
	int			i;

	if (wal < (1 << CURVE_MIN_SHIFT))
		return;
	i = Min(pg_leftmost_one_pos64(wal) - CURVE_MIN_SHIFT, CURVE_SAMPLES - 1);
	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->curve[i] = (CurveSample)
	{
		wal, estimate->blocks
	};
	SpinLockRelease(&RecoveryTarget->mutex);
}

/*
 * How many blocks does so much WAL change?  Between the samples and beyond
 * them, as if the curve were straight.
 */
static double
blocks_changed_by(const CurveSample *curve, double wal)
{
	CurveSample a = {0};
	CurveSample b = {0};

	for (int i = 0; i < CURVE_SAMPLES; i++)
	{
		if (curve[i].wal == 0)
			continue;
		if (b.wal > 0 && b.wal >= wal)
			break;
		a = b;
		b = curve[i];
	}
	if (b.wal == 0)
		return 0;
	return Max(a.blocks + ((double) b.blocks - a.blocks) * (wal - a.wal) / (b.wal - a.wal), 0);
}

/*
 * How much WAL can there be between checkpoints, so that crash recovery takes
 * no longer than a target?
 */
static double
wal_between_checkpoints(const CurveSample *curve, const CrashRecoveryCosts *costs,
						int64 target)
{
	double		low = (double) (1 << CURVE_MIN_SHIFT);
	double		high = (double) CheckPointSegments * wal_segment_size;
	bool		waits = RecoveryEndsWithCheckpoint();
	int64		limit = RecoveryLimit(target, costs->nsec[CRASH_RECOVERY_PER_START] / 1000);

	while (high - low > low / 64)
	{
		double		middle = (low + high) / 2;
		uint64		blocks = blocks_changed_by(curve, middle);

		if (RecoveryNeedsCheckpoint(limit, blocks, (uint64) middle, waits, costs))
			high = middle;
		else
			low = middle;
	}
	return low;
}

/*
 * What targets would cost.  Four rows: half of the target in force, itself,
 * twice and four times that; without a target, some that people choose.
 */
static void
put_advice(DoubleWriteSnapshot *snapshot)
{
	static const char *const target_names[] = {
		"advice_1_target", "advice_2_target", "advice_3_target", "advice_4_target"
	};
	static const char *const wal_names[] = {
		"advice_1_wal", "advice_2_wal", "advice_3_wal", "advice_4_wal"
	};
	static const char *const write_names[] = {
		"advice_1_writes", "advice_2_writes", "advice_3_writes", "advice_4_writes"
	};
	static const int usual[] = {5, 15, 60, 300};
	static const double factors[] = {0.5, 1, 2, 4};
	CurveSample curve[CURVE_SAMPLES];
	CrashRecoveryCosts costs;

	SpinLockAcquire(&RecoveryTarget->mutex);
	memcpy(curve, RecoveryTarget->curve, sizeof(curve));
	costs = RecoveryTarget->costs;
	SpinLockRelease(&RecoveryTarget->mutex);

	for (int i = 0; i < lengthof(factors); i++)
	{
		int64		target = crash_recovery_target == 0 ?
			usual[i] * USECS_PER_SEC : (int64) (RecoveryTargetUsec() * factors[i]);
		double		wal = wal_between_checkpoints(curve, &costs, target);
		double		blocks = blocks_changed_by(curve, wal);

		DoubleWritePutFigure(snapshot, target_names[i], target);
		/* one that the start alone exceeds cannot be met */
		if (target <= costs.nsec[CRASH_RECOVERY_PER_START] / 1000 || blocks == 0)
			continue;
		DoubleWritePutFigure(snapshot, wal_names[i], (int64) wal);
		DoubleWritePutFigure(snapshot, write_names[i],
							 (int64) (blocks / wal * 1024 * 1024 * 1024));
	}
}

/*
 * On a standby: how long would a promotion take that began now?  WAL that has
 * been received is replayed first.
 */
static void
put_promotion(DoubleWriteSnapshot *snapshot, const RecoveryEstimate *estimate)
{
	XLogRecPtr	received = GetWalRcvFlushRecPtr(NULL, NULL);
	XLogRecPtr	replayed = estimate->work.end;
	double		wal = replayed - Min(estimate->work.redo, replayed);
	double		lag = received - Min(received, replayed);
	double		usec = wal > 0 ? estimate->usec[CRASH_RECOVERY_REDO] * (lag / wal) : 0;

	DoubleWritePutFigure(snapshot, "recovery_lag", (int64) lag);
	/* where little has been replayed, a little may stand for all */
	DoubleWritePutFigure(snapshot, "recovery_promotion",
						 (int64) Min(usec, (double) CRASH_RECOVERY_MAX_USEC));
}

static void
put_figures(DoubleWriteSnapshot *snapshot)
{
	static const char *const part_names[CRASH_RECOVERY_PARTS] = {
		[CRASH_RECOVERY_START] = "recovery_start",
		[CRASH_RECOVERY_LOG] = "recovery_log",
		[CRASH_RECOVERY_RESTORE] = "recovery_restore",
		[CRASH_RECOVERY_REDO] = "recovery_redo",
		[CRASH_RECOVERY_CHECKPOINT] = "recovery_checkpoint",
	};
	RecoveryEstimate estimate;
	uint64		checkpoints;
	uint32		learnt;

	SpinLockAcquire(&RecoveryTarget->mutex);
	checkpoints = RecoveryTarget->checkpoints;
	learnt = RecoveryTarget->costs.learnt[CRASH_RECOVERY_PER_START];
	SpinLockRelease(&RecoveryTarget->mutex);

	RecoveryEstimateNow(&estimate);
	RecoverySampleCurve(&estimate);
	DoubleWritePutFigure(snapshot, "recovery_target", RecoveryTargetUsec());
	DoubleWritePutFigure(snapshot, "recovery_total", estimate.total);
	for (int i = 0; i < CRASH_RECOVERY_PARTS; i++)
		DoubleWritePutFigure(snapshot, part_names[i], estimate.usec[i]);
	DoubleWritePutFigure(snapshot, "recovery_from", estimate.work.redo);
	DoubleWritePutFigure(snapshot, "recovery_wal",
						 estimate.work.end - Min(estimate.work.redo, estimate.work.end));
	DoubleWritePutFigure(snapshot, "recovery_reads", estimate.work.reads);
	DoubleWritePutFigure(snapshot, "recovery_log_bytes", estimate.work.log_bytes);
	DoubleWritePutFigure(snapshot, "recovery_log_pages", estimate.work.log_pages);
	DoubleWritePutFigure(snapshot, "recovery_learnt_from", learnt);
	DoubleWritePutFigure(snapshot, "recovery_checkpoints", checkpoints);
	if (RecoveryInProgress())
		put_promotion(snapshot, &estimate);
	put_advice(snapshot);
}

void
RecoveryFiguresInit(void)
{
	DoubleWriteAddFigures(put_figures);
}
