// Arithmetic instructions that C++ has no name for.
#pragma once

namespace jitsparse::ptx {

// 2^x within two units in the last place; results below 2^-126 are zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

// The greater of two numbers; NaN if either is NaN.
__device__ __forceinline__ float max_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a || b != b ? a + b : fmaxf(a, b);
#endif
}

}  // namespace jitsparse::ptx
