// The epilogue's activations, as torch defines them (gelu is the exact, erf form).
#pragma once

#include "../../abi.h"

namespace jitsparse {

__device__ __forceinline__ float activate(float x, int64 activation) {
  switch (activation) {
    case kRelu: return x != x ? x : fmaxf(x, 0.0f);
    case kGelu: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case kSilu: return x / (1.0f + expf(-x));
    default: return x;
  }
}

__device__ __forceinline__ double activate(double x, int64 activation) {
  switch (activation) {
    case kRelu: return x != x ? x : fmax(x, 0.0);
    case kGelu: return 0.5 * x * (1.0 + erf(x * 0.70710678118654752));
    case kSilu: return x / (1.0 + exp(-x));
    default: return x;
  }
}

}  // namespace jitsparse
