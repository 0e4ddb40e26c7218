#pragma once

#include "../../abi.h"
#include "../emulator.h"
#include "wgmma_descriptor.cuh"

namespace jitsparse::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() { emulation::commit(emulation::Begun::products); }
template <int PENDING>
void wgmma_wait() {
  emulation::finish(emulation::Begun::products, PENDING);
}
template <int ROWS, int COLUMNS>
void fence_accumulators(float (&)[ROWS][COLUMNS]) {}

template <int TRANSPOSE_A, int TRANSPOSE_B, int REGISTERS>
void wgmma_bf16(float (&c)[REGISTERS], uint64 a, uint64 b) {
  emulation::multiply(c, REGISTERS, emulation::Number::bf16, a, TRANSPOSE_A, b, TRANSPOSE_B);
}
template <int TRANSPOSE_A, int TRANSPOSE_B, int REGISTERS>
void wgmma_f16(float (&c)[REGISTERS], uint64 a, uint64 b) {
  emulation::multiply(c, REGISTERS, emulation::Number::f16, a, TRANSPOSE_A, b, TRANSPOSE_B);
}

template <int TRANSPOSE_B, int REGISTERS>
void wgmma_bf16(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
  emulation::multiply(c, REGISTERS, emulation::Number::bf16, a, b, TRANSPOSE_B);
}
template <int TRANSPOSE_B, int REGISTERS>
void wgmma_f16(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
  emulation::multiply(c, REGISTERS, emulation::Number::f16, a, b, TRANSPOSE_B);
}
template <int REGISTERS>
void wgmma_tf32(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
  emulation::multiply(c, REGISTERS, emulation::Number::tf32, a, b, /*b_across=*/false);
}

}  // namespace jitsparse::ptx
