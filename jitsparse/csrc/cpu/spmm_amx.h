// dsd and dds on AMX tiles, in bfloat16 or in float32 divided into planes: C = op(S) B as in spmm.h.
//
// Blocks of bfloat16 are left tiles as stored; flipped ones are transposed, and those of float32 divided, once per call. A strip of B is
// packed as right tiles and is many tiles wide, so that the blocks of a row are in the L1 cache for all but the strip's first columns.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/planes.h"
#include "cpu/split.h"
#include "cpu/strips.h"

namespace jitsparse::cpu {

// T, PLANES                 element type, and the planes of an element
// BLOCK_ROWS, BLOCK_COLS    size of a block as stored
// FLIPPED                   the rows of op(S) are the columns of S as stored
// DENSE_K_CONTIGUOUS        the contiguous axis of B is k, which it shares with op(S)
// OUT_TRANSPOSED            the contiguous axis of C is m, which it shares with op(S)
// TILE_ROWS, TILE_COLS      sums held in tile registers, in tiles of 16 x 16
template <class T, int PLANES, int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int TILE_ROWS,
          int TILE_COLS>
class SpmmAmx : public StripProduct {
  using P = Planes<T, PLANES>;
  static constexpr int kRows = FLIPPED ? BLOCK_COLS : BLOCK_ROWS;  // of a block of op(S)
  static constexpr int kDepth = FLIPPED ? BLOCK_ROWS : BLOCK_COLS;
  static constexpr int kBlock = kRows * kDepth;
  static constexpr int kM = min(16, kRows);   // rows of a left tile
  static constexpr int kK = min(32, kDepth);  // depth of a left and a right tile
  static constexpr int kSteps = kDepth / kK;
  static constexpr int kN = 16;               // columns of a right tile
  static constexpr int kRightPlane = kK / 2 * kN;  // its size, in pairs
  static constexpr int kRightTile = PLANES * kRightPlane;
  static constexpr int kTileRows = TILE_ROWS * kM;
  static_assert(kRows % kTileRows == 0, "the tiles must not cross block rows");
  using Registers = TileRegisters<TILE_ROWS, TILE_COLS>;
  // Left tiles are in the order of the blocks of op(S). Those of bfloat16 that are not flipped are read in place; others are packed, in
  // the order in which they are multiplied: BFloat16[r][step][i][plane][row][depth].
  static constexpr bool kAsStored = !P::kDivided && !FLIPPED;
  static constexpr int kLeftPlane = kM * kK;  // elements
  static constexpr int kLeftTile = PLANES * kLeftPlane;
  static constexpr int kLeftBlock = PLANES * kBlock;
  // Block columns that are packed at a time: if k is the contiguous axis of B, a few cache lines of each of its rows.
  static constexpr int64 kPart = DENSE_K_CONTIGUOUS ? max(1, 128 / kDepth) : 1;
  // Tiles of 16 columns in a strip: as in spmm.h, strips are as wide as their panels' bytes allow.
  static constexpr int64 kWidestTiles = 8;

  // Blocks of float32 are multiplied in pieces of at most two steps. All tiles of a strip finish a chunk of pieces before any goes on, so that
  // its left tiles stay in L1: 12 KB, beside the sums and a step's right tiles (24 KB take 1.1 to 1.25 times as long, all of a row's blocks
  // 1.05 to 1.2, 6 KB 1.0 to 1.05). Meanwhile each tile prefetches its share of the next chunk's.
  static constexpr int kPieceSteps = P::kDivided ? min(kSteps, 2) : kSteps, kPieces = kSteps / kPieceSteps;
  static constexpr int64 kChunk = P::kDivided ? max(1, (12 << 10) / (TILE_ROWS * kPieceSteps * kLeftTile * int(sizeof(BFloat16)))) : 1LL << 40;
  static constexpr int kAheadLines = TILE_ROWS * kLeftTile * int(sizeof(BFloat16)) * TILE_COLS / int(kLine * kWidestTiles);

 public:
  static int run(const SpmmArgs& args) {
    return request_tiles() ? run_strips<SpmmAmx>(args, kBlock, kTileRate<PLANES>) : kNoTileRegisters;
  }

