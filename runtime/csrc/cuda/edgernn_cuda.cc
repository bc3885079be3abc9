// SPDX-License-Identifier: Apache-2.0
// Implements edgernn_cuda.h.

#include "cuda/edgernn_cuda.h"

#include <string>

#include "common/invalid_argument.h"
#include "cuda/gpu_ops.h"

namespace edgernn::cuda {

namespace {

thread_local std::string error;

// Calls `body`, stores the message of an exception and returns the status.
template <class Body>
int Guard(const Body& body) {
  try {
    body();
    return 0;
  } catch (const InvalidArgument& caught) {
    error = caught.what();
    return 2;
  } catch (const std::exception& caught) {
    error = caught.what();
    return 1;
  }
}

void RequireAll(std::initializer_list<const void*> pointers) {
  for (const void* const pointer : pointers) {
    if (pointer == nullptr) throw InvalidArgument("a required pointer is null");
  }
}

const Op& Find(const char* name) {
  RequireAll({name});
  if (const Op* const op = FindGpuOp(name)) return *op;
  throw InvalidArgument(std::string("layer: no kernel for a GPU is called ") + name);
}

// Upper bound of I, H and rank, so that sizes of packed weights do not overflow.
constexpr std::int64_t kMaxSize = 1 << 16;

LayerSizes CheckSizes(const Op& op, std::int64_t input, std::int64_t hidden, std::int64_t rank,
                      int biases, std::int64_t group_size) {
  const auto check = [&op](const char* name, std::int64_t got, std::int64_t least,
                           std::int64_t most = kMaxSize) {
    if (got >= least && got <= most) return;
    throw InvalidArgument(
        "edgernn: " + op.spec.name + ": " + name + ": expected " + std::to_string(least) +
        (most > least ? " to " + std::to_string(most) : "") + ", got " + std::to_string(got));
  };
  bool low_rank = false;
  for (const WeightInput& weight : op.spec.weights) low_rank |= weight.slot == kFactorSlot;
  check("I", input, 1);
  check("H", hidden, 1);
  check("rank", rank, low_rank ? 1 : 0);
  check("group_size", group_size, 1, op.kernel.rule->HasGroups() ? hidden : 1);
  if (!low_rank && rank != 0) {
    throw InvalidArgument("edgernn: " + op.spec.name + ": rank: R is whole, got " +
                          std::to_string(rank));
  }
  if (op.spec.square && input != hidden) {
    throw InvalidArgument("edgernn: " + op.spec.name + ": I: expected H = " +
                          std::to_string(hidden) + ", got " + std::to_string(input));
  }
  LayerSizes sizes{input, hidden};
  sizes.rank = rank;
  sizes.SetGroups(group_size);
  if (biases != 0) sizes.bias_terms |= kOptionalBias;
  return sizes;
}

}  // namespace

}  // namespace edgernn::cuda

extern "C" {

using namespace edgernn;        // NOLINT
using namespace edgernn::cuda;  // NOLINT

[[gnu::visibility("default")]] const char* edgernn_cuda_missing() { return Missing(); }

[[gnu::visibility("default")]] const char* edgernn_cuda_kernels() { return GpuOpNames(); }

[[gnu::visibility("default")]] const char* edgernn_cuda_error() {
  return edgernn::cuda::error.c_str();
}

[[gnu::visibility("default")]] int edgernn_cuda_packed_bytes(const char* layer, std::int64_t input,
                                                             std::int64_t hidden, std::int64_t rank,
                                                             int biases, std::int64_t group_size,
                                                             std::int64_t* bytes) {
  return Guard([&] {
    const Op& gpu_op = Find(layer);
    RequireAll({bytes});
    const std::int64_t floats =
        PackedFloats(gpu_op, CheckSizes(gpu_op, input, hidden, rank, biases, group_size));
    *bytes = floats * static_cast<std::int64_t>(sizeof(float));
  });
}

[[gnu::visibility("default")]] int edgernn_cuda_pack(const char* layer, std::int64_t input,
                                                     std::int64_t hidden, std::int64_t rank,
                                                     int biases, std::int64_t group_size,
                                                     const float* const* weights, void* packed,
                                                     void* stream) {
  return Guard([&] {
    const Op& gpu_op = Find(layer);
    RequireAll({weights, packed});
    std::vector<const float*> all;
    for (const WeightInput& weight : gpu_op.spec.weights) {
      const bool absent = weight.MayBeAbsent() && biases == 0;
      all.push_back(absent ? nullptr : *weights);
      if (absent) continue;
      RequireAll({*weights++});
    }
    PackOp(gpu_op, CheckSizes(gpu_op, input, hidden, rank, biases, group_size), all.data(),
           static_cast<float*>(packed), stream);
  });
}

[[gnu::visibility("default")]] int edgernn_cuda_run(
    const char* layer, std::int64_t input, std::int64_t hidden, std::int64_t rank, int biases,
    std::int64_t group_size, const void* packed, std::int64_t steps, std::int64_t batch,
    const float* x, const float* const* states, float* y, float* const* new_states,
    std::int64_t* updates, std::int64_t* macs, void* stream) {
  return Guard([&] {
    const Op& gpu_op = Find(layer);
    const LayerSizes sizes = CheckSizes(gpu_op, input, hidden, rank, biases, group_size);
    RequireAll({packed, x, states});
    if (steps < 1 || batch < 1) {
      throw InvalidArgument("edgernn: " + gpu_op.spec.name +
                            ": expected at least one step and one sequence, got T = " +
                            std::to_string(steps) + " and B = " + std::to_string(batch));
    }
    Call call{};
    call.steps = call.length = steps;
    call.batch = batch;
    call.x = x;
    call.y = y;
    for (std::size_t s = 0; s < gpu_op.spec.states.size(); ++s) {
      RequireAll({states[s]});
      const StatePlace place = Op::PlaceOf(&call, gpu_op.spec.states[s]);
      *place.in = states[s];
      *place.out = new_states == nullptr ? nullptr : new_states[s];
    }
    if (gpu_op.spec.skips) {
      call.updates = updates;
      call.macs = macs;
    }
    RunOp(gpu_op, sizes, static_cast<const float*>(packed), call, stream);
  });
}

[[gnu::visibility("default")]] int edgernn_cuda_geometry(int tile, int blocks, int threads,
                                                         int memory) {
  return Guard([&] {
    const bool tiles = tile == 0 || tile == 1 || tile == 4;
    const bool blocked = blocks >= 0 && blocks <= 8 && (blocks & (blocks - 1)) == 0;
    if (!tiles || !blocked || threads < 0 || threads > 512 || threads % 32 != 0 || memory < 0) {
      throw InvalidArgument(
          "geometry: expected a tile of 1 or 4, 1, 2, 4 or 8 blocks, and whole "
          "warps of at most 512 threads; or 0 for each");
    }
    requested_geometry = {tile, blocks, threads, memory};
  });
}

}  // extern "C"
