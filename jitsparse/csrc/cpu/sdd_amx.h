// sdd on AMX tiles, in bfloat16 or in float32 divided into planes: the blocks of A B that a pattern stores, summed over a batch, as in sdd.h.
#pragma once

#include "cpu/finish_blocks.h"
#include "cpu/pages.h"
#include "cpu/parallel.h"
#include "cpu/planes.h"
#include "cpu/sdd_shares.h"
#include "cpu/split.h"

namespace jitsparse::cpu {

// T, PLANES                               element type, and the planes of an element
// BLOCK_ROWS, BLOCK_COLS                  size of a block
// LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS   k is the contiguous axis of A, of B
// TILE_ROWS, TILE_COLS                    sums held in tile registers, in tiles of 16 x 16
template <class T, int PLANES, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_ROWS,
          int TILE_COLS>
class SddAmx {
  using P = Planes<T, PLANES>;
  using Left = DenseView<T, LEFT_K_CONTIGUOUS>;
  using Right = DenseView<T, RIGHT_K_CONTIGUOUS>;
  static constexpr int kBlock = BLOCK_ROWS * BLOCK_COLS;
  static constexpr int kM = min(16, BLOCK_ROWS);  // rows of a left tile
  static constexpr int kN = min(16, BLOCK_COLS);  // columns of a right tile
  static constexpr int kK = 32;                   // depth of both
  static constexpr int kLeftPlane = kM * kK / 2, kLeftTile = PLANES * kLeftPlane;     // their sizes, in pairs
  static constexpr int kRightPlane = kK / 2 * kN, kRightTile = PLANES * kRightPlane;
  static constexpr int kTiles = BLOCK_COLS / kN;  // in a row of a block
  // Rows of A and columns of B that are packed at a time: as in sdd.h. (512 columns take 0.93 to 0.96 of the time that 128 take, but 0.99 to
  // 1.02 in blocks of 32 and 16.)
  static constexpr int kLeftRows = LEFT_K_CONTIGUOUS ? BLOCK_ROWS : max(128, BLOCK_ROWS);
  static constexpr int kRightCols = RIGHT_K_CONTIGUOUS ? BLOCK_COLS : BLOCK_COLS < 64 ? 128 : 512;
  // Left tiles are read from A in place, except where an edge cuts them, if packed rows would not stay in the L1 cache (1.01 to 1.06
  // times as fast) or serve few blocks: with blocks of 32, 1.16 to 1.18 times as fast at density 0.1, 1.0 at 0.25, 0.8 at 0.5.
  static constexpr bool kInPlace = !P::kDivided && LEFT_K_CONTIGUOUS && BLOCK_ROWS >= 64;
  static constexpr bool kInPlaceIfFew = !P::kDivided && LEFT_K_CONTIGUOUS && BLOCK_ROWS == 32;
  // Sums of 16-bit products are kept separately, in float, until the last slice.
  static constexpr bool kSumInPlace = sizeof(T) == sizeof(float);
  static_assert(BLOCK_ROWS % (TILE_ROWS * kM) == 0, "the tiles must not cross block rows");
  using Registers = TileRegisters<TILE_ROWS, TILE_COLS>;
  using Share = SddShare<IndexView<BLOCK_ROWS, BLOCK_COLS>>;

  // Depth of a slice, in tiles: as in sdd.h. If rows of A are packed, most of B's part should stay in the L2 cache (16 tiles are
  // 0.74 to 1.0 times as fast, 4 are 0.73 to 0.94). But rows of few blocks reread little of that part and take 16 (8 are 0.8 to 1.0
  // times as fast). If nothing of A has to stay in a cache, a slice may be deep, which saves adding to sums (1.03 to 1.15 times as
  // fast at k of 2048, 0.94 to 1.0 at 4096).
  static constexpr int64 kDeepInPlace = 64, kDeepOfFew = 16, kDeepOfMany = 8, kDeepOfPlanes = BLOCK_ROWS >= 64 ? 16 : 8, kShallowest = 4;
  static constexpr int64 kFewBlocks = 8;  // of a row
  static constexpr int64 kSliceBytes = 8 << 20;

 public:
  static int run(const SddArgs& args) {
    if (!request_tiles()) return kNoTileRegisters;
    const double work = double(args.nnz) * kBlock * double(args.k) * double(args.batch);
    const int threads = useful_threads(args.context, work / kTileRate<PLANES>);
    const SddAmx product(args);
    const Scratch scratch(product.shared_bytes_ + threads * product.left_bytes_, args.workspace);
    if (!scratch) return kOutOfMemory;
    ask_for_large_pages(args.out, args.nnz * kBlock * int64(sizeof(T)));
    parallel(threads, [&](int64 rank, int64 size) {
      char* const left = scratch.at(product.shared_bytes_ + rank * product.left_bytes_);
      tile_configure(Registers::config(kM, kN, kK));
      product.work(rank, size, scratch.at(0), reinterpret_cast<Pair*>(left));
      tile_release();
    });
    return product.outside_.status();
  }

