// Block-sparse x dense on Hopper (sm_90a): bulk copies feed wgmma through a ring of stages; persistent CTAs.
//
// Role form: out[m][n] = op(S)[m][k] x dense[k][n]; dds is the same product transposed, so it comes here with the sparse
// operand flipped and its output transposed.
//
// A CTA has a panel of 128 rows of the output and up to 256 columns. A stage is a slab of the dense operand that any block row of the
// panel needs, with all the stored blocks that meet it. Four warps copy, two warpgroups multiply, each 64 rows of the panel.
//
// Blocks of 64 and 128 rows are wgmma's 64 rows (M), the slab its columns (N). Smaller blocks are multiplied transposed:
// 64 columns of the dense operand are M, a block's rows N. So blocks of 16 and 32 rows waste nothing, and cost a warpgroup a
// test of a bit and a wgmma for every 16 k.
#pragma once

#include "../../abi.h"
#include "../ptx/l2_policy.cuh"
#include "../ptx/register_budget.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"
#include "../tensor_map.cuh"
#include "../tile/activation.cuh"
#include "../tile/element.cuh"
#include "../tile/load_operand.cuh"
#include "../tile/outbox.cuh"
#include "../tile/ring.cuh"
#include "../tile/staged_part.cuh"
#include "../tile/step_masks.cuh"
#include "spmm_walk.cuh"

namespace jitsparse {

// TILE_N: columns of a tile. SLAB: depth of a stage.
template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int TILE_N,
          int SLAB>
struct SpmmWgmma {
  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  using Steps = SpmmSteps<SpmmWgmma>;
  using Tile = SpmmTile<SpmmWgmma>;
  using Walk = SpmmWalk<SpmmWgmma>;
  static constexpr bool kFlipped = FLIPPED;
  static constexpr int kPanel = 128, kTileN = TILE_N;
  static constexpr int kStages = (kTileN > 64 ? 4 : 8) * (64 / SLAB);

  // The block as op(S) uses it.
  static constexpr int kBlockM = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;
  static constexpr int kBlockK = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kParts = kBlockK > SLAB ? kBlockK / SLAB : 1;   // stages that a step takes
  static constexpr int kAcross = kBlockK < SLAB ? SLAB / kBlockK : 1;  // block columns that a step covers
  static constexpr int kStepK = kParts * SLAB, kSlotK = SLAB / kAcross;
  static constexpr int kDown = kPanel / kBlockM;   // block rows of a panel
  static constexpr int kSlots = kDown * kAcross;   // blocks of a stage, at most; one lane copies each
  static_assert(kSlots <= 32, "a step's mask has 32 bits");
  static_assert(kAcross == 1 || SLAB == 64, "the index has slabs of 64");

  static constexpr int kConsumers = 2;  // warpgroups, one below the other
  static constexpr int kGroupM = kPanel / kConsumers;
  static constexpr bool kTransposed = kBlockM < kGroupM;  // the product, see above
  static constexpr int kGroupDown = kTransposed ? kGroupM / kBlockM : 1, kGroupSlots = kGroupDown * kAcross;
  // Producer warps take turns: a stage is always filled by the same warp. That hides what a turn waits for, and no warp can be
  // two rounds of the ring ahead of another. A warp has its part of every kStride-th step.
  static constexpr int kProducers = 4, kStride = kProducers / kParts;
  static_assert(kStages % kProducers == 0 && kProducers % kParts == 0);
  static constexpr int kThreads = 128 * kConsumers + 32 * kProducers;

