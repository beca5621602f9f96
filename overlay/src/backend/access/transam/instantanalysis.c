/*-------------------------------------------------------------------------
 *
 * instantanalysis.c
 *	  Instant recovery, the startup process: which records concern which pages.
 *
 * See instantrecovery.c for how it belongs together, and docs/instant-restart.md
 * for what each type of record needs.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/access/transam/instantanalysis.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/instantrecovery_internal.h"
#include "access/visibilitymap.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogpipeline.h"
#include "access/xlogprefetcher.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_class.h"
#include "catalog/pg_control.h"
#include "catalog/storage_xlog.h"
#include "commands/dbcommands_xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/startup.h"
#include "replication/slot.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/smgr.h"
#include "utils/hsearch.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/*
 * After so many barriers recovery goes on as ever, with blocks being read ahead:
 * chains that are hardly begun before they are applied save nothing.
 */
#define INSTANT_MAX_BARRIERS	32

/* Blocks that a file is extended by between two looks at interrupts */
#define INSTANT_EXTEND_STEP		4096

/*
 * Whether records are remembered.  If so, no process may read blocks ahead, since
 * what redo would have done before that is yet to be done.
 */
static bool instant_analyzing = false;

/*
 * Whether this is recovery from an archive, or a standby that is not consistent: all redo is
 * done in rounds.  A round reads WAL again from files of one timeline: those from this
 * segment on.
 */
static bool instant_only_rounds = false;
static XLogSegNo instant_tli_from = 0;

/* What analysis has met */
static uint32 instant_barriers = 0;
static uint32 instant_rounds = 0;
static bool instant_images_missing = false;
static BackgroundWorkerHandle *instant_worker_handles[INSTANT_RECOVERY_MAX_WORKERS];

/* A fork that records refer to */
typedef struct InstantFork
{
	RelFileLocator rlocator;	/* hash key: these two */
	ForkNumber	forknum;
	BlockNumber nblocks;		/* it has when all has been redone (I6) */
	uint32		first_page;		/* of the list of its pages */
	bool		exists;			/* no record that removes it has come since */
} InstantFork;

static HTAB *instant_forks = NULL;

typedef enum InstantClass
{
	INSTANT_ANALYSIS,			/* no page of a relation; apply it at once */
	INSTANT_PAGES,				/* its pages can be redone one by one */
	INSTANT_DROP,				/* removes relations with their chains */
	INSTANT_OWN_BARRIER,		/* a barrier for the pages that it refers to */
	INSTANT_BARRIER,			/* and for all */
} InstantClass;

/*
 * Redo clears bits of the visibility map if the record says so.  If the record
 * does not refer to the map's page, redo looks for it by itself, which is not
 * redo of one page any more (I5).
 */
static bool
instant_clears_unnamed_map(XLogReaderState *record, uint8 info)
{
	char	   *data = XLogRecGetData(record);

	if (XLogRecGetRmid(record) == RM_HEAP2_ID)
	{
		if (info == XLOG_HEAP2_MULTI_INSERT)
			return (((xl_heap_multi_insert *) data)->flags & XLH_INSERT_ALL_VISIBLE_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_MULTI_INSERT_BLKREF_VM);
		if (info == XLOG_HEAP2_LOCK_UPDATED)
			return (((xl_heap_lock_updated *) data)->flags & XLH_LOCK_ALL_FROZEN_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_LOCK_BLKREF_VM);
		return false;
	}

	switch (info)
	{
		case XLOG_HEAP_INSERT:
			return (((xl_heap_insert *) data)->flags & XLH_INSERT_ALL_VISIBLE_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_INSERT_BLKREF_VM);
		case XLOG_HEAP_DELETE:
			return (((xl_heap_delete *) data)->flags & XLH_DELETE_ALL_VISIBLE_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_DELETE_BLKREF_VM);
		case XLOG_HEAP_UPDATE:
		case XLOG_HEAP_HOT_UPDATE:
			return (((xl_heap_update *) data)->flags &
					(XLH_UPDATE_OLD_ALL_VISIBLE_CLEARED |
					 XLH_UPDATE_NEW_ALL_VISIBLE_CLEARED)) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_UPDATE_BLKREF_VM_NEW) &&
				!XLogRecHasBlockRef(record, HEAP_UPDATE_BLKREF_VM_OLD);
		case XLOG_HEAP_LOCK:
			return (((xl_heap_lock *) data)->flags & XLH_LOCK_ALL_FROZEN_CLEARED) != 0 &&
				!XLogRecHasBlockRef(record, HEAP_LOCK_BLKREF_VM);
		default:
			return false;
	}
}

/*
 * The relations whose files the end of a transaction removes.  Returns how many there are.
 */
