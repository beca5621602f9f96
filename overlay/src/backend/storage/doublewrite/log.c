/*-------------------------------------------------------------------------
 *
 * log.c
 *	  The double-write log on disk: batches, segments, low-water mark.
 *
 * See doublewrite_format.h for the format.  All of this runs with
 * DoubleWriteFlushLock held, so batches are written one after the other and
 * a batch is durable before the next one starts: only the newest can be torn.
 *
 * Space is freed by raising the low-water mark: batches below it have been
 * written home and their files synced.  The mark travels in the headers of
 * batches; where it must be durable at once, an empty batch carries it.  The
 * last block of each segment is kept for such a batch, so that raising the
 * mark never needs space that the mark itself would free.  Segments that lie
 * below a durable mark are renamed to become future segments. (R3)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "common/doublewrite_scan.h"
#include "common/file_perm.h"
#include "common/file_utils.h"
#include "common/hashfn.h"
#include "pgstat.h"
#include "port/pg_iovec.h"
#include "portability/instr_time.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"

/* File descriptor of the segment this process wrote to last */
static int	dw_fd = -1;
static uint64 dw_fd_segno = 0;

/*
 * Is the log written past the kernel's cache?  Nobody reads it before the next
 * start, and its pages in the cache would have to be copied there, and drive
 * others out.  False once the file system has refused it.
 */
static bool dw_direct = true;

static PGIOAlignedBlock dw_header_block;

#define DWHeader ((DWBatchHeader *) dw_header_block.data)

/* ---------------------------------------------------------------------
 * Names and directory
 * ---------------------------------------------------------------------
 */

void
dw_log_path(char *path, uint64 segno)
{
	snprintf(path, MAXPGPATH, "%s/%016" PRIX64, DW_DIR, segno);
}

static bool
dw_log_is_linked(void)
{
	struct stat st;

	return lstat(DW_DIR, &st) == 0 && !S_ISDIR(st.st_mode);
}

/*
 * Is the directory ours alone?  Whoever can write to it has a say in what the
 * next start puts home.  The data directory keeps others out, so this matters
 * where a link leads out of it, or if it lets the group in.
 */
bool
dw_log_check_mode(int elevel)
{
#if !defined(WIN32) && !defined(__CYGWIN__)
	bool		linked = dw_log_is_linked();
	struct stat st;

	if (!linked && (data_directory_mode & S_IRWXG) == 0)
		return true;
	if (stat(DW_DIR, &st) < 0)
		return false;
	if (st.st_uid != geteuid())
	{
		ereport(elevel,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("double-write log directory \"%s\" has wrong ownership",
						DW_DIR),
				 errhint("It must be owned by the user that the server runs as.")));
		return false;
	}
	if (st.st_mode & (linked ? PG_MODE_MASK_GROUP : S_IWGRP))
	{
		ereport(elevel,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("double-write log directory \"%s\" has invalid permissions",
						DW_DIR),
				 errdetail("Permissions should be u=rwx (0700) or u=rwx,g=rx (0750).")));
		return false;
	}
#endif
	return true;
}

/*
 * Read whose log this is, and who we are.
 */
void
dw_log_read_owner(DWOwner *owner, DWOwner *own)
{
	FILE	   *fp = AllocateFile(DW_OWNER_FILE, "r");

	DWReadOwner(fp, owner);
	if (fp != NULL)
		FreeFile(fp);
	if (!DWIdentifyOwner(GetSystemIdentifier(), own))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not identify the data directory: %m")));
}

/*
 * Is the log in the directory, if any, that of this data directory?  (R9)
 */
bool
dw_log_check_owner(int elevel)
{
	DWOwner		owner;
	DWOwner		own;

	dw_log_read_owner(&owner, &own);
	switch (DWJudgeOwner(&owner, &own, dw_log_is_linked()))
	{
		case DW_OWNER_FITS:
			return true;
		case DW_OWNER_OTHER_CLUSTER:
			ereport(elevel,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the double-write log in \"%s\" belongs to another database cluster",
							DW_DIR),
					 errdetail("Its system identifier is %" PRIu64 ", that of this cluster %" PRIu64 ".",
							   owner.sysid, own.sysid),
					 errhint("Check where \"%s\" points to.", DW_DIR)));
			break;
		case DW_OWNER_OTHER_DIRECTORY:
			ereport(elevel,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the double-write log in \"%s\" belongs to another data directory",
							DW_DIR),
					 errdetail("It is in use by data directory \"%s\".",
							   owner.datadir),
					 errhint("Give this cluster a log directory of its own.  If it has been moved here, and no other server uses the log, remove the file \"%s\".",
							 DW_OWNER_FILE)));
			break;
	}
	return false;
}

/*
 * Check that the log directory can be used, creating it in a cluster that
 * never had one.  If it cannot, report that at elevel and return false.
 */
