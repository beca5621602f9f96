/*-------------------------------------------------------------------------
 *
 * doublewrite.h
 *	  The write-back engine and torn-page protection off the WAL path.
 *
 * See src/backend/storage/doublewrite/README.md for the rules (R1 ... R12)
 * and for how the pieces fit together.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/storage/doublewrite.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_H
#define DOUBLEWRITE_H

#include "access/xlogdefs.h"
#include "common/relpath.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "storage/bufpage.h"
#include "storage/relfilelocator.h"

struct BufferDesc;
struct SMgrRelationData;
struct XLogReaderState;
struct buftag;

/* Values of io_torn_pages_protection */
typedef enum TornPagesProtection
{
	TORN_PAGES_OFF,				/* none: the storage is trusted */
	TORN_PAGES_FULL_PAGES,		/* full-page images in WAL, as stock */
	TORN_PAGES_DOUBLE_WRITES,	/* double-write log */
	TORN_PAGES_ATOMIC_WRITES,	/* atomic writes, where storage has proved
								 * that it can; else the double-write log */
} TornPagesProtection;

/*
 * What is known of WAL records for the block in a shared buffer; one per buffer,
 * beside the buffer descriptors, whose layout extensions know.  Written with the
 * buffer's content lock held exclusively, or by the only process that has the
 * buffer pinned; read under a content lock.  But "hidden" may be set by the
 * holder of a pin, and "only_hints" by that of a content lock, at least shared.
 */
typedef struct DWBufferRecords
{
	XLogRecPtr	redo;			/* newest redo pointer after which there has
								 * been a record, or may have been one; 0:
								 * none ever */
	XLogRecPtr	before;			/* the one before it with such a record, or 0 */
	bool		rebuilt;		/* redo rebuilds the page from the first
								 * record after redo */
	bool		rebuilt_before; /* ... after before */
	bool		hidden;			/* there may be other records: not exempt */
	bool		only_hints;		/* nothing but hints of the heap has changed
								 * since the last completed checkpoint */
	bool		unreported;		/* marked dirty, and no record reported since */
} DWBufferRecords;

/* "redo" of a buffer loaded in recovery, as redo does not report records */
#define DW_NOT_NOTED	PG_UINT64_MAX

/* settings.c */
extern PGDLLIMPORT int io_torn_pages_protection;
extern PGDLLIMPORT int double_write_buffer_size;	/* megabytes, or -1 */
extern PGDLLIMPORT int double_write_compression;	/* DWCompression */
extern bool DoubleWriteSessionImages(void);
extern void DoubleWriteCatchUp(void);

/* atomic.c */
extern PGDLLIMPORT bool debug_atomic_writes_in_software;

/* shmem.c */
extern Size DoubleWriteShmemSize(void);
extern void DoubleWriteShmemInit(void);
extern PGDLLIMPORT DWBufferRecords *DWBufferRecordsArray;

/* exempt.c: pages that redo rebuilds */
extern void DoubleWriteForgetBuffer(int buf_id);
extern void DoubleWriteBufferBorn(int buf_id);
extern DWBufferRecords *DoubleWriteRecordsOfPage(const void *page);
extern void DoubleWriteHideCopied(const RelFileLocator *rlocator,
								  ForkNumber forknum, BlockNumber blkno);
extern XLogRecPtr DoubleWriteRememberInsertion(void);
extern void DoubleWriteRememberFirstRecord(DWBufferRecords *records,
										   XLogRecPtr redo, bool rebuilds);
extern void DoubleWritePassedRedo(XLogRecPtr redo);
extern void DoubleWriteImagesSince(XLogRecPtr redo);
extern bool DoubleWriteImageMissing(struct XLogReaderState *record,
									uint8 block_id, const PageData *page);
extern bool DoubleWriteNeedsNoImage(struct XLogReaderState *record,
									uint8 block_id);
extern void DoubleWriteRememberImagesOff(XLogRecPtr recptr);
extern void DoubleWriteCountRead(XLogRecPtr lsn);
extern void DoubleWriteCountFromRedo(XLogRecPtr redo);

/* failedsync.c: pages whose sync has failed */
extern void DoubleWriteRememberPanic(void);
extern void DoubleWriteRememberFailedSync(void);
extern void DoubleWriteLeftByRedo(Buffer buffer);

/* hints.c: pages in which only hints have changed */
extern void DoubleWriteRememberFirstHint(Buffer buffer);

/* copies.c: copies in the log whose pages have not been needed yet */
extern PGDLLIMPORT bool DoubleWriteRestoreOnDemand;
extern bool DoubleWriteAnnounceCopy(const RelFileLocator *rlocator,
									ForkNumber forknum, BlockNumber blkno);

/* stage.c: pages on their way out */
extern bool DoubleWriteReadStaged(const struct buftag *tag, char *dst);
extern PGDLLIMPORT int double_write_stage_size; /* blocks, or -1 */
extern void DoubleWriteChooseSetting(const char *name, const int *variable,
									 int automatic);

/* discard.c: staged pages of dropped and truncated files */
extern void DoubleWriteDiscardForks(RelFileLocator rlocator,
									const ForkNumber *forknum, int nforks,
									const BlockNumber *firstDelBlock);
extern void DoubleWriteDiscardRelations(struct SMgrRelationData **rels,
										int nrels);
extern void DoubleWriteDiscardDatabase(Oid dbid);
extern void DoubleWriteDiscardCopies(Oid dbid, const Oid *tablespaces,
									 int ntablespaces);

