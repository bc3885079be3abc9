// SPDX-License-Identifier: Apache-2.0
// An opened packed model, which the functions of edgernn.h step. It lies in the caller's memory.

#ifndef EDGERNN_PACKED_MODEL_H_
#define EDGERNN_PACKED_MODEL_H_

#include <cstddef>
#include <cstdint>

#include "common/op.h"
#include "edgernn.h"
#include "packed/file.h"

namespace edgernn {

// One layer of a model.
struct ModelLayer {
  OpKernel op;
  bool skips;
  LayerSizes sizes;
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
  edgernn::ModelLayer* layers;
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

// Builds the model of a file in `memory`, with the EdgernnModel at its start, and returns the bytes
// it takes; if `memory` is null only these. Throws Failure or InvalidArgument for a bad file.
std::size_t BuildModel(const PackedFile& file, std::int64_t batch, void* memory);

}  // namespace edgernn

#endif  // EDGERNN_PACKED_MODEL_H_
