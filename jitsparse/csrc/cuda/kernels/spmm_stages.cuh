// The stages of a block-sparse x dense product on Hopper: what they hold, and the warps that fill them.
//
// Role form: out[m][n] = op(S)[m][k] x dense[k][n]; dds is the same product transposed, so it comes here with the sparse
// operand flipped and its output transposed.
//
// A CTA has a panel of 128 or 192 rows of the output and up to 256 columns. A stage is a slab of the dense operand that any block row of
// the panel needs, with all the stored blocks that it is multiplied by. Up to four warps copy, two or three warpgroups multiply.
#pragma once

#include "../../abi.h"
#include "../enqueue.cuh"
#include "../ptx/l2_policy.cuh"
#include "../ptx/register_budget.cuh"
#include "../ptx/tma.cuh"
#include "../tensor_map.cuh"
#include "../tile/split_k.cuh"
#include "../tile/load_operand.cuh"
#include "../tile/ring.cuh"
#include "spmm_order.cuh"
#include "spmm_walk.cuh"

namespace jitsparse {

// PANEL, TILE_N: rows and columns of a tile. SLAB: depth of a stage. CONDENSED: a stage has the next k that the panel needs, adjacent or
// not. VALUES_TRANSPOSED: each stored block has been transposed. SPLIT: where there are more CTAs than tiles, the steps of a tile are split
// among several (split-K); spmm_sum.cuh adds their sums from the workspace.
template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, int PANEL, int TILE_N, int SLAB,
          bool CONDENSED, bool VALUES_TRANSPOSED, bool SPLIT>
struct SpmmStages {
  using Storage = typename Element::Storage;
  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  using Walk = SpmmWalk<SpmmStages>;
  static constexpr bool kFlipped = FLIPPED, kCondensed = CONDENSED, kSplit = SPLIT;
  static constexpr int kElementBytes = sizeof(Storage), kSwizzleElements = 128 / kElementBytes;  // elements in a 128-byte swizzle row
  static constexpr int kPanel = PANEL, kTileN = TILE_N;
  static constexpr bool kTall = PANEL == 192;  // three warpgroups, which leaves room for three stages
  static_assert(PANEL == 128 || (kTall && SLAB == 64), "the index has panels of 128, and of 192 with slabs of 64");

  // The block as op(S) uses it.
  static constexpr int kBlockM = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;
  static constexpr int kBlockK = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kStagesPerStep = kBlockK > SLAB ? kBlockK / SLAB : 1;   // stages per step
  static constexpr int kAcross = kBlockK < SLAB ? SLAB / kBlockK : 1;  // block columns per step
  static constexpr int kStepK = kStagesPerStep * SLAB, kSlotK = SLAB / kAcross;
  static constexpr int kDown = kPanel / kBlockM;   // block rows per panel
  static constexpr int kSlots = kDown * kAcross;   // blocks of a stage, at most; one lane copies each
  static_assert(kSlots <= 32, "a step's mask has 32 bits");
  static_assert(kAcross == 1 || SLAB == 64, "the index has slabs of 64");
  // A k-major box would have rows of one block's depth, for which TMA takes as long as for those of a slab.
  static_assert(!CONDENSED || (kBlockK == 16 && PANEL == 128 && !DENSE_K_CONTIGUOUS), "the index has no other condensed panels");
  static constexpr int kPieces = CONDENSED ? kAcross : 1;  // of the slab, each copied separately

  // As many as fit: L2 throughput follows the bytes in flight (tiles of 128 columns, six stages instead of four: 1.15 times as fast in
  // blocks of 64, 1.05 in others, 1.00 in slabs of 32). Four for TF32 in blocks of 128: stages must be a multiple of four warps.
  static constexpr int kFitting = kTileN == 256 ? 4 : kTileN == 128 ? (kStagesPerStep > 2 ? 4 : 6) : 8;
  static constexpr int kStages = kTall ? 3 : kFitting * (kSwizzleElements / SLAB);  // slabs of half a line are half as large