bool
dw_log_check_dir(int elevel)
{
	struct stat st;

	if (lstat(DW_DIR, &st) < 0 && errno == ENOENT &&
		MakePGDirectory(DW_DIR) == 0)
		fsync_fname(".", true);

	if (stat(DW_DIR, &st) < 0)
	{
		ereport(elevel,
				(errcode_for_file_access(),
				 errmsg("could not access double-write log directory \"%s\": %m",
						DW_DIR),
				 errhint("If it is a symbolic link, make sure that its target exists and is mounted.")));
		return false;
	}
	if (!S_ISDIR(st.st_mode))
	{
		ereport(elevel,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("double-write log directory \"%s\" is not a directory",
						DW_DIR),
				 errhint("Make it a directory, or a symbolic link to one, that only the server's user can access.")));
		return false;
	}
	if (access(DW_DIR, R_OK | W_OK | X_OK) < 0)
	{
		ereport(elevel,
				(errcode_for_file_access(),
				 errmsg("double-write log directory \"%s\" is not writable: %m",
						DW_DIR),
				 errhint("Give the server's user read and write permission, or set \"io_torn_pages_protection\" to \"full_pages\".")));
		return false;
	}
	return dw_log_check_mode(elevel) && dw_log_check_owner(elevel);
}

/*
 * Automatic bound of the log in bytes: as large as shared buffers, since that
 * much can be dirty at once, but between 512 MB and 1 GB.  With less, small
 * shared buffers would have short epochs, in which few pages are evicted twice.
 *
 * But half of max_wal_size up to 4 GB, if that is more.  Whoever has checkpoints
 * that rare would have one image of each page in WAL between two of them; so
 * that there is but one copy, too, an epoch shall last as long.  More would make
 * restore long, and the table of copies large.
 */
static int64
dw_automatic_bound(void)
{
	int64		by_buffers = (int64) NBuffers * BLCKSZ;
	int64		by_wal = (int64) max_wal_size_mb * 1024 * 1024 / 2;

	by_buffers = Min(Max(by_buffers, INT64CONST(512) << 20), INT64CONST(1) << 30);
	return Max(by_buffers, Min(by_wal, INT64CONST(4) << 30));
}

/*
 * Bound of the log in segments.
 */
int
dw_log_bound_segments(void)
{
	int64		bytes = dw_automatic_bound();

	if (double_write_buffer_size > 0)
		bytes = (int64) double_write_buffer_size * 1024 * 1024;
	return Min(Max(bytes / DW_SEGMENT_SIZE, DW_MIN_SEGMENTS),
			   DW_MAX_SEGMENTS - 1);
}

/* ---------------------------------------------------------------------
 * Segment files
 * ---------------------------------------------------------------------
 */

static void
dw_close_segment(void)
{
	if (dw_fd >= 0)
	{
		close(dw_fd);
		ReleaseExternalFD();
	}
	dw_fd = -1;
}

static int
dw_open_file(const char *path, bool direct)
{
	int			injected = 0;

	if (direct)
		INJECTION_POINT("doublewrite-open-direct", &injected);
	if (injected != 0)
	{
		errno = injected;
		return -1;
	}
	return BasicOpenFile(path, O_RDWR | O_CLOEXEC | PG_BINARY |
						 (direct ? PG_O_DIRECT : 0));
}

static void
dw_open_segment(uint64 segno)
{
	char		path[MAXPGPATH];

	if (dw_fd >= 0 && dw_fd_segno == segno)
		return;
	dw_close_segment();

	dw_log_path(path, segno);
	dw_fd = dw_open_file(path, dw_direct);
	if (dw_fd < 0 && errno == EINVAL && dw_direct)
	{
		dw_direct = false;
		dw_fd = dw_open_file(path, false);
	}
	if (dw_fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open double-write log segment \"%s\": %m",
						path)));
	ReserveExternalFD();
	dw_fd_segno = segno;
}

/*
 * Name of the file that this process prepares to become a segment.
 */
static void
dw_new_path(char *path)
{
	snprintf(path, MAXPGPATH, "%s/new.%d", DW_DIR, (int) getpid());
}

/*
 * Make a file for a segment, durable but for its name.  Returns false, with
 * errno set, if there is no space for it.  Any other failure is reported at
 * elevel.
 *
 * Who has the time fills it with zeroes, since a sync of blocks that have been
 * written before need not wait for the file system's own journal.  In a hurry
 * that would cost more than it saves.
 */
