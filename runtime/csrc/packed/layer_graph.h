// SPDX-License-Identifier: Apache-2.0
// Describes a packed file without a step graph as one: the embedding or the front end, the
// standardisation, the layers, the residual blocks around them and the head. edgernn/blocks.py
// defines the blocks:
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

// A point-wise program on columns. Its numbers are operands or results of instructions.
class ColumnProgram {
 public:
  // An operand of a program with one row.
  struct ColumnOperand {
    std::int64_t value;
    std::int64_t offset;
  };

  explicit ColumnProgram(std::int64_t columns) : columns_(columns) {}

  // Returns a number for each column, or one for all if the stride is 0.
  std::int64_t Read(const ColumnOperand& operand, std::int64_t stride = 1);

  std::int64_t Run(Operation operation, std::int64_t a, std::int64_t b = -1, std::int64_t c = -1);

  // Stores a number of each column.
  void Write(const ColumnOperand& to, std::int64_t number);

  // The arguments of the step.
  std::vector<std::int64_t> Words() const;

 private:
  std::int64_t columns_;
  std::vector<std::int64_t> operands_, instructions_, results_, numbers_;
};

// Adds the parts of a model to a graph in the order of the file. Functions return false, and set
// the failure of the file, for invalid parts. Must live until the graph is built.
class LayerGraph {
 public:
  using Words = std::vector<std::int64_t>;

  LayerGraph(PackedFile* file, GraphSource* graph);

  // Adds what the first layer reads.
  [[nodiscard]] bool AddInput();

  // Adds the next layer, whose op is in the graph.
  [[nodiscard]] bool AddLayer(std::uint32_t index);

  // Adds the head, if there is one, and the output.
  [[nodiscard]] bool AddOutput();

  // F if the first layer has an imputer, else 0.
  std::int64_t features() const { return features_; }

  // The mean of x, which is absent unless x is standardised.
  const Tensor& mean() const { return mean_; }

  // True if the first state has samples of x.
  bool keeps_samples() const { return keeps_samples_; }

 private:
  // Indices of tensors.
  struct LinearTensors {
    std::int64_t w, b;
  };

  struct FrontendSettings;
  struct MelFilter;

  bool ReadTensor(const std::string& name, const Shape& shape, std::int64_t* index);
  bool ReadLinear(const std::string& name, std::int64_t inputs, std::int64_t outputs,
                  LinearTensors* to);
  bool ReadState(const std::string& name, std::int64_t width, std::int64_t* value);

  std::int64_t AddValue(ValueKind kind, std::int64_t offset, std::int64_t size,
                        std::int64_t tensor = 0);
  std::int64_t AddBuffer(std::int64_t size);
  std::int64_t AddConstant(std::int64_t tensor, std::int64_t size);
  std::int64_t AddNumber(float number);
  std::int64_t AddNumbers(const std::vector<float>& numbers, const Shape& shape);

  void AddStep(StepCode code, const Words& arguments);
  void AddMove(const ColumnProgram::ColumnOperand& from, const ColumnProgram::ColumnOperand& to,
               std::int64_t count);
  void AddLinear(const LinearTensors& tensors, std::int64_t from, std::int64_t to);
  void AddProgram(const ColumnProgram& program) { AddStep(StepCode::kProgram, program.Words()); }

  // Add the front end, its mel filters, and the features of a hop with these energies.
  bool AddFrontend();
  bool ReadSettings(FrontendSettings* to);
  bool ReadFilters(std::int64_t* frequencies, std::vector<MelFilter>* filters);
  void AddFilters(const std::vector<MelFilter>& filters, std::int64_t hops,
                  std::int64_t frequencies, std::int64_t power, std::int64_t energy);
  void AddFeatures(const FrontendSettings& settings, const std::int64_t (&pcen)[3],
                   const ColumnProgram::ColumnOperand& energy,
                   const ColumnProgram::ColumnOperand& features, std::int64_t bands);

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
  Tensor mean_{};
  bool keeps_samples_ = false;
  std::int64_t followed_ = -1;  // noise floor or smooth energy
  // numbers and weights of linear maps, which tensors of the graph point to and steps copy
  std::deque<std::vector<float>> numbers_;
};

}  // namespace edgernn
