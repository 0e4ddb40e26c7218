// Swizzled tiles in shared memory, and the copies that fill them.
#pragma once

#include "../../abi.h"
#include "../ptx/cp_async.cuh"
#include "element.cuh"

namespace jitsparse {

constexpr int kChunkBytes = 16;

// A ROWS x COLUMNS tile, rows contiguous, 16-byte chunks permuted within a row so that the eight addresses of one ldmatrix matrix (the same
// chunk of eight consecutive rows) fall into eight different bank groups. SCALAR tiles are read by 4-byte loads of four consecutive rows
// instead (the tf32 operands that ldmatrix cannot transpose), which needs a different permutation; so do tiles of doubles.
template <typename Element, int ROWS, int COLUMNS, bool SCALAR>
struct SharedTile {
  using Storage = typename Element::Storage;
  static constexpr int kRows = ROWS;
  static constexpr int kColumns = COLUMNS;
  static constexpr int kPerChunk = kChunkBytes / int(sizeof(Storage));
  static constexpr int kRowChunks = COLUMNS / kPerChunk;
  static constexpr int kChunks = ROWS * kRowChunks;
  static constexpr int kBytes = kChunks * kChunkBytes;
  static_assert(COLUMNS % kPerChunk == 0 && (kRowChunks & (kRowChunks - 1)) == 0, "rows are a power of two of chunks");

  // Rows of one 128-byte line have the same XOR; it repeats after min(kRowChunks, 8) lines.
  static constexpr int kRowsPerLine = kRowChunks >= 8 ? 1 : 8 / kRowChunks;
  static constexpr int kMask = kRowChunks >= 8 ? 7 : kRowChunks - 1;

  static constexpr int kRowBytes = kRowChunks * kChunkBytes;

  static __device__ __forceinline__ unsigned offset(int row, int chunk) {
    // Of doubles, four chunks of two adjacent rows are read at once, or two of rows 0, 2, 4 and 6: bit 2 tells the former apart, bits 1 and 2
    // the latter.
    const int twist = sizeof(Storage) == 8 ? (row & 6) ^ ((row & 1) << 2) : SCALAR ? (row & 3) << 1 : row / kRowsPerLine;
    return unsigned(row * kRowBytes + (chunk ^ (twist & kMask)) * kChunkBytes);
  }

  // Moves an address made with offset() `rows` down and `chunks` to the right, if no bit of a row or chunk number is set in both: offset()
  // is linear in their bits. With constant arguments it costs one XOR, which addresses that differ by a multiple of 128 bytes share.
  static __device__ __forceinline__ unsigned advance(unsigned address, int rows, int chunks) {
    const unsigned by = offset(rows, chunks);
    return (address ^ (by & 0x70)) + (by & ~0x7fu);
  }
};

// `extent - first`, clamped to [0, tile]; keeps 64-bit sizes out of the loops.
__device__ __forceinline__ int inside(int64 extent, int64 first, int tile) {
  const int64 left = extent - first;
  return left > tile ? tile : left < 0 ? 0 : int(left);
}

// How THREADS threads share the copies that fill TILES consecutive tiles in shared memory. A thread keeps one column of chunks and goes
// down the rows of kTiles tiles, so that a tile costs it one address.
//
// Shared memory that addresses depend on must be read before a stage's first copy is issued: the compiler must assume that a copy
// overwrites it, and separates each pair by several idle slots.
template <typename Tile, int TILES, int THREADS>
struct TileCopy {
  static constexpr int kRowStep = THREADS / Tile::kRowChunks;
  static constexpr int kPasses = Tile::kRows > kRowStep ? Tile::kRows / kRowStep : 1;
  static constexpr int kTileStep = kRowStep > Tile::kRows ? kRowStep / Tile::kRows : 1;
  static constexpr int kTiles = (TILES + kTileStep - 1) / kTileStep;
  static_assert(THREADS % Tile::kRowChunks == 0, "a thread stays in one column of chunks");
  static_assert(Tile::kRows % kRowStep == 0 || kRowStep % Tile::kRows == 0, "whole rows of threads a tile");

