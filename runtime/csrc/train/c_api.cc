// SPDX-License-Identifier: Apache-2.0
// The plain C functions of the training library: instruction sets, threads, buffers.

#include "train/c_api.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#define EDGERNN_TABLE TrainTable
#include "common/dispatch.h"
#include "common/flush_subnormals.h"
#include "common/tensor.h"
#include "train/program_cell.h"

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

// Runs work(data) on so many threads at once, or on fewer.
using RunParallel = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

void RunOnNewThreads(void (*work)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, data);
  work(data);
  for (std::thread& other : others) other.join();
}

// OpenMP's, if the process has it: torch's threads go on spinning for milliseconds after each of
// its ops, and others would share the processors with them.
RunParallel FindRunParallel() {
  const auto gomp_parallel = reinterpret_cast<RunParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return gomp_parallel == nullptr ? &RunOnNewThreads : gomp_parallel;
}

// One direction of a call, in parts that threads take one after the other.
struct Work {
  const EdgernnTrainCall& call;
  const bool back;
  const std::int64_t rows;  // of a part, at most
  void* prepared;
  std::vector<void*> scratch;  // of each part
  std::atomic<std::size_t> next;

  static void Run(void* data) {
    const FlushSubnormals flush;
    const TrainTable& table = *Chosen();
    Work& work = *static_cast<Work*>(data);
    for (std::size_t i = work.next++; i < work.scratch.size(); i = work.next++) {
      const std::int64_t first = static_cast<std::int64_t>(i) * work.rows;
      const std::int64_t batch = work.call.batch;
      const std::int64_t end = first + work.rows < batch ? first + work.rows : batch;
      (work.back ? table.backward : table.forward)(work.call, work.prepared, first, end,
                                                   work.scratch[i]);
    }
  }
};

void Run(const EdgernnTrainCall& call, bool back) {
  static const RunParallel run_parallel = FindRunParallel();
  const TrainTable& table = *Chosen();
  const Split split(call);
  const std::size_t base = Aligned(reinterpret_cast<std::uintptr_t>(call.scratch));
  Work work{call, back, split.rows, reinterpret_cast<void*>(base), {}, {0}};
  for (std::int64_t i = 0; i * split.rows < call.batch; ++i) {
    work.scratch.push_back(reinterpret_cast<void*>(base + split.prepared +
                                                   static_cast<std::size_t>(i) * split.scratch));
  }
  table.prepare(call, back, work.prepared);
  if (work.scratch.size() == 1) {
    Work::Run(&work);
  } else {
    // OpenMP ends those of its threads that a team leaves out, so it is asked for all
    const std::size_t parts = work.scratch.size();
    const bool openmp = run_parallel != &RunOnNewThreads;
    run_parallel(&Work::Run, &work, static_cast<unsigned>(openmp ? call.threads : parts), 0);
  }
  if (back) table.add_up(call, work.scratch.data(), static_cast<int>(work.scratch.size()));
}

}  // namespace
}  // namespace edgernn

extern "C" {

std::int64_t edgernn_train_call_bytes() { return sizeof(EdgernnTrainCall); }

std::int64_t edgernn_train_cell(const char* name, std::int64_t biases) {
  const edgernn::TrainTable* table = edgernn::Chosen();
  for (int i = 0; table != nullptr && i < table->cell_count; ++i) {
    const edgernn::TrainCell& cell = table->cells[i];
    if (cell.name != std::string(name)) continue;
    std::int64_t fewest = 0, most = 0;
    for (int g = 0; g < cell.gates; ++g) {
      fewest += (cell.terms[g] & edgernn::kBias) != 0;
      most += (cell.terms[g] & (edgernn::kBias | edgernn::kOptionalBias)) != 0;
    }
    if (biases == fewest) return i;
    if (biases == most) return i + table->cell_count;
  }
  return -1;
}

const void* edgernn_train_new_cell(const EdgernnTrainCellSource* source, char* why,
                                   std::int64_t why_bytes) {
  try {
    const edgernn::TrainTable* table = edgernn::Chosen();
    if (table == nullptr) {
      throw edgernn::InvalidArgument("this processor runs none of the built instruction sets");
    }
    return static_cast<const edgernn::TrainCell*>(
        new edgernn::OwnedTrainCell(*source, *table->program));
  } catch (const std::exception& error) {
    if (why_bytes > 0) {
      const std::size_t room = static_cast<std::size_t>(why_bytes) - 1;
      const std::size_t length = std::strlen(error.what());
      const std::size_t count = length < room ? length : room;
      std::memcpy(why, error.what(), count);
      why[count] = '\0';
    }
    return nullptr;
  }
}

void edgernn_train_free_cell(const void* program) {
  const auto* const cell = static_cast<const edgernn::TrainCell*>(program);
  delete static_cast<const edgernn::OwnedTrainCell*>(cell);
}

std::int64_t edgernn_train_rule(const char* name) {
  const edgernn::TrainTable* table = edgernn::Chosen();
  for (int i = 0; table != nullptr && i < table->rule_count; ++i) {
    if (!table->rules[i].masks && table->rules[i].name == std::string(name)) return i;
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
