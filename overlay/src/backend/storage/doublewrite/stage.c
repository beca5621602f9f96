/*-------------------------------------------------------------------------
 *
 * stage.c
 *	  Shared-memory stage of pages on their way from a buffer to disk.
 *
 * FlushBuffer() copies a page into a stage slot, marks the buffer clean and
 * goes on.  Until the copy has reached its home in the relation file, the
 * stage holds the newest version of the page outside of shared buffers, so a
 * buffer miss must look here before it reads home (rule R6), and whoever
 * drops or truncates a file must drop the copies first (rule R7).
 *
 * Why a miss can look without holding a lock across the look and the read:
 * at most one buffer holds a given block, and a page is staged only from a
 * valid buffer.  While a process holds the I/O of an invalid buffer for a
 * block, nobody can stage that block; copies can only go away, and they go
 * away after they reached home.  So a copy found is the newest version, and
 * if none is found home is.
 *
 * A page that is staged again before its batch starts replaces the older
 * copy in place.  Once its slot is in a batch it is frozen, and the newer
 * version gets a slot of its own; as batches are processed one after the
 * other, home writes of one page happen in staging order (rule R4).
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/stage.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/hashfn.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"

DWCtlData  *DWCtl = NULL;
DWSlot	   *DWSlots = NULL;
DWBufferImage *DWBufferImages = NULL;
char	   *DWPages = NULL;

static int *DWBuckets = NULL;	/* heads of hash chains, slot number or -1 */

/*
 * Automatic size of the stage: one 32nd of shared buffers, so that eviction
 * bursts find room, between 64 slots (a useful batch even with the smallest
 * shared_buffers) and 2048 (16 MB; more is latency, not throughput, as the
 * flusher takes a few hundred pages at a time).
 */
#define DW_STAGE_SHARE		32
#define DW_STAGE_MIN		64
#define DW_STAGE_MAX		2048

static int
dw_stage_slots(void)
{
	if (double_write_stage_size > 0)
		return double_write_stage_size;
	return Min(Max(NBuffers / DW_STAGE_SHARE, DW_STAGE_MIN), DW_STAGE_MAX);
}

static int
dw_stage_buckets(void)
{
	return dw_stage_slots() * 2;
}

/*
 * Shared memory needed by the engine, in bytes.
 */
Size
DoubleWriteShmemSize(void)
{
	Size		size = 0;

	size = add_size(size, MAXALIGN(sizeof(DWCtlData)));
	size = add_size(size, mul_size(dw_stage_slots(), sizeof(DWSlot)));
	size = add_size(size, mul_size(dw_stage_buckets(), sizeof(int)));
	size = add_size(size, mul_size(NBuffers, sizeof(DWBufferImage)));
	size = add_size(size, mul_size(dw_stage_slots(), BLCKSZ));
	size = add_size(size, PG_IO_ALIGN_SIZE);
	return size;
}

static void
dw_init_ctl(void)
{
	MemSet(DWCtl, 0, sizeof(DWCtlData));
	SpinLockInit(&DWCtl->mutex);
	dlist_init(&DWCtl->free);
	dlist_init(&DWCtl->staged);
	pg_atomic_init_u32(&DWCtl->ninuse_hint, 0);
	DWCtl->nslots = dw_stage_slots();
	DWCtl->next_seq = 1;
	DWCtl->flusher_proc = INVALID_PROC_NUMBER;

	pg_atomic_init_u32(&DWCtl->removal_generation, 0);
	pg_atomic_init_u32(&DWCtl->replayed_drops, 0);
	for (int i = 0; i < DW_TRUNCATE_BUCKETS; i++)
		pg_atomic_init_u64(&DWCtl->truncated[i], 0);

	/* DWStats consists of nothing but counters */
	for (size_t i = 0; i < sizeof(DWStats) / sizeof(pg_atomic_uint64); i++)
		pg_atomic_init_u64((pg_atomic_uint64 *) &DWCtl->stats + i, 0);
}

/*
 * Create or attach to the engine's shared memory.
 */
