// The epilogue of a product that was computed transposed: 64 x 64 of the output, of which a warp of the warpgroup holds
// 16 columns (n) as part[m / 8][mma fragment].
#pragma once

#include "../ptx/stmatrix.cuh"
#include "element.cuh"

namespace jitsparse {

// The bias runs along m, the columns of the fragments.
template <typename Element>
__device__ __forceinline__ void add_bias(float (&part)[8][4], const void* values, int first_m, int64 m_extent, int lane) {
  const auto* bias = static_cast<const typename Element::Storage*>(values);
#pragma unroll
  for (int r = 0; r < 8; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = first_m + r * 8 + lane % 4 * 2 + e;
      const float b = at < m_extent ? Element::load(bias[at]) : 0.0f;
      part[r][e] += b;
      part[r][e + 2] += b;
    }
  }
}

// Into shared memory at `to`, in rows as the output has them (n runs along them unless TRANSPOSED), with the 128-byte swizzle.
template <typename Element, bool TRANSPOSED>
__device__ __forceinline__ void stage_part(const float (&part)[8][4], unsigned to, int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 8; r += 2) {
    const unsigned packed[4] = {Element::pack(part[r][0], part[r][1]), Element::pack(part[r][2], part[r][3]),
                                Element::pack(part[r + 1][0], part[r + 1][1]), Element::pack(part[r + 1][2], part[r + 1][3])};
    const int n = warp * 2 + lane / 8 % 2, m = r + lane / 16;  // in units of eight
    const int row = (TRANSPOSED ? n : m) * 8 + lane % 8, chunk = (TRANSPOSED ? m : n) ^ lane % 8;
    if constexpr (TRANSPOSED) {
      ptx::stmatrix_x4(to + row * 128 + chunk * 16, packed);
    } else {
      ptx::stmatrix_x4_trans(to + row * 128 + chunk * 16, packed);
    }
  }
}

}  // namespace jitsparse
