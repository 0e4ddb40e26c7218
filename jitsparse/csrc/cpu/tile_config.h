// What AMX tile registers hold, where that comes from, and how kernels number them.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

constexpr double kAmxRate = 16;  // of multiply-adds, relative to vectors

// The operand of ldtilecfg: for each register its rows, at most 16, and their bytes, at most 64.
struct alignas(64) TileConfig {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};

  constexpr void set(int tile, int row_count, int bytes) {
    rows[tile] = static_cast<unsigned char>(row_count);
    row_bytes[tile] = static_cast<unsigned short>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

// The eight registers, divided so that ROWS x COLS sums are formed from ROWS left tiles and COLS right
// ones; right tiles take turns in the remaining registers.
template <int ROWS, int COLS> struct TileRegisters {
  static_assert(ROWS * COLS <= 4 && ROWS < 4, "sums take four registers, left and right tiles the others");

  static constexpr int kRights = 4 - ROWS;
  static constexpr int sum(int i, int j) { return i * COLS + j; }
  static constexpr int left(int i) { return 4 + i; }
  static constexpr int right(int j) { return 4 + ROWS + j % kRights; }

  // m x n sums of 32-bit elements, over a depth of k 16-bit ones.
  static constexpr TileConfig config(int m, int n, int k) {
    TileConfig config;
    for (int i = 0; i < ROWS; ++i) {
      for (int j = 0; j < COLS; ++j) config.set(sum(i, j), m, 4 * n);
      config.set(left(i), m, 2 * k);
    }
    for (int j = 0; j < COLS; ++j) config.set(right(j), k / 2, 4 * n);
    return config;
  }
};

// Where left tiles of bfloat16 are, packed or in a matrix as stored; in elements.
struct LeftTiles {
  const BFloat16* first;
  int64 line;   // from a row of a tile to the next
  int64 step;   // from a tile to the next along k
  int64 below;  // from a tile to the one below it
};

// Calls body(0), body(1) .. body(COUNT - 1) with arguments that are constant expressions: the numbers
// of registers are part of the instructions.
template <int I> struct Constant { constexpr operator int() const { return I; } };

template <int COUNT, int FROM = 0, class Body> inline void for_constants(const Body& body) {
  if constexpr (FROM < COUNT) {
    body(Constant<FROM>{});
    for_constants<COUNT, FROM + 1>(body);
  }
}

}  // namespace jitsparse::cpu
