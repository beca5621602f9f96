/*-------------------------------------------------------------------------
 *
 * copies.c
 *	  Copies in the log that stay there until their pages are needed.
 *
 * After a crash a page may be torn at home, and the log has a copy of it.
 * Restore writes such copies home before anything reads a page.  With
 * instant_recovery the start only enters them here, and goes on with the log as
 * it is.  Each of them counts as the newest version of its page, as if it were
 * staged:
 *
 *	  * A buffer miss reads it instead of home (R6).
 *	  * Staging a newer version of the page replaces it.  Until that is home, the
 *		batch with the copy stays, as it does for a home write that has failed.
 *	  * A drop or truncation discards it (R7).
 *	  * Checkpoints, processes that look at files, and those that need space in the
 *		log have what is left of it written home first (bring.c).
 *
 * The low-water mark does not pass the first batch with a copy that is here (R3), so a
 * crash finds all of them again, with what has been logged since.
 *
 *		PENDING --> TAKEN --> DONE
 *			^---------'
 *
 * A process takes a copy to write it home, or when it has a slot for a newer version
 * of its page, and gives it back if the write fails.  Other processes that want to
 * stage or discard the page wait, but those that read it don't: what is taken is still
 * the newest version that they can find, since they hold the I/O of an invalid buffer
 * for the page.
 *
 * The table is filled by the startup process before there are others, in the order
 * of pages; after that only states change.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/copies.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "common/relpath.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/shmem.h"
#include "utils/wait_event.h"

bool		DoubleWriteRestoreOnDemand = false;

/*
 * Room for copies, for each page that the log's bound has room for.  They may be
 * compressed, so that there are more.  What finds none is restored at the start.
 */
#define DW_COPIES_PER_PAGE	2

typedef struct DWCopies
{
	pg_atomic_uint32 left;		/* copies that are not DONE; read at each
								 * buffer miss */
	char		pad[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint32)];
	int			n;
	DWPendingCopy copies[FLEXIBLE_ARRAY_MEMBER];
} DWCopies;

static DWCopies *DWPendingCopies = NULL;

static int
dw_copies_max(int segments)
{
	return segments * DW_SEGMENT_BLOCKS * DW_COPIES_PER_PAGE;
}

/*
 * Return the shared memory needed for the table, in bytes.
 */
Size
dw_copies_shmem_size(int segments)
{
	if (!DoubleWriteRestoreOnDemand)
		return 0;
	return add_size(offsetof(DWCopies, copies),
					mul_size(dw_copies_max(segments), sizeof(DWPendingCopy)));
}

/*
 * Create or attach to the table.
 */
void
dw_copies_shmem_init(void)
{
	bool		found;

	if (!DoubleWriteRestoreOnDemand)
		return;
	DWPendingCopies = ShmemInitStruct("Double Write Copies",
									  dw_copies_shmem_size(DWCtl->segments), &found);
	if (!found)
	{
		pg_atomic_init_u32(&DWPendingCopies->left, 0);
		DWPendingCopies->n = 0;
	}
}

/*
 * Return whether there is room for one more copy.
 */
bool
dw_has_room_for_copy(void)
{
	return DWPendingCopies != NULL && DWPendingCopies->n < dw_copies_max(DWCtl->segments);
}

/*
 * Return whether copies have been left in the log by this server's start.
 */
bool
dw_had_copies(void)
{
	return DWPendingCopies != NULL && DWPendingCopies->n > 0;
}

/*
 * Return how many copies are still in the log only.
 */
uint32
dw_copies_left(void)
{
	uint32		left;

	if (DWPendingCopies == NULL)
		return 0;
	left = pg_atomic_read_u32(&DWPendingCopies->left);
	/* what stands for those that are DONE has been shown before */
	pg_memory_barrier();
	return left;
}

/*
 * Enter a copy.  They come in the order of pages.
 */
void
dw_add_copy(const DWCopy *copy)
{
	int			n = DWPendingCopies->n++;
	DWPendingCopy *entry = &DWPendingCopies->copies[n];

	Assert(DWIsFlusher());
	Assert(!DWCtl->started);
	Assert(n < dw_copies_max(DWCtl->segments));
	Assert(copy->batchno >= DWCtl->log.low_water);
	Assert(n == 0 || DWComparePages(&entry[-1].copy.entry, &copy->entry) < 0);

	entry->copy = *copy;
	pg_atomic_init_u32(&entry->state, DW_COPY_PENDING);
	pg_atomic_fetch_add_u32(&DWPendingCopies->left, 1);
}

/*
 * Return the place of the first copy that does not come before this page.
 */
