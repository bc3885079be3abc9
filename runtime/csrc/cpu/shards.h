// SPDX-License-Identifier: Apache-2.0
// A call split into parts of its batch, which threads run in parallel.

#ifndef EDGERNN_CPU_SHARDS_H_
#define EDGERNN_CPU_SHARDS_H_

#include "common/op.h"

namespace edgernn {

// The samples of a call from `first` on, in memory of their own where the call has them between
// those of others: x, y and updates, whose first axis is time.
class Shards {
 public:
  // So many parts, of about the same size, are worth it for so many threads: 1 for a small batch.
  static std::int64_t Choose(std::int64_t threads, std::int64_t batch);

  Shards(const Op& op, const LayerSizes& sizes, const Call& call, std::int64_t count);

  // Of memory for all of them.
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * part_bytes_; }

  // Runs one of them.
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

#endif  // EDGERNN_CPU_SHARDS_H_
