/*-------------------------------------------------------------------------
 *
 * fileops.c
 *	  The file system operations: apply to the backing directory, record,
 *	  answer the kernel.  Here are those on names and attributes; data are in
 *	  dataops.c, directory listings in listing.c.
 *
 * What is left out on purpose, and what the kernel does then:
 *	- flush, access, getxattr, lseek, copy_file_range: it asks once and never
 *	  again.  copy_file_range becomes reads and writes, which are recorded.
 *	  getxattr would cost one more request for each write, for
 *	  "security.capability".
 *	- writeback cache: would merge and delay writes.  Each write(2) arrives
 *	  here before it returns.
 *	- direct_io: would hide the sync that O_DSYNC asks for.  Only files opened
 *	  read-only may have it (--split-reads).
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/*
 * Nothing but this daemon changes the tree, so what the kernel knows stays
 * valid until it changes it itself.  In seconds.
 */
#define CACHE_TIMEOUT	86400.0

/* Requests in flight for which no process waits (asynchronous direct I/O) */
#define MAX_BACKGROUND	64

/*
 * Attributes of an inode are those of the backing file with our number.
 */
static int
get_attributes(const Inode *inode, struct stat *st)
{
	if (fstatat(inode->fd, "", st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0)
		return errno;
	st->st_ino = inode->ino;
	return 0;
}

/*
 * Fill the answer that gives the kernel a reference to an inode.
 */
int
fill_entry(Inode *inode, struct fuse_entry_param *entry)
{
	int			error;

	memset(entry, 0, sizeof(*entry));
	error = get_attributes(inode, &entry->attr);
	if (error != 0)
		return error;
	entry->ino = tree_nodeid(inode);
	entry->attr_timeout = CACHE_TIMEOUT;
	entry->entry_timeout = CACHE_TIMEOUT;
	inode->nlookup++;
	return 0;
}

static void
reply_entry(fuse_req_t req, int error, const struct fuse_entry_param *entry)
{
	if (error != 0)
		fuse_reply_err(req, error);
	else
		fuse_reply_entry(req, entry);
}

/*
 * Refuse an operation because of a fault rule.
 */
static int
refuse(OpType type, const Inode *inode, const char *name, uint64_t begin, int error)
{
	oplog_append(&(Op)
				 {
					 .type = OP_FAULT, .begin = begin, .ino = inode->ino,
					 .a = error, .b = type, .name = name
				 });
	return error;
}

/*
 * May an operation on a name go on, which may have to wait for that?  Returns 0 or the
 * errno.  All operations that change something ask here, or in admit_inode(), first.
 */
static int
admit_name(FaultOp fault, OpType type, const Inode *parent, const char *name, uint64_t begin)
{
	int			error;

	fault_await_thaw(FAULT_FREEZE, parent, name);
	if (!oplog_usable())
		return EIO;
	error = fault_on_name(fault, parent, name);
	if (error == 0 && fault == FAULT_CREATE)
		error = fault_on_name(FAULT_GROW, parent, name);
	return error == 0 ? 0 : refuse(type, parent, name, begin, error);
}

/*
 * The same of an inode, which the operation may make longer, up to this place.
 */
int
admit_inode(FaultOp fault, OpType type, const Inode *inode, off_t end, uint64_t begin)
{
	int			error;

	fault_await_thaw(FAULT_FREEZE, inode, NULL);
	if (!oplog_usable())
		return EIO;
	error = fault_on_inode(fault, inode);
	if (error == 0)
		error = fault_on_growth(inode, end);
	return error == 0 ? 0 : refuse(type, inode, NULL, begin, error);
}

static void
do_init(void *userdata, struct fuse_conn_info *conn)
{
	(void) userdata;

	/* An open with O_TRUNC must arrive as a truncation. */
	conn->want &= ~FUSE_CAP_ATOMIC_O_TRUNC;
	/*
	 * When an asynchronous direct write has ended, other file systems throw away
	 * what has been cached of its range meanwhile.  FUSE does not, so such writes
	 * are made one after the other.
	 */
	conn->want &= ~FUSE_CAP_ASYNC_DIO;
	/* A changed modification time is no reason to drop cached pages. */
	conn->want &= ~FUSE_CAP_AUTO_INVAL_DATA;
	conn->want |= conn->capable & (FUSE_CAP_EXPLICIT_INVAL_DATA |
								   FUSE_CAP_CACHE_SYMLINKS);
	conn->max_background = MAX_BACKGROUND;
}

static void
do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry;
	Dentry	   *d;
	int			error = 0;

	lock();
	d = tree_find(tree_inode(parent), name);
	if (d != NULL)
		error = fill_entry(d->inode, &entry);
	unlock();
	if (d == NULL)
	{
		/* inode 0 lets the kernel remember that there is no such name */
		memset(&entry, 0, sizeof(entry));
		entry.entry_timeout = CACHE_TIMEOUT;
	}
	reply_entry(req, error, &entry);
}

