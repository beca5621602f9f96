/*-------------------------------------------------------------------------
 *
 * doublewrite_scan.c
 *	  Reading the double-write log, and judging it.
 *
 * What a server does with the log when it starts is decided in three steps.
 * The caller has the facts gathered: DWLookAtCluster(), DWLookAtDirectory()
 * and, if that is called for, DWLookAtLog(), for which it lists the segments
 * and reads what it is asked for.  DWJudgeStart() decides by these facts alone.
 * DWExplainStart() says why.  The server then acts, and pg_doublewrite prints.
 *
 * The first row that applies counts.  "marker": the file backup_label says that
 * the log was in use; "wanted": the settings ask for it now.  The names in
 * the columns are those of DWStartVerdict, without DW_START_.
 *
 *	what was found						marker			wanted			neither
 *	----------------------------------	--------------	--------------	--------------
 *	backup_label cannot be read, or is
 *	neither a label nor the marker		REFUSE_LABEL	REFUSE_LABEL	REFUSE_LABEL
 *	recovery from a backup is asked for	REFUSE_MARKER	-				-
 *	no directory						REFUSE_DIR		LEAVE_LOG		LEAVE_LOG
 *	directory that cannot be used, or
 *	is open to others, or not ours		REFUSE_DIR		REFUSE_DIR		LEAVE_LOG
 *	backup_label is that of a backup	-				DISCARD_BACKUP	DISCARD_BACKUP
 *	(the log has not been read)			READ_LOG		READ_LOG		READ_LOG
 *	other format, or other cluster		REFUSE_HEADER	REFUSE_HEADER	REFUSE_HEADER
 *	damage in the live range			REFUSE_DAMAGED	REFUSE_DAMAGED	REFUSE_DAMAGED
 *	no complete batch					REFUSE_MISSING	-				-
 *	redo pointer not that of pg_control	REFUSE_STALE	-				-
 *	a later batch cannot be read, or may
 *	be there, and no data checksums		REFUSE_DAMAGED	-				-
 *	... that is, and pages that this
 *	build cannot decompress				REFUSE_COMPR.	REFUSE_COMPR.	REFUSE_COMPR.
 *	data directory or marker is a copy	REFUSE_COPY		REFUSE_COPY		REFUSE_COPY
 *	redo pointer not that of
 *	pg_control, live pages				-				DISCARD_STALE	DISCARD_STALE
 *	... no live pages					-				NOTHING			NOTHING
 *	WAL does not reach the log's, pages	REFUSE_WAL		REFUSE_WAL		REFUSE_WAL
 *	... no live pages					REFUSE_WAL		NOTHING			NOTHING
 *	live pages							RESTORE			RESTORE			RESTORE
 *	no live pages						NOTHING			NOTHING			NOTHING
 *
 * Each live batch names the redo pointers that a crash could have started
 * from.  If pg_control names another one, something else has moved the
 * cluster forward or back since the log was written.  Or the end of the log
 * is unreadable, and with it the mark that freed older batches before
 * pg_control was changed (R5).  Without the marker the log is then a remnant
 * of a shutdown that was cut short, or another server has been started
 * meanwhile, and the log is of no use.  With the marker an administrator has
 * to decide.  A log that is not in use and not wanted may be anything: if
 * others can access or own it, nothing in it concerns us.
 *
 * Only the newest batch can be incomplete; then none of its home writes had
 * been started, and it is ignored.  If it cannot be read, it may have been
 * complete, and pages torn that are in it; data checksums would find these, and
 * a disk may have errors where the power failed during a write.  The low-water
 * mark of the newest complete batch tells where the live range starts.  A hole
 * or damage in that range means that the storage has lost what it had promised
 * to keep. (R9)
 *
 * Memory comes from palloc(), in the server from the current context.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/common/doublewrite_scan.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef USE_LZ4
#include <lz4.h>
#endif
#ifdef USE_ZSTD
#include <zstd.h>
#endif

#include "access/xlog_internal.h"
#include "catalog/pg_tablespace_d.h"
#include "common/doublewrite_scan.h"
#include "common/file_perm.h"
#include "common/int.h"
#include "storage/bufpage.h"
#ifdef FRONTEND
#include "common/fe_memutils.h"
#else
#include "storage/fd.h"
#endif

/* ---------------------------------------------------------------------
 * Names, the marker, and the label of a backup
 * ---------------------------------------------------------------------
 */

/*
 * Get the segment number from a file name.  Return false if it is not that of
 * a segment.
 */
bool
DWParseSegmentName(const char *name, uint64 *segno)
{
	if (strlen(name) != DW_SEGMENT_NAME_LEN ||
		strspn(name, "0123456789ABCDEF") != DW_SEGMENT_NAME_LEN)
		return false;
	*segno = strtou64(name, NULL, 16);
	return true;
}

/*
 * Position an open backup_label file at the label of a backup.  Return false
 * if it contains only our marker.
 *
 * A tool that writes a label should replace the file, but may append to what
 * was copied along with the data directory.
 */
bool
DWSkipMarker(FILE *fp)
{
	char		line[MAXPGPATH];
	long		pos = 0;
	bool		marker = false;

	while (fgets(line, sizeof(line), fp) != NULL)
	{
		if (pos == 0)
			marker = strncmp(line, DW_MARKER_LINE, strlen(DW_MARKER_LINE)) == 0;
		if (!marker || strncmp(line, "START WAL LOCATION:", 19) == 0)
		{
			fseek(fp, pos, SEEK_SET);
			return true;
		}
		pos = ftell(fp);
	}
	return !marker;
}

/* Messages about files need errno, and the server must not run out of descriptors */
#ifndef FRONTEND
#define dw_open_text(path)	AllocateFile((path), "r")
#define dw_close_text(fp)	FreeFile(fp)
#else
#define dw_open_text(path)	fopen((path), "r")
#define dw_close_text(fp)	fclose(fp)
#endif

/*
 * Return what an open backup_label file is.
 *
 * read_backup_label() asks for more of a label than we do; but a file with
 * these lines is meant to be one.
 */
static DWLabel
dw_parse_label(FILE *fp)
{
	uint32		hi;
	uint32		lo;
	uint32		tli;
	char		name[17];
	char		ch;

	if (!DWSkipMarker(fp))
		return DW_LABEL_MARKER;
	if (fscanf(fp, "START WAL LOCATION: %X/%X (file %08X%16s)%c",
			   &hi, &lo, &tli, name, &ch) != 5 || ch != '\n' ||
		fscanf(fp, "CHECKPOINT LOCATION: %X/%X%c", &hi, &lo, &ch) != 3 ||
		ch != '\n')
		return DW_LABEL_INVALID;
	return DW_LABEL_BACKUP;
}

/*
 * Return whether a kind of recovery is requested that only a backup needs.  A
 * server that runs such a recovery has the marker as well, but then
 * pg_control tells, even if recovery began as crash recovery, for example on
 * an atomic snapshot.  standby.signal says nothing: any crashed server may be
 * made a standby.
 */
