/*-------------------------------------------------------------------------
 *
 * xlogblockfilter.c
 *		Which blocks can be read ahead of redo by another process?
 *
 * The WAL pipeline's process decodes WAL far ahead of redo.  For each record we
 * look at the blocks that it refers to, ask the kernel to prefetch those that are
 * not in shared buffers, and tell the caller, which will read them.
 *
 * xlogprefetcher.c does that for the process that replays the records.  What is
 * different here:
 *
 * - No process waits for one particular record, so WAL is never waited for.
 * - What has been replayed we hear late, when half of what we have decoded is
 *   used up.  Therefore more reads may be under way.
 * - The blocks end up in shared buffers before redo has come to the record.  So
 *   no read is started for a block that an earlier record, not replayed yet,
 *   will rebuild: the page on disk may be torn.
 * - What smgr remembers of files is not kept up to date in a process that
 *   replays nothing, and asking the kernel each time is too expensive.  It is
 *   good enough to notice missing files when the kernel refuses to prefetch;
 *   the caller looks whether they are long enough.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/xlogblockfilter.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/hash_xlog.h"
#include "access/xlogblockfilter.h"
#include "access/xlogprefetcher.h"
#include "catalog/storage_xlog.h"
#include "commands/dbcommands_xlog.h"
#include "common/hashfn.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/smgr.h"
#include "utils/hsearch.h"

/*
 * So many times maintenance_io_concurrency reads may be under way, most of which
 * have long been completed, but not more than a share of shared buffers, where
 * they end up.
 */
#define EXAMINE_READS_MULTIPLIER	64
#define EXAMINE_BUFFERS_SHARE		8

/* Block references to look ahead, at most: 1 MB of memory for the window */
#define EXAMINE_MAX_BLOCKS			65536

/*
 * Size of the table of blocks that records not replayed yet will rebuild: much
 * more than there are blocks in a queue of the default size, as two blocks in
 * one place cost some prefetching.
 */
#define EXAMINE_REBUILT				16384

/* Blocks asked for lately, which we need not ask for again */
#define EXAMINE_RECENT				4

#ifdef USE_PREFETCH
#define examine_enabled() \
	(recovery_prefetch != RECOVERY_PREFETCH_OFF && \
	 maintenance_io_concurrency > 0 && !XLogExamineSuspended)
#else
#define examine_enabled() false
#endif

bool		XLogExamineSuspended = false;

/* A record that refers to blocks, and may not have been replayed */
typedef struct XLogExamined
{
	XLogRecPtr	lsn;
	uint16		nblocks;		/* it refers to */
	uint16		nreads;			/* of which reads were started */
} XLogExamined;

/*
 * Of a relation, or of a database, no block from a certain one on may be read
 * until a record has been replayed that creates, replaces or truncates files.
 */
typedef struct XLogExamineBar
{
	RelFileLocator rlocator;	/* relation, or just the database */
	BlockNumber from;
	XLogRecPtr	until;
	dlist_node	link;			/* in examine_bars, in the order of lifting */
} XLogExamineBar;

static XLogReaderState *examine_reader;
static XLogExamineRecordCallback examine_record_done;
static XLogExamineReadCallback examine_read_started;

/* The window: a ring, with the sums of what is in it */
static XLogExamined *examine_window;
static uint32 examine_window_size;
static uint32 examine_head = 0;
static uint32 examine_tail = 0;
static uint32 examine_nblocks = 0;
static uint32 examine_nreads = 0;

static HTAB *examine_bar_table;
static dlist_head examine_bars = DLIST_STATIC_INIT(examine_bars);

/* By hash of a block, the last record that rebuilds it */
static XLogRecPtr *examine_rebuilt;

/*
 * The last record that was passed on without being examined, because prefetching
 * was off.  Until it has been replayed we don't know of all bars and rebuilt
 * blocks, so no read is started for any block.
 */
static XLogRecPtr examine_missed = InvalidXLogRecPtr;

static RelFileLocator examine_recent_rlocator[EXAMINE_RECENT];
static BlockNumber examine_recent_block[EXAMINE_RECENT];
static uint32 examine_recent_next = 0;

static XLogPrefetchCounts examine_counts;

