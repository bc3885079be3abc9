/* SPDX-License-Identifier: Apache-2.0 */
/* Steps a model over the inputs in inputs.h, and prints the bits of y and the updated neurons of
 * each step, the instructions of all steps, and the bytes of stack that a step takes. */

#include "board.h"
#include "inputs.h"
#include "model.h"

#define PAINT 0x5a5a5a5au
#define STACK_WORDS 4096

static ModelState model;

/* Fills the stack below this function, or counts the words that were used since. */
static __attribute__((noinline)) uint32_t stack(int fill) {
  volatile uint32_t words[STACK_WORDS];
  uint32_t untouched = 0;
  if (fill) {
    for (int i = 0; i < STACK_WORDS; ++i) words[i] = PAINT;
  } else {
    while (untouched < STACK_WORDS && words[untouched] == PAINT) ++untouched;
  }
  return STACK_WORDS - untouched;
}

int main(void) {
  float y[MODEL_OUTPUT];
  uint32_t units = 0;
  const uint32_t unit = board_unit();
  stack(1);
  model_reset(&model);
  for (int t = 0; t < STEPS; ++t) {
    board_start_count();
    const ModelStatus status = model_step(&model, INPUT_OF(t), y);
    units += board_count();
    if (status != MODEL_OK) return 2;
    for (int i = 0; i < MODEL_OUTPUT; ++i) {
      union {
        float number;
        uint32_t bits;
      } both;
      both.number = y[i];
      board_print_hex(both.bits);
    }
    board_print_hex((uint32_t)model_updates(&model));
    board_print("\n");
  }
  board_print_hex(units);
  board_print_hex(unit);
  board_print_hex(4 * stack(0));
  board_print("\n");
  return 0;
}
