// dsd and dds in bfloat16 on AMX tiles: C = op(S) B as in spmm.h.
//
// The stored blocks are left tiles as they lie in memory; flipped ones are transposed once a call. A
// strip of B is packed as right tiles and is many tiles wide, so that the blocks of a row are in the L1
// cache for all but its first columns.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/pairs.h"
#include "cpu/parallel.h"
#include "cpu/strips.h"
#include "cpu/tiles.h"

namespace jitsparse::cpu {

// BLOCK_ROWS, BLOCK_COLS    as stored
// FLIPPED                   the rows of op(S) are the columns of S as stored
// DENSE_K_CONTIGUOUS        the contiguous axis of B is the one that it shares with op(S)
// OUT_TRANSPOSED            the contiguous axis of C is the one that it shares with op(S)
// TILE_ROWS, TILE_COLS      sums held in tile registers, in tiles of 16 x 16
template <int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int TILE_ROWS,
          int TILE_COLS>
class SpmmAmx {
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
  // Of 16 columns, in a strip: as in spmm.h, strips are as wide as leaves their panels in the L2 cache.
  static constexpr int64 kWidestTiles = 8;

 public:
  static int run(const SpmmArgs& args) {
    if (!request_tiles()) return kNoTileRegisters;
    const double work = double(args.nnz) * kBlock * double(args.n) * double(args.batch);
    const int threads = useful_threads(args.context, work / 16);  // 16 times the rate of vectors
    SpmmAmx product(args, threads);
    const Scratch scratch(product.values_bytes_ + threads * product.scratch_bytes_);
    if (!scratch) return kOutOfMemory;
    if (FLIPPED) product.values_ = reinterpret_cast<BFloat16*>(scratch.at(0));
    parallel(threads, [&](int64 rank, int64 size) {
      if (FLIPPED) {
        product.transpose_values(rank, size, reinterpret_cast<Pair*>(scratch.at(0)));
        barrier(size);
      }
      char* const mine = scratch.at(product.values_bytes_ + rank * product.scratch_bytes_);
      tile_configure(Registers::config(kM, kN, kK));
      product.plan_.for_share(rank, size, [&](int64 batch, int64 first, int64 width, int64 from, int64 to) {
        product.multiply_strip(batch, first, width, from, to, mine);
      });
      tile_release();
      if (product.past_caches_) stream_fence();
    });
    return kOk;
  }

 private:
  SpmmAmx(const SpmmArgs& args, int64 threads)
      : args_(args),
        index_(args.index, args.rows, args.cols, args.nnz),
        values_(static_cast<const BFloat16*>(args.values)),
        m_(FLIPPED ? args.cols : args.rows),
        k_(FLIPPED ? args.rows : args.cols),
        row_ptr_(FLIPPED ? index_.ccol() : index_.crow()),
        col_(FLIPPED ? index_.row_t() : index_.col()),
        block_cols_(FLIPPED ? index_.R : index_.C) {
    const int64 tiles = div_up(args.n, kN), column_bytes = block_cols_ * kSteps * kRightTile * sizeof(Pair);
    int64 widest = kWidestTiles;
    while (widest > TILE_COLS && column_bytes * widest > kL2Bytes) widest -= TILE_COLS;
    // Rather a strip for every thread than a cut through one, where both parts pack its panels.
    const int64 fair = div_up(div_up(tiles * args.batch, threads), TILE_COLS) * TILE_COLS;
    if (fair < widest) widest = fair;
    if (tiles < widest) widest = tiles;
    plan_ = {args.batch, tiles, widest, FLIPPED ? index_.C : index_.R, row_ptr_, kDepth};
    values_bytes_ = FLIPPED ? Scratch::round_up(args.nnz * kBlock * sizeof(BFloat16)) : 0;
    panels_bytes_ = column_bytes * widest;
    sums_bytes_ = kTileRows * widest * kN * sizeof(float);
    scratch_bytes_ = Scratch::round_up(panels_bytes_ + sums_bytes_ + block_cols_);
    past_caches_ = args.batch * m_ * args.n * int64(sizeof(BFloat16)) / threads > kL2Bytes;
  }

  // This thread's share of the blocks, in column order, transposed: [row of op(S)][pair].
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

  void multiply_strip(int64 batch, int64 first, int64 width, int64 from, int64 to, char* scratch) const {
    Pair* const panels = reinterpret_cast<Pair*>(scratch);
    float* const sums = reinterpret_cast<float*>(scratch + panels_bytes_);
    char* const packed = scratch + panels_bytes_ + sums_bytes_;
    __builtin_memset(packed, 0, block_cols_);
    const DenseView<BFloat16, DENSE_K_CONTIGUOUS> dense{
        static_cast<const BFloat16*>(args_.dense) + batch * args_.dense_batch_stride, k_, args_.n, args_.dense_ld};
    const OutView<BFloat16, OUT_TRANSPOSED> out{static_cast<BFloat16*>(args_.out) + batch * args_.out_batch_stride,
                                                m_, args_.n, args_.out_ld,
                                                static_cast<const BFloat16*>(args_.bias), args_.activation,
                                                past_caches_};
    for (int64 row = from; row < to; ++row) {
      const int64 begin = row_ptr_[row], end = row_ptr_[row + 1];
      for (int64 z = begin; z < end; ++z) {
        const int64 part = col_[z] / kPart;
        if (packed[part]) continue;
        packed[part] = 1;
        pack_right<kN, kK>(dense, part * kPart * kDepth, blocks_of(part) * kSteps, first * kN, width,
                           panels + part * kPart * kSteps * width * kRightTile, {kRightTile, width * kRightTile});
      }
      // The next row's new parts are on their way while this row is multiplied.
      for (int64 z = end; row + 1 < to && z < row_ptr_[row + 2]; ++z) {
        const int64 part = col_[z] / kPart;
        if (!packed[part]) prefetch(dense, part * kPart * kDepth, blocks_of(part) * kDepth, first * kN, width * kN);
      }
      // The sums of all the strip's columns first, so that whole runs of memory are written.
      for (int r = 0; r < kRows; r += kTileRows) {
        for (int64 tile = 0; tile < width; tile += TILE_COLS) {
          multiply_tiles<TILE_COLS>(begin, end, r, panels, tile, width, sums + tile * kN);
        }
        write_tile<kTileRows>(out, row * kRows + r, first * kN, sums, width * kN);
      }
    }
  }

  // Sums of rows r .. r + kTileRows of the blocks begin .. end times N tiles of their panels.
  template <int N>
  void multiply_tiles(int64 begin, int64 end, int r, const Pair* panels, int64 tile, int64 width, float* sums) const {
    if constexpr (N > 1) {
      if (width - tile < N) return multiply_tiles<N - 1>(begin, end, r, panels, tile, width, sums);
    }
    for_constants<TILE_ROWS * N>([](auto t) { tile_zero<Registers::sum(t / N, t % N)>(); });
    for (int64 z = begin; z < end; ++z) {
      const BFloat16* left = values_ + z * kBlock + r * kDepth;
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
  const BFloat16* values_;  // in the order of the blocks of op(S), [row][depth]
  const int64 m_, k_;
  const int32 *const row_ptr_, *const col_;
  const int64 block_cols_;
  StripPlan plan_;
  int64 values_bytes_, panels_bytes_, sums_bytes_, scratch_bytes_;
  bool past_caches_;
};

}  // namespace jitsparse::cpu