/*
 * Prepare to examine records that a reader decodes.
 *
 * 'record_done' is called for each record, in order, when its blocks have been
 * looked at; it returns false to stop for now.  'read_started' is called before
 * that, for each of its blocks that the kernel has been asked to prefetch.
 */
void
XLogExamineInit(XLogReaderState *reader, size_t decode_buffer_size,
				XLogExamineRecordCallback record_done,
				XLogExamineReadCallback read_started)
{
	HASHCTL		ctl;

	examine_reader = reader;
	examine_record_done = record_done;
	examine_read_started = read_started;

	/* each record in it has a block, and the last one may go beyond the limit */
	examine_window_size = Min(decode_buffer_size / sizeof(DecodedBkpBlock),
							  EXAMINE_MAX_BLOCKS) + 1;
	examine_window = palloc(sizeof(XLogExamined) * examine_window_size);

	ctl.keysize = sizeof(RelFileLocator);
	ctl.entrysize = sizeof(XLogExamineBar);
	examine_bar_table = hash_create("relations not to be read ahead of redo",
									1024, &ctl, HASH_ELEM | HASH_BLOBS);
	examine_rebuilt = palloc0(sizeof(XLogRecPtr) * EXAMINE_REBUILT);
}

/*
 * Forget about reads that were started: settings have been loaded, or all
 * has been replayed.
 */
void
XLogExamineRestart(void)
{
	examine_head = examine_tail = 0;
	examine_nblocks = examine_nreads = 0;
}

/*
 * Go on with the record at 'next', the end of the one at 'prev'.
 */
void
XLogExamineContinue(XLogRecPtr prev, XLogRecPtr next)
{
	XLogExamineRestart();
	XLogContinueRead(examine_reader, prev, next);
}

/*
 * Redo is at the record at 'replaying': release the space of those before it.
 */
void
XLogExamineRelease(XLogRecPtr replaying)
{
	char	   *errmsg;

	while (examine_reader->ReadRecPtr < replaying)
	{
		if (XLogNextRecord(examine_reader, &errmsg) == NULL)
			elog(ERROR, "record at %X/%X to be released was not read",
				 LSN_FORMAT_ARGS(replaying));
	}
}

/* ---------------------------------------------------------------------
 * Bars
 * ---------------------------------------------------------------------
 */

/*
 * Read nothing of a relation, from a block on, until a record has been replayed.
 */
static void
examine_bar(const RelFileLocator *rlocator, BlockNumber from, XLogRecPtr until)
{
	XLogExamineBar *bar;
	bool		found;

	bar = hash_search(examine_bar_table, rlocator, HASH_ENTER, &found);
	if (found)
	{
		/* a record may come twice, if it was not taken the first time */
		from = Min(from, bar->from);
		until = Max(until, bar->until);
		dlist_delete(&bar->link);
	}
	bar->from = from;
	bar->until = until;
	dlist_push_tail(&examine_bars, &bar->link);
}

/*
 * If a record does something to files as a whole, bar them.
 */
static void
examine_record_bars(DecodedXLogRecord *record)
{
	uint8		info = record->header.xl_info & ~XLR_INFO_MASK;

	if (record->header.xl_rmid == RM_DBASE_ID &&
		info == XLOG_DBASE_CREATE_FILE_COPY)
	{
		xl_dbase_create_file_copy_rec *xlrec =
			(xl_dbase_create_file_copy_rec *) record->main_data;
		RelFileLocator database = {InvalidOid, xlrec->db_id, InvalidRelFileNumber};

		examine_bar(&database, 0, record->lsn);
	}
	else if (record->header.xl_rmid == RM_SMGR_ID && info == XLOG_SMGR_CREATE)
	{
		xl_smgr_create *xlrec = (xl_smgr_create *) record->main_data;

		if (xlrec->forkNum == MAIN_FORKNUM)
			examine_bar(&xlrec->rlocator, 0, record->lsn);
	}
	else if (record->header.xl_rmid == RM_SMGR_ID && info == XLOG_SMGR_TRUNCATE)
	{
		xl_smgr_truncate *xlrec = (xl_smgr_truncate *) record->main_data;

		examine_bar(&xlrec->rlocator, xlrec->blkno, record->lsn);
	}
}

