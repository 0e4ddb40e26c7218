// A warp's tile of a float32 product on the CUDA cores: fragments are read from shared memory 16 bytes at a time, one fma per product.
#pragma once

#include "../ptx/load_shared.cuh"
#include "../ptx/store.cuh"
#include "shared_tile.cuh"

namespace jitsparse {

// How LANES lanes of a warp share EACH * LANES rows (or columns) of a tile. Of a k-major tile a lane takes every LANES-th row; of an
// MN-major one it takes a run of four in every 4 * LANES. Either way, what the lanes read at once is in different banks, and a read brings
// four elements.
template <typename Tile, bool K_CONTIGUOUS, int EACH, int LANES>
struct FmaOperand {
  static constexpr int kRun = K_CONTIGUOUS ? 1 : 4;
  static_assert(EACH % 4 == 0, "runs of four");

  // The lane's i-th row of the warp tile.
  static __device__ __forceinline__ int at(int lane, int i) { return lane * kRun + i / kRun * (kRun * LANES) + i % kRun; }

  // Offset of the lane's first element in the tile, if the warp tile begins at row `first`.
  static __device__ __forceinline__ unsigned lane_offset(int first, int lane) {
    return K_CONTIGUOUS ? Tile::offset(first + lane, 0) : Tile::offset(0, first / 4 + lane);
  }

  // Advances the lane's address by `k`, a multiple of eight: rows that far apart are permuted alike, and chunks by an XOR.
  static __device__ __forceinline__ unsigned advance_k(unsigned lane_address, int k) {
    return K_CONTIGUOUS ? lane_address ^ unsigned(k / 4 * kChunkBytes) : lane_address + unsigned(k * Tile::kRowBytes);
  }

  // Loads k .. k + 3 of the lane's rows from its `first` on, as x[depth][row].
  template <int ROWS>
  static __device__ __forceinline__ void load(float (&x)[4][ROWS], unsigned lane_address, int k, int first) {
    if constexpr (K_CONTIGUOUS) {
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        float row[4];
        ptx::load_shared_b128(row, Tile::advance(lane_address, (first + i) * LANES, k / 4));
#pragma unroll
        for (int depth = 0; depth < 4; ++depth) x[depth][i] = row[depth];
      }
    } else {
#pragma unroll
      for (int depth = 0; depth < 4; ++depth) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
          const unsigned from = Tile::advance(lane_address, k + depth, (first + i) / 4 * LANES);
          ptx::load_shared_b128(reinterpret_cast<float(&)[4]>(x[depth][i]), from);
        }
      }
    }
  }
};

// An M x N warp tile; each thread holds `c[i * kEachN + j]`.
//
// Register bandwidth is the bottleneck: two banks, odd and even, deliver one register per clock each, and an fma reads three. An operand
// that the previous fma had in the same slot comes from the reuse cache, so products are taken in serpentine order, which leaves two reads.
// For the same reason the right operand should not be k-major if avoidable: a thread's values for one k are then every fourth of its
// registers, all in one bank. (Making it the left operand in dds: 1.05 to 1.11 times as fast.)
template <typename LeftTile, typename RightTile, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int M, int N, int DEPTH>
struct FmaTile {
  // 16 x 8 products per thread take 1.5 reads of shared memory for 32 of them, 8 x 8 take 2.
  static constexpr int kEachN = M * N >= 64 * 32 ? 8 : 4, kLanesN = N / kEachN;
  static constexpr int kLanesM = 32 / kLanesN, kEachM = M / kLanesM;
  static_assert(kLanesN >= 2 && kLanesN * kLanesM == 32 && kEachM * kLanesM == M, "lanes divide the tile");
  // At most a thousand unrolled fma, and no more than a stage has. A k-major right operand, or sixteen rows per thread, would leave too few
  // registers for them.
  static constexpr int kUnrollK = RIGHT_K_CONTIGUOUS || kEachM == 16 || DEPTH == 8 ? 8 : 16, kRows = kEachM == 8 ? 8 : 4;
  static_assert(DEPTH % kUnrollK == 0, "chunks of a stage");
  using Left = FmaOperand<LeftTile, LEFT_K_CONTIGUOUS, kEachM, kLanesM>;
  using Right = FmaOperand<RightTile, RIGHT_K_CONTIGUOUS, kEachN, kLanesN>;
  using Accumulators = float[kEachM * kEachN];

  // Lanes that differ in their lowest bit share columns, those that differ in the next share rows: this lets the hardware serve both halves
  // of a half-warp's 16-byte reads at once. (If all share the rows, there is nothing to serve twice.)
  static __device__ __forceinline__ int lane_m(int lane) { return kLanesM == 1 ? 0 : lane % 2 + lane / (2 * kLanesN) * 2; }
  static __device__ __forceinline__ int lane_n(int lane) { return kLanesM == 1 ? lane : lane / 2 % kLanesN; }

  // Adds the product of DEPTH columns of the left tile and rows of the right one; addresses include lane_offset. In chunks, since code for
  // 32 columns exceeds the instruction cache: warps waited for instructions 15 % of the time.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned left, unsigned right) {
#pragma unroll 1
    for (int k = 0; k < DEPTH; k += kUnrollK) multiply_chunk(c, Left::advance_k(left, k), Right::advance_k(right, k));
  }

  static __device__ __forceinline__ void multiply_chunk(Accumulators& c, unsigned left, unsigned right) {
#pragma unroll
    for (int k = 0; k < kUnrollK; k += 4) {
      float b[4][kEachN];
      Right::load(b, right, k, 0);
#pragma unroll
      for (int first = 0; first < kEachM; first += kRows) {
        float a[4][kRows];
        Left::load(a, left, k, first);
#pragma unroll
        for (int depth = 0; depth < 4; ++depth) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int step = 0; step < kEachN; ++step) {
              const int j = i % 2 ? kEachN - 1 - step : step;
              float& to = c[(first + i) * kEachN + j];
              to = fmaf(a[depth][i], b[depth][j], to);
            }
          }
        }
      }
    }
  }

  // Calls store(m, n, run) for all of a lane's elements, in runs along n (ALONG_M: along m), as long as they are contiguous.
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
