/*-------------------------------------------------------------------------
 *
 * recoveryforecast.c
 *		The file with the forecast of crash recovery, and what has been learnt.
 *
 * See doublewrite_forecast.h for its format.  The checkpointer writes it.  The
 * forecast is overwritten as it changes, which is not synced, except after
 * checkpoints: if only the server dies, the kernel has it; after a power cut it is
 * some seconds old.  What has been learnt is written durably, to a new file that
 * takes the place of the old one.
 *
 * Nothing but estimates depends on the file.  If it cannot be read or written, the
 * server log says so, and that is all.  What has its name but is no file, which
 * could keep us waiting, or is a link to another, is not opened.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/recoveryforecast.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/recoverytarget_internal.h"
#include "access/xlog.h"
#include "storage/fd.h"
#include "utils/injection_point.h"
#include "utils/timestamp.h"

#define CRASH_RECOVERY_TMP	CRASH_RECOVERY_FILE ".tmp"

/* where links are no issue */
#ifndef O_NOFOLLOW
#define O_NOFOLLOW 0
#endif

#define report_file(elevel, message) \
	ereport(elevel, \
			(errcode_for_file_access(), \
			 errmsg(message, CRASH_RECOVERY_FILE), \
			 errdetail("Predictions of the duration of crash recovery depend on it, nothing else.")))

/* ---------------------------------------------------------------------
 * Reading
 * ---------------------------------------------------------------------
 */

/*
 * Say what is wrong with a part of the file, if anything.
 */
static bool
is_usable(const char *part, CrashRecoveryVerdict verdict, uint32 version)
{
	switch (verdict)
	{
		case CRASH_RECOVERY_GOOD:
			return true;
		case CRASH_RECOVERY_DAMAGED:
			ereport(LOG,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("ignoring file \"%s\", whose %s is damaged",
							CRASH_RECOVERY_FILE, part)));
			break;
		case CRASH_RECOVERY_OTHER_VERSION:
			ereport(LOG,
					(errmsg("ignoring file \"%s\", whose %s has format version %u, but this server knows only version %d",
							CRASH_RECOVERY_FILE, part, version,
							CRASH_RECOVERY_VERSION)));
			break;
		case CRASH_RECOVERY_FOREIGN:
			ereport(LOG,
					(errmsg("ignoring file \"%s\", whose %s belongs to another database cluster",
							CRASH_RECOVERY_FILE, part)));
			break;
	}
	return false;
}

/*
 * Is there a file, and nothing else, with its name?  If not, errno tells.
 */
static bool
is_file(void)
{
	struct stat st;

	if (lstat(CRASH_RECOVERY_FILE, &st) < 0)
		return false;
	errno = EINVAL;
	return S_ISREG(st.st_mode);
}

/*
 * Read the file, and say which parts of it can be believed.  Returns false, having
 * said why, if there is something that cannot be.
 */
bool
RecoveryFileRead(bool crashed, CrashRecoveryFile *file, bool *forecast_usable,
				 bool *record_usable)
{
	CrashRecoveryForecast *forecast = &file->u.forecast;
	CrashRecoveryRecord *record = &file->record;
	uint64		sysid = GetSystemIdentifier();
	ssize_t		rc;
	int			fd;

	MemSet(file, 0, sizeof(*file));
	*forecast_usable = *record_usable = false;
	if (!is_file())
	{
		bool		missing = errno == ENOENT;

		if (errno == EINVAL)
			ereport(LOG,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("ignoring \"%s\", which is not a regular file",
							CRASH_RECOVERY_FILE)));
		else if (!missing)
			report_file(LOG, "could not stat file \"%s\": %m");
		else if (crashed)
			ereport(LOG,
					(errmsg("no file \"%s\": nothing is known of earlier crash recoveries",
							CRASH_RECOVERY_FILE)));
		return missing;
	}
	fd = OpenTransientFile(CRASH_RECOVERY_FILE, O_RDONLY | O_NOFOLLOW | PG_BINARY);
	if (fd < 0)
	{
		report_file(LOG, "could not open file \"%s\": %m");
		return false;
	}
	rc = pg_pread(fd, file, sizeof(*file), 0);
	if (rc < 0)
		report_file(LOG, "could not read file \"%s\": %m");
	CloseTransientFile(fd);
	if (rc < 0)
		return false;

	*forecast_usable = is_usable("forecast",
								 CrashRecoveryJudgeForecast(forecast, sysid),
								 forecast->version);
	*record_usable = is_usable("record", CrashRecoveryJudgeRecord(record, sysid),
							   record->version);
	return *forecast_usable && *record_usable;
}

