/*-------------------------------------------------------------------------
 *
 * stage.c
 *	  Shared-memory stage of pages on their way from a buffer to disk.
 *
 * FlushBuffer() copies a page into a stage slot, marks the buffer clean and
 * goes on.  Until the copy has reached its home in the relation file, the
 * stage holds the newest version of the page outside of shared buffers, so a
 * buffer miss must look here before it reads home (rule R6), and a process
 * that drops or truncates a file must drop the copies first (rule R7).
 *
 * Why a miss can look without holding a lock across the look and the read:
 * at most one buffer holds a given block, and a page is staged only from a
 * valid buffer.  While a process holds the I/O of an invalid buffer for a
 * block, no process can stage that block; copies can only go away, and they go
 * away after they reached home.  So a copy found is the newest version, and
 * if none is found home is.
 *
 * A page that is staged again before its batch starts replaces the older
 * copy in place.  Once its slot is in a batch it is frozen, and the newer
 * version gets a slot of its own, which is not taken before the older one has
 * left its batch.  So there are two versions at most, and home writes of one page
 * happen in staging order, whichever processes make them (rule R4).
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/stage.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/guc_hooks.h"
#include "utils/injection_point.h"

/* GUC */
int			double_write_stage_size = -1;

DWSlot	   *DWSlots = NULL;
char	   *DWPages = NULL;

const DWPageSet DWAllPages = {.max = PG_INT32_MAX};
const DWPageSet DWPermanentPages = {.max = PG_INT32_MAX,.permanent = true};

/*
 * Heads of hash chains, slot number or -1.  Changed with the mutex held, but
 * looked at without it by buffer misses.
 */
static int *DWBuckets = NULL;

/*
 * Many buckets, so that few misses find something in theirs: one in eight if
 * the stage is full, which costs them a spinlock.
 */
#define DW_BUCKETS_PER_SLOT	8

/*
 * Whether any slot is in use, looked at without the mutex by buffer misses.  It has a
 * cache line for itself and is written only when that changes, so misses of many
 * processors do not wait for the line of the mutex, which staging writes all the time.
 */
static pg_atomic_uint32 *dw_in_use = NULL;

/* Runs on their way home, by their first slots; see home.c */
int		   *DWRuns = NULL;

/* Constant; each process has its own, for the same reason. */
static uint32 dw_nbuckets = 0;

/* Slots taken from the list under one hold of the mutex */
#define DW_TAKE_CHUNK		16

/*
 * Pages that were staged before it turned out that their file is bad may take
 * more of the stage than others of their files get then.  So some slots are
 * kept that only pages of good files can get.
 */
#define DW_RESERVED_SHARE		16

/* Last run for which this process had no descriptor left */
static uint64 dw_lacking_run = PG_UINT64_MAX;

static bool
dw_is_lack(int error)
{
	return error == EMFILE || error == ENFILE;
}

/*
 * Return whether a home write has failed as another process had no descriptor left.  That
 * says nothing about the page: this process tries it itself. (R11)
 */
static bool
dw_is_lack_of_another(const DWSlot *slot)
{
	return dw_is_lack(slot->error) && slot->run != dw_lacking_run;
}

/* ---------------------------------------------------------------------
 * Size of the stage, which does not change while the server runs
 * ---------------------------------------------------------------------
 */

/*
 * Automatic size of the stage: one 32nd of shared buffers, but between 1024
 * slots (8 MB) and 2048 (16 MB).
 *
 * The minimum does not depend on shared buffers, because the smaller these
 * are, the more pages are evicted.  It is four full batches: one on its way
 * home, one ready to follow, and room for evictions to go on meanwhile.  With
 * less, batches become small, and there are several times as many syncs of
 * the log.  More than the maximum adds latency, not throughput.
 *
 * A server with less than 1 MB of shared buffers gets a stage of at most
 * eight times that, because such a setting asks for a small server.
 */
#define DW_STAGE_SHARE		32
#define DW_STAGE_MIN		1024
#define DW_STAGE_MAX		2048
#define DW_STAGE_MULTIPLE	8

static int
dw_automatic_slots(void)
{
	int			least = DW_STAGE_MIN;

	if (NBuffers < DW_STAGE_MIN / DW_STAGE_MULTIPLE)
		least = NBuffers * DW_STAGE_MULTIPLE;
	return Min(Max(NBuffers / DW_STAGE_SHARE, least), DW_STAGE_MAX);
}

bool
check_double_write_stage_size(int *newval, void **extra, GucSource source)
{
	/*
	 * Once the size has been chosen, -1 in a file that is reloaded is no
	 * change.
	 */
	if (*newval == -1 && double_write_stage_size > 0)
		*newval = dw_automatic_slots();
	if (*newval != -1 && *newval < 16)
	{
		GUC_check_errdetail("\"%s\" must be at least %dkB.",
							"double_write_stage_size", 16 * (BLCKSZ / 1024));
		GUC_check_errhint("Use -1 to have the size chosen automatically.");
		return false;
	}
	return true;
}

/*
 * Choose an automatic value for a setting that is -1, and have SHOW report it, as
 * for wal_buffers.
 */
