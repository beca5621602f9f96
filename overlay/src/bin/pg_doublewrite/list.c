/*-------------------------------------------------------------------------
 *
 * list.c
 *	  Show a log: its state at a glance, its contents, what is wrong with it.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/list.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "common/logging.h"
#include "pg_doublewrite.h"

static const char *
cluster_state(DBState state)
{
	switch (state)
	{
		case DB_STARTUP:
			return _("starting up");
		case DB_SHUTDOWNED:
			return _("shut down");
		case DB_SHUTDOWNED_IN_RECOVERY:
			return _("shut down in recovery");
		case DB_SHUTDOWNING:
			return _("shutting down");
		case DB_IN_CRASH_RECOVERY:
			return _("in crash recovery");
		case DB_IN_ARCHIVE_RECOVERY:
			return _("in archive recovery");
		case DB_IN_PRODUCTION:
			return _("in production");
	}
	return _("unrecognized status code");
}

static const DWFoundBatch *
newest_batch(const DWToolLogState *state)
{
	const DWScan *scan = &state->start.scan;

	return scan->nbatches > 0 ? &scan->batches[scan->nbatches - 1] : NULL;
}

static bool
has_live_range(const DWToolLogState *state)
{
	return state->start.live.verdict == DW_LIVE_COMPLETE;
}

/*
 * The mark that counts is that of the newest complete batch.
 */
static uint64
low_water_mark(const DWToolLogState *state)
{
	const DWScan *scan = &state->start.scan;
	int			last = scan->nbatches - 1 - (state->start.live.ignored != NULL ? 1 : 0);

	return last >= 0 ? scan->batches[last].low_water : 0;
}

/* ---------------------------------------------------------------------
 * State
 * ---------------------------------------------------------------------
 */

static void
json_verdict(const DWToolLogState *state)
{
	json_string("verdict", verdicts[state->verdict].word);
	json_string("reason", state->reason);
	json_string("hint", state->hint);
}

static void
json_control(const DWToolLogState *state)
{
	if (state->control == NULL)
		return;
	json_string("data_directory", state->datadir);
	json_string("cluster_state", cluster_state(state->control->state));
	json_lsn("redo_location", state->control->checkPointCopy.redo);
	json_bool("log_in_use", state->start.label == DW_LABEL_MARKER);
	json_bool("backup_label", state->start.label == DW_LABEL_BACKUP);
	if (state->pid != 0)
		json_uint("server_pid", state->pid);
	else
		json_null("server_pid");
}

static void
json_state(const DWToolLogState *state)
{
	const DWFoundBatch *newest = newest_batch(state);
	CrashWork	work;

	json_open_object("state");
	json_control(state);
	json_string("log_directory", state->logdir);
	json_string("link_target", state->linktarget);
	json_uint("segments", state->start.scan.nsegments);
	json_uint("bytes", state->start.scan.bytes_read);
	json_uint("intact_batches", state->start.scan.nbatches);
	if (newest != NULL)
	{
		json_uint("system_identifier", state->sysid);
		json_uint("newest_batch", newest->batchno);
		json_uint("low_water", low_water_mark(state));
		if (state->start.live.ignored != NULL)
			json_uint("incomplete_batch", state->start.live.ignored->batchno);
	}
	if (has_live_range(state))
	{
		json_uint("live_batches", state->start.live.last - state->start.live.first + 1);
		json_uint("live_copies", state->start.live.npages);
		json_uint("live_pages", state->ncopies);
		json_uint("live_bytes", state->start.live.nblocks * BLCKSZ);
	}
	if (count_crash_work(state, &work))
	{
		json_uint("wal_to_replay_bytes", work.wal_bytes);
		json_uint("pages_to_restore", work.pages);
		json_uint("files_to_restore", work.files);
	}
	json_verdict(state);
	json_close();
}

