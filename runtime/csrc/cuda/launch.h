// SPDX-License-Identifier: Apache-2.0
// What host code asks of a GPU: memory, packing and launches. tests/cpu_emulator.cc implements it
// on the CPU.
//
// Work is queued on the caller's stream; only Upload and Wait wait for it.

#ifndef EDGERNN_CUDA_LAUNCH_H_
#define EDGERNN_CUDA_LAUNCH_H_

#include <memory>
#include <stdexcept>

#include "cuda/make_launch_plan.h"

namespace edgernn::cuda {

// The GPU, or its driver, reported an error.
class GpuError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Why there is no GPU that these kernels run on, or null.
const char* Missing();

// Of the GPU in use.
Limits FindLimits();

// Memory of the GPU that lives until the work is done which is on the stream when it is let go of.
struct FreeMemory {
  void* stream;
  void operator()(float* memory) const;
};
using Memory = std::unique_ptr<float, FreeMemory>;
Memory Allocate(std::int64_t floats, void* stream);

// A copy on the GPU of numbers that lie there or on the host, which is waited for.
Memory Upload(const float* from, std::int64_t floats, void* stream);

// Waits for what is on a stream.
void Wait(void* stream);

// Copies the pieces into `floats` packed weights, the rest of which become 0.
void Pack(const std::vector<Piece>& pieces, std::int64_t floats, float* packed, void* stream);

// Runs a call, whose pointers are the GPU's, of the cell at this place of the list.
void Launch(std::size_t cell, const LaunchPlan& plan, const Call& call, const float* packed,
            void* stream);

}  // namespace edgernn::cuda

#endif  // EDGERNN_CUDA_LAUNCH_H_
