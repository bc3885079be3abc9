/* SPDX-License-Identifier: Apache-2.0 */
/* Defines the functions of the C library that allocate, release and lock. Each calls
 * CountAllocation, CountRelease or CountLock, which the program defines, and then the C library. */

#ifndef EDGERNN_TESTS_COUNTED_FUNCTIONS_H_
#define EDGERNN_TESTS_COUNTED_FUNCTIONS_H_

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

static void CountAllocation(void);
static void CountRelease(void);
static void CountLock(void);

/* the functions of glibc behind those that this program replaces */
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) {
  CountAllocation();
  return __libc_malloc(bytes);
}

void* calloc(size_t count, size_t bytes) {
  CountAllocation();
  return __libc_calloc(count, bytes);
}

void* realloc(void* memory, size_t bytes) {
  CountAllocation();
  return __libc_realloc(memory, bytes);
}

void* memalign(size_t alignment, size_t bytes) {
  CountAllocation();
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) {
  CountAllocation();
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  CountAllocation();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == NULL;
}

void free(void* memory) {
  CountRelease();
  __libc_free(memory);
}

/* Defines a replacement that counts a lock and calls the next definition. */
#define EDGERNN_COUNT_LOCK(name, type)                          \
  int name(type* object) {                                      \
    static int (*next)(type*);                                  \
    if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, #name); \
    CountLock();                                                \
    return next(object);                                        \
  }

EDGERNN_COUNT_LOCK(pthread_mutex_lock, pthread_mutex_t)
EDGERNN_COUNT_LOCK(pthread_mutex_trylock, pthread_mutex_t)
EDGERNN_COUNT_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
EDGERNN_COUNT_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
EDGERNN_COUNT_LOCK(pthread_spin_lock, pthread_spinlock_t)

#endif /* EDGERNN_TESTS_COUNTED_FUNCTIONS_H_ */
