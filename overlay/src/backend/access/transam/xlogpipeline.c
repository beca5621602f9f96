/*-------------------------------------------------------------------------
 *
 * xlogpipeline.c
 *		Decoding WAL in a process of its own, ahead of redo.
 *
 * Without this module the startup process does all the work of recovery: it
 * reads WAL, checks page headers and CRCs, decodes records, asks the kernel to
 * prefetch the blocks they refer to, and applies them.  With wal_pipeline, all
 * except the last is done by another process, while the startup process applies
 * earlier records.
 *
 * The idea
 * --------
 * The startup process stays in control.  Where WAL comes from (archive, pg_wal,
 * stream), which timeline to follow, when to wait, to pause, to promote or to
 * stop: all that is decided by xlogrecovery.c as ever.  What it hands over is
 * a range: "WAL from the record at START is readable up to LIMIT, in segment
 * files of timeline T, with page headers of timeline P".  The pipeline process
 * decodes the range into a queue in shared memory, from which the startup
 * process takes records until the range has ended.  Then it reads on by itself,
 * from the very next record, until it has another range to hand over.
 *
 * A range ends at LIMIT, or earlier at the first thing that the pipeline does
 * not understand: an invalid record, a segment that cannot be read, another
 * timeline on a page, a record that may change the timeline, a record that
 * does not fit into the queue.  It never reports and never decides: the startup
 * process meets the same WAL at the same place with its ordinary code, and
 * reports or waits or stops as it would have without a pipeline.  An obstacle
 * that is met too early costs time, but cannot change the outcome.
 *
 * Assumptions
 * -----------
 * - WAL below LIMIT does not change any more, or if it does (a segment that is
 *   restored once more from the archive) then not while a range is handed
 *   over: only the startup process causes that, while it reads by itself.  What
 *   is in recycled segments is recognized as elsewhere: page address, back-link
 *   and CRC do not fit.
 * - The files in the range are those that the startup process would open.
 *   Ranges end with the segment that the startup process has open, except in
 *   plain crash recovery on the newest timeline, where no other file could be
 *   chosen for the segments that follow.
 * - Shared memory has the same address in all processes.  So records can be
 *   used where they have been decoded, although they contain pointers.
 *
 * The queue
 * ---------
 * The pipeline process runs an ordinary XLogReader, whose decode buffer is in
 * shared memory.  The queue is the list of
 * decoded records in that circular buffer.  Head, tail and free space are known
 * to the reader only; the startup process follows the links.
 *
 *		   current              published
 *			  |                     |
 *	+-------+-v-----+-------+-------v-----------------+
 *	| free  | rec A | rec B | rec C | being decoded ...
 *	+-------+-|-----+-|-^---+-^-----+-----------------+
 *			  '-next--' '-next'
 *
 * "published" is the end of the last record whose link and contents are
 * complete (its blocks have been read, too); the startup process must not
 * look further.  "current" is the start of the record that it applies; what is
 * before may be overwritten.  It holds on to a record until it has found the
 * next one, because the link leads there.  Each of the two is written by one
 * process only, with a memory barrier, and not for each record:
 *
 * - The worker publishes what is ready before it does what may take long, that
 *   is, reads the next page of WAL or a block, and when it has come to the end of
 *   what it can do.  The startup process looks at "published" again when it has
 *   used up what it knows of.
 * - The startup process tells "current" every few records, when it passes
 *   wake_worker_at, and before it waits.  Until then it is too low, which means
 *   that some space is reused, and some file read again, a little later.
 *
 * So most records cost no barrier, and the cache lines of both stay where they
 * are.
 *
 * States
 * ------
 *				attach				 engage
 *	   ABSENT ---------> IDLE ------------------> RUNNING
 *		  ^               ^  (startup process)       | worker: obstacle
 *		  |               |                          v
 *		  |  worker exit  '-------- take back ----- ENDED
 *		  '------------------ (startup process, when all that is
 *		   from any state      published has been applied)
 *
 *	In IDLE the startup process owns the queue and the description of the range,
 *	in RUNNING and ENDED the worker owns the queue, and the range does not
 *	change.
 *
 * Reading blocks ahead
 * --------------------
 * The worker also reads the blocks that records need into shared buffers, so
 * that redo finds them there.  It asks the kernel to prefetch each block when
 * it decodes the record, and reads it when maintenance_io_concurrency others
 * have been asked for.  It publishes a record only when it has read its blocks.
 * That order is what makes it safe to read files that redo may drop, truncate
 * or replace: redo of a later record that does so cannot have begun, and the
 * effects of earlier ones are waited for:
 *
 * - creation of a file (which may follow a drop) or of a database, and
 *   truncation: xlogblockfilter.c bars such files until that has been replayed; then
 *   they are opened anew.
 * - an image or a record that initializes the block: no read until that has
 *   been replayed.  The page on disk may be torn before.
 * - whatever the record of an extension does: nothing is read until it has been
 *   replayed.
 * - extension: blocks that are not there yet are not read.
 *
 * Before it decodes WAL, the worker tells the kernel in the order of the files
 * which blocks it is going to read: see xlogahead.c.
 *
 * A process must not read a block unless redo knows that the process may do so.
 * So the worker is through with all reads before it ends a range, and
 * an error that it meets while reading ends the worker; the startup process
 * then meets the same error, or not.
 *
 * Waiting
 * -------
 * Both processes sleep on their process latch.  Before it goes to sleep, a process
 * writes what it waits for, then looks again; when it makes progress, it writes
 * that, then looks whether the other one waits.  Full barriers between the two
 * steps ensure that at least one of the processes notices.
 *
 * - startup_waits_at: the end of the current record, which has been applied, and
 *   nothing was published beyond it.  The worker wakes the startup process when
 *   a batch of records is ready, or when it cannot go on.  If it is the end of
 *   all that is published, it also tells the worker that even the last record
 *   has been applied, so I/O for its blocks is finished.  A flag would not do:
 *   the startup process may have found a record just after it had set it.
 * - wake_worker_at: the queue is full, or enough I/O is under way.  The startup
 *   process wakes the worker when it has come to this LSN, half-way through
 *   the queue, so that the worker does not wake up for each record.
 *
 * It is impossible that both sleep: the startup process wakes the worker before
 * it sleeps, and a worker that has published nothing new although all that was
 * published has been applied ends the range.  In both waits the process
 * handles its interrupts: redo of DROP DATABASE, for example, waits until all
 * processes, the worker too, have absorbed a barrier.  It does so before it
 * sleeps, too, because waits for I/O in between use the same latch.
 *
 * Errors and exits
 * ----------------
 * If the worker exits with an error, or because it has been terminated, what
 * it has published is still good; the startup process applies it, says so in the
 * log, goes on alone, and asks for another worker after a while.  The obstacle may
 * be a transient one, and a standby lives long; it may also be met again and
 * again, so the time doubles with each worker that does not live long.  If one
 * of the two dies, the postmaster resets everything, as it does when any process
 * dies that uses shared memory.  At a shutdown, the postmaster terminates both.
 * At the end of redo the startup process waits until the worker has detached.
 *
 * Why a background worker: a BackendType of its own would change the layout of
 * the statistics files and the ABI for extensions.  It is registered by the
 * startup process itself, after it has told the postmaster that redo starts:
 * before that the postmaster would not start workers after a crash.  It takes
 * one of max_worker_processes slots, until the end of recovery.  Without a free
 * slot, recovery works as without the pipeline.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/xlogpipeline.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogahead.h"
#include "access/xlogblockfilter.h"
#include "access/xlogpipeline.h"
#include "access/xlogprogress.h"
#include "access/xlogrecovery.h"
#include "access/xlogutils.h"
#include "catalog/pg_control.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "postmaster/startup.h"
#include "storage/aio_subsys.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "storage/spin.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

/*
 * Wake a waiting startup process when this much WAL is ready for it.  Decoding
 * it takes some 100 microseconds, many times as long as a wake-up; a larger
 * value would only make the startup process wait longer at the start of each
 * range.
 */
