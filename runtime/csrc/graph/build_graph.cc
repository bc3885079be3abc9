// SPDX-License-Identifier: Apache-2.0
// Prepares the steps of a graph, which may be damaged or malicious; step_reader.h checks them.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "graph/fourier_tables.h"
#include "graph/graph.h"
#include "graph/merge_loops.h"
#include "graph/run_steps.h"
#include "graph/step_reader.h"
#include "program/check_cell.h"
#include "program/program_step.h"

namespace edgernn {
namespace {

constexpr std::int64_t kMaxMoveLoops = 6;

constexpr const char* kStepNames[kStepCodes] = {
    "move", "linear", "depthwise", "recurrent", "program", "reduce", "gather", "fourier", "branch"};

template <class Number>
Number* CopyList(const std::vector<Number>& list, Arena* arena) {
  Number* const to = arena->Allocate<Number>(static_cast<std::int64_t>(list.size()));
  if (to != nullptr) std::copy(list.begin(), list.end(), to);
  return to;
}

class GraphBuilder : StepReader {
 public:
  GraphBuilder(const GraphSource& source, const KernelTable& table,
               const std::vector<float*>& states, Arena* arena, std::string* error)
      : StepReader(source, error), table_(table), states_(states), arena_(*arena) {}

  bool Build(std::int64_t batch, Graph* graph) {
    const std::int64_t streams = FindStreams(batch), all = batch / streams * streams;
    const std::int64_t floats = source_.arena * streams;
    arena_streams_ = streams;
    buffers_ = arena_.Allocate<float>(floats);
    if (buffers_ != nullptr) {
      std::memset(buffers_, 0, static_cast<std::size_t>(floats) * sizeof(float));
    }
    *graph = {};
    if (source_.features >= 0) {
      graph->bands = source_.values[static_cast<std::size_t>(source_.features)].size;
      graph->features = features_ = arena_.Allocate<float>(batch * graph->bands);
      // an app may read them before the first step
      if (features_ != nullptr) {
        std::memset(features_, 0, static_cast<std::size_t>(batch * graph->bands) * sizeof(float));
      }
    }
    graph->groups[0] = {nullptr, 0, batch / streams, streams, 0};
    graph->groups[1] = {nullptr, 0, batch > all ? 1 : 0, batch - all, all};
    for (StreamGroups& groups : graph->groups) {
      if (groups.count > 0 && !BuildGroups(&groups)) return false;
    }
    graph->input = source_.input;
    graph->output = source_.output;
    graph->neurons = neurons_;
    graph->updates = source_.updates;
    graph->macs = source_.macs;
    graph->scratch_bytes = scratch_bytes_;
    graph->skips = skips_;
    return true;
  }

 private:
  // True if a step is a branch, also if steps behind it are damaged.
  bool HasBranch() const {
    const std::vector<std::int32_t>& ints = source_.steps;
    for (std::size_t next = 0; next + 1 < ints.size() && ints[next + 1] >= 0;
         next += 2 + static_cast<std::size_t>(ints[next + 1])) {
      if (ints[next] == static_cast<std::int32_t>(StepCode::kBranch)) return true;
    }
    return false;
  }

  // The number of streams of a group: so many that their arena stays in the cache, but at least
  // kLeastStreams, which share each weight that is read. Tiles of kEvenRows streams are as large as
  // registers allow. Streams that skip steps run one by one.
  std::int64_t FindStreams(std::int64_t batch) const {
    if (HasBranch()) return 1;
    constexpr std::int64_t kCachedFloats = 1 << 16, kLeastStreams = 4, kEvenRows = 12;
    const std::int64_t fit = kCachedFloats / std::max(source_.arena, std::int64_t{1});
    const std::int64_t multiple = fit < kEvenRows ? kLeastStreams : kEvenRows;
    return std::min(batch, std::max(fit / multiple * multiple, kLeastStreams));
  }

  bool BuildGroups(StreamGroups* groups) {
    batch_ = groups->streams;
    group_count_ = groups->count;
    neurons_ = 0;
    PlaceValues(groups->first);
    steps_.clear();
    branches_.clear();
    const std::vector<std::int32_t>& ints = source_.steps;
    std::size_t next = 0;
    while (next < ints.size()) {
      const auto left = static_cast<std::int64_t>(ints.size() - next);
      step_ = "step " + std::to_string(steps_.size());
      if (left < 2) return Refuse("step", "a code and a number of arguments", left);
      const std::int64_t code = ints[next], length = ints[next + 1];
      if (code < 0 || code >= kStepCodes) return RefuseRange("code", 0, kStepCodes - 1, code);
      if (length < 0 || length > left - 2) return RefuseRange("arguments", 0, left - 2, length);
      step_ += std::string(" (") + kStepNames[code] + ")";
      at_ = ints.data() + next + 2;
      end_ = at_ + length;
      if (!BuildStep(static_cast<StepCode>(code))) return false;
      if (at_ != end_)
        return RefuseRange("arguments", length - (end_ - at_), length - (end_ - at_), length);
      next += 2 + static_cast<std::size_t>(length);
    }
    const auto step_count = static_cast<std::int64_t>(steps_.size());
    for (const auto& [index, count] : branches_) {
      step_ = "step " + std::to_string(index) + " (branch)";
      const std::int64_t most = step_count - 1 - index;
      if (count > most) return RefuseRange("steps", 0, most, count);
    }
    groups->step_count = step_count;
    groups->steps = CopyList(steps_, &arena_);
    return true;
  }

