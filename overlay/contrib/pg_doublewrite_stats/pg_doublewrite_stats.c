/*-------------------------------------------------------------------------
 *
 * pg_doublewrite_stats.c
 *	  Views of the write-back engine and of the last restore.
 *
 * The engine keeps its counters in shared memory of its own, from the end of
 * recovery.  They are not part of the cumulative statistics system,
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

#include "access/xlog.h"
#include "funcapi.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

PG_MODULE_MAGIC_EXT(
					.name = "pg_doublewrite_stats",
					.version = PG_VERSION
);

PG_FUNCTION_INFO_V1(pg_doublewrite_batch_sizes);
PG_FUNCTION_INFO_V1(pg_doublewrite_counters);
PG_FUNCTION_INFO_V1(pg_doublewrite_last_restore);
PG_FUNCTION_INFO_V1(pg_doublewrite_ledger);
PG_FUNCTION_INFO_V1(pg_doublewrite_log);
PG_FUNCTION_INFO_V1(pg_doublewrite_restore);
PG_FUNCTION_INFO_V1(pg_doublewrite_stats_since);
PG_FUNCTION_INFO_V1(pg_stat_reset_double_writes);

#define COUNTER(field) {#field, offsetof(DWStats, field) / sizeof(pg_atomic_uint64)}

/* Every counter of the engine that is a plain number; the view has a column
 * for each */
static const struct
{
	const char *name;
	int			index;			/* in DWStats, taken as an array */
}			counters[] = {

	COUNTER(staged),
	COUNTER(replaced),
	COUNTER(stage_hits),
	COUNTER(stage_full),
	COUNTER(discarded),
	COUNTER(batches),
	COUNTER(logged),
	COUNTER(exempt),
	COUNTER(in_epoch),
	COUNTER(logged_bytes),
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
	COUNTER(checkpoints),
	COUNTER(would_log),
	COUNTER(would_log_batches),
	COUNTER(first_changes),
	COUNTER(first_change_bytes),
	COUNTER(images),
	COUNTER(image_bytes),
};

StaticAssertDecl(lengthof(counters) == DW_SCALAR_COUNTERS,
				 "a counter of the engine is missing from the list");

/*
 * Value of a counter since the end of recovery or the last reset.
 */
static int64
counter_value(int index)
{
	uint64		base;

	SpinLockAcquire(&DWCtl->mutex);
	base = DWCtl->stats_base[index];
	SpinLockRelease(&DWCtl->mutex);
	return (int64) (pg_atomic_read_u64((pg_atomic_uint64 *) &DWCtl->stats + index) -
					base);
}

/*
 * All counters, as (name, value) rows.
 */
Datum
pg_doublewrite_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(counters); i++)
	{
		Datum		values[2];
		bool		nulls[2] = {0};

		values[0] = CStringGetTextDatum(counters[i].name);
		values[1] = Int64GetDatum(counter_value(counters[i].index));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Batches by number of pages, one row for each class of sizes.
 */
Datum
pg_doublewrite_batch_sizes(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < DW_SIZE_CLASSES; i++)
	{
		int			batches = offsetof(DWStats, batch_size[i]) / sizeof(pg_atomic_uint64);
		int			logged = offsetof(DWStats, logged_size[i]) / sizeof(pg_atomic_uint64);
		bool		last = i == DW_SIZE_CLASSES - 1;
		Datum		values[4];
		bool		nulls[4] = {0};

		values[0] = Int32GetDatum(1 << i);
		values[1] = Int32GetDatum(last ? DW_MAX_BATCH_PAGES : (2 << i) - 1);
		values[2] = Int64GetDatum(counter_value(batches));
		values[3] = Int64GetDatum(counter_value(logged));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

static Datum
make_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	static bool no_nulls[16] = {0};
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	Assert(tupdesc->natts <= lengthof(no_nulls));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values,
											 nulls ? nulls : no_nulls));
}

/*
 * Since when counters count, and where WAL ended then, if that is known.
 */
