// How a product with a dense output is divided among threads: strips of columns are laid end to end, and
// every thread takes a contiguous share, cut between block rows. The sums of an output do not depend on
// the cut, so results are the same on any number of threads.
#pragma once

#include "cpu/epilogue.h"
#include "cpu/pack.h"
#include "cpu/pages.h"
#include "cpu/parallel.h"

namespace jitsparse::cpu {

// Bytes of packed panels that a strip may have: as many as 2 MB of L2 cache have room for, even where L2 is smaller. Values pass through it
// once per strip, and with half as many bytes, a product of 4096 in blocks of 32 at density 0.5 takes 1.1 (dsd) to 1.45 times (dds) as long
// on an EPYC with 1 MB.
constexpr int64 kPanelBytes = 2 * kL2Bytes;

// The same by the rows of a block. Panels of short blocks serve few register tiles from L1, and products whose strips are as wide as others
// take 1.02 to 1.1 times as long.
constexpr int64 panel_bytes_for(int rows) { return rows < 32 ? kL2Bytes : kPanelBytes; }

// How wide a strip may be, in units of columns (or of rows, if rows are divided).
struct StripWidth {
  int64 most;
  int64 step;        // units of a register tile
  int64 finest;      // by which a narrower one shrinks
  int64 bytes;       // of packed data per unit
  int64 most_bytes;  // of packed data

  // A strip of more packed data than this is narrower than a register tile.
  static constexpr int64 kMaxBytes = 4 << 20;

  // The most units with as many bytes, at least a register tile.
  int64 widest(int64 units, int64 threads) const {
    int64 width = most;
    while (width > step && width * bytes > most_bytes) width -= step;
    while (width > finest && width * bytes > kMaxBytes) width -= finest;
    // A strip for every thread is better than a cut through one, where both parts pack its panels.
    const int64 fair = div_up(div_up(units, threads), step) * step;
    return fair < width ? fair : width;
  }
};

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
  // Finishing a block row costs about as much as multiplying this many rows of the dense operand.
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

// Which parts of a strip's operand are packed. A part is what PART neighbouring blocks of a row multiply.
template <int64 PART> class PackedParts {
 public:
  // `flags`: memory of at least one byte per part.
  PackedParts(char* flags, const int32* col, int64 block_cols) : flags_(flags), col_(col) {
    __builtin_memset(flags, 0, block_cols);
  }

  // Calls pack(part) for each part that blocks begin .. end are the first to need.
  template <class Pack> JITSPARSE_INLINE void complete(int64 begin, int64 end, const Pack& pack) {
    for (int64 z = begin; z < end; ++z) {
      const int64 part = col_[z] / PART;
      if (flags_[part]) continue;
      flags_[part] = 1;
      pack(part);
    }
  }

 private:
  char* const flags_;
  const int32* const col_;
};

// The base of products for run_strips. Their constructor, from arguments and threads, sets the members, and
//   void multiply_strip(int64 batch, int64 first, int64 units, int64 from, int64 to, Memory memory) const
// computes the block rows from .. to of the strip that begins at unit `first`.
struct StripProduct {
  struct Memory {
    char* shared;
    char* own;
  };

  StripPlan plan;
  int64 shared_bytes = 0;  // of scratch memory for all threads together
  int64 own_bytes;         // and for each of them
  int64 out_bytes;         // of the output
  bool past_caches;        // whether it is written past the caches, in which it would not stay

  // The dense operand of a matrix of the batch; `depth` is its size along k.
  template <class T, bool K_CONTIGUOUS>
  static DenseView<T, K_CONTIGUOUS> dense_of(const SpmmArgs& args, int64 batch, int64 depth) {
    return {static_cast<const T*>(args.dense) + batch * args.dense_batch_stride, depth, args.n, args.dense_ld};
  }

  // The output of a matrix of the batch.
  template <class T, bool TRANSPOSED>
  OutView<T, TRANSPOSED> out_of(const SpmmArgs& args, int64 batch, int64 rows, int64 cols) const {
    T* const out = static_cast<T*>(args.out) + batch * args.out_batch_stride;
    return {out, rows, cols, args.out_ld, static_cast<const T*>(args.bias), args.activation, past_caches};
  }

  // Sets out_bytes and past_caches for an output of `rows` rows, or columns if n counts its rows.
  void expect_output(const SpmmArgs& args, int64 rows, int64 itemsize, int64 threads) {
    out_bytes = args.batch * rows * args.n * itemsize;
    past_caches = out_bytes / threads > kL2Bytes;
  }

  // Each thread calls these before its first strip and after its last; a product may define its own.
  void begin(int64 /*rank*/, int64 /*size*/, char* /*shared*/) const {}
  void end() const {}
  // What run_strips returns once all threads are done.
  int status() const { return kOk; }
};

// Runs a product. `block`: elements of a block; `rate`: of its multiply-adds, relative to vectors.
template <class Product> int run_strips(const SpmmArgs& args, int64 block, double rate = 1) {
  const double work = double(args.nnz) * double(block) * double(args.n) * double(args.batch);
  const int threads = useful_threads(args.context, work / rate);
  const Product product(args, threads);
  const int64 shared_bytes = Scratch::round_up(product.shared_bytes), own_bytes = Scratch::round_up(product.own_bytes);
  const Scratch scratch(shared_bytes + threads * own_bytes, args.workspace);
  if (!scratch) return kOutOfMemory;
  ask_for_large_pages(args.out, product.out_bytes);
  parallel(threads, [&](int64 rank, int64 size) {
    const StripProduct::Memory memory = {scratch.at(0), scratch.at(shared_bytes + rank * own_bytes)};
    product.begin(rank, size, memory.shared);
    product.plan.for_share(rank, size, [&](int64 batch, int64 first, int64 units, int64 from, int64 to) {
      product.multiply_strip(batch, first, units, from, to, memory);
    });
    product.end();
    if (product.past_caches) stream_fence();
  });
  return product.status();
}

}  // namespace jitsparse::cpu
