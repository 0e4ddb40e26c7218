// Runs CUDA kernels on a processor: a fiber for every thread of a CTA, one CTA after another.
//
// What the hardware does in the background happens as late as a program may count on: a copy's destination is poisoned when the copy
// is asked for, and filled when somebody who must wait for it waits; a wgmma multiplies when it is waited for. So a missing wait, a
// stage given back too early or a read past the end gives a wrong answer or an error, not a lucky one. A CTA in which no thread can
// go on is reported. Memory is not shared between threads that run at once, so races as such are not found.
#pragma once

// Jumps between stacks are what is meant here.
#undef _FORTIFY_SOURCE
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __align__(bytes)

struct int4 {
  int x, y, z, w;
};
struct int2 {
  int x, y;
};
struct uint2 {
  unsigned x, y;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using cudaError_t = int;
constexpr int cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9;

namespace emulation {

struct Failure {
  const char* what;
};
[[noreturn]] void fail(const char* what);

// ---- threads

constexpr int kStackBytes = 256 << 10;

struct Thread {
  ucontext_t start;
  jmp_buf place;  // where it goes on, once it has started
  bool started = false;
  std::unique_ptr<char[]> stack;
  const std::function<bool()>* ready = nullptr;  // what it waits for, which the scheduler asks
  bool done = false;
  // cp.async, bulk stores and wgmma: groups that wait for their turn, and the one that is still open.
  std::deque<std::vector<std::function<void()>>> copies, stores, products;
  std::vector<std::function<void()>> open_copies, open_stores, open_products;
};

struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};

struct Mbarrier {
  int arrivals, left, bytes;
  unsigned phase;
};

struct Cta {
  std::vector<Thread> threads;
  std::vector<Barrier> warps;
  std::vector<std::vector<void*>> slots;  // of each warp, what its lanes show each other
  std::map<int, Barrier> named;
  std::map<unsigned, Mbarrier> mbarriers;  // by address
  std::map<unsigned, int> unfenced;        // shared memory that a thread has written and not shown to TMA yet
  std::deque<std::function<void()>> bulk_loads;
  jmp_buf scheduler;
  std::function<void()> body;
  int current = 0;
  bool in_thread = false;
  const char* failed = nullptr;
  unsigned long progress = 0;
};
inline Cta* cta;
inline unsigned block, grid;
inline int sm_count;

// Ends the run; from a thread by way of the scheduler, since an exception cannot leave a fiber.
[[noreturn]] inline void fail(const char* what) {
  if (cta && cta->in_thread) {
    cta->failed = what;
    _longjmp(cta->scheduler, 1);
  }
  throw Failure{what};
}

inline Thread& self() { return cta->threads[cta->current]; }
inline int thread() { return cta->current; }
inline int lane() { return cta->current % 32; }

// From a thread to the scheduler and back. swapcontext does the same in a third of a microsecond, since it asks the system for the
// mask of signals.
inline void leave() {
  if (!_setjmp(self().place)) _longjmp(cta->scheduler, 1);
}
inline void enter(Thread& thread) {
  if (_setjmp(cta->scheduler)) return;
  if (thread.started) _longjmp(thread.place, 1);
  thread.started = true;
  setcontext(&thread.start);
}

template <typename Ready>
void wait_until(const Ready& ready) {
  if (!ready()) {
    const std::function<bool()> asked = std::cref(ready);
    self().ready = &asked;
    leave();
    self().ready = nullptr;
  }
  ++cta->progress;
}

inline void arrive_and_wait(Barrier& barrier, int expected) {
  const unsigned generation = barrier.generation;
  ++cta->progress;
  if (++barrier.arrived == expected) {
    barrier.arrived = 0;
    ++barrier.generation;
  } else {
    wait_until([&] { return barrier.generation != generation; });
  }
}

inline void sync_warp() { arrive_and_wait(cta->warps[thread() / 32], 32); }

// Calls use(all), where all[lane] points to what that lane showed, in every lane of a warp.
template <typename T, typename Use>
void exchange(T& mine, const Use& use) {
  auto& slots = cta->slots[thread() / 32];
  slots[lane()] = &mine;
  sync_warp();
  use([&](int from) -> T& { return *static_cast<T*>(slots[from]); });
  sync_warp();
}

inline void finish(std::deque<std::vector<std::function<void()>>>& groups, std::size_t pending) {
  while (groups.size() > pending) {
    for (auto& each : groups.front()) each();
    groups.pop_front();
  }
}

inline void start_thread() {
  cta->body();
  Thread& here = self();
  if (!here.open_copies.empty() || !here.open_products.empty() || !here.products.empty()) fail("work left at the end of a thread");
  for (auto& group : here.copies) {
    if (!group.empty()) fail("cp.async left at the end of a thread");
  }
  for (auto& group : here.stores) {
    if (!group.empty()) fail("a bulk store that reads shared memory after the thread's end");
  }
  here.done = true;
  ++cta->progress;
  leave();
}

inline void run_cta(int threads, const std::function<void()>& body) {
  Cta here;
  cta = &here;
  here.body = body;
  here.threads.resize(threads);
  here.warps.resize(threads / 32);
  here.slots.assign(threads / 32, std::vector<void*>(32));
  for (Thread& each : here.threads) {
    each.stack.reset(new char[kStackBytes]);
    getcontext(&each.start);
    each.start.uc_stack.ss_sp = each.stack.get();
    each.start.uc_stack.ss_size = kStackBytes;
    each.start.uc_link = nullptr;
    makecontext(&each.start, start_thread, 0);
  }
  // One warp runs only where no other thread can go on: what nobody waits for it to do is not done yet.
  const int late_warp = int(block) % (threads / 32);
  bool late = false;
  for (bool backwards = false;; backwards = !backwards) {
    const unsigned long before = here.progress;
    bool all_done = true;
    for (int i = 0; i < threads; ++i) {
      here.current = backwards ? threads - 1 - i : i;
      if (self().done) continue;
      all_done = false;
      if ((here.current / 32 == late_warp) != late) continue;
      if (self().ready && !(*self().ready)()) continue;
      here.in_thread = true;
      enter(self());
      here.in_thread = false;
      if (here.failed) fail(here.failed);
    }
    if (all_done) break;
    if (here.progress == before && late) {
      if (here.bulk_loads.empty()) fail("no thread can go on");
      here.bulk_loads.front()();
      here.bulk_loads.pop_front();
    }
    late = here.progress == before && !late;
  }
  if (!here.bulk_loads.empty()) fail("bulk copies left at the end of a CTA");
  for (auto& [_, each] : here.mbarriers) {
    if (each.left != each.arrivals || each.bytes) fail("a phase of an mbarrier is unfinished at the end of a CTA");
  }
}

// ---- memory

constexpr unsigned kSharedBase = 1024;  // addresses of shared memory begin here
inline constexpr unsigned kMaxShared = 232448;
alignas(1024) inline unsigned char memory[kMaxShared];
inline unsigned shared_bytes;

inline unsigned char* at(unsigned address, unsigned bytes) {
  if (address < kSharedBase || address + bytes > kSharedBase + shared_bytes) fail("address outside of shared memory");
  if (address % bytes) fail("misaligned address in shared memory");
  return memory + (address - kSharedBase);
}

// By an ordinary store: TMA sees it after fence.proxy.async.
inline void written(unsigned address, unsigned bytes) {
  for (unsigned i = 0; i < bytes; i += 2) cta->unfenced[address + i] = thread();
}

inline std::vector<std::pair<const char*, const char*>> readable;  // the operands

inline void check_read(const void* from, int bytes) {
  const char* p = static_cast<const char*>(from);
  for (auto& [first, end] : readable) {
    if (p >= first && p + bytes <= end) {
      if (reinterpret_cast<std::size_t>(p) % bytes) fail("misaligned read of an operand");
      return;
    }
  }
  fail("read outside of the operands");
}

// What TMA and wgmma do to an address in rows of `row_bytes`.
inline unsigned swizzled(unsigned address, int row_bytes) {
  const unsigned mask = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : 1;
  return address ^ (address >> 7 & mask) << 4;
}

// ---- numbers

inline float from_bf16(unsigned short x) {
  const unsigned bits = unsigned(x) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}
inline unsigned short to_bf16(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline float from_f16(unsigned short x) {
  _Float16 half;
  std::memcpy(&half, &x, 2);
  return half;
}
inline unsigned short to_f16(float x) {
  const _Float16 half = x;
  unsigned short result;
  std::memcpy(&result, &half, 2);
  return result;
}

inline unsigned to_tf32(unsigned bits) { return (bits + 0x1000) & 0xffffe000; }
inline void round_to_tf32(unsigned char* number) {
  unsigned bits;
  std::memcpy(&bits, number, 4);
  bits = to_tf32(bits);
  std::memcpy(number, &bits, 4);
}

struct Dim {
  unsigned x;
};

}  // namespace emulation

#define threadIdx (emulation::Dim{unsigned(emulation::thread())})
#define blockIdx (emulation::Dim{emulation::block})
#define gridDim (emulation::Dim{emulation::grid})

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline float __uint_as_float(unsigned bits) {
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}
inline float __fdividef(float a, float b) { return a / b; }
template <typename T>
T __ldg(const T* from) {
  emulation::check_read(from, sizeof *from);
  return *from;
}
inline std::size_t __cvta_generic_to_shared(const void* p) {
  const auto* byte = static_cast<const unsigned char*>(p);
  if (byte < emulation::memory || byte > emulation::memory + emulation::kMaxShared) emulation::fail("not in shared memory");
  return byte - emulation::memory + emulation::kSharedBase;
}
inline void __syncthreads() { emulation::arrive_and_wait(emulation::cta->named[0], int(emulation::cta->threads.size())); }
inline void __syncwarp() { emulation::sync_warp(); }
template <typename T>
T __shfl_sync(unsigned, T x, int from) {
  T result;
  emulation::exchange(x, [&](const auto& all) { result = all(from); });
  return result;
}
template <typename T>
T __shfl_xor_sync(unsigned, T x, int bits) {
  T result;
  emulation::exchange(x, [&](const auto& all) { result = all(emulation::lane() ^ bits); });
  return result;
}
inline unsigned __ballot_sync(unsigned, int x) {
  unsigned result = 0;
  emulation::exchange(x, [&](const auto& all) {
    for (int i = 0; i < 32; ++i) result |= unsigned(all(i) != 0) << i;
  });
  return result;
}
