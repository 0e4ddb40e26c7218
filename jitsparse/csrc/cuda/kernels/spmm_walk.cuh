// The tiles that a persistent CTA of a block-sparse x dense product computes, in order, and the steps of each.
//
// Stages: how the product partitions the work, with its Params and its Index (SpmmStages).
#pragma once

#include "../../abi.h"
#include "spmm_order.cuh"

namespace jitsparse {

// The pattern as the kernel walks it. Computing where its lists begin would take a CTA some hundred instructions before its first copy, so
// the host does.
template <typename Stages>
struct SpmmSteps {
  static constexpr int kFirstSteps = 4;
  const int4* panels;    // longest first: (first step, end, -, -), where each of its groups of 64 rows begins, its first steps
  const int4* steps;     // (slab or block column, mask of the blocks, first in positions, position of the first block)
  const int* positions;  // positions of a step's blocks in values
  const int* condensed;     // the block columns of a step, if they are condensed

  static SpmmSteps of(const SpmmArgs& args) {
    const typename Stages::Index index(args.index, args.rows, args.cols, args.nnz);
    const int *panels, *steps, *positions, *condensed = nullptr;
    if constexpr (Stages::kCondensed) {
      panels = Stages::kFlipped ? index.col_condensed_panels() : index.row_condensed_panels();
      steps = Stages::kFlipped ? index.col_condensed_steps() : index.row_condensed_steps();
      positions = Stages::kFlipped ? index.col_condensed_blocks() : index.row_condensed_blocks();
      condensed = Stages::kFlipped ? index.col_condensed_columns() : index.row_condensed_columns();
    } else if constexpr (Stages::kTall) {
      panels = Stages::kFlipped ? index.col_tall_panels() : index.row_tall_panels();
      steps = Stages::kFlipped ? index.col_tall_steps() : index.row_tall_steps();
      positions = Stages::kFlipped ? index.col_tall_blocks() : index.row_tall_blocks();
    } else if constexpr (Stages::kAcross > 1) {
      panels = Stages::kFlipped ? index.col_slab_panels() : index.row_slab_panels();
      steps = Stages::kFlipped ? index.col_slab_steps() : index.row_slab_steps();
      positions = Stages::kFlipped ? index.col_slab_blocks() : index.row_slab_blocks();
    } else {
      panels = Stages::kFlipped ? index.col_panels_sorted() : index.row_panels_sorted();
      steps = Stages::kFlipped ? index.col_steps() : index.row_steps();
      positions = Stages::kFlipped ? index.col_panel_blocks() : index.row_panel_blocks();
    }
    return {reinterpret_cast<const int4*>(panels), reinterpret_cast<const int4*>(steps), positions, condensed};
  }

  static constexpr int kPanelInt4s = 2 + kFirstSteps;
  __device__ __forceinline__ int4 panel(int rank) const { return __ldg(panels + rank * kPanelInt4s); }
  __device__ __forceinline__ int4 rows(int rank) const { return __ldg(panels + rank * kPanelInt4s + 1); }
  __device__ __forceinline__ int4 first_step(int rank, int n) const { return __ldg(panels + rank * kPanelInt4s + 2 + n); }

  // The first row of the n-th 64 rows of a panel, which may be past the end.
  static __device__ __forceinline__ int first_row(const int4& rows, int n) { return 64 * (n == 0 ? rows.x : n == 1 ? rows.y : rows.z); }
};

// The tiles of a CTA, in order. A tile's panel is read while the previous tile is computed; STORES: its rows too.
template <typename Stages, bool STORES>
struct SpmmTiles {
  const SpmmOrder& order;
  const SpmmSteps<Stages>& index;
  int round = 0;        // of `next`
  SpmmTile next, tile;  // and the current one
  int part;             // split-K part; if there are several, there is one round
  int4 next_panel = {}, panel = {}, next_rows = {}, rows = {};

  __device__ __forceinline__ explicit SpmmTiles(const typename Stages::Params& params) : order(params.order), index(params.index) {}