void
DoubleWriteChooseSetting(const char *name, const int *variable, int automatic)
{
	char		value[32];

	if (*variable >= 0)
		return;
	snprintf(value, sizeof(value), "%d", automatic);
	SetConfigOption(name, value, PGC_POSTMASTER, PGC_S_DYNAMIC_DEFAULT);

	/* If a configuration file contains -1, only a stronger source counts. */
	if (*variable < 0)
		SetConfigOption(name, value, PGC_POSTMASTER, PGC_S_OVERRIDE);
}

/*
 * Choose double_write_stage_size if it is automatic, for SHOW as well.
 */
void
dw_choose_stage_size(void)
{
	DoubleWriteChooseSetting("double_write_stage_size", &double_write_stage_size,
							 dw_automatic_slots());
}

static Size
dw_lookup_size(void)
{
	return add_size(PG_CACHE_LINE_SIZE,
					mul_size(double_write_stage_size * DW_BUCKETS_PER_SLOT, sizeof(int)));
}

/*
 * Shared memory needed for the stage, in bytes.
 */
Size
dw_stage_shmem_size(void)
{
	Size		size = 0;

	size = add_size(size, mul_size(double_write_stage_size, sizeof(DWSlot)));
	size = add_size(size, mul_size(double_write_stage_size, sizeof(int)));
	size = add_size(size, dw_lookup_size());
	size = add_size(size, mul_size(double_write_stage_size, BLCKSZ));
	size = add_size(size, PG_IO_ALIGN_SIZE);
	return size;
}

/*
 * All slots are free.
 */
static void
dw_init_slots(void)
{
	dlist_init(&DWCtl->stage.free);
	dlist_init(&DWCtl->stage.staged);
	pg_atomic_init_u32(&DWCtl->stage.ninuse, 0);
	DWCtl->stage.nslots = double_write_stage_size;
	DWCtl->stage.nreserved = Max(DWCtl->stage.nslots / DW_RESERVED_SHARE, 1);
	DWCtl->stage.next_seq = 1;
	for (int i = 0; i < DWCtl->stage.nslots; i++)
	{
		MemSet(&DWSlots[i], 0, sizeof(DWSlot));
		pg_atomic_init_u32(&DWSlots[i].state, DW_SLOT_FREE);
		DWSlots[i].hash_next = -1;
		dlist_push_tail(&DWCtl->stage.free, &DWSlots[i].node);
	}
	pg_atomic_init_u32(dw_in_use, 0);
	for (uint32 i = 0; i < dw_nbuckets; i++)
		DWBuckets[i] = -1;
}

/*
 * Create or attach to it.
 */
void
dw_stage_shmem_init(void)
{
	bool		found;

	dw_nbuckets = double_write_stage_size * DW_BUCKETS_PER_SLOT;
	dw_in_use = ShmemInitStruct("Double Write Stage Lookup", dw_lookup_size(), &found);
	DWBuckets = (int *) ((char *) dw_in_use + PG_CACHE_LINE_SIZE);
	DWPages = (char *)
		TYPEALIGN(PG_IO_ALIGN_SIZE,
				  ShmemInitStruct("Double Write Stage Pages",
								  add_size(mul_size(double_write_stage_size, BLCKSZ),
										   PG_IO_ALIGN_SIZE),
								  &found));

	DWRuns = ShmemInitStruct("Double Write Runs",
							 mul_size(double_write_stage_size, sizeof(int)), &found);
	DWSlots = ShmemInitStruct("Double Write Stage Slots",
							  mul_size(double_write_stage_size, sizeof(DWSlot)),
							  &found);
	if (!found)
		dw_init_slots();
}

/* ---------------------------------------------------------------------
 * Lookup and lists.  All of these need DWCtl->mutex, except dw_bucket().
 * ---------------------------------------------------------------------
 */

/*
 * Transitions that are legal, from the state of the row to that of the column;
 * README.stage has a picture.
 */
static const bool
			dw_slot_transitions[DW_SLOT_STATES][DW_SLOT_STATES] PG_USED_FOR_ASSERTS_ONLY = {
	/* FREE, FILLING, STAGED, BATCH */
	{false, true, false, false},	/* FREE: reserve */
	{false, false, true, false},	/* FILLING: publish */
	{true, true, false, true},	/* STAGED: discard, replace, take */
	{true, false, true, false}, /* BATCH: release, restage */
};

/*
 * All changes of a slot's state are made here.
 */
static void
dw_set_slot_state(DWSlot *slot, DWSlotState state)
{
	Assert(dw_slot_transitions[pg_atomic_read_u32(&slot->state)][state]);
	Assert(DWMutexHeld() || DWSlotInState(slot, DW_SLOT_FILLING));

	pg_atomic_write_u32(&slot->state, state);
}

static inline uint32
dw_bucket(const BufferTag *tag)
{
	uint32		hash = hash_bytes((const unsigned char *) tag, sizeof(BufferTag));

	return hash % dw_nbuckets;
}

/* Newest slot of a page, or -1.  Newer slots stand before older ones. */
static int
dw_lookup(uint32 bucket, const BufferTag *tag)
{
	Assert(DWMutexHeld());

	for (int i = DWBuckets[bucket]; i >= 0; i = DWSlots[i].hash_next)
	{
		if (BufferTagsEqual(&DWSlots[i].tag, tag))
			return i;
	}
	return -1;
}

static void
dw_unlink(int slotno)
{
	int		   *link = &DWBuckets[DWSlots[slotno].bucket];

	Assert(DWMutexHeld());

	while (*link != slotno)
	{
		Assert(*link >= 0);
		link = &DWSlots[*link].hash_next;
	}
	*link = DWSlots[slotno].hash_next;
	DWSlots[slotno].hash_next = -1;
}

