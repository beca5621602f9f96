/*-------------------------------------------------------------------------
 *
 * xlogblockfilter.c
 *		Choosing blocks of WAL that another process may read ahead of redo.
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
#define BLOCKFILTER_READS_MULTIPLIER	64
#define BLOCKFILTER_BUFFERS_SHARE	8

/* Block references to look ahead, at most: 1 MB of memory for the window */
#define BLOCKFILTER_MAX_BLOCKS		65536

/*
 * Size of the table of blocks that records not replayed yet will rebuild: much
 * more than there are blocks in a queue of the default size, as two blocks in
 * one place cost some prefetching.
 */
#define BLOCKFILTER_REBUILT			16384

/* Blocks asked for lately, which we need not ask for again */
#define BLOCKFILTER_RECENT			4

#ifdef USE_PREFETCH
#define blockfilter_enabled() \
	(recovery_prefetch != RECOVERY_PREFETCH_OFF && \
	 maintenance_io_concurrency > 0 && !XLogBlockFilterSuspended)
#else
#define blockfilter_enabled() false
#endif

bool		XLogBlockFilterSuspended = false;

/* A record that refers to blocks, and may not have been replayed */
typedef struct XLogBlockFilterRecord
{
	XLogRecPtr	lsn;
	uint16		nblocks;		/* it refers to */
	uint16		nreads;			/* of which reads were started */
} XLogBlockFilterRecord;

/*
 * Of a relation, or of a database, no block from a certain one on may be read
 * until a record has been replayed that creates, replaces or truncates files.
 */
typedef struct XLogBlockFilterBar
{
	RelFileLocator rlocator;	/* relation, or just the database */
	BlockNumber from;
	XLogRecPtr	until;
	dlist_node	link;			/* in blockfilter_bars, by "until" */
} XLogBlockFilterBar;

static XLogReaderState *blockfilter_reader;
static XLogBlockFilterRecordCallback blockfilter_record_done;
static XLogBlockFilterReadCallback blockfilter_read_started;

/* The window: a ring, with the sums of what is in it */
static XLogBlockFilterRecord *blockfilter_window;
static uint32 blockfilter_window_size;
static uint32 blockfilter_head = 0;
static uint32 blockfilter_tail = 0;
static uint32 blockfilter_nblocks = 0;
static uint32 blockfilter_nreads = 0;

static HTAB *blockfilter_bar_table;
static dlist_head blockfilter_bars = DLIST_STATIC_INIT(blockfilter_bars);

/* By hash of a block, the last record that rebuilds it */
static XLogRecPtr *blockfilter_rebuilt;

/*
 * The last record that was passed on without a look at its blocks, because
 * prefetching was off, or of which it is not known which files it changes.  Until it has
 * been replayed we don't know of all bars and rebuilt blocks, so no read is started
 * for any block.
 */
static XLogRecPtr blockfilter_missed = InvalidXLogRecPtr;

static RelFileLocator blockfilter_recent_rlocator[BLOCKFILTER_RECENT];
static BlockNumber blockfilter_recent_block[BLOCKFILTER_RECENT];
static uint32 blockfilter_recent_next = 0;

static XLogPrefetchCounts blockfilter_counts;

/*
 * Prepare to choose blocks of the records that a reader decodes.
 *
 * 'record_done' is called for each record, in order, when its blocks have been
 * looked at; it returns false to stop for now.  'read_started' is called before
 * that, for each of its blocks that the kernel has been asked to prefetch.
 */
void
XLogBlockFilterInit(XLogReaderState *reader, size_t decode_buffer_size,
					XLogBlockFilterRecordCallback record_done,
					XLogBlockFilterReadCallback read_started)
{
	HASHCTL		ctl;

	blockfilter_reader = reader;
	blockfilter_record_done = record_done;
	blockfilter_read_started = read_started;

	/* each record in it has a block, and the last one may go beyond the limit */
	blockfilter_window_size = Min(decode_buffer_size / sizeof(DecodedBkpBlock),
								  BLOCKFILTER_MAX_BLOCKS) + 1;
	blockfilter_window = palloc(sizeof(XLogBlockFilterRecord) *
								blockfilter_window_size);

	ctl.keysize = sizeof(RelFileLocator);
	ctl.entrysize = sizeof(XLogBlockFilterBar);
	blockfilter_bar_table = hash_create("relations not to be read ahead of redo",
										1024, &ctl, HASH_ELEM | HASH_BLOBS);
	blockfilter_rebuilt = palloc0(sizeof(XLogRecPtr) * BLOCKFILTER_REBUILT);
}

