/* SPDX-License-Identifier: Apache-2.0 */
/* time_steps MODEL PASSES < x: prints the mean microseconds of CPU time of a step, over PASSES
 * passes through x, raw floats (T, I), after PASSES / 10 passes of warm-up. Used by
 * benchmarks/wheels.py. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif

#include "edgernn.h"

enum { kMaxBytes = 1 << 24 };

/* Allocates aligned memory, which is never freed. */
static void* Aligned(size_t bytes) {
  char* const memory = malloc(bytes + EDGERNN_ALIGNMENT);
  if (memory == NULL) exit(2);
  return memory + (EDGERNN_ALIGNMENT - (uintptr_t)memory % EDGERNN_ALIGNMENT);
}

static void Check(EdgernnStatus status) {
  if (status == EDGERNN_OK) return;
  fprintf(stderr, "time_steps: %s\n", edgernn_message());
  exit(1);
}

int main(int argc, char** argv) {
  FILE* const file = argc == 3 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL) return 2;
#if defined(_WIN32)
  _setmode(0, _O_BINARY);
#endif
  void* const data = Aligned(kMaxBytes);
  const size_t bytes = fread(data, 1, kMaxBytes, file);
  size_t need = 0;
  Check(edgernn_memory(data, bytes, 1, &need));
  EdgernnModel* model = NULL;
  Check(edgernn_open(data, bytes, 1, Aligned(need), need, &model));
  EdgernnSizes sizes;
  Check(edgernn_sizes(model, &sizes));
  const size_t inputs = (size_t)sizes.input;
  float* const x = Aligned(kMaxBytes);
  float* const y = Aligned((size_t)sizes.output * sizeof(float));
  const size_t steps = fread(x, sizeof(float), kMaxBytes / sizeof(float), stdin) / inputs;
  const long passes = atol(argv[2]);
  clock_t start = clock();
  for (long pass = -passes / 10; pass < passes; ++pass) {
    if (pass == 0) start = clock();
    Check(edgernn_reset(model));
    for (size_t t = 0; t < steps; ++t) Check(edgernn_step(model, x + t * inputs, y));
  }
  const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  printf("%.6f\n", 1e6 * seconds / ((double)passes * (double)steps));
  return 0;
}
