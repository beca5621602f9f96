/*-------------------------------------------------------------------------
 *
 * recoverycosts.c
 *		What crash recovery costs, and how long it takes at such costs.
 *
 * A cost starts as a default, which the first recovery that does enough of
 * something to tell replaces.  After that it moves as far as the last two of those
 * agree that it must, the new one and the one before: it becomes the median of what
 * they say and what it was.  So a single odd recovery, on a machine that was short of
 * something, moves nothing; storage that has changed is known after two.  The start
 * is an exception, as it is known from each recovery: it is the median of the last ones.
 *
 * Redo is bound by reading if its process has used little processor time;
 * otherwise reading was cheaper than it looks, which can only lower the cost.
 * If there are few blocks to read, what it reads is WAL, and all of its time is the
 * cost of that; if there are many, that cost is no less than the processor
 * time, and no more than all.
 * Blocks are read in the order of files, a request for each run of them, so
 * twice as many do not take twice as long.  How much longer, that is by which
 * power of their number, depends on the tables; it is fitted to the recoveries on
 * record, without those that took much longer or shorter than the others, and as long
 * as these are few or alike, it is mostly a guess.
 *
 * Whatever has been measured, or comes from a file, costs and times stay within
 * bounds (CRASH_RECOVERY_MAX_NSEC, CRASH_RECOVERY_MAX_USEC), so that sums of them
 * don't overflow.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/recoverycosts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/recoverytarget_internal.h"
#include "postmaster/bgwriter.h"
#include "storage/doublewrite.h"

/*
 * Costs before anything has been learnt, as measured on storage with 1,500
 * requests and 60 MB a second.  Storage that is faster makes recovery shorter
 * than promised, which does less harm than the opposite.
 */
static const int64 default_costs[CRASH_RECOVERY_COSTS] = {
	[CRASH_RECOVERY_PER_START] = INT64CONST(1000000000),
	[CRASH_RECOVERY_PER_LOG_KB] = 25000,
	[CRASH_RECOVERY_PER_RESTORED_PAGE] = 800000,
	[CRASH_RECOVERY_PER_WAL_KB] = 20000,
	[CRASH_RECOVERY_PER_READ] = 400000,
	[CRASH_RECOVERY_PER_DIRTY_PAGE] = 800000,
};

/*
 * A recovery that has done less than this says more about what it takes to begin
 * than about the cost of each.
 */
static const uint64 enough_to_learn[CRASH_RECOVERY_COSTS] = {
	[CRASH_RECOVERY_PER_LOG_KB] = 1024,
	[CRASH_RECOVERY_PER_RESTORED_PAGE] = 256,
	[CRASH_RECOVERY_PER_WAL_KB] = 1024,
	[CRASH_RECOVERY_PER_READ] = 256,
	[CRASH_RECOVERY_PER_DIRTY_PAGE] = 256,
};

/*
 * The default for the power of the number of blocks, in thousandths, which counts
 * as much as recoveries whose logarithms of that number have a sum of squared
 * differences of READ_POWER_WEIGHT.
 */
#define READ_POWER_DEFAULT	800
#define READ_POWER_WEIGHT	0.5

/*
 * The power is not fitted to a recovery whose reads took so many times longer, or
 * shorter, than the median says.
 */
#define READ_ODD_FACTOR		2.0

/* The cost of the start is the median of so many. */
#define START_MEDIAN_OF		5

/* Redo is not bound by reading if it computes for this share of its time. */
#define BUSY_SHARE			0.7

/*
 * A sync cycle frees the log when it makes recovery longer by this share of the
 * limit, and has so many pages: a cycle costs some requests for each file.
 */
#define CYCLE_SHARE			(1.0 / 16)
#define CYCLE_LEAST_PAGES	512

/* What is left for the rest if the start takes all of the target */
#define LEAST_SHARE			0.25

/* ---------------------------------------------------------------------
 * Times
 * ---------------------------------------------------------------------
 */

static int64
bounded_usec(double usec)
{
	return usec > 0 ? (int64) Min(usec, (double) CRASH_RECOVERY_MAX_USEC) : 0;
}

static int64
bounded_nsec(double nsec)
{
	return nsec > 0 ? (int64) Min(nsec, (double) CRASH_RECOVERY_MAX_NSEC) : 0;
}

/*
 * How long would redo be busy with reading so many blocks, in microseconds?
 */
static double
usec_of_reads(uint64 reads, const CrashRecoveryCosts *costs)
{
	double		unit = CRASH_RECOVERY_READS *
		(double) costs->nsec[CRASH_RECOVERY_PER_READ] / 1000;

	return unit * pow((double) reads / CRASH_RECOVERY_READS, costs->read_power / 1000.0);
}