static int
dw_in_use_now(void)
{
	return pg_atomic_read_u32(&DWCtl->stage.ninuse);
}

static void
dw_set_in_use(int nslots)
{
	Assert(DWMutexHeld());
	Assert(nslots >= 0 && nslots <= DWCtl->stage.nslots);

	if ((nslots == 0) != (dw_in_use_now() == 0))
		pg_atomic_write_u32(dw_in_use, nslots > 0);
	pg_atomic_write_u32(&DWCtl->stage.ninuse, nslots);
}

/*
 * The staged list has what the next batch can take.  A page that waits for an
 * older version of it, or that could not be written, is not on it. (R4, R11)
 */
static void
dw_enter_list(DWSlot *slot, bool first)
{
	Assert(DWMutexHeld());
	if (slot->listed || slot->behind || slot->failed)
		return;
	if (first)
		dlist_push_head(&DWCtl->stage.staged, &slot->node);
	else
		dlist_push_tail(&DWCtl->stage.staged, &slot->node);
	DWCtl->stage.nstaged++;
	slot->listed = true;
}

static void
dw_leave_list(DWSlot *slot)
{
	Assert(DWMutexHeld());
	if (!slot->listed)
		return;
	Assert(DWCtl->stage.nstaged > 0);
	dlist_delete(&slot->node);
	DWCtl->stage.nstaged--;
	slot->listed = false;
}

/*
 * Home may be torn.
 */
static void
dw_mark_touched(DWSlot *slot)
{
	Assert(DWMutexHeld());
	if (!slot->touched)
		DWCtl->stage.ntouched++;
	slot->touched = true;
}

/*
 * A home write of the page has failed, or of an older version: with this errno, or
 * with DW_STALLED if it has not been tried, which leaves home as it was, or has not come
 * back yet.
 */
static void
dw_mark_failed(DWSlot *slot, int error)
{
	Assert(DWMutexHeld());
	Assert(!DWSlotInState(slot, DW_SLOT_FREE));

	dw_leave_list(slot);
	if (!slot->failed)
		DWCtl->stage.nfailed++;
	slot->failed = true;
	slot->error = error;
	if (error != DW_STALLED)
		dw_mark_touched(slot);
	else
		pg_atomic_write_u32(&DWHomeLoadOf(slot->tag.spcOid)->stalled, 1);
}

/*
 * A version of a page leaves its batch: the one that waits for it needs to no more.
 */
static void
dw_let_newer_go(int slotno)
{
	DWSlot	   *slot = &DWSlots[slotno];
	int			newest = dw_lookup(slot->bucket, &slot->tag);

	Assert(DWSlotInState(slot, DW_SLOT_BATCH) && newest >= 0);
	if (newest != slotno)
	{
		DWSlots[newest].behind = false;
		dw_enter_list(&DWSlots[newest], false);
	}
}

static void
dw_free_slot(int slotno)
{
	DWSlot	   *slot = &DWSlots[slotno];

	Assert(DWMutexHeld());
	Assert(!slot->failed || DWCtl->stage.nfailed > 0);
	Assert(!slot->touched || DWCtl->stage.ntouched > 0);

	if (!slot->discarded && DWSlotInState(slot, DW_SLOT_BATCH))
		dw_let_newer_go(slotno);
	if (!slot->discarded)
		dw_unlink(slotno);
	Assert(!slot->listed);
	DWCtl->stage.nfailed -= slot->failed;
	DWCtl->stage.ntouched -= slot->touched;
	slot->failed = slot->touched = false;
	slot->copy_batchno = 0;
	dw_set_slot_state(slot, DW_SLOT_FREE);
	dlist_push_head(&DWCtl->stage.free, &slot->node);
	dw_set_in_use(dw_in_use_now() - 1);
}


/*
 * Slots from this number on have never been used, so that nothing need look at them.
 * The free list is a stack, so they are few where the stage is larger than it need be.
 */
int
dw_slots_used(void)
{
	return ((volatile DWCtlData *) DWCtl)->stage.nused;
}

/*
 * Return whether it is to be feared that a write to this tablespace does not come back;
 * one of other processes, if the caller is going to write there.  A slow device is not
 * taken for a frozen one: there, writes come back now and then.
 */
bool
dw_is_stalled(Oid spcOid, bool writing)
{
	DWHomeLoad *load = DWHomeLoadOf(spcOid);

	return pg_atomic_read_u32(&load->nwriting) > (uint32) writing &&
		dw_age(&load->ended) >= DW_STALLED_NSEC;
}

/*
 * Return whether a write of any page has failed.  Without a lock, that may change at
 * any time.
 */
bool
dw_pages_have_failed(void)
{
	return ((volatile DWCtlData *) DWCtl)->stage.nfailed > 0;
}

/*
 * Return whether any page may be torn at home.  Without a lock, that may change at any
 * time.
 */
static bool
dw_pages_are_touched(void)
{
	return ((volatile DWCtlData *) DWCtl)->stage.ntouched > 0;
}

/*
 * Return whether one of these pages may be torn at home, as a write of it has failed.
 * None becomes so while the caller holds the flush lock with no home write under way.
 */
