/*-------------------------------------------------------------------------
 *
 * doublewrite_internal.h
 *	  Shared state and cross-file functions of the write-back engine.
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

#include "common/doublewrite_atomic.h"
#include "common/doublewrite_scan.h"
#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "portability/instr_time.h"
#include "storage/buf_internals.h"
#include "storage/condition_variable.h"
#include "storage/doublewrite.h"
#include "storage/doublewrite_format.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "miscadmin.h"

struct iovec;

/* ---------------------------------------------------------------------
 * The stage
 * ---------------------------------------------------------------------
 */

/*
 * Life of a stage slot; README has a picture.  All changes are made by
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

/*
 * What is known of WAL records for the block in a shared buffer; one per buffer,
 * beside the buffer descriptors, whose layout extensions know.  Written with the
 * buffer's content lock held exclusively, or by the only process that has the
 * buffer pinned; read under a content lock.  But "hidden" may be set by the
 * holder of a pin, and "only_hints" by that of a content lock, at least shared.
 */
typedef struct DWBufferRecords
{
	XLogRecPtr	redo;			/* newest redo pointer after which there has
								 * been a record, or may have been one; 0:
								 * none ever */
	XLogRecPtr	before;			/* the one before it with such a record, or 0 */
	bool		rebuilt;		/* redo rebuilds the page from the first
								 * record after redo */
	bool		rebuilt_before; /* ... after before */
	bool		hidden;			/* there may be other records: not exempt */
	bool		only_hints;		/* nothing but hints of the heap has changed
								 * since the last completed checkpoint */
	bool		unreported;		/* marked dirty, and no record reported since */
} DWBufferRecords;

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
	uint64		home_batch;		/* last logged batch that holds the page, and
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

	/* the rest belongs to the filler, later to the process that writes it */
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

/* Does a page belong to a set?  Called with the mutex held. */
typedef bool (*DWTagFilter) (const BufferTag *tag, const void *arg);

/* A set of pages, of which max are to be tried at once; no filter: all pages */
typedef struct DWPageSet
{
	DWTagFilter filter;
	const void *arg;
	int			max;
} DWPageSet;

#define DWPageInSet(set, tag) \
	((set) != NULL && ((set)->filter == NULL || (set)->filter((tag), (set)->arg)))

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
	volatile int ndone;			/* ... of which so many are dealt with */
	Oid			spcOid;			/* lock, read without it, too */
	pg_atomic_uint64 since;		/* when this write began, in ns */
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
typedef struct DWHomePlace
{
	pg_atomic_uint32 nwriting;	/* runs in the table of writers */
	pg_atomic_uint32 stalled;	/* pages have failed with DW_STALLED since a
								 * write has come back */
	pg_atomic_uint64 ended;		/* when a write has come back last, or the
								 * first one has begun, in nanoseconds */
} DWHomePlace;

#define DW_HOME_PLACES			1024

/* A write under way for so long may not come back, in nanoseconds */
#define DW_STALLED_NSEC			INT64CONST(1000000000)

#define DW_BATCH_PHASES	(DW_BATCH_DURABLE + 1)

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

/* A file in the directory of the log, in which nothing is live */
typedef struct DWOldFile
{
	uint64		segno;
	bool		spare;			/* kept over a clean stop */
	bool		usable;			/* has our format and size */
	char		name[64];
} DWOldFile;

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

/*
 * Classes of batch sizes: 1, 2 to 3, 4 to 7, ... 128 pages and more.
 */
#define DW_SIZE_CLASSES			8

#define DWSizeClass(npages) \
	Min(pg_leftmost_one_pos32(npages), DW_SIZE_CLASSES - 1)

