// Loads from shared memory by address.
#pragma once

namespace jitsparse::ptx {

__device__ __forceinline__ unsigned load_shared_b32(unsigned shared) {
  unsigned d;
  asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(d) : "r"(shared) : "memory");
  return d;
}

__device__ __forceinline__ void load_shared_b128(float (&d)[4], unsigned shared) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ double load_shared_f64(unsigned shared) {
  double d;
  asm volatile("ld.shared.f64 %0, [%1];\n" : "=d"(d) : "r"(shared) : "memory");
  return d;
}

__device__ __forceinline__ void load_shared_f64x2(double& d0, double& d1, unsigned shared) {
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];\n" : "=d"(d0), "=d"(d1) : "r"(shared) : "memory");
}

__device__ __forceinline__ void load_shared(unsigned (&d)[4], unsigned shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void load_shared(unsigned (&d)[2], unsigned shared) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n" : "=r"(d[0]), "=r"(d[1]) : "r"(shared) : "memory");
}

}  // namespace jitsparse::ptx
