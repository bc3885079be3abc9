// SPDX-License-Identifier: Apache-2.0
// The interface of the kernels, independent of ONNX Runtime and of the instruction set.
//
// A caller packs the weights once and then runs any number of sequences with them. Several threads
// may share the packed weights; each needs its own scratch memory. The caller owns `packed` and
// `scratch`, aligned to kAlignment. Their sizes are in bytes.
//
// A caller that runs the same sequences call by call may also own `kept`, zeroed at first, in which
// a kernel keeps sums of the states to save work in the next call. It is not part of the state: the
// results are the same without it, and the next call may start from any other states.

#pragma once

#include <cstddef>
#include <cstdint>

#include "cells/list.h"
#include "common/arena.h"
#include "kernel/imputer_list.h"

namespace edgernn {

// Storage types of weights. A weight of kInt8 is a byte from -127 to 127 times its row's scale.
enum class NumberType : std::uint32_t { kFloat32, kBfloat16, kInt8 };
constexpr int kNumberTypes = 3;

struct LayerSizes {
  std::int64_t input;                         // I
  std::int64_t hidden;                        // H
  std::int64_t rank = 0;                      // rank of the product R Q; 0: R is one matrix
  NumberType weights = NumberType::kFloat32;  // storage type of the packed W, R, C and V
  bool dots = false;                          // use dot-product instructions, see KernelTable
  unsigned bias_terms = kBias;                // a gate with one of these terms has a bias
  std::int64_t group_size = 1;                // neighbouring neurons that share a decision
  std::int64_t group_count = 0;               // only if group_size is above 1
  std::int64_t columns = 0;                   // columns of W
  std::int64_t sums = 0;                      // rows of all gates that read x or h

  void SetGroups(std::int64_t size) {
    group_size = size;
    group_count = (hidden + size - 1) / size;
  }

  void SetExtents(const CellTable& cell) {
    columns = cell.reads_last ? 2 * input : input;
    sums = 0;
    for (int g = 0; g < cell.gates; ++g) {
      if ((cell.terms[g] & (kX | kH)) == 0) continue;
      sums += (cell.terms[g] & kMid) != 0 && cell.mid_is_input ? input : hidden;
    }
  }
};

// The number of groups of neurons; the last one may have fewer than group_size neurons.
[[gnu::always_inline]] constexpr std::int64_t Groups(const LayerSizes& sizes) {
  return sizes.group_size == 1 ? sizes.hidden : sizes.group_count;
}

// F of an op with an imputer, whose cell reads 2F inputs.
[[gnu::always_inline]] constexpr std::int64_t Features(const LayerSizes& sizes) {
  return sizes.input / 2;
}

// The number of values per sample in a state of this extent.
[[gnu::always_inline]] constexpr std::int64_t Width(Extent extent, const LayerSizes& sizes) {
  return extent == Extent::kHidden     ? sizes.hidden
         : extent == Extent::kInput    ? sizes.input
         : extent == Extent::kFeatures ? Features(sizes)
         : extent == Extent::kColumns  ? sizes.columns
         : extent == Extent::kSums     ? sizes.sums
                                       : 1;
}

// A row-major array of any storage type, whose elements are read as floats.
struct Values {
  const void* data;
  NumberType type = NumberType::kFloat32;
  const float* scales = nullptr;  // (rows,), only for kInt8
  std::int64_t columns = 1;       // only for kInt8

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

// The weights of a layer, as `pack` reads them. Weights that the cell or rule lacks have no data.
// A gate has H rows; a gate marked kMid has M, the size of m, which is H or I.
struct Weights {
  Values w;                          // (rows of the gates with x, I; 2I if kReadsLast)
  Values r;                          // (rows of the gates with h, H or the rank)
  Values q;                          // (rank, H)
  Values c;                          // (rows of the gates with c, H)
  Values v;                          // (rows of the gates with m, M)
  Values b;                          // (rows of the gates with a bias,)
  Values params[kMaxParams];         // (H,), (I,) or (1,) each, in the cell's order
  Values rule[kMaxRuleParams];       // in the rule's order
  Values impute[kMaxImputerParams];  // in the imputer's order
};

// The inputs and outputs of one call. Inputs that the cell or rule lacks are null. Any output may
// be null. An output state may alias its input state.
struct Call {
  std::int64_t steps;                    // T
  std::int64_t length;                   // T of the whole sequence, of which a call may be a part
  std::int64_t batch;                    // B
  const float* x;                        // (T, B, I)
  const float* state_in[kMaxStates];     // (B, H) each
  const float* memory_in[kMaxMemories];  // (B, size) each, the rule's memories
  const float* last_in;                  // (B, I), the input of the step before x
  const float* seen_in;                  // (B, F), the imputer's memory
  float* y;                              // (T, B, H)
  float* state_out[kMaxStates];          // (B, H) each
  float* memory_out[kMaxMemories];       // (B, size) each
  float* last_out;                       // (B, I)
  float* seen_out;                       // (B, F)
  std::int64_t* updates;                 // (T, B), only for rules that skip
  std::int64_t* macs;                    // (B,), only for rules that skip
  void* kept;                            // memory of the kernel between calls, or null
};

// The functions of a cell that drivers call, see kernel/cell_kernel.h.
struct CellKernel;
struct CellFunctions;
struct RowProducts;

// Selects the neurons that a rule updates, see kernel/selector.h. Null for rules that update a
// whole sample or every neuron.
struct Selector;

// Fills missing inputs before each step, see imputers/imputer.h.
struct Imputer;

struct Kernel;

// Runs any cell under some rules, see op/kernel_table.cc.
struct Driver {
  std::uint64_t (*packed_bytes)(const Kernel&, const LayerSizes&);
  void (*pack)(const Kernel&, const LayerSizes&, const Weights&, void* packed);
  std::uint64_t (*scratch_bytes)(const Kernel&, const LayerSizes&, std::int64_t steps,
                                 std::int64_t batch);
  std::uint64_t (*kept_bytes)(const Kernel&, const LayerSizes&, std::int64_t batch);
  void (*run)(const Kernel&, const LayerSizes&, const void* packed, const Call&, void* scratch);
};

// A cell under a rule.
struct Kernel {
  const Driver* driver;
  const CellKernel* cell;
  const RuleSpec* rule;
  const Selector* selector;
  bool dots = false;    // see KernelTable
  bool decays = false;  // h changes between steps, as an imputer decays it