  // Finds the memory of the values of groups from the stream `first` on.
  void PlaceValues(std::int64_t first) {
    memory_.resize(source_.values.size());
    auto state = states_.begin();
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const GraphValue& value = source_.values[i];
      if (static_cast<std::int64_t>(i) == source_.features) {
        memory_[i] = features_ == nullptr ? nullptr : features_ + first * value.size;
      } else if (ValueKind{value.kind} == ValueKind::kArena && buffers_ != nullptr) {
        memory_[i] = buffers_ + value.offset * arena_streams_;
      } else if (ValueKind{value.kind} == ValueKind::kState) {
        float* const at = *state++;
        memory_[i] = at == nullptr ? nullptr : at + first * value.size;
      }
    }
  }

  Place PlaceOf(const Operand& operand) {
    const GraphValue& value = ValueOf(operand);
    switch (ValueKind{value.kind}) {
      case ValueKind::kInput:
        return {Buffer::kX, value.offset + operand.offset, nullptr, 0};
      case ValueKind::kOutput:
        return {Buffer::kY, value.offset + operand.offset, nullptr, 0};
      case ValueKind::kConstant: {
        float*& at = memory_[static_cast<std::size_t>(operand.value)];
        if (at == nullptr) at = FloatsOf(source_.tensors[value.offset], value.offset);
        return {Buffer::kModel, operand.offset, at, 0};
      }
      default: {
        const bool moves = group_count_ > 1 && (ValueKind{value.kind} == ValueKind::kState ||
                                                operand.value == source_.features);
        return {Buffer::kModel, operand.offset, memory_[static_cast<std::size_t>(operand.value)],
                moves ? batch_ * value.size : 0};
      }
    }
  }

  // The numbers of a tensor as floats: those of the file, or a copy.
  float* FloatsOf(const Tensor& tensor, std::uint32_t index) {
    if (tensor.values.type == NumberType::kFloat32) {
      return const_cast<float*>(static_cast<const float*>(tensor.values.data));
    }
    return static_cast<float*>(Share(Shared::kFloats, index, 0, [&] {
      std::int64_t count = 1;
      for (const std::int64_t size : tensor.shape) count *= size;
      float* const to = arena_.Allocate<float>(count);
      for (std::int64_t i = 0; to != nullptr && i < count; ++i) to[i] = tensor.values[i];
      return to;
    }));
  }

  // Returns what `make` makes for a kind and two indices, once for all steps.
  enum class Shared : std::int64_t { kFloats, kLinear, kLayer, kTables, kRegisters };

  template <class Make>
  void* Share(Shared kind, std::int64_t first, std::int64_t second, const Make& make) {
    const std::array<std::int64_t, 3> key{static_cast<std::int64_t>(kind), first, second};
    const auto [place, is_new] = shared_.emplace(key, nullptr);
    if (is_new) place->second = make();
    return place->second;
  }

  // Allocates a step with its function and operands. Without memory, returns another one that is
  // not used.
  template <class Kind>
  Kind* Add(const Kind& step) {
    Kind* const to = arena_.Allocate<Kind>(1);
    if (to != nullptr) *to = step;
    steps_.push_back(to);
    return to;
  }

  // Sets the loops over rows of a step.
  static void SetRows(std::vector<CopyLoop> loops, bool longest_last, CopyLoop* to) {
    loops = MergeCopies(loops);
    for (std::size_t i = 0; longest_last && i + 1 < loops.size(); ++i) {
      if (loops[i].count > loops.back().count) std::swap(loops[i], loops.back());
    }
    loops.insert(loops.begin(), kRowLoops - loops.size(), CopyLoop{1, 0, 0});
    std::copy(loops.begin(), loops.end(), to);
  }

  void Grow(std::uint64_t bytes) { scratch_bytes_ = std::max(scratch_bytes_, bytes); }

  bool BuildStep(StepCode code) {
    switch (code) {
      case StepCode::kMove:
        return BuildMove();
      case StepCode::kLinear:
        return BuildLinear();
      case StepCode::kDepthwise:
        return BuildDepthwise();
      case StepCode::kRecurrent:
        return BuildRecurrent();
      case StepCode::kProgram:
        return BuildProgram();
      case StepCode::kReduce:
        return BuildReduce();
      case StepCode::kGather:
        return BuildGather();
      case StepCode::kBranch:
        return BuildBranch();
      default:
        return BuildFourier();
    }
  }

  bool BuildMove() {
    Operand from, to;
    std::int64_t count;
    if (!ReadOperand("from", &from) || !ReadResult("to", &to) ||
        !Read("loops", 1, kMaxMoveLoops, &count)) {
      return false;
    }
    std::vector<CopyLoop> loops{Streams(from, to)};
    std::vector<Stride> reads, writes;
    for (std::int64_t i = 0; i < count; ++i) {
      CopyLoop loop;
      if (!ReadCount("count", &loop.count) || !ReadStride("stride of from", &loop.from) ||
          !ReadStride("stride of to", &loop.to)) {
        return false;
      }
      loops.push_back(loop);
      reads.push_back({loop.count, loop.from});
      writes.push_back({loop.count, loop.to});
    }
    if (!CheckRange("from", from, reads) || !CheckResult("to", to, writes)) return false;
    loops = MergeCopies(loops);
    const auto is_contiguous = [](const CopyLoop& loop) { return loop.from == 1 && loop.to == 1; };
    // inside a value, the order of the loops matters
    const bool may_swap = from.value != to.value && !loops.empty() && !is_contiguous(loops.back());
    for (std::size_t i = 0; may_swap && i + 1 < loops.size(); ++i) {
      if (loops[i].count > loops.back().count) std::swap(loops[i], loops.back());
    }
    if (loops.empty()) loops.push_back({1, 1, 1});
    if (loops.size() == 1) loops.insert(loops.begin(), CopyLoop{1, 0, 0});
    MoveStep step{{&RunMoveStep}, PlaceOf(from), PlaceOf(to), 0, nullptr};
    step.loop_count = static_cast<std::int64_t>(loops.size());
    step.loops = CopyList(loops, &arena_);
    Add(step);
    return true;
  }

