// A dense operand's part of a stage, on its way to shared memory by TMA.
#pragma once

#include "../ptx/tma.cuh"

namespace jitsparse {

// From column `first` (of m or n) and from `k` on. ALONG_K: the operand's rows run along k, and one box brings all of EXTENT.
// Otherwise they run along the columns, and boxes of SPAN columns, the width of the swizzle, come to lie BOX_BYTES apart.
// `policy`: none or one, see ../ptx/l2_policy.cuh.
template <bool ALONG_K, int EXTENT, int SPAN, int BOX_BYTES, typename... Policy>
__device__ __forceinline__ void load_operand(unsigned to, const CUtensorMap* map, unsigned full_barrier, int first, int k, int batch,
                                             Policy... policy) {
  if constexpr (ALONG_K) {
    ptx::tma_load_3d(to, map, full_barrier, k, first, batch, policy...);
  } else {
#pragma unroll
    for (int i = 0; i < EXTENT / SPAN; ++i) {
      ptx::tma_load_3d(to + i * BOX_BYTES, map, full_barrier, first + i * SPAN, k, batch, policy...);
    }
  }
}

}  // namespace jitsparse
