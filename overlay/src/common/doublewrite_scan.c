/*-------------------------------------------------------------------------
 *
 * doublewrite_scan.c
 *	  Reading the double-write log, and judging it.
 *
 * The caller lists the segments, reads each into memory and hands it over
 * here; all that is done with files, and all that is said to people, is left
 * to the caller.
 *
 * The newest batch alone can be incomplete; then none of its home writes had
 * been started, and it is ignored.  From the newest complete batch, its
 * low-water mark tells where the live range starts.  A hole or damage in it
 * means that the storage has lost what it had promised to keep. (R9)
 *
 * Memory comes from palloc(), in the server from the current context.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/common/doublewrite_scan.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#ifdef USE_LZ4
#include <lz4.h>
#endif
#ifdef USE_ZSTD
#include <zstd.h>
#endif

#include "common/doublewrite_scan.h"
#ifdef FRONTEND
#include "common/fe_memutils.h"
#endif

/* ---------------------------------------------------------------------
 * Names and the marker
 * ---------------------------------------------------------------------
 */

/*
 * Segment number of a file name, or false if it is not that of a segment.
 */
bool
DWParseSegmentName(const char *name, uint64 *segno)
{
	if (strlen(name) != DW_SEGMENT_NAME_LEN ||
		strspn(name, "0123456789ABCDEF") != DW_SEGMENT_NAME_LEN)
		return false;
	*segno = strtou64(name, NULL, 16);
	return true;
}

/*
 * The same of a segment that is kept for reuse; usable says whether it has
 * been kept by a server with our format.
 */
bool
DWParseSpareName(const char *name, uint64 *segno, bool *usable)
{
	if (strspn(name, "0123456789ABCDEF") != DW_SEGMENT_NAME_LEN ||
		strncmp(name + DW_SEGMENT_NAME_LEN, DW_SPARE_STEM,
				strlen(DW_SPARE_STEM)) != 0)
		return false;
	*segno = strtou64(name, NULL, 16);
	*usable = strcmp(name + DW_SEGMENT_NAME_LEN, DW_SPARE_SUFFIX) == 0;
	return true;
}

/*
 * Position an open backup_label file at the label of a backup.  Returns false
 * if there is none in it, but only our marker.
 *
 * Whoever writes a label should replace the file, but may append to what was
 * copied along with the data directory.
 */
bool
DWSkipMarker(FILE *fp)
{
	char		line[MAXPGPATH];
	long		pos = 0;
	bool		marker = false;

	while (fgets(line, sizeof(line), fp) != NULL)
	{
		if (pos == 0)
			marker = strncmp(line, DW_MARKER_LINE, strlen(DW_MARKER_LINE)) == 0;
		if (!marker || strncmp(line, "START WAL LOCATION:", 19) == 0)
		{
			fseek(fp, pos, SEEK_SET);
			return true;
		}
		pos = ftell(fp);
	}
	return !marker;
}

/* ---------------------------------------------------------------------
 * Collecting batches
 * ---------------------------------------------------------------------
 */

/*
 * An array with room for max elements that starts with the nused elements of
 * the old one.
 */
static void *
dw_grow(void *old, int nused, int max, Size elemsize)
{
	void	   *result = palloc_extended((Size) max * elemsize, MCXT_ALLOC_HUGE);

	if (old != NULL)
	{
		memcpy(result, old, (Size) nused * elemsize);
		pfree(old);
	}
	return result;
}

void
DWScanAddSegment(DWScan *scan, uint64 segno)
{
	if (scan->nsegnos == scan->maxsegnos)
	{
		scan->maxsegnos = Max(64, scan->maxsegnos * 2);
		scan->segnos = dw_grow(scan->segnos, scan->nsegnos, scan->maxsegnos,
							   sizeof(uint64));
	}
	scan->segnos[scan->nsegnos++] = segno;
}

static int
dw_uint64_cmp(const void *a, const void *b)
{
	uint64		ua = *(const uint64 *) a;
	uint64		ub = *(const uint64 *) b;

	return ua < ub ? -1 : ua > ub;
}

void
DWScanSortSegments(DWScan *scan)
{
	if (scan->nsegnos > 1)
		qsort(scan->segnos, scan->nsegnos, sizeof(uint64), dw_uint64_cmp);
}

/*
 * Could the pages of a batch with this header have been written?  The header
 * is intact, but who knows what has written it.
 */
