// The left operand of wgmma in registers: 32-bit elements, fetched from shared memory whichever way its rows run there.
#pragma once

#include "../ptx/ldmatrix.cuh"

namespace jitsparse {

// A warpgroup's TILES times 64 elements along m, of which each warp has 16 TILES that follow on one another. `fragment` of a tile is
// the mma fragment (8 deep): a thread has two elements of m, rows lane / 4 and lane / 4 + 8 of the warp's 16, in which the
// instruction does not care which elements of m they are.
//
// ALONG_K: rows of 128 bytes run along k, one for each m, and ldmatrix has just the fragment's order. Else they run along m, in boxes
// of 32, one row for each k; a thread then takes elements of m that are neighbours, all of one k in one load.
template <int TILES, bool ALONG_K>
struct RegisterOperand {
  static constexpr int kOfThread = 2 * TILES;  // elements of m that a thread has
  static_assert(TILES == 1 || TILES == 2, "one load of 8 or 16 bytes");

  // Whether a thread's elements are neighbours.
  static constexpr bool kTogether = !ALONG_K;

  // Which of the warpgroup's elements of m it is that a thread has in row half * 8 + lane / 4 of the warp's 16 of a tile.
  static __device__ __forceinline__ int element(int warp, int lane, int tile, int half) {
    const int row = lane / 4;
    if constexpr (ALONG_K) return (warp * TILES + tile) * 16 + half * 8 + row;
    return warp * 16 * TILES + place(row) * kOfThread + tile * 2 + half;
  }

  // The first of a thread's neighbours is number kOfThread * place(row) of the warp's. With two tiles the rows of eight lanes that
  // load together differ in the bit that tells the upper four of a row's eight chunks from the lower.
  static __device__ __forceinline__ int place(int row) { return TILES == 2 ? row % 2 * 4 + row / 2 : row; }

  // All of a slab 32 deep that begins at `shared`.
  static __device__ __forceinline__ void load(unsigned (&a)[4][TILES][4], unsigned shared, int warp, int lane) {
    if constexpr (ALONG_K) {
      const int in_16 = lane % 16, deep = lane / 16;
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        const int row = (warp * TILES + t) * 16 + in_16;
#pragma unroll
        for (int k = 0; k < 4; ++k) ptx::ldmatrix_x4(a[k][t], shared + row * 128 + ((k * 2 + deep) ^ row % 8) * 16);
      }
    } else {
      const int first = warp * 16 * TILES + place(lane / 4) * kOfThread;
      const unsigned box = shared + first / 32 * (32 * 128), chunk = first % 32 / 4, in_chunk = first % 4 * 4;
      // Where half of the lanes that load together would meet in a bank, they begin with the deeper of their two k.
      const int swap = TILES == 1 ? lane / 8 % 2 : 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        unsigned of_k[2][kOfThread];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int in_slab = k * 8 + lane % 4 + (i ^ swap) * 4;
          ptx::load_shared(of_k[i], box + in_slab * 128 + (chunk ^ in_slab % 8) * 16 + in_chunk);
        }
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

}  // namespace jitsparse
