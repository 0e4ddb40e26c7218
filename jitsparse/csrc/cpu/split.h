// When float32 is multiplied on AMX tiles, divided into planes (planes.h), and when by multiply-adds. (A product that is computed twice takes
// 1.2 to 1.9 times as long as by multiply-adds alone, depending on where the element is.)
#pragma once

#include "cpu/parallel.h"
#include "cpu/planes.h"

namespace jitsparse::cpu {

// Runs a product on tiles if that is faster. If an element turns out to have no planes, the product is computed again, by multiply-adds;
// these also serve where the system refuses the tile registers, or the memory for planes.
template <class Tiles, class Vectors, class Args> int run_split(const Args& args) {
  if (Tiles::serves(args) && Tiles::run(args) == kOk) return kOk;
  return Vectors::run(args);
}

// Whether any thread of a product saw elements that cannot be divided into planes.
class OutsideRange {
 public:
  template <class Range> void note(const Range& range) const {
    if (range.outside()) __atomic_store_n(&seen_, true, __ATOMIC_RELAXED);
  }
  bool seen() const { return __atomic_load_n(&seen_, __ATOMIC_RELAXED); }
  int status() const { return seen() ? kOutsideRange : kOk; }

 private:
  mutable bool seen_ = false;
};

// Whether dividing the elements of a dsd or dds into planes takes less time than it saves: an element has to be multiplied that often. At
// 2048, products with n of 32 to 128 are 0.6 to 0.9 times as fast as by multiply-adds, with n of 256 1.1 to 1.3. Fewer planes pay sooner: two
// with n of 128 (1.1 to 1.6, with 64 0.75 to 1.0), one with n of 32 (1.2 to 1.8, with 16 0.9 to 1.3); in blocks that are 16 deep, half of a
// tile, with n of 256 and 128. DEPTH: of a block, along k; `block`: its elements; `k`: what is summed over.
template <int PLANES, int DEPTH> bool planes_serve(const SpmmArgs& args, int64 block, int64 k) {
  constexpr double kTimesOfDense = 90, kTimesOfValues = 200;
  constexpr double kSooner = PLANES == 3 ? 1 : PLANES == 2 ? (DEPTH < 32 ? 1.5 : 2.2) : (DEPTH < 32 ? 3 : 10);
  if (k > kMostProducts) return false;
  const double values = double(args.nnz) * double(block), n = double(args.n) * double(args.batch);
  return kTimesOfDense * double(k) * n + kTimesOfValues * values <= kSooner * values * n;
}

}  // namespace jitsparse::cpu
