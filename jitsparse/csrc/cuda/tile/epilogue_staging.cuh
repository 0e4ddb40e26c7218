// How a warpgroup stores 64 x 64 subtiles of the output: through buffers in shared memory, by TMA.
#pragma once

#include "../ptx/barrier.cuh"
#include "../ptx/fence.cuh"
#include "../ptx/l2_policy.cuh"
#include "../ptx/tma.cuh"
#include "epilogue_subtile.cuh"

namespace jitsparse {

// ROWS: the accumulator's rows are rows of the output, the box's second axis; otherwise they are its columns.
template <bool ROWS>
struct EpilogueStaging {
  static constexpr int kBytes = 64 * 128, kBuffers = 2;  // used in turn

  unsigned staged;
  int group, thread, buffer = 0;  // the warpgroup, the thread in it, the next buffer

  // Returns the buffer for the next subtile, once TMA has read what it held.
  __device__ __forceinline__ unsigned acquire() {
    const unsigned at = staged + buffer * kBytes;
    buffer = (buffer + 1) % kBuffers;
    if (thread == 0) ptx::bulk_wait_read<kBuffers - 1>();
    ptx::named_barrier(1 + group, 128);
    return at;
  }

  __device__ __forceinline__ void stage(unsigned at, const unsigned (&packed)[8 * 2]) const {
    stage_subtile<ROWS>(packed, at, thread / 32, thread % 32);
  }

  // Stores the staged subtile at (x, y, batch) of the output; evict-first, since nothing reads it soon.
  __device__ __forceinline__ void store(unsigned at, const CUtensorMap* out, int x, int y, int batch) const {
    ptx::fence_proxy_async();
    ptx::named_barrier(1 + group, 128);
    if (thread == 0) {
      ptx::tma_store_3d(out, at, x, y, batch, ptx::l2_evict_first());
      ptx::bulk_commit();
    }
  }

  // Waits until TMA has read the last subtile.
  __device__ __forceinline__ void drain() const {
    if (thread == 0) ptx::bulk_wait_read<0>();
  }
};

}  // namespace jitsparse
