#pragma once

#include "../../abi.h"
#include "../emulator.h"
#include "wgmma_descriptor.cuh"

namespace emulation {

// An operand of wgmma as its descriptor says: element (i, k), i along m or n. ACROSS: rows in shared memory run along i.
struct Operand {
  unsigned start, leading, stride;
  int row_bytes;

  explicit Operand(unsigned long long descriptor)
      : start((descriptor & 0x3fff) << 4),
        leading((descriptor >> 16 & 0x3fff) << 4),
        stride((descriptor >> 32 & 0x3fff) << 4),
        row_bytes(descriptor >> 62 == 1 ? 128 : descriptor >> 62 == 2 ? 64 : 32) {}

  // So many elements from (i, k), along i or k as they lie in a row; no more than 16 bytes, to which they are aligned.
  template <int COUNT, typename Element>
  void get(Element* elements, bool across, int i, int k) const {
    constexpr int kBytes = sizeof(Element);
    const int in_row = across ? i * kBytes % row_bytes : k * kBytes, row = across ? k : i, tile = across ? i * kBytes / row_bytes : 0;
    const unsigned address = start + tile * leading + row / 8 * stride + row % 8 * row_bytes + in_row;
    std::memcpy(elements, at(swizzled(address, row_bytes), COUNT * kBytes), COUNT * kBytes);
  }

  // Two neighbours along i, for all k.
  template <typename Element, int K>
  void get_two(Element (&elements)[2][K], bool across, int i) const {
    constexpr int kUnit = 16 / sizeof(Element);
    for (int k = 0; across && k < K; ++k) {
      Element two[2];
      get<2>(two, across, i, k);
      elements[0][k] = two[0], elements[1][k] = two[1];
    }
    for (int e = 0; !across && e < 2; ++e) {
      for (int k = 0; k < K; k += kUnit) get<kUnit>(elements[e] + k, across, i + e, k);
    }
  }
};

// A thread's elements of a (64 x K) times b (K x N), in float. Of a it has two rows.
template <typename Element, int REGISTERS, int K, typename Convert>
void multiply(float* c, const float (&a)[2][K], Operand b, bool b_across, const Convert& convert) {
  for (int j = 0; j < REGISTERS / 4; ++j) {
    Element columns[2][K];
    b.get_two(columns, b_across, j * 8 + lane() % 4 * 2);
    for (int e = 0; e < 2; ++e) {
      float right[K];
      for (int k = 0; k < K; ++k) right[k] = convert(columns[e][k]);
      for (int half = 0; half < 2; ++half) {
        float& to = c[j * 4 + half * 2 + e];
        for (int k = 0; k < K; ++k) to += a[half][k] * right[k];
      }
    }
  }
}

// The same with a in shared memory, of 16-bit elements.
template <int REGISTERS, typename Convert>
void multiply_shared(float* c, Operand a, bool a_across, Operand b, bool b_across, const Convert& convert) {
  const int row = thread() / 32 % 4 * 16 + lane() / 4;
  float left[2][16];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      unsigned short element;
      a.get<1>(&element, a_across, row + half * 8, k);
      left[half][k] = convert(element);
    }
  }
  multiply<unsigned short, REGISTERS>(c, left, b, b_across, convert);
}

constexpr auto kFromBf16 = [](unsigned short x) { return from_bf16(x); };
constexpr auto kFromF16 = [](unsigned short x) { return from_f16(x); };

}  // namespace emulation

namespace jitsparse::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() { emulation::commit(emulation::Begun::products); }
template <int PENDING>
void wgmma_wait() {
  emulation::finish(emulation::Begun::products, PENDING);
}
template <int ROWS, int COLUMNS>
void fence_accumulators(float (&)[ROWS][COLUMNS]) {}

template <int TRANSPOSE_A, int TRANSPOSE_B, int REGISTERS>
void wgmma_bf16(float (&c)[REGISTERS], uint64 a, uint64 b) {
  emulation::later(emulation::Begun::products, [&c, a, b] {
    emulation::multiply_shared<REGISTERS>(c, emulation::Operand(a), TRANSPOSE_A, emulation::Operand(b), TRANSPOSE_B, emulation::kFromBf16);
  });
}
template <int TRANSPOSE_A, int TRANSPOSE_B, int REGISTERS>
void wgmma_f16(float (&c)[REGISTERS], uint64 a, uint64 b) {
  emulation::later(emulation::Begun::products, [&c, a, b] {
    emulation::multiply_shared<REGISTERS>(c, emulation::Operand(a), TRANSPOSE_A, emulation::Operand(b), TRANSPOSE_B, emulation::kFromF16);
  });
}

// The lanes show each other their fragments when the product is waited for, which all do together: a register that has changed by
// then shows. Of a fragment a lane has one register of every four k, or two neighbours of every eight.
template <typename Element, int REGISTERS, typename Convert>
void wgmma_left(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b, bool b_across, const Convert& convert) {
  emulation::later(emulation::Begun::products, [&c, &a, b, b_across, convert] {
    constexpr int kPacked = 4 / sizeof(Element), kDepth = 8 * kPacked;
    unsigned mine[4];
    std::memcpy(mine, a, sizeof mine);
    float left[2][kDepth];
    emulation::exchange(mine, [&](const auto& all) {
      for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < kDepth; ++k) {
          const unsigned bits = all(emulation::lane() / 4 * 4 + k / kPacked % 4)[k / (kDepth / 2) * 2 + half];
          Element element;
          std::memcpy(&element, reinterpret_cast<const Element*>(&bits) + k % kPacked, sizeof element);
          left[half][k] = convert(element);
        }
      }
    });
    emulation::multiply<Element, REGISTERS>(c, left, emulation::Operand(b), b_across, convert);
  });
}

template <int TRANSPOSE_B, int REGISTERS>
void wgmma_bf16(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
  wgmma_left<unsigned short>(c, a, b, TRANSPOSE_B, emulation::kFromBf16);
}
template <int TRANSPOSE_B, int REGISTERS>
void wgmma_f16(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
  wgmma_left<unsigned short>(c, a, b, TRANSPOSE_B, emulation::kFromF16);
}
template <int REGISTERS>
void wgmma_tf32(float (&c)[REGISTERS], const unsigned (&a)[4], uint64 b) {
  wgmma_left<unsigned>(c, a, b, false, [](unsigned bits) { return __uint_as_float(bits & 0xffffe000); });
}

}  // namespace jitsparse::ptx
