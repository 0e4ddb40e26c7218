// Runs CUDA kernels on a processor: a fiber for every thread of a CTA, one CTA after another.
//
// What the hardware does in the background happens as late as a program may count on: a copy's destination is poisoned when the copy
// is asked for, and filled when somebody who must wait for it waits; a wgmma multiplies when it is waited for. So a missing wait, a
// stage given back too early or a read past the end gives a wrong answer or an error, not a lucky one. A CTA in which no thread can
// go on is reported; so is an access that is not aligned, and one past the end of an operand if no memory can be read there. Shared
// memory is NaN until it is written. Memory is not shared between threads that run at once, so races as such are not found, and
// wgmma_fence, fence_mbarrier_init and setmaxnreg do nothing.
//
// What no kernel needs to have of its own is in emulator.cpp, which is compiled once.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __align__(bytes)

struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using cudaError_t = int;
constexpr int cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9;

namespace emulation {

// Ends the run.
[[noreturn]] void fail(const char* what);

// ---- threads

extern unsigned block, grid;
extern int sm_count, current;

inline int thread() { return current; }
inline int lane() { return current % 32; }

void sync_warp();
void sync_cta();
void named_barrier(int name, int threads);

// What the lanes of the warp show each other; this one shows `mine`.
void** show(void* mine);

// Calls use(all), where all(lane) is what that lane showed, in every lane of a warp.
template <typename T, typename Use>
void exchange(T& mine, const Use& use) {
  void** shown = show(&mine);
  sync_warp();
  use([&](int from) -> T& { return *static_cast<T*>(shown[from]); });
  sync_warp();
}

// What a thread has begun and not waited for: cp.async, bulk stores and wgmma, in groups.
enum class Begun { copies, stores, products };

// As part of the group that is open, which commit() closes.
void later(Begun kind, std::function<void()> work);
void commit(Begun kind);
// Does all but so many groups, the oldest first.
void finish(Begun kind, std::size_t pending);

// Runs a grid; says what is wrong, or null.
const char* run(int threads, unsigned shared_bytes, unsigned grid, void (*body)(const void*), const void* params);

// ---- memory

// Addresses of shared memory begin here: aligned to 128 bytes and no more, so that who needs more has little to spare at the end.
constexpr unsigned kSharedBase = 1024 + 128;
constexpr unsigned kMaxShared = 232448;
alignas(1024) extern unsigned char memory[kMaxShared];
extern unsigned shared_bytes;

inline unsigned char* at(unsigned address, unsigned bytes) {
  if (address < kSharedBase || address + bytes > kSharedBase + shared_bytes) fail("address outside of shared memory");
  if (address % bytes) fail("misaligned address in shared memory");
  return memory + (address - kSharedBase);
}

// Of a static variable of a CTA, which it fills with NaN when the first thread comes by.
void poison(void* variable, std::size_t bytes);

// By an ordinary store: TMA sees it after fence.proxy.async.
void written(unsigned address, unsigned bytes);
void fence_proxy_async();

// Of an operand, by a load of so many bytes.
void check_read(const void* from, int bytes);

// What TMA and wgmma do to an address in rows of `row_bytes`.
inline unsigned swizzled(unsigned address, int row_bytes) {
  const unsigned mask = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : 1;
  return address ^ (address >> 7 & mask) << 4;
}

// ---- products

enum class Number { bf16, f16, tf32 };

// Adds to a thread's registers, when the product is waited for, its elements of (64 x K) times (K x N), of 32 bytes of k each: wgmma. Of
// the operands there is a descriptor; the left one may also be in registers, as a fragment, which the lanes show each other then, as all
// wait together: a register that has changed by then shows. ACROSS: rows in shared memory run along m, n.
void multiply(float* c, int registers, Number number, unsigned long long a, bool a_across, unsigned long long b, bool b_across);
void multiply(float* c, int registers, Number number, const unsigned (&a)[4], unsigned long long b, bool b_across);

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
inline unsigned to_tf32(unsigned bits) {
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return nan ? 0x7fffffff : (bits + 0x1000) & 0xffffe000;
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
inline void __syncthreads() { emulation::sync_cta(); }
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
