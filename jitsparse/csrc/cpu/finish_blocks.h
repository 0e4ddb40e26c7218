// The end of an sdd: its sums become the blocks of the output.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

// Zeroes the elements of blocks [begin, end) of `sums` that are outside the matrix: packed operands hold zeros there, but infinity
// times zero is not zero. Then converts the blocks to the output, unless they were summed there.
template <class T, class A, int BLOCK_ROWS, int BLOCK_COLS>
void finish_blocks(const SddArgs& args, const IndexView<BLOCK_ROWS, BLOCK_COLS>& index, int64 begin, int64 end, A* sums) {
  constexpr int kBlock = BLOCK_ROWS * BLOCK_COLS, kL = min(kLanes<A>, BLOCK_COLS);
  for (int64 z = begin; z < end; ++z) {
    A* const block = sums + z * kBlock;
    const int64 rows = args.rows - index.row()[z] * int64(BLOCK_ROWS), cols = args.cols - index.col()[z] * int64(BLOCK_COLS);
    if (rows < BLOCK_ROWS || cols < BLOCK_COLS) {
      for (int e = 0; e < kBlock; ++e) {
        if (e / BLOCK_COLS >= rows || e % BLOCK_COLS >= cols) block[e] = 0;
      }
    }
    if constexpr (sizeof(T) != sizeof(A)) {
      T* const out = static_cast<T*>(args.out) + z * kBlock;
      for (int e = 0; e < kBlock; e += kL) store<kL>(out + e, load<kL>(block + e));
    }
  }
}

}  // namespace jitsparse::cpu
