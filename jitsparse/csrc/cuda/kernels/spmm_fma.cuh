// Block-sparse x dense in IEEE float32: CUDA cores, fed by cp.async (sm_80 and later).
//
// Role form as in spmm_pipeline.cuh. A tile is as tall as a block, so that every block of its row is work for every warp: the cores are
// slow enough that the dense operand can be loaded once per block, and panels would leave warps without work. With SPLIT the blocks of each
// tile are split among several CTAs (split-K), and spmm_sum.cuh adds their sums from the workspace.
#pragma once

#include "../../abi.h"
#include "../ptx/special_register.cuh"
#include "../tile/activation.cuh"
#include "../tile/fma_tile.cuh"
#include "../tile/order.cuh"
#include "../tile/stage_loop.cuh"
#include "spmm_pipeline.cuh"
#include "spmm_sum.cuh"

namespace jitsparse {

template <int BLOCK_ROWS, int BLOCK_COLS, bool FLIPPED, bool DENSE_K_CONTIGUOUS, bool OUT_TRANSPOSED, int TILE_M, int TILE_N,
          int TILE_K, int WARPS_M, int WARPS_N, int STAGES, int MIN_CTAS, bool SPLIT>
struct SpmmFma {
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N, kMinCtas = MIN_CTAS;
  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  // The right operand should not be k-major in shared memory, see fma_tile.cuh. A k-major dense operand becomes the left one: then the
  // output's columns are the product's rows. If both are k-major, the one that is less of a stage is transposed as it is copied. Short
  // blocks always are, being so little of it, though as the left operand they could stay (1.01 to 1.03 times as fast).
  static constexpr bool kTransposesDense = DENSE_K_CONTIGUOUS && !FLIPPED && TILE_N < TILE_M;
  static constexpr bool kTransposed = DENSE_K_CONTIGUOUS && !kTransposesDense;
  static constexpr bool kTransposesBlocks = !FLIPPED && (kTransposed || TILE_M <= 32);
  using Pipeline = SpmmPipeline<F32, BLOCK_ROWS, BLOCK_COLS, FLIPPED, DENSE_K_CONTIGUOUS, TILE_M, TILE_N, TILE_K, kThreads,
                                STAGES, kTransposesBlocks, kTransposesDense>;
  static_assert(Pipeline::kGroup == 1 && Pipeline::kSlots == 1, "a stage is a part of one block");
  using Stages = Pipeline;  // as launch_after_copy.cuh calls it
  static constexpr int kSharedBytes = Pipeline::kBytes;

  using BlockTile = typename Pipeline::BlockTile;
  using DenseTile = typename Pipeline::DenseTile;
  using Product = std::conditional_t<kTransposed, FmaTile<DenseTile, BlockTile, true, false, WARP_N, WARP_M, TILE_K>,
                                     FmaTile<BlockTile, DenseTile, !FLIPPED && !kTransposesBlocks, false, WARP_M, WARP_N, TILE_K>>;

  using Sum = SpmmSum<F32>;
  using Sums = SpmmSums<OUT_TRANSPOSED>;

  // A thread's place in the output.
  struct WarpTile {
    TileCoordinates tile;
    int split;  // the CTA's split-K part
    int thread, lane_left, lane_right, warp_m, warp_n;

    __device__ __forceinline__ explicit WarpTile(const SpmmArgs& args)
        : tile(tile_of(args, ptx::block_index() / parts(args))), split(SPLIT ? ptx::block_index() % parts(args) : 0),
          thread(ptx::thread_index()), lane_left(Product::lane_m(thread % 32)), lane_right(Product::lane_n(thread % 32)),
          warp_m(thread / 32 / WARPS_N * WARP_M), warp_n(thread / 32 % WARPS_N * WARP_N) {}
  };

  // Tiles of rows with most blocks first: a CTA starts where another ends, so those that run last should be short.
  static __device__ __forceinline__ TileCoordinates tile_of(const SpmmArgs& args, int number) {
    TileCoordinates tile =
        longest_first_order(unsigned(number), Pipeline::panels(args), Pipeline::column_tiles(args), rows_side_by_side(args));
    const typename Pipeline::Index index(args.index, args.rows, args.cols, args.nnz);
    tile.row = __ldg((FLIPPED ? index.cols_sorted() : index.rows_sorted()) + tile.row);
    return tile;
  }

