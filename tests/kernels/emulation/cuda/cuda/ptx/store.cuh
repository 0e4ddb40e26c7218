#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void store(void* to, const unsigned (&words)[4]) { *static_cast<int4*>(to) = reinterpret_cast<const int4&>(words); }

}  // namespace jitsparse::ptx
