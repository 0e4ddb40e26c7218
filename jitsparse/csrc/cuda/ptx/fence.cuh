// Fences between the generic proxy, ordinary loads and stores, and the async proxy (sm_90).
#pragma once

namespace jitsparse::ptx {

// Makes this thread's writes to shared memory visible to wgmma and to bulk copies, which use the async proxy.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

}  // namespace jitsparse::ptx
