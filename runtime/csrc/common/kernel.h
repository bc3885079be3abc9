// SPDX-License-Identifier: Apache-2.0
// The interface of the kernels. It depends neither on ONNX Runtime nor on an instruction set.
//
// A caller packs the weights once, then runs any number of sequences with them, from any number of
// threads, each with its own scratch. All sizes in bytes; `packed` and `scratch` start at a
// multiple of kAlignment and belong to the caller.

#ifndef EDGERNN_COMMON_KERNEL_H_
#define EDGERNN_COMMON_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "cells/list.h"
#include "imputers/list.h"

namespace edgernn {

constexpr std::size_t kAlignment = 64;

// Storage types of weights. kInt8 values are -127 to 127 times the scale of their row.
enum class NumberType : std::uint32_t { kFloat32, kBfloat16, kInt8 };
constexpr int kNumberTypes = 3;

struct LayerSizes {
  std::int64_t input;                         // I
  std::int64_t hidden;                        // H
  std::int64_t rank = 0;                      // of R, which then is a product R Q; 0: R is whole
  NumberType weights = NumberType::kFloat32;  // what W, R, C and V are packed as
  bool dots = false;                          // as the kernel's
  unsigned bias_terms = kBias;                // a gate with one of these has a bias
};

// F, of an op with an imputer: the cell reads 2F.
[[gnu::always_inline]] constexpr std::int64_t Features(const LayerSizes& sizes) {
  return sizes.input / 2;
}

// How many numbers a state of this extent has a sample.
[[gnu::always_inline]] constexpr std::int64_t Width(Extent extent, const LayerSizes& sizes) {
  return extent == Extent::kHidden     ? sizes.hidden
         : extent == Extent::kInput    ? sizes.input
         : extent == Extent::kFeatures ? Features(sizes)
                                       : 1;
}

// Numbers of any type, row-major.
struct Values {
  const void* data;
  NumberType type = NumberType::kFloat32;
  const float* scales = nullptr;  // of kInt8: (rows,)
  std::int64_t columns = 1;       // of kInt8

  [[gnu::always_inline]] float operator[](std::int64_t i) const {
    if (type == NumberType::kInt8) {
      return static_cast<float>(static_cast<const std::int8_t*>(data)[i]) * scales[i / columns];
    }
    if (type == NumberType::kFloat32) return static_cast<const float*>(data)[i];
    const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(data)[i]} << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }
};

// Those that the cell or rule lacks have no data. Read by `pack` only. A gate has H rows; one
// marked kMid has M, the size of m, which is H or I.
struct Weights {
  Values w;                          // (rows of the gates with x, I; 2I if kReadsLast)
  Values r;                          // (rows of the gates with h, H or the rank)
  Values q;                          // (rank, H)
  Values c;                          // (rows of the gates with c, H)
  Values v;                          // (rows of the gates with m, M)
  Values b;                          // (rows of the gates with a bias,)
  Values params[kMaxParams];         // the cell's parameters: (H,), (I,) or (1,), in its order
  Values rule[kMaxRuleParams];       // in the rule's order
  Values impute[kMaxImputerParams];  // in the imputer's order
};

// One sequence. What the cell or rule lacks is null. Outputs may be null; a state that comes out
// may be the same memory as the one that goes in.
struct Call {
  std::int64_t steps;                    // T
  std::int64_t length;                   // T of the sequence that this is a part of
  std::int64_t batch;                    // B
  const float* x;                        // (T, B, I)
  const float* state_in[kMaxStates];     // (B, H) each
  const float* memory_in[kMaxMemories];  // (B, size) each, the rule's memories
  const float* last_in;                  // (B, I), the input before x
  const float* seen_in;                  // (B, F), the imputer's memory
  float* y;                              // (T, B, H)
  float* state_out[kMaxStates];          // (B, H) each
  float* memory_out[kMaxMemories];       // (B, size) each
  float* last_out;                       // (B, I)
  float* seen_out;                       // (B, F)
  std::int64_t* updates;                 // (T, B), rules that skip only
  std::int64_t* macs;                    // (B,), rules that skip only
};

// The functions of a cell that drivers call: see common/cell_kernel.h.
struct CellKernel;
struct CellFunctions;

// How a rule that does not decide for a whole sample selects neurons, null for others: see
// rules/selector.h.
struct Selector;

// How missing inputs are filled before each step: see imputers/imputer.h.
struct Imputer;

struct Kernel;

// How any cell runs under the rules of one kind.
struct Driver {
  std::size_t (*packed_bytes)(const Kernel&, const LayerSizes&);
  void (*pack)(const Kernel&, const LayerSizes&, const Weights&, void* packed);
  std::size_t (*scratch_bytes)(const Kernel&, const LayerSizes&, std::int64_t steps,
                               std::int64_t batch);
  void (*run)(const Kernel&, const LayerSizes&, const void* packed, const Call&, void* scratch);
};

// A cell under a rule.
struct Kernel {
  const Driver* driver;
  const CellKernel* cell;
  const RuleSpec* rule;
  const Selector* selector;
  bool dots = false;  // as the table's

  std::size_t PackedBytes(const LayerSizes& sizes) const {
    return driver->packed_bytes(*this, sizes);
  }

  void Pack(const LayerSizes& sizes, const Weights& from, void* packed) const {
    driver->pack(*this, sizes, from, packed);
  }

  std::size_t ScratchBytes(const LayerSizes& sizes, std::int64_t steps, std::int64_t batch) const {
    return driver->scratch_bytes(*this, sizes, steps, batch);
  }

  void Run(const LayerSizes& sizes, const void* packed, const Call& call, void* scratch) const {
    driver->run(*this, sizes, packed, call, scratch);
  }
};

// y (B, O) = W a + b, for a (B, depth), W (O, depth) and b (O,): the head of a model.
struct Linear {
  std::size_t (*packed_bytes)(std::int64_t depth, std::int64_t outputs);
  void (*pack)(const Values& w, const Values& b, std::int64_t depth, std::int64_t outputs,
               void* packed);
  std::size_t (*scratch_bytes)(std::int64_t outputs, std::int64_t batch);
  void (*run)(const void* packed, std::int64_t depth, std::int64_t outputs, const float* a,
              std::int64_t batch, float* y, void* scratch);
};

// One instruction set's kernels, in the order of the lists of cells and rules.
struct KernelTable {
  const char* isa;
  bool dots;  // whether products of whole numbers are summed up in one instruction
  const CellKernel* cells[Cells::kCount];
  const CellFunctions* program;  // of cells that files bring
  Driver drivers[Rules::kCount];
  const Selector* selectors[Rules::kCount];
  const Imputer* imputers[Imputers::kCount];
  Linear linear;
};

// The table in use: the best one that this processor runs, or the one that the environment variable
// EDGERNN_ISA names. On failure `table` is null and `error` says why.
struct KernelChoice {
  const KernelTable* table;
  const char* error;
};

const KernelChoice& ChooseKernels();

}  // namespace edgernn

#endif  // EDGERNN_COMMON_KERNEL_H_