static void
do_forget(fuse_req_t req, fuse_ino_t nodeid, uint64_t nlookup)
{
	lock();
	tree_forget(tree_inode(nodeid), nlookup);
	unlock();
	fuse_reply_none(req);
}

static void
do_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	lock();
	for (size_t i = 0; i < count; i++)
		tree_forget(tree_inode(forgets[i].ino), forgets[i].nlookup);
	unlock();
	fuse_reply_none(req);
}

static void
do_getattr(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	struct stat st;
	int			error;

	(void) fi;
	error = get_attributes(tree_inode(nodeid), &st);
	if (error != 0)
		fuse_reply_err(req, error);
	else
		fuse_reply_attr(req, &st, CACHE_TIMEOUT);
}

static int
set_mode(const Inode *inode, mode_t mode)
{
	char		path[64];

	/* fchmod() refuses descriptors made with O_PATH */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", inode->fd);
	return chmod(path, mode) != 0 ? errno : 0;
}

static int
set_times(const Inode *inode, const struct stat *attr, int to_set)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};

	if (to_set & FUSE_SET_ATTR_ATIME)
		times[0] = attr->st_atim;
	if (to_set & FUSE_SET_ATTR_ATIME_NOW)
		times[0].tv_nsec = UTIME_NOW;
	if (to_set & FUSE_SET_ATTR_MTIME)
		times[1] = attr->st_mtim;
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		times[1].tv_nsec = UTIME_NOW;
	return utimensat(inode->fd, "", times, AT_EMPTY_PATH) != 0 ? errno : 0;
}

static int
set_size(const Inode *inode, off_t size, uint64_t begin)
{
	/* what a truncation adds takes no space */
	int			error = admit_inode(FAULT_TRUNCATE, OP_TRUNCATE, inode, 0, begin);

	if (error != 0)
		return error;
	if (ftruncate(inode->fd, size) != 0)
		return errno;
	oplog_append(&(Op)
				 {
					 .type = OP_TRUNCATE, .begin = begin, .ino = inode->ino,
					 .a = size
				 });
	return 0;
}

/*
 * Wait, if a rule says so, before anything happens to a file.
 */
static void
hold(const Inode *inode)
{
	int			ms;

	lock();
	ms = fault_on_inode(FAULT_HOLD, inode);
	unlock();
	sleep_us((uint64_t) ms * 1000);
}

static void
do_setattr(fuse_req_t req, fuse_ino_t nodeid, struct stat *attr, int to_set,
		   struct fuse_file_info *fi)
{
	Inode	   *inode = tree_inode(nodeid);
	uint64_t	begin = oplog_count();
	struct stat st;
	int			error = 0;

