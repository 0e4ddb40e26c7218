// bar.sync: numbered barriers for some threads of a CTA.
#pragma once

namespace jitsparse::ptx {

// Synchronizes the `threads` threads that name the same barrier; 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace jitsparse::ptx
