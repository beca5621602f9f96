/*-------------------------------------------------------------------------
 *
 * doublewrite_stage.h
 *	  Pages on their way out: the stage, batches, and home writes.
 *
 * Included by doublewrite_internal.h, which has what belongs to all of the engine.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/storage/doublewrite_stage.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_STAGE_H
#define DOUBLEWRITE_STAGE_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "portability/instr_time.h"
#include "storage/buf_internals.h"
#include "storage/condition_variable.h"
#include "storage/doublewrite_format.h"
#include "storage/lwlock.h"

/* ---------------------------------------------------------------------
 * The stage
 * ---------------------------------------------------------------------
 */

/*
 * Life of a stage slot; README.stage has a picture.  All changes are made by
 * dw_set_slot_state() with DWCtl->mutex held, except "publish", which only the
 * filler can do.
 */
typedef enum DWSlotState
{
	DW_SLOT_FREE,				/* on the free list */
	DW_SLOT_FILLING,			/* on the staged list, but a process copies a
								 * page into it; only that process may change
								 * it */
	DW_SLOT_STAGED,				/* complete */
	DW_SLOT_BATCH,				/* in a batch, or on its way home: its page is
								 * frozen */
} DWSlotState;

#define DW_SLOT_STATES	(DW_SLOT_BATCH + 1)

/* Kinds of processes that stage pages, each with its own *_flush_after */
typedef enum DWStager
{
	DW_STAGER_BACKEND,			/* and whatever is none of the following */
	DW_STAGER_BGWRITER,
	DW_STAGER_CHECKPOINTER,
} DWStager;

#define DW_STAGERS	(DW_STAGER_CHECKPOINTER + 1)

/* "errno" of a home write that was not tried as another one there does not come back */
#define DW_STALLED		(-1)

/*
 * ... or of an atomic one that was cut short, or one that an error has ended: another one
 * will do, with a copy
 */
#define DW_TORN			(-2)

typedef struct DWSlot
{
	dlist_node	node;			/* in free or staged list; mutex */
	bool		listed;			/* on the staged list; mutex */
	int			hash_next;		/* next slot of the same bucket or -1; mutex */
	uint32		bucket;			/* that bucket; mutex */
	pg_atomic_uint32 state;		/* DWSlotState; mutex, see above */
	BufferTag	tag;			/* mutex; stable outside FREE */
	uint64		seq;			/* identity of this use of the slot; mutex */
	uint64		oldest_seq;		/* seq of the oldest version of the page that
								 * has not reached home; mutex */
	uint64		copy_batchno;	/* last logged batch that holds the page, and
								 * that it needs until it is home, or 0;
								 * mutex, in the batch under way the flush
								 * lock */
	bool		discarded;		/* dropped while in a batch, and off its hash
								 * chain; mutex */
	bool		failed;			/* a home write of it, or of an older version
								 * of the page, has failed, or may not come
								 * back; mutex */
	int			error;			/* ... with this errno, DW_TORN or DW_STALLED;
								 * mutex */
	bool		touched;		/* ... and not by stalls only: home may be
								 * torn; mutex */
	uint64		run;			/* number of the run in which it went home
								 * last; mutex, in a batch the flush lock */
	bool		behind;			/* an older version of the page is on its way
								 * home: it waits for that; mutex */
	bool		use_log;		/* an atomic write of it, or of an older
								 * version of the page, was not made, or such
								 * a version has a change that no record tells
								 * of: it takes the log; mutex */

	/*
	 * the rest belongs to the filler, later to the process that writes the
	 * page back
	 */
	int			run_next;		/* next page of the same run, or -1 */
	bool		permanent;		/* not an unlogged relation */
	bool		atomic;			/* home is to be written atomically, as
								 * nothing else protects it */
	bool		covered;		/* a crash that tears it at home does no harm,
								 * if the log is in use; for assertions */
	XLogRecPtr	lsn;			/* page LSN */
	DWStager	stager;			/* kind of process that copied it */
	DWBufferRecords records;	/* of the buffer, when it was copied */
} DWSlot;

/* Whether a page belongs to a set; called with the mutex held */
typedef bool (*DWTagFilter) (const BufferTag *tag, const void *arg);

/* A set of pages, of which max are to be tried at once; no filter: all pages */
typedef struct DWPageSet
{
	DWTagFilter filter;
	const void *arg;
	int			max;
	bool		permanent;		/* no pages of unlogged relations */
} DWPageSet;

