// The size of this machine's L2 cache.
#pragma once

#include "cpu/vec.h"

// Declared here, because <unistd.h> costs compile time.
extern "C" long sysconf(int name) noexcept;

namespace jitsparse::cpu {

// The share of this machine's L2 cache that kL2Bytes is of 1 MB; the kernel may have been compiled on another machine. The cache counts
// as at most 2 MB, since larger ones are shared, and as 1 MB if it is smaller or unknown.
inline int64 l2_bytes() {
  int64 bytes = 0;
#ifdef __linux__
  constexpr int kLevel2CacheSize = 191;  // _SC_LEVEL2_CACHE_SIZE of glibc; others have no such name
  bytes = sysconf(kLevel2CacheSize);
#endif
  constexpr int64 kKnown = 1 << 20;  // whose share is kL2Bytes
  return bytes <= kKnown ? kL2Bytes : bytes >= 2 * kKnown ? 2 * kL2Bytes : bytes / 32 * 25;
}

}  // namespace jitsparse::cpu
