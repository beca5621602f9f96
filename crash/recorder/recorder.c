/*-------------------------------------------------------------------------
 *
 * recorder.c
 *	  pgcut-recorder: command line, start and end.
 *
 * usage: pgcut-recorder --backing DIR --log DIR [--sync-delay-us MIN:MAX]
 *                       [--seed N] [--split-reads] MOUNTPOINT
 *
 * Runs in the foreground until the mount is undone or SIGTERM, SIGINT or
 * SIGHUP arrives, prints "ready" when it is mounted, and exits with 0 if the
 * recording is complete.  SIGUSR1 writes out what is buffered.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#include "recorder.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/*
 * A sync sleeps in its thread, and what is frozen waits there, so there must be more
 * threads than syncs at the same time, and than processes of a server; idle ones above
 * the second limit go away.
 */
#define MAX_THREADS			256
#define MAX_IDLE_THREADS	16

/* What waits looks that often whether there is an end to all */
#define LOOK_SECONDS		1

/* Each file is kept open; a cluster with many tables has some ten thousand */
#define MAX_OPEN_FILES		1000000

Settings	settings = {.seed = 1};

static pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t random_counter;
static struct fuse_session *session;

void
lock(void)
{
	pthread_mutex_lock(&big_lock);
}

void
unlock(void)
{
	pthread_mutex_unlock(&big_lock);
}

/*
 * Give the lock back until something happens, or may have happened.  Returns false if nothing
 * is to be waited for any more, as the mount is going to be undone.
 */
bool
unlock_until(pthread_cond_t *happened)
{
	struct timespec limit;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += LOOK_SECONDS;
	pthread_cond_timedwait(happened, &big_lock, &limit);
	return !fuse_session_exited(session);
}

/*
 * Say what went wrong, and what to do about it if there is something to say.
 */
