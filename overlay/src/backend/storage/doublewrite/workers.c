/*-------------------------------------------------------------------------
 *
 * workers.c
 *	  Which processes do the work of the engine, and how they are called.
 *
 * The process holding DoubleWriteFlushLock takes a batch to the log; this directory
 * calls it the flusher.  In the normal run that is the background writer, which is
 * woken up when there is a batch for it.  The checkpointer looks after the log, and is
 * woken up when that is due.  Neither is waited for: a process that cannot go on does the
 * work itself, or a part of it, or goes on with the first slots that others free.
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
#include "storage/proclist.h"
#include "utils/wait_event.h"

/*
 * A wait ends after this time even if nothing has been announced, in milliseconds: an
 * error may have ended what was waited for, and a write may not come back.
 */
#define DW_WAIT_MSEC	1000

/*
 * Take the flush lock when it is our turn.
 *
 * A process that releases an LWLock and takes it again at once gets it before
 * those it has just woken up, and shared holders pass waiting exclusive ones.
 * So a process that wants the lock stands in a doorway, in which there is room for one:
 * the lock cannot be taken by others until it has got it.
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
 * Read a number that the flush lock guards.
 */
uint64
dw_read_locked(const uint64 *number)
{
	uint64		value;

	dw_lock_flush(LW_SHARED);
	value = *number;
	LWLockRelease(DoubleWriteFlushLock);
	return value;
}

/*
 * Announce room in the stage: so many slots are free, or so many runs can be claimed.
 * As many backends are woken.  One that is not in the list of those that wait yet
 * sees that for itself; see dw_wait_on().
 */
void
dw_tell_room(int n)
{
	pg_memory_barrier();
	while (n-- > 0 && !proclist_is_empty(&DWCtl->home.room.wakeup))
		ConditionVariableSignal(&DWCtl->home.room);
}

/*
 * Wait until something is announced, unless it is there already.  Returns false if
 * nothing has been for DW_WAIT_MSEC.
 *
 * The sleep resets the latch.  Checkpointer and background writer are told by it of a
 * reload, a barrier or a request, and look for these before they sleep, not after we do.
 */
bool
dw_wait_on(ConditionVariable *variable, bool (*wanted) (void), uint32 wait_event_info)
{
	bool		there;
	bool		timed_out = false;

	ConditionVariablePrepareToSleep(variable);
	pg_memory_barrier();		/* see dw_tell_room() */
	there = wanted();
	if (!there)
	{
		timed_out = ConditionVariableTimedSleep(variable, DW_WAIT_MSEC, wait_event_info);
		SetLatch(MyLatch);		/* it may have been set for the main loop */
	}
	if (ConditionVariableCancelSleep())
		ConditionVariableSignal(variable);	/* that was for another one */
	return !timed_out;
}

/*
 * Release the room lock if this process holds it.
 */
void
dw_let_others_make_room(void)
{
	if (LWLockHeldByMe(DoubleWriteRoomLock))
	{
		LWLockRelease(DoubleWriteRoomLock);
		dw_tell_room(1);
	}
}

/*
 * An error leaves the engine, which is to be thrown again: release the locks of the
 * engine that this process has got.  The process that catches it may report it to a client
 * that does not read, or clean up what takes these locks, before it releases all it has.
 * What work is left is described in shared memory, as ever.
 */
void
dw_unlock_after_error(void)
{
	LWLock	   *locks[] = {DoubleWriteFlushLock, DoubleWriteSyncLock, DoubleWriteRoomLock};

	for (int i = 0; i < lengthof(locks); i++)
	{
		if (!LWLockHeldByMe(locks[i]))
			continue;
		HOLD_INTERRUPTS();		/* LWLockRelease() resumes them */
		LWLockRelease(locks[i]);
	}
	dw_tell_room(1);
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

static void
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

/* By a clock that is never set */
uint64
dw_nanoseconds(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_NANOSEC(now);
}

/* Nanoseconds since a moment in shared memory */
uint64
dw_age(pg_atomic_uint64 *moment)
{
	uint64		then = pg_atomic_read_u64(moment);
	uint64		now = dw_nanoseconds();

	return now - Min(now, then);
}

/* Milliseconds since a moment, by the same clock */
int64
dw_msec_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return (int64) INSTR_TIME_GET_MILLISEC(now);
}
