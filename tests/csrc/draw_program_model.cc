// SPDX-License-Identifier: Apache-2.0
// Implements draw_program_model.h.

#include "draw_program_model.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "draw_cell.h"
#include "op/op.h"
#include "packed/file.h"
#include "random_generator.h"

namespace edgernn_tests {

namespace {

using edgernn::CellSource;
using edgernn::Columns;
using edgernn::LayerSizes;
using edgernn::Op;

// The names of the ops that take a cell from a file.
const std::vector<std::string>& Names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const std::string& name : edgernn::OpNames(*edgernn::ChooseKernels().table)) {
      if (name.find('*') != std::string::npos) list.push_back(name);
    }
    return list;
  }();
  return names;
}

// Draws an op of the cell under any rule; null if the cell is refused.
std::shared_ptr<const Op> DrawOp(RandomGenerator* random, const CellSource& cell, bool imputes) {
  for (;;) {
    std::string name =
        Names()[static_cast<std::size_t>(random->Below(static_cast<int>(Names().size())))];
    name.replace(name.find('*'), 1, cell.name);
    std::string error;
    const std::shared_ptr<const Op> op =
        edgernn::MakeProgramOp(*edgernn::ChooseKernels().table, name, cell, &error);
    if (!error.empty()) return nullptr;
    // a low-rank R needs a cell with R
    if (op != nullptr && (imputes || !op->spec.imputes)) return op;
  }
}

// A packed model under construction.
class Writer {
 public:
  // Adds a layer with its cell and random tensors; offsets follow in Finish.
  void AddLayer(const Op& op, const CellSource& cell, const LayerSizes& sizes,
                std::uint64_t group_size, RandomGenerator* random, bool wild) {
    edgernn::PackedLayer layer{};
    std::strncpy(layer.name, op.spec.name.c_str(), sizeof layer.name - 1);
    layer.tensors = static_cast<std::uint32_t>(op.spec.weights.size() + op.spec.states.size());
    layer.group_size = group_size;
    layers_.push_back(layer);
    cells_.push_back(Bytes(cell));
    const int type = random->OneIn(2) ? 0 : random->Below(3);
    for (const edgernn::WeightInput& weight : op.spec.weights) {
      const edgernn::RowCount& count = weight.spec.rows;
      const std::int64_t rows = count.hidden * sizes.hidden + count.input * sizes.input +
                                count.one + count.rank * sizes.rank +
                                count.features * edgernn::Features(sizes) +
                                count.groups * edgernn::Groups(sizes);
      const bool is_cells = weight.slot < edgernn::kBiasSlot || weight.slot == edgernn::kFactorSlot;
      const std::string name = weight.spec.name;
      AddTensor(rows, ColumnsOf(weight.spec.columns, sizes), is_cells ? type : 0, [&] {
        if (name == "rule_periods" && !wild) return static_cast<float>(1 + random->Below(6));
        return wild ? random->Wild() : random->Uniform();
      });
    }
    for (const edgernn::StateInput& state : op.spec.states) {
      AddTensor(edgernn::Width(state.extent, sizes), 0, 0, [&] { return random->Uniform(); });
    }
  }

  // Adds the linear map W (O, I), b (O,) with random numbers.
  void AddLinear(std::int64_t inputs, std::int64_t outputs, int type, RandomGenerator* random,
                 bool wild) {
    const auto draw = [&] { return wild ? random->Wild() : random->Uniform(); };
    AddTensor(outputs, inputs, type, draw);
    AddTensor(outputs, 0, 0, draw);
  }

  // Adds the residual block around a layer.
  void AddBlock(std::int64_t inputs, std::int64_t hidden, bool is_gated, RandomGenerator* random,
                bool wild) {
    const int type = random->OneIn(2) ? 0 : random->Below(3);
    if (inputs != hidden) AddLinear(inputs, hidden, type, random, wild);
    // the scale and the shift of the normalisation
    for (int i = 0; i < 2; ++i) AddTensor(hidden, 0, 0, [&] { return random->Uniform(); });
    AddLinear(hidden, hidden, type, random, wild);
    if (is_gated) AddLinear(hidden, hidden, type, random, wild);
  }

