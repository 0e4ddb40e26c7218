// The stages of a dense x dense product at the blocks of a pattern on Hopper: what they hold, and the warps that fill them.
//
// A tile is a panel of 64 or 128 rows and some of the block columns that any row of the panel stores, gathered side by side: each is copied
// separately, and in shared memory they form one wide operand. Two panels of 64 rows that store the same columns may share a tile. Halves
// of block columns of 128 count as block columns here, so that tiles can be distributed evenly. The list of tiles is part of the index. A
// stage is a slab of k of the panels and of everything gathered.
//
// With GATHER_ROWS the roles are swapped, and the product is computed transposed: a panel of columns, and gathered block rows. TMA takes as
// long for a row of 32 bytes as for one of 128, so for blocks of 16 and 32 the gathered operand should be k-major. If neither operand is,
// as in the gradient of a weight, transpose.cuh can copy one first.
#pragma once

#include "../../abi.h"
#include "../enqueue.cuh"
#include "../ptx/register_budget.cuh"
#include "../ptx/tma.cuh"
#include "../tensor_map.cuh"
#include "../tile/load_operand.cuh"
#include "../tile/order.cuh"
#include "../tile/ring.cuh"
#include "sdd_walk.cuh"

namespace jitsparse {

// SPLIT: where there are more CTAs than tiles, tiles are split along k; sdd_sum.cuh adds the parts.
template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, bool GATHER_ROWS,
          bool SPLIT>
struct SddStages {
  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  using Storage = typename Element::Storage;
  using Lists = SddLists<SddStages>;
  using Tile = SddTile<SddStages>;
  using Tiles = SddTiles<SddStages>;
  static constexpr bool kGatherRows = GATHER_ROWS, kSplit = SPLIT;
  // Block extents along the panel and across it.
  static constexpr int kBlockP = GATHER_ROWS ? BLOCK_COLS : BLOCK_ROWS;
  using Shape = GatherShape<kBlockP, GATHER_ROWS ? BLOCK_ROWS : BLOCK_COLS>;
  static constexpr int kBlockG = Shape::kPiece;
  static constexpr bool kPanelAlongK = GATHER_ROWS ? RIGHT_K_CONTIGUOUS : LEFT_K_CONTIGUOUS;
  static constexpr bool kGatheredAlongK = GATHER_ROWS ? LEFT_K_CONTIGUOUS : RIGHT_K_CONTIGUOUS;
  static constexpr int kElementBytes = sizeof(Storage), kSwizzleElements = 128 / kElementBytes;  // elements in a 128-byte swizzle row
  static constexpr int kTileM = Shape::kPanel, kSlab = kSwizzleElements;
  static constexpr int kColumns = Shape::kMax;

  // Two warpgroups, of 64 rows and up to 256 columns each: stacked if they have the same columns, else side by side.
  static constexpr int kConsumers = 2, kGroupsM = kTileM / 64, kGroupsN = kConsumers / kGroupsM;
  static constexpr int kProducers = 4;  // warps, each with its share of the block columns
  static_assert(kColumns <= kProducers * 32, "one lane copies one block column");
  static constexpr int kThreads = 128 * (kConsumers + 1);

  static constexpr int kPanelBytes = kTileM * 128, kColumnBytes = kBlockG * 128;
  // An N-major block column is copied in pieces of at most kSwizzleElements columns, the width of the swizzle.
  static constexpr int kSpan = kBlockG < kSwizzleElements ? kBlockG : kSwizzleElements;
  static constexpr int kGatheredRowBytes = kGatheredAlongK ? 128 : kSpan * kElementBytes;
  static constexpr int kSpanBytes = kSpan * 128;

  // The widest tile of the pattern determines the number of stages.
  static constexpr int kRingBytes = (kGroupsM > 1 ? 4 : 3) * (kPanelBytes + Shape::kMax * kColumnBytes), kMaxStages = 8;

  struct Params {
    SddArgs args;
    CUtensorMap panel, gathered, out;
    Lists lists;
    int slabs_of_batch;  // slabs of k per matrix of a batch
  };

