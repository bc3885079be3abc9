/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates each function of edgernn_math.h on the floats in stdin, and writes the results to
 * stdout, one function after the other, in the order of FUNCTIONS in tests/checks/firmware.py. */

#include <stdio.h>

#include "edgernn_math.h"

#define MOST 100000

static float numbers[MOST], results[MOST];

int main(void) {
  float (*const functions[])(float) = {edgernn_sigmoid, edgernn_tanh, edgernn_exp,
                                       edgernn_log,     edgernn_sqrt, edgernn_sin,
                                       edgernn_cos,     edgernn_abs,  edgernn_sign};
  const size_t count = fread(numbers, sizeof *numbers, MOST, stdin);
  for (size_t f = 0; f < sizeof functions / sizeof *functions; ++f) {
    for (size_t i = 0; i < count; ++i) results[i] = functions[f](numbers[i]);
    fwrite(results, sizeof *results, count, stdout);
  }
  return 0;
}