  bool BuildLinear() {
    Operand from, to;
    const Tensor *w, *b;
    std::vector<CopyLoop> loops;
    if (!ReadOperand("from", &from) || !ReadResult("to", &to)) return false;
    const std::int64_t w_index = at_ == end_ ? -1 : *at_;
    if (!ReadTensor("W", 2, &w)) return false;
    LayerSizes sizes{w->shape[1], w->shape[0]};
    const bool decodes = w->values.type == NumberType::kInt8 && !source_.quantizes;
    sizes.weights = decodes ? NumberType::kFloat32 : w->values.type;
    sizes.dots = table_.dots;
    const std::int64_t b_index = at_ == end_ ? -1 : *at_;
    if (!ReadOptionalVector("b", sizes.hidden, &b) || !ReadRows(from, to, &loops) ||
        !CheckRows(from, to, loops, 0, sizes.input - 1, sizes.hidden)) {
      return false;
    }
    LinearStep step{
        {table_.steps->linear}, PlaceOf(from), PlaceOf(to), {}, false, false, 0, 0, sizes, nullptr};
    if (at_ != end_) {
      if (!Read("begin", -kMost, kMost, &step.begin) || !Read("end", -kMost, kMost, &step.end)) {
        return false;
      }
      step.leaves_out_zeros = sizes.weights == NumberType::kFloat32;
    }
    SetRows(loops, true, step.loops);
    const CopyLoop& last = step.loops[kRowLoops - 1];
    step.leaves_out_zeros &= last.count == batch_ && last.from == StreamStride(from);
    step.packed = Share(Shared::kLinear, w_index, b_index, [&] {
      void* const packed = arena_.Allocate(table_.steps->linear_bytes(sizes));
      if (packed != nullptr) {
        const std::vector<float> zeros(b == nullptr ? static_cast<std::size_t>(sizes.hidden) : 0);
        const Values bias = b == nullptr ? Values{zeros.data()} : b->values;
        table_.steps->pack_linear(sizes, w->values, bias, packed);
      }
      return packed;
    });
    std::int64_t rows = 1;
    for (const CopyLoop& loop : step.loops) rows *= loop.count;
    step.is_row = rows == 1;
    Grow(table_.steps->linear_scratch(sizes, rows));
    Add(step);
    return true;
  }

  // Copies a matrix (rows, columns), or zeros, to rows that are padded with zeros.
  float* Pad(const Tensor* from, std::int64_t rows, std::int64_t columns, std::int64_t padded) {
    float* const to = arena_.Allocate<float>(rows * padded);
    for (std::int64_t i = 0; to != nullptr && i < rows * padded; ++i) {
      const std::int64_t row = i / padded, column = i % padded;
      to[i] = from == nullptr || column >= columns ? 0.0f : from->values[row * columns + column];
    }
    return to;
  }

  bool BuildDepthwise() {
    Operand from, to;
    const Tensor *w, *b;
    std::vector<CopyLoop> loops;
    std::int64_t count;
    if (!ReadOperand("from", &from) || !ReadResult("to", &to) || !ReadTensor("w", 2, &w)) {
      return false;
    }
    const std::int64_t columns = w->shape[1];
    if (!ReadOptionalVector("b", columns, &b) || !ReadRows(from, to, &loops) ||
        !Read("taps", w->shape[0], w->shape[0], &count)) {
      return false;
    }
    std::vector<std::int64_t> taps;
    for (std::int64_t k = 0; k < count; ++k) {
      taps.emplace_back();
      if (!ReadStride("tap", &taps.back())) return false;
    }
    const auto [first, last] = std::minmax_element(taps.begin(), taps.end());
    if (!CheckRows(from, to, loops, *first, *last + columns - 1, columns)) return false;
    const std::int64_t lanes = table_.steps->lanes;
    DepthwiseStep step{{table_.steps->depthwise},
                       PlaceOf(from),
                       PlaceOf(to),
                       {},
                       columns,
                       0,
                       0,
                       nullptr,
                       nullptr,
                       nullptr};
    SetRows(loops, false, step.loops);
    step.padded = (columns + lanes - 1) / lanes * lanes;
    step.tap_count = count;
    step.taps = CopyList(taps, &arena_);
    step.w = Pad(w, count, columns, step.padded);
    step.b = Pad(b, 1, columns, step.padded);
    Add(step);
    return true;
  }

