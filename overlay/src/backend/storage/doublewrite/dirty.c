/*-------------------------------------------------------------------------
 *
 * dirty.c
 *	  Files that the log protects.
 *
 * A page that has been written home by way of the log needs its copy there until
 * its file is synced.  The table says which files those are, and which batch has
 * written to each of them last.  A checkpoint syncs them by the queue of sync
 * requests, a sync cycle by this table. (R3)
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
#include "postmaster/bgwriter.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/md.h"
#include "storage/sync.h"

/* Files that the checkpointer syncs before it looks at its queue, as in sync.c */
#define DW_SYNCS_PER_ABSORB		10

/*
 * Remember that a logged batch writes to the file of a page.  There is room;
 * see dw_dirty_files_full().
 */
void
dw_dirty_file(const BufferTag *tag, uint64 batchno)
{
	DWDirtyFile key = {0};
	DWDirtyFile *file;
	uint32		pos;

	Assert(DWIsFlusher());
	Assert(DWCtl->dirty.nfiles < DW_DIRTY_FILES);

	key.rlocator = BufTagGetRelFileLocator(tag);
	key.forknum = BufTagGetForkNum(tag);
	key.segno = tag->blockNum / RELSEG_SIZE;

	pos = hash_bytes((const unsigned char *) &key,
					 offsetof(DWDirtyFile, used)) % DW_DIRTY_FILES;
	for (;;)
	{
		file = &DWCtl->dirty.files[pos];
		if (!file->used ||
			memcmp(file, &key, offsetof(DWDirtyFile, used)) == 0)
			break;
		pos = (pos + 1) % DW_DIRTY_FILES;
	}

	if (!file->used)
	{
		*file = key;
		file->used = true;
		DWCtl->dirty.nfiles++;
	}
	file->batchno = batchno;
}

/*
 * Could the table overflow if that many pages of new files came?
 */
bool
dw_dirty_files_full(int more)
{
	Assert(DWIsFlusher());
	return DWCtl->dirty.nfiles + more >= DW_DIRTY_FILES;
}

bool
dw_many_dirty_files(void)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));
	return DWCtl->dirty.nfiles > DW_DIRTY_FILES / 4 * 3;
}

/*
 * Forget files whose last logged batch lies below the mark.  Flush lock held.
 */
void
dw_forget_files(uint64 mark)
{
	DWDirtyFile *old = palloc(sizeof(DWDirtyFile) * DW_DIRTY_FILES);

	Assert(DWIsFlusher());
	Assert(mark <= DWCtl->log.next_batchno);

	memcpy(old, DWCtl->dirty.files, sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	memset(DWCtl->dirty.files, 0, sizeof(DWDirtyFile) * DW_DIRTY_FILES);
	DWCtl->dirty.nfiles = 0;
	for (int i = 0; i < DW_DIRTY_FILES; i++)
	{
		BufferTag	tag;

		if (!old[i].used || old[i].batchno < mark)
			continue;
		InitBufferTag(&tag, &old[i].rlocator, old[i].forknum,
					  old[i].segno * RELSEG_SIZE);
		dw_dirty_file(&tag, old[i].batchno);
	}
	pfree(old);
	dw_show_log();
}

/* ---------------------------------------------------------------------
 * Making files durable
 * ---------------------------------------------------------------------
 */

/*
 * Path of a directory of relations or, without a database, of databases.  The
 * caller may be in a critical section, so nothing is allocated.
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
 * Make durable what has been removed from the directory of a relation.  If the
 * directory itself is gone, that is for whoever has removed it to care about.
 */
void
dw_sync_directory(const RelFileLocator *rlocator)
{
	char		path[MAXPGPATH];
	int			fd;

	if (!enableFsync)
		return;

	dw_directory_path(path, rlocator->spcOid, rlocator->dbOid);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0 && FILE_POSSIBLY_DELETED(errno))
		return;
	if (fd < 0 || (pg_fsync(fd) != 0 && errno != EBADF && errno != EINVAL))
		ereport(data_sync_elevel(ERROR),
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", path)));
	CloseTransientFile(fd);
}

/*
 * Make sure a file is durable, or that it is gone for good.
 */
void
dw_sync_file(const DWDirtyFile *file)
{
	FileTag		ftag;
	char		path[MAXPGPATH];

	if (!enableFsync)
		return;

	memset(&ftag, 0, sizeof(ftag));
	ftag.handler = SYNC_HANDLER_MD;
	ftag.rlocator = file->rlocator;
	ftag.forknum = file->forknum;
	ftag.segno = file->segno;

	if (mdsyncfiletag(&ftag, path) < 0)
	{
		if (!FILE_POSSIBLY_DELETED(errno))
			ereport(data_sync_elevel(ERROR),
					(errcode_for_file_access(),
					 errmsg("could not fsync file \"%s\": %m", path)));
		dw_sync_directory(&file->rlocator);
	}
	DWCount(sync_cycle_files, 1);
}

/*
 * Sync all files of a table of DW_DIRTY_FILES entries.
 */
void
dw_sync_files(const DWDirtyFile *files)
{
	int			nsynced = 0;

	for (int i = 0; i < DW_DIRTY_FILES; i++)
	{
		if (!files[i].used)
			continue;
		dw_sync_file(&files[i]);

		/* the queue of sync requests must not overflow meanwhile */
		if (AmCheckpointerProcess() && ++nsynced % DW_SYNCS_PER_ABSORB == 0)
			AbsorbSyncRequests();
	}
}
