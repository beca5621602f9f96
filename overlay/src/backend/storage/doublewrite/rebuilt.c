/*-------------------------------------------------------------------------
 *
 * rebuilt.c
 *	  Pages that redo rebuilds, remembered when they have left their buffers.
 *
 * What is known of a page's WAL records stands beside its buffer (exempt.c)
 * and is lost when the buffer gets another block.  But if the first record
 * for a block after a redo pointer rebuilds the page, no later record changes
 * that.  So this is kept here when the page is written home.  The page may
 * then be read again, be changed by any record, or by a hint without one, and
 * still go home without a copy.  First scans, index builds and VACUUM after a
 * load need no log, however small shared_buffers is, until the next
 * checkpoint.  (R2)
 *
 * Only a truncation lets records of an earlier life of the block come first.
 * The caller looks for one itself.
 *
 * The table has a bitmap for each range of blocks, as pages are mostly added
 * in a row.  Ranges of an older redo pointer are replaced first.  A set that
 * is full of new ones keeps all except one, because a process that reads
 * after a load mostly begins where the load began.  Pages that the table
 * forgets are logged.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/rebuilt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "storage/doublewrite_internal.h"
#include "storage/shmem.h"

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
void
dw_rebuilt_note(const BufferTag *tag, XLogRecPtr redo)
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
bool
dw_rebuilt_known(const BufferTag *tag, XLogRecPtr redo)
{
	DWRangeTag	wanted;
	const DWRange *range = dw_range(tag, &wanted);
	BlockNumber block = tag->blockNum % DW_RANGE_BLOCKS;

	return range->redo == redo &&
		memcmp(&range->tag, &wanted, sizeof(DWRangeTag)) == 0 &&
		(range->blocks[block / 64] & (UINT64CONST(1) << (block % 64))) != 0;
}
