// Vectors: GCC's vector extensions, so that one source serves AVX-512, AVX2 and every other
// architecture, without intrinsics headers (0.35 s of compile time for <immintrin.h> alone).
#pragma once

#if defined(__clang__) || !defined(__GNUC__)
#error "CPU kernels need g++: other compilers lack its vector extensions. Install g++, and unset CXX or set it to g++."
#endif

#include "abi.h"

#define JITSPARSE_INLINE inline __attribute__((always_inline))
#define JITSPARSE_UNROLL _Pragma("GCC unroll 64")

namespace jitsparse::cpu {

// -- element types --------------------------------------------------------------------------------

struct Float16 { unsigned short bits; };
struct BFloat16 { unsigned short bits; };

// The type in which products of T are summed.
template <class T> struct AccOf { using type = float; };
template <> struct AccOf<double> { using type = double; };
template <class T> using Acc = typename AccOf<T>::type;

#if defined(__AVX512F__)
constexpr int kVecBytes = 64;
#elif defined(__AVX__)
constexpr int kVecBytes = 32;
#else
constexpr int kVecBytes = 16;
#endif

// Two bfloat16 that are neighbours along k. Packing treats them as one 32-bit element.
using Pair = unsigned;

// The element type of a packed operand: the accumulator type, or kTogether elements along k in one.
template <class T> struct PackedOf {
  using type = Acc<T>;
  static constexpr int kTogether = 1;
};
#if defined(__AVX512BF16__)
template <> struct PackedOf<BFloat16> {
  using type = Pair;
  static constexpr int kTogether = 2;
};
#endif
template <class T> using Packed = typename PackedOf<T>::type;
template <class T> constexpr int kTogether = PackedOf<T>::kTogether;

// How much a loop may keep in a core's L2 cache and still find there the next time round: most of 1 MB.
constexpr int64 kL2Bytes = 800 << 10;
constexpr int kLine = 64;    // bytes of a cache line
constexpr int kIntoL1 = 3, kIntoL2 = 2;  // the locality argument of __builtin_prefetch

template <class A> constexpr int kLanes = kVecBytes / int(sizeof(A));

template <int BYTES> struct BitsOf { using type = unsigned; };
template <> struct BitsOf<8> { using type = unsigned long long; };
template <int BYTES> using Bits = typename BitsOf<BYTES>::type;

template <class E, int N> struct VecOf { typedef E type __attribute__((vector_size(N * sizeof(E)))); };
template <class E, int N> using Vec = typename VecOf<E, N>::type;

constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr int max(int a, int b) { return a > b ? a : b; }
constexpr int power_of_2_up_to(int a) { return a < 2 ? a : 2 * power_of_2_up_to(a / 2); }

// -- conversions: one vector of 16-bit patterns to floats, and back with round to nearest even ----

template <int N> JITSPARSE_INLINE Vec<float, N> widen(BFloat16, Vec<unsigned short, N> h) {
#if defined(__AVX2__)
  if constexpr (N == 8 || (N == 16 && kVecBytes == 64)) {
    Vec<unsigned, N> u;
    asm("vpmovzxwd %1, %0" : "=v"(u) : "vm"(h));
    return (Vec<float, N>)(u << 16);
  }
#endif
  return (Vec<float, N>)(__builtin_convertvector(h, Vec<unsigned, N>) << 16);
}

template <int N> JITSPARSE_INLINE Vec<unsigned short, N> narrow(BFloat16, Vec<float, N> f) {
#if defined(__AVX512BF16__)
  // Subnormals become zero, as in the instructions that multiply pairs, in vectors and in AMX tiles.
  if constexpr (N == 8 || N == 16) {
    Vec<unsigned short, N> h;
    asm("vcvtneps2bf16 %1, %0" : "=v"(h) : "v"(f));
    return h;
  } else if constexpr (N == 4) {
    Vec<unsigned short, 8> low_half;
    asm("vcvtneps2bf16 %1, %0" : "=v"(low_half) : "v"(f));
    Vec<unsigned short, N> h;
    __builtin_memcpy(&h, &low_half, sizeof h);
    return h;
  }
#endif
  const auto u = (Vec<unsigned, N>)f;
  const auto rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const auto quiet_nan = (u >> 16) | 0x40;
  return __builtin_convertvector((u & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded, Vec<unsigned short, N>);
}

template <int N> JITSPARSE_INLINE Vec<float, N> widen(Float16, Vec<unsigned short, N> h) {
#if defined(__F16C__)
  if constexpr (N == 8 || (N == 16 && kVecBytes == 64)) {
    Vec<float, N> f;
    asm("vcvtph2ps %1, %0" : "=v"(f) : "vm"(h));
    return f;
  }
#endif
  // Shift exponent and mantissa into place and multiply by 2^112: exact, for subnormals too. What
  // was infinity or NaN comes out at or above 2^16 and gets the exponent of all ones.
  const auto u = __builtin_convertvector(h, Vec<unsigned, N>);
  const auto scaled = (Vec<float, N>)((u & 0x7fff) << 13) * 0x1p112f;
  const auto special = scaled >= 65536.0f ? Vec<unsigned, N>{} + 0x7f800000 : Vec<unsigned, N>{};
  return (Vec<float, N>)((Vec<unsigned, N>)scaled | special | ((u & 0x8000) << 16));
}

template <int N> JITSPARSE_INLINE Vec<unsigned short, N> narrow(Float16, Vec<float, N> f) {
#if defined(__F16C__)
  if constexpr (N == 8 || (N == 16 && kVecBytes == 64)) {
    Vec<unsigned short, N> h;
    asm("vcvtps2ph $0, %1, %0" : "=v"(h) : "v"(f));
    return h;
  }
#endif
  // Adding a power of two whose last place is the last place of the result makes the adder round:
  // 2^13 times the value's own power of two, but never less than that of the smallest normal half.
  const auto u = (Vec<unsigned, N>)f, magnitude = u & 0x7fffffff, power = magnitude & 0x7f800000;
  const auto smallest = Vec<unsigned, N>{} + 0x38800000;
  const auto at_least = power < smallest ? smallest : power;
  const auto anchor = (Vec<float, N>)(at_least + 0x06800000);
  const auto sum = (Vec<unsigned, N>)((Vec<float, N>)magnitude + anchor);
  // The difference of the patterns is the value in units of its last place, leading bit included.
  const auto finite = ((at_least - smallest) >> 13) + (sum - (Vec<unsigned, N>)anchor);
  const auto infinite = Vec<unsigned, N>{} + 0x7c00, nan = Vec<unsigned, N>{} + 0x7e00;
  const auto ordered = magnitude >= 0x47800000 ? infinite : finite;
  const auto result = (magnitude > 0x7f800000 ? nan : ordered) | ((u >> 16) & 0x8000);
  return __builtin_convertvector(result, Vec<unsigned short, N>);
}

// Pairs of neighbours, each the bits of one element: low[i] beside high[i].
template <class T, int N> JITSPARSE_INLINE Vec<unsigned, N> narrow_pairs(Vec<float, N> low, Vec<float, N> high) {
#if defined(__AVX512BF16__)
  if constexpr (N == 16 && __is_same(T, BFloat16)) {
    Vec<unsigned short, 32> halves, order;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves) : "v"(low), "v"(high));
    JITSPARSE_UNROLL
    for (int i = 0; i < 32; ++i) order[i] = static_cast<unsigned short>(i / 2 + i % 2 * 16);
    return (Vec<unsigned, N>)__builtin_shuffle(halves, order);
  }
#endif
  return __builtin_convertvector(narrow<N>(T{}, low), Vec<unsigned, N>) |
         __builtin_convertvector(narrow<N>(T{}, high), Vec<unsigned, N>) << 16;
}

