#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

template <bool TRANSPOSED>
void store_matrices(unsigned shared, const unsigned (&d)[4]) {
  emulation::exchange(shared, [&](const auto& row) {
    const int major = emulation::lane() / 4, minor = emulation::lane() % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        const int at_row = TRANSPOSED ? minor + half : major, at_column = TRANSPOSED ? major : minor + half;
        std::memcpy(emulation::at(row(i * 8 + at_row), 16) + at_column * 2, reinterpret_cast<const char*>(&d[i]) + half * 2, 2);
        emulation::written(row(i * 8 + at_row) + at_column * 2, 2);
      }
    }
  });
}
inline void stmatrix_x4(unsigned shared, const unsigned (&d)[4]) { store_matrices<false>(shared, d); }
inline void stmatrix_x4_trans(unsigned shared, const unsigned (&d)[4]) { store_matrices<true>(shared, d); }

}  // namespace jitsparse::ptx
