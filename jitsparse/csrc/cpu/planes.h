// Operands of AMX tiles: bfloat16 as it is, or float32 as one to three bfloat16, its planes.
//
// A float is the sum of three bfloat16, each of which has the next 8 of its 24 bits: x = x0 + x1 + x2. Of the nine products of planes in
// x y, six are summed up; the other three are at most 2^-23 of |x y| together, far less in the mean. Tiles sum up 32 products at a time
// before they are added to a sum in float32, so that sums of more than a few dozen products are closer to the exact ones than those of
// multiply-adds one after the other. Where less precision is allowed, two planes, in three products, err by less than 2^-15 of |x y|, and
// one plane, in a single product, by less than 2^-7, as bfloat16 does.
//
// AMX takes subnormal numbers for zero, planes and sums alike. So elements are multiplied by 2^28 first and sums by 2^-56 last, which
// rounds only results that are subnormal themselves. Then nothing is lost of elements that are zero or 2^-130 <= |x| < 2^24, and no sum of
// up to 2^23 products overflows. Products of other operands are computed without tiles, see split.h.
//
// Source: G. Henry, P. T. P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", 2019 (arXiv:1904.06376).
#pragma once

#include "cpu/pairs.h"
#include "cpu/tiles.h"

namespace jitsparse::cpu {

constexpr int kRowsAhead = 4;  // that are prefetched while rows are divided into planes: 0.8 of the time

// A product of planes of two operands.
struct Term {
  int left, right;
};

// The products that are summed up of operands with PLANES planes, in an order in which one of the planes is that of the term before.
template <int PLANES> struct Terms;
template <> struct Terms<1> {
  static constexpr Term kTerms[] = {{0, 0}};
};
template <> struct Terms<2> {
  static constexpr Term kTerms[] = {{0, 1}, {0, 0}, {1, 0}};
};
template <> struct Terms<3> {
  static constexpr Term kTerms[] = {{0, 2}, {0, 1}, {0, 0}, {1, 0}, {1, 1}, {2, 0}};
};
template <int PLANES> constexpr int kTermCount = sizeof Terms<PLANES>::kTerms / sizeof(Term);

// The rate of multiply-adds on tiles, relative to vectors.
template <int PLANES> constexpr double kTileRate = kAmxRate / kTermCount<PLANES>;

// Planes<T, PLANES> says for elements of T with PLANES planes
//   kDivided               whether elements are converted to planes, and not their own plane
//   Range                  whether the elements that were packed could be divided into planes
//   unscale                makes sums of `count` elements, whole vectors, from what tiles yield
//   pack_right, pack_left, pack_square   as in pairs.h; the planes of a tile follow each other, and elements are added to a Range
template <class T, int PLANES> struct Planes;

template <> struct Planes<BFloat16, 1> {
  static constexpr bool kDivided = false;

  struct Range {
    static constexpr bool outside() { return false; }
  };
  static void unscale(float* /*sums*/, int64 /*count*/) {}

  template <int N, int K, bool K_CONTIGUOUS>
  static void pack_right(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 k, int64 steps, int64 w, int64 tiles, Pair* to,
                         TileStrides strides, Range&) {
    cpu::pack_right<N, K>(from, k, steps, w, tiles, to, strides);
  }

  template <int M, int K, int TILES, bool K_CONTIGUOUS>
  static void pack_left(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 k, int64 steps, int64 w, Pair* to,
                        TileStrides strides, Range&) {
    cpu::pack_left<M, K, TILES>(from, k, steps, w, to, strides);
  }

  template <int SIZE, bool LEFT, bool K_CONTIGUOUS>
  static void pack_square(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 k, int64 w, Pair* to, int64 stride, int64 /*plane*/,
                          Range&) {
    cpu::pack_square<SIZE, LEFT>(from, k, w, to, stride);
  }

  template <int K> static void pack_line(const BFloat16* from, Pair* to, int64 /*plane*/, Range&) {
    __builtin_memcpy(to, from, K * sizeof(BFloat16));
  }
};

constexpr int64 kMostProducts = 1 << 23;  // of a sum of float32
constexpr float kPlanesScale = 0x1p28f;

// Whether floats can be divided into planes, once they are multiplied by kPlanesScale.
class FloatRange {
 public:
  template <int N> JITSPARSE_INLINE void see(Vec<float, N> x) {
    Vec<unsigned, 16> bits = {};
    const Vec<unsigned, N> magnitude = (Vec<unsigned, N>)x & 0x7fffffff;
    __builtin_memcpy(&bits, &magnitude, sizeof magnitude);
    // Zero wraps around to the largest number.
    const Vec<unsigned, 16> less_one = bits - 1;
    most_ = bits > most_ ? bits : most_;
    least_ = less_one < least_ ? less_one : least_;
  }

