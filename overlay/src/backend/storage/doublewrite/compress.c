/*-------------------------------------------------------------------------
 *
 * compress.c
 *	  Compress the pages of a batch on their way to the double-write log.
 *
 * Compression saves bandwidth of the log's device at the price of processor
 * time of the flusher, which holds DoubleWriteFlushLock meanwhile.  Nothing
 * in here may fail: a page that cannot be compressed, for whatever reason, is
 * logged as it is.
 *
 * Pages are compressed one by one, as restore reads single copies, and before
 * space in the log is reserved, so that a batch takes no more than it needs.
 * The method is the setting of the process that writes the batch; a process
 * that resumes it compresses it anew.
 *
 * See DWReadCopy() for the way back.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/compress.c
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

#include "storage/doublewrite_internal.h"
#include "utils/memutils.h"

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
char *
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
