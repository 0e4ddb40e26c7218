// Dense x dense at the blocks of a pattern, on Hopper's warpgroup tensor cores (sm_90a). sdd_pipeline.cuh brings the
// operands; the order of the main loop is that of spmm_wgmma.cuh.
#pragma once

#include "../../abi.h"
#include "../ptx/wgmma.cuh"
#include "../tile/order.cuh"
#include "../tile/store_tile.cuh"
#include "../tile/warpgroup.cuh"
#include "sdd_pipeline.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_N,
          int GROUPS_N, int STAGES>
struct SddWgmma {
  static constexpr int TILE_M = BLOCK_ROWS, TILE_K = 64;
  static constexpr int GROUPS_M = TILE_M / 64;  // warpgroups down and across the tile
  static constexpr int kThreads = 128 * GROUPS_M * GROUPS_N;
  static constexpr int GROUP_N = TILE_N / GROUPS_N;
  static constexpr int kAhead = STAGES - 2;
  using Pipeline = SddPipeline<Element, BLOCK_ROWS, BLOCK_COLS, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K,
                               kThreads, STAGES, kAhead, /*MAX_COLUMNS=*/64>;
  using Product = WarpgroupProduct<Element, GROUP_N, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, TILE_K>;

  // A warp has 16 rows of each of its blocks, or of a part of one.
  static constexpr int kPartN = GROUP_N < BLOCK_COLS ? GROUP_N : BLOCK_COLS;
  static constexpr int kWarpColumns = GROUP_N / kPartN;
  using Staged = StagedTile<Element, 16, kPartN, false>;

  static constexpr int kStagedBytes = kThreads / 32 * Staged::kBytes;
  static constexpr int kColumnsAt = Pipeline::kBytes > kStagedBytes ? Pipeline::kBytes : kStagedBytes;
  static constexpr int kSharedBytes = kColumnsAt + Pipeline::kColumns * 16 + 1024;  // to begin at a multiple of 1024
  static constexpr int kGroupedPanels = 16;

  static __device__ __forceinline__ void run(const SddArgs& args) {
    extern __shared__ unsigned char unaligned[];
    unsigned char* shared = unaligned + (-__cvta_generic_to_shared(unaligned) & 1023);
    int4* columns = reinterpret_cast<int4*>(shared + kColumnsAt);
    const int thread = threadIdx.x, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0);
    const int group_m = warp / 4 / GROUPS_N, group_n = warp / 4 % GROUPS_N;
    const TileCoordinates tile =
        grouped_order<kGroupedPanels>(blockIdx.x, Pipeline::panels(args), Pipeline::column_tiles(args));
    if (!Pipeline::find_columns(args, tile.row, tile.column, columns, thread)) return;

    typename Pipeline::Stream stream(args, tile.row, columns, shared, thread);
    stream.start();
    const unsigned left_offset = group_m * 64 * 128;
    const unsigned right_offset = Pipeline::kLeftBytes + group_n * GROUP_N * 128;
    unsigned filled = stream.buffers, free = stream.buffers + kAhead * Pipeline::kStageBytes;
    typename Product::Accumulators c = {};
    for (int stage = 0; stage < stream.stage_count; ++stage) {
      ptx::cp_async_wait<kAhead - 1>();
      ptx::fence_proxy_async();
      __syncthreads();
      Product::start(c, filled + left_offset, filled + right_offset);
      ptx::wgmma_wait<1>();
      stream.advance(stage + kAhead, free);
      filled = stream.next(filled);
      free = stream.next(free);
    }
    Product::finish(c);
    ptx::cp_async_wait<0>();
    __syncthreads();

    auto* staged = reinterpret_cast<typename Element::Storage*>(shared + warp * Staged::kBytes);
    const int in_block = (group_m * 64 + warp % 4 * 16) * BLOCK_COLS + group_n * GROUP_N % BLOCK_COLS;
#pragma unroll
    for (int u = 0; u < kWarpColumns; ++u) {
      const int4 column = columns[group_n * GROUP_N / BLOCK_COLS + u];
      if (column.y == 0) continue;
      auto* out = Pipeline::block_of(args, column, 0) + in_block;
      __syncwarp();
      Staged::write(staged, reinterpret_cast<float(&)[1][kPartN / 8][4]>(c[0][u * (kPartN / 8)]), lane);
      __syncwarp();
      Staged::copy_out(staged, out, BLOCK_COLS, 16, kPartN, lane);
    }
  }

  static int64 grid(const SddArgs& args) { return Pipeline::grid(args); }
};

}  // namespace jitsparse
