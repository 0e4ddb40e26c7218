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

  // Of the steps from `begin` to `end`.
  __device__ __forceinline__ void start(int begin, int end) {
    next = begin;
    this->end = end;
    ask();
  }

  __device__ __forceinline__ void ask() { ahead = next + lane < end ? __ldg(&steps[next + lane].y) : 0; }

  // Of the tile's n-th step; to be called for each in turn. Past the last it is of no use, and does no harm.
  __device__ __forceinline__ unsigned take(int n) {
    if (n % 32 == 0) {
      these = ahead;
      next += 32;
      ask();
    }
    return __shfl_sync(~0u, these, n % 32);
  }
};

}  // namespace jitsparse
