/*-------------------------------------------------------------------------
 *
 * atomic.c
 *	  Writing pages home atomically, where storage has proved that it can.
 *
 * With io_torn_pages_protection = atomic_writes a page that would need a copy
 * in the log goes home by a direct write that asks the kernel for atomicity,
 * if its file allows it.  The page is not torn then: home is as before the
 * write, or as after it, and WAL from the redo pointer on brings either up to
 * date.  All other pages take the log, which is armed as in double_writes.
 * So a cluster with good and bad storage is as safe as each part of it
 * allows.
 *
 * What is relied on (A1): for each tablespace, what DWAtomicProbeDirectory()
 * finds in this life of the server, with a test write of our own; for each
 * file, at each open, that it is on the same device and that statx() allows a
 * page; for each write, that it is atomic unless the kernel refuses it.
 * Nothing is kept over a restart, since another kernel may be running then
 * (A5).
 *
 * A write that does not succeed is an error for no process: the page returns
 * to the stage and takes the log, since a plain write may succeed where an
 * atomic one does not, for example because that needs space for a copy.  If
 * the kernel has refused it, because it cannot make such writes there, the
 * whole file uses the log from then on.  This is noted in a bit that other
 * files may share: they lose speed, not safety.  If it was a write of several
 * pages, single ones are tried first. (A2)
 *
 * Other processes see no difference.  One that reads a page through the
 * buffer manager finds it in the stage until the write has ended (R6).  The
 * kernel writes back its cache of the range before a direct write, and drops
 * it before the write is reported as ended, so a page read ahead meanwhile
 * does not stay.  No process makes the page dirty there meanwhile.  Of the
 * blocks that a file has, only the flusher writes any, as no part of another
 * batch is on its way home.  Other processes extend the file, but in other
 * pages of the kernel's cache, because these are no larger than ours where
 * atomicity counts as proved.  The write-back also puts the zeroes of an
 * extension, and earlier home writes that were plain, on the device before
 * the atomic write. (A3)
 *
 * A direct write takes as long as the device does, so several are under way
 * at once.  The flusher waits for all of them before it goes on: no write is
 * under way when its batch is over, or when it does not hold the flush lock.
 * (R4, R7)
 *
 * A direct write is not durable when it returns.  Its file is synced like
 * others, through the queue of the checkpointer. (A4)
 *
 * With wal_level = minimal a page may change without WAL, so an older copy in
 * the log must not be put over it.  There pages are written atomically only
 * while nothing in the log is live.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/backend/storage/doublewrite/atomic.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/hashfn.h"
#include "common/relpath.h"
#include "pgstat.h"
#include "postmaster/bgwriter.h"
#include "storage/bufmgr.h"
#include "storage/doublewrite_internal.h"
#include "storage/fd.h"
#include "storage/sync.h"
#include "utils/injection_point.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/*
 * Pages in an atomic write, and in all that are under way at once if they have
 * more than one.  The former are as many as io_combine_limit has by default; the
 * buffer for the latter belongs to each process that has written so many.
 */
#define DW_ATOMIC_MAX_PAGES		16
#define DW_ATOMIC_COMBINED_PAGES	128

/* What has become of an atomic write */
typedef enum DWAtomicResult
{
	DW_ATOMIC_WRITTEN,
	DW_ATOMIC_NOT_WRITTEN,		/* home is whole, perhaps never to be synced */
	DW_ATOMIC_TORN,				/* home may be torn, which must not happen */
} DWAtomicResult;

/* GUC */
bool		debug_atomic_writes_in_software = false;

/* Pages of a write are put side by side here, as it takes only one iovec */
static PGIOAlignedBlock dw_combined[DW_ATOMIC_COMBINED_PAGES];

/* Files that this process has open for atomic writes; which one is the last */
static int	dw_atomic_fds[DW_ATOMIC_IN_FLIGHT];
static int	dw_atomic_nfds = 0;
static DWDirtyFile dw_atomic_file;

/* ---------------------------------------------------------------------
 * What is known of tablespaces
 * ---------------------------------------------------------------------
 */

static bool
dw_atomic_proved(const DWAtomicProbe *probe)
{
	return probe->verdict == DW_ATOMIC_HARDWARE ||
		(probe->verdict == DW_ATOMIC_SOFTWARE && debug_atomic_writes_in_software);
}

