/*-------------------------------------------------------------------------
 *
 * test_doublewrite.c
 *		Test code for the double-write engine.
 *
 * A look inside the engine, and what tests do to it at injection points beyond
 * what test_points does: both must be in shared_preload_libraries.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/test/modules/test_doublewrite/test_doublewrite.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#ifndef WIN32
#include <sys/mman.h>
#endif
#include <sys/stat.h>
#include <unistd.h>

#include "access/instantrecovery_internal.h"
#include "access/relation.h"
#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogutils.h"
#include "catalog/pg_control.h"
#include "catalog/pg_tablespace_d.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/doublewrite_stats.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/injection_point.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

#define TDW_LOCK_SECONDS	60

/* A run of fewer pages is not torn */
#define TDW_TORN_PAGES		8

/* settings */
static bool tdw_pretend_atomic = false;
static bool tdw_quiet = false;
static int	tdw_spoil_redo_of = 0;
static bool tdw_spoil_redo_kills = false;

static void (*tdw_heap_redo) (XLogReaderState *record) = NULL;

static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
static emit_log_hook_type prev_emit_log_hook = NULL;

extern PGDLLEXPORT void test_doublewrite_tear(const char *name,
											  const void *private_data,
											  void *arg);
extern PGDLLEXPORT void test_doublewrite_pretend(const char *name,
												 const void *private_data,
												 void *arg);

/* ---------------------------------------------------------------------
 * What happens at points
 * ---------------------------------------------------------------------
 */

static void
tdw_attach(const char *name, const char *function)
{
	InjectionPointAttach(name, "test_doublewrite", function, NULL, 0);
}

/*
 * Write the first half of a page of the batch home, unless that would make
 * the file longer.
 */
static void
tdw_write_half(int slotno)
{
	const BufferTag *tag = &DWSlots[slotno].tag;
	RelPathStr	path = relpathperm(BufTagGetRelFileLocator(tag),
								   BufTagGetForkNum(tag));
	BlockNumber segno = tag->blockNum / RELSEG_SIZE;
	off_t		offset = (off_t) (tag->blockNum % RELSEG_SIZE) * BLCKSZ;
	char	   *file = segno == 0 ? pstrdup(path.str) :
		psprintf("%s.%u", path.str, segno);
	struct stat st;
	int			fd;

	if (stat(file, &st) == 0 && st.st_size >= offset + BLCKSZ)
	{
		fd = OpenTransientFile(file, O_RDWR | PG_BINARY);
		if (fd < 0 ||
			pg_pwrite(fd, DWSlotPage(slotno), BLCKSZ / 2, offset) != BLCKSZ / 2)
			elog(ERROR, "could not write file \"%s\": %m", file);
		CloseTransientFile(fd);
	}
	pfree(file);
}

/*
 * Let processes that read relation files meet pages that are being written: all pages of
 * the run are half at home.  It is under way until a session wakes the process up at the
 * injection point in here, which has to be attached with action "wait".  Only the first
 * run that is long enough is torn.
 */
void
test_doublewrite_tear(const char *name, const void *private_data, void *arg)
{
	DWWriter   *writer = dw_own_writer();

	Assert(writer != NULL);

	if (writer->npages < TDW_TORN_PAGES || !InjectionPointDetach(name))
		return;
	for (int i = writer->ndone; i < writer->npages; i++)
	{
		if (!DWSlots[writer->slots[i]].discarded)
			tdw_write_half(writer->slots[i]);
	}
	INJECTION_POINT("test-doublewrite-torn", NULL);
}

/*
 * Have a file's writes be marked as atomic ones: by an open flag that does nothing
 * else, O_NOATIME, for the recorder of the power-cut explorer.
 */
static void
tdw_mark_writes(int fd)
{
#ifdef O_NOATIME
	int			flags = fcntl(fd, F_GETFL);

	if (fcntl(fd, F_SETFL, flags | O_NOATIME) < 0)
		elog(ERROR, "could not mark atomic writes: %m");
#endif
}

/*
 * Stand in for a kernel that writes atomically, where asked to: in tablespace
 * pg_default, and with the flag.  A write of memory that is not there is begun and
 * fails in the kernel, as a bad device has it.
 */
