#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

void mbarrier_init(unsigned barrier, int arrivals);
inline void fence_mbarrier_init() {}
void mbarrier_arrive(unsigned barrier);
void mbarrier_arrive_expect_tx(unsigned barrier, int bytes);
bool mbarrier_test_wait(unsigned barrier, unsigned parity);
void mbarrier_wait(unsigned barrier, unsigned parity);

}  // namespace jitsparse::ptx
