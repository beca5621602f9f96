/*-------------------------------------------------------------------------
 *
 * doublewrite_log.h
 *	  The double-write log, and what protects pages on their way home.
 *
 * Included by doublewrite_internal.h, which has what belongs to all of the engine.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/storage/doublewrite_log.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_LOG_H
#define DOUBLEWRITE_LOG_H

#include "common/doublewrite_atomic.h"
#include "common/doublewrite_scan.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/doublewrite.h"
#include "storage/doublewrite_format.h"
#include "storage/doublewrite_stage.h"
#include "storage/lwlock.h"

struct iovec;

/* A copy in the log that counts as the newest version of its page; see copies.c */
typedef enum DWCopyState
{
	DW_COPY_PENDING,
	DW_COPY_TAKEN,				/* a process writes it home, or stages a newer
								 * version */
	DW_COPY_DONE,				/* what is staged or at home counts */
} DWCopyState;

typedef struct DWPendingCopy
{
	DWCopy		copy;
	pg_atomic_uint32 state;		/* DWCopyState */
} DWPendingCopy;

/* A look for such copies */
typedef struct DWCopyScan
{
	const DWPageSet *pages;
	const RelFileLocator *rlocator; /* all belong to it; or NULL */
	uint64		before;			/* no copies in this batch or later ones */
	int			next;			/* place in the table */
} DWCopyScan;

/* A relation segment file with home writes that only the log protects */
typedef struct DWDirtyFile
{
	RelFileLocator rlocator;
	ForkNumber	forknum;
	uint32		segno;
	int			next;			/* next file of the same bucket or -1 */
	uint64		batchno;		/* last logged batch that wrote to it */
} DWDirtyFile;

/* What says which file it is */
#define DW_FILE_KEY_SIZE		offsetof(DWDirtyFile, next)

StaticAssertDecl(DW_FILE_KEY_SIZE ==
				 sizeof(RelFileLocator) + sizeof(ForkNumber) + sizeof(uint32),
				 "there must be no padding in what is compared by bytes");

/*
 * Least room for the files written since the last sync cycle; see
 * dw_dirty_files_max().  A cycle is started in the background when it is three
 * quarters full; what is left then takes four batches of pages that all belong
 * to different files.
 */
#define DW_MIN_DIRTY_FILES		4096

/*
 * Notes of removals between two checkpoints, 512 kB.  A process that finds them full
 * syncs by itself.  That makes a DROP slower, nothing else, but by much: each of
 * these syncs has a removal to commit to the file system's journal, while those
 * of a checkpoint find most of them committed.
 */
#define DW_REMOVED_FILES		(16 * 1024)
#define DW_REMOVED_DIRS			64

/* Upper bound of the log, in segments: 16 GB with 4-MB segments */
#define DW_MAX_SEGMENTS			4096

/* Lower bound: two segments to write to, two to recycle */
#define DW_MIN_SEGMENTS			4

/* Buckets that remember where files were truncated last */
#define DW_TRUNCATE_BUCKETS		1024

/* DWCtl->setting before the startup process has set it */
#define DW_SETTING_UNKNOWN		PG_UINT32_MAX

/* Outcome of the last restore, for the log line and for views */
typedef struct DWRestoreStats
{
	bool		done;			/* a restore was run by this server */
	TimestampTz finished;		/* when */
	uint64		batches;		/* live batches read */
	uint64		examined;		/* distinct pages with a live copy */
	uint64		restored;		/* pages written home */
	uint64		identical;		/* home was identical already */
	uint64		missing;		/* file gone or shorter: redo decides */
	uint64		bytes_read;		/* of the log */
	int64		usec;			/* microseconds it took */
} DWRestoreStats;

/* What the log had taken at some moment, as counted since the server started */
typedef struct DWLogTaken
{
	uint64		pages;			/* copies */
	uint64		notes;
	uint64		bytes;
} DWLogTaken;

/* What views show of the mode; see dw_publish_mode() */
typedef struct DWShownMode
{
	TornPagesProtection requested;	/* by the server's settings */
	TornPagesProtection mechanism;	/* of pages that are written now */
	bool		recovery;		/* ... noted during recovery */
	TornPagesProtection in_force;	/* what protects all pages */
	TimestampTz since;			/* when that came into force, or 0 */
	bool		images;			/* this server's WAL carries images */
	XLogRecPtr	off_until;		/* coming from "off", pages are safe once a
								 * checkpoint with a redo pointer at or above
								 * this completes, or 0 */
	XLogRecPtr	disarm_after;	/* as in DWCtlData */
} DWShownMode;

/* ---------------------------------------------------------------------
 * Shared state; see doublewrite_internal.h
 * ---------------------------------------------------------------------
 */

