/*-------------------------------------------------------------------------
 *
 * fetch.c
 *	  Put a page of the primary in the place of one that is damaged on a
 *	  stopped standby.
 *
 * Without page images in WAL, redo reads each page that it changes, so a page
 * that has rotted on a standby ends replay at each start.  The primary has the
 * page, most of the time in a version from the standby's future, and READ_PAGE
 * brings it (see xlogpagefetch.c).  That is right as a base backup is:
 *
 * - The page is not too old.  It has all changes before as_of, the location that
 *   comes with it, and that is not before any location that the standby knows.
 * - It is not too new.  Redo leaves alone what has the LSN of a record or a later
 *   one.  Until the standby has replayed WAL up to as_of, on which all hints in the
 *   page depend as well, it takes no queries and must not be promoted:
 *   minRecoveryPoint says so.  WAL is durable on the primary up to there.
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
#include "access/xlogpagefetch.h"
#include "catalog/pg_tablespace_d.h"
#include "common/controldata_utils.h"
#include "common/logging.h"
#include "common/relpath.h"
#include "libpq-fe.h"
#include "pg_doublewrite.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"	/* defined in dryrun.c */

/* The page */
static const char *relation;	/* path of the first file of its fork */
static RelFileLocator rlocator;
static ForkNumber forknum = MAIN_FORKNUM;
static BlockNumber blkno;
static char path[MAXPGPATH];	/* of the file that has it */
static off_t offset;
static PGAlignedBlock page;

static PGconn *primary;

/*
 * Return whether this is the path of a relation, and note which.
 */
static bool
parse_relation(const char *name)
{
	const char *base = last_dir_separator(name);
	const char *suffix = base != NULL ? strchr(base, '_') : NULL;

	if (sscanf(name, "base/%u/%u", &rlocator.dbOid, &rlocator.relNumber) == 2)
		rlocator.spcOid = DEFAULTTABLESPACE_OID;
	else if (sscanf(name, "global/%u", &rlocator.relNumber) == 1)
		rlocator.spcOid = GLOBALTABLESPACE_OID;
	else if (sscanf(name, "pg_tblspc/%u/%*[^/]/%u/%u", &rlocator.spcOid,
					&rlocator.dbOid, &rlocator.relNumber) != 3)
		return false;
	if (suffix != NULL)
		forknum = forkname_to_number(suffix + 1);
	return forknum != InvalidForkNumber &&
		strcmp(relpathperm(rlocator, forknum).str, name) == 0;
}

/*
 * Find out which page of which file is meant.
 */
static void
locate_page(const char *name, const char *block)
{
	unsigned long number;
	char	   *end;

	if (!parse_relation(name))
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
check_standby(const DWToolLogState *standby)
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
	/* replay may have met a page of zeroes where there has to be another one */
	if (r == BLCKSZ && !PageIsNew(page.data) && page_is_intact() && !force)
	{
		pg_log_error("block %u of relation \"%s\" is not damaged: its checksum is right",
					 blkno, relation);
		pg_log_error_hint("If what is in it is known to be wrong, use --force.");
		exit(1);
	}
	return fd;
}

/*
 * Have the primary answer a replication command, in one row.
 */
static PGresult *
ask(const char *command, int nfields)
{
	PGresult   *result = PQexec(primary, command);

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		pg_fatal("replication command failed on the primary: %s",
				 PQerrorMessage(primary));
	if (PQntuples(result) != 1 || PQnfields(result) != nfields)
		pg_fatal("unexpected answer of the primary to replication command: %s",
				 command);
	return result;
}

/*
 * Connect to the primary.  Complain if it is that of another standby.
 */