typedef struct DWStats
{
	pg_atomic_uint64 staged;	/* pages copied to the stage */
	pg_atomic_uint64 replaced;	/* ... of which replaced a staged copy */
	pg_atomic_uint64 stage_hits;	/* buffer misses served by the stage */
	pg_atomic_uint64 stage_full;	/* waits for a free slot */
	pg_atomic_uint64 discarded; /* staged copies dropped with their file */
	pg_atomic_uint64 batches;	/* batches written back */
	pg_atomic_uint64 logged;	/* pages written to the log */
	pg_atomic_uint64 logged_bytes;	/* space they take there, in bytes */
	pg_atomic_uint64 exempt;	/* permanent pages not logged because redo
								 * rebuilds them */
	pg_atomic_uint64 only_hints;	/* permanent pages not logged because only
									 * hints have changed */
	pg_atomic_uint64 in_epoch;	/* permanent pages not logged because the live
								 * log has a copy already */
	pg_atomic_uint64 log_bytes; /* bytes written to the log */
	pg_atomic_uint64 log_writes;	/* write calls */
	pg_atomic_uint64 log_syncs; /* sync calls */
	pg_atomic_uint64 log_sync_usec; /* time in them, microseconds */
	pg_atomic_uint64 home_pages;	/* pages written home */
	pg_atomic_uint64 home_writes;	/* write calls for them */
	pg_atomic_uint64 atomic_pages;	/* ... of which atomically */
	pg_atomic_uint64 atomic_writes;
	pg_atomic_uint64 sync_cycles;	/* sync cycles completed */
	pg_atomic_uint64 space_cycles;	/* ... begun because half of the log was
									 * in use */
	pg_atomic_uint64 file_cycles;	/* ... because of many files */
	pg_atomic_uint64 sync_cycle_files;	/* files synced by them */
	pg_atomic_uint64 log_full;	/* waits for space in the log */
	pg_atomic_uint64 files_full;	/* ... or rather in the table of files */
	pg_atomic_uint64 foreground_syncs;	/* log syncs by client backends */
	pg_atomic_uint64 checkpoints;	/* checkpoints or restartpoints completed */

	/* what other modes would do */
	pg_atomic_uint64 would_log; /* pages that would have been logged, had the
								 * log been in use for all */
	pg_atomic_uint64 would_log_batches; /* ... batches with such pages */
	pg_atomic_uint64 first_changes; /* first changes of pages after a redo
									 * pointer, for which full_pages writes
									 * images */
	pg_atomic_uint64 first_change_bytes;	/* size of these pages without
											 * their holes */
	pg_atomic_uint64 images;	/* ... for which images were written */
	pg_atomic_uint64 image_bytes;	/* size of these images as written */

	/* by size, see DWSizeClass(); the counters above this are scalars */
	pg_atomic_uint64 batch_size[DW_SIZE_CLASSES];	/* pages in a batch */
	pg_atomic_uint64 logged_size[DW_SIZE_CLASSES];	/* ... that were logged or
													 * noted */
} DWStats;

#define DW_SCALAR_COUNTERS \
	(offsetof(DWStats, batch_size) / sizeof(pg_atomic_uint64))

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
	uint64		buffered;		/* of examined: put into shared buffers */
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

/* What views show of the log; see dw_show_log() */
typedef struct DWShownLog
{
	bool		armed;
	uint64		next_batchno;
	uint64		low_water;
	uint32		segments;		/* in use */
	int			files;			/* in the table of dirty files */
	DWLogTaken	live_after;		/* what came after this is live, by and large */
} DWShownLog;

/* ... and of the mode; see dw_note_mode() */
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
 * Shared state, by the lock that guards it.
 *
 * A struct below has one lock, which its comment names; fields for which
 * something else goes say so.
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
	ConditionVariable room;		/* slots are free, or runs are to be written */
	ConditionVariable ended;	/* a run has ended */
	ConditionVariable thawed;	/* ... that others have taken for stalled */
	DWHomePlace places[DW_HOME_PLACES];
} DWHomeState;