static void
dw_report_probe(const char *path, const DWAtomicProbe *probe)
{
	const char *advice = DWAtomicAdvice(probe);

	/*
	 * not to the client, which may not be reading, while we hold the flush
	 * lock
	 */
	ereport(IsPostmasterEnvironment ? LOG_SERVER_ONLY : DEBUG1,
			(errhidestmt(true),
			 dw_atomic_proved(probe) ?
			 errmsg("pages in directory \"%s\" are written atomically", path) :
			 errmsg("pages in directory \"%s\" are protected by the double-write log, because atomic writes are not proved there",
					path),
			 errdetail("File system \"%s\", device \"%s\": %s; files allow %u to %u bytes, the device %" PRIu64 ".",
					   probe->fstype, probe->device,
					   DWAtomicVerdictName(probe->verdict),
					   probe->file.unit_min, probe->file.unit_max,
					   probe->device_max),
			 advice ? errhint("File systems made by \"%s\" are known to allow it.", advice) : 0));
}

/*
 * Probe a tablespace, and remember the outcome.
 */
static void
dw_atomic_look(DWAtomicTablespace *spc)
{
	DWAtomicTablespace found = {spc->spcOid};
	char		path[MAXPGPATH];

	Assert(DWIsFlusher());

	dw_directory_path(path, spc->spcOid, InvalidOid);
	DWAtomicProbeDirectory(path, &found.probe);
	INJECTION_POINT("doublewrite-atomic-probed", &found);
	if (dw_injected_error("doublewrite-atomic-probe-failed"))
	{
		found.probe.verdict = DW_ATOMIC_FAILED;
		found.probe.error = errno;
	}
	if (found.probe.verdict != spc->probe.verdict ||
		found.probe.error != spc->probe.error)
		dw_report_probe(path, &found.probe);

	found.looked_at = GetCurrentTimestamp();
	DWLockMutex();
	spc->probe = found.probe;
	spc->looked_at = found.looked_at;
	spc->batch = DWCtl->atomic.nbatches;
	DWUnlockMutex();
}

static DWAtomicTablespace *
dw_atomic_find_tablespace(Oid spcOid)
{
	DWAtomicState *state = &DWCtl->atomic;

	for (int i = 0; i < state->ntablespaces; i++)
	{
		if (state->tablespaces[i].spcOid == spcOid)
			return &state->tablespaces[i];
	}
	return NULL;
}

/*
 * Return an entry of a tablespace whose directory is gone, after clearing it,
 * or NULL.  An entry of which the batch has pages is not taken.  Each batch
 * searches only once without success, as it may have many pages in
 * tablespaces for which there is no entry.
 */
static DWAtomicTablespace *
dw_atomic_reuse_tablespace(void)
{
	DWAtomicState *state = &DWCtl->atomic;

	for (int i = 0; i < state->ntablespaces && state->sought != state->nbatches; i++)
	{
		DWAtomicTablespace *spc = &state->tablespaces[i];
		char		path[MAXPGPATH];

		dw_directory_path(path, spc->spcOid, InvalidOid);
		if (spc->used == state->nbatches || access(path, F_OK) == 0 || errno != ENOENT)
			continue;
		DWLockMutex();
		memset(spc, 0, offsetof(DWAtomicTablespace, pages));
		pg_atomic_write_u64(&spc->pages, 0);
		pg_atomic_write_u64(&spc->logged, 0);
		pg_atomic_write_u64(&spc->refused, 0);
		DWUnlockMutex();
		return spc;
	}
	state->sought = state->nbatches;
	return NULL;
}

/*
 * Return what is known of a tablespace, after probing it if that has not been
 * done.  If probing has failed, for example for lack of descriptors, it is
 * repeated for each batch: that costs little beside a sync of the log.
 *
 * Return NULL if there are too many tablespaces; pages in the others take the
 * log.
 */
