/*-------------------------------------------------------------------------
 *
 * pg_doublewrite.h
 *	  Shared declarations of pg_doublewrite.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/bin/pg_doublewrite/pg_doublewrite.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef PG_DOUBLEWRITE_H
#define PG_DOUBLEWRITE_H

#include "catalog/pg_control.h"
#include "common/doublewrite_scan.h"

/* Exit status: something is wrong with what was looked at */
#define EXIT_REFUSED	2

/* What the server would do with the log if it were started now */
typedef enum DWToolVerdict
{
	VERDICT_NOTHING,
	VERDICT_RESTORE,
	VERDICT_DISCARD,
	VERDICT_REFUSE,
	VERDICT_UNKNOWN,			/* there is no data directory to compare with */
} DWToolVerdict;

/* How that is said in JSON, and to people */
struct verdict_names
{
	const char *word;
	const char *text;
};

/* All that is known of a log */
typedef struct DWToolLogState
{
	const char *datadir;		/* as given; NULL: the log alone */
	const char *logdir;			/* path by which its files are opened */
	char	   *linktarget;		/* where logdir points to, or NULL */
	ControlFileData *control;	/* NULL without a data directory */
	long		pid;			/* of the server that is running, or 0 */

	DWStart		start;			/* what the server would find */
	DWCopy	   *copies;			/* newest copies of the live range */
	int			ncopies;
	uint64		sysid;			/* in the headers; 0 if there are none */

	DWToolVerdict verdict;
	char	   *reason;			/* one sentence */
	char	   *hint;			/* what to do, or NULL */
} DWToolLogState;

/* Options of all commands */
typedef struct DWToolOptions
{
	bool		json;
	bool		pages;			/* list pages one by one */
} DWToolOptions;

/* What a start after a crash would do at most */
typedef struct CrashWork
{
	uint64		wal_bytes;		/* to replay */
	uint64		pages;			/* to restore from the log */
	uint64		files;			/* that these belong to */
} CrashWork;

extern const char *progname;

/* crash.c */
extern bool count_crash_work(const DWToolLogState *state, CrashWork *work);

/* readlog.c */
extern void open_cluster(DWToolLogState *state, const char *datadir);
extern void refuse_running_server(const DWToolLogState *state);
extern void read_log(DWToolLogState *state, const char *datadir, const char *logdir);
extern void read_copy(const DWToolLogState *state, const DWCopy *copy, char *page);
extern const struct verdict_names verdicts[];

/* list.c */
extern void print_state(const DWToolLogState *state, const DWToolOptions *options);
extern void print_list(const DWToolLogState *state, const DWToolOptions *options);
extern void print_check(const DWToolLogState *state, const DWToolOptions *options);

/* dryrun.c */
extern void dry_run(DWToolLogState *state, const DWToolOptions *options);

/* leave.c */
extern bool print_leave(const DWToolLogState *state, const char *config_file,
						const DWToolOptions *options);

/* fetch.c */
extern void fetch_page(const char *datadir, const char *source, const char *name,
					   const char *block, bool force);

/* storage.c */
extern void test_storage(const char *datadir, const DWToolOptions *options,
						 int seconds, bool test_sync);

/* json.c */
extern void json_open_object(const char *key);
extern void json_open_array(const char *key);
extern void json_close(void);
extern void json_string(const char *key, const char *value);
extern void json_uint(const char *key, uint64 value);
extern void json_double(const char *key, double value);
extern void json_bool(const char *key, bool value);
extern void json_null(const char *key);
extern void json_lsn(const char *key, XLogRecPtr value);

#endif							/* PG_DOUBLEWRITE_H */
