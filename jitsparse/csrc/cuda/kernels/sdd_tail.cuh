// The tail of an sdd: of tiles that come one a CTA, the last ones, which would leave a part of the GPU idle, are divided along k. Each
// part leaves its sum in a slot of the workspace, and sdd_tail_sum.cuh adds them.
#pragma once

#include "../../abi.h"
#include "../ptx/special_register.cuh"

namespace jitsparse {

// COLUMNS: block columns of a tile, of one block row. GROUP: block rows whose tiles are dealt out column by column, as in tile/order.cuh.
template <int COLUMNS, int GROUP>
struct SddTail {
  static constexpr int kMostRows = 512;     // block rows; this and kMostRounds as in kernels/split.py
  static constexpr int kMostRounds = 3;     // of CTAs that a GPU has at a time
  static constexpr int kStagesToStart = 2;  // as long as these take to begin and to leave a part

  struct Coordinates {
    int row, column;  // block row; tile of it
  };
  // The stages from `begin` to `end` of a tile; nothing if that is 0. All of the tile, if slot is negative.
  struct Piece {
    Coordinates tile;
    int begin, end, slot;
  };
  struct Known {
    int rows, stages, ctas;     // block rows; stages of a tile; CTAs at a time
    Piece piece;                // the CTA's
    int before[kMostRows + 1];  // tiles of the block rows before each; of all of them
  };
  static constexpr int kBytes = sizeof(Known);

  Known& known;  // in shared memory

  // By all threads of a CTA, the cta-th of the grid.
  __device__ __forceinline__ SddTail(Known& room, const int* crow, int rows, int stages, int ctas, int cta) : known(room) {
    const int thread = ptx::thread_index();
    if (thread == 0) room.rows = rows, room.stages = stages, room.ctas = ctas;
    if (thread < 32) count_tiles(room.before, crow, rows, thread);
    __syncthreads();
    if (thread == 0) room.piece = piece(cta);
    __syncthreads();
  }

  __device__ __forceinline__ int whole() const { return known.before[known.rows] / known.ctas * known.ctas; }  // tiles
  __device__ __forceinline__ int divided() const { return known.before[known.rows] % known.ctas; }             // the others

  // Into how many parts each of the others is divided: as many as make one round of CTAs, or two or three of shorter parts if these take
  // less time.
  __device__ __forceinline__ int parts() const {
    int best = 1, least = known.stages + kStagesToStart;
#pragma unroll
    for (int rounds = 1; rounds <= kMostRounds; ++rounds) {
      const int fitting = divided() ? rounds * known.ctas / divided() : 1, parts = fitting < known.stages ? fitting : known.stages;
      const int time = parts ? rounds * ((known.stages + parts - 1) / parts + kStagesToStart) : least;
      if (time < least) best = parts, least = time;
    }
    return best;
  }

  __device__ __forceinline__ Coordinates coordinates(int tile) const {
    int group = 0;  // the last one that does not begin after the tile
#pragma unroll
    for (int step = kMostRows / GROUP / 2; step > 0; step /= 2) {
      if ((group + step) * GROUP < known.rows && known.before[(group + step) * GROUP] <= tile) group += step;
    }
    const int first = group * GROUP, height = known.rows - first < GROUP ? known.rows - first : GROUP;
    int least = tiles_of(first);
    for (int row = first + 1; row < first + height; ++row) least = tiles_of(row) < least ? tiles_of(row) : least;
    int in_group = tile - known.before[first];
    if (in_group < height * least) return {first + in_group % height, in_group / height};
    // Then what rows have beyond that, row by row.
    in_group -= height * least;
    int row = first;
    for (; in_group >= tiles_of(row) - least; ++row) in_group -= tiles_of(row) - least;
    return {row, least + in_group};
  }

  // No pattern has more tiles: every block row at most one that is not full.
  static JITSPARSE_HD int64 most_tiles(int64 rows, int64 blocks) { return blocks / COLUMNS + rows; }

 private:
  __device__ __forceinline__ int tiles_of(int row) const { return known.before[row + 1] - known.before[row]; }

  __device__ __forceinline__ Piece piece(int cta) const {
    const int stages = known.stages;
    if (cta < whole()) return {coordinates(cta), 0, stages, -1};
    const int count = parts(), n = cta - whole();
    if (n >= divided() * count) return {};
    const int64 part = n % count;
    return {coordinates(whole() + n / count), int(stages * part / count), int(stages * (part + 1) / count), count > 1 ? n : -1};
  }

  // By a warp, of which each lane has rows that lie side by side.
  static __device__ __forceinline__ void count_tiles(int* before, const int* crow, int rows, int lane) {
    constexpr int kEach = kMostRows / 32;
    const auto tiles_of = [&](int row) { return row < rows ? (crow[row + 1] - crow[row] + COLUMNS - 1) / COLUMNS : 0; };
    const int first = lane * kEach;
    int sum = 0;
    for (int i = 0; i < kEach; ++i) sum += tiles_of(first + i);
    int upto = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_sync(~0u, upto, (lane - step) & 31);
      if (lane >= step) upto += other;
    }
    int running = upto - sum;
    for (int i = 0; i < kEach; ++i) {
      if (first + i <= rows) before[first + i] = running;
      running += tiles_of(first + i);
    }
    if (lane == 31 && rows == kMostRows) before[rows] = running;
  }
};

}  // namespace jitsparse
