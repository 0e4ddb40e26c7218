// Sums of a register tile that are written past the caches while the next tile is multiplied.
//
// A line on its way to memory occupies one of some 16 buffers of a core, which lines of panels need on their way into the L1 cache. If
// a tile's lines are all written at once, the next tile waits for them; one row every few steps, products are 1.02 to 1.04 times as
// fast at density 0.1.
#pragma once

#include "cpu/epilogue.h"

namespace jitsparse::cpu {

// Of tiles of at most ROWS rows and VECTORS vectors of columns. Sums are stored in memory(), and defer() says where they go. That is for the
// caller of a tile to decide: GCC keeps such a flag of a tile in a mask register, whose load from the stack waits until all earlier stores
// have left the core, and products whose output stays in the caches took 1.1 to 1.2 times as long.
template <class A, int ROWS, int VECTORS> class DeferredSums {
  static constexpr int kL = kLanes<A>;
  static constexpr int kTile = ROWS * VECTORS * kL;

 public:
  // Of the memory for it, which begins at a cache line: a tile is stored while the one before may still be there.
  static constexpr int64 kBytes = 2 * kTile * int64(sizeof(A));

  explicit DeferredSums(A* memory) : first_(memory), second_(memory + kTile) {}

  bool empty() const { return rows_ == 0; }
  A* memory() const { return first_; }

  // The sums in memory(), `rows` rows of `vectors` vectors, one after the other, go to `to`.
  __attribute__((noinline)) void defer(const SumsView<A>& to, int rows, int vectors) {
    complete();
    A* const stored = first_;
    first_ = second_;
    second_ = stored;
    from_ = stored;
    to_ = to.first;
    ld_ = to.ld;
    vectors_ = vectors;
    rows_ = rows;
  }

  // Writes everything that is not of V vectors, so that next() may follow.
  template <int V> void expect() {
    if (vectors_ != V) complete();
  }

  // Writes a row of V vectors.
  template <int V> JITSPARSE_INLINE void next() {
    JITSPARSE_UNROLL
    for (int v = 0; v < V; ++v) stream(to_ + v * kL, load<kL>(from_ + v * kL));
    advance(V);
  }

  void complete() {
    while (!empty()) {
      for (int v = 0; v < vectors_; ++v) stream(to_ + v * kL, load<kL>(from_ + v * kL));
      advance(vectors_);
    }
  }

 private:
  JITSPARSE_INLINE void advance(int vectors) {
    from_ += vectors * kL;
    to_ += ld_;
    --rows_;
  }

  A *first_, *second_;
  const A* from_ = nullptr;
  A* to_ = nullptr;
  int64 ld_ = 0;
  int vectors_ = 0, rows_ = 0;
};

}  // namespace jitsparse::cpu
