/* SPDX-License-Identifier: Apache-2.0 */

#include "word_detector.h"

#include <math.h>
#include <string.h>

#include "packed_model.h"

const WordSettings default_settings = {0.3, 0.5, 0.8};

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
static int64_t Steps(double duration, double seconds) {
  const double steps = rint(duration / seconds);
  return steps < 1 ? 1 : (int64_t)steps;
}

WordDetector MakeDetector(const char* const* names, int64_t classes, double seconds,
                          WordSettings settings) {
  if (!(settings.threshold > 0 && settings.threshold <= 1)) {
    Fail("threshold: expected above 0 and at most 1, got %g", settings.threshold);
  }
  CheckSeconds("smoothing", settings.smoothing);
  CheckSeconds("refractory", settings.refractory);
  WordDetector detector;
  memset(&detector, 0, sizeof detector);
  detector.classes = classes;
  detector.threshold = settings.threshold;
  detector.width = Steps(settings.smoothing, seconds);
  detector.gap = Steps(settings.refractory, seconds);
  detector.is_word = Allocate((size_t)classes);
  int words = 0;
  for (int64_t k = 0; k < classes; ++k) {
    detector.is_word[k] = (char)IsWord(names[k]);
    words += detector.is_word[k];
  }
  if (words == 0) Fail("classes: expected at least one word to detect, got %s", names[0]);
  const size_t count = (size_t)(detector.width * classes);
  detector.last = Allocate(count * sizeof(double));
  for (size_t i = 0; i < count; ++i) detector.last[i] = 0;
  return detector;
}

static void Softmax(const float* scores, int64_t count, double* probabilities) {
  float largest = scores[0];
  double sum = 0;
  for (int64_t k = 1; k < count; ++k) largest = fmaxf(largest, scores[k]);
  for (int64_t k = 0; k < count; ++k) {
    sum += probabilities[k] = exp((double)scores[k] - (double)largest);
  }
  for (int64_t k = 0; k < count; ++k) probabilities[k] /= sum;
}

/* The mean probability of class k over the last steps. */
static double MeanProbability(const WordDetector* detector, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < detector->width; ++i) sum += detector->last[i * detector->classes + k];
  return sum / (double)detector->width;
}

int64_t DetectWord(WordDetector* detector, const float* scores, double* score) {
  const int64_t classes = detector->classes, width = detector->width, step = detector->step++;
  Softmax(scores, classes, detector->last + step % width * classes);
  if (step < detector->free) return -1;
  int64_t best = -1;
  double highest = -1;
  for (int64_t k = 0; k < classes; ++k) {
    if (!detector->is_word[k]) continue;
    const double mean = MeanProbability(detector, k);
    if (mean > highest) {
      best = k;
      highest = mean;
    }
  }
  *score = highest;
  if (highest < detector->threshold) return -1;
  detector->free = step + detector->gap;
  return best;
}
