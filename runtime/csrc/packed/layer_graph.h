// SPDX-License-Identifier: Apache-2.0
// Describes the layers of a packed file, the residual blocks around them and the head as a step
// graph. edgernn/blocks.py defines the blocks:
//
//   u = E x + e, or x if it has H values
//   h = layer(norm(u))
//   y = u + A h + a, or u + (A h + a) * sigmoid(G h + g)

#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "packed/file.h"

namespace edgernn {

// Adds the parts of a model to a graph in the order of the file. Functions return false, and set
// the failure of the file, for invalid parts. Must live until the graph is built.
class LayerGraph {
 public:
  using Words = std::vector<std::int64_t>;

  LayerGraph(PackedFile* file, GraphSource* graph);

  // Adds the next layer, whose op is in the graph.
  [[nodiscard]] bool AddLayer(std::uint32_t index);

  // Adds the head, if there is one, and the output.
  [[nodiscard]] bool AddOutput();

  // F if the first layer has an imputer, else 0.
  std::int64_t features() const { return features_; }

 private:
  // Indices of tensors.
  struct LinearTensors {
    std::int64_t w, b;
  };

  // An operand of a program with one row.
  struct ColumnOperand {
    std::int64_t value;
    std::int64_t stride;
  };

  bool ReadTensor(const std::string& name, const Shape& shape, std::int64_t* index);
  bool ReadLinear(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                  LinearTensors* to);

  std::int64_t AddValue(ValueKind kind, std::int64_t offset, std::int64_t size,
                        std::int64_t tensor = 0);
  std::int64_t AddBuffer(std::int64_t size);
  std::int64_t AddConstant(std::int64_t tensor, std::int64_t size);
  std::int64_t AddNumber(float number);

  void AddStep(StepCode code, const Words& arguments);
  void AddLinear(const LinearTensors& tensors, std::int64_t from, std::int64_t to);
  void AddProgram(std::int64_t columns, const std::vector<ColumnOperand>& operands,
                  const Words& results, const Words& instructions, const Words& values);

  // Adds the block around a layer with H neurons, which add_cell adds.
  template <class AddCell>
  bool AddBlock(std::int64_t hidden, const AddCell& add_cell);

  // Adds the normalisation of a value.
  void AddNorm(std::int64_t size, std::int64_t scale, std::int64_t shift);

  PackedFile& file_;
  GraphSource& graph_;
  std::int64_t output_;  // y
  std::int64_t value_;   // the output of the parts so far
  std::int64_t width_;   // its size
  std::int64_t features_ = 0;
  std::deque<float> numbers_;  // constants, which tensors of the graph point to
};

}  // namespace edgernn
