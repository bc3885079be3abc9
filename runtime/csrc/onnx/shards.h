// SPDX-License-Identifier: Apache-2.0
// Splits the batch of a call into shards, which threads run in parallel.

#pragma once

#include "op/op.h"

namespace edgernn {

// The shards of a call. Each has its own copies of x, y and updates, whose first axis is time, and
// shares the other arrays with the call.
class Shards {
 public:
  // The number of shards for a number of threads; 1 for a small batch.
  static std::int64_t Choose(std::int64_t threads, std::int64_t batch);

  Shards(const Op& op, const LayerSizes& sizes, const Call& call, std::int64_t count);

  // The bytes of memory that all shards need.
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * part_bytes_; }

  // Runs one shard.
  void Run(const void* packed, std::int64_t index, void* memory) const;

  std::int64_t count() const { return count_; }

 private:
  struct Part;

  Part Allocate(std::int64_t batch, void* base) const;

  const Op& op_;
  const LayerSizes& sizes_;
  const Call& call_;
  const std::int64_t count_;
  std::size_t part_bytes_;
};

}  // namespace edgernn
