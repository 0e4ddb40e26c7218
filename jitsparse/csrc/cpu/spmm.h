// dsd and dds: C = op(S) B, with S stored in blocks.
//
// dds is the same product transposed, C^T = op(S)^T A^T: its dense operand and its output are read
// and written transposed, and its blocks are flipped where op does not transpose.
//
// Each thread takes strips of C, several register tiles wide, and walks the block rows. It packs the panel
// of B that a block multiplies when a strip first needs it, or while earlier rows are multiplied (packing.h), so
// panels that no block needs are not read (except for the rest of a run of 512 if k is contiguous). Sums that go past the caches are
// written during the next tile (deferred_sums.h). Blocks are read in place, and one element,
// or pair, is broadcast against a row of the panel; those that have to be converted or paired first are
// packed a few rows at a time.
#pragma once

#include "cpu/deferred_sums.h"
#include "cpu/epilogue.h"
#include "cpu/l2_cache.h"
#include "cpu/packing.h"
#include "cpu/pairs.h"
#include "cpu/strips.h"

namespace jitsparse::cpu {

// T                         element type
// BLOCK_ROWS, BLOCK_COLS    size of a block as stored
// FLIPPED                   the rows of op(S) are the columns of S as stored
// DENSE_K_CONTIGUOUS        the contiguous axis of B is k, which it shares with op(S)
// OUT_TRANSPOSED            the contiguous axis of C is m, which it shares with op(S)
// TILE_ROWS, TILE_COLS      sums held in registers: rows x vectors of columns
template <class T, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED,
          int TILE_ROWS, int TILE_COLS>
class Spmm : public StripProduct {
  using A = Acc<T>;
  using P = Packed<T>;
  using Dense = DenseView<T, DENSE_K_CONTIGUOUS>;
  using Out = OutView<T, OUT_TRANSPOSED>;
  static constexpr int kL = kLanes<A>;
  using Sum = Vec<A, kL>;
  static constexpr int kRows = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;  // of a block of op(S)
  static constexpr int kDepth = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kPackedDepth = kDepth / kTogether<T>;  // rows of a panel
  static_assert(kRows % TILE_ROWS == 0, "a register tile must not cross block rows");

  // Block columns that are packed at a time: if k is the contiguous axis of B, a run of each of its rows. (With runs
  // of 128, products take 1.02 to 1.06 times as long at density 0.1.)
  static constexpr int64 kPart = DENSE_K_CONTIGUOUS ? max(1, 512 / kDepth) : 1;
  // Block rows that are written together: if the contiguous axis of C runs across them, as many as fill a
  // cache line, which can then be written past the caches.
  static constexpr int kGroup = OUT_TRANSPOSED ? max(1, kLine / (kRows * int(sizeof(T)))) : 1;
  // Values that are not multiplied as stored are packed for every tile. Pairs whose halves are a row apart are
  // packed once for all tiles of a strip, if it has several tiles and a packed block row is no larger than the
  // L2 cache: that takes 0.78 to 0.86 of the time. (Converting once per strip took 0.92 to 1.1.)
  static constexpr bool kAsStored = sizeof(T) == sizeof(A) || (kTogether<T> == 2 && !FLIPPED);
  static constexpr bool kPackRows = kTogether<T> == 2 && FLIPPED;
  static constexpr int64 kSeveralTiles = 3;
  // Strips are as wide as their panels' bytes allow (strips.h). The blocks of a row pass through the L2 cache once
  // per strip, and are in it, if not in L1, for all but the strip's first columns. Transposed outputs of wide
  // strips take 1.02 to 1.08 times as long, which is worth it only if several tiles share packed rows.
  static constexpr int64 kWidestTiles = OUT_TRANSPOSED && !kPackRows ? 2 : 4;
  // If B and C are both transposed, panels of short blocks have half of what L2 has room for: 1.02 to 1.1 times as fast where it has 1 MB.
  static constexpr bool kNarrow = DENSE_K_CONTIGUOUS && OUT_TRANSPOSED && !kPackRows && kRows < 32;
  // A register tile uses only part of every cache line of a flipped block. So that the rest of the line is still in
  // the L1 cache when the next tile needs it, all tiles of a block row finish kChunkBytes of panels before any goes
  // on. (Blocks of 16 and more take 0.90 to 0.98 of the time; blocks that are not flipped 0.99 to 1.03.)
  static constexpr bool kByChunks = FLIPPED && sizeof(T) == sizeof(A) && kRows > TILE_ROWS;
  static constexpr int64 kChunkBytes = 16 << 10;
  // Panels are packed beside multiplying if they are copied as they are, one line every kEvery steps of a register
  // tile. The block rows of short blocks need new panels faster than they are copied in that way.
  static constexpr bool kBeside = kMayPackBeside && !DENSE_K_CONTIGUOUS && sizeof(T) == sizeof(A) && kRows >= 32;
  static constexpr int kEvery = max(1, min(kRows / 16, kDepth / 4));
  // Sums of such types go from registers to the output, or into memory from which they are written during the next tile.
  static constexpr bool kDirect = !OUT_TRANSPOSED && sizeof(T) == sizeof(A);
  static constexpr bool kDefers = kMayPackBeside && kDirect && kRows >= 32;
  // While the tiles of a block row are multiplied, the blocks of the next one are prefetched: this many lines in each group of steps are
  // all of them if there are kWidestTiles tiles.
  static constexpr bool kReadsAhead = kDefers && !FLIPPED;
  static constexpr int kAheadLines = max(1, kStepGroup * TILE_ROWS * int(sizeof(T)) / (kLine * kWidestTiles));
  // Otherwise, blocks are prefetched one by one for the first tile; for the others they are in the L2 cache. Hardware prefetches rows that
  // fill a page: with blocks 128 deep in float32, products are 1.02 to 1.2 times as fast without.
  static constexpr bool kFetches = FLIPPED || TILE_ROWS * kDepth * sizeof(T) < 4096;

