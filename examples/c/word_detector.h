/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of spoken words in the scores of a model at each step, with settings in seconds; the
 * rule is that of edgernn_detector.h. */

#ifndef EDGERNN_EXAMPLES_WORD_DETECTOR_H_
#define EDGERNN_EXAMPLES_WORD_DETECTOR_H_

#include <stdint.h>

#include "edgernn.h"
#include "edgernn_detector.h"

typedef struct WordDetector {
  EdgernnDetector steps; /* its settings in steps */
  EdgernnDetectorState state;
} WordDetector;

/* Makes a detector. names: The name of each class. seconds: The duration of a step. Settings that
 * are out of range, and a model without a word, end the program with an error. */
WordDetector MakeDetector(const char* const* names, int64_t classes, double seconds,
                          EdgernnDetection settings);

/* Reads the scores (classes,) of the next step. Returns the index of the word that is detected at
 * this step and sets *score to its average probability, or returns -1. */
int64_t DetectWord(WordDetector* detector, const float* scores, double* score);

#endif /* EDGERNN_EXAMPLES_WORD_DETECTOR_H_ */
