/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of spoken words in the scores of a model at each step:
 *
 *   p_t = round(65536 softmax(y_t))            probabilities of the classes; NaN counts as 0
 *   s_t = p_t + p_{t-1} + ... + p_{t-w+1}      before the first step, p is 0
 *
 * The word with the largest s_t, the first one of several, is detected at step t if its mean
 * probability s_t / (65536 w) is at least the threshold, and no word was detected in the
 * `gap` - 1 steps before. Sums of integers are exact, so the words are those of Python and
 * JavaScript. */

#ifndef EDGERNN_DETECTOR_H_
#define EDGERNN_DETECTOR_H_

#include <stdint.h>

#include "edgernn_math.h"

#define EDGERNN_DETECTOR_ONE 65536 /* the integer that stands for the probability 1 */

typedef struct EdgernnDetector {
  int32_t classes;
  int32_t width;          /* w: steps in an average */
  int32_t gap;            /* least number of steps from one detection to the next */
  uint64_t least;         /* least s_t of a detected word */
  const uint8_t* is_word; /* (classes,): 0 for a class that is not detected, such as silence */
} EdgernnDetector;

typedef struct EdgernnDetectorState {
  uint32_t* last; /* (width, classes): p of the last steps */
  uint64_t* sums; /* (classes,): s_t */
  int32_t row;    /* row of `last` for the next step */
  int32_t wait;   /* number of steps until a word may be detected again */
} EdgernnDetectorState;

/* Starts a new stream. */
static inline void edgernn_detector_reset(const EdgernnDetector* detector,
                                          EdgernnDetectorState* state) {
  for (int32_t i = 0; i < detector->width * detector->classes; ++i) state->last[i] = 0;
  for (int32_t k = 0; k < detector->classes; ++k) state->sums[k] = 0;
  state->row = state->wait = 0;
}

/* Reads the scores (classes,) of the next step. Returns the index of the word that is detected at
 * this step, or -1; state->sums has its s_t. */
static inline int32_t edgernn_detect(const EdgernnDetector* detector, EdgernnDetectorState* state,
                                     const float* scores) {
  const int32_t classes = detector->classes;
  uint32_t* const last = state->last + state->row * classes;
  float largest = scores[0], total = 0.0f;
  int32_t best = -1;
  for (int32_t k = 1; k < classes; ++k) largest = edgernn_max(largest, scores[k]);
  for (int32_t k = 0; k < classes; ++k) total += edgernn_exp(scores[k] - largest);
  for (int32_t k = 0; k < classes; ++k) {
    const float p = edgernn_exp(scores[k] - largest) / total;
    /* false for NaN */
    const uint32_t rounded = p > 0.0f ? (uint32_t)(p * EDGERNN_DETECTOR_ONE + 0.5f) : 0;
    state->sums[k] = state->sums[k] - last[k] + rounded;
    last[k] = rounded;
    if (detector->is_word[k] && (best < 0 || state->sums[k] > state->sums[best])) best = k;
  }
  state->row = state->row + 1 < detector->width ? state->row + 1 : 0;
  if (state->wait > 0) {
    --state->wait;
    return -1;
  }
  if (best < 0 || state->sums[best] < detector->least) return -1;
  state->wait = detector->gap - 1;
  return best;
}

#endif /* EDGERNN_DETECTOR_H_ */