  // Whether dividing elements into planes takes less time than it saves.
  static bool serves(const SpmmArgs& args) { return planes_serve<PLANES, kDepth>(args, kBlock, FLIPPED ? args.rows : args.cols); }

  SpmmAmx(const SpmmArgs& args, int64 threads)
      : args_(args),
        index_(args.index, args.rows, args.cols, args.nnz),
        m_(FLIPPED ? args.cols : args.rows),
        k_(FLIPPED ? args.rows : args.cols),
        row_ptr_(FLIPPED ? index_.ccol() : index_.crow()),
        col_(FLIPPED ? index_.row_t() : index_.col()),
        block_cols_(FLIPPED ? index_.R : index_.C) {
    const int64 tiles = div_up(args.n, kN), column_bytes = block_cols_ * kSteps * kRightTile * sizeof(Pair);
    const StripWidth strip = {kWidestTiles, TILE_COLS, TILE_COLS, column_bytes, panel_bytes_for(kRows)};
    int64 widest = strip.widest(tiles * args.batch, threads);
    if (tiles < widest) widest = tiles;
    plan = {args.batch, tiles, widest, FLIPPED ? index_.C : index_.R, row_ptr_, kDepth};
    panels_bytes_ = column_bytes * widest;
    sums_bytes_ = kTileRows * widest * kN * sizeof(float);
    shared_bytes = kAsStored ? 0 : args.nnz * PLANES * kBlock * sizeof(BFloat16);
    own_bytes = panels_bytes_ + sums_bytes_ + block_cols_;
    expect_output(args, m_, sizeof(T), threads);
  }

  void begin(int64 rank, int64 size, char* shared) const {
    if (!kAsStored) {
      pack_values(rank, size, reinterpret_cast<Pair*>(shared));
      barrier(size);
    }
    tile_configure(Registers::config(kM, kN, kK));
  }
  void end() const { tile_release(); }
  int status() const { return outside_.status(); }

  // Computes block rows from .. to of the strip of `width` tiles of columns that begins at tile `first`.
  void multiply_strip(int64 batch, int64 first, int64 width, int64 from, int64 to, Memory memory) const {
    if (outside_.seen()) return;
    const auto* const values = static_cast<const BFloat16*>(kAsStored ? args_.values : memory.shared);
    Pair* const panels = reinterpret_cast<Pair*>(memory.own);
    float* const sums = reinterpret_cast<float*>(memory.own + panels_bytes_);
    PackedParts<kPart> parts(memory.own + panels_bytes_ + sums_bytes_, col_, block_cols_);
    const auto dense = dense_of<T, DENSE_K_CONTIGUOUS>(args_, batch, k_);
    const auto out = out_of<T, OUT_TRANSPOSED>(args_, batch, m_, args_.n);
    typename P::Range range;
    for (int64 row = from; row < to; ++row) {
      const int64 begin = row_ptr_[row], end = row_ptr_[row + 1];
      parts.complete(begin, end, [&](int64 part) {
        P::template pack_right<kN, kK>(dense, part * kPart * kDepth, blocks_of(part) * kSteps, first * kN, width,
                                       panels + part * kPart * kSteps * width * kRightTile, {kRightTile, width * kRightTile}, range);
      });
      // Compute the sums of all the strip's columns first, so that whole runs of memory are written.
      for (int r = 0; r < kRows; r += kTileRows) {
        for_chunks(begin * kPieces, end * kPieces, kChunk, [&](int64 piece, int64 stop, bool add) {
          for (int64 tile = 0; tile < width; tile += TILE_COLS) {
            multiply_tiles<TILE_COLS>(piece, stop, add, values + r * kDepth * PLANES, panels, tile, width, sums + tile * kN);
          }
        });
        P::unscale(sums, kTileRows * width * kN);
        write_tile<kTileRows>(out, row * kRows + r, first * kN, sums, width * kN);
      }
    }
    outside_.note(range);
  }

