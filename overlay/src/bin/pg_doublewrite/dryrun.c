/*-------------------------------------------------------------------------
 *
 * dryrun.c
 *	  What a restore would do to the pages at home, without doing it.
 *
 * As the server does, take the newest copy of each page and compare it with
 * home.  A page beyond the end of its file, or of a file that is gone, would
 * be left to redo.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/dryrun.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/logging.h"
#include "pg_doublewrite.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"
#include "storage/checksum_impl.h"

typedef struct DryRunCounts
{
	uint64		differ;			/* would be restored */
	uint64		identical;
	uint64		beyond;			/* left to redo */
	uint64		unfit;			/* left alone, as they don't fit their notes */
} DryRunCounts;

/* The file of a relation fork, segment by segment */
typedef struct HomeFork
{
	RelPathStr	path;
	BlockNumber nblocks;
	int			fd;				/* of the segment opened last, or -1 */
	BlockNumber segno;
} HomeFork;

static void
segment_name(const HomeFork *fork, BlockNumber segno, char *name)
{
	if (segno == 0)
		strlcpy(name, fork->path.str, MAXPGPATH);
	else
		snprintf(name, MAXPGPATH, "%s.%u", fork->path.str, segno);
}

/*
 * Length of a fork, as md.c sees it: up to the first segment that is not full.
 */
static BlockNumber
fork_blocks(const HomeFork *fork)
{
	BlockNumber total = 0;

	for (BlockNumber segno = 0;; segno++)
	{
		char		name[MAXPGPATH];
		struct stat st;
		BlockNumber blocks;

		segment_name(fork, segno, name);
		if (stat(name, &st) < 0)
		{
			if (errno != ENOENT)
				pg_fatal("could not stat file \"%s\": %m", name);
			return total;
		}
		blocks = st.st_size / BLCKSZ;
		total += blocks;
		if (blocks < RELSEG_SIZE)
			return total;
	}
}

static void
open_fork(HomeFork *fork, const DWPageEntry *entry)
{
	fork->path = relpathperm(entry->rlocator, entry->forknum);
	fork->fd = -1;
	fork->segno = 0;
	fork->nblocks = fork_blocks(fork);
}

static void
close_fork(HomeFork *fork)
{
	if (fork->fd >= 0)
		close(fork->fd);
	fork->fd = -1;
}

static void
read_home(HomeFork *fork, BlockNumber blkno, char *page)
{
	BlockNumber segno = blkno / RELSEG_SIZE;
	char		name[MAXPGPATH];

	segment_name(fork, segno, name);
	if (fork->fd >= 0 && fork->segno != segno)
		close_fork(fork);
	if (fork->fd < 0)
	{
		fork->fd = open(name, O_RDONLY | PG_BINARY, 0);
		if (fork->fd < 0)
			pg_fatal("could not open file \"%s\": %m", name);
		fork->segno = segno;
	}
	if (pg_pread(fork->fd, page, BLCKSZ,
				 (off_t) (blkno % RELSEG_SIZE) * BLCKSZ) != BLCKSZ)
		pg_fatal("could not read block %u of file \"%s\"",
				 blkno % RELSEG_SIZE, name);
}

static void
report_difference(const DWCopy *copy, const HomeFork *fork,
				  const char *logged, const char *home, bool json)
{
	XLogRecPtr	before = PageGetLSN((const PageData *) home);
	XLogRecPtr	after = PageGetLSN((const PageData *) logged);

	if (json)
	{
		char		segment[DW_SEGMENT_NAME_LEN + 1];

		snprintf(segment, sizeof(segment), "%016" PRIX64, copy->segno);
		json_open_object(NULL);
		json_string("file", fork->path.str);
		json_uint("block", copy->entry.blkno);
		json_string("segment", segment);
		json_uint("offset", copy->offset);
		json_lsn("lsn_before", before);
		json_lsn("lsn_after", after);
		json_close();
	}
	else
		printf(_("%s block %u: LSN %X/%X would be replaced by %X/%X from segment %016" PRIX64 " at offset %u\n"),
			   fork->path.str, copy->entry.blkno, LSN_FORMAT_ARGS(before),
			   LSN_FORMAT_ARGS(after), copy->segno, copy->offset);
}