void
DoubleWriteShmemInit(void)
{
	bool		found;

	DWCtl = ShmemInitStruct("Double Write Control", sizeof(DWCtlData), &found);
	if (!found)
		dw_init_ctl();

	DWBufferImages = ShmemInitStruct("Double Write Buffer Images",
									 mul_size(NBuffers, sizeof(DWBufferImage)),
									 &found);
	if (!found)
		MemSet(DWBufferImages, 0, NBuffers * sizeof(DWBufferImage));

	DWBuckets = ShmemInitStruct("Double Write Stage Lookup",
								mul_size(dw_stage_buckets(), sizeof(int)),
								&found);
	if (!found)
		for (int i = 0; i < dw_stage_buckets(); i++)
			DWBuckets[i] = -1;

	DWPages = (char *)
		TYPEALIGN(PG_IO_ALIGN_SIZE,
				  ShmemInitStruct("Double Write Stage Pages",
								  add_size(mul_size(dw_stage_slots(), BLCKSZ),
										   PG_IO_ALIGN_SIZE),
								  &found));

	DWSlots = ShmemInitStruct("Double Write Stage Slots",
							  mul_size(dw_stage_slots(), sizeof(DWSlot)),
							  &found);
	if (!found)
	{
		for (int i = 0; i < dw_stage_slots(); i++)
		{
			MemSet(&DWSlots[i], 0, sizeof(DWSlot));
			DWSlots[i].state = DW_SLOT_FREE;
			DWSlots[i].hash_next = -1;
			dlist_push_tail(&DWCtl->free, &DWSlots[i].node);
		}
	}
}

/* ---------------------------------------------------------------------
 * Lookup.  All of these need DWCtl->mutex.
 * ---------------------------------------------------------------------
 */

static inline int *
dw_bucket(const BufferTag *tag)
{
	uint32		hash = hash_bytes((const unsigned char *) tag, sizeof(BufferTag));

	return &DWBuckets[hash % (uint32) (DWCtl->nslots * 2)];
}

/* Newest slot of a page, or -1.  Newer slots stand before older ones. */
static int
dw_lookup(int *bucket, const BufferTag *tag)
{
	for (int i = *bucket; i >= 0; i = DWSlots[i].hash_next)
	{
		if (BufferTagsEqual(&DWSlots[i].tag, tag))
			return i;
	}
	return -1;
}

static void
dw_unlink(int slotno)
{
	int		   *link = dw_bucket(&DWSlots[slotno].tag);

	while (*link != slotno)
	{
		Assert(*link >= 0);
		link = &DWSlots[*link].hash_next;
	}
	*link = DWSlots[slotno].hash_next;
	DWSlots[slotno].hash_next = -1;
}

static void
dw_free_slot(int slotno)
{
	DWSlot	   *slot = &DWSlots[slotno];

	dw_unlink(slotno);
	slot->state = DW_SLOT_FREE;
	dlist_push_head(&DWCtl->free, &slot->node);
	DWCtl->ninuse--;
	pg_atomic_write_u32(&DWCtl->ninuse_hint, DWCtl->ninuse);
}

/*
 * Find the slot that a new version of a page goes to: that of an older
 * version that is not in a batch yet, else a free one.  Returns -1 if there
 * is none.  On success the slot is in state FILLING.
 */
static int
dw_reserve_slot(const BufferTag *tag, bool *replaces)
{
	int		   *bucket = dw_bucket(tag);
	int			slotno = dw_lookup(bucket, tag);
	DWSlot	   *slot;

	if (slotno >= 0 && DWSlots[slotno].state == DW_SLOT_STAGED)
	{
		slot = &DWSlots[slotno];
		slot->state = DW_SLOT_FILLING;
		slot->failed = false;
		*replaces = true;
		return slotno;
	}

	/* only one process at a time can stage a given page */
	Assert(slotno < 0 || DWSlots[slotno].state == DW_SLOT_BATCH);

	*replaces = false;
	if (dlist_is_empty(&DWCtl->free))
		return -1;

	slot = dlist_container(DWSlot, node, dlist_pop_head_node(&DWCtl->free));
	slotno = slot - DWSlots;
	slot->state = DW_SLOT_FILLING;
	slot->tag = *tag;
	slot->seq = slot->oldest_seq = DWCtl->next_seq++;
	slot->home_batch = 0;
	slot->discarded = false;
	slot->failed = false;
	slot->hash_next = *bucket;
	*bucket = slotno;
	dlist_push_tail(&DWCtl->staged, &slot->node);
	DWCtl->nstaged++;
	DWCtl->ninuse++;
	pg_atomic_write_u32(&DWCtl->ninuse_hint, DWCtl->ninuse);
	return slotno;
}

/* ---------------------------------------------------------------------
 * Staging a page
 * ---------------------------------------------------------------------
 */

/*
 * Complain about a page LSN from the future before the page is staged, as
 * XLogFlush() does: in a batch it would take the other pages down with it.
 */
static void
dw_check_lsn(XLogRecPtr lsn)
{
	if (!RecoveryInProgress() && XLogNeedsFlush(lsn) &&
		lsn > GetXLogInsertRecPtr())
		XLogFlush(lsn);
}

