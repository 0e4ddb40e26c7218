// Block-sparse x dense on mma.sync tensor cores, with cp.async pipelines (sm_80 and later).
//
// Role form: out[m][n] = op(S)[m][k] x dense[k][n]. dds is the same product transposed, so it comes here with
// the sparse operand flipped and OUT_TRANSPOSED.
//
// A CTA computes TILE_M x TILE_N of the output. Its TILE_M rows are a panel of kGroup block rows; it walks the
// union of their block columns (a step each, with a mask of the rows that store the block), so the dense
// operand is loaded once a step and not once a block. Every warp multiplies only the blocks that are there.
#pragma once

#include "../../abi.h"
#include "../ptx/cp_async.cuh"
#include "../tile/order.cuh"
#include "../tile/shared_tile.cuh"
#include "../tile/store_tile.cuh"

namespace jitsparse {

template <typename Element_, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS,
          bool OUT_TRANSPOSED, int TILE_M_, int TILE_N_, int TILE_K_, int WARPS_M_, int WARPS_N_, int STAGES_>
struct SpmmMma {
  using Element = Element_;
  using Storage = typename Element::Storage;
  static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TILE_K_, STAGES = STAGES_;
  static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;

  // The block as op(S) uses it.
  static constexpr int kBlockM = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;
  static constexpr int kBlockK = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kGroup = TILE_M / kBlockM;
  static_assert(TILE_M % kBlockM == 0, "a panel holds whole blocks");
  static_assert(kGroup == 1 || TILE_M == 128, "the packed index holds panels of 128 rows");
  static_assert(WARP_M % kBlockM == 0 || kBlockM % WARP_M == 0, "a warp holds whole blocks or a part of one");
  static_assert(WARP_N % 16 == 0 && kBlockM % 16 == 0 && kBlockK % Element::kMmaK == 0, "mma tile sizes");

  // A stage of the pipeline is TILE_K deep: several steps of a small block, or a part of a large one.
  static constexpr int kSlots = TILE_K > kBlockK ? TILE_K / kBlockK : 1;
  static constexpr int kParts = kBlockK > TILE_K ? kBlockK / TILE_K : 1;
  static constexpr int kSlotK = TILE_K / kSlots;
  static_assert(kSlots * kGroup <= 32, "one warp fetches a stage's block positions");

  static constexpr bool kScalar = sizeof(Storage) == 4;  // operands that ldmatrix cannot transpose
  using BlockTile = SharedTile<Element, FLIPPED ? kSlotK : kBlockM, FLIPPED ? kBlockM : kSlotK, kScalar && FLIPPED>;
  using DenseTile = SharedTile<Element, DENSE_K_CONTIGUOUS ? TILE_N : kSlotK, DENSE_K_CONTIGUOUS ? kSlotK : TILE_N,
                               kScalar && !DENSE_K_CONTIGUOUS>;
  using Staged = StagedTile<Element, WARP_M, WARP_N, OUT_TRANSPOSED>;

  static constexpr int kBlockBytes = kSlots * kGroup * BlockTile::kBytes;
  static constexpr int kStageBytes = kBlockBytes + kSlots * DenseTile::kBytes;
  // Steps are fetched two pipeline depths before their data and read until it is consumed; block positions one depth before.
  static_assert(STAGES <= 5, "the rings hold three and two pipeline depths");
  static constexpr int kStepRing = 16, kPositionRing = 16;
  static constexpr int kRingBytes = (kStepRing * kSlots * 16 + kPositionRing * kSlots * kGroup * 4 + 15) / 16 * 16;
  static constexpr int kPipelineBytes = STAGES * kStageBytes + kRingBytes;
  static constexpr int kStagedBytes = WARPS_M * WARPS_N * Staged::kBytes;
  static constexpr int kSharedBytes = kPipelineBytes > kStagedBytes ? kPipelineBytes : kStagedBytes;
  static constexpr int kGroupedPanels = 16;

  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  static JITSPARSE_HD int64 m(const SpmmArgs& args) { return FLIPPED ? args.cols : args.rows; }
  static JITSPARSE_HD int64 k(const SpmmArgs& args) { return FLIPPED ? args.rows : args.cols; }
  static JITSPARSE_HD int64 panels(const SpmmArgs& args) { return (m(args) + TILE_M - 1) / TILE_M; }
  static JITSPARSE_HD int64 column_tiles(const SpmmArgs& args) { return (args.n + TILE_N - 1) / TILE_N; }

  // The steps of one panel. A panel of a single block row reads the row's own index: every mask is 1.
  struct Steps {
    const int* minor;      // kGroup == 1: block column of each step
    const int* positions;  // where each block lies in values; null: in this very order
    const int4* merged;    // kGroup > 1: (block column, mask, first position, 0)
    int begin, end;

