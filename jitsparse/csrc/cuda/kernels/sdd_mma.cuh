// Dense x dense at the blocks of a pattern, on mma.sync tensor cores (sm_80 and later). sdd_pipeline.cuh brings the
// operands; every warp multiplies the blocks of its part of the tile that are in the pattern.
#pragma once

#include "../../abi.h"
#include "../tile/order.cuh"
#include "../tile/store_tile.cuh"
#include "sdd_pipeline.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_M,
          int TILE_N, int TILE_K, int WARPS_M, int WARPS_N, int STAGES>
struct SddMma {
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  static constexpr int kAhead = STAGES - 1;
  using Pipeline = SddPipeline<Element, BLOCK_ROWS, BLOCK_COLS, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K,
                               kThreads, STAGES, kAhead>;
  static constexpr int kColumns = Pipeline::kColumns;
  static_assert(WARP_M % BLOCK_ROWS == 0 || BLOCK_ROWS % WARP_M == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_N % BLOCK_COLS == 0 || BLOCK_COLS % WARP_N == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_N % 16 == 0 && BLOCK_ROWS % 16 == 0 && BLOCK_COLS % 16 == 0, "mma tile sizes");

  // The part of one block, or the blocks, that a warp multiplies.
  static constexpr int kPartM = WARP_M < BLOCK_ROWS ? WARP_M : BLOCK_ROWS;
  static constexpr int kPartN = WARP_N < BLOCK_COLS ? WARP_N : BLOCK_COLS;
  static constexpr int kWarpRows = WARP_M / kPartM, kWarpColumns = WARP_N / kPartN;
  static constexpr bool kAlwaysPresent = Pipeline::kGroup == 1 && kColumns == 1;

  // The right tile as the fragments see it: gathered columns one below the other are one tall tile.
  using LeftTile = typename Pipeline::LeftTile;
  using RightTile = SharedTile<Element, RIGHT_K_CONTIGUOUS ? TILE_N : TILE_K, RIGHT_K_CONTIGUOUS ? TILE_K : TILE_N,
                               Pipeline::kScalar && !RIGHT_K_CONTIGUOUS>;
  using LeftReads = LeftFragments<Element, LEFT_K_CONTIGUOUS, LeftTile>;
  using RightReads = RightFragments<Element, RIGHT_K_CONTIGUOUS, RightTile>;
  using Staged = StagedTile<Element, kPartM, kPartN, false>;

  static constexpr int kStagedBytes = kThreads / 32 * Staged::kBytes;
  static constexpr int kColumnsAt = Pipeline::kBytes > kStagedBytes ? Pipeline::kBytes : kStagedBytes;
  static constexpr int kSharedBytes = kColumnsAt + kColumns * 16;
  static constexpr int kGroupedPanels = 16;

  using Accumulators = float[kWarpRows][kWarpColumns][kPartM / 16][kPartN / 8][4];

  static __device__ __forceinline__ void multiply(Accumulators& c, const int (&masks)[kWarpColumns], unsigned left,
                                                  unsigned right) {
    int any = 0;
#pragma unroll
    for (int u = 0; u < kWarpColumns; ++u) any |= masks[u];
#pragma unroll
    for (int k = 0; k < TILE_K; k += Element::kMmaK) {
      unsigned b[WARP_N / 16][4];
#pragma unroll
      for (int j = 0; j < WARP_N / 16; ++j) RightReads::load(b[j], right, j * 16, k);
#pragma unroll
      for (int g = 0; g < kWarpRows; ++g) {
        if (!kAlwaysPresent && !(any >> g & 1)) continue;
#pragma unroll
        for (int i = 0; i < kPartM / 16; ++i) {
          unsigned a[4];
          LeftReads::load(a, left, g * kPartM + i * 16, k);
#pragma unroll
          for (int u = 0; u < kWarpColumns; ++u) {
            if (!kAlwaysPresent && kWarpColumns > 1 && !(masks[u] >> g & 1)) continue;
#pragma unroll
            for (int j = 0; j < kPartN / 8; ++j) {
              const int at = u * (kPartN / 8) + j;
              Element::mma(c[g][u][i][j], a, b[at / 2][at % 2 * 2], b[at / 2][at % 2 * 2 + 1]);
            }
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void run(const SddArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    int4* columns = reinterpret_cast<int4*>(shared + kColumnsAt);
    // The shuffles tell the compiler that a value is the same in all lanes.
    const int thread = threadIdx.x, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0);
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    const TileCoordinates tile =
        grouped_order<int64>(blockIdx.x, Pipeline::panels(args), Pipeline::column_tiles(args), kGroupedPanels);
    if (!Pipeline::find_columns(args, tile.row, tile.column, columns, thread)) return;

    // The blocks of this warp: bit g of masks[u] says that row g of its rows stores its column u.
    int masks[kWarpColumns];
    const int first_group = warp_m * WARP_M / BLOCK_ROWS, first_column = warp_n * WARP_N / BLOCK_COLS;
#pragma unroll
    for (int u = 0; u < kWarpColumns; ++u) {
      masks[u] = __shfl_sync(~0u, columns[first_column + u].y >> first_group & ((1 << kWarpRows) - 1), 0);
    }

    typename Pipeline::Stream stream(args, tile.row, columns, shared, Pipeline::stage_count(args), thread);
    stream.start();
    const unsigned left_offset =
        LeftTile::moved(LeftReads::lane_offset(lane), LEFT_K_CONTIGUOUS ? warp_m * WARP_M : 0,
                        LEFT_K_CONTIGUOUS ? 0 : warp_m * WARP_M / LeftTile::kPerChunk);
    const unsigned right_offset =
        Pipeline::kLeftBytes + RightTile::moved(RightReads::lane_offset(lane), RIGHT_K_CONTIGUOUS ? warp_n * WARP_N : 0,
                                                RIGHT_K_CONTIGUOUS ? 0 : warp_n * WARP_N / RightTile::kPerChunk);
    unsigned filled = stream.buffers, free = stream.buffers + kAhead * Pipeline::kStageBytes;
    Accumulators c = {};
    for (int stage = 0; stage < stream.end; ++stage) {
      ptx::cp_async_wait<kAhead - 1>();
      __syncthreads();
      stream.advance(stage + kAhead, free);
      multiply(c, masks, filled + left_offset, filled + right_offset);
      filled = stream.next(filled);
      free = stream.next(free);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();

    auto* staged = reinterpret_cast<typename Element::Storage*>(shared + warp * Staged::kBytes);
    const int in_block = warp_m * WARP_M % BLOCK_ROWS * BLOCK_COLS + warp_n * WARP_N % BLOCK_COLS;
#pragma unroll
    for (int g = 0; g < kWarpRows; ++g) {
#pragma unroll
      for (int u = 0; u < kWarpColumns; ++u) {
        if (!(masks[u] >> g & 1)) continue;
        auto* out = Pipeline::block_of(args, columns[first_column + u], first_group + g) + in_block;
        __syncwarp();
        Staged::write(staged, c[g][u], lane);
        __syncwarp();
        Staged::copy_out(staged, out, BLOCK_COLS, kPartM, kPartN, lane);
      }
    }
    Pipeline::clear_past_edge(args, tile.row, columns, thread);
  }

  static int64 grid(const SddArgs& args) { return Pipeline::grid(args); }
};

}  // namespace jitsparse
