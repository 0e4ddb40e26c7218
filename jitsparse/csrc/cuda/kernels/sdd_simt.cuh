// Dense x dense at the blocks of a pattern on the CUDA cores: any dtype, any alignment, any strides.
#pragma once

#include "../../abi.h"
#include "../tile/element.cuh"
#include "../tile/simt_tile.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_M,
          int TILE_N>
struct SddSimt {
  using Storage = typename Element::Storage;
  using Accumulator = typename Element::Accumulator;
  static constexpr int kTilesPerBlockM = BLOCK_ROWS / TILE_M, kTilesPerBlockN = BLOCK_COLS / TILE_N;
  static_assert(BLOCK_ROWS % TILE_M == 0 && BLOCK_COLS % TILE_N == 0, "a tile lies inside one block");
  static constexpr int kDepth = 16;
  using Tile = SimtTile<Accumulator, TILE_M, TILE_N, kDepth>;
  static constexpr int kThreads = Tile::kThreads, kMinCtas = 1;
  static constexpr int kSharedBytes = 0;

  static __device__ __forceinline__ void run(const SddArgs& args) {
    __shared__ typename Tile::Shared shared;
    const int tile_in_block = blockIdx.x % (kTilesPerBlockM * kTilesPerBlockN);
    const int64 position = blockIdx.x / (kTilesPerBlockM * kTilesPerBlockN);
    const int row_in_block = tile_in_block / kTilesPerBlockN * TILE_M, column_in_block = tile_in_block % kTilesPerBlockN * TILE_N;
    const IndexView<BLOCK_ROWS, BLOCK_COLS> index(args.index, args.rows, args.cols, args.nnz);
    const int64 first_row = int64(index.row()[position]) * BLOCK_ROWS + row_in_block;
    const int64 first_column = int64(index.col()[position]) * BLOCK_COLS + column_in_block;

    Tile product;
    for (int64 batch = 0; batch < args.batch; ++batch) {
      const Storage* left = static_cast<const Storage*>(args.left) + batch * args.left_batch_stride;
      const Storage* right = static_cast<const Storage*>(args.right) + batch * args.right_batch_stride;
      for (int64 first_k = 0; first_k < args.k; first_k += kDepth) {
        product.template multiply<LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS>(
            shared,
            [&](int i, int p) {
              const int64 row = first_row + i, k = first_k + p;
              return row < args.rows && k < args.k
                         ? Element::load(left[LEFT_K_CONTIGUOUS ? row * args.left_ld + k : k * args.left_ld + row])
                         : Accumulator(0);
            },
            [&](int p, int j) {
              const int64 k = first_k + p, column = first_column + j;
              return column < args.cols && k < args.k
                         ? Element::load(right[RIGHT_K_CONTIGUOUS ? column * args.right_ld + k : k * args.right_ld + column])
                         : Accumulator(0);
            });
      }
    }
    Storage* out = static_cast<Storage*>(args.out) + position * (BLOCK_ROWS * BLOCK_COLS);
    product.for_each([&](int i, int j, Accumulator x) {
      // Infinity times the zeros loaded past the edge is NaN.
      const bool inside = first_row + i < args.rows && first_column + j < args.cols;
      out[(row_in_block + i) * BLOCK_COLS + column_in_block + j] = Element::store(inside ? x : Accumulator(0));
    });
  }

  static int64 grid(const SddArgs& args) { return args.nnz * kTilesPerBlockM * kTilesPerBlockN; }
};

}  // namespace jitsparse
