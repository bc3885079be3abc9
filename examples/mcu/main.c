/* SPDX-License-Identifier: Apache-2.0 */
/* A firmware that steps the model in models/adding-sarnn: the sum of the two marked values of a
 * sequence. Prints the neurons that each step updates, then the sum in thousandths and the
 * instructions of a step. */

#include "board.h"
#include "model.h"

#if MODEL_INPUT != 2
#error "expected a model with two inputs, value and marker; write read_sensor for this one"
#endif

enum { kSteps = 50, kFirstMarker = 7, kSecondMarker = 31 };

/* static memory: the model allocates none */
static ModelState model;

/* In place of a sensor: a value from 0 to 1, and 1 at the two markers. */
static void read_sensor(int t, float* x) {
  x[0] = (float)(t * 37 % 100) * 0.01f;
  x[1] = t == kFirstMarker || t == kSecondMarker ? 1.0f : 0.0f;
}

static void print_number(uint32_t number) {
  char text[12];
  int at = 11;
  text[at] = '\0';
  do {
    text[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  board_print(text + at);
}

int main(void) {
  float x[MODEL_INPUT], y[MODEL_OUTPUT] = {0};
  uint32_t count = 0;
  const uint32_t unit = board_unit();
  model_reset(&model);
  for (int t = 0; t < kSteps; ++t) {
    read_sensor(t, x);
    board_start_count();
    const ModelStatus status = model_step(&model, x, y);
    count += board_count();
    if (status != MODEL_OK) return 1;
    print_number((uint32_t)model_updates(&model));
    board_print(t + 1 < kSteps ? " " : " updates\n");
  }
  print_number((uint32_t)(y[0] * 1000.0f + 0.5f));
  board_print(" thousandths, ");
  print_number(count / kSteps * unit / 256);
  board_print(" instructions a step\n");
  return 0;
}