/*
 * Forget about reads that were started: settings have been loaded, or all
 * has been replayed.
 */
void
XLogBlockFilterForgetReads(void)
{
	blockfilter_head = blockfilter_tail = 0;
	blockfilter_nblocks = blockfilter_nreads = 0;
}

/*
 * Go on with the record at 'next', the end of the one at 'prev'.
 */
void
XLogBlockFilterContinue(XLogRecPtr prev, XLogRecPtr next)
{
	XLogBlockFilterForgetReads();
	XLogContinueRead(blockfilter_reader, prev, next);
}

/*
 * Redo is at the record at 'replaying': release the space of those before it.
 */
void
XLogBlockFilterRelease(XLogRecPtr replaying)
{
	char	   *errmsg;

	while (blockfilter_reader->ReadRecPtr < replaying)
	{
		if (XLogNextRecord(blockfilter_reader, &errmsg) == NULL)
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
blockfilter_add_bar(const RelFileLocator *rlocator, BlockNumber from,
					XLogRecPtr until)
{
	XLogBlockFilterBar *bar;
	bool		found;

	bar = hash_search(blockfilter_bar_table, rlocator, HASH_ENTER, &found);
	if (found)
	{
		/* a record may come twice, if it was not taken the first time */
		from = Min(from, bar->from);
		until = Max(until, bar->until);
		dlist_delete(&bar->link);
	}
	bar->from = from;
	bar->until = until;
	dlist_push_tail(&blockfilter_bars, &bar->link);
}

/*
 * If a record does something to files as a whole, bar them.
 */
static void
blockfilter_bar_files(DecodedXLogRecord *record)
{
	uint8		info = record->header.xl_info & ~XLR_INFO_MASK;

	if (record->header.xl_rmid == RM_DBASE_ID &&
		info == XLOG_DBASE_CREATE_FILE_COPY)
	{
		xl_dbase_create_file_copy_rec *xlrec =
			(xl_dbase_create_file_copy_rec *) record->main_data;
		RelFileLocator database = {InvalidOid, xlrec->db_id, InvalidRelFileNumber};

		blockfilter_add_bar(&database, 0, record->lsn);
	}
	else if (record->header.xl_rmid == RM_SMGR_ID && info == XLOG_SMGR_CREATE)
	{
		xl_smgr_create *xlrec = (xl_smgr_create *) record->main_data;

		if (xlrec->forkNum == MAIN_FORKNUM)
			blockfilter_add_bar(&xlrec->rlocator, 0, record->lsn);
	}
	else if (record->header.xl_rmid == RM_SMGR_ID && info == XLOG_SMGR_TRUNCATE)
	{
		xl_smgr_truncate *xlrec = (xl_smgr_truncate *) record->main_data;

		blockfilter_add_bar(&xlrec->rlocator, xlrec->blkno, record->lsn);
	}
	else if (RmgrIdIsCustom(record->header.xl_rmid))
	{
		/* an extension's, which may write to files past shared buffers */
		blockfilter_missed = record->lsn;
	}
}

static bool
blockfilter_is_barred(const DecodedBkpBlock *block)
{
	RelFileLocator database = {InvalidOid, block->rlocator.dbOid, InvalidRelFileNumber};
	XLogBlockFilterBar *bar;

	if (dlist_is_empty(&blockfilter_bars))
		return false;
	bar = hash_search(blockfilter_bar_table, &block->rlocator, HASH_FIND, NULL);
	if (bar && bar->from <= block->blkno)
		return true;
	return hash_search(blockfilter_bar_table, &database, HASH_FIND, NULL) != NULL;
}

/*
 * Lift the bars whose records have been replayed.  The file may be a new one, or
 * have lost segments, so what smgr has open is closed.
 */
static void
blockfilter_lift_bars(XLogRecPtr replaying)
{
	while (!dlist_is_empty(&blockfilter_bars))
	{
		XLogBlockFilterBar *bar = dlist_head_element(XLogBlockFilterBar, link,
													 &blockfilter_bars);

		if (bar->until >= replaying)
			break;
		if (RelFileNumberIsValid(bar->rlocator.relNumber))
			smgrrelease(smgropen(bar->rlocator, INVALID_PROC_NUMBER));
		else
			smgrreleaseall();
		dlist_delete(&bar->link);
		hash_search(blockfilter_bar_table, &bar->rlocator, HASH_REMOVE, NULL);
	}

	/* the same for those that we don't know of */
	if (!XLogRecPtrIsInvalid(blockfilter_missed) && blockfilter_missed < replaying)
	{
		smgrreleaseall();
		blockfilter_missed = InvalidXLogRecPtr;
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
blockfilter_rebuilt_at(const DecodedBkpBlock *block)
{
	uint32		hash = hash_combine(murmurhash32(block->blkno),
									murmurhash32(block->rlocator.relNumber));

	return &blockfilter_rebuilt[hash % BLOCKFILTER_REBUILT];
}

/*
 * If redo of a record rebuilds a block without reading it, note that, also if
 * there is an image that is for consistency checks only.
 */
static void
blockfilter_note_rebuilt(const DecodedBkpBlock *block, XLogRecPtr lsn)
{
	if ((block->has_image && block->apply_image) ||
		(block->flags & BKPBLOCK_WILL_INIT) != 0)
		*blockfilter_rebuilt_at(block) = lsn;
}

/*
 * Return whether we have just asked for the block.  If not, remember it as one that
 * we have asked for.
 */
static bool
blockfilter_is_repeated(const DecodedBkpBlock *block)
{
	for (int i = 0; i < BLOCKFILTER_RECENT; i++)
	{
		if (blockfilter_recent_block[i] == block->blkno &&
			RelFileLocatorEquals(blockfilter_recent_rlocator[i], block->rlocator))
			return true;
	}
	blockfilter_recent_block[blockfilter_recent_next] = block->blkno;
	blockfilter_recent_rlocator[blockfilter_recent_next] = block->rlocator;
	blockfilter_recent_next = (blockfilter_recent_next + 1) % BLOCKFILTER_RECENT;
	return false;
}

/*
 * Start a read of a block that the record refers to, if redo will need
 * it, and if it can be read before redo has come there.  Returns whether a read
 * was started.
 */
static bool
blockfilter_start_read(const DecodedXLogRecord *record, DecodedBkpBlock *block)
{
	XLogRecPtr	replaying = blockfilter_reader->ReadRecPtr;
	PrefetchBufferResult result;

	/* redo does not read these */
	if (block->has_image || XLogBlockFilterIsBareHint(record, block))
	{
		blockfilter_counts.skip_fpw++;
		return false;
	}

	/* nor these, or they may be torn by now */
	if ((block->flags & BKPBLOCK_WILL_INIT) != 0 ||
		*blockfilter_rebuilt_at(block) >= replaying ||
		blockfilter_missed >= replaying)
	{
		blockfilter_counts.skip_init++;
		return false;
	}

	if (blockfilter_is_barred(block))
	{
		blockfilter_counts.skip_new++;
		return false;
	}
	if (blockfilter_is_repeated(block))
	{
		blockfilter_counts.skip_rep++;
		return false;
	}

	result = PrefetchSharedBuffer(smgropen(block->rlocator, INVALID_PROC_NUMBER),
								  block->forknum, block->blkno);
	if (BufferIsValid(result.recent_buffer))
	{
		blockfilter_counts.hit++;
		block->prefetch_buffer = result.recent_buffer;
		return false;
	}
	if (!result.initiated_io)
	{
		/* The file, or this segment of it, does not exist. */
		if ((io_direct_flags & IO_DIRECT_DATA) == 0)
		{
			blockfilter_add_bar(&block->rlocator, block->blkno, record->lsn);
			blockfilter_counts.skip_new++;
		}
		return false;
	}

	blockfilter_counts.prefetch++;
	blockfilter_read_started(block);
	return true;
}

/*
 * Look at the blocks of a record.  When as many reads have been started as may
 * be, the record is passed on all the same, so that redo does not have to wait for
 * it; but what it rebuilds must be known.
 */
static void
blockfilter_check_record(DecodedXLogRecord *record, uint32 max_reads)
{
	XLogBlockFilterRecord entry = {record->lsn, 0, 0};

	blockfilter_bar_files(record);

	for (int i = 0; i <= record->max_block_id; i++)
	{
		DecodedBkpBlock *block = &record->blocks[i];

		if (!block->in_use)
			continue;
		Assert(!BufferIsValid(block->prefetch_buffer));
		entry.nblocks++;

		/* only the main fork, as in xlogprefetcher.c */
		if (block->forknum != MAIN_FORKNUM)
			continue;
		/* redo only locks it, and may not read it: it may be torn */
		if (record->header.xl_rmid == RM_HASH_ID &&
			hash_xlog_only_locks(record->header.xl_info, i))
			continue;
		blockfilter_note_rebuilt(block, record->lsn);
		if (blockfilter_nreads + entry.nreads < max_reads &&
			blockfilter_start_read(record, block))
			entry.nreads++;
	}

	if (entry.nblocks == 0)
		return;
	Assert((blockfilter_head + 1) % blockfilter_window_size != blockfilter_tail);
	blockfilter_window[blockfilter_head] = entry;
	blockfilter_head = (blockfilter_head + 1) % blockfilter_window_size;
	blockfilter_nblocks += entry.nblocks;
	blockfilter_nreads += entry.nreads;
}

/*
 * Take out of the window what has been replayed.
 */
static void
blockfilter_complete(XLogRecPtr replayed_up_to)
{
	while (blockfilter_tail != blockfilter_head &&
		   blockfilter_window[blockfilter_tail].lsn < replayed_up_to)
	{
		blockfilter_nblocks -= blockfilter_window[blockfilter_tail].nblocks;
		blockfilter_nreads -= blockfilter_window[blockfilter_tail].nreads;
		blockfilter_tail = (blockfilter_tail + 1) % blockfilter_window_size;
	}
}

/*
 * Show in pg_stat_recovery_prefetch what has been done.
 */
static void
blockfilter_report(void)
{
	blockfilter_counts.wal_distance = blockfilter_reader->decode_queue_tail ?
		blockfilter_reader->decode_queue_tail->lsn -
		blockfilter_reader->decode_queue_head->lsn : 0;
	blockfilter_counts.block_distance = blockfilter_nblocks;
	blockfilter_counts.io_depth = blockfilter_nreads;
	XLogPrefetchAddCounts(&blockfilter_counts);
	memset(&blockfilter_counts, 0, sizeof(blockfilter_counts));
}

/*
 * Decode records and choose their blocks until the decode buffer is full, enough
 * reads have been started, there is no more WAL, or the callback says stop.
 * Records before 'replayed_up_to' have been replayed.
 *
 * The callback has been called for all records that were decoded.
 */
void
XLogBlockFilterAdvance(XLogRecPtr replayed_up_to)
{
	bool		enabled = blockfilter_enabled();
	uint32		max_reads = Min(maintenance_io_concurrency * BLOCKFILTER_READS_MULTIPLIER,
								Max(NBuffers / BLOCKFILTER_BUFFERS_SHARE, 1));
	DecodedXLogRecord *record;

	blockfilter_lift_bars(replayed_up_to);
	blockfilter_complete(replayed_up_to);

	while (!enabled || (blockfilter_nreads < max_reads &&
						blockfilter_nblocks < blockfilter_window_size - 1))
	{
		record = XLogReadAhead(blockfilter_reader, true);
		if (record == NULL)
			break;
		Assert(record->lsn > blockfilter_reader->ReadRecPtr);
		if (enabled)
			blockfilter_check_record(record, max_reads);
		else
			blockfilter_missed = record->lsn;
		if (!blockfilter_record_done(record))
			break;
	}

	blockfilter_report();
}