#define DWPageInSet(set, tag) \
	((set) != NULL && ((set)->filter == NULL || (set)->filter((tag), (set)->arg)))
/* Of a slot, or the run of a DWWriter */
#define DWSlotInSet(set, slot) \
	(DWPageInSet(set, &(slot)->tag) && ((slot)->permanent || !(set)->permanent))

/* ---------------------------------------------------------------------
 * The current batch and the log
 * ---------------------------------------------------------------------
 */

typedef enum DWBatchPhase
{
	DW_BATCH_NONE,				/* no batch under way */
	DW_BATCH_TAKEN,				/* slots chosen; nothing written */
	DW_BATCH_WAITING,			/* ... and the log has no space until a sync
								 * cycle has completed */
	DW_BATCH_DURABLE,			/* what needed logging is durable in the log;
								 * to be sent home */
} DWBatchPhase;

/*
 * A process that writes a run home holds the lock of one of these, in which stands
 * what it writes.
 */
typedef struct DWWriter
{
	LWLock		lock;
	volatile int npages;		/* 0: no run; lock, read without it, too */
	volatile int ndone;			/* of them, the first ones, which are dealt
								 * with */
	BufferTag	tag;			/* of the first page of the run; lock, read
								 * without it, too */
	bool		permanent;		/* not an unlogged relation; the same */
	pg_atomic_uint64 since;		/* when the present write began, in
								 * nanoseconds */
	int			slots[MAX_IO_COMBINE_LIMIT];	/* lock, read without it, too */
} DWWriter;

typedef union DWWriterPadded
{
	DWWriter	writer;
	char		pad[TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(DWWriter))];
} DWWriterPadded;

/* Processes that can write pages from the stage at once; half of them to one tablespace */
#define DW_MAX_WRITERS			128

/* Home writes to a tablespace, or those whose numbers have the same remainder; atomic */
typedef struct DWHomeLoad
{
	pg_atomic_uint32 nwriting;	/* runs in the table of writers */
	pg_atomic_uint32 stalled;	/* pages have failed with DW_STALLED since a
								 * write has come back */
	pg_atomic_uint64 ended;		/* when a write has come back last, or the
								 * first one has begun, in nanoseconds */
} DWHomeLoad;

#define DW_HOME_LOADS			1024

/* A write under way for so long may not come back, in nanoseconds */
#define DW_STALLED_NSEC			INT64CONST(1000000000)

/* A write or a sync under way for so long is not waited for by what others have to wait for */
#define DW_LOST_NSEC			INT64CONST(5000000000)

#define DW_BATCH_PHASES	(DW_BATCH_DURABLE + 1)

/*
 * Counters, in the order in which views get them.  COUNTER is a macro that makes
 * something of each name.
 */
#define DW_COUNTERS(COUNTER) \
	COUNTER(staged)				/* pages copied to the stage */ \
	COUNTER(replaced)			/* ... of which replaced a staged copy */ \
	COUNTER(stage_hits)			/* buffer misses served by the stage */ \
	COUNTER(stage_full)			/* waits for a free slot */ \
	COUNTER(discarded)			/* staged copies dropped with their file */ \
	COUNTER(batches)			/* batches written back */ \
	COUNTER(logged)				/* pages written to the log */ \
	COUNTER(logged_bytes)		/* space they take there, in bytes */ \
	COUNTER(exempt)				/* permanent pages not logged because redo rebuilds \
								 * them */ \
	COUNTER(only_hints)			/* permanent pages not logged because only hints \
								 * have changed */ \
	COUNTER(in_epoch)			/* permanent pages not logged because the live log \
								 * has a copy already */ \
	COUNTER(log_bytes)			/* bytes written to the log */ \
	COUNTER(log_writes)			/* write calls */ \
	COUNTER(log_syncs)			/* sync calls */ \
	COUNTER(log_sync_usec)		/* time in them, microseconds */ \
	COUNTER(home_pages)			/* pages written home */ \
	COUNTER(home_writes)		/* write calls for them */ \
	COUNTER(atomic_pages)		/* ... of which atomically */ \
	COUNTER(atomic_writes) \
	COUNTER(sync_cycles)		/* sync cycles completed */ \
	COUNTER(space_cycles)		/* ... begun because half of the log was in use */ \
	COUNTER(file_cycles)		/* ... because of many files */ \
	COUNTER(sync_cycle_files)	/* files synced by them */ \
	COUNTER(log_full)			/* waits for space in the log */ \
	COUNTER(files_full)			/* ... or rather in the table of files */ \
	COUNTER(foreground_syncs)	/* log syncs by client backends */ \
	COUNTER(checkpoints)		/* checkpoints or restartpoints completed */

