/* SPDX-License-Identifier: Apache-2.0 */

#define _POSIX_C_SOURCE 200809L /* for fstat, mmap and clock_gettime */

#include "packed_model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void Fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s: ", program_name);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  fflush(stdout);
  exit(1);
}

void* Allocate(size_t bytes) {
  void* memory = NULL;
  if (posix_memalign(&memory, EDGERNN_ALIGNMENT, bytes) != 0) Fail("out of memory");
  return memory;
}

void Check(EdgernnStatus status, const char* name) {
  if (status != EDGERNN_OK) Fail("%s: %s", name, edgernn_message());
}

/* Maps a file into memory. Without mmap, a program would read the file into a buffer. */
static const void* Map(const char* name, size_t* bytes) {
  struct stat info;
  const int file = open(name, O_RDONLY);
  if (file < 0) Fail("%s: %s", name, errno == ENOENT ? "no such file" : strerror(errno));
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) Fail("%s: not a file", name);
  *bytes = (size_t)info.st_size;
  if (*bytes == 0) Fail("%s: an empty file", name);
  const void* const data = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) Fail("%s: %s", name, strerror(errno));
  close(file);
  return data;
}

PackedModel OpenModel(const char* name) {
  PackedModel opened;
  memset(&opened, 0, sizeof opened);
  opened.name = name;
  const void* const data = Map(name, &opened.file_bytes);
  Check(edgernn_memory(data, opened.file_bytes, 1, &opened.memory_bytes), name);
  void* const memory = Allocate(opened.memory_bytes);
  Check(edgernn_open(data, opened.file_bytes, 1, memory, opened.memory_bytes, &opened.model), name);
  Check(edgernn_sizes(opened.model, &opened.sizes), name);
  return opened;
}

double Microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}
