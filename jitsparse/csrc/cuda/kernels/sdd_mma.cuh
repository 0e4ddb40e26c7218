// Dense x dense at the blocks of a pattern, on mma.sync tensor cores with cp.async pipelines (sm_80 and later).
//
// A CTA takes a panel of TILE_M rows and kColumns of the block columns that any row of the panel stores. It
// gathers those columns of the right operand side by side into one TILE_N wide tile, so both operands are
// loaded once for all the blocks where they meet, and multiplies only the blocks that are in the pattern.
#pragma once

#include "../../abi.h"
#include "../ptx/cp_async.cuh"
#include "../tile/order.cuh"
#include "../tile/shared_tile.cuh"
#include "../tile/store_tile.cuh"

namespace jitsparse {

template <typename Element_, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS,
          int TILE_M_, int TILE_N_, int TILE_K_, int WARPS_M_, int WARPS_N_, int STAGES_>
struct SddMma {
  using Element = Element_;
  using Storage = typename Element::Storage;
  static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TILE_K_, STAGES = STAGES_;
  static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  static constexpr int kGroup = TILE_M / BLOCK_ROWS;
  static constexpr int kColumns = TILE_N / BLOCK_COLS;
  static_assert(TILE_M % BLOCK_ROWS == 0 && TILE_N % BLOCK_COLS == 0, "a tile holds whole blocks");
  static_assert(kGroup == 1 || TILE_M == 128, "the packed index holds panels of 128 rows");
  static_assert(WARP_M % BLOCK_ROWS == 0 || BLOCK_ROWS % WARP_M == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_N % BLOCK_COLS == 0 || BLOCK_COLS % WARP_N == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_N % 16 == 0 && BLOCK_ROWS % 16 == 0 && BLOCK_COLS % 16 == 0, "mma tile sizes");

  // The part of one block, or the blocks, that a warp multiplies.
  static constexpr int kPartM = WARP_M < BLOCK_ROWS ? WARP_M : BLOCK_ROWS;
  static constexpr int kPartN = WARP_N < BLOCK_COLS ? WARP_N : BLOCK_COLS;
  static constexpr int kWarpRows = WARP_M / kPartM, kWarpColumns = WARP_N / kPartN;
  static constexpr bool kAlwaysPresent = kGroup == 1 && kColumns == 1;

  static constexpr bool kScalar = sizeof(Storage) == 4;  // operands that ldmatrix cannot transpose
  using LeftTile = SharedTile<Element, LEFT_K_CONTIGUOUS ? TILE_M : TILE_K, LEFT_K_CONTIGUOUS ? TILE_K : TILE_M,
                              kScalar && !LEFT_K_CONTIGUOUS>;
  using RightTile = SharedTile<Element, RIGHT_K_CONTIGUOUS ? TILE_N : TILE_K, RIGHT_K_CONTIGUOUS ? TILE_K : TILE_N,
                               kScalar && !RIGHT_K_CONTIGUOUS>;
  using Staged = StagedTile<Element, kPartM, kPartN, false>;

  static constexpr int kGroupedPanels = 16;

  static constexpr int kStageBytes = LeftTile::kBytes + RightTile::kBytes;
  static constexpr int kPipelineBytes = STAGES * kStageBytes + kColumns * 16;
  static constexpr int kStagedBytes = WARPS_M * WARPS_N * Staged::kBytes + kColumns * 16;
  static constexpr int kSharedBytes = kPipelineBytes > kStagedBytes ? kPipelineBytes : kStagedBytes;

  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  static JITSPARSE_HD int64 panels(const SddArgs& args) { return (args.rows + TILE_M - 1) / TILE_M; }
  // The number of steps is known on the device only: a panel gets the CTAs that it could need, and those past its steps return.
  static JITSPARSE_HD int64 column_tiles(const SddArgs& args) {
    const int64 columns = (args.cols + BLOCK_COLS - 1) / BLOCK_COLS;
    return (columns + kColumns - 1) / kColumns;
  }

  using LeftCopy = TileCopy<LeftTile, 1, kThreads>;
  // The gathered block columns are tiles of their own where they lie one below the other, and parts of a row where not.
  using RightCopy = TileCopy<SharedTile<Element, RIGHT_K_CONTIGUOUS ? BLOCK_COLS : TILE_K, RightTile::kColumns,
                                        kScalar && !RIGHT_K_CONTIGUOUS>,
                             RIGHT_K_CONTIGUOUS ? kColumns : 1, kThreads>;

