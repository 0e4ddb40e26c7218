#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void fence_proxy_async() { emulation::fence_proxy_async(); }

}  // namespace jitsparse::ptx
