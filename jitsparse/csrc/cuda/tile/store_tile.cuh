// From accumulators to global memory: through shared memory, so that global stores are 16 bytes wide and
// neighbouring lanes write neighbouring addresses.
#pragma once

#include "shared_tile.cuh"

namespace jitsparse {

// A warp's M x N tile of the output, held as mma accumulators c[M / 16][N / 8][4], staged in `shared`. TRANSPOSED stages it as N rows of M
// elements.
template <typename Element, int M, int N, bool TRANSPOSED>
struct StagedTile {
  using Storage = typename Element::Storage;
  using Accumulator = typename Element::Accumulator;
  static constexpr int kRows = TRANSPOSED ? N : M;
  static constexpr int kColumns = TRANSPOSED ? M : N;
  static constexpr int kPerChunk = kChunkBytes / int(sizeof(Storage));
  // One chunk of padding spreads the eight rows that a warp writes at once over eight bank groups.
  static constexpr int kPitch = kColumns + kPerChunk;
  static constexpr int kBytes = kRows * kPitch * int(sizeof(Storage));

  static __device__ __forceinline__ void write(Storage* shared, const Accumulator (&c)[M / 16][N / 8][4], int lane) {
    const int row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Accumulator x0 = c[i][j][2 * half], x1 = c[i][j][2 * half + 1];
          const int m = i * 16 + half * 8 + row, n = j * 8 + column;
          if constexpr (sizeof(Storage) >= 4) {
            shared[TRANSPOSED ? n * kPitch + m : m * kPitch + n] = x0;
            shared[TRANSPOSED ? (n + 1) * kPitch + m : m * kPitch + n + 1] = x1;
          } else if constexpr (!TRANSPOSED) {
            *reinterpret_cast<unsigned*>(shared + m * kPitch + n) = Element::pack(x0, x1);
          } else {
            // Lanes l and l ^ 4 hold the same columns of two neighbouring rows. Each gives one value away,
            // and then holds two rows of one column: a 4-byte store.
            const bool odd = row % 2;
            const float given = __shfl_xor_sync(~0u, odd ? x0 : x1, 4);
            const unsigned pair = odd ? Element::pack(given, x1) : Element::pack(x0, given);
            *reinterpret_cast<unsigned*>(shared + (n + odd) * kPitch + m - odd) = pair;
          }
        }
      }
    }
  }

  // Copies the staged tile to out[row][column], leading dimension `ld`, inside rows x columns.
  static __device__ __forceinline__ void copy_out(const Storage* shared, Storage* out, int64 ld, int64 rows,
                                                  int64 columns, int lane) {
    constexpr int kRowChunks = kColumns / kPerChunk;
#pragma unroll 4
    for (int chunk = lane; chunk < kRows * kRowChunks; chunk += 32) {
      const int row = chunk / kRowChunks, column = chunk % kRowChunks * kPerChunk;
      if (row >= rows) continue;
      const Storage* from = shared + row * kPitch + column;
      Storage* to = out + row * ld + column;
      if (column + kPerChunk <= columns) {
        *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
      } else {
        for (int e = 0; column + e < columns; ++e) to[e] = from[e];
      }
    }
  }
};

}  // namespace jitsparse
