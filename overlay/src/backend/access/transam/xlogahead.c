/*-------------------------------------------------------------------------
 *
 * xlogahead.c
 *		Looking far ahead in WAL for blocks that redo is going to read.
 *
 * WAL without full-page images is small, but redo has to read each page that
 * it changes.  The WAL pipeline reads them in the order of WAL, some hundred
 * blocks ahead, so each is a request of its own.  Where storage is sold by
 * requests per second, that takes longer than all else in recovery.
 *
 * The same pages in the order of the files are few long reads.  So the pipeline's
 * process first runs through a window of WAL, up to 64 MB, only to collect the
 * blocks that will have to be read.  It sorts them, joins neighbors to runs, and
 * tells the kernel to read the runs, of several files by turns.  Then it decodes
 * the window and reads its blocks as ever (see xlogpipeline.c), and finds them in
 * the kernel's cache.  When it is half-way through a window, it begins with the
 * next one.
 *
 *		  |<-------- window -------->|<------- next window ------->|
 *		--+------------+-------------+-----------------------------+--
 *			  ^        ^             ^				 ^
 *			redo  ahead_due_at	ahead_hold_at  ahead_scanned_to
 *
 * Why into the kernel's cache
 * ---------------------------
 * What is there affects only speed.  No process looks at a page before the
 * pipeline or redo reads it in its turn: a torn page that an image is going to
 * rebuild, a file that will be dropped, truncated or made anew before it is needed,
 * a block that does not exist yet, or one between two others that is not needed.
 * Pages in shared buffers would have to be kept right across all of that.  Pages
 * that are never needed push out only what the kernel thinks useless.
 * Hence there is no rule here that correctness depends on.  The price is a
 * copy from one cache to the other, which redo does not wait for, and that there
 * is no looking ahead with direct I/O, or without posix_fadvise().
 *
 * What is not worth a read
 * ------------------------
 * - a block that is rebuilt by the first record in sight that refers to it, or has
 *   been collected from that one: blocks of this window and the one before are
 *   remembered;
 * - a block in shared buffers.  Those of windows before the last are there, or
 *   have been and had to go;
 * - what is beyond the end of a file, or in a file that does not exist.  The
 *   kernel, and smgr, pass over these.
 *
 * How far to look
 * ---------------
 * - Decoding waits until the first window has been announced (that is, the
 *   kernel has been told), or the blocks that it asks for, one by one, would tear
 *   up the runs.  Therefore the first one is smaller, in case
 *   storage is fast and redo need not have waited.
 * - The blocks of a window, without gaps, fill at most an eighth of the kernel's
 *   cache, as two windows may be under way, with gaps.  How large that is follows
 *   from effective_cache_size; it is taken to be as large as shared buffers at least.
 *   If it is smaller, the kernel forgets some pages, and they are read once more.
 * - If reading WAL costs more than looking ahead saves, that is if there are
 *   images or if most blocks are in shared buffers, the window ends early, and the
 *   next one is further on, with each failure twice as far.
 *
 * How much to ask for at once
 * ---------------------------
 * Whatever is asked for delays all reads that come later: those of redo for other
 * blocks, and of queries on a standby.  So no more is under way than
 * maintenance_io_concurrency requests, as many as when blocks are read one by one, and
 * no more bytes than take storage as long as these.  A run has arrived when
 * its last byte can be read, for which the process waits.
 *
 * On a standby WAL is handed over in ranges that are there already.  One that keeps up
 * gets ranges too short to look ahead in.  With recovery_min_apply_delay
 * blocks would be read long before they are needed.
 *
 * Work is done in steps of some milliseconds, as the process has to handle
 * interrupts, and to decode WAL for redo.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/xlogahead.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogahead.h"
#include "access/xlogblockfilter.h"
#include "access/xlogprefetcher.h"
#include "access/xlogreader.h"
#include "access/xlogrecovery.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/*
 * Bytes of WAL in the first window, and in later ones.  Without images
 * 16 MB change some ten thousand blocks, and take less than 0.1 s to look at.
 */
#define AHEAD_FIRST_WINDOW	(16 * 1024 * 1024)
#define AHEAD_MAX_WINDOW	(64 * 1024 * 1024)

/* A range that is shorter has few blocks to sort. */
#define AHEAD_MIN_RANGE		(512 * 1024)

