// wgmma's descriptors of operands in shared memory.
#pragma once

#include "../../abi.h"

namespace jitsparse::ptx {

// Descriptor of an operand in shared memory in rows of ROW_BYTES, whose 16-byte chunks are permuted by the swizzle of that width. `stride`
// is the distance in bytes between groups of eight rows, `leading` that between neighbouring tiles of ROW_BYTES (used by MN-major
// operands). The address must be a multiple of 8 ROW_BYTES, except for an advance along k.
template <int ROW_BYTES>
__device__ __forceinline__ uint64 wgmma_descriptor(unsigned address, int leading, int stride) {
  static_assert(ROW_BYTES == 128 || ROW_BYTES == 64 || ROW_BYTES == 32, "the swizzles that exist");
  constexpr uint64 kSwizzle = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
  return kSwizzle << 62 | uint64(stride >> 4) << 32 | uint64(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// The descriptor of an operand `bytes` further on. Shared memory ends before the address could carry out of its field, so
// this is one 32-bit addition; the upper half stays a constant.
__device__ __forceinline__ uint64 advance(uint64 descriptor, int bytes) {
  return (descriptor & 0xffffffff00000000ull) | (unsigned(descriptor) + unsigned(bytes >> 4));
}

}  // namespace jitsparse::ptx
