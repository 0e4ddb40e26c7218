// Dense x dense at the blocks of a pattern on Hopper (sm_90a): bulk copies feed wgmma through a ring of stages; persistent
// CTAs.
//
// A tile is a panel of 64 or 128 rows and some of the block columns that any row of the panel stores, gathered side by side:
// each is copied on its own, and in shared memory they are one wide operand. Two panels of 64 rows that store the same columns may
// have a tile of both. Halves of block columns of 128 count as block columns here, so that tiles can be dealt out evenly. The list of
// tiles is part of the index.
//
// With GATHER_ROWS it is the other way round, and the product is computed transposed: a panel of columns, and block rows
// gathered. TMA takes as long for a row of 32 bytes as for one of 128, so blocks of 16 and 32 want the operand that
// is gathered to lie along k. Where neither does, as in the gradient of a weight, transpose.cuh can copy one before.
//
// With SPLIT the sums of a tile may be divided among CTAs where there are more of these than tiles; sdd_sum.cuh adds the parts.
//
// float32 is multiplied as TF32, in blocks of 32 and more. wgmma reads such an operand from shared memory only where its rows run
// along k: that is the gathered one. The panel comes from registers, whichever way it lies.
#pragma once

#include "../../abi.h"
#include "../ptx/register_budget.cuh"
#include "../ptx/wgmma.cuh"
#include "../tensor_map.cuh"
#include "../tile/element.cuh"
#include "../tile/register_operand.cuh"
#include "../tile/load_operand.cuh"
#include "../tile/order.cuh"
#include "../tile/ring.cuh"
#include "../tile/row_order.cuh"
#include "sdd_store.cuh"
#include "sdd_sum.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, bool GATHER_ROWS,
          bool SPLIT>
struct SddWgmma {
  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  using Storage = typename Element::Storage;
  // Along the panel and across it.
  static constexpr int kBlockP = GATHER_ROWS ? BLOCK_COLS : BLOCK_ROWS;
  using Shape = GatherShape<kBlockP, GATHER_ROWS ? BLOCK_ROWS : BLOCK_COLS>;
  static constexpr int kBlockG = Shape::kPiece;
  static constexpr bool kPanelAlongK = GATHER_ROWS ? RIGHT_K_CONTIGUOUS : LEFT_K_CONTIGUOUS;
  static constexpr bool kGatheredAlongK = GATHER_ROWS ? LEFT_K_CONTIGUOUS : RIGHT_K_CONTIGUOUS;
  static constexpr int kElementBytes = sizeof(Storage), kSwizzleElements = 128 / kElementBytes;  // of the widest rows that a swizzle knows
  static constexpr int kTileM = Shape::kPanel, kSlab = kSwizzleElements;
  static constexpr int kColumns = Shape::kMost;
  static_assert(kColumns <= 32, "one lane copies one block column");
  static constexpr bool kTf32 = kElementBytes == 4;
  static_assert(!kTf32 || (kGatheredAlongK && kBlockP >= 32 && kBlockG >= 32), "see above");
  using Panel = RegisterOperand<1, kPanelAlongK>;  // of TF32
  using Order = RowOrder<1, kTf32 && !kPanelAlongK>;
  using Sum = SddSum<Element>;
  using Store = SddStore<Element, BLOCK_ROWS, BLOCK_COLS, GATHER_ROWS, Order>;

  // Two warpgroups, of 64 rows and up to 256 columns each: one below the other if they have the same columns, else side by side.
  static constexpr int kConsumers = 2, kGroupsM = kTileM / 64, kGroupsN = kConsumers / kGroupsM;
  static constexpr int kGroupN = Store::kGroupN, kWgmmaNStep = 64;  // columns of a wgmma: at most, and in steps of
  static constexpr int kProducers = 4;  // warps, each with its share of the block columns
  static constexpr int kThreads = 128 * (kConsumers + 1);

