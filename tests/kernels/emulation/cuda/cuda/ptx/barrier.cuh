#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void named_barrier(int name, int threads) { emulation::named_barrier(name, threads); }

}  // namespace jitsparse::ptx
