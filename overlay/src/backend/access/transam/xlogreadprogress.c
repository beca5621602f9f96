/*-------------------------------------------------------------------------
 *
 * xlogreadprogress.c
 *		How far the reads are that recovery has asked for ahead.
 *
 * The WAL pipeline asks the kernel for all blocks of a window of WAL at once (see
 * xlogahead.c), and the kernel reads them for seconds.  Redo needs them in another
 * order, so it stands still for most of that time: neither its speed nor that of
 * asking tells how much is left.  The kernel knows: what it has read is in its
 * cache.  So some blocks of each window are put down, and whoever wants to know
 * looks which of them are there, as mincore() says.  That reads nothing itself.
 *
 * Redo, and the pipeline's process, may be waiting for a read at that time.  Who
 * asks is mostly a client that is refused, so it is his process that looks.  It
 * takes no lock, as a signal may end it at any moment, and leaves nothing behind but
 * memory that ends with it.
 *
 * What it finds may be out of date, or wrong: it is only told to people.
 *
 * Copyright (c) 2026, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/backend/access/transam/xlogreadprogress.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#ifndef WIN32
#include <sys/mman.h>
#endif
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlogreadprogress.h"
#include "common/relpath.h"
#include "utils/injection_point.h"
#include "utils/timestamp.h"

/* How often to try to get a copy while it is being changed */
#define READ_PROGRESS_TRIES		100

void
XLogReadProgressInit(XLogReadProgress *progress)
{
	pg_atomic_init_u32(&progress->changes, 0);
	MemSet(&progress->data, 0, sizeof(progress->data));
}

static void
begin_change(XLogReadProgress *progress)
{
	uint32		changes = pg_atomic_read_u32(&progress->changes);

	/* a process that has crashed may have left it odd */
	pg_atomic_write_u32(&progress->changes, changes | 1);
	pg_write_barrier();
}

static void
end_change(XLogReadProgress *progress)
{
	Assert(pg_atomic_read_u32(&progress->changes) % 2 == 1);
	pg_write_barrier();
	pg_atomic_write_u32(&progress->changes,
						pg_atomic_read_u32(&progress->changes) + 1);
}

/*
 * Recovery begins: nothing has been asked for.
 */
void
XLogReadProgressReset(XLogReadProgress *progress)
{
	begin_change(progress);
	MemSet(&progress->data, 0, sizeof(progress->data));
	end_change(progress);
}

/*
 * For who adds windows: how many blocks have been asked for?
 */
uint64
XLogReadProgressCounted(const XLogReadProgress *progress)
{
	const XLogReadWindows *data = &progress->data;

	return data->nblocks_before + data->windows[0].nblocks + data->windows[1].nblocks;
}

/*
 * These blocks are needed for WAL up to 'end', and are going to be asked for.
 */
void
XLogReadProgressAdd(XLogReadProgress *progress, XLogRecPtr end,
					XLogRecPtr tell_until,
					const BufferTag *blocks, int nblocks,
					const XLogReadExpectation *expected)
{
	XLogReadWindows *data = &progress->data;
	XLogReadWindow *window = &data->windows[1];

	begin_change(progress);
	if (XLogRecPtrIsInvalid(window->end))
		data->begin = GetCurrentTimestamp();
	data->nblocks_before += data->windows[0].nblocks;
	data->windows[0] = *window;
	window->end = end;
	window->nblocks = nblocks;
	window->nsampled = Min(nblocks, READ_PROGRESS_SAMPLE);
	for (int i = 0; i < window->nsampled; i++)
		window->sampled[i] = blocks[(int64) nblocks * i / window->nsampled];
	data->tell_until = tell_until;
	data->expected = *expected;
	end_change(progress);
}

/*
 * Get a copy.  Returns false if nothing has been asked for, or if it changes all
 * the time.
 */
bool
XLogReadProgressGet(XLogReadProgress *progress, XLogReadWindows *copy)
{
	for (int i = 0; i < READ_PROGRESS_TRIES; i++)
	{
		uint32		changes = pg_atomic_read_u32(&progress->changes);

		pg_read_barrier();
		*copy = progress->data;
		pg_read_barrier();
		if (changes % 2 == 0 && pg_atomic_read_u32(&progress->changes) == changes)
			return !XLogRecPtrIsInvalid(copy->windows[1].end);
	}
	return false;
}

/*
 * Has the kernel all of a block of an open file in its cache, or is there no such
 * block, so that it will not be read?
 */
static bool
is_cached(int fd, off_t offset)
{
#ifndef WIN32
	const off_t page_size = sysconf(_SC_PAGESIZE);
	unsigned char pages[BLCKSZ / 1024 + 1];
	struct stat st;
	off_t		start = offset - offset % page_size;
	size_t		length = offset + BLCKSZ - start;
	size_t		npages = (length + page_size - 1) / page_size;
	void	   *mapping;
	bool		cached;

	if (fstat(fd, &st) != 0 || offset >= st.st_size)
		return true;

	Assert(npages <= lengthof(pages));
	mapping = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, start);
	if (mapping == MAP_FAILED)
		return false;
	cached = mincore(mapping, length, (void *) pages) == 0;
	for (size_t i = 0; i < npages && cached; i++)
		cached = (pages[i] & 1) != 0;
	munmap(mapping, length);
	return cached;
#else
	return false;				/* nothing is asked for ahead there */
#endif
}

/*
 * The same for a block of a relation.  The file is opened as such, since a client
 * that is refused has no descriptors of relations.
 */
static bool
block_is_cached(const BufferTag *tag)
{
	RelPathStr	relation = relpathperm(BufTagGetRelFileLocator(tag),
									   BufTagGetForkNum(tag));
	BlockNumber segment = tag->blockNum / RELSEG_SIZE;
	char		path[MAXPGPATH];
	int			fd;
	bool		cached;

	if (segment == 0)
		strlcpy(path, relation.str, sizeof(path));
	else
		snprintf(path, sizeof(path), "%s.%u", relation.str, segment);

	fd = open(path, O_RDONLY | O_CLOEXEC | PG_BINARY, 0);
	if (fd < 0)
		return errno == ENOENT;
	cached = is_cached(fd, (off_t) (tag->blockNum % RELSEG_SIZE) * BLCKSZ);
	close(fd);
	return cached;
}

/*
 * How much of a window has been read?
 */
static double
window_share(const XLogReadWindow *window, XLogRecPtr replayed)
{
	int			ncached = 0;

	if (window->nsampled == 0 || replayed >= window->end)
		return 1;
	for (int i = 0; i < window->nsampled; i++)
	{
		int			missing = 0;

		if (i % 2 == 0)
			INJECTION_POINT("xlogreadprogress-even", &missing);
		else
			INJECTION_POINT("xlogreadprogress-odd", &missing);
		if (missing == 0 && block_is_cached(&window->sampled[i]))
			ncached++;
	}
	return (double) ncached / window->nsampled;
}

/*
 * How much has been read of all blocks that will have to be, if 'replayed' is where
 * redo is?
 */
double
XLogReadProgressShare(const XLogReadWindows *windows, XLogRecPtr replayed)
{
	double		nread = windows->nblocks_before;

	for (int i = 0; i < lengthof(windows->windows); i++)
		nread += window_share(&windows->windows[i], replayed) * windows->windows[i].nblocks;
	return Min(nread / Max(windows->expected.blocks, 1), 1);
}