/* Upper limit of the blocks in a window: some 8 MB of memory */
#define AHEAD_MAX_BLOCKS	65536

/*
 * A window is worth its cost if it finds a block in so much WAL.  To decode
 * that much takes less than 100 microseconds, as does a read that is saved, on
 * fast storage.  It is judged when a few MB have been looked at.
 */
#define AHEAD_WORTH			(64 * 1024)
#define AHEAD_JUDGE_AFTER	(4 * 1024 * 1024)

/* How much WAL to pass over after a window that was not */
#define AHEAD_MIN_SKIP		(16 * 1024 * 1024)
#define AHEAD_MAX_SKIP		(1024 * 1024 * 1024)

/*
 * Where requests and bytes are both limited, one request is worth about so many
 * blocks on storage that people rent.
 */
#define AHEAD_REQUEST_BLOCKS	5

/*
 * Blocks that are read for nothing if that makes one run out of two.  If a quarter of
 * a file is needed, gaps of two use both limits up, so longer ones make it slower.
 */
#define AHEAD_GAP			2

/* Longest run: the kernel makes requests of its own size from it. */
#define AHEAD_MAX_RUN		128

/*
 * A large window is announced at so many places at a time.  Each file has
 * requests of its own size: those of a table are small, at random places, those
 * of an index that is needed as a whole are large.  One after the other, first
 * the number of requests is the limit of storage, then the number of bytes;
 * mixed, both are made use of.  A part is large enough for the ends of its runs
 * not to matter.
 */
#define AHEAD_LANES			8
#define AHEAD_MIN_LANE		1024

/* How much to do in a step */
#define AHEAD_STEP_BYTES	(1024 * 1024)
#define AHEAD_STEP_RUNS		32

/* Set of blocks */
typedef struct AheadBlock
{
	BufferTag	tag;
	char		status;
} AheadBlock;

#define SH_PREFIX blockset
#define SH_ELEMENT_TYPE AheadBlock
#define SH_KEY_TYPE BufferTag
#define SH_KEY tag
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) &key, sizeof(BufferTag))
#define SH_EQUAL(tb, a, b) BufferTagsEqual(&a, &b)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* A part of the blocks to be announced, and where to go on in it */
typedef struct AheadLane
{
	int			first;
	int			next;
	int			end;
} AheadLane;

/* A run of blocks that the kernel has been told to read, and may not have read yet */
typedef struct AheadRun
{
	BufferTag	last;			/* its last block */
	int			requests;		/* that it is worth */
} AheadRun;

typedef enum AheadPhase
{
	AHEAD_OFF,					/* nothing to look at in this range */
	AHEAD_WAITING,				/* until decoding has come to ahead_due_at */
	AHEAD_SCANNING,				/* collecting blocks */
	AHEAD_ANNOUNCING,			/* telling the kernel */
} AheadPhase;

XLogAheadStats xlog_ahead_stats;

static AheadPhase ahead_phase = AHEAD_OFF;
static XLogRecPtr ahead_hold_at = PG_UINT64_MAX;	/* how far WAL may be
													 * decoded */
static XLogRecPtr ahead_due_at; /* when decoding is here, begin a window */

/* The reader, which uses a file of its own */
static TimeLineID ahead_reader_tli;
static XLogReaderState *ahead_reader = NULL;
static XLogPageFile ahead_file = {.fd = -1};

/* The window, and the one before, in which decoding may still be */
static XLogRecPtr ahead_known_from;
static XLogRecPtr ahead_window_start;
static XLogRecPtr ahead_scanned_to;
static uint64 ahead_window_bytes;	/* that may be in it */
static uint64 ahead_skip_bytes = AHEAD_MIN_SKIP;	/* to pass over if it is
													 * not worth while */
static bool ahead_worth_while;
static bool ahead_wal_ended;
static blockset_hash *ahead_seen = NULL;
static blockset_hash *ahead_seen_before = NULL;
static BufferTag *ahead_blocks = NULL;	/* to be announced */
static int	ahead_nblocks;
static int	ahead_blocks_max;
static AheadLane ahead_lanes[AHEAD_LANES];
static int	ahead_nlanes;

/* What is under way: a ring, and the sum of it */
static AheadRun ahead_runs[MAX_IO_CONCURRENCY];
static int	ahead_oldest_run = 0;
static int	ahead_nruns = 0;
static int	ahead_requests = 0;

