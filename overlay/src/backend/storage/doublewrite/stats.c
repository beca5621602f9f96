/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters of the engine: when they start, what is counted elsewhere, and
 *	  how extensions learn of all this.
 *
 * Counters are declared in doublewrite_stage.h (DW_COUNTERS).
 *
 * The counters themselves only ever rise, since checkpoints report their
 * differences.  To reset them, we remember their current values, and the
 * views subtract these.
 *
 * Views must answer when storage hangs.  So they look at the log without the
 * flush lock, and what they show of it need not be of one moment; and at a copy
 * of the mode, made by the processes that change it (dw_publish_mode()).
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "storage/doublewrite_internal.h"
#include "storage/doublewrite_stats.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

/*
 * Make views show what is counted from now on.
 */
void
DoubleWriteStatsReset(void)
{
	TimestampTz now = GetCurrentTimestamp();

	DWLockMutex();
	for (int i = 0; i < lengthof(DWCtl->shown.stats_base); i++)
		DWCtl->shown.stats_base[i] =
			pg_atomic_read_u64((pg_atomic_uint64 *) &DWCtl->stats + i);
	DWCtl->shown.stats_reset = now;
	DWUnlockMutex();
}

/* ---------------------------------------------------------------------
 * What views show of the mode
 * ---------------------------------------------------------------------
 */

/*
 * Return what happens to pages that are written now.  In recovery WAL
 * determines whether there are images.
 */
static TornPagesProtection
dw_mechanism(const DWShownMode *mode, bool armed)
{
	bool		images = XLogInsertAllowed() ? mode->images : dw_replayed_images();

	if (armed)
		return mode->requested == TORN_PAGES_ATOMIC_WRITES ?
			TORN_PAGES_ATOMIC_WRITES : TORN_PAGES_DOUBLE_WRITES;
	return images ? TORN_PAGES_FULL_PAGES : TORN_PAGES_OFF;
}

/*
 * Return what protects all pages.  A server that leaves "off" has written
 * some pages without protection, which may not be durable before a checkpoint
 * completes.
 */
static TornPagesProtection
dw_mode_in_force(const DWShownMode *mode, bool armed)
{
	if (!XLogRecPtrIsInvalid(mode->off_until))
		return TORN_PAGES_OFF;
	return dw_mechanism(mode, armed);
}

/*
 * Update what follows from the settings that have been applied and from the
 * state of the log.
 */
static void
dw_update_mode(DWShownMode *mode)
{
	bool		recovery = !XLogInsertAllowed();
	TornPagesProtection mechanism = dw_mechanism(mode, DWCtl->log.armed);
	TornPagesProtection in_force;

	if (mechanism == TORN_PAGES_OFF)
		mode->off_until = InvalidXLogRecPtr;
	else if (mode->since != 0 && mode->mechanism == TORN_PAGES_OFF &&
			 !mode->recovery && !recovery)
		mode->off_until = GetXLogInsertRecPtr();
	mode->mechanism = mechanism;
	mode->recovery = recovery;
	mode->disarm_after = DWCtl->disarm_after;

	in_force = dw_mode_in_force(mode, DWCtl->log.armed);
	if (mode->since == 0 || mode->in_force != in_force)
		mode->since = GetCurrentTimestamp();
	mode->in_force = in_force;
}

/*
 * Let views see settings that have been applied, or a change of mode.
 *
 * Called by the checkpointer, or by a process that arms or disarms the log.
 * The startup process and the checkpointer may do so at the same time.  So if
 * the state has changed since it was read, it must not be overwritten with
 * what was derived from the older one.
 */
void
dw_publish_mode(void)
{
	bool		noted = false;

	/* before that, the redo pointer is not known */
	if (!DWCtl->started)
		return;

	while (!noted)
	{
		DWShownMode mode;
		uint64		changes;

		DWLockMutex();
		mode = DWCtl->shown.mode;
		changes = DWCtl->shown.mode_changes;
		DWUnlockMutex();

		dw_update_mode(&mode);

		DWLockMutex();
		if (changes == DWCtl->shown.mode_changes)
		{
			DWCtl->shown.mode = mode;
			DWCtl->shown.mode_changes++;
			noted = true;
		}
		DWUnlockMutex();
	}
}

/*
 * Let views see what the server's settings ask for, and what WAL carries
 * since they have been applied.  If the log could not be used, images stay as
 * they were.
 */
void
dw_show_setting(void)
{
	TornPagesProtection requested;

	/*
	 * read it in here, not to overwrite what another process has shown since
	 */
	DWLockMutex();
	requested = dw_setting();
	if (!dw_setting_uses_log())
		DWCtl->shown.mode.images = requested == TORN_PAGES_FULL_PAGES;
	else if (DWCtl->log.armed)
		DWCtl->shown.mode.images = false;
	else if (DWCtl->shown.mode.since == 0)
		DWCtl->shown.mode.images = DWCtl->redo.images;
	DWCtl->shown.mode.requested = requested;
	DWCtl->shown.mode_changes++;
	DWUnlockMutex();
}

