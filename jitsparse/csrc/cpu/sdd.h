// sdd: the blocks of A B that a pattern stores, summed over a batch.
//
// The sum runs over slices of k, the axis that A and B share. For each slice the threads pack all of B
// together, the next one's beside multiplying where that is possible (packing.h); then each walks its share of
// the blocks, row by row. It packs the rows of A that it needs, or
// reads them in place if k is contiguous. A register tile takes vectors from as many blocks of a row as it
// needs, so it is full whatever the width of a block.
#pragma once

#include "cpu/finish_blocks.h"
#include "cpu/packing.h"
#include "cpu/pages.h"
#include "cpu/pairs.h"
#include "cpu/parallel.h"
#include "cpu/sdd_shares.h"

namespace jitsparse::cpu {

// T                                       element type
// BLOCK_ROWS, BLOCK_COLS                  size of a block
// LEFT_K_CONTIGUOUS, RIGHT_K_CONTIGUOUS   k is the contiguous axis of A, of B
// TILE_ROWS, TILE_COLS                    sums held in registers: rows x vectors of columns
template <class T, int BLOCK_ROWS, int BLOCK_COLS, bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, int TILE_ROWS,
          int TILE_COLS>
class Sdd {
  using A = Acc<T>;
  using P = Packed<T>;
  using Left = DenseView<T, LEFT_K_CONTIGUOUS>;
  using Right = DenseView<T, RIGHT_K_CONTIGUOUS>;
  static constexpr int kL = min(kLanes<A>, BLOCK_COLS);
  using Sum = Vec<A, kL>;
  static constexpr int kVectors = BLOCK_COLS / kL;  // in a row of a block
  static constexpr int kBlock = BLOCK_ROWS * BLOCK_COLS;
  // Rows of A and columns of B that are packed at a time. If k is not their contiguous axis, a slice is
  // spread over many pages, and several cache lines of each are taken at once.
  static constexpr int kLines = 1024 / sizeof(T);
  static constexpr int kLeftRows = LEFT_K_CONTIGUOUS ? BLOCK_ROWS : max(kLines, BLOCK_ROWS);
  static constexpr int kRightCols = RIGHT_K_CONTIGUOUS ? BLOCK_COLS : max(kLines, BLOCK_COLS);
  static_assert(BLOCK_ROWS % TILE_ROWS == 0, "a register tile must not cross block rows");
  // Broadcasting elements of A in place takes 0.89 (density 0.1) to 1.0 of the time that a product takes with A packed.
  // (Pairs of bfloat16: 0.98 to 1.04.)
  static constexpr bool kInPlace = LEFT_K_CONTIGUOUS && sizeof(T) == sizeof(P);

  // Slices are deep enough that a tile's sums are rarely loaded and stored, unless B is so wide that its
  // packed slice would not stay in the caches.
  // Depths count packed elements.
  static constexpr int64 kSquare = 16;
  static constexpr int64 kDeepest = 2048 / sizeof(P), kShallowest = kDeepest / 4;
  static constexpr int64 kSliceBytes = 8 << 20;
  // Sums of 16-bit products are kept separately, in float, until the last slice.
  static constexpr bool kSumInPlace = sizeof(T) == sizeof(A);
  // The next slice is packed beside multiplying where that only copies lines: two neighbours, one every kEvery steps.
  static constexpr bool kBeside = kMayPackBeside && !RIGHT_K_CONTIGUOUS && sizeof(T) == sizeof(P) && BLOCK_COLS % (2 * kL) == 0;
  static constexpr int kEvery = 4, kAcross = 2;

  // What a CopyQueue copies: two vectors of columns of B, whose part is a share of a slice's rows.
  struct PanelLines {
    using Lines = LineCopies<T, kL>;
    static constexpr int kAcross = Sdd::kAcross;
    static constexpr int64 kAhead = 2, kParts = kEvery * kAcross, piece_count = 1;
    static constexpr int32 kOrder[kParts] = {0, 1, 2, 3, 4, 5, 6, 7};
    Right from_right;
    int64 k, first_vector, line_count;
    int64 depth;
    A* right;

    int64 rows() const { return depth / kParts; }
    JITSPARSE_INLINE const T* from(int64 part, int64, int64 line) const {
      return from_right.at(k + part * rows(), (first_vector + line * kAcross) * kL);
    }
    JITSPARSE_INLINE Lines lines(int64 part, int64 piece, int64 line) const {
      A* const to = right + ((first_vector + line * kAcross) * depth + part * rows()) * kL;
      return {from(part, piece, line), nullptr, from_right.ld, to, kL, depth * kL};
    }
  };
  using Queue = CopyQueue<PanelLines>;
  using Share = SddShare<IndexView<BLOCK_ROWS, BLOCK_COLS>>;

