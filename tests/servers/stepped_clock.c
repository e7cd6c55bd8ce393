/* Adds what a shared file says to the wall clock of the program this is preloaded into; CLOCK_MONOTONIC is left alone.
 *
 * LOCKSTEAD_CLOCK names the file: a native 64-bit integer, in microseconds, read at every look at the clock. A second
 * one, unless it is 0 or missing, is the time at which the clock stands still.
 * Everything is declared here, and asked of the kernel directly: it is compiled without headers, and works before
 * the program's allocator does. */

#if defined(__x86_64__)
enum { SYS_clock_gettime = 228 };
#elif defined(__aarch64__)
enum { SYS_clock_gettime = 113 };
#else
#error "add this machine's number of clock_gettime"
#endif

enum { CLOCK_REALTIME = 0, CLOCK_REALTIME_COARSE = 5 };
enum { O_RDONLY = 0, PROT_READ = 1, MAP_SHARED = 1 };

struct timespec { long seconds, nanoseconds; };
struct timeval { long seconds, microseconds; };

extern long syscall(long number, ...);
extern int open(const char *path, int flags, ...);
extern void *mmap(void *address, unsigned long length, int protection, int flags, int file, long offset);
extern char *getenv(const char *name);
extern void abort(void);

static const volatile long *offset;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("LOCKSTEAD_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? (void *)-1 : mmap(0, 2 * sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (page == (void *)-1)
        abort();
    offset = page;
}

int clock_gettime(int clock, struct timespec *now)
{
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long stopped = offset[1];
        if (stopped) {
            now->seconds = stopped / 1000000;
            now->nanoseconds = stopped % 1000000 * 1000;
            return failed;
        }
        long micro = now->nanoseconds / 1000 + *offset % 1000000;
        now->seconds += *offset / 1000000;
        if (micro < 0) {
            micro += 1000000;
            now->seconds -= 1;
        } else if (micro >= 1000000) {
            micro -= 1000000;
            now->seconds += 1;
        }
        now->nanoseconds = micro * 1000 + now->nanoseconds % 1000;
    }
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    long failed = clock_gettime(CLOCK_REALTIME, &precise);
    if (!failed && now) {
        now->seconds = precise.seconds;
        now->microseconds = precise.nanoseconds / 1000;
    }
    return failed;
}

long time(long *into)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (into)
        *into = precise.seconds;
    return precise.seconds;
}