static DWAtomicTablespace *
dw_atomic_tablespace(Oid spcOid)
{
	DWAtomicState *state = &DWCtl->atomic;
	DWAtomicTablespace *spc = dw_atomic_find_tablespace(spcOid);

	Assert(DWIsFlusher());

	if (spc == NULL && state->ntablespaces == DW_ATOMIC_TABLESPACES &&
		(spc = dw_atomic_reuse_tablespace()) != NULL)
	{
		spc->spcOid = spcOid;
		dw_atomic_look(spc);
	}
	else if (spc == NULL && state->ntablespaces == DW_ATOMIC_TABLESPACES)
	{
		if (!state->full)
			ereport(LOG_SERVER_ONLY,
					(errhidestmt(true),
					 errmsg("more than %d tablespaces are in use, and pages in the others are protected by the double-write log",
							DW_ATOMIC_TABLESPACES)));
		state->full = true;
		return NULL;
	}
	else if (spc == NULL)
	{
		spc = &state->tablespaces[state->ntablespaces];
		spc->spcOid = spcOid;
		dw_atomic_look(spc);
		DWLockMutex();
		state->ntablespaces++;
		DWUnlockMutex();
	}
	else if (spc->probe.verdict == DW_ATOMIC_FAILED && spc->batch != state->nbatches)
		dw_atomic_look(spc);
	return spc;
}

/* ---------------------------------------------------------------------
 * Files that have refused
 * ---------------------------------------------------------------------
 */

static uint32
dw_refused_bit(const BufferTag *tag)
{
	DWDirtyFile key = dw_file_of_page(tag);

	return hash_bytes((const unsigned char *) &key,
					  DW_FILE_KEY_SIZE) % DW_ATOMIC_REFUSED_BITS;
}

static bool
dw_atomic_was_refused(const BufferTag *tag)
{
	uint32		bit = dw_refused_bit(tag);

	Assert(DWIsFlusher());
	return (DWCtl->atomic.refused[bit / 8] & (1 << (bit % 8))) != 0;
}

/*
 * Note that the file of a page does not take atomic writes, and uses the log
 * from now on. (A2)
 */
static void
dw_atomic_refuse(const BufferTag *tag)
{
	uint32		bit = dw_refused_bit(tag);
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);

	if (dw_atomic_was_refused(tag))
		return;					/* by another run of the same batch */
	DWCtl->atomic.refused[bit / 8] |= 1 << (bit % 8);
	ereport(LOG_SERVER_ONLY,
			(errcode_for_file_access(),
			 errhidestmt(true),
			 errmsg("file \"%s\" does not take atomic writes, and is protected by the double-write log: %m",
					relpathperm(rlocator, BufTagGetForkNum(tag)).str)));
}

/*
 * Stop combining pages in a tablespace: the kernel has refused a write of
 * several pages, though it had said that it takes them.  It may take single
 * ones.
 */
static void
dw_atomic_stop_combining(DWAtomicTablespace *spc)
{
	char		path[MAXPGPATH];
	int			save_errno = errno;

	Assert(DWIsFlusher());

	if (spc->probe.unit == BLCKSZ)
		return;					/* by another run of the same batch */
	DWLockMutex();
	spc->probe.unit = BLCKSZ;
	DWUnlockMutex();
	dw_directory_path(path, spc->spcOid, InvalidOid);
	errno = save_errno;
	ereport(LOG_SERVER_ONLY,
			(errcode_for_file_access(),
			 errhidestmt(true),
			 errmsg("atomic writes of several pages are refused in directory \"%s\", where pages are written one by one now: %m",
					path)));
}

/*
 * Handle an atomic write that was not made, or was cut short, as errno says.
 * Where the kernel lacks something this may go on, so each reason is reported
 * once.
 */
static DWAtomicResult
dw_atomic_not_written(const BufferTag *tag, DWAtomicTablespace *spc, int npages,
					  ssize_t written)
{
	RelFileLocator rlocator = BufTagGetRelFileLocator(tag);
	bool		refused = written < 0 && DWAtomicIsRefusal(errno);

	Assert(DWIsFlusher());

	pg_atomic_fetch_add_u64(&spc->refused, 1);
	if (refused && npages > 1)
		dw_atomic_stop_combining(spc);
	else if (refused)
		dw_atomic_refuse(tag);
	else if (errno != spc->reported)
	{
		spc->reported = errno;
		ereport(LOG_SERVER_ONLY,
				(errcode_for_file_access(),
				 errhidestmt(true),
				 errmsg("could not write to file \"%s\" atomically: %m",
						relpathperm(rlocator, BufTagGetForkNum(tag)).str),
				 errdetail("Such pages pass through the double-write log.")));
	}

	/* the kernel must not write a part of it; nor is 0 a valid result */
	return written < 0 ? DW_ATOMIC_NOT_WRITTEN : DW_ATOMIC_TORN;
}

