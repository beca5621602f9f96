/*-------------------------------------------------------------------------
 *
 * readlog.c
 *	  Read a double-write log, and find out what the server would do with it.
 *
 * The order of the questions is that of DoubleWriteStartup(), and they are
 * answered by the same code, in src/common/doublewrite_scan.c.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/readlog.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/controldata_utils.h"
#include "common/file_perm.h"
#include "common/file_utils.h"
#include "common/logging.h"
#include "pg_doublewrite.h"

static void
set_verdict(LogState *state, Verdict verdict, char *reason, char *hint)
{
	state->verdict = verdict;
	state->reason = reason;
	state->hint = hint;
}

const char *
verdict_word(Verdict verdict)
{
	switch (verdict)
	{
		case VERDICT_NOTHING:
			return "nothing";
		case VERDICT_RESTORE:
			return "restore";
		case VERDICT_DISCARD:
			return "discard";
		case VERDICT_REFUSE:
			return "refuse";
		case VERDICT_UNKNOWN:
			return "unknown";
	}
	return "?";					/* keep compiler quiet */
}

/* ---------------------------------------------------------------------
 * The data directory
 * ---------------------------------------------------------------------
 */

/*
 * Process id of the server that runs on the data directory, or 0.  After a
 * crash the file is still there, but the process is not.
 */
static long
running_server(void)
{
	FILE	   *fp = fopen("postmaster.pid", "r");
	long		pid = 0;

	if (fp == NULL)
	{
		if (errno != ENOENT)
			pg_fatal("could not open file \"%s\": %m", "postmaster.pid");
		return 0;
	}
	if (fscanf(fp, "%ld", &pid) != 1)
		pid = 0;
	fclose(fp);

	if (pid < 0)				/* a standalone backend */
		pid = -pid;
	if (pid != 0 && kill((pid_t) pid, 0) < 0 && errno == ESRCH)
		pid = 0;
	return pid;
}

/*
 * Complain if a server is running now.
 */
void
refuse_running_server(const LogState *state)
{
	long		pid = running_server();

	if (pid == 0)
		return;
	pg_log_error("a server seems to be running on data directory \"%s\" with process ID %ld",
				 state->datadir, pid);
	pg_log_error_hint("Stop it first.");
	exit(1);
}

static void
read_label(LogState *state)
{
	FILE	   *fp = fopen(DW_MARKER_FILE, "r");

	if (fp == NULL && errno != ENOENT)
		pg_fatal("could not open file \"%s\": %m", DW_MARKER_FILE);
	state->label = DWReadLabel(fp);
	if (fp != NULL)
		fclose(fp);
}

static void
read_control(LogState *state)
{
	bool		crc_ok;

	state->control = get_controlfile(".", &crc_ok);
	if (!crc_ok)
		pg_fatal("control file of \"%s\" appears to be corrupt", state->datadir);
	if (state->control->pg_control_version != PG_CONTROL_VERSION)
		pg_fatal("data directory \"%s\" belongs to another version of PostgreSQL",
				 state->datadir);
	if (state->control->blcksz != BLCKSZ ||
		state->control->relseg_size != RELSEG_SIZE)
		pg_fatal("data directory \"%s\" uses block size %u and %u blocks per file, but this program was built for %d and %d",
				 state->datadir, state->control->blcksz,
				 state->control->relseg_size, BLCKSZ, RELSEG_SIZE);
}

/* ---------------------------------------------------------------------
 * The log
 * ---------------------------------------------------------------------
 */

static void
segment_path(const LogState *state, uint64 segno, char *path)
{
	snprintf(path, MAXPGPATH, "%s/%016" PRIX64, state->logdir, segno);
}

/*
 * Can the directory be read?  If it cannot, judge that.
 */
static bool
check_directory(LogState *state)
{
	struct stat st;
	char		target[MAXPGPATH];
	ssize_t		len = readlink(state->logdir, target, sizeof(target) - 1);
	char	   *problem = NULL;

	if (len > 0)
	{
		target[len] = '\0';
		state->linktarget = pg_strdup(target);
	}

	if (stat(state->logdir, &st) < 0)
		problem = psprintf(_("The log directory \"%s\" cannot be accessed: %m."),
						   state->logdir);
	else if (!S_ISDIR(st.st_mode))
		problem = psprintf(_("\"%s\" is not a directory."), state->logdir);
	else
		return true;

	if (state->datadir == NULL)
		pg_fatal("could not open directory \"%s\": %m", state->logdir);
	if (state->reason != NULL)
		 /* refused already */ ;
	else if (state->label == DW_LABEL_MARKER)
		set_verdict(state, VERDICT_REFUSE, problem,
					_("The log was in use when the server stopped.  Make the directory available again, or restore the cluster from a backup."));
	else
		set_verdict(state, VERDICT_NOTHING, problem,
					lstat(state->logdir, &st) < 0 && errno == ENOENT ?
					_("The log was not in use.  A server that is set to double writes creates the directory.") :
					_("The log was not in use.  But a server that is set to double writes refuses to start without the directory."));
	return false;
}

