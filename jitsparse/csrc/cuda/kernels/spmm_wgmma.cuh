// Block-sparse x dense on Hopper (sm_90a): bulk copies feed wgmma through a ring of stages; persistent CTAs.
//
// Role form: out[m][n] = op(S)[m][k] x dense[k][n]; dds is the same product transposed, so it comes here with the sparse
// operand flipped and its output transposed.
//
// The product is computed transposed: the dense operand gives wgmma its 64 rows, a stored block its N columns. So blocks of
// 16 and 32 rows waste nothing, and cost a warpgroup a test of a bit and a wgmma for every 16 k. A CTA has a panel of 128
// rows of the output and 256 columns. A stage is a slab of the dense operand that any block row of the panel needs, with all
// the stored blocks that meet it. Four warps copy, two warpgroups multiply.
#pragma once

#include "../../abi.h"
#include "../ptx/register_budget.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"
#include "../tensor_map.cuh"
#include "../tile/activation.cuh"
#include "../tile/element.cuh"
#include "../tile/load_operand.cuh"
#include "../tile/order.cuh"
#include "../tile/ring.cuh"
#include "../tile/transposed_part.cuh"

namespace jitsparse {

// SLAB: depth of a stage. GROUPS_M: 2 puts the warpgroups one below the other, for small blocks: each tests the bits of its
// own rows only. 1 puts them side by side.
template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int SLAB,
          int GROUPS_M>
struct SpmmWgmma {
  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  static constexpr int kPanel = 128, kTileN = 256;
  static constexpr int kStages = 4 * (64 / SLAB);

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

  static constexpr int kConsumers = 2;  // warpgroups
  static constexpr int kGroupM = kPanel / GROUPS_M, kGroupN = kTileN * GROUPS_M / kConsumers;
  static constexpr int kGroupDown = kGroupM / kBlockM, kGroupSlots = kGroupDown * kAcross;
  static constexpr int kSubtiles = kGroupN / 64;
  static_assert(kGroupDown > 0, "a warpgroup has whole blocks");

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
  static constexpr int kStagedBytes = 64 * 128, kStagedBuffers = 2;  // 64 x 64 of the output on its way out, of a warpgroup
  static constexpr int kStagedAt = kStages * kStageBytes;
  static constexpr int kHeadersAt = kStagedAt + kConsumers * kStagedBuffers * kStagedBytes;
  static constexpr int kBarriersAt = kHeadersAt + kStages * 8;
  static constexpr int kSharedBytes = kBarriersAt + kStages * 16 + 1024;  // to begin at a multiple of 1024
  static_assert(kSharedBytes <= 232448, "fits an SM");

  struct Params {
    SpmmArgs args;
    CUtensorMap dense, values, out;
    int group;  // panels, see Tile
  };

  static JITSPARSE_HD int64 m(const SpmmArgs& args) { return FLIPPED ? args.cols : args.rows; }
  static JITSPARSE_HD int64 k(const SpmmArgs& args) { return FLIPPED ? args.rows : args.cols; }
  static JITSPARSE_HD int64 panels(const SpmmArgs& args) { return div_up(m(args), kPanel); }
  static JITSPARSE_HD int64 column_tiles(const SpmmArgs& args) { return div_up(args.n, kTileN); }
  static JITSPARSE_HD int64 tiles(const SpmmArgs& args) { return panels(args) * column_tiles(args) * args.batch; }

  // The pattern as this kernel walks it.
  struct Steps {
    const int4* panels;    // (panel, first step, end, 0), the longest first
    const int4* steps;     // (slab or block column, mask of the blocks, first position, 0)
    const int* positions;  // where a step's blocks lie in values

    __device__ __forceinline__ explicit Steps(const SpmmArgs& args) {
      const Index index(args.index, args.rows, args.cols, args.nnz);
      const int *panels, *steps;
      if constexpr (kAcross > 1) {
        panels = FLIPPED ? index.col_slab_panels() : index.row_slab_panels();
        steps = FLIPPED ? index.col_slab_steps() : index.row_slab_steps();
        positions = FLIPPED ? index.col_slab_blocks() : index.row_slab_blocks();
      } else {
        panels = FLIPPED ? index.col_panels_sorted() : index.row_panels_sorted();
        steps = FLIPPED ? index.col_steps() : index.row_steps();
        positions = FLIPPED ? index.col_panel_blocks() : index.row_panel_blocks();
      }
      this->panels = reinterpret_cast<const int4*>(panels);
      this->steps = reinterpret_cast<const int4*>(steps);
    }
  };

  // The tile that a CTA computes in its n-th round. Tiles are listed in groups of panels, with them column after column, so that
  // those computed at the same time want the same operands. Panels come longest first, and in every other round's columns
  // shortest first, so that all CTAs have about as much to do.
  struct Tile {
    int rank;  // of its panel in Steps::panels
    int column, batch;
    bool valid;

