/*-------------------------------------------------------------------------
 *
 * durable.c
 *	  Making the pages of a batch durable before they go home.
 *
 * That takes a copy in the log, unless something else protects the page. (R2)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/durable.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"

/*
 * Return whether this is a standby or a crash recovery whose WAL lacks images, though the
 * settings ask for protection by them.
 */
static bool
dw_replay_lacks_protection(void)
{
	return !DWCtl->log.armed && dw_setting() == TORN_PAGES_FULL_PAGES &&
		RecoveryInProgress() && !dw_replayed_images();
}

/*
 * Arm the log, holding the flush lock with no home write under way, for a recovery that
 * the settings do not ask to use it.  If that fails, report it and go on without, as stock
 * does: pages may be torn then.  It is not tried again before the next reload or
 * restartpoint.
 */
static void
dw_try_to_arm(void)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	bool		exit_on_error = ExitOnAnyError;

	if (DWCtl->log.arming_failed)
		return;
	ExitOnAnyError = false;		/* the checkpointer may be at a stop */
	PG_TRY();
	{
		ereport(LOG_SERVER_ONLY,
				(errmsg("using double writes because the WAL being replayed lacks full-page images"),
				 errhint("Set \"io_torn_pages_protection\" to \"double_writes\" on this server.")));
		dw_arm();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		/* the flush lock stays held */
		InterruptHoldoffCount = holdoff;
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		DWCtl->log.arming_failed = true;
		ereport(LOG_SERVER_ONLY,
				(errcode(edata->sqlerrcode),
				 errmsg("pages are not protected because the WAL being replayed lacks full-page images and double writes cannot be used"),
				 errdetail_internal("%s", edata->message),
				 errhint("Remove the cause and reload the configuration.")));
		FreeErrorData(edata);
	}
	PG_END_TRY();
	ExitOnAnyError = exit_on_error;
}

/*
 * Such a recovery protects itself with the log, from the batch under way on, if it can.
 * Returns false if that has to wait for home writes.
 */
bool
dw_arm_for_replay(void)
{
	Assert(DWIsFlusher());

	if (!dw_replay_lacks_protection() || DWCtl->log.arming_failed)
		return true;
	if (!dw_await_home_writes(&DWPermanentPages, false))
		return false;
	dw_try_to_arm();
	return true;
}

/*
 * Startup process, at the end of redo: pages replayed since the redo pointer will get no
 * image before the next checkpoint, so arm the log if they need it.  Return false if that
 * fails.  Then that checkpoint comes before clients, as in stock.
 */
bool
DoubleWriteProtectsReplayed(void)
{
	if (!dw_replay_lacks_protection() || GetXLogReplayRecPtr(NULL) <= DWCtl->redo.last)
		return true;
	(void) dw_lock_flush_idle(LW_EXCLUSIVE, &DWPermanentPages, false);
	dw_try_to_arm();
	LWLockRelease(DoubleWriteFlushLock);
	return DWCtl->log.armed;
}

/* What protects the pages of a batch */
typedef struct DWChoice
{
	int			logged[DW_MAX_BATCH_PAGES]; /* slots to be logged */
	int			nlogged;
	int			noted[DW_MAX_BATCH_PAGES];	/* slots to be noted in the log */
	int			nnoted;
	int			copied[DW_MAX_BATCH_PAGES]; /* slots with a copy in the log */
	uint64		copies[DW_MAX_BATCH_PAGES]; /* ... and the batches of these */
	int			ncopied;
	int			nexempt;		/* pages that redo rebuilds */
	int			nhints;			/* pages in which only hints have changed */
} DWChoice;

/*
 * Choose the pages of the batch that have to pass through the log, those of which it
 * needs only a note (R2), and those that are written home atomically instead. (A1)
 */
static void
dw_choose_logged(DWChoice *choice)
{
	bool		armed = DWCtl->log.armed;

	/* copies that wait are written home without the flush lock (A3) */
	bool		atomic = armed && dw_copies_left() == 0 && dw_atomic_allowed();

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_TAKEN);

	choice->nlogged = choice->nnoted = choice->ncopied = 0;
	choice->nexempt = choice->nhints = 0;

	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		int			slotno = DWCtl->batch.slots[i];
		DWSlot	   *slot = &DWSlots[slotno];
		uint64		copy;

		slot->atomic = false;
		slot->covered = true;
		if (!slot->permanent || slot->discarded)
			continue;
		if (!armed)
			slot->covered = false;
		else if (dw_redo_rebuilds(slot))
			choice->nexempt++;
		else if (atomic && dw_atomic_chosen(slot))
			slot->atomic = true;
		else if ((copy = dw_covering_copy(slot)) != 0)
		{
			choice->copied[choice->ncopied] = slotno;
			choice->copies[choice->ncopied++] = copy;
		}
		else if (dw_only_hints_changed(slot))
		{
			choice->nhints++;
			if (DataChecksumsEnabled())
			{
				choice->noted[choice->nnoted++] = slotno;
				slot->covered = false;
			}
		}
		else
		{
			choice->logged[choice->nlogged++] = slotno;
			slot->covered = false;
		}
	}
}

/*
 * Take the batch from TAKEN to DURABLE.  Returns false if the log has no
 * space for it.
 */
bool
dw_make_durable(bool beyond_bound)
{
	DWChoice	choice;
	int			nentries;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_TAKEN);

	dw_flush_wal();
	dw_choose_logged(&choice);
	nentries = choice.nlogged + choice.nnoted;
	memcpy(choice.logged + choice.nlogged, choice.noted,
		   choice.nnoted * sizeof(int));
	if (nentries > 0 &&
		!dw_log_write_batch(choice.logged, nentries, choice.nlogged, beyond_bound))
		return false;
	for (int i = 0; i < nentries; i++)
		DWSlots[choice.logged[i]].covered = true;

	/* not before: a batch that waits for a sync cycle must not keep the log */
	for (int i = 0; i < choice.ncopied; i++)
	{
		Assert(dw_file_is_dirty(&DWSlots[choice.copied[i]].tag, choice.copies[i]));
		dw_remember_logged(choice.copied[i], choice.copies[i]);
	}
	dw_set_batch_phase(DW_BATCH_DURABLE);

	DWCount(exempt, choice.nexempt);
	DWCount(in_epoch, choice.ncopied);
	DWCount(only_hints, choice.nhints);
	return true;
}
