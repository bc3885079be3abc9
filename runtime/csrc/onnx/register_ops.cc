// SPDX-License-Identifier: Apache-2.0
// The library's entry point, which registers its op with ONNX Runtime under several names.

#include <atomic>
#include <climits>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "onnx/node.h"

namespace edgernn {

namespace {

// The op under one of its names, with fields of ours after those of ONNX Runtime. Layers of a file
// whose portable functions differ have different names: Recurrent, Recurrent2 and so on.
struct NamedOp : OrtCustomOp {
  std::string name;
  std::int64_t threads;
};

constexpr int kNames = 16;

const NamedOp& AsNamedOp(const OrtCustomOp* op) { return *static_cast<const NamedOp*>(op); }

// Calls `body` and turns its exceptions into a status.
template <class Body>
OrtStatus* Guard(const OrtApi* api, const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const OrtError& error) {
    return error.status;
  } catch (const InvalidArgument& error) {
    return ort::CreateStatus(api, ort::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return ort::CreateStatus(api, ort::kFail, "edgernn: out of memory");
  } catch (const std::exception& error) {
    return ort::CreateStatus(api, ort::kFail, error.what());
  }
}

OrtStatus* CreateNode(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                      void** node) {
  return Guard(api, [&] { *node = MakeNode(AsNamedOp(op).threads, api, info).release(); });
}

OrtStatus* RunNode(void* node, OrtKernelContext* context) {
  const Node& self = *static_cast<const Node*>(node);
  return Guard(self.api(), [&] { self.Run(context); });
}

// X, and the weights and states as variadic inputs.
constexpr std::size_t kInputs = 2;
// Y, updates and macs, and the states as variadic outputs.
constexpr std::size_t kOutputs = 4;

void FillCallbacks(OrtCustomOp* op) {
  *op = {};
  op->version = ort::kApiVersion;
  op->GetName = [](const OrtCustomOp* self) { return AsNamedOp(self).name.c_str(); };
  op->GetExecutionProviderType = [](const OrtCustomOp*) { return kProvider; };
  op->GetInputType = [](const OrtCustomOp*, std::size_t) { return ort::kFloat; };
  op->GetInputTypeCount = [](const OrtCustomOp*) { return kInputs; };
  op->GetOutputType = [](const OrtCustomOp*, std::size_t index) {
    return index == 1 || index == 2 ? ort::kInt64 : ort::kFloat;
  };
  op->GetOutputTypeCount = [](const OrtCustomOp*) { return kOutputs; };
  op->GetInputCharacteristic = [](const OrtCustomOp*, std::size_t index) {
    return index + 1 == kInputs ? ort::kVariadic : ort::kRequired;
  };
  op->GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t index) {
    return index + 1 == kOutputs ? ort::kVariadic : ort::kOptional;
  };
  const auto one = [](const OrtCustomOp*) { return 1; };
  op->GetVariadicInputMinArity = op->GetVariadicOutputMinArity = one;
  op->GetVariadicInputHomogeneity = op->GetVariadicOutputHomogeneity = one;
  op->GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return 0; };
  op->GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op->GetEndVersion = [](const OrtCustomOp*) { return INT_MAX; };
  op->CreateKernelV2 = &CreateNode;
  op->KernelComputeV2 = &RunNode;
  op->KernelDestroy = [](void* node) { delete static_cast<Node*>(node); };
}

// The thread limit of the next registration on this thread, see edgernn_threads.
thread_local std::int64_t next_threads = 1;

struct Domain {
  std::int64_t threads;
  OrtCustomOpDomain* handle;
  std::deque<NamedOp> ops;
  const Domain* next;
};

// The domain with the op. It is built once per number of threads and never released, as sessions
// may outlive the options that they were created with.
OrtCustomOpDomain* FindDomain(const OrtApi* api, std::int64_t threads) {
  const auto check = [](OrtStatus* status) {
    if (status != nullptr) throw OrtError{status};
  };
  // no lock, for the reason in FindOp
  static std::atomic<const Domain*> known{nullptr};
  for (const Domain* each = known; each != nullptr; each = each->next) {
    if (each->threads == threads) return each->handle;
  }
  auto domain = std::make_unique<Domain>(Domain{threads, nullptr, {}, nullptr});
  check(ort::CreateCustomOpDomain(api, "ai.edgernn", &domain->handle));
  for (int number = 1; number <= kNames; ++number) {
    NamedOp& op = domain->ops.emplace_back();
    FillCallbacks(&op);
    op.name = "Recurrent" + (number == 1 ? "" : std::to_string(number));
    op.threads = threads;
    check(ort::CustomOpDomainAdd(api, domain->handle, &op));
  }
  // two threads may both add a domain, which does no harm
  Domain* const added = domain.release();
  added->next = known.load();
  while (!known.compare_exchange_weak(added->next, added)) {
  }
  return added->handle;
}

void Register(OrtSessionOptions* options, const OrtApi* api) {
  CheckProvider();
  OrtCustomOpDomain* const domain = FindDomain(api, std::exchange(next_threads, 1));
  if (OrtStatus* status = ort::AddCustomOpDomain(api, options, domain)) throw OrtError{status};
}

}  // namespace

}  // namespace edgernn

extern "C" {

EDGERNN_API OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace edgernn;
  if (const OrtApi* api = base->GetApi(ort::kApiVersion)) {
    return Guard(api, [&] { Register(options, api); });
  }
  // version 1 of the API is enough to create the error
  const OrtApi* oldest = base->GetApi(1);
  if (oldest == nullptr) return nullptr;
  return ort::CreateStatus(
      oldest, ort::kFail,
      "edgernn: expected ONNX Runtime 1.17 or newer, got an older version; update onnxruntime");
}

// Sets the maximum number of the session's threads that share a large batch, for the sessions of
// the next registration on this thread. The default is 1.
EDGERNN_API void edgernn_threads(int count) { edgernn::next_threads = count < 1 ? 1 : count; }

EDGERNN_API int edgernn_schema_version() { return edgernn::kSchemaVersion; }

}  // extern "C"
