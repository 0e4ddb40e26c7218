// The calling convention between Python and every compiled kernel: one pointer to an array of 64-bit arguments. Python packs them with one
// struct.pack (0.3 us for two dozen, against 2 us for as many ctypes arguments); a launcher reads them through these structs. The order of
// the members is the contract with jitsparse/kernels/abi.py.
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
  const void* bias;          // one element per column of out (dds only), or null; same dtype as out
  void* workspace;           // CUDA: a transposed operand, then float32 split-K sums (parts, batch, rows and columns of out), as far
                             // as the kernel needs them; or null.  CPU: see Scratch, or null
  int64 rows, cols, nnz;     // of the sparse matrix as stored, in elements and in blocks
  int64 n;
  int64 dense_ld, dense_batch_stride;   // elements; ld is the stride of the axis that is not contiguous
  int64 out_ld, out_batch_stride;
  int64 batch;
  int64 activation;          // Activation
  int64 parts;               // split-K parts: upper bound (wgmma) or exact number (fma, mma); 1 without a workspace
  int64 context;             // CPU: number of threads.  CUDA: cudaStream_t
};

// sdd: out[z] = sum over the batch of (left x right) restricted to block z of the pattern.
struct SddArgs {
  const void* left;          // rows x k
  const void* right;         // k x cols
  const int32* index;
  void* out;                 // (nnz, block_rows, block_cols), contiguous
  void* workspace;           // CUDA: a transposed operand, then float32 (parts, nnz, block_rows, block_cols) or three tiles per part,
                             // depending on the kernel; or null.  CPU: see Scratch, or null
  int64 rows, cols, nnz, k;
  int64 left_ld, left_batch_stride;
  int64 right_ld, right_batch_stride;
  int64 batch;
  int64 parts;               // wgmma: upper bound on split-K parts, 1 without a workspace; fma, mma: CTAs resident at a time, see
                             // SddTail::clamp_parts
  int64 context;
};

#if defined(__CUDACC__)
#define JITSPARSE_HD __host__ __device__ __forceinline__
#else
#define JITSPARSE_HD inline
#endif

constexpr JITSPARSE_HD int64 div_up(int64 a, int64 b) { return (a + b - 1) / b; }

// An sdd tile: a panel along one side of the pattern, and block columns (or rows) gathered along the other. Those of 128 are gathered as
// two pieces.
template <int PANEL_BLOCK, int GATHERED_BLOCK>
struct GatherShape {
  static constexpr int64 kPanel = PANEL_BLOCK > 64 ? PANEL_BLOCK : 64, kDown = kPanel / PANEL_BLOCK;
  static constexpr int64 kPiece = GATHERED_BLOCK < 64 ? GATHERED_BLOCK : 64, kPieces = GATHERED_BLOCK / kPiece;
  static constexpr int64 kMin = 128 / kPiece, kMax = (kPanel > 64 ? 256 : 512) / kPiece;
  static JITSPARSE_HD int64 panels(int64 majors) { return div_up(majors, kDown); }
  static JITSPARSE_HD int64 tiles(int64 majors, int64 steps) { return panels(majors) + steps / kMin; }  // upper bound
  static JITSPARSE_HD int64 tiles_size(int64 majors, int64 steps) { return 8 + 8 * tiles(majors, steps); }
  static JITSPARSE_HD int64 wide_size(int64 majors, int64 steps) { return 8 + 8 * (panels(majors) + steps / kMax); }
};

// Block rows in a 192-row panel with slabs of 64 as steps, or 0 if there is no such panel.
constexpr int64 tall_panel(int64 block, int64 depth) { return block == 64 && depth >= 16 && depth <= 64 ? 3 : 0; }

// The packed index of a pattern of R x C blocks, Z of them stored; mirrors jitsparse/layout.py, which documents each section.
template <int BLOCK_ROWS, int BLOCK_COLS>
struct IndexView {
  const int32* base;
  int64 R, C, Z;

  JITSPARSE_HD IndexView(const int32* index, int64 rows, int64 cols, int64 nnz)
      : base(index), R(div_up(rows, BLOCK_ROWS)), C(div_up(cols, BLOCK_COLS)), Z(nnz) {}

