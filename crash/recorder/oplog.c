/*-------------------------------------------------------------------------
 *
 * oplog.c
 *	  The log of operations, ops.bin.
 *
 * Records are collected in memory and written when the buffer is full, on
 * request and at the end.  Nothing is synced: the log outlives the daemon,
 * not the machine.
 *
 * If the log cannot be written, the recording is worthless from there on.
 * Then oplog_usable() turns false, every operation that changes something is
 * refused with EIO, and the daemon exits with a failure.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#include "recorder.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Large enough that a write(2) to the log is rare beside the writes recorded */
#define OPLOG_BUFFER_SIZE	(4 * 1024 * 1024)

_Static_assert(sizeof(OpRecord) == 64, "OpRecord is part of a file format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
			   "ops.bin is little-endian");

static int	log_fd = -1;
static char *log_path;
static char *buffer;
static size_t buffer_used;
static uint64_t last_seq;		/* written under big_lock, read by anyone */
static bool broken;				/* likewise */

static bool write_out(const char *data, size_t len);
static void add_bytes(const void *data, size_t len);

/*
 * Create ops.bin in directory dir and write its header.
 */
bool
oplog_open(const char *dir)
{
	const uint32_t version[2] = {OPLOG_VERSION, 0};

	if (asprintf(&log_path, "%s/ops.bin", dir) < 0 ||
		(buffer = malloc(OPLOG_BUFFER_SIZE)) == NULL)
	{
		report_error(NULL, "out of memory");
		return false;
	}
	log_fd = open(log_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (log_fd < 0)
	{
		report_error(errno == EEXIST ?
					 "Each recording needs a directory of its own." :
					 "The directory given with --log must exist and be writable.",
					 "could not create \"%s\": %s", log_path, strerror(errno));
		return false;
	}
	add_bytes(OPLOG_MAGIC, 8);
	add_bytes(version, sizeof(version));
	return oplog_flush();
}

/*
 * How many operations have taken effect?  Needs no lock.  An operation that
 * is being applied at this moment is not counted, which is the safe side for
 * the stamp "begin" of a sync.
 */
uint64_t
oplog_count(void)
{
	return __atomic_load_n(&last_seq, __ATOMIC_ACQUIRE);
}

bool
oplog_usable(void)
{
	return !__atomic_load_n(&broken, __ATOMIC_ACQUIRE);
}

/*
 * Append an operation that has just taken effect.  Caller holds big_lock, and
 * has held it since before the effect.
 */
void
oplog_append(const Op *op)
{
	OpRecord	record;
	struct timespec now;

	assert(op->data_len == 0 || op->data != NULL);
	clock_gettime(CLOCK_MONOTONIC, &now);
	record.magic = OPREC_MAGIC;
	record.type = op->type;
	record.flags = op->flags;
	record.seq = last_seq + 1;
	record.begin = op->begin;
	record.time_ns = (uint64_t) now.tv_sec * 1000000000 + now.tv_nsec;
	record.ino = op->ino;
	record.a = op->a;
	record.b = op->b;
	record.name_len = op->name ? strlen(op->name) : 0;
	record.data_len = op->data_len;
	assert(record.begin < record.seq);

	add_bytes(&record, sizeof(record));
	if (record.name_len > 0)
		add_bytes(op->name, record.name_len);
	if (record.data_len > 0)
		add_bytes(op->data, record.data_len);
	__atomic_store_n(&last_seq, record.seq, __ATOMIC_RELEASE);
}

/*
 * Write out what is buffered.  Caller holds big_lock.
 */
bool
oplog_flush(void)
{
	size_t		len = buffer_used;

	buffer_used = 0;
	return write_out(buffer, len);
}

bool
oplog_close(void)
{
	bool		ok = oplog_flush() && oplog_usable();

	if (close(log_fd) != 0)
	{
		report_error(NULL, "could not close \"%s\": %s", log_path, strerror(errno));
		ok = false;
	}
	log_fd = -1;
	return ok;
}

static void
add_bytes(const void *data, size_t len)
{
	if (buffer_used + len > OPLOG_BUFFER_SIZE)
		oplog_flush();
	if (len > OPLOG_BUFFER_SIZE)
		write_out(data, len);
	else
	{
		memcpy(buffer + buffer_used, data, len);
		buffer_used += len;
	}
}

static bool
write_out(const char *data, size_t len)
{
	while (len > 0 && !broken)
	{
		ssize_t		written = write(log_fd, data, len);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
		{
			report_error("Every change is refused from here on; give --log more space.",
						 "could not write \"%s\": %s", log_path,
						 strerror(written < 0 ? errno : ENOSPC));
			__atomic_store_n(&broken, true, __ATOMIC_RELEASE);
			break;
		}
		data += written;
		len -= written;
	}
	return !broken;
}
