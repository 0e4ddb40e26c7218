// The 16-bit output of a block-sparse x dense product on Hopper: each warpgroup has staging buffers behind the ring of stages.
//
// Stages: what the ring holds (SpmmStages). OUT_TRANSPOSED: the output is n x m. ACCUMULATOR_ROWS: rows of the accumulators are rows of the
// output, otherwise its columns.
#pragma once

#include "../../abi.h"
#include "../tensor_map.cuh"
#include "../tile/epilogue_staging.cuh"

namespace jitsparse {

template <typename Stages, bool OUT_TRANSPOSED, bool ACCUMULATOR_ROWS>
struct SpmmOutput {
  using Out = EpilogueStaging<ACCUMULATOR_ROWS>;
  static constexpr int kOutAt = Stages::kRingBytes, kOutBytes = Out::kBuffers * Out::kBytes;  // per warpgroup
  static constexpr int kBarriersAt = kOutAt + Stages::kConsumers * kOutBytes;
  static constexpr int kSharedBytes = kBarriersAt + Stages::kStages * 16 + kSharedAlignment;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than an SM has");

  struct Params : Stages::Params {
    CUtensorMap out;
  };

  static __device__ __forceinline__ Out staging_of(unsigned base, int group, int thread) {
    return {base + kOutAt + group * kOutBytes, group, thread};
  }

  // Starts the store of a staged subtile, 64 x 64 of the output from (at_m, at_n) on.
  static __device__ __forceinline__ void store(const Params& params, const Out& staging, unsigned at, int at_m, int at_n, int batch) {
    staging.store(at, &params.out, OUT_TRANSPOSED ? at_m : at_n, OUT_TRANSPOSED ? at_n : at_m, batch);
  }

  static __device__ __forceinline__ void send(const Params& params, Out& staging, const unsigned (&packed)[8 * 2], int at_m, int at_n,
                                              int batch) {
    const unsigned at = staging.acquire();
    staging.stage(at, packed);
    store(params, staging, at, at_m, at_n, batch);
  }

  static cudaError_t prepare(const SpmmArgs& args, Params& params) {
    if (auto error = Stages::prepare(args, params)) return error;
    const int64 m = Stages::m(args);
    const int64 inner = OUT_TRANSPOSED ? m : args.n, outer = OUT_TRANSPOSED ? args.n : m;
    const MatrixShape out = {inner, outer, args.batch, args.out_ld, args.out_batch_stride};
    return encode_map<typename Stages::Storage>(&params.out, args.out, out, {64, 64});
  }
};

}  // namespace jitsparse
