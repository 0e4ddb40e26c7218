// The pipeline of a block-sparse x dense product: what a CTA copies into shared memory, stage by stage.
//
// Role form: out[m][n] = op(S)[m][k] x dense[k][n]. dds is the same product transposed, so it comes here with the
// sparse operand flipped and its output transposed.
//
// A CTA computes TILE_M x TILE_N of the output. Its TILE_M rows are a panel of kGroup block rows; it walks the union of their block columns
// (one step each, with a mask of the rows that store the block), so the dense operand is loaded once per step and not once per block.
#pragma once

#include <type_traits>

#include "../../abi.h"
#include "../ptx/cp_async.cuh"
#include "../tile/shared_tile.cuh"

namespace jitsparse {

// TRANSPOSES_BLOCKS, TRANSPOSES_DENSE: the copy makes a k-major operand MN-major, in float32.
template <typename Element_, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, int TILE_M,
          int TILE_N, int TILE_K, int THREADS, int STAGES, bool TRANSPOSES_BLOCKS = false,
          bool TRANSPOSES_DENSE = false>
struct SpmmPipeline {
  using Element = Element_;
  using Storage = typename Element::Storage;
  static constexpr int kAhead = STAGES - 1;  // stages in flight while one is multiplied

  // The block as op(S) uses it.
  static constexpr int kBlockM = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;
  static constexpr int kBlockK = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kGroup = TILE_M / kBlockM;
  static_assert(TILE_M % kBlockM == 0, "a panel holds whole blocks");
  static_assert(kGroup == 1 || (TILE_M == 128 && kBlockM != 64), "the index has panels of 128 rows; of blocks of 64 any two");

  // A stage is TILE_K deep: several steps of a small block, or a piece of a large one.
  static constexpr int kSlots = TILE_K > kBlockK ? TILE_K / kBlockK : 1;
  static constexpr int kStagesPerStep = kBlockK > TILE_K ? kBlockK / TILE_K : 1;
  static constexpr int kSlotK = TILE_K / kSlots;
  static_assert(kSlots * kGroup <= THREADS, "a thread fetches one of a stage's block positions");

  static constexpr bool kScalar = sizeof(Storage) == 4;  // operands that ldmatrix cannot transpose
  static_assert(!TRANSPOSES_BLOCKS || (kScalar && !FLIPPED && kSlots * kGroup == 1), "only a single k-major block is transposed");
  static_assert(!TRANSPOSES_DENSE || (kScalar && DENSE_K_CONTIGUOUS && kSlots == 1), "only a single k-major slab is transposed");
  static constexpr bool kBlocksAcross = FLIPPED || TRANSPOSES_BLOCKS;  // blocks are M-major in shared memory
  using BlockTile = SharedTile<Element, kBlocksAcross ? kSlotK : kBlockM, kBlocksAcross ? kBlockM : kSlotK, kScalar && FLIPPED>;
  static constexpr bool kDenseAcross = !DENSE_K_CONTIGUOUS || TRANSPOSES_DENSE;  // the slab is N-major there
  using DenseTile =
      SharedTile<Element, kDenseAcross ? kSlotK : TILE_N, kDenseAcross ? TILE_N : kSlotK, kScalar && !DENSE_K_CONTIGUOUS>;

  static constexpr int kBlockBytes = kSlots * kGroup * BlockTile::kBytes;
  static constexpr int kStageBytes = kBlockBytes + kSlots * DenseTile::kBytes;
  // Steps are fetched two pipeline depths ahead of their data and read until it is consumed; block positions one depth ahead.
  static_assert(2 * kAhead + STAGES <= 16, "the rings hold what is in flight");
  static constexpr int kStepRing = 16, kPositionRing = 16;
  static constexpr int kRingBytes = (kStepRing * kSlots * 16 + kPositionRing * kSlots * kGroup * 4 + 15) / 16 * 16;
  static constexpr int kBytes = STAGES * kStageBytes + kRingBytes;

  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  static JITSPARSE_HD int64 m(const SpmmArgs& args) { return FLIPPED ? args.cols : args.rows; }
  static JITSPARSE_HD int64 k(const SpmmArgs& args) { return FLIPPED ? args.rows : args.cols; }
  static JITSPARSE_HD int64 panels(const SpmmArgs& args) { return div_up(m(args), TILE_M); }
  static JITSPARSE_HD int64 column_tiles(const SpmmArgs& args) { return div_up(args.n, TILE_N); }
  static int64 grid(const SpmmArgs& args) { return panels(args) * column_tiles(args) * args.batch; }

