// SPDX-License-Identifier: Apache-2.0
// The host's interface to the GPU: memory, packing and launches. tests/csrc/cpu_emulator.cc
// implements it on the CPU.
//
// All work is queued on the caller's stream; only Upload and Wait block until it is done.

#pragma once

#include <memory>
#include <stdexcept>

#include "cuda/make_launch_plan.h"

namespace edgernn::cuda {

// An error reported by the GPU or its driver.
class GpuError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns null if these kernels can run on a GPU, else a sentence with the reason.
const char* Missing();

// Returns the limits of the GPU in use.
Limits FindLimits();

// Device memory, freed in stream order.
struct FreeMemory {
  void* stream;
  void operator()(float* memory) const;
};
using Memory = std::unique_ptr<float, FreeMemory>;
Memory Allocate(std::int64_t floats, void* stream);

// Copies floats from the host or the device to new device memory, and waits for the copy.
Memory Upload(const float* from, std::int64_t floats, void* stream);

// Waits for all work on a stream.
void Wait(void* stream);

// Performs the copies into `packed`, which has `floats` elements; zeroes the other elements.
void Pack(const std::vector<WeightCopy>& copies, std::int64_t floats, float* packed, void* stream);

// Launches the kernel of the cell with this index in the list, on device pointers.
void Launch(std::size_t cell, const LaunchPlan& plan, const Call& call, const float* packed,
            void* stream);

}  // namespace edgernn::cuda
