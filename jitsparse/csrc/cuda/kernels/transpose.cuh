// Transposed copies in the workspace, for kernels that need an operand in the other major order: of a dense operand, or of each stored
// block.
//
// A thread transposes a square of 16 bytes per side in its registers. A warp reads rows of 128 bytes and writes rows of 64, both whole
// sectors of memory, so shared memory would gain nothing.
#pragma once

#include "../../abi.h"
#include "../ptx/load.cuh"
#include "../ptx/store.cuh"

namespace jitsparse {

// Rows of a transposed operand begin at multiples of 16 bytes.
template <typename Storage>
JITSPARSE_HD int64 transposed_ld(int64 k) {
  constexpr int64 kSide = 16 / sizeof(Storage);
  return div_up(k, kSide) * kSide;
}

template <typename Storage>
struct Transpose {
  static constexpr int kThreads = 256, kMinCtas = 1, kSharedBytes = 0;
  static constexpr int kSide = 16 / sizeof(Storage);                // of a thread's square
  static constexpr int kAcross = 8 * kSide, kDeep = 32 * kSide;     // of a CTA's piece: eight warps, stacked
  static_assert(sizeof(Storage) == 2 || sizeof(Storage) == 4, "16-bit elements, and float");

  struct Params {
    const Storage* from;  // batch x k x width, where width is a multiple of kSide (k and n swapped in transpose_dense_across)
    Storage* to;          // batch x width x transposed_ld(k), zero beyond k
    int64 width, k, ld, batch_stride;
    int64 batch;
  };

  static __device__ __forceinline__ void run(const Params& params) {
    const unsigned across = unsigned(div_up(params.width, kAcross)), deep = unsigned(div_up(params.k, kDeep));
    const unsigned strip = blockIdx.x / across, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64 batch = strip / deep;
    const int64 column = int64(blockIdx.x % across) * kAcross + lane % 8 * kSide;
    const int64 k = int64(strip % deep) * kDeep + (warp * 4 + lane / 8) * kSide, ld = transposed_ld<Storage>(params.k);
    if (column >= params.width || k >= ld) return;
    const Storage* from = params.from + batch * params.batch_stride + k * params.ld + column;
    unsigned rows[kSide][4];
#pragma unroll
    for (int i = 0; i < kSide; ++i) ptx::load_once(rows[i], from + i * params.ld, k + i < params.k);
    Storage* to = params.to + (batch * params.width + column) * ld + k;
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      unsigned transposed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kSide == 8) {
          const unsigned even = rows[2 * i][j / 2], odd = rows[2 * i + 1][j / 2];
          transposed[i] = j % 2 == 0 ? (even & 0xffff) | odd << 16 : even >> 16 | (odd & 0xffff0000);
        } else {
          transposed[i] = rows[i][j];
        }
      }
      ptx::store(to + j * ld, transposed);
    }
  }

  static int64 grid(const Params& params) {
    return div_up(params.width, kAcross) * div_up(params.k, kDeep) * params.batch;
  }
};

}  // namespace jitsparse
