#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

inline void copy(unsigned shared, const void* global, int bytes, bool inside) {
  if (inside) emulation::check_read(global, bytes);
  unsigned char* to = emulation::at(shared, bytes);
  std::memset(to, 0xff, bytes);
  emulation::later(emulation::Begun::copies, [=] { inside ? void(std::memcpy(to, global, bytes)) : void(std::memset(to, 0, bytes)); });
}
inline void cp_async_16(unsigned shared, const void* global, int at, int extent) { copy(shared, global, 16, at < extent); }
inline void cp_async_16(unsigned shared, const void* global) { copy(shared, global, 16, true); }
inline void cp_async_4(unsigned shared, const void* global, int at, int extent) { copy(shared, global, 4, at < extent); }
inline void cp_async_4(unsigned shared, const void* global) { copy(shared, global, 4, true); }
inline void cp_async_commit() { emulation::commit(emulation::Begun::copies); }
template <int PENDING>
void cp_async_wait() {
  emulation::finish(emulation::Begun::copies, PENDING);
}

}  // namespace jitsparse::ptx
