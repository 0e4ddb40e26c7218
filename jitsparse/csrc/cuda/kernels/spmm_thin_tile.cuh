// The tile of a CTA of a product with few columns: TILE_M rows of one block row, TILE_N columns. The warps of the CTA share the row's values,
// and their sums are added in shared memory, always in the same order.
//
// Role form as in spmm_pipeline.cuh; the stored blocks are k-major.
#pragma once

#include "../../abi.h"
#include "../tile/activation.cuh"
#include "../tile/element.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, bool OUT_TRANSPOSED, int TILE_M, int TILE_N, int WARPS>
struct SpmmThinTile {
  using Storage = typename Element::Storage;
  using Accumulator = typename Element::Accumulator;
  using Sums = Accumulator[WARPS][TILE_M][TILE_N + 1];  // of each warp
  static constexpr int kThreads = 32 * WARPS;
  static constexpr int kStrips = BLOCK_ROWS / TILE_M;  // of a block row
  static_assert(BLOCK_ROWS % TILE_M == 0, "a tile lies inside one block row");

  static JITSPARSE_HD int64 strips(const SpmmArgs& args) { return div_up(args.rows, TILE_M); }
  static JITSPARSE_HD int64 column_tiles(const SpmmArgs& args) { return div_up(args.n, TILE_N); }
  static int64 grid(const SpmmArgs& args) { return strips(args) * column_tiles(args) * args.batch; }

  unsigned strip;
  int64 first_n, batch;

  __device__ __forceinline__ explicit SpmmThinTile(const SpmmArgs& args) {
    // In 32 bits, since a grid has fewer than 2^31 CTAs: a 64-bit division takes a hundred instructions, before the first load.
    const unsigned rows = unsigned(strips(args)), columns = unsigned(column_tiles(args));
    const unsigned rest = blockIdx.x / rows;
    strip = blockIdx.x % rows;
    first_n = int64(rest % columns) * TILE_N;
    batch = rest / columns;
  }

  // Adds the sums of all warps, applies bias and activation, and stores.
  __device__ __forceinline__ void store(const SpmmArgs& args, const Sums& sums) const {
    const int64 first_m = int64(strip) * TILE_M;
    Storage* out = static_cast<Storage*>(args.out) + batch * args.out_batch_stride;
    for (int at = threadIdx.x; at < TILE_M * TILE_N; at += kThreads) {
      // Neighbouring threads write neighbouring elements.
      const int i = OUT_TRANSPOSED ? at % TILE_M : at / TILE_N, j = OUT_TRANSPOSED ? at / TILE_M : at % TILE_N;
      const int64 m = first_m + i, n = first_n + j;
      if (m >= args.rows || n >= args.n) continue;
      Accumulator sum[1] = {sums[0][i][j]};
#pragma unroll
      for (int warp = 1; warp < WARPS; ++warp) sum[0] += sums[warp][i][j];
      if (OUT_TRANSPOSED && args.bias != nullptr) sum[0] += Element::load(static_cast<const Storage*>(args.bias)[m]);
      apply_activation<Element>(sum, args.activation);
      out[OUT_TRANSPOSED ? n * args.out_ld + m : m * args.out_ld + n] = Element::store(sum[0]);
    }
  }
};

}  // namespace jitsparse
