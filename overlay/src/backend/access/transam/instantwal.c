/*-------------------------------------------------------------------------
 *
 * instantwal.c
 *	  Instant recovery: the records of chains, read from WAL again.
 *
 * The records of a page are scattered over all WAL that is to be redone, so a
 * process that redoes one page after the other would read a page of WAL from a
 * file for each record.  Therefore as much of it as fits is kept in the shared
 * memory that chains have left free: in chunks, each of which is read by the
 * first process that needs it, and stays.  All WAL that is asked for has been
 * read before, in analysis, and there is no checkpoint that would remove it (I7).
 *
 * See instantrecovery.c for how it belongs together.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/instantwal.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include "access/instantrecovery_internal.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/* Segments that a process has open, as records of a page are all over WAL */
#define INSTANT_OPEN_SEGMENTS	64

/* Divides segments, and is a multiple of pages of WAL */
#define INSTANT_CHUNK			(8 * XLOG_BLCKSZ)

typedef enum InstantChunkState
{
	INSTANT_CHUNK_EMPTY,
	INSTANT_CHUNK_LOADING,		/* others read from the file meanwhile */
	INSTANT_CHUNK_LOADED,
	INSTANT_CHUNK_UNUSABLE,		/* pages of it are read from the file */
} InstantChunkState;

/* Of each process that redoes pages */
static XLogReaderState *instant_reader = NULL;
static DecodedXLogRecord *instant_decoded = NULL;
static size_t instant_decoded_size = 0;
static File instant_segment_files[INSTANT_OPEN_SEGMENTS];	/* 0 is none */
static XLogSegNo instant_segment_nos[INSTANT_OPEN_SEGMENTS];
static uint64 instant_records_read = 0;
static uint64 instant_segments_opened = 0;

/* ----------------------------------------------------------------
 * Chunks
 * ----------------------------------------------------------------
 */

/*
 * Startup process: chains are complete, and pages are about to be redone.  The memory
 * that is left holds an InstantChunkState for each chunk, and the chunks.
 */
void
instant_prepare_wal(void)
{
	Size		size;
	char	   *memory = instant_free_memory(&size);
	uint32		nchunks = 0;

	if (size > PG_CACHE_LINE_SIZE)
		nchunks = Min((size - PG_CACHE_LINE_SIZE) /
					  (INSTANT_CHUNK + sizeof(pg_atomic_uint32)), INSTANT_NONE - 1);

	InstantCtl->nchunks = nchunks;
	InstantCtl->chunk_states = (pg_atomic_uint32 *) memory;
	InstantCtl->chunks = (char *)
		CACHELINEALIGN(memory + nchunks * sizeof(pg_atomic_uint32));
	for (uint32 i = 0; i < nchunks; i++)
		pg_atomic_init_u32(&InstantCtl->chunk_states[i], INSTANT_CHUNK_EMPTY);

	InstantCtl->chunks_from = InstantCtl->base;
	InstantCtl->chunks_from -= InstantCtl->chunks_from % INSTANT_CHUNK;
}

static void
instant_close_segments(void)
{
	for (int i = 0; i < INSTANT_OPEN_SEGMENTS; i++)
	{
		if (instant_segment_files[i] > 0)
			FileClose(instant_segment_files[i]);
		instant_segment_files[i] = 0;
	}
}

/*
 * The segment's file, or -1 with errno set.
 */
static File
instant_open_segment(XLogSegNo segno)
{
	int			i = segno % INSTANT_OPEN_SEGMENTS;
	char		path[MAXPGPATH];

	if (instant_segment_files[i] > 0 && instant_segment_nos[i] == segno)
		return instant_segment_files[i];
	if (instant_segment_files[i] > 0)
		FileClose(instant_segment_files[i]);
	instant_segment_files[i] = 0;	/* opening the next one may throw */

	XLogFilePath(path, InstantCtl->tli, segno, wal_segment_size);
	instant_segment_files[i] = PathNameOpenFile(path, O_RDONLY | PG_BINARY);
	instant_segment_nos[i] = segno;
	instant_segments_opened++;
	return instant_segment_files[i];
}

