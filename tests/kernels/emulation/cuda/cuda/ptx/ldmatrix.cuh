#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void ldmatrix_x4(unsigned (&d)[4], unsigned shared) {
  emulation::exchange(shared, [&](const auto& row) {
    for (int i = 0; i < 4; ++i) std::memcpy(&d[i], emulation::at(row(i * 8 + emulation::lane() / 4), 16) + emulation::lane() % 4 * 4, 4);
  });
}
inline void ldmatrix_x4_trans(unsigned (&d)[4], unsigned shared) {
  emulation::exchange(shared, [&](const auto& row) {
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        const int from = i * 8 + emulation::lane() % 4 * 2 + half;
        std::memcpy(reinterpret_cast<char*>(&d[i]) + half * 2, emulation::at(row(from), 16) + emulation::lane() / 4 * 2, 2);
      }
    }
  });
}
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
