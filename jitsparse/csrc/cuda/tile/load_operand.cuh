// TMA loads of a dense operand's slice of a stage.
#pragma once

#include "../ptx/tma.cuh"

namespace jitsparse {

// Loads from column `first` (of m or n) and `k` on. ALONG_K: the operand is k-major, and one box brings all of EXTENT. Otherwise it is
// MN-major, and boxes of SPAN columns, the width of the swizzle, are placed BOX_BYTES apart. `policy`: none or one, see
// ../ptx/l2_policy.cuh.
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