  bool BuildReduce() {
    Operand from, to;
    std::int64_t kind;
    ReduceStep step{};
    CopyLoop outer[2];
    if (!Read("kind", 0, 2, &kind) || !ReadOperand("from", &from) || !ReadResult("to", &to)) {
      return false;
    }
    for (CopyLoop& loop : outer) {
      if (!ReadCount("outer", &loop.count) || !ReadStride("stride", &loop.from)) return false;
    }
    for (int i = 0; i < 2; ++i) {
      if (!ReadCount("reduced", &step.counts[i]) || !ReadStride("stride", &step.strides[i])) {
        return false;
      }
    }
    if (!ReadCount("columns", &step.columns) || !ReadStride("stride", &step.column_stride)) {
      return false;
    }
    outer[1].to = step.columns;
    outer[0].to = outer[1].count * step.columns;
    const std::int64_t size = ValueOf(from).size;
    if (step.counts[0] * step.counts[1] > size) {
      return RefuseRange("reduced", 1, size, step.counts[0] * step.counts[1]);
    }
    const std::vector<Stride> reads{{outer[0].count, outer[0].from},
                                    {outer[1].count, outer[1].from},
                                    {step.counts[0], step.strides[0]},
                                    {step.counts[1], step.strides[1]},
                                    {step.columns, step.column_stride}};
    const std::vector<Stride> writes{
        {outer[0].count, outer[0].to}, {outer[1].count, outer[1].to}, {step.columns, 1}};
    // before the strides of `to` are used, as they are products
    if (!CheckRange("from", from, reads) || !CheckResult("to", to, writes)) return false;
    step.run = table_.steps->reduce;
    step.from = PlaceOf(from);
    step.to = PlaceOf(to);
    step.reduction = static_cast<Reduction>(kind);
    if (step.counts[1] == 1 || step.strides[0] == step.counts[1] * step.strides[1]) {
      const std::int64_t stride = step.counts[1] == 1 ? step.strides[0] : step.strides[1];
      step.counts[1] *= step.counts[0];
      step.strides[1] = stride;
      step.counts[0] = 1;
    }
    SetRows({Streams(from, to), outer[0], outer[1]}, false, step.loops);
    Add(step);
    return true;
  }

  bool BuildGather() {
    Operand from, to;
    GatherStep step{};
    if (!ReadOperand("from", &from) || !ReadResult("to", &to) || !ReadCount("inner", &step.inner) ||
        !Read("indices", 0, kMost, &step.count)) {
      return false;
    }
    if (step.count == 0) return BuildLookup(from, to, step.inner);
    if (step.count > end_ - at_) return RefuseRange("indices", 1, end_ - at_, step.count);
    std::vector<std::int32_t> indices;
    std::int64_t largest = 0;
    for (std::int64_t i = 0; i < step.count; ++i) {
      std::int64_t index;
      if (!Read("index", -1, kMost, &index)) return false;
      largest = std::max(largest, index);
      indices.push_back(static_cast<std::int32_t>(index));
    }
    const bool reads = std::any_of(indices.begin(), indices.end(), [](int i) { return i >= 0; });
    if (reads && !CheckRange("from", from, {{largest + 1, step.inner}, {step.inner, 1}})) {
      return false;
    }
    if (!CheckResult("to", to, {{step.count, step.inner}, {step.inner, 1}})) return false;
    step.run = &RunGatherStep;
    step.from = PlaceOf(from);
    step.to = PlaceOf(to);
    step.streams = Streams(from, to);
    step.indices = CopyList(indices, &arena_);
    Add(step);
    return true;
  }

  // A part whose index is a number of the graph.
  bool BuildLookup(const Operand& from, const Operand& to, std::int64_t inner) {
    Operand index;
    if (!ReadOperand("index", &index) || !CheckRange("index", index, {}) ||
        !CheckResult("to", to, {{inner, 1}})) {
      return false;
    }
    const GraphValue& value = ValueOf(from);
    const Tensor* const table =
        ValueKind{value.kind} == ValueKind::kConstant ? &source_.tensors[value.offset] : nullptr;
    if (table == nullptr || from.offset != 0 || table->shape.size() != 2 ||
        table->shape[1] != inner) {
      return Refuse("from", "a constant with rows of " + std::to_string(inner) + " numbers",
                    "another value");
    }
    Add(LookupStep{{&RunLookupStep},
                   PlaceOf(index),
                   PlaceOf(to),
                   Streams(index, to),
                   table->shape[0],
                   inner,
                   table->values});
    return true;
  }

  bool BuildBranch() {
    constexpr std::int64_t kMostWork = (std::int64_t{1} << 31) - 1;
    Operand from;
    BranchStep step{};
    std::int64_t wanted;
    if (!ReadOperand("from", &from) || !CheckRange("from", from, {}) ||
        !Read("wanted", 0, 1, &wanted) || !Read("updates", 0, kMostWork, &step.updates) ||
        !Read("macs", 0, kMostWork, &step.macs) || !Read("steps", 0, kMost, &step.count)) {
      return false;
    }
    step.from = PlaceOf(from);
    step.wanted = wanted == 1;
    branches_.emplace_back(static_cast<std::int64_t>(steps_.size()), step.count);
    skips_ = true;
    Add(step);
    return true;
  }

  // Reads the index of a vector of at most this size, or -1 for none, for which *to becomes null.
  bool ReadWindow(std::int64_t most, const Tensor** to) {
    *to = nullptr;
    if (at_ != end_ && *at_ == -1) {
      ++at_;
      return true;
    }
    if (!ReadTensor("window", 1, to)) return false;
    return (*to)->shape[0] <= most || RefuseRange("window", 1, most, (*to)->shape[0]);
  }

  bool BuildFourier() {
    Operand from, to;
    FourierStep step{};
    CopyLoop rows;
    std::int64_t size;
    const Tensor* window;
    if (!ReadOperand("from", &from) || !ReadResult("to", &to) || !ReadCount("rows", &rows.count) ||
        !ReadStride("stride of from", &rows.from) || !ReadStride("stride of to", &rows.to) ||
        !Read("N", 2, kMaxFourier, &size)) {
      return false;
    }
    if ((size & (size - 1)) != 0) return Refuse("N", "a power of two", size);
    if (!ReadWindow(size, &window)) return false;
    step.count = window == nullptr ? size : window->shape[0];
    const std::vector<CopyLoop> loops{Streams(from, to), rows};
    if (!CheckRows(from, to, loops, 0, step.count - 1, size + 2)) return false;
    const std::int64_t half = size / 2;
    step.run = table_.steps->fourier;
    step.from = PlaceOf(from);
    step.to = PlaceOf(to);
    SetRows(loops, false, step.loops);
    step.half = static_cast<std::int32_t>(half);
    step.window = window == nullptr ? nullptr : Pad(window, 1, step.count, step.count);
    step.tables = static_cast<const float*>(
        Share(Shared::kTables, half, 0, [&] { return MakeFourierTables(half, &arena_); }));
    Grow(static_cast<std::uint64_t>(FourierScratch(half)) * sizeof(float));
    Add(step);
    return true;
  }

