/*-------------------------------------------------------------------------
 *
 * forecast.c
 *	  Show how long the next crash recovery was thought to take when a server
 *	  last knew, and how long the ones before took: the file that the
 *	  server keeps for that purpose, see
 *	  src/backend/access/transam/recoverytarget.c.
 *
 * The views of pg_doublewrite_stats show the same on a running server.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/forecast.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/controldata_utils.h"
#include "common/logging.h"
#include "pg_doublewrite.h"
#include "storage/doublewrite_forecast.h"

static const char *const part_names[CRASH_RECOVERY_PARTS] = {
	[CRASH_RECOVERY_START] = gettext_noop("start"),
	[CRASH_RECOVERY_LOG] = gettext_noop("double-write log"),
	[CRASH_RECOVERY_RESTORE] = gettext_noop("restore"),
	[CRASH_RECOVERY_REDO] = gettext_noop("redo"),
	[CRASH_RECOVERY_CHECKPOINT] = gettext_noop("checkpoint"),
};

static const char *const part_keys[CRASH_RECOVERY_PARTS] = {
	[CRASH_RECOVERY_START] = "start",
	[CRASH_RECOVERY_LOG] = "log",
	[CRASH_RECOVERY_RESTORE] = "restore",
	[CRASH_RECOVERY_REDO] = "redo",
	[CRASH_RECOVERY_CHECKPOINT] = "checkpoint",
};

/*
 * Read the file.  Returns false if there is none.
 */
static bool
read_file(const char *path, CrashRecoveryFile *file)
{
	struct stat st;
	int			fd;
	ssize_t		rc;

	memset(file, 0, sizeof(*file));
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		pg_fatal("\"%s\" is not a regular file", path);
	fd = open(path, O_RDONLY | PG_BINARY, 0);
	if (fd < 0)
	{
		if (errno != ENOENT)
			pg_fatal("could not open file \"%s\": %m", path);
		return false;
	}
	rc = read(fd, file, sizeof(*file));
	if (rc < 0)
		pg_fatal("could not read file \"%s\": %m", path);
	close(fd);
	return true;
}

static void
check_part(const char *path, CrashRecoveryVerdict verdict, uint32 version)
{
	switch (verdict)
	{
		case CRASH_RECOVERY_GOOD:
			break;
		case CRASH_RECOVERY_DAMAGED:
			pg_fatal("file \"%s\" is damaged", path);
		case CRASH_RECOVERY_OTHER_VERSION:
			pg_fatal("file \"%s\" has format version %u, but this program knows version %d",
					 path, version, CRASH_RECOVERY_VERSION);
		case CRASH_RECOVERY_FOREIGN:
			pg_fatal("file \"%s\" belongs to another database cluster", path);
	}
}

static bool
recovery_follows(const ControlFileData *control)
{
	return control->state != DB_SHUTDOWNED &&
		control->state != DB_SHUTDOWNED_IN_RECOVERY;
}

/*
 * Is there a forecast of the recovery that begins where the control file says?
 */
static bool
has_forecast(const CrashRecoveryFile *file, const ControlFileData *control)
{
	return file->u.forecast.work.redo == control->checkPointCopy.redo;
}

static void
json_work(const CrashRecoveryWork *work)
{
	json_lsn("redo", work->redo);
	json_lsn("end", work->end);
	json_uint("blocks_to_read", work->reads);
	json_uint("log_bytes", work->log_bytes);
	json_uint("log_pages", work->log_pages);
	json_uint("pages_written_at_end", work->written);
}

static void
json_times(const char *key, const int64 *usec)
{
	json_open_object(key);
	json_double("total", CrashRecoverySum(usec) / 1000.0);
	for (int i = 0; i < CRASH_RECOVERY_PARTS; i++)
		json_double(part_keys[i], usec[i] / 1000.0);
	json_close();
}