static void
dw_fill_slot(int slotno, BufferDesc *buf, XLogRecPtr lsn, bool permanent)
{
	DWSlot	   *slot = &DWSlots[slotno];
	char	   *page = DWSlotPage(slotno);
	Buffer		buffer = BufferDescriptorGetBuffer(buf);

	/*
	 * Other processes may set hint bits while we copy; that is harmless, and
	 * the checksum is computed on the copy.
	 */
	memcpy(page, BufferGetBlock(buffer), BLCKSZ);
	PageSetChecksumInplace((Page) page, buf->tag.blockNum);

	/* setting a hint bit may have raised the LSN meanwhile */
	if (permanent)
	{
		uint32		buf_state = LockBufHdr(buf);

		lsn = Max(lsn, PageGetLSN(BufferGetPage(buffer)));
		UnlockBufHdr(buf, buf_state);
	}

	slot->permanent = permanent;
	slot->lsn = lsn;
	slot->img = DWBufferImages[buf->buf_id].img;
}

/*
 * Wake the background flusher once there is a batch for it.
 */
static void
dw_wake_flusher(int nstaged)
{
	int			procno = INVALID_PROC_NUMBER;

	if (nstaged < Min(DW_MAX_BATCH_PAGES, DWCtl->nslots / 4))
		return;

	SpinLockAcquire(&DWCtl->mutex);
	if (!DWCtl->flush_requested && DWCtl->flusher_proc != MyProcNumber)
	{
		procno = DWCtl->flusher_proc;
		DWCtl->flush_requested = (procno != INVALID_PROC_NUMBER);
	}
	SpinLockRelease(&DWCtl->mutex);

	if (procno != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/*
 * Copy the page of a dirty buffer into the stage.  After this the caller may
 * mark the buffer clean.
 *
 * The caller holds a pin, at least a share lock on the contents, and the
 * buffer's I/O, so nobody else can stage the same page meanwhile.  lsn is the
 * page LSN, permanent says whether the relation is WAL-logged.  Throws an
 * error if the stage is full and cannot be emptied; nothing is staged then.
 */
void
DoubleWriteStagePage(BufferDesc *buf, XLogRecPtr lsn, bool permanent)
{
	int			slotno;
	int			nstaged;
	bool		replaces;

	if (permanent)
		dw_check_lsn(lsn);

	for (;;)
	{
		SpinLockAcquire(&DWCtl->mutex);
		slotno = dw_reserve_slot(&buf->tag, &replaces);
		SpinLockRelease(&DWCtl->mutex);
		if (slotno >= 0)
			break;
		DWCount(stage_full, 1);
		dw_make_room();
	}

	/* nothing in here may fail: the slot would stay in state FILLING */
	dw_fill_slot(slotno, buf, lsn, permanent);

	SpinLockAcquire(&DWCtl->mutex);
	Assert(DWSlots[slotno].state == DW_SLOT_FILLING);
	DWSlots[slotno].state = DW_SLOT_STAGED;
	nstaged = DWCtl->nstaged;
	SpinLockRelease(&DWCtl->mutex);

	DWCount(staged, 1);
	if (replaces)
		DWCount(replaced, 1);

	INJECTION_POINT("doublewrite-page-staged", NULL);

	dw_wake_flusher(nstaged);
}

/*
 * Is there a free slot, so that staging a page will not wait?
 */
bool
DoubleWriteStageHasRoom(void)
{
	return pg_atomic_read_u32(&DWCtl->ninuse_hint) < (uint32) DWCtl->nslots;
}

/* ---------------------------------------------------------------------
 * Reading and dropping staged pages
 * ---------------------------------------------------------------------
 */

/*
 * If a page is staged, copy its newest version to dst and return true.
 *
 * The caller holds the I/O of the buffer that the page is read into; see the
 * top of this file.  The copy is taken without a lock; if the slot has gone
 * home meanwhile, the caller must read home.  (R6)
 */
bool
DoubleWriteReadStaged(const BufferTag *tag, char *dst)
{
	int			slotno;
	uint64		seq = 0;
	bool		still_there;

	/* Staging and eviction happened before our lookup in the buffer table */
	if (pg_atomic_read_u32(&DWCtl->ninuse_hint) == 0)
		return false;

	SpinLockAcquire(&DWCtl->mutex);
	slotno = dw_lookup(dw_bucket(tag), tag);
	if (slotno >= 0)
		seq = DWSlots[slotno].seq;
	SpinLockRelease(&DWCtl->mutex);

	if (slotno < 0)
		return false;

	memcpy(dst, DWSlotPage(slotno), BLCKSZ);

	SpinLockAcquire(&DWCtl->mutex);
	still_there = (DWSlots[slotno].state != DW_SLOT_FREE &&
				   DWSlots[slotno].seq == seq);
	SpinLockRelease(&DWCtl->mutex);

	if (still_there)
		DWCount(stage_hits, 1);
	return still_there;
}

typedef bool (*DWTagFilter) (const BufferTag *tag, const void *arg);

/*
 * Drop the staged pages for which filter says yes, and wait out home writes
 * of such pages that are in flight. (R7)
 *
 * The caller has dropped the buffers concerned and prevents new ones, so no
 * page that matters can be staged while we look.
 */
static void
dw_discard(DWTagFilter filter, const void *arg)
{
	bool		in_batch = false;
	int			ndiscarded = 0;

	if (pg_atomic_read_u32(&DWCtl->ninuse_hint) == 0)
		return;

	for (int i = 0; i < DWCtl->nslots; i++)
	{
		DWSlot	   *slot = &DWSlots[i];

		/* peek without the lock: the tags we look for are not added now */
		if (!filter(&slot->tag, arg))
			continue;

		SpinLockAcquire(&DWCtl->mutex);
		if (slot->state != DW_SLOT_FREE && filter(&slot->tag, arg))
		{
			Assert(slot->state != DW_SLOT_FILLING);
			if (slot->state == DW_SLOT_STAGED)
			{
				dlist_delete(&slot->node);
				DWCtl->nstaged--;
				dw_free_slot(i);
			}
			else
			{
				slot->discarded = true;
				in_batch = true;
			}
			ndiscarded++;
		}
		SpinLockRelease(&DWCtl->mutex);
	}

	DWCount(discarded, ndiscarded);

	/*
	 * The flusher looks at "discarded" before it writes a page, but it may
	 * have looked already.  When we get its lock, that write is over; if the
	 * batch was left half-done by an error, it will be resumed without the
	 * pages marked above.
	 */
	if (in_batch)
	{
		LWLockAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
		LWLockRelease(DoubleWriteFlushLock);
	}
}

typedef struct DWForkRange
{
	RelFileLocator rlocator;
	const ForkNumber *forknum;
	const BlockNumber *first;
	int			nforks;
} DWForkRange;

static bool
dw_tag_in_forks(const BufferTag *tag, const void *arg)
{
	const DWForkRange *range = arg;

	if (!BufTagMatchesRelFileLocator(tag, &range->rlocator))
		return false;
	for (int i = 0; i < range->nforks; i++)
	{
		if (BufTagGetForkNum(tag) == range->forknum[i] &&
			tag->blockNum >= range->first[i])
			return true;
	}
	return false;
}

static bool
dw_tag_in_relation(const BufferTag *tag, const void *arg)
{
	return BufTagMatchesRelFileLocator(tag, (const RelFileLocator *) arg);
}

static bool
dw_tag_in_database(const BufferTag *tag, const void *arg)
{
	return tag->dbOid == *(const Oid *) arg;
}

/*
 * Drop staged pages of forks of a relation from the given blocks on, because
 * the forks are about to be truncated there.
 */
void
DoubleWriteDiscardForks(RelFileLocator rlocator, const ForkNumber *forknum,
						int nforks, const BlockNumber *firstDelBlock)
{
	DWForkRange range = {rlocator, forknum, firstDelBlock, nforks};

	dw_note_truncate(&rlocator);
	dw_discard(dw_tag_in_forks, &range);
}

/*
 * Drop staged pages of relations that are about to be unlinked.
 */
void
DoubleWriteDiscardRelations(SMgrRelation *rels, int nrels)
{
	for (int i = 0; i < nrels; i++)
	{
		if (!SmgrIsTemp(rels[i]))
			dw_discard(dw_tag_in_relation, &rels[i]->smgr_rlocator.locator);
	}
	INJECTION_POINT("doublewrite-relations-discarded", NULL);
}

/*
 * Drop staged pages of a database whose files are about to go.
 */
void
DoubleWriteDiscardDatabase(Oid dbid)
{
	dw_discard(dw_tag_in_database, &dbid);
}

/* ---------------------------------------------------------------------
 * For the flusher
 * ---------------------------------------------------------------------
 */

/*
 * Move up to max staged slots into the batch, oldest first.  Slots whose
 * last home write failed are left alone unless retry_failed.
 */
int
dw_take_slots(int *slots, int max, bool retry_failed)
{
	dlist_mutable_iter iter;
	int			n = 0;

	SpinLockAcquire(&DWCtl->mutex);
	dlist_foreach_modify(iter, &DWCtl->staged)
	{
		DWSlot	   *slot = dlist_container(DWSlot, node, iter.cur);

		if (n >= max)
			break;
		if (slot->state != DW_SLOT_STAGED || (slot->failed && !retry_failed))
			continue;
		dlist_delete(&slot->node);
		DWCtl->nstaged--;
		slot->state = DW_SLOT_BATCH;
		slots[n++] = slot - DWSlots;
	}
	DWCtl->flush_requested = false;
	SpinLockRelease(&DWCtl->mutex);

	return n;
}

/*
 * The page is home: its slot is free again.
 */
void
dw_release_slot(int slotno)
{
	SpinLockAcquire(&DWCtl->mutex);
	Assert(DWSlots[slotno].state == DW_SLOT_BATCH);
	dw_free_slot(slotno);
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * The home write failed.  Keep the copy, unless a newer version of the page
 * has been staged meanwhile, which will do for both: those who wait for the
 * older one, or keep its copy in the log, must wait for the newer. (R3, R11)
 */
void
dw_restage_slot(int slotno)
{
	DWSlot	   *slot = &DWSlots[slotno];
	int			newest;

	SpinLockAcquire(&DWCtl->mutex);
	Assert(slot->state == DW_SLOT_BATCH);
	newest = dw_lookup(dw_bucket(&slot->tag), &slot->tag);
	if (slot->discarded)
		dw_free_slot(slotno);
	else if (newest != slotno)
	{
		DWSlot	   *newer = &DWSlots[newest];

		newer->oldest_seq = Min(newer->oldest_seq, slot->oldest_seq);
		if (slot->home_batch != 0)
			newer->home_batch = slot->home_batch;
		dw_free_slot(slotno);
	}
	else
	{
		slot->state = DW_SLOT_STAGED;
		slot->failed = true;
		dlist_push_tail(&DWCtl->staged, &slot->node);
		DWCtl->nstaged++;
	}
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * Put a slot of a batch that cannot be carried on with back on the list.
 */
void
dw_untake_slot(int slotno)
{
	SpinLockAcquire(&DWCtl->mutex);
	if (DWSlots[slotno].discarded)
		dw_free_slot(slotno);
	else
	{
		DWSlots[slotno].state = DW_SLOT_STAGED;
		dlist_push_tail(&DWCtl->staged, &DWSlots[slotno].node);
		DWCtl->nstaged++;
	}
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * Is a page on the staged list of which a version staged before seq has not
 * reached home?  *filling tells whether all such pages are being replaced at
 * this moment.
 */
bool
dw_staged_before(uint64 seq, bool *filling)
{
	dlist_iter	iter;
	bool		found = false;

	*filling = true;
	SpinLockAcquire(&DWCtl->mutex);
	dlist_foreach(iter, &DWCtl->staged)
	{
		DWSlot	   *slot = dlist_container(DWSlot, node, iter.cur);

		if (slot->oldest_seq >= seq)
			continue;
		found = true;
		if (slot->state == DW_SLOT_STAGED)
		{
			*filling = false;
			break;
		}
	}
	SpinLockRelease(&DWCtl->mutex);

	return found;
}

/*
 * The pages in these slots have been logged in a batch, which must be kept
 * until they are home.  Of earlier batches that hold copies of them, restore
 * would take nothing. (R3, R4)
 */
void
dw_note_logged(const int *slots, int nslots, uint64 batchno)
{
	SpinLockAcquire(&DWCtl->mutex);
	for (int i = 0; i < nslots; i++)
		DWSlots[slots[i]].home_batch = batchno;
	SpinLockRelease(&DWCtl->mutex);
}

/*
 * First batch with a page that is not home; the number of the next batch if
 * there is none.  The flush lock is held.
 */
uint64
dw_first_unfinished_batch(void)
{
	uint64		result = DWCtl->next_batchno;

	SpinLockAcquire(&DWCtl->mutex);
	for (int i = 0; i < DWCtl->nslots; i++)
	{
		if (DWSlots[i].state != DW_SLOT_FREE && DWSlots[i].home_batch != 0)
			result = Min(result, DWSlots[i].home_batch);
	}
	SpinLockRelease(&DWCtl->mutex);
	return result;
}

/*
 * Sequence number that the next staged page will get.
 */
uint64
dw_current_seq(void)
{
	uint64		seq;

	SpinLockAcquire(&DWCtl->mutex);
	seq = DWCtl->next_seq;
	SpinLockRelease(&DWCtl->mutex);
	return seq;
}

int
dw_staged_count(void)
{
	int			n;

	SpinLockAcquire(&DWCtl->mutex);
	n = DWCtl->nstaged;
	SpinLockRelease(&DWCtl->mutex);
	return n;
}
