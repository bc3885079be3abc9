// SPDX-License-Identifier: Apache-2.0
// Runs any cell under any rule with an imputer.

#include "imputers/imputer.h"

#include <cstring>

#include "common/arena.h"

namespace edgernn {

namespace {

std::uint64_t Aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Buffers in scratch memory for a call of one step.
struct StepBuffers {
  void* imputer;
  float* state[kMaxStates];     // (B, H) each
  float* memory[kMaxMemories];  // (B, size) each
  float* last;                  // (B, 2F)
  float* seen;                  // (B, F)
  float* inputs;                // (B, 2F)
  std::int64_t* macs;           // (B,)
  void* kernel;
  std::uint64_t bytes;

  StepBuffers(const Imputer& impute, const Kernel& run, const LayerSizes& sizes, std::int64_t batch,
              void* base) {
    Arena arena(base);
    imputer = arena.Allocate(impute.scratch_bytes(sizes, batch));
    for (float*& s : state) s = arena.Allocate<float>(batch * sizes.hidden);
    for (int i = 0; i < run.rule->memory_count; ++i) {
      memory[i] = arena.Allocate<float>(batch * Width(run.rule->memories[i].extent, sizes));
    }
    last = arena.Allocate<float>(batch * sizes.input);
    seen = arena.Allocate<float>(batch * Features(sizes));
    inputs = arena.Allocate<float>(batch * sizes.input);
    macs = arena.Allocate<std::int64_t>(batch);
    kernel = arena.Allocate(run.ScratchBytes(sizes, 1, batch));
    bytes = arena.used();
  }
};

// Copies `count` floats, unless either pointer is null. The arrays may overlap.
void Copy(const float* from, std::int64_t count, float* to) {
  if (from == nullptr || to == nullptr) return;
  std::memmove(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

std::uint64_t ImputedPackedBytes(const Imputer& imputer, const Kernel& kernel,
                                 const LayerSizes& sizes) {
  return Aligned(imputer.packed_bytes(sizes)) + kernel.PackedBytes(sizes);
}

void PackImputed(const Imputer& imputer, const Kernel& kernel, const LayerSizes& sizes,
                 const Weights& from, void* packed) {
  imputer.pack(sizes, from, packed);
  kernel.Pack(sizes, from, static_cast<char*>(packed) + Aligned(imputer.packed_bytes(sizes)));
}

std::uint64_t ImputedScratchBytes(const Imputer& imputer, const Kernel& kernel,
                                  const LayerSizes& sizes, std::int64_t batch) {
  return StepBuffers(imputer, kernel, sizes, batch, nullptr).bytes;
}

void RunImputed(const Imputer& imputer, const Kernel& kernel, const LayerSizes& sizes,
                const void* packed, const Call& call, void* scratch) {
  const std::int64_t batch = call.batch, features = Features(sizes), hidden = sizes.hidden;
  const StepBuffers buffers(imputer, kernel, sizes, batch, scratch);
  const void* const kernel_packed =
      static_cast<const char*>(packed) + Aligned(imputer.packed_bytes(sizes));
  Call one = call;
  one.steps = 1;
  one.x = buffers.inputs;
  one.macs = call.macs == nullptr ? nullptr : buffers.macs;
  for (int s = 0; s < kMaxStates; ++s) {
    Copy(call.state_in[s], batch * hidden, buffers.state[s]);
    if (call.state_in[s] != nullptr) one.state_in[s] = one.state_out[s] = buffers.state[s];
  }
  const RuleSpec& rule = *kernel.rule;
  const auto memory_floats = [&](int i) { return batch * Width(rule.memories[i].extent, sizes); };
  for (int i = 0; i < rule.memory_count; ++i) {
    Copy(call.memory_in[i], memory_floats(i), buffers.memory[i]);
    one.memory_in[i] = one.memory_out[i] = buffers.memory[i];
  }
  Copy(call.last_in, batch * sizes.input, buffers.last);
  if (call.last_in != nullptr) one.last_in = one.last_out = buffers.last;
  Copy(call.seen_in, batch * features, buffers.seen);
  for (std::int64_t b = 0; call.macs != nullptr && b < batch; ++b) {
    call.macs[b] = call.steps * imputer.macs(sizes);
  }
  for (std::int64_t t = 0; t < call.steps; ++t) {
    imputer.step(sizes, packed, call.x + t * batch * 3 * features, batch, buffers.state[0],
                 call.seen_in == nullptr ? nullptr : buffers.seen, buffers.inputs, buffers.imputer);
    if (call.y != nullptr) one.y = call.y + t * batch * hidden;
    if (call.updates != nullptr) one.updates = call.updates + t * batch;
    kernel.Run(sizes, kernel_packed, one, buffers.kernel);
    for (std::int64_t b = 0; call.macs != nullptr && b < batch; ++b) {
      call.macs[b] += buffers.macs[b];
    }
  }
  for (int s = 0; s < kMaxStates; ++s) {
    if (call.state_in[s] != nullptr) Copy(buffers.state[s], batch * hidden, call.state_out[s]);
  }
  for (int i = 0; i < rule.memory_count; ++i) {
    Copy(buffers.memory[i], memory_floats(i), call.memory_out[i]);
  }
  if (call.last_in != nullptr) Copy(buffers.last, batch * sizes.input, call.last_out);
  if (call.seen_in != nullptr) Copy(buffers.seen, batch * features, call.seen_out);
}

}  // namespace edgernn
