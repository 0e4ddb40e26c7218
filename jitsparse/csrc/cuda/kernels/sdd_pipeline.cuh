// The pipeline of a sampled dense x dense product: what a CTA copies into shared memory, stage by stage.
//
// A CTA takes a panel of TILE_M rows and kColumns of the block columns that any row of the panel stores. It
// gathers those columns of the right operand side by side into one TILE_N wide tile, so both operands are
// loaded once for all the blocks where they meet.
#pragma once

#include "../../abi.h"
#include "../ptx/cp_async.cuh"
#include "../tile/shared_tile.cuh"

namespace jitsparse {

template <typename Element_, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_M,
          int TILE_N, int TILE_K, int THREADS, int STAGES>
struct SddPipeline {
  using Element = Element_;
  using Storage = typename Element::Storage;
  static constexpr int kAhead = STAGES - 1;  // stages in flight while one is multiplied
  static constexpr int kGroup = TILE_M / BLOCK_ROWS;
  static constexpr int kColumns = TILE_N / BLOCK_COLS, kBlockCols = BLOCK_COLS;
  static_assert(TILE_M % BLOCK_ROWS == 0 && TILE_N % BLOCK_COLS == 0, "a tile holds whole blocks");
  static_assert(kGroup == 1 || (TILE_M == 128 && BLOCK_ROWS != 64), "the index has panels of 128 rows; of blocks of 64 any two");

  static constexpr bool kScalar = sizeof(Storage) == 4;  // operands that ldmatrix cannot transpose
  using LeftTile = SharedTile<Element, LEFT_K_CONTIGUOUS ? TILE_M : TILE_K, LEFT_K_CONTIGUOUS ? TILE_K : TILE_M,
                              kScalar && !LEFT_K_CONTIGUOUS>;
  // Gathered block columns that are stacked in shared memory are tiles of their own.
  using RightTile = SharedTile<Element, RIGHT_K_CONTIGUOUS ? BLOCK_COLS : TILE_K, RIGHT_K_CONTIGUOUS ? TILE_K : TILE_N,
                               kScalar && !RIGHT_K_CONTIGUOUS>;
  static constexpr int kRightTiles = RIGHT_K_CONTIGUOUS ? kColumns : 1;

  static constexpr int kLeftBytes = LeftTile::kBytes;
  static constexpr int kStageBytes = kLeftBytes + kRightTiles * RightTile::kBytes;
  static constexpr int kBytes = STAGES * kStageBytes;

  using Index = IndexView<BLOCK_ROWS, BLOCK_COLS>;
  static JITSPARSE_HD int64 panels(const SddArgs& args) { return div_up(args.rows, TILE_M); }
  // Only the device knows the number of steps: a panel gets the CTAs that it could need, and those past its steps return.
  static JITSPARSE_HD int64 column_tiles(const SddArgs& args) {
    return div_up(div_up(args.cols, BLOCK_COLS), kColumns);
  }
  static int64 grid(const SddArgs& args) { return panels(args) * column_tiles(args); }

  static __device__ __forceinline__ int tiles_of_k(const SddArgs& args) { return (int(args.k) + TILE_K - 1) / TILE_K; }
  static __device__ __forceinline__ int stage_count(const SddArgs& args) { return tiles_of_k(args) * int(args.batch); }  // of a tile

  // Where the steps of each panel begin.
  static __device__ __forceinline__ const int* pointers(const Index& index) {
    return kGroup == 1 ? index.crow() : index.row_panel_ptr();
  }

  // A tile's first step, and the end of its panel's steps; the tile is empty if its first step is not before the end.
  static __device__ __forceinline__ int2 steps_of_tile(const Index& index, int64 panel, int64 tile) {
    return make_int2(pointers(index)[panel] + int(tile) * kColumns, pointers(index)[panel + 1]);
  }

