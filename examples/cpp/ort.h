// SPDX-License-Identifier: Apache-2.0
// ONNX Runtime's C API: its own header if the compiler finds it, else declarations of the part that
// this example calls.
//
// ONNX Runtime's Python wheels have the shared library, but no headers. OrtApi is a table of
// function pointers to which new versions only append, so the index (in the comment) and the type
// of a function identify it. The names are those of onnxruntime_c_api.h, so that code compiles with
// either header.

#ifndef EDGERNN_EXAMPLES_ORT_H_
#define EDGERNN_EXAMPLES_ORT_H_

#if __has_include(<onnxruntime_c_api.h>)
#include <onnxruntime_c_api.h>
#else

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtAllocator;
struct OrtEnv;
struct OrtMemoryInfo;
struct OrtRunOptions;
struct OrtSession;
struct OrtSessionOptions;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;

enum OrtLoggingLevel { ORT_LOGGING_LEVEL_FATAL = 4 };
enum OrtAllocatorType { OrtDeviceAllocator = 0 };
enum OrtMemType { OrtMemTypeDefault = 0 };
enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
};

struct OrtApi {
  using Unused = void (*)();

  Unused from_0[2];
  const char* (*GetErrorMessage)(const OrtStatus*);                      // 2
  OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char* name, OrtEnv**);  // 3
  Unused from_4[4];
  OrtStatus* (*CreateSessionFromArray)(const OrtEnv*, const void* model, std::size_t size,
                                       const OrtSessionOptions*, OrtSession**);  // 8
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                    const OrtValue* const* inputs, std::size_t input_count,
                    const char* const* output_names, std::size_t output_count,
                    OrtValue** outputs);                    // 9
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);  // 10
  Unused from_11[13];
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions*, int);  // 24
  Unused from_25[4];
  OrtStatus* (*RegisterCustomOpsLibrary)(OrtSessionOptions*, const char* path,
                                         void** handle);                 // 29
  OrtStatus* (*SessionGetInputCount)(const OrtSession*, std::size_t*);   // 30
  OrtStatus* (*SessionGetOutputCount)(const OrtSession*, std::size_t*);  // 31
  Unused from_32[1];
  OrtStatus* (*SessionGetInputTypeInfo)(const OrtSession*, std::size_t, OrtTypeInfo**);   // 33
  OrtStatus* (*SessionGetOutputTypeInfo)(const OrtSession*, std::size_t, OrtTypeInfo**);  // 34
  Unused from_35[1];
  OrtStatus* (*SessionGetInputName)(const OrtSession*, std::size_t, OrtAllocator*,
                                    char**);  // 36
  OrtStatus* (*SessionGetOutputName)(const OrtSession*, std::size_t, OrtAllocator*,
                                     char**);  // 37
  Unused from_38[11];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void* data, std::size_t bytes,
                                               const std::int64_t* shape, std::size_t rank,
                                               ONNXTensorElementDataType, OrtValue**);  // 49
  Unused from_50[5];
  OrtStatus* (*CastTypeInfoToTensorInfo)(const OrtTypeInfo*,
                                         const OrtTensorTypeAndShapeInfo**);  // 55
  Unused from_56[4];
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo*,
                                     ONNXTensorElementDataType*);                         // 60
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, std::size_t* rank);  // 61
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo*, std::int64_t* shape,
                              std::size_t rank);  // 62
  Unused from_63[6];
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);  // 69
  Unused from_70[6];
  OrtStatus* (*AllocatorFree)(OrtAllocator*, void*);  // 76
  Unused from_77[1];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator**);  // 78
  Unused from_79[13];
  void (*ReleaseEnv)(OrtEnv*);                // 92
  void (*ReleaseStatus)(OrtStatus*);          // 93
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*);  // 94
  void (*ReleaseSession)(OrtSession*);        // 95
  void (*ReleaseValue)(OrtValue*);            // 96
  Unused from_97[1];
  void (*ReleaseTypeInfo)(OrtTypeInfo*);  // 98
  Unused from_99[1];
  void (*ReleaseSessionOptions)(OrtSessionOptions*);  // 100
};

static_assert(offsetof(OrtApi, ReleaseSessionOptions) == 100 * sizeof(void*));

struct OrtApiBase {
  const OrtApi* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

const OrtApiBase* OrtGetApiBase();

}  // extern "C"

#endif
#endif  // EDGERNN_EXAMPLES_ORT_H_
