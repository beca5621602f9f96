/*-------------------------------------------------------------------------
 *
 * oplog.h
 *	  The log of operations, ops.bin: its format, and how it is written.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 *-------------------------------------------------------------------------
 */
#ifndef OPLOG_H
#define OPLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Kinds of operations.  The numbers are the file format of ops.bin.
 */
typedef enum OpType
{
	OP_CREATE = 1,				/* a = parent, b = mode, name */
	OP_MKDIR = 2,				/* a = parent, b = mode, name */
	OP_SYMLINK = 3,				/* a = parent, name, data = target */
	OP_LINK = 4,				/* a = parent, name */
	OP_UNLINK = 5,				/* a = parent, name */
	OP_RMDIR = 6,				/* a = parent, name */
	OP_RENAME = 7,				/* a, b = old and new parent, name, data */
	OP_WRITE = 8,				/* a = offset, b = process id, data */
	OP_TRUNCATE = 9,			/* a = new size */
	OP_FALLOCATE = 10,			/* a = offset, b = length, flags = mode */
	OP_SYNC = 11,				/* covers operations up to "begin" */
	OP_SYNCFAILED = 12,			/* injected; a = errno */
	OP_FAULT = 13				/* injected; a = errno, b = refused OpType; an
								 * operation that waits has EINPROGRESS */
} OpType;

/* flags of OP_RENAME, OP_WRITE, OP_SYNC and OP_SYNCFAILED */
#define OPF_REPLACED	1		/* rename replaced an existing target */
#define OPF_SHORTENED	1		/* write was cut short by a fault rule */
#define OPF_ATOMIC		2		/* write is whole or absent */
#define OPF_DATASYNC	1		/* fdatasync, not fsync */
#define OPF_DIRECTORY	2		/* the sync was one of a directory */

#define OPLOG_MAGIC		"PGCUTOPS"
#define OPLOG_VERSION	1
#define OPREC_MAGIC		0x31504F50

/*
 * Fixed part of a record in ops.bin, followed by name_len and data_len bytes.
 * Written as it lies in memory; the format is little-endian, as is every
 * machine that this has been built for (checked in oplog.c).
 */
typedef struct OpRecord
{
	uint32_t	magic;
	uint16_t	type;
	uint16_t	flags;
	uint64_t	seq;
	uint64_t	begin;
	uint64_t	time_ns;
	uint64_t	ino;
	uint64_t	a;
	uint64_t	b;
	uint32_t	name_len;
	uint32_t	data_len;
} OpRecord;

/*
 * What the caller of oplog_append() says about an operation.
 */
typedef struct Op
{
	OpType		type;
	uint16_t	flags;
	uint64_t	begin;
	uint64_t	ino;
	uint64_t	a;
	uint64_t	b;
	const char *name;			/* or NULL */
	const void *data;			/* or NULL */
	size_t		data_len;
} Op;

extern bool oplog_open(const char *dir);
extern uint64_t oplog_count(void);
extern bool oplog_usable(void);
extern void oplog_append(const Op *op);
extern bool oplog_flush(void);
extern bool oplog_close(void);

#endif							/* OPLOG_H */
