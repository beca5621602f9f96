/*-------------------------------------------------------------------------
 *
 * marker.c
 *	  Whose log it is, and whether it is in use.
 *
 * While home writes rely on the log, a file named backup_label says so.
 * Stock servers refuse to start with it.  That is its purpose: after a crash
 * they would leave the pages torn (R12).  Backup tools should not copy a
 * backup_label from a running cluster, and write their own into the backup.
 * If one does copy it, the owner file beside the segments shows that it is a
 * copy (R9).
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/marker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"

#define DW_MARKER_TMP		"backup_label.dwtmp"
#define DW_OWNER_TMP		DW_OWNER_FILE ".tmp"

/* ---------------------------------------------------------------------
 * The directory, and its owner
 * ---------------------------------------------------------------------
 */

/*
 * Look at the log directory, creating it if asked to in a cluster that never
 * had one.  What is found is judged by DWJudgeStart(), or must be as it should.
 */
void
dw_look_at_directory(DWStart *start, bool create)
{
	DWLookAtDirectory(start);
	if (create && start->dir == DW_DIR_MISSING)
	{
		if (MakePGDirectory(DW_DIR) == 0)
			fsync_fname(".", true);
		DWLookAtDirectory(start);
		if (start->dir == DW_DIR_MISSING)
			start->dir = DW_DIR_UNREACHABLE;
	}
	if (start->dir == DW_DIR_FINE && access(DW_DIR, R_OK | W_OK | X_OK) < 0)
	{
		start->dir = DW_DIR_NOT_WRITABLE;
		start->dir_errno = errno;
	}
	if (dw_injected_error("doublewrite-check-mode"))
	{
		start->dir = DW_DIR_UNREACHABLE;
		start->dir_errno = errno;
	}
}

void
dw_report(const DWReason *reason, int sqlstate, int elevel)
{
	ereport(elevel,
			(errcode(sqlstate),
			 errmsg_internal("%s", reason->message),
			 reason->detail ? errdetail_internal("%s", reason->detail) : 0,
			 reason->hint ? errhint_internal("%s", reason->hint) : 0));
}

/*
 * Report why a log is refused, left alone, or discarded.
 */
void
dw_report_start(const DWStart *start, DWStartVerdict verdict, int elevel)
{
	DWReason	reason;
	int			sqlstate = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;

	if (verdict == DW_START_REFUSE_DAMAGED || verdict == DW_START_REFUSE_MISSING)
		sqlstate = ERRCODE_DATA_CORRUPTED;
	else if (verdict == DW_START_REFUSE_COMPRESSION)
		sqlstate = ERRCODE_FEATURE_NOT_SUPPORTED;
	DWExplainStart(start, verdict, &reason);
	dw_report(&reason, sqlstate, elevel);
}

/*
 * Check that the log directory can be used, creating it in a cluster that
 * never had one.  If it cannot be used, report that at elevel and return
 * false.
 */
bool
dw_log_check_dir(int elevel)
{
	DWStart    *start = palloc0_object(DWStart);
	bool		fine;

	start->scan.sysid = GetSystemIdentifier();
	dw_look_at_directory(start, true);
	fine = start->dir == DW_DIR_FINE;
	if (!fine)
		dw_report_start(start, DW_START_REFUSE_DIR, elevel);
	pfree(start);
	return fine;
}

/*
 * Write the owner file, which says which data directory the log belongs to.
 * It names the marker only once the marker exists.  If this fails, report it
 * at elevel.
 */
void
dw_write_owner(bool marker, int elevel)
{
	DWOwner		own;
	FILE	   *fp;
	bool		written = false;

	Assert(DWIsFlusher());

	fp = AllocateFile(DW_OWNER_TMP, "w");
	if (fp != NULL && DWIdentifyOwner(GetSystemIdentifier(), &own))
	{
		own.nonce = DWCtl->log.nonce;
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

/* ---------------------------------------------------------------------
 * The marker
 * ---------------------------------------------------------------------
 */

void
dw_write_marker(void)
{
	FILE	   *fp;
	bool		written = false;

	Assert(DWIsFlusher());

	fp = AllocateFile(DW_MARKER_TMP, "w");
	if (fp != NULL)
		written = fprintf(fp,
						  "%s\n"
						  "System identifier: " UINT64_FORMAT "\n"
						  "This is not the label of a backup.  Pages of this cluster are protected by the\n"
						  "double-write log in the directory \"%s\".  Only a server that knows it may start\n"
						  "on this cluster; it removes this file when it is shut down.\n",
						  DW_MARKER_LINE, GetSystemIdentifier(), DW_DIR) > 0 &&
			fflush(fp) == 0 && (!enableFsync || pg_fsync(fileno(fp)) == 0);
	if (fp != NULL && FreeFile(fp) != 0)
		written = false;
	if (!written)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", DW_MARKER_TMP)));
	if (durable_rename(DW_MARKER_TMP, DW_MARKER_FILE, LOG) != 0)
	{
		/*
		 * it may be there nevertheless, for a log that is not kept up to date
		 */
		if (DWMarkerExists(DataDir))
			dw_remove_marker();
		ereport(ERROR,
				(errcode(ERRCODE_IO_ERROR),
				 errmsg("could not create file \"%s\"", DW_MARKER_FILE)));
	}
	DWCtl->log.marker_known = true;
}

/*
 * Refuse to make the log empty if there is a marker that this start has not
 * looked at, because it did not see it: pages may have to be restored from
 * the log. (R9)
 */
void
dw_refuse_unknown_marker(void)
{
	if (!DWCtl->log.marker_known && DWMarkerExists(DataDir))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not empty the double-write log because file \"%s\" says that it is in use",
						DW_MARKER_FILE),
				 errdetail("The file was not there when the server started, or the log could not be looked at."),
				 errhint("Restart the server, which restores pages from the log if need be.")));
}

/*
 * Remove the marker.  Return false, having reported why, unless it has gone
 * for good.
 */
bool
dw_remove_marker(void)
{
	if (durable_unlink(DW_MARKER_FILE, LOG) != 0)
		return false;
	DWCtl->log.marker_known = false;
	return true;
}