/*
 * Is the directory the server's alone?
 */
static void
judge_mode(LogState *state)
{
	switch (DWJudgeDirMode())
	{
		case DW_DIR_PRIVATE:
			break;
		case DW_DIR_UNREACHABLE:
			set_verdict(state, VERDICT_REFUSE,
						psprintf(_("The log directory \"%s\" cannot be accessed: %m."),
								 state->logdir),
						_("Make it available again."));
			break;
		case DW_DIR_WRONG_OWNER:
			set_verdict(state, VERDICT_REFUSE,
						psprintf(_("The log directory \"%s\" has wrong ownership."),
								 state->logdir),
						_("It must be owned by the user that the server runs as."));
			break;
		case DW_DIR_WRONG_MODE:
			set_verdict(state, VERDICT_REFUSE,
						psprintf(_("The log directory \"%s\" has invalid permissions."),
								 state->logdir),
						_("Permissions should be u=rwx (0700) or u=rwx,g=rx (0750)."));
			break;
	}
}

static void
list_segments(LogState *state)
{
	DIR		   *dir = opendir(state->logdir);
	struct dirent *de;

	if (dir == NULL)
		pg_fatal("could not open directory \"%s\": %m", state->logdir);
	while (errno = 0, (de = readdir(dir)) != NULL)
	{
		uint64		segno;

		if (DWParseSegmentName(de->d_name, &segno))
			DWScanAddSegment(&state->scan, segno);
	}
	if (errno != 0)
		pg_fatal("could not read directory \"%s\": %m", state->logdir);
	closedir(dir);
}

/*
 * Callback of DWReadLog().  A file may have gone if a server is running.
 */
static bool
read_blocks(DWScan *scan, void *arg, uint64 segno, uint32 blockno,
			uint32 nblocks, char *buffer)
{
	LogState   *state = arg;
	Size		size = (Size) nblocks * BLCKSZ;
	char		path[MAXPGPATH];
	struct stat st;
	int			fd;
	Size		len = 0;

	segment_path(state, segno, path);
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		pg_fatal("\"%s\" is not a regular file", path);
	fd = open(path, O_RDONLY | PG_BINARY, 0);
	if (fd < 0)
	{
		if (errno == ENOENT && state->pid != 0)
			return false;
		pg_fatal("could not open file \"%s\": %m", path);
	}

	memset(buffer, 0, size);
	while (len < size)
	{
		off_t		offset = (off_t) blockno * BLCKSZ + len;
		ssize_t		rc = pg_pread(fd, buffer + len, size - len, offset);

		if (rc == 0)
			break;
		if (rc > 0)
		{
			len += rc;
			continue;
		}

		/* as the server does, go on without this block */
		pg_log_warning("could not read file \"%s\" at offset %lld: %m",
					   path, (long long) offset);
		memset(buffer + len, 0, BLCKSZ - len % BLCKSZ);
		len += BLCKSZ - len % BLCKSZ;
	}
	close(fd);
	if (nblocks > 1)			/* starts of segments are read twice */
		state->scan.bytes_read += len;
	return true;
}

static void
refuse_header(LogState *state)
{
	const DWBatchHeader *hdr = &state->scan.refused_header;
	uint64		segno = state->scan.refused_segno;

	if (state->scan.refused == DW_HEADER_OTHER_FORMAT)
		set_verdict(state, VERDICT_REFUSE,
					psprintf(_("Segment %016" PRIX64 " has format version %u and block size %u, but only version %d and block size %d are known."),
							 segno, hdr->version, hdr->blcksz,
							 DW_FORMAT_VERSION, BLCKSZ),
					_("Start the cluster with the server that wrote the log and shut it down cleanly."));
	else
		set_verdict(state, VERDICT_REFUSE,
					psprintf(_("The log belongs to another database cluster: its system identifier is %" PRIu64 ", that of this cluster %" PRIu64 "."),
							 hdr->sysid, state->control->system_identifier),
					_("Check where \"pg_doublewrite\" points to.  If the files in it belong to no other cluster, remove them."));
}