  // Shared memory. A slot is one block's part of a slab, its rows as stored, in boxes of at most 64 columns.
  static constexpr int kSlotColumns = FLIPPED ? kBlockM : kSlotK;
  static constexpr int kSlotRows = FLIPPED ? kSlotK : kBlockM;
  static constexpr int kSlotSpan = kSlotColumns < 64 ? kSlotColumns : 64, kSlotRowBytes = kSlotSpan * 2;
  static constexpr int kSlotBoxBytes = kSlotRows * kSlotRowBytes, kSlotBytes = kSlotColumns / kSlotSpan * kSlotBoxBytes;
  static constexpr int kDenseRowBytes = DENSE_K_CONTIGUOUS ? SLAB * 2 : 128;
  static constexpr int kSubtileBytes = 64 * SLAB * 2, kDenseBytes = kTileN / 64 * kSubtileBytes;
  static constexpr int kStageBytes = kDenseBytes + kSlots * kSlotBytes;
  using Out = Outbox<OUT_TRANSPOSED == kTransposed>;
  static constexpr int kOutAt = kStages * kStageBytes, kOutBytes = Out::kBuffers * Out::kBytes;  // of a warpgroup
  static constexpr int kBarriersAt = kOutAt + kConsumers * kOutBytes;
  static constexpr int kSharedBytes = kBarriersAt + kStages * 16 + 1024;  // to begin at a multiple of 1024
  static_assert(kSharedBytes <= 232448, "fits an SM");

  struct Params {
    SpmmArgs args;
    CUtensorMap dense, values, out;
    unsigned group;  // panels, see SpmmTile
  };

  static JITSPARSE_HD int64 m(const SpmmArgs& args) { return FLIPPED ? args.cols : args.rows; }
  static JITSPARSE_HD int64 k(const SpmmArgs& args) { return FLIPPED ? args.rows : args.cols; }
  static JITSPARSE_HD int64 panels(const SpmmArgs& args) { return div_up(m(args), kPanel); }
  static JITSPARSE_HD int64 column_tiles(const SpmmArgs& args) { return div_up(args.n, kTileN); }
  static JITSPARSE_HD int64 tiles(const SpmmArgs& args) { return panels(args) * column_tiles(args) * args.batch; }

  static __device__ __forceinline__ void run(const Params& params) {
    extern __shared__ unsigned char unaligned[];
    unsigned char* shared = unaligned + (-__cvta_generic_to_shared(unaligned) & 1023);
    const unsigned base = unsigned(__cvta_generic_to_shared(shared));
    const StageBarriers barriers(base + kBarriersAt, kStages);
    if (threadIdx.x == 0) {
      barriers.init(kStages, /*producers=*/1, /*consumers=*/kConsumers * 4);
      ptx::tma_prefetch_map(&params.dense);
      ptx::tma_prefetch_map(&params.values);
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= kConsumers * 4) {
      ptx::give_registers_back<72>();
      produce(params, base, barriers, warp - kConsumers * 4, threadIdx.x % 32);
    } else {
      ptx::take_registers<216>();
      consume(params, base, barriers, warp / 4, threadIdx.x % 128);
    }
  }

  // ---- producers

  static __device__ __forceinline__ void produce(const Params& params, unsigned base, const StageBarriers& barriers, int warp,
                                                 int lane) {
    const int part = warp % kParts;
    // Other CTAs want the same slabs soon, and nobody the output: products of 8192 at density 0.1 gain 4 %.
    const uint64 policy = ptx::l2_evict_last();
    Walk walk(params, warp / kParts);
    auto step = walk.take();
    int position = walk.position(step, lane);
    while (step.valid) {
      const auto next = walk.take();
      const unsigned mask = step.words.y;
      const int turn = step.number * kParts + part, at = turn % kStages;
      const unsigned stage = base + at * kStageBytes, copies = barriers.copies(at);
      barriers.wait_empty(at, turn / kStages);
      if (lane == 0) {
        ptx::mbarrier_arrive_expect(copies, kDenseBytes + __popc(mask) * kSlotBytes);
        const int k = step.words.x * kStepK + part * SLAB;
        load_operand<DENSE_K_CONTIGUOUS, kTileN, 64, kSubtileBytes>(stage, &params.dense, copies, step.first_n, k, step.batch, policy);
      }
      __syncwarp();
      if (position >= 0) load_block(params, stage + kDenseBytes + lane * kSlotBytes, copies, position, part);
      step = next;
      position = walk.position(step, lane);
    }
  }

