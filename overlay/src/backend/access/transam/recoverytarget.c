/*-------------------------------------------------------------------------
 *
 * recoverytarget.c
 *		How long crash recovery would take, and checkpoints that keep it short.
 *
 * A server that must be back soon after a crash needs frequent checkpoints, and
 * how frequent they must be depends on what redo has to read, not on the size
 * of WAL: without full-page images in WAL that is small, but redo reads each
 * page that it changes.  So administrators say how long crash recovery may take
 * (crash_recovery_target), and the server makes the checkpoints.
 *
 * Estimate
 * --------
 * What there would be to do is counted: WAL since the redo pointer, blocks that
 * it changes without bringing an image, the live part of the double-write log,
 * and the pages in it (storage/doublewrite/reads.c).  What that costs is learnt
 * from the crash recoveries of this cluster (recoverycosts.c).  The estimate is
 * the sum of
 *
 *		start		what is the same each time: sync of the data directory,
 *					removal of what the crash left, and so on
 *		log			live bytes of the log * cost
 *		restore		pages in it * cost
 *		redo		WAL * processor time, or the cost of the blocks to be read,
 *					whichever is more: the WAL pipeline reads while redo works
 *		checkpoint	if clients would have to wait for it: blocks * cost
 *
 * Forecast and record
 * -------------------
 * After a crash the estimate is gone with shared memory, so with a target the
 * checkpointer writes it to a file as it changes (recoveryforecast.c).  The
 * forecast is brought up to date with what the start finds: the end of WAL, and
 * whether clients wait for a checkpoint.  When recovery is over, the startup process
 * logs what was predicted and what it took, adds that to the record (the scorecard),
 * and learns.  The checkpointer writes that to the file: clients don't wait for it.
 *
 * A restart after the crash of one process, by the same postmaster, is neither put on
 * record nor learnt from: all that it reads is in the kernel's cache.  It would teach
 * that recovery costs next to nothing, and the target would ask for no checkpoint until
 * the machine crashes.
 *
 * Durations are those of a clock that nobody sets.
 *
 * Steering
 * --------
 * Checkpoints are ordinary ones.  With the target as the limit of the estimate,
 * they are begun and paced as those that max_wal_size asks for: such that they
 * complete before what has changed meanwhile gets there, if that is as much as
 * before, times checkpoint_completion_target.  With double writes a checkpoint
 * copies each page to the log, and if the server crashes before it completes, they are
 * restored instead of being read by redo.  Where that takes longer it counts from
 * the beginning, or sync cycles free the log when it makes recovery longer by
 * some share of the target: whatever comes to less.  The estimate counts from the redo pointer of the last completed
 * checkpoint, hence falls only when one completes.  What no checkpoint can change,
 * the start, is subtracted from target and estimate first.  If little or nothing is
 * left of the target, a quarter of it serves as the limit of the rest.
 *
 * However small the target is, checkpoints keep a distance in time, and are spread over
 * it if there is no more room: checkpoints back to back, at full speed, would cost
 * more than they could gain.  A target that cannot be met is reported, once.
 *
 * The checkpointer looks when enough blocks have been counted to make a difference
 * (DoubleWriteLookAtReads()), and each second, for what grows without them.  Clients
 * are never held up.
 *
 * On a standby the same goes for restartpoints, and the estimate is for a
 * restart: a recovery from the last restartpoint to where replay is now.  There a
 * checkpoint must have been replayed that a restartpoint can be made of.  After a
 * crash of a standby its recovery does not end, so it counts, and is learnt from, until
 * replay is where it had been.  Without a forecast that is not known.
 *
 * Without a target the counters are kept, for views and for the day on which there is a
 * target, and crash recoveries are timed.  Nothing else is done.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/recoverytarget.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/resource.h>

#include "access/recoverytarget_internal.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "access/xlogpipeline.h"
#include "access/xlogprogress.h"
#include "access/xlogreadprogress.h"
#include "access/xlogrecovery.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "postmaster/bgwriter.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite.h"
#include "storage/doublewrite_stats.h"
#include "storage/shmem.h"
#include "utils/guc_tables.h"
#include "utils/injection_point.h"
#include "utils/timestamp.h"

/* The estimate is looked at again when it may have grown by so much. */
#define LOOK_SHARE			(1.0 / 32)
#define LOOK_MIN_READS		32

/* An older forecast is not extrapolated further than this. */
#define MAX_EXTRAPOLATION	2.0

/* How often the checkpointer looks at what grows without reads, in seconds */
#define LOOK_INTERVAL		1

/* ... and writes a forecast whose end of WAL alone is out of date */
#define SAVE_INTERVAL		5