/* ---------------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------------
 */

/*
 * No estimate, no forecast: one that begins nowhere.
 */
static void
make_forecast(CrashRecoveryForecast *forecast, const RecoveryEstimate *estimate)
{
	MemSet(forecast, 0, sizeof(*forecast));
	forecast->magic = CRASH_RECOVERY_MAGIC;
	forecast->version = CRASH_RECOVERY_VERSION;
	forecast->target = crash_recovery_target;
	forecast->sysid = GetSystemIdentifier();
	forecast->made = GetCurrentTimestamp();
	if (estimate != NULL)
	{
		forecast->work = estimate->work;
		memcpy(forecast->usec, estimate->usec, sizeof(forecast->usec));
	}
	forecast->crc = CrashRecoveryForecastChecksum(forecast);
}

static void
make_record(CrashRecoveryRecord *record)
{
	MemSet(record, 0, sizeof(*record));
	record->magic = CRASH_RECOVERY_MAGIC;
	record->version = CRASH_RECOVERY_VERSION;
	record->sysid = GetSystemIdentifier();
	SpinLockAcquire(&RecoveryTarget->mutex);
	record->costs = RecoveryTarget->costs;
	record->nscores = RecoveryTarget->nscores;
	memcpy(record->scores, RecoveryTarget->scores, sizeof(record->scores));
	SpinLockRelease(&RecoveryTarget->mutex);
	record->crc = CrashRecoveryRecordChecksum(record);
}

/*
 * Write a file descriptor's contents, and close it.
 */
static bool
write_and_close(int fd, const void *data, size_t size, bool sync)
{
	bool		done;

	errno = 0;
	done = pg_pwrite(fd, data, size, 0) == (ssize_t) size;
	if (!done && errno == 0)
		errno = ENOSPC;
	if (done && sync)
		done = pg_fsync(fd) == 0;
	if (CloseTransientFile(fd) != 0)
		done = false;
	return done;
}

/*
 * Replace the file, durably.  Whatever has its name goes.
 */
bool
RecoveryFileReplace(const RecoveryEstimate *estimate, int elevel)
{
	CrashRecoveryFile *file = palloc0(sizeof(CrashRecoveryFile));
	int			fd;
	bool		done;

	make_forecast(&file->u.forecast, estimate);
	make_record(&file->record);

	/* of a server that has crashed, or somebody else's; and what is no file */
	(void) unlink(CRASH_RECOVERY_TMP);
	if (!is_file())
		(void) unlink(CRASH_RECOVERY_FILE);
	fd = OpenTransientFile(CRASH_RECOVERY_TMP,
						   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | PG_BINARY);
	done = fd >= 0 && write_and_close(fd, file, sizeof(*file), false);
	if (!done)
		report_file(elevel, "could not write file \"%s\": %m");
	else
	{
		INJECTION_POINT("crash-recovery-file-written", NULL);
		done = durable_rename(CRASH_RECOVERY_TMP, CRASH_RECOVERY_FILE, elevel) == 0;
	}
	if (fd >= 0 && !done)
		(void) unlink(CRASH_RECOVERY_TMP);
	pfree(file);
	return done;
}

/*
 * Overwrite the forecast alone.  It takes one sector, which a crash does not tear.
 */
bool
RecoveryForecastReplace(const RecoveryEstimate *estimate, bool sync)
{
	CrashRecoveryFile *file = palloc0(sizeof(CrashRecoveryFile));
	int			fd = -1;
	bool		done;

	make_forecast(&file->u.forecast, estimate);
	if (is_file())
		fd = OpenTransientFile(CRASH_RECOVERY_FILE,
							   O_WRONLY | O_NOFOLLOW | PG_BINARY);
	done = fd >= 0 &&
		write_and_close(fd, file->u.sector, CRASH_RECOVERY_SECTOR, sync);
	pfree(file);
	return done;
}
