// The main loop of the kernels that cp.async feeds: a stage is multiplied while those after it are on their way.
#pragma once

#include "../ptx/cp_async.cuh"

namespace jitsparse {

// Calls multiply(stage, where it lies in shared memory) for the stages from `begin` to `end`, of which the stream has started the first.
template <typename Pipeline, typename Multiply>
__device__ __forceinline__ void for_each_stage(typename Pipeline::Stream& stream, int begin, int end, const Multiply& multiply) {
  constexpr int kBytes = Pipeline::kStageBytes, kAhead = Pipeline::kAhead;
  const unsigned last = stream.buffers + kAhead * kBytes;
  unsigned read_buffer = stream.buffers, write_buffer = last;
  for (int stage = begin; stage < end; ++stage) {
    ptx::cp_async_wait<kAhead - 1>();  // the stage has arrived; those after it may be on their way
    __syncthreads();                   // and all have multiplied the one before, which lies where the next is copied to
    stream.advance(stage + kAhead, write_buffer);
    multiply(stage, read_buffer);
    read_buffer = read_buffer == last ? stream.buffers : read_buffer + kBytes;
    write_buffer = write_buffer == last ? stream.buffers : write_buffer + kBytes;
  }
}

}  // namespace jitsparse
