// SPDX-License-Identifier: Apache-2.0
// A packed model that was opened: what edgernn.h's functions work on, laid out in the caller's
// memory.

#ifndef EDGERNN_MODEL_H_
#define EDGERNN_MODEL_H_

#include <cstddef>
#include <cstdint>

#include "edgernn.h"
#include "op.h"
#include "packed.h"

namespace edgernn {

// One layer of a model.
struct Layer {
  const Op* op;
  Sizes sizes;
  const void* packed;
  Call call;  // of one step, but for x
};

}  // namespace edgernn

struct EdgernnModel {
  EdgernnSizes sizes;
  std::int64_t width;  // of what the first layer reads
  const edgernn::KernelTable* table;
  edgernn::Values embedding;  // (V, I), in the file
  const float* mean;          // (I,), or null
  const float* std;           // likewise
  float* x;                   // (B, I): what the first layer reads
  edgernn::Layer* layers;
  std::int64_t layer_count;
  float* state;        // of all layers and states, (B, width) each
  const float* start;  // likewise, what a sequence starts from
  const void* head;    // or null
  void* scratch;
  std::int64_t* updates;        // (B,), or null
  std::int64_t* macs;           // likewise
  std::int64_t* layer_updates;  // (B,), of one layer
  std::int64_t* layer_macs;     // likewise
};

namespace edgernn {

// Lays the model of a file out in memory, at whose start the EdgernnModel then is, or without any
// only says how much it takes. Throws Failure or InvalidArgument for a bad file.
std::size_t LayOut(const PackedFile& file, std::int64_t batch, void* memory);

}  // namespace edgernn

#endif  // EDGERNN_MODEL_H_
