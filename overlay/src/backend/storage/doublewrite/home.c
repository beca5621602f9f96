/*-------------------------------------------------------------------------
 *
 * home.c
 *	  Writing pages home.
 *
 * A batch whose copies are durable in the log is divided into runs: neighbours in a
 * file that make one write.  The flusher sends them home, which ends the batch:
 * it puts them into a queue in shared memory.  So the next batch goes to the
 * log while the pages of this one are on their way.
 *
 *	  sent --claim--> being written --release--> slots free
 *	   |                |
 *	   '-- recall --.   '-- restage, failed --.
 *	                v                         v
 *	             back in the stage, to be in a later batch
 *
 * Any process may claim the first run of the queue (dw_carry_run()): the background
 * writer, which is woken up for it; the checkpointer; a backend that finds the stage
 * full.  It holds no lock of the engine meanwhile except that of its entry in
 * the table of writers, where the run stands.  A run is in the queue or in the table, and
 * whatever is in neither is home or in the stage.
 *
 * The write returns an error instead of throwing it.  Pages that could not be
 * written return to the stage with the errno, and the process that needs them at home
 * reports it: a checkpoint, a drain of their relation, a process that wants to stage too
 * many more of the same file (dw_refuse_failed()).  The background writer tries them
 * again each second. (R11)  Little can throw an error nevertheless (no memory for an
 * open file), or end the process: then it returns its pages to the stage, as ones that may
 * be torn, and leaves the table before it reports the error.  What else it has to say while it
 * stands there does not go to its client, which may not read (DoubleWriteIsRemoving()).
 *
 * A write may not come back: its file system is frozen, its server or device gone.  That
 * blocks the process that makes it.  Other processes leave runs of a tablespace alone to which
 * writes are under way and none has come back for a second (dw_is_stalled()): such runs return
 * to the stage as failed, with DW_STALLED in place of an errno.  A device on which each write takes long is not taken for one that is gone,
 * as some write comes back now and then.  Tablespaces are told apart by a remainder of their
 * number: if two have the same one, and one freezes while the other is busy, that does not
 * show.  Before it shows, so many processes may write to a tablespace as could write to
 * others still: half of the table, for the first one (dw_is_crowded()).
 *
 * Pages that have failed by stalls only are as they were at home ("touched" is not set), so
 * they keep nothing in the log.  When a write to the tablespace comes back they can be in the
 * next batch at once (dw_came_back()).  Processes that wait for a second, and nothing
 * happens, let what stands in the table for so long count as failed as well
 * (dw_mark_late_writes()): it holds slots of the stage that others cannot get, and more pages
 * of its relations or tablespace are refused as with any other failure.  A process that needs
 * such pages at home waits, with no lock held, until a write comes back that was taken for
 * stalled ("thawed"), or for a second before it tries again.
 *
 * The argument, rule by rule:
 *
 * R2, A3	A run is sent by the flusher when its batch is durable, and what was chosen
 *			stays true: a process that changes that (a sync cycle, a checkpoint, arming,
 *			disarming) holds the flush lock, so that no run is sent, has recalled what
 *			was in the queue, and waits for what is being written, except to unlogged
 *			relations, which rely on nothing (dw_lock_flush_idle()).  Recalled pages are
 *			chosen for anew.  If a write has been under way for long, all wait without
 *			the lock, and call nothing back; a sync cycle does so for some seconds, then
 *			frees nothing (dw_write_is_lost()).
 * R4		A slot in the queue or the table is in state BATCH: a newer version of its
 *			page is behind it, and in no batch.
 * R7		The writer shows the run in the table, then looks whether a page is
 *			discarded.  The remover marks the page, then looks into the table.  So the
 *			page is not written, or the remover waits for the write
 *			(dw_await_writes_of()).
 * A2, A3	Atomic writes are made by the flusher, with the flush lock held and no other
 *			home write beside them: what the kernel does to its cache for them is
 *			then no concern of others.  A write that was not made sends its pages to
 *			the log with the next batch.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/home.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "common/relpath.h"
#include "pgstat.h"
#include "postmaster/bgwriter.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"

/* Repeated failures are reported once in so long, by each process, in nanoseconds */
#define DW_REPORT_NSEC		INT64CONST(10000000000)

/* How often we look whether an atomic write has ended, which nothing announces */
#define DW_ATOMIC_WAIT_USEC	1000

