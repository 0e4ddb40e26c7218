// The second half of an sdd whose sums over k were divided: adds the parts, always in the same order.
#pragma once

#include "../../abi.h"

namespace jitsparse {

// Into how many parts the sums of an sdd with so many tiles are divided, so that every one of `ctas` has something to do.
__device__ __forceinline__ int parts_of_sums(int tiles, int ctas, int most) {
  const int wanted = tiles ? ctas / tiles : 1;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

template <typename Element>
struct SddSum {
  using Storage = typename Element::Storage;
  static constexpr int kThreads = 256, kSharedBytes = 0, kAtOnce = 4;

  struct Params {
    const float* sums;  // (parts, count)
    Storage* out;
    int64 count;             // elements, a multiple of 256 as all blocks are
    const int32* tiles;      // how many tiles the first half had
    int ctas, most;          // and what else it knew
  };

  static __device__ __forceinline__ void run(const Params& params) {
    const int parts = parts_of_sums(__ldg(params.tiles), params.ctas, params.most);
    if (parts == 1) return;  // they lie in `out` already
    const int64 step = int64(gridDim.x) * (kThreads * kAtOnce);
    for (int64 i = (int64(blockIdx.x) * kThreads + threadIdx.x) * kAtOnce; i < params.count; i += step) {
      float sum[kAtOnce] = {};
      for (int part = 0; part < parts; ++part) {
        const float4 x = *reinterpret_cast<const float4*>(params.sums + part * params.count + i);
        sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
      }
      if constexpr (sizeof(Storage) == 2) {
        *reinterpret_cast<uint2*>(params.out + i) = make_uint2(Element::pack(sum[0], sum[1]), Element::pack(sum[2], sum[3]));
      } else {
        *reinterpret_cast<float4*>(params.out + i) = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
    }
  }

  // Divided sums are few, so this is a few thousand CTAs at most.
  static int64 grid(const Params& params) { return div_up(params.count, kThreads * kAtOnce); }
};

}  // namespace jitsparse
