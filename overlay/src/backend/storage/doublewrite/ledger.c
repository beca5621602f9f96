/*-------------------------------------------------------------------------
 *
 * ledger.c
 *	  A file that tells people which pages the last restore wrote home.
 *
 * Nothing depends on this file: if it cannot be written, the server log says
 * so and the restore goes on.  It replaces its predecessor when it is
 * complete, so a restore that is itself cut short leaves the older ledger.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/ledger.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "storage/doublewrite_internal.h"
#include "storage/fd.h"

#define DW_LEDGER_TMP	DW_LEDGER_FILE ".tmp"

static FILE *dw_ledger = NULL;
static pg_crc32c dw_ledger_crc; /* of the entries so far */

/*
 * Report an error, and go on without a ledger.
 */
static void
dw_ledger_give_up(void)
{
	ereport(LOG,
			(errcode_for_file_access(),
			 errmsg("could not write file \"%s\": %m", DW_LEDGER_TMP),
			 errdetail("There will be no ledger of this restore.")));
	if (dw_ledger != NULL)
		FreeFile(dw_ledger);
	dw_ledger = NULL;
	unlink(DW_LEDGER_TMP);
}

/*
 * Start a ledger; its header is filled in at the end.
 */
void
dw_ledger_begin(void)
{
	DWLedgerHeader header = {0};

	Assert(dw_ledger == NULL);
	INIT_CRC32C(dw_ledger_crc);
	dw_ledger = AllocateFile(DW_LEDGER_TMP, PG_BINARY_W);
	if (dw_ledger == NULL ||
		fwrite(&header, sizeof(header), 1, dw_ledger) != 1)
		dw_ledger_give_up();
}

void
dw_ledger_add(const DWLedgerEntry *entry)
{
	COMP_CRC32C(dw_ledger_crc, entry, sizeof(*entry));
	if (dw_ledger != NULL &&
		fwrite(entry, sizeof(*entry), 1, dw_ledger) != 1)
		dw_ledger_give_up();
}

void
dw_ledger_end(const DWRestoreStats *stats)
{
	DWLedgerHeader header = {0};
	FILE	   *fp = dw_ledger;

	if (fp == NULL)
		return;

	header.magic = DW_LEDGER_MAGIC;
	header.version = DW_LEDGER_VERSION;
	header.entry_size = sizeof(DWLedgerEntry);
	header.finished = stats->finished;
	header.batches = stats->batches;
	header.examined = stats->examined;
	header.restored = stats->restored;
	header.identical = stats->identical;
	header.missing = stats->missing;
	header.buffered = stats->buffered;
	header.bytes_read = stats->bytes_read;
	header.usec = stats->usec;
	header.crc = DWLedgerChecksum(dw_ledger_crc, &header);

	if (fseek(fp, 0, SEEK_SET) != 0 ||
		fwrite(&header, sizeof(header), 1, fp) != 1)
	{
		dw_ledger_give_up();
		return;
	}
	dw_ledger = NULL;
	if (FreeFile(fp) != 0 || rename(DW_LEDGER_TMP, DW_LEDGER_FILE) != 0)
		dw_ledger_give_up();
}
