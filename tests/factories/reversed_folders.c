/* Folders are read from their end: a file system that keeps the same names in another order.

   A folder is read whole at its first entry; who goes back in it, or remembers a place in it, reads it anew. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

struct listing {
    DIR *stream;
    struct dirent64 **entries;
    size_t left, count;
    struct listing *next;
};

static struct listing *listings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What is known of the folder is forgotten. */
static void forget(DIR *stream) {
    pthread_mutex_lock(&lock);
    for (struct listing **place = &listings; *place; place = &(*place)->next) {
        struct listing *found = *place;
        if (found->stream != stream) continue;
        *place = found->next;
        while (found->count) free(found->entries[--found->count]);
        free(found->entries);
        free(found);
        break;
    }
    pthread_mutex_unlock(&lock);
}

static struct listing *listed(DIR *stream) {
    struct listing *found = listings;
    while (found && found->stream != stream) found = found->next;
    if (found) return found;
    found = calloc(1, sizeof *found);
    found->stream = stream;
    for (struct dirent64 *entry; (entry = REAL(readdir64)(stream)); found->count++) {
        found->entries = realloc(found->entries, (found->count + 1) * sizeof entry);
        found->entries[found->count] = memcpy(malloc(entry->d_reclen), entry, entry->d_reclen);
    }
    found->left = found->count;
    found->next = listings;
    return listings = found;
}

struct dirent64 *readdir64(DIR *stream) {
    pthread_mutex_lock(&lock);
    struct listing *found = listed(stream);
    struct dirent64 *entry = found->left ? found->entries[--found->left] : NULL;
    pthread_mutex_unlock(&lock);
    return entry;
}

/* on machines of 64 bits, which alone are tested, both are one */
struct dirent *readdir(DIR *stream) { return (struct dirent *)readdir64(stream); }

int closedir(DIR *stream) {
    forget(stream);
    return REAL(closedir)(stream);
}

void rewinddir(DIR *stream) {
    forget(stream);
    REAL(rewinddir)(stream);
}
