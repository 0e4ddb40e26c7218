// dsd and dds in bfloat16 on AMX tiles: C = op(S) B as in spmm.h.
//
// Blocks are left tiles as stored; flipped ones are transposed once per call. A strip of B is packed as
// right tiles and is many tiles wide, so that the blocks of a row are in the L1 cache for all but the
// strip's first columns.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/pairs.h"
#include "cpu/strips.h"
#include "cpu/tiles.h"

namespace jitsparse::cpu {

// BLOCK_ROWS, BLOCK_COLS    size of a block as stored
// FLIPPED                   the rows of op(S) are the columns of S as stored
// DENSE_K_CONTIGUOUS        the contiguous axis of B is k, which it shares with op(S)
// OUT_TRANSPOSED            the contiguous axis of C is m, which it shares with op(S)
// TILE_ROWS, TILE_COLS      sums held in tile registers, in tiles of 16 x 16
template <int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int TILE_ROWS,
          int TILE_COLS>
class SpmmAmx : public StripProduct {
  static constexpr int kRows = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;  // of a block of op(S)
  static constexpr int kDepth = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kBlock = kRows * kDepth;
  static constexpr int kM = min(16, kRows);   // rows of a left tile
  static constexpr int kK = min(32, kDepth);  // depth of a left and a right tile
  static constexpr int kSteps = kDepth / kK;
  static constexpr int kN = 16;               // columns of a right tile
  static constexpr int kRightTile = kK / 2 * kN;  // its size, in pairs
  static constexpr int kTileRows = TILE_ROWS * kM;
  static_assert(kRows % kTileRows == 0, "the tiles must not cross block rows");
  using Registers = TileRegisters<TILE_ROWS, TILE_COLS>;

  // Block columns that are packed at a time, as in spmm.h.
  static constexpr int64 kPart = DENSE_K_CONTIGUOUS ? max(1, 128 / kDepth) : 1;
  // Tiles of 16 columns in a strip: as in spmm.h, strips are as wide as lets their panels stay in the L2 cache.
  static constexpr int64 kWidestTiles = 8;

 public:
  static int run(const SpmmArgs& args) {
    return request_tiles() ? run_strips<SpmmAmx>(args, kBlock, kAmxRate) : kNoTileRegisters;
  }

  SpmmAmx(const SpmmArgs& args, int64 threads)
      : args_(args),
        index_(args.index, args.rows, args.cols, args.nnz),
        m_(FLIPPED ? args.cols : args.rows),
        k_(FLIPPED ? args.rows : args.cols),
        row_ptr_(FLIPPED ? index_.ccol() : index_.crow()),
        col_(FLIPPED ? index_.row_t() : index_.col()),
        block_cols_(FLIPPED ? index_.R : index_.C) {
    const int64 tiles = div_up(args.n, kN), column_bytes = block_cols_ * kSteps * kRightTile * sizeof(Pair);
    const StripWidth strip = {kWidestTiles, TILE_COLS, TILE_COLS, column_bytes, l2_bytes_for(kRows)};
    int64 widest = strip.widest(tiles * args.batch, threads);
    if (tiles < widest) widest = tiles;
    plan = {args.batch, tiles, widest, FLIPPED ? index_.C : index_.R, row_ptr_, kDepth};
    panels_bytes_ = column_bytes * widest;
    sums_bytes_ = kTileRows * widest * kN * sizeof(float);
    shared_bytes = FLIPPED ? args.nnz * kBlock * sizeof(BFloat16) : 0;
    own_bytes = panels_bytes_ + sums_bytes_ + block_cols_;
    expect_output(args, m_, sizeof(BFloat16), threads);
  }

  void begin(int64 rank, int64 size, char* shared) const {
    if (FLIPPED) {
      transpose_values(rank, size, reinterpret_cast<Pair*>(shared));
      barrier(size);
    }
    tile_configure(Registers::config(kM, kN, kK));
  }
  void end() const { tile_release(); }