/*
 * Return whether looking ahead is of use.
 */
static bool
ahead_possible(void)
{
#ifdef USE_PREFETCH
	return recovery_prefetch != RECOVERY_PREFETCH_OFF &&
		maintenance_io_concurrency > 0 &&
		(io_direct_flags & IO_DIRECT_DATA) == 0 &&
		!XLogBlockFilterSuspended;
#else
	return false;
#endif
}

/*
 * Return whether WAL is kept waiting before it is redone, so that its blocks are not
 * needed for long.  A promotion ends that.
 */
static bool
ahead_is_delayed(void)
{
	return recovery_min_apply_delay > 0 &&
		GetRecoveryState() == RECOVERY_STATE_ARCHIVE && !PromoteIsTriggered();
}

/*
 * Read a page of WAL, from a file that stays open.  Returns -1 if it cannot be opened.
 */
ssize_t
XLogAheadReadPage(XLogPageFile *file, TimeLineID tli, XLogRecPtr page,
				  char *buf)
{
	instr_time	io_start;
	ssize_t		r;

	if (!XLByteInSeg(page, file->segno, wal_segment_size))
		XLogAheadCloseFile(file);
	if (file->fd < 0)
	{
		char		path[MAXPGPATH];

		XLByteToSeg(page, file->segno, wal_segment_size);
		XLogFilePath(path, tli, file->segno, wal_segment_size);
		file->fd = BasicOpenFile(path, O_RDONLY | PG_BINARY);
		if (file->fd < 0)
			return -1;
	}

	io_start = pgstat_prepare_io_time(track_wal_io_timing);
	pgstat_report_wait_start(WAIT_EVENT_WAL_READ);
	r = pg_pread(file->fd, buf, XLOG_BLCKSZ,
				 (off_t) XLogSegmentOffset(page, wal_segment_size));
	pgstat_report_wait_end();
	if (r > 0)
		pgstat_count_io_op_time(IOOBJECT_WAL, IOCONTEXT_NORMAL, IOOP_READ,
								io_start, 1, r);
	return r;
}

void
XLogAheadCloseFile(XLogPageFile *file)
{
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
}

/*
 * XLogReaderRoutine->page_read callback.  What cannot be read is not reported,
 * as the pipeline process will meet it again when it decodes the range.
 */
static int
ahead_page_read(XLogReaderState *state, XLogRecPtr targetPagePtr, int reqLen,
				XLogRecPtr targetRecPtr, char *readBuf)
{
	if (XLogAheadReadPage(&ahead_file, ahead_reader_tli, targetPagePtr,
						  readBuf) != XLOG_BLCKSZ)
		return XLREAD_FAIL;

	state->seg.ws_tli = ahead_reader_tli;
	return XLOG_BLCKSZ;
}

