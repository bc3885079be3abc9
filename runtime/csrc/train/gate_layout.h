// SPDX-License-Identifier: Apache-2.0
// The layout of a cell's gates in the memory of a call, and the matrix products that they sum.

#pragma once

#include "cpu/group_rows.h"
#include "train/gemm_row_major.h"
#include "train/train_table.h"

namespace edgernn::EDGERNN_ISA {

// The right-hand operand of each product: x, h, c and m for the gates, and x for the rule.
enum Operand { kOperandX, kOperandH, kOperandC, kOperandM, kOperandRule, kOperands };

// Adjacent gates of a product, multiplied as one matrix.
struct Segment {
  std::int64_t columns;
  std::int64_t at;   // first column among the P
  std::int64_t row;  // first row in the weights
  bool first;        // true: starts from the bias, not from an earlier product
  float* packed;
};

// One product: W x, R h, C c, V m, or the rule's matrix times x.
struct Term {
  const float* weights;  // (rows, depth)
  float* grad;
  std::int64_t rows;
  std::int64_t depth;
  int count;
  Segment segments[kMaxGates];
};

struct GateLayout {
  const TrainCell& cell;
  const TrainRule& rule;
  std::int64_t hidden, middle, inputs;  // H, M, columns of W
  std::int64_t group_size;              // neurons that share a decision
  std::int64_t groups;                  // number of groups; H if group_size is 1
  std::int64_t gates;                   // P
  std::int64_t size[kMaxGates];
  std::int64_t at[kMaxGates];
  std::int64_t bias_row[kMaxGates];  // first entry in b; -1: no bias
  std::int64_t rule_at;              // first column of the rule's product, if it has one
  Term terms[kOperands];

  GateLayout(const TrainCell& train_cell, const TrainRule& train_rule, const EdgernnTrainCall& call)
      : cell(train_cell),
        rule(train_rule),
        hidden(call.hidden),
        middle(train_cell.mid_is_input ? call.input : call.hidden),
        inputs(call.input * (train_cell.reads_last ? 2 : 1)),
        group_size(call.group_size),
        groups((call.hidden + call.group_size - 1) / call.group_size),
        gates(0) {
    std::int64_t biases = 0;
    const unsigned bias_terms = call.cell < Cells::kCount ? kBias : kBias | kOptionalBias;
    for (int g = 0; g < cell.gates; ++g) {
      size[g] = (cell.terms[g] & kMid) != 0 ? middle : hidden;
      at[g] = gates;
      gates += size[g];
      const bool biased = (cell.terms[g] & bias_terms) != 0;
      bias_row[g] = biased ? biases : -1;
      if (biased) biases += size[g];
    }
    rule_at = gates;
    terms[kOperandX] = MakeTerm(kX, 0, call.w, call.w_grad, inputs);
    terms[kOperandH] = MakeTerm(kH, kX, call.r, call.r_grad, hidden);
    terms[kOperandC] = MakeTerm(kC, kX | kH, call.c, call.c_grad, hidden);
    terms[kOperandM] = MakeTerm(kM, kX | kH | kC, call.v, call.v_grad, middle);
    Term& rule_term = terms[kOperandRule];
    rule_term = {};
    rule_term.depth = call.input;
    if (rule.matrix >= 0) {
      rule_term.weights = call.rule_params[rule.matrix];
      rule_term.grad = call.rule_params_grad[rule.matrix];
      rule_term.rows = groups;
      rule_term.count = 1;
      rule_term.segments[0] = {groups, rule_at, 0, true, nullptr};
      gates += groups;
    }
  }

  // The term of the gates with `term_bit`. Gates with any of `earlier_bits` already hold a partial
  // sum.
  Term MakeTerm(unsigned term_bit, unsigned earlier_bits, const float* weights, float* grad,
                std::int64_t depth) const {
    Term term{};
    term.weights = weights;
    term.grad = grad;
    term.depth = depth;
    int last = -1;
    for (int g = 0; g < cell.gates; ++g) {
      if ((cell.terms[g] & term_bit) == 0) continue;
      const bool first = (cell.terms[g] & earlier_bits) == 0;
      Segment* segment = term.segments + term.count - 1;
      if (last >= 0 && last == g - 1 && segment->first == first) {
        segment->columns += size[g];
      } else {
        segment = &term.segments[term.count++];
        *segment = {size[g], at[g], term.rows, first, nullptr};
      }
      term.rows += size[g];
      last = g;
    }
    return term;
  }

  // The length of one of the cell's own parameters.
  std::int64_t ParamSize(int i, std::int64_t input) const {
    const Extent extent = cell.extents[i];
    return extent == Extent::kOne ? 1 : extent == Extent::kInput ? input : hidden;
  }

  // True if a parameter of the rule is a scalar.
  bool IsRuleScalar(int i) const { return rule.params[i].rows.one > 0; }

  // The length of a rule's parameter as its decisions read it; 0 if they do not.
  std::int64_t RuleParamSize(int i) const {
    return rule.decide == nullptr || !IsRead(rule, i) ? 0 : IsRuleScalar(i) ? 1 : groups;
  }

  // The number of decisions per sample, which is also the size of each memory.
  std::int64_t DecisionSize() const { return rule.kind == RuleKind::kNeuron ? groups : 1; }

  // The values of a memory per sample that decisions read: the rule's, or under kColumn those that
  // products read in place of x and h.
  std::int64_t MemorySize(int i) const {
    return rule.kind != RuleKind::kColumn ? DecisionSize() : i == 0 ? inputs : hidden;
  }

  // True if groups of several neurons decide.
  bool HasGroups() const { return group_size > 1; }
  GroupRows GroupsOfRow() const { return GroupRows(hidden, group_size); }

  // Allocates the packed weights of one direction.
  void Allocate(bool back, Arena* arena) {
    for (Term& term : terms) {
      for (int i = 0; i < term.count; ++i) {
        Segment& s = term.segments[i];
        s.packed = arena->Allocate<float>(back ? PackedFloats(s.columns, term.depth)
                                               : PackedFloats(term.depth, s.columns));
      }
    }
  }

  void PackWeights(bool back) const {
    for (const Term& term : terms) {
      for (int i = 0; i < term.count; ++i) {
        const Segment& s = term.segments[i];
        const float* from = term.weights + s.row * term.depth;
        if (back) {
          Pack(from, term.depth, term.depth, s.columns, s.packed);
        } else {
          PackTransposed(from, term.depth, s.columns, term.depth, s.packed);
        }
      }
    }
  }
};

}  // namespace edgernn::EDGERNN_ISA
