/*-------------------------------------------------------------------------
 *
 * ledger.c
 *	  Show what the last restore did: the file that the server leaves for that
 *	  purpose, see src/backend/storage/doublewrite/ledger.c.
 *
 * The views of pg_doublewrite_stats show the same on a running server.  This
 * is for a server that has been stopped since, or that failed in redo after
 * the restore.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/ledger.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <time.h>

#include "common/logging.h"
#include "common/relpath.h"
#include "datatype/timestamp.h"
#include "pg_doublewrite.h"

/*
 * Open the ledger and read its header.  Returns NULL if there is none.
 */
static FILE *
open_ledger(const char *path, DWLedgerHeader *header)
{
	FILE	   *fp = fopen(path, PG_BINARY_R);

	if (fp == NULL)
	{
		if (errno != ENOENT)
			pg_fatal("could not open file \"%s\": %m", path);
		return NULL;
	}
	if (fread(header, sizeof(*header), 1, fp) != 1 ||
		header->magic != DW_LEDGER_MAGIC)
		pg_fatal("file \"%s\" is not the ledger of a restore", path);
	if (header->version != DW_LEDGER_VERSION ||
		header->entry_size != sizeof(DWLedgerEntry))
		pg_fatal("file \"%s\" has format version %u, but this program knows version %u",
				 path, header->version, DW_LEDGER_VERSION);
	if (!DWLedgerIntact(fp, header))
		pg_fatal("file \"%s\" is damaged", path);
	return fp;
}

/*
 * A TimestampTz in words.
 */
char *
time_text(int64 timestamp)
{
	static char buf[64];
	time_t		t = timestamp / USECS_PER_SEC +
		(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY;

	strftime(buf, sizeof(buf), "%Y-%m-%d %H:%M:%S %Z", localtime(&t));
	return buf;
}

static void
print_entry(const DWLedgerEntry *entry, bool json)
{
	RelPathStr	path = relpathperm(entry->rlocator, entry->forknum);
	char		segment[DW_SEGMENT_NAME_LEN + 1];

	snprintf(segment, sizeof(segment), "%016" PRIX64, entry->log_segno);
	if (json)
	{
		json_open_object(NULL);
		json_string("file", path.str);
		json_uint("block", entry->blkno);
		json_string("segment", segment);
		json_uint("offset", entry->log_offset);
		json_lsn("lsn_before", entry->lsn_before);
		json_lsn("lsn_after", entry->lsn_after);
		json_close();
	}
	else
		printf(_("%s block %u: LSN %X/%X was replaced by %X/%X from segment %s at offset %u\n"),
			   path.str, entry->blkno, LSN_FORMAT_ARGS(entry->lsn_before),
			   LSN_FORMAT_ARGS(entry->lsn_after), segment,
			   entry->log_offset);
}

static void
print_entries(FILE *fp, const char *path, uint64 n, bool json)
{
	DWLedgerEntry entry;

	for (uint64 i = 0; i < n; i++)
	{
		if (fread(&entry, sizeof(entry), 1, fp) != 1)
			pg_fatal("could not read file \"%s\": %s", path,
					 ferror(fp) ? strerror(errno) : _("unexpected end of file"));
		print_entry(&entry, json);
	}
}

static void
json_ledger(FILE *fp, const char *path, const DWLedgerHeader *header,
			const Options *options)
{
	json_open_object(NULL);
	json_string("finished", time_text(header->finished));
	json_uint("batches", header->batches);
	json_uint("examined", header->examined);
	json_uint("restored", header->restored);
	json_uint("identical", header->identical);
	json_uint("beyond_end", header->missing);
	json_uint("buffered", header->buffered);
	json_uint("bytes_read", header->bytes_read);
	json_double("milliseconds", header->usec / 1000.0);
	if (options->pages)
	{
		json_open_array("pages");
		print_entries(fp, path, header->restored, true);
		json_close();
	}
	json_close();
}

static void
text_ledger(FILE *fp, const char *path, const DWLedgerHeader *header,
			const Options *options)
{
	if (options->pages)
	{
		print_entries(fp, path, header->restored, false);
		if (header->restored > 0)
			printf("\n");
	}
	printf(_("Last restore finished: %s, after %.3f s\n"),
		   time_text(header->finished), header->usec / 1000000.0);
	printf(_("Read from the log: %" PRIu64 " bytes in %" PRIu64 " batches\n"),
		   header->bytes_read, header->batches);
	printf(_("Pages examined: %" PRIu64 "\n"), header->examined);
	printf(_("Pages restored: %" PRIu64 "\n"), header->restored);
	printf(_("Pages identical: %" PRIu64 "\n"), header->identical);
	printf(_("Pages beyond the end of their file: %" PRIu64 "\n"), header->missing);
	printf(_("Pages put into shared buffers: %" PRIu64 "\n"), header->buffered);
}

/*
 * Show what the last restore of the cluster did.
 */
void
print_ledger(const char *datadir, const Options *options)
{
	char		path[MAXPGPATH];
	DWLedgerHeader header;
	FILE	   *fp;

	snprintf(path, sizeof(path), "%s/%s", datadir, DW_LEDGER_FILE);
	fp = open_ledger(path, &header);
	if (fp == NULL)
	{
		if (options->json)
			printf("null\n");
		else
			printf(_("No restore of this cluster is known.\n"));
		return;
	}
	if (options->json)
		json_ledger(fp, path, &header, options);
	else
		text_ledger(fp, path, &header, options);
	fclose(fp);
}
