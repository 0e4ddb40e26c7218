// AMX: one instruction, one function. A tile register holds up to 16 rows of 64 bytes.
#pragma once

#include "cpu/tile_config.h"

extern "C" long syscall(long number, ...) noexcept;

namespace jitsparse::cpu {

// Asks Linux for the tile registers, for all threads of the process; asking again is harmless.
inline bool request_tiles() {
  constexpr long kArchPrctl = 158, kRequestPermission = 0x1023, kTileData = 18;
  return syscall(kArchPrctl, kRequestPermission, kTileData) == 0;
}

inline void tile_configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }

inline void tile_release() { asm volatile("tilerelease" : : :); }

template <int TILE> inline void tile_zero() { asm volatile("tilezero %%tmm%c0" : : "i"(TILE)); }

// `stride` in bytes, from one row to the next.
template <int TILE> inline void tile_load(const void* from, int64 stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(TILE), "r"(from), "r"(stride) : "memory");
}

template <int TILE> inline void tile_store(void* to, int64 stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(TILE), "r"(to), "r"(stride) : "memory");
}

// SUM[i][j] += LEFT[i][2p] * RIGHT[p][2j] + LEFT[i][2p + 1] * RIGHT[p][2j + 1], over p: a row of RIGHT
// holds pairs of neighbours along the axis that is summed over.
template <int SUM, int LEFT, int RIGHT> inline void tile_multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(LEFT), "i"(RIGHT));
}

}  // namespace jitsparse::cpu
