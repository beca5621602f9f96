/*-------------------------------------------------------------------------
 *
 * home.c
 *	  Writing the pages of a batch home.
 *
 * They are sorted, and neighbours combined into one write.
 *
 * Where writes are quick, the flusher makes them, with the flush lock held.  The
 * checkpointer, who has the next pages to copy and to log, leaves them to the
 * background writer if that keeps up.
 *
 * Where writes take long, for the kernel makes writers wait, one process would be all
 * that writes, however many wait for room.  So then a batch is divided into parts.  Who
 * holds the lock of a part carries it: who has sent the batch one after the other, or,
 * if all he wanted was a free slot, until there is one; the background writer; and
 * whoever finds the stage full takes one that nobody carries, so as many processes
 * write as would without the stage.  The next batch goes to the log meanwhile, unless
 * more than half of the places are in use.  A part that has been left, also by an
 * error, is carried by the next who finds it.
 *
 * Whoever must know that no home write is under way takes the flush lock and carries
 * what is left, or waits for who does: dw_lock_flush_idle().
 *
 * Pages that nothing but atomicity protects are written by atomic.c, and never in any
 * other way: if that does not succeed, for whatever reason, they return to the stage,
 * and the next batch logs them. (A2, A3)
 *
 * A page that cannot be written home returns to the stage, and whoever needs it
 * at home gets its error: a checkpoint, a drain of its relation, or a process
 * that wants to stage too many more of the same file.  Others go on, and the
 * background writer tries it again now and then. (R11)
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
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "storage/smgr.h"
#include "utils/injection_point.h"

/* What a home write adds to the average of what they take */
#define DW_HOME_NSEC_SHARE		64

/* One that has waited for very long counts no more, so that it is forgotten soon */
#define DW_HOME_NSEC_MAX		100000000

/* Batches that the checkpointer leaves to the background writer at once */
#define DW_PLACES_FOR_BGWRITER	2

/* Writes of such a batch at most */
#define DW_RUNS_FOR_BGWRITER	32

/* More LWLocks than a process holds around a home write; see lwlock.c */
#define DW_MAX_HELD_LOCKS		200

/* Pages being written home, for the error context */
typedef struct DWRun
{
	const DWSlot *first;
	int			npages;
} DWRun;

static void
dw_write_error_callback(void *arg)
{
	DWRun	   *run = arg;

	errcontext("writing %d blocks from block %u of relation \"%s\"",
			   run->npages, run->first->tag.blockNum,
			   relpathperm(BufTagGetRelFileLocator(&run->first->tag),
						   BufTagGetForkNum(&run->first->tag)).str);
}

static int
dw_slot_cmp(const void *a, const void *b)
{
	const BufferTag *ta = &DWSlots[*(const int *) a].tag;
	const BufferTag *tb = &DWSlots[*(const int *) b].tag;

#define DW_CMP(field) \
	if (ta->field != tb->field) \
		return ta->field < tb->field ? -1 : 1
	DW_CMP(spcOid);
	DW_CMP(dbOid);
	DW_CMP(relNumber);
	DW_CMP(forkNum);
	DW_CMP(blockNum);
#undef DW_CMP
	return 0;
}

static bool
dw_is_neighbour(const BufferTag *a, const BufferTag *b, int distance)
{
	return a->spcOid == b->spcOid && a->dbOid == b->dbOid &&
		a->relNumber == b->relNumber && a->forkNum == b->forkNum &&
		a->blockNum + distance == b->blockNum;
}

/*
 * Tell the kernel to start writing a page that has gone home, once there are
 * as many of them as the setting allows for the kind of process that staged
 * it.  Who carries it does not matter: with backend_flush_after = 0, which is
 * the default, pages that client backends evict are left to the kernel, for
 * they may well be read and evicted again before it writes them.
 *
 * Early writing keeps the latency of others even.  While redo runs before
 * anybody can connect, it would only take device time away from reads.  The
 * checkpoint that follows is another matter.
 */
static void
dw_schedule_writeback(const DWSlot *slot)
{
	static WritebackContext contexts[DW_STAGERS];
	static bool initialized = false;
	BufferTag	tag = slot->tag;

	if (!initialized)
	{
		WritebackContextInit(&contexts[DW_STAGER_BACKEND], &backend_flush_after);
		WritebackContextInit(&contexts[DW_STAGER_BGWRITER], &bgwriter_flush_after);
		WritebackContextInit(&contexts[DW_STAGER_CHECKPOINTER], &checkpoint_flush_after);
		initialized = true;
	}

	if (slot->stager == DW_STAGER_CHECKPOINTER || !RecoveryInProgress() ||
		HotStandbyActive())
		ScheduleBufferTagForWriteback(&contexts[slot->stager],
									  IOCONTEXT_NORMAL, &tag);
}