  // The u-th block column of a tile as (block column, mask of its rows, first position, -), with mask 0 past the panel's last.
  static __device__ __forceinline__ int4 column_of_tile(const SddArgs& args, int64 panel, int64 tile, int u) {
    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int2 steps = steps_of_tile(index, panel, tile);
    const int step = steps.x + u;
    if (step >= steps.y) return make_int4(0, 0, 0, 0);
    return kGroup == 1 ? make_int4(index.col()[step], 1, step, 0) : reinterpret_cast<const int4*>(index.row_steps())[step];
  }

  // Writes all of a tile's block columns to `columns`; false if it has none.
  static __device__ __forceinline__ bool find_columns(const SddArgs& args, int64 panel, int64 tile, int4* columns, int thread) {
    const int2 steps = steps_of_tile(Index(args.index, args.rows, args.cols, args.nnz), panel, tile);
    if (steps.x >= steps.y) return false;
    if (thread < kColumns) columns[thread] = column_of_tile(args, panel, tile, thread);
    __syncthreads();
    return true;
  }

  // Where the output has the block in row `g` of a panel and a gathered column.
  static __device__ __forceinline__ Storage* block_of(const SddArgs& args, const int4& column, int g) {
    const Index index(args.index, args.rows, args.cols, args.nnz);
    const int in_order = column.z + __popc(column.y & ((1 << g) - 1));
    const int64 position = kGroup == 1 ? in_order : index.row_panel_blocks()[in_order];
    return static_cast<Storage*>(args.out) + position * (BLOCK_ROWS * BLOCK_COLS);
  }

  // Zeroes elements of the tile's stored blocks past the edges of the matrix: infinity times the zeros loaded there is NaN. (Doing so in
  // registers before storing takes more of them than there are.)
  static __device__ __forceinline__ void clear_past_edge(const SddArgs& args, int64 panel, const int4* columns, int thread) {
    const int64 rows = args.rows - panel * TILE_M;
    for (int u = 0; u < kColumns; ++u) {
      const int4 column = columns[u];
      const int64 cols = args.cols - int64(column.x) * BLOCK_COLS;
      if (!column.y || (rows >= TILE_M && cols >= BLOCK_COLS)) continue;
      __syncthreads();
      for (int g = 0; g < kGroup; ++g) {
        if (!(column.y >> g & 1)) continue;
        Storage* block = block_of(args, column, g);
        for (int e = thread; e < BLOCK_ROWS * BLOCK_COLS; e += THREADS) {
          if (g * BLOCK_ROWS + e / BLOCK_COLS >= rows || e % BLOCK_COLS >= cols) block[e] = Element::store(0.0f);
        }
      }
    }
  }

  using LeftCopy = TileCopy<LeftTile, 1, THREADS>;
  using RightCopy = TileCopy<RightTile, kRightTiles, THREADS>;
  static constexpr int kSize = sizeof(Storage);

  // The stages of one tile, as one thread sees them: where its copies begin, and how far the operands reach.
  struct Stream {
    LeftCopy left_copy;
    RightCopy right_copy;
    const char* left;
    const char* right[RightCopy::kTiles];
    int64 left_stride, right_stride;      // bytes from row to row of a tile
    int64 left_step, right_step;          // bytes from stage to stage
    int64 left_batch, right_batch;
    // For a k-major tile, how many rows from the thread's first on are inside (none if it is not positive); else whether the thread's
    // column is inside.
    int left_inside, right_inside[RightCopy::kTiles];
    int k_extent, k_tiles, end;           // stages before `end` are copied
    unsigned buffers;

