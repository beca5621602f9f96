/*-------------------------------------------------------------------------
 *
 * dataops.c
 *	  Reading, writing, allocating and syncing files.
 *
 * The kernel holds the lock of the inode during a write and during a sync, so
 * a write and a sync of the same file never overlap here.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* The smallest write that may count as atomic */
#define PAGE_SIZE		8192

/* fi->fh of a file whose reads are split */
#define FH_SPLIT		1

/* A split read pauses that long between two pieces, in microseconds */
#define SPLIT_PAUSE_MIN	20
#define SPLIT_PAUSE_MAX	200

void
do_open(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	if (!settings.split_reads)
	{
		/* The kernel then opens without asking, and keeps cached pages. */
		fuse_reply_err(req, ENOSYS);
		return;
	}
	lock();
	if ((fi->flags & O_ACCMODE) == O_RDONLY && tree_is_relation(tree_inode(nodeid)))
	{
		fi->fh = FH_SPLIT;
		fi->direct_io = 1;
	}
	else
		fi->keep_cache = 1;
	unlock();
	fuse_reply_open(req, fi);
}

/*
 * Read in small pieces with pauses, so that a reader that is not kept apart
 * from writers finds pages that are partly old and partly new.  Each piece is
 * whole sectors and is read under the lock, so no sector is ever torn.
 */
static ssize_t
read_split(int fd, char *buf, size_t size, off_t offset)
{
	size_t		done = 0;

	while (done < size)
	{
		size_t		piece = (size_t) 512 << random_between(0, 3);
		ssize_t		n;

		if (piece > size - done)
			piece = size - done;
		lock();
		n = pread(fd, buf + done, piece, offset + done);
		unlock();
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		done += n;
		sleep_us(random_between(SPLIT_PAUSE_MIN, SPLIT_PAUSE_MAX));
	}
	return done;
}

void
do_read(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		struct fuse_file_info *fi)
{
	Inode	   *inode = tree_inode(nodeid);
	char	   *buf;
	ssize_t		n;

	if (faults_on_reads())
	{
		int			error;

		lock();
		error = fault_on_inode(FAULT_READ, inode);
		unlock();
		if (error != 0)
		{
			fuse_reply_err(req, error);
			return;
		}
	}
	buf = malloc(size);
	if (buf == NULL)
	{
		fuse_reply_err(req, ENOMEM);
		return;
	}
	if (fi->fh == FH_SPLIT)
		n = read_split(inode->fd, buf, size, offset);
	else
		n = pread(inode->fd, buf, size, offset);
	if (n < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, buf, n);
	free(buf);
}

/*
 * Half of a write, in whole sectors if possible.
 */
static size_t
shortened(size_t size)
{
	size_t		half = size / 2;

	return half >= 512 ? half - half % 512 : (half > 0 ? half : size);
}

/*
 * Let a random set of the sectors of a write take effect, each run of them as
 * an operation of its own.  The write fails nevertheless.
 */
static void
write_torn(const Inode *inode, const char *buf, size_t size, off_t offset, uint64_t begin,
		   pid_t pid)
{
	size_t		done = 0;

	while (done < size)
	{
		bool		effective = random_between(0, 1);
		size_t		run = 512 - (offset + done) % 512;

		while (done + run < size && random_between(0, 1) == effective)
			run += 512;
		if (run > size - done)
			run = size - done;
		if (effective && pwrite(inode->fd, buf + done, run, offset + done) == (ssize_t) run)
			oplog_append(&(Op)
						 {
							 .type = OP_WRITE, .flags = OPF_SHORTENED, .begin = begin,
							 .ino = inode->ino, .a = offset + done, .b = pid,
							 .data = buf + done, .data_len = run
						 });
		done += run;
	}
}

/*
 * Is a write atomic?  The kernel does not pass RWF_ATOMIC on, nor does it let it be
 * used on a file system like this one.  So the test module that stands in for
 * it marks such writes by O_NOATIME, on a file opened for direct I/O.  It counts where
 * the kernel would let it: for 2^n pages, naturally aligned.
 */