  static constexpr int kPanelBytes = kTileM * 128, kColumnBytes = kBlockG * 128;
  // A block column that runs along n is copied in pieces of at most kSwizzleElements columns, the width of the swizzle.
  static constexpr int kSpan = kBlockG < kSwizzleElements ? kBlockG : kSwizzleElements;
  static constexpr int kGatheredRowBytes = kGatheredAlongK ? 128 : kSpan * kElementBytes;
  static constexpr int kSpanBytes = kSpan * 128;

  // The widest tile of the pattern decides how many stages there are.
  static constexpr int kRingBytes = (kGroupsM > 1 ? 4 : 3) * (kPanelBytes + Shape::kMost * kColumnBytes), kMostStages = 8;
  static constexpr int kStagedAt = kRingBytes;
  static constexpr int kBarriersAt = kStagedAt + kConsumers * 4 * Store::kBytes;
  static constexpr int kSharedBytes = kBarriersAt + kMostStages * 16 + 1024;  // to begin at a multiple of 1024
  static_assert(kSharedBytes <= 232448, "fits an SM");

  // The pattern as the kernel walks it; the host says where its lists begin, as in spmm_walk.cuh.
  struct Lists {
    const int4* tiles;     // see Tiles; two words each
    const int4* steps;     // (block column, mask of the panel's rows, first position, position of the first block)
    const int* positions;  // where a step's blocks lie in the output

    static Lists of(const SddArgs& args) {
      const Index index(args.index, args.rows, args.cols, args.nnz);
      return {reinterpret_cast<const int4*>(list_of(index)),
              reinterpret_cast<const int4*>(GATHER_ROWS ? index.col_gather_steps() : index.row_gather_steps()),
              GATHER_ROWS ? index.col_gather_blocks() : index.row_gather_blocks()};
    }
  };

  struct Params {
    SddArgs args;
    CUtensorMap panel, gathered, out;
    Lists lists;
    int slabs_of_batch;  // slabs of k of one matrix of a batch
  };

  // The list of tiles. Where sums may be divided they need not be narrow for every CTA to have one.
  static const int32* list_of(const Index& index) {
    if (SPLIT) return GATHER_ROWS ? index.col_wide_tiles() : index.row_wide_tiles();
    return GATHER_ROWS ? index.col_gather_tiles() : index.row_gather_tiles();
  }

  // Of each warpgroup a panel, its first step, and the end of its steps. Both have one panel, of 64 rows, and each its columns; or each
  // has a panel and both the same columns; or they have a panel of 128 rows with all of its columns.
  struct Tile {
    int4 first, second;

    __device__ __forceinline__ bool two_panels() const { return kGroupsM == 1 && first.x != second.x; }
    __device__ __forceinline__ bool same_columns() const { return kGroupsM > 1 || two_panels(); }
    // How many are gathered, from the step first.y on.
    __device__ __forceinline__ int columns() const { return (same_columns() ? first.z : second.z) - first.y; }
    __device__ __forceinline__ int4 of(int group) const { return group == 0 ? first : second; }
    // Where in a stage that is which a warpgroup multiplies: its rows of a panel, its columns.
    __device__ __forceinline__ int panel_at(int group) const { return kGroupsM > 1 || two_panels() ? group * 64 * 128 : 0; }
    __device__ __forceinline__ int columns_at(int group) const {
      const int before = same_columns() ? 0 : of(group).y - first.y;
      return (two_panels() ? 2 : 1) * kPanelBytes + before * kColumnBytes;
    }
  };

  static __device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

  // Columns that a warpgroup multiplies for so many block columns: a multiple of `step`, a power of two.
  static __device__ __forceinline__ int multiplied(int columns, int step) { return (columns * kBlockG + step - 1) & -step; }
  // Block columns for which a stage needs room if a warpgroup multiplies so many, or if each has half of them: wgmma reads past the
  // last one.
  static __device__ __forceinline__ int room(int columns, int step) { return multiplied(columns, step) / kBlockG; }
  static __device__ __forceinline__ int room_side_by_side(int columns, int step) {
    const int half = (columns + 1) / 2;
    return larger(room(half, step), half + room(columns - half, step));
  }