static bool
dw_make_segment(const char *path, bool hurry, int elevel)
{
	File		file;
	int			rc;
	int			save_errno;
	int			injected = 0;

	unlink(path);
	file = PathNameOpenFile(path, O_RDWR | O_CREAT | O_EXCL | PG_BINARY);
	if (file < 0)
	{
		if (errno != ENOSPC)
			ereport(elevel,
					(errcode_for_file_access(),
					 errmsg("could not create file \"%s\": %m", path)));
		return false;
	}

	if (hurry)
		rc = FileFallocate(file, 0, DW_SEGMENT_SIZE, WAIT_EVENT_DOUBLE_WRITE_INIT);
	else
		rc = FileZero(file, 0, DW_SEGMENT_SIZE, WAIT_EVENT_DOUBLE_WRITE_INIT);
	save_errno = errno;
	INJECTION_POINT("doublewrite-create-segment", &injected);
	if (injected != 0)
	{
		rc = -1;
		save_errno = injected;
	}
	if (rc >= 0 && FileSync(file, WAIT_EVENT_DOUBLE_WRITE_INIT) != 0)
	{
		rc = -1;
		save_errno = errno;
	}

	FileClose(file);
	if (rc < 0)
	{
		unlink(path);
		errno = save_errno;
		if (errno != ENOSPC)
			ereport(elevel,
					(errcode_for_file_access(),
					 errmsg("could not write file \"%s\": %m", path)));
		return false;
	}
	return true;
}

/*
 * Create the next segment.  Returns false, with errno set, if there is no
 * space for it; any other failure is an error.
 */
static bool
dw_create_segment(void)
{
	char		newpath[MAXPGPATH];
	char		path[MAXPGPATH];

	dw_new_path(newpath);
	if (!dw_make_segment(newpath, true, ERROR))
		return false;

	/* The name must be durable before a batch in the segment counts. (R3) */
	dw_log_path(path, DWCtl->last_segno + 1);
	durable_rename(newpath, path, ERROR);
	DWCtl->last_segno++;
	return true;
}

/*
 * How many segments the log shall have ready behind the one being written: a
 * quarter of its bound, but between 2 and 32 (128 MB).
 *
 * A first SELECT after a load, say, sets hint bits faster than anybody can
 * create segments for its pages, so they must be there before.  A burst that
 * is larger than that lasts long enough to be waited for.
 */
static int
dw_segments_ahead(void)
{
	return Min(Max(dw_log_bound_segments() / 4, 2), 32);
}

static bool
dw_segments_below_bound(void)
{
	return DWCtl->last_segno + 1 - DWCtl->first_segno < dw_log_bound_segments();
}

static bool
dw_segment_wanted(void)
{
	return DWCtl->log_open && dw_segments_below_bound() &&
		DWCtl->last_segno - DWCtl->segno < dw_segments_ahead();
}

/*
 * Create a segment ahead of the flusher, which would otherwise do it with home
 * writes held up.  The flush lock is held for naming it only.
 *
 * Returns whether another one is wanted.  If there is no space, or something
 * fails, we let it be: the flusher will say so when it needs the segment.
 */
bool
dw_prepare_segment(void)
{
	char		newpath[MAXPGPATH];
	char		path[MAXPGPATH];
	bool		wanted;

	dw_lock_flush(LW_SHARED);
	wanted = dw_segment_wanted();
	LWLockRelease(DoubleWriteFlushLock);
	if (!wanted)
		return false;

	dw_new_path(newpath);
	if (!dw_make_segment(newpath, false, DEBUG1))
		return false;

	/* the flusher may have created one itself, or closed the log */
	dw_lock_flush(LW_EXCLUSIVE);
	wanted = DWCtl->log_open && dw_segments_below_bound();
	dw_log_path(path, DWCtl->last_segno + 1);
	if (wanted)
		wanted = durable_rename(newpath, path, LOG) == 0;
	if (wanted)
	{
		DWCtl->last_segno++;
		wanted = dw_segment_wanted();
	}
	else
		unlink(newpath);
	LWLockRelease(DoubleWriteFlushLock);
	return wanted;
}

/* A file in the directory of the log, in which nothing is live */
typedef struct DWOldFile
{
	uint64		segno;
	bool		spare;			/* kept over a clean stop */
	bool		usable;			/* has our format and size */
	char		name[64];
} DWOldFile;

/*
 * List the segments below the given one, and all spare files.
 */
static int
dw_list_old_files(uint64 before, DWOldFile **files)
{
	DIR		   *dir = AllocateDir(DW_DIR);
	struct dirent *de;
	int			max = 64;
	int			n = 0;

	*files = palloc(max * sizeof(DWOldFile));
	while ((de = ReadDir(dir, DW_DIR)) != NULL)
	{
		DWOldFile  *file = &(*files)[n];
		char		path[MAXPGPATH];
		struct stat st;

		file->usable = true;
		file->spare = DWParseSpareName(de->d_name, &file->segno, &file->usable);
		if (!file->spare &&
			(!DWParseSegmentName(de->d_name, &file->segno) || file->segno >= before))
			continue;
		if (strlcpy(file->name, de->d_name, sizeof(file->name)) >= sizeof(file->name))
			continue;

		snprintf(path, sizeof(path), "%s/%s", DW_DIR, de->d_name);
		if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) ||
			st.st_size != DW_SEGMENT_SIZE)
			file->usable = false;
		if (++n == max)
		{
			max *= 2;
			*files = repalloc(*files, max * sizeof(DWOldFile));
		}
	}
	FreeDir(dir);
	return n;
}

