// SPDX-License-Identifier: Apache-2.0
// The plain C functions of the training library: a whole sequence of one cell forward and backward.
//
// Both are plain C functions on row-major float32 memory of the caller, laid out as the inputs of
// the op are: see docs/background/design.md. P counts the neurons of all gates, M or H a gate, and
// H more for a rule that multiplies x by a matrix; columns of W: I, or 2I if the cell reads the
// last input too. A call works on OpenMP's threads where the process has them, or on threads of its
// own and leaves none behind.

#ifndef EDGERNN_TRAIN_C_API_H_
#define EDGERNN_TRAIN_C_API_H_

#include <cstddef>
#include <cstdint>

#include "program/program.h"
#include "rules/list.h"
#include "train/norms.h"

extern "C" {

// A program as edgernn/program.py serialises it; one that a cell lacks is empty.
struct EdgernnTrainProgram {
  const std::int64_t* ints;
  std::int64_t int_count;
  const float* numbers;
  std::int64_t number_count;
};

// A cell that the library does not have. Its lists are those of the op's attributes; its vectors
// are mapped by the caller. update_back has the arguments of update and the gradients of its
// results for arguments (64 + i), and for results the gradient of each argument of update, then the
// results of update. mid_back likewise, without the results of mid.
struct EdgernnTrainCellSource {
  const std::int64_t* gates;
  std::int64_t gate_count;
  const std::int64_t* vectors;
  std::int64_t vector_count;
  const std::int64_t* layout;
  std::int64_t layout_count;
  EdgernnTrainProgram update;
  EdgernnTrainProgram update_back;
  EdgernnTrainProgram mid;
  EdgernnTrainProgram mid_back;
};

// One sequence. What the cell or rule lacks is null; memories are those of rules with equations.
struct EdgernnTrainCall {
  const void* program;   // edgernn_train_new_cell of the cell; null: it is the library's
  std::int64_t cell;     // edgernn_train_cell of it
  std::int64_t rule;     // edgernn_train_rule of its name
  std::int64_t steps;    // T
  std::int64_t batch;    // B
  std::int64_t input;    // I
  std::int64_t hidden;   // H
  std::int64_t threads;  // at most so many
  std::int64_t keep;     // whether p, m and all states are kept: see there

  const float* x;                            // (T, B, columns of W)
  const float* w;                            // (rows of the gates with x, columns of W)
  const float* r;                            // (rows of the gates with h, H)
  const float* c;                            // (rows of the gates with c, H)
  const float* v;                            // (rows of the gates with m, M)
  const float* b;                            // (rows of the gates with a bias,)
  const float* params[edgernn::kMaxParams];  // (H,), (I,) or (1,) each, mapped already
  const float* start[edgernn::kMaxStates];   // (B, H) each: the state before the first step
  const float* rule_params[edgernn::kMaxRuleParams];  // in the order of the op's inputs
  const float* memory[edgernn::kMaxMemories];         // (B, size) each, before the first step
  float slope;            // backward: of the likelihood, which gradients take decisions for
  float decision_weight;  // and the gradient of each u (or likelihood) by way of the budget

  // made by forward, read by backward
  float* p;                                // (T, B, P), or (B, P) if not kept or with norms
  float* m;                                // (T, B, M), or (B, M) if not kept
  float* state[edgernn::kMaxStates];       // (T, B, H) each; (B, H) but for the first if not kept
  float* memories[edgernn::kMaxMemories];  // (T, B, size) each: after every step
  float* u;                                // (T, B, H): which neurons change. A rule of the kind
                                           // kTime is given it; of one that never skips it is null

  // read by backward: any may be null, for zeros
  const float* y_grad;                          // (T, B, H), of state[0]
  const float* last_grad[edgernn::kMaxStates];  // (B, H) each, of the state after the last step
  const float* last_memory_grad[edgernn::kMaxMemories];  // (B, size) each

  // made by backward: those of what forward is given; any may be null
  float* x_grad;
  float* w_grad;
  float* r_grad;
  float* c_grad;
  float* v_grad;
  float* b_grad;
  float* params_grad[edgernn::kMaxParams];
  float* start_grad[edgernn::kMaxStates];
  float* rule_params_grad[edgernn::kMaxRuleParams];
  float* memory_grad[edgernn::kMaxMemories];
  float* u_grad;  // of a rule of the kind kTime

  void* scratch;                   // edgernn_train_scratch bytes
  const EdgernnTrainNorms* norms;  // null: nothing is normalised
};

#pragma GCC visibility push(default)

// The size of a call, by which a caller sees whether it was made for this library.
std::int64_t edgernn_train_call_bytes();

// The number of a cell by its name and by how many of its gates have a bias; -1: there is none.
// With optional biases it is higher by the count of all cells.
std::int64_t edgernn_train_cell(const char* name, std::int64_t biases);

// Checks a cell and returns it, to be freed by edgernn_train_free_cell; null: it cannot be run, and
// `why`, which has room for so many bytes, says why.
const void* edgernn_train_new_cell(const EdgernnTrainCellSource* source, char* why,
                                   std::int64_t why_bytes);
void edgernn_train_free_cell(const void* program);

// The number of a rule by its name; -1: training has no kernel of it.
std::int64_t edgernn_train_rule(const char* name);

// P of a call.
std::int64_t edgernn_train_gates(const EdgernnTrainCall* call);

// The bytes of `scratch`, for either direction.
std::int64_t edgernn_train_scratch(const EdgernnTrainCall* call);

void edgernn_train_forward(const EdgernnTrainCall* call);
void edgernn_train_backward(const EdgernnTrainCall* call);

// The instruction set in use; null: none of those that were built runs here.
const char* edgernn_train_isa();

#pragma GCC visibility pop

}  // extern "C"