static void
tdw_pretend_write(DWAtomicCall *call)
{
	int			unreadable = 0;

	INJECTION_POINT("test-doublewrite-unreadable", &unreadable);
	if (unreadable != 0)
		call->data = NULL;
	if (call->spcOid == DEFAULTTABLESPACE_OID && (call->flags & DW_RWF_ATOMIC) != 0)
		tdw_mark_writes(call->fd);
	call->flags &= ~DW_RWF_ATOMIC;
}

/*
 * Have the engine take tablespace pg_default for one that writes pages
 * atomically, and write to it in an ordinary way.  That is good enough for all
 * but the device.  In pg_global a file system offers the same in software.
 */
void
test_doublewrite_pretend(const char *name, const void *private_data, void *arg)
{
	DWAtomicTablespace *spc = arg;

	if (strcmp(name, "doublewrite-atomic-pretended") == 0)
		tdw_pretend_write(arg);
	else if (strcmp(name, "doublewrite-atomic-probed") != 0)
		*(bool *) arg = true;
	else if (spc->spcOid == DEFAULTTABLESPACE_OID)
	{
		spc->probe.verdict = DW_ATOMIC_HARDWARE;
		spc->probe.file.unit_max = 16 * BLCKSZ;
		spc->probe.file.unit_max_opt = 8 * BLCKSZ;
		spc->probe.unit = DWAtomicUnit(&spc->probe.file);
	}
	else if (spc->spcOid == GLOBALTABLESPACE_OID)
	{
		spc->probe.verdict = DW_ATOMIC_SOFTWARE;
		spc->probe.file.unit_max = 2 * BLCKSZ;
		spc->probe.file.unit_max_opt = 0;
		spc->probe.unit = DWAtomicUnit(&spc->probe.file);
	}
	else
		spc->probe.verdict = DW_ATOMIC_NOT_OFFERED;
}

/*
 * Return whether the home write that is about to begin goes to this tablespace.
 * Its pages are the first ones that are left of the run, or of the batch if it is
 * atomic.
 */
static bool
tdw_home_is_in(Oid tablespace)
{
	DWWriter   *writer = dw_own_writer();

	Assert(DWIsFlusher() || writer != NULL);

	return (writer != NULL ? writer->tag : DWSlots[DWCtl->batch.slots[0]].tag).spcOid == tablespace;
}

/* ---------------------------------------------------------------------
 * Redo that fails
 * ---------------------------------------------------------------------
 */

/*
 * Redo of heap records that fails when it has changed a page of the relation, but not
 * yet set its LSN: of those records for which test_points fails at the injection point
 * in here.  No code of ours fails there.
 */
static void
tdw_spoiling_redo(XLogReaderState *record)
{
	RelFileLocator rlocator;
	Buffer		buffer;

	if (InstantRecoveryRedoesPage &&
		XLogRecGetBlockTagExtended(record, 0, &rlocator, NULL, NULL, NULL) &&
		rlocator.relNumber == tdw_spoil_redo_of)
	{
		int			errnum = 0;

		if (XLogReadBufferForRedo(record, 0, &buffer) == BLK_NEEDS_REDO)
			INJECTION_POINT("test-doublewrite-redo", &errnum);
		if (errnum != 0)
		{
			/* the end of the first row */
			memset(BufferGetPage(buffer) + BLCKSZ - 60, 'z', 40);
			MarkBufferDirty(buffer);
			if (tdw_spoil_redo_kills)
				kill(MyProcPid, SIGKILL);
			elog(PANIC, "test error in redo of a page");
		}
		if (BufferIsValid(buffer))
			UnlockReleaseBuffer(buffer);
	}
	tdw_heap_redo(record);
}

/* ---------------------------------------------------------------------
 * Initialisation
 * ---------------------------------------------------------------------
 */

/* Attach what the settings ask for. */
static void
tdw_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	if (IsUnderPostmaster)
		return;
	if (tdw_pretend_atomic)
	{
		tdw_attach("doublewrite-atomic-probed", "test_doublewrite_pretend");
		tdw_attach("doublewrite-atomic-opened", "test_doublewrite_pretend");
		tdw_attach("doublewrite-atomic-pretended", "test_doublewrite_pretend");
	}
	/* the engine only asks whether it is attached */
	if (tdw_quiet)
		InjectionPointAttach("doublewrite-background-flush", "test_points",
							 "test_points_hit", NULL, 0);
}

