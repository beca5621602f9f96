/*-------------------------------------------------------------------------
 *
 * instantrecovery.h
 *	  Opening before redo: pages are redone when a session needs them.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/access/instantrecovery.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef INSTANTRECOVERY_H
#define INSTANTRECOVERY_H

#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "port/atomics.h"
#include "storage/buf.h"
#include "storage/bufmgr.h"
#include "storage/relfilelocator.h"

#define INSTANT_RECOVERY_MAX_WORKERS	32

/* GUCs */
extern PGDLLIMPORT bool instant_recovery;
extern PGDLLIMPORT int recovery_workers;
extern PGDLLIMPORT int instant_recovery_memory;

/*
 * In shared memory; NULL with instant_recovery off.  Not zero while pages are
 * pending and other processes than those that recover might read them.
 */
extern PGDLLIMPORT pg_atomic_uint32 *InstantRecoveryPending;

/*
 * This process applies a record to a copy of a single page, and other blocks of the record
 * don't count.  A PANIC of redo is an ERROR of the page.
 */
extern PGDLLIMPORT bool InstantRecoveryRedoesPage;

struct DoubleWriteSnapshot;

extern Size InstantRecoveryShmemSize(void);
extern void InstantRecoveryShmemInit(void);
extern void InstantRecoveryPutFigures(struct DoubleWriteSnapshot *snapshot);

/* Startup process, in this order */
extern void InstantRecoveryBegin(XLogRecPtr redo, TimeLineID tli, bool only_rounds);
extern void InstantRecoveryStartWorkers(void);
extern bool InstantRecoveryAnalyzing(void);
extern bool InstantRecoveryIsBehind(XLogRecPtr redo);
extern bool InstantRecoveryTake(XLogReaderState *record, XLogSegNo segno, TimeLineID tli);
extern void InstantRecoveryRound(bool go_on);
extern void InstantRecoveryAnalyzed(void);
extern bool InstantRecoveryHasFailed(void);
extern bool InstantRecoveryIsPending(void);
extern void InstantRecoveryOpen(void);

/* Redo of a single page */
extern XLogRedoAction InstantRecoveryBlock(XLogReaderState *record, uint8 block_id,
										   ReadBufferMode mode, Buffer *buf);

/* Any process */
extern void InstantRecoveryWaitForPage(const RelFileLocator *rlocator,
									   ForkNumber forknum, BlockNumber blkno);
extern void InstantRecoveryWaitForRelation(const RelFileLocator *rlocator);
extern void InstantRecoveryForgetRelation(const RelFileLocator *rlocator);
extern void InstantRecoveryForgetDatabase(Oid database);
extern void InstantRecoveryWaitForAll(void);
extern int	InstantRecoveryKeptWal(void);
extern void InstantRecoveryGiveUp(const char *relation, BlockNumber blkno);
extern void InstantRecoveryMain(Datum main_arg);

/*
 * Return whether pages are pending.  A caller that then looks at tags of buffers without
 * a lock must not see older ones than the worker left that redid the last page.
 */
static inline bool
InstantRecoveryMustAsk(void)
{
	return unlikely(InstantRecoveryPending != NULL) &&
		unlikely(pg_atomic_read_u32(InstantRecoveryPending) != 0);
}

/*
 * To be called before a buffer is looked for: a page with records that wait must
 * not be seen.
 */
static inline void
InstantRecoveryAskForPage(const RelFileLocator *rlocator, ForkNumber forknum,
						  BlockNumber blkno)
{
	if (InstantRecoveryMustAsk())
		InstantRecoveryWaitForPage(rlocator, forknum, blkno);
}

/*
 * To be called before files of a relation are looked at, copied or made shorter
 * behind the back of shared buffers.
 */
static inline void
InstantRecoveryAskForRelation(const RelFileLocator *rlocator)
{
	if (InstantRecoveryMustAsk())
		InstantRecoveryWaitForRelation(rlocator);
	pg_read_barrier();			/* see InstantRecoveryMustAsk() */
}

/*
 * To be called before all files of a relation are removed, or of a database.
 */
static inline void
InstantRecoveryAskForRemoval(const RelFileLocator *rlocator)
{
	if (InstantRecoveryMustAsk())
		InstantRecoveryForgetRelation(rlocator);
	pg_read_barrier();			/* see InstantRecoveryMustAsk() */
}

static inline void
InstantRecoveryAskForDatabaseRemoval(Oid database)
{
	if (InstantRecoveryMustAsk())
		InstantRecoveryForgetDatabase(database);
	pg_read_barrier();			/* see InstantRecoveryMustAsk() */
}

/*
 * The same as for a relation, for files of which it is not known whose they are.
 */
static inline void
InstantRecoveryAskForAll(void)
{
	if (InstantRecoveryMustAsk())
		InstantRecoveryWaitForAll();
	pg_read_barrier();			/* see InstantRecoveryMustAsk() */
}

#endif							/* INSTANTRECOVERY_H */
