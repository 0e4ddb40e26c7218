// The second kernel of an sdd whose last tiles are split along k: adds the parts of a tile, always in the same order.
#pragma once

#include "../../abi.h"
#include "../ptx/special_register.cuh"
#include "../tile/split_k.cuh"
#include "../tile/element.cuh"

namespace jitsparse {

// For a kernel whose slots hold tiles row by row, in float32.
template <typename Kernel>
struct SddTailSum {
  using Pipeline = typename Kernel::Pipeline;
  using Element = typename Pipeline::Element;
  using Tail = typename Kernel::Tail;
  static constexpr int kTileM = Kernel::kTileM, kTileN = Kernel::kTileN;
  static constexpr int kBlockRows = kTileM / Pipeline::kGroup, kBlockCols = Pipeline::kBlockCols;
  static constexpr int kThreads = 256, kMinCtas = 1, kSharedBytes = Tail::kBytes;
  static constexpr int kRows = kThreads * kSumsAtOnce / kTileN, kStrips = kTileM / kRows;  // rows added at a time; strips per tile
  static_assert(kThreads * kSumsAtOnce % kTileN == 0 && kTileM % kRows == 0, "a tile is a whole number of strips");

  using Params = SddArgs;  // those of the first kernel

  static __device__ __forceinline__ void run(const SddArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Tail tail(args, shared, /*cta=*/0);
    const int parts = tail.parts();
    if (parts == 1) return;  // the results are in `out` already
    const int e = ptx::thread_index() * kSumsAtOnce, n = e % kTileN;
    for (int strip = ptx::block_index(); strip < tail.divided() * kStrips; strip += gridDim.x) {
      const int number = strip / kStrips, m = strip % kStrips * kRows + e / kTileN, g = m / kBlockRows;
      const typename Tail::Coordinates tile = tail.coordinates(tail.whole() + number);
      const int4 column = Pipeline::column_of_tile(args, tile.row, tile.column, n / kBlockCols);
      if (!(column.y >> g & 1)) continue;
      float sum[kSumsAtOnce] = {};
      add_parts(sum, static_cast<const float*>(args.workspace), parts, kTileM * kTileN,
                int64(number) * parts * (kTileM * kTileN) + m * kTileN + n);
      // Zero past the edges of the matrix, as in Pipeline::clear_past_edge.
      const int64 columns_left = args.cols - int64(column.x) * kBlockCols - n % kBlockCols;
      const bool row_inside = int64(tile.row) * kTileM + m < args.rows;
#pragma unroll
      for (int i = 0; i < kSumsAtOnce; ++i) sum[i] = row_inside && i < columns_left ? sum[i] : 0.0f;
      store_sums_at<Element>(Pipeline::block_of(args, column, g) + m % kBlockRows * kBlockCols + n % kBlockCols, sum);
    }
  }

  static int64 grid(const SddArgs& args) { return args.parts; }
};

}  // namespace jitsparse
