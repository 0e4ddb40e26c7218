// dds: D = X S, with S in blocks as stored, and X and D row-major.
//
// spmm.h broadcasts elements of blocks against rows of a packed dense operand. For flipped blocks, a register
// tile there uses only part of every cache line. Here rows of blocks are the vectors, in whole cache lines, and
// elements of X are broadcast: X is packed in its own order, and nothing is transposed.
//
// Each thread takes strips of X, several register tiles high, and walks the block columns of S.
#pragma once

#include "cpu/deferred_sums.h"
#include "cpu/epilogue.h"
#include "cpu/pack.h"
#include "cpu/packing.h"
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
  // Strips are as tall as their panels' bytes allow (strips.h). The blocks of a column pass through the L2 cache
  // once per strip. The sums of all rows of a strip should also stay in L1.
  static constexpr int64 kMaxTiles = 98 / TILE_ROWS;
  // A strip has as few tiles as possible. Their height decreases in these steps, to divide its rows evenly.
  static constexpr int kStep = (TILE_ROWS + 4) / 5;
  // Sums of types that need no conversion go from registers to the output.
  static constexpr bool kDirect = sizeof(T) == sizeof(A);
  // X is packed beside multiplying (packing.h): during a block, two lines of as many rows as a register tile has, one every kEvery steps.
  static constexpr int kAcross = 2, kCopies = kAcross * TILE_ROWS, kEvery = power_of_2_up_to(BLOCK_ROWS / kCopies);
  static constexpr bool kBeside = kMayPackBeside && kDirect && kEvery > 0 && BLOCK_ROWS % (kAcross * kL) == 0;
  // Steps that are unrolled.
  static constexpr int kUnroll = kVecBytes == 64 ? 8 : 4, kUnrollBeside = max(4, kAcross * kEvery);
  // Sums that go past the caches are written during the next tile.
  static constexpr bool kDefers = kMayPackBeside && kDirect;

 public:
  static int run(const SpmmArgs& args) { return run_strips<DdsRows>(args, BLOCK_ROWS * BLOCK_COLS); }

  DdsRows(const SpmmArgs& args, int64 threads) : args_(args), index_(args.index, args.rows, args.cols, args.nnz) {
    const int64 row_bytes = BLOCK_ROWS * index_.R * int64(sizeof(A));
    const StripWidth strip = {kMaxTiles * TILE_ROWS, TILE_ROWS, kStep, row_bytes, kPanelBytes};
    const int64 highest = strip.widest(args.n * args.batch, threads);
    plan = {args.batch, args.n, highest, index_.C, index_.ccol(), BLOCK_ROWS};
    panels_bytes_ = highest * row_bytes;
    sums_bytes_ = highest * kWidth * int64(sizeof(A));
    own_bytes = panels_bytes_ + kDeferredBytes + sums_bytes_ + PartOrder::bytes(index_.R, index_.C);
    expect_output(args, args.cols, sizeof(T), threads);
  }

  // Computes block columns from .. to of the strip of `rows` rows that begins at row `first`.
  void multiply_strip(int64 batch, int64 first, int64 rows, int64 from, int64 to, Memory memory) const {
    const Strip strip{first, rows, div_up(rows, TILE_ROWS), from, to};
    multiply_strip_of<TILE_ROWS>(batch, strip, memory.own);
  }

 private:
  // Register tiles are of one height, or as high as the strip; neighbours may overlap, and compute the same sums.
  struct Strip {
    int64 first, rows, tiles;
    int64 from, to;  // block columns

    template <int HEIGHT> int64 begin_of(int64 tile) const {
      const int64 begin = rows * tile / tiles, last = rows - rows_of<HEIGHT>();
      return first + (begin < last ? begin : last);
    }
    template <int HEIGHT> int64 rows_of() const { return rows < HEIGHT ? rows : HEIGHT; }
  };

  // What a CopyQueue copies. A part is a block row of S, and a piece a register tile.
  struct PanelLines {
    using Lines = LineCopies<T, kL>;
    static constexpr int kAcross = DdsRows::kAcross;
    static constexpr int64 kAhead = 256 / kCopies;
    static constexpr int64 rows() { return TILE_ROWS; }
    static constexpr int64 line_count = BLOCK_ROWS / (kAcross * kL);
    const Dense& dense;
    const Strip& strip;
    A* panels;
    int64 panel;  // elements
    int64 piece_count;

    JITSPARSE_INLINE const T* from(int64 part, int64 piece, int64 line) const {
      return dense.at(part * BLOCK_ROWS + line * (kAcross * kL), strip.template begin_of<TILE_ROWS>(piece));
    }
    JITSPARSE_INLINE Lines lines(int64 part, int64 piece, int64 line) const {
      A* const to = panels + piece * panel + part * (TILE_ROWS * BLOCK_ROWS) + line * (kAcross * kL);
      return {from(part, piece, line), nullptr, dense.ld, to, BLOCK_ROWS, kL};
    }
  };
  using Sums = SumsView<A>;
  using Deferred = DeferredSums<A, TILE_ROWS, TILE_COLS>;
  static constexpr int64 kDeferredBytes = kDefers ? Deferred::kBytes : 0;

  // What is done between the steps of register tiles, for others.
  struct Beside {
    CopyQueue<PanelLines> queue;
    Deferred deferred;
  };

  // Uses tiles of HEIGHT rows, or of fewer if that suffices.
  template <int HEIGHT> void multiply_strip_of(int64 batch, const Strip& strip, char* scratch) const {
    if constexpr (HEIGHT > kStep) {
      if (div_up(strip.rows, strip.tiles) <= HEIGHT - kStep) return multiply_strip_of<HEIGHT - kStep>(batch, strip, scratch);
    }
    A* const panels = reinterpret_cast<A*>(scratch);
    A* const deferred = reinterpret_cast<A*>(scratch + panels_bytes_);
    A* const sums = reinterpret_cast<A*>(scratch + panels_bytes_ + kDeferredBytes);
    char* const after_sums = scratch + panels_bytes_ + kDeferredBytes + sums_bytes_;
    const int64 panel = HEIGHT * BLOCK_ROWS * index_.R, tile = HEIGHT * kWidth;  // elements
    const int64 rows = strip.template rows_of<HEIGHT>();
    const auto begin_of_tile = [&](int64 i) { return strip.template begin_of<HEIGHT>(i); };

    const Dense dense = dense_of<T, /*K_CONTIGUOUS=*/true>(args_, batch, args_.rows);
    const Out out = out_of<T, /*TRANSPOSED=*/false>(args_, batch, args_.n, args_.cols);
    // Lines are copied whole and for full tiles; in other strips, what a block column needs is packed first.
    const bool packs_beside = kBeside && HEIGHT == TILE_ROWS && rows == HEIGHT && args_.rows % BLOCK_ROWS == 0;
    const PartOrder order(after_sums, index_.R, index_.ccol(), index_.row_t(), strip.from, packs_beside ? strip.to : strip.from);
    Beside beside{{{dense, strip, panels, panel, strip.tiles}, order.parts(), order.count()}, Deferred(deferred)};
    PackedParts<kPart> parts(after_sums, index_.row_t(), packs_beside ? 0 : index_.R);
    for (int64 col = strip.from; col < strip.to; ++col) {
      if (packs_beside) {
        beside.queue.complete(order.needed(col));
      } else {
        parts.complete(begin_of(col), begin_of(col + 1), [&](int64 part) {
          for (int64 i = 0; i < strip.tiles; ++i) pack_part<HEIGHT>(dense, part, begin_of_tile(i), rows, panels + i * panel);
        });
      }
      for (int c = 0; c < BLOCK_COLS; c += kWidth) {
        const int64 col0 = col * BLOCK_COLS + c;
        if constexpr (kDirect) {
          if (rows == HEIGHT && out.takes_sums(strip.first, strip.rows, col0, kWidth)) {
            const bool past_caches = out.past_caches_at(col0, kWidth);
            for (int64 i = 0; i < strip.tiles; ++i) {
              const Sums to{out.data + begin_of_tile(i) * out.ld + col0, out.ld, past_caches};
              multiply_tile<HEIGHT>(col, c, panels + i * panel, to, beside);
            }
            continue;
          }
        }
        for (int64 i = 0; i < strip.tiles; ++i) {
          multiply_tile<HEIGHT>(col, c, panels + i * panel, {sums + i * tile, kWidth, false}, beside);
        }
        for (int64 i = 0; i < strip.tiles; ++i) write_rows(out, begin_of_tile(i), rows, col0, sums + i * tile, kWidth);
      }
    }
    beside.deferred.complete();
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
  template <int HEIGHT> void multiply_tile(int64 col, int c, const A* panel, const Sums& to, Beside& beside) const {
    const bool defers = kDefers && to.past_caches;
    const Sums now = defers ? Sums{beside.deferred.memory(), kWidth, false} : to;
    if (kBeside && HEIGHT == TILE_ROWS && !beside.queue.empty()) {
      multiply_blocks<HEIGHT, kBeside && HEIGHT == TILE_ROWS>(col, c, panel, now, beside);
    } else {
      multiply_blocks<HEIGHT, false>(col, c, panel, now, beside);
    }
    if (defers) beside.deferred.defer(to, HEIGHT, TILE_COLS);
  }

  // If PACKS, packs lines of the queue meanwhile.
  template <int HEIGHT, bool PACKS>
  __attribute__((noinline)) void multiply_blocks(int64 col, int c, const A* panel, Sums to, Beside& beside) const {
    Sum sum[HEIGHT][TILE_COLS] = {};
    for (int64 z = begin_of(col), end = begin_of(col + 1); z < end; ++z) {
      const T* const block = static_cast<const T*>(args_.values) + index_.perm()[z] * int64(BLOCK_ROWS * BLOCK_COLS) + c;
      const A* const x = panel + index_.row_t()[z] * int64(HEIGHT * BLOCK_ROWS);
      if constexpr (PACKS) {
        constexpr int kCopied = kCopies * kEvery;
        const auto copies = beside.queue.take();
        multiply_steps<HEIGHT, 0, kCopied, kUnrollBeside>(sum, block, x, beside.deferred, [&](int64 first, int step) {
          if (step % kEvery == 0) copies.copy((first + step) / (kAcross * kEvery), step / kEvery % kAcross);
        });
        multiply_steps<HEIGHT, kCopied, BLOCK_ROWS, kUnrollBeside>(sum, block, x, beside.deferred, [](int64, int) {});
      } else {
        multiply_steps<HEIGHT, 0, BLOCK_ROWS, kUnroll>(sum, block, x, beside.deferred, [](int64, int) {});
      }
    }
    // Sums that are deferred stay in the caches for now, which is known when this is compiled.
    JITSPARSE_UNROLL
    for (int i = 0; i < HEIGHT; ++i) {
      JITSPARSE_UNROLL
      for (int v = 0; v < TILE_COLS; ++v) write(to.first + i * to.ld + v * kL, sum[i][v], !kDefers && to.past_caches);
    }
  }

  // sum += x block, for rows FROM .. TO of the block. Writes deferred sums meanwhile, and calls also(first, step) at each row `first` + `step`.
  template <int HEIGHT, int FROM, int TO, int UNROLL, class Also>
  static JITSPARSE_INLINE void multiply_steps(Sum (&sum)[HEIGHT][TILE_COLS], const T* block, const A* x, Deferred& deferred,
                                              const Also& also) {
    static_assert((TO - FROM) % UNROLL == 0);
    for (int64 first = FROM; first < TO; first += UNROLL) {
      if (kDefers && !deferred.empty()) deferred.template next<TILE_COLS>();
      JITSPARSE_UNROLL
      for (int step = 0; step < UNROLL; ++step) {
        also(first, step);
        const int64 d = first + step;
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
  }

  const SpmmArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  int64 panels_bytes_, sums_bytes_;
};

}  // namespace jitsparse::cpu
