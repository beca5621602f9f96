/*-------------------------------------------------------------------------
 *
 * test_points.c
 *		Crashes, errors and process deaths at injection points.
 *
 * What happens at a point can be set by SQL functions, and, as SQL cannot be
 * used during redo, by settings that are read at server start.  The library
 * must be in shared_preload_libraries.
 *
 * Another module may say which hits of a point count: see points_filter.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/test/modules/test_points/test_points.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogutils.h"
#include "catalog/pg_database_d.h"
#include "catalog/pg_tablespace_d.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/startup.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/injection_point.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

#define MAX_POINTS		16
#define POINT_NAME_LEN	64

typedef enum TestPointAction
{
	POINT_NONE,					/* the point is not attached */
	POINT_CRASH,				/* everything dies at once */
	POINT_KILL,					/* this process gets SIGKILL */
	POINT_FAIL,					/* an error is raised */
	POINT_HOLD,					/* this process stays there until it dies */
	POINT_TERMINATE,			/* this process gets SIGTERM */
	POINT_PAUSE,				/* ... until a file allows it to go on */
	POINT_BLOCK,				/* ... until the point is cleared */
	POINT_SLEEP,				/* ... for 1.2 seconds */
	POINT_AWAIT_END_OF_RECOVERY,	/* ... until recovery has ended */
} TestPointAction;

typedef struct TestPoint
{
	char		name[POINT_NAME_LEN];
	TestPointAction action;
	int			errnum;			/* for POINT_FAIL */
	int			nth;			/* first hit that acts, counted from 1 */
	int			times;			/* number of hits that act */
	int			hits;			/* so far */
	Oid			object;			/* only hits for it count, or 0: all */
} TestPoint;

typedef struct TestPointsShared
{
	slock_t		mutex;
	int			npoints;
	TestPoint	points[MAX_POINTS];
} TestPointsShared;

static TestPointsShared *points_shared = NULL;

/*
 * If a point is set for an object, what that is depends on the code there: the function
 * that a module has put into this rendezvous variable says whether a hit is for it.
 */
typedef bool (*TestPointFilter) (Oid object);

static TestPointFilter *points_filter = NULL;

/* settings */
static char *crash_at = NULL;
static char *fail_at = NULL;
static char *hold_at = NULL;
static char *terminate_at = NULL;
static char *pause_at = NULL;
static char *await_end_of_recovery_at = NULL;
static int	cleanup_reads = 0;

/* In the data directory; ends a pause, and goes */
#define RESUME_FILE		"test_points.resume"

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

extern PGDLLEXPORT void test_points_hit(const char *name,
										const void *private_data,
										void *arg);

/* ---------------------------------------------------------------------
 * Points
 * ---------------------------------------------------------------------
 */

/* The caller holds the mutex, or is alone. */
static TestPoint *
find_point(const char *name)
{
	for (int i = 0; i < points_shared->npoints; i++)
	{
		if (strcmp(points_shared->points[i].name, name) == 0)
			return &points_shared->points[i];
	}
	return NULL;
}

/* Return a copy of what is set for a point, and whether anything is. */
static bool
get_point(const char *name, TestPoint *copy)
{
	TestPoint  *point;

	if (points_shared == NULL)
		elog(ERROR, "test_points must be in shared_preload_libraries");

	SpinLockAcquire(&points_shared->mutex);
	point = find_point(name);
	if (point != NULL)
		*copy = *point;
	SpinLockRelease(&points_shared->mutex);
	return point != NULL;
}

/*
 * Say what is to happen at a point from now on.
 */
static void
set_point(const char *name, TestPoint new_point)
{
	TestPoint	old;
	TestPoint  *point;

	if (strlen(name) >= POINT_NAME_LEN)
		elog(ERROR, "injection point name \"%s\" is too long", name);
	strlcpy(new_point.name, name, POINT_NAME_LEN);

	if (!get_point(name, &old) || old.action == POINT_NONE)
		InjectionPointAttach(name, "test_points", "test_points_hit", NULL, 0);

	SpinLockAcquire(&points_shared->mutex);
	point = find_point(name);
	if (point == NULL && points_shared->npoints < MAX_POINTS)
		point = &points_shared->points[points_shared->npoints++];
	if (point != NULL)
		*point = new_point;
	SpinLockRelease(&points_shared->mutex);

	if (point == NULL)
		elog(ERROR, "too many injection points");
}

/*
 * Let nothing happen at a point any more; others may attach it then.
 */
static void
clear_point(const char *name)
{
	TestPoint	old;
	TestPoint  *point;

	if (!get_point(name, &old) || old.action == POINT_NONE)
		return;

	SpinLockAcquire(&points_shared->mutex);
	point = find_point(name);
	point->action = POINT_NONE;
	point->hits = 0;
	SpinLockRelease(&points_shared->mutex);

	(void) InjectionPointDetach(name);
}