/* ---------------------------------------------------------------------
 * Choosing
 * ---------------------------------------------------------------------
 */

/*
 * Return whether pages of the batch may be written atomically.  To be called
 * once for a batch.
 */
bool
dw_atomic_allowed(void)
{
	Assert(DWIsFlusher());

	if (dw_setting() != TORN_PAGES_ATOMIC_WRITES || !DWCtl->log.armed)
		return false;
	DWCtl->atomic.nbatches++;
	return XLogIsNeeded() ||
		DWCtl->log.last_page_batch < DWCtl->log.low_water_logged;
}

/*
 * Return whether this page, which needs protection, is to be written
 * atomically.  (A1)
 *
 * It is not if a plain home write of it has failed, or an atomic one was cut
 * short: home may be torn now, so the page needs a copy in the log. (R3, R11)
 * Nor is it if an atomic write of it was not made. (A2)
 */
bool
dw_atomic_chosen(const DWSlot *slot)
{
	DWAtomicTablespace *spc;
	bool		chosen;

	Assert(DWIsFlusher());
	Assert(slot->permanent);

	spc = dw_atomic_tablespace(slot->tag.spcOid);
	if (spc == NULL)
		return false;
	chosen = dw_atomic_proved(&spc->probe) && !slot->failed && !slot->use_log &&
		!dw_atomic_was_refused(&slot->tag) && !slot->touched;
	if (!chosen)
		pg_atomic_fetch_add_u64(&spc->logged, 1);
	spc->used = DWCtl->atomic.nbatches;
	return chosen;
}

/* ---------------------------------------------------------------------
 * Files
 * ---------------------------------------------------------------------
 */

/*
 * Close files that are open.  Once the flush lock is released, files may be
 * removed and others get their names, so none stays open that long.
 */
static void
dw_atomic_close(void)
{
	while (dw_atomic_nfds > 0)
		close(dw_atomic_fds[--dw_atomic_nfds]);
}

/*
 * Open the file of a page, and check that it is like the one that was tested.
 * Return its descriptor, or -1, with errno set, if it is not.
 */
static int
dw_atomic_open(const BufferTag *tag, const DWAtomicProbe *probe)
{
	DWDirtyFile key = dw_file_of_page(tag);
	DWAtomicFile file;
	RelPathStr	relpath;
	char		path[MAXPGPATH];
	bool		fits;
	int			fd;

	/* pages come sorted by file */
	if (dw_atomic_nfds > 0 &&
		memcmp(&dw_atomic_file, &key, DW_FILE_KEY_SIZE) == 0)
		return dw_atomic_fds[dw_atomic_nfds - 1];
	Assert(dw_atomic_nfds < DW_ATOMIC_IN_FLIGHT);

	relpath = relpathperm(key.rlocator, key.forknum);
	if (key.segno == 0)
		strlcpy(path, relpath.str, sizeof(path));
	else
		snprintf(path, sizeof(path), "%s.%u", relpath.str, key.segno);
	fd = BasicOpenFile(path, O_RDWR | O_CLOEXEC | PG_BINARY | PG_O_DIRECT);
	if (fd < 0)
		return -1;
	fits = DWAtomicAskFile(fd, &file) && DWAtomicFileFits(&file) &&
		file.dev == probe->file.dev && DWAtomicOnDataDevice(fd);
	INJECTION_POINT("doublewrite-atomic-opened", &fits);
	if (!fits)
	{
		close(fd);
		errno = EOPNOTSUPP;
		return -1;
	}
	dw_atomic_fds[dw_atomic_nfds++] = fd;
	dw_atomic_file = key;
	return fd;
}

/*
 * Have the file of a page synced by the next checkpoint. (A4)  md.c does that
 * for writes that pass through it.  Return false if that is impossible, and the file
 * could not be synced now.
 */
static bool
dw_atomic_request_sync(const BufferTag *tag)
{
	DWDirtyFile key = dw_file_of_page(tag);
	FileTag		ftag;

	memset(&ftag, 0, sizeof(ftag));
	ftag.handler = SYNC_HANDLER_MD;
	ftag.rlocator = key.rlocator;
	ftag.forknum = key.forknum;
	ftag.segno = key.segno;
	return (!dw_injected_error("doublewrite-atomic-sync-request") &&
			RegisterSyncRequest(&ftag, SYNC_REQUEST, false)) ||
		dw_sync_file(&key, LOG_SERVER_ONLY);
}