/*
 * Pages that the log protects, or that need no protection, are written by md.c,
 * which also registers the sync request.
 */
static void
dw_write_plainly(const int *slots, int npages)
{
	const BufferTag *tag = &DWSlots[slots[0]].tag;
	const void *pages[MAX_IO_COMBINE_LIMIT];
	SMgrRelation reln;

	Assert(npages >= 1 && npages <= MAX_IO_COMBINE_LIMIT);

	for (int i = 0; i < npages; i++)
	{
		Assert(!DWSlots[slots[i]].atomic);	/* A3 */
		Assert(DWSlots[slots[i]].covered || !DWCtl->log.armed); /* R2 */
		pages[i] = DWSlotPage(slots[i]);
	}

	reln = smgropen(BufTagGetRelFileLocator(tag), INVALID_PROC_NUMBER);
	smgrwritev(reln, BufTagGetForkNum(tag), tag->blockNum, pages, npages, false);
}

/*
 * Keep an average of what home writes take.  One that gets lost between two
 * processes makes no difference.
 */
static void
dw_note_home_nsec(instr_time start)
{
	int64		average = pg_atomic_read_u64(&DWCtl->home_nsec);
	instr_time	taken;

	INSTR_TIME_SET_CURRENT(taken);
	INSTR_TIME_SUBTRACT(taken, start);
	average += (Min(INSTR_TIME_GET_NANOSEC(taken), DW_HOME_NSEC_MAX) - average) /
		DW_HOME_NSEC_SHARE;
	pg_atomic_write_u64(&DWCtl->home_nsec, average);
}

/*
 * Write one run of neighbouring pages home with a single call, plainly or
 * atomically.  Errors of the former are thrown, the latter says what became of it.
 */
static DWAtomicResult
dw_write_run(const int *slots, int npages)
{
	DWRun		run = {&DWSlots[slots[0]], npages};
	DWAtomicResult result = DW_ATOMIC_WRITTEN;
	ErrorContextCallback errcallback;
	instr_time	io_start;
	instr_time	start;

	Assert(DWCarriesPages());

	errcallback.callback = dw_write_error_callback;
	errcallback.arg = &run;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;

	io_start = pgstat_prepare_io_time(track_io_timing);
	INSTR_TIME_SET_CURRENT(start);
	if (run.first->atomic)
		result = dw_atomic_write(slots, npages);
	else
	{
		dw_write_plainly(slots, npages);
		dw_note_home_nsec(start);
	}
	error_context_stack = errcallback.previous;
	if (result != DW_ATOMIC_WRITTEN)
		return result;

	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITE,
							io_start, 1, npages * BLCKSZ);
	DWCount(home_pages, npages);
	DWCount(home_writes, 1);

	/* direct writes have begun already */
	for (int i = 0; i < npages && !run.first->atomic; i++)
		dw_schedule_writeback(&DWSlots[slots[i]]);
	return result;
}

/* ---------------------------------------------------------------------
 * Errors
 * ---------------------------------------------------------------------
 */

/* LWLocks that this process holds, in the order in which it has taken them */
typedef struct DWHeldLocks
{
	int			nlocks;
	LWLock	   *locks[DW_MAX_HELD_LOCKS];
} DWHeldLocks;

static void
dw_note_held_lock(LWLock *lock, LWLockMode mode, void *arg)
{
	DWHeldLocks *held = arg;

	if (held->nlocks < DW_MAX_HELD_LOCKS)
		held->locks[held->nlocks++] = lock;
}

/*
 * An error has been caught.  Put things back as they were before what has
 * failed: locks that it has left behind are released, the last one first, and
 * interrupts are held off as often as by those that remain.  (The error has
 * reset that count, and would leave it so if it went on; see dw_throw().)
 */
static void
dw_clean_up_after_error(const DWHeldLocks *before, uint32 holdoff,
						uint32 cancel_holdoff)
{
	DWHeldLocks held = {0};

	InterruptHoldoffCount = holdoff;
	QueryCancelHoldoffCount = cancel_holdoff;
	pgstat_report_wait_end();

	ForEachLWLockHeldByMe(dw_note_held_lock, &held);
	while (held.nlocks > before->nlocks)
	{
		HOLD_INTERRUPTS();		/* LWLockRelease() resumes them */
		LWLockRelease(held.locks[--held.nlocks]);
	}
}

