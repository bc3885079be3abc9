// SPDX-License-Identifier: Apache-2.0
// The part of ONNX Runtime's C API that this library calls.
//
// OrtApi is a table of function pointers to which new versions only append. So a function is
// identified by its index and type. All functions used here exist since ONNX Runtime 1.17.

#pragma once

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

// The function at index kSlot of OrtApi, as a callable: CreateStatus(api, code, message).
template <int kSlot, class Signature>
struct ApiFunction;

template <int kSlot, class Result, class... Args>
struct ApiFunction<kSlot, Result(Args...)> {
  Result operator()(const OrtApi* api, Args... args) const {
    return reinterpret_cast<Result (*)(Args...)>(api->entries[kSlot])(args...);
  }
};

constexpr ApiFunction<0, OrtStatus*(int, const char*)> CreateStatus;
constexpr ApiFunction<26, OrtStatus*(const char*, OrtCustomOpDomain**)> CreateCustomOpDomain;
constexpr ApiFunction<27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*)> CustomOpDomainAdd;
constexpr ApiFunction<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)> AddCustomOpDomain;
constexpr ApiFunction<51, OrtStatus*(OrtValue*, void**)> GetTensorMutableData;
constexpr ApiFunction<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, std::size_t*)>
    GetDimensionsCount;
constexpr ApiFunction<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, std::int64_t*, std::size_t)>
    GetDimensions;
constexpr ApiFunction<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)>
    GetTensorTypeAndShape;
constexpr ApiFunction<86, OrtStatus*(const OrtKernelInfo*, const char*, std::int64_t*)>
    KernelInfoGetAttributeInt64;
constexpr ApiFunction<87, OrtStatus*(const OrtKernelInfo*, const char*, char*, std::size_t*)>
    KernelInfoGetAttributeString;
constexpr ApiFunction<89, OrtStatus*(const OrtKernelContext*, std::size_t*)>
    KernelContextGetOutputCount;
constexpr ApiFunction<90, OrtStatus*(const OrtKernelContext*, std::size_t, const OrtValue**)>
    KernelContextGetInput;
constexpr ApiFunction<91, OrtStatus*(OrtKernelContext*, std::size_t, const std::int64_t*,
                                     std::size_t, OrtValue**)>
    KernelContextGetOutput;
constexpr ApiFunction<93, void(OrtStatus*)> ReleaseStatus;
constexpr ApiFunction<99, void(OrtTensorTypeAndShapeInfo*)> ReleaseTensorTypeAndShapeInfo;
constexpr ApiFunction<162, OrtStatus*(const OrtKernelInfo*, const char*, float*, std::size_t*)>
    KernelInfoGetAttributeArrayFloat;
constexpr ApiFunction<163,
                      OrtStatus*(const OrtKernelInfo*, const char*, std::int64_t*, std::size_t*)>
    KernelInfoGetAttributeArrayInt64;
constexpr ApiFunction<193, OrtStatus*(const OrtKernelContext*, void**)>
    KernelContextGetGpuComputeStream;
constexpr ApiFunction<230, OrtStatus*(const OrtKernelInfo*, std::size_t*)> KernelInfoGetInputCount;
constexpr ApiFunction<249, OrtStatus*(const OrtKernelInfo*, std::size_t, int*, const OrtValue**)>
    KernelInfoGetConstantInput;
constexpr ApiFunction<274, OrtStatus*(const OrtKernelContext*, void (*)(void*, std::size_t),
                                      std::size_t, std::size_t, void*)>
    KernelContextParallelFor;

}  // namespace edgernn::ort
