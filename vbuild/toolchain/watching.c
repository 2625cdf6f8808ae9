/* Note which files a build looks for: a library that is preloaded into every program of the build.

   A line is one letter, a blank, an absolute path: "r" for a file that was looked for, there or not; "l" for a folder
   whose names were read; "u" for a program that starts and cannot be watched, as it is static, or without this library.
   Each line is written once, by way of a table of hashes that all processes share. Only the functions below are seen;
   the C library's own calls of open() are not, so each of its functions that opens something has its place here.
   Another log has the commands of compilers, assemblers, archivers and linkers in the order in which they start. Fields
   end with byte 31: "w" if a compiler wrapper, which sets MARK, has started the command, else "-"; the process
   that starts it; the folder; the program; its arguments, and those in a file that it is given as "@" and the text of that file.
   SIZE, LOG, COMMANDS, TABLE and SELF are given by the command that compiles this; in the last four, a folder of a build is put
   in the place of the one that was compiled, so the compiler must not look into them. No header that declares these functions is
   included: the types of their arguments do not matter here, and differ from C library to C library. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>

#define LONGEST 4096
#define HERE (-100) /* AT_FDCWD */
#define NEXT(name) (real ? real : (real = dlsym(RTLD_NEXT, name)))

extern long syscall(long, ...);
extern int *__errno_location(void);
extern char *getenv(const char *);
extern char **environ;

#define MARK "VBUILD_WRAPPED="

static volatile unsigned long *table;
static const volatile char log_path[] = LOG, commands_path[] = COMMANDS, table_path[] = TABLE, own_path[] = SELF;

static size_t length(const char *text) {
    size_t n = 0;
    while (text[n]) n++;
    return n;
}

static int begins(const char *text, const char *with) {
    while (*with)
        if (*text++ != *with++) return 0;
    return 1;
}

static int holds(const char *text, const char *part) {
    for (; *text; text++)
        if (begins(text, part)) return 1;
    return 0;
}

/* The path in full, in `into`; 0 if it is too long to be one. */
static size_t full(int folder, const char *path, char *into) {
    size_t n = 0, more = length(path);
    if (path[0] != '/') {
        long got;
        if (folder == HERE) {
            got = syscall(SYS_getcwd, into, LONGEST) - 1; /* counts the zero at the end */
        } else {
            char link[32] = "/proc/self/fd/", digits[12];
            int at = 0, to = 14;
            do digits[at++] = (char)('0' + folder % 10); while ((folder /= 10) > 0);
            while (at) link[to++] = digits[--at];
            link[to] = 0;
            got = syscall(SYS_readlinkat, HERE, link, into, LONGEST);
        }
        if (got <= 0 || into[0] != '/') return 0;
        n = (size_t)got;
        if (more) into[n++] = '/';
    }
    if (n + more + 1 >= LONGEST) return 0;
    for (size_t i = 0; i <= more; i++) into[n + i] = path[i];
    return n + more;
}

static void note(char kind, int folder, const char *path) {
    char line[LONGEST + 4];
    if (!path || !(path[0] || kind == 'l')) return;
    int *error = __errno_location(), before = *error;
    size_t n = full(folder, path, line + 2);
    if (n && !begins(line + 2, "/proc/") && !begins(line + 2, "/dev/") && !holds(line + 2, "\n")) {
        unsigned long hash = 14695981039346656037ul ^ (unsigned char)kind;
        for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)line[2 + i]) * 1099511628211ul;
        if (!table) {
            long file = syscall(SYS_openat, HERE, table_path, 02000002 /* O_RDWR | O_CLOEXEC */, 0);
            long at = file < 0 ? -1 : syscall(SYS_mmap, 0l, SIZE * 8l, 3l, 1l, file, 0l);
            if (file >= 0) syscall(SYS_close, file);
            if (at != -1) table = (volatile unsigned long *)at;
        }
        if (!table || table[hash % SIZE] != hash) {
            line[0] = kind, line[1] = ' ', line[2 + n] = '\n';
            long file = syscall(SYS_openat, HERE, log_path, 02002101 /* O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC */, 0644);
            if (file >= 0) {
                long wrote = syscall(SYS_write, file, line, n + 3);
                syscall(SYS_close, file);
                if (table && wrote == (long)(n + 3)) table[hash % SIZE] = hash;
            }
        }
    }
    *error = before;
}

