// SPDX-License-Identifier: Apache-2.0
// step MODEL B < x > y: tests/side_by_side.c in C++.

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "edgernn.h"

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif

namespace {

// A block of memory that every model and file may start at.
struct alignas(EDGERNN_ALIGNMENT) Block {
  char bytes[EDGERNN_ALIGNMENT];
};

std::vector<Block> Blocks(std::size_t bytes) {
  return std::vector<Block>(bytes / sizeof(Block) + 1);
}

void Check(EdgernnStatus status) {
  if (status == EDGERNN_OK) return;
  std::cerr << "step: " << edgernn_message() << "\n";
  std::exit(1);
}

std::streamsize Bytes(const std::vector<float>& numbers) {
  return static_cast<std::streamsize>(numbers.size() * sizeof(float));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
#if defined(_WIN32)
  _setmode(0, _O_BINARY);
  _setmode(1, _O_BINARY);
#endif
  std::ifstream stream(argv[1], std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  std::vector<Block> file = Blocks(content.size());
  std::memcpy(file.data(), content.data(), content.size());
  const std::int64_t batch = std::stoll(argv[2]);
  std::size_t need = 0;
  Check(edgernn_memory(file.data(), content.size(), batch, &need));
  std::vector<Block> memory = Blocks(need);
  EdgernnModel* model = nullptr;
  Check(edgernn_open(file.data(), content.size(), batch, memory.data(), need, &model));
  EdgernnSizes sizes{};
  Check(edgernn_sizes(model, &sizes));
  std::vector<float> x(static_cast<std::size_t>(batch * sizes.input));
  std::vector<float> y(static_cast<std::size_t>(batch * sizes.output));
  while (std::cin.read(reinterpret_cast<char*>(x.data()), Bytes(x))) {
    Check(edgernn_step(model, x.data(), y.data()));
    std::cout.write(reinterpret_cast<const char*>(y.data()), Bytes(y));
  }
  return 0;
}
