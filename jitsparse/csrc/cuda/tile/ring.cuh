// A ring of stages in shared memory, filled by bulk copies and emptied by warpgroups.
#pragma once

#include "../ptx/mbarrier.cuh"

namespace jitsparse {

// Maximum dynamic shared memory per CTA on sm_90; alignment that the 128-byte swizzle requires.
constexpr int kMaxSharedBytes = 232448, kSharedAlignment = 1024;

// The first aligned address of the CTA's shared memory.
__device__ __forceinline__ unsigned char* aligned_shared() {
  extern __shared__ unsigned char unaligned[];
  return unaligned + (-__cvta_generic_to_shared(unaligned) & (kSharedAlignment - 1));
}

// Two mbarriers per stage, at the same addresses for all threads of a CTA.
struct StageBarriers {
  unsigned full, empty;

  // `shared` has room for two barriers for each of `most` stages.
  __device__ __forceinline__ StageBarriers(unsigned shared, int most) : full(shared), empty(shared + most * 8) {}

  // Call from one thread, before any other uses the barriers. A producer arrives with the bytes that it expects of a stage. Each consumer
  // warp releases a stage on its own: the warps of a warpgroup are in step only where they multiply.
  __device__ __forceinline__ void init(int most, int producers, int consumers) const {
    for (int i = 0; i < most; ++i) {
      ptx::mbarrier_init(full + i * 8, producers);
      ptx::mbarrier_init(empty + i * 8, consumers);
    }
    ptx::fence_mbarrier_init();
  }

  __device__ __forceinline__ unsigned full_barrier(int stage) const { return full + stage * 8; }
  // The parity of a stage's phase flips with every round of the ring. A fresh barrier counts as emptied.
  __device__ __forceinline__ void wait_empty(int stage, unsigned round) const { ptx::mbarrier_wait(empty + stage * 8, ~round & 1); }
  __device__ __forceinline__ void wait_full(int stage, unsigned round) const { ptx::mbarrier_wait(full + stage * 8, round & 1); }
  __device__ __forceinline__ bool is_full(int stage, unsigned round) const {
    return ptx::mbarrier_test_wait(full + stage * 8, round & 1);
  }
  __device__ __forceinline__ void release(int stage, int lane) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(empty + stage * 8);
  }
};

// A thread's position in the ring.
struct RingPosition {
  int stage = 0;
  unsigned round = 0;

  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      ++round;
    }
  }
};

}  // namespace jitsparse
