// What an index is built from, and where its parts go: the 64-bit arguments that jitsparse/kernels/host_index.py packs, in this order.
// A part that the blocks do not have is null.
#pragma once

#include "abi.h"

namespace jitsparse::index {

// Panels whose steps are slabs.
struct SlabArgs {
  int32 *panels, *steps, *blocks;
  int64 across;  // block columns of a slab
  int64 most;    // capacity in steps
};

// The tiles of an sdd.
struct GatherArgs {
  int32 *steps, *tiles, *wide, *blocks;
  int64 down, pieces;                 // blocks of a panel, pieces of a block along the other side
  int64 minors;                       // pieces along the other side
  int64 fewest, most;                 // pieces that a tile may gather
  int64 block, height;                // of a piece, and of a panel, in elements
  int64 steps_room, tiles_room, wide_room;  // their capacities
  int64 may_share;                    // whether two panels may share a tile
};

struct SideArgs {
  int32 *steps, *panel_ptr, *panel_blocks, *sorted, *panels_sorted;
  int64 extent, group;  // of a block along the side, in elements; block rows of a panel
  int64 paired;         // whether these may be any two
  SlabArgs slab, tall, condensed;
  int32 *condensed_columns;
  GatherArgs gather;
  int64 slab_columns;   // block columns of a slab, in traits.py
  int64 *facts;         // three of them, see put_facts
};

struct IndexArgs {
  const int32 *crow, *col;
  int32 *index;
  int64 size;             // of the index, in words
  int64 rows, cols, nnz;  // block rows, block columns, blocks
  int64 threads;
  int32 *crow_indices, *col_indices, *row_indices, *ccol_indices, *row_indices_t, *perm;
  SideArgs by_row, by_col;
};

}  // namespace jitsparse::index