/*
 * Read from a segment, which all of it is in.  Returns the number of bytes, or -1
 * with errno set.
 */
static ssize_t
instant_pread(char *buffer, size_t size, XLogRecPtr from)
{
	XLogSegNo	segno;
	File		file;

	XLByteToSeg(from, segno, wal_segment_size);
	file = instant_open_segment(segno);
	if (file < 0)
		return -1;
	return FileRead(file, buffer, size,
					(off_t) XLogSegmentOffset(from, wal_segment_size),
					WAIT_EVENT_WAL_READ);
}

/*
 * Read a chunk.  If that fails, its pages are read from the file one by one, so that
 * only redo of records in the part that cannot be read fails.
 */
static InstantChunkState
instant_load_chunk(uint32 i)
{
	InstantChunkState state = INSTANT_CHUNK_UNUSABLE;

	if (instant_pread(InstantCtl->chunks + (size_t) i * INSTANT_CHUNK, INSTANT_CHUNK,
					  InstantCtl->chunks_from + (XLogRecPtr) i * INSTANT_CHUNK) == INSTANT_CHUNK)
		state = INSTANT_CHUNK_LOADED;

	/* The barrier makes the chunk visible before its state. */
	pg_atomic_write_membarrier_u32(&InstantCtl->chunk_states[i], state);
	return state;
}

/*
 * WAL from there on, up to the end of its page, or NULL if it is not kept.
 */
static char *
instant_kept_wal(XLogRecPtr lsn)
{
	XLogRecPtr	distance = lsn - InstantCtl->chunks_from;
	uint32		i;
	uint32		state;

	if (lsn < InstantCtl->chunks_from || distance / INSTANT_CHUNK >= InstantCtl->nchunks)
		return NULL;

	i = distance / INSTANT_CHUNK;
	state = pg_atomic_read_u32(&InstantCtl->chunk_states[i]);
	if (state == INSTANT_CHUNK_EMPTY &&
		pg_atomic_compare_exchange_u32(&InstantCtl->chunk_states[i], &state,
									   INSTANT_CHUNK_LOADING))
		state = instant_load_chunk(i);
	if (state != INSTANT_CHUNK_LOADED)
		return NULL;
	pg_read_barrier();
	return InstantCtl->chunks + distance;
}

/*
 * What is kept there is not what it was in analysis: read it from the file.
 */
static void
instant_distrust(XLogRecPtr lsn)
{
	uint32		i = (lsn - InstantCtl->chunks_from) / INSTANT_CHUNK;

	pg_atomic_write_u32(&InstantCtl->chunk_states[i], INSTANT_CHUNK_UNUSABLE);
}

/* ----------------------------------------------------------------
 * Records
 * ----------------------------------------------------------------
 */

/*
 * XLogReaderRoutine->page_read callback
 */
static int
instant_page_read(XLogReaderState *state, XLogRecPtr targetPagePtr, int reqLen,
				  XLogRecPtr targetRecPtr, char *readBuf)
{
	char	   *kept = instant_kept_wal(targetPagePtr);

	if (kept != NULL)
		memcpy(readBuf, kept, XLOG_BLCKSZ);
	else
	{
		ssize_t		r = instant_pread(readBuf, XLOG_BLCKSZ, targetPagePtr);

		if (r < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read WAL at %X/%X: %m",
							LSN_FORMAT_ARGS(targetPagePtr))));
		if (r != XLOG_BLCKSZ)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("could not read WAL at %X/%X: read %zd of %d",
							LSN_FORMAT_ARGS(targetPagePtr), r, XLOG_BLCKSZ)));
	}
	state->seg.ws_tli = InstantCtl->tli;
	return XLOG_BLCKSZ;
}