  // What a CopyQueue copies: vectors of rows of B into the panels of a strip's register tiles. A part is a block column, and a job a
  // share of its rows.
  struct PanelLines {
    using Lines = LineCopies<T, kL>;
    static constexpr int kJobRows = kDepth / kEvery, kAcross = 1;
    static constexpr int64 kAhead = max(1, 256 / kJobRows);
    static constexpr int64 rows() { return kJobRows; }
    static constexpr int64 piece_count = kEvery;
    struct Panel {
      A* first;
      int64 step;
    };
    const T* dense;
    int64 ld, line_count;
    Panel panel[kWidestTiles * TILE_COLS];

    JITSPARSE_INLINE const T* from(int64 part, int64 piece, int64 line) const {
      return dense + (part * kDepth + piece * kJobRows) * ld + line * kL;
    }
    JITSPARSE_INLINE Lines lines(int64 part, int64 piece, int64 line) const {
      const Panel to = panel[line];
      return {from(part, piece, line), nullptr, ld, to.first + (part * kDepth + piece * kJobRows) * to.step, to.step, 0};
    }
  };
  using Sums = SumsView<A>;
  using Deferred = DeferredSums<A, TILE_ROWS, TILE_COLS>;
  static constexpr int64 kDeferredBytes = kDefers ? Deferred::kBytes : 0;

  // What is done between the steps of register tiles, for others.
  struct Beside {
    CopyQueue<PanelLines> queue;
    Deferred deferred;
    const char* ahead;  // what is prefetched next
  };

 public:
  static int run(const SpmmArgs& args) { return run_strips<Spmm>(args, BLOCK_ROWS * BLOCK_COLS); }

  Spmm(const SpmmArgs& args, int64 threads)
      : args_(args),
        index_(args.index, args.rows, args.cols, args.nnz),
        m_(FLIPPED ? args.cols : args.rows),
        k_(FLIPPED ? args.rows : args.cols),
        row_ptr_(FLIPPED ? index_.ccol() : index_.crow()),
        col_(FLIPPED ? index_.row_t() : index_.col()),
        block_cols_(FLIPPED ? index_.R : index_.C) {
    const int64 vectors = div_up(args.n, kL), vector_bytes = block_cols_ * kPackedDepth * kVecBytes;
    const int64 most_bytes = kNarrow ? l2_bytes() / 2 : panel_bytes_for(kRows);
    const StripWidth strip = {kWidestTiles * TILE_COLS, TILE_COLS, /*finest=*/1, vector_bytes, most_bytes};
    int64 widest = strip.widest(vectors * args.batch, threads);
    if (vectors < widest) widest = vectors;
    plan = {args.batch, vectors, widest, FLIPPED ? index_.C : index_.R, row_ptr_, kDepth};
    panels_bytes_ = widest * vector_bytes;
    tile_bytes_ = kGroup * kRows * TILE_COLS * kVecBytes;
    if (kPackRows && widest > (kSeveralTiles - 1) * TILE_COLS) {
      const int64 bytes = most_blocks() * kRows * kPackedDepth * int64(sizeof(P));
      rows_bytes_ = bytes <= kL2Bytes ? bytes : 0;
    }
    own_bytes = panels_bytes_ + kDeferredBytes + tile_bytes_ + rows_bytes_ + PartOrder::bytes(block_cols_, plan.block_rows);
    expect_output(args, m_, sizeof(T), threads);
  }

