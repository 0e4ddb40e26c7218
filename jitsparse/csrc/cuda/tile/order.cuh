// Rasterization orders: how a grid walks a matrix of tiles.
#pragma once

#include "../../abi.h"
#include "divisor.cuh"

namespace jitsparse {

struct TileCoordinates {
  int64 row, column, batch;
};

// Which tile of a list a persistent CTA computes in its n-th round. Every other round is dealt out backwards, so that all CTAs get about
// the same amount of a list that begins with the longest tiles. A result past the end of the list means that no tile is left.
__device__ __forceinline__ int64 tile_of_round(int round) {
  const unsigned position = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  return int64(round) * gridDim.x + position;
}

// grouped_order from `first` on, of the tile rows from there to the end of a batch entry.
__device__ __forceinline__ TileCoordinates in_groups(unsigned tile, unsigned first, unsigned rows, unsigned columns, unsigned group,
                                                     unsigned batch) {
  const unsigned height = rows < group ? rows : group;
  const unsigned first_row = tile / (height * columns) * height;
  const unsigned group_rows = rows - first_row < height ? rows - first_row : height;
  const unsigned in_group = tile - first_row * columns;
  return {first + first_row + in_group % group_rows, in_group / group_rows, batch};
}

// Walks the tiles of `group` tile rows column by column, so that concurrent tiles share both operands through L2 (a super-tile of 16 panels
// and a few column tiles is about its size). In 32 bits, since a grid has fewer than 2^31 CTAs: a 64-bit division takes a hundred
// instructions.
__device__ __forceinline__ TileCoordinates grouped_order(unsigned tile, int64 rows, int64 columns, unsigned group) {
  const unsigned plane = unsigned(rows) * unsigned(columns), batch = tile / plane;
  return in_groups(tile - batch * plane, 0, unsigned(rows), unsigned(columns), group, batch);
}

// grouped_order for tile rows of falling length. The first rows are walked one by one: a long tile that starts late ends last.
__device__ __forceinline__ TileCoordinates longest_first_order(unsigned tile, int64 rows, int64 columns, unsigned group) {
  const unsigned plane = unsigned(rows) * unsigned(columns), batch = tile / plane, place = tile - batch * plane;
  const unsigned long_rows = rows < 16 ? unsigned(rows) : 16, long_tiles = long_rows * unsigned(columns);
  if (place < long_tiles) return in_groups(place, 0, long_rows, unsigned(columns), 1, batch);
  return in_groups(place - long_tiles, long_rows, unsigned(rows) - long_rows, unsigned(columns), group, batch);
}

// grouped_order for fewer than 2^31 tiles, with divisors that the host prepares.
struct GroupedTiles {
  unsigned rows;
  Divisor plane, group;         // tiles per batch entry, and per group of tile rows
  Divisor height, last_height;  // tile rows of a group, and of a partial last one

  static GroupedTiles of(int64 tile_rows, int64 tile_columns, int64 group) {
    const int64 height = tile_rows < group ? tile_rows : group, rest = tile_rows % height;
    return {unsigned(tile_rows), Divisor::of(unsigned(tile_rows * tile_columns)), Divisor::of(unsigned(height * tile_columns)),
            Divisor::of(unsigned(height)), Divisor::of(unsigned(rest ? rest : height))};
  }

  __device__ __forceinline__ TileCoordinates at(unsigned tile) const {
    const unsigned batch = plane.quotient(tile), in_plane = tile - batch * plane.value;
    const unsigned groups = group.quotient(in_plane), in_group = in_plane - groups * group.value;
    const unsigned first_row = groups * height.value;
    const Divisor group_rows = rows - first_row < height.value ? last_height : height;
    const unsigned column = group_rows.quotient(in_group);
    return {first_row + in_group - column * group_rows.value, column, batch};
  }
};

}  // namespace jitsparse
