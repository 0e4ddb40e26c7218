// The epilogue of Hopper's products: 64 x 64 of the output, of which a warp of the warpgroup has 16 rows of an accumulator, as
// part[column / 8][mma fragment]. Rows of the accumulator are rows of the output, or its columns if the product was computed
// transposed.
#pragma once

#include "../ptx/stmatrix.cuh"
#include "element.cuh"

namespace jitsparse {

// A bias whose elements belong to the columns of the accumulator.
template <typename Element>
__device__ __forceinline__ void add_bias_along(float (&part)[8][4], const void* values, int first, int64 extent, int lane) {
  const auto* bias = static_cast<const typename Element::Storage*>(values);
#pragma unroll
  for (int r = 0; r < 8; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = first + r * 8 + lane % 4 * 2 + e;
      const float b = at < extent ? Element::load(bias[at]) : 0.0f;
      part[r][e] += b;
      part[r][e + 2] += b;
    }
  }
}

// The elements of a bias that belong to the two rows of a thread's fragments; `first` is the warp's first row.
template <typename Element>
__device__ __forceinline__ float2 bias_of_rows(const void* values, int first, int64 extent, int lane) {
  const auto* bias = static_cast<const typename Element::Storage*>(values);
  const int upper = first + lane / 4, lower = upper + 8;
  return {upper < extent ? Element::load(bias[upper]) : 0.0f, lower < extent ? Element::load(bias[lower]) : 0.0f};
}

__device__ __forceinline__ void add_bias_down(float (&part)[8][4], float2 bias) {
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    part[r][0] += bias.x;
    part[r][1] += bias.x;
    part[r][2] += bias.y;
    part[r][3] += bias.y;
  }
}

// Rounded: for stmatrix, four registers for every 16 columns.
template <typename Element, int EIGHTS>
__device__ __forceinline__ void pack_part(const float (&part)[EIGHTS][4], unsigned (&packed)[EIGHTS * 2]) {
#pragma unroll
  for (int r = 0; r < EIGHTS; ++r) {
    packed[2 * r] = Element::pack(part[r][0], part[r][1]);
    packed[2 * r + 1] = Element::pack(part[r][2], part[r][3]);
  }
}

// A packed part into shared memory at `to`, with the 128-byte swizzle; rows there are the accumulator's rows, or else its columns.
template <bool ROWS>
__device__ __forceinline__ void stage_part(const unsigned (&packed)[8 * 2], unsigned to, int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 8; r += 2) {
    const unsigned of_16[4] = {packed[2 * r], packed[2 * r + 1], packed[2 * r + 2], packed[2 * r + 3]};
    const int down = warp * 2 + lane / 8 % 2, along = r + lane / 16;  // in units of eight
    const int row = (ROWS ? down : along) * 8 + lane % 8, chunk = (ROWS ? along : down) ^ lane % 8;
    if constexpr (ROWS) {
      ptx::stmatrix_x4(to + row * 128 + chunk * 16, of_16);
    } else {
      ptx::stmatrix_x4_trans(to + row * 128 + chunk * 16, of_16);
    }
  }
}

// A warp's 16 packed rows of 8 EIGHTS columns (32 or 64) into shared memory at `to`, with the swizzle of that width.
template <int EIGHTS>
__device__ __forceinline__ void stage_rows(const unsigned (&packed)[EIGHTS * 2], unsigned to, int lane) {
  static_assert(EIGHTS == 4 || EIGHTS == 8, "the widths that are used");
#pragma unroll
  for (int j = 0; j < EIGHTS; j += 2) {
    const unsigned of_16[4] = {packed[2 * j], packed[2 * j + 1], packed[2 * j + 2], packed[2 * j + 3]};
    const int row = lane % 16, chunk = (j + lane / 16) ^ (EIGHTS == 8 ? row % 8 : row / 2 % 4);
    ptx::stmatrix_x4(to + row * (EIGHTS * 16) + chunk * 16, of_16);
  }
}

}  // namespace jitsparse
