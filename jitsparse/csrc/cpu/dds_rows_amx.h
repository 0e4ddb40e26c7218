// dds on AMX tiles, in bfloat16 or in float32 divided into planes: D = X S as in dds_rows.h, with X and D row-major and S as stored.
//
// Left tiles are rows of X, read in place or packed line by line. Right tiles are blocks with their rows interleaved
// in pairs, which is done once per call. Nothing is transposed. Each thread takes strips of X and walks the block
// columns of S, whose blocks are in the L1 cache for all but the strip's first tiles.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/planes.h"
#include "cpu/split.h"
#include "cpu/strips.h"

namespace jitsparse::cpu {

// T, PLANES                 element type, and the planes of an element
// BLOCK_ROWS, BLOCK_COLS    size of a block
// TILE_ROWS, TILE_COLS      sums held in tile registers, in tiles of 16 x 16
template <class T, int PLANES, int BLOCK_ROWS, int BLOCK_COLS, int TILE_ROWS, int TILE_COLS>
class DdsRowsAmx : public StripProduct {
  using P = Planes<T, PLANES>;
  using Dense = DenseView<T, /*K_CONTIGUOUS=*/true>;
  using Out = OutView<T, /*TRANSPOSED=*/false>;
  static constexpr int kBlock = BLOCK_ROWS * BLOCK_COLS;
  static constexpr int kM = 16, kN = 16;           // rows of a left tile, columns of a right one
  static constexpr int kK = min(32, BLOCK_ROWS);   // depth of both
  static constexpr int kSteps = BLOCK_ROWS / kK;
  static constexpr int kLeftPlane = kM * kK, kLeftTile = PLANES * kLeftPlane;        // elements
  static constexpr int kRightPlane = kK / 2 * kN, kRightTile = PLANES * kRightPlane;  // pairs
  static constexpr int kRightBlock = PLANES * kBlock / 2;
  static constexpr int kTiles = BLOCK_COLS / kN;   // in a row of a block
  static constexpr int kTileRows = TILE_ROWS * kM;
  static_assert(BLOCK_COLS % (TILE_COLS * kN) == 0, "the tiles must not cross block columns");
  using Registers = TileRegisters<TILE_ROWS, TILE_COLS>;

  // As in dds_rows.h, in units of kTileRows.
  static constexpr int64 kPart = max(1, 128 / BLOCK_ROWS);
  static constexpr int64 kHighest = 192 / kTileRows;
  // Up to this many bytes of values stay in the L2 cache beside a strip of half the height, which is then 1.05 to 1.17 times as fast.
  static constexpr int64 kFewBytes = 1 << 20;
  // Left tiles are read in place if a row of X has at most this many bytes: 1.11 to 1.23 times as fast as packed at density
  // 0.1, 1.02 to 1.08 at 0.25, 0.98 to 1.04 at 0.5. (Rows of 8 KB: 0.95 to 1.05; tiles of half the depth, for blocks 16 deep:
  // 0.86 to 1.)
  static constexpr int64 kLongestInPlace = kK == 32 ? 5 << 10 : 0;
  // As in spmm_amx.h, with right tiles for left ones.
  static constexpr int kRightStep = kTiles * kRightTile, kRightBytes = TILE_COLS * kRightTile * int(sizeof(Pair));
  static constexpr int kPieceSteps = P::kDivided ? min(kSteps, 2) : kSteps, kPieces = kSteps / kPieceSteps;
  static constexpr int64 kChunk = P::kDivided ? max(1, (12 << 10) / (kPieceSteps * kRightBytes)) : 1LL << 40;
  static constexpr int kAheadLines = kRightBytes / (4 * kLine);  // most strips have four units
  // Block columns that are written together, so that rows are written two cache lines at a time.
  static constexpr int64 kGroup = max(1, 64 / BLOCK_COLS);

 public:
  static int run(const SpmmArgs& args) {
    return request_tiles() ? run_strips<DdsRowsAmx>(args, kBlock, kTileRate<PLANES>) : kNoTileRegisters;
  }

  // Whether dividing elements into planes takes less time than it saves.
  static bool serves(const SpmmArgs& args) { return planes_serve<PLANES, BLOCK_ROWS>(args, kBlock, args.rows); }

