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
#include "utils/injection_point.h"

#define DW_MARKER_TMP		"backup_label.dwtmp"
#define DW_OWNER_TMP		DW_OWNER_FILE ".tmp"

/* ---------------------------------------------------------------------
 * The directory, and its owner
 * ---------------------------------------------------------------------
 */

static bool
dw_log_is_linked(void)
{
	struct stat st;

	return lstat(DW_DIR, &st) == 0 && !S_ISDIR(st.st_mode);
}

/*
 * Return whether only the server can access the directory.  If not, report
 * that at elevel.
 */
bool
dw_log_check_mode(int elevel)
{
	DWDirMode	mode = DWJudgeDirMode();
	int			injected = 0;

	INJECTION_POINT("doublewrite-check-mode", &injected);
	if (injected != 0)
	{
		mode = DW_DIR_UNREACHABLE;
		errno = injected;
	}
	switch (mode)
	{
		case DW_DIR_PRIVATE:
			return true;
		case DW_DIR_UNREACHABLE:
			ereport(elevel,
					(errcode_for_file_access(),
					 errmsg("could not access double-write log directory \"%s\": %m",
							DW_DIR)));
			break;
		case DW_DIR_WRONG_OWNER:
			ereport(elevel,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("double-write log directory \"%s\" has wrong ownership",
							DW_DIR),
					 errhint("It must be owned by the user that the server runs as.")));
			break;
		case DW_DIR_WRONG_MODE:
			ereport(elevel,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("double-write log directory \"%s\" has invalid permissions",
							DW_DIR),
					 errdetail("Permissions should be u=rwx (0700) or u=rwx,g=rx (0750).")));
			break;
	}
	return false;
}

/*
 * Read which data directory the log belongs to, and identify our own.
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
 * Return whether the log in the directory, if any, belongs to this data
 * directory.  If not, report that at elevel.  (R9)
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
 * never had one.  If it cannot be used, report that at elevel and return
 * false.
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

/*
 * Position an open backup_label file at the label of a backup.  Return false
 * if it contains only our marker.
 */
bool
DoubleWriteSkipMarker(FILE *fp)
{
	return DWSkipMarker(fp);
}

/*
 * Return what the backup_label file in the data directory is.
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

/*
 * Return whether the previous server has not come to the end of its stop,
 * whatever pg_control says.
 */
bool
DoubleWriteStopCutShort(void)
{
	return dw_read_label() == DW_LABEL_MARKER;
}

void
dw_write_marker(void)
{
	FILE	   *fp;

	Assert(DWIsFlusher());

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
	if (durable_rename(DW_MARKER_TMP, DW_MARKER_FILE, LOG) != 0)
	{
		/*
		 * it may be there nevertheless, for a log that is not kept up to date
		 */
		if (dw_marker_exists())
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
	if (!DWCtl->log.marker_known && dw_read_label() == DW_LABEL_MARKER)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not empty the double-write log because file \"%s\" says that it is in use",
						DW_MARKER_FILE),
				 errdetail("The file was not there when the server started, or the log could not be looked at."),
				 errhint("Restart the server, which restores pages from the log if need be.")));
}

bool
dw_marker_exists(void)
{
	struct stat st;

	return lstat(DW_MARKER_FILE, &st) == 0 || errno != ENOENT;
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
