#pragma once

#include "../emulator.h"

namespace jitsparse::ptx {

template <typename Register>
struct Fragments {
  const Register* a;
  Register b[2];
};

// element(word, half): an element of a register. A row of 16-bit fragments has two a word, one of tf32 or doubles has one. WORDS: registers of b.
template <int PER_WORD, int WORDS = 2, typename Sum, typename Register, typename Element>
void multiply(Sum (&c)[4], const Register (&a)[2 * WORDS], Register b0, Register b1, const Element& element) {
  Fragments<Register> mine = {a, {b0, b1}};
  emulation::exchange(mine, [&](const auto& all) {
    const int lane = emulation::lane();
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4, half = e / 2, column = lane % 4 * 2 + e % 2;
      for (int k = 0; k < 4 * WORDS * PER_WORD; ++k) {
        // Fragments hold the first half of k in their first registers.
        const int later = k / (4 * PER_WORD), quarter = k / PER_WORD % 4, word = k % PER_WORD;
        const Sum left = element(all(row * 4 + quarter).a[later * 2 + half], word);
        const Sum right = element(all(column * 4 + quarter).b[later], word);
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
  multiply<2, 1>(c, a, b, 0u, [](unsigned bits, int half) { return emulation::from_bf16(bits >> 16 * half); });
}
inline void mma_m16n8k8_f16(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  const unsigned a[2] = {a0, a1};
  multiply<2, 1>(c, a, b, 0u, [](unsigned bits, int half) { return emulation::from_f16(bits >> 16 * half); });
}
inline void mma_m16n8k8_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply<1>(c, a, b0, b1, [](unsigned bits, int) { return __uint_as_float(bits); });
}

inline void mma_m16n8k8_f64(double (&c)[4], const double (&a)[4], double b0, double b1) {
  multiply<1>(c, a, b0, b1, [](double x, int) { return x; });
}
// Eight of sixteen rows.
inline void mma_m8n8k4_f64(double& c0, double& c1, double a, double b) {
  double c[4] = {c0, c1};
  const double rows[2] = {a};
  multiply<1, 1>(c, rows, b, 0.0, [](double x, int) { return x; });
  c0 = c[0], c1 = c[1];
}

}  // namespace jitsparse::ptx
