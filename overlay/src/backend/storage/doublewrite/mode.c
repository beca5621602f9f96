/*-------------------------------------------------------------------------
 *
 * mode.c
 *	  Switching between modes, and the part of checkpoints.
 *
 * Switching keeps every page protected at each moment (R10):
 *
 *	  to double_writes, to atomic_writes
 *						arm the log, then stop images
 *	  to full_pages		start images; disarm when a checkpoint that began
 *						after that has completed
 *	  to off			stop images, disarm
 *
 * Disarming empties the log before home writes bypass it.  Between
 * double_writes and atomic_writes nothing has to be done: each batch looks at
 * the setting, and copies in the log may be put over what has been written
 * atomically since, as epoch.c explains.
 *
 * A process that changes whether WAL carries images calls
 * DoubleWriteUpdateMode() before, and DoubleWriteModeApplied() after the
 * change: the checkpointer at each reload, the startup process at the end of
 * recovery.  At the end of recovery images may begin at once, but end only
 * after the record that switches the timeline.  While the log is in use,
 * XLOG_FPW_CHANGE is written even with wal_level = minimal, since recovery
 * has to know.  With full_page_writes = off, "full_pages" acts as "off";
 * "double_writes" does not change.
 *
 * A checkpoint or restartpoint drains the stage after its buffer scan.  When
 * the files have been synced after that, it makes a low-water mark durable
 * that lies past all batches up to the drain.  Only then may pg_control name
 * the new redo pointer. (R5)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/mode.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "postmaster/bgwriter.h"
#include "storage/doublewrite_internal.h"
#include "storage/doublewrite_stats.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "storage/sync.h"
#include "utils/injection_point.h"

/* ---------------------------------------------------------------------
 * Switching
 * ---------------------------------------------------------------------
 */

/* The checkpointer has shut the server down, and waits for walsenders (R12) */
static bool dw_stopped = false;

/* A switch is under way, or has ended with an error; see dw_failed_before() */
static bool dw_switching_on = false;
static bool dw_switching_off = false;

static bool
dw_images_requested(void)
{
	return dw_setting() == TORN_PAGES_FULL_PAGES;
}

/*
 * Note that a switch begins, and return whether the previous attempt failed.
 *
 * After an error the checkpointer asks for the mode once more before it looks
 * at any request.  It must then leave out the switch that has thrown the
 * error.  Otherwise the error would recur, and keep the checkpointer from
 * shutting down, from checkpoints, and from reading a setting that undoes the
 * switch. (R11)
 */
static bool
dw_failed_before(bool *under_way)
{
	bool		failed = *under_way;

	*under_way = !failed;
	return failed;
}

/*
 * Start using the log, as a reload asks.  If that fails, nothing changes
 * until the next reload.
 */
static bool
dw_switch_on(void)
{
	if (dw_failed_before(&dw_switching_on))
		return false;
	if (!dw_log_check_dir(LOG))
	{
		dw_switching_on = false;
		return false;
	}
	(void) dw_lock_flush_idle(LW_EXCLUSIVE, &DWPermanentPages, false);
	dw_arm();
	LWLockRelease(DoubleWriteFlushLock);
	dw_switching_on = false;
	ereport(LOG,
			(errmsg("torn page protection has switched to %s",
					dw_setting() == TORN_PAGES_ATOMIC_WRITES ?
					"atomic writes" : "double writes")));
	return true;
}

/*
 * Make durable what has gone home or was removed since the last checkpoint.
 * To be called before the use of the log ends without a checkpoint: pages
 * that were written atomically have no copies in it, and redo leaves them
 * alone.  A later checkpoint would pass their records without the pages
 * having been synced, or after a failed sync whose note is gone. (R5, R11)
 */
static void
dw_sync_gone_home(void)
{
	Assert(AmCheckpointerProcess() || !IsUnderPostmaster);

	if (!DWCtl->log.armed)
		return;
	dw_drain_set(&DWPermanentPages);
	ProcessSyncRequests();
	dw_sync_removals();
	dw_refuse_failed_sync();
}

/*
 * Stop using the log: make it empty, then remove the marker and the segments.
 * Return false if the marker cannot be removed; the log stays in use then.
 *
 * What is in the log must go first, or a restore would put it over newer
 * pages that have been written without it (R10).  The log has nothing of unlogged
 * relations, which may stay in the stage.  The last step holds up home
 * writes until it is over; a sync cycle before it leaves little to do.
 */
