/*-------------------------------------------------------------------------
 *
 * discard.c
 *	  Dropping staged pages of files that are removed.
 *
 * Buffers have been dropped before; afterwards the files are dropped or truncated. (R7)
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/discard.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"

/*
 * Drop the staged pages for which filter says yes, and wait out home writes
 * of such pages that are in flight. (R7)
 *
 * The process that writes a page looks at "discarded" before, but may have looked already.
 * Then its write is waited for; a write of other pages is not.
 */
static void
dw_discard(DWTagFilter filter, const void *arg)
{
	if (dw_discard_staged(filter, arg))
		dw_await_writes_of(filter, arg);
}

/*
 * Drop copies that are in the log only, of pages for which filter says yes, all of which
 * belong to this relation, or NULL.  Waits for home writes of them. (R7)
 */
static void
dw_discard_unneeded(DWTagFilter filter, const void *arg, const RelFileLocator *rlocator)
{
	DWPageSet	pages = {filter, arg, PG_INT32_MAX};

	dw_discard_copies(&pages, rlocator, dw_keep_batch_of_removed);
}

typedef struct DWForkRange
{
	RelFileLocator rlocator;
	const ForkNumber *forknum;
	const BlockNumber *first;
	int			nforks;
} DWForkRange;

static bool
dw_tag_in_forks(const BufferTag *tag, const void *arg)
{
	const DWForkRange *range = arg;

	if (!BufTagMatchesRelFileLocator(tag, &range->rlocator))
		return false;
	for (int i = 0; i < range->nforks; i++)
	{
		if (BufTagGetForkNum(tag) == range->forknum[i] &&
			tag->blockNum >= range->first[i])
			return true;
	}
	return false;
}

/*
 * Drop staged pages of forks of a relation from the given blocks on, because
 * the forks are about to be truncated there.
 */
void
DoubleWriteDiscardForks(RelFileLocator rlocator, const ForkNumber *forknum,
						int nforks, const BlockNumber *firstDelBlock)
{
	DWForkRange range = {rlocator, forknum, firstDelBlock, nforks};

	dw_remember_truncate(&rlocator);
	dw_discard_unneeded(dw_tag_in_forks, &range, &rlocator);
	dw_discard(dw_tag_in_forks, &range);
}

/* Relations, sorted */
typedef struct DWRelations
{
	RelFileLocator *rlocators;
	int			n;
} DWRelations;

static bool
dw_tag_in_relations(const BufferTag *tag, const void *arg)
{
	const DWRelations *set = arg;
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);

	return bsearch(&rlocator, set->rlocators, set->n, sizeof(RelFileLocator),
				   rlocator_comparator) != NULL;
}

/*
 * Drop staged pages of relations that are about to be unlinked, in one pass.
 */
void
DoubleWriteDiscardRelations(SMgrRelation *rels, int nrels)
{
	DWRelations set = {palloc_array(RelFileLocator, nrels), 0};

	for (int i = 0; i < nrels; i++)
	{
		RelFileLocator *rlocator = &rels[i]->smgr_rlocator.locator;

		if (SmgrIsTemp(rels[i]))
			continue;
		dw_remember_drop_in_redo(rlocator);
		dw_discard_unneeded(dw_tag_in_relation, rlocator, rlocator);
		set.rlocators[set.n++] = *rlocator;
	}
	qsort(set.rlocators, set.n, sizeof(RelFileLocator), rlocator_comparator);
	if (set.n > 0)
		dw_discard(dw_tag_in_relations, &set);
	pfree(set.rlocators);
	INJECTION_POINT("doublewrite-relations-discarded", NULL);
}

/*
 * Drop staged pages of a database whose files are about to go, and copies that are in the
 * log only: for redo, DoubleWriteDiscardCopies() does that.
 */
void
DoubleWriteDiscardDatabase(Oid dbid)
{
	dw_remember_drop_in_redo(NULL);
	if (!RecoveryInProgress())
		dw_discard_unneeded(dw_tag_in_database, &dbid, NULL);
	dw_discard(dw_tag_in_database, &dbid);
	INJECTION_POINT("doublewrite-database-discarded", NULL);
}

/* Databases in some tablespaces */
typedef struct DWDatabase
{
	Oid			dbid;
	const Oid  *tablespaces;
	int			ntablespaces;
} DWDatabase;

static bool
dw_tag_in_tablespaces(const BufferTag *tag, const void *arg)
{
	const DWDatabase *database = arg;

	for (int i = 0; i < database->ntablespaces; i++)
	{
		if (tag->dbOid == database->dbid && tag->spcOid == database->tablespaces[i])
			return true;
	}
	return false;
}

/*
 * Drop copies of a database that are in the log only, as redo is about to remove its
 * directories in these tablespaces.  It may be that the database has only been moved out of
 * them, and that pages of others have been changed since: their copies stay.
 */
void
DoubleWriteDiscardCopies(Oid dbid, const Oid *tablespaces, int ntablespaces)
{
	DWDatabase	database = {dbid, tablespaces, ntablespaces};

	dw_discard_unneeded(dw_tag_in_tablespaces, &database, NULL);
}
