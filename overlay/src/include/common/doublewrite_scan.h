/*-------------------------------------------------------------------------
 *
 * doublewrite_scan.h
 *	  Reading the double-write log, and judging it.
 *
 * What the server does with a log at start-up, and what pg_doublewrite says
 * that it would do, is decided here, so that the two cannot differ.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/common/doublewrite_scan.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_SCAN_H
#define DOUBLEWRITE_SCAN_H

#include "catalog/pg_control.h"
#include "storage/doublewrite_format.h"

/* What stands in a block where a batch may start */
typedef enum DWHeaderVerdict
{
	DW_HEADER_NONE,				/* no batch that was written to this place */
	DW_HEADER_VALID,
	DW_HEADER_OTHER_FORMAT,		/* format version or block size not ours */
	DW_HEADER_FOREIGN,			/* intact, but of another cluster */
} DWHeaderVerdict;

/* A batch whose header is intact */
typedef struct DWFoundBatch
{
	uint64		sysid;
	uint64		batchno;
	uint64		low_water;
	uint64		segno;
	uint32		blockno;
	uint32		npages;
	uint32		nblocks;		/* of header and pages */
	uint32		compression;
	int			bad_page;		/* first page with a wrong checksum, or -1 */
	XLogRecPtr	redo;
	XLogRecPtr	redo_pending;
	uint64		nonce;
	XLogRecPtr	wal_end;
	DWPageEntry *entries;
} DWFoundBatch;

/* A segment file */
typedef struct DWScanSegment
{
	uint64		segno;
	uint64		first_batch;	/* number of the batch at its start, or 0 */
} DWScanSegment;

/* The copy of a page to restore, or the note of a page to correct */
typedef struct DWCopy
{
	DWPageEntry entry;
	uint32		compression;
	uint32		offset;			/* in the segment */
	uint64		segno;
	uint64		batchno;
} DWCopy;

/* What was found in the log; start with all zeroes, and sysid */
typedef struct DWScan
{
	uint64		sysid;			/* of the cluster; 0: any will do */
	DWScanSegment *segments;	/* segments that exist, ascending */
	int			nsegments;
	int			maxsegments;
	uint64	   *nonces;			/* those at the starts of segments */
	int			nnonces;
	int			maxnonces;
	DWFoundBatch *batches;		/* by number */
	int			nbatches;
	int			maxbatches;
	uint64		bytes_read;
	int			unreadable;		/* blocks that could not be read */

	/* the first header that means that this log must be refused */
	DWHeaderVerdict refused;	/* or DW_HEADER_NONE */
	uint64		refused_segno;
	DWBatchHeader refused_header;
} DWScan;

/*
 * Read blocks of a segment into a buffer.  Those that the file lacks, or that
 * cannot be read, must become zeroes; count the latter in scan->unreadable.
 * Return false if the file is gone.
 */
typedef bool (*DWReadBlocks) (DWScan *scan, void *arg, uint64 segno,
							  uint32 blockno, uint32 nblocks, char *buffer);

typedef enum DWLiveVerdict
{
	DW_LIVE_NONE,				/* no complete batch */
	DW_LIVE_COMPLETE,
	DW_LIVE_MISSING,			/* a batch is missing below an intact one */
	DW_LIVE_BAD_PAGE,			/* a page is damaged below an intact batch */
} DWLiveVerdict;

/* The live range of a log: scan->batches[first .. last] */
typedef struct DWLiveRange
{
	DWLiveVerdict verdict;
	int			first;
	int			last;
	uint64		npages;			/* copies and notes in it */
	uint64		nblocks;		/* its size in blocks */
	const DWFoundBatch *ignored;	/* newest batch, if it is incomplete */
	const DWFoundBatch *unreadable; /* a batch compressed with a method that
									 * this build lacks, or NULL */

	bool		end_unreadable; /* a later batch may be there */

	/* place of the damage */
	uint64		bad_batchno;
	uint64		bad_segno;
	uint32		bad_offset;
} DWLiveRange;

/* What the file backup_label is */
typedef enum DWLabel
{
	DW_LABEL_NONE,				/* there is none */
	DW_LABEL_MARKER,			/* our marker */
	DW_LABEL_BACKUP,			/* the label of a backup */
	DW_LABEL_INVALID,			/* neither */
	DW_LABEL_UNREADABLE,		/* see label_errno */
} DWLabel;

/*
 * Identity that tells a file from a copy of it.  Copying gives a new inode,
 * and no tool can set the time at which the inode was last changed.
 */
typedef struct DWIdentity
{
	uint64		inode;
	int64		changed_sec;
	int64		changed_nsec;
} DWIdentity;

/* Contents of the owner file */
typedef struct DWOwner
{
	uint64		sysid;			/* 0: there is no such file */
	char		datadir[MAXPGPATH]; /* path of the data directory */
	DWIdentity	cluster;		/* of PG_VERSION in it */
	DWIdentity	marker;			/* of the marker in it; all 0 if not known */
	uint64		nonce;			/* in the batches of its log; 0 if not known */
} DWOwner;

/* Whether files of a tablespace may exist although they are not visible */
typedef enum DWTablespace
{
	DW_TABLESPACE_FINE,			/* no: files that are not there are gone */
	DW_TABLESPACE_UNREACHABLE,	/* yes, see errno */
	DW_TABLESPACE_EMPTY,		/* yes, nothing seems to be mounted there */
} DWTablespace;

