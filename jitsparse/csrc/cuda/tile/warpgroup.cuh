// A warpgroup's 64 x N product of operands in shared memory, in tiles of 128-byte rows with the 128-byte swizzle.
#pragma once

#include "../ptx/wgmma.cuh"

namespace jitsparse {

// A tile whose rows run along k has 64 k a row. One whose rows run along m or n has 64 of those a row and DEPTH
// rows; more columns lie in the next tile.
template <typename Element, int N, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int DEPTH>
struct WarpgroupProduct {
  static_assert(N % 128 == 0 && DEPTH == 64 && sizeof(typename Element::Storage) == 2, "m64n128k16 of 16-bit elements");
  static constexpr int kRowBytes = 128;
  static constexpr int kTileBytes = DEPTH * kRowBytes;  // 64 columns of an operand whose rows run along m or n

  using Accumulators = float[1][N / 8][4];

  // Starts c += left x right for one stage; the operands must stay until two calls later have waited for it.
  static __device__ __forceinline__ void start(Accumulators& c, unsigned left, unsigned right) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
      const uint64 a = ptx::wgmma_descriptor(left + (LEFT_K_CONTIGUOUS ? k * 2 : k * kRowBytes), kTileBytes, 8 * kRowBytes);
#pragma unroll
      for (int n = 0; n < N; n += 128) {
        // 128 rows further down, or two tiles further on.
        const unsigned at = right + (RIGHT_K_CONTIGUOUS ? n * kRowBytes + k * 2 : n / 64 * kTileBytes + k * kRowBytes);
        const uint64 b = ptx::wgmma_descriptor(at, kTileBytes, 8 * kRowBytes);
        Element::template wgmma<!LEFT_K_CONTIGUOUS, !RIGHT_K_CONTIGUOUS>(reinterpret_cast<float(&)[64]>(c[0][n / 8]), a, b);
      }
    }
    ptx::wgmma_commit();
  }

  // Waits for all that was started; the accumulators may be read afterwards.
  static __device__ __forceinline__ void finish(Accumulators& c) {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[0][j][e])::"memory");
    }
  }
};

}  // namespace jitsparse
