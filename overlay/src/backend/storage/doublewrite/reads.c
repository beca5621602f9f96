/*-------------------------------------------------------------------------
 *
 * reads.c
 *	  What crash recovery would have to do, if the server crashed now.
 *
 * Redo reads, once, each block that WAL since the redo pointer changes
 * without bringing an image of it.  These blocks are counted where a record
 * is known to be the first one for its page after the newest redo pointer.
 * While a checkpoint is under way, recovery would still begin at the previous
 * redo pointer.  So there is a counter for each of the last redo pointers,
 * and a page counts for those since which it has not been changed before.
 *
 * Not counted are pages that redo reads although no record names them (maps
 * of free space and visibility), pages whose redo waits in instant recovery,
 * and, while WAL is being replayed, pages that were written home with later
 * changes than those in the record.
 *
 * The counters are for display only and decide nothing, so a page that is
 * counted while one is set to zero may be lost.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/reads.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "storage/doublewrite_internal.h"

/*
 * Count a page for which a record is the first one since the newest redo
 * pointer, if redo would read the page for it; lsn is the LSN that the page
 * had before.
 */
void
DoubleWriteCountRead(XLogRecPtr lsn)
{
	for (int i = 0; i < DW_REDO_PLACES; i++)
	{
		DWRedoPlace *place = &DWCtl->reads.places[i];

		if (lsn <= pg_atomic_read_u64(&place->redo))
			pg_atomic_fetch_add_u64(&place->pages, 1);
	}
}

/*
 * Begin to count for a redo pointer that a crash may recover from later,
 * because redo has passed it, or a checkpoint begins.  It takes the place of
 * the oldest one.  Only one process at a time calls this.
 */
void
DoubleWriteNoteRedo(XLogRecPtr redo)
{
	uint32		newest = DWCtl->reads.newest;

	if (pg_atomic_read_u64(&DWCtl->reads.places[newest].redo) == redo)
		return;

	newest = (newest + 1) % DW_REDO_PLACES;
	pg_atomic_write_u64(&DWCtl->reads.places[newest].redo, redo);
	pg_atomic_write_u64(&DWCtl->reads.places[newest].pages, 0);
	DWCtl->reads.newest = newest;
}

/*
 * Note that a crash would recover from this redo pointer from now on.
 */
void
dw_count_reads_from(XLogRecPtr redo)
{
	pg_atomic_write_u64(&DWCtl->recover_from, redo);
}

/*
 * Return what the log has taken until now.
 */
DWLogTaken
dw_log_taken(void)
{
	DWLogTaken	taken;

	taken.pages = pg_atomic_read_u64(&DWCtl->stats.logged);
	taken.notes = DataChecksumsEnabled() ?
		pg_atomic_read_u64(&DWCtl->stats.only_hints) : 0;
	taken.bytes = pg_atomic_read_u64(&DWCtl->stats.log_bytes);
	return taken;
}
