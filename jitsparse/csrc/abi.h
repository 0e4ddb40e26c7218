// The calling convention between Python and every compiled kernel: one pointer to a row of 64-bit
// words. Python packs the words with one struct.pack (0.3 us for 24 words, against 2 us for as many
// ctypes arguments); a launcher reads them through these structs. The order of the members is the
// contract with jitsparse/kernels/abi.py.
#pragma once

using int32 = int;
using int64 = long long;
using uint64 = unsigned long long;
static_assert(sizeof(int32) == 4 && sizeof(int64) == 8 && sizeof(void*) == 8, "LP64 is assumed");

namespace jitsparse {

enum Activation : int64 { kIdentity = 0, kRelu = 1, kGelu = 2, kSilu = 3 };

// dsd: out[batch][rows_of_op(S)][n] = op(S) x dense.    dds: out[batch][n][cols_of_op(S)] = dense x op(S).
// `n` is the extent that the dense operand does not share with the sparse one.
struct SpmmArgs {
  const void* values;        // (nnz, block_rows, block_cols), contiguous
  const int32* index;        // the pattern's packed index, see IndexView
  const void* dense;
  void* out;                 // row-major
  const void* bias;          // one element a column of out (dds only), or null; same dtype as out
  int64 rows, cols, nnz;     // of the sparse matrix as stored, in elements and in blocks
  int64 n;
  int64 dense_ld, dense_batch_stride;   // elements; ld is the stride of the axis that is not contiguous
  int64 out_ld, out_batch_stride;
  int64 batch;
  int64 activation;          // Activation
  int64 context;             // CPU: number of threads.  CUDA: cudaStream_t
};

// sdd: out[z] = sum over the batch of (left x right) restricted to block z of the pattern.
struct SddArgs {
  const void* left;          // rows x k
  const void* right;         // k x cols
  const int32* index;
  void* out;                 // (nnz, block_rows, block_cols), contiguous
  int64 rows, cols, nnz, k;
  int64 left_ld, left_batch_stride;
  int64 right_ld, right_batch_stride;
  int64 batch;
  int64 context;
};

#if defined(__CUDACC__)
#define JITSPARSE_HD __host__ __device__ __forceinline__
#else
#define JITSPARSE_HD inline
#endif

constexpr int64 div_up(int64 a, int64 b) { return (a + b - 1) / b; }

// The packed index of a pattern with R x C blocks of which Z are stored; mirrors
// jitsparse/schedule.py, which documents each part.
template <int BLOCK_ROWS, int BLOCK_COLS>
struct IndexView {
  const int32* base;
  int64 R, C, Z;

  JITSPARSE_HD IndexView(const int32* index, int64 rows, int64 cols, int64 nnz)
      : base(index), R((rows + BLOCK_ROWS - 1) / BLOCK_ROWS), C((cols + BLOCK_COLS - 1) / BLOCK_COLS), Z(nnz) {}

  static constexpr int64 kRowGroup = BLOCK_ROWS >= 128 ? 1 : 128 / BLOCK_ROWS;
  static constexpr int64 kColGroup = BLOCK_COLS >= 128 ? 1 : 128 / BLOCK_COLS;
  JITSPARSE_HD int64 row_panels() const { return (R + kRowGroup - 1) / kRowGroup; }
  JITSPARSE_HD int64 col_panels() const { return (C + kColGroup - 1) / kColGroup; }

  // as stored
  JITSPARSE_HD const int32* crow() const { return base; }                          // R + 1
  JITSPARSE_HD const int32* col() const { return crow() + R + 1; }                 // Z
  JITSPARSE_HD const int32* row() const { return col() + Z; }                      // Z
  // transposed order
  JITSPARSE_HD const int32* ccol() const { return row() + Z; }                     // C + 1
  JITSPARSE_HD const int32* row_t() const { return ccol() + C + 1; }               // Z
  JITSPARSE_HD const int32* perm() const { return row_t() + Z; }                   // Z
  // panels of 128 rows, then of 128 columns (CUDA only); the steps are 16-byte aligned
  JITSPARSE_HD const int32* row_steps() const { return base + align4(R + 1 + Z + Z + C + 1 + Z + Z); }   // 4 Z
  JITSPARSE_HD const int32* col_steps() const { return row_steps() + 4 * Z; }      // 4 Z
  JITSPARSE_HD const int32* row_panel_ptr() const { return col_steps() + 4 * Z; }  // row panels + 1
  JITSPARSE_HD const int32* col_panel_ptr() const { return row_panel_ptr() + row_panels() + 1; }
  JITSPARSE_HD const int32* row_panel_blocks() const { return col_panel_ptr() + col_panels() + 1; }  // Z
  JITSPARSE_HD const int32* col_panel_blocks() const { return row_panel_blocks() + Z; }              // Z

 private:
  static JITSPARSE_HD int64 align4(int64 x) { return (x + 3) / 4 * 4; }
};

}  // namespace jitsparse
