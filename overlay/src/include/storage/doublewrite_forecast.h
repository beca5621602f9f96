/*-------------------------------------------------------------------------
 *
 * doublewrite_forecast.h
 *	  The file in which a server keeps what it knows of its crash recoveries.
 *
 * It has two parts.  The record says what recoveries have cost on this machine,
 * and how long the last ones were thought to take and have taken.  It
 * changes with each crash recovery; then the whole file is replaced, durably.
 * The forecast says how long the next crash recovery would take.  It changes
 * all the time, and is overwritten in place: it takes one sector, which is
 * written or not, so a crash leaves an older forecast at worst.
 *
 * Nothing but estimates depends on the file: if it is missing, damaged or has
 * another format, the server goes by defaults.  It lies in a directory
 * that base backups and pg_rewind leave out, since what it says is true of this
 * machine's storage only, and that other servers do not look into.
 *
 * See src/backend/access/transam/recoverytarget.c, which writes it.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/storage/doublewrite_forecast.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_FORECAST_H
#define DOUBLEWRITE_FORECAST_H

#include "access/xlogdefs.h"
#include "port/pg_crc32c.h"

#define CRASH_RECOVERY_FILE		"pg_stat_tmp/crash_recovery"

/* "PGCRREC1" when read as bytes on a little-endian machine */
#define CRASH_RECOVERY_MAGIC	UINT64CONST(0x3143455252434750)
#define CRASH_RECOVERY_VERSION	1

/* What is written or not written by any storage, but never half of it */
#define CRASH_RECOVERY_SECTOR	512

/* Crash recoveries that the record remembers */
#define CRASH_RECOVERY_SCORES	16

/* Parts of a crash recovery, one after the other */
typedef enum CrashRecoveryPart
{
	CRASH_RECOVERY_START,		/* sync of the data directory, and all that
								 * takes as long each time */
	CRASH_RECOVERY_LOG,			/* reading the double-write log */
	CRASH_RECOVERY_RESTORE,		/* pages go home from it */
	CRASH_RECOVERY_REDO,
	CRASH_RECOVERY_CHECKPOINT,	/* if clients have to wait for it */
} CrashRecoveryPart;

#define CRASH_RECOVERY_PARTS	5

/* What is learnt from recoveries */
typedef enum CrashRecoveryCost
{
	CRASH_RECOVERY_PER_START,	/* nanoseconds, as all costs */
	CRASH_RECOVERY_PER_LOG_KB,
	CRASH_RECOVERY_PER_RESTORED_PAGE,
	CRASH_RECOVERY_PER_WAL_KB,	/* read and replayed */
	CRASH_RECOVERY_PER_READ,	/* of a block, if redo reads
								 * CRASH_RECOVERY_READS of them */
	CRASH_RECOVERY_PER_DIRTY_PAGE,	/* that a checkpoint writes */
} CrashRecoveryCost;

#define CRASH_RECOVERY_COSTS	6

/*
 * Blocks are read in the order of files, so the more there are, the more are joined
 * to one request.  Their cost is that of so many, and grows with a power of
 * their number.
 */
#define CRASH_RECOVERY_READS	4096

/* ... whose exponent is given in thousandths.  1000 is for blocks that are far apart. */
#define CRASH_RECOVERY_MIN_POWER	500
#define CRASH_RECOVERY_MAX_POWER	1000

/*
 * No part of a recovery counts as longer than a month, nothing costs more than a
 * day, and there is no more to do than that: sums stay far from where integers end.
 */
#define CRASH_RECOVERY_MAX_USEC		(INT64CONST(30) * 24 * 60 * 60 * 1000000)
#define CRASH_RECOVERY_MAX_NSEC		(INT64CONST(24) * 60 * 60 * 1000000000)
#define CRASH_RECOVERY_MAX_WORK		(UINT64CONST(1) << 60)

