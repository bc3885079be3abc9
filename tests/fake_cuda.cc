// SPDX-License-Identifier: Apache-2.0
// A fake libedgernn_cuda.so for machines without a GPU. ONNX Runtime gets the ops of the CPU
// library at REAL; the C functions of edgernn_cuda.h return values that depend on their arguments.

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

thread_local const char* error = nullptr;

template <class Function>
Function* Real(const char* name) {
  static void* library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

int Refuse(const char* message) {
  error = message;
  return 1;
}

}  // namespace

EXPORT void* RegisterCustomOps(void* options, const void* base) {
  return Real<void*(void*, const void*)>("RegisterCustomOps")(options, base);
}
EXPORT void edgernn_threads(int threads) { Real<void(int)>("edgernn_threads")(threads); }

EXPORT const char* edgernn_cuda_kernels() {
  const char* kernels = std::getenv("FAKE_CUDA_KERNELS");
  return kernels == nullptr ? "gru lstm gru+selective lstm+selective" : kernels;
}
EXPORT const char* edgernn_cuda_missing() { return std::getenv("FAKE_CUDA_MISSING"); }
EXPORT const char* edgernn_cuda_error() { return error; }

EXPORT int edgernn_cuda_packed_bytes(const char*, std::int64_t I, std::int64_t H, std::int64_t rank,
                                     int, std::int64_t, std::int64_t* bytes) {
  *bytes = I * 10000 + H * 100 + rank;
  return 0;
}

// Packs the first element of every weight; a null pointer ends the list.
EXPORT int edgernn_cuda_pack(const char* layer, std::int64_t, std::int64_t, std::int64_t, int,
                             std::int64_t, const float* const* weights, void* packed,
                             void* stream) {
  if (stream == reinterpret_cast<void*>(13)) return Refuse("CUDA: no such stream");
  if (std::strcmp(layer, "lstm") == 0) return 2;
  float* out = static_cast<float*>(packed);
  for (; *weights != nullptr; ++weights) *out++ = **weights;
  return 0;
}

// y = x[..., 0] + packed[0]; each new state is 10 times the old one.
EXPORT int edgernn_cuda_run(const char*, std::int64_t I, std::int64_t H, std::int64_t, int,
                            std::int64_t, const void* packed, std::int64_t steps,
                            std::int64_t batch, const float* x, const float* const* states,
                            float* y, float* const* new_states, std::int64_t* updates,
                            std::int64_t* macs, void*) {
  for (std::int64_t row = 0; row < steps * batch; ++row) {
    for (std::int64_t j = 0; j < H && y != nullptr; ++j) {
      y[row * H + j] = x[row * I] + *static_cast<const float*>(packed);
    }
    if (updates != nullptr) updates[row] = row;
  }
  for (; *states != nullptr; ++states, ++new_states) {
    for (std::int64_t i = 0; i < batch * H; ++i) (*new_states)[i] = 10 * (*states)[i];
  }
  for (std::int64_t b = 0; macs != nullptr && b < batch; ++b) macs[b] = 7;
  return 0;
}
