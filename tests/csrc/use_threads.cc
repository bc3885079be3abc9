// SPDX-License-Identifier: Apache-2.0
// Uses packed models from several threads at once: `use_threads FILE...`, run by `make
// check-threads` under ThreadSanitizer. Every output must equal that of one thread alone.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "edgernn.h"
#include "try_packed_model.h"

namespace edgernn_tests {
namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 30;
constexpr int kRounds = 20;
constexpr int kForks = 100;
// a child that waits for a lock of a thread that it lacks is killed; the machine may stand still
// for a while
constexpr unsigned kChildSeconds = 120;

// The content of a packed model, which all its streams share.
struct File {
  AlignedMemory data;
  std::size_t bytes;
};

// A model that is opened from a file, and its buffers. `memory` is released with it.
class Stream {
 public:
  explicit Stream(const File& file) {
    std::size_t need = 0;
    Expect(edgernn_memory(file.data.get(), file.bytes, 1, &need) == EDGERNN_OK, "a model is valid");
    memory_ = Allocate(need);
    Expect(edgernn_open(file.data.get(), file.bytes, 1, memory_.get(), need, &model_) == EDGERNN_OK,
           "a model opens");
    Expect(edgernn_sizes(model_, &sizes_) == EDGERNN_OK, "a model has sizes");
    x_.resize(static_cast<std::size_t>(sizes_.input));
    y_.resize(static_cast<std::size_t>(sizes_.output));
  }

  // Runs step t and appends y to `outputs`.
  void Step(int t, std::vector<float>* outputs) {
    for (std::size_t i = 0; i < x_.size(); ++i) {
      x_[i] = static_cast<float>((t * 7 + static_cast<int>(i) * 5) % 11) * 0.3f - 1.5f;
    }
    const std::int64_t word = sizes_.vocabulary > 0 ? t % sizes_.vocabulary : 0;
    const EdgernnStatus status = sizes_.vocabulary > 0
                                     ? edgernn_step_words(model_, &word, y_.data())
                                     : edgernn_step(model_, x_.data(), y_.data());
    Expect(status == EDGERNN_OK, "a step runs");
    outputs->insert(outputs->end(), y_.begin(), y_.end());
  }

 private:
  AlignedMemory memory_;
  EdgernnModel* model_ = nullptr;
  EdgernnSizes sizes_{};
  std::vector<float> x_, y_;
};

std::vector<float> Run(const File& file) {
  std::vector<float> outputs;
  Stream stream(file);
  for (int t = 0; t < kSteps; ++t) stream.Step(t, &outputs);
  return outputs;
}

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void OnThreads(const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// Streams are made and dropped on every thread while the others run.
void UseManyStreams(const std::vector<File>& files,
                    const std::vector<std::vector<float>>& expected) {
  OnThreads([&](int thread) {
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < files.size(); ++i) {
        const std::size_t at = (i + static_cast<std::size_t>(thread) * 3) % files.size();
        Expect(Same(Run(files[at]), expected[at]), "a stream equals that of one thread alone");
      }
    }
  });
}

// One stream goes from thread to thread, under a lock of the app.
void ShareStreams(const std::vector<File>& files, const std::vector<std::vector<float>>& expected) {
  for (std::size_t at = 0; at < files.size(); ++at) {
    Stream stream(files[at]);
    std::vector<float> outputs;
    std::mutex mutex;
    int t = 0;
    OnThreads([&](int) {
      for (;;) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (t == kSteps) return;
        stream.Step(t++, &outputs);
      }
    });
    Expect(Same(outputs, expected[at]), "a shared stream equals that of one thread alone");
  }
}

// Each thread reads the message of its own last error.
void ReadMessages() {
  OnThreads([](int thread) {
    for (int round = 0; round < 1000; ++round) {
      EdgernnModel* model = nullptr;
      alignas(8) char data[64] = {};
      std::size_t need = 0;
      if (thread % 2 == 0) {
        Expect(edgernn_memory(nullptr, 0, 1, &need) == EDGERNN_BAD_ARGUMENT, "null is refused");
        Expect(std::strstr(edgernn_message(), "null") != nullptr, "the message is of this thread");
      } else {
        Expect(edgernn_open(data, 3, 1, data, 0, &model) != EDGERNN_OK, "bad files are refused");
        Expect(std::strstr(edgernn_message(), "null") == nullptr, "the message is of this thread");
      }
    }
  });
}

// Processes that are forked while other threads open models can open models, too.
void Fork(const std::vector<File>& files, const std::vector<std::vector<float>>& expected) {
  std::atomic<bool> done{false};
  std::thread forks([&] {
    for (int i = 0; i < kForks; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) % files.size();
      const pid_t child = fork();
      if (child == 0) {
        alarm(kChildSeconds);
        _exit(Same(Run(files[at]), expected[at]) ? 0 : 1);
      }
      int status = 0;
      const bool ended = child > 0 && waitpid(child, &status, 0) == child;
      if (status != 0) std::fprintf(stderr, "fork %d has wait status %#x\n", i, status);
      Expect(ended && status == 0, "a forked process opens and steps models");
    }
    done = true;
  });
  std::thread opens([&] {
    while (!done) {
      for (const File& file : files) Stream stream(file);
    }
  });
  forks.join();
  opens.join();
}

}  // namespace
}  // namespace edgernn_tests

int main(int argc, char** argv) {
  using namespace edgernn_tests;
  std::vector<File> files;
  for (int i = 1; i < argc; ++i) {
    std::ifstream stream(argv[i], std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(stream)), {});
    files.push_back({Allocate(content.size()), content.size()});
    std::memcpy(files.back().data.get(), content.data(), content.size());
  }
  Expect(!files.empty(), "files are named");
  // the first call of all is made by several threads at once
  std::vector<std::vector<float>> first(kThreads), expected;
  OnThreads([&](int thread) { first[static_cast<std::size_t>(thread)] = Run(files[0]); });
  for (const File& file : files) expected.push_back(Run(file));
  for (const std::vector<float>& outputs : first)
    Expect(Same(outputs, expected[0]), "first calls agree");
  UseManyStreams(files, expected);
  ShareStreams(files, expected);
  ReadMessages();
  Fork(files, expected);
  std::printf("%zu packed models on %d threads, %d forks: no fault\n", files.size(), kThreads,
              kForks);
  return 0;
}
