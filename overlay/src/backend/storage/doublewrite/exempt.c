/*-------------------------------------------------------------------------
 *
 * exempt.c
 *	  Pages that redo rebuilds, so that they need no double write, or would read.
 *
 * A page may be torn freely if the first WAL record that recovery would meet
 * for its block, counted from its redo pointer, rebuilds the whole page: a
 * full-page image that redo applies, or a record that initialises the page.
 * It must be the first one, because any earlier record would make redo read
 * the torn page.
 *
 * On a server that writes WAL, XLogInsert() reports each record for each page
 * that it refers to.  Beside each buffer we remember the last two redo
 * pointers after which there was a record for the block in it, and whether
 * the first record after each of them rebuilds the page.  This is complete
 * from the time at which the buffer got the block.  What there was before is
 * unknown, unless the block was added to its file in this buffer, or
 * it is remembered from before.  A buffer that gets a block is therefore taken to have had
 * a record that does not rebuild the page, after the newest redo pointer for
 * which any record has been reported.
 *
 * Records of an earlier life of the block, before a truncation, need a check
 * of their own: there is none after redo pointer R if the file was not
 * truncated since R.  Nor has a file of the same name been dropped since R,
 * unless redo did that.
 *
 * The LSN of a page does not tell which records there were: some make redo
 * read a page without changing its LSN.  Nor can all records be followed:
 * some are inserted without the page's content lock, or made from a copy of
 * the page.  Such a page is set apart until its buffer gets another block.
 * Records of hints may go unreported, because with an image they rebuild the
 * page, and without one redo ignores them.
 *
 * Which redo pointers count?  Until the checkpoint under way has drained the
 * stage, every page that is written home will be synced before that
 * checkpoint completes, so a crash that tears it recovers from the last
 * completed one.  After the drain the condition must hold for both redo
 * pointers, until the new checkpoint has completed.  (R2, R5)
 *
 * During recovery the rule is simpler, and covers pages whose records were
 * never reported: if all WAL since the redo pointer was written with
 * full-page images on, the first record of each page changed since then
 * carries one.  Redo itself checks that, by looking for records that should
 * have carried an image.
 *
 * Only main forks are ever exempt.  Redo reads pages of the visibility map
 * and the free space map without their being registered in a record.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/exempt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/hash_xlog.h"
#include "access/heapam_xlog.h"
#include "access/xlog.h"
#include "access/xlogreader.h"
#include "access/xlogrecovery.h"
#include "common/hashfn.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/shmem.h"
#include "utils/injection_point.h"

/*
 * Newest redo pointer that redo has passed; used by the process that does
 * redo
 */
static XLogRecPtr dw_passed_redo = InvalidXLogRecPtr;

/* Last position at which that process has noted that images are off */
static XLogRecPtr dw_remembered_images_off = InvalidXLogRecPtr;

static void
dw_init_records(int buf_id, XLogRecPtr redo)
{
	DWBufferRecords *records = &DWBufferRecordsArray[buf_id];

	MemSet(records, 0, sizeof(DWBufferRecords));
	records->redo = redo;
}

/*
 * Start anew for a buffer that will hold another block.  Any record for that
 * block has been reported before records_known is read here, because the
 * process that inserted it reported it before the block left another buffer.
 *
 * From the end of recovery on, what redo has done counts as reported.  So
 * first ask whether recovery has ended, as it may end between the two reads.
 */
void
DoubleWriteForgetBuffer(int buf_id)
{
	bool		recovery = RecoveryInProgress();

	INJECTION_POINT("doublewrite-forget-buffer", NULL);
	pg_read_barrier();
	dw_init_records(buf_id, recovery ? DW_NOT_NOTED :
					pg_atomic_read_u64(&DWCtl->records_known));
}

/*
 * Start anew for a buffer that holds a block just added to its file.
 */