/*
 * How long would this work take, part by part?
 */
void
RecoveryTimes(const CrashRecoveryWork *work, const CrashRecoveryCosts *costs,
			  int64 *usec)
{
	const int64 *nsec = costs->nsec;
	double		wal_kb = (work->end - Min(work->redo, work->end)) / 1024;
	double		log_kb = work->log_bytes / 1024;

	usec[CRASH_RECOVERY_START] = bounded_usec(nsec[CRASH_RECOVERY_PER_START] / 1000);
	usec[CRASH_RECOVERY_LOG] =
		bounded_usec(log_kb * nsec[CRASH_RECOVERY_PER_LOG_KB] / 1000);
	usec[CRASH_RECOVERY_RESTORE] =
		bounded_usec((double) work->log_pages * nsec[CRASH_RECOVERY_PER_RESTORED_PAGE] / 1000);
	usec[CRASH_RECOVERY_REDO] =
		bounded_usec(Max(wal_kb * nsec[CRASH_RECOVERY_PER_WAL_KB] / 1000,
						 usec_of_reads(work->reads, costs)));
	usec[CRASH_RECOVERY_CHECKPOINT] =
		bounded_usec((double) work->written * nsec[CRASH_RECOVERY_PER_DIRTY_PAGE] / 1000);
}

/* What checkpoints can change of the sum of these parts */
int64
RecoveryRest(const int64 *usec)
{
	return CrashRecoverySum(usec) - usec[CRASH_RECOVERY_START];
}

/*
 * The same for so many blocks changed by so much WAL, if nothing is in the log.
 */
int64
RecoveryRedone(uint64 blocks, uint64 wal, bool waits,
			   const CrashRecoveryCosts *costs)
{
	CrashRecoveryWork work = {.end = wal,.reads = blocks};
	int64		usec[CRASH_RECOVERY_PARTS];

	if (waits)
		work.written = blocks;
	RecoveryTimes(&work, costs, usec);
	return RecoveryRest(usec);
}

/*
 * ... and if they have all been copied to the log, and nothing else is to be done.
 */
static int64
restored(uint64 blocks, bool waits, const CrashRecoveryCosts *costs)
{
	CrashRecoveryWork work = {.log_pages = blocks,.log_bytes = blocks * BLCKSZ};
	int64		usec[CRASH_RECOVERY_PARTS];

	if (waits)
		work.written = blocks;
	RecoveryTimes(&work, costs, usec);
	return RecoveryRest(usec);
}

/*
 * By how much may the log make recovery longer before a sync cycle frees it?
 */
static int64
log_allowance(int64 limit)
{
	return (int64) (limit * CYCLE_SHARE);
}

/*
 * Is it time for a sync cycle, as these pages make recovery so much longer than
 * if nothing were in the log?
 */
bool
RecoveryNeedsCycle(int64 limit, int64 rest, int64 redone, uint64 log_pages)
{
	return log_pages >= CYCLE_LEAST_PAGES && rest > redone + log_allowance(limit);
}

/*
 * What is the most that the rest can come to while a checkpoint writes blocks that
 * had been changed when it began, and others are changed?  With the log, that is at
 * its end if no sync cycle is run; otherwise when one is due.
 */
int64
RecoveryWorst(int64 limit, uint64 blocks, uint64 wal, uint64 more_blocks,
			  uint64 more_wal, bool waits, const CrashRecoveryCosts *costs)
{
	uint64		all = blocks + more_blocks;
	uint64		logged = Min(blocks, CYCLE_LEAST_PAGES);
	int64		redone = RecoveryRedone(all, wal + more_wal, waits, costs);
	int64		without;
	int64		with;

	if (!DoubleWriteIsArmed())
		return redone;
	without = Max(restored(blocks, waits, costs),
				  RecoveryRedone(blocks, wal, waits, costs)) +
		RecoveryRedone(more_blocks, more_wal, waits, costs);
	with = Max(redone + log_allowance(limit),
			   restored(logged, waits, costs) +
			   RecoveryRedone(all - logged, wal + more_wal, waits, costs));
	return Min(without, with);
}

/*
 * How much of a target, in microseconds, is there for that?
 */
int64
RecoveryLimit(int64 target, int64 start)
{
	return Max(target - start, (int64) (target * LEAST_SHARE));
}

/*
 * Must a checkpoint begin, if it is to complete before that is exceeded?  As much is
 * going to be changed until then as since the last one, times
 * checkpoint_completion_target.
 */
