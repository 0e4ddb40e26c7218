// Panels of a dense operand, as the multiply loops read them: DEPTH rows of WIDTH elements, converted
// to the type that products are summed in, one after the other. Outside the matrix they hold zeros.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

// A dense matrix of `depth` x `width` elements in memory. ALONG_DEPTH says which of its two axes is
// the contiguous one; `ld` is the stride of the other.
template <class T, bool ALONG_DEPTH> struct DenseView {
  const T* data;
  int64 depth, width, ld;
  const T* at(int64 d, int64 w) const { return data + (ALONG_DEPTH ? w * ld + d : d * ld + w); }
};

// Packs rows depth0 .. depth0 + DEPTH and columns width0 .. width0 + WIDTH.
template <int DEPTH, int WIDTH, class T, bool ALONG_DEPTH>
inline void pack_panel(const DenseView<T, ALONG_DEPTH>& from, int64 depth0, int64 width0, Acc<T>* panel) {
  using A = Acc<T>;
  constexpr int L = min(kLanes<A>, WIDTH);
  const int64 deep = from.depth - depth0 < DEPTH ? from.depth - depth0 : DEPTH;
  const int64 wide = from.width - width0 < WIDTH ? from.width - width0 : WIDTH;
  if constexpr (!ALONG_DEPTH) {
    for (int64 d = 0; d < deep; ++d) {
      const T* row = from.at(depth0 + d, width0);
      A* to = panel + d * WIDTH;
      if (wide == WIDTH) {
        JITSPARSE_UNROLL
        for (int w = 0; w < WIDTH; w += L) store<L, A>(to + w, load<L>(row + w));
      } else {
        for (int w = 0; w < WIDTH; w += L) store<L, A>(to + w, load_first<L>(row + w, wide - w));
      }
    }
    for (int64 e = deep * WIDTH; e < DEPTH * WIDTH; ++e) panel[e] = 0;
  } else {
    constexpr int S = min(L, DEPTH);  // transposed in squares of S x S
    for (int w = 0; w < WIDTH; w += S) {
      for (int d = 0; d < DEPTH; d += S) {
        const T* source = from.at(depth0 + d, width0 + w);
        int64 stride = from.ld;
        T edge[S * S];
        if (w + S > wide || d + S > deep) {
          const int64 inside = deep - d < S ? deep - d : S;
          for (T& e : edge) e = T{};
          for (int64 i = 0; i < S && w + i < wide; ++i) {
            for (int64 j = 0; j < inside; ++j) edge[i * S + j] = source[i * stride + j];
          }
          source = edge;
          stride = S;
        }
        Vec<A, S> square[S];
        JITSPARSE_UNROLL
        for (int i = 0; i < S; ++i) square[i] = load<S>(source + i * stride);
        transpose<S / 2, A, S>(square);
        JITSPARSE_UNROLL
        for (int i = 0; i < S; ++i) store<S, A>(panel + (d + i) * WIDTH + w, square[i]);
      }
    }
  }
}

}  // namespace jitsparse::cpu