  int column;     // element of the row at which the thread's chunks begin
  int first_row;
  int first_tile;
  unsigned offset;  // of the thread's first chunk in shared memory

  __device__ __forceinline__ explicit TileCopy(int thread) {
    const int row = thread / Tile::kRowChunks;
    column = thread % Tile::kRowChunks * Tile::kPerChunk;
    first_row = row % Tile::kRows;
    first_tile = kTileStep > 1 ? row / Tile::kRows : 0;
    offset = first_tile * Tile::kBytes + Tile::offset(first_row, thread % Tile::kRowChunks);
  }

  // The i-th of the thread's tiles, and whether there is one.
  __device__ __forceinline__ int tile(int i) const { return i * kTileStep + first_tile; }
  __device__ __forceinline__ bool has(int i) const { return TILES % kTileStep == 0 || tile(i) < TILES; }

  // Starts the copies of the i-th tile. `from` is the thread's first chunk, `stride` the bytes from row to row. The first `rows` rows,
  // counted from the thread's first one, are inside (none if that is not positive); the others become zeros.
  __device__ __forceinline__ void start(unsigned shared, int i, const char* from, int64 stride, int rows) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const unsigned to = Tile::advance(offset, pass * kRowStep, 0);
      ptx::cp_async_16(shared + i * kTileStep * Tile::kBytes + to, from, pass * kRowStep, rows);
      from += kRowStep * stride;
    }
  }

  __device__ __forceinline__ void start(unsigned shared, int i, const char* from, int64 stride) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const unsigned to = Tile::advance(offset, pass * kRowStep, 0);
      ptx::cp_async_16(shared + i * kTileStep * Tile::kBytes + to, from);
      from += kRowStep * stride;
    }
  }
};

// Like TileCopy, for one tile that is transposed in global memory: copies one 4-byte element at a time. A warp takes eight rows and four
// columns of the tile at once, which are four sectors of global memory and all banks of shared memory.
template <typename Tile, int THREADS>
struct TransposingCopy {
  static constexpr int kTiles = 1, kWarpsDown = Tile::kRows / 8, kWarpsAcross = THREADS / 32 / kWarpsDown;
  static constexpr int kPasses = Tile::kRowChunks / kWarpsAcross;
  static_assert(Tile::kPerChunk == 4 && kWarpsDown * kWarpsAcross * 32 == THREADS && kPasses * kWarpsAcross == Tile::kRowChunks,
                "each warp has rows of its own");

  int column, first_row;  // of the thread's first element in global memory, whose rows are the tile's columns
  unsigned offset;        // of that element in shared memory

  __device__ __forceinline__ explicit TransposingCopy(int thread) {
    const int warp = thread / 32, lane = thread % 32, chunk = warp / kWarpsDown * kPasses;
    column = warp % kWarpsDown * 8 + lane % 8;
    first_row = chunk * 4 + lane / 8;
    offset = Tile::offset(column, chunk) + lane / 8 * 4;
  }

  static constexpr __device__ __forceinline__ int tile(int) { return 0; }
  static constexpr __device__ __forceinline__ bool has(int) { return true; }

  // As in TileCopy; rows are those in global memory.
  __device__ __forceinline__ void start(unsigned shared, int, const char* from, int64 stride, int rows) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      ptx::cp_async_4(shared + Tile::advance(offset, 0, pass), from, pass * 4, rows);
      from += 4 * stride;
    }
  }

  __device__ __forceinline__ void start(unsigned shared, int, const char* from, int64 stride) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      ptx::cp_async_4(shared + Tile::advance(offset, 0, pass), from);
      from += 4 * stride;
    }
  }
};

}  // namespace jitsparse