void
DoubleWriteBufferBorn(int buf_id)
{
	dw_init_records(buf_id, RecoveryInProgress() ? DW_NOT_NOTED : InvalidXLogRecPtr);
}

/*
 * Return where the records of a page are noted, or NULL if it is in private
 * memory, and so does not pass through the stage.
 */
DWBufferRecords *
DoubleWriteRecordsOfPage(const void *page)
{
	Size		offset = (const char *) page - BufferBlocks;

	if ((const char *) page < BufferBlocks || offset >= (Size) NBuffers * BLCKSZ)
		return NULL;
	return &DWBufferRecordsArray[offset / BLCKSZ];
}

/*
 * Note that this process has inserted a WAL record that refers to pages, and
 * return the redo pointer that it lies after.
 *
 * Do this for pages whose records are not followed, too: once such a page is
 * read again, its records are followed.  The content locks are still held, so
 * no block can have moved yet.
 */
XLogRecPtr
DoubleWriteRememberInsertion(void)
{
	XLogRecPtr	redo;
	bool		unused;

	/* as of this process's last insertion */
	GetFullPageWriteInfo(&redo, &unused);
	if (pg_atomic_read_u64(&DWCtl->records_known) < redo)
		pg_atomic_monotonic_advance_u64(&DWCtl->records_known, redo);
	return redo;
}

/*
 * Note the first record for a page after a redo pointer; see
 * DoubleWriteRememberRecord().
 */
void
DoubleWriteRememberFirstRecord(DWBufferRecords *records, XLogRecPtr redo,
							   bool rebuilds)
{
	if (records->redo == DW_NOT_NOTED)
		records->redo = pg_atomic_read_u64(&DWCtl->records_known);
	if (records->redo >= redo)
		return;
	records->before = records->redo;
	records->rebuilt_before = records->rebuilt;
	records->redo = redo;
	records->rebuilt = rebuilds;
}

/*
 * Ignore what is known of a block, for as long as it is in its buffer: a
 * record will refer to a copy of the page in private memory, and so will not
 * be reported for it.  Call this before the insertion, so that no decision
 * relies on what is noted after it.
 */
void
DoubleWriteHideCopied(const RelFileLocator *rlocator, ForkNumber forknum,
					  BlockNumber blkno)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *lock;
	int			buf_id;

	InitBufferTag(&tag, rlocator, forknum, blkno);
	hash = BufTableHashCode(&tag);
	lock = BufMappingPartitionLock(hash);
	LWLockAcquire(lock, LW_SHARED);
	buf_id = BufTableLookup(&tag, hash);
	if (buf_id >= 0)
		DWBufferRecordsArray[buf_id].hidden = true;
	LWLockRelease(lock);
}

/*
 * Note that records before this point have not been reported.  This process
 * may insert WAL from here on, and other processes soon.
 */
void
dw_remember_end_of_recovery(void)
{
	pg_atomic_monotonic_advance_u64(&DWCtl->records_known, GetXLogInsertRecPtr());
}

/* ---------------------------------------------------------------------
 * Truncations
 * ---------------------------------------------------------------------
 */

static pg_atomic_uint64 *
dw_truncate_bucket(const RelFileLocator *rlocator)
{
	uint32		hash = hash_bytes((const unsigned char *) rlocator,
								  sizeof(RelFileLocator));

	return &DWCtl->truncated[hash % DW_TRUNCATE_BUCKETS];
}

/*
 * Remember that all records for blocks that a truncation of this relation
 * removes end at or before the present end of WAL.
 */
void
dw_remember_truncate(const RelFileLocator *rlocator)
{
	XLogRecPtr	lsn;

	lsn = RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) : GetXLogInsertRecPtr();
	pg_atomic_monotonic_advance_u64(dw_truncate_bucket(rlocator), lsn);
}

/*
 * Note that redo drops a relation or, if rlocator is NULL, a database.  A
 * session that drops a relation keeps others from using the name of the file
 * before the next checkpoint, and so does crash recovery; other recovery
 * leaves nothing that would.  Until that checkpoint, records for blocks of
 * the old file come before those for the new one, so they count as truncated.
 * (R2)
 */
