// Block-sparse x dense on Hopper's warpgroup tensor cores (sm_90a): wgmma reads both operands from shared memory, so
// no registers and no shared-memory bandwidth go into fragments. spmm_pipeline.cuh brings the operands.
//
// The multiplication of a stage runs while the copies of a later one are issued and while the next barrier is
// waited for: a buffer is free again two stages after it was filled.
#pragma once

#include "../../abi.h"
#include "../ptx/wgmma.cuh"
#include "../tile/order.cuh"
#include "../tile/product_epilogue.cuh"
#include "../tile/warpgroup.cuh"
#include "spmm_pipeline.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED,
          int TILE_N, int GROUPS_N, int STAGES>
struct SpmmWgmma {
  static constexpr int TILE_M = FLIPPED ? BLOCK_COLS : BLOCK_ROWS, TILE_K = 64;
  static constexpr int GROUPS_M = TILE_M / 64;  // warpgroups down and across the tile
  static constexpr int kThreads = 128 * GROUPS_M * GROUPS_N;
  static constexpr int GROUP_N = TILE_N / GROUPS_N;
  static constexpr int kAhead = STAGES - 2;
  using Pipeline = SpmmPipeline<Element, BLOCK_ROWS, BLOCK_COLS, FLIPPED, DENSE_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K,
                                kThreads, STAGES, kAhead, /*MAX_COLUMNS=*/64>;
  static_assert(Pipeline::kSlots == 1, "a stage is a block or a part of one");
  using Product = WarpgroupProduct<Element, GROUP_N, !FLIPPED, DENSE_K_CONTIGUOUS, TILE_K>;

  static constexpr int kStagedBytes = StagedTile<Element, 16, GROUP_N, OUT_TRANSPOSED>::kBytes;  // of one warp
  static constexpr int kUsedBytes =
      Pipeline::kBytes > kThreads / 32 * kStagedBytes ? Pipeline::kBytes : kThreads / 32 * kStagedBytes;
  static constexpr int kSharedBytes = kUsedBytes + 1024;  // to begin at a multiple of 1024
  static constexpr int kGroupedPanels = 16;

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    extern __shared__ unsigned char unaligned[];
    unsigned char* shared = unaligned + (-__cvta_generic_to_shared(unaligned) & 1023);
    const int thread = threadIdx.x, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0);
    const int group_m = warp / 4 / GROUPS_N, group_n = warp / 4 % GROUPS_N;
    const TileCoordinates tile =
        grouped_order<kGroupedPanels>(blockIdx.x, Pipeline::panels(args), Pipeline::column_tiles(args));
    const int64 first_m = tile.row * TILE_M, first_n = tile.column * TILE_N;

    typename Pipeline::Stream stream(args, tile.row, first_n, tile.batch, shared, thread);
    stream.start(thread);

    // The warpgroup's 64 rows of the block, and its columns of the dense tile. Either is 64 rows further down, or
    // in the next tile of 64 columns, which is as far.
    const unsigned block_offset = group_m * 64 * 128;
    const unsigned dense_offset = Pipeline::kBlockBytes + group_n * GROUP_N * 128;
    unsigned filled = stream.buffers, free = stream.buffers + kAhead * Pipeline::kStageBytes;
    typename Product::Accumulators c = {};
    for (int stage = 0; stage < stream.stage_count; ++stage) {
      ptx::cp_async_wait<kAhead - 1>();
      ptx::fence_proxy_async();
      __syncthreads();
      Product::start(c, filled + block_offset, filled + dense_offset);
      ptx::wgmma_wait<1>();
      stream.advance(stage + kAhead, free, thread);
      filled = stream.next(filled);
      free = stream.next(free);
    }
    Product::finish(c);
    ptx::cp_async_wait<0>();
    __syncthreads();
    store_product<Element, OUT_TRANSPOSED, 16, GROUP_N>(args, c, Pipeline::m(args), tile.batch,
                                                        first_m + group_m * 64 + warp % 4 * 16, first_n + group_n * GROUP_N,
                                                        shared + warp * kStagedBytes, lane);
  }

  static int64 grid(const SpmmArgs& args) { return Pipeline::grid(args); }
};

}  // namespace jitsparse