  static constexpr int64 kRowGroup = BLOCK_ROWS >= 128 ? 1 : 128 / BLOCK_ROWS;
  static constexpr int64 kColGroup = BLOCK_COLS >= 128 ? 1 : 128 / BLOCK_COLS;
  JITSPARSE_HD int64 row_panels() const { return div_up(R, kRowGroup); }
  JITSPARSE_HD int64 col_panels() const { return div_up(C, kColGroup); }

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
  // sorted, most blocks first
  JITSPARSE_HD const int32* rows_sorted() const { return col_panel_blocks() + Z; }  // R
  JITSPARSE_HD const int32* cols_sorted() const { return rows_sorted() + R; }       // C

  // for Hopper (CUDA only, blocks of 16 and more); all but the last four are 16-byte aligned
  // a panel: (first step, end, -, -), where each of its groups of 64 rows begins (in units of 64), and its first four steps; absent where a
  // step would be less than 32 deep, since no kernel walks those
  static constexpr int64 kPanelWords = 24, kRowSteps = BLOCK_COLS < 32 ? 0 : 1, kColSteps = BLOCK_ROWS < 32 ? 0 : 1;
  JITSPARSE_HD const int32* row_panels_sorted() const { return base + align4(cols_sorted() + C - base); }
  JITSPARSE_HD const int32* col_panels_sorted() const { return row_panels_sorted() + kRowSteps * kPanelWords * row_panels(); }

  // what an sdd tile gathers: a panel of block rows, and pieces of block columns
  using RowGather = GatherShape<BLOCK_ROWS, BLOCK_COLS>;
  JITSPARSE_HD int64 row_gather_steps_capacity() const { return smaller(Z, RowGather::panels(R) * C) * RowGather::kPieces; }
  JITSPARSE_HD const int32* row_gather_steps() const { return col_panels_sorted() + kColSteps * kPanelWords * col_panels(); }  // 4 each
  JITSPARSE_HD const int32* row_gather_tiles() const { return row_gather_steps() + 4 * row_gather_steps_capacity(); }
  // or a panel of block columns, and pieces of block rows
  using ColGather = GatherShape<BLOCK_COLS, BLOCK_ROWS>;
  JITSPARSE_HD int64 col_gather_steps_capacity() const { return smaller(Z, ColGather::panels(C) * R) * ColGather::kPieces; }
  JITSPARSE_HD const int32* col_gather_steps() const {
    return row_gather_tiles() + RowGather::tiles_size(R, row_gather_steps_capacity());
  }
  JITSPARSE_HD const int32* col_gather_tiles() const { return col_gather_steps() + 4 * col_gather_steps_capacity(); }

  // panels as above with slabs of 64 as steps (only for blocks less than 64 deep; for others they would be the same)
  static constexpr int64 kRowSlab = BLOCK_COLS < 64 ? 64 / BLOCK_COLS : 0, kColSlab = BLOCK_ROWS < 64 ? 64 / BLOCK_ROWS : 0;
  JITSPARSE_HD int64 row_slab_capacity() const { return kRowSlab ? smaller(Z, row_panels() * div_up(C, at_least_1(kRowSlab))) : 0; }
  JITSPARSE_HD int64 col_slab_capacity() const { return kColSlab ? smaller(Z, col_panels() * div_up(R, at_least_1(kColSlab))) : 0; }
  JITSPARSE_HD const int32* row_slab_panels() const {
    return col_gather_tiles() + ColGather::tiles_size(C, col_gather_steps_capacity());
  }
  JITSPARSE_HD const int32* col_slab_panels() const { return row_slab_panels() + (kRowSlab ? kPanelWords * row_panels() : 0); }
  JITSPARSE_HD const int32* row_slab_steps() const { return col_slab_panels() + (kColSlab ? kPanelWords * col_panels() : 0); }
  JITSPARSE_HD const int32* col_slab_steps() const { return row_slab_steps() + 4 * row_slab_capacity(); }

  JITSPARSE_HD const int32* row_gather_blocks() const { return col_slab_steps() + 4 * col_slab_capacity(); }  // one per piece of a block
  JITSPARSE_HD const int32* col_gather_blocks() const { return row_gather_blocks() + Z * RowGather::kPieces; }
  JITSPARSE_HD const int32* row_slab_blocks() const { return col_gather_blocks() + Z * ColGather::kPieces; }  // Z or none
  JITSPARSE_HD const int32* col_slab_blocks() const { return row_slab_blocks() + (kRowSlab ? Z : 0); }        // Z or none

