// SPDX-License-Identifier: Apache-2.0
// The C interface of the training library: one call runs a whole sequence of one cell, forward or
// backward.
//
// The caller owns all memory: row-major float32, laid out as the op's inputs
// (docs/reference/op.md). P is the number of pre-activations: M or H for each gate, and one
// more per decision of a rule with a matrix. W has I columns, or 2I if the cell also reads the last
// input. A call runs on OpenMP's threads if the process has loaded OpenMP, else on threads that it
// starts and joins.

#pragma once

#include <cstddef>
#include <cstdint>

#include "edgernn.h"
#include "rules/list.h"
#include "train/norms.h"

extern "C" {

// A program as serialised by edgernn/program.py; empty if the cell has none.
struct EdgernnTrainProgram {
  const std::int64_t* ints;
  std::int64_t int_count;
  const float* numbers;
  std::int64_t number_count;
};

// A user-defined cell. Its lists are the op's attributes; the caller maps its vectors.
//
// update_back takes the arguments of update and the gradients of its results (argument 64 + i). It
// returns the gradient of each argument of update, then the results of update. mid_back is the same
// for mid, but does not return the results of mid.
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

// One call. Pointers to inputs that the cell or rule does not have are null. `memory` and
// `memories` are those of rules with equations; under kColumn they are the values that products
// read in place of x and h, (B, columns of W) and (B, H), which have gradients `sent_grad`. These
// are straight-through if `memory_grad` is null; otherwise the caller must fill it with zeros.
struct EdgernnTrainCall {
  const void* program;          // from edgernn_train_new_cell; null: a built-in cell
  std::int64_t cell;            // from edgernn_train_cell
  std::int64_t rule;            // from edgernn_train_rule
  std::int64_t steps;           // T
  std::int64_t batch;           // B
  std::int64_t input;           // I
  std::int64_t hidden;          // H
  std::int64_t group_size;      // neighbouring neurons that share a decision of a kNeuron rule
  std::int64_t detaches_state;  // 1: a kNeuron rule passes no gradient to the states that it reads
  std::int64_t threads;         // maximum number of threads
  std::int64_t keep;            // 1: keep p, m and all states of every step, as backward needs them

  const float* x;                            // (T, B, columns of W)
  const float* w;                            // (rows of the gates with x, columns of W)
  const float* r;                            // (rows of the gates with h, H)
  const float* c;                            // (rows of the gates with c, H)
  const float* v;                            // (rows of the gates with m, M)
  const float* b;                            // (rows of the gates with a bias,)
  const float* params[edgernn::kMaxParams];  // (H,), (I,) or (1,) each, after their maps
  const float* start[edgernn::kMaxStates];   // (B, H) each: the state before the first step
  const float* rule_params[edgernn::kMaxRuleParams];  // in the order of the op's inputs
  const float* memory[edgernn::kMaxMemories];         // (B, size) each, before the first step
  float slope;  // backward: slope of the likelihood that replaces u in gradients

  // written by forward, read by backward
  float* p;                                // (T, B, P); (B, P) if not kept or with norms
  float* m;                                // (T, B, M); (B, M) if not kept
  float* state[edgernn::kMaxStates];       // (T, B, H) each; if not kept, (B, H) except state[0]
  float* memories[edgernn::kMaxMemories];  // (T, B, size) each, after every step
  float* u;                                // (T, B, H): update gates; an input under kTime, null
                                           // under kColumn and a rule that never skips

  // read by backward; null means zeros
  const float* decision_weights;  // (T, B), the update budget's gradient of each u of a sample
  const float* y_grad;            // (T, B, H), gradient of state[0]
  const float* last_grad[edgernn::kMaxStates];  // (B, H) each, of the states after the last step
  const float* last_memory_grad[edgernn::kMaxMemories];  // (B, size) each

  // written by backward: gradients of the inputs of forward; null if not wanted
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
  // under kColumn: gradients of the values that products read in place of x and h
  float* sent_grad[2];  // (T, B, columns of W), (T, B, H)
  float* u_grad;        // under a rule of the kind kTime

  void* scratch;                   // workspace of edgernn_train_scratch bytes
  const EdgernnTrainNorms* norms;  // null: no normalisation
};

// Returns sizeof(EdgernnTrainCall), for callers to check that their struct matches.
EDGERNN_API std::int64_t edgernn_train_call_bytes();

// Returns the index of a built-in cell by name and by the number of gates with a bias, or -1. With
// optional biases the index is higher by the number of cells.
EDGERNN_API std::int64_t edgernn_train_cell(const char* name, std::int64_t biases);

// Checks a user-defined cell and returns it, to be freed by edgernn_train_free_cell. Returns null
// and writes the reason to `message` (at most message_bytes with the final zero) if it cannot be
// run.
EDGERNN_API const void* edgernn_train_new_cell(const EdgernnTrainCellSource* source, char* message,
                                               std::int64_t message_bytes);
EDGERNN_API void edgernn_train_free_cell(const void* program);

// Returns the index of a rule by name, or -1 if training has no kernel for it.
EDGERNN_API std::int64_t edgernn_train_rule(const char* name);

// Returns P, the number of pre-activations per row.
EDGERNN_API std::int64_t edgernn_train_gates(const EdgernnTrainCall* call);

// Returns the size of `scratch` in bytes, enough for either direction.
EDGERNN_API std::int64_t edgernn_train_scratch(const EdgernnTrainCall* call);

EDGERNN_API void edgernn_train_forward(const EdgernnTrainCall* call);
EDGERNN_API void edgernn_train_backward(const EdgernnTrainCall* call);

// Returns the instruction set in use, or null if this processor supports none of those built.
EDGERNN_API const char* edgernn_train_isa();

// Streams sequences x (sequences, steps, stride), each from the initial state, as an app without
// Python would. Returns the last nonzero status, or 0.
//
// stride: floats between the inputs of two steps; a word index (int64) takes two.
EDGERNN_API int edgernn_probe_sequences(int (*step)(void*, const float*, float*),
                                        int (*reset)(void*), void* model, const float* x,
                                        std::int64_t sequences, std::int64_t steps,
                                        std::int64_t stride, float* y);

}  // extern "C"
