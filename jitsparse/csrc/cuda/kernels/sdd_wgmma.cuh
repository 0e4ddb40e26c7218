// Dense x dense at the blocks of a pattern on Hopper (sm_90a): bulk copies feed wgmma through a ring of stages; persistent
// CTAs.
//
// Each warpgroup multiplies 64 rows of a panel, wgmma's M, by columns that are gathered side by side, its N; sdd_stages.cuh says what a
// tile is. With SPLIT tiles may be split along k where there are more CTAs than tiles; sdd_sum.cuh adds the parts.
//
// float32 is multiplied as TF32, in blocks of 32 and more. wgmma reads 32-bit operands from shared memory only if they are k-major, so the
// gathered one must be. The panel comes from registers, in either major order.
#pragma once

#include "../../abi.h"
#include "../ptx/wgmma.cuh"
#include "../tile/element.cuh"
#include "../tile/register_operand.cuh"
#include "../tile/ring.cuh"
#include "../tile/row_order.cuh"
#include "sdd_stages.cuh"
#include "sdd_store.cuh"
#include "sdd_sum.cuh"

namespace jitsparse {

template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, bool GATHER_ROWS,
          bool SPLIT>
struct SddWgmma {
  using Stages = SddStages<Element, BLOCK_ROWS, BLOCK_COLS, LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS, GATHER_ROWS, SPLIT>;
  using Params = typename Stages::Params;
  using Storage = typename Stages::Storage;
  using Tile = typename Stages::Tile;
  using Tiles = typename Stages::Tiles;
  static constexpr bool kPanelAlongK = Stages::kPanelAlongK, kGatheredAlongK = Stages::kGatheredAlongK;
  static constexpr int kBlockP = Stages::kBlockP, kTileM = Stages::kTileM, kSlab = Stages::kSlab;
  static constexpr int kGatheredRowBytes = Stages::kGatheredRowBytes, kSpanBytes = Stages::kSpanBytes;
  static constexpr int kThreads = Stages::kThreads, kMinCtas = 1;
  static constexpr bool kTf32 = Stages::kElementBytes == 4;
  static_assert(!kTf32 || (kGatheredAlongK && kBlockP >= 32 && Stages::kBlockG >= 32), "see above");
  using Panel = RegisterOperand<1, kPanelAlongK>;  // for TF32
  using Order = RowOrder<1, kTf32 && !kPanelAlongK>;
  using Sum = SddSum<Element>;
  using Store = SddStore<Element, BLOCK_ROWS, BLOCK_COLS, GATHER_ROWS, Order>;
  using Accumulators = typename Store::Accumulators;
  static constexpr int kGroupN = Store::kGroupN, kWgmmaNStep = 64;  // wgmma's N: maximum, granularity
  static_assert(kGroupN / Stages::kBlockG <= 32, "one lane looks up where the block of one gathered column lies");

  static constexpr int kStagedAt = Stages::kRingBytes;
  static constexpr int kBarriersAt = kStagedAt + Stages::kConsumers * 4 * Store::kBytes;
  static constexpr int kSharedBytes = kBarriersAt + Stages::kMaxStages * 16 + kSharedAlignment;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than an SM has");

  static __device__ __forceinline__ void run(const Params& params) { Stages::template run<SddWgmma>(params); }

  // ---- consumers

  static __device__ __forceinline__ void consume(const Params& params, const Tiles& tiles, unsigned char* shared, unsigned base,
                                                 const StageBarriers& barriers, int warp, int lane) {
    const int group = warp / 4;
    const int row = group / Stages::kGroupsN * 64 + warp % 4 * 16, down = row / kBlockP;  // the warp's first row, its block row
    Store epilogue = {params.args, &params.out, shared + kStagedAt + warp * Store::kBytes, row, lane};
    typename Store::Unstored unstored;
    const auto meanwhile = [&] {
      if constexpr (Store::kBulk) epilogue.store_subtile(unstored);
    };
    Ring ring = {barriers, base, tiles.stages, tiles.stage_bytes};
    // A tile's entries of the index are read while the previous tile is computed.
    const int items = tiles.count * tiles.parts;
    int next_item = int(tile_of_round(0));
    Tile next = tiles.first;
    for (int round = 1; next_item < items; ++round) {
      const int item = next_item, part = item % tiles.parts;
      const int2 slabs = tiles.slabs_of(part);
      const Tile tile = next;
      next_item = int(tile_of_round(round));
      next = tiles.tile(next_item);
      const int4 mine = tile.of(group);
      const int columns = mine.z - mine.y;
      const Operands operands = {tile.panel_at(group), tile.columns_at(group), warp % 4, lane};
      // The position in values of the warp's block in each gathered column, one per lane.
      int position = -1;
      int4 column = make_int4(0, 0, 0, 0);
      if (lane < columns) {
        column = __ldg(tiles.lists.steps + mine.y + lane);
        if (column.y >> down & 1) position = __ldg(tiles.lists.positions + column.z + __popc(column.y & ((1 << down) - 1)));
      }
      Accumulators c = {};
      with_width<kGroupN>(tiles.multiplied(columns), [&](auto width) {
        if constexpr (kTf32) {
          main_loop_tf32<width.kN>(c, ring, operands, slabs.y - slabs.x);
        } else {
          main_loop<width.kN>(c, ring, operands, slabs.y - slabs.x, meanwhile);
        }
      });
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
        while (epilogue.store_subtile(unstored)) {}  // what a short sum left of the previous tile
        Store::finish_tile(c, columns, position, unstored);
      } else {
        epilogue.store(c, columns, position);
      }
    }
    if constexpr (Store::kBulk) {
      while (epilogue.store_subtile(unstored)) {}
    }
    epilogue.drain();
  }

