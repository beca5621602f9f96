/*-------------------------------------------------------------------------
 *
 * doublewrite_atomic.h
 *	  Does storage write pages atomically, and how is that known?
 *
 * For the server and for pg_doublewrite, so that both say the same.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * src/include/common/doublewrite_atomic.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DOUBLEWRITE_ATOMIC_H
#define DOUBLEWRITE_ATOMIC_H

#include <sys/stat.h>

/* What has become of looking for atomic page writes in a directory */
typedef enum DWAtomicVerdict
{
	DW_ATOMIC_UNKNOWN,			/* not looked at yet */
	DW_ATOMIC_HARDWARE,			/* proved: the device writes pages atomically */
	DW_ATOMIC_SOFTWARE,			/* the file system does, by copies */
	DW_ATOMIC_UNSUPPORTED,		/* the system knows no atomic writes */
	DW_ATOMIC_NOT_OFFERED,		/* the file system offers none for files there */
	DW_ATOMIC_OTHER_SIZE,		/* it offers some, but not of a page */
	DW_ATOMIC_LARGE_PAGES,		/* pages of the kernel's cache are larger */
	DW_ATOMIC_REFUSED,			/* a test write was refused */
	DW_ATOMIC_FAILED,			/* looking has failed */
} DWAtomicVerdict;

#define DW_ATOMIC_VERDICTS	(DW_ATOMIC_FAILED + 1)

/* Flag of pwritev2() that asks for atomicity, as the kernel has it */
#define DW_RWF_ATOMIC		0x00000040

/* What the kernel says of an open file */
typedef struct DWAtomicFile
{
	dev_t		dev;			/* device that holds its file system */
	uint32		unit_min;		/* smallest and largest atomic write, in bytes */
	uint32		unit_max;
	uint32		unit_max_opt;	/* largest one without copies, or 0 */
	uint32		mem_align;		/* direct I/O: alignment of memory */
	uint32		offset_align;	/* ... and of offsets */
} DWAtomicFile;

/* What is known of a directory */
typedef struct DWAtomicProbe
{
	DWAtomicVerdict verdict;
	int			error;			/* errno, if a test write was refused or
								 * looking has failed, else 0 */
	DWAtomicFile file;			/* what is said of a file there */
	uint64		device_max;		/* what the device says, in bytes */
	uint32		unit;			/* largest write to be relied on, in bytes */
	char		device[32];		/* block device, or empty */
	char		fstype[16];		/* file system, or empty */
} DWAtomicProbe;

/* Atomic writes that are under way at once, at most */
#define DW_ATOMIC_IN_FLIGHT	32

/* A write, atomic if its flags say so */
typedef struct DWAtomicCall
{
	Oid			spcOid;			/* for tests that stand in for the kernel */
	int			fd;
	const void *data;
	size_t		size;
	off_t		offset;
	int			flags;
	bool		done;			/* it has been tried: see result */
	ssize_t		result;			/* bytes written, or -errno */
} DWAtomicCall;

extern bool DWAtomicAskFile(int fd, DWAtomicFile *file);
extern bool DWAtomicFileFits(const DWAtomicFile *file);
extern bool DWAtomicOnDataDevice(int fd);
extern ssize_t DWAtomicWrite(int fd, const void *data, size_t size, off_t offset,
							 int flags);
extern int	DWAtomicWriteInFlight(DWAtomicCall *calls, int ncalls);
extern int	DWAtomicUnderWay(void);
extern uint32 DWAtomicUnit(const DWAtomicFile *file);
extern bool DWAtomicIsRefusal(int error);
extern void DWAtomicProbeDirectory(const char *path, DWAtomicProbe *probe);
extern const char *DWAtomicVerdictName(DWAtomicVerdict verdict);
extern const char *DWAtomicAdvice(const DWAtomicProbe *probe);

#endif							/* DOUBLEWRITE_ATOMIC_H */