/* ---------------------------------------------------------------------
 * Writing
 * ---------------------------------------------------------------------
 */

/*
 * Return how many of the given pages, in ascending order, go into one write: a power of
 * two, naturally aligned within the file.
 */
static int
dw_atomic_run_length(const int *slots, int nslots)
{
	const BufferTag *first = &DWSlots[slots[0]].tag;
	DWAtomicTablespace *spc = dw_atomic_tablespace(first->spcOid);
	BlockNumber block = first->blockNum % RELSEG_SIZE;
	int			limit = Min(spc->probe.unit / BLCKSZ, DW_ATOMIC_MAX_PAGES);
	int			len = 1;

	Assert(nslots > 0 && spc != NULL);

	limit = Min(limit, dw_run_length(slots, nslots));
	while (len * 2 <= limit && block % (len * 2) == 0)
		len *= 2;
	return len;
}

/*
 * Prepare the write of a run.  If it has several pages, copy them side by
 * side to room, which is large enough.  If the file cannot be opened, there
 * is nothing to write, and the reason is the result.
 */
static void
dw_atomic_prepare(const int *slots, int npages, PGIOAlignedBlock *room, DWAtomicCall *call)
{
	const BufferTag *tag = &DWSlots[slots[0]].tag;
	DWAtomicTablespace *spc = dw_atomic_tablespace(tag->spcOid);

	Assert(DWIsFlusher() && spc != NULL);
	Assert(npages <= DW_ATOMIC_MAX_PAGES);

	memset(call, 0, sizeof(*call));
	call->spcOid = tag->spcOid;
	call->data = DWSlotPage(slots[0]);
	call->size = (size_t) npages * BLCKSZ;
	call->offset = (off_t) (tag->blockNum % RELSEG_SIZE) * BLCKSZ;
	call->flags = DW_RWF_ATOMIC;
	Assert(call->offset % call->size == 0);

	for (int i = 0; i < npages && npages > 1; i++)
		memcpy(&room[i], DWSlotPage(slots[i]), BLCKSZ);
	if (npages > 1)
		call->data = room;

	call->fd = dw_atomic_open(tag, &spc->probe);
	call->done = call->fd < 0;
	call->result = call->done ? -errno : 0;
}

/*
 * Let tests stand in for the kernel, where nothing is atomic, or make a write
 * fail.
 */
static void
dw_atomic_stand_in(DWAtomicCall *call)
{
	int			error = 0;
	int			cut_short = 0;

	if (call->done)
		return;
	INJECTION_POINT("doublewrite-atomic-write", &error);
	INJECTION_POINT("doublewrite-atomic-short", &cut_short);
	INJECTION_POINT("doublewrite-atomic-pretended", call);
	if (error != 0)
		call->result = -error;
	else if (cut_short != 0)
		call->result = pg_pwrite(call->fd, call->data, call->size / 2, call->offset);
	call->done = error != 0 || cut_short != 0;
}

/*
 * Prepare the writes of the runs that begin at slots[0], as many as can be under way at
 * once, and up to a page that has been discarded. (R7)  Returns how many.
 */
static int
dw_atomic_prepare_runs(const int *slots, int nslots, DWAtomicCall *calls)
{
	PGIOAlignedBlock *room = dw_combined;
	int			ncalls = 0;
	int			npages;

	for (int i = 0; i < nslots && ncalls < DW_ATOMIC_IN_FLIGHT; i += npages)
	{
		if (DWSlots[slots[i]].discarded)
			break;
		npages = dw_atomic_run_length(slots + i, nslots - i);
		if (npages > 1 && room + npages > dw_combined + lengthof(dw_combined))
			break;
		dw_atomic_prepare(slots + i, npages, room, &calls[ncalls++]);
		room += npages > 1 ? npages : 0;
	}
	return ncalls;
}

/*
 * Make some writes, at once if the kernel can, and wait for all of them.
 */