// -- loads and stores, as vectors of the accumulator type -----------------------------------------

// A vector as stored in memory.
template <class T, int N> struct StoredOf { using type = Vec<T, N>; };
template <int N> struct StoredOf<Float16, N> { using type = Vec<unsigned short, N>; };
template <int N> struct StoredOf<BFloat16, N> { using type = Vec<unsigned short, N>; };
template <class T, int N> using Stored = typename StoredOf<T, N>::type;

template <class T, int N> JITSPARSE_INLINE Vec<Acc<T>, N> from_stored(Stored<T, N> v) {
  if constexpr (sizeof(T) == 2) {
    return widen<N>(T{}, v);
  } else {
    return v;
  }
}

template <class T, int N> JITSPARSE_INLINE Stored<T, N> to_stored(Vec<Acc<T>, N> v) {
  if constexpr (sizeof(T) == 2) {
    return narrow<N>(T{}, v);
  } else {
    return v;
  }
}

template <int N, class T> JITSPARSE_INLINE Vec<Acc<T>, N> load(const T* p) {
  Stored<T, N> v;
  __builtin_memcpy(&v, p, sizeof v);
  return from_stored<T, N>(v);
}

template <int N, class T> JITSPARSE_INLINE void store(T* p, Vec<Acc<T>, N> v) {
  const Stored<T, N> stored = to_stored<T, N>(v);
  __builtin_memcpy(p, &stored, sizeof stored);
}

