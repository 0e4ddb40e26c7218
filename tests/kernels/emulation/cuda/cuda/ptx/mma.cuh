#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

struct Fragments {
  const unsigned* a;
  unsigned b[2];
};

// element(word, half): an element of a register. A row of 16-bit fragments has two a word, one of tf32 has one. WORDS: registers of b.
template <int PER_WORD, int WORDS = 2, typename Element>
void multiply(float (&c)[4], const unsigned (&a)[2 * WORDS], unsigned b0, unsigned b1, const Element& element) {
  Fragments mine = {a, {b0, b1}};
  emulation::exchange(mine, [&](const auto& all) {
    const int lane = emulation::lane();
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4, half = e / 2, column = lane % 4 * 2 + e % 2;
      for (int k = 0; k < 4 * WORDS * PER_WORD; ++k) {
        // Fragments hold the first half of k in their first registers.
        const int later = k / (4 * PER_WORD), quarter = k / PER_WORD % 4, word = k % PER_WORD;
        const float left = element(all(row * 4 + quarter).a[later * 2 + half], word);
        const float right = element(all(column * 4 + quarter).b[later], word);
        c[e] += left * right;
      }
    }
  });
}

inline void mma_m16n8k16_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply<2>(c, a, b0, b1, [](unsigned bits, int half) { return emulation::from_bf16(bits >> 16 * half); });
}
inline void mma_m16n8k16_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply<2>(c, a, b0, b1, [](unsigned bits, int half) { return emulation::from_f16(bits >> 16 * half); });
}
inline void mma_m16n8k8_bf16(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  const unsigned a[2] = {a0, a1};
  multiply<2, 1>(c, a, b, 0, [](unsigned bits, int half) { return emulation::from_bf16(bits >> 16 * half); });
}
inline void mma_m16n8k8_f16(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  const unsigned a[2] = {a0, a1};
  multiply<2, 1>(c, a, b, 0, [](unsigned bits, int half) { return emulation::from_f16(bits >> 16 * half); });
}
inline void mma_m16n8k8_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply<1>(c, a, b0, b1, [](unsigned bits, int) { return __uint_as_float(bits); });
}

struct FragmentsF64 {
  double a[2], b;
};

// ROWS of 8, from c[0]; a has an element of each.
template <int ROWS>
void multiply_f64(double* c, const double* a, double b) {
  FragmentsF64 mine = {{a[0], a[ROWS - 1]}, b};
  emulation::exchange(mine, [&](const auto& all) {
    const int lane = emulation::lane();
    for (int e = 0; e < 2 * ROWS; ++e) {
      const int row = lane / 4, column = lane % 4 * 2 + e % 2;
      for (int k = 0; k < 4; ++k) c[e] += all(row * 4 + k).a[e / 2] * all(column * 4 + k).b;
    }
  });
}

inline void mma_m8n8k4_f64(double& c0, double& c1, double a, double b) {
  double c[2] = {c0, c1};
  multiply_f64<1>(c, &a, b);
  c0 = c[0], c1 = c[1];
}
inline void mma_m16n8k8_f64(double (&c)[4], const double (&a)[4], double b0, double b1) {
  multiply_f64<2>(c, a, b0);
  multiply_f64<2>(c, a + 2, b1);
}

}  // namespace jitsparse::ptx
