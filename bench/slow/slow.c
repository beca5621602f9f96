/*
 * slow.c
 *	  Have each write to a file below a directory take longer, or each sync, by
 *	  LD_PRELOAD.
 *
 * SLOW_WRITES_BELOW names the directory, with a slash at its end;
 * SLOW_WRITES_MICROSECONDS says by how much, and SLOW_SYNCS_MICROSECONDS by how
 * much a sync of any file takes longer.  Processes sleep beside each other, so
 * this adds latency, as a storage device far away does, and takes no processor.
 *
 * Whether a file is below is looked up at the first write to its descriptor, and
 * forgotten when that is closed.  A forked process has both the descriptors and
 * what is known of them.
 *
 * For what PostgreSQL calls on 64-bit Linux.  Atomic writes are not slowed: the
 * kernel gets several of them at a time.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "offsets are passed in one register");

/* Of descriptors beyond these nothing is kept */
#define MAX_KNOWN	4096

enum
{
	UNKNOWN, PLAIN, SLOW
};

static unsigned char known[MAX_KNOWN];

static int
look(int fd)
{
	const char *below = getenv("SLOW_WRITES_BELOW");
	char		link[64];
	char		file[PATH_MAX] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (below == NULL || readlink(link, file, sizeof(file) - 1) < 0)
		return PLAIN;
	return strncmp(file, below, strlen(below)) == 0 ? SLOW : PLAIN;
}

static int
is_slow(int fd)
{
	if (fd >= MAX_KNOWN)
		return look(fd) == SLOW;
	if (known[fd] == UNKNOWN)
		known[fd] = look(fd);
	return known[fd] == SLOW;
}

/* Sleep for as many microseconds as a variable says; leaves errno alone */
static void
sleep_for(const char *variable)
{
	int			saved = errno;
	const char *microseconds = getenv(variable);
	long		left = microseconds ? atol(microseconds) : 0;
	struct timespec time = {left / 1000000, left % 1000000 * 1000};

	while (left > 0 && nanosleep(&time, &time) < 0 && errno == EINTR)
		;
	errno = saved;
}

/* Return what a write has returned, late if it was to such a file */
static ssize_t
written(int fd, ssize_t result)
{
	int			saved = errno;

	if (result > 0 && is_slow(fd))
		sleep_for("SLOW_WRITES_MICROSECONDS");
	errno = saved;
	return result;
}

/* Return what a sync has returned, late */
static int
synced(long result)
{
	sleep_for("SLOW_SYNCS_MICROSECONDS");
	return result;
}

ssize_t
pwrite(int fd, const void *data, size_t size, off_t offset)
{
	return written(fd, syscall(SYS_pwrite64, fd, data, size, offset));
}

ssize_t
pwritev(int fd, const struct iovec *parts, int number, off_t offset)
{
	return written(fd, syscall(SYS_pwritev, fd, parts, number, offset, 0L));
}

/* What programs call that have been compiled with _FILE_OFFSET_BITS=64 */
ssize_t		pwrite64(int, const void *, size_t, off64_t) __attribute__((alias("pwrite")));
ssize_t		pwritev64(int, const struct iovec *, int, off64_t) __attribute__((alias("pwritev")));

int
fsync(int fd)
{
	return synced(syscall(SYS_fsync, fd));
}

int
fdatasync(int fd)
{
	return synced(syscall(SYS_fdatasync, fd));
}

int
syncfs(int fd)
{
	return synced(syscall(SYS_syncfs, fd));
}

int
close(int fd)
{
	if (fd >= 0 && fd < MAX_KNOWN)
		known[fd] = UNKNOWN;
	return syscall(SYS_close, fd);
}