static int
instant_removed_relations(XLogReaderState *record, RelFileLocator **rlocators)
{
	uint8		info = XLogRecGetInfo(record);
	xl_xact_parsed_commit commit;
	xl_xact_parsed_abort abort;

	switch (info & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
		case XLOG_XACT_COMMIT_PREPARED:
			ParseCommitRecord(info, (xl_xact_commit *) XLogRecGetData(record),
							  &commit);
			*rlocators = commit.xlocators;
			return commit.nrels;
		case XLOG_XACT_ABORT:
		case XLOG_XACT_ABORT_PREPARED:
			ParseAbortRecord(info, (xl_xact_abort *) XLogRecGetData(record),
							 &abort);
			*rlocators = abort.xlocators;
			return abort.nrels;
		default:
			return 0;
	}
}

static InstantClass
instant_classify_xlog(XLogReaderState *record, uint8 info)
{
	switch (info)
	{
		case XLOG_FPI:
			return INSTANT_PAGES;
		case XLOG_FPI_FOR_HINT:
			/* without an image there is nothing to do for the page */
			return XLogRecHasBlockImage(record, 0) ? INSTANT_PAGES : INSTANT_ANALYSIS;
		case XLOG_PARAMETER_CHANGE:
			/* redo of pages depends on wal_log_hints */
			return INSTANT_BARRIER;
		default:
			return INSTANT_ANALYSIS;
	}
}

static InstantClass
instant_classify_heap(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & XLOG_HEAP_OPMASK;

	if (XLogRecGetRmid(record) == RM_HEAP_ID && info == XLOG_HEAP_TRUNCATE)
		return INSTANT_ANALYSIS;
	if (XLogRecGetRmid(record) == RM_HEAP2_ID &&
		(info == XLOG_HEAP2_NEW_CID || info == XLOG_HEAP2_REWRITE))
		return INSTANT_ANALYSIS;
	return instant_clears_unnamed_map(record, info) ? INSTANT_OWN_BARRIER : INSTANT_PAGES;
}

/*
 * Return the number of blocks of init forks that the record refers to.
 */
static int
instant_init_forks(XLogReaderState *record)
{
	int			result = 0;

	for (int i = 0; i <= XLogRecMaxBlockId(record); i++)
	{
		if (XLogRecHasBlockRef(record, i) &&
			XLogRecGetBlock(record, i)->forknum == INIT_FORKNUM)
			result++;
	}
	return result;
}

/*
 * Return what can be done with the record.  The reasons are in
 * docs/instant-restart.md, which is checked for completeness. (I5)
 */
static InstantClass
instant_classify(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;
	int			init_forks = instant_init_forks(record);
	RelFileLocator *removed;
	InstantClass class;

	/*
	 * They are copied before clients get in (I8), so none has a chain.  What
	 * else a record of an extension does is not known.
	 */
	if (init_forks > 0)
		return init_forks == XLogRecMaxBlockId(record) + 1 &&
			!RmgrIdIsCustom(XLogRecGetRmid(record)) ? INSTANT_ANALYSIS : INSTANT_BARRIER;

	switch (XLogRecGetRmid(record))
	{
		case RM_XLOG_ID:
			return instant_classify_xlog(record, info);
		case RM_XACT_ID:
			return instant_removed_relations(record, &removed) > 0 ?
				INSTANT_DROP : INSTANT_ANALYSIS;
		case RM_HEAP_ID:
		case RM_HEAP2_ID:
			class = instant_classify_heap(record);
			if (class != INSTANT_PAGES)
				return class;
			/* FALLTHROUGH */
		case RM_BTREE_ID:
		case RM_HASH_ID:
		case RM_GIN_ID:
		case RM_GIST_ID:
		case RM_SPGIST_ID:
		case RM_BRIN_ID:
		case RM_SEQ_ID:
		case RM_GENERIC_ID:
			/* pages are compared with images when all of it has been applied */
			return (XLogRecGetInfo(record) & XLR_CHECK_CONSISTENCY) != 0 ?
				INSTANT_OWN_BARRIER : INSTANT_PAGES;
		case RM_SMGR_ID:
			/* a file of that name that was dropped before has no chains left */
			return info == XLOG_SMGR_CREATE ? INSTANT_ANALYSIS : INSTANT_DROP;
		case RM_DBASE_ID:
			/* others copy or remove files of which no block is named */
			return info == XLOG_DBASE_CREATE_WAL_LOG ?
				INSTANT_ANALYSIS : INSTANT_BARRIER;
		case RM_RELMAP_ID:
		case RM_CLOG_ID:
		case RM_COMMIT_TS_ID:
		case RM_MULTIXACT_ID:
		case RM_STANDBY_ID:
		case RM_REPLORIGIN_ID:
		case RM_LOGICALMSG_ID:
			return INSTANT_ANALYSIS;
		default:
			return INSTANT_BARRIER;
	}
}