static void
json_file(const CrashRecoveryFile *file, const ControlFileData *control)
{
	const CrashRecoveryForecast *forecast = &file->u.forecast;
	const CrashRecoveryRecord *record = &file->record;

	json_open_object(NULL);
	json_bool("recovery_follows", recovery_follows(control));
	json_bool("predicted", has_forecast(file, control));
	if (has_forecast(file, control))
	{
		json_string("made", time_text(forecast->made));
		json_uint("target_seconds", forecast->target);
		json_times("milliseconds", forecast->usec);
		json_work(&forecast->work);
	}
	json_uint("learnt_from", record->costs.learnt[CRASH_RECOVERY_PER_START]);
	json_open_array("recoveries");
	for (uint32 i = 0; i < record->nscores; i++)
	{
		const CrashRecoveryScore *score = &record->scores[i];

		json_open_object(NULL);
		json_string("finished", time_text(score->finished));
		if (XLogRecPtrIsInvalid(score->predicted.redo))
			json_null("predicted_milliseconds");
		else
			json_times("predicted_milliseconds", score->predicted_usec);
		json_times("actual_milliseconds", score->actual_usec);
		json_work(&score->actual);
		json_close();
	}
	json_close();
	json_close();
}

static void
text_file(const CrashRecoveryFile *file, const ControlFileData *control)
{
	const CrashRecoveryForecast *forecast = &file->u.forecast;
	const CrashRecoveryRecord *record = &file->record;
	uint32		learnt = record->costs.learnt[CRASH_RECOVERY_PER_START];

	if (!recovery_follows(control))
		printf(_("The server was shut down, so there is nothing to recover from.\n"));
	else if (!has_forecast(file, control))
		printf(_("There is no forecast of the recovery that follows.\n"));
	else
		printf(_("Crash recovery will take about %.1f s, as of %s\n"),
			   CrashRecoverySum(forecast->usec) / 1000000.0,
			   time_text(forecast->made));
	if (learnt == 0)
		printf(_("Costs are defaults: no crash recovery of this cluster has been seen.\n"));
	else
		printf(_("Crash recoveries that costs were learnt from: %u\n"), learnt);
	if (recovery_follows(control) && has_forecast(file, control))
	{
		for (int i = 0; i < CRASH_RECOVERY_PARTS; i++)
			printf("  %s: %.2f s\n", _(part_names[i]), forecast->usec[i] / 1000000.0);
		printf(_("WAL to replay: from %X/%X to at least %X/%X\n"),
			   LSN_FORMAT_ARGS(forecast->work.redo),
			   LSN_FORMAT_ARGS(forecast->work.end));
		printf(_("Blocks to read: %" PRIu64 "\n"), forecast->work.reads);
	}
	for (uint32 i = 0; i < record->nscores; i++)
	{
		const CrashRecoveryScore *score = &record->scores[i];
		double		actual = CrashRecoverySum(score->actual_usec) / 1000000.0;

		if (XLogRecPtrIsInvalid(score->predicted.redo))
			printf(_("%s: took %.2f s\n"), time_text(score->finished), actual);
		else
			printf(_("%s: took %.2f s, predicted %.2f s\n"),
				   time_text(score->finished), actual,
				   CrashRecoverySum(score->predicted_usec) / 1000000.0);
	}
}

/*
 * Show what is known of crash recoveries of the cluster.
 */
void
print_forecast(const char *datadir, const Options *options)
{
	char		path[MAXPGPATH];
	bool		crc_ok;
	ControlFileData *control = get_controlfile(datadir, &crc_ok);
	CrashRecoveryFile file;

	if (!crc_ok)
		pg_fatal("control file of \"%s\" appears to be corrupt", datadir);
	snprintf(path, sizeof(path), "%s/%s", datadir, CRASH_RECOVERY_FILE);
	if (!read_file(path, &file))
	{
		if (options->json)
			printf("null\n");
		else
			printf(_("Nothing is known of crash recoveries of this cluster.\n"));
		return;
	}
	check_part(path,
			   CrashRecoveryJudgeForecast(&file.u.forecast, control->system_identifier),
			   file.u.forecast.version);
	check_part(path,
			   CrashRecoveryJudgeRecord(&file.record, control->system_identifier),
			   file.record.version);
	if (options->json)
		json_file(&file, control);
	else
		text_file(&file, control);
}