static void
dw_remove_file(const char *name)
{
	char		path[MAXPGPATH];

	snprintf(path, sizeof(path), "%s/%s", DW_DIR, name);
	if (unlink(path) < 0 && errno != ENOENT)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
}

static bool
dw_rename_file(const char *path, const char *newpath)
{
	if (rename(path, newpath) == 0)
		return true;
	ereport(LOG,
			(errcode_for_file_access(),
			 errmsg("could not rename file \"%s\" to \"%s\": %m",
					path, newpath)));
	return false;
}

/*
 * Keep a segment for the next start.
 */
static void
dw_spare_file(uint64 segno)
{
	char		path[MAXPGPATH];
	char		newpath[MAXPGPATH];

	dw_log_path(path, segno);
	snprintf(newpath, sizeof(newpath), "%s/%016" PRIX64 DW_SPARE_SUFFIX, DW_DIR, segno);
	dw_rename_file(path, newpath);
}

/*
 * Make future segments of old files as long as the bound permits, and remove
 * the others.  What they hold names lower segments, so it does not count. (R3)
 */
static void
dw_reuse_files(DWOldFile *files, int nfiles)
{
	for (int i = 0; i < nfiles; i++)
	{
		char		path[MAXPGPATH];
		char		newpath[MAXPGPATH];

		Assert(files[i].segno < DWCtl->first_segno);
		if (!files[i].usable ||
			DWCtl->last_segno + 1 - DWCtl->first_segno >= dw_log_bound_segments())
		{
			dw_remove_file(files[i].name);
			continue;
		}
		snprintf(path, sizeof(path), "%s/%s", DW_DIR, files[i].name);
		dw_log_path(newpath, DWCtl->last_segno + 1);
		if (dw_rename_file(path, newpath))
			DWCtl->last_segno++;
	}
	pfree(files);

	/* The names must be durable before batches in the segments count. (R3) */
	if (nfiles > 0)
		fsync_fname(DW_DIR, true);
}

/*
 * Make segments that hold only freed batches available for reuse.
 *
 * The mark that frees them is durable already. (R3)
 */
static void
dw_recycle_segments(void)
{
	bool		changed = false;

	while (DWCtl->first_segno < DWCtl->segno &&
		   DWCtl->seg_first_batch[(DWCtl->first_segno + 1) % DW_MAX_SEGMENTS]
		   <= DWCtl->low_water_logged)
	{
		char		path[MAXPGPATH];
		char		newpath[MAXPGPATH];

		dw_log_path(path, DWCtl->first_segno);
		dw_log_path(newpath, DWCtl->last_segno + 1);

		if (DWCtl->last_segno - DWCtl->first_segno >= dw_log_bound_segments())
		{
			if (unlink(path) < 0 && errno != ENOENT)
				ereport(LOG,
						(errcode_for_file_access(),
						 errmsg("could not remove file \"%s\": %m", path)));
		}
		else if (dw_rename_file(path, newpath))
			DWCtl->last_segno++;
		DWCtl->first_segno++;
		changed = true;
	}

	if (changed)
		fsync_fname(DW_DIR, true);
}

/*
 * Make room for nblocks blocks in one segment, entering the next segment if
 * need be.  Returns false if that must wait until a sync cycle frees space.
 *
 * An empty batch that raises the mark may use what is kept for it.  That, and
 * a batch for which a sync cycle could free nothing, may exceed the bound.
 */
static bool
dw_reserve(int nblocks, bool for_mark, bool beyond_bound)
{
	int			limit = DW_SEGMENT_BLOCKS - (for_mark ? 0 : 1);

	if (DWCtl->blockno + nblocks <= limit)
		return true;

	if (DWCtl->segno + 1 - DWCtl->first_segno >=
		((for_mark || beyond_bound) ? DW_MAX_SEGMENTS : dw_log_bound_segments()))
		return false;

	if (DWCtl->segno == DWCtl->last_segno)
	{
		if (!dw_create_segment())
		{
			bool		can_wait = (!for_mark &&
									DWCtl->first_segno < DWCtl->segno);

			/* R11: never an unprotected write instead */
			ereport(can_wait ? LOG : ERROR,
					(errcode_for_file_access(),
					 errmsg("could not extend the double-write log: %m"),
					 can_wait ?
					 errdetail("Pages wait until a sync of the data files has freed space in the log.") : 0,
					 errhint("Free space on the device of \"%s\", or lower \"double_write_buffer_size\".",
							 DW_DIR)));
			return false;
		}
	}

	DWCtl->segno++;
	DWCtl->blockno = 0;
	DWCtl->seg_first_batch[DWCtl->segno % DW_MAX_SEGMENTS] = DWCtl->next_batchno;
	if (dw_segment_wanted())
		dw_request_upkeep();
	return true;
}

