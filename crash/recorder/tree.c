/*-------------------------------------------------------------------------
 *
 * tree.c
 *	  The tree of names and inodes, kept in memory.
 *
 * Only this daemon changes the backing directory, so the tree in memory is
 * the truth about names and the backing directory is only asked for bytes and
 * attributes.  All functions are called with big_lock held (or before there
 * are threads), except tree_inode() and tree_nodeid().
 *
 * An inode is known to the kernel by its address; its number in the recording
 * is separate because addresses are reused.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#include "recorder.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * A cluster has some thousand files; chains stay short up to half a million.
 */
#define NUM_BUCKETS		(1 << 16)

/* Inodes with several names, needed while the backing directory is scanned */
typedef struct LinkedInode
{
	struct LinkedInode *next;
	ino_t		backing_ino;
	Inode	   *inode;
} LinkedInode;

static Dentry *buckets[NUM_BUCKETS];
static Inode *root;
static uint64_t last_ino;

static Dentry **
bucket_of(const Inode *parent, const char *name)
{
	uint64_t	hash = parent->ino * UINT64_C(0x9E3779B97F4A7C15);

	for (const char *p = name; *p; p++)
		hash = (hash ^ (unsigned char) *p) * UINT64_C(0x100000001B3);
	return &buckets[(hash ^ (hash >> 32)) % NUM_BUCKETS];
}

Inode *
tree_root(void)
{
	return root;
}

Inode *
tree_inode(fuse_ino_t nodeid)
{
	return nodeid == FUSE_ROOT_ID ? root : (Inode *) (uintptr_t) nodeid;
}

fuse_ino_t
tree_nodeid(const Inode *inode)
{
	return inode == root ? FUSE_ROOT_ID : (fuse_ino_t) (uintptr_t) inode;
}

/*
 * Sockets and fifos are served, because a server may put its socket into the
 * data directory, but hold nothing that a power cut could lose.
 */
bool
tree_is_recorded(const Inode *inode)
{
	return S_ISREG(inode->type) || S_ISDIR(inode->type) || S_ISLNK(inode->type);
}

Dentry *
tree_find(const Inode *parent, const char *name)
{
	for (Dentry *d = *bucket_of(parent, name); d != NULL; d = d->hash_next)
	{
		if (d->parent == parent && strcmp(d->name, name) == 0)
			return d;
	}
	return NULL;
}

/*
 * Make an inode for a file that exists in the backing directory.  Returns
 * NULL with errno set if it cannot be opened.
 */
static Inode *
new_inode(int dirfd, const char *name)
{
	struct stat st;
	Inode	   *inode;
	int			flags = O_PATH;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return NULL;
	if (S_ISREG(st.st_mode))
		flags = O_RDWR;
	else if (S_ISDIR(st.st_mode))
		flags = O_RDONLY | O_DIRECTORY;
	inode = calloc(1, sizeof(Inode));
	if (inode == NULL)
		return NULL;
	inode->type = st.st_mode & S_IFMT;
	inode->fd = openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC);
	if (inode->fd < 0)
	{
		free(inode);
		return NULL;
	}
	inode->ino = ++last_ino;
	return inode;
}

/*
 * Add a name to an inode.  Running out of memory for a name is not handled:
 * the recording could not go on in any useful way.
 */
void
tree_add_name(Inode *parent, const char *name, Inode *inode)
{
	size_t		len = strlen(name) + 1;
	Dentry	   *d = calloc(1, sizeof(Dentry) + len);
	Dentry	  **bucket = bucket_of(parent, name);

	if (d == NULL)
	{
		report_error(NULL, "out of memory");
		abort();
	}
	assert(S_ISDIR(parent->type) && tree_find(parent, name) == NULL);
	memcpy(d->name, name, len);
	d->parent = parent;
	d->inode = inode;
	d->hash_next = *bucket;
	*bucket = d;
	d->sibling_next = parent->children;
	if (parent->children != NULL)
		parent->children->sibling_prev = d;
	parent->children = d;
	d->other_name = inode->names;
	inode->names = d;
	free(inode->last_path);
	inode->last_path = NULL;
}

