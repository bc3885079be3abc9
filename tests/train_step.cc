// SPDX-License-Identifier: Apache-2.0
// train_step > RESULTS: prints the instruction sets of libedgernn_ops and libedgernn_train on a
// line, then the states and gradients of an RNN as raw floats. Used by tests/checks/wheels.py.

#include <cmath>
#include <cstdio>
#include <vector>

#include "train/edgernn_train.h"

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif

extern "C" const char* edgernn_isa();

namespace {

using Floats = std::vector<float>;

// Numbers between -scale and scale.
Floats Make(std::int64_t count, float scale) {
  Floats numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = scale * std::sin(static_cast<float>(7 * i + numbers.size() % 97));
  }
  return numbers;
}

void Print(const Floats& numbers) {
  std::fwrite(numbers.data(), sizeof(float), numbers.size(), stdout);
}

}  // namespace

int main() {
#if defined(_WIN32)
  _setmode(1, _O_BINARY);
#endif
  const char* const isa = edgernn_isa();
  const char* const train_isa = edgernn_train_isa();
  std::printf("%s %s\n", isa == nullptr ? "none" : isa, train_isa == nullptr ? "none" : train_isa);
  if (train_isa == nullptr) return 0;

  // enough work for two threads
  constexpr std::int64_t kSteps = 9, kBatch = 8, kInput = 5, kHidden = 170;
  EdgernnTrainCall call{};
  call.cell = edgernn_train_cell("rnn", 1);
  call.rule = edgernn_train_rule("always");
  if (call.cell < 0 || call.rule < 0) return 2;
  call.steps = kSteps;
  call.batch = kBatch;
  call.input = kInput;
  call.hidden = kHidden;
  call.group_size = 1;
  call.threads = 2;
  call.keep = 1;
  const Floats x = Make(kSteps * kBatch * kInput, 1.0f), w = Make(kHidden * kInput, 0.5f);
  const Floats r = Make(kHidden * kHidden, 0.1f), b = Make(kHidden, 0.5f);
  const Floats start = Make(kBatch * kHidden, 0.5f);
  const Floats y_grad = Make(kSteps * kBatch * kHidden, 1.0f);
  Floats pre_activations(static_cast<std::size_t>(kSteps * kBatch * edgernn_train_gates(&call)));
  Floats state(y_grad.size()), x_grad(x.size()), w_grad(w.size()), r_grad(r.size());
  Floats b_grad(b.size()), start_grad(start.size());
  call.x = x.data();
  call.w = w.data();
  call.r = r.data();
  call.b = b.data();
  call.start[0] = start.data();
  call.p = pre_activations.data();
  call.state[0] = state.data();
  call.y_grad = y_grad.data();
  call.x_grad = x_grad.data();
  call.w_grad = w_grad.data();
  call.r_grad = r_grad.data();
  call.b_grad = b_grad.data();
  call.start_grad[0] = start_grad.data();
  Floats scratch(static_cast<std::size_t>(edgernn_train_scratch(&call)) / sizeof(float) + 1);
  call.scratch = scratch.data();
  edgernn_train_forward(&call);
  edgernn_train_backward(&call);
  for (const Floats* numbers : {&state, &x_grad, &w_grad, &r_grad, &b_grad, &start_grad})
    Print(*numbers);
  return 0;
}
