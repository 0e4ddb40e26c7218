#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline int thread_index() { return threadIdx.x; }
inline int block_index() { return blockIdx.x; }

}  // namespace jitsparse::ptx
