/*-------------------------------------------------------------------------
 *
 * fetch.c
 *	  Put a page of the primary in the place of one that is damaged on a
 *	  stopped standby.
 *
 * Without page images in WAL, redo reads each page that it changes, so a page
 * that has rotted on a standby ends replay at each start.  The primary has the
 * page, most of the time in a version from the standby's future.  That is what
 * a base backup consists of, and it is right for the same reasons:
 *
 * - The page is whole: its checksum is right.
 * - It is not too old.  A checkpoint of the primary has brought home all changes
 *   before its redo pointer, and that is not before the one from which the
 *   standby will replay.  So redo has all that came later.
 * - It is not too new.  Redo leaves alone what has the LSN of a record or a later
 *   one.  Until the standby has replayed all that the page depends on, it takes
 *   no queries and must not be promoted: minRecoveryPoint says so.  The LSN of the page
 *   is not enough for that, as hint bits don't raise it: a bit may say that a
 *   transaction has committed, or that no snapshot needs an index entry, which
 *   the standby has yet to hear.  All that was logged before the page was read is
 *   enough.  It must be durable on the primary, or it could lose that in
 *   a crash, and go on with other WAL.
 * - minRecoveryPoint is durable before the page is written.
 *
 * If the double-write log has a copy of the page, the server will put that home at
 * its start; it is older, and redo goes on from it.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/fetch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog_internal.h"
#include "common/connect.h"
#include "common/controldata_utils.h"
#include "common/logging.h"
#include "libpq-fe.h"
#include "pg_doublewrite.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"	/* defined in dryrun.c */

/* How often to read a page that is being written just then, and how long to wait */
#define READ_ATTEMPTS	20
#define READ_INTERVAL	(100 * 1000L)	/* microseconds */

/* The page */
static const char *relation;	/* path of the first file of its fork */
static BlockNumber blkno;
static char path[MAXPGPATH];	/* of the file that has it */
static off_t offset;
static PGAlignedBlock page;

static PGconn *primary;

/*
 * Find out which file has the page.
 */
static void
locate_page(const char *name, const char *block)
{
	const char *base = last_dir_separator(name);
	unsigned long number;
	char	   *end;

	if (is_absolute_path(name) || path_contains_parent_reference(name) ||
		base == NULL || !isdigit((unsigned char) base[1]) ||
		strchr(base, '.') != NULL)
	{
		pg_log_error("\"%s\" is not the path of a relation in a data directory", name);
		pg_log_error_hint("It is as in the message about the invalid page, \"base/5/16384\" for instance.");
		exit(1);
	}
	errno = 0;
	number = strtoul(block, &end, 10);
	if (errno != 0 || end == block || *end != '\0' || number > MaxBlockNumber)
		pg_fatal("invalid block number: \"%s\"", block);

	relation = name;
	blkno = (BlockNumber) number;
	offset = (off_t) BLCKSZ * (blkno % RELSEG_SIZE);
	if (blkno < RELSEG_SIZE)
		strlcpy(path, name, sizeof(path));
	else
		snprintf(path, sizeof(path), "%s.%u", name, blkno / RELSEG_SIZE);
}

/*
 * Return whether the page could be read by a server.
 */
static bool
page_is_intact(void)
{
	static const PGAlignedBlock zeroes;

	if (PageIsNew(page.data))
		return memcmp(page.data, zeroes.data, BLCKSZ) == 0;
	return ((PageHeader) page.data)->pd_checksum ==
		pg_checksum_page(page.data, blkno);
}

/*
 * Complain unless the cluster is a standby on which no server runs.
 */
static void
check_standby(const LogState *standby)
{
	const ControlFileData *control = standby->control;
	struct stat st;

	refuse_running_server(standby);
	if (stat("standby.signal", &st) < 0)
	{
		if (errno != ENOENT)
			pg_fatal("could not stat file \"%s\": %m", "standby.signal");
		pg_fatal("data directory \"%s\" is not that of a standby", standby->datadir);
	}
	if (control->state != DB_SHUTDOWNED_IN_RECOVERY &&
		control->state != DB_IN_ARCHIVE_RECOVERY)
		pg_fatal("the server on data directory \"%s\" was not in archive recovery when it stopped",
				 standby->datadir);
	if (control->data_checksum_version == 0)
		pg_fatal("data checksums are not enabled, so a damaged page cannot be told from another one");
}

/*
 * Open the file that has the damaged page.
 */
static int
open_damaged(bool force)
{
	int			fd = open(path, O_RDWR | PG_BINARY, 0);
	ssize_t		r;

	if (fd < 0)
		pg_fatal("could not open file \"%s\": %m", path);
	r = pg_pread(fd, page.data, BLCKSZ, offset);
	/* what the device does not give back may still be written anew */
	if (r >= 0 && r != BLCKSZ)
		pg_fatal("file \"%s\" has no block %u", path, blkno);
	if (r == BLCKSZ && page_is_intact() && !force)
	{
		pg_log_error("block %u of relation \"%s\" is not damaged: its checksum is right",
					 blkno, relation);
		pg_log_error_hint("If what is in it is known to be wrong, use --force.");
		exit(1);
	}
	return fd;
}

/*
 * Ask the primary for one value.
 */
static PGresult *
ask(const char *query, int nparams, const char *const *params, bool binary)
{
	PGresult   *result = PQexecParams(primary, query, nparams, NULL, params,
									  NULL, NULL, binary ? 1 : 0);

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		pg_fatal("query failed on the primary: %s", PQerrorMessage(primary));
	if (PQntuples(result) != 1 || PQnfields(result) != 1)
		pg_fatal("unexpected result of query on the primary: %s", query);
	return result;
}

