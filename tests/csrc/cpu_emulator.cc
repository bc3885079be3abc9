// SPDX-License-Identifier: Apache-2.0
// Implements cuda/launch.h on the CPU, for tests: each thread of a cluster is a coroutine that runs
// until it waits at a barrier. The order is shuffled in every round to detect missing
// synchronisation.

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "cells/list.h"
#include "cuda/launch.h"
#include "cuda/recurrence.h"

namespace edgernn::cuda {

namespace {

// A reusable barrier for `size` threads.
struct Barrier {
  int size = 0;
  int arrived = 0;
  std::int64_t generation = 0;  // how often all threads have arrived
};

// The sum over kRowThreads adjacent threads, with double-buffered operands.
struct Reduction {
  Barrier barrier;
  float values[2][kRowThreads] = {};
};

struct Cluster;

struct Thread {
  Cluster* cluster = nullptr;
  int block = 0;
  int index = 0;
  std::int64_t sums = 0;
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
  const Barrier* barrier = nullptr;  // where it waits for the end of this generation
  std::int64_t generation = 0;
  bool ended = false;

  bool Waits() const { return barrier != nullptr && barrier->generation == generation; }
};

struct EmulatedBlock {
  std::vector<float> memory;
  Barrier barrier;
  std::vector<Reduction> reductions;
};

struct Cluster {
  std::int64_t index = 0;
  int threads = 0;
  std::vector<EmulatedBlock> blocks;
  std::vector<Thread> members;
  Barrier barrier;
  ucontext_t scheduler{};
  Thread* running = nullptr;
  bool progressed = false;  // true if a thread reached a barrier in this round
  void (*body)(Cluster*) = nullptr;
  const LaunchPlan* plan = nullptr;
  const Call* call = nullptr;
  const float* packed = nullptr;

  void Yield() { swapcontext(&running->context, &scheduler); }

  void WaitAt(Barrier* barrier) {
    const std::int64_t current = barrier->generation;
    progressed = true;
    if (++barrier->arrived == barrier->size) {
      barrier->arrived = 0;
      ++barrier->generation;
      return;
    }
    running->barrier = barrier;
    running->generation = current;
    Yield();
  }
};

// The emulated counterpart of cuda/cluster_group.h.
class ClusterGroup {
 public:
  explicit ClusterGroup(Cluster* cluster) : cluster_(cluster), self_(cluster->running) {}

  int thread() const { return self_->index; }
  int threads() const { return cluster_->threads; }
  int block() const { return self_->block; }
  int blocks() const { return static_cast<int>(cluster_->blocks.size()); }
  int cluster_index() const { return static_cast<int>(cluster_->index); }
  float* memory() const { return ThisBlock().memory.data(); }

  void SyncBlock() const { cluster_->WaitAt(&ThisBlock().barrier); }
  void SyncCluster() const { cluster_->WaitAt(&cluster_->barrier); }

  float Sum(float a) const {
    Reduction& reduction = ThisBlock().reductions[static_cast<std::size_t>(thread() / kRowThreads)];
    float* const values = reduction.values[self_->sums++ % 2];
    values[thread() % kRowThreads] = a;
    cluster_->WaitAt(&reduction.barrier);
    float sums[kRowThreads];
    std::copy_n(values, kRowThreads, sums);
    for (int step = kRowThreads / 2; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
    }
    return sums[0];
  }

  template <class T>
  T* AddressIn(int block, T* at) const {
    float* const to = cluster_->blocks[static_cast<std::size_t>(block)].memory.data();
    return reinterpret_cast<T*>(to + (reinterpret_cast<float*>(at) - memory()));
  }

  int FetchIncrement(int* at) const { return (*at)++; }

 private:
  EmulatedBlock& ThisBlock() const {
    return cluster_->blocks[static_cast<std::size_t>(self_->block)];
  }

