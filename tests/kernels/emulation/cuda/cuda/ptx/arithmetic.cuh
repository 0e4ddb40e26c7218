#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline float exp2_approx(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }
inline float max_nan(float a, float b) { return a != a || b != b ? a + b : std::fmax(a, b); }

}  // namespace jitsparse::ptx