bool
dw_any_has_failed(const DWPageSet *pages)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));

	if (!dw_pages_are_touched())
		return false;
	for (int i = 0; i < dw_slots_used(); i++)
	{
		if (((volatile DWSlot *) &DWSlots[i])->touched &&
			DWSlotInSet(pages, &DWSlots[i]))
			return true;
	}
	return false;
}

/*
 * If one of these pages has failed in this run or a later one, or is stalled, return
 * its errno, and which page it is; DW_STALLED or DW_TORN if there is nothing worse.
 * Return 0 if there is none.
 *
 * A page in a batch is being tried again, perhaps by another process: its errno is that of
 * an earlier run.
 */
int
dw_find_failure(const DWPageSet *pages, uint64 since, BufferTag *tag)
{
	int			result = 0;

	if (!dw_pages_have_failed())
		return 0;
	for (int i = 0; i < dw_slots_used(); i++)
	{
		DWSlot	   *slot = &DWSlots[i];

		if (!((volatile DWSlot *) slot)->failed)
			continue;
		DWLockMutex();
		if (slot->failed && !slot->discarded &&
			(slot->error == DW_STALLED ||
			 (slot->run >= since && !DWSlotInState(slot, DW_SLOT_BATCH) &&
			  !dw_is_lack_of_another(slot))) &&
			(result == 0 || slot->error > result) && DWSlotInSet(pages, slot))
		{
			result = slot->error;
			*tag = slot->tag;
		}
		DWUnlockMutex();
		if (result > 0)
			break;
	}
	return result;
}

/*
 * Return how many slots pages can have that have not failed.  Slots in reserve count
 * when there are too few others.
 */
static int
dw_capacity(int nfailed)
{
	int			reserved = DWCtl->stage.nreserved;

	return Max(DWCtl->stage.nslots - reserved - nfailed, reserved);
}

int
dw_stage_capacity(void)
{
	return dw_capacity(((volatile DWCtlData *) DWCtl)->stage.nfailed);
}

/*
 * Return whether a slot can be taken for a page whose file is not known to be bad.
 */
static bool
dw_has_room(int ninuse, int nfailed)
{
	return ninuse < DWCtl->stage.nslots && ninuse - nfailed < dw_capacity(nfailed);
}

/*
 * Find the slot that a new version of a page goes to: that of an older
 * version that is not in a batch yet, else a free one, unless refused.
 * Returns -1 if there is none.  On success the slot is in state FILLING.
 *
 * Taking the place of a version that has failed makes no page that is not home
 * more than there was, but its home may still be torn.
 */
static int
dw_reserve_slot(const BufferTag *tag, uint32 bucket, bool permanent, bool refused,
				bool *replaces)
{
	int			older = dw_lookup(bucket, tag);
	DWSlot	   *slot;
	int			slotno;

	Assert(DWMutexHeld());

	if (older >= 0 && DWSlotInState(&DWSlots[older], DW_SLOT_STAGED))
	{
		Assert(DWSlots[older].permanent == permanent);
		dw_set_slot_state(&DWSlots[older], DW_SLOT_FILLING);
		*replaces = true;
		return older;
	}

	/* a matter of microseconds: its copy in the log is being staged */
	*replaces = false;
	if (older >= 0 && DWSlotInState(&DWSlots[older], DW_SLOT_FILLING) && dw_had_copies())
		return -1;

	/* only one process at a time can stage a given page */
	Assert(older < 0 || DWSlotInState(&DWSlots[older], DW_SLOT_BATCH));

	if (refused || !dw_has_room(dw_in_use_now(), DWCtl->stage.nfailed))
		return -1;

	slot = dlist_container(DWSlot, node, dlist_pop_head_node(&DWCtl->stage.free));
	slotno = slot - DWSlots;
	dw_set_slot_state(slot, DW_SLOT_FILLING);
	slot->tag = *tag;
	/* an older version may be merged into this one before it is filled (R5) */
	slot->permanent = permanent;
	slot->seq = slot->oldest_seq = DWCtl->stage.next_seq++;
	Assert(slot->copy_batchno == 0);
	slot->discarded = false;
	Assert(!slot->failed && !slot->touched);
	slot->use_log = false;
	slot->behind = older >= 0;
	slot->bucket = bucket;
	slot->hash_next = DWBuckets[bucket];
	DWBuckets[bucket] = slotno;
	dw_enter_list(slot, false);
	DWCtl->stage.nused = Max(DWCtl->stage.nused, slotno + 1);
	dw_set_in_use(dw_in_use_now() + 1);
	return slotno;
}

/* ---------------------------------------------------------------------
 * For processes that stage pages
 * ---------------------------------------------------------------------
 */

/*
 * Number of staged pages that a batch could take.  It may be out of date when the
 * caller looks at it, so there is no point in locking.
 */
int
dw_staged_count(void)
{
	return ((volatile DWCtlData *) DWCtl)->stage.nstaged;
}

/*
 * Find a slot for a new version of a page, unless refused; -1 if there is none.
 * The caller fills it and publishes it.  *replaces tells whether it takes the
 * place of an older version, *nstaged how many staged pages a batch could take.
 */
int
dw_reserve_for_page(const BufferTag *tag, bool permanent, bool refused,
					bool *replaces, int *nstaged)
{
	uint32		bucket = dw_bucket(tag);
	int			slotno;

	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	DWLockMutex();
	slotno = dw_reserve_slot(tag, bucket, permanent, refused, replaces);
	*nstaged = dw_staged_count();
	DWUnlockMutex();
	return slotno;
}