static bool
dw_recovery_from_backup(DBState state)
{
	struct stat st;

	if (stat("tablespace_map", &st) == 0)
		return true;
	return stat("recovery.signal", &st) == 0 &&
		state != DB_IN_CRASH_RECOVERY && state != DB_IN_ARCHIVE_RECOVERY &&
		state != DB_SHUTDOWNED_IN_RECOVERY;
}

/*
 * Look at the data directory, which is the current directory, for
 * DWJudgeStart().
 */
void
DWLookAtCluster(DWStart *start, const ControlFileData *control)
{
	FILE	   *fp = dw_open_text(DW_MARKER_FILE);

	start->scan.sysid = control->system_identifier;
	start->redo = control->checkPointCopy.redo;
	start->segment_size = control->xlog_seg_size;
	start->checksums = control->data_checksum_version != 0;
	start->from_backup = dw_recovery_from_backup(control->state);
	if (fp != NULL)
	{
		start->label = dw_parse_label(fp);
		dw_close_text(fp);
	}
	else if (errno != ENOENT)
	{
		start->label = DW_LABEL_UNREADABLE;
		start->label_errno = errno;
	}
}

/* ---------------------------------------------------------------------
 * Whose log this is
 * ---------------------------------------------------------------------
 */

#if defined(WIN32)
#define DW_CHANGED_NSEC(st)		0
#elif defined(__darwin__)
#define DW_CHANGED_NSEC(st)		((st).st_ctimespec.tv_nsec)
#else
#define DW_CHANGED_NSEC(st)		((st).st_ctim.tv_nsec)
#endif

static bool
dw_identify_file(const char *path, DWIdentity *identity)
{
	struct stat st;

	memset(identity, 0, sizeof(*identity));
	if (stat(path, &st) < 0)
		return false;
	identity->inode = st.st_ino;
	identity->changed_sec = st.st_ctime;
	identity->changed_nsec = DW_CHANGED_NSEC(st);
	return true;
}

/*
 * Return whether these are the same file.  Either property is enough: some
 * file systems number files anew when they are mounted, and chown changes the
 * time.  A copy has neither.
 */
static bool
dw_same_identity(const DWIdentity *a, const DWIdentity *b)
{
	return a->inode == b->inode ||
		(a->changed_sec == b->changed_sec &&
		 a->changed_nsec == b->changed_nsec);
}

/*
 * Identify ourselves; the current directory is the data directory.  Return
 * false if that fails.
 */
bool
DWIdentifyOwner(uint64 sysid, DWOwner *owner)
{
	memset(owner, 0, sizeof(*owner));
	owner->sysid = sysid;
	(void) dw_identify_file(DW_MARKER_FILE, &owner->marker);
	return getcwd(owner->datadir, sizeof(owner->datadir)) != NULL &&
		dw_identify_file("PG_VERSION", &owner->cluster);
}

#define DW_IDENTITY_FORMAT	"inode %" PRIu64 " changed %" PRId64 ".%09" PRId64

bool
DWWriteOwner(FILE *fp, const DWOwner *owner)
{
	return fprintf(fp,
				   "System identifier: %" PRIu64 "\n"
				   "Data directory: %s\n"
				   "PG_VERSION: " DW_IDENTITY_FORMAT "\n"
				   "Marker: " DW_IDENTITY_FORMAT "\n"
				   "Number: %" PRIu64 "\n",
				   owner->sysid, owner->datadir,
				   owner->cluster.inode, owner->cluster.changed_sec,
				   owner->cluster.changed_nsec,
				   owner->marker.inode, owner->marker.changed_sec,
				   owner->marker.changed_nsec, owner->nonce) > 0;
}

static void
dw_parse_identity(const char *text, DWIdentity *identity)
{
	if (sscanf(text, "inode %" SCNu64 " changed %" SCNd64 ".%" SCNd64,
			   &identity->inode, &identity->changed_sec,
			   &identity->changed_nsec) != 3)
		memset(identity, 0, sizeof(*identity));
}

/*
 * Read an owner file, if it exists.
 */
void
DWReadOwner(const char *path, DWOwner *owner)
{
	FILE	   *fp = dw_open_text(path);
	char		line[MAXPGPATH + 64];

	memset(owner, 0, sizeof(*owner));
	while (fp != NULL && fgets(line, sizeof(line), fp) != NULL)
	{
		char	   *value = strstr(line, ": ");

		if (value == NULL)
			continue;
		*value = '\0';
		value += 2;
		value[strcspn(value, "\n")] = '\0';
		if (strcmp(line, "System identifier") == 0)
			owner->sysid = strtou64(value, NULL, 10);
		else if (strcmp(line, "Data directory") == 0)
			strlcpy(owner->datadir, value, sizeof(owner->datadir));
		else if (strcmp(line, "PG_VERSION") == 0)
			dw_parse_identity(value, &owner->cluster);
		else if (strcmp(line, "Marker") == 0)
			dw_parse_identity(value, &owner->marker);
		else if (strcmp(line, "Number") == 0)
			owner->nonce = strtou64(value, NULL, 10);
	}
	if (fp != NULL)
		dw_close_text(fp);
}

/*
 * Return whether we are a copy, or at least the marker is, that was made of
 * the owner while the log was in use.  If a server was running then, pages
 * and log are from many moments, and only the label of a backup would say
 * what to do.  (R9)
 */
static bool
dw_is_copy(const DWOwner *owner, const DWOwner *own, bool marker)
{
	static const DWIdentity unknown = {0};

	if (owner->sysid == 0)
		return false;
	if (!dw_same_identity(&owner->cluster, &own->cluster))
		return true;
	return marker &&
		memcmp(&owner->marker, &unknown, sizeof(unknown)) != 0 &&
		!dw_same_identity(&owner->marker, &own->marker);
}

/*
 * Return whether the log directory is there, and only the server can access
 * it.  A user with write access to it could decide what the next start writes
 * home.  The data directory keeps other users out, so this matters if a link
 * leads out of it, or if it lets the group in.
 *
 * The data directory belongs to the user that the server runs as, or the
 * server would not start.
 */
static DWDirectory
dw_judge_directory(bool *linked)
{
	struct stat st;

	if (lstat(DW_DIR, &st) < 0)
		return errno == ENOENT ? DW_DIR_MISSING : DW_DIR_UNREACHABLE;
	*linked = !S_ISDIR(st.st_mode);
	if (stat(DW_DIR, &st) < 0)
		return DW_DIR_UNREACHABLE;
	if (!S_ISDIR(st.st_mode))
		return DW_DIR_NONE;
#if !defined(WIN32) && !defined(__CYGWIN__)
	{
		struct stat home;

		if (stat(".", &home) < 0)
			return DW_DIR_UNREACHABLE;
		if (!*linked && (home.st_mode & S_IRWXG) == 0)
			return DW_DIR_FINE;
		if (st.st_uid != home.st_uid)
			return DW_DIR_WRONG_OWNER;
		if (st.st_mode & (*linked ? PG_MODE_MASK_GROUP : S_IWGRP))
			return DW_DIR_WRONG_MODE;
	}
#endif
	return DW_DIR_FINE;
}

/*
 * Look at the log directory, and whose log is in it, for DWJudgeStart().  If
 * a link leads to it, a copy of the data directory has the same log as its
 * original.  Otherwise the log is at most a copy as well.  (R9)
 */
