/*-------------------------------------------------------------------------
 *
 * doublewrite_atomic.c
 *	  Finding out whether pages can be written atomically.
 *
 * Three things are needed, as none of them tells enough:
 *
 *	  statx() says which sizes a file takes.  That covers the layout of the
 *		file system, and the alignment of a partition.  But some file systems do
 *		it in software, by copies, and then say the same.
 *	  sysfs says what the device does in hardware.  Limits of stacked devices
 *		are calculated by the kernel; we look at the devices below anyway, and
 *		take the smallest.
 *	  A direct write that asks for atomicity either is atomic or is refused.  So
 *		we make one, to a file without a name in the same directory.  Where a
 *		file has no direct I/O, ext4 writes through the kernel's cache, and
 *		does not look at what was asked for: such a file offers nothing.
 *
 * The kernel's interface is spelled out here, since headers may be older than
 * the kernel.  Where they do know it, the compiler compares.  With headers from
 * before Linux 4.11 pages are not written atomically.
 *
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 *
 * IDENTIFICATION
 *	  src/common/doublewrite_atomic.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#endif

#include "common/doublewrite_atomic.h"

/* Pages of the test file */
#define DW_TEST_PAGES		4

/*
 * Most devices in a stack: real ones have fewer, and a cycle must end
 */
#define DW_MAX_STACK		16

#if defined(SYS_statx) && defined(SYS_pwritev2) && defined(SYS_io_getevents) && \
	defined(O_DIRECT) && defined(O_TMPFILE)

/* ---------------------------------------------------------------------
 * The kernel's interface
 * ---------------------------------------------------------------------
 */

#define DW_KERNEL_STATX_BASIC_STATS		0x000007ffU
#define DW_KERNEL_STATX_DIOALIGN		0x00002000U
#define DW_KERNEL_STATX_WRITE_ATOMIC	0x00010000U
#define DW_KERNEL_XFLAG_REALTIME		0x00000001

/* struct statx */
typedef struct DWKernelStatx
{
	uint32		mask;
	uint32		blksize;
	uint64		attributes;
	uint32		owner_and_mode[4];
	uint64		sizes[4];
	uint64		times[8];
	uint32		rdev_major;
	uint32		rdev_minor;
	uint32		dev_major;
	uint32		dev_minor;
	uint64		mnt_id;
	uint32		dio_mem_align;
	uint32		dio_offset_align;
	uint64		subvol;
	uint32		atomic_write_unit_min;
	uint32		atomic_write_unit_max;
	uint32		atomic_write_segments_max;
	uint32		dio_read_offset_align;
	uint32		atomic_write_unit_max_opt;	/* 0 before Linux 6.16 */
	uint32		spare[17];
} DWKernelStatx;

StaticAssertDecl(sizeof(DWKernelStatx) == 256, "struct statx has 256 bytes");
StaticAssertDecl(offsetof(DWKernelStatx, dev_major) == 0x88,
				 "layout of struct statx");
StaticAssertDecl(offsetof(DWKernelStatx, dio_mem_align) == 0x98,
				 "layout of struct statx");
StaticAssertDecl(offsetof(DWKernelStatx, atomic_write_unit_min) == 0xa8,
				 "layout of struct statx");
StaticAssertDecl(offsetof(DWKernelStatx, atomic_write_unit_max_opt) == 0xb8,
				 "layout of struct statx");
#ifdef STATX_WRITE_ATOMIC
StaticAssertDecl(STATX_WRITE_ATOMIC == DW_KERNEL_STATX_WRITE_ATOMIC,
				 "flag of statx()");
#endif
#ifdef RWF_ATOMIC
StaticAssertDecl(RWF_ATOMIC == DW_RWF_ATOMIC, "flag of pwritev2()");
#endif

/* struct iocb, struct io_event, and the operation */
typedef struct DWKernelIocb
{
	uint64		data;
#ifdef WORDS_BIGENDIAN
	uint32		rw_flags;
	uint32		key;
#else
	uint32		key;
	uint32		rw_flags;
#endif
	uint16		opcode;
	int16		priority;
	uint32		fd;
	uint64		buf;
	uint64		nbytes;
	int64		offset;
	uint64		reserved;
	uint32		flags;
	uint32		resfd;
} DWKernelIocb;