/* What there is to do for it */
typedef struct CrashRecoveryWork
{
	XLogRecPtr	redo;			/* where redo begins */
	XLogRecPtr	end;			/* ... and ends */
	uint64		reads;			/* blocks that redo reads */
	uint64		log_bytes;		/* live part of the double-write log */
	uint64		log_pages;		/* pages in it */
	uint64		written;		/* pages that a checkpoint writes while
								 * clients wait for it */
} CrashRecoveryWork;

typedef struct CrashRecoveryCosts
{
	int64		nsec[CRASH_RECOVERY_COSTS];
	uint32		learnt[CRASH_RECOVERY_COSTS];	/* from so many recoveries; 0:
												 * a default */
	uint32		read_power;		/* thousandths */
	uint32		unused;
} CrashRecoveryCosts;

typedef struct CrashRecoveryForecast
{
	uint64		magic;			/* CRASH_RECOVERY_MAGIC */
	uint32		version;		/* CRASH_RECOVERY_VERSION */
	uint32		target;			/* crash_recovery_target, seconds */
	uint64		sysid;			/* of the cluster */
	int64		made;			/* TimestampTz */
	CrashRecoveryWork work;
	int64		usec[CRASH_RECOVERY_PARTS];
	uint32		unused;
	pg_crc32c	crc;			/* of all before */
} CrashRecoveryForecast;

StaticAssertDecl(sizeof(CrashRecoveryForecast) <= CRASH_RECOVERY_SECTOR,
				 "forecast does not fit into a sector");

/* A crash recovery that has been completed */
typedef struct CrashRecoveryScore
{
	int64		finished;		/* TimestampTz */
	CrashRecoveryWork predicted;	/* redo is invalid if nothing was, as it
									 * is in a forecast that is none */
	CrashRecoveryWork actual;
	int64		predicted_usec[CRASH_RECOVERY_PARTS];
	int64		actual_usec[CRASH_RECOVERY_PARTS];
	int64		redo_cpu_usec;	/* processor time of redo */
} CrashRecoveryScore;

typedef struct CrashRecoveryRecord
{
	uint64		magic;			/* CRASH_RECOVERY_MAGIC */
	uint32		version;		/* CRASH_RECOVERY_VERSION */
	uint32		nscores;
	uint64		sysid;
	CrashRecoveryCosts costs;
	CrashRecoveryScore scores[CRASH_RECOVERY_SCORES];	/* oldest first */
	uint32		unused;
	pg_crc32c	crc;			/* of all before */
} CrashRecoveryRecord;

/* The file as a whole */
typedef struct CrashRecoveryFile
{
	union
	{
		CrashRecoveryForecast forecast;
		char		sector[CRASH_RECOVERY_SECTOR];
	}			u;
	CrashRecoveryRecord record;
} CrashRecoveryFile;

/* What is to be thought of a part of the file */
typedef enum CrashRecoveryVerdict
{
	CRASH_RECOVERY_GOOD,
	CRASH_RECOVERY_DAMAGED,
	CRASH_RECOVERY_OTHER_VERSION,
	CRASH_RECOVERY_FOREIGN,		/* of another cluster */
} CrashRecoveryVerdict;

static inline pg_crc32c
CrashRecoveryChecksum(const void *part, size_t size)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, part, size);
	FIN_CRC32C(crc);
	return crc;
}

#define CrashRecoveryForecastChecksum(forecast) \
	CrashRecoveryChecksum(forecast, offsetof(CrashRecoveryForecast, crc))
#define CrashRecoveryRecordChecksum(record) \
	CrashRecoveryChecksum(record, offsetof(CrashRecoveryRecord, crc))

static inline bool
CrashRecoveryTimesAreSane(const int64 *usec)
{
	for (int i = 0; i < CRASH_RECOVERY_PARTS; i++)
	{
		if (usec[i] < 0 || usec[i] > CRASH_RECOVERY_MAX_USEC)
			return false;
	}
	return true;
}

