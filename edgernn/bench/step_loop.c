/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over the steps of a packed model, and over calls of ONNX Runtime: a shared library that
 * step_loop.py loads. Both take a row of x (rows, inputs) for each step. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int (*Step)(void* model, const float* x, float* y);

/* Returns the last status that is not 0, or 0. */
int run_packed(Step step, void* model, const float* x, int64_t rows, int64_t inputs, float* y,
               int64_t steps) {
  int error = 0;
  for (int64_t t = 0; t < steps; ++t) {
    const int status = step(model, x + t % rows * inputs, y);
    if (status != 0) error = status;
  }
  return error;
}

/* OrtApi::Run */
typedef void* (*Run)(void* session, const void* options, const char* const* input_names,
                     const void* const* inputs, size_t input_count, const char* const* output_names,
                     size_t output_count, void** outputs);

/* A session with its inputs and outputs, of which the states have two copies. */
typedef struct Calls {
  Run run;
  void* session;
  const char* const* input_names;
  const char* const* output_names;
  const void* const* inputs[2];
  void** outputs[2];
  size_t input_count, output_count;
  float* x; /* (inputs,), from which the session reads */
} Calls;

/* Returns the status of the last call that failed, or null. */
void* run_onnx(const Calls* calls, const float* x, int64_t rows, int64_t inputs, int64_t steps) {
  void* error = NULL;
  for (int64_t t = 0; t < steps; ++t) {
    memcpy(calls->x, x + t % rows * inputs, (size_t)inputs * sizeof(float));
    void* const status = calls->run(calls->session, NULL, calls->input_names, calls->inputs[t % 2],
                                    calls->input_count, calls->output_names, calls->output_count,
                                    calls->outputs[t % 2]);
    if (status != NULL) error = status;
  }
  return error;
}