  template <class Draw>
  void AddTensor(std::int64_t rows, std::int64_t columns, int type, const Draw& draw) {
    edgernn::PackedTensor record{};
    record.type = static_cast<std::uint32_t>(type);
    record.axes = columns > 0 ? 2 : 1;
    record.size[0] = static_cast<std::uint32_t>(rows);
    record.size[1] = static_cast<std::uint32_t>(std::max<std::int64_t>(columns, 1));
    record.data = Align();
    for (std::int64_t i = 0; i < rows * std::max<std::int64_t>(columns, 1); ++i) {
      const float number = draw();
      unsigned char bytes[sizeof number];
      std::memcpy(bytes, &number, sizeof number);
      // the upper half of a float is bfloat16
      const int from = type == 0 ? 0 : type == 1 ? 2 : 3, count = type == 0 ? 4 : type == 1 ? 2 : 1;
      data_.insert(data_.end(), bytes + from, bytes + from + count);
    }
    if (type == 2) {
      record.scales = Align();
      for (std::int64_t i = 0; i < rows; ++i) {
        const float scale = 0.01f;
        const auto* const bytes = reinterpret_cast<const unsigned char*>(&scale);
        data_.insert(data_.end(), bytes, bytes + sizeof scale);
      }
    }
    tensors_.push_back(record);
  }

  std::vector<unsigned char> Finish(edgernn::PackedHeader header) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].cell = Align();
      data_.insert(data_.end(), cells_[i].begin(), cells_[i].end());
    }
    Align();
    const std::size_t records = sizeof header + layers_.size() * sizeof layers_[0] +
                                tensors_.size() * sizeof(edgernn::PackedTensor);
    std::memcpy(header.magic, "EDGERNN", 8);
    header.version = edgernn::kVersionWithBlocks;
    header.schema = edgernn::kSchemaVersion;
    header.bytes = records + data_.size();
    header.layers = static_cast<std::uint32_t>(layers_.size());
    header.tensors = static_cast<std::uint32_t>(tensors_.size());
    std::vector<unsigned char> file;
    Append(&file, &header, 1);
    for (edgernn::PackedLayer& layer : layers_) layer.cell += records;
    for (edgernn::PackedTensor& tensor : tensors_) {
      tensor.data += records;
      if (tensor.type == 2) tensor.scales += records;
    }
    Append(&file, layers_.data(), layers_.size());
    Append(&file, tensors_.data(), tensors_.size());
    file.insert(file.end(), data_.begin(), data_.end());
    return file;
  }

 private:
  template <class T>
  static void Append(std::vector<unsigned char>* to, const T* from, std::size_t count) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
    to->insert(to->end(), bytes, bytes + count * sizeof *from);
  }

  static std::vector<unsigned char> Bytes(const CellSource& cell) {
    edgernn::PackedCell record{};
    std::strncpy(record.name, cell.name.c_str(), sizeof record.name - 1);
    const std::vector<std::int64_t>* const ints[] = {&cell.gates,    &cell.vectors,
                                                     &cell.layout,   &cell.update.ints,
                                                     &cell.mid.ints, &cell.map.ints};
    const std::vector<float>* const numbers[] = {&cell.update.numbers, &cell.mid.numbers,
                                                 &cell.map.numbers};
    for (std::size_t i = 0; i < edgernn::PackedCell::kInts; ++i) {
      record.ints[i] = static_cast<std::uint32_t>(ints[i]->size());
    }
    for (std::size_t i = 0; i < edgernn::PackedCell::kNumbers; ++i) {
      record.numbers[i] = static_cast<std::uint32_t>(numbers[i]->size());
    }
    std::vector<unsigned char> bytes;
    Append(&bytes, &record, 1);
    for (const auto* const list : ints) {
      for (const std::int64_t number : *list) {
        const auto narrow = static_cast<std::int32_t>(number);
        Append(&bytes, &narrow, 1);
      }
    }
    for (const auto* const list : numbers) Append(&bytes, list->data(), list->size());
    return bytes;
  }

  static std::int64_t ColumnsOf(Columns columns, const LayerSizes& sizes) {
    switch (columns) {
      case Columns::kInput:
        return sizes.input;
      case Columns::kInputTwice:
        return 2 * sizes.input;
      case Columns::kHidden:
        return sizes.hidden;
      case Columns::kRank:
        return sizes.rank;
      case Columns::kFeatures:
        return edgernn::Features(sizes);
      default:
        return 0;
    }
  }

  // Pads the data and returns the offset of the next part.
  std::size_t Align() {
    data_.resize((data_.size() + 31) / 32 * 32);
    return data_.size();
  }

  std::vector<edgernn::PackedLayer> layers_;
  std::vector<edgernn::PackedTensor> tensors_;
  std::vector<std::vector<unsigned char>> cells_;
  std::vector<unsigned char> data_;
};

