/*-------------------------------------------------------------------------
 *
 * compress.c
 *	  Compress the pages of a batch on their way to the double-write log.
 *
 * That saves bandwidth of the log's device at the price of processor time of
 * the flusher, who holds DoubleWriteFlushLock meanwhile.  Nothing in here may
 * fail: what cannot be compressed, for whatever reason, is logged as it is.
 *
 * With "auto" a batch is compressed if that takes less time than it saves, by what
 * both have taken lately: writes of the log, whose time grows with their size where
 * bandwidth is the limit, and pages compressed with each method.  Until that is known,
 * a device that may be slow is taken for one.  zstd saves more than lz4 and takes
 * longer, which pays where writes wait for a device that is busy.
 *
 * Pages are compressed one by one, as restore reads single copies, and before
 * room in the log is reserved, so that a batch takes what it needs.  The method
 * is that of the setting in the process that writes the batch; one that resumes
 * it compresses it anew.
 *
 * See DWUnpackPage() for the way back.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/compress.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#ifdef USE_LZ4
#include <lz4.h>
#endif
#ifdef USE_ZSTD
#include <zstd.h>
#endif

#include "storage/doublewrite_internal.h"
#include "utils/memutils.h"

/*
 * Level of zstd: its fastest regular one.  Home writes of a whole batch wait
 * for it, and on single pages higher ones gain next to nothing.
 */
#define DW_ZSTD_LEVEL			1

/* What the newest write of the log, or page compressed, adds to averages */
#define DW_COST_SHARE			(1.0 / 16)

/* ... and the newest batch that was compressed at most, however many pages it has */
#define DW_BATCH_SHARE			(1.0 / 4)

/* A write that takes longer than so many times what the line says counts for that */
#define DW_STALL				40

/*
 * Writes of batches with this many pages on average take most of their time for the data.
 * There is no other way to tell how much for each block with less variance of sizes than that,
 * or if what blocks take is only known to this part of the time of writes.
 */
#define DW_MANY_PAGES			64
#define DW_LITTLE_VARIANCE		16
#define DW_VAGUE				4

/* What a block may take until writes tell: that is a volume with 125 MB/s, as many rent */
#define DW_UNKNOWN_BLOCK_NSEC	65000

/* After so many pages that a method was not used for, it is for a few */
#define DW_TRY_COMPRESSION		512
#define DW_TRIED_PAGES			8

/* Compression must save so many times what it takes, as others may want the processor */
#define DW_COMPRESSION_GAIN		2

/* It takes little more beside a write of the log that takes so many times as long */
#define DW_COMPRESSION_LITTLE	8

/* The pages of one batch; see dw_pack_buffer() */
static char *dw_packed = NULL;

#ifdef USE_ZSTD
/* What zstd works with, kept as well, as it is expensive to make */
static ZSTD_CCtx *dw_zstd = NULL;
#endif

/*
 * Memory for the pages of one batch, none of which is stored longer than it
 * is.  Allocated when a process compresses its first batch, and kept, since
 * that is likely to be the background writer or the checkpointer; others give it
 * back with dw_free_pack_buffer().  Returns NULL if there is no memory.
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

void
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
 * Compress a page; returns its length, or 0 if it does not get shorter or
 * something else is in the way.
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

/* ---------------------------------------------------------------------
 * Whether it pays
 * ---------------------------------------------------------------------
 */

static int64
dw_nsec_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_NANOSEC(now);
}

/*
 * The line that fits best to what writes of the log of each size have taken, in
 * nanoseconds: what one takes with the average size, and more for each further block.
 * Returns false if they do not differ enough in size to tell.
 */
static bool
dw_fit_line(double *mean_nsec, double *slope, double *slope_error)
{
	const DWLogCost *cost = &DWCtl->log_cost;
	double		writes = Max(cost->writes, 1);
	double		spread = cost->blocks_squared - cost->blocks * cost->blocks / writes;
	double		common = cost->blocks_nsec - cost->blocks * cost->nsec / writes;
	double		rest;

	*mean_nsec = cost->nsec / writes;
	if (writes <= 3 || spread < DW_LITTLE_VARIANCE * writes)
		return false;

	*slope = common / spread;
	rest = cost->nsec_squared - cost->nsec * cost->nsec / writes - *slope * common;
	*slope_error = sqrt(Max(rest, 0) / (writes - 2) / spread);
	return true;
}

