/*-------------------------------------------------------------------------
 *
 * evict.c
 *	  Copying a page from its buffer to the stage.
 *
 * That is all that a process pays for a page that it evicts, as long as there is
 * room.  If there is none, it makes some, or waits for a process that does.
 *
 * Pages that cannot be written home stay where they are, so files that cannot be
 * written to could fill the stage.  From an eighth of it on, pages of the same
 * relations are refused; from half on, pages of the same tablespaces, for it is not
 * one file. (R11)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/evict.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "executor/instrument.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"

/* What pages that cannot be written home may hold of the stage */
#define DW_FAILED_RELATION_SHARE	8
#define DW_FAILED_TABLESPACE_SHARE	2

/* Pages that are tried again before one of the same file is refused */
#define DW_REFUSED_RETRY	32

/*
 * Return whether a process that found the stage full can go on: with a free slot, or
 * with a run to write.
 */
static bool
dw_room_or_runs(void)
{
	return dw_stage_has_room() || dw_runs_to_claim();
}

/*
 * Return whether other processes that want room have something to do, now that this
 * one has got a slot.
 */
static bool
dw_work_is_left(void)
{
	return !dw_stage_has_room() || dw_runs_to_claim();
}

/*
 * Take the next batch to the log, being the only one of those that want room to do so.
 * Returns false if there was none to be taken.
 */
static bool
dw_flush_for_room(void)
{
	bool		flushed = true;

	dw_lock_flush(LW_EXCLUSIVE);
	if (dw_room_or_runs())
		LWLockRelease(DoubleWriteFlushLock);
	else
		flushed = dw_flush_batch(NULL);
	dw_let_others_make_room();
	return flushed;
}

/*
 * Write so much home that there is room.  The rest is for the background writer, and for
 * other processes that want room: where writes are slow, a batch is more than one eviction
 * should take.  For the startup process all is: being woken up, the background writer would go
 * through its main loop first, which keeps ahead of redo.
 */
static void
dw_carry_for_room(void)
{
	if (AmStartupProcess())
		dw_carry_runs();
	while (dw_carry_run() && !dw_stage_has_room())
		;
	if (dw_runs_to_claim())
		dw_wake_flusher();
}

/*
 * Return whether it is time for another batch.  While pages of others are on their way
 * home it is only if there are enough for it, as each batch may have a sync of the log;
 * but as many as can be staged at all will do.
 */
static bool
dw_batch_is_due(void)
{
	return dw_staged_count() >= Min(DWBatchThreshold(), Max(dw_stage_capacity() / 2, 1)) ||
		!dw_homes_under_way(&DWAllPages);
}

/*
 * Called by a process that found the stage full: see to it that a slot becomes
 * free, by writing home or by waiting for a process that does.  The caller looks
 * whether there is one, and comes back if not.
 *
 * It writes a run home that no other process has claimed.  If there is none, one of those
 * that want room, the holder of DoubleWriteRoomLock, waits for the flush lock and takes the
 * next batch to the log.  There it is not passed by processes that hold up home writes.
 * The others wait until a slot is free, or a run can be claimed.
 */
static void
dw_make_room(bool *impatient, uint64 *since)
{
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	if (dw_carry_run())
		return;
	if ((dw_batch_is_due() || *impatient) &&
		LWLockConditionalAcquire(DoubleWriteRoomLock, LW_EXCLUSIVE))
	{
		*impatient = false;
		if (dw_flush_for_room())
			dw_carry_for_room();
		else if (!dw_homes_under_way(&DWAllPages) &&
				 pg_atomic_read_u32(&DWCtl->stage.ninuse) >= (uint32) DWCtl->stage.nslots)
			dw_try_home(&DWAllPages, since);	/* all have failed (R11) */
	}
	else if (!dw_wait_on(&DWCtl->home.room, dw_room_or_runs,
						 WAIT_EVENT_DOUBLE_WRITE_HOME))
	{
		*impatient = true;
		dw_mark_late_writes();
	}
	else
		*impatient = false;
}

/* ---------------------------------------------------------------------
 * Pages that cannot be written home
 * ---------------------------------------------------------------------
 */