	(void) fi;
	if (to_set & FUSE_SET_ATTR_SIZE)
		hold(inode);
	lock();
	if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
	{
		uid_t		uid = (to_set & FUSE_SET_ATTR_UID) ? attr->st_uid : (uid_t) -1;
		gid_t		gid = (to_set & FUSE_SET_ATTR_GID) ? attr->st_gid : (gid_t) -1;

		if (fchownat(inode->fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0)
			error = errno;
	}
	if (error == 0 && (to_set & FUSE_SET_ATTR_MODE))
		error = set_mode(inode, attr->st_mode);
	if (error == 0 && (to_set & FUSE_SET_ATTR_SIZE))
		error = set_size(inode, attr->st_size, begin);
	if (error == 0 && (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW |
								 FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)))
		error = set_times(inode, attr, to_set);
	if (error == 0)
		error = get_attributes(inode, &st);
	unlock();
	if (error != 0)
		fuse_reply_err(req, error);
	else
		fuse_reply_attr(req, &st, CACHE_TIMEOUT);
}

static void
do_readlink(fuse_req_t req, fuse_ino_t nodeid)
{
	char		target[PATH_MAX + 1];
	ssize_t		len = readlinkat(tree_inode(nodeid)->fd, "", target, PATH_MAX);

	if (len < 0)
	{
		fuse_reply_err(req, errno);
		return;
	}
	target[len] = '\0';
	fuse_reply_readlink(req, target);
}

/*
 * Create something new in the backing directory.
 */
static int
create_backing(OpType type, const Inode *parent, const char *name, mode_t mode,
			   dev_t rdev, const char *target)
{
	int			rc;

	if (type == OP_MKDIR)
		rc = mkdirat(parent->fd, name, mode);
	else if (type == OP_SYMLINK)
		rc = symlinkat(target, parent->fd, name);
	else
		rc = mknodat(parent->fd, name, mode, rdev);
	return rc != 0 ? errno : 0;
}

/*
 * Give a new file to the user that asked for it.  The group stays if the
 * directory passes on its own.
 */
static int
give_to_caller(fuse_req_t req, const Inode *parent, const Inode *inode)
{
	const struct fuse_ctx *caller = fuse_req_ctx(req);
	struct stat st;
	gid_t		gid = caller->gid;

	if (fstat(parent->fd, &st) != 0)
		return errno;
	if (st.st_mode & S_ISGID)
		gid = (gid_t) -1;
	if (fchownat(inode->fd, "", caller->uid, gid,
				 AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0)
		return errno;
	return 0;
}

/*
 * Create a file, directory or symbolic link (target), and record it.
 */
static int
make_node(fuse_req_t req, OpType type, Inode *parent, const char *name, mode_t mode,
		  dev_t rdev, const char *target, struct fuse_entry_param *entry)
{
	uint64_t	begin = oplog_count();
	Inode	   *inode;
	int			error;

	lock();
	error = admit_name(FAULT_CREATE, type, parent, name, begin);
	if (error == 0)
		error = create_backing(type, parent, name, mode, rdev, target);
	if (error == 0)
	{
		inode = tree_add_new(parent, name);
		if (inode == NULL)
		{
			error = errno;
			unlinkat(parent->fd, name, type == OP_MKDIR ? AT_REMOVEDIR : 0);
		}
	}
	if (error == 0)
	{
		if (tree_is_recorded(inode))
			oplog_append(&(Op)
						 {
							 .type = type, .begin = begin, .ino = inode->ino,
							 .a = parent->ino, .b = target ? 0 : mode, .name = name,
							 .data = target, .data_len = target ? strlen(target) : 0
						 });
		error = give_to_caller(req, parent, inode);
		if (error == 0)
			error = fill_entry(inode, entry);
	}
	unlock();
	return error;
}

static void
do_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct fuse_entry_param entry;
	int			error;

	error = make_node(req, OP_CREATE, tree_inode(parent), name, mode, rdev, NULL, &entry);
	reply_entry(req, error, &entry);
}