  // Whether dividing elements into planes takes less time than it saves: as planes_serve, where A and B are both dense and several threads
  // pack the same rows of A. (Blocks of 32 in products of 2048 and 4096: 0.98 times as fast as by multiply-adds if every element is multiplied
  // 205 times, 0.97 to 1.04 if 256 to 410 times; larger blocks 1.07 to 1.2, 1.01 to 1.2. Two planes: 0.93 to 1.14 if 40 times, 1.15 to 1.3 if
  // 100 times. One: 1.4 to 1.7 if 10 or 40 times. With k of 16 0.6 to 0.8.)
  static bool serves(const SddArgs& args) {
    constexpr double kTimes = PLANES == 3 ? (BLOCK_ROWS >= 64 ? 65 : 85) : PLANES == 2 ? 20 : 0;
    // Of fewer products, sums of three planes are no more accurate than by multiply-adds, and those of fewer planes slower.
    constexpr int64 kFewest = PLANES == 3 ? 64 : 32;
    const int64 products = args.k * args.batch;  // of a sum
    if (products < kFewest || products > kMostProducts) return false;
    return kTimes * double(2 * args.rows + args.cols) <= double(args.nnz) * kBlock;
  }

 private:
  explicit SddAmx(const SddArgs& args) : args_(args), index_(args.index, args.rows, args.cols, args.nnz) {
    const int64 width = index_.C * kTiles;
    const bool few = args.nnz <= kFewBlocks * index_.R;
    in_place_ = kInPlace || (kInPlaceIfFew && few);
    steps_ = P::kDivided ? kDeepOfPlanes : in_place_ ? kDeepInPlace : few ? kDeepOfFew : kDeepOfMany;
    while (steps_ > kShallowest && width * steps_ * kRightTile * int64(sizeof(Pair)) > kSliceBytes) steps_ /= 2;
    if (div_up(args.k, kK) < steps_) steps_ = div_up(args.k, kK);
    right_bytes_ = Scratch::round_up(width * steps_ * kRightTile * sizeof(Pair));
    sums_offset_ = 2 * right_bytes_;
    shared_bytes_ = sums_offset_ + (kSumInPlace ? 0 : Scratch::round_up(args.nnz * kBlock * sizeof(float)));
    left_bytes_ = Scratch::round_up(kLeftRows / kM * steps_ * kLeftTile * sizeof(Pair));
  }

  // One barrier per slice is enough: a thread that is ahead packs into the other of two buffers.
  void work(int64 rank, int64 size, char* shared, Pair* left) const {
    const Share share(index_, rank, size, sdd_groups(right_bytes_, size));
    float* const sums = kSumInPlace ? static_cast<float*>(args_.out) : reinterpret_cast<float*>(shared + sums_offset_);
    typename P::Range range;
    bool add = false, second = false;
    for (int64 batch = 0; batch < args_.batch; ++batch) {
      const Left a{static_cast<const T*>(args_.left) + batch * args_.left_batch_stride, args_.k, args_.rows,
                   args_.left_ld};
      const Right b{static_cast<const T*>(args_.right) + batch * args_.right_batch_stride, args_.k, args_.cols,
                    args_.right_ld};
      for (int64 k = 0; k < args_.k; k += steps_ * kK) {
        const int64 left_over = div_up(args_.k - k, kK), steps = left_over < steps_ ? left_over : steps_;
        Pair* const right = reinterpret_cast<Pair*>(shared + (second ? right_bytes_ : 0));
        for (int64 c = share.pack_from * BLOCK_COLS, to = share.pack_to * BLOCK_COLS; c < to; c += kRightCols) {
          const int64 cols = to - c < kRightCols ? to - c : kRightCols;
          P::template pack_right<kN, kK>(b, k, steps, c, cols / kN, right + c / kN * steps_ * kRightTile,
                                         {steps_ * kRightTile, kRightTile}, range);
        }
        outside_.note(range);
        barrier(size);
        if (!outside_.seen()) multiply_slice(a, k, steps, share, add, right, left, sums, range);
        add = true;
        second = !second;
      }
    }
    share.for_rows([&](int64, int64 z, int64 stop) {
      if (!add) __builtin_memset(sums + z * kBlock, 0, (stop - z) * kBlock * sizeof(float));
      P::unscale(sums + z * kBlock, (stop - z) * kBlock);
      finish_blocks<T>(args_, index_, z, stop, sums);
    });
    outside_.note(range);
  }

