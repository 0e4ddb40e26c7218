// Which blocks of its panel each step has, for the warps that multiply them.
#pragma once

#include "../../abi.h"

namespace jitsparse {

// The masks of a tile's steps, read 32 at a time; the next 32 are prefetched while these are used.
struct StepMasks {
  const int4* steps;
  int lane, next, end;
  unsigned these, ahead;

  __device__ __forceinline__ StepMasks(const int4* steps, int lane) : steps(steps), lane(lane) {}

  // Goes to the first step of `panel`, which has steps x to y.
  __device__ __forceinline__ void start(const int4& panel) {
    next = panel.x;
    end = panel.y;
    prefetch();
  }

  __device__ __forceinline__ void prefetch() { ahead = next + lane < end ? __ldg(&steps[next + lane].y) : 0; }

  // Mask of the tile's n-th step; call for n = 0, 1, ...; harmless past the end.
  __device__ __forceinline__ unsigned take(int n) {
    if (n % 32 == 0) {
      these = ahead;
      next += 32;
      prefetch();
    }
    return __shfl_sync(~0u, these, n % 32);
  }
};

}  // namespace jitsparse
