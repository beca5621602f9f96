/*-------------------------------------------------------------------------
 *
 * log.c
 *	  The double-write log: batches, low-water mark, arming.
 *
 * See doublewrite_format.h for the format, segment.c for the files, and
 * marker.c for the files that tell other programs that the log is in use.
 * All of this runs with DoubleWriteFlushLock held, so batches are written one
 * after the other, and a batch is durable before the next one starts: only
 * the newest can be torn.
 *
 * Space is freed by raising the low-water mark: batches below it have been
 * written home and their files synced.  The mark travels in the headers of
 * batches; where it must be durable at once, an empty batch carries it.  The
 * last block of each segment is kept for such a batch, so that raising the
 * mark never needs space that the mark itself would free.  Segments below a
 * durable mark are renamed to become future segments. (R3)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef USE_LZ4
#include <lz4.h>
#endif
#ifdef USE_ZSTD
#include <zstd.h>
#endif

#include "access/xlog.h"
#include "port/pg_iovec.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"

/* Weight of the newest batch in the average of their sizes */
#define DW_WRITE_SHARE			(1.0 / 16)

static PGIOAlignedBlock dw_header_block;

#define DWHeader ((DWBatchHeader *) dw_header_block.data)

/* ---------------------------------------------------------------------
 * Compression
 *
 * It saves bandwidth of the log's device at the price of processor time of
 * the flusher, which holds DoubleWriteFlushLock meanwhile.  Nothing in here
 * may fail: a page that cannot be compressed, for whatever reason, is logged
 * as it is.
 *
 * Pages are compressed one by one, as restore reads single copies, and before
 * space in the log is reserved, so that a batch takes no more than it needs.
 * The method is the setting of the process that writes the batch; a process
 * that resumes it compresses it anew.  See DWReadCopy() for the way back.
 * ---------------------------------------------------------------------
 */

/*
 * Level of zstd: its fastest regular one.  Home writes of a whole batch wait
 * for it, and on single pages higher levels gain next to nothing.
 */
#define DW_ZSTD_LEVEL			1

/* The pages of one batch; see dw_pack_buffer() */
static char *dw_packed = NULL;

#ifdef USE_ZSTD
/* State of zstd, kept as well, because it is expensive to create */
static ZSTD_CCtx *dw_zstd = NULL;
#endif

/*
 * Return memory for the pages of one batch, none of which is stored longer
 * than it is, or NULL if there is none.  It is allocated when a process
 * compresses its first batch, and kept, since that is likely to be the
 * background writer or the checkpointer.  Other processes free it with
 * dw_free_pack_buffer().
 */
static char *
dw_pack_buffer(void)
{
	if (dw_packed == NULL)
		dw_packed = MemoryContextAllocAligned(TopMemoryContext,
											  (Size) DW_MAX_BATCH_PAGES * BLCKSZ,
											  PG_IO_ALIGN_SIZE,
											  MCXT_ALLOC_NO_OOM);
	return dw_packed;
}

static void
dw_free_pack_buffer(void)
{
	if (dw_packed != NULL)
		pfree(dw_packed);
	dw_packed = NULL;
#ifdef USE_ZSTD
	ZSTD_freeCCtx(dw_zstd);
	dw_zstd = NULL;
#endif
}

#ifdef USE_ZSTD
static Size
dw_compress_zstd(const char *page, char *dst)
{
	Size		length;

	if (dw_zstd == NULL && (dw_zstd = ZSTD_createCCtx()) == NULL)
		return 0;
	length = ZSTD_compressCCtx(dw_zstd, dst, BLCKSZ - 1, page, BLCKSZ,
							   DW_ZSTD_LEVEL);
	return ZSTD_isError(length) ? 0 : length;
}
#endif

/*
 * Compress a page.  Return its length, or 0 if it does not get shorter or the
 * compressor fails.
 */
