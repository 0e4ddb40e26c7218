// Programmatic dependent launch: a kernel is started before those that it depends on have written everything, and waits for that.
#pragma once

namespace jitsparse::ptx {

__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }

}  // namespace jitsparse::ptx
