/*-------------------------------------------------------------------------
 *
 * sendatomic.c
 *	  Writing the pages of a batch home atomically.
 *
 * The flusher does that, with the flush lock held and no other home write beside it;
 * see the head of home.c.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/sendatomic.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"

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
		if (DWSlots[slots[at]].discarded)
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
 * Write one run home atomically, if that is possible, and say what has become of it.
 */
static void
dw_write_atomic_run(const int *slots, int npages)
{
	instr_time	start = pgstat_prepare_io_time(track_io_timing);
	DWAtomicResult result = DW_ATOMIC_NOT_WRITTEN;
	int			error = 0;

	INJECTION_POINT("doublewrite-home-write", &error);
	if (error == 0)
		result = dw_atomic_write(slots, npages);

	if (result == DW_ATOMIC_WRITTEN)
	{
		dw_count_run(slots, npages, start);
		dw_settle_run(slots, npages, 0);
		return;
	}
	/* no process gets an error, as the next batch logs them (A2) */
	if (error == 0 && result == DW_ATOMIC_TORN)
		error = DW_TORN;
	if (error != 0)
		dw_keep_copies(slots, npages);
	for (int i = 0; i < npages; i++)
	{
		DWSlots[slots[i]].run = DWCtl->home.sent;
		dw_restage_for_log(slots[i], error);
	}
}

/* The first pages of the batch are dealt with, whatever the next flusher finds left */
static void
dw_leave_batch(int npages)
{
	DWCtl->batch.len -= npages;
	memmove(DWCtl->batch.slots, DWCtl->batch.slots + npages,
			DWCtl->batch.len * sizeof(int));
}

/*
 * Write the first pages of the batch home atomically, with no other home write under
 * way.  Where some may not come back, they take the log.
 */
void
dw_write_atomically(int natomic)
{
	int			slots[DW_MAX_BATCH_PAGES];
	bool		idle = dw_await_home_writes(&DWAllPages, false);
	DWAtomicRun started[DW_ATOMIC_IN_FLIGHT];
	int			nstarted = 0;
	int			next = 0;
	int			n;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_DURABLE);

	/* what an error may have left is none of ours any more */
	dw_atomic_end();

	/* from here on we look at "discarded"; see dw_await_atomic_write() (R7) */
	pg_memory_barrier();
	memcpy(slots, DWCtl->batch.slots, natomic * sizeof(int));

	for (int done = 0; done < natomic; done += n)
	{
		n = 1;
		if (idle && next == nstarted)
		{
			nstarted = dw_start_atomic_runs(slots + done, natomic - done, started);
			next = 0;
		}
		if (!idle)
			dw_restage_for_log(slots[done], 0);
		else if (next < nstarted)
		{
			n = started[next++].npages;
			dw_write_atomic_run(slots + done, n);
		}
		else if (DWSlots[slots[done]].discarded)
			dw_release_slots(&slots[done], 1);	/* R7 */
		else
		{
			n = dw_run_length(slots + done, natomic - done);
			dw_write_atomic_run(slots + done, n);
		}
		dw_leave_batch(n);
		INJECTION_POINT("doublewrite-home-run-written", NULL);
	}
	dw_atomic_end();

	/* a write that ends later could hit a newer page or file (R4, R7) */
	Assert(DWAtomicUnderWay() == 0);
}
