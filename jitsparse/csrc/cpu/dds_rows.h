// dds: D = X S, with S in blocks as stored, and X and D row-major.
//
// spmm.h broadcasts elements of blocks against rows of a packed dense operand. For flipped blocks, a register
// tile there uses only part of every cache line. Here rows of blocks are the vectors, in whole cache lines, and
// elements of X are broadcast: X is packed in its own order, and nothing is transposed.
//
// Each thread takes strips of X, several register tiles high, and walks the block columns of S.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/pack.h"
#include "cpu/strips.h"

namespace jitsparse::cpu {

// T                         element type
// BLOCK_ROWS, BLOCK_COLS    size of a block
// TILE_ROWS, TILE_COLS      sums held in registers: rows of X (at most) x vectors of columns of S
template <class T, int BLOCK_ROWS, int BLOCK_COLS, int TILE_ROWS, int TILE_COLS>
class DdsRows : public StripProduct {
  using A = Acc<T>;
  using Dense = DenseView<T, /*K_CONTIGUOUS=*/true>;
  using Out = OutView<T, /*TRANSPOSED=*/false>;
  static constexpr int kL = kLanes<A>, kWidth = TILE_COLS * kL;
  using Sum = Vec<A, kL>;
  static_assert(kTogether<T> == 1, "a row of a block is one vector after the other, not pairs of two rows");
  static_assert(BLOCK_COLS % kWidth == 0, "a register tile must not cross block columns");

  // Block rows of S for which X is packed at a time: a few cache lines of each row of X.
  static constexpr int64 kPart = max(1, 128 / BLOCK_ROWS);
  // Strips are as tall as lets their panels stay in the L2 cache, through which the blocks of a column pass
  // once per strip. The sums of all rows of a strip should also stay in L1.
  static constexpr int64 kMaxTiles = 98 / TILE_ROWS;
  // A strip has as few tiles as possible. Their height decreases in these steps, to divide its rows evenly.
  static constexpr int kStep = (TILE_ROWS + 4) / 5;

 public:
  static int run(const SpmmArgs& args) { return run_strips<DdsRows>(args, BLOCK_ROWS * BLOCK_COLS); }

  DdsRows(const SpmmArgs& args, int64 threads) : args_(args), index_(args.index, args.rows, args.cols, args.nnz) {
    const int64 row_bytes = BLOCK_ROWS * index_.R * int64(sizeof(A));
    const StripWidth strip = {kMaxTiles * TILE_ROWS, TILE_ROWS, kStep, row_bytes, l2_bytes()};
    const int64 highest = strip.widest(args.n * args.batch, threads);
    plan = {args.batch, args.n, highest, index_.C, index_.ccol(), BLOCK_ROWS};
    panels_bytes_ = highest * row_bytes;
    sums_bytes_ = highest * kWidth * int64(sizeof(A));
    own_bytes = panels_bytes_ + sums_bytes_ + index_.R;
    expect_output(args, args.cols, sizeof(T), threads);
  }

  // Computes block columns from .. to of the strip of `rows` rows that begins at row `first`.
  void multiply_strip(int64 batch, int64 first, int64 rows, int64 from, int64 to, Memory memory) const {
    const Strip strip{first, rows, div_up(rows, TILE_ROWS), from, to};
    multiply_strip_of<TILE_ROWS>(batch, strip, memory.own);
  }

 private:
  struct Strip {
    int64 first, rows, tiles;
    int64 from, to;  // block columns

    int64 begin_of(int64 tile) const { return first + rows * tile / tiles; }
    int64 rows_of(int64 tile) const { return begin_of(tile + 1) - begin_of(tile); }
  };