static void
ahead_initialize(void)
{
	static XLogReaderRoutine routine = {.page_read = ahead_page_read};

	ahead_reader = XLogReaderAllocate(wal_segment_size, NULL, &routine, NULL);
	if (ahead_reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	ahead_reader->system_identifier = GetSystemIdentifier();

	ahead_seen = blockset_create(TopMemoryContext, 1024, NULL);
	ahead_seen_before = blockset_create(TopMemoryContext, 1024, NULL);
	ahead_blocks = MemoryContextAlloc(TopMemoryContext,
									  AHEAD_MAX_BLOCKS * sizeof(BufferTag));
}

/*
 * WAL from the record at 'start' up to 'limit' (PG_UINT64_MAX: to its end) is
 * going to be decoded by this process, from segment files of timeline 'tli'.
 *
 * What there is after 'limit' is looked at as well.  If it is not valid there, or
 * not yet, windows end.
 */
void
XLogAheadBegin(XLogRecPtr start, XLogRecPtr limit, TimeLineID tli)
{
	XLogRecPtr	from = start;

	/* Go on with what is known from the last range. */
	if (tli == ahead_reader_tli && start >= ahead_known_from)
	{
		if (ahead_phase != AHEAD_OFF)
			return;
		from = Max(start, ahead_scanned_to);
	}

	XLogAheadEnd();
	if (!ahead_possible() || limit < from || limit - from < AHEAD_MIN_RANGE)
		return;

	if (ahead_reader == NULL)
		ahead_initialize();

	ahead_reader_tli = tli;
	ahead_window_bytes = AHEAD_FIRST_WINDOW;
	ahead_scanned_to = InvalidXLogRecPtr;
	blockset_reset(ahead_seen);
	blockset_reset(ahead_seen_before);

	ahead_known_from = ahead_window_start = start;
	ahead_due_at = ahead_hold_at = from;
	ahead_phase = AHEAD_WAITING;
}

/*
 * The range has ended, and files may be replaced.
 */
void
XLogAheadPause(void)
{
	XLogAheadCloseFile(&ahead_file);
}

/*
 * There is nothing more to look at.
 */
void
XLogAheadEnd(void)
{
	XLogAheadPause();
	ahead_hold_at = PG_UINT64_MAX;
	ahead_phase = AHEAD_OFF;
}

/*
 * Return whether decoding must wait at 'decoded', the end of a record.
 */
bool
XLogAheadHolds(XLogRecPtr decoded)
{
	return decoded >= ahead_hold_at;
}

static bool
ahead_is_buffered(BufferTag *tag)
{
	uint32		hashcode = BufTableHashCode(tag);
	LWLock	   *lock = BufMappingPartitionLock(hashcode);
	int			buf_id;

	LWLockAcquire(lock, LW_SHARED);
	buf_id = BufTableLookup(tag, hashcode);
	LWLockRelease(lock);
	return buf_id >= 0;
}

/*
 * Collect the blocks of a record that redo has to read.
 */
static void
ahead_collect(DecodedXLogRecord *record)
{
	for (int i = 0; i <= record->max_block_id; i++)
	{
		DecodedBkpBlock *block = &record->blocks[i];
		BufferTag	tag;
		bool		found;

		if (!block->in_use || XLogBlockFilterIsBareHint(record, block))
			continue;

		InitBufferTag(&tag, &block->rlocator, block->forknum, block->blkno);
		(void) blockset_insert(ahead_seen, tag, &found);
		if (found || blockset_lookup(ahead_seen_before, tag) != NULL)
			continue;

		/* Redo rebuilds it without reading it. */
		if ((block->has_image && block->apply_image) ||
			(block->flags & BKPBLOCK_WILL_INIT))
			continue;

		if (ahead_nblocks < ahead_blocks_max && !ahead_is_buffered(&tag))
			ahead_blocks[ahead_nblocks++] = tag;
	}
}

/*
 * Order of blocks on storage, as far as we know
 */
static int
ahead_compare(const void *a, const void *b)
{
	return buffertag_comparator(a, b);
}

/*
 * Return how many blocks may be in a window.
 */
static int
ahead_max_blocks(void)
{
	int			kernel_cache = Max(effective_cache_size - NBuffers, NBuffers);

	return Min(kernel_cache / 8, AHEAD_MAX_BLOCKS);
}

static void
ahead_begin_window(XLogRecPtr decoded)
{
	blockset_hash *forgotten = ahead_seen_before;

	/* After WAL that was passed over, go on where decoding is. */
	if (decoded > ahead_scanned_to)
	{
		XLogBeginRead(ahead_reader, decoded);
		ahead_scanned_to = decoded;
		ahead_hold_at = decoded;
	}

	ahead_seen_before = ahead_seen;
	ahead_seen = forgotten;
	blockset_reset(ahead_seen);
	ahead_blocks_max = ahead_max_blocks();
	ahead_nblocks = 0;
	ahead_known_from = ahead_window_start;
	ahead_window_start = ahead_scanned_to;
	ahead_worth_while = true;
	ahead_wal_ended = false;
	ahead_phase = AHEAD_SCANNING;
}

/*
 * Divide the blocks, which are sorted, into parts of the same size.
 */
static void
ahead_divide(void)
{
	ahead_nlanes = Max(Min(ahead_nblocks / AHEAD_MIN_LANE, AHEAD_LANES), 1);
	for (int i = 0; i < ahead_nlanes; i++)
	{
		ahead_lanes[i].first = ahead_lanes[i].next = ahead_nblocks * i / ahead_nlanes;
		ahead_lanes[i].end = ahead_nblocks * (i + 1) / ahead_nlanes;
	}
	Assert(ahead_lanes[0].first == 0 &&
		   ahead_lanes[ahead_nlanes - 1].end == ahead_nblocks);
}

/*
 * Return the part of which the least has been announced, NULL if all are done.
 */
static AheadLane *
ahead_next_lane(void)
{
	AheadLane  *result = NULL;

	for (int i = 0; i < ahead_nlanes; i++)
	{
		AheadLane  *lane = &ahead_lanes[i];

		if (lane->next < lane->end &&
			(result == NULL ||
			 lane->next - lane->first < result->next - result->first))
			result = lane;
	}
	return result;
}

/*
 * Collect blocks from some more WAL.
 */
static void
ahead_scan(void)
{
	XLogRecPtr	step_start = ahead_scanned_to;
	bool		complete = false;

	do
	{
		uint64		scanned;
		char	   *errormsg;

		if (XLogReadRecord(ahead_reader, &errormsg) == NULL)
		{
			ahead_wal_ended = true;
			complete = true;
			break;
		}
		ahead_collect(ahead_reader->record);
		ahead_scanned_to = ahead_reader->EndRecPtr;

		scanned = ahead_scanned_to - ahead_window_start;
		if (scanned >= AHEAD_JUDGE_AFTER &&
			scanned / AHEAD_WORTH > ahead_nblocks)
			ahead_worth_while = false;
		complete = !ahead_worth_while || scanned >= ahead_window_bytes ||
			ahead_nblocks == ahead_blocks_max ||
			ahead_seen->members >= AHEAD_MAX_BLOCKS;
	} while (!complete && ahead_scanned_to - step_start < AHEAD_STEP_BYTES);

	xlog_ahead_stats.wal_bytes += ahead_scanned_to - step_start;

	if (complete)
	{
		qsort(ahead_blocks, ahead_nblocks, sizeof(BufferTag), ahead_compare);
		ahead_divide();
		INJECTION_POINT("xlogahead-scanned", NULL);
		ahead_phase = AHEAD_ANNOUNCING;
	}
}

static bool
ahead_same_file(const BufferTag *a, const BufferTag *b)
{
	BufferTag	at_a = *b;

	at_a.blockNum = a->blockNum;
	return BufferTagsEqual(a, &at_a);
}

/*
 * Wait until the oldest run that is under way has been read.
 */
static void
ahead_wait_for_run(void)
{
	AheadRun   *run = &ahead_runs[ahead_oldest_run];
	RelPathStr	relpath;
	char		path[MAXPGPATH];
	int			file;

	Assert(ahead_nruns > 0);

	/*
	 * The file is opened here, and not by smgr, because it may be gone by
	 * now, or shorter; then there is nothing to wait for.
	 */
	relpath = relpathperm(BufTagGetRelFileLocator(&run->last),
						  BufTagGetForkNum(&run->last));
	if (run->last.blockNum < RELSEG_SIZE)
		strlcpy(path, relpath.str, MAXPGPATH);
	else
		snprintf(path, MAXPGPATH, "%s.%u", relpath.str,
				 run->last.blockNum / RELSEG_SIZE);
	file = BasicOpenFile(path, O_RDONLY | PG_BINARY);
	if (file >= 0)
	{
		off_t		end = ((off_t) run->last.blockNum % RELSEG_SIZE + 1) * BLCKSZ;
		char		byte;
		ssize_t		r;

		pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_PREFETCH);
		r = pg_pread(file, &byte, 1, end - 1);
		pgstat_report_wait_end();
		(void) r;
		close(file);
	}

	ahead_requests -= run->requests;
	ahead_oldest_run = (ahead_oldest_run + 1) % MAX_IO_CONCURRENCY;
	ahead_nruns--;
}

