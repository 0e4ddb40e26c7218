#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

template <int N>
void ldmatrix(unsigned (&d)[N], unsigned shared) {
  emulation::exchange(shared, [&](const auto& row) {
    for (int i = 0; i < N; ++i) std::memcpy(&d[i], emulation::at(row(i * 8 + emulation::lane() / 4), 16) + emulation::lane() % 4 * 4, 4);
  });
}
template <int N>
void ldmatrix_trans(unsigned (&d)[N], unsigned shared) {
  emulation::exchange(shared, [&](const auto& row) {
    for (int i = 0; i < N; ++i) {
      for (int half = 0; half < 2; ++half) {
        const int from = i * 8 + emulation::lane() % 4 * 2 + half;
        std::memcpy(reinterpret_cast<char*>(&d[i]) + half * 2, emulation::at(row(from), 16) + emulation::lane() / 4 * 2, 2);
      }
    }
  });
}

}  // namespace jitsparse::ptx
