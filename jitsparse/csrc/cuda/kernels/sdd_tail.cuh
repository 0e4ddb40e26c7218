// The tail of an sdd with one tile per CTA: the last tiles, which would leave some of the GPU idle, are split along k. Each split-K part
// stores its sum in a slot of the workspace, and sdd_tail_sum.cuh adds them.
#pragma once

#include "../../abi.h"
#include "../enqueue.cuh"
#include "../ptx/special_register.cuh"

namespace jitsparse {

// GROUP: panels whose tiles are rasterized column by column, as in tile/order.cuh.
template <typename Pipeline, int GROUP>
struct SddTail {
  static constexpr int kMaxPanels = 512;   // this and kMaxRounds must match kernels/split.py
  static constexpr int kMaxRounds = 3;     // waves of CTAs
  static constexpr int kStagesToStart = 2;  // in stages, the time to start and store a part

  struct Coordinates {
    int row, column;  // panel; tile of it
  };
  // Stages `begin` to `end` of a tile, none if `end` is 0; the whole tile if `slot` is negative.
  struct Piece {
    Coordinates tile;
    int begin, end, slot;
  };
  struct Known {
    int panels, stages, ctas;     // panels; stages per tile; CTAs resident at a time
    Piece piece;                  // the CTA's
    int before[kMaxPanels + 1];  // exclusive prefix sum of the panels' tiles; last: the total
  };
  static constexpr int kBytes = sizeof(Known);

  Known& known;  // in shared memory

  // Call from all threads of a CTA, the cta-th of the grid, with `room` for kBytes.
  __device__ __forceinline__ SddTail(const SddArgs& args, unsigned char* room, int cta) : known(*reinterpret_cast<Known*>(room)) {
    const int thread = ptx::thread_index(), panels = int(Pipeline::panels(args));
    if (thread == 0) known.panels = panels, known.stages = Pipeline::stage_count(args), known.ctas = int(args.parts);
    const typename Pipeline::Index index(args.index, args.rows, args.cols, args.nnz);
    if (thread < 32) count_tiles(known.before, Pipeline::pointers(index), panels, thread);
    __syncthreads();
    if (thread == 0) known.piece = piece(cta);
    __syncthreads();
  }

  __device__ __forceinline__ int whole() const { return known.before[known.panels] / known.ctas * known.ctas; }  // tiles computed whole
  __device__ __forceinline__ int divided() const { return known.before[known.panels] % known.ctas; }             // tiles split along k

  // Parts per split tile: as many as make one wave of CTAs, or two or three waves of shorter parts if these take less time.
  __device__ __forceinline__ int parts() const {
    int best = 1, least = known.stages + kStagesToStart;
#pragma unroll
    for (int rounds = 1; rounds <= kMaxRounds; ++rounds) {
      const int fitting = divided() ? rounds * known.ctas / divided() : 1, parts = fitting < known.stages ? fitting : known.stages;
      // In stages: the longest part of each wave, and the cost of starting it.
      const int time = parts ? rounds * ((known.stages + parts - 1) / parts + kStagesToStart) : least;
      if (time < least) best = parts, least = time;
    }
    return best;
  }

  __device__ __forceinline__ Coordinates coordinates(int tile) const {
    int group = 0;  // the last one that does not begin after the tile
#pragma unroll
    for (int step = kMaxPanels / GROUP / 2; step > 0; step /= 2) {
      if ((group + step) * GROUP < known.panels && known.before[(group + step) * GROUP] <= tile) group += step;
    }
    const int first = group * GROUP, height = known.panels - first < GROUP ? known.panels - first : GROUP;
    int least = tiles_of(first);
    for (int row = first + 1; row < first + height; ++row) least = tiles_of(row) < least ? tiles_of(row) : least;
    int in_group = tile - known.before[first];
    if (in_group < height * least) return {first + in_group % height, in_group / height};
    // Then the panels' remaining tiles, panel by panel.
    in_group -= height * least;
    int row = first;
    for (; in_group >= tiles_of(row) - least; ++row) in_group -= tiles_of(row) - least;
    return {row, least + in_group};
  }

  // Sets `parts` to the CTAs that are resident at a time, or to those that the workspace has slots for, if fewer.
  static SddArgs clamp_parts(SddArgs args, int ctas_of_sm) {
    const int64 at_once = int64(ctas_of_sm) * sm_count();
    if (at_once < args.parts) args.parts = at_once;
    return args;
  }

  static int64 grid(const SddArgs& args) {
    // An upper bound for any pattern: every panel has at most one tile that is not full.
    const int64 most = Pipeline::grid(args), tiles = args.nnz / Pipeline::kColumns + Pipeline::panels(args);
    return (tiles < most ? tiles : most) + kMaxRounds * args.parts;
  }

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

  // Call from one warp; each lane has consecutive panels.
  static __device__ __forceinline__ void count_tiles(int* before, const int* pointers, int panels, int lane) {
    constexpr int kEach = kMaxPanels / 32;
    const auto tiles_of = [&](int panel) {
      return panel < panels ? (pointers[panel + 1] - pointers[panel] + Pipeline::kColumns - 1) / Pipeline::kColumns : 0;
    };
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
      if (first + i <= panels) before[first + i] = running;
      running += tiles_of(first + i);
    }
    if (lane == 31 && panels == kMaxPanels) before[panels] = running;
  }
};

}  // namespace jitsparse
