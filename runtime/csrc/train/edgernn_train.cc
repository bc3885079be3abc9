// SPDX-License-Identifier: Apache-2.0
// Implements edgernn_train.h: selects the instruction set, splits a batch among threads and lays
// out the workspace.

#include "train/edgernn_train.h"

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "train/train_table.h"

#define EDGERNN_TABLE TrainTable
#include "common/dispatch.h"
#include "common/flush_subnormals.h"
#include "common/invalid_argument.h"
#include "train/program_cell.h"

namespace edgernn {
namespace {

// The kernels in use, or null if this processor supports none of the built instruction sets.
const TrainTable* ChosenTable() {
  const char* error = nullptr;
  static const TrainTable* const table = ChooseTable(&error);
  return table;
}

constexpr std::size_t kAlignment = 64;

std::size_t Aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The partition of a call's rows and of its workspace among threads.
struct Partition {
  std::int64_t threads;
  std::int64_t rows;  // maximum for a thread
  std::size_t packed;
  std::size_t scratch;  // for each thread

  explicit Partition(const EdgernnTrainCall& call) {
    const TrainTable& table = *ChosenTable();
    // starting a thread takes about 20 us: give it ten times as much work
    constexpr std::int64_t kSumsPerThread = 1 << 20;
    const std::int64_t sums =
        call.steps * call.batch * call.hidden * (call.hidden + call.input + 64);
    threads = 1 + sums / kSumsPerThread;
    if (threads > call.threads) threads = call.threads;
    if (threads > call.batch) threads = call.batch;
    // the statistics need all rows
    if (call.norms != nullptr) threads = 1;
    if (threads < 1) threads = 1;
    rows = (call.batch + threads - 1) / threads;
    packed = Aligned(table.packed_bytes(call));
    scratch = Aligned(table.scratch_bytes(call, rows));
  }
};

// Runs work(data) on at most `threads` threads at once.
using RunParallel = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

void RunOnNewThreads(void (*work)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> workers;
  for (unsigned i = 1; i < threads; ++i) workers.emplace_back(work, data);
  work(data);
  for (std::thread& worker : workers) worker.join();
}

// Returns GOMP_parallel of OpenMP if the process has loaded it, else RunOnNewThreads: torch's
// OpenMP threads spin for milliseconds after each op, and would compete with further threads.
RunParallel FindRunParallel() {
#if !defined(_WIN32)
  const auto gomp_parallel = reinterpret_cast<RunParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (gomp_parallel != nullptr) return gomp_parallel;
#endif
  return &RunOnNewThreads;
}

// One direction of a call, split into parts that threads take from a counter.
struct Work {
  const EdgernnTrainCall& call;
  const bool back;
  const std::int64_t rows;  // maximum for a part
  void* packed;
  std::vector<void*> scratch;  // for each part
  std::atomic<std::size_t> next;

  static void Run(void* data) {
    const FlushSubnormals flush;
    const TrainTable& table = *ChosenTable();
    Work& work = *static_cast<Work*>(data);
    for (std::size_t i = work.next++; i < work.scratch.size(); i = work.next++) {
      const std::int64_t first = static_cast<std::int64_t>(i) * work.rows;
      const std::int64_t batch = work.call.batch;
      const std::int64_t end = first + work.rows < batch ? first + work.rows : batch;
      (work.back ? table.backward : table.forward)(work.call, work.packed, first, end,
                                                   work.scratch[i]);
    }
  }
};

void Run(const EdgernnTrainCall& call, bool back) {
  static const RunParallel run_parallel = FindRunParallel();
  const TrainTable& table = *ChosenTable();
  const Partition partition(call);
  const std::size_t base = Aligned(reinterpret_cast<std::uintptr_t>(call.scratch));
  Work work{call, back, partition.rows, reinterpret_cast<void*>(base), {}, {0}};
  for (std::int64_t i = 0; i * partition.rows < call.batch; ++i) {
    work.scratch.push_back(reinterpret_cast<void*>(
        base + partition.packed + static_cast<std::size_t>(i) * partition.scratch));
  }
  table.pack(call, back, work.packed);
  if (work.scratch.size() == 1) {
    Work::Run(&work);
  } else {
    // OpenMP ends threads that a team does not use, so request all of them
    const std::size_t parts = work.scratch.size();
    const bool openmp = run_parallel != &RunOnNewThreads;
    run_parallel(&Work::Run, &work, static_cast<unsigned>(openmp ? call.threads : parts), 0);
  }
  if (back) table.sum_grads(call, work.scratch.data(), static_cast<int>(work.scratch.size()));
}

}  // namespace
}  // namespace edgernn