static inline bool
CrashRecoveryWorkIsSane(const CrashRecoveryWork *work)
{
	return work->redo <= work->end &&
		work->reads <= CRASH_RECOVERY_MAX_WORK &&
		work->log_bytes <= CRASH_RECOVERY_MAX_WORK &&
		work->log_pages <= CRASH_RECOVERY_MAX_WORK &&
		work->written <= CRASH_RECOVERY_MAX_WORK;
}

static inline bool
CrashRecoveryCostsAreSane(const CrashRecoveryCosts *costs)
{
	for (int i = 0; i < CRASH_RECOVERY_COSTS; i++)
	{
		if (costs->nsec[i] < 0 || costs->nsec[i] > CRASH_RECOVERY_MAX_NSEC)
			return false;
	}
	return costs->read_power >= CRASH_RECOVERY_MIN_POWER &&
		costs->read_power <= CRASH_RECOVERY_MAX_POWER;
}

static inline bool
CrashRecoveryScoreIsSane(const CrashRecoveryScore *score)
{
	return CrashRecoveryWorkIsSane(&score->predicted) &&
		CrashRecoveryWorkIsSane(&score->actual) &&
		CrashRecoveryTimesAreSane(score->predicted_usec) &&
		CrashRecoveryTimesAreSane(score->actual_usec) &&
		score->redo_cpu_usec >= 0 &&
		score->redo_cpu_usec <= CRASH_RECOVERY_MAX_USEC;
}

static inline bool
CrashRecoveryForecastIsIntact(const CrashRecoveryForecast *forecast)
{
	return forecast->crc == CrashRecoveryForecastChecksum(forecast) &&
		CrashRecoveryWorkIsSane(&forecast->work) &&
		CrashRecoveryTimesAreSane(forecast->usec);
}

static inline bool
CrashRecoveryRecordIsIntact(const CrashRecoveryRecord *record)
{
	if (record->crc != CrashRecoveryRecordChecksum(record) ||
		record->nscores > CRASH_RECOVERY_SCORES ||
		!CrashRecoveryCostsAreSane(&record->costs))
		return false;
	for (uint32 i = 0; i < record->nscores; i++)
	{
		if (!CrashRecoveryScoreIsSane(&record->scores[i]))
			return false;
	}
	return true;
}

/*
 * The version comes before the checksum, whose place depends on it.
 */
static inline CrashRecoveryVerdict
CrashRecoveryJudge(uint64 magic, uint32 version)
{
	if (magic != CRASH_RECOVERY_MAGIC)
		return CRASH_RECOVERY_DAMAGED;
	if (version != CRASH_RECOVERY_VERSION)
		return CRASH_RECOVERY_OTHER_VERSION;
	return CRASH_RECOVERY_GOOD;
}

static inline CrashRecoveryVerdict
CrashRecoveryJudgeForecast(const CrashRecoveryForecast *forecast, uint64 sysid)
{
	CrashRecoveryVerdict verdict = CrashRecoveryJudge(forecast->magic, forecast->version);

	if (verdict != CRASH_RECOVERY_GOOD)
		return verdict;
	if (!CrashRecoveryForecastIsIntact(forecast))
		return CRASH_RECOVERY_DAMAGED;
	return forecast->sysid == sysid ? CRASH_RECOVERY_GOOD : CRASH_RECOVERY_FOREIGN;
}

static inline CrashRecoveryVerdict
CrashRecoveryJudgeRecord(const CrashRecoveryRecord *record, uint64 sysid)
{
	CrashRecoveryVerdict verdict = CrashRecoveryJudge(record->magic, record->version);

	if (verdict != CRASH_RECOVERY_GOOD)
		return verdict;
	if (!CrashRecoveryRecordIsIntact(record))
		return CRASH_RECOVERY_DAMAGED;
	return record->sysid == sysid ? CRASH_RECOVERY_GOOD : CRASH_RECOVERY_FOREIGN;
}

static inline int64
CrashRecoverySum(const int64 *usec)
{
	int64		sum = 0;

	for (int i = 0; i < CRASH_RECOVERY_PARTS; i++)
		sum += usec[i];
	return sum;
}

#endif							/* DOUBLEWRITE_FORECAST_H */
