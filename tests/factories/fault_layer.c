/* A layer between a program and its C library: the n-th call that concerns a path below a folder fails.

   FAULT_FOLDER   the folder, absolute; without it nothing is done
   FAULT_LOG      a file for one line a call: its number, its name, "failed" or "passed", the path
   FAULT_AT       n, from 1; 0 only counts
   FAULT_ERRNO    what the call fails with; 0 for a write of half of the bytes, -n for the signal n instead, just before
   FAULT_STAYS    whether all later calls that need room fail as well, for a full disk stays full; or each gets a signal
   FAULT_REMOVE   a folder that is removed just before, with all that is in it; the call itself does what it can then

   Calls are counted in the process that it is loaded into, all threads together; its children run without it. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name)) real(#name))
#define ROOM 1
#define WRITES 2

static char folder[4096], doomed[4096];
static int at, fault, stays, is_full, descriptor = -1;
static int count;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("FAULT_FOLDER"), *log = getenv("FAULT_LOG");
    if (!given || !log) return;
    snprintf(folder, sizeof folder, "%s", given);
    at = atoi(getenv("FAULT_AT"));
    fault = atoi(getenv("FAULT_ERRNO"));
    stays = atoi(getenv("FAULT_STAYS"));
    snprintf(doomed, sizeof doomed, "%s", getenv("FAULT_REMOVE"));
    descriptor = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    unsetenv("LD_PRELOAD");
}

/* The absolute path of path below the folder that the descriptor dir is open on; links are not followed. */
static void placed(int dir, const char *path, char *to, size_t size) {
    char link[64];
    if (path[0] == '/') {
        snprintf(to, size, "%s", path);
        return;
    }
    if (dir == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t length = readlink(link, to, size - 1);
    if (length < 0) length = 0;
    to[length] = 0;
    if (path[0]) snprintf(to + length, size - length, "/%s", path);
}

static int concerns(const char *path) {
    size_t length = strlen(folder);
    return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

/* At once, as others may write there; then for good. */
static void removed(void) {
    char aside[sizeof doomed + 5], *words[] = {"sh", "-c", "rm -rf -- \"$0\" 2> /dev/null", aside, NULL}, *none[] = {NULL};
    snprintf(aside, sizeof aside, "%s.gone", doomed);
    pid_t child;
    if (REAL(rename)(doomed, aside)) return;  // it is not there yet
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, words, none) || waitpid(child, NULL, 0) != child) abort();
}

/* Whether this call is to fail: 1, with errno set, or 2 for a short write. */
static int fails(const char *name, int kind, const char *path) {
    if (descriptor < 0 || !concerns(path)) return 0;
    int before = errno;
    int number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    int is_hit = (at && number == at) || (is_full && (kind || fault < 0));
    if (number == at && stays) is_full = 1;
    char line[4400];
    int length = snprintf(line, sizeof line, "%d %s %s %s\n", number, name, is_hit ? "failed" : "passed", path);
    if (REAL(write)(descriptor, line, length) != length) abort();
    if (is_hit && fault < 0) kill(getpid(), -fault);
    if (is_hit && *doomed) removed();
    errno = is_hit && fault > 0 ? fault : before;
    if (!is_hit || fault < 0 || *doomed) return 0;
    return fault ? 1 : kind & WRITES ? 2 : 0;
}

static int fails_at(const char *name, int kind, int dir, const char *path) {
    char whole[4096];
    if (descriptor < 0 || !path) return 0;
    placed(dir, path, whole, sizeof whole);
    return fails(name, kind, whole);
}

static int opens(const char *name, int dir, const char *path, int flags) {
    int room = flags & (O_CREAT | O_TRUNC) || (flags & O_TMPFILE) == O_TMPFILE;
    return fails_at(name, room ? ROOM : 0, dir, path) == 1;
}