  static constexpr int kConsumers = PANEL / 64;  // warpgroups
  static constexpr int kManyRounds = 8;
  static constexpr int64 kHalfOfL2 = 25 << 20;  // of an H100
  static constexpr bool kHigh = kBlockM >= 64;
  // Producer warps fill stages round-robin, each stage always by the same warp: one warp's waits overlap the others' copies, and none gets
  // two rounds of the ring ahead of another. A warp fills one stage of every kStride-th step.
  static constexpr int kProducers = kStages % 4 == 0 ? 4 : kStagesPerStep == 1 ? 3 : 2, kStride = kProducers / kStagesPerStep;
  static_assert(kStages % kProducers == 0 && kProducers % kStagesPerStep == 0);
  static constexpr int kThreads = 128 * (kConsumers + 1);  // a whole warpgroup releases registers
  static constexpr bool kFloats = kElementBytes == 4;  // consumers also hold fragments
  static constexpr int kConsumerRegisters = kTall ? 160 : kFloats ? 224 : 216, kProducerRegisters = kTall ? 32 : kFloats ? 56 : 72;
  // A CTA starts with 65536 / kThreads registers per thread, a multiple of 8; setmaxnreg.inc beyond their sum deadlocks.
  static constexpr int kStartRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <= (kConsumers + 1) * kStartRegisters, "too many registers");

  // A block as it is stored in memory.
  static constexpr int kLyingRows = VALUES_TRANSPOSED ? BLOCK_COLS : BLOCK_ROWS, kLyingCols = VALUES_TRANSPOSED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr bool kLiesFlipped = FLIPPED != VALUES_TRANSPOSED;

  // Shared memory. A slot is one block's slice of a slab, its rows as stored, in boxes of at most kSwizzleElements columns.
  static constexpr int kSlotColumns = kLiesFlipped ? kBlockM : kSlotK;
  static constexpr int kSlotRows = kLiesFlipped ? kSlotK : kBlockM;
  static constexpr int kSlotSpan = kSlotColumns < kSwizzleElements ? kSlotColumns : kSwizzleElements;
  static constexpr int kSlotRowBytes = kSlotSpan * kElementBytes;
  static constexpr int kSlotBoxBytes = kSlotRows * kSlotRowBytes, kSlotBytes = kSlotColumns / kSlotSpan * kSlotBoxBytes;
  static constexpr int kDenseRowBytes = DENSE_K_CONTIGUOUS ? SLAB * kElementBytes : 128;
  static constexpr int kSubtileBytes = SLAB * 128, kDenseBytes = kTileN / kSwizzleElements * kSubtileBytes;
  static constexpr int kPieceK = SLAB / kPieces, kPieceBytes = kDenseBytes / kPieces;
  static constexpr int kStageBytes = kDenseBytes + kSlots * kSlotBytes, kRingBytes = kStages * kStageBytes;

  struct Params {
    SpmmArgs args;
    CUtensorMap dense, values;
    SpmmSteps<SpmmStages> index;
    SpmmOrder order;
    bool dense_once, blocks_once;  // the operand is read about once
  };

  static JITSPARSE_HD int64 m(const SpmmArgs& args) { return FLIPPED ? args.cols : args.rows; }

