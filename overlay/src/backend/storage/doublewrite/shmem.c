/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory of the engine.
 *
 * Settings that bound what is in there take effect at a start of the server.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/proc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

DWCtlData  *DWCtl = NULL;
DWBufferRecords *DWBufferRecordsArray = NULL;

#ifdef USE_ASSERT_CHECKING
bool		dw_mutex_held = false;	/* by this process */
#endif

/*
 * Shared memory needed by the engine, in bytes.
 */
Size
DoubleWriteShmemSize(void)
{
	Size		size = 0;
	int			segments = dw_log_bound_segments();

	dw_choose_stage_size();
	size = add_size(size, MAXALIGN(sizeof(DWCtlData)));
	size = add_size(size, mul_size(NBuffers, sizeof(DWBufferRecords)));
	size = add_size(size, dw_stage_shmem_size());
	size = add_size(size, dw_epoch_shmem_size(segments));
	size = add_size(size, dw_rebuilt_shmem_size());
	size = add_size(size, dw_dirty_shmem_size(segments));
	size = add_size(size, dw_copies_shmem_size(segments));
	return size;
}

static void
dw_init_ctl(void)
{
	MemSet(DWCtl, 0, sizeof(DWCtlData));
	SpinLockInit(&DWCtl->mutex);
	DWCtl->segments = dw_log_bound_segments();
	pg_atomic_init_u32(&DWCtl->upkeep_requested, 0);
	pg_atomic_init_u32(&DWCtl->panicking, 0);
	pg_atomic_init_u64(&DWCtl->rewrite_until, PG_UINT64_MAX);
	pg_atomic_init_u32(&DWCtl->setting, DW_SETTING_UNKNOWN);
	pg_atomic_init_u32(&DWCtl->setting_changed, 0);
	DWCtl->flusher.proc = INVALID_PROC_NUMBER;
	pg_atomic_init_u32(&DWCtl->home.nclaimed, 0);
	ConditionVariableInit(&DWCtl->home.room);
	ConditionVariableInit(&DWCtl->home.ended);
	ConditionVariableInit(&DWCtl->home.thawed);
	for (int i = 0; i < DW_HOME_LOADS; i++)
	{
		pg_atomic_init_u32(&DWCtl->home.loads[i].nwriting, 0);
		pg_atomic_init_u32(&DWCtl->home.loads[i].stalled, 0);
		pg_atomic_init_u64(&DWCtl->home.loads[i].ended, 0);
	}
	pg_atomic_init_u64(&DWCtl->log.cycles_done, 0);
	pg_atomic_init_u64(&DWCtl->log.syncing_since, 0);
	ConditionVariableInit(&DWCtl->log.cycle_ended);

	LWLockInitialize(&DWCtl->removals.lock, DoubleWriteRemovalEvenLock->tranche);
	pg_atomic_init_u32(&DWCtl->removals.generation, 0);
	for (int i = 0; i < lengthof(DWCtl->removals.under_way); i++)
		pg_atomic_init_u32(&DWCtl->removals.under_way[i], 0);
	pg_atomic_init_u64(&DWCtl->records_known, 0);
	for (int i = 0; i < DW_TRUNCATE_BUCKETS; i++)
		pg_atomic_init_u64(&DWCtl->truncated[i], 0);

	for (int i = 0; i < DW_ATOMIC_TABLESPACES; i++)
	{
		pg_atomic_init_u64(&DWCtl->atomic.tablespaces[i].pages, 0);
		pg_atomic_init_u64(&DWCtl->atomic.tablespaces[i].logged, 0);
		pg_atomic_init_u64(&DWCtl->atomic.tablespaces[i].refused, 0);
	}

	for (int i = 0; i < DW_MAX_WRITERS; i++)
	{
		LWLockInitialize(&DWWriterAt(i)->lock, DoubleWriteRoomLock->tranche);
		pg_atomic_init_u64(&DWWriterAt(i)->since, 0);
	}

	pg_atomic_init_u64(&DWCtl->recover_from, 0);
	for (int i = 0; i < DW_REDO_POINTERS; i++)
	{
		pg_atomic_init_u64(&DWCtl->reads.pointers[i].redo, InvalidXLogRecPtr);
		pg_atomic_init_u64(&DWCtl->reads.pointers[i].pages, 0);
	}

	/* DWStats consists of nothing but counters */
	for (size_t i = 0; i < sizeof(DWStats) / sizeof(pg_atomic_uint64); i++)
		pg_atomic_init_u64((pg_atomic_uint64 *) &DWCtl->stats + i, 0);
}

/*
 * Create or attach to the engine's shared memory.
 */
void
DoubleWriteShmemInit(void)
{
	bool		found;

	DWCtl = ShmemInitStruct("Double Write Control", sizeof(DWCtlData), &found);
	if (!found)
		dw_init_ctl();

	DWBufferRecordsArray =
		ShmemInitStruct("Double Write Buffer Records",
						mul_size(NBuffers, sizeof(DWBufferRecords)), &found);
	if (!found)
		MemSet(DWBufferRecordsArray, 0, NBuffers * sizeof(DWBufferRecords));

	dw_stage_shmem_init();
	dw_epoch_shmem_init();
	dw_rebuilt_shmem_init();
	dw_dirty_shmem_init();
	dw_copies_shmem_init();
}