static Size
dw_compress_page(int method, const char *page, char *dst)
{
#ifdef USE_LZ4
	if (method == DW_COMPRESSION_LZ4)
		return LZ4_compress_default(page, dst, BLCKSZ, BLCKSZ - 1);
#endif
#ifdef USE_ZSTD
	if (method == DW_COMPRESSION_ZSTD)
		return dw_compress_zstd(page, dst);
#endif
	return 0;
}

/*
 * Put the pages of a batch one after the other, compressed as the setting
 * asks for, and note their lengths in the header.  Return them, followed by
 * zeroes up to a whole block, or NULL if the pages are to be written as they
 * are.
 */
static char *
dw_pack_pages(DWBatchHeader *hdr, const int *slots, int nslots)
{
	DWPageEntry *entries = DWBatchEntries(hdr);
	int			method = double_write_compression;
	char	   *packed = NULL;
	char	   *dst;

	Assert(DWIsFlusher());

	if (method != DW_COMPRESSION_OFF && nslots > 0)
		packed = dw_pack_buffer();
	if (packed == NULL)
	{
		for (int i = 0; i < nslots; i++)
			entries[i].length = BLCKSZ;
		return NULL;
	}

	dst = packed;
	for (int i = 0; i < nslots; i++)
	{
		const char *page = DWSlotPage(slots[i]);
		Size		length;

		length = dw_compress_page(method, page, dst);
		if (length > 0)
			hdr->compression = method;
		else
		{
			memcpy(dst, page, BLCKSZ);
			length = BLCKSZ;
		}
		entries[i].length = length;
		dst += length;
	}
	memset(dst, 0, packed + (Size) (DWBatchBlocks(hdr) - 1) * BLCKSZ - dst);
	return packed;
}

/* ---------------------------------------------------------------------
 * Writing batches
 * ---------------------------------------------------------------------
 */

/*
 * Set the redo pointer that a crash would recover from.  images tells whether
 * WAL at that point carries full-page images.
 */
void
DoubleWriteSetRedo(XLogRecPtr redo, bool images)
{
	DWLockMutex();
	DWCtl->redo.last = redo;
	DWCtl->redo.images = images;
	DWCtl->redo.pending = InvalidXLogRecPtr;
	DWUnlockMutex();
	pg_atomic_write_u64(&DWCtl->recover_from, redo);
}

/*
 * Begin the header of a batch: which pages these are, and how many bytes each
 * of them takes after it.  The first ncopies are written as copies, the
 * others as notes.  Return the pages in the form to be written if they have
 * been compressed, else NULL.
 */
static char *
dw_build_entries(const int *slots, int nslots, int ncopies)
{
	DWPageEntry *entries = DWBatchEntries(DWHeader);
	char	   *packed;
	char	   *stored;

	memset(&dw_header_block, 0, sizeof(dw_header_block));
	DWHeader->npages = nslots;
	stored = packed = dw_pack_pages(DWHeader, slots, ncopies);

	for (int i = 0; i < nslots; i++)
	{
		const DWSlot *slot = &DWSlots[slots[i]];
		const char *page = packed && i < ncopies ? stored : DWSlotPage(slots[i]);

		entries[i].rlocator = BufTagGetRelFileLocator(&slot->tag);
		entries[i].forknum = BufTagGetForkNum(&slot->tag);
		entries[i].blkno = slot->tag.blockNum;
		entries[i].crc = DWIsNote(&entries[i]) ? DWHintDigest(page) :
			DWPageChecksum(page, entries[i].length);
		entries[i].lsn = slot->lsn;

		/* WAL has been flushed up to here (R1) */
		Assert(RecoveryInProgress() || slot->lsn <= GetFlushRecPtr(NULL));
		DWCtl->log.wal_end = Max(DWCtl->log.wal_end, slot->lsn);
		if (packed)
			stored += entries[i].length;
	}
	return packed;
}

/*
 * Complete the header, as the place of the batch is known now.
 */