/*
 * Home may be torn, and this batch has the copy that mends it: keep it in the log until
 * the page in the slot, which is being filled, is home. (R3)
 */
void
dw_slot_needs_copy(int slotno, uint64 batchno)
{
	DWSlot	   *slot = &DWSlots[slotno];

	Assert(DWSlotInState(slot, DW_SLOT_FILLING));
	DWLockMutex();
	dw_mark_touched(slot);
	if (slot->copy_batchno == 0)
		slot->copy_batchno = batchno;
	DWUnlockMutex();
}

/*
 * Stage a page as one that could not be written home, for this errno, from its copy in the
 * given batch, which the caller has taken.  As others, it is tried again, moves on in the log
 * when that is to be freed, and is refused to processes that need it at home.  Return false
 * if too many have failed, or a newer version is being staged. (R11)
 */
bool
dw_stage_copy(const BufferTag *tag, const char *page, uint64 batchno, int error)
{
	uint32		bucket = dw_bucket(tag);
	DWSlot	   *slot = NULL;
	int			slotno = -1;
	bool		replaces;

	DWLockMutex();
	if (DWCtl->stage.nfailed < DWCtl->stage.nreserved && dw_lookup(bucket, tag) < 0)
		slotno = dw_reserve_slot(tag, bucket, true, false, &replaces);
	if (slotno >= 0)
	{
		slot = &DWSlots[slotno];
		dw_mark_failed(slot, error);
		slot->copy_batchno = batchno;
		slot->use_log = true;
		slot->run = 0;
	}
	DWUnlockMutex();
	if (slot == NULL)
		return false;

	memcpy(DWSlotPage(slotno), page, BLCKSZ);
	slot->lsn = PageGetLSN((Page) DWSlotPage(slotno));
	slot->stager = DW_STAGER_BACKEND;
	memset(&slot->records, 0, sizeof(slot->records));
	slot->records.redo = PG_UINT64_MAX;
	slot->records.hidden = true;
	dw_publish_slot(slotno);
	return true;
}

/*
 * Make a slot that has been filled available to batches.
 *
 * No other process changes the state of a slot that is being filled, so there is no
 * need for the mutex.  The barrier puts the contents before the state; it belongs to
 * those of dw_take_slots() and dw_take_kept(), which look at the state first.
 */
void
dw_publish_slot(int slotno)
{
	Assert(DWSlotInState(&DWSlots[slotno], DW_SLOT_FILLING));

	pg_write_barrier();
	dw_set_slot_state(&DWSlots[slotno], DW_SLOT_STAGED);
}

/*
 * Return whether the stage has a version of this page.  "No" stays true while the caller
 * holds the buffer's I/O.
 */
bool
dw_is_staged(const BufferTag *tag)
{
	bool		result;

	DWLockMutex();
	result = dw_lookup(dw_bucket(tag), tag) >= 0;
	DWUnlockMutex();
	return result;
}

/*
 * Return whether there is a free slot, so that staging a page will not wait.
 */
bool
dw_stage_has_room(void)
{
	return dw_has_room(dw_in_use_now(),
					   ((volatile DWCtlData *) DWCtl)->stage.nfailed);
}

/*
 * Sequence number that the next staged page will get.
 */
uint64
dw_current_seq(void)
{
	uint64		seq;

	DWLockMutex();
	seq = DWCtl->stage.next_seq;
	DWUnlockMutex();
	return seq;
}

/* ---------------------------------------------------------------------
 * Reading and dropping staged pages
 * ---------------------------------------------------------------------
 */

bool
dw_tag_in_relation(const BufferTag *tag, const void *arg)
{
	return BufTagMatchesRelFileLocator(tag, (const RelFileLocator *) arg);
}

bool
dw_tag_in_database(const BufferTag *tag, const void *arg)
{
	return tag->dbOid == *(const Oid *) arg;
}

/*
 * If a page is staged, or waits in the log, copy its newest version to dst and return
 * true.  In the log it is not any more once it has been staged.
 *
 * The caller holds the I/O of the buffer that the page is read into; see the
 * top of this file.  The copy is taken without a lock; if the slot has gone
 * home meanwhile, the caller must read home.  (R6)  So it must if the page has
 * been discarded: such a copy is not found, even if it stays in a batch that
 * outlives the truncation, and its block may come back with other contents. (R7)
 *
 * The first look is without a lock, and most misses need no other.  It can not
 * overlook a copy that was staged before the miss began: the copy's slot was
 * put into the chain before the buffer it came from was marked clean, and that
 * buffer was evicted later, under the lock of a partition of the buffer table.
 * The caller's buffer was entered there under the same lock after that, so we
 * see all that was written before.  If the chain is empty nevertheless, the
 * copy has been taken off it: it was discarded, with its block, or it had reached
 * home.  For the latter, the barrier keeps us from reading home before we have seen
 * the empty chain; it belongs to that of dw_release_slots().
 */