/* ---------------------------------------------------------------------
 * Writing batches
 * ---------------------------------------------------------------------
 */

static void
dw_write_blocks(struct iovec *iov, int iovcnt, off_t offset)
{
	ssize_t		written;
	int			injected = 0;

	pgstat_report_wait_start(WAIT_EVENT_DOUBLE_WRITE_WRITE);
	written = pg_pwritev_with_retry(dw_fd, iov, iovcnt, offset);
	pgstat_report_wait_end();
	INJECTION_POINT("doublewrite-log-write", &injected);
	if (injected != 0)
	{
		written = -1;
		errno = injected;
	}
	if (written < 0 && errno == EINVAL && dw_direct)
	{
		/* some file systems say so only now */
		dw_direct = false;
		dw_close_segment();
		dw_open_segment(dw_fd_segno);
		dw_write_blocks(iov, iovcnt, offset);
		return;
	}
	if (written < 0)
	{
		char		path[MAXPGPATH];

		dw_log_path(path, dw_fd_segno);
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write to double-write log segment \"%s\" at offset %lld: %m",
						path, (long long) offset)));
	}
	DWCount(log_writes, 1);
	DWCount(log_bytes, written);
}

/*
 * Data files are synced through the cache of the drive if WAL is; what their
 * home writes rely on must not be synced any less.  (R2)
 */
static int
dw_sync_segment(void)
{
	if (wal_sync_method == WAL_SYNC_METHOD_FSYNC_WRITETHROUGH)
	{
		INJECTION_POINT("doublewrite-log-writethrough", NULL);
		return pg_fsync(dw_fd);
	}
	return pg_fdatasync(dw_fd);
}

/*
 * Make what was written to the current segment durable.  As with data files,
 * a failed sync leaves no way to tell what is on disk.
 */
static void
dw_sync_log(void)
{
	instr_time	start;
	instr_time	end;
	int			injected = 0;

	if (!enableFsync)
		return;

	INSTR_TIME_SET_CURRENT(start);
	pgstat_report_wait_start(WAIT_EVENT_DOUBLE_WRITE_SYNC);
	INJECTION_POINT("doublewrite-log-sync", &injected);
	if (injected != 0)
		errno = injected;
	if (injected != 0 || dw_sync_segment() != 0)
	{
		char		path[MAXPGPATH];

		dw_log_path(path, dw_fd_segno);
		ereport(data_sync_elevel(ERROR),
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", path)));
	}
	pgstat_report_wait_end();
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);

	DWCount(log_syncs, 1);
	DWCount(log_sync_usec, INSTR_TIME_GET_MICROSEC(end));
	if (AmRegularBackendProcess())
		DWCount(foreground_syncs, 1);
}

/*
 * Begin the header of a batch of these pages: which they are, and how many
 * bytes of what follows it.  Returns the pages as they are to be written if
 * they have been compressed, else NULL.
 */
static char *
dw_build_entries(const int *slots, int nslots)
{
	DWPageEntry *entries = DWBatchEntries(DWHeader);
	char	   *packed;
	char	   *stored;

	memset(&dw_header_block, 0, sizeof(dw_header_block));
	DWHeader->npages = nslots;
	stored = packed = dw_pack_pages(DWHeader, slots, nslots);

	for (int i = 0; i < nslots; i++)
	{
		const DWSlot *slot = &DWSlots[slots[i]];
		const char *page = packed ? stored : DWSlotPage(slots[i]);

		entries[i].rlocator = BufTagGetRelFileLocator(&slot->tag);
		entries[i].forknum = BufTagGetForkNum(&slot->tag);
		entries[i].blkno = slot->tag.blockNum;
		entries[i].crc = DWPageChecksum(page, entries[i].length);
		entries[i].lsn = slot->lsn;
		if (packed)
			stored += entries[i].length;
	}
	return packed;
}

/*
 * Complete the header: the place of the batch is known now.
 */
static void
dw_build_header(void)
{
	DWHeader->magic = DW_MAGIC;
	DWHeader->version = DW_FORMAT_VERSION;
	DWHeader->blcksz = BLCKSZ;
	DWHeader->sysid = GetSystemIdentifier();
	DWHeader->batchno = DWCtl->next_batchno;
	DWHeader->low_water = DWCtl->low_water;
	DWHeader->segno = DWCtl->segno;
	DWHeader->blockno = DWCtl->blockno;
	DWHeader->nonce = DWCtl->nonce;

	SpinLockAcquire(&DWCtl->mutex);
	DWHeader->redo = DWCtl->redo;
	DWHeader->redo_pending = DWCtl->redo_pending;
	SpinLockRelease(&DWCtl->mutex);

	DWHeader->crc = DWBatchHeaderChecksum(DWHeader);
}

/*
 * Write the header and pages that have been compressed.
 */
