// Global loads of 8 or 16 bytes per thread; where the predicate is false, nothing is read and the result is zero.
#pragma once

namespace jitsparse::ptx {

__device__ __forceinline__ void load(unsigned (&to)[4], const void* from, bool inside) {
  const uint4 words = inside ? __ldg(static_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
}

__device__ __forceinline__ void load(unsigned (&to)[2], const void* from, bool inside) {
  const uint2 words = inside ? __ldg(static_cast<const uint2*>(from)) : make_uint2(0, 0);
  to[0] = words.x, to[1] = words.y;
}

// Data that is read only once need not stay in a cache.
__device__ __forceinline__ void load_once(unsigned (&to)[4], const void* from, bool inside) {
  const uint4 words = inside ? __ldcs(static_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
}

__device__ __forceinline__ void load_once(unsigned (&to)[2], const void* from, bool inside) {
  const uint2 words = inside ? __ldcs(static_cast<const uint2*>(from)) : make_uint2(0, 0);
  to[0] = words.x, to[1] = words.y;
}

}  // namespace jitsparse::ptx