/*
 * From the beginning of a checkpoint to that of one that the target asks for: so
 * many seconds, or this part of the target if that is more.
 */
#define LEAST_DISTANCE		2
#define DISTANCE_SHARE		4

/* A checkpoint that has failed, or was skipped, is asked for again after seconds. */
#define RETRY_INTERVAL		15

RecoveryTargetData *RecoveryTarget = NULL;

/* GUC */
int			crash_recovery_target = 0;

/* The recovery under way, for the startup process */
typedef struct RecoveryUnderWay
{
	bool		crashed;		/* nothing was stopped in order */
	bool		crash;			/* this is crash recovery */
	bool		forecast_known;
	bool		waited;			/* clients did, for a checkpoint */
	CrashRecoveryForecast forecast;
	CrashRecoveryWork work;
	int64		usec[CRASH_RECOVERY_PARTS];
	instr_time	mark;			/* end of the part before */
	int64		cpu_usec;		/* of redo; at its start, the negative of all
								 * before */
} RecoveryUnderWay;

static RecoveryUnderWay recovery;

/* Where a standby was when it crashed, until replay has got there */
XLogRecPtr	RecoveryTargetCaughtUpAt = PG_UINT64_MAX;

/* Why a target is not met */
typedef enum RecoveryObstacle
{
	OBSTACLE_NONE,
	OBSTACLE_START,				/* takes longer by itself */
	OBSTACLE_DISTANCE,			/* of checkpoints, which is the least already */
} RecoveryObstacle;

/* Steering, for the checkpointer */
typedef struct RecoverySteering
{
	instr_time	last_look;
	RecoveryEstimate at_begin;	/* of the last checkpoint */
	instr_time	begun;			/* when that was; zero: none has */
	XLogRecPtr	asked_from;		/* redo pointer when one was asked for last */
	instr_time	asked;			/* ... and when that was */
	XLogRecPtr	asked_important;	/* ... and the last important record then */
	bool		held_up;		/* one must wait, and the target is exceeded */
	RecoveryObstacle told;		/* what has been reported */
	int			told_target;	/* ... for this target */

	/* the file */
	bool		failed;			/* could not be written */
	RecoveryEstimate saved;
	instr_time	saved_at;
} RecoverySteering;

static RecoverySteering steering;

static double
seconds_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_DOUBLE(now);
}

int64
RecoveryTargetUsec(void)
{
	return (int64) crash_recovery_target * USECS_PER_SEC;
}

/* ---------------------------------------------------------------------
 * Estimates
 * ---------------------------------------------------------------------
 */

/*
 * Has one of the settings been changed for which the end-of-recovery checkpoint is
 * needed when the server comes up with its new value?
 */
static bool
settings_await_restart(void)
{
	static const char *const names[] = {
		"wal_level", "wal_log_hints", "track_commit_timestamp"
	};

	for (int i = 0; i < lengthof(names); i++)
	{
		if (find_option(names[i], false, false, ERROR)->status & GUC_PENDING_RESTART)
			return true;
	}
	return false;
}

/*
 * If the server crashed now, would clients wait for a checkpoint?  A standby
 * goes on as a standby.
 */
bool
RecoveryEndsWithCheckpoint(void)
{
	return !RecoveryInProgress() &&
		(CrashRecoveryNeedsCheckpoint() || settings_await_restart() ||
		 DoubleWriteDropsAhead(TransamVariables->nextOid + TransamVariables->oidCount));
}

static uint64
wal_of(const CrashRecoveryWork *work)
{
	return work->end - work->redo;
}

/*
 * What would crash recovery take if it came now?
 */
void
RecoveryEstimateNow(RecoveryEstimate *estimate)
{
	CrashRecoveryWork *work = &estimate->work;
	DoubleWriteReads reads;
	CountsAtRedo last;
	uint64		first;
	uint64		repeated;
	uint64		buffered;

	SpinLockAcquire(&RecoveryTarget->mutex);
	last = RecoveryTarget->last;
	estimate->costs = RecoveryTarget->costs;
	SpinLockRelease(&RecoveryTarget->mutex);
	estimate->waits = RecoveryEndsWithCheckpoint();

	DoubleWriteCountReads(&reads);
	first = reads.first - Min(last.first, reads.first);
	repeated = reads.repeated - Min(last.repeated, reads.repeated);

	work->redo = last.redo;
	work->end = RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) :
		GetXLogInsertRecPtr();
	work->end = Max(work->end, work->redo);
	work->log_pages = reads.log_pages + reads.log_notes;
	work->log_bytes = reads.log_bytes;

	/* restore leaves pages in half of shared buffers, where redo finds them */
	estimate->blocks = first - Min(repeated, first);
	buffered = Min(reads.log_pages, (uint64) NBuffers / 2);
	work->reads = estimate->blocks - Min(buffered, estimate->blocks);
	work->written = estimate->waits ? estimate->blocks : 0;

	RecoveryTimes(work, &estimate->costs, estimate->usec);
	estimate->total = CrashRecoverySum(estimate->usec);
	estimate->limit = RecoveryLimit(RecoveryTargetUsec(),
									estimate->usec[CRASH_RECOVERY_START]);
	estimate->redone = RecoveryRedone(estimate->blocks, wal_of(work),
									  estimate->waits, &estimate->costs);
}

