// setmaxnreg: a warpgroup releases registers or claims more (sm_90a). All warps of the warpgroup must execute it.
#pragma once

namespace jitsparse::ptx {

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}

}  // namespace jitsparse::ptx