/* Redo pointers that a crash could recover from; mutex */
typedef struct DWRedoState
{
	XLogRecPtr	last;			/* last completed checkpoint */
	bool		images;			/* WAL after it began with images on */
	XLogRecPtr	pending;		/* checkpoint that was drained and is about to
								 * complete, or 0 */
	XLogRecPtr	images_off;		/* last replayed record that shows that images
								 * were off */
} DWRedoState;

/* Removals, see remove.c; mutex */
typedef struct DWRemovalState
{
	pg_atomic_uint32 generation;	/* parity says which lock new ones take;
									 * checkpointer */
	pg_atomic_uint32 under_way[2];	/* removals that have begun and not ended,
									 * by parity; with its removal lock held */

	/* notes of them */
	LWLock		lock;			/* of what follows */
	int			nfiles;
	int			ndirs;
	int			nsyncing_dirs;	/* of them, the first ones, which a checkpoint
								 * syncs just now */
	DWDirtyFile files[DW_REMOVED_FILES];
	RelFileLocator dirs[DW_REMOVED_DIRS];	/* relNumber means nothing */

	/* mutex */
	uint64		first_batch[2]; /* first batch with the only good copy of a
								 * page that was removed, by parity of
								 * generation then; 0: none */

	/* what has failed may still be there */
	XLogRecPtr	failed_until;	/* redo that begins before may read it */
	uint64		failed_batch;	/* as first_batch, or 0 */
} DWRemovalState;

/* What views show; mutex */
typedef struct DWShownState
{
	/* what they subtract from the counters */
	uint64		stats_base[sizeof(DWStats) / sizeof(pg_atomic_uint64)];
	TimestampTz stats_reset;	/* when, or 0: start of the server */
	DWShownMode mode;
	uint64		mode_changes;	/* how often mode has been changed */
} DWShownState;

/* The log; DoubleWriteFlushLock, but views read it without */
typedef struct DWLogState
{
	bool		armed;			/* home writes go through the log; read
								 * without lock, too */
	bool		marker_known;	/* the marker, if any, is our own, or that of
								 * a log which the start has looked at */
	bool		arming_failed;	/* a recovery could not arm it by itself; the
								 * checkpointer forgets it without lock */
	bool		open;			/* fields below are valid */
	uint64		segno;			/* segment being written; if not open, that
								 * with the last batch that was found, or 0 */
	uint32		blockno;		/* next free block in it */
	uint32		left_blockno;	/* ... and in the one before, when it was left */
	uint64		last_segno;		/* highest segment that exists */
	uint64		first_segno;	/* lowest segment that may hold live batches */
	int			no_segment;		/* errno for which no segment could be made
								 * since one was entered last, or 0 */
	bool		names_changed;	/* names of segments may not be durable */
	uint64		nonce;			/* in all batches; see doublewrite_format.h */
	uint64		next_batchno;
	uint64		last_page_batch;	/* last batch that holds pages */
	XLogRecPtr	wal_end;		/* highest LSN of pages in batches */
	double		write_blocks;	/* blocks of a batch, a moving average; 0:
								 * none has been written */
	uint64		low_water;		/* first batch still needed */
	uint64		low_water_logged;	/* ... as durable in the log */
	uint64		seg_first_batch[DW_MAX_SEGMENTS];	/* by segno modulo */
	bool		seg_bad[DW_MAX_SEGMENTS];	/* a place in it cannot be written */
	uint64		checkpoint_mark;	/* low water mark that the checkpoint
									 * under way may set */
	uint64		epoch;			/* first batch whose copies home writes may
								 * rely on; never below a mark that is about
								 * to be set */
	DWLogTaken	epoch_after;	/* what had been logged when it began */
	DWLogTaken	live_after;		/* the same for the low-water mark */
	bool		futile;			/* the newest sync cycle has freed nothing, as
								 * a home write did not come back */
	uint64		cycles_begun;	/* number of the newest sync cycle */
	pg_atomic_uint64 cycles_done;	/* ... of the newest one that has
									 * completed; read without lock, too */
	pg_atomic_uint64 syncing_since; /* one syncs a file since then, in ns, or
									 * 0; set with the sync lock */
	ConditionVariable cycle_ended;
} DWLogState;

/*
 * Redo pointers for which pages are counted: that of the last checkpoint, that of
 * the one under way, and on a standby those that replay has passed since its last
 * restartpoint.
 */
#define DW_REDO_POINTERS			8

typedef struct DWRedoPointer
{
	pg_atomic_uint64 redo;		/* invalid: none */
	pg_atomic_uint64 pages;		/* changed since, with no image in WAL */
} DWRedoPointer;

