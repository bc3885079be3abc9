// SPDX-License-Identifier: Apache-2.0
// Streams sequences through a model exported by edgernn, one step at a time, and keeps its state.

#ifndef EDGERNN_EXAMPLES_STREAM_H_
#define EDGERNN_EXAMPLES_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ort.h"

namespace edgernn {

// Releases an object of ONNX Runtime.
struct Release {
  void operator()(OrtEnv* env) const;
  void operator()(OrtMemoryInfo* memory) const;
  void operator()(OrtSession* session) const;
  void operator()(OrtSessionOptions* options) const;
  void operator()(OrtTypeInfo* info) const;
  void operator()(OrtValue* value) const;
};

template <class T>
using Owned = std::unique_ptr<T, Release>;

// An input or output of the model for one step of one sequence (T = 1, B = 1), with its memory.
struct Tensor {
  std::vector<float> floats;           // the elements of a float tensor
  std::vector<std::int64_t> integers;  // the elements of an int64 tensor
  Owned<OrtValue> value;
};

// An open model and its state. Throws std::runtime_error on errors. Not thread-safe.
class Stream {
 public:
  // library: The path of libedgernn_ops, or "" for the portable operators in the file.
  Stream(const std::string& model, const std::string& library);

  // The number of inputs of a step: I, or 1 for a model of words.
  std::size_t input_size() const { return x_.floats.size() + x_.integers.size(); }

  // The names of the inputs (I,), or none if the file has none.
  const std::vector<std::string>& channels() const { return channels_; }

  // Runs one step with x (I,). Returns y (O,), which the next step overwrites.
  const std::vector<float>& Step(const std::vector<float>& x);

  // Sets the state to its initial value, so that the next step starts a new sequence.
  void Reset();

  // The number of neurons that the last step updated, or -1 for a model that always updates all.
  std::int64_t updates() const { return updates_.integers.empty() ? -1 : updates_.integers[0]; }

 private:
  struct State {
    std::string name, next;
    std::vector<float> start;
    Tensor values[2];  // a step reads one and writes the other
  };

  void AllocateInputs(const std::string& initial_state);
  void AllocateOutputs();
  Tensor Allocate(const OrtTypeInfo* info) const;

  Owned<OrtEnv> env_;
  Owned<OrtMemoryInfo> memory_;
  Owned<OrtSession> session_;
  Tensor x_, y_, updates_;
  std::vector<State> states_;
  std::vector<std::string> channels_;
  std::int64_t vocabulary_ = 0;  // number of words that a model of words knows
  int turn_ = 0;                 // index of the copy of the states that the next step reads

  // arguments of Run, by `turn_`
  std::vector<const char*> input_names_, output_names_;
  std::vector<const OrtValue*> inputs_[2];
  std::vector<OrtValue*> outputs_[2];
};

}  // namespace edgernn

#endif  // EDGERNN_EXAMPLES_STREAM_H_