/* The background writer, as long as it writes pages back; mutex */
typedef struct DWFlusherState
{
	int			proc;			/* ProcNumber, or -1 */
	bool		requested;		/* woken up; read without lock, too */
} DWFlusherState;

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
	XLogRecPtr	stats_lsn;		/* end of WAL then, or 0 if unknown */
	DWShownLog	log;
	DWShownMode mode;
	uint64		mode_changes;	/* how often mode has been changed */
} DWShownState;

#define DW_NEVER_WAITED		PG_UINT64_MAX

/* The batch under way; DoubleWriteFlushLock */
typedef struct DWBatchState
{
	DWBatchPhase phase;
	int			len;
	int			slots[DW_MAX_BATCH_PAGES];
	uint64		waits_since;	/* log.cycles_begun when it found no space in
								 * the log, or DW_NEVER_WAITED */
} DWBatchState;

/* The log; DoubleWriteFlushLock */
typedef struct DWLogState
{
	bool		armed;			/* home writes go through the log; read
								 * without lock, too */
	bool		marker_known;	/* the marker, if any, is our own, or that of
								 * a log which the start has looked at */
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
} DWLogState;

/*
 * Redo pointers for which pages are counted: that of the last checkpoint, that of
 * the one under way, and on a standby those that replay has passed since its last
 * restartpoint.
 */
#define DW_REDO_PLACES			8

typedef struct DWRedoPlace
{
	pg_atomic_uint64 redo;		/* invalid: none */
	pg_atomic_uint64 pages;		/* changed since, with no image in WAL */
} DWRedoPlace;

/* What redo would have to read, see reads.c */
typedef struct DWReadsState
{
	uint32		newest;			/* place; by the process that notes them */
	DWRedoPlace places[DW_REDO_PLACES];
} DWReadsState;

/* Files that the log protects, see dirty.c; DoubleWriteFlushLock */
typedef struct DWDirtyState
{
	int			nfiles;
	int			max;			/* constant */
} DWDirtyState;

/* Tablespaces of which it is known how pages are written there */
#define DW_ATOMIC_PLACES		64

/* Bits for files that have refused atomic writes, by hash; 8 kB */
#define DW_ATOMIC_REFUSED_BITS	(64 * 1024)

/*
 * Pages in an atomic write, and in all that are under way at once if they have
 * more than one.  The former are as many as io_combine_limit has by default; the
 * buffer for the latter belongs to each process that has written so many.
 */
#define DW_ATOMIC_MAX_PAGES		16
#define DW_ATOMIC_COMBINED_PAGES	128

/* What is known of a tablespace in this life of the server */
typedef struct DWAtomicPlace
{
	Oid			spcOid;
	DWAtomicProbe probe;
	TimestampTz looked_at;
	uint64		round;			/* batch for which it was looked at */
	uint64		used;			/* ... that had pages of it last */
	int			reported;		/* errno of the write that was reported last */

	/* atomic */
	pg_atomic_uint64 pages;		/* written atomically */
	pg_atomic_uint64 logged;	/* protected by a copy in the log */
	pg_atomic_uint64 refused;	/* atomic writes that were not made */
} DWAtomicPlace;

/* Neighbouring pages that are written atomically together */
typedef struct DWAtomicRun
{
	const int  *slots;
	int			npages;
} DWAtomicRun;

/* What has become of an atomic write */
typedef enum DWAtomicResult
{
	DW_ATOMIC_WRITTEN,
	DW_ATOMIC_NOT_WRITTEN,		/* home is as it was */
	DW_ATOMIC_TORN,				/* home may be torn, which must not happen */
} DWAtomicResult;

/*
 * Atomic writes.  Changed with the flush lock held, places with the mutex, too,
 * so that views need not take the flush lock.
 */
