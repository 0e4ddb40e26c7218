// Packing for AMX. Its tiles take 16-bit elements in pairs of neighbours along k, so that a pair is
// one 32-bit element to everything here.
//
//   left tile    row: one w (a row of the left matrix),      along it: pairs of k
//   right tile   row: one pair of k,                         along it: w (a column of the right matrix)
#pragma once

#include "cpu/pack.h"

namespace jitsparse::cpu {

using Pair = unsigned;

// Packs SIZE w's times SIZE pairs of k, from (k, w) on; what lies outside the matrix becomes zero.
// LEFT: rows of the result are w's. `stride`, in pairs, is from one row to the next.
template <int SIZE, bool LEFT, bool K_CONTIGUOUS>
inline void pack_pairs(const DenseView<BFloat16, K_CONTIGUOUS>& from, int64 k, int64 w, Pair* to, int64 stride) {
  const BFloat16* source = from.at(k, w);
  int64 ld = from.ld;
  BFloat16 edge[2 * SIZE * SIZE];
  if (k + 2 * SIZE > from.depth || w + SIZE > from.width) {
    constexpr int64 kOuter = K_CONTIGUOUS ? SIZE : 2 * SIZE, kInner = K_CONTIGUOUS ? 2 * SIZE : SIZE;
    const int64 outer = K_CONTIGUOUS ? from.width - w : from.depth - k;
    const int64 inner = K_CONTIGUOUS ? from.depth - k : from.width - w;
    for (int64 i = 0; i < kOuter; ++i) {
      for (int64 j = 0; j < kInner; ++j) {
        edge[i * kInner + j] = i < outer && j < inner ? source[i * ld + j] : BFloat16{};
      }
    }
    source = edge;
    ld = kInner;
  }
  Vec<Pair, SIZE> rows[SIZE];
  JITSPARSE_UNROLL
  for (int i = 0; i < SIZE; ++i) {
    if constexpr (K_CONTIGUOUS) {
      __builtin_memcpy(&rows[i], source + i * ld, sizeof rows[i]);
    } else {
      Vec<unsigned short, SIZE> even, odd;
      __builtin_memcpy(&even, source + 2 * i * ld, sizeof even);
      __builtin_memcpy(&odd, source + (2 * i + 1) * ld, sizeof odd);
      rows[i] = __builtin_convertvector(even, Vec<Pair, SIZE>) | __builtin_convertvector(odd, Vec<Pair, SIZE>) << 16;
    }
  }
  if constexpr (LEFT != K_CONTIGUOUS) transpose<SIZE / 2, Pair, SIZE>(rows);
  JITSPARSE_UNROLL
  for (int i = 0; i < SIZE; ++i) __builtin_memcpy(to + i * stride, &rows[i], sizeof rows[i]);
}

}  // namespace jitsparse::cpu