  // Uses tiles of HEIGHT rows, or of fewer if that suffices.
  template <int HEIGHT> void multiply_strip_of(int64 batch, const Strip& strip, char* scratch) const {
    if constexpr (HEIGHT > kStep) {
      if (div_up(strip.rows, strip.tiles) <= HEIGHT - kStep) return multiply_strip_of<HEIGHT - kStep>(batch, strip, scratch);
    }
    A* const panels = reinterpret_cast<A*>(scratch);
    A* const sums = reinterpret_cast<A*>(scratch + panels_bytes_);
    PackedParts<kPart> parts(scratch + panels_bytes_ + sums_bytes_, index_.row_t(), index_.R);
    const int64 panel = HEIGHT * BLOCK_ROWS * index_.R, tile = HEIGHT * kWidth;  // elements

    const Dense dense = dense_of<T, /*K_CONTIGUOUS=*/true>(args_, batch, args_.rows);
    const Out out = out_of<T, /*TRANSPOSED=*/false>(args_, batch, args_.n, args_.cols);
    for (int64 col = strip.from; col < strip.to; ++col) {
      parts.complete(begin_of(col), begin_of(col + 1), [&](int64 part) {
        for (int64 i = 0; i < strip.tiles; ++i) {
          pack_part<HEIGHT>(dense, part, strip.begin_of(i), strip.rows_of(i), panels + i * panel);
        }
      });
      // Prefetch the next column's new parts while these are multiplied.
      const int64 next = col + 1, after = next < strip.to ? next + 1 : next;
      parts.expect(begin_of(next), begin_of(after), [&](int64 part) {
        prefetch(dense, part * kPart * BLOCK_ROWS, kPart * BLOCK_ROWS, strip.first, strip.rows);
      });
      for (int c = 0; c < BLOCK_COLS; c += kWidth) {
        for (int64 i = 0; i < strip.tiles; ++i) multiply_tile<HEIGHT>(col, c, panels + i * panel, sums + i * tile);
        for (int64 i = 0; i < strip.tiles; ++i) {
          write_rows(out, strip.begin_of(i), strip.rows_of(i), col * BLOCK_COLS + c, sums + i * tile, kWidth);
        }
      }
    }
  }

  int64 begin_of(int64 col) const { return index_.ccol()[col]; }

  // Packs what a part of S multiplies in `rows` rows of X from `row` on, at most HEIGHT: block after block, row by
  // row. Missing elements are zero.
  template <int HEIGHT> void pack_part(const Dense& dense, int64 part, int64 row, int64 rows, A* panel) const {
    for (int64 block = part * kPart; block < (part + 1) * kPart && block < index_.R; ++block) {
      const int64 first = block * BLOCK_ROWS, depth = dense.depth - first;
      A* const to = panel + first * HEIGHT;
      if (depth < BLOCK_ROWS || rows < HEIGHT) __builtin_memset(to, 0, HEIGHT * BLOCK_ROWS * sizeof(A));
      for (int64 i = 0; i < rows; ++i) {
        const T* const line = dense.at(first, row + i);
        if (depth >= BLOCK_ROWS) {
          copy<BLOCK_ROWS>(line, to + i * BLOCK_ROWS);
        } else {
          for (int64 d = 0; d < depth; ++d) copy<1>(line + d, to + i * BLOCK_ROWS + d);
        }
      }
    }
  }

  template <int COUNT> static JITSPARSE_INLINE void copy(const T* from, A* to) {
    constexpr int L = min(kL, COUNT);
    JITSPARSE_UNROLL
    for (int i = 0; i < COUNT; i += L) store<L, A>(to + i, load<L>(from + i));
  }

  // Computes all sums of a tile: a block column's columns from c on. Stopping where the blocks fill the L1 cache, and
  // adding the rest once all tiles of the strip got that far, takes 0.97 to 1.02 times as long.
  template <int HEIGHT>
  __attribute__((noinline)) void multiply_tile(int64 col, int c, const A* panel, A* __restrict sums) const {
    Sum sum[HEIGHT][TILE_COLS] = {};
    for (int64 z = begin_of(col), end = begin_of(col + 1); z < end; ++z) {
      const T* const block = static_cast<const T*>(args_.values) + index_.perm()[z] * int64(BLOCK_ROWS * BLOCK_COLS) + c;
      const A* const x = panel + index_.row_t()[z] * int64(HEIGHT * BLOCK_ROWS);
#pragma GCC unroll 4
      for (int d = 0; d < BLOCK_ROWS; ++d) {
        Sum s[TILE_COLS];
        JITSPARSE_UNROLL
        for (int v = 0; v < TILE_COLS; ++v) s[v] = load<kL>(block + d * BLOCK_COLS + v * kL);
        JITSPARSE_UNROLL
        for (int i = 0; i < HEIGHT; ++i) {
          const A factor = x[i * BLOCK_ROWS + d];
          JITSPARSE_UNROLL
          for (int v = 0; v < TILE_COLS; ++v) add_product<kL>(sum[i][v], factor, s[v]);
        }
      }
    }
    JITSPARSE_UNROLL
    for (int i = 0; i < HEIGHT; ++i) {
      JITSPARSE_UNROLL
      for (int v = 0; v < TILE_COLS; ++v) store<kL, A>(sums + i * kWidth + v * kL, sum[i][v]);
    }
  }

  const SpmmArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  int64 panels_bytes_, sums_bytes_;
};

}  // namespace jitsparse::cpu
