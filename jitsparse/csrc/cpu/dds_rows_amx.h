// dds in bfloat16 on AMX tiles: D = X S as in dds_rows.h, with X and D row-major and S as stored.
//
// Left tiles are rows of X, read in place or copied line by line. Right tiles are blocks with their rows interleaved
// in pairs, which is done once per call. Nothing is transposed. Each thread takes strips of X and walks the block
// columns of S, whose blocks are in the L1 cache for all but the strip's first tiles.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/pairs.h"
#include "cpu/strips.h"
#include "cpu/tiles.h"

namespace jitsparse::cpu {

// BLOCK_ROWS, BLOCK_COLS    size of a block
// TILE_ROWS, TILE_COLS      sums held in tile registers, in tiles of 16 x 16
template <int BLOCK_ROWS, int BLOCK_COLS, int TILE_ROWS, int TILE_COLS>
class DdsRowsAmx : public StripProduct {
  using Dense = DenseView<BFloat16, /*K_CONTIGUOUS=*/true>;
  using Out = OutView<BFloat16, /*TRANSPOSED=*/false>;
  static constexpr int kBlock = BLOCK_ROWS * BLOCK_COLS;
  static constexpr int kM = 16, kN = 16;           // rows of a left tile, columns of a right one
  static constexpr int kK = min(32, BLOCK_ROWS);   // depth of both
  static constexpr int kSteps = BLOCK_ROWS / kK;
  static constexpr int kLeftTile = kM * kK;        // elements
  static constexpr int kRightTile = kK / 2 * kN;   // pairs
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
  // Block columns that are written together, so that rows are written two cache lines at a time.
  static constexpr int64 kGroup = max(1, 64 / BLOCK_COLS);

 public:
  static int run(const SpmmArgs& args) {
    return request_tiles() ? run_strips<DdsRowsAmx>(args, kBlock, kAmxRate) : kNoTileRegisters;
  }

  DdsRowsAmx(const SpmmArgs& args, int64 threads)
      : args_(args),
        index_(args.index, args.rows, args.cols, args.nnz),
        panel_(kTileRows * BLOCK_ROWS * index_.R) {
    const int64 units = div_up(args.n, kTileRows), panel_bytes = panel_ * int64(sizeof(BFloat16));
    shared_bytes = args.nnz * kBlock * sizeof(BFloat16);
    const StripWidth strip = {shared_bytes <= kFewBytes ? kHighest / 2 : kHighest, 1, 1, panel_bytes, l2_bytes()};
    const int64 highest = strip.widest(units * args.batch, threads);
    plan = {args.batch, units, highest, index_.C, index_.ccol(), BLOCK_ROWS};
    panels_bytes_ = highest * panel_bytes;
    sums_bytes_ = highest * kTileRows * kGroup * BLOCK_COLS * int64(sizeof(float));
    own_bytes = panels_bytes_ + sums_bytes_ + index_.R;
    expect_output(args, args.cols, sizeof(BFloat16), threads);
  }

  void begin(int64 rank, int64 size, char* shared) const {
    pair_values(rank, size, reinterpret_cast<Pair*>(shared));
    barrier(size);
    tile_configure(Registers::config(kM, kN, kK));
  }
  void end() const { tile_release(); }

  // Computes block columns from .. to of the strip of `units` units that begins at unit `unit`.
  void multiply_strip(int64 batch, int64 unit, int64 units, int64 from, int64 to, Memory memory) const {
    const Pair* const values = reinterpret_cast<const Pair*>(memory.shared);
    BFloat16* const panels = reinterpret_cast<BFloat16*>(memory.own);
    float* const sums = reinterpret_cast<float*>(memory.own + panels_bytes_);
    PackedParts<kPart> parts(memory.own + panels_bytes_ + sums_bytes_, index_.row_t(), index_.R);
    const int64 first = unit * kTileRows;
    const int64 rows = args_.n - first < units * kTileRows ? args_.n - first : units * kTileRows;

    const Dense dense = dense_of<BFloat16, /*K_CONTIGUOUS=*/true>(args_, batch, args_.rows);
    const Out out = out_of<BFloat16, /*TRANSPOSED=*/false>(args_, batch, args_.n, args_.cols);
    const bool in_place = args_.rows % BLOCK_ROWS == 0 && rows == units * kTileRows &&
                          args_.rows * int64(sizeof(BFloat16)) <= kLongestInPlace;
    const auto tiles_of = [&](int64 i) -> LeftTiles {
      if (in_place) return {dense.at(0, first + i * kTileRows), args_.dense_ld, kK, kM * args_.dense_ld};
      return {panels + i * panel_, kK, TILE_ROWS * kLeftTile, kLeftTile};
    };
    for (int64 col = from, end; col < to; col = end) {
      end = col + kGroup < to ? col + kGroup : to;
      const int64 width = (end - col) * BLOCK_COLS;
      if (!in_place) {
        parts.complete(begin_of(col), begin_of(end), [&](int64 part) {
          for (int64 i = 0; i < units; ++i) pack_part(dense, part, first + i * kTileRows, panels + i * panel_);
        });
      }
      for (int64 each = col; each < end; ++each) {
        for (int tile = 0; tile < kTiles; tile += TILE_COLS) {
          float* const to_tile = sums + (each - col) * BLOCK_COLS + tile * kN;
          for (int64 i = 0; i < units; ++i) {
            multiply_tiles(each, tiles_of(i), values + tile * kRightTile, to_tile + i * kTileRows * width, width);
          }
        }
      }
      write_rows(out, first, rows, col * BLOCK_COLS, sums, width);
    }
  }

