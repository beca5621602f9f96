/*-------------------------------------------------------------------------
 *
 * recorder.h
 *	  Common declarations of pgcut-recorder, the I/O recorder of the
 *	  power-cut explorer.
 *
 * Idea: a file system in user space that keeps its files in a backing
 * directory and writes down everything that changes them, in the order in
 * which it took effect.  From that record the explorer computes what a disk
 * could hold after a power cut.
 *
 * Locking: there is one lock, big_lock.  It guards the tree of names, the
 * fault rules, the log of operations, and the changes of the backing
 * directory, so that "apply and append to the log" is one step and the order
 * in the log is the order of effect.  It is never held while sleeping.  Plain
 * reads do not take it.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#ifndef RECORDER_H
#define RECORDER_H

#define FUSE_USE_VERSION 312

#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "oplog.h"

struct Inode;

/*
 * A name of an inode.
 */
typedef struct Dentry
{
	struct Inode *parent;
	struct Inode *inode;
	struct Dentry *hash_next;	/* same bucket */
	struct Dentry *sibling_next;	/* children of the parent */
	struct Dentry *sibling_prev;
	struct Dentry *other_name;	/* names of the inode */
	char		name[];
} Dentry;

/*
 * A file, directory, symbolic link (or fifo, socket: served, not recorded).
 * It lives as long as it has a name or the kernel knows it, and has one open
 * descriptor all that time, so that renames and unlinks need no care.
 */
typedef struct Inode
{
	uint64_t	ino;			/* number in the recording, never reused */
	mode_t		type;			/* S_IFREG, ... */
	int			fd;				/* regular: read-write; directory: read-only;
								 * else O_PATH */
	uint64_t	nlookup;		/* references that the kernel holds */
	Dentry	   *names;
	Dentry	   *children;		/* of a directory, newest first */
	char	   *last_path;		/* path it had when its last name went, or
								 * NULL */
} Inode;

/*
 * Command line.
 */
typedef struct Settings
{
	const char *backing;
	const char *log;
	const char *mountpoint;
	uint64_t	sync_delay_min_us;
	uint64_t	sync_delay_max_us;
	uint64_t	seed;
	bool		split_reads;
} Settings;

extern Settings settings;

/* recorder.c */
extern void lock(void);
extern void unlock(void);
extern bool unlock_until(pthread_cond_t *happened);
extern void report_error(const char *hint, const char *fmt,...)
			__attribute__((format(printf, 2, 3)));
extern uint64_t random_between(uint64_t low, uint64_t high);
extern void sleep_us(uint64_t us);

/* tree.c */
extern bool tree_open(const char *backing, const char *log);
extern Inode *tree_root(void);
extern Inode *tree_inode(fuse_ino_t nodeid);
extern fuse_ino_t tree_nodeid(const Inode *inode);
extern Dentry *tree_find(const Inode *parent, const char *name);
extern Inode *tree_add_new(Inode *parent, const char *name);
extern void tree_add_name(Inode *parent, const char *name, Inode *inode);
extern void tree_remove_name(Dentry *dentry);
extern void tree_forget(Inode *inode, uint64_t nlookup);
extern char *tree_path(const Inode *inode);
extern char *tree_child_path(const Inode *parent, const char *name);
extern bool tree_is_recorded(const Inode *inode);
extern bool tree_is_relation(const Inode *inode);

/* faults.c */
typedef enum FaultOp
{
	FAULT_WRITE,
	FAULT_SYNC,
	FAULT_CREATE,
	FAULT_FALLOCATE,
	FAULT_TRUNCATE,
	FAULT_RENAME,
	FAULT_UNLINK,
	FAULT_SHORTWRITE,
	FAULT_HOLD,
	FAULT_TORNWRITE,
	FAULT_READ,
	FAULT_SYNCDIR,
	FAULT_GROW,
	FAULT_FREEZE,
	FAULT_FREEZESYNC
} FaultOp;

extern int	fault_control(const char *value, size_t len);
extern bool faults_on_reads(void);
extern int	fault_on_inode(FaultOp op, const Inode *inode);
extern int	fault_on_name(FaultOp op, const Inode *parent, const char *name);
extern int	fault_on_rename(const Inode *from_dir, const char *from,
							const Inode *to_dir, const char *to);
extern int	fault_on_growth(const Inode *inode, off_t end);
extern void fault_await_thaw(FaultOp op, const Inode *inode, const char *name);
extern size_t fault_list(char *buf, size_t size);

/* fileops.c */
extern const struct fuse_lowlevel_ops recorder_ops;
extern int	fill_entry(Inode *inode, struct fuse_entry_param *entry);
extern int	admit_inode(FaultOp fault, OpType type, const Inode *inode, off_t end,
						uint64_t begin);

/* dataops.c */
extern void do_open(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
extern void do_read(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
					struct fuse_file_info *fi);
extern void do_write(fuse_req_t req, fuse_ino_t nodeid, const char *buf, size_t size,
					 off_t offset, struct fuse_file_info *fi);
extern void do_fsync(fuse_req_t req, fuse_ino_t nodeid, int datasync,
					 struct fuse_file_info *fi);
extern void do_fsyncdir(fuse_req_t req, fuse_ino_t nodeid, int datasync,
						struct fuse_file_info *fi);
extern void do_fallocate(fuse_req_t req, fuse_ino_t nodeid, int mode, off_t offset,
						 off_t length, struct fuse_file_info *fi);

/* listing.c */
extern void do_opendir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
extern void do_releasedir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
extern void do_readdir(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
					   struct fuse_file_info *fi);
extern void do_readdirplus(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
						   struct fuse_file_info *fi);

#endif							/* RECORDER_H */