  // Goes to the first tile, which advance() makes the current one.
  __device__ __forceinline__ void begin() {
    next = tile = SpmmTile(order, number());
    if (Stages::kSplit) part = int(blockIdx.x - order.parts.quotient(blockIdx.x) * order.parts.value);
    prefetch_panel();
  }

  // The number of the next round's tile.
  __device__ __forceinline__ int64 number() const {
    if (Stages::kSplit && order.parts.value > 1) return round == 0 ? order.parts.quotient(blockIdx.x) : order.tiles;
    return tile_of_round(round);
  }

  __device__ __forceinline__ void prefetch_panel() {
    if (!next.valid) return;
    next_panel = index.panel(next.rank);
    if (Stages::kSplit && order.parts.value > 1) {
      const int steps = next_panel.y - next_panel.x, share = int(order.parts.quotient(steps + order.parts.value - 1));
      next_panel.x += part * share < steps ? part * share : steps;
      if (next_panel.y - next_panel.x > share) next_panel.y = next_panel.x + share;
    }
    if (STORES) next_rows = index.rows(next.rank);
  }

  // Goes on to the next tile, if there is one.
  __device__ __forceinline__ bool advance() {
    if (!next.valid) return false;
    tile = next;
    panel = next_panel;
    rows = next_rows;
    ++round;
    next = SpmmTile(order, number());
    prefetch_panel();
    return true;
  }

  __device__ __forceinline__ int steps() const { return panel.y - panel.x; }
};

// The steps of a CTA's tiles, in order; a producer warp takes every kStride-th.
template <typename Stages>
struct SpmmWalk {
  SpmmTiles<Stages, /*STORES=*/false> tiles;
  int at, end;  // the warp's next step of its tile, and where the tile ends
  int number;   // of that step among all of the CTA's
  int4 words;   // of that step

  __device__ __forceinline__ explicit SpmmWalk(const typename Stages::Params& params) : tiles(params) {}

  // Goes to the warp's first step.
  __device__ __forceinline__ void begin(int first) {
    tiles.begin();
    at = number = first;
    end = 0;
    // The kernel's first copies wait for one read from memory, since this one and the panel's do not depend on each other.
    static_assert(Stages::kStride <= SpmmSteps<Stages>::kFirstSteps, "each warp's first step stands beside the panel");
    if (!Stages::kSplit) words = tiles.index.first_step(tiles.next.rank, first);
    next_tile();
    if (Stages::kSplit || at >= end) seek();
  }

  // Goes on to the next tile, if there is one.
  __device__ __forceinline__ bool next_tile() {
    if (!tiles.advance()) return false;
    at = tiles.panel.x + (at - end);  // carries the stride past the end of the previous tile
    end = tiles.panel.y;
    return true;
  }

  // Goes on to the tile that has the warp's next step, and loads that step.
  __device__ __forceinline__ void seek() {
    while (at >= end && next_tile()) {}
    if (at < end) words = __ldg(tiles.index.steps + at);
  }

  struct Step {
    int4 words;
    int number, first_n, batch;
    bool valid;
  };

  // The warp's next step; the words of the one after it are in flight.
  __device__ __forceinline__ Step take() {
    const Step step = {words, number, tiles.tile.column * Stages::kTileN, tiles.tile.batch, at < end};
    at += Stages::kStride;
    number += Stages::kStride;
    if (step.valid) seek();
    return step;
  }

  // Position in values of the block that a lane copies; negative if it copies none.
  __device__ __forceinline__ int position(const Step& step, int lane) const {
    const unsigned mask = step.words.y;
    if (!step.valid || !(mask >> lane & 1)) return -1;
    const int before = __popc(mask & ((1u << lane) - 1));
    return before == 0 ? step.words.w : __ldg(tiles.index.positions + step.words.z + before);
  }

  // First k of the piece of the dense operand that a lane copies; negative if it copies none.
  __device__ __forceinline__ int first_k(const Step& step, int lane) const {
    if constexpr (!Stages::kCondensed) return lane == 0 ? step.words.x * Stages::kStepK : -1;
    if (!step.valid || lane >= Stages::kPieces) return -1;
    return __ldg(tiles.index.condensed + step.words.x * Stages::kPieces + lane) * Stages::kPieceK;
  }
};

}  // namespace jitsparse
