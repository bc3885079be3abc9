// SPDX-License-Identifier: Apache-2.0
// The library's entry point: registers one op per cell and rule with ONNX Runtime.

#include <climits>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "node.h"

namespace edgernn {

namespace {

// An op as ONNX Runtime sees it, with what is ours behind it.
struct Entry : OrtCustomOp {
  const Op* op;
  std::int64_t threads;
};

const Entry& AsEntry(const OrtCustomOp* entry) { return *static_cast<const Entry*>(entry); }
const Op& AsOp(const OrtCustomOp* entry) { return *AsEntry(entry).op; }

// Calls `body`; what it throws becomes a status.
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
  return Guard(api, [&] { *node = MakeNode(AsOp(op), AsEntry(op).threads, api, info).release(); });
}

OrtStatus* RunNode(void* node, OrtKernelContext* context) {
  const Node& self = *static_cast<const Node*>(node);
  return Guard(self.api(), [&] { self.Run(context); });
}

int OutputType(const OrtCustomOp* op, std::size_t index) {
  return index > AsOp(op).spec.states.size() ? ort::kInt64 : ort::kFloat;
}

void FillCallbacks(OrtCustomOp* op) {
  *op = {};
  op->version = ort::kApiVersion;
  op->GetName = [](const OrtCustomOp* self) { return AsOp(self).spec.name.c_str(); };
  op->GetExecutionProviderType = [](const OrtCustomOp*) { return kProvider; };
  op->GetInputType = [](const OrtCustomOp*, std::size_t) { return ort::kFloat; };
  op->GetInputTypeCount = [](const OrtCustomOp* self) { return AsOp(self).spec.InputCount(); };
  op->GetOutputType = &OutputType;
  op->GetOutputTypeCount = [](const OrtCustomOp* self) { return AsOp(self).spec.OutputCount(); };
  op->GetInputCharacteristic = [](const OrtCustomOp*, std::size_t) { return ort::kRequired; };
  op->GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return ort::kOptional; };
  op->GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return 0; };
  op->GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op->GetEndVersion = [](const OrtCustomOp*) { return INT_MAX; };
  op->CreateKernelV2 = &CreateNode;
  op->KernelComputeV2 = &RunNode;
  op->KernelDestroy = [](void* node) { delete static_cast<Node*>(node); };
}

// What the next registration on this thread brings, see edgernn_only and edgernn_threads.
struct Wanted {
  std::string names;
  std::int64_t threads = 1;

  bool operator<(const Wanted& other) const {
    return threads != other.threads ? threads < other.threads : names < other.names;
  }
};
thread_local Wanted wanted;

bool Lists(const std::string& names, const std::string& name) {
  return (" " + names + " ").find(" " + name + " ") != std::string::npos;
}

struct Domain {
  OrtCustomOpDomain* made = nullptr;
  std::deque<Entry> entries;
};

// The domain with the ops that are wanted, or with all where no names are. Built once and never
// released: sessions may outlive the options they were made with.
OrtCustomOpDomain* FindDomain(const OrtApi* api, const Wanted& which) {
  const auto check = [](OrtStatus* status) {
    if (status != nullptr) throw OrtError{status};
  };
  const std::deque<Op>& ops = ProviderOps();
  static std::map<Wanted, Domain> domains;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  Domain& domain = domains[which];
  if (domain.made != nullptr) return domain.made;
  OrtCustomOpDomain* made = nullptr;
  check(ort::CreateCustomOpDomain(api, "ai.edgernn", &made));
  domain.entries.clear();
  for (const Op& op : ops) {
    if (!which.names.empty() && !Lists(which.names, op.spec.name)) continue;
    Entry& entry = domain.entries.emplace_back();
    FillCallbacks(&entry);
    entry.op = &op;
    entry.threads = which.threads;
    check(ort::CustomOpDomainAdd(api, made, &entry));
  }
  return domain.made = made;
}

void Register(OrtSessionOptions* options, const OrtApi* api) {
  const Wanted which = std::exchange(wanted, {});
  OrtCustomOpDomain* const domain = FindDomain(api, which);
  if (OrtStatus* status = ort::AddCustomOpDomain(api, options, domain)) throw OrtError{status};
}

}  // namespace

}  // namespace edgernn

extern "C" {

[[gnu::visibility("default")]] OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                            const OrtApiBase* base) {
  using namespace edgernn;
  if (const OrtApi* api = base->GetApi(ort::kApiVersion)) {
    return Guard(api, [&] { Register(options, api); });
  }
  // the first version of the interface is enough to say so
  const OrtApi* oldest = base->GetApi(1);
  if (oldest == nullptr) return nullptr;
  return ort::CreateStatus(oldest, ort::kFail, "edgernn needs ONNX Runtime 1.17 or newer");
}

// The next RegisterCustomOps on this thread brings only these ops, separated by blanks, and not
// all: ONNX Runtime takes about 0.2 ms for each in every session.
[[gnu::visibility("default")]] void edgernn_only(const char* names) {
  edgernn::wanted.names = names;
}

// In sessions with ops of the next registration on this thread, a large batch is cut into so many
// parts at most, for as many threads of the session; 1 if this is not called.
[[gnu::visibility("default")]] void edgernn_threads(int count) { edgernn::wanted.threads = count; }

[[gnu::visibility("default")]] int edgernn_schema_version() { return edgernn::kSchemaVersion; }

}  // extern "C"
