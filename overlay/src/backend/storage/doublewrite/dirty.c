/*-------------------------------------------------------------------------
 *
 * dirty.c
 *	  Files that the log protects.
 *
 * A page that has been written home with a copy in the log needs that copy
 * until its file is synced.  The table says which files those are, and which
 * batch has written to each of them last.  A checkpoint syncs them by the
 * queue of sync requests, a sync cycle by this table. (R3)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/dirty.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>

#include "catalog/pg_tablespace_d.h"
#include "common/hashfn.h"
#include "common/relpath.h"
#include "port/pg_bitutils.h"
#include "postmaster/bgwriter.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/md.h"
#include "storage/shmem.h"
#include "storage/sync.h"
#include "utils/injection_point.h"

/* Files to sync before the checkpointer looks at its queue, as in sync.c */
#define DW_SYNCS_PER_ABSORB		10

/*
 * Files in no particular order, without gaps, so that work on all of them
 * costs no more than their number; and chains of files with the same hash.
 * DoubleWriteFlushLock guards both.
 */
static DWDirtyFile *DWDirtyFiles;
static int *DWDirtyBuckets;		/* first file of the chain or -1 */

/*
 * Return how many files can be remembered: as many as a log of so many segments
 * can hold pages, because a page of each file has been logged since it was last
 * synced.  So the log fills up first, however many files there are, unless pages
 * are compressed, or the bound is raised or exceeded.
 */
static int
dw_dirty_files_max(int segments)
{
	return Max(segments * DW_SEGMENT_BLOCKS, DW_MIN_DIRTY_FILES);
}

/* Number of hash chains, a power of two */
static uint32
dw_dirty_buckets(int segments)
{
	return pg_nextpower2_32(dw_dirty_files_max(segments));
}

/*
 * Return the shared memory needed for the table, in bytes.
 */
Size
dw_dirty_shmem_size(int segments)
{
	return add_size(mul_size(dw_dirty_files_max(segments), sizeof(DWDirtyFile)),
					mul_size(dw_dirty_buckets(segments), sizeof(int)));
}

/*
 * Create or attach to the table.
 */
void
dw_dirty_shmem_init(void)
{
	uint32		nbuckets = dw_dirty_buckets(DWCtl->segments);
	bool		found;

	DWDirtyFiles = ShmemInitStruct("Double Write Dirty Files",
								   mul_size(dw_dirty_files_max(DWCtl->segments),
											sizeof(DWDirtyFile)), &found);
	DWDirtyBuckets = ShmemInitStruct("Double Write Dirty File Buckets",
									 mul_size(nbuckets, sizeof(int)), &found);
	if (!found)
		memset(DWDirtyBuckets, -1, nbuckets * sizeof(int));
}

/*
 * Return what says which file has a page.
 */
DWDirtyFile
dw_file_of_page(const BufferTag *tag)
{
	DWDirtyFile file = {0};

	file.rlocator = BufTagGetRelFileLocator(tag);
	file.forknum = BufTagGetForkNum(tag);
	file.segno = tag->blockNum / RELSEG_SIZE;
	return file;
}

/* The chain on which a file is, or would be */
static int *
dw_dirty_bucket(const DWDirtyFile *file)
{
	uint32		hash = hash_bytes((const unsigned char *) file, DW_FILE_KEY_SIZE);

	return &DWDirtyBuckets[hash & (dw_dirty_buckets(DWCtl->segments) - 1)];
}

/* The entry of a file, or NULL */
static DWDirtyFile *
dw_find_dirty_file(const DWDirtyFile *file)
{
	for (int i = *dw_dirty_bucket(file); i >= 0; i = DWDirtyFiles[i].next)
	{
		Assert(i < DWCtl->dirty_files);
		if (memcmp(&DWDirtyFiles[i], file, DW_FILE_KEY_SIZE) == 0)
			return &DWDirtyFiles[i];
	}
	return NULL;
}

/*
 * Add a file that is not in the table.
 */
static void
dw_add_dirty_file(const DWDirtyFile *file)
{
	int			fileno = DWCtl->dirty_files++;
	int		   *bucket = dw_dirty_bucket(file);

	Assert(fileno < dw_dirty_files_max(DWCtl->segments));

	DWDirtyFiles[fileno] = *file;
	DWDirtyFiles[fileno].next = *bucket;
	*bucket = fileno;
}

/*
 * Remember that a logged batch writes to the file of a page.  The caller has
 * made sure that there is room; see dw_dirty_files_full().
 */