/* ---------------------------------------------------------------------
 * Shared memory
 * ---------------------------------------------------------------------
 */

Size
RecoveryTargetShmemSize(void)
{
	return sizeof(RecoveryTargetData);
}

/*
 * How many blocks should redo read by a forecast that may be older than the end of
 * WAL?
 */
static uint64
reads_forecast(const CrashRecoveryWork *forecast, uint64 wal)
{
	double		factor = 1;

	if (forecast->end > forecast->redo)
		factor = Max((double) wal / wal_of(forecast), 1);
	return forecast->reads * Min(factor, MAX_EXTRAPOLATION);
}

/*
 * How long should redo of so many bytes of WAL take that has so many blocks to read,
 * in microseconds?
 */
static int64
redo_usec(uint64 reads, uint64 wal, const CrashRecoveryCosts *costs)
{
	CrashRecoveryWork work = {.end = wal,.reads = reads};
	int64		usec[CRASH_RECOVERY_PARTS];

	RecoveryTimes(&work, costs, usec);
	return usec[CRASH_RECOVERY_REDO];
}

/*
 * For the pipeline's process: what should redo take of WAL with so many blocks to
 * read for its first 'ahead' bytes?  Without a forecast the rest is taken to be like
 * these, which is too much if it changes the same blocks.
 */
static void
expect_redo(uint64 blocks, uint64 ahead, uint64 wal, XLogReadExpectation *expected)
{
	CrashRecoveryCosts costs;
	CrashRecoveryWork forecast;

	SpinLockAcquire(&RecoveryTarget->mutex);
	costs = RecoveryTarget->costs;
	forecast = RecoveryTarget->redo_forecast;
	SpinLockRelease(&RecoveryTarget->mutex);

	Assert(ahead > 0 && ahead <= wal);
	if (ahead == wal)
		expected->blocks = blocks;	/* that was all, so nothing need be
									 * guessed */
	else if (XLogRecPtrIsInvalid(forecast.end))
		expected->blocks = (uint64) (blocks * ((double) wal / ahead));
	else
		expected->blocks = Max(reads_forecast(&forecast, wal), blocks);
	expected->reads_usec = redo_usec(expected->blocks, 0, &costs);
	expected->wal_usec = redo_usec(0, wal, &costs);
}

void
RecoveryTargetShmemInit(void)
{
	static bool made_before = false;
	bool		found;

	RecoveryTarget = (RecoveryTargetData *)
		ShmemInitStruct("Crash Recovery Target", RecoveryTargetShmemSize(), &found);
	if (!found)
	{
		MemSet(RecoveryTarget, 0, RecoveryTargetShmemSize());
		SpinLockInit(&RecoveryTarget->mutex);
		RecoveryCostsInit(&RecoveryTarget->costs);
		RecoveryTarget->restarted = made_before;
		made_before = true;
	}
	RecoveryFiguresInit();
	xlog_progress_expect_redo = expect_redo;
}

/* ---------------------------------------------------------------------
 * The file, by the checkpointer
 * ---------------------------------------------------------------------
 */

/*
 * Write what has changed.  If that fails, it is said once, and not tried again before
 * the next checkpoint has completed.
 */
static void
save(const RecoveryEstimate *estimate, bool checkpoint_done)
{
	uint32		additions;
	bool		done;

	Assert(AmCheckpointerProcess() || !IsUnderPostmaster);
	Assert(RecoveryTarget->ready);

	if (steering.failed && !checkpoint_done)
		return;
	INJECTION_POINT("crash-recovery-file", NULL);

	done = RecoveryTarget->intact && !RecoveryTarget->unsaved &&
		RecoveryForecastReplace(estimate, checkpoint_done);
	if (!done)
	{
		SpinLockAcquire(&RecoveryTarget->mutex);
		additions = RecoveryTarget->additions;
		SpinLockRelease(&RecoveryTarget->mutex);
		done = RecoveryFileReplace(estimate, steering.failed ? DEBUG1 : LOG);

		/* a standby may have caught up, and learnt from it, meanwhile */
		SpinLockAcquire(&RecoveryTarget->mutex);
		RecoveryTarget->intact = done;
		if (done && RecoveryTarget->additions == additions)
			RecoveryTarget->unsaved = false;
		SpinLockRelease(&RecoveryTarget->mutex);
	}
	steering.failed = !done;
	if (estimate != NULL)
		steering.saved = *estimate;
	INSTR_TIME_SET_CURRENT(steering.saved_at);
}