void
dw_remember_drop_in_redo(const RelFileLocator *rlocator)
{
	if (!RecoveryInProgress())
		return;
	if (rlocator != NULL)
		dw_remember_truncate(rlocator);
	else
	{
		XLogRecPtr	lsn = GetXLogReplayRecPtr(NULL);

		for (int i = 0; i < DW_TRUNCATE_BUCKETS; i++)
			pg_atomic_monotonic_advance_u64(&DWCtl->truncated[i], lsn);
	}
}

/*
 * Return whether the log may hold copies of this relation from before a
 * truncation.  It holds none if the truncation was before the redo pointer of
 * the last completed checkpoint, which has freed them. (R5)  The end of WAL
 * is noted after the buffers have been dropped, and rises above a redo
 * pointer as soon as there is one.
 */
bool
dw_was_truncated(const RelFileLocator *rlocator)
{
	uint64		truncated = pg_atomic_read_u64(dw_truncate_bucket(rlocator));
	XLogRecPtr	redo;

	DWLockMutex();
	redo = DWCtl->redo.last;
	DWUnlockMutex();
	return truncated > redo;
}

static bool
dw_truncated_after(const BufferTag *tag, XLogRecPtr redo)
{
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);

	return pg_atomic_read_u64(dw_truncate_bucket(&rlocator)) > redo;
}

/* ---------------------------------------------------------------------
 * What crash recovery would have to do, if the server crashed now
 *
 * Redo reads, once, each block that WAL since the redo pointer changes
 * without bringing an image of it.  These blocks are counted where a record
 * is known to be the first one for its page after the newest redo pointer.
 * While a checkpoint is under way, recovery would still begin at the previous
 * redo pointer.  So there is a counter for each of the last redo pointers,
 * and a page counts for those since which it has not been changed before.
 *
 * Not counted are pages that redo reads although no record names them (maps
 * of free space and visibility), pages whose redo waits in instant recovery,
 * and, while WAL is being replayed, pages that were written home with later
 * changes than those in the record.
 *
 * The counters are for display only and decide nothing, so a page that is
 * counted while one is set to zero may be lost.
 * ---------------------------------------------------------------------
 */

/*
 * Count a page for which a record is the first one since the newest redo
 * pointer, if redo would read the page for it; lsn is the LSN that the page
 * had before.
 */
void
DoubleWriteCountRead(XLogRecPtr lsn)
{
	XLogRecPtr	recover_from = pg_atomic_read_u64(&DWCtl->recover_from);

	for (int i = 0; i < DW_REDO_POINTERS; i++)
	{
		DWRedoPointer *pointer = &DWCtl->reads.pointers[i];
		XLogRecPtr	redo = pg_atomic_read_u64(&pointer->redo);

		/* no crash recovers from one before */
		if (redo >= recover_from && lsn <= redo)
			pg_atomic_fetch_add_u64(&pointer->pages, 1);
	}
}

/*
 * Begin to count for a redo pointer that a crash may recover from later,
 * because redo has passed it, or a checkpoint begins.  It takes the place of
 * the oldest one.  Only one process at a time calls this.
 */
void
DoubleWriteCountFromRedo(XLogRecPtr redo)
{
	uint32		newest = DWCtl->reads.newest;

	if (pg_atomic_read_u64(&DWCtl->reads.pointers[newest].redo) == redo)
		return;

	newest = (newest + 1) % DW_REDO_POINTERS;
	pg_atomic_write_u64(&DWCtl->reads.pointers[newest].redo, redo);
	pg_atomic_write_u64(&DWCtl->reads.pointers[newest].pages, 0);
	DWCtl->reads.newest = newest;
}

/*
 * Return what the log has taken until now.
 */