/*
 * Throw an error that was caught before, as if it had not been.
 */
static void
dw_throw(ErrorData *edata)
{
	InterruptHoldoffCount = 0;	/* see errfinish() */
	QueryCancelHoldoffCount = 0;
	ReThrowError(edata);
}

/*
 * Report an error that was caught before and concerns nobody here.
 */
static void
dw_report(ErrorData *edata)
{
	ErrorContextCallback *context = error_context_stack;

	/* not to the client: he may not read, and others wait for our lock */
	edata->elevel = LOG_SERVER_ONLY;
	error_context_stack = NULL; /* it has its context */
	ThrowErrorData(edata);
	error_context_stack = context;
	FreeErrorData(edata);
}

/*
 * A page that was to be written atomically may be torn at home nevertheless.  The
 * batch has noted no copy for it, as there was no need of one, but the log may
 * have an older one, which is what restore would repair the page from.  So that is
 * kept until the page is home, as with any other that has failed, or, if it
 * is being removed, until that is durable. (R3)
 */
static void
dw_keep_copies(const int *slots, int npages)
{
	for (int i = 0; i < npages; i++)
	{
		uint64		copy = DWSlots[slots[i]].atomic ?
			dw_epoch_copy(&DWSlots[slots[i]].tag) : 0;

		if (copy != 0)
			dw_note_logged(slots[i], copy);
	}
}

/* Pages to be brought home, as described in shared memory: a batch or a part */
typedef struct DWDescribed
{
	int		   *slots;
	int		   *nslots;
} DWDescribed;

/*
 * The first pages of the description are dealt with, so that nobody who resumes it
 * touches them again: their slots may have other contents already.  Who finds it
 * empty must see what has become of them.
 */
static void
dw_leave_description(DWDescribed *described, int npages)
{
	int			nslots = *described->nslots - npages;

	Assert(nslots >= 0);
	memmove(described->slots, described->slots + npages, nslots * sizeof(int));
	pg_write_barrier();
	*described->nslots = nslots;
}

/*
 * Write a run home, the first one of the description, and take it off there; on
 * failure keep its pages staged and return the error.
 *
 * The error is caught so that one bad file does not hold up the pages behind
 * it. (R11)
 */
static ErrorData *
dw_try_write_run(DWDescribed *described, const int *slots, int npages)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	DWHeldLocks held = {0};
	ErrorData  *volatile edata = NULL;
	volatile DWAtomicResult result = DW_ATOMIC_NOT_WRITTEN;

	Assert(DWCarriesPages());

	ForEachLWLockHeldByMe(dw_note_held_lock, &held);

	PG_TRY();
	{
		INJECTION_POINT("doublewrite-home-write", NULL);
		result = dw_write_run(slots, npages);
	}
	PG_CATCH();
	{
		dw_atomic_end();
		dw_clean_up_after_error(&held, holdoff, cancel_holdoff);

		/* first of all, as copying the error may fail */
		dw_keep_copies(slots, npages);
		for (int i = 0; i < npages; i++)
			dw_restage_slot(slots[i], true);
		dw_leave_description(described, npages);
		INJECTION_POINT("doublewrite-home-error", NULL);
		MemoryContextSwitchTo(oldcontext);
		edata = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();

	if (edata != NULL)
		return edata;
	if (result == DW_ATOMIC_WRITTEN)
		dw_release_slots(slots, npages);
	else
	{
		/* no error for anybody, as the next batch logs them (A2) */
		if (result == DW_ATOMIC_TORN)
			dw_keep_copies(slots, npages);
		for (int i = 0; i < npages; i++)
			dw_return_slot_to_log(slots[i], result == DW_ATOMIC_TORN);
	}
	dw_leave_description(described, npages);
	return NULL;
}

/* ---------------------------------------------------------------------
 * Bringing pages home
 * ---------------------------------------------------------------------
 */

/*
 * Length of the run that starts at slots[0].  Ends at segment files, where a page
 * has been discarded, and where one is to be written in another way.
 */
