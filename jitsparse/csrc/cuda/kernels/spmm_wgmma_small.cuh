// Block-sparse x dense on Hopper (sm_90a) in blocks of 16 and 32 rows: bulk copies feed wgmma through a ring of stages; persistent
// CTAs. 16-bit elements.
//
// The product is computed transposed: columns of the dense operand are wgmma's M, a block's rows its N, so that no product is
// wasted. wgmma reads its left operand, the dense one, from shared memory or from registers:
//   - from shared memory every block reads the slab again, and an SM takes 20 clocks for m64n16k16, a block of 16 rows, and 24 for
//     m64n32k16. Each warpgroup has half of the panel's rows;
//   - from registers, which are loaded once per stage, these take 13 and 16. There is room for half of the columns, so a warpgroup
//     has those and all rows, and tests twice as many bits. Blocks of 32 are 2 to 9 % faster this way in tiles of 256 columns, and
//     1 to 7 % slower in narrower ones. Blocks of 16 are 5 % faster where half of them are stored, but a fifth slower at a quarter.
// The rest of a step is a chain of dependent instructions, each of which costs time.
#pragma once

#include "../../abi.h"
#include "../ptx/wgmma.cuh"
#include "../tile/element.cuh"
#include "../tile/register_operand.cuh"
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
struct SpmmWgmmaSmall {
  using Stages = SpmmStages<Element, BLOCK_ROWS, BLOCK_COLS, FLIPPED, DENSE_K_CONTIGUOUS, PANEL, TILE_N, SLAB, CONDENSED,
                            /*VALUES_TRANSPOSED=*/false, SPLIT>;
  using Output = SpmmOutput<Stages, OUT_TRANSPOSED, /*ACCUMULATOR_ROWS=*/OUT_TRANSPOSED>;
  using Out = typename Output::Out;
  using Params = typename Output::Params;
  using Steps = SpmmSteps<Stages>;
  using Sum = SpmmSum<Element>;
  using Sums = SpmmSums<OUT_TRANSPOSED>;
  static constexpr int kThreads = Stages::kThreads, kMinCtas = 1, kBarriersAt = Output::kBarriersAt, kSharedBytes = Output::kSharedBytes;
  static constexpr int kAcross = Stages::kAcross, kSlotK = Stages::kSlotK, kBlockM = Stages::kBlockM;
  static_assert(PANEL == 128 && (kBlockM == 16 || kBlockM == 32), "the panels and blocks that this is for");

  // Whether the dense operand is read from registers, see above; the cost model has a kind for it (jitsparse/kernels/cost.py).
  static constexpr bool kRegisters = kBlockM == 32 && TILE_N == 256;
  // Tests the next stage's barrier before waiting for the products of this one: 1.02 times as fast in blocks of 16 in 256 columns,
  // elsewhere 0.95 to 1.02.
  static constexpr bool kAsksAhead = kBlockM == 16 && TILE_N == 256;
  // A warpgroup has kTiles times 64 columns and kHalves times 64 rows.
  static constexpr int kTiles = TILE_N / (kRegisters ? 128 : 64), kHalves = kRegisters ? 2 : 1;
  static constexpr int kDown = kHalves * 64 / kBlockM, kGroupSlots = kDown * kAcross;
  using Left = RegisterOperand16<kTiles, SLAB, DENSE_K_CONTIGUOUS>;

  // 64 x 64 subtiles of the output, each [eight rows of the panel][mma fragment].
  using Accumulators = float[kTiles][kHalves][8 * 4];

  // Where a warpgroup's operands are in a stage; carried from stage to stage, since the compiler would otherwise recompute it for every
  // block.
  struct Operands {
    unsigned fragments;  // of the slab if from registers: the address that the lane reads first
    uint64 slab;         // of the slab otherwise: its descriptor
    uint64 blocks;       // descriptor of the blocks

    __device__ __forceinline__ Operands(unsigned slab, unsigned blocks, int warp, int lane)
        : fragments(Left::first(slab, warp, lane)),
          slab(ptx::wgmma_descriptor<Stages::kDenseRowBytes>(slab, Stages::kSubtileBytes, 8 * Stages::kDenseRowBytes)),
          blocks(ptx::wgmma_descriptor<Stages::kSlotRowBytes>(blocks, Stages::kSlotBoxBytes, 8 * Stages::kSlotRowBytes)) {}

    // Operands of the next stage, which is adjacent to this one.
    __device__ __forceinline__ Operands next() const {
      Operands moved = *this;
      moved.fragments += Stages::kStageBytes;
      moved.slab = ptx::advance(slab, Stages::kStageBytes);
      moved.blocks = ptx::advance(blocks, Stages::kStageBytes);
      return moved;
    }
  };

  static __device__ __forceinline__ void run(const Params& params) { Stages::template run<SpmmWgmmaSmall>(params); }

