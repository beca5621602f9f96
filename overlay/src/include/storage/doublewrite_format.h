/*-------------------------------------------------------------------------
 *
 * doublewrite_format.h
 *	  On-disk format of the double-write log.
 *
 * The log lives in the directory pg_doublewrite as a chain of segment files
 * of fixed size, each named by its 16-digit hexadecimal segment number.  It
 * consists of batches.  A batch is one header block followed by its pages,
 * one after the other.  It ends with a whole block and never crosses a
 * segment boundary, so each segment that was ever entered starts with a
 * batch.
 *
 * Pages may be compressed, each by itself, with the method that the header
 * names.  Whether a batch is intact can be told without that method:
 * checksums are those of the bytes in the log.
 *
 * For a page in which nothing but hints has changed, the batch may hold a
 * note instead of a copy: its entry alone, with a digest that leaves hints
 * out.  A page torn by such a write needs only a new checksum; the digest
 * tells it from one that is damaged otherwise.
 *
 * Each batch describes itself: the cluster that it belongs to, the place it
 * was written for (a recycled segment still holds batches of its former
 * life), its number, and the batch from which on the log was live when it was
 * written (the low-water mark).  Batch numbers rise by exactly one, so a gap
 * inside the live range is damage, and only the newest batch can be torn.
 *
 * What looks like a header need not be one: compressed pages put user data
 * anywhere, also at the start of a block.  The first block of a segment never
 * holds any, so a header there is believed.  Elsewhere a header must carry a
 * number that was drawn at random when the log was opened, and that the first
 * block of some segment carries, too.
 *
 * This file can be included in frontend code.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/storage/doublewrite_format.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_FORMAT_H
#define DOUBLEWRITE_FORMAT_H

#include "access/xlogdefs.h"
#include "common/relpath.h"
#include "port/pg_crc32c.h"
#include "storage/block.h"
#include "storage/relfilelocator.h"

/* directory of the log, relative to the data directory */
#define DW_DIR					"pg_doublewrite"

/* file in the data directory that says that the log is in use, and its start */
#define DW_MARKER_FILE			"backup_label"
#define DW_MARKER_LINE			"DOUBLE WRITE LOG IN USE"

/*
 * file beside the segments that says which data directory the log belongs to
 */
#define DW_OWNER_FILE			DW_DIR "/owner"

/* "PGDWLOG1" when read as bytes on a little-endian machine */
#define DW_MAGIC				UINT64CONST(0x31474F4C57444750)
#define DW_FORMAT_VERSION		5

/*
 * Blocks per segment file: 4 MB with the usual block size.  Small enough that
 * a log of the smallest permitted size still has several segments to recycle,
 * large enough that a new segment is entered once per several batches.
 */
#define DW_SEGMENT_BLOCKS		512
#define DW_SEGMENT_SIZE			(DW_SEGMENT_BLOCKS * BLCKSZ)

#define DW_SEGMENT_NAME_LEN		16

/* Values of double_write_compression, also those in the log */
typedef enum DWCompression
{
	DW_COMPRESSION_OFF = 0,
	DW_COMPRESSION_LZ4 = 1,
	DW_COMPRESSION_ZSTD = 2,
} DWCompression;

#ifdef USE_LZ4
#define DW_COMPRESSION_DEFAULT	DW_COMPRESSION_LZ4
#else
#define DW_COMPRESSION_DEFAULT	DW_COMPRESSION_OFF
#endif

/* identity of one page in a batch */
typedef struct DWPageEntry
{
	RelFileLocator rlocator;
	uint16		forknum;
	uint16		length;			/* in the log: BLCKSZ if not compressed, 0 if
								 * this is a note */
	BlockNumber blkno;
	pg_crc32c	crc;			/* of the page as it is in the log; of a note,
								 * DWHintDigest() */
	XLogRecPtr	lsn;			/* page LSN, for display; see wal_end below */
} DWPageEntry;

StaticAssertDecl(sizeof(DWPageEntry) == 32, "log entry has padding");

typedef struct DWBatchHeader
{
	uint64		magic;			/* DW_MAGIC */
	uint32		version;		/* DW_FORMAT_VERSION */
	uint32		blcksz;			/* BLCKSZ */
	uint64		sysid;			/* system identifier of the cluster */
	uint64		batchno;		/* number of this batch, from 1 */
	uint64		low_water;		/* first live batch as of this batch */
	uint64		segno;			/* segment this batch was written to */
	uint32		blockno;		/* block of the header within the segment */
	uint32		npages;			/* pages that follow or are noted, may be 0 */
	XLogRecPtr	redo;			/* redo pointer of the last completed
								 * checkpoint when the batch was written */
	XLogRecPtr	redo_pending;	/* the same of a checkpoint that is about to
								 * complete, or 0 */
	uint64		nonce;			/* random number, the same in all batches
								 * since the log was opened; users never learn
								 * it */
	XLogRecPtr	wal_end;		/* WAL was durable up to here: the highest
								 * page LSN in this batch and those before it */
	uint32		compression;	/* DWCompression of the pages that are shorter
								 * than BLCKSZ; off if there are none */
	pg_crc32c	crc;			/* of the header block up to here and of the
								 * entries */
} DWBatchHeader;

StaticAssertDecl(sizeof(DWBatchHeader) == 96, "log header has padding");

/* As many pages as one header block can name, but not more than 2 MB */
#define DW_MAX_BATCH_PAGES \
	Min(248, (int) ((BLCKSZ - sizeof(DWBatchHeader)) / sizeof(DWPageEntry)))

#define DWBatchEntries(hdr) \
	((DWPageEntry *) ((char *) (hdr) + sizeof(DWBatchHeader)))

/* Checksum of a batch header and its entries, the crc field left out */
static inline pg_crc32c
DWBatchHeaderChecksum(const DWBatchHeader *hdr)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, hdr, offsetof(DWBatchHeader, crc));
	COMP_CRC32C(crc, (const char *) hdr + sizeof(DWBatchHeader),
				hdr->npages * sizeof(DWPageEntry));
	FIN_CRC32C(crc);
	return crc;
}

/* Return whether this entry stands for a page of which the log has no copy. */
static inline bool
DWIsNote(const DWPageEntry *entry)
{
	return entry->length == 0;
}

/*
 * Return the blocks of a batch, including that of the header.
 */
static inline uint32
DWBatchBlocks(const DWBatchHeader *hdr)
{
	const DWPageEntry *entries = DWBatchEntries(hdr);
	uint32		bytes = 0;

	for (uint32 i = 0; i < hdr->npages; i++)
		bytes += entries[i].length;
	return 1 + (bytes + BLCKSZ - 1) / BLCKSZ;
}

/* Checksum of a page as it is in the log */
static inline pg_crc32c
DWPageChecksum(const char *stored, Size length)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, stored, length);
	FIN_CRC32C(crc);
	return crc;
}

#endif							/* DOUBLEWRITE_FORMAT_H */