static int
dw_run_length(const int *slots, int nslots)
{
	const BufferTag *first = &DWSlots[slots[0]].tag;
	bool		atomic = DWSlots[slots[0]].atomic;
	int			limit = Min(nslots, Max(1, io_combine_limit));
	int			len = 1;

	Assert(nslots > 0);

	limit = Min(limit, RELSEG_SIZE - (int) (first->blockNum % RELSEG_SIZE));
	limit = Min(limit, MAX_IO_COMBINE_LIMIT);
	while (len < limit &&
		   dw_is_neighbour(first, &DWSlots[slots[len]].tag, len) &&
		   !DWSlots[slots[len]].discarded && DWSlots[slots[len]].atomic == atomic)
		len++;
	return atomic ? dw_atomic_run_length(first, len) : len;
}

/* Of the errors met on one way home, the first one of each kind */
typedef struct DWErrors
{
	ErrorData  *mine;			/* of pages that the caller needs at home */
	ErrorData  *others;
} DWErrors;

static bool
dw_run_in_set(const int *slots, int nslots, const DWPageSet *set)
{
	for (int i = 0; i < nslots; i++)
	{
		if (DWPageInSet(set, &DWSlots[slots[i]].tag))
			return true;
	}
	return false;
}

static void
dw_write_run_home(DWDescribed *described, const int *slots, int npages,
				  const DWPageSet *mine, DWErrors *errors)
{
	bool		is_mine = dw_run_in_set(slots, npages, mine);
	ErrorData **first = is_mine ? &errors->mine : &errors->others;
	ErrorData  *e = dw_try_write_run(described, slots, npages);

	if (e != NULL && *first == NULL)
		*first = e;
	else if (e != NULL)
		FreeErrorData(e);
}

/*
 * Write the runs that begin at slots[0] and are to go home atomically, as many as
 * can be under way at once.  Returns their number; each is still to be dealt with.
 */
static int
dw_start_atomic_runs(const int *slots, int nslots, DWAtomicRun *runs)
{
	instr_time	io_start = pgstat_prepare_io_time(track_io_timing);
	int			nruns = 0;

	for (int at = 0; at < nslots && nruns < DW_ATOMIC_IN_FLIGHT; nruns++)
	{
		const DWSlot *slot = &DWSlots[slots[at]];

		if (!slot->atomic || slot->discarded)
			break;
		runs[nruns].slots = slots + at;
		runs[nruns].npages = dw_run_length(slots + at, nslots - at);
		at += runs[nruns].npages;
	}
	if (nruns < 2)
		return 0;
	nruns = dw_atomic_write_ahead(runs, nruns);

	/* calls and bytes are counted run by run */
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITE,
							io_start, 0, 0);
	return nruns;
}

/*
 * Bring pages home, which are sorted: all of them, or while they had better not be
 * divided, but one run at least.
 *
 * Restartable: pages that are done have left the description, for whoever resumes it.
 */
static void
dw_bring_home(DWDescribed described, const DWPageSet *mine, bool all, DWErrors *errors)
{
	int			slots[DW_MAX_BATCH_PAGES];
	int			nslots = *described.nslots;
	DWAtomicRun started[DW_ATOMIC_IN_FLIGHT];
	int			nstarted = 0;
	int			next = 0;

	Assert(DWCarriesPages());

	memcpy(slots, described.slots, nslots * sizeof(int));

	for (int done = 0; done < nslots && (all || done == 0 || dw_parts_wanted() == 0);)
	{
		int			run = 1;

		if (next == nstarted)
		{
			nstarted = dw_start_atomic_runs(slots + done, nslots - done, started);
			next = 0;
		}
		if (next < nstarted)
		{
			run = started[next++].npages;
			dw_write_run_home(&described, slots + done, run, mine, errors);
		}
		else if (DWSlots[slots[done]].discarded)
		{
			dw_release_slots(&slots[done], 1);	/* R7 */
			dw_leave_description(&described, 1);
		}
		else
		{
			run = dw_run_length(slots + done, nslots - done);
			dw_write_run_home(&described, slots + done, run, mine, errors);
		}
		done += run;
		INJECTION_POINT("doublewrite-home-run-written", NULL);
	}
}

/*
 * Throw the first error that concerns pages of the caller; one that does not goes to
 * the server log.
 */
static void
dw_tell_errors(DWErrors *errors)
{
	if (errors->others != NULL)
		dw_report(errors->others);
	if (errors->mine != NULL)
		dw_throw(errors->mine);
}

/* ---------------------------------------------------------------------
 * Parts
 * ---------------------------------------------------------------------
 */

/*
 * Carry a part home and release its lock, which the caller has got.  He may hold the
 * flush lock as well, and expect no error.
 */
