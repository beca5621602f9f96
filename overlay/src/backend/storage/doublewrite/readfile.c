/*-------------------------------------------------------------------------
 *
 * readfile.c
 *	  Reading relation files behind the buffer manager's back.
 *
 * Base backups do that, and pg_rewind by way of pg_read_binary_file().  A page
 * that is being written home would be read torn, and WAL may have no image that
 * repairs it.  So home writes are held up for each read. (R9a)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/readfile.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/relpath.h"
#include "miscadmin.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"

/*
 * Is this process taking a base backup, holding up home writes for each read?
 * Then it does not depend on images in WAL.
 */
bool		DoubleWriteBackupReadsHeld = false;

/*
 * Keep pages from being written home while the caller reads a relation file
 * behind the buffer manager's back, so that it reads no torn page, even if
 * WAL carries no image to repair it.  An error releases them, too. (R9a)
 *
 * A home write that has failed may have written a part of its page.  So such pages
 * are tried again; it is an error if that fails.
 */
void
DoubleWriteHoldHomeWrites(void)
{
	for (;;)
	{
		dw_lock_flush_idle(LW_SHARED);
		if (!dw_pages_have_failed())
			break;
		LWLockRelease(DoubleWriteFlushLock);
		dw_flush_batch(&DWAllPages, &DWAllPages);
		CHECK_FOR_INTERRUPTS();
	}
	INJECTION_POINT("doublewrite-home-writes-held", NULL);
}

void
DoubleWriteResumeHomeWrites(void)
{
	LWLockRelease(DoubleWriteFlushLock);
}

static bool
dw_is_relation_file(const char *path)
{
	if (path_is_prefix_of_path(DataDir, path))
		path += strlen(DataDir) + 1;
	return strncmp(path, "base/", 5) == 0 || strncmp(path, "global/", 7) == 0 ||
		strncmp(path, PG_TBLSPC_DIR_SLASH, strlen(PG_TBLSPC_DIR_SLASH)) == 0;
}

/*
 * Somebody is going to read this file for a client.  Does that take care that
 * no page is read torn, so that it must use DoubleWriteRead()?
 *
 * To be asked before the file is read or positioned: what stdio reads ahead it
 * would read without our care.
 */
bool
DoubleWritePrepareRead(FILE *file, const char *path)
{
	return dw_is_relation_file(path) && setvbuf(file, NULL, _IONBF, 0) == 0;
}

/*
 * Read up to nbytes of a relation file, like fread(), and no torn page. (R9a)
 *
 * Home writes are held up for a chunk of DW_READ_CHUNK at a time, and a chunk
 * ends where a block does, so no page is read in two.  The same goes for calls
 * that follow each other, if the caller says that more is to come.  In a build with
 * tiny relation files, as those of tests are, these have several chunks as well.
 */
#define DW_READ_CHUNK	Min(1024 * 1024, BLCKSZ * (size_t) Max(RELSEG_SIZE / 4, 1))

size_t
DoubleWriteRead(char *buf, size_t nbytes, FILE *file, bool more)
{
	size_t		done = 0;

	while (done < nbytes)
	{
		size_t		in_block = ftello(file) % BLCKSZ;
		size_t		chunk = Min(nbytes - done, DW_READ_CHUNK - in_block);
		size_t		excess = (in_block + chunk) % BLCKSZ;
		size_t		got;

		if (more && excess < chunk)
			chunk -= excess;
		CHECK_FOR_INTERRUPTS();
		DoubleWriteHoldHomeWrites();
		got = fread(buf + done, 1, chunk, file);
		DoubleWriteResumeHomeWrites();
		INJECTION_POINT("doublewrite-chunk-read", NULL);
		done += got;
		if (got < chunk || (more && nbytes - done < BLCKSZ))
			break;
	}
	return done;
}