DWLogTaken
dw_log_taken(void)
{
	DWLogTaken	taken;

	taken.pages = pg_atomic_read_u64(&DWCtl->stats.logged);
	taken.notes = DataChecksumsEnabled() ?
		pg_atomic_read_u64(&DWCtl->stats.only_hints) : 0;
	taken.bytes = pg_atomic_read_u64(&DWCtl->stats.log_bytes);
	return taken;
}

/* ---------------------------------------------------------------------
 * Images in WAL that is being replayed
 * ---------------------------------------------------------------------
 */

/*
 * Note that redo has passed a redo pointer, or begins at it.
 */
void
DoubleWritePassedRedo(XLogRecPtr redo)
{
	dw_passed_redo = redo;
	DoubleWriteCountFromRedo(redo);
}

/*
 * In a process that redoes single pages: look for images since this redo pointer.
 */
void
DoubleWriteImagesSince(XLogRecPtr redo)
{
	dw_passed_redo = redo;
}

/*
 * Note that WAL carries no images at this position: redo has found that, or
 * images are being switched off.
 */
void
DoubleWriteRememberImagesOff(XLogRecPtr recptr)
{
	DWLockMutex();
	if (DWCtl->redo.images_off < recptr)
		DWCtl->redo.images_off = recptr;
	DWUnlockMutex();
	dw_remembered_images_off = recptr;
}

/*
 * Return whether all WAL since the last checkpoint or restartpoint was written
 * with images on.
 */
bool
dw_replayed_images(void)
{
	bool		result;

	DWLockMutex();
	result = DWCtl->redo.images && DWCtl->redo.images_off < DWCtl->redo.last;
	DWUnlockMutex();
	return result;
}

/*
 * Return whether a record that neither initialises this page nor has an image
 * of it has its own reason to do without.  Then it tells nothing about other
 * records, and a torn page does it no harm.
 *
 * Only records that register a buffer with REGBUF_NO_IMAGE have such a
 * reason:
 *
 *	  XLOG_HASH_SQUEEZE_PAGE, XLOG_HASH_MOVE_PAGE_CONTENTS, XLOG_HASH_DELETE
 *		_hash_squeezebucket(), hashbucketcleanup(): the bucket's first page,
 *		if they change another page of the bucket.  Redo only locks it, and
 *		reads it for that only when recovery is consistent.  A page with a
 *		newer image has been restored from that by then, as its LSN has
 *		raised minRecoveryPoint before it was written.
 *	  XLOG_HEAP2_VISIBLE
 *		log_heap_visible(): the heap page, if hints are not logged.  Redo
 *		sets a bit in its header and leaves its LSN, so the page does not
 *		count as changed by this, and a later image has the bit as well.  If
 *		hints are logged here, and were not where the WAL was written, redo
 *		sets the LSN; there are no checksums then.
 *
 * For other such records, which extensions may have, images are taken to be
 * off.  That costs no more than double writes.
 */
bool
DoubleWriteNeedsNoImage(XLogReaderState *record, uint8 block_id)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;

	if (XLogRecGetRmid(record) == RM_HASH_ID)
		return hash_xlog_only_locks(info, block_id);

	return XLogRecGetRmid(record) == RM_HEAP2_ID && block_id == 1 &&
		(info & XLOG_HEAP_OPMASK) == XLOG_HEAP2_VISIBLE &&
		!XLogHintBitIsNeeded();
}

/*
 * Return whether a record shows that images are off, so that the caller must
 * note it.  Redo has read the page for this record, which neither initialises
 * it nor carries an image to restore.  The startup process would note it once
 * between two redo pointers.
 *
 * With images on, the first record for a page after a redo pointer carries
 * one, and sets the page back to the time of that record.  So a page that is
 * older than the newest redo pointer, or has the changes of this record
 * already, has not had an image.  This holds for all redo pointers that
 * recovery may start from, since none is newer.  Unlike FPW_CHANGE and
 * checkpoint records, it does not depend on which server has written the WAL:
 * at a clean start and at a promotion, servers of other builds stop writing
 * images without saying so.  (R2, R10)
 *
 * The caller holds the content lock exclusively, so the page is not changed
 * by the record before this is noted.
 */
