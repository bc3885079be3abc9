/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of spoken words in the scores of a model at each step, with the rule of
 * edgernn.runtime.word_detection, which defines it:
 *
 *   p_t = softmax(y_t)                   probabilities of the classes
 *   s_t = mean of p_t, p_{t-1}, ...      over `smoothing` seconds; before the first step, p is 0
 *
 * The word with the largest s_t is detected at step t if its s_t is at least `threshold` and no
 * word was detected in the `refractory` seconds before.
 */

#ifndef EDGERNN_EXAMPLES_WORD_DETECTOR_H_
#define EDGERNN_EXAMPLES_WORD_DETECTOR_H_

#include <stdint.h>

typedef struct WordSettings {
  double smoothing;  /* seconds over which probabilities are averaged */
  double threshold;  /* least average probability of a detected word */
  double refractory; /* seconds after a detection in which no other word is detected */
} WordSettings;

typedef struct WordDetector {
  int64_t classes;
  char* is_word; /* (classes,): 1 for a word, 0 for a class that is not detected, such as silence */
  double threshold;
  int64_t width; /* number of steps in an average */
  int64_t gap;   /* least number of steps from one detection to the next */
  int64_t step;  /* number of steps so far */
  int64_t free;  /* first step at which a word may be detected */
  double* last;  /* (width, classes): probabilities of the last steps */
} WordDetector;

/* The settings that `edgernn run --stream` has without options. */
extern const WordSettings default_settings;

/* Makes a detector. names: The name of each class. seconds: The duration of a step. Settings that
 * are out of range, and a model without a word, end the program with an error. */
WordDetector MakeDetector(const char* const* names, int64_t classes, double seconds,
                          WordSettings settings);

/* Reads the scores (classes,) of the next step. Returns the index of the word that is detected at
 * this step and sets *score to its average probability, or returns -1. */
int64_t DetectWord(WordDetector* detector, const float* scores, double* score);

#endif /* EDGERNN_EXAMPLES_WORD_DETECTOR_H_ */
