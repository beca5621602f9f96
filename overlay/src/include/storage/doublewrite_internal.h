/*-------------------------------------------------------------------------
 *
 * doublewrite_internal.h
 *	  Shared state of the write-back engine.
 *
 * Its parts, and functions across files, are declared in doublewrite_stage.h and
 * doublewrite_log.h.  Which file may call which is said by the order of the table in
 * README only.
 *
 * Only files in src/backend/storage/doublewrite and test modules include
 * this.  The order of locks is in src/backend/storage/doublewrite/README.md.
 *
 * A process that may have to wait for DoubleWriteFlushLock takes it with
 * dw_lock_flush(), or with dw_lock_flush_idle() if what it does must not meet home
 * writes, which may be under way without the lock.
 *
 * It may be taken while holding buffer content locks, heavyweight locks, a
 * relation extension lock or an I/O on another buffer.
 * Its holder must therefore never wait for any of those.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/storage/doublewrite_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_INTERNAL_H
#define DOUBLEWRITE_INTERNAL_H

#include "storage/doublewrite.h"
#include "storage/doublewrite_log.h"
#include "storage/doublewrite_stage.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"
#include "miscadmin.h"

/* ---------------------------------------------------------------------
 * Shared state, by the lock that guards it.
 *
 * A struct below has one lock, which its comment names; fields for which
 * something else goes say so.
 * ---------------------------------------------------------------------
 */

typedef struct DWCtlData
{
	/* mutex */
	slock_t		mutex;
	DWStageState stage;
	DWHomeState home;
	DWFlusherState flusher;
	DWRedoState redo;
	DWRemovalState removals;
	DWShownState shown;

	/* DoubleWriteFlushLock */
	DWBatchState batch;
	DWLogState	log;
	int			dirty_files;	/* in the table of dirty.c */
	DWAtomicState atomic;

	/*
	 * No lock: set once by the startup process, or while it is alone.
	 */
	bool		started;		/* restore is over, the mode may be changed */
	DWRestoreStats restore;
	int			segments;		/* bound of the log at the start of the
								 * server, for which tables have room;
								 * constant */

	/*
	 * No lock: the checkpointer, or the startup process before it lets the
	 * checkpointer act.
	 */
	XLogRecPtr	disarm_after;	/* disarm once a checkpoint with a redo
								 * pointer at or above this completes, or 0 */

	/*
	 * No lock: the startup process before records are redone, then the
	 * checkpointer
	 */
	bool		rewrite;		/* redo marks pages dirty that it leaves alone */

	/* No lock: atomic */

	/*
	 * What the settings of the server ask for (TornPagesProtection), with
	 * full_page_writes taken into account.  Set once by the startup process,
	 * then by the checkpointer at each reload.  A process that decides for
	 * the server looks here, as settings of its own may be those of a
	 * session.
	 */
	pg_atomic_uint32 setting;
	pg_atomic_uint32 setting_changed;	/* ... during recovery, or what it
										 * asks for has failed: the
										 * checkpointer has to act on it
										 * afterwards */
	pg_atomic_uint32 upkeep_requested;	/* the checkpointer has to look after
										 * the log */
	pg_atomic_uint32 panicking; /* a process is, maybe of a failed sync */
	pg_atomic_uint64 rewrite_until; /* redo pointer with which 'rewrite' ends */

	/* newest redo pointer after which any record was reported; see exempt.c */
	pg_atomic_uint64 records_known;

	/* highest known LSN at a truncation, by hash of the relation */
	pg_atomic_uint64 truncated[DW_TRUNCATE_BUCKETS];

	/*
	 * The same as redo.last, for SetHintBits(): not in a cache line with what
	 * is written all the time.
	 */
	char		pad1[PG_CACHE_LINE_SIZE];
	pg_atomic_uint64 recover_from;
	char		pad2[PG_CACHE_LINE_SIZE];

	DWReadsState reads;
	DWStats		stats;

	/* each has a lock of its own */
	DWWriterPadded writers[DW_MAX_WRITERS];
} DWCtlData;

extern PGDLLIMPORT DWCtlData *DWCtl;

/*
 * The mutex is a spinlock: under it no process throws, allocates or waits.  Spinlocks
 * don't know their holder, so for assertions a process notes it itself.
 */
#ifdef USE_ASSERT_CHECKING
extern PGDLLIMPORT bool dw_mutex_held;
#define DWMutexHeld()		(dw_mutex_held)
#define DWSetMutexHeld(held)	(dw_mutex_held = (held))
#else
#define DWMutexHeld()		(true)
#define DWSetMutexHeld(held)	((void) 0)
#endif

#define DWLockMutex() \
	do { \
		Assert(!DWMutexHeld()); \
		SpinLockAcquire(&DWCtl->mutex); \
		DWSetMutexHeld(true); \
	} while (0)

#define DWUnlockMutex() \
	do { \
		DWSetMutexHeld(false); \
		SpinLockRelease(&DWCtl->mutex); \
	} while (0)

/* Whether this process holds the flush lock, so that it is the flusher */
#define DWIsFlusher() \
	LWLockHeldByMeInMode(DoubleWriteFlushLock, LW_EXCLUSIVE)

#define DWWriterAt(i)		(&DWCtl->writers[i].writer)

#define DWHomeLoadOf(spcOid)	(&DWCtl->home.loads[(spcOid) % DW_HOME_LOADS])

extern PGDLLIMPORT DWSlot *DWSlots;
extern PGDLLIMPORT int *DWRuns;

#define DWSlotPage(slotno) (DWPages + (Size) (slotno) * BLCKSZ)
extern PGDLLIMPORT char *DWPages;

#define DWSlotInState(slot, s) \
	(pg_atomic_read_u32(&(slot)->state) == (s))

/*
 * Pages for which it pays to begin a batch, and to wake the flusher.  With the
 * log in use they share a sync, so the more the better.  Without, pages had
 * better go home while they are in the processor's cache, and in short bursts.
 * Whether it is in use is looked up without a lock, as this is only a hint.
 */
#define DW_UNLOGGED_BATCH_PAGES	64

#define DWBatchThreshold() \
	Min(DWCtl->log.armed ? DW_MAX_BATCH_PAGES : DW_UNLOGGED_BATCH_PAGES, \
		DWCtl->stage.nslots / 4)

static inline void
dw_log_path(char *path, uint64 segno)
{
	snprintf(path, MAXPGPATH, "%s/%016" PRIX64, DW_DIR, segno);
}

/*
 * Return whether a test wants something to fail here, with its errno.  Otherwise errno
 * stays as it is.
 */
static inline bool
dw_injected_error(const char *point)
{
	int			save_errno = errno;
	int			error = 0;

	INJECTION_POINT(point, &error);
	errno = error != 0 ? error : save_errno;
	return error != 0;
}

/*
 * Wait for what another process does that does not tell us when it has done it.
 */
static inline void
dw_wait_a_moment(long usec, uint32 wait_event_info)
{
	pgstat_report_wait_start(wait_event_info);
	pg_usleep(usec);
	pgstat_report_wait_end();
}

#define DWCount(field, n) \
	pg_atomic_fetch_add_u64(&DWCtl->stats.field, (n))

#endif							/* DOUBLEWRITE_INTERNAL_H */