/*
 * Read all segments.  If a batch means that the log has to be refused, show
 * batches of whatever cluster nevertheless.
 */
static void
read_segments(LogState *state)
{
	char	   *buffer = pg_malloc_extended(DW_SEGMENT_SIZE, MCXT_ALLOC_HUGE);
	char		path[MAXPGPATH];
	DWOwner		owner;
	FILE	   *fp;

	snprintf(path, sizeof(path), "%s/owner", state->logdir);
	fp = fopen(path, "r");
	DWReadOwner(fp, &owner);
	if (fp != NULL)
		fclose(fp);
	if (owner.nonce != 0)
		DWScanAddNonce(&state->scan, owner.nonce);
	if (state->control != NULL)
		state->scan.sysid = state->control->system_identifier;
	DWReadLog(&state->scan, read_blocks, state, buffer, true);
	pg_free(buffer);
	if (state->scan.nbatches > 0)
		state->sysid = state->scan.batches[state->scan.nbatches - 1].sysid;
}

static void
read_owner(LogState *state, DWOwner *owner, DWOwner *own)
{
	FILE	   *fp = fopen(DW_OWNER_FILE, "r");

	DWReadOwner(fp, owner);
	if (fp != NULL)
		fclose(fp);
	if (!DWIdentifyOwner(state->control->system_identifier, own))
		pg_fatal("could not identify the data directory: %m");
}

/*
 * Is it the log of this data directory?
 */
static void
judge_owner(LogState *state)
{
	DWOwner		owner;
	DWOwner		own;

	read_owner(state, &owner, &own);
	switch (DWJudgeOwner(&owner, &own, state->linktarget != NULL))
	{
		case DW_OWNER_FITS:
			break;
		case DW_OWNER_OTHER_CLUSTER:
			set_verdict(state, VERDICT_REFUSE,
						psprintf(_("The log belongs to another database cluster: its system identifier is %" PRIu64 ", that of this cluster %" PRIu64 "."),
								 owner.sysid, own.sysid),
						_("Check where \"pg_doublewrite\" points to."));
			break;
		case DW_OWNER_OTHER_DIRECTORY:
			set_verdict(state, VERDICT_REFUSE,
						psprintf(_("The log is in use by another data directory, \"%s\"."),
								 owner.datadir),
						_("Give this cluster a log directory of its own.  If it has been moved here, and no other server uses the log, remove the file \"pg_doublewrite/owner\"."));
			break;
	}
}

/*
 * Is the log directory, and the log in it, the server's own?
 */
static void
judge_directory(LogState *state)
{
	if (state->reason != NULL)	/* refused already */
		return;
	judge_mode(state);
	if (state->reason == NULL)
		judge_owner(state);
	if (state->reason != NULL && state->label != DW_LABEL_MARKER)
		state->hint = psprintf(_("%s  A server that is set to full-page images or to no protection starts, and leaves the log alone."),
							   state->hint);
}

/*
 * Is all of this a copy, which makes a good verdict a bad one?
 */
static void
judge_copy(LogState *state)
{
	DWOwner		owner;
	DWOwner		own;

	read_owner(state, &owner, &own);
	if (DWIsCopy(&owner, &own, state->label == DW_LABEL_MARKER))
		set_verdict(state, VERDICT_REFUSE,
					_("This data directory is a copy of one whose double-write log was in use."),
					_("If this is a base backup, restore it again with its own file \"backup_label\".  Only if all files, including \"pg_doublewrite\", come from one atomic snapshot, or no server was running while they were copied, remove the file \"pg_doublewrite/owner\"."));
}

/*
 * Can what stands in the log be restored?  As the server, look at the tablespaces
 * that it needs.
 */