  std::uint64_t PackedBytes(const LayerSizes& sizes) const {
    return driver->packed_bytes(*this, sizes);
  }

  void Pack(const LayerSizes& sizes, const Weights& from, void* packed) const {
    driver->pack(*this, sizes, from, packed);
  }

  std::uint64_t ScratchBytes(const LayerSizes& sizes, std::int64_t steps,
                             std::int64_t batch) const {
    return driver->scratch_bytes(*this, sizes, steps, batch);
  }

  std::uint64_t KeptBytes(const LayerSizes& sizes, std::int64_t batch) const {
    return driver->kept_bytes(*this, sizes, batch);
  }

  void Run(const LayerSizes& sizes, const void* packed, const Call& call, void* scratch) const {
    driver->run(*this, sizes, packed, call, scratch);
  }
};

// The kernels of the steps of a graph, see kernel/step.h.
struct StepKernels;

// The kernels of one instruction set, in the order of the lists of cells, rules and imputers.
struct KernelTable {
  const char* isa;
  bool dots;  // int8 products use dot-product instructions (AVX-512 VNNI, Arm dotprod)
  const CellKernel* cells[Cells::kCount];
  // for rules of the kind kGate: the cells with the update gate summed first; null for no such gate
  const CellKernel* gated_cells[Cells::kCount];
  const CellFunctions* program;     // functions of cells that are defined in a file
  const RowProducts* row_products;  // of each listed cell, see cpu/gather_f32.h
  Driver drivers[Rules::kCount];
  const Selector* selectors[Rules::kCount];
  const Imputer* imputers[Imputers::kCount];
  const StepKernels* steps;
};

// The table in use: the fastest one that this processor can run, or the one that the environment
// variable EDGERNN_ISA names. On failure `table` is null and `error` is a message.
struct KernelChoice {
  const KernelTable* table;
  const char* error;
};

const KernelChoice& ChooseKernels();

}  // namespace edgernn
