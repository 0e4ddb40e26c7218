// dsd and dds: C = op(S) B, with S stored in blocks.
//
// dds runs on the same code, as C^T = op(S)^T A^T: its dense operand and its output are then read
// and written transposed, and the stored blocks are flipped where op does not transpose.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/pack.h"
#include "cpu/parallel.h"

namespace jitsparse::cpu {

// T             element type
// ROWS, COLS    of a block as stored
// FLIPPED       the rows of op(S) are the stored columns
// ALONG_DEPTH   the contiguous axis of B is the one that it shares with op(S)
// OUT_ALONG_ROWS  the contiguous axis of C is the one that it shares with op(S)
// TILE_ROWS, TILE_VECTORS  sums held in registers: rows x vectors of columns
template <class T, int ROWS, int COLS, bool FLIPPED, bool ALONG_DEPTH, bool OUT_ALONG_ROWS, int TILE_ROWS,
          int TILE_VECTORS>
class Spmm {
  using A = Acc<T>;
  static constexpr int kL = kLanes<A>;
  static constexpr int kRows = FLIPPED ? COLS : ROWS;   // of a block of op(S)
  static constexpr int kDepth = FLIPPED ? ROWS : COLS;
  static_assert(kRows % TILE_ROWS == 0, "a tile must not cross block rows");
  // Blocks of a row that are multiplied before the next tile of the row starts: as many as keep
  // their panels of B in the L1 cache from one tile to the next.
  static constexpr int kPanelBytes = kDepth * TILE_VECTORS * kVecBytes;
  static constexpr int64 kRun = kRows == TILE_ROWS ? 1 << 30 : max(1, JS_L1 / kPanelBytes);

 public:
  static int run(const SpmmArgs& args) {
    const Spmm product(args);
    Scratch scratch(product.scratch_bytes_ * args.context);
    if (!scratch) return kOutOfMemory;
    parallel(args.context, double(args.nnz) * ROWS * COLS * args.n * args.batch, [&](int rank, int size) {
      product.work(rank, size, scratch.at<char>(rank * product.scratch_bytes_));
    });
    return kOk;
  }

 private:
  explicit Spmm(const SpmmArgs& args)
      : args_(args), index_(args.index, args.rows, args.cols, args.nnz),
        block_rows_(FLIPPED ? index_.C : index_.R), block_cols_(FLIPPED ? index_.R : index_.C),
        row_ptr_(FLIPPED ? index_.ccol() : index_.crow()), depth_index_(FLIPPED ? index_.row_t() : index_.col()) {
    const int64 vectors = div_up(args.n, kL);
    int64 widest = TILE_VECTORS;
    strips_ = div_up(vectors, widest);
    vectors_ = vectors;
    panels_bytes_ = line_up(block_cols_ * kDepth * min(widest, vectors) * kVecBytes);
    tile_bytes_ = line_up(kRows * widest * kVecBytes);
    scratch_bytes_ = panels_bytes_ + tile_bytes_ + line_up(block_cols_) + 256;
  }

  // The rows' share of the work up to a block row, in rows of B times rows of op(S).
  int64 weight(int64 row) const { return int64(row_ptr_[row]) * kDepth + row * kFinish; }
  static constexpr int64 kFinish = 16;  // what finishing a block row costs, on the same scale

  int64 first_row_at(int64 target) const {
    int64 lo = 0, hi = block_rows_;
    while (lo < hi) {
      const int64 mid = (lo + hi) / 2;
      if (weight(mid) < target) lo = mid + 1; else hi = mid;
    }
    return lo;
  }

  // A thread takes a contiguous share of all strips laid end to end.
  void work(int64 rank, int64 size, char* scratch) const {
    const int64 whole = weight(block_rows_), total = args_.batch * vectors_ * whole;
    const int64 begin = total / size * rank, end = rank + 1 == size ? total : total / size * (rank + 1);
    int64 offset = 0;
    for (int64 batch = 0; batch < args_.batch; ++batch) {
      for (int64 strip = 0; strip < strips_; ++strip) {
        const int64 first = strip * vectors_ / strips_, width = (strip + 1) * vectors_ / strips_ - first;
        const int64 next = offset + width * whole;
        if (next > begin && offset < end) {
          const int64 from = begin <= offset ? 0 : first_row_at((begin - offset + width - 1) / width);
          const int64 to = end >= next ? block_rows_ : first_row_at((end - offset + width - 1) / width);
          multiply_strip(batch, first, width, from, to, scratch);
        }
        offset = next;
      }
    }
  }