/* Attempts to find no write under way without waiting for slow ones with the flush lock */
#define DW_IDLE_ATTEMPTS	4

/* ---------------------------------------------------------------------
 * Runs
 * ---------------------------------------------------------------------
 */

static bool
dw_is_neighbour(const BufferTag *a, const BufferTag *b, int distance)
{
	return a->spcOid == b->spcOid && a->dbOid == b->dbOid &&
		a->relNumber == b->relNumber && a->forkNum == b->forkNum &&
		a->blockNum + distance == b->blockNum;
}

/*
 * Length of the run that starts at slots[0].  Ends at segment files, where a page
 * has been discarded, and where one is to be written in another way.
 */
int
dw_run_length(const int *slots, int nslots)
{
	const BufferTag *first = &DWSlots[slots[0]].tag;
	int			limit = Min(nslots, Max(1, io_combine_limit));
	int			len = 1;

	Assert(nslots > 0);

	limit = Min(limit, RELSEG_SIZE - (int) (first->blockNum % RELSEG_SIZE));
	limit = Min(limit, MAX_IO_COMBINE_LIMIT);
	while (len < limit &&
		   dw_is_neighbour(first, &DWSlots[slots[len]].tag, len) &&
		   !DWSlots[slots[len]].discarded &&
		   DWSlots[slots[len]].atomic == DWSlots[slots[0]].atomic)
		len++;
	return len;
}

/* ---------------------------------------------------------------------
 * The queue, and the table of writers
 * ---------------------------------------------------------------------
 */

/*
 * Return whether as many processes are writing to a tablespace as could write to
 * others.  More may not join them: no tablespaces, however many freeze at once, get all
 * of the table.
 */
static bool
dw_is_crowded(Oid spcOid)
{
	DWHomeLoad *load = DWHomeLoadOf(spcOid);
	uint32		nwriting = ((volatile DWHomeState *) &DWCtl->home)->nwriting;

	return pg_atomic_read_u32(&load->nwriting) + nwriting >= DW_MAX_WRITERS;
}

/* Runs of one that is known to be stalled can be claimed, to be returned to the stage */
static bool
dw_first_is_crowded(void)
{
	uint64		first = ((volatile DWHomeState *) &DWCtl->home)->claimed;
	Oid			spcOid = DWSlots[DWRuns[first % DWCtl->stage.nslots]].tag.spcOid;

	return dw_is_crowded(spcOid) && !dw_is_stalled(spcOid, false);
}

/* Return whether there is a run that this process could claim.  Without a lock. */
bool
dw_runs_to_claim(void)
{
	volatile DWHomeState *home = &DWCtl->home;

	return home->claimed < home->sent && !dw_first_is_crowded();
}

static bool
dw_none_is_written(void)
{
	return ((volatile DWHomeState *) &DWCtl->home)->nwriting == 0;
}

/*
 * A write to this tablespace is going to begin.
 */
void
dw_begin_write(Oid spcOid)
{
	DWHomeLoad *load = DWHomeLoadOf(spcOid);

	/* in this order, or the tablespace would seem to hang */
	if (pg_atomic_read_u32(&load->nwriting) == 0)
		pg_atomic_write_u64(&load->ended, dw_nanoseconds());
	pg_atomic_fetch_add_u32(&load->nwriting, 1);
}

/*
 * One has ended.
 */
void
dw_end_write(Oid spcOid)
{
	pg_atomic_fetch_sub_u32(&DWHomeLoadOf(spcOid)->nwriting, 1);
	pg_write_barrier();
}

/*
 * Take the first run off the queue.  Returns its first slot, or -1.  If it is to be written,
 * that counts from now on.
 */
static int
dw_take_run(bool to_write)
{
	int			slotno = -1;

	DWLockMutex();
	if (DWCtl->home.claimed < DWCtl->home.sent && !(to_write && dw_first_is_crowded()))
	{
		slotno = DWRuns[DWCtl->home.claimed++ % DWCtl->stage.nslots];
		DWCtl->home.nwriting += to_write;
		if (to_write)
		{
			pg_atomic_fetch_add_u32(&DWCtl->home.nclaimed, 1);
			dw_begin_write(DWSlots[slotno].tag.spcOid);
		}
	}
	DWUnlockMutex();
	return slotno;
}