bool
RecoveryNeedsCheckpoint(int64 limit, uint64 blocks, uint64 wal, bool waits,
						const CrashRecoveryCosts *costs)
{
	return RecoveryWorst(limit, blocks, wal,
						 (uint64) (blocks * CheckPointCompletionTarget),
						 (uint64) (wal * CheckPointCompletionTarget),
						 waits, costs) >= limit;
}

/* ---------------------------------------------------------------------
 * Costs
 * ---------------------------------------------------------------------
 */

void
RecoveryCostsInit(CrashRecoveryCosts *costs)
{
	MemSet(costs, 0, sizeof(*costs));
	memcpy(costs->nsec, default_costs, sizeof(default_costs));
	costs->read_power = READ_POWER_DEFAULT;
}

/* What a recovery says of a cost: so many nanoseconds at least, and at most */
typedef struct RecoveryEvidence
{
	double		least;
	double		most;
} RecoveryEvidence;

/*
 * Blocks that a cost of reading is learnt from, or 0: those that were predicted
 * if they were, for it is these that the cost will be multiplied with.
 */
static uint64
reads_to_learn_from(const CrashRecoveryScore *score)
{
	bool		predicted = !XLogRecPtrIsInvalid(score->predicted.redo);
	uint64		reads = predicted ? score->predicted.reads : score->actual.reads;

	return reads < enough_to_learn[CRASH_RECOVERY_PER_READ] ? 0 : reads;
}

static bool
was_busy(const CrashRecoveryScore *score)
{
	return score->redo_cpu_usec >= score->actual_usec[CRASH_RECOVERY_REDO] * BUSY_SHARE;
}

/*
 * Each of these has taken as long as another.
 */
static bool
evidence_of(int64 usec, uint64 units, CrashRecoveryCost cost, RecoveryEvidence *evidence)
{
	if (units < enough_to_learn[cost])
		return false;
	evidence->least = evidence->most = usec * 1000.0 / units;
	return true;
}

/*
 * What does a recovery say of a cost?  Returns false if it does not tell.
 */
static bool
evidence_from(const CrashRecoveryScore *score, CrashRecoveryCost cost,
			  uint32 read_power, RecoveryEvidence *evidence)
{
	const CrashRecoveryWork *work = &score->actual;
	const int64 *usec = score->actual_usec;
	CrashRecoveryCosts unit = {.read_power = read_power};
	uint64		reads = reads_to_learn_from(score);

	switch (cost)
	{
		case CRASH_RECOVERY_PER_LOG_KB:
			return evidence_of(usec[CRASH_RECOVERY_LOG], work->log_bytes / 1024, cost,
							   evidence);

		case CRASH_RECOVERY_PER_RESTORED_PAGE:
			return evidence_of(usec[CRASH_RECOVERY_RESTORE], work->log_pages, cost,
							   evidence);

		case CRASH_RECOVERY_PER_DIRTY_PAGE:
			return evidence_of(usec[CRASH_RECOVERY_CHECKPOINT], work->written, cost,
							   evidence);

		case CRASH_RECOVERY_PER_WAL_KB:
			if (!evidence_of(usec[CRASH_RECOVERY_REDO],
							 (work->end - work->redo) / 1024, cost, evidence))
				return false;
			if (reads > 0)
				evidence->least = Min(score->redo_cpu_usec * 1000.0 /
									  ((work->end - work->redo) / 1024),
									  evidence->most);
			return true;

		case CRASH_RECOVERY_PER_READ:
			if (reads == 0)
				return false;
			unit.nsec[cost] = 1000;
			evidence->most = usec[CRASH_RECOVERY_REDO] * 1000.0 /
				usec_of_reads(reads, &unit);
			evidence->least = was_busy(score) ? 0 : evidence->most;
			return true;

		case CRASH_RECOVERY_PER_START:
			break;
	}
	return false;
}

/*
 * What a cost would be, as close to what it is as the evidence allows.
 */
static double
corrected(double nsec, const RecoveryEvidence *evidence)
{
	return Min(Max(nsec, evidence->least), evidence->most);
}

static double
median_of_three(double a, double b, double c)
{
	return Max(Min(a, b), Min(Max(a, b), c));
}

/*
 * Learn a cost from the last of these recoveries, as far as the last one before it
 * that tells agrees.  If there is none any more, it takes a second one.
 */
