// In place of enqueue.cuh: CTAs run here, one after another.
#pragma once

#include "../abi.h"
#include "emulator.h"

namespace jitsparse {

inline const char* failure = "";

inline int sm_count() { return emulation::sm_count; }

template <typename Kernel, typename Params>
int enqueue(const Params& params, long long grid, long long) {
  if (grid > 0x7fffffff) return cudaErrorInvalidConfiguration;
  const auto body = [](const void* params) { Kernel::run(*static_cast<const Params*>(params)); };
  const char* wrong = emulation::run(Kernel::kThreads, Kernel::kSharedBytes, unsigned(grid), body, &params);
  if (!wrong) return cudaSuccess;
  failure = wrong;
  return -1;
}

template <typename Kernel, typename Params>
cudaError_t load_kernel() {
  return cudaSuccess;
}

}  // namespace jitsparse

extern "C" const char* jitsparse_error(int code) {
  return code == -1 ? jitsparse::failure : code == cudaErrorInvalidConfiguration ? "too many CTAs" : "an invalid value";
}
