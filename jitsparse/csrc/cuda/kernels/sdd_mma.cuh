// Dense x dense at the blocks of a pattern, on mma.sync tensor cores (sm_80 and later). sdd_pipeline.cuh loads the operands; each warp
// multiplies those blocks of its warp tile that are in the pattern. With SPLIT the last tiles are split along k (sdd_tail.cuh).
#pragma once

#include "../../abi.h"
#include "../ptx/special_register.cuh"
#include "../tile/fragments.cuh"
#include "../tile/order.cuh"
#include "../tile/stage_loop.cuh"
#include "../tile/store_tile.cuh"
#include "sdd_pipeline.cuh"
#include "sdd_tail.cuh"
#include "sdd_tail_sum.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_M,
          int TILE_N, int TILE_K, int WARPS_M, int WARPS_N, int STAGES, int MIN_CTAS, bool SPLIT>
struct SddMma {
  static constexpr int kTileM = TILE_M, kTileN = TILE_N;
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N, kMinCtas = MIN_CTAS;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  using Pipeline = SddPipeline<Element, BLOCK_ROWS, BLOCK_COLS, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K,
                               kThreads, STAGES>;
  using Storage = typename Element::Storage;
  using Register = typename Element::Register;
  static constexpr int kColumns = Pipeline::kColumns;
  static_assert(WARP_M % BLOCK_ROWS == 0 || BLOCK_ROWS % WARP_M == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_N % BLOCK_COLS == 0 || BLOCK_COLS % WARP_N == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "mma tile sizes");

  // What a warp multiplies: blocks, or the piece of a block that its warp tile covers. An mma has 16 rows, so two blocks of 8 are a piece,
  // which is multiplied if either is stored.
  static constexpr int kStacked = BLOCK_ROWS < 16 ? 16 / BLOCK_ROWS : 1;  // blocks of a piece, one below the other
  static constexpr int kPieceM = WARP_M < BLOCK_ROWS ? WARP_M : kStacked * BLOCK_ROWS;
  static constexpr int kPieceN = WARP_N < BLOCK_COLS ? WARP_N : BLOCK_COLS;
  static constexpr int kWarpRows = WARP_M / kPieceM, kWarpColumns = WARP_N / kPieceN;
  static constexpr bool kAlwaysPresent = Pipeline::kGroup == 1 && kColumns == 1;

  // The right tile as the fragments see it: stacked gathered columns form one tall tile.
  using LeftTile = typename Pipeline::LeftTile;
  using RightTile = SharedTile<Element, RIGHT_K_CONTIGUOUS ? TILE_N : TILE_K, RIGHT_K_CONTIGUOUS ? TILE_K : TILE_N,
                               Pipeline::kScalar && !RIGHT_K_CONTIGUOUS>;
  using LeftReads = LeftFragments<Element, LEFT_K_CONTIGUOUS, LeftTile>;
  using RightReads = RightFragments<Element, RIGHT_K_CONTIGUOUS, RightTile>;
  using Staged = StagedTile<Element, kPieceM, kPieceN, false>;

  static constexpr int kStagedBytes = kThreads / 32 * Staged::kBytes;
  static constexpr int kColumnsAt = Pipeline::kBytes > kStagedBytes ? Pipeline::kBytes : kStagedBytes;
  static constexpr int kGroupedPanels = 16;
  using Tail = SddTail<Pipeline, kGroupedPanels>;
  using Sum = SddTailSum<SddMma>;
  static constexpr int kTailAt = kColumnsAt + kColumns * 16;
  static constexpr int kSharedBytes = kTailAt + (SPLIT ? Tail::kBytes : 0);

  using Accumulators = typename Element::Accumulator[kWarpRows][kWarpColumns][kPieceM / 16][kPieceN / 8][4];

  // Whether any block of the g-th piece is stored.
  static __device__ __forceinline__ bool has_piece(int mask, int g) { return mask >> g * kStacked & ((1 << kStacked) - 1); }

  static __device__ __forceinline__ void multiply(Accumulators& c, const int (&masks)[kWarpColumns], unsigned left,
                                                  unsigned right) {
    int any = 0;
#pragma unroll
    for (int u = 0; u < kWarpColumns; ++u) any |= masks[u];
#pragma unroll
    for (int k = 0; k < TILE_K; k += Element::kMmaK) {
      Register b[WARP_N / 8][2];
#pragma unroll
      for (int n = 0; n < WARP_N; n += 16) RightReads::load(reinterpret_cast<Register(&)[4]>(b[n / 8]), right, n, k);
#pragma unroll
      for (int g = 0; g < kWarpRows; ++g) {
        if (!kAlwaysPresent && !has_piece(any, g)) continue;
#pragma unroll
        for (int i = 0; i < kPieceM / 16; ++i) {
          Register a[4];
          LeftReads::load(a, left, g * kPieceM + i * 16, k);
#pragma unroll
          for (int u = 0; u < kWarpColumns; ++u) {
            if (!kAlwaysPresent && kWarpColumns > 1 && !has_piece(masks[u], g)) continue;
#pragma unroll
            for (int j = 0; j < kPieceN / 8; ++j) Element::mma(c[g][u][i][j], a, b[u * (kPieceN / 8) + j]);
          }
        }
      }
    }
  }

  // A warp's tile: its first row and column, and its blocks: bit r of masks[u] is set if its block row r stores its block column u.
  // Recomputed after the main loop, during which it would take registers.
  struct WarpTile {
    int lane, warp, m, n, first_group, first_column, masks[kWarpColumns];

