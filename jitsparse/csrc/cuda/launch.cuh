// From the arguments of a call to a launch: shared by every CUDA template.
#pragma once

#include "../abi.h"
#include "enqueue.cuh"

namespace jitsparse {

template <typename Kernel, typename Args>
int launch(const Args& args) {
  return enqueue<Kernel>(args, Kernel::grid(args), args.context);
}

// For kernels whose Params carry tensor maps.
template <typename Kernel, typename Args>
int launch_with_maps(const Args& args) {
  const int64 grid = Kernel::grid(args);
  if (grid == 0) return cudaSuccess;  // TMA and SpmmOrder reject empty extents
  typename Kernel::Params params;
  if (cudaError_t error = Kernel::prepare(args, params)) return error;
  return enqueue<Kernel>(params, grid, args.context);
}

// For split-K kernels: launches `first`, then the kernel that adds the parts if this call has any.
template <typename Kernel, typename Args, typename First>
int and_sum(const Args& args, const First& first) {
  if (cudaError_t error = load_kernel<typename Kernel::Sum, typename Kernel::Sum::Params>()) return error;
  if (int code = first(args)) return code;
  if (args.parts <= 1) return cudaSuccess;
  const auto sum = Kernel::sum(args);
  return enqueue<typename Kernel::Sum>(sum, Kernel::Sum::grid(sum), args.context);
}

template <typename Kernel, typename Args>
int launch_and_sum(const Args& args) {
  return and_sum<Kernel>(args, launch<Kernel, Args>);
}

// For kernels that split their last tiles along k, into as many parts as the GPU has room for.
template <typename Kernel, typename Args>
int launch_and_sum_tail(const Args& args) {
  return and_sum<Kernel>(Kernel::Tail::clamp_parts(args, Kernel::kMinCtas), launch<Kernel, Args>);
}

template <typename Kernel, typename Args>
int launch_with_maps_and_sum(const Args& args) {
  return and_sum<Kernel>(args, launch_with_maps<Kernel, Args>);
}

}  // namespace jitsparse
