// cp.async: copies from global to shared memory that complete in the background (sm_80).
#pragma once

namespace jitsparse::ptx {

// Copies 16 bytes, bypassing L1; writes zeros and reads nothing unless at < extent. (src-size instead of the ignore-src predicate costs
// five more instructions per copy, a third of the issue slots of the kernels that used it; a bool argument two more.)
__device__ __forceinline__ void cp_async_16(unsigned shared, const void* global, int at, int extent) {
  asm volatile(
      "{\n"
      ".reg .pred outside;\n"
      "setp.ge.s32 outside, %2, %3;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, outside;\n"
      "}\n" ::"r"(shared),
      "l"(global), "r"(at), "r"(extent));
}

__device__ __forceinline__ void cp_async_16(unsigned shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared), "l"(global));
}

// Like cp_async_16 for 4 bytes, which go through L1.
__device__ __forceinline__ void cp_async_4(unsigned shared, const void* global, int at, int extent) {
  asm volatile(
      "{\n"
      ".reg .pred outside;\n"
      "setp.ge.s32 outside, %2, %3;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, outside;\n"
      "}\n" ::"r"(shared),
      "l"(global), "r"(at), "r"(extent));
}

__device__ __forceinline__ void cp_async_4(unsigned shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared), "l"(global));
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most PENDING of this thread's most recent groups are still in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

}  // namespace jitsparse::ptx