static int
parse_errno(const char *name)
{
	if (strcmp(name, "EIO") == 0)
		return EIO;
	if (strcmp(name, "ENOSPC") == 0)
		return ENOSPC;
#ifdef EDQUOT
	if (strcmp(name, "EDQUOT") == 0)
		return EDQUOT;
#endif
	if (strcmp(name, "EAGAIN") == 0)
		return EAGAIN;
	if (strcmp(name, "EMFILE") == 0)
		return EMFILE;
	if (strcmp(name, "EINVAL") == 0)
		return EINVAL;
	if (strcmp(name, "EPERM") == 0)
		return EPERM;
	elog(ERROR, "unknown errno \"%s\"", name);
}

/*
 * Set points from a comma-separated list of items, each of fields separated
 * by colons: name:errno[:nth[:times]] for errors, else name[:nth[:times]].
 */
static void
set_points(const char *list, TestPointAction action)
{
	char	   *copy;
	char	   *save_item;

	if (list == NULL || list[0] == '\0')
		return;

	copy = pstrdup(list);
	for (char *item = strtok_r(copy, ", ", &save_item);
		 item != NULL;
		 item = strtok_r(NULL, ", ", &save_item))
	{
		TestPoint	point = {.action = action,.nth = 1,.times = 1};
		char	   *save_field;
		char	   *name = strtok_r(item, ":", &save_field);
		char	   *field;

		if (action == POINT_FAIL)
		{
			field = strtok_r(NULL, ":", &save_field);
			point.errnum = parse_errno(field ? field : "");
		}
		field = strtok_r(NULL, ":", &save_field);
		if (field != NULL)
			point.nth = atoi(field);
		field = strtok_r(NULL, ":", &save_field);
		if (field != NULL)
			point.times = atoi(field);
		set_point(name, point);
	}
	pfree(copy);
}

/*
 * Signal all processes of the server except this one and the postmaster, also those
 * that have been forked and have no PGPROC yet, where the system lists them: they
 * would be left waiting for the locks of the dead.
 */
static void
signal_others(int signo)
{
	char		path[MAXPGPATH];
	FILE	   *children;
	int			pid;

	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		pid = ProcGlobal->allProcs[i].pid;
		if (pid > 0 && pid != MyProcPid)
			kill(pid, signo);
	}
	if (!IsUnderPostmaster)
		return;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children",
			 (int) PostmasterPid, (int) PostmasterPid);
	children = fopen(path, "r");
	while (children != NULL && fscanf(children, "%d", &pid) == 1)
	{
		if (pid != MyProcPid)
			kill(pid, signo);
	}
	if (children != NULL)
		fclose(children);
}

/*
 * Wait, for a second at most, until a process that has been sent SIGSTOP has
 * stopped, where the system tells.
 */
static void
await_stop(pid_t pid)
{
	char		path[MAXPGPATH];

	snprintf(path, sizeof(path), "/proc/%d/stat", (int) pid);
	for (int i = 0; i < 1000; i++)
	{
		FILE	   *stat = fopen(path, "r");
		char		state = 'T';

		if (stat == NULL)
			return;
		if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
			state = 'T';
		fclose(stat);
		if (state == 'T')
			return;
		pg_usleep(1000);
	}
}

/*
 * The machine crashes: stop all processes of the server so that none writes
 * any more, and none is forked, then kill them.
 */
static void
point_crash(const char *name)
{
	write_stderr("test_points: crash at injection point \"%s\"\n", name);

	if (IsUnderPostmaster)
		kill(PostmasterPid, SIGSTOP);
	signal_others(SIGSTOP);
	if (IsUnderPostmaster)
		await_stop(PostmasterPid);
	signal_others(SIGSTOP);		/* what has been forked meanwhile */
	signal_others(SIGKILL);
	if (IsUnderPostmaster)
		kill(PostmasterPid, SIGKILL);
	kill(MyProcPid, SIGKILL);
}

/*
 * Wait for the end of the server, or until a fast stop ends the startup process.
 * For processes that no session can wake up, as no client can connect.  Not for the
 * background writer and the checkpointer in recovery, for which the startup process may
 * wait, and a fast stop for the startup process.
 */
static void
point_hold(const char *name)
{
	if ((AmBackgroundWriterProcess() || AmCheckpointerProcess()) && RecoveryInProgress())
		return;
	ereport(LOG,
			(errmsg("test_points: held at injection point \"%s\"", name)));
	for (;;)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
						 PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (AmStartupProcess())
			ProcessStartupProcInterrupts();
	}
}

/*
 * Wait for the end of recovery, but not if it has ended.  For processes that hold
 * locks which a session that would wake them up may need.
 */