#define XLOG_PIPELINE_WAKE_BYTES	(64 * 1024)

/*
 * Tell the worker about so many records at once that they have been applied:
 * enough to make the barrier unimportant, and decoded they take less than a
 * quarter of the smallest queue, if they have no images.
 */
#define XLOG_PIPELINE_TELL_RECORDS	16

/*
 * Seconds until another worker is asked for when one is gone: so few that a
 * standby that has to catch up does not notice, and so many in the end that the
 * messages of one that fails each time do not fill the server log.  A worker
 * that lives longer than the latter counts as a good one.
 */
#define XLOG_PIPELINE_MIN_RESTART_DELAY 1.0
#define XLOG_PIPELINE_MAX_RESTART_DELAY 300.0

/* GUCs */
bool		wal_pipeline = true;
int			wal_pipeline_queue_size = 4096;

typedef enum XLogPipelineState
{
	XLOG_PIPELINE_ABSENT,		/* no worker is attached */
	XLOG_PIPELINE_IDLE,			/* worker waits for a range */
	XLOG_PIPELINE_RUNNING,		/* worker decodes a range */
	XLOG_PIPELINE_ENDED,		/* worker is done with it */
} XLogPipelineState;

/* What the startup process hands over */
typedef struct XLogPipelineRange
{
	XLogRecPtr	prev;			/* record before the first one */
	XLogRecPtr	start;			/* where to look for the first one */
	XLogRecPtr	limit;			/* WAL is readable up to here */
	TimeLineID	fileTLI;		/* timeline in the names of the files */
	XLogRecPtr	pagePtr;		/* last page validated before */
	TimeLineID	pageTLI;		/* timeline in its header */
} XLogPipelineRange;

typedef struct XLogPipelineCtlData
{
	slock_t		mutex;			/* for the next seven */
	ProcNumber	startup;		/* woken by the worker */
	ProcNumber	worker;			/* INVALID_PROC_NUMBER if there is none */
	bool		stopping;		/* redo has ended */
	bool		failed;			/* worker has exited with an error */
	uint64		blocks_read;	/* by workers that have exited */
	uint64		blocks_written; /* ... to make room for them */
	XLogAheadStats ahead;		/* of workers that have exited */

	pg_atomic_uint32 state;		/* XLogPipelineState, see States above */

	pg_atomic_uint32 reads_suspended;	/* written by startup process */
	XLogPipelineRange range;	/* written by startup process in IDLE */
	DecodedXLogRecord *first;	/* written by worker before it publishes */

	/* What one process writes for each record has cache lines of its own. */
	char		pad1[PG_CACHE_LINE_SIZE];
	pg_atomic_uint64 published; /* by worker: end of last record */
	pg_atomic_uint64 wake_worker_at;	/* by worker; cleared by both */
	char		pad2[PG_CACHE_LINE_SIZE];
	pg_atomic_uint64 current;	/* by startup process: start of record */
	pg_atomic_uint64 startup_waits_at;	/* by startup process: end of record;
										 * cleared by both */
	char		pad3[PG_CACHE_LINE_SIZE];
} XLogPipelineCtlData;

static XLogPipelineCtlData *XLogPipelineCtl = NULL;
static char *XLogPipelineQueue = NULL;

/*
 * Startup process: whether there has to be a worker, and the one that was asked
 * for, if any; when that was, and when to look whether it is still there, or to
 * ask for another one; all in seconds of a clock that is never set
 */
static bool pipeline_worker_wanted = false;
static BackgroundWorkerHandle *pipeline_worker_handle = NULL;
static double pipeline_worker_requested_at = 0;
static double pipeline_worker_look_at = 0;
static double pipeline_worker_restart_delay = XLOG_PIPELINE_MIN_RESTART_DELAY;
static bool pipeline_worker_loss_reported = false;

/*
 * Startup process: what has been handed over, how far it is known to have been
 * published, and how many records were taken since "current" was written
 */
static bool pipeline_engaged = false;
static DecodedXLogRecord *pipeline_current_record = NULL;
static XLogRecPtr pipeline_known_published = InvalidXLogRecPtr;
static int	pipeline_untold_records = 0;

/* Startup process: what has been done, for the log */
static uint64 pipeline_total_records = 0;
static uint64 pipeline_total_bytes = 0;
static uint64 pipeline_total_ranges = 0;
static uint64 pipeline_total_waits = 0;