    __device__ __forceinline__ Tile(const Params& params, int round) {
      const int64 number = int64(round) * gridDim.x + blockIdx.x;
      valid = number < tiles(params.args);
      const int rows = int(panels(params.args));
      const TileCoordinates tile = grouped_order(number, rows, column_tiles(params.args), params.group);
      column = int(tile.column);
      batch = int(tile.batch);
      const int first = int(tile.row) / params.group * params.group;
      const int count = rows - first < params.group ? rows - first : params.group;
      const int columns = int(gridDim.x) > count ? int(gridDim.x) / count : 1;  // of the group in a round
      rank = column / columns & 1 ? 2 * first + count - 1 - int(tile.row) : int(tile.row);
    }
  };

  // What the producers tell the consumers of a stage.
  struct Header {
    unsigned mask;
    int last;  // of its tile
  };

  static __device__ __forceinline__ void run(const Params& params) {
    extern __shared__ unsigned char unaligned[];
    unsigned char* shared = unaligned + (-__cvta_generic_to_shared(unaligned) & 1023);
    const unsigned base = unsigned(__cvta_generic_to_shared(shared));
    Header* headers = reinterpret_cast<Header*>(shared + kHeadersAt);
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
      produce(params, base, headers, barriers, warp - kConsumers * 4, threadIdx.x % 32);
    } else {
      ptx::take_registers<216>();
      consume(params, base, headers, barriers, warp / 4, threadIdx.x % 128);
    }
  }

  // ---- producers

  // The steps of a CTA's tiles one after another, of which a producer warp takes every kStride-th. A tile without a step counts
  // as one step that has no blocks.
  struct Walk {
    const Params& params;
    const Steps index;
    int round;                    // of `next`
    Tile next;                    // the tile after that which is walked
    int4 next_panel;
    int at, end, first_n, batch;  // the warp's next step of its tile, and where the tile ends
    int number;                   // of that step among all of the CTA's
    bool empty;

    __device__ __forceinline__ Walk(const Params& params, int first)
        : params(params), index(params.args), round(0), next(params, 0), at(first), end(0), number(first) {
      ask();
      while (at >= end && next.valid) enter();
    }

    // Asks for the steps of the next tile, which arrive while this one is walked.
    __device__ __forceinline__ void ask() {
      if (next.valid) next_panel = __ldg(index.panels + next.rank);
    }

    __device__ __forceinline__ void enter() {
      empty = next_panel.y == next_panel.z;
      at = next_panel.y + (at - end);
      end = next_panel.z + empty;
      first_n = next.column * kTileN;
      batch = next.batch;
      next = Tile(params, ++round);
      ask();
    }

    struct Step {
      int4 words;
      int number, first_n, batch;
      bool last, valid;
    };

    // The warp's next step; its words are on their way.
    __device__ __forceinline__ Step take() {
      Step step;
      step.valid = at < end;
      if (!step.valid) return step;
      step.words = empty ? make_int4(0, 0, 0, 0) : __ldg(index.steps + at);
      step.number = number;
      step.first_n = first_n;
      step.batch = batch;
      step.last = at + 1 == end;
      at += kStride;
      number += kStride;
      while (at >= end && next.valid) enter();
      return step;
    }

    // Where the block that a lane copies lies in values; negative if it copies none.
    __device__ __forceinline__ int position(const Step& step, int lane) const {
      const unsigned mask = step.words.y;
      if (!step.valid || !(mask >> lane & 1)) return -1;
      return __ldg(index.positions + step.words.z + __popc(mask & ((1u << lane) - 1)));
    }
  };

