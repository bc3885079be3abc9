// SPDX-License-Identifier: Apache-2.0
// The driver of rules of the kind kColumn, whose products read only the values that changed.
//
// Such a rule keeps the sums W x + R h + b, of the values that were last sent. A step adds the
// columns of the values that it sends anew. The changes of x of a chunk of steps are known when it
// starts, so their products are computed at once. Sums are computed anew after a number of steps,
// and where a value jumps, so that rounding errors and infinite numbers do not stay in them. The
// weights are packed as for the dense driver, in float32.

#pragma once

#include "cpu/driver_dense.h"
#include "cpu/gemm_columns.h"

namespace edgernn::EDGERNN_ISA {

struct ColumnScratch {
  DenseScratch dense;
  float* sent_x;    // (chunk + 1, B, columns of W): before the chunk, and after each step
  float* sent_h;    // (B, padded H)
  Changes x;        // (chunk * B) rows
  Changes h;        // B rows
  float* kept_mid;  // (B, floats of the gates marked kMid)
  float* kept;      // (B, floats of all other gates)
  float* zeros;     // (the most floats of both,)
  std::int64_t zero_floats;
  float* age;    // (B,)
  bool* renews;  // (B,): the sums of a sample are computed anew at this step
  std::uint64_t bytes;

  [[gnu::noinline, gnu::cold]] ColumnScratch(const CellTable& cell, const LayerSizes& sizes,
                                             std::int64_t steps, std::int64_t batch, void* base)
      : dense(cell, sizes, steps, batch, base) {
    const std::int64_t rows = dense.chunk * batch;
    Arena arena(base);
    arena.Allocate(dense.bytes);
    sent_x = arena.Allocate<float>((dense.chunk + 1) * batch * sizes.columns);
    sent_h = arena.Allocate<float>(batch * PadToLanes(sizes.hidden));
    x.Allocate(rows, sizes.columns, &arena);
    h.Allocate(batch, sizes.hidden, &arena);
    const std::int64_t mid_floats = PadToLanes(MidSize(cell, sizes)) * cell.first_stage.all.count;
    const std::int64_t floats = PadToLanes(sizes.hidden) * cell.second_stage.all.count;
    kept_mid = arena.Allocate<float>(batch * mid_floats);
    kept = arena.Allocate<float>(batch * floats);
    zero_floats = mid_floats > floats ? mid_floats : floats;
    zeros = arena.Allocate<float>(zero_floats);
    age = arena.Allocate<float>(batch);
    renews = arena.Allocate<bool>(batch);
    bytes = arena.used();
  }
};

// The packed weights of a layer.
struct ColumnWeights {
  float* thresholds;    // for x and for h
  GateGroup* groups;    // those of `rest`
  DenseWeights* rest;   // for a step that starts from the sums of the products with x and h
  void* all;            // DenseWeights
  std::uint64_t bytes;  // but for `all`

  explicit ColumnWeights(void* base) {
    Arena arena(base);
    thresholds = arena.Allocate<float>(2);
    groups = arena.Allocate<GateGroup>(2);
    rest = arena.Allocate<DenseWeights>(1);
    bytes = arena.used();
    all = arena.Allocate(0);
  }
};

// A part of a step, Mid or Update: the kept sums of its gates, and the products that update them.
struct ColumnGroup {
  const GroupWeights& weights;
  float* changes;  // (chunk, B, floats): products with the changes of some rows
  float* kept;     // (B, floats)
  // W times the changes of x, and R times those of h
  ChangeProduct inputs, states;

  ColumnGroup(const GroupWeights& weights, const ColumnScratch& scratch, float* changes,
              float* kept)
      : weights(weights),
        changes(changes),
        kept(kept),
        inputs(weights, weights.group->x, weights.w, scratch.x, scratch.zeros),
        states(weights, weights.group->h, weights.r, scratch.h, scratch.zeros) {}
};

// One call.
template <class Rule>
struct ColumnRun {
  const CellKernel& cell;
  const LayerSizes& sizes;
  const DenseWeights& weights;
  const Call& call;
  const float* thresholds;  // for x and for h
  ColumnScratch& scratch;
  ColumnGroup mid{weights.mid, scratch, scratch.dense.mid_sums, scratch.kept_mid};
  ColumnGroup update{weights.update, scratch, scratch.dense.sums, scratch.kept};

