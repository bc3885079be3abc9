// SPDX-License-Identifier: Apache-2.0
// The entry points of training with recurrent batch normalisation, on one thread. Compiled apart
// from the cells.

#ifndef EDGERNN_TRAIN_NORM_DRIVER_H_
#define EDGERNN_TRAIN_NORM_DRIVER_H_

#include "train/scratch.h"

namespace edgernn::EDGERNN_ISA {

std::size_t NormScratchBytes(const GateLayout& layout, const EdgernnTrainCall& call);
void NormForward(const PackedWeights& packed, const EdgernnTrainCall& call, void* scratch);
void NormBackward(const PackedWeights& packed, const EdgernnTrainCall& call, void* scratch);

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_NORM_DRIVER_H_