/* Get an entry of the table that is not in use, with its lock, or NULL */
static DWWriter *
dw_enter_table(void)
{
	for (int i = 0; i < DW_MAX_WRITERS; i++)
	{
		DWWriter   *writer = DWWriterAt((MyProcNumber + i) % DW_MAX_WRITERS);

		if (writer->npages > 0 || !LWLockConditionalAcquire(&writer->lock, LW_EXCLUSIVE))
			continue;
		if (writer->npages == 0)
			return writer;
		LWLockRelease(&writer->lock);
	}
	return NULL;
}

/* The entry of this process; see dw_own_writer() */
static DWWriter *dw_writer = NULL;

/*
 * What this process writes home, or NULL.
 */
DWWriter *
dw_own_writer(void)
{
	return dw_writer != NULL && LWLockHeldByMe(&dw_writer->lock) ? dw_writer : NULL;
}

/* Show what this process is going to write; the rest of the entry is there */
static void
dw_show_in_table(DWWriter *writer, const BufferTag *tag, bool permanent, int npages)
{
	writer->tag = *tag;
	writer->permanent = permanent;
	pg_atomic_write_u64(&writer->since, dw_nanoseconds());
	pg_write_barrier();
	writer->npages = npages;
	/* a full barrier: then we look at "discarded" (R7) */
	pg_atomic_fetch_sub_u32(&DWCtl->home.nclaimed, 1);
	dw_writer = writer;
}

/*
 * Claim the first run of the queue for this process, if there is one, and show in
 * the table what it is going to write.
 */
static DWWriter *
dw_claim_run(void)
{
	DWWriter   *writer;
	int			slotno;
	int			n = 0;

	if (!dw_runs_to_claim() || (writer = dw_enter_table()) == NULL)
		return NULL;
	slotno = dw_take_run(true);
	if (slotno < 0)
	{
		LWLockRelease(&writer->lock);
		return NULL;
	}

	INJECTION_POINT("doublewrite-run-claimed", NULL);

	/* nothing in here may fail */
	for (; slotno >= 0; slotno = DWSlots[slotno].run_next)
		writer->slots[n++] = slotno;
	writer->ndone = 0;
	dw_show_in_table(writer, &DWSlots[writer->slots[0]].tag,
					 DWSlots[writer->slots[0]].permanent, n);
	return writer;
}

/*
 * Enter the table for a page that is not in the stage.  None of the slots of the entry is
 * in use then.
 */
static DWWriter *
dw_claim_page(const BufferTag *tag, bool permanent)
{
	DWWriter   *writer;

	if (dw_is_crowded(tag->spcOid) || (writer = dw_enter_table()) == NULL)
		return NULL;
	DWLockMutex();
	DWCtl->home.nwriting++;
	pg_atomic_fetch_add_u32(&DWCtl->home.nclaimed, 1);
	dw_begin_write(tag->spcOid);
	DWUnlockMutex();
	writer->ndone = 1;
	dw_show_in_table(writer, tag, permanent, 1);
	return writer;
}

/*
 * All pages of the run are home, or in the stage.  A process that exits has lost the lock
 * by now; as long as there are pages in the entry, no other takes it.
 */
static void
dw_leave_table(DWWriter *writer)
{
	Assert(writer->ndone == writer->npages);

	dw_end_write(writer->tag.spcOid);
	writer->npages = 0;
	if (LWLockHeldByMe(&writer->lock))
		LWLockRelease(&writer->lock);
	DWLockMutex();
	Assert(DWCtl->home.nwriting > 0);
	DWCtl->home.nwriting--;
	DWUnlockMutex();
	ConditionVariableBroadcast(&DWCtl->home.ended);
}

/*
 * Return whether what stands in this entry has been written for so long.
 */
static bool
dw_is_older(DWWriter *writer, uint64 nsec)
{
	if (writer->npages == 0)
		return false;
	pg_read_barrier();			/* the time was there before */
	return dw_age(&writer->since) >= nsec;
}

/*
 * Return whether a run with pages of the set is being written, and has been for so long.
 * "No" can be relied on, and stays true, if the flush lock is held and the queue is empty.
 */
