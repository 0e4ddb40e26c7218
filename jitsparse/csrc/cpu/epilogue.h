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
  const T* bias;  // one element a row of a tile, or null
  int64 activation;
  bool stream;    // whether to write whole vectors past the caches, where they allow it

  // Whether all vectors that begin a multiple of a vector from the start can be written like this.
  template <int N> bool streams() const {
    constexpr int64 kBytes = N * sizeof(T);
    if constexpr (sizeof(T) != sizeof(Acc<T>) || kBytes != kVecBytes) return false;
    return stream && reinterpret_cast<unsigned long>(data) % kBytes == 0 && ld * sizeof(T) % kBytes == 0;
  }
};

template <int N, class T> JITSPARSE_INLINE void store_or_stream(T* p, Vec<Acc<T>, N> v, bool past) {
  if constexpr (sizeof(T) == sizeof(Acc<T>) && N == kLanes<Acc<T>>) {
    if (past) return stream<N>(p, v);
  }
  store<N>(p, v);
}

// Adds the bias and applies the activation to `rows` x `cols` sums, in place; cols fill vectors.
template <class T>
__attribute__((noinline)) void apply_epilogue(Acc<T>* tile, const T* bias, int64 rows, int64 cols, int64 activation) {
  using A = Acc<T>;
  constexpr int L = kLanes<A>;
  for (int64 r = 0; r < rows; ++r) {
    const A shift = bias ? load_first<L>(bias + r, 1)[0] : A(0);
    for (int64 c = 0; c < cols; c += L) {
      A* at = tile + r * cols + c;
      store<L, A>(at, activate<A, L>(load<L>(at) + shift, activation));
    }
  }
}

// Writes the part of a ROWS x COLS tile at (row0, col0) that lies inside the output.
template <int ROWS, int COLS, class T, bool TRANSPOSED>
inline void write_tile(const OutView<T, TRANSPOSED>& to, int64 row0, int64 col0, Acc<T>* tile) {
  using A = Acc<T>;
  constexpr int L = kLanes<A>;
  const int64 rows = to.rows - row0 < ROWS ? to.rows - row0 : ROWS;
  const int64 cols = to.cols - col0 < COLS ? to.cols - col0 : COLS;
  if (to.bias || to.activation) {
    apply_epilogue<T>(tile, to.bias ? to.bias + row0 : nullptr, rows, COLS, to.activation);
  }
  if constexpr (!TRANSPOSED) {
    const bool past = to.template streams<L>();
    for (int64 r = 0; r < rows; ++r) {
      T* out = to.data + (row0 + r) * to.ld + col0;
      if (cols == COLS) {
        JITSPARSE_UNROLL
        for (int c = 0; c < COLS; c += L) store_or_stream<L>(out + c, load<L>(tile + r * COLS + c), past);
      } else {
        for (int c = 0; c < cols; c += L) store_first<L>(out + c, load<L>(tile + r * COLS + c), cols - c);
      }
    }
  } else {
    constexpr int S = min(L, ROWS);
    const bool past = to.template streams<S>();
    for (int c = 0; c < cols; c += S) {
      for (int r = 0; r < rows; r += S) {
        Vec<A, S> square[S];
        JITSPARSE_UNROLL
        for (int i = 0; i < S; ++i) square[i] = load<S>(tile + (r + i) * COLS + c);
        transpose<S / 2, A, S>(square);
        T* const out = to.data + (col0 + c) * to.ld + row0 + r;
        const bool inside = c + S <= cols && r + S <= rows;
        T edge[S * S];
        T* const target = inside ? out : edge;
        const int64 stride = inside ? to.ld : S;
        JITSPARSE_UNROLL
        for (int i = 0; i < S; ++i) store_or_stream<S>(target + i * stride, square[i], past && inside);
        if (inside) continue;
        for (int64 i = 0; i < S && c + i < cols; ++i) {
          for (int64 j = 0; j < S && r + j < rows; ++j) out[i * to.ld + j] = edge[i * S + j];
        }
      }
    }
  }
}

}  // namespace jitsparse::cpu