/* Worker: the range it works on, its reader, the segment that is open */
static XLogPipelineRange pipeline_range;
static bool pipeline_obstructed;	/* the range cannot be continued */
static XLogReaderState *pipeline_reader = NULL;
static XLogPageFile pipeline_file = {.fd = -1};
static XLogRecPtr pipeline_woken_at = InvalidXLogRecPtr;

/* Worker: end of the last record that is ready except for its blocks */
static XLogRecPtr pipeline_ready_end = InvalidXLogRecPtr;

/* Worker: a block that the kernel has been asked to prefetch */
typedef struct XLogPipelineRead
{
	DecodedBkpBlock *block;
	XLogRecPtr	prev_end;		/* end of the record before */
} XLogPipelineRead;

/*
 * Worker: ring of the blocks of records that have not been published.
 * Positions only rise.
 */
#define XLOG_PIPELINE_READS		(MAX_IO_CONCURRENCY + 1)
static XLogPipelineRead *pipeline_reads = NULL;
static uint64 pipeline_reads_head = 0;
static uint64 pipeline_reads_tail = 0;

static int	pipeline_page_read(XLogReaderState *state, XLogRecPtr targetPagePtr,
							   int reqLen, XLogRecPtr targetRecPtr,
							   char *readBuf);
static bool pipeline_record_ready(DecodedXLogRecord *record);
static void pipeline_read_started(DecodedBkpBlock *block);
static void pipeline_publish(void);

/* ----------------------------------------------------------------
 * Shared memory
 * ----------------------------------------------------------------
 */

static Size
pipeline_queue_bytes(void)
{
	return (Size) wal_pipeline_queue_size * 1024;
}

Size
XLogPipelineShmemSize(void)
{
	Size		size = 0;

	if (!wal_pipeline)
		return 0;

	size = add_size(size, MAXALIGN(sizeof(XLogPipelineCtlData)));
	size = add_size(size, PG_CACHE_LINE_SIZE);
	size = add_size(size, pipeline_queue_bytes());
	return size;
}

void
XLogPipelineShmemInit(void)
{
	bool		found;

	if (!wal_pipeline)
		return;

	XLogPipelineCtl = (XLogPipelineCtlData *)
		ShmemInitStruct("WAL pipeline", XLogPipelineShmemSize(), &found);
	XLogPipelineQueue = (char *)
		TYPEALIGN(PG_CACHE_LINE_SIZE, XLogPipelineCtl + 1);

	if (found)
		return;

	memset(XLogPipelineCtl, 0, sizeof(XLogPipelineCtlData));
	SpinLockInit(&XLogPipelineCtl->mutex);
	XLogPipelineCtl->startup = INVALID_PROC_NUMBER;
	XLogPipelineCtl->worker = INVALID_PROC_NUMBER;
	pg_atomic_init_u32(&XLogPipelineCtl->state, XLOG_PIPELINE_ABSENT);
	pg_atomic_init_u32(&XLogPipelineCtl->reads_suspended, 0);
	pg_atomic_init_u64(&XLogPipelineCtl->published, InvalidXLogRecPtr);
	pg_atomic_init_u64(&XLogPipelineCtl->wake_worker_at, InvalidXLogRecPtr);
	pg_atomic_init_u64(&XLogPipelineCtl->current, InvalidXLogRecPtr);
	pg_atomic_init_u64(&XLogPipelineCtl->startup_waits_at, InvalidXLogRecPtr);
}

static XLogPipelineState
pipeline_state(void)
{
	return (XLogPipelineState)
		pg_atomic_read_membarrier_u32(&XLogPipelineCtl->state);
}

/*
 * Make a transition.  It fails only for the startup process, and only if the
 * worker has detached in the meantime.
 */
static bool
pipeline_change_state(XLogPipelineState from, XLogPipelineState to)
{
	uint32		expected = from;

	if (pg_atomic_compare_exchange_u32(&XLogPipelineCtl->state, &expected, to))
		return true;

	Assert(AmStartupProcess());
	Assert(expected == XLOG_PIPELINE_ABSENT);
	return false;
}

/*
 * Set the latch of a process, whose number is read from shared memory.  If it
 * has gone in the meantime, this may wake up another process, which does no harm.
 */
static void
pipeline_wake(ProcNumber *procno)
{
	ProcNumber	n;

	SpinLockAcquire(&XLogPipelineCtl->mutex);
	n = *procno;
	SpinLockRelease(&XLogPipelineCtl->mutex);

	if (n != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(n)->procLatch);
}

/* ----------------------------------------------------------------
 * Startup process
 * ----------------------------------------------------------------
 */

static double
pipeline_clock(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_DOUBLE(now);
}

/*
 * Ask for a worker.  Returns false if there is no slot for it.
 */
static bool
pipeline_request_worker(void)
{
	BackgroundWorker worker = {0};
	MemoryContext oldcontext;
	bool		registered;

	Assert(pipeline_worker_handle == NULL);

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	/* We start it again; the postmaster would, also when redo has ended. */
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "postgres");
	strcpy(worker.bgw_function_name, "XLogPipelineMain");
	strcpy(worker.bgw_name, "walpipeline");
	strcpy(worker.bgw_type, "walpipeline");

	pipeline_worker_requested_at = pipeline_clock();
	pipeline_worker_look_at = pipeline_worker_requested_at +
		XLOG_PIPELINE_MIN_RESTART_DELAY;
	pipeline_worker_loss_reported = false;

	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &pipeline_worker_handle);
	MemoryContextSwitchTo(oldcontext);
	return registered;
}

/*
 * The worker is gone, or about to go: say so, once, and when there will be
 * another one.
 */
static void
pipeline_report_loss(void)
{
	double		now = pipeline_clock();
	bool		failed;

	if (pipeline_worker_loss_reported)
		return;
	pipeline_worker_loss_reported = true;

	/* The whole server may be shutting down. */
	ProcessStartupProcInterrupts();

	SpinLockAcquire(&XLogPipelineCtl->mutex);
	failed = XLogPipelineCtl->failed;
	XLogPipelineCtl->failed = false;
	SpinLockRelease(&XLogPipelineCtl->mutex);

	if (now - pipeline_worker_requested_at > XLOG_PIPELINE_MAX_RESTART_DELAY)
		pipeline_worker_restart_delay = XLOG_PIPELINE_MIN_RESTART_DELAY;
	pipeline_worker_look_at = now + pipeline_worker_restart_delay;

	ereport(LOG,
			(failed ?
			 errmsg("WAL pipeline process has failed, recovery goes on without it") :
			 errmsg("WAL pipeline process has ended, recovery goes on without it"),
			 errdetail("It is started again in %.0f s.",
					   pipeline_worker_restart_delay)));

	pipeline_worker_restart_delay = Min(pipeline_worker_restart_delay * 2,
										XLOG_PIPELINE_MAX_RESTART_DELAY);
}