/*
 * Is the forecast in the file too old?  One that is right but for a little may
 * be, if nothing else happens.
 */
static bool
differs_from_saved(const RecoveryEstimate *estimate)
{
	const RecoveryEstimate *saved = &steering.saved;
	int64		off = estimate->total - saved->total;

	if (estimate->work.redo != saved->work.redo ||
		i64abs(off) > estimate->total * LOOK_SHARE / 4)
		return true;
	return estimate->work.end != saved->work.end &&
		seconds_since(steering.saved_at) > SAVE_INTERVAL;
}

/* ---------------------------------------------------------------------
 * A recovery, as seen by the startup process
 * ---------------------------------------------------------------------
 */

/*
 * Processor time that this process has used.
 */
static int64
cpu_usec(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage) != 0)
		return 0;
	return (int64) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * USECS_PER_SEC +
		usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/*
 * A part has ended: what has passed since the last one was its.
 */
static void
part_ended(CrashRecoveryPart part)
{
	instr_time	now;
	instr_time	passed;

	INSTR_TIME_SET_CURRENT(now);
	passed = now;
	INSTR_TIME_SUBTRACT(passed, recovery.mark);
	recovery.mark = now;
	recovery.usec[part] = Min(recovery.usec[part] + INSTR_TIME_GET_MICROSEC(passed),
							  CRASH_RECOVERY_MAX_USEC);
}

/*
 * The server starts.
 */
void
RecoveryTargetBegin(void)
{
	INSTR_TIME_SET_CURRENT(recovery.mark);
}

/*
 * What a crash has left has been made durable.  Take over what earlier recoveries
 * have taught, and what was predicted for this one.
 */
void
RecoveryTargetDirectorySynced(bool crashed, XLogRecPtr redo)
{
	CrashRecoveryFile *file = palloc(sizeof(CrashRecoveryFile));
	bool		record_usable;
	bool		usable;

	INJECTION_POINT("crash-recovery-file-read", NULL);
	usable = RecoveryFileRead(crashed, file, &recovery.forecast_known, &record_usable);
	recovery.forecast = file->u.forecast;

	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->intact = record_usable;
	RecoveryTarget->unsaved = !usable;	/* once reported, it is replaced */
	if (record_usable)
	{
		RecoveryTarget->costs = file->record.costs;
		RecoveryTarget->nscores = file->record.nscores;
		memcpy(RecoveryTarget->scores, file->record.scores, sizeof(file->record.scores));
	}
	RecoveryTarget->last.redo = redo;
	SpinLockRelease(&RecoveryTarget->mutex);
	pfree(file);
	recovery.crashed = crashed;
	part_ended(CRASH_RECOVERY_START);
}

/*
 * The double-write log has been read, and pages have been restored.
 */
void
RecoveryTargetRestored(void)
{
	DoubleWriteSnapshot *snapshot = DoubleWriteTakeSnapshot();
	int64		restore_usec = 0;
	int64		value;

	part_ended(CRASH_RECOVERY_LOG);
	if (DoubleWriteSnapshotValue(snapshot, "restore_usec", &value))
		restore_usec = Min(value, recovery.usec[CRASH_RECOVERY_LOG]);
	if (DoubleWriteSnapshotValue(snapshot, "restore_bytes_read", &value))
		recovery.work.log_bytes = value;
	if (DoubleWriteSnapshotValue(snapshot, "restore_examined", &value))
		recovery.work.log_pages = value;
	pfree(snapshot);
	recovery.usec[CRASH_RECOVERY_LOG] -= restore_usec;
	recovery.usec[CRASH_RECOVERY_RESTORE] += restore_usec;
}

/*
 * Redo begins.  If this is no crash recovery, we are on a standby, which says
 * from now on what its restart would take.
 */
