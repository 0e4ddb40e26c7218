// Block-sparse x dense where the dense operand has few columns: bound by how fast the stored values are read.
//
// Values and dense operand, which has to be k-major too, are loaded from global memory straight into fragments of mma.sync, 32 of k at a
// time.
#pragma once

#include "../../abi.h"
#include "../ptx/load.cuh"
#include "../tile/element.cuh"
#include "spmm_thin_tile.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool OUT_TRANSPOSED, int TILE_M, int TILE_N>
struct SpmmThin {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kMinCtas = 2;
  using Tile = SpmmThinTile<Element, BLOCK_ROWS, OUT_TRANSPOSED, TILE_M, TILE_N, kWarps>;
  using Storage = typename Tile::Storage;

  // A chunk is what a warp multiplies at once. A lane reads a quarter of each row of the chunk, kWords consecutive words of two elements.
  // Which k an element of a fragment stands for does not matter as long as both operands agree, so the words that a lane has read are its
  // fragments, without a permutation.
  static constexpr int kChunk = BLOCK_COLS < 32 ? BLOCK_COLS : 32, kWords = kChunk / 8;
  static constexpr int kChunks = BLOCK_COLS / kChunk;  // per block
  static constexpr int kMmas = kWords / 2;             // along k
  static constexpr int kAhead = TILE_M > 16 ? 2 : 4;   // chunks whose values are in flight
  using Words = unsigned[kWords];

  using Sums = float[TILE_M / 16][TILE_N / 8][4];
  static constexpr int kSharedBytes = 0;

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    __shared__ typename Tile::Sums shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Tile tile(args);
    Sums c = {};
    multiply(args, tile, warp, lane, c);
#pragma unroll
    for (int i = 0; i < TILE_M / 16; ++i) {
#pragma unroll
      for (int j = 0; j < TILE_N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) shared[warp][i * 16 + e / 2 * 8 + lane / 4][j * 8 + lane % 4 * 2 + e % 2] = c[i][j][e];
      }
    }
    __syncthreads();
    tile.store(args, shared);
  }

  static __device__ __forceinline__ void multiply(const SpmmArgs& args, const Tile& tile, int warp, int lane, Sums& c) {
    const IndexView<BLOCK_ROWS, BLOCK_COLS> index(args.index, args.rows, args.cols, args.nnz);
    const int64 strip = tile.strip, block_row = strip / Tile::kStrips;
    const int begin = __ldg(index.crow() + block_row), blocks = __ldg(index.crow() + block_row + 1) - begin;
    const int* columns = index.col() + begin;
    // This lane's first row and column of the strip.
    const Storage* values = static_cast<const Storage*>(args.values) + int64(begin) * (BLOCK_ROWS * BLOCK_COLS) +
                            (int(strip % Tile::kStrips) * TILE_M + lane / 4) * BLOCK_COLS + lane % 4 * (2 * kWords);
    const Storage* dense = static_cast<const Storage*>(args.dense) + tile.batch * args.dense_batch_stride + lane % 4 * (2 * kWords);
    const int chunks = blocks * kChunks;
    for (int first = warp; first < chunks; first += kWarps * kAhead) {
      Words a[kAhead][TILE_M / 8];
      int at_k[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int chunk = first + u * kWarps;
        const bool valid = chunk < chunks;
        const int block = chunk / kChunks, part = chunk % kChunks * kChunk;
        const Storage* from = values + int64(block) * (BLOCK_ROWS * BLOCK_COLS) + part;
#pragma unroll
        for (int row = 0; row < TILE_M / 8; ++row) ptx::load_once(a[u][row], from + row * 8 * BLOCK_COLS, valid);
        // Past the row's last chunk zeros are multiplied: without a branch all loads can be in flight together.
        at_k[u] = valid ? __ldg(columns + block) * BLOCK_COLS + part : int(args.cols);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
#pragma unroll
        for (int j = 0; j < TILE_N / 8; ++j) {
          const int64 n = tile.first_n + j * 8 + lane / 4;
          // Extents are multiples of 16 bytes here, so a lane's words of a row are entirely inside the operand or outside.
          const bool inside = n < args.n && at_k[u] + lane % 4 * (2 * kWords) < args.cols;
          Words b;
          ptx::load(b, dense + n * args.dense_ld + at_k[u], inside);
#pragma unroll
          for (int i = 0; i < TILE_M / 16; ++i) {
#pragma unroll
            for (int s = 0; s < kMmas; ++s) {
              const unsigned left[4] = {a[u][2 * i][2 * s], a[u][2 * i + 1][2 * s], a[u][2 * i][2 * s + 1], a[u][2 * i + 1][2 * s + 1]};
              const unsigned right[2] = {b[2 * s], b[2 * s + 1]};
              Element::mma(c[i][j], left, right);
            }
          }
        }
      }
    }
  }

  static int64 grid(const SpmmArgs& args) { return Tile::grid(args); }
};

}  // namespace jitsparse