  static __device__ __forceinline__ void load_block(const Params& params, unsigned slot, unsigned copies, int position, int part) {
    const int row = position * BLOCK_ROWS + (FLIPPED ? part * SLAB : 0);
#pragma unroll
    for (int i = 0; i < kSlotColumns / kSlotSpan; ++i) {
      ptx::tma_load_3d(slot + i * kSlotBoxBytes, &params.values, copies, FLIPPED ? i * 64 : part * SLAB, row, 0);
    }
  }

  // ---- consumers

  // Of a warpgroup: four parts of 64 x 64 of the output, each [eight columns, or rows where transposed][mma fragment].
  static constexpr int kOutParts = kTileN / 64;
  using Accumulators = float[kOutParts][8 * 4];

  // With one block a group and stage, a tile is stored while the next one is multiplied. With more the warps are as busy as the
  // tensor cores, and waiting costs 4 to 7 %.
  static constexpr bool kDeferred = kGroupSlots == 1;

  // A tile that is finished, rounded and packed, of which parts are still to be stored.
  static constexpr unsigned kStored = 1u << kOutParts;
  struct Finished {
    unsigned packed[kOutParts][8 * 2];
    unsigned next = kStored;  // 1 << the part that is stored next (by a number the compiler would index local memory)
    int first_m, next_n, batch;
  };

  static __device__ __forceinline__ void consume(const Params& params, unsigned base, const StageBarriers& barriers, int group,
                                                 int thread) {
    const int lane = thread % 32, first_slot = kBlockM > kGroupM ? 0 : group * kGroupSlots;
    const Steps index(params.args);
    StepMasks masks(index.steps, lane);
    RingPosition ring;
    Out outbox = {base + kOutAt + group * kOutBytes, group, thread};
    Finished finished;
    // What is needed of a tile is read while the one before it is computed.
    Tile next(params, 0);
    int4 next_panel = make_int4(0, 0, 0, 0);
    if (next.valid) next_panel = __ldg(index.panels + next.rank);
    if (kSlots > 1) masks.start(next_panel.y, next_panel.z);
    for (int round = 1; next.valid; ++round) {
      const Tile tile = next;
      const int panel = next_panel.x, steps = next_panel.z - next_panel.y;
      next = Tile(params, round);
      if (next.valid) next_panel = __ldg(index.panels + next.rank);
      const int first_m = panel * kPanel + group * kGroupM;
      float2 bias = {0.0f, 0.0f};  // of the thread's rows, where rows are not columns of the accumulators
      if (OUT_TRANSPOSED && !kTransposed && params.args.bias != nullptr) {
        bias = bias_of_rows<Element>(params.args.bias, first_m + thread / 32 * 16, m(params.args), lane);
      }
      Accumulators c = {};
      int pending = -1;  // the stage that is being multiplied
      for (int step = 0; step < steps; ++step) {
        const unsigned mask = kSlots > 1 ? masks.take(step) >> first_slot : 1;  // from the group's first block on
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          barriers.wait_full(ring.stage, ring.round);
          if (kDeferred && !(mask & 1)) {
            // The stage before must not be held over a run of steps that are the other warpgroup's: the ring would stop.
            ptx::wgmma_wait<0>();
            if (pending >= 0) barriers.release(pending, lane);
            pending = -1;
            barriers.release(ring.stage, lane);
            store_part(params, finished, outbox);
          } else {
            multiply(c, base + ring.stage * kStageBytes, first_slot, group, mask);
            if (kDeferred) {
              ptx::wgmma_wait<1>();
              if (pending >= 0) barriers.release(pending, lane);
              pending = ring.stage;
              store_part(params, finished, outbox);
            } else {
              ptx::wgmma_wait<0>();
              barriers.release(ring.stage, lane);
            }
          }
          ring.next(kStages);
        }
      }
      ptx::wgmma_wait<0>();
      if (pending >= 0) barriers.release(pending, lane);
      if (kSlots > 1 && next.valid) masks.start(next_panel.y, next_panel.z);
      ptx::keep_in_order(c);
      if constexpr (kDeferred) {
        // What a short tile has left to store of the one before it.
        while (finished.next != kStored) store_part(params, finished, outbox);
        finish(params, c, bias, first_m, tile, finished, lane);
      } else {
        store(params, c, bias, first_m, tile, outbox);
      }
    }
    while (finished.next != kStored) store_part(params, finished, outbox);
    outbox.empty();
  }

