// Special registers, reread by each call: values recomputed from them after a loop take no registers during it.
#pragma once

namespace jitsparse::ptx {

__device__ __forceinline__ int thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(x));
  return x;
}

__device__ __forceinline__ int block_index() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(x));
  return x;
}

}  // namespace jitsparse::ptx