static bool
dw_is_written(const DWPageSet *pages, uint64 nsec)
{
	/* what has been claimed may be in the set; later it is in the table */
	if (nsec == 0 && pg_atomic_read_membarrier_u32(&DWCtl->home.nclaimed) > 0)
		return true;

	for (int i = 0; i < DW_MAX_WRITERS && !dw_none_is_written(); i++)
	{
		DWWriter   *writer = DWWriterAt(i);

		if (writer->npages == 0)
			continue;
		pg_read_barrier();		/* the tag was there before */
		if (DWSlotInSet(pages, writer) && dw_is_older(writer, nsec))
			return true;
	}
	pg_read_barrier();			/* a write that failed has been noted before */
	return false;
}

/*
 * Return whether a run with pages of the set is on its way home: in the queue, where any
 * counts, or being written.  With the flush lock held, "no" stays true.
 */
bool
dw_homes_under_way(const DWPageSet *pages)
{
	bool		queued;

	DWLockMutex();
	queued = DWCtl->home.claimed < DWCtl->home.sent;
	DWUnlockMutex();
	return queued || dw_is_written(pages, 0);
}

/*
 * Return whether there is a tablespace to which no write has come back for so long,
 * though one is under way.
 */
static bool
dw_any_tablespace_hangs(uint64 nsec)
{
	for (int i = 0; i < DW_HOME_LOADS; i++)
	{
		DWHomeLoad *load = &DWCtl->home.loads[i];

		if (pg_atomic_read_u32(&load->nwriting) > 0 && dw_age(&load->ended) >= nsec)
			return true;
	}
	return false;
}

/*
 * Return whether there is a write that no process should rely on to come back, and that may
 * rely on the log.  Those of copies are not in the table of writers.
 */
bool
dw_write_is_lost(void)
{
	return dw_is_written(&DWPermanentPages, DW_LOST_NSEC) ||
		(dw_copies_left() > 0 && dw_any_tablespace_hangs(DW_LOST_NSEC));
}

/*
 * A write to the tablespace has come back.  If others have, or, if it is late, could have
 * taken it for stalled, pages that wait for that can go.
 */
void
dw_came_back(Oid spcOid, bool late)
{
	pg_atomic_write_u64(&DWHomeLoadOf(spcOid)->ended, dw_nanoseconds());
	if (dw_let_stalled_go(spcOid) || late)
	{
		dw_wake_flusher();
		ConditionVariableBroadcast(&DWCtl->home.thawed);
	}
}

/* ---------------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------------
 */

/* Pages of the run that have gone home, and the processes that staged them */
static BufferTag dw_hint_tags[MAX_IO_COMBINE_LIMIT];
static DWStager dw_hint_stagers[MAX_IO_COMBINE_LIMIT];
static int	dw_nhints = 0;

/*
 * Tell the kernel to start writing pages that have gone home, once there are
 * as many of them as the setting allows for the kind of process that staged
 * them.  These may be of other files, whose device may hang: so not before the slots are
 * free, and the entry in the table.  Which process writes it does not matter: with backend_flush_after = 0, which is
 * the default, pages that client backends evict are left to the kernel, for
 * they may well be read and evicted again before it writes them.
 *
 * Early writing keeps the latency of others even.  While redo runs before
 * clients can connect, it would only take device time away from reads.  The
 * checkpoint that follows is another matter.
 */
static void
dw_schedule_writeback(void)
{
	static WritebackContext contexts[DW_STAGERS];
	static bool initialized = false;
	int			nhints = dw_nhints;

	Assert(dw_own_writer() == NULL);

	if (!initialized)
	{
		WritebackContextInit(&contexts[DW_STAGER_BACKEND], &backend_flush_after);
		WritebackContextInit(&contexts[DW_STAGER_BGWRITER], &bgwriter_flush_after);
		WritebackContextInit(&contexts[DW_STAGER_CHECKPOINTER], &checkpoint_flush_after);
		initialized = true;
	}

	/* an error must not leave them to the next run, which lacks room for both */
	dw_nhints = 0;
	for (int i = 0; i < nhints; i++)
	{
		if (dw_hint_stagers[i] == DW_STAGER_CHECKPOINTER || !RecoveryInProgress() ||
			HotStandbyActive())
			ScheduleBufferTagForWriteback(&contexts[dw_hint_stagers[i]],
										  IOCONTEXT_NORMAL, &dw_hint_tags[i]);
	}
}

/*
 * Report that pages could not be written home.
 */
