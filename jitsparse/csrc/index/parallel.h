// Tasks for the threads of a call.
#pragma once

#include <new>

#include "abi.h"

namespace jitsparse::index {

// Calls task(0) to task(count - 1), the first ones first. Nothing may leave a thread by an exception, so what they throw is thrown again
// when all have ended.
template <class Task> void in_parallel(int64 count, int64 threads, const Task& task) {
  bool out_of_memory = false;
#pragma omp parallel for schedule(dynamic, 1) num_threads(int(threads)) if (threads > 1)
  for (int64 i = 0; i < count; ++i) {
    try {
      task(i);
    } catch (const std::bad_alloc&) {
#pragma omp atomic write
      out_of_memory = true;
    }
  }
  if (out_of_memory) throw std::bad_alloc();
}

}  // namespace jitsparse::index
