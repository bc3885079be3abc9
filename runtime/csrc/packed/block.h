// SPDX-License-Identifier: Apache-2.0
// The residual block around each layer of a model, see edgernn/blocks.py:
//
//   u = E x + e, or x if it has H values
//   h = layer(norm(u))
//   y = u + A h + a, or u + (A h + a) * sigmoid(G h + g)

#pragma once

#include <cstdint>

#include "common/arena.h"
#include "kernel/kernel.h"

namespace edgernn {

class PackedFile;

// Which block is around each layer.
enum class BlockKind { kNone, kLinear, kGated };

// The weights of the block around one layer.
struct Block {
  std::int64_t input;   // I, the size of x
  const void* encoder;  // packed E and e, or null
  const float* scale;   // (H,), of the normalisation
  const float* shift;   // (H,)
  const void* linear;   // packed A and a
  const void* gate;     // packed G and g, or null
};

// Memory that the blocks of all layers share.
struct BlockWorkspace {
  float* u;       // (B, largest H): u, and then y
  float* branch;  // (B, largest H): norm(u), and then A h + a
  float* gate;    // (B, largest H): G h + g, or null
};

// The values of a step that go into a block's layer, and past it, (B, H) each.
struct BlockInput {
  const float* u;
  const float* normalised;
};

// Reads the weights of a block with I inputs around a layer with H neurons. Sets the failure and
// returns false if they are invalid.
[[nodiscard]] bool BuildBlock(PackedFile* file, const Linear& linear, BlockKind kind,
                              std::int64_t input, std::int64_t hidden, Arena* arena, Block* to);

// Computes u and norm(u) from x (B, I), which may be the output of the block before.
BlockInput EnterBlock(const KernelTable& table, const Block& block, std::int64_t hidden,
                      std::int64_t batch, const float* x, const BlockWorkspace& workspace,
                      void* scratch);

// Computes y from the output h (B, H) of the layer, and returns it.
const float* LeaveBlock(const KernelTable& table, const Block& block, std::int64_t hidden,
                        std::int64_t batch, const float* u, const float* h,
                        const BlockWorkspace& workspace, void* scratch);

}  // namespace edgernn