  // A consumer's view of the ring of stages.
  struct Ring {
    const StageBarriers& barriers;
    unsigned base;
    int stages, stage_bytes;
    RingPosition at;

    // Waits for the next stage and returns its address.
    __device__ __forceinline__ unsigned wait() const {
      barriers.wait_full(at.stage, at.round);
      return base + at.stage * stage_bytes;
    }
    __device__ __forceinline__ void next() { at.next(stages); }
  };

  // Offsets of the warpgroup's operands in a stage, and the thread's warp and lane.
  struct Operands {
    int panel_at, columns_at;
    int warp, lane;
  };

  // The main loop: c += panel x gathered over all slabs of k, for N columns; `meanwhile` runs once per stage.
  template <int N, typename Meanwhile>
  static __device__ __forceinline__ void main_loop(Accumulators& c, Ring& ring, const Operands& operands, int slabs,
                                                   const Meanwhile& meanwhile) {
    int previous = -1;  // the stage that is being multiplied
    for (int i = 0; i < slabs; ++i) {
      const unsigned stage = ring.wait();
      multiply<N>(c, stage + operands.panel_at, stage + operands.columns_at);
      ptx::wgmma_wait<1>();
      if (previous >= 0) ring.barriers.release(previous, operands.lane);
      previous = ring.at.stage;
      meanwhile();
      ring.next();
    }
    ptx::wgmma_wait<0>();
    ring.barriers.release(previous, operands.lane);  // there is one: split.py gives every split-K part a slab at least
  }

  // The main loop in TF32: one warpgroup multiplies while the other loads fragments and waits.
  template <int N>
  static __device__ __forceinline__ void main_loop_tf32(Accumulators& c, Ring& ring, const Operands& operands, int slabs) {
    for (int i = 0; i < slabs; ++i) {
      const unsigned stage = ring.wait();
      multiply_tf32<N>(c, stage + operands.panel_at, stage + operands.columns_at, operands.warp, operands.lane);
      ring.barriers.release(ring.at.stage, operands.lane);
      ring.next();
    }
  }

  template <int N>
  struct Width {
    static constexpr int kN = N;
  };

  // Calls `loop` with `columns`, a multiple of kWgmmaNStep and at most MOST, as a constant. One loop per width, since ptxas ends a batch of
  // wgmma at a branch: waiting for the previous batch would then wait for this one too.
  template <int MOST, typename Loop>
  static __device__ __forceinline__ void with_width(int columns, const Loop& loop) {
    if constexpr (MOST > 0) {
      if (columns < MOST) return with_width<MOST - kWgmmaNStep>(columns, loop);
    }
    loop(Width<MOST>());
  }

  template <int N>
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned panel_at, unsigned columns_at) {
    const uint64 panel = ptx::wgmma_descriptor<128>(panel_at, 64 * 128, 1024);
    const uint64 gathered = ptx::wgmma_descriptor<kGatheredRowBytes>(columns_at, kSpanBytes, 8 * kGatheredRowBytes);
    ptx::wgmma_fence();
    if constexpr (N > 0) {
#pragma unroll
      for (int k = 0; k < kSlab; k += 16) {
        Element::template wgmma<!kPanelAlongK, !kGatheredAlongK>(
            reinterpret_cast<float(&)[N / 2]>(c), ptx::advance(panel, k * (kPanelAlongK ? 2 : 128)),
            ptx::advance(gathered, k * (kGatheredAlongK ? 2 : kGatheredRowBytes)));
      }
    }
    ptx::wgmma_commit();
  }

  template <int N>
  static __device__ __forceinline__ void multiply_tf32(Accumulators& c, unsigned panel_at, unsigned columns_at, int warp, int lane) {
    if constexpr (N > 0) {
      const uint64 gathered = ptx::wgmma_descriptor<128>(columns_at, 0, 1024);
      typename Panel::Fragments panel;
      Panel::load(panel, panel_at, warp, lane);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSlab; k += 8) {
        ptx::wgmma_tf32(reinterpret_cast<float(&)[N / 2]>(c), panel[k / 8][0], ptx::advance(gathered, k * 4));
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
  }

  // ---- host

  static int64 grid(const SddArgs& args) { return Stages::grid(args); }

  // Parameters of the kernel that adds the parts of split tiles.
  static typename Sum::Params sum(const SddArgs& args) {
    const typename Stages::Index index(args.index, args.rows, args.cols, args.nnz);
    return {static_cast<const float*>(args.workspace), static_cast<Storage*>(args.out), args.nnz * (BLOCK_ROWS * BLOCK_COLS),
            Stages::Lists::tiles_of(index), int(grid(args)), int(args.parts)};
  }

  static cudaError_t prepare(const SddArgs& args, Params& params) {
    if (auto error = Store::encode(args, &params.out)) return error;
    return Stages::prepare(args, params);
  }
};

}  // namespace jitsparse
