// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels' instruction set when the library is first used.

#include "kernel/kernel.h"

#define EDGERNN_TABLE KernelTable
#include "common/dispatch.h"

namespace edgernn {

const KernelChoice& ChooseKernels() {
  static const KernelChoice choice = [] {
    KernelChoice chosen{};
    chosen.table = ChooseTable(&chosen.error);
    return chosen;
  }();
  return choice;
}

}  // namespace edgernn
