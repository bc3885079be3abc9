/* SPDX-License-Identifier: Apache-2.0 */
/* bounded_step LIBRARY MODEL B: counts the allocations and releases of memory, locks and system
 * calls of each activity, such as a step, and prints a line with its name and these four counts.
 *
 * The program defines the functions of the C library that allocate and lock, so the library calls
 * these. A seccomp filter makes each system call a signal, whose handler counts it. Both hold in a
 * child process, which can do nothing else afterwards. Used by tests/test_bounded_step.py. */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "edgernn.h"

enum { kMaxBytes = 1 << 24, kSteps = 200, kActivities = 8 };

typedef struct Counts {
  const char* name;
  volatile long memory, locks, calls;
} Counts;

static Counts* current; /* counts of the activity that runs, or null */

static void CountAllocation(void) {
  if (current != NULL) ++current->memory;
}

static void CountRelease(void) { CountAllocation(); }

static void CountLock(void) {
  if (current != NULL) ++current->locks;
}

static void CountCall(int number) {
  (void)number;
  if (current != NULL) ++current->calls;
}

#include "counted_functions.h"

static void Fail(const char* what) {
  fprintf(stderr, "bounded_step: %s\n", what);
  exit(2);
}

/* The functions of the library. */
typedef struct Library {
  const char* (*message)(void);
  EdgernnStatus (*memory)(const void*, size_t, int64_t, size_t*);
  EdgernnStatus (*open)(const void*, size_t, int64_t, void*, size_t, EdgernnModel**);
  EdgernnStatus (*sizes)(const EdgernnModel*, EdgernnSizes*);
  EdgernnStatus (*step)(EdgernnModel*, const float*, float*);
  EdgernnStatus (*step_words)(EdgernnModel*, const int64_t*, float*);
  EdgernnStatus (*on_nonfinite)(EdgernnModel*, EdgernnNonfinite);
  EdgernnStatus (*reset)(EdgernnModel*);
  EdgernnStatus (*reset_row)(EdgernnModel*, int64_t);
  EdgernnStatus (*state_bytes)(const EdgernnModel*, size_t*);
  EdgernnStatus (*save_state)(const EdgernnModel*, void*, size_t);
  EdgernnStatus (*restore_state)(EdgernnModel*, const void*, size_t);
} Library;

static void Find(void* handle, const char* name, void* function) {
  *(void**)function = dlsym(handle, name);
  if (*(void**)function == NULL) Fail(name);
}

/* Loads the library as Python does. */
static Library Load(const char* path) {
  Library library;
  void* const handle = dlopen(path, RTLD_NOW);
  if (handle == NULL) Fail(dlerror());
  Find(handle, "edgernn_message", &library.message);
  Find(handle, "edgernn_memory", &library.memory);
  Find(handle, "edgernn_open", &library.open);
  Find(handle, "edgernn_sizes", &library.sizes);
  Find(handle, "edgernn_step", &library.step);
  Find(handle, "edgernn_step_words", &library.step_words);
  Find(handle, "edgernn_on_nonfinite", &library.on_nonfinite);
  Find(handle, "edgernn_reset", &library.reset);
  Find(handle, "edgernn_reset_row", &library.reset_row);
  Find(handle, "edgernn_state_bytes", &library.state_bytes);
  Find(handle, "edgernn_save_state", &library.save_state);
  Find(handle, "edgernn_restore_state", &library.restore_state);
  return library;
}

static void* Aligned(size_t bytes) {
  return __libc_memalign(EDGERNN_ALIGNMENT, bytes + EDGERNN_ALIGNMENT);
}

/* A loaded library, an open model and its buffers. */
typedef struct Case {
  Library library;
  EdgernnModel* model;
  EdgernnSizes sizes;
  float *x, *bad, *y;
  int64_t* words;
  void* saved;
  size_t saved_bytes;
} Case;

static int failed; /* calls with an unexpected status */

static void Expect(int holds) { failed += !holds; }

static void Step(Case* test, const float* x, EdgernnStatus expected) {
  const EdgernnStatus status = test->sizes.vocabulary > 0
                                   ? test->library.step_words(test->model, test->words, test->y)
                                   : test->library.step(test->model, x, test->y);
  Expect(status == expected);
}

/* Steps on numbers that change from step to step. */
static void Steps(Case* test) {
  const int64_t count = test->sizes.batch * test->sizes.input;
  for (int t = 0; t < kSteps; ++t) {
    for (int64_t i = 0; i < count; ++i) test->x[i] = (float)((t * 7 + i * 5) % 11) * 0.3f - 1.5f;
    Step(test, test->x, EDGERNN_OK);
  }
}

