// Loads from shared memory. ldmatrix: four 8x8 matrices of 16-bit elements, or 8x4 of 32-bit ones (sm_75).
#pragma once

namespace jitsparse::ptx {

// Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&d)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&d)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared)
               : "memory");
}

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

__device__ __forceinline__ void load_shared(unsigned (&d)[4], unsigned shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void load_shared(unsigned (&d)[2], unsigned shared) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n" : "=r"(d[0]), "=r"(d[1]) : "r"(shared) : "memory");
}

}  // namespace jitsparse::ptx
