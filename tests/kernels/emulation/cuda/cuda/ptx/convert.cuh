#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline float from_bf16(unsigned short x) { return emulation::from_bf16(x); }
inline unsigned short to_bf16(float x) { return emulation::to_bf16(x); }
inline unsigned pack_bf16x2(float low, float high) { return unsigned(to_bf16(high)) << 16 | to_bf16(low); }
inline float from_f16(unsigned short x) { return emulation::from_f16(x); }
inline unsigned short to_f16(float x) { return emulation::to_f16(x); }
inline unsigned pack_f16x2(float low, float high) { return unsigned(to_f16(high)) << 16 | to_f16(low); }
inline float relu(float x) { return x < 0 ? 0 : x; }
inline unsigned pack_relu_bf16x2(float low, float high) { return pack_bf16x2(relu(low), relu(high)); }
inline unsigned pack_relu_f16x2(float low, float high) { return pack_f16x2(relu(low), relu(high)); }
inline unsigned to_tf32(unsigned bits) { return emulation::to_tf32(bits); }

}  // namespace jitsparse::ptx