    __device__ __forceinline__ Steps(const SpmmArgs& args, int64 panel) {
      const Index index(args.index, args.rows, args.cols, args.nnz);
      const int* pointers;
      if constexpr (kGroup == 1) {
        pointers = FLIPPED ? index.ccol() : index.crow();
        minor = FLIPPED ? index.row_t() : index.col();
        positions = FLIPPED ? index.perm() : nullptr;
        merged = nullptr;
      } else {
        pointers = FLIPPED ? index.col_panel_ptr() : index.row_panel_ptr();
        minor = nullptr;
        positions = FLIPPED ? index.col_panel_blocks() : index.row_panel_blocks();
        merged = reinterpret_cast<const int4*>(FLIPPED ? index.col_steps() : index.row_steps());
      }
      begin = pointers[panel];
      end = pointers[panel + 1];
    }
  };

  struct Rings {
    int4* steps;     // [kStepRing][kSlots]
    int* positions;  // [kPositionRing][kSlots][kGroup]

    __device__ __forceinline__ explicit Rings(unsigned char* shared)
        : steps(reinterpret_cast<int4*>(shared + STAGES * kStageBytes)),
          positions(reinterpret_cast<int*>(steps + kStepRing * kSlots)) {}
    __device__ __forceinline__ int4* step(int stage, int slot) { return steps + (stage & (kStepRing - 1)) * kSlots + slot; }
    __device__ __forceinline__ int* position(int stage, int slot, int g) {
      return positions + ((stage & (kPositionRing - 1)) * kSlots + slot) * kGroup + g;
    }
  };

  // Fetches the steps of `stage`. Threads past the number of slots have nothing to do.
  static __device__ __forceinline__ void fetch_steps(const Steps& steps, Rings& rings, int stage, int thread) {
    if (thread >= kSlots) return;
    const int step = steps.begin + stage / kParts * kSlots + thread;
    int4* to = rings.step(stage, thread);
    if (step >= steps.end) {
      *to = make_int4(0, 0, 0, 0);
    } else if constexpr (kGroup == 1) {
      ptx::cp_async_4(__cvta_generic_to_shared(to), steps.minor + step);
      to->y = 1;
      to->z = step;
    } else {
      ptx::cp_async_16(__cvta_generic_to_shared(to), steps.merged + step);
    }
  }

  // Fetches where the blocks of `stage` lie; -1 where there is none. Its steps must have arrived.
  static __device__ __forceinline__ void fetch_positions(const Steps& steps, Rings& rings, int stage, int thread) {
    if (thread >= kSlots * kGroup) return;
    const int slot = thread / kGroup, g = thread % kGroup;
    const int4 step = *rings.step(stage, slot);
    const int at = step.z + __popc(step.y & ((1 << g) - 1));
    int* to = rings.position(stage, slot, g);
    if (!(step.y >> g & 1)) {
      *to = -1;
    } else if (steps.positions == nullptr) {
      *to = at;
    } else {
      ptx::cp_async_4(__cvta_generic_to_shared(to), steps.positions + at);
    }
  }

  using BlockCopy = TileCopy<BlockTile, kSlots * kGroup, kThreads>;
  using DenseCopy = TileCopy<DenseTile, kSlots, kThreads>;
  static constexpr int kBlockPitch = (FLIPPED ? kBlockM : kBlockK) * int(sizeof(Storage));

  // Where the copies of one thread begin, and how far the dense operand reaches.
  struct Sources {
    BlockCopy block_copy;
    DenseCopy dense_copy;
    const char* blocks;    // the thread's first chunk of block 0
    const char* dense;     // the thread's first chunk of block column 0, in the tile's columns
    int64 dense_stride;    // bytes from row to row
    int64 dense_part;      // bytes from one part of a block column to the next
    uint64 dense_step;     // bytes from block column to block column
    unsigned whole_steps;  // block columns that lie inside the dense operand whole
    int last_step;         // its extent in the one that does not
    int columns;           // of the tile that are inside

    __device__ __forceinline__ Sources(const SpmmArgs& args, int64 first_n, int64 batch, int thread)
        : block_copy(thread), dense_copy(thread) {
      const int64 pitch = FLIPPED ? kBlockM : kBlockK;
      blocks = reinterpret_cast<const char*>(static_cast<const Storage*>(args.values) +
                                             block_copy.first_row * pitch + block_copy.column);
      const int64 ld = args.dense_ld;
      dense = reinterpret_cast<const char*>(static_cast<const Storage*>(args.dense) + batch * args.dense_batch_stride +
                                            first_n * (DENSE_K_CONTIGUOUS ? ld : 1) + dense_copy.first_row * ld +
                                            dense_copy.column);
      dense_stride = ld * int64(sizeof(Storage));
      const int64 along_k = DENSE_K_CONTIGUOUS ? int64(sizeof(Storage)) : dense_stride;
      dense_part = kSlotK * along_k;
      dense_step = kBlockK * along_k;
      whole_steps = unsigned(k(args) / kBlockK);
      last_step = int(k(args) % kBlockK);
      columns = inside(args.n, first_n, TILE_N);
    }
  };