static int ends(const char *text, const char *with) {
    size_t n = length(text), more = length(with);
    return n >= more && begins(text + n - more, with);
}

#define MOST_BYTES (1l << 22) /* of a command, with the files of arguments that it is given */
#define FIELD 31

/* `text` as a field of the line that has `n` bytes; its new length. */
static size_t field(char *line, size_t n, const char *text) {
    for (; *text && n < MOST_BYTES - 2; text++) line[n++] = *text == '\n' || *text == FIELD ? ' ' : *text;
    line[n++] = FIELD;
    return n;
}

/* Log a command that compiles, assembles, or puts objects together, and that the process `parent` has started. */
static void commands(const char *program, char *const *words, char *const *variables, long parent) {
    const char *name = program;
    for (const char *one = program; *one; one++)
        if (*one == '/') name = one + 1;
    if (!words || !*words) return;
    if (!(begins(name, "clang") || begins(name, "cc1") || begins(name, "f951") || begins(name, "collect2") ||
          begins(name, "ld.") || begins(name, "llvm-ar") || ends(name, "ld") || ends(name, "as") || ends(name, "ar")))
        return;
    int *error = __errno_location(), before = *error;
    char *line = (char *)syscall(SYS_mmap, 0l, MOST_BYTES, 3l /* to read and write */, 0x22l /* of its own */, -1l, 0l);
    if (line == (char *)-1) return;
    char digits[24], *number = digits + 23;
    *number = 0;
    do *--number = (char)('0' + parent % 10); while ((parent /= 10) > 0);
    line[0] = '-', line[1] = FIELD;
    for (char *const *one = variables; one && *one; one++)
        if (begins(*one, MARK)) line[0] = 'w';
    size_t n = field(line, 2, number);
    long got = syscall(SYS_getcwd, line + n, LONGEST); /* counts the zero at the end */
    n = got > 0 ? n + (size_t)got - 1 : n;
    n = field(line, n, "");
    n = field(line, n, program);
    while (*++words) {
        long file = **words == '@' ? syscall(SYS_openat, HERE, *words + 1, 02000000, 0) : -1;
        if (file < 0) {
            n = field(line, n, *words);
            continue;
        }
        size_t start = n;
        line[n++] = '@';
        while (n < MOST_BYTES - 2 && (got = syscall(SYS_read, file, line + n, MOST_BYTES - 2 - n)) > 0) n += (size_t)got;
        for (size_t i = start; i < n; i++)
            if (line[i] == '\n' || line[i] == FIELD || !line[i]) line[i] = ' ';
        line[n++] = FIELD;
        syscall(SYS_close, file);
    }
    line[n++] = '\n';
    long file = n < MOST_BYTES - 2 ? syscall(SYS_openat, HERE, commands_path, 02002101, 0644) : -1;
    if (file >= 0) {
        syscall(SYS_write, file, line, n);
        syscall(SYS_close, file);
    }
    syscall(SYS_munmap, line, MOST_BYTES);
    *error = before;
}

/* Note that the file starts, what a script of it is run by, and whether it can be watched. */
static void starts(const char *path, char *const *variables, int depth) {
    unsigned char head[512];
    int *error = __errno_location(), before = *error, seen = 0, watched = 1;
    note('r', HERE, path);
    for (char *const *one = variables; one && *one; one++)
        if (begins(*one, "LD_PRELOAD=") && holds(*one, (const char *)own_path)) seen = 1;
    long file = syscall(SYS_openat, HERE, path, 02000000, 0);
    long got = file < 0 ? 0 : syscall(SYS_read, file, head, sizeof head - 1);
    if (file >= 0) syscall(SYS_close, file);
    if (got > 64 && head[0] == 0x7f && head[1] == 'E') {
        watched = 0;
        unsigned count = head[56] | head[57] << 8;
        for (unsigned i = 0; i < count && 64 + i * 56 + 4 <= (unsigned)got; i++)
            if (head[64 + i * 56] == 3 /* PT_INTERP */) watched = head[4] == 2;
    } else if (got > 2 && head[0] == '#' && head[1] == '!' && depth < 4) {
        head[got] = 0;
        char *program = (char *)head + 2;
        while (*program == ' ' || *program == '\t') program++;
        for (char *end = program;; end++)
            if (*end == 0 || *end == ' ' || *end == '\t' || *end == '\n') {
                *end = 0;
                break;
            }
        if (*program) starts(program, variables, depth + 1);
    }
    if (got && !(seen && watched)) note('u', HERE, path);
    *error = before;
}