static bool
dw_tag_in_tablespace(const BufferTag *tag, const void *arg)
{
	return tag->spcOid == ((const RelFileLocator *) arg)->spcOid;
}

/*
 * If so many pages of the relation have failed, or so many in all and some in its
 * tablespace, that no more may be staged, return the filter that tells such pages,
 * else NULL.  Slots are looked at without a lock, as a page more or less won't do
 * harm.
 */
static DWTagFilter
dw_refusing_filter(const RelFileLocator *rlocator)
{
	int			nfailed = ((volatile DWCtlData *) DWCtl)->stage.nfailed;
	DWTagFilter filter = dw_tag_in_relation;

	if (nfailed < DWCtl->stage.nslots / DW_FAILED_RELATION_SHARE)
		return NULL;
	if (nfailed >= DWCtl->stage.nslots / DW_FAILED_TABLESPACE_SHARE)
		filter = dw_tag_in_tablespace;
	for (int i = 0; i < dw_slots_used(); i++)
	{
		if (((volatile DWSlot *) &DWSlots[i])->failed &&
			filter(&DWSlots[i].tag, rlocator))
			return filter;
	}
	return NULL;
}

/*
 * Return whether staging this page would fail, unless its file has become writable
 * again.  A process that has a choice takes another one.
 */
bool
DoubleWriteStageRefuses(const BufferTag *tag)
{
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);

	return dw_refusing_filter(&rlocator) != NULL;
}

/*
 * If the stage refuses a page, try those which are in its way again: either
 * there is room then, or the caller gets their error, or waits for a write that does not
 * come back, as it would if it made that itself. (R11)  Returns whether it did refuse the
 * page.
 */
static bool
dw_retry_refusing(const BufferTag *tag, uint64 *since)
{
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);
	DWPageSet	pages = {.arg = &rlocator,.max = DW_REFUSED_RETRY};

	pages.filter = dw_refusing_filter(&rlocator);
	if (pages.filter == NULL)
		return false;
	dw_try_home(&pages, since);
	return true;
}

/* ---------------------------------------------------------------------
 * Staging a page
 * ---------------------------------------------------------------------
 */

/*
 * Complain about a page LSN from the future before the page is staged, as
 * XLogFlush() does: in a batch it would take the other pages down with it.
 *
 * The end of WAL only rises, so its spinlock, which all that write WAL need, is
 * taken only for LSNs beyond where this process has last seen it.
 */
static void
dw_check_lsn(XLogRecPtr lsn)
{
	static XLogRecPtr known_end = InvalidXLogRecPtr;

	if (lsn <= known_end || RecoveryInProgress() || !XLogNeedsFlush(lsn))
		return;
	known_end = GetXLogInsertRecPtr();
	if (lsn > known_end)
		XLogFlush(lsn);
}

static void
dw_fill_slot(int slotno, BufferDesc *buf, XLogRecPtr lsn, bool replaces)
{
	DWSlot	   *slot = &DWSlots[slotno];
	char	   *page = DWSlotPage(slotno);
	Buffer		buffer = BufferDescriptorGetBuffer(buf);
	bool		unreported;

	Assert(DWSlotInState(slot, DW_SLOT_FILLING));

	/*
	 * Other processes may set hint bits while we copy; that is harmless, and
	 * the checksum is computed on the copy.
	 */
	memcpy(page, BufferGetBlock(buffer), BLCKSZ);
	PageSetChecksumInplace((Page) page, buf->tag.blockNum);

	/* setting a hint bit may have raised the LSN meanwhile */
	if (slot->permanent)
	{
		uint32		buf_state = LockBufHdr(buf);

		lsn = Max(lsn, PageGetLSN(BufferGetPage(buffer)));
		UnlockBufHdr(buf, buf_state);
	}

	slot->lsn = lsn;
	slot->stager = AmCheckpointerProcess() ? DW_STAGER_CHECKPOINTER :
		AmBackgroundWriterProcess() ? DW_STAGER_BGWRITER : DW_STAGER_BACKEND;
	/* a change of a version that never went home has had no copy (R2) */
	unreported = replaces && slot->records.unreported;
	slot->records = DWBufferRecordsArray[buf->buf_id];
	slot->records.unreported |= unreported;
}

