/*-------------------------------------------------------------------------
 *
 * readlog.c
 *	  Read a double-write log, and find out what the server would do with it.
 *
 * What it would do is decided, and explained, by the same code as in the server,
 * in src/common/doublewrite_scan.c.
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

const struct verdict_names verdicts[] = {
	[VERDICT_NOTHING] = {
		"nothing", gettext_noop("a server would have nothing to restore")
	},
	[VERDICT_RESTORE] = {
		"restore", gettext_noop("a server would restore pages from the log")
	},
	[VERDICT_DISCARD] = {
		"discard", gettext_noop("a server would discard the log")
	},
	[VERDICT_REFUSE] = {
		"refuse", gettext_noop("a server would refuse to start")
	},
	[VERDICT_UNKNOWN] = {
		"unknown", gettext_noop("what a server would do is not known")
	},
};

static void
set_verdict(DWToolLogState *state, DWToolVerdict verdict, char *reason,
			char *hint)
{
	state->verdict = verdict;
	state->reason = reason;
	state->hint = hint;
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
refuse_running_server(const DWToolLogState *state)
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
read_control(DWToolLogState *state)
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
segment_path(const DWToolLogState *state, uint64 segno, char *path)
{
	snprintf(path, MAXPGPATH, "%s/%016" PRIX64, state->logdir, segno);
}

/*
 * Find out where the log directory is, and return whether there is one.
 */
static bool
look_at_directory(DWToolLogState *state)
{
	struct stat st;
	char		target[MAXPGPATH];
	ssize_t		len = readlink(state->logdir, target, sizeof(target) - 1);

	if (len > 0)
	{
		target[len] = '\0';
		state->linktarget = pg_strdup(target);
	}
	if (stat(state->logdir, &st) == 0 && S_ISDIR(st.st_mode))
		return true;
	if (state->datadir == NULL)
		pg_fatal("could not open directory \"%s\": %m", state->logdir);
	return false;
}

static void
list_segments(DWToolLogState *state)
{
	DIR		   *dir = opendir(state->logdir);
	struct dirent *de;

	if (dir == NULL)
		pg_fatal("could not open directory \"%s\": %m", state->logdir);
	while (errno = 0, (de = readdir(dir)) != NULL)
	{
		uint64		segno;

		if (DWParseSegmentName(de->d_name, &segno))
			DWScanAddSegment(&state->start.scan, segno);
	}
	if (errno != 0)
		pg_fatal("could not read directory \"%s\": %m", state->logdir);
	closedir(dir);
}

/*
 * Callback of DWLookAtLog().  A file may have gone if a server is running.
 */
static bool
read_blocks(DWScan *scan, void *arg, uint64 segno, uint32 blockno,
			uint32 nblocks, char *buffer)
{
	DWToolLogState *state = arg;
	Size		size = (Size) nblocks * BLCKSZ;
	char		path[MAXPGPATH];
	struct stat st;
	int			fd;
	bool		by_block = false;
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
		Size		nbytes = by_block ? BLCKSZ - len % BLCKSZ : size - len;
		ssize_t		rc = pg_pread(fd, buffer + len, nbytes, offset);

		if (rc == 0)
			break;
		if (rc > 0)
		{
			len += rc;
			continue;
		}

		/* as the server does, read block by block, and go on without this one */
		if (nbytes > BLCKSZ)
		{
			by_block = true;
			continue;
		}
		pg_log_warning("could not read file \"%s\" at offset %lld: %m",
					   path, (long long) offset);
		scan->unreadable++;
		memset(buffer + len, 0, nbytes);
		len += nbytes;
	}
	close(fd);
	if (nblocks > 1)			/* starts of segments are read twice */
		scan->bytes_read += len;
	return true;
}

/*
 * Read all segments.  If a batch means that the log has to be refused, show
 * batches of whatever cluster nevertheless.
 */
