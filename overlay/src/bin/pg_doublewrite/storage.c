/*-------------------------------------------------------------------------
 *
 * storage.c
 *	  What the storage of a cluster promises about page writes, and what a
 *	  sync costs there.
 *
 * Only what the kernel reports is reported.  It speaks of atomic writes in
 * two places: the limits of the block device in sysfs, and those of a file by
 * statx().  Both concern writes that ask for atomicity (RWF_ATOMIC), and both
 * count: the file system must take part, and may do it in software.  The server
 * and we judge that by the same functions, with a test write.  About ordinary
 * writes, it says nothing at all.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/storage.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#ifndef WIN32
#include <sys/statvfs.h>
#endif
#include <unistd.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#endif

#include "common/doublewrite_atomic.h"
#include "common/file_perm.h"
#include "common/file_utils.h"
#include "common/logging.h"
#include "common/relpath.h"
#include "pg_doublewrite.h"
#include "portability/instr_time.h"

/* What one kind of sync costs, in microseconds */
typedef struct SyncCost
{
	int			count;
	double		average;
	double		median;
	double		max;
} SyncCost;

typedef struct StoragePlace
{
	const char *name;			/* tablespace, or what else is there */
	const char *path;
	char	   *target;			/* real path */
	dev_t		dev;
	const struct StoragePlace *same;	/* an earlier place on the same device */

	char	   *fstype;			/* or NULL */
	char	   *source;			/* device or other source of the mount */
	char	   *device;			/* block device in sysfs, or NULL */
	uint64		block_size;		/* of the file system; 0: not reported */
	uint64		logical_block;	/* of the device */
	uint64		physical_block;
	char	   *write_cache;	/* queue/write_cache, or NULL */
	DWAtomicProbe probe;		/* what device and files there allow */

	bool		synced;
	SyncCost	fdatasync_page;
	SyncCost	fsync_page;
	SyncCost	fdatasync_batch;
} StoragePlace;

/* Measuring stops after so many syncs, if that is before the time is over */
#define MAX_SYNCS	2000

/* Room that is written over and over; a full batch of the log fits in */
#define TEST_FILE_SIZE	((DW_MAX_BATCH_PAGES + 1) * BLCKSZ)

/* ---------------------------------------------------------------------
 * What the kernel reports
 * ---------------------------------------------------------------------
 */

#ifdef __linux__

/*
 * First line of a file of sysfs about a device, or NULL.
 */
static char *
read_line(const char *dir, const char *file)
{
	char		path[MAXPGPATH];
	char		line[256];
	FILE	   *fp;
	char	   *result = NULL;

	snprintf(path, sizeof(path), "%s/queue/%s", dir, file);
	fp = fopen(path, "r");
	if (fp == NULL)
		return NULL;
	if (fgets(line, sizeof(line), fp) != NULL)
	{
		line[strcspn(line, "\n")] = '\0';
		result = pg_strdup(line);
	}
	fclose(fp);
	return result;
}

static uint64
read_number(const char *dir, const char *file)
{
	char	   *line = read_line(dir, file);
	uint64		result = line ? strtou64(line, NULL, 10) : 0;

	pg_free(line);
	return result;
}

/*
 * The block device that holds the file system, if it is one that has one.
 */
static void
ask_device(StoragePlace *place)
{
	char		dir[MAXPGPATH];
	char		path[MAXPGPATH * 2];
	char	   *real;

	snprintf(dir, sizeof(dir), "/sys/dev/block/%u:%u",
			 major(place->dev), minor(place->dev));
	real = realpath(dir, NULL);
	if (real == NULL)
		return;
	place->device = pg_strdup(last_dir_separator(real) + 1);

	/* the limits of a partition are those of the disk around it */
	snprintf(path, sizeof(path), "%s/partition", real);
	if (access(path, F_OK) == 0)
		get_parent_directory(real);

	place->logical_block = read_number(real, "logical_block_size");
	place->physical_block = read_number(real, "physical_block_size");
	place->write_cache = read_line(real, "write_cache");
	free(real);
}

/*
 * Type and source of the mounted file system; the last mount that matches is
 * the one on top.
 */