/*
 * No worker is attached, and none has a range.  See to it that there will be
 * one.  Called for each record, so it has to be cheap.
 */
static void
pipeline_look_after_worker(void)
{
	double		now = pipeline_clock();
	pid_t		pid;

	if (now < pipeline_worker_look_at)
		return;
	pipeline_worker_look_at = now + XLOG_PIPELINE_MIN_RESTART_DELAY;

	if (pipeline_worker_handle != NULL)
	{
		/* It may be on its way, or not quite gone. */
		if (GetBackgroundWorkerPid(pipeline_worker_handle, &pid) != BGWH_STOPPED)
			return;
		pfree(pipeline_worker_handle);
		pipeline_worker_handle = NULL;
		if (!pipeline_worker_loss_reported)
		{
			pipeline_report_loss();
			return;
		}
	}

	/* Without a free slot, come again; it has been said at the start. */
	if (!pipeline_request_worker())
	{
		pipeline_worker_look_at = now + pipeline_worker_restart_delay;
		pipeline_worker_restart_delay = Min(pipeline_worker_restart_delay * 2,
											XLOG_PIPELINE_MAX_RESTART_DELAY);
	}
}

/*
 * Ask for the worker.  It attaches some time later; until then, and if it
 * cannot be started, recovery goes on without it.
 */
void
XLogPipelineStart(void)
{
	pid_t		pid;

	/* In single-user mode there is no postmaster to start a process. */
	if (!wal_pipeline || !IsUnderPostmaster)
		return;

	Assert(AmStartupProcess());

	SpinLockAcquire(&XLogPipelineCtl->mutex);
	XLogPipelineCtl->startup = MyProcNumber;
	SpinLockRelease(&XLogPipelineCtl->mutex);

	pipeline_worker_wanted = true;
	if (!pipeline_request_worker())
		ereport(LOG,
				(errmsg("could not start the WAL pipeline, recovery goes on without it"),
				 errhint("You might need to increase \"%s\".",
						 "max_worker_processes")));

	/*
	 * Tests want it to take part from the first record on, unless it is gone
	 * before.
	 */
	while (IS_INJECTION_POINT_ATTACHED("xlogpipeline-wait-for-worker") &&
		   pipeline_worker_handle != NULL && !XLogPipelineIsIdle() &&
		   GetBackgroundWorkerPid(pipeline_worker_handle, &pid) != BGWH_STOPPED)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 100, WAIT_EVENT_WAL_PIPELINE_RECORD);
		ResetLatch(MyLatch);
		ProcessStartupProcInterrupts();
	}
}

/*
 * Redo has ended: make the worker go away, and forget the records that it has
 * decoded.  Does nothing if there is no pipeline.
 */
void
XLogPipelineStop(void)
{
	uint64		blocks_read;
	uint64		blocks_written;
	XLogAheadStats ahead;

	if (!wal_pipeline || !IsUnderPostmaster)
		return;

	SpinLockAcquire(&XLogPipelineCtl->mutex);
	XLogPipelineCtl->stopping = true;
	SpinLockRelease(&XLogPipelineCtl->mutex);

	/*
	 * From now on a worker that has not attached yet will not do so.  One
	 * that has attached ends soon, and sets our latch when it has detached.
	 */
	pipeline_worker_wanted = false;
	if (pipeline_worker_handle != NULL)
	{
		TerminateBackgroundWorker(pipeline_worker_handle);
		pfree(pipeline_worker_handle);
		pipeline_worker_handle = NULL;
	}
	while (pipeline_state() != XLOG_PIPELINE_ABSENT)
	{
		ProcessStartupProcInterrupts();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
						 WAIT_EVENT_WAL_PIPELINE_EXIT);
		ResetLatch(MyLatch);
	}

	pipeline_engaged = false;
	pipeline_current_record = NULL;

	SpinLockAcquire(&XLogPipelineCtl->mutex);
	blocks_read = XLogPipelineCtl->blocks_read;
	blocks_written = XLogPipelineCtl->blocks_written;
	ahead = XLogPipelineCtl->ahead;
	SpinLockRelease(&XLogPipelineCtl->mutex);

	ereport(LOG,
			(errmsg("WAL pipeline: decoded %" PRIu64 " records in %" PRIu64 " ranges, %" PRIu64 " kB of WAL, read %" PRIu64 " blocks and wrote %" PRIu64 "; redo waited %" PRIu64 " times",
					pipeline_total_records, pipeline_total_ranges,
					pipeline_total_bytes / 1024,
					blocks_read, blocks_written, pipeline_total_waits),
			 errdetail("It looked ahead in %" PRIu64 " kB of WAL, in %" PRIu64 " windows, and announced %" PRIu64 " blocks, and %" PRIu64 " in between, in %" PRIu64 " runs, with at most %d requests under way.",
					   ahead.wal_bytes / 1024, ahead.windows,
					   ahead.blocks, ahead.gap_blocks,
					   ahead.runs, ahead.most_requests)));
}

/*
 * Let the worker only decode from now on, and read no blocks, or read them
 * again.  The former is to be said before redo begins.
 */
void
XLogPipelineSuspendReads(bool suspended)
{
	if (wal_pipeline)
		pg_atomic_write_u32(&XLogPipelineCtl->reads_suspended, suspended);
}

/*
 * Return whether a range can be handed over.
 */
bool
XLogPipelineIsIdle(void)
{
	XLogPipelineState state;

	if (!pipeline_worker_wanted)
		return false;

	state = pipeline_state();
	if (unlikely(state == XLOG_PIPELINE_ABSENT))
		pipeline_look_after_worker();
	return state == XLOG_PIPELINE_IDLE;
}

/*
 * Return whether a range has been handed over, and not been taken back yet.
 */
bool
XLogPipelineIsEngaged(void)
{
	return pipeline_engaged;
}

