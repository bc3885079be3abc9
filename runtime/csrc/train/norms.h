// SPDX-License-Identifier: Apache-2.0
// The arguments of recurrent batch normalisation in a training call; its equations are in
// edgernn/cells/norm.py.

#pragma once

#include <cstdint>

extern "C" {

// The normalisation of one product, or of the cell state.
struct EdgernnTrainNorm {
  const float* gain;   // (rows,); null: no such product, or the state is not normalised
  const float* shift;  // (rows,); only for the cell state
  float* mean;         // (T, rows): the statistics of each step
  float* var;          // (T, rows), biased
  float* normalised;   // (T, B, rows), or (B, rows) if not kept: before the gain; only for products
  float* gain_grad;    // (rows,) each, written by backward; may be null
  float* shift_grad;
};

// All normalisations of a call.
struct EdgernnTrainNorms {
  std::int64_t learns;  // 1: compute the statistics from the batch; 0: read them
  std::int64_t
      output_gate;  // index of o in h = sigmoid(o) tanh(N(c)), if the state c is normalised
  float eps;        // added to variances
  EdgernnTrainNorm products[4];  // W x, R h, C c and V m
  EdgernnTrainNorm state;
};

}  // extern "C"
