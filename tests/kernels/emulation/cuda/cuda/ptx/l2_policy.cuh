#pragma once

namespace jitsparse::ptx {

// There is no cache to advise.
inline uint64 l2_evict_last() { return 0; }
inline uint64 l2_evict_normal() { return 0; }
inline uint64 l2_evict_first() { return 0; }

}  // namespace jitsparse::ptx