static bool
dw_disarm(void)
{
	uint64		begun;

	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	if (!DWCtl->log.armed)
		return true;

	dw_bring_copies(&DWAllPages, NULL);
	dw_drain_set(&DWPermanentPages);

	/* a sync that hangs must do so here, not with the lock */
	begun = DWCtl->log.cycles_begun;
	while (!dw_sync_cycle(begun))
		AbsorbSyncRequests();

	/*
	 * With everything home, and the lock held, no page that may be torn at
	 * home can be removed.  But some may have been removed before. (R3)
	 */
	dw_drain_settle_and_lock(&DWPermanentPages);
	if (DWCtl->log.armed)
	{
		DWDirtyFile *files;
		int			nfiles;
		bool		removed;

		dw_refuse_to_forget_removal();
		dw_epoch_begin(DWCtl->log.next_batchno);
		files = dw_copy_dirty_files(&nfiles);
		dw_sync_files(files, nfiles);
		pfree(files);
		dw_log_set_low_water(DWCtl->log.next_batchno);
		dw_forget_files(DWCtl->log.next_batchno);
		INJECTION_POINT("doublewrite-disarmed", NULL);

		/* while the marker exists, the next start demands an up-to-date log */
		removed = dw_remove_marker();
		if (!removed && DWMarkerExists(DataDir))
		{
			LWLockRelease(DoubleWriteFlushLock);
			return false;
		}
		DWCtl->log.armed = false;
		DWCtl->log.open = false;
		dw_remove_owner();
		dw_close_segment();
		/* else it might be back after a crash, and ask for the segments */
		if (removed)
			dw_remove_log();
	}
	LWLockRelease(DoubleWriteFlushLock);
	dw_publish_mode();
	return true;
}

/* Records from here on may lack images. */
static void
dw_remember_images_off(bool images_now)
{
	if (images_now && XLogInsertAllowed())
		DoubleWriteRememberImagesOff(GetXLogInsertRecPtr());
}

/*
 * Do the first half of a change of settings: return whether WAL records must
 * carry full-page images from now on, given whether they do now.
 *
 * Called by the startup process at the end of recovery, and by the
 * checkpointer at each reload.  If the log cannot be used, the reason goes to
 * the server log and nothing changes.
 */
bool
DoubleWriteUpdateMode(bool images_now)
{
	INJECTION_POINT("doublewrite-update-mode", NULL);

	if (AmCheckpointerProcess())
	{
		dw_take_setting();

		/*
		 * During recovery only the startup process switches images, and it
		 * may just have done so with the previous setting.  First set the
		 * flag, then look, with a full barrier in between;
		 * DoubleWriteRecoveryEnded() does it the other way round.
		 */
		pg_atomic_exchange_u32(&DWCtl->setting_changed, 1);
		if (!RecoveryInProgress())
			pg_atomic_write_u32(&DWCtl->setting_changed, 0);
		DWCtl->log.arming_failed = false;
	}

	/*
	 * the startup process calls this when it is ready; after a stop nothing
	 * is left
	 */
	if (!DWCtl->started || dw_stopped)
		return images_now;

	if (DWCtl->log.armed || !dw_setting_uses_log())
		dw_switching_on = false;
	if (dw_setting_uses_log())
	{
		if (!DWCtl->log.armed && !dw_switch_on())
			return images_now;
		DWCtl->disarm_after = InvalidXLogRecPtr;
		dw_remember_images_off(images_now);
		INJECTION_POINT("doublewrite-before-images-off", NULL);
		return false;
	}

	/* at the end of a recovery */
	if (XLogInsertAllowed())
		(void) DoubleWriteProtectsReplayed();

	if (!dw_images_requested())
		dw_remember_images_off(images_now);
	return dw_images_requested();
}

/*
 * At the end of recovery, report what protects pages from now on.
 */
static void
dw_report_mode(void)
{
	if (IsBootstrapProcessingMode())
		return;
	ereport(IsPostmasterEnvironment ? LOG : DEBUG1,
			(errmsg("torn page protection: %s",
					DoubleWriteModeName(dw_setting() == TORN_PAGES_ATOMIC_WRITES ?
										TORN_PAGES_ATOMIC_WRITES :
										DWCtl->log.armed ? TORN_PAGES_DOUBLE_WRITES :
										dw_setting()))));
}

