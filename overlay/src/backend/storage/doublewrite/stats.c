/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Counters of the engine: when they start, and what is counted elsewhere.
 *
 * The counters themselves only ever rise, since checkpoints report their
 * differences.  To reset them means to remember what they are now, and have
 * the views subtract that.
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
#include "storage/bufpage.h"
#include "storage/doublewrite_internal.h"
#include "utils/timestamp.h"

/*
 * From now on, views show what is counted after this; WAL ends at lsn, or it
 * is not known where.
 */
static void
dw_stats_set_base(TimestampTz when, XLogRecPtr lsn)
{
	SpinLockAcquire(&DWCtl->mutex);
	for (int i = 0; i < lengthof(DWCtl->stats_base); i++)
		DWCtl->stats_base[i] =
			pg_atomic_read_u64((pg_atomic_uint64 *) &DWCtl->stats + i);
	DWCtl->stats_reset = when;
	DWCtl->stats_lsn = lsn;
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * Recovery is over, and this server writes WAL: what other modes would do is
 * reckoned from here.
 */
void
dw_stats_start(XLogRecPtr lsn)
{
	dw_stats_set_base(GetCurrentTimestamp(), lsn);
}

void
dw_stats_reset(void)
{
	dw_stats_set_base(GetCurrentTimestamp(),
					  RecoveryInProgress() ? InvalidXLogRecPtr :
					  GetXLogInsertRecPtr());
}

/*
 * A WAL record changes a page for the first time after the redo pointer.
 * image_len is the size of the image in the record, or 0 if it has none
 * because the mode does not ask for it.
 */
void
DoubleWriteCountFirstChange(const PageData *page, bool standard, int image_len)
{
	const PageHeaderData *phdr = (const PageHeaderData *) page;
	int			size = BLCKSZ;

	/* the hole that XLogRecordAssemble() would leave out */
	if (standard && phdr->pd_lower >= SizeOfPageHeaderData &&
		phdr->pd_upper > phdr->pd_lower && phdr->pd_upper <= BLCKSZ)
		size -= phdr->pd_upper - phdr->pd_lower;

	DWCount(first_changes, 1);
	DWCount(first_change_bytes, size);
	if (image_len > 0)
	{
		DWCount(images, 1);
		DWCount(image_bytes, image_len);
	}
}