/*
 * Return the index after that of the last block of the next run of a part.
 */
static int
ahead_end_of_run(const AheadLane *lane, int max_requests)
{
	const BufferTag *first = &ahead_blocks[lane->next];
	BlockNumber limit = first->blockNum +
		Min(max_requests * AHEAD_REQUEST_BLOCKS, AHEAD_MAX_RUN);
	int			end = lane->next + 1;

	Assert(end <= lane->end);

	while (end < lane->end &&
		   ahead_same_file(first, &ahead_blocks[end]) &&
		   ahead_blocks[end].blockNum - ahead_blocks[end - 1].blockNum <= AHEAD_GAP + 1 &&
		   ahead_blocks[end].blockNum < limit)
		end++;
	return end;
}

/*
 * Have the kernel read the next run of blocks of a part.  Returns false if this
 * must come later, because enough is under way; then some of that has been read.
 */
static bool
ahead_announce_run(AheadLane *lane)
{
	int			max_requests = Max(maintenance_io_concurrency, 1);
	int			end = ahead_end_of_run(lane, max_requests);
	BufferTag  *first = &ahead_blocks[lane->next];
	BufferTag  *last = &ahead_blocks[end - 1];
	int			needed = end - lane->next;
	int			length = last->blockNum - first->blockNum + 1;
	int			requests = (length + AHEAD_REQUEST_BLOCKS - 1) / AHEAD_REQUEST_BLOCKS;
	SMgrRelation reln;
	AheadRun   *run;

	if (ahead_nruns > 0 && ahead_requests + requests > max_requests)
	{
		ahead_wait_for_run();
		return false;
	}

	lane->next = end;
	reln = smgropen(BufTagGetRelFileLocator(first), INVALID_PROC_NUMBER);
	if (smgrprefetch(reln, BufTagGetForkNum(first), first->blockNum, length))
	{
		Assert(ahead_nruns < MAX_IO_CONCURRENCY);
		run = &ahead_runs[(ahead_oldest_run + ahead_nruns++) % MAX_IO_CONCURRENCY];
		run->last = *last;
		run->requests = requests;
		ahead_requests += requests;

		xlog_ahead_stats.runs++;
		xlog_ahead_stats.blocks += needed;
		xlog_ahead_stats.gap_blocks += length - needed;
		xlog_ahead_stats.most_requests = Max(xlog_ahead_stats.most_requests,
											 ahead_requests);
		return true;
	}

	/* The file, or this segment of it, does not exist, nor do later ones. */
	while (lane->next < lane->end &&
		   ahead_same_file(first, &ahead_blocks[lane->next]))
		lane->next++;
	return true;
}