  // Computes block rows from .. to of the strip of `width` vectors of columns that begins at vector `first`.
  void multiply_strip(int64 batch, int64 first, int64 width, int64 from, int64 to, Memory memory) const {
    P* const panels = reinterpret_cast<P*>(memory.own);
    A* const deferred = reinterpret_cast<A*>(memory.own + panels_bytes_);
    A* const tile = reinterpret_cast<A*>(memory.own + panels_bytes_ + kDeferredBytes);
    char* const after_tile = memory.own + panels_bytes_ + kDeferredBytes + tile_bytes_;
    P* const rows = rows_bytes_ ? reinterpret_cast<P*>(after_tile) : nullptr;
    const auto panels_at = [&](int64 v) { return panels + v * kL * block_cols_ * kPackedDepth; };

    const Dense dense = dense_of<T, DENSE_K_CONTIGUOUS>(args_, batch, k_);
    const Out out = out_of<T, OUT_TRANSPOSED>(args_, batch, m_, args_.n);
    // Lines are copied whole, so a strip at an edge of B is packed a block row at a time, as are others that need more than copies.
    const bool packs_beside = kBeside && (first + width) * kL <= args_.n && k_ % kDepth == 0;
    PanelLines lines;
    if constexpr (kBeside) {
      lines.dense = dense.at(0, first * kL);
      lines.ld = dense.ld;
      lines.line_count = width;
      for_tiles(width, [&](int64 v, int64 count) {
        for (int64 i = 0; i < count; ++i) lines.panel[v + i] = {panels_at(v) + i * kL, count * kL};
      });
    }
    char* const after_rows = after_tile + rows_bytes_;
    const PartOrder order(after_rows, block_cols_, row_ptr_, col_, from, packs_beside ? to : from);
    const bool reads_ahead = kReadsAhead && width > (kWidestTiles - 1) * TILE_COLS;
    Beside beside{{lines, order.parts(), order.count()}, Deferred(deferred), nullptr};
    PackedParts<kPart> parts(after_rows, col_, packs_beside ? 0 : block_cols_);
    for (int64 row = from, end; row < to; row = end) {
      end = end_of_group(row, to);
      if (kReadsAhead) beside.ahead = reinterpret_cast<const char*>(rows_of_block(row_ptr_[end < to ? end : from], 0));
      if (packs_beside) {
        beside.queue.complete(order.needed(end - 1));
      } else {
        parts.complete(row_ptr_[row], row_ptr_[end], [&](int64 part) {
          for_tiles(width, [&](int64 v, int64 count) {
            pack_part<TILE_COLS>(count, dense, part, first + v, panels_at(v));
          });
        });
      }
      if constexpr (kPackRows) {
        if (rows) pack_blocks(row, end, rows);
      }
      for_tiles(width, [&](int64 v, int64 count) {
        multiply_rows<TILE_COLS>(count, row, end, rows, panels_at(v), tile, first + v, v == 0 && !reads_ahead, out, beside);
      });
    }
    beside.deferred.complete();
  }

 private:
  // One past the last block row of a row's group, at most `to`.
  static int64 end_of_group(int64 row, int64 to) {
    const int64 end = (row / kGroup + 1) * kGroup;
    return end < to ? end : to;
  }

  // The most blocks of any group.
  int64 most_blocks() const {
    int64 most = 0;
    for (int64 row = 0, end; row < plan.block_rows; row = end) {
      end = end_of_group(row, plan.block_rows);
      const int64 blocks = row_ptr_[end] - row_ptr_[row];
      if (blocks > most) most = blocks;
    }
    return most;
  }