static void
point_await_end_of_recovery(const char *name)
{
	TimestampTz deadline;

	if (GetRecoveryState() == RECOVERY_STATE_DONE || AmStartupProcess())
		return;
	ereport(LOG,
			(errmsg("test_points: waiting for the end of recovery at injection point \"%s\"", name)));
	deadline = TimestampTzPlusSeconds(GetCurrentTimestamp(), 180);
	while (GetRecoveryState() != RECOVERY_STATE_DONE)
	{
		if (GetCurrentTimestamp() > deadline)
			elog(PANIC, "recovery has not ended");
		pg_usleep(1000);
	}
}

/*
 * Wait until the test has made a file.  Signals are handled, but not looked at.
 */
static void
point_pause(const char *name)
{
	struct stat st;

	ereport(LOG,
			(errmsg("test_points: paused at injection point \"%s\"", name)));
	/* even if it has: what is due after a few milliseconds is, then */
	do
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 20,
						 PG_WAIT_EXTENSION);
	} while (stat(RESUME_FILE, &st) < 0);
	unlink(RESUME_FILE);
}

/*
 * Stand in for a file system that is frozen: a write does not come back, and nothing
 * interrupts it.
 */
static void
point_block(const char *name)
{
	bool		blocked = true;

	while (blocked)
	{
		TestPoint  *point;

		pg_usleep(1000);
		SpinLockAcquire(&points_shared->mutex);
		point = find_point(name);
		blocked = point != NULL && point->action == POINT_BLOCK;
		SpinLockRelease(&points_shared->mutex);
	}
}

static void
point_throw(const char *name, int errnum)
{
	errno = errnum;
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("test error at injection point \"%s\": %m", name)));
}

/*
 * Callback of all points.  If the code at the point passes an int, that is
 * where it wants an errno value; else an error is thrown.
 */
void
test_points_hit(const char *name, const void *private_data, void *arg)
{
	TestPointAction action = POINT_NONE;
	int			errnum = 0;
	TestPoint  *point;

	/* with EXEC_BACKEND, a client that is refused early */
	if (points_shared == NULL)
		return;

	SpinLockAcquire(&points_shared->mutex);
	point = find_point(name);
	if (point != NULL && point->action != POINT_NONE &&
		(point->object == InvalidOid || (*points_filter) (point->object)))
	{
		point->hits++;
		if (point->hits >= point->nth && point->hits - point->nth < point->times)
		{
			action = point->action;
			errnum = point->errnum;
		}
	}
	SpinLockRelease(&points_shared->mutex);

	switch (action)
	{
		case POINT_NONE:
			break;
		case POINT_CRASH:
			point_crash(name);
			break;
		case POINT_KILL:
			write_stderr("test_points: process %d dies at injection point \"%s\"\n",
						 MyProcPid, name);
			kill(MyProcPid, SIGKILL);
			break;
		case POINT_FAIL:
			INJECTION_POINT("test-points-fail", NULL);
			if (arg != NULL)
				*(int *) arg = errnum;
			else
				point_throw(name, errnum);
			break;
		case POINT_HOLD:
			point_hold(name);
			break;
		case POINT_TERMINATE:
			write_stderr("test_points: process is terminated at injection point \"%s\"\n",
						 name);
			kill(MyProcPid, SIGTERM);
			break;
		case POINT_PAUSE:
			point_pause(name);
			break;
		case POINT_BLOCK:
			point_block(name);
			break;
		case POINT_SLEEP:
			pg_usleep(1200 * 1000);
			break;
		case POINT_AWAIT_END_OF_RECOVERY:
			point_await_end_of_recovery(name);
			break;
	}
}

/* ---------------------------------------------------------------------
 * Initialisation
 * ---------------------------------------------------------------------
 */

static void
points_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(MAXALIGN(sizeof(TestPointsShared)));
}

static void
points_shmem_startup(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	points_shared = ShmemInitStruct("test_points", sizeof(TestPointsShared), &found);
	LWLockRelease(AddinShmemInitLock);
	if (found)
		return;

	memset(points_shared, 0, sizeof(TestPointsShared));
	SpinLockInit(&points_shared->mutex);
	set_points(crash_at, POINT_CRASH);
	set_points(fail_at, POINT_FAIL);
	set_points(hold_at, POINT_HOLD);
	set_points(terminate_at, POINT_TERMINATE);
	set_points(pause_at, POINT_PAUSE);
	set_points(await_end_of_recovery_at, POINT_AWAIT_END_OF_RECOVERY);
}

static void
define_list(const char *name, const char *description, char **list)
{
	DefineCustomStringVariable(name, description, NULL, list, "",
							   PGC_POSTMASTER, 0, NULL, NULL, NULL);
}

