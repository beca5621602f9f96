/*-------------------------------------------------------------------------
 *
 * pg_doublewrite_stats.c
 *	  Views of the write-back engine and of the last restore.
 *
 * The engine keeps its counters in shared memory of its own, from the end of
 * recovery.  They are not part of the cumulative statistics system,
 * whose file format is that of the stock server.
 *
 * We know nothing of that memory: see doublewrite_stats.h.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  contrib/pg_doublewrite_stats/pg_doublewrite_stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/instantrecovery.h"
#include "access/xlogdefs.h"
#include "access/xlogpagefetch.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/doublewrite_stats.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

PG_MODULE_MAGIC_EXT(
					.name = "pg_doublewrite_stats",
					.version = PG_VERSION
);

PG_FUNCTION_INFO_V1(pg_atomic_write_places);
PG_FUNCTION_INFO_V1(pg_double_write_counters);
PG_FUNCTION_INFO_V1(pg_double_write_log);
PG_FUNCTION_INFO_V1(pg_double_write_mode);
PG_FUNCTION_INFO_V1(pg_instant_recovery_give_up);
PG_FUNCTION_INFO_V1(pg_instant_recovery_pages);
PG_FUNCTION_INFO_V1(pg_double_write_recovery);
PG_FUNCTION_INFO_V1(pg_double_write_restore);
PG_FUNCTION_INFO_V1(pg_fetched_pages);
PG_FUNCTION_INFO_V1(pg_stat_double_writes_since);
PG_FUNCTION_INFO_V1(pg_stat_reset_double_writes);

/*
 * All counters, as (name, value) rows.
 */
Datum
pg_double_write_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DoubleWriteSnapshot *snapshot = DoubleWriteTakeSnapshot();
	const char *name;
	int64		value;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; DoubleWriteSnapshotCounter(snapshot, i, &name, &value); i++)
	{
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = CStringGetTextDatum(name);
		values[1] = Int64GetDatum(value);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* A column that shows a figure of the server */
typedef struct FigureColumn
{
	const char *name;			/* of the figure */
	Datum		(*make) (int64 value);
} FigureColumn;

#define MAX_COLUMNS		16

static Datum
make_bool(int64 value)
{
	return BoolGetDatum(value != 0);
}

static Datum
make_int(int64 value)
{
	return Int32GetDatum((int32) value);
}

static Datum
make_bigint(int64 value)
{
	return Int64GetDatum(value);
}

static Datum
make_lsn(int64 value)
{
	return LSNGetDatum((XLogRecPtr) value);
}

static Datum
make_timestamp_tz(int64 value)
{
	return TimestampTzGetDatum(value);
}

static Datum
make_milliseconds(int64 value)
{
	return Float8GetDatum(value / 1000.0);
}

static Datum
make_mode(int64 value)
{
	const char *name = DoubleWriteModeName(value);

	return CStringGetTextDatum(name ? name : "unknown");
}

/*
 * One row of figures.  Those that the server does not have are NULL.
 */
static Datum
make_row_of_figures(FunctionCallInfo fcinfo, const DoubleWriteSnapshot *snapshot,
					const FigureColumn *columns, int ncolumns)
{
	Datum		values[MAX_COLUMNS] = {0};
	bool		nulls[MAX_COLUMNS];
	TupleDesc	tupdesc;

	Assert(ncolumns <= MAX_COLUMNS);
	for (int i = 0; i < ncolumns; i++)
	{
		int64		value;

		nulls[i] = !DoubleWriteSnapshotValue(snapshot, columns[i].name, &value);
		if (!nulls[i])
			values[i] = columns[i].make(value);
	}
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (tupdesc->natts != ncolumns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"%s\" was created by another build of the server",
						"pg_doublewrite_stats"),
				 errhint("Drop the extension, and create it again.")));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls));
}

#define RETURN_FIGURES(snapshot, columns) \
	PG_RETURN_DATUM(make_row_of_figures(fcinfo, snapshot, columns, lengthof(columns)))

/*
 * Since when counters count.
 */
Datum
pg_stat_double_writes_since(PG_FUNCTION_ARGS)
{
	int64		since;

	if (!DoubleWriteSnapshotValue(DoubleWriteTakeSnapshot(), "stats_since", &since))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(since);
}

/*
 * Start counting anew.
 */
Datum
pg_stat_reset_double_writes(PG_FUNCTION_ARGS)
{
	DoubleWriteStatsReset();
	PG_RETURN_VOID();
}

static void
put_text(Datum *value, bool *null, const char *text)
{
	*null = (text == NULL || text[0] == '\0');

	if (!*null)
		*value = CStringGetTextDatum(text);
}

/*
 * How pages are written in each tablespace that the server has looked at.
 */
