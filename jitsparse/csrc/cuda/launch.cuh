// From the words of a call to a launch: shared by every CUDA template.
#pragma once

#include <cuda_runtime.h>

#include "../abi.h"

namespace jitsparse {

template <typename Kernel, typename Args, int MIN_CTAS>
__global__ void __launch_bounds__(Kernel::kThreads, MIN_CTAS) kernel_entry(const __grid_constant__ Args args) {
  Kernel::run(args);
}

template <typename Kernel, int MIN_CTAS, typename Args>
int launch(const Args& args) {
  auto* entry = kernel_entry<Kernel, Args, MIN_CTAS>;
  // More than 48 KB of dynamic shared memory has to be asked for, once a device.
  if constexpr (Kernel::kSharedBytes > 48 * 1024) {
    static bool ready[64];
    int device = 0;
    if (cudaError_t error = cudaGetDevice(&device)) return error;
    if (device >= 64 || !ready[device]) {
      if (cudaError_t error = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::kSharedBytes)) {
        return error;
      }
      if (device < 64) ready[device] = true;
    }
  }
  const int64 grid = Kernel::grid(args);
  if (grid == 0) return cudaSuccess;
  if (grid > 0x7fffffff) return cudaErrorInvalidConfiguration;
  entry<<<unsigned(grid), Kernel::kThreads, Kernel::kSharedBytes, reinterpret_cast<cudaStream_t>(args.context)>>>(args);
  return cudaGetLastError();
}

}  // namespace jitsparse

extern "C" const char* jitsparse_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
