/*-------------------------------------------------------------------------
 *
 * stagesize.c
 *	  Size of the stage, as set or chosen.
 *
 * It does not change while the server runs.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/stagesize.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "utils/guc.h"
#include "utils/guc_hooks.h"

/* GUC */
int			double_write_stage_size = -1;

/*
 * Automatic size of the stage: one 32nd of shared buffers, but between 1024
 * slots (8 MB) and 2048 (16 MB).
 *
 * The minimum does not depend on shared buffers, because the smaller these
 * are, the more pages are evicted.  It is four full batches: one on its way
 * home, one ready to follow, and room for evictions to go on meanwhile.  With
 * less, batches become small, and there are several times as many syncs of
 * the log.  More than the maximum adds latency, not throughput.
 *
 * A server with less than 1 MB of shared buffers gets a stage of at most
 * eight times that, because such a setting asks for a small server.
 */
#define DW_STAGE_SHARE		32
#define DW_STAGE_MIN		1024
#define DW_STAGE_MAX		2048
#define DW_STAGE_MULTIPLE	8

static int
dw_automatic_slots(void)
{
	int			least = DW_STAGE_MIN;

	if (NBuffers < DW_STAGE_MIN / DW_STAGE_MULTIPLE)
		least = NBuffers * DW_STAGE_MULTIPLE;
	return Min(Max(NBuffers / DW_STAGE_SHARE, least), DW_STAGE_MAX);
}

bool
check_double_write_stage_size(int *newval, void **extra, GucSource source)
{
	/*
	 * Once the size has been chosen, -1 in a file that is reloaded is no
	 * change.
	 */
	if (*newval == -1 && double_write_stage_size > 0)
		*newval = dw_automatic_slots();
	if (*newval != -1 && *newval < 16)
	{
		GUC_check_errdetail("\"%s\" must be at least %dkB.",
							"double_write_stage_size", 16 * (BLCKSZ / 1024));
		GUC_check_errhint("Use -1 to have the size chosen automatically.");
		return false;
	}
	return true;
}

int
dw_stage_slots(void)
{
	return double_write_stage_size > 0 ? double_write_stage_size :
		dw_automatic_slots();
}

/*
 * Have SHOW report the chosen value of an automatic size of the stage, as for
 * wal_buffers.
 */
void
dw_show_stage_size(void)
{
	char		value[32];

	if (double_write_stage_size > 0)
		return;
	snprintf(value, sizeof(value), "%d", dw_automatic_slots());
	SetConfigOption("double_write_stage_size", value, PGC_POSTMASTER,
					PGC_S_DYNAMIC_DEFAULT);

	/* If a configuration file contains -1, only a stronger source counts. */
	if (double_write_stage_size < 0)
		SetConfigOption("double_write_stage_size", value, PGC_POSTMASTER,
						PGC_S_OVERRIDE);
}