/*
 * Return whether redo of the record makes the page without its old contents.
 */
static bool
instant_rebuilds(XLogReaderState *record, uint8 block_id)
{
	return (XLogRecGetBlock(record, block_id)->flags & BKPBLOCK_WILL_INIT) != 0 ||
		XLogRecBlockImageApply(record, block_id);
}

/*
 * Return whether redo of the record adds the block to its file if it is not there.
 */
static bool
instant_extends(XLogReaderState *record, uint8 block_id)
{
	/* the map's page is read with RBM_ZERO_ON_ERROR */
	return instant_rebuilds(record, block_id) ||
		(XLogRecGetRmid(record) == RM_HEAP2_ID && block_id == 0 &&
		 (XLogRecGetInfo(record) & XLOG_HEAP_OPMASK) == XLOG_HEAP2_VISIBLE);
}

/* ----------------------------------------------------------------
 * Chains
 * ----------------------------------------------------------------
 */

static InstantFork *
instant_find_fork(const RelFileLocator *rlocator, ForkNumber forknum)
{
	InstantFork key = {.rlocator = *rlocator,.forknum = forknum};

	return instant_forks == NULL ? NULL :
		hash_search(instant_forks, &key, HASH_FIND, NULL);
}

static InstantFork *
instant_enter_fork(const RelFileLocator *rlocator, ForkNumber forknum)
{
	InstantFork key = {.rlocator = *rlocator,.forknum = forknum};
	InstantFork *fork;
	bool		found;

	if (instant_forks == NULL)
	{
		HASHCTL		ctl;

		ctl.keysize = offsetof(InstantFork, nblocks);
		ctl.entrysize = sizeof(InstantFork);
		instant_forks = hash_create("instant recovery forks", 256, &ctl,
									HASH_ELEM | HASH_BLOBS);
	}
	fork = hash_search(instant_forks, &key, HASH_ENTER, &found);
	if (!found)
	{
		fork->nblocks = 0;
		fork->first_page = INSTANT_NONE;
	}
	fork->exists = true;
	return fork;
}

static bool
instant_has_chain(const InstantPage *page)
{
	return page->first != INSTANT_NONE || page->spilled != 0;
}

static void
instant_clear_chain(InstantPage *page)
{
	page->first = page->last = INSTANT_NONE;
	page->spilled = 0;
}

static InstantPage *
instant_add_page(InstantFork *fork, BlockNumber blkno)
{
	uint32		i = InstantCtl->npages++;
	InstantPage *page = &InstantPages[i];

	page->rlocator = fork->rlocator;
	page->forknum = fork->forknum;
	page->blkno = blkno;
	instant_clear_chain(page);
	page->applied = page->paused_at = 0;
	page->turn = 1;
	page->demanded = INSTANT_UNDEMANDED;
	page->judged = false;
	page->sqlerrcode = ERRCODE_DATA_CORRUPTED;
	pg_atomic_init_u32(&page->state, INSTANT_PENDING);
	page->next_in_fork = fork->first_page;
	fork->first_page = i;
	instant_enter_page(i);
	return page;
}

/*
 * Add the record to the chain of a block.  There is room.
 */
static void
instant_remember_block(XLogReaderState *record, uint8 block_id)
{
	RelFileLocator rlocator;
	ForkNumber	forknum;
	BlockNumber blkno;
	InstantFork *fork;
	InstantPage *page;
	uint32		distance = (record->ReadRecPtr - InstantCtl->base) / MAXIMUM_ALIGNOF;
	bool		extends = instant_extends(record, block_id);
	uint32		i;

	XLogRecGetBlockTag(record, block_id, &rlocator, &forknum, &blkno);
	fork = instant_enter_fork(&rlocator, forknum);
	if (extends)
		fork->nblocks = Max(fork->nblocks, blkno + 1);

	page = instant_find_page(&rlocator, forknum, blkno);
	if (page == NULL)
		page = instant_add_page(fork, blkno);

	/*
	 * The first record since the redo pointer tells whether WAL has images,
	 * unless it is one that never has any.  After a round it may not be the
	 * first one, and the LSN of the page tells. (R2)
	 */
	if (instant_rounds == 0 && !page->judged &&
		(extends || !DoubleWriteNeedsNoImage(record, block_id)))
	{
		page->judged = true;
		if (!extends)
			instant_images_missing = true;
	}
	if (page->last != INSTANT_NONE && instant_record(page->last)->distance == distance)
		return;					/* it refers to the page twice */

	/* a page made anew does without what came before, which may be just one */
	i = INSTANT_NONE;
	if (instant_rebuilds(record, block_id))
	{
		if (page->first == page->last)
			i = page->last;
		instant_clear_chain(page);
	}
	if (!instant_has_chain(page))
		page->rebuilt = instant_rebuilds(record, block_id);

	if (i == INSTANT_NONE)
		i = InstantCtl->nrecords++;
	instant_record(i)->distance = distance;
	instant_record(i)->next = INSTANT_NONE;
	if (page->last == INSTANT_NONE)
		page->first = i;
	else
	{
		Assert(instant_record(page->last)->distance < distance);
		instant_record(page->last)->next = i;
	}
	page->last = i;
}