static void
judge_tablespaces(LogState *state)
{
	char		path[MAXPGPATH];
	char	   *problem = NULL;

	for (int i = 0; i < state->ncopies && problem == NULL; i++)
	{
		Oid			spcOid = state->copies[i].entry.rlocator.spcOid;

		if (i > 0 && spcOid == state->copies[i - 1].entry.rlocator.spcOid)
			continue;
		switch (DWJudgeTablespace(spcOid, path))
		{
			case DW_TABLESPACE_FINE:
				break;
			case DW_TABLESPACE_UNREACHABLE:
				problem = psprintf(_("The tablespace directory \"%s\" cannot be accessed: %m."), path);
				break;
			case DW_TABLESPACE_EMPTY:
				problem = psprintf(_("The tablespace directory \"%s\" has no subdirectory \"%s\"."),
								   path, TABLESPACE_VERSION_DIRECTORY);
				break;
		}
	}
	if (problem != NULL)
		set_verdict(state, VERDICT_REFUSE, problem,
					_("Pages in it have to be restored from the double-write log.  Make sure that it is mounted."));
}

/*
 * Does WAL reach what the log needs?
 */
static void
judge_wal(LogState *state)
{
	XLogRecPtr	end = state->scan.batches[state->live.last].wal_end;

	if (!DWWalReaches(end, state->control->checkPointCopy.redo,
					  state->control->xlog_seg_size))
		set_verdict(state, VERDICT_REFUSE,
					psprintf(_("The log holds pages with changes up to %X/%X, which WAL does not reach."),
							 LSN_FORMAT_ARGS(end)),
					_("Bring together the data directory, its WAL and the log that belong together.  If WAL has been lost, restore the cluster from a backup or fail over to a standby."));
}

/* ---------------------------------------------------------------------
 * Judging
 * ---------------------------------------------------------------------
 */

/*
 * What the server looks at first, before it touches the log.
 */
static void
judge_label(LogState *state)
{
	if (state->label == DW_LABEL_INVALID)
		set_verdict(state, VERDICT_REFUSE,
					_("The file \"backup_label\" is neither the label of a backup nor the file that says that the log is in use."),
					_("If this is a base backup, restore it again with its own file \"backup_label\"."));
	else if (state->label == DW_LABEL_MARKER &&
			 DWRecoveryFromBackup(state->control->state))
		set_verdict(state, VERDICT_REFUSE,
					_("The file \"backup_label\" is not the label of a backup, but recovery from a backup is asked for by a file \"recovery.signal\" or \"tablespace_map\"."),
					_("Restore the backup again, with its own file \"backup_label\"."));
}

static void
judge_damage(LogState *state)
{
	const DWLiveRange *live = &state->live;

	set_verdict(state, VERDICT_REFUSE,
				live->verdict == DW_LIVE_MISSING ?
				psprintf(_("The log is damaged: batch %" PRIu64 " is missing, though later batches are intact.  It should stand in segment %016" PRIX64 " at offset %u, or at the start of a later one."),
						 live->bad_batchno, live->bad_segno,
						 live->bad_offset) :
				psprintf(_("The log is damaged: wrong checksum of a page in batch %" PRIu64 ", though later batches are intact.  The page stands in segment %016" PRIX64 " at offset %u."),
						 live->bad_batchno, live->bad_segno,
						 live->bad_offset),
				_("Pages torn by the last crash cannot be repaired without it.  Check the storage, and restore the cluster from a backup or fail over to a standby."));
}

static void
judge_stale(LogState *state)
{
	const DWFoundBatch *newest = &state->scan.batches[state->live.last];

	bool		marker = state->label == DW_LABEL_MARKER;

	set_verdict(state, marker ? VERDICT_REFUSE : VERDICT_DISCARD,
				psprintf(_("The log was written for redo location %X/%X, but the control file names %X/%X."),
						 LSN_FORMAT_ARGS(newest->redo),
						 LSN_FORMAT_ARGS(state->control->checkPointCopy.redo)),
				marker ?
				_("Bring together the log and the data directory that belong together, or restore the cluster from a backup.") :
				_("It was not in use when the server stopped."));
}

static void
judge_compression(LogState *state)
{
	const DWFoundBatch *batch = state->live.unreadable;

	set_verdict(state, VERDICT_REFUSE,
				psprintf(_("Batch %" PRIu64 " in segment %016" PRIX64 " at offset %u was compressed with method \"%s\", which is not supported by this build."),
						 batch->batchno, batch->segno, batch->blockno * BLCKSZ,
						 DWCompressionName(batch->compression)),
				_("Start the cluster with a server that supports it, and shut it down cleanly."));
}

/*
 * The log alone: it is intact or not, the rest depends on the cluster.
 */