/* remove.c: making sure that removed files stay removed */
extern void DoubleWriteBeginRemoval(void);
extern void DoubleWriteEndRemoval(void);
extern bool DoubleWriteIsRemoving(void);
extern void DoubleWriteRemovalFailed(void);
extern void DoubleWriteRememberFailedRemovals(void);
extern bool DoubleWriteRefusesRestartpoint(XLogRecPtr redo);
extern void DoubleWriteRememberUnlinked(RelFileLocatorBackend rlocator);
extern void DoubleWriteRememberTruncated(RelFileLocator rlocator, ForkNumber forknum,
										 BlockNumber old_nblocks, BlockNumber nblocks);
extern void DoubleWriteRememberDatabaseRemoved(const Oid *tablespaces,
											   int ntablespaces);

/* readfile.c: reading relation files behind the buffer manager's back */
extern PGDLLIMPORT bool DoubleWriteBackupReadsHeld;
extern void DoubleWriteHoldHomeWrites(const char *path);
extern void DoubleWriteResumeHomeWrites(void);
extern bool DoubleWritePrepareRead(FILE *file, const char *path);
extern size_t DoubleWriteRead(char *buf, size_t nbytes, FILE *file,
							  const char *path, bool more);

/* log.c: batches and the redo pointers in them */
extern void DoubleWriteSetRedo(XLogRecPtr redo, bool images);

/* upkeep.c: the checkpointer looks after the log */
extern void DoubleWriteUpkeep(bool busy);

/* bring.c: writing copies home that no process has needed */
extern void DoubleWriteRecoveryFails(void);
extern bool DoubleWriteHasStuckCopies(void);
extern bool DoubleWriteGiveUpCopy(const char *relation, BlockNumber blkno);

/* flush.c: writing staged pages back */
extern void DoubleWriteFlushIfBatchReady(void);
extern int	DoubleWriteBgWriterSleep(long timeout, uint32 wait_event_info);
extern void DoubleWriteDrain(void);
extern void DoubleWriteDrainInitForks(void);
extern void DoubleWriteDrainRelation(const RelFileLocator *rlocator);
extern void DoubleWriteDrainDatabase(Oid dbid);
extern void DoubleWriteForgetTruncated(struct SMgrRelationData **rels,
									   int nrels);

/* evict.c: copying pages to the stage */
extern void DoubleWriteStagePage(struct BufferDesc *buf, XLogRecPtr lsn,
								 bool permanent);
extern bool DoubleWriteStageRefuses(const struct buftag *tag);

/* durable.c: protection by copies in the log */
extern bool DoubleWriteProtectsReplayed(void);

/* mode.c: checkpoints and switching */
extern bool DoubleWriteUpdateMode(bool images_now);
extern void DoubleWriteModeApplied(bool images);
extern void DoubleWriteRecoveryEnded(void);
extern bool DoubleWriteIsArmed(void);
extern bool DoubleWriteWalLacksImages(void);
extern void DoubleWriteCheckpointDrain(XLogRecPtr redo, int flags);
extern void DoubleWriteCheckpointSynced(void);
extern void DoubleWriteCheckpointDone(XLogRecPtr redo, bool images);
extern void DoubleWriteShutdown(void);

/* startup.c */
extern void DoubleWriteStartup(XLogRecPtr redo);
extern void DoubleWriteStarted(void);
extern XLogRecPtr DoubleWriteNeededWal(void);
extern void DoubleWriteCheckEndOfWal(XLogRecPtr end);

/*
 * What follows runs for each change of a page, in each mode.
 */

static inline DWBufferRecords *
DoubleWriteRecordsOf(Buffer buffer)
{
	Assert(buffer > 0);
	return &DWBufferRecordsArray[buffer - 1];
}

/*
 * Note that this process has inserted a WAL record that refers to a page.
 * rebuilds tells whether redo rebuilds the page from this record alone; redo
 * is what DoubleWriteRememberInsertion() has returned.  If the page is in a shared
 * buffer, the caller holds its content lock exclusively, or its records are
 * hidden.  If it is not, records is NULL.
 */
static inline void
DoubleWriteRememberRecord(DWBufferRecords *records, XLogRecPtr redo, bool rebuilds)
{
	if (records == NULL)
		return;
	records->only_hints = false;
	records->unreported = false;

	/* only the first one counts */
	if (!records->hidden &&
		unlikely(records->redo < redo || records->redo == DW_NOT_NOTED))
		DoubleWriteRememberFirstRecord(records, redo, rebuilds);
}

/*
 * Note that a shared buffer is marked dirty by a process that holds its
 * content lock exclusively.
 */
static inline void
DoubleWriteRememberDirtied(Buffer buffer)
{
	DoubleWriteRecordsOf(buffer)->unreported = true;
}

/*
 * Note that the heap has set a hint in a page, and is going to mark its
 * buffer dirty, and perhaps to insert a record of that.  The caller has a
 * pin, and at least a share lock on the contents.
 */
static inline void
DoubleWriteRememberHeapHint(Buffer buffer)
{
	/* MarkBufferDirtyHint() complains of an invalid buffer */
	if (buffer > 0 && !DoubleWriteRecordsOf(buffer)->only_hints &&
		!DoubleWriteRecordsOf(buffer)->unreported)
		DoubleWriteRememberFirstHint(buffer);
}

#endif							/* DOUBLEWRITE_H */