    __device__ __forceinline__ Stream(const SddArgs& args, int64 panel, const int4* columns, unsigned char* shared, int end_, int thread)
        : left_copy(thread), right_copy(thread), end(end_), buffers(unsigned(__cvta_generic_to_shared(shared))) {
      const int64 first_row = panel * TILE_M;
      left = static_cast<const char*>(args.left) + (first_row * (LEFT_K_CONTIGUOUS ? args.left_ld : 1) +
                                                    left_copy.first_row * args.left_ld + left_copy.column) * kSize;
      left_stride = args.left_ld * kSize;
      left_step = TILE_K * (LEFT_K_CONTIGUOUS ? kSize : left_stride);
      left_batch = args.left_batch_stride * kSize;
      const int rows = inside(args.rows, first_row, TILE_M);
      left_inside = LEFT_K_CONTIGUOUS ? rows - left_copy.first_row : left_copy.column < rows;
      right_stride = args.right_ld * kSize;
      right_step = TILE_K * (RIGHT_K_CONTIGUOUS ? kSize : right_stride);
      right_batch = args.right_batch_stride * kSize;
#pragma unroll
      for (int i = 0; i < RightCopy::kTiles; ++i) {
        const int4 column = columns[RIGHT_K_CONTIGUOUS ? right_copy.tile(i) : right_copy.column / BLOCK_COLS];
        const int64 at = int64(column.x) * BLOCK_COLS + (RIGHT_K_CONTIGUOUS ? 0 : right_copy.column % BLOCK_COLS);
        const int columns_inside = column.y ? inside(args.cols, at, BLOCK_COLS) : 0;
        right_inside[i] = RIGHT_K_CONTIGUOUS ? columns_inside - right_copy.first_row : columns_inside > 0;
        right[i] = static_cast<const char*>(args.right) +
                   (at * (RIGHT_K_CONTIGUOUS ? args.right_ld : 1) + right_copy.first_row * args.right_ld +
                    (RIGHT_K_CONTIGUOUS ? right_copy.column : 0)) * kSize;
      }
      k_extent = int(args.k);
      k_tiles = tiles_of_k(args);
    }

    // Starts the copies of kAhead stages from `first` on.
    __device__ __forceinline__ void start(int first) {
      for (int i = 0; i < kAhead; ++i) advance(first + i, buffers + i * kStageBytes);
    }

    // Starts the copies of `stage` into a free buffer. One group of copies per call.
    __device__ __forceinline__ void advance(int stage, unsigned buffer) {
      if (stage < end) {
        int64 left_at = stage * left_step, right_at = stage * right_step;
        int k_tile = stage;
        if (stage >= k_tiles) {  // the first batch entry skips a division, which would be a third of a stage's overhead
          const int batch = stage / k_tiles;
          left_at += batch * (left_batch - k_tiles * left_step);
          right_at += batch * (right_batch - k_tiles * right_step);
          k_tile -= batch * k_tiles;
        }
        fetch(left_at, right_at, k_extent - k_tile * TILE_K, buffer);
      }
      ptx::cp_async_commit();
    }

   private:
    // `left_at` and `right_at` are bytes from where the thread's copies begin; k_left elements remain along k.
    __device__ __forceinline__ void fetch(int64 left_at, int64 right_at, int k_left, unsigned buffer) const {
      if (left_copy.has(0)) {
        left_copy.start(buffer, 0, left + left_at, left_stride, rows_of<LEFT_K_CONTIGUOUS>(left_copy, left_inside, k_left));
      }
#pragma unroll
      for (int i = 0; i < RightCopy::kTiles; ++i) {
        if (!right_copy.has(i)) continue;
        right_copy.start(buffer + kLeftBytes, i, right[i] + right_at, right_stride,
                         rows_of<RIGHT_K_CONTIGUOUS>(right_copy, right_inside[i], k_left));
      }
    }

    // The `rows` argument of a copy's start().
    template <bool K_CONTIGUOUS, typename Copy>
    static __device__ __forceinline__ int rows_of(const Copy& copy, int inside, int k_left) {
      if (K_CONTIGUOUS) return copy.column < k_left ? inside : 0;
      return inside ? k_left - copy.first_row : 0;
    }
  };
};

}  // namespace jitsparse
