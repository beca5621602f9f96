/*-------------------------------------------------------------------------
 *
 * evict.c
 *	  Copying a page from its buffer to the stage.
 *
 * That is all that a process pays for a page that it evicts, as long as there is
 * room.  If there is none, it makes some, or waits for who is at it.
 *
 * Pages that cannot be written home stay where they are, so files that nobody can
 * write to could fill the stage.  From an eighth of it on, pages of the same
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
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"

/* What pages that cannot be written home may hold of the stage */
#define DW_FAILED_RELATION_SHARE	8
#define DW_FAILED_TABLESPACE_SHARE	2

/* Pages that are tried again before one of the same file is refused */
#define DW_REFUSED_RETRY	32

/* pages that this process has staged, and how often it found the stage full */
uint64		DoubleWritePagesStaged = 0;
uint64		DoubleWriteStageFullSeen = 0;

/*
 * Wait for a flusher at work, if there is one, until it frees slots or ends.
 *
 * We are counted before we look, and it frees slots before it looks whom to tell:
 * either we see the slots, or it sees us.  What it has told before does not end
 * the wait, what it tells later does.  Its lock does, too, so that nobody waits
 * for one whom an error has stopped.
 */
static void
dw_wait_for_room(void)
{
	uint64		told = pg_atomic_read_u64(&DWCtl->room.told);
	uint64		now;

	Assert(pg_atomic_read_u32(&DWCtl->room.nwaiting) > 0);

	/* not a slot that was freed before "told" was read */
	pg_memory_barrier();
	if (!dw_stage_has_room())
		LWLockWaitForVar(DoubleWriteFlushLock, &DWCtl->room.told, told, &now);
}

/*
 * Take the flush lock because the stage is full.  Returns false, without it, if a
 * slot has become free meanwhile, or may have, or if there are parts to be carried.
 *
 * Where nobody is at work, or home writes are held up, one of many such processes
 * waits in the doorway of dw_lock_flush(), the others for that one.  There it is
 * not passed by those who hold up home writes, and are no flushers.
 */
static bool
dw_lock_flush_if_full(void)
{
	bool		got;

	dw_wait_for_room();
	if (dw_stage_has_room() || dw_homes_under_way() ||
		!LWLockAcquireOrWait(DoubleWriteTurnLock, LW_EXCLUSIVE))
		return false;

	/* this wait ends as well when a flusher has freed slots */
	got = LWLockAcquireOrWait(DoubleWriteFlushLock, LW_EXCLUSIVE);
	if (!got && !dw_stage_has_room())
	{
		LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
		got = true;
	}
	LWLockRelease(DoubleWriteTurnLock);
	return got;
}

/*
 * Is there enough for another batch, while parts of others are on their way home?
 * Each batch may have a sync of the log.
 */
static bool
dw_next_batch_is_due(void)
{
	return dw_staged_count() >= DWBatchThreshold() && !dw_many_homes_under_way();
}

/*
 * Make room while parts of batches are on their way home.  Who can neither carry one
 * nor send the next batch waits for a carrier: those free slots while somebody else
 * has the flush lock.
 */
static void
dw_make_room_by_parts(void)
{
	int			first = MyProcNumber % DW_MAX_HOME_PARTS;

	if (dw_carry_part(first))
		return;
	if (dw_next_batch_is_due() && dw_try_lock_flush())
		dw_flush_for_room_locked();
	else
		dw_wait_for_part(first);
}

/*
 * Make room by a whole batch, or wait for who is at it.
 */
static void
dw_make_room_by_batch(void)
{
	bool		got;

	/* nothing in between throws errors, which would leave us counted */
	pg_atomic_fetch_add_u32(&DWCtl->room.nwaiting, 1);
	got = dw_lock_flush_if_full();
	pg_atomic_fetch_sub_u32(&DWCtl->room.nwaiting, 1);

	if (!got)
		return;
	if (dw_homes_under_way())
	{
		/* another flusher has been quicker */
		LWLockRelease(DoubleWriteFlushLock);
		return;
	}

	/* R11: if nothing but failed pages is left, that is an error */
	if (!dw_flush_for_room_locked() && !dw_homes_under_way() &&
		pg_atomic_read_u32(&DWCtl->stage.ninuse_hint) >= (uint32) DWCtl->stage.nslots)
		dw_flush_batch(&DWAllPages, &DWAllPages);
}

