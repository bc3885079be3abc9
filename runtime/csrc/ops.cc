// SPDX-License-Identifier: Apache-2.0
// The library's entry point: registers one op per cell and rule with ONNX Runtime.

#include <climits>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "node.h"

namespace edgernn {

namespace {

// An entry of the op table as ONNX Runtime sees it, with what is ours behind it.
struct Op : OrtCustomOp {
  OpSpec spec;
  Kernel kernel;
  const Imputer* imputer;
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
  const Op& self = AsOp(op);
  return Guard(api, [&] { *node = new Node(self.spec, self.kernel, self.imputer, api, info); });
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

template <class... AllCells>
std::vector<CellSpec> DescribeCells(TypeList<AllCells...>) {
  static constexpr CellSpec kSpecs[] = {DescribeCell<AllCells>()...};
  return {std::begin(kSpecs), std::end(kSpecs)};
}

template <class... AllRules>
std::vector<RuleSpec> DescribeRules(TypeList<AllRules...>) {
  return {AllRules::kSpec...};
}

template <class... AllImputers>
std::vector<ImputerSpec> DescribeImputers(TypeList<AllImputers...>) {
  return {AllImputers::kSpec...};
}

// Where an op is in the lists; imputer: -1 if it has none.
struct Place {
  std::size_t cell;
  std::size_t rule;
  int imputer;
  DriverKind driver;
};

// Calls visit(place, spec) for every op.
template <class Visit>
void ForOps(const Visit& visit) {
  const std::vector<CellSpec> cells = DescribeCells(Cells{});
  const std::vector<RuleSpec> rules = DescribeRules(Rules{});
  const std::vector<ImputerSpec> imputers = DescribeImputers(Imputers{});
  for (std::size_t c = 0; c < cells.size(); ++c) {
    for (std::size_t r = 0; r < rules.size(); ++r) {
      Place place{c, r, -1, rules[r].driver};
      visit(place, DescribeOp(cells[c], rules[r], nullptr, false));
      if (HasLowRank(cells[c], rules[r])) {
        visit(place, DescribeOp(cells[c], rules[r], nullptr, true));
      }
      for (const ImputerSpec& imputer : imputers) {
        ++place.imputer;
        visit(place, DescribeOp(cells[c], rules[r], &imputer, false));
      }
    }
  }
}

std::deque<Op> MakeOps(const KernelTable& table) {
  std::deque<Op> ops;
  ForOps([&](const Place& place, OpSpec spec) {
    Op& op = ops.emplace_back();
    FillCallbacks(&op);
    op.spec = std::move(spec);
    op.kernel = {&table.drivers[static_cast<int>(place.driver)], table.cells[place.cell],
                 table.listers[place.rule]};
    op.imputer = place.imputer < 0 ? nullptr : table.imputers[place.imputer];
  });
  return ops;
}

// The ops that the next registration on this thread brings, see edgernn_only.
thread_local std::string wanted;

bool Lists(const std::string& names, const std::string& name) {
  return (" " + names + " ").find(" " + name + " ") != std::string::npos;
}

// The domain with the ops of these names, or with all where there are none. Built once and never
// released: sessions may outlive the options they were made with.
OrtCustomOpDomain* FindDomain(const OrtApi* api, const KernelTable& table,
                              const std::string& names) {
  const auto check = [](OrtStatus* status) {
    if (status != nullptr) throw OrtError{status};
  };
  static const std::deque<Op> ops = MakeOps(table);
  static std::map<std::string, OrtCustomOpDomain*> domains;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  OrtCustomOpDomain*& domain = domains[names];
  if (domain != nullptr) return domain;
  OrtCustomOpDomain* made = nullptr;
  check(ort::CreateCustomOpDomain(api, "ai.edgernn", &made));
  for (const Op& op : ops) {
    if (names.empty() || Lists(names, op.spec.name)) check(ort::CustomOpDomainAdd(api, made, &op));
  }
  return domain = made;
}

std::string OpNames() {
  std::string names;
  ForOps([&](const Place&, const OpSpec& spec) { names += spec.name + " "; });
  return names;
}

void Register(OrtSessionOptions* options, const OrtApi* api) {
  const KernelChoice& choice = ChooseKernels();
  if (choice.table == nullptr) throw InvalidArgument(choice.error);
  const std::string names = std::move(wanted);
  wanted.clear();
  OrtCustomOpDomain* const domain = FindDomain(api, *choice.table, names);
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
[[gnu::visibility("default")]] void edgernn_only(const char* names) { edgernn::wanted = names; }

// The instruction set in use, or null if EDGERNN_ISA asks for one that cannot be had.
[[gnu::visibility("default")]] const char* edgernn_isa() {
  const edgernn::KernelChoice& choice = edgernn::ChooseKernels();
  return choice.table == nullptr ? nullptr : choice.table->isa;
}

// The ops that have a kernel, separated by blanks.
[[gnu::visibility("default")]] const char* edgernn_ops() {
  static const std::string names = edgernn::OpNames();
  return names.c_str();
}

[[gnu::visibility("default")]] int edgernn_schema_version() { return edgernn::kSchemaVersion; }

}  // extern "C"