#define DW_DECLARE_COUNTER(name) pg_atomic_uint64 name;

typedef struct DWStats
{
	DW_COUNTERS(DW_DECLARE_COUNTER)
} DWStats;

/* ---------------------------------------------------------------------
 * Shared state; see doublewrite_internal.h
 * ---------------------------------------------------------------------
 */

/* Slots of the stage; mutex */
typedef struct DWStageState
{
	int			nslots;			/* constant */
	int			nreserved;		/* of them, for pages of other files when the
								 * rest have failed; constant */
	int			nused;			/* slots from this number on have never been
								 * used; read without lock, too */
	int			nstaged;		/* length of staged list; read without lock,
								 * too */
	int			nfailed;		/* slots that have failed; read without lock,
								 * too */
	int			ntouched;		/* slots of pages that may be torn at home;
								 * read without lock, too */
	uint64		nmerged;		/* slots that have given way to newer versions */
	uint64		next_seq;
	dlist_head	free;
	dlist_head	staged;			/* what a batch can take, oldest first, if
								 * none has returned */

	pg_atomic_uint32 ninuse;	/* slots not FREE; read without lock, too */
} DWStageState;

/* Runs on their way home, see home.c; mutex */
typedef struct DWHomeState
{
	uint64		sent;			/* runs sent home until now; flush lock, too;
								 * read without lock, too */
	uint64		claimed;		/* ... of which a process has taken on so
								 * many; read without lock, too */
	uint32		nwriting;		/* ... and writes so many; read without lock,
								 * too */
	pg_atomic_uint32 nclaimed;	/* ... of them, runs that the table of writers
								 * does not show yet; raised with the mutex */
	ConditionVariable room;		/* slots are free, or runs are to be written */
	ConditionVariable ended;	/* a run has ended */
	ConditionVariable thawed;	/* ... that others have taken for stalled */
	XLogRecPtr	torn_until;		/* a write past the stage has failed; until a
								 * checkpoint has this redo pointer; mutex */
	DWHomeLoad	loads[DW_HOME_LOADS];
} DWHomeState;

/* The background writer, as long as it writes pages back; mutex */
typedef struct DWFlusherState
{
	int			proc;			/* ProcNumber, or -1 */
	bool		requested;		/* woken up; read without lock, too */
} DWFlusherState;

#define DW_NEVER_WAITED		PG_UINT64_MAX

/* The batch under way; DoubleWriteFlushLock */
typedef struct DWBatchState
{
	DWBatchPhase phase;
	int			len;
	int			slots[DW_MAX_BATCH_PAGES];
	uint64		waits_since;	/* log.cycles_begun when it found no space in
								 * the log, or DW_NEVER_WAITED */
	uint32		copies_left;	/* copies in the log only then; see copies.c */
} DWBatchState;

/* ---------------------------------------------------------------------
 * Functions, by file, roughly from bottom to top.
 * ---------------------------------------------------------------------
 */

/* workers.c */
extern void dw_lock_flush(LWLockMode mode);
extern uint64 dw_read_locked(const uint64 *number);
extern void dw_unlock_after_error(void);
extern void dw_tell_room(int nfreed);
extern bool dw_wait_on(ConditionVariable *variable, bool (*wanted) (void),
					   uint32 wait_event_info);
extern void dw_let_others_make_room(void);
extern void dw_wake_flusher(void);
extern void dw_announce_flusher(int procno);
extern void dw_withdraw_flusher(int code, Datum arg);
extern void dw_request_upkeep(void);
extern uint64 dw_nanoseconds(void);
extern uint64 dw_age(pg_atomic_uint64 *moment);
extern int64 dw_msec_since(instr_time start);

/* stage.c */
extern PGDLLIMPORT const DWPageSet DWAllPages;
extern PGDLLIMPORT const DWPageSet DWPermanentPages;
extern Size dw_stage_shmem_size(void);
extern void dw_stage_shmem_init(void);
extern int	dw_reserve_for_page(const BufferTag *tag, bool permanent, bool refused,
								bool *replaces, int *nstaged);