/* What redo would have to read, see exempt.c */
typedef struct DWReadsState
{
	uint32		newest;			/* by the process that adds them */
	DWRedoPointer pointers[DW_REDO_POINTERS];
} DWReadsState;

/* Tablespaces of which it is known how pages are written there */
#define DW_ATOMIC_TABLESPACES		64

/* Bits for files that have refused atomic writes, by hash; 8 kB */
#define DW_ATOMIC_REFUSED_BITS	(64 * 1024)

/* What is known of a tablespace in this life of the server */
typedef struct DWAtomicTablespace
{
	Oid			spcOid;
	DWAtomicProbe probe;
	TimestampTz looked_at;
	uint64		batch;			/* for which it was looked at */
	uint64		used;			/* batch that had pages of it last */
	int			reported;		/* errno of the write that was reported last */

	/* atomic */
	pg_atomic_uint64 pages;		/* written atomically */
	pg_atomic_uint64 logged;	/* protected by a copy in the log */
	pg_atomic_uint64 refused;	/* atomic writes that were not made */
} DWAtomicTablespace;

/*
 * Atomic writes.  Changed with the flush lock held, tablespaces with the mutex,
 * so that views need not take the flush lock.
 */
typedef struct DWAtomicState
{
	int			ntablespaces;
	bool		full;			/* there are more tablespaces, as was reported */
	uint64		nbatches;		/* that have asked */
	uint64		sought;			/* batches of which the last found no entry to
								 * reuse */
	DWAtomicTablespace tablespaces[DW_ATOMIC_TABLESPACES];
	uint8		refused[DW_ATOMIC_REFUSED_BITS / 8];
} DWAtomicState;

/* ---------------------------------------------------------------------
 * Functions, by file, roughly from bottom to top.
 * ---------------------------------------------------------------------
 */

/* settings.c */
extern TornPagesProtection dw_setting(void);
extern bool dw_setting_uses_log(void);
extern void dw_take_setting(void);
extern int	dw_log_bound_segments(void);

/* exempt.c */
extern bool dw_redo_rebuilds(const DWSlot *slot);
extern void dw_remember_end_of_recovery(void);
extern bool dw_replayed_images(void);
extern void dw_remember_truncate(const RelFileLocator *rlocator);
extern void dw_remember_drop_in_redo(const RelFileLocator *rlocator);
extern bool dw_was_truncated(const RelFileLocator *rlocator);
extern Size dw_rebuilt_shmem_size(void);
extern void dw_rebuilt_shmem_init(void);
extern DWLogTaken dw_log_taken(void);

/* hints.c */
extern bool dw_only_hints_changed(const DWSlot *slot);

/* stats.c */
extern void dw_show_setting(void);
extern void dw_show_checkpoint(XLogRecPtr redo);
extern void dw_publish_mode(void);

/* copies.c */
extern Size dw_copies_shmem_size(int segments);
extern void dw_copies_shmem_init(void);
extern bool dw_has_room_for_copy(void);
extern bool dw_had_copies(void);
extern uint32 dw_copies_left(void);
extern void dw_add_copy(const DWCopy *copy);
extern void dw_begin_copies(DWCopyScan *scan, const DWPageSet *pages,
							const RelFileLocator *rlocator);
extern DWPendingCopy *dw_next_copy(DWCopyScan *scan, BufferTag *tag);
extern uint64 dw_first_pending_batch(void);
extern void dw_announce_copy(const DWPendingCopy *entry);
extern bool dw_try_read_copy(const DWPendingCopy *entry, char *page);
extern bool dw_copy_is_past(DWPendingCopy *entry);
extern bool dw_copy_is_lost(int error);
pg_noreturn extern void dw_refuse_copy(const DWPendingCopy *entry);
extern bool dw_read_from_log(const BufferTag *tag, char *page);
extern bool dw_try_take_copy(DWPendingCopy *entry);
extern bool dw_await_copy(DWPendingCopy *entry);
extern DWPendingCopy *dw_take_copy_of(const BufferTag *tag);
extern void dw_give_copy_back(DWPendingCopy *entry);
extern void dw_copy_is_done(DWPendingCopy *entry);
extern void dw_discard_copies(const DWPageSet *pages, const RelFileLocator *rlocator,
							  void (*keep) (uint64 batchno));

/* epoch.c */
extern Size dw_epoch_shmem_size(int segments);
extern void dw_epoch_shmem_init(void);
extern void dw_epoch_begin(uint64 first_batch);
extern uint64 dw_epoch_copy(const BufferTag *tag);
extern uint64 dw_covering_copy(const DWSlot *slot);
extern void dw_epoch_forget(const BufferTag *tag);
extern void dw_epoch_remember(const BufferTag *tag, uint64 batchno);