  std::int64_t ReadMacs(unsigned term) const {
    const auto count = [term](const GateGroup& group) {
      return term == kX ? group.x.count : group.h.count;
    };
    return count(cell.first_stage) * MidSize(cell, sizes) + count(cell.second_stage) * sizes.hidden;
  }

  // The multiply-adds of a step that no value saves: the products with c and m.
  std::int64_t WholeMacs() const {
    const GateGroup& group = cell.second_stage;
    return sizes.hidden * (sizes.hidden * group.c.count + MidSize(cell, sizes) * group.m.count);
  }

  // Calls visit(group, kept, offset, rows): for each gate with kept sums, the place of its first
  // block, and its rows in the memory (B, P).
  template <class Visit>
  void ForGates(const Visit& visit) const {
    std::int64_t row = 0;
    for (int g = 0; g < cell.gates; ++g) {
      if ((cell.terms[g] & (kX | kH)) == 0) continue;
      const ColumnGroup& group = (cell.terms[g] & kMid) != 0 ? mid : update;
      const GateList& gates = group.weights.group->all;
      int place = 0;
      while (gates.at[place] != g) ++place;
      visit(group, group.kept + place * kLanes, row);
      row += group.weights.size;
    }
  }

  // Copies the kept sums from or to the memory.
  template <bool kToMemory>
  [[gnu::noinline, gnu::cold]] void CopySums(float* memory) const {
    for (std::int64_t b = 0; b < call.batch; ++b, memory += sizes.sums) {
      ForGates([&](const ColumnGroup& group, float* kept, std::int64_t row) {
        kept += b * group.weights.Floats();
        const std::int64_t stride = group.weights.group->all.count * kLanes;
        for (std::int64_t j = 0; j < group.weights.size; j += kLanes, kept += stride) {
          const Lanes part(group.weights.size - j);
          if (kToMemory) {
            part.Store(memory + row + j, Load(kept));
          } else {
            Store(kept, part.Load(memory + row + j));
          }
        }
      });
    }
  }

  const float* SentX(std::int64_t row) const {
    return scratch.sent_x + (call.batch + row) * sizes.columns;
  }

  // Finds the changes of x of `count` steps, and computes their products.
  [[gnu::noinline]] void Project(std::int64_t from, std::int64_t count) {
    const std::int64_t batch = call.batch, rows = count * batch, columns = sizes.columns;
    const float* x = call.x + from * batch * sizes.input;
    if (cell.reads_input) ReadState(x, rows, sizes.input, scratch.dense.x);
    if (cell.reads_last) {
      PairInputs(call, sizes.input, from, count, scratch.dense.pairs);
      x = scratch.dense.pairs;
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      float* const sent = scratch.sent_x + (batch + row) * columns;
      std::memcpy(sent, sent - batch * columns, Bytes(columns));
      scratch.x.Find(row, x + row * columns, thresholds[0], Rule::kLargestChange, sent);
    }
    mid.inputs.StartWide(rows, mid.changes);
    update.inputs.StartWide(rows, update.changes);
  }

  // Computes the sums of a sample from the values that were sent.
  [[gnu::noinline, gnu::cold]] void Renew(const ColumnGroup& group, std::int64_t row,
                                          std::int64_t b, float* sums) const {
    const GroupWeights& from = group.weights;
    unsigned started = 0;
    Product product;
    const auto add = [&](const GateList& places, const PackedMatrix& matrix, const float* a) {
      if (places.count == 0) return;
      from.MakeProduct(places, matrix, a, 1, matrix.depth, matrix.depth, {}, &started, &product);
      StartSums(product, 1, sums);
    };
    add(from.group->x, from.w, SentX(row));
    add(from.group->h, from.r, scratch.sent_h + b * PadToLanes(sizes.hidden));
  }

