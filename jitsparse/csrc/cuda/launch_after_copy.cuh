// A launch that copies operands to the workspace first, for kernels that want them the other way (kernels/transpose.cuh).
#pragma once

#include "../abi.h"
#include "enqueue.cuh"
#include "kernels/transpose.cuh"

namespace jitsparse {

// Replaces an operand, `batch` matrices of `width` rows or columns, by a transposed copy, and moves the workspace's beginning past it. One
// matrix that serves a whole batch is transposed once.
template <typename Storage, typename Args>
int transpose_operand(Args& args, const void*& operand, int64& ld, int64& batch_stride, int64 k, int64 width, int64 batch) {
  auto* to = static_cast<Storage*>(args.workspace);
  const int64 matrices = batch_stride ? batch : 1;
  const typename Transpose<Storage>::Params params = {static_cast<const Storage*>(operand), to, width, k, ld, batch_stride, matrices};
  if (int code = enqueue<Transpose<Storage>>(params, Transpose<Storage>::grid(params), args.context)) return code;
  operand = to;
  ld = transposed_ld<Storage>(k);
  if (batch_stride) batch_stride = width * ld;
  args.workspace = to + matrices * width * ld;
  return cudaSuccess;
}

// What a template does to its operands before it launches a kernel.
template <typename Kernel, typename Args>
int no_copy(Args&) {
  return cudaSuccess;
}
template <typename Kernel>
int transpose_left(SddArgs& args) {
  return transpose_operand<typename Kernel::Storage>(args, args.left, args.left_ld, args.left_batch_stride, args.k, args.rows, args.batch);
}
template <typename Kernel>
int transpose_right(SddArgs& args) {
  return transpose_operand<typename Kernel::Storage>(args, args.right, args.right_ld, args.right_batch_stride, args.k, args.cols,
                                                     args.batch);
}
template <typename Kernel>
int transpose_dense(SpmmArgs& args) {
  using Stages = typename Kernel::Stages;
  return transpose_operand<typename Stages::Storage>(args, args.dense, args.dense_ld, args.dense_batch_stride, Stages::k(args), args.n,
                                                     args.batch);
}
template <typename Kernel>
int transpose_dense_across(SpmmArgs& args) {
  using Stages = typename Kernel::Stages;
  return transpose_operand<typename Stages::Storage>(args, args.dense, args.dense_ld, args.dense_batch_stride, args.n, Stages::k(args),
                                                     args.batch);
}
// Transposes each stored block; the copies are contiguous like the blocks.
template <typename Kernel>
int transpose_values(SpmmArgs& args) {
  int64 ld = Kernel::kBlockCols, stride = int64(Kernel::kBlockRows) * Kernel::kBlockCols;
  return transpose_operand<typename Kernel::Stages::Storage>(args, args.values, ld, stride, Kernel::kBlockRows, Kernel::kBlockCols,
                                                             args.nnz);
}

// A complete launcher: `copy` is one of those above, and changes the arguments that `launch` is given.
template <typename Args>
int launch_after(const void* words, int (*copy)(Args&), int (*launch)(const Args&)) {
  Args args = *static_cast<const Args*>(words);
  if (int code = copy(args)) return code;
  return launch(args);
}

}  // namespace jitsparse