/*
 * Let views see that a checkpoint with this redo pointer has completed.
 */
void
dw_show_checkpoint(XLogRecPtr redo)
{
	DWLockMutex();
	if (redo >= DWCtl->shown.mode.off_until)
		DWCtl->shown.mode.off_until = InvalidXLogRecPtr;
	DWCtl->shown.mode_changes++;
	DWUnlockMutex();
}

const char *
DoubleWriteModeName(int64 mode)
{
	switch (mode)
	{
		case TORN_PAGES_OFF:
			return "off";
		case TORN_PAGES_FULL_PAGES:
			return "full_pages";
		case TORN_PAGES_DOUBLE_WRITES:
			return "double_writes";
		case TORN_PAGES_ATOMIC_WRITES:
			return "atomic_writes";
	}
	return NULL;
}

/* ---------------------------------------------------------------------
 * What others are told
 * ---------------------------------------------------------------------
 */

#define DW_COUNTER_NAME(name) #name,

/* Each counter is a column of pg_stat_double_writes */
static const char *const dw_counter_names[] = {DW_COUNTERS(DW_COUNTER_NAME)};

/* A figure that is not a counter */
typedef struct DWFigure
{
	const char *name;
	int64		value;
} DWFigure;

#define MAX_FIGURES		128

struct DoubleWriteSnapshot
{
	int64		counters[lengthof(dw_counter_names)];
	DWFigure	figures[MAX_FIGURES];
	int			nfigures;
};

/*
 * Put a figure of this or another part of the server.  The name must stay
 * valid.
 */
void
DoubleWritePutFigure(DoubleWriteSnapshot *snapshot, const char *name,
					 int64 value)
{
	Assert(snapshot->nfigures < MAX_FIGURES);
	snapshot->figures[snapshot->nfigures].name = name;
	snapshot->figures[snapshot->nfigures].value = value;
	snapshot->nfigures++;
}

/* Put an LSN or a time, where zero means that there is none */
static void
dw_put_if_any(DoubleWriteSnapshot *snapshot, const char *name, int64 value)
{
	if (value != 0)
		DoubleWritePutFigure(snapshot, name, value);
}

static void
dw_put_log(DoubleWriteSnapshot *snapshot)
{
	const volatile DWLogState *log = &DWCtl->log;
	uint64		first = log->first_segno;
	int64		segments = log->open ? log->segno + 1 - first : 0;

	DoubleWritePutFigure(snapshot, "log_armed", log->armed);
	DoubleWritePutFigure(snapshot, "log_next_batch", log->next_batchno);
	DoubleWritePutFigure(snapshot, "log_low_water", log->low_water);
	DoubleWritePutFigure(snapshot, "log_used_bytes", Max(segments, 0) * DW_SEGMENT_SIZE);
	DoubleWritePutFigure(snapshot, "log_limit_bytes",
						 (int64) dw_log_bound_segments() * DW_SEGMENT_SIZE);
	DoubleWritePutFigure(snapshot, "log_max_limit_bytes",
						 (int64) (DW_MAX_SEGMENTS - 1) * DW_SEGMENT_SIZE);
	DoubleWritePutFigure(snapshot, "log_files_to_sync", DWCtl->dirty_files);
	DoubleWritePutFigure(snapshot, "stage_slots", DWCtl->stage.nslots);
}

static void
dw_put_mode(DoubleWriteSnapshot *snapshot, const DWShownMode *mode, bool armed)
{
	TornPagesProtection in_force = dw_mode_in_force(mode, armed);
	bool		to_full_pages = armed && in_force != TORN_PAGES_OFF;

	DoubleWritePutFigure(snapshot, "mode_in_force", in_force);
	DoubleWritePutFigure(snapshot, "mode_requested", mode->requested);
	DoubleWritePutFigure(snapshot, "mode_armed", armed);
	DoubleWritePutFigure(snapshot, "mode_images",
						 !XLogInsertAllowed() ? dw_replayed_images() : mode->images);
	if (mode->in_force == in_force)
		dw_put_if_any(snapshot, "mode_since", mode->since);
	dw_put_if_any(snapshot, "mode_checkpoint_after",
				  to_full_pages ? mode->disarm_after : mode->off_until);
}

static void
dw_put_restore(DoubleWriteSnapshot *snapshot, const DWRestoreStats *restore)
{
	if (!restore->done)
		return;
	DoubleWritePutFigure(snapshot, "restore_finished", restore->finished);
	DoubleWritePutFigure(snapshot, "restore_batches", restore->batches);
	DoubleWritePutFigure(snapshot, "restore_examined", restore->examined);
	DoubleWritePutFigure(snapshot, "restore_restored", restore->restored);
	DoubleWritePutFigure(snapshot, "restore_identical", restore->identical);
	DoubleWritePutFigure(snapshot, "restore_missing", restore->missing);
	DoubleWritePutFigure(snapshot, "restore_bytes_read", restore->bytes_read);
	DoubleWritePutFigure(snapshot, "restore_usec", restore->usec);
}

