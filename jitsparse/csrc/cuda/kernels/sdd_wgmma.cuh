// Dense x dense at the blocks of a pattern on Hopper (sm_90a): bulk copies feed wgmma through a ring of stages; persistent
// CTAs.
//
// A tile is a panel of 64 or 128 rows and some of the block columns that any row of the panel stores, gathered side by side:
// each is copied on its own, and in shared memory they are one wide operand. The list of tiles is part of the index.
//
// With GATHER_ROWS it is the other way round, and the product is computed transposed: a panel of columns, and block rows
// gathered. The copy engine takes as long for a row of 32 bytes as for one of 128, so blocks of 16 and 32 want the operand that
// is gathered to lie along k. Where neither does, as in the gradient of a weight, turn.cuh can copy one before.
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
  static constexpr int kBlockP = GATHER_ROWS ? BLOCK_COLS : BLOCK_ROWS, kBlockG = GATHER_ROWS ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr bool kPanelAlongK = GATHER_ROWS ? RIGHT_K_CONTIGUOUS : LEFT_K_CONTIGUOUS;
  static constexpr bool kGatheredAlongK = GATHER_ROWS ? LEFT_K_CONTIGUOUS : RIGHT_K_CONTIGUOUS;
  using Shape = GatherShape<kBlockP, kBlockG>;
  static constexpr int kItemBytes = sizeof(Storage), kRowItems = 128 / kItemBytes;  // of the widest rows that a swizzle knows
  static constexpr int kTileM = Shape::kPanel, kSlab = kRowItems;
  static constexpr int kColumns = Shape::kMost;
  static_assert(kColumns <= 32, "one lane copies one block column");
  static constexpr bool kTf32 = kItemBytes == 4;
  static_assert(!kTf32 || (kGatheredAlongK && kBlockP >= 32 && kBlockG >= 32), "see above");
  using Panel = RegisterOperand<1, kPanelAlongK>;  // of TF32
  using Order = RowOrder<1, kTf32 && !kPanelAlongK>;
  using Sum = SddSum<Element>;
  using Store = SddStore<Element, BLOCK_ROWS, BLOCK_COLS, GATHER_ROWS, Order>;

  // Two warpgroups, of 64 rows and up to 256 columns each: one below the other if blocks are 128 high, else side by side.
  static constexpr int kConsumers = 2, kGroupsM = kTileM / 64, kGroupsN = kConsumers / kGroupsM;
  static constexpr int kGroupN = Store::kGroupN, kHalf = 128;  // a wgmma has kHalf columns, or kGroupN
  static constexpr int kProducers = 4;  // warps, each with its share of the block columns
  static constexpr int kThreads = 128 * (kConsumers + 1);

  static constexpr int kPanelBytes = kTileM * 128, kColumnBytes = kBlockG * 128;
  // A block column that runs along n is copied in pieces of at most kRowItems columns, the width of the swizzle.
  static constexpr int kSpan = kBlockG < kRowItems ? kBlockG : kRowItems;
  static constexpr int kGatheredRowBytes = kGatheredAlongK ? 128 : kSpan * kItemBytes;
  static constexpr int kSpanBytes = kSpan * 128;

  // The widest tile of the pattern decides how many stages there are.
  static constexpr int kRingBytes = (kGroupsM > 1 ? 4 : 3) * (kPanelBytes + Shape::kMost * kColumnBytes), kMostStages = 8;
  static constexpr int kStagedAt = kRingBytes;
  static constexpr int kBarriersAt = kStagedAt + kConsumers * 4 * Store::kBytes;
  static constexpr int kSharedBytes = kBarriersAt + kMostStages * 16 + 1024;  // to begin at a multiple of 1024
  static_assert(kSharedBytes <= 232448, "fits an SM");

  // The pattern as the kernel walks it; the host says where its lists begin, as in spmm_walk.cuh.
  struct Lists {
    const int4* tiles;     // (tiles, columns of the widest, 0, 0), then of each (panel, first step, end, 0)
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

  // Block columns of a tile that the first warpgroup multiplies; the second has the rest.
  static __device__ __forceinline__ int first_half(int columns) { return kGroupsN > 1 ? (columns + 1) / 2 : columns; }

  // Block columns for which a stage needs room: wgmma reads kHalf or kGroupN columns, past the last one too.
  static __device__ __forceinline__ int room(int columns) {
    constexpr int kRead = kHalf / kBlockG;
    const int first = first_half(columns), rest = columns - first;
    const int first_end = (first + kRead - 1) / kRead * kRead, rest_end = first + (rest + kRead - 1) / kRead * kRead;
    return first_end > rest_end ? first_end : rest_end;
  }

  struct Tiles {
    const Lists& lists;
    int4 first;  // of the CTA, if it has any
    int count;
    int stages, stage_bytes;  // of the ring
    int slabs_of_batch, slabs;  // of a sum
    int parts;                  // that it is divided into

    __device__ __forceinline__ explicit Tiles(const Params& params) : lists(params.lists), slabs_of_batch(params.slabs_of_batch) {
      const int4 head = __ldg(lists.tiles);
      // The list has room for a tile a CTA, so this does not have to wait until it is known how many there are.
      if (!SPLIT) first = __ldg(lists.tiles + 1 + blockIdx.x);
      count = head.x;
      stage_bytes = kPanelBytes + room(head.y) * kColumnBytes;
      stages = 0;  // as many as fit; without a division, which would come before the first copy
#pragma unroll
      for (int n = 1; n <= kMostStages; ++n) stages += n * stage_bytes <= kRingBytes;
      slabs = slabs_of_batch * int(params.args.batch);
      parts = SPLIT ? parts_of_sums(count, gridDim.x, int(params.args.parts)) : 1;
      if (SPLIT) first = tile(blockIdx.x);
    }

    // Of what is past the last one, nothing.
    __device__ __forceinline__ int4 tile(int item) const {
      return item < count * parts ? __ldg(lists.tiles + 1 + item / parts) : make_int4(0, 0, 0, 0);
    }

    // Its n-th block column.
    __device__ __forceinline__ int column(const int4& tile, int n) const {
      return tile.y + n < tile.z ? __ldg(&lists.steps[tile.y + n].x) : 0;
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
      ptx::give_registers_back<40>();
      produce(params, tiles, base, barriers, warp - kConsumers * 4, lane);
    } else {
      ptx::take_registers<232>();
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
    int4 tile = tiles.first;
    int column = item < items ? tiles.column(tile, mine) : 0;
    for (int round = 1; item < items; ++round) {
      const int next_item = int(tile_of_round(round));
      const int4 next = tiles.tile(next_item);
      const int2 slabs = tiles.slabs_of(item % tiles.parts);
      const int columns = tile.z - tile.y;
      const int bytes = (warp == 0 ? kPanelBytes : 0) + (columns - warp + kProducers - 1) / kProducers * kColumnBytes;
      int batch = slabs.x / tiles.slabs_of_batch, in_batch = slabs.x % tiles.slabs_of_batch;
      for (int slab = slabs.x; slab < slabs.y; ++slab) {
        const unsigned stage = base + ring.stage * tiles.stage_bytes, copies = barriers.copies(ring.stage);
        const int k = in_batch * kSlab, first = column * kBlockG;
        if (slab + 1 == slabs.y) column = tiles.column(next, mine);
        barriers.wait_empty(ring.stage, ring.round);
        // Every warp arrives, even with nothing to copy: so none falls behind by two rounds.
        if (lane == 0) ptx::mbarrier_arrive_expect(copies, bytes);
        __syncwarp();
        if (warp == 0 && lane == 0) {
          load_operand<kPanelAlongK, kTileM, kRowItems, kRowItems * 128>(stage, &params.panel, copies, tile.x * kTileM, k, batch);
        }
        if (mine < columns) {
          const unsigned to = stage + kPanelBytes + mine * kColumnBytes;
          load_operand<kGatheredAlongK, kBlockG, kSpan, kSpanBytes>(to, &params.gathered, copies, first, k, batch);
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
    const int group = warp / 4, group_m = group / kGroupsN, group_n = group % kGroupsN;
    const int row = group_m * 64 + warp % 4 * 16, down = row / kBlockP;  // the warp's first
    Store way_out = {params.args, &params.out, shared + kStagedAt + warp * Store::kBytes, row, lane};
    typename Store::Finished finished;
    const auto meanwhile = [&] {
      if constexpr (Store::kBulk) way_out.store_part(finished);
    };
    RingPosition ring;
    // What is needed of a tile is read while the one before it is computed.
    const int items = tiles.count * tiles.parts;
    int next_item = int(tile_of_round(0));
    int4 next = tiles.first;
    for (int round = 1; next_item < items; ++round) {
      const int4 tile = next;
      const int part = next_item % tiles.parts;
      const int2 slabs = tiles.slabs_of(part);
      next_item = int(tile_of_round(round));
      next = tiles.tile(next_item);
      // The warpgroup's steps.
      const int middle = tile.y + first_half(tile.z - tile.y);
      const int begin = group_n == 0 ? tile.y : middle, columns = (group_n == 0 ? middle : tile.z) - begin;
      // Where the block that the warp has a part of lies in values, in each gathered column; a lane knows one.
      int position = -1;
      int4 column = make_int4(0, 0, 0, 0);
      if (lane < columns) {
        column = __ldg(tiles.lists.steps + begin + lane);
        if (column.y >> down & 1) position = __ldg(tiles.lists.positions + column.z + __popc(column.y & ((1 << down) - 1)));
      }
      Accumulators c = {};
      if (columns * kBlockG > kHalf) {
        accumulate<kGroupN>(c, tiles, base, barriers, ring, slabs.y - slabs.x, group_m, begin - tile.y, warp % 4, lane, meanwhile);
      } else if (columns > 0) {
        accumulate<kHalf>(c, tiles, base, barriers, ring, slabs.y - slabs.x, group_m, begin - tile.y, warp % 4, lane, meanwhile);
      } else {
        accumulate<0>(c, tiles, base, barriers, ring, slabs.y - slabs.x, group_m, 0, warp % 4, lane, meanwhile);
      }
      ptx::keep_in_order(c);
      const int last = __shfl_sync(~0u, column.x, columns > 0 ? columns - 1 : 0);
      way_out.keep_inside(c, tile.x * kTileM, columns, last);
      if constexpr (SPLIT) {
        if (tiles.parts > 1) {
          float* sums = static_cast<float*>(params.args.workspace) + part * params.args.nnz * (BLOCK_ROWS * BLOCK_COLS);
          way_out.store_floats(sums, c, columns, position);
          continue;
        }
      }
      if constexpr (Store::kBulk) {
        while (way_out.store_part(finished)) {}  // what a short sum has left of the tile before
        Store::finish_tile(c, columns, position, finished);
      } else {
        way_out.store(c, columns, position);
      }
    }
    if constexpr (Store::kBulk) {
      while (way_out.store_part(finished)) {}
    }
    way_out.finish();
  }

  // c += panel x gathered over all of k, for the first COLUMNS of the warpgroup's columns; `meanwhile` is done once a stage of 16-bit
  // elements. A loop for each width, since a branch in it would be where ptxas ends a batch of wgmma: waiting for the batch before
  // would then wait for this one too.
  template <int COLUMNS, typename Meanwhile>
  static __device__ __forceinline__ void accumulate(Accumulators& c, const Tiles& tiles, unsigned base, const StageBarriers& barriers,
                                                    RingPosition& ring, int slabs, int group_m, int first, int warp, int lane,
                                                    const Meanwhile& meanwhile) {
    int previous = -1;
    for (int i = 0; i < slabs; ++i) {
      barriers.wait_full(ring.stage, ring.round);
      const unsigned stage = base + ring.stage * tiles.stage_bytes;
      if constexpr (kTf32) {
        // The other warpgroup multiplies while this one loads fragments and waits.
        multiply_tf32<COLUMNS>(c, stage, group_m, first, warp, lane);
        barriers.release(ring.stage, lane);
      } else {
        multiply<COLUMNS>(c, stage, group_m, first);
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
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned stage, int group_m, int first) {
    const uint64 panel = ptx::wgmma_descriptor<128>(stage + group_m * 64 * 128, 64 * 128, 1024);
    const uint64 gathered = ptx::wgmma_descriptor<kGatheredRowBytes>(stage + kPanelBytes + first * kColumnBytes, kSpanBytes,
                                                                     8 * kGatheredRowBytes);
    ptx::wgmma_fence();
    if constexpr (COLUMNS > 0) {
#pragma unroll
      for (int k = 0; k < kSlab; k += 16) {
        Element::template wgmma<!kPanelAlongK, !kGatheredAlongK>(
            reinterpret_cast<float(&)[COLUMNS / 2]>(c), ptx::moved(panel, k * (kPanelAlongK ? 2 : 128)),
            ptx::moved(gathered, k * (kGatheredAlongK ? 2 : kGatheredRowBytes)));
      }
    }
    ptx::wgmma_commit();
  }

  template <int COLUMNS>
  static __device__ __forceinline__ void multiply_tf32(Accumulators& c, unsigned stage, int group_m, int first, int warp, int lane) {
    if constexpr (COLUMNS > 0) {
      const uint64 gathered = ptx::wgmma_descriptor<128>(stage + kPanelBytes + first * kColumnBytes, 0, 1024);
      typename Panel::Fragments panel;
      Panel::load(panel, stage + group_m * 64 * 128, warp, lane);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSlab; k += 8) {
        ptx::wgmma_tf32(reinterpret_cast<float(&)[COLUMNS / 2]>(c), panel[k / 8][0], ptx::moved(gathered, k * 4));
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
  }

  static int64 grid(const SddArgs& args) {
    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int64 most = GATHER_ROWS ? Shape::tiles(index.C, index.col_gather_steps_capacity())
                                   : Shape::tiles(index.R, index.row_gather_steps_capacity());
    const int64 sms = multiprocessors();
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
    const Box panel_box = kPanelAlongK ? Box{kSlab, kTileM} : Box{kRowItems, kSlab};
    const Box gathered_box = kGatheredAlongK ? Box{kSlab, kBlockG} : Box{kSpan, kSlab};
    if (auto error = encode_map<Storage>(&params.panel, GATHER_ROWS ? args.right : args.left, GATHER_ROWS ? right : left, panel_box)) {
      return error;
    }
    return encode_map<Storage>(&params.gathered, GATHER_ROWS ? args.left : args.right, GATHER_ROWS ? left : right, gathered_box);
  }
};

}  // namespace jitsparse