  Cluster* const cluster_;
  Thread* const self_;
};

template <class Cell, int kTile>
void RunRecurrence(Cluster* cluster) {
  const ClusterGroup group(cluster);
  Recurrence<Cell, kTile, ClusterGroup>(*cluster->plan, *cluster->call, cluster->packed, group)
      .Run();
}

using Body = void (*)(Cluster*);

template <class... AllCells>
Body FindBody(TypeList<AllCells...>, std::size_t cell, int tile) {
  static constexpr Body kOne[] = {&RunRecurrence<AllCells, 1>...};
  static constexpr Body kFour[] = {&RunRecurrence<AllCells, 4>...};
  return tile == 1 ? kOne[cell] : kFour[cell];
}

// The body of a coroutine. makecontext passes 32-bit arguments, so the pointer comes in two halves.
void RunThread(unsigned high, unsigned low) {
  auto* const cluster = reinterpret_cast<Cluster*>(std::uintptr_t{high} << 32 | low);
  cluster->body(cluster);
  cluster->running->ended = true;
  cluster->Yield();
}

void RunCluster(Cluster* cluster, std::mt19937* numbers) {
  constexpr std::size_t kStack = 128 << 10;
  std::vector<Thread*> active;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(cluster);
  for (Thread& thread : cluster->members) {
    thread.stack.reset(new char[kStack]);  // not zeroed, so that unused pages stay unmapped
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStack;
    makecontext(&thread.context, reinterpret_cast<void (*)()>(&RunThread), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
    active.push_back(&thread);
  }
  while (!active.empty()) {
    std::shuffle(active.begin(), active.end(), *numbers);
    cluster->progressed = false;
    for (Thread* const thread : active) {
      if (thread->Waits()) continue;
      cluster->running = thread;
      swapcontext(&cluster->scheduler, &thread->context);
    }
    const auto ended = [](const Thread* thread) { return thread->ended; };
    const std::size_t before = active.size();
    active.erase(std::remove_if(active.begin(), active.end(), ended), active.end());
    if (!cluster->progressed && active.size() == before) {
      throw GpuError("the threads of a cluster wait for each other forever");
    }
  }
}

}  // namespace

const char* Missing() { return nullptr; }

// The limits of an H100.
Limits FindLimits() {
  Limits limits{};
  limits.processors = 132;
  limits.memory = 227 << 10;
  limits.blocks = 8;
  limits.threads = 512;
  return limits;
}

void FreeMemory::operator()(float* memory) const { std::free(memory); }

Memory Allocate(std::int64_t floats, void* stream) {
  void* const memory = std::malloc(static_cast<std::size_t>(floats) * sizeof(float));
  if (memory == nullptr) throw GpuError("out of memory");
  return Memory(static_cast<float*>(memory), {stream});
}

Memory Upload(const float* from, std::int64_t floats, void* stream) {
  Memory memory = Allocate(floats, stream);
  std::copy_n(from, floats, memory.get());
  return memory;
}

void Wait(void*) {}

void Pack(const std::vector<WeightCopy>& copies, std::int64_t floats, float* packed, void*) {
  std::fill_n(packed, floats, 0.0f);
  for (const WeightCopy& copy : copies) {
    for (std::int64_t row = 0; row < copy.rows; ++row) {
      for (std::int64_t column = 0; column < copy.columns; ++column) {
        packed[copy.to + row * copy.to_stride + column * copy.to_column_stride] =
            Apply(copy.map, copy.from[row * copy.from_stride + column]);
      }
    }
  }
}

void Launch(std::size_t cell, const LaunchPlan& plan, const Call& call, const float* packed,
            void*) {
  const Geometry& geometry = plan.geometry;
  std::mt19937 numbers(static_cast<unsigned>(call.steps));
  const std::int64_t clusters = (call.batch + geometry.tile - 1) / geometry.tile;
  for (std::int64_t index = 0; index < clusters; ++index) {
    Cluster cluster;
    cluster.index = index;
    cluster.threads = geometry.threads;
    cluster.body = FindBody(Cells{}, cell, geometry.tile);
    cluster.plan = &plan;
    cluster.call = &call;
    cluster.packed = packed;
    cluster.barrier.size = geometry.blocks * geometry.threads;
    cluster.blocks.resize(static_cast<std::size_t>(geometry.blocks));
    cluster.members.resize(static_cast<std::size_t>(cluster.barrier.size));
    int member = 0;
    for (Thread& thread : cluster.members) {
      thread.block = member / geometry.threads;
      thread.index = member++ % geometry.threads;
    }
    for (EmulatedBlock& block : cluster.blocks) {
      // NaN reveals reads of uninitialised memory
      block.memory.assign(static_cast<std::size_t>(geometry.memory / 4), NAN);
      block.barrier.size = geometry.threads;
      block.reductions.resize(static_cast<std::size_t>(geometry.threads / kRowThreads));
      for (Reduction& reduction : block.reductions) reduction.barrier.size = kRowThreads;
    }
    RunCluster(&cluster, &numbers);
  }
}

}  // namespace edgernn::cuda