  // Starts the copies that fill a buffer of the pipeline. The positions and steps of `stage` must have arrived.
  static __device__ __forceinline__ void fetch(const Sources& from, Rings& rings, int stage, unsigned buffer) {
    const BlockCopy& block_copy = from.block_copy;
    const DenseCopy& dense_copy = from.dense_copy;
    int positions[BlockCopy::kTiles];
    unsigned steps[DenseCopy::kTiles];
#pragma unroll
    for (int i = 0; i < BlockCopy::kTiles; ++i) {
      positions[i] = block_copy.has(i) ? rings.position(stage, 0, 0)[block_copy.tile(i)] : -1;
    }
#pragma unroll
    for (int i = 0; i < DenseCopy::kTiles; ++i) steps[i] = dense_copy.has(i) ? rings.step(stage, dense_copy.tile(i))->x : 0;

    const int part = stage % kParts;
    const char* blocks = from.blocks + part * kSlotK * (FLIPPED ? kBlockPitch : int(sizeof(Storage)));
#pragma unroll
    for (int i = 0; i < BlockCopy::kTiles; ++i) {
      if (positions[i] < 0) continue;
      block_copy.start(buffer, i, blocks + int64(positions[i]) * (kBlockM * kBlockK * int(sizeof(Storage))), kBlockPitch);
    }
    const char* dense = from.dense + part * from.dense_part;
    const int last_step = from.last_step - part * kSlotK;
#pragma unroll
    for (int i = 0; i < DenseCopy::kTiles; ++i) {
      if (!dense_copy.has(i)) continue;
      // A slot past the last step has block column 0 and is copied for nothing, which costs less than asking.
      const bool whole = steps[i] < from.whole_steps;
      const bool column_inside = DENSE_K_CONTIGUOUS ? whole || dense_copy.column < last_step : dense_copy.column < from.columns;
      dense_copy.start(buffer + kBlockBytes, i, dense + steps[i] * from.dense_step, from.dense_stride, [&](int row) {
        return column_inside && (DENSE_K_CONTIGUOUS ? row < from.columns : whole || row < last_step);
      });
    }
  }

  using Accumulators = float[WARP_M / 16][WARP_N / 8][4];

  using BlockFragments = LeftFragments<Element, !FLIPPED, BlockTile>;
  using DenseFragments = RightFragments<Element, DENSE_K_CONTIGUOUS, DenseTile>;
  static constexpr bool kAlwaysPresent = kGroup == 1 && kSlots == 1;