  struct Tiles {
    const Lists& lists;
    Tile first;  // of the CTA, if it has any
    int count;
    int step;  // columns of a wgmma are a multiple of
    int stages, stage_bytes;  // of the ring
    int slabs_of_batch, slabs;  // of a sum
    int parts;                  // that it is divided into

    __device__ __forceinline__ explicit Tiles(const Params& params) : lists(params.lists), slabs_of_batch(params.slabs_of_batch) {
      const int4 head = __ldg(lists.tiles);  // (tiles, most columns of one with one panel, of one with two, step)
      // The list has room for a tile a CTA, so this does not have to wait until it is known how many there are.
      if (!SPLIT) first = read(blockIdx.x);
      count = head.x;
      step = head.w;
      const int most = kGroupsM > 1 ? room(head.y, step) : room_side_by_side(head.y, step);
      stage_bytes = larger(kPanelBytes + most * kColumnBytes, head.z ? 2 * kPanelBytes + room(head.z, step) * kColumnBytes : 0);
      stages = 0;  // as many as fit; without a division, which would come before the first copy
#pragma unroll
      for (int n = 1; n <= kMostStages; ++n) stages += n * stage_bytes <= kRingBytes;
      // But not five: four are 0.97 to 1.23 times as fast (docs/performance.md). Six are faster than four.
      if (stages == 5) stages = 4;
      slabs = slabs_of_batch * int(params.args.batch);
      parts = SPLIT ? parts_of_sums(count, int(gridDim.x), int(params.args.parts)) : 1;
      if (SPLIT) first = tile(blockIdx.x);
    }

    __device__ __forceinline__ Tile read(int n) const { return {__ldg(lists.tiles + 2 + 2 * n), __ldg(lists.tiles + 3 + 2 * n)}; }

    // Of what is past the last one, nothing.
    __device__ __forceinline__ Tile tile(int item) const { return item < count * parts ? read(item / parts) : Tile{}; }

    // Its n-th block column.
    __device__ __forceinline__ int column(const Tile& tile, int n) const {
      return n < tile.columns() ? __ldg(&lists.steps[tile.first.y + n].x) : 0;
    }

    // The slabs of a part: the first, and the end.
    __device__ __forceinline__ int2 slabs_of(int part) const {
      return make_int2(int(int64(slabs) * part / parts), int(int64(slabs) * (part + 1) / parts));
    }
  };

  static __device__ __forceinline__ void run(const Params& params) {
    extern __shared__ unsigned char unaligned[];
    unsigned char* shared = unaligned + (-__cvta_generic_to_shared(unaligned) & 1023);
    const unsigned base = unsigned(__cvta_generic_to_shared(shared));
    const StageBarriers barriers(base + kBarriersAt, kMostStages);
    if (threadIdx.x == 0) {
      barriers.init(kMostStages, kProducers, kConsumers * 4);
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
      consume(params, tiles, shared, base, barriers, warp, lane);
    }
  }

