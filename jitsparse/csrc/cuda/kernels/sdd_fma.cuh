// Dense x dense at the blocks of a pattern in IEEE float32: ordinary cores, fed by cp.async (sm_80 and later).
//
// A tile is one block row high and gathers blocks of that row: all that it multiplies is stored.
#pragma once

#include "../../abi.h"
#include "../ptx/special_register.cuh"
#include "../tile/fma_tile.cuh"
#include "../tile/order.cuh"
#include "sdd_pipeline.cuh"

namespace jitsparse {

template <int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_M, int TILE_N, int TILE_K,
          int WARPS_M, int WARPS_N, int STAGES>
struct SddFma {
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  static constexpr int kAhead = STAGES - 1;
  using Pipeline = SddPipeline<F32, BLOCK_ROWS, BLOCK_COLS, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K,
                               kThreads, STAGES, kAhead>;
  static_assert(Pipeline::kGroup == 1, "a tile is one block row");
  static constexpr int kSharedBytes = Pipeline::kBytes + Pipeline::kColumns * 16;
  static constexpr int kGroupedPanels = 16;

  // Gathered columns that lie one below the other are one tall tile.
  using RightTile = SharedTile<F32, RIGHT_K_CONTIGUOUS ? TILE_N : TILE_K, RIGHT_K_CONTIGUOUS ? TILE_K : TILE_N,
                               !RIGHT_K_CONTIGUOUS>;
  using Product = FmaTile<typename Pipeline::LeftTile, RightTile, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, WARP_M, WARP_N, TILE_K>;

  // Which part of the tile a thread has.
  struct Part {
    int thread, lane_m, lane_n, warp_m, warp_n;

    __device__ __forceinline__ Part()
        : thread(ptx::thread_index()), lane_m(Product::lane_m(thread % 32)), lane_n(Product::lane_n(thread % 32)),
          warp_m(thread / 32 / WARPS_N * WARP_M), warp_n(thread / 32 % WARPS_N * WARP_N) {}
  };

  static __device__ __forceinline__ void run(const SddArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    int4* columns = reinterpret_cast<int4*>(shared + Pipeline::kBytes);
    const TileCoordinates tile = coordinates(args);
    if (!Pipeline::find_columns(args, tile.row, tile.column, columns, ptx::thread_index())) return;
    typename Product::Accumulators c = {};
    accumulate(args, tile.row, columns, shared, c);
    store(args, columns, c);
    Pipeline::clear_past_edge(args, coordinates(args).row, columns, ptx::thread_index());  // rather than keeping the row in a register
  }

  static __device__ __forceinline__ TileCoordinates coordinates(const SddArgs& args) {
    return grouped_order<int>(ptx::block_index(), int(Pipeline::panels(args)), int(Pipeline::column_tiles(args)), kGroupedPanels);
  }

  static __device__ __forceinline__ void accumulate(const SddArgs& args, int64 panel, const int4* columns, unsigned char* shared,
                                                    typename Product::Accumulators& c) {
    const Part part;
    typename Pipeline::Stream stream(args, panel, columns, shared, part.thread);
    stream.start();
    const unsigned left_offset = Product::Left::lane_offset(part.warp_m, part.lane_m);
    const unsigned right_offset = Pipeline::kLeftBytes + Product::Right::lane_offset(part.warp_n, part.lane_n);
    // A row's last tile is filled from the left: its last warps may have nothing to do.
    const bool any = columns[part.warp_n / BLOCK_COLS].y;
    unsigned filled = stream.buffers, free = stream.buffers + kAhead * Pipeline::kStageBytes;
    for (int stage = 0; stage < stream.stage_count; ++stage) {
      ptx::cp_async_wait<kAhead - 1>();
      __syncthreads();
      stream.advance(stage + kAhead, free);
      if (any) Product::multiply(c, filled + left_offset, filled + right_offset);
      filled = stream.next(filled);
      free = stream.next(free);
    }
  }

  static __device__ __forceinline__ void store(const SddArgs& args, const int4* columns, const typename Product::Accumulators& c) {
    const Part part;
    Product::template for_each_run<false>(c, part.lane_m, part.lane_n, [&](int m, int n, const auto& run) {
      const int4 column = columns[(part.warp_n + n) / BLOCK_COLS];
      if (!column.y) return;
      const int in_block = (part.warp_m + m) * BLOCK_COLS + (part.warp_n + n) % BLOCK_COLS;
      store_run(Pipeline::block_of(args, column, 0) + in_block, run);
    });
  }

  static int64 grid(const SddArgs& args) { return Pipeline::grid(args); }
};

}  // namespace jitsparse
