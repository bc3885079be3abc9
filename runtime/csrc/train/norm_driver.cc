// SPDX-License-Identifier: Apache-2.0
// Implements norm_driver.h. Compiled once for each instruction set, whose name is EDGERNN_ISA.

#include "train/norm_driver.h"

#include "train/norm_sequence.h"

namespace edgernn::EDGERNN_ISA {

std::size_t NormScratchBytes(const GateLayout& layout, const EdgernnTrainCall& call) {
  return NormScratch(layout, call, nullptr).bytes;
}

void NormForward(const PackedWeights& packed, const EdgernnTrainCall& call, void* scratch) {
  NormSequence(packed, call, scratch).Forward(scratch);
}

void NormBackward(const PackedWeights& packed, const EdgernnTrainCall& call, void* scratch) {
  const NormSequence sequence(packed, call, scratch);
  sequence.ClearGrads();
  sequence.Backward(scratch);
}

}  // namespace edgernn::EDGERNN_ISA