  // An operand or a result of a program, with its strides over two kinds of rows and columns.
  struct Part {
    Operand operand;
    std::int64_t strides[3];
  };

  bool ReadParts(const char* name, bool are_results, const std::int64_t (&counts)[3],
                 std::vector<Part>* parts) {
    std::int64_t count;
    if (!Read(name, are_results ? 1 : 0, kMaxProgramValues, &count)) return false;
    for (std::int64_t i = 0; i < count; ++i) {
      Part part{};
      part.strides[2] = 1;
      if (are_results ? !ReadResult(name, &part.operand) : !ReadOperand(name, &part.operand)) {
        return false;
      }
      if (!ReadStride("stride", &part.strides[0]) || !ReadStride("stride", &part.strides[1])) {
        return false;
      }
      if (!are_results && !Read("stride of columns", 0, 1, &part.strides[2])) return false;
      std::vector<Stride> loops;
      for (int k = 0; k < 3; ++k) loops.push_back({counts[k], part.strides[k]});
      if (are_results ? !CheckResult(name, part.operand, loops)
                      : !CheckRange(name, part.operand, loops)) {
        return false;
      }
      parts->push_back(part);
    }
    return true;
  }

  // The loops of a program, of which the last one is over columns: no operand has another stride
  // than 0 or 1 there, and results have 1.
  std::vector<SharedLoop> ProgramLoops(const std::vector<Part>& parts, std::size_t operands,
                                       const std::int64_t (&counts)[3]) const {
    std::vector<SharedLoop> loops{{batch_, {}}, {counts[0], {}}, {counts[1], {}}, {counts[2], {}}};
    for (const Part& part : parts) {
      loops[0].strides.push_back(StreamStride(part.operand));
      for (std::size_t k = 0; k < 3; ++k) loops[k + 1].strides.push_back(part.strides[k]);
    }
    loops = Merge(loops);
    std::size_t columns = loops.size();
    for (std::size_t i = 0; i < loops.size(); ++i) {
      bool fits = true;
      for (std::size_t p = 0; p < parts.size(); ++p) {
        const std::int64_t stride = loops[i].strides[p];
        fits &= stride == 1 || (stride == 0 && p < operands);
      }
      if (fits && (columns == loops.size() || loops[i].count >= loops[columns].count)) columns = i;
    }
    if (columns == loops.size()) loops.push_back({1, std::vector<std::int64_t>(parts.size(), 0)});
    std::rotate(loops.begin() + static_cast<std::ptrdiff_t>(columns),
                loops.begin() + static_cast<std::ptrdiff_t>(columns) + 1, loops.end());
    loops.insert(loops.begin(), kRowLoops + 1 - loops.size(),
                 SharedLoop{1, std::vector<std::int64_t>(parts.size(), 0)});
    return loops;
  }

  // True for an operand that is the same number everywhere, which is found in the file.
  bool IsNumber(const Operand& operand, const std::vector<SharedLoop>& loops, std::size_t p,
                float* number) const {
    const GraphValue& value = ValueOf(operand);
    if (ValueKind{value.kind} != ValueKind::kConstant) return false;
    for (const SharedLoop& loop : loops) {
      if (loop.count > 1 && loop.strides[p] != 0) return false;
    }
    *number = source_.tensors[value.offset].values[operand.offset];
    return std::isfinite(*number);
  }

  bool BuildProgram() {
    std::int64_t counts[3];
    for (std::int64_t& count : counts) {
      if (!ReadCount("rows and columns", &count)) return false;
    }
    std::vector<Part> parts;
    if (!ReadParts("operand", false, counts, &parts)) return false;
    const std::size_t operands = parts.size();
    if (!ReadParts("result", true, counts, &parts)) return false;
    const std::vector<SharedLoop> loops = ProgramLoops(parts, operands, counts);
    // numbers of a program's values: its arguments, its constants, its instructions
    std::vector<std::int64_t> arguments, numbers(operands);
    std::vector<ProgramOperand> lists[3];
    ProgramSource program;
    for (const bool are_numbers : {false, true}) {
      for (std::size_t p = 0; p < operands; ++p) {
        float number;
        if (IsNumber(parts[p].operand, loops, p, &number) != are_numbers) continue;
        numbers[p] = static_cast<std::int64_t>(arguments.size() + program.numbers.size());
        if (are_numbers) {
          program.numbers.push_back(number);
          continue;
        }
        const bool is_column = loops[kRowLoops].strides[p] == 1;
        const ArgumentKind kind = is_column ? ArgumentKind::kColumns : ArgumentKind::kRow;
        std::vector<ProgramOperand>& list = lists[is_column ? 0 : 1];
        const auto index = static_cast<std::int64_t>(list.size());
        if (index == kArgumentIndices) {
          return RefuseRange("operand", 0, kArgumentIndices, index + 1);
        }
        arguments.push_back(static_cast<std::int64_t>(kind) * kArgumentIndices + index);
        list.push_back(PlacePart(parts[p].operand, loops, p));
      }
    }
    const std::size_t results = parts.size() - operands;
    if (results > kArgumentIndices) {
      return RefuseRange("result", 1, kArgumentIndices, static_cast<std::int64_t>(results));
    }
    for (std::size_t p = operands; p < parts.size(); ++p) {
      lists[2].push_back(PlacePart(parts[p].operand, loops, p));
    }
    if (!ReadInstructions(operands, numbers, arguments, results, &program)) return false;
    ProgramCode code;
    std::string message;
    const auto find = [&](ArgumentKind kind, int index) {
      const std::size_t count = kind == ArgumentKind::kColumns ? lists[0].size()
                                : kind == ArgumentKind::kRow   ? lists[1].size()
                                                               : 0;
      return index < static_cast<int>(count) ? index : -1;
    };
    if (!CheckProgram(step_, program, {kMaxProgramValues, static_cast<int>(results)}, find, &code,
                      &message)) {
      error_ = message;
      return false;
    }
    ProgramStep step{};
    step.run = table_.steps->program;
    for (int i = 0; i < kRowLoops; ++i) step.rows[i] = loops[static_cast<std::size_t>(i)].count;
    step.columns = loops[kRowLoops].count;
    step.column_operands = static_cast<std::int64_t>(lists[0].size());
    step.row_operands = static_cast<std::int64_t>(lists[1].size());
    step.results = static_cast<std::int64_t>(results);
    for (int i = 1; i < 3; ++i) lists[0].insert(lists[0].end(), lists[i].begin(), lists[i].end());
    step.operands = CopyList(lists[0], &arena_);
    RenumberPlaces(step, &code);
    step.program = CopyProgram(code.View(), &arena_);
    PreparePlaces(lists[0], &step);
    Add(step);
    return true;
  }

