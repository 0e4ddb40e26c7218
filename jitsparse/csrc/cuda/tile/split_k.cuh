// Split-K: the number of parts of a sum over k, and their reduction, always in the same order.
#pragma once

#include "../../abi.h"
#include "element.cuh"

namespace jitsparse {

// Split-K parts per tile, at most `most`, so that each of `ctas` has work. Int: 32 bits on a device, where a 64-bit division takes a
// hundred instructions.
template <typename Int>
JITSPARSE_HD Int parts_of_sums(Int tiles, Int ctas, Int most) {
  const Int wanted = tiles ? ctas / tiles : 1;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

constexpr int kSumsAtOnce = 4;

// Adds elements i to i + 3 of (parts, count) sums; i and `count` are multiples of four.
__device__ __forceinline__ void add_parts(float (&sum)[kSumsAtOnce], const float* sums, int64 parts, int64 count, int64 i) {
  for (int64 part = 0; part < parts; ++part) {
    const float4 x = *reinterpret_cast<const float4*>(sums + part * count + i);
    sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
  }
}

template <typename Element>
__device__ __forceinline__ void store_sums_at(typename Element::Storage* to, const float (&sum)[kSumsAtOnce]) {
  if constexpr (sizeof(typename Element::Storage) == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(Element::pack(sum[0], sum[1]), Element::pack(sum[2], sum[3]));
  } else {
    *reinterpret_cast<float4*>(to) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
}

}  // namespace jitsparse