  static __device__ __forceinline__ void produce(const Params& params, const Tiles& tiles, unsigned base,
                                                 const StageBarriers& barriers, int warp, int lane) {
    const int mine = lane * kProducers + warp;  // block column of the tile
    RingPosition ring;
    // What is needed of a tile is read while the one before it is copied.
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
      const int panel = tile.of(lane).x * kTileM;  // that the lane copies, if it does
      int batch = slabs.x / tiles.slabs_of_batch, in_batch = slabs.x % tiles.slabs_of_batch;
      for (int slab = slabs.x; slab < slabs.y; ++slab) {
        const unsigned stage = base + ring.stage * tiles.stage_bytes, full_barrier = barriers.full_barrier(ring.stage);
        const int k = in_batch * kSlab, first = column * kBlockG;
        if (slab + 1 == slabs.y) column = tiles.column(next, mine);
        barriers.wait_empty(ring.stage, ring.round);
        // Every warp arrives, even with nothing to copy: so none falls behind by two rounds.
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

  using Accumulators = typename Store::Accumulators;

  static __device__ __forceinline__ void consume(const Params& params, const Tiles& tiles, unsigned char* shared, unsigned base,
                                                 const StageBarriers& barriers, int warp, int lane) {
    const int group = warp / 4;
    const int row = group / kGroupsN * 64 + warp % 4 * 16, down = row / kBlockP;  // the warp's first
    Store epilogue = {params.args, &params.out, shared + kStagedAt + warp * Store::kBytes, row, lane};
    typename Store::Unstored unstored;
    const auto meanwhile = [&] {
      if constexpr (Store::kBulk) epilogue.store_part(unstored);
    };
    RingPosition ring;
    // What is needed of a tile is read while the one before it is computed.
    const int items = tiles.count * tiles.parts;
    int next_item = int(tile_of_round(0));
    Tile next = tiles.first;
    for (int round = 1; next_item < items; ++round) {
      const Tile tile = next;
      const int part = next_item % tiles.parts;
      const int2 slabs = tiles.slabs_of(part);
      next_item = int(tile_of_round(round));
      next = tiles.tile(next_item);
      const int4 mine = tile.of(group);
      const int columns = mine.z - mine.y, panel_at = tile.panel_at(group), columns_at = tile.columns_at(group);
      // Where the block that the warp has a part of lies in values, in each gathered column; a lane knows one.
      int position = -1;
      int4 column = make_int4(0, 0, 0, 0);
      if (lane < columns) {
        column = __ldg(tiles.lists.steps + mine.y + lane);
        if (column.y >> down & 1) position = __ldg(tiles.lists.positions + column.z + __popc(column.y & ((1 << down) - 1)));
      }
      Accumulators c = {};
      accumulate<kGroupN>(multiplied(columns, tiles.step), c, tiles, base, barriers, ring, slabs.y - slabs.x, panel_at, columns_at,
                          warp % 4, lane, meanwhile);
      ptx::fence_accumulators(c);
      epilogue.keep_inside(c, mine.x * kTileM, columns, column.x);
      if constexpr (SPLIT) {
        if (tiles.parts > 1) {
          float* sums = static_cast<float*>(params.args.workspace) + part * params.args.nnz * (BLOCK_ROWS * BLOCK_COLS);
          epilogue.store_floats(sums, c, columns, position);
          continue;
        }
      }
      if constexpr (Store::kBulk) {
        while (epilogue.store_part(unstored)) {}  // what a short sum has left of the tile before
        Store::finish_tile(c, columns, position, unstored);
      } else {
        epilogue.store(c, columns, position);
      }
    }
    if constexpr (Store::kBulk) {
      while (epilogue.store_part(unstored)) {}
    }
    epilogue.drain();
  }

  // c += panel x gathered over all of k, for the warpgroup's columns, which lie at `panel_at` and `columns_at` in a stage: `columns`
  // of them, a multiple of kWgmmaNStep, COLUMNS at most; `meanwhile` is done once a stage of 16-bit elements. A loop for each width, since
  // a branch in it would be where ptxas ends a batch of wgmma: waiting for the batch before would then wait for this one too.
  template <int COLUMNS, typename Meanwhile>
  static __device__ __forceinline__ void accumulate(int columns, Accumulators& c, const Tiles& tiles, unsigned base,
                                                    const StageBarriers& barriers, RingPosition& ring, int slabs, int panel_at,
                                                    int columns_at, int warp, int lane, const Meanwhile& meanwhile) {
    if constexpr (COLUMNS > 0) {
      if (columns < COLUMNS) {
        accumulate<COLUMNS - kWgmmaNStep>(columns, c, tiles, base, barriers, ring, slabs, panel_at, columns_at, warp, lane, meanwhile);
        return;
      }
    }
    int previous = -1;
    for (int i = 0; i < slabs; ++i) {
      barriers.wait_full(ring.stage, ring.round);
      const unsigned stage = base + ring.stage * tiles.stage_bytes;
      if constexpr (kTf32) {
        // The other warpgroup multiplies while this one loads fragments and waits.
        multiply_tf32<COLUMNS>(c, stage + panel_at, stage + columns_at, warp, lane);
        barriers.release(ring.stage, lane);
      } else {
        multiply<COLUMNS>(c, stage + panel_at, stage + columns_at);
        ptx::wgmma_wait<1>();
        if (previous >= 0) barriers.release(previous, lane);
        previous = ring.stage;
        meanwhile();
      }
      ring.next(tiles.stages);
    }
    if constexpr (!kTf32) {
      ptx::wgmma_wait<0>();
      barriers.release(previous, lane);
    }
  }

  template <int COLUMNS>
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned panel_at, unsigned columns_at) {
    const uint64 panel = ptx::wgmma_descriptor<128>(panel_at, 64 * 128, 1024);
    const uint64 gathered = ptx::wgmma_descriptor<kGatheredRowBytes>(columns_at, kSpanBytes, 8 * kGatheredRowBytes);
    ptx::wgmma_fence();
    if constexpr (COLUMNS > 0) {
#pragma unroll
      for (int k = 0; k < kSlab; k += 16) {
        Element::template wgmma<!kPanelAlongK, !kGatheredAlongK>(
            reinterpret_cast<float(&)[COLUMNS / 2]>(c), ptx::advance(panel, k * (kPanelAlongK ? 2 : 128)),
            ptx::advance(gathered, k * (kGatheredAlongK ? 2 : kGatheredRowBytes)));
      }
    }
    ptx::wgmma_commit();
  }

  template <int COLUMNS>
  static __device__ __forceinline__ void multiply_tf32(Accumulators& c, unsigned panel_at, unsigned columns_at, int warp, int lane) {
    if constexpr (COLUMNS > 0) {
      const uint64 gathered = ptx::wgmma_descriptor<128>(columns_at, 0, 1024);
      typename Panel::Fragments panel;
      Panel::load(panel, panel_at, warp, lane);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSlab; k += 8) {
        ptx::wgmma_tf32(reinterpret_cast<float(&)[COLUMNS / 2]>(c), panel[k / 8][0], ptx::advance(gathered, k * 4));
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
  }

  static int64 grid(const SddArgs& args) {
    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int64 most = GATHER_ROWS ? Shape::tiles(index.C, index.col_gather_steps_capacity())
                                   : Shape::tiles(index.R, index.row_gather_steps_capacity());
    const int64 sms = sm_count();
    return most < sms && !(SPLIT && args.parts > 1) ? most : sms;
  }

  // What is left to do where sums were divided.
  static typename Sum::Params sum(const SddArgs& args) {
    const Index index(args.index, args.rows, args.cols, args.nnz);
    return {static_cast<const float*>(args.workspace), static_cast<Storage*>(args.out), args.nnz * (BLOCK_ROWS * BLOCK_COLS),
            list_of(index), int(grid(args)), int(args.parts)};
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
    if (auto error = Store::encode(args, &params.out)) return error;
    const Box panel_box = kPanelAlongK ? Box{kSlab, kTileM} : Box{kSwizzleElements, kSlab};
    const Box gathered_box = kGatheredAlongK ? Box{kSlab, kBlockG} : Box{kSpan, kSlab};
    if (auto error = encode_map<Storage>(&params.panel, GATHER_ROWS ? args.right : args.left, GATHER_ROWS ? right : left, panel_box)) {
      return error;
    }
    return encode_map<Storage>(&params.gathered, GATHER_ROWS ? args.left : args.right, GATHER_ROWS ? left : right, gathered_box);
  }
};

}  // namespace jitsparse
