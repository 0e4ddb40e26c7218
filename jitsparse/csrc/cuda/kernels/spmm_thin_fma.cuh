// Block-sparse x dense where the dense operand has few columns, in float32 or float64 on the CUDA cores: bound by how fast the stored
// values are read.
//
// A lane copies runs of 16 bytes along k to a ring in shared memory that no other lane reads, so no barrier is needed. It multiplies them by
// the same k of every column and adds to sums of its own; those of the lanes of a row are added at the end, always in the same order.
#pragma once

#include "../../abi.h"
#include "../ptx/cp_async.cuh"
#include "../ptx/load.cuh"
#include "../ptx/load_shared.cuh"
#include "../tile/element.cuh"
#include "spmm_thin_tile.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int TILE_M, int TILE_N>
struct SpmmThinFma {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kMinCtas = 3;
  using Tile = SpmmThinTile<Element, BLOCK_ROWS, OUT_TRANSPOSED, TILE_M, TILE_N, kWarps>;
  using Storage = typename Tile::Storage;  // sums are of the same type

  static constexpr int kRun = 16 / sizeof(Storage), kRuns = BLOCK_COLS / kRun;  // elements of a run, runs of a block's row
  using Run = Storage[kRun];
  static_assert(DENSE_K_CONTIGUOUS || TILE_N % kRun == 0, "runs of the dense operand lie inside a tile");

  static constexpr int kAlong = 8, kAcross = 32 / kAlong;  // lanes of a warp along k and across rows
  static constexpr int kRows = TILE_M / kAcross;           // rows of a lane
  static_assert(TILE_M % kAcross == 0, "lanes have equal numbers of rows");
  static constexpr int kStages = 16 / kRows;               // of the ring; all but one are in flight (in registers, ptxas spills)
  static constexpr int kStride = kThreads * 16;            // bytes from a run of a lane to its next

  using Sums = Storage[kRows][TILE_N];
  static constexpr int kSharedBytes = kStages * kRows * kStride;

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    extern __shared__ __align__(16) unsigned char ring[];
    __shared__ typename Tile::Sums shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Tile tile(args);
    Sums c = {};
    multiply(args, tile, __cvta_generic_to_shared(ring) + threadIdx.x * 16, warp, lane, c);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < TILE_N; ++j) {
        Storage sum = c[i][j];
#pragma unroll
        for (int bits = 1; bits < kAlong; bits *= 2) sum += __shfl_xor_sync(~0u, sum, bits);
        if (lane % kAlong == j % kAlong) shared[warp][i * kAcross + lane / kAlong][j] = sum;
      }
    }
    __syncthreads();
    tile.store(args, shared);
  }

  static __device__ __forceinline__ void multiply(const SpmmArgs& args, const Tile& tile, unsigned ring, int warp, int lane, Sums& c) {
    const IndexView<BLOCK_ROWS, BLOCK_COLS> index(args.index, args.rows, args.cols, args.nnz);
    const int64 strip = tile.strip, block_row = strip / Tile::kStrips;
    const int begin = __ldg(index.crow() + block_row), blocks = __ldg(index.crow() + block_row + 1) - begin;
    const int* columns = index.col() + begin;
    // This lane's first row of the strip.
    const Storage* values = static_cast<const Storage*>(args.values) + int64(begin) * (BLOCK_ROWS * BLOCK_COLS) +
                            (int(strip % Tile::kStrips) * TILE_M + lane / kAlong) * BLOCK_COLS;
    const Storage* dense = static_cast<const Storage*>(args.dense) + tile.batch * args.dense_batch_stride;
    const int runs = blocks * kRuns, chunks = (runs + kAlong - 1) / kAlong;
    // Fills a stage with the lane's runs of a chunk. Past the row's last run zeros are multiplied.
    const auto fill = [&](int stage, int chunk) {
      const int run = chunk * kAlong + lane % kAlong;
      const Storage* from = values + int64(run / kRuns) * (BLOCK_ROWS * BLOCK_COLS) + run % kRuns * kRun;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        ptx::cp_async_16(ring + (stage * kRows + i) * kStride, from + i * kAcross * BLOCK_COLS, run, runs);
      }
      ptx::cp_async_commit();
    };
    // Where the lane's run of a chunk begins along k.
    const auto place = [&](int chunk) {
      const int run = chunk * kAlong + lane % kAlong;
      return run < runs ? __ldg(columns + run / kRuns) * BLOCK_COLS + run % kRuns * kRun : int(args.cols);
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) fill(stage, warp + stage * kWarps);
    int at_k = place(warp), stage = 0;
#pragma unroll 1
    for (int chunk = warp; chunk < chunks; chunk += kWarps) {
      ptx::cp_async_wait<kStages - 2>();
      Run a[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        ptx::load_shared(reinterpret_cast<unsigned(&)[4]>(a[i]), ring + (stage * kRows + i) * kStride);
      }
      fill((stage + kStages - 1) % kStages, chunk + (kStages - 1) * kWarps);
      const int next = place(chunk + kWarps);
      multiply_runs(args, dense, at_k, tile.first_n, a, c);
      at_k = next;
      stage = (stage + 1) % kStages;
    }
    ptx::cp_async_wait<0>();
  }

  // c += the lane's runs of its rows times the same k of each column. Contiguous extents are multiples of 16 bytes here, so a run is entirely
  // inside the operand or outside.
  static __device__ __forceinline__ void multiply_runs(const SpmmArgs& args, const Storage* dense, int at_k, int64 first_n,
                                                       const Run (&a)[kRows], Sums& c) {
    if constexpr (DENSE_K_CONTIGUOUS) {
      const Storage* from = dense + first_n * args.dense_ld + at_k;
#pragma unroll
      for (int j = 0; j < TILE_N; ++j, from += args.dense_ld) {
        Run b;
        load(b, from, first_n + j < args.n && at_k < args.cols);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int e = 0; e < kRun; ++e) c[i][j] += a[i][e] * b[e];
        }
      }
    } else {
#pragma unroll
      for (int e = 0; e < kRun; ++e) {
#pragma unroll
        for (int j = 0; j < TILE_N; j += kRun) {
          Run b;
          load(b, dense + int64(at_k + e) * args.dense_ld + first_n + j, first_n + j < args.n && at_k + e < args.cols);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int along = 0; along < kRun; ++along) c[i][j + along] += a[i][e] * b[along];
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void load(Run& to, const Storage* from, bool inside) {
    ptx::load(reinterpret_cast<unsigned(&)[4]>(to), from, inside);
  }

  static int64 grid(const SpmmArgs& args) { return Tile::grid(args); }
};

}  // namespace jitsparse