extern "C" {

std::int64_t edgernn_train_call_bytes() { return sizeof(EdgernnTrainCall); }

std::int64_t edgernn_train_cell(const char* name, std::int64_t biases) {
  const edgernn::TrainTable* table = edgernn::ChosenTable();
  for (int i = 0; table != nullptr && i < table->cell_count; ++i) {
    const edgernn::TrainCell& cell = table->cells[i];
    if (cell.name != std::string(name)) continue;
    std::int64_t required = 0, possible = 0;
    for (int g = 0; g < cell.gates; ++g) {
      required += (cell.terms[g] & edgernn::kBias) != 0;
      possible += (cell.terms[g] & (edgernn::kBias | edgernn::kOptionalBias)) != 0;
    }
    if (biases == required) return i;
    if (biases == possible) return i + table->cell_count;
  }
  return -1;
}

const void* edgernn_train_new_cell(const EdgernnTrainCellSource* source, char* message,
                                   std::int64_t message_bytes) {
  try {
    const edgernn::TrainTable* table = edgernn::ChosenTable();
    if (table == nullptr) {
      throw edgernn::InvalidArgument("this processor runs none of the built instruction sets");
    }
    return static_cast<const edgernn::TrainCell*>(
        new edgernn::OwnedTrainCell(*source, *table->program));
  } catch (const std::exception& error) {
    if (message_bytes > 0) {
      const std::size_t room = static_cast<std::size_t>(message_bytes) - 1;
      const std::size_t length = std::strlen(error.what());
      const std::size_t count = length < room ? length : room;
      std::memcpy(message, error.what(), count);
      message[count] = '\0';
    }
    return nullptr;
  }
}

void edgernn_train_free_cell(const void* program) {
  const auto* const cell = static_cast<const edgernn::TrainCell*>(program);
  delete static_cast<const edgernn::OwnedTrainCell*>(cell);
}

std::int64_t edgernn_train_rule(const char* name) {
  const edgernn::TrainTable* table = edgernn::ChosenTable();
  for (int i = 0; table != nullptr && i < table->rule_count; ++i) {
    const edgernn::TrainRule& rule = table->rules[i];
    const bool has_kernel = rule.kind == edgernn::RuleKind::kTime || rule.decide != nullptr;
    if (has_kernel && rule.name == std::string(name)) return i;
  }
  return -1;
}

std::int64_t edgernn_train_gates(const EdgernnTrainCall* call) {
  return edgernn::ChosenTable()->gates(*call);
}

std::int64_t edgernn_train_scratch(const EdgernnTrainCall* call) {
  const edgernn::Partition partition(*call);
  return static_cast<std::int64_t>(partition.packed + edgernn::kAlignment +
                                   static_cast<std::size_t>(partition.threads) * partition.scratch);
}

void edgernn_train_forward(const EdgernnTrainCall* call) { edgernn::Run(*call, false); }

void edgernn_train_backward(const EdgernnTrainCall* call) { edgernn::Run(*call, true); }

const char* edgernn_train_isa() {
  const edgernn::TrainTable* table = edgernn::ChosenTable();
  return table == nullptr ? nullptr : table->isa;
}

int edgernn_probe_sequences(int (*step)(void*, const float*, float*), int (*reset)(void*),
                            void* model, const float* x, std::int64_t sequences, std::int64_t steps,
                            std::int64_t stride, float* y) {
  int error = 0;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    if (const int status = reset(model); status != 0) error = status;
    for (std::int64_t t = 0; t < steps; ++t, x += stride) {
      if (const int status = step(model, x, y); status != 0) error = status;
    }
  }
  return error;
}

}  // extern "C"