static bool
examine_is_barred(const DecodedBkpBlock *block)
{
	RelFileLocator database = {InvalidOid, block->rlocator.dbOid, InvalidRelFileNumber};
	XLogExamineBar *bar;

	if (dlist_is_empty(&examine_bars))
		return false;
	bar = hash_search(examine_bar_table, &block->rlocator, HASH_FIND, NULL);
	if (bar && bar->from <= block->blkno)
		return true;
	return hash_search(examine_bar_table, &database, HASH_FIND, NULL) != NULL;
}

/*
 * Lift the bars whose records have been replayed.  The file may be a new one, or
 * have lost segments, so what smgr has open is closed.
 */
static void
examine_lift_bars(XLogRecPtr replaying)
{
	while (!dlist_is_empty(&examine_bars))
	{
		XLogExamineBar *bar = dlist_head_element(XLogExamineBar, link, &examine_bars);

		if (bar->until >= replaying)
			break;
		if (RelFileNumberIsValid(bar->rlocator.relNumber))
			smgrrelease(smgropen(bar->rlocator, INVALID_PROC_NUMBER));
		else
			smgrreleaseall();
		dlist_delete(&bar->link);
		hash_search(examine_bar_table, &bar->rlocator, HASH_REMOVE, NULL);
	}

	/* the same for those that we don't know of */
	if (!XLogRecPtrIsInvalid(examine_missed) && examine_missed < replaying)
	{
		smgrreleaseall();
		examine_missed = InvalidXLogRecPtr;
	}
}

/* ---------------------------------------------------------------------
 * Blocks
 * ---------------------------------------------------------------------
 */

/*
 * The place of a block in the table of blocks that will be rebuilt.
 */
static inline XLogRecPtr *
examine_rebuilt_at(const DecodedBkpBlock *block)
{
	uint32		hash = hash_combine(murmurhash32(block->blkno),
									murmurhash32(block->rlocator.relNumber));

	return &examine_rebuilt[hash % EXAMINE_REBUILT];
}

/*
 * If redo of a record rebuilds a block without reading it, note that, also if
 * there is an image that is for consistency checks only.
 */
static void
examine_note_rebuilt(const DecodedBkpBlock *block, XLogRecPtr lsn)
{
	if ((block->has_image && block->apply_image) ||
		(block->flags & BKPBLOCK_WILL_INIT) != 0)
		*examine_rebuilt_at(block) = lsn;
}

/*
 * Return whether we have just asked for the block.  If not, remember it as one that
 * we have asked for.
 */
static bool
examine_is_repeated(const DecodedBkpBlock *block)
{
	for (int i = 0; i < EXAMINE_RECENT; i++)
	{
		if (examine_recent_block[i] == block->blkno &&
			RelFileLocatorEquals(examine_recent_rlocator[i], block->rlocator))
			return true;
	}
	examine_recent_block[examine_recent_next] = block->blkno;
	examine_recent_rlocator[examine_recent_next] = block->rlocator;
	examine_recent_next = (examine_recent_next + 1) % EXAMINE_RECENT;
	return false;
}

/*
 * Start a read of a block that the record refers to, if redo will need
 * it, and if it can be read before redo has come there.  Returns whether a read
 * was started.
 */
static bool
examine_block(const DecodedXLogRecord *record, DecodedBkpBlock *block)
{
	XLogRecPtr	replaying = examine_reader->ReadRecPtr;
	PrefetchBufferResult result;

	/* redo does not read these */
	if (block->has_image || XLogExamineIsBareHint(record, block))
	{
		examine_counts.skip_fpw++;
		return false;
	}

	/* nor these, or they may be torn by now */
	if ((block->flags & BKPBLOCK_WILL_INIT) != 0 ||
		*examine_rebuilt_at(block) >= replaying ||
		examine_missed >= replaying)
	{
		examine_counts.skip_init++;
		return false;
	}

	if (examine_is_barred(block))
	{
		examine_counts.skip_new++;
		return false;
	}
	if (examine_is_repeated(block))
	{
		examine_counts.skip_rep++;
		return false;
	}

	result = PrefetchSharedBuffer(smgropen(block->rlocator, INVALID_PROC_NUMBER),
								  block->forknum, block->blkno);
	if (BufferIsValid(result.recent_buffer))
	{
		examine_counts.hit++;
		block->prefetch_buffer = result.recent_buffer;
		return false;
	}
	if (!result.initiated_io)
	{
		/* The file, or this segment of it, does not exist. */
		if ((io_direct_flags & IO_DIRECT_DATA) == 0)
		{
			examine_bar(&block->rlocator, block->blkno, record->lsn);
			examine_counts.skip_new++;
		}
		return false;
	}

	examine_counts.prefetch++;
	examine_read_started(block);
	return true;
}

