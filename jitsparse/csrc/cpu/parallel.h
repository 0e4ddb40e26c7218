// Threads and scratch memory of one call.
#pragma once

#include "abi.h"

extern "C" {
// From libgomp, which torch already has in the process under the same name: one pool of threads.
int omp_get_thread_num();
int omp_get_num_threads();
void* aligned_alloc(decltype(sizeof(0)) alignment, decltype(sizeof(0)) size);
void free(void*);
}

namespace jitsparse::cpu {

enum Status : int { kOk = 0, kOutOfMemory = 1, kNoTiles = 2 };

inline const char* describe(int status) {
  switch (status) {
    case kOk: return "no error";
    case kOutOfMemory: return "out of memory: the scratch space of the kernel cannot be allocated";
    case kNoTiles: return "the operating system refuses this process the AMX tile registers";
    default: return "unknown error";
  }
}

// Runs body(rank, size) on up to `threads` threads, and on no more than the work pays for: waking
// one costs about as long as `kWorthAThread` multiply-adds.
template <class Body>
void parallel(int64 threads, double multiply_adds, const Body& body) {
  constexpr double kWorthAThread = 100e3;
  const double paid = multiply_adds / kWorthAThread + 1;
  const int wanted = static_cast<int>(paid < static_cast<double>(threads) ? paid : threads);
  if (wanted <= 1) return body(0, 1);
#pragma omp parallel num_threads(wanted)
  body(omp_get_thread_num(), omp_get_num_threads());
}

// Uninitialised memory for the duration of a call, on cache-line boundaries.
class Scratch {
 public:
  explicit Scratch(int64 bytes) : data_(aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment)) {}
  ~Scratch() { free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  explicit operator bool() const { return data_ != nullptr; }
  template <class E> E* at(int64 byte) const { return reinterpret_cast<E*>(static_cast<char*>(data_) + byte); }

 private:
  static constexpr int64 kAlignment = 64;
  void* data_;
};

constexpr int64 line_up(int64 bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace jitsparse::cpu