void
RecoveryTargetRedoBegins(bool crash_recovery, XLogRecPtr redo)
{
	part_ended(CRASH_RECOVERY_START);
	recovery.crash = crash_recovery;
	recovery.work.redo = redo;
	recovery.work.reads = 0 - (uint64) pgBufferUsage.shared_blks_read;
	recovery.cpu_usec = -cpu_usec();
	if (!crash_recovery && recovery.crashed && recovery.forecast_known &&
		recovery.forecast.work.redo == redo && recovery_min_apply_delay == 0)
		RecoveryTargetCaughtUpAt = recovery.forecast.work.end;

	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->last.redo = redo;
	if (crash_recovery && recovery.forecast_known &&
		recovery.forecast.work.redo == redo)
		RecoveryTarget->redo_forecast = recovery.forecast.work;
	RecoveryTarget->ready = !crash_recovery;
	SpinLockRelease(&RecoveryTarget->mutex);
}

/*
 * Redo has done what is to be counted.
 */
static void
redo_done(XLogRecPtr end)
{
	part_ended(CRASH_RECOVERY_REDO);
	recovery.work.end = end;
	recovery.work.reads += pgBufferUsage.shared_blks_read + XLogPipelineBlocksRead();
	recovery.cpu_usec = Max(recovery.cpu_usec + cpu_usec(), 0);
}

void
RecoveryTargetRedoEnded(void)
{
	RecoveryTargetCaughtUpAt = PG_UINT64_MAX;
	redo_done(GetXLogReplayRecPtr(NULL));
}

/*
 * Recovery is about to end with a checkpoint, or without one.
 */
void
RecoveryTargetEnding(void)
{
	part_ended(CRASH_RECOVERY_START);
}

void
RecoveryTargetEnded(bool checkpoint_follows)
{
	part_ended(CRASH_RECOVERY_CHECKPOINT);
	recovery.waited = !checkpoint_follows;
}

/*
 * What had been predicted for this recovery?  The forecast may be older than the
 * end of WAL, and settings may have been changed since.
 */
static void
predict(CrashRecoveryScore *score, const CrashRecoveryCosts *costs)
{
	const CrashRecoveryWork *work = &recovery.forecast.work;
	CrashRecoveryWork *predicted = &score->predicted;

	if (!recovery.forecast_known || work->redo != recovery.work.redo)
		return;

	*predicted = *work;
	predicted->end = Max(work->end, recovery.work.end);
	predicted->reads = reads_forecast(work, wal_of(predicted));
	if (!recovery.waited)
		predicted->written = 0;
	else if (predicted->written == 0)
		predicted->written = predicted->reads + predicted->log_pages;
	RecoveryTimes(predicted, costs, score->predicted_usec);
}

/*
 * One line, with what it consists of.
 */
static void
report_score(const CrashRecoveryScore *score)
{
	const int64 *p = score->predicted_usec;
	const int64 *a = score->actual_usec;

	if (XLogRecPtrIsInvalid(score->predicted.redo))
		ereport(LOG,
				(errmsg("crash recovery took %.2f s, nothing was predicted",
						CrashRecoverySum(a) / 1000000.0),
				 errdetail("In seconds: start %.2f; reading the double-write log %.2f; restore %.2f; redo %.2f; checkpoint %.2f.  Blocks read by redo: %" PRIu64 ".",
						   a[CRASH_RECOVERY_START] / 1000000.0,
						   a[CRASH_RECOVERY_LOG] / 1000000.0,
						   a[CRASH_RECOVERY_RESTORE] / 1000000.0,
						   a[CRASH_RECOVERY_REDO] / 1000000.0,
						   a[CRASH_RECOVERY_CHECKPOINT] / 1000000.0,
						   score->actual.reads)));
	else
		ereport(LOG,
				(recovery.crash ?
				 errmsg("crash recovery took %.2f s, %.2f s were predicted",
						CrashRecoverySum(a) / 1000000.0, CrashRecoverySum(p) / 1000000.0) :
				 errmsg("the standby is where it was when it crashed after %.2f s, %.2f s were predicted",
						CrashRecoverySum(a) / 1000000.0, CrashRecoverySum(p) / 1000000.0),
				 errdetail("In seconds, actual and predicted: start %.2f, %.2f; reading the double-write log %.2f, %.2f; restore %.2f, %.2f; redo %.2f, %.2f; checkpoint %.2f, %.2f.  Blocks read by redo: %" PRIu64 ", %" PRIu64 ".",
						   a[CRASH_RECOVERY_START] / 1000000.0, p[CRASH_RECOVERY_START] / 1000000.0,
						   a[CRASH_RECOVERY_LOG] / 1000000.0, p[CRASH_RECOVERY_LOG] / 1000000.0,
						   a[CRASH_RECOVERY_RESTORE] / 1000000.0, p[CRASH_RECOVERY_RESTORE] / 1000000.0,
						   a[CRASH_RECOVERY_REDO] / 1000000.0, p[CRASH_RECOVERY_REDO] / 1000000.0,
						   a[CRASH_RECOVERY_CHECKPOINT] / 1000000.0, p[CRASH_RECOVERY_CHECKPOINT] / 1000000.0,
						   score->actual.reads, score->predicted.reads)));
}

