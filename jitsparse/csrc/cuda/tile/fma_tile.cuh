// A warp's part of a product of float32 on the CUDA cores: fragments read from shared memory 16 bytes at a time, one
// fma a product.
#pragma once

#include "../ptx/load_shared.cuh"
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

  // The lane's address `k` further along k, a multiple of eight: rows that far apart are permuted alike, and chunks by an XOR.
  static __device__ __forceinline__ unsigned advance_k(unsigned lane_address, int k) {
    return K_CONTIGUOUS ? lane_address ^ unsigned(k / 4 * kChunkBytes) : lane_address + unsigned(k * Tile::kRowBytes);
  }

  // What the lane's rows from its `first` on have at k .. k + 3, as x[depth][row].
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

// M x N of a product, `c[i * kEachN + j]` a thread.
//
// Register bandwidth bounds it: two banks, odd and even, give one register a clock each, and an fma reads three. An operand that the fma
// before had in the same slot comes from the reuse cache, so products go in serpentine order, and two are left to read. For the same
// reason the right operand should not lie along k if that can be helped: what a thread has of it for one k is then every fourth of its
// registers, all in one bank. (dds, where it is the left one instead: 1.05 to 1.11 times as fast.)
template <typename LeftTile, typename RightTile, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int M, int N, int DEPTH>
struct FmaTile {
  // 16 x 8 products a thread take 1.5 reads of shared memory for 32 of them, 8 x 8 take 2.
  static constexpr int kEachN = M * N >= 64 * 32 ? 8 : 4, kLanesN = N / kEachN;
  static constexpr int kLanesM = 32 / kLanesN, kEachM = M / kLanesM;
  static_assert(kLanesN >= 2 && kLanesM >= 2 && kLanesN * kLanesM == 32 && kEachM * kLanesM == M, "lanes divide the tile");
  // At most a thousand fma at once. With the right operand along k, or sixteen rows a thread, there would be too few registers for them.
  static constexpr int kUnrollK = RIGHT_K_CONTIGUOUS || kEachM == 16 ? 8 : 16, kRows = kEachM == 8 ? 8 : 4;
  static_assert(DEPTH % kUnrollK == 0, "chunks of a stage");
  using Left = FmaOperand<LeftTile, LEFT_K_CONTIGUOUS, kEachM, kLanesM>;
  using Right = FmaOperand<RightTile, RIGHT_K_CONTIGUOUS, kEachN, kLanesN>;
  using Accumulators = float[kEachM * kEachN];

  // Lanes that differ in their lowest bit share columns, those that differ in the next share rows: what lets the hardware
  // serve both halves of a half-warp's 16-byte reads at once.
  static __device__ __forceinline__ int lane_m(int lane) { return lane % 2 + lane / (2 * kLanesN) * 2; }
  static __device__ __forceinline__ int lane_n(int lane) { return lane / 2 % kLanesN; }

  // Adds the product of DEPTH columns of the left tile and rows of the right one; addresses with lane_offset. In chunks, since code for
  // 32 columns is larger than the instruction cache: warps waited for instructions 15 % of their time.
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
