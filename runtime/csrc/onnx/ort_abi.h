// SPDX-License-Identifier: Apache-2.0
// The part of ONNX Runtime's C interface that this library calls.
//
// OrtApi is a table of function pointers that only ever grows at its end, so the position of an
// entry is all there is to know. What is used here exists since ONNX Runtime 1.17.

#ifndef EDGERNN_ONNX_ORT_ABI_H_
#define EDGERNN_ONNX_ORT_ABI_H_

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;

struct OrtApi {
  void (*entries[300])();
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  std::uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, std::size_t);
  std::size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, std::size_t);
  std::size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, std::size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, std::size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, std::size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, void*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  std::size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  std::size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // extern "C"

namespace edgernn::ort {

static_assert(sizeof(OrtCustomOp) == 26 * sizeof(void*));

constexpr std::uint32_t kApiVersion = 17;

constexpr int kFail = 1;             // OrtErrorCode
constexpr int kInvalidArgument = 2;  // OrtErrorCode
constexpr int kFloat = 1;            // ONNXTensorElementDataType
constexpr int kInt64 = 7;            // ONNXTensorElementDataType
constexpr int kRequired = 0;         // OrtCustomOpInputOutputCharacteristic
constexpr int kOptional = 1;         // OrtCustomOpInputOutputCharacteristic
constexpr int kVariadic = 2;         // OrtCustomOpInputOutputCharacteristic

// The entry at kSlot of an OrtApi, called like a function: CreateStatus(api, code, message).
template <int kSlot, class Signature>
struct Entry;

template <int kSlot, class Result, class... Args>
struct Entry<kSlot, Result(Args...)> {
  Result operator()(const OrtApi* api, Args... args) const {
    return reinterpret_cast<Result (*)(Args...)>(api->entries[kSlot])(args...);
  }
};

constexpr Entry<0, OrtStatus*(int, const char*)> CreateStatus;
constexpr Entry<26, OrtStatus*(const char*, OrtCustomOpDomain**)> CreateCustomOpDomain;
constexpr Entry<27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*)> CustomOpDomainAdd;
constexpr Entry<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)> AddCustomOpDomain;
constexpr Entry<51, OrtStatus*(OrtValue*, void**)> GetTensorMutableData;
constexpr Entry<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, std::size_t*)> GetDimensionsCount;
constexpr Entry<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, std::int64_t*, std::size_t)>
    GetDimensions;
constexpr Entry<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)> GetTensorTypeAndShape;
constexpr Entry<86, OrtStatus*(const OrtKernelInfo*, const char*, std::int64_t*)>
    KernelInfoGetAttributeInt64;
constexpr Entry<87, OrtStatus*(const OrtKernelInfo*, const char*, char*, std::size_t*)>
    KernelInfoGetAttributeString;
constexpr Entry<89, OrtStatus*(const OrtKernelContext*, std::size_t*)> KernelContextGetOutputCount;
constexpr Entry<90, OrtStatus*(const OrtKernelContext*, std::size_t, const OrtValue**)>
    KernelContextGetInput;
constexpr Entry<91, OrtStatus*(OrtKernelContext*, std::size_t, const std::int64_t*, std::size_t,
                               OrtValue**)>
    KernelContextGetOutput;
constexpr Entry<93, void(OrtStatus*)> ReleaseStatus;
constexpr Entry<99, void(OrtTensorTypeAndShapeInfo*)> ReleaseTensorTypeAndShapeInfo;
constexpr Entry<162, OrtStatus*(const OrtKernelInfo*, const char*, float*, std::size_t*)>
    KernelInfoGetAttributeArrayFloat;
constexpr Entry<163, OrtStatus*(const OrtKernelInfo*, const char*, std::int64_t*, std::size_t*)>
    KernelInfoGetAttributeArrayInt64;
constexpr Entry<193, OrtStatus*(const OrtKernelContext*, void**)> KernelContextGetGpuComputeStream;
constexpr Entry<230, OrtStatus*(const OrtKernelInfo*, std::size_t*)> KernelInfoGetInputCount;
constexpr Entry<249, OrtStatus*(const OrtKernelInfo*, std::size_t, int*, const OrtValue**)>
    KernelInfoGetConstantInput;
constexpr Entry<274, OrtStatus*(const OrtKernelContext*, void (*)(void*, std::size_t), std::size_t,
                                std::size_t, void*)>
    KernelContextParallelFor;

}  // namespace edgernn::ort

#endif  // EDGERNN_ONNX_ORT_ABI_H_