/*
 * Pages of a fork from a certain one on are removed: forget their chains.
 */
static void
instant_cut_fork(InstantFork *fork, BlockNumber nblocks)
{
	if (fork == NULL)
		return;
	fork->nblocks = Min(fork->nblocks, nblocks);
	for (uint32 i = fork->first_page; i != INSTANT_NONE; i = InstantPages[i].next_in_fork)
	{
		if (InstantPages[i].blkno >= nblocks)
			instant_clear_chain(&InstantPages[i]);
	}
}

/*
 * A file of WAL that this process has open may be replaced by one from the archive before
 * it reads WAL again.
 */
static void
instant_let_files_be_replaced(void)
{
	if (instant_only_rounds)
		instant_close_reader();
}

/*
 * Apply what there is of a page's chain now, for a record that reads the page. (I5)
 */
static void
instant_redo_early(InstantPage *page)
{
	if (page == NULL || !instant_has_chain(page))
		return;

	(void) instant_take_page(page - InstantPages, INSTANT_PENDING, INSTANT_REDOING);
	(void) instant_redo_page(page - InstantPages);
	pg_atomic_write_u32(&page->state, INSTANT_PENDING);
	instant_clear_chain(page);
	instant_let_files_be_replaced();
}

/*
 * The same for the pages that a record refers to, and for their pages of the visibility
 * map, which redo may look for by itself.
 */
static void
instant_redo_own_pages(XLogReaderState *record)
{
	for (int i = 0; i <= XLogRecMaxBlockId(record); i++)
	{
		RelFileLocator rlocator;
		ForkNumber	forknum;
		BlockNumber blkno;

		if (!XLogRecGetBlockTagExtended(record, i, &rlocator, &forknum, &blkno, NULL))
			continue;
		instant_redo_early(instant_find_page(&rlocator, forknum, blkno));
		if (forknum == MAIN_FORKNUM)
			instant_redo_early(instant_find_page(&rlocator, VISIBILITYMAP_FORKNUM,
												 visibilitymap_truncation_length(blkno + 1) - 1));
	}
}

/*
 * Give a fork the length that it is going to have (I6), for redo of single pages
 * extends nothing.  Pages beyond that do not exist: what their chains say of them
 * was truncated away before the crash.
 */
static void
instant_extend_fork(InstantFork *fork)
{
	SMgrRelation smgr;
	BlockNumber nblocks;

	if (!fork->exists)
		return;

	/* as redo does */
	smgr = smgropen(fork->rlocator, INVALID_PROC_NUMBER);
	smgrcreate(smgr, fork->forknum, true);

	nblocks = smgrnblocks(smgr, fork->forknum);
	while (nblocks < fork->nblocks)
	{
		Buffer		buffer;

		instant_startup_step("blocks to be added to a file", fork->nblocks - nblocks);
		nblocks += Min(fork->nblocks - nblocks, INSTANT_EXTEND_STEP);
		buffer = ExtendBufferedRelTo(BMR_SMGR(smgr, RELPERSISTENCE_PERMANENT),
									 fork->forknum, NULL,
									 EB_PERFORMING_RECOVERY |
									 EB_SKIP_EXTENSION_LOCK,
									 nblocks, RBM_NORMAL);
		ReleaseBuffer(buffer);
	}
	fork->nblocks = nblocks;
}

/*
 * A truncation clears the tail of the last page that is left of each map; which page
 * that is of the map of free space, only that knows.
 *
 * Files get the length first that they have by then.  The last crash may have undone the
 * truncation of one segment and not of the one before: only if that is full, as when
 * records have been applied in order, is the next one truncated, too. (I6)
 */
