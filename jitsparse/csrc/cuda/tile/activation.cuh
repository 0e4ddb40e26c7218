// The epilogue's activations, as torch defines them (gelu is the exact, erf form).
#pragma once

#include "../../abi.h"

namespace jitsparse {

__device__ __forceinline__ float relu(float x) { return x != x ? x : fmaxf(x, 0.0f); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Called rather than inlined: a tile of 64 x 64 has 32 of them a thread, which would spill.
__device__ __forceinline__ double relu(double x) { return x != x ? x : fmax(x, 0.0); }
__device__ __noinline__ double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
__device__ __noinline__ double silu(double x) { return x / (1.0 + exp(-x)); }

// To all of a thread's values. The choice stands outside the loops: inside, each of a hundred unrolled copies would hold the code
// of every activation, and warps would wait for instructions (relu made a product of 128 x 256 tiles take three times as long).
template <typename Real, int N>
__device__ __forceinline__ void apply_activation(Real (&values)[N], int64 activation) {
  switch (activation) {
    case kRelu:
#pragma unroll
      for (Real& x : values) x = relu(x);
      break;
    case kGelu:
#pragma unroll
      for (Real& x : values) x = gelu(x);
      break;
    case kSilu:
#pragma unroll
      for (Real& x : values) x = silu(x);
      break;
    default: break;
  }
}

}  // namespace jitsparse