Datum
pg_atomic_write_places(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			tablespace;
	char	   *proof;
	char	   *fstype;
	char	   *device;
	char	   *advice;
	int64		unit;
	int64		looked_at;
	int64		pages;
	int64		logged;
	int64		refusals;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; DoubleWriteAtomicPlace(i, &tablespace, &proof, &fstype, &device,
										   &unit, &looked_at, &pages, &logged,
										   &refusals, &advice); i++)
	{
		Datum		values[10] = {0};
		bool		nulls[10] = {0};

		values[0] = ObjectIdGetDatum(tablespace);
		put_text(&values[1], &nulls[1], fstype);
		put_text(&values[2], &nulls[2], device);
		values[3] = Int64GetDatum(unit);
		nulls[3] = unit == 0;
		put_text(&values[4], &nulls[4], proof);
		values[5] = TimestampTzGetDatum(looked_at);
		values[6] = Int64GetDatum(pages);
		values[7] = Int64GetDatum(logged);
		values[8] = Int64GetDatum(refusals);
		put_text(&values[9], &nulls[9], advice);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * State of the log at this moment.  Sizes are in bytes.
 */
Datum
pg_double_write_log(PG_FUNCTION_ARGS)
{
	static const FigureColumn columns[] = {
		{"log_armed", make_bool},
		{"log_next_batch", make_bigint},
		{"log_low_water", make_bigint},
		{"log_used_bytes", make_bigint},
		{"log_limit_bytes", make_bigint},
		{"log_max_limit_bytes", make_bigint},
		{"log_files_to_sync", make_int},
		{"stage_slots", make_int},
	};

	RETURN_FIGURES(DoubleWriteTakeSnapshot(), columns);
}

/*
 * What protects pages now, and what is asked for.
 */
Datum
pg_double_write_mode(PG_FUNCTION_ARGS)
{
	static const FigureColumn columns[] = {
		{"mode_in_force", make_mode},
		{"mode_requested", make_mode},
		{"mode_armed", make_bool},
		{"mode_images", make_bool},
		{"mode_since", make_timestamp_tz},
		{"mode_checkpoint_after", make_lsn},
	};

	RETURN_FIGURES(DoubleWriteTakeSnapshot(), columns);
}

/*
 * What a start would have to do if the server crashed now.
 */
Datum
pg_double_write_recovery(PG_FUNCTION_ARGS)
{
	static const FigureColumn columns[] = {
		{"recovery_from", make_lsn},
		{"recovery_wal", make_bigint},
		{"recovery_reads", make_bigint},
		{"recovery_log_pages", make_bigint},
		{"recovery_log_bytes", make_bigint},
		{"log_files_to_sync", make_int},
	};

	RETURN_FIGURES(DoubleWriteTakeSnapshot(), columns);
}

/*
 * Pages that are redone after clients have got in.  All null if there were none since
 * the server was started.
 */
Datum
pg_instant_recovery_pages(PG_FUNCTION_ARGS)
{
	static const FigureColumn columns[] = {
		{"instant_opened_at", make_timestamp_tz},
		{"instant_pages", make_bigint},
		{"instant_records", make_bigint},
		{"instant_pages_pending", make_bigint},
		{"instant_pages_failed", make_bigint},
		{"instant_pages_on_demand", make_bigint},
		{"instant_workers", make_int},
	};
	DoubleWriteSnapshot *snapshot = DoubleWriteTakeSnapshot();

	InstantRecoveryPutFigures(snapshot);
	RETURN_FIGURES(snapshot, columns);
}

/*
 * Damaged pages that a standby has from its primary.
 */
Datum
pg_fetched_pages(PG_FUNCTION_ARGS)
{
	static const FigureColumn columns[] = {
		{"fetch_pages_damaged", make_bigint},
		{"fetch_pages_awaited", make_bigint},
		{"fetch_pages_replaced", make_bigint},
	};
	DoubleWriteSnapshot *snapshot = DoubleWriteTakeSnapshot();

	PageFetchPutFigures(snapshot);
	RETURN_FIGURES(snapshot, columns);
}

/*
 * Give up a page that cannot be redone after a crash, by the name that errors have.
 */
Datum
pg_instant_recovery_give_up(PG_FUNCTION_ARGS)
{
	char	   *relation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int64		block = PG_GETARG_INT64(1);

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to give up a page")));
	if (block < 0 || block > MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid block number")));
	InstantRecoveryGiveUp(relation, (BlockNumber) block);
	PG_RETURN_VOID();
}

/*
 * What this server has restored when it was started.  All null if there was nothing.
 */
Datum
pg_double_write_restore(PG_FUNCTION_ARGS)
{
	static const FigureColumn columns[] = {
		{"restore_finished", make_timestamp_tz},
		{"restore_batches", make_bigint},
		{"restore_examined", make_bigint},
		{"restore_restored", make_bigint},
		{"restore_identical", make_bigint},
		{"restore_missing", make_bigint},
		{"restore_bytes_read", make_bigint},
		{"restore_usec", make_milliseconds},
	};

	RETURN_FIGURES(DoubleWriteTakeSnapshot(), columns);
}