/*
 * Add a score to the record, and learn from it.  The oldest one makes room.
 * Nobody else changes these, so they are read without the mutex.
 */
static void
keep_score(const CrashRecoveryScore *score)
{
	CrashRecoveryCosts costs = RecoveryTarget->costs;

	SpinLockAcquire(&RecoveryTarget->mutex);
	if (RecoveryTarget->nscores == CRASH_RECOVERY_SCORES)
	{
		memmove(&RecoveryTarget->scores[0], &RecoveryTarget->scores[1],
				sizeof(CrashRecoveryScore) * (CRASH_RECOVERY_SCORES - 1));
		RecoveryTarget->nscores--;
	}
	RecoveryTarget->scores[RecoveryTarget->nscores++] = *score;
	SpinLockRelease(&RecoveryTarget->mutex);

	RecoveryCostsLearn(&costs, RecoveryTarget->scores, RecoveryTarget->nscores);

	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->costs = costs;
	RecoveryTarget->additions++;
	RecoveryTarget->unsaved = true;
	SpinLockRelease(&RecoveryTarget->mutex);
}

/*
 * Compare what it has taken with what was predicted.
 */
static void
keep_this_recovery(void)
{
	CrashRecoveryScore score = {0};

	predict(&score, &RecoveryTarget->costs);
	score.finished = GetCurrentTimestamp();
	score.actual = recovery.work;
	score.redo_cpu_usec = Min(recovery.cpu_usec, CRASH_RECOVERY_MAX_USEC);
	memcpy(score.actual_usec, recovery.usec, sizeof(score.actual_usec));
	report_score(&score);
	if (!RecoveryTarget->restarted)
		keep_score(&score);
}

/*
 * What this recovery takes says nothing about what redo costs.
 */
void
RecoveryTargetLearnNothing(void)
{
	RecoveryTarget->restarted = true;
}

/*
 * A standby that had crashed has replayed what it had replayed before.
 */
void
RecoveryTargetCaughtUp(XLogRecPtr lsn)
{
	Assert(AmStartupProcess() && !recovery.crash);

	RecoveryTargetCaughtUpAt = PG_UINT64_MAX;
	redo_done(lsn);
	keep_this_recovery();
	DoubleWriteWakeCheckpointer();
}

/*
 * The server has started.  If there is a record to be saved, the checkpointer does it.
 */
void
RecoveryTargetStarted(void)
{
	if (recovery.crash)
	{
		part_ended(CRASH_RECOVERY_START);
		if (recovery.waited)
			recovery.work.written = recovery.work.reads + recovery.work.log_pages;
		keep_this_recovery();
	}

	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->ready = true;
	SpinLockRelease(&RecoveryTarget->mutex);

	if (RecoveryTarget->unsaved)
	{
		if (IsUnderPostmaster)
			DoubleWriteWakeCheckpointer();
		else
			save(NULL, false);
	}
}

/* ---------------------------------------------------------------------
 * Redo pointers
 * ---------------------------------------------------------------------
 */

static void
count_at(CountsAtRedo *counts, XLogRecPtr redo)
{
	DoubleWriteReads reads;

	DoubleWriteCountReads(&reads);
	counts->redo = redo;
	counts->first = reads.first;
	counts->repeated = reads.repeated;
}

/*
 * Replay has come to a place at which a checkpoint of the primary began.
 */
void
RecoveryTargetPassedRedo(XLogRecPtr redo)
{
	CountsAtRedo counts;

	count_at(&counts, redo);
	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->replayed = counts;
	SpinLockRelease(&RecoveryTarget->mutex);
}

/*
 * ... and that has completed, so a restartpoint can be made of it.
 */
void
RecoveryTargetCanRestartAt(XLogRecPtr redo)
{
	CountsAtRedo counts;

	count_at(&counts, redo);
	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->restart = RecoveryTarget->replayed.redo == redo ?
		RecoveryTarget->replayed : counts;
	SpinLockRelease(&RecoveryTarget->mutex);
}

/*
 * A checkpoint, or a restartpoint, has begun: if it completes, this will be the
 * redo pointer.
 */
