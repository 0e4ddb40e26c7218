// The main loop of the cp.async kernels: a stage is multiplied while later ones are in flight.
#pragma once

#include "../ptx/cp_async.cuh"

namespace jitsparse {

// Calls multiply(stage, its address in shared memory) for the stages from `begin` to `end`; the stream has started the first ones.
template <typename Pipeline, typename Multiply>
__device__ __forceinline__ void for_each_stage(typename Pipeline::Stream& stream, int begin, int end, const Multiply& multiply) {
  constexpr int kBytes = Pipeline::kStageBytes, kAhead = Pipeline::kAhead;
  const unsigned last = stream.buffers + kAhead * kBytes;
  unsigned read_buffer = stream.buffers, write_buffer = last;
  for (int stage = begin; stage < end; ++stage) {
    ptx::cp_async_wait<kAhead - 1>();  // the stage has arrived; later ones may be in flight
    __syncthreads();                   // and all threads are done with the previous one, whose buffer is filled next
    stream.advance(stage + kAhead, write_buffer);
    multiply(stage, read_buffer);
    read_buffer = read_buffer == last ? stream.buffers : read_buffer + kBytes;
    write_buffer = write_buffer == last ? stream.buffers : write_buffer + kBytes;
  }
}

}  // namespace jitsparse