static void
connect_primary(const char *source, const ControlFileData *control)
{
	const char *const keywords[] = {"dbname", "replication", "fallback_application_name", NULL};
	const char *const values[] = {source, "true", progname, NULL};
	PGresult   *system;
	TimeLineID	tli;

	primary = PQconnectdbParams(keywords, values, 1);
	if (PQstatus(primary) == CONNECTION_BAD)
		pg_fatal("%s", PQerrorMessage(primary));

	system = ask("IDENTIFY_SYSTEM", 4);
	if (strtou64(PQgetvalue(system, 0, 0), NULL, 10) != control->system_identifier)
		pg_fatal("the other server has system identifier %s, this cluster %" PRIu64,
				 PQgetvalue(system, 0, 0), control->system_identifier);
	tli = strtoul(PQgetvalue(system, 0, 1), NULL, 10);
	if (tli != control->minRecoveryPointTLI)
		pg_fatal("the primary is on timeline %u, but this standby on timeline %u",
				 tli, control->minRecoveryPointTLI);
	PQclear(system);
}

/*
 * Get the page.  Returns up to where the standby has to replay WAL.
 */
static XLogRecPtr
read_from_primary(const ControlFileData *control)
{
	PGresult   *result =
		ask(psprintf("READ_PAGE '" PAGE_FETCH_FORMAT "'",
					 rlocator.spcOid, rlocator.dbOid, rlocator.relNumber,
					 forknum, blkno, LSN_FORMAT_ARGS(control->minRecoveryPoint),
					 control->minRecoveryPointTLI), 3);
	unsigned char *bytes;
	size_t		length;
	XLogRecPtr	as_of;
	uint32		hi;
	uint32		lo;

	if (PQgetisnull(result, 0, 0))
		pg_fatal("relation \"%s\" of the primary has no block %u", relation, blkno);
	bytes = PQunescapeBytea((unsigned char *) psprintf("\\x%s", PQgetvalue(result, 0, 0)),
							&length);
	if (bytes == NULL || length != BLCKSZ ||
		sscanf(PQgetvalue(result, 0, 1), "%X/%X", &hi, &lo) != 2 ||
		strtoul(PQgetvalue(result, 0, 2), NULL, 10) != control->minRecoveryPointTLI)
		pg_fatal("unexpected answer of the primary to replication command: %s",
				 "READ_PAGE");
	as_of = ((uint64) hi) << 32 | lo;
	memcpy(page.data, bytes, BLCKSZ);
	if (!page_is_intact() || PageIsNew(page.data) ||
		PageGetLSN(page.data) > as_of || as_of < control->minRecoveryPoint)
		pg_fatal("page has been damaged on its way from the primary");
	PQclear(result);
	return as_of;
}

/*
 * Have recovery go on at least to here before the standby counts as consistent.
 */
static void
raise_min_recovery_point(ControlFileData *control, XLogRecPtr lsn)
{
	if (control->minRecoveryPoint >= lsn)
		return;
	control->minRecoveryPoint = lsn;
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
	DWToolLogState standby;
	XLogRecPtr	needed;
	int			fd;

	locate_page(name, block);
	open_cluster(&standby, datadir);
	check_standby(&standby);
	fd = open_damaged(force);

	connect_primary(source, standby.control);
	needed = read_from_primary(standby.control);
	PQfinish(primary);

	/* That may have taken a while. */
	refuse_running_server(&standby);
	raise_min_recovery_point(standby.control, needed);
	if (pg_pwrite(fd, page.data, BLCKSZ, offset) != BLCKSZ)
		pg_fatal("could not write file \"%s\": %m", path);
	if (fsync(fd) != 0)
		pg_fatal("could not fsync file \"%s\": %m", path);
	if (close(fd) != 0)
		pg_fatal("could not close file \"%s\": %m", path);

	printf(_("Block %u of relation \"%s\", with LSN %X/%X, is that of the primary now.\n"
			 "The standby takes queries again, and can be promoted, when it has replayed WAL up to %X/%X.\n"),
		   blkno, relation, LSN_FORMAT_ARGS(PageGetLSN(page.data)),
		   LSN_FORMAT_ARGS(standby.control->minRecoveryPoint));
}