  // Gives the values of a program the places of its step.
  static void RenumberPlaces(const ProgramStep& step, ProgramCode* code) {
    const auto rows = static_cast<int>(step.column_operands);
    const auto results = rows + static_cast<int>(step.row_operands);
    const auto constants = results + static_cast<int>(step.results);
    const auto renumber = [&](std::uint16_t* place) {
      const int columns = kFirstPlaces[static_cast<int>(ArgumentKind::kColumns)];
      const int first_row = kFirstPlaces[static_cast<int>(ArgumentKind::kRow)];
      // constants and registers follow each other in both
      const int to = *place >= kFirstConstant ? *place - kFirstConstant + constants
                     : *place >= kFirstResult ? *place - kFirstResult + results
                     : *place >= first_row    ? *place - first_row + rows
                                              : *place - columns;
      *place = static_cast<std::uint16_t>(to);
    };
    for (Instruction& instruction : code->instructions) {
      for (int k = 0; k < ArityOf(instruction); ++k) renumber(&instruction.operands[k]);
      renumber(&instruction.to);
    }
  }

  // Allocates the places of a program, and sets those that are the same in each call.
  void PreparePlaces(const std::vector<ProgramOperand>& operands, ProgramStep* step) {
    const Program& program = step->program;
    const std::int64_t lanes = table_.steps->lanes, count = step->Operands();
    const std::int64_t places = count + program.constants + program.registers;
    const std::int64_t vectors = (step->columns + lanes - 1) / lanes;
    const bool is_whole = step->columns % lanes == 0;
    step->is_block = step->rows[0] * step->rows[1] * step->rows[2] == 1 && vectors <= program.block;
    step->places = static_cast<Places*>(arena_.Allocate(
        offsetof(Places, at) + static_cast<std::uint64_t>(places) * sizeof(const float*)));
    const bool copies_row = step->is_block && !is_whole;
    step->copy_floats = copies_row ? vectors * lanes : lanes;
    step->copies = arena_.Allocate<float>(count * step->copy_floats);
    if (step->copies != nullptr) {
      std::memset(step->copies, 0,
                  static_cast<std::size_t>(count * step->copy_floats) * sizeof(float));
    }
    const std::int64_t needed = program.registers * program.block * lanes;
    float* const registers = static_cast<float*>(
        Share(Shared::kRegisters, needed, 0, [&] { return arena_.Allocate<float>(needed); }));
    std::vector<std::int64_t> outside;
    for (std::int64_t o = 0; o < count; ++o) {
      const bool is_row = o >= step->column_operands && o < count - step->results;
      const ProgramOperand& operand = operands[static_cast<std::size_t>(o)];
      const Place& place = operand.place;
      const bool is_copied = copies_row && !operand.is_constant && o < step->column_operands;
      const bool moves =
          !copies_row && !is_row && (place.buffer != Buffer::kModel || place.group > 0);
      if (is_copied || moves) outside.push_back(o);
      if (step->places == nullptr) continue;
      float* const copy = step->copies + o * step->copy_floats;
      step->places->at[o] = is_row || copies_row             ? copy
                            : place.buffer == Buffer::kModel ? place.model + place.offset
                                                             : nullptr;
      if (copies_row && operand.is_constant && o < step->column_operands) {
        std::copy_n(place.model + place.offset, step->columns, copy);
      }
    }
    step->outside_count = static_cast<std::int64_t>(outside.size());
    step->outside = CopyList(outside, &arena_);
    if (step->places == nullptr) return;
    step->places->steps[kNumberStep] = 0;
    step->places->steps[kLaneStep] = lanes;
    const float** to = step->places->at + count;
    for (std::int64_t i = 0; i < program.constants; ++i) {
      *to++ = program.constant + i * kConstantCopies;
    }
    for (std::int64_t i = 0; i < program.registers; ++i) {
      *to++ = registers + i * program.block * lanes;
    }
  }

  ProgramOperand PlacePart(const Operand& operand, const std::vector<SharedLoop>& loops,
                           std::size_t p) {
    const bool is_constant = ValueKind{ValueOf(operand).kind} == ValueKind::kConstant;
    ProgramOperand to{PlaceOf(operand), is_constant, {}};
    for (std::size_t i = 0; i < kRowLoops; ++i) to.strides[i] = loops[i].strides[p];
    return to;
  }