  int64 blocks_of(int64 part) const {
    const int64 left_over = block_cols_ - part * kPart;
    return left_over < kPart ? left_over : kPart;
  }

  // Divides a strip into as few and as equal register tiles as possible: body(first, vectors).
  template <class Body> static void for_tiles(int64 width, const Body& body) {
    const int64 tiles = div_up(width, TILE_COLS);
    for (int64 tile = 0; tile < tiles; ++tile) {
      const int64 first = tile * width / tiles;
      body(first, (tile + 1) * width / tiles - first);
    }
  }

  // Packs `width` vectors of columns of a part, at most as many as a register tile has.
  template <int V> void pack_part(int64 width, const Dense& dense, int64 part, int64 first, P* panels) const {
    if constexpr (V > 1) {
      if (width < V) return pack_part<V - 1>(width, dense, part, first, panels);
    }
    const int64 block = part * kPart, depth = blocks_of(part) * kDepth;
    P* const to = panels + block * kPackedDepth * (V * kL);
    if constexpr (DENSE_K_CONTIGUOUS && kPackedDepth < kL) {
      // A part is deeper than a block. (bfloat16 in blocks of 8, in squares as deep as those: 1.1 times as long.)
      if (depth % (kL * kTogether<T>) == 0) return pack<V * kL, V * kL, kL>(dense, block * kDepth, depth, first * kL, to, 0);
    }
    pack<V * kL, V * kL, kPackedDepth>(dense, block * kDepth, depth, first * kL, to, 0);
  }

  // Computes the same columns of at most kGroup block rows of C.
  template <int V>
  void multiply_rows(int64 width, int64 row, int64 end, const P* rows, const P* panels, A* tile, int64 first,
                     bool fetches, const Out& out, Beside& beside) const {
    if constexpr (V > 1) {
      if (width < V) return multiply_rows<V - 1>(width, row, end, rows, panels, tile, first, fetches, out, beside);
    }
    constexpr int kOfRow = kRows * V * kL;
    constexpr int64 kChunk = max(1, kChunkBytes / (kPackedDepth * V * kVecBytes));  // blocks
    if constexpr (kDirect) {
      const int64 blocks = row_ptr_[end] - row_ptr_[row], row0 = row * kRows, col0 = first * kL;
      if (!(kByChunks && blocks > kChunk) && out.takes_sums(row0, kRows, col0, V * kL)) {
        const Sums sums{out.data + row0 * out.ld + col0, out.ld, out.past_caches_at(col0, V * kL)};
        return multiply_blocks<V, false>(row_ptr_[row], row_ptr_[end], false, nullptr, panels, sums, fetches, beside);
      }
    }
    for (int64 each = row; each < end; ++each) {
      const Sums sums{tile + (each - row) * kOfRow, V * kL, false};
      const int64 begin = row_ptr_[each], blocks = row_ptr_[each + 1] - begin;
      if (kPackRows && rows) {
        const P* const packed = rows + (begin - row_ptr_[row]) * (kRows * kPackedDepth);
        multiply_blocks<V, kPackRows>(begin, begin + blocks, false, packed, panels, sums, fetches, beside);
      } else if (!kByChunks || blocks <= kChunk) {
        multiply_blocks<V, false>(begin, begin + blocks, false, nullptr, panels, sums, fetches, beside);
      } else {
        for (int64 i = 0, chunks = div_up(blocks, kChunk); i < chunks; ++i) {
          const int64 from = begin + blocks * i / chunks, to = begin + blocks * (i + 1) / chunks;
          multiply_blocks<V, false>(from, to, i > 0, nullptr, panels, sums, fetches, beside);
        }
      }
    }
    if (end - row == kGroup) {
      write_tile<kRows * kGroup>(out, row * kRows, first * kL, tile, V * kL);
    } else {
      for (; row < end; ++row, tile += kOfRow) write_tile<kRows>(out, row * kRows, first * kL, tile, V * kL);
    }
  }