StaticAssertDecl(sizeof(DWKernelIocb) == 64, "struct iocb has 64 bytes");

typedef struct DWKernelIoEvent
{
	uint64		data;
	uint64		iocb;
	int64		result;
	int64		result2;
} DWKernelIoEvent;

#define DW_KERNEL_IOCB_PWRITE	1

/* struct fsxattr, and the request that fills it */
typedef struct DWKernelFsxattr
{
	uint32		xflags;
	uint32		other[6];
} DWKernelFsxattr;

StaticAssertDecl(sizeof(DWKernelFsxattr) == 28, "struct fsxattr has 28 bytes");

#define DW_KERNEL_FSGETXATTR	_IOR('X', 31, DWKernelFsxattr)

/*
 * Ask the kernel about an open file.  Return false if it does not report
 * atomic writes, or no direct I/O, without which it makes none (data=journal,
 * encryption in software); the rest is filled in as far as possible.
 */
bool
DWAtomicAskFile(int fd, DWAtomicFile *file)
{
	DWKernelStatx stx = {0};

	memset(file, 0, sizeof(*file));
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH,
				DW_KERNEL_STATX_BASIC_STATS | DW_KERNEL_STATX_DIOALIGN |
				DW_KERNEL_STATX_WRITE_ATOMIC, &stx) < 0)
		return false;
	file->dev = makedev(stx.dev_major, stx.dev_minor);
	if (stx.mask & DW_KERNEL_STATX_DIOALIGN)
	{
		file->mem_align = stx.dio_mem_align;
		file->offset_align = stx.dio_offset_align;
	}
	if (!(stx.mask & DW_KERNEL_STATX_WRITE_ATOMIC) || file->mem_align == 0)
		return false;
	file->unit_min = stx.atomic_write_unit_min;
	file->unit_max = stx.atomic_write_unit_max;
	file->unit_max_opt = stx.atomic_write_unit_max_opt;
	return true;
}

/*
 * Return whether the file is on the device that its file system is known by.
 * XFS can have another device for files of a special kind.
 */
bool
DWAtomicOnDataDevice(int fd)
{
	DWKernelFsxattr attr = {0};

	/* a file system that does not know the request has no such device */
	return ioctl(fd, DW_KERNEL_FSGETXATTR, &attr) < 0 ||
		(attr.xflags & DW_KERNEL_XFLAG_REALTIME) == 0;
}

/*
 * Write with DW_RWF_ATOMIC: atomically, or not at all.  The file has been
 * opened for direct I/O.
 */
ssize_t
DWAtomicWrite(int fd, const void *data, size_t size, off_t offset, int flags)
{
	struct iovec iov = {unconstify(void *, data), size};

	/* the offset comes in two halves; the second one counts for 32 bits only */
	return syscall(SYS_pwritev2, fd, &iov, 1, (unsigned long) offset,
				   (unsigned long) ((uint64) offset >> 32), flags);
}

/* Writes submitted to the kernel whose end it has not reported */
static int	dw_nunder_way = 0;

/*
 * Wait until this many writes have ended.  Return false if that fails.
 */
static bool
dw_reap(unsigned long queue, DWAtomicCall *calls, int nwaited)
{
	DWKernelIoEvent events[DW_ATOMIC_IN_FLIGHT];

	while (nwaited > 0)
	{
		long		n = syscall(SYS_io_getevents, queue, (long) nwaited,
								(long) nwaited, events, NULL);

		if (n < 0 && errno != EINTR)
			return false;
		for (long i = 0; i < n; i++)
		{
			calls[events[i].data].result = events[i].result;
			calls[events[i].data].done = true;
			dw_nunder_way--;
			nwaited--;
		}
	}
	return true;
}

/*
 * Make all of these writes that are not done yet at once.  None is under way
 * any more when this returns.  If the kernel does not take several at once,
 * they remain to be done.  The files have been opened for direct I/O, without
 * which this would be one write after the other.
 *
 * Return how many were made; -1, with errno set, if their outcome is not
 * known.
 */