void
RecoveryTargetCheckpointBegins(XLogRecPtr redo)
{
	CountsAtRedo counts;

	DoubleWriteCountDropsAnew();
	count_at(&counts, redo);
	RecoveryEstimateNow(&steering.at_begin);
	RecoverySampleCurve(&steering.at_begin);
	INSTR_TIME_SET_CURRENT(steering.begun);

	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->pending = RecoveryTarget->restart.redo == redo ?
		RecoveryTarget->restart : counts;
	SpinLockRelease(&RecoveryTarget->mutex);
}

/*
 * It has completed.  What has been counted since it began has been counted once
 * since the new redo pointer, even if it was repeated since the old one.
 */
void
RecoveryTargetCheckpointDone(XLogRecPtr redo)
{
	CountsAtRedo counts;
	RecoveryEstimate estimate;

	count_at(&counts, redo);
	SpinLockAcquire(&RecoveryTarget->mutex);
	if (RecoveryTarget->pending.redo == redo)
		counts.first = RecoveryTarget->pending.first;
	RecoveryTarget->last = counts;
	RecoveryTarget->pending.redo = InvalidXLogRecPtr;
	SpinLockRelease(&RecoveryTarget->mutex);

	if (!AmCheckpointerProcess() || !RecoveryTarget->ready)
		return;
	if (crash_recovery_target > 0)
	{
		RecoveryEstimateNow(&estimate);
		save(&estimate, true);
	}
	else if (RecoveryTarget->unsaved)
		save(NULL, true);
}

/* ---------------------------------------------------------------------
 * Steering, by the checkpointer
 * ---------------------------------------------------------------------
 */

/* From the beginning of a checkpoint to that of the next one, in seconds */
static int
least_distance(void)
{
	return Max(LEAST_DISTANCE, crash_recovery_target / DISTANCE_SHARE);
}

/*
 * Say it once if the target cannot be met, and again only if it could be met
 * meanwhile, or for another reason, or for another target.
 */
static void
report_target(const RecoveryEstimate *estimate)
{
	int64		start = estimate->usec[CRASH_RECOVERY_START];
	RecoveryObstacle obstacle = start >= RecoveryTargetUsec() ? OBSTACLE_START :
		steering.held_up ? OBSTACLE_DISTANCE : OBSTACLE_NONE;

	if (obstacle == steering.told && crash_recovery_target == steering.told_target)
		return;
	steering.told = obstacle;
	steering.told_target = crash_recovery_target;

	if (obstacle == OBSTACLE_START)
		ereport(LOG,
				(errmsg("\"%s\" of %d s cannot be met", "crash_recovery_target",
						crash_recovery_target),
				 errdetail("%.1f s pass at each start after a crash before anything that a checkpoint could shorten: the data directory is synced, for one thing.",
						   start / 1000000.0),
				 errhint("\"%s\" may help.", "recovery_init_sync_method")));
	else if (obstacle == OBSTACLE_DISTANCE)
		ereport(LOG,
				(errmsg("\"%s\" of %d s cannot be met", "crash_recovery_target",
						crash_recovery_target),
				 errdetail("Recovery would take %.1f s.  Checkpoints that this setting asks for begin %d s apart at least.",
						   estimate->total / 1000000.0, least_distance()),
				 errhint("Consider increasing the configuration parameter \"%s\".",
						 "crash_recovery_target")));
}

/*
 * Look at the estimate, if it is time for that.  busy: in the midst of a
 * checkpoint.
 */
void
RecoveryTargetLook(bool busy)
{
	DoubleWriteReads reads;
	RecoveryEstimate estimate;

	/* flags that rise once, and are looked at again */
	if (!RecoveryTarget->ready)
		return;
	if (crash_recovery_target == 0)
	{
		if (RecoveryTarget->unsaved)
			save(NULL, false);
		return;
	}

	if (busy && !DoubleWriteReadsReached() &&
		seconds_since(steering.last_look) < LOOK_INTERVAL)
		return;
	INJECTION_POINT("crash-recovery-look", NULL);
	INSTR_TIME_SET_CURRENT(steering.last_look);

	RecoveryEstimateNow(&estimate);
	report_target(&estimate);
	RecoverySampleCurve(&estimate);
	if (RecoveryTarget->unsaved || differs_from_saved(&estimate))
		save(&estimate, false);
	DoubleWriteWantCycle(RecoveryNeedsCycle(estimate.limit, RecoveryRest(estimate.usec),
											estimate.redone, estimate.work.log_pages));

	DoubleWriteCountReads(&reads);
	DoubleWriteLookAtReads(reads.first +
						   Max(LOOK_MIN_READS, (uint64) (estimate.blocks * LOOK_SHARE)));
}