static void
do_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fuse_entry_param entry;
	int			error;

	error = make_node(req, OP_MKDIR, tree_inode(parent), name, mode, 0, NULL, &entry);
	reply_entry(req, error, &entry);
}

static void
do_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry;
	int			error;

	error = make_node(req, OP_SYMLINK, tree_inode(parent), name, 0, 0, target, &entry);
	reply_entry(req, error, &entry);
}

static void
do_link(fuse_req_t req, fuse_ino_t nodeid, fuse_ino_t newparent, const char *newname)
{
	Inode	   *inode = tree_inode(nodeid);
	Inode	   *parent = tree_inode(newparent);
	uint64_t	begin = oplog_count();
	struct fuse_entry_param entry;
	int			error;

	lock();
	error = admit_name(FAULT_CREATE, OP_LINK, parent, newname, begin);
	if (error == 0 && inode->names == NULL)
		error = ENOENT;
	if (error == 0 && linkat(inode->names->parent->fd, inode->names->name,
							 parent->fd, newname, 0) != 0)
		error = errno;
	if (error == 0)
	{
		tree_add_name(parent, newname, inode);
		if (tree_is_recorded(inode))
			oplog_append(&(Op)
						 {
							 .type = OP_LINK, .begin = begin, .ino = inode->ino,
							 .a = parent->ino, .name = newname
						 });
		error = fill_entry(inode, &entry);
	}
	unlock();
	reply_entry(req, error, &entry);
}

static void
remove_node(fuse_req_t req, OpType type, Inode *parent, const char *name)
{
	uint64_t	begin = oplog_count();
	Dentry	   *d;
	int			error;

	lock();
	error = admit_name(FAULT_UNLINK, type, parent, name, begin);
	d = tree_find(parent, name);
	if (error == 0 && d == NULL)
		error = ENOENT;
	if (error == 0 &&
		unlinkat(parent->fd, name, type == OP_RMDIR ? AT_REMOVEDIR : 0) != 0)
		error = errno;
	if (error == 0)
	{
		if (tree_is_recorded(d->inode))
			oplog_append(&(Op)
						 {
							 .type = type, .begin = begin, .ino = d->inode->ino,
							 .a = parent->ino, .name = name
						 });
		tree_remove_name(d);
	}
	unlock();
	fuse_reply_err(req, error);
}

static void
do_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_node(req, OP_UNLINK, tree_inode(parent), name);
}

static void
do_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_node(req, OP_RMDIR, tree_inode(parent), name);
}

/*
 * Both names existed and the backing directory has the new one only: follow.
 */
static void
record_rename(Dentry *from, Inode *newparent, const char *newname, uint64_t begin)
{
	Inode	   *inode = from->inode;
	Dentry	   *target = tree_find(newparent, newname);
	Op			op = {
		.type = OP_RENAME, .begin = begin, .ino = inode->ino,
		.flags = target ? OPF_REPLACED : 0,
		.a = from->parent->ino, .b = newparent->ino,
		.name = from->name, .data = newname, .data_len = strlen(newname)
	};

	if (tree_is_recorded(inode))
		oplog_append(&op);
	if (target != NULL)
		tree_remove_name(target);
	tree_add_name(newparent, newname, inode);
	tree_remove_name(from);
}

static void
do_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
		  const char *newname, unsigned int flags)
{
	Inode	   *from_dir = tree_inode(parent);
	Inode	   *to_dir = tree_inode(newparent);
	uint64_t	begin = oplog_count();
	Dentry	   *from;
	Dentry	   *target;
	int			error;

	/* an exchange has no place in the format, and PostgreSQL makes none */
	if (flags & ~RENAME_NOREPLACE)
	{
		fuse_reply_err(req, EINVAL);
		return;
	}
	lock();
	if (from_dir != tree_root() && to_dir != tree_root())
	{
		fault_await_thaw(FAULT_FREEZE, from_dir, name);
		fault_await_thaw(FAULT_FREEZE, to_dir, newname);
	}
	error = oplog_usable() ? fault_on_rename(from_dir, name, to_dir, newname) : EIO;
	if (error != 0 && oplog_usable())
		refuse(OP_RENAME, from_dir, name, begin, error);
	from = tree_find(from_dir, name);
	target = tree_find(to_dir, newname);
	if (error == 0 && from == NULL)
		error = ENOENT;
	if (error == 0 &&
		renameat2(from_dir->fd, name, to_dir->fd, newname, flags) != 0)
		error = errno;
	/* with two names of the same file, rename does nothing */
	if (error == 0 && (target == NULL || target->inode != from->inode))
		record_rename(from, to_dir, newname, begin);
	unlock();
	fuse_reply_err(req, error);
}

