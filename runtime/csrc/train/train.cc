// SPDX-License-Identifier: Apache-2.0
// The plain C functions of the training library: instruction sets, threads, buffers.

#include "train/train.h"

#include <cstring>
#include <thread>
#include <vector>

#define EDGERNN_TABLE TrainTable
#include "dispatch.h"

namespace edgernn {
namespace {

// Null: none of the instruction sets that were built runs here.
const TrainTable* Chosen() {
  const char* error = nullptr;
  static const TrainTable* const table = ChooseTable(&error);
  return table;
}

constexpr std::size_t kAlignment = 64;

std::size_t Aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// How the rows of a call are split among threads, and its scratch among them.
struct Split {
  std::int64_t threads;
  std::int64_t rows;  // of one thread, at most
  std::size_t prepared;
  std::size_t scratch;  // of one thread

  explicit Split(const EdgernnTrainCall& call) {
    const TrainTable& table = *Chosen();
    // a thread costs some 20 microseconds: it should have ten times as much to do
    constexpr std::int64_t kWorth = 1 << 20;
    const std::int64_t sums =
        call.steps * call.batch * call.hidden * (call.hidden + call.input + 64);
    threads = 1 + sums / kWorth;
    if (threads > call.threads) threads = call.threads;
    if (threads > call.batch) threads = call.batch;
    if (threads < 1) threads = 1;
    rows = (call.batch + threads - 1) / threads;
    prepared = Aligned(table.prepared_bytes(call));
    scratch = Aligned(table.scratch_bytes(call, rows));
  }
};

void Run(const EdgernnTrainCall& call, bool back) {
  const TrainTable& table = *Chosen();
  const Split split(call);
  const std::size_t base = Aligned(reinterpret_cast<std::uintptr_t>(call.scratch));
  void* const prepared = reinterpret_cast<void*>(base);
  std::vector<void*> scratch;
  for (std::int64_t i = 0; i * split.rows < call.batch; ++i) {
    scratch.push_back(reinterpret_cast<void*>(base + split.prepared +
                                              static_cast<std::size_t>(i) * split.scratch));
  }
  table.prepare(call, back, prepared);
  const auto work = [&](std::size_t i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * split.rows;
    const std::int64_t end = first + split.rows < call.batch ? first + split.rows : call.batch;
    (back ? table.backward : table.forward)(call, prepared, first, end, scratch[i]);
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < scratch.size(); ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  if (back) table.add_up(call, scratch.data(), static_cast<int>(scratch.size()));
}

}  // namespace
}  // namespace edgernn

extern "C" {

std::int64_t edgernn_train_call_bytes() { return sizeof(EdgernnTrainCall); }

std::int64_t edgernn_train_cell(const char* name) {
  const edgernn::TrainTable* table = edgernn::Chosen();
  for (int i = 0; table != nullptr && i < table->cell_count; ++i) {
    if (std::strcmp(table->cells[i].name, name) == 0) return i;
  }
  return -1;
}

std::int64_t edgernn_train_gates(const EdgernnTrainCall* call) {
  return edgernn::Chosen()->gates(*call);
}

std::int64_t edgernn_train_scratch(const EdgernnTrainCall* call) {
  const edgernn::Split split(*call);
  return static_cast<std::int64_t>(split.prepared + edgernn::kAlignment +
                                   static_cast<std::size_t>(split.threads) * split.scratch);
}

void edgernn_train_forward(const EdgernnTrainCall* call) { edgernn::Run(*call, false); }

void edgernn_train_backward(const EdgernnTrainCall* call) { edgernn::Run(*call, true); }

const char* edgernn_train_isa() {
  const edgernn::TrainTable* table = edgernn::Chosen();
  return table == nullptr ? nullptr : table->isa;
}

}  // extern "C"