static bool
dw_lengths_valid(const DWBatchHeader *hdr)
{
	const DWPageEntry *entries = DWBatchEntries(hdr);

	for (uint32 i = 0; i < hdr->npages; i++)
	{
		if (entries[i].length == 0 || entries[i].length > BLCKSZ ||
			(entries[i].length < BLCKSZ &&
			 hdr->compression == DW_COMPRESSION_OFF))
			return false;
	}
	return hdr->blockno + DWBatchBlocks(hdr) <= DW_SEGMENT_BLOCKS;
}

/*
 * Does a batch header for this place stand here?  With a sysid of 0, that of
 * any cluster will do.
 */
DWHeaderVerdict
DWJudgeHeader(const DWBatchHeader *hdr, uint64 sysid, uint64 segno,
			  uint32 blockno)
{
	if (hdr->magic != DW_MAGIC)
		return DW_HEADER_NONE;

	/*
	 * Believe another format only at the start of a segment: elsewhere it may
	 * be what is left of something torn.
	 */
	if (hdr->version != DW_FORMAT_VERSION || hdr->blcksz != BLCKSZ)
		return blockno == 0 ? DW_HEADER_OTHER_FORMAT : DW_HEADER_NONE;

	if (hdr->segno != segno || hdr->blockno != blockno ||
		hdr->npages > DW_MAX_BATCH_PAGES ||
		hdr->crc != DWBatchHeaderChecksum(hdr) ||
		!dw_lengths_valid(hdr))
		return DW_HEADER_NONE;
	if (sysid != 0 && hdr->sysid != sysid)
		return DW_HEADER_FOREIGN;
	return DW_HEADER_VALID;
}

static void
dw_remember_batch(DWScan *scan, const DWBatchHeader *hdr)
{
	const char *stored = (const char *) hdr + BLCKSZ;
	DWFoundBatch *batch;

	if (scan->nbatches == scan->maxbatches)
	{
		scan->maxbatches = Max(256, scan->maxbatches * 2);
		scan->batches = dw_grow(scan->batches, scan->nbatches,
								scan->maxbatches, sizeof(DWFoundBatch));
	}

	batch = &scan->batches[scan->nbatches++];
	batch->batchno = hdr->batchno;
	batch->low_water = hdr->low_water;
	batch->segno = hdr->segno;
	batch->blockno = hdr->blockno;
	batch->npages = hdr->npages;
	batch->nblocks = DWBatchBlocks(hdr);
	batch->compression = hdr->compression;
	batch->redo = hdr->redo;
	batch->redo_pending = hdr->redo_pending;
	batch->entries = palloc(Max(1, hdr->npages) * sizeof(DWPageEntry));
	memcpy(batch->entries, DWBatchEntries(hdr), hdr->npages * sizeof(DWPageEntry));

	batch->bad_page = -1;
	for (uint32 i = 0; i < hdr->npages && batch->bad_page < 0; i++)
	{
		if (DWPageChecksum(stored, batch->entries[i].length) != batch->entries[i].crc)
			batch->bad_page = i;
		stored += batch->entries[i].length;
	}
}

/*
 * Remember the batches in a segment, given its contents, DW_SEGMENT_SIZE bytes
 * aligned as a batch header is.  Where no batch starts, look at each following
 * block, so that intact batches behind damage are found.
 *
 * Returns NULL, or the first header that means that this log must be refused,
 * and why.
 */
const DWBatchHeader *
DWScanSegment(DWScan *scan, const char *contents, uint64 sysid, uint64 segno,
			  DWHeaderVerdict *verdict)
{
	for (uint32 blockno = 0; blockno < DW_SEGMENT_BLOCKS;)
	{
		const DWBatchHeader *hdr =
			(const DWBatchHeader *) (contents + (Size) blockno * BLCKSZ);

		*verdict = DWJudgeHeader(hdr, sysid, segno, blockno);
		switch (*verdict)
		{
			case DW_HEADER_NONE:
				blockno++;
				break;
			case DW_HEADER_VALID:
				dw_remember_batch(scan, hdr);
				blockno += DWBatchBlocks(hdr);
				break;
			case DW_HEADER_OTHER_FORMAT:
			case DW_HEADER_FOREIGN:
				return hdr;
		}
	}
	return NULL;
}