static void
dw_report_failure(int elevel, const BufferTag *tag, int npages, int error)
{
	RelPathStr	path = relpathperm(BufTagGetRelFileLocator(tag), BufTagGetForkNum(tag));

	errno = error;
	ereport(elevel,
			(errcode_for_file_access(),
			 errmsg("could not write blocks %u..%u in file \"%s\": %m",
					tag->blockNum, tag->blockNum + npages - 1, path.str),
			 error == ENOSPC ? errhint("Check free disk space.") : 0));
}

/*
 * A home write has been made.
 */
void
dw_count_run(const int *slots, int npages, instr_time start)
{
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITE,
							start, 1, npages * BLCKSZ);
	DWCount(home_pages, npages);
	DWCount(home_writes, 1);

	/* direct writes have begun already */
	for (int i = 0; i < npages && !DWSlots[slots[0]].atomic; i++)
	{
		Assert(dw_nhints < MAX_IO_COMBINE_LIMIT);
		dw_hint_tags[dw_nhints] = DWSlots[slots[i]].tag;
		dw_hint_stagers[dw_nhints++] = DWSlots[slots[i]].stager;
	}
}

/*
 * Write neighbouring pages home that the log protects, or that need no protection.
 * md.c also registers the sync request.  Returns 0, or the errno.
 */
static int
dw_write_run(const int *slots, int npages)
{
	const BufferTag *tag = &DWSlots[slots[0]].tag;
	const void *pages[MAX_IO_COMBINE_LIMIT];
	instr_time	start = pgstat_prepare_io_time(track_io_timing);
	SMgrRelation reln;
	int			error = 0;

	Assert(npages >= 1 && npages <= MAX_IO_COMBINE_LIMIT);

	for (int i = 0; i < npages; i++)
	{
		Assert(!DWSlots[slots[i]].atomic);	/* A3 */
		Assert(DWSlots[slots[i]].covered || !DWCtl->log.armed); /* R2 */
		pages[i] = DWSlotPage(slots[i]);
	}

	INJECTION_POINT("doublewrite-home-write", &error);
	if (error != 0)
		return error;
	reln = smgropen(BufTagGetRelFileLocator(tag), INVALID_PROC_NUMBER);
	error = smgrtrywritev(reln, BufTagGetForkNum(tag), tag->blockNum, pages, npages);
	if (error == 0)
		dw_count_run(slots, npages, start);
	return error;
}

/*
 * Pages of a run have been written, or not, as the errno says.
 */
void
dw_settle_run(const int *slots, int npages, int error)
{
	if (error == 0)
		dw_release_slots(slots, npages);
	for (int i = 0; i < npages && error != 0; i++)
		dw_restage_slot(slots[i], error, false);
}

/*
 * Write home what this process has claimed, except pages that have been discarded
 * meanwhile. (R7)  Returns the errno of the first write that has failed, and what it
 * was to write, unless that has failed with it before, and another was returned lately.
 */
static int
dw_write_claimed(DWWriter *writer, BufferTag *failed, int *nfailed)
{
	static uint64 reported = 0;
	int			result = 0;

	while (writer->ndone < writer->npages)
	{
		const int  *slots = writer->slots + writer->ndone;
		int			left = writer->npages - writer->ndone;
		BufferTag	tag = DWSlots[slots[0]].tag;
		bool		wanted = !DWSlots[slots[0]].discarded;
		int			before = DWSlots[slots[0]].failed ? DWSlots[slots[0]].error : 0;
		int			error = 0;
		int			n = 1;

		if (wanted)
		{
			while (n < left && !DWSlots[slots[n]].discarded)
				n++;
			error = dw_is_stalled(tag.spcOid, true) ? DW_STALLED : dw_write_run(slots, n);
		}
		dw_settle_run(slots, n, error);
		writer->ndone += n;
		if (wanted && error != DW_STALLED)
		{
			bool		late = dw_is_older(writer, DW_STALLED_NSEC);

			pg_atomic_write_u64(&writer->since, dw_nanoseconds());
			dw_came_back(tag.spcOid, late);
		}
		if (error > 0 && result == 0 &&
			(error != before || dw_nanoseconds() - reported >= DW_REPORT_NSEC))
		{
			reported = dw_nanoseconds();
			result = error;
			*failed = tag;
			*nfailed = n;
		}
	}
	return result;
}