/*
 * Look at the blocks of a record.  When as many reads have been started as may
 * be, the record is passed on all the same, so that redo does not have to wait for
 * it; but what it rebuilds must be known.
 */
static void
examine_record(DecodedXLogRecord *record, uint32 max_reads)
{
	XLogExamined examined = {record->lsn, 0, 0};

	examine_record_bars(record);

	for (int i = 0; i <= record->max_block_id; i++)
	{
		DecodedBkpBlock *block = &record->blocks[i];

		if (!block->in_use)
			continue;
		Assert(!BufferIsValid(block->prefetch_buffer));
		examined.nblocks++;

		/* only the main fork, as in xlogprefetcher.c */
		if (block->forknum != MAIN_FORKNUM)
			continue;
		/* redo only locks it, and may not read it: it may be torn */
		if (record->header.xl_rmid == RM_HASH_ID &&
			hash_xlog_only_locks(record->header.xl_info, i))
			continue;
		examine_note_rebuilt(block, record->lsn);
		if (examine_nreads + examined.nreads < max_reads &&
			examine_block(record, block))
			examined.nreads++;
	}

	if (examined.nblocks == 0)
		return;
	Assert((examine_head + 1) % examine_window_size != examine_tail);
	examine_window[examine_head] = examined;
	examine_head = (examine_head + 1) % examine_window_size;
	examine_nblocks += examined.nblocks;
	examine_nreads += examined.nreads;
}

/*
 * Take out of the window what has been replayed.
 */
static void
examine_complete(XLogRecPtr replayed_up_to)
{
	while (examine_tail != examine_head &&
		   examine_window[examine_tail].lsn < replayed_up_to)
	{
		examine_nblocks -= examine_window[examine_tail].nblocks;
		examine_nreads -= examine_window[examine_tail].nreads;
		examine_tail = (examine_tail + 1) % examine_window_size;
	}
}

/*
 * Show in pg_stat_recovery_prefetch what has been done.
 */
static void
examine_report(void)
{
	examine_counts.wal_distance = examine_reader->decode_queue_tail ?
		examine_reader->decode_queue_tail->lsn -
		examine_reader->decode_queue_head->lsn : 0;
	examine_counts.block_distance = examine_nblocks;
	examine_counts.io_depth = examine_nreads;
	XLogPrefetchAddCounts(&examine_counts);
	memset(&examine_counts, 0, sizeof(examine_counts));
}

/*
 * Decode and examine records until the decode buffer is full, enough reads have
 * been started, there is no more WAL, or the callback says stop.  Records before
 * 'replayed_up_to' have been replayed.
 *
 * The callback has been called for all records that were decoded.
 */
void
XLogExamineAhead(XLogRecPtr replayed_up_to)
{
	bool		enabled = examine_enabled();
	uint32		max_reads = Min(maintenance_io_concurrency * EXAMINE_READS_MULTIPLIER,
								Max(NBuffers / EXAMINE_BUFFERS_SHARE, 1));
	DecodedXLogRecord *record;

	examine_lift_bars(replayed_up_to);
	examine_complete(replayed_up_to);

	while (!enabled || (examine_nreads < max_reads &&
						examine_nblocks < examine_window_size - 1))
	{
		record = XLogReadAhead(examine_reader, true);
		if (record == NULL)
			break;
		Assert(record->lsn > examine_reader->ReadRecPtr);
		if (enabled)
			examine_record(record, max_reads);
		else
			examine_missed = record->lsn;
		if (!examine_record_done(record))
			break;
	}

	examine_report();
}