  DdsRowsAmx(const SpmmArgs& args, int64 threads)
      : args_(args),
        index_(args.index, args.rows, args.cols, args.nnz),
        panel_(PLANES * kTileRows * BLOCK_ROWS * index_.R) {
    const int64 units = div_up(args.n, kTileRows), panel_bytes = panel_ * int64(sizeof(BFloat16));
    shared_bytes = args.nnz * kRightBlock * sizeof(Pair);
    const StripWidth strip = {shared_bytes <= kFewBytes ? kHighest / 2 : kHighest, 1, 1, panel_bytes, kPanelBytes};
    const int64 highest = strip.widest(units * args.batch, threads);
    plan = {args.batch, units, highest, index_.C, index_.ccol(), BLOCK_ROWS};
    panels_bytes_ = highest * panel_bytes;
    sums_bytes_ = highest * kTileRows * kGroup * BLOCK_COLS * int64(sizeof(float));
    own_bytes = panels_bytes_ + sums_bytes_ + index_.R;
    expect_output(args, args.cols, sizeof(T), threads);
  }

  void begin(int64 rank, int64 size, char* shared) const {
    pair_values(rank, size, reinterpret_cast<Pair*>(shared));
    barrier(size);
    tile_configure(Registers::config(kM, kN, kK));
  }
  void end() const { tile_release(); }
  int status() const { return outside_.status(); }

  // Computes block columns from .. to of the strip of `units` units that begins at unit `unit`.
  void multiply_strip(int64 batch, int64 unit, int64 units, int64 from, int64 to, Memory memory) const {
    if (outside_.seen()) return;
    const Pair* const values = reinterpret_cast<const Pair*>(memory.shared);
    BFloat16* const panels = reinterpret_cast<BFloat16*>(memory.own);
    float* const sums = reinterpret_cast<float*>(memory.own + panels_bytes_);
    PackedParts<kPart> parts(memory.own + panels_bytes_ + sums_bytes_, index_.row_t(), index_.R);
    const int64 first = unit * kTileRows;
    const int64 rows = args_.n - first < units * kTileRows ? args_.n - first : units * kTileRows;

    const Dense dense = dense_of<T, /*K_CONTIGUOUS=*/true>(args_, batch, args_.rows);
    const Out out = out_of<T, /*TRANSPOSED=*/false>(args_, batch, args_.n, args_.cols);
    typename P::Range range;
    const bool in_place = !P::kDivided && args_.rows % BLOCK_ROWS == 0 && rows == units * kTileRows &&
                          args_.rows * int64(sizeof(BFloat16)) <= kLongestInPlace;
    const auto tiles_of = [&](int64 i) -> LeftTiles {
      if (in_place) {
        const auto* const rows = reinterpret_cast<const BFloat16*>(dense.at(0, first + i * kTileRows));
        return {rows, args_.dense_ld, kK, kM * args_.dense_ld};
      }
      return {panels + i * panel_, kK, TILE_ROWS * kLeftTile, kLeftTile};
    };
    for (int64 col = from, end; col < to; col = end) {
      end = col + kGroup < to ? col + kGroup : to;
      const int64 width = (end - col) * BLOCK_COLS;
      if (!in_place) {
        parts.complete(begin_of(col), begin_of(end), [&](int64 part) {
          for (int64 i = 0; i < units; ++i) pack_part(dense, part, first + i * kTileRows, panels + i * panel_, range);
        });
      }
      for (int64 each = col; each < end; ++each) {
        for (int tile = 0; tile < kTiles; tile += TILE_COLS) {
          float* const to_tile = sums + (each - col) * BLOCK_COLS + tile * kN;
          for_chunks(begin_of(each) * kPieces, begin_of(each + 1) * kPieces, kChunk, [&](int64 piece, int64 stop, bool add) {
            for (int64 i = 0; i < units; ++i) {
              multiply_tiles(piece, stop, add, tiles_of(i), i, values + tile * kRightTile, to_tile + i * kTileRows * width, width);
            }
          });
        }
      }
      P::unscale(sums, units * kTileRows * width);
      write_rows(out, first, rows, col * BLOCK_COLS, sums, width);
    }
    outside_.note(range);
  }

 private:
  int64 begin_of(int64 col) const { return index_.ccol()[col]; }

  // Packs this thread's share of the blocks, in column order, as right tiles: [step][tile][pair of rows][column].
  void pair_values(int64 rank, int64 size, Pair* to) const {
    typename P::Range range;
    for (int64 z = args_.nnz * rank / size; z < args_.nnz * (rank + 1) / size; ++z) {
      const T* const stored = static_cast<const T*>(args_.values) + index_.perm()[z] * int64(kBlock);
      const DenseView<T, /*K_CONTIGUOUS=*/false> block{stored, BLOCK_ROWS, BLOCK_COLS, BLOCK_COLS};
      P::template pack_right<kN, kK>(block, 0, kSteps, 0, kTiles, to + z * kRightBlock, {kRightTile, kTiles * kRightTile}, range);
    }
    outside_.note(range);
  }