static void
instant_take_truncation(const xl_smgr_truncate *xlrec)
{
	const RelFileLocator *rlocator = &xlrec->rlocator;
	InstantFork *fork;

	for (ForkNumber forknum = 0; forknum <= MAX_FORKNUM; forknum++)
	{
		fork = instant_find_fork(rlocator, forknum);
		if (fork != NULL)
			instant_extend_fork(fork);
	}
	if ((xlrec->flags & SMGR_TRUNCATE_HEAP) != 0)
		instant_cut_fork(instant_find_fork(rlocator, MAIN_FORKNUM), xlrec->blkno);
	if ((xlrec->flags & SMGR_TRUNCATE_VM) != 0)
	{
		BlockNumber length = visibilitymap_truncation_length(xlrec->blkno);

		instant_cut_fork(instant_find_fork(rlocator, VISIBILITYMAP_FORKNUM), length);
		if (length > 0)
			instant_redo_early(instant_find_page(rlocator, VISIBILITYMAP_FORKNUM,
												 length - 1));
	}
	fork = instant_find_fork(rlocator, FSM_FORKNUM);
	if ((xlrec->flags & SMGR_TRUNCATE_FSM) != 0 && fork != NULL)
	{
		for (uint32 i = fork->first_page; i != INSTANT_NONE;
			 i = InstantPages[i].next_in_fork)
			instant_redo_early(&InstantPages[i]);
		fork->nblocks = 0;
	}
}

/*
 * The record removes pages, and is applied at once: no chain must make them again.
 */
static void
instant_take_drop(XLogReaderState *record)
{
	RelFileLocator *rlocators;
	int			nrels;

	if (XLogRecGetRmid(record) == RM_SMGR_ID)
		instant_take_truncation((xl_smgr_truncate *) XLogRecGetData(record));
	else
	{
		nrels = instant_removed_relations(record, &rlocators);
		for (int i = 0; i < nrels; i++)
		{
			for (ForkNumber forknum = 0; forknum <= MAX_FORKNUM; forknum++)
			{
				InstantFork *fork = instant_find_fork(&rlocators[i], forknum);

				instant_cut_fork(fork, 0);
				if (fork != NULL)
					fork->exists = false;
			}
		}
	}
}

/*
 * Redo of single pages does not notice that WAL carries no images, as that of pages
 * in order does.  If the first record of any page has none, take it for granted:
 * that costs no more than double writes.  (R2)
 */
static void
instant_note_images(void)
{
	if (instant_images_missing)
		NoteImagesOff(GetCurrentReplayRecPtr(NULL));
	instant_images_missing = false;
}

static uint32
instant_extend_forks(void)
{
	uint32		ndone = 0;
	HASH_SEQ_STATUS status;
	InstantFork *fork;

	hash_seq_init(&status, instant_forks);
	while ((fork = hash_seq_search(&status)) != NULL)
		instant_extend_fork(fork);

	/*
	 * Sessions may add such blocks; old records must not be applied to them.
	 * As long as there is WAL to come, the startup process remembers blocks
	 * that it does not find.
	 */
	for (uint32 i = 0; i < InstantCtl->npages; i++)
	{
		InstantPage *page = &InstantPages[i];

		fork = instant_find_fork(&page->rlocator, page->forknum);
		if (!instant_has_chain(page) ||
			(page->blkno >= fork->nblocks && !instant_only_rounds))
		{
			pg_atomic_write_u32(&page->state, INSTANT_DONE);
			ndone++;
		}
	}

	hash_destroy(instant_forks);
	instant_forks = NULL;
	return ndone;
}

/*
 * What is remembered is about to be applied.
 */
static void
instant_prepare_redo(bool startup_retries)
{
	uint32		ndone;

	InstantCtl->startup_retries = startup_retries;
	instant_note_images();
	ndone = instant_extend_forks();
	instant_sort_pages();
	instant_prepare_wal();
	pg_atomic_write_u32(&InstantCtl->next, 0);
	pg_atomic_write_u32(&InstantCtl->announced, 0);
	instant_reset_ahead(false);
	pg_atomic_write_u32(&InstantCtl->failed, 0);
	pg_atomic_write_u32(&InstantCtl->left, InstantCtl->npages - ndone);
}

/*
 * Wait until no worker looks at pages any more.
 */
static void
instant_end_round(void)
{
	instant_set_phase(INSTANT_PHASE_ANALYSIS);

	ConditionVariablePrepareToSleep(&InstantCtl->all_cv);
	while (instant_members() > 1)
	{
		ProcessStartupProcInterrupts();
		(void) ConditionVariableTimedSleep(&InstantCtl->all_cv, 100,
										   WAIT_EVENT_INSTANT_RECOVERY_END);
	}
	ConditionVariableCancelSleep();
}

/*
 * Return whether there are workers, or will be.
 */
static bool
instant_has_workers(void)
{
	for (int i = 0; i < recovery_workers; i++)
	{
		pid_t		pid;

		if (instant_worker_handles[i] != NULL &&
			GetBackgroundWorkerPid(instant_worker_handles[i], &pid) != BGWH_STOPPED)
			return true;
	}
	return false;
}

/*
 * Leave all pages of a round to workers, which survive those that they fail to redo.
 */