static int
dw_search_copies(const DWPageEntry *page)
{
	int			low = 0;
	int			high = DWPendingCopies->n;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (DWComparePages(&DWPendingCopies->copies[middle].copy.entry, page) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Begin to look for copies of pages in the set that are not DONE, all of which belong to
 * this relation, or NULL.
 */
void
dw_begin_copies(DWCopyScan *scan, const DWPageSet *pages, const RelFileLocator *rlocator)
{
	scan->pages = pages;
	scan->rlocator = rlocator;
	scan->before = PG_UINT64_MAX;
	scan->next = 0;
	if (rlocator != NULL && dw_copies_left() > 0)
	{
		DWPageEntry first = {.rlocator = *rlocator};

		scan->next = dw_search_copies(&first);
	}
}

/*
 * Return the next one, or NULL.
 */
DWPendingCopy *
dw_next_copy(DWCopyScan *scan, BufferTag *tag)
{
	if (dw_copies_left() == 0)
		return NULL;
	while (scan->next < DWPendingCopies->n)
	{
		DWPendingCopy *entry = &DWPendingCopies->copies[scan->next];
		const DWPageEntry *page = &entry->copy.entry;

		if (scan->rlocator != NULL && !RelFileLocatorEquals(page->rlocator, *scan->rlocator))
			return NULL;
		scan->next++;
		InitBufferTag(tag, &page->rlocator, page->forknum, page->blkno);
		if (entry->copy.batchno < scan->before &&
			pg_atomic_read_u32(&entry->state) != DW_COPY_DONE &&
			DWPageInSet(scan->pages, tag))
			return entry;
	}
	return NULL;
}

/*
 * Return the first batch with a copy that is not DONE, or PG_UINT64_MAX.  The caller looks
 * for slots that keep batches after that, as copies are replaced by these.
 */
uint64
dw_first_pending_batch(void)
{
	uint64		result = PG_UINT64_MAX;
	int			n = dw_copies_left() > 0 ? DWPendingCopies->n : 0;

	for (int i = 0; i < n; i++)
	{
		DWPendingCopy *entry = &DWPendingCopies->copies[i];

		if (entry->copy.batchno < result &&
			pg_atomic_read_u32(&entry->state) != DW_COPY_DONE)
			result = entry->copy.batchno;
	}
	pg_memory_barrier();
	return result;
}

/*
 * Return the copy of a page that is not DONE, or NULL.
 */
static DWPendingCopy *
dw_find_copy(const BufferTag *tag)
{
	DWPageEntry page = {0};
	DWPendingCopy *entry;
	int			i;

	if (DWPendingCopies == NULL || pg_atomic_read_u32(&DWPendingCopies->left) == 0)
		return NULL;
	page.rlocator = BufTagGetRelFileLocator(tag);
	page.forknum = BufTagGetForkNum(tag);
	page.blkno = tag->blockNum;
	i = dw_search_copies(&page);
	entry = &DWPendingCopies->copies[i];
	if (i == DWPendingCopies->n || DWComparePages(&entry->copy.entry, &page) != 0 ||
		pg_atomic_read_u32(&entry->state) == DW_COPY_DONE)
		return NULL;
	return entry;
}

/* ---------------------------------------------------------------------
 * Reading
 * ---------------------------------------------------------------------
 */

static int
dw_open_copy(const DWPendingCopy *entry)
{
	char		path[MAXPGPATH];

	dw_log_path(path, entry->copy.segno);
	return OpenTransientFile(path, O_RDONLY | PG_BINARY);
}

/*
 * Tell the kernel that a copy is going to be read.
 */
void
dw_announce_copy(const DWPendingCopy *entry)
{
#if defined(USE_POSIX_FADVISE) && defined(POSIX_FADV_WILLNEED)
	int			fd = dw_open_copy(entry);

	if (fd < 0)
		return;
	(void) posix_fadvise(fd, entry->copy.offset, entry->copy.entry.length,
						 POSIX_FADV_WILLNEED);
	CloseTransientFile(fd);
#endif
}

/*
 * If the newest version of a page is in the log, tell the kernel that it is going to be
 * read, and return true: there is no point in reading home ahead.
 */
bool
DoubleWriteAnnounceCopy(const RelFileLocator *rlocator, ForkNumber forknum,
						BlockNumber blkno)
{
	DWPendingCopy *entry;
	BufferTag	tag;

	InitBufferTag(&tag, rlocator, forknum, blkno);
	entry = dw_find_copy(&tag);
	if (entry != NULL)
		dw_announce_copy(entry);
	return entry != NULL;
}

/*
 * Read a copy from the log.  Return false if that is impossible, with errno set, or 0 if
 * the copy is damaged: or the page is DONE, after which the log may have something else
 * in its place.
 */
bool
dw_try_read_copy(const DWPendingCopy *entry, char *page)
{
	bool		intact;
	bool		read;
	int			fd = dw_open_copy(entry);

	if (fd < 0)
		return false;
	errno = 0;
	read = DWReadCopy(fd, &entry->copy, page, &intact);
	if (read || intact)
		errno = 0;
	CloseTransientFile(fd);
	return read;
}

/*
 * Return whether the copy is DONE by now; the caller has looked at the entry before.
 */
bool
dw_copy_is_past(DWPendingCopy *entry)
{
	pg_read_barrier();
	return pg_atomic_read_u32(&entry->state) == DW_COPY_DONE;
}

/*
 * Return whether a copy that could not be read is lost, by errno.  Lack of a descriptor
 * or of memory is no damage.
 */
bool
dw_copy_is_lost(int error)
{
	return error != EMFILE && error != ENFILE && error != ENOMEM;
}

/*
 * Throw an error since a copy cannot be read, for the reason in errno.
 */
void
dw_refuse_copy(const DWPendingCopy *entry)
{
	const DWCopy *copy = &entry->copy;
	char		path[MAXPGPATH];
	bool		reason = errno != 0;
	bool		damaged = dw_copy_is_lost(errno);

	dw_log_path(path, copy->segno);
	ereport(ERROR,
			(damaged ? errcode(ERRCODE_DATA_CORRUPTED) : errcode_for_file_access(),
			 reason ?
			 errmsg("could not read the copy of block %u of relation \"%s\" in the double-write log: %m",
					copy->entry.blkno,
					relpathperm(copy->entry.rlocator, copy->entry.forknum).str) :
			 errmsg("could not read the copy of block %u of relation \"%s\" in the double-write log",
					copy->entry.blkno,
					relpathperm(copy->entry.rlocator, copy->entry.forknum).str),
			 errdetail("It should stand in file \"%s\" at offset %u.  The last crash may have torn the block in its relation file.",
					   path, copy->offset),
			 damaged ?
			 errhint("Check the storage, and restore the cluster from a backup or fail over to a standby.") : 0));
}

/*
 * If the newest version of a page is a copy in the log, read it and return true.  The
 * caller holds the I/O of the buffer that it reads into.  If the answer is no, what is
 * staged, or home, counts as of now.
 */
bool
dw_read_from_log(const BufferTag *tag, char *page)
{
	DWPendingCopy *entry = dw_find_copy(tag);

	if (entry != NULL)
	{
		if (dw_try_read_copy(entry, page))
			return true;
		if (!dw_copy_is_past(entry))
			dw_refuse_copy(entry);
	}
	/* it has been staged or written home before it was DONE */
	pg_read_barrier();
	return false;
}

/* ---------------------------------------------------------------------
 * States
 * ---------------------------------------------------------------------
 */

/*
 * Take a copy, unless it is DONE, or another process has it.
 */
bool
dw_try_take_copy(DWPendingCopy *entry)
{
	uint32		state = DW_COPY_PENDING;

	return pg_atomic_compare_exchange_u32(&entry->state, &state, DW_COPY_TAKEN);
}

/*
 * Another process has taken a copy: wait a moment for it, unless the copy is DONE.  Return
 * whether it may be taken now.
 */
bool
dw_await_copy(DWPendingCopy *entry)
{
	if (dw_copy_is_past(entry))
		return false;
	CHECK_FOR_INTERRUPTS();
	dw_wait_a_moment(100, WAIT_EVENT_DOUBLE_WRITE_HOME);
	return true;
}

/*
 * Take a copy, waiting for a process that has it.  Return false if it is DONE.
 */
static bool
dw_take_copy(DWPendingCopy *entry)
{
	while (!dw_try_take_copy(entry))
	{
		if (!dw_await_copy(entry))
			return false;
	}
	return true;
}

/*
 * Take the copy of a page that the caller is going to stage, or return NULL.
 */
DWPendingCopy *
dw_take_copy_of(const BufferTag *tag)
{
	DWPendingCopy *entry = dw_find_copy(tag);

	/* an error would leave its slot as it is */
	Assert(entry == NULL || InterruptHoldoffCount > 0 || CritSectionCount > 0);
	return entry != NULL && dw_take_copy(entry) ? entry : NULL;
}

void
dw_give_copy_back(DWPendingCopy *entry)
{
	Assert(pg_atomic_read_u32(&entry->state) == DW_COPY_TAKEN);
	pg_atomic_write_membarrier_u32(&entry->state, DW_COPY_PENDING);
}

/*
 * The caller has taken the copy.  What stands for it from now on has been shown.
 */
void
dw_copy_is_done(DWPendingCopy *entry)
{
	Assert(pg_atomic_read_u32(&entry->state) == DW_COPY_TAKEN);
	pg_atomic_write_membarrier_u32(&entry->state, DW_COPY_DONE);
	pg_atomic_fetch_sub_u32(&DWPendingCopies->left, 1);
}

/*
 * Discard the copies of these pages, which are being removed, all of this relation, or
 * NULL.  "keep" is told the batch of each before. (R3)
 */
void
dw_discard_copies(const DWPageSet *pages, const RelFileLocator *rlocator,
				  void (*keep) (uint64 batchno))
{
	DWCopyScan	scan;
	DWPendingCopy *entry;
	BufferTag	tag;

	dw_begin_copies(&scan, pages, rlocator);
	while ((entry = dw_next_copy(&scan, &tag)) != NULL)
	{
		/*
		 * a process that has it writes it home, or stages the page, which is
		 * waited for
		 */
		if (!dw_take_copy(entry))
			continue;
		keep(entry->copy.batchno);
		dw_copy_is_done(entry);
	}
	/* the caller sees what has been staged before it looks for that */
	pg_memory_barrier();
}