Datum
pg_doublewrite_stats_since(PG_FUNCTION_ARGS)
{
	TimestampTz since;
	XLogRecPtr	lsn;
	Datum		values[2];
	bool		nulls[2] = {0};

	SpinLockAcquire(&DWCtl->mutex);
	since = DWCtl->stats_reset;
	lsn = DWCtl->stats_lsn;
	SpinLockRelease(&DWCtl->mutex);

	/* on a standby the counters start with the server */
	values[0] = TimestampTzGetDatum(since != 0 ? since : PgStartTime);
	values[1] = LSNGetDatum(lsn);
	nulls[1] = XLogRecPtrIsInvalid(lsn);
	PG_RETURN_DATUM(make_row(fcinfo, values, nulls));
}

/*
 * Start counting anew.
 */
Datum
pg_stat_reset_double_writes(PG_FUNCTION_ARGS)
{
	dw_stats_reset();
	PG_RETURN_VOID();
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
	PG_RETURN_DATUM(make_row(fcinfo, values, NULL));
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
	PG_RETURN_DATUM(make_row(fcinfo, values, NULL));
}

/*
 * Open the ledger of the last restore and read its header.  Returns NULL if
 * there is none that we know how to read.
 */
static FILE *
open_ledger(DWLedgerHeader *header)
{
	FILE	   *fp = AllocateFile(DW_LEDGER_FILE, PG_BINARY_R);

	if (fp == NULL)
	{
		if (errno != ENOENT)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", DW_LEDGER_FILE)));
		return NULL;
	}
	if (fread(header, sizeof(*header), 1, fp) != 1 ||
		header->magic != DW_LEDGER_MAGIC ||
		header->version != DW_LEDGER_VERSION ||
		header->entry_size != sizeof(DWLedgerEntry))
	{
		FreeFile(fp);
		return NULL;
	}
	return fp;
}

/*
 * The last restore of this cluster, or NULL if none is known.
 */
Datum
pg_doublewrite_last_restore(PG_FUNCTION_ARGS)
{
	DWLedgerHeader header;
	FILE	   *fp = open_ledger(&header);
	Datum		values[9];

	if (fp == NULL)
		PG_RETURN_NULL();
	FreeFile(fp);

	values[0] = TimestampTzGetDatum(header.finished);
	values[1] = Int64GetDatum(header.batches);
	values[2] = Int64GetDatum(header.examined);
	values[3] = Int64GetDatum(header.restored);
	values[4] = Int64GetDatum(header.identical);
	values[5] = Int64GetDatum(header.missing);
	values[6] = Int64GetDatum(header.buffered);
	values[7] = Int64GetDatum(header.bytes_read);
	values[8] = Float8GetDatum(header.usec / 1000.0);
	PG_RETURN_DATUM(make_row(fcinfo, values, NULL));
}

static void
put_ledger_entry(ReturnSetInfo *rsinfo, const DWLedgerEntry *entry)
{
	Datum		values[9];
	bool		nulls[9] = {0};

	values[0] = ObjectIdGetDatum(entry->rlocator.spcOid);
	values[1] = ObjectIdGetDatum(entry->rlocator.dbOid);
	values[2] = ObjectIdGetDatum(entry->rlocator.relNumber);
	values[3] = Int16GetDatum(entry->forknum);
	values[4] = Int64GetDatum(entry->blkno);
	values[5] = CStringGetTextDatum(psprintf("%016" PRIX64, entry->log_segno));
	values[6] = Int32GetDatum(entry->log_offset);
	values[7] = LSNGetDatum(entry->lsn_before);
	values[8] = LSNGetDatum(entry->lsn_after);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * The pages that the last restore wrote home.
 */
Datum
pg_doublewrite_ledger(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DWLedgerHeader header;
	DWLedgerEntry entry;
	FILE	   *fp;

	InitMaterializedSRF(fcinfo, 0);
	fp = open_ledger(&header);
	if (fp == NULL)
		return (Datum) 0;

	for (uint64 i = 0; i < header.restored; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (fread(&entry, sizeof(entry), 1, fp) != 1)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", DW_LEDGER_FILE)));
		put_ledger_entry(rsinfo, &entry);
	}
	FreeFile(fp);
	return (Datum) 0;
}