#define MODE(flags) \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); \
    va_end(rest)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags); \
        return opens("open", AT_FDCWD, path, flags) ? -1 : REAL(name)(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int dir, const char *path, int flags, ...) { \
        MODE(flags); \
        return opens("openat", dir, path, flags) ? -1 : REAL(name)(dir, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define BYTES(name, said, file, declared, size, given) MOVED(name, said, ROOM | WRITES, file, declared, size, given)
#define MOVED(name, said, kind, file, declared, size, given) \
    ssize_t name declared { \
        int how = fails_at(said, kind, file, ""); \
        if (how == 1) return -1; \
        if (how == 2 && size > 1) size /= 2; \
        return REAL(name) given; \
    }
BYTES(write, "write", fd, (int fd, const void *data, size_t size), size, (fd, data, size))
BYTES(pwrite, "pwrite", fd, (int fd, const void *data, size_t size, off_t place), size, (fd, data, size, place))
BYTES(pwrite64, "pwrite", fd, (int fd, const void *data, size_t size, off64_t place), size, (fd, data, size, place))
BYTES(sendfile, "sendfile", to, (int to, int from, off_t *place, size_t size), size, (to, from, place, size))
BYTES(sendfile64, "sendfile", to, (int to, int from, off64_t *place, size_t size), size, (to, from, place, size))
BYTES(copy_file_range, "copy_file_range", to,
      (int from, off64_t *start, int to, off64_t *place, size_t size, unsigned flags), size,
      (from, start, to, place, size, flags))

MOVED(read, "read", 0, fd, (int fd, void *data, size_t size), size, (fd, data, size))
MOVED(pread, "read", 0, fd, (int fd, void *data, size_t size, off_t place), size, (fd, data, size, place))
MOVED(pread64, "read", 0, fd, (int fd, void *data, size_t size, off64_t place), size, (fd, data, size, place))

#define CALL(name, said, kind, dir, path, declared, given) \
    int name declared { return fails_at(said, kind, dir, path) == 1 ? -1 : REAL(name) given; }
CALL(ftruncate, "ftruncate", ROOM, fd, "", (int fd, off_t size), (fd, size))
CALL(ftruncate64, "ftruncate", ROOM, fd, "", (int fd, off64_t size), (fd, size))
CALL(fsync, "fsync", ROOM, fd, "", (int fd), (fd))
CALL(syncfs, "syncfs", ROOM, fd, "", (int fd), (fd))
CALL(rename, "rename", 0, AT_FDCWD, new, (const char *old, const char *new), (old, new))
CALL(renameat, "renameat", 0, to, new, (int from, const char *old, int to, const char *new), (from, old, to, new))
CALL(link, "link", ROOM, AT_FDCWD, new, (const char *old, const char *new), (old, new))
CALL(linkat, "linkat", ROOM, to, new, (int from, const char *old, int to, const char *new, int flags),
     (from, old, to, new, flags))
CALL(mkdir, "mkdir", ROOM, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
CALL(mkdirat, "mkdirat", ROOM, dir, path, (int dir, const char *path, mode_t mode), (dir, path, mode))
CALL(unlink, "unlink", 0, AT_FDCWD, path, (const char *path), (path))
CALL(unlinkat, "unlinkat", 0, dir, path, (int dir, const char *path, int flags), (dir, path, flags))
CALL(rmdir, "rmdir", 0, AT_FDCWD, path, (const char *path), (path))
CALL(symlink, "symlink", ROOM, AT_FDCWD, path, (const char *to, const char *path), (to, path))
CALL(symlinkat, "symlink", ROOM, dir, path, (const char *to, int dir, const char *path), (to, dir, path))
CALL(chmod, "chmod", 0, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
CALL(fchmod, "chmod", 0, fd, "", (int fd, mode_t mode), (fd, mode))
CALL(fchmodat, "chmod", 0, dir, path, (int dir, const char *path, mode_t mode, int flags), (dir, path, mode, flags))
CALL(utimensat, "utime", 0, dir, path, (int dir, const char *path, const struct timespec times[2], int flags),
     (dir, path, times, flags))

DIR *opendir(const char *path) { return fails_at("opendir", 0, AT_FDCWD, path) == 1 ? NULL : REAL(opendir)(path); }
DIR *fdopendir(int fd) { return fails_at("opendir", 0, fd, "") == 1 ? NULL : REAL(fdopendir)(fd); }

/* A close that fails has closed all the same: what a disk elsewhere had no room for is told of here. A folder, which
   nobody writes, has nothing to tell, and the rmtree of Python 3.11 would close it again. */
int close(int fd) {
    struct stat status;
    if (descriptor < 0 || fstat(fd, &status) || S_ISDIR(status.st_mode)) return REAL(close)(fd);
    int is_hit = fails_at("close", 0, fd, "") == 1;
    int result = REAL(close)(fd);
    if (is_hit) errno = fault;
    return is_hit ? -1 : result;
}
