// SPDX-License-Identifier: Apache-2.0
// Training calls with recurrent batch normalisation, on one thread. Compiled apart from the cells.

#ifndef EDGERNN_TRAIN_NORM_TABLE_H_
#define EDGERNN_TRAIN_NORM_TABLE_H_

#include "train/scratch.h"

namespace edgernn::EDGERNN_ISA {

std::size_t NormScratchBytes(const GateLayout& layout, const EdgernnTrainCall& call);
void NormForward(const Prepared& prepared, const EdgernnTrainCall& call, void* scratch);
void NormBackward(const Prepared& prepared, const EdgernnTrainCall& call, void* scratch);

}  // namespace edgernn::EDGERNN_ISA

#endif  // EDGERNN_TRAIN_NORM_TABLE_H_