static void
dw_carry_home(DWHomePart *part)
{
	DWErrors	errors = {0};

	PG_TRY();
	{
		dw_note_carried(part);
		dw_bring_home((DWDescribed) {part->slots, &part->npages}, NULL, true, &errors);
		INJECTION_POINT("doublewrite-part-home", NULL);
		LWLockRelease(&part->lock);
		dw_tell_errors(&errors);
	}
	PG_CATCH();
	{
		dw_unlock_after_error();
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Carry one part home that nobody carries, if there is one, looking from the given
 * place on.  Returns whether there was.
 *
 * Who has a place's lock carries what is in it, or nothing is: so no part is passed
 * over by all.
 */
bool
dw_carry_part(int first)
{
	for (int i = 0; i < DW_MAX_HOME_PARTS; i++)
	{
		DWHomePart *part = DWHome((first + i) % DW_MAX_HOME_PARTS);

		if (((volatile DWHomePart *) part)->npages == 0 ||
			!LWLockConditionalAcquire(&part->lock, LW_EXCLUSIVE))
			continue;
		if (part->npages > 0)
		{
			dw_carry_home(part);
			return true;
		}
		LWLockRelease(&part->lock);
	}
	return false;
}

/*
 * See to it that no home write is under way, and none left to be made.  The caller
 * holds the flush lock in any mode, and can rely on it until he releases that, but
 * for what he writes himself.
 */
void
dw_finish_home_writes(void)
{
	Assert(LWLockHeldByMe(DoubleWriteFlushLock));

	while (dw_carry_part(0))
		;
	for (int i = 0; i < DW_MAX_HOME_PARTS; i++)
	{
		DWHomePart *part = DWHome(i);

		if (((volatile DWHomePart *) part)->npages == 0)
			continue;
		LWLockAcquire(&part->lock, LW_EXCLUSIVE);
		dw_carry_home(part);
	}
	Assert(!dw_homes_under_way());
	pg_memory_barrier();		/* see dw_leave_description() */
}

/*
 * Take the flush lock, with no home write under way.
 */
void
dw_lock_flush_idle(LWLockMode mode)
{
	dw_lock_flush(mode);
	dw_finish_home_writes();
}

/*
 * Take the locks of up to max free places, of the first nplaces.  Returns how many.
 */
static int
dw_take_places(DWHomePart **places, int max, int nplaces)
{
	int			n = 0;

	Assert(DWIsFlusher());

	for (int i = 0; i < nplaces && n < max; i++)
	{
		DWHomePart *part = DWHome(i);

		if (((volatile DWHomePart *) part)->npages > 0 ||
			!LWLockConditionalAcquire(&part->lock, LW_EXCLUSIVE))
			continue;
		places[n++] = part;
	}
	return n;
}

/*
 * Put pages of the batch into a place, whose lock is released.  Nothing in here may
 * fail.
 */
static void
dw_fill_place(DWHomePart *part, const int *slots, int npages)
{
	Assert(part->npages == 0);
	for (int i = 0; i < npages; i++)
		Assert(!DWSlots[slots[i]].atomic);	/* A3 */
	memcpy(part->slots, slots, npages * sizeof(int));
	part->round++;
	part->npages = npages;
	LWLockRelease(&part->lock);
}

/*
 * Sort the batch, in which no page may be twice (R4).  Returns where runs begin, and
 * how many there are; *atomic tells whether some are to be written atomically.
 */
static int
dw_sort_batch(int *runs, bool *atomic)
{
	int		   *slots = DWCtl->batch.slots;
	int			nslots = DWCtl->batch.len;
	int			nruns = 0;

	qsort(slots, nslots, sizeof(int), dw_slot_cmp);
	for (int i = 1; i < nslots; i++)
		Assert(dw_slot_cmp(&slots[i - 1], &slots[i]) < 0);

	*atomic = false;
	for (int i = 0; i < nslots; i += dw_run_length(slots + i, nslots - i))
	{
		*atomic |= DWSlots[slots[i]].atomic;
		runs[nruns++] = i;
	}
	return nruns;
}

/*
 * The pages of the batch are no longer in it.
 */
static void
dw_end_batch(void)
{
	DWCtl->batch.len = 0;
	dw_set_batch_phase(DW_BATCH_NONE);
	DWCount(batches, 1);
}

/*
 * Divide the current batch into parts and end it, if that pays.  Returns into how
 * many: the caller carries so many, or wakes who does, without the flush lock.
 */
int
dw_send_home(void)
{
	int			runs[DW_MAX_BATCH_PAGES + 1];
	DWHomePart *places[DW_MAX_HOME_PARTS];
	int			nruns;
	int			nplaces = dw_parts_wanted();
	bool		atomic;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_DURABLE);

	if (nplaces == 0)
		return 0;
	nruns = dw_sort_batch(runs, &atomic);
	runs[nruns] = DWCtl->batch.len;
	if (atomic)
		return 0;
	nplaces = dw_take_places(places, Min(nruns, DW_MAX_HOME_PARTS), nplaces);
	if (nplaces == 0)
		return 0;

	for (int i = 0; i < nplaces; i++)
	{
		int			begin = runs[nruns * i / nplaces];
		int			end = runs[nruns * (i + 1) / nplaces];

		dw_fill_place(places[i], DWCtl->batch.slots + begin, end - begin);
	}
	dw_end_batch();
	INJECTION_POINT("doublewrite-home-sent", NULL);
	return nplaces;
}

/*
 * Does this process leave batches to the background writer?  That is for the
 * checkpointer, while batches pass through the log and are not divided.  In recovery,
 * being woken up, the background writer would go through its main loop first, which
 * keeps ahead of redo.
 */
bool
dw_bgwriter_helps(void)
{
	return AmCheckpointerProcess() && DWCtl->log.armed && !RecoveryInProgress() &&
		double_write_concurrency < 0 && dw_parts_wanted() == 0 &&
		((volatile DWCtlData *) DWCtl)->flusher.proc != INVALID_PROC_NUMBER;
}

/*
 * Has most of the batch just passed through the log?
 */
static bool
dw_batch_was_logged(void)
{
	int			nlogged = 0;

	for (int i = 0; i < DWCtl->batch.len; i++)
	{
		if (DWSlots[DWCtl->batch.slots[i]].home_batch == DWCtl->log.next_batchno - 1)
			nlogged++;
	}
	return nlogged > DWCtl->batch.len / 2;
}

/*
 * The checkpointer would write one batch home while the device of the log is idle, and
 * then wait for that device.  So where writes are quick it leaves the batch to the
 * background writer, as one part, and goes on with the next pages, unless that is
 * behind already.  Pages that need no log have nothing to wait for; two processes would
 * only get in each other's way, writing to one file.  And a batch of many writes had
 * better not be left, since it could not be divided should they turn slow.
 *
 * Returns whether it did: the caller wakes the background writer, without the flush
 * lock.
 */
bool
dw_leave_home(void)
{
	int			runs[DW_MAX_BATCH_PAGES];
	DWHomePart *place;
	int			nruns;
	bool		atomic;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_DURABLE);

	if (!dw_bgwriter_helps() || !dw_batch_was_logged())
		return false;
	nruns = dw_sort_batch(runs, &atomic);
	if (atomic || nruns > DW_RUNS_FOR_BGWRITER ||
		dw_take_places(&place, 1, DW_PLACES_FOR_BGWRITER) == 0)
		return false;

	dw_fill_place(place, DWCtl->batch.slots, DWCtl->batch.len);
	dw_end_batch();
	INJECTION_POINT("doublewrite-home-sent", NULL);
	return true;
}