bool
DoubleWriteReadStaged(const BufferTag *tag, char *dst)
{
	uint32		bucket = 0;
	bool		possible = false;
	int			slotno;
	uint64		seq = 0;
	bool		still_there;

	if (dw_read_from_log(tag, dst))
		return true;
	if (pg_atomic_read_u32(dw_in_use) != 0)
	{
		bucket = dw_bucket(tag);
		possible = ((volatile int *) DWBuckets)[bucket] >= 0;
	}
	if (!possible)
	{
		pg_read_barrier();
		return false;
	}

	DWLockMutex();
	slotno = dw_lookup(bucket, tag);
	if (slotno >= 0)
		seq = DWSlots[slotno].seq;
	DWUnlockMutex();

	if (slotno < 0)
		return false;

	INJECTION_POINT("doublewrite-staged-found", NULL);
	memcpy(dst, DWSlotPage(slotno), BLCKSZ);

	DWLockMutex();
	still_there = (!DWSlotInState(&DWSlots[slotno], DW_SLOT_FREE) &&
				   DWSlots[slotno].seq == seq &&
				   !DWSlots[slotno].discarded);
	DWUnlockMutex();

	if (still_there)
		DWCount(stage_hits, 1);
	return still_there;
}

/*
 * A page is being removed whose home may be torn: keep this batch, the log's
 * copy of it, until the removal is durable. (R3)  Mutex held.
 *
 * The process that removes the page has begun in the present generation of removals, or
 * in the one before, which a checkpoint is waiting for.  Either way that is over
 * when the present one is waited for.  So two numbers tell what to keep.
 */
static void
dw_keep_removed(uint64 batchno)
{
	uint32		generation = pg_atomic_read_u32(&DWCtl->removals.generation);
	uint64	   *kept = &DWCtl->removals.first_batch[generation & 1];

	Assert(DWMutexHeld());
	Assert(batchno != 0);

	if (*kept == 0 || batchno < *kept)
		*kept = batchno;
}

/*
 * The same for a page that is not staged.
 */
void
dw_keep_batch_of_removed(uint64 batchno)
{
	DWLockMutex();
	dw_keep_removed(batchno);
	DWUnlockMutex();
}

/*
 * First batch that is kept, or PG_UINT64_MAX.
 */
uint64
dw_first_removed_batch(void)
{
	uint64		result = PG_UINT64_MAX;

	DWLockMutex();
	for (int i = 0; i < 2; i++)
	{
		if (DWCtl->removals.first_batch[i] != 0)
			result = Min(result, DWCtl->removals.first_batch[i]);
	}
	DWUnlockMutex();
	return result;
}

/*
 * A page is being removed.  If its home may be torn, the log must keep the copy
 * until the removal is durable. (R3)  Mutex held.
 */
static void
dw_keep_copy(const DWSlot *slot)
{
	Assert(DWMutexHeld());
	if (slot->touched && slot->copy_batchno != 0)
		dw_keep_removed(slot->copy_batchno);
}

/*
 * Drop one page.  Returns whether it is in a batch: then its slot stays there,
 * but no process may find it.  Mutex held.
 */
static bool
dw_discard_slot(int slotno)
{
	DWSlot	   *slot = &DWSlots[slotno];

	Assert(DWMutexHeld());
	Assert(!DWSlotInState(slot, DW_SLOT_FILLING));

	dw_keep_copy(slot);
	if (DWSlotInState(slot, DW_SLOT_STAGED))
	{
		dw_leave_list(slot);
		dw_free_slot(slotno);
		return false;
	}
	if (!slot->discarded)
		dw_unlink(slotno);
	slot->discarded = true;
	return true;
}

/*
 * Drop the staged pages for which filter says yes.  Returns whether one of them
 * is in a batch, so that a home write of it may be in flight.
 *
 * The caller has dropped the buffers concerned and prevents new ones, so no
 * page that matters can be staged while we look.
 */
bool
dw_discard_staged(DWTagFilter filter, const void *arg)
{
	bool		in_batch = false;
	int			ndiscarded = 0;

	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));

	if (dw_in_use_now() == 0)
		return false;

	for (int i = 0; i < dw_slots_used(); i++)
	{
		DWSlot	   *slot = &DWSlots[i];
		BufferTag	tag = slot->tag;

		/* peek without the lock: the tags we look for are not added now */
		if (!filter(&tag, arg))
			continue;

		DWLockMutex();
		if (!DWSlotInState(slot, DW_SLOT_FREE) && BufferTagsEqual(&slot->tag, &tag))
		{
			in_batch |= dw_discard_slot(i);
			ndiscarded++;
		}
		DWUnlockMutex();
	}

	DWCount(discarded, ndiscarded);
	dw_tell_room(ndiscarded);
	return in_batch;
}

/* ---------------------------------------------------------------------
 * For the flusher
 * ---------------------------------------------------------------------
 */

static void
dw_take_slot(DWSlot *slot)
{
	Assert(DWMutexHeld());
	Assert(DWIsFlusher());
	Assert(!slot->discarded);
	Assert(!slot->behind);		/* R4 */
	dw_leave_list(slot);
	dw_set_slot_state(slot, DW_SLOT_BATCH);
}

/*
 * Move some slots of the staged list into the batch, oldest first.  Returns how many.
 * None of them is behind an older version. (R4)
 */
static int
dw_take_chunk(int *slots, int max)
{
	dlist_mutable_iter iter;
	int			n = 0;

	Assert(DWMutexHeld());

	/* what is being filled is passed over: by few processes, and not for long */
	dlist_foreach_modify(iter, &DWCtl->stage.staged)
	{
		DWSlot	   *slot = dlist_container(DWSlot, node, iter.cur);

		if (n >= max)
			break;
		if (!DWSlotInState(slot, DW_SLOT_STAGED))
			continue;
		dw_take_slot(slot);
		slots[n++] = slot - DWSlots;
	}
	return n;
}