static void
dw_build_header(void)
{
	Assert(DWIsFlusher());

	DWHeader->magic = DW_MAGIC;
	DWHeader->version = DW_FORMAT_VERSION;
	DWHeader->blcksz = BLCKSZ;
	DWHeader->sysid = GetSystemIdentifier();
	DWHeader->batchno = DWCtl->log.next_batchno;
	DWHeader->low_water = DWCtl->log.low_water;
	DWHeader->segno = DWCtl->log.segno;
	DWHeader->blockno = DWCtl->log.blockno;
	DWHeader->nonce = DWCtl->log.nonce;
	DWHeader->wal_end = DWCtl->log.wal_end;

	DWLockMutex();
	DWHeader->redo = DWCtl->redo.last;
	DWHeader->redo_pending = DWCtl->redo.pending;
	DWUnlockMutex();

	DWHeader->crc = DWBatchHeaderChecksum(DWHeader);
}

/*
 * Write the header, and pages that have been compressed.
 */
static bool
dw_write_packed(char *packed)
{
	struct iovec iov[2];

	iov[0].iov_base = dw_header_block.data;
	iov[0].iov_len = BLCKSZ;
	iov[1].iov_base = packed;
	iov[1].iov_len = (Size) (DWBatchBlocks(DWHeader) - 1) * BLCKSZ;
	return dw_write_blocks(iov, lengthof(iov), (off_t) DWHeader->blockno * BLCKSZ);
}

/*
 * Write the header, and pages as they are.
 */
static bool
dw_write_slots(const int *slots, int nslots)
{
	struct iovec iov[PG_IOV_MAX];
	off_t		offset = (off_t) DWHeader->blockno * BLCKSZ;
	int			done = 0;

	iov[0].iov_base = dw_header_block.data;
	iov[0].iov_len = BLCKSZ;
	for (int iovcnt = 1; iovcnt > 0 || done < nslots; iovcnt = 0)
	{
		while (iovcnt < PG_IOV_MAX && done < nslots)
		{
			iov[iovcnt].iov_base = DWSlotPage(slots[done]);
			iov[iovcnt].iov_len = BLCKSZ;
			iovcnt++;
			done++;
		}
		if (!dw_write_blocks(iov, iovcnt, offset))
			return false;
		offset += (off_t) iovcnt * BLCKSZ;
	}
	return true;
}

/*
 * Write a batch with these copies, whose entries have been built, to the
 * space reserved for it, and sync.  Return false, with errno set, if that
 * fails; the next attempt writes the same batch number to a later place, or
 * to this one.
 */
static bool
dw_write_batch(const int *slots, int ncopies, char *packed)
{
	Assert(DWIsFlusher());

	dw_build_header();
	if (!dw_open_segment(DWCtl->log.segno) ||
		!(packed ? dw_write_packed(packed) : dw_write_slots(slots, ncopies)))
		return false;
	INJECTION_POINT("doublewrite-log-written", NULL);
	return dw_sync_log();
}

/*
 * Client backends seldom write to the log: keep neither freed segments alive,
 * nor memory.  Leave errno as it is.
 */
static void
dw_keep_nothing(void)
{
	int			save_errno = errno;

	if (AmRegularBackendProcess())
	{
		dw_close_segment();
		dw_free_pack_buffer();
	}
	errno = save_errno;
}

/*
 * Append a batch with these copies, whose entries have been built, and make
 * it durable.  Return false if there is no space for it until a sync cycle
 * has freed some; see dw_reserve().
 *
 * If a place cannot be written, try one in the next segment.  If that one
 * cannot be written, either, the place is not the reason, so throw an error.
 * (R11)
 */