 public:
  static int run(const SddArgs& args) {
    const double work = double(args.nnz) * kBlock * double(args.k) * double(args.batch);
    const int threads = useful_threads(args.context, work);
    const Sdd product(args);
    const Scratch scratch(product.shared_bytes_ + threads * product.left_bytes_, args.workspace);
    if (!scratch) return kOutOfMemory;
    ask_for_large_pages(args.out, args.nnz * kBlock * int64(sizeof(T)));
    parallel(threads, [&](int64 rank, int64 size) {
      char* const left = scratch.at(product.shared_bytes_ + rank * product.left_bytes_);
      product.work(rank, size, scratch.at(0), reinterpret_cast<P*>(left));
    });
    return kOk;
  }

 private:
  explicit Sdd(const SddArgs& args) : args_(args), index_(args.index, args.rows, args.cols, args.nnz) {
    const int64 width = div_up(args.cols, kRightCols) * kRightCols;
    depth_ = kDeepest;
    while (depth_ > kShallowest && width * depth_ * int64(sizeof(P)) > kSliceBytes) depth_ /= 2;
    const int64 rounded = div_up(args.k, kSquare * kTogether<T>) * kSquare;
    if (rounded < depth_) depth_ = rounded;
    right_bytes_ = Scratch::round_up(width * depth_ * sizeof(P));
    sums_offset_ = 2 * right_bytes_;
    shared_bytes_ = sums_offset_ + (kSumInPlace ? 0 : Scratch::round_up(args.nnz * kBlock * sizeof(A)));
    left_bytes_ = Scratch::round_up(kLeftRows * depth_ * sizeof(P));
  }

  // One barrier per slice is enough: a thread that is ahead packs into the other of two buffers.
  void work(int64 rank, int64 size, char* shared, P* left) const {
    const Share share(index_, rank, size, sdd_groups(right_bytes_, size));
    A* const sums = reinterpret_cast<A*>(kSumInPlace ? static_cast<char*>(args_.out) : shared + sums_offset_);
    bool add = false, second = false, packed = false;
    for (int64 batch = 0; batch < args_.batch; ++batch) {
      const Left a{static_cast<const T*>(args_.left) + batch * args_.left_batch_stride, args_.k, args_.rows,
                   args_.left_ld};
      const Right b{static_cast<const T*>(args_.right) + batch * args_.right_batch_stride, args_.k, args_.cols,
                    args_.right_ld};
      for (int64 k = 0; k < args_.k; k += depth_ * kTogether<T>) {
        P* const right = reinterpret_cast<P*>(shared + (second ? right_bytes_ : 0));
        A* const next_right = reinterpret_cast<A*>(shared + (second ? 0 : right_bytes_));
        if (!packed) {
          for (int64 c = share.pack_from * BLOCK_COLS, to = share.pack_to * BLOCK_COLS; c < to;) {
            // Near its end, a share is packed a block column at a time: the next columns are another thread's.
            if (to - c >= kRightCols) {
              pack<kRightCols, kL, kSquare>(b, k, depth_ * kTogether<T>, c, right + c * depth_, depth_ * kL);
              c += kRightCols;
            } else {
              pack<BLOCK_COLS, kL, kSquare>(b, k, depth_ * kTogether<T>, c, right + c * depth_, depth_ * kL);
              c += BLOCK_COLS;
            }
          }
        }
        barrier(size);
        // The next slice is packed meanwhile if it is copied in whole lines and is not the last, shorter one.
        packed = kBeside && args_.cols % BLOCK_COLS == 0 && k + 2 * depth_ <= args_.k;
        const int64 from = share.pack_from * kVectors, vectors = (share.pack_to - share.pack_from) * kVectors;
        Queue queue({b, k + depth_, from, vectors / kAcross, depth_, next_right}, PanelLines::kOrder, packed ? PanelLines::kParts : 0);
        multiply_slice(a, k, share, add, right, left, sums, queue);
        queue.complete(packed ? PanelLines::kParts : 0);
        add = true;
        second = !second;
      }
    }
    share.for_rows([&](int64, int64 z, int64 stop) {
      if (!add) __builtin_memset(sums + z * kBlock, 0, (stop - z) * kBlock * sizeof(A));
      finish_blocks<T>(args_, index_, z, stop, sums);
    });
  }