/*
 * Note what a write of the log and its sync have taken, for a batch with so many copies.
 * That a device stalls now and then says nothing about its bandwidth.
 */
void
dw_note_log_write(int ncopies, uint32 nblocks, instr_time start)
{
	DWLogCost  *cost = &DWCtl->log_cost;
	double		nsec = dw_nsec_since(start);
	double		kept = 1 - DW_COST_SHARE;
	double		mean_nsec;
	double		slope;
	double		error;

	Assert(DWIsFlusher());

	if (dw_fit_line(&mean_nsec, &slope, &error))
	{
		double		more = nblocks - cost->blocks / cost->writes;

		nsec = Min(nsec, DW_STALL * Max(mean_nsec, mean_nsec + slope * more));
	}

	cost->writes = cost->writes * kept + 1;
	cost->pages = cost->pages * kept + ncopies;
	cost->blocks = cost->blocks * kept + nblocks;
	cost->blocks_squared = cost->blocks_squared * kept + (double) nblocks * nblocks;
	cost->nsec = cost->nsec * kept + nsec;
	cost->nsec_squared = cost->nsec_squared * kept + nsec * nsec;
	cost->blocks_nsec = cost->blocks_nsec * kept + nblocks * nsec;
}

/*
 * How many blocks have writes of the log had lately?  0 if there were none.  Flush lock held.
 */
double
dw_log_write_blocks(void)
{
	const DWLogCost *cost = &DWCtl->log_cost;

	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return cost->writes > 0 ? cost->blocks / cost->writes : 0;
}

/*
 * Note what compressing pages has taken, and how long they are now.
 */
static void
dw_note_compressed(int method, int npages, instr_time start, Size length)
{
	DWCompressionCost *cost = &DWCtl->log_cost.methods[method];
	double		nsec = (double) dw_nsec_since(start) / npages;
	double		share = cost->page_length == 0 ? 1 :
		Min(npages * DW_COST_SHARE, DW_BATCH_SHARE);

	cost->page_nsec += (nsec - cost->page_nsec) * share;
	cost->page_length += ((double) length / npages - cost->page_length) * share;
	cost->untried = 0;
}

/*
 * The most that a block can take, if times of writes of the log do not differ with their
 * sizes: all of it, were nothing compressed.  What is compressed must not make blocks look
 * dearer, or it would go on for ever.
 */
static double
dw_most_for_block(void)
{
	const DWLogCost *cost = &DWCtl->log_cost;

	/* each write has a block beside those of pages; opening the log is the first one */
	Assert(cost->writes > 0);
	return cost->nsec / (cost->pages + cost->writes);
}

/*
 * How long a write of the log takes for each of its blocks, in nanoseconds, beside what
 * it takes anyway; rather less than more, if writes have differed in size and not too
 * much in time.  Else those of large batches are taken to need all of their time for the
 * data: if that is wrong, compression takes little beside them.  Others may be those to
 * a volume that is rented, unless they have been quicker.
 *
 * What is large must not depend on whether batches are compressed, or that takes turns.
 */
static double
dw_log_block_nsec(void)
{
	const DWLogCost *cost = &DWCtl->log_cost;
	double		mean_nsec;
	double		slope;
	double		error;

	if (dw_fit_line(&mean_nsec, &slope, &error) &&
		error * cost->blocks < cost->nsec / DW_VAGUE)
		return slope - error;
	return cost->pages > DW_MANY_PAGES * cost->writes ? cost->nsec / cost->blocks :
		Min(dw_most_for_block(), DW_UNKNOWN_BLOCK_NSEC);
}

/*
 * Compress pages of the batch for the averages only.  The first one is not counted, as it
 * takes several times as long, until code and memory are in the processor's caches.
 */
static void
dw_try_compression(int method, const int *slots, int nslots)
{
	int			ntried = Min(nslots, DW_TRIED_PAGES);
	char		packed[BLCKSZ];
	instr_time	start;
	Size		total = 0;

	INSTR_TIME_SET_ZERO(start);
	for (int i = -1; i < ntried; i++)
	{
		/* from all over the batch, as neighbours are alike */
		const char *page = DWSlotPage(slots[Max(i, 0) * nslots / ntried]);
		Size		length = dw_compress_page(method, page, packed);

		if (i < 0)
			INSTR_TIME_SET_CURRENT(start);
		else
			total += length > 0 ? length : BLCKSZ;
	}
	dw_note_compressed(method, ntried, start, total);
}