  // The steps of one panel, or of a split-K part of it. A panel of a single block row reads the row's own index: every mask is 1.
  struct Steps {
    const int* minor;      // kGroup == 1: block column of each step
    const int* positions;  // position of each block in values; null: in the order of the steps
    const int4* merged;    // kGroup > 1: (block column, mask, first position, position of the first block)
    int begin, end;

    __device__ __forceinline__ Steps(const SpmmArgs& args, int64 panel, int part, int parts) {
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
      if (parts == 1) return;
      const int whole = (end - begin) / parts, rest = (end - begin) % parts;
      end = begin + whole * (part + 1) + rest * (part + 1) / parts;
      begin += whole * part + rest * part / parts;
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
    const int step = steps.begin + stage / kStagesPerStep * kSlots + thread;
    int4* to = rings.step(stage, thread);
    if (step >= steps.end) {
      *to = make_int4(0, 0, 0, 0);
    } else if constexpr (kGroup == 1) {
      ptx::cp_async_4(__cvta_generic_to_shared(to), steps.minor + step);
      to->y = 1;
    } else {
      ptx::cp_async_16(__cvta_generic_to_shared(to), steps.merged + step);
    }
  }

  // Fetches the positions of the blocks of `stage`, -1 where there is none. If a panel holds several block rows, its steps must have
  // arrived.
  static __device__ __forceinline__ void fetch_positions(const Steps& steps, Rings& rings, int stage, int thread) {
    if (thread >= kSlots * kGroup) return;
    const int slot = unsigned(thread) / kGroup, g = unsigned(thread) % kGroup;
    int* to = rings.position(stage, slot, g);
    int at;
    bool present;
    if constexpr (kGroup == 1) {
      at = steps.begin + stage / kStagesPerStep * kSlots + slot;
      present = at < steps.end;
    } else {
      const int4 step = *rings.step(stage, slot);
      at = step.z + __popc(step.y & ((1 << g) - 1));
      present = step.y >> g & 1;
    }
    if (!present) {
      *to = -1;
    } else if (steps.positions == nullptr) {
      *to = at;
    } else {
      ptx::cp_async_4(__cvta_generic_to_shared(to), steps.positions + at);
    }
  }

  using BlockCopy =
      std::conditional_t<TRANSPOSES_BLOCKS, TransposingCopy<BlockTile, THREADS>, TileCopy<BlockTile, kSlots * kGroup, THREADS>>;
  using DenseCopy = std::conditional_t<TRANSPOSES_DENSE, TransposingCopy<DenseTile, THREADS>, TileCopy<DenseTile, kSlots, THREADS>>;
  // A thread that copies one row of a slab tests one bound, not two (blocks of 16: 1.01 to 1.02 times as fast).
  static constexpr bool kOneRow = DenseCopy::kPasses == 1;
  static constexpr int kSize = sizeof(Storage);
  static constexpr int kBlockPitch = (FLIPPED ? kBlockM : kBlockK) * kSize;

  // Where the copies of one thread begin, and how far the dense operand reaches.
  struct Sources {
    BlockCopy block_copy;
    DenseCopy dense_copy;
    const char* blocks;    // the thread's first chunk of block 0
    const char* dense;     // the thread's first chunk of block column 0, in the tile's columns
    int64 dense_stride;    // bytes from row to row
    int rows;              // rows of a slab, from the thread's first on, that are inside if its k are; none if not positive
    int depth;             // extent along k, from the thread's first element on; with kOneRow 0 if that row is outside

