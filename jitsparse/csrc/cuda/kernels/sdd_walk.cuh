// The tiles that a persistent CTA of a dense x dense product at the blocks of a pattern computes, in order.
//
// Stages: how the product partitions the work, with its Params and its Index (SddStages).
#pragma once

#include "../../abi.h"
#include "../tile/split_k.cuh"

namespace jitsparse {

// The pattern as the kernel walks it; the host computes where its lists begin, as in spmm_walk.cuh.
template <typename Stages>
struct SddLists {
  const int4* tiles;     // two int4 each, see SddTile
  const int4* steps;     // (block column, mask of the panel's rows, first position, position of the first block)
  const int* positions;  // positions of a step's blocks in the output

  static SddLists of(const SddArgs& args) {
    const typename Stages::Index index(args.index, args.rows, args.cols, args.nnz);
    return {reinterpret_cast<const int4*>(tiles_of(index)),
            reinterpret_cast<const int4*>(Stages::kGatherRows ? index.col_gather_steps() : index.row_gather_steps()),
            Stages::kGatherRows ? index.col_gather_blocks() : index.row_gather_blocks()};
  }

  // The list of tiles. With split-K they need not be narrow to give every CTA work.
  static const int32* tiles_of(const typename Stages::Index& index) {
    if (Stages::kSplit) return Stages::kGatherRows ? index.col_wide_tiles() : index.row_wide_tiles();
    return Stages::kGatherRows ? index.col_gather_tiles() : index.row_gather_tiles();
  }
};

// For each warpgroup its panel, first step, and end of steps. Both share a panel of 64 rows and each has columns of its own; or each has
// its own panel and both have the same columns; or they share a panel of 128 rows and all of its columns.
template <typename Stages>
struct SddTile {
  int4 first, second;

  __device__ __forceinline__ bool two_panels() const { return Stages::kGroupsM == 1 && first.x != second.x; }
  __device__ __forceinline__ bool same_columns() const { return Stages::kGroupsM > 1 || two_panels(); }
  // How many columns are gathered, from step first.y on.
  __device__ __forceinline__ int columns() const { return (same_columns() ? first.z : second.z) - first.y; }
  __device__ __forceinline__ int4 of(int group) const { return group == 0 ? first : second; }
  // Offsets of a warpgroup's operands in a stage: its rows of a panel, its columns.
  __device__ __forceinline__ int panel_at(int group) const { return Stages::kGroupsM > 1 || two_panels() ? group * 64 * 128 : 0; }
  __device__ __forceinline__ int columns_at(int group) const {
    const int before = same_columns() ? 0 : of(group).y - first.y;
    return (two_panels() ? 2 : 1) * Stages::kPanelBytes + before * Stages::kColumnBytes;
  }
};

// The tiles of a grid, and the ring that the widest of them needs.
template <typename Stages>
struct SddTiles {
  using Tile = SddTile<Stages>;

  const SddLists<Stages>& lists;
  Tile first;  // the CTA's first, if it has any
  int count;
  int n_step;                 // wgmma's N is a multiple of it
  int stages, stage_bytes;    // of the ring
  int slabs_of_batch, slabs;  // slabs of k: per batch entry, in all
  int parts;                  // split-K parts per tile

  __device__ __forceinline__ explicit SddTiles(const typename Stages::Params& params)
      : lists(params.lists), slabs_of_batch(params.slabs_of_batch) {
    const int4 head = __ldg(lists.tiles);  // (tiles, most columns of a tile with one panel, with two, n_step)
    // The list has room for one tile per CTA, so this read need not wait for the count.
    if (!Stages::kSplit) first = read(blockIdx.x);
    count = head.x;
    n_step = head.w;
    const int most = Stages::kGroupsM > 1 ? room(head.y) : room_side_by_side(head.y);
    stage_bytes = larger(Stages::kPanelBytes + most * Stages::kColumnBytes,
                         head.z ? 2 * Stages::kPanelBytes + room(head.z) * Stages::kColumnBytes : 0);
    stages = 0;  // as many as fit; without a division, which would delay the first copy
#pragma unroll
    for (int n = 1; n <= Stages::kMaxStages; ++n) stages += n * stage_bytes <= Stages::kRingBytes;
    // Four where five would fit: 0.97 to 1.23 times as fast (docs/performance.md). Six are faster than four.
    if (stages == 5) stages = 4;
    slabs = slabs_of_batch * int(params.args.batch);
    parts = Stages::kSplit ? parts_of_sums(count, int(gridDim.x), int(params.args.parts)) : 1;
    if (Stages::kSplit) first = tile(blockIdx.x);
  }

  __device__ __forceinline__ Tile read(int n) const { return {__ldg(lists.tiles + 2 + 2 * n), __ldg(lists.tiles + 3 + 2 * n)}; }

  // Returns an empty tile past the end.
  __device__ __forceinline__ Tile tile(int item) const { return item < count * parts ? read(item / parts) : Tile{}; }

  // The tile's n-th block column.
  __device__ __forceinline__ int column(const Tile& tile, int n) const {
    return n < tile.columns() ? __ldg(&lists.steps[tile.first.y + n].x) : 0;
  }

  // The slabs of a split-K part: the first, and the end.
  __device__ __forceinline__ int2 slabs_of(int part) const {
    return make_int2(int(int64(slabs) * part / parts), int(int64(slabs) * (part + 1) / parts));
  }

  // Columns that a warpgroup multiplies for `columns` block columns: a multiple of n_step, a power of two.
  __device__ __forceinline__ int multiplied(int columns) const { return (columns * Stages::kBlockG + n_step - 1) & -n_step; }

 private:
  // Block columns that a stage needs room for if a warpgroup multiplies `columns`, or each warpgroup half of them: wgmma reads past the
  // last one.
  __device__ __forceinline__ int room(int columns) const { return multiplied(columns) / Stages::kBlockG; }
  __device__ __forceinline__ int room_side_by_side(int columns) const {
    const int half = (columns + 1) / 2;
    return larger(room(half), half + room(columns - half));
  }
  static __device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }
};

}  // namespace jitsparse
