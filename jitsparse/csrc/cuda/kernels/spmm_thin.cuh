// Block-sparse x dense where the dense operand has few columns: bound by how fast the stored values are read.
//
// Role form as in spmm_pipeline.cuh; the stored blocks are k-major, and so is the dense operand. A CTA computes TILE_M rows of one block
// row. Its warps share the row's values, 32 of k at a time, and load them from global memory straight into fragments of mma.sync; their
// sums are added in shared memory, always in the same order.
#pragma once

#include "../../abi.h"
#include "../ptx/load.cuh"
#include "../tile/activation.cuh"
#include "../tile/element.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool OUT_TRANSPOSED, int TILE_M, int TILE_N>
struct SpmmThin {
  using Storage = typename Element::Storage;
  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kMinCtas = 2;
  static constexpr int kStrips = BLOCK_ROWS / TILE_M;
  static_assert(BLOCK_ROWS % TILE_M == 0, "a tile lies inside one block row");

  // A chunk is what a warp multiplies at once. A lane reads a quarter of each row of the chunk, kWords consecutive words of two elements.
  // Which k an element of a fragment stands for does not matter as long as both operands agree, so the words that a lane has read are its
  // fragments, without a permutation.
  static constexpr int kChunk = BLOCK_COLS < 32 ? BLOCK_COLS : 32, kWords = kChunk / 8;
  static constexpr int kChunks = BLOCK_COLS / kChunk;  // per block
  static constexpr int kMmas = kWords / 2;             // along k
  static constexpr int kAhead = TILE_M > 16 ? 2 : 4;   // chunks whose values are in flight
  using Words = unsigned[kWords];

  using Sums = float[TILE_M / 16][TILE_N / 8][4];
  static constexpr int kPitch = TILE_N + 1;
  static constexpr int kSharedBytes = 0;

  static JITSPARSE_HD int64 strips(const SpmmArgs& args) { return div_up(args.rows, TILE_M); }
  static JITSPARSE_HD int64 column_tiles(const SpmmArgs& args) { return div_up(args.n, TILE_N); }

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    __shared__ float shared[kWarps][TILE_M][kPitch];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // In 32 bits, since a grid has fewer than 2^31 CTAs: a 64-bit division takes a hundred instructions, before the first load.
    const unsigned rows = unsigned(strips(args)), columns = unsigned(column_tiles(args));
    const unsigned strip = blockIdx.x % rows, rest = blockIdx.x / rows;
    const int64 first_n = int64(rest % columns) * TILE_N, batch = rest / columns;
    Sums c = {};
    multiply(args, strip, first_n, batch, warp, lane, c);
#pragma unroll
    for (int i = 0; i < TILE_M / 16; ++i) {
#pragma unroll
      for (int j = 0; j < TILE_N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) shared[warp][i * 16 + e / 2 * 8 + lane / 4][j * 8 + lane % 4 * 2 + e % 2] = c[i][j][e];
      }
    }
    __syncthreads();
    store(args, shared, int64(strip) * TILE_M, first_n, batch);
  }

  static __device__ __forceinline__ void multiply(const SpmmArgs& args, int64 strip, int64 first_n, int64 batch, int warp, int lane,
                                                  Sums& c) {
    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int64 block_row = strip / kStrips;
    const int begin = __ldg(index.crow() + block_row), blocks = __ldg(index.crow() + block_row + 1) - begin;
    const int* columns = index.col() + begin;
    // This lane's first row and column of the strip.
    const Storage* values = static_cast<const Storage*>(args.values) + int64(begin) * (BLOCK_ROWS * BLOCK_COLS) +
                            (int(strip % kStrips) * TILE_M + lane / 4) * BLOCK_COLS + lane % 4 * (2 * kWords);
    const Storage* dense = static_cast<const Storage*>(args.dense) + batch * args.dense_batch_stride + lane % 4 * (2 * kWords);
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
          const int64 n = first_n + j * 8 + lane / 4;
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

  static __device__ __forceinline__ void store(const SpmmArgs& args, const float (&sums)[kWarps][TILE_M][kPitch], int64 first_m,
                                               int64 first_n, int64 batch) {
    Storage* out = static_cast<Storage*>(args.out) + batch * args.out_batch_stride;
    for (int at = threadIdx.x; at < TILE_M * TILE_N; at += kThreads) {
      // Neighbouring threads write neighbouring elements.
      const int i = OUT_TRANSPOSED ? at % TILE_M : at / TILE_N, j = OUT_TRANSPOSED ? at / TILE_M : at % TILE_N;
      const int64 m = first_m + i, n = first_n + j;
      if (m >= args.rows || n >= args.n) continue;
      float sum[1] = {sums[0][i][j]};
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) sum[0] += sums[warp][i][j];
      if (OUT_TRANSPOSED && args.bias != nullptr) sum[0] += Element::load(static_cast<const Storage*>(args.bias)[m]);
      apply_activation<Element>(sum, args.activation);
      out[OUT_TRANSPOSED ? n * args.out_ld + m : m * args.out_ld + n] = Element::store(sum[0]);
    }
  }

  static int64 grid(const SpmmArgs& args) { return strips(args) * column_tiles(args) * args.batch; }
};

}  // namespace jitsparse