static bool
dw_append(const int *slots, int ncopies, char *packed, bool for_mark,
		  bool beyond_bound)
{
	uint32		nblocks = DWBatchBlocks(DWHeader);

	Assert(DWCtl->log.open);

	for (int attempt = 1;; attempt++)
	{
		bool		untried;

		if (!dw_reserve(nblocks, for_mark, beyond_bound))
		{
			dw_keep_nothing();
			return false;
		}
		if (dw_write_batch(slots, ncopies, packed))
			break;

		/* a lack of descriptors is no fault of the place */
		untried = errno == EMFILE || errno == ENFILE;
		if (!untried)
			dw_leave_place();
		if (untried || attempt == 2)
			dw_keep_nothing();
		ereport(untried || attempt == 2 ? ERROR : LOG_SERVER_ONLY,
				(errcode_for_file_access(),
				 errmsg("could not write to double-write log segment \"%s/%016" PRIX64 "\" at offset %u: %m",
						DW_DIR, DWHeader->segno, DWHeader->blockno * BLCKSZ)));
	}

	DWCtl->log.blockno += nblocks;
	if (DWCtl->log.write_blocks == 0)
		DWCtl->log.write_blocks = nblocks;
	DWCtl->log.write_blocks +=
		(nblocks - DWCtl->log.write_blocks) * DW_WRITE_SHARE;
	DWCtl->log.low_water_logged = DWCtl->log.low_water;
	if (DWHeader->npages > 0)
		DWCtl->log.last_page_batch = DWCtl->log.next_batchno;
	DWCtl->log.next_batchno++;
	dw_keep_nothing();
	return true;
}

/*
 * Write the pages in the given slots to the log as one batch: copies of the
 * first ncopies, and notes of the others.  On return these are durable there.
 * (R2)
 *
 * Return false, with nothing written, if there is no space until a sync cycle
 * has freed some.
 */
bool
dw_log_write_batch(const int *slots, int nslots, int ncopies, bool beyond_bound)
{
	uint64		batchno = DWCtl->log.next_batchno;
	char	   *packed;
	uint32		nblocks;

	Assert(DWIsFlusher());
	Assert(DWCtl->log.open && nslots > 0 && nslots <= DW_MAX_BATCH_PAGES);
	Assert(ncopies >= 0 && ncopies <= nslots);

	if (dw_dirty_files_full(nslots))
	{
		DWCount(files_full, 1);
		return false;
	}
	packed = dw_build_entries(slots, nslots, ncopies);
	nblocks = DWBatchBlocks(DWHeader);
	if (!dw_append(slots, ncopies, packed, false, beyond_bound))
		return false;

	for (int i = 0; i < nslots; i++)
	{
		/* before the first home write, so that no sync cycle misses the file */
		dw_dirty_file(&DWSlots[slots[i]].tag, batchno);

		/*
		 * only now: until the batch is durable, a page may need an older one
		 * (R3)
		 */
		dw_remember_logged(slots[i], batchno);
		if (i < ncopies)
			dw_epoch_remember(&DWSlots[slots[i]].tag, batchno);
	}
	DWCount(logged, ncopies);
	DWCount(logged_bytes, (nblocks - 1) * BLCKSZ);
	return true;
}

/*
 * Raise the low-water mark and make it durable.  Batches below it are home
 * and synced, and no home write relies on copies in them. (R3)
 */
void
dw_log_set_low_water(uint64 mark)
{
	Assert(DWIsFlusher());
	Assert(DWCtl->log.open);
	Assert(mark <= DWCtl->log.epoch);

	INJECTION_POINT("doublewrite-before-low-water", NULL);

	DWCtl->log.low_water = Max(DWCtl->log.low_water, mark);
	dw_build_entries(NULL, 0, 0);
	if (!dw_append(NULL, 0, NULL, true, true))
		elog(ERROR, "double-write log has too many segments");

	INJECTION_POINT("doublewrite-after-low-water", NULL);

	dw_recycle_segments();
	DWCtl->log.live_after = DWCtl->log.epoch_after;
}

/* ---------------------------------------------------------------------
 * Opening and closing
 * ---------------------------------------------------------------------
 */

/*
 * Take over the live batches, from first to last, that the previous server
 * has left in the log.
 */
void
dw_log_found(const DWFoundBatch *first, const DWFoundBatch *last)
{
	Assert(DWIsFlusher());
	Assert(!DWCtl->log.open && first->batchno <= last->batchno);

	DWCtl->log.first_segno = first->segno;
	DWCtl->log.segno = last->segno;
	DWCtl->log.blockno = last->blockno + last->nblocks;
	DWCtl->log.nonce = last->nonce;
	DWCtl->log.wal_end = last->wal_end;
}

