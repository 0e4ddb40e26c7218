// A TILE_M x TILE_N product accumulated by a CTA on the CUDA cores, DEPTH of the inner axis at a time.
#pragma once

namespace jitsparse {

template <typename Accumulator, int TILE_M, int TILE_N, int DEPTH>
struct SimtTile {
  // Each thread owns rows i = thread_m + kThreadsM * r and columns likewise: neighbouring threads read
  // neighbouring shared words and write neighbouring outputs.
  static constexpr int kThreadsM = 8, kThreadsN = TILE_N < 16 ? TILE_N : 16;
  static constexpr int kThreads = kThreadsM * kThreadsN;
  static constexpr int kRows = TILE_M / kThreadsM, kColumns = TILE_N / kThreadsN;
  static_assert(TILE_M % kThreadsM == 0 && TILE_N % kThreadsN == 0, "threads divide the tile");

  // Padded so that a copy running down the depth does not hit one bank.
  struct Shared {
    Accumulator left[DEPTH][TILE_M + 1];
    Accumulator right[DEPTH][TILE_N + 1];
  };

  Accumulator c[kRows][kColumns] = {};

  // Adds left (TILE_M x DEPTH) times right (DEPTH x TILE_N), given by element: left_at(i, p), right_at(p, j).
  // *_K_CONTIGUOUS says along which axis neighbouring threads should read.
  template <bool LEFT_K_CONTIGUOUS, bool RIGHT_K_CONTIGUOUS, typename Left, typename Right>
  __device__ __forceinline__ void multiply(Shared& shared, const Left& left_at, const Right& right_at) {
    for (int at = threadIdx.x; at < TILE_M * DEPTH; at += kThreads) {
      const int i = LEFT_K_CONTIGUOUS ? at / DEPTH : at % TILE_M, p = LEFT_K_CONTIGUOUS ? at % DEPTH : at / TILE_M;
      shared.left[p][i] = left_at(i, p);
    }
    for (int at = threadIdx.x; at < TILE_N * DEPTH; at += kThreads) {
      const int j = RIGHT_K_CONTIGUOUS ? at / DEPTH : at % TILE_N, p = RIGHT_K_CONTIGUOUS ? at % DEPTH : at / TILE_N;
      shared.right[p][j] = right_at(p, j);
    }
    __syncthreads();
    const int thread_m = threadIdx.x / kThreadsN, thread_n = threadIdx.x % kThreadsN;
#pragma unroll 4  // all sixteen would take the compiler four times as long
    for (int p = 0; p < DEPTH; ++p) {
      Accumulator a[kRows], b[kColumns];
#pragma unroll
      for (int r = 0; r < kRows; ++r) a[r] = shared.left[p][thread_m + r * kThreadsM];
#pragma unroll
      for (int s = 0; s < kColumns; ++s) b[s] = shared.right[p][thread_n + s * kThreadsN];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int s = 0; s < kColumns; ++s) c[r][s] += a[r] * b[s];
      }
    }
    __syncthreads();
  }

  // All elements this thread owns.
  __device__ __forceinline__ Accumulator (&values())[kRows * kColumns] {
    return reinterpret_cast<Accumulator(&)[kRows * kColumns]>(c);
  }

  // Calls use(i, j, value) for each of them.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) {
    const int thread_m = threadIdx.x / kThreadsN, thread_n = threadIdx.x % kThreadsN;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int s = 0; s < kColumns; ++s) use(thread_m + r * kThreadsM, thread_n + s * kThreadsN, c[r][s]);
    }
  }
};

}  // namespace jitsparse