/*
 * A page that is not in the stage may be torn at home, as its write past the stage has
 * failed.  It is dirty in its buffer, so the next checkpoint that begins writes it. (R9a)
 */
static void
dw_remember_torn_home(const DWWriter *writer)
{
	XLogRecPtr	lsn = GetXLogInsertRecPtr();

	if (!writer->permanent)
		return;					/* no tool needs to read it whole */
	DWLockMutex();
	DWCtl->home.torn_until = Max(DWCtl->home.torn_until, lsn);
	DWUnlockMutex();
}

/*
 * A checkpoint with this redo pointer has been completed.
 */
void
dw_forget_torn_home(XLogRecPtr redo)
{
	DWLockMutex();
	if (redo >= DWCtl->home.torn_until)
		DWCtl->home.torn_until = InvalidXLogRecPtr;
	DWUnlockMutex();
}

/*
 * An error, or the exit of this process, ends what it writes home: what is left of the run
 * may be half there.
 */
static void
dw_abandon_run(int code, Datum arg)
{
	DWWriter   *writer = (DWWriter *) DatumGetPointer(arg);

	if (LWLockHeldByMe(&writer->lock))
		HOLD_INTERRUPTS();		/* LWLockRelease() resumes them */
	if (writer->ndone == writer->npages)
		dw_remember_torn_home(writer);
	dw_settle_run(writer->slots + writer->ndone, writer->npages - writer->ndone, DW_TORN);
	writer->ndone = writer->npages;
	dw_nhints = 0;
	dw_leave_table(writer);
}

/*
 * Claim one run and write it home.  Returns false if there is none to be claimed.  The
 * caller holds no lock of the engine: the write may not come back.
 */
bool
dw_carry_run(void)
{
	DWWriter   *writer = dw_claim_run();
	BufferTag	failed;
	int			nfailed = 0;
	int			error;

	if (writer == NULL)
		return false;
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));
	Assert(!LWLockHeldByMe(DoubleWriteSyncLock));

	PG_ENSURE_ERROR_CLEANUP(dw_abandon_run, PointerGetDatum(writer));
	{
		error = dw_write_claimed(writer, &failed, &nfailed);
	}
	PG_END_ENSURE_ERROR_CLEANUP(dw_abandon_run, PointerGetDatum(writer));
	dw_leave_table(writer);
	dw_schedule_writeback();
	INJECTION_POINT("doublewrite-home-run-written", NULL);
	if (IS_INJECTION_POINT_ATTACHED("doublewrite-home-written") &&
		!dw_homes_under_way(&DWAllPages))
		INJECTION_POINT("doublewrite-home-written", NULL);

	/* not to the client: it may not read, and this may not concern it */
	if (error != 0)
		dw_report_failure(LOG_SERVER_ONLY, &failed, nfailed, error);
	return true;
}

/*
 * Write home what is in the queue now, as far as runs can be claimed.
 */
void
dw_carry_runs(void)
{
	volatile DWHomeState *home = &DWCtl->home;
	uint64		sent = home->sent;

	while (home->claimed < sent && dw_carry_run())
		CHECK_FOR_INTERRUPTS();
}

/*
 * Write the page of a buffer home past the stage, as a server without one would.  The
 * caller holds the buffer's I/O, and finds no room: other pages cannot be written, or
 * their writes do not come back.  Without a log to pass through, that need not concern
 * this one.  Throws an error if it cannot be written.  Returns false if it has to pass
 * through the stage: the log is in use, or may be by the next batch of a recovery (R2);
 * an older version is on its way (R4); or too many processes write there.
 */