/* failedsync.c */
extern void dw_refuse_failed_sync(void);
extern void dw_look_for_failed_sync(void);
extern void dw_remove_failed_sync(void);
extern void dw_bound_rewriting(void);
extern void dw_forget_failed_sync(XLogRecPtr redo);

/* dirty.c */
extern Size dw_dirty_shmem_size(int segments);
extern void dw_dirty_shmem_init(void);
extern DWDirtyFile dw_file_of_page(const BufferTag *tag);
extern void dw_dirty_file(const BufferTag *tag, uint64 batchno);
extern bool dw_file_is_dirty(const BufferTag *tag, uint64 batchno);
extern bool dw_dirty_files_full(int more);
extern bool dw_many_dirty_files(void);
extern DWDirtyFile *dw_copy_dirty_files(int *nfiles);
extern void dw_forget_files(uint64 mark);
extern void dw_directory_path(char *path, Oid spcOid, Oid dbOid);
extern int	dw_sync_elevel(int elevel);
extern bool dw_sync_directory(const RelFileLocator *rlocator, int elevel);
extern bool dw_sync_file(const DWDirtyFile *file, int elevel);
extern void dw_sync_files(const DWDirtyFile *files, int nfiles);
extern void dw_sync_dirty_files(void);

/* atomic.c */
extern bool dw_atomic_allowed(void);
extern bool dw_atomic_chosen(const DWSlot *slot);
extern void dw_write_atomically(int natomic);

/* segment.c */
extern bool dw_open_segment(uint64 segno);
extern void dw_close_segment(void);
extern bool dw_create_segment(void);
extern bool dw_prepare_segment(void);
extern bool dw_write_blocks(struct iovec *iov, int iovcnt, off_t offset);
extern bool dw_sync_log(void);
extern void dw_report_no_segment(int elevel, bool can_wait);
pg_noreturn extern void dw_refuse_full_log(void);
extern bool dw_reserve(int nblocks, bool for_mark, bool beyond_bound);
extern void dw_enter_segment(void);
extern void dw_leave_place(void);
extern int	dw_list_old_segments(uint64 before, uint64 **segnos);
extern void dw_remove_segment(uint64 segno);
extern void dw_reuse_segments(uint64 *segnos, int nsegments);
extern void dw_recycle_segments(void);

/* marker.c */
extern void dw_look_at_directory(DWStart *start, bool create);
extern void dw_report(const DWReason *reason, int sqlstate, int elevel);
extern void dw_report_start(const DWStart *start, DWStartVerdict verdict, int elevel);
extern bool dw_log_check_dir(int elevel);
extern void dw_write_owner(bool marker, int elevel);
extern void dw_remove_owner(void);
extern void dw_write_marker(void);
extern void dw_refuse_unknown_marker(void);
extern bool dw_remove_marker(void);

/* log.c */
extern bool dw_log_write_batch(const int *slots, int nslots, int ncopies,
							   bool beyond_bound);
extern void dw_log_set_low_water(uint64 mark);
extern uint64 dw_first_unfinished_batch(void);
extern void dw_log_found(const DWFoundBatch *first, const DWFoundBatch *last);
extern bool dw_log_continue(const DWScan *scan, const DWLiveRange *live);
extern void dw_log_empty(void);
extern void dw_remove_log(void);
extern void dw_arm(void);

/* remove.c */
extern bool dw_removals_matter(void);
extern void dw_sync_removals(void);
extern void dw_settle_removals(void);
extern bool dw_removal_has_failed(void);
extern void dw_refuse_failed_removal(XLogRecPtr redo);
extern uint64 dw_first_failed_removal(void);
extern void dw_refuse_to_forget_removal(void);
extern void dw_forget_failed_removal(XLogRecPtr redo);

/* bring.c */
extern void dw_bring_copies(const DWPageSet *pages, const RelFileLocator *rlocator);
extern bool dw_bring_before(uint64 batchno);

/* upkeep.c */
extern bool dw_cycle_needed(void);
extern uint64 dw_first_batch_behind(int nsegments);
extern void dw_have_room_for_mark(uint64 mark);
extern bool dw_sync_cycle(uint64 begun);

/* durable.c */
extern bool dw_arm_for_replay(void);
extern bool dw_make_durable(bool beyond_bound);

/* restore.c */
extern int	dw_open_for_reading(const char *path);
extern void dw_begin_progress(void);
extern bool dw_restore(const DWScan *scan, const DWLiveRange *live, bool on_demand);

#endif							/* DOUBLEWRITE_LOG_H */
