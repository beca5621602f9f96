/*-------------------------------------------------------------------------
 *
 * pg_doublewrite_stats.c
 *	  Views of the write-back engine and of the last restore.
 *
 * The engine keeps its counters in shared memory of its own, from the start
 * of the server.  They are not part of the cumulative statistics system,
 * whose file format is that of the stock server.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  contrib/pg_doublewrite_stats/pg_doublewrite_stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"

PG_MODULE_MAGIC_EXT(
					.name = "pg_doublewrite_stats",
					.version = PG_VERSION
);

PG_FUNCTION_INFO_V1(pg_doublewrite_counters);
PG_FUNCTION_INFO_V1(pg_doublewrite_log);
PG_FUNCTION_INFO_V1(pg_doublewrite_restore);

#define COUNTER(field) {#field, offsetof(DWStats, field)}

/* Every counter of the engine; the view has a column for each, by name */
static const struct
{
	const char *name;
	size_t		offset;
}			counters[] = {

	COUNTER(staged),
	COUNTER(replaced),
	COUNTER(stage_hits),
	COUNTER(stage_full),
	COUNTER(discarded),
	COUNTER(batches),
	COUNTER(logged),
	COUNTER(exempt),
	COUNTER(log_bytes),
	COUNTER(log_writes),
	COUNTER(log_syncs),
	COUNTER(log_sync_usec),
	COUNTER(home_pages),
	COUNTER(home_writes),
	COUNTER(sync_cycles),
	COUNTER(sync_cycle_files),
	COUNTER(log_full),
	COUNTER(foreground_syncs),
};

StaticAssertDecl(lengthof(counters) * sizeof(pg_atomic_uint64) == sizeof(DWStats),
				 "a counter of the engine is missing from the list");

/*
 * All counters since the start of the server, as (name, value) rows.
 */
Datum
pg_doublewrite_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(counters); i++)
	{
		pg_atomic_uint64 *counter = (pg_atomic_uint64 *)
			((char *) &DWCtl->stats + counters[i].offset);
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = CStringGetTextDatum(counters[i].name);
		values[1] = Int64GetDatum((int64) pg_atomic_read_u64(counter));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

static Datum
make_row(FunctionCallInfo fcinfo, Datum *values)
{
	TupleDesc	tupdesc;
	bool		nulls[16] = {0};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	Assert(tupdesc->natts <= lengthof(nulls));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls));
}

/*
 * State of the log at this moment.  Sizes are in bytes.
 */
Datum
pg_doublewrite_log(PG_FUNCTION_ARGS)
{
	Datum		values[7];

	LWLockAcquire(DoubleWriteFlushLock, LW_SHARED);
	values[0] = BoolGetDatum(DWCtl->armed);
	values[1] = Int64GetDatum(DWCtl->next_batchno);
	values[2] = Int64GetDatum(DWCtl->low_water);
	values[3] = Int64GetDatum(DWCtl->log_open ?
							  (int64) (DWCtl->segno + 1 - DWCtl->first_segno) * DW_SEGMENT_SIZE : 0);
	values[4] = Int64GetDatum((int64) dw_log_bound_segments() * DW_SEGMENT_SIZE);
	values[5] = Int32GetDatum(DWCtl->ndirty_files);
	LWLockRelease(DoubleWriteFlushLock);

	values[6] = Int32GetDatum(DWCtl->nslots);
	PG_RETURN_DATUM(make_row(fcinfo, values));
}

/*
 * The restore that this server ran when it was started, or NULL if none.
 */
Datum
pg_doublewrite_restore(PG_FUNCTION_ARGS)
{
	const DWRestoreStats *restore = &DWCtl->restore;
	Datum		values[7];

	if (!restore->done)
		PG_RETURN_NULL();

	values[0] = Int64GetDatum(restore->batches);
	values[1] = Int64GetDatum(restore->examined);
	values[2] = Int64GetDatum(restore->restored);
	values[3] = Int64GetDatum(restore->identical);
	values[4] = Int64GetDatum(restore->missing);
	values[5] = Int64GetDatum(restore->bytes_read);
	values[6] = Float8GetDatum(restore->usec / 1000.0);
	PG_RETURN_DATUM(make_row(fcinfo, values));
}