static char *
ask_text(const char *query)
{
	PGresult   *result = ask(query, 0, NULL, false);
	char	   *text = pg_strdup(PQgetvalue(result, 0, 0));

	PQclear(result);
	return text;
}

static XLogRecPtr
ask_lsn(const char *query)
{
	char	   *text = ask_text(query);
	uint32		hi;
	uint32		lo;

	if (sscanf(text, "%X/%X", &hi, &lo) != 2)
		pg_fatal("unexpected result of query on the primary: %s", query);
	pg_free(text);
	return ((uint64) hi) << 32 | lo;
}

static void
connect_primary(const char *source)
{
	primary = PQconnectdb(source);
	if (PQstatus(primary) == CONNECTION_BAD)
		pg_fatal("%s", PQerrorMessage(primary));
	PQclear(ask(ALWAYS_SECURE_SEARCH_PATH_SQL, 0, NULL, false));
}

/*
 * Complain unless the other server is the primary of this standby, and all changes
 * before the WAL that the standby will replay are in its files.  Returns its timeline.
 */
static TimeLineID
check_primary(const ControlFileData *control)
{
	TimeLineID	own = Max(control->checkPointCopy.ThisTimeLineID,
						  control->minRecoveryPointTLI);
	char	   *sysid;
	TimeLineID	tli;

	sysid = ask_text("SELECT system_identifier FROM pg_catalog.pg_control_system()");
	if (strtou64(sysid, NULL, 10) != control->system_identifier)
		pg_fatal("the other server has system identifier %s, this cluster %" PRIu64,
				 sysid, control->system_identifier);
	if (strcmp(ask_text("SELECT pg_catalog.pg_is_in_recovery()"), "f") != 0)
		pg_fatal("the other server is in recovery, but only a primary will do");

	tli = (TimeLineID)
		strtoul(ask_text("SELECT pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)"),
				NULL, 16);
	if (tli != own)
		pg_fatal("the primary is on timeline %u, but this standby on timeline %u",
				 tli, own);

	if (ask_lsn("SELECT redo_lsn FROM pg_catalog.pg_control_checkpoint()") <
		control->checkPointCopy.redo)
	{
		pg_log_error("the last checkpoint of the primary is older than the one from which this standby will replay");
		pg_log_error_hint("Execute CHECKPOINT on the primary, then try again.");
		exit(1);
	}
	return tli;
}

/*
 * Have the primary read the page from its file, again if it was being written.
 */
static void
read_from_primary(void)
{
	char	   *place = psprintf("%lld", (long long) offset);
	const char *const params[] = {path, place};

	for (int i = 0; i < READ_ATTEMPTS; i++)
	{
		PGresult   *result = ask("SELECT pg_catalog.pg_read_binary_file($1, $2::pg_catalog.int8, "
								 CppAsString2(BLCKSZ) ")", 2, params, true);

		if (PQgetlength(result, 0, 0) != BLCKSZ)
			pg_fatal("file \"%s\" of the primary has no block %u", path, blkno);
		memcpy(page.data, PQgetvalue(result, 0, 0), BLCKSZ);
		PQclear(result);
		if (page_is_intact())
			return;
		pg_usleep(READ_INTERVAL);
	}
	pg_fatal("block %u of relation \"%s\" is damaged on the primary, too",
			 blkno, relation);
}

/*
 * Have all WAL flushed that the primary has written until now.  Returns up to where.
 */
static XLogRecPtr
flush_primary(void)
{
	XLogRecPtr	flushed =
		ask_lsn("SELECT pg_catalog.pg_logical_emit_message(false, 'pg_doublewrite', '', true)");

	if (PageGetLSN(page.data) > flushed)
		pg_fatal("block %u of relation \"%s\" on the primary has LSN %X/%X, which is beyond the end of WAL at %X/%X",
				 blkno, relation, LSN_FORMAT_ARGS(PageGetLSN(page.data)),
				 LSN_FORMAT_ARGS(flushed));
	return flushed;
}

/*
 * Have recovery go on at least to here before the standby counts as consistent.
 */
static void
raise_min_recovery_point(ControlFileData *control, XLogRecPtr lsn, TimeLineID tli)
{
	if (control->minRecoveryPoint >= lsn)
		return;
	control->minRecoveryPoint = lsn;
	control->minRecoveryPointTLI = tli;
	update_controlfile(".", control, true);
}

/*
 * Fetch a page from the primary, given by the path of its relation and its number as
 * in messages of the server.
 */
void
fetch_page(const char *datadir, const char *source, const char *name,
		   const char *block, bool force)
{
	LogState	standby;
	XLogRecPtr	needed;
	TimeLineID	tli;
	int			fd;

	locate_page(name, block);
	open_cluster(&standby, datadir);
	check_standby(&standby);
	fd = open_damaged(force);

	connect_primary(source);
	tli = check_primary(standby.control);
	read_from_primary();
	needed = flush_primary();
	PQfinish(primary);

	/* That may have taken a while. */
	refuse_running_server(&standby);
	raise_min_recovery_point(standby.control, needed, tli);
	if (pg_pwrite(fd, page.data, BLCKSZ, offset) != BLCKSZ)
		pg_fatal("could not write file \"%s\": %m", path);
	if (fsync(fd) != 0)
		pg_fatal("could not fsync file \"%s\": %m", path);
	if (close(fd) != 0)
		pg_fatal("could not close file \"%s\": %m", path);

	printf(_("Block %u of relation \"%s\", with LSN %X/%X, is that of the primary now.\n"
			 "The standby takes queries again when it has replayed WAL up to %X/%X.\n"),
		   blkno, relation, LSN_FORMAT_ARGS(PageGetLSN(page.data)),
		   LSN_FORMAT_ARGS(standby.control->minRecoveryPoint));
}
