// Element types: how each is stored, accumulated and, where possible, multiplied on tensor cores. kMmaK is the depth of an mma, kRegisterK
// that of one of its operands' registers, which has 8 elements across.
#pragma once

#include "../ptx/convert.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/wgmma.cuh"

namespace jitsparse {

struct Bf16 {
  using Storage = unsigned short;
  using Accumulator = float;
  using Register = unsigned;
  static constexpr int kMmaK = 16, kRegisterK = 8;
  static __device__ __forceinline__ float load(Storage x) { return ptx::from_bf16(x); }
  static __device__ __forceinline__ Storage store(float x) { return ptx::to_bf16(x); }
  static __device__ __forceinline__ unsigned pack(float low, float high) { return ptx::pack_bf16x2(low, high); }
  static __device__ __forceinline__ unsigned pack_relu(float low, float high) { return ptx::pack_relu_bf16x2(low, high); }
  static __device__ __forceinline__ unsigned operand(unsigned bits) { return bits; }
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_m16n8k16_bf16(c, a, b[0], b[1]);
  }
  // Half as deep.
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    ptx::mma_m16n8k8_bf16(c, a[0], a[1], b[0]);
  }
  // m64nNk16; c has N / 2 registers per thread, a is in shared memory or in registers.
  template <int TRANSPOSE_A, int TRANSPOSE_B, int REGISTERS>
  static __device__ __forceinline__ void wgmma(float (&c)[REGISTERS], uint64 a, uint64 b) {
    ptx::wgmma_bf16<TRANSPOSE_A, TRANSPOSE_B>(c, a, b);
  }
  template <int TRANSPOSE_B, int REGISTERS>
  static __device__ __forceinline__ void wgmma(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
    ptx::wgmma_bf16<TRANSPOSE_B>(c, a, b);
  }
};

struct F16 {
  using Storage = unsigned short;
  using Accumulator = float;
  using Register = unsigned;
  static constexpr int kMmaK = 16, kRegisterK = 8;
  static __device__ __forceinline__ float load(Storage x) { return ptx::from_f16(x); }
  static __device__ __forceinline__ Storage store(float x) { return ptx::to_f16(x); }
  static __device__ __forceinline__ unsigned pack(float low, float high) { return ptx::pack_f16x2(low, high); }
  static __device__ __forceinline__ unsigned pack_relu(float low, float high) { return ptx::pack_relu_f16x2(low, high); }
  static __device__ __forceinline__ unsigned operand(unsigned bits) { return bits; }
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_m16n8k16_f16(c, a, b[0], b[1]);
  }
  // Half as deep.
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    ptx::mma_m16n8k8_f16(c, a[0], a[1], b[0]);
  }
  // m64nNk16; c has N / 2 registers per thread, a is in shared memory or in registers.
  template <int TRANSPOSE_A, int TRANSPOSE_B, int REGISTERS>
  static __device__ __forceinline__ void wgmma(float (&c)[REGISTERS], uint64 a, uint64 b) {
    ptx::wgmma_f16<TRANSPOSE_A, TRANSPOSE_B>(c, a, b);
  }
  template <int TRANSPOSE_B, int REGISTERS>
  static __device__ __forceinline__ void wgmma(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
    ptx::wgmma_f16<TRANSPOSE_B>(c, a, b);
  }
};

struct Tf32 {
  using Storage = float;
  using Accumulator = float;
  using Register = unsigned;
  static constexpr int kMmaK = 8, kRegisterK = 4;
  static __device__ __forceinline__ float load(Storage x) { return x; }
  static __device__ __forceinline__ Storage store(float x) { return x; }
  static __device__ __forceinline__ unsigned operand(unsigned bits) { return ptx::to_tf32(bits); }
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_m16n8k8_tf32(c, a, b[0], b[1]);
  }
};

struct F32 {
  using Storage = float;
  using Accumulator = float;
  static __device__ __forceinline__ float load(Storage x) { return x; }
  static __device__ __forceinline__ Storage store(float x) { return x; }
};

struct F64 {
  using Storage = double;
  using Accumulator = double;
  using Register = double;
  static constexpr int kMmaK = 8, kRegisterK = 4;
  static __device__ __forceinline__ double load(Storage x) { return x; }
  static __device__ __forceinline__ Storage store(double x) { return x; }
  static __device__ __forceinline__ void mma(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    ptx::mma_m16n8k8_f64(c, a, b[0], b[1]);
#else
#pragma unroll
    for (int deep = 0; deep < 2; ++deep) {
#pragma unroll
      for (int half = 0; half < 2; ++half) ptx::mma_m8n8k4_f64(c[2 * half], c[2 * half + 1], a[2 * deep + half], b[deep]);
    }
#endif
  }
};

}  // namespace jitsparse