bool
dw_write_past_stage(BufferDesc *buf, XLogRecPtr lsn, bool permanent)
{
	DWWriter   *writer = NULL;
	BufferTag	tag = buf->tag;
	instr_time	start;
	bool		late;
	int			error = 0;

	if (RecoveryInProgress() || DWCtl->log.armed)
		return false;
	if (permanent)
		XLogFlush(lsn);			/* R1 */

	/*
	 * What arms the log holds this lock, and finds us in the table (R10).
	 * What reads the file for a tool holds it shared (R9a).
	 */
	dw_lock_flush(LW_EXCLUSIVE);
	if (!DWCtl->log.armed && !dw_is_staged(&tag))
		writer = dw_claim_page(&tag, permanent);
	LWLockRelease(DoubleWriteFlushLock);
	if (writer == NULL)
		return false;

	start = pgstat_prepare_io_time(track_io_timing);
	PG_ENSURE_ERROR_CLEANUP(dw_abandon_run, PointerGetDatum(writer));
	{
		Block		block = BufferGetBlock(BufferDescriptorGetBuffer(buf));
		const void *page = PageSetChecksumCopy((Page) block, tag.blockNum);

		INJECTION_POINT("doublewrite-home-write", &error);
		if (error == 0)
			error = smgrtrywritev(smgropen(BufTagGetRelFileLocator(&tag), INVALID_PROC_NUMBER),
								  BufTagGetForkNum(&tag), tag.blockNum, &page, 1);
		if (error != 0)
			dw_remember_torn_home(writer);
	}
	PG_END_ENSURE_ERROR_CLEANUP(dw_abandon_run, PointerGetDatum(writer));
	late = dw_is_older(writer, DW_STALLED_NSEC);
	pg_atomic_write_u64(&writer->since, dw_nanoseconds());
	dw_came_back(tag.spcOid, late);
	dw_leave_table(writer);
	if (error != 0)
		dw_report_failure(ERROR, &tag, 1, error);

	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITE, start, 1, BLCKSZ);
	DWCount(home_pages, 1);
	DWCount(home_writes, 1);
	return true;
}

/* ---------------------------------------------------------------------
 * Waiting for home writes
 * ---------------------------------------------------------------------
 */

/*
 * Nothing has happened for a while: let pages count as failed whose write may not come
 * back, lest they take all of the stage.
 */
void
dw_mark_late_writes(void)
{
	for (int i = 0; i < DW_MAX_WRITERS; i++)
	{
		DWWriter   *writer = DWWriterAt(i);

		for (int k = writer->ndone;
			 k < writer->npages && dw_is_older(writer, DW_STALLED_NSEC); k++)
			dw_mark_stalled(writer->slots[k]);
	}
}

/*
 * Wait until a run that is being written ends, for a second at most.
 */
void
dw_await_a_run(void)
{
	if (!dw_wait_on(&DWCtl->home.ended, dw_none_is_written,
					WAIT_EVENT_DOUBLE_WRITE_HOME))
		dw_mark_late_writes();
}

static bool
dw_none_is_stalled(void)
{
	return !dw_is_written(&DWAllPages, DW_STALLED_NSEC) &&
		!(dw_copies_left() > 0 && dw_any_tablespace_hangs(DW_STALLED_NSEC));
}

/*
 * Wait until a write comes back that others have taken for stalled, for a second at most.
 */
void
dw_await_thaw(void)
{
	if (!dw_wait_on(&DWCtl->home.thawed, dw_none_is_stalled,
					WAIT_EVENT_DOUBLE_WRITE_HOME))
		dw_mark_late_writes();
}

/*
 * Return what is in the queue to the stage.  The flush lock is held in any mode, so
 * that nothing comes after it.
 */
static void
dw_recall_runs(void)
{
	int			slotno;

	Assert(LWLockHeldByMe(DoubleWriteFlushLock));

	while ((slotno = dw_take_run(false)) >= 0)
	{
		while (slotno >= 0)
		{
			int			next = DWSlots[slotno].run_next;

			dw_restage_slot(slotno, 0, true);
			slotno = next;
		}
	}
	dw_tell_room(1);			/* there may be a batch for one of them */
}

/*
 * See to it that no page of the set is being written home.  The caller holds the flush lock
 * in any mode, and can rely on it until it releases that.  Returns false if some writes may
 * not come back; if that shows at once, what is in the queue stays there.  With patience, it
 * is so only of those that seem to be lost.
 */
bool
dw_await_home_writes(const DWPageSet *pages, bool patient)
{
	uint64		limit = patient ? DW_LOST_NSEC : DW_STALLED_NSEC;

	if (!dw_is_written(pages, limit))
		dw_recall_runs();
	while (dw_is_written(pages, 0) && !dw_is_written(pages, limit))
		dw_await_a_run();
	pg_memory_barrier();
	return !dw_homes_under_way(pages);
}