void
DWLookAtDirectory(DWStart *start)
{
	DWOwner    *owner = &start->owner;
	DWOwner    *own = &start->own;
	bool		linked = false;

	start->dir = dw_judge_directory(&linked);
	start->dir_errno = errno;
	if (start->dir != DW_DIR_FINE)
		return;

	DWReadOwner(DW_OWNER_FILE, owner);
	if (!DWIdentifyOwner(start->scan.sysid, own))
	{
		start->dir = DW_DIR_UNIDENTIFIED;
		start->dir_errno = errno;
	}
	else if (owner->sysid != 0 && owner->sysid != own->sysid)
		start->dir = DW_DIR_OTHER_CLUSTER;
	else if (owner->sysid != 0 && linked && strcmp(owner->datadir, own->datadir) != 0)
		start->dir = DW_DIR_OTHER_DIRECTORY;
	start->copy = dw_is_copy(owner, own, start->label == DW_LABEL_MARKER);
}

/*
 * Return whether files of a tablespace may exist although they are not
 * visible, because it is not mounted; then it must not be taken for a dropped
 * one.  Give the path of its directory.  The current directory is the data
 * directory.
 *
 * The version directory is removed before the link.  So if it is missing in a
 * directory in which nothing is mounted, either a crash came in between, or
 * that directory is only what is visible while the file system is not
 * mounted.
 *
 * A tablespace without a link has been dropped: CREATE TABLESPACE makes both
 * durable before its WAL record is, and no page is written there before that.
 * Redo may make the link once more, but then it has restored the pages
 * before, and written none yet.
 */
DWTablespace
DWJudgeTablespace(Oid spcOid, char *path)
{
	char		inside[MAXPGPATH];
	struct stat st;
	struct stat parent;

	if (spcOid == DEFAULTTABLESPACE_OID || spcOid == GLOBALTABLESPACE_OID)
		return DW_TABLESPACE_FINE;

	snprintf(path, MAXPGPATH, "%s/%u", PG_TBLSPC_DIR, spcOid);
	if (lstat(path, &st) < 0)
		return errno == ENOENT ? DW_TABLESPACE_FINE : DW_TABLESPACE_UNREACHABLE;
	if (S_ISDIR(st.st_mode))
		return DW_TABLESPACE_FINE;
	if (stat(path, &st) < 0)
		return DW_TABLESPACE_UNREACHABLE;

	snprintf(inside, sizeof(inside), "%s/%s", path,
			 TABLESPACE_VERSION_DIRECTORY);
	if (stat(inside, &parent) == 0)
		return DW_TABLESPACE_FINE;
	if (errno != ENOENT)
		return DW_TABLESPACE_UNREACHABLE;
	snprintf(inside, sizeof(inside), "%s/..", path);
	if (stat(inside, &parent) < 0)
		return DW_TABLESPACE_UNREACHABLE;
	return st.st_dev != parent.st_dev ? DW_TABLESPACE_FINE : DW_TABLESPACE_EMPTY;
}

/* ---------------------------------------------------------------------
 * Collecting batches
 * ---------------------------------------------------------------------
 */

/*
 * Return an array with room for max elements that starts with the nused
 * elements of the old one.
 */
static void *
dw_grow(void *old, int nused, int max, Size elemsize)
{
	void	   *result = palloc_extended((Size) max * elemsize, MCXT_ALLOC_HUGE);

	if (old != NULL)
	{
		memcpy(result, old, (Size) nused * elemsize);
		pfree(old);
	}
	return result;
}

void
DWScanAddSegment(DWScan *scan, uint64 segno)
{
	if (scan->nsegments == scan->maxsegments)
	{
		scan->maxsegments = Max(64, scan->maxsegments * 2);
		scan->segments = dw_grow(scan->segments, scan->nsegments,
								 scan->maxsegments, sizeof(DWScanSegment));
	}
	scan->segments[scan->nsegments].segno = segno;
	scan->segments[scan->nsegments].first_batch = 0;
	scan->nsegments++;
}

static int
dw_segment_cmp(const void *a, const void *b)
{
	return pg_cmp_u64(((const DWScanSegment *) a)->segno, ((const DWScanSegment *) b)->segno);
}

/*
 * Return whether the pages of a batch with this header can have been written.
 * The header is intact, but it is not known which program has written it, and
 * values that are not valid here would later be used as a length or as an
 * index of an array.  (R9)
 */
static bool
dw_entries_valid(const DWBatchHeader *hdr)
{
	const DWPageEntry *entries = DWBatchEntries(hdr);

	for (uint32 i = 0; i < hdr->npages; i++)
	{
		if (entries[i].forknum > MAX_FORKNUM ||
			entries[i].length > BLCKSZ ||
			(entries[i].length < BLCKSZ && !DWIsNote(&entries[i]) &&
			 hdr->compression == DW_COMPRESSION_OFF))
			return false;
	}
	return hdr->blockno + DWBatchBlocks(hdr) <= DW_SEGMENT_BLOCKS;
}

/*
 * Judge what stands at a place where a batch may start.  With a sysid of 0, a
 * batch of any cluster will do.
 */
static DWHeaderVerdict
dw_judge_header(const DWBatchHeader *hdr, uint64 sysid, uint64 segno,
				uint32 blockno)
{
	if (hdr->magic != DW_MAGIC)
		return DW_HEADER_NONE;

	/*
	 * Accept another format only at the start of a segment: elsewhere it may
	 * be a remnant of something torn.
	 */
	if (hdr->version != DW_FORMAT_VERSION || hdr->blcksz != BLCKSZ)
		return blockno == 0 ? DW_HEADER_OTHER_FORMAT : DW_HEADER_NONE;

	if (hdr->segno != segno || hdr->blockno != blockno ||
		hdr->npages > DW_MAX_BATCH_PAGES ||
		hdr->crc != DWBatchHeaderChecksum(hdr) ||
		!dw_entries_valid(hdr))
		return DW_HEADER_NONE;
	if (sysid != 0 && hdr->sysid != sysid)
		return DW_HEADER_FOREIGN;
	return DW_HEADER_VALID;
}

/*
 * Remember a batch, whose pages come after the header, or have not been read.
 */
static DWFoundBatch *
dw_remember_header(DWScan *scan, const DWBatchHeader *hdr)
{
	DWFoundBatch *batch;

	if (scan->nbatches == scan->maxbatches)
	{
		scan->maxbatches = Max(256, scan->maxbatches * 2);
		scan->batches = dw_grow(scan->batches, scan->nbatches,
								scan->maxbatches, sizeof(DWFoundBatch));
	}

	batch = &scan->batches[scan->nbatches++];
	batch->sysid = hdr->sysid;
	batch->batchno = hdr->batchno;
	batch->low_water = hdr->low_water;
	batch->segno = hdr->segno;
	batch->blockno = hdr->blockno;
	batch->npages = hdr->npages;
	batch->nblocks = DWBatchBlocks(hdr);
	batch->compression = hdr->compression;
	batch->redo = hdr->redo;
	batch->redo_pending = hdr->redo_pending;
	batch->nonce = hdr->nonce;
	batch->wal_end = hdr->wal_end;
	batch->entries = palloc(Max(1, hdr->npages) * sizeof(DWPageEntry));
	memcpy(batch->entries, DWBatchEntries(hdr), hdr->npages * sizeof(DWPageEntry));

	batch->bad_page = -1;
	return batch;
}