/*
 * The backing directory has a new file: give it an inode and that name.
 * Returns NULL with errno set on failure.
 */
Inode *
tree_add_new(Inode *parent, const char *name)
{
	Inode	   *inode = new_inode(parent->fd, name);

	if (inode != NULL)
		tree_add_name(parent, name, inode);
	return inode;
}

static void
free_if_unused(Inode *inode)
{
	if (inode == root || inode->names != NULL || inode->nlookup > 0)
		return;
	assert(inode->children == NULL);
	close(inode->fd);
	free(inode->last_path);
	free(inode);
}

/*
 * Remove a name.  This may free the inode.
 */
void
tree_remove_name(Dentry *dentry)
{
	Inode	   *inode = dentry->inode;
	Dentry	  **link;

	if (inode->names == dentry && dentry->other_name == NULL)
		inode->last_path = tree_path(inode);
	for (link = bucket_of(dentry->parent, dentry->name); *link != dentry;)
		link = &(*link)->hash_next;
	*link = dentry->hash_next;
	for (link = &inode->names; *link != dentry;)
		link = &(*link)->other_name;
	*link = dentry->other_name;
	if (dentry->sibling_prev != NULL)
		dentry->sibling_prev->sibling_next = dentry->sibling_next;
	else
		dentry->parent->children = dentry->sibling_next;
	if (dentry->sibling_next != NULL)
		dentry->sibling_next->sibling_prev = dentry->sibling_prev;
	free(dentry);
	free_if_unused(inode);
}

/*
 * The kernel gives back references.
 */
void
tree_forget(Inode *inode, uint64_t nlookup)
{
	assert(inode == root || inode->nlookup >= nlookup);
	if (inode == root)
		return;
	inode->nlookup -= nlookup;
	free_if_unused(inode);
}

/*
 * Path of parent/name relative to the root, in new memory.
 */
char *
tree_child_path(const Inode *parent, const char *name)
{
	char	   *above = tree_path(parent);
	char	   *path = NULL;

	if (above == NULL)
		return NULL;
	if (asprintf(&path, "%s%s%s", above, *above ? "/" : "", name) < 0)
		path = NULL;
	free(above);
	return path;
}

/*
 * Path of an inode, in new memory: one of its names, or the one it had last;
 * "" for the root.
 */
char *
tree_path(const Inode *inode)
{
	if (inode->names != NULL)
		return tree_child_path(inode->names->parent, inode->names->name);
	return strdup(inode->last_path != NULL ? inode->last_path : "");
}

/*
 * Is this a data file of a relation?  They are in global/, base/<oid>/ and
 * PG_<version>/<oid>/ of a tablespace, with a name that begins with a digit.
 */
bool
tree_is_relation(const Inode *inode)
{
	const Dentry *d = inode->names;
	const Dentry *above;

	if (d == NULL || !S_ISREG(inode->type) || d->name[0] < '0' || d->name[0] > '9')
		return false;
	above = d->parent->names;
	if (above == NULL)
		return false;
	if (strcmp(above->name, "global") == 0)
		return true;
	above = above->parent->names;
	return above != NULL && (strcmp(above->name, "base") == 0 ||
							 strncmp(above->name, "PG_", 3) == 0);
}

/*
 * Write the line of base.tsv for a name.
 */
static bool
write_base_line(FILE *base, const Inode *inode, const char *path)
{
	char		kind = S_ISDIR(inode->type) ? 'd' : S_ISLNK(inode->type) ? 'l' : 'f';

	if (strpbrk(path, "\t\n") != NULL)
	{
		report_error("Rename it: base.tsv has one line per name, separated by tabs.",
					 "file name \"%s\" contains a tab or a line break", path);
		return false;
	}
	return !tree_is_recorded(inode) ||
		fprintf(base, "%llu\t%c\t%s\n", (unsigned long long) inode->ino, kind, path) > 0;
}