int
DWAtomicWriteInFlight(DWAtomicCall *calls, int ncalls)
{
	/* closing the queue takes long, so it stays until the process ends */
	static unsigned long queue = 0;
	DWKernelIocb iocbs[DW_ATOMIC_IN_FLIGHT];
	DWKernelIocb *submitted[DW_ATOMIC_IN_FLIGHT];
	long		n = 0;

	Assert(ncalls <= DW_ATOMIC_IN_FLIGHT);

	for (int i = 0; i < ncalls; i++)
	{
		if (calls[i].done)
			continue;
		memset(&iocbs[n], 0, sizeof(DWKernelIocb));
		iocbs[n].data = i;
		iocbs[n].rw_flags = calls[i].flags;
		iocbs[n].opcode = DW_KERNEL_IOCB_PWRITE;
		iocbs[n].fd = calls[i].fd;
		iocbs[n].buf = (uintptr_t) calls[i].data;
		iocbs[n].nbytes = calls[i].size;
		iocbs[n].offset = calls[i].offset;
		submitted[n] = &iocbs[n];
		n++;
	}
	if (n < 2 ||
		(queue == 0 && syscall(SYS_io_setup, DW_ATOMIC_IN_FLIGHT, &queue) < 0))
		return 0;
	n = syscall(SYS_io_submit, queue, n, submitted);
	if (n < 0)
		return 0;
	dw_nunder_way += (int) n;
	return dw_reap(queue, calls, (int) n) ? (int) n : -1;
}

/*
 * Return how many writes of this process are under way.  For assertions.
 */
int
DWAtomicUnderWay(void)
{
	return dw_nunder_way;
}

/* ---------------------------------------------------------------------
 * Devices
 * ---------------------------------------------------------------------
 */

static uint64
dw_read_sysfs_number(const char *dir, const char *name)
{
	char		path[MAXPGPATH];
	char		line[64] = "";
	ssize_t		len;
	int			fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY, 0);
	if (fd < 0)
		return 0;
	len = read(fd, line, sizeof(line) - 1);
	close(fd);
	return len > 0 ? strtou64(line, NULL, 10) : 0;
}

/*
 * Return the limit of the device in this directory of sysfs, and of all below
 * it.
 */
