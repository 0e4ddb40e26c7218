// What a persistent CTA of a dense x dense product at the blocks of a pattern computes, tile after tile.
//
// Stages: how the product divides the work, with its Params and its Index (SddStages).
#pragma once

#include "../../abi.h"
#include "../tile/split_k.cuh"

namespace jitsparse {

// The pattern as the kernel walks it; the host says where its lists begin, as in spmm_walk.cuh.
template <typename Stages>
struct SddLists {
  const int4* tiles;     // two int4 each, see SddTile
  const int4* steps;     // (block column, mask of the panel's rows, first position, position of the first block)
  const int* positions;  // where a step's blocks lie in the output

  static SddLists of(const SddArgs& args) {
    const typename Stages::Index index(args.index, args.rows, args.cols, args.nnz);
    return {reinterpret_cast<const int4*>(tiles_of(index)),
            reinterpret_cast<const int4*>(Stages::kGatherRows ? index.col_gather_steps() : index.row_gather_steps()),
            Stages::kGatherRows ? index.col_gather_blocks() : index.row_gather_blocks()};
  }

  // The list of tiles. Where sums may be divided they need not be narrow for every CTA to have one.
  static const int32* tiles_of(const typename Stages::Index& index) {
    if (Stages::kSplit) return Stages::kGatherRows ? index.col_wide_tiles() : index.row_wide_tiles();
    return Stages::kGatherRows ? index.col_gather_tiles() : index.row_gather_tiles();
  }
};

// Of each warpgroup a panel, its first step, and the end of its steps. Both have one panel, of 64 rows, and each its columns; or each
// has a panel and both the same columns; or they have a panel of 128 rows with all of its columns.
template <typename Stages>
struct SddTile {
  int4 first, second;

  __device__ __forceinline__ bool two_panels() const { return Stages::kGroupsM == 1 && first.x != second.x; }
  __device__ __forceinline__ bool same_columns() const { return Stages::kGroupsM > 1 || two_panels(); }
  // How many are gathered, from the step first.y on.
  __device__ __forceinline__ int columns() const { return (same_columns() ? first.z : second.z) - first.y; }
  __device__ __forceinline__ int4 of(int group) const { return group == 0 ? first : second; }
  // Offsets in a stage of what a warpgroup multiplies: its rows of a panel, its columns.
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
  Tile first;  // of the CTA, if it has any
  int count;
  int n_step;                 // wgmma's N is a multiple of it
  int stages, stage_bytes;    // of the ring
  int slabs_of_batch, slabs;  // of a sum
  int parts;                  // that it is divided into

  __device__ __forceinline__ explicit SddTiles(const typename Stages::Params& params)
      : lists(params.lists), slabs_of_batch(params.slabs_of_batch) {
    const int4 head = __ldg(lists.tiles);  // (tiles, most columns of one with one panel, of one with two, n_step)
    // The list has room for a tile a CTA, so this does not have to wait until it is known how many there are.
    if (!Stages::kSplit) first = read(blockIdx.x);
    count = head.x;
    n_step = head.w;
    const int most = Stages::kGroupsM > 1 ? room(head.y) : room_side_by_side(head.y);
    stage_bytes = larger(Stages::kPanelBytes + most * Stages::kColumnBytes,
                         head.z ? 2 * Stages::kPanelBytes + room(head.z) * Stages::kColumnBytes : 0);
    stages = 0;  // as many as fit; without a division, which would come before the first copy
#pragma unroll
    for (int n = 1; n <= Stages::kMaxStages; ++n) stages += n * stage_bytes <= Stages::kRingBytes;
    // But not five: four are 0.97 to 1.23 times as fast (docs/performance.md). Six are faster than four.
    if (stages == 5) stages = 4;
    slabs = slabs_of_batch * int(params.args.batch);
    parts = Stages::kSplit ? parts_of_sums(count, int(gridDim.x), int(params.args.parts)) : 1;
    if (Stages::kSplit) first = tile(blockIdx.x);
  }

  __device__ __forceinline__ Tile read(int n) const { return {__ldg(lists.tiles + 2 + 2 * n), __ldg(lists.tiles + 3 + 2 * n)}; }

  // Of what is past the last one, nothing.
  __device__ __forceinline__ Tile tile(int item) const { return item < count * parts ? read(item / parts) : Tile{}; }

  // Its n-th block column.
  __device__ __forceinline__ int column(const Tile& tile, int n) const {
    return n < tile.columns() ? __ldg(&lists.steps[tile.first.y + n].x) : 0;
  }

  // The slabs of a part: the first, and the end.
  __device__ __forceinline__ int2 slabs_of(int part) const {
    return make_int2(int(int64(slabs) * part / parts), int(int64(slabs) * (part + 1) / parts));
  }

  // Columns that a warpgroup multiplies for so many block columns: a multiple of n_step, a power of two.
  __device__ __forceinline__ int multiplied(int columns) const { return (columns * Stages::kBlockG + n_step - 1) & -n_step; }

 private:
  // Block columns for which a stage needs room if a warpgroup multiplies so many, or if each has half of them: wgmma reads past the
  // last one.
  __device__ __forceinline__ int room(int columns) const { return multiplied(columns) / Stages::kBlockG; }
  __device__ __forceinline__ int room_side_by_side(int columns) const {
    const int half = (columns + 1) / 2;
    return larger(room(half), half + room(columns - half));
  }
  static __device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }
};

}  // namespace jitsparse
