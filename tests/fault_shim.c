/* SPDX-License-Identifier: Apache-2.0 */
/* Makes calls that change files fail, for tests/checks/faults.py: LD_PRELOAD=fault_shim.so.
 *
 * Calls on files below one folder are counted. From the call with a given number on, they fail with
 * an errno, or the process is killed. fault_arm sets this up in a running process; the environment
 * variables of the same names do so in the processes that it starts. */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum Kind { kOpen = 1, kWrite = 2, kSync = 4, kRename = 8, kOther = 16, kEnd = 32 };

static char folder[4096];        /* calls on files below it count; empty: none */
static int kinds;                /* kinds of calls that may fail, a sum of Kind */
static int result;               /* errno of a failing call; 0: the process is killed */
static int lasting;              /* every later call of these kinds fails, too */
static long first;               /* number of the first call that fails; 0: none */
static atomic_long calls;        /* calls of these kinds */
static atomic_long counts[kEnd]; /* calls by kind */

void fault_arm(const char* below, int which, int error, int last, long from) {
  snprintf(folder, sizeof folder, "%s", below);
  kinds = which;
  result = error;
  lasting = last;
  first = from;
  atomic_store(&calls, 0);
  for (int kind = 0; kind < kEnd; ++kind) atomic_store(&counts[kind], 0);
}

/* Number of calls of these kinds since the last fault_arm. */
long fault_calls(int which) {
  long sum = 0;
  for (int kind = 1; kind < kEnd; kind *= 2) sum += (which & kind) ? atomic_load(&counts[kind]) : 0;
  return sum;
}

static long Number(const char* name) {
  const char* const text = getenv(name);
  return text == NULL ? 0 : atol(text);
}

__attribute__((constructor)) static void ArmFromEnvironment(void) {
  const char* const below = getenv("FAULT_FOLDER");
  if (below == NULL) return;
  fault_arm(below, (int)Number("FAULT_KINDS"), (int)Number("FAULT_ERROR"),
            (int)Number("FAULT_LASTS"), Number("FAULT_FIRST"));
}

/* Counts a call on a path. Returns 1, with errno set, if it is to fail. */
static int Fails(enum Kind kind, const char* path) {
  if (folder[0] == '\0' || path == NULL) return 0;
  if (strncmp(path, folder, strlen(folder)) != 0) return 0;
  atomic_fetch_add(&counts[kind], 1);
  if ((kinds & (int)kind) == 0) return 0;
  const long number = atomic_fetch_add(&calls, 1) + 1;
  if (first == 0 || (lasting ? number < first : number != first)) return 0;
  if (result == 0) kill(getpid(), SIGKILL);
  errno = result;
  return 1;
}

static int FailsOn(enum Kind kind, int file) {
  char link[64], path[4096];
  if (folder[0] == '\0') return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return Fails(kind, path);
}

#define NEXT(name)                 \
  static __typeof__(&(name)) next; \
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, #name)

static mode_t Mode(int flags, va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

#define IS_WRITING(flags) (((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0)

#define DEFINE_OPEN(name)                                   \
  int name(const char* path, int flags, ...) {              \
    NEXT(name);                                             \
    va_list more;                                           \
    va_start(more, flags);                                  \
    const mode_t mode = Mode(flags, more);                  \
    va_end(more);                                           \
    if (IS_WRITING(flags) && Fails(kOpen, path)) return -1; \
    return next(path, flags, mode);                         \
  }

#define DEFINE_OPENAT(name)                                 \
  int name(int at, const char* path, int flags, ...) {      \
    NEXT(name);                                             \
    va_list more;                                           \
    va_start(more, flags);                                  \
    const mode_t mode = Mode(flags, more);                  \
    va_end(more);                                           \
    if (IS_WRITING(flags) && Fails(kOpen, path)) return -1; \
    return next(at, path, flags, mode);                     \
  }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

/* A failing write writes a part first, as on a full disk. */
ssize_t write(int file, const void* data, size_t bytes) {
  NEXT(write);
  if (!FailsOn(kWrite, file)) return next(file, data, bytes);
  const int error = errno;
  if (lasting && bytes > 1) next(file, data, bytes / 2);
  errno = error;
  return -1;
}

int fsync(int file) {
  NEXT(fsync);
  return FailsOn(kSync, file) ? -1 : next(file);
}

int rename(const char* from, const char* to) {
  NEXT(rename);
  return Fails(kRename, to) ? -1 : next(from, to);
}

int unlink(const char* path) {
  NEXT(unlink);
  return Fails(kOther, path) ? -1 : next(path);
}

int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  return Fails(kOther, path) ? -1 : next(path, mode);
}

int chmod(const char* path, mode_t mode) {
  NEXT(chmod);
  return Fails(kOther, path) ? -1 : next(path, mode);
}
