// Swizzled tiles in shared memory, the copies that fill them and the mma fragments read from them.
#pragma once

#include "../../abi.h"
#include "../ptx/cp_async.cuh"
#include "../ptx/ldmatrix.cuh"
#include "element.cuh"

namespace jitsparse {

constexpr int kChunkBytes = 16;

// A ROWS x COLUMNS tile, rows contiguous, 16-byte chunks permuted within a row so that the eight addresses
// of one ldmatrix matrix (the same chunk of eight consecutive rows) fall into eight different bank groups.
// SCALAR tiles are read by 4-byte loads of four consecutive rows instead (the tf32 operands that ldmatrix
// cannot transpose), which asks for a different permutation.
template <typename Element, int ROWS, int COLUMNS, bool SCALAR = false>
struct SharedTile {
  using Storage = typename Element::Storage;
  static constexpr int kRows = ROWS;
  static constexpr int kColumns = COLUMNS;
  static constexpr int kPerChunk = kChunkBytes / int(sizeof(Storage));
  static constexpr int kRowChunks = COLUMNS / kPerChunk;
  static constexpr int kChunks = ROWS * kRowChunks;
  static constexpr int kBytes = kChunks * kChunkBytes;
  static_assert(COLUMNS % kPerChunk == 0 && (kRowChunks & (kRowChunks - 1)) == 0, "rows are a power of two of chunks");

  // Rows that share a 128-byte line of banks differ in no XOR; lines repeat after kRowChunks or 8 chunks.
  static constexpr int kRowsPerLine = kRowChunks >= 8 ? 1 : 8 / kRowChunks;
  static constexpr int kMask = kRowChunks >= 8 ? 7 : kRowChunks - 1;

  static __device__ __forceinline__ unsigned offset(int row, int chunk) {
    const int twist = SCALAR ? (row & 3) << 1 : row / kRowsPerLine;
    return unsigned(row * kRowChunks + (chunk ^ (twist & kMask))) * kChunkBytes;
  }
};

// A fragment of the left operand: 16 rows from m0, kMmaK deep from k0.
// K_CONTIGUOUS: the tile's rows run along k; otherwise along m.
template <typename Element, bool K_CONTIGUOUS, typename Tile>
__device__ __forceinline__ void load_left(unsigned (&a)[4], unsigned tile, int m0, int k0, int lane) {
  if constexpr (K_CONTIGUOUS) {
    ptx::ldmatrix_x4(a, tile + Tile::offset(m0 + lane % 16, k0 / Tile::kPerChunk + lane / 16));
  } else if constexpr (sizeof(typename Element::Storage) == 2) {
    ptx::ldmatrix_x4_trans(a, tile + Tile::offset(k0 + lane / 16 * 8 + lane % 8, m0 / Tile::kPerChunk + lane / 8 % 2));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = m0 + lane / 4 + i % 2 * 8, k = k0 + lane % 4 + i / 2 * 4;
      a[i] = ptx::load_shared_b32(tile + Tile::offset(k, m / 4) + m % 4 * 4);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = Element::operand(a[i]);
}

// Two fragments of the right operand: 16 columns from n0, kMmaK deep from k0; b[0], b[1] are the first eight.
template <typename Element, bool K_CONTIGUOUS, typename Tile>
__device__ __forceinline__ void load_right(unsigned (&b)[4], unsigned tile, int n0, int k0, int lane) {
  if constexpr (K_CONTIGUOUS) {
    ptx::ldmatrix_x4(b, tile + Tile::offset(n0 + lane / 16 * 8 + lane % 8, k0 / Tile::kPerChunk + lane / 8 % 2));
  } else if constexpr (sizeof(typename Element::Storage) == 2) {
    ptx::ldmatrix_x4_trans(b, tile + Tile::offset(k0 + lane % 16, n0 / Tile::kPerChunk + lane / 16));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = n0 + lane / 4 + i / 2 * 8, k = k0 + lane % 4 + i % 2 * 4;
      b[i] = ptx::load_shared_b32(tile + Tile::offset(k, n / 4) + n % 4 * 4);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) b[i] = Element::operand(b[i]);
}

// Bytes of a 16-byte chunk that lie inside an axis of `extent` elements when the chunk begins at `first`.
template <typename Storage>
__device__ __forceinline__ int chunk_bytes(int64 first, int64 extent) {
  const int64 left = (extent - first) * int64(sizeof(Storage));
  return left <= 0 ? 0 : left >= kChunkBytes ? kChunkBytes : int(left);
}

// Where the rows of a tile come from, for a thread that keeps one column of chunks.
template <typename Storage>
struct RowSource {
  const Storage* from;  // the thread's chunk of row 0
  int64 stride;         // from row to row
  int64 rows;           // rows past these are zero
  int bytes;            // of each chunk that are inside; the rest is zero.  kSkip: leave the tile alone
  static constexpr int kSkip = -1;
};

// Starts the copies that fill TILES tiles lying one after another in shared memory. Each thread keeps one
// column of chunks and goes down the rows, so that only one pointer moves: as many pointers as copies would spill.
template <typename Tile, int TILES, int THREADS, typename SourceOf>
__device__ __forceinline__ void copy_tiles(unsigned shared, int thread, const SourceOf& source_of) {
  constexpr int kRowStep = THREADS / Tile::kRowChunks;
  constexpr int kPasses = Tile::kRows > kRowStep ? Tile::kRows / kRowStep : 1;
  constexpr int kTileStep = kRowStep > Tile::kRows ? kRowStep / Tile::kRows : 1;
  static_assert(THREADS % Tile::kRowChunks == 0, "a thread stays in one column of chunks");
  static_assert(Tile::kRows % kRowStep == 0 || kRowStep % Tile::kRows == 0, "whole rows of threads a tile");
  const int chunk = thread % Tile::kRowChunks;
  const int first = thread / Tile::kRowChunks, first_row = first % Tile::kRows;
#pragma unroll
  for (int t = 0; t < TILES; t += kTileStep) {
    const int tile = t + (kTileStep > 1 ? first / Tile::kRows : 0);
    if (TILES % kTileStep != 0 && tile >= TILES) break;
    const RowSource<typename Tile::Storage> source = source_of(tile, chunk * Tile::kPerChunk);
    if (source.bytes == source.kSkip) continue;
    const typename Tile::Storage* from = source.from + first_row * source.stride;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = first_row + pass * kRowStep;
      ptx::cp_async_16(shared + tile * Tile::kBytes + Tile::offset(row, chunk), from, row < source.rows ? source.bytes : 0);
      from += kRowStep * source.stride;
    }
  }
}

}  // namespace jitsparse