static void
dw_remember_batch(DWScan *scan, const DWBatchHeader *hdr)
{
	const char *stored = (const char *) hdr + BLCKSZ;
	DWFoundBatch *batch = dw_remember_header(scan, hdr);

	for (uint32 i = 0; i < hdr->npages && batch->bad_page < 0; i++)
	{
		if (!DWIsNote(&batch->entries[i]) &&
			DWPageChecksum(stored, batch->entries[i].length) != batch->entries[i].crc)
			batch->bad_page = i;
		stored += batch->entries[i].length;
	}
}

/*
 * Remember the first header that means that this log must be refused.
 */
static void
dw_remember_refused(DWScan *scan, const DWBatchHeader *hdr, uint64 segno,
					DWHeaderVerdict verdict)
{
	if (scan->refused != DW_HEADER_NONE)
		return;
	scan->refused = verdict;
	scan->refused_segno = segno;
	scan->refused_header = *hdr;
}

static bool
dw_nonce_known(const DWScan *scan, uint64 nonce)
{
	for (int i = 0; i < scan->nnonces; i++)
	{
		if (scan->nonces[i] == nonce)
			return true;
	}
	return false;
}

static void
dw_add_nonce(DWScan *scan, uint64 nonce)
{
	if (dw_nonce_known(scan, nonce))
		return;
	if (scan->nnonces == scan->maxnonces)
	{
		scan->maxnonces = Max(16, scan->maxnonces * 2);
		scan->nonces = dw_grow(scan->nonces, scan->nnonces, scan->maxnonces,
							   sizeof(uint64));
	}
	scan->nonces[scan->nnonces++] = nonce;
}

/*
 * Look at the first block of a segment.  No user data is ever written there,
 * so a header is one that a server has written.  Its nonce identifies those
 * behind it, and those in segments whose first block is damaged.  (R9)
 */
static void
dw_look_at_segment(DWScan *scan, DWScanSegment *segment,
				   const DWBatchHeader *hdr)
{
	DWHeaderVerdict verdict = dw_judge_header(hdr, scan->sysid, segment->segno, 0);

	if (verdict == DW_HEADER_VALID || verdict == DW_HEADER_FOREIGN)
	{
		segment->first_batch = hdr->batchno;
		dw_add_nonce(scan, hdr->nonce);
	}
	if (verdict == DW_HEADER_FOREIGN || verdict == DW_HEADER_OTHER_FORMAT)
		dw_remember_refused(scan, hdr, segment->segno, verdict);
}

/*
 * Remember the batches in a segment, given its contents, DW_SEGMENT_SIZE
 * bytes aligned as a batch header is.  Where no batch starts, look at each
 * following block, so that intact batches behind damage are found.
 *
 * Return the number of batches.  Those of another cluster are remembered,
 * too: a caller that may not use them learns that from scan->refused.
 */
static int
dw_scan_segment(DWScan *scan, uint64 segno, const char *contents)
{
	int			found = 0;

	for (uint32 blockno = 0; blockno < DW_SEGMENT_BLOCKS;)
	{
		const DWBatchHeader *hdr =
			(const DWBatchHeader *) (contents + (Size) blockno * BLCKSZ);
		DWHeaderVerdict verdict =
			dw_judge_header(hdr, scan->sysid, segno, blockno);

		/* user data that only looks like a header (R9) */
		if (!dw_nonce_known(scan, hdr->nonce))
			verdict = DW_HEADER_NONE;

		if (verdict == DW_HEADER_FOREIGN)
			dw_remember_refused(scan, hdr, segno, verdict);
		if (verdict == DW_HEADER_VALID || verdict == DW_HEADER_FOREIGN)
		{
			dw_remember_batch(scan, hdr);
			blockno += DWBatchBlocks(hdr);
			found++;
		}
		else
			blockno++;
	}
	return found;
}

/*
 * Remember the batches in a segment by their headers, from its first one to that before
 * the given number, with which the next segment begins: so they are complete, as a batch
 * is begun when the one before is durable.  Their pages are not read.
 *
 * Return false, with nothing remembered, if not all of them stand there one after the
 * other, or one that was written once more may stand behind them, in the block that is
 * kept for a mark.  Then the segment must be read.
 */
static bool
dw_follow_headers(DWScan *scan, DWReadBlocks read_blocks, void *arg,
				  const DWScanSegment *segment, uint64 end, char *buffer)
{
	const DWBatchHeader *hdr = (const DWBatchHeader *) buffer;
	int			nbatches = scan->nbatches;
	uint32		blockno = 0;
	bool		more = true;

	for (uint64 batchno = segment->first_batch; more && batchno < end; batchno++)
	{
		more = blockno < DW_SEGMENT_BLOCKS &&
			read_blocks(scan, arg, segment->segno, blockno, 1, buffer) &&
			dw_judge_header(hdr, scan->sysid, segment->segno, blockno) == DW_HEADER_VALID &&
			hdr->batchno == batchno && dw_nonce_known(scan, hdr->nonce);
		if (more)
		{
			(void) dw_remember_header(scan, hdr);
			blockno += DWBatchBlocks(hdr);
		}
	}
	if (more && blockno < DW_SEGMENT_BLOCKS)
		more = read_blocks(scan, arg, segment->segno, DW_SEGMENT_BLOCKS - 1, 1, buffer) &&
			dw_judge_header(hdr, scan->sysid, segment->segno,
							DW_SEGMENT_BLOCKS - 1) == DW_HEADER_NONE;
	if (!more)
		scan->nbatches = nbatches;
	return more;
}

/* by number; if a batch number occurs twice, the later copy is valid */
static int
dw_batch_cmp(const void *a, const void *b)
{
	const DWFoundBatch *ba = a;
	const DWFoundBatch *bb = b;
	int			cmp = pg_cmp_u64(ba->batchno, bb->batchno);

	if (cmp == 0)
		cmp = pg_cmp_u64(ba->segno, bb->segno);
	return cmp != 0 ? cmp : pg_cmp_u32(ba->blockno, bb->blockno);
}

/*
 * Sort the batches, as all that is needed has been read.
 */
static void
dw_sort_batches(DWScan *scan)
{
	int			n = 0;

	if (scan->nbatches == 0)
		return;
	qsort(scan->batches, scan->nbatches, sizeof(DWFoundBatch), dw_batch_cmp);
	for (int i = 1; i < scan->nbatches; i++)
	{
		if (scan->batches[i].batchno != scan->batches[n].batchno)
			n++;
		scan->batches[n] = scan->batches[i];
	}
	scan->nbatches = n + 1;
}

/* ---------------------------------------------------------------------
 * Reading
 * ---------------------------------------------------------------------
 */

/*
 * Return the low-water mark of the newest intact batch found so far, or 0.
 */
static uint64
dw_low_water_so_far(DWScan *scan)
{
	int			n;

	/* if a number occurs twice, the later copy is valid, as in dw_find_live() */
	dw_sort_batches(scan);
	n = scan->nbatches;
	if (n > 0 && scan->batches[n - 1].bad_page >= 0)
		n--;
	return n > 0 ? scan->batches[n - 1].low_water : 0;
}