/*
 * Abort if this process is about to wait for a client, which may not read, with a
 * lock of the engine held.  (R11)
 */
static void
tdw_look_at_message(ErrorData *edata)
{
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
	if (edata->elevel == ERROR && edata->output_to_client &&
		(LWLockHeldByMe(DoubleWriteFlushLock) || LWLockHeldByMe(DoubleWriteSyncLock) ||
		 dw_own_writer() != NULL))
	{
		write_stderr("TRAP: a message is sent to a client with a lock of the double-write engine held: %s\n",
					 edata->message);
		abort();
	}
}

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	*find_rendezvous_variable("test_points_filter") = (void *) tdw_home_is_in;

	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = tdw_look_at_message;

	DefineCustomBoolVariable("test_doublewrite.quiet",
							 "The background writer writes no staged pages home.",
							 NULL,
							 &tdw_quiet,
							 false,
							 PGC_POSTMASTER,
							 0,
							 NULL, NULL, NULL);
	DefineCustomBoolVariable("test_doublewrite.pretend_atomic",
							 "Pages of tablespace pg_default are written as if that were atomic.",
							 NULL,
							 &tdw_pretend_atomic,
							 false,
							 PGC_POSTMASTER,
							 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("test_doublewrite.spoil_redo_of",
							"File number of a relation of which redo of a page may fail half-way.",
							NULL,
							&tdw_spoil_redo_of,
							0, 0, INT_MAX,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("test_doublewrite.spoil_redo_kills",
							 "Whether it kills the process.",
							 NULL,
							 &tdw_spoil_redo_kills,
							 false,
							 PGC_POSTMASTER,
							 0,
							 NULL, NULL, NULL);
	MarkGUCPrefixReserved("test_doublewrite");

	if (tdw_spoil_redo_of != 0)
	{
		tdw_heap_redo = RmgrTable[RM_HEAP_ID].rm_redo;
		RmgrTable[RM_HEAP_ID].rm_redo = tdw_spoiling_redo;
	}

	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = tdw_shmem_startup;
}

/* ---------------------------------------------------------------------
 * Locks of the engine
 *
 * A test that holds a process at an injection point, with a lock held, must not
 * wait for that lock itself: waits for LWLocks cannot be interrupted, and it
 * would hang for ever.
 * ---------------------------------------------------------------------
 */

/* What all processes of the server wait for, as text */
static char *
tdw_waits(void)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		uint32		info = proc->wait_event_info;
		PgBackendStatus *status;

		if (proc->pid == 0 || proc == MyProc || info == 0)
			continue;
		status = pgstat_get_beentry_by_proc_number(i);
		appendStringInfo(&buf, "%s%d (%s) waits at %s \"%s\"",
						 buf.len > 0 ? "; " : "", proc->pid,
						 status ? GetBackendTypeDesc(status->st_backendType) : "?",
						 pgstat_get_wait_event_type(info),
						 pgstat_get_wait_event(info));
	}
	return buf.data;
}

/*
 * Take a lock of the engine, but give up if its holders do nothing for a
 * minute.  As long as batches or cycles come to an end, we just have to queue.
 */
static void
tdw_lock(LWLock *lock, LWLockMode mode, const char *name)
{
	TimestampTz started = GetCurrentTimestamp();
	uint64		batchno = DWCtl->log.next_batchno;
	uint64		cycles = pg_atomic_read_u64(&DWCtl->log.cycles_done);
	uint32		event = 0;

	while (!LWLockConditionalAcquire(lock, mode))
	{
		CHECK_FOR_INTERRUPTS();
		if (DWCtl->log.next_batchno != batchno || pg_atomic_read_u64(&DWCtl->log.cycles_done) != cycles)
		{
			LWLockAcquire(lock, mode);
			return;
		}
		if (TimestampDifferenceExceeds(started, GetCurrentTimestamp(),
									   TDW_LOCK_SECONDS * 1000))
			elog(ERROR, "test_doublewrite: no %s lock for %d seconds: %s",
				 name, TDW_LOCK_SECONDS, tdw_waits());
		if (event == 0)
			event = WaitEventExtensionNew(name);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10, event);
		ResetLatch(MyLatch);
	}
}

/*
 * Before a function of the engine is called that takes the lock itself.
 */
