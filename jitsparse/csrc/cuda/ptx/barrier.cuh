// bar.sync: barriers of some threads of a CTA, by number.
#pragma once

namespace jitsparse::ptx {

// Lets `threads` threads that name the same barrier wait for each other; 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace jitsparse::ptx
