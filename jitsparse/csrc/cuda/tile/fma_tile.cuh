// A warp's part of a product of float32 on the ordinary cores: fragments read from shared memory 16 bytes at a time, one
// fma a product.
#pragma once

#include "../ptx/ldmatrix.cuh"
#include "../ptx/store.cuh"
#include "shared_tile.cuh"

namespace jitsparse {

// How LANES lanes of a warp share EACH * LANES rows (or columns) of a tile. The tile's rows in shared memory run along k, and
// a lane takes every LANES-th; or they run across it, and a lane takes a run of four in every 4 * LANES. Either way what the
// lanes read at once lies in different banks, and a read brings four elements.
template <typename Tile, bool K_CONTIGUOUS, int EACH, int LANES>
struct FmaOperand {
  static constexpr int kRun = K_CONTIGUOUS ? 1 : 4;
  static_assert(EACH % 4 == 0, "runs of four");

  // Which row of the part is the i-th of a lane.
  static __device__ __forceinline__ int at(int lane, int i) { return lane * kRun + i / kRun * (kRun * LANES) + i % kRun; }

  // Of the lane's first element in the tile, if the part begins at row `first`.
  static __device__ __forceinline__ unsigned lane_offset(int first, int lane) {
    return K_CONTIGUOUS ? Tile::offset(first + lane, 0) : Tile::offset(0, first / 4 + lane);
  }

  // The u-th of the EACH reads that bring k .. k + 3. K_CONTIGUOUS: row u at each of the four; else rows 4 u' .. 4 u' + 3 at
  // one of them, where depth(u) and row(u) tell which.
  static __device__ __forceinline__ void load(float (&x)[4], unsigned lane_address, int k, int u) {
    if constexpr (K_CONTIGUOUS) {
      ptx::load_shared_b128(x, Tile::moved(lane_address, u * LANES, k / 4));
    } else {
      ptx::load_shared_b128(x, Tile::moved(lane_address, k + depth(u, 0), row(u, 0) / 4 * LANES));
    }
  }
  static constexpr __device__ __forceinline__ int depth(int u, int e) { return K_CONTIGUOUS ? e : u / (EACH / 4); }
  static constexpr __device__ __forceinline__ int row(int u, int e) { return K_CONTIGUOUS ? u : u % (EACH / 4) * 4 + e; }
};

// M x N of a product, `c[i * kEachN + j]` a thread.
//
// The right operand should not lie along k if that can be helped. What a thread has of it for one k is then every fourth of its
// registers, all in one bank, and more fma read two registers of a bank at once: 1384 and 1579 of 2629, where both operands lie along k,
// beside 904 to 1162. (dds, where it is the left one instead: 1.05 to 1.11 times as fast.) A value of the left operand is kept for a
// whole row of products.
template <typename LeftTile, typename RightTile, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int M, int N, int DEPTH>
struct FmaTile {
  // 16 x 8 products a thread take 1.5 reads of shared memory for 32 of them, 8 x 8 take 2.
  static constexpr int kEachN = M * N >= 64 * 32 ? 8 : 4, kLanesN = N / kEachN;
  static constexpr int kLanesM = 32 / kLanesN, kEachM = M / kLanesM;
  static_assert(kLanesN >= 2 && kLanesM >= 2 && kLanesN * kLanesM == 32 && kEachM * kLanesM == M, "lanes divide the tile");
  static_assert(DEPTH % 4 == 0, "reads of four");
  using Left = FmaOperand<LeftTile, LEFT_K_CONTIGUOUS, kEachM, kLanesM>;
  using Right = FmaOperand<RightTile, RIGHT_K_CONTIGUOUS, kEachN, kLanesN>;
  using Accumulators = float[kEachM * kEachN];

  // Lanes that differ in their lowest bit share columns, those that differ in the next share rows: what lets the hardware
  // serve both halves of a half-warp's 16-byte reads at once.
  static __device__ __forceinline__ int lane_m(int lane) { return lane % 2 + lane / (2 * kLanesN) * 2; }
  static __device__ __forceinline__ int lane_n(int lane) { return lane / 2 % kLanesN; }

  // Adds the product of DEPTH columns of the left tile and rows of the right one; addresses with lane_offset.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned left, unsigned right) {
#pragma unroll
    for (int k = 0; k < DEPTH; k += 4) {
      float b[4][kEachN];
#pragma unroll
      for (int u = 0; u < kEachN; ++u) {
        float x[4];
        Right::load(x, right, k, u);
#pragma unroll
        for (int e = 0; e < 4; ++e) b[Right::depth(u, e)][Right::row(u, e)] = x[e];
      }
#pragma unroll
      for (int u = 0; u < kEachM; ++u) {
        float a[4];
        Left::load(a, left, k, u);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int j = 0; j < kEachN; ++j) {
            float& to = c[Left::row(u, e) * kEachN + j];
            to = fmaf(a[e], b[Left::depth(u, e)][j], to);
          }
        }
      }
    }
  }

  // store(m, n, run) for all that a lane has, in runs along n; ALONG_M: along m. A run has as many elements as lie side by side.
  template <bool ALONG_M, typename Store>
  static __device__ __forceinline__ void for_each_run(const Accumulators& c, int lane_m, int lane_n, const Store& store) {
    constexpr int kRun = ALONG_M ? Left::kRun : Right::kRun;
    constexpr int kRunM = ALONG_M ? kRun : 1, kRunN = ALONG_M ? 1 : kRun;
#pragma unroll
    for (int j = 0; j < kEachN; j += kRunN) {
#pragma unroll
      for (int i = 0; i < kEachM; i += kRunM) {
        float run[kRun];
#pragma unroll
        for (int e = 0; e < kRun; ++e) run[e] = c[(ALONG_M ? i + e : i) * kEachN + (ALONG_M ? j : j + e)];
        store(Left::at(lane_m, i), Right::at(lane_n, j), run);
      }
    }
  }
};

template <int N>
__device__ __forceinline__ void store_run(float* to, const float (&run)[N]) {
  if constexpr (N == 4) {
    ptx::store(to, reinterpret_cast<const unsigned(&)[4]>(run));
  } else {
    *to = run[0];
  }
}

}  // namespace jitsparse
