/*-------------------------------------------------------------------------
 *
 * send.c
 *	  Sending a batch home.
 *
 * What becomes of it then is described in the head of home.c.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/send.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/doublewrite_internal.h"
#include "storage/lwlock.h"
#include "utils/injection_point.h"

/* In the order of files; those to be written atomically come first */
static int
dw_slot_cmp(const void *a, const void *b)
{
	const DWSlot *sa = &DWSlots[*(const int *) a];
	const DWSlot *sb = &DWSlots[*(const int *) b];
	const BufferTag *ta = &sa->tag;
	const BufferTag *tb = &sb->tag;

#define DW_CMP(field) \
	if (ta->field != tb->field) \
		return ta->field < tb->field ? -1 : 1
	if (sa->atomic != sb->atomic)
		return sa->atomic ? -1 : 1;
	DW_CMP(spcOid);
	DW_CMP(dbOid);
	DW_CMP(relNumber);
	DW_CMP(forkNum);
	DW_CMP(blockNum);
#undef DW_CMP
	return 0;
}

/*
 * Sort the batch, in which no page may be twice (R4).  Returns how many pages are to be
 * written atomically: the first ones.
 */
static int
dw_sort_batch(void)
{
	int		   *slots = DWCtl->batch.slots;
	int			nslots = DWCtl->batch.len;
	int			natomic = 0;

	qsort(slots, nslots, sizeof(int), dw_slot_cmp);
	for (int i = 1; i < nslots; i++)
		Assert(dw_slot_cmp(&slots[i - 1], &slots[i]) < 0);

	while (natomic < nslots && DWSlots[slots[natomic]].atomic)
		natomic++;
	return natomic;
}

/*
 * Put the pages of the batch into the queue, run by run.  Returns how many runs.
 *
 * There is room: each run in the queue has a slot of its own, and so has the queue.
 */
static int
dw_enqueue_batch(void)
{
	int		   *slots = DWCtl->batch.slots;
	int			nruns = 0;

	for (int i = 0; i < DWCtl->batch.len;)
	{
		int			end = i + dw_run_length(slots + i, DWCtl->batch.len - i);

		DWRuns[(DWCtl->home.sent + nruns++) % DWCtl->stage.nslots] = slots[i];
		Assert(!DWSlots[slots[i]].atomic);	/* A3 */
		for (; i < end; i++)
		{
			DWSlots[slots[i]].run = DWCtl->home.sent + nruns - 1;
			DWSlots[slots[i]].run_next = i + 1 < end ? slots[i + 1] : -1;
		}
	}

	DWCtl->batch.len = 0;
	DWLockMutex();
	DWCtl->home.sent += nruns;
	DWUnlockMutex();
	return nruns;
}

/*
 * Send the batch home, and end it.
 */
void
dw_send_home(void)
{
	int			natomic;
	int			nruns;

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_DURABLE);

	natomic = dw_sort_batch();
	if (natomic > 0)
		dw_write_atomically(natomic);
	nruns = dw_enqueue_batch();
	dw_set_batch_phase(DW_BATCH_NONE);
	DWCount(batches, 1);
	INJECTION_POINT("doublewrite-home-sent", NULL);
	dw_tell_room(nruns);
}
