// Block-sparse x dense on mma.sync tensor cores (sm_80 and later). spmm_pipeline.cuh loads the operands; each warp multiplies the blocks
// that are stored. With SPLIT the steps of each tile are split among several CTAs (split-K), and spmm_sum.cuh adds their sums from the
// workspace.
#pragma once

#include "../../abi.h"
#include "../tile/order.cuh"
#include "../tile/product_epilogue.cuh"
#include "../tile/stage_loop.cuh"
#include "../tile/store_fragments.cuh"
#include "spmm_pipeline.cuh"
#include "spmm_sum.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED,
          int TILE_M, int TILE_N, int TILE_K, int WARPS_M, int WARPS_N, int STAGES, int MIN_CTAS, bool SPLIT>
struct SpmmMma {
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N, kMinCtas = MIN_CTAS;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  using Pipeline = SpmmPipeline<Element, BLOCK_ROWS, BLOCK_COLS, FLIPPED, DENSE_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K,
                                kThreads, STAGES>;
  using BlockTile = typename Pipeline::BlockTile;
  using DenseTile = typename Pipeline::DenseTile;
  static constexpr int kBlockM = Pipeline::kBlockM, kGroup = Pipeline::kGroup;
  static constexpr int kSlots = Pipeline::kSlots, kSlotK = Pipeline::kSlotK;
  static_assert(WARP_M % kBlockM == 0 || kBlockM % WARP_M == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_N % 16 == 0 && kBlockM % 16 == 0 && kSlotK % Element::kMmaK == 0, "mma tile sizes");

  static constexpr int kStagedBytes = StagedTile<Element, WARP_M, WARP_N, OUT_TRANSPOSED>::kBytes;  // per warp
  static constexpr int kSharedBytes =
      Pipeline::kBytes > kThreads / 32 * kStagedBytes ? Pipeline::kBytes : kThreads / 32 * kStagedBytes;
  static constexpr int kGroupedPanels = 16;

  using Accumulators = float[WARP_M / 16][WARP_N / 8][4];
  using BlockFragments = LeftFragments<Element, !FLIPPED, BlockTile>;
  using DenseFragments = RightFragments<Element, DENSE_K_CONTIGUOUS, DenseTile>;
  static constexpr bool kAlwaysPresent = kGroup == 1 && kSlots == 1;

  using Sum = SpmmSum<Element>;
  using Sums = SpmmSums<OUT_TRANSPOSED>;
  static JITSPARSE_HD int parts(const SpmmArgs& args) { return SPLIT ? int(args.parts) : 1; }

  // Multiplies a warp's share of a stage: for each k of the mma it loads its columns of the dense tile once, then the blocks that are
  // stored. Bit slot * kGroup + g of `present` is set if the warp's block g of that slot is stored.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned present, unsigned blocks, unsigned dense) {
    constexpr int kBlocksInWarp = WARP_M > kBlockM ? WARP_M / kBlockM : 1;
    constexpr int kRowsOfBlock = WARP_M > kBlockM ? kBlockM : WARP_M;
    constexpr unsigned kMine = (1u << kBlocksInWarp) - 1;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!kAlwaysPresent && !(present >> slot * kGroup & kMine)) continue;
#pragma unroll
      for (int k = 0; k < kSlotK; k += Element::kMmaK) {
        unsigned b[WARP_N / 16][4];
#pragma unroll
        for (int j = 0; j < WARP_N / 16; ++j) DenseFragments::load(b[j], dense + slot * DenseTile::kBytes, j * 16, k);
#pragma unroll
        for (int g = 0; g < kBlocksInWarp; ++g) {
          if (!kAlwaysPresent && !(present >> (slot * kGroup + g) & 1)) continue;
#pragma unroll
          for (int i = 0; i < kRowsOfBlock / 16; ++i) {
            unsigned a[4];
            BlockFragments::load(a, blocks + (slot * kGroup + g) * BlockTile::kBytes, i * 16, k);
#pragma unroll
            for (int j = 0; j < WARP_N / 8; ++j) {
              Element::mma(c[g * (kRowsOfBlock / 16) + i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    // The shuffle tells the compiler that the warp index is warp-uniform.
    const int thread = threadIdx.x, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0);
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    const int part = SPLIT ? blockIdx.x % parts(args) : 0;
    const TileCoordinates tile = grouped_order(blockIdx.x / unsigned(parts(args)), Pipeline::panels(args),
                                               Pipeline::column_tiles(args), kGroupedPanels);
    const int64 first_m = tile.row * TILE_M, first_n = tile.column * TILE_N;

    typename Pipeline::Stream stream(args, tile.row, first_n, tile.batch, shared, thread, part, parts(args));
    stream.start();

    // Where the warp tile begins in the panel: a block of a slot, and a row of that block.
    const int first_block = warp_m * WARP_M / kBlockM, first_row = warp_m * WARP_M % kBlockM;
    const unsigned block_offset = first_block * BlockTile::kBytes +
                                  BlockTile::advance(BlockFragments::lane_offset(lane), FLIPPED ? 0 : first_row,
                                                     FLIPPED ? first_row / BlockTile::kPerChunk : 0);
    const unsigned dense_offset =
        Pipeline::kBlockBytes +
        DenseTile::advance(DenseFragments::lane_offset(lane), DENSE_K_CONTIGUOUS ? warp_n * WARP_N : 0,
                           DENSE_K_CONTIGUOUS ? 0 : warp_n * WARP_N / DenseTile::kPerChunk);
    Accumulators c = {};
    for_each_stage<Pipeline>(stream, 0, stream.stage_count, [&](int stage, unsigned buffer) {
      unsigned present = 1;
      if constexpr (!kAlwaysPresent) {
        const int mask = lane < kSlots * kGroup ? stream.rings.step(stage, lane / kGroup)->y : 0;
        present = __ballot_sync(~0u, mask >> lane % kGroup & 1) >> first_block;
      }
      multiply(c, present, buffer + block_offset, buffer + dense_offset);
    });
    const int64 m = Pipeline::m(args);
    if (parts(args) > 1) {
      store_fragments<RowOrder<WARP_M / 16, false>, OUT_TRANSPOSED>(c, Sums::at(args, m, part, tile.batch), Sums::ld(args, m),
                                                                    int(first_m) + warp_m * WARP_M, m, int(first_n) + warp_n * WARP_N,
                                                                    args.n, /*warp=*/0, lane);
      return;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    store_product<Element, OUT_TRANSPOSED, WARP_M, WARP_N>(args, c, m, tile.batch, first_m + warp_m * WARP_M, first_n + warp_n * WARP_N,
                                                           shared + warp * kStagedBytes, lane);
  }

  static int64 grid(const SpmmArgs& args) { return Pipeline::grid(args) * parts(args); }

  // Parameters of the kernel that adds the parts of split tiles.
  static typename Sum::Params sum(const SpmmArgs& args) { return Sum::template of<Sums>(args, Pipeline::m(args), parts(args)); }
};

}  // namespace jitsparse