static void
tdw_wait_for_lock(LWLock *lock, const char *name)
{
	tdw_lock(lock, LW_EXCLUSIVE, name);
	LWLockRelease(lock);
}

/* ---------------------------------------------------------------------
 * SQL functions: driving the engine
 * ---------------------------------------------------------------------
 */

/* Only where home writes begin */
PG_FUNCTION_INFO_V1(dw_tear_at);
Datum
dw_tear_at(PG_FUNCTION_ARGS)
{
	tdw_attach(text_to_cstring(PG_GETARG_TEXT_PP(0)), "test_doublewrite_tear");
	PG_RETURN_VOID();
}

/*
 * If patient is false, do not wait for the lock beforehand: for tests of a
 * drain that has to wait after it has begun.
 */
PG_FUNCTION_INFO_V1(dw_drain);
Datum
dw_drain(PG_FUNCTION_ARGS)
{
	if (PG_GETARG_BOOL(0))
		tdw_wait_for_lock(DoubleWriteFlushLock, "DoubleWriteFlush");
	DoubleWriteDrain();
	PG_RETURN_VOID();
}

/*
 * The same where WAL is synced with fsync_writethrough, which servers on other
 * systems may be set to.  WAL is flushed before, as it would not be synced here.
 */
PG_FUNCTION_INFO_V1(dw_drain_writethrough);
Datum
dw_drain_writethrough(PG_FUNCTION_ARGS)
{
	int			save = wal_sync_method;

	XLogFlush(GetXLogInsertRecPtr());
	wal_sync_method = WAL_SYNC_METHOD_FSYNC_WRITETHROUGH;
	PG_TRY();
	{
		DoubleWriteDrain();
	}
	PG_FINALLY();
	{
		wal_sync_method = save;
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(dw_flush_batch_sql);
PG_FUNCTION_INFO_V1(dw_sync_cycle_sql);

Datum
dw_flush_batch_sql(PG_FUNCTION_ARGS)
{
	const DWPageSet *pages = PG_GETARG_BOOL(0) ? &DWAllPages : NULL;
	uint64		since = DW_FIRST_ATTEMPT;
	bool		flushed;

	tdw_wait_for_lock(DoubleWriteFlushLock, "DoubleWriteFlush");
	if (pages != NULL)
		PG_RETURN_BOOL(dw_try_home(pages, &since));
	flushed = dw_flush_batch(NULL);
	dw_carry_runs();
	PG_RETURN_BOOL(flushed);
}

Datum
dw_sync_cycle_sql(PG_FUNCTION_ARGS)
{
	uint64		begun;

	tdw_wait_for_lock(DoubleWriteSyncLock, "DoubleWriteSync");
	tdw_lock(DoubleWriteFlushLock, LW_SHARED, "DoubleWriteFlush");
	begun = DWCtl->log.cycles_begun;
	LWLockRelease(DoubleWriteFlushLock);
	dw_sync_cycle(begun);
	PG_RETURN_VOID();
}

/* Write copies home that no process has needed since the crash */
PG_FUNCTION_INFO_V1(dw_bring);
Datum
dw_bring(PG_FUNCTION_ARGS)
{
	(void) dw_bring_before(PG_UINT64_MAX);
	PG_RETURN_INT32(dw_copies_left());
}

static bool
tdw_tag_in_tablespace(const BufferTag *tag, const void *arg)
{
	return tag->spcOid == *(const Oid *) arg;
}

/* The same of one tablespace */
PG_FUNCTION_INFO_V1(dw_bring_in);
Datum
dw_bring_in(PG_FUNCTION_ARGS)
{
	Oid			tablespace = PG_GETARG_OID(0);
	DWPageSet	pages = {tdw_tag_in_tablespace, &tablespace, PG_INT32_MAX};

	dw_bring_copies(&pages, NULL);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(dw_copies_left_sql);
Datum
dw_copies_left_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(dw_copies_left());
}

/* Hold up home writes, as a base backup that copies this file does */
PG_FUNCTION_INFO_V1(dw_hold_home_writes);
Datum
dw_hold_home_writes(PG_FUNCTION_ARGS)
{
	DoubleWriteHoldHomeWrites(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	INJECTION_POINT("test-doublewrite-holding", NULL);
	DoubleWriteResumeHomeWrites();
	PG_RETURN_VOID();
}

/* Write home what has been sent */
PG_FUNCTION_INFO_V1(dw_carry_runs_sql);
Datum
dw_carry_runs_sql(PG_FUNCTION_ARGS)
{
	dw_carry_runs();
	PG_RETURN_VOID();
}

/* Stop with a PANIC that has nothing to do with a sync */
PG_FUNCTION_INFO_V1(dw_panic);
Datum
dw_panic(PG_FUNCTION_ARGS)
{
	elog(PANIC, "test_doublewrite was asked to panic");
}

/* Sync the directory of a relation, as a truncation does that finds no file */
PG_FUNCTION_INFO_V1(dw_sync_directory_critical);
Datum
dw_sync_directory_critical(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);

	START_CRIT_SECTION();
	(void) dw_sync_directory(&rel->rd_locator, ERROR);
	END_CRIT_SECTION();
	relation_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

/* Fill the table of directories to be synced, as if databases had been removed */
PG_FUNCTION_INFO_V1(dw_fill_removed_directories);
Datum
dw_fill_removed_directories(PG_FUNCTION_ARGS)
{
	for (Oid tablespace = FirstNormalObjectId; DWCtl->removals.ndirs < DW_REMOVED_DIRS; tablespace++)
		DoubleWriteRememberDatabaseRemoved(&tablespace, 1);
	PG_RETURN_VOID();
}

/* Push all pages of a relation out of shared buffers, into the stage */
PG_FUNCTION_INFO_V1(dw_evict);
Datum
dw_evict(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	int32		evicted;
	int32		flushed;
	int32		skipped;

	EvictRelUnpinnedBuffers(rel, &evicted, &flushed, &skipped);
	relation_close(rel, AccessShareLock);
	PG_RETURN_INT32(flushed);
}

/* Until the next checkpoint no page of the table is exempt, as if it had been truncated */
PG_FUNCTION_INFO_V1(dw_remember_truncated);
Datum
dw_remember_truncated(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);

	dw_remember_truncate(&rel->rd_locator);
	relation_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(dw_evict_all);
Datum
dw_evict_all(PG_FUNCTION_ARGS)
{
	int32		evicted;
	int32		flushed;
	int32		skipped;

	EvictAllUnpinnedBuffers(&evicted, &flushed, &skipped);
	PG_RETURN_INT32(flushed);
}

/*
 * Mark the pages of a relation dirty, with no change: for the engine, a change that
 * WAL knows nothing of, nor the heap.
 */
PG_FUNCTION_INFO_V1(dw_dirty);
Datum
dw_dirty(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);

	for (BlockNumber blkno = 0; blkno < nblocks; blkno++)
	{
		Buffer		buffer = ReadBuffer(rel, blkno);

		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		MarkBufferDirty(buffer);
		UnlockReleaseBuffer(buffer);
	}
	relation_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(dw_flush_one);
Datum
dw_flush_one(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	FlushOneBuffer(buffer);
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

/* A record of a page of a temporary relation, which is of no use, but allowed */
PG_FUNCTION_INFO_V1(dw_log_page);
Datum
dw_log_page(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	XLogBeginInsert();
	XLogRegisterBuffer(0, buffer, REGBUF_FORCE_IMAGE | REGBUF_STANDARD);
	PageSetLSN(BufferGetPage(buffer), XLogInsert(RM_XLOG_ID, XLOG_FPI));
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}

/* ---------------------------------------------------------------------
 * SQL functions: looking at the engine
 * ---------------------------------------------------------------------
 */

static Datum
tdw_make_row(FunctionCallInfo fcinfo, Datum *values, int nvalues)
{
	bool		nulls[32] = {0};
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (tupdesc->natts != nvalues || nvalues > lengthof(nulls))
		elog(ERROR, "unexpected number of columns");
	return HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls));
}

PG_FUNCTION_INFO_V1(dw_stats);
Datum
dw_stats(PG_FUNCTION_ARGS)
{
	DWStats    *s = &DWCtl->stats;
	pg_atomic_uint64 *counters[] = {
		&s->staged, &s->replaced, &s->stage_hits, &s->stage_full,
		&s->discarded, &s->batches, &s->logged, &s->exempt, &s->log_bytes,
		&s->log_writes, &s->log_syncs, &s->home_pages, &s->home_writes,
		&s->sync_cycles, &s->sync_cycle_files, &s->log_full,
		&s->foreground_syncs, &s->in_epoch, &s->logged_bytes,
		&s->atomic_pages, &s->atomic_writes, &s->only_hints
	};
	Datum		values[lengthof(counters)];

	for (int i = 0; i < lengthof(counters); i++)
		values[i] = UInt64GetDatum(pg_atomic_read_u64(counters[i]));
	return tdw_make_row(fcinfo, values, lengthof(values));
}

PG_FUNCTION_INFO_V1(dw_state);
Datum
dw_state(PG_FUNCTION_ARGS)
{
	Datum		values[16];
	int			n = 0;

	tdw_lock(DoubleWriteFlushLock, LW_SHARED, "DoubleWriteFlush");
	DWLockMutex();
	values[n++] = BoolGetDatum(DWCtl->started);
	values[n++] = BoolGetDatum(DWCtl->log.armed);
	values[n++] = LSNGetDatum(DWCtl->disarm_after);
	values[n++] = Int32GetDatum(DWCtl->stage.nslots);
	values[n++] = UInt32GetDatum(pg_atomic_read_u32(&DWCtl->stage.ninuse));
	values[n++] = Int32GetDatum(DWCtl->stage.nstaged);
	values[n++] = UInt64GetDatum(DWCtl->log.next_batchno);
	values[n++] = UInt64GetDatum(DWCtl->log.low_water);
	values[n++] = UInt64GetDatum(DWCtl->log.low_water_logged);
	values[n++] = UInt64GetDatum(DWCtl->log.segno);
	values[n++] = Int32GetDatum(DWCtl->log.blockno);
	values[n++] = UInt64GetDatum(DWCtl->log.first_segno);
	values[n++] = UInt64GetDatum(DWCtl->log.last_segno);
	values[n++] = LSNGetDatum(DWCtl->redo.last);
	values[n++] = LSNGetDatum(DWCtl->redo.pending);
	values[n++] = UInt64GetDatum(pg_atomic_read_u64(&DWCtl->log.cycles_done));
	DWUnlockMutex();
	LWLockRelease(DoubleWriteFlushLock);

	return tdw_make_row(fcinfo, values, n);
}

static bool
tdw_count_slot(const BufferTag *tag, const void *arg)
{
	++*(int *) unconstify(void *, arg);
	return false;
}

/* How many slots a removal of a relation looks at, if the stage is not empty */
PG_FUNCTION_INFO_V1(dw_slots_looked_at);
Datum
dw_slots_looked_at(PG_FUNCTION_ARGS)
{
	int			n = 0;

	(void) dw_discard_staged(tdw_count_slot, &n);
	PG_RETURN_INT32(n);
}

/* What the settings of the server ask for, as far as the engine has heard */
PG_FUNCTION_INFO_V1(dw_setting_sql);
Datum
dw_setting_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(DoubleWriteModeName(dw_setting())));
}

