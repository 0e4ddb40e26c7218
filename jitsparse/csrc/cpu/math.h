// Activations. Floats stay in vector registers, with a few units in the last place of error; doubles
// go through libm element by element.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

// e^x, with x clamped to [-87, 88].
template <int N> JITSPARSE_INLINE Vec<float, N> exp(Vec<float, N> x) {
  using V = Vec<float, N>;
  x = x < -87.0f ? V{} - 87.0f : x;
  x = x > 88.0f ? V{} + 88.0f : x;
  // x = n ln 2 + r: adding 1.5 * 2^23 leaves n, rounded, in the low bits of the sum.
  const V shifted = x * 1.44269504f + 12582912.0f;
  const V n = shifted - 12582912.0f;
  const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  return (V)((Vec<int, N>)p + ((Vec<int, N>)shifted << 23));
}

// x / (1 + e^-x). The exponential ends at e^88; the square of e^(-x / 2) goes on to the largest float
// and then to infinity, so that the result is zero far below zero.
template <int N> JITSPARSE_INLINE Vec<float, N> silu(Vec<float, N> x) {
  const Vec<float, N> root = exp<N>(x * -0.5f);
  return x / (root * root + 1.0f);
}

// x times the normal distribution function, x erfc(-x / sqrt 2) / 2. The distribution's tail beyond
// |x| is e^(-x^2 / 2) times a function that is smooth in 1 / (1 + 0.35 |x|): a polynomial of degree
// 9, fitted to a relative error of 3.2e-8. So the tail is accurate in relative terms, unlike 1 + erf, as far
// as float has normal numbers: the exponential ends at e^-87, at |x| = sqrt(174), and beyond that the tail is zero.
template <int N> JITSPARSE_INLINE Vec<float, N> gelu(Vec<float, N> x) {
  using V = Vec<float, N>;
  constexpr float kLast = 13.19f;
  V a = x < 0.0f ? -x : x;
  a = a > kLast ? V{} + kLast : a;
  const V t = 1.0f / (a * 0.35f + 1.0f);
  V p = t * -0.029145601728929264f + 0.14397023006201945f;
  p = p * t - 0.2557114858823999f;
  p = p * t + 0.1591712902664981f;
  p = p * t - 0.023108052678627884f;
  p = p * t + 0.10550732730709134f;
  p = p * t + 0.11983302056689006f;
  p = p * t + 0.1398618509115018f;
  p = p * t + 0.13962140525376823f;
  V tail = p * t * exp<N>(a * a * -0.5f);
  tail = a < kLast ? tail : V{};
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

template <int N> JITSPARSE_INLINE Vec<double, N> silu(Vec<double, N> x) {
  for (int i = 0; i < N; ++i) x[i] /= 1 + __builtin_exp(-x[i]);
  return x;
}

template <int N> JITSPARSE_INLINE Vec<double, N> gelu(Vec<double, N> x) {
  for (int i = 0; i < N; ++i) x[i] *= 0.5 * __builtin_erfc(x[i] * -0.70710678118654752440);
  return x;
}

// NaN stays NaN.
template <class E, int N> JITSPARSE_INLINE Vec<E, N> relu(Vec<E, N> x) { return x < E(0) ? Vec<E, N>{} : x; }

// One branch per vector: the cost of a product's epilogue is in its memory traffic.
template <class E, int N> JITSPARSE_INLINE Vec<E, N> activate(Vec<E, N> x, int64 activation) {
  switch (activation) {
    case kRelu: return relu<E, N>(x);
    case kGelu: return gelu<N>(x);
    case kSilu: return silu<N>(x);
    default: return x;
  }
}

}  // namespace jitsparse::cpu
