/*-------------------------------------------------------------------------
 *
 * test_clock.c
 *		A wall clock that can be set back, and syncs that can be seen, for one server.
 *
 * To be loaded before all other libraries, by LD_PRELOAD.  While there is a file
 * named test_doublewrite.clock_back in the current directory, which for a server
 * is its data directory, the time of day is an hour ago.  Monotonic clocks
 * go on.  A file named test_doublewrite.syncs gets the path of each file that
 * is synced, one a line.  The file whose path is in test_doublewrite.failing_sync
 * cannot be synced.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/test/modules/test_doublewrite/test_clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "c.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

extern PGDLLEXPORT int gettimeofday(struct timeval *restrict tv,
									void *restrict tz);
extern PGDLLEXPORT time_t time(time_t *result);
extern PGDLLEXPORT int fsync(int fd);

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	int			save_errno = errno;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	tv->tv_sec = now.tv_sec;
	tv->tv_usec = now.tv_nsec / 1000;
	if (access("test_doublewrite.clock_back", F_OK) == 0)
		tv->tv_sec -= 3600;
	errno = save_errno;
	return 0;
}

time_t
time(time_t *result)
{
	struct timeval now;

	gettimeofday(&now, NULL);
	if (result != NULL)
		*result = now.tv_sec;
	return now.tv_sec;
}

/*
 * Note the path of an open file, with a newline.
 */
static void
note_sync(const char *path, ssize_t len)
{
	int			notes = open("test_doublewrite.syncs", O_WRONLY | O_APPEND);

	if (notes < 0)
		return;
	if (write(notes, path, len) != len)
		_exit(1);
	close(notes);
}

static bool
sync_fails(const char *path, ssize_t len)
{
	int			wanted = open("test_doublewrite.failing_sync", O_RDONLY);
	char		failing[MAXPGPATH];
	bool		result;

	if (wanted < 0)
		return false;
	result = read(wanted, failing, sizeof(failing)) == len && memcmp(failing, path, len) == 0;
	close(wanted);
	return result;
}

int
fsync(int fd)
{
	int			save_errno = errno;
	char		link[64];
	char		path[MAXPGPATH];
	ssize_t		len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len > 0)
	{
		path[len++] = '\n';
		note_sync(path, len);
		if (sync_fails(path, len))
		{
			errno = EIO;
			return -1;
		}
	}
	errno = save_errno;
	return syscall(SYS_fsync, fd);
}