/*
 * Read the log, whose segments have been listed.  A segment is entered from
 * its start, with numbers higher than any before, so the first blocks tell
 * which segment was written last.  Read that one, and downwards those that
 * the mark in its newest batch asks for.  The segment behind it is read as
 * well: the first block of the segment written last may be damaged, and then
 * the segment before it seems to be the last.
 *
 * With everything, read all segments, for a program that shows what is there.
 * With headers, read no pages in those before the one written last.  The buffer has room
 * for a segment.
 */
static void
dw_read_log(DWScan *scan, DWReadBlocks read_blocks, void *arg, char *buffer,
			bool everything, bool headers)
{
	int			newest = -1;
	int			first;
	int			last;

	if (scan->nsegments == 0)
		return;
	qsort(scan->segments, scan->nsegments, sizeof(DWScanSegment),
		  dw_segment_cmp);

	for (int i = 0; i < scan->nsegments; i++)
	{
		DWScanSegment *segment = &scan->segments[i];

		if (!read_blocks(scan, arg, segment->segno, 0, 1, buffer))
			continue;
		dw_look_at_segment(scan, segment, (const DWBatchHeader *) buffer);
		if (segment->first_batch > 0 &&
			(newest < 0 ||
			 segment->first_batch >= scan->segments[newest].first_batch))
			newest = i;
	}
	if (newest < 0)
	{
		/* all first blocks are damaged, but we may know the nonce (R9) */
		if (scan->nnonces == 0)
			return;
		newest = 0;
		everything = true;
	}

	first = everything ? 0 : newest;
	last = everything ? scan->nsegments - 1 : newest + 1;
	for (int i = first; i <= last && i < scan->nsegments; i++)
	{
		uint64		segno = scan->segments[i].segno;

		if (read_blocks(scan, arg, segno, 0, DW_SEGMENT_BLOCKS, buffer) &&
			dw_scan_segment(scan, segno, buffer) > 0)
			last = Max(last, i + 1);
	}
	while (first > 0 &&
		   (scan->segments[first].first_batch == 0 ||
			scan->segments[first].first_batch > dw_low_water_so_far(scan)))
	{
		DWScanSegment *segment = &scan->segments[--first];

		if (headers && segment[0].first_batch > 0 &&
			segment[1].first_batch > segment[0].first_batch &&
			segment[1].segno == segment[0].segno + 1 &&
			dw_follow_headers(scan, read_blocks, arg, segment,
							  segment[1].first_batch, buffer))
			continue;
		if (read_blocks(scan, arg, segment->segno, 0, DW_SEGMENT_BLOCKS, buffer))
			dw_scan_segment(scan, segment->segno, buffer);
	}
	dw_sort_batches(scan);
}

/* ---------------------------------------------------------------------
 * Judging
 * ---------------------------------------------------------------------
 */

/*
 * Return whether this file of pg_wal has the page that ends with or holds the
 * byte before the given position.  A recycled file has other page addresses.
 */
bool
DWWalFileReaches(const char *name, XLogRecPtr end, int segment_size)
{
	XLogRecPtr	page = (end - 1) - (end - 1) % XLOG_BLCKSZ;
	XLogPageHeaderData header;
	char		path[MAXPGPATH];
	int			fd;
	bool		result;

	snprintf(path, sizeof(path), XLOGDIR "/%s", name);
	fd = open(path, O_RDONLY | PG_BINARY, 0);
	if (fd < 0)
		return false;
	result = pg_pread(fd, &header, sizeof(header),
					  XLogSegmentOffset(page, segment_size)) == sizeof(header) &&
		header.xlp_magic == XLOG_PAGE_MAGIC && header.xlp_pageaddr == page;
	close(fd);
	return result;
}

/*
 * Return whether WAL can be replayed up to the given position, up to which it
 * was durable when the log was written.  (R1, R9)  If the page that ends
 * there was never written, it cannot.  The reverse is not proved by the page,
 * so recovery looks again when it is over.  WAL that is not in pg_wal may
 * come from an archive or another server, if recovery from these is
 * requested.
 *
 * WAL from before the redo pointer may have been removed or recycled.
 * Recovery does not need it, and pg_control proves that it was there.
 */
static bool
dw_wal_reaches(XLogRecPtr end, XLogRecPtr redo, int segment_size)
{
	char		wanted[MAXFNAMELEN];
	XLogSegNo	segno;
	struct stat st;
	struct dirent *de;
	DIR		   *dir;
	bool		found = false;

	if (end <= redo ||
		stat("recovery.signal", &st) == 0 || stat("standby.signal", &st) == 0)
		return true;

	/* on any timeline */
	XLByteToPrevSeg(end, segno, segment_size);
	XLogFileName(wanted, 0, segno, segment_size);
	dir = opendir(XLOGDIR);
	while (dir != NULL && !found && (de = readdir(dir)) != NULL)
		found = IsXLogFileName(de->d_name) &&
			strcmp(de->d_name + 8, wanted + 8) == 0 &&
			DWWalFileReaches(de->d_name, end, segment_size);
	if (dir != NULL)
		closedir(dir);
	return found;
}

/*
 * Note that the given batch is missing; before is the last intact one before
 * it, if any.
 */
static void
dw_set_missing(const DWScan *scan, DWLiveRange *live,
			   const DWFoundBatch *before, uint64 batchno)
{
	live->verdict = DW_LIVE_MISSING;
	live->bad_batchno = batchno;
	live->bad_segno = before ? before->segno : scan->segments[0].segno;
	live->bad_offset = before ? (before->blockno + before->nblocks) * BLCKSZ : 0;
}

/*
 * Return whether this build can read what has been compressed with the
 * method.
 */
static bool
dw_compression_supported(uint32 compression)
{
	switch (compression)
	{
		case DW_COMPRESSION_OFF:
#ifdef USE_LZ4
		case DW_COMPRESSION_LZ4:
#endif
#ifdef USE_ZSTD
		case DW_COMPRESSION_ZSTD:
#endif
			return true;
	}
	return false;
}

/*
 * Find the live range of the log, and check that it is complete.
 */
static void
dw_find_live(const DWScan *scan, DWLiveRange *live)
{
	const DWFoundBatch *newest;
	int			n = scan->nbatches;
	uint64		expected;

	memset(live, 0, sizeof(*live));

	/* a batch that was being written when the power failed: not part of it */
	if (n > 0 && scan->batches[n - 1].bad_page >= 0)
	{
		live->ignored = &scan->batches[n - 1];
		n--;
	}
	if (n == 0)
		return;

	live->first = n;
	live->last = n - 1;
	newest = &scan->batches[live->last];
	expected = newest->batchno;
	while (expected >= newest->low_water)
	{
		const DWFoundBatch *batch =
			live->first > 0 ? &scan->batches[live->first - 1] : NULL;

		if (batch == NULL || batch->batchno != expected)
		{
			dw_set_missing(scan, live, batch, expected);
			return;
		}
		if (batch->bad_page >= 0)
		{
			live->verdict = DW_LIVE_BAD_PAGE;
			live->bad_batchno = batch->batchno;
			live->bad_segno = batch->segno;
			live->bad_offset = DWPageOffset(batch, batch->bad_page);
			return;
		}
		if (!dw_compression_supported(batch->compression))
			live->unreadable = batch;
		live->npages += batch->npages;
		live->nblocks += batch->nblocks;
		live->first--;
		expected--;
	}
	if (live->first <= live->last)
		live->verdict = DW_LIVE_COMPLETE;
}