/*
 * The time since "start" is what a session has waited for a write, whichever processes have
 * written what meanwhile; "counted" is what of it has been counted already.
 */
static void
dw_count_write_time(instr_time start, instr_time counted)
{
	instr_time	now;

	if (INSTR_TIME_IS_ZERO(start))
		return;
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	INSTR_TIME_SUBTRACT(counted, pgBufferUsage.shared_blk_write_time);
	INSTR_TIME_ADD(now, counted);
	if ((int64) INSTR_TIME_GET_NANOSEC(now) <= 0)
		return;
	INSTR_TIME_ADD(pgBufferUsage.shared_blk_write_time, now);
	pgstat_count_buffer_write_time(INSTR_TIME_GET_MICROSEC(now));
}

/*
 * Return whether no page of the stage can be written home.
 */
static bool
dw_all_have_failed(void)
{
	return ((volatile DWCtlData *) DWCtl)->stage.nfailed >= DWCtl->stage.nslots;
}

/*
 * Reserve a slot for the page of a buffer, with a way to make room for it if there is
 * none.  Returns -1 if the page has been written home instead, as pages of other files
 * keep the stage full.
 */
static int
dw_reserve_with_patience(BufferDesc *buf, XLogRecPtr lsn, bool permanent,
						 bool *replaces, int *nstaged)
{
	const BufferTag *tag = &buf->tag;
	bool		impatient = false;
	bool		counted = false;
	uint64		since = DW_FIRST_ATTEMPT;
	int			slotno;

	for (;;)
	{
		bool		refused = DoubleWriteStageRefuses(tag);

		slotno = dw_reserve_for_page(tag, permanent, refused, replaces, nstaged);
		if (slotno >= 0)
		{
			/* we may have been woken for more than we have done */
			if (counted && dw_work_is_left())
				dw_tell_room(1);
			return slotno;
		}
		if ((impatient || dw_all_have_failed()) && dw_write_past_stage(buf, lsn, permanent))
			return -1;
		if (refused && dw_retry_refusing(tag, &since))
		{
			impatient = true;
			continue;
		}
		if (!counted)
		{
			DWCount(stage_full, 1);
			counted = true;
		}
		dw_make_room(&impatient, &since);
	}
}

/*
 * Copy the page of a dirty buffer into the stage, or write it home if other files keep
 * that full.  After this the caller may mark the buffer clean.
 *
 * The caller holds a pin, at least a share lock on the contents, and the
 * buffer's I/O, so no other process can stage the same page meanwhile.  lsn is the
 * page LSN, permanent says whether the relation is WAL-logged.  Throws an
 * error if the stage is full and cannot be emptied, or holds too many pages of
 * the same file that cannot be written home; nothing is staged then.
 */
void
DoubleWriteStagePage(BufferDesc *buf, XLogRecPtr lsn, bool permanent)
{
	instr_time	start = pgstat_prepare_io_time(track_io_timing);
	instr_time	counted = pgBufferUsage.shared_blk_write_time;
	DWPendingCopy *copy;
	int			slotno;
	int			nstaged;
	bool		replaces;

	if (permanent)
		dw_check_lsn(lsn);

	slotno = dw_reserve_with_patience(buf, lsn, permanent, &replaces, &nstaged);
	if (slotno < 0)
	{
		dw_count_write_time(start, counted);
		return;
	}

	/* nothing in here may fail: the slot would stay in state FILLING */
	copy = dw_take_copy_of(&buf->tag);
	if (copy != NULL)
		dw_slot_needs_copy(slotno, copy->copy.batchno);
	dw_fill_slot(slotno, buf, lsn, replaces);
	dw_publish_slot(slotno);
	if (copy != NULL)
		dw_copy_is_done(copy);

	DWCount(staged, 1);
	if (replaces)
		DWCount(replaced, 1);

	INJECTION_POINT("doublewrite-page-staged", NULL);

	/*
	 * "requested" may be out of date; the flusher looks now and then.  The
	 * checkpointer takes its pages to the log itself.
	 */
	if (nstaged >= DWBatchThreshold() && !AmCheckpointerProcess() &&
		!((volatile DWCtlData *) DWCtl)->flusher.requested)
		dw_wake_flusher();
	dw_count_write_time(start, counted);
}
