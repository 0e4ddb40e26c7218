// The second kernel of a split-K block-sparse x dense product: adds the parts, always in the same order, then bias and activation.
#pragma once

#include "../../abi.h"
#include "../tile/activation.cuh"
#include "../tile/split_k.cuh"
#include "../tile/divisor.cuh"

namespace jitsparse {

// Split-K sums in the workspace: each part is laid out like the output, m x n or, OUT_TRANSPOSED, n x m.
template <bool OUT_TRANSPOSED>
struct SpmmSums {
  static __device__ __forceinline__ float* at(const SpmmArgs& args, int64 m, int part, int64 batch) {
    return static_cast<float*>(args.workspace) + (part * args.batch + batch) * m * args.n;
  }
  static JITSPARSE_HD int64 rows(const SpmmArgs& args, int64 m) { return OUT_TRANSPOSED ? args.n : m; }
  static JITSPARSE_HD int64 ld(const SpmmArgs& args, int64 m) { return OUT_TRANSPOSED ? m : args.n; }
};

template <typename Element>
struct SpmmSum {
  using Storage = typename Element::Storage;
  static constexpr int kThreads = 256, kMinCtas = 1, kSharedBytes = 0;

  struct Params {
    const float* sums;  // (parts, count)
    Storage* out;       // contiguous
    const Storage* bias;
    int64 count;      // elements, a multiple of 4 as rows are
    Divisor columns;  // of out
    int64 parts, activation;
  };

  template <typename Sums>
  static Params of(const SpmmArgs& args, int64 m, int64 parts) {
    const int64 rows = Sums::rows(args, m), columns = Sums::ld(args, m);
    return {static_cast<const float*>(args.workspace), static_cast<Storage*>(args.out), static_cast<const Storage*>(args.bias),
            args.batch * rows * columns, Divisor::of(unsigned(columns)), parts, args.activation};
  }

  static __device__ __forceinline__ void run(const Params& params) {
    const int64 i = (int64(blockIdx.x) * kThreads + threadIdx.x) * kSumsAtOnce;
    if (i >= params.count) return;
    float sum[kSumsAtOnce] = {};
    add_parts(sum, params.sums, params.parts, params.count, i);
    if (params.bias != nullptr) {
      const unsigned column = unsigned(i) - params.columns.quotient(unsigned(i)) * params.columns.value;
#pragma unroll
      for (int e = 0; e < kSumsAtOnce; ++e) sum[e] += Element::load(params.bias[column + e]);
    }
    apply_activation<Element>(sum, params.activation);
    store_sums_at<Element>(params.out + i, sum);
  }

  // Empty without split-K: the results are in `out` already.
  static int64 grid(const Params& params) { return params.parts > 1 ? div_up(params.count, kThreads * kSumsAtOnce) : 0; }
};

}  // namespace jitsparse
