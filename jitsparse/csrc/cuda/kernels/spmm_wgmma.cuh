// Block-sparse x dense on Hopper (sm_90a) in blocks of 64 and 128 rows: bulk copies feed wgmma through a ring of stages; persistent
// CTAs. 16-bit elements.
//
// Each warpgroup multiplies 64 rows of the panel, wgmma's M; columns of the slab are its N.
#pragma once

#include "../../abi.h"
#include "../ptx/wgmma.cuh"
#include "../tile/element.cuh"
#include "../tile/ring.cuh"
#include "../tile/epilogue_subtile.cuh"
#include "../tile/step_masks.cuh"
#include "../tile/store_fragments.cuh"
#include "spmm_output.cuh"
#include "spmm_stages.cuh"
#include "spmm_sum.cuh"

namespace jitsparse {

// PANEL, TILE_N: rows and columns of a tile. SLAB: depth of a stage. CONDENSED, SPLIT: see SpmmStages.
template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int PANEL,
          int TILE_N, int SLAB, bool CONDENSED, bool SPLIT>
struct SpmmWgmma {
  using Stages = SpmmStages<Element, BLOCK_ROWS, BLOCK_COLS, FLIPPED, DENSE_K_CONTIGUOUS, PANEL, TILE_N, SLAB, CONDENSED,
                            /*VALUES_TRANSPOSED=*/false, SPLIT>;
  using Output = SpmmOutput<Stages, OUT_TRANSPOSED, /*ACCUMULATOR_ROWS=*/!OUT_TRANSPOSED>;
  using Out = typename Output::Out;
  using Params = typename Output::Params;
  using Steps = SpmmSteps<Stages>;
  using Sum = SpmmSum<Element>;
  using Sums = SpmmSums<OUT_TRANSPOSED>;
  static constexpr int kThreads = Stages::kThreads, kMinCtas = 1, kBarriersAt = Output::kBarriersAt, kSharedBytes = Output::kSharedBytes;
  static constexpr int kConsumers = Stages::kConsumers;
  static constexpr int kPanel = PANEL, kTileN = TILE_N, kStagesPerStep = Stages::kStagesPerStep, kAcross = Stages::kAcross;
  static constexpr int kSlotK = Stages::kSlotK, kSlots = Stages::kSlots, kBlockM = Stages::kBlockM;
  static constexpr int kSlotBytes = Stages::kSlotBytes, kSlotRowBytes = Stages::kSlotRowBytes;
  static constexpr int kSlotBoxBytes = Stages::kSlotBoxBytes;
  static constexpr int kDenseRowBytes = Stages::kDenseRowBytes, kSubtileBytes = Stages::kSubtileBytes;

  static constexpr int kGroupM = 64;  // rows per warpgroup
  static_assert(kGroupM * kConsumers == kPanel, "each warpgroup has 64 rows of the panel");
  static_assert(kBlockM >= kGroupM, "spmm_wgmma_small.cuh multiplies shorter blocks");

  static __device__ __forceinline__ void run(const Params& params) { Stages::template run<SpmmWgmma>(params); }

  // ---- consumers

  // A warpgroup's 64 x 64 subtiles of the output, each [eight columns][mma fragment].
  static constexpr int kSubtiles = kTileN / 64;
  using Accumulators = float[kSubtiles][8 * 4];

  // With one block per warpgroup and stage, a tile is stored while the next one is multiplied. With more, the warps are as busy as the
  // tensor cores, and waiting costs 4 to 7 %; three warpgroups have no registers for it.
  static constexpr bool kDeferred = kAcross == 1 && !Stages::kTall;
  // Columns of a wgmma: all, except that ptxas needs more registers for 256 than three warpgroups have.
  static constexpr int kWide = Stages::kTall ? 128 : kTileN;

  // A finished tile, rounded and packed, with subtiles still to be stored.
  static constexpr unsigned kStored = 1u << kSubtiles;
  struct Unstored {
    unsigned packed[kSubtiles][8 * 2];
    unsigned next = kStored;  // 1 << the next subtile to store (its number would index local memory)
    int first_m, next_n, batch;
  };

  // A warpgroup's state across tiles.
  struct Consumer {
    const Params& params;
    unsigned base;
    const StageBarriers& barriers;
    int group, lane;
    StepMasks masks;
    Out staging;
    RingPosition ring = {};
    Unstored unstored = {};

