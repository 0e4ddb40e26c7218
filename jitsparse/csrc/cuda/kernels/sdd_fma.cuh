// Dense x dense at the blocks of a pattern in IEEE float32: CUDA cores, fed by cp.async (sm_80 and later).
//
// A tile is one block row high and gathers blocks of that row, so everything that it multiplies is stored. With SPLIT the last tiles are
// split along k (sdd_tail.cuh).
#pragma once

#include "../../abi.h"
#include "../ptx/special_register.cuh"
#include "../tile/fma_tile.cuh"
#include "../tile/order.cuh"
#include "../tile/stage_loop.cuh"
#include "sdd_pipeline.cuh"
#include "sdd_tail.cuh"
#include "sdd_tail_sum.cuh"

namespace jitsparse {

template <int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_M, int TILE_N, int TILE_K,
          int WARPS_M, int WARPS_N, int STAGES, int MIN_CTAS, bool SPLIT>
struct SddFma {
  static constexpr int kTileM = TILE_M, kTileN = TILE_N;
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N, kMinCtas = MIN_CTAS;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  using Pipeline = SddPipeline<F32, BLOCK_ROWS, BLOCK_COLS, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K,
                               kThreads, STAGES>;
  using Storage = typename Pipeline::Storage;
  static_assert(Pipeline::kGroup == 1, "a tile is one block row");
  static constexpr int kGroupedPanels = 16;
  using Tail = SddTail<Pipeline, kGroupedPanels>;
  using Sum = SddTailSum<SddFma>;
  static constexpr int kColumnsAt = Pipeline::kBytes, kTailAt = kColumnsAt + Pipeline::kColumns * 16;
  static constexpr int kSharedBytes = kTailAt + (SPLIT ? Tail::kBytes : 0);

  // Gathered columns stacked in shared memory form one tall tile.
  using RightTile = SharedTile<F32, RIGHT_K_CONTIGUOUS ? TILE_N : TILE_K, RIGHT_K_CONTIGUOUS ? TILE_K : TILE_N,
                               !RIGHT_K_CONTIGUOUS>;
  using Product = FmaTile<typename Pipeline::LeftTile, RightTile, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, WARP_M, WARP_N, TILE_K>;

  // A thread's place in the tile.
  struct WarpTile {
    int thread, lane_m, lane_n, warp_m, warp_n;

    __device__ __forceinline__ WarpTile()
        : thread(ptx::thread_index()), lane_m(Product::lane_m(thread % 32)), lane_n(Product::lane_n(thread % 32)),
          warp_m(thread / 32 / WARPS_N * WARP_M), warp_n(thread / 32 % WARPS_N * WARP_N) {}
  };

  static __device__ __forceinline__ void run(const SddArgs& args) {
    if constexpr (SPLIT) {
      run_piece(args);
    } else {
      run_tile(args);
    }
  }

  static __device__ __forceinline__ void run_tile(const SddArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    int4* columns = reinterpret_cast<int4*>(shared + kColumnsAt);
    const TileCoordinates tile = coordinates(args);
    if (!Pipeline::find_columns(args, tile.row, tile.column, columns, ptx::thread_index())) return;
    typename Product::Accumulators c = {};
    accumulate(args, tile.row, columns, shared, 0, Pipeline::stage_count(args), c);
    store(args, columns, c);
    Pipeline::clear_past_edge(args, coordinates(args).row, columns, ptx::thread_index());  // rather than keeping the row in a register
  }

  // A tile, or a split-K part of one.
  static __device__ __forceinline__ void run_piece(const SddArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    int4* columns = reinterpret_cast<int4*>(shared + kColumnsAt);
    const typename Tail::Piece& piece = Tail(args, shared + kTailAt, ptx::block_index()).known.piece;
    if (piece.end == 0) return;
    Pipeline::find_columns(args, piece.tile.row, piece.tile.column, columns, ptx::thread_index());
    typename Product::Accumulators c = {};
    accumulate(args, piece.tile.row, columns, shared, piece.begin, piece.end, c);
    if (piece.slot < 0) {
      store(args, columns, c);
      Pipeline::clear_past_edge(args, piece.tile.row, columns, ptx::thread_index());
    } else {
      store_partial(args, piece.slot, columns, c);
    }
  }

  static __device__ __forceinline__ TileCoordinates coordinates(const SddArgs& args) {
    return grouped_order(ptx::block_index(), Pipeline::panels(args), Pipeline::column_tiles(args), kGroupedPanels);
  }

  // Accumulates the stages from `begin` to `end`.
  static __device__ __forceinline__ void accumulate(const SddArgs& args, int64 panel, const int4* columns, unsigned char* shared,
                                                    int begin, int end, typename Product::Accumulators& c) {
    const WarpTile mine;
    typename Pipeline::Stream stream(args, panel, columns, shared, end, mine.thread);
    stream.start(begin);
    const unsigned left_offset = Product::Left::lane_offset(mine.warp_m, mine.lane_m);
    const unsigned right_offset = Pipeline::kLeftBytes + Product::Right::lane_offset(mine.warp_n, mine.lane_n);
    // A row's last tile is filled from the left: its last warps may have nothing to do.
    const bool any = columns[mine.warp_n / BLOCK_COLS].y;
    for_each_stage<Pipeline>(stream, begin, end, [&](int, unsigned buffer) {
      if (any) Product::multiply(c, buffer + left_offset, buffer + right_offset);
    });
  }

  static __device__ __forceinline__ void store(const SddArgs& args, const int4* columns, const typename Product::Accumulators& c) {
    const WarpTile mine;
    Product::template for_each_run<false>(c, mine.lane_m, mine.lane_n, [&](int m, int n, const auto& run) {
      const int4 column = columns[(mine.warp_n + n) / BLOCK_COLS];
      if (!column.y) return;
      const int in_block = (mine.warp_m + m) * BLOCK_COLS + (mine.warp_n + n) % BLOCK_COLS;
      store_run(Pipeline::block_of(args, column, 0) + in_block, run);
    });
  }

  // Stores the sum of a split-K part in its slot.
  static __device__ __forceinline__ void store_partial(const SddArgs& args, int slot, const int4* columns,
                                               const typename Product::Accumulators& c) {
    const WarpTile mine;
    float* to = static_cast<float*>(args.workspace) + int64(slot) * (TILE_M * TILE_N) + mine.warp_m * TILE_N + mine.warp_n;
    Product::template for_each_run<false>(c, mine.lane_m, mine.lane_n, [&](int m, int n, const auto& run) {
      if (columns[(mine.warp_n + n) / BLOCK_COLS].y) store_run(to + m * TILE_N + n, run);
    });
  }

  static int64 grid(const SddArgs& args) { return SPLIT ? Tail::grid(args) : Pipeline::grid(args); }

  // Parameters of the kernel that adds the parts of split tiles.
  static SddArgs sum(const SddArgs& args) { return args; }
};

}  // namespace jitsparse