  // Where the copies of one thread begin, and how far the operands reach.
  struct Sources {
    LeftCopy left_copy;
    RightCopy right_copy;
    const char* left;
    const char* right[RightCopy::kTiles];
    int64 left_stride, right_stride;  // bytes from row to row of shared memory
    int64 left_step, right_step;      // bytes from stage to stage
    int rows;                         // of the left tile that are inside
    int right_inside[RightCopy::kTiles];  // rows of each right tile that are (RIGHT_K_CONTIGUOUS), or whether its columns are

    __device__ __forceinline__ Sources(const SddArgs& args, int64 first_row, const int4* columns, int thread)
        : left_copy(thread), right_copy(thread) {
      constexpr int64 kSize = sizeof(Storage);
      left = reinterpret_cast<const char*>(static_cast<const Storage*>(args.left) +
                                           first_row * (LEFT_K_CONTIGUOUS ? args.left_ld : 1) +
                                           left_copy.first_row * args.left_ld + left_copy.column);
      left_stride = args.left_ld * kSize;
      left_step = TILE_K * (LEFT_K_CONTIGUOUS ? kSize : left_stride);
      rows = inside(args.rows, first_row, TILE_M);
      right_stride = args.right_ld * kSize;
      right_step = TILE_K * (RIGHT_K_CONTIGUOUS ? kSize : right_stride);
#pragma unroll
      for (int i = 0; i < RightCopy::kTiles; ++i) {
        const int4 column = columns[RIGHT_K_CONTIGUOUS ? right_copy.tile(i) : right_copy.column / BLOCK_COLS];
        int64 at = int64(column.x) * BLOCK_COLS + (RIGHT_K_CONTIGUOUS ? 0 : right_copy.column % BLOCK_COLS);
        // Where the tile has fewer block columns than it could, the rest is zero.
        right_inside[i] = column.y ? inside(args.cols, at, BLOCK_COLS) : 0;
        at *= RIGHT_K_CONTIGUOUS ? args.right_ld : 1;
        right[i] = reinterpret_cast<const char*>(static_cast<const Storage*>(args.right) + at +
                                                 right_copy.first_row * args.right_ld + right_copy.column * int64(RIGHT_K_CONTIGUOUS));
      }
    }
  };

  // Starts the copies of one stage: `left_at` and `right_at` bytes from where the sources begin, k_left of the inner axis remain.
  static __device__ __forceinline__ void fetch(const Sources& from, int64 left_at, int64 right_at, int k_left, unsigned buffer) {
    const bool left_column = from.left_copy.column < (LEFT_K_CONTIGUOUS ? k_left : from.rows);
    from.left_copy.start(buffer, 0, from.left + left_at, from.left_stride, [&](int row) {
      return left_column && row < (LEFT_K_CONTIGUOUS ? from.rows : k_left);
    });
#pragma unroll
    for (int i = 0; i < RightCopy::kTiles; ++i) {
      if (!from.right_copy.has(i)) continue;
      const bool right_column = RIGHT_K_CONTIGUOUS ? from.right_copy.column < k_left : from.right_inside[i] > 0;
      from.right_copy.start(buffer + LeftTile::kBytes, i, from.right[i] + right_at, from.right_stride, [&](int row) {
        return right_column && row < (RIGHT_K_CONTIGUOUS ? from.right_inside[i] : k_left);
      });
    }
  }

  using LeftReads = LeftFragments<Element, LEFT_K_CONTIGUOUS, LeftTile>;
  using RightReads = RightFragments<Element, RIGHT_K_CONTIGUOUS, RightTile>;
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
    const unsigned stages = unsigned(__cvta_generic_to_shared(shared));
    int4* columns = reinterpret_cast<int4*>(shared + (kSharedBytes - kColumns * 16));  // (block column, mask, first, 0)
    // The shuffles tell the compiler that a value is the same in all lanes.
    const int thread = threadIdx.x, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0);
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    const TileCoordinates at = grouped_order<kGroupedPanels>(blockIdx.x, panels(args), column_tiles(args));
    const int64 panel = at.row;

    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int* pointers = kGroup == 1 ? index.crow() : index.row_panel_ptr();
    const int begin = pointers[panel] + int(at.column) * kColumns, end = pointers[panel + 1];
    if (begin >= end) return;
    if (thread < kColumns) {
      const int step = begin + thread;
      int4 column = make_int4(0, 0, 0, 0);
      if (step < end) {
        column = kGroup == 1 ? make_int4(index.col()[step], 1, step, 0)
                             : reinterpret_cast<const int4*>(index.row_steps())[step];
      }
      columns[thread] = column;
    }
    __syncthreads();