/*
 * Called by a process that found the stage full: see to it that a slot becomes
 * free, by writing home or by waiting for somebody who does.  The caller looks
 * whether there is one, and comes back if not.
 */
static void
dw_make_room(void)
{
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	if (dw_homes_under_way())
		dw_make_room_by_parts();
	else
		dw_make_room_by_batch();
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
 * Have so many pages of the relation failed, or so many in all and some in its
 * tablespace, that no more may be staged?  Returns what tells such pages, or
 * NULL.  Slots are looked at without a lock, as a page more or less won't do
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
	for (int i = 0; i < DWCtl->stage.nslots; i++)
	{
		if (((volatile DWSlot *) &DWSlots[i])->failed &&
			filter(&DWSlots[i].tag, rlocator))
			return filter;
	}
	return NULL;
}

/*
 * Would staging this page fail, unless its file has become writable again?
 * Who has a choice takes another one.
 */
bool
DoubleWriteStageRefuses(const BufferTag *tag)
{
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);

	return dw_refusing_filter(&rlocator) != NULL;
}

/*
 * If the stage refuses a page, try those which are in its way again: either
 * there is room then, or the caller gets their error. (R11)  They may be on their
 * way already.  Returns whether it did refuse the page.
 */
static bool
dw_retry_refusing(const BufferTag *tag)
{
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);
	DWPageSet	pages = {.arg = &rlocator,.max = DW_REFUSED_RETRY};

	pages.filter = dw_refusing_filter(&rlocator);
	if (pages.filter == NULL)
		return false;
	dw_lock_flush_idle(LW_EXCLUSIVE);
	dw_flush_batch_locked(&pages, &pages);
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
dw_fill_slot(int slotno, BufferDesc *buf, XLogRecPtr lsn, bool permanent,
			 bool replaces)
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
	if (permanent)
	{
		uint32		buf_state = LockBufHdr(buf);

		lsn = Max(lsn, PageGetLSN(BufferGetPage(buffer)));
		UnlockBufHdr(buf, buf_state);
	}

	slot->permanent = permanent;
	slot->lsn = lsn;
	slot->stager = AmCheckpointerProcess() ? DW_STAGER_CHECKPOINTER :
		AmBackgroundWriterProcess() ? DW_STAGER_BGWRITER : DW_STAGER_BACKEND;
	/* a change of a version that never went home has had no copy (R2) */
	unreported = replaces && slot->records.unreported;
	slot->records = DWBufferRecordsArray[buf->buf_id];
	slot->records.unreported |= unreported;
}

/*
 * Copy the page of a dirty buffer into the stage.  After this the caller may
 * mark the buffer clean.
 *
 * The caller holds a pin, at least a share lock on the contents, and the
 * buffer's I/O, so nobody else can stage the same page meanwhile.  lsn is the
 * page LSN, permanent says whether the relation is WAL-logged.  Throws an
 * error if the stage is full and cannot be emptied, or holds too many pages of
 * the same file that cannot be written home; nothing is staged then.
 */
void
DoubleWriteStagePage(BufferDesc *buf, XLogRecPtr lsn, bool permanent)
{
	int			slotno;
	int			nstaged;
	bool		replaces;
	bool		counted = false;

	if (permanent)
		dw_check_lsn(lsn);

	for (;;)
	{
		bool		refused = DoubleWriteStageRefuses(&buf->tag);

		slotno = dw_reserve_for_page(&buf->tag, refused, &replaces, &nstaged);
		if (slotno >= 0)
			break;
		if (refused && dw_retry_refusing(&buf->tag))
			continue;
		if (!counted)
		{
			DWCount(stage_full, 1);
			DoubleWriteStageFullSeen++;
			counted = true;
		}
		dw_make_room();
	}

	/* nothing in here may fail: the slot would stay in state FILLING */
	dw_fill_slot(slotno, buf, lsn, permanent, replaces);
	dw_publish_slot(slotno);

	DWCount(staged, 1);
	DoubleWritePagesStaged++;
	if (replaces)
		DWCount(replaced, 1);

	INJECTION_POINT("doublewrite-page-staged", NULL);

	/*
	 * "requested" may be out of date; the flusher looks now and then.  It had better not
	 * compete for this batch with a checkpointer that wants it to bring others home.
	 */
	if (nstaged >= DWBatchThreshold() &&
		!((volatile DWCtlData *) DWCtl)->flusher.requested && !dw_bgwriter_helps())
		dw_wake_flusher();
}