/* by number; where a batch had to be written twice, the last one counts */
static int
dw_batch_cmp(const void *a, const void *b)
{
	const DWFoundBatch *ba = a;
	const DWFoundBatch *bb = b;

	if (ba->batchno != bb->batchno)
		return ba->batchno < bb->batchno ? -1 : 1;
	if (ba->segno != bb->segno)
		return ba->segno < bb->segno ? -1 : 1;
	return ba->blockno < bb->blockno ? -1 : ba->blockno > bb->blockno;
}

/*
 * All segments have been read: sort the batches.
 */
void
DWScanFinish(DWScan *scan)
{
	int			n = 0;

	if (scan->nbatches == 0)
		return;
	qsort(scan->batches, scan->nbatches, sizeof(DWFoundBatch), dw_batch_cmp);
	for (int i = 1; i < scan->nbatches; i++)
	{
		if (scan->batches[i].batchno != scan->batches[n].batchno)
			n++;
		scan->batches[n] = scan->batches[i];
	}
	scan->nbatches = n + 1;
}

/* ---------------------------------------------------------------------
 * Judging
 * ---------------------------------------------------------------------
 */

/*
 * The given batch is not there; before is the last intact one before it, if
 * any.
 */
static void
dw_set_missing(const DWScan *scan, DWLiveRange *live,
			   const DWFoundBatch *before, uint64 batchno)
{
	live->verdict = DW_LIVE_MISSING;
	live->bad_batchno = batchno;
	live->bad_segno = before ? before->segno : scan->segnos[0];
	live->bad_offset = before ? (before->blockno + before->nblocks) * BLCKSZ : 0;
}

/*
 * Find the live range of the log, and check that it is complete.
 */
void
DWFindLive(const DWScan *scan, DWLiveRange *live)
{
	const DWFoundBatch *newest;
	int			n = scan->nbatches;
	uint64		expected;

	memset(live, 0, sizeof(*live));

	/* a batch that was being written when the power went: not part of it */
	if (n > 0 && scan->batches[n - 1].bad_page >= 0)
	{
		live->ignored = &scan->batches[n - 1];
		n--;
	}
	if (n == 0)
		return;

	live->first = n;
	live->last = n - 1;
	newest = &scan->batches[live->last];
	expected = newest->batchno;
	while (expected >= newest->low_water)
	{
		const DWFoundBatch *batch =
			live->first > 0 ? &scan->batches[live->first - 1] : NULL;

		if (batch == NULL || batch->batchno != expected)
		{
			dw_set_missing(scan, live, batch, expected);
			return;
		}
		if (batch->bad_page >= 0)
		{
			live->verdict = DW_LIVE_BAD_PAGE;
			live->bad_batchno = batch->batchno;
			live->bad_segno = batch->segno;
			live->bad_offset = DWPageOffset(batch, batch->bad_page);
			return;
		}
		if (!DWCompressionSupported(batch->compression))
			live->unreadable = batch;
		live->npages += batch->npages;
		live->nblocks += batch->nblocks;
		live->first--;
		expected--;
	}
	if (live->first <= live->last)
		live->verdict = DW_LIVE_COMPLETE;
}

/*
 * Decide what is to be done with the log of a cluster that is not being
 * restored from a backup.  redo is the redo pointer in pg_control; marker
 * tells whether the log was in use when the server stopped.
 *
 * The newest batch names the redo pointers that a crash could have started
 * from.  If pg_control names another one, something else has moved the
 * cluster on, or back, since the log was written.  Without the marker the log
 * is then what a shutdown cut short has left, or another server has been
 * started meanwhile, and it is of no use.  With it somebody has to decide.
 */
DWOutcome
DWJudgeLog(const DWScan *scan, const DWLiveRange *live, XLogRecPtr redo,
		   bool marker)
{
	const DWFoundBatch *newest;

	switch (live->verdict)
	{
		case DW_LIVE_NONE:
			return marker ? DW_OUTCOME_REFUSE_MISSING : DW_OUTCOME_NOTHING;
		case DW_LIVE_MISSING:
		case DW_LIVE_BAD_PAGE:
			return DW_OUTCOME_REFUSE_DAMAGED;
		case DW_LIVE_COMPLETE:
			break;
	}

	if (live->npages == 0)
		return DW_OUTCOME_NOTHING;

	newest = &scan->batches[live->last];
	if (newest->redo == redo || newest->redo_pending == redo)
		return live->unreadable != NULL ? DW_OUTCOME_REFUSE_COMPRESSION :
			DW_OUTCOME_RESTORE;
	return marker ? DW_OUTCOME_REFUSE_STALE : DW_OUTCOME_DISCARD_STALE;
}

