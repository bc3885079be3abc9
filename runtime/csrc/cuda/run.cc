// SPDX-License-Identifier: Apache-2.0
// Plans calls and launches them.

#include "cuda/run.h"

#include <algorithm>

#include "cell_kernel.h"

namespace edgernn::cuda {

namespace {

template <class Cell>
constexpr CellKernel kCellOf{MakeCellTable<Cell>(), nullptr, nullptr, nullptr};

// What the host knows of the cells; their kernels are the GPU's.
template <class... AllCells>
const KernelTable& MakeTable(TypeList<AllCells...>) {
  static const KernelTable table = [] {
    KernelTable made{};
    int cell = 0;
    ((made.cells[cell++] = &kCellOf<AllCells>), ...);
    return made;
  }();
  return table;
}

}  // namespace

thread_local Geometry wanted_geometry{};

const std::deque<Op>& ListGpuOps() {
  static const std::deque<Op> ops = [] {
    std::deque<Op> made;
    Mode mode;
    for (const Op& op : ListOps(MakeTable(Cells{}))) {
      if (Supports(op, &mode)) made.push_back(op);
    }
    return made;
  }();
  return ops;
}

const char* GpuOpNames() {
  static const std::string names = [] {
    std::string made;
    for (const Op& op : ListGpuOps()) made += (made.empty() ? "" : " ") + op.spec.name;
    return made;
  }();
  return names.c_str();
}

std::int64_t PackedFloats(const Op& op, const Sizes& sizes) { return MakePlan(op, sizes).floats; }

void PackOp(const Op& op, const Sizes& sizes, const float* const* weights, float* packed,
            void* stream) {
  const Plan plan = MakePlan(op, sizes);
  Pack(ListPieces(op, sizes, plan, weights), plan.floats, packed, stream);
}

void RunOp(const Op& op, const Sizes& sizes, const float* packed, const Call& call, void* stream) {
  Plan plan = MakePlan(op, sizes);
  Limits limits = FindLimits();
  if (wanted_geometry.memory > 0) limits.memory = std::min(limits.memory, wanted_geometry.memory);
  Fit(op, limits, wanted_geometry, call.batch, &plan);
  Launch(op.cell, plan, call, packed, stream);
}

}  // namespace edgernn::cuda