static void
instant_await_workers(void)
{
	ConditionVariablePrepareToSleep(&InstantCtl->all_cv);
	while (instant_has_workers() &&
		   pg_atomic_read_u32(&InstantCtl->left) > pg_atomic_read_u32(&InstantCtl->failed))
	{
		instant_startup_step("pages to be redone",
							 pg_atomic_read_u32(&InstantCtl->left));
		(void) ConditionVariableTimedSleep(&InstantCtl->all_cv, 10,
										   WAIT_EVENT_INSTANT_RECOVERY_END);
	}
	ConditionVariableCancelSleep();
}

/*
 * Apply all chains now, together with the workers, before clients get in: a round.
 * Workers leave alone what they fail to redo.  Where redo fails here recovery does,
 * as ever, unless it is the last round and clients can get in with these pages pending:
 * they were to wait for a checkpoint, but there will be none.
 */
static void
instant_drain(bool last)
{
	uint32		i;

	if (InstantCtl->npages == 0)
		return;

	instant_rounds++;
	instant_prepare_redo(!(last && instant_recovery));
	instant_set_phase(INSTANT_PHASE_ROUND);

	/* tests want workers to redo all of them */
	while (IS_INJECTION_POINT_ATTACHED("instant-recovery-workers-only") &&
		   pg_atomic_read_u32(&InstantCtl->next) < InstantCtl->npages)
	{
		ProcessStartupProcInterrupts();
		pg_usleep(1000);
	}

	if (last && instant_recovery)
		instant_await_workers();
	while ((i = instant_take()) != INSTANT_NONE)
	{
		instant_startup_step("pages to be redone",
							 pg_atomic_read_u32(&InstantCtl->left));
		(void) instant_redo_page(i);
		instant_page_done(i);
	}
	instant_end_round();
	if (last && instant_recovery && InstantRecoveryHasFailed() && CanOpenBeforeCheckpoint())
		return;
	for (i = 0; i < InstantCtl->npages; i++)
	{
		if (instant_take_page(i, INSTANT_FAILED, INSTANT_REDOING))
		{
			(void) instant_redo_page(i);
			instant_page_done(i);
		}
	}
	pg_atomic_write_u32(&InstantCtl->failed, 0);
	Assert(pg_atomic_read_u32(&InstantCtl->left) == 0);
	instant_forget_all();
	instant_let_files_be_replaced();
}

/*
 * While records are remembered their blocks are not read ahead, neither by the WAL
 * pipeline nor by XLogPrefetcher.
 */
static void
instant_analyze(bool begin)
{
	instant_analyzing = begin;
	XLogPipelineSuspendReads(begin);
	XLogPrefetchReconfigure();
}

/*
 * Return how many slots for background workers we may use.  Half of them are left
 * to other workers, which begin while pages are pending.
 */
static int
instant_max_workers(void)
{
	return Max(max_worker_processes / 2, 1);
}

/*
 * Ask for workers, which wait for a round, or until clients get in.  The WAL pipeline
 * has its process already.
 */