void
report_error(const char *hint, const char *fmt,...)
{
	va_list		args;

	flockfile(stderr);
	fputs("pgcut-recorder: error: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	if (hint != NULL)
		fprintf(stderr, "pgcut-recorder: hint: %s\n", hint);
	funlockfile(stderr);
}

/*
 * A random number, both ends included.  Each draw hashes the next number of a
 * counter that starts at the seed, so that threads need no lock.
 */
uint64_t
random_between(uint64_t low, uint64_t high)
{
	uint64_t	x = __atomic_add_fetch(&random_counter, UINT64_C(0x9E3779B97F4A7C15),
									   __ATOMIC_RELAXED);

	if (high <= low)
		return low;
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	x ^= x >> 31;
	return low + x % (high - low + 1);
}

void
sleep_us(uint64_t us)
{
	struct timespec left = {us / 1000000, us % 1000000 * 1000};

	while (us > 0 && nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

static void
usage(FILE *out)
{
	fputs("usage: pgcut-recorder --backing DIR --log DIR [options] MOUNTPOINT\n"
		  "\n"
		  "Mounts a file system that keeps its files in the backing directory and\n"
		  "records every change of them in the log directory.\n"
		  "\n"
		  "  --backing DIR            where the files are, best on tmpfs\n"
		  "  --log DIR                where base.tsv and ops.bin go\n"
		  "  --sync-delay-us MIN:MAX  time a sync takes, in microseconds (0:0)\n"
		  "  --seed N                 for the random numbers (1)\n"
		  "  --split-reads            read relation files that are opened read-only\n"
		  "                           in small pieces, so that pages can be torn\n"
		  "  --help\n", out);
}

/*
 * Parse a number that ends at the character end.  Returns what follows.
 */
static const char *
parse_number(const char *text, char end, uint64_t *number)
{
	char	   *rest;

	if (text == NULL || *text < '0' || *text > '9')
		return NULL;
	errno = 0;
	*number = strtoull(text, &rest, 10);
	if (errno != 0 || *rest != end)
		return NULL;
	return rest + 1;
}

/*
 * Put an absolute path in place of one from the command line.
 */
static bool
resolve_directory(const char **path, const char *what)
{
	char	   *resolved;

	if (*path == NULL)
	{
		report_error("Try --help.", "%s is missing", what);
		return false;
	}
	resolved = realpath(*path, NULL);
	if (resolved == NULL)
	{
		report_error("Create the directory first.", "could not find %s \"%s\": %s",
					 what, *path, strerror(errno));
		return false;
	}
	*path = resolved;
	return true;
}

/*
 * Is a directory the same as another one, or in it?
 */
static bool
is_inside(const char *path, const char *dir)
{
	size_t		len = strlen(dir);

	return strncmp(path, dir, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static bool
parse_option(int option)
{
	const char *rest;

	switch (option)
	{
		case 'b':
			settings.backing = optarg;
			return true;
		case 'l':
			settings.log = optarg;
			return true;
		case 'r':
			settings.split_reads = true;
			return true;
		case 'd':
			rest = parse_number(optarg, ':', &settings.sync_delay_min_us);
			if (parse_number(rest, '\0', &settings.sync_delay_max_us) != NULL &&
				settings.sync_delay_min_us <= settings.sync_delay_max_us)
				return true;
			report_error("Give two numbers of microseconds, such as 100:2000.",
						 "invalid --sync-delay-us \"%s\"", optarg);
			return false;
		case 's':
			if (parse_number(optarg, '\0', &settings.seed) != NULL)
				return true;
			report_error(NULL, "invalid --seed \"%s\"", optarg);
			return false;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			return false;
	}
}

static bool
parse_command_line(int argc, char **argv)
{
	static const struct option options[] = {
		{"backing", required_argument, NULL, 'b'},
		{"log", required_argument, NULL, 'l'},
		{"sync-delay-us", required_argument, NULL, 'd'},
		{"seed", required_argument, NULL, 's'},
		{"split-reads", no_argument, NULL, 'r'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}
	};
	int			option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		if (!parse_option(option))
			return false;
	}
	if (optind + 1 < argc)
	{
		report_error("Try --help.", "too many arguments, first is \"%s\"",
					 argv[optind + 1]);
		return false;
	}
	settings.mountpoint = argv[optind];
	if (!resolve_directory(&settings.backing, "the backing directory (--backing)") ||
		!resolve_directory(&settings.log, "the log directory (--log)") ||
		!resolve_directory(&settings.mountpoint, "the mount point"))
		return false;
	if (is_inside(settings.log, settings.backing) ||
		is_inside(settings.backing, settings.mountpoint) ||
		is_inside(settings.log, settings.mountpoint))
	{
		report_error("The log must be outside of the backing directory, both outside of the mount point.",
					 "backing \"%s\", log \"%s\" and mount point \"%s\" overlap",
					 settings.backing, settings.log, settings.mountpoint);
		return false;
	}
	return true;
}

/*
 * Allow as many open files as there may be.  If that fails, opening one too
 * many will say so.
 */
static void
raise_file_limit(void)
{
	struct rlimit limit = {MAX_OPEN_FILES, MAX_OPEN_FILES};

	if (setrlimit(RLIMIT_NOFILE, &limit) != 0 &&
		getrlimit(RLIMIT_NOFILE, &limit) == 0)
	{
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/*
 * Thread that writes out the log when SIGUSR1 arrives.
 */
static void *
flush_on_signal(void *arg)
{
	sigset_t	signals;
	int			signal;

	(void) arg;
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	while (sigwait(&signals, &signal) == 0)
	{
		lock();
		oplog_flush();
		unlock();
	}
	return NULL;
}

/*
 * Start that thread.  Signals that end the daemon must reach the main thread,
 * so the new one is started with all of them blocked.
 */
static bool
start_flusher(void)
{
	sigset_t	all;
	sigset_t	before;
	pthread_t	thread;
	int			error;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	error = pthread_create(&thread, NULL, flush_on_signal, NULL);
	sigaddset(&before, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error != 0)
		report_error(NULL, "could not start a thread: %s", strerror(error));
	return error == 0;
}

static bool
serve(void)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int			rc;

	if (config == NULL)
		return false;
	fuse_loop_cfg_set_clone_fd(config, 1);
	fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
	fuse_loop_cfg_set_idle_threads(config, MAX_IDLE_THREADS);
	puts("ready");
	fflush(stdout);
	rc = fuse_session_loop_mt(session, config);
	fuse_loop_cfg_destroy(config);

	/* a signal that asks for the end is a clean end */
	if (rc < 0)
		report_error(NULL, "the connection to the kernel broke: %s", strerror(-rc));
	return rc >= 0;
}

/*
 * Once nothing is served any more, nothing may end us before the log is written.
 * Other threads have these signals blocked.
 */
static void
block_ends(void)
{
	sigset_t	ends;

	sigemptyset(&ends);
	sigaddset(&ends, SIGHUP);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &ends, NULL);
}

static bool
mount_and_serve(void)
{
	char		program[] = "pgcut-recorder";
	char		dash_o[] = "-o";
	char		options[] = "allow_other,default_permissions,suid,dev,fsname=pgcut,subtype=pgcut";
	char	   *args[] = {program, dash_o, options, NULL};
	struct fuse_args fuse_args = FUSE_ARGS_INIT(3, args);
	bool		ok = false;

	session = fuse_session_new(&fuse_args, &recorder_ops, sizeof(recorder_ops), NULL);
	if (session == NULL)
		return false;
	if (fuse_set_signal_handlers(session) != 0)
		report_error(NULL, "could not set signal handlers");
	else
	{
		if (fuse_session_mount(session, settings.mountpoint) != 0)
			report_error("This needs root and a usable /dev/fuse.",
						 "could not mount on \"%s\"", settings.mountpoint);
		else
		{
			ok = serve();
			block_ends();
			fuse_session_unmount(session);
		}
		fuse_remove_signal_handlers(session);
	}
	fuse_session_destroy(session);
	return ok;
}

int
main(int argc, char **argv)
{
	bool		ok;

	if (!parse_command_line(argc, argv))
		return 2;
	random_counter = settings.seed;

	raise_file_limit();
	/* Buffers for reads come and go; do not map and unmap memory each time. */
	mallopt(M_MMAP_THRESHOLD, 8 * 1024 * 1024);
	mallopt(M_TRIM_THRESHOLD, 64 * 1024 * 1024);

	if (!oplog_open(settings.log) || !tree_open(settings.backing, settings.log) ||
		!start_flusher())
		return 1;

	/* The modes of new files arrive with the caller's mask applied. */
	umask(0);
	ok = mount_and_serve();
	lock();
	ok = oplog_close() && ok;
	unlock();
	return ok ? 0 : 1;
}
