// Which elements of its left operand a wgmma's rows are. The product does not care, as long as whoever loads and whoever stores agree.
// (Without NEIGHBOURS warp 0 has what a warp has of mma's fragments one below the other.)
#pragma once

namespace jitsparse {

// A warpgroup has TILES times 64 elements, each warp 16 TILES that follow on one another; of a tile a thread has rows lane / 4 and
// lane / 4 + 8 of its warp's 16 (half 0 and 1). They are the elements that wgmma counts so, or, with NEIGHBOURS, all of a thread's
// elements follow on one another, and it can load and store them at once.
template <int TILES, bool NEIGHBOURS>
struct RowOrder {
  static_assert(!NEIGHBOURS || TILES <= 2, "8 or 16 bytes at once");
  static constexpr bool kNeighbours = NEIGHBOURS;

  static __device__ __forceinline__ int element(int warp, int lane, int tile, int half) {
    const int row = lane / 4;
    if constexpr (!NEIGHBOURS) return (warp * TILES + tile) * 16 + half * 8 + row;
    // With two tiles the rows of eight lanes that load together differ in the bit that tells the upper four of a row's eight chunks
    // of 16 bytes from the lower: no two of them meet in a bank.
    const int place = TILES == 2 ? row % 2 * 4 + row / 2 : row;
    return warp * 16 * TILES + place * 2 * TILES + tile * 2 + half;
  }
};

}  // namespace jitsparse
