// SPDX-License-Identifier: Apache-2.0
// The entry points of training with recurrent batch normalisation, on one thread. Compiled apart
// from the cells.

#pragma once

#include "train/scratch.h"

namespace edgernn::EDGERNN_ISA {

std::size_t NormScratchBytes(const GateLayout& layout, const EdgernnTrainCall& call);
void NormForward(const PackedWeights& packed, const EdgernnTrainCall& call, void* scratch);
void NormBackward(const PackedWeights& packed, const EdgernnTrainCall& call, void* scratch);

}  // namespace edgernn::EDGERNN_ISA