static void
dw_atomic_make(DWAtomicCall *calls, int ncalls)
{
	int			nmade;

	for (int i = 0; i < ncalls; i++)
		dw_atomic_stand_in(&calls[i]);

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_WRITE);
	/* PANIC, as a write still under way could overwrite later ones (R4) */
	nmade = DWAtomicWriteInFlight(calls, ncalls);
	if (nmade < 0)
		elog(PANIC, "could not wait for atomic writes: %m");
	for (int i = 0; i < ncalls; i++)
	{
		DWAtomicCall *call = &calls[i];

		while (!call->done)
		{
			call->result = DWAtomicWrite(call->fd, call->data, call->size,
										 call->offset, call->flags);
			if (call->result < 0)
				call->result = -errno;
			call->done = call->result != -EINTR;
		}
	}
	pgstat_report_wait_end();
	if (nmade > 1)
		INJECTION_POINT("doublewrite-atomic-in-flight", &nmade);
}

/*
 * Say what has become of the write of a run, given bytes or -errno.  This throws no error:
 * pages that cannot be written atomically take the log, and if that does not
 * help either, the plain write after it throws the error. (A2)
 */
static DWAtomicResult
dw_atomic_outcome(const int *slots, int npages, ssize_t result)
{
	const BufferTag *tag = &DWSlots[slots[0]].tag;
	DWAtomicTablespace *spc = dw_atomic_tablespace(tag->spcOid);

	Assert(DWIsFlusher() && spc != NULL);

	if (result != (ssize_t) npages * BLCKSZ)
	{
		errno = result < 0 ? -result : EIO;
		return dw_atomic_not_written(tag, spc, npages, result);
	}
	if (!dw_atomic_request_sync(tag))
		return DW_ATOMIC_NOT_WRITTEN;

	pg_atomic_fetch_add_u64(&spc->pages, npages);
	DWCount(atomic_pages, npages);
	DWCount(atomic_writes, 1);
	INJECTION_POINT("doublewrite-atomic-written", NULL);
	return DW_ATOMIC_WRITTEN;
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
			dw_remember_logged(slots[i], copy);
	}
}

/*
 * The write of a run has been made, or not: deal with its pages.
 */
static void
dw_settle_atomic_run(const int *slots, int npages, ssize_t written)
{
	instr_time	start = pgstat_prepare_io_time(track_io_timing);
	DWAtomicResult result = DW_ATOMIC_NOT_WRITTEN;
	int			error = 0;

	INJECTION_POINT("doublewrite-home-write", &error);
	if (error == 0)
		result = dw_atomic_outcome(slots, npages, written);

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
 * Write runs home with which the batch begins, as many as can be under way at once, and
 * take them off it.  If an error keeps some from that, their pages are written again.
 * Returns how many pages have been dealt with.
 */
static int
dw_write_atomic_runs(const int *slots, int nslots)
{
	instr_time	io_start = pgstat_prepare_io_time(track_io_timing);
	DWAtomicCall calls[DW_ATOMIC_IN_FLIGHT];
	int			ncalls = dw_atomic_prepare_runs(slots, nslots, calls);
	int			done = 0;

	dw_atomic_make(calls, ncalls);
	dw_atomic_close();

	/* calls and bytes are counted run by run */
	pgstat_count_io_op_time(IOOBJECT_RELATION, IOCONTEXT_NORMAL, IOOP_WRITE,
							io_start, 0, 0);
	for (int i = 0; i < ncalls; i++)
	{
		int			npages = calls[i].size / BLCKSZ;

		dw_settle_atomic_run(slots + done, npages, calls[i].result);
		dw_leave_batch(npages);
		INJECTION_POINT("doublewrite-home-run-written", NULL);
		done += npages;
	}
	return done;
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

	Assert(DWIsFlusher());
	Assert(DWCtl->batch.phase == DW_BATCH_DURABLE);

	/* what an error may have left is none of ours any more */
	dw_atomic_close();

	/* from here on we look at "discarded"; see dw_await_atomic_write() (R7) */
	pg_memory_barrier();
	memcpy(slots, DWCtl->batch.slots, natomic * sizeof(int));

	for (int done = 0; done < natomic;)
	{
		if (idle && !DWSlots[slots[done]].discarded)
		{
			done += dw_write_atomic_runs(slots + done, natomic - done);
			continue;
		}
		if (!idle)
			dw_restage_for_log(slots[done], 0);
		else
			dw_release_slots(&slots[done], 1);	/* R7 */
		dw_leave_batch(1);
		done++;
	}

	/* a write that ends later could hit a newer page or file (R4, R7) */
	Assert(DWAtomicUnderWay() == 0);
}
