#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline unsigned load_shared_b32(unsigned shared) {
  unsigned d;
  std::memcpy(&d, emulation::at(shared, 4), 4);
  return d;
}
inline void load_shared_b128(float (&d)[4], unsigned shared) { std::memcpy(d, emulation::at(shared, 16), 16); }
inline double load_shared_f64(unsigned shared) {
  double d;
  std::memcpy(&d, emulation::at(shared, 8), 8);
  return d;
}
inline void load_shared_f64x2(double& d0, double& d1, unsigned shared) {
  double d[2];
  std::memcpy(d, emulation::at(shared, 16), 16);
  d0 = d[0], d1 = d[1];
}

template <int WORDS>
void load_shared(unsigned (&d)[WORDS], unsigned shared) {
  std::memcpy(d, emulation::at(shared, sizeof d), sizeof d);
}

}  // namespace jitsparse::ptx