static void
do_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		  struct fuse_file_info *fi)
{
	struct fuse_entry_param entry;
	int			error;

	/* The kernel has looked up the name and holds the directory's lock. */
	error = make_node(req, OP_CREATE, tree_inode(parent), name, S_IFREG | mode, 0,
					  NULL, &entry);
	if (error != 0)
	{
		fuse_reply_err(req, error);
		return;
	}
	fi->keep_cache = 1;
	fuse_reply_create(req, &entry, fi);
}

static void
do_statfs(fuse_req_t req, fuse_ino_t nodeid)
{
	struct statvfs st;

	(void) nodeid;
	if (fstatvfs(tree_root()->fd, &st) != 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_statfs(req, &st);
}

/*
 * Controls: attributes of the root of the mount.
 */
static void
do_setxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, const char *value,
			size_t size, int flags)
{
	int			error = EOPNOTSUPP;

	(void) flags;
	lock();
	if (nodeid != FUSE_ROOT_ID)
		;
	else if (strcmp(name, "user.pgcut.fault") == 0)
		error = fault_control(value, size);
	else if (strcmp(name, "user.pgcut.flush") == 0)
		error = oplog_flush() ? 0 : EIO;
	unlock();
	fuse_reply_err(req, error);
}

/*
 * What there is to know about the recording, as names of attributes of the
 * root: "user.pgcut.seq=N" and one for each fault rule.  Names, because
 * reading values (getxattr) is switched off, see above.
 */
static void
do_listxattr(fuse_req_t req, fuse_ino_t nodeid, size_t size)
{
	char		buf[4096];
	size_t		used = 0;

	if (nodeid == FUSE_ROOT_ID)
	{
		used = snprintf(buf, sizeof(buf), "user.pgcut.seq=%llu",
						(unsigned long long) oplog_count()) + 1;
		lock();
		used += fault_list(buf + used, sizeof(buf) - used);
		unlock();
	}
	/* the number may have one more digit when the kernel asks again */
	if (size == 0)
		fuse_reply_xattr(req, used + 16);
	else if (used > size || used > sizeof(buf))
		fuse_reply_err(req, used > sizeof(buf) ? E2BIG : ERANGE);
	else
		fuse_reply_buf(req, buf, used);
}

const struct fuse_lowlevel_ops recorder_ops = {
	.init = do_init,
	.lookup = do_lookup,
	.forget = do_forget,
	.forget_multi = do_forget_multi,
	.getattr = do_getattr,
	.setattr = do_setattr,
	.readlink = do_readlink,
	.mknod = do_mknod,
	.mkdir = do_mkdir,
	.unlink = do_unlink,
	.rmdir = do_rmdir,
	.symlink = do_symlink,
	.rename = do_rename,
	.link = do_link,
	.open = do_open,
	.create = do_create,
	.read = do_read,
	.write = do_write,
	.fsync = do_fsync,
	.fsyncdir = do_fsyncdir,
	.fallocate = do_fallocate,
	.statfs = do_statfs,
	.opendir = do_opendir,
	.readdir = do_readdir,
	.readdirplus = do_readdirplus,
	.releasedir = do_releasedir,
	.setxattr = do_setxattr,
	.listxattr = do_listxattr,
};
