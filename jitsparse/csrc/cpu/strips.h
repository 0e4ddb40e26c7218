// How a product with a dense output is divided among threads: strips of columns, laid end to end, of
// which every thread takes a contiguous share, cut between block rows. The sums of an output do not
// depend on the cut, so results are the same on any number of threads.
#pragma once

#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace jitsparse::cpu {

// A strip of more packed data than this is narrower than a register tile.
constexpr int64 kMostPanelBytes = 4 << 20;

struct StripPlan {
  int64 batch;           // matrices
  int64 units;           // of columns: what a strip is made of
  int64 widest;          // units that a strip may have
  int64 block_rows;
  const int32* row_ptr;  // where the blocks of each block row begin
  int64 depth;           // of a block

  int64 strips() const { return widest ? div_up(units, widest) : 0; }

  // Calls body(batch, first unit, units, first block row, end of block rows) for each part of the
  // share of thread `rank` of `size`. Strips differ in width by one unit at most.
  template <class Body> void for_share(int64 rank, int64 size, const Body& body) const {
    const int64 count = strips(), whole = weight(block_rows), total = batch * units * whole;
    const int64 begin = total / size * rank, end = rank + 1 == size ? total : total / size * (rank + 1);
    int64 offset = 0;
    for (int64 z = 0; z < batch; ++z) {
      for (int64 strip = 0; strip < count; ++strip) {
        const int64 first = strip * units / count, width = (strip + 1) * units / count - first;
        const int64 next = offset + width * whole;
        if (begin < next && offset < end) {
          const int64 from = begin <= offset ? 0 : row_at(div_up(begin - offset, width));
          const int64 to = next <= end ? block_rows : row_at(div_up(end - offset, width));
          if (from < to) body(z, first, width, from, to);
        }
        offset = next;
      }
    }
  }

 private:
  // Finishing a block row costs about as much as multiplying so many rows of the dense operand.
  static constexpr int64 kFinish = 16;

  int64 weight(int64 row) const { return row_ptr[row] * depth + row * kFinish; }

  // The first block row that begins at or beyond a weight.
  int64 row_at(int64 target) const {
    int64 low = 0, high = block_rows;
    while (low < high) {
      const int64 middle = (low + high) / 2;
      if (weight(middle) < target) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Runs a product that is divided so, and has scratch memory for each thread. `block`: elements of one.
template <class Product> int run_strips(const SpmmArgs& args, int64 block) {
  const double work = double(args.nnz) * double(block) * double(args.n) * double(args.batch);
  const int threads = useful_threads(args.context, work);
  const Product product(args, threads);
  const int64 bytes = Scratch::round_up(product.scratch_bytes());
  const Scratch scratch(threads * bytes);
  if (!scratch) return kOutOfMemory;
  parallel(threads, [&](int64 rank, int64 size) {
    product.plan().for_share(rank, size, [&](int64 batch, int64 first, int64 units, int64 from, int64 to) {
      product.multiply_strip(batch, first, units, from, to, scratch.at(rank * bytes));
    });
    if (product.past_caches()) stream_fence();
  });
  return kOk;
}

}  // namespace jitsparse::cpu
