/*-------------------------------------------------------------------------
 *
 * listing.c
 *	  Reading directories.
 *
 * The names are taken once, when the reading begins, so that offsets stay
 * valid while names come and go.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#include "recorder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Content of a directory at the time its reading began */
typedef struct DirList
{
	size_t		used;
	size_t		allocated;
	char	  **names;
} DirList;

static void
free_list(DirList *list)
{
	for (size_t i = 0; i < list->used; i++)
		free(list->names[i]);
	free(list->names);
	memset(list, 0, sizeof(*list));
}

static bool
add_to_list(DirList *list, const char *name)
{
	if (list->used == list->allocated)
	{
		size_t		allocated = list->allocated ? list->allocated * 2 : 64;
		char	  **names = realloc(list->names, allocated * sizeof(char *));

		if (names == NULL)
			return false;
		list->names = names;
		list->allocated = allocated;
	}
	list->names[list->used] = strdup(name);
	return list->names[list->used++] != NULL;
}

/*
 * Take the names of a directory, so that its reader is not disturbed by
 * changes.  Caller holds big_lock.
 */
static int
fill_list(DirList *list, const Inode *dir)
{
	bool		ok;

	free_list(list);
	ok = add_to_list(list, ".") && add_to_list(list, "..");
	for (const Dentry *d = dir->children; ok && d != NULL; d = d->sibling_next)
		ok = add_to_list(list, d->name);
	if (!ok)
		free_list(list);
	return ok ? 0 : ENOMEM;
}

void
do_opendir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	(void) nodeid;
	fi->fh = (uint64_t) (uintptr_t) calloc(1, sizeof(DirList));
	if (fi->fh == 0)
		fuse_reply_err(req, ENOMEM);
	else
		fuse_reply_open(req, fi);
}

void
do_releasedir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
	DirList    *list = (DirList *) (uintptr_t) fi->fh;

	(void) nodeid;
	free_list(list);
	free(list);
	fuse_reply_err(req, 0);
}

/*
 * Add one entry to the answer of readdir.  Returns its size, which is more
 * than size if it did not fit, or 0 if the name has gone.
 */
static size_t
add_direntry(fuse_req_t req, char *buf, size_t size, Inode *dir, const char *name,
			 off_t next, bool plus)
{
	struct fuse_entry_param entry;
	size_t		needed;
	bool		dots = name[0] == '.' && (name[1] == '\0' ||
										  (name[1] == '.' && name[2] == '\0'));
	Dentry	   *d = dots ? NULL : tree_find(dir, name);
	Inode	   *inode = dots ? dir : d ? d->inode : NULL;

	if (inode == NULL)
		return 0;
	memset(&entry, 0, sizeof(entry));
	entry.attr.st_ino = inode->ino;
	entry.attr.st_mode = inode->type;
	if (!plus)
		return fuse_add_direntry(req, buf, size, name, &entry.attr, next);

	/* With attributes, the kernel gets a reference, but not of the dots. */
	needed = fuse_add_direntry_plus(req, NULL, 0, name, NULL, 0);
	if (needed > size)
		return needed;
	if (!dots && fill_entry(inode, &entry) != 0)
		return 0;
	return fuse_add_direntry_plus(req, buf, size, name, &entry, next);
}

static void
read_directory(fuse_req_t req, Inode *dir, size_t size, off_t offset,
			   DirList *list, bool plus)
{
	char	   *buf = malloc(size);
	size_t		used = 0;
	int			error = buf != NULL ? 0 : ENOMEM;

	lock();
	if (error == 0 && offset == 0)
		error = fill_list(list, dir);
	for (size_t i = offset; error == 0 && i < list->used; i++)
	{
		size_t		len = add_direntry(req, buf + used, size - used, dir,
									   list->names[i], i + 1, plus);

		if (len > size - used)
			break;
		used += len;
	}
	unlock();
	if (error != 0)
		fuse_reply_err(req, error);
	else
		fuse_reply_buf(req, buf, used);
	free(buf);
}

void
do_readdir(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
		   struct fuse_file_info *fi)
{
	read_directory(req, tree_inode(nodeid), size, offset,
				   (DirList *) (uintptr_t) fi->fh, false);
}

void
do_readdirplus(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset,
			   struct fuse_file_info *fi)
{
	read_directory(req, tree_inode(nodeid), size, offset,
				   (DirList *) (uintptr_t) fi->fh, true);
}