static bool
is_atomic(const struct fuse_file_info *fi, size_t size, off_t offset)
{
	return (fi->flags & O_DIRECT) && (fi->flags & O_NOATIME) &&
		size >= PAGE_SIZE && (size & (size - 1)) == 0 && offset % (off_t) size == 0;
}

void
do_write(fuse_req_t req, fuse_ino_t nodeid, const char *buf, size_t size, off_t offset,
		 struct fuse_file_info *fi)
{
	Inode	   *inode = tree_inode(nodeid);
	uint64_t	begin = oplog_count();
	bool		atomic = is_atomic(fi, size, offset);
	uint16_t	flags = atomic ? OPF_ATOMIC : 0;
	ssize_t		written = 0;
	int			error;

	lock();
	error = admit_inode(FAULT_WRITE, OP_WRITE, inode, offset + size, begin);
	if (error == 0)
	{
		error = fault_on_inode(FAULT_TORNWRITE, inode);
		if (error != 0 && !atomic)
			write_torn(inode, buf, size, offset, begin, fuse_req_ctx(req)->pid);
	}
	if (error == 0 && !atomic && fault_on_inode(FAULT_SHORTWRITE, inode) != 0)
	{
		size = shortened(size);
		flags = OPF_SHORTENED;
	}
	if (error == 0)
	{
		written = pwrite(inode->fd, buf, size, offset);
		if (written < 0)
			error = errno;
	}
	if (written > 0)
		oplog_append(&(Op)
					 {
						 .type = OP_WRITE, .flags = flags, .begin = begin,
						 .ino = inode->ino, .a = offset,
						 .b = fuse_req_ctx(req)->pid, .data = buf, .data_len = written
					 });
	unlock();
	if (error != 0)
		fuse_reply_err(req, error);
	else
		fuse_reply_write(req, written);
}

/*
 * A sync promises what had taken effect when it arrived.  It takes time, and
 * other operations go on meanwhile; the promise counts from its end.
 */
static void
sync_inode(fuse_req_t req, Inode *inode, uint16_t flags)
{
	uint64_t	begin = oplog_count();
	int			error = 0;

	sleep_us(random_between(settings.sync_delay_min_us, settings.sync_delay_max_us));
	lock();
	fault_await_thaw(FAULT_FREEZESYNC, inode, NULL);
	if (!oplog_usable())
		error = EIO;
	else
	{
		error = fault_on_inode(FAULT_SYNC, inode);
		if (error == 0 && (flags & OPF_DIRECTORY))
			error = fault_on_inode(FAULT_SYNCDIR, inode);
		oplog_append(&(Op)
					 {
						 .type = error ? OP_SYNCFAILED : OP_SYNC, .flags = flags,
						 .begin = begin, .ino = inode->ino, .a = error
					 });
	}
	unlock();
	fuse_reply_err(req, error);
}

void
do_fsync(fuse_req_t req, fuse_ino_t nodeid, int datasync, struct fuse_file_info *fi)
{
	(void) fi;
	sync_inode(req, tree_inode(nodeid), datasync ? OPF_DATASYNC : 0);
}

void
do_fsyncdir(fuse_req_t req, fuse_ino_t nodeid, int datasync, struct fuse_file_info *fi)
{
	(void) fi;
	sync_inode(req, tree_inode(nodeid),
			   OPF_DIRECTORY | (datasync ? OPF_DATASYNC : 0));
}

void
do_fallocate(fuse_req_t req, fuse_ino_t nodeid, int mode, off_t offset, off_t length,
			 struct fuse_file_info *fi)
{
	Inode	   *inode = tree_inode(nodeid);
	uint64_t	begin = oplog_count();
	int			error;

	(void) fi;
	lock();
	error = admit_inode(FAULT_FALLOCATE, OP_FALLOCATE, inode,
						(mode & FALLOC_FL_PUNCH_HOLE) ? 0 : offset + length, begin);
	if (error == 0 && fallocate(inode->fd, mode, offset, length) != 0)
		error = errno;
	if (error == 0)
		oplog_append(&(Op)
					 {
						 .type = OP_FALLOCATE, .flags = mode, .begin = begin,
						 .ino = inode->ino, .a = offset, .b = length
					 });
	unlock();
	fuse_reply_err(req, error);
}
