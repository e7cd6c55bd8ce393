/* Fails every write of the program this is preloaded into, for want of space, to files in the directory of a shared file.
 *
 * LOCKSTEAD_FULL names the file: one native 64-bit integer; the disk is full unless it is zero. Like stepped_clock.c it is
 * compiled without headers, and asks the kernel directly. */

#if defined(__x86_64__)
enum { SYS_write = 1, SYS_pwrite64 = 18, SYS_readlinkat = 267 };
#elif defined(__aarch64__)
enum { SYS_write = 64, SYS_pwrite64 = 68, SYS_readlinkat = 78 };
#else
#error "add this machine's numbers of write, pwrite64 and readlinkat"
#endif

enum { O_RDONLY = 0, PROT_READ = 1, MAP_SHARED = 1, AT_FDCWD = -100, ENOSPC = 28 };

extern long syscall(long number, ...);
extern int open(const char *path, int flags, ...);
extern void *mmap(void *address, unsigned long length, int protection, int flags, int file, long offset);
extern char *getenv(const char *name);
extern int *__errno_location(void);
extern void abort(void);

static const volatile long *is_full;
static const char *directory;
static long length;

__attribute__((constructor)) static void map_state(void)
{
    const char *path = directory = getenv("LOCKSTEAD_FULL");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? (void *)-1 : mmap(0, sizeof *is_full, PROT_READ, MAP_SHARED, file, 0);
    if (page == (void *)-1)
        abort();
    for (long i = 0; path[i]; i++)
        if (path[i] == '/')
            length = i + 1;
    is_full = page;
}

static int has_no_room(int file)
{
    char link[32] = "/proc/self/fd/", target[4096];
    long digits = 0, i;
    if (!is_full || !*is_full || file < 0)
        return 0;
    for (int rest = file; rest || !digits; rest /= 10)
        digits++;
    for (i = 14 + digits; i > 14; file /= 10)
        link[--i] = '0' + file % 10;
    long read = syscall(SYS_readlinkat, AT_FDCWD, link, target, sizeof target);
    for (i = 0; i < length; i++)
        if (i >= read || target[i] != directory[i])
            return 0;
    *__errno_location() = ENOSPC;
    return 1;
}

long write(int file, const void *data, unsigned long size)
{
    return has_no_room(file) ? -1 : syscall(SYS_write, file, data, size);
}

long pwrite64(int file, const void *data, unsigned long size, long at)
{
    return has_no_room(file) ? -1 : syscall(SYS_pwrite64, file, data, size, at);
}

long pwrite(int file, const void *data, unsigned long size, long at)
{
    return pwrite64(file, data, size, at);
}
