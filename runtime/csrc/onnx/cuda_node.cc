// SPDX-License-Identifier: Apache-2.0
// Nodes of the CUDA provider, which run on ONNX Runtime's stream.

#include "cuda/gpu_ops.h"
#include "onnx/node.h"

namespace edgernn {

namespace {

using cuda::Memory;

const float* Floats(const Tensor& tensor) { return static_cast<const float*>(tensor.values.data); }

std::int64_t Count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

class CudaNode : public Node {
 public:
  CudaNode(const OrtApi* api, const OrtKernelInfo* info) : Node(api, info) {
    std::vector<Tensor> weights;
    if (!ReadConstants(info, &weights)) return;
    sizes_ = CheckWeights(weights);
    // constants may be in host memory
    std::vector<Memory> uploaded;
    std::vector<const float*> on_gpu;
    for (const Tensor& weight : weights) {
      if (weight.IsAbsent()) {
        on_gpu.push_back(nullptr);
        continue;
      }
      uploaded.push_back(cuda::Upload(Floats(weight), Count(weight.shape), nullptr));
      on_gpu.push_back(uploaded.back().get());
    }
    packed_ = Pack(sizes_, on_gpu, nullptr);
    // calls use another stream
    cuda::Wait(nullptr);
  }

  void Run(OrtKernelContext* context) const override {
    void* stream = nullptr;
    Check(ort::KernelContextGetGpuComputeStream(api_, context, &stream));
    if (packed_ != nullptr) {
      cuda::RunOp(op_, sizes_, packed_.get(), MakeCall(sizes_, context), stream);
      return;
    }
    const std::vector<Tensor> weights = ReadWeights(context);
    const LayerSizes sizes = CheckWeights(weights);
    // checks the call before any work on the GPU
    const Call call = MakeCall(sizes, context);
    std::vector<const float*> on_gpu;
    for (const Tensor& weight : weights) on_gpu.push_back(Floats(weight));
    const Memory packed = Pack(sizes, on_gpu, stream);
    cuda::RunOp(op_, sizes, packed.get(), call, stream);
  }

 private:
  Memory Pack(const LayerSizes& sizes, const std::vector<const float*>& weights,
              void* stream) const {
    Memory packed = cuda::Allocate(cuda::PackedFloats(op_, sizes), stream);
    cuda::PackOp(op_, sizes, weights.data(), packed.get(), stream);
    return packed;
  }

  LayerSizes sizes_{};
  Memory packed_{nullptr, {nullptr}};
};

}  // namespace

// the tests' emulated GPU uses the memory of the CPU provider
#ifndef EDGERNN_PROVIDER
#define EDGERNN_PROVIDER "CUDAExecutionProvider"
#endif
const char kProvider[] = EDGERNN_PROVIDER;

void CheckProvider() {
  if (const char* const why = cuda::Missing()) throw InvalidArgument(why);
}

std::shared_ptr<const Op> FindProviderOp(const std::string& name) {
  return {std::shared_ptr<const Op>(), cuda::FindGpuOp(name)};
}

// The library has no GPU kernels for cells that are defined in a file.
std::shared_ptr<const Op> MakeProviderOp(const std::string&, const CellSource&, std::string*) {
  return nullptr;
}

std::unique_ptr<Node> MakeNode(std::int64_t, const OrtApi* api, const OrtKernelInfo* info) {
  return std::make_unique<CudaNode>(api, info);
}

}  // namespace edgernn