  void multiply_slice(const Left& a, int64 k, const Share& share, bool add, const P* right, P* left, A* sums,
                      Queue& queue) const {
    const int64 left_over = div_up(args_.k - k, kTogether<T>), depth = left_over < depth_ ? left_over : depth_;
    int64 packed = -1;
    share.for_rows([&](int64 row, int64 z, int64 stop) {
      const int64 part = row * BLOCK_ROWS / kLeftRows, offset = row * BLOCK_ROWS % kLeftRows;
      const bool in_place = kInPlace && (row + 1) * BLOCK_ROWS <= args_.rows;
      if (!in_place && part != packed) {
        packed = part;
        pack<kLeftRows, TILE_ROWS, kSquare>(a, k, depth_ * kTogether<T>, part * kLeftRows, left, depth_ * TILE_ROWS);
      }
      const int64 vectors = (stop - z) * kVectors;
      for (int64 v = 0; v < vectors; v += TILE_COLS) {
        for (int r = 0; r < BLOCK_ROWS; r += TILE_ROWS) {
          if constexpr (kInPlace) {
            if (in_place) {
              const RowsInPlace rows{a.at(k, row * BLOCK_ROWS + r), a.ld};
              multiply_tile<TILE_COLS>(vectors - v, rows, right, depth, z, v, r, add, sums, queue);
              continue;
            }
          }
          const PackedRows rows{left + (offset + r) * depth_};
          multiply_tile<TILE_COLS>(vectors - v, rows, right, depth, z, v, r, add, sums, queue);
        }
      }
    });
  }

  // TILE_ROWS rows of A, or of a slice of it: the element of row i at depth d.
  struct PackedRows {
    const P* rows;
    JITSPARSE_INLINE P at(int i, int64 d) const { return rows[d * TILE_ROWS + i]; }
  };
  struct RowsInPlace {
    const T* rows;
    int64 ld;
    JITSPARSE_INLINE P at(int i, int64 d) const { return rows[i * ld + d]; }
  };

  // Sets, or adds to, TILE_ROWS rows from r on of V vectors of columns, which are counted from block z
  // on, through consecutive blocks.
  template <int V, class LeftRows>
  void multiply_tile(int64 vectors, const LeftRows& left, const P* right, int64 depth, int64 z, int64 first, int r,
                     bool add, A* sums, Queue& queue) const {
    if constexpr (V > 1) {
      if (vectors < V) return multiply_tile<V - 1>(vectors, left, right, depth, z, first, r, add, sums, queue);
    }
    const P* panel[V];
    A* out[V];
    for (int v = 0; v < V; ++v) {
      const int64 block = z + (first + v) / kVectors, part = (first + v) % kVectors;
      panel[v] = right + (index_.col()[block] * int64(BLOCK_COLS) + part * kL) * depth_;
      out[v] = sums + block * kBlock + r * BLOCK_COLS + part * kL;
    }
    if (kBeside && !queue.empty()) {
      multiply_panels<V, kBeside>(left, panel, depth, add, out, queue);
    } else {
      multiply_panels<V, false>(left, panel, depth, add, out, queue);
    }
  }

  // If BESIDE, packs lines of the queue meanwhile.
  template <int V, bool BESIDE, class LeftRows>
  static __attribute__((noinline)) void multiply_panels(const LeftRows left, const P* const (&panel)[V], int64 depth,
                                                        bool add, A* const (&out)[V], Queue& queue) {
    // The sum of a slice is added as a whole: continuing the previous one would make the error grow with k. (A weight's
    // gradient over 262144 tokens in float32 would be off by 6.7e-6, relative, and is by 5e-7; torch's dense product by 4e-7.)
    Sum sum[TILE_ROWS][V] = {};
    const auto multiply_step = [&](int64 d) {
      Vec<P, kL> x[V];
      JITSPARSE_UNROLL
      for (int v = 0; v < V; ++v) x[v] = load_packed<kL>(panel[v] + d * kL);
      JITSPARSE_UNROLL
      for (int i = 0; i < TILE_ROWS; ++i) {
        const P factor = left.at(i, d);
        JITSPARSE_UNROLL
        for (int v = 0; v < V; ++v) add_product<kL>(sum[i][v], factor, x[v]);
      }
    };
    if constexpr (BESIDE) {
      const auto copies = queue.take();
      for (int64 row = 0; row < depth / (kEvery * kAcross); ++row) {
        JITSPARSE_UNROLL
        for (int step = 0; step < kEvery * kAcross; ++step) {
          if (step % kEvery == 0) copies.copy(row, step / kEvery);
          multiply_step(row * (kEvery * kAcross) + step);
        }
      }
    } else {
      unrolled(depth, multiply_step);
    }
    JITSPARSE_UNROLL
    for (int i = 0; i < TILE_ROWS; ++i) {
      JITSPARSE_UNROLL
      for (int v = 0; v < V; ++v) {
        A* const to = out[v] + i * BLOCK_COLS;
        store<kL, A>(to, add ? load<kL>(to) + sum[i][v] : sum[i][v]);
      }
    }
  }

  const SddArgs& args_;
  const IndexView<BLOCK_ROWS, BLOCK_COLS> index_;
  int64 depth_, right_bytes_, sums_offset_, shared_bytes_, left_bytes_;
};

}  // namespace jitsparse::cpu
