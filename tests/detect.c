/* SPDX-License-Identifier: Apache-2.0 */
/* Detects words in scores, with the detector of a firmware (model_detector.h) and with that of the
 * example app: standard input has doubles, the seconds of a step and the three settings, then the
 * scores of the steps. Prints the detections of each, twice with a reset between. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "model_detector.h"
#include "word_detector.h"

void Fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  exit(1);
}

void* Allocate(size_t bytes) { return malloc(bytes); }

int main(void) {
  double settings[4], number;
  float scores[4000][MODEL_CLASSES];
  int steps = 0, k = 0;
  if (fread(settings, sizeof settings, 1, stdin) != 1) return 1;
  while (fread(&number, sizeof number, 1, stdin) == 1) {
    scores[steps][k++] = (float)number;
    if (k == MODEL_CLASSES) k = 0, ++steps;
  }
  const EdgernnDetection named = {settings[1], settings[2], settings[3]};
  WordDetector app = MakeDetector(model_class_names, MODEL_CLASSES, settings[0], named);
  static ModelDetector firmware;
  for (int time = 0; time < 2; ++time) {
    model_detector_reset(&firmware);
    edgernn_detector_reset(&app.steps, &app.state);
    for (int t = 0; t < steps; ++t) {
      double score = 0;
      const int64_t word = DetectWord(&app, scores[t], &score);
      const int32_t same = model_detect(&firmware, scores[t]);
      if (word != same) Fail("step %d: the app detects %d, the firmware %d", t, (int)word, same);
      if (word >= 0) printf("%d %s %.17g\n", t, model_class_names[word], score);
    }
    printf("end\n");
  }
  free((void*)app.steps.is_word);
  free(app.state.last);
  free(app.state.sums);
  return 0;
}
