// The epilogue of sdd_wgmma.cuh: stores a warp's accumulators to the blocks that they belong to.
//
// A warp has 16 rows of every gathered column, which belong to one block of each; with GATHER_ROWS they are 16 columns of it. Large blocks
// are rounded into registers and stored subtile by subtile while the next tile is multiplied, through shared memory and by TMA. Small ones
// are stored at once, 16 x 16 at a time, float32 directly from registers.
#pragma once

#include "../../abi.h"
#include "../ptx/fence.cuh"
#include "../ptx/tma.cuh"
#include "../tensor_map.cuh"
#include "../tile/epilogue_subtile.cuh"
#include "../tile/store_fragments.cuh"
#include "../tile/store_tile.cuh"

namespace jitsparse {

// Order: maps the accumulators' rows to elements of the panel.
template <typename Element, int BLOCK_ROWS, int BLOCK_COLS, bool GATHER_ROWS, typename Order>
struct SddStore {
  using Storage = typename Element::Storage;
  // Block extent along the panel; across it, that of a piece of a block.
  static constexpr int kBlockP = GATHER_ROWS ? BLOCK_COLS : BLOCK_ROWS;
  using Shape = GatherShape<kBlockP, GATHER_ROWS ? BLOCK_ROWS : BLOCK_COLS>;
  static constexpr int kBlockG = Shape::kPiece, kPieces = Shape::kPieces;
  static constexpr int kGroupN = 256;  // columns per warpgroup
  using Accumulators = float[kGroupN / 8][4];

  static constexpr bool kFloats = sizeof(Storage) == 4;
  static constexpr bool kBulk = !kFloats && BLOCK_ROWS >= 64 && BLOCK_COLS >= 64;
  static_assert(!kBulk || !GATHER_ROWS, "TMA takes rows of blocks as the accumulators have them");
  // Subtiles have 16 rows and kSubtileN columns: 64 where there is room, in panels of 128 rows.
  static constexpr int kSubtileN = kBlockP > 64 ? 64 : 32, kSubtileBuffers = kBlockP > 64 ? 2 : 1, kSubtileBytes = 16 * kSubtileN * 2;
  using Staged = StagedTile<Element, 16, 16, GATHER_ROWS>;
  static constexpr int kBytes = kFloats ? 0 : kBulk ? kSubtileBuffers * kSubtileBytes : Staged::kBytes;  // per warp

  // A tile whose large blocks are still to be stored.
  static constexpr int kSubtiles = kGroupN / kSubtileN, kSubtilesPerPiece = kBlockG / kSubtileN;
  static constexpr unsigned kStored = 1u << kSubtiles;
  struct Unstored {
    unsigned packed[kSubtiles][kSubtileN / 8 * 2];
    unsigned next = kStored;  // 1 << the next subtile to store (its number would index local memory)
    int subtile, subtiles;
    int position;  // of the lane's piece
  };

  const SddArgs& args;
  const CUtensorMap* out;  // the output's map, for TMA
  unsigned char* staged;   // the warp's shared memory, of kBytes
  int row, lane;           // the warp's first row of the panel
  int buffer = 0;

  static cudaError_t encode(const SddArgs& args, CUtensorMap* out) {
    if (!kBulk) return cudaSuccess;
    const MatrixShape blocks = {BLOCK_COLS, args.nnz * BLOCK_ROWS, 1, BLOCK_COLS, 0};
    return encode_map<Storage>(out, args.out, blocks, {kSubtileN, 16});
  }

  // Zeroes elements past the edges of the matrix: infinity times the zeros that are copied there is NaN. `first_row` is the panel's;
  // `column` is the lane's of the warpgroup's gathered columns, one of which an edge can cut, and the half behind it.
  __device__ __forceinline__ void keep_inside(Accumulators& c, int first_row, int columns, int column) const {
    const int warp = row / 16 % 4;
    const int64 rows = (GATHER_ROWS ? args.cols : args.rows) - (first_row + row / 64 * 64);
    const int64 cols = (GATHER_ROWS ? args.rows : args.cols) - int64(column) * kBlockG;
    const unsigned cut = __ballot_sync(~0u, lane < columns && cols < kBlockG);
    if (rows >= 64 && !cut) return;
    const int at = cut ? __ffs(cut) - 1 : 0, end = cut ? (32 - __clz(cut)) * kBlockG : 0;
    const int left = int(__shfl_sync(~0u, cols, at)), inside = at * kBlockG + (left > 0 ? left : 0);
#pragma unroll
    for (int j = 0; j < kGroupN / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int n = j * 8 + lane % 4 * 2 + e % 2;
        if (Order::element(warp, lane, 0, e / 2) >= rows || (n >= inside && n < end)) c[j][e] = 0.0f;
      }
    }
  }

