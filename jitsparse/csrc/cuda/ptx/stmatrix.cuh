// stmatrix: four 8x8 matrices of 16-bit elements from mma fragments to shared memory (sm_90).
#pragma once

namespace jitsparse::ptx {

// Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4(unsigned shared, const unsigned (&d)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(d[0]), "r"(d[1]), "r"(d[2]),
               "r"(d[3])
               : "memory");
}

// Each matrix transposed: the address is that of a column.
__device__ __forceinline__ void stmatrix_x4_trans(unsigned shared, const unsigned (&d)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(d[0]), "r"(d[1]),
               "r"(d[2]), "r"(d[3])
               : "memory");
}

}  // namespace jitsparse::ptx
