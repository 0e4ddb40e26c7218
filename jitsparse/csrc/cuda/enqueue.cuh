// What launching a kernel asks of the CUDA runtime. (The emulation of tests/kernels has this file of its own.)
#pragma once

#include <cuda_runtime.h>

#include "../abi.h"
#include "ptx/dependent_launch.cuh"

namespace jitsparse {

// From Hopper on a kernel is started as soon as the CTAs of the one before it in the stream have ended, and waits here for what they
// wrote: a microsecond sooner than the driver would start it. (None executes griddepcontrol.launch_dependents: CTAs started while the
// last ones work would begin on whichever SM is free, and neighbours that share data would no longer be neighbours. Products back to back
// took up to 1.4 times as long.)
constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
constexpr bool kHasDependentLaunch = kArchitectures[0] >= 900;

// Whether the driver knows how, in a graph that is captured too: since CUDA 12.3.
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

// What has to be asked of the driver once a device: `ask`, on the current one, unless `done` says that it has been.
// Threads may ask at once: ctypes releases Python's lock for a launch. (<atomic> would cost compile time.)
constexpr int kMaxDevices = 64;  // those beyond are asked at every launch
template <typename Ask>
cudaError_t once_a_device(bool (&done)[kMaxDevices], Ask ask) {
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  if (device < kMaxDevices && __atomic_load_n(&done[device], __ATOMIC_RELAXED)) return cudaSuccess;
  if (cudaError_t error = ask()) {
    cudaGetLastError();  // or whoever launches the next kernel would be told of it
    return error;
  }
  if (device < kMaxDevices) __atomic_store_n(&done[device], true, __ATOMIC_RELAXED);
  return cudaSuccess;
}

// Streaming multiprocessors of the current device; 1 if it cannot be asked, which is slow and right.
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

// `params` is what the kernel is given: the words of the call, or for kernels that use TMA these and its tensor maps.
// `context` is the stream.
template <typename Kernel, typename Params>
int enqueue(const Params& params, int64 grid, int64 context) {
  auto* entry = kernel_entry<Kernel, Params>;
  // More than 48 KB of dynamic shared memory has to be asked for, once a device.
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
  if (error) cudaGetLastError();  // or whoever launches the next kernel would be told of it
  return error;
}

// A kernel that is given to `enqueue` later, if at all. The driver loads a kernel when it is first asked for; while a
// graph is captured that may be too late.
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
