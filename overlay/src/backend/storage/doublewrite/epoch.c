/*-------------------------------------------------------------------------
 *
 * epoch.c
 *	  Pages that need no second copy in the log.
 *
 * If the log has a copy of a page that a crash would find there, a newer
 * version may go home without a copy of its own.  Should it be torn there,
 * restore puts the older version in its place, and redo rolls that forward:
 * the state is the one in which the newer version was never written home.
 * Redo can do that because every live copy was made after the buffer scan of
 * the last completed checkpoint, so what it lacks has been logged after the
 * redo pointer.  (R2, R5)
 *
 * An epoch is the time for which copies can be relied on.  A process that is
 * going to raise the low-water mark ends the epoch first, under the flush
 * lock, by saying where the mark will be: copies below it no longer count.
 * It has waited for home writes under way, so those decided before that are
 * in the kernel by then, and are synced before the mark rises.  Those decided
 * later rely on nothing that the mark frees. (R3)
 *
 * With wal_level = minimal the rule is not used: a relation created in the
 * running transaction changes without WAL, and is synced at commit.  An older
 * copy put over it would undo that.  Nor is it used for a page that a session has
 * changed without a record: extensions do so, and then have the page written and synced.
 *
 * The table of pages that have a copy consists of sets.  It forgets the
 * oldest copy of a set that is full; such a page is logged once more.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/epoch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "storage/doublewrite_internal.h"
#include "storage/shmem.h"

/* The newest copy of a page */
typedef struct DWEpochPage
{
	BufferTag	tag;
	uint64		batchno;		/* 0: no copy */
} DWEpochPage;

/*
 * Entries in a set.  The table has one for each page that the log may hold,
 * and an epoch fills about half of the log.  Then few sets are full.
 */
#define DW_SET_SIZE		8

/* Blocks of a relation whose sets are next to each other */
#define DW_SET_RUN		64

/* DoubleWriteFlushLock guards it */
static DWEpochPage *DWEpochPages;

/* Number of sets, a power of two, for a log of so many segments */
static uint32
dw_copy_sets(int segments)
{
	return pg_nextpower2_32(segments * (uint32) DW_SEGMENT_BLOCKS / DW_SET_SIZE);
}

/*
 * Return the shared memory needed for the table, in bytes.
 */
Size
dw_epoch_shmem_size(int segments)
{
	return mul_size(dw_copy_sets(segments), DW_SET_SIZE * sizeof(DWEpochPage));
}

/*
 * Create or attach to the table.
 */
void
dw_epoch_shmem_init(void)
{
	Size		size = dw_epoch_shmem_size(DWCtl->segments);
	bool		found;

	DWEpochPages = ShmemInitStruct("Double Write Epoch Pages", size, &found);
	if (!found)
		MemSet(DWEpochPages, 0, size);
}

/*
 * Return the set of a page.  Neighbouring pages have neighbouring sets,
 * because a scan that sets hints asks for one page after the other.
 */
static DWEpochPage *
dw_copy_set(const BufferTag *tag)
{
	BufferTag	first = *tag;
	uint32		offset = tag->blockNum % DW_SET_RUN;
	uint32		hash;

	first.blockNum -= offset;
	hash = hash_bytes((const unsigned char *) &first, sizeof(BufferTag)) + offset;

	return &DWEpochPages[(Size) (hash & (dw_copy_sets(DWCtl->segments) - 1)) * DW_SET_SIZE];
}

/*
 * End the epoch, as the low-water mark is going to be raised to this batch:
 * from now on no home write relies on copies below it.
 */
void
dw_epoch_begin(uint64 first_batch)
{
	Assert(DWIsFlusher());
	if (first_batch > DWCtl->log.epoch)
		DWCtl->log.epoch_after = dw_log_taken();
	Assert(first_batch <= DWCtl->log.next_batchno);
	Assert(first_batch <= dw_first_removed_batch());	/* R3 */

	DWCtl->log.epoch = Max(DWCtl->log.epoch, first_batch);
}

/*
 * Return the batch with the newest copy of a page, if that protects home
 * writes, else 0.
 */
uint64
dw_epoch_copy(const BufferTag *tag)
{
	DWEpochPage *set = dw_copy_set(tag);

	Assert(DWIsFlusher());

	if (!XLogIsNeeded())
		return 0;
	for (int i = 0; i < DW_SET_SIZE; i++)
	{
		if (set[i].batchno >= DWCtl->log.epoch && set[i].batchno != 0 &&
			BufferTagsEqual(&set[i].tag, tag))
			return set[i].batchno;
	}
	return 0;
}

/*
 * The same if it makes a copy of this version of the page unnecessary.  What redo has
 * changed is unreported, but in WAL.
 */
uint64
dw_covering_copy(const DWSlot *slot)
{
	if (slot->records.unreported && slot->records.redo != DW_NOT_NOTED)
		return 0;
	return dw_epoch_copy(&slot->tag);
}

/*
 * The copy of a page cannot be relied on.
 */
void
dw_epoch_forget(const BufferTag *tag)
{
	DWEpochPage *set = dw_copy_set(tag);

	Assert(DWIsFlusher());
	for (int i = 0; i < DW_SET_SIZE; i++)
	{
		if (BufferTagsEqual(&set[i].tag, tag))
			set[i].batchno = 0;
	}
}

/*
 * Note that the page has a copy in this batch, which is durable.
 */
void
dw_epoch_remember(const BufferTag *tag, uint64 batchno)
{
	DWEpochPage *set = dw_copy_set(tag);
	DWEpochPage *oldest = set;

	Assert(DWIsFlusher());
	Assert(batchno != 0 && batchno < DWCtl->log.next_batchno);

	for (int i = 0; i < DW_SET_SIZE; i++)
	{
		if (BufferTagsEqual(&set[i].tag, tag))
		{
			oldest = &set[i];
			break;
		}
		if (set[i].batchno < oldest->batchno)
			oldest = &set[i];
	}
	oldest->tag = *tag;
	oldest->batchno = batchno;
}
