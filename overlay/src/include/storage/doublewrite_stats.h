/*-------------------------------------------------------------------------
 *
 * doublewrite_stats.h
 *	  What the engine tells extensions about itself.
 *
 * A library may be newer or older than the server that loads it: packages
 * replace both while the old server goes on running.  So nothing here depends
 * on the layout of a structure.  Figures are requested by name, and one that
 * a server does not have is unknown.  A function whose arguments change gets
 * another name, so that an older library cannot be loaded.
 *
 * None of this waits for storage, nor for a process that does.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/storage/doublewrite_stats.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_STATS_H
#define DOUBLEWRITE_STATS_H

/* All figures as they were at one moment */
typedef struct DoubleWriteSnapshot DoubleWriteSnapshot;

extern DoubleWriteSnapshot *DoubleWriteTakeSnapshot(void);

/* Counters by place: false past the last one */
extern bool DoubleWriteSnapshotCounter(const DoubleWriteSnapshot *snapshot,
									   int n, const char **name, int64 *value);

/* Other figures by name: false if unknown, or not available now */
extern bool DoubleWriteSnapshotValue(const DoubleWriteSnapshot *snapshot,
									 const char *name, int64 *value);

/* Other parts of the server put figures of theirs into a snapshot. */
extern void DoubleWritePutFigure(DoubleWriteSnapshot *snapshot,
								 const char *name, int64 value);

/*
 * Atomic writes by tablespace, one after the other: false past the last one.
 * device and others are copies that belong to the caller; advice may be NULL.
 */
extern bool DoubleWriteAtomicPlace(int n, Oid *tablespace, char **proof,
								   char **fstype, char **device,
								   int64 *unit, int64 *looked_at,
								   int64 *atomic_pages, int64 *logged_pages,
								   int64 *refusals, char **advice);

/* Value of io_torn_pages_protection in words */
extern const char *DoubleWriteModeName(int64 mode);

extern void DoubleWriteStatsReset(void);

#endif							/* DOUBLEWRITE_STATS_H */