/*
 * Stop using the log, since protection is off from now on.  Only the
 * checkpointer does that.  If it fails, or another process comes here, the
 * checkpointer does it after the end of recovery, in DoubleWriteCatchUp().
 */
static void
dw_switch_off(void)
{
	/* the startup process could not sync what other processes have written */
	if (dw_failed_before(&dw_switching_off) ||
		(IsUnderPostmaster && !AmCheckpointerProcess()))
		pg_atomic_write_u32(&DWCtl->setting_changed, 1);
	else
	{
		dw_sync_gone_home();
		INJECTION_POINT("doublewrite-switching-off", NULL);
		if (dw_disarm())
			ereport(LOG, (errmsg("torn page protection is off")));
		else
			pg_atomic_write_u32(&DWCtl->setting_changed, 1);
	}
	dw_switching_off = false;
}

static void
dw_apply_mode(bool images)
{
	static bool reported = false;

	if (DWCtl->started && !reported && RecoveryInProgress() &&
		XLogInsertAllowed())
	{
		dw_report_mode();
		DoubleWriteStatsReset();
		dw_remember_end_of_recovery();
		reported = true;
	}

	if (!DWCtl->started || !DWCtl->log.armed || dw_setting_uses_log() || dw_stopped)
	{
		dw_switching_off = false;
		return;
	}

	if (!dw_images_requested())
	{
		/*
		 * if this fails, images may begin again, and the wait starts anew
		 * (R10)
		 */
		DWCtl->disarm_after = InvalidXLogRecPtr;
		dw_switch_off();
	}
	else if (images && XLogRecPtrIsInvalid(DWCtl->disarm_after))
		DWCtl->disarm_after = GetXLogInsertRecPtr();
}

/*
 * Do the second half: images are on or off now, as DoubleWriteUpdateMode()
 * said.
 */
void
DoubleWriteModeApplied(bool images)
{
	dw_show_setting();
	dw_apply_mode(images);
	dw_publish_mode();
}

/*
 * Note that all processes may write WAL now.  If the settings have changed
 * since the startup process looked at them, let the checkpointer look again.
 * (R10)
 */
void
DoubleWriteRecoveryEnded(void)
{
	dw_bound_rewriting();
	if (pg_atomic_read_membarrier_u32(&DWCtl->setting_changed) != 0)
		dw_request_upkeep();
}

bool
DoubleWriteIsArmed(void)
{
	return DWCtl->log.armed;
}

/*
 * Return whether a crash now might have to redo pages of which WAL has no image,
 * in whatever mode.
 */
bool
DoubleWriteWalLacksImages(void)
{
	return !dw_replayed_images();
}

/* ---------------------------------------------------------------------
 * Checkpoints and restartpoints
 * ---------------------------------------------------------------------
 */

/*
 * Bring home all pages that the buffer scan of a checkpoint, now over, found
 * clean or has staged itself.  Like BufferSync(), leave out unlogged relations
 * unless flags ask for them: one that cannot be written must not keep checkpoints
 * from completing (R5, R11).  From here until completion, recovery may start from
 * either redo pointer.
 */
void
DoubleWriteCheckpointDrain(XLogRecPtr redo, int flags)
{
	const DWPageSet *pages = (flags & (CHECKPOINT_IS_SHUTDOWN | CHECKPOINT_END_OF_RECOVERY |
									   CHECKPOINT_FLUSH_ALL)) != 0 ? &DWAllPages : &DWPermanentPages;

	Assert(AmCheckpointerProcess() || !IsUnderPostmaster);
	INJECTION_POINT("doublewrite-checkpoint-scanned", NULL);

	dw_bring_copies(&DWAllPages, NULL);

	/*
	 * Nothing may keep a batch from before this point: its copies, and those
	 * in later batches, lack changes from before redo. (R5)
	 */
	dw_drain_settle_and_lock(pages);

	DWLockMutex();
	DWCtl->redo.pending = redo;
	DWUnlockMutex();

	DWCtl->log.checkpoint_mark = dw_first_unfinished_batch();
	Assert(DWCtl->log.checkpoint_mark == DWCtl->log.next_batchno);
	dw_epoch_begin(DWCtl->log.checkpoint_mark);
	LWLockRelease(DoubleWriteFlushLock);

	INJECTION_POINT("doublewrite-checkpoint-drained", NULL);
}