 private:
  // Packs this thread's share of the blocks.
  void pack_values(int64 rank, int64 size, Pair* to) const {
    constexpr int S = min(kM, kK / 2);
    typename P::Range range;
    for (int64 z = args_.nnz * rank / size; z < args_.nnz * (rank + 1) / size; ++z) {
      const T* const stored = static_cast<const T*>(args_.values) + (FLIPPED ? index_.perm()[z] : z) * int64(kBlock);
      const DenseView<T, !FLIPPED> block{stored, kDepth, kRows, FLIPPED ? kRows : kDepth};
      for (int r = 0; r < kRows; r += S) {
        for (int d = 0; d < kDepth; d += 2 * S) {
          const int tile = (r / kTileRows * kSteps + d / kK) * TILE_ROWS + r % kTileRows / kM;
          Pair* const at = to + (z * kLeftBlock + tile * kLeftTile + r % kM * kK + d % kK) / 2;
          P::template pack_square<S, true>(block, d, r, at, kK / 2, kLeftPlane / 2, range);
        }
      }
    }
    outside_.note(range);
  }

  int64 blocks_of(int64 part) const {
    const int64 left_over = block_cols_ - part * kPart;
    return left_over < kPart ? left_over : kPart;
  }

  // Sets, or adds to, the sums of kTileRows rows of pieces begin .. end of blocks times N tiles of their panels. `values`: those rows of the
  // very first block.
  template <int N>
  void multiply_tiles(int64 begin, int64 end, bool add, const BFloat16* values, const Pair* panels, int64 tile, int64 width,
                      float* sums) const {
    if constexpr (N > 1) {
      if (width - tile < N) return multiply_tiles<N - 1>(begin, end, add, values, panels, tile, width, sums);
    }
    load_sums<Registers, TILE_ROWS, N, kM>(sums, width * kN, add);
    constexpr int kLeftStep = kAsStored ? kK : TILE_ROWS * kLeftTile;
    const int64 right_step = width * kRightTile;
    const auto left_at = [=](int64 piece) {
      return values + piece / kPieces * kLeftBlock + piece % kPieces * (kPieceSteps * kLeftStep);
    };
    const auto right_at = [=, col = col_](int64 piece) {
      return panels + (col[piece / kPieces] * kSteps + piece % kPieces * kPieceSteps) * right_step + tile * kRightTile;
    };
    for (int64 piece = begin; piece < end; ++piece) {
      const BFloat16* left = left_at(piece);
      const Pair* right = right_at(piece);
      // What is multiplied next in the same chunk; and this tile's share of the next chunk's left tiles.
      const Pair* const next = piece + 1 < end ? right_at(piece + 1) : right_at(begin) + N * kRightTile;
      const BFloat16* ahead = left_at(piece + end - begin) + tile / TILE_COLS * (kAheadLines * kLine / int64(sizeof(BFloat16)));
      for (int step = 0; step < kPieceSteps; ++step, left += kLeftStep, right += right_step, ahead += kLeftStep) {
        const Pair* const following = step + 1 < kPieceSteps ? right + right_step : next;
        multiply_step<PLANES, Registers, TILE_ROWS, N>(
            [=](auto i, auto plane) {
              constexpr int kBelow = kAsStored ? kM * kDepth : kLeftTile, kLineOfTile = kAsStored ? kDepth : kK;
              tile_load<Registers::left(i)>(left + i * kBelow + plane * kLeftPlane, kLineOfTile * sizeof(BFloat16));
            },
            [=](auto j, auto plane) {
              tile_load<Registers::right(j)>(right + j * kRightTile + plane * kRightPlane, kN * sizeof(Pair));
            },
            [=](auto share, auto shares) {
              if constexpr (P::kDivided) {
                prefetch_share<share, shares, N * kRightTile * int(sizeof(Pair)) / kLine, kIntoL1>(following);
                prefetch_share<share, shares, kAheadLines, kIntoL2>(ahead);
              }
            });
      }
    }
    store_sums<Registers, TILE_ROWS, N, kM>(sums, width * kN);
  }

  const SpmmArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  const int64 m_, k_;
  const int32 *const row_ptr_, *const col_;
  const int64 block_cols_;
  int64 panels_bytes_, sums_bytes_;
  OutsideRange outside_;
};

}  // namespace jitsparse::cpu