  static __device__ __forceinline__ void consume(const Params& params, unsigned base, const StageBarriers& barriers, int group,
                                                 int thread) {
    const int lane = thread % 32, warp = thread / 32;
    const int first_tile = kRegisters ? group * kTiles : 0, first_half = kRegisters ? 0 : group;
    const int first_slot = first_half * kGroupSlots;
    const Operands first(base + first_tile * Stages::kSubtileBytes, base + Stages::kDenseBytes + first_slot * Stages::kSlotBytes, warp,
                         lane);
    Operands operands = first;
    SpmmTiles<Stages, /*STORES=*/true> tiles(params);
    tiles.begin();
    StepMasks masks(tiles.index.steps, lane);
    RingPosition ring;
    bool full = false;  // the next stage, as far as is known
    Out staging = Output::staging_of(base, group, thread);
    masks.start(tiles.next_panel);
    while (tiles.advance()) {
      Accumulators c = {};
      unsigned ahead = masks.take(0);
      for (int step = 0; step < tiles.steps(); ++step) {
        const unsigned mask = ahead >> first_slot;
#pragma unroll
        for (int i = 0; i < Stages::kStagesPerStep; ++i) {
          if (!full) barriers.wait_full(ring.stage, ring.round);
          const int stage = ring.stage;
          multiply(c, operands, mask, [&] {
            ring.next(Stages::kStages);
            full = kAsksAhead && barriers.is_full(ring.stage, ring.round);
            operands = ring.stage == 0 ? first : operands.next();
            if (i == 0) ahead = masks.take(step + 1);
          });
          barriers.release(stage, lane);
        }
      }
      if (tiles.next.valid) masks.start(tiles.next_panel);
      ptx::fence_accumulators(reinterpret_cast<float(&)[kTiles * kHalves][8 * 4]>(c));
      if (SPLIT && params.args.parts > 1) {
        store_sums(params.args, c, tiles, first_tile, first_half, thread);
        return;
      }
      store(params, c, tiles.rows, tiles.tile, first_tile, first_half, staging);
    }
    staging.drain();
  }

  // c += blocks x slab of a stage, for the blocks in the mask; `meanwhile` prepares the next stage.
  template <typename Meanwhile>
  static __device__ __forceinline__ void multiply(Accumulators& c, Operands operands, unsigned mask, const Meanwhile& meanwhile) {
    typename Left::Fragments a;
    if constexpr (kRegisters) Left::load(a, operands.fragments);
#pragma unroll
    for (int down = 0; down < kDown; ++down) {
      // One test skips a row; most are empty in a sparse pattern.
      const unsigned row = mask >> down * kAcross & ((1u << kAcross) - 1);
      if (!row) continue;
#pragma unroll
      for (int across = 0; across < kAcross; ++across) {
        if (kAcross > 1 && !(row >> across & 1)) continue;
        ptx::wgmma_fence();  // in the branch, since ptxas would insert another there
#pragma unroll
        for (int k = 0; k < kSlotK; k += 16) {
          const int in_block = k * (FLIPPED ? Stages::kSlotRowBytes : 2), in_slab = across * kSlotK + k;
          const uint64 block = ptx::advance(operands.blocks, (down * kAcross + across) * Stages::kSlotBytes + in_block);
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            float(&of_rows)[kBlockM / 2] = reinterpret_cast<float(&)[kBlockM / 2]>(c[t][down * kBlockM / 64][down * kBlockM % 64 / 2]);
            if constexpr (kRegisters) {
              Element::template wgmma<FLIPPED>(of_rows, a[in_slab / 16][t], block);
            } else {
              const int at = t * Stages::kSubtileBytes + in_slab * (DENSE_K_CONTIGUOUS ? 2 : Stages::kDenseRowBytes);
              Element::template wgmma<!DENSE_K_CONTIGUOUS, FLIPPED>(of_rows, ptx::advance(operands.slab, at), block);
            }
          }
        }
      }
    }
    ptx::wgmma_commit();
    meanwhile();
    ptx::wgmma_wait<0>();
  }

  // Stores the sums of the CTA's split-K part.
  static __device__ __forceinline__ void store_sums(const SpmmArgs& args, const Accumulators& c, const SpmmTiles<Stages, true>& tiles,
                                                    int first_tile, int first_half, int thread) {
    const int64 m = Stages::m(args);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i) {
        const int at_n = tiles.tile.column * TILE_N + (first_tile + t) * 64, at_m = Steps::first_row(tiles.rows, first_half + i);
        store_fragments<RowOrder<1, false>, !OUT_TRANSPOSED>(reinterpret_cast<const float(&)[1][8][4]>(c[t][i]),
                                                             Sums::at(args, m, tiles.part, tiles.tile.batch), Sums::ld(args, m), at_n,
                                                             args.n, at_m, m, thread / 32, thread % 32);
      }
    }
  }

  // Applies bias and activation, rounds, and stores.
  static __device__ __forceinline__ void store(const Params& params, Accumulators& c, const int4& rows, const SpmmTile& tile,
                                               int first_tile, int first_half, Out& staging) {
    const int64 m = Stages::m(params.args);
    BiasOfColumns<Element> bias[kHalves];
    if (OUT_TRANSPOSED && params.args.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i) bias[i].prefetch(params.args.bias, Steps::first_row(rows, first_half + i), m, staging.thread % 32);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < kHalves; ++i) add_bias_along(reinterpret_cast<float(&)[8][4]>(c[t][i]), bias[i]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i) {
        const int at_n = tile.column * TILE_N + (first_tile + t) * 64, at_m = Steps::first_row(rows, first_half + i);
        if (at_m >= m || at_n >= params.args.n) continue;
        unsigned packed[1][8 * 2];
        finish_subtiles<Element>(reinterpret_cast<float(&)[1][8][4]>(c[t][i]), params.args.activation, packed);
        Output::send(params, staging, packed[0], at_m, at_n, tile.batch);
      }
    }
  }

  static int64 grid(const SpmmArgs& args) { return Stages::grid(args); }
  static cudaError_t prepare(const SpmmArgs& args, Params& params) { return Output::prepare(args, params); }
  static typename Sum::Params sum(const SpmmArgs& args) { return Sum::template of<Sums>(args, Stages::m(args), Stages::parts(args)); }
};

}  // namespace jitsparse