static void
read_segments(DWToolLogState *state)
{
	DWScan	   *scan = &state->start.scan;
	char	   *buffer = pg_malloc_extended(DW_SEGMENT_SIZE, MCXT_ALLOC_HUGE);
	char		path[MAXPGPATH];

	list_segments(state);
	snprintf(path, sizeof(path), "%s/owner", state->logdir);
	DWReadOwner(path, &state->start.owner);
	DWLookAtLog(&state->start, read_blocks, state, buffer, true);
	pg_free(buffer);
	if (scan->nbatches > 0)
		state->sysid = scan->batches[scan->nbatches - 1].sysid;
	if (state->start.live.verdict == DW_LIVE_COMPLETE)
		state->copies = DWNewestCopies(scan, &state->start.live, &state->ncopies);
}

/* ---------------------------------------------------------------------
 * The verdict
 * ---------------------------------------------------------------------
 */

/*
 * Find out whether what stands in the log can be restored: as the server does, look at
 * the tablespaces that it needs.
 */
static void
judge_tablespaces(DWToolLogState *state)
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
 * Say why the server refuses the log, or discards it, as it would itself.
 */
static void
explain(DWToolLogState *state, DWToolVerdict verdict,
		DWStartVerdict start_verdict)
{
	DWReason	reason;
	char	   *hint;

	DWExplainStart(&state->start, start_verdict, &reason);
	hint = reason.hint ? pg_strdup(reason.hint) : NULL;
	if (start_verdict == DW_START_REFUSE_DIR && state->start.label != DW_LABEL_MARKER)
		hint = psprintf(_("%s%sA server that is set to full-page images or to no protection starts, and leaves the log alone."),
						hint ? hint : "", hint ? "  " : "");
	set_verdict(state, verdict,
				reason.detail ? psprintf("%s.  %s", reason.message, reason.detail) :
				pg_strdup(reason.message), hint);
}

/*
 * Say what a server would do that is set to double writes.
 */
static void
judge(DWToolLogState *state)
{
	DWStartVerdict verdict = DWJudgeStart(&state->start);

	if (DWStartRefused(verdict))
		explain(state, VERDICT_REFUSE, verdict);
	else if (state->datadir == NULL)
		set_verdict(state, VERDICT_UNKNOWN,
					_("Without a data directory it is not known whether the log belongs to it."), NULL);
	else if (verdict == DW_START_LEAVE_LOG)
		set_verdict(state, VERDICT_NOTHING, _("There is no log directory."),
					_("The log was not in use.  A server that is set to double writes creates the directory."));
	else if (verdict == DW_START_DISCARD_STALE)
		explain(state, VERDICT_DISCARD, verdict);
	else if (verdict == DW_START_DISCARD_BACKUP)
		set_verdict(state,
					state->start.scan.nsegments > 0 ? VERDICT_DISCARD : VERDICT_NOTHING,
					_("The cluster is being restored from a backup."), NULL);
	else if (verdict == DW_START_RESTORE)
	{
		set_verdict(state, VERDICT_RESTORE,
					psprintf(_("The live range of the log is complete, and holds copies of %d pages."),
							 state->ncopies), NULL);
		judge_tablespaces(state);
	}
	else
		set_verdict(state, VERDICT_NOTHING,
					state->start.scan.nsegments == 0 ? _("There is no log.") :
					_("The log holds no page that is still needed."), NULL);
}

/*
 * Go to a data directory, and read its control file.
 */
void
open_cluster(DWToolLogState *state, const char *datadir)
{
	memset(state, 0, sizeof(*state));
	state->datadir = datadir;
	if (chdir(datadir) < 0)
		pg_fatal("could not change directory to \"%s\": %m", datadir);
	read_control(state);
}

/*
 * Read the log of a data directory, or that in logdir alone, and judge it.
 */
void
read_log(DWToolLogState *state, const char *datadir, const char *logdir)
{
	if (datadir != NULL)
	{
		open_cluster(state, datadir);
		state->pid = running_server();
		state->start.wanted = true;
		DWLookAtCluster(&state->start, state->control);
		DWLookAtDirectory(&state->start);
	}
	else
		memset(state, 0, sizeof(*state));
	state->logdir = datadir ? DW_DIR : logdir;
	if (look_at_directory(state))
		read_segments(state);
	judge(state);
}

/*
 * Read the copy of a page from the log.
 */
void
read_copy(const DWToolLogState *state, const DWCopy *copy, char *page)
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