/*
 * Move slots into the batch of pages that could not be written home: those in the set,
 * if they keep a batch below the given one in the log, or PG_UINT64_MAX.  Pages that would
 * only come back, as writes there are stalled, are left out, and none is taken again
 * before the others have been.
 */
static int
dw_take_failed(int *slots, int max, const DWPageSet *pages, uint64 before,
			   bool touched)
{
	static int	first = 0;
	int			nused = dw_slots_used();
	int			n = 0;

	if (pages == NULL || !(dw_pages_have_failed() || (touched && dw_pages_are_touched())))
		return 0;
	max = Min(max, pages->max);
	for (int k = 0; k < nused && n < max; k++)
	{
		int			i = (first + k) % nused;
		DWSlot	   *slot = &DWSlots[i];

		if (!(((volatile DWSlot *) slot)->failed || (touched && slot->touched)) ||
			(before == PG_UINT64_MAX && slot->error == DW_STALLED &&
			 dw_is_stalled(slot->tag.spcOid, false)))
			continue;
		DWLockMutex();
		if (DWSlotInState(slot, DW_SLOT_STAGED) && !slot->behind &&
			(slot->failed || (touched && slot->touched)) &&
			DWSlotInSet(pages, slot) &&
			(before == PG_UINT64_MAX ||
			 (slot->copy_batchno != 0 && slot->copy_batchno < before)))
		{
			dw_take_slot(slot);
			slots[n++] = i;
		}
		DWUnlockMutex();
	}
	if (n == max)
		first = slots[n - 1] + 1;
	return n;
}

/*
 * Move up to max staged slots into the batch, oldest first.  Slots of which a
 * home write has failed are left alone, except those in retry, which come first.
 *
 * A page of which an older version is on its way home is left for later, so no
 * page is in a batch twice, and none in two batches. (R4)  That goes as well for what
 * is staged while the mutex is let go, which it is now and then.
 */
int
dw_take_slots(int *slots, int max, const DWPageSet *retry)
{
	int			n;
	int			taken;

	Assert(DWIsFlusher());
	Assert(max <= DW_MAX_BATCH_PAGES);

	n = dw_take_failed(slots, max, retry, PG_UINT64_MAX, false);
	do
	{
		DWLockMutex();
		taken = dw_take_chunk(slots + n, Min(max - n, DW_TAKE_CHUNK));
		DWUnlockMutex();
		n += taken;
		INJECTION_POINT("doublewrite-chunk-taken", NULL);
	} while (taken == DW_TAKE_CHUNK);

	/* the state of slots before their contents; see dw_publish_slot() */
	pg_read_barrier();
	return n;
}

/*
 * Move up to max slots into the batch that have failed, or took the place of a copy that
 * no process had needed, if "touched", and keep a batch below the given one in the log.
 */
int
dw_take_kept(int *slots, int max, uint64 before, bool touched)
{
	int			n;

	Assert(DWIsFlusher());
	Assert(max <= DW_MAX_BATCH_PAGES);

	n = dw_take_failed(slots, max, &DWAllPages, before, touched);
	pg_read_barrier();			/* as in dw_take_slots() */
	return n;
}

/*
 * The pages are home: their slots are free again.
 */
void
dw_release_slots(const int *slots, int nslots)
{
	/* a process that sees the slots gone must see the pages at home (R6) */
	pg_write_barrier();

	for (int i = 0; i < nslots;)
	{
		int			end = Min(nslots, i + DW_TAKE_CHUNK);

		DWLockMutex();
		for (; i < end; i++)
		{
			Assert(DWSlotInState(&DWSlots[slots[i]], DW_SLOT_BATCH));
			dw_free_slot(slots[i]);
		}
		DWUnlockMutex();
	}
	dw_tell_room(nslots);
}

/*
 * A page cannot be written home and a newer version of it has been staged meanwhile,
 * which will do for both: processes that wait for the older one, or keep its copy in the
 * log, must wait for the newer. (R3, R4, R11)
 */
static void
dw_merge_into_newer(int slotno, int newest)
{
	DWSlot	   *slot = &DWSlots[slotno];
	DWSlot	   *newer = &DWSlots[newest];

	Assert(DWMutexHeld());
	if (slot->failed)
	{
		dw_mark_failed(newer, slot->error);
		newer->run = slot->run;
	}
	if (slot->touched)
		dw_mark_touched(newer);
	if (slot->copy_batchno != 0)
		newer->copy_batchno = slot->copy_batchno;
	newer->oldest_seq = Min(newer->oldest_seq, slot->oldest_seq);
	newer->use_log |= slot->use_log || slot->records.unreported;
	DWCtl->stage.nmerged++;
	dw_free_slot(slotno);
}

/*
 * A page in a batch returns to the stage, as its home write has failed with this
 * errno, or was not tried (DW_STALLED); or, with 0, as the batch cannot be carried on
 * with or has been called back, which leaves it failed if it was.  As long as home has not
 * been touched, the page needs nothing of the log. (R3, R4, R11)  One that has been in
 * the log for nothing is the first of the next batch, not the last of all.
 */