/*
 * Hand over the WAL that follows the last record returned by 'reader', up to
 * 'limit'.  Returns false if there is no worker to take it.
 *
 * On success the caller has to take records from XLogPipelineNextRecord() until
 * that returns NULL.
 */
bool
XLogPipelineEngage(XLogReaderState *startup_reader, XLogRecPtr limit,
				   TimeLineID fileTLI)
{
	XLogPipelineRange *r;

	Assert(AmStartupProcess());
	Assert(!pipeline_engaged);
	Assert(!XLogRecPtrIsInvalid(startup_reader->ReadRecPtr));
	Assert(startup_reader->EndRecPtr < limit);

	if (!XLogPipelineIsIdle())
		return false;

	r = &XLogPipelineCtl->range;
	r->prev = startup_reader->ReadRecPtr;
	r->start = startup_reader->EndRecPtr;
	r->limit = limit;
	r->fileTLI = fileTLI;
	r->pagePtr = startup_reader->latestPagePtr;
	r->pageTLI = startup_reader->latestPageTLI;

	XLogPipelineCtl->first = NULL;
	pg_atomic_write_u64(&XLogPipelineCtl->published, r->start);
	pg_atomic_write_u64(&XLogPipelineCtl->current, InvalidXLogRecPtr);
	pg_atomic_write_u64(&XLogPipelineCtl->wake_worker_at, InvalidXLogRecPtr);
	pg_atomic_write_u64(&XLogPipelineCtl->startup_waits_at, InvalidXLogRecPtr);

	pipeline_engaged = true;
	pipeline_current_record = NULL;
	pipeline_known_published = r->start;
	pipeline_untold_records = 0;
	pipeline_total_ranges++;

	INJECTION_POINT("xlogpipeline-engage", NULL);

	/* If this fails, XLogPipelineNextRecord() will find the worker gone. */
	(void) pipeline_change_state(XLOG_PIPELINE_IDLE, XLOG_PIPELINE_RUNNING);
	pipeline_wake(&XLogPipelineCtl->worker);

	return true;
}

/*
 * The range has ended, and all its records have been applied.
 */
static void
pipeline_take_back(XLogPipelineState state, XLogRecPtr endptr)
{
	if (state == XLOG_PIPELINE_ENDED)
		(void) pipeline_change_state(XLOG_PIPELINE_ENDED, XLOG_PIPELINE_IDLE);
	else
		pipeline_report_loss();

	elog(DEBUG1, "WAL pipeline ended at %X/%X, handed over at %X/%X",
		 LSN_FORMAT_ARGS(endptr),
		 LSN_FORMAT_ARGS(XLogPipelineCtl->range.start));

	pipeline_total_bytes += endptr - XLogPipelineCtl->range.start;
	pipeline_engaged = false;
	pipeline_current_record = NULL;

	INJECTION_POINT("xlogpipeline-taken-back", NULL);
}

/*
 * Tell the worker which record is the current one, and wake it if it waits for
 * that.
 *
 * The barrier has two purposes.  What has been read of records before must not
 * be read after they may be overwritten.  And the worker, which writes
 * wake_worker_at before it looks at "current" for the last time, must see this
 * one, or else we see what it has written: here, or, where the machine reads
 * that early, with one of the next records, or in pipeline_wait_for_record().
 */
static void
pipeline_tell_current(void)
{
	XLogRecPtr	lsn = pipeline_current_record->lsn;
	XLogRecPtr	wake_at;

	pipeline_untold_records = 0;
	pg_atomic_write_membarrier_u64(&XLogPipelineCtl->current, lsn);

	wake_at = pg_atomic_read_u64(&XLogPipelineCtl->wake_worker_at);
	if (wake_at != InvalidXLogRecPtr && lsn >= wake_at &&
		pg_atomic_exchange_u64(&XLogPipelineCtl->wake_worker_at,
							   InvalidXLogRecPtr) != InvalidXLogRecPtr)
		pipeline_wake(&XLogPipelineCtl->worker);
}

/*
 * Wait until there is a record after 'endptr'.  Returns false if there will be
 * none.
 */
static bool
pipeline_wait_for_record(XLogRecPtr endptr)
{
	bool		found;

	INJECTION_POINT("xlogpipeline-record-missed", NULL);

	/* A worker that knows that all has been applied relies on "current", too. */
	if (pipeline_untold_records > 0)
		pipeline_tell_current();

	for (;;)
	{
		XLogPipelineState state;

		pg_atomic_write_membarrier_u64(&XLogPipelineCtl->startup_waits_at, endptr);
		INJECTION_POINT("xlogpipeline-startup-waits", NULL);

		/*
		 * The order matters: what was published before the end of the range
		 * is seen after it.
		 */
		state = pipeline_state();
		pipeline_known_published =
			pg_atomic_read_membarrier_u64(&XLogPipelineCtl->published);
		found = pipeline_known_published > endptr;
		if (found || state != XLOG_PIPELINE_RUNNING)
			break;

		/* All that it may have to do is to notice that we wait. */
		if (pg_atomic_exchange_u64(&XLogPipelineCtl->wake_worker_at,
								   InvalidXLogRecPtr) != InvalidXLogRecPtr)
			pipeline_wake(&XLogPipelineCtl->worker);

		pipeline_total_waits++;
		ProcessStartupProcInterrupts();
		/* the timer sets our latch, too */
		if (!StandbyMode)
			XLogProgressReportAgain();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
						 WAIT_EVENT_WAL_PIPELINE_RECORD);
		ResetLatch(MyLatch);
	}

	pg_atomic_write_u64(&XLogPipelineCtl->startup_waits_at, InvalidXLogRecPtr);
	return found;
}

/*
 * The processor will need what comes after this record: the pages of the next
 * one, and the one after that.  Both have been written by another process, or
 * long ago, and are not in its cache.
 */
static void
pipeline_prefetch_memory(DecodedXLogRecord *record)
{
#ifdef __GNUC__
	DecodedXLogRecord *next;

	if (record->next_lsn >= pipeline_known_published)
		return;
	next = record->next;
	for (int i = 0; i <= next->max_block_id; i++)
	{
		Buffer		buffer = next->blocks[i].prefetch_buffer;

		if (next->blocks[i].in_use && BufferIsValid(buffer))
		{
			char	   *page = (char *) BufferGetPage(buffer);

			__builtin_prefetch(page, 1);
			__builtin_prefetch(page + PG_CACHE_LINE_SIZE, 1);
			__builtin_prefetch(GetBufferDescriptor(buffer - 1), 1);
		}
	}
	if (next->next_lsn < pipeline_known_published)
		__builtin_prefetch(next->next);
#endif
}

