// AMX tiles in plain C++: stands in front of csrc/cpu/tiles.h on the include path, so that the kernels
// written for tiles are tested on any machine. What the processor would fault on, aborts.
#pragma once

#include <cstdlib>
#include <cstring>

#include "cpu/tile_config.h"

namespace jitsparse::cpu {

struct Tile {
  int rows = 0, row_bytes = 0;
  unsigned char data[16][64];
};

// Per thread, as the registers are.
inline thread_local Tile tiles[8];

inline void require(bool holds) {
  if (!holds) std::abort();
}

inline bool request_tiles() { return true; }

inline void tile_configure(const TileConfig& config) {
  require(config.palette == 1 && config.start_row == 0);
  for (int t = 0; t < 8; ++t) {
    require(config.rows[t] <= 16 && config.row_bytes[t] <= 64 && config.row_bytes[t] % 4 == 0);
    tiles[t].rows = config.rows[t];
    tiles[t].row_bytes = config.row_bytes[t];
  }
}

inline void tile_release() {
  for (Tile& tile : tiles) tile.rows = tile.row_bytes = 0;
}

template <int TILE> inline void tile_zero() {
  require(tiles[TILE].rows > 0);
  std::memset(tiles[TILE].data, 0, sizeof tiles[TILE].data);
}

template <int TILE> inline void tile_load(const void* from, int64 stride) {
  Tile& tile = tiles[TILE];
  require(tile.rows > 0);
  std::memset(tile.data, 0, sizeof tile.data);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.data[r], static_cast<const char*>(from) + r * stride, tile.row_bytes);
  }
}

template <int TILE> inline void tile_store(void* to, int64 stride) {
  const Tile& tile = tiles[TILE];
  require(tile.rows > 0);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tile.data[r], tile.row_bytes);
  }
}

// Element `parity` of pair number `pair` of a row.
inline float element(const Tile& tile, int row, int pair, int parity) {
  unsigned short half;
  std::memcpy(&half, tile.data[row] + 4 * pair + 2 * parity, sizeof half);
  const unsigned bits = static_cast<unsigned>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <int SUM, int LEFT, int RIGHT> inline void tile_multiply_bf16() {
  Tile& sum = tiles[SUM];
  const Tile &left = tiles[LEFT], &right = tiles[RIGHT];
  require(sum.rows > 0 && sum.rows == left.rows && sum.row_bytes == right.row_bytes);
  require(left.row_bytes == 4 * right.rows);
  float total[16][16];
  std::memcpy(total, sum.data, sizeof total);
  for (int p = 0; p < right.rows; ++p) {
    for (int parity = 0; parity < 2; ++parity) {
      float row[16] = {};
      for (int j = 0; j < sum.row_bytes / 4; ++j) row[j] = element(right, p, j, parity);
      for (int i = 0; i < sum.rows; ++i) {
        const float factor = element(left, i, p, parity);
        for (int j = 0; j < 16; ++j) total[i][j] += factor * row[j];
      }
    }
  }
  std::memcpy(sum.data, total, sizeof total);
}

}  // namespace jitsparse::cpu