// Elements of a packed operand.
template <int N, class P> JITSPARSE_INLINE Vec<P, N> load_packed(const P* p) {
  Vec<P, N> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Reads an element that may be stored as another type: two adjacent bfloat16 are a pair.
template <class P> JITSPARSE_INLINE P packed_at(const void* from, int64 at) {
  P p;
  __builtin_memcpy(&p, static_cast<const char*>(from) + at * int64(sizeof p), sizeof p);
  return p;
}

// sum += factor x: one product per element, or two for pairs, where subnormals count as zero. The asm gets a vector of its own: GCC keeps
// an array in memory, an element of which is an operand, and products take 1.2 to 1.35 times as long.
template <int N, class A> JITSPARSE_INLINE void add_product(Vec<A, N>& sum, A factor, Vec<A, N> x) { sum += factor * x; }
#if defined(__AVX512BF16__)
template <int N> JITSPARSE_INLINE void add_product(Vec<float, N>& sum, Pair factor, Vec<Pair, N> x) {
  const Vec<Pair, N> factors = Vec<Pair, N>{} + factor;
  Vec<float, N> s = sum;
  asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(factors), "v"(x));
  sum = s;
}
#endif

// Steps of a multiply loop that GCC schedules as one where there are 32 registers, which takes 0.96 to 0.99 of the time that four copies of a
// step take; where there are 16, it would spill some.
constexpr int kStepGroup = 8;

// Calls step(d) for each d < count, unrolled.
template <class Step> JITSPARSE_INLINE void unrolled(int64 count, const Step& step) {
  int64 d = 0;
  if constexpr (kVecBytes == 64) {
    for (; d + kStepGroup <= count; d += kStepGroup) {
      JITSPARSE_UNROLL
      for (int i = 0; i < kStepGroup; ++i) step(d + i);
    }
  }
#pragma GCC unroll 4
  for (; d < count; ++d) step(d);
}

// Stores a vector past the caches, which saves reading the memory that it overwrites and keeps the
// caches for other data. `p` is aligned to the vector, and the rest of its cache line must be written
// in the same way right before or after. All threads see the data after stream_fence().
template <class V> JITSPARSE_INLINE void stream(void* p, V v) {
  [[maybe_unused]] float* const to = static_cast<float*>(p);
#if defined(__AVX512F__)
  if constexpr (sizeof v == 64) return __builtin_ia32_movntps512(to, (Vec<float, 16>)v);
#endif
#if defined(__AVX__)
  if constexpr (sizeof v == 32) return __builtin_ia32_movntps256(to, (Vec<float, 8>)v);
#endif
  __builtin_memcpy(p, &v, sizeof v);
}

inline void stream_fence() {
#if defined(__SSE__)
  asm volatile("sfence" : : : "memory");
#endif
}

// Loads the first `count` elements of a vector; the others are zero, and their memory is not touched.
template <int N, class T> JITSPARSE_INLINE Vec<Acc<T>, N> load_first(const T* p, int64 count) {
  if (count >= N) return load<N>(p);
  T part[N] = {};
  for (int64 i = 0; i < count; ++i) part[i] = p[i];
  return load<N>(part);
}

template <int N, class T> JITSPARSE_INLINE void store_first(T* p, Vec<Acc<T>, N> v, int64 count) {
  if (count >= N) return store<N>(p, v);
  T part[N];
  store<N>(part, v);
  for (int64 i = 0; i < count; ++i) p[i] = part[i];
}

// -- transposition --------------------------------------------------------------------------------

// Swaps the off-diagonal squares of every pair of rows that are SIZE apart, then again at half the
// size. The masks are constants, so the compiler finds the best instruction for each.
template <int SIZE, int N, class V> JITSPARSE_INLINE void swap_squares(V (&rows)[N]) {
  decltype(rows[0] < rows[0]) upper, lower;
  JITSPARSE_UNROLL
  for (int i = 0; i < N; ++i) {
    upper[i] = i & SIZE ? N + i - SIZE : i;
    lower[i] = i & SIZE ? N + i : i + SIZE;
  }
  JITSPARSE_UNROLL
  for (int i = 0; i < N; ++i) {
    if (i & SIZE) continue;
    const auto a = rows[i], b = rows[i + SIZE];
    rows[i] = __builtin_shuffle(a, b, upper);
    rows[i + SIZE] = __builtin_shuffle(a, b, lower);
  }
  if constexpr (SIZE > 1) swap_squares<SIZE / 2>(rows);
}

// Transposes N rows of N elements.
template <int N, class V> JITSPARSE_INLINE void transpose(V (&rows)[N]) { swap_squares<N / 2>(rows); }

}  // namespace jitsparse::cpu