  // Packs what a part of S multiplies in kTileRows rows of X from `row` on, as left tiles: [block][step][tile][plane][row][k].
  // Missing elements are zero. (With pack_left, which takes squares, products took 0.97 to 1.29 times as long.)
  void pack_part(const Dense& dense, int64 part, int64 row, BFloat16* panel, typename P::Range& range) const {
    const int64 rows = dense.width - row < kTileRows ? dense.width - row : kTileRows;
    const int64 left_over = index_.R - part * kPart, blocks = left_over < kPart ? left_over : kPart;
    const int64 first = part * kPart * BLOCK_ROWS, steps = blocks * kSteps, step_size = TILE_ROWS * kLeftTile;
    BFloat16* const to = panel + part * kPart * kSteps * step_size;
    if (rows < kTileRows) __builtin_memset(to, 0, steps * step_size * sizeof(BFloat16));
    typename P::Range seen = range;
    for (int64 r = 0; r < rows; ++r) {
      const T* const line = dense.at(first, row + r);
      Pair* const at = reinterpret_cast<Pair*>(to + r / kM * kLeftTile + r % kM * kK);
      for (int64 step = 0; step < steps; ++step) {
        const T* from = line + step * kK;
        if constexpr (P::kDivided) prefetch_share<0, 1, kK * int(sizeof(T)) / kLine, kIntoL1>(from + kRowsAhead * dense.ld);
        const int64 inside = dense.depth - (first + step * kK);
        T edge[kK] = {};
        if (inside < kK) {
          if (inside > 0) __builtin_memcpy(edge, from, inside * sizeof(T));
          from = edge;
        }
        P::template pack_line<kK>(from, at + step * step_size / 2, kLeftPlane / 2, seen);
      }
    }
    range = seen;
  }

  // Sets, or adds to, the sums of kTileRows rows of X, which are the strip's unit `unit`, times TILE_COLS tiles of pieces begin .. end of a
  // block column's blocks. `values`: those tiles of the very first block. (A call of it takes a tenth of a product in bfloat16 at density 0.1.)
  JITSPARSE_INLINE void multiply_tiles(int64 begin, int64 end, bool add, const LeftTiles& panel, int64 unit, const Pair* values, float* sums,
                      int64 width) const {
    load_sums<Registers, TILE_ROWS, TILE_COLS, kM>(sums, width, add);
    const auto left_at = [=, block_row = index_.row_t()](int64 piece) {
      return panel.first + (block_row[piece / kPieces] * int64(kSteps) + piece % kPieces * kPieceSteps) * panel.step;
    };
    const auto right_at = [=](int64 piece) {
      return values + piece / kPieces * kRightBlock + piece % kPieces * (kPieceSteps * kRightStep);
    };
    for (int64 piece = begin; piece < end; ++piece) {
      const BFloat16* left = left_at(piece);
      const Pair* right = right_at(piece);
      // What is multiplied next in the same chunk; and this unit's share of the next chunk's right tiles.
      const BFloat16* const next = piece + 1 < end ? left_at(piece + 1) : left_at(begin) + panel_;
      const Pair* ahead = right_at(piece + end - begin) + unit * (kAheadLines * kLine / int64(sizeof(Pair)));
      for (int step = 0; step < kPieceSteps; ++step, left += panel.step, right += kRightStep, ahead += kRightStep) {
        const BFloat16* const following = step + 1 < kPieceSteps ? left + panel.step : next;
        multiply_step<PLANES, Registers, TILE_ROWS, TILE_COLS>(
            [=](auto i, auto plane) {
              tile_load<Registers::left(i)>(left + i * panel.below + plane * kLeftPlane, panel.line * sizeof(BFloat16));
            },
            [=](auto j, auto plane) {
              tile_load<Registers::right(j)>(right + j * kRightTile + plane * kRightPlane, kN * sizeof(Pair));
            },
            [=](auto share, auto shares) {
              if constexpr (P::kDivided) {
                prefetch_share<share, shares, TILE_ROWS * kLeftTile * int(sizeof(BFloat16)) / kLine, kIntoL1>(following);
                prefetch_share<share, shares, kAheadLines, kIntoL2>(ahead);
              }
            });
      }
    }
    store_sums<Registers, TILE_ROWS, TILE_COLS, kM>(sums, width);
  }

  const SpmmArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  const int64 panel_;  // elements of a panel of kTileRows rows
  int64 panels_bytes_, sums_bytes_;
  OutsideRange outside_;
};

}  // namespace jitsparse::cpu
