// In place of launch.cuh: CTAs run here, one after another.
#pragma once

#include "../abi.h"
#include "emulator.h"

namespace jitsparse {

inline const char* failure = "";

inline int multiprocessors() { return emulation::multiprocessors; }

template <typename Kernel, typename Params>
int run_grid(const Params& params, long long grid) {
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

template <typename Kernel, int MIN_CTAS, typename Params>
int enqueue(const Params& params, long long grid, long long) {
  return run_grid<Kernel>(params, grid);
}

template <typename Kernel, int MIN_CTAS, typename Args>
int launch(const Args& args) {
  return run_grid<Kernel>(args, Kernel::grid(args));
}

template <typename Kernel, typename Args>
int launch_with_maps(const Args& args) {
  typename Kernel::Params params;
  if (cudaError_t error = Kernel::prepare(args, params)) return error;
  return run_grid<Kernel>(params, Kernel::grid(args));
}

template <typename Kernel, typename Args, typename First>
int and_sum(const Args& args, const First& first) {
  if (int code = first(args)) return code;
  if (args.parts <= 1) return cudaSuccess;
  const auto sum = Kernel::sum(args);
  return run_grid<typename Kernel::Sum>(sum, Kernel::Sum::grid(sum));
}

template <typename Kernel, int MIN_CTAS, typename Args>
int launch_and_sum(const Args& args) {
  return and_sum<Kernel>(Kernel::prepared(args), launch<Kernel, MIN_CTAS, Args>);
}

template <typename Kernel, typename Args>
int launch_with_maps_and_sum(const Args& args) {
  return and_sum<Kernel>(args, launch_with_maps<Kernel, Args>);
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

extern "C" void have_multiprocessors(int count) { emulation::multiprocessors = count; }