  // Reads the instructions and the values of the results to the ints of a program.
  bool ReadInstructions(std::size_t operands, const std::vector<std::int64_t>& numbers,
                        const std::vector<std::int64_t>& arguments, std::size_t results,
                        ProgramSource* program) {
    std::int64_t count;
    if (!Read("instructions", 0, kMaxProgramValues, &count)) return false;
    program->ints = {static_cast<std::int64_t>(arguments.size()),
                     static_cast<std::int64_t>(program->numbers.size()), count,
                     static_cast<std::int64_t>(results)};
    program->ints.insert(program->ints.end(), arguments.begin(), arguments.end());
    const std::int64_t end = static_cast<std::int64_t>(operands) + count;
    const auto read_value = [&](std::int64_t least) {
      std::int64_t value = 0;
      if (!Read("value", least, end - 1, &value)) return false;
      const bool is_operand = value >= 0 && value < static_cast<std::int64_t>(operands);
      // unused operands of instructions are 0 in a program
      program->ints.push_back(is_operand ? numbers[static_cast<std::size_t>(value)]
                                         : std::max(value, std::int64_t{0}));
      return true;
    };
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t code;
      if (!Read("operation", 0, kMost, &code)) return false;
      program->ints.push_back(code);
      for (int k = 0; k < 3; ++k) {
        if (!read_value(-1)) return false;
      }
    }
    for (std::size_t r = 0; r < results; ++r) {
      if (!read_value(0)) return false;
    }
    return true;
  }

  // A range of an operand of a layer, of `size` numbers of a stream.
  struct LayerPart {
    Operand operand;
    std::int64_t size;
  };

  // True if two ranges share numbers, or may do so.
  bool Overlap(const LayerPart& a, const LayerPart& b) const {
    if (a.operand.value == b.operand.value) {
      return a.operand.offset < b.operand.offset + b.size &&
             b.operand.offset < a.operand.offset + a.size;
    }
    const GraphValue &u = ValueOf(a.operand), &v = ValueOf(b.operand);
    const bool share_buffer = u.kind == v.kind && ValueKind{u.kind} != ValueKind::kState &&
                              ValueKind{u.kind} != ValueKind::kConstant;
    return share_buffer && u.offset < std::uint64_t{v.offset} + v.size &&
           v.offset < std::uint64_t{u.offset} + u.size;
  }

  // Finds the weights of a layer from a tensor on, and the layer's sizes.
  bool ReadLayer(const GraphLayer& layer, std::int64_t first, std::vector<Tensor>* weights,
                 LayerSizes* sizes) {
    const Op& op = *layer.op;
    std::string error;
    bool all = false;
    if (!op.CheckCount(layer.tensors + op.spec.states.size(), &all, &error)) return Fail(error);
    const auto end = first + static_cast<std::int64_t>(layer.tensors);
    const auto count = static_cast<std::int64_t>(source_.tensors.size());
    if (end > count) return RefuseRange("tensors of the layer", 0, count, end);
    weights->resize(op.spec.weights.size());
    std::size_t next = static_cast<std::size_t>(first);
    for (std::size_t i = 0; i < weights->size(); ++i) {
      if (!all && op.spec.weights[i].MayBeAbsent()) continue;
      (*weights)[i] = source_.tensors[next++];
    }
    return op.CheckWeights(*weights, layer.group_size, sizes, &error) || Fail(error);
  }

