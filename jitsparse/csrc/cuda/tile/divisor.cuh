// Division by a number that the host knows at launch: a multiplication and a shift, where the compiler emits a chain of some twenty
// dependent instructions.
#pragma once

#include "../../abi.h"

namespace jitsparse {

// For numerators below 2^31 (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994).
struct Divisor {
  unsigned value;  // 1 to 2^31
  unsigned factor, shift;

  static Divisor of(unsigned value) {
    const unsigned shift = value > 1 ? 32 - __builtin_clz(value - 1) : 0;  // 2^shift is the next power of two
    return {value, unsigned(((1ull << (31 + shift)) + value - 1) / value), shift};
  }

  JITSPARSE_HD unsigned quotient(unsigned numerator) const {
    return unsigned(uint64(numerator * 2) * factor >> 32) >> shift;
  }
};

}  // namespace jitsparse