  // A CTA of a kernel with these stages and its barriers at Kernel::kBarriersAt; calls Kernel::consume in kConsumers warpgroups.
  template <typename Kernel>
  static __device__ __forceinline__ void run(const typename Kernel::Params& params) {
    unsigned char* shared = aligned_shared();
    const unsigned base = unsigned(__cvta_generic_to_shared(shared));
    const StageBarriers barriers(base + Kernel::kBarriersAt, kStages);
    if (threadIdx.x == 0) {
      barriers.init(kStages, /*producers=*/1, /*consumers=*/kConsumers * 4);
      ptx::tma_prefetch_map(&params.dense);
      ptx::tma_prefetch_map(&params.values);
    }
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), producer = warp - kConsumers * 4;
    const bool produces = producer >= 0 && (kProducers == 4 || producer < kProducers);
    // The index is read while the barriers are initialized: 36.8 -> 35.8 us (4096, blocks of 64, density 0.1). All threads wait in one
    // place: with a barrier in each branch, of producers and of consumers, synccheck reports divergent threads.
    Walked walked(params);
    if (produces) walked.begin(params, producer / kStagesPerStep, threadIdx.x % 32);
    __syncthreads();
    if (producer >= 0) {
      ptx::setmaxnreg_dec<kProducerRegisters>();
      if (produces) produce(params, walked, base, barriers, producer, threadIdx.x % 32);
    } else {
      ptx::setmaxnreg_inc<kConsumerRegisters>();
      Kernel::consume(params, base, barriers, warp / 4, threadIdx.x % 128);
    }
  }

  // A producer's next step, what a lane copies of it, and the L2 policies.
  struct Walked {
    Walk walk;
    typename Walk::Step step;
    int position, first_k;
    uint64 policy, policy_of_blocks;

    __device__ __forceinline__ explicit Walked(const Params& params) : walk(params) {}
    __device__ __forceinline__ void begin(const Params& params, int first, int lane) {
      // Other CTAs read the same slabs soon, and nothing reads the output: products of 8192 at density 0.1 gain 4 %. Not so if each slab is
      // one panel's, as with an expert's weights (1.04 times as fast).
      policy = params.dense_once ? ptx::l2_evict_first() : ptx::l2_evict_last();
      // Every column of tiles reads the blocks again: 1.09 times as fast where they are few compared with the output.
      policy_of_blocks = params.blocks_once ? ptx::l2_evict_normal() : ptx::l2_evict_last();
      walk.begin(first);
      advance(lane);
    }
    __device__ __forceinline__ void advance(int lane) {
      step = walk.take();
      position = walk.position(step, lane);
      first_k = walk.first_k(step, lane);
    }
  };

  static __device__ __forceinline__ void produce(const Params& params, Walked& walked, unsigned base, const StageBarriers& barriers,
                                                 int warp, int lane) {
    const int stage_in_step = warp % kStagesPerStep;
    const typename Walk::Step& step = walked.step;
    const int &position = walked.position, &first_k = walked.first_k;
    while (step.valid) {
      const unsigned mask = step.words.y;
      const int fill = step.number * kStagesPerStep + stage_in_step, at = fill % kStages;
      const unsigned stage = base + at * kStageBytes, full_barrier = barriers.full_barrier(at);
      barriers.wait_empty(at, fill / kStages);
      const int pieces = CONDENSED ? __popc(__ballot_sync(~0u, first_k >= 0)) : 1;
      if (lane == 0) ptx::mbarrier_arrive_expect_tx(full_barrier, pieces * kPieceBytes + __popc(mask) * kSlotBytes);
      __syncwarp();
      if (lane < pieces) {
        load_operand<DENSE_K_CONTIGUOUS, kTileN, kSwizzleElements, kSubtileBytes>(
            stage + lane * kPieceK * 128, &params.dense, full_barrier, step.first_n, first_k + stage_in_step * SLAB, step.batch,
            walked.policy);
      }
      if (position >= 0) {
        load_block(params, stage + kDenseBytes + lane * kSlotBytes, full_barrier, position, stage_in_step, walked.policy_of_blocks);
      }
      // After the copies, since it takes a while where a tile ends. (37.8 -> 36.7 us: 4096, blocks of 64, density 0.1.)
      walked.advance(lane);
    }
  }

  static __device__ __forceinline__ void load_block(const Params& params, unsigned slot, unsigned full_barrier, int position,
                                                    int stage_in_step, uint64 policy) {
    const int row = position * kLyingRows + (kLiesFlipped ? stage_in_step * SLAB : 0);
#pragma unroll
    for (int i = 0; i < kSlotColumns / kSlotSpan; ++i) {
      const int column = kLiesFlipped ? i * kSwizzleElements : stage_in_step * SLAB;
      ptx::tma_load_3d(slot + i * kSlotBoxBytes, &params.values, full_barrier, column, row, 0, policy);
    }
  }

  // ---- host

  static int64 k(const SpmmArgs& args) { return FLIPPED ? args.rows : args.cols; }
  static int64 panels(const SpmmArgs& args) { return div_up(m(args), kPanel); }
  static int64 column_tiles(const SpmmArgs& args) { return div_up(args.n, kTileN); }
  static int64 tiles(const SpmmArgs& args) { return panels(args) * column_tiles(args) * args.batch; }

  // Split-K parts per tile.
  static int64 parts(const SpmmArgs& args) {
    return SPLIT ? parts_of_sums<int64>(tiles(args), sm_count(), args.parts) : 1;
  }

  static int64 grid(const SpmmArgs& args) {
    const int64 count = tiles(args) * parts(args), sms = sm_count();
    if (count < sms) return count;
    // CTAs of a set share columns, which L2 serves with one read, so the grid is whole sets (128 CTAs on 132 SMs are 1 to 12 % faster),
    // unless a CTA then gets one tile more. With many rounds it may, if few SMs stay idle. For this and what follows docs/performance.md,
    // Tile order and L2, has the rest.
    const int64 sets = sms / SpmmOrder::kSet * SpmmOrder::kSet;
    if (!sets) return sms;
    const bool many_rounds = div_up(count, sets) > kManyRounds, few_left_out = (sms - sets) * 16 <= sms;
    return (many_rounds && few_left_out) || div_up(count, sets) == div_up(count, sms) ? sets : sms;
  }

  // Whether the two CTAs of a TPC have one panel and two columns: then they share its blocks, a quarter to a third of a stage, and no slab.
  // Only tall blocks at higher densities gain (1.00 to 1.04 times as fast at 0.25 and 0.5); short ones share more of a slab (0.87 to 0.98).
  static bool two_columns(const SpmmArgs& args) {
    const int64 stored = args.nnz * BLOCK_ROWS * BLOCK_COLS;
    return kHigh && kTileN == 256 && stored * 7 > m(args) * k(args);
  }

  // Panels per group, see SpmmOrder. The more sets share a column, the fewer columns of the dense operand must come from DRAM at the same
  // time; but every round reads the blocks of all of the group's panels again. So tall blocks have four sets if these blocks and two
  // columns fit half of L2, each half of which keeps its own copies (against two sets 1.10 times as fast in blocks of 64 at density 0.05;
  // where they do not fit 0.70 to 0.97), and two otherwise, or one in panels of 192 rows (two: 0.93 to 1.04).
  //
  // k-major slabs of half a line have four sets whether they fit or not, since L2 has evicted one half when the other is requested (1.28
  // times as fast as one set at density 0.05). Other short blocks have one set (two: 0.87 to 1.05). Narrow tiles of tall blocks load more
  // of these than of the dense operand, and half a set lets two adjacent columns share them: 1.00 to 1.15 times as fast.
  static unsigned group(const SpmmArgs& args) {
    constexpr unsigned kSet = SpmmOrder::kSet, kFourSets = SpmmOrder::kFourSets;
    constexpr bool kWide = kTileN == 256, kHalfLines = kWide && DENSE_K_CONTIGUOUS && kDenseRowBytes < 128;
    if (!kHalfLines && !(kHigh && kWide)) return kHigh ? kSet / 2 : kSet;
    const int64 blocks = kFourSets * args.nnz / panels(args) * BLOCK_ROWS * BLOCK_COLS, dense = 2 * kTileN * k(args);
    const bool fits = (blocks + dense) * kElementBytes <= kHalfOfL2;
    // With 112 CTAs two rounds would not end with a column.
    const bool whole = panels(args) >= kFourSets && 2 * grid(args) % kFourSets == 0;
    if (whole && (fits || kHalfLines)) return kFourSets;
    return kTall ? kSet : 2 * kSet;
  }

  static cudaError_t prepare(const SpmmArgs& args, Params& params) {
    params.args = args;
    params.args.parts = parts(args);
    if (tiles(args) > 0x7fffffff) return cudaErrorInvalidConfiguration;
    params.index = SpmmSteps<SpmmStages>::of(args);
    params.order = SpmmOrder::of(panels(args), column_tiles(args), args.batch, group(args), two_columns(args),
                                 params.args.parts, grid(args));
    params.dense_once = args.nnz <= div_up(k(args), kStepK);
    params.blocks_once = column_tiles(args) * args.batch == 1;
    const MatrixShape values = {kLyingCols, args.nnz * kLyingRows, 1, kLyingCols, 0};
    if (auto error = encode_map<Storage>(&params.values, args.values, values, {kSlotSpan, kSlotRows})) return error;
    const int64 inner = DENSE_K_CONTIGUOUS ? k(args) : args.n, outer = DENSE_K_CONTIGUOUS ? args.n : k(args);
    const MatrixShape dense = {inner, outer, args.batch, args.dense_ld, args.dense_batch_stride};
    return encode_map<Storage>(&params.dense, args.dense, dense, DENSE_K_CONTIGUOUS ? Box{SLAB, kTileN} : Box{kSwizzleElements, kPieceK});
  }
};

}  // namespace jitsparse
