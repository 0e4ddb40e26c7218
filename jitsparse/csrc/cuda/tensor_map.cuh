// TMA tensor maps of the operands, encoded on the host for each launch (about 0.2 us per map).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "../abi.h"

namespace jitsparse {

// A batch of matrices; the first extent is the contiguous one.
struct MatrixShape {
  int64 inner, outer, batch;
  int64 ld, batch_stride;  // elements
};
struct Box {
  int inner, outer;
};

// For 16-bit elements, or float, which the copies round to TF32. `box` is what one copy moves; in shared memory its rows have the swizzle
// of their width.
template <typename Storage>
cudaError_t encode_map(CUtensorMap* map, const void* base, const MatrixShape& shape, const Box& box) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                              const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  // Looked up in the driver that is already loaded, so that the library links no libcuda and needs no runtime function newer than CUDA 12.0
  // (a process may have an older runtime than the compiler's).
  static const Encode encode = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Encode>(driver ? dlsym(driver, "cuTensorMapEncodeTiled") : nullptr);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  // Coordinates of a copy are 32-bit.
  constexpr int64 kMax = 0x7fffffff;
  if (shape.inner > kMax || shape.outer > kMax || shape.batch > kMax) return cudaErrorInvalidValue;
  const cuuint64_t sizes[3] = {cuuint64_t(shape.inner), cuuint64_t(shape.outer), cuuint64_t(shape.batch)};
  // The stride of an axis of one entry is never used, but must be legal.
  const cuuint64_t row_bytes = cuuint64_t(shape.ld) * sizeof(Storage);
  const cuuint64_t strides[2] = {row_bytes, shape.batch > 1 ? cuuint64_t(shape.batch_stride) * sizeof(Storage) : row_bytes};
  const cuuint32_t boxes[3] = {cuuint32_t(box.inner), cuuint32_t(box.outer), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  constexpr CUtensorMapDataType kType = sizeof(Storage) == 4 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  static_assert(sizeof(Storage) == 2 || sizeof(Storage) == 4, "bfloat16 and float16, or TF32");
  const int row = box.inner * int(sizeof(Storage));
  const CUtensorMapSwizzle swizzle = row == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : row == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                 : CU_TENSOR_MAP_SWIZZLE_32B;
  // L2 fetches whole lines of 128 bytes. (Promotion to 256 makes boxes of 64-byte rows up to 1.25 times as slow, and nothing faster.)
  const auto try_to = [&] {
    return encode(map, kType, 3, const_cast<void*>(base), sizes, strides, boxes, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  if (try_to() == CUDA_SUCCESS) return cudaSuccess;
  // The driver needs a current context, which a thread has only after a runtime call; an autograd thread may have made none.
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  if (cudaError_t error = cudaSetDevice(device)) return error;
  const CUresult result = try_to();
  return result == CUDA_SUCCESS ? cudaSuccess : result == CUDA_ERROR_INVALID_VALUE ? cudaErrorInvalidValue : cudaErrorUnknown;
}

}  // namespace jitsparse
