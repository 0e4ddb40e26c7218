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

}  // namespace jitsparse::ptx