typedef struct DWAtomicState
{
	int			nplaces;
	bool		full;			/* there are more tablespaces, as was reported */
	uint64		round;			/* batches that have asked */
	uint64		sought;			/* ... the last that found no entry to reuse */
	DWAtomicPlace places[DW_ATOMIC_PLACES];
	uint8		refused[DW_ATOMIC_REFUSED_BITS / 8];
} DWAtomicState;

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
	DWDirtyState dirty;
	DWAtomicState atomic;

	/*
	 * No lock: set once by the startup process, or while it is alone.
	 */
	bool		started;		/* restore is over, the mode may be changed */
	DWRestoreStats restore;
	uint32		copy_sets;		/* sets in the table of copies; constant */

	/*
	 * No lock: the checkpointer, or the startup process before it lets the
	 * checkpointer act.
	 */
	XLogRecPtr	disarm_after;	/* disarm once a checkpoint with a redo
								 * pointer at or above this completes, or 0 */

	/* No lock: startup process before redo, then the checkpointer */
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
#define DWNoteMutex(held)	(dw_mutex_held = (held))
#else
#define DWMutexHeld()		(true)
#define DWNoteMutex(held)	((void) 0)
#endif

#define DWLockMutex() \
	do { \
		Assert(!DWMutexHeld()); \
		SpinLockAcquire(&DWCtl->mutex); \
		DWNoteMutex(true); \
	} while (0)

#define DWUnlockMutex() \
	do { \
		DWNoteMutex(false); \
		SpinLockRelease(&DWCtl->mutex); \
	} while (0)

/* Does this process hold the flush lock, so that it is the flusher? */
#define DWIsFlusher() \
	LWLockHeldByMeInMode(DoubleWriteFlushLock, LW_EXCLUSIVE)

#define DWWriterAt(i)		(&DWCtl->writers[i].writer)

#define DWHomePlaceOf(spcOid)	(&DWCtl->home.places[(spcOid) % DW_HOME_PLACES])

extern PGDLLIMPORT DWSlot *DWSlots;
extern PGDLLIMPORT int *DWRuns;
extern PGDLLIMPORT DWBufferRecords *DWBufferRecordsArray;

#define DWSlotPage(slotno) (DWPages + (Size) (slotno) * BLCKSZ)
extern PGDLLIMPORT char *DWPages;

#define DWSlotInState(slot, s) \
	(pg_atomic_read_u32(&(slot)->state) == (s))

/*
 * Pages for which it pays to begin a batch, and to wake the flusher.  With the
 * log in use they share a sync, so the more the better.  Without, pages had
 * better go home while they are in the processor's cache, and in short bursts.
 * Whether it is in use is looked up without a lock, as this is but a hint.
 */
#define DW_UNLOGGED_BATCH_PAGES	64

#define DWBatchThreshold() \
	Min(DWCtl->log.armed ? DW_MAX_BATCH_PAGES : DW_UNLOGGED_BATCH_PAGES, \
		DWCtl->stage.nslots / 4)

#define DWCount(field, n) \
	pg_atomic_fetch_add_u64(&DWCtl->stats.field, (n))

/* ---------------------------------------------------------------------
 * Functions, by file, roughly from bottom to top.  Which file may call which is
 * said by the order of the table in README only.
 * ---------------------------------------------------------------------
 */

/* workers.c */
extern void dw_lock_flush(LWLockMode mode);
extern uint64 dw_read_locked(const uint64 *number);
extern void dw_unlock_after_error(void);
extern void dw_tell_room(int nfreed);
extern bool dw_wait_on(ConditionVariable *variable, bool (*wanted) (void));
extern void dw_wake_flusher(void);
extern bool dw_flush_was_requested(void);
extern void dw_announce_flusher(int procno);
extern void dw_withdraw_flusher(int code, Datum arg);
extern void dw_wake_checkpointer(void);
extern void dw_request_upkeep(void);
extern uint64 dw_nanoseconds(void);
extern uint64 dw_age(pg_atomic_uint64 *moment);
extern long dw_msec_since(instr_time start);

/* settings.c */
extern TornPagesProtection dw_setting(void);
extern bool dw_setting_uses_log(void);
extern void dw_note_setting(void);
extern int	dw_stage_slots(void);
extern void dw_show_stage_size(void);
extern int	dw_log_bound_segments(void);