  // Rows whose tiles of a column are adjacent. One: the tiles of a row share its blocks, and load little compared with what they compute.
  // But low tiles use an element of the dense operand only TILE_M times: where L2 (of an H200) does not hold it, its slab of a column
  // should stay there. The sparser the rows, the more of them it takes until several use the same part of a slab.
  static __device__ __forceinline__ unsigned rows_side_by_side(const SpmmArgs& args) {
    constexpr int64 kL2 = int64(48) << 20;
    if (TILE_M > 16 || args.n * Pipeline::k(args) * int64(sizeof(float)) <= kL2 * (TILE_M / 8)) return 1;
    return args.nnz * (BLOCK_ROWS * BLOCK_COLS) < args.rows * args.cols / 16 ? 256 : 64;
  }

  static JITSPARSE_HD int parts(const SpmmArgs& args) { return SPLIT ? int(args.parts) : 1; }

  static __device__ __forceinline__ void run(const SpmmArgs& args) {
    typename Product::Accumulators c = {};
    accumulate(args, c);
    store(args, c);
  }

  static __device__ __forceinline__ void accumulate(const SpmmArgs& args, typename Product::Accumulators& c) {
    extern __shared__ __align__(128) unsigned char shared[];
    const WarpTile mine(args);
    typename Pipeline::Stream stream(args, mine.tile.row, mine.tile.column * TILE_N, mine.tile.batch, shared, mine.thread,
                                     mine.split, parts(args));
    stream.start();
    const unsigned of_blocks = 0, of_dense = Pipeline::kBlockBytes;
    const unsigned left = (kTransposed ? of_dense : of_blocks) +
                          Product::Left::lane_offset(kTransposed ? mine.warp_n : mine.warp_m, mine.lane_left);
    const unsigned right = (kTransposed ? of_blocks : of_dense) +
                           Product::Right::lane_offset(kTransposed ? mine.warp_m : mine.warp_n, mine.lane_right);
    for_each_stage<Pipeline>(stream, 0, stream.stage_count, [&](int, unsigned buffer) {
      Product::multiply(c, buffer + left, buffer + right);
    });
  }

  static __device__ __forceinline__ void store(const SpmmArgs& args, typename Product::Accumulators& c) {
    const WarpTile mine(args);
    const int64 first_m = mine.tile.row * TILE_M + mine.warp_m, first_n = mine.tile.column * TILE_N + mine.warp_n;
    const int m_left = inside(Pipeline::m(args), first_m, WARP_M), n_left = inside(args.n, first_n, WARP_N);
    if (parts(args) > 1) {
      const int64 m = Pipeline::m(args), ld = Sums::ld(args, m);
      float* sums = Sums::at(args, m, mine.split, mine.tile.batch);
      return store_at(sums + start_of(ld, first_m, first_n), ld, mine, c, m_left, n_left);
    }
    if (OUT_TRANSPOSED && args.bias != nullptr) {
      const float* bias = static_cast<const float*>(args.bias) + first_m;
      constexpr int kDown = kTransposed ? Product::kEachN : Product::kEachM, kAcross = kTransposed ? Product::kEachM : Product::kEachN;
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        const int m = kTransposed ? Product::Right::at(mine.lane_right, i) : Product::Left::at(mine.lane_left, i);
        const float b = m < m_left ? bias[m] : 0.0f;
#pragma unroll
        for (int j = 0; j < kAcross; ++j) c[kTransposed ? j * Product::kEachN + i : i * Product::kEachN + j] += b;
      }
    }
    apply_activation<F32>(c, args.activation);
    float* out = static_cast<float*>(args.out) + mine.tile.batch * args.out_batch_stride;
    store_at(out + start_of(args.out_ld, first_m, first_n), args.out_ld, mine, c, m_left, n_left);
  }

  static __device__ __forceinline__ int64 start_of(int64 ld, int64 m, int64 n) { return OUT_TRANSPOSED ? n * ld + m : m * ld + n; }

  // `ld` by reference: with a copy of it dds nt spills in blocks of 128.
  static __device__ __forceinline__ void store_at(float* out, const int64& ld, const WarpTile& mine,
                                                  const typename Product::Accumulators& c, int m_left, int n_left) {
    // Operands are aligned, so an extent of the output is a multiple of a run along it: a run is entirely inside or outside.
    Product::template for_each_run<OUT_TRANSPOSED != kTransposed>(c, mine.lane_left, mine.lane_right, [&](int i, int j, const auto& run) {
      const int m = kTransposed ? j : i, n = kTransposed ? i : j;
      if (m < m_left && n < n_left) store_run(out + start_of(ld, m, n), run);
    });
  }

  static int64 grid(const SpmmArgs& args) { return Pipeline::grid(args) * parts(args); }

  // Parameters of the kernel that adds the parts of split tiles.
  static typename Sum::Params sum(const SpmmArgs& args) { return Sum::template of<Sums>(args, Pipeline::m(args), parts(args)); }
};

}  // namespace jitsparse