/*
 * Return the next record of the range that has been handed over.  It is valid
 * until the next call.
 *
 * Returns NULL at the end of the range; the record before it was the last one
 * returned, or the last one before the range.
 */
DecodedXLogRecord *
XLogPipelineNextRecord(void)
{
	DecodedXLogRecord *next;
	XLogRecPtr	endptr;
	XLogRecPtr	wake_at;

	Assert(pipeline_engaged);

	endptr = pipeline_current_record ? pipeline_current_record->next_lsn :
		XLogPipelineCtl->range.start;

	if (pipeline_known_published <= endptr)
	{
		pipeline_known_published = pg_atomic_read_u64(&XLogPipelineCtl->published);
		if (pipeline_known_published <= endptr && !pipeline_wait_for_record(endptr))
		{
			pipeline_take_back(pipeline_state(), endptr);
			return NULL;
		}
		/* What was written before it was published is seen from here on. */
		pg_read_barrier();
	}

	next = pipeline_current_record ? pipeline_current_record->next :
		XLogPipelineCtl->first;
	Assert(next != NULL);
	Assert((char *) next >= XLogPipelineQueue &&
		   (char *) next < XLogPipelineQueue + pipeline_queue_bytes());
	Assert(next->lsn >= endptr);
	Assert(next->next_lsn <= pipeline_known_published);
	Assert(!next->oversized);

	pipeline_current_record = next;
	pipeline_total_records++;
	pipeline_prefetch_memory(next);

	/*
	 * From now on the previous record may be overwritten, but that is not
	 * urgent unless the worker waits for it.  If the worker has just begun to
	 * wait, and we miss that, we notice at the next record, or before we
	 * wait.
	 */
	pipeline_untold_records++;
	wake_at = pg_atomic_read_u64(&XLogPipelineCtl->wake_worker_at);
	if (pipeline_untold_records >= XLOG_PIPELINE_TELL_RECORDS ||
		unlikely(wake_at != InvalidXLogRecPtr && next->lsn >= wake_at))
		pipeline_tell_current();

	return next;
}

/* ----------------------------------------------------------------
 * Worker
 * ----------------------------------------------------------------
 */

/*
 * Exit callback.  What has been published stays valid.
 */
static void
pipeline_detach(int code, Datum arg)
{
	/*
	 * After an error, clean up as background processes do that go on.  It may
	 * have been thrown in the middle of a read: no process may be left
	 * waiting for a buffer of ours, and exit callbacks don't expect an AIO
	 * handle.
	 */
	LWLockReleaseAll();
	ConditionVariableCancelSleep();
	pgstat_report_wait_end();
	if (code != 0)
	{
		pgaio_error_cleanup();
		UnlockBuffers();
		ReleaseAuxProcessResources(false);
	}

	SpinLockAcquire(&XLogPipelineCtl->mutex);
	XLogPipelineCtl->worker = INVALID_PROC_NUMBER;
	XLogPipelineCtl->failed = (code != 0);
	XLogPipelineCtl->blocks_read += pgBufferUsage.shared_blks_read;
	XLogPipelineCtl->blocks_written += pgBufferUsage.shared_blks_written;
	XLogPipelineCtl->ahead.windows += xlog_ahead_stats.windows;
	XLogPipelineCtl->ahead.wal_bytes += xlog_ahead_stats.wal_bytes;
	XLogPipelineCtl->ahead.blocks += xlog_ahead_stats.blocks;
	XLogPipelineCtl->ahead.gap_blocks += xlog_ahead_stats.gap_blocks;
	XLogPipelineCtl->ahead.runs += xlog_ahead_stats.runs;
	XLogPipelineCtl->ahead.most_requests =
		Max(XLogPipelineCtl->ahead.most_requests, xlog_ahead_stats.most_requests);
	SpinLockRelease(&XLogPipelineCtl->mutex);

	(void) pg_atomic_exchange_u32(&XLogPipelineCtl->state, XLOG_PIPELINE_ABSENT);
	pipeline_wake(&XLogPipelineCtl->startup);
}

/*
 * Returns false if redo has already ended.
 */
static bool
pipeline_attach(void)
{
	bool		wanted;

	SpinLockAcquire(&XLogPipelineCtl->mutex);
	Assert(XLogPipelineCtl->worker == INVALID_PROC_NUMBER);
	wanted = !XLogPipelineCtl->stopping;
	if (wanted)
	{
		XLogPipelineCtl->worker = MyProcNumber;
		/* inside, so that XLogPipelineStop() waits for us if it has to */
		pg_atomic_write_u32(&XLogPipelineCtl->state, XLOG_PIPELINE_IDLE);
	}
	SpinLockRelease(&XLogPipelineCtl->mutex);

	if (wanted)
	{
		before_shmem_exit(pipeline_detach, (Datum) 0);
		pipeline_wake(&XLogPipelineCtl->startup);
	}
	return wanted;
}

/*
 * Become visible, and able to take part in what processes do together.  That is
 * the part of InitPostgres() that needs no database; we start too early for
 * BackgroundWorkerInitializeConnection().
 */
static void
pipeline_initialize(void)
{
	static XLogReaderRoutine routine = {.page_read = pipeline_page_read};

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGUSR1, procsignal_sigusr1_handler);
	BackgroundWorkerUnblockSignals();

	InitProcessPhase2();		/* else our wait events would not be shown */
	ProcSignalInit(NULL, 0);
	InitializeSessionUserIdStandalone();
	pgstat_beinit();
	pgstat_bestart_initial();
	pgstat_bestart_final();
	SetProcessingMode(NormalProcessing);

	/*
	 * md.c must treat files that are missing as it does for the startup
	 * process: they are not there yet, or not any more.
	 */
	InRecovery = true;

	/* for the buffers that we pin while reading */
	CreateAuxProcessResourceOwner();

	pipeline_reader = XLogReaderAllocate(wal_segment_size, NULL, &routine, NULL);
	if (pipeline_reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	pipeline_reader->system_identifier = GetSystemIdentifier();
	XLogReaderSetDecodeBuffer(pipeline_reader, XLogPipelineQueue,
							  pipeline_queue_bytes());
	XLogBlockFilterInit(pipeline_reader, pipeline_queue_bytes(),
						pipeline_record_ready, pipeline_read_started);
	pipeline_reads = palloc(sizeof(XLogPipelineRead) * XLOG_PIPELINE_READS);
}