/*
 * Return whether a batch behind the newest complete one may have been complete,
 * as what would tell cannot be read: the batch that is ignored, or the place
 * where its header would stand, or the start of the next segment, which is
 * entered where this one has no room or cannot be written.
 */
static bool
dw_end_is_unreadable(DWScan *scan, DWLiveRange *live, DWReadBlocks read_blocks,
					 void *arg, char *buffer)
{
	const DWFoundBatch *newest = &scan->batches[live->last];
	const DWFoundBatch *ignored = live->ignored;
	uint64		segno = ignored ? ignored->segno : newest->segno;
	uint32		blockno = ignored ? ignored->blockno : newest->blockno + newest->nblocks;

	live->bad_batchno = newest->batchno + 1;
	live->bad_segno = segno;
	live->bad_offset = blockno * BLCKSZ;
	scan->unreadable = 0;
	if (blockno < DW_SEGMENT_BLOCKS)
		(void) read_blocks(scan, arg, segno, blockno,
						   ignored ? ignored->nblocks : 1, buffer);
	for (int i = 0; i < scan->nsegments; i++)
	{
		if (scan->segments[i].segno == segno + 1)
			(void) read_blocks(scan, arg, segno + 1, 0, 1, buffer);
	}
	return scan->unreadable > 0;
}

/*
 * Read the log, and find what is live in it, for DWJudgeStart().  If copies are not
 * restored before they are needed, they are not read, either, so damage to them does not
 * show.
 */
void
DWLookAtLog(DWStart *start, DWReadBlocks read_blocks, void *arg, char *buffer,
			bool everything)
{
	DWScan	   *scan = &start->scan;
	DWLiveRange *live = &start->live;

	if (start->owner.nonce != 0)
		dw_add_nonce(scan, start->owner.nonce);
	dw_read_log(scan, read_blocks, arg, buffer, everything, start->on_demand);
	dw_find_live(scan, live);
	start->read = true;
	if (live->verdict == DW_LIVE_COMPLETE && scan->unreadable > 0)
		live->end_unreadable = dw_end_is_unreadable(scan, live, read_blocks, arg, buffer);
	if (live->verdict != DW_LIVE_COMPLETE || start->segment_size == 0)
		return;

	/* nor is an empty log of another time the log of this one (R9) */
	for (int i = live->first; i <= live->last; i++)
		start->stale |= scan->batches[i].redo != start->redo &&
			scan->batches[i].redo_pending != start->redo;
	start->wal_lost = !dw_wal_reaches(scan->batches[live->last].wal_end,
									  start->redo, start->segment_size);
}

/*
 * Decide what is to be done with the log.  The head of this file has a table.
 */
DWStartVerdict
DWJudgeStart(const DWStart *start)
{
	const DWLiveRange *live = &start->live;
	bool		marker = start->label == DW_LABEL_MARKER;
	bool		pages = live->npages > 0;

	/* the data directory */
	if (start->label == DW_LABEL_INVALID || start->label == DW_LABEL_UNREADABLE)
		return DW_START_REFUSE_LABEL;
	if (marker && start->from_backup)
		return DW_START_REFUSE_MARKER;
	if (start->dir == DW_DIR_MISSING && !marker)
		return DW_START_LEAVE_LOG;
	if (start->dir != DW_DIR_FINE)
		return marker || start->wanted ? DW_START_REFUSE_DIR : DW_START_LEAVE_LOG;
	if (start->label == DW_LABEL_BACKUP)
		return DW_START_DISCARD_BACKUP;
	if (!start->read)
		return DW_START_READ_LOG;

	/* the log in it */
	if (start->scan.refused != DW_HEADER_NONE)
		return DW_START_REFUSE_HEADER;
	if (live->verdict == DW_LIVE_MISSING || live->verdict == DW_LIVE_BAD_PAGE)
		return DW_START_REFUSE_DAMAGED;
	if (marker && live->verdict == DW_LIVE_NONE)
		return DW_START_REFUSE_MISSING;
	if (marker && start->stale)
		return DW_START_REFUSE_STALE;
	if (marker && live->end_unreadable && !start->checksums)
		return DW_START_REFUSE_DAMAGED;
	if (!start->stale && pages && live->unreadable != NULL)
		return DW_START_REFUSE_COMPRESSION;
	if (start->copy)
		return DW_START_REFUSE_COPY;
	if (start->stale)
		return pages ? DW_START_DISCARD_STALE : DW_START_NOTHING;
	if (start->wal_lost && (marker || pages))
		return DW_START_REFUSE_WAL;
	return pages ? DW_START_RESTORE : DW_START_NOTHING;
}

/* ---------------------------------------------------------------------
 * Saying why
 * ---------------------------------------------------------------------
 */

static void
dw_explain_label(const DWStart *start, DWReason *reason)
{
	errno = start->label_errno;
	if (start->label == DW_LABEL_UNREADABLE)
	{
		reason->message = psprintf(_("could not read file \"%s\": %m"), DW_MARKER_FILE);
		return;
	}
	reason->message = psprintf(_("invalid data in file \"%s\""), DW_MARKER_FILE);
	reason->detail = _("It is neither the label of a backup nor the file that says that the double-write log is in use.  The log is left alone.");
	reason->hint = psprintf(_("If this is a base backup, restore it again with its own file \"%s\"."),
							DW_MARKER_FILE);
}

static void
dw_explain_marker(DWReason *reason)
{
	reason->message = psprintf(_("file \"%s\" is not the label of a backup"), DW_MARKER_FILE);
	reason->detail = _("It says that the double-write log was in use, and may have been copied from a running server.  But recovery from a backup is asked for by a file \"recovery.signal\" or \"tablespace_map\".");
	reason->hint = psprintf(_("Restore the backup again, with its own file \"%s\", and leave out that of the server."),
							DW_MARKER_FILE);
}

static void
dw_explain_cluster(uint64 sysid, uint64 own, DWReason *reason)
{
	reason->message = psprintf(_("the double-write log in \"%s\" belongs to another database cluster"),
							   DW_DIR);
	reason->detail = psprintf(_("Its system identifier is %" PRIu64 ", that of this cluster %" PRIu64 "."),
							  sysid, own);
	reason->hint = psprintf(_("Check where \"%s\" points to.  If the files in it belong to no other cluster, remove them."),
							DW_DIR);
}

/*
 * Say what is wrong with the directory, whether or not that matters.
 */