static void
ask_mount(StoragePlace *place)
{
	FILE	   *fp = fopen("/proc/self/mountinfo", "r");
	char		line[4096];

	if (fp == NULL)
		return;
	while (fgets(line, sizeof(line), fp) != NULL)
	{
		unsigned int maj;
		unsigned int min;
		char		fstype[128];
		char		source[1024];
		char	   *rest = strstr(line, " - ");

		if (rest == NULL ||
			sscanf(line, "%*d %*d %u:%u", &maj, &min) != 2 ||
			maj != major(place->dev) || min != minor(place->dev) ||
			sscanf(rest, " - %127s %1023s", fstype, source) != 2)
			continue;
		pg_free(place->fstype);
		pg_free(place->source);
		place->fstype = pg_strdup(fstype);
		place->source = pg_strdup(source);
	}
	fclose(fp);
}

#else

static void
ask_device(StoragePlace *place)
{
}

static void
ask_mount(StoragePlace *place)
{
}

#endif							/* __linux__ */

/* ---------------------------------------------------------------------
 * What a sync costs
 * ---------------------------------------------------------------------
 */

/*
 * A file in the given directory that goes away when it is closed.
 */
static int
open_test_file(const char *dir)
{
	char		path[MAXPGPATH];
	int			fd;

#ifdef O_TMPFILE
	fd = open(dir, O_TMPFILE | O_RDWR | PG_BINARY, pg_file_create_mode);
	if (fd >= 0)
		return fd;
#endif
	snprintf(path, sizeof(path), "%s/%s_storage.XXXXXX", dir,
			 PG_TEMP_FILE_PREFIX);
	fd = mkstemp(path);
	if (fd < 0)
		pg_fatal("could not create file \"%s\": %m", path);
	unlink(path);
	return fd;
}

static int
double_cmp(const void *a, const void *b)
{
	double		da = *(const double *) a;
	double		db = *(const double *) b;

	return da < db ? -1 : da > db;
}

static void
summarize(SyncCost *cost, double *usec, int count)
{
	double		sum = 0;

	for (int i = 0; i < count; i++)
		sum += usec[i];
	qsort(usec, count, sizeof(double), double_cmp);
	cost->count = count;
	cost->average = sum / count;
	cost->median = usec[count / 2];
	cost->max = usec[count - 1];
}

/*
 * Write and sync again and again for the given time.  The file has its size
 * already, as files of the log and most data files have; only the sync is
 * timed.
 */
static void
measure(const char *path, int fd, char *buffer, size_t size, bool data_only,
		int seconds, SyncCost *cost)
{
	static double usec[MAX_SYNCS];
	double		elapsed = 0;
	int			count = 0;

	while (count < MAX_SYNCS && (count == 0 || elapsed < seconds * 1000000.0))
	{
		instr_time	start;
		instr_time	end;

		buffer[0]++;
		if (pg_pwrite(fd, buffer, size, 0) != (ssize_t) size)
			pg_fatal("could not write to a temporary file in \"%s\": %m", path);

		INSTR_TIME_SET_CURRENT(start);
		if ((data_only ? fdatasync(fd) : fsync(fd)) != 0)
			pg_fatal("could not fsync a temporary file in \"%s\": %m", path);
		INSTR_TIME_SET_CURRENT(end);
		INSTR_TIME_SUBTRACT(end, start);
		usec[count] = INSTR_TIME_GET_DOUBLE(end) * 1000000.0;
		elapsed += usec[count++];
	}
	summarize(cost, usec, count);
}

static void
measure_syncs(StoragePlace *place, int seconds)
{
	int			fd = open_test_file(place->path);
	char	   *buffer = pg_malloc0(TEST_FILE_SIZE);

	if (pg_pwrite(fd, buffer, TEST_FILE_SIZE, 0) != TEST_FILE_SIZE ||
		fsync(fd) != 0)
		pg_fatal("could not write to a temporary file in \"%s\": %m",
				 place->path);

	measure(place->path, fd, buffer, BLCKSZ, true, seconds,
			&place->fdatasync_page);
	measure(place->path, fd, buffer, BLCKSZ, false, seconds,
			&place->fsync_page);
	measure(place->path, fd, buffer, TEST_FILE_SIZE, true, seconds,
			&place->fdatasync_batch);
	place->synced = true;
	pg_free(buffer);
	close(fd);
}

/* ---------------------------------------------------------------------
 * Places
 * ---------------------------------------------------------------------
 */

static StoragePlace *places;
static int	nplaces;
static int	maxplaces;

/*
 * Where it really is, and the block size of the file system.  Windows does not
 * tell the latter.
 */
static void
look_at_place(StoragePlace *place)
{
#ifdef WIN32
	place->target = _fullpath(NULL, place->path, 0);
#else
	struct statvfs vfs;

	place->target = realpath(place->path, NULL);
	if (statvfs(place->path, &vfs) == 0)
		place->block_size = vfs.f_frsize;
#endif
}

