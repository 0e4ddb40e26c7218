// Block-sparse x dense on Hopper (sm_90a) for float32 multiplied as TF32: bulk copies feed wgmma through a ring of stages;
// persistent CTAs. Blocks of 32, 64 and 128.
//
// wgmma reads a 32-bit operand from shared memory only if it is k-major; its left operand (M) may come from registers instead, and
// so be in either major order. So the right operand (N) is
//   - the stored block if it is k-major: the product is computed transposed, columns of the dense operand are M. Each warpgroup has
//     half of the tile's columns and all rows of the panel, so that no column is read twice;
//   - else the dense operand, if that is k-major. Each warpgroup has 64 rows of the panel, so blocks have at least as many: one of
//     32 that is not stored would be multiplied as zeros, and infinity times zero is NaN.
// If neither is, transpose.cuh first copies the dense operand, or the blocks, which are then right operands, those of 32 rows too.
#pragma once

#include "../../abi.h"
#include "../ptx/wgmma.cuh"
#include "../tile/activation.cuh"
#include "../tile/element.cuh"
#include "../tile/register_operand.cuh"
#include "../tile/ring.cuh"
#include "../tile/step_masks.cuh"
#include "../tile/store_fragments.cuh"
#include "spmm_stages.cuh"

namespace jitsparse {

template <int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool VALUES_TRANSPOSED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int TILE_N>
struct SpmmWgmmaTf32 {
  static constexpr int kSlab = 32;
  using Stages = SpmmStages<Tf32, BLOCK_ROWS, BLOCK_COLS, FLIPPED, DENSE_K_CONTIGUOUS, /*PANEL=*/128, TILE_N, kSlab, /*CONDENSED=*/false,
                            VALUES_TRANSPOSED, /*SPLIT=*/false>;
  using Steps = SpmmSteps<Stages>;
  static constexpr int kThreads = Stages::kThreads, kMinCtas = 1, kBlockM = Stages::kBlockM, kRowBytes = 128;
  static_assert(!Stages::kLiesFlipped || (DENSE_K_CONTIGUOUS && kBlockM >= 64), "one operand must be k-major, see above");
  static_assert(kBlockM >= 32, "see above");
  static constexpr int kBlockRows = BLOCK_ROWS, kBlockCols = BLOCK_COLS;
  static constexpr int kBarriersAt = Stages::kRingBytes;
  static constexpr int kSharedBytes = kBarriersAt + Stages::kStages * 16 + kSharedAlignment;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than an SM has");
  using Params = typename Stages::Params;

  // The left operand: a warpgroup has kTiles times 64 elements along M; a stored block if the right one is the dense operand.
  static constexpr bool kBlocksLeft = Stages::kLiesFlipped;
  static constexpr int kTiles = kBlocksLeft ? 1 : TILE_N / 128, kLeft = kTiles * 64;
  using Left = RegisterOperand<kTiles, !kBlocksLeft && DENSE_K_CONTIGUOUS>;
  // The right operand: rows of the panel, or columns of the tile.
  static constexpr int kRight = kBlocksLeft ? TILE_N : Stages::kPanel;
  using Accumulators = float[kTiles][kRight / 8][4];  // [.. mma fragment]

  static __device__ __forceinline__ void run(const Params& params) { Stages::template run<SpmmWgmmaTf32>(params); }

  static __device__ __forceinline__ void consume(const Params& params, unsigned base, const StageBarriers& barriers, int group,
                                                 int thread) {
    const int lane = thread % 32, warp = thread / 32;
    SpmmTiles<Stages, /*STORES=*/true> tiles(params);
    tiles.begin();
    StepMasks masks(tiles.index.steps, lane);
    RingPosition ring;
    if (Stages::kSlots > 1) masks.start(tiles.next_panel);
    while (tiles.advance()) {
      Accumulators c = {};
      for (int step = 0; step < tiles.steps(); ++step) {
        const unsigned mask = Stages::kSlots > 1 ? masks.take(step) : 1;
#pragma unroll
        for (int i = 0; i < Stages::kStagesPerStep; ++i) {
          barriers.wait_full(ring.stage, ring.round);
          multiply(c, base + ring.stage * Stages::kStageBytes, group, warp, lane, mask);
          barriers.release(ring.stage, lane);
          ring.next(Stages::kStages);
        }
      }
      ptx::fence_accumulators(reinterpret_cast<float(&)[kTiles][kRight / 2]>(c));
      if (Stages::kSlots > 1 && tiles.next.valid) masks.start(tiles.next_panel);
      if constexpr (kBlocksLeft) {
        store_rows(params.args, c, Steps::first_row(tiles.rows, group), tiles.tile.column * TILE_N, tiles.tile.batch, warp, lane);
      } else {
        const int first_n = tiles.tile.column * TILE_N + group * kLeft;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          store_half(params.args, c, half, Steps::first_row(tiles.rows, half), first_n, tiles.tile.batch, warp, lane);
        }
      }
    }
  }