static void
instant_open_reader(void)
{
	static XLogReaderRoutine routine = {.page_read = instant_page_read};
	MemoryContext oldcontext;

	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	instant_reader = XLogReaderAllocate(wal_segment_size, NULL, &routine, NULL);
	MemoryContextSwitchTo(oldcontext);
	if (instant_reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	instant_reader->system_identifier = GetSystemIdentifier();
}

void
instant_close_reader(void)
{
	if (instant_reader != NULL)
	{
		/* a large record has memory of its own, which only this frees */
		if (instant_reader->record != NULL)
			XLogBeginRead(instant_reader, instant_reader->ReadRecPtr);
		XLogReaderFree(instant_reader);
	}
	instant_reader = NULL;
	if (instant_decoded != NULL)
		pfree(instant_decoded);
	instant_decoded = NULL;
	instant_decoded_size = 0;
	instant_close_segments();
	elog(DEBUG1, "redo of pages has read %" PRIu64 " records again, and opened %" PRIu64 " segments",
		 instant_records_read, instant_segments_opened);
	instant_records_read = instant_segments_opened = 0;
}

/*
 * Return whether this is what analysis has seen.  It may have been read from storage
 * again.
 */
static bool
instant_is_sound(const XLogRecord *record)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, ((const char *) record) + SizeOfXLogRecord,
				record->xl_tot_len - SizeOfXLogRecord);
	COMP_CRC32C(crc, (const char *) record, offsetof(XLogRecord, xl_crc));
	FIN_CRC32C(crc);
	return EQ_CRC32C(record->xl_crc, crc);
}

/*
 * Decode a record where it is, if it is in a page that is kept, as nearly all are.
 */
static bool
instant_decode_kept(XLogRecPtr lsn)
{
	XLogRecord *record = (XLogRecord *) instant_kept_wal(lsn);
	size_t		room = XLOG_BLCKSZ - lsn % XLOG_BLCKSZ;
	size_t		needed;
	char	   *errormsg;

	if (record == NULL || room < SizeOfXLogRecord || room < record->xl_tot_len)
		return false;
	if (record->xl_tot_len < SizeOfXLogRecord || !instant_is_sound(record))
	{
		instant_distrust(lsn);
		return false;
	}

	/* forget the last record, which may be in the same memory */
	XLogBeginRead(instant_reader, lsn);

	needed = DecodeXLogRecordRequiredSpace(record->xl_tot_len);
	if (needed > instant_decoded_size)
	{
		if (instant_decoded != NULL)
			pfree(instant_decoded);
		instant_decoded = NULL;
		instant_decoded_size = 0;	/* allocation may throw */
		instant_decoded = MemoryContextAlloc(TopMemoryContext, Max(needed, XLOG_BLCKSZ));
		instant_decoded_size = Max(needed, XLOG_BLCKSZ);
	}
	if (!DecodeXLogRecord(instant_reader, instant_decoded, record, lsn, &errormsg))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not decode WAL again at %X/%X: %s",
						LSN_FORMAT_ARGS(lsn), errormsg)));

	instant_reader->ReadRecPtr = lsn;
	instant_reader->EndRecPtr = lsn + MAXALIGN(record->xl_tot_len);
	instant_reader->record = instant_decoded;
	return true;
}

/*
 * The record at that position, as rm_redo wants it.  The last one is still there: one
 * record may concern many pages, which come one after the other.
 */
XLogReaderState *
instant_read_record(XLogRecPtr lsn)
{
	char	   *errormsg;

	if (instant_reader == NULL)
		instant_open_reader();
	if (instant_reader->record != NULL && instant_reader->ReadRecPtr == lsn)
		return instant_reader;

	instant_records_read++;
	if (instant_decode_kept(lsn))
		return instant_reader;

	/* a standby may have received more of the page that was read last */
	XLogBeginRead(instant_reader, lsn);
	instant_reader->readLen = 0;
	if (XLogReadRecord(instant_reader, &errormsg) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not read WAL again at %X/%X: %s",
						LSN_FORMAT_ARGS(lsn),
						errormsg ? errormsg : "end of WAL")));
	return instant_reader;
}
