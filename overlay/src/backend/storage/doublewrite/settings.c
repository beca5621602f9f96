/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Settings of the server, and the sizes that follow from them.
 *
 * A process may have settings of its own: those of its session, or those from
 * before the last reload.  What the server as a whole does is decided by the
 * settings that the checkpointer has noted in shared memory; see
 * dw_setting().
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xlog.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "utils/guc.h"
#include "utils/guc_hooks.h"

/* GUCs */
int			io_torn_pages_protection = TORN_PAGES_FULL_PAGES;
int			double_write_buffer_size = -1;
int			double_write_compression = DW_COMPRESSION_DEFAULT;

bool
check_double_write_buffer_size(int *newval, void **extra, GucSource source)
{
	int			min = DW_MIN_SEGMENTS * DW_SEGMENT_SIZE / (1024 * 1024);

	if (*newval != -1 && *newval < min)
	{
		GUC_check_errdetail("\"%s\" must be at least %dMB.",
							"double_write_buffer_size", min);
		GUC_check_errhint("Use -1 to have the size chosen automatically.");
		return false;
	}
	return true;
}

/*
 * Files and the command line choose for the server.  A session or transaction
 * may choose full-page images for itself, so that its WAL records carry them,
 * or go back to what the server does, but nothing weaker.  ALTER ROLE ALL
 * (PGC_S_GLOBAL) chooses for all sessions, not for the server.
 *
 * In recovery a session writes no WAL, so its choice would mean nothing.
 */
bool
check_io_torn_pages_protection(int *newval, void **extra, GucSource source)
{
	if (source <= PGC_S_ARGV || InitializingParallelWorker)
		return true;

	if (RecoveryInProgress())
	{
		GUC_check_errdetail("\"%s\" cannot be set for a session during recovery.",
							"io_torn_pages_protection");
		return false;
	}
	if (*newval == TORN_PAGES_FULL_PAGES && fullPageWrites)
		return true;
	if (DWCtl->log.armed && (*newval == TORN_PAGES_DOUBLE_WRITES ||
							 *newval == TORN_PAGES_ATOMIC_WRITES))
		return true;

	if (*newval == TORN_PAGES_FULL_PAGES)
		GUC_check_errdetail("Full-page images are disabled by \"%s\".",
							"full_page_writes");
	else
		GUC_check_errdetail("A session can only choose \"full_pages\", or what the server does.");
	GUC_check_errhint("To change the setting of the server, use ALTER SYSTEM or its configuration file.");
	return false;
}

/* ---------------------------------------------------------------------
 * What the server does
 * ---------------------------------------------------------------------
 */

/*
 * Return what the server's settings ask for, whatever this process's own are.
 */
TornPagesProtection
dw_setting(void)
{
	uint32		setting = pg_atomic_read_u32(&DWCtl->setting);

	Assert(setting != DW_SETTING_UNKNOWN);
	return (TornPagesProtection) setting;
}

/*
 * Return whether the server's settings ask for the log.  With atomic writes
 * it is for pages that cannot be written atomically.
 */
bool
dw_setting_uses_log(void)
{
	return dw_setting() == TORN_PAGES_DOUBLE_WRITES ||
		dw_setting() == TORN_PAGES_ATOMIC_WRITES;
}

/*
 * Take this process's settings for those of the server.  The startup process
 * does so once, before it uses them.  It may hear of a reload later than the
 * checkpointer, so from then on only the checkpointer does so, which has no
 * settings of any session.
 */
void
dw_take_setting(void)
{
	uint32		unknown = DW_SETTING_UNKNOWN;
	uint32		setting = io_torn_pages_protection;

	Assert(AmCheckpointerProcess() || AmStartupProcess() || !IsUnderPostmaster);

	if (setting == TORN_PAGES_FULL_PAGES && !fullPageWrites)
		setting = TORN_PAGES_OFF;
	if (AmCheckpointerProcess())
	{
		uint32		before = pg_atomic_exchange_u32(&DWCtl->setting, setting);

		/* the one switch for which mode.c has nothing to do */
		if (before != setting && DWCtl->log.armed && before != DW_SETTING_UNKNOWN &&
			before >= TORN_PAGES_DOUBLE_WRITES && setting >= TORN_PAGES_DOUBLE_WRITES)
			ereport(LOG,
					(errmsg("torn page protection has switched to %s",
							setting == TORN_PAGES_ATOMIC_WRITES ?
							"atomic writes" : "double writes")));
	}
	else
		pg_atomic_compare_exchange_u32(&DWCtl->setting, &unknown, setting);
}

/*
 * Act on a setting that has changed during recovery, or try a switch again
 * that has failed.  Called by the checkpointer when it has done everything
 * else.
 *
 * Not to be called during checkpoints: it may fail again, and it writes WAL,
 * which must not happen in a shutdown checkpoint.
 */
void
DoubleWriteCatchUp(void)
{
	Assert(AmCheckpointerProcess());

	if (pg_atomic_read_u32(&DWCtl->setting_changed) != 0 && !RecoveryInProgress())
		UpdateFullPageWrites();
}

/*
 * Return whether WAL records of this process must carry full-page images,
 * whatever the server does.  The answer does not matter if the server writes
 * images anyway.  Images never do harm, so it does not matter when a process
 * learns of a reload.
 */
bool
DoubleWriteSessionImages(void)
{
	return io_torn_pages_protection == TORN_PAGES_FULL_PAGES && fullPageWrites;
}

/* ---------------------------------------------------------------------
 * Sizes
 * ---------------------------------------------------------------------
 */

/*
 * Return the automatic bound of the log in bytes: as large as shared buffers,
 * since that much can be dirty at once, but between 512 MB and 1 GB.  With
 * less, small shared buffers would have short epochs, in which few pages are
 * evicted twice.
 *
 * It is half of max_wal_size, up to 4 GB, if that is more.  With checkpoints
 * that rare, full_pages would put one image of each page into WAL between two
 * of them.  To have no more than one copy of it in the log, an epoch must
 * last as long.  More would make restore long, and the tables of copies and
 * of files large.
 */
static int64
dw_automatic_bound(void)
{
	int64		by_buffers = (int64) NBuffers * BLCKSZ;
	int64		by_wal = (int64) max_wal_size_mb * 1024 * 1024 / 2;

	by_buffers = Min(Max(by_buffers, INT64CONST(512) << 20), INT64CONST(1) << 30);
	return Max(by_buffers, Min(by_wal, INT64CONST(4) << 30));
}

/*
 * Show the bound, automatic or not.  The automatic one follows reloads of
 * max_wal_size, so there is no value to set at the start.  There is no unit,
 * because the column "setting" of pg_settings shows this, too.
 */
const char *
show_double_write_buffer_size(void)
{
	static char buf[16];
	int			megabytes = double_write_buffer_size;

	if (megabytes < 0)
		megabytes = (int) (dw_automatic_bound() / (1024 * 1024));
	snprintf(buf, sizeof(buf), "%d", megabytes);
	return buf;
}

/*
 * Return the bound of the log in segments.
 */
int
dw_log_bound_segments(void)
{
	int64		bytes = dw_automatic_bound();

	if (double_write_buffer_size > 0)
		bytes = (int64) double_write_buffer_size * 1024 * 1024;
	return Min(Max(bytes / DW_SEGMENT_SIZE, DW_MIN_SEGMENTS),
			   DW_MAX_SEGMENTS - 1);
}
