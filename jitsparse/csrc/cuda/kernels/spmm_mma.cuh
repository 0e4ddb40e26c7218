// Block-sparse x dense on mma.sync tensor cores (sm_80 and later). spmm_pipeline.cuh loads the operands; each warp multiplies the blocks
// that are stored. With SPLIT the steps of each tile are split among several CTAs (split-K), and spmm_sum.cuh adds their sums from the
// workspace.
#pragma once

#include "../../abi.h"
#include "../tile/fragments.cuh"
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
  using Stages = Pipeline;  // as launch_after_copy.cuh calls it
  using BlockTile = typename Pipeline::BlockTile;
  using DenseTile = typename Pipeline::DenseTile;
  static constexpr int kBlockM = Pipeline::kBlockM, kGroup = Pipeline::kGroup;
  static constexpr int kSlots = Pipeline::kSlots, kSlotK = Pipeline::kSlotK;
  static_assert(WARP_M % kBlockM == 0 || kBlockM % WARP_M == 0, "a warp holds whole blocks or a part of one");

  // An mma has 16 rows and 8 columns. A block of 8 rows can only be its right operand: two as its left one would be multiplied together,
  // also where just one is stored. The product is then computed transposed.
  static constexpr bool kLow = kBlockM < 16;
  static constexpr int kMmaK = kSlotK < Element::kMmaK ? kSlotK : Element::kMmaK;
  static constexpr int kBlocksInWarp = WARP_M > kBlockM ? WARP_M / kBlockM : 1, kRowsOfBlock = WARP_M > kBlockM ? kBlockM : WARP_M;
  static constexpr int kBlockSpan = kLow ? 8 : 16, kDenseSpan = kLow ? 16 : 8;  // of an mma
  static_assert(WARP_N % 16 == 0 && kRowsOfBlock % kBlockSpan == 0 && kSlotK % kMmaK == 0, "mma tile sizes");
  static_assert(kSlots * kBlocksInWarp <= 32, "a lane tests each block of a warp in a stage");

  using Register = typename Element::Register;
  static constexpr int kDeep = kMmaK / Element::kRegisterK;  // registers along k
  static constexpr int kDenseLoad = WARP_N * kDeep < 32 ? WARP_N : 32 / kDeep;  // columns of a load, at most four registers
  using BlockFragments = Fragments<Element, !FLIPPED, BlockTile, kBlockSpan, kMmaK, kLow>;
  using DenseFragments = Fragments<Element, DENSE_K_CONTIGUOUS, DenseTile, kDenseLoad, kMmaK, !kLow>;
  using Accumulators = typename Element::Accumulator[(kLow ? WARP_N : WARP_M) / 16][(kLow ? WARP_M : WARP_N) / 8][4];
  static constexpr bool kAlwaysPresent = kGroup == 1 && kSlots == 1;

  static constexpr int kStagedBytes = StagedTile<Element, WARP_M, WARP_N, OUT_TRANSPOSED>::kBytes;  // per warp
  static constexpr int kSharedBytes =
      Pipeline::kBytes > kThreads / 32 * kStagedBytes ? Pipeline::kBytes : kThreads / 32 * kStagedBytes;
  static constexpr int kGroupedPanels = 16;

  using Sum = SpmmSum<Element>;
  using Sums = SpmmSums<OUT_TRANSPOSED>;
  static JITSPARSE_HD int parts(const SpmmArgs& args) { return SPLIT ? int(args.parts) : 1; }

  // Multiplies a warp's share of a stage: for each k of the mma it loads its columns of the dense tile once, then the blocks that are
  // stored. Bit slot * kBlocksInWarp + g of `present` is set if the warp's block g of that slot is stored.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned present, unsigned blocks, unsigned dense) {
    constexpr unsigned kMine = ~0u >> (32 - kBlocksInWarp);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!kAlwaysPresent && !(present >> slot * kBlocksInWarp & kMine)) continue;
#pragma unroll
      for (int k = 0; k < kSlotK; k += kMmaK) {
        Register columns[WARP_N / kDenseSpan][kDenseSpan / 8 * kDeep];
#pragma unroll
        for (int n = 0; n < WARP_N; n += kDenseLoad) {
          auto& loaded = reinterpret_cast<Register(&)[DenseFragments::kCount]>(columns[n / kDenseSpan]);
          DenseFragments::load(loaded, dense + slot * DenseTile::kBytes, n, k);
        }
#pragma unroll
        for (int g = 0; g < kBlocksInWarp; ++g) {
          if (!kAlwaysPresent && !(present >> (slot * kBlocksInWarp + g) & 1)) continue;
#pragma unroll
          for (int i = 0; i < kRowsOfBlock / kBlockSpan; ++i) {
            Register block[BlockFragments::kCount];
            BlockFragments::load(block, blocks + (slot * kGroup + g) * BlockTile::kBytes, i * kBlockSpan, k);
#pragma unroll
            for (int j = 0; j < WARP_N / kDenseSpan; ++j) {
              if constexpr (kLow) {
                Element::mma(c[j][g], columns[j], block);
              } else {
                Element::mma(c[g * (kRowsOfBlock / 16) + i][j], block, columns[j]);
              }
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
        // Lanes beyond the last slot begin again, which costs less than a test (in blocks of 32: 1.03 times as fast).
        const int mask = stream.rings.step(stage, lane / kBlocksInWarp % kSlots)->y >> first_block;
        present = __ballot_sync(~0u, mask >> lane % kBlocksInWarp & 1);
      }
      multiply(c, present, buffer + block_offset, buffer + dense_offset);
    });
    const int64 m = Pipeline::m(args);
    if constexpr (SPLIT) {
      if (parts(args) > 1) {
        float* sums = Sums::at(args, m, part, tile.batch);
        const int at_m = int(first_m) + warp_m * WARP_M, at_n = int(first_n) + warp_n * WARP_N;
        if constexpr (kLow) {
          store_fragments<RowOrder<WARP_N / 16, false>, !OUT_TRANSPOSED>(c, sums, Sums::ld(args, m), at_n, args.n, at_m, m, /*warp=*/0, lane);
        } else {
          store_fragments<RowOrder<WARP_M / 16, false>, OUT_TRANSPOSED>(c, sums, Sums::ld(args, m), at_m, m, at_n, args.n, /*warp=*/0, lane);
        }
        return;
      }
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    store_product<Element, OUT_TRANSPOSED, WARP_M, WARP_N, kLow>(args, c, m, tile.batch, first_m + warp_m * WARP_M,
                                                                 first_n + warp_n * WARP_N, shared + warp * kStagedBytes, lane);
  }

  static int64 grid(const SpmmArgs& args) { return Pipeline::grid(args) * parts(args); }

  // Parameters of the kernel that adds the parts of split tiles.
  static typename Sum::Params sum(const SpmmArgs& args) { return Sum::template of<Sums>(args, Pipeline::m(args), parts(args)); }
};

}  // namespace jitsparse
