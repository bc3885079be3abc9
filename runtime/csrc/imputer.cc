// SPDX-License-Identifier: Apache-2.0
// Runs any cell under any rule behind an imputer.

#include "imputer.h"

#include <cstring>

#include "carver.h"

namespace edgernn {

namespace {

std::size_t Aligned(std::size_t bytes) { return (bytes + kAlignment - 1) & ~(kAlignment - 1); }

// One step's part of a call, in scratch.
struct Stage {
  void* imputer;
  float* state[kMaxStates];  // (B, H) each
  float* memory;             // (B, 1)
  float* last;               // (B, 2F)
  float* seen;               // (B, F)
  float* inputs;             // (B, 2F)
  std::int64_t* macs;        // (B,)
  void* kernel;
  std::size_t bytes;

  Stage(const Imputer& impute, const Kernel& run, const Sizes& sizes, std::int64_t batch,
        void* base) {
    Carver carver(base);
    imputer = carver.Take(impute.scratch_bytes(sizes, batch));
    for (float*& s : state) s = carver.Take<float>(batch * sizes.hidden);
    memory = carver.Take<float>(batch);
    last = carver.Take<float>(batch * sizes.input);
    seen = carver.Take<float>(batch * Features(sizes));
    inputs = carver.Take<float>(batch * sizes.input);
    macs = carver.Take<std::int64_t>(batch);
    kernel = carver.Take(run.ScratchBytes(sizes, 1, batch));
    bytes = carver.used();
  }
};

// Does nothing where either is null.
void Copy(const float* from, std::int64_t count, float* to) {
  if (from == nullptr || to == nullptr) return;
  std::memmove(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

std::size_t ImputedPackedBytes(const Imputer& imputer, const Kernel& kernel, const Sizes& sizes) {
  return Aligned(imputer.packed_bytes(sizes)) + kernel.PackedBytes(sizes);
}

void PackImputed(const Imputer& imputer, const Kernel& kernel, const Sizes& sizes,
                 const Weights& from, void* packed) {
  imputer.pack(sizes, from, packed);
  kernel.Pack(sizes, from, static_cast<char*>(packed) + Aligned(imputer.packed_bytes(sizes)));
}

std::size_t ImputedScratchBytes(const Imputer& imputer, const Kernel& kernel, const Sizes& sizes,
                                std::int64_t batch) {
  return Stage(imputer, kernel, sizes, batch, nullptr).bytes;
}

void RunImputed(const Imputer& imputer, const Kernel& kernel, const Sizes& sizes,
                const void* packed, const Call& call, void* scratch) {
  const std::int64_t batch = call.batch, features = Features(sizes), hidden = sizes.hidden;
  const Stage stage(imputer, kernel, sizes, batch, scratch);
  const void* const rest = static_cast<const char*>(packed) + Aligned(imputer.packed_bytes(sizes));
  Call one = call;
  one.steps = 1;
  one.x = stage.inputs;
  one.macs = call.macs == nullptr ? nullptr : stage.macs;
  for (int s = 0; s < kMaxStates; ++s) {
    Copy(call.state_in[s], batch * hidden, stage.state[s]);
    if (call.state_in[s] != nullptr) one.state_in[s] = one.state_out[s] = stage.state[s];
  }
  Copy(call.memory_in, batch, stage.memory);
  if (call.memory_in != nullptr) one.memory_in = one.memory_out = stage.memory;
  Copy(call.last_in, batch * sizes.input, stage.last);
  if (call.last_in != nullptr) one.last_in = one.last_out = stage.last;
  Copy(call.seen_in, batch * features, stage.seen);
  for (std::int64_t b = 0; call.macs != nullptr && b < batch; ++b) {
    call.macs[b] = call.steps * imputer.macs(sizes);
  }
  for (std::int64_t t = 0; t < call.steps; ++t) {
    imputer.step(sizes, packed, call.x + t * batch * 3 * features, batch, stage.state[0],
                 call.seen_in == nullptr ? nullptr : stage.seen, stage.inputs, stage.imputer);
    if (call.y != nullptr) one.y = call.y + t * batch * hidden;
    if (call.updates != nullptr) one.updates = call.updates + t * batch;
    kernel.Run(sizes, rest, one, stage.kernel);
    for (std::int64_t b = 0; call.macs != nullptr && b < batch; ++b) {
      call.macs[b] += stage.macs[b];
    }
  }
  for (int s = 0; s < kMaxStates; ++s) {
    if (call.state_in[s] != nullptr) Copy(stage.state[s], batch * hidden, call.state_out[s]);
  }
  if (call.memory_in != nullptr) Copy(stage.memory, batch, call.memory_out);
  if (call.last_in != nullptr) Copy(stage.last, batch * sizes.input, call.last_out);
  if (call.seen_in != nullptr) Copy(stage.seen, batch * features, call.seen_out);
}

}  // namespace edgernn
