// The epilogue of the Hopper kernels, by 64 x 64 subtiles of the output. A warp of the warpgroup holds 16 accumulator rows, as
// subtile[column / 8][mma fragment]. Accumulator rows are rows of the output, or its columns if the product is computed transposed.
#pragma once

#include "../../abi.h"
#include "../ptx/stmatrix.cuh"
#include "activation.cuh"
#include "element.cuh"

namespace jitsparse {

// The bias of the sixteen columns of a thread's fragments, in the storage type: all loads are issued before the first is waited for.
template <typename Element>
struct BiasOfColumns {
  typename Element::Storage of[8][2];

  // `first` is the subtile's first column.
  __device__ __forceinline__ void prefetch(const void* values, int first, int64 extent, int lane) {
    const auto* bias = static_cast<const typename Element::Storage*>(values);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = first + r * 8 + lane % 4 * 2 + e;
        of[r][e] = at < extent ? bias[at] : 0;
      }
    }
  }
};

template <typename Element>
__device__ __forceinline__ void add_bias_along(float (&subtile)[8][4], const BiasOfColumns<Element>& bias) {
#pragma unroll
  for (int r = 0; r < 8; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float b = Element::load(bias.of[r][e]);
      subtile[r][e] += b;
      subtile[r][e + 2] += b;
    }
  }
}

// The bias of the two rows of a thread's fragments, in the storage type: converting it would wait for the load.
template <typename Element>
struct BiasOfRows {
  typename Element::Storage upper = 0, lower = 0;

  // `first` is the warp's first row.
  __device__ __forceinline__ void prefetch(const void* values, int first, int64 extent, int lane) {
    const auto* bias = static_cast<const typename Element::Storage*>(values) + first + lane / 4;
    const int64 left = extent - first - lane / 4;
    upper = left > 0 ? bias[0] : 0;
    lower = left > 8 ? bias[8] : 0;
  }
};

template <typename Element, int EIGHTS>
__device__ __forceinline__ void add_bias_down(float (&subtile)[EIGHTS][4], BiasOfRows<Element> bias) {
  const float upper = Element::load(bias.upper), lower = Element::load(bias.lower);
#pragma unroll
  for (int r = 0; r < EIGHTS; ++r) {
    subtile[r][0] += upper;
    subtile[r][1] += upper;
    subtile[r][2] += lower;
    subtile[r][3] += lower;
  }
}

// Rounds and packs for stmatrix: four registers per 16 columns.
template <typename Element, bool RELU, int EIGHTS>
__device__ __forceinline__ void pack_subtile(const float (&subtile)[EIGHTS][4], unsigned (&packed)[EIGHTS * 2]) {
#pragma unroll
  for (int r = 0; r < EIGHTS; ++r) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const float low = subtile[r][e], high = subtile[r][e + 1];
      packed[2 * r + e / 2] = RELU ? Element::pack_relu(low, high) : Element::pack(low, high);
    }
  }
}

// Activation and rounding of all subtiles. One branch for all: one per subtile costs 1 % of a product, as does relu outside the cvt.
template <typename Element, int SUBTILES>
__device__ __forceinline__ void finish_subtiles(float (&c)[SUBTILES][8][4], int64 activation, unsigned (&packed)[SUBTILES][8 * 2]) {
  if (activation == kRelu) {
#pragma unroll
    for (int i = 0; i < SUBTILES; ++i) pack_subtile<Element, /*RELU=*/true>(c[i], packed[i]);
    return;
  }
  apply_activation<Element>(reinterpret_cast<float(&)[SUBTILES * 8 * 4]>(c), activation);
#pragma unroll
  for (int i = 0; i < SUBTILES; ++i) pack_subtile<Element, /*RELU=*/false>(c[i], packed[i]);
}

// Writes a packed subtile to shared memory, with the 128-byte swizzle; ROWS: rows there are the accumulator's rows, otherwise its columns.
template <bool ROWS>
__device__ __forceinline__ void stage_subtile(const unsigned (&packed)[8 * 2], unsigned to, int warp, int lane) {
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

// Writes a warp's 16 packed rows of 8 EIGHTS columns (32 or 64) to shared memory at `to`, with the swizzle of that width.
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
