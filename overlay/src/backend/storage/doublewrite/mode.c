/*-------------------------------------------------------------------------
 *
 * mode.c
 *	  Settings, switching between modes, and the part of checkpoints.
 *
 * Switching keeps every page protected at each moment (R10):
 *
 *	  to double_writes	arm the log, then stop images
 *	  to full_pages		start images; disarm when a checkpoint that began
 *						after that has completed
 *	  to off			stop images, disarm
 *
 * Disarming empties the log before home writes bypass it.
 *
 * Whoever changes whether WAL carries images asks DoubleWriteUpdateMode()
 * before, and calls DoubleWriteModeApplied() after it: the checkpointer at each
 * reload, the startup process at the end of recovery.  There images may begin
 * at once, but end only after the record that switches the timeline.  While
 * the log is in use, XLOG_FPW_CHANGE is written even with wal_level = minimal,
 * since recovery has to know.  full_page_writes = off makes "off" of
 * "full_pages"; in "double_writes" it changes nothing.
 *
 * A checkpoint or restartpoint drains the stage after its buffer scan; when
 * the files have been synced after that, it makes a low-water mark durable
 * that lies past all batches up to the drain, and only then pg_control may
 * name the new redo pointer. (R5)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/mode.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "postmaster/auxprocess.h"
#include "storage/doublewrite_internal.h"
#include "storage/doublewrite_stats.h"
#include "storage/lwlock.h"
#include "utils/guc_hooks.h"
#include "utils/injection_point.h"
#include "utils/timestamp.h"

/* GUCs */
int			io_torn_pages_protection = TORN_PAGES_FULL_PAGES;
int			double_write_buffer_size = -1;
int			double_write_compression = DW_COMPRESSION_OFF;
int			double_write_stage_size = -1;

bool
check_double_write_buffer_size(int *newval, void **extra, GucSource source)
{
	int			min = DW_MIN_SEGMENTS * (DW_SEGMENT_SIZE / (1024 * 1024));

	if (*newval != -1 && *newval < min)
	{
		GUC_check_errdetail("\"%s\" must be at least %dMB.",
							"double_write_buffer_size", min);
		GUC_check_errhint("Use -1 to have the size chosen automatically.");
		return false;
	}
	return true;
}

