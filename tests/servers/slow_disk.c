/* Lets every fsync and fdatasync of the program this is preloaded into take as much longer as a shared file says.
 *
 * LOCKSTEAD_DISK names the file: one native 64-bit integer, in microseconds, read at every call. Like stepped_clock.c it
 * is compiled without headers, and asks the kernel directly. */

#if defined(__x86_64__)
enum { SYS_nanosleep = 35, SYS_fsync = 74, SYS_fdatasync = 75 };
#elif defined(__aarch64__)
enum { SYS_nanosleep = 101, SYS_fsync = 82, SYS_fdatasync = 83 };
#else
#error "add this machine's numbers of nanosleep, fsync and fdatasync"
#endif

enum { O_RDONLY = 0, PROT_READ = 1, MAP_SHARED = 1 };

struct timespec { long seconds, nanoseconds; };

extern long syscall(long number, ...);
extern int open(const char *path, int flags, ...);
extern void *mmap(void *address, unsigned long length, int protection, int flags, int file, long offset);
extern char *getenv(const char *name);
extern void abort(void);

static const volatile long *delay;

__attribute__((constructor)) static void map_delay(void)
{
    const char *path = getenv("LOCKSTEAD_DISK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? (void *)-1 : mmap(0, sizeof *delay, PROT_READ, MAP_SHARED, file, 0);
    if (page == (void *)-1)
        abort();
    delay = page;
}

static void dawdle(void)
{
    struct timespec left = {*delay / 1000000, *delay % 1000000 * 1000};
    while (*delay && syscall(SYS_nanosleep, &left, &left))
        ; /* a signal came */
}

int fsync(int file)
{
    dawdle();
    return syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    dawdle();
    return syscall(SYS_fdatasync, file);
}