/*
 * XLogReaderRoutine->page_read callback.  Never waits; pretends that it would
 * have to, so that the reader has nothing to report.
 */
static int
pipeline_page_read(XLogReaderState *state, XLogRecPtr targetPagePtr, int reqLen,
				   XLogRecPtr targetRecPtr, char *readBuf)
{
	if (targetPagePtr + reqLen > pipeline_range.limit)
	{
		pipeline_obstructed = true;
		return XLREAD_WOULDBLOCK;
	}

	/*
	 * This process is not told which relations are dropped.  So that the
	 * files of those do not stay open for long, close all once in a while.
	 */
	if (!XLByteInSeg(targetPagePtr, pipeline_file.segno, wal_segment_size))
		smgrdestroyall();

	/* Have redo busy meanwhile. */
	pipeline_publish();

	if (XLogAheadReadPage(&pipeline_file, pipeline_range.fileTLI, targetPagePtr,
						  readBuf) != XLOG_BLCKSZ)
	{
		pipeline_obstructed = true;
		return XLREAD_WOULDBLOCK;
	}

	state->seg.ws_tli = pipeline_range.fileTLI;
	return (int) Min(pipeline_range.limit - targetPagePtr, XLOG_BLCKSZ);
}

/*
 * Return whether redo of this record can change the timeline.  The startup process
 * decides where to go on when it has applied it.
 */
static bool
pipeline_may_change_timeline(DecodedXLogRecord *record)
{
	uint8		info = record->header.xl_info & ~XLR_INFO_MASK;

	return record->header.xl_rmid == RM_XLOG_ID &&
		(info == XLOG_CHECKPOINT_SHUTDOWN || info == XLOG_END_OF_RECOVERY);
}

/*
 * Wake the startup process, if it waits.
 */
static void
pipeline_wake_startup(void)
{
	if (pg_atomic_read_membarrier_u64(&XLogPipelineCtl->startup_waits_at) !=
		InvalidXLogRecPtr &&
		pg_atomic_exchange_u64(&XLogPipelineCtl->startup_waits_at,
							   InvalidXLogRecPtr) != InvalidXLogRecPtr)
		pipeline_wake(&XLogPipelineCtl->startup);
}

/*
 * Publish the records whose blocks have been read.
 */
static void
pipeline_publish(void)
{
	XLogRecPtr	end = pipeline_ready_end;

	if (pipeline_reads_head != pipeline_reads_tail)
		end = pipeline_reads[pipeline_reads_tail % XLOG_PIPELINE_READS].prev_end;

	if (end <= pg_atomic_read_u64(&XLogPipelineCtl->published))
		return;

	/* The barrier before makes records and links visible, too. */
	pg_atomic_write_membarrier_u64(&XLogPipelineCtl->published, end);

	if (end - pipeline_woken_at >= XLOG_PIPELINE_WAKE_BYTES)
	{
		pipeline_wake_startup();
		pipeline_woken_at = end;
	}
}

/*
 * Return whether the file contains the block.  What smgr remembers of its length is
 * good as a lower limit, since files do not become shorter without our noticing.
 */
static bool
pipeline_block_exists(SMgrRelation reln, DecodedBkpBlock *block)
{
	if (block->blkno < smgrnblocks(reln, block->forknum))
		return true;
	reln->smgr_cached_nblocks[block->forknum] = InvalidBlockNumber;
	return block->blkno < smgrnblocks(reln, block->forknum);
}

/*
 * Read the oldest block that was asked for into shared buffers.
 */
static void
pipeline_finish_read(void)
{
	DecodedBkpBlock *block =
		pipeline_reads[pipeline_reads_tail % XLOG_PIPELINE_READS].block;
	SMgrRelation reln = smgropen(block->rlocator, INVALID_PROC_NUMBER);

	Assert(pipeline_reads_tail < pipeline_reads_head);

	/* The records before this one wait for nothing. */
	pipeline_publish();

	if (pipeline_block_exists(reln, block))
	{
		INJECTION_POINT("xlogpipeline-read-block", NULL);

		/* What to do about a damaged page is up to redo. */
		block->prefetch_buffer = ReadBufferIfIntact(block->rlocator,
													block->forknum,
													block->blkno);
		if (BufferIsValid(block->prefetch_buffer))
			ReleaseBuffer(block->prefetch_buffer);
	}
	pipeline_reads_tail++;
}

/*
 * Callback of XLogBlockFilterAdvance(): the kernel has been asked to prefetch a
 * block of the record that comes next.
 */
static void
pipeline_read_started(DecodedBkpBlock *block)
{
	XLogPipelineRead *read;

	while (pipeline_reads_head - pipeline_reads_tail >=
		   Max(maintenance_io_concurrency, 1))
		pipeline_finish_read();

	read = &pipeline_reads[pipeline_reads_head++ % XLOG_PIPELINE_READS];
	read->block = block;
	read->prev_end = pipeline_ready_end;
}

/*
 * Read the blocks that have been asked for, except those of a record that is not
 * ready now: it is not going to be taken.
 */
static void
pipeline_finish_reads(void)
{
	while (pipeline_reads_tail < pipeline_reads_head &&
		   pipeline_reads[pipeline_reads_tail % XLOG_PIPELINE_READS].prev_end <
		   pipeline_ready_end)
		pipeline_finish_read();
	pipeline_reads_tail = pipeline_reads_head;
	pipeline_publish();
}

/*
 * Callback of XLogBlockFilterAdvance(): a record has been decoded, and its blocks
 * have been looked at.  Returns false to stop reading ahead.
 */
