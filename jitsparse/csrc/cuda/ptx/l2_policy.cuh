// L2 eviction policies of the lines that an access brings in.
#pragma once

#include "../../abi.h"

namespace jitsparse::ptx {

// Evicted last.
__device__ __forceinline__ uint64 l2_evict_last() {
  uint64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

// Evicted in normal order, as without a policy.
__device__ __forceinline__ uint64 l2_evict_normal() {
  uint64 policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

// Evicted first.
__device__ __forceinline__ uint64 l2_evict_first() {
  uint64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

}  // namespace jitsparse::ptx
