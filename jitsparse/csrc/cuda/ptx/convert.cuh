// Conversions between float and the storage types, without cuda_fp16.h and cuda_bf16.h: those two headers
// cost 0.4 s of every first use.
#pragma once

namespace jitsparse::ptx {

// Packs two floats into two 16-bit floats, round to nearest even; `low` is the element at the lower address.
__device__ __forceinline__ unsigned pack_bf16x2(float low, float high) {
  unsigned d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ unsigned pack_f16x2(float low, float high) {
  unsigned d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// Packs with relu: negative values become 0, and NaN stays NaN.
__device__ __forceinline__ unsigned pack_relu_bf16x2(float low, float high) {
  unsigned d;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ unsigned pack_relu_f16x2(float low, float high) {
  unsigned d;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ unsigned short to_bf16(float x) {
  unsigned short d;
  asm("cvt.rn.bf16.f32 %0, %1;\n" : "=h"(d) : "f"(x));
  return d;
}

__device__ __forceinline__ unsigned short to_f16(float x) {
  unsigned short d;
  asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(d) : "f"(x));
  return d;
}

__device__ __forceinline__ float from_bf16(unsigned short x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

__device__ __forceinline__ float from_f16(unsigned short x) {
  float d;
  asm("cvt.f32.f16 %0, %1;\n" : "=f"(d) : "h"(x));
  return d;
}

// Rounds to nearest, ties away from zero. The tensor cores would truncate, which doubles the error.
__device__ __forceinline__ unsigned to_tf32(unsigned float_bits) {
  unsigned d;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(d) : "f"(__uint_as_float(float_bits)));
  return d;
}

}  // namespace jitsparse::ptx