  // A CTA of a kernel with these stages and its barriers at Kernel::kBarriersAt; calls Kernel::consume in kConsumers warpgroups.
  template <typename Kernel>
  static __device__ __forceinline__ void run(const Params& params) {
    unsigned char* shared = aligned_shared();
    const unsigned base = unsigned(__cvta_generic_to_shared(shared));
    const StageBarriers barriers(base + Kernel::kBarriersAt, kMaxStages);
    if (threadIdx.x == 0) {
      barriers.init(kMaxStages, kProducers, kConsumers * 4);
      ptx::tma_prefetch_map(&params.panel);
      ptx::tma_prefetch_map(&params.gathered);
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const Tiles tiles(params);
    if (warp >= kConsumers * 4) {
      ptx::setmaxnreg_dec<40>();
      produce(params, tiles, base, barriers, warp - kConsumers * 4, lane);
    } else {
      ptx::setmaxnreg_inc<232>();
      Kernel::consume(params, tiles, shared, base, barriers, warp, lane);
    }
  }

  static __device__ __forceinline__ void produce(const Params& params, const Tiles& tiles, unsigned base,
                                                 const StageBarriers& barriers, int warp, int lane) {
    const int mine = lane * kProducers + warp;  // block column of the tile
    RingPosition ring;
    // A tile's entries of the index are read while the previous tile is copied.
    int item = int(tile_of_round(0));
    const int items = tiles.count * tiles.parts;
    Tile tile = tiles.first;
    int column = item < items ? tiles.column(tile, mine) : 0;
    for (int round = 1; item < items; ++round) {
      const int next_item = int(tile_of_round(round));
      const Tile next = tiles.tile(next_item);
      const int2 slabs = tiles.slabs_of(item % tiles.parts);
      const int columns = tile.columns(), panels = tile.two_panels() ? 2 : 1, columns_at = panels * kPanelBytes;
      const int bytes = (warp == 0 ? panels * kPanelBytes : 0) + (columns - warp + kProducers - 1) / kProducers * kColumnBytes;
      const int panel = tile.of(lane).x * kTileM;  // first row of the panel that the lane copies, if any
      int batch = slabs.x / tiles.slabs_of_batch, in_batch = slabs.x % tiles.slabs_of_batch;
      for (int slab = slabs.x; slab < slabs.y; ++slab) {
        const unsigned stage = base + ring.stage * tiles.stage_bytes, full_barrier = barriers.full_barrier(ring.stage);
        const int k = in_batch * kSlab, first = column * kBlockG;
        if (slab + 1 == slabs.y) column = tiles.column(next, mine);
        barriers.wait_empty(ring.stage, ring.round);
        // Every warp arrives, even with nothing to copy, so that none falls two rounds behind.
        if (lane == 0) ptx::mbarrier_arrive_expect_tx(full_barrier, bytes);
        __syncwarp();
        if (warp == 0 && lane < panels) {
          const unsigned to = stage + lane * kPanelBytes;
          load_operand<kPanelAlongK, kTileM, kSwizzleElements, kSwizzleElements * 128>(to, &params.panel, full_barrier, panel, k, batch);
        }
        if (mine < columns) {
          const unsigned to = stage + columns_at + mine * kColumnBytes;
          load_operand<kGatheredAlongK, kBlockG, kSpan, kSpanBytes>(to, &params.gathered, full_barrier, first, k, batch);
        }
        ring.next(tiles.stages);
        if (++in_batch == tiles.slabs_of_batch) {
          in_batch = 0;
          ++batch;
        }
      }
      item = next_item;
      tile = next;
    }
  }

  // ---- host

  static int64 grid(const SddArgs& args) {
    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int64 most = GATHER_ROWS ? Shape::tiles(index.C, index.col_gather_steps_capacity())
                                   : Shape::tiles(index.R, index.row_gather_steps_capacity());
    const int64 sms = sm_count();
    return most < sms && !(SPLIT && args.parts > 1) ? most : sms;
  }

  static cudaError_t prepare(const SddArgs& args, Params& params) {
    params.args = args;
    params.lists = Lists::of(args);
    params.slabs_of_batch = int(div_up(args.k, kSlab));
    const MatrixShape left = LEFT_K_CONTIGUOUS ? MatrixShape{args.k, args.rows, args.batch, args.left_ld, args.left_batch_stride}
                                               : MatrixShape{args.rows, args.k, args.batch, args.left_ld, args.left_batch_stride};
    const MatrixShape right =
        RIGHT_K_CONTIGUOUS ? MatrixShape{args.k, args.cols, args.batch, args.right_ld, args.right_batch_stride}
                           : MatrixShape{args.cols, args.k, args.batch, args.right_ld, args.right_batch_stride};
    const Box panel_box = kPanelAlongK ? Box{kSlab, kTileM} : Box{kSwizzleElements, kSlab};
    const Box gathered_box = kGatheredAlongK ? Box{kSlab, kBlockG} : Box{kSpan, kSlab};
    if (auto error = encode_map<Storage>(&params.panel, GATHER_ROWS ? args.right : args.left, GATHER_ROWS ? right : left, panel_box)) {
      return error;
    }
    return encode_map<Storage>(&params.gathered, GATHER_ROWS ? args.left : args.right, GATHER_ROWS ? left : right, gathered_box);
  }
};

}  // namespace jitsparse