    // The blocks of this warp: bit g of masks[u] says that row g of its rows stores its column u.
    int masks[kWarpColumns];
    const int first_group = warp_m * WARP_M / BLOCK_ROWS, first_column = warp_n * WARP_N / BLOCK_COLS;
#pragma unroll
    for (int u = 0; u < kWarpColumns; ++u) {
      masks[u] = __shfl_sync(~0u, columns[first_column + u].y >> first_group & ((1 << kWarpRows) - 1), 0);
    }

    const int k_tiles = int((args.k + TILE_K - 1) / TILE_K);
    const int stage_count = k_tiles * int(args.batch);
    const Sources sources(args, panel * TILE_M, columns, thread);
    const auto fetch_stage = [&](int stage, unsigned buffer) {
      if (stage < stage_count) {
        const int batch = stage / k_tiles, k_tile = stage - batch * k_tiles;
        fetch(sources, batch * args.left_batch_stride * int64(sizeof(Storage)) + k_tile * sources.left_step,
              batch * args.right_batch_stride * int64(sizeof(Storage)) + k_tile * sources.right_step,
              int(args.k) - k_tile * TILE_K, buffer);
      }
      ptx::cp_async_commit();
    };

    constexpr int kAhead = STAGES - 1;
    for (int stage = 0; stage < kAhead; ++stage) fetch_stage(stage, stages + stage * kStageBytes);
    const unsigned left_offset =
        LeftTile::moved(LeftReads::lane_offset(lane), LEFT_K_CONTIGUOUS ? warp_m * WARP_M : 0,
                        LEFT_K_CONTIGUOUS ? 0 : warp_m * WARP_M / LeftTile::kPerChunk);
    const unsigned right_offset =
        LeftTile::kBytes + RightTile::moved(RightReads::lane_offset(lane), RIGHT_K_CONTIGUOUS ? warp_n * WARP_N : 0,
                                            RIGHT_K_CONTIGUOUS ? 0 : warp_n * WARP_N / RightTile::kPerChunk);
    const unsigned end_of_stages = stages + STAGES * kStageBytes;
    unsigned filled = stages, free = stages + kAhead * kStageBytes;
    Accumulators c = {};
    for (int stage = 0; stage < stage_count; ++stage) {
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();
      fetch_stage(stage + kAhead, free);
      multiply(c, masks, filled + left_offset, filled + right_offset);
      filled = filled + kStageBytes == end_of_stages ? stages : filled + kStageBytes;
      free = free + kStageBytes == end_of_stages ? stages : free + kStageBytes;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();

    Storage* staged = reinterpret_cast<Storage*>(shared + warp * Staged::kBytes);
    const int* positions = kGroup == 1 ? nullptr : index.row_panel_blocks();
    const int row_in_block = warp_m * WARP_M % BLOCK_ROWS, column_in_block = warp_n * WARP_N % BLOCK_COLS;
#pragma unroll
    for (int g = 0; g < kWarpRows; ++g) {
#pragma unroll
      for (int u = 0; u < kWarpColumns; ++u) {
        if (!(masks[u] >> g & 1)) continue;
        const int4 column = columns[first_column + u];
        const int in_order = column.z + __popc(column.y & ((1 << (first_group + g)) - 1));
        const int64 position = positions == nullptr ? in_order : positions[in_order];
        Storage* out = static_cast<Storage*>(args.out) + position * (BLOCK_ROWS * BLOCK_COLS) +
                       row_in_block * BLOCK_COLS + column_in_block;
        __syncwarp();
        Staged::write(staged, c[g][u], lane);
        __syncwarp();
        Staged::copy_out(staged, out, BLOCK_COLS, kPartM, kPartN, lane);
      }
    }
  }

  static int64 grid(const SddArgs& args) { return panels(args) * column_tiles(args); }
};

}  // namespace jitsparse
