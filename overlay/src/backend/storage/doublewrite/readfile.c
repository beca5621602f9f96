/*-------------------------------------------------------------------------
 *
 * readfile.c
 *	  Reading relation files behind the buffer manager's back.
 *
 * Base backups do that, and pg_rewind by way of pg_read_binary_file().  They
 * would read a page torn that is being written home, and WAL may have no
 * image that repairs it.  So home writes are held up for each read. (R9a)
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
#include "storage/reinit.h"
#include "utils/injection_point.h"

/*
 * Set while this process takes a base backup, holding up home writes for each
 * read.  The backup does not depend on images in WAL then.
 */
bool		DoubleWriteBackupReadsHeld = false;

/*
 * Throw an error if a page of some file may be torn at home that is not in the stage.
 * Which page that is has not been noted: the stage is full then of pages that cannot be
 * written, and the write past it has failed as well.
 */
static void
dw_refuse_torn_home(const char *path)
{
	XLogRecPtr	until;

	DWLockMutex();
	until = DWCtl->home.torn_until;
	DWUnlockMutex();
	if (XLogRecPtrIsInvalid(until))
		return;
	LWLockRelease(DoubleWriteFlushLock);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("could not read file \"%s\" because a write of a page has failed", path),
			 errdetail("The page may be there in part, in this file or another one."),
			 errhint("Run CHECKPOINT.")));
}

/*
 * Find which file of a relation this is.  Return false if it is none.
 *
 * Base backups name files by the location of their tablespace, without its
 * OID.  So the tablespace is left open: that a number is used twice in a
 * database is unlikely, and does no harm.
 */
static bool
dw_file_of_path(const char *path, DWDirtyFile *file)
{
	char		directory[MAXPGPATH];
	const char *name = last_dir_separator(path);
	const char *database;

	if (name == NULL ||
		!parse_filename_for_nontemp_relation(name + 1, &file->rlocator.relNumber,
											 &file->forknum, &file->segno))
		return false;

	strlcpy(directory, path, sizeof(directory));
	get_parent_directory(directory);
	database = last_dir_separator(directory);
	database = database ? database + 1 : directory;
	/* the directory of shared relations is called "global" */
	file->rlocator.dbOid = atooid(database);
	return true;
}

static bool
dw_tag_in_file(const BufferTag *tag, const void *arg)
{
	const DWDirtyFile *file = arg;

	return tag->dbOid == file->rlocator.dbOid &&
		BufTagGetRelNumber(tag) == file->rlocator.relNumber &&
		BufTagGetForkNum(tag) == file->forknum &&
		tag->blockNum / RELSEG_SIZE == file->segno;
}

/*
 * Pages of the file may be torn at home, and have their copies in the log only: write
 * these home.  No other write of them is under way after that.
 */
static void
dw_bring_copies_of_file(const char *path)
{
	DWDirtyFile file;
	DWPageSet	pages = {dw_tag_in_file, &file, PG_INT32_MAX};

	if (dw_copies_left() > 0 && dw_file_of_path(path, &file))
		dw_bring_copies(&pages, NULL);
}

/*
 * Keep pages of a file from being written home while the caller reads it behind the
 * buffer manager's back, so that it reads no torn page, even if WAL carries
 * no image to repair it.  An error releases them, too. (R9a)  What goes to other files
 * may still be on its way.
 *
 * A home write that has failed may have written a part of its page.  So such
 * pages of the file are tried again, and it is an error if that fails.
 */
void
DoubleWriteHoldHomeWrites(const char *path)
{
	DWDirtyFile file;
	DWPageSet	pages = {dw_tag_in_file, &file, PG_INT32_MAX};
	bool		has_pages = dw_file_of_path(path, &file);
	uint64		since = DW_FIRST_ATTEMPT;

	for (;;)
	{
		(void) dw_lock_flush_idle(LW_SHARED, has_pages ? &pages : NULL, false);
		if (!has_pages || !dw_any_has_failed(&pages))
			break;
		LWLockRelease(DoubleWriteFlushLock);
		dw_try_home(&pages, &since);
		CHECK_FOR_INTERRUPTS();
	}
	if (has_pages)
		dw_refuse_torn_home(path);
	INJECTION_POINT("doublewrite-home-writes-held", NULL);
}

void
DoubleWriteResumeHomeWrites(void)
{
	LWLockRelease(DoubleWriteFlushLock);
}

/*
 * Return whether it is a file with pages of a relation, and not, for instance,
 * pg_control or PG_VERSION.
 */
static bool
dw_is_relation_file(const char *path)
{
	DWDirtyFile file;

	if (path_is_prefix_of_path(DataDir, path))
		path += strlen(DataDir) + 1;
	return (strncmp(path, "base/", 5) == 0 || strncmp(path, "global/", 7) == 0 ||
			strncmp(path, PG_TBLSPC_DIR_SLASH, strlen(PG_TBLSPC_DIR_SLASH)) == 0) &&
		dw_file_of_path(path, &file);
}

/*
 * The caller is going to read this file for a client.  Return whether that takes care
 * that no page is read torn, so that it must use DoubleWriteRead().
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
 * ends where a block does, so that no page is read in two parts.  The same
 * holds for successive calls, if the caller says that more is to come.  In a
 * build with tiny relation files, as for tests, these have several chunks as
 * well.
 */
#define DW_READ_CHUNK	Min(1024 * 1024, BLCKSZ * (size_t) Max(RELSEG_SIZE / 4, 1))

size_t
DoubleWriteRead(char *buf, size_t nbytes, FILE *file, const char *path, bool more)
{
	size_t		done = 0;

	dw_bring_copies_of_file(path);
	while (done < nbytes)
	{
		size_t		in_block = ftello(file) % BLCKSZ;
		size_t		chunk = Min(nbytes - done, DW_READ_CHUNK - in_block);
		size_t		excess = (in_block + chunk) % BLCKSZ;
		size_t		got;

		if (more && excess < chunk)
			chunk -= excess;
		CHECK_FOR_INTERRUPTS();
		DoubleWriteHoldHomeWrites(path);
		got = fread(buf + done, 1, chunk, file);
		DoubleWriteResumeHomeWrites();
		INJECTION_POINT("doublewrite-chunk-read", NULL);
		done += got;
		if (got < chunk || (more && nbytes - done < BLCKSZ))
			break;
	}
	return done;
}
