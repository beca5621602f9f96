/*-------------------------------------------------------------------------
 *
 * instantrecovery_internal.h
 *	  What the files of instant recovery share.
 *
 * instantrecovery.c	pages and their chains, in shared memory; waiting for a page
 * instantanalysis.c	the startup process: which records concern which pages
 * instantspill.c		chains for which there is no room in memory
 * instantwal.c			records are read again
 * instantredo.c		redo of single pages, and the workers that do it
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/access/instantrecovery_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef INSTANTRECOVERY_INTERNAL_H
#define INSTANTRECOVERY_INTERNAL_H

#include "access/instantrecovery.h"
#include "datatype/timestamp.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"

/* Pages asked for that no worker has taken; more have to ask again */
#define INSTANT_DEMANDS			1024

/* A process that waits for a page waits at one of these */
#define INSTANT_PAGE_CVS		64

/* No page, no record: end of a list */
#define INSTANT_NONE			PG_UINT32_MAX

/* Whether a page has got a place among "demands" */
typedef enum InstantDemand
{
	INSTANT_UNDEMANDED,
	INSTANT_DEMANDED,
	INSTANT_DEMANDED_IN_RANGE,	/* together with its neighbors */
} InstantDemand;

typedef enum InstantPageState
{
	INSTANT_PENDING,
	INSTANT_REDOING,
	INSTANT_DONE,
	INSTANT_FAILED,				/* cannot be redone (I9); may be tried again */
} InstantPageState;

/*
 * A page with records to be applied.  Written by the startup process during
 * analysis.  While workers redo pages only "state" changes, and what the process
 * that has taken the page to REDOING writes: the place that redo has reached in
 * the chain, "rebuilt" and "sqlerrcode"; and "demanded" by a process that demands it.
 */
typedef struct InstantPage
{
	RelFileLocator rlocator;
	BlockNumber blkno;
	uint32		next_in_bucket;
	uint32		next_in_fork;	/* in analysis: see InstantFork */
	uint32		first;			/* record of its chain */
	uint32		last;			/* in analysis */
	uint32		spilled;		/* place of records before these, or 0: see
								 * instantspill.c */
	uint32		applied;		/* distance of the record applied last */
	uint32		paused_at;		/* redo has been put off: records before this
								 * one have been applied */
	int			sqlerrcode;		/* with which it has failed */
	pg_atomic_uint32 state;		/* InstantPageState */
	uint8		forknum;
	bool		rebuilt:1;		/* the first record does without the old page */
	bool		judged:1;		/* in analysis: whether WAL has images of it */
	uint8		demanded;		/* InstantDemand */
	uint8		turn;			/* looks at demands in which redo goes on */
} InstantPage;

/*
 * How far recovery has come.  The startup process makes all steps except the last,
 * which is made by the process that redoes the last page.
 *
 *	 ANALYSIS <--> ROUND
 *		 |
 *	 ANALYZED --> OPEN --> ENDED
 *
 * If the startup process exits before OPEN, that is the end, too.
 */
typedef enum InstantPhase
{
	INSTANT_PHASE_ANALYSIS,		/* chains become longer; nothing is redone */
	INSTANT_PHASE_ROUND,		/* members redo all pages before opening */
	INSTANT_PHASE_ANALYZED,		/* members wait for the opening */
	INSTANT_PHASE_OPEN,			/* clients get in, members redo pages */
	INSTANT_PHASE_ENDED,		/* workers go */
} InstantPhase;

/* A record of a chain */
typedef struct InstantRecord
{
	uint32		distance;		/* of its start from "base", in MAXALIGNs */
	uint32		next;
} InstantRecord;