  // Starts c += blocks x slab, for the blocks in the mask. With one block a group there is no branch: ptxas ends a batch of
  // wgmma at every branch, and then waiting for the batch before would wait for this one too.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned stage, int first_slot, int group, unsigned mask) {
    const uint64 dense = ptx::wgmma_descriptor<kDenseRowBytes>(stage, kSubtileBytes, 8 * kDenseRowBytes);
    // The lower half of a block of 128 rows.
    const int half = kBlockM > kGroupM ? group * (FLIPPED ? kSlotBoxBytes : kGroupM * kSlotRowBytes) : 0;
    const uint64 blocks = ptx::wgmma_descriptor<kSlotRowBytes>(stage + kDenseBytes + first_slot * kSlotBytes + half, kSlotBoxBytes,
                                                               8 * kSlotRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int down = 0; down < kGroupDown; ++down) {
      // Most rows of a sparse pattern are passed over with one test.
      const unsigned row = mask >> down * kAcross & ((1u << kAcross) - 1);
      if (kGroupDown > 1 && !row) continue;
#pragma unroll
      for (int across = 0; across < kAcross; ++across) {
        if (kAcross > 1 && !(row >> across & 1)) continue;
#pragma unroll
        for (int k = 0; k < kSlotK; k += 16) {
          const uint64 block = ptx::moved(blocks, (down * kAcross + across) * kSlotBytes + k * (FLIPPED ? kSlotRowBytes : 2));
          const int in_slab = (across * kSlotK + k) * (DENSE_K_CONTIGUOUS ? 2 : kDenseRowBytes);
          if constexpr (kTransposed) {
#pragma unroll
            for (int i = 0; i < kTileN / 64; ++i) {
              Element::template wgmma<!DENSE_K_CONTIGUOUS, FLIPPED>(
                  reinterpret_cast<float(&)[kBlockM / 2]>(c[i][down * kBlockM / 2]),
                  ptx::moved(dense, i * kSubtileBytes + in_slab), block);
            }
          } else {
            Element::template wgmma<FLIPPED, !DENSE_K_CONTIGUOUS>(reinterpret_cast<float(&)[kTileN / 2]>(c), block,
                                                                  ptx::moved(dense, in_slab));
          }
        }
      }
    }
    ptx::wgmma_commit();
  }

  // ---- epilogue

  // Bias, activation and rounding.
  static __device__ __forceinline__ void finish_part(const SpmmArgs& args, float (&c)[8 * 4], float2 bias, int first_m, int lane,
                                                     unsigned (&packed)[8 * 2]) {
    float(&part)[8][4] = reinterpret_cast<float(&)[8][4]>(c);
    if (OUT_TRANSPOSED && args.bias != nullptr) {
      if constexpr (kTransposed) {
        add_bias_along<Element>(part, args.bias, first_m, m(args), lane);
      } else {
        add_bias_down(part, bias);
      }
    }
    apply_activation<Element>(c, args.activation);
    pack_part<Element>(part, packed);
  }

  static __device__ __forceinline__ void close(const Params& params, const Out& outbox, unsigned at, int at_m, int at_n, int batch) {
    outbox.close(at, &params.out, OUT_TRANSPOSED ? at_m : at_n, OUT_TRANSPOSED ? at_n : at_m, batch);
  }

  static __device__ __forceinline__ void store(const Params& params, Accumulators& c, float2 bias, int first_m, const Tile& tile,
                                               Out& outbox) {
#pragma unroll
    for (int i = 0; i < kOutParts; ++i) {
      const int at_n = tile.column * kTileN + i * 64;
      if (first_m >= m(params.args) || at_n >= params.args.n) break;
      unsigned packed[8 * 2];
      finish_part(params.args, c[i], bias, first_m, outbox.thread % 32, packed);
      const unsigned at = outbox.open();
      outbox.put(at, packed);
      close(params, outbox, at, first_m, at_n, tile.batch);
    }
  }

  static __device__ __forceinline__ void finish(const Params& params, Accumulators& c, float2 bias, int first_m, const Tile& tile,
                                                Finished& finished, int lane) {
#pragma unroll
    for (int i = 0; i < kOutParts; ++i) finish_part(params.args, c[i], bias, first_m, lane, finished.packed[i]);
    finished.next = first_m < m(params.args) ? 1 : kStored;
    finished.first_m = first_m;
    finished.next_n = tile.column * kTileN;
    finished.batch = tile.batch;
  }

  // Starts to store the next part of a finished tile, if there is one.
  static __device__ __forceinline__ void store_part(const Params& params, Finished& finished, Out& outbox) {
    if (finished.next == kStored) return;
    const unsigned at = outbox.open();
#pragma unroll
    for (int i = 0; i < kOutParts; ++i) {
      if (finished.next & 1u << i) outbox.put(at, finished.packed[i]);
    }
    close(params, outbox, at, finished.first_m, finished.next_n, finished.batch);
    finished.next_n += 64;
    finished.next = finished.next_n < params.args.n ? finished.next << 1 : kStored;
  }

  // ---- host

  static int64 grid(const SpmmArgs& args) {
    const int64 count = tiles(args), sms = multiprocessors();
    return count < sms ? count : sms;
  }

  static cudaError_t prepare(const SpmmArgs& args, Params& params) {
    params.args = args;
    if (tiles(args) > 0x7fffffff) return cudaErrorInvalidConfiguration;
    // Larger groups read the dense operand from DRAM less often, as long as their values stay in L2, and share it among panels
    // of small blocks; with few rounds a group has to be small for CTAs to have equally much. (8 to 32 were measured.)
    const int64 values_of_32_panels = args.nnz * BLOCK_ROWS * BLOCK_COLS * 2 / panels(args) * 32;
    const bool few_rounds = tiles(args) < 8 * multiprocessors();
    const bool many_values = values_of_32_panels > (few_rounds ? 6 << 20 : 24 << 20);
    params.group = many_values ? (kTransposed ? 16 : 8) : few_rounds ? 16 : 32;
    const int64 out_inner = OUT_TRANSPOSED ? m(args) : args.n, out_outer = OUT_TRANSPOSED ? args.n : m(args);
    const MatrixShape out = {out_inner, out_outer, args.batch, args.out_ld, args.out_batch_stride};
    if (auto error = encode_map(&params.out, args.out, out, {64, 64})) return error;
    const MatrixShape values = {BLOCK_COLS, args.nnz * BLOCK_ROWS, 1, BLOCK_COLS, 0};
    if (auto error = encode_map(&params.values, args.values, values, {kSlotSpan, kSlotRows})) return error;
    const int64 inner = DENSE_K_CONTIGUOUS ? k(args) : args.n, outer = DENSE_K_CONTIGUOUS ? args.n : k(args);
    const MatrixShape dense = {inner, outer, args.batch, args.dense_ld, args.dense_batch_stride};
    return encode_map(&params.dense, args.dense, dense, DENSE_K_CONTIGUOUS ? Box{SLAB, kTileN} : Box{64, SLAB});
  }
};

}  // namespace jitsparse