/* Does each counted activity once, to show that the counters work. */
static void Control(Case* test) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  /* volatile, or a compiler would leave out both calls */
  void* volatile memory = malloc(test->saved_bytes);
  free(memory);
  pthread_mutex_lock(&mutex);
  pthread_mutex_unlock(&mutex);
  syscall(SYS_getppid);
}

static void RunHeld(Case* test) {
  for (int action = EDGERNN_NONFINITE_HOLD; action <= EDGERNN_NONFINITE_RESET; ++action) {
    Expect(test->library.on_nonfinite(test->model, (EdgernnNonfinite)action) == EDGERNN_OK);
    Step(test, test->bad, EDGERNN_OK);
    Steps(test);
  }
  Expect(test->library.on_nonfinite(test->model, EDGERNN_NONFINITE_ERROR) == EDGERNN_OK);
}

static void RunRefused(Case* test) {
  Step(test, test->bad, test->sizes.vocabulary > 0 ? EDGERNN_OK : EDGERNN_BAD_INPUT);
}

static void RunResets(Case* test) {
  Expect(test->library.reset_row(test->model, 0) == EDGERNN_OK);
  Steps(test);
  Expect(test->library.reset(test->model) == EDGERNN_OK);
}

static void RunSaved(Case* test) {
  Expect(test->library.save_state(test->model, test->saved, test->saved_bytes) == EDGERNN_OK);
  Steps(test);
  Expect(test->library.restore_state(test->model, test->saved, test->saved_bytes) == EDGERNN_OK);
}

/* Makes every system call but the end of a signal handler and of the process a signal. */
static void CountSystemCalls(void) {
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog filter = {sizeof program / sizeof *program, program};
  if (signal(SIGSYS, CountCall) == SIG_ERR) Fail("signal");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) Fail("PR_SET_NO_NEW_PRIVS");
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) Fail("PR_SET_SECCOMP");
}

static void Count(Counts* counts, const char* name, void (*run)(Case*), Case* test) {
  counts->name = name;
  current = counts;
  run(test);
  current = NULL;
}

static Case Open(const char* path, const char* name, int64_t batch, Counts* counts) {
  Case test;
  memset(&test, 0, sizeof test);
  test.library = Load(path);
  FILE* const file = fopen(name, "rb");
  if (file == NULL) Fail(name);
  void* const data = Aligned(kMaxBytes);
  const size_t bytes = fread(data, 1, kMaxBytes, file);
  fclose(file);
  size_t need = 0;
  counts->name = "open";
  current = counts;
  EdgernnStatus status = test.library.memory(data, bytes, batch, &need);
  void* const memory = Aligned(need);
  if (status == EDGERNN_OK) {
    status = test.library.open(data, bytes, batch, memory, need, &test.model);
  }
  current = NULL;
  if (status != EDGERNN_OK) Fail(test.library.message());
  test.library.sizes(test.model, &test.sizes);
  const size_t inputs = (size_t)(batch * test.sizes.input);
  test.x = Aligned(inputs * sizeof(float));
  test.bad = Aligned(inputs * sizeof(float));
  for (size_t i = 0; i < inputs; ++i) test.bad[i] = i == inputs - 1 ? NAN : 0.5f;
  test.y = Aligned((size_t)(batch * test.sizes.output) * sizeof(float));
  test.words = Aligned((size_t)batch * sizeof(int64_t));
  memset(test.words, 0, (size_t)batch * sizeof(int64_t));
  test.library.state_bytes(test.model, &test.saved_bytes);
  test.saved = Aligned(test.saved_bytes);
  return test;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  Counts* const all = mmap(NULL, kActivities * sizeof(Counts), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) Fail("mmap");
  const pid_t child = fork();
  if (child < 0) Fail("fork");
  if (child == 0) {
    Case test = Open(argv[1], argv[2], atoll(argv[3]), &all[0]);
    // room on the heap: the allocations of the control need no system call for more
    void* volatile room = malloc(1 << 16);
    free(room);
    CountSystemCalls();
    Count(&all[1], "control", Control, &test);
    Count(&all[2], "step", Steps, &test);
    Count(&all[3], "held", RunHeld, &test);
    Count(&all[4], "reset", RunResets, &test);
    Count(&all[5], "saved", RunSaved, &test);
    Count(&all[6], "refused", RunRefused, &test);
    Count(&all[7], "refused again", RunRefused, &test);
    syscall(SYS_exit_group, failed == 0 ? 0 : 3);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) Fail("the child did not end");
  if (WEXITSTATUS(status) != 0) Fail("a function of the library failed");
  for (int i = 0; i < kActivities; ++i) {
    printf("%s: %ld %ld %ld\n", all[i].name, all[i].memory, all[i].locks, all[i].calls);
  }
  return 0;
}