static bool
pipeline_record_ready(DecodedXLogRecord *record)
{
	Assert(!record->oversized);

	INJECTION_POINT("xlogpipeline-record-ready", NULL);
	Assert(!XLogAheadHolds(record->lsn));

	if (pipeline_obstructed)
		return false;

	/* The startup process wants to see these by itself. */
	if (!XLogRecPtrIsInvalid(pipeline_reader->overwrittenRecPtr) ||
		pipeline_reader->latestPageTLI != pipeline_range.pageTLI)
	{
		pipeline_obstructed = true;
		return false;
	}

	if (XLogPipelineCtl->first == NULL)
		XLogPipelineCtl->first = record;

	pipeline_ready_end = record->next_lsn;

	if (pipeline_may_change_timeline(record))
	{
		pipeline_obstructed = true;
		return false;
	}

	/* Interrupts are for the main loop, and so is looking ahead. */
	return !InterruptPending && !ConfigReloadPending &&
		!ShutdownRequestPending && !XLogAheadHolds(pipeline_ready_end);
}

/*
 * Suspend or resume reading of blocks as the startup process wants.  When it is
 * resumed, it is of use to look ahead in what is left of the range.
 */
static void
pipeline_follow_reads(void)
{
	bool		suspended = pg_atomic_read_u32(&XLogPipelineCtl->reads_suspended) != 0;

	if (suspended == XLogBlockFilterSuspended)
		return;
	XLogBlockFilterSuspended = suspended;
	if (!suspended)
		XLogAheadBegin(pipeline_ready_end, pipeline_range.limit,
					   pipeline_range.fileTLI);
}

static void
pipeline_begin_range(void)
{
	pipeline_range = XLogPipelineCtl->range;
	pipeline_obstructed = false;
	pipeline_woken_at = pipeline_range.start;
	pipeline_ready_end = pipeline_range.start;
	pipeline_reads_tail = pipeline_reads_head;

	/*
	 * What the reader holds of a page came from the files of another range,
	 * which may have been those of another timeline: read it again.
	 */
	pipeline_reader->seg.ws_segno = 0;
	pipeline_reader->segoff = 0;
	pipeline_reader->readLen = 0;

	XLogBlockFilterContinue(pipeline_range.prev, pipeline_range.start);
	pipeline_reader->latestPagePtr = pipeline_range.pagePtr;
	pipeline_reader->latestPageTLI = pipeline_range.pageTLI;
	pipeline_reader->overwrittenRecPtr = InvalidXLogRecPtr;

	XLogBlockFilterSuspended = true;
	pipeline_follow_reads();

	INJECTION_POINT("xlogpipeline-begin-range", NULL);
}

static void
pipeline_end_range(void)
{
	XLogAheadPause();
	XLogAheadCloseFile(&pipeline_file);
	smgrdestroyall();
	pgstat_report_wal(true);	/* else reads are shown when a standby ends */

	INJECTION_POINT("xlogpipeline-end-range", NULL);

	(void) pipeline_change_state(XLOG_PIPELINE_RUNNING, XLOG_PIPELINE_ENDED);
	pipeline_wake_startup();
}

/*
 * Decode as much of the range as possible.  Returns whether it makes sense to
 * go on at once; if not, wake_worker_at has been set, or the range has ended.
 */
static bool
pipeline_advance(void)
{
	XLogRecPtr	published = pg_atomic_read_u64(&XLogPipelineCtl->published);
	XLogRecPtr	current;
	bool		all_applied;
	bool		progress;

	/*
	 * If the startup process waits at the end of what has been published, it
	 * has applied everything, and that stays so until we publish more.
	 */
	all_applied =
		pg_atomic_read_membarrier_u64(&XLogPipelineCtl->startup_waits_at) == published;
	INJECTION_POINT("xlogpipeline-advance", NULL);
	current = pg_atomic_read_membarrier_u64(&XLogPipelineCtl->current);
	XLogBlockFilterRelease(current);
	Assert(!all_applied || pipeline_reader->EndRecPtr == published);

	XLogBlockFilterAdvance(all_applied ? pipeline_reader->EndRecPtr :
						   pipeline_reader->ReadRecPtr);
	pipeline_finish_reads();

	progress = pg_atomic_read_u64(&XLogPipelineCtl->published) != published;
	if (pipeline_reader->errormsg_deferred)
		pipeline_obstructed = true;
	else if (all_applied && !progress && !InterruptPending &&
			 !ConfigReloadPending && !ShutdownRequestPending)
	{
		/* Only the next record itself is in the way. */
		pipeline_obstructed = true;
	}

	if (pipeline_obstructed)
	{
		pipeline_end_range();
		return false;
	}

	pipeline_wake_startup();
	pipeline_woken_at = published = pg_atomic_read_u64(&XLogPipelineCtl->published);

	/* Sleep until half of the queue is free, or the startup process waits. */
	current = pipeline_reader->ReadRecPtr;
	current += (published - current) / 2;
	pg_atomic_write_membarrier_u64(&XLogPipelineCtl->wake_worker_at, current);
	return pg_atomic_read_membarrier_u64(&XLogPipelineCtl->current) >= current ||
		pg_atomic_read_membarrier_u64(&XLogPipelineCtl->startup_waits_at) == published;
}

/*
 * Main entry point of the worker.
 */
void
XLogPipelineMain(Datum main_arg)
{
	bool		running = false;

	pipeline_initialize();
	if (!pipeline_attach())
		proc_exit(0);

	INJECTION_POINT("xlogpipeline-attached", NULL);

	for (;;)
	{
		bool		again = false;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();

		if (ShutdownRequestPending)
			proc_exit(0);

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			XLogBlockFilterForgetReads();
		}

		if (pipeline_state() == XLOG_PIPELINE_RUNNING)
		{
			if (!running)
				pipeline_begin_range();
			else
				pipeline_follow_reads();
			if (!XLogAheadHolds(pipeline_ready_end))
				again = pipeline_advance();
			running = !pipeline_obstructed;
			if (running && XLogAheadStep(pipeline_ready_end))
				again = true;
		}

		/*
		 * The latch that came with a signal was reset by a wait for I/O,
		 * which cannot handle interrupts if a lock was held; the startup
		 * process may wait for its barrier.
		 */
		if (ShutdownRequestPending || ConfigReloadPending || InterruptPending)
			again = true;

		if (!again)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
							 running ? WAIT_EVENT_WAL_PIPELINE_REPLAY :
							 WAIT_EVENT_WAL_PIPELINE_MAIN);
	}
}