  bool BuildRecurrent() {
    std::int64_t index, first, length, rows, from_zero, state_count;
    Operand from, to;
    const auto layers = static_cast<std::int64_t>(source_.layers.size());
    if (!Read("layer", 0, layers - 1, &index) || !Read("first tensor", 0, kMost, &first) ||
        !ReadOperand("from", &from) || !ReadOutput(&to) || !ReadCount("T", &length) ||
        !ReadCount("rows", &rows) || !Read("reads_zero", 0, 1, &from_zero)) {
      return false;
    }
    const GraphLayer& layer = source_.layers[static_cast<std::size_t>(index)];
    const Op& op = *layer.op;
    std::vector<Tensor> weights;
    RecurrentStep step{};
    if (!ReadLayer(layer, first, &weights, &step.sizes)) return false;
    const LayerSizes& sizes = step.sizes;
    const auto states = static_cast<std::int64_t>(op.spec.states.size());
    if (!Read("states", states, states, &state_count)) return false;
    const std::int64_t input = op.InputWidth(sizes);
    const auto check = [&](const char* name, const Operand& operand, std::int64_t width,
                           std::int64_t steps) {
      return CheckResult(name, operand, {{width, 1}, {rows, width}, {steps, rows * width}});
    };
    // before rows * width can overflow
    if (rows * std::max(input, sizes.hidden) > kMost) {
      return RefuseRange("rows", 1, kMost / std::max(input, sizes.hidden), rows);
    }
    if (!check("from", from, input, length)) return false;
    std::vector<LayerPart> parts{{from, length * rows * input}};
    // a call may take all streams at once, if their numbers follow each other
    bool together = length == 1 && StreamStride(from) == rows * input;
    step.has_output = to.value >= 0;
    if (step.has_output) {
      if (!check("to", to, sizes.hidden, length)) return false;
      parts.push_back({to, length * rows * sizes.hidden});
      together &= StreamStride(to) == rows * sizes.hidden;
      step.to = PlaceOf(to);
      step.to_stride = StreamStride(to);
    }
    std::vector<LayerState> places;
    for (const StateInput& spec : op.spec.states) {
      Operand state;
      const std::int64_t width = Width(spec.extent, sizes);
      if (!ReadResult("state", &state) || !check("state", state, width, 1)) return false;
      parts.push_back({state, rows * width});
      together &= StreamStride(state) == rows * width;
      places.push_back({PlaceOf(state), StreamStride(state), width});
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        if (!Overlap(parts[i], parts[k])) continue;
        return Refuse("values", "separate ones for x, y and each state", "ones that overlap");
      }
    }
    together |= batch_ == 1;
    step.run = &RunRecurrentStep;
    step.from = PlaceOf(from);
    step.from_stride = StreamStride(from);
    step.calls = together ? 1 : batch_;
    step.op = op;
    if (op.program != nullptr) step.op.kernel.cell = CopyCell(*op.program, &arena_);
    step.steps = length;
    step.rows = together ? batch_ * rows : rows;
    step.rows_of_stream = rows;
    step.skips = op.spec.skips;
    step.starts_from_zero = from_zero == 1;
    step.states = states;
    step.state = CopyList(places, &arena_);
    // the packed weights refer to the cell of the first step with them
    step.packed = Share(Shared::kLayer, index, first, [&] {
      void* const packed = arena_.Allocate(op.PackedBytes(sizes));
      if (packed != nullptr) step.op.Pack(sizes, op.Arrange(weights), packed);
      return packed;
    });
    PrepareCall(op, &step);
    neurons_ += length * rows * sizes.hidden;
    skips_ |= step.skips;
    Grow(op.ScratchBytes(sizes, length, step.rows));
    Add(step);
    return true;
  }

  // Allocates the call of a layer's kernel, what the kernel keeps between calls, and the counts.
  void PrepareCall(const Op& op, RecurrentStep* step) {
    Call call{};
    call.steps = call.length = step->steps;
    call.batch = step->rows;
    if (step->skips) {
      step->updates = arena_.Allocate<std::int64_t>(step->steps * step->rows);
      step->macs = arena_.Allocate<std::int64_t>(step->rows);
      call.updates = step->updates;
      call.macs = step->macs;
    }
    const std::uint64_t bytes = op.KeptBytes(step->sizes, step->rows), kLess = kAlignment - 1;
    step->kept_bytes = (bytes + kLess) & ~kLess;
    const std::uint64_t all =
        step->kept_bytes * static_cast<std::uint64_t>(step->calls * group_count_);
    step->kept = static_cast<char*>(arena_.Allocate(all));
    if (step->kept != nullptr) std::memset(step->kept, 0, static_cast<std::size_t>(all));
    step->layer_call = arena_.Allocate<Call>(1);
    if (step->layer_call != nullptr) *step->layer_call = call;
    std::vector<StatePlace> places;
    for (const StateInput& state : op.spec.states) {
      if (step->layer_call != nullptr) places.push_back(Op::PlaceOf(step->layer_call, state));
    }
    places.resize(op.spec.states.size());
    step->places = CopyList(places, &arena_);
  }

  const KernelTable& table_;
  const std::vector<float*>& states_;
  Arena& arena_;
  std::int64_t group_count_ = 0;
  // the arena of a group; a smaller one leaves the place of the missing streams as it is
  std::int64_t arena_streams_ = 0;
  float* buffers_ = nullptr;
  float* features_ = nullptr;
  std::vector<float*> memory_;  // of each value, except x and y
  std::vector<const Step*> steps_;
  std::vector<std::pair<std::int64_t, std::int64_t>> branches_;  // index, and number of steps
  std::map<std::array<std::int64_t, 3>, void*> shared_;
  std::int64_t neurons_ = 0;
  std::uint64_t scratch_bytes_ = 0;
  bool skips_ = false;
};

}  // namespace

bool CheckValues(const GraphSource& source, std::vector<Tensor>* starts, std::string* error) {
  const std::int64_t limits[kValueKinds] = {source.arena, kMost, 0, source.input, source.output};
  const auto tensors = static_cast<std::int64_t>(source.tensors.size());
  for (std::size_t i = 0; i < source.values.size(); ++i) {
    const GraphValue& value = source.values[i];
    const std::string name = "value " + std::to_string(i) + ": ";
    if (value.kind >= kValueKinds) {
      *error = name + "kind: expected 0 to 4, got " + std::to_string(value.kind);
      return false;
    }
    const ValueKind kind{value.kind};
    const bool is_tensor = kind == ValueKind::kState || kind == ValueKind::kConstant;
    const std::int64_t index = kind == ValueKind::kState ? value.tensor : value.offset;
    if (is_tensor && index >= tensors) {
      *error = name + "tensor: expected one of " + std::to_string(tensors) + ", got " +
               std::to_string(index);
      return false;
    }
    std::int64_t most = limits[value.kind] - value.offset;
    if (is_tensor) {
      most = 1;
      for (const std::int64_t size : source.tensors[static_cast<std::size_t>(index)].shape) {
        most *= size;
      }
    }
    most = std::min(most, kMost);
    if (value.size < 1 || value.size > most || (is_tensor && value.size != most)) {
      *error = name + "size: expected " + (is_tensor ? "" : "1 to ") + std::to_string(most) +
               ", got " + std::to_string(value.size);
      return false;
    }
    if (kind != ValueKind::kState) continue;
    starts->push_back(source.tensors[static_cast<std::size_t>(index)]);
    starts->back().shape = {value.size};
  }
  return true;
}

bool BuildGraph(const GraphSource& source, const KernelTable& table, std::int64_t batch,
                const std::vector<float*>& states, Arena* arena, Graph* graph, std::string* error) {
  return GraphBuilder(source, table, states, arena, error).Build(batch, graph);
}

}  // namespace edgernn
