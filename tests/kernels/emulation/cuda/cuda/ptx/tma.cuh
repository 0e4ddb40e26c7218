#pragma once

#include "../tensor_map.cuh"
#include "mbarrier.cuh"

namespace emulation {

// Calls each(element of the tensor or null if outside, its address in shared memory) for every element of a box.
template <typename Each>
void for_each_element(const CUtensorMap& map, unsigned shared, int x, int y, int z, const Each& each) {
  const int bytes = map.item_bytes, row_bytes = map.box.inner * bytes;
  if (shared % (8 * row_bytes)) fail("a box that does not begin where its swizzle does");
  for (int r = 0; r < map.box.outer; ++r) {
    for (int c = 0; c < map.box.inner; ++c) {
      const long long i = x + c, j = y + r;
      const bool inside = i >= 0 && i < map.shape.inner && j >= 0 && j < map.shape.outer && z >= 0 && z < map.shape.batch;
      char* element = inside ? map.base + bytes * (i + j * map.shape.ld + z * map.shape.batch_stride) : nullptr;
      each(element, at(swizzled(shared + r * row_bytes + c * bytes, row_bytes), bytes));
    }
  }
}

}  // namespace emulation

namespace jitsparse::ptx {

inline void tma_prefetch_map(const CUtensorMap*) {}

inline void tma_load_3d(unsigned shared, const CUtensorMap* map, unsigned barrier, int x, int y, int z, uint64 = 0) {
  const int bytes = map->item_bytes;
  emulation::for_each_element(*map, shared, x, y, z, [=](const char*, unsigned char* to) { std::memset(to, 0xff, bytes); });
  emulation::cta->bulk_loads.push_back([=] {
    emulation::for_each_element(*map, shared, x, y, z, [=](const char* from, unsigned char* to) {
      if (from) emulation::check_read(from, bytes);
      from ? void(std::memcpy(to, from, bytes)) : void(std::memset(to, 0, bytes));
      if (bytes == 4) emulation::round_to_tf32(to);
    });
    auto& here = emulation::mbarrier(barrier);
    here.bytes -= map->box.inner * map->box.outer * bytes;
    emulation::settle(here);
  });
}

inline void tma_store_3d(const CUtensorMap* map, unsigned shared, int x, int y, int z, uint64 = 0) {
  const unsigned bytes = map->box.inner * map->box.outer * map->item_bytes;
  const auto unfenced = emulation::cta->unfenced.lower_bound(shared);
  if (unfenced != emulation::cta->unfenced.end() && unfenced->first < shared + bytes) {
    emulation::fail("a bulk store of what no fence.proxy.async has shown");
  }
  // It may be read at once, or as late as the kernel waits for.
  const unsigned char* from = emulation::at(shared, 1);
  const std::vector<unsigned char> now(from, from + bytes);
  emulation::self().open_stores.push_back([=] {
    if (std::memcmp(now.data(), from, bytes)) emulation::fail("shared memory changed under a bulk store");
    emulation::for_each_element(*map, shared, x, y, z, [=](char* to, const unsigned char* from) {
      if (to) std::memcpy(to, from, map->item_bytes);
    });
  });
}
inline void bulk_commit() {
  emulation::self().stores.push_back(std::move(emulation::self().open_stores));
  emulation::self().open_stores.clear();
}
template <int PENDING>
void bulk_wait_read() {
  emulation::finish(emulation::self().stores, PENDING);
}

}  // namespace jitsparse::ptx
