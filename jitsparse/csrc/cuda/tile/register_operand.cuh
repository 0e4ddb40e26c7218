// wgmma's left operand in registers, loaded from shared memory in either major order.
#pragma once

#include "../ptx/ldmatrix.cuh"
#include "../ptx/load_shared.cuh"
#include "row_order.cuh"

namespace jitsparse {

// A warpgroup's 64 TILES elements of 32 bits along m, 32 deep, as mma fragments of 8 k.
//
// ALONG_K: k-major, one row of 128 bytes per m, and ldmatrix delivers exactly the fragment's order. Otherwise M-major, in boxes of 32, one
// row per k; a thread then takes neighbours, all of one k in one load.
template <int TILES, bool ALONG_K>
struct RegisterOperand {
  using Order = RowOrder<TILES, /*NEIGHBOURS=*/!ALONG_K>;
  using Fragments = unsigned[4][TILES][4];  // [k / 8][tile][mma fragment]

  static __device__ __forceinline__ void load(Fragments& a, unsigned shared, int warp, int lane) {
    if constexpr (ALONG_K) {
      const int in_16 = lane % 16, deep = lane / 16;
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        const int row = (warp * TILES + t) * 16 + in_16;
#pragma unroll
        for (int k = 0; k < 4; ++k) ptx::ldmatrix(a[k][t], shared + row * 128 + ((k * 2 + deep) ^ row % 8) * 16);
      }
    } else {
      const int first = Order::element(warp, lane, 0, 0);
      const unsigned box = shared + first / 32 * (32 * 128) + first % 4 * 4, chunk = first % 32 / 4;
      // To avoid bank conflicts, half of the lanes that load together begin with the deeper of their two k.
      const int swap = TILES == 1 ? lane / 8 % 2 : 0;
      unsigned at[2];  // of the two, among the first 8 k
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int deep = lane % 4 + (i ^ swap) * 4;
        at[i] = box + deep * 128 + (chunk ^ deep) * 16;
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        unsigned of_k[2][2 * TILES];
#pragma unroll
        for (int i = 0; i < 2; ++i) ptx::load_shared(of_k[i], at[i] + k * (8 * 128));
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned x = of_k[0][t * 2 + half], y = of_k[1][t * 2 + half];
            a[k][t][half] = swap ? y : x;
            a[k][t][half + 2] = swap ? x : y;
          }
        }
      }
    }
  }
};

// Like RegisterOperand for 16-bit elements, DEPTH deep, as mma fragments of 16 k; a warp has 16 rows of each tile of 64. ALONG_K: k-major,
// consecutive rows of DEPTH elements, one per m. Otherwise M-major, in boxes of 64, one row per k.
template <int TILES, int DEPTH, bool ALONG_K>
struct RegisterOperand16 {
  using Fragments = unsigned[DEPTH / 16][TILES][4];  // [k / 16][tile][mma fragment]
  static constexpr int kRowBytes = ALONG_K ? DEPTH * 2 : 128, kTileBytes = DEPTH * 128;
  static_assert(kRowBytes == 64 || kRowBytes == 128, "the swizzles below");

  // The address that a lane reads first, of an operand that begins at `shared`, a multiple of 1024. Of the four matrices that lanes 0, 8,
  // 16 and 24 begin, the second is eight further along m, the third along k.
  static __device__ __forceinline__ unsigned first(unsigned shared, int warp, int lane) {
    const int along_m = warp * 16 + (ALONG_K ? lane % 16 : lane / 8 % 2 * 8), along_k = lane / 16 * 8 + (ALONG_K ? 0 : lane % 8);
    const int row = ALONG_K ? along_m : along_k, chunk = (ALONG_K ? along_k : along_m) / 8;
    return shared + row * kRowBytes + (chunk ^ (kRowBytes == 128 ? row % 8 : row / 2 % 4)) * 16;
  }

  static __device__ __forceinline__ void load(Fragments& a, unsigned first) {
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        if constexpr (ALONG_K) {
          ptx::ldmatrix(a[k / 16][t], (first ^ k * 2) + t * kTileBytes);
        } else {
          ptx::ldmatrix_trans(a[k / 16][t], first + k * kRowBytes + t * kTileBytes);
        }
      }
    }
  }
};

}  // namespace jitsparse
