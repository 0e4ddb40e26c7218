// cp.async: copies from global to shared memory that complete in the background (sm_80).
#pragma once

namespace jitsparse::ptx {

// 16 bytes, bypassing L1. Bytes past `source_bytes` (0..16) are written as zero and never read.
__device__ __forceinline__ void cp_async_16(unsigned shared, const void* global, int source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(source_bytes));
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
