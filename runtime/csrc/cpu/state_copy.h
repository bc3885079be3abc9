// SPDX-License-Identifier: Apache-2.0
// Copies states and inputs between the caller's memory and padded scratch memory.

#pragma once

#include "cpu/gemm.h"

namespace edgernn::EDGERNN_ISA {

// Copies from (B, H) to state (B, padded H). The padding becomes 0.
inline void ReadState(const float* from, std::int64_t batch, std::int64_t hidden, float* state) {
  std::memset(state, 0, Bytes(batch * PadToLanes(hidden)));
  for (std::int64_t row = 0; row < batch; ++row) {
    std::memcpy(state + row * PadToLanes(hidden), from + row * hidden, Bytes(hidden));
  }
}

// Copies state (B, padded H) to (B, H), unless `to` is null.
inline void WriteState(const float* state, std::int64_t batch, std::int64_t hidden, float* to) {
  if (to == nullptr) return;
  for (std::int64_t row = 0; row < batch; ++row) {
    std::memcpy(to + row * hidden, state + row * PadToLanes(hidden), Bytes(hidden));
  }
}

// Clears the padding of a vector. Products include it, with weights of 0; an infinity there would
// give NaN.
inline void ClearPadding(float* from, std::int64_t size) {
  const std::int64_t padding = PadToLanes(size) - size;
  if (padding > 0) std::memset(from + size, 0, Bytes(padding));
}

// Copies the first `end` values times a mask, and zeros up to the padded size.
inline void Mask(const float* from, const float* mask, std::int64_t end, std::int64_t padded,
                 float* to) {
  for (std::int64_t i = 0; i < end; ++i) to[i] = from[i] * mask[i];
  std::memset(to + end, 0, Bytes(padded - end));
}

// The input of the step before, for a row of x (T * B, I).
inline const float* LastInput(const Call& call, std::int64_t row, std::int64_t input) {
  return row < call.batch ? call.last_in + row * input : call.x + (row - call.batch) * input;
}

// Writes pairs (count, B, 2I) of x_t and x_{t-1}, for `count` steps from step `from` on.
inline void PairInputs(const Call& call, std::int64_t input, std::int64_t from, std::int64_t count,
                       float* pairs) {
  const std::uint64_t bytes = Bytes(input);
  const std::int64_t end = (from + count) * call.batch;
  for (std::int64_t row = from * call.batch; row < end; ++row, pairs += 2 * input) {
    std::memcpy(pairs, call.x + row * input, bytes);
    std::memcpy(pairs + input, LastInput(call, row, input), bytes);
  }
}

// Stores the x of the last step for the next call.
inline void WriteLast(const Call& call, std::int64_t input) {
  if (call.last_out == nullptr) return;
  const std::int64_t size = call.batch * input;
  std::memcpy(call.last_out, call.x + (call.steps - 1) * size, Bytes(size));
}

}  // namespace edgernn::EDGERNN_ISA