static void
text_control(const DWToolLogState *state)
{
	if (state->control == NULL)
		return;
	printf(_("Data directory:                       %s\n"), state->datadir);
	printf(_("Database cluster state:               %s\n"),
		   cluster_state(state->control->state));
	if (state->pid != 0)
		printf(_("Server running with process ID:       %ld\n"), state->pid);
	printf(_("Redo location of last checkpoint:     %X/%X\n"),
		   LSN_FORMAT_ARGS(state->control->checkPointCopy.redo));
	printf(_("Log in use (marker present):          %s\n"),
		   state->start.label == DW_LABEL_MARKER ? _("yes") : _("no"));
	printf(_("Label of a base backup present:       %s\n"),
		   state->start.label == DW_LABEL_BACKUP ? _("yes") : _("no"));
}

static void
text_state(const DWToolLogState *state)
{
	const DWFoundBatch *newest = newest_batch(state);
	CrashWork	work;

	text_control(state);
	printf(_("Log directory:                        %s%s%s\n"), state->logdir,
		   state->linktarget ? " -> " : "",
		   state->linktarget ? state->linktarget : "");
	printf(_("Segments:                             %d (%" PRIu64 " kB)\n"),
		   state->start.scan.nsegments, state->start.scan.bytes_read / 1024);
	if (newest != NULL)
	{
		printf(_("System identifier in the log:         %" PRIu64 "\n"),
			   state->sysid);
		printf(_("Batches with an intact header:        %d\n"),
			   state->start.scan.nbatches);
		printf(_("Newest batch:                         %" PRIu64 "%s\n"),
			   newest->batchno,
			   state->start.live.ignored != NULL ? _(" (incomplete, will be ignored)") : "");
		printf(_("Low-water mark:                       %" PRIu64 "\n"),
			   low_water_mark(state));
	}
	if (has_live_range(state))
	{
		printf(_("Live batches:                         %d\n"),
			   state->start.live.last - state->start.live.first + 1);
		printf(_("Page copies in them:                  %" PRIu64 " of %d pages\n"),
			   state->start.live.npages, state->ncopies);
		printf(_("Size of live batches:                 %" PRIu64 " kB\n"),
			   state->start.live.nblocks * (BLCKSZ / 1024));
	}
	if (count_crash_work(state, &work))
		printf(_("A start after a crash would:          replay up to %" PRIu64 " kB of WAL, restore %" PRIu64 " pages in %" PRIu64 " files\n"),
			   work.wal_bytes / 1024, work.pages, work.files);
	printf(_("Verdict:                              %s\n"),
		   _(verdicts[state->verdict].text));
	if (state->reason != NULL)
		printf(_("Reason:                               %s\n"), state->reason);
	if (state->hint != NULL)
		printf(_("Hint:                                 %s\n"), state->hint);
}

void
print_state(const DWToolLogState *state, const DWToolOptions *options)
{
	if (options->json)
	{
		json_open_object(NULL);
		json_state(state);
		json_close();
	}
	else
		text_state(state);
}

/* ---------------------------------------------------------------------
 * Contents
 * ---------------------------------------------------------------------
 */

static bool
is_live(const DWToolLogState *state, int i)
{
	return has_live_range(state) &&
		i >= state->start.live.first && i <= state->start.live.last;
}

static const char *
batch_status(const DWToolLogState *state, int i)
{
	const DWFoundBatch *batch = &state->start.scan.batches[i];

	if (batch == state->start.live.ignored)
		return "incomplete";
	if (batch->bad_page >= 0)
		return "damaged";
	return is_live(state, i) ? "live" : "free";
}

static void
json_page(const DWFoundBatch *batch, uint32 p)
{
	const DWPageEntry *entry = &batch->entries[p];

	json_open_object(NULL);
	json_string("file", relpathperm(entry->rlocator, entry->forknum).str);
	json_uint("block", entry->blkno);
	json_lsn("lsn", entry->lsn);
	json_uint("offset", DWPageOffset(batch, p));
	json_uint("length", entry->length);
	json_close();
}

