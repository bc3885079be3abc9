// SPDX-License-Identifier: Apache-2.0
// What the kernels offer to whoever calls them; knows neither ONNX Runtime nor instruction sets.
//
// A caller packs the weights once, then runs any number of sequences with them, from any number of
// threads, each with its own scratch. All sizes in bytes; `packed` and `scratch` start at a
// multiple of kAlignment and belong to the caller.

#ifndef EDGERNN_KERNEL_H_
#define EDGERNN_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "rules.h"

namespace edgernn {

constexpr std::size_t kAlignment = 64;
constexpr int kMaxRuleParams = 4;

struct Sizes {
  std::int64_t input;   // I
  std::int64_t hidden;  // H
};

// Row-major; those that the cell or rule lacks are null. Read by `pack` only. A gate has H rows;
// one marked kMid has M, the size of m, which is H or I.
struct Weights {
  const float* w;                     // (rows of the gates with x, I)
  const float* r;                     // (rows of the gates with h, H)
  const float* v;                     // (rows of the gates with m, M)
  const float* b;                     // (rows of the gates with a bias,)
  const float* own[kMaxParams];       // the cell's parameters: (H,), (I,) or (1,), in its order
  const float* rule[kMaxRuleParams];  // in the rule's order
};

// One sequence. Outputs may be null; state_out may be the same memory as state_in.
struct Call {
  std::int64_t steps;                 // T
  std::int64_t batch;                 // B
  const float* x;                     // (T, B, I)
  const float* state_in[kMaxStates];  // (B, H) each
  float* y;                           // (T, B, H)
  float* state_out[kMaxStates];       // (B, H) each
  std::int64_t* updates;              // (T, B), rules that skip only
  std::int64_t* macs;                 // (B,), rules that skip only
};

struct Kernel {
  std::size_t (*packed_bytes)(const Sizes&);
  void (*pack)(const Sizes&, const Weights&, void* packed);
  std::size_t (*scratch_bytes)(const Sizes&, std::int64_t steps, std::int64_t batch);
  void (*run)(const Sizes&, const void* packed, const Call&, void* scratch);
};

// One instruction set's kernels, in the order of the lists of cells and rules.
struct KernelTable {
  const char* isa;
  Kernel kernels[Cells::kCount][Rules::kCount];
};

// The table in use: the best one that this processor runs, or the one that the environment variable
// EDGERNN_ISA names. On failure `table` is null and `error` says why.
struct KernelChoice {
  const KernelTable* table;
  const char* error;
};

const KernelChoice& ChooseKernels();

}  // namespace edgernn

#endif  // EDGERNN_KERNEL_H_
