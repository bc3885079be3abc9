/* SPDX-License-Identifier: Apache-2.0 */

#include "word_detector.h"

#include <math.h>
#include <string.h>

#include "packed_model.h"

/* Classes that are not detected: any other word, and silence or noise. */
static const char* const not_words[] = {"_unknown_", "_silence_"};

static int IsWord(const char* name) {
  for (size_t i = 0; i < sizeof not_words / sizeof *not_words; ++i) {
    if (strcmp(name, not_words[i]) == 0) return 0;
  }
  return 1;
}

static void CheckSeconds(const char* name, double seconds) {
  if (!(seconds >= 0 && seconds <= 60)) {
    Fail("%s: expected from 0 to 60 seconds, got %g", name, seconds);
  }
}

/* The number of steps of `duration` seconds, at least 1. Halves are rounded to even. */
static int32_t Steps(double duration, double seconds) {
  const double steps = rint(duration / seconds);
  return steps < 1 ? 1 : (int32_t)steps;
}

static double MeanProbability(uint64_t sum, int32_t width) {
  return (double)sum / ((double)EDGERNN_DETECTOR_ONE * width);
}

/* The least sum over `width` steps whose mean probability reaches the threshold. */
static uint64_t LeastSum(double threshold, int32_t width) {
  uint64_t sum = (uint64_t)(threshold * EDGERNN_DETECTOR_ONE * width);
  while (sum > 0 && MeanProbability(sum - 1, width) >= threshold) --sum;
  while (MeanProbability(sum, width) < threshold) ++sum;
  return sum;
}

WordDetector MakeDetector(const char* const* names, int64_t classes, double seconds,
                          EdgernnDetection settings) {
  if (!(settings.threshold > 0 && settings.threshold <= 1)) {
    Fail("threshold: expected above 0 and at most 1, got %g", settings.threshold);
  }
  CheckSeconds("smoothing", settings.smoothing);
  CheckSeconds("refractory", settings.refractory);
  uint8_t* const is_word = Allocate((size_t)classes);
  int words = 0;
  for (int64_t k = 0; k < classes; ++k) words += is_word[k] = (uint8_t)IsWord(names[k]);
  if (words == 0) Fail("classes: expected at least one word to detect, got %s", names[0]);
  const int32_t width = Steps(settings.smoothing, seconds);
  WordDetector detector;
  detector.steps = (EdgernnDetector){(int32_t)classes, width, Steps(settings.refractory, seconds),
                                     LeastSum(settings.threshold, width), is_word};
  detector.state.last = Allocate((size_t)(width * classes) * sizeof *detector.state.last);
  detector.state.sums = Allocate((size_t)classes * sizeof *detector.state.sums);
  edgernn_detector_reset(&detector.steps, &detector.state);
  return detector;
}

int64_t DetectWord(WordDetector* detector, const float* scores, double* score) {
  const int32_t word = edgernn_detect(&detector->steps, &detector->state, scores);
  if (word >= 0) *score = MeanProbability(detector->state.sums[word], detector->steps.width);
  return word;
}
