// In place of tensor_map.cuh: a map says in words what TMA's says in bits.
#pragma once

#include "../abi.h"
#include "emulator.h"

namespace jitsparse {

struct MatrixShape {
  int64 inner, outer, batch;
  int64 ld, batch_stride;
};
struct Box {
  int inner, outer;
};

}  // namespace jitsparse

struct CUtensorMap {
  char* base;
  jitsparse::MatrixShape shape;
  jitsparse::Box box;
  int item_bytes;
};

namespace jitsparse {

template <typename Storage>
cudaError_t encode_map(CUtensorMap* map, const void* base, const MatrixShape& shape, const Box& box) {
  constexpr int kBytes = sizeof(Storage);
  constexpr int64 kMax = 0x7fffffff;
  if (shape.inner > kMax || shape.outer > kMax || shape.batch > kMax) return cudaErrorInvalidValue;
  const bool legal = box.inner * kBytes <= 128 && box.outer <= 256 && shape.ld * kBytes % 16 == 0 &&
                     shape.batch_stride * kBytes % 16 == 0 && reinterpret_cast<std::size_t>(base) % 16 == 0;
  if (!legal) return cudaErrorInvalidValue;
  *map = {static_cast<char*>(const_cast<void*>(base)), shape, box, kBytes};
  return cudaSuccess;
}

}  // namespace jitsparse