  // One warp's share of a stage: for each depth of the mma its columns of the dense tile once, then the blocks
  // that are there. Bit slot * kGroup + g of `present` says that the warp's block g of that slot is.
  static __device__ __forceinline__ void multiply(Accumulators& c, unsigned present, unsigned blocks, unsigned dense) {
    constexpr int kBlocksInWarp = WARP_M > kBlockM ? WARP_M / kBlockM : 1;
    constexpr int kRowsOfBlock = WARP_M > kBlockM ? kBlockM : WARP_M;
    constexpr unsigned kMine = (1u << kBlocksInWarp) - 1;
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!kAlwaysPresent && !(present >> slot * kGroup & kMine)) continue;
#pragma unroll
      for (int k = 0; k < kSlotK; k += Element::kMmaK) {
        unsigned b[WARP_N / 16][4];
#pragma unroll
        for (int j = 0; j < WARP_N / 16; ++j) DenseFragments::load(b[j], dense + slot * DenseTile::kBytes, j * 16, k);
#pragma unroll
        for (int g = 0; g < kBlocksInWarp; ++g) {
          if (!kAlwaysPresent && !(present >> (slot * kGroup + g) & 1)) continue;
#pragma unroll
          for (int i = 0; i < kRowsOfBlock / 16; ++i) {
            unsigned a[4];
            BlockFragments::load(a, blocks + (slot * kGroup + g) * BlockTile::kBytes, i * 16, k);
#pragma unroll
            for (int j = 0; j < WARP_N / 8; ++j) {
              Element::mma(c[g * (kRowsOfBlock / 16) + i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void add_bias(Accumulators& c, const Storage* bias, int64 extent, int lane) {
#pragma unroll
    for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = i * 16 + half * 8 + lane / 4;
        const float b = m < extent ? Element::load(bias[m]) : 0.0f;
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j) {
          c[i][j][2 * half] += b;
          c[i][j][2 * half + 1] += b;
        }
      }
    }
  }

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned stages = unsigned(__cvta_generic_to_shared(shared));
    // The shuffle tells the compiler that the warp index is the same in all lanes.
    const int thread = threadIdx.x, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0);
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    const TileCoordinates tile = grouped_order<kGroupedPanels>(blockIdx.x, panels(args), column_tiles(args));
    const int64 first_m = tile.row * TILE_M, first_n = tile.column * TILE_N;

    const Steps steps(args, tile.row);
    Rings rings(shared);
    const Sources sources(args, first_n, tile.batch, thread);
    const int stage_count = (steps.end - steps.begin + kSlots - 1) / kSlots * kParts;
    constexpr int kAhead = STAGES - 1;
    const int position_thread = kThreads > 32 ? (thread + kThreads - 32) % kThreads : thread;

    // Fills a buffer of the pipeline with `stage` and fetches what later stages will need to know.
    const auto advance = [&](int stage, unsigned buffer) {
      if (stage < stage_count) {
        fetch(sources, rings, stage, buffer);
        fetch_positions(steps, rings, stage + kAhead, position_thread);
        fetch_steps(steps, rings, stage + 2 * kAhead, thread);
      }
      ptx::cp_async_commit();
    };

    for (int stage = 0; stage < 2 * kAhead; ++stage) fetch_steps(steps, rings, stage, thread);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    for (int stage = 0; stage < kAhead; ++stage) fetch_positions(steps, rings, stage, position_thread);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    for (int stage = 0; stage < kAhead; ++stage) advance(stage, stages + stage * kStageBytes);

    // Where this warp's part of the panel begins: a block of a slot, and rows of that block.
    const int first_block = warp_m * WARP_M / kBlockM, first_row = warp_m * WARP_M % kBlockM;
    const unsigned block_offset = first_block * BlockTile::kBytes +
                                  BlockTile::moved(BlockFragments::lane_offset(lane), FLIPPED ? 0 : first_row,
                                                   FLIPPED ? first_row / BlockTile::kPerChunk : 0);
    const unsigned dense_offset =
        kBlockBytes + DenseTile::moved(DenseFragments::lane_offset(lane), DENSE_K_CONTIGUOUS ? warp_n * WARP_N : 0,
                                       DENSE_K_CONTIGUOUS ? 0 : warp_n * WARP_N / DenseTile::kPerChunk);
    const unsigned end_of_stages = stages + STAGES * kStageBytes;
    unsigned filled = stages, free = stages + kAhead * kStageBytes;
    Accumulators c = {};
    for (int stage = 0; stage < stage_count; ++stage) {
      ptx::cp_async_wait<STAGES - 2>();
      __syncthreads();
      advance(stage + kAhead, free);
      unsigned present = 1;
      if constexpr (!kAlwaysPresent) {
        const int mask = lane < kSlots * kGroup ? rings.step(stage, lane / kGroup)->y : 0;
        present = __ballot_sync(~0u, mask >> lane % kGroup & 1) >> first_block;
      }
      multiply(c, present, filled + block_offset, filled + dense_offset);
      filled = filled + kStageBytes == end_of_stages ? stages : filled + kStageBytes;
      free = free + kStageBytes == end_of_stages ? stages : free + kStageBytes;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();

    const int64 warp_first_m = first_m + warp_m * WARP_M, warp_first_n = first_n + warp_n * WARP_N;
    if (OUT_TRANSPOSED && args.bias != nullptr) {
      add_bias(c, static_cast<const Storage*>(args.bias) + warp_first_m, m(args) - warp_first_m, lane);
    }
    if (args.activation != kIdentity) {
#pragma unroll
      for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) c[i][j][e] = activate(c[i][j][e], args.activation);
        }
      }
    }
    Storage* staged = reinterpret_cast<Storage*>(shared + warp * Staged::kBytes);
    Staged::write(staged, c, lane);
    __syncwarp();
    const int64 row = OUT_TRANSPOSED ? warp_first_n : warp_first_m;
    const int64 column = OUT_TRANSPOSED ? warp_first_m : warp_first_n;
    Storage* out = static_cast<Storage*>(args.out) + tile.batch * args.out_batch_stride + row * args.out_ld + column;
    Staged::copy_out(staged, out, args.out_ld, (OUT_TRANSPOSED ? args.n : m(args)) - row,
                     (OUT_TRANSPOSED ? m(args) : args.n) - column, lane);
  }

  static int64 grid(const SpmmArgs& args) { return panels(args) * column_tiles(args) * args.batch; }
};

}  // namespace jitsparse