static uint64
dw_device_limit(const char *dir, int depth)
{
	char		path[MAXPGPATH];
	uint64		result;
	DIR		   *slaves;
	struct dirent *de;

	if (depth > DW_MAX_STACK)
		return 0;

	/* the limits of a partition are those of the disk around it */
	snprintf(path, sizeof(path), "%s/partition", dir);
	if (access(path, F_OK) == 0)
	{
		snprintf(path, sizeof(path), "%s/..", dir);
		return dw_device_limit(path, depth + 1);
	}

	result = dw_read_sysfs_number(dir, "queue/atomic_write_unit_max_bytes");
	snprintf(path, sizeof(path), "%s/slaves", dir);
	slaves = opendir(path);
	if (slaves == NULL)
		return errno == ENOENT ? result : 0;
	while (result > 0 && (errno = 0, (de = readdir(slaves)) != NULL))
	{
		if (de->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/slaves/%s", dir, de->d_name);
		result = Min(result, dw_device_limit(path, depth + 1));
	}
	if (errno != 0)
		result = 0;
	closedir(slaves);
	return result;
}

/*
 * Return the largest atomic write of a device in hardware, in bytes, or 0 if
 * there is none, or it is unknown.
 */
static uint64
dw_ask_device(dev_t dev, char *name, size_t size)
{
	char		dir[MAXPGPATH];
	char	   *real;
	uint64		result;

	name[0] = '\0';
	snprintf(dir, sizeof(dir), "/sys/dev/block/%u:%u", major(dev), minor(dev));
	real = realpath(dir, NULL);
	if (real == NULL)
		return 0;
	strlcpy(name, strrchr(real, '/') + 1, size);
	result = dw_device_limit(real, 0);
	free(real);
	return result;
}

/*
 * Give the name of the file system that an open file is on, if it is of a
 * known kind.
 */
static void
dw_name_file_system(int fd, char *name, size_t size)
{
	static const struct
	{
		uint32		magic;
		const char *name;
	}			known[] = {
		{0x58465342, "xfs"}, {0xEF53, "ext4"}, {0x9123683E, "btrfs"},
		{0x01021994, "tmpfs"}, {0x794C7630, "overlay"}, {0x6969, "nfs"},
		{0x2FC12FC1, "zfs"}, {0xF2F52010, "f2fs"}, {0x65735546, "fuse"},
	};
	struct statfs fs;

	name[0] = '\0';
	if (fstatfs(fd, &fs) < 0)
		return;
	for (int i = 0; i < lengthof(known); i++)
	{
		if ((uint32) fs.f_type == known[i].magic)
			strlcpy(name, known[i].name, size);
	}
}

/* ---------------------------------------------------------------------
 * Judging
 * ---------------------------------------------------------------------
 */

/*
 * Write some pages, one of them atomically, and read that one again.
 */
static DWAtomicVerdict
dw_test_write(int fd, int *error)
{
	PGAlignedBlock *unaligned = malloc(sizeof(PGAlignedBlock) * DW_TEST_PAGES + PG_IO_ALIGN_SIZE);
	char	   *pages;
	DWAtomicVerdict verdict = DW_ATOMIC_FAILED;
	ssize_t		result;

	if (unaligned == NULL)
	{
		*error = ENOMEM;
		return verdict;
	}
	pages = (char *) TYPEALIGN(PG_IO_ALIGN_SIZE, unaligned);

	/* a page in the middle of a file that has its blocks */
	memset(pages, 0, BLCKSZ * DW_TEST_PAGES);
	if (pwrite(fd, pages, BLCKSZ * DW_TEST_PAGES, 0) == BLCKSZ * DW_TEST_PAGES)
	{
		memset(pages, 0x5A, BLCKSZ);
		result = DWAtomicWrite(fd, pages, BLCKSZ, BLCKSZ, DW_RWF_ATOMIC);
		*error = errno;
		if (result < 0 && DWAtomicIsRefusal(*error))
			verdict = DW_ATOMIC_REFUSED;
		else if (result == BLCKSZ &&
				 pread(fd, pages + BLCKSZ, BLCKSZ, BLCKSZ) == BLCKSZ)
			verdict = memcmp(pages, pages + BLCKSZ, BLCKSZ) == 0 ?
				DW_ATOMIC_HARDWARE : DW_ATOMIC_REFUSED;
	}
	if (verdict == DW_ATOMIC_HARDWARE)
		*error = 0;
	else if (verdict == DW_ATOMIC_FAILED)
		*error = errno;
	free(unaligned);
	return verdict;
}

static DWAtomicVerdict
dw_judge(int fd, DWAtomicProbe *probe)
{
	DWAtomicVerdict verdict;
	bool		offered = DWAtomicAskFile(fd, &probe->file);

	dw_name_file_system(fd, probe->fstype, sizeof(probe->fstype));
	probe->device_max = dw_ask_device(probe->file.dev, probe->device,
									  sizeof(probe->device));
	if (!offered || probe->file.unit_max == 0 || !DWAtomicOnDataDevice(fd))
		return DW_ATOMIC_NOT_OFFERED;
	if (!DWAtomicFileFits(&probe->file))
		return DW_ATOMIC_OTHER_SIZE;

	/*
	 * writing one page must not make another one dirty in the kernel's cache
	 */
	if (sysconf(_SC_PAGESIZE) > BLCKSZ)
		return DW_ATOMIC_LARGE_PAGES;
	verdict = dw_test_write(fd, &probe->error);
	if (verdict != DW_ATOMIC_HARDWARE)
		return verdict;

	/* beyond the device's limit, the file system makes copies */
	probe->unit = BLCKSZ;
	if (probe->device_max < BLCKSZ)
		return DW_ATOMIC_SOFTWARE;
	probe->unit = Min(DWAtomicUnit(&probe->file), probe->device_max);
	return DW_ATOMIC_HARDWARE;
}

/*
 * Find out about files in a directory, which the caller can write to.
 */
void
DWAtomicProbeDirectory(const char *path, DWAtomicProbe *probe)
{
	int			fd;

	memset(probe, 0, sizeof(*probe));
	fd = open(path, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	if (fd < 0)
	{
		probe->error = errno;
		probe->verdict = errno == EOPNOTSUPP || errno == EINVAL || errno == EISDIR ?
			DW_ATOMIC_UNSUPPORTED : DW_ATOMIC_FAILED;
		return;
	}
	probe->verdict = dw_judge(fd, probe);
	close(fd);
}

#else							/* not offered by the system */

bool
DWAtomicAskFile(int fd, DWAtomicFile *file)
{
	memset(file, 0, sizeof(*file));
	return false;
}

bool
DWAtomicOnDataDevice(int fd)
{
	return false;
}

ssize_t
DWAtomicWrite(int fd, const void *data, size_t size, off_t offset, int flags)
{
	errno = EOPNOTSUPP;
	return -1;
}

int
DWAtomicWriteInFlight(DWAtomicCall *calls, int ncalls)
{
	return 0;
}

int
DWAtomicUnderWay(void)
{
	return 0;
}

void
DWAtomicProbeDirectory(const char *path, DWAtomicProbe *probe)
{
	memset(probe, 0, sizeof(*probe));
	probe->verdict = DW_ATOMIC_UNSUPPORTED;
}

#endif

/*
 * Return whether a page can be written atomically, by what the kernel says of
 * a file.
 */
bool
DWAtomicFileFits(const DWAtomicFile *file)
{
	return file->unit_max != 0 && file->unit_min <= BLCKSZ &&
		file->unit_max >= BLCKSZ && file->mem_align <= PG_IO_ALIGN_SIZE &&
		file->offset_align <= BLCKSZ;
}

/*
 * Return how large writes may be, in bytes.  A file system may make larger
 * ones by copies, which cost more than writes of single pages.  So we keep to
 * the size up to which it reports to need none.  If it reports no such size,
 * all are made in the same way: ext4 writes a cluster of bigalloc like a block.
 */
uint32
DWAtomicUnit(const DWAtomicFile *file)
{
	if (file->unit_max_opt == 0)
		return file->unit_max;
	return Min(file->unit_max, Max(file->unit_max_opt, BLCKSZ));
}

/*
 * Return whether an error says that such a write cannot be made here, so that
 * the next one could not be made either.  Other errors, like a lack of space,
 * may pass.  EPERM is the answer of system call filters, for example in
 * containers.
 */
bool
DWAtomicIsRefusal(int error)
{
	return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS ||
		error == EPERM;
}

const char *
DWAtomicVerdictName(DWAtomicVerdict verdict)
{
	static const char *const names[DW_ATOMIC_VERDICTS] = {
		[DW_ATOMIC_UNKNOWN] = "not looked at",
		[DW_ATOMIC_HARDWARE] = "hardware",
		[DW_ATOMIC_SOFTWARE] = "software",
		[DW_ATOMIC_UNSUPPORTED] = "unsupported",
		[DW_ATOMIC_NOT_OFFERED] = "not offered",
		[DW_ATOMIC_OTHER_SIZE] = "other size",
		[DW_ATOMIC_LARGE_PAGES] = "large kernel pages",
		[DW_ATOMIC_REFUSED] = "refused",
		[DW_ATOMIC_FAILED] = "failed",
	};

	return (unsigned) verdict < lengthof(names) ? names[verdict] : "unknown";
}

/*
 * Return what would help where pages are not written atomically, or NULL if
 * nothing is known to help, or there is no need.
 */
const char *
DWAtomicAdvice(const DWAtomicProbe *probe)
{
	if (probe->verdict == DW_ATOMIC_HARDWARE || probe->verdict == DW_ATOMIC_LARGE_PAGES ||
		probe->file.mem_align == 0 || probe->device_max < BLCKSZ)
		return NULL;
	if (strcmp(probe->fstype, "ext4") == 0)
		return BLCKSZ <= 16384 ? "mkfs.ext4 -O bigalloc -C 16384" : NULL;
	if (probe->verdict == DW_ATOMIC_OTHER_SIZE && probe->file.unit_min > BLCKSZ)
		return "mkfs.xfs -m reflink=1";
	if (strcmp(probe->fstype, "xfs") == 0)
		return "mkfs.xfs -b size=" CppAsString2(BLCKSZ);
	return "mkfs.xfs -m reflink=1";
}
