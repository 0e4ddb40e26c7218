// ldmatrix: one, two or four 8x8 matrices of 16-bit elements, or 8x4 of 32-bit ones, from shared memory (sm_75).
#pragma once

namespace jitsparse::ptx {

// Lane l gives the address of row l % 8 of matrix l / 8; of fewer than four matrices, the first lanes do.
__device__ __forceinline__ void ldmatrix(unsigned (&d)[1], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];\n" : "=r"(d[0]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void ldmatrix(unsigned (&d)[2], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n" : "=r"(d[0]), "=r"(d[1]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void ldmatrix(unsigned (&d)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_trans(unsigned (&d)[1], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];\n" : "=r"(d[0]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void ldmatrix_trans(unsigned (&d)[2], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n" : "=r"(d[0]), "=r"(d[1]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void ldmatrix_trans(unsigned (&d)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared)
               : "memory");
}

}  // namespace jitsparse::ptx