  // Brings the kept sums to a step whose first row in the chunk is `first`.
  [[gnu::noinline]] void Sum(ColumnGroup& group, std::int64_t first) const {
    const std::int64_t floats = group.weights.Floats();
    if (floats == 0) return;
    float* const sums = group.changes + first * floats;
    for (std::int64_t b = 0; b < call.batch; ++b) {
      float* const kept = group.kept + b * floats;
      if (scratch.renews[b]) {
        Renew(group, first + b, b, kept);
      } else {
        group.inputs.Add(first + b, sums + b * floats, kept);
      }
    }
    group.states.StartWide(call.batch, sums);
    for (std::int64_t b = 0; b < call.batch; ++b) {
      if (!scratch.renews[b]) group.states.Add(b, sums + b * floats, group.kept + b * floats);
    }
    // some cells overwrite the sums
    if (cell.untiled) std::memcpy(sums, group.kept, Bytes(call.batch * floats));
  }

  // The sums that the other terms of a step are added to.
  float* SumsOf(const ColumnGroup& group, std::int64_t first) const {
    return cell.untiled ? group.changes + first * group.weights.Floats() : group.kept;
  }
};

template <class Rule>
struct ColumnDriver {
  static constexpr RuleSpec kSpec = DescribeRule<Rule>();
  static_assert(kSpec.memory_count == 4 && kSpec.memories[0].extent == Extent::kColumns &&
                kSpec.memories[1].extent == Extent::kHidden &&
                kSpec.memories[2].extent == Extent::kOne &&
                kSpec.memories[3].extent == Extent::kSums);

  // Weights of every type are packed in float32.
  static LayerSizes InFloat32(LayerSizes sizes) {
    sizes.weights = NumberType::kFloat32;
    return sizes;
  }

  [[gnu::cold]] static std::uint64_t PackedBytes(const Kernel& kernel, const LayerSizes& sizes) {
    return ColumnWeights(nullptr).bytes + DenseDriver::PackedBytes(kernel, InFloat32(sizes));
  }

  static std::uint64_t ScratchBytes(const Kernel& kernel, const LayerSizes& sizes,
                                    std::int64_t steps, std::int64_t batch) {
    return ColumnScratch(*kernel.cell, InFloat32(sizes), steps, batch, nullptr).bytes;
  }

  static std::uint64_t KeptBytes(const Kernel&, const LayerSizes&, std::int64_t) { return 0; }

  [[gnu::cold]] static void Pack(const Kernel& kernel, const LayerSizes& sizes, const Weights& from,
                                 void* packed) {
    const CellKernel& cell = *kernel.cell;
    const ColumnWeights to(packed);
    for (int i = 0; i < 2; ++i) to.thresholds[i] = from.rule[i][0];
    const DenseWeights all(cell, InFloat32(sizes), to.all);
    all.Pack(cell, InFloat32(sizes), from, false);
    to.groups[0] = WithoutSums(cell.first_stage);
    to.groups[1] = WithoutSums(cell.second_stage);
    *to.rest = all;
    to.rest->mid.group = &to.groups[0];
    to.rest->update.group = &to.groups[1];
  }

  // The gates of a group without h: a step then starts from sums, and adds the other terms.
  [[gnu::noinline, gnu::cold]] static GateGroup WithoutSums(const GateGroup& group) {
    GateGroup rest = group;
    bool starts[kMaxGates] = {};
    for (int i = 0; i < group.x.count; ++i) starts[group.x.at[i]] = true;
    for (int i = 0; i < group.h.count; ++i) starts[group.h.at[i]] = true;
    rest.x.count = rest.h.count = 0;
    for (int g = 0; g < group.all.count; ++g) {
      if (starts[g]) rest.x.at[rest.x.count++] = g;
    }
    return rest;
  }

