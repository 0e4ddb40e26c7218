// The second kernel of a split-K sdd: adds the parts, always in the same order.
#pragma once

#include "../../abi.h"
#include "../tile/split_k.cuh"

namespace jitsparse {

template <typename Element>
struct SddSum {
  using Storage = typename Element::Storage;
  static constexpr int kThreads = 256, kMinCtas = 1, kSharedBytes = 0;

  struct Params {
    const float* sums;  // (parts, count)
    Storage* out;
    int64 count;             // elements, a multiple of 256 as all blocks are
    const int32* tiles;      // begins with the number of tiles
    int ctas, most;          // arguments of parts_of_sums, as in the first kernel
  };

  static __device__ __forceinline__ void run(const Params& params) {
    const int parts = parts_of_sums(__ldg(params.tiles), params.ctas, params.most);
    if (parts == 1) return;  // the results are in `out` already
    const int64 i = (int64(blockIdx.x) * kThreads + threadIdx.x) * kSumsAtOnce;
    if (i >= params.count) return;
    float sum[kSumsAtOnce] = {};
    add_parts(sum, params.sums, parts, params.count, i);
    store_sums_at<Element>(params.out + i, sum);
  }

  // Split-K outputs are small, so this is a few thousand CTAs at most.
  static int64 grid(const Params& params) { return div_up(params.count, kThreads * kSumsAtOnce); }
};

}  // namespace jitsparse