/*
 * Places are kept in the order in which they are added, and do not move once
 * all are there.
 */
static void
add_place(const char *name, const char *path)
{
	struct stat st;
	StoragePlace *place;

	if (stat(path, &st) < 0)
	{
		pg_log_warning("could not stat directory \"%s\": %m", path);
		return;
	}
	if (nplaces == maxplaces)
	{
		maxplaces = Max(16, maxplaces * 2);
		places = pg_realloc(places, maxplaces * sizeof(StoragePlace));
	}
	place = &places[nplaces++];
	memset(place, 0, sizeof(*place));
	place->name = pg_strdup(name);
	place->path = pg_strdup(path);
	place->dev = st.st_dev;
	look_at_place(place);
}

static void
find_places(void)
{
	DIR		   *dir;
	struct dirent *de;

	add_place("pg_default", "base");
	add_place("pg_global", "global");

	dir = opendir(PG_TBLSPC_DIR);
	if (dir == NULL)
		pg_fatal("could not open directory \"%s\": %m", PG_TBLSPC_DIR);
	while (errno = 0, (de = readdir(dir)) != NULL)
	{
		char		path[MAXPGPATH];
		char		name[64];

		if (de->d_name[0] == '.' ||
			strspn(de->d_name, "0123456789") != strlen(de->d_name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", PG_TBLSPC_DIR, de->d_name);
		snprintf(name, sizeof(name), "tablespace %.20s", de->d_name);
		add_place(name, path);
	}
	if (errno != 0)
		pg_fatal("could not read directory \"%s\": %m", PG_TBLSPC_DIR);
	closedir(dir);

	if (access(DW_DIR, F_OK) == 0)
		add_place("double-write log", DW_DIR);
	add_place("WAL", "pg_wal");
}

static void
ask_place(StoragePlace *place, int seconds, bool test_sync)
{
	for (const StoragePlace *p = places; p < place; p++)
	{
		if (p->dev == place->dev && place->same == NULL)
			place->same = p;
	}

	ask_mount(place);
	ask_device(place);
	DWAtomicProbeDirectory(place->path, &place->probe);
	if (test_sync && place->same == NULL)
		measure_syncs(place, seconds);
}

/* ---------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------
 */

/*
 * Return whether pages can be written atomically: yes, no, or unknown.  In software
 * does not count.
 */
static const char *
atomic_pages(const StoragePlace *place)
{
	switch (place->probe.verdict)
	{
		case DW_ATOMIC_UNKNOWN:
		case DW_ATOMIC_UNSUPPORTED:
			return "unknown";
		case DW_ATOMIC_HARDWARE:
			return "yes";
		default:
			return "no";
	}
}

static const char *
atomic_pages_text(const StoragePlace *place)
{
	switch (place->probe.verdict)
	{
		case DW_ATOMIC_HARDWARE:
			return _("proved in hardware; io_torn_pages_protection = atomic_writes uses them");
		case DW_ATOMIC_SOFTWARE:
			return _("made by the file system in software, by copies; not used");
		case DW_ATOMIC_OTHER_SIZE:
			return _("not possible, only of other sizes");
		case DW_ATOMIC_LARGE_PAGES:
			return _("not used, as the kernel's memory pages are larger");
		case DW_ATOMIC_REFUSED:
			return _("refused in a test");
		case DW_ATOMIC_FAILED:
			return _("a test has failed");
		case DW_ATOMIC_NOT_OFFERED:
			return _("not possible");
		case DW_ATOMIC_UNSUPPORTED:
		case DW_ATOMIC_UNKNOWN:
			break;
	}
	return _("the kernel does not say");
}

static void
json_reported(const char *key, uint64 value)
{
	if (value != 0)
		json_uint(key, value);
	else
		json_null(key);
}

static void
json_cost(const char *key, const SyncCost *cost)
{
	json_open_object(key);
	json_uint("count", cost->count);
	json_double("average_us", cost->average);
	json_double("median_us", cost->median);
	json_double("max_us", cost->max);
	json_close();
}

static void
json_place(const StoragePlace *place)
{
	const DWAtomicProbe *probe = &place->probe;

	json_open_object(NULL);
	json_string("name", place->name);
	json_string("path", place->path);
	json_string("real_path", place->target);
	json_string("same_file_system_as", place->same ? place->same->name : NULL);
	json_string("file_system", place->fstype);
	json_string("mount_source", place->source);
	json_reported("file_system_block_size", place->block_size);
	json_string("block_device", place->device);
	json_reported("logical_block_size", place->logical_block);
	json_reported("physical_block_size", place->physical_block);
	json_string("write_cache", place->write_cache);
	json_reported("device_atomic_write_max", probe->device_max);
	json_reported("file_atomic_write_min", probe->file.unit_min);
	json_reported("file_atomic_write_max", probe->file.unit_max);
	json_reported("direct_io_memory_alignment", probe->file.mem_align);
	json_reported("direct_io_offset_alignment", probe->file.offset_align);
	json_bool("ordinary_page_writes_promised", false);
	json_string("atomic_page_writes", atomic_pages(place));
	json_string("atomic_page_proof", DWAtomicVerdictName(probe->verdict));
	json_string("atomic_page_advice", DWAtomicAdvice(probe));
	if (place->synced)
	{
		json_cost("fdatasync_page", &place->fdatasync_page);
		json_cost("fsync_page", &place->fsync_page);
		json_cost("fdatasync_batch", &place->fdatasync_batch);
	}
	json_close();
}

static void
text_reported(const char *label, uint64 value)
{
	if (value != 0)
		printf("  %-38s%" PRIu64 " %s\n", label, value, _("bytes"));
	else
		printf("  %-38s%s\n", label, _("not reported"));
}

static void
text_cost(const char *label, const SyncCost *cost)
{
	printf(_("  %-38smedian %.0f us, average %.0f us, worst %.0f us (%d syncs)\n"),
		   label, cost->median, cost->average, cost->max, cost->count);
}

static void
text_string(const char *label, const char *value)
{
	printf("  %-38s%s\n", label, value ? value : _("not reported"));
}

static void
text_place(const StoragePlace *place)
{
	const DWAtomicProbe *probe = &place->probe;

	printf("%s (%s)\n", place->name, place->target ? place->target : place->path);
	if (place->same != NULL)
	{
		printf(_("  same file system as %s\n\n"), place->same->name);
		return;
	}
	text_string(_("file system:"), place->fstype);
	text_string(_("mounted from:"), place->source);
	text_reported(_("file system block size:"), place->block_size);
	text_string(_("block device:"), place->device);
	if (place->device != NULL)
	{
		text_reported(_("logical block size:"), place->logical_block);
		text_reported(_("physical block size:"), place->physical_block);
		text_string(_("write cache:"), place->write_cache);
		text_reported(_("atomic write limit of the device:"), probe->device_max);
	}
	text_reported(_("atomic write limit of files:"), probe->file.unit_max);
	text_reported(_("direct I/O alignment of memory:"), probe->file.mem_align);
	text_reported(_("direct I/O alignment of offsets:"), probe->file.offset_align);
	text_string(_("ordinary 8-kB writes:"),
				_("nothing is promised; a crash may tear them"));
	text_string(_("atomic 8-kB writes:"), atomic_pages_text(place));
	if (DWAtomicAdvice(probe) != NULL)
		text_string(_("known to allow them:"), DWAtomicAdvice(probe));
	if (place->synced)
	{
		text_cost(_("page and fdatasync():"), &place->fdatasync_page);
		text_cost(_("page and fsync():"), &place->fsync_page);
		text_cost(_("full batch and fdatasync():"), &place->fdatasync_batch);
	}
	printf("\n");
}

static void
text_caveats(void)
{
	printf(_("What cannot be known: whether a device keeps what it has acknowledged, what\n"
			 "volume managers, RAID controllers, hypervisors and network storage below it do,\n"
			 "and whether a copy-on-write file system writes pages whole: the kernel reports\n"
			 "none of these.  Keep io_torn_pages_protection on unless the vendor\n"
			 "guarantees that 8-kB writes are not torn.\n"));
}

/*
 * State what is known of each place, and measure syncs for that many seconds
 * of each kind.
 */
void
test_storage(const char *datadir, const DWToolOptions *options, int seconds,
			 bool test_sync)
{
	if (chdir(datadir) < 0)
		pg_fatal("could not change directory to \"%s\": %m", datadir);
	if (access("global/pg_control", F_OK) < 0)
		pg_fatal("\"%s\" is not a data directory: %m", datadir);

	find_places();
	for (int i = 0; i < nplaces; i++)
		ask_place(&places[i], seconds, test_sync);

	if (options->json)
	{
		json_open_object(NULL);
		json_uint("page_size", BLCKSZ);
		json_open_array("places");
		for (int i = 0; i < nplaces; i++)
			json_place(&places[i]);
		json_close();
		json_close();
		return;
	}
	for (int i = 0; i < nplaces; i++)
		text_place(&places[i]);
	text_caveats();
}
