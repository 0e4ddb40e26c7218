// The rasterization order of the persistent CTAs of a block-sparse x dense product.
//
// Tiles are listed in groups of panels, the longest panels first, and column by column within a group, so that concurrent tiles need the
// same operands: L2 serves neighbours that request the same slab at the same time with one read. Which SMs they are on matters. CTAs are
// dealt out in pairs, one pair per TPC, one GPC after the other, so that sixteen neighbours are on one TPC of each of eight GPCs, and the
// CTAs sixteen further are on the same GPCs. docs/performance.md has what L2 delivers by who requests it.
#pragma once

#include "../tile/order.cuh"

namespace jitsparse {

// Prepared by the host, since several divisions would stand between a CTA's start and its first copy.
struct SpmmOrder {
  static constexpr unsigned kSet = 16;  // neighbours: sixteen panels of a column, or eight of two
  static constexpr unsigned kFourSets = 4 * kSet;

  int64 tiles;       // at least one
  unsigned columns;  // of tiles
  unsigned group;    // panels per whole group; an even number
  bool two_columns;  // the two CTAs of a TPC have one panel and two columns, not two panels and one column
  bool moving;       // panels change places, see SpmmTile::moved
  GroupedTiles grouped;
  Divisor two_rounds;  // tiles
  Divisor parts;       // split-K parts per tile, one CTA each

  static SpmmOrder of(int64 panels, int64 columns, int64 batch, unsigned group, bool two_columns, int64 parts, int64 grid) {
    return {panels * columns * batch,
            unsigned(columns),
            group,
            two_columns,
            grid % kSet == 0 && group % kSet == 0 && parts == 1,
            GroupedTiles::of(panels, columns, group),
            Divisor::of(unsigned(2 * grid)),
            Divisor::of(unsigned(parts))};
  }
};

// A tile of the list.
struct SpmmTile {
  int rank;  // of its panel in SpmmSteps::panels
  int column, batch;
  bool valid;  // if not, the other members mean nothing

  SpmmTile() = default;
  __device__ __forceinline__ SpmmTile(const SpmmOrder& order, int64 number) {
    valid = number < order.tiles;
    const TileCoordinates tile = order.grouped.at(unsigned(number));
    unsigned row = moved(unsigned(tile.row), unsigned(number), order), of_columns = unsigned(tile.column);
    // Of each two panels by two columns, neighbours are then the two columns.
    if (order.two_columns && (row | 1) < order.grouped.rows && (of_columns | 1) < order.columns) {
      const unsigned other = (row ^ of_columns) & 1;
      row ^= other;
      of_columns ^= other;
    }
    rank = int(row);
    column = int(of_columns);
    batch = int(tile.batch);
  }

  // In a grid of whole sets of neighbours, a CTA has the same place of its set in every round, so panels of the same length. Every other
  // round is dealt out backwards, which pairs the first of a group with its last. After every two rounds panels therefore change places:
  // the order of the pairs is reversed, then that within each half, and within each quarter. All tiles of a column in a group, which are a
  // set's, move together. (The busiest CTA over the mean, 8192, blocks of 128, density 0.1, random and power-law rows: 1.02 and 1.22;
  // unmoved 1.12 and 2.45.)
  //
  // In groups of four sets, a set of CTAs would forever get the same two of a column, so the sets are shifted by one every two rounds, and
  // panels change places once a set of CTAs has had all four. (The busiest CTA over the mean, as above, random rows: 1.02; not shifted
  // 1.08.)
  //
  // Each of eight sets also has its own order of TPCs (two neighbours each), the same one in both rounds, so that a panel's tiles of other
  // columns are on other GPCs, and its blocks are read once for all. (Blocks of 64 and, in dds, of 32: 1.00 to 1.03 times as fast.)
  static __device__ __forceinline__ unsigned moved(unsigned row, unsigned number, const SpmmOrder& order) {
    constexpr unsigned kSet = SpmmOrder::kSet, kTpcs = kSet / 2;
    const bool whole = (row | (kSet - 1)) < order.grouped.rows;
    if (!order.moving || !whole) return row;
    const unsigned first_of_set = number - row % kSet;
    unsigned period = order.two_rounds.quotient(first_of_set);
    const unsigned in_period = first_of_set - period * order.two_rounds.value;
    if (order.group == SpmmOrder::kFourSets && (row | (SpmmOrder::kFourSets - 1)) < order.grouped.rows) {
      const unsigned in_group = row % SpmmOrder::kFourSets;
      const unsigned of_column = order.two_rounds.quotient(number - in_group);  // the same for all four sets
      row += (in_group + of_column * kSet) % SpmmOrder::kFourSets - in_group;
      period = of_column / 4 * 2;  // of four periods, in which each set came from both ends: the first change has been made
    }
    // A pair is rows r and group - 1 - r, which a CTA gets in two rounds; r is its number.
    const unsigned last_pair = (order.group < 2 * kSet ? order.group : 2 * kSet) / 2 - 1;
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) row ^= period >> bit & 1 ? last_pair >> bit : 0;
    const unsigned sets = order.two_rounds.value / (2 * kSet), set = in_period / kSet;
    return row ^ (set < sets ? set : 2 * sets - 1 - set) % kTpcs * 2;
  }
};

}  // namespace jitsparse