/*
 * All has been announced: let the window be decoded, and say when the next one
 * is due.
 */
static void
ahead_end_window(void)
{
	xlog_ahead_stats.windows++;
	elog(DEBUG1, "looked ahead in WAL from %X/%X to %X/%X, found %d blocks to read",
		 LSN_FORMAT_ARGS(ahead_window_start), LSN_FORMAT_ARGS(ahead_scanned_to),
		 ahead_nblocks);

	if (ahead_wal_ended)
	{
		XLogAheadEnd();
		return;
	}

	ahead_phase = AHEAD_WAITING;
	if (ahead_worth_while)
	{
		ahead_hold_at = ahead_scanned_to;
		ahead_due_at = ahead_window_start +
			(ahead_scanned_to - ahead_window_start) / 2;
		ahead_window_bytes = Min(ahead_window_bytes * 2, AHEAD_MAX_WINDOW);
		ahead_skip_bytes = AHEAD_MIN_SKIP;
	}
	else
	{
		ahead_hold_at = PG_UINT64_MAX;
		ahead_due_at = ahead_scanned_to + ahead_skip_bytes;
		ahead_skip_bytes = Min(ahead_skip_bytes * 2, AHEAD_MAX_SKIP);
	}
}

/*
 * Do some of what is due when WAL has been decoded up to 'decoded', the end of a
 * record.  Returns whether there is more to do.
 */
bool
XLogAheadStep(XLogRecPtr decoded)
{
	AheadLane  *lane;

	switch (ahead_phase)
	{
		case AHEAD_OFF:
			return false;

		case AHEAD_WAITING:
			if (decoded < ahead_due_at)
			{
				Assert(!XLogAheadHolds(decoded));
				return false;
			}
			if (!ahead_possible())
			{
				XLogAheadEnd();
				return true;
			}
			if (ahead_is_delayed())
			{
				ahead_hold_at = PG_UINT64_MAX;
				ahead_due_at = decoded + AHEAD_MIN_RANGE;
				return true;
			}
			ahead_begin_window(decoded);
			break;

		case AHEAD_SCANNING:
			ahead_scan();
			break;

		case AHEAD_ANNOUNCING:
			for (int i = 0; i < AHEAD_STEP_RUNS && (lane = ahead_next_lane()) != NULL; i++)
			{
				if (!ahead_announce_run(lane))
					break;
			}
			if (ahead_next_lane() == NULL)
				ahead_end_window();
			break;
	}
	return true;
}