/* What the log directory is */
typedef enum DWDirectory
{
	DW_DIR_FINE,				/* only the server can access it, and owns it */
	DW_DIR_MISSING,
	DW_DIR_UNREACHABLE,			/* see dir_errno */
	DW_DIR_UNIDENTIFIED,		/* the data directory is, see dir_errno */
	DW_DIR_NONE,				/* something else */
	DW_DIR_NOT_WRITABLE,		/* see dir_errno */
	DW_DIR_WRONG_OWNER,
	DW_DIR_WRONG_MODE,
	DW_DIR_OTHER_CLUSTER,		/* log of another system identifier */
	DW_DIR_OTHER_DIRECTORY,		/* ... is reached by a link from another
								 * directory */
} DWDirectory;

/*
 * What a start finds; begin with all zeroes.  The current directory is the
 * data directory.
 */
typedef struct DWStart
{
	bool		wanted;			/* the settings ask for the log; by the caller */
	bool		on_demand;		/* copies are restored when their pages are
								 * needed; by the caller */

	/* DWLookAtCluster() */
	XLogRecPtr	redo;			/* in pg_control */
	int			segment_size;	/* of WAL; 0: there is no data directory */
	bool		checksums;		/* pages have them */
	bool		from_backup;	/* recovery from a backup is asked for */
	DWLabel		label;
	int			label_errno;

	/* DWLookAtDirectory() */
	DWDirectory dir;
	int			dir_errno;
	bool		copy;			/* data directory or marker is a copy */
	DWOwner		owner;			/* of the log */
	DWOwner		own;			/* what we are */

	/* DWLookAtLog(); the caller lists segments in scan before */
	bool		read;
	bool		stale;			/* written for other redo pointers */
	bool		wal_lost;		/* WAL ends before what is live */
	DWScan		scan;
	DWLiveRange live;
} DWStart;

/* What the server does with the log at its start; see doublewrite_scan.c */
typedef enum DWStartVerdict
{
	DW_START_READ_LOG,			/* look at the log, and ask again */
	DW_START_LEAVE_LOG,			/* there is none, or it is no concern of ours */
	DW_START_NOTHING,			/* nothing to restore */
	DW_START_RESTORE,
	DW_START_DISCARD_BACKUP,	/* it came with a backup */
	DW_START_DISCARD_STALE,		/* of another time, and not in use */
	DW_START_REFUSE_LABEL,
	DW_START_REFUSE_MARKER,
	DW_START_REFUSE_DIR,
	DW_START_REFUSE_HEADER,
	DW_START_REFUSE_DAMAGED,
	DW_START_REFUSE_MISSING,	/* in use, but no complete batch is there */
	DW_START_REFUSE_STALE,		/* of another time, but in use */
	DW_START_REFUSE_COMPRESSION,
	DW_START_REFUSE_COPY,
	DW_START_REFUSE_WAL,
} DWStartVerdict;

#define DWStartRefused(verdict)		((verdict) >= DW_START_REFUSE_LABEL)

/* Why, as parts of a message; translated */
typedef struct DWReason
{
	const char *message;
	const char *detail;			/* or NULL */
	const char *hint;			/* or NULL */
} DWReason;

/*
 * Return whether our marker is in this data directory, or may be, as that cannot be
 * read.  For those that need a cluster which has been shut down, and look no further
 * into the file than this.
 */
static inline bool
DWMarkerExists(const char *datadir)
{
	char		line[sizeof(DW_MARKER_LINE)] = "";
	char		path[MAXPGPATH];
	bool		unreadable;
	FILE	   *fp;

	snprintf(path, sizeof(path), "%s/%s", datadir, DW_MARKER_FILE);
	fp = fopen(path, "r");
	if (fp == NULL)
		return errno != ENOENT;
	unreadable = fgets(line, sizeof(line), fp) == NULL && ferror(fp);
	fclose(fp);
	return unreadable || strcmp(line, DW_MARKER_LINE) == 0;
}

extern void DWLookAtCluster(DWStart *start, const ControlFileData *control);
extern void DWLookAtDirectory(DWStart *start);
extern void DWLookAtLog(DWStart *start, DWReadBlocks read_blocks, void *arg,
						char *buffer, bool everything);
extern DWStartVerdict DWJudgeStart(const DWStart *start);
extern void DWExplainStart(const DWStart *start, DWStartVerdict verdict,
						   DWReason *reason);
extern void DWExplainLostWal(XLogRecPtr needed, XLogRecPtr end, DWReason *reason);
extern bool DWWalFileReaches(const char *name, XLogRecPtr end, int segment_size);

extern bool DWIdentifyOwner(uint64 sysid, DWOwner *owner);
extern bool DWWriteOwner(FILE *fp, const DWOwner *owner);
extern void DWReadOwner(const char *path, DWOwner *owner);
extern DWTablespace DWJudgeTablespace(Oid spcOid, char *path);

extern bool DWParseSegmentName(const char *name, uint64 *segno);
extern bool DWSkipMarker(FILE *fp);

extern void DWScanAddSegment(DWScan *scan, uint64 segno);
extern const char *DWCompressionName(uint32 compression);
extern uint32 DWPageOffset(const DWFoundBatch *batch, uint32 page);
extern bool DWReadCopy(int fd, const DWCopy *copy, char *page, bool *intact);
extern bool DWMendPage(const DWPageEntry *note, char *page, uint16 checksum);
extern pg_crc32c DWHintDigest(const char *page);
extern int	DWComparePages(const DWPageEntry *a, const DWPageEntry *b);
extern DWCopy *DWNewestCopies(const DWScan *scan, const DWLiveRange *live,
							  int *ncopies);
extern int	DWForkLength(const DWCopy *copies, int ncopies);

#endif							/* DOUBLEWRITE_SCAN_H */
