// SPDX-License-Identifier: Apache-2.0
// Emulates a GPU on the CPU, for tests: the threads of a cluster take turns, each until it waits
// for others. The order is drawn anew in every round, which finds missing synchronisation.

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "cells/list.h"
#include "cuda/launch.h"
#include "cuda/recurrence.h"

namespace edgernn::cuda {

namespace {

// So many threads that meet again and again.
struct Meeting {
  int size = 0;
  int arrived = 0;
  std::int64_t met = 0;
};

// Threads side by side, and the numbers that they add up, in turns of two.
struct Summing {
  Meeting meeting;
  float values[2][kRowThreads] = {};
};

struct Cluster;

struct Thread {
  Cluster* cluster = nullptr;
  int block = 0;
  int index = 0;
  std::int64_t sums = 0;
  ucontext_t context{};
  std::vector<char> stack;
  bool ended = false;
};

struct EmulatedBlock {
  std::vector<float> memory;
  Meeting meeting;
  std::vector<Summing> summing;
};

struct Cluster {
  std::int64_t index = 0;
  int threads = 0;
  std::vector<EmulatedBlock> blocks;
  std::vector<Thread> members;
  Meeting meeting;
  ucontext_t scheduler{};
  Thread* running = nullptr;
  bool moved = false;  // whether anybody got any further in this round
  void (*body)(Cluster*) = nullptr;
  const LaunchPlan* plan = nullptr;
  const Call* call = nullptr;
  const float* packed = nullptr;

  void Yield() { swapcontext(&running->context, &scheduler); }

  void Meet(Meeting* meeting) {
    const std::int64_t now = meeting->met;
    moved = true;
    if (++meeting->arrived == meeting->size) {
      meeting->arrived = 0;
      ++meeting->met;
      return;
    }
    while (meeting->met == now) Yield();
  }
};

// The emulated counterpart of cuda/team.h.
class Team {
 public:
  explicit Team(Cluster* cluster) : cluster_(cluster), self_(cluster->running) {}

  int thread() const { return self_->index; }
  int threads() const { return cluster_->threads; }
  int block() const { return self_->block; }
  int blocks() const { return static_cast<int>(cluster_->blocks.size()); }
  int cluster() const { return static_cast<int>(cluster_->index); }
  float* memory() const { return ThisBlock().memory.data(); }

  void Sync() const { cluster_->Meet(&ThisBlock().meeting); }
  void SyncAll() const { cluster_->Meet(&cluster_->meeting); }

  float Sum(float a) const {
    Summing& summing = ThisBlock().summing[static_cast<std::size_t>(thread() / kRowThreads)];
    float* const values = summing.values[self_->sums++ % 2];
    values[thread() % kRowThreads] = a;
    cluster_->Meet(&summing.meeting);
    float sums[kRowThreads];
    std::copy_n(values, kRowThreads, sums);
    for (int step = kRowThreads / 2; step > 0; step /= 2) {
      for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
    }
    return sums[0];
  }

  template <class T>
  T* Of(int block, T* at) const {
    float* const to = cluster_->blocks[static_cast<std::size_t>(block)].memory.data();
    return reinterpret_cast<T*>(to + (reinterpret_cast<float*>(at) - memory()));
  }

  int Count(int* at) const { return (*at)++; }

 private:
  EmulatedBlock& ThisBlock() const {
    return cluster_->blocks[static_cast<std::size_t>(self_->block)];
  }

  Cluster* const cluster_;
  Thread* const self_;
};

template <class Cell, int kTile>
void Recur(Cluster* cluster) {
  const Team team(cluster);
  Recurrence<Cell, kTile, Team>(*cluster->plan, *cluster->call, cluster->packed, team).Run();
}

using Body = void (*)(Cluster*);

template <class... AllCells>
Body Find(TypeList<AllCells...>, std::size_t cell, int tile) {
  static constexpr Body kOne[] = {&Recur<AllCells, 1>...};
  static constexpr Body kFour[] = {&Recur<AllCells, 4>...};
  return tile == 1 ? kOne[cell] : kFour[cell];
}

// A pointer, as makecontext takes numbers of 32 bits.
void Enter(unsigned high, unsigned low) {
  auto* const cluster = reinterpret_cast<Cluster*>(std::uintptr_t{high} << 32 | low);
  cluster->body(cluster);
  cluster->running->ended = true;
  cluster->Yield();
}

void Play(Cluster* cluster, std::mt19937* numbers) {
  constexpr std::size_t kStack = 128 << 10;
  std::vector<Thread*> left;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(cluster);
  for (Thread& thread : cluster->members) {
    thread.stack.resize(kStack);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = kStack;
    makecontext(&thread.context, reinterpret_cast<void (*)()>(&Enter), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
    left.push_back(&thread);
  }
  while (!left.empty()) {
    std::shuffle(left.begin(), left.end(), *numbers);
    cluster->moved = false;
    for (Thread* const thread : left) {
      cluster->running = thread;
      swapcontext(&cluster->scheduler, &thread->context);
    }
    const auto ended = [](const Thread* thread) { return thread->ended; };
    const std::size_t before = left.size();
    left.erase(std::remove_if(left.begin(), left.end(), ended), left.end());
    if (!cluster->moved && left.size() == before) {
      throw GpuError("the threads of a cluster wait for each other forever");
    }
  }
}

}  // namespace

const char* Missing() { return nullptr; }

// Those of an H100.
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

void Pack(const std::vector<Piece>& pieces, std::int64_t floats, float* packed, void*) {
  std::fill_n(packed, floats, 0.0f);
  for (const Piece& piece : pieces) {
    for (std::int64_t row = 0; row < piece.rows; ++row) {
      for (std::int64_t column = 0; column < piece.columns; ++column) {
        packed[piece.to + row * piece.to_stride + column] =
            Apply(piece.map, piece.from[row * piece.from_stride + column]);
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
    cluster.body = Find(Cells{}, cell, geometry.tile);
    cluster.plan = &plan;
    cluster.call = &call;
    cluster.packed = packed;
    cluster.meeting.size = geometry.blocks * geometry.threads;
    cluster.blocks.resize(static_cast<std::size_t>(geometry.blocks));
    cluster.members.resize(static_cast<std::size_t>(cluster.meeting.size));
    int member = 0;
    for (Thread& thread : cluster.members) {
      thread.block = member / geometry.threads;
      thread.index = member++ % geometry.threads;
    }
    for (EmulatedBlock& block : cluster.blocks) {
      // what a kernel does not set itself would show
      block.memory.assign(static_cast<std::size_t>(geometry.memory / 4), NAN);
      block.meeting.size = geometry.threads;
      block.summing.resize(static_cast<std::size_t>(geometry.threads / kRowThreads));
      for (Summing& summing : block.summing) summing.meeting.size = kRowThreads;
    }
    Play(&cluster, &numbers);
  }
}

}  // namespace edgernn::cuda
