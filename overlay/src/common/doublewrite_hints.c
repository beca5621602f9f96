/*-------------------------------------------------------------------------
 *
 * doublewrite_hints.c
 *	  What tells a heap page torn in its hints from a damaged one.
 *
 * This is apart from doublewrite_scan.c because the layout of tuples is
 * available only through postgres.h, also in frontends.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/common/doublewrite_hints.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "common/doublewrite_scan.h"
#include "storage/bufpage.h"

/*
 * Reset what the heap changes in a tuple as a hint.
 */
static void
dw_clear_tuple_hints(char *page, const ItemIdData *item)
{
	Size		offset = ItemIdGetOffset(item);
	HeapTupleHeader tuple = (HeapTupleHeader) (page + offset);

	/* the page may be damaged */
	if (!ItemIdIsNormal(item) || offset != MAXALIGN(offset) ||
		offset + SizeofHeapTupleHeader > BLCKSZ)
		return;
	tuple->t_infomask &= ~(HEAP_XMIN_COMMITTED | HEAP_XMIN_INVALID |
						   HEAP_XMAX_COMMITTED | HEAP_XMAX_INVALID);
}

/*
 * Return a checksum of a heap page without its hints, and without the LSN and
 * the checksum, which change with them.  It is the same for all versions of
 * the page between two other changes, and for any mixture of them that a
 * crash may leave.  Whatever the contents of the page, nothing outside it is
 * read.
 */
pg_crc32c
DWHintDigest(const char *page)
{
	PGAlignedBlock block;
	PageHeader	header = (PageHeader) block.data;

	memcpy(block.data, page, BLCKSZ);
	PageSetLSN(block.data, InvalidXLogRecPtr);
	header->pd_checksum = 0;
	header->pd_prune_xid = InvalidTransactionId;
	header->pd_flags &= ~(PD_HAS_FREE_LINES | PD_PAGE_FULL);
	if (header->pd_lower <= BLCKSZ)
	{
		OffsetNumber max = PageGetMaxOffsetNumber(block.data);

		for (OffsetNumber i = FirstOffsetNumber; i <= max; i++)
			dw_clear_tuple_hints(block.data, PageGetItemId(block.data, i));
	}
	return DWPageChecksum(block.data, BLCKSZ);
}