/*
 * Make durable what was removed while the files written up to the drain were
 * being synced, and free the log up to the drain.  When this returns,
 * pg_control may be changed. (R5)
 *
 * The mark is written even if it does not rise, because restore compares the
 * redo pointers in the newest batch with the one in pg_control.
 */
void
DoubleWriteCheckpointSynced(void)
{
	Assert(AmCheckpointerProcess() || !IsUnderPostmaster);

	if (dw_removals_matter())
	{
		dw_sync_removals();
		dw_refuse_failed_removal(DWCtl->redo.pending);

		/*
		 * Files that could not be removed may not be durable, as md.c has
		 * forgotten to sync them.  Until pg_control is changed a crash
		 * recovers from before the removal, and needs them as they are, or
		 * their copies. (R3)
		 */
		if (dw_removal_has_failed())
			dw_sync_dirty_files();
	}
	dw_refuse_failed_sync();
	dw_lock_flush(LW_EXCLUSIVE);
	if (DWCtl->log.open && DWCtl->log.armed)
		dw_have_room_for_mark(DWCtl->log.checkpoint_mark);
	if (DWCtl->log.open && DWCtl->log.armed)
	{
		dw_log_set_low_water(DWCtl->log.checkpoint_mark);
		dw_forget_files(DWCtl->log.checkpoint_mark);
	}
	LWLockRelease(DoubleWriteFlushLock);
	INJECTION_POINT("doublewrite-checkpoint-marked", NULL);
}

/*
 * Note that pg_control names a redo pointer now.  images tells whether WAL at
 * that point carries images.
 */
void
DoubleWriteCheckpointDone(XLogRecPtr redo, bool images)
{
	Assert(AmCheckpointerProcess() || !IsUnderPostmaster);

	dw_forget_torn_home(redo);
	DoubleWriteSetRedo(redo, images);
	dw_forget_failed_removal(redo);

	DWCtl->log.arming_failed = false;
	if (DWCtl->log.armed && !XLogRecPtrIsInvalid(DWCtl->disarm_after) &&
		redo >= DWCtl->disarm_after && images && dw_disarm())
	{
		DWCtl->disarm_after = InvalidXLogRecPtr;
		ereport(LOG,
				(errmsg("torn page protection has switched to full-page images")));
	}
	dw_forget_failed_sync(redo);
	dw_show_checkpoint(redo);
	dw_publish_mode();
	DWCount(checkpoints, 1);
	dw_log_checkpoint_stats();
}

/*
 * Bring home what has been staged.  A page that cannot be written does not fail the stop of
 * a standby: return false then, having reported it.
 */
static bool
dw_drain_for_stop(void)
{
	while (dw_flush_batch(NULL))
		dw_carry_runs();
	if (dw_pages_have_failed())
	{
		dw_flush_batch(&DWAllPages);
		dw_carry_runs();
	}
	if (dw_pages_have_failed())
	{
		ereport(LOG,
				(errmsg("leaving pages that could not be written to the next start"),
				 errdetail("The double-write log and file \"%s\" stay until then.",
						   DW_MARKER_FILE)));
		return false;
	}
	DoubleWriteDrain();
	return true;
}

/*
 * Do the last step of a clean shutdown: leave nothing behind that other
 * servers would have to know, and no segments.
 *
 * After a shutdown checkpoint nothing is left to be brought home or synced.
 * A standby may have skipped its restartpoint, so something may be left;
 * without the log it leaves that to the next start, as stock leaves dirty
 * buffers; with the log it does so if a page cannot be written.  If crash recovery
 * was interrupted, it must be finished by a server that knows the log. (R12)
 *
 * pg_control already says that the server was shut down, but that is not true
 * until the marker has gone; see StartupXLOG().
 */
void
DoubleWriteShutdown(void)
{
	if (!DWCtl->started || GetRecoveryState() == RECOVERY_STATE_CRASH)
		return;
	dw_stopped = true;
	if (!DWCtl->log.armed || !dw_drain_for_stop())
		return;
	INJECTION_POINT("doublewrite-shutdown-drained", NULL);
	dw_sync_gone_home();
	(void) dw_disarm();
}