    // The shuffles tell the compiler that a value is warp-uniform.
    __device__ __forceinline__ explicit WarpTile(const int4* columns) {
      const int thread = ptx::thread_index();
      lane = thread % 32;
      warp = __shfl_sync(~0u, thread / 32, 0);
      m = warp / WARPS_N * WARP_M, n = warp % WARPS_N * WARP_N;
      first_group = m / BLOCK_ROWS, first_column = n / BLOCK_COLS;
#pragma unroll
      for (int u = 0; u < kWarpColumns; ++u) {
        masks[u] = __shfl_sync(~0u, columns[first_column + u].y >> first_group & ((1 << kWarpRows * kStacked) - 1), 0);
      }
    }
  };

  static __device__ __forceinline__ void run(const SddArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    int4* columns = reinterpret_cast<int4*>(shared + kColumnsAt);
    if constexpr (SPLIT) {
      const typename Tail::Piece& piece = Tail(args, shared + kTailAt, ptx::block_index()).known.piece;
      if (piece.end == 0) return;
      Pipeline::find_columns(args, piece.tile.row, piece.tile.column, columns, threadIdx.x);
      Accumulators c = {};
      accumulate(args, piece.tile.row, columns, shared, piece.begin, piece.end, c);
      if (piece.slot < 0) {
        store(args, piece.tile.row, columns, shared, c);
      } else {
        store_partial(args, piece.slot, columns, c);
      }
    } else {
      const TileCoordinates tile = grouped_order(blockIdx.x, Pipeline::panels(args), Pipeline::column_tiles(args), kGroupedPanels);
      const int panel = int(tile.row);
      if (!Pipeline::find_columns(args, panel, tile.column, columns, threadIdx.x)) return;
      Accumulators c = {};
      accumulate(args, panel, columns, shared, 0, Pipeline::stage_count(args), c);
      store(args, panel, columns, shared, c);
    }
  }

  // Accumulates the stages from `begin` to `end`.
  static __device__ __forceinline__ void accumulate(const SddArgs& args, int panel, const int4* columns, unsigned char* shared,
                                                    int begin, int end, Accumulators& c) {
    const WarpTile mine(columns);
    typename Pipeline::Stream stream(args, panel, columns, shared, end, ptx::thread_index());
    stream.start(begin);
    const unsigned left_offset = LeftTile::advance(LeftReads::lane_offset(mine.lane), LEFT_K_CONTIGUOUS ? mine.m : 0,
                                                   LEFT_K_CONTIGUOUS ? 0 : mine.m / LeftTile::kPerChunk);
    const unsigned right_offset =
        Pipeline::kLeftBytes + RightTile::advance(RightReads::lane_offset(mine.lane), RIGHT_K_CONTIGUOUS ? mine.n : 0,
                                                  RIGHT_K_CONTIGUOUS ? 0 : mine.n / RightTile::kPerChunk);
    for_each_stage<Pipeline>(stream, begin, end, [&](int, unsigned buffer) {
      multiply(c, mine.masks, buffer + left_offset, buffer + right_offset);
    });
  }

  static __device__ __forceinline__ void store(const SddArgs& args, int panel, const int4* columns, unsigned char* shared,
                                               const Accumulators& c) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    const WarpTile mine(columns);
    auto* staged = reinterpret_cast<typename Element::Storage*>(shared + mine.warp * Staged::kBytes);
    const int in_block = mine.m % BLOCK_ROWS * BLOCK_COLS + mine.n % BLOCK_COLS;
#pragma unroll
    for (int g = 0; g < kWarpRows; ++g) {
#pragma unroll
      for (int u = 0; u < kWarpColumns; ++u) {
        if (!has_piece(mine.masks[u], g)) continue;
        __syncwarp();
        Staged::write(staged, c[g][u], mine.lane);
        __syncwarp();
#pragma unroll
        for (int r = g * kStacked; r < (g + 1) * kStacked; ++r) {
          if (!(mine.masks[u] >> r & 1)) continue;
          auto* out = Pipeline::block_of(args, columns[mine.first_column + u], mine.first_group + r) + in_block;
          constexpr int kRows = kPieceM / kStacked;
          Staged::copy_out(staged + (r - g * kStacked) * kRows * Staged::kPitch, out, BLOCK_COLS, kRows, kPieceN, mine.lane);
        }
      }
    }
    Pipeline::clear_past_edge(args, panel, columns, ptx::thread_index());
  }

  // Stores the sum of a split-K part in its slot.
  static __device__ __forceinline__ void store_partial(const SddArgs& args, int slot, const int4* columns, const Accumulators& c) {
    const WarpTile mine(columns);
    float* to = static_cast<float*>(args.workspace) + int64(slot) * (TILE_M * TILE_N) + (mine.m + mine.lane / 4) * TILE_N + mine.n +
                mine.lane % 4 * 2;
#pragma unroll
    for (int g = 0; g < kWarpRows; ++g) {
#pragma unroll
      for (int u = 0; u < kWarpColumns; ++u) {
        if (!has_piece(mine.masks[u], g)) continue;
#pragma unroll
        for (int i = 0; i < kPieceM / 16; ++i) {
#pragma unroll
          for (int j = 0; j < kPieceN / 8; ++j) {
            const float(&sums)[4] = c[g][u][i][j];
            float* at = to + (g * kPieceM + i * 16) * TILE_N + u * kPieceN + j * 8;
            *reinterpret_cast<float2*>(at) = float2{sums[0], sums[1]};
            *reinterpret_cast<float2*>(at + 8 * TILE_N) = float2{sums[2], sums[3]};
          }
        }
      }
    }
  }

  static int64 grid(const SddArgs& args) { return SPLIT ? Tail::grid(args) : Pipeline::grid(args); }

  // Parameters of the kernel that adds the parts of split tiles.
  static SddArgs sum(const SddArgs& args) { return args; }
};

}  // namespace jitsparse
