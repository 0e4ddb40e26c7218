// The second half of a block-sparse x dense product whose sums over k were divided: adds the parts, always in the same order, then bias
// and activation.
#pragma once

#include "../../abi.h"
#include "../tile/activation.cuh"
#include "../tile/divisor.cuh"
#include "../tile/element.cuh"

namespace jitsparse {

template <typename Element>
struct SpmmSum {
  using Storage = typename Element::Storage;
  static constexpr int kThreads = 256, kSharedBytes = 0, kAtOnce = 4;
  static_assert(sizeof(Storage) == 2, "16-bit elements");

  struct Params {
    const float* sums;  // (parts, count)
    Storage* out;       // contiguous
    const Storage* bias;
    int64 count;      // elements, a multiple of 8 as rows are
    Divisor columns;  // of out
    int64 parts, activation;
  };

  static Params of(const SpmmArgs& args, int64 rows, int64 columns, int64 parts) {
    return {static_cast<const float*>(args.workspace), static_cast<Storage*>(args.out), static_cast<const Storage*>(args.bias),
            args.batch * rows * columns, Divisor::of(unsigned(columns)), parts, args.activation};
  }

  static __device__ __forceinline__ void run(const Params& params) {
    const int64 i = (int64(blockIdx.x) * kThreads + threadIdx.x) * kAtOnce;
    if (i >= params.count) return;
    float sum[kAtOnce] = {};
    for (int64 part = 0; part < params.parts; ++part) {
      const float4 x = *reinterpret_cast<const float4*>(params.sums + part * params.count + i);
      sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
    }
    if (params.bias != nullptr) {
      const unsigned column = unsigned(i) - params.columns.quotient(unsigned(i)) * params.columns.value;
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) sum[e] += Element::load(params.bias[column + e]);
    }
    apply_activation<Element>(sum, params.activation);
    *reinterpret_cast<uint2*>(params.out + i) = make_uint2(Element::pack(sum[0], sum[1]), Element::pack(sum[2], sum[3]));
  }

  // None where sums were not divided: then they lie in `out` already.
  static int64 grid(const Params& params) { return params.parts > 1 ? div_up(params.count, kThreads * kAtOnce) : 0; }
};

}  // namespace jitsparse
