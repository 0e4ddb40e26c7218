// The hardware's exponential.
#pragma once

namespace jitsparse::ptx {

// 2^x within two units in the last place; results below 2^-126 are zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace jitsparse::ptx
