// SPDX-License-Identifier: Apache-2.0
// Recurrent batch normalisation in a training call: edgernn/cells/norm.py has the equations.

#ifndef EDGERNN_TRAIN_NORMS_H_
#define EDGERNN_TRAIN_NORMS_H_

#include <cstdint>

extern "C" {

// Of one product, or of the cell state.
struct EdgernnTrainNorm {
  const float* gain;   // (rows,); null: there is no such product, or the state is not normalised
  const float* shift;  // (rows,), of the cell state alone
  float* mean;         // (T, rows): the statistics of each step
  float* var;          // (T, rows), biased
  float* normalised;   // (T, B, rows), or (B, rows) if not kept, before the gain; not of the state
  float* gain_grad;    // (rows,) each, made by backward; may be null
  float* shift_grad;
};

struct EdgernnTrainNorms {
  std::int64_t learns;       // whether the statistics are made, of the batch; else they are given
  std::int64_t output_gate;  // o of h = sigmoid(o) tanh(N(c)), where the state c is normalised
  float eps;                 // added to variances
  EdgernnTrainNorm products[4];  // of W x, R h, C c and V m
  EdgernnTrainNorm state;
};

}  // extern "C"

#endif  // EDGERNN_TRAIN_NORMS_H_
