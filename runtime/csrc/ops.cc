// SPDX-License-Identifier: Apache-2.0
// The library's entry point: registers one op per cell and rule with ONNX Runtime.

#include <climits>
#include <deque>
#include <exception>
#include <new>

#include "node.h"

namespace edgernn {

namespace {

// An entry of the op table as ONNX Runtime sees it, with what is ours behind it.
struct Op : OrtCustomOp {
  OpSpec spec;
  const Kernel* kernel;
};

const Op& AsOp(const OrtCustomOp* op) { return *static_cast<const Op*>(op); }

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
  return Guard(api, [&] { *node = new Node(AsOp(op).spec, *AsOp(op).kernel, api, info); });
}

OrtStatus* RunNode(void* node, OrtKernelContext* context) {
  const Node& self = *static_cast<const Node*>(node);
  return Guard(self.api(), [&] { self.Run(context); });
}

int OutputType(const OrtCustomOp* op, std::size_t index) {
  return index > AsOp(op).spec.states.size() ? ort::kInt64 : ort::kFloat;
}

template <class Cell, class Rule>
void FillOp(const Kernel& kernel, Op* op) {
  static_cast<OrtCustomOp&>(*op) = {};
  op->spec = DescribeOp<Cell, Rule>();
  op->kernel = &kernel;
  op->version = ort::kApiVersion;
  op->GetName = [](const OrtCustomOp* self) { return AsOp(self).spec.name.c_str(); };
  op->GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
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

template <class Cell, class... AllRules>
void AddCell(const Kernel* kernels, std::deque<Op>* ops, TypeList<AllRules...>) {
  (FillOp<Cell, AllRules>(*kernels++, &ops->emplace_back()), ...);
}

template <class... AllCells>
std::deque<Op> MakeOps(const KernelTable& table, TypeList<AllCells...>) {
  std::deque<Op> ops;
  int cell = 0;
  (AddCell<AllCells>(table.kernels[cell++], &ops, Rules{}), ...);
  return ops;
}

// Built once and never released: sessions may outlive the options they were made with.
OrtCustomOpDomain* MakeDomain(const OrtApi* api, const KernelTable& table) {
  const auto check = [](OrtStatus* status) {
    if (status != nullptr) throw OrtError{status};
  };
  static const std::deque<Op> ops = MakeOps(table, Cells{});
  OrtCustomOpDomain* domain = nullptr;
  check(ort::CreateCustomOpDomain(api, "ai.edgernn", &domain));
  for (const Op& op : ops) check(ort::CustomOpDomainAdd(api, domain, &op));
  return domain;
}

template <class Cell, class... AllRules>
void AddNames(std::string* names, TypeList<AllRules...>) {
  ((*names += DescribeOp<Cell, AllRules>().name + " "), ...);
}

template <class... AllCells>
std::string OpNames(TypeList<AllCells...>) {
  std::string names;
  (AddNames<AllCells>(&names, Rules{}), ...);
  return names;
}

void Register(OrtSessionOptions* options, const OrtApi* api) {
  const KernelChoice& choice = ChooseKernels();
  if (choice.table == nullptr) throw InvalidArgument(choice.error);
  static OrtCustomOpDomain* const domain = MakeDomain(api, *choice.table);
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

// The instruction set in use, or null if EDGERNN_ISA asks for one that cannot be had.
[[gnu::visibility("default")]] const char* edgernn_isa() {
  const edgernn::KernelChoice& choice = edgernn::ChooseKernels();
  return choice.table == nullptr ? nullptr : choice.table->isa;
}

// The ops that have a kernel, separated by blanks.
[[gnu::visibility("default")]] const char* edgernn_ops() {
  static const std::string names = edgernn::OpNames(edgernn::Cells{});
  return names.c_str();
}

[[gnu::visibility("default")]] int edgernn_schema_version() { return edgernn::kSchemaVersion; }

}  // extern "C"
