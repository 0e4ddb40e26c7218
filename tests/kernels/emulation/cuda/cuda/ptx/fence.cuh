#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void fence_proxy_async() {
  auto& unfenced = emulation::cta->unfenced;
  for (auto at = unfenced.begin(); at != unfenced.end();) {
    at = at->second == emulation::thread() ? unfenced.erase(at) : std::next(at);
  }
}

}  // namespace jitsparse::ptx
