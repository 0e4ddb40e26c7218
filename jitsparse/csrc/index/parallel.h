// Runs tasks on the threads of a call.
#pragma once

#include <exception>

#include "abi.h"

namespace jitsparse::index {

// Calls task(0) to task(count - 1), starting them in order. No exception may leave a thread, so one is rethrown when all have ended.
template <class Task> void in_parallel(int64 count, int64 threads, const Task& task) {
  std::exception_ptr thrown;
  const int team = int(threads < count ? threads : count);
#pragma omp parallel for schedule(dynamic, 1) num_threads(team) if (team > 1)
  for (int64 i = 0; i < count; ++i) {
    try {
      task(i);
    } catch (...) {
#pragma omp critical(jitsparse_index_thrown)
      thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace jitsparse::index
