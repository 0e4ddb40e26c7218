// Packing for instructions that take bfloat16 in pairs of neighbours along k: vectors (pack, as in
// pack.h) and AMX tiles. Everything here treats a pair as one 32-bit element.
//
//   left tile    M x K: row by row, K / 2 pairs each
//   right tile   K x N: a row of N elements for each of K / 2 pairs of k
//
// Tiles along k are counted in steps. Elements outside the matrix become zero.
#pragma once

#include "cpu/pack.h"

namespace jitsparse::cpu {

// Distances from a tile to the next, and from a step to the next, in pairs.
struct TileStrides {
  int64 tile, step;
};

// Pairs the N elements from `even` on with those from `odd` on.
template <int N> JITSPARSE_INLINE void interleave(const BFloat16* even, const BFloat16* odd, Pair* to) {
  Vec<unsigned short, N> e, o;
  __builtin_memcpy(&e, even, sizeof e);
  __builtin_memcpy(&o, odd, sizeof o);
  const Vec<Pair, N> pairs = __builtin_convertvector(e, Vec<Pair, N>) | __builtin_convertvector(o, Vec<Pair, N>) << 16;
  __builtin_memcpy(to, &pairs, sizeof pairs);
}

// As interleave, for 2 N elements, which make two vectors, in two instructions.
template <int N>
JITSPARSE_INLINE void interleave_two(const BFloat16* even, const BFloat16* odd, Pair* first, Pair* second) {
  using Halves = Vec<unsigned short, 2 * N>;
  Halves e, o, low, high;
  __builtin_memcpy(&e, even, sizeof e);
  __builtin_memcpy(&o, odd, sizeof o);
  JITSPARSE_UNROLL
  for (int i = 0; i < 2 * N; ++i) {
    low[i] = static_cast<unsigned short>(i / 2 + i % 2 * 2 * N);
    high[i] = static_cast<unsigned short>(low[i] + N);
  }
  const Halves a = __builtin_shuffle(e, o, low), b = __builtin_shuffle(e, o, high);
  __builtin_memcpy(first, &a, sizeof a);
  __builtin_memcpy(second, &b, sizeof b);
}

// Copies OUTER rows of INNER elements; those outside of `outer` x `inner` become zero.
template <int OUTER, int INNER, class T> inline void copy_edge(const T* from, int64 ld, int64 outer, int64 inner, T* to) {
  const int64 inside = inner < INNER ? inner : INNER;
  __builtin_memset(to, 0, OUTER * INNER * sizeof(T));
  for (int64 i = 0; i < OUTER && i < outer && inside > 0; ++i) __builtin_memcpy(to + i * INNER, from + i * ld, inside * sizeof(T));
}

// Calls body(k, w, at) for each square of S x S pairs of `steps` x `tiles` right tiles, or `steps` x TILES left ones: the square's place,
// relative to the first, and where it is packed to.
template <int N, int K, int S, class Body>
JITSPARSE_INLINE void for_right_squares(int64 steps, int64 tiles, Pair* to, TileStrides strides, const Body& body) {
  for (int64 tile = 0; tile < tiles; ++tile) {
    for (int64 step = 0; step < steps; ++step) {
      Pair* const at = to + tile * strides.tile + step * strides.step;
      for (int p = 0; p < K / 2; p += S) {
        for (int n = 0; n < N; n += S) body(step * K + 2 * p, tile * N + n, at + p * N + n);
      }
    }
  }
}

template <int M, int K, int TILES, int S, class Body>
JITSPARSE_INLINE void for_left_squares(int64 steps, Pair* to, TileStrides strides, const Body& body) {
  for (int t = 0; t < TILES * M; t += S) {
    for (int64 step = 0; step < steps; ++step) {
      Pair* const at = to + t / M * strides.tile + step * strides.step + t % M * (K / 2);
      for (int p = 0; p < K / 2; p += S) body(step * K + 2 * p, t, at + p);
    }
  }
}

// Packs SIZE values of w x SIZE pairs of k, from (k, w) on, inside the matrix or not. LEFT: the rows of
// the result are along w. `stride`, in pairs, is from one row to the next.
template <int SIZE, bool LEFT, bool K_CONTIGUOUS>
inline void pack_square(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 k, int64 w, Pair* to, int64 stride) {
  const BFloat16* source = from.at(k, w);
  int64 ld = from.ld;
  BFloat16 edge[2 * SIZE * SIZE];
  if (k + 2 * SIZE > from.depth || w + SIZE > from.width) {
    constexpr int64 kOuter = K_CONTIGUOUS ? SIZE : 2 * SIZE, kInner = K_CONTIGUOUS ? 2 * SIZE : SIZE;
    const int64 outer = K_CONTIGUOUS ? from.width - w : from.depth - k;
    const int64 inner = K_CONTIGUOUS ? from.depth - k : from.width - w;
    copy_edge<kOuter, kInner>(source, ld, outer, inner, edge);
    source = edge;
    ld = kInner;
  }
  Vec<Pair, SIZE> rows[SIZE];
  JITSPARSE_UNROLL
  for (int i = 0; i < SIZE; ++i) {
    if constexpr (K_CONTIGUOUS) {
      __builtin_memcpy(&rows[i], source + i * ld, sizeof rows[i]);
    } else {
      interleave<SIZE>(source + 2 * i * ld, source + (2 * i + 1) * ld, reinterpret_cast<Pair*>(&rows[i]));
    }
  }
  if constexpr (LEFT != K_CONTIGUOUS) transpose(rows);
  JITSPARSE_UNROLL
  for (int i = 0; i < SIZE; ++i) __builtin_memcpy(to + i * stride, &rows[i], sizeof rows[i]);
}

// As pack() of pack.h, in consecutive rows of PANEL pairs. `depth` is even, and a multiple of two squares if
// k is contiguous.
template <int WIDTH, int PANEL, int SQUARE, bool K_CONTIGUOUS>
inline void pack(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 depth0, int64 depth, int64 width0, Pair* panels,
                 int64 panel_stride) {
  constexpr int L = min(16, PANEL), S = min(L, SQUARE);
  const auto at = [=](int64 p, int w) { return panels + w / PANEL * panel_stride + p * PANEL + w % PANEL; };
  if constexpr (K_CONTIGUOUS) {
    for (int w = 0; w < WIDTH; w += S) {
      for (int64 p = 0; p < depth / 2; p += S) {
        pack_square<S, false>(from, depth0 + 2 * p, width0 + w, at(p, w), PANEL);
      }
    }
  } else {
    const int64 wide = from.width - width0 < WIDTH ? from.width - width0 : WIDTH;
    for (int64 p = 0; p < depth / 2; ++p) {
      const int64 deep = from.depth - (depth0 + 2 * p);  // rows from here on
      const BFloat16 *even = from.at(depth0 + 2 * p, width0), *odd = even + from.ld;
      BFloat16 edge[2][WIDTH];
      if (deep < 2 || wide < WIDTH) {
        __builtin_memset(edge, 0, sizeof edge);
        if (deep > 0) __builtin_memcpy(edge[0], even, wide * sizeof(BFloat16));
        if (deep > 1) __builtin_memcpy(edge[1], odd, wide * sizeof(BFloat16));
        even = edge[0];
        odd = edge[1];
      }
      int w = 0;
      for (; w + 2 * L <= WIDTH; w += 2 * L) interleave_two<L>(even + w, odd + w, at(p, w), at(p, w + L));
      if (w < WIDTH) interleave<L>(even + w, odd + w, at(p, w));
    }
  }
}

// Packs `steps` x `tiles` right tiles, from (k, w) on. If w is the contiguous axis, whole rows are read
// rather than squares, in which every row may begin on another page.
template <int N, int K, bool K_CONTIGUOUS>
inline void pack_right(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 k, int64 steps, int64 w, int64 tiles,
                       Pair* to, TileStrides strides) {
  constexpr int S = min(N, K / 2);
  if (!K_CONTIGUOUS && k + steps * K <= from.depth && w + tiles * N <= from.width) {
    for (int64 p = 0; p < steps * (K / 2); ++p) {
      const BFloat16 *even = from.at(k + 2 * p, w), *odd = even + from.ld;
      Pair* row = to + p / (K / 2) * strides.step + p % (K / 2) * N;
      int64 tile = 0;
      for (; tile + 2 <= tiles; tile += 2, even += 2 * N, odd += 2 * N, row += 2 * strides.tile) {
        interleave_two<N>(even, odd, row, row + strides.tile);
      }
      if (tile < tiles) interleave<N>(even, odd, row);
    }
    return;
  }
  for_right_squares<N, K, S>(steps, tiles, to, strides, [&](int64 dk, int64 dw, Pair* at) {
    pack_square<S, false>(from, k + dk, w + dw, at, N);
  });
}

// Packs `steps` x TILES left tiles, from (k, w) on.
template <int M, int K, int TILES, bool K_CONTIGUOUS>
inline void pack_left(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 k, int64 steps, int64 w, Pair* to,
                      TileStrides strides) {
  constexpr int S = min(M, K / 2);
  if (!K_CONTIGUOUS && k + steps * K <= from.depth && w + TILES * M <= from.width) {
    for (int64 step = 0; step < steps; ++step) {
      Pair rows[K / 2][TILES * M];
      for (int p = 0; p < K / 2; ++p) {
        const BFloat16 *even = from.at(k + step * K + 2 * p, w), *odd = even + from.ld;
        if constexpr (TILES % 2 == 0) {
          for (int t = 0; t < TILES * M; t += 2 * M) interleave_two<M>(even + t, odd + t, rows[p] + t, rows[p] + t + M);
        } else {
          for (int t = 0; t < TILES * M; t += M) interleave<M>(even + t, odd + t, rows[p] + t);
        }
      }
      for (int t = 0; t < TILES * M; t += S) {
        Pair* const at = to + t / M * strides.tile + step * strides.step + t % M * (K / 2);
        for (int p = 0; p < K / 2; p += S) {
          Vec<Pair, S> square[S];
          JITSPARSE_UNROLL
          for (int i = 0; i < S; ++i) __builtin_memcpy(&square[i], &rows[p + i][t], sizeof square[i]);
          transpose(square);
          JITSPARSE_UNROLL
          for (int i = 0; i < S; ++i) __builtin_memcpy(at + i * (K / 2) + p, &square[i], sizeof square[i]);
        }
      }
    }
    return;
  }
  for_left_squares<M, K, TILES, S>(steps, to, strides, [&](int64 dk, int64 dw, Pair* at) {
    pack_square<S, true>(from, k + dk, w + dw, at, K / 2);
  });
}

}  // namespace jitsparse::cpu