void
dw_dirty_file(const BufferTag *tag, uint64 batchno)
{
	DWDirtyFile file = dw_file_of_page(tag);
	DWDirtyFile *found = dw_find_dirty_file(&file);

	Assert(DWIsFlusher());

	file.batchno = batchno;
	if (found == NULL)
		dw_add_dirty_file(&file);
	else
	{
		/* copies that a start finds are not in the order of their batches */
		found->batchno = Max(found->batchno, batchno);
	}
}

/*
 * Return whether the file of a page stays in the table as long as this batch is needed.
 */
bool
dw_file_is_dirty(const BufferTag *tag, uint64 batchno)
{
	DWDirtyFile file = dw_file_of_page(tag);
	const DWDirtyFile *found = dw_find_dirty_file(&file);

	return found != NULL && found->batchno >= batchno;
}

/*
 * Return whether the table could overflow if this many pages of new files
 * came.
 */
bool
dw_dirty_files_full(int more)
{
	Assert(DWIsFlusher());
	return DWCtl->dirty_files + more > dw_dirty_files_max(DWCtl->segments);
}

bool
dw_many_dirty_files(void)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return DWCtl->dirty_files > dw_dirty_files_max(DWCtl->segments) / 4 * 3;
}

/*
 * Return a copy of the table for dw_sync_files(), which syncs the files
 * without the flush lock, while files are added and forgotten.
 */
DWDirtyFile *
dw_copy_dirty_files(int *nfiles)
{
	DWDirtyFile *files;

	Assert(DWIsFlusher());

	*nfiles = DWCtl->dirty_files;
	files = palloc_array(DWDirtyFile, *nfiles);
	memcpy(files, DWDirtyFiles, *nfiles * sizeof(DWDirtyFile));
	return files;
}

/*
 * Forget files whose last logged batch lies below the mark, as they have been
 * synced since home writes stopped relying on such batches. (R3)
 */
void
dw_forget_files(uint64 mark)
{
	int			nfiles = DWCtl->dirty_files;

	Assert(DWIsFlusher());
	Assert(mark <= DWCtl->log.next_batchno);

	for (int i = 0; i < nfiles; i++)
		*dw_dirty_bucket(&DWDirtyFiles[i]) = -1;

	/* those that stay move down, to entries that have been examined already */
	DWCtl->dirty_files = 0;
	for (int i = 0; i < nfiles; i++)
	{
		if (DWDirtyFiles[i].batchno >= mark)
			dw_add_dirty_file(&DWDirtyFiles[i]);
	}
}

/* ---------------------------------------------------------------------
 * Making files durable
 * ---------------------------------------------------------------------
 */

/*
 * Give the path of a directory of relations or, without a database, of
 * databases.  The caller may be in a critical section, so nothing is
 * allocated.
 */
void
dw_directory_path(char *path, Oid spcOid, Oid dbOid)
{
	char		parent[MAXPGPATH];

	if (spcOid == GLOBALTABLESPACE_OID)
	{
		strlcpy(path, "global", MAXPGPATH);
		return;
	}
	if (spcOid == DEFAULTTABLESPACE_OID)
		strlcpy(parent, "base", MAXPGPATH);
	else
		snprintf(parent, MAXPGPATH, "%s/%u/%s", PG_TBLSPC_DIR, spcOid,
				 TABLESPACE_VERSION_DIRECTORY);
	if (OidIsValid(dbOid))
		snprintf(path, MAXPGPATH, "%s/%u", parent, dbOid);
	else
		strlcpy(path, parent, MAXPGPATH);
}

/*
 * Return the error level for a file that could not be synced, given errno.
 * If there was no descriptor left to open it with, nothing has been lost: the
 * caller fails, as elevel says, and tries again.
 */
int
dw_sync_elevel(int elevel)
{
	return errno == ENFILE || errno == EMFILE ? elevel : data_sync_elevel(elevel);
}

/*
 * Return whether a file can be opened.  If not, no sync of it is going to fail. (R11)
 */
