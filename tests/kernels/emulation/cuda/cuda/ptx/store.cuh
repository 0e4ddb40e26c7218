#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void store(void* to, const unsigned (&words)[4]) { std::memcpy(to, words, sizeof words); }

}  // namespace jitsparse::ptx