static void
compare_page(const DWToolLogState *state, const DWCopy *copy, HomeFork *fork,
			 DryRunCounts *counts, const DWToolOptions *options, bool report)
{
	static PGIOAlignedBlock logged;
	static PGIOAlignedBlock home;

	if (copy->entry.blkno >= fork->nblocks)
	{
		counts->beyond++;
		return;
	}
	read_home(fork, copy->entry.blkno, home.data);
	if (!DWIsNote(&copy->entry))
		read_copy(state, copy, logged.data);
	else if (PageIsNew((Page) home.data))
		return;					/* added to its file again */
	else
	{
		memcpy(logged.data, home.data, BLCKSZ);
		if (!DWMendPage(&copy->entry, logged.data,
						pg_checksum_page(home.data, copy->entry.blkno)))
		{
			/* told once, though the pages may be compared twice */
			if (!report)
				pg_log_warning("block %u of file \"%s\" would be left alone: it does not fit its note in the log",
							   copy->entry.blkno, fork->path.str);
			counts->unfit++;
			return;
		}
	}
	if (memcmp(home.data, logged.data, BLCKSZ) == 0)
	{
		counts->identical++;
		return;
	}
	counts->differ++;
	if (report)
		report_difference(copy, fork, logged.data, home.data, options->json);
}

static void
report_fork(const HomeFork *fork, const DryRunCounts *counts, bool json)
{
	if (json)
	{
		json_open_object(NULL);
		json_string("file", fork->path.str);
		json_uint("restored", counts->differ);
		json_uint("identical", counts->identical);
		json_uint("beyond_end", counts->beyond);
		json_close();
	}
	else
		printf("%10" PRIu64 "  %10" PRIu64 "  %10" PRIu64 "  %s\n",
			   counts->differ, counts->identical, counts->beyond,
			   fork->path.str);
}

/*
 * Compare all pages.  Reports either each page that differs or each fork, and
 * returns the sums.
 */
static DryRunCounts
compare_pages(const DWToolLogState *state, const DWToolOptions *options,
			  bool by_page)
{
	DryRunCounts total = {0};
	int			len;

	for (int i = 0; i < state->ncopies; i += len)
	{
		const DWCopy *copies = &state->copies[i];
		DryRunCounts counts = {0};
		HomeFork	fork;

		len = DWForkLength(copies, state->ncopies - i);
		open_fork(&fork, &copies[0].entry);
		for (int j = 0; j < len; j++)
			compare_page(state, &copies[j], &fork, &counts, options, by_page);
		close_fork(&fork);

		if (!by_page)
			report_fork(&fork, &counts, options->json);
		total.differ += counts.differ;
		total.identical += counts.identical;
		total.beyond += counts.beyond;
		total.unfit += counts.unfit;
	}
	return total;
}

static void
json_dry_run(DWToolLogState *state, const DWToolOptions *options, bool restore)
{
	DryRunCounts total = {0};

	json_open_object(NULL);
	json_string("verdict", verdicts[state->verdict].word);
	json_string("reason", state->reason);
	json_string("hint", state->hint);
	json_open_array("files");
	if (restore)
		total = compare_pages(state, options, false);
	json_close();
	if (options->pages)
	{
		json_open_array("pages");
		if (restore)
			compare_pages(state, options, true);
		json_close();
	}
	json_uint("restored", total.differ);
	json_uint("identical", total.identical);
	json_uint("beyond_end", total.beyond);
	json_uint("unfit", total.unfit);
	json_close();
}

static void
text_dry_run(DWToolLogState *state, const DWToolOptions *options, bool restore)
{
	DryRunCounts total;

	if (!restore)
	{
		print_check(state, options);
		return;
	}
	if (options->pages)
	{
		compare_pages(state, options, true);
		printf("\n");
	}
	printf("%10s  %10s  %10s  %s\n",
		   _("restored"), _("identical"), _("beyond end"), _("file"));
	total = compare_pages(state, options, false);
	printf("%10" PRIu64 "  %10" PRIu64 "  %10" PRIu64 "  %s\n",
		   total.differ, total.identical, total.beyond, _("total"));
}

/*
 * Show what the server would restore.
 */
void
dry_run(DWToolLogState *state, const DWToolOptions *options)
{
	bool		restore = state->verdict == VERDICT_RESTORE;

	if (options->json)
		json_dry_run(state, options, restore);
	else
		text_dry_run(state, options, restore);
}
