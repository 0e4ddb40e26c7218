// How elements of the left operand are assigned to wgmma's M rows: any order will do if loads and stores agree. (Without NEIGHBOURS warp 0
// has the rows of TILES mma.sync fragments stacked along m.)
#pragma once

namespace jitsparse {

// A warpgroup has 64 TILES elements, each warp 16 TILES consecutive ones; in each tile a thread has rows lane / 4 and lane / 4 + 8 of its
// warp's 16 (half 0 and 1). Without NEIGHBOURS elements are in row order; with it all of a thread's are consecutive, for one load and one
// store.
template <int TILES, bool NEIGHBOURS>
struct RowOrder {
  static_assert(!NEIGHBOURS || TILES <= 2, "8 or 16 bytes at once");
  static constexpr bool kNeighbours = NEIGHBOURS;

  static __device__ __forceinline__ int element(int warp, int lane, int tile, int half) {
    const int row = lane / 4;
    if constexpr (!NEIGHBOURS) return (warp * TILES + tile) * 16 + half * 8 + row;
    // With two tiles, rows of eight lanes that load together differ in the bit that selects the upper or lower four of a row's eight
    // 16-byte chunks, so no two of them conflict.
    const int place = TILES == 2 ? row % 2 * 4 + row / 2 : row;
    return warp * 16 * TILES + place * 2 * TILES + tile * 2 + half;
  }
};

}  // namespace jitsparse