  static void Run(const Kernel& kernel, const LayerSizes& typed, const void* packed,
                  const Call& call, void* base) {
    const CellKernel& cell = *kernel.cell;
    const LayerSizes sizes = InFloat32(typed);
    const std::int64_t hidden = sizes.hidden, wide = PadToLanes(hidden), batch = call.batch;
    const ColumnWeights from(const_cast<void*>(packed));
    const DenseWeights& weights = DenseWeights::In(from.all);
    const CallParams params(cell, weights.params, call.length);
    ColumnScratch scratch(cell, sizes, call.steps, batch, base);
    ColumnRun<Rule> run{cell, sizes, weights, call, from.thresholds, scratch};
    DenseScratch& dense = scratch.dense;
    for (int s = 0; s < cell.states; ++s) {
      ReadState(call.state_in[s], batch, hidden, dense.state[s]);
    }
    std::memcpy(scratch.sent_x, call.memory_in[0], Bytes(batch * sizes.columns));
    ReadState(call.memory_in[1], batch, hidden, scratch.sent_h);
    std::memcpy(scratch.age, call.memory_in[2], Bytes(batch));
    std::memset(scratch.zeros, 0, Bytes(scratch.zero_floats));
    run.template CopySums<false>(const_cast<float*>(call.memory_in[3]));
    for (std::int64_t b = 0; call.macs != nullptr && b < batch; ++b) {
      call.macs[b] = call.steps * run.WholeMacs();
    }
    const std::int64_t x_macs = run.ReadMacs(kX), h_macs = run.ReadMacs(kH);
    DenseProducts products(*from.rest);
    DenseStep step(cell, sizes, *from.rest, params.at(), &products, &dense);
    std::int64_t count = 0;
    for (std::int64_t t = 0; t < call.steps; ++t) {
      const std::int64_t row = t % dense.chunk * batch;
      if (row == 0) {
        // the values that were sent at the end of the last chunk
        std::memmove(scratch.sent_x, scratch.sent_x + count * batch * sizes.columns,
                     Bytes(batch * sizes.columns));
        count = call.steps - t < dense.chunk ? call.steps - t : dense.chunk;
        run.Project(t, count);
      }
      for (std::int64_t b = 0; b < batch; ++b) {
        scratch.h.Find(b, dense.state[0] + b * wide, run.thresholds[1], Rule::kLargestChange,
                       scratch.sent_h + b * wide);
        float* const age = scratch.age + b;
        const bool renews = !(*age > 0.0f) || scratch.x.jumps[row + b] || scratch.h.jumps[b];
        scratch.renews[b] = renews;
        *age = *age + 1.0f < static_cast<float>(Rule::kPeriod) ? *age + 1.0f : 0.0f;
        if (call.updates != nullptr) call.updates[t * batch + b] = scratch.h.counts[b];
        if (call.macs == nullptr) continue;
        call.macs[b] += x_macs * (renews ? sizes.columns : scratch.x.Read(row + b)) +
                        h_macs * (renews ? hidden : scratch.h.Read(b));
      }
      run.Sum(run.mid, row);
      run.Sum(run.update, row);
      if (cell.reads_input) step.x = dense.x + row * PadToLanes(sizes.input);
      step.mid_sums = run.SumsOf(run.mid, row);
      step.sums = run.SumsOf(run.update, row);
      if (call.y != nullptr) step.y = call.y + t * batch * hidden;
      step.Run(batch);
    }
    for (int s = 0; s < cell.states; ++s) {
      WriteState(dense.state[s], batch, hidden, call.state_out[s]);
    }
    if (call.memory_out[0] != nullptr) {
      std::memcpy(call.memory_out[0], scratch.sent_x + count * batch * sizes.columns,
                  Bytes(batch * sizes.columns));
    }
    WriteState(scratch.sent_h, batch, hidden, call.memory_out[1]);
    if (call.memory_out[2] != nullptr) {
      std::memcpy(call.memory_out[2], scratch.age, Bytes(batch));
    }
    if (call.memory_out[3] != nullptr) run.template CopySums<true>(call.memory_out[3]);
    if (cell.reads_last) WriteLast(call, sizes.input);
  }
};

}  // namespace edgernn::EDGERNN_ISA
