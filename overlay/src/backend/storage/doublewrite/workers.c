/*-------------------------------------------------------------------------
 *
 * workers.c
 *	  Who does the work of the engine, and how they are called.
 *
 * Whoever holds DoubleWriteFlushLock is the flusher.  In the normal run that is
 * the background writer, which is woken up when there is a batch for it.  The
 * checkpointer looks after the log, and is woken up when that is due.  Neither is
 * waited for: who cannot go on does the work himself, or a part of it, or goes on
 * with the first slots that others free who are at work.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/workers.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/doublewrite_internal.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"

/* The part that this process has carried last; see dw_carried() */
static DWHomePart *dw_carried_last = NULL;

/*
 * The part that this process carries home, or NULL.
 */
DWHomePart *
dw_carried(void)
{
	if (dw_carried_last == NULL ||
		!LWLockHeldByMeInMode(&dw_carried_last->lock, LW_EXCLUSIVE))
		return NULL;
	return dw_carried_last;
}

/*
 * This process has got the lock of a part, and is going to carry it home.
 */
void
dw_note_carried(DWHomePart *part)
{
	dw_carried_last = part;
	Assert(dw_carried() == part);
}

/*
 * Take the flush lock when it is our turn.
 *
 * A process that releases an LWLock and takes it again at once gets it before
 * those it has just woken up, and shared holders pass waiting exclusive ones.
 * So whoever wants the lock stands in a doorway, in which there is room for one:
 * the lock cannot be taken by others until he has got it.
 */
void
dw_lock_flush(LWLockMode mode)
{
	Assert(!LWLockHeldByMe(DoubleWriteFlushLock));
	LWLockAcquire(DoubleWriteTurnLock, LW_EXCLUSIVE);
	LWLockAcquire(DoubleWriteFlushLock, mode);
	LWLockRelease(DoubleWriteTurnLock);
}

/*
 * Take the flush lock for writing, unless somebody has it or stands in the doorway.
 */
bool
dw_try_lock_flush(void)
{
	bool		got;

	if (!LWLockConditionalAcquire(DoubleWriteTurnLock, LW_EXCLUSIVE))
		return false;
	got = LWLockConditionalAcquire(DoubleWriteFlushLock, LW_EXCLUSIVE);
	LWLockRelease(DoubleWriteTurnLock);
	return got;
}

/*
 * An error leaves the engine, which is to be thrown again: release the locks of the
 * engine that this process has got.  Who catches it may report it to a client that
 * does not read, or clean up what takes these locks, before he releases all he has.
 * What work is left is described in shared memory, as ever.
 */
void
dw_unlock_after_error(void)
{
	DWHomePart *part = dw_carried();
	LWLock	   *locks[] = {part ? &part->lock : NULL, DoubleWriteFlushLock, DoubleWriteSyncLock};

	for (int i = 0; i < lengthof(locks); i++)
	{
		if (locks[i] == NULL || !LWLockHeldByMe(locks[i]))
			continue;
		HOLD_INTERRUPTS();		/* LWLockRelease() resumes them */
		LWLockRelease(locks[i]);
	}
}

/*
 * The flusher has freed slots of the batch under way.
 *
 * All who wait for it are woken at once, so not before there is a slot for each.
 * What is left at the end of a batch they find when its lock is released.  Who is
 * not counted yet will see that there is room; see dw_wait_for_room().
 */
static void
dw_tell_room_in_batch(int nfreed)
{
	uint64		untold;
	uint32		nwaiting;

	Assert(DWIsFlusher());

	DWCtl->room.freed += nfreed;
	untold = DWCtl->room.freed - pg_atomic_read_u64(&DWCtl->room.told);
	nwaiting = pg_atomic_read_membarrier_u32(&DWCtl->room.nwaiting);
	if (nwaiting > 0 && untold >= nwaiting)
		LWLockUpdateVar(DoubleWriteFlushLock, &DWCtl->room.told,
						DWCtl->room.freed);
}

/*
 * Slots have been freed: let those who found the stage full go on with them, not
 * only when the batch or the part ends.  All who wait for a part are woken each
 * time; see dw_wait_for_part().
 */
void
dw_tell_room(int nfreed)
{
	DWHomePart *part = dw_carried();

	Assert(DWCarriesPages());

	if (part != NULL)
		LWLockUpdateVar(&part->lock, &part->freed,
						pg_atomic_read_u64(&part->freed) + nfreed);
	if (DWIsFlusher())
		dw_tell_room_in_batch(nfreed);
}

/*
 * Wake the background flusher, as there is a batch for it, or parts.
 */
void
dw_wake_flusher(void)
{
	int			procno = INVALID_PROC_NUMBER;

	DWLockMutex();
	if (!DWCtl->flusher.requested && DWCtl->flusher.proc != MyProcNumber)
	{
		procno = DWCtl->flusher.proc;
		DWCtl->flusher.requested = (procno != INVALID_PROC_NUMBER);
	}
	DWUnlockMutex();

	if (procno != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

bool
dw_flush_was_requested(void)
{
	bool		requested;

	DWLockMutex();
	requested = DWCtl->flusher.requested;
	DWUnlockMutex();
	return requested;
}

void
dw_announce_flusher(int procno)
{
	DWLockMutex();
	DWCtl->flusher.proc = procno;
	DWCtl->flusher.requested = false;
	DWUnlockMutex();
}

void
dw_withdraw_flusher(int code, Datum arg)
{
	dw_announce_flusher(INVALID_PROC_NUMBER);
}

void
dw_wake_checkpointer(void)
{
	ProcNumber	procno = ((volatile PROC_HDR *) ProcGlobal)->checkpointerProc;

	if (procno != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/*
 * Ask the checkpointer to look after the log: to create segments, or to run a
 * sync cycle.  Flushers go on, and do it themselves if they can't wait.
 */
void
dw_request_upkeep(void)
{
	if (pg_atomic_exchange_u32(&DWCtl->upkeep_requested, 1) == 0)
		dw_wake_checkpointer();
}

/* Milliseconds since a moment, by a clock that nobody sets */
long
dw_msec_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return (long) INSTR_TIME_GET_MILLISEC(now);
}
