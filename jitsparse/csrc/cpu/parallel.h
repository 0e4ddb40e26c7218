// Threads and scratch memory of one call.
#pragma once

#include "abi.h"

// Declared here, because <omp.h> and <cstdlib> cost more compile time than a kernel's own text.
// libgomp is the one that torch has already loaded, so there is one pool of threads.
extern "C" {
int omp_get_thread_num() noexcept;
int omp_get_num_threads() noexcept;
void* aligned_alloc(decltype(sizeof 0) alignment, decltype(sizeof 0) size) noexcept;
void free(void* memory) noexcept;
}

namespace jitsparse::cpu {

enum Status : int { kOk = 0, kOutOfMemory = 1, kNoTileRegisters = 2, kOutsideRange = 3 };  // the last stays inside of run_split

inline const char* describe(int status) {
  switch (status) {
    case kOk: return "no error";
    case kOutOfMemory: return "out of memory: the scratch space of the product cannot be allocated";
    case kNoTileRegisters: return "the operating system does not let this process use the AMX tile registers";
    default: return "unknown error";
  }
}

// How many of the threads that a call may use it has work for. Waking one takes about as long as
// kPerThread multiply-adds.
inline int useful_threads(int64 allowed, double multiply_adds) {
  constexpr double kPerThread = 100e3;
  const double useful = multiply_adds / kPerThread + 1;
  return static_cast<int>(useful < static_cast<double>(allowed) ? useful : static_cast<double>(allowed));
}

// Runs body(rank, size) on `threads` threads, or on as many as there are.
template <class Body> void parallel(int threads, const Body& body) {
  if (threads <= 1) return body(0, 1);
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num(), omp_get_num_threads());
}

// Waits for all threads of the enclosing parallel().
inline void barrier(int64 size) {
  if (size > 1) {
#pragma omp barrier
  }
}

// Uninitialised memory for the duration of a call. `kept` points to a word from which a call takes the memory that an earlier one
// left, if any, and in which it leaves its own; null keeps nothing. Without it a call faults in new pages wherever malloc returns
// freed memory to the system (sdd in bfloat16 blocks of 32: 1.8 -> 3.2 ms). Concurrent calls have separate memory.
class Scratch {
 public:
  static constexpr int64 kLine = 64;
  static constexpr int64 kMaxKept = 64 << 20;
  static constexpr int64 round_up(int64 bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  Scratch(int64 bytes, void* kept) : kept_(bytes <= kMaxKept ? static_cast<Block**>(kept) : nullptr) {
    if (kept_) block_ = __atomic_exchange_n(kept_, static_cast<Block*>(nullptr), __ATOMIC_ACQ_REL);
    if (block_ && block_->bytes >= bytes) return;
    free(block_);
    block_ = static_cast<Block*>(aligned_alloc(kLine, kLine + round_up(bytes)));
    if (block_) block_->bytes = bytes;
  }
  ~Scratch() { free(kept_ ? __atomic_exchange_n(kept_, block_, __ATOMIC_ACQ_REL) : block_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  explicit operator bool() const { return block_ != nullptr; }
  char* at(int64 byte) const { return reinterpret_cast<char*>(block_) + kLine + byte; }

 private:
  struct Block {
    int64 bytes;  // from the next cache line on
  };
  Block** kept_;
  Block* block_ = nullptr;
};

}  // namespace jitsparse::cpu
