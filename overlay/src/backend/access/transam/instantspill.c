/*-------------------------------------------------------------------------
 *
 * instantspill.c
 *	  Instant recovery: chains for which there is no room in memory.
 *
 * When memory for chains is full, the startup process writes them to a temporary file,
 * page by page: each as a run of distances, as in InstantRecord, with a head that
 * says how many there are and where the page's run before is.  In memory a page only
 * keeps the place of its last run; all records are free for what follows.  So
 * a record takes 4 bytes in the file, which is written in one go and read through the
 * kernel's cache, and the memory that is needed depends on the number of pages.
 *
 * The file is not synced, as the next recovery does without it.  It is removed when the
 * last page is redone, or as a temporary file when the server starts again.
 *
 * See instantrecovery.c for how it belongs together.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/instantspill.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/instantrecovery_internal.h"
#include "common/file_utils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/startup.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#define INSTANT_SPILL_DIR	"base/" PG_TEMP_FILES_DIR
#define INSTANT_SPILL_PATH	INSTANT_SPILL_DIR "/" PG_TEMP_FILE_PREFIX ".recovery"

/* Numbers that are written at once */
#define INSTANT_SPILL_BUFFER	(64 * 1024)

/* Work between two looks at interrupts: pages */
#define INSTANT_SPILL_STEP		1024

/* Head of a run, in front of its distances */
typedef struct InstantRunHead
{
	uint32		before;			/* place of the page's run before, or 0 */
	uint32		length;
	uint32		total;			/* length of this one and those before */
} InstantRunHead;

#define INSTANT_HEAD_LENGTH		(sizeof(InstantRunHead) / sizeof(uint32))

/* The file; places in it count numbers of 4 bytes, and 0 is none */
static int	instant_spill_file = -1;

/* Startup process: what has yet to be written, at "spill_end" */
static uint32 *instant_spill_buffer = NULL;
static uint32 instant_spill_buffered = 0;

/* Of each process that redoes pages: the runs of a page */
static uint32 *instant_runs = NULL;
static uint32 instant_runs_size = 0;

void
instant_close_spill(void)
{
	if (instant_spill_file >= 0)
		close(instant_spill_file);
	instant_spill_file = -1;
	if (instant_runs != NULL)
		pfree(instant_runs);
	instant_runs = NULL;
	instant_runs_size = 0;
}

/*
 * No chain is in the file any more.
 */
void
instant_remove_spill(void)
{
	if (InstantCtl->spill_end == 0)
		return;
	instant_close_spill();
	InstantCtl->spill_end = 0;
	if (unlink(INSTANT_SPILL_PATH) != 0 && errno != ENOENT)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", INSTANT_SPILL_PATH)));
}

/* ----------------------------------------------------------------
 * Writing
 * ----------------------------------------------------------------
 */

static bool
instant_create_spill(void)
{
	if (instant_spill_file >= 0)
		return true;
	instant_spill_file = BasicOpenFile(INSTANT_SPILL_PATH,
									   O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	if (instant_spill_file < 0 && errno == ENOENT)
	{
		(void) MakePGDirectory(INSTANT_SPILL_DIR);
		instant_spill_file = BasicOpenFile(INSTANT_SPILL_PATH,
										   O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	}
	if (instant_spill_buffer == NULL)
		instant_spill_buffer = MemoryContextAlloc(TopMemoryContext,
												  INSTANT_SPILL_BUFFER * sizeof(uint32));
	InstantCtl->spill_end = INSTANT_HEAD_LENGTH;
	return instant_spill_file >= 0;
}

static bool
instant_flush_spill(void)
{
	size_t		size = instant_spill_buffered * sizeof(uint32);
	off_t		offset = (off_t) InstantCtl->spill_end * sizeof(uint32);

	errno = 0;
	if (pg_pwrite(instant_spill_file, instant_spill_buffer, size,
				  offset) != (ssize_t) size)
	{
		/* if write didn't set errno, assume problem is no disk space */
		if (errno == 0)
			errno = ENOSPC;
		return false;
	}
	InstantCtl->spill_end += instant_spill_buffered;
	instant_spill_buffered = 0;
	return true;
}

static bool
instant_spill_number(uint32 number)
{
	if (instant_spill_buffered == INSTANT_SPILL_BUFFER && !instant_flush_spill())
		return false;
	instant_spill_buffer[instant_spill_buffered++] = number;
	return true;
}

static void
instant_read_spill(void *target, size_t size, uint32 place)
{
	ssize_t		r;

	if (instant_spill_file < 0)
		instant_spill_file = BasicOpenFile(INSTANT_SPILL_PATH, O_RDWR | PG_BINARY);
	r = instant_spill_file < 0 ? -1 :
		pg_pread(instant_spill_file, target, size, (off_t) place * sizeof(uint32));
	if (r < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", INSTANT_SPILL_PATH)));
	if (r != (ssize_t) size)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not read file \"%s\": read %zd of %zu",
						INSTANT_SPILL_PATH, r, size)));
}

