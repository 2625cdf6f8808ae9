"""What functions of the C and C++ libraries do, as far as the check of CPU levels has to know it."""

from collections.abc import Mapping

# what gives memory, and whether it is filled with zeros
ALLOCATORS = {"malloc": False, "calloc": True, "_Znwm": False, "_Znam": False, "aligned_alloc": False}
FREED = frozenset({"free", "_ZdlPv", "_ZdlPvm", "_ZdaPv"})
ENVIRONMENT_READERS = frozenset({"getenv", "secure_getenv", "__secure_getenv"})
COPIES = frozenset({"memcpy", "memmove", "__memcpy_chk", "__memmove_chk"})
FILLS = frozenset({"memset", "__memset_chk"})
# they keep nothing but a mark that something was done, in an object of their own
HARMLESS = frozenset({"pthread_once", "__cxa_guard_acquire", "__cxa_guard_release", "call_once"})
HARMLESS |= (
    FREED
    | ALLOCATORS.keys()
    | {"pthread_mutex_lock", "pthread_mutex_unlock", "__cxa_guard_abort", "__cxa_atexit", "atexit"}
)
# what functions write to: the number of the argument that points there, and of the one that says how many bytes
WRITTEN: Mapping[str, tuple[int, int] | None] = {
    **dict.fromkeys((*COPIES, *FILLS, "mempcpy", "__mempcpy_chk", "strncpy", "__strncpy_chk"), (0, 2)),
    **dict.fromkeys(("snprintf", "vsnprintf", "__snprintf_chk", "__vsnprintf_chk", "bzero", "fgets"), (0, 1)),
    **dict.fromkeys(("read", "recv", "pread", "pread64"), (1, 2)),
    **dict.fromkeys(("memcmp", "bcmp", "strcmp", "strncmp", "strcasecmp", "strncasecmp", "strlen", "strnlen")),
    **dict.fromkeys(("printf", "__printf_chk", "fprintf", "__fprintf_chk", "vfprintf", "__vfprintf_chk", "puts")),
    **dict.fromkeys(("fputs", "fwrite", "write", "atoi", "atol", "strdup", *ENVIRONMENT_READERS)),
}
# and those that return where that is
RETURNED = COPIES | FILLS | {"strncpy", "__strncpy_chk", "fgets"}
# with how many registers functions are called; of others it may be with all
TAKEN: Mapping[str, int] = {
    **dict.fromkeys(("abort", "__errno_location", "getpid", "pthread_self", "sched_yield", "dlerror"), 0),
    **dict.fromkeys(
        (*ENVIRONMENT_READERS, *FREED, *ALLOCATORS, "strlen", "strdup", "atoi", "atol", "puts", "time", "close"), 1
    ),
    **dict.fromkeys(
        ("fclose", "fflush", "sysconf", "getauxval", "dlclose", "atexit", "exit", "pthread_getspecific"), 1
    ),
    **dict.fromkeys((f"pthread_mutex_{verb}" for verb in ("lock", "trylock", "unlock", "destroy")), 1),
    **dict.fromkeys((f"pthread_rwlock_{verb}" for verb in ("rdlock", "wrlock", "unlock", "destroy")), 1),
    **dict.fromkeys(("pthread_cond_signal", "pthread_cond_broadcast", "pthread_cond_destroy", "pthread_key_delete"), 1),
    **dict.fromkeys(("pthread_mutex_init", "pthread_rwlock_init", "pthread_cond_init", "pthread_cond_wait"), 2),
    **dict.fromkeys(("pthread_key_create", "pthread_setspecific", "pthread_once", "pthread_join"), 2),
    **dict.fromkeys(("calloc", "realloc", "aligned_alloc", "_ZdlPvm", "strcmp", "strchr", "strrchr", "strstr"), 2),
    **dict.fromkeys(("strcpy", "strcat", "fopen", "fputs", "dlopen", "dlsym", "munmap", "clock_gettime"), 2),
    **dict.fromkeys(("memcpy", "memmove", "memset", "memcmp", "strncmp", "strncpy", "read", "write", "lseek"), 3),
    **dict.fromkeys(("fread", "fwrite", "qsort", "pthread_create"), 4),
}
