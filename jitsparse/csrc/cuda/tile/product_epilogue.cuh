// The epilogue of a product: bias, activation, and the store of a warp's accumulators.
#pragma once

#include "../../abi.h"
#include "activation.cuh"
#include "store_tile.cuh"

namespace jitsparse {

// `c` holds M x N of out[m][n] from (first_m, first_n), or with C_TRANSPOSED N x M of its transposed. TRANSPOSED: the output is stored as
// out[n][m], and the bias, one element per stored column, runs along m. `staged` is shared memory of this warp alone.
template <typename Element, bool TRANSPOSED, int M, int N, bool C_TRANSPOSED>
__device__ __forceinline__ void store_product(const SpmmArgs& args,
                                              typename Element::Accumulator (&c)[(C_TRANSPOSED ? N : M) / 16][(C_TRANSPOSED ? M : N) / 8][4],
                                              int64 m_extent, int64 batch, int64 first_m, int64 first_n, unsigned char* staged, int lane) {
  using Storage = typename Element::Storage;
  using Accumulator = typename Element::Accumulator;
  using Staged = StagedTile<Element, C_TRANSPOSED ? N : M, C_TRANSPOSED ? M : N, TRANSPOSED != C_TRANSPOSED>;
  if (TRANSPOSED && args.bias != nullptr) {
    const Storage* bias = static_cast<const Storage*>(args.bias);
    const auto of = [&](int64 m) { return m < m_extent ? Element::load(bias[m]) : Accumulator(0); };
#pragma unroll
    for (int span = 0; span < M / 8; ++span) {
      if constexpr (C_TRANSPOSED) {
        const int64 m = first_m + span * 8 + lane % 4 * 2;
        const Accumulator b[2] = {of(m), of(m + 1)};
#pragma unroll
        for (int i = 0; i < N / 16; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) c[i][span][e] += b[e % 2];
        }
      } else {
        const int half = span % 2;
        const Accumulator b = of(first_m + span * 8 + lane / 4);
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
          c[span / 2][j][2 * half] += b;
          c[span / 2][j][2 * half + 1] += b;
        }
      }
    }
  }
  constexpr bool kDoubles = sizeof(Storage) == 8;
  if constexpr (!kDoubles) apply_activation<Element>(reinterpret_cast<Accumulator(&)[M / 8 * (N / 16) * 4]>(c), args.activation);
  Storage* tile = reinterpret_cast<Storage*>(staged);
  Staged::write(tile, c, lane);
  __syncwarp();
  // Doubles get theirs here: gelu and silu are calls, around which the registers of a warp tile would spill.
  if constexpr (kDoubles) {
    if (args.activation != kIdentity) {
#pragma unroll 1
      for (int i = lane; i < M * N; i += 32) {
        apply_activation<Element>(reinterpret_cast<double(&)[1]>(tile[i / Staged::kColumns * Staged::kPitch + i % Staged::kColumns]),
                                  args.activation);
      }
      __syncwarp();
    }
  }
  const int64 row = TRANSPOSED ? first_n : first_m, column = TRANSPOSED ? first_m : first_n;
  Storage* out = static_cast<Storage*>(args.out) + batch * args.out_batch_stride + row * args.out_ld + column;
  Staged::copy_out(tile, out, args.out_ld, (TRANSPOSED ? args.n : m_extent) - row, (TRANSPOSED ? m_extent : args.n) - column,
                   lane);
}

}  // namespace jitsparse