    __device__ __forceinline__ int first_slot() const { return kBlockM > kGroupM ? 0 : group * kAcross; }
    __device__ __forceinline__ void release(int stage) const { barriers.release(stage, lane); }
  };

  static __device__ __forceinline__ void consume(const Params& params, unsigned base, const StageBarriers& barriers, int group,
                                                 int thread) {
    const int lane = thread % 32;
    SpmmTiles<Stages, /*STORES=*/true> tiles(params);
    tiles.begin();
    Consumer my = {params, base, barriers, group, lane, StepMasks(tiles.index.steps, lane), Output::staging_of(base, group, thread)};
    if (kSlots > 1) my.masks.start(tiles.next_panel);
    const bool biased = OUT_TRANSPOSED && params.args.bias != nullptr;
    BiasOfRows<Element> bias;
    // Loaded while the previous tile is finished. (At the tile's own start up to 1 % slower: a wait for the masks waits for this too.)
    const auto prefetch_bias = [&] {
      const int first_row = Steps::first_row(tiles.next_rows, group) + thread / 32 * 16;
      if (tiles.next.valid) bias.prefetch(params.args.bias, first_row, Stages::m(params.args), lane);
    };
    if (biased) prefetch_bias();
    while (tiles.advance()) {
      const int first_m = Steps::first_row(tiles.rows, group);
      Accumulators c = {};
      main_loop(my, c, tiles.steps());
      if (kSlots > 1 && tiles.next.valid) my.masks.start(tiles.next_panel);
      ptx::fence_accumulators(c);
      if (SPLIT && params.args.parts > 1) {
        store_sums(params.args, c, first_m, tiles.tile, tiles.part, thread);
        return;
      }
      if (biased) {
        add_bias_down(reinterpret_cast<float(&)[kTileN / 8][4]>(c), bias);
        prefetch_bias();
      }
      if constexpr (kDeferred) {
        // What a short tile left unstored of the previous one.
        while (my.unstored.next != kStored) store_subtile(params, my.unstored, my.staging);
        finish(params, c, first_m, tiles.tile, my.unstored);
      } else {
        store(params, c, first_m, tiles.tile, my.staging);
      }
    }
    while (my.unstored.next != kStored) store_subtile(params, my.unstored, my.staging);
    my.staging.drain();
  }

  // ---- the main loop: c += panel x dense operand, over the steps of a tile

  static __device__ __forceinline__ void main_loop(Consumer& my, Accumulators& c, int steps) {
    int pending = -1;  // the stage that wgmma still reads
    for (int step = 0; step < steps; ++step) {
      const unsigned mask = kSlots > 1 ? my.masks.take(step) >> my.first_slot() : 1;  // from the group's first block on
#pragma unroll
      for (int i = 0; i < kStagesPerStep; ++i) {
        my.barriers.wait_full(my.ring.stage, my.ring.round);
        const unsigned stage = my.base + my.ring.stage * Stages::kStageBytes;
        if constexpr (kDeferred) {
          pending = multiply_and_store(my, c, stage, mask, pending);
        } else {
          if (kAcross > 1 || mask & 1) {
            multiply(c, stage, my.first_slot(), my.group, mask);
            ptx::wgmma_wait<0>();
          }
          my.release(my.ring.stage);
        }
        my.ring.next(Stages::kStages);
      }
    }
    ptx::wgmma_wait<0>();
    if (pending >= 0) my.release(pending);
  }

  // Starts to multiply a stage, then releases the one that was pending and stores a subtile of the previous tile. Returns the stage that
  // is pending now, -1 if none.
  static __device__ __forceinline__ int multiply_and_store(Consumer& my, Accumulators& c, unsigned stage, unsigned mask, int pending) {
    if (mask & 1) {
      multiply(c, stage, my.first_slot(), my.group, mask);
      ptx::wgmma_wait<1>();
      if (pending >= 0) my.release(pending);
      store_subtile(my.params, my.unstored, my.staging);  // in both branches: after them 256 columns would spill
      return my.ring.stage;
    }
    // The pending stage must not be held over a run of steps of the other warpgroup: the ring would stall.
    ptx::wgmma_wait<0>();
    if (pending >= 0) my.release(pending);
    my.release(my.ring.stage);
    store_subtile(my.params, my.unstored, my.staging);
    return -1;
  }

