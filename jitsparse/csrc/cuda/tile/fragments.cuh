// Operands of mma.sync, read from swizzled tiles in shared memory.
#pragma once

#include "../ptx/ldmatrix.cuh"
#include "../ptx/load_shared.cuh"
#include "shared_tile.cuh"

namespace jitsparse {

// Fragments of an operand: registers that each hold 8 elements across (along m or n) by kRegisterK along k. The tile is k-major
// (K_CONTIGUOUS) or contiguous across. One load() reads ACROSS x K elements: the first registers are consecutive along k if K_FIRST, as the
// right operand needs them, else across, as the left one does.
template <typename Element, bool K_CONTIGUOUS, typename Tile, int ACROSS, int K, bool K_FIRST>
struct Fragments {
  static constexpr int kAcross = ACROSS / 8, kDeep = K / Element::kRegisterK, kCount = kAcross * kDeep;
  static constexpr bool kByElement = sizeof(typename Element::Storage) == 4 && !K_CONTIGUOUS;  // ldmatrix transposes 16 bits only
  static __device__ __forceinline__ int across(int i) { return K_FIRST ? i / kDeep : i % kAcross; }
  static __device__ __forceinline__ int deep(int i) { return K_FIRST ? i % kDeep : i / kAcross; }

  static __device__ __forceinline__ unsigned lane_offset(int lane) {
    if constexpr (kByElement) return Tile::offset(lane % 4, lane / 16) + lane / 4 % 4 * 4;
    const int matrix = lane / 8 % kCount, row = lane % 8;  // whose address the lane gives
    return K_CONTIGUOUS ? Tile::offset(across(matrix) * 8 + row, deep(matrix)) : Tile::offset(deep(matrix) * 8 + row, across(matrix));
  }

  // `lane_address`: the tile's address plus lane_offset; `first`: the first element across.
  static __device__ __forceinline__ void load(unsigned (&d)[kCount], unsigned lane_address, int first, int k) {
    if constexpr (kByElement) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        d[i] = ptx::load_shared_b32(Tile::advance(lane_address, k + deep(i) * 4, (first + across(i) * 8) / Tile::kPerChunk));
      }
    } else if constexpr (K_CONTIGUOUS) {
      ptx::ldmatrix(d, Tile::advance(lane_address, first, k / Tile::kPerChunk));
    } else {
      ptx::ldmatrix_trans(d, Tile::advance(lane_address, k, first / Tile::kPerChunk));
    }
#pragma unroll
    for (unsigned& bits : d) bits = Element::operand(bits);
  }
};

// The same of doubles. An mma sums over k in any order, so a lane takes two adjacent elements where the mma has two that are four apart: of
// a k-major tile one load brings both, and no load meets a bank twice, except in MN-major blocks of 8 columns.
template <bool K_CONTIGUOUS, typename Tile, int ACROSS, int K, bool K_FIRST>
struct Fragments<F64, K_CONTIGUOUS, Tile, ACROSS, K, K_FIRST> {
  static constexpr int kAcross = ACROSS / 8, kDeep = K / F64::kRegisterK, kCount = kAcross * kDeep;
  static_assert(kDeep % 2 == 0, "pairs along k");
  static __device__ __forceinline__ int at(int across, int deep) { return K_FIRST ? across * kDeep + deep : deep * kAcross + across; }

  static __device__ __forceinline__ unsigned lane_offset(int lane) {
    const int across = lane / 4, pair = lane % 4;
    return K_CONTIGUOUS ? Tile::offset(across, pair) : Tile::offset(2 * pair, across / 2) + across % 2 * 8;
  }

  static __device__ __forceinline__ void load(double (&d)[kCount], unsigned lane_address, int first, int k) {
#pragma unroll
    for (int across = 0; across < kAcross; ++across) {
#pragma unroll
      for (int deep = 0; deep < kDeep; deep += 2) {
        double& d0 = d[at(across, deep)];
        double& d1 = d[at(across, deep + 1)];
        const int i = first + across * 8, at_k = k + deep * F64::kRegisterK;
        if constexpr (K_CONTIGUOUS) {
          ptx::load_shared_f64x2(d0, d1, Tile::advance(lane_address, i, at_k / 2));
        } else {
          d0 = ptx::load_shared_f64(Tile::advance(lane_address, at_k, i / 2));
          d1 = ptx::load_shared_f64(Tile::advance(lane_address, at_k + 1, i / 2));
        }
      }
    }
  }
};

template <typename Element, bool K_CONTIGUOUS, typename Tile>
using LeftFragments = Fragments<Element, K_CONTIGUOUS, Tile, 16, Element::kMmaK, false>;
template <typename Element, bool K_CONTIGUOUS, typename Tile>
using RightFragments = Fragments<Element, K_CONTIGUOUS, Tile, 16, Element::kMmaK, true>;

}  // namespace jitsparse