PG_FUNCTION_INFO_V1(dw_restore_stats);
Datum
dw_restore_stats(PG_FUNCTION_ARGS)
{
	DWRestoreStats *s = &DWCtl->restore;
	Datum		values[7];
	int			n = 0;

	values[n++] = BoolGetDatum(s->done);
	values[n++] = UInt64GetDatum(s->batches);
	values[n++] = UInt64GetDatum(s->examined);
	values[n++] = UInt64GetDatum(s->restored);
	values[n++] = UInt64GetDatum(s->identical);
	values[n++] = UInt64GetDatum(s->missing);
	values[n++] = UInt64GetDatum(s->bytes_read);
	return tdw_make_row(fcinfo, values, n);
}

/* ---------------------------------------------------------------------
 * The verdict of a start
 * ---------------------------------------------------------------------
 */

/* A start that finds what the words say, as in the table of doublewrite_scan.c */
static void
tdw_find_facts(DWStart *start, char *words)
{
	static DWFoundBatch packed;

	start->live.verdict = DW_LIVE_COMPLETE;
	for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
	{
#define TDW_FACT(name, field, value) \
		if (strcmp(word, name) == 0) \
		{ \
			start->field = (value); \
			continue; \
		}
		TDW_FACT("wanted", wanted, true);
		TDW_FACT("marker", label, DW_LABEL_MARKER);
		TDW_FACT("backup", label, DW_LABEL_BACKUP);
		TDW_FACT("invalid", label, DW_LABEL_INVALID);
		TDW_FACT("unreadable", label, DW_LABEL_UNREADABLE);
		TDW_FACT("from_backup", from_backup, true);
		TDW_FACT("missing", dir, DW_DIR_MISSING);
		TDW_FACT("open", dir, DW_DIR_WRONG_MODE);
		TDW_FACT("foreign", dir, DW_DIR_OTHER_DIRECTORY);
		TDW_FACT("read", read, true);
		TDW_FACT("header", scan.refused, DW_HEADER_OTHER_FORMAT);
		TDW_FACT("damaged", live.verdict, DW_LIVE_BAD_PAGE);
		TDW_FACT("hole", live.verdict, DW_LIVE_MISSING);
		TDW_FACT("empty", live.verdict, DW_LIVE_NONE);
		TDW_FACT("pages", live.npages, 1);
		TDW_FACT("packed", live.unreadable, &packed);
		TDW_FACT("tail", live.end_unreadable, true);
		TDW_FACT("checksums", checksums, true);
		TDW_FACT("stale", stale, true);
		TDW_FACT("copy", copy, true);
		TDW_FACT("wal_lost", wal_lost, true);
		elog(ERROR, "unknown fact \"%s\"", word);
	}
}