  // c += the stage's blocks x its slab. The other warpgroup multiplies while this one loads fragments and waits.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned stage, int group, int warp, int lane, unsigned mask) {
    // The warpgroup's block, if blocks are the left operand; one of 128 rows belongs to both.
    constexpr bool kShared = kBlockM > kLeft;
    if (kBlocksLeft && !kShared && !(mask >> group & 1)) return;
    const unsigned blocks = stage + Stages::kDenseBytes;
    const unsigned left = kBlocksLeft ? blocks + (kShared ? group * 2 * Stages::kSlotBoxBytes : group * Stages::kSlotBytes)
                                      : stage + group * kLeft * kRowBytes;
    typename Left::Fragments a;
    Left::load(a, left, warp, lane);
    if constexpr (kBlocksLeft) {
      multiply_rows(c, a, stage, 0);
    } else {
#pragma unroll
      for (int down = 0; down < Stages::kDown; ++down) {
        if (mask >> down & 1) multiply_rows(c, a, blocks + down * Stages::kSlotBytes, down * kBlockM);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }

  // Multiplies by rows of the right operand at `right`, the first of which is number `first` in c.
  static __device__ __forceinline__ void multiply_rows(Accumulators& c, const typename Left::Fragments& a, unsigned right,
                                                       int first) {
    constexpr int kRows = kBlocksLeft ? TILE_N : kBlockM;
    ptx::wgmma_fence();  // in the branch, since ptxas would insert another there
    const uint64 rows = ptx::wgmma_descriptor<kRowBytes>(right, 0, 8 * kRowBytes);
#pragma unroll
    for (int k = 0; k < kSlab; k += 8) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        ptx::wgmma_tf32(reinterpret_cast<float(&)[kRows / 2]>(c[t][first / 8]), a[k / 8][t], ptx::advance(rows, k * 4));
      }
    }
  }

  // Where blocks are the left operand: the warpgroup's 64 rows of the panel.
  static __device__ __forceinline__ void store_rows(const SpmmArgs& args, Accumulators& c, int first_m, int first_n, int batch, int warp,
                                                    int lane) {
    const int64 m = Stages::m(args);
    if (const float* bias = bias_of(args)) add_bias_left<typename Left::Order>(c, bias, first_m, m, warp, lane);
    apply_activation<Tf32>(reinterpret_cast<float(&)[kTiles * kRight / 2]>(c), args.activation);
    store_fragments<typename Left::Order, OUT_TRANSPOSED>(c, out_of(args, batch), args.out_ld, first_m, m, first_n, args.n, warp, lane);
  }

  // Where blocks are the right operand: half of the panel's rows, in the warpgroup's columns.
  static __device__ __forceinline__ void store_half(const SpmmArgs& args, const Accumulators& c, int half, int first_m, int first_n,
                                                    int batch, int warp, int lane) {
    const int64 m = Stages::m(args);
    float rows[kTiles][8][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) rows[t][j][e] = c[t][8 * half + j][e];
      }
    }
    if (const float* bias = bias_of(args)) add_bias_right(rows, bias, first_m, m, lane);
    apply_activation<Tf32>(reinterpret_cast<float(&)[kTiles * 32]>(rows), args.activation);
    store_fragments<typename Left::Order, !OUT_TRANSPOSED>(rows, out_of(args, batch), args.out_ld, first_n, args.n, first_m, m, warp,
                                                           lane);
  }

  static __device__ __forceinline__ const float* bias_of(const SpmmArgs& args) {
    return OUT_TRANSPOSED ? static_cast<const float*>(args.bias) : nullptr;
  }
  static __device__ __forceinline__ float* out_of(const SpmmArgs& args, int batch) {
    return static_cast<float*>(args.out) + batch * args.out_batch_stride;
  }

  static int64 grid(const SpmmArgs& args) { return Stages::grid(args); }
  static cudaError_t prepare(const SpmmArgs& args, Params& params) { return Stages::prepare(args, params); }
};

}  // namespace jitsparse