/*
 * Return what is live in the log: copies, notes and bytes.
 */
static DWLogTaken
dw_log_live(void)
{
	DWLogTaken	live = {0};
	DWLogTaken	after = DWCtl->log.live_after;

	if (DWCtl->log.armed)
	{
		live = dw_log_taken();
		live.pages -= Min(live.pages, after.pages);
		live.notes -= Min(live.notes, after.notes);
		live.bytes -= Min(live.bytes, after.bytes);
	}
	return live;
}

/*
 * Put what a start would have to do if the server crashed now; see exempt.c.
 */
static void
dw_put_recovery(DoubleWriteSnapshot *snapshot)
{
	XLogRecPtr	redo = pg_atomic_read_u64(&DWCtl->recover_from);
	XLogRecPtr	end = RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) :
		GetXLogInsertRecPtr();
	DWLogTaken	live = dw_log_live();

	DoubleWritePutFigure(snapshot, "recovery_from", redo);
	DoubleWritePutFigure(snapshot, "recovery_wal", end - Min(redo, end));
	for (int i = 0; i < DW_REDO_POINTERS; i++)
	{
		DWRedoPointer *pointer = &DWCtl->reads.pointers[i];

		if (redo == pg_atomic_read_u64(&pointer->redo))
			DoubleWritePutFigure(snapshot, "recovery_reads",
								 pg_atomic_read_u64(&pointer->pages));
	}
	DoubleWritePutFigure(snapshot, "recovery_log_pages", live.pages + live.notes);
	DoubleWritePutFigure(snapshot, "recovery_log_bytes", live.bytes);
}

/*
 * Return all figures at this moment, in memory of the caller.  Counters are
 * since the end of recovery or the last reset.
 */
DoubleWriteSnapshot *
DoubleWriteTakeSnapshot(void)
{
	DoubleWriteSnapshot *snapshot = palloc0(sizeof(DoubleWriteSnapshot));
	TimestampTz since;
	DWShownMode mode;

	DWLockMutex();
	for (int i = 0; i < lengthof(snapshot->counters); i++)
		snapshot->counters[i] = (int64)
			(pg_atomic_read_u64((pg_atomic_uint64 *) &DWCtl->stats + i) -
			 DWCtl->shown.stats_base[i]);
	since = DWCtl->shown.stats_reset;
	mode = DWCtl->shown.mode;
	DWUnlockMutex();

	/* on a standby the counters start with the server */
	DoubleWritePutFigure(snapshot, "stats_since", since != 0 ? since : PgStartTime);
	dw_put_log(snapshot);
	dw_put_mode(snapshot, &mode, DWCtl->log.armed);
	dw_put_restore(snapshot, &DWCtl->restore);
	dw_put_recovery(snapshot);
	return snapshot;
}

bool
DoubleWriteSnapshotCounter(const DoubleWriteSnapshot *snapshot, int n,
						   const char **name, int64 *value)
{
	if (n < 0 || n >= lengthof(dw_counter_names))
		return false;
	*name = dw_counter_names[n];
	*value = snapshot->counters[n];
	return true;
}

bool
DoubleWriteSnapshotValue(const DoubleWriteSnapshot *snapshot, const char *name,
						 int64 *value)
{
	for (int i = 0; i < snapshot->nfigures; i++)
	{
		if (strcmp(snapshot->figures[i].name, name) == 0)
		{
			*value = snapshot->figures[i].value;
			return true;
		}
	}
	return false;
}

/*
 * Give what is known of a tablespace, copied under the mutex, because the
 * flusher may be changing it.
 */
bool
DoubleWriteAtomicPlace(int n, Oid *tablespace, char **proof, char **fstype,
					   char **device, int64 *unit, int64 *looked_at,
					   int64 *atomic_pages, int64 *logged_pages,
					   int64 *refusals, char **advice)
{
	DWAtomicTablespace *spc;
	DWAtomicProbe probe;
	const char *text;
	bool		found;

	DWLockMutex();
	found = n >= 0 && n < DWCtl->atomic.ntablespaces;
	if (found)
	{
		spc = &DWCtl->atomic.tablespaces[n];
		probe = spc->probe;
		*tablespace = spc->spcOid;
		*looked_at = spc->looked_at;
	}
	DWUnlockMutex();
	if (!found)
		return false;

	*proof = pstrdup(DWAtomicVerdictName(probe.verdict));
	*fstype = pstrdup(probe.fstype);
	*device = pstrdup(probe.device);
	*unit = probe.unit;
	*atomic_pages = pg_atomic_read_u64(&spc->pages);
	*logged_pages = pg_atomic_read_u64(&spc->logged);
	*refusals = pg_atomic_read_u64(&spc->refused);
	text = DWAtomicAdvice(&probe);
	*advice = text ? pstrdup(text) : NULL;

	return true;
}