/* A record of an extension, of which no other process knows what it changes. */
static void
points_rmgr_redo(XLogReaderState *record)
{
	INJECTION_POINT("test-points-redo", NULL);
}

static void
points_rmgr_desc(StringInfo buf, XLogReaderState *record)
{
}

static const char *
points_rmgr_identify(uint8 info)
{
	return info == 0 ? "NOTHING" : NULL;
}

static void
points_rmgr_cleanup(void)
{
	RelFileLocator rlocator = {
		.spcOid = DEFAULTTABLESPACE_OID,
		.dbOid = PostgresDbOid,
		.relNumber = cleanup_reads
	};

	ReleaseBuffer(ReadBufferWithoutRelcache(rlocator, MAIN_FORKNUM, 0, RBM_NORMAL, NULL, true));
}

static RmgrData points_rmgr = {
	.rm_name = "test_points",
	.rm_redo = points_rmgr_redo,
	.rm_desc = points_rmgr_desc,
	.rm_identify = points_rmgr_identify
};

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	define_list("test_points.crash_at",
				"Injection points at which the server crashes.",
				&crash_at);
	define_list("test_points.fail_at",
				"Injection points at which errors are raised.",
				&fail_at);
	define_list("test_points.hold_at",
				"Injection points at which processes wait for the end of the server.",
				&hold_at);
	define_list("test_points.terminate_at",
				"Injection points at which processes terminate themselves.",
				&terminate_at);
	define_list("test_points.pause_at",
				"Injection points at which processes wait until a file exists.",
				&pause_at);
	define_list("test_points.await_end_of_recovery_at",
				"Injection points at which processes wait for the end of recovery.",
				&await_end_of_recovery_at);
	DefineCustomIntVariable("test_points.cleanup_reads",
							"File number of a relation of which a custom resource manager reads a page at the end of redo.",
							NULL,
							&cleanup_reads,
							0, 0, INT_MAX,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);
	MarkGUCPrefixReserved("test_points");

	points_filter = (TestPointFilter *) find_rendezvous_variable("test_points_filter");
	if (cleanup_reads != 0)
		points_rmgr.rm_cleanup = points_rmgr_cleanup;
	RegisterCustomRmgr(RM_EXPERIMENTAL_ID, &points_rmgr);

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = points_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = points_shmem_startup;
}

/* ---------------------------------------------------------------------
 * SQL functions
 * ---------------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(points_crash_at);
Datum
points_crash_at(PG_FUNCTION_ARGS)
{
	TestPoint	point = {.action = POINT_CRASH,.nth = PG_GETARG_INT32(1),.times = 1};

	set_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), point);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(points_kill_at);
Datum
points_kill_at(PG_FUNCTION_ARGS)
{
	TestPoint	point = {.action = POINT_KILL,.nth = PG_GETARG_INT32(1),.times = 1};

	set_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), point);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(points_fail_at);
Datum
points_fail_at(PG_FUNCTION_ARGS)
{
	TestPoint	point = {
		.action = POINT_FAIL,
		.errnum = parse_errno(text_to_cstring(PG_GETARG_TEXT_PP(1))),
		.nth = PG_GETARG_INT32(2),
		.times = PG_GETARG_INT32(3),
		.object = PG_GETARG_OID(4)
	};

	set_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), point);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(points_block_at);
Datum
points_block_at(PG_FUNCTION_ARGS)
{
	TestPoint	point = {
		.action = PG_GETARG_BOOL(1) ? POINT_SLEEP : POINT_BLOCK,
		.nth = 1,
		.times = PG_INT32_MAX,
		.object = PG_GETARG_OID(2)
	};

	set_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), point);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(points_await_end_of_recovery_at);
Datum
points_await_end_of_recovery_at(PG_FUNCTION_ARGS)
{
	TestPoint	point = {.action = POINT_AWAIT_END_OF_RECOVERY,.nth = 1,.times = 1};

	set_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), point);
	PG_RETURN_VOID();
}

/* Return how often a point was hit since its action was set. */
PG_FUNCTION_INFO_V1(points_hits);
Datum
points_hits(PG_FUNCTION_ARGS)
{
	TestPoint	point;

	if (!get_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), &point))
		PG_RETURN_INT32(0);
	PG_RETURN_INT32(point.hits);
}

PG_FUNCTION_INFO_V1(points_clear);
Datum
points_clear(PG_FUNCTION_ARGS)
{
	clear_point(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(points_log_record);
Datum
points_log_record(PG_FUNCTION_ARGS)
{
	char		nothing = 0;

	XLogBeginInsert();
	XLogRegisterData(&nothing, sizeof(nothing));
	(void) XLogInsert(RM_EXPERIMENTAL_ID, 0);
	PG_RETURN_VOID();
}