  // Multiplies some blocks of a block row; sets its sums, or adds to them. `rows`: the first, if PACKED.
  template <int V, bool PACKED>
  void multiply_blocks(int64 begin, int64 end, bool add, const P* rows, const P* panels, const Sums& sums, bool fetches,
                       Beside& beside) const {
    for (int r = 0; r < kRows; r += TILE_ROWS) {
      const Sums last{sums.first + r * sums.ld, sums.ld, sums.past_caches};
      const bool defers = kDefers && last.past_caches;
      const Sums to = defers ? Sums{beside.deferred.memory(), V * kL, false} : last;
      if (kBeside && !beside.queue.empty()) {
        multiply_tile<V, PACKED, kBeside>(begin, end, r, add, rows, panels, to, fetches, beside);
      } else {
        multiply_tile<V, PACKED, false>(begin, end, r, add, rows, panels, to, fetches, beside);
      }
      if (defers) beside.deferred.defer(last, TILE_ROWS, V);
    }
  }

  // Multiplies their rows r .. r + TILE_ROWS. If PACKS, packs lines of the queue meanwhile; a function that does both takes 1.03 to
  // 1.08 times as long.
  template <int V, bool PACKED, bool PACKS>
  __attribute__((noinline)) void multiply_tile(int64 begin, int64 end, int r, bool add, const P* rows, const P* panels,
                                               Sums to, bool fetches, Beside& beside) const {
    constexpr int kWidth = V * kL;
    auto& deferred = beside.deferred;
    if constexpr (kDefers) deferred.template expect<V>();
    Sum sum[TILE_ROWS][V] = {};
    if (kByChunks && add) {
      JITSPARSE_UNROLL
      for (int i = 0; i < TILE_ROWS; ++i) {
        JITSPARSE_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] = load<kL>(to.first + i * to.ld + v * kL);
      }
    }
    for (int64 z = begin; z < end; ++z) {
      const P* panel = panels + col_[z] * int64(kPackedDepth * kWidth);
      if constexpr (kAsStored) {
        const int64 next = kByChunks ? z + (end - begin) : z + 1;
        if (kFetches && fetches && next < args_.nnz) prefetch_rows(next, r);
        constexpr int kRowStride = FLIPPED ? 1 : kPackedDepth, kDepthStride = FLIPPED ? BLOCK_COLS : 1;
        const char* const ahead = beside.ahead;
        if constexpr (kReadsAhead) beside.ahead += kDepth / kStepGroup * kAheadLines * kLine;
        if constexpr (PACKS) {
          multiply_block<V, kRowStride, kDepthStride, true>(sum, rows_of_block(z, r), panel, deferred, ahead, beside.queue.take());
        } else {
          multiply_block<V, kRowStride, kDepthStride>(sum, rows_of_block(z, r), panel, deferred, ahead);
        }
      } else if constexpr (PACKED) {
        multiply_block<V, 1, TILE_ROWS>(sum, rows + ((z - begin) * kRows + r) * kPackedDepth, panel, deferred, nullptr);
      } else {
        P here[TILE_ROWS * kPackedDepth];
        pack_block(z, r, here);
        multiply_block<V, FLIPPED ? 1 : kPackedDepth, FLIPPED ? TILE_ROWS : 1>(sum, here, panel, deferred, nullptr);
      }
    }
    // Sums that are deferred stay in the caches for now, which is known when this is compiled.
    JITSPARSE_UNROLL
    for (int i = 0; i < TILE_ROWS; ++i) {
      JITSPARSE_UNROLL
      for (int v = 0; v < V; ++v) write(to.first + i * to.ld + v * kL, sum[i][v], !kDefers && to.past_caches);
    }
  }

  // Row r of a block of op(S), which is a column as stored if FLIPPED.
  const T* rows_of_block(int64 z, int r) const {
    const int64 block = FLIPPED ? index_.perm()[z] : z;
    return static_cast<const T*>(args_.values) + block * (BLOCK_ROWS * BLOCK_COLS) + (FLIPPED ? r : r * BLOCK_COLS);
  }

  // Prefetches the rows of a later block that a tile will need. If blocks are multiplied by chunks, prefetches a share of
  // the block; other tiles prefetch the rest. Hardware sees no stream in the order in which blocks are read, and products
  // with few columns of B are bound by that.
  JITSPARSE_INLINE void prefetch_rows(int64 z, int r) const {
    constexpr int kPerLine = kLine / sizeof(T);
    if constexpr (!FLIPPED || kByChunks) {
      const T* const values = rows_of_block(z, 0) + r * kDepth;
      for (int e = 0; e < TILE_ROWS * kDepth; e += kPerLine) __builtin_prefetch(values + e, 0, kIntoL2);
    } else if (r % kPerLine == 0) {
      for (int d = 0; d < kDepth; ++d) __builtin_prefetch(rows_of_block(z, r) + d * BLOCK_COLS, 0, kIntoL2);
    }
  }