typedef struct InstantCtlData
{
	/*
	 * See InstantRecoveryPending.  Each lookup of a buffer reads it, so it
	 * has a cache line of its own: the next ones are written for each page
	 * that is redone.
	 */
	pg_atomic_uint32 pending;
	char		pending_pad[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint32)];

	/*
	 * Written by the startup process during analysis, when no other process
	 * is interested, and constant while workers redo pages.
	 */
	TimeLineID	tli;			/* of the files that have all records */
	XLogRecPtr	base;			/* where redo begins */
	XLogRecPtr	images_since;	/* redo pointer that has been passed */
	uint32		npages;
	uint32		nrecords;		/* in memory */
	uint64		nspilled;		/* and written, since the last round */
	uint32		spill_end;		/* see instantspill.c */
	TimestampTz opened_at;
	bool		startup_retries;	/* pages that workers fail to redo, before
									 * clients get in */

	/* WAL that is kept: see instantwal.c */
	XLogRecPtr	chunks_from;
	uint32		nchunks;
	pg_atomic_uint32 *chunk_states;
	char	   *chunks;

	pg_atomic_uint32 phase;		/* InstantPhase; changed under "mutex" */
	pg_atomic_uint32 next;		/* page, in order, not tried yet */
	pg_atomic_uint32 announced; /* page, in order, not prefetched yet */
	pg_atomic_uint32 ahead;		/* so many beyond "next" may be */
	pg_atomic_uint64 catalog_read_at;	/* by a session, for the last time */
	pg_atomic_uint32 left;		/* pages that are not done */
	pg_atomic_uint32 failed;	/* of those, pages that cannot be redone */
	pg_atomic_uint32 retried;	/* a worker stays to try these again */
	pg_atomic_uint32 on_demand; /* pages redone because they were demanded */

	/* pages redone by each worker, and at the end by the startup process */
	pg_atomic_uint32 redone[INSTANT_RECOVERY_MAX_WORKERS + 1];

	slock_t		mutex;			/* for all that follows except the last three */
	uint32		members;		/* processes that see to it that pages are
								 * redone: workers that have joined, and the
								 * startup process until clients have got in */
	uint32		demand_head;	/* positions only rise */
	uint32		demand_tail;
	uint32		demands[INSTANT_DEMANDS];	/* pages */

	ConditionVariable page_cvs[INSTANT_PAGE_CVS];
	ConditionVariable work_cv;	/* there is something for workers to do */
	ConditionVariable all_cv;	/* "pending" is zero, or "members" has changed */
} InstantCtlData;

extern InstantCtlData *InstantCtl;
extern InstantPage *InstantPages;

/* This process applies chains, and need not ask. */
extern bool instant_redoes_chains;

/* instantrecovery.c */
extern InstantPhase instant_phase(void);
extern void instant_set_phase(InstantPhase phase);
extern uint32 instant_members(void);
extern bool instant_join(void);
extern void instant_leave(void);
extern bool instant_is_member(void);
extern InstantPage *instant_find_page(const RelFileLocator *rlocator,
									  ForkNumber forknum, BlockNumber blkno);
extern void instant_enter_page(uint32 i);
extern bool instant_take_page(uint32 i, InstantPageState from,
							  InstantPageState to);
extern InstantRecord *instant_record(uint32 i);
extern XLogRecPtr instant_lsn(uint32 distance);
extern bool instant_has_room(int pages);
extern char *instant_free_memory(Size *size);
extern void instant_forget_all(void);
extern void instant_startup_step(const char *what, uint32 pages);
extern void instant_sort_pages(void);
extern void instant_page_done(uint32 i);
extern void instant_give_back(void);
extern void instant_page_failed(uint32 i);
extern bool instant_demand(uint32 i);
extern uint32 instant_demands(void);
extern int	instant_errdetail_redone(void);

/* instantspill.c */
extern bool instant_spill(void);
extern const uint32 *instant_load_runs(const InstantPage *page, uint32 *length);
extern void instant_close_spill(void);
extern void instant_remove_spill(void);

/* instantwal.c */
extern void instant_prepare_wal(void);
extern XLogReaderState *instant_read_record(XLogRecPtr lsn);
extern void instant_close_reader(void);

/* instantredo.c */
extern void instant_announce_page(const InstantPage *page);
extern uint32 instant_max_ahead(void);
extern void instant_reset_ahead(bool sessions);
extern uint32 instant_take(void);
extern bool instant_redo_page(uint32 i);

#endif							/* INSTANTRECOVERY_INTERNAL_H */