/* The same for a name that is looked for on PATH. */
static void starts_named(const char *name, char *const *variables) {
    char path[LONGEST];
    const char *from = getenv("PATH");
    int *error = __errno_location(), before = *error;
    if (holds(name, "/")) {
        starts(name, variables, 0);
        return;
    }
    for (from = from ? from : "/bin:/usr/bin"; *from;) {
        size_t n = 0;
        while (*from && *from != ':' && n < LONGEST - 300) path[n++] = *from++;
        while (*from && *from != ':') from++;
        from += *from == ':';
        if (!n) path[n++] = '.';
        path[n++] = '/';
        for (size_t i = 0; i < 256 && (path[n + i] = name[i]); i++) path[n + i + 1] = 0;
        note('r', HERE, path);
        if (syscall(SYS_faccessat, HERE, path, 1 /* X_OK */) == 0) {
            starts(path, variables, 0);
            break;
        }
    }
    *error = before;
}

/* A function whose result has `type`, which notes `kind` of `path` in `folder` and goes on to the real one. */
#define SEE(type, name, declared, given, kind, folder, path)                                                           \
    type name declared {                                                                                               \
        static type(*real) declared;                                                                                   \
        note(kind, folder, path);                                                                                      \
        return NEXT(#name) given;                                                                                      \
    }
/* open and its kind: with the mode that may stand behind the flags */
#define SEE_OPEN(name, declared, given, folder, path)                                                                  \
    int name declared {                                                                                                \
        static int (*real)(const void *, ...);                                                                         \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        unsigned mode = flags & 020200100 ? va_arg(rest, unsigned) : 0; /* O_CREAT, O_TMPFILE */                       \
        va_end(rest);                                                                                                  \
        note('r', folder, path);                                                                                       \
        return ((int(*) given)NEXT(#name))
typedef const char *Path;
#define AT_OPEN (int, Path, int, unsigned)

#define OPEN(name) SEE_OPEN(name, (Path path, int flags, ...), (Path, int, ...), HERE, path)(path, flags, mode); }
#define OPENAT(name)                                                                                                   \
    SEE_OPEN(name, (int folder, Path path, int flags, ...), (int, Path, int, ...), folder, path)                       \
    (folder, path, flags, mode);                                                                                       \
    }
OPEN(open) OPEN(open64)
OPENAT(openat) OPENAT(openat64)
SEE(int, __open_2, (Path path, int flags), (path, flags), 'r', HERE, path)
SEE(int, __open64_2, (Path path, int flags), (path, flags), 'r', HERE, path)
SEE(int, __openat_2, (int at, Path path, int flags), (at, path, flags), 'r', at, path)
SEE(int, __openat64_2, (int at, Path path, int flags), (at, path, flags), 'r', at, path)
SEE(void *, fopen, (Path path, Path mode), (path, mode), 'r', HERE, path)
SEE(void *, fopen64, (Path path, Path mode), (path, mode), 'r', HERE, path)
SEE(void *, freopen, (Path path, Path mode, void *file), (path, mode, file), 'r', HERE, path)
SEE(void *, freopen64, (Path path, Path mode, void *file), (path, mode, file), 'r', HERE, path)

#define STAT(name) SEE(int, name, (Path path, void *into), (path, into), 'r', HERE, path)
#define XSTAT(name) SEE(int, name, (int version, Path path, void *into), (version, path, into), 'r', HERE, path)
STAT(stat) STAT(stat64) STAT(lstat) STAT(lstat64)
XSTAT(__xstat) XSTAT(__xstat64) XSTAT(__lxstat) XSTAT(__lxstat64)
SEE(int, fstatat, (int at, Path path, void *into, int flags), (at, path, into, flags), 'r', at, path)
SEE(int, fstatat64, (int at, Path path, void *into, int flags), (at, path, into, flags), 'r', at, path)
SEE(int, __fxstatat, (int v, int at, Path path, void *into, int flags), (v, at, path, into, flags), 'r', at, path)
SEE(int, __fxstatat64, (int v, int at, Path path, void *into, int flags), (v, at, path, into, flags), 'r', at, path)
SEE(int, statx, (int at, Path path, int flags, unsigned mask, void *into), (at, path, flags, mask, into), 'r', at, path)
SEE(int, access, (Path path, int mode), (path, mode), 'r', HERE, path)
SEE(int, eaccess, (Path path, int mode), (path, mode), 'r', HERE, path)
SEE(int, euidaccess, (Path path, int mode), (path, mode), 'r', HERE, path)
SEE(int, faccessat, (int at, Path path, int mode, int flags), (at, path, mode, flags), 'r', at, path)
SEE(long, readlink, (Path path, char *into, size_t size), (path, into, size), 'r', HERE, path)
SEE(long, __readlink_chk, (Path path, char *into, size_t size, size_t all), (path, into, size, all), 'r', HERE, path)
SEE(long, readlinkat, (int at, Path path, char *into, size_t size), (at, path, into, size), 'r', at, path)
SEE(char *, realpath, (Path path, char *into), (path, into), 'r', HERE, path)
SEE(char *, __realpath_chk, (Path path, char *into, size_t size), (path, into, size), 'r', HERE, path)
SEE(char *, canonicalize_file_name, (Path path), (path), 'r', HERE, path)
SEE(void *, opendir, (Path path), (path), 'l', HERE, path)
SEE(void *, fdopendir, (int at), (at), 'l', at, "")
SEE(int, scandir, (Path path, void *list, void *one, void *two), (path, list, one, two), 'l', HERE, path)
SEE(int, scandir64, (Path path, void *list, void *one, void *two), (path, list, one, two), 'l', HERE, path)

static void globs(Path pattern) {
    char folder[LONGEST];
    size_t end = 0, n = 0;
    for (; pattern && pattern[n] && n < LONGEST - 1 && !holds("*?[{~", (char[]){pattern[n], 0}); n++)
        if (pattern[n] == '/') end = n;
    for (n = 0; n < end; n++) folder[n] = pattern[n];
    folder[n] = 0;
    note('l', HERE, n ? folder : ".");
}
#define GLOB(name)                                                                                                     \
    int name(Path pattern, int flags, void *failed, void *into) {                                                      \
        static int (*real)(Path, int, void *, void *);                                                                 \
        globs(pattern);                                                                                                \
        return NEXT(#name)(pattern, flags, failed, into);                                                              \
    }
GLOB(glob) GLOB(glob64)

#define STARTS(name, declared, given, note)                                                                            \
    int name declared {                                                                                                \
        static int(*real) declared;                                                                                    \
        note;                                                                                                          \
        return NEXT(#name) given;                                                                                      \
    }
typedef char *const *Words;
#define PARENT syscall(SYS_getppid)
#define OWN syscall(SYS_getpid)
STARTS(execve, (Path path, Words words, Words variables), (path, words, variables), starts(path, variables, 0);
       commands(path, words, variables, PARENT))
STARTS(execv, (Path path, Words words), (path, words), starts(path, environ, 0); commands(path, words, environ, PARENT))
STARTS(execvp, (Path name, Words words), (name, words), starts_named(name, environ); commands(name, words, environ, PARENT))
STARTS(execvpe, (Path name, Words words, Words variables), (name, words, variables), starts_named(name, variables);
       commands(name, words, variables, PARENT))
STARTS(posix_spawn, (void *id, Path path, void *actions, void *settings, Words words, Words variables),
       (id, path, actions, settings, words, variables), starts(path, variables, 0); commands(path, words, variables, OWN))
STARTS(posix_spawnp, (void *id, Path name, void *actions, void *settings, Words words, Words variables),
       (id, name, actions, settings, words, variables), starts_named(name, variables);
       commands(name, words, variables, OWN))

#define MOST 1000 /* words of a command that execl has as arguments */
#define EXECL(name, call, after)                                                                                       \
    int name(Path path, Path first, ...) {                                                                             \
        char *words[MOST] = {(char *)first};                                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, first);                                                                                         \
        for (int i = 1; i < MOST && words[i - 1]; i++) words[i] = va_arg(rest, char *);                                \
        after;                                                                                                         \
        va_end(rest);                                                                                                  \
        return call;                                                                                                   \
    }
EXECL(execl, execv(path, words), (void)0)
EXECL(execlp, execvp(path, words), (void)0)
EXECL(execle, execve(path, words, variables), Words variables = va_arg(rest, Words))
