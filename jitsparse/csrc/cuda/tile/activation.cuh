// The epilogue's activations, as torch defines them (gelu is the exact, erf form).
#pragma once

#include "../../abi.h"
#include "../ptx/arithmetic.cuh"
#include "element.cuh"

namespace jitsparse {

__device__ __forceinline__ float relu(float x) { return ptx::max_nan(x, 0.0f); }
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Not inlined: a 64 x 64 tile has 32 of these per thread, which would spill.
__device__ __forceinline__ double relu(double x) { return x != x ? x : fmax(x, 0.0); }
__device__ __noinline__ double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }
__device__ __noinline__ double silu(double x) { return x / (1.0 + exp(-x)); }

// log2 of Phi(-a), the normal distribution's tail, as minimax polynomials: it is nearly a parabola. For float16 on [0, 5.6], where gelu(-a)
// reaches the smallest number: within 3.1e-5 of Phi, half an ulp is 2.4e-4. For bfloat16 on [0, 6.5]: within 5.3e-4, half an ulp is 2e-3;
// and up to 8, where gelu(-a) is 5e-15, within 5 %.
__device__ __forceinline__ float log2_tail(float a, F16) {
  float sum = 2.550463250e-5f;
  sum = fmaf(sum, a, -6.510822568e-4f);
  sum = fmaf(sum, a, 7.432127837e-3f);
  sum = fmaf(sum, a, -5.182469636e-2f);
  sum = fmaf(sum, a, -4.604986906e-1f);
  sum = fmaf(sum, a, -1.150512815f);
  return fmaf(sum, a, -1.000040889f);
}
__device__ __forceinline__ float log2_tail(float a, Bf16) {
  float sum = -1.746586495e-4f;
  sum = fmaf(sum, a, 4.094195552e-3f);
  sum = fmaf(sum, a, -4.105557501e-2f);
  sum = fmaf(sum, a, -4.761667550e-1f);
  sum = fmaf(sum, a, -1.142209888f);
  return fmaf(sum, a, -1.000750661f);
}

// For results that are rounded to 16 bits: gelu(x) = max(x, 0) - |x| Phi(-|x|). Nine or ten instructions, where erff takes over
// twenty.
template <typename Element>
__device__ __forceinline__ float gelu_to_16_bits(float x) {
  const float a = fminf(fabsf(x), 10.0f);
  return fmaf(-a, ptx::exp2_approx(log2_tail(a, Element())), relu(x));
}
// Zero below -87.3, where |silu(x)| is at most 1e-36: __fdividef supports divisors up to 2^126.
__device__ __forceinline__ float silu_to_16_bits(float x) {
  return __fdividef(x, 1.0f + ptx::exp2_approx(-1.442695041f * x));
}

// Applies the activation to all of a thread's values before they are converted to Element. The switch is outside the loops: inside, each of
// a hundred unrolled copies would contain the code of every activation, and warps would wait for instructions (relu made a product in 128 x
// 256 tiles take three times as long).
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
          x = gelu_to_16_bits<Element>(x);
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