static void
learn(CrashRecoveryCosts *costs, CrashRecoveryCost cost,
	  const CrashRecoveryScore *scores, int nscores)
{
	double		was = costs->nsec[cost];
	double		nsec;
	RecoveryEvidence evidence;

	if (!evidence_from(&scores[nscores - 1], cost, costs->read_power, &evidence))
		return;
	nsec = corrected(was, &evidence);
	if (nsec == was && evidence.least < evidence.most)
		return;					/* it could be anything */
	if (costs->learnt[cost] > 0)
	{
		double		before = was;

		for (int i = nscores - 2; i >= 0; i--)
		{
			if (evidence_from(&scores[i], cost, costs->read_power, &evidence))
			{
				before = corrected(was, &evidence);
				break;
			}
		}
		nsec = median_of_three(was, before, nsec);
	}
	costs->nsec[cost] = bounded_nsec(nsec);
	costs->learnt[cost]++;
}

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/*
 * By which power of the number of blocks does the time to read them grow?
 */
static void
learn_power(CrashRecoveryCosts *costs, const CrashRecoveryScore *scores, int nscores)
{
	double		x[CRASH_RECOVERY_SCORES];
	double		y[CRASH_RECOVERY_SCORES];
	double		level[CRASH_RECOVERY_SCORES];
	double		sorted[CRASH_RECOVERY_SCORES];
	double		median;
	double		mean_x = 0;
	double		mean_y = 0;
	double		sum_xx = READ_POWER_WEIGHT;
	double		sum_xy = READ_POWER_WEIGHT * READ_POWER_DEFAULT / 1000.0;
	double		power;
	int			n = 0;
	int			kept = 0;

	for (int i = 0; i < nscores; i++)
	{
		uint64		reads = reads_to_learn_from(&scores[i]);

		if (reads == 0 || was_busy(&scores[i]))
			continue;
		x[n] = log((double) reads / CRASH_RECOVERY_READS);
		y[n] = log((double) Max(scores[i].actual_usec[CRASH_RECOVERY_REDO], 1));
		level[n] = y[n] - x[n] * costs->read_power / 1000.0;
		n++;
	}
	if (n == 0)
		return;
	memcpy(sorted, level, sizeof(double) * n);
	qsort(sorted, n, sizeof(double), compare_doubles);
	median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;

	for (int i = 0; i < n; i++)
	{
		if (fabs(level[i] - median) > log(READ_ODD_FACTOR))
			continue;
		x[kept] = x[i];
		y[kept] = y[i];
		mean_x += x[kept];
		mean_y += y[kept];
		kept++;
	}
	if (kept == 0)
		return;					/* there are two, far from each other */
	mean_x /= kept;
	mean_y /= kept;
	for (int i = 0; i < kept; i++)
	{
		sum_xx += (x[i] - mean_x) * (x[i] - mean_x);
		sum_xy += (x[i] - mean_x) * (y[i] - mean_y);
	}
	power = Min(Max(sum_xy / sum_xx, CRASH_RECOVERY_MIN_POWER / 1000.0),
				CRASH_RECOVERY_MAX_POWER / 1000.0);
	costs->read_power = rint(power * 1000);
}

/*
 * The start takes as long each time, but for what else goes on on the machine:
 * the median of the last ones tells.
 */
static void
learn_start(CrashRecoveryCosts *costs, const CrashRecoveryScore *scores, int nscores)
{
	int64		usec[START_MEDIAN_OF];
	int			n = 0;

	for (int i = Max(nscores - START_MEDIAN_OF, 0); i < nscores; i++)
	{
		const CrashRecoveryScore *score = &scores[i];
		int64		start = score->actual_usec[CRASH_RECOVERY_START];
		int			place;

		/* to look at a log in which little is live belongs to it */
		if (score->actual.log_bytes / 1024 < enough_to_learn[CRASH_RECOVERY_PER_LOG_KB])
			start += score->actual_usec[CRASH_RECOVERY_LOG];
		for (place = n++; place > 0 && usec[place - 1] > start; place--)
			usec[place] = usec[place - 1];
		usec[place] = start;
	}
	/* of two in the middle the shorter one, as what else goes on takes time */
	costs->nsec[CRASH_RECOVERY_PER_START] = bounded_nsec(usec[(n - 1) / 2] * 1000.0);
	costs->learnt[CRASH_RECOVERY_PER_START]++;
}

/*
 * What has the last one of these recoveries taught?
 */
void
RecoveryCostsLearn(CrashRecoveryCosts *costs, const CrashRecoveryScore *scores,
				   int nscores)
{
	Assert(nscores > 0 && nscores <= CRASH_RECOVERY_SCORES);

	learn_start(costs, scores, nscores);
	learn_power(costs, scores, nscores);
	for (int cost = 0; cost < CRASH_RECOVERY_COSTS; cost++)
		learn(costs, cost, scores, nscores);
}