/*
 * Return whether the segments behind this one are there without a gap.
 */
static bool
dw_segments_follow(const DWScan *scan, uint64 segno)
{
	int			n = 0;

	while (n < scan->nsegments && scan->segments[scan->nsegments - 1 - n].segno > segno)
		n++;
	return segno + n == DWCtl->log.last_segno;
}

/* A log of this length, which several crashes have left, is not gone on with */
#define DW_MAX_CONTINUED	(DW_MAX_SEGMENTS / 2)

/*
 * Go on with the log that was found: its live batches stay, and the next one has the
 * next number.  It goes to another segment, so that it comes after whatever there may be
 * of a batch that had not been completed.  Return false if that is impossible.
 */
bool
dw_log_continue(const DWScan *scan, const DWLiveRange *live)
{
	DWLogState *log = &DWCtl->log;
	uint64		segno = scan->batches[live->first].segno;
	uint64	   *segnos;
	int			nsegments;

	Assert(DWIsFlusher());
	Assert(!log->open);

	if (log->segno + 1 - log->first_segno > DW_MAX_CONTINUED ||
		!dw_segments_follow(scan, log->segno))
		return false;

	nsegments = dw_list_old_segments(log->first_segno, &segnos);
	dw_reuse_segments(segnos, nsegments);

	/* restore can do without them, which the way on cannot */
	while (log->last_segno < log->segno + DW_MIN_SEGMENTS)
	{
		if (!dw_create_segment())
			return false;
	}

	for (int i = live->first; i <= live->last; i++)
	{
		const DWFoundBatch *batch = &scan->batches[i];

		for (; segno <= batch->segno; segno++)
		{
			log->seg_first_batch[segno % DW_MAX_SEGMENTS] = batch->batchno;
			log->seg_bad[segno % DW_MAX_SEGMENTS] = false;
		}
	}
	log->next_batchno = scan->batches[live->last].batchno + 1;
	log->last_page_batch = log->next_batchno - 1;
	log->low_water = log->low_water_logged = log->epoch = scan->batches[live->first].batchno;
	log->blockno = DW_SEGMENT_BLOCKS;
	log->names_changed = true;
	log->open = true;
	return true;
}

/*
 * Make the log that was found empty by a mark behind its last batch, if there
 * is room.  Then all its segments except that one are free, and need not wait
 * for a mark in another one, for which there may be no space.
 */
static void
dw_end_old_log(void)
{
	if (DWCtl->log.blockno >= DW_SEGMENT_BLOCKS)
		return;

	DWCtl->log.low_water = DWCtl->log.next_batchno;
	dw_build_entries(NULL, 0, 0);
	if (!dw_write_batch(NULL, 0, NULL))
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write to double-write log segment \"%s/%016" PRIX64 "\" at offset %u: %m",
						DW_DIR, DWHeader->segno, DWHeader->blockno * BLCKSZ)));
		return;
	}
	DWCtl->log.first_segno = DWCtl->log.segno;
	DWCtl->log.next_batchno++;
	INJECTION_POINT("doublewrite-old-log-ended", NULL);
}

/*
 * Provide segments to write to: those of the log that was found
 * and hold nothing live, and at least two, so that one can always be recycled
 * while the other is in use, however full the device is.
 *
 * Nothing that any of them holds may be taken for a part of the new log, nor
 * outlive dw_log_empty().  So numbers go on from the highest there is.  If no
 * log was found, there may be segments nevertheless, since the directory
 * could not be used at the start; they wait until the log is empty.  (R3)
 */
