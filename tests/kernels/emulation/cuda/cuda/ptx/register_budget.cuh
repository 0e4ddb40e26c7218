#pragma once

namespace jitsparse::ptx {

template <int REGISTERS>
void setmaxnreg_dec() {}
template <int REGISTERS>
void setmaxnreg_inc() {}

}  // namespace jitsparse::ptx
