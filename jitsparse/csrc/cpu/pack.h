// Panels of a dense operand, as the multiply loops read them: converted to the accumulator type, in
// consecutive rows of PANEL elements. Elements outside the matrix are zero.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

// A dense matrix of `depth` x `width` elements. Products sum over depth, which is the contiguous axis if
// K_CONTIGUOUS. `ld` is the stride of the other axis.
template <class T, bool K_CONTIGUOUS> struct DenseView {
  const T* data;
  int64 depth, width, ld;
  const T* at(int64 d, int64 w) const { return data + (K_CONTIGUOUS ? w * ld + d : d * ld + w); }
};

// Packs `depth` rows and WIDTH columns from (depth0, width0) on, as WIDTH / PANEL panels that are
// panel_stride apart. A source with contiguous k is transposed in squares of at most SQUARE, of whose
// size `depth` is a multiple.
template <int WIDTH, int PANEL, int SQUARE, class T, bool K_CONTIGUOUS>
inline void pack(const DenseView<T, K_CONTIGUOUS>& from, int64 depth0, int64 depth, int64 width0, Acc<T>* panels,
                 int64 panel_stride) {
  using A = Acc<T>;
  constexpr int L = min(kLanes<A>, PANEL);
  const int64 deep = from.depth - depth0 < depth ? from.depth - depth0 : depth;
  const int64 wide = from.width - width0 < WIDTH ? from.width - width0 : WIDTH;
  const auto at = [=](int64 d, int w) { return panels + w / PANEL * panel_stride + d * PANEL + w % PANEL; };
  if constexpr (!K_CONTIGUOUS) {
    for (int64 d = 0; d < deep; ++d) {
      const T* row = from.at(depth0 + d, width0);
      if (wide == WIDTH) {
        JITSPARSE_UNROLL
        for (int w = 0; w < WIDTH; w += L) store<L, A>(at(d, w), load<L>(row + w));
      } else {
        for (int w = 0; w < WIDTH; w += L) store<L, A>(at(d, w), load_first<L>(row + w, wide - w));
      }
    }
    for (int64 d = deep; d < depth; ++d) {
      for (int w = 0; w < WIDTH; w += L) store<L, A>(at(d, w), Vec<A, L>{});
    }
  } else {
    constexpr int S = min(L, SQUARE);
    for (int w = 0; w < WIDTH; w += S) {
      for (int64 d = 0; d < depth; d += S) {
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
        transpose(square);
        JITSPARSE_UNROLL
        for (int i = 0; i < S; ++i) store<S, A>(at(d + i, w), square[i]);
      }
    }
  }
}

}  // namespace jitsparse::cpu
