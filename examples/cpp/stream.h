// SPDX-License-Identifier: Apache-2.0
// A model exported by edgernn, one step at a time, with the state in and out.

#ifndef EDGERNN_EXAMPLES_STREAM_H_
#define EDGERNN_EXAMPLES_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ort.h"

namespace edgernn {

// ONNX Runtime's objects are released when their owner goes.
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

// A tensor of the model for one step of one sequence (T = 1, B = 1), in memory of its own.
struct Tensor {
  std::vector<float> floats;           // its numbers,
  std::vector<std::int64_t> integers;  // or these where the model says int64
  Owned<OrtValue> value;
};

// What goes wrong is thrown as std::runtime_error. Not for several threads at once.
class Stream {
 public:
  // library: the path of libedgernn_ops, or "" for the portable operators in the file.
  Stream(const std::string& model, const std::string& library);

  // I, or 1 where the model reads words.
  std::size_t input_size() const { return x_.floats.size() + x_.integers.size(); }

  // y (O,) after one more step x (I,); the next step overwrites it.
  const std::vector<float>& Step(const std::vector<float>& x);

  // The next step starts a new sequence.
  void Reset();

  // How many neurons the last step updated, or -1 for a model that always updates all.
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
  int turn_ = 0;  // the copy of the states that the next step reads

  // what each of the two kinds of step hands to ONNX Runtime
  std::vector<const char*> input_names_, output_names_;
  std::vector<const OrtValue*> inputs_[2];
  std::vector<OrtValue*> outputs_[2];
};

}  // namespace edgernn

#endif  // EDGERNN_EXAMPLES_STREAM_H_