extern void dw_slot_needs_copy(int slotno, uint64 batchno);
extern bool dw_stage_copy(const BufferTag *tag, const char *page, uint64 batchno,
						  int error);
extern void dw_publish_slot(int slotno);
extern bool dw_is_staged(const BufferTag *tag);
extern uint64 dw_current_seq(void);
extern bool dw_stage_has_room(void);
extern int	dw_stage_capacity(void);
extern int	dw_staged_count(void);
extern bool dw_is_stalled(Oid spcOid, bool writing);
extern bool dw_pages_have_failed(void);
extern bool dw_any_has_failed(const DWPageSet *pages);
extern int	dw_find_failure(const DWPageSet *pages, uint64 since, BufferTag *tag);
extern int	dw_slots_used(void);
extern bool dw_unfinished_before(uint64 seq, const DWPageSet *pages, DWSlotState *state);
extern uint64 dw_first_kept_batch(uint64 result);
extern bool dw_tag_in_relation(const BufferTag *tag, const void *arg);
extern bool dw_tag_in_database(const BufferTag *tag, const void *arg);
extern void dw_keep_batch_of_removed(uint64 batchno);
extern bool dw_discard_staged(DWTagFilter filter, const void *arg);
extern uint64 dw_first_removed_batch(void);
extern int	dw_take_slots(int *slots, int max, const DWPageSet *retry);
extern int	dw_take_kept(int *slots, int max, uint64 before, bool touched);
extern void dw_release_slots(const int *slots, int nslots);
extern void dw_restage_slot(int slotno, int error, bool first);
extern void dw_mark_stalled(int slotno);
extern bool dw_let_stalled_go(Oid spcOid);
extern void dw_restage_for_log(int slotno, int error);
extern void dw_choose_stage_size(void);

/* batch.c */
extern void dw_set_batch_phase(DWBatchPhase phase);
extern bool dw_begin_batch(const DWPageSet *retry);
extern bool dw_begin_batch_of_kept(uint64 before, bool touched);
extern void dw_return_batch(void);
extern bool dw_batch_has_waited(void);
extern void dw_batch_waits(void);
extern bool dw_cycle_hangs(void);
extern bool dw_batch_must_wait(void);
extern void dw_flush_wal(void);
extern void dw_remember_logged(int slotno, uint64 batchno);
extern bool dw_batch_under_way(void);

/* home.c */
extern int	dw_run_length(const int *slots, int nslots);
extern bool dw_runs_to_claim(void);
extern DWWriter *dw_own_writer(void);
extern void dw_begin_write(Oid spcOid);
extern void dw_came_back(Oid spcOid, bool late);
extern void dw_end_write(Oid spcOid);
extern void dw_count_run(const int *slots, int npages, instr_time start);
extern void dw_settle_run(const int *slots, int npages, int error);
extern bool dw_carry_run(void);
extern void dw_carry_runs(void);
extern bool dw_write_past_stage(BufferDesc *buf, XLogRecPtr lsn, bool permanent);
extern void dw_forget_torn_home(XLogRecPtr redo);
extern bool dw_homes_under_way(const DWPageSet *pages);
extern void dw_mark_late_writes(void);
extern void dw_await_a_run(void);
extern void dw_await_thaw(void);
extern bool dw_write_is_lost(void);
extern bool dw_await_home_writes(const DWPageSet *pages, bool patient);
extern void dw_await_writes_of(DWTagFilter filter, const void *arg);
extern bool dw_lock_flush_idle(LWLockMode mode, const DWPageSet *pages, bool for_cycle);
extern bool dw_refuse_failed(const DWPageSet *pages, uint64 since);

/* flush.c */
#define DW_FIRST_ATTEMPT	PG_UINT64_MAX	/* for dw_try_home() */

extern bool dw_flush_batch(const DWPageSet *retry);
extern bool dw_try_home(const DWPageSet *pages, uint64 *since);
extern void dw_drain_set(const DWPageSet *pages);
extern void dw_drain_settle_and_lock(const DWPageSet *pages);
extern void dw_log_checkpoint_stats(void);

#endif							/* DOUBLEWRITE_STAGE_H */