PG_FUNCTION_INFO_V1(dw_judge_start);
Datum
dw_judge_start(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {
		[DW_START_READ_LOG] = "READ_LOG",
		[DW_START_LEAVE_LOG] = "LEAVE_LOG",
		[DW_START_NOTHING] = "NOTHING",
		[DW_START_RESTORE] = "RESTORE",
		[DW_START_DISCARD_BACKUP] = "DISCARD_BACKUP",
		[DW_START_DISCARD_STALE] = "DISCARD_STALE",
		[DW_START_REFUSE_LABEL] = "REFUSE_LABEL",
		[DW_START_REFUSE_MARKER] = "REFUSE_MARKER",
		[DW_START_REFUSE_DIR] = "REFUSE_DIR",
		[DW_START_REFUSE_HEADER] = "REFUSE_HEADER",
		[DW_START_REFUSE_DAMAGED] = "REFUSE_DAMAGED",
		[DW_START_REFUSE_MISSING] = "REFUSE_MISSING",
		[DW_START_REFUSE_STALE] = "REFUSE_STALE",
		[DW_START_REFUSE_COMPRESSION] = "REFUSE_COMPRESSION",
		[DW_START_REFUSE_COPY] = "REFUSE_COPY",
		[DW_START_REFUSE_WAL] = "REFUSE_WAL",
	};
	DWStart    *start = palloc0_object(DWStart);

	tdw_find_facts(start, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_TEXT_P(cstring_to_text(names[DWJudgeStart(start)]));
}

/* ---------------------------------------------------------------------
 * Instant recovery
 * ---------------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(dw_instant_resident);
Datum
dw_instant_resident(PG_FUNCTION_ARGS)
{
#ifndef WIN32
	long		page_size = sysconf(_SC_PAGESIZE);
	char	   *from = (char *) TYPEALIGN(page_size, InstantPages);
	Size		npages = (Size) instant_recovery_memory * 1024 / page_size - 1;
	unsigned char *resident = palloc(npages);
	int64		nresident = 0;

	if (mincore(from, npages * page_size, (void *) resident) != 0)
		elog(ERROR, "could not look for memory: %m");
	for (Size i = 0; i < npages; i++)
		nresident += resident[i] & 1;
	PG_RETURN_INT64(nresident * page_size / 1024);
#else
	PG_RETURN_NULL();
#endif
}

/* What the extension shows under that name, and what it doesn't show */
PG_FUNCTION_INFO_V1(dw_figure);
Datum
dw_figure(PG_FUNCTION_ARGS)
{
	DoubleWriteSnapshot *snapshot = DoubleWriteTakeSnapshot();
	int64		value;

	InstantRecoveryPutFigures(snapshot);
	if (!DoubleWriteSnapshotValue(snapshot, text_to_cstring(PG_GETARG_TEXT_PP(0)), &value))
		PG_RETURN_NULL();
	PG_RETURN_INT64(value);
}