static void
dw_log_open(void)
{
	bool		found = DWCtl->log.segno > 0;
	uint64	   *segnos;
	int			nold;
	int			nsegments = 0;

	Assert(DWIsFlusher());
	Assert(!DWCtl->log.open);

	if (found)
		dw_end_old_log();
	nold = dw_list_old_segments(PG_UINT64_MAX, &segnos);
	for (int i = 0; i < nold; i++)
	{
		DWCtl->log.last_segno = Max(DWCtl->log.last_segno, segnos[i]);
		if (found && (segnos[i] < DWCtl->log.first_segno || segnos[i] > DWCtl->log.segno))
			segnos[nsegments++] = segnos[i];
	}

	DWCtl->log.segno = DWCtl->log.first_segno = DWCtl->log.last_segno + 1;
	if (!pg_strong_random(&DWCtl->log.nonce, sizeof(DWCtl->log.nonce)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random number for the double-write log")));
	dw_reuse_segments(segnos, nsegments);
	while (DWCtl->log.last_segno < DWCtl->log.first_segno + 1)
	{
		if (!dw_create_segment())
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not create the double-write log: %m"),
					 errhint("Free space on the device of \"%s\".", DW_DIR)));
	}
	DWCtl->log.open = true;
	dw_enter_segment();
}

/*
 * Write an empty batch that makes the log empty, opening the log if need be.
 * Older segments are reused.
 */
void
dw_log_empty(void)
{
	bool		opened = !DWCtl->log.open;

	Assert(DWIsFlusher());

	if (opened)
		dw_log_open();
	dw_epoch_begin(DWCtl->log.next_batchno);
	dw_log_set_low_water(DWCtl->log.next_batchno);
	if (opened)
	{
		uint64	   *segnos;
		int			n = dw_list_old_segments(DWCtl->log.first_segno, &segnos);

		dw_reuse_segments(segnos, n);
	}
}

/*
 * Remove all segments, as nothing in them is needed, and no home write relies on the log.
 *
 * The order does not matter: raising the mark past all batches has turned
 * all segments except the newest into future ones, so none of those holds a
 * batch that names it, and what a crash leaves behind has nothing live in it.
 * (R9)
 */
void
dw_remove_log(void)
{
	uint64	   *segnos;
	int			n = dw_list_old_segments(PG_UINT64_MAX, &segnos);

	Assert(DWIsFlusher());
	Assert(!DWCtl->log.open && !DWCtl->log.armed);

	for (int i = 0; i < n; i++)
	{
		INJECTION_POINT("doublewrite-remove-segment", NULL);
		dw_remove_segment(segnos[i]);
	}
	pfree(segnos);
	DWCtl->log.segno = 0;
	fsync_fname(DW_DIR, true);
}

/*
 * First batch with a page that is not home, or that has been removed though
 * home may be torn; the number of the next batch if there is none.  The flush
 * lock is held, and no write of a page that may have a copy is under way.
 *
 * Copies that wait for being needed are looked at first, and pages being removed last, since
 * that is where others may go.
 */
uint64
dw_first_unfinished_batch(void)
{
	uint64		result;

	Assert(!dw_homes_under_way(&DWPermanentPages));

	result = Min(DWCtl->log.next_batchno, dw_first_pending_batch());
	result = dw_first_kept_batch(result);
	return Min(result, dw_first_removed_batch());
}

/*
 * Make home writes go through the log from now on.  The caller holds the
 * flush lock and has found no home write under way, so no batch straddles the
 * change.  (R10)
 *
 * The log is in place before the marker that demands it, and both are durable
 * before any home write relies on them.  The owner file never names a marker
 * that another one may be about to replace.  Once the marker is there,
 * nothing may fail: the marker would demand a log that is not kept up to
 * date.
 */
void
dw_arm(void)
{
	/* pages that were not logged must be home before copies count (R10) */
	Assert(!dw_homes_under_way(&DWPermanentPages));
	Assert(DWIsFlusher());

	if (DWCtl->log.armed)
		return;
	dw_log_check_dir(ERROR);
	dw_refuse_unknown_marker();
	if (dw_copies_left() == 0)
		dw_log_empty();
	dw_write_owner(false, ERROR);
	dw_write_marker();
	INJECTION_POINT("doublewrite-marker-written", NULL);
	dw_write_owner(true, LOG);
	DWCtl->log.armed = true;
	DWCtl->disarm_after = InvalidXLogRecPtr;
	dw_publish_mode();
	INJECTION_POINT("doublewrite-armed", NULL);
}