  // the sdd tiles again, each as wide as possible; 16-byte aligned, like everything below except the block lists
  JITSPARSE_HD const int32* row_wide_tiles() const { return base + align4(col_slab_blocks() + (kColSlab ? Z : 0) - base); }
  JITSPARSE_HD const int32* col_wide_tiles() const { return row_wide_tiles() + RowGather::wide_size(R, row_gather_steps_capacity()); }

  // 192-row panels with slabs as steps (only for blocks 64 high and 16 to 64 deep)
  static constexpr int64 kRowTall = tall_panel(BLOCK_ROWS, BLOCK_COLS), kColTall = tall_panel(BLOCK_COLS, BLOCK_ROWS);  // block rows
  JITSPARSE_HD int64 row_tall_count() const { return kRowTall ? div_up(R, at_least_1(kRowTall)) : 0; }
  JITSPARSE_HD int64 col_tall_count() const { return kColTall ? div_up(C, at_least_1(kColTall)) : 0; }
  JITSPARSE_HD int64 row_tall_capacity() const { return smaller(Z, row_tall_count() * div_up(C, at_least_1(64 / BLOCK_COLS))); }
  JITSPARSE_HD int64 col_tall_capacity() const { return smaller(Z, col_tall_count() * div_up(R, at_least_1(64 / BLOCK_ROWS))); }
  JITSPARSE_HD const int32* row_tall_panels() const { return col_wide_tiles() + ColGather::wide_size(C, col_gather_steps_capacity()); }
  JITSPARSE_HD const int32* col_tall_panels() const { return row_tall_panels() + kPanelWords * row_tall_count(); }
  JITSPARSE_HD const int32* row_tall_steps() const { return col_tall_panels() + kPanelWords * col_tall_count(); }
  JITSPARSE_HD const int32* col_tall_steps() const { return row_tall_steps() + 4 * row_tall_capacity(); }
  JITSPARSE_HD const int32* row_tall_blocks() const { return col_tall_steps() + 4 * col_tall_capacity(); }  // Z or none
  JITSPARSE_HD const int32* col_tall_blocks() const { return row_tall_blocks() + (kRowTall ? Z : 0); }      // Z or none

  // 128-row panels whose steps are the next block columns that they need (only for blocks less than 32 deep)
  static constexpr int64 kRowCondensed = BLOCK_COLS < 32 ? kRowSlab : 0, kColCondensed = BLOCK_ROWS < 32 ? kColSlab : 0;  // per step
  JITSPARSE_HD int64 row_condensed_capacity() const { return kRowCondensed ? row_slab_capacity() : 0; }
  JITSPARSE_HD int64 col_condensed_capacity() const { return kColCondensed ? col_slab_capacity() : 0; }
  JITSPARSE_HD const int32* row_condensed_panels() const { return base + align4(col_tall_blocks() + (kColTall ? Z : 0) - base); }
  JITSPARSE_HD const int32* col_condensed_panels() const {
    return row_condensed_panels() + (kRowCondensed ? kPanelWords * row_panels() : 0);
  }
  JITSPARSE_HD const int32* row_condensed_steps() const {
    return col_condensed_panels() + (kColCondensed ? kPanelWords * col_panels() : 0);
  }
  JITSPARSE_HD const int32* col_condensed_steps() const { return row_condensed_steps() + 4 * row_condensed_capacity(); }
  JITSPARSE_HD const int32* row_condensed_columns() const { return col_condensed_steps() + 4 * col_condensed_capacity(); }
  JITSPARSE_HD const int32* col_condensed_columns() const { return row_condensed_columns() + kRowCondensed * row_condensed_capacity(); }
  JITSPARSE_HD const int32* row_condensed_blocks() const {  // Z or none
    return col_condensed_columns() + kColCondensed * col_condensed_capacity();
  }
  JITSPARSE_HD const int32* col_condensed_blocks() const { return row_condensed_blocks() + (kRowCondensed ? Z : 0); }  // Z or none

 private:
  static constexpr JITSPARSE_HD int64 at_least_1(int64 a) { return a < 1 ? 1 : a; }
  static JITSPARSE_HD int64 smaller(int64 a, int64 b) { return a < b ? a : b; }
  static JITSPARSE_HD int64 align4(int64 x) { return (x + 3) / 4 * 4; }
};

}  // namespace jitsparse