/* ---------------------------------------------------------------------
 * A whole batch
 * ---------------------------------------------------------------------
 */

/*
 * Bring the pages of the current batch home and end the batch.  If one of mine
 * cannot be written, that is an error, when all others are home.
 *
 * Returns false if some are left, which the caller may divide: one slow file must
 * not hold up all others behind the flush lock.
 *
 * Atomic writes are made with no other home write beside them: what the kernel does to
 * its cache for them is then no concern of others.
 */
bool
dw_write_home(const DWPageSet *mine, bool may_divide)
{
	int			runs[DW_MAX_BATCH_PAGES];
	DWErrors	errors = {0};
	bool		atomic;
	bool		done;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_DURABLE);
	Assert(mine == NULL || !may_divide);

	/* what an error may have left is none of ours any more */
	dw_atomic_end();

	dw_sort_batch(runs, &atomic);
	if (atomic)
		dw_finish_home_writes();
	dw_bring_home((DWDescribed) {DWCtl->batch.slots, &DWCtl->batch.len}, mine,
				  !may_divide || atomic, &errors);
	dw_atomic_end();

	/* a write that ends later could come over a newer one, or a newer file (R4, R7) */
	Assert(DWAtomicUnderWay() == 0);
	done = DWCtl->batch.len == 0;
	if (done)
	{
		dw_end_batch();
		INJECTION_POINT("doublewrite-home-written", NULL);
	}
	dw_tell_errors(&errors);
	return done;
}
