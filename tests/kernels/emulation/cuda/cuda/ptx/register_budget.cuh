#pragma once

namespace jitsparse::ptx {

template <int REGISTERS>
void give_registers_back() {}
template <int REGISTERS>
void take_registers() {}

}  // namespace jitsparse::ptx