  // Packs all blocks of block rows, one register tile after another.
  void pack_blocks(int64 row, int64 end, P* to) const {
    for (int64 z = row_ptr_[row]; z < row_ptr_[end]; ++z) {
      for (int r = 0; r < kRows; r += TILE_ROWS, to += TILE_ROWS * kPackedDepth) pack_block(z, r, to);
    }
  }

  // Packs rows r .. r + TILE_ROWS of a block.
  JITSPARSE_INLINE void pack_block(int64 z, int r, P* to) const {
    if (z + 1 < args_.nnz) prefetch_rows(z + 1, r);
    pack_rows(rows_of_block(z, r), to);
  }

  // Packs TILE_ROWS rows of a block of op(S), which are columns as stored, as pairs along k.
  static JITSPARSE_INLINE void pack_rows(const T* values, Pair* rows) {
    for (int d = 0; d < kPackedDepth; ++d) {
      const T* even = values + 2 * d * BLOCK_COLS;
      interleave<TILE_ROWS>(even, even + BLOCK_COLS, rows + d * TILE_ROWS);
    }
  }

  // Converts TILE_ROWS rows of a block of op(S), in the order in which they are stored.
  static JITSPARSE_INLINE void pack_rows(const T* values, A* wide) {
    constexpr int kRun = FLIPPED ? TILE_ROWS : TILE_ROWS * kDepth, L = min(kL, kRun);
    for (int d = 0; d < TILE_ROWS * kDepth; d += kRun) {
      const T* from = values + d / kRun * BLOCK_COLS;
      for (int i = 0; i < kRun; i += L) store<L, A>(wide + d + i, load<L>(from + i));
    }
  }

  // sum += s panel, where s[i][d] is at s + i * ROW_STRIDE + d * DEPTH_STRIDE, counted in packed elements. Meanwhile writes deferred sums,
  // prefetches what is ahead, and, if PACKS, copies lines of other panels.
  template <int V, int ROW_STRIDE, int DEPTH_STRIDE, bool PACKS = false>
  static JITSPARSE_INLINE void multiply_block(Sum (&sum)[TILE_ROWS][V], const void* s, const P* panel,
                                              Deferred& deferred, [[maybe_unused]] const char* ahead,
                                              [[maybe_unused]] typename PanelLines::Lines copies = {}) {
    const auto multiply_step = [&](int64 d) {
      Vec<P, kL> x[V];
      JITSPARSE_UNROLL
      for (int v = 0; v < V; ++v) x[v] = load_packed<kL>(panel + (d * V + v) * kL);
      JITSPARSE_UNROLL
      for (int i = 0; i < TILE_ROWS; ++i) {
        const P factor = packed_at<P>(s, i * ROW_STRIDE + d * DEPTH_STRIDE);
        JITSPARSE_UNROLL
        for (int v = 0; v < V; ++v) add_product<kL>(sum[i][v], factor, x[v]);
      }
    };
    if constexpr (kDefers || PACKS) {
      static_assert(kPackedDepth % kStepGroup == 0 && kStepGroup % kEvery == 0);
      for (int64 first = 0; first < kPackedDepth; first += kStepGroup) {
        if (kDefers && !deferred.empty()) deferred.template next<V>();
        JITSPARSE_UNROLL
        for (int step = 0; step < kStepGroup; ++step) {
          if (kReadsAhead && step > 0 && step <= kAheadLines) {
            __builtin_prefetch(ahead + (first / kStepGroup * kAheadLines + step - 1) * kLine, 0, kIntoL2);
          }
          if (PACKS && step % kEvery == 0) copies.copy((first + step) / kEvery, 0);
          multiply_step(first + step);
        }
      }
    } else {
      unrolled(kPackedDepth, multiply_step);
    }
  }

  const SpmmArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  const int64 m_, k_;
  const int32 *const row_ptr_, *const col_;
  const int64 block_cols_;
  int64 panels_bytes_, tile_bytes_, rows_bytes_ = 0;
};

}  // namespace jitsparse::cpu
