/*-------------------------------------------------------------------------
 *
 * test_clock.c
 *		A wall clock that can be set back, for one server.
 *
 * To be loaded before all other libraries, by LD_PRELOAD.  While there is a file
 * named test_doublewrite.clock_back in the current directory, which for a server
 * is its data directory, the time of day is an hour ago.  Clocks that nobody
 * sets go on.
 *
 * Copyright (c) 2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *		src/test/modules/test_doublewrite/test_clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "c.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

extern PGDLLEXPORT int gettimeofday(struct timeval *restrict tv,
									void *restrict tz);

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
