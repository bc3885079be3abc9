// SPDX-License-Identifier: Apache-2.0
// The kernels of a graph's steps for one instruction set. Compiled once per instruction set, whose
// name is EDGERNN_ISA.

#include "cpu/steps.h"
#include "program/run_step.h"

namespace edgernn::EDGERNN_ISA {

extern const StepKernels kStepKernels;
constexpr StepKernels kStepKernels = {
    &PackedLinear::Bytes, &PackedLinear::Pack, &PackedLinear::ScratchBytes,
    &RunLinearStep,       &RunDepthwiseStep,   &RunReduceStep,
    &RunFourierStep,      &RunProgramStep,     kLanes};

}  // namespace edgernn::EDGERNN_ISA