void
dw_restage_slot(int slotno, int error, bool first)
{
	DWSlot	   *slot = &DWSlots[slotno];
	int			newest;
	bool		room;

	if (dw_is_lack(error))
		dw_lacking_run = slot->run;

	DWLockMutex();
	Assert(DWSlotInState(slot, DW_SLOT_BATCH));
	if (error == 0 && slot->failed)
		error = slot->error;
	if (error != 0)
		dw_mark_failed(slot, error);
	if (!slot->touched)
		slot->copy_batchno = 0;
	newest = slot->discarded ? -1 : dw_lookup(slot->bucket, &slot->tag);
	if (slot->discarded)
	{
		/* the process that removes it waits for us, or has seen it */
		dw_keep_copy(slot);
		dw_free_slot(slotno);
	}
	else if (newest != slotno)
		dw_merge_into_newer(slotno, newest);
	else
	{
		dw_set_slot_state(slot, DW_SLOT_STAGED);
		dw_enter_list(slot, first);
	}
	room = dw_has_room(dw_in_use_now(), DWCtl->stage.nfailed);
	DWUnlockMutex();
	if (room)
		dw_tell_room(1);
}

/*
 * A home write of this page may not come back: it counts as failed, and so does a newer
 * version, which waits for it.  For processes that want room, which must not wait for what
 * may hold its slots for ever.  The caller may be wrong about the page, as it has no lock:
 * it is not lost, but tried a bit later.
 */
void
dw_mark_stalled(int slotno)
{
	DWSlot	   *slot = &DWSlots[slotno];

	DWLockMutex();
	if (DWSlotInState(slot, DW_SLOT_BATCH))
	{
		dw_mark_failed(slot, DW_STALLED);
		if (!slot->discarded)
			dw_mark_failed(&DWSlots[dw_lookup(slot->bucket, &slot->tag)], DW_STALLED);
	}
	DWUnlockMutex();
}

/*
 * Writes to this tablespace come back: the next batch can have the pages that have
 * failed by stalls only.  Returns whether there may have been some.
 */
bool
dw_let_stalled_go(Oid spcOid)
{
	DWHomeLoad *load = DWHomeLoadOf(spcOid);

	if (pg_atomic_read_u32(&load->stalled) == 0 ||
		pg_atomic_exchange_u32(&load->stalled, 0) == 0)
		return false;

	for (int i = 0; i < dw_slots_used(); i++)
	{
		DWSlot	   *slot = &DWSlots[i];

		if (!((volatile DWSlot *) slot)->failed)
			continue;
		DWLockMutex();
		if (slot->failed && !slot->touched && DWHomeLoadOf(slot->tag.spcOid) == load &&
			!DWSlotInState(slot, DW_SLOT_BATCH))
		{
			slot->failed = false;
			DWCtl->stage.nfailed--;
			dw_enter_list(slot, false);
		}
		DWUnlockMutex();
	}
	dw_tell_room(1);			/* there may be a batch for one of them */
	return true;
}

/*
 * An atomic write has not been made, or only in part, which must not happen but
 * leaves home torn.  Keep the copy, and have it pass through the log. (A2, R11)
 */
void
dw_restage_for_log(int slotno, int error)
{
	DWSlot	   *slot = &DWSlots[slotno];

	Assert(DWIsFlusher());

	DWLockMutex();
	Assert(slot->atomic);
	slot->use_log = true;
	DWUnlockMutex();
	dw_restage_slot(slotno, error, false);
}

static uint64
dw_merge_count(void)
{
	uint64		n;

	DWLockMutex();
	n = DWCtl->stage.nmerged;
	DWUnlockMutex();
	return n;
}

/*
 * Return whether a version of one of these pages that was staged before seq has not
 * reached home.  *state tells how far they have come: STAGED if one is waiting for a
 * batch, else BATCH if one is in a batch or on its way home, else FILLING if all are
 * being replaced.
 *
 * Slots are looked at without the mutex.  Such a page is in its slot since before the
 * call, and leaves it when it is home, or for the slot of a newer version, which we may
 * have looked at already: then we look again.
 */
bool
dw_unfinished_before(uint64 seq, const DWPageSet *pages, DWSlotState *state)
{
	uint64		merged;

	do
	{
		merged = dw_merge_count();
		*state = DW_SLOT_FREE;
		for (int i = 0; i < dw_slots_used() && *state != DW_SLOT_STAGED; i++)
		{
			volatile DWSlot *slot = &DWSlots[i];
			DWSlotState found = pg_atomic_read_u32(&DWSlots[i].state);

			if (found == DW_SLOT_FREE || slot->oldest_seq >= seq ||
				!DWSlotInSet(pages, &DWSlots[i]))
				continue;
			if (found == DW_SLOT_STAGED && slot->behind)
				found = DW_SLOT_BATCH;
			if (*state == DW_SLOT_FREE || *state == DW_SLOT_FILLING || found == DW_SLOT_STAGED)
				*state = found;
		}
	} while (*state == DW_SLOT_FREE && dw_merge_count() != merged);

	return *state != DW_SLOT_FREE;
}

/*
 * First batch that a page keeps in the log which is not home, or the number given.  The
 * flush lock is held, and no home write is under way.
 */
uint64
dw_first_kept_batch(uint64 result)
{
	Assert(DWIsFlusher());

	for (int i = 0; i < dw_slots_used(); i++)
	{
		uint64		batchno = ((volatile DWSlot *) &DWSlots[i])->copy_batchno;

		if (batchno != 0)
			result = Min(result, batchno);
	}
	return result;
}