  // The n-th piece of the values; a block has kPieces.
  template <typename T>
  static __device__ __forceinline__ T* piece(T* blocks, int64 n) {
    return blocks + n / kPieces * (BLOCK_ROWS * BLOCK_COLS) + n % kPieces * (kBlockG * (GATHER_ROWS ? BLOCK_COLS : 1));
  }

  // Lane n holds the position in values of the n-th gathered column's piece, negative if it is not stored.
  __device__ __forceinline__ void store(Accumulators& c, int columns, int position) {
    if constexpr (kFloats) {
      store_floats(static_cast<float*>(args.out), c, columns, position);
    } else {
      store_small(c, columns, position);
    }
  }

  // Stores float32, see store_fragments.cuh: the result, or the sums of a split-K part.
  __device__ __forceinline__ void store_floats(float* blocks, const Accumulators& c, int columns, int position) const {
#pragma unroll
    for (int u = 0; u < kGroupN / kBlockG; ++u) {
      if (u >= columns) break;
      const int64 at = __shfl_sync(~0u, position, u);
      if (at < 0) continue;
      store_fragments<Order, GATHER_ROWS>(reinterpret_cast<const float(&)[1][kBlockG / 8][4]>(c[u * kBlockG / 8]),
                                          piece(blocks, at), BLOCK_COLS, row % kBlockP, kBlockP, 0, kBlockG, /*warp=*/0, lane);
    }
  }

  __device__ __forceinline__ void store_small(Accumulators& c, int columns, int position) const {
    auto* tile = reinterpret_cast<Storage*>(staged);
    const int in_block = row % kBlockP;
#pragma unroll
    for (int u = 0; u < kGroupN / kBlockG; ++u) {
      if (u >= columns) break;
      const int64 at = __shfl_sync(~0u, position, u);
      if (at < 0) continue;
      Storage* block = piece(static_cast<Storage*>(args.out), at);
#pragma unroll
      for (int n = 0; n < kBlockG; n += 16) {
        __syncwarp();
        Staged::write(tile, reinterpret_cast<float(&)[1][2][4]>(c[(u * kBlockG + n) / 8]), lane);
        __syncwarp();
        Staged::copy_out(tile, block + (GATHER_ROWS ? n * BLOCK_COLS + in_block : in_block * BLOCK_COLS + n), BLOCK_COLS, 16, 16,
                         lane);
      }
    }
  }

  // For large blocks: a panel of 64 or 128 rows is one block row, so every gathered column has a block.
  static __device__ __forceinline__ void finish_tile(const Accumulators& c, int columns, int position, Unstored& unstored) {
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
      pack_subtile<Element, /*RELU=*/false>(reinterpret_cast<const float(&)[kSubtileN / 8][4]>(c[i * kSubtileN / 8]), unstored.packed[i]);
    }
    unstored.subtile = 0;
    unstored.subtiles = columns * kSubtilesPerPiece;
    unstored.next = columns > 0 ? 1 : kStored;
    unstored.position = position;
  }

  // Hands the next subtile of a finished tile to TMA; false if there is none.
  __device__ __forceinline__ bool store_subtile(Unstored& unstored) {
    if (unstored.next == kStored) return false;
    if (lane == 0) ptx::bulk_wait_read<kSubtileBuffers - 1>();
    __syncwarp();
    const unsigned to = unsigned(__cvta_generic_to_shared(staged)) + buffer * kSubtileBytes;
    buffer = (buffer + 1) % kSubtileBuffers;
    const int position = __shfl_sync(~0u, unstored.position, unstored.subtile / kSubtilesPerPiece);
    const int column = position % kPieces * kBlockG + unstored.subtile % kSubtilesPerPiece * kSubtileN;
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
      if (unstored.next == 1u << i) stage_rows<kSubtileN / 8>(unstored.packed[i], to, lane);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      ptx::tma_store_3d(out, to, column, position / kPieces * BLOCK_ROWS + row, 0);
      ptx::bulk_commit();
    }
    unstored.next = ++unstored.subtile < unstored.subtiles ? unstored.next << 1 : kStored;
    return true;
  }

  // Waits until TMA has read everything.
  __device__ __forceinline__ void drain() const {
    if (kBulk && lane == 0) ptx::bulk_wait_read<0>();
  }
};

}  // namespace jitsparse