int DrawSize(RandomGenerator* random) {
  return 1 + (random->OneIn(4) ? random->Below(40) : random->Below(9));
}

}  // namespace

DrawnModel DrawProgramModel(std::uint64_t number) {
  RandomGenerator random(number);
  const bool wild = random.OneIn(4), has_head = random.OneIn(2), standardises = random.OneIn(4);
  const int layers = random.OneIn(4) ? 2 : 1;
  const bool has_blocks = random.OneIn(4), is_gated = random.OneIn(2);
  bool is_valid = true;
  edgernn::PackedHeader header{};
  if (has_blocks) header.flags |= is_gated ? edgernn::kGatedBlocks : edgernn::kLinearBlocks;
  Writer weights;
  std::int64_t width = 0;
  for (int i = 0; i < layers; ++i) {
    CellSource cell = DrawCell(&random);
    const bool may_impute = i == 0 && !has_blocks;
    std::shared_ptr<const Op> op = DrawOp(&random, cell, may_impute);
    // an unmodified cell must not be refused: return an invalid file, which fails the test
    if (op == nullptr) return {{}, true};
    if (random.OneIn(2 * layers)) {
      is_valid = false;
      MutateCell(&random, &cell);
      // weights for the cell before the change, or after it if it is still valid
      const std::shared_ptr<const Op> other =
          random.OneIn(2) ? DrawOp(&random, cell, may_impute) : op;
      if (other != nullptr) op = other;
    }
    LayerSizes sizes{};
    const std::int64_t block_input = i > 0 ? width : DrawSize(&random);
    sizes.input = has_blocks && random.OneIn(2) ? DrawSize(&random) : block_input;
    if (op->spec.imputes) sizes.input += sizes.input % 2;
    // the layer in a block reads as many values as it has neurons
    sizes.hidden = op->spec.square || has_blocks ? sizes.input : DrawSize(&random);
    sizes.rank = 1 + random.Below(4);
    const bool shares = op->kernel.rule->HasGroups() && random.OneIn(2);
    sizes.SetGroups(shares ? 1 + random.Below(static_cast<int>(sizes.hidden)) : 1);
    sizes.SetExtents(*op->kernel.cell);
    auto group_size = static_cast<std::uint64_t>(sizes.group_size);
    if (random.OneIn(32)) {
      is_valid = false;
      group_size = random.OneIn(2) ? 0 : random.Bits() | static_cast<std::uint64_t>(sizes.hidden);
      group_size += group_size != 0;
    }
    if (i == 0) {
      const std::int64_t inputs = has_blocks ? block_input : op->InputWidth(sizes);
      header.input = static_cast<std::uint32_t>(inputs);
      if (standardises) {
        header.flags |= edgernn::kStandardises;
        for (int k = 0; k < 2; ++k) {
          weights.AddTensor(header.input, 0, 0, [&random] { return 2 + random.Uniform(); });
        }
      }
    }
    weights.AddLayer(*op, cell, sizes, group_size, &random, wild);
    if (has_blocks) weights.AddBlock(block_input, sizes.hidden, is_gated, &random, wild);
    width = sizes.hidden;
  }
  header.output = static_cast<std::uint32_t>(width);
  if (has_head) {
    header.flags |= edgernn::kHasHead;
    header.output = static_cast<std::uint32_t>(1 + random.Below(5));
    weights.AddLinear(width, header.output, 0, &random, false);
  }
  return {weights.Finish(header), is_valid};
}

}  // namespace edgernn_tests