/* reads.c */
extern void dw_count_read(XLogRecPtr lsn);
extern void dw_count_reads_from(XLogRecPtr redo);
extern DWLogTaken dw_log_taken(void);

/* exempt.c */
extern bool dw_redo_rebuilds(const DWSlot *slot);
extern void dw_note_end_of_recovery(void);
extern bool dw_replayed_images(void);
extern void dw_note_truncate(const RelFileLocator *rlocator);
extern void dw_note_drop_in_redo(const RelFileLocator *rlocator);
extern bool dw_was_truncated(const RelFileLocator *rlocator);

/* rebuilt.c */
extern Size dw_rebuilt_shmem_size(void);
extern void dw_rebuilt_shmem_init(void);
extern void dw_rebuilt_note(const BufferTag *tag, XLogRecPtr redo);
extern bool dw_rebuilt_known(const BufferTag *tag, XLogRecPtr redo);

/* hints.c */
extern bool dw_only_hints_changed(const DWSlot *slot);

/* stats.c */
extern void dw_show_log(void);
extern void dw_show_setting(void);
extern void dw_show_checkpoint(XLogRecPtr redo);
extern void dw_note_mode(void);
extern void dw_stats_start(XLogRecPtr lsn);

/* ledger.c */
extern void dw_ledger_begin(void);
extern void dw_ledger_add(const DWLedgerEntry *entry);
extern void dw_ledger_end(const DWRestoreStats *stats);

/* stage.c */
extern PGDLLIMPORT const DWPageSet DWAllPages;
extern Size dw_stage_shmem_size(void);
extern void dw_stage_shmem_init(void);
extern int	dw_reserve_for_page(const BufferTag *tag, bool refused,
								bool *replaces, int *nstaged);
extern void dw_publish_slot(int slotno);
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
extern bool dw_discard_staged(DWTagFilter filter, const void *arg);
extern uint64 dw_first_removed_batch(void);
extern int	dw_take_slots(int *slots, int max, const DWPageSet *retry);
extern int	dw_take_kept(int *slots, int max, uint64 before);
extern void dw_release_slots(const int *slots, int nslots);
extern void dw_restage_slot(int slotno, int error, bool first);
extern void dw_mark_stalled(int slotno);
extern bool dw_let_stalled_go(Oid spcOid);
extern void dw_return_slot_to_log(int slotno, int error);

/* compress.c */
extern char *dw_pack_pages(DWBatchHeader *hdr, const int *slots, int nslots);
extern void dw_free_pack_buffer(void);

/* epoch.c */
extern Size dw_epoch_shmem_size(void);
extern void dw_epoch_shmem_init(void);
extern void dw_epoch_begin(uint64 first_batch);
extern uint64 dw_epoch_copy(const BufferTag *tag);
extern void dw_epoch_note(const BufferTag *tag, uint64 batchno);

/* failedsync.c */
extern void dw_refuse_failed_sync(void);
extern void dw_look_for_failed_sync(void);
extern void dw_remove_failed_sync(void);
extern void dw_bound_rewriting(void);
extern void dw_forget_failed_sync(XLogRecPtr redo);

/* dirty.c */
extern Size dw_dirty_shmem_size(void);
extern void dw_dirty_shmem_init(void);
extern void dw_dirty_file(const BufferTag *tag, uint64 batchno);
extern bool dw_dirty_files_full(int more);
extern bool dw_many_dirty_files(void);
extern DWDirtyFile *dw_copy_dirty_files(int *nfiles);
extern void dw_forget_files(uint64 mark);
extern void dw_directory_path(char *path, Oid spcOid, Oid dbOid);
extern int	dw_sync_elevel(int elevel);
extern bool dw_sync_directory(const RelFileLocator *rlocator, int elevel);
extern bool dw_sync_file(const DWDirtyFile *file, int elevel);
extern void dw_sync_files(const DWDirtyFile *files, int nfiles);