bool
DoubleWriteImageMissing(XLogReaderState *record, uint8 block_id,
						const PageData *page)
{
	XLogRecPtr	lsn = PageGetLSN(page);
	ForkNumber	forknum;

	if (lsn <= dw_passed_redo)
		DoubleWriteCountRead(lsn);
	if (lsn > dw_passed_redo && lsn < record->EndRecPtr)
		return false;

	/* no other forks are exempt; see the top of this file */
	XLogRecGetBlockTag(record, block_id, NULL, &forknum, NULL);
	if (forknum != MAIN_FORKNUM || DoubleWriteNeedsNoImage(record, block_id))
		return false;

	return dw_remembered_images_off < dw_passed_redo ||
		XLogRecPtrIsInvalid(dw_remembered_images_off);
}

/* ---------------------------------------------------------------------
 * Pages that have left their buffers
 *
 * What is known of a page's WAL records is lost when its buffer gets another
 * block.  But if the first record for a block after a redo pointer rebuilds
 * the page, no later record changes that.  So this is kept here when the page
 * is written home.  The page may then be read again, be changed by any
 * record, or by a hint without one, and still go home without a copy.  First
 * scans, index builds and VACUUM after a load need no log, however small
 * shared_buffers is, until the next checkpoint.  (R2)
 *
 * Only a truncation lets records of an earlier life of the block come first.
 * The caller looks for one itself.
 *
 * The table has a bitmap for each range of blocks, as pages are mostly added
 * in a row.  Ranges of an older redo pointer are replaced first.  A set that
 * is full of new ones keeps all except one, because a process that reads
 * after a load mostly begins where the load began.  Pages that the table
 * forgets are logged.
 * ---------------------------------------------------------------------
 */

/* Blocks of a range: 4 MB */
#define DW_RANGE_BLOCKS		512

/* Names a range.  It has no padding, as it is hashed */
typedef struct DWRangeTag
{
	RelFileLocator rlocator;
	uint32		number;			/* block number / DW_RANGE_BLOCKS */
} DWRangeTag;

/* Blocks of the range that redo rebuilds if it begins at a redo pointer */
typedef struct DWRange
{
	DWRangeTag	tag;
	XLogRecPtr	redo;			/* that redo pointer; 0: entry not used */
	uint64		blocks[DW_RANGE_BLOCKS / 64];
} DWRange;

/* The table: main forks of 32 GB, in less than a megabyte */
#define DW_RANGE_SET_SIZE	8
#define DW_RANGE_SETS		1024

/* DoubleWriteFlushLock guards it */
static DWRange *DWRanges;

/*
 * Return the shared memory needed for the table, in bytes.
 */
Size
dw_rebuilt_shmem_size(void)
{
	return DW_RANGE_SETS * DW_RANGE_SET_SIZE * sizeof(DWRange);
}

/*
 * Create or attach to the table.
 */
void
dw_rebuilt_shmem_init(void)
{
	bool		found;

	DWRanges = ShmemInitStruct("Double Write Rebuilt Pages",
							   dw_rebuilt_shmem_size(), &found);
	if (!found)
		MemSet(DWRanges, 0, dw_rebuilt_shmem_size());
}

/*
 * Return the entry for the block's range, or the one that it would replace.
 */
