// Which blocks of a panel a step has, for those who multiply them.
#pragma once

#include "../../abi.h"

namespace jitsparse {

// The masks of a tile's steps: read 32 at a time, and those ahead while these are used.
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

  // Of the tile's n-th step; to be called for each in turn. Past the last it is of no use, and does no harm.
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