/*
 * Must one wait, so that checkpoints keep their distance, or as the last one that
 * was asked for has not moved the redo pointer?
 */
static bool
must_wait(const RecoveryEstimate *estimate)
{
	int			retry = 0;		/* tests don't wait */

	if (!INSTR_TIME_IS_ZERO(steering.begun) &&
		seconds_since(steering.begun) < least_distance())
	{
		if (estimate->total > RecoveryTargetUsec())
			steering.held_up = true;
		return true;
	}
	if (steering.asked_from != estimate->work.redo)
		return false;

	/* it was skipped, as nothing had happened, and nothing has happened since */
	if (!RecoveryInProgress() &&
		steering.asked_important == GetLastImportantRecPtr())
		return true;
	INJECTION_POINT("crash-recovery-retry", &retry);
	return retry == 0 && seconds_since(steering.asked) < RETRY_INTERVAL;
}

/*
 * Does the target ask for a checkpoint now?  The last one began, or would have begun by
 * the clock, so many seconds ago.
 */
bool
RecoveryTargetWantsCheckpoint(int elapsed_secs)
{
	RecoveryEstimate estimate;
	XLogRecPtr	restart;

	if (crash_recovery_target == 0 || !RecoveryTarget->ready)
		return false;

	RecoveryEstimateNow(&estimate);
	if (RecoveryRest(estimate.usec) < estimate.limit &&
		!RecoveryNeedsCheckpoint(estimate.limit, estimate.blocks,
								 wal_of(&estimate.work), estimate.waits,
								 &estimate.costs))
		return false;

	SpinLockAcquire(&RecoveryTarget->mutex);
	restart = RecoveryTarget->restart.redo;
	SpinLockRelease(&RecoveryTarget->mutex);
	if (RecoveryInProgress() && restart <= estimate.work.redo)
		return false;

	if (must_wait(&estimate))
		return false;

	SpinLockAcquire(&RecoveryTarget->mutex);
	RecoveryTarget->checkpoints++;
	SpinLockRelease(&RecoveryTarget->mutex);
	steering.held_up &= estimate.total > RecoveryTargetUsec();
	steering.asked_from = estimate.work.redo;
	steering.asked_important = RecoveryInProgress() ? InvalidXLogRecPtr :
		GetLastImportantRecPtr();
	INSTR_TIME_SET_CURRENT(steering.asked);

	/* as for those that max_wal_size asks for */
	if (!RecoveryInProgress() && elapsed_secs < CheckPointWarning)
		ereport(LOG,
				(errmsg_plural("checkpoints are occurring too frequently (%d second apart)",
							   "checkpoints are occurring too frequently (%d seconds apart)",
							   elapsed_secs,
							   elapsed_secs),
				 errhint("Consider increasing the configuration parameter \"%s\".",
						 "crash_recovery_target")));
	if (log_checkpoints)
		ereport(LOG,
				(errmsg("checkpoint is wanted by \"%s\": recovery would take %.2f s, at most %d s are allowed",
						"crash_recovery_target", estimate.total / 1000000.0,
						crash_recovery_target)));
	return true;
}

/*
 * How much of the time that a checkpoint may take has passed, from 0 to 1, if
 * the target's measure is used: how much redo has got to do since it began, of
 * what there was room for.  There is time until the next one may begin in any case.
 */
double
RecoveryTargetElapsed(void)
{
	const RecoveryEstimate *from = &steering.at_begin;
	RecoveryEstimate now;
	uint64		from_wal = wal_of(&from->work);
	uint64		now_wal;
	int64		at_begin;
	int64		worst;
	double		elapsed;

	if (crash_recovery_target == 0)
		return 0;
	RecoveryEstimateNow(&now);
	now_wal = wal_of(&now.work);
	elapsed = seconds_since(steering.begun) / least_distance();
	at_begin = RecoveryWorst(now.limit, from->blocks, from_wal, 0, 0,
							 now.waits, &now.costs);
	worst = RecoveryWorst(now.limit, from->blocks, from_wal,
						  now.blocks - Min(from->blocks, now.blocks),
						  now_wal - Min(from_wal, now_wal), now.waits, &now.costs);
	if (now.limit > at_begin)
		elapsed = Min(elapsed, (double) (worst - at_begin) / (now.limit - at_begin));
	return elapsed;
}

/*
 * How long may the checkpointer sleep, in seconds?
 */
int
RecoveryTargetSleep(int timeout)
{
	return crash_recovery_target > 0 ? Min(timeout, LOOK_INTERVAL) : timeout;
}
