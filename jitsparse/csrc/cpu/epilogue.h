// From a tile of sums to the output: bias, activation, conversion, transposition, edges.
#pragma once

#include "cpu/math.h"
#include "cpu/vec.h"

namespace jitsparse::cpu {

// A dense output. TRANSPOSED: its contiguous axis is the rows of a tile; `ld` is the stride of the
// other axis.
template <class T, bool TRANSPOSED> struct OutView {
  T* data;
  int64 rows, cols, ld;
  const T* bias;  // one element for each along the contiguous axis, or null
  int64 activation;
  bool past_caches;  // whether whole cache lines are written past the caches

  bool whole_lines() const {
    return reinterpret_cast<unsigned long>(data) % kLine == 0 && ld * int64(sizeof(T)) % kLine == 0;
  }

  // Whether `count` elements from `at` on, along the contiguous axis, are whole lines that are written past the caches.
  bool past_caches_at(int64 at, int64 count) const {
    return past_caches && whole_lines() && at * int64(sizeof(T)) % kLine == 0 && count * int64(sizeof(T)) % kLine == 0;
  }

  // Whether a tile is inside the output, and its sums are written as they are.
  bool takes_sums(int64 row0, int64 row_count, int64 col0, int64 col_count) const {
    return !bias && !activation && row0 + row_count <= rows && col0 + col_count <= cols;
  }
};

// Where sums of a register tile go, in memory of the thread or in the output: from `first` on, with rows `ld` apart.
template <class A> struct SumsView {
  A* first;
  int64 ld;
  bool past_caches;
};

// Adds the bias and applies the activation to `rows` x `cols` sums, in place; `cols` is whole vectors. The bias has
// one element per row if OF_ROWS, else one for each of the first `biased` columns.
template <bool OF_ROWS, class T>
__attribute__((noinline)) void apply_epilogue(Acc<T>* tile, const T* bias, int64 rows, int64 cols, int64 biased,
                                              int64 activation) {
  using A = Acc<T>;
  constexpr int L = kLanes<A>;
  for (int64 c = 0; c < cols; c += L) {
    Vec<A, L> shift = {};
    if (!OF_ROWS && bias && c < biased) shift = load_first<L>(bias + c, biased - c);
    for (int64 r = 0; r < rows; ++r) {
      if (OF_ROWS && bias) shift = Vec<A, L>{} + load<1>(bias + r)[0];
      A* at = tile + r * cols + c;
      store<L, A>(at, activate<A, L>(load<L>(at) + shift, activation));
    }
  }
}

template <class V> JITSPARSE_INLINE void write(void* p, V v, bool past_caches) {
  if (past_caches) {
    stream(p, v);
  } else {
    __builtin_memcpy(p, &v, sizeof v);
  }
}

// Writes `rows` x `width` sums at (row0, col0), except columns outside the output; `width` is whole vectors.
template <class T>
inline void write_rows(const OutView<T, false>& to, int64 row0, int64 rows, int64 col0, Acc<T>* tile, int64 width) {
  constexpr int L = kLanes<Acc<T>>;
  const int64 cols = to.cols - col0 < width ? to.cols - col0 : width;
  if (to.bias || to.activation) {
    apply_epilogue<false>(tile, to.bias ? to.bias + col0 : nullptr, rows, width, cols, to.activation);
  }
  const bool past = to.past_caches_at(col0, cols);
  for (int64 r = 0; r < rows; ++r) {
    T* out = to.data + (row0 + r) * to.ld + col0;
    int64 c = 0;
    for (; c + L <= cols; c += L) write(out + c, to_stored<T, L>(load<L>(tile + r * width + c)), past);
    if (c < cols) store_first<L>(out + c, load<L>(tile + r * width + c), cols - c);
  }
}

// Writes the part of a ROWS x `width` tile at (row0, col0) that is inside the output; `width` as in write_rows.
template <int ROWS, class T, bool TRANSPOSED>
inline void write_tile(const OutView<T, TRANSPOSED>& to, int64 row0, int64 col0, Acc<T>* tile, int64 width) {
  using A = Acc<T>;
  constexpr int L = kLanes<A>;
  const int64 rows = to.rows - row0 < ROWS ? to.rows - row0 : ROWS;
  if constexpr (!TRANSPOSED) {
    write_rows(to, row0, rows, col0, tile, width);
  } else {
    const int64 cols = to.cols - col0 < width ? to.cols - col0 : width;
    if (to.bias || to.activation) {
      apply_epilogue<true>(tile, to.bias ? to.bias + row0 : nullptr, rows, width, cols, to.activation);
    }
    // Transpose in squares; for 16-bit elements, squares of pairs of rows.
    constexpr int kPair = 4 / min(4, sizeof(T)), S = min(L, ROWS / kPair), kRun = kPair * S;
    using Column = Vec<Bits<sizeof(T) * kPair>, S>;
    const bool past = kRun * sizeof(T) == kLine && to.past_caches_at(row0, kRun);
    for (int64 c = 0; c < cols; c += S) {
      for (int64 r = 0; r < rows; r += kRun) {
        const A* from = tile + r * width + c;
        Column square[S];
        JITSPARSE_UNROLL
        for (int i = 0; i < S; ++i, from += kPair * width) {
          if constexpr (kPair == 2) {
            square[i] = narrow_pairs<T, S>(load<S>(from), load<S>(from + width));
          } else {
            square[i] = (Column)load<S>(from);
          }
        }
        transpose(square);
        T* const out = to.data + (col0 + c) * to.ld + row0 + r;
        if (c + S <= cols && r + kRun <= rows) {
          JITSPARSE_UNROLL
          for (int i = 0; i < S; ++i) write(out + i * to.ld, square[i], past);
        } else {
          T edge[S][kRun];
          __builtin_memcpy(edge, square, sizeof edge);
          for (int64 i = 0; i < S && c + i < cols; ++i) {
            for (int64 j = 0; j < kRun && r + j < rows; ++j) out[i * to.ld + j] = edge[i][j];
          }
        }
      }
    }
  }
}

}  // namespace jitsparse::cpu