  // Computes block rows from .. to of the strip of `width` tiles of columns that begins at tile `first`.
  void multiply_strip(int64 batch, int64 first, int64 width, int64 from, int64 to, Memory memory) const {
    // In the order of the blocks of op(S), [row][depth].
    const auto* const values = static_cast<const BFloat16*>(FLIPPED ? memory.shared : args_.values);
    Pair* const panels = reinterpret_cast<Pair*>(memory.own);
    float* const sums = reinterpret_cast<float*>(memory.own + panels_bytes_);
    PackedParts<kPart> parts(memory.own + panels_bytes_ + sums_bytes_, col_, block_cols_);
    const auto dense = dense_of<BFloat16, DENSE_K_CONTIGUOUS>(args_, batch, k_);
    const auto out = out_of<BFloat16, OUT_TRANSPOSED>(args_, batch, m_, args_.n);
    for (int64 row = from; row < to; ++row) {
      const int64 begin = row_ptr_[row], end = row_ptr_[row + 1];
      parts.complete(begin, end, [&](int64 part) {
        pack_right<kN, kK>(dense, part * kPart * kDepth, blocks_of(part) * kSteps, first * kN, width,
                           panels + part * kPart * kSteps * width * kRightTile, {kRightTile, width * kRightTile});
      });
      // Compute the sums of all the strip's columns first, so that whole runs of memory are written.
      for (int r = 0; r < kRows; r += kTileRows) {
        for (int64 tile = 0; tile < width; tile += TILE_COLS) {
          multiply_tiles<TILE_COLS>(begin, end, values + r * kDepth, panels, tile, width, sums + tile * kN);
        }
        write_tile<kTileRows>(out, row * kRows + r, first * kN, sums, width * kN);
      }
    }
  }

 private:
  // Transposes this thread's share of the blocks, in column order: [row of op(S)][pair].
  void transpose_values(int64 rank, int64 size, Pair* to) const {
    constexpr int S = min(16, min(kRows, kDepth / 2));
    for (int64 z = args_.nnz * rank / size; z < args_.nnz * (rank + 1) / size; ++z) {
      const BFloat16* stored = static_cast<const BFloat16*>(args_.values) + index_.perm()[z] * int64(kBlock);
      const DenseView<BFloat16, false> block{stored, kDepth, kRows, kRows};
      for (int r = 0; r < kRows; r += S) {
        for (int d = 0; d < kDepth; d += 2 * S) {
          pack_square<S, true>(block, d, r, to + (z * kBlock + r * kDepth + d) / 2, kDepth / 2);
        }
      }
    }
  }

  int64 blocks_of(int64 part) const {
    const int64 left_over = block_cols_ - part * kPart;
    return left_over < kPart ? left_over : kPart;
  }

  // Sums up kTileRows rows of blocks begin .. end times N tiles of their panels. `values`: those rows of the very first
  // block.
  template <int N>
  void multiply_tiles(int64 begin, int64 end, const BFloat16* values, const Pair* panels, int64 tile, int64 width,
                      float* sums) const {
    if constexpr (N > 1) {
      if (width - tile < N) return multiply_tiles<N - 1>(begin, end, values, panels, tile, width, sums);
    }
    for_constants<TILE_ROWS * N>([](auto t) { tile_zero<Registers::sum(t / N, t % N)>(); });
    for (int64 z = begin; z < end; ++z) {
      const BFloat16* left = values + z * kBlock;
      const Pair* right = panels + (col_[z] * kSteps * width + tile) * kRightTile;
      for (int step = 0; step < kSteps; ++step, left += kK, right += width * kRightTile) {
        for_constants<TILE_ROWS>([&](auto i) {
          tile_load<Registers::left(i)>(left + i * kM * kDepth, kDepth * sizeof(BFloat16));
        });
        for_constants<N>([&](auto j) {
          tile_load<Registers::right(j)>(right + j * kRightTile, kN * sizeof(Pair));
          for_constants<TILE_ROWS>([&](auto i) {
            tile_multiply_bf16<Registers::sum(i, j), Registers::left(i), Registers::right(j)>();
          });
        });
      }
    }
    for_constants<TILE_ROWS * N>([&](auto t) {
      float* const to = sums + t / N * kM * width * kN + t % N * kN;
      tile_store<Registers::sum(t / N, t % N)>(to, width * kN * sizeof(float));
    });
  }

  const SpmmArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  const int64 m_, k_;
  const int32 *const row_ptr_, *const col_;
  const int64 block_cols_;
  int64 panels_bytes_, sums_bytes_;
};

}  // namespace jitsparse::cpu