void
InstantRecoveryStartWorkers(void)
{
	MemoryContext oldcontext;
	int			nworkers = Min(recovery_workers, instant_max_workers());

	if (!instant_analyzing)
		return;

	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	for (int i = 0; i < nworkers; i++)
	{
		BackgroundWorker worker = {0};

		worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
		worker.bgw_start_time = BgWorkerStart_PostmasterStart;
		worker.bgw_restart_time = BGW_NEVER_RESTART;
		strcpy(worker.bgw_library_name, "postgres");
		strcpy(worker.bgw_function_name, "InstantRecoveryMain");
		snprintf(worker.bgw_name, BGW_MAXLEN, "recovery worker %d", i + 1);
		strcpy(worker.bgw_type, "recovery worker");
		worker.bgw_main_arg = Int32GetDatum(i + 1);

		if (!RegisterDynamicBackgroundWorker(&worker, &instant_worker_handles[i]))
		{
			instant_worker_handles[i] = NULL;
			break;
		}
	}
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Return whether records are remembered instead of being applied.
 */
bool
InstantRecoveryAnalyzing(void)
{
	return instant_analyzing;
}

/*
 * Return whether records before this redo pointer may be pending, so that no restartpoint
 * can be there.  Rounds end at redo pointers. (I7)
 */
bool
InstantRecoveryIsBehind(XLogRecPtr redo)
{
	Assert(!instant_analyzing || !instant_only_rounds ||
		   InstantCtl->npages == 0 || InstantCtl->base >= redo);
	return instant_analyzing && !instant_only_rounds;
}

/*
 * If clients have not got in by now they never will: there is nothing to do for workers.
 */
static void
instant_startup_exits(int code, Datum arg)
{
	if (instant_phase() < INSTANT_PHASE_OPEN)
		instant_set_phase(INSTANT_PHASE_ENDED);
	instant_leave();
}

/*
 * Redo begins here.  The caller has seen that it is plain crash recovery, or that no
 * client can get in before InstantRecoveryRound(false). (I1)
 */
void
InstantRecoveryBegin(XLogRecPtr redo, TimeLineID tli, bool only_rounds)
{
	if (InstantCtl == NULL || !IsUnderPostmaster)
		return;
	if (only_rounds && recovery_workers == 0)
		return;

	/*
	 * Records of pages may have to invalidate logical slots.  A round does
	 * not raise their conflicts.
	 */
	if (only_rounds && !XLogRecPtrIsInvalid(ReplicationSlotsComputeLogicalRestartLSN()))
		return;

	Assert(AmStartupProcess());
	Assert(InstantCtl->npages == 0);

	instant_only_rounds = only_rounds;
	InstantCtl->tli = tli;
	InstantCtl->base = redo;
	InstantCtl->images_since = GetRedoRecPtr();
	instant_redoes_chains = true;
	(void) instant_join();
	before_shmem_exit(instant_startup_exits, (Datum) 0);
	instant_analyze(true);
}

/*
 * How far from "base" a record may be
 */
static uint64
instant_max_distance(void)
{
	/* tests have little WAL */
	if (IS_INJECTION_POINT_ATTACHED("instant-recovery-short-distance"))
		return 1024 * 1024;
	return (uint64) INSTANT_NONE * MAXIMUM_ALIGNOF;
}

/*
 * Make room for a record that refers to so many blocks.  If memory is full, or the
 * record is too far away from the first one, that may need a round. (I10)  Returns
 * false if it is too large for all there is.
 */
static bool
instant_make_room(XLogReaderState *record, int nblocks)
{
	if (InstantCtl->npages > 0)
	{
		if (record->ReadRecPtr - InstantCtl->base >= instant_max_distance() ||
			(!instant_has_room(nblocks) &&
			 !(instant_spill() && instant_has_room(nblocks))))
			instant_drain(false);
	}

	/* from here on, when nothing is pending */
	if (InstantCtl->npages == 0)
		InstantCtl->base = record->ReadRecPtr;
	return instant_has_room(nblocks);
}

/*
 * Only rounds: a restartpoint may be at this record, and redo looks for images from here on, so
 * nothing of what precedes it may be pending. (I7, R2)
 */
static void
instant_end_round_at_redo_pointer(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;

	if (XLogRecGetRmid(record) == RM_XLOG_ID &&
		(info == XLOG_CHECKPOINT_REDO || info == XLOG_CHECKPOINT_SHUTDOWN))
	{
		instant_drain(false);
		InstantCtl->images_since = record->ReadRecPtr;
	}
}

/*
 * Only rounds: return whether the record can be read again from files of one timeline.  It has
 * been read from this segment, and maybe from the one before, whose file may be of another one.
 */
static bool
instant_follow_timeline(XLogReaderState *record, XLogSegNo segno, TimeLineID tli)
{
	XLogSegNo	from;

	if (tli != InstantCtl->tli)
	{
		instant_drain(false);
		/* workers have closed their files at the end of the round */
		instant_close_reader();
		InstantCtl->tli = tli;
		instant_tli_from = segno;
	}
	XLByteToSeg(record->ReadRecPtr, from, wal_segment_size);
	return from >= instant_tli_from;
}

/*
 * Remember a record if its redo can wait.  Returns true if it has been remembered:
 * then the caller must not apply it.  The record has been read from a file of this timeline,
 * which has this segment.
 */
bool
InstantRecoveryTake(XLogReaderState *record, XLogSegNo segno, TimeLineID tli)
{
	int			nblocks = XLogRecMaxBlockId(record) + 1;

	if (!instant_analyzing)
		return false;

	if (instant_only_rounds)
	{
		instant_end_round_at_redo_pointer(record);
		if (!instant_follow_timeline(record, segno, tli))
			return false;
	}

	switch (instant_classify(record))
	{
		case INSTANT_ANALYSIS:
			return false;
		case INSTANT_DROP:
			instant_take_drop(record);
			return false;
		case INSTANT_OWN_BARRIER:
			instant_redo_own_pages(record);
			return false;
		case INSTANT_BARRIER:
			break;
		case INSTANT_PAGES:
			if (!instant_make_room(record, nblocks))
				break;
			for (int i = 0; i < nblocks; i++)
			{
				if (XLogRecHasBlockRef(record, i))
					instant_remember_block(record, i);
			}
			return true;
	}

	instant_drain(false);
	INJECTION_POINT("instant-recovery-barrier", NULL);
	if (++instant_barriers > INSTANT_MAX_BARRIERS)
	{
		ereport(LOG,
				(errmsg("recovery goes on without deferring redo of pages"),
				 errdetail("%u records had to be applied before the next one could be looked at.",
						   instant_barriers)));
		instant_analyze(false);
	}
	return false;
}

/*
 * Wait until there is a worker that stays until clients have got in.  Returns false if
 * there will be none.
 */
static bool
instant_wait_for_worker(void)
{
	instant_set_phase(INSTANT_PHASE_ANALYZED);
	for (;;)
	{
		if (instant_members() > 1)
			return true;
		if (!instant_has_workers())
			return false;

		ProcessStartupProcInterrupts();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10, WAIT_EVENT_INSTANT_RECOVERY_MAIN);
		ResetLatch(MyLatch);
	}
}