    __device__ __forceinline__ Sources(const SpmmArgs& args, int64 first_n, int64 batch, int thread)
        : block_copy(thread), dense_copy(thread) {
      blocks = static_cast<const char*>(args.values) + block_copy.first_row * kBlockPitch + block_copy.column * kSize;
      const int64 ld = args.dense_ld;
      dense = static_cast<const char*>(args.dense) +
              (batch * args.dense_batch_stride + first_n * (DENSE_K_CONTIGUOUS ? ld : 1) + dense_copy.first_row * ld +
               dense_copy.column) * kSize;
      dense_stride = ld * kSize;
      const int columns = inside(args.n, first_n, TILE_N);
      rows = (DENSE_K_CONTIGUOUS ? columns : dense_copy.column < columns ? kSlotK : 0) - dense_copy.first_row;
      depth = int(k(args)) - (DENSE_K_CONTIGUOUS ? dense_copy.column : dense_copy.first_row);
      if (kOneRow && rows <= 0) depth = 0;
    }

    // How many rows are inside, of a slab that begins at `first` along k.
    __device__ __forceinline__ int rows_inside(int first) const {
      const int left = depth - first;
      if (kOneRow) return left;
      return DENSE_K_CONTIGUOUS ? (left > 0 ? rows : 0) : left < rows ? left : rows;
    }
  };

  // Starts the copies that fill a buffer. The positions and steps of `stage` must have arrived.
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
    for (int i = 0; i < DenseCopy::kTiles; ++i) {
      steps[i] = dense_copy.has(i) ? rings.step(stage, dense_copy.tile(i))->x : 0;
    }

    const int stage_in_step = stage % kStagesPerStep;
    const char* blocks = from.blocks + stage_in_step * kSlotK * (FLIPPED ? kBlockPitch : kSize);
#pragma unroll
    for (int i = 0; i < BlockCopy::kTiles; ++i) {
      if (positions[i] < 0) continue;
      block_copy.start(buffer, i, blocks + int64(positions[i]) * (kBlockM * kBlockK * kSize), kBlockPitch);
    }
#pragma unroll
    for (int i = 0; i < DenseCopy::kTiles; ++i) {
      if (!dense_copy.has(i)) continue;
      // A slot past the last step has block column 0 and is copied needlessly, which costs less than a test.
      const unsigned first = steps[i] * kBlockK + stage_in_step * kSlotK;
      const char* dense = from.dense + first * (DENSE_K_CONTIGUOUS ? uint64(kSize) : uint64(from.dense_stride));
      dense_copy.start(buffer + kBlockBytes, i, dense, from.dense_stride, from.rows_inside(int(first)));
    }
  }

  // The stages of one tile of the output, as one thread sees them.
  struct Stream {
    Steps steps;
    Rings rings;
    Sources sources;
    int stage_count;
    unsigned buffers;
    int thread;

    __device__ __forceinline__ Stream(const SpmmArgs& args, int64 panel, int64 first_n, int64 batch,
                                      unsigned char* shared, int thread_, int part, int parts)
        : steps(args, panel, part, parts), rings(shared), sources(args, first_n, batch, thread_),
          stage_count((steps.end - steps.begin + kSlots - 1) / kSlots * kStagesPerStep),
          buffers(unsigned(__cvta_generic_to_shared(shared))), thread(thread_) {}

    // Starts the copies of the first kAhead stages.
    __device__ __forceinline__ void start() {
      for (int stage = 0; stage < 2 * kAhead; ++stage) fetch_steps(steps, rings, stage, thread);
      if constexpr (kGroup > 1) {
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        __syncthreads();
      }
      for (int stage = 0; stage < kAhead; ++stage) fetch_positions(steps, rings, stage, position_thread(thread));
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      __syncthreads();
      for (int stage = 0; stage < kAhead; ++stage) advance(stage, buffers + stage * kStageBytes);
    }

    // Starts the copies of `stage` into a free buffer, and fetches the steps and positions of later stages. One group of copies per call:
    // stage s has arrived when at most kAhead - 1 younger ones are pending.
    __device__ __forceinline__ void advance(int stage, unsigned buffer) {
      if (stage < stage_count) {
        fetch(sources, rings, stage, buffer);
        fetch_positions(steps, rings, stage + kAhead, position_thread(thread));
        fetch_steps(steps, rings, stage + 2 * kAhead, thread);
      }
      ptx::cp_async_commit();
    }

    // Positions are fetched from the second warp on, steps by the first.
    static __device__ __forceinline__ int position_thread(int thread) {
      return THREADS > 32 ? unsigned(thread + THREADS - 32) % THREADS : thread;
    }
  };
};

}  // namespace jitsparse
