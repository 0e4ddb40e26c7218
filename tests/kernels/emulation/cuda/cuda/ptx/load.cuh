#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

template <int WORDS>
void load(unsigned (&to)[WORDS], const void* from, bool inside) {
  std::memset(to, 0, sizeof to);
  if (!inside) return;
  emulation::check_read(from, sizeof to);
  std::memcpy(to, from, sizeof to);
}
template <int WORDS>
void load_once(unsigned (&to)[WORDS], const void* from, bool inside) {
  load(to, from, inside);
}

}  // namespace jitsparse::ptx
