// SPDX-License-Identifier: Apache-2.0
// Nodes of the CPU provider.

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "onnx/node.h"
#include "onnx/shards.h"

// ThreadSanitizer does not see how ONNX Runtime, which is built without it, gives work to threads.
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#define EDGERNN_ACQUIRE(address) __tsan_acquire(address)
#define EDGERNN_RELEASE(address) __tsan_release(address)
#else
#define EDGERNN_ACQUIRE(address) static_cast<void>(address)
#define EDGERNN_RELEASE(address) static_cast<void>(address)
#endif

namespace edgernn {

namespace {

struct FreeBuffer {
  void operator()(void* buffer) const { ::operator delete(buffer, std::align_val_t(kAlignment)); }
};
using Buffer = std::unique_ptr<void, FreeBuffer>;

Buffer Allocate(std::size_t bytes) {
  return Buffer(::operator new(bytes, std::align_val_t(kAlignment)));
}

struct Scratch {
  std::size_t bytes;
  Buffer memory;
};

// Keeps the scratch memory of a call for the next one, so that steps of a stream allocate none. If
// calls overlap, one takes it and the others allocate their own.
class ScratchCache {
 public:
  ScratchCache() = default;
  ScratchCache(const ScratchCache&) = delete;
  ScratchCache& operator=(const ScratchCache&) = delete;
  ~ScratchCache() { delete cached_.load(); }

  std::unique_ptr<Scratch> Take(std::size_t bytes) {
    std::unique_ptr<Scratch> scratch(cached_.exchange(nullptr));
    if (scratch != nullptr && scratch->bytes >= bytes) return scratch;
    return std::unique_ptr<Scratch>(new Scratch{bytes, Allocate(bytes)});
  }

  // Keeps the memory, or releases it if it is larger than kMostBytes, as for large batches.
  void Return(std::unique_ptr<Scratch> scratch) {
    if (scratch->bytes <= kMostBytes) delete cached_.exchange(scratch.release());
  }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 18;

  std::atomic<Scratch*> cached_{nullptr};
};

class CpuNode : public Node {
 public:
  CpuNode(std::int64_t threads, const OrtApi* api, const OrtKernelInfo* info)
      : Node(api, info), threads_(threads) {
    std::vector<Tensor> weights;
    packed_once_ = ReadConstants(info, &weights);
    if (!packed_once_) return;
    sizes_ = CheckWeights(weights);
    packed_ = Pack(sizes_, weights);
  }

  void Run(OrtKernelContext* context) const override;

 private:
  Buffer Pack(const LayerSizes& sizes, const std::vector<Tensor>& weights) const {
    Buffer packed = Allocate(op_.PackedBytes(sizes));
    op_.Pack(sizes, op_.Arrange(weights), packed.get());
    return packed;
  }

  const std::int64_t threads_;
  bool packed_once_;
  LayerSizes sizes_{};
  Buffer packed_;
  mutable ScratchCache scratch_;
};

void CpuNode::Run(OrtKernelContext* context) const {
  LayerSizes sizes = sizes_;
  Buffer packed_for_call;
  const void* packed = packed_.get();
  if (!packed_once_) {
    const std::vector<Tensor> weights = ReadWeights(context);
    sizes = CheckWeights(weights);
    packed_for_call = Pack(sizes, weights);
    packed = packed_for_call.get();
  }
  const Call call = MakeCall(sizes, context);
  const std::int64_t parts = Shards::Choose(threads_, call.batch);
  if (parts == 1) {
    std::unique_ptr<Scratch> scratch =
        scratch_.Take(op_.ScratchBytes(sizes, call.steps, call.batch));
    op_.Run(sizes, packed, call, scratch->memory.get());
    scratch_.Return(std::move(scratch));
    return;
  }
  const Shards shards(op_, sizes, call, parts);
  const Buffer memory = Allocate(shards.bytes());
  struct Job {
    const Shards& shards;
    const void* packed;
    void* memory;
  } job{shards, packed, memory.get()};
  const auto run = [](void* data, std::size_t index) {
    EDGERNN_ACQUIRE(data);
    const Job& self = *static_cast<const Job*>(data);
    self.shards.Run(self.packed, static_cast<std::int64_t>(index), self.memory);
    EDGERNN_RELEASE(data);
  };
  const auto count = static_cast<std::size_t>(parts);
  EDGERNN_RELEASE(&job);
  Check(ort::KernelContextParallelFor(api_, context, run, count, count, &job));
  EDGERNN_ACQUIRE(&job);
}

}  // namespace

const char kProvider[] = "CPUExecutionProvider";

void CheckProvider() {
  const KernelChoice& choice = ChooseKernels();
  if (choice.table == nullptr) throw InvalidArgument(choice.error);
}

std::shared_ptr<const Op> FindProviderOp(const std::string& name) {
  return {std::shared_ptr<const Op>(), FindOp(*ChooseKernels().table, name)};
}

std::shared_ptr<const Op> MakeProviderOp(const std::string& name, const CellSource& cell,
                                         std::string* error) {
  return MakeProgramOp(*ChooseKernels().table, name, cell, error);
}

std::unique_ptr<Node> MakeNode(std::int64_t threads, const OrtApi* api, const OrtKernelInfo* info) {
  return std::make_unique<CpuNode>(threads, api, info);
}

}  // namespace edgernn

extern "C" {

// Returns the name of the instruction set in use, or null if the processor supports none, or not
// the one that EDGERNN_ISA names.
EDGERNN_API const char* edgernn_isa() {
  const edgernn::KernelChoice& choice = edgernn::ChooseKernels();
  return choice.table == nullptr ? nullptr : choice.table->isa;
}

// Returns the names of the layers that have a kernel, see LayerName, separated by spaces.
EDGERNN_API const char* edgernn_kernels() {
  static const std::string names = [] {
    std::string list;
    const edgernn::KernelTable* const table = edgernn::ChooseKernels().table;
    if (table == nullptr) return list;
    for (const std::string& name : edgernn::OpNames(*table)) list += name + " ";
    return list;
  }();
  return names.c_str();
}

}  // extern "C"