static void
dw_write_packed(char *packed)
{
	struct iovec iov[2];

	iov[0].iov_base = dw_header_block.data;
	iov[0].iov_len = BLCKSZ;
	iov[1].iov_base = packed;
	iov[1].iov_len = (Size) (DWBatchBlocks(DWHeader) - 1) * BLCKSZ;
	dw_write_blocks(iov, lengthof(iov), (off_t) DWHeader->blockno * BLCKSZ);
}

/*
 * Write the header and pages as they are.
 */
static void
dw_write_slots(const int *slots, int nslots)
{
	struct iovec iov[PG_IOV_MAX];
	off_t		offset = (off_t) DWHeader->blockno * BLCKSZ;
	int			done = 0;

	iov[0].iov_base = dw_header_block.data;
	iov[0].iov_len = BLCKSZ;
	for (int iovcnt = 1; iovcnt > 0 || done < nslots; iovcnt = 0)
	{
		while (iovcnt < PG_IOV_MAX && done < nslots)
		{
			iov[iovcnt].iov_base = DWSlotPage(slots[done]);
			iov[iovcnt].iov_len = BLCKSZ;
			iovcnt++;
			done++;
		}
		dw_write_blocks(iov, iovcnt, offset);
		offset += (off_t) iovcnt * BLCKSZ;
	}
}

/*
 * Write a batch to the space reserved for it, and sync.  If this fails, the
 * next attempt writes the same batch number to the same place or a later one.
 */
static void
dw_append(const int *slots, int nslots, char *packed)
{
	dw_open_segment(DWCtl->segno);
	dw_build_header();
	if (packed != NULL)
		dw_write_packed(packed);
	else
		dw_write_slots(slots, nslots);

	INJECTION_POINT("doublewrite-log-written", NULL);
	dw_sync_log();

	DWCtl->blockno += DWBatchBlocks(DWHeader);
	DWCtl->low_water_logged = DWCtl->low_water;
	if (nslots > 0)
		DWCtl->last_page_batch = DWCtl->next_batchno;
	DWCtl->next_batchno++;
	dw_show_log();

	/* client backends seldom come here: don't keep freed segments alive */
	if (AmRegularBackendProcess())
		dw_close_segment();
}

/*
 * Write the pages in the given slots to the log as one batch; on return they
 * are durable there. (R2)
 *
 * Returns false, with nothing written, if there is no space before a sync
 * cycle has freed some.
 */
bool
dw_log_write_batch(const int *slots, int nslots, bool beyond_bound)
{
	uint64		batchno = DWCtl->next_batchno;
	char	   *packed;
	uint32		nblocks;

	Assert(LWLockHeldByMeInMode(DoubleWriteFlushLock, LW_EXCLUSIVE));
	Assert(DWCtl->log_open && nslots > 0 && nslots <= DW_MAX_BATCH_PAGES);

	if (dw_dirty_files_full(nslots))
	{
		DWCount(files_full, 1);
		return false;
	}
	packed = dw_build_entries(slots, nslots);
	nblocks = DWBatchBlocks(DWHeader);
	if (!dw_reserve(nblocks, false, beyond_bound))
		return false;

	/* before the first home write, so that no sync cycle misses the file */
	for (int i = 0; i < nslots; i++)
		dw_dirty_file(&DWSlots[slots[i]].tag, batchno);

	dw_append(slots, nslots, packed);

	/* not before: until then a page may still need an older batch (R3) */
	for (int i = 0; i < nslots; i++)
	{
		dw_note_logged(slots[i], batchno);
		dw_epoch_note(&DWSlots[slots[i]].tag, batchno);
	}
	DWCount(logged, nslots);
	DWCount(logged_bytes, (nblocks - 1) * BLCKSZ);
	return true;
}

/*
 * Raise the low-water mark and make it durable: batches below it are home
 * and synced, and no home write relies on copies in them. (R3)
 */
void
dw_log_set_low_water(uint64 mark)
{
	Assert(LWLockHeldByMeInMode(DoubleWriteFlushLock, LW_EXCLUSIVE));
	Assert(DWCtl->log_open);
	Assert(mark <= DWCtl->epoch);

	INJECTION_POINT("doublewrite-before-low-water", NULL);

	DWCtl->low_water = Max(DWCtl->low_water, mark);
	if (!dw_reserve(1, true, true))
		elog(ERROR, "double-write log has too many segments");
	dw_build_entries(NULL, 0);
	dw_append(NULL, 0, NULL);

	INJECTION_POINT("doublewrite-after-low-water", NULL);

	dw_recycle_segments();
	dw_show_log();
}

