#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline unsigned load_shared_b32(unsigned shared) {
  unsigned d;
  std::memcpy(&d, emulation::at(shared, 4), 4);
  return d;
}
inline void load_shared_b128(float (&d)[4], unsigned shared) { std::memcpy(d, emulation::at(shared, 16), 16); }

template <int WORDS>
void load_shared(unsigned (&d)[WORDS], unsigned shared) {
  std::memcpy(d, emulation::at(shared, sizeof d), sizeof d);
}

}  // namespace jitsparse::ptx