/* batch.c */
extern void dw_set_batch_phase(DWBatchPhase phase);
extern bool dw_begin_batch(const DWPageSet *retry);
extern bool dw_begin_batch_of_kept(uint64 before);
extern void dw_return_batch(void);
extern bool dw_batch_has_waited(void);
extern void dw_batch_waits(void);
extern bool dw_batch_must_wait(void);
extern void dw_flush_wal(void);
extern void dw_note_logged(int slotno, uint64 batchno);
extern bool dw_batch_under_way(void);
extern bool dw_homes_under_way(void);
extern uint64 dw_first_unfinished_batch(void);

/* atomic.c */
extern bool dw_atomic_allowed(void);
extern bool dw_atomic_chosen(const DWSlot *slot);
extern int	dw_atomic_run_length(const BufferTag *first, int npages);
extern int	dw_atomic_write_ahead(const DWAtomicRun *runs, int nruns);
extern DWAtomicResult dw_atomic_write(const int *slots, int npages);
extern void dw_atomic_end(void);

/* home.c */
extern bool dw_runs_to_claim(void);
extern DWWriter *dw_own_writer(void);
extern bool dw_carry_run(void);
extern void dw_carry_runs(void);
extern void dw_send_home(void);
extern void dw_mark_late_writes(void);
extern void dw_await_a_run(void);
extern void dw_await_thaw(void);
extern bool dw_write_is_lost(void);
extern bool dw_await_home_writes(bool patient);
extern void dw_await_writes_of(DWTagFilter filter, const void *arg);
extern bool dw_lock_flush_idle(LWLockMode mode, bool for_cycle);
extern bool dw_refuse_failed(const DWPageSet *pages, uint64 since);

/* segment.c */
extern void dw_log_path(char *path, uint64 segno);
extern bool dw_open_segment(uint64 segno);
extern void dw_close_segment(void);
extern bool dw_create_segment(void);
extern bool dw_segment_wanted(void);
extern bool dw_prepare_segment(void);
extern bool dw_write_blocks(struct iovec *iov, int iovcnt, off_t offset);
extern bool dw_sync_log(void);
extern void dw_report_no_segment(int elevel, bool can_wait);
pg_noreturn extern void dw_refuse_full_log(void);
extern bool dw_reserve(int nblocks, bool for_mark, bool beyond_bound);
extern void dw_enter_segment(void);
extern void dw_leave_place(void);
extern int	dw_list_old_files(uint64 before, DWOldFile **files);
extern void dw_remove_file(const char *name);
extern void dw_spare_file(uint64 segno);
extern void dw_reuse_files(DWOldFile *files, int nfiles);
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
extern bool dw_marker_exists(void);
extern bool dw_remove_marker(void);

/* log.c */
extern bool dw_log_write_batch(const int *slots, int nslots, int ncopies,
							   bool beyond_bound);
extern void dw_log_set_low_water(uint64 mark);
extern void dw_log_found(const DWFoundBatch *first, const DWFoundBatch *last);
extern void dw_log_empty(void);
extern void dw_remove_log(void);
extern void dw_retire_log(bool keep);
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

/* upkeep.c */
extern bool dw_cycle_needed(void);
extern void dw_have_room_for_mark(uint64 mark);
extern void dw_sync_cycle(uint64 begun);

/* flush.c */
#define DW_FIRST_ATTEMPT	PG_UINT64_MAX	/* for dw_try_home() */

extern bool dw_flush_batch(const DWPageSet *retry);
extern bool dw_try_home(const DWPageSet *pages, uint64 *since);

/* drain.c */
extern void dw_drain_and_lock(void);

/* restore.c */
extern int	dw_open_for_reading(const char *path);
extern void dw_begin_progress(void);
extern void dw_restore(const DWScan *scan, const DWLiveRange *live);

#endif							/* DOUBLEWRITE_INTERNAL_H */
