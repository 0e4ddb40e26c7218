// wgmma: a warpgroup's asynchronous matrix multiply-accumulate from shared memory, or with its left operand in registers (sm_90a).
#pragma once

#include "../../abi.h"
#include "wgmma_descriptor.cuh"

namespace jitsparse::ptx {

// Orders this thread's writes to registers, of accumulators and of a left operand, before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

// Waits until at most PENDING of this warpgroup's most recent groups are still being computed.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

// wgmma writes accumulators asynchronously, which the compiler cannot see: keeps reads of them after the wgmma_wait<0>.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void fence_accumulators(float (&c)[ROWS][COLUMNS]) {
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) asm volatile("" : "+f"(c[i][j])::"memory");
  }
}

// c[4 j + e] is element e of the mma fragment of columns 8 j .. 8 j + 7; warp w of the warpgroup has rows 16 w .. 16 w + 15.
// TRANSPOSE_A: a is M-major. TRANSPOSE_B: b is N-major.
// The instruction names each accumulator register, so its text differs with N; the two element types share it.
#define JITSPARSE_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define JITSPARSE_NAMES_16 JITSPARSE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define JITSPARSE_NAMES_32 \
  JITSPARSE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, " \
                     "%24, %25, %26, %27, %28, %29, %30, %31"
#define JITSPARSE_NAMES_64 \
  JITSPARSE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, " \
                     "%40, %41, %42, %43, %44, %45, %46, %47, " \
                     "%48, %49, %50, %51, %52, %53, %54, %55, " \
                     "%56, %57, %58, %59, %60, %61, %62, %63"
#define JITSPARSE_NAMES_96 \
  JITSPARSE_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71" \
                     ", %72, %73, %74, %75, %76, %77, %78, %79" \
                     ", %80, %81, %82, %83, %84, %85, %86, %87" \
                     ", %88, %89, %90, %91, %92, %93, %94, %95"
#define JITSPARSE_NAMES_128 \
  JITSPARSE_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103" \
                     ", %104, %105, %106, %107, %108, %109, %110, %111" \
                     ", %112, %113, %114, %115, %116, %117, %118, %119" \
                     ", %120, %121, %122, %123, %124, %125, %126, %127"
#define JITSPARSE_C8(j) \
  "+f"(c[j]), "+f"(c[j + 1]), "+f"(c[j + 2]), "+f"(c[j + 3]), "+f"(c[j + 4]), "+f"(c[j + 5]), "+f"(c[j + 6]), "+f"(c[j + 7])
#define JITSPARSE_C16(j) JITSPARSE_C8(j), JITSPARSE_C8(j + 8)
#define JITSPARSE_C32(j) JITSPARSE_C16(j), JITSPARSE_C16(j + 16)
#define JITSPARSE_C64(j) JITSPARSE_C32(j), JITSPARSE_C32(j + 32)
#define JITSPARSE_C96(j) JITSPARSE_C64(j), JITSPARSE_C32(j + 64)
#define JITSPARSE_C128(j) JITSPARSE_C64(j), JITSPARSE_C64(j + 64)

// Operand REGISTERS, the first after the accumulators, is descriptor a; B is descriptor b; T and U are imm-trans-a and imm-trans-b. The
// three ones: scale-d (accumulate), imm-scale-a, imm-scale-b.
#define JITSPARSE_WGMMA(TYPE, N, REGISTERS, B, T, U)                                                                  \
  template <int TRANSPOSE_A, int TRANSPOSE_B>                                                                         \
  __device__ __forceinline__ void wgmma_##TYPE(float (&c)[REGISTERS], uint64 a, uint64 b) {                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE " {" JITSPARSE_NAMES_##REGISTERS   \
                 "}, %" #REGISTERS ", %" #B ", 1, 1, 1, %" #T ", %" #U ";\n"                                          \
                 : JITSPARSE_C##REGISTERS(0)                                                                          \
                 : "l"(a), "l"(b), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B));                                               \
  }

JITSPARSE_WGMMA(bf16, 16, 8, 9, 10, 11)
JITSPARSE_WGMMA(bf16, 32, 16, 17, 18, 19)
JITSPARSE_WGMMA(bf16, 64, 32, 33, 34, 35)
JITSPARSE_WGMMA(bf16, 128, 64, 65, 66, 67)
JITSPARSE_WGMMA(bf16, 192, 96, 97, 98, 99)
JITSPARSE_WGMMA(bf16, 256, 128, 129, 130, 131)
JITSPARSE_WGMMA(f16, 16, 8, 9, 10, 11)
JITSPARSE_WGMMA(f16, 32, 16, 17, 18, 19)
JITSPARSE_WGMMA(f16, 64, 32, 33, 34, 35)
JITSPARSE_WGMMA(f16, 128, 64, 65, 66, 67)
JITSPARSE_WGMMA(f16, 192, 96, 97, 98, 99)
JITSPARSE_WGMMA(f16, 256, 128, 129, 130, 131)

// a in registers: the mma fragment of each warp's 16 rows, which must not change until the wgmma has completed.
#define JITSPARSE_WGMMA_LEFT(TYPE, N, REGISTERS, A0, A1, A2, A3, B, T)                                                          \
  template <int TRANSPOSE_B>                                                                                                    \
  __device__ __forceinline__ void wgmma_##TYPE(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE " {" JITSPARSE_NAMES_##REGISTERS "}, {%" #A0 \
                 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, %" #T ";\n"                                                \
                 : JITSPARSE_C##REGISTERS(0)                                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSE_B));                                       \
  }

JITSPARSE_WGMMA_LEFT(bf16, 32, 16, 16, 17, 18, 19, 20, 21)
JITSPARSE_WGMMA_LEFT(f16, 32, 16, 16, 17, 18, 19, 20, 21)

// m64nNk8 on 32-bit elements, of which the tensor cores read the 19 bits of TF32. b is k-major; a is in registers.
#define JITSPARSE_WGMMA_TF32(N, REGISTERS, A0, A1, A2, A3, B)                                                          \
  __device__ __forceinline__ void wgmma_tf32(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" JITSPARSE_NAMES_##REGISTERS "}, {%" #A0  \
                 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1;\n"                                               \
                 : JITSPARSE_C##REGISTERS(0)                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                               \
  }

JITSPARSE_WGMMA_TF32(32, 16, 16, 17, 18, 19, 20)
JITSPARSE_WGMMA_TF32(64, 32, 32, 33, 34, 35, 36)
JITSPARSE_WGMMA_TF32(128, 64, 64, 65, 66, 67, 68)
JITSPARSE_WGMMA_TF32(192, 96, 96, 97, 98, 99, 100)
JITSPARSE_WGMMA_TF32(256, 128, 128, 129, 130, 131, 132)

#undef JITSPARSE_WGMMA
#undef JITSPARSE_WGMMA_LEFT
#undef JITSPARSE_WGMMA_TF32
#undef JITSPARSE_NAMES_8
#undef JITSPARSE_NAMES_16
#undef JITSPARSE_NAMES_32
#undef JITSPARSE_NAMES_64
#undef JITSPARSE_NAMES_96
#undef JITSPARSE_NAMES_128
#undef JITSPARSE_C8
#undef JITSPARSE_C16
#undef JITSPARSE_C32
#undef JITSPARSE_C64
#undef JITSPARSE_C96
#undef JITSPARSE_C128

}  // namespace jitsparse::ptx