 private:
  int64 begin_of(int64 col) const { return index_.ccol()[col]; }

  // Packs this thread's share of the blocks, in column order, as right tiles: [step][tile][pair of rows][column].
  void pair_values(int64 rank, int64 size, Pair* to) const {
    for (int64 z = args_.nnz * rank / size; z < args_.nnz * (rank + 1) / size; ++z) {
      const BFloat16* const stored = static_cast<const BFloat16*>(args_.values) + index_.perm()[z] * int64(kBlock);
      const DenseView<BFloat16, /*K_CONTIGUOUS=*/false> block{stored, BLOCK_ROWS, BLOCK_COLS, BLOCK_COLS};
      pack_right<kN, kK>(block, 0, kSteps, 0, kTiles, to + z * (kBlock / 2), {kRightTile, kTiles * kRightTile});
    }
  }

  // Packs what a part of S multiplies in kTileRows rows of X from `row` on, as left tiles: [block][step][tile][row][k].
  // Missing elements are zero. (With pack_left, which takes squares, products took 0.97 to 1.29 times as long.)
  void pack_part(const Dense& dense, int64 part, int64 row, BFloat16* panel) const {
    const int64 rows = dense.width - row < kTileRows ? dense.width - row : kTileRows;
    for (int64 block = part * kPart; block < (part + 1) * kPart && block < index_.R; ++block) {
      const int64 first = block * BLOCK_ROWS;
      const int64 depth = dense.depth - first < BLOCK_ROWS ? dense.depth - first : BLOCK_ROWS;
      BFloat16* const to = panel + first * kTileRows;
      if (depth < BLOCK_ROWS || rows < kTileRows) __builtin_memset(to, 0, BLOCK_ROWS * kTileRows * sizeof(BFloat16));
      for (int64 r = 0; r < rows; ++r) {
        const BFloat16* const line = dense.at(first, row + r);
        BFloat16* const at = to + r * kK;
        for (int step = 0; step < kSteps; ++step) {
          BFloat16* const piece = at + step * (TILE_ROWS * kLeftTile);
          if (depth == BLOCK_ROWS) {
            __builtin_memcpy(piece, line + step * kK, kK * sizeof(BFloat16));
          } else {
            for (int64 d = step * kK; d < depth && d < (step + 1) * kK; ++d) piece[d - step * kK] = line[d];
          }
        }
      }
    }
  }

  // Multiplies kTileRows rows of X by TILE_COLS tiles of a block column. `values`: those tiles of the first block.
  void multiply_tiles(int64 col, const LeftTiles& panel, const Pair* values, float* sums, int64 width) const {
    for_constants<TILE_ROWS * TILE_COLS>([](auto t) { tile_zero<Registers::sum(t / TILE_COLS, t % TILE_COLS)>(); });
    for (int64 z = begin_of(col), end = begin_of(col + 1); z < end; ++z) {
      const BFloat16* left = panel.first + index_.row_t()[z] * (kSteps * panel.step);
      const Pair* right = values + z * (kBlock / 2);
      for (int step = 0; step < kSteps; ++step, left += panel.step, right += kTiles * kRightTile) {
        for_constants<TILE_ROWS>([&](auto i) {
          tile_load<Registers::left(i)>(left + i * panel.below, panel.line * sizeof(BFloat16));
        });
        for_constants<TILE_COLS>([&](auto j) {
          tile_load<Registers::right(j)>(right + j * kRightTile, kN * sizeof(Pair));
          for_constants<TILE_ROWS>([&](auto i) {
            tile_multiply_bf16<Registers::sum(i, j), Registers::left(i), Registers::right(j)>();
          });
        });
      }
    }
    for_constants<TILE_ROWS * TILE_COLS>([&](auto t) {
      float* const to = sums + t / TILE_COLS * kM * width + t % TILE_COLS * kN;
      tile_store<Registers::sum(t / TILE_COLS, t % TILE_COLS)>(to, width * sizeof(float));
    });
  }

  const SpmmArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  const int64 panel_;  // elements of a panel of kTileRows rows
  int64 panels_bytes_, sums_bytes_;
};

}  // namespace jitsparse::cpu
