// Large pages for outputs.
#pragma once

#include "abi.h"

// Declared here, because <sys/mman.h> costs compile time.
extern "C" int madvise(void* address, decltype(sizeof 0) length, int advice) noexcept;

namespace jitsparse::cpu {

// Asks for large pages for an output that has none yet; if it has them, this costs a microsecond. Memory that malloc takes from the
// system for a call, as it does above 32 MB, costs one fault per page: 16384 of them for 64 MB of output, which took 20 of the 68 ms
// of a product in float32 (4096, density 0.1), and 8192 took 8 of 21 ms in bfloat16. Memory on malloc's heap stays marked when the
// output is freed. NumPy does the same for its arrays, from the same size on.
inline void ask_for_large_pages(void* memory, int64 bytes) {
  constexpr uint64 kSmallest = 4 << 20, kPage = 2 << 20;
  constexpr int kHugePage = 14;  // MADV_HUGEPAGE of Linux
  if (uint64(bytes) < kSmallest) return;
  const uint64 begin = (reinterpret_cast<uint64>(memory) + kPage - 1) / kPage * kPage;
  const uint64 end = (reinterpret_cast<uint64>(memory) + uint64(bytes)) / kPage * kPage;
  // The result is ignored: the system may have none.
  madvise(reinterpret_cast<void*>(begin), end - begin, kHugePage);
}

}  // namespace jitsparse::cpu
