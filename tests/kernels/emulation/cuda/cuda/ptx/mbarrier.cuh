#pragma once

#include "../emulator.h"

namespace emulation {

inline Mbarrier& mbarrier(unsigned address) {
  const auto found = cta->mbarriers.find(address);
  if (found == cta->mbarriers.end()) fail("an mbarrier that was not initialised");
  return found->second;
}

inline void settle(Mbarrier& barrier) {
  ++cta->progress;
  if (barrier.left < 0) fail("too many arrivals at an mbarrier");
  if (barrier.left > 0 || barrier.bytes != 0) return;
  barrier.left = barrier.arrivals;
  ++barrier.phase;
}

}  // namespace emulation

namespace jitsparse::ptx {

inline void mbarrier_init(unsigned barrier, int arrivals) {
  emulation::at(barrier, 8);
  emulation::cta->mbarriers[barrier] = {arrivals, arrivals, 0, 0};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(unsigned barrier) {
  auto& here = emulation::mbarrier(barrier);
  --here.left;
  emulation::settle(here);
}
inline void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) {
  auto& here = emulation::mbarrier(barrier);
  here.bytes += bytes;
  --here.left;
  emulation::settle(here);
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  auto& here = emulation::mbarrier(barrier);
  emulation::wait_until([&] { return (here.phase & 1) != parity; });
}

}  // namespace jitsparse::ptx