namespace edgernn {

// What a driver has of a cell: its table, and its point-wise maps in both directions.
struct TrainPointwiseArgs;
struct TrainRuleArgs;

struct TrainCellFunctions {
  void (*update)(const TrainPointwiseArgs&);
  void (*mid)(const TrainPointwiseArgs&);
  void (*update_back)(const TrainPointwiseArgs&);
  void (*mid_back)(const TrainPointwiseArgs&);
};

struct TrainCell : CellTable, TrainCellFunctions {};

// A cell that a user brings. Programs of m are without results if it has none.
struct ProgramTrainCell : TrainCell {
  Program update_program;
  Program update_back_program;
  Program mid_program;
  Program mid_back_program;
};

// A rule and its functions: what precedes and what follows the update of a step, both ways. Those
// that decide are called for rules with equations, the memories' for those that remember.
struct TrainRule : RuleSpec {
  void (*decide)(const TrainRuleArgs&);
  void (*remember)(const TrainRuleArgs&);
  void (*remember_back)(const TrainRuleArgs&);
  void (*decide_back)(const TrainRuleArgs&);
};

// One instruction set's training. `prepared` holds the weights as one direction needs them and is
// read by all threads; `scratch` is one thread's, for the rows from `first` to `end`.
struct TrainTable {
  const char* isa;
  const TrainCell* cells;
  int cell_count;
  const TrainCellFunctions* program;  // of cells that users bring
  const TrainRule* rules;
  int rule_count;
  std::int64_t (*gates)(const EdgernnTrainCall&);
  std::size_t (*prepared_bytes)(const EdgernnTrainCall&);
  std::size_t (*scratch_bytes)(const EdgernnTrainCall&, std::int64_t rows);
  void (*prepare)(const EdgernnTrainCall&, bool back, void* prepared);
  void (*forward)(const EdgernnTrainCall&, void* prepared, std::int64_t first, std::int64_t end,
                  void* scratch);
  void (*backward)(const EdgernnTrainCall&, void* prepared, std::int64_t first, std::int64_t end,
                   void* scratch);
  // writes the gradients that all rows share, from what `backward` left in each scratch
  void (*add_up)(const EdgernnTrainCall&, void* const* scratch, int count);
};

}  // namespace edgernn

#endif  // EDGERNN_TRAIN_C_API_H_