  static __device__ __forceinline__ void produce(const Params& params, unsigned base, Header* headers, const StageBarriers& barriers,
                                                 int warp, int lane) {
    const int part = warp % kParts;
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
        headers[at] = {mask, step.last && part + 1 == kParts};
        ptx::mbarrier_arrive_expect(copies, mask ? kDenseBytes + __popc(mask) * kSlotBytes : 0);
        if (mask) {
          const int k = step.words.x * kStepK + part * SLAB;
          load_operand<DENSE_K_CONTIGUOUS, kTileN, 64, kSubtileBytes>(stage, &params.dense, copies, step.first_n, k, step.batch);
        }
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

  // Of a warpgroup: [64 columns of the output][8 rows of it][mma fragment], transposed as the product is.
  using Accumulators = float[kSubtiles][kGroupM / 8 * 4];

  static __device__ __forceinline__ void consume(const Params& params, unsigned base, const Header* headers,
                                                 const StageBarriers& barriers, int group, int thread) {
    const int group_m = GROUPS_M > 1 ? group : 0, group_n = GROUPS_M > 1 ? 0 : group;
    const Steps index(params.args);
    RingPosition ring;
    int staged = 0;
    for (int round = 0;; ++round) {
      const Tile tile(params, round);
      if (!tile.valid) break;
      const int panel = __ldg(&index.panels[tile.rank].x);
      Accumulators c = {};
      int previous = -1;
      bool last;
      do {
        barriers.wait_full(ring.stage, ring.round);
        const Header header = headers[ring.stage];
        last = header.last;
        const unsigned mask = GROUPS_M > 1 ? header.mask >> group_m * kGroupSlots : header.mask;  // from its first row on
        multiply(c, base + ring.stage * kStageBytes, group_m, group_n, mask);
        ptx::wgmma_wait<1>();
        if (previous >= 0) barriers.release(previous, thread % 32);
        previous = ring.stage;
        ring.next(kStages);
      } while (!last);
      ptx::wgmma_wait<0>();
      barriers.release(previous, thread % 32);
      keep_in_order(c);
      const unsigned to = base + kStagedAt + group * kStagedBuffers * kStagedBytes;
      store(params, c, panel * kPanel + group_m * kGroupM, tile.column * kTileN + group_n * kGroupN, tile.batch, to, staged, group,
            thread);
    }
    if (thread == 0) ptx::bulk_wait_read<0>();
  }

  // Starts c += blocks x slab, for the blocks in the mask.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned stage, int group_m, int group_n, unsigned mask) {
    const uint64 dense = ptx::wgmma_descriptor<kDenseRowBytes>(stage + group_n * kSubtiles * kSubtileBytes, kSubtileBytes,
                                                               8 * kDenseRowBytes);
    const uint64 blocks = ptx::wgmma_descriptor<kSlotRowBytes>(stage + kDenseBytes + group_m * kGroupSlots * kSlotBytes,
                                                               kSlotBoxBytes, 8 * kSlotRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int down = 0; down < kGroupDown; ++down) {
      // Most rows of a sparse pattern are passed over with one test.
      const unsigned row = mask >> down * kAcross & ((1u << kAcross) - 1);
      if (!row) continue;
#pragma unroll
      for (int across = 0; across < kAcross; ++across) {
        if (kAcross > 1 && !(row >> across & 1)) continue;
#pragma unroll
        for (int i = 0; i < kSubtiles; ++i) {
#pragma unroll
          for (int k = 0; k < kSlotK; k += 16) {
            const int in_slab = across * kSlotK + k;
            Element::template wgmma<!DENSE_K_CONTIGUOUS, FLIPPED>(
                reinterpret_cast<float(&)[kBlockM / 2]>(c[i][down * kBlockM / 2]),
                ptx::moved(dense, i * kSubtileBytes + in_slab * (DENSE_K_CONTIGUOUS ? 2 : kDenseRowBytes)),
                ptx::moved(blocks, (down * kAcross + across) * kSlotBytes + k * (FLIPPED ? kSlotRowBytes : 2)));
          }
        }
      }
    }
    ptx::wgmma_commit();
  }

  // ---- epilogue

  static __device__ __forceinline__ void store(const Params& params, Accumulators& c, int first_m, int first_n, int batch,
                                               unsigned staged, int& buffer, int group, int thread) {
    const SpmmArgs& args = params.args;
    const int lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
#pragma unroll
      for (int j = 0; j < kGroupM / 64; ++j) {
        const int at_m = first_m + j * 64, at_n = first_n + i * 64;
        if (at_m >= m(args) || at_n >= args.n) break;
        float(&part)[8][4] = reinterpret_cast<float(&)[8][4]>(c[i][j * 32]);
        if (OUT_TRANSPOSED && args.bias != nullptr) add_bias<Element>(part, args.bias, at_m, m(args), lane);
        if (args.activation != kIdentity) {
#pragma unroll
          for (int r = 0; r < 8; ++r) {
#pragma unroll
            for (int e = 0; e < 4; ++e) part[r][e] = activate(part[r][e], args.activation);
          }
        }
        const unsigned to = staged + buffer * kStagedBytes;
        buffer = (buffer + 1) % kStagedBuffers;
        if (thread == 0) ptx::bulk_wait_read<kStagedBuffers - 1>();
        ptx::named_barrier(1 + group, 128);
        stage_part<Element, OUT_TRANSPOSED>(part, to, warp, lane);
        ptx::fence_proxy_async();
        ptx::named_barrier(1 + group, 128);
        if (thread == 0) {
          ptx::tma_store_3d(&params.out, to, OUT_TRANSPOSED ? at_m : at_n, OUT_TRANSPOSED ? at_n : at_m, batch);
          ptx::bulk_commit();
        }
      }
    }
  }

  // ---- host

  static int64 grid(const SpmmArgs& args) {
    const int64 count = tiles(args), sms = multiprocessors();
    return count < sms ? count : sms;
  }

  static cudaError_t prepare(const SpmmArgs& args, Params& params) {
    params.args = args;
    // Larger groups read the dense operand from DRAM less often, as long as their values stay in L2. Panels of one block row
    // differ most in length: with few rounds, a group of them should be about one round. (8 to 64 were measured.)
    const int64 values_of_32_panels = args.nnz * BLOCK_ROWS * BLOCK_COLS * 2 / panels(args) * 32;
    const bool few_rounds = tiles(args) < 8 * multiprocessors();
    params.group = values_of_32_panels > 24 << 20 || (kDown == 1 && few_rounds) ? 8 : 32;
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
