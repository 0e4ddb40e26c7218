#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void named_barrier(int name, int threads) { emulation::arrive_and_wait(emulation::cta->named[name], threads); }

}  // namespace jitsparse::ptx
