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
  emulation::shared_bytes = Kernel::kSharedBytes;
  emulation::grid = unsigned(grid);
  for (emulation::block = 0; emulation::block < emulation::grid; ++emulation::block) {
    std::memset(emulation::memory, 0xff, sizeof emulation::memory);
    try {
      emulation::run_cta(Kernel::kThreads, [&] { Kernel::run(params); });
    } catch (const emulation::Failure& raised) {
      failure = raised.what;
      return -1;
    }
  }
  return cudaSuccess;
}

template <typename Kernel, typename Params>
cudaError_t load_kernel() {
  return cudaSuccess;
}

}  // namespace jitsparse

extern "C" const char* jitsparse_error(int) { return jitsparse::failure; }

// Where operands lie: pairs of addresses.
extern "C" void allow_reads(const long long* ranges, int count) {
  emulation::readable.clear();
  for (int i = 0; i < count; ++i) {
    emulation::readable.emplace_back(reinterpret_cast<const char*>(ranges[2 * i]), reinterpret_cast<const char*>(ranges[2 * i + 1]));
  }
}

extern "C" void set_sm_count(int count) { emulation::sm_count = count; }