  bool outside() const {
    constexpr unsigned kLeast = (127 - 102) << 23, kEnd = (127 + 24 + 28) << 23;  // 2^-102, 2^52
    bool outside = false;
    for (int i = 0; i < 16; ++i) outside |= most_[i] >= kEnd || least_[i] < kLeast - 1;
    return outside;
  }

 private:
  Vec<unsigned, 16> most_ = {}, least_ = ~Vec<unsigned, 16>{};
};

template <int PLANES> struct Planes<float, PLANES> {
  using Range = FloatRange;
  static constexpr bool kDivided = true;

  static void unscale(float* sums, int64 count) {
    constexpr int L = kLanes<float>;
    for (int64 i = 0; i < count; i += L) store<L>(sums + i, load<L>(sums + i) * (1 / (kPlanesScale * kPlanesScale)));
  }

  // The planes of N elements at even and at odd places along k, as pairs.
  template <int N>
  static JITSPARSE_INLINE void split_pairs(Vec<float, N> even, Vec<float, N> odd, Vec<Pair, N> (&planes)[PLANES], Range& range) {
    even *= kPlanesScale;
    odd *= kPlanesScale;
    range.see<N>(even);
    range.see<N>(odd);
    JITSPARSE_UNROLL
    for (int i = 0; i < PLANES; ++i) {
      const Vec<Pair, N> low = next_plane<N>(even, i), high = next_plane<N>(odd, i);
      planes[i] = low >> 16 | high;
    }
  }

  // The planes of 2 N elements that follow each other along k.
  template <int N>
  static JITSPARSE_INLINE void split_line(Vec<float, N> first, Vec<float, N> second, Vec<Pair, N> (&planes)[PLANES], Range& range) {
    using Halves = Vec<unsigned short, 2 * N>;
    first *= kPlanesScale;
    second *= kPlanesScale;
    range.see<N>(first);
    range.see<N>(second);
    Halves upper;
    JITSPARSE_UNROLL
    for (int i = 0; i < 2 * N; ++i) upper[i] = static_cast<unsigned short>(2 * i + 1);
    JITSPARSE_UNROLL
    for (int i = 0; i < PLANES; ++i) {
      const Halves a = (Halves)next_plane<N>(first, i), b = (Halves)next_plane<N>(second, i);
      planes[i] = (Vec<Pair, N>)__builtin_shuffle(a, b, upper);
    }
  }

  // Packs K elements from `from` on as a line of a left tile.
  template <int K> static JITSPARSE_INLINE void pack_line(const float* from, Pair* to, int64 plane, Range& range) {
    constexpr int N = K / 2;
    Vec<Pair, N> planes[PLANES];
    split_line<N>(load<N>(from), load<N>(from + N), planes, range);
    JITSPARSE_UNROLL
    for (int i = 0; i < PLANES; ++i) __builtin_memcpy(to + i * plane, &planes[i], sizeof planes[i]);
  }

  // As pack_square of pairs.h.
  template <int SIZE, bool LEFT, bool K_CONTIGUOUS>
  static void pack_square(const DenseView<float, K_CONTIGUOUS>& from, int64 k, int64 w, Pair* to, int64 stride, int64 plane,
                          Range& range) {
    const float* source = from.at(k, w);
    int64 ld = from.ld;
    float edge[2 * SIZE * SIZE];
    if (k + 2 * SIZE > from.depth || w + SIZE > from.width) {
      constexpr int64 kInner = K_CONTIGUOUS ? 2 * SIZE : SIZE;
      const int64 outer = K_CONTIGUOUS ? from.width - w : from.depth - k;
      const int64 inner = K_CONTIGUOUS ? from.depth - k : from.width - w;
      copy_edge<2 * SIZE * SIZE / kInner, kInner>(source, ld, outer, inner, edge);
      source = edge;
      ld = kInner;
    }
    Vec<Pair, SIZE> rows[PLANES][SIZE];
    for (int i = 0; i < SIZE; ++i) {
      Vec<Pair, SIZE> planes[PLANES];
      if constexpr (K_CONTIGUOUS) {
        split_line<SIZE>(load<SIZE>(source + i * ld), load<SIZE>(source + i * ld + SIZE), planes, range);
      } else {
        split_pairs<SIZE>(load<SIZE>(source + 2 * i * ld), load<SIZE>(source + (2 * i + 1) * ld), planes, range);
      }
      JITSPARSE_UNROLL
      for (int p = 0; p < PLANES; ++p) {
        if constexpr (LEFT == K_CONTIGUOUS) {
          __builtin_memcpy(to + p * plane + i * stride, &planes[p], sizeof planes[p]);
        } else {
          rows[p][i] = planes[p];
        }
      }
    }
    if constexpr (LEFT != K_CONTIGUOUS) {
      for (auto& of_plane : rows) {
        transpose(of_plane);
        JITSPARSE_UNROLL
        for (int i = 0; i < SIZE; ++i) __builtin_memcpy(to + i * stride, &of_plane[i], sizeof of_plane[i]);
        to += plane;
      }
    }
  }

  template <int N, int K, bool K_CONTIGUOUS>
  static void pack_right(const DenseView<float, K_CONTIGUOUS>& from, int64 k, int64 steps, int64 w, int64 tiles, Pair* to,
                         TileStrides strides, Range& range) {
    constexpr int S = min(N, K / 2), kPlane = K / 2 * N;
    if (!K_CONTIGUOUS && k + steps * K <= from.depth && w + tiles * N <= from.width) {
      Range seen = range;
      for (int64 p = 0; p < steps * (K / 2); ++p) {
        const float *even = from.at(k + 2 * p, w), *odd = even + from.ld;
        Pair* row = to + p / (K / 2) * strides.step + p % (K / 2) * N;
        for (int64 tile = 0; tile < tiles; ++tile, even += N, odd += N, row += strides.tile) {
          Vec<Pair, N> planes[PLANES];
          __builtin_prefetch(even + kRowsAhead * from.ld);
          __builtin_prefetch(odd + kRowsAhead * from.ld);
          split_pairs<N>(load<N>(even), load<N>(odd), planes, seen);
          JITSPARSE_UNROLL
          for (int i = 0; i < PLANES; ++i) __builtin_memcpy(row + i * kPlane, &planes[i], sizeof planes[i]);
        }
      }
      range = seen;
      return;
    }
    for_right_squares<N, K, S>(steps, tiles, to, strides, [&](int64 dk, int64 dw, Pair* at) {
      pack_square<S, false>(from, k + dk, w + dw, at, N, kPlane, range);
    });
  }

  template <int M, int K, int TILES, bool K_CONTIGUOUS>
  static void pack_left(const DenseView<float, K_CONTIGUOUS>& from, int64 k, int64 steps, int64 w, Pair* to, TileStrides strides,
                        Range& range) {
    constexpr int S = min(M, K / 2), kPlane = K / 2 * M;
    if (K_CONTIGUOUS && k + steps * K <= from.depth && w + TILES * M <= from.width) {
      Range seen = range;
      for (int t = 0; t < TILES * M; ++t) {
        const float* const line = from.at(k, w + t);
        Pair* const at = to + t / M * strides.tile + t % M * (K / 2);
        for (int64 step = 0; step < steps; ++step) {
          __builtin_prefetch(line + kRowsAhead * from.ld + step * K);
          __builtin_prefetch(line + kRowsAhead * from.ld + step * K + kLine / sizeof(float));
          pack_line<K>(line + step * K, at + step * strides.step, kPlane, seen);
        }
      }
      range = seen;
      return;
    }
    for_left_squares<M, K, TILES, S>(steps, to, strides, [&](int64 dk, int64 dw, Pair* at) {
      pack_square<S, true>(from, k + dk, w + dw, at, K / 2, kPlane, range);
    });
  }

 private:
  // The next plane of some elements, in the upper halves, which is taken from them. The first two are rounded, so that what is left has
  // either sign; the third is what they leave, at most 8 bits.
  template <int N> static JITSPARSE_INLINE Vec<Pair, N> next_plane(Vec<float, N>& x, int plane) {
    const Vec<Pair, N> bits = (Vec<Pair, N>)x, rounded = plane < 2 ? bits + 0x8000 : bits;
    const Vec<Pair, N> upper = rounded & 0xffff0000;
    x -= (Vec<float, N>)upper;
    return upper;
  }
};

// Calls body(from, to, add) for each chunk of `chunk` pieces, from begin to end, and at least once; `add` is false for the first.
template <class Body> JITSPARSE_INLINE void for_chunks(int64 begin, int64 end, int64 chunk, const Body& body) {
  int64 from = begin;
  do {
    const int64 to = end - from > chunk ? from + chunk : end;
    body(from, to, from > begin);
    from = to;
  } while (from < end);
}

// Sums of ROWS x COLS tiles of M x 16, whose rows are `ld` apart: into their tile registers (zeros unless `add`), and back.
template <class Registers, int ROWS, int COLS, int M> JITSPARSE_INLINE void load_sums(const float* sums, int64 ld, bool add) {
  for_constants<ROWS * COLS>([&](auto t) {
    constexpr int kSum = Registers::sum(t / COLS, t % COLS);
    if (add) {
      tile_load<kSum>(sums + t / COLS * M * ld + t % COLS * 16, ld * sizeof(float));
    } else {
      tile_zero<kSum>();
    }
  });
}

template <class Registers, int ROWS, int COLS, int M> JITSPARSE_INLINE void store_sums(float* sums, int64 ld) {
  for_constants<ROWS * COLS>([&](auto t) {
    tile_store<Registers::sum(t / COLS, t % COLS)>(sums + t / COLS * M * ld + t % COLS * 16, ld * sizeof(float));
  });
}

// Prefetches one of SHARES shares of LINES lines.
template <int SHARE, int SHARES, int LINES, int LEVEL> JITSPARSE_INLINE void prefetch_share(const void* from) {
  constexpr int kFirst = SHARE * LINES / SHARES, kEnd = (SHARE + 1) * LINES / SHARES;
  JITSPARSE_UNROLL
  for (int line = kFirst; line < kEnd; ++line) __builtin_prefetch(static_cast<const char*>(from) + line * kLine, 0, LEVEL);
}

// Adds to ROWS x COLS sums in tile registers what one step along k yields. load_left(i, plane) and load_right(j, plane) load the
// registers that Registers gives these tiles, and also(i, count) is called after the i-th of `count` instructions that multiply; all are
// passed constants.
template <int PLANES, class Registers, int ROWS, int COLS, class LoadLeft, class LoadRight, class Also>
JITSPARSE_INLINE void multiply_step(const LoadLeft& load_left, const LoadRight& load_right, const Also& also) {
  for_constants<kTermCount<PLANES>>([&](auto t) {
    constexpr Term term = Terms<PLANES>::kTerms[t], before = Terms<PLANES>::kTerms[t ? t - 1 : 0];
    if constexpr (t == 0 || term.left != before.left) {
      for_constants<ROWS>([&](auto i) { load_left(i, Constant<term.left>{}); });
    }
    for_constants<COLS>([&](auto j) {
      if constexpr (t == 0 || term.right != before.right || COLS > Registers::kRights) load_right(j, Constant<term.right>{});
      for_constants<ROWS>([&](auto i) {
        tile_multiply_bf16<Registers::sum(i, j), Registers::left(i), Registers::right(j)>();
        also(Constant<(t * COLS + j) * ROWS + i>{}, Constant<kTermCount<PLANES> * COLS * ROWS>{});
      });
    });
  });
}

}  // namespace jitsparse::cpu
