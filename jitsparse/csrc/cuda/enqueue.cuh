// Kernel launches through the CUDA runtime. (The emulator in tests/kernels replaces this file.)
#pragma once

#include <cuda_runtime.h>

#include "../abi.h"
#include "ptx/dependent_launch.cuh"

namespace jitsparse {

// Programmatic dependent launch, from Hopper on: a kernel starts as soon as the CTAs of the previous one in the stream have ended, and
// waits in kernel_entry for their writes. This is a microsecond sooner than the driver would start it. (No kernel executes
// griddepcontrol.launch_dependents: CTAs started during the last wave would begin on whichever SM is free, and neighbours that share data
// would no longer be neighbours. Back-to-back products took up to 1.4 times as long.)
constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
constexpr bool kHasDependentLaunch = kArchitectures[0] >= 900;

// Whether the driver supports it, in captured graphs too: since CUDA 12.3.
inline bool has_dependent_launch() {
  static const bool known = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= 12030;
  }();
  return kHasDependentLaunch && known;
}

template <typename Kernel, typename Params>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinCtas) kernel_entry(const __grid_constant__ Params params) {
  if constexpr (kHasDependentLaunch) ptx::griddepcontrol_wait();
  Kernel::run(params);
}

// Calls `ask`, a driver call that is needed once per device, for the current one unless `done` is set for it. Threads may race: ctypes
// releases the GIL for a launch. (<atomic> would cost compile time.)
constexpr int kMaxDevices = 64;  // for devices beyond, `ask` is called at every launch
template <typename Ask>
cudaError_t once_a_device(bool (&done)[kMaxDevices], Ask ask) {
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  if (device < kMaxDevices && __atomic_load_n(&done[device], __ATOMIC_RELAXED)) return cudaSuccess;
  if (cudaError_t error = ask()) {
    cudaGetLastError();  // clears the error, which the next launch would report
    return error;
  }
  if (device < kMaxDevices) __atomic_store_n(&done[device], true, __ATOMIC_RELAXED);
  return cudaSuccess;
}

// SMs of the current device; 1 if the query fails, which is slow but correct.
inline int sm_count() {
  static int known[kMaxDevices];
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (device < kMaxDevices) count = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
  if (count) return count;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    cudaGetLastError();
    return 1;
  }
  if (device < kMaxDevices) __atomic_store_n(&known[device], count, __ATOMIC_RELAXED);
  return count;
}

// `params` is the kernel's parameter: the arguments of the call, and the tensor maps of kernels that use TMA. `context` is the stream.
template <typename Kernel, typename Params>
int enqueue(const Params& params, int64 grid, int64 context) {
  auto* entry = kernel_entry<Kernel, Params>;
  // More than 48 KB of dynamic shared memory needs an opt-in, once per device.
  if constexpr (Kernel::kSharedBytes > 48 * 1024) {
    static bool allowed[kMaxDevices];
    const auto allow = [entry] {
      return cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::kSharedBytes);
    };
    if (cudaError_t error = once_a_device(allowed, allow)) return error;
  }
  if (grid == 0) return cudaSuccess;
  if (grid > 0x7fffffff) return cudaErrorInvalidConfiguration;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(grid));
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = Kernel::kSharedBytes;
  config.stream = reinterpret_cast<cudaStream_t>(context);
  config.attrs = &early;
  config.numAttrs = has_dependent_launch() ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, entry, params);
  if (error) cudaGetLastError();  // clears the error, which the next launch would report
  return error;
}

// Loads a kernel that may be enqueued later. The driver loads kernels lazily, which may be too late while a graph is captured.
template <typename Kernel, typename Params>
cudaError_t load_kernel() {
  static bool loaded[kMaxDevices];
  return once_a_device(loaded, [] {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel_entry<Kernel, Params>);
  });
}

}  // namespace jitsparse

extern "C" const char* jitsparse_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
