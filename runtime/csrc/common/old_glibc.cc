// SPDX-License-Identifier: Apache-2.0
// Lets a shared library that is linked on a new system load with glibc 2.28: defines what the
// static C++ library takes from newer ones. CMakeLists.txt passes --wrap for the functions.

#include <dlfcn.h>
#include <pthread.h>

#if defined(__x86_64__)
#define EDGERNN_FIRST_GLIBC "GLIBC_2.2.5"
#else
#define EDGERNN_FIRST_GLIBC "GLIBC_2.17"
#endif

// Defines __wrap_NAME, which calls NAME of the first glibc in place of NAME of glibc 2.34.
#define EDGERNN_WRAP(type, name, parameters, arguments)             \
  asm(".symver edgernn_" #name ", " #name "@" EDGERNN_FIRST_GLIBC); \
  type edgernn_##name parameters;                                   \
  type __wrap_##name parameters { return edgernn_##name arguments; }

extern "C" {

EDGERNN_WRAP(void*, dlsym, (void* library, const char* name), (library, name))
EDGERNN_WRAP(int, pthread_join, (pthread_t thread, void** result), (thread, result))
EDGERNN_WRAP(int, pthread_create,
             (pthread_t * thread, const pthread_attr_t* settings, void* (*run)(void*), void* data),
             (thread, settings, run, data))

// glibc 2.32 has this variable; false makes shared_ptr count by atomic instructions, which is
// always right
[[gnu::visibility("hidden")]] char __libc_single_threaded = 0;

}  // extern "C"