static void
dw_explain_directory(const DWStart *start, DWReason *reason)
{
	errno = start->dir_errno;
	switch (start->dir)
	{
		case DW_DIR_FINE:
			break;
		case DW_DIR_MISSING:
		case DW_DIR_UNREACHABLE:
			reason->message = psprintf(_("could not access double-write log directory \"%s\": %m"), DW_DIR);
			if (start->label == DW_LABEL_MARKER)
				reason->detail = _("The log was in use when the server stopped, and pages may have to be restored from it.");
			reason->hint = start->dir == DW_DIR_MISSING ?
				_("Make the directory available again, or restore the cluster from a backup.") :
				_("If it is a symbolic link, make sure that its target exists and is mounted.");
			break;
		case DW_DIR_UNIDENTIFIED:
			reason->message = psprintf(_("could not identify the data directory: %m"));
			break;
		case DW_DIR_NONE:
			reason->message = psprintf(_("double-write log directory \"%s\" is not a directory"), DW_DIR);
			reason->hint = _("Make it a directory, or a symbolic link to one, that only the server's user can access.");
			break;
		case DW_DIR_NOT_WRITABLE:
			reason->message = psprintf(_("double-write log directory \"%s\" is not writable: %m"), DW_DIR);
			reason->hint = _("Give the server's user read and write permission, or set \"io_torn_pages_protection\" to \"full_pages\".");
			break;
		case DW_DIR_WRONG_OWNER:
			reason->message = psprintf(_("double-write log directory \"%s\" has wrong ownership"), DW_DIR);
			reason->hint = _("It must be owned by the user that the server runs as.");
			break;
		case DW_DIR_WRONG_MODE:
			reason->message = psprintf(_("double-write log directory \"%s\" has invalid permissions"), DW_DIR);
			reason->detail = _("Permissions should be u=rwx (0700) or u=rwx,g=rx (0750).");
			break;
		case DW_DIR_OTHER_CLUSTER:
			dw_explain_cluster(start->owner.sysid, start->own.sysid, reason);
			break;
		case DW_DIR_OTHER_DIRECTORY:
			reason->message = psprintf(_("the double-write log in \"%s\" belongs to another data directory"), DW_DIR);
			reason->detail = psprintf(_("It is in use by data directory \"%s\"."), start->owner.datadir);
			reason->hint = psprintf(_("Give this cluster a log directory of its own.  If it has been moved here, and no other server uses the log, remove the file \"%s\"."),
									DW_OWNER_FILE);
			break;
	}
}

static void
dw_explain_header(const DWScan *scan, DWReason *reason)
{
	const DWBatchHeader *hdr = &scan->refused_header;

	if (scan->refused == DW_HEADER_FOREIGN)
	{
		dw_explain_cluster(hdr->sysid, scan->sysid, reason);
		return;
	}
	reason->message = psprintf(_("double-write log segment \"%s/%016" PRIX64 "\" has format version %u and block size %u, but this server knows only version %d and block size %d"),
							   DW_DIR, scan->refused_segno, hdr->version,
							   hdr->blcksz, DW_FORMAT_VERSION, BLCKSZ);
	reason->hint = _("Start the cluster with the server that wrote the log and shut it down cleanly.");
}

static void
dw_explain_damage(const DWLiveRange *live, DWReason *reason)
{
	if (live->verdict == DW_LIVE_MISSING)
		reason->message = psprintf(_("double-write log is damaged: batch %" PRIu64 " is missing, though later batches are intact"),
								   live->bad_batchno);
	else if (live->verdict == DW_LIVE_BAD_PAGE)
		reason->message = psprintf(_("double-write log is damaged: wrong checksum of a page in batch %" PRIu64 ", though later batches are intact"),
								   live->bad_batchno);
	else
		reason->message = psprintf(_("double-write log is damaged: batch %" PRIu64 " cannot be read, and may have been complete"),
								   live->bad_batchno);
	reason->detail = psprintf(live->verdict == DW_LIVE_BAD_PAGE ?
							  _("The page stands in file \"%s/%016" PRIX64 "\" at offset %u.") :
							  _("It should stand in file \"%s/%016" PRIX64 "\" at offset %u, or at the start of a later file."),
							  DW_DIR, live->bad_segno, live->bad_offset);
	reason->hint = _("Pages torn by the last crash cannot be repaired without it.  Check the storage, and restore the cluster from a backup or fail over to a standby.");
}

static void
dw_explain_stale(const DWStart *start, DWReason *reason)
{
	reason->message = _("the double-write log does not match the state of the cluster");
	reason->detail = psprintf(_("It was written for redo location %X/%X, but the control file names %X/%X."),
							  LSN_FORMAT_ARGS(start->scan.batches[start->live.last].redo),
							  LSN_FORMAT_ARGS(start->redo));
	reason->hint = start->label != DW_LABEL_MARKER ?
		_("It was not in use when the server stopped, and is discarded.") :
		psprintf(_("Bring together the data directory and the \"%s\" that belong together.  If the data directory is that of a base backup, restore the backup again, with its own file \"backup_label\"; removing files does not make it consistent."),
				 DW_DIR);
}

static void
dw_explain_compression(const DWFoundBatch *batch, DWReason *reason)
{
	reason->message = psprintf(_("double-write log was compressed with method \"%s\", which is not supported by this build"),
							   DWCompressionName(batch->compression));
	reason->detail = psprintf(_("Batch %" PRIu64 " stands in file \"%s/%016" PRIX64 "\" at offset %u."),
							  batch->batchno, DW_DIR, batch->segno,
							  batch->blockno * BLCKSZ);
	reason->hint = _("Start the cluster with a server that supports it, and shut it down cleanly.");
}

/*
 * Say that the log was written when WAL was durable further than it now
 * reaches; end says where it ends, if that is known.
 */
void
DWExplainLostWal(XLogRecPtr needed, XLogRecPtr end, DWReason *reason)
{
	reason->message = _("the double-write log is newer than the WAL of the cluster");
	reason->detail = XLogRecPtrIsInvalid(end) ?
		psprintf(_("It holds pages with changes up to %X/%X, which WAL does not reach.  They have not been restored."),
				 LSN_FORMAT_ARGS(needed)) :
		psprintf(_("It held pages with changes up to %X/%X, but WAL ends at %X/%X."),
				 LSN_FORMAT_ARGS(needed), LSN_FORMAT_ARGS(end));
	reason->hint = psprintf(_("Bring together the data directory, its WAL and the \"%s\" that belong together.  If WAL has been lost, restore the cluster from a backup or fail over to a standby; removing files does not make it consistent."),
							DW_DIR);
}

/*
 * Say why a log is refused, left alone, or discarded.
 */