/*
 * What compressing so many pages takes, in nanoseconds, and the blocks they need then.
 */
static double
dw_compression_takes(int method, int npages)
{
	return method == DW_COMPRESSION_OFF ? 0 :
		npages * DWCtl->log_cost.methods[method].page_nsec;
}

static double
dw_compressed_blocks(int method, int npages)
{
	return method == DW_COMPRESSION_OFF ? npages :
		ceil(npages * DWCtl->log_cost.methods[method].page_length / BLCKSZ);
}

/*
 * Would compressing a batch of this size save more time than it takes, beside another
 * method or none?  On a device that is held to a bandwidth, writes wait for what others
 * have sent before, and their own size hardly shows in their times.  So where these do not
 * rule out that it does, and compressing takes little beside a write, it is done.
 */
static bool
dw_compression_pays(int method, int other, int npages)
{
	double		nsaved = dw_compressed_blocks(other, npages) -
		dw_compressed_blocks(method, npages);
	double		more = dw_compression_takes(method, npages) -
		dw_compression_takes(other, npages);
	double		mean_nsec;
	double		slope;
	double		error;
	double		most;

	if (nsaved <= 0)
		return false;
	if (nsaved * dw_log_block_nsec() > more * DW_COMPRESSION_GAIN)
		return true;
	/* a negative slope is chance, or comes from large and small writes taking turns */
	most = dw_fit_line(&mean_nsec, &slope, &error) ? Max(slope, 0) + 2 * error :
		dw_most_for_block();
	return nsaved * most > more * DW_COMPRESSION_GAIN &&
		more * DW_COMPRESSION_LITTLE < mean_nsec;
}

/*
 * The method for a batch.
 */
static int
dw_compression_method(const int *slots, int nslots)
{
	static const int methods[] = {
#ifdef USE_LZ4
		DW_COMPRESSION_LZ4,
#endif
#ifdef USE_ZSTD
		DW_COMPRESSION_ZSTD,
#endif
		DW_COMPRESSION_OFF
	};
	int			best = DW_COMPRESSION_OFF;

	if (double_write_compression != DW_COMPRESSION_AUTO)
		return double_write_compression;
	/* one page takes a block, however short it is */
	if (nslots == 1)
		return DW_COMPRESSION_OFF;
	for (const int *method = methods; *method != DW_COMPRESSION_OFF; method++)
	{
		DWCompressionCost *cost = &DWCtl->log_cost.methods[*method];

		cost->untried += nslots;
		if (cost->page_length == 0 || cost->untried > DW_TRY_COMPRESSION)
			dw_try_compression(*method, slots, nslots);
		if (dw_compression_pays(*method, best, nslots))
			best = *method;
	}
	return best;
}

/* ---------------------------------------------------------------------
 * Batches
 * ---------------------------------------------------------------------
 */

/*
 * Put the pages of a batch one after the other, compressed as the setting asks
 * for, and note their lengths in the header.  Returns where they are, followed
 * by zeroes up to a whole block, or NULL if they are to be written as they
 * are.
 */
char *
dw_pack_pages(DWBatchHeader *hdr, const int *slots, int nslots)
{
	DWPageEntry *entries = DWBatchEntries(hdr);
	int			method = nslots > 0 ? dw_compression_method(slots, nslots) :
		DW_COMPRESSION_OFF;
	char	   *packed = NULL;
	char	   *dst;
	instr_time	start;

	Assert(DWIsFlusher());

	if (method != DW_COMPRESSION_OFF)
		packed = dw_pack_buffer();
	if (packed == NULL)
	{
		for (int i = 0; i < nslots; i++)
			entries[i].length = BLCKSZ;
		return NULL;
	}

	INSTR_TIME_SET_CURRENT(start);
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
	dw_note_compressed(method, nslots, start, dst - packed);
	memset(dst, 0, packed + (Size) (DWBatchBlocks(hdr) - 1) * BLCKSZ - dst);
	return packed;
}