static void
judge_alone(LogState *state)
{
	if (state->live.verdict == DW_LIVE_MISSING ||
		state->live.verdict == DW_LIVE_BAD_PAGE)
		judge_damage(state);
	else
		set_verdict(state, VERDICT_UNKNOWN,
					_("Without a data directory it is not known whether the log belongs to it."),
					NULL);
}

static void
judge(LogState *state)
{
	switch (DWJudgeLog(&state->scan, &state->live,
					   state->control->checkPointCopy.redo,
					   state->label == DW_LABEL_MARKER))
	{
		case DW_OUTCOME_NOTHING:
			set_verdict(state, VERDICT_NOTHING,
						state->scan.nsegments == 0 ?
						_("There is no log.") :
						_("The log holds no page that is still needed."), NULL);
			break;
		case DW_OUTCOME_RESTORE:
			set_verdict(state, VERDICT_RESTORE,
						psprintf(_("The live range of the log is complete, and holds copies of %d pages."),
								 state->ncopies),
						NULL);
			break;
		case DW_OUTCOME_DISCARD_STALE:
		case DW_OUTCOME_REFUSE_STALE:
			judge_stale(state);
			break;
		case DW_OUTCOME_REFUSE_DAMAGED:
			judge_damage(state);
			break;
		case DW_OUTCOME_REFUSE_COMPRESSION:
			judge_compression(state);
			break;
		case DW_OUTCOME_REFUSE_MISSING:
			set_verdict(state, VERDICT_REFUSE,
						_("The log was in use when the server stopped, but its files are missing or unreadable."),
						_("Make them available again, or restore the cluster from a backup."));
			break;
	}
}

/*
 * Go to a data directory, and read its control file.
 */
void
open_cluster(LogState *state, const char *datadir)
{
	memset(state, 0, sizeof(*state));
	state->datadir = datadir;
	if (chdir(datadir) < 0)
		pg_fatal("could not change directory to \"%s\": %m", datadir);
	read_control(state);
}

/*
 * Read the log of a data directory, or that in logdir alone.
 */
void
read_log(LogState *state, const char *datadir, const char *logdir)
{
	if (datadir != NULL)
		open_cluster(state, datadir);
	else
		memset(state, 0, sizeof(*state));
	state->logdir = datadir ? DW_DIR : logdir;

	if (datadir != NULL)
	{
		read_label(state);
		state->pid = running_server();
		judge_label(state);
	}

	if (!check_directory(state))
		return;
	if (datadir != NULL)
		judge_directory(state);
	list_segments(state);
	read_segments(state);
	DWFindLive(&state->scan, &state->live);
	if (state->live.verdict == DW_LIVE_COMPLETE)
		state->copies = DWNewestCopies(&state->scan, &state->live,
									   &state->ncopies);

	if (state->reason == NULL && state->label == DW_LABEL_BACKUP)
		set_verdict(state,
					state->scan.nsegments > 0 ? VERDICT_DISCARD : VERDICT_NOTHING,
					_("The cluster is being restored from a backup."),
					NULL);
	else if (state->reason == NULL && state->scan.refused != DW_HEADER_NONE)
		refuse_header(state);
	else if (state->reason != NULL)
		 /* refused already */ ;
	else if (datadir == NULL)
		judge_alone(state);
	else
	{
		judge(state);
		if (state->verdict != VERDICT_REFUSE)
			judge_copy(state);
		if (state->verdict == VERDICT_RESTORE ||
			(state->verdict == VERDICT_NOTHING && state->label == DW_LABEL_MARKER))
			judge_wal(state);
		if (state->verdict == VERDICT_RESTORE)
			judge_tablespaces(state);
	}
}

/*
 * Read the copy of a page from the log.
 */
void
read_copy(const LogState *state, const DWCopy *copy, char *page)
{
	static int	fd = -1;
	static uint64 fd_segno = 0;
	char		path[MAXPGPATH];
	bool		intact;

	segment_path(state, copy->segno, path);
	if (fd >= 0 && fd_segno != copy->segno)
	{
		close(fd);
		fd = -1;
	}
	if (fd < 0)
	{
		fd = open(path, O_RDONLY | PG_BINARY, 0);
		if (fd < 0)
			pg_fatal("could not open file \"%s\": %m", path);
		fd_segno = copy->segno;
	}

	if (!DWReadCopy(fd, copy, page, &intact))
		pg_fatal(intact ?
				 "could not decompress page copy in file \"%s\" at offset %u" :
				 "could not read page copy from file \"%s\" at offset %u",
				 path, copy->offset);
}