bool
check_double_write_stage_size(int *newval, void **extra, GucSource source)
{
	if (*newval != -1 && *newval < 16)
	{
		GUC_check_errdetail("\"%s\" must be at least %dkB.",
							"double_write_stage_size", 16 * (BLCKSZ / 1024));
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
 * In recovery the choice of a session would mean nothing, as it writes no WAL.
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
	if (*newval == TORN_PAGES_DOUBLE_WRITES && DWCtl->armed)
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
 * Switching
 * ---------------------------------------------------------------------
 */

/*
 * What the server's settings ask for, whatever this process's own are.
 */
TornPagesProtection
dw_setting(void)
{
	uint32		setting = pg_atomic_read_u32(&DWCtl->setting);

	Assert(setting != DW_SETTING_UNKNOWN);
	return (TornPagesProtection) setting;
}

/*
 * Take this process's settings for those of the server.  The startup process
 * does so once, before it uses them.  It may hear of a reload later than the
 * checkpointer, so from then on only that one does, which has no settings of
 * any session.
 */
void
dw_note_setting(void)
{
	uint32		unknown = DW_SETTING_UNKNOWN;
	uint32		setting = io_torn_pages_protection;

	Assert(AmCheckpointerProcess() || AmStartupProcess() || !IsUnderPostmaster);

	if (setting == TORN_PAGES_FULL_PAGES && !fullPageWrites)
		setting = TORN_PAGES_OFF;
	if (AmCheckpointerProcess())
		pg_atomic_write_u32(&DWCtl->setting, setting);
	else
		pg_atomic_compare_exchange_u32(&DWCtl->setting, &unknown, setting);
}

static bool
dw_images_requested(void)
{
	return dw_setting() == TORN_PAGES_FULL_PAGES;
}

/*
 * Must WAL records of this process carry full-page images, whatever the
 * server does?  Where it does the same that is no news.  Images never do harm,
 * so it does not matter when a process learns of a reload.
 */
bool
DoubleWriteSessionImages(void)
{
	return io_torn_pages_protection == TORN_PAGES_FULL_PAGES && fullPageWrites;
}

static bool
dw_arm_if_possible(int elevel)
{
	if (!dw_log_check_dir(elevel))
		return false;
	dw_lock_flush(LW_EXCLUSIVE);
	dw_arm();
	LWLockRelease(DoubleWriteFlushLock);
	return true;
}

/*
 * First half of a change of settings: returns whether WAL records shall carry
 * full-page images from now on, given whether they do now.
 *
 * Called by the startup process at the end of recovery, and by the
 * checkpointer at each reload.  If the log cannot be used, the reason goes to
 * the server log and things stay as they are.
 */
bool
DoubleWriteUpdateMode(bool images_now)
{
	if (AmCheckpointerProcess())
	{
		dw_note_setting();

		/*
		 * During recovery only the startup process switches images, and it may
		 * just have done so with the setting as it was before.  The flag first,
		 * then the look, with a full barrier in between, as
		 * DoubleWriteRecoveryEnded() does it the other way round.
		 */
		pg_atomic_exchange_u32(&DWCtl->setting_changed, 1);
		if (!RecoveryInProgress())
			pg_atomic_write_u32(&DWCtl->setting_changed, 0);
	}

	/* the startup process will call us when it is ready */
	if (!DWCtl->started)
		return images_now;

	if (dw_setting() == TORN_PAGES_DOUBLE_WRITES)
	{
		if (!DWCtl->armed)
		{
			if (!dw_arm_if_possible(LOG))
				return images_now;
			ereport(LOG,
					(errmsg("torn page protection has switched to double writes")));
		}
		DWCtl->disarm_after = InvalidXLogRecPtr;
		if (images_now && XLogInsertAllowed())
			DoubleWriteNoteImagesOff(GetXLogInsertRecPtr());
		INJECTION_POINT("doublewrite-before-images-off", NULL);
		return false;
	}

	/*
	 * End of a recovery from WAL without images: pages replayed since the
	 * redo pointer will get no image before the next checkpoint.
	 */
	if (dw_images_requested() && !DWCtl->armed && RecoveryInProgress() &&
		XLogInsertAllowed() && GetXLogReplayRecPtr(NULL) > DWCtl->redo && !dw_replayed_images())
		dw_arm_if_possible(FATAL);

	return dw_images_requested();
}

/*
 * The end of recovery: say what protects pages from now on.
 */
static void
dw_report_mode(void)
{
	if (IsBootstrapProcessingMode())
		return;
	ereport(IsPostmasterEnvironment ? LOG : DEBUG1,
			(errmsg("torn page protection: %s",
					DWCtl->armed ? "double_writes" :
					dw_images_requested() ? "full_pages" : "off")));
}

/* ---------------------------------------------------------------------
 * What views show of the mode
 * ---------------------------------------------------------------------
 */

/*
 * What happens to pages that are written now?  In recovery it is WAL that says
 * whether there are images.
 */
static TornPagesProtection
dw_mechanism(const DWShownMode *mode, bool armed)
{
	bool		images = XLogInsertAllowed() ? mode->images : dw_replayed_images();

	if (armed)
		return TORN_PAGES_DOUBLE_WRITES;
	return images ? TORN_PAGES_FULL_PAGES : TORN_PAGES_OFF;
}

/*
 * What protects all pages?  A server that leaves "off" has written some without
 * protection, which may not be durable before a checkpoint completes.
 */
TornPagesProtection
dw_mode_in_force(const DWShownMode *mode, bool armed)
{
	if (!XLogRecPtrIsInvalid(mode->off_until))
		return TORN_PAGES_OFF;
	return dw_mechanism(mode, armed);
}

/*
 * Settings have been applied, or the mode has changed: let views see that.
 * Called by the checkpointer, or by a process that arms or disarms the log.
 */
void
dw_note_mode(void)
{
	DWShownMode mode = DWCtl->shown_mode;
	TornPagesProtection mechanism;
	TornPagesProtection in_force;
	bool		recovery;

	/* before that, nobody knows the redo pointer */
	if (!DWCtl->started)
		return;

	recovery = !XLogInsertAllowed();
	mechanism = dw_mechanism(&mode, DWCtl->armed);
	if (mechanism == TORN_PAGES_OFF)
		mode.off_until = InvalidXLogRecPtr;
	else if (mode.since != 0 && mode.mechanism == TORN_PAGES_OFF &&
			 !mode.recovery && !recovery)
		mode.off_until = GetXLogInsertRecPtr();
	mode.mechanism = mechanism;
	mode.recovery = recovery;
	mode.disarm_after = DWCtl->disarm_after;

	in_force = dw_mode_in_force(&mode, DWCtl->armed);
	if (mode.since == 0 || mode.in_force != in_force)
		mode.since = GetCurrentTimestamp();
	mode.in_force = in_force;

	/* the startup process and the checkpointer may meet here: see dw_show_setting() */
	SpinLockAcquire(&DWCtl->mutex);
	mode.requested = DWCtl->shown_mode.requested;
	mode.images = DWCtl->shown_mode.images;
	DWCtl->shown_mode = mode;
	SpinLockRelease(&DWCtl->mutex);
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
	}
	return NULL;
}

/*
 * What do the server's settings ask for, and what does WAL carry since they have
 * been applied?  If the log could not be used, images stay as they were.
 */
static void
dw_show_setting(void)
{
	TornPagesProtection requested = dw_setting();

	SpinLockAcquire(&DWCtl->mutex);
	if (requested != TORN_PAGES_DOUBLE_WRITES)
		DWCtl->shown_mode.images = requested == TORN_PAGES_FULL_PAGES;
	else if (DWCtl->armed)
		DWCtl->shown_mode.images = false;
	else if (DWCtl->shown_mode.since == 0)
		DWCtl->shown_mode.images = DWCtl->redo_images;
	DWCtl->shown_mode.requested = requested;
	SpinLockRelease(&DWCtl->mutex);
}

static void
dw_apply_mode(bool images)
{
	static bool reported = false;

	if (DWCtl->started && !reported && RecoveryInProgress() &&
		XLogInsertAllowed())
	{
		dw_report_mode();
		dw_stats_start(GetXLogInsertRecPtr());
		dw_note_end_of_recovery();
		reported = true;
	}

	if (!DWCtl->started || !DWCtl->armed ||
		dw_setting() == TORN_PAGES_DOUBLE_WRITES)
		return;

	if (!dw_images_requested())
	{
		dw_disarm(false);
		ereport(LOG, (errmsg("torn page protection is off")));
	}
	else if (images && XLogRecPtrIsInvalid(DWCtl->disarm_after))
		DWCtl->disarm_after = GetXLogInsertRecPtr();
}

/*
 * Second half: images are on or off now as DoubleWriteUpdateMode() said.
 */
void
DoubleWriteModeApplied(bool images)
{
	dw_show_setting();
	dw_apply_mode(images);
	dw_note_mode();
}

/*
 * All processes may write WAL now.  If the settings have changed after the
 * startup process looked at them, let the checkpointer look again. (R10)
 */
void
DoubleWriteRecoveryEnded(void)
{
	if (pg_atomic_read_membarrier_u32(&DWCtl->setting_changed) != 0)
		dw_request_upkeep();
}

/*
 * The checkpointer's part of that.
 */
void
dw_catch_up_with_settings(void)
{
	if (pg_atomic_read_u32(&DWCtl->setting_changed) != 0 && !RecoveryInProgress())
		UpdateFullPageWrites();
}

bool
DoubleWriteIsArmed(void)
{
	return DWCtl->armed;
}

/* ---------------------------------------------------------------------
 * Checkpoints and restartpoints
 * ---------------------------------------------------------------------
 */

/*
 * The redo pointer that a crash would recover from.  images tells whether WAL
 * at that point carries full-page images.
 */
void
DoubleWriteSetRedo(XLogRecPtr redo, bool images)
{
	SpinLockAcquire(&DWCtl->mutex);
	DWCtl->redo = redo;
	DWCtl->redo_images = images;
	DWCtl->redo_pending = InvalidXLogRecPtr;
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * The buffer scan of a checkpoint is over: bring home all that it found clean
 * or has staged itself.  From here until completion, recovery may start from
 * either redo pointer.
 */
void
DoubleWriteCheckpointDrain(XLogRecPtr redo)
{
	dw_drain_and_lock();

	/*
	 * Nothing may keep a batch from before now: its copies, and those in later
	 * ones, lack changes from before redo.  That could be a page removed while
	 * it was torn at home, or one staged since we began that cannot be written.
	 * Each turn settles that, or throws the error. (R5)
	 */
	while (dw_first_unfinished_batch() < DWCtl->next_batchno)
	{
		LWLockRelease(DoubleWriteFlushLock);
		dw_settle_removals();
		dw_drain_and_lock();
	}

	SpinLockAcquire(&DWCtl->mutex);
	DWCtl->redo_pending = redo;
	SpinLockRelease(&DWCtl->mutex);

	DWCtl->checkpoint_mark = dw_first_unfinished_batch();
	Assert(DWCtl->checkpoint_mark == DWCtl->next_batchno);
	dw_epoch_begin(DWCtl->checkpoint_mark);
	LWLockRelease(DoubleWriteFlushLock);

	INJECTION_POINT("doublewrite-checkpoint-drained", NULL);
}

/*
 * All files written up to the drain have been synced: do the same with what
 * was removed meanwhile, and free the log up to the drain.  When this returns,
 * pg_control may be changed. (R5)
 *
 * The mark is written even if it does not rise, because restore compares the
 * redo pointers in the newest batch with the one in pg_control.
 */
void
DoubleWriteCheckpointSynced(void)
{
	if (DWCtl->armed)
		dw_sync_removals();
	dw_lock_flush(LW_EXCLUSIVE);
	if (DWCtl->log_open && DWCtl->armed)
	{
		dw_log_set_low_water(DWCtl->checkpoint_mark);
		dw_forget_files(DWCtl->checkpoint_mark);
	}
	LWLockRelease(DoubleWriteFlushLock);
	INJECTION_POINT("doublewrite-checkpoint-marked", NULL);
}

/*
 * One line of figures about the write-back since the previous call.
 */
static void
dw_log_checkpoint_stats(void)
{
	DWStats    *s = &DWCtl->stats;
	pg_atomic_uint64 *fields[] = {
		&s->home_pages, &s->home_writes,
		&s->logged, &s->exempt, &s->in_epoch,
		&s->log_syncs, &s->log_sync_usec, &s->sync_cycles, &s->stage_full
	};
	static uint64 last[lengthof(fields)];
	uint64		d[lengthof(fields)];

	for (int i = 0; i < lengthof(fields); i++)
	{
		uint64		now = pg_atomic_read_u64(fields[i]);

		d[i] = now - last[i];
		last[i] = now;
	}

	if (!log_checkpoints || d[0] == 0)
		return;
	ereport(LOG,
			(errmsg("write-back since last checkpoint: wrote %" PRIu64 " pages home in %" PRIu64 " writes; "
					"%" PRIu64 " double-written, %" PRIu64 " exempt, %" PRIu64 " in the log already; "
					"log syncs=%" PRIu64 ", time=%.3f s; "
					"sync cycles=%" PRIu64 ", waits for a full stage=%" PRIu64,
					d[0], d[1], d[2], d[3], d[4], d[5], d[6] / 1000000.0, d[7], d[8])));
}

/*
 * pg_control names a redo pointer now, and WAL at that point carries images
 * or not.
 */
void
DoubleWriteCheckpointDone(XLogRecPtr redo, bool images)
{
	DoubleWriteSetRedo(redo, images);

	if (DWCtl->armed && !XLogRecPtrIsInvalid(DWCtl->disarm_after) &&
		redo >= DWCtl->disarm_after)
	{
		dw_disarm(false);
		DWCtl->disarm_after = InvalidXLogRecPtr;
		ereport(LOG,
				(errmsg("torn page protection has switched to full-page images")));
	}
	if (redo >= DWCtl->shown_mode.off_until)
		DWCtl->shown_mode.off_until = InvalidXLogRecPtr;
	dw_note_mode();
	DWCount(checkpoints, 1);
	dw_log_checkpoint_stats();
}

/*
 * Last step of a clean shutdown: leave nothing behind that other servers
 * would have to know.  A server with a postmaster keeps the segments for its
 * next start, as it does those of WAL; what initdb leaves behind is small.
 *
 * After a shutdown checkpoint there is nothing left to bring home.  A standby
 * may have skipped its restartpoint, and then there is.  If crash recovery
 * was interrupted, it must be finished by a server that knows the log. (R12)
 */
void
DoubleWriteShutdown(void)
{
	if (!DWCtl->started || GetRecoveryState() == RECOVERY_STATE_CRASH)
		return;
	DoubleWriteDrain();
	dw_disarm(IsPostmasterEnvironment);
}