static DWRange *
dw_range(const BufferTag *tag, DWRangeTag *wanted)
{
	DWRange    *set;
	DWRange    *oldest;

	Assert(DWIsFlusher());
	Assert(BufTagGetForkNum(tag) == MAIN_FORKNUM);

	wanted->rlocator = BufTagGetRelFileLocator(tag);
	wanted->number = tag->blockNum / DW_RANGE_BLOCKS;
	set = &DWRanges[hash_bytes((const unsigned char *) wanted, sizeof(DWRangeTag)) %
					DW_RANGE_SETS * DW_RANGE_SET_SIZE];

	oldest = set;
	for (int i = 0; i < DW_RANGE_SET_SIZE; i++)
	{
		if (memcmp(&set[i].tag, wanted, sizeof(DWRangeTag)) == 0)
			return &set[i];
		if (set[i].redo < oldest->redo)
			oldest = &set[i];
	}
	return oldest;
}

/*
 * Note that the first record for this block after the redo pointer rebuilds
 * the page.
 */
static void
dw_rebuilt_remember(const BufferTag *tag, XLogRecPtr redo)
{
	DWRangeTag	wanted;
	DWRange    *range = dw_range(tag, &wanted);
	BlockNumber block = tag->blockNum % DW_RANGE_BLOCKS;

	Assert(!XLogRecPtrIsInvalid(redo));

	if (range->redo != redo || memcmp(&range->tag, &wanted, sizeof(DWRangeTag)) != 0)
	{
		MemSet(range, 0, sizeof(DWRange));
		range->tag = wanted;
		range->redo = redo;
	}
	range->blocks[block / 64] |= UINT64CONST(1) << (block % 64);
}

/*
 * Return whether that has been noted.
 */
static bool
dw_rebuilt_known(const BufferTag *tag, XLogRecPtr redo)
{
	DWRangeTag	wanted;
	const DWRange *range = dw_range(tag, &wanted);
	BlockNumber block = tag->blockNum % DW_RANGE_BLOCKS;

	return range->redo == redo &&
		memcmp(&range->tag, &wanted, sizeof(DWRangeTag)) == 0 &&
		(range->blocks[block / 64] & (UINT64CONST(1) << (block % 64))) != 0;
}

/* ---------------------------------------------------------------------
 * The decision
 * ---------------------------------------------------------------------
 */

/*
 * Return whether the first record for the block after a redo pointer rebuilds
 * the page.  There was no record between the two redo pointers that are
 * noted.
 */
static bool
dw_rebuilt_from(const DWSlot *slot, XLogRecPtr redo)
{
	const DWBufferRecords *records = &slot->records;

	if (records->hidden || redo < records->before || redo > records->redo)
		return false;
	if (!(redo == records->before ? records->rebuilt_before : records->rebuilt))
		return false;
	return !dw_truncated_after(&slot->tag, redo);
}

/*
 * Return whether redo would rebuild the staged page before reading it,
 * whichever redo pointer a crash from now on might start from.  What the
 * records beside its buffer tell is remembered for the time after the page
 * has left it.
 *
 * The caller holds DoubleWriteFlushLock.  A checkpoint's drain waits for
 * pages on their way home, so none can come between this decision and the
 * home write.
 */
bool
dw_redo_rebuilds(const DWSlot *slot)
{
	XLogRecPtr	redo;
	XLogRecPtr	pending;
	XLogRecPtr	newest;

	Assert(DWIsFlusher());

	if (BufTagGetForkNum(&slot->tag) != MAIN_FORKNUM)
		return false;

	DWLockMutex();
	redo = DWCtl->redo.last;
	pending = DWCtl->redo.pending;
	DWUnlockMutex();

	if (XLogRecPtrIsInvalid(redo))
		return false;

	if (RecoveryInProgress())
		return dw_replayed_images() &&
			slot->lsn > redo &&
			(XLogRecPtrIsInvalid(pending) || slot->lsn > pending);

	newest = XLogRecPtrIsInvalid(pending) ? redo : pending;
	if (dw_rebuilt_from(slot, redo) && dw_rebuilt_from(slot, newest))
	{
		dw_rebuilt_remember(&slot->tag, newest);
		return true;
	}

	/* for both: the newer one was noted by the code above */
	return dw_rebuilt_known(&slot->tag, newest) &&
		!dw_truncated_after(&slot->tag, redo);
}
