// SPDX-License-Identifier: Apache-2.0
// Builds and runs the residual blocks around the layers of a model.

#include "packed/block.h"

#include "packed/read_linear.h"

namespace edgernn {

bool BuildBlock(PackedFile* file, const Linear& linear, BlockKind kind, std::int64_t input,
                std::int64_t hidden, Arena* arena, Block* to) {
  to->input = input;
  if (input != hidden &&
      !ReadLinear(file, "the encoder", linear, input, hidden, arena, &to->encoder)) {
    return false;
  }
  Tensor scale, shift;
  if (!file->NextTensor("scale of a block", {hidden}, &scale)) return false;
  if (!file->NextTensor("shift of a block", {hidden}, &shift)) return false;
  to->scale = CopyFloats(scale, arena);
  to->shift = CopyFloats(shift, arena);
  return ReadLinear(file, "a block", linear, hidden, hidden, arena, &to->linear) &&
         (kind == BlockKind::kLinear ||
          ReadLinear(file, "the gate of a block", linear, hidden, hidden, arena, &to->gate));
}

BlockInput EnterBlock(const KernelTable& table, const Block& block, std::int64_t hidden,
                      std::int64_t batch, const float* x, const BlockWorkspace& workspace,
                      void* scratch) {
  const float* u = x;
  if (block.encoder != nullptr) {
    // x may be in the same memory: it is read completely first
    table.linear.run(block.encoder, block.input, hidden, x, batch, workspace.u, scratch);
    u = workspace.u;
  }
  table.residual.normalise(u, block.scale, block.shift, batch, hidden, workspace.branch);
  return {u, workspace.branch};
}

const float* LeaveBlock(const KernelTable& table, const Block& block, std::int64_t hidden,
                        std::int64_t batch, const float* u, const float* h,
                        const BlockWorkspace& workspace, void* scratch) {
  table.linear.run(block.linear, hidden, hidden, h, batch, workspace.branch, scratch);
  if (block.gate != nullptr) {
    table.linear.run(block.gate, hidden, hidden, h, batch, workspace.gate, scratch);
  }
  const float* const gate = block.gate == nullptr ? nullptr : workspace.gate;
  table.residual.add(u, workspace.branch, gate, batch * hidden, workspace.u);
  return workspace.u;
}

}  // namespace edgernn
