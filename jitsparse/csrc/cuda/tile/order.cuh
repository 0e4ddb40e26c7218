// The order in which a grid walks a matrix of tiles.
#pragma once

#include "../../abi.h"

namespace jitsparse {

struct TileCoordinates {
  int64 row, column, batch;
};

// Tiles of `group` tile rows are walked column by column, so that the tiles that run at the same time share
// both operands through L2 (a super-tile of 16 panels and a few column tiles is about its size).
__device__ __forceinline__ TileCoordinates grouped_order(int64 tile, int64 tile_rows, int64 tile_columns, int64 group) {
  const int64 plane = tile_rows * tile_columns;
  const int64 batch = tile / plane;
  tile -= batch * plane;
  const int64 first_row = tile / (group * tile_columns) * group;
  const int64 group_rows = tile_rows - first_row < group ? tile_rows - first_row : group;
  const int64 in_group = tile - first_row * tile_columns;
  return {first_row + in_group % group_rows, in_group / group_rows, batch};
}

}  // namespace jitsparse
