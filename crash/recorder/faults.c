/*-------------------------------------------------------------------------
 *
 * faults.c
 *	  Rules that make operations fail.
 *
 * A rule is OP:SUBSTRING:SKIP:COUNT:ERRNO.  It looks at operations of kind OP
 * on a path (relative to the mount point) that contains SUBSTRING, lets SKIP
 * of them pass and makes the next COUNT fail with ERRNO.  A rule "shortwrite"
 * halves the write instead; a rule "tornwrite" lets some sectors of it take
 * effect before it fails; a rule "syncdir" is about syncs of directories only; a
 * rule "grow" is about what a quota stands against: files that become longer, and new
 * ones; a rule "hold" makes a truncation wait for as many milliseconds.  Rules "freeze" and
 * "freezesync" let changes, or syncs, wait until all rules are cleared.  All functions
 * are called with big_lock held, except faults_on_reads().
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#include "recorder.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct FaultRule
{
	struct FaultRule *next;
	FaultOp		op;
	uint64_t	skip;			/* matching calls still to pass */
	uint64_t	count;			/* matching calls still to fail after that */
	int			error;
	char	   *substring;
} FaultRule;

static const char *const op_names[] = {
	[FAULT_WRITE] = "write",
	[FAULT_SYNC] = "sync",
	[FAULT_CREATE] = "create",
	[FAULT_FALLOCATE] = "fallocate",
	[FAULT_TRUNCATE] = "truncate",
	[FAULT_RENAME] = "rename",
	[FAULT_UNLINK] = "unlink",
	[FAULT_SHORTWRITE] = "shortwrite",
	[FAULT_HOLD] = "hold",
	[FAULT_TORNWRITE] = "tornwrite",
	[FAULT_READ] = "read",
	[FAULT_SYNCDIR] = "syncdir",
	[FAULT_GROW] = "grow",
	[FAULT_FREEZE] = "freeze",
	[FAULT_FREEZESYNC] = "freezesync",
};

#define NUM_FAULT_OPS	(sizeof(op_names) / sizeof(op_names[0]))

static FaultRule *rules;

/* Is there a rule for reads?  They take no lock otherwise. */
static atomic_bool read_rules;

/* How often rules have been cleared, which ends all waits */
static uint64_t times_cleared;
static pthread_cond_t cleared = PTHREAD_COND_INITIALIZER;

/*
 * Remove the last ":number" from text and return the number.
 */
static bool
take_number(char *text, uint64_t *number)
{
	char	   *colon = strrchr(text, ':');
	char	   *end;

	if (colon == NULL || colon[1] < '0' || colon[1] > '9')
		return false;
	errno = 0;
	*number = strtoull(colon + 1, &end, 10);
	*colon = '\0';
	return errno == 0 && *end == '\0';
}

static void
clear_rules(void)
{
	while (rules != NULL)
	{
		FaultRule  *rule = rules;

		rules = rule->next;
		free(rule->substring);
		free(rule);
	}
	atomic_store(&read_rules, false);
	times_cleared++;
	pthread_cond_broadcast(&cleared);
}

/*
 * Parse a rule (text is destroyed) and add it after the others, so that the
 * oldest rule that matches decides.
 */
static int
add_rule(char *text)
{
	FaultRule  *rule;
	FaultRule **last;
	uint64_t	skip;
	uint64_t	count;
	uint64_t	error;
	char	   *colon;
	size_t		op = 0;

	if (!take_number(text, &error) || !take_number(text, &count) ||
		!take_number(text, &skip) || (colon = strchr(text, ':')) == NULL)
		return EINVAL;
	*colon = '\0';
	while (op < NUM_FAULT_OPS && strcmp(op_names[op], text) != 0)
		op++;
	if (op == NUM_FAULT_OPS || error > 4095 ||
		(error == 0 && op != FAULT_SHORTWRITE))
		return EINVAL;

	rule = calloc(1, sizeof(FaultRule));
	if (rule == NULL || (rule->substring = strdup(colon + 1)) == NULL)
	{
		free(rule);
		return ENOMEM;
	}
	rule->op = op;
	rule->skip = skip;
	rule->count = count;
	/* any number says "hit"; a short write has no errno of its own */
	rule->error = error ? error : EIO;
	for (last = &rules; *last != NULL; last = &(*last)->next)
		;
	*last = rule;
	if (op == FAULT_READ)
		atomic_store(&read_rules, true);
	return 0;
}