  // Starts c += blocks x slab, for the blocks in the mask. With one block per warpgroup there is no branch: ptxas ends a batch of wgmma at
  // every branch, and waiting for the previous batch would then wait for this one too.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned stage, int first_slot, int group, unsigned mask) {
    const uint64 dense = ptx::wgmma_descriptor<kDenseRowBytes>(stage, kSubtileBytes, 8 * kDenseRowBytes);
    // Offset of the warpgroup's half of a block of 128 rows.
    const int half = kBlockM > kGroupM ? group * (FLIPPED ? kSlotBoxBytes : kGroupM * kSlotRowBytes) : 0;
    const uint64 blocks = ptx::wgmma_descriptor<kSlotRowBytes>(stage + Stages::kDenseBytes + first_slot * kSlotBytes + half, kSlotBoxBytes,
                                                               8 * kSlotRowBytes);
#pragma unroll
    for (int across = 0; across < kAcross; ++across) {
      if (kAcross > 1 && !(mask >> across & 1)) continue;
      ptx::wgmma_fence();  // in the branch, since ptxas would insert another there
#pragma unroll
      for (int k = 0; k < kSlotK; k += 16) {
        const uint64 block = ptx::advance(blocks, across * kSlotBytes + k * (FLIPPED ? kSlotRowBytes : 2));
        const int in_slab = (across * kSlotK + k) * (DENSE_K_CONTIGUOUS ? 2 : kDenseRowBytes);
#pragma unroll
        for (int n = 0; n < kTileN; n += kWide) {
          Element::template wgmma<FLIPPED, !DENSE_K_CONTIGUOUS>(reinterpret_cast<float(&)[kWide / 2]>(c[n / 64]), block,
                                                                ptx::advance(dense, n / 64 * kSubtileBytes + in_slab));
        }
      }
    }
    ptx::wgmma_commit();
  }

  // ---- epilogue

  // Stores the sums of the CTA's split-K part.
  static __device__ __forceinline__ void store_sums(const SpmmArgs& args, const Accumulators& c, int first_m, const SpmmTile& tile,
                                                    int part, int thread) {
    const int64 m = Stages::m(args);
    store_fragments<RowOrder<1, false>, OUT_TRANSPOSED>(reinterpret_cast<const float(&)[1][kTileN / 8][4]>(c),
                                                        Sums::at(args, m, part, tile.batch), Sums::ld(args, m), first_m, m,
                                                        tile.column * kTileN, args.n, thread / 32, thread % 32);
  }

  static __device__ __forceinline__ void store(const Params& params, Accumulators& c, int first_m, const SpmmTile& tile,
                                               Out& staging) {
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
      const int at_n = tile.column * kTileN + i * 64;
      if (first_m >= Stages::m(params.args) || at_n >= params.args.n) break;
      unsigned packed[1][8 * 2];
      finish_subtiles<Element>(reinterpret_cast<float(&)[1][8][4]>(c[i]), params.args.activation, packed);
      Output::send(params, staging, packed[0], first_m, at_n, tile.batch);
    }
  }

  static __device__ __forceinline__ void finish(const Params& params, Accumulators& c, int first_m, const SpmmTile& tile,
                                                Unstored& unstored) {
    finish_subtiles<Element>(reinterpret_cast<float(&)[kSubtiles][8][4]>(c), params.args.activation, unstored.packed);
    unstored.next = first_m < Stages::m(params.args) ? 1 : kStored;
    unstored.first_m = first_m;
    unstored.next_n = tile.column * kTileN;
    unstored.batch = tile.batch;
  }

  // Starts to store the next subtile of a finished tile, if there is one.
  static __device__ __forceinline__ void store_subtile(const Params& params, Unstored& unstored, Out& staging) {
    if (unstored.next == kStored) return;
    const unsigned at = staging.acquire();
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
      if (unstored.next & 1u << i) staging.stage(at, unstored.packed[i]);
    }
    Output::store(params, staging, at, unstored.first_m, unstored.next_n, unstored.batch);
    unstored.next_n += 64;
    unstored.next = unstored.next_n < params.args.n ? unstored.next << 1 : kStored;
  }

  static int64 grid(const SpmmArgs& args) { return Stages::grid(args); }
  static cudaError_t prepare(const SpmmArgs& args, Params& params) { return Output::prepare(args, params); }
  static typename Sum::Params sum(const SpmmArgs& args) { return Sum::template of<Sums>(args, Stages::m(args), Stages::parts(args)); }
};

}  // namespace jitsparse