static void
json_batches(const DWToolLogState *state, bool pages)
{
	json_open_array("batches");
	for (int i = 0; i < state->start.scan.nbatches; i++)
	{
		const DWFoundBatch *batch = &state->start.scan.batches[i];
		char		segment[DW_SEGMENT_NAME_LEN + 1];

		snprintf(segment, sizeof(segment), "%016" PRIX64, batch->segno);
		json_open_object(NULL);
		json_uint("batch", batch->batchno);
		json_string("segment", segment);
		json_uint("offset", (uint64) batch->blockno * BLCKSZ);
		json_uint("page_count", batch->npages);
		json_uint("bytes", (uint64) batch->nblocks * BLCKSZ);
		json_string("compression", DWCompressionName(batch->compression));
		json_uint("low_water", batch->low_water);
		json_lsn("redo", batch->redo);
		json_lsn("redo_pending", batch->redo_pending);
		json_string("status", batch_status(state, i));
		if (pages)
		{
			json_open_array("pages");
			for (uint32 p = 0; p < batch->npages; p++)
				json_page(batch, p);
			json_close();
		}
		json_close();
	}
	json_close();
}

static void
text_batches(const DWToolLogState *state, bool pages)
{
	printf("\n%20s  %-16s  %8s  %5s  %8s  %-11s  %20s  %-17s  %s\n",
		   _("batch"), _("segment"), _("offset"), _("pages"), _("bytes"),
		   _("compression"), _("low-water mark"), _("redo"), _("status"));
	for (int i = 0; i < state->start.scan.nbatches; i++)
	{
		const DWFoundBatch *batch = &state->start.scan.batches[i];
		char		redo[32];

		snprintf(redo, sizeof(redo), "%X/%X", LSN_FORMAT_ARGS(batch->redo));
		printf("%20" PRIu64 "  %016" PRIX64 "  %8u  %5u  %8u  %-11s  %20" PRIu64 "  %-17s  %s\n",
			   batch->batchno, batch->segno, batch->blockno * BLCKSZ,
			   batch->npages, batch->nblocks * BLCKSZ,
			   DWCompressionName(batch->compression), batch->low_water, redo,
			   batch_status(state, i));
		for (uint32 p = 0; pages && p < batch->npages; p++)
		{
			const DWPageEntry *entry = &batch->entries[p];

			printf(_("%22s%s block %u, LSN %X/%X%s\n"), "",
				   relpathperm(entry->rlocator, entry->forknum).str,
				   entry->blkno, LSN_FORMAT_ARGS(entry->lsn),
				   DWIsNote(entry) ? _(", hints only") : "");
		}
	}
}

/*
 * The pages of the live range by file: copies are sorted.
 */
static void
list_relations(const DWToolLogState *state, bool json)
{
	int			len;

	if (json)
		json_open_array("relations");
	else if (state->ncopies > 0)
		printf("\n%10s  %10s  %10s  %s\n",
			   _("pages"), _("first"), _("last"), _("file"));

	for (int i = 0; i < state->ncopies; i += len)
	{
		const DWPageEntry *first = &state->copies[i].entry;
		RelPathStr	path = relpathperm(first->rlocator, first->forknum);
		BlockNumber last;

		len = DWForkLength(state->copies + i, state->ncopies - i);
		last = state->copies[i + len - 1].entry.blkno;

		if (json)
		{
			json_open_object(NULL);
			json_string("file", path.str);
			json_uint("pages", len);
			json_uint("first_block", first->blkno);
			json_uint("last_block", last);
			json_close();
		}
		else
			printf("%10d  %10u  %10u  %s\n", len, first->blkno, last, path.str);
	}
	if (json)
		json_close();
}

void
print_list(const DWToolLogState *state, const DWToolOptions *options)
{
	if (options->json)
	{
		json_open_object(NULL);
		json_state(state);
		json_batches(state, options->pages);
		list_relations(state, true);
		json_close();
	}
	else
	{
		text_state(state);
		if (state->start.scan.nbatches > 0)
			text_batches(state, options->pages);
		list_relations(state, false);
	}
}

/*
 * Say what is wrong, or that nothing is.
 */
void
print_check(const DWToolLogState *state, const DWToolOptions *options)
{
	if (options->json)
	{
		print_state(state, options);
		return;
	}
	if (state->start.live.ignored != NULL)
		printf(_("Batch %" PRIu64 " had not been completed, and will be ignored.\n"),
			   state->start.live.ignored->batchno);
	printf("%s\n", state->reason);
	if (state->hint != NULL)
		printf("%s\n", state->hint);
	printf(_("Verdict: %s.\n"), _(verdicts[state->verdict].text));
}