/*
 * Find the inode of a file with several names that was seen already.
 */
static Inode *
find_linked(const LinkedInode *linked, ino_t backing_ino)
{
	for (; linked != NULL; linked = linked->next)
	{
		if (linked->backing_ino == backing_ino)
			return linked->inode;
	}
	return NULL;
}

/*
 * Add one entry of a directory that is scanned.
 */
static Inode *
scan_entry(Inode *dir, const char *name, LinkedInode **linked)
{
	struct stat st;
	LinkedInode *entry;
	Inode	   *inode;

	if (fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return NULL;
	if (S_ISDIR(st.st_mode) || st.st_nlink == 1)
		return tree_add_new(dir, name);

	inode = find_linked(*linked, st.st_ino);
	if (inode != NULL)
	{
		tree_add_name(dir, name, inode);
		return inode;
	}
	inode = tree_add_new(dir, name);
	entry = malloc(sizeof(LinkedInode));
	if (inode == NULL || entry == NULL)
	{
		free(entry);
		return NULL;
	}
	entry->next = *linked;
	entry->backing_ino = st.st_ino;
	entry->inode = inode;
	*linked = entry;
	return inode;
}

/*
 * Read a directory and everything below into the tree, and write base.tsv.
 */
static bool
scan_directory(Inode *dir, const char *path, FILE *base, LinkedInode **linked)
{
	struct dirent **entries;
	int			n = scandirat(dir->fd, ".", &entries, NULL, alphasort);
	bool		ok = true;

	if (n < 0)
	{
		report_error(NULL, "could not read directory \"%s\": %s", path, strerror(errno));
		return false;
	}
	for (int i = 0; i < n; i++)
	{
		const char *name = entries[i]->d_name;
		char	   *child_path = NULL;
		Inode	   *inode;

		if (ok && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
		{
			inode = scan_entry(dir, name, linked);
			child_path = tree_child_path(dir, name);
			if (inode == NULL || child_path == NULL)
			{
				report_error(errno == EMFILE ?
							 "Every file is kept open; raise the limit on open files." : NULL,
							 "could not open \"%s\" in \"%s\": %s", name, path,
							 strerror(errno));
				ok = false;
			}
			else
				ok = write_base_line(base, inode, child_path) &&
					(!S_ISDIR(inode->type) ||
					 scan_directory(inode, child_path, base, linked));
		}
		free(child_path);
		free(entries[i]);
	}
	free(entries);
	return ok;
}

/*
 * Read the backing directory, and write base.tsv into the log directory.
 */
bool
tree_open(const char *backing, const char *log)
{
	LinkedInode *linked = NULL;
	char	   *path;
	FILE	   *base;
	bool		ok;

	root = new_inode(AT_FDCWD, backing);
	if (root == NULL || !S_ISDIR(root->type))
	{
		report_error("The directory given with --backing must exist and be readable and writable.",
					 "could not open directory \"%s\": %s", backing,
					 strerror(root != NULL ? ENOTDIR : errno));
		return false;
	}
	root->nlookup = 1;
	if (asprintf(&path, "%s/base.tsv", log) < 0)
	{
		report_error(NULL, "out of memory");
		return false;
	}
	base = fopen(path, "wxe");
	if (base == NULL)
	{
		report_error(errno == EEXIST ?
					 "Each recording needs a directory of its own." :
					 "The directory given with --log must exist and be writable.",
					 "could not create \"%s\": %s", path, strerror(errno));
		free(path);
		return false;
	}
	ok = write_base_line(base, root, ".") &&
		scan_directory(root, backing, base, &linked);
	while (linked != NULL)
	{
		LinkedInode *next = linked->next;

		free(linked);
		linked = next;
	}
	if ((ferror(base) | fclose(base)) != 0 && ok)
	{
		report_error(NULL, "could not write \"%s\": %s", path, strerror(errno));
		ok = false;
	}
	free(path);
	return ok;
}