  void multiply_slice(const Left& a, int64 k, int64 steps, const Share& share, bool add, const Pair* right, Pair* left,
                      float* sums, typename P::Range& range) const {
    int64 packed = -1;
    share.for_rows([&](int64 row, int64 z, int64 stop) {
      const int64 part = row * BLOCK_ROWS / kLeftRows, offset = row * BLOCK_ROWS % kLeftRows / kM;
      LeftTiles rows = {reinterpret_cast<const BFloat16*>(left + offset * steps * kLeftTile), kK, 2 * kLeftTile,
                        2 * steps * kLeftTile};
      if (in_place_ && (row + 1) * BLOCK_ROWS <= args_.rows && k + steps * kK <= args_.k) {
        rows = {reinterpret_cast<const BFloat16*>(a.at(k, row * BLOCK_ROWS)), args_.left_ld, kK, kM * args_.left_ld};
      } else if (part != packed) {
        packed = part;
        P::template pack_left<kM, kK, kLeftRows / kM>(a, k, steps, part * kLeftRows, left, {steps * kLeftTile, kLeftTile}, range);
      }
      const int64 tiles = (stop - z) * kTiles;
      for (int64 tile = 0; tile < tiles; tile += TILE_COLS) {
        for (int r = 0; r < BLOCK_ROWS / kM; r += TILE_ROWS) {
          const LeftTiles from = {rows.first + r * rows.below, rows.line, rows.step, rows.below};
          multiply_tiles<TILE_COLS>(tiles - tile, from, right, steps, z, tile, r * kM, add, sums);
        }
      }
    });
  }

  // Sets, or adds to, TILE_ROWS * kM rows from r on of N tiles of columns, which are counted from block z
  // on, through consecutive blocks.
  template <int N>
  void multiply_tiles(int64 tiles, const LeftTiles& left, const Pair* right, int64 steps, int64 z, int64 first, int r,
                      bool add, float* sums) const {
    if constexpr (N > 1 && kTiles % TILE_COLS != 0) {
      if (tiles < N) return multiply_tiles<N - 1>(tiles, left, right, steps, z, first, r, add, sums);
    }
    const Pair *panel[N], *next[N];
    float* out[N];
    for (int j = 0; j < N; ++j) {
      const int64 block = z + (first + j) / kTiles, part = (first + j) % kTiles;
      panel[j] = right + (index_.col()[block] * int64(kTiles) + part) * steps_ * kRightTile;
      next[j] = panel[j];
      if (P::kDivided && N + j < tiles) {
        const int64 after = z + (first + N + j) / kTiles;
        next[j] = right + (index_.col()[after] * int64(kTiles) + (first + N + j) % kTiles) * steps_ * kRightTile;
      }
      out[j] = sums + block * kBlock + r * BLOCK_COLS + part * kN;
    }
    for_constants<TILE_ROWS * N>([&](auto t) {
      constexpr int kSum = Registers::sum(t / N, t % N);
      if (add) {
        tile_load<kSum>(out[t % N] + t / N * kM * BLOCK_COLS, BLOCK_COLS * sizeof(float));
      } else {
        tile_zero<kSum>();
      }
    });
    for (int64 step = 0; step < steps; ++step) {
      multiply_step<PLANES, Registers, TILE_ROWS, N>(
          [&](auto i, auto plane) {
            const BFloat16* const tile = left.first + i * left.below + step * left.step + plane * (2 * kLeftPlane);
            tile_load<Registers::left(i)>(tile, left.line * sizeof(BFloat16));
          },
          [&](auto j, auto plane) {
            tile_load<Registers::right(j)>(panel[j] + step * kRightTile + plane * kRightPlane, kN * sizeof(Pair));
          },
          [&](auto share, auto shares) {
            if constexpr (P::kDivided) {
              constexpr int kShares = shares / N, kTile = share / kShares;
              const Pair* const following = step + 1 < steps ? panel[kTile] + (step + 1) * kRightTile : next[kTile];
              prefetch_share<share % kShares, kShares, kRightTile * int(sizeof(Pair)) / kLine, kIntoL1>(following);
            }
          });
    }
    for_constants<TILE_ROWS * N>([&](auto t) {
      float* const to = out[t % N] + t / N * kM * BLOCK_COLS;
      tile_store<Registers::sum(t / N, t % N)>(to, BLOCK_COLS * sizeof(float));
    });
  }

  const SddArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  bool in_place_;
  int64 steps_, right_bytes_, sums_offset_, shared_bytes_, left_bytes_;
  OutsideRange outside_;
};

}  // namespace jitsparse::cpu