static bool
dw_can_open(const DWDirtyFile *file, char *path)
{
	RelPathStr	first = relpathperm(file->rlocator, file->forknum);
	int			fd;

	snprintf(path, MAXPGPATH, file->segno == 0 ? "%s" : "%s.%u", first.str, file->segno);
	fd = BasicOpenFile(path, O_RDWR | PG_BINARY);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/*
 * Return whether something that was not found in a tablespace has been
 * removed; if it has not, report that at elevel.  If the tablespace is not
 * mounted, the file will be found again, so it is not gone.  This cannot be
 * told while the tablespace is being dropped. (R3, R5)
 */
static bool
dw_check_gone(Oid spcOid, int elevel)
{
	char		path[MAXPGPATH];

	if (DWJudgeTablespace(spcOid, path) == DW_TABLESPACE_FINE)
		return true;
	ereport(elevel,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("could not fsync files of tablespace directory \"%s\" because they were not found",
					path),
			 errhint("Make sure that it is mounted.  If its files are lost, drop the tablespace, or create the subdirectory \"%s\" in it.",
					 TABLESPACE_VERSION_DIRECTORY)));
	return false;
}

/*
 * Make durable what has been removed from the directory of a relation.  If
 * the directory itself is gone, make that durable, as the process that has
 * removed it may not have done so yet. (R3, R5)
 *
 * Return whether that succeeded.  If it fails, and the server need not stop,
 * report it at elevel.
 */
bool
dw_sync_directory(const RelFileLocator *rlocator, int elevel)
{
	bool		gone = false;
	char		path[MAXPGPATH];
	int			fd;

	if (!enableFsync)
		return true;

	dw_directory_path(path, rlocator->spcOid, rlocator->dbOid);
	while ((fd = OpenTransientFile(path, O_RDONLY | PG_BINARY)) < 0 &&
		   FILE_POSSIBLY_DELETED(errno) && strchr(path, '/') != NULL)
	{
		gone = true;
		get_parent_directory(path);
	}
	if (dw_injected_error("doublewrite-directory-sync") || fd < 0 ||
		(pg_fsync(fd) != 0 && errno != EBADF && errno != EINVAL))
	{
		ereport(fd < 0 ? elevel : dw_sync_elevel(elevel),
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", path)));
		if (fd >= 0)
			CloseTransientFile(fd);
		return false;
	}
	CloseTransientFile(fd);
	if (gone && !dw_check_gone(rlocator->spcOid, elevel))
		return false;
	dw_refuse_failed_sync();
	INJECTION_POINT("doublewrite-directory-synced", NULL);
	return true;
}

/*
 * Make sure that a file is durable, or that it is gone for good.  If that
 * fails, see dw_sync_directory().
 */
bool
dw_sync_file(const DWDirtyFile *file, int elevel)
{
	FileTag		ftag;
	char		path[MAXPGPATH];
	bool		opened;

	if (!enableFsync)
		return true;

	memset(&ftag, 0, sizeof(ftag));
	ftag.handler = SYNC_HANDLER_MD;
	ftag.rlocator = file->rlocator;
	ftag.forknum = file->forknum;
	ftag.segno = file->segno;

	opened = dw_can_open(file, path);
	if (!opened || mdsyncfiletag(&ftag, path) < 0 ||
		dw_injected_error("doublewrite-file-sync"))
	{
		if (!FILE_POSSIBLY_DELETED(errno))
		{
			ereport(opened ? dw_sync_elevel(elevel) : elevel,
					(errcode_for_file_access(),
					 errmsg("could not fsync file \"%s\": %m", path)));
			return false;
		}
		if (!dw_sync_directory(&file->rlocator, elevel))
			return false;
	}
	dw_refuse_failed_sync();
	DWCount(sync_cycle_files, 1);
	return true;
}

/*
 * Sync all files of the table.  Callers that hold the flush lock call
 * dw_copy_dirty_files() and dw_sync_files().
 */
void
dw_sync_dirty_files(void)
{
	DWDirtyFile *files;
	int			nfiles;

	dw_lock_flush(LW_EXCLUSIVE);
	files = dw_copy_dirty_files(&nfiles);
	LWLockRelease(DoubleWriteFlushLock);
	dw_sync_files(files, nfiles);
	pfree(files);
}

/*
 * Sync all these files.
 */
void
dw_sync_files(const DWDirtyFile *files, int nfiles)
{
	for (int i = 0; i < nfiles; i++)
	{
		if (LWLockHeldByMe(DoubleWriteSyncLock))
			pg_atomic_write_u64(&DWCtl->log.syncing_since, dw_nanoseconds());
		(void) dw_sync_file(&files[i], ERROR);

		/* the queue of sync requests must not overflow meanwhile */
		if (AmCheckpointerProcess() && (i + 1) % DW_SYNCS_PER_ABSORB == 0)
			AbsorbSyncRequests();
	}
}
