// Block-sparse x dense on the CUDA cores: any dtype, any alignment, any strides. The fallback that is always correct.
//
// Role form as in spmm_pipeline.cuh. A CTA computes TILE_M rows of one block row times TILE_N columns.
#pragma once

#include "../../abi.h"
#include "../tile/activation.cuh"
#include "../tile/element.cuh"
#include "../tile/order.cuh"
#include "../tile/simt_tile.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS,
          bool OUT_TRANSPOSED, int TILE_M, int TILE_N>
struct SpmmSimt {
  using Storage = typename Element::Storage;
  using Accumulator = typename Element::Accumulator;
  static constexpr int kBlockM = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;
  static constexpr int kBlockK = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kStripsPerBlock = kBlockM / TILE_M;
  static_assert(kBlockM % TILE_M == 0, "a tile lies inside one block row");
  static constexpr int kDepth = kBlockK < 16 ? kBlockK : 16;
  using Tile = SimtTile<Accumulator, TILE_M, TILE_N, kDepth>;
  static constexpr int kThreads = Tile::kThreads, kMinCtas = TILE_M == 8 ? 5 : 1;  // with 8 rows, four are up to 1.15 times as slow
  static constexpr int kSharedBytes = 0;
  static constexpr int kGroupedPanels = 16;

  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  static JITSPARSE_HD int64 m(const SpmmArgs& args) { return FLIPPED ? args.cols : args.rows; }
  static JITSPARSE_HD int64 k(const SpmmArgs& args) { return FLIPPED ? args.rows : args.cols; }
  static JITSPARSE_HD int64 row_tiles(const SpmmArgs& args) { return div_up(m(args), TILE_M); }
  static JITSPARSE_HD int64 column_tiles(const SpmmArgs& args) { return div_up(args.n, TILE_N); }

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    __shared__ typename Tile::Shared shared;
    const TileCoordinates tile = grouped_order(blockIdx.x, row_tiles(args), column_tiles(args), kGroupedPanels);
    const int64 block_row = tile.row / kStripsPerBlock, first_m = tile.row * TILE_M, first_n = tile.column * TILE_N;
    const int row_in_block = int(tile.row % kStripsPerBlock) * TILE_M;

    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int* pointers = FLIPPED ? index.ccol() : index.crow();
    const int* minor = FLIPPED ? index.row_t() : index.col();
    const Storage* values = static_cast<const Storage*>(args.values);
    const Storage* dense = static_cast<const Storage*>(args.dense) + tile.batch * args.dense_batch_stride;
    const int64 ld = args.dense_ld, k_extent = k(args);

    Tile product;
    for (int step = pointers[block_row]; step < pointers[block_row + 1]; ++step) {
      const int64 position = FLIPPED ? index.perm()[step] : step;
      const Storage* block = values + position * (kBlockM * kBlockK);
      for (int chunk = 0; chunk < kBlockK; chunk += kDepth) {
        const int64 first_k = int64(minor[step]) * kBlockK + chunk;
        product.template multiply<!FLIPPED, DENSE_K_CONTIGUOUS>(
            shared,
            [&](int i, int p) {
              const int row = row_in_block + i, column = chunk + p;
              return Element::load(block[FLIPPED ? column * kBlockM + row : row * kBlockK + column]);
            },
            [&](int p, int j) {
              const int64 at_k = first_k + p, n = first_n + j;
              return at_k < k_extent && n < args.n ? Element::load(dense[DENSE_K_CONTIGUOUS ? n * ld + at_k : at_k * ld + n])
                                                   : Accumulator(0);
            });
      }
    }

    if (OUT_TRANSPOSED && args.bias != nullptr) {
      const Storage* bias = static_cast<const Storage*>(args.bias);
      product.for_each([&](int i, int, Accumulator& x) { x += first_m + i < m(args) ? Element::load(bias[first_m + i]) : 0; });
    }
    apply_activation<Element>(product.values(), args.activation);
    Storage* out = static_cast<Storage*>(args.out) + tile.batch * args.out_batch_stride;
    product.for_each([&](int i, int j, Accumulator x) {
      const int64 at_m = first_m + i, n = first_n + j;
      if (at_m >= m(args) || n >= args.n) return;
      out[OUT_TRANSPOSED ? n * args.out_ld + at_m : at_m * args.out_ld + n] = Element::store(x);
    });
  }

  static int64 grid(const SpmmArgs& args) { return row_tiles(args) * column_tiles(args) * args.batch; }
};

}  // namespace jitsparse
