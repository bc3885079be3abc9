// SPDX-License-Identifier: Apache-2.0
// Implements gpu_ops.h: finds ops, plans calls and launches them.

#include "cuda/gpu_ops.h"

#include <algorithm>

#include "kernel/cell_kernel.h"

namespace edgernn::cuda {

namespace {

template <class Cell>
constexpr CellKernel kCellOf{MakeCellTable<Cell>(), {}};

// The host's table of cells, without CPU kernels.
template <class... AllCells>
const KernelTable& MakeTable(TypeList<AllCells...>) {
  static const KernelTable table = [] {
    KernelTable list{};
    int cell = 0;
    ((list.cells[cell] = &kCellOf<AllCells>, list.gated_cells[cell++] = &kCellOf<AllCells>), ...);
    return list;
  }();
  return table;
}

}  // namespace

thread_local Geometry requested_geometry{};

const Op* FindGpuOp(const std::string& name) {
  const Op* const op = FindOp(MakeTable(Cells{}), name);
  return op != nullptr && Supports(*op) ? op : nullptr;
}

const char* GpuOpNames() {
  static const std::string names = [] {
    std::string list;
    for (const std::string& name : OpNames(MakeTable(Cells{}))) {
      if (FindGpuOp(name) != nullptr) list += (list.empty() ? "" : " ") + name;
    }
    return list;
  }();
  return names.c_str();
}

std::int64_t PackedFloats(const Op& op, const LayerSizes& sizes) {
  return MakeLaunchPlan(op, sizes).floats;
}

void PackOp(const Op& op, const LayerSizes& sizes, const float* const* weights, float* packed,
            void* stream) {
  const LaunchPlan plan = MakeLaunchPlan(op, sizes);
  Pack(ListWeightCopies(op, sizes, plan, weights), plan.floats, packed, stream);
}

void RunOp(const Op& op, const LayerSizes& sizes, const float* packed, const Call& call,
           void* stream) {
  LaunchPlan plan = MakeLaunchPlan(op, sizes);
  Limits limits = FindLimits();
  if (requested_geometry.memory > 0)
    limits.memory = std::min(limits.memory, requested_geometry.memory);
  ChooseGeometry(op, limits, requested_geometry, call.batch, &plan);
  Launch(op.cell, plan, call, packed, stream);
}

}  // namespace edgernn::cuda
