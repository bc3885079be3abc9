/* SPDX-License-Identifier: Apache-2.0 */
/* side_by_side MODEL B < x > y: steps a packed model on a batch of B sequences. x and y are raw
 * floats, (T, B, I) and (T, B, O). Used by tests/checks/arm.py. */

#include <stdio.h>
#include <stdlib.h>

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
  fprintf(stderr, "side_by_side: %s\n", edgernn_message());
  exit(1);
}

int main(int argc, char** argv) {
#if defined(_WIN32)
  _setmode(0, _O_BINARY);
  _setmode(1, _O_BINARY);
#endif
  FILE* const file = argc == 3 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL) return 2;
  const int64_t batch = atoll(argv[2]);
  void* const data = Aligned(kMaxBytes);
  const size_t bytes = fread(data, 1, kMaxBytes, file);
  size_t need = 0;
  Check(edgernn_memory(data, bytes, batch, &need));
  EdgernnModel* model = NULL;
  Check(edgernn_open(data, bytes, batch, Aligned(need), need, &model));
  EdgernnSizes sizes;
  Check(edgernn_sizes(model, &sizes));
  const size_t inputs = (size_t)(batch * sizes.input), outputs = (size_t)(batch * sizes.output);
  float* const x = Aligned(inputs * sizeof(float));
  float* const y = Aligned(outputs * sizeof(float));
  while (fread(x, sizeof(float), inputs, stdin) == inputs) {
    Check(edgernn_step(model, x, y));
    if (fwrite(y, sizeof(float), outputs, stdout) != outputs) return 2;
  }
  return 0;
}
