// SPDX-License-Identifier: Apache-2.0
// Compiled once for each instruction set, as train_table.cc is; EDGERNN_ISA is its name.

#include "train/norm_table.h"

#include "train/norm_sequence.h"

namespace edgernn::EDGERNN_ISA {

std::size_t NormScratchBytes(const GateLayout& layout, const EdgernnTrainCall& call) {
  return NormScratch(layout, call, nullptr).bytes;
}

void NormForward(const Prepared& prepared, const EdgernnTrainCall& call, void* scratch) {
  NormSequence(prepared, call, scratch).Forward(scratch);
}

void NormBackward(const Prepared& prepared, const EdgernnTrainCall& call, void* scratch) {
  const NormSequence sequence(prepared, call, scratch);
  sequence.ClearGrads();
  sequence.Backward(scratch);
}

}  // namespace edgernn::EDGERNN_ISA
