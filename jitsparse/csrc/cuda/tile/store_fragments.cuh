// Stores accumulators of wgmma, or a warp's of mma, directly to global memory in float32. `Order` maps the accumulator's rows to elements
// (see row_order.cuh). A warp's stores fill whole sectors of 32 bytes where the output's rows are sector-aligned, so as many bytes go to L2
// as through shared memory.
#pragma once

#include "../../abi.h"
#include "row_order.cuh"

namespace jitsparse {

// Adds a bias along the left operand, of which the warpgroup's first element is number `first`.
template <typename Order, int TILES, int COLUMNS>
__device__ __forceinline__ void add_bias_left(float (&c)[TILES][COLUMNS][4], const float* bias, int first, int64 extent, int warp,
                                              int lane) {
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = first + Order::element(warp, lane, t, half);
      const float b = at < extent ? bias[at] : 0.0f;
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        c[t][j][2 * half] += b;
        c[t][j][2 * half + 1] += b;
      }
    }
  }
}

// Adds a bias along the right operand.
template <int TILES, int COLUMNS>
__device__ __forceinline__ void add_bias_right(float (&c)[TILES][COLUMNS][4], const float* bias, int first, int64 extent, int lane) {
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = first + j * 8 + lane % 4 * 2 + e;
      const float b = at < extent ? bias[at] : 0.0f;
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        c[t][j][e] += b;
        c[t][j][e + 2] += b;
      }
    }
  }
}

// Elements of the left operand are contiguous in the output if LEFT_CONTIGUOUS, else `ld` apart. The extent along the output's rows and
// `ld` are multiples of 4 elements, so a vector store is entirely inside or outside; the other extent is arbitrary.
template <typename Order, bool LEFT_CONTIGUOUS, int TILES, int COLUMNS>
__device__ __forceinline__ void store_fragments(const float (&c)[TILES][COLUMNS][4], float* out, int64 ld, int first_left,
                                                int64 left_extent, int first_right, int64 right_extent, int warp, int lane) {
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) {
    const int right = first_right + j * 8 + lane % 4 * 2;
    if (right >= right_extent) continue;
    if constexpr (LEFT_CONTIGUOUS && Order::kNeighbours) {
      const int left = first_left + Order::element(warp, lane, 0, 0);
      if (left >= left_extent) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (right + e >= right_extent) break;
        float* to = out + (right + e) * ld + left;
        if constexpr (TILES == 2) {
          *reinterpret_cast<float4*>(to) = make_float4(c[0][j][e], c[0][j][e + 2], c[1][j][e], c[1][j][e + 2]);
        } else {
          *reinterpret_cast<float2*>(to) = float2{c[0][j][e], c[0][j][e + 2]};
        }
      }
    } else {
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int left = first_left + Order::element(warp, lane, t, half);
          if (left >= left_extent) continue;
          const float x = c[t][j][2 * half], y = c[t][j][2 * half + 1];
          if constexpr (LEFT_CONTIGUOUS) {
            out[right * ld + left] = x;
            if (right + 1 < right_extent) out[(right + 1) * ld + left] = y;
          } else {
            *reinterpret_cast<float2*>(out + left * ld + right) = float2{x, y};
          }
        }
      }
    }
  }
}

}  // namespace jitsparse
