// The epilogue's activations, as torch defines them (gelu is the exact, erf form).
#pragma once

#include "../../abi.h"
#include "../ptx/arithmetic.cuh"

namespace jitsparse {

__device__ __forceinline__ float relu(float x) { return ptx::max_nan(x, 0.0f); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Called rather than inlined: a tile of 64 x 64 has 32 of them a thread, which would spill.
__device__ __forceinline__ double relu(double x) { return x != x ? x : fmax(x, 0.0); }
__device__ __noinline__ double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
__device__ __noinline__ double silu(double x) { return x / (1.0 + exp(-x)); }

// For results that are rounded to 16 bits. gelu(x) = max(x, 0) - |x| Phi(-|x|), and log2 Phi(-a) is nearly a parabola: this
// polynomial, fitted to the least greatest error over [0, 5.6], gives Phi within 4e-5 of itself there and within 1e-3 up to 8; half
// a unit in the last place of float16 is 2.4e-4. Ten instructions, where erff takes over twenty.
__device__ __forceinline__ float gelu_to_16_bits(float x) {
  const float a = fminf(fabsf(x), 10.0f);
  float log2_tail = -1.140311156e-6f;
  log2_tail = fmaf(log2_tail, a, 4.558690853e-5f);
  log2_tail = fmaf(log2_tail, a, -7.864942891e-4f);
  log2_tail = fmaf(log2_tail, a, 7.868045941e-3f);
  log2_tail = fmaf(log2_tail, a, -5.250221491e-2f);
  log2_tail = fmaf(log2_tail, a, -4.600527883e-1f);
  log2_tail = fmaf(log2_tail, a, -1.150591969f);
  log2_tail = fmaf(log2_tail, a, -1.000042558f);
  return fmaf(-a, ptx::exp2_approx(log2_tail), relu(x));
}
__device__ __forceinline__ float silu_to_16_bits(float x) {
  return __fdividef(x, 1.0f + ptx::exp2_approx(-1.442695041f * x));
}

// To all of a thread's values, which become Elements next. The choice stands outside the loops: inside, each of a hundred unrolled
// copies would hold the code of every activation, and warps would wait for instructions (relu made a product of 128 x 256 tiles
// take three times as long).
template <typename Element, typename Real, int N>
__device__ __forceinline__ void apply_activation(Real (&values)[N], int64 activation) {
  constexpr bool k16Bits = sizeof(typename Element::Storage) == 2;
  switch (activation) {
    case kRelu:
#pragma unroll
      for (Real& x : values) x = relu(x);
      break;
    case kGelu:
#pragma unroll
      for (Real& x : values) {
        if constexpr (k16Bits) {
          x = gelu_to_16_bits(x);
        } else {
          x = gelu(x);
        }
      }
      break;
    case kSilu:
#pragma unroll
      for (Real& x : values) {
        if constexpr (k16Bits) {
          x = silu_to_16_bits(x);
        } else {
          x = silu(x);
        }
      }
      break;
    default: break;
  }
}

}  // namespace jitsparse
