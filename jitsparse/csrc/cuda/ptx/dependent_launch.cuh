// Programmatic dependent launch: a kernel starts before those that it depends on have finished writing, and waits for them.
#pragma once

namespace jitsparse::ptx {

__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }

}  // namespace jitsparse::ptx
