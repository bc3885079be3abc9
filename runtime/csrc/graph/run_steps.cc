// SPDX-License-Identifier: Apache-2.0
// Implements run_steps.h.

#include "graph/run_steps.h"

#include <chrono>
#include <cstring>

#include "graph/graph.h"

namespace edgernn {
namespace {

// A clock, which WebAssembly lacks.
std::int64_t Nanoseconds() {
#if defined(__wasm__)
  return 0;
#else
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
#endif
}

std::size_t FloatBytes(std::int64_t floats) {
  return static_cast<std::size_t>(floats) * sizeof(float);
}

// Copies rows of a few neighbours, without a call for each row.
template <int kCount>
void CopyParts(const CopyLoop& rows, const float* from, float* to) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float part[kCount];
    std::memcpy(part, from + i * rows.from, sizeof part);
    std::memcpy(to + i * rows.to, part, sizeof part);
  }
}

// Copies the numbers of the last two loops.
void CopyRows(const CopyLoop* loops, const float* from, float* to) {
  const CopyLoop &rows = loops[0], &row = loops[1];
  const bool neighbours = row.from == 1 && row.to == 1;
  if (neighbours && row.count == 4) return CopyParts<4>(rows, from, to);
  if (neighbours && row.count == 8) return CopyParts<8>(rows, from, to);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* const a = from + i * rows.from;
    float* const y = to + i * rows.to;
    if (neighbours) {
      // a part of a state may move inside the state
      std::memmove(y, a, FloatBytes(row.count));
      continue;
    }
    for (std::int64_t k = 0; k < row.count; ++k) y[k * row.to] = a[k * row.from];
  }
}

void Copy(const CopyLoop* loops, std::int64_t count, const float* from, float* to) {
  if (count == 2) return CopyRows(loops, from, to);
  for (std::int64_t i = 0; i < loops->count; ++i) {
    Copy(loops + 1, count - 1, from + i * loops->from, to + i * loops->to);
  }
}

// Returns how many of the steps behind a branch do not run, and counts the work of those that do.
[[gnu::cold]] std::int64_t SkippedBy(const Step& base, const StepCall& call) {
  const auto& branch = static_cast<const BranchStep&>(base);
  if ((*call.Find(branch.from) != 0.0f) != branch.wanted) return branch.count;
  if (call.updates != nullptr) *call.updates += branch.updates;
  *call.macs += branch.macs;
  return 0;
}

// Runs the steps and adds the time of each.
[[gnu::cold]] void TimeSteps(const StreamGroups& groups, const StepCall& call) {
  std::int64_t before = Nanoseconds();
  for (std::int64_t i = 0; i < groups.step_count; ++i) {
    const Step& step = *groups.steps[i];
    std::int64_t& sum = call.nanoseconds[i];
    if (step.run != nullptr) {
      step.run(step, call);
    } else {
      i += SkippedBy(step, call);
    }
    const std::int64_t after = Nanoseconds();
    sum += after - before;
    before = after;
  }
}

}  // namespace

void RunGraph(const Graph& graph, const StepCall& call) {
  for (const StreamGroups& groups : graph.groups) {
    const Step* const* const end = groups.steps + groups.step_count;
    for (std::int64_t group = 0; group < groups.count; ++group) {
      const std::int64_t first = groups.first + group * groups.streams;
      StepCall of_group = call;
      of_group.group = group;
      of_group.x += first * graph.input;
      of_group.y += first * graph.output;
      if (call.updates != nullptr) of_group.updates += first;
      if (call.macs != nullptr) of_group.macs += first;
      if (call.nanoseconds != nullptr) {
        TimeSteps(groups, of_group);
        continue;
      }
      for (const Step* const* step = groups.steps; step < end; ++step) {
        if ((*step)->run != nullptr) [[likely]] {
          (*step)->run(**step, of_group);
        } else {
          step += SkippedBy(**step, of_group);
        }
      }
    }
  }
}

void RunMoveStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const MoveStep&>(base);
  Copy(step.loops, step.loop_count, call.Find(step.from), call.Find(step.to));
}

void RunGatherStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const GatherStep&>(base);
  const float* from = call.Find(step.from);
  float* to = call.Find(step.to);
  const std::size_t bytes = FloatBytes(step.inner);
  for (std::int64_t b = 0; b < step.streams.count; ++b) {
    for (std::int64_t i = 0; i < step.count; ++i) {
      const std::int64_t index = step.indices[i];
      if (step.inner == 1) {
        to[i] = index < 0 ? 0.0f : from[index];
      } else if (index < 0) {
        std::memset(to + i * step.inner, 0, bytes);
      } else {
        std::memcpy(to + i * step.inner, from + index * step.inner, bytes);
      }
    }
    from += step.streams.from;
    to += step.streams.to;
  }
}

void RunLookupStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const LookupStep&>(base);
  const float* index = call.Find(step.index);
  float* to = call.Find(step.to);
  for (std::int64_t b = 0; b < step.streams.count; ++b) {
    const bool is_row = *index >= 0.0f && *index < static_cast<float>(step.rows);
    const std::int64_t first = is_row ? static_cast<std::int64_t>(*index) * step.columns : 0;
    for (std::int64_t i = 0; i < step.columns; ++i) to[i] = step.matrix[first + i];
    index += step.streams.from;
    to += step.streams.to;
  }
}

void RunRecurrentStep(const Step& base, const StepCall& call) {
  const auto& step = static_cast<const RecurrentStep&>(base);
  Call& layer = *step.layer_call;
  const float* from = call.Find(step.from);
  float* const to = step.has_output ? call.Find(step.to) : nullptr;
  for (std::int64_t i = 0; i < step.calls; ++i) {
    layer.x = from + i * step.from_stride;
    layer.y = step.has_output ? to + i * step.to_stride : nullptr;
    for (std::int64_t s = 0; s < step.states; ++s) {
      float* const state = call.Find(step.state[s].place) + i * step.state[s].stride;
      if (step.starts_from_zero) std::memset(state, 0, FloatBytes(step.rows * step.state[s].width));
      *step.places[s].in = *step.places[s].out = state;
    }
    const auto index = static_cast<std::uint64_t>(call.group * step.calls + i);
    layer.kept = step.kept + index * step.kept_bytes;
    step.op.Run(step.sizes, step.packed, layer, call.scratch);
    if (!step.skips) continue;
    for (std::int64_t row = 0; row < step.rows; ++row) {
      const std::int64_t stream = step.calls == 1 ? row / step.rows_of_stream : i;
      for (std::int64_t t = 0; t < step.steps; ++t) {
        call.updates[stream] += step.updates[t * step.rows + row];
      }
      call.macs[stream] += step.macs[row];
    }
  }
}

}  // namespace edgernn
