// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set when the library is first used.

#include "kernel.h"

#define EDGERNN_TABLE KernelTable
#include "dispatch.h"

namespace edgernn {

const KernelChoice& ChooseKernels() {
  static const KernelChoice choice = [] {
    KernelChoice made{};
    made.table = ChooseTable(&made.error);
    return made;
  }();
  return choice;
}

}  // namespace edgernn