/*
 * Value of the control attribute was set.  Returns 0 or an errno.
 */
int
fault_control(const char *value, size_t len)
{
	char	   *text = strndup(value, len);
	int			error = 0;

	if (text == NULL)
		return ENOMEM;
	if (strcmp(text, "clear") == 0)
		clear_rules();
	else
		error = add_rule(text);
	free(text);
	return error;
}

/*
 * Must an operation on this path (freed here) fail?  Returns 0 or the errno.
 */
static int
fault_on_path(FaultOp op, char *path)
{
	int			error = 0;

	for (FaultRule *rule = rules; rule != NULL; rule = rule->next)
	{
		if (rule->op != op || path == NULL ||
			strstr(path, rule->substring) == NULL)
			continue;
		if (rule->skip > 0)
			rule->skip--;
		else if (rule->count > 0 && error == 0)
		{
			rule->count--;
			error = rule->error;
		}
	}
	free(path);
	return error;
}

/*
 * Let an operation wait, if a rule says so, until rules are cleared.  The lock is given
 * back meanwhile, so what the caller has looked up may be gone.
 *
 * Names in the root don't wait: the kernel would hold its lock meanwhile, which it needs
 * to pass on that rules are cleared.
 */
void
fault_await_thaw(FaultOp op, const Inode *inode, const char *name)
{
	uint64_t	before = times_cleared;

	if (rules == NULL || (name && inode == tree_root()) ||
		fault_on_path(op, name ? tree_child_path(inode, name) : tree_path(inode)) == 0)
		return;
	oplog_append(&(Op)
				 {
					 .type = OP_FAULT, .begin = oplog_count(), .ino = inode->ino,
					 .a = EINPROGRESS, .name = name
				 });
	while (times_cleared == before && unlock_until(&cleared))
		;
}

bool
faults_on_reads(void)
{
	return atomic_load(&read_rules);
}

int
fault_on_inode(FaultOp op, const Inode *inode)
{
	return rules == NULL ? 0 : fault_on_path(op, tree_path(inode));
}

int
fault_on_name(FaultOp op, const Inode *parent, const char *name)
{
	return rules == NULL ? 0 : fault_on_path(op, tree_child_path(parent, name));
}

/*
 * Must it fail to have something in a file up to this place?
 */
int
fault_on_growth(const Inode *inode, off_t end)
{
	struct stat st;

	if (rules == NULL || fstat(inode->fd, &st) != 0 || end <= st.st_size)
		return 0;
	return fault_on_inode(FAULT_GROW, inode);
}

/*
 * A rename counts once, whichever of its two paths a rule names.
 */
int
fault_on_rename(const Inode *from_dir, const char *from,
				const Inode *to_dir, const char *to)
{
	char	   *old_path;
	char	   *new_path;
	char	   *both = NULL;

	if (rules == NULL)
		return 0;
	old_path = tree_child_path(from_dir, from);
	new_path = tree_child_path(to_dir, to);
	if (old_path == NULL || new_path == NULL ||
		asprintf(&both, "%s\n%s", old_path, new_path) < 0)
		both = NULL;
	free(old_path);
	free(new_path);
	return fault_on_path(FAULT_RENAME, both);
}

/*
 * Describe the rules, with what is left of skip and count, one string with
 * its zero byte after the other, as names of attributes.  Returns the size
 * needed, and fills buf only if that is within size.
 */
size_t
fault_list(char *buf, size_t size)
{
	size_t		used = 0;

	for (FaultRule *rule = rules; rule != NULL; rule = rule->next)
	{
		char	   *text;
		int			len;

		len = asprintf(&text, "user.pgcut.fault=%s:%s:%llu:%llu:%d",
					   op_names[rule->op], rule->substring,
					   (unsigned long long) rule->skip,
					   (unsigned long long) rule->count, rule->error);
		if (len < 0)
			break;
		if (used + len + 1 <= size)
			memcpy(buf + used, text, len + 1);
		used += len + 1;
		free(text);
	}
	return used;
}