/*
 * Write the chain of a page, and return its place in "place".
 */
static bool
instant_spill_chain(const InstantPage *page, uint32 *place)
{
	InstantRunHead head = {.before = page->spilled};
	InstantRunHead before;

	for (uint32 i = page->first; i != INSTANT_NONE; i = instant_record(i)->next)
		head.length++;
	head.total = head.length;
	if (head.before != 0)
	{
		instant_read_spill(&before, sizeof(before), head.before);
		head.total += before.total;
	}

	*place = InstantCtl->spill_end + instant_spill_buffered;
	if (!instant_spill_number(head.before) || !instant_spill_number(head.length) ||
		!instant_spill_number(head.total))
		return false;
	for (uint32 i = page->first; i != INSTANT_NONE; i = instant_record(i)->next)
	{
		if (!instant_spill_number(instant_record(i)->distance))
			return false;
	}
	return true;
}

/*
 * Write all chains.  Returns where, for each page, or NULL if that has failed.
 */
static uint32 *
instant_spill_chains(void)
{
	uint32	   *places = palloc_extended(sizeof(uint32) * InstantCtl->npages,
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	int			save_errno;

	if (places == NULL)
	{
		errno = ENOMEM;
		return NULL;
	}
	if (instant_create_spill())
	{
		uint32		i;

		for (i = 0; i < InstantCtl->npages; i++)
		{
			InstantPage *page = &InstantPages[i];

			if (i % INSTANT_SPILL_STEP == 0)
				ProcessStartupProcInterrupts();
			places[i] = page->spilled;
			if (page->first != INSTANT_NONE && !instant_spill_chain(page, &places[i]))
				break;
		}
		if (i == InstantCtl->npages && instant_flush_spill())
			return places;
	}
	save_errno = errno;
	pfree(places);
	errno = save_errno;
	return NULL;
}

/*
 * Write all chains, and then forget their records in memory.  Returns false if that is
 * impossible, or would not make much room; then all is as it was.
 */
bool
instant_spill(void)
{
	uint64		needed = (uint64) InstantCtl->nrecords +
		(uint64) INSTANT_HEAD_LENGTH * InstantCtl->npages;
	uint32		end = Max(InstantCtl->spill_end, INSTANT_HEAD_LENGTH);
	uint32	   *places;

	if (InstantCtl->nrecords < InstantCtl->npages || end + needed >= INSTANT_NONE)
		return false;

	places = instant_spill_chains();
	if (places == NULL)
	{
		instant_spill_buffered = 0;
		InstantCtl->spill_end = end;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", INSTANT_SPILL_PATH),
				 errdetail("Pages are redone before clients get in instead.")));
		return false;
	}

	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		InstantPages[i].spilled = places[i];
		InstantPages[i].first = InstantPages[i].last = INSTANT_NONE;
	}
	pfree(places);
	InstantCtl->nspilled += InstantCtl->nrecords;
	InstantCtl->nrecords = 0;
	return true;
}

/* ----------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------
 */

/*
 * The distances of all records of a page that have been written, in their order.  They
 * are valid until the next call.
 */
const uint32 *
instant_load_runs(const InstantPage *page, uint32 *length)
{
	InstantRunHead head;
	uint32		at;

	*length = 0;
	if (page->spilled == 0)
		return NULL;

	instant_read_spill(&head, sizeof(head), page->spilled);
	if (head.total > instant_runs_size)
	{
		if (instant_runs != NULL)
			pfree(instant_runs);
		instant_runs = NULL;
		instant_runs_size = 0;
		instant_runs = MemoryContextAllocHuge(TopMemoryContext,
											  sizeof(uint32) * Max(head.total, INSTANT_SPILL_STEP));
		instant_runs_size = Max(head.total, INSTANT_SPILL_STEP);
	}

	*length = at = head.total;
	for (uint32 place = page->spilled;;)
	{
		at -= head.length;
		instant_read_spill(&instant_runs[at], sizeof(uint32) * head.length,
						   place + INSTANT_HEAD_LENGTH);
		if (head.before == 0)
			break;
		place = head.before;
		instant_read_spill(&head, sizeof(head), place);
	}
	Assert(at == 0);
	return instant_runs;
}