/* ---------------------------------------------------------------------
 * Files that the log protects
 * ---------------------------------------------------------------------
 */

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

	key.rlocator = BufTagGetRelFileLocator(tag);
	key.forknum = BufTagGetForkNum(tag);
	key.segno = tag->blockNum / RELSEG_SIZE;

	pos = hash_bytes((const unsigned char *) &key,
					 offsetof(DWDirtyFile, used)) % DW_DIRTY_FILES;
	for (;;)
	{
		file = &DWCtl->dirty_files[pos];
		if (!file->used ||
			memcmp(file, &key, offsetof(DWDirtyFile, used)) == 0)
			break;
		pos = (pos + 1) % DW_DIRTY_FILES;
	}

	if (!file->used)
	{
		*file = key;
		file->used = true;
		DWCtl->ndirty_files++;
	}
	file->batchno = batchno;
}

/*
 * Could the table overflow if that many pages of new files came?
 */
bool
dw_dirty_files_full(int more)
{
	return DWCtl->ndirty_files + more >= DW_DIRTY_FILES;
}

/* ---------------------------------------------------------------------
 * Arming and disarming
 *
 * While home writes rely on the log, a file named backup_label says so.
 * Stock servers refuse to start with it, which is the point: after a crash
 * they would leave the pages torn (R12).  Backup tools should not copy a
 * backup_label from a running cluster, and write their own into the backup.
 * If one copies it all the same, the owner file beside the segments shows that
 * it is a copy (R9).
 * ---------------------------------------------------------------------
 */

#define DW_MARKER_TMP		"backup_label.dwtmp"
#define DW_OWNER_TMP		DW_OWNER_FILE ".tmp"

/*
 * Position an open backup_label file at the label of a backup.  Returns false
 * if there is none in it, but only our marker.
 */
bool
DoubleWriteSkipMarker(FILE *fp)
{
	return DWSkipMarker(fp);
}

/*
 * What is the backup_label file in the data directory?
 */
DWLabel
dw_read_label(void)
{
	FILE	   *fp = AllocateFile(DW_MARKER_FILE, "r");
	DWLabel		label;

	if (fp == NULL && errno != ENOENT)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", DW_MARKER_FILE)));
	label = DWReadLabel(fp);
	if (fp != NULL)
		FreeFile(fp);
	return label;
}