/* ---------------------------------------------------------------------
 * Copies
 * ---------------------------------------------------------------------
 */

/*
 * Name of a method of compression, as in double_write_compression, or the
 * number of one that is not known.
 */
const char *
DWCompressionName(uint32 compression)
{
	switch (compression)
	{
		case DW_COMPRESSION_OFF:
			return "off";
		case DW_COMPRESSION_LZ4:
			return "lz4";
		case DW_COMPRESSION_ZSTD:
			return "zstd";
	}
	return psprintf("%u", compression);
}

/*
 * Can this build read what has been compressed with the method?
 */
bool
DWCompressionSupported(uint32 compression)
{
	switch (compression)
	{
		case DW_COMPRESSION_OFF:
#ifdef USE_LZ4
		case DW_COMPRESSION_LZ4:
#endif
#ifdef USE_ZSTD
		case DW_COMPRESSION_ZSTD:
#endif
			return true;
	}
	return false;
}

/*
 * Where a page of a batch stands in its segment.
 */
uint32
DWPageOffset(const DWFoundBatch *batch, uint32 page)
{
	uint32		offset = (batch->blockno + 1) * BLCKSZ;

	for (uint32 i = 0; i < page; i++)
		offset += batch->entries[i].length;
	return offset;
}

/*
 * Make a page of what is stored in the log.  Its checksum is right; all the
 * same, whatever the bytes are, no others are read or written.  Returns false
 * if they do not give a page.
 */
bool
DWUnpackPage(uint32 compression, const char *stored, Size length, char *page)
{
	if (length == BLCKSZ)
	{
		memcpy(page, stored, BLCKSZ);
		return true;
	}

#ifdef USE_LZ4
	if (compression == DW_COMPRESSION_LZ4)
		return LZ4_decompress_safe(stored, page, length, BLCKSZ) == BLCKSZ;
#endif
#ifdef USE_ZSTD
	/* an error is a number larger than any size */
	if (compression == DW_COMPRESSION_ZSTD)
		return ZSTD_decompress(page, BLCKSZ, stored, length) == BLCKSZ;
#endif
	return false;
}

static int
dw_copy_cmp(const void *a, const void *b)
{
	const DWCopy *ca = a;
	const DWCopy *cb = b;
	int			cmp = memcmp(&ca->entry.rlocator, &cb->entry.rlocator,
							 sizeof(RelFileLocator));

	if (cmp != 0)
		return cmp;
	if (ca->entry.forknum != cb->entry.forknum)
		return ca->entry.forknum < cb->entry.forknum ? -1 : 1;
	if (ca->entry.blkno != cb->entry.blkno)
		return ca->entry.blkno < cb->entry.blkno ? -1 : 1;
	return ca->order < cb->order ? -1 : ca->order > cb->order;
}

bool
DWSamePage(const DWPageEntry *a, const DWPageEntry *b)
{
	return RelFileLocatorEquals(a->rlocator, b->rlocator) &&
		a->forknum == b->forknum && a->blkno == b->blkno;
}

/*
 * The newest copy of each page in the live range, sorted by page. (R4)
 */
DWCopy *
DWNewestCopies(const DWScan *scan, const DWLiveRange *live, int *ncopies)
{
	DWCopy	   *copies;
	int			n = 0;
	int			kept = 0;

	copies = palloc_extended(Max(live->npages, 1) * sizeof(DWCopy),
							 MCXT_ALLOC_HUGE);
	for (int i = live->first; i <= live->last; i++)
	{
		const DWFoundBatch *batch = &scan->batches[i];
		uint32		offset = DWPageOffset(batch, 0);

		for (uint32 p = 0; p < batch->npages; p++)
		{
			copies[n].entry = batch->entries[p];
			copies[n].compression = batch->compression;
			copies[n].segno = batch->segno;
			copies[n].offset = offset;
			copies[n].order = n;
			offset += batch->entries[p].length;
			n++;
		}
	}

	qsort(copies, n, sizeof(DWCopy), dw_copy_cmp);
	for (int i = 0; i < n; i++)
	{
		if (i + 1 < n && DWSamePage(&copies[i].entry, &copies[i + 1].entry))
			continue;
		copies[kept++] = copies[i];
	}
	*ncopies = kept;
	return copies;
}
