#pragma once

#include "../emulator.h"
#include "../tensor_map.cuh"

namespace jitsparse::ptx {

inline void tma_prefetch_map(const CUtensorMap*) {}
void tma_load_3d(unsigned shared, const CUtensorMap* map, unsigned barrier, int x, int y, int z, uint64 = 0);
void tma_store_3d(const CUtensorMap* map, unsigned shared, int x, int y, int z, uint64 = 0);
inline void bulk_commit() { emulation::commit(emulation::Begun::stores); }
template <int PENDING>
void bulk_wait_read() {
  emulation::finish(emulation::Begun::stores, PENDING);
}

}  // namespace jitsparse::ptx