static void
dw_write_marker(void)
{
	FILE	   *fp;

	fp = AllocateFile(DW_MARKER_TMP, "w");
	if (fp == NULL ||
		fprintf(fp,
				"%s\n"
				"System identifier: " UINT64_FORMAT "\n"
				"This is not the label of a backup.  Pages of this cluster are protected by the\n"
				"double-write log in the directory \"%s\".  Only a server that knows it may start\n"
				"on this cluster; it removes this file when it is shut down.\n",
				DW_MARKER_LINE, GetSystemIdentifier(), DW_DIR) < 0 ||
		fflush(fp) != 0 || (enableFsync && pg_fsync(fileno(fp)) != 0) ||
		FreeFile(fp) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", DW_MARKER_TMP)));
	durable_rename(DW_MARKER_TMP, DW_MARKER_FILE, ERROR);
}

/*
 * Note whose log this is.  The marker is named only once it is there.  If this
 * fails, report it at elevel.
 */
static void
dw_write_owner(bool marker, int elevel)
{
	DWOwner		own;
	FILE	   *fp;
	bool		written = false;

	fp = AllocateFile(DW_OWNER_TMP, "w");
	if (fp != NULL && DWIdentifyOwner(GetSystemIdentifier(), &own))
	{
		own.nonce = DWCtl->nonce;
		if (!marker)
			memset(&own.marker, 0, sizeof(own.marker));
		written = DWWriteOwner(fp, &own) && fflush(fp) == 0 &&
			(!enableFsync || pg_fsync(fileno(fp)) == 0);
	}
	if (fp != NULL && FreeFile(fp) != 0)
		written = false;
	if (written)
		durable_rename(DW_OWNER_TMP, DW_OWNER_FILE, elevel);
	else
		ereport(elevel,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", DW_OWNER_TMP)));
}

void
dw_remove_owner(void)
{
	struct stat st;

	if (lstat(DW_OWNER_FILE, &st) == 0)
		durable_unlink(DW_OWNER_FILE, LOG);
}

/*
 * Have segments to write to: spare ones, and at least two, so that one can
 * always be recycled while the other is in use, however full the device is.
 */
static void
dw_log_open(void)
{
	DWOldFile  *files;
	int			nold = dw_list_old_files(PG_UINT64_MAX, &files);
	int			nfiles = 0;

	/*
	 * What any of them holds must not be taken for a part of the log, nor
	 * outlive dw_log_empty(): there may be segments that the start has not
	 * looked at, since the directory could not be used then.  Segments wait
	 * until the log is empty.  (R3)
	 */
	for (int i = 0; i < nold; i++)
	{
		DWCtl->last_segno = Max(DWCtl->last_segno, files[i].segno);
		if (files[i].spare)
			files[nfiles++] = files[i];
	}

	DWCtl->segno = DWCtl->first_segno = DWCtl->last_segno + 1;
	if (!pg_strong_random(&DWCtl->nonce, sizeof(DWCtl->nonce)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random number for the double-write log")));
	dw_reuse_files(files, nfiles);
	while (DWCtl->last_segno < DWCtl->first_segno + 1)
	{
		if (!dw_create_segment())
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not create the double-write log: %m"),
					 errhint("Free space on the device of \"%s\".", DW_DIR)));
	}
	DWCtl->blockno = 0;
	DWCtl->seg_first_batch[DWCtl->segno % DW_MAX_SEGMENTS] = DWCtl->next_batchno;
	DWCtl->log_open = true;
	if (dw_segment_wanted())
		dw_request_upkeep();
}

/*
 * Write an empty batch that makes the log empty, opening it if need be.  The
 * segments of before are reused.
 */
void
dw_log_empty(void)
{
	bool		opened = !DWCtl->log_open;

	if (opened)
		dw_log_open();
	dw_epoch_begin(DWCtl->next_batchno);
	dw_log_set_low_water(DWCtl->next_batchno);
	if (opened)
	{
		DWOldFile  *files;
		int			nfiles = dw_list_old_files(DWCtl->first_segno, &files);

		dw_reuse_files(files, nfiles);
	}
}

/*
 * Remove all files of the log.
 */
void
dw_remove_log(void)
{
	DWOldFile  *files;
	int			nfiles = dw_list_old_files(PG_UINT64_MAX, &files);

	for (int i = 0; i < nfiles; i++)
		dw_remove_file(files[i].name);
	pfree(files);
	dw_remove_owner();
	fsync_fname(DW_DIR, true);
}

/*
 * The log is empty and no longer in use.  Keep its segments as spare files for
 * the next start, or remove them.
 *
 * The order does not matter: raising the mark past everything has made future
 * segments of all but the newest one, so none of those holds a batch that names
 * it, and what a crash leaves behind has nothing live in it. (R9)
 */
static void
dw_retire_log(bool keep)
{
	DWOldFile  *files;
	int			nfiles = dw_list_old_files(PG_UINT64_MAX, &files);

	for (int i = 0; i < nfiles; i++)
	{
		if (keep && !files[i].spare)
			dw_spare_file(files[i].segno);
		else
			dw_remove_file(files[i].name);
		INJECTION_POINT("doublewrite-retire-segment", NULL);
	}
	pfree(files);
	fsync_fname(DW_DIR, true);
}

/*
 * From now on home writes go through the log.  The caller holds the flush
 * lock, so that no batch straddles the change. (R10)
 *
 * The log is in place before the marker that demands it, and both are durable
 * before any home write relies on them.  The owner file never names a marker
 * that another one may be about to replace.  Once the marker is there, nothing
 * may fail: it would demand a log that nobody keeps up to date.
 */
void
dw_arm(void)
{
	Assert(LWLockHeldByMeInMode(DoubleWriteFlushLock, LW_EXCLUSIVE));

	if (DWCtl->armed)
		return;
	dw_log_check_dir(ERROR);
	dw_log_empty();
	dw_write_owner(false, ERROR);
	dw_write_marker();
	INJECTION_POINT("doublewrite-marker-written", NULL);
	dw_write_owner(true, LOG);
	DWCtl->armed = true;
	DWCtl->disarm_after = InvalidXLogRecPtr;
	dw_show_log();
	dw_note_mode();
	INJECTION_POINT("doublewrite-armed", NULL);
}

/*
 * Stop using the log: make it empty, then remove the marker and the segments,
 * unless these are to be kept for the next start.
 *
 * What is in the log must go first, or a restore would put it over newer
 * pages that have been written without it (R10).  The last step holds up home
 * writes until it is over; a sync cycle before it leaves little to do.
 */
void
dw_disarm(bool keep_segments)
{
	if (!DWCtl->armed)
		return;

	DoubleWriteDrain();
	dw_sync_cycle(DWCtl->cycles_begun);

	/*
	 * With everything home, and the lock held, no page can be removed that
	 * may be torn at home; but some may have been before. (R3)
	 */
	dw_drain_and_lock();
	while (dw_first_unfinished_batch() < DWCtl->next_batchno)
	{
		LWLockRelease(DoubleWriteFlushLock);
		dw_settle_removals();
		dw_drain_and_lock();
	}
	if (DWCtl->armed)
	{
		dw_epoch_begin(DWCtl->next_batchno);
		dw_sync_files(DWCtl->dirty_files);
		dw_log_set_low_water(DWCtl->next_batchno);
		dw_forget_files(DWCtl->next_batchno);
		DWCtl->armed = false;
		INJECTION_POINT("doublewrite-disarmed", NULL);

		/* with the marker, the next start would ask for the segments */
		DWCtl->log_open = false;
		dw_show_log();
		dw_remove_owner();
		if (durable_unlink(DW_MARKER_FILE, LOG) == 0)
			dw_retire_log(keep_segments);
	}
	LWLockRelease(DoubleWriteFlushLock);
	dw_note_mode();
}
