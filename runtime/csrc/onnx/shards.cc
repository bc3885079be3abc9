// SPDX-License-Identifier: Apache-2.0
// Splits the batch of a call into shards.

#include "onnx/shards.h"

#include <cstring>

#include "common/arena.h"

namespace edgernn {

namespace {

// Minimum number of samples per shard. With fewer, a loaded weight is reused too little for another
// thread to pay off.
constexpr std::int64_t kMinSamples = 8;

// Copies `width` values per step between arrays of different strides.
template <class T>
void CopySteps(const T* from, std::int64_t from_stride, std::int64_t steps, std::int64_t width,
               T* to, std::int64_t to_stride) {
  for (std::int64_t t = 0; t < steps; ++t) {
    std::memcpy(to + t * to_stride, from + t * from_stride,
                static_cast<std::size_t>(width) * sizeof(T));
  }
}

}  // namespace

struct Shards::Part {
  float* x;
  float* y;
  std::int64_t* updates;
  void* scratch;
  std::size_t bytes;
};

std::int64_t Shards::Choose(std::int64_t threads, std::int64_t batch) {
  const std::int64_t most = batch / kMinSamples < 1 ? 1 : batch / kMinSamples;
  return threads < most ? threads : most;
}

Shards::Shards(const Op& op, const LayerSizes& sizes, const Call& call, std::int64_t count)
    : op_(op), sizes_(sizes), call_(call), count_(count) {
  part_bytes_ = Allocate((call.batch + count - 1) / count, nullptr).bytes;
}

Shards::Part Shards::Allocate(std::int64_t batch, void* base) const {
  const std::int64_t rows = call_.steps * batch;
  Arena arena(base);
  Part part{};
  part.x = arena.Allocate<float>(rows * op_.InputWidth(sizes_));
  part.y = arena.Allocate<float>(call_.y == nullptr ? 0 : rows * sizes_.hidden);
  part.updates = arena.Allocate<std::int64_t>(call_.updates == nullptr ? 0 : rows);
  part.scratch = arena.Allocate(op_.ScratchBytes(sizes_, call_.steps, batch));
  part.bytes = arena.used();
  return part;
}

void Shards::Run(const void* packed, std::int64_t index, void* memory) const {
  const std::int64_t first = call_.batch * index / count_;
  const std::int64_t batch = call_.batch * (index + 1) / count_ - first;
  const std::int64_t input = op_.InputWidth(sizes_), hidden = sizes_.hidden, all = call_.batch;
  char* const base = static_cast<char*>(memory) + static_cast<std::size_t>(index) * part_bytes_;
  const Part part = Allocate(batch, base);
  Call call = call_;
  call.batch = batch;
  call.x = part.x;
  CopySteps(call_.x + first * input, all * input, call.steps, batch * input, part.x, batch * input);
  for (const StateInput& state : op_.spec.states) {
    const std::int64_t offset = first * Width(state.extent, sizes_);
    const StatePlace place = Op::PlaceOf(&call, state);
    *place.in += offset;
    if (*place.out != nullptr) *place.out += offset;
  }
  if (call.macs != nullptr) call.macs += first;
  if (call.y != nullptr) call.y = part.y;
  if (call.updates != nullptr) call.updates = part.updates;
  op_.Run(sizes_, packed, call, part.scratch);
  if (call.y != nullptr) {
    CopySteps<float>(part.y, batch * hidden, call.steps, batch * hidden, call_.y + first * hidden,
                     all * hidden);
  }
  if (call.updates != nullptr) {
    CopySteps<std::int64_t>(part.updates, batch, call.steps, batch, call_.updates + first, all);
  }
}

}  // namespace edgernn