  void multiply_strip(int64 batch, int64 first, int64 width, int64 from, int64 to, char* scratch) const {
    if constexpr (TILE_VECTORS >= 3) if (width == 3) return multiply_strip<3>(batch, first * kL, from, to, scratch);
    if constexpr (TILE_VECTORS >= 2) if (width == 2) return multiply_strip<2>(batch, first * kL, from, to, scratch);
    return multiply_strip<1>(batch, first * kL, from, to, scratch);
  }

  template <int V>
  void multiply_strip(int64 batch, int64 column, int64 from, int64 to, char* scratch) const {
    constexpr int kWidth = V * kL;
    A* const panels = reinterpret_cast<A*>(scratch);
    A* const tile = reinterpret_cast<A*>(scratch + panels_bytes_);
    char* const packed = scratch + panels_bytes_ + tile_bytes_;
    __builtin_memset(packed, 0, block_cols_);
    const int64 m = FLIPPED ? args_.cols : args_.rows, k = FLIPPED ? args_.rows : args_.cols;
    const DenseView<T, ALONG_DEPTH> dense{static_cast<const T*>(args_.dense) + batch * args_.dense_batch_stride, k,
                                          args_.n, args_.dense_ld};
    const OutView<T, OUT_ALONG_ROWS> out{static_cast<T*>(args_.out) + batch * args_.out_batch_stride, m, args_.n,
                                         args_.out_ld, static_cast<const T*>(args_.bias), args_.activation};
    for (int64 row = from; row < to; ++row) {
      const int64 begin = row_ptr_[row], end = row_ptr_[row + 1];
      for (int64 z = begin; z < end; ++z) {
        const int64 c = depth_index_[z];
        if (packed[c]) continue;
        packed[c] = 1;
        pack_panel<kDepth, kWidth>(dense, c * kDepth, column, panels + c * kDepth * kWidth);
      }
      int64 z = begin;
      do {
        const int64 stop = end - z < kRun ? end : z + kRun;
        for (int r = 0; r < kRows; r += TILE_ROWS) multiply_run<V>(z, stop, z > begin, r, panels, tile + r * kWidth);
        z = stop;
      } while (z < end);
      write_tile<kRows, kWidth, T, OUT_ALONG_ROWS>(out, row * kRows, column, tile);
    }
  }

  // tile (+)= rows r .. r + TILE_ROWS of the blocks begin .. end, times their panels.
  template <int V>
  __attribute__((noinline)) void multiply_run(int64 begin, int64 end, bool accumulate, int r, const A* panels,
                                              A* __restrict tile) const {
    constexpr int kWidth = V * kL;
    Vec<A, kL> sum[TILE_ROWS][V];
    JITSPARSE_UNROLL
    for (int i = 0; i < TILE_ROWS; ++i) {
      JITSPARSE_UNROLL
      for (int v = 0; v < V; ++v) sum[i][v] = accumulate ? load<kL>(tile + i * kWidth + v * kL) : Vec<A, kL>{};
    }
    for (int64 z = begin; z < end; ++z) {
      const int64 block = FLIPPED ? index_.perm()[z] : z;
      const T* a = static_cast<const T*>(args_.values) + block * (ROWS * COLS) + (FLIPPED ? r : r * COLS);
      const A* b = panels + int64(depth_index_[z]) * (kDepth * kWidth);
      multiply_block<V>(sum, a, b);
    }
    JITSPARSE_UNROLL
    for (int i = 0; i < TILE_ROWS; ++i) {
      JITSPARSE_UNROLL
      for (int v = 0; v < V; ++v) store<kL, A>(tile + i * kWidth + v * kL, sum[i][v]);
    }
  }

  template <int V>
  static JITSPARSE_INLINE void multiply_block(Vec<A, kL> (&sum)[TILE_ROWS][V], const T* a, const A* b) {
    constexpr int kAlongRows = FLIPPED ? 1 : COLS, kAlongDepth = FLIPPED ? COLS : 1;
#pragma GCC unroll 4
    for (int d = 0; d < kDepth; ++d) {
      Vec<A, kL> x[V];
      JITSPARSE_UNROLL
      for (int v = 0; v < V; ++v) x[v] = load<kL>(b + (d * V + v) * kL);
      JITSPARSE_UNROLL
      for (int i = 0; i < TILE_ROWS; ++i) {
        const A s = a[i * kAlongRows + d * kAlongDepth];
        JITSPARSE_UNROLL
        for (int v = 0; v < V; ++v) sum[i][v] += s * x[v];
      }
    }
  }

  const SpmmArgs& args_;
  const IndexView<ROWS, COLS> index_;
  const int64 block_rows_, block_cols_;
  const int32 *row_ptr_, *depth_index_;
  int64 strips_, vectors_, panels_bytes_, tile_bytes_, scratch_bytes_;
};

}  // namespace jitsparse::cpu