void
DWExplainStart(const DWStart *start, DWStartVerdict verdict, DWReason *reason)
{
	memset(reason, 0, sizeof(*reason));
	switch (verdict)
	{
		case DW_START_READ_LOG:
		case DW_START_NOTHING:
		case DW_START_RESTORE:
			break;
		case DW_START_DISCARD_BACKUP:
			reason->message = _("discarding the double-write log, because the cluster is being restored from a backup");
			break;
		case DW_START_DISCARD_STALE:
		case DW_START_REFUSE_STALE:
			dw_explain_stale(start, reason);
			break;
		case DW_START_REFUSE_LABEL:
			dw_explain_label(start, reason);
			break;
		case DW_START_REFUSE_MARKER:
			dw_explain_marker(reason);
			break;
		case DW_START_LEAVE_LOG:
		case DW_START_REFUSE_DIR:
			dw_explain_directory(start, reason);
			break;
		case DW_START_REFUSE_HEADER:
			dw_explain_header(&start->scan, reason);
			break;
		case DW_START_REFUSE_DAMAGED:
			dw_explain_damage(&start->live, reason);
			break;
		case DW_START_REFUSE_MISSING:
			reason->message = psprintf(_("the double-write log in \"%s\" is missing or unreadable"), DW_DIR);
			reason->detail = _("The log was in use when the server stopped, and pages may have to be restored from it.");
			reason->hint = _("Make its files available again, or restore the cluster from a backup.");
			break;
		case DW_START_REFUSE_COMPRESSION:
			dw_explain_compression(start->live.unreadable, reason);
			break;
		case DW_START_REFUSE_COPY:
			reason->message = _("this data directory is a copy of one whose double-write log was in use");
			reason->detail = _("If its files were copied one by one while the server was running, they do not fit together, and the log does not make them.");
			reason->hint = psprintf(_("If this is a base backup, restore it again with its own file \"%s\".  Only if all files, including \"%s\", come from one atomic snapshot, or no server was running while they were copied, remove the file \"%s\"."),
									DW_MARKER_FILE, DW_DIR, DW_OWNER_FILE);
			break;
		case DW_START_REFUSE_WAL:
			DWExplainLostWal(start->scan.batches[start->live.last].wal_end,
							 InvalidXLogRecPtr, reason);
			break;
	}
}

/* ---------------------------------------------------------------------
 * Copies
 * ---------------------------------------------------------------------
 */

/*
 * Return the name of a method of compression, as in double_write_compression,
 * or the number of an unknown one.
 */
const char *
DWCompressionName(uint32 compression)
{
	switch (compression)
	{
		case DW_COMPRESSION_OFF:
			return "off";
		case DW_COMPRESSION_LZ4:
			return "lz4";
		case DW_COMPRESSION_ZSTD:
			return "zstd";
	}
	return psprintf("%u", compression);
}

/*
 * Return where a page of a batch stands in its segment.
 */
uint32
DWPageOffset(const DWFoundBatch *batch, uint32 page)
{
	uint32		offset = (batch->blockno + 1) * BLCKSZ;

	for (uint32 i = 0; i < page; i++)
		offset += batch->entries[i].length;
	return offset;
}

/*
 * Make a page of what is stored in the log.  Its checksum is right.  Even so,
 * whatever the bytes are, no memory beyond them and the page is read or
 * written.  Return false if they do not give a page.
 */
static bool
dw_unpack_page(uint32 compression, const char *stored, Size length, char *page)
{
	if (length == BLCKSZ)
	{
		memcpy(page, stored, BLCKSZ);
		return true;
	}

#ifdef USE_LZ4
	if (compression == DW_COMPRESSION_LZ4)
		return LZ4_decompress_safe(stored, page, length, BLCKSZ) == BLCKSZ;
#endif
#ifdef USE_ZSTD
	/* an error is a number larger than any size */
	if (compression == DW_COMPRESSION_ZSTD)
		return ZSTD_decompress(page, BLCKSZ, stored, length) == BLCKSZ;
#endif
	return false;
}

/*
 * Read a copy from its segment.  Return false if it gives no page, though it
 * may be intact.
 */
bool
DWReadCopy(int fd, const DWCopy *copy, char *page, bool *intact)
{
	char		stored[BLCKSZ];
	Size		length = copy->entry.length;

	*intact = pg_pread(fd, stored, length, copy->offset) == (ssize_t) length &&
		DWPageChecksum(stored, length) == copy->entry.crc;
	return *intact && dw_unpack_page(copy->compression, stored, length, page);
}

/*
 * Correct a page in which only hints were being written, given its checksum,
 * if it is torn.  Return false if more is wrong with it than such a write can
 * have done.  Then redo rebuilds it, as it was exempt when it was written
 * home later, or it is damaged.  The page has contents: one without them has
 * no checksum.
 */
bool
DWMendPage(const DWPageEntry *note, char *page, uint16 checksum)
{
	PageHeader	header = (PageHeader) page;

	Assert(!PageIsNew((Page) page));

	if (header->pd_checksum != checksum && DWHintDigest(page) != note->crc)
		return false;
	header->pd_checksum = checksum;
	return true;
}

/*
 * Compare the pages of two entries, for the order of DWNewestCopies().
 */
int
DWComparePages(const DWPageEntry *a, const DWPageEntry *b)
{
	int			cmp = memcmp(&a->rlocator, &b->rlocator, sizeof(RelFileLocator));

	if (cmp == 0)
		cmp = pg_cmp_u16(a->forknum, b->forknum);
	return cmp != 0 ? cmp : pg_cmp_u32(a->blkno, b->blkno);
}

static int
dw_copy_cmp(const void *a, const void *b)
{
	const DWCopy *ca = a;
	const DWCopy *cb = b;
	int			cmp = DWComparePages(&ca->entry, &cb->entry);

	return cmp != 0 ? cmp : pg_cmp_u64(ca->batchno, cb->batchno);
}

/*
 * Return whether the first of these is of no use beside the second.  Both are
 * of one page, and the first is the older one.
 */
static bool
dw_is_superseded(const DWCopy *older, const DWCopy *newer)
{
	return DWIsNote(&older->entry) || !DWIsNote(&newer->entry);
}

/*
 * Return the newest copy of each page in the live range, sorted by page (R4),
 * and the newest note of a page without a copy.  A copy goes before newer
 * notes: while it is live, home may be torn in more than hints.
 */
DWCopy *
DWNewestCopies(const DWScan *scan, const DWLiveRange *live, int *ncopies)
{
	DWCopy	   *copies;
	int			n = 0;
	int			kept = 0;

	copies = palloc_extended(Max(live->npages, 1) * sizeof(DWCopy),
							 MCXT_ALLOC_HUGE);
	for (int i = live->first; i <= live->last; i++)
	{
		const DWFoundBatch *batch = &scan->batches[i];
		uint32		offset = DWPageOffset(batch, 0);

		for (uint32 p = 0; p < batch->npages; p++)
		{
			copies[n].entry = batch->entries[p];
			copies[n].compression = batch->compression;
			copies[n].segno = batch->segno;
			copies[n].batchno = batch->batchno;
			copies[n].offset = offset;
			offset += batch->entries[p].length;
			n++;
		}
	}

	qsort(copies, n, sizeof(DWCopy), dw_copy_cmp);
	for (int i = 0; i < n; i++)
	{
		if (kept == 0 || DWComparePages(&copies[kept - 1].entry, &copies[i].entry) != 0)
			copies[kept++] = copies[i];
		else if (dw_is_superseded(&copies[kept - 1], &copies[i]))
			copies[kept - 1] = copies[i];
	}
	*ncopies = kept;
	return copies;
}

/*
 * Return how many of these copies, which are sorted, belong to the first
 * one's fork.
 */
int
DWForkLength(const DWCopy *copies, int ncopies)
{
	const DWPageEntry *first = &copies[0].entry;
	int			len = 1;

	while (len < ncopies && copies[len].entry.forknum == first->forknum &&
		   RelFileLocatorEquals(copies[len].entry.rlocator, first->rlocator))
		len++;
	return len;
}