/*
 * Return whether a resource manager of an extension does something at the end of redo,
 * when the startup process must not need pages that are pending.
 */
static bool
instant_has_custom_cleanup(void)
{
	for (int rmid = RM_MIN_CUSTOM_ID; rmid <= RM_MAX_CUSTOM_ID; rmid++)
	{
		if (RmgrIdExists(rmid) && GetRmgr(rmid).rm_cleanup != NULL)
			return true;
	}
	return false;
}

/*
 * Return whether clients may get in before redo.  Log the reason if they were to,
 * but cannot.
 */
static bool
instant_may_open(void)
{
	if (!instant_recovery)
		return false;
	if (!CanOpenBeforeCheckpoint())
		ereport(LOG,
				(errmsg("redo of pages is completed before clients get in"),
				 errdetail("Clients have to wait for a checkpoint.")));
	else if (instant_has_custom_cleanup())
		ereport(LOG,
				(errmsg("redo of pages is completed before clients get in"),
				 errdetail("A custom resource manager has work to do at the end of redo.")));
	else if (!instant_wait_for_worker())
		ereport(LOG,
				(errmsg("redo of pages is completed before clients get in"),
				 recovery_workers == 0 ?
				 errhint("\"%s\" is 0.", "recovery_workers") :
				 errhint("You might need to increase \"%s\".", "max_worker_processes")));
	else
		return true;
	return false;
}

/*
 * Nothing more is remembered.
 */
static void
instant_end_analysis(void)
{
	instant_analyze(false);
	instant_close_reader();
	instant_close_spill();

	if (instant_rounds > 0)
		ereport(LOG,
				(errmsg_plural("%u round of redo before clients get in",
							   "%u rounds of redo before clients get in",
							   instant_rounds, instant_rounds),
				 instant_errdetail_redone()));
}

/*
 * No page is pending, nor will be.
 */
static void
instant_end(void)
{
	instant_redoes_chains = false;
	instant_set_phase(INSTANT_PHASE_ENDED);
	instant_leave();
	instant_give_back();
}

/*
 * Redo all that is remembered, since recovery is consistent or has come to its end. (I1)
 * From here on clients can get in, unless "go_on".
 */
void
InstantRecoveryRound(bool go_on)
{
	if (!instant_redoes_chains || !instant_only_rounds)
		return;

	instant_drain(false);
	if (!go_on)
	{
		instant_end_analysis();
		instant_end();
	}
}

/*
 * All WAL has been read.  Unless clients can get in now, redo is done now.
 */
void
InstantRecoveryAnalyzed(void)
{
	bool		drained = false;

	InstantRecoveryRound(false);
	if (InstantCtl == NULL || !instant_redoes_chains)
		return;

	INJECTION_POINT("instant-recovery-analyzed", NULL);

	/* a stop that has been asked for is not put off until all is redone */
	ProcessStartupProcInterrupts();

	/* whether clients can get in depends on what protects the pages (R10) */
	instant_note_images();
	if (InstantCtl->npages > 0 && !instant_may_open())
	{
		instant_drain(true);
		drained = true;
		if (InstantCtl->npages > 0)
			(void) instant_wait_for_worker();
	}
	instant_end_analysis();
	if (InstantCtl->npages > 0 && !drained)
		instant_prepare_redo(false);
	instant_redoes_chains = false;
	if (pg_atomic_read_u32(&InstantCtl->left) > 0)
		pg_atomic_write_membarrier_u32(&InstantCtl->pending, 1);
	else
		instant_end();
}

/*
 * Clients are about to get in: let workers begin.
 */
void
InstantRecoveryOpen(void)
{
	if (!InstantRecoveryIsPending())
		return;

	instant_reset_ahead(true);
	InstantCtl->opened_at = GetCurrentTimestamp();
	ereport(LOG,
			(errmsg("opening before redo: %u pages are pending, with %" PRIu64 " records",
					pg_atomic_read_u32(&InstantCtl->left),
					InstantCtl->nspilled + InstantCtl->nrecords)));
	INJECTION_POINT("instant-recovery-open", NULL);
	instant_set_phase(INSTANT_PHASE_OPEN);
	instant_leave();
}
