/*-------------------------------------------------------------------------
 *
 * reads.c
 *	  What crash recovery would have to read, if it were to come now.
 *
 * Redo reads each block that WAL since the redo pointer changes without
 * bringing an image of it, once.  These are counted where it is known that a
 * record is the first one for its page after the newest redo pointer.  While a
 * checkpoint is under way recovery would still begin at the redo pointer before,
 * and a page that was changed after that is counted again after the new one.  So
 * how many are counted again is counted, too.
 *
 * Not counted are pages that redo reads without their being named in a record
 * (maps of free space and visibility), and, while WAL is being replayed, pages
 * that were written home with later changes than those in the record.
 *
 * The counters rise for as long as the server lives; who wants to know what came
 * after some moment remembers what they were then.  They serve estimates: nobody
 * who decides about a page looks at them, but at the redo pointer beside them.
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
 * A record is the first one for a page since the newest redo pointer, and
 * redo would read the page for it; lsn is the LSN that the page had before.
 */
void
dw_count_read(XLogRecPtr lsn)
{
	DWReadsState *reads = &DWCtl->reads;
	uint64		first = pg_atomic_add_fetch_u64(&reads->first, 1);
	uint64		look_at = pg_atomic_read_u64(&reads->look_at);

	if (lsn > pg_atomic_read_u64(&reads->recover_from))
		pg_atomic_fetch_add_u64(&reads->repeated, 1);

	/* once, for whoever has asked for it */
	if (unlikely(look_at != 0 && first >= look_at) &&
		pg_atomic_compare_exchange_u64(&reads->look_at, &look_at, 0))
		dw_wake_checkpointer();
}

/*
 * A crash would recover from this redo pointer from now on.
 */
void
dw_count_reads_from(XLogRecPtr redo)
{
	DWReadsState *reads = &DWCtl->reads;

	pg_atomic_write_u64(&reads->recover_from, redo);
	pg_atomic_write_u64(&reads->dropped,
						pg_atomic_read_u64(&reads->dropped_anew));
}

/*
 * A relation or a database with this number is dropped.  Redo would drop it again,
 * and take its time if the OID counter comes to that number: see
 * CanOpenBeforeCheckpoint(), which goes by what redo really drops.
 */
void
dw_count_drop(Oid number)
{
	pg_atomic_monotonic_advance_u64(&DWCtl->reads.dropped, number);
	pg_atomic_monotonic_advance_u64(&DWCtl->reads.dropped_anew, number);
}

/*
 * A checkpoint has begun: redo would not repeat what was dropped before, once that
 * has completed.
 */
void
DoubleWriteCountDropsAnew(void)
{
	pg_atomic_write_u64(&DWCtl->reads.dropped_anew, InvalidOid);
}

/*
 * Would redo find that something has been dropped whose number may be used again
 * soon, the OID counter being at 'next'?
 */
bool
DoubleWriteDropsAhead(Oid next)
{
	return pg_atomic_read_u64(&DWCtl->reads.dropped) >= next;
}

/*
 * What the log has taken until now.
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

/*
 * The counters at this moment.
 */
void
DoubleWriteCountReads(DoubleWriteReads *reads)
{
	DWShownLog	log;

	DWLockMutex();
	log = DWCtl->shown.log;
	DWUnlockMutex();

	/* in this order, or more might be repeated than there are */
	reads->repeated = pg_atomic_read_u64(&DWCtl->reads.repeated);
	pg_read_barrier();
	reads->first = pg_atomic_read_u64(&DWCtl->reads.first);
	reads->log_pages = 0;
	reads->log_notes = 0;
	reads->log_bytes = 0;
	if (log.armed)
	{
		DWLogTaken	taken = dw_log_taken();

		reads->log_pages = taken.pages - Min(taken.pages, log.live_after.pages);
		reads->log_notes = taken.notes - Min(taken.notes, log.live_after.notes);
		reads->log_bytes = taken.bytes - Min(taken.bytes, log.live_after.bytes);
	}
}

/*
 * Wake the checkpointer up when so many blocks have been counted.
 */
void
DoubleWriteLookAtReads(uint64 first)
{
	pg_atomic_write_u64(&DWCtl->reads.look_at, first);
}

/*
 * Wake it up now.
 */
void
DoubleWriteWakeCheckpointer(void)
{
	dw_wake_checkpointer();
}

/*
 * Has that come?
 */
bool
DoubleWriteReadsReached(void)
{
	return pg_atomic_read_u64(&DWCtl->reads.look_at) == 0;
}