/*
 * Take the flush lock, with no page of the set being written home.  Runs that wait we write
 * before, without the lock, so that processes which want that again and again don't
 * keep pages from going home.  A sync cycle does not, as it holds a lock, and a write may
 * not come back; for it, false is returned if one seems to be lost, after a second, so
 * that it does no harm to come here again and again.
 *
 * Where each write takes longer than a second, there may be no moment without one.  So
 * after some attempts we wait for them with the lock.  A write that does not come back has
 * been under way for so long then that no process does.
 */
bool
dw_lock_flush_idle(LWLockMode mode, const DWPageSet *pages, bool for_cycle)
{
	Assert(for_cycle == LWLockHeldByMe(DoubleWriteSyncLock));

	for (int attempt = 1;; attempt++)
	{
		bool		lost = for_cycle && dw_write_is_lost();

		/* the process that writes may want room in the checkpointer's queue */
		AbsorbSyncRequests();
		if (!for_cycle)
			dw_carry_runs();
		if (lost)
			dw_await_thaw();
		dw_lock_flush(mode);
		if (dw_await_home_writes(pages, attempt > DW_IDLE_ATTEMPTS))
			return true;
		if (lost)
			return false;
		LWLockRelease(DoubleWriteFlushLock);
		dw_await_thaw();
	}
}

static bool
dw_is_being_written(int slotno)
{
	for (int i = 0; i < DW_MAX_WRITERS; i++)
	{
		DWWriter   *writer = DWWriterAt(i);
		int			k = writer->ndone;
		int			npages = writer->npages;

		pg_read_barrier();		/* the slots were there before */
		for (; k < npages; k++)
		{
			if (writer->slots[k] == slotno)
				return true;
		}
	}
	return false;
}

/*
 * Return whether the batch is being sent home, which begins with pages that are
 * written atomically.  Without the flush lock, that may change at any time.
 */
static bool
dw_batch_is_durable(void)
{
	return ((volatile DWBatchState *) &DWCtl->batch)->phase == DW_BATCH_DURABLE;
}

/*
 * Wait for an atomic write of this page, which has been discarded, if one may be under way.
 * The flusher passes over discarded pages once the batch is durable.  Before that it may
 * wait for the device of the log, for which a drop must not wait. (R7, R11)
 */
static void
dw_await_atomic_write(int slotno, uint64 seq)
{
	volatile DWSlot *slot = &DWSlots[slotno];

	while (slot->atomic && slot->seq == seq && DWSlotInState(&DWSlots[slotno], DW_SLOT_BATCH) &&
		   dw_batch_is_durable())
	{
		/* there is no flusher: an error has left the batch to the next one */
		if (LWLockConditionalAcquire(DoubleWriteFlushLock, LW_SHARED))
		{
			LWLockRelease(DoubleWriteFlushLock);
			return;
		}
		dw_wait_a_moment(DW_ATOMIC_WAIT_USEC, WAIT_EVENT_DOUBLE_WRITE_HOME);
	}
}

/*
 * Wait for writes of pages that have just been discarded. (R7)  Whether one is under way
 * is in the table, or the flusher makes it, if it is atomic.
 */
void
dw_await_writes_of(DWTagFilter filter, const void *arg)
{
	pg_memory_barrier();
	for (int i = 0; i < dw_slots_used(); i++)
	{
		volatile DWSlot *slot = &DWSlots[i];
		uint64		seq = slot->seq;

		if (!slot->discarded || !DWSlotInState(&DWSlots[i], DW_SLOT_BATCH) ||
			!filter(&DWSlots[i].tag, arg))
			continue;
		dw_await_atomic_write(i, seq);
		while (slot->seq == seq && DWSlotInState(&DWSlots[i], DW_SLOT_BATCH) &&
			   dw_is_being_written(i))
			dw_await_a_run();
	}
	pg_memory_barrier();
}

/*
 * Throw the error of a page in the set that could not be written home in this run or a
 * later one.  If one does not come back, or was not tried because another there does not,
 * wait a moment for that.  Returns whether we have waited.
 */
bool
dw_refuse_failed(const DWPageSet *pages, uint64 since)
{
	BufferTag	tag;
	int			error = dw_find_failure(pages, since, &tag);

	if (error > 0)
		dw_report_failure(ERROR, &tag, 1, error);
	if (error == DW_STALLED)
		dw_await_thaw();
	return error == DW_STALLED;
}
